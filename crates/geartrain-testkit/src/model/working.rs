//! How workers get jobs and what they do with them (sections 4.3, 4.4 and 5.2).

use geartrain_core::{
    Event, Fail, FailedBy, Failure, Group, Heartbeat, Jid, Job, Lock, Milestone, Peek, Pop, PopOrder,
    PopReply, Popped, QueueName, Refusal, Retry, Seconds, Timeout, Timestamp, Token, What,
};

use super::{Ending, Entry, Model, Place, not_running};

impl Model {
    // Pop: section 5.2, and decision 17 for several queues.

    pub(super) fn pop(&mut self, now: Timestamp, pop: &Pop) -> PopReply {
        if !pop.queues.iter().all(|queue| self.paused.contains(queue)) {
            self.workers.insert(pop.worker.clone(), now);
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
                let Some(candidate) = self.candidate(now, &pop.queues[place]) else { continue };
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
    fn candidate(&mut self, now: Timestamp, queue: &QueueName) -> Option<Candidate> {
        if self.places(now, queue) == 0 {
            return None;
        }
        if let Some(jid) = self.expired(now, queue).into_iter().next() {
            if self.is_ready_for_take_over(&jid) {
                return Some(Candidate { jid, taken_over: true });
            }
            self.examine(now, &jid);
        }
        self.spawn(now, queue, 1);
        self.promote(now, queue, 1);
        let jid = self.work(queue).into_iter().next()?;
        Some(Candidate { jid, taken_over: false })
    }

    /// Pops from one queue.
    fn pop_from(&mut self, now: Timestamp, queue: &QueueName, wanted: usize, pop: &Pop) -> Vec<Popped> {
        let count = wanted.min(self.places(now, queue));
        let mut found: Vec<Jid> = self.expired(now, queue).into_iter().take(count).collect();
        found.retain(|jid| self.examine(now, jid));
        let rest = count - found.len();
        self.spawn(now, queue, rest);
        self.promote(now, queue, rest);
        found.extend(self.work(queue).into_iter().take(rest));
        found.iter().map(|jid| self.hand_out(now, jid, pop)).collect()
    }

    /// How many more jobs a queue may hand out (decision 15).
    fn places(&self, now: Timestamp, queue: &QueueName) -> usize {
        if self.paused.contains(queue) {
            return 0;
        }
        let live = self.locks(queue).iter().filter(|(deadline, _)| *deadline >= now).count();
        match self.max_concurrency(queue) {
            Some(max) => (max - live as f64).floor().max(0.0) as usize,
            None => usize::MAX,
        }
    }

    fn hand_out(&mut self, now: Timestamp, jid: &Jid, pop: &Pop) -> Popped {
        self.remember(jid, now, What::Popped { worker: pop.worker.clone() });
        let queue = self.jobs[jid].queue.clone().expect("a job that can be popped has a queue");
        self.measure_wait(&queue, now, self.jobs[jid].time);
        self.tokens += 1;
        let token = Token::new(self.tokens);
        let deadline = now + self.lock_length(&queue);
        let job = self.job_mut(jid);
        job.end_attempt(Ending::Otherwise);
        job.time = now;
        job.worker = Some(pop.worker.clone());
        job.listed = Some(deadline);
        job.expires = deadline;
        job.word = "running";
        job.place = Place::Locks { deadline };
        job.token = token;
        self.events.push(Event::Popped {
            jid: jid.clone(),
            queue: queue.clone(),
            worker: pop.worker.clone(),
        });
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
            lock: Lock { worker: pop.worker.clone(), token, expires: deadline },
            particulars: None,
            job: if pop.whole { self.view(jid).map(Box::new) } else { None },
        }
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
            self.remember(jid, now, What::TimedOut);
            self.events.push(Event::LockLost { jid: jid.clone(), worker: holder.clone() });
            let job = self.job_mut(jid);
            job.grace = true;
            job.place = Place::Locks { deadline: now + grace };
            self.day(&queue, now).retries += 1;
        }
        // 4.
        if !warned && grace > Seconds::ZERO {
            return false;
        }
        let job = self.job_mut(jid);
        job.grace = false;
        job.remaining -= 1;
        if job.remaining >= 0 {
            return true;
        }
        // 5.
        let failure = exhausted(now, &queue, None);
        self.remember(jid, now, What::Failed { worker: None, group: failure.group.clone() });
        self.set_failed(jid, failure.clone(), Ending::Otherwise);
        self.publish_milestone(jid, Milestone::Failed);
        self.events.push(Event::Failed {
            jid: jid.clone(),
            queue: queue.clone(),
            worker: Some(holder),
            group: failure.group,
            message: failure.message,
            by: FailedBy::Expiry,
        });
        self.count_failure(now, &queue);
        false
    }

