//! Random traces: sequences of commands in any order, at any time, made from a seed alone.
//!
//! A trace uses a small fixture (a dozen jids, three queues, three workers), so that its commands interact.
//! To make plausible commands, the generator runs the [`Model`](crate::model::Model) and remembers which
//! worker holds what.

mod coverage;
mod fixture;
mod generator;
mod shrink;
mod tokens;

use std::fmt;
use std::sync::Arc;

use geartrain_core::engine::Limits;
use geartrain_core::{Command, Timestamp};

pub use coverage::Coverage;
pub use fixture::{final_reads, queues};
pub use generator::{generate, generate_timely};
pub use shrink::shrink;
pub use tokens::Tokens;

/// The largest payload in a trace: small, so that some are too large.
pub const PAYLOAD_BYTES_MAX: usize = 64;

/// The limits of an engine or a model that runs a trace.
pub fn limits() -> Limits {
    Limits { payload_bytes_max: PAYLOAD_BYTES_MAX, ..Limits::default() }
}

/// One command of a trace.
///
/// Its tokens are symbolic: see [`Tokens`].
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its index in the trace as generated; shrinking keeps it.
    pub number: usize,
    /// The time at which the command is executed.
    pub now: Timestamp,
    /// The command itself.
    pub command: Command,
}

impl Step {
    /// Who asks for the command, if it records that: some callers are known, and some have long names.
    pub fn by(&self) -> Option<Arc<str>> {
        let names: [Option<&str>; 4] = [None, Some("ana"), Some("10.0.0.7:4711"), Some("\u{e4}")];
        let by = names[self.number % 4].filter(|_| self.command.records_caller())?;
        Some(if self.number.is_multiple_of(7) { by.repeat(700).into() } else { by.into() })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4}. at {:<16} {:?}", self.number, self.now.get(), self.command)
    }
}
