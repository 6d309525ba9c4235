//! How workers get jobs and what they do with them (sections 4.3, 4.4 and 5.2).

use std::collections::BTreeSet;

use geartrain_core::{
    Backoff, EndReason, Event, Fail, FailedBy, Failure, Group, Heartbeat, HistoryEvent, Jid, Job, JobEnding,
    JobResult, Klass, Lock, Milestone, Peek, Pop, PopOrder, PopReply, Popped, QueueName, Refusal, Relock,
    Retry, Seconds, Timeout, Timestamp, Token, WorkerName,
};

use super::{Ending, Entry, Front, Model, Position, not_running};

/// The klasses that a pop is restricted to in a queue; none for all.
pub(super) type Klasses = Option<BTreeSet<Klass>>;

impl Model {
    // Pop: section 5.2, and decision 17 for several queues.

    pub(super) fn pop(&mut self, now: Timestamp, pop: &Pop) -> PopReply {
        if !pop.queues.iter().all(|queue| self.paused.contains(queue)) {
            self.workers.insert(pop.worker.clone(), now);
        }
        for queue in &pop.queues {
            // What a worker announced needs no note.
            if pop.klasses.is_some() || self.klasses_for(pop, queue).is_none() {
                self.note_asked(now, queue);
            }
        }
        match pop.order {
            PopOrder::Strict => self.pop_strictly(now, pop),
            PopOrder::RoundRobin { turn } => self.pop_in_turn(now, pop, turn % pop.queues.len()),
            PopOrder::Priority { turn } => self.pop_by_priority(now, pop, turn % pop.queues.len()),
        }
    }

    fn pop_strictly(&mut self, now: Timestamp, pop: &Pop) -> PopReply {
        let mut jobs = Vec::new();
        for queue in &pop.queues {
            jobs.extend(self.pop_from(now, queue, pop.count.get() - jobs.len(), pop));
        }
        PopReply { jobs, turn: 0 }
    }

    fn pop_in_turn(&mut self, now: Timestamp, pop: &Pop, begin: usize) -> PopReply {
        let places = pop.queues.len();
        let mut reply = PopReply { jobs: Vec::new(), turn: begin };
        let mut visited_in_vain = 0;
        for place in (0..places).cycle().skip(begin) {
            if visited_in_vain == places || reply.jobs.len() == pop.count.get() {
                break;
            }
            let popped = self.pop_from(now, &pop.queues[place], 1, pop);
            if popped.is_empty() {
                visited_in_vain += 1;
            } else {
                visited_in_vain = 0;
                reply.turn = (place + 1) % places;
            }
            reply.jobs.extend(popped);
        }
        reply
    }

    fn pop_by_priority(&mut self, now: Timestamp, pop: &Pop, begin: usize) -> PopReply {
        let places = pop.queues.len();
        let mut reply = PopReply { jobs: Vec::new(), turn: begin };
        while reply.jobs.len() < pop.count.get() {
            let mut best: Option<(usize, Candidate)> = None;
            for place in (reply.turn..reply.turn + places).map(|place| place % places) {
                let Some(candidate) = self.candidate(now, &pop.queues[place], pop) else { continue };
                let priority = |candidate: &Candidate| self.jobs[&candidate.jid].priority;
                if best.as_ref().is_none_or(|(_, best)| priority(&candidate) > priority(best)) {
                    best = Some((place, candidate));
                }
            }
            let Some((place, winner)) = best else { break };
            if winner.taken_over {
                self.examine(now, &winner.jid);
            }
            reply.jobs.push(self.hand_out(now, &winner.jid, pop));
            reply.turn = (place + 1) % places;
        }
        reply
    }

    /// The job that a queue would hand out. A lock ready for take-over is left as it is.
    fn candidate(&mut self, now: Timestamp, queue: &QueueName, pop: &Pop) -> Option<Candidate> {
        if self.places(now, queue, 1) == 0 {
            return None;
        }
        let klasses = &self.klasses_for(pop, queue);
        if let Some(jid) = self.expired_of(now, queue, klasses).into_iter().next() {
            if self.is_ready_for_take_over(&jid) {
                return Some(Candidate { jid, taken_over: true });
            }
            self.examine(now, &jid);
        }
        self.spawn(now, queue, klasses, 1);
        self.promote(now, queue, klasses, 1);
        let jid = self.first_in_time(now, queue, klasses, &mut false)?;
        Some(Candidate { jid, taken_over: false })
    }

