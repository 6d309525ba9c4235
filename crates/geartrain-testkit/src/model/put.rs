//! How jobs come, go and move between queues (section 5.1).

use std::collections::{BTreeMap, BTreeSet};

use geartrain_core::{
    Cancel, Complete, CompleteReply, EndReason, Event, Existing, FailedBy, Failure, HistoryEvent, Jid,
    JobEnding, JobResult, Milestone, Next, Priority, Put, PutReply, QueueName, Refusal, Seconds, StateName,
    Timestamp, Token, Unfail,
};

use super::config::span;
use super::{Ending, Model, Position, Record, put_options};

impl Model {
    pub(super) fn put(&mut self, now: Timestamp, put: &Put) -> Result<PutReply, Refusal> {
        let (jid, queue) = (&put.jid, &put.queue);
        let known = self.jobs.contains_key(jid);
        let terms = put_options::asked_for(put);
        match put.existing {
            Existing::Keep if known => return self.keep_existing(jid, terms),
            Existing::Require if !known => return Err(Refusal::NoSuchJob { jid: jid.clone() }),
            Existing::Keep | Existing::Replace | Existing::Require => {}
        }
        if let Some(terms) = terms
            && !known
            && let Some(reply) = self.coalesce(queue, terms)?
        {
            return Ok(reply);
        }
        if let Some(terms) = terms {
            self.refuse_terms(now, put, terms)?;
        }
        if !known {
            self.refuse_full(queue, put.priority.unwrap_or(Priority::ZERO))?;
        }
        self.refuse_cycle(jid, &put.depends, put.cycles)?;
        if !known {
            let job = self.blank(put);
            self.jobs.insert(jid.clone(), job);
            self.tombstones.remove(jid);
        }
        let before = self.jobs[jid].clone();

        self.unindex_tags(jid);
        // 1. Dependencies that are not named again are dropped, if any are named.
        if !put.depends.is_empty() {
            self.job_mut(jid).dependencies.retain(|dependency| put.depends.contains(dependency));
        }
        // 2.
        self.events.push(Event::Put { jid: jid.clone(), queue: queue.clone() });
        self.remember(jid, now, HistoryEvent::Put { queue: queue.clone() });
        if before.place.state() == StateName::Running {
            self.note_end(jid, now, EndReason::PutAgain, None, None);
        }
        // 3. and 5. The new place below takes it out of the old one.
        self.job_mut(jid).end_attempt(Ending::Otherwise);
        // 4.
        self.job_mut(jid).listed = None;
        if let Some(holder) = &before.worker
            && put.caller.as_ref() != Some(holder)
        {
            self.events.push(Event::LockLost { jid: jid.clone(), worker: holder.clone() });
        }
        // 6.
        if let Some(tags) = &put.tags {
            self.job_mut(jid).tags = tags.clone();
        }
        self.index_tags(now, jid);
        // 7. The new queue, not the old one (trap 35).
        if let (Position::Failed { .. }, Some(failure)) = (before.place, &before.failure) {
            self.day(queue, failure.when).failed -= 1;
        }
        // 8.
        let delayed = put.delay > Seconds::ZERO;
        let retries = put.retries.unwrap_or(before.retries);
        let job = self.job_mut(jid);
        if job.aside.take().is_some() {
            job.scheduled = None;
        }
        job.klass = put.klass.clone();
        job.payload = put.payload.clone();
        job.priority = put.priority.unwrap_or(before.priority);
        job.word = if delayed { "scheduled" } else { "waiting" };
        job.worker = None;
        job.expires = Timestamp::ZERO;
        job.queue = Some(queue.clone());
        job.retries = retries;
        job.remaining = i64::from(retries);
        job.time = now;
        // 9. The job itself counts as open by now, even if it was complete.
        for dependency in &put.depends {
            if dependency == jid || self.is_open(dependency) {
                self.job_mut(jid).dependencies.insert(dependency.clone());
            }
        }
        let again = self.take_dropped(jid);
        if put.depends.is_empty() {
            self.job_mut(jid).dependencies.extend(again);
        }
        // 10.
        if !self.jobs[jid].dependencies.is_empty() {
            let place = Position::Depends(self.enter(now));
            let job = self.job_mut(jid);
            job.place = place;
            job.word = "depends";
            if delayed {
                job.scheduled = Some(now + put.delay);
            }
        } else if delayed {
            self.job_mut(jid).place = Position::Scheduled(self.enter(now + put.delay));
        } else {
            self.job_mut(jid).place = self.enter_work(now);
        }
        // 11.
        self.register(now, queue);
        self.publish_milestone(jid, Milestone::Put);
        // Beyond Qless.
        self.job_mut(jid).renew(now);
        if let Some(terms) = terms {
            self.job_mut(jid).beyond = put_options::details(terms);
            terms.attach.into_iter().for_each(|waiter| self.attach_to(jid, waiter));
        }
        self.take_key(jid);
        if let Some((group, message)) = terms.and_then(|terms| terms.failure.as_deref()).cloned() {
            let failure = Failure { group, message, when: now, worker: None };
            self.give_up(now, jid, failure, FailedBy::Moved, None);
        }
        Ok(if known { PutReply::Replaced } else { PutReply::Created })
    }

