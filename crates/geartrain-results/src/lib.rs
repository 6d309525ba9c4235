//! The long-term result log: a row for each attempt at a job, in a database.
//!
//! A server writes it with a [`Recorder`]: [`changes`] turns events into rows. Workers that write it
//! themselves, and readers, use a [`ResultLog`]. The file format: docs/formats/result-log.md.

mod batch;
mod entry;
mod error;
mod from_events;
mod recorder;
mod result_log;
mod size;
mod spool;
mod sqlite;
mod target;
#[cfg(test)]
mod tests;
mod view;

pub use batch::{Batch, Change, Ended, Gap, ResultRecord, Started};
pub use entry::{Ending, Entry, Query};
pub use error::LogError;
pub use from_events::{ReceivedEvent, changes, job_of, result_of, tombstone_of};
pub use recorder::{OpenedLog, Recorder};
pub use result_log::ResultLog;
pub use size::LogSize;
pub use target::LogTarget;

/// How many bytes of a result, or of the message of a failure, are stored. The rest is cut off.
pub const RESULT_BYTES_MAX: usize = 64 << 10;