    /// The klasses that a pop names, or else those that its worker announced for the queue.
    fn klasses_for(&self, pop: &Pop, queue: &QueueName) -> Klasses {
        if let Some(named) = &pop.klasses {
            return Some(named.iter().cloned().collect());
        }
        let announced = self.abilities.get(&pop.worker)?.keys().filter(|(of, _)| of == queue);
        let klasses: Option<BTreeSet<Klass>> = announced.map(|(_, klass)| klass.clone()).collect();
        klasses.filter(|klasses| !klasses.is_empty())
    }

    fn is_of(&self, jid: &Jid, klasses: &Klasses) -> bool {
        klasses.as_ref().is_none_or(|klasses| klasses.contains(&self.jobs[jid].klass))
    }

    fn expired_of(&self, now: Timestamp, queue: &QueueName, klasses: &Klasses) -> Vec<Jid> {
        let mut expired = self.expired(now, queue);
        expired.retain(|jid| self.is_of(jid, klasses));
        expired
    }

    /// Pops from one queue.
    fn pop_from(&mut self, now: Timestamp, queue: &QueueName, wanted: usize, pop: &Pop) -> Vec<Popped> {
        let count = self.places(now, queue, wanted);
        let klasses = &self.klasses_for(pop, queue);
        let mut found: Vec<Jid> = self.expired_of(now, queue, klasses).into_iter().take(count).collect();
        found.retain(|jid| self.examine(now, jid));
        let rest = count - found.len();
        self.spawn(now, queue, klasses, rest);
        self.promote(now, queue, klasses, rest);
        let mut popped: Vec<Popped> = found.iter().map(|jid| self.hand_out(now, jid, pop)).collect();
        let mut some_were_late = false;
        for _ in 0..rest {
            let Some(jid) = self.first_in_time(now, queue, klasses, &mut some_were_late) else { break };
            popped.push(self.hand_out(now, &jid, pop));
        }
        popped
    }

    /// The first job that waits. Those on the way that were not started in time fail (rule Expiry).
    /// In their stead others that are due come in.
    fn first_in_time(
        &mut self,
        now: Timestamp,
        queue: &QueueName,
        klasses: &Klasses,
        some_were_late: &mut bool,
    ) -> Option<Jid> {
        loop {
            for jid in self.work(queue) {
                if !self.is_of(&jid, klasses) {
                    continue;
                }
                if !self.is_too_late(now, &jid) {
                    return Some(jid);
                }
                self.expire(now, &jid);
                *some_were_late = true;
            }
            let of_klasses = |(_, jid): &(Timestamp, Jid)| self.is_of(jid, klasses);
            let due = self.scheduled(queue).into_iter().find(of_klasses).is_some_and(|(due, _)| due <= now);
            if !(*some_were_late && due) {
                return None;
            }
            self.promote(now, queue, klasses, 1);
        }
    }

    /// How many jobs a queue may hand out, of those that are wanted (decision 15, rule Rate).
    fn places(&self, now: Timestamp, queue: &QueueName, wanted: usize) -> usize {
        if self.paused.contains(queue) {
            return 0;
        }
        let wanted = wanted.min(self.free_places(now, queue).unwrap_or(usize::MAX));
        self.starts_left(now, queue, wanted)
    }

    /// How many more locks a queue may have; none for any number (decision 15).
    pub(super) fn free_places(&self, now: Timestamp, queue: &QueueName) -> Option<usize> {
        let live = self.live(now, queue).len();
        self.max_concurrency(queue).map(|max| (max - live as f64).floor().max(0.0) as usize)
    }

    /// Jobs whose lock is not before now, the first to expire first.
    pub(super) fn live(&self, now: Timestamp, queue: &QueueName) -> Vec<Jid> {
        self.locks(queue).into_iter().filter(|(deadline, _)| *deadline >= now).map(|(_, jid)| jid).collect()
    }

    fn hand_out(&mut self, now: Timestamp, jid: &Jid, pop: &Pop) -> Popped {
        let queue = self.jobs[jid].its_queue();
        self.measure_wait(&queue, now, self.jobs[jid].time);
        self.note_start(now, &queue);
        self.begin_attempt(now, jid, &pop.worker, pop.whole)
    }

