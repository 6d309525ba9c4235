//! What tests of geartrain are made of.

pub mod model;
pub mod story;
