//! What the log says of one attempt, and what can be asked of it.

use geartrain_core::{JobResult, Timestamp};

/// One attempt at a job; or how a job ended that was not being worked on.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The job.
    pub jid: String,
    /// Which attempt at it this is, counted from 1 by the log; none if nobody had the job when it ended.
    pub attempt: Option<u64>,
    /// Its queue, as far as the log knows.
    pub queue: Option<String>,
    /// What code it was for, as far as the log knows.
    pub klass: Option<String>,
    /// Who had it.
    pub worker: Option<String>,
    /// When it began.
    pub started: Option<Timestamp>,
    /// When it ended; none if it is under way.
    pub ended: Option<Timestamp>,
    /// How it ended; none if it is under way.
    pub ending: Option<Ending>,
    /// The kind of failure.
    pub group: Option<String>,
    /// What was said about the failure.
    pub message: Option<String>,
    /// What came out, as much of it as is kept.
    pub outcome: Option<JobResult>,
    /// How many bytes came out. If there are fewer in the outcome, the rest was cut off.
    pub result_bytes: u64,
    /// Whether both moments are the queue's. If not, one of them is when the log heard of it.
    pub exact: bool,
}

impl Entry {
    /// How many seconds it took.
    pub fn took(&self) -> Option<f64> {
        Some((self.ended? - self.started?).get())
    }

    /// Whether not all of the result is kept.
    pub fn is_cut(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| (outcome.bytes.bytes().len() as u64) < self.result_bytes)
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Ending {
    /// The job was completed for good.
    Completed,
    /// It was completed, and the job went on to another queue.
    Advanced,
    /// The job failed.
    Failed,
    /// The worker gave the job back, to be tried again.
    Retried,
    /// The worker gave the job back because it was interrupted.
    HandedBack,
    /// The worker was silent too long, or the job was taken away from it.
    Lost,
    /// It took longer than it may.
    TimedOut,
    /// The worker died.
    Crashed,
    /// The job was cancelled.
    Canceled,
    /// The job was not started in time.
    Expired,
    /// Nobody waited for the job any more.
    Abandoned,
}

impl Ending {
    /// All of them.
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

    /// The word for it, in the file and where it is printed.
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

    /// Whether something went wrong, for whoever looks for failures.
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

    pub(crate) fn of(word: &str) -> Option<Ending> {
        Ending::ALL.into_iter().find(|ending| ending.as_str() == word)
    }
}

/// Which entries to read: all that are asked for must be so. The newest ones are read, and come oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only for this code.
    pub klass: Option<String>,
    /// Only of this job.
    pub jid: Option<String>,
    /// Only those that ended, or began if they are under way, at this moment or later.
    pub since: Option<Timestamp>,
    /// Only those that went [wrong](Ending::is_failure).
    pub failed: bool,
    /// At most so many.
    pub limit: u64,
}

impl Default for Query {
    fn default() -> Query {
        Query { queue: None, klass: None, jid: None, since: None, failed: false, limit: 100 }
    }
}
