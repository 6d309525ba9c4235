//! Jobs as JSON: a job with its history, and a popped job with its lock.

use geartrain_core::{Failure, HistoryEntry, HistoryEvent, Job, JobState, Lock, Popped, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::details::{JobDetailsView, ProgressView};
use crate::number::{Number, texts};
use crate::payload;

/// A job, with its history.
#[derive(Debug, Serialize, JsonSchema)]
pub struct JobView {
    jid: String,
    klass: String,
    queue: Option<String>,
    state: &'static str,
    stalled: bool,
    priority: Number,
    retries: u32,
    remaining: i64,
    #[schemars(with = "serde_json::Value")]
    payload: Box<RawValue>,
    tags: Vec<String>,
    tracked: bool,
    due: Option<Number>,
    lock: Option<LockView>,
    progress: Option<ProgressView>,
    completed: Option<Number>,
    failure: Option<FailureView>,
    dependencies: Vec<String>,
    dependents: Vec<String>,
    spawned_from: Option<String>,
    #[serde(rename = "particulars")]
    details: Option<JobDetailsView>,
    history: Vec<HistoryView>,
}

impl JobView {
    /// Of a job as it is now; a running job whose lock has expired by `now` is stalled.
    pub fn new(job: &Job, now: Timestamp) -> JobView {
        let (mut due, mut lock, mut completed) = (None, None, None);
        match &job.state {
            JobState::Scheduled { due: at } => due = Some(*at),
            JobState::Depends { due: at, .. } => due = *at,
            JobState::Running { lock: held } => lock = Some(LockView::new(held)),
            JobState::Complete { at } => completed = Some(*at),
            JobState::Waiting | JobState::Failed { .. } => {}
        }
        JobView {
            jid: job.jid.to_string(),
            klass: job.klass.to_string(),
            queue: job.queue.as_ref().map(ToString::to_string),
            state: job.state.name().as_str(),
            stalled: is_stalled(job, now),
            priority: Number(job.priority.get()),
            retries: job.retries,
            remaining: job.remaining,
            payload: payload::to_json(&job.payload),
            tags: texts(&job.tags),
            tracked: job.tracked,
            due: due.map(Number::from),
            lock,
            progress: job.details.as_deref().and_then(|details| details.progress).map(ProgressView::new),
            completed: completed.map(Number::from),
            failure: job.failure().map(FailureView::new),
            dependencies: texts(job.dependencies()),
            dependents: texts(&job.dependents),
            spawned_from: job.spawned_from.as_ref().map(ToString::to_string),
            details: job.details.as_deref().map(JobDetailsView::new),
            history: job.story().iter().map(HistoryView::new).collect(),
        }
    }
}

/// Whether the lock of a running job has expired.
pub fn is_stalled(job: &Job, now: Timestamp) -> bool {
    matches!(&job.state, JobState::Running { lock } if lock.expires <= now)
}

#[derive(Debug, Serialize, JsonSchema)]
struct LockView {
    worker: String,
    token: String,
    expires: Number,
}

impl LockView {
    fn new(lock: &Lock) -> LockView {
        LockView {
            worker: lock.worker.to_string(),
            token: lock.token.to_string(),
            expires: lock.expires.into(),
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
struct FailureView {
    group: String,
    message: String,
    when: Number,
    worker: Option<String>,
}

impl FailureView {
    fn new(failure: &Failure) -> FailureView {
        FailureView {
            group: failure.group.to_string(),
            message: failure.message.clone(),
            when: failure.when.into(),
            worker: failure.worker.as_ref().map(ToString::to_string),
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
struct HistoryView {
    when: Number,
    #[serde(flatten)]
    event: HistoryEventView,
}

/// A history entry, with the keys that its kind has.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "what", rename_all = "kebab-case")]
enum HistoryEventView {
    Put {
        queue: String,
    },
    Popped {
        worker: String,
    },
    Done,
    Failed {
        worker: Option<String>,
        group: String,
    },
    TimedOut,
    HandedBack {
        worker: String,
    },
    Crashed {
        worker: String,
    },
    Log {
        message: String,
        data: Option<serde_json::Value>,
    },
    AttemptEnded {
        reason: &'static str,
        worker: Option<String>,
        group: Option<String>,
        message: Option<String>,
    },
    Other,
}

impl HistoryView {
    fn new(entry: &HistoryEntry) -> HistoryView {
        let event = match &entry.what {
            HistoryEvent::Put { queue } => HistoryEventView::Put { queue: queue.to_string() },
            HistoryEvent::Popped { worker } => HistoryEventView::Popped { worker: worker.to_string() },
            HistoryEvent::Done => HistoryEventView::Done,
            HistoryEvent::Failed { worker, group } => HistoryEventView::Failed {
                worker: worker.as_ref().map(ToString::to_string),
                group: group.to_string(),
            },
            HistoryEvent::TimedOut => HistoryEventView::TimedOut,
            HistoryEvent::Released { worker } => HistoryEventView::HandedBack { worker: worker.to_string() },
            HistoryEvent::Crashed { worker } => HistoryEventView::Crashed { worker: worker.to_string() },
            HistoryEvent::Log { message, data } => HistoryEventView::Log {
                message: message.clone(),
                data: data.as_ref().map(|data| {
                    serde_json::from_str(data).unwrap_or_else(|_| serde_json::Value::from(data.as_str()))
                }),
            },
            HistoryEvent::AttemptEnded { reason, worker, group, message } => HistoryEventView::AttemptEnded {
                reason: reason.as_str(),
                worker: worker.as_ref().map(ToString::to_string),
                group: group.as_ref().map(ToString::to_string),
                message: message.clone(),
            },
            _ => HistoryEventView::Other,
        };
        HistoryView { when: entry.when.into(), event }
    }
}

/// A popped job, with its lock.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PoppedView {
    jid: String,
    queue: String,
    klass: String,
    #[schemars(with = "serde_json::Value")]
    payload: Box<RawValue>,
    priority: Number,
    retries: u32,
    remaining: i64,
    worker: String,
    token: String,
    expires: Number,
    deadline: Option<Number>,
}

impl PoppedView {
    /// Of a popped job.
    pub fn new(job: &Popped) -> PoppedView {
        PoppedView {
            jid: job.jid.to_string(),
            queue: job.queue.to_string(),
            klass: job.klass.to_string(),
            payload: payload::to_json(&job.payload),
            priority: Number(job.priority.get()),
            retries: job.retries,
            remaining: job.remaining,
            worker: job.lock.worker.to_string(),
            token: job.lock.token.to_string(),
            expires: job.lock.expires.into(),
            deadline: job.details.as_ref().and_then(|about| about.deadline).map(Number::from),
        }
    }
}
