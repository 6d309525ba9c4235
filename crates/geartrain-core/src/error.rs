//! How the answer can be no, and how it can fail to come.

use crate::wire::Word;
use crate::{BadName, Count, Jid, Klass, NotFinite, QueueName, StateName, WorkerName};

/// The queue's answer was no. Nothing broke and nothing changed; the caller's picture was wrong or out of date. [`Unreadable`](Refusal::Unreadable) is the
/// exception.
#[derive(Debug, Clone, PartialEq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such job.
    #[error("job {jid} does not exist")]
    NoSuchJob {
        /// Which.
        jid: Jid,
    },
    /// There is no such recurring job.
    #[error("recurring job {jid} does not exist")]
    NoSuchRecurring {
        /// Which.
        jid: Jid,
    },
    /// Only a running job can do that, and this one is not.
    #[error("job {jid} is not running: it is {state}")]
    NotRunning {
        /// Which.
        jid: Jid,
        /// Where it stands.
        state: StateName,
        /// Where it stands in Qless's word.
        #[serde(deserialize_with = "crate::wire::word")]
        qless: Word,
    },
    /// Another worker has the job.
    #[error("job {jid} is held by {holder}, not by {worker}")]
    HeldByAnother {
        /// Which.
        jid: Jid,
        /// Who asked.
        worker: WorkerName,
        /// Who has it.
        holder: WorkerName,
    },
    /// The attempt that the token names is over.
    #[error("the lock on job {jid} is lost: the job is {state}")]
    LockLost {
        /// Which.
        jid: Jid,
        /// Where it stands now.
        state: StateName,
    },
    /// The job is in another queue than the caller thinks.
    #[error("job {jid} is in queue {queue}, not in {given}")]
    WrongQueue {
        /// Which.
        jid: Jid,
        /// Where it is.
        queue: QueueName,
        /// Where the caller thought.
        given: QueueName,
    },
    /// Only a job that waits for others can gain or lose one of them.
    #[error("job {jid} does not wait for other jobs: it is {state}")]
    NotInDepends {
        /// Which.
        jid: Jid,
        /// Where it stands.
        state: StateName,
        /// Where it stands in Qless's word.
        #[serde(deserialize_with = "crate::wire::word")]
        qless: Word,
    },
    /// Another job waits for this one and would wait for ever.
    #[error("job {dependent} depends on job {jid}: cancel both or neither")]
    IsDependency {
        /// Which.
        jid: Jid,
        /// The other.
        dependent: Jid,
    },
    /// The job would wait for itself.
    #[error("job {jid} would depend on itself, through {through}")]
    Cycle {
        /// Which.
        jid: Jid,
        /// The dependency that leads back to it.
        through: Jid,
    },
    /// More dependencies lie behind this one than are followed to rule out a cycle.
    #[error("more than {max} jobs lie behind the dependencies of job {jid}: too many to rule out a cycle")]
    TooManyDependencies {
        /// Which.
        jid: Jid,
        /// How many are followed.
        max: usize,
    },
    /// What was asked is done, but the job's payload is damaged where it is kept, and there is none to show. A job that was to be handed out is out of
    /// its queue until its lock has run out.
    #[error("the payload of job {jid} cannot be read: {why}")]
    Unreadable {
        /// Which.
        jid: Jid,
        /// Where it is kept, and what is wrong there.
        why: String,
    },
    /// The queue has as many unfinished jobs as it may.
    #[error("queue {queue} has {jobs} unfinished jobs and takes {max}: try again later, or raise the limit")]
    QueueFull {
        /// Which.
        queue: QueueName,
        /// How many it has.
        jobs: u64,
        /// How many it may have, for a job of this priority.
        max: u64,
    },
    /// No live worker has announced that it can do this.
    #[error(
        "no worker has announced that it can do {klass} in queue {queue}: start one, or put without roll call"
    )]
    #[serde(rename = "NobodyCan")]
    NoCapableWorker {
        /// The queue.
        queue: QueueName,
        /// What was to be done.
        klass: Klass,
    },
    /// Events this old are not kept.
    #[error("events after position {after} are not kept any more: the oldest is {oldest}")]
    CursorTooOld {
        /// After which position they were asked for.
        after: u64,
        /// The position of the oldest that is kept, or of the next if none is.
        oldest: u64,
    },
    /// There is no such event yet.
    #[error("position {after} is beyond the last event, {newest}")]
    CursorAhead {
        /// After which position events were asked for.
        after: u64,
        /// The position of the last event.
        newest: u64,
    },
    /// Not every backend can do everything.
    #[error("the {backend} backend cannot {operation}")]
    Unsupported {
        /// What it was asked.
        #[serde(deserialize_with = "crate::wire::word")]
        operation: Word,
        /// Which backend.
        #[serde(deserialize_with = "crate::wire::word")]
        backend: Word,
    },
    /// Something is larger than is allowed.
    #[error("{what} of {bytes} bytes is over the limit of {max}")]
    TooLarge {
        /// What.
        #[serde(deserialize_with = "crate::wire::word")]
        what: Word,
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        max: usize,
    },
    /// An argument that makes no sense.
    #[error("{what} {why}")]
    BadArgument {
        /// Which.
        #[serde(deserialize_with = "crate::wire::word")]
        what: Word,
        /// What is wrong with it.
        why: String,
    },
}

/// An argument that makes no sense, refused where it is made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {why}")]
pub struct BadArgument {
    /// Which.
    pub what: &'static str,
    /// What is wrong with it.
    pub why: String,
}

impl BadArgument {
    pub(crate) fn new(what: &'static str, why: impl Into<String>) -> BadArgument {
        BadArgument { what, why: why.into() }
    }
}

impl From<BadArgument> for Refusal {
    fn from(BadArgument { what, why }: BadArgument) -> Refusal {
        Refusal::BadArgument { what, why }
    }
}

/// A number that cannot be a count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a count is a whole number from 0 to {}, not {value}", Count::MAX.get())]
pub struct BadCount {
    /// What it was.
    pub value: i64,
}

/// Why a backend did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The queue said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The backend is gone or unwell. Whether the command was carried out is not known.
    #[error("the {backend} backend cannot answer")]
    Broken {
        /// Which one.
        backend: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Bad input that its type already refuses: a name, a number, a count.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is its own error")]
pub enum BadInput {
    Name(#[from] BadName),
    Number(#[from] NotFinite),
    Count(#[from] BadCount),
    Argument(#[from] BadArgument),
}
