//! Commands that look things up: jobs, lists, counts, statistics and options.

use crate::wire::Word;
use crate::{Group, Jid, Job, Page, QueueName, Tag, Timestamp, WorkerName};

/// Part of a long list of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Listed {
    /// How many there are in all.
    pub total: u64,
    /// Those on this page.
    pub jids: Vec<Jid>,
}

/// Lists the tracked jobs, in the order in which somebody last asked to track them.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tracked;

/// The tracked jobs.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct TrackedReply {
    /// Those that exist.
    pub jobs: Vec<Job>,
    /// Those that are gone.
    pub expired: Vec<Jid>,
}

/// Lists the jobs that have a tag.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tagged {
    /// The tag.
    pub tag: Tag,
    /// Which part of the list.
    pub page: Page,
}

/// Lists the tags used at least twice.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct TopTags {
    /// Which part of the list.
    pub page: Page,
}

/// Looks a job up.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Get {
    /// The job.
    pub jid: Jid,
}

/// Looks several jobs up.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetMany {
    /// The jobs.
    pub jids: Vec<Jid>,
}

/// Counts the jobs of a queue that run, wait or are scheduled.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Length {
    /// The queue.
    pub queue: QueueName,
}

/// Lists jobs by where they stand.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Jobs {
    /// Which.
    pub which: Listing,
    /// Which part of the list.
    pub page: Page,
}

/// Which jobs to list, and in what order.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Listing {
    /// Complete ones, the latest first.
    Complete,
    /// Those of a queue that a pop would find, the next one first.
    Waiting(QueueName),
    /// Those of a queue whose lock has not expired, the next to expire first.
    Running(QueueName),
    /// Those of a queue whose lock has expired, the longest expired first.
    Stalled(QueueName),
    /// Those of a queue that are not due, the next one first. Due ones become waiting.
    Scheduled(QueueName),
    /// Those of a queue that wait for others, the first put first.
    Depends(QueueName),
    /// Recurring ones of a queue, the next to spawn first.
    Recurring(QueueName),
}

/// Counts the failed jobs by group.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Failures;

/// Lists the failed jobs of one group.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Failed {
    /// The kind of failure.
    pub group: Group,
    /// Which part of the list.
    pub page: Page,
}

/// Counts the jobs of queues.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Queues {
    /// Which one; each registered one, if not given.
    pub queue: Option<QueueName>,
}

/// How many jobs of a queue stand where.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "the states' names say it")]
pub struct QueueCounts {
    pub name: QueueName,
    pub waiting: u64,
    /// Those whose lock has not expired.
    pub running: u64,
    /// Those whose lock has expired.
    pub stalled: u64,
    pub scheduled: u64,
    pub depends: u64,
    pub recurring: u64,
    pub paused: bool,
}

/// Counts the jobs of workers.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Workers;

/// How many jobs a worker has.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WorkerCounts {
    /// Who.
    pub name: WorkerName,
    /// Those whose lock has not expired.
    pub jobs: u64,
    /// Those whose lock has expired.
    pub stalled: u64,
}

/// Lists the jobs of one worker.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WorkerJobs {
    /// Who.
    pub worker: WorkerName,
}

/// The jobs of one worker, the last to expire first.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct WorkerJobsReply {
    /// Those whose lock has not expired.
    pub jobs: Vec<Jid>,
    /// Those whose lock has expired.
    pub stalled: Vec<Jid>,
}

/// Tells how one queue did on one day.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Stats {
    /// The queue.
    pub queue: QueueName,
    /// Any moment of that day.
    pub date: Timestamp,
}

/// How one queue did on one day.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StatsReply {
    /// How long jobs popped on that day had waited.
    pub wait: Summary,
    /// How long jobs completed on that day had run.
    pub run: Summary,
    /// How many locks expired.
    pub retries: i64,
    /// How many jobs failed on that day and are still failed. Re-puts into another queue can make it negative.
    pub failed: i64,
    /// How many times a job failed.
    pub failures: i64,
}

/// How long things took.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Summary {
    /// How many there were.
    pub count: u64,
    /// Their mean, in seconds.
    pub mean: f64,
    /// Their standard deviation, in seconds.
    pub std: f64,
    /// How many took that long: seconds 0 to 59, minutes 1 to 59, hours 1 to 23, days 1 to 6.
    pub histogram: Vec<u64>,
}

/// Looks an option up.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetConfig {
    /// Which.
    pub option: String,
}

/// Lists options.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AllConfig;

/// An option's value, and whose choice it is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Setting {
    /// Somebody set it.
    Chosen(String),
    /// Nobody did.
    Default(#[serde(deserialize_with = "crate::wire::word")] Word),
}

/// Counts the waiting jobs of a queue by priority.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PriorityCounts {
    /// The queue.
    pub queue: QueueName,
}

/// How many waiting jobs of a queue matter how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct PriorityCountsReply {
    /// Those whose priority is above 0.
    pub above: u64,
    /// Those whose priority is 0.
    pub at: u64,
    /// Those whose priority is below 0.
    pub below: u64,
}
