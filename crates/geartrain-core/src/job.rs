//! Jobs as clients see them: state, lock, fencing token, failure and history.

use crate::{
    AttemptEnd, Backoff, DependencyPolicy, EndReason, Group, Holder, Jid, Klass, OnEnd, OrphanPolicy,
    Payload, Priority, Progressed, QueueName, Seconds, Tag, Timestamp, Traceparent, UniqueKey, WorkerName,
};

/// A job with all of its data, as of one point in time.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// Its id.
    pub jid: Jid,
    /// The kind of job: names the code that runs it.
    pub klass: Klass,
    /// Its queue; `None` once it is complete.
    pub queue: Option<QueueName>,
    /// Its state, with the data that belongs to it.
    pub state: JobState,
    /// Its priority, higher first.
    pub priority: Priority,
    /// How often it may be retried; counted anew each time it enters a queue.
    pub retries: u32,
    /// Retries left; -1 once the job failed for lack of them.
    pub remaining: i64,
    /// The input of the code that runs it.
    pub payload: Payload,
    /// Its tags, in the order in which they were added.
    pub tags: Vec<Tag>,
    /// Its history as Qless has it, oldest entry first.
    pub history: Vec<HistoryEntry>,
    /// The last failure of a job that is no longer failed. See [`Job::failure`].
    pub past_failure: Option<Failure>,
    /// The recurring job that spawned it.
    pub spawned_from: Option<Jid>,
    /// Jobs that depend on this one, sorted.
    pub dependents: Vec<Jid>,
    /// Whether its [milestones](crate::Milestone) are published.
    pub tracked: bool,
    /// Its data beyond Qless, if it has any.
    #[serde(rename = "particulars")]
    pub details: Option<Box<JobDetails>>,
    /// What Qless clients see where it differs from `state`.
    pub qless: QlessView,
    /// How its attempts ended that did not complete it, oldest first. See [`Job::story`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<AttemptEnd>,
}

impl Job {
    /// Its failure if it is failed, or its last failure.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.state {
            JobState::Failed { failure } => Some(failure),
            _ => self.past_failure.as_ref(),
        }
    }

    /// Jobs that this one depends on, sorted.
    pub fn dependencies(&self) -> &[Jid] {
        match &self.state {
            JobState::Depends { on, .. } => on,
            _ => &[],
        }
    }
}

/// The state of a job, with the data that only exists in that state.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum JobState {
    /// It may run later.
    Scheduled {
        /// From this time on.
        due: Timestamp,
    },
    /// It waits for other jobs.
    Depends {
        /// The jobs that are not complete, sorted.
        on: Vec<Jid>,
        /// The earliest time to run, once they are complete.
        due: Option<Timestamp>,
    },
    /// It is ready to run.
    Waiting,
    /// A worker holds it.
    Running {
        /// The lock of that worker.
        lock: Lock,
    },
    /// It was completed.
    Complete {
        /// When.
        at: Timestamp,
    },
    /// It failed, and stays so until it is requeued, unfailed or cancelled.
    Failed {
        /// What went wrong.
        failure: Failure,
    },
}

impl JobState {
    /// The name of the state.
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

/// The name of a [`JobState`].
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
    /// The name in lower case, as Qless spells it.
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

/// A lease on a job: the exclusive right of one worker to run it, until the lock expires.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Lock {
    /// The holder.
    pub worker: WorkerName,
    /// The fencing token of the attempt.
    pub token: Token,
    /// When the lock expires. After that the job is stalled, and another worker may get it. If the holder was
    /// warned, this is the end of its grace period.
    pub expires: Timestamp,
}

/// A fencing token: identifies one attempt at a job. No two attempts have the same. A worker whose lock was
/// lost holds an old token, and its commands are refused.
///
/// It is opaque: a worker sends back the token that came with the job. It can be stored as text.
///
/// ```
/// use geartrain_core::Token;
/// let token: Token = "7.3".parse()?;
/// assert_eq!(token.to_string(), "7.3");
/// # Ok::<(), geartrain_core::BadToken>(())
/// ```
#[derive(Clone, Copy)]
pub struct Token {
    /// Never issued twice.
    pub(crate) number: u64,
    /// The probable row of the job. A hint only: it saves a lookup and is verified.
    pub(crate) hint: u32,
}

impl Token {
    /// A token without a hint.
    pub fn new(number: u64) -> Token {
        Token { number, hint: u32::MAX }
    }

    /// The unique number of the attempt.
    pub fn number(self) -> u64 {
        self.number
    }

    /// Writes the text into the end of a buffer. Tokens are encoded often, and `format!` is slow.
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

/// A text that is not a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a lock token: give back the one that came with the job")]
pub struct BadToken {
    /// The rejected text.
    pub text: String,
}

/// A failure of a job.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Failure {
    /// The kind of failure.
    pub group: Group,
    /// The error message, from the worker or from the queue itself.
    pub message: String,
    /// When it failed: in whole seconds if a worker failed it, exact if retries ran out.
    pub when: Timestamp,
    /// The worker that failed it; `None` if retries ran out.
    pub worker: Option<WorkerName>,
}

