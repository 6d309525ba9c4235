//! Commands that change jobs, queues and options: priority, dependencies, tags, tracking, pause, config.

use crate::{Count, Cycles, Jid, Priority, QueueName, Tag, WorkerName};

/// Changes the priority of a job. A waiting job goes to the front of its new priority.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SetPriority {
    /// The job to change.
    pub jid: Jid,
    /// The new priority.
    pub priority: Priority,
}

/// Adds or removes dependencies of a job that is in state `depends`; any other state is refused.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Depend {
    /// The dependent job.
    pub jid: Jid,
    /// The dependencies to add or remove.
    pub change: DependChange,
    /// Whether a new dependency may close a cycle.
    pub cycles: Cycles,
}

/// A change of dependencies.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum DependChange {
    /// Adds these jobs. Unknown and complete ones are skipped.
    On(Vec<Jid>),
    /// Removes these jobs. The job may run when no dependency is left.
    Off(Vec<Jid>),
    /// Removes all dependencies, so that the job may run.
    OffAll,
}

/// Appends a message to a job's history.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Log {
    /// The job to write about.
    pub jid: Jid,
    /// The message, at most 64 KiB.
    pub message: String,
    /// A JSON object with details, stored unchanged; at most 64 KiB.
    pub data: Option<String>,
}

/// Starts or stops tracking a job. A tracked job publishes its [milestones](crate::Event::Milestone).
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Track {
    /// The job to track.
    pub jid: Jid,
    /// `true` to start, `false` to stop.
    pub on: bool,
}

/// Adds tags to a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AddTags {
    /// The job to tag.
    pub jid: Jid,
    /// The tags to add.
    pub tags: Vec<Tag>,
}

/// Removes tags from a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RemoveTags {
    /// The job to tag.
    pub jid: Jid,
    /// The tags to remove.
    pub tags: Vec<Tag>,
}

/// Pauses queues: pops get none of their jobs. A queue need not exist yet.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Pause {
    /// At least one queue.
    pub queues: Vec<QueueName>,
}

/// Resumes paused queues.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Resume {
    /// At least one queue.
    pub queues: Vec<QueueName>,
}

/// Removes queues from the list of queues; their jobs stay.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ForgetQueues {
    /// At least one queue.
    pub queues: Vec<QueueName>,
}

/// Removes workers from the list of workers; their locks stay.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ForgetWorkers {
    /// At least one worker.
    pub workers: Vec<WorkerName>,
}

/// Sets an option of the queue system. Unless `any` is set, the option must be one of
/// [`OPTIONS`](crate::OPTIONS), and its value in the option's range.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SetConfig {
    /// The name of the option, such as `heartbeat`.
    pub option: String,
    /// Its new value.
    pub value: String,
    /// Whether any name and any value is accepted, as by Qless's `config.set`. The engine ignores options
    /// that it does not know, and uses the default of a numeric option whose value is not a finite number.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any: bool,
}

impl SetConfig {
    /// Sets a known option to a value in its range.
    pub fn new(option: impl Into<String>, value: impl Into<String>) -> SetConfig {
        SetConfig { option: option.into(), value: value.into(), any: false }
    }
}

/// Resets an option to its default.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct UnsetConfig {
    /// The name of the option.
    pub option: String,
}

/// Allocates `count` consecutive numbers of a persistent counter. No number is allocated twice, even after a
/// restart.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AllocateIds {
    /// The name of the counter, 1 to 512 bytes. A counter starts at 1 and is created on first use.
    pub counter: String,
    /// How many numbers; at least 1.
    pub count: Count,
}
