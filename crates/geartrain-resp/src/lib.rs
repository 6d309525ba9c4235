//! The RESP front-end: the Qless API without a Redis, and the native API.
//!
//! A client that speaks to a Redis with Qless's script can speak to a [`Front`] instead: scripts are accepted
//! and remembered, but a call of one is executed as a call of the API by the
//! [`Backend`](geartrain_core::Backend).

mod backup;
mod channels;
mod connection;
mod flush;
mod frame;
mod front;
mod glob;
mod json;
mod keys;
mod native;
mod outbox;
mod qless;
mod redis_commands;
mod reset;
mod result_streams;
mod scripts;
mod session;
mod transaction;

pub use front::{Front, Options};
pub use geartrain_front::AccessControl;
