//! Why a job does not run (rule Why).

use std::collections::BTreeSet;

use geartrain_core::{
    FailedDependency, Failure, Jid, Klass, QueueName, Reason, Refusal, Seconds, Timestamp,
    WORKER_SILENCE_MAX, WhyReply,
};

use super::capabilities::made_up;
use super::{Front, Model, Position, Record};

/// How many of those that run are named.
const HELD_MAX: usize = 5;

impl Model {
    pub(super) fn why(&self, now: Timestamp, jid: &Jid) -> Result<WhyReply, Refusal> {
        let job = self.job(jid)?;
        let reasons = match job.place {
            Position::Completed { at } => vec![Reason::Complete { at }],
            Position::Failed { .. } => vec![why_failed(job)],
            Position::Locks { deadline } => self.why_running(now, job, deadline),
            Position::Depends(_) => self.why_it_depends(now, job),
            Position::Scheduled(entry) if entry.score > now => {
                let scheduled = Reason::Scheduled { at: entry.score };
                std::iter::once(scheduled).chain(self.why_paused(&job.its_queue())).collect()
            }
            Position::Work { .. } | Position::Scheduled(_) => self.why_not_yet(now, jid, job),
        };
        let (state, queue) = (job.place.state(), job.queue.clone());
        Ok(WhyReply { jid: jid.clone(), state, queue, reasons })
    }

    fn why_running(&self, now: Timestamp, job: &Record, deadline: Timestamp) -> Vec<Reason> {
        let worker = job.worker.clone().expect("a running job has a worker");
        if deadline > now {
            return vec![Reason::Running { worker, until: deadline, warned: job.expires != deadline }];
        }
        let warned = job.grace || self.grace_period() <= Seconds::ZERO;
        let stalled = Reason::Stalled { worker, since: deadline, remaining: job.remaining, warned };
        std::iter::once(stalled).chain(self.why_paused(&job.its_queue())).collect()
    }

    fn why_it_depends(&self, now: Timestamp, job: &Record) -> Vec<Reason> {
        let first = job.dependencies.first().expect("a job that waits for others has some");
        let depends_on = Reason::DependsOn {
            jid: first.clone(),
            state: self.jobs[first].place.state(),
            count: job.dependencies.len() as u64,
            failed: self.why_behind_failed(job),
        };
        let later = job.scheduled.filter(|due| *due > now).map(|at| Reason::Scheduled { at });
        [depends_on].into_iter().chain(later).chain(self.why_paused(&job.its_queue())).collect()
    }

    fn why_behind_failed(&self, job: &Record) -> Option<Box<FailedDependency>> {
        let jid = job.dependencies.iter().find(|on| self.is_failed(on))?;
        let Failure { group, message, .. } = self.jobs[jid].failure.clone()?;
        Some(Box::new(FailedDependency { jid: jid.clone(), group, message }))
    }

    fn why_paused(&self, queue: &QueueName) -> Option<Reason> {
        self.paused.contains(queue).then(|| Reason::Paused { queue: queue.clone() })
    }

    /// For a job that could run, if nothing else were in the way.
    fn why_not_yet(&self, now: Timestamp, jid: &Jid, job: &Record) -> Vec<Reason> {
        let queue = job.its_queue();
        let mut reasons = Vec::new();
        if let Some(at) = job.beyond.expires
            && self.is_too_late(now, jid)
        {
            reasons.push(Reason::Expired { at });
        }
        reasons.extend(self.why_paused(&queue));
        if self.free_places(now, &queue) == Some(0) {
            let max = self.max_concurrency(&queue).unwrap_or_default().floor() as u64;
            let holder = |jid: Jid| {
                let worker = self.jobs[&jid].worker.clone().expect("a running job has a worker");
                (jid, worker)
            };
            let live = self.live(now, &queue);
            let running = live.len() as u64;
            let held = live.into_iter().take(HELD_MAX).map(holder).collect();
            reasons.push(Reason::Concurrency { max, held, running });
        }
        reasons.extend(self.rate_limited_until(now, &queue).map(|until| Reason::RateLimit { until }));
        let asked = self.asked.get(&queue).copied();
        let no_recent_pop = asked.is_none_or(|asked| now - asked > WORKER_SILENCE_MAX);
        if no_recent_pop && self.roll_call(&queue, Some(&job.klass)) == 0 {
            let workers = self.roll_call(&queue, None);
            let others = self.klasses_announced(&queue);
            reasons.push(Reason::NoWorker { klass: job.klass.clone(), asked, others, workers });
        }
        let jobs = self.behind(now, jid, job, &queue);
        if jobs > 0 {
            reasons.push(Reason::Behind { jobs });
        }
        if reasons.is_empty() {
            reasons.push(Reason::Next);
        }
        reasons
    }

    /// The first ten klasses of a queue that workers announced.
    fn klasses_announced(&self, queue: &QueueName) -> Vec<Klass> {
        let announced = self.abilities.values().flat_map(|abilities| abilities.keys());
        let announced = announced.filter(|(of, _)| of == queue).filter_map(|(_, klass)| klass.clone());
        let all: BTreeSet<Klass> = announced.collect();
        all.into_iter().take(10).collect()
    }

    /// How many jobs go before one that waits, or that is due.
    fn behind(&self, now: Timestamp, jid: &Jid, job: &Record, queue: &QueueName) -> u64 {
        let waiting = self.work(queue);
        if let Some(place) = waiting.iter().position(|other| other == jid) {
            return place as u64;
        }
        let goes_first = |other: &&Jid| {
            let other = &self.jobs[*other];
            let taken_away = matches!(other.place, Position::Work { front: Front::OfAll, .. });
            taken_away || other.priority >= job.priority
        };
        let matter = waiting.iter().filter(goes_first).count();
        let due = self.scheduled(queue).into_iter().filter(|(due, _)| *due <= now);
        let before = due.take_while(|(_, other)| other != jid).count();
        (matter + before) as u64
    }
}

fn why_failed(job: &Record) -> Reason {
    let failure = job.failure.clone().expect("a failed job has a failure");
    let crashes = job.beyond.crashes;
    if crashes > 0 && failure.group == made_up("crashed", &job.its_queue()) {
        return Reason::SetAside { group: failure.group, crashes, evidence: job.beyond.evidence.clone() };
    }
    Reason::Failed { group: failure.group, message: failure.message }
}
