//! Statistics of a queue per day: how long jobs waited and ran, and how often they failed.

use crate::engine::codec::{CodecError, Reader, Writer};
use crate::time::DAY;
use crate::{Seconds, StatsReply, Summary, Timestamp};

/// Seconds 0 to 59, minutes 1 to 59, hours 1 to 23, days 1 to 6.
const BUCKETS: usize = 60 + 59 + 23 + 6;

/// One queue's days, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Days {
    days: Vec<Day>,
}

#[derive(Debug, Default)]
pub(crate) struct Day {
    start: Timestamp,
    pub(crate) wait: Spans,
    pub(crate) run: Spans,
    pub(crate) retries: i64,
    pub(crate) failed: i64,
    pub(crate) failures: i64,
}

/// Count, mean and variance of durations (Welford's algorithm), with a histogram.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    count: u64,
    mean: f64,
    /// The sum of squared differences from the mean.
    spread: f64,
    /// Up to the bucket of the longest duration.
    histogram: Vec<u64>,
}

/// How many days are kept besides a new one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keep {
    pub(crate) days: usize,
    pub(crate) histogram_days: usize,
}

impl Days {
    /// The statistics of the day of `now`.
    pub(crate) fn at(&mut self, now: Timestamp, keep: Keep) -> &mut Day {
        // Nearly always it is the last day; computing the day costs a division.
        if let Some(last) = self.days.last()
            && (0.0..DAY).contains(&(now - last.start).get())
        {
            return self.days.last_mut().expect("it was there a line ago");
        }
        let start = now.day();
        let mut position = self.days.partition_point(|day| day.start < start);
        if self.days.get(position).is_none_or(|day| day.start != start) {
            self.make_room(keep);
            position = self.days.partition_point(|day| day.start < start);
            self.days.insert(position, Day { start, ..Day::default() });
        }
        &mut self.days[position]
    }

    /// Drops the oldest days and histograms, by date: a caller with a wrong clock costs one day.
    fn make_room(&mut self, keep: Keep) {
        let dropped = self.days.len().saturating_sub(keep.days);
        self.days.drain(..dropped);
        let emptied = self.days.len().saturating_sub(keep.histogram_days);
        for day in &mut self.days[..emptied] {
            day.wait.histogram = Vec::new();
            day.run.histogram = Vec::new();
        }
    }

    /// When the newest day expires; none if there are no days.
    pub(crate) fn end(&self, keep: Keep) -> Option<Timestamp> {
        let newest = self.days.last()?.start;
        Some(newest + Seconds::saturating((keep.days as f64 + 1.0) * DAY))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.days.is_empty()
    }

    /// Frees spare capacity.
    pub(crate) fn shrink(&mut self) {
        self.days.shrink_to_fit();
    }

    /// Approximate size in memory.
    pub(crate) fn bytes(&self) -> usize {
        let histograms = self.days.iter().flat_map(|day| [&day.wait.histogram, &day.run.histogram]);
        size_of::<Day>() * self.days.capacity()
            + histograms.map(|histogram| size_of::<u64>() * histogram.capacity()).sum::<usize>()
    }

    pub(crate) fn write(&self, to: &mut Writer<'_>) {
        to.number(self.days.len() as u64);
        for day in &self.days {
            to.moment(day.start);
            [day.retries, day.failed, day.failures].into_iter().for_each(|count| {
                to.signed(count);
            });
            day.wait.write(to);
            day.run.write(to);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Days, CodecError> {
        let day = |reader: &mut Reader<'_>| {
            let start = reader.moment("snapshot")?;
            let (retries, failed, failures) =
                (reader.signed("snapshot")?, reader.signed("snapshot")?, reader.signed("snapshot")?);
            let (wait, run) = (Spans::read(reader)?, Spans::read(reader)?);
            Ok(Day { start, wait, run, retries, failed, failures })
        };
        Ok(Days { days: (0..reader.count(1, "snapshot")?).map(|_| day(reader)).collect::<Result<_, _>>()? })
    }

    fn of(&self, date: Timestamp) -> Option<&Day> {
        let start = date.day();
        self.days.binary_search_by_key(&start, |day| day.start).ok().map(|position| &self.days[position])
    }

    pub(crate) fn report(&self, date: Timestamp) -> StatsReply {
        self.of(date).map_or_else(|| Day::default().report(), Day::report)
    }

    /// How many jobs were completed on a day.
    pub(crate) fn completed(&self, date: Timestamp) -> u64 {
        self.of(date).map_or(0, |day| day.run.count)
    }
}

impl Day {
    fn report(&self) -> StatsReply {
        StatsReply {
            wait: self.wait.summary(),
            run: self.run.summary(),
            retries: self.retries,
            failed: self.failed,
            failures: self.failures,
        }
    }
}

impl Spans {
    fn write(&self, to: &mut Writer<'_>) {
        to.number(self.count);
        to.double(self.mean);
        to.double(self.spread);
        to.number(self.histogram.len() as u64);
        self.histogram.iter().for_each(|count| {
            to.number(*count);
        });
    }

