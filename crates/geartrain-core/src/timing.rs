//! Timings: how long something takes, as a histogram that threads add to without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets: from 1 µs on, each ends √2 times as late as the one before, up to 67 s; the last has no end.
const BUCKETS: usize = 54;

/// A histogram of durations.
#[derive(Debug)]
pub struct Timing {
    buckets: [AtomicU64; BUCKETS],
    nanoseconds: AtomicU64,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing { buckets: [const { AtomicU64::new(0) }; BUCKETS], nanoseconds: AtomicU64::new(0) }
    }
}

impl Timing {
    /// Adds a duration.
    pub fn record(&self, took: Duration) {
        let microseconds = took.as_secs_f64() * 1e6;
        // The cast saturates: a duration of 0 is in the first bucket.
        let bucket = (2.0 * microseconds.log2()).ceil() as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// What was added so far.
    pub fn read(&self) -> TimingCounts {
        TimingCounts {
            buckets: self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed)),
            seconds: self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9,
        }
    }
}

/// What a [`Timing`] counted up to some time.
#[derive(Debug, Clone, PartialEq)]
pub struct TimingCounts {
    buckets: [u64; BUCKETS],
    seconds: f64,
}

impl TimingCounts {
    /// How many durations were added.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Their sum in seconds.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// What was added since an earlier reading.
    pub fn since(&self, earlier: &TimingCounts) -> TimingCounts {
        let mut buckets = self.buckets;
        for (bucket, before) in buckets.iter_mut().zip(earlier.buckets) {
            *bucket = bucket.saturating_sub(before);
        }
        TimingCounts { buckets, seconds: (self.seconds - earlier.seconds).max(0.0) }
    }

    /// The duration, in seconds, that a share of all durations does not exceed, to within a bucket.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let count = self.count();
        let rank = (share * count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|bucket| {
            seen += bucket;
            seen >= rank
        })?;
        Some(bucket_end(bucket))
    }

    /// A histogram with fewer buckets: their ends in seconds, each four times the one before, and how many
    /// durations end up to there.
    pub fn cumulative(&self) -> Vec<(f64, u64)> {
        let upto = |bucket: usize| self.buckets[..=bucket].iter().sum();
        (0..BUCKETS - 1).step_by(4).map(|bucket| (bucket_end(bucket), upto(bucket))).collect()
    }
}

/// The longest duration of a bucket, in seconds.
fn bucket_end(bucket: usize) -> f64 {
    1e-6 * 2f64.powf(bucket as f64 / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_durations_to_within_a_bucket() {
        let timing = Timing::default();
        assert_eq!(timing.read().quantile(0.5), None);
        for milliseconds in 1..=100 {
            timing.record(Duration::from_millis(milliseconds));
        }
        let counts = timing.read();
        assert_eq!(counts.count(), 100);
        assert!((counts.seconds() - 5.05).abs() < 1e-9);
        for (share, seconds) in [(0.5, 0.050), (0.99, 0.099), (1.0, 0.100)] {
            let found = counts.quantile(share).unwrap();
            assert!((seconds..seconds * 1.42).contains(&found), "{share}: {found}");
        }
    }

    #[test]
    fn every_duration_has_a_bucket() {
        let timing = Timing::default();
        for took in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(1), Duration::MAX] {
            timing.record(took);
        }
        let counts = timing.read();
        assert_eq!(counts.count(), 4);
        assert_eq!(counts.cumulative()[0], (1e-6, 3));
        assert_eq!(counts.cumulative().last().unwrap().1, 3, "the longest is in the bucket without an end");
    }

    #[test]
    fn a_difference_counts_what_was_added_since() {
        let timing = Timing::default();
        timing.record(Duration::from_secs(1));
        let earlier = timing.read();
        timing.record(Duration::from_millis(1));
        let since = timing.read().since(&earlier);
        assert_eq!(since.count(), 1);
        assert!(since.quantile(1.0).unwrap() < 0.002, "{since:?}");
    }
}
