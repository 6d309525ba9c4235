//! Entries of the result log, and queries.

use geartrain_core::{JobResult, Timestamp};

/// One attempt at a job, or the end of a job that no worker held.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The job id.
    pub jid: String,
    /// The number of the attempt, counted from 1 by the log; none if no worker held the job when it ended.
    pub attempt: Option<u64>,
    /// The queue, if known.
    pub queue: Option<String>,
    /// The kind of job, if known.
    pub klass: Option<String>,
    /// The worker that held it.
    pub worker: Option<String>,
    /// When the attempt started.
    pub started: Option<Timestamp>,
    /// When it ended; none while it is running.
    pub ended: Option<Timestamp>,
    /// How it ended; none while it is running.
    pub ending: Option<Ending>,
    /// The failure group.
    pub group: Option<String>,
    /// The message of the failure.
    pub message: Option<String>,
    /// The result, cut off at [`RESULT_BYTES_MAX`](crate::RESULT_BYTES_MAX).
    pub outcome: Option<JobResult>,
    /// The full length of the result in bytes.
    pub result_bytes: u64,
    /// Whether both times are the queue's. If not, one of them is when the log received the event.
    pub exact: bool,
}

impl Entry {
    /// The duration in seconds.
    pub fn took(&self) -> Option<f64> {
        Some((self.ended? - self.started?).get())
    }

    /// Whether the result was cut off.
    pub fn is_cut(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| (outcome.bytes.bytes().len() as u64) < self.result_bytes)
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Ending {
    /// The job was completed.
    Completed,
    /// The job moved on to another queue.
    Advanced,
    /// The job failed.
    Failed,
    /// The worker returned the job to be retried.
    Retried,
    /// The worker released the job without using up a retry.
    HandedBack,
    /// The lock expired, or the job was taken away from the worker.
    Lost,
    /// The attempt exceeded its timeout.
    TimedOut,
    /// The worker was lost.
    Crashed,
    /// The job was cancelled.
    Canceled,
    /// The job was not started in time.
    Expired,
    /// The ephemeral job was removed: no client waited for it any more.
    Abandoned,
}

impl Ending {
    /// All variants.
    pub const ALL: [Ending; 11] = [
        Ending::Completed,
        Ending::Advanced,
        Ending::Failed,
        Ending::Retried,
        Ending::HandedBack,
        Ending::Lost,
        Ending::TimedOut,
        Ending::Crashed,
        Ending::Canceled,
        Ending::Expired,
        Ending::Abandoned,
    ];

    /// The name in the database and in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Ending::Completed => "completed",
            Ending::Advanced => "advanced",
            Ending::Failed => "failed",
            Ending::Retried => "retried",
            Ending::HandedBack => "handed-back",
            Ending::Lost => "lost",
            Ending::TimedOut => "timed-out",
            Ending::Crashed => "crashed",
            Ending::Canceled => "canceled",
            Ending::Expired => "expired",
            Ending::Abandoned => "abandoned",
        }
    }

    /// Whether the attempt went wrong.
    pub fn is_failure(self) -> bool {
        match self {
            Ending::Failed
            | Ending::Retried
            | Ending::Lost
            | Ending::TimedOut
            | Ending::Crashed
            | Ending::Expired => true,
            Ending::Completed
            | Ending::Advanced
            | Ending::HandedBack
            | Ending::Canceled
            | Ending::Abandoned => false,
        }
    }

    pub(crate) fn of(name: &str) -> Option<Ending> {
        Ending::ALL.into_iter().find(|ending| ending.as_str() == name)
    }
}

/// A query for entries; every given condition must hold. Returns the newest entries, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// Only this queue.
    pub queue: Option<String>,
    /// Only this kind of job.
    pub klass: Option<String>,
    /// Only this job.
    pub jid: Option<String>,
    /// Only entries that ended, or started if still running, at this time or later.
    pub since: Option<Timestamp>,
    /// Only [failures](Ending::is_failure).
    pub failed: bool,
    /// The maximum number of entries.
    pub limit: u64,
}

impl Default for Query {
    fn default() -> Query {
        Query { queue: None, klass: None, jid: None, since: None, failed: false, limit: 100 }
    }
}
