//! stub
/// stub
pub struct Engine;
