//! History: rates and depths of queues over the last day, from samples of their counters.
//!
//! A task reads the counters of the queues every two seconds, so that history costs a job nothing. It exists in
//! this process only, and begins with it.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use geartrain_core::{
    BackendError, Call, Clock, QueueCounts, QueueName, Queues, Reply as CommandReply, Stats, StatsReply,
    Summary, SystemClock, Timestamp,
};
use geartrain_json::{FieldInfo, FieldKind, Number, Object, OperationError, SummaryView};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;

use crate::handlers::Shared;

/// The time between two samples, in seconds.
const SAMPLED_EVERY: u64 = 2;
/// Reading the counters takes at most one part in so many of the backend's time.
const READ_SHARE: u32 = 100;
/// The longest time between two samples of a slow backend.
const PAUSE_MAX: Duration = Duration::from_secs(120);
/// How many queues' counters are read, and kept until the next sample.
const READ_QUEUES_MAX: usize = 1_000;
/// How many queues have a history of their own: 26 KiB each.
const QUEUES_MAX: usize = 250;

/// The spans that a history can be asked for.
const RESOLUTIONS: [Resolution; 3] = [
    Resolution { span: "10m", step: SAMPLED_EVERY, points: 300 },
    Resolution { span: "1h", step: 10, points: 360 },
    Resolution { span: "24h", step: 300, points: 288 },
];

struct Resolution {
    span: &'static str,
    /// Seconds per point.
    step: u64,
    points: usize,
}

/// The fields of a request.
pub(crate) const FIELDS: &[FieldInfo] = &[
    FieldInfo::new("queue", FieldKind::Name, "Also the history of this queue"),
    FieldInfo::new("all", FieldKind::Flag, "Also the history of each queue"),
    FieldInfo::new(
        "span",
        FieldKind::Choice(&["10m", "1h", "24h"]),
        "10m in steps of 2 s, 1h in steps of 10 s, or 24h in steps of 5 minutes; 10m by default",
    ),
];

/// The history of the queues of a backend.
#[derive(Default)]
pub(crate) struct History {
    samples: Mutex<Samples>,
    is_sampled: AtomicBool,
}

#[derive(Default)]
struct Samples {
    queues: BTreeMap<QueueName, Series>,
    total: Series,
    /// The end of the last sample.
    at: Option<Instant>,
    last: BTreeMap<QueueName, Counters>,
}

/// What a queue's counters were at a sample.
struct Counters {
    counts: QueueCounts,
    /// The statistics of `day`; none where a backend keeps none, or on the first sight of the queue.
    stats: Option<Arc<StatsReply>>,
    day: Timestamp,
}

/// What happened since the last sample.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Change {
    put: u64,
    completed: u64,
    failed: u64,
    retried: u64,
}

/// Jobs that a queue has had since its first sample.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) put: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) retried: u64,
}

#[derive(Default)]
struct Series {
    rings: [Ring; RESOLUTIONS.len()],
    totals: Totals,
}

/// The points of one resolution.
#[derive(Default)]
struct Ring {
    points: VecDeque<Option<Point>>,
    /// The number of the newest point, counted in steps since the epoch.
    newest: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Point {
    /// How much of the step was sampled.
    seconds: f32,
    put: f32,
    completed: f32,
    failed: f32,
    retried: f32,
    waiting: u32,
    running: u32,
}

/// The history of queues: `until` is the end of the last step, which may not be over.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HistoryView {
    /// Seconds per point.
    step: u64,
    /// The end of the last point.
    until: Number,
    queues: BTreeMap<String, SeriesView>,
    total: SeriesView,
    /// How long jobs of all queues have waited today; null where no statistics are kept.
    wait: Option<SummaryView>,
    /// How long they have run.
    run: Option<SummaryView>,
}

/// Rates per second, and depths at the end of each step; null where nothing was sampled.
#[derive(Debug, Serialize, JsonSchema)]
struct SeriesView {
    /// Jobs that came into the queue, less those that were cancelled.
    put: Vec<Option<Number>>,
    completed: Vec<Option<Number>>,
    failed: Vec<Option<Number>>,
    /// Attempts that ended otherwise: retried, released, lost.
    retried: Vec<Option<Number>>,
    waiting: Vec<Option<u32>>,
    /// With those whose lock has expired.
    running: Vec<Option<u32>>,
}

