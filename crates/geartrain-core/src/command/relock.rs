//! Relock: a worker that was restarted goes on with the jobs that run under its name.

use crate::{Count, QueueName, Token, WorkerName};

/// How many jobs one [`Relock`] locks at most.
pub const RELOCK_MAX: usize = 1_000;

/// Locks the running jobs of a worker again, for a process that was restarted and keeps its worker's name.
/// Each gets a new fencing token and a fresh lock, as from a pop, without using up a retry; the earlier token
/// is worthless from then on. A job whose lock has expired is included, as long as no other worker took it
/// over.
///
/// The jobs come in the order in which they were popped. If there may be more than `count`, repeat the
/// command with `before` set to the first token of the first reply, until a reply is empty: jobs that were
/// locked again since then have later tokens.
///
/// ```
/// use geartrain_core::{Count, Relock, Token, WorkerName};
/// let first = Relock::new(WorkerName::new("worker-1")?);
/// let next = Relock { before: Some(Token::new(1_000)), ..first };
/// # Ok::<(), geartrain_core::BadName>(())
/// ```
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Relock {
    /// The worker.
    pub worker: WorkerName,
    /// The queues of the jobs, at most 1,024; all queues, if none is given.
    pub queues: Vec<QueueName>,
    /// How many jobs at most, 1 to [`RELOCK_MAX`].
    pub count: Count,
    /// Only jobs with a token earlier than this one.
    pub before: Option<Token>,
}

impl Relock {
    /// Locks the first jobs of a worker again, in all queues.
    pub fn new(worker: WorkerName) -> Relock {
        let count = Count::new(RELOCK_MAX as i64).expect("it is below the largest count");
        Relock { worker, queues: Vec::new(), count, before: None }
    }
}
