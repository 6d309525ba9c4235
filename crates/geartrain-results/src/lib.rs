//! The long-term log of what became of jobs: a row for each attempt, in a database, for whoever asks later whether the work was done.
//!
//! A [`Recorder`] writes what a server hears of its queue: [`changes`] says in the log's words what events tell, and a [`Ledger`] keeps it. Workers that
//! would rather write themselves use a [`ResultLog`], and so does whoever reads. What is in the file: docs/formats/result-log.md.

mod batch;
mod entry;
mod error;
mod heard;
mod place;
mod recorder;
mod result_log;
mod size;
mod spool;
mod sqlite;
#[cfg(test)]
mod tests;

pub use batch::{Batch, Change, Ended, Gap, Gotten, Ledger, Started};
pub use entry::{Ending, Entry, Query};
pub use error::LogError;
pub use heard::{Heard, changes, job_of, result_of};
pub use place::LogPlace;
pub use recorder::{Opened, Recorder};
pub use result_log::ResultLog;
pub use size::LogSize;

/// How many bytes of a result, or of what was said about a failure, are kept. The rest is cut off.
pub const RESULT_BYTES_MAX: usize = 64 << 10;
