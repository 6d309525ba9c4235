//! Recurring jobs: templates that spawn a job at every interval.

use crate::{Jid, Klass, Payload, Priority, QueueName, Seconds, Tag, Timestamp};

/// Creates a recurring job, or replaces one but keeps its count of spawned jobs.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Recur {
    /// The queue of the spawned jobs.
    pub queue: QueueName,
    /// The id of the template, at most 490 bytes: the jobs are named `<jid>-<number>`.
    pub jid: Jid,
    /// The klass of the spawned jobs.
    pub klass: Klass,
    /// The payload of the spawned jobs.
    pub payload: Payload,
    /// When jobs are spawned.
    pub every: Every,
    /// The time until the first job is spawned.
    pub offset: Seconds,
    /// The priority of the spawned jobs.
    pub priority: Priority,
    /// How often each spawned job may be retried.
    pub retries: u32,
    /// The tags of the spawned jobs.
    pub tags: Vec<Tag>,
    /// How many missed jobs to catch up on; 0 for all.
    pub backlog: u32,
}

impl Recur {
    /// A recurring job with defaults for everything else: five retries, no offset, and all missed jobs are
    /// caught up.
    pub fn new(
        queue: QueueName,
        jid: Jid,
        klass: Klass,
        payload: impl Into<Payload>,
        interval: Seconds,
    ) -> Recur {
        Recur {
            queue,
            jid,
            klass,
            payload: payload.into(),
            every: Every::Interval(interval),
            offset: Seconds::ZERO,
            priority: Priority::ZERO,
            retries: 5,
            tags: Vec::new(),
            backlog: 0,
        }
    }
}

/// The schedule of a recurring job.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Every {
    /// A fixed interval between jobs; at least a millisecond.
    Interval(Seconds),
}

/// Removes a recurring job; the jobs that it spawned stay.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Unrecur {
    /// The id of the recurring job.
    pub jid: Jid,
}

/// Looks up a recurring job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetRecurring {
    /// The id of the recurring job.
    pub jid: Jid,
}

/// A recurring job: a template, and the time of the next job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Recurring {
    /// Its id; spawned jobs are named `<jid>-<number>`.
    pub jid: Jid,
    /// The queue of the spawned jobs.
    pub queue: QueueName,
    /// The klass of the spawned jobs.
    pub klass: Klass,
    /// The payload of the spawned jobs.
    pub payload: Payload,
    /// The priority of the spawned jobs.
    pub priority: Priority,
    /// How often each spawned job may be retried.
    pub retries: u32,
    /// The tags of the spawned jobs.
    pub tags: Vec<Tag>,
    /// When jobs are spawned.
    pub every: Every,
    /// How many missed jobs to catch up on; 0 for all.
    pub backlog: u32,
    /// How many jobs it has spawned.
    pub count: u64,
    /// When the next job is spawned.
    pub next: Timestamp,
}

/// Changes the given fields of a recurring job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct UpdateRecurring {
    /// The id of the recurring job.
    pub jid: Jid,
    /// The priority of the spawned jobs.
    pub priority: Option<Priority>,
    /// How often each spawned job may be retried.
    pub retries: Option<u32>,
    /// When jobs are spawned. If an interval replaces another, the next job moves by the difference.
    pub every: Option<Every>,
    /// How many missed jobs to catch up on; 0 for all.
    pub backlog: Option<u32>,
    /// The payload of the spawned jobs.
    pub payload: Option<Payload>,
    /// The klass of the spawned jobs.
    pub klass: Option<Klass>,
    /// The queue of the spawned jobs.
    pub queue: Option<QueueName>,
}

impl UpdateRecurring {
    /// An update that changes nothing yet.
    pub fn new(jid: Jid) -> UpdateRecurring {
        UpdateRecurring {
            jid,
            priority: None,
            retries: None,
            every: None,
            backlog: None,
            payload: None,
            klass: None,
            queue: None,
        }
    }
}

/// Adds tags to the jobs that a recurring job will spawn.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TagRecurring {
    /// The id of the recurring job.
    pub jid: Jid,
    /// The tags to add or remove.
    pub tags: Vec<Tag>,
}

/// Removes tags from the jobs that a recurring job will spawn.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct UntagRecurring {
    /// The id of the recurring job.
    pub jid: Jid,
    /// The tags to add or remove.
    pub tags: Vec<Tag>,
}