    /// What a put of a new job starts from.
    fn blank(&mut self, put: &Put) -> Record {
        Record {
            klass: put.klass.clone(),
            payload: put.payload.clone(),
            priority: Priority::ZERO,
            tags: Vec::new(),
            tagged: BTreeMap::new(),
            place: self.enter_work(Timestamp::ZERO),
            word: "waiting",
            worker: None,
            expires: Timestamp::ZERO,
            listed: None,
            queue: None,
            retries: 5,
            remaining: 5,
            time: Timestamp::ZERO,
            failure: None,
            grace: false,
            scheduled: None,
            spawned_from: None,
            history: Vec::new(),
            attempts: Vec::new(),
            dependencies: BTreeSet::new(),
            dropped: BTreeSet::new(),
            token: Token::new(0),
            ended: None,
            aside: None,
            beyond: put_options::nothing(),
            holds_key: false,
        }
    }

    /// Adds a queue to the list of queues, unless it is there.
    pub(super) fn register(&mut self, now: Timestamp, queue: &QueueName) {
        self.queues.entry(queue.clone()).or_insert(now);
    }

    pub(super) fn complete(&mut self, now: Timestamp, complete: &Complete) -> Result<CompleteReply, Refusal> {
        let jid = &complete.jid;
        if let Some(Ending::Completed(reply)) = self.last_ending(jid, &complete.holder)
            && (reply == CompleteReply::Complete) == complete.next.is_none()
        {
            return Ok(reply);
        }
        self.held_or_late(jid, &complete.holder, complete.queue.as_ref())?;
        if let Some(next) = &complete.next {
            self.refuse_cycle(jid, &next.depends, next.cycles)?;
        } else {
            self.refuse_result(jid, complete.result.as_deref())?;
        }

        self.remember(jid, now, HistoryEvent::Done);
        if let Some(payload) = &complete.payload {
            self.job_mut(jid).payload = payload.clone();
        }
        let (queue, since) =
            (self.jobs[jid].queue.clone().expect("a running job has a queue"), self.jobs[jid].time);
        self.measure_run(&queue, now, since);
        self.publish_milestone(jid, Milestone::Completed);
        let job = self.job_mut(jid);
        job.time = now;
        job.listed = None;
        job.worker = None;
        job.expires = Timestamp::ZERO;
        job.failure = None;
        job.remaining = i64::from(job.retries);

        let reply = match &complete.next {
            None => {
                self.events.push(Event::Completed { jid: jid.clone(), queue });
                let job = self.job_mut(jid);
                job.end_attempt(Ending::Completed(CompleteReply::Complete));
                job.place = Position::Completed { at: now };
                job.word = "complete";
                job.queue = None;
                self.release_dependents(now, jid);
                let outcome = complete.result.as_deref().cloned().unwrap_or_default();
                self.end(now, jid, JobEnding::Completed, outcome);
                self.drop_old(now);
                return Ok(CompleteReply::Complete);
            }
            Some(next) => {
                self.events.push(Event::Advanced { jid: jid.clone(), queue, to: next.queue.clone() });
                self.advance(now, jid, next)
            }
        };
        Ok(reply)
    }

    fn advance(&mut self, now: Timestamp, jid: &Jid, next: &Next) -> CompleteReply {
        self.remember(jid, now, HistoryEvent::Put { queue: next.queue.clone() });
        self.register(now, &next.queue);
        let open: BTreeSet<Jid> =
            next.depends.iter().filter(|dependency| self.is_open(dependency)).cloned().collect();
        let delayed = next.delay > Seconds::ZERO;
        let (place, word, reply) = if delayed && next.depends.is_empty() {
            // The word stays `waiting` (trap 3).
            (Position::Scheduled(self.enter(now + next.delay)), "waiting", CompleteReply::Scheduled)
        } else if open.is_empty() {
            (self.enter_work(now), "waiting", CompleteReply::Waiting)
        } else {
            (Position::Depends(self.enter(now)), "depends", CompleteReply::Depends)
        };
        let job = self.job_mut(jid);
        job.end_attempt(Ending::Completed(reply));
        job.place = place;
        job.word = word;
        job.queue = Some(next.queue.clone());
        if reply == CompleteReply::Depends && delayed {
            job.scheduled = Some(now + next.delay);
        }
        job.dependencies = open;
        self.take_key(jid);
        reply
    }

