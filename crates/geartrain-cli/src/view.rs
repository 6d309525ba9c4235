//! What `--json` prints. These shapes are documented in docs/cli.md, and scripts rely on them.
//!
//! Every key is always there, with `null` where there is nothing to say. Times are seconds since the epoch, spans are seconds.

use geartrain::{
    Every, Failure, HistoryEntry, HistoryEvent, Job, JobState, Lock, Popped, QueueCounts, Recurring, Seconds,
    StatsReply, Summary, Timestamp,
};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::particulars::ParticularsView;
use crate::{moment, payload};

/// A number that is written without a point if it is whole.
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
    fn from(moment: Timestamp) -> Number {
        Number(moment.get())
    }
}

impl From<Seconds> for Number {
    fn from(span: Seconds) -> Number {
        Number(span.get())
    }
}

/// The texts of some names.
pub(crate) fn texts<T: ToString>(names: &[T]) -> Vec<String> {
    names.iter().map(T::to_string).collect()
}

/// A job.
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
    completed: Option<Number>,
    failure: Option<FailureView>,
    dependencies: Vec<String>,
    dependents: Vec<String>,
    spawned_from: Option<String>,
    particulars: Option<ParticularsView>,
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
            completed: completed.map(Number::from),
            failure: job.failure().map(FailureView::new),
            dependencies: texts(job.dependencies()),
            dependents: texts(&job.dependents),
            spawned_from: job.spawned_from.as_ref().map(ToString::to_string),
            particulars: job.details.as_deref().map(ParticularsView::new),
            history: job.history.iter().map(HistoryView::new).collect(),
        }
    }
}

/// Whether a job runs past its lock.
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
    what: WhatView,
}

/// What happened, with what there is to say about it and no other keys.
#[derive(Debug, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
enum WhatView {
    Put { queue: String },
    Popped { worker: String },
    Done,
    Failed { worker: Option<String>, group: String },
    TimedOut,
    HandedBack { worker: String },
    Crashed { worker: String },
    Log { message: String, data: Option<serde_json::Value> },
    Other,
}

impl HistoryView {
    fn new(entry: &HistoryEntry) -> HistoryView {
        let what = match &entry.what {
            HistoryEvent::Put { queue } => WhatView::Put { queue: queue.to_string() },
            HistoryEvent::Popped { worker } => WhatView::Popped { worker: worker.to_string() },
            HistoryEvent::Done => WhatView::Done,
            HistoryEvent::Failed { worker, group } => WhatView::Failed {
                worker: worker.as_ref().map(ToString::to_string),
                group: group.to_string(),
            },
            HistoryEvent::TimedOut => WhatView::TimedOut,
            HistoryEvent::Released { worker } => WhatView::HandedBack { worker: worker.to_string() },
            HistoryEvent::Crashed { worker } => WhatView::Crashed { worker: worker.to_string() },
            HistoryEvent::Log { message, data } => WhatView::Log {
                message: message.clone(),
                data: data.as_ref().map(|data| {
                    serde_json::from_str(data).unwrap_or_else(|_| serde_json::Value::from(data.as_str()))
                }),
            },
            _ => WhatView::Other,
        };
        HistoryView { when: entry.when.into(), what }
    }
}

/// A job as a worker is handed it, with its lock beside the rest.
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

/// How many jobs of a queue stand where.
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
}

impl QueueView {
    pub(crate) fn new(counts: &QueueCounts) -> QueueView {
        QueueView {
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

/// How one queue did on one day.
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
            day: moment::format_day(day),
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

/// A recurring job.
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

/// The seconds between one and the next, if it is always as many.
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
    fn whole_numbers_have_no_point() {
        for (number, text) in [(5.0, "5"), (-2.0, "-2"), (2.7, "2.7"), (0.0, "0"), (1e300, "1e+300")] {
            assert_eq!(serde_json::to_string(&Number(number)).unwrap(), text);
        }
    }
}
