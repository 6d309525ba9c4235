//! Commands that change jobs, queues and options: priority, dependencies, tags, tracking, pause, config.

use crate::{Count, Cycles, Jid, Priority, QueueName, Tag, WorkerName};

/// Changes how much a job matters. If it waits, it also goes to the front of that priority.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SetPriority {
    /// The job.
    pub jid: Jid,
    /// How much it matters from now on.
    pub priority: Priority,
}

/// Changes what a job waits for. Only a job that waits for others can.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Depend {
    /// The job.
    pub jid: Jid,
    /// What changes.
    pub change: DependChange,
    /// Whether the job may be made to wait for itself.
    pub cycles: Cycles,
}

/// What changes about what a job waits for.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum DependChange {
    /// It waits for these as well. Unknown and complete ones are passed over.
    On(Vec<Jid>),
    /// It waits for these no longer. If none are left it may run.
    Off(Vec<Jid>),
    /// It may run.
    OffAll,
}

/// Writes something into a job's history.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Log {
    /// The job.
    pub jid: Jid,
    /// What happened.
    pub message: String,
    /// A JSON object with more about it, kept as it is. Each may have 64 KiB.
    pub data: Option<String>,
}

/// Starts or ends the tracking of a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Track {
    /// The job.
    pub jid: Jid,
    /// Starts, or else ends.
    pub on: bool,
}

/// Adds tags to a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AddTags {
    /// The job.
    pub jid: Jid,
    /// The tags.
    pub tags: Vec<Tag>,
}

/// Removes tags from a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RemoveTags {
    /// The job.
    pub jid: Jid,
    /// The tags.
    pub tags: Vec<Tag>,
}

/// Stops handing out jobs of queues. They need not exist yet.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Pause {
    /// The queues, at least one.
    pub queues: Vec<QueueName>,
}

/// Hands out jobs of paused queues again.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Resume {
    /// The queues, at least one.
    pub queues: Vec<QueueName>,
}

/// Takes queues off the list of queues.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ForgetQueues {
    /// The queues, at least one.
    pub queues: Vec<QueueName>,
}

/// Takes workers off the list of workers.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ForgetWorkers {
    /// The workers, at least one.
    pub workers: Vec<WorkerName>,
}

/// Sets an option. Options that are read as numbers must be numbers.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SetConfig {
    /// Which.
    pub option: String,
    /// To what.
    pub value: String,
}

/// Puts an option back to its default.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct UnsetConfig {
    /// Which.
    pub option: String,
}

/// Hands out numbers that nobody gets again, also not after a restart: `count` of them, one after the other.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AllocateIds {
    /// Which counter: 1 to 512 bytes. Each begins at 1, and is there as soon as it is asked.
    pub counter: String,
    /// How many, and at least one.
    pub count: Count,
}
