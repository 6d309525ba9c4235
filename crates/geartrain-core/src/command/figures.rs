//! Figures for operators: failures, latency and rate of queues, and why the jobs of a queue are not running.

use crate::{Jid, Klass, QueueCounts, QueueName, Timestamp};

/// Looks up the figures of one queue, or of each registered queue.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Figures {
    /// The queue; every registered queue, if not given.
    pub queue: Option<QueueName>,
}

/// What a queue's counts by state do not tell.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct QueueFigures {
    /// The queue.
    pub name: QueueName,
    /// Failed jobs of the queue.
    pub failed: u64,
    /// Whether there may be more failed jobs: a Redis has no index of them by queue, so at most a thousand
    /// failed jobs are examined there.
    pub failed_or_more: bool,
    /// When the oldest waiting job was put. In a long queue, the ten that are next and the ten that are last
    /// are examined.
    pub oldest: Option<Timestamp>,
    /// Completions per minute over the last one to two minutes; `None` until a tick has sampled them.
    pub rate: Option<f64>,
}

/// Explains why the jobs of a queue are not running.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WhyQueue {
    /// The queue.
    pub queue: QueueName,
}

/// What keeps the jobs of a queue from running, from counters and samples of bounded size.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WhyQueueReply {
    /// Its jobs by state, and whether it is paused.
    pub counts: QueueCounts,
    /// When the next scheduled job falls due.
    pub next_due: Option<Timestamp>,
    /// The concurrency limit, if it is reached.
    pub concurrency_max: Option<u64>,
    /// When the next job may start, if the rate limit is reached.
    pub rate_limited_until: Option<Timestamp>,
    /// When a worker that announced no klasses of the queue last popped from it, to within ten seconds.
    pub asked: Option<Timestamp>,
    /// How many live workers announced klasses of the queue.
    pub workers: u64,
    /// How many waiting jobs were examined for their klasses: the first thousand.
    pub waiting_examined: u64,
    /// Klasses of these jobs that no live worker asks for, most jobs first; at most ten.
    #[serde(default)]
    pub unasked: Vec<(Klass, u64)>,
    /// How many jobs with dependencies were examined: the first hundred, and the first five dependencies of
    /// each.
    pub depends_examined: u64,
    /// How many of them wait for a failed job.
    pub behind_failed: u64,
    /// One of these failed jobs.
    pub failed_dependency: Option<Jid>,
}
