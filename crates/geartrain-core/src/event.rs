//! Events: facts about jobs, queues and workers, published in order.

use crate::{Group, Jid, Progressed, QueueName, Timestamp, WorkerName};

/// An event, and when it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedEvent {
    /// The time of the command that caused it.
    pub at: Timestamp,
    /// The event.
    pub event: Event,
}

/// A fact about a job, a queue or a worker. A backend publishes events in the order in which they happen and
/// retains them with a position.
///
/// Qless clients receive some events on `ql:log`, on their worker's channel, or on the channels for tracked
/// jobs; the documentation of each event says which.
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
    /// A worker popped a job. Not sent to Qless clients.
    Popped {
        /// The job.
        jid: Jid,
        /// Its queue.
        queue: QueueName,
        /// The worker.
        worker: WorkerName,
    },
    /// A job was completed. On `log`.
    Completed {
        /// The job.
        jid: Jid,
        /// The queue that it was in.
        queue: QueueName,
    },
    /// A job was completed and moved on to another queue. On `log`.
    Advanced {
        /// The job.
        jid: Jid,
        /// The queue that it was in.
        queue: QueueName,
        /// The queue that it is in now.
        to: QueueName,
    },
    /// A worker returned a job for a retry. Not sent to Qless clients.
    Retried {
        /// The job.
        jid: Jid,
        /// Its queue.
        queue: QueueName,
    },
    /// A job failed. On `log`, unless it failed because a `retry` found no retry left.
    Failed {
        /// The job.
        jid: Jid,
        /// Its queue.
        queue: QueueName,
        /// The worker that held it last.
        worker: Option<WorkerName>,
        /// The kind of failure.
        group: Group,
        /// The error message.
        message: String,
        /// The cause of the failure.
        by: FailedBy,
    },
    /// A job was cancelled. On `log`, then on the channel of its holder, if any.
    Canceled {
        /// The job.
        jid: Jid,
        /// Its queue and its holder; `None` if there was no such job.
        was: Option<(QueueName, Option<WorkerName>)>,
    },
    /// A worker lost the lock on a job. On that worker's channel, then on `log`.
    LockLost {
        /// The job.
        jid: Jid,
        /// The worker.
        worker: WorkerName,
    },
    /// An option was set. On `log`.
    ConfigSet {
        /// Its name.
        option: String,
        /// Its new value.
        value: String,
    },
    /// An option was reset to its default. On `log`.
    ConfigUnset {
        /// Its name.
        option: String,
    },
    /// Tracking of a job was requested. On `track`.
    Track {
        /// The job.
        jid: Jid,
    },
    /// Tracking of a job was ended. On `untrack`.
    Untrack {
        /// The job.
        jid: Jid,
    },
    /// A put joined a job with the same unique key. Not sent to Qless clients, like all events below except
    /// [`Milestone`](Event::Milestone).
    Coalesced {
        /// The job that it joined.
        jid: Jid,
        /// Its queue.
        queue: QueueName,
        /// How many submissions share the job now.
        submissions: u64,
    },
    /// A job was removed because no client waits for it any more, see
    /// [`OrphanPolicy::WhileAwaited`](crate::OrphanPolicy::WhileAwaited).
    Abandoned {
        /// The job.
        jid: Jid,
        /// Its queue.
        queue: QueueName,
    },
    /// A worker reported progress.
    Progress {
        /// The job.
        jid: Jid,
        /// How much is done.
        progress: Progressed,
    },
    /// A result was stored.
    #[serde(rename = "ResultKept")]
    ResultStored {
        /// The job that produced it.
        jid: Jid,
    },
    /// A job went back to the front of its queue.
    #[serde(rename = "HandedBack")]
    Released {
        /// The job.
        jid: Jid,
        /// Its queue.
        queue: QueueName,
        /// The worker that held it.
        worker: WorkerName,
        /// Whether the worker died.
        crashed: bool,
    },
    /// A worker announced capabilities.
    Announced {
        /// The worker.
        worker: WorkerName,
    },
    /// A worker was reported dead, or was silent for so long that its capabilities expired.
    #[serde(rename = "WorkerGone")]
    WorkerLost {
        /// The worker.
        worker: WorkerName,
    },
    /// The limits of a queue changed.
    LimitsSet {
        /// The queue.
        queue: QueueName,
    },
    /// A tracked job reached a milestone. On the channel of that name.
    Milestone {
        /// The job.
        jid: Jid,
        /// The milestone.
        what: Milestone,
    },
}

/// The cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum FailedBy {
    /// A worker failed it.
    Worker,
    /// Its lock expired, and no retry was left.
    Expiry,
    /// A worker retried it, and no retry was left.
    Retry,
    /// Its worker died, and no retry was left.
    #[serde(rename = "Gone")]
    WorkerLost,
    /// Too many of its workers died.
    Crashes,
    /// An attempt exceeded `attempt_max`, and no retry was left.
    Deadline,
    /// It did not start before `expires`.
    Expired,
    /// A job that it depends on failed.
    Upstream,
    /// It was failed when it was put, by a transfer from another backend.
    Moved,
}

/// Milestones of a tracked job. Each has a channel of its own for Qless clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
#[non_exhaustive]
pub enum Milestone {
    Put,
    Popped,
    Stalled,
    Completed,
    Failed,
    Canceled,
}
