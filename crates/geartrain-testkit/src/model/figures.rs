//! Figures of queues, and why the jobs of a queue do not run (rule Figures).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use geartrain_core::{
    Figures, Jid, Klass, QueueFigures, QueueName, Seconds, Timestamp, WORKER_SILENCE_MAX, WhyQueueReply,
};

use super::{Model, Position};

/// The completions of queues on the day of a sample, with its time.
pub(super) type Sample = (Timestamp, BTreeMap<QueueName, u64>);

impl Model {
    /// Samples completions, if a minute has passed since, or the clock was set back.
    pub(super) fn sample_rates(&mut self, now: Timestamp) {
        let is_due = |(at, _): &Sample| now < *at || now - *at >= Seconds::from(60);
        if self.samples.last().is_none_or(is_due) {
            let counts = self.queues.keys().map(|queue| (queue.clone(), self.completed_on(queue, now)));
            let sample = (now, counts.collect());
            self.samples.push(sample);
        }
    }

    fn completed_on(&self, queue: &QueueName, date: Timestamp) -> u64 {
        self.figures.get(&(queue.clone(), date.day())).map_or(0, |day| day.run.summary().count)
    }

    /// Completions per minute since the older of the last two samples that are at most three minutes old.
    fn rate(&self, now: Timestamp, queue: &QueueName) -> Option<f64> {
        let last_two = &self.samples[self.samples.len().saturating_sub(2)..];
        let is_recent = |(at, _): &&Sample| now > *at && now - *at <= Seconds::from(180);
        let (at, counts) = last_two.iter().find(is_recent)?;
        let (then, sampled) = (self.completed_on(queue, *at), counts.get(queue).copied().unwrap_or(0));
        let mut since = if then >= sampled { then - sampled } else { then };
        if at.day() != now.day() {
            since += self.completed_on(queue, now);
        }
        Some(since as f64 * 60.0 / (now - *at).get())
    }

    pub(super) fn figures_of(&self, now: Timestamp, figures: &Figures) -> Vec<QueueFigures> {
        let names = figures.queue.clone().map_or_else(|| self.queue_names(), |queue| vec![queue]);
        let figures = |name: QueueName| {
            let failed = self.jobs.values().filter(|job| {
                matches!(job.place, Position::Failed { .. }) && job.queue.as_ref() == Some(&name)
            });
            let waiting = self.work(&name);
            let ends = waiting.iter().take(10).chain(waiting.iter().rev().take(10));
            QueueFigures {
                failed: failed.count() as u64,
                failed_or_more: false,
                oldest: ends.map(|jid| self.jobs[jid].time).min(),
                rate: self.rate(now, &name),
                name,
            }
        };
        names.into_iter().map(figures).collect()
    }

    pub(super) fn why_queue(&mut self, now: Timestamp, queue: &QueueName) -> WhyQueueReply {
        let counts = self.count_queue(now, queue.clone());
        let waiting: Vec<Jid> = self.work(queue).into_iter().take(1_000).collect();
        let depends: Vec<Jid> = self.waiting_for_others(queue).into_iter().take(100).collect();
        let failed: Vec<Jid> = depends.iter().filter_map(|jid| self.failed_dependency(jid)).collect();
        let asked = self.asked.get(queue).copied();
        let is_full = self.free_places(now, queue) == Some(0);
        let max = || self.max_concurrency(queue).unwrap_or_default().floor() as u64;
        WhyQueueReply {
            counts,
            next_due: self.scheduled(queue).first().map(|(due, _)| *due),
            concurrency_max: is_full.then(max),
            rate_limited_until: self.rate_limited_until(now, queue),
            asked,
            workers: self.roll_call(queue, None),
            waiting_examined: waiting.len() as u64,
            unasked: match asked {
                Some(asked) if now - asked <= WORKER_SILENCE_MAX => Vec::new(),
                _ => self.unasked(queue, &waiting),
            },
            depends_examined: depends.len() as u64,
            behind_failed: failed.len() as u64,
            failed_dependency: failed.into_iter().next(),
        }
    }

    fn unasked(&self, queue: &QueueName, waiting: &[Jid]) -> Vec<(Klass, u64)> {
        let mut counts: BTreeMap<Klass, u64> = BTreeMap::new();
        waiting.iter().for_each(|jid| *counts.entry(self.jobs[jid].klass.clone()).or_default() += 1);
        counts.retain(|klass, _| self.roll_call(queue, Some(klass)) == 0);
        let mut unasked: Vec<(Klass, u64)> = counts.into_iter().collect();
        unasked.sort_by_key(|(klass, jobs)| (Reverse(*jobs), klass.clone()));
        unasked.truncate(10);
        unasked
    }

    fn failed_dependency(&self, jid: &Jid) -> Option<Jid> {
        let mut first = self.jobs[jid].dependencies.iter().take(5);
        first.find(|on| matches!(self.jobs[*on].place, Position::Failed { .. })).cloned()
    }
}
