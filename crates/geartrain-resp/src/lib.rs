//! RESP front-end: the Qless API without a Redis, and our own batches.
//!
//! Whatever speaks to a Redis that holds Qless's script can speak to a [`Front`] instead: scripts are taken and remembered, but a call of one is a call of
//! the API, and is done by the [`Backend`](geartrain_core::Backend).

mod channels;
mod connection;
mod flush;
mod frame;
mod front;
mod native;
mod qless;
mod scripts;
mod session;
mod words;

pub use front::{Front, Options};