    /// Locks a job for a worker, with a new token.
    fn begin_attempt(&mut self, now: Timestamp, jid: &Jid, worker: &WorkerName, whole: bool) -> Popped {
        self.remember(jid, now, HistoryEvent::Popped { worker: worker.clone() });
        let queue = self.jobs[jid].its_queue();
        self.tokens += 1;
        let token = Token::new(self.tokens);
        let deadline = now + self.lock_length(&queue);
        let attempt_max = self.attempt_max(jid, worker);
        let job = self.job_mut(jid);
        job.end_attempt(Ending::Otherwise);
        job.beyond.deadline = attempt_max.map(|max| now + max);
        job.time = now;
        job.worker = Some(worker.clone());
        job.listed = Some(deadline);
        job.expires = deadline;
        job.word = "running";
        job.place = Position::Locks { deadline };
        job.token = token;
        self.events.push(Event::Popped { jid: jid.clone(), queue: queue.clone(), worker: worker.clone() });
        self.publish_milestone(jid, Milestone::Popped);
        let job = &self.jobs[jid];
        Popped {
            jid: jid.clone(),
            queue,
            klass: job.klass.clone(),
            payload: job.payload.clone(),
            priority: job.priority,
            retries: job.retries,
            remaining: job.remaining,
            lock: Lock { worker: worker.clone(), token, expires: deadline },
            details: self.details(jid),
            job: if whole { self.view(jid).map(Box::new) } else { None },
        }
    }

    /// Locks what a worker runs again (rule Relock).
    pub(super) fn relock(&mut self, now: Timestamp, relock: &Relock) -> Vec<Popped> {
        self.workers.insert(relock.worker.clone(), now);
        let is_asked_for = |jid: &Jid| {
            let job = &self.jobs[jid];
            (relock.queues.is_empty() || relock.queues.contains(&job.its_queue()))
                && relock.before.is_none_or(|before| job.token.number() < before.number())
        };
        let held: Vec<Jid> =
            self.held_by(&relock.worker).into_iter().filter(is_asked_for).take(relock.count.get()).collect();
        let lock_again = |jid: &Jid| {
            self.note_end(jid, now, EndReason::Resumed, None, None);
            self.job_mut(jid).grace = false;
            self.begin_attempt(now, jid, &relock.worker, false)
        };
        held.iter().map(lock_again).collect()
    }

    /// Whether an expired lock is to be taken over, and a retry is left for it.
    fn is_ready_for_take_over(&self, jid: &Jid) -> bool {
        let job = &self.jobs[jid];
        (job.grace || self.grace_period() <= Seconds::ZERO) && job.remaining >= 1
    }

    /// Deals with an expired lock (section 4.4); answers whether the job is to be handed out.
    fn examine(&mut self, now: Timestamp, jid: &Jid) -> bool {
        // 1.
        self.job_mut(jid).listed = None;
        // 2.
        let grace = self.grace_period();
        let warned = self.jobs[jid].grace;
        let queue = self.jobs[jid].queue.clone().expect("a running job has a queue");
        let holder = self.jobs[jid].worker.clone().expect("a running job has a worker");
        // 3.
        if !warned || grace <= Seconds::ZERO {
            self.publish_milestone(jid, Milestone::Stalled);
            self.remember(jid, now, HistoryEvent::TimedOut);
            self.events.push(Event::LockLost { jid: jid.clone(), worker: holder.clone() });
            let job = self.job_mut(jid);
            job.grace = true;
            job.place = Position::Locks { deadline: now + grace };
            self.day(&queue, now).retries += 1;
        }
        // 4.
        if !warned && grace > Seconds::ZERO {
            return false;
        }
        self.note_end(jid, now, EndReason::LockExpired, None, None);
        let job = self.job_mut(jid);
        job.grace = false;
        job.remaining -= 1;
        if job.remaining >= 0 {
            return true;
        }
        // 5.
        self.give_up(now, jid, exhausted(now, &queue, None), FailedBy::Expiry, Some(holder));
        false
    }

    /// Fails a job whose worker did not report the failure.
    pub(super) fn give_up(
        &mut self,
        now: Timestamp,
        jid: &Jid,
        failure: Failure,
        by: FailedBy,
        holder: Option<WorkerName>,
    ) {
        let queue = self.jobs[jid].its_queue();
        let Failure { group, message, .. } = failure.clone();
        self.remember(jid, now, HistoryEvent::Failed { worker: None, group: group.clone() });
        self.set_failed(jid, failure, Ending::Otherwise);
        self.publish_milestone(jid, Milestone::Failed);
        self.events.push(Event::Failed {
            jid: jid.clone(),
            queue: queue.clone(),
            worker: holder,
            group: group.clone(),
            message: message.clone(),
            by,
        });
        self.count_failure(now, &queue);
        self.end(
            now,
            jid,
            JobEnding::Failed { group, message },
            JobResult { code: 1, ..JobResult::default() },
        );
    }

