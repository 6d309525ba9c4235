//! Recurring jobs: templates that spawn a job at every interval.

use crate::{Jid, Klass, Payload, Priority, QueueName, Seconds, Tag, Timestamp};

/// Makes a recurring job, or replaces it but for its count.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Recur {
    /// Where its jobs go.
    pub queue: QueueName,
    /// Its id, with room for a number behind it: at most 490 bytes.
    pub jid: Jid,
    /// What code runs its jobs.
    pub klass: Klass,
    /// What that code is given.
    pub payload: Payload,
    /// When it makes one after the other.
    pub every: Every,
    /// How long until the first.
    pub offset: Seconds,
    /// How much its jobs matter.
    pub priority: Priority,
    /// How often each may be tried again.
    pub retries: u32,
    /// Words to find them by.
    pub tags: Vec<Tag>,
    /// How many missed ones are made up for; 0 for all of them.
    pub backlog: u32,
}

impl Recur {
    /// A recurring job with everything else left at its default, which is no retries.
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
            retries: 0,
            tags: Vec::new(),
            backlog: 0,
        }
    }
}

/// When a recurring job makes one job after the other.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Every {
    /// So long after the one before; at least a millisecond.
    Interval(Seconds),
}

/// Removes a recurring job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Unrecur {
    /// Which.
    pub jid: Jid,
}

/// Looks a recurring job up.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetRecurring {
    /// Which.
    pub jid: Jid,
}

/// A recurring job: a template, and when it next makes a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Recurring {
    /// Its id; its jobs are called `<jid>-<number>`.
    pub jid: Jid,
    /// Where its jobs go.
    pub queue: QueueName,
    /// What code runs its jobs.
    pub klass: Klass,
    /// What that code is given.
    pub payload: Payload,
    /// How much its jobs matter.
    pub priority: Priority,
    /// How often each may be tried again.
    pub retries: u32,
    /// Words to find them by.
    pub tags: Vec<Tag>,
    /// When it makes one after the other.
    pub every: Every,
    /// How many missed ones are made up for; 0 for all of them.
    pub backlog: u32,
    /// How many it has made.
    pub count: u64,
    /// When it makes the next one.
    pub next: Timestamp,
}

/// Changes a recurring job: what is given, and nothing else.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct UpdateRecurring {
    /// Which.
    pub jid: Jid,
    /// How much its jobs matter.
    pub priority: Option<Priority>,
    /// How often each may be tried again.
    pub retries: Option<u32>,
    /// When it makes one after the other; if only an interval changes, the next one moves by the difference.
    pub every: Option<Every>,
    /// How many missed ones are made up for; 0 for all of them.
    pub backlog: Option<u32>,
    /// What its code is given.
    pub payload: Option<Payload>,
    /// What code runs its jobs.
    pub klass: Option<Klass>,
    /// Where its jobs go.
    pub queue: Option<QueueName>,
}

impl UpdateRecurring {
    /// Changes nothing yet.
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

/// Adds tags to what a recurring job will spawn.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TagRecurring {
    /// Which.
    pub jid: Jid,
    /// The tags.
    pub tags: Vec<Tag>,
}

/// Removes tags from what a recurring job will spawn.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct UntagRecurring {
    /// Which.
    pub jid: Jid,
    /// The tags.
    pub tags: Vec<Tag>,
}
