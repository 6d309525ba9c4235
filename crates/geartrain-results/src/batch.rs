//! What goes into a log at once, and who keeps it.

use geartrain_core::{Jid, Klass, QueueName, WorkerName};
use serde::{Deserialize, Serialize};

use crate::{Ending, LogError, LogSize, RESULT_BYTES_MAX};

/// Whoever keeps what became of jobs: a database. This is the seam where another one fits in.
pub trait Ledger: Send {
    /// The position up to which it knows the queue's events; none if it never was told of any.
    fn position(&mut self) -> Result<Option<u64>, LogError>;

    /// Keeps a batch, together with its position, or nothing of it. What was kept before is passed over, so that a batch may come again.
    fn write(&mut self, batch: &Batch) -> Result<(), LogError>;

    /// Removes attempts that ended before a moment, in seconds since the epoch, and gaps that were noticed
    /// before it: the oldest first and at most so many, so that writing does not wait long. Answers how many
    /// were removed.
    fn prune(&mut self, before: f64, rows_max: usize) -> Result<usize, LogError>;

    /// How large it is.
    fn size(&mut self) -> Result<LogSize, LogError>;
}

/// What happened up to a position, in order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Batch {
    /// What happened.
    pub changes: Vec<Change>,
    /// The position of the last event that this is from.
    pub position: u64,
}

/// One thing that the log wants to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// An attempt began.
    Started(Started),
    /// An attempt ended, or a job that nobody worked on.
    Ended(Ended),
    /// What came out of the last attempt that ended.
    Gotten(Gotten),
    /// Events were missed.
    Gap(Gap),
}

/// An attempt began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// Where this stands among the queue's events.
    pub position: u64,
    /// The job.
    pub jid: Jid,
    /// Its queue.
    pub queue: QueueName,
    /// What code it is for, if that is known.
    pub klass: Option<Klass>,
    /// Who has it.
    pub worker: WorkerName,
    /// The number of the attempt's token, if that is known.
    pub token: Option<u64>,
    /// When, in seconds since the epoch.
    pub at: f64,
    /// Whether that is the queue's own moment.
    pub exact: bool,
}

/// An attempt ended, or a job that nobody worked on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Where this stands among the queue's events.
    pub position: u64,
    /// The job.
    pub jid: Jid,
    /// Its queue, if that is known.
    pub queue: Option<QueueName>,
    /// What code it is for, if that is known.
    pub klass: Option<Klass>,
    /// Who had it, if that is known.
    pub worker: Option<WorkerName>,
    /// When the attempt began, for a log that was not there yet.
    pub started: Option<f64>,
    /// When, in seconds since the epoch.
    pub at: f64,
    /// Whether that is the queue's own moment.
    pub exact: bool,
    /// How.
    pub ending: Ending,
    /// Whether somebody worked on it.
    pub attempted: bool,
    /// Whether that is for good. A worker that was warned may still come back.
    pub settled: bool,
    /// The kind of failure.
    pub group: Option<String>,
    /// What was said about the failure.
    pub message: Option<String>,
}

/// What came out of the last attempt that ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gotten {
    /// Where this stands among the queue's events.
    pub position: u64,
    /// The job.
    pub jid: Jid,
    /// A number, 0 for all is well.
    pub code: i32,
    /// What is kept of the bytes.
    pub bytes: Vec<u8>,
    /// How many there were.
    pub length: u64,
}

/// Events were missed: the queue no longer kept them when the log asked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// The last position that the log knew.
    pub after: u64,
    /// The first one that it knows again, or will.
    pub before: u64,
    /// When it was noticed, in seconds since the epoch.
    pub noticed: f64,
}

impl Gap {
    /// How many positions are missing, and so how many events at the most. There are often far fewer: positions leap when a directory is opened again, and on a
    /// Redis there is room behind each. If they went back, nobody can tell.
    pub fn missing_max(&self) -> Option<u64> {
        self.before.checked_sub(self.after)?.checked_sub(1)
    }
}

/// As many bytes as are kept.
pub(crate) fn cut(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(RESULT_BYTES_MAX)]
}

/// As much of a text as is kept.
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
