//! Capabilities of workers: announcements, roll call, released jobs and lost workers.

use crate::{Holder, Jid, Klass, Popped, QueueName, Seconds, Timestamp, WorkerName};

/// Gives a job back to the front of its queue, at no price: its worker was interrupted.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Release {
    /// The job.
    pub jid: Jid,
    /// Who holds it.
    pub holder: Holder,
}

impl Release {
    /// Gives back what was just handed out.
    pub fn of(job: &Popped) -> Release {
        Release { jid: job.jid.clone(), holder: job.holder() }
    }
}

/// Says that a worker is dead. Each of its jobs is given back at the price of a retry and counts a crash; one that crashed too often, or has no retry left,
/// fails. What the worker announced no longer counts.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WorkerLost {
    /// The worker.
    pub worker: WorkerName,
    /// What is known of its death.
    pub evidence: Option<String>,
}

/// Says what a worker can do. It counts until the worker is [gone](WorkerLost) or silent for a minute.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Announce {
    /// The worker.
    pub worker: WorkerName,
    /// What it can do.
    pub change: AnnounceChange,
}

/// How what a worker can do changes.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum AnnounceChange {
    /// It can do these as well; at most 1,024 in all.
    Can(Vec<Capability>),
    /// It cannot do these any more.
    Cannot(Vec<(QueueName, Option<Klass>)>),
    /// It can do these and nothing else.
    Only(Vec<Capability>),
}

/// Counts the workers that can do a job: those that announced this klass, and those that announced any.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RollCall {
    /// The queue.
    pub queue: QueueName,
    /// What is to be done; anything, if not given: then all that announced the queue count.
    pub klass: Option<Klass>,
}

/// Lists what workers have announced.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Announced {
    /// Which worker; all of them, if not given.
    pub worker: Option<WorkerName>,
}

/// What a worker can do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Capability {
    /// The jobs of this queue.
    pub queue: QueueName,
    /// Of this klass; of any, if not given.
    pub klass: Option<Klass>,
    /// How long it takes for one at the most.
    pub attempt_max: Option<Seconds>,
}

/// What one worker has announced.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Announcement {
    /// The worker.
    pub worker: WorkerName,
    /// When it was last seen.
    pub seen: Option<Timestamp>,
    /// What it can do, sorted.
    #[serde(rename = "abilities")]
    pub capabilities: Vec<Capability>,
}
