//! Commands that end or extend an attempt: heartbeat, complete, fail, retry, timeout, cancel, unfail.

use crate::{Count, Cycles, Group, Holder, Jid, JobResult, Payload, QueueName, RandomUnit, Seconds};

/// Pushes a lock's deadline back.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Heartbeat {
    /// The job.
    pub jid: Jid,
    /// Who holds it.
    pub holder: Holder,
    /// A new payload, if it changed.
    pub payload: Option<Payload>,
}

/// Ends an attempt well.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Complete {
    /// The job.
    pub jid: Jid,
    /// Who holds it.
    pub holder: Holder,
    /// The queue that the caller thinks it is in; checked if given.
    pub queue: Option<QueueName>,
    /// A new payload, if it changed.
    pub payload: Option<Payload>,
    /// Where it goes from here; nowhere, if not given.
    pub next: Option<Next>,
    /// What came out of it, for those who wait and for those who ask later. Not told to anybody if the job goes on.
    pub result: Option<Box<JobResult>>,
}

impl Complete {
    /// Completes a job for good.
    pub fn new(jid: Jid, holder: Holder) -> Complete {
        Complete { jid, holder, queue: None, payload: None, next: None, result: None }
    }
}

/// Where a completed job goes on to.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Next {
    /// The queue.
    pub queue: QueueName,
    /// How long it may not run there.
    pub delay: Seconds,
    /// Jobs to wait for there. Unknown and complete ones count as done. If all of them are, the delay is dropped.
    pub depends: Vec<Jid>,
    /// Whether the job may be made to wait for itself.
    pub cycles: Cycles,
}

impl Next {
    /// On to a queue, at once.
    pub fn new(queue: QueueName) -> Next {
        Next { queue, delay: Seconds::ZERO, depends: Vec::new(), cycles: Cycles::Refuse }
    }
}

/// Where a job went when it was completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum CompleteReply {
    /// It is done for good.
    Complete,
    /// It waits in its next queue.
    Waiting,
    /// It is scheduled in its next queue.
    Scheduled,
    /// It waits for other jobs in its next queue.
    Depends,
}

/// Ends an attempt badly.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Fail {
    /// The job.
    pub jid: Jid,
    /// Who holds it.
    pub holder: Holder,
    /// The kind of failure.
    pub group: Group,
    /// What went wrong.
    pub message: String,
    /// A new payload, if it changed.
    pub payload: Option<Payload>,
    /// What came out of it, for those who wait and for those who ask later.
    pub result: Option<Box<JobResult>>,
}

impl Fail {
    /// Fails a job, and leaves its payload as it is.
    pub fn new(jid: Jid, holder: Holder, group: Group, message: impl Into<String>) -> Fail {
        Fail { jid, holder, group, message: message.into(), payload: None, result: None }
    }
}

/// Gives a job back to its queue, at the price of one retry.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Retry {
    /// The job.
    pub jid: Jid,
    /// Who holds it.
    pub holder: Holder,
    /// The queue that the caller thinks it is in; checked if given.
    pub queue: Option<QueueName>,
    /// How long it may not run.
    pub delay: Seconds,
    /// Waits as the job's backoff says, if it has one, and not for `delay`.
    #[serde(rename = "chance")]
    pub random: Option<RandomUnit>,
    /// The kind of failure, if that was why; `failed-retries-<queue>` if not given and no retry is left.
    pub group: Option<Group>,
    /// What went wrong. A failure is written down only if both are given.
    pub message: Option<String>,
}

impl Retry {
    /// Gives a job back at once, and says nothing about why.
    pub fn new(jid: Jid, holder: Holder) -> Retry {
        Retry { jid, holder, queue: None, delay: Seconds::ZERO, random: None, group: None, message: None }
    }
}

/// Takes running jobs away from their workers; all of them or, if one is not running, none.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Timeout {
    /// The jobs.
    pub jids: Vec<Jid>,
}

/// Removes jobs; all of them or, if another job depends on one, none. Complete and unknown ones are passed over.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Cancel {
    /// The jobs.
    pub jids: Vec<Jid>,
}

/// Moves failed jobs back into a queue.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Unfail {
    /// Where to.
    pub queue: QueueName,
    /// Which kind of failure.
    pub group: Group,
    /// How many, at most, and at least one.
    pub count: Count,
}
