//! Random stories: what callers might ask of a queue, in any order, at any time.
//!
//! A story is told in a small world (a dozen jids, three queues, three workers), so that its commands meet. It is made
//! from a seed and nothing else. To tell a plausible one, the teller runs the [`Model`](crate::model::Model) beside
//! it and remembers who was handed what.

mod coverage;
mod fixture;
mod generator;
mod shrink;
mod tokens;

use std::fmt;

use geartrain_core::engine::Limits;
use geartrain_core::{Command, Timestamp};

pub use coverage::Coverage;
pub use fixture::{final_reads, queues};
pub use generator::{generate, generate_timely};
pub use shrink::shrink;
pub use tokens::Tokens;

/// The largest payload in a story: small, so that some are too large.
pub const PAYLOAD_BYTES_MAX: usize = 64;

/// What an engine or a model that lives through a story will not take.
pub fn limits() -> Limits {
    Limits { payload_bytes_max: PAYLOAD_BYTES_MAX, ..Limits::default() }
}

/// One command of a story.
///
/// Tokens in it are the story's own: see [`Tokens`].
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its place in the story as it was first told; a shorter version keeps it.
    pub number: usize,
    /// When it is given.
    pub now: Timestamp,
    /// What is asked.
    pub command: Command,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4}. at {:<16} {:?}", self.number, self.now.get(), self.command)
    }
}
