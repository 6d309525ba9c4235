//! Statistics per queue and day (section 8).

use geartrain_core::{QueueName, Stats, StatsReply, Summary, Timestamp};

use super::Model;

/// Seconds 0 to 59, minutes 1 to 59, hours 1 to 23, days 1 to 6.
const BUCKETS: usize = 60 + 59 + 23 + 6;

/// One queue's figures of one day.
#[derive(Debug, Clone, Default)]
pub(super) struct Day {
    pub(super) wait: Measured,
    pub(super) run: Measured,
    pub(super) retries: i64,
    pub(super) failed: i64,
    pub(super) failures: i64,
}

#[derive(Debug, Clone)]
pub(super) struct Measured {
    total: u64,
    mean: f64,
    vk: f64,
    histogram: Vec<u64>,
}

impl Default for Measured {
    fn default() -> Measured {
        Measured { total: 0, mean: 0.0, vk: 0.0, histogram: vec![0; BUCKETS] }
    }
}

impl Measured {
    fn add(&mut self, value: f64) {
        self.total += 1;
        if self.total == 1 {
            (self.mean, self.vk) = (value, 0.0);
        } else {
            // Section 8, and decision 5 wherever a number could leave the finite ones.
            let off = finite(value - self.mean);
            let mean = finite(self.mean + off / self.total as f64);
            self.vk = finite(self.vk + finite((value - mean) * off));
            self.mean = mean;
        }
        if let Some(bucket) = bucket(value.floor()) {
            self.histogram[bucket] += 1;
        }
    }

    pub(super) fn summary(&self) -> Summary {
        let std = if self.total > 1 { (self.vk / (self.total - 1) as f64).sqrt() } else { 0.0 };
        Summary { count: self.total, mean: self.mean, std, histogram: self.histogram.clone() }
    }
}

/// Where in the histogram a whole number of seconds belongs; less than none or more than a week is not shown.
fn bucket(seconds: f64) -> Option<usize> {
    let bucket = if seconds < 0.0 {
        return None;
    } else if seconds < 60.0 {
        seconds
    } else if seconds < 3600.0 {
        60.0 + (seconds / 60.0).floor() - 1.0
    } else if seconds < 86400.0 {
        60.0 + 59.0 + (seconds / 3600.0).floor() - 1.0
    } else {
        60.0 + 59.0 + 23.0 + (seconds / 86400.0).floor() - 1.0
    };
    Some(bucket as usize).filter(|bucket| *bucket < BUCKETS)
}

impl Model {
    /// The figures of a queue on the day of a moment. The first of a day make old ones go (decision 14).
    pub(super) fn day(&mut self, queue: &QueueName, moment: Timestamp) -> &mut Day {
        let day = moment.day();
        if !self.figures.contains_key(&(queue.clone(), day)) {
            // Decision 14: besides the new day, the newest of the others.
            let kept =
                |number: Option<f64>, default: f64| number.unwrap_or(default).max(0.0).floor() as usize;
            let (days, histograms) =
                (kept(self.number("stats-history"), 30.0), kept(self.number("histogram-history"), 7.0));
            let others: Vec<Timestamp> =
                self.figures.keys().filter(|(other, _)| other == queue).map(|(_, day)| *day).rev().collect();
            for (newer, other) in others.into_iter().enumerate() {
                let key = (queue.clone(), other);
                if newer >= days {
                    self.figures.remove(&key);
                } else if newer >= histograms
                    && let Some(figures) = self.figures.get_mut(&key)
                {
                    figures.wait.histogram.fill(0);
                    figures.run.histogram.fill(0);
                }
            }
        }
        self.figures.entry((queue.clone(), day)).or_default()
    }

    pub(super) fn measure_wait(&mut self, queue: &QueueName, now: Timestamp, since: Timestamp) {
        self.day(queue, now).wait.add((now - since).get());
    }

    pub(super) fn measure_run(&mut self, queue: &QueueName, now: Timestamp, since: Timestamp) {
        self.day(queue, now).run.add((now - since).get());
    }

    pub(super) fn stats(&self, stats: &Stats) -> StatsReply {
        let day = self.figures.get(&(stats.queue.clone(), stats.date.day())).cloned().unwrap_or_default();
        StatsReply {
            wait: day.wait.summary(),
            run: day.run.summary(),
            retries: day.retries,
            failed: day.failed,
            failures: day.failures,
        }
    }
}

fn finite(number: f64) -> f64 {
    if number == f64::INFINITY {
        f64::MAX
    } else if number == f64::NEG_INFINITY {
        f64::MIN
    } else {
        number
    }
}
