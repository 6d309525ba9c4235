//! Capabilities of workers: announcements, roll call, released jobs and lost workers.

use crate::{Answer, Holder, Jid, Klass, Popped, QueueName, Reply, Seconds, Timestamp, WorkerName};

/// Returns a job to its queue without using up a retry: to the front, because its worker was interrupted, or
/// with a delay, because the job cannot run yet.
///
/// ```
/// use geartrain_core::{Holder, Jid, Release, Seconds, Token};
/// let release = Release::new(Jid::new("j1")?, Holder::Token(Token::new(7)));
/// let snooze = Release { delay: Seconds::from(300), ..release };
/// # Ok::<(), geartrain_core::BadName>(())
/// ```
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub struct Release {
    /// The running job.
    pub jid: Jid,
    /// The holder of its lock.
    pub holder: Holder,
    /// Why, for the job's story.
    #[serde(default)]
    pub message: Option<String>,
    /// How long the job may not run again, at most [`DELAY_MAX`](crate::DELAY_MAX). Without a delay it goes to
    /// the front of its queue.
    #[serde(default)]
    pub delay: Seconds,
}

/// Leaves out the last fields that have their defaults, as [`Cancel`](crate::Cancel) does.
impl serde::Serialize for Release {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let fields = if self.delay == Seconds::ZERO { 2 + usize::from(self.message.is_some()) } else { 4 };
        let mut release = to.serialize_struct("Release", fields)?;
        release.serialize_field("jid", &self.jid)?;
        release.serialize_field("holder", &self.holder)?;
        if fields > 2 {
            release.serialize_field("message", &self.message)?;
        }
        if fields > 3 {
            release.serialize_field("delay", &self.delay)?;
        }
        release.end()
    }
}

impl Release {
    /// Returns a job to the front of its queue, without a message.
    pub fn new(jid: Jid, holder: Holder) -> Release {
        Release { jid, holder, message: None, delay: Seconds::ZERO }
    }

    /// Returns a job that was just popped.
    pub fn of(job: &Popped) -> Release {
        Release::new(job.jid.clone(), job.holder())
    }

    /// Returns all jobs that these answers hand out.
    pub fn of_answers<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Vec<Release> {
        let pops = answers.into_iter().filter_map(|answer| match answer {
            Ok(Reply::Pop(reply)) => Some(reply),
            _ => None,
        });
        pops.flat_map(|reply| &reply.jobs).map(Release::of).collect()
    }
}

/// Reports a dead worker. Each of its jobs goes back to its queue, uses up one retry and counts one crash; a
/// job with too many crashes or no retry left fails. The worker's capabilities are dropped.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WorkerLost {
    /// The worker.
    pub worker: WorkerName,
    /// Why the worker died, such as an exit status or a signal.
    pub evidence: Option<String>,
}

/// Announces capabilities of a worker. They are valid until the worker is [lost](WorkerLost) or silent for a
/// minute.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Announce {
    /// The worker.
    pub worker: WorkerName,
    /// The capabilities to add or remove.
    pub change: AnnounceChange,
}

/// A change of capabilities.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum AnnounceChange {
    /// Adds capabilities; a worker has at most 1,024.
    Can(Vec<Capability>),
    /// Removes capabilities.
    Cannot(Vec<(QueueName, Option<Klass>)>),
    /// Replaces all capabilities.
    Only(Vec<Capability>),
}

/// Counts the live workers that can run a job: they announced its klass, or any klass.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RollCall {
    /// The queue.
    pub queue: QueueName,
    /// The klass; if not given, all workers that announced the queue are counted.
    pub klass: Option<Klass>,
}

/// Lists the announced capabilities of live workers, sorted by worker.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Announced {
    /// The worker; all workers, if not given.
    pub worker: Option<WorkerName>,
}

/// A capability of a worker: the jobs that it can run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Capability {
    /// The queue of the jobs.
    pub queue: QueueName,
    /// The klass of the jobs; any klass, if not given.
    pub klass: Option<Klass>,
    /// The longest time that the worker allows for one attempt.
    pub attempt_max: Option<Seconds>,
}

/// The capabilities that one worker has announced.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Announcement {
    /// The worker.
    pub worker: WorkerName,
    /// When the worker was last seen.
    pub seen: Option<Timestamp>,
    /// Its capabilities, sorted.
    #[serde(rename = "abilities")]
    pub capabilities: Vec<Capability>,
}
