//! Backends on Redis, on Valkey, and on a geartrain server.

mod clock;
mod driver;
mod ears;
mod effect;
mod foreign;
mod link;
mod primary;
pub mod script;
mod sleepers;
mod url;

pub use driver::RedisBackend;
pub use link::Trouble;
pub use url::{BadUrl, RedisUrl};
