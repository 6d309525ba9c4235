//! Figures of queues, and why the jobs of a queue are not running.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Effects, Engine, NameId, RowId, RowState};
use crate::{
    Figures, Jid, Klass, QueueFigures, QueueName, Queues, Refusal, Timestamp, WORKER_SILENCE_MAX, WhyQueue,
    WhyQueueReply,
};

/// How many jobs at either end of a queue are examined for the oldest.
const ENDS_EXAMINED: usize = 10;
/// How many waiting jobs are examined for their klasses.
const WAITING_EXAMINED_MAX: usize = 1_000;
/// How many klasses are named that no worker asks for.
const UNASKED_MAX: usize = 10;
/// How many jobs with dependencies are examined, and how many dependencies of each.
const DEPENDS_EXAMINED_MAX: usize = 100;
const DEPENDENCIES_EXAMINED_MAX: usize = 5;

impl Engine {
    pub(super) fn figures(&self, now: Timestamp, figures: &Figures) -> Vec<QueueFigures> {
        let numbers = match &figures.queue {
            None => self.state.registered_queues(),
            Some(name) => match self.state.find_queue(name.as_str()) {
                Some(queue) => vec![queue],
                None => return vec![self.figures_of(now, name.clone(), None)],
            },
        };
        let all = numbers.into_iter();
        all.map(|queue| self.figures_of(now, self.state.queue_name(queue), Some(queue))).collect()
    }

    fn figures_of(&self, now: Timestamp, name: QueueName, queue: Option<NameId>) -> QueueFigures {
        QueueFigures {
            name,
            failed: queue.map_or(0, |queue| self.state.queue(queue).failed as u64),
            failed_or_more: false,
            oldest: queue.and_then(|queue| self.oldest_waiting(queue)),
            rate: self.state.rate(queue, now),
        }
    }

    /// When the oldest of the first and last waiting jobs was put.
    fn oldest_waiting(&self, queue: NameId) -> Option<Timestamp> {
        let work = &self.state.queue(queue).work;
        let ends = work.slice(0..ENDS_EXAMINED).into_iter().chain(work.slice_back(0..ENDS_EXAMINED));
        ends.map(|entry| self.state.row(entry.row).time).min()
    }

    pub(super) fn why_queue(
        &mut self,
        now: Timestamp,
        why: WhyQueue,
        fx: &mut Effects,
    ) -> Result<WhyQueueReply, Refusal> {
        let name = why.queue.clone();
        let counts = self.queues(now, Queues { queue: Some(name.clone()) }, fx).swap_remove(0);
        let number = self.state.find_queue(name.as_str());
        let Some(number) = number else {
            return Ok(WhyQueueReply {
                counts,
                next_due: None,
                concurrency_max: None,
                rate_limited_until: None,
                asked: None,
                workers: 0,
                waiting_examined: 0,
                unasked: Vec::new(),
                depends_examined: 0,
                behind_failed: 0,
                failed_dependency: None,
            });
        };
        let queue = self.state.queue(number);
        let is_full = self.state.concurrency_left(number, now) == Some(0);
        let rate_limiter = queue.rate_limiter.filter(|rate_limiter| rate_limiter.starts(now, 1) == 0);
        let waiting = queue.work.slice(0..WAITING_EXAMINED_MAX);
        let depends = queue.depends.slice(0..DEPENDS_EXAMINED_MAX);
        let failed: Vec<Jid> =
            depends.iter().filter_map(|entry| self.sampled_failed_dependency(entry.row)).collect();
        Ok(WhyQueueReply {
            next_due: queue.scheduled.first().map(|entry| entry.at),
            concurrency_max: is_full.then(|| self.state.concurrency(number)),
            rate_limited_until: rate_limiter.map(|rate_limiter| rate_limiter.opens(now)),
            asked: queue.last_polled,
            workers: self.state.workers_capable_in_queue(number) as u64,
            waiting_examined: waiting.len() as u64,
            unasked: self.unasked(now, number, waiting.iter().map(|entry| entry.row)),
            depends_examined: depends.len() as u64,
            behind_failed: failed.len() as u64,
            failed_dependency: failed.into_iter().next(),
            counts,
        })
    }

    /// The klasses of jobs that no live worker asks for, most jobs first.
    fn unasked(&self, now: Timestamp, queue: NameId, rows: impl Iterator<Item = RowId>) -> Vec<(Klass, u64)> {
        if self.state.queue(queue).last_polled.is_some_and(|asked| now - asked <= WORKER_SILENCE_MAX) {
            return Vec::new();
        }
        let mut counts: BTreeMap<NameId, u64> = BTreeMap::new();
        rows.for_each(|row| *counts.entry(self.state.row(row).klass).or_default() += 1);
        counts.retain(|klass, _| self.state.capable_workers(queue, Some(*klass)) == 0);
        let mut unasked: Vec<(Klass, u64)> =
            counts.into_iter().map(|(klass, jobs)| (self.state.klass(klass), jobs)).collect();
        unasked.sort_by(|(klass, jobs), (other, more)| (Reverse(jobs), klass).cmp(&(Reverse(more), other)));
        unasked.truncate(UNASKED_MAX);
        unasked
    }

    /// A failed job that this one waits for, among its first dependencies by jid.
    fn sampled_failed_dependency(&self, row: RowId) -> Option<Jid> {
        let mut on: Vec<(Jid, RowId)> =
            self.state.dependencies(row).map(|on| (self.state.jid(on), on)).collect();
        on.sort_unstable();
        let mut first = on.into_iter().take(DEPENDENCIES_EXAMINED_MAX);
        first.find(|(_, on)| self.state.row(*on).state == RowState::Failed).map(|(jid, _)| jid)
    }
}
