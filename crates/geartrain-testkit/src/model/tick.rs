//! What time alone brings about: attempts that take too long, jobs not started in time, old results, silent
//! workers, old complete jobs.

use geartrain_core::{
    EndReason, Event, FailedBy, Failure, HistoryEvent, Jid, RETRIES_MAX, RandomUnit, Seconds, StateName,
    TIMEOUTS_MAX, Tick, TickReply, Timestamp, Token, WORKER_SILENCE_MAX, WorkerName,
};

use super::capabilities::made_up;
use super::{Ending, Model};

/// The first moment after this one.
fn just_after(moment: Timestamp) -> Timestamp {
    Timestamp::new(moment.get().next_up()).unwrap_or(moment)
}

impl Model {
    pub(super) fn tick(&mut self, now: Timestamp, tick: &Tick) -> TickReply {
        self.sample_rates(now);
        let mut done = 0;
        while done < tick.count.get() && self.tick_once(now) {
            done += 1;
        }
        self.apply_dependency_policies(now);
        let deadlines = self.deadlines().into_iter().map(|((at, _), _)| at);
        let expiries = self.expiries().into_iter().map(|(at, _)| at);
        let results = self.old_results().into_iter().map(|(at, _)| at);
        let workers = self.silent_workers().into_iter().map(|(at, _)| at);
        let complete = self.old_complete(now).into_iter().map(|(at, _)| at);
        let canceled = self.old_canceled(now).into_iter().map(|(at, _)| at);
        let next = deadlines.chain(expiries).chain(results).chain(workers).chain(complete);
        let next = next.chain(canceled).min();
        TickReply { done: done as u64, next }
    }

    /// Does the first thing that is due, and answers whether there was one.
    fn tick_once(&mut self, now: Timestamp) -> bool {
        if let Some(((at, _), jid)) = self.deadlines().into_iter().next()
            && at <= now
        {
            self.end_slow_attempt(now, &jid);
        } else if let Some((at, jid)) = self.expiries().into_iter().next()
            && at <= now
        {
            self.expire(now, &jid);
        } else if let Some((at, jid)) = self.old_results().into_iter().next()
            && at <= now
        {
            self.results.retain(|kept| kept.jid != jid);
        } else if let Some((at, worker)) = self.silent_workers().into_iter().next()
            && at <= now
        {
            self.abilities.remove(&worker);
            self.events.push(Event::WorkerLost { worker });
        } else if let Some((at, jid)) = self.old_complete(now).into_iter().next()
            && at <= now
        {
            self.drop_job(&jid);
        } else if let Some((at, jid)) = self.old_canceled(now).into_iter().next()
            && at <= now
        {
            self.tombstones.remove(&jid);
        } else {
            return false;
        }
        true
    }

    /// Attempts that must be over at some time, the earliest first and among equals the first handed out.
    fn deadlines(&self) -> Vec<((Timestamp, Token), Jid)> {
        self.container(|job| Some((job.beyond.deadline?, job.token)))
    }

    /// Jobs in queues, and when they are too late to be started, the earliest first.
    fn expiries(&self) -> Vec<(Timestamp, Jid)> {
        self.container(|job| match job.place.state() {
            StateName::Scheduled | StateName::Waiting => job.beyond.expires.map(just_after),
            StateName::Depends | StateName::Running | StateName::Complete | StateName::Failed => None,
        })
    }

    /// Whose results are kept, and until when, the earliest first and among equals the first kept.
    fn old_results(&self) -> Vec<(Timestamp, Jid)> {
        let mut results: Vec<(Timestamp, Jid)> =
            self.results.iter().map(|kept| (kept.until, kept.jid.clone())).collect();
        results.sort_by_key(|(until, _)| *until);
        results
    }

    /// Complete jobs, and when they are too old, the earliest first. Those of another clock, for which that
    /// was more than thirty days ago, are left out.
    fn old_complete(&self, now: Timestamp) -> Vec<(Timestamp, Jid)> {
        let age = self.complete_age();
        let of_this_clock = |(at, _): &(Timestamp, Jid)| *at >= now - age - Seconds::from(30 * 86_400);
        self.completed().into_iter().filter(of_this_clock).map(|(at, jid)| (at + age, jid)).collect()
    }

    /// Tombstones, and when they are too old, likewise.
    fn old_canceled(&self, now: Timestamp) -> Vec<(Timestamp, Jid)> {
        let age = self.canceled_age();
        let of_this_clock = |(at, _): &(Timestamp, Jid)| *at >= now - age - Seconds::from(30 * 86_400);
        self.tombstones_by_age().into_iter().filter(of_this_clock).map(|(at, jid)| (at + age, jid)).collect()
    }

    /// Workers that announced something, and when they will have been silent for too long, the earliest first
    /// and among equals by name.
    fn silent_workers(&self) -> Vec<(Timestamp, WorkerName)> {
        let until = |worker: &WorkerName| {
            just_after(*self.workers.get(worker).expect("who announced is on the list") + WORKER_SILENCE_MAX)
        };
        let mut workers: Vec<(Timestamp, WorkerName)> =
            self.abilities.keys().map(|worker| (until(worker), worker.clone())).collect();
        workers.sort();
        workers
    }

    /// Ends an attempt that took too long (rule Deadline).
    fn end_slow_attempt(&mut self, now: Timestamp, jid: &Jid) {
        let queue = self.jobs[jid].its_queue();
        let holder = self.jobs[jid].worker.clone().expect("a running job has a worker");
        self.events.push(Event::LockLost { jid: jid.clone(), worker: holder.clone() });
        self.remember(jid, now, HistoryEvent::TimedOut);
        self.note_end(jid, now, EndReason::Deadline, None, None);
        let backoff = self.backoff(jid, RandomUnit::HALF);
        let failure = Failure {
            group: made_up("timed-out", &queue),
            message: "An attempt took longer than it may".to_owned(),
            when: now.floor(),
            worker: Some(holder.clone()),
        };
        let remaining = self.spend_retry(jid);
        let job = &self.jobs[jid];
        let spent = i64::from(job.retries) - remaining - i64::from(job.beyond.crashes);
        let too_often = job.retries == RETRIES_MAX && spent >= i64::from(TIMEOUTS_MAX);
        if remaining >= 0 && !too_often {
            self.try_again(now, jid, backoff.unwrap_or(Seconds::ZERO), Some(failure), Ending::TimedOut);
        } else {
            let failure = Failure { when: now, worker: None, ..failure };
            self.give_up(now, jid, failure, FailedBy::Deadline, Some(holder));
        }
    }

    /// Whether a job must not start any more.
    pub(super) fn is_too_late(&self, now: Timestamp, jid: &Jid) -> bool {
        self.jobs[jid].beyond.expires.is_some_and(|expires| expires < now)
    }

    /// Fails a job that was not started in time (rule Expiry).
    pub(super) fn expire(&mut self, now: Timestamp, jid: &Jid) {
        let group = made_up("expired", &self.jobs[jid].its_queue());
        let message = "Job was not started in time".to_owned();
        self.give_up(now, jid, Failure { group, message, when: now, worker: None }, FailedBy::Expired, None);
    }
}