impl History {
    /// Starts to sample, unless that was done before. The task ends with `shared`.
    pub(crate) fn ensure_sampled(shared: &Arc<Shared>) {
        if !shared.history.is_sampled.swap(true, Ordering::Relaxed) {
            tokio::spawn(sample(Arc::downgrade(shared)));
        }
    }

    /// The document of a request.
    pub(crate) fn view(&self, fields: &Object<'_>, now: Timestamp) -> Result<HistoryView, OperationError> {
        let queue: Option<QueueName> = fields.name("queue")?;
        let (all, span) = (fields.flag("all")?, fields.text("span")?);
        let span = span.as_deref().unwrap_or(RESOLUTIONS[0].span);
        let Some(index) = RESOLUTIONS.iter().position(|resolution| resolution.span == span) else {
            let why = format!("`span` must be 10m, 1h or 24h, not {:?}", geartrain_json::excerpt(span));
            return Err(OperationError::bad_argument(why));
        };
        let samples = self.samples.lock();
        let step = RESOLUTIONS[index].step;
        let newest = samples.total.rings[index].newest.max(step_of(now, step));
        let chosen = samples.queues.iter().filter(|(name, _)| all || queue.as_ref() == Some(name));
        Ok(HistoryView {
            step,
            until: Number(((newest + 1) * step) as f64),
            queues: chosen.map(|(name, series)| (name.to_string(), series.view(index, newest))).collect(),
            total: samples.total.view(index, newest),
            wait: samples.summary(now, |stats| &stats.wait),
            run: samples.summary(now, |stats| &stats.run),
        })
    }

    /// The totals of each queue since the first sample, and the statistics of the day.
    pub(crate) fn queues(&self) -> Vec<(QueueName, Totals, Option<Arc<StatsReply>>)> {
        let samples = self.samples.lock();
        let of = |(name, series): (&QueueName, &Series)| {
            let stats = samples.last.get(name).and_then(|counters| counters.stats.clone());
            (name.clone(), series.totals, stats)
        };
        samples.queues.iter().map(of).collect()
    }
}

/// Samples until the router is gone.
async fn sample(shared: Weak<Shared>) {
    let mut pause = Duration::ZERO;
    loop {
        tokio::time::sleep(until_next(SystemClock.now()).max(pause)).await;
        let Some(shared) = shared.upgrade() else { return };
        shared.readings.refresh(&shared.backend).await;
        let begun = Instant::now();
        let sampled = tokio::select! {
            sampled = shared.history.read(&shared) => sampled,
            () = shared.stop.cancelled() => return,
        };
        if let Err(error) = sampled {
            // Requests get the error; the history has a gap.
            tracing::debug!(%error, "the counters of the queues cannot be read");
        }
        pause = (begun.elapsed() * READ_SHARE).min(PAUSE_MAX);
    }
}

/// The time until the middle of the next step, so that a sample that is a little early or late is in its step.
fn until_next(now: Timestamp) -> Duration {
    let step = SAMPLED_EVERY as f64;
    let into = (now.get() - step / 2.0).rem_euclid(step);
    Duration::from_secs_f64(step - into)
}

fn step_of(at: Timestamp, step: u64) -> u64 {
    // The cast saturates.
    (at.get() / step as f64) as u64
}

impl History {
    async fn read(&self, shared: &Shared) -> Result<(), BackendError> {
        let now = shared.backend.now().unwrap_or_else(|| SystemClock.now());
        // In one batch, so that counts and statistics agree. Queues that are new are in the next one.
        let mut calls = vec![Call::from(Queues::default())];
        let mut asked: Vec<(QueueName, Timestamp)> = Vec::new();
        for (queue, counters) in &self.samples.lock().last {
            // What was counted on the old day since the last sample.
            asked.extend((counters.day != now.day()).then(|| (queue.clone(), counters.day)));
            asked.push((queue.clone(), now.day()));
        }
        calls.extend(asked.iter().map(|(queue, date)| Stats { queue: queue.clone(), date: *date }.into()));
        let mut answers = shared.backend.execute(calls).await?.into_iter();
        let Some(Ok(CommandReply::Queues(queues))) = answers.next() else { return Ok(()) };
        let mut days: BTreeMap<QueueName, Vec<StatsReply>> = BTreeMap::new();
        let mut keeps_stats = true;
        for ((queue, _), answer) in asked.into_iter().zip(answers) {
            match answer {
                Ok(CommandReply::Stats(stats)) => days.entry(queue).or_default().push(*stats),
                _ => keeps_stats = false,
            }
        }
        self.samples.lock().add(now, queues, days, keeps_stats);
        Ok(())
    }
}

