//! Why: explains why a job is not running.

use std::fmt;

use crate::{Group, Jid, Klass, QueueName, Seconds, StateName, Timestamp, WorkerName};

/// Explains why a job is not running.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Why {
    /// The id of the job.
    pub jid: Jid,
}

/// The state of a job and the reasons why it is not running, most important first.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WhyReply {
    /// The id of the job.
    pub jid: Jid,
    /// Its state.
    pub state: StateName,
    /// Its queue; none once it is complete.
    pub queue: Option<QueueName>,
    /// At least one reason.
    pub reasons: Vec<Reason>,
}

/// A reason why a job is not running. Its text is a clause that also says what would help.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Reason {
    /// It is running.
    Running {
        /// The holder of its lock.
        worker: WorkerName,
        /// When its lock expires.
        until: Timestamp,
        /// Whether the worker was silent and is in its grace period; after `until` another worker may get the
        /// job.
        warned: bool,
    },
    /// Its lock has expired: the worker went silent.
    Stalled {
        /// The holder of its lock.
        worker: WorkerName,
        /// When the lock expired.
        since: Timestamp,
        /// Retries left.
        remaining: i64,
        /// Whether the next pop may hand the job out. If not, the next pop only warns the worker and starts
        /// its grace period.
        warned: bool,
    },
    /// It is complete.
    Complete {
        /// Since this time.
        at: Timestamp,
    },
    /// It failed, and stays so until it is requeued, unfailed or cancelled.
    Failed {
        /// The kind of failure.
        group: Group,
        /// The error message.
        message: String,
    },
    /// It failed because too many of its workers died.
    SetAside {
        /// Its failure group.
        group: Group,
        /// How many workers died.
        crashes: u32,
        /// Why the last one died, if known.
        evidence: Option<String>,
    },
    /// It waits for other jobs.
    DependsOn {
        /// The first incomplete dependency by jid.
        jid: Jid,
        /// The state of that job.
        state: StateName,
        /// The number of incomplete dependencies.
        count: u64,
        /// The first failed dependency by jid: as long as it is failed, the job waits for nothing.
        #[serde(default)]
        failed: Option<Box<FailedDependency>>,
    },
    /// It is scheduled for later.
    Scheduled {
        /// When it may run.
        at: Timestamp,
    },
    /// Its time to start has passed; the next tick fails it.
    Expired {
        /// Since this time.
        at: Timestamp,
    },
    /// Its queue is paused.
    Paused {
        /// The paused queue.
        queue: QueueName,
    },
    /// Its queue has reached its concurrency limit.
    Concurrency {
        /// The limit.
        max: u64,
        /// Up to five running jobs and their workers, first to expire first.
        held: Vec<(Jid, WorkerName)>,
        /// How many jobs are running: more than the limit, if it was lowered meanwhile. 0 from servers that
        /// do not report it.
        #[serde(default)]
        running: u64,
    },
    /// Its queue has reached its rate limit.
    RateLimit {
        /// When the next job may start.
        until: Timestamp,
    },
    /// No live worker can run it.
    NoWorker {
        /// The klass of the job.
        klass: Klass,
        /// When a worker that announced no klasses of the queue last popped from it, to within ten seconds;
        /// `None` if none ever did.
        asked: Option<Timestamp>,
        /// Klasses of the queue that live workers announced, sorted; at most ten.
        #[serde(default)]
        others: Vec<Klass>,
        /// How many live workers announced klasses of the queue.
        #[serde(default)]
        workers: u64,
    },
    /// Other jobs go first.
    Behind {
        /// How many jobs.
        jobs: u64,
    },
    /// Nothing blocks it: the next worker that pops gets it.
    Next,
}

