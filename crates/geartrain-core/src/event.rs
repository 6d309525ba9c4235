//! What happened, as data.

use crate::{Group, Jid, Progressed, QueueName, WorkerName};

/// Something that happened, in the order in which it happened.
///
/// A Qless client hears of some of these on `ql:log`, on its worker's channel, or on the channels for tracked jobs;
/// each event says which.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Event {
    /// A job entered a queue. On `log`.
    Put {
        /// The job.
        jid: Jid,
        /// The queue.
        queue: QueueName,
    },
    /// A worker was handed a job. Not told to Qless clients.
    Popped {
        /// The job.
        jid: Jid,
        /// Its queue.
        queue: QueueName,
        /// The worker.
        worker: WorkerName,
    },
    /// A job was completed for good. On `log`.
    Completed {
        /// The job.
        jid: Jid,
        /// The queue that it was in.
        queue: QueueName,
    },
    /// A job was completed and went on to another queue. On `log`.
    Advanced {
        /// The job.
        jid: Jid,
        /// The queue that it was in.
        queue: QueueName,
        /// The queue that it is in now.
        to: QueueName,
    },
    /// A worker gave a job back. Not told to Qless clients.
    Retried {
        /// The job.
        jid: Jid,
        /// Its queue.
        queue: QueueName,
    },
    /// A job failed. On `log`, unless a retry used up its last chance.
    Failed {
        /// The job.
        jid: Jid,
        /// Its queue.
        queue: QueueName,
        /// Who had it last.
        worker: Option<WorkerName>,
        /// The kind of failure.
        group: Group,
        /// What was said about it.
        message: String,
        /// What made it fail.
        by: FailedBy,
    },
    /// A job was cancelled. On `log`, then on the holder's channel if it had one.
    Canceled {
        /// The job.
        jid: Jid,
        /// Where it was; none if there was no such job.
        was: Option<(QueueName, Option<WorkerName>)>,
    },
    /// A worker lost its right to a job. On that worker's channel, then on `log`.
    LockLost {
        /// The job.
        jid: Jid,
        /// The worker.
        worker: WorkerName,
    },
    /// An option was set. On `log`.
    ConfigSet {
        /// Which.
        option: String,
        /// To what.
        value: String,
    },
    /// An option went back to its default. On `log`.
    ConfigUnset {
        /// Which.
        option: String,
    },
    /// Somebody asked to track a job. On `track`.
    Track {
        /// The job.
        jid: Jid,
    },
    /// Somebody asked to track a job no longer. On `untrack`.
    Untrack {
        /// The job.
        jid: Jid,
    },
    /// A put joined a job that has its unique key. Not told to Qless clients, and neither is what follows, but for milestones.
    Coalesced {
        /// The job that it joined.
        jid: Jid,
        /// Its queue.
        queue: QueueName,
        /// How many submissions it stands for now.
        submissions: u64,
    },
    /// Nobody waits any more for a job that lived only as long as somebody did, so it is gone.
    Abandoned {
        /// The job.
        jid: Jid,
        /// Its queue.
        queue: QueueName,
    },
    /// A worker got further.
    Progress {
        /// The job.
        jid: Jid,
        /// How far.
        progress: Progressed,
    },
    /// A result is kept.
    #[serde(rename = "ResultKept")]
    ResultStored {
        /// The job that it came out of.
        jid: Jid,
    },
    /// A job went back to the front of its queue.
    #[serde(rename = "HandedBack")]
    Released {
        /// The job.
        jid: Jid,
        /// Its queue.
        queue: QueueName,
        /// Who had it.
        worker: WorkerName,
        /// Whether that worker died.
        crashed: bool,
    },
    /// A worker said what it can do.
    Announced {
        /// The worker.
        worker: WorkerName,
    },
    /// A worker is known to be dead, or was silent for so long that what it announced no longer counts.
    #[serde(rename = "WorkerGone")]
    WorkerLost {
        /// The worker.
        worker: WorkerName,
    },
    /// A queue has other limits.
    LimitsSet {
        /// The queue.
        queue: QueueName,
    },
    /// A tracked job passed a milestone. On the channel of that name.
    Milestone {
        /// The job.
        jid: Jid,
        /// What it passed.
        what: Milestone,
    },
}

/// What can make a job fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum FailedBy {
    /// A worker said so.
    Worker,
    /// A lock expired, and no retry was left.
    Expiry,
    /// A worker gave it back, and no retry was left.
    Retry,
    /// Its worker died, and no retry was left.
    #[serde(rename = "Gone")]
    WorkerLost,
    /// Its workers died too often.
    Crashes,
    /// Its attempt took too long, and no retry was left.
    Deadline,
    /// It was not started in time.
    Expired,
}

/// What is published of a tracked job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "the words say it")]
#[non_exhaustive]
pub enum Milestone {
    Put,
    Popped,
    Stalled,
    Completed,
    Failed,
    Canceled,
}
