//! Commands that read: jobs, lists, counts, workers, statistics.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Delta, Effects, Engine, NameId, RowId};
use crate::{
    Failed, Group, Jid, Job, Jobs, Listed, Listing, Page, PriorityCounts, PriorityCountsReply, QueueCounts,
    QueueName, Queues, Seconds, Stats, StatsReply, Tag, Tagged, Timestamp, TopTags, TrackedReply,
    WorkerCounts, WorkerJobsReply, WorkerName,
};

impl Engine {
    pub(super) fn get(&self, jid: &Jid) -> Option<Job> {
        self.state.find(jid).map(|row| self.state.job(row))
    }

    pub(super) fn length(&self, queue: &QueueName) -> u64 {
        let Some(queue) = self.state.find_queue(queue.as_str()) else { return 0 };
        let queue = self.state.queue(queue);
        (queue.locks.len() + queue.work.len() + queue.scheduled.len()) as u64
    }

    pub(super) fn jobs(&mut self, now: Timestamp, jobs: &Jobs, fx: &mut Effects) -> Vec<Jid> {
        let page = range_of(jobs.page);
        let name = match &jobs.which {
            Listing::Complete => {
                let complete = self.state.complete().slice_back(page);
                return self.jids(complete.into_iter().map(|entry| entry.row));
            }
            Listing::Waiting(name)
            | Listing::Running(name)
            | Listing::Stalled(name)
            | Listing::Scheduled(name)
            | Listing::Depends(name)
            | Listing::Recurring(name) => name,
        };
        match self.state.find_queue(name.as_str()) {
            Some(queue) => self.jobs_of(now, queue, &jobs.which, page, fx),
            None => Vec::new(),
        }
    }

    fn jobs_of(
        &mut self,
        now: Timestamp,
        number: NameId,
        which: &Listing,
        page: Range<usize>,
        fx: &mut Effects,
    ) -> Vec<Jid> {
        if let Listing::Scheduled(_) = which {
            self.promote(number, None, now, usize::MAX, fx);
        }
        let queue = self.state.queue(number);
        let timed = match which {
            Listing::Complete => unreachable!("complete jobs are in no queue"),
            Listing::Waiting(_) => {
                return self.jids(queue.work.slice(page).into_iter().map(|entry| entry.row));
            }
            Listing::Recurring(_) => {
                let templates = queue.recurring.slice(page);
                return templates
                    .into_iter()
                    .map(|entry| self.state.template(entry.row).jid.clone())
                    .collect();
            }
            Listing::Running(_) => {
                let expired = queue.locks.count_while(|lock| lock.at < now);
                queue.locks.slice(page.start.saturating_add(expired)..page.end.saturating_add(expired))
            }
            Listing::Stalled(_) => {
                let expired = queue.locks.count_while(|lock| lock.at <= now);
                queue.locks.slice(page.start..page.end.min(expired))
            }
            Listing::Scheduled(_) => queue.scheduled.slice(page),
            Listing::Depends(_) => queue.depends.slice(page),
        };
        self.jids(timed.into_iter().map(|entry| entry.row))
    }

    pub(super) fn failures(&self) -> BTreeMap<Group, u64> {
        self.state.failures().map(|(name, count)| (Group::from_checked(name.clone()), count as u64)).collect()
    }

    pub(super) fn failed(&self, failed: &Failed) -> Listed {
        let Some(group) = self.state.find_group(failed.group.as_str()) else { return Listed::default() };
        let group = self.state.group(group);
        let page = group.slice_back(range_of(failed.page));
        Listed { total: group.len() as u64, jids: self.jids(page.into_iter().map(|(_, row)| row)) }
    }

    pub(super) fn tagged(&self, tagged: &Tagged) -> Listed {
        let Some(jobs) = self.state.tagged(&tagged.tag) else { return Listed::default() };
        let page = jobs.slice(range_of(tagged.page));
        Listed { total: jobs.len() as u64, jids: self.jids(page.into_iter().map(|entry| entry.row)) }
    }

    pub(super) fn top_tags(&self, top: &TopTags) -> Vec<Tag> {
        self.state.top_tags().skip(top.page.offset).take(top.page.count.get()).cloned().collect()
    }

    pub(super) fn tracked(&self) -> TrackedReply {
        let mut reply = TrackedReply::default();
        for jid in self.state.tracked() {
            match self.get(jid) {
                Some(job) => reply.jobs.push(job),
                None => reply.expired.push(jid.clone()),
            }
        }
        reply
    }

