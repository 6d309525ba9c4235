//! Batches: what one transaction adds to the result log. The spool stores them with serde.

use geartrain_core::{Jid, Klass, QueueName, WorkerName};
use serde::{Deserialize, Serialize};

use crate::{Ending, RESULT_BYTES_MAX};

/// The changes of the events up to a position, in order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Batch {
    /// The changes.
    pub changes: Vec<Change>,
    /// The position of the last event.
    pub position: u64,
}

/// One change of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// An attempt started.
    Started(Started),
    /// An attempt ended, or a job that no worker held.
    Ended(Ended),
    /// The result of the last attempt that ended.
    #[serde(rename = "Gotten")]
    Result(ResultRecord),
    /// Events were missed.
    Gap(Gap),
}

/// An attempt started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// The position of the event.
    pub position: u64,
    /// The job id.
    pub jid: Jid,
    /// The queue.
    pub queue: QueueName,
    /// The kind of job, if known.
    pub klass: Option<Klass>,
    /// The worker that holds it.
    pub worker: WorkerName,
    /// The number of the lock token, if known.
    pub token: Option<u64>,
    /// The time, in seconds since the epoch.
    pub at: f64,
    /// Whether that is the queue's own time.
    pub exact: bool,
}

/// An attempt ended, or a job that no worker held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The position of the event.
    pub position: u64,
    /// The job id.
    pub jid: Jid,
    /// The queue, if known.
    pub queue: Option<QueueName>,
    /// The kind of job, if known.
    pub klass: Option<Klass>,
    /// The worker that held it, if known.
    pub worker: Option<WorkerName>,
    /// When the attempt started, for a log that was opened later.
    pub started: Option<f64>,
    /// The time, in seconds since the epoch.
    pub at: f64,
    /// Whether that is the queue's own time.
    pub exact: bool,
    /// How it ended.
    pub ending: Ending,
    /// Whether a worker held the job.
    pub attempted: bool,
    /// Whether this is final. A worker that was warned may still come back.
    pub settled: bool,
    /// The failure group.
    pub group: Option<String>,
    /// The message of the failure.
    pub message: Option<String>,
}

/// The result of the last attempt that ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultRecord {
    /// The position of the event.
    pub position: u64,
    /// The job id.
    pub jid: Jid,
    /// The status code of the result.
    pub code: i32,
    /// The bytes, cut off at [`RESULT_BYTES_MAX`].
    pub bytes: Vec<u8>,
    /// The full length.
    pub length: u64,
}

/// Missing events: the queue no longer retained them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// The last position before the gap.
    pub after: u64,
    /// The first position after the gap.
    pub before: u64,
    /// When the gap was noticed, in seconds since the epoch.
    pub noticed: f64,
}

impl Gap {
    /// How many positions are missing: an upper bound for the events. There are often far fewer, because
    /// positions skip ahead when a directory is reopened, and are sparse on a Redis. None if positions went
    /// back.
    pub fn missing_max(&self) -> Option<u64> {
        self.before.checked_sub(self.after)?.checked_sub(1)
    }
}

pub(crate) fn cut(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(RESULT_BYTES_MAX)]
}

pub(crate) fn cut_text(text: &str) -> String {
    if text.len() <= RESULT_BYTES_MAX {
        return text.to_owned();
    }
    let mut end = RESULT_BYTES_MAX - '…'.len_utf8();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}