impl Samples {
    /// The distribution of the day over all queues that are read.
    fn summary(&self, now: Timestamp, of: fn(&StatsReply) -> &Summary) -> Option<SummaryView> {
        let today = self.last.values().filter(|counters| counters.day == now.day());
        let mut sum: Option<Summary> = None;
        for stats in today.filter_map(|counters| counters.stats.as_deref()) {
            sum.get_or_insert_default().add(of(stats));
        }
        sum.as_ref().map(SummaryView::new)
    }

    /// Adds a sample. Of a queue that was read on two days, the statistics are those of both.
    fn add(
        &mut self,
        now: Timestamp,
        queues: Vec<QueueCounts>,
        mut days: BTreeMap<QueueName, Vec<StatsReply>>,
        keeps_stats: bool,
    ) {
        let elapsed = self.at.replace(Instant::now()).map_or(0.0, |last| last.elapsed().as_secs_f64());
        let (mut all, mut waiting, mut running) = (Change::default(), 0, 0);
        let mut last = BTreeMap::new();
        let names: HashSet<&str> = queues.iter().map(|counts| counts.name.as_str()).collect();
        self.queues.retain(|name, _| names.contains(name.as_str()));
        for counts in queues {
            let name = counts.name.clone();
            let mut stats = days.remove(&name).unwrap_or_default();
            let before = self.last.remove(&name);
            let change = before.as_ref().and_then(|before| change(before, &counts, &stats));
            waiting += counts.waiting;
            running += counts.running + counts.stalled;
            all.add(change.unwrap_or_default());
            if self.queues.len() < QUEUES_MAX || self.queues.contains_key(&name) {
                let series = self.queues.entry(name.clone()).or_default();
                series.add(now, elapsed, change, counts.waiting, counts.running + counts.stalled);
            }
            let stats = stats.pop().map(Arc::new);
            // Of too many queues those with a history.
            if last.len() < READ_QUEUES_MAX - QUEUES_MAX || self.queues.contains_key(&name) {
                last.insert(name, Counters { counts, stats, day: now.day() });
            }
        }
        self.total.add(now, elapsed, keeps_stats.then_some(all), waiting, running);
        self.last = last;
    }
}

/// What happened to a queue between two samples; none if its statistics are not known at both.
fn change(before: &Counters, counts: &QueueCounts, stats: &[StatsReply]) -> Option<Change> {
    let earlier = before.stats.as_deref()?;
    let mut sums = [0; 3];
    for (index, of_day) in stats.iter().enumerate() {
        let was = if index == 0 { counters(earlier) } else { [0; 3] };
        for ((sum, now), was) in sums.iter_mut().zip(counters(of_day)).zip(was) {
            // Statistics that were removed meanwhile begin at 0.
            *sum += now.checked_sub(was).unwrap_or(now);
        }
    }
    if stats.is_empty() {
        return None;
    }
    let [popped, completed, failed] = sums;
    let running = |of: &QueueCounts| of.running + of.stalled;
    let unfinished = |of: &QueueCounts| of.waiting + running(of) + of.scheduled + of.depends;
    // What came in is what is there now, and what has left. What was cancelled is not counted anywhere.
    let put = (unfinished(counts) + completed + failed).saturating_sub(unfinished(&before.counts));
    // Of the attempts, those that neither run nor completed or failed.
    let retried = (popped + running(&before.counts)).saturating_sub(completed + failed + running(counts));
    Some(Change { put, completed, failed, retried })
}

/// Pops, completions and failures.
fn counters(of: &StatsReply) -> [u64; 3] {
    [of.wait.count, of.run.count, u64::try_from(of.failures).unwrap_or(0)]
}

impl Change {
    fn add(&mut self, other: Change) {
        self.put += other.put;
        self.completed += other.completed;
        self.failed += other.failed;
        self.retried += other.retried;
    }
}