/// A failed job that another depends on.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct FailedDependency {
    /// Its id.
    pub jid: Jid,
    /// The kind of failure.
    pub group: Group,
    /// The error message.
    pub message: String,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Running { worker, warned: false, .. } => write!(f, "it is running: {worker} has it"),
            Reason::Running { worker, until, .. } => {
                write!(f, "its worker {worker} went silent and was warned; another may get it after {until}")
            }
            Reason::Stalled { worker, warned: false, .. } => {
                write!(
                    f,
                    "its worker {worker} went silent, and is warned when a worker asks for jobs; \
                     after the grace period another gets it"
                )
            }
            Reason::Stalled { worker, remaining, .. } if *remaining > 0 => {
                write!(f, "its worker {worker} went silent, and another gets it when one asks")
            }
            Reason::Stalled { worker, .. } => {
                write!(
                    f,
                    "its worker {worker} went silent and no retry is left, \
                     so it fails when a worker asks for jobs"
                )
            }
            Reason::Complete { .. } => f.write_str("it is complete; put it again to run it again"),
            Reason::Failed { group, message } => {
                write!(
                    f,
                    "it failed ({group}: {message}); requeue it, or unfail {group} with all that is in it"
                )
            }
            Reason::SetAside { group, crashes, evidence } => {
                write!(f, "it was set aside after {crashes} of its workers died")?;
                evidence.iter().try_for_each(|evidence| write!(f, " ({evidence})"))?;
                write!(f, "; requeue it, or unfail {group} with all that is in it")
            }
            Reason::DependsOn { failed: Some(failed), count, .. } => {
                let FailedDependency { jid, group, message } = &**failed;
                match count {
                    1 => write!(f, "it depends on job {jid}, which failed ({group}: {message})")?,
                    _ => write!(
                        f,
                        "it depends on {count} jobs that are not complete, among them {jid}, \
                         which failed ({group}: {message})"
                    )?,
                }
                write!(
                    f,
                    "; requeue {jid}, unfail {group}, let the job no longer depend on it, \
                     or cancel {jid} with its dependents"
                )
            }
            Reason::DependsOn { jid, state, count: 1, .. } => {
                write!(f, "it depends on job {jid}, which is {state}")
            }
            Reason::DependsOn { jid, state, count, .. } => {
                write!(
                    f,
                    "it depends on {count} jobs that are not complete, among them {jid}, which is {state}"
                )
            }
            Reason::Scheduled { at } => write!(f, "it is scheduled for {at}"),
            Reason::Expired { at } => write!(f, "it was not to start after {at}, and is about to fail"),
            Reason::Paused { queue } => {
                write!(f, "queue {queue} is paused; resume {queue} hands jobs out again")
            }
            Reason::Concurrency { max, held, running } => {
                write!(f, "{} jobs of its queue are running, and its limit is {max}", running.max(max))?;
                held.first()
                    .into_iter()
                    .try_for_each(|(jid, worker)| write!(f, ", such as {jid} held by {worker}"))
            }
            Reason::RateLimit { until } => {
                write!(f, "its queue has started as many jobs as it may; the next one may start at {until}")
            }
            Reason::NoWorker { klass, others, .. } if !others.is_empty() => {
                let others = others.iter().map(Klass::as_str).collect::<Vec<_>>().join(", ");
                write!(f, "no worker asks its queue for klass {klass}, only for {others}")
            }
            Reason::NoWorker { klass, asked: None, .. } => {
                write!(f, "no worker has asked its queue for jobs or announced that it can do {klass}")
            }
            Reason::NoWorker { klass, asked: Some(asked), .. } => {
                write!(
                    f,
                    "no live worker: the last one asked at {asked}, \
                     and none has announced that it can do {klass}"
                )
            }
            Reason::Behind { jobs: 1 } => f.write_str("one job goes before it"),
            Reason::Behind { jobs } => write!(f, "{jobs} jobs go before it"),
            Reason::Next => f.write_str("it is next: the first worker that asks gets it"),
        }
    }
}

/// How long a silent worker counts as live.
pub const WORKER_SILENCE_MAX: Seconds = Seconds::from_whole(60);
