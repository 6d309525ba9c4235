//! Commands that end or extend an attempt: heartbeat, complete, fail, retry, timeout, cancel, unfail.

use crate::{Count, Cycles, Group, Holder, Jid, JobResult, Payload, QueueName, RandomUnit, Seconds};

/// Extends the lock of a running job, so that a long attempt does not lose it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Heartbeat {
    /// The running job.
    pub jid: Jid,
    /// The holder of its lock.
    pub holder: Holder,
    /// Replaces the payload, if given.
    pub payload: Option<Payload>,
}

/// Completes a job, or moves it on to its next queue.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Complete {
    /// The running job.
    pub jid: Jid,
    /// The holder of its lock.
    pub holder: Holder,
    /// The queue that the caller expects the job in. Refused if given and wrong.
    pub queue: Option<QueueName>,
    /// Replaces the payload, if given.
    pub payload: Option<Payload>,
    /// The next queue of the job; if not given, the job is done.
    pub next: Option<Next>,
    /// The result, for the job's result streams and for later lookup. Ignored if the job moves on to another
    /// queue.
    pub result: Option<Box<JobResult>>,
}

impl Complete {
    /// Completes a job without a result and without a next queue.
    pub fn new(jid: Jid, holder: Holder) -> Complete {
        Complete { jid, holder, queue: None, payload: None, next: None, result: None }
    }
}

/// The next stop of a completed job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Next {
    /// The next queue.
    pub queue: QueueName,
    /// How long to wait there before the job may run.
    pub delay: Seconds,
    /// Jobs to wait for there. Unknown and complete ones count as done. If jobs are given and all are done,
    /// the delay is ignored.
    pub depends: Vec<Jid>,
    /// Whether `depends` may close a cycle.
    pub cycles: Cycles,
}

impl Next {
    /// Moves on to a queue, without delay or dependencies.
    pub fn new(queue: QueueName) -> Next {
        Next { queue, delay: Seconds::ZERO, depends: Vec::new(), cycles: Cycles::Refuse }
    }
}

/// The state of a job after it was completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum CompleteReply {
    /// It is done.
    Complete,
    /// It is waiting in its next queue.
    Waiting,
    /// It is scheduled in its next queue.
    Scheduled,
    /// It waits for other jobs in its next queue.
    Depends,
}

/// Fails a job. It stays failed, in its group, until it is requeued, unfailed or cancelled.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Fail {
    /// The running job.
    pub jid: Jid,
    /// The holder of its lock.
    pub holder: Holder,
    /// The kind of failure; failed jobs are listed and counted by it.
    pub group: Group,
    /// The error message.
    pub message: String,
    /// Replaces the payload, if given.
    pub payload: Option<Payload>,
    /// The result, for the job's result streams and for later lookup.
    pub result: Option<Box<JobResult>>,
}

impl Fail {
    /// Fails a job without a result, and leaves its payload unchanged.
    pub fn new(jid: Jid, holder: Holder, group: Group, message: impl Into<String>) -> Fail {
        Fail { jid, holder, group, message: message.into(), payload: None, result: None }
    }
}

/// Returns a job to its queue and uses up one retry. Without a retry left, the job fails.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Retry {
    /// The running job.
    pub jid: Jid,
    /// The holder of its lock.
    pub holder: Holder,
    /// The queue that the caller expects the job in. Refused if given and wrong.
    pub queue: Option<QueueName>,
    /// How long to wait before the job may run again, unless the job's backoff applies.
    pub delay: Seconds,
    /// Applies the job's [`Backoff`](crate::Backoff) instead of `delay`, or if neither is given
    /// [the default](crate::Backoff::DEFAULT). This number, drawn by the caller, decides the jitter. Without
    /// it, as Qless has it, `delay` alone counts, and a job without delay may run again at once.
    #[serde(rename = "chance")]
    pub random: Option<RandomUnit>,
    /// The kind of failure. If no retry is left, the job fails in this group, or in `failed-retries-<queue>`.
    pub group: Option<Group>,
    /// The error message. The failure is recorded only if both `group` and `message` are given.
    pub message: Option<String>,
}

impl Retry {
    /// Returns a job without recording a failure and without a delay of the caller's. The client of the
    /// library then draws `random`; a backend that gets the command as it is returns the job without delay.
    pub fn new(jid: Jid, holder: Holder) -> Retry {
        Retry { jid, holder, queue: None, delay: Seconds::ZERO, random: None, group: None, message: None }
    }
}

/// Takes running jobs away from their workers: all of them or, if one is not running, none.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Timeout {
    /// The jobs.
    pub jids: Vec<Jid>,
}

/// Cancels jobs: all of them or, if a job that is not cancelled depends on one, none. Skips complete and
/// unknown jobs. Each leaves a [`Tombstone`](crate::Tombstone).
///
/// ```
/// use geartrain_core::{Cancel, Jid};
/// let cancel = Cancel { cascade: true, ..Cancel::new(vec![Jid::new("j1")?]) };
/// # Ok::<(), geartrain_core::BadName>(())
/// ```
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub struct Cancel {
    /// The jobs.
    pub jids: Vec<Jid>,
    /// Why, for the tombstones; at most [`BECAUSE_BYTES_MAX`](crate::BECAUSE_BYTES_MAX) bytes.
    #[serde(default)]
    pub because: Option<String>,
    /// Whether the jobs that depend on them are cancelled too, and those that depend on these; at most
    /// [`CASCADE_MAX`] jobs in all. Refused if they depend on each other in a cycle.
    #[serde(default)]
    pub cascade: bool,
}

/// How many jobs one cancellation with [`cascade`](Cancel::cascade) removes at most.
pub const CASCADE_MAX: usize = 5_000;

impl Cancel {
    /// Cancels these jobs and no others, without saying why.
    pub fn new(jids: Vec<Jid>) -> Cancel {
        Cancel { jids, because: None, cascade: false }
    }
}

/// Leaves out the last fields that have their defaults, which servers from before them do not know. A field
/// before one that is needed must stay, because fields are known by their places.
impl serde::Serialize for Cancel {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let fields = if self.cascade { 3 } else { 1 + usize::from(self.because.is_some()) };
        let mut cancel = to.serialize_struct("Cancel", fields)?;
        cancel.serialize_field("jids", &self.jids)?;
        if fields > 1 {
            cancel.serialize_field("because", &self.because)?;
        }
        if fields > 2 {
            cancel.serialize_field("cascade", &self.cascade)?;
        }
        cancel.end()
    }
}

/// Moves the oldest failed jobs of a group into a queue.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Unfail {
    /// The queue to move them into.
    pub queue: QueueName,
    /// The kind of failure.
    pub group: Group,
    /// How many jobs at most; at least 1.
    pub count: Count,
}