impl Series {
    fn add(&mut self, now: Timestamp, elapsed: f64, change: Option<Change>, waiting: u64, running: u64) {
        if let Some(Change { put, completed, failed, retried }) = change {
            self.totals.put += put;
            self.totals.completed += completed;
            self.totals.failed += failed;
            self.totals.retried += retried;
        }
        for (ring, resolution) in self.rings.iter_mut().zip(&RESOLUTIONS) {
            let point = ring.point(step_of(now, resolution.step), resolution.points);
            point.waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
            point.running = u32::try_from(running).unwrap_or(u32::MAX);
            let Some(change) = change.filter(|_| elapsed > 0.0) else { continue };
            point.seconds += elapsed as f32;
            point.put += change.put as f32;
            point.completed += change.completed as f32;
            point.failed += change.failed as f32;
            point.retried += change.retried as f32;
        }
    }

    /// The points up to `newest`.
    fn view(&self, index: usize, newest: u64) -> SeriesView {
        let (ring, length) = (&self.rings[index], RESOLUTIONS[index].points as u64);
        let points: Vec<Option<Point>> = (0..length)
            .map(|ago| (newest + ago + 1).checked_sub(length).and_then(|at| ring.at(at)))
            .collect();
        let rate = |of: fn(&Point) -> f32| {
            points
                .iter()
                .map(move |point| point.as_ref().and_then(|point| per_second(of(point), point.seconds)))
        };
        let depth = |of: fn(&Point) -> u32| points.iter().map(|point| point.as_ref().map(of)).collect();
        SeriesView {
            put: rate(|point| point.put).collect(),
            completed: rate(|point| point.completed).collect(),
            failed: rate(|point| point.failed).collect(),
            retried: rate(|point| point.retried).collect(),
            waiting: depth(|point| point.waiting),
            running: depth(|point| point.running),
        }
    }
}

/// A rate to three digits behind the point.
fn per_second(count: f32, seconds: f32) -> Option<Number> {
    (seconds > 0.0).then(|| Number((f64::from(count) / f64::from(seconds) * 1e3).round() / 1e3))
}

impl Ring {
    /// The point of a step, with empty ones for the steps that were left out.
    fn point(&mut self, step: u64, points_max: usize) -> &mut Point {
        // Also if the clock was set back, because the points of a step must not be mixed.
        let missing = step
            .checked_sub(self.newest)
            .map_or(points_max, |missing| usize::try_from(missing).unwrap_or(points_max).min(points_max));
        if missing == points_max {
            self.points.clear();
        }
        if self.points.is_empty() {
            self.points.push_back(None);
        } else {
            self.points.extend(std::iter::repeat_n(None, missing));
        }
        let excess = self.points.len().saturating_sub(points_max);
        self.points.drain(..excess);
        self.newest = step;
        let last = self.points.len() - 1;
        self.points[last].get_or_insert_default()
    }

