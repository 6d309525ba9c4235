//! The job queue itself, deterministic: no I/O, no threads, no randomness, and time is a parameter.
//!
//! A front-end builds a [`Command`]; a [`Backend`] executes it and returns a [`Reply`] or a [`Refusal`];
//! changes are published as [`Event`]s. [`Engine`](engine::Engine) holds the rules: it takes the current time
//! and a command, decides what changes, and applies the change in one place. [`wire`] encodes commands and
//! replies for other processes.
//!
//! - Jobs and their states: [`Job`], [`JobState`], [`Lock`], and [`Token`], the fencing token of an attempt.
//! - Submitting and running: [`Put`], [`PutOptions`], [`Pop`], [`Heartbeat`], [`Complete`], [`Fail`],
//!   [`Retry`].
//! - Waiting for results: [`Attach`], [`ResultStream`], [`StoredResult`].
//! - Cron expressions and plain-English times: [`schedule`], the only module that reads files: the time-zone
//!   database. The engine does not use it.
//! - Observing: [`Subscription`], [`Why`], [`Stats`].

mod attempt;
mod backend;
mod backup;
pub mod base64;
mod clock;
mod command;
pub mod engine;
mod error;
mod event;
mod filter;
mod job;
pub mod json;
mod names;
mod number;
mod options;
mod payload;
mod result_stream;
pub mod schedule;
mod time;
mod timing;
mod traceparent;
mod url;
pub mod wire;

pub use attempt::*;
pub use backend::*;
pub use backup::*;
pub use clock::{Clock, ManualClock, SystemClock};
pub use command::*;
pub use error::*;
pub use event::*;
pub use filter::*;
pub use job::*;
pub use names::{
    BadName, BadNameWhy, FUNCTION_BYTES_MAX, GROUP_BYTES_MAX, Group, Jid, Klass, NAME_BYTES_MAX, QueueName,
    Tag, WorkerName,
};
pub use number::read_number;
pub use options::{OPTIONS, OptionInfo, OptionScope, OptionValues};
pub use payload::{LARGE_PAYLOAD_BYTES, PAYLOAD_BYTES_MAX, Payload, SpillLocation};
pub use result_stream::*;
pub use time::{NotFinite, Priority, Seconds, Timestamp};
pub use timing::{Timing, TimingCounts};
pub use traceparent::Traceparent;
pub use url::split_query;
