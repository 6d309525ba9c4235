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
    /// The queue to put it into.
    pub queue: QueueName,
    /// The job's id.
    pub jid: Jid,
    /// The kind of job: names the code that runs it.
    pub klass: Klass,
    /// The input of that code.
    pub payload: Payload,
    /// How long to wait before the job may run; zero or less for no wait.
    pub delay: Seconds,
    /// Priority, higher first. Default: unchanged, or 0 for a new job.
    pub priority: Option<Priority>,
    /// How often the job may be retried. Default: unchanged, or 5 for a new job.
    pub retries: Option<u32>,
    /// Tags, at most 1,000. Default: unchanged, or none for a new job.
    pub tags: Option<Vec<Tag>>,
    /// Jobs to wait for. Unknown and complete ones count as done. A non-empty list replaces the job's earlier
    /// dependencies.
    pub depends: Vec<Jid>,
    /// The worker that sends the put. If it holds the job itself, no [`LockLost`](crate::Event::LockLost)
    /// event is published.
    pub caller: Option<WorkerName>,
    /// What to do if a job with this id exists.
    pub existing: Existing,
    /// Whether `depends` may close a cycle.
    pub cycles: Cycles,
    /// Options beyond Qless. If given, they replace the options of a job that is put again.
    #[serde(rename = "terms")]
    pub options: Option<Box<PutOptions>>,
}

impl Put {
    /// A put with defaults for everything else.
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

/// What a put does if a job with its id exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Existing {
    /// Leaves the job alone and replies [`PutReply::Existing`]. This makes a put idempotent: it can be sent
    /// again after a lost reply.
    #[default]
    Keep,
    /// Puts the job again, whatever its state: Qless's `put`.
    Replace,
    /// Puts the job again, and refuses if it does not exist: Qless's `requeue`.
    Require,
}

/// Stands for a jid where there must be one and the job has none, see [`PutReply::Unnamed`].
pub const NO_JID: &str = "-";

/// The outcome of a put.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum PutReply {
    /// The job is new.
    Created,
    /// The job existed and was put again.
    Replaced,
    /// The job existed and was left alone. If it is unfinished, the submission of
    /// [`PutOptions::attach`] is attached to it.
    Existing,
    /// The put joined an unfinished job with the same unique key.
    Coalesced {
        /// That job.
        jid: Jid,
    },
    /// The backend chooses jids itself, as a Gearman server does. The job may be new, or an unfinished one
    /// with the same unique key: such a backend does not tell which.
    Named {
        /// The job's id.
        jid: Jid,
    },
    /// The backend chooses jids itself, and has this very job already: it was left alone.
    NamedExisting {
        /// The job's id.
        jid: Jid,
    },
    /// The job has no id while it waits, as in Worqr: it is known by its queue and its payload.
    Unnamed,
}
