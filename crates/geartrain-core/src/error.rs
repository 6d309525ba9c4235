//! Errors: refusals of a command, failures of a backend, and bad input.

use std::borrow::Cow;

use crate::{BadName, Count, Jid, Klass, NotFinite, QlessState, QueueName, Role, StateName, WorkerName};

/// The backend refused a command. Nothing failed and nothing changed: the command does not fit the state of
/// the queue, or its arguments are invalid. [`Unreadable`](Refusal::Unreadable) is the exception.
#[derive(Debug, Clone, PartialEq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such job.
    #[error("job {jid} does not exist")]
    NoSuchJob {
        /// The job.
        jid: Jid,
    },
    /// There is no such recurring job.
    #[error("recurring job {jid} does not exist")]
    NoSuchRecurring {
        /// The job.
        jid: Jid,
    },
    /// The command needs a running job.
    #[error("job {jid} is not running: it is {state}")]
    NotRunning {
        /// The job.
        jid: Jid,
        /// Its state.
        state: StateName,
        /// Its state in Qless's word.
        #[serde(deserialize_with = "crate::wire::qless_state")]
        qless: QlessState,
    },
    /// Another worker holds the job.
    #[error("job {jid} is held by {holder}, not by {worker}")]
    HeldByAnother {
        /// The job.
        jid: Jid,
        /// The worker that sent the command.
        worker: WorkerName,
        /// The worker that holds the job.
        holder: WorkerName,
    },
    /// The attempt of this token is over: its lock expired, or the job was moved, taken away or finished.
    #[error("the lock on job {jid} is lost: the job is {state}")]
    LockLost {
        /// The job.
        jid: Jid,
        /// The current state of the job.
        state: StateName,
    },
    /// The job is in another queue than the caller expects.
    #[error("job {jid} is in queue {queue}, not in {given}")]
    WrongQueue {
        /// The job.
        jid: Jid,
        /// The queue that it is in.
        queue: QueueName,
        /// The queue that the caller expects.
        given: QueueName,
    },
    /// Only a job in state `depends` can gain or lose dependencies.
    #[error("job {jid} does not wait for other jobs: it is {state}")]
    NotInDepends {
        /// The job.
        jid: Jid,
        /// Its state.
        state: StateName,
        /// Its state in Qless's word.
        #[serde(deserialize_with = "crate::wire::qless_state")]
        qless: QlessState,
    },
    /// Another job depends on this one and would wait forever.
    #[error("job {dependent} depends on job {jid}: cancel both or neither")]
    IsDependency {
        /// The job.
        jid: Jid,
        /// The job that depends on it.
        dependent: Jid,
    },
    /// The job would depend on itself.
    #[error("job {jid} would depend on itself, through {through}")]
    Cycle {
        /// The job.
        jid: Jid,
        /// The dependency that leads back to it.
        through: Jid,
    },
    /// Too many transitive dependencies to rule out a cycle.
    #[error("more than {max} jobs lie behind the dependencies of job {jid}: too many to rule out a cycle")]
    TooManyDependencies {
        /// The job.
        jid: Jid,
        /// How many dependencies are followed.
        max: usize,
    },
    /// The command was executed, but the job's spilled payload is damaged and cannot be returned. A popped
    /// job stays locked until its lock expires.
    #[error("the payload of job {jid} cannot be read: {why}")]
    Unreadable {
        /// The job.
        jid: Jid,
        /// The location of the payload, and what is wrong there.
        why: String,
    },
    /// The queue has reached its limit of unfinished jobs.
    #[error("queue {queue} has {jobs} unfinished jobs and takes {max}: try again later, or raise the limit")]
    QueueFull {
        /// The queue.
        queue: QueueName,
        /// Its unfinished jobs.
        jobs: u64,
        /// The limit for a job of this priority.
        max: u64,
    },
    /// No live worker has announced that it can run this job, and the put asked for a roll call.
    #[error(
        "no worker has announced that it can do {klass} in queue {queue}: start one, or put without roll call"
    )]
    #[serde(rename = "NobodyCan")]
    NoCapableWorker {
        /// The queue.
        queue: QueueName,
        /// The klass of the job.
        klass: Klass,
    },
    /// The event log no longer has the events after this position.
    #[error("events after position {after} are not kept any more: the oldest is {oldest}")]
    CursorTooOld {
        /// The requested position.
        after: u64,
        /// The position of the oldest retained event, or of the next event if none is retained.
        oldest: u64,
    },
    /// The position is beyond the newest event.
    #[error("position {after} is beyond the last event, {newest}")]
    CursorAhead {
        /// The requested position.
        after: u64,
        /// The position of the newest event.
        newest: u64,
    },
    /// The backend does not support the operation.
    #[error("the {backend} backend cannot {operation}")]
    Unsupported {
        /// The operation, as an infinitive.
        operation: Cow<'static, str>,
        /// The kind of backend.
        backend: Cow<'static, str>,
    },
    /// There is no backup, or it has ended without being complete. Nothing is left of it.
    #[error("{why}")]
    Backup {
        /// Why, and what to do.
        why: String,
    },
    /// A value exceeds its size limit.
    #[error("{what} of {bytes} bytes is over the limit of {max}")]
    TooLarge {
        /// The kind of value, such as `payload`.
        what: Cow<'static, str>,
        /// Its size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// An argument is invalid.
    #[error("{what} {why}")]
    BadArgument {
        /// The argument.
        what: Cow<'static, str>,
        /// What is wrong with it.
        why: String,
    },
    /// The caller's role may not do this.
    #[error("{command} needs the role {needed}, and this access has the role {role}")]
    Forbidden {
        /// The command.
        command: Cow<'static, str>,
        /// The role that it needs.
        needed: Role,
        /// The role of the caller.
        role: Role,
    },
    /// The server changes nothing, for any caller.
    #[error("this server is read-only: it refuses {command}")]
    ReadOnly {
        /// The command.
        command: Cow<'static, str>,
    },
}