    fn read(reader: &mut Reader<'_>) -> Result<Spans, CodecError> {
        let (count, mean, spread) =
            (reader.number("snapshot")?, reader.double("snapshot")?, reader.double("snapshot")?);
        let histogram: Vec<u64> =
            (0..reader.count(1, "snapshot")?).map(|_| reader.number("snapshot")).collect::<Result<_, _>>()?;
        let sound = mean.is_finite() && spread.is_finite() && histogram.len() <= BUCKETS;
        if sound { Ok(Spans { count, mean, spread, histogram }) } else { Err(reader.misfit("figures")) }
    }

    pub(crate) fn add(&mut self, span: Seconds) {
        let span = span.get();
        self.count += 1;
        if self.count == 1 {
            self.mean = span;
        } else {
            let off = finite(span - self.mean);
            self.mean = finite(self.mean + off / self.count as f64);
            self.spread = finite(self.spread + finite((span - self.mean) * off));
        }
        if let Some(bucket) = bucket(span) {
            if self.histogram.len() <= bucket {
                self.histogram.resize(bucket + 1, 0);
            }
            self.histogram[bucket] += 1;
        }
    }

    fn summary(&self) -> Summary {
        let mut histogram = self.histogram.clone();
        histogram.resize(BUCKETS, 0);
        let std = if self.count > 1 { (self.spread / (self.count - 1) as f64).sqrt() } else { 0.0 };
        Summary { count: self.count, mean: self.mean, std, histogram }
    }
}

/// Clamps to the finite doubles.
fn finite(number: f64) -> f64 {
    number.clamp(f64::MIN, f64::MAX)
}

fn bucket(span: f64) -> Option<usize> {
    if !(0.0..7.0 * DAY).contains(&span) {
        return None;
    }
    let seconds = span as usize;
    Some(match seconds {
        0..60 => seconds,
        60..3_600 => 59 + seconds / 60,
        3_600..86_400 => 118 + seconds / 3_600,
        _ => 141 + seconds / 86_400,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_span_has_its_bucket() {
        for (span, position) in [
            (0.0, Some(0)),
            (59.9, Some(59)),
            (60.0, Some(60)),
            (3_599.0, Some(118)),
            (3_600.0, Some(119)),
            (86_399.0, Some(141)),
            (86_400.0, Some(142)),
            (7.0 * DAY - 1.0, Some(147)),
            (7.0 * DAY, None),
            (-0.5, None),
        ] {
            assert_eq!(bucket(span), position, "{span} s");
        }
    }

    #[test]
    fn old_days_and_older_histograms_are_dropped_when_a_day_begins() {
        let keep = Keep { days: 3, histogram_days: 1 };
        let day = |n: i32| Timestamp::from(n * 86_400 + 5);
        let mut days = Days::default();
        for n in 0..5 {
            days.at(day(n), keep).wait.add(Seconds::from(1));
        }
        let counts: Vec<_> = (0..5).map(|n| days.report(day(n)).wait.count).collect();
        assert_eq!(counts, [0, 1, 1, 1, 1]);
        let histograms: Vec<_> = (0..5).map(|n| days.report(day(n)).wait.histogram[1]).collect();
        assert_eq!(histograms, [0, 0, 0, 1, 1]);
        days.at(day(2), keep).wait.add(Seconds::from(1));
        assert_eq!(days.report(day(2)).wait.count, 2, "a clock that goes back finds the day again");
    }
}
