//! Pop and peek: hand jobs to workers.

use crate::{Count, Klass, Popped, QueueName, WorkerName};

/// Hands jobs to a worker.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Pop {
    /// The queues to pop from, 1 to 1,024.
    pub queues: Vec<QueueName>,
    /// The worker that receives the jobs and holds their locks.
    pub worker: WorkerName,
    /// How many jobs at most.
    pub count: Count,
    /// The order in which the queues are served.
    pub order: PopOrder,
    /// Whether to include the whole [`Job`](crate::Job) with its history, and not only what a worker needs.
    pub whole: bool,
    /// The klasses to pop, 1 to 1,024. If not given, the pop is restricted to the klasses that the worker
    /// [announced](crate::Announce) for each queue, if it announced any and not the queue as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub klasses: Option<Vec<Klass>>,
}

impl Pop {
    /// A pop of one job from one queue.
    pub fn new(queue: QueueName, worker: WorkerName) -> Pop {
        Pop {
            queues: vec![queue],
            worker,
            count: Count::ONE,
            order: PopOrder::Strict,
            whole: false,
            klasses: None,
        }
    }
}

/// How a pop chooses among several queues.
///
/// A *turn* is the index of the queue to begin with. The worker passes it from the reply of one pop to its
/// next pop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum PopOrder {
    /// The first queue that has a job.
    #[default]
    Strict,
    /// One job from each queue in turn.
    RoundRobin {
        /// The index of the queue to begin with.
        turn: usize,
    },
    /// The job with the highest priority in any of the queues; round robin among equals.
    Priority {
        /// The index of the queue to begin with.
        turn: usize,
    },
}

impl PopOrder {
    /// The index of the queue to begin with among `queues` queues. Also the next turn if the pop finds no
    /// job.
    pub fn turn(self, queues: usize) -> usize {
        match self {
            PopOrder::Strict => 0,
            PopOrder::RoundRobin { turn } | PopOrder::Priority { turn } => turn % queues.max(1),
        }
    }
}

/// The jobs that a pop handed out.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct PopReply {
    /// The jobs, each with its lock.
    pub jobs: Vec<Popped>,
    /// The turn of the next pop, see [`PopOrder`].
    pub turn: usize,
}

/// Shows which jobs a pop would hand out: first those with an expired lock, then the waiting ones.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Peek {
    /// The queue to look into.
    pub queue: QueueName,
    /// How many jobs at most.
    pub count: Count,
}