    fn at(&self, step: u64) -> Option<Point> {
        let ago = usize::try_from(self.newest.checked_sub(step)?).ok()?;
        self.points.len().checked_sub(ago + 1).and_then(|index| self.points[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(waiting: u64, running: u64) -> QueueCounts {
        QueueCounts {
            name: QueueName::new("mail").unwrap(),
            waiting,
            running,
            stalled: 0,
            scheduled: 0,
            depends: 0,
            recurring: 0,
            paused: false,
        }
    }

    fn stats(popped: u64, completed: u64, failures: i64) -> StatsReply {
        let summary = |count| Summary { count, mean: 0.0, std: 0.0, histogram: Vec::new() };
        StatsReply { wait: summary(popped), run: summary(completed), retries: 0, failed: failures, failures }
    }

    fn before(counts: QueueCounts, of: StatsReply) -> Counters {
        Counters { counts, stats: Some(Arc::new(of)), day: Timestamp::ZERO }
    }

    #[test]
    fn a_change_is_what_the_counters_imply() {
        // Ten came, eight were popped: three completed, one failed, two run, two went back.
        let earlier = before(counts(5, 0), stats(100, 80, 20));
        let now = [stats(108, 83, 21)];
        let expected = Change { put: 10, completed: 3, failed: 1, retried: 2 };
        assert_eq!(change(&earlier, &counts(9, 2), &now), Some(expected));
        // At midnight, some of that on either day.
        let now = [stats(104, 81, 21), stats(4, 2, 0)];
        assert_eq!(change(&earlier, &counts(9, 2), &now), Some(expected));
        // Statistics that were removed begin at 0.
        let now = [stats(1, 1, 0)];
        assert_eq!(change(&earlier, &counts(4, 0), &now), Some(Change { completed: 1, ..Change::default() }));
        assert_eq!(change(&earlier, &counts(4, 0), &[]), None);
    }

    #[test]
    fn a_ring_has_the_last_steps_and_gaps() {
        let mut ring = Ring::default();
        ring.point(10, 4).waiting = 1;
        ring.point(12, 4).waiting = 3;
        let waiting =
            |ring: &Ring| (9..14).map(|at| ring.at(at).map(|point| point.waiting)).collect::<Vec<_>>();
        assert_eq!(waiting(&ring), [None, Some(1), None, Some(3), None]);
        ring.point(12, 4).waiting = 4;
        ring.point(14, 4);
        assert_eq!(waiting(&ring), [None, None, None, Some(4), None]);
        ring.point(11, 4).waiting = 5;
        assert_eq!(waiting(&ring), [None, None, Some(5), None, None], "the clock was set back");
        ring.point(u64::MAX, 4);
        assert_eq!(ring.points.len(), 1);
    }

    #[test]
    fn of_too_many_queues_the_counters_of_those_with_a_history_are_kept() {
        let named = |number: usize| QueueCounts {
            name: QueueName::new(format!("q{number:05}")).unwrap(),
            ..counts(1, 0)
        };
        let (mut samples, at) = (Samples::default(), |now| Timestamp::new(now).unwrap());
        let late: Vec<QueueCounts> = (9_000..9_000 + QUEUES_MAX).map(named).collect();
        samples.add(at(1.0), late.clone(), BTreeMap::new(), true);
        let many = (0..5_000).map(named).chain(late.clone()).collect();
        samples.add(at(3.0), many, BTreeMap::new(), true);
        assert_eq!((samples.queues.len(), samples.last.len()), (QUEUES_MAX, READ_QUEUES_MAX));
        assert!(late.iter().all(|counts| samples.last.contains_key(&counts.name)));
        samples.add(at(5.0), (0..3).map(named).collect(), BTreeMap::new(), true);
        assert_eq!((samples.queues.len(), samples.last.len()), (3, 3));
    }

    #[test]
    fn a_history_has_rates_per_second_and_depths() {
        let mut samples = Samples::default();
        let at = |seconds: f64| Timestamp::new(seconds).unwrap();
        let of = |stats| BTreeMap::from([(QueueName::new("mail").unwrap(), vec![stats])]);
        samples.add(at(1.0), vec![counts(5, 0)], BTreeMap::new(), true);
        samples.add(at(3.0), vec![counts(5, 0)], of(stats(0, 0, 0)), true);
        samples.add(at(5.0), vec![counts(1, 0)], of(stats(4, 4, 0)), true);
        let history = History { samples: Mutex::new(samples), is_sampled: AtomicBool::new(true) };
        let fields = Object::parse(r#"{"all":true}"#, "").unwrap();
        let view = history.view(&fields, at(5.5)).unwrap();
        assert_eq!((view.step, view.until.0), (2, 6.0));
        let mail = &view.queues["mail"];
        for series in [mail, &view.total] {
            assert_eq!(series.waiting[297..], [Some(5), Some(5), Some(1)]);
            assert!(
                series.completed[298].is_none_or(|rate| rate.0 == 0.0),
                "there is nothing to compare with"
            );
            assert!(series.completed[299].is_some_and(|rate| rate.0 > 0.0));
            assert_eq!(series.put.len(), 300);
        }
        assert_eq!(history.queues()[0].1, Totals { completed: 4, ..Totals::default() });
        for wrong in [r#"{"span":"2h"}"#, r#"{"all":1}"#, r#"{"queue":""}"#] {
            assert!(history.view(&Object::parse(wrong, "").unwrap(), at(5.5)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn samples_lie_in_the_middle_of_a_step() {
        for now in [0.0, 0.9, 1.0, 1.1, 3.5, 1_775_098_800.3] {
            let next = now + until_next(Timestamp::new(now).unwrap()).as_secs_f64();
            assert!(next > now && (next.rem_euclid(2.0) - 1.0).abs() < 1e-6, "{now}: {next}");
        }
    }
}
