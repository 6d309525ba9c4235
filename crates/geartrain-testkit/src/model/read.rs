//! What can be looked at (section 5.4).

use std::cmp::Ordering;
use std::collections::BTreeMap;

use geartrain_core::{
    Failed, Group, Jid, Job, JobState, Jobs, Listed, Listing, Lock, Page, Priority, PriorityCountsReply,
    QlessView, QueueCounts, QueueName, Queues, Seconds, Timestamp, WorkerCounts, WorkerJobsReply, WorkerName,
};

use super::config::span;
use super::{Front, Model, Position, jids};

/// How far ahead the list of a worker's jobs looks.
const WORKER_AHEAD: i32 = 8_640_000;

impl Model {
    /// A job as it is shown.
    pub(super) fn view(&self, jid: &Jid) -> Option<Job> {
        let job = self.jobs.get(jid)?;
        let shown = job.clone();
        let failed = matches!(job.place, Position::Failed { .. });
        let state = match job.place {
            Position::Work { .. } => JobState::Waiting,
            Position::Scheduled(entry) => JobState::Scheduled { due: entry.score },
            Position::Depends(_) => {
                JobState::Depends { on: shown.dependencies.into_iter().collect(), due: job.scheduled }
            }
            // In grace this is the end of the grace, while the deadline that Qless names is the one from
            // before.
            Position::Locks { deadline } => JobState::Running {
                lock: Lock {
                    worker: job.worker.clone().expect("a running job has a worker"),
                    token: job.token,
                    expires: deadline,
                },
            },
            Position::Completed { at } => JobState::Complete { at },
            Position::Failed { .. } => {
                JobState::Failed { failure: job.failure.clone().expect("a failed job has a failure") }
            }
        };
        Some(Job {
            jid: jid.clone(),
            klass: shown.klass,
            queue: shown.queue,
            state,
            priority: shown.priority,
            retries: shown.retries,
            remaining: shown.remaining,
            payload: shown.payload,
            tags: shown.tags,
            history: shown.history,
            past_failure: shown.failure.filter(|_| !failed),
            spawned_from: shown.spawned_from,
            dependents: self.dependents(jid),
            tracked: self.tracked.contains_key(jid),
            details: self.details(jid),
            qless: QlessView { state: shown.word, worker: shown.worker, expires: shown.expires },
            attempts: shown.attempts,
        })
    }

    pub(super) fn length(&self, queue: &QueueName) -> u64 {
        (self.locks(queue).len() + self.work(queue).len() + self.scheduled(queue).len()) as u64
    }

    pub(super) fn list(&mut self, now: Timestamp, jobs: &Jobs) -> Vec<Jid> {
        let found = match &jobs.which {
            Listing::Complete => jids(self.completed()).into_iter().rev().collect(),
            Listing::Waiting(queue) => self.work(queue),
            Listing::Running(queue) => self.live(now, queue),
            Listing::Stalled(queue) => self.expired(now, queue),
            Listing::Scheduled(queue) => {
                self.promote(now, queue, &None, usize::MAX);
                jids(self.scheduled(queue))
            }
            Listing::Depends(queue) => self.waiting_for_others(queue),
            Listing::Recurring(queue) => jids(self.recurring_in(queue)),
            unknown => panic!("the model does not know {unknown:?}"),
        };
        page(found, jobs.page)
    }

    pub(super) fn failures(&self) -> BTreeMap<Group, u64> {
        let mut groups = BTreeMap::new();
        for job in self.jobs.values() {
            if let (Position::Failed { .. }, Some(failure)) = (job.place, &job.failure) {
                *groups.entry(failure.group.clone()).or_default() += 1;
            }
        }
        groups
    }

    pub(super) fn failed(&self, failed: &Failed) -> Listed {
        let mut found = self.failed_in(&failed.group);
        found.reverse();
        Listed { total: found.len() as u64, jids: page(found, failed.page) }
    }

