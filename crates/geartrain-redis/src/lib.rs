//! Backends on Redis, on Valkey, and on a geartrain server.

pub mod script;
