//! Rates: completions per minute of each queue, from two samples of the statistics. A tick takes a sample
//! every minute, so that completions themselves cost nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::State;
use crate::engine::codec::{CodecError, Reader, Writer};
use crate::{Seconds, Timestamp};

/// How much time passes between two samples.
const SAMPLED_EVERY: Seconds = Seconds::from_whole(60);
/// How old a sample may be that a rate is computed from.
const SAMPLE_AGE_MAX: Seconds = Seconds::from_whole(180);

/// The last two samples.
#[derive(Debug)]
pub(crate) struct Rates {
    newer: Sample,
    older: Option<Sample>,
}

/// How many jobs each queue had completed on the day of a sample.
#[derive(Debug, Default)]
struct Sample {
    at: Timestamp,
    /// Queues without completions on that day are absent.
    completed: BTreeMap<Arc<str>, u64>,
}

impl State {
    /// Whether the next sample is due. Also if the last one is in the future, because the clock was set back.
    pub(crate) fn is_rate_sample_due(&self, now: Timestamp) -> bool {
        let due = |rates: &Rates| now < rates.newer.at || now - rates.newer.at >= SAMPLED_EVERY;
        self.rates.as_deref().is_none_or(due)
    }

    /// Takes a sample, or removes all.
    pub(super) fn sample_rates(&mut self, at: Option<Timestamp>) {
        let Some(at) = at else {
            self.rates = None;
            return;
        };
        let completed = self.queues.iter().filter_map(|(_, name, queue)| {
            queue.registered?;
            Some((name.clone(), queue.days.completed(at))).filter(|(_, count)| *count > 0)
        });
        let newer = Sample { at, completed: completed.collect() };
        let older = self.rates.take().map(|rates| rates.newer);
        self.rates = Some(Box::new(Rates { newer, older }));
    }

    /// The completions of a queue per minute, since the older of the samples that are recent.
    pub(crate) fn rate(&self, queue: Option<u32>, now: Timestamp) -> Option<f64> {
        let rates = self.rates.as_deref()?;
        let is_recent = |sample: &&Sample| now > sample.at && now - sample.at <= SAMPLE_AGE_MAX;
        let sample = rates.older.iter().chain([&rates.newer]).find(is_recent)?;
        let Some(queue) = queue else { return Some(0.0) };
        let days = &self.queues[queue].days;
        let sampled = sample.completed.get(self.queues.name(queue)).copied().unwrap_or(0);
        let on_that_day = days.completed(sample.at);
        // Statistics that were removed meanwhile begin at 0.
        let mut since = on_that_day.checked_sub(sampled).unwrap_or(on_that_day);
        if sample.at.day() != now.day() {
            since += days.completed(now);
        }
        Some(since as f64 * 60.0 / (now - sample.at).get())
    }
}

impl Rates {
    pub(super) fn write<'w, 'a>(&self, to: &'w mut Writer<'a>) -> &'w mut Writer<'a> {
        self.newer.write(to);
        to.optional(self.older.as_ref(), |to, older| older.write(to))
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Rates, CodecError> {
        let newer = Sample::read(reader)?;
        Ok(Rates { newer, older: reader.optional("rates", |reader, _| Sample::read(reader))? })
    }
}

impl Sample {
    fn write<'w, 'a>(&self, to: &'w mut Writer<'a>) -> &'w mut Writer<'a> {
        to.moment(self.at).number(self.completed.len() as u64);
        for (queue, count) in &self.completed {
            to.text(queue).number(*count);
        }
        to
    }

    fn read(reader: &mut Reader<'_>) -> Result<Sample, CodecError> {
        let at = reader.moment("rates")?;
        let counted = |reader: &mut Reader<'_>| Ok((reader.text("rates")?.into(), reader.number("rates")?));
        let completed = (0..reader.count(2, "rates")?).map(|_| counted(reader)).collect::<Result<_, _>>()?;
        Ok(Sample { at, completed })
    }
}
