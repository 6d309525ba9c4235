//! A job, where it stands, and what has happened to it.

use crate::wire::Word;
use crate::{
    Backoff, Group, Holder, Jid, Klass, OnEnd, OrphanPolicy, Payload, Priority, Progressed, QueueName,
    Seconds, Tag, Timestamp, UniqueKey, WorkerName,
};

/// Everything there is to say about one job, at one moment.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// Its id.
    pub jid: Jid,
    /// What code runs it.
    pub klass: Klass,
    /// Where it waits or is worked on; none once it is complete.
    pub queue: Option<QueueName>,
    /// Where it stands.
    pub state: JobState,
    /// How much it matters.
    pub priority: Priority,
    /// How often it may be tried again, each time it enters a queue.
    pub retries: u32,
    /// How many of those are left; -1 once they are used up.
    pub remaining: i64,
    /// What the worker is given.
    pub payload: Payload,
    /// Words to find it by, in the order in which they came.
    pub tags: Vec<Tag>,
    /// What has happened to it, oldest first.
    pub history: Vec<HistoryEntry>,
    /// How an earlier attempt failed, in a job that is no longer failed. See [`Job::failure`].
    pub past_failure: Option<Failure>,
    /// The recurring job that it came from.
    pub spawned_from: Option<Jid>,
    /// Jobs that wait for this one, sorted.
    pub dependents: Vec<Jid>,
    /// Whether its milestones are published to those who track jobs.
    pub tracked: bool,
    /// What is true of it beyond Qless; none if nothing is.
    #[serde(rename = "particulars")]
    pub details: Option<Box<JobDetails>>,
    /// What a Qless client is told where that differs.
    pub qless: QlessView,
}

impl Job {
    /// How it failed: now, if it is failed, or the last time.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.state {
            JobState::Failed { failure } => Some(failure),
            _ => self.past_failure.as_ref(),
        }
    }

    /// Jobs that this one waits for, sorted.
    pub fn dependencies(&self) -> &[Jid] {
        match &self.state {
            JobState::Depends { on, .. } => on,
            _ => &[],
        }
    }
}

/// Where a job stands, with what is true there and nothing else.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum JobState {
    /// It may run from a moment on.
    Scheduled {
        /// That moment.
        due: Timestamp,
    },
    /// It waits for other jobs.
    Depends {
        /// Those jobs, sorted.
        on: Vec<Jid>,
        /// When it may run at the earliest, once they are complete.
        due: Option<Timestamp>,
    },
    /// It may run now.
    Waiting,
    /// A worker has it.
    Running {
        /// That worker's right to it.
        lock: Lock,
    },
    /// It is done.
    Complete {
        /// Since when.
        at: Timestamp,
    },
    /// It is set aside until somebody decides.
    Failed {
        /// What went wrong.
        failure: Failure,
    },
}

impl JobState {
    /// The name of this state.
    pub fn name(&self) -> StateName {
        match self {
            JobState::Scheduled { .. } => StateName::Scheduled,
            JobState::Depends { .. } => StateName::Depends,
            JobState::Waiting => StateName::Waiting,
            JobState::Running { .. } => StateName::Running,
            JobState::Complete { .. } => StateName::Complete,
            JobState::Failed { .. } => StateName::Failed,
        }
    }
}

/// The states' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "JobState says what they mean")]
pub enum StateName {
    Scheduled,
    Depends,
    Waiting,
    Running,
    Complete,
    Failed,
}

impl StateName {
    /// The name as it is printed.
    pub fn as_str(self) -> &'static str {
        match self {
            StateName::Scheduled => "scheduled",
            StateName::Depends => "depends",
            StateName::Waiting => "waiting",
            StateName::Running => "running",
            StateName::Complete => "complete",
            StateName::Failed => "failed",
        }
    }
}

impl std::fmt::Display for StateName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The exclusive right of one worker to one job, until it expires.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Lock {
    /// Who holds it.
    pub worker: WorkerName,
    /// Which attempt this is; no two attempts ever have the same.
    pub token: Token,
    /// Until when: past this the job is stalled, and another worker may get it. Once its holder was warned, the end of its grace.
    pub expires: Timestamp,
}

/// Names one attempt at one job. A late worker holds an old one, and can change nothing with it.
///
/// It is opaque: a worker gives back what it got. As text it can be written down and read again.
///
/// ```
/// use geartrain_core::Token;
/// let token: Token = "7.3".parse()?;
/// assert_eq!(token.to_string(), "7.3");
/// # Ok::<(), geartrain_core::BadToken>(())
/// ```
#[derive(Clone, Copy)]
pub struct Token {
    /// Never given out twice.
    pub(crate) number: u64,
    /// Where the backend will probably find the job. It saves a search and decides nothing.
    pub(crate) hint: u32,
}

impl Token {
    /// The attempt of this number, with no hint where its job is.
    pub fn new(number: u64) -> Token {
        Token { number, hint: u32::MAX }
    }

    /// The number, which no other attempt has.
    pub fn number(self) -> u64 {
        self.number
    }

