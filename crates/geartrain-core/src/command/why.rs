//! Why: explains why a job is not running.

use std::fmt;

use crate::{Group, Jid, Klass, QueueName, Seconds, StateName, Timestamp, WorkerName};

/// Says why a job does not run.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Why {
    /// Which.
    pub jid: Jid,
}

/// Where a job stands, and all that keeps it from running, what weighs most first.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WhyReply {
    /// The job.
    pub jid: Jid,
    /// Where it stands.
    pub state: StateName,
    /// Its queue; none once it is complete.
    pub queue: Option<QueueName>,
    /// Why it does not run. At least one.
    pub reasons: Vec<Reason>,
}

/// One reason why a job does not run. As text it is a clause that says what would help.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Reason {
    /// It runs.
    Running {
        /// Who has it.
        worker: WorkerName,
        /// Until when its lock is good.
        until: Timestamp,
        /// Whether its worker was silent and warned: after that moment another may get the job.
        warned: bool,
    },
    /// Its worker went silent.
    Stalled {
        /// Who has it.
        worker: WorkerName,
        /// Since when.
        since: Timestamp,
        /// How many retries are left.
        remaining: i64,
        /// Whether its worker was warned, or gets no warning. Else the next pop only does that.
        warned: bool,
    },
    /// It is done.
    Complete {
        /// Since when.
        at: Timestamp,
    },
    /// It failed, and waits for somebody to decide.
    Failed {
        /// The kind of failure.
        group: Group,
        /// What was said about it.
        message: String,
    },
    /// Its workers died too often.
    SetAside {
        /// The group that it is in.
        group: Group,
        /// How many died.
        crashes: u32,
        /// What is known of the last one's death.
        evidence: Option<String>,
    },
    /// It waits for other jobs.
    DependsOn {
        /// One that is not complete, the first by name.
        jid: Jid,
        /// Where that stands.
        state: StateName,
        /// How many there are.
        count: u64,
    },
    /// It may not run yet.
    Scheduled {
        /// When it may.
        at: Timestamp,
    },
    /// It must not start any more, and is about to fail.
    Expired {
        /// Since when.
        at: Timestamp,
    },
    /// Its queue is paused.
    Paused {
        /// The queue.
        queue: QueueName,
    },
    /// As many jobs of its queue run as may.
    Concurrency {
        /// How many may.
        max: u64,
        /// Some of those that do, and who has them: the first to expire first, at most five.
        held: Vec<(Jid, WorkerName)>,
    },
    /// Jobs of its queue have started as often as they may.
    RateLimit {
        /// When the next one may start.
        until: Timestamp,
    },
    /// Nobody is there to do it.
    NoWorker {
        /// What would have to be done.
        klass: Klass,
        /// When anybody last asked the queue for a job, to within ten seconds; none if nobody ever did.
        asked: Option<Timestamp>,
    },
    /// Others go first.
    Behind {
        /// How many.
        jobs: u64,
    },
    /// Nothing: the next worker that asks gets it.
    Next,
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
                    "its worker {worker} went silent, and is warned when a worker asks for jobs; after the grace period another gets it"
                )
            }
            Reason::Stalled { worker, remaining, .. } if *remaining > 0 => {
                write!(f, "its worker {worker} went silent, and another gets it when one asks")
            }
            Reason::Stalled { worker, .. } => {
                write!(
                    f,
                    "its worker {worker} went silent and no retry is left, so it fails when a worker asks for jobs"
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
            Reason::DependsOn { jid, state, count: 1 } => {
                write!(f, "it depends on job {jid}, which is {state}")
            }
            Reason::DependsOn { jid, state, count } => {
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
            Reason::Concurrency { max, held } => {
                write!(f, "{max} of {max} jobs of its queue are running")?;
                held.first()
                    .into_iter()
                    .try_for_each(|(jid, worker)| write!(f, ", such as {jid} held by {worker}"))
            }
            Reason::RateLimit { until } => {
                write!(f, "its queue has started as many jobs as it may; the next one may start at {until}")
            }
            Reason::NoWorker { klass, asked: None } => {
                write!(f, "no worker has asked its queue for jobs or announced that it can do {klass}")
            }
            Reason::NoWorker { klass, asked: Some(asked) } => {
                write!(
                    f,
                    "no live worker: the last one asked at {asked}, and none has announced that it can do {klass}"
                )
            }
            Reason::Behind { jobs: 1 } => f.write_str("one job goes before it"),
            Reason::Behind { jobs } => write!(f, "{jobs} jobs go before it"),
            Reason::Next => f.write_str("it is next: the first worker that asks gets it"),
        }
    }
}

/// After how long a worker that shows no sign of life no longer counts.
pub const WORKER_SILENCE_MAX: Seconds = Seconds::from_whole(60);