    fn set_failed(&mut self, jid: &Jid, failure: Failure, how: Ending) {
        let arrival = self.arrival();
        let job = self.job_mut(jid);
        job.end_attempt(how);
        job.place = Position::Failed { arrival };
        job.word = "failed";
        job.worker = None;
        job.listed = None;
        job.expires = Timestamp::ZERO;
        job.failure = Some(failure);
    }

    fn count_failure(&mut self, now: Timestamp, queue: &QueueName) {
        let day = self.day(queue, now);
        day.failures += 1;
        day.failed += 1;
    }

    /// Makes due jobs waiting, the earliest first, but no more than wanted (section 4.3).
    pub(super) fn promote(&mut self, now: Timestamp, queue: &QueueName, klasses: &Klasses, wanted: usize) {
        let is_due = |(due, jid): &(Timestamp, Jid)| *due <= now && self.is_of(jid, klasses);
        let due: Vec<_> = self.scheduled(queue).into_iter().filter(is_due).take(wanted).collect();
        for (_, jid) in due {
            let place = self.enter_work(now);
            let job = self.job_mut(&jid);
            job.place = place;
            job.word = "waiting";
        }
    }

    pub(super) fn peek(&mut self, now: Timestamp, peek: &Peek) -> Vec<Job> {
        let (queue, count) = (&peek.queue, peek.count.get());
        let mut found: Vec<Jid> = self.expired(now, queue).into_iter().take(count).collect();
        let rest = count - found.len();
        self.spawn(now, queue, &None, rest);
        self.promote(now, queue, &None, rest);
        found.extend(self.work(queue).into_iter().take(rest));
        found.iter().filter_map(|jid| self.view(jid)).collect()
    }

    pub(super) fn heartbeat(&mut self, now: Timestamp, heartbeat: &Heartbeat) -> Result<Timestamp, Refusal> {
        let worker = self.held(&heartbeat.jid, &heartbeat.holder, None)?;
        let queue = self.jobs[&heartbeat.jid].queue.clone().expect("a running job has a queue");
        let deadline = now + self.lock_length(&queue);
        let job = self.job_mut(&heartbeat.jid);
        job.expires = deadline;
        if let Some(payload) = &heartbeat.payload {
            job.payload = payload.clone();
        }
        job.listed = Some(deadline);
        job.place = Position::Locks { deadline };
        self.workers.insert(worker, now);
        Ok(deadline)
    }

    pub(super) fn fail(&mut self, now: Timestamp, fail: &Fail) -> Result<(), Refusal> {
        let jid = &fail.jid;
        if self.last_ending(jid, &fail.holder) == Some(Ending::Failed) {
            return Ok(());
        }
        let worker = self.held_or_late(jid, &fail.holder, None)?;
        self.refuse_result(jid, fail.result.as_deref())?;
        let queue = self.jobs[jid].queue.clone().expect("a running job has a queue");
        self.events.push(Event::Failed {
            jid: jid.clone(),
            queue: queue.clone(),
            worker: Some(worker.clone()),
            group: fail.group.clone(),
            message: fail.message.clone(),
            by: FailedBy::Worker,
        });
        self.publish_milestone(jid, Milestone::Failed);
        self.remember(
            jid,
            now,
            HistoryEvent::Failed { worker: Some(worker.clone()), group: fail.group.clone() },
        );
        self.count_failure(now, &queue);
        if let Some(payload) = &fail.payload {
            self.job_mut(jid).payload = payload.clone();
        }
        let failure = Failure {
            group: fail.group.clone(),
            message: fail.message.clone(),
            when: now.floor(),
            worker: Some(worker),
        };
        self.set_failed(jid, failure, Ending::Failed);
        let outcome = fail.result.as_deref().cloned();
        let how = JobEnding::Failed { group: fail.group.clone(), message: fail.message.clone() };
        self.end(now, jid, how, outcome.unwrap_or(JobResult { code: 1, ..JobResult::default() }));
        Ok(())
    }

