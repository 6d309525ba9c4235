//! Why a job, or the jobs of a queue, are not running, as JSON.

use geartrain_core::{Klass, Reason, WhyQueueReply, WhyReply};
use schemars::JsonSchema;
use serde::Serialize;

use crate::number::{Number, texts};
use crate::queue::QueueView;

/// Why a job is not running.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WhyView {
    jid: String,
    state: &'static str,
    queue: Option<String>,
    stalled: bool,
    reasons: Vec<ReasonView>,
}

impl WhyView {
    /// Of a reply.
    pub fn new(reply: &WhyReply) -> WhyView {
        WhyView {
            jid: reply.jid.to_string(),
            state: reply.state.as_str(),
            queue: reply.queue.as_ref().map(ToString::to_string),
            stalled: is_stalled(reply),
            reasons: reply.reasons.iter().map(ReasonView::new).collect(),
        }
    }
}

/// A reason, with the keys that its kind has.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum ReasonView {
    Running { worker: String, until: Number, warned: bool },
    Stalled { worker: String, since: Number, remaining: i64, warned: bool },
    Complete { at: Number },
    Failed { group: String, message: String },
    SetAside { group: String, crashes: u32, evidence: Option<String> },
    DependsOn { jid: String, state: &'static str, count: u64, failed: Option<FailedView> },
    Scheduled { at: Number },
    Expired { at: Number },
    Paused { queue: String },
    Concurrency { max: u64, running: u64, held: Vec<HeldView> },
    RateLimit { until: Number },
    NoWorker { klass: String, asked: Option<Number>, others: Vec<String>, workers: u64 },
    Behind { jobs: u64 },
    Next,
    Other { text: String },
}

#[derive(Debug, Serialize, JsonSchema)]
struct FailedView {
    jid: String,
    group: String,
    message: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct HeldView {
    jid: String,
    worker: String,
}

impl ReasonView {
    fn new(reason: &Reason) -> ReasonView {
        match reason {
            Reason::Running { worker, until, warned } => {
                ReasonView::Running { worker: worker.to_string(), until: (*until).into(), warned: *warned }
            }
            Reason::Stalled { worker, since, remaining, warned } => ReasonView::Stalled {
                worker: worker.to_string(),
                since: (*since).into(),
                remaining: *remaining,
                warned: *warned,
            },
            Reason::Complete { at } => ReasonView::Complete { at: (*at).into() },
            Reason::Failed { group, message } => {
                ReasonView::Failed { group: group.to_string(), message: message.clone() }
            }
            Reason::SetAside { group, crashes, evidence } => ReasonView::SetAside {
                group: group.to_string(),
                crashes: *crashes,
                evidence: evidence.clone(),
            },
            Reason::DependsOn { jid, state, count, failed } => ReasonView::DependsOn {
                jid: jid.to_string(),
                state: state.as_str(),
                count: *count,
                failed: failed.as_ref().map(|failed| FailedView {
                    jid: failed.jid.to_string(),
                    group: failed.group.to_string(),
                    message: failed.message.clone(),
                }),
            },
            Reason::Scheduled { at } => ReasonView::Scheduled { at: (*at).into() },
            Reason::Expired { at } => ReasonView::Expired { at: (*at).into() },
            Reason::Paused { queue } => ReasonView::Paused { queue: queue.to_string() },
            Reason::Concurrency { max, held, running } => ReasonView::Concurrency {
                max: *max,
                running: *running.max(max),
                held: held
                    .iter()
                    .map(|(jid, worker)| HeldView { jid: jid.to_string(), worker: worker.to_string() })
                    .collect(),
            },
            Reason::RateLimit { until } => ReasonView::RateLimit { until: (*until).into() },
            Reason::NoWorker { klass, asked, others, workers } => ReasonView::NoWorker {
                klass: klass.to_string(),
                asked: asked.map(Number::from),
                others: texts(others),
                workers: *workers,
            },
            Reason::Behind { jobs } => ReasonView::Behind { jobs: *jobs },
            Reason::Next => ReasonView::Next,
            other => ReasonView::Other { text: other.to_string() },
        }
    }
}

/// Whether the lock of the job has expired.
pub fn is_stalled(reply: &WhyReply) -> bool {
    reply.reasons.iter().any(|reason| matches!(reason, Reason::Stalled { .. }))
}

/// Why the jobs of a queue are not running.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WhyQueueView {
    #[serde(flatten)]
    queue: QueueView,
    next_due: Option<Number>,
    concurrency_max: Option<u64>,
    rate_limited_until: Option<Number>,
    asked: Option<Number>,
    workers: u64,
    waiting_examined: u64,
    unasked: Vec<UnaskedView>,
    depends_examined: u64,
    behind_failed: u64,
    failed_dependency: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct UnaskedView {
    klass: String,
    jobs: u64,
}

impl WhyQueueView {
    /// Of a reply.
    pub fn new(reply: &WhyQueueReply) -> WhyQueueView {
        let unasked = |(klass, jobs): &(Klass, u64)| UnaskedView { klass: klass.to_string(), jobs: *jobs };
        WhyQueueView {
            queue: QueueView::new(&reply.counts, None),
            next_due: reply.next_due.map(Number::from),
            concurrency_max: reply.concurrency_max,
            rate_limited_until: reply.rate_limited_until.map(Number::from),
            asked: reply.asked.map(Number::from),
            workers: reply.workers,
            waiting_examined: reply.waiting_examined,
            unasked: reply.unasked.iter().map(unasked).collect(),
            depends_examined: reply.depends_examined,
            behind_failed: reply.behind_failed,
            failed_dependency: reply.failed_dependency.as_ref().map(ToString::to_string),
        }
    }
}