    fn set_failed(&mut self, jid: &Jid, failure: Failure, how: Ending) {
        let arrival = self.arrival();
        let job = self.job_mut(jid);
        job.end_attempt(how);
        job.place = Place::Failed { arrival };
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
    pub(super) fn promote(&mut self, now: Timestamp, queue: &QueueName, wanted: usize) {
        let due = self.scheduled(queue).into_iter().filter(|(due, _)| *due <= now).take(wanted);
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
        self.spawn(now, queue, rest);
        self.promote(now, queue, rest);
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
        job.place = Place::Locks { deadline };
        self.workers.insert(worker, now);
        Ok(deadline)
    }

    pub(super) fn fail(&mut self, now: Timestamp, fail: &Fail) -> Result<(), Refusal> {
        let jid = &fail.jid;
        if self.how_it_ended(jid, &fail.holder) == Some(Ending::Failed) {
            return Ok(());
        }
        let worker = self.held(jid, &fail.holder, None)?;
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
        self.remember(jid, now, What::Failed { worker: Some(worker.clone()), group: fail.group.clone() });
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
        let job = self.job_mut(jid);
        job.remaining -= 1;
        job.grace = false;
        job.listed = None;
        let remaining = job.remaining;
        if remaining >= 0 {
            let (place, word) = if retry.delay > Seconds::ZERO {
                (Place::Scheduled(self.enter(now + retry.delay)), "scheduled")
            } else {
                (self.enter_work(now), "waiting")
            };
            // The hash still names the worker and the deadline (trap 21).
            let job = self.job_mut(jid);
            job.end_attempt(Ending::Otherwise);
            (job.place, job.word) = (place, word);
            if said.is_some() {
                job.failure = said;
            }
            self.events.push(Event::Retried { jid: jid.clone(), queue });
        } else {
            let failure = said.unwrap_or_else(|| exhausted(now, &queue, retry.group.clone()));
            self.remember(jid, now, What::Failed { worker: None, group: failure.group.clone() });
            self.set_failed(jid, failure.clone(), Ending::Otherwise);
            self.publish_milestone(jid, Milestone::Failed);
            self.events.push(Event::Failed {
                jid: jid.clone(),
                queue: queue.clone(),
                worker: Some(worker),
                group: failure.group,
                message: failure.message,
                by: FailedBy::Retry,
            });
            self.count_failure(now, &queue);
        }
        Ok(remaining)
    }

    pub(super) fn timeout(&mut self, now: Timestamp, timeout: &Timeout) -> Result<(), Refusal> {
        for (place, jid) in timeout.jids.iter().enumerate() {
            let job = self.job(jid)?;
            if !matches!(job.place, Place::Locks { .. }) {
                return Err(not_running(jid, job));
            }
            // By its second mention the first one would have timed it out.
            if timeout.jids[..place].contains(jid) {
                let state = geartrain_core::StateName::Waiting;
                return Err(Refusal::NotRunning { jid: jid.clone(), state, qless: "stalled" });
            }
        }
        for jid in &timeout.jids {
            self.remember(jid, now, What::TimedOut);
            let entry = Entry { score: Timestamp::ZERO, arrival: self.arrival() };
            let job = self.job_mut(jid);
            job.end_attempt(Ending::Otherwise);
            job.place = Place::Work { front: true, entry };
            job.word = "stalled";
            job.expires = Timestamp::ZERO;
            let worker = job.worker.clone().expect("a running job has a worker");
            self.events.push(Event::LockLost { jid: jid.clone(), worker });
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
fn exhausted(now: Timestamp, queue: &QueueName, group: Option<Group>) -> Failure {
    let made_up =
        || Group::new(format!("failed-retries-{queue}")).expect("a group has room for a queue's name");
    Failure {
        group: group.unwrap_or_else(made_up),
        message: format!("Job exhausted retries in queue \"{queue}\""),
        when: now,
        worker: None,
    }
}
