//! Commands that look things up: jobs, lists, counts, statistics and options.

use std::borrow::Cow;

use crate::{Group, Jid, Job, Page, QueueName, Tag, Timestamp, WorkerName};

/// A page of a list of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Listed {
    /// The length of the whole list.
    pub total: u64,
    /// The jobs on this page.
    pub jids: Vec<Jid>,
}

/// Lists the tracked jobs, in the order in which tracking was last requested.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tracked;

/// The tracked jobs.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct TrackedReply {
    /// The jobs that exist.
    pub jobs: Vec<Job>,
    /// Tracked jids whose jobs no longer exist.
    pub expired: Vec<Jid>,
}

/// Lists the jobs with a tag.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tagged {
    /// The tag to look for.
    pub tag: Tag,
    /// The page of the list.
    pub page: Page,
}

/// Lists the tags used at least twice, most used first.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct TopTags {
    /// The page of the list.
    pub page: Page,
}

/// Looks up a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Get {
    /// The id of the job.
    pub jid: Jid,
}

/// Looks up several jobs.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetMany {
    /// The ids of the jobs.
    pub jids: Vec<Jid>,
}

/// Counts the running, waiting and scheduled jobs of a queue.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Length {
    /// The queue.
    pub queue: QueueName,
}

/// Lists the jobs in a state.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Jobs {
    /// The state, and the queue where it applies.
    pub which: Listing,
    /// The page of the list.
    pub page: Page,
}

/// Which jobs to list, and in what order.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Listing {
    /// Complete jobs, latest first.
    Complete,
    /// Waiting jobs of a queue, in the order in which a pop hands them out.
    Waiting(QueueName),
    /// Running jobs of a queue whose lock is valid, first to expire first.
    Running(QueueName),
    /// Running jobs of a queue whose lock has expired, longest expired first.
    Stalled(QueueName),
    /// Scheduled jobs of a queue, first due first. Makes due jobs waiting.
    Scheduled(QueueName),
    /// Jobs of a queue that wait for other jobs, first put first.
    Depends(QueueName),
    /// Recurring jobs of a queue, next to spawn first.
    Recurring(QueueName),
}

/// Counts the failed jobs by group.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Failures;

/// Lists the failed jobs of one group, newest first.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Failed {
    /// The kind of failure.
    pub group: Group,
    /// The page of the list.
    pub page: Page,
}

/// Counts the jobs of one queue, or of each registered queue, by state.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Queues {
    /// The queue; every registered queue, if not given.
    pub queue: Option<QueueName>,
}

/// Counts the jobs of a queue by state.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "the states' names say it")]
pub struct QueueCounts {
    pub name: QueueName,
    pub waiting: u64,
    /// Running jobs whose lock is valid.
    pub running: u64,
    /// Running jobs whose lock has expired.
    pub stalled: u64,
    pub scheduled: u64,
    pub depends: u64,
    pub recurring: u64,
    pub paused: bool,
}

/// Counts the jobs of each worker, most recently seen worker first.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Workers;

/// Counts the jobs of a worker.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WorkerCounts {
    /// The worker.
    pub name: WorkerName,
    /// Jobs whose lock is valid.
    pub jobs: u64,
    /// Jobs whose lock has expired.
    pub stalled: u64,
    /// When it was last seen: it popped, or sent a heartbeat or an announcement.
    #[serde(default)]
    pub seen: Option<Timestamp>,
}

/// Lists the jobs of one worker.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WorkerJobs {
    /// The worker.
    pub worker: WorkerName,
}

/// The jobs of one worker; the lock that expires last comes first.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct WorkerJobsReply {
    /// Jobs whose lock is valid.
    pub jobs: Vec<Jid>,
    /// Jobs whose lock has expired.
    pub stalled: Vec<Jid>,
}

/// Looks up the statistics of one queue for one day (UTC).
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Stats {
    /// The queue.
    pub queue: QueueName,
    /// Any time of that day.
    pub date: Timestamp,
}

/// Statistics of one queue for one day.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StatsReply {
    /// How long the jobs popped on that day had waited.
    pub wait: Summary,
    /// How long the jobs completed on that day had run.
    pub run: Summary,
    /// How many locks expired.
    pub retries: i64,
    /// How many jobs failed on that day, less those that were put again or cancelled since. As in Qless, `unfail`
    /// does not lower it, and jobs that are put again into another queue can make it negative.
    pub failed: i64,
    /// How many failures there were.
    pub failures: i64,
}

/// A distribution of durations.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Summary {
    /// The number of samples.
    pub count: u64,
    /// The mean, in seconds.
    pub mean: f64,
    /// The standard deviation, in seconds.
    pub std: f64,
    /// Samples per bucket: seconds 0 to 59, minutes 1 to 59, hours 1 to 23, days 1 to 6.
    pub histogram: Vec<u64>,
}

impl Summary {
    /// Adds the samples of another distribution (the parallel form of Welford's algorithm).
    ///
    /// ```
    /// use geartrain_core::Summary;
    /// let mut both = Summary { count: 2, mean: 1.0, std: 0.0, histogram: vec![0, 2] };
    /// both.add(&Summary { count: 2, mean: 3.0, std: 0.0, histogram: vec![0, 0, 0, 2] });
    /// assert_eq!((both.count, both.mean, both.histogram), (4, 2.0, vec![0, 2, 0, 2]));
    /// assert!((both.std - (4.0_f64 / 3.0).sqrt()).abs() < 1e-9);
    /// ```
    pub fn add(&mut self, other: &Summary) {
        if other.count == 0 {
            return;
        }
        let spread = |of: &Summary| of.std * of.std * of.count.saturating_sub(1) as f64;
        let (own, others) = (self.count as f64, other.count as f64);
        let (off, all) = (other.mean - self.mean, own + others);
        let squares = spread(self) + spread(other) + off * off * own * others / all;
        self.count += other.count;
        self.mean += off * others / all;
        self.std = if self.count > 1 { (squares / (all - 1.0)).sqrt() } else { 0.0 };
        self.histogram.resize(self.histogram.len().max(other.histogram.len()), 0);
        for (sum, more) in self.histogram.iter_mut().zip(&other.histogram) {
            *sum += more;
        }
    }
}

/// Looks up an option.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetConfig {
    /// The name of the option.
    pub option: String,
}

/// Lists the options that are set, and the defaults that Qless lists.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AllConfig;

/// The value of an option, and whether it was set.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Setting {
    /// A value that was set.
    Chosen(String),
    /// The default.
    Default(Cow<'static, str>),
}

/// Counts the waiting jobs of a queue by priority.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PriorityCounts {
    /// The queue.
    pub queue: QueueName,
}

/// Counts the waiting jobs of a queue by the sign of their priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct PriorityCountsReply {
    /// Jobs with a priority above 0.
    pub above: u64,
    /// Jobs with priority 0.
    pub at: u64,
    /// Jobs with a priority below 0.
    pub below: u64,
}