    /// How long complete jobs are kept.
    pub(super) fn complete_age(&self) -> Seconds {
        span(self.number("jobs-history").unwrap_or(604_800.0))
    }

    /// Forgets complete jobs that are too old, then those that are too many (section 4.6).
    fn drop_old(&mut self, now: Timestamp) {
        let oldest = now - self.complete_age();
        for (at, jid) in self.completed() {
            if at <= oldest {
                self.drop_job(&jid);
            }
        }
        let kept = self.number("jobs-history-count").unwrap_or(50_000.0).floor().max(0.0) as usize;
        let completed = self.completed();
        for (_, jid) in &completed[..completed.len().saturating_sub(kept)] {
            self.drop_job(jid);
        }
    }

    pub(super) fn drop_job(&mut self, jid: &Jid) {
        self.unindex_tags(jid);
        self.jobs.remove(jid);
    }

    /// Lets the jobs go that waited for this one alone (section 4.5), in the order of their jids (decision
    /// 3).
    fn release_dependents(&mut self, now: Timestamp, jid: &Jid) {
        for dependent in self.dependents(jid) {
            self.job_mut(&dependent).dependencies.remove(jid);
            self.release_if_free(now, &dependent);
        }
    }

    /// Lets a job go that waits for no other any more.
    pub(super) fn release_if_free(&mut self, now: Timestamp, jid: &Jid) {
        let job = self.job_mut(jid);
        if !job.dependencies.is_empty() {
            return;
        }
        let (place, word) = match job.scheduled.take() {
            Some(due) => (Position::Scheduled(self.enter(due)), "scheduled"),
            None => (self.enter_work(now), "waiting"),
        };
        let job = self.job_mut(jid);
        (job.place, job.word) = (place, word);
    }

    pub(super) fn cancel(&mut self, now: Timestamp, cancel: &Cancel) -> Result<u64, Refusal> {
        let jids = self.cancelled_by(cancel)?;
        for jid in &jids {
            if let Some(dependent) = self.dependents(jid).iter().find(|jid| !jids.contains(jid)) {
                return Err(Refusal::IsDependency { jid: jid.clone(), dependent: dependent.clone() });
            }
        }
        let mut canceled = 0;
        for jid in &jids {
            let job = self.jobs.get(jid).cloned();
            if job.as_ref().is_some_and(|job| job.place.state() == StateName::Complete) {
                continue;
            }
            let was = job.as_ref().map(|job| {
                let queue = job.queue.clone().expect("only a complete job has no queue");
                (queue, job.worker.clone())
            });
            self.events.push(Event::Canceled { jid: jid.clone(), was });
            if let Some(job) = job {
                if let (Position::Failed { .. }, Some(failure), Some(queue)) =
                    (job.place, &job.failure, &job.queue)
                {
                    self.day(queue, failure.when).failed -= 1;
                }
                self.tell_the_end(jid, &JobEnding::Canceled, &JobResult { code: 1, ..JobResult::default() });
                self.drop_job(jid);
                self.bury(now, jid, &job, cancel.because.as_ref());
                canceled += 1;
            }
            self.publish_milestone(jid, Milestone::Canceled);
        }
        Ok(canceled)
    }

    pub(super) fn unfail(&mut self, now: Timestamp, unfail: &Unfail) -> u64 {
        let mut oldest = self.failed_in(&unfail.group);
        oldest.truncate(unfail.count.get());
        for jid in &oldest {
            self.unfail_one(now, jid, &unfail.queue);
        }
        oldest.len() as u64
    }

    /// Moves a failed job into a queue.
    pub(super) fn unfail_one(&mut self, now: Timestamp, jid: &Jid, queue: &QueueName) {
        self.remember(jid, now, HistoryEvent::Put { queue: queue.clone() });
        let again = self.take_dropped(jid);
        let (place, word) = match again.is_empty() {
            true => (self.enter_work(now), "waiting"),
            false => (Position::Depends(self.enter(now)), "depends"),
        };
        let job = self.job_mut(jid);
        if job.aside.take().is_some() {
            job.scheduled = None;
        }
        job.place = place;
        job.word = word;
        job.dependencies = again;
        job.worker = None;
        job.expires = Timestamp::ZERO;
        job.queue = Some(queue.clone());
        job.remaining = i64::from(job.retries);
        job.renew(now);
        self.take_key(jid);
    }
}
