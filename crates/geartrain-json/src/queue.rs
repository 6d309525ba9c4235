//! Queues, their statistics and limits as JSON.

use geartrain_core::{
    Priority, QueueCounts, QueueFigures, QueueLimits, QueueName, Rate, StatsReply, Summary, Timestamp,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::number::Number;
use crate::time::format_day;

/// A queue: its jobs by state, and its figures.
#[derive(Debug, Serialize, JsonSchema)]
pub struct QueueView {
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
    /// Of a queue's counts, and of its figures if the backend has them.
    pub fn new(counts: &QueueCounts, figures: Option<&QueueFigures>) -> QueueView {
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

/// The statistics of a queue for one day.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StatsView {
    queue: String,
    day: String,
    wait: SummaryView,
    run: SummaryView,
    retries: i64,
    failed: i64,
    failures: i64,
}

impl StatsView {
    /// Of a reply.
    pub fn new(queue: &str, day: Timestamp, stats: &StatsReply) -> StatsView {
        StatsView {
            queue: queue.to_owned(),
            day: format_day(day),
            wait: SummaryView::new(&stats.wait),
            run: SummaryView::new(&stats.run),
            retries: stats.retries,
            failed: stats.failed,
            failures: stats.failures,
        }
    }
}

/// A distribution of durations, in seconds: seconds 0 to 59, minutes 1 to 59, hours 1 to 23, days 1 to 6.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SummaryView {
    count: u64,
    mean: Number,
    std: Number,
    histogram: Vec<u64>,
}

impl SummaryView {
    /// Of one of a reply.
    pub fn new(summary: &Summary) -> SummaryView {
        SummaryView {
            count: summary.count,
            mean: Number(summary.mean),
            std: Number(summary.std),
            histogram: summary.histogram.clone(),
        }
    }
}

/// The limits of a queue; null where there is none.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LimitsView {
    queue: String,
    /// The most unfinished jobs.
    max: Option<u64>,
    by_priority: Vec<LevelView>,
    /// How often jobs may start.
    rate: Option<RateView>,
    /// How many jobs may run at once.
    max_concurrency: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LevelView {
    priority: Number,
    max: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RateView {
    count: u32,
    /// Seconds.
    per: Number,
    burst: u32,
}

impl LimitsView {
    /// Of a reply.
    pub fn new(queue: &QueueName, limits: &QueueLimits, max_concurrency: Option<u64>) -> LimitsView {
        let level =
            |(priority, max): &(Priority, u64)| LevelView { priority: Number(priority.get()), max: *max };
        let rate = |rate: Rate| RateView { count: rate.count(), per: rate.per().into(), burst: rate.burst() };
        LimitsView {
            queue: queue.to_string(),
            max: limits.jobs_max,
            by_priority: limits.by_priority.iter().map(level).collect(),
            rate: limits.rate.map(rate),
            max_concurrency,
        }
    }
}