/// An entry of the history of a job.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HistoryEntry {
    /// The time, in whole seconds.
    pub when: Timestamp,
    /// The event.
    pub what: HistoryEvent,
}

/// The events that the history of a job records.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum HistoryEvent {
    /// It entered a queue.
    Put {
        /// The queue.
        queue: QueueName,
    },
    /// A worker popped it.
    Popped {
        /// The worker.
        worker: WorkerName,
    },
    /// A worker completed it.
    Done,
    /// It failed.
    Failed {
        /// The worker that failed it; `None` if retries ran out.
        worker: Option<WorkerName>,
        /// The kind of failure.
        group: Group,
    },
    /// Its lock expired, or its attempt took too long.
    TimedOut,
    /// It went back to the front of its queue without using up a retry. Only in histories of earlier versions.
    #[serde(rename = "HandedBack")]
    Released {
        /// The worker that held it.
        worker: WorkerName,
    },
    /// Its worker died. Only in histories of earlier versions.
    Crashed {
        /// The worker.
        worker: WorkerName,
    },
    /// A client logged a message.
    Log {
        /// The message.
        message: String,
        /// A JSON object with details.
        data: Option<String>,
    },
    /// An attempt ended without completing it. In [`Job::story`] only.
    AttemptEnded {
        /// Why.
        reason: EndReason,
        /// The worker that had the job.
        worker: Option<WorkerName>,
        /// The kind of failure, if the worker reported one.
        group: Option<Group>,
        /// What the worker said, or what is known about its loss.
        message: Option<String>,
    },
}

/// A job's state in Qless's word: the name of a [`StateName`], or `stalled`.
pub type QlessState = &'static str;

/// What Qless clients see of a job where it differs from [`JobState`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct QlessView {
    /// The state: `stalled` after `timeout`, `waiting` for a job that moved on with a delay, else its name.
    #[serde(deserialize_with = "crate::wire::qless_state")]
    pub state: QlessState,
    /// The worker. After a retry or a timeout still the last holder.
    pub worker: Option<WorkerName>,
    /// The deadline. After a retry still the last one; 0 if there is none.
    pub expires: Timestamp,
}

/// A popped job: what a worker needs to run it and to report on it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Popped {
    /// Its id.
    pub jid: Jid,
    /// The queue that it came from.
    pub queue: QueueName,
    /// The kind of job: names the code to run.
    pub klass: Klass,
    /// The input of that code.
    pub payload: Payload,
    /// Its priority.
    pub priority: Priority,
    /// How often it may be retried.
    pub retries: u32,
    /// Retries left.
    pub remaining: i64,
    /// The lock of the worker that popped it.
    pub lock: Lock,
    /// Its data beyond Qless, if it has any.
    #[serde(rename = "particulars")]
    pub details: Option<Box<JobDetails>>,
    /// The whole job, if the pop asked for it.
    pub job: Option<Box<Job>>,
}

impl Popped {
    /// The holder to name in commands about this attempt.
    pub fn holder(&self) -> Holder {
        Holder::Token(self.lock.token)
    }
}

/// Data of a job, and of its current attempt, beyond Qless.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct JobDetails {
    /// Its deduplication key.
    pub unique: Option<UniqueKey>,
    /// How many submissions share the job.
    pub submissions: u64,
    /// How many of them are attached and wait for the result.
    pub attached: u64,
    /// What happens when no client waits for the job any more.
    #[serde(rename = "lives")]
    pub orphan_policy: OrphanPolicy,
    /// What happens to the job when it ends.
    #[serde(rename = "afterwards")]
    pub on_end: OnEnd,
    /// How long its result will be stored.
    #[serde(rename = "result_for")]
    pub result_ttl: Option<Seconds>,
    /// It fails if no attempt has started by this time.
    pub expires: Option<Timestamp>,
    /// How long one attempt may take.
    pub attempt_max: Option<Seconds>,
    /// When the current attempt must end.
    pub deadline: Option<Timestamp>,
    /// How long retries wait.
    pub backoff: Option<Backoff>,
    /// How many workers may die while running it before it fails.
    pub crashes_max: Option<u32>,
    /// How many have died so far.
    pub crashes: u32,
    /// Why the last one died, if known.
    pub evidence: Option<String>,
    /// The progress of the current attempt.
    pub progress: Option<Progressed>,
    /// Bytes for the worker besides the payload.
    #[serde(default, rename = "aside")]
    pub metadata: Option<Payload>,
    /// What it does when a job that it depends on fails.
    #[serde(default)]
    pub on_dependency_failure: DependencyPolicy,
    /// The trace that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Traceparent>,
}
