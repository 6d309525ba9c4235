//! JSON output. docs/cli.md documents these shapes, and scripts rely on them.
//!
//! Every key is always present, `null` if it has no value. Times are seconds since the epoch, durations are
//! seconds.

use geartrain::{
    Every, Failure, HistoryEntry, HistoryEvent, Job, JobState, Lock, Popped, QueueCounts, QueueFigures,
    Recurring, Seconds, StatsReply, Summary, Timestamp,
};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::job_details::{JobDetailsView, ProgressView};
use crate::{payload, timestamp};

/// A number, written without a decimal point if it is whole.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Number(pub(crate) f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Up to 2^53 a double is exactly the integer that it looks like.
        if self.0.fract() == 0.0 && self.0.abs() <= 9_007_199_254_740_992.0 {
            serializer.serialize_i64(self.0 as i64)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

impl From<Timestamp> for Number {
    fn from(time: Timestamp) -> Number {
        Number(time.get())
    }
}

impl From<Seconds> for Number {
    fn from(span: Seconds) -> Number {
        Number(span.get())
    }
}

pub(crate) fn texts<T: ToString>(names: &[T]) -> Vec<String> {
    names.iter().map(T::to_string).collect()
}

#[derive(Debug, Serialize)]
pub(crate) struct JobView {
    jid: String,
    klass: String,
    queue: Option<String>,
    state: &'static str,
    stalled: bool,
    priority: Number,
    retries: u32,
    remaining: i64,
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
    pub(crate) fn new(job: &Job, now: Timestamp) -> JobView {
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
pub(crate) fn is_stalled(job: &Job, now: Timestamp) -> bool {
    matches!(&job.state, JobState::Running { lock } if lock.expires <= now)
}

#[derive(Debug, Serialize)]
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

#[derive(Debug, Serialize)]
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

#[derive(Debug, Serialize)]
struct HistoryView {
    when: Number,
    #[serde(flatten)]
    event: HistoryEventView,
}

/// A history entry, with the keys that its kind has.
#[derive(Debug, Serialize)]
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
#[derive(Debug, Serialize)]
pub(crate) struct PoppedView {
    jid: String,
    queue: String,
    klass: String,
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
    pub(crate) fn new(job: &Popped) -> PoppedView {
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

#[derive(Debug, Serialize)]
pub(crate) struct QueueView {
    name: String,
    waiting: u64,
    running: u64,
    stalled: u64,
    scheduled: u64,
    depends: u64,
    recurring: u64,
    paused: bool,
    failed: Option<u64>,
    failed_or_more: bool,
    oldest: Option<Number>,
    per_minute: Option<f64>,
}

impl QueueView {
    pub(crate) fn new(counts: &QueueCounts, figures: Option<&QueueFigures>) -> QueueView {
        QueueView {
            failed: figures.map(|figures| figures.failed),
            failed_or_more: figures.is_some_and(|figures| figures.failed_or_more),
            oldest: figures.and_then(|figures| figures.oldest).map(Number::from),
            per_minute: figures.and_then(|figures| figures.rate),
            name: counts.name.to_string(),
            waiting: counts.waiting,
            running: counts.running,
            stalled: counts.stalled,
            scheduled: counts.scheduled,
            depends: counts.depends,
            recurring: counts.recurring,
            paused: counts.paused,
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct StatsView {
    queue: String,
    day: String,
    wait: SummaryView,
    run: SummaryView,
    retries: i64,
    failed: i64,
    failures: i64,
}

impl StatsView {
    pub(crate) fn new(queue: &str, day: Timestamp, stats: &StatsReply) -> StatsView {
        StatsView {
            queue: queue.to_owned(),
            day: timestamp::format_day(day),
            wait: SummaryView::new(&stats.wait),
            run: SummaryView::new(&stats.run),
            retries: stats.retries,
            failed: stats.failed,
            failures: stats.failures,
        }
    }
}

#[derive(Debug, Serialize)]
struct SummaryView {
    count: u64,
    mean: Number,
    std: Number,
    histogram: Vec<u64>,
}

impl SummaryView {
    fn new(summary: &Summary) -> SummaryView {
        SummaryView {
            count: summary.count,
            mean: Number(summary.mean),
            std: Number(summary.std),
            histogram: summary.histogram.clone(),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct RecurringView {
    jid: String,
    queue: String,
    klass: String,
    every: Option<Number>,
    next: Number,
    count: u64,
    backlog: u32,
    priority: Number,
    retries: u32,
    tags: Vec<String>,
    payload: Box<RawValue>,
}

impl RecurringView {
    pub(crate) fn new(job: &Recurring) -> RecurringView {
        RecurringView {
            jid: job.jid.to_string(),
            queue: job.queue.to_string(),
            klass: job.klass.to_string(),
            every: interval(&job.every).map(Number),
            next: job.next.into(),
            count: job.count,
            backlog: job.backlog,
            priority: Number(job.priority.get()),
            retries: job.retries,
            tags: texts(&job.tags),
            payload: payload::to_json(&job.payload),
        }
    }
}

/// The seconds between two jobs, if they are constant.
pub(crate) fn interval(every: &Every) -> Option<f64> {
    match every {
        Every::Interval(seconds) => Some(seconds.get()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_no_decimal_point() {
        for (number, text) in [(5.0, "5"), (-2.0, "-2"), (2.7, "2.7"), (0.0, "0"), (1e300, "1e+300")] {
            assert_eq!(serde_json::to_string(&Number(number)).unwrap(), text);
        }
    }
}