    pub(super) fn retry(&mut self, now: Timestamp, retry: &Retry) -> Result<i64, Refusal> {
        let jid = &retry.jid;
        let worker = self.held(jid, &retry.holder, retry.queue.as_ref())?;
        let queue = self.jobs[jid].queue.clone().expect("a running job has a queue");
        let said = match (&retry.group, &retry.message) {
            (Some(group), Some(message)) => Some(Failure {
                group: group.clone(),
                message: message.clone(),
                when: now.floor(),
                worker: Some(worker.clone()),
            }),
            _ => None,
        };
        let wait = match retry.random {
            Some(random) if self.jobs[jid].beyond.backoff.is_some() || retry.delay <= Seconds::ZERO => {
                self.backoff(jid, random).unwrap_or(Backoff::DEFAULT.wait(self.attempts_before(jid), random))
            }
            _ => retry.delay,
        };
        self.note_end(jid, now, EndReason::Retried, retry.group.clone(), retry.message.as_deref());
        let remaining = self.spend_retry(jid);
        if remaining >= 0 {
            self.try_again(now, jid, wait, said, Ending::Otherwise);
        } else {
            let failure = said.unwrap_or_else(|| exhausted(now, &queue, retry.group.clone()));
            self.give_up(now, jid, failure, FailedBy::Retry, Some(worker));
        }
        Ok(remaining)
    }

    /// Takes one retry from a job whose attempt is over. Answers how many are left.
    pub(super) fn spend_retry(&mut self, jid: &Jid) -> i64 {
        let job = self.job_mut(jid);
        job.remaining -= 1;
        job.grace = false;
        job.listed = None;
        job.remaining
    }

    /// Puts a job back into its queue after an attempt that came to nothing.
    pub(super) fn try_again(
        &mut self,
        now: Timestamp,
        jid: &Jid,
        delay: Seconds,
        said: Option<Failure>,
        how: Ending,
    ) {
        let (place, word) = if delay > Seconds::ZERO {
            (Position::Scheduled(self.enter(now + delay)), "scheduled")
        } else {
            (self.enter_work(now), "waiting")
        };
        // The hash still names the worker and the deadline (trap 21).
        let job = self.job_mut(jid);
        job.end_attempt(how);
        (job.place, job.word) = (place, word);
        if said.is_some() {
            job.failure = said;
        }
        let queue = job.its_queue();
        self.events.push(Event::Retried { jid: jid.clone(), queue });
        self.abandon_if_unwanted(jid);
    }

    pub(super) fn timeout(&mut self, now: Timestamp, timeout: &Timeout) -> Result<(), Refusal> {
        for (place, jid) in timeout.jids.iter().enumerate() {
            let job = self.job(jid)?;
            if !matches!(job.place, Position::Locks { .. }) {
                return Err(not_running(jid, job));
            }
            // By its second mention the first one would have timed it out.
            if timeout.jids[..place].contains(jid) {
                let state = geartrain_core::StateName::Waiting;
                return Err(Refusal::NotRunning { jid: jid.clone(), state, qless: "stalled" });
            }
        }
        for jid in &timeout.jids {
            self.remember(jid, now, HistoryEvent::TimedOut);
            self.note_end(jid, now, EndReason::TakenAway, None, None);
            let entry = Entry { score: Timestamp::ZERO, arrival: self.arrival() };
            let job = self.job_mut(jid);
            job.end_attempt(Ending::Otherwise);
            job.place = Position::Work { front: Front::OfAll, entry };
            job.word = "stalled";
            job.expires = Timestamp::ZERO;
            let worker = job.worker.clone().expect("a running job has a worker");
            self.events.push(Event::LockLost { jid: jid.clone(), worker });
            self.abandon_if_unwanted(jid);
        }
        Ok(())
    }
}

/// What one queue offers to a pop by priority.
struct Candidate {
    jid: Jid,
    taken_over: bool,
}

/// How a job fails whose retries are used up, unless its worker said more.
pub(super) fn exhausted(now: Timestamp, queue: &QueueName, group: Option<Group>) -> Failure {
    let made_up =
        || Group::new(format!("failed-retries-{queue}")).expect("a group has room for a queue's name");
    Failure {
        group: group.unwrap_or_else(made_up),
        message: format!("Job exhausted retries in queue \"{queue}\""),
        when: now,
        worker: None,
    }
}
