//! Backends on Redis, on Valkey, and on a geartrain server.

mod backup;
mod cancelled;
mod clock;
mod connection;
mod driver;
mod effect;
mod event_barrier;
mod foreign;
pub mod gearmonkey;
mod layout;
mod parked;
mod primary;
pub mod script;
mod subscriber;
mod tls_files;
mod url;
pub mod workkit;
pub mod worqr;

pub use connection::ConnectionError;
pub use driver::RedisBackend;
pub use url::{BadUrl, RedisUrl};
