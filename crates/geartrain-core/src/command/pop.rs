//! Pop and peek: hand jobs to workers.

use crate::{Count, Popped, QueueName, WorkerName};

/// Hands jobs to a worker.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Pop {
    /// Where from: 1 to 1,024 queues.
    pub queues: Vec<QueueName>,
    /// Who asks.
    pub worker: WorkerName,
    /// How many, at most.
    pub count: Count,
    /// Which queue's job goes first.
    pub order: PopOrder,
    /// Whether to answer with the whole job, history and all, or only with what a worker needs.
    pub whole: bool,
}

impl Pop {
    /// A pop of one job from one queue.
    pub fn new(queue: QueueName, worker: WorkerName) -> Pop {
        Pop { queues: vec![queue], worker, count: Count::ONE, order: PopOrder::Strict, whole: false }
    }
}

/// Which of several queues a job is taken from.
///
/// A *turn* is the place in the list of queues to begin at: the worker keeps it from one pop's reply to its next pop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum PopOrder {
    /// Always the first that has one.
    #[default]
    Strict,
    /// One from each in turn.
    RoundRobin {
        /// Where to begin.
        turn: usize,
    },
    /// The job that matters most, whichever queue it is in; one from each in turn among equals.
    Priority {
        /// Where to begin.
        turn: usize,
    },
}

impl PopOrder {
    /// Where among so many queues a pop begins, and where the next one does if this one hands out nothing.
    pub fn turn(self, queues: usize) -> usize {
        match self {
            PopOrder::Strict => 0,
            PopOrder::RoundRobin { turn } | PopOrder::Priority { turn } => turn % queues.max(1),
        }
    }
}

/// What a pop handed out.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct PopReply {
    /// The jobs, each with its lock.
    pub jobs: Vec<Popped>,
    /// Where the next pop begins.
    pub turn: usize,
}

/// Shows which jobs a pop would hand out: those whose lock expired, then those that wait.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Peek {
    /// Where.
    pub queue: QueueName,
    /// How many, at most.
    pub count: Count,
}