    /// The text of it, written at the end of a buffer: tokens are written often, and formatting is slow.
    pub(crate) fn write(self, buffer: &mut [u8; 32]) -> &str {
        let mut at = buffer.len();
        let mut digits = |mut number: u64, at: &mut usize| loop {
            *at -= 1;
            buffer[*at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        };
        digits(self.hint.into(), &mut at);
        at -= 1;
        let dot = at;
        digits(self.number, &mut at);
        buffer[dot] = b'.';
        std::str::from_utf8(&buffer[at..]).expect("digits and a dot are ASCII")
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Token) -> bool {
        self.number == other.number
    }
}

impl Eq for Token {}

impl Ord for Token {
    fn cmp(&self, other: &Token) -> std::cmp::Ordering {
        self.number.cmp(&other.number)
    }
}

impl PartialOrd for Token {
    fn partial_cmp(&self, other: &Token) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl std::hash::Hash for Token {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.number, self.hint)
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Token {
    type Err = BadToken;
    fn from_str(text: &str) -> Result<Token, BadToken> {
        let parse = || {
            let (number, hint) = text.split_once('.')?;
            Some(Token { number: number.parse().ok()?, hint: hint.parse().ok()? })
        };
        parse().ok_or_else(|| BadToken { text: text.to_owned() })
    }
}

/// A text that is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a lock token: give back the one that came with the job")]
pub struct BadToken {
    /// The text.
    pub text: String,
}

/// How a job failed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Failure {
    /// The kind of failure.
    pub group: Group,
    /// What the worker, or the queue, had to say.
    pub message: String,
    /// When: in whole seconds if a worker said so, exactly if retries ran out.
    pub when: Timestamp,
    /// Who had it; none when retries ran out.
    pub worker: Option<WorkerName>,
}

/// One thing that happened to a job.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HistoryEntry {
    /// When, in whole seconds.
    pub when: Timestamp,
    /// What.
    pub what: HistoryEvent,
}

/// What can happen to a job, as far as its history tells.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum HistoryEvent {
    /// It entered a queue.
    Put {
        /// That queue.
        queue: QueueName,
    },
    /// A worker took it.
    Popped {
        /// That worker.
        worker: WorkerName,
    },
    /// A worker completed it.
    Done,
    /// It failed.
    Failed {
        /// Who said so; none when retries ran out.
        worker: Option<WorkerName>,
        /// The kind of failure.
        group: Group,
    },
    /// Its worker was too slow.
    TimedOut,
    /// It went back to the front of its queue, and that cost it nothing.
    #[serde(rename = "HandedBack")]
    Released {
        /// Who had it.
        worker: WorkerName,
    },
    /// Its worker died.
    Crashed {
        /// That worker.
        worker: WorkerName,
    },
    /// Somebody wrote something down.
    Log {
        /// What they wrote.
        message: String,
        /// A JSON object that they added.
        data: Option<String>,
    },
}

/// What only Qless clients see of a job, where it is not what the job's state says.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct QlessView {
    /// The state in Qless's word: `stalled` after `timeout`, `waiting` for a job advanced with a delay.
    #[serde(deserialize_with = "crate::wire::word")]
    pub state: Word,
    /// The worker that Qless names: after a retry or a timeout, still the last holder.
    pub worker: Option<WorkerName>,
    /// The deadline that Qless names: after a retry, still the last one; nought where there is none.
    pub expires: Timestamp,
}

/// What a worker is handed: enough to do the job and to report on it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Popped {
    /// The job's id.
    pub jid: Jid,
    /// The queue that it came from.
    pub queue: QueueName,
    /// What code runs it.
    pub klass: Klass,
    /// What that code is given.
    pub payload: Payload,
    /// How much it matters.
    pub priority: Priority,
    /// How often it may be tried again.
    pub retries: u32,
    /// How many of those are left.
    pub remaining: i64,
    /// The right to it.
    pub lock: Lock,
    /// What is true of it beyond Qless; none if nothing is.
    #[serde(rename = "particulars")]
    pub details: Option<Box<JobDetails>>,
    /// The whole job, if the pop asked for it.
    pub job: Option<Box<Job>>,
}

impl Popped {
    /// Whoever was handed it, as the one who reports on it.
    pub fn holder(&self) -> Holder {
        Holder::Token(self.lock.token)
    }
}

/// What is true of a job beyond Qless, and of one attempt at it.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct JobDetails {
    /// What makes another submission join it.
    pub unique: Option<UniqueKey>,
    /// How many submissions it stands for.
    pub submissions: u64,
    /// How many of them wait for it now.
    pub attached: u64,
    /// How long it lives unfinished.
    #[serde(rename = "lives")]
    pub orphan_policy: OrphanPolicy,
    /// What becomes of it when it ended.
    #[serde(rename = "afterwards")]
    pub on_end: OnEnd,
    /// How long its result will be kept.
    #[serde(rename = "result_for")]
    pub result_ttl: Option<Seconds>,
    /// It does not start after this moment.
    pub expires: Option<Timestamp>,
    /// How long one attempt may take.
    pub attempt_max: Option<Seconds>,
    /// When the attempt under way must be over.
    pub deadline: Option<Timestamp>,
    /// How long a retry waits.
    pub backoff: Option<Backoff>,
    /// How many of its workers may die before it is set aside.
    pub crashes_max: Option<u32>,
    /// How many have died.
    pub crashes: u32,
    /// What is known of the last one's death.
    pub evidence: Option<String>,
    /// How far the attempt under way has got.
    pub progress: Option<Progressed>,
    /// What is carried beside the payload.
    #[serde(default, rename = "aside")]
    pub metadata: Option<Payload>,
}
