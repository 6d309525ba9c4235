//! Recurring jobs as JSON: those of Qless and periodic ones.

use geartrain_core::schedule::Schedule;
use geartrain_core::{
    Every, Missed, Overlap, Period, Periodic, PeriodicTemplate, Recurring, Seconds, Timestamp, UniqueKey,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::number::{Number, texts};
use crate::payload;

/// The retries of a job unless given, as in the engine.
pub const RETRIES_DEFAULT: u32 = 5;
/// How many of its next runs a recurring job shows.
const NEXT_RUNS: usize = 5;

/// A recurring job of Qless.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RecurringView {
    jid: String,
    queue: String,
    klass: String,
    every: Option<Number>,
    next: Number,
    next_runs: Vec<Number>,
    count: u64,
    backlog: u32,
    priority: Number,
    retries: u32,
    tags: Vec<String>,
    #[schemars(with = "serde_json::Value")]
    payload: Box<RawValue>,
}

impl RecurringView {
    /// Of a recurring job.
    pub fn new(job: &Recurring) -> RecurringView {
        RecurringView {
            jid: job.jid.to_string(),
            queue: job.queue.to_string(),
            klass: job.klass.to_string(),
            every: interval(&job.every).map(Number),
            next: job.next.into(),
            next_runs: next_runs(Some(job.next), |run| match job.every {
                Every::Interval(interval) => Some(run + interval),
                _ => None,
            }),
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
pub fn interval(every: &Every) -> Option<f64> {
    match every {
        Every::Interval(seconds) => Some(seconds.get()),
        _ => None,
    }
}

/// A recurring job beyond Qless: by a cron expression, or with put options.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PeriodicView {
    jid: String,
    queue: String,
    klass: String,
    every: Option<Number>,
    cron: Option<String>,
    text: Option<String>,
    zone: Option<String>,
    next: Option<Number>,
    next_runs: Vec<Number>,
    paused: bool,
    count: u64,
    last: Option<String>,
    error: Option<String>,
    backlog: Option<u32>,
    overlap: &'static str,
    priority: Number,
    retries: u32,
    tags: Vec<String>,
    timeout: Option<Number>,
    keep_result: Option<Number>,
    expires_in: Option<Number>,
    unique: Option<String>,
    #[schemars(with = "serde_json::Value")]
    payload: Box<RawValue>,
}

impl PeriodicView {
    /// Of a periodic job.
    pub fn new(of: &Periodic) -> PeriodicView {
        let PeriodicTemplate { put, every, missed, overlap, expires_in, is_paused, phrase } = &*of.template;
        let (interval, cron) = match every {
            Period::Interval(interval) => (Some(*interval), None),
            Period::Cron(cron) => (None, Some(cron)),
            _ => (None, None),
        };
        let schedule = cron.and_then(|cron| Schedule::parse(cron).ok());
        let runs = next_runs(of.next, |run| match interval {
            Some(interval) => Some(run + interval),
            None => schedule.as_ref()?.next(run),
        });
        let options = put.options.as_deref();
        let number = |seconds: Seconds| Number(seconds.get());
        PeriodicView {
            jid: put.jid.to_string(),
            queue: put.queue.to_string(),
            klass: put.klass.to_string(),
            every: interval.map(number),
            cron: cron.map(|cron| fields_of(cron)),
            text: phrase.as_ref().or(cron).cloned(),
            zone: cron.and_then(|cron| zone_of(cron)),
            next: of.next.map(Number::from),
            next_runs: runs,
            paused: *is_paused,
            count: of.count,
            last: of.last.as_ref().map(ToString::to_string),
            error: of.error.as_ref().map(ToString::to_string),
            backlog: backlog_number(*missed),
            overlap: overlap_text(*overlap),
            priority: Number(put.priority.unwrap_or_default().get()),
            retries: put.retries.unwrap_or(RETRIES_DEFAULT),
            tags: texts(put.tags.as_deref().unwrap_or_default()),
            timeout: options.and_then(|options| options.attempt_max).map(number),
            keep_result: options.and_then(|options| options.result_ttl).map(number),
            expires_in: expires_in.map(number),
            unique: options.and_then(|options| options.unique.as_ref()).map(key_text),
            payload: payload::to_json(&put.payload),
        }
    }
}

/// A run and those that follow it.
fn next_runs(first: Option<Timestamp>, after: impl Fn(Timestamp) -> Option<Timestamp>) -> Vec<Number> {
    std::iter::successors(first, |run| after(*run)).take(NEXT_RUNS).map(Number::from).collect()
}

/// The named zone of a cron expression.
pub fn zone_of(cron: &str) -> Option<String> {
    Schedule::parse(cron).ok()?.zone().name().map(str::to_owned)
}

/// A cron expression in the seven fields, which WorkKit has too.
pub fn fields_of(cron: &str) -> String {
    Schedule::parse(cron).map_or_else(|_| cron.to_owned(), |schedule| schedule.to_string())
}

/// How many missed runs are made up, as Qless has it: 0 for all of them; none if it has no notion of it.
pub fn backlog_number(missed: Missed) -> Option<u32> {
    match missed {
        Missed::All => Some(0),
        Missed::Last(runs) => Some(runs),
        _ => None,
    }
}

/// A unique key as text.
pub fn key_text(key: &UniqueKey) -> String {
    String::from_utf8_lossy(key.as_bytes()).into_owned()
}

/// The name of an overlap policy.
pub fn overlap_text(overlap: Overlap) -> &'static str {
    match overlap {
        Overlap::Skip => "skip",
        Overlap::CancelOld => "cancel-old",
        _ => "allow",
    }
}