    pub(super) fn queues(&mut self, now: Timestamp, queues: Queues, fx: &mut Effects) -> Vec<QueueCounts> {
        let numbers = match &queues.queue {
            None => self.state.registered_queues(),
            Some(name) => match self.state.find_queue(name.as_str()) {
                Some(queue) => vec![queue],
                None => return vec![no_jobs(name.clone())],
            },
        };
        numbers.into_iter().map(|queue| self.counts(now, queue, fx)).collect()
    }

    fn counts(&mut self, now: Timestamp, number: NameId, fx: &mut Effects) -> QueueCounts {
        self.promote(number, None, now, usize::MAX, fx);
        let queue = self.state.queue(number);
        let stalled = queue.locks.count_while(|lock| lock.at <= now);
        QueueCounts {
            waiting: queue.work.len() as u64,
            running: (queue.locks.len() - stalled) as u64,
            stalled: stalled as u64,
            scheduled: queue.scheduled.len() as u64,
            depends: queue.depends.len() as u64,
            recurring: queue.recurring.len() as u64,
            paused: queue.paused,
            ..no_jobs(self.state.queue_name(number))
        }
    }

    pub(super) fn priority_counts(
        &mut self,
        now: Timestamp,
        counts: &PriorityCounts,
        fx: &mut Effects,
    ) -> PriorityCountsReply {
        let Some(queue) = self.state.find_queue(counts.queue.as_str()) else {
            return PriorityCountsReply::default();
        };
        self.promote(queue, None, now, usize::MAX, fx);
        let (above, at, below) = self.state.by_priority(queue);
        PriorityCountsReply { above: above as u64, at: at as u64, below: below as u64 }
    }

    pub(super) fn workers(&mut self, now: Timestamp, fx: &mut Effects) -> Vec<WorkerCounts> {
        self.age_workers(now, fx);
        let mut seen: Vec<(Timestamp, WorkerName, NameId)> = self
            .state
            .seen_workers()
            .filter_map(|(worker, seen)| Some((seen, self.state.worker_name(worker)?, worker)))
            .collect();
        seen.sort_unstable();
        let counts = |(seen, name, worker)| {
            let (jobs, stalled) = self.held(now, worker);
            WorkerCounts { name, jobs: jobs.len() as u64, stalled: stalled.len() as u64, seen: Some(seen) }
        };
        seen.into_iter().rev().map(counts).collect()
    }

    pub(super) fn worker_jobs(
        &mut self,
        now: Timestamp,
        name: &WorkerName,
        fx: &mut Effects,
    ) -> WorkerJobsReply {
        self.age_workers(now, fx);
        let Some(worker) = self.state.find_worker(name.as_str()) else { return WorkerJobsReply::default() };
        let (jobs, stalled) = self.held(now, worker);
        let list = |range: Range<usize>| {
            let mut rows = self.state.worker(worker).jobs.slice(range);
            rows.reverse();
            self.jids(rows.into_iter().map(|entry| entry.row))
        };
        WorkerJobsReply { jobs: list(jobs), stalled: list(stalled) }
    }

    /// The ranges of a worker's list with live locks and with expired locks.
    fn held(&self, now: Timestamp, worker: NameId) -> (Range<usize>, Range<usize>) {
        let jobs = &self.state.worker(worker).jobs;
        let far = now + Seconds::from(8_640_000);
        let (first, end) = (jobs.count_while(|lock| lock.at < now), jobs.count_while(|lock| lock.at <= far));
        (first..end, 0..jobs.count_while(|lock| lock.at <= now))
    }

    /// Removes workers from the list that were not seen for `max-worker-age`.
    fn age_workers(&mut self, now: Timestamp, fx: &mut Effects) {
        let oldest = now - self.state.numbers().worker_age;
        let aged: Vec<NameId> =
            self.state.seen_workers().filter(|(_, seen)| *seen <= oldest).map(|(worker, _)| worker).collect();
        for worker in aged {
            self.commit(Delta::AgeWorker(worker), fx);
        }
    }

    pub(super) fn stats(&self, stats: &Stats) -> StatsReply {
        self.state.stats(self.state.find_queue(stats.queue.as_str()), stats.date)
    }

    fn jids(&self, rows: impl Iterator<Item = RowId>) -> Vec<Jid> {
        rows.map(|row| self.state.jid(row)).collect()
    }
}

fn range_of(page: Page) -> Range<usize> {
    page.offset..page.offset.saturating_add(page.count.get())
}

fn no_jobs(name: QueueName) -> QueueCounts {
    QueueCounts {
        name,
        waiting: 0,
        running: 0,
        stalled: 0,
        scheduled: 0,
        depends: 0,
        recurring: 0,
        paused: false,
    }
}
