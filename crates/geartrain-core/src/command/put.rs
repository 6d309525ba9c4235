//! Put: submit a job, or put an existing one again.

use crate::{Cycles, Jid, Klass, Payload, Priority, PutOptions, QueueName, Seconds, Tag, WorkerName};

/// Puts a job into a queue.
///
/// ```
/// use geartrain_core::{Jid, Klass, Priority, Put, QueueName};
/// let put = Put {
///     priority: Some(Priority::from(5)),
///     ..Put::new(QueueName::new("mail")?, Jid::new("j1")?, Klass::new("welcome")?, "{}")
/// };
/// assert_eq!(put.retries, None); // a new job then gets 5
/// # Ok::<(), geartrain_core::BadName>(())
/// ```
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Put {
    /// Where to.
    pub queue: QueueName,
    /// Its id.
    pub jid: Jid,
    /// What code runs it.
    pub klass: Klass,
    /// What that code is given.
    pub payload: Payload,
    /// How long it may not run. Negative means not at all.
    pub delay: Seconds,
    /// How much it matters; as before, or 0 for a new job, if not given.
    pub priority: Option<Priority>,
    /// How often it may be tried again; as before, or 5 for a new job, if not given.
    pub retries: Option<u32>,
    /// Words to find it by, at most 1,000; as before, or none for a new job, if not given.
    pub tags: Option<Vec<Tag>>,
    /// Jobs to wait for. Unknown and complete ones count as done. If any are given they replace those from before.
    pub depends: Vec<Jid>,
    /// The worker that puts it: a holder who moves its own job is not told that it lost it.
    pub caller: Option<WorkerName>,
    /// What to do about a job that has this id already.
    pub existing: Existing,
    /// Whether the job may be made to wait for itself.
    pub cycles: Cycles,
    /// What it asks for beyond Qless. A job that is put again gets these, and keeps those it has if none are given.
    #[serde(rename = "terms")]
    pub options: Option<Box<PutOptions>>,
}

impl Put {
    /// A put with everything else left at its default.
    pub fn new(queue: QueueName, jid: Jid, klass: Klass, payload: impl Into<Payload>) -> Put {
        Put {
            queue,
            jid,
            klass,
            payload: payload.into(),
            delay: Seconds::ZERO,
            priority: None,
            retries: None,
            tags: None,
            depends: Vec::new(),
            caller: None,
            existing: Existing::Keep,
            cycles: Cycles::Refuse,
            options: None,
        }
    }
}

/// What a put does about a job that has its id already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Existing {
    /// Leaves it alone and says so. That makes it safe to send a put again after a lost reply.
    #[default]
    Keep,
    /// Puts it again, wherever it stands: Qless's put.
    Replace,
    /// The same, and refuses if there is none: Qless's requeue.
    Require,
}

/// What a put did.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum PutReply {
    /// The job is new.
    Created,
    /// The job was there, and was put again.
    Replaced,
    /// The job was there, and was left alone; but if it is unfinished, who was to be attached is.
    Existing,
    /// Another job has the same unique key and is unfinished, and stands for this put as well.
    Coalesced {
        /// That job.
        jid: Jid,
    },
    /// The backend chooses jids itself, and this is the job's. It may be new, or another that stands for this put as well: the backend does not say which.
    Named {
        /// The one it chose.
        jid: Jid,
    },
}