    /// Those that were brought before everything count as above (rule Priorities).
    pub(super) fn priority_counts(&mut self, now: Timestamp, queue: &QueueName) -> PriorityCountsReply {
        self.promote(now, queue, &None, usize::MAX);
        let mut counts = PriorityCountsReply::default();
        for jid in self.work(queue) {
            let job = &self.jobs[&jid];
            let before_all = matches!(job.place, Position::Work { front: Front::OfAll, .. });
            let count = match job.priority.cmp(&Priority::ZERO) {
                _ if before_all => &mut counts.above,
                Ordering::Greater => &mut counts.above,
                Ordering::Equal => &mut counts.at,
                Ordering::Less => &mut counts.below,
            };
            *count += 1;
        }
        counts
    }

    pub(super) fn count_queues(&mut self, now: Timestamp, queues: &Queues) -> Vec<QueueCounts> {
        let names = match &queues.queue {
            Some(queue) => vec![queue.clone()],
            None => self.queue_names(),
        };
        names.into_iter().map(|queue| self.count_queue(now, queue)).collect()
    }

    /// The registered queues, first seen first.
    pub(super) fn queue_names(&self) -> Vec<QueueName> {
        let mut seen: Vec<(Timestamp, QueueName)> =
            self.queues.iter().map(|(queue, seen)| (*seen, queue.clone())).collect();
        seen.sort();
        seen.into_iter().map(|(_, queue)| queue).collect()
    }

    pub(super) fn count_queue(&mut self, now: Timestamp, queue: QueueName) -> QueueCounts {
        self.promote(now, &queue, &None, usize::MAX);
        let stalled = self.expired(now, &queue).len();
        QueueCounts {
            waiting: self.work(&queue).len() as u64,
            running: (self.locks(&queue).len() - stalled) as u64,
            stalled: stalled as u64,
            scheduled: self.scheduled(&queue).len() as u64,
            depends: self.waiting_for_others(&queue).len() as u64,
            recurring: self.recurring_in(&queue).len() as u64,
            paused: self.paused.contains(&queue),
            name: queue,
        }
    }

    /// Forgets workers that were not seen for long, and their lists; the locks stay.
    fn forget_old_workers(&mut self, now: Timestamp) {
        let oldest = now - span(self.number("max-worker-age").unwrap_or(86_400.0));
        let old: Vec<WorkerName> = self
            .workers
            .iter()
            .filter(|(_, seen)| **seen <= oldest)
            .map(|(worker, _)| worker.clone())
            .collect();
        for worker in old {
            for (_, jid) in self.list_of(&worker) {
                self.job_mut(&jid).listed = None;
            }
            self.workers.remove(&worker);
            self.abilities.remove(&worker);
        }
    }

    pub(super) fn count_workers(&mut self, now: Timestamp) -> Vec<WorkerCounts> {
        self.forget_old_workers(now);
        let mut seen: Vec<(Timestamp, WorkerName)> =
            self.workers.iter().map(|(worker, seen)| (*seen, worker.clone())).collect();
        seen.sort();
        seen.reverse();
        let count = |(seen, name): (Timestamp, WorkerName)| {
            let WorkerJobsReply { jobs, stalled } = self.jobs_of(now, &name);
            WorkerCounts { name, jobs: jobs.len() as u64, stalled: stalled.len() as u64, seen: Some(seen) }
        };
        seen.into_iter().map(count).collect()
    }

    pub(super) fn worker_jobs(&mut self, now: Timestamp, worker: &WorkerName) -> WorkerJobsReply {
        self.forget_old_workers(now);
        self.jobs_of(now, worker)
    }

    fn jobs_of(&self, now: Timestamp, worker: &WorkerName) -> WorkerJobsReply {
        let mut reply = WorkerJobsReply::default();
        for (deadline, jid) in self.list_of(worker).into_iter().rev() {
            if deadline >= now && deadline <= now + Seconds::from(WORKER_AHEAD) {
                reply.jobs.push(jid.clone());
            }
            if deadline <= now {
                reply.stalled.push(jid);
            }
        }
        reply
    }
}

/// Part of a list.
pub(super) fn page<T>(list: Vec<T>, page: Page) -> Vec<T> {
    list.into_iter().skip(page.offset).take(page.count.get()).collect()
}