impl Refusal {
    /// A stable word for programs, the same in `--json`, HTTP and JSON over RESP.
    ///
    /// ```
    /// use geartrain_core::{Jid, Refusal};
    /// assert_eq!(Refusal::NoSuchJob { jid: Jid::new("j1")? }.code(), "no-such-job");
    /// # Ok::<(), geartrain_core::BadName>(())
    /// ```
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::NoSuchJob { .. } => "no-such-job",
            Refusal::NoSuchRecurring { .. } => "no-such-recurring",
            Refusal::NotRunning { .. } => "not-running",
            Refusal::HeldByAnother { .. } => "held-by-another",
            Refusal::LockLost { .. } => "lock-lost",
            Refusal::WrongQueue { .. } => "wrong-queue",
            Refusal::NotInDepends { .. } => "not-in-depends",
            Refusal::IsDependency { .. } => "is-dependency",
            Refusal::Cycle { .. } => "cycle",
            Refusal::TooManyDependencies { .. } => "too-many-dependencies",
            Refusal::Unreadable { .. } => "unreadable",
            Refusal::QueueFull { .. } => "queue-full",
            Refusal::NoCapableWorker { .. } => "no-capable-worker",
            Refusal::CursorTooOld { .. } => "cursor-too-old",
            Refusal::CursorAhead { .. } => "cursor-ahead",
            Refusal::Unsupported { .. } => "unsupported",
            Refusal::Backup { .. } => "backup",
            Refusal::TooLarge { .. } => "too-large",
            Refusal::BadArgument { .. } => "bad-argument",
            Refusal::Forbidden { .. } => "forbidden",
            Refusal::ReadOnly { .. } => "read-only",
        }
    }
}

/// An invalid argument, refused when its type is constructed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {why}")]
pub struct BadArgument {
    /// The argument.
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
        Refusal::BadArgument { what: what.into(), why }
    }
}

/// A number outside the range of [`Count`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a count is a whole number from 0 to {}, not {value}", Count::MAX.get())]
pub struct BadCount {
    /// The number.
    pub value: i64,
}

/// Why a backend did not execute a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The backend refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The backend failed or cannot be reached. It is unknown whether the command was executed.
    #[error("the {backend} backend cannot answer")]
    Broken {
        /// The kind of backend.
        backend: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl BackendError {
    /// The code of the [refusal](Refusal::code), or `unavailable`.
    pub fn code(&self) -> &'static str {
        match self {
            BackendError::Refused(refusal) => refusal.code(),
            BackendError::Broken { .. } => "unavailable",
        }
    }
}

/// Input that a constructor refused: a name, a number, a count or an argument.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_fits_in_a_cache_line() {
        assert!(size_of::<Refusal>() <= 64, "{}", size_of::<Refusal>());
    }
}
