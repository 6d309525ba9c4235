//! Why a job is not running: collects the reasons.

use super::{Engine, Flags, RowId, RowState};
use crate::{
    FailedDependency, JobState, Reason, Refusal, Seconds, Timestamp, WORKER_SILENCE_MAX, Why, WhyReply,
};

/// How many holders are named if the concurrency limit is reached.
const HELD_MAX: usize = 5;
/// How many klasses are named that workers ask for instead.
const OTHERS_MAX: usize = 10;

impl Engine {
    pub(super) fn why(&self, now: Timestamp, why: &Why) -> Result<WhyReply, Refusal> {
        let row = self.existing(&why.jid)?;
        let of = self.state.row(row);
        let queue = (of.state != RowState::Complete).then(|| self.state.queue_name(of.queue));
        let reasons = self.reasons(row, now);
        Ok(WhyReply { jid: why.jid.clone(), state: of.state.name(), queue, reasons })
    }

    fn reasons(&self, row: RowId, now: Timestamp) -> Vec<Reason> {
        let of = self.state.row(row);
        let mut reasons = Vec::new();
        match self.state.job(row).state {
            JobState::Complete { at } => return vec![Reason::Complete { at }],
            JobState::Failed { failure } => {
                let (crashes, evidence) = self.state.extension(row).map_or((0, None), |extension| {
                    (extension.crashes, extension.evidence.as_deref().map(Into::into))
                });
                return vec![if crashes > 0 && failure.group == self.group_for("crashed", row) {
                    Reason::SetAside { group: failure.group, crashes, evidence }
                } else {
                    Reason::Failed { group: failure.group, message: failure.message }
                }];
            }
            JobState::Running { lock } if lock.expires > now => {
                // Qless names the old deadline while the holder is warned.
                let warned = of.flags.has(Flags::EXPIRES);
                return vec![Reason::Running { worker: lock.worker, until: lock.expires, warned }];
            }
            JobState::Running { lock } => reasons.push(Reason::Stalled {
                worker: lock.worker,
                since: lock.expires,
                remaining: i64::from(of.remaining),
                warned: of.flags.has(Flags::GRACE) || self.state.numbers().grace <= Seconds::ZERO,
            }),
            JobState::Depends { on, due } => {
                if let Some(first) = on.first()
                    && let Some(state) = self.state.find(first).map(|on| self.state.row(on).state.name())
                {
                    let (jid, count) = (first.clone(), on.len() as u64);
                    let failed = self.failed_dependency(row);
                    reasons.push(Reason::DependsOn { jid, state, count, failed });
                }
                reasons.extend(due.filter(|due| *due > now).map(|at| Reason::Scheduled { at }));
            }
            JobState::Scheduled { due } if due > now => reasons.push(Reason::Scheduled { at: due }),
            JobState::Scheduled { .. } | JobState::Waiting => return self.obstacles(row, now),
        }
        reasons.extend(self.paused(row));
        reasons
    }

    /// The first failed dependency of a job by jid.
    fn failed_dependency(&self, row: RowId) -> Option<Box<FailedDependency>> {
        let (jid, on) = self.state.first_failed_dependency(row)?;
        let failure = self.state.failure_of(on)?;
        Some(Box::new(FailedDependency { jid, group: failure.group, message: failure.message }))
    }

    fn paused(&self, row: RowId) -> Option<Reason> {
        let queue = self.state.row(row).queue;
        self.state.queue(queue).paused.then(|| Reason::Paused { queue: self.state.queue_name(queue) })
    }

    /// What keeps a job that is ready or due from running.
    fn obstacles(&self, row: RowId, now: Timestamp) -> Vec<Reason> {
        let of = self.state.row(row);
        let queue = self.state.queue(of.queue);
        let mut reasons = Vec::new();
        reasons.extend(self.late_since(row, now).map(|at| Reason::Expired { at }));
        reasons.extend(self.paused(row));
        if self.state.concurrency_left(of.queue, now) == Some(0) {
            let expired = queue.locks.count_while(|lock| lock.at < now);
            let running = (queue.locks.len() - expired) as u64;
            let held = queue.locks.slice(expired..expired + HELD_MAX).into_iter();
            let held = held.filter_map(|lock| Some((self.state.jid(lock.row), self.holder(lock.row)?)));
            let max = self.state.concurrency(of.queue);
            reasons.push(Reason::Concurrency { max, held: held.collect(), running });
        }
        if let Some(rate_limiter) = queue.rate_limiter.filter(|rate_limiter| rate_limiter.starts(now, 1) == 0)
        {
            reasons.push(Reason::RateLimit { until: rate_limiter.opens(now) });
        }
        let klass = self.state.klass(of.klass);
        let asked = queue.last_polled;
        let is_live = |asked: Timestamp| now - asked <= WORKER_SILENCE_MAX;
        if !asked.is_some_and(is_live) && self.state.capable_workers(of.queue, Some(of.klass)) == 0 {
            let workers = self.state.workers_capable_in_queue(of.queue) as u64;
            let others = self.state.klasses_announced(of.queue, OTHERS_MAX);
            reasons.push(Reason::NoWorker { klass, asked, others, workers });
        }
        let before = match of.state {
            RowState::Waiting => self.state.before(row),
            _ => self.state.before_due(row),
        };
        if before > 0 {
            reasons.push(Reason::Behind { jobs: before as u64 });
        }
        if reasons.is_empty() {
            reasons.push(Reason::Next);
        }
        reasons
    }
}
