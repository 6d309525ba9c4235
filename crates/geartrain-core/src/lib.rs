//! What a job queue is, without I/O, clock, threads or chance.
//!
//! A front-end builds a [`Command`], a [`Backend`] executes it and gives a [`Reply`]; what happened goes out as
//! [`Event`]s. The rules are those of the [`Engine`](engine::Engine): it is told what time it is, decides what
//! changes, and changes it in one place.

mod backend;
pub mod base64;
mod clock;
mod command;
pub mod engine;
mod error;
mod event;
mod job;
pub mod json;
mod names;
mod number;
mod payload;
mod result_stream;
mod time;
mod url;
pub mod wire;

pub use backend::*;
pub use clock::{Clock, SystemClock};
pub use command::*;
pub use error::*;
pub use event::*;
pub use job::*;
pub use names::{
    BadName, BadNameWhy, FUNCTION_BYTES_MAX, GROUP_BYTES_MAX, Group, Jid, Klass, NAME_BYTES_MAX, QueueName,
    Tag, WorkerName,
};
pub use number::read_number;
pub use payload::{LARGE_PAYLOAD_BYTES, PAYLOAD_BYTES_MAX, Payload, SpillLocation};
pub use result_stream::*;
pub use time::{NotFinite, Priority, Seconds, Timestamp};
pub use url::split_query;
