//! Pop: which job a worker gets next. Also handles the locks, scheduled and recurring jobs that are due by
//! then. A pop that is restricted to klasses treats each queue as if it held no others.

use super::{
    Delta, Effects, Engine, FailDelta, FailureDelta, Flags, Kind, NONE, NameId, RowId, at_least_one, at_most,
    check_queues,
};
use crate::{
    EndReason, Event, FailedBy, Group, Job, JobEnding, Klass, Milestone, Peek, Pop, PopOrder, PopReply,
    Popped, Priority, QueueName, Refusal, Seconds, Timestamp,
};

/// Resolution of the time of a queue's last poll.
const POLLED_SECONDS: f64 = 10.0;

/// Limit of klasses per pop.
const KLASSES_MAX: usize = 1_024;

/// How many expired jobs a pop fails at most. The next pop continues.
const LATE_MAX: usize = 1_000;

/// The worker and the time of a pop.
#[derive(Clone, Copy)]
struct PopContext<'a> {
    worker: NameId,
    now: Timestamp,
    whole: bool,
    /// The klasses that the pop names.
    named: Klasses<'a>,
}

/// The klasses that a pop of one queue is restricted to.
pub(super) type Klasses<'a> = Option<&'a [NameId]>;

impl Engine {
    pub(super) fn pop(&mut self, now: Timestamp, pop: &Pop, fx: &mut Effects) -> Result<PopReply, Refusal> {
        check_queues(&pop.queues)?;
        check_klasses(pop)?;
        // A queue that is not interned is empty. It is interned now, because the poll is noted.
        let (one, several): ([NameId; 1], Vec<NameId>);
        let queues = match &pop.queues[..] {
            [queue] => {
                one = [self.queue_id(queue, fx)];
                &one[..]
            }
            queues => {
                several = queues.iter().map(|queue| self.queue_id(queue, fx)).collect();
                &several[..]
            }
        };
        let turn = pop.order.turn(queues.len());
        let mut reply = PopReply { jobs: Vec::new(), turn };
        for &queue in queues {
            self.note_poll(queue, pop, now, fx);
        }
        if queues.iter().all(|queue| self.state.queue(*queue).paused) {
            return Ok(reply);
        }
        let named = pop.klasses.as_deref().map(|klasses| self.known_klasses(klasses));
        let context = PopContext {
            worker: self.id(Kind::Worker, pop.worker.shared(), fx),
            now,
            whole: pop.whole,
            named: named.as_deref(),
        };
        if self.state.worker(context.worker).seen != Some(now) {
            self.commit(Delta::Seen(context.worker, now), fx);
        }
        let count = pop.count.get();
        match pop.order {
            PopOrder::Strict => {
                for &queue in queues {
                    let wanted = count - reply.jobs.len();
                    self.pop_from(queue, wanted, context, &mut reply.jobs, fx);
                }
            }
            PopOrder::RoundRobin { .. } => {
                let (mut at, mut empty) = (turn, 0);
                while reply.jobs.len() < count && empty < queues.len() {
                    let before = reply.jobs.len();
                    self.pop_from(queues[at], 1, context, &mut reply.jobs, fx);
                    at = (at + 1) % queues.len();
                    if reply.jobs.len() > before {
                        (reply.turn, empty) = (at, 0);
                    } else {
                        empty += 1;
                    }
                }
            }
            PopOrder::Priority { .. } => {
                while reply.jobs.len() < count
                    && let Some(at) = self.pop_by_priority(queues, reply.turn, context, &mut reply.jobs, fx)
                {
                    reply.turn = (at + 1) % queues.len();
                }
            }
        }
        Ok(reply)
    }

    /// Notes that a pop asks a queue for jobs, unless what its worker announced says that.
    pub(super) fn note_poll(&mut self, queue: NameId, pop: &Pop, now: Timestamp, fx: &mut Effects) {
        let is_restricted = pop.klasses.is_none()
            && self.state.has_capabilities()
            && self
                .state
                .find_worker(pop.worker.as_str())
                .is_some_and(|worker| self.state.announced_klasses(worker, queue).is_some());
        if !is_restricted {
            self.note_polled(queue, now, fx);
        }
    }

    fn note_polled(&mut self, queue: NameId, now: Timestamp, fx: &mut Effects) {
        if self
            .state
            .queue(queue)
            .last_polled
            .is_none_or(|polled| (now - polled).get().abs() >= POLLED_SECONDS)
        {
            self.commit(Delta::Polled(queue, now), fx);
        }
    }

    pub(super) fn peek(&mut self, now: Timestamp, peek: Peek, fx: &mut Effects) -> Vec<Job> {
        let Some(queue) = self.state.find_queue(peek.queue.as_str()) else { return Vec::new() };
        let count = peek.count.get();
        let mut rows = self.expired(queue, None, now, count);
        let wanted = count - rows.len();
        self.spawn(queue, None, now, wanted, fx);
        self.promote(queue, None, now, wanted, fx);
        rows.extend(self.state.queue(queue).work.slice(0..wanted).iter().map(|entry| entry.row));
        rows.into_iter().map(|row| self.state.job(row)).collect()
    }

    /// Pops up to `wanted` jobs of one queue, as Qless does: expired locks first, then jobs that are ready.
    fn pop_from(
        &mut self,
        queue: NameId,
        wanted: usize,
        context: PopContext<'_>,
        jobs: &mut Vec<Popped>,
        fx: &mut Effects,
    ) {
        let now = context.now;
        let wanted = self.startable_jobs(queue, now, wanted);
        if wanted == 0 {
            return;
        }
        let announced = self.announced_klasses(queue, context);
        let klasses = context.named.or(announced.as_deref());
        let mut taken_over = Vec::new();
        for row in self.expired(queue, klasses, now, wanted) {
            if self.handle_expired_lock(row, now, fx) {
                self.take_over(row, now, fx);
                taken_over.push(row);
            }
        }
        let waiting = wanted - taken_over.len();
        self.spawn(queue, klasses, now, waiting, fx);
        self.promote(queue, klasses, now, waiting, fx);
        if jobs.is_empty() {
            jobs.reserve_exact(taken_over.len() + waiting.min(self.state.queue(queue).work.len()));
        }
        for row in taken_over {
            self.hand_out(row, context, jobs, fx);
        }
        let mut late_max = LATE_MAX;
        for _ in 0..waiting {
            let Some(first) = self.next_in_time(queue, klasses, now, &mut late_max, fx) else { break };
            self.hand_out(first, context, jobs, fx);
        }
    }

    /// Pops the job with the highest priority of several queues. Returns the index of its queue.
    fn pop_by_priority(
        &mut self,
        queues: &[NameId],
        turn: usize,
        context: PopContext<'_>,
        jobs: &mut Vec<Popped>,
        fx: &mut Effects,
    ) -> Option<usize> {
        let now = context.now;
        let mut best: Option<(Priority, usize, RowId, bool)> = None;
        let mut late_max = LATE_MAX;
        for step in 0..queues.len() {
            let at = (turn + step) % queues.len();
            let queue = queues[at];
            if self.startable_jobs(queue, now, 1) == 0 {
                continue;
            }
            let announced = self.announced_klasses(queue, context);
            let klasses = context.named.or(announced.as_deref());
            let expired = self.expired(queue, klasses, now, 1).first().copied();
            let over = expired.filter(|row| self.handle_expired_lock(*row, now, fx));
            let candidate = over.or_else(|| {
                self.spawn(queue, klasses, now, 1, fx);
                self.promote(queue, klasses, now, 1, fx);
                self.next_in_time(queue, klasses, now, &mut late_max, fx)
            });
            if let Some(row) = candidate {
                let priority = self.state.row(row).priority;
                if best.is_none_or(|(highest, ..)| priority > highest) {
                    best = Some((priority, at, row, over.is_some()));
                }
            }
        }
        let (_, at, row, over) = best?;
        if over {
            self.take_over(row, now, fx);
        }
        self.hand_out(row, context, jobs, fx);
        Some(at)
    }

    /// How many jobs of a queue may start now, up to `wanted`: pausing, concurrency and rate limit
    /// permitting.
    pub(super) fn startable_jobs(&self, queue: NameId, now: Timestamp, wanted: usize) -> usize {
        let of = self.state.queue(queue);
        if of.paused {
            return 0;
        }
        let wanted = self.state.concurrency_left(queue, now).map_or(wanted, |left| left.min(wanted));
        of.rate_limiter.map_or(wanted, |rate_limiter| rate_limiter.starts(now, wanted))
    }

    /// The next ready job of a queue that has not expired. Fails expired ones on the way, up to `late_max`.
    fn next_in_time(
        &mut self,
        queue: NameId,
        klasses: Klasses<'_>,
        now: Timestamp,
        late_max: &mut usize,
        fx: &mut Effects,
    ) -> Option<RowId> {
        loop {
            if *late_max < LATE_MAX && self.first_ready(queue, klasses).is_none() {
                self.promote(queue, klasses, now, 1, fx);
            }
            let row = self.first_ready(queue, klasses)?;
            if self.late_since(row, now).is_none() {
                return Some(row);
            }
            *late_max = late_max.checked_sub(1)?;
            self.expire(row, now, fx);
        }
    }

    fn first_ready(&mut self, queue: NameId, klasses: Klasses<'_>) -> Option<RowId> {
        match klasses {
            None => self.state.queue(queue).work.first().map(|entry| entry.row),
            Some(klasses) => self.state.first_ready_of(queue, klasses),
        }
    }

    /// The ids of klasses, sorted. No job has a klass that is not interned.
    fn known_klasses(&self, klasses: &[Klass]) -> Vec<NameId> {
        let known = klasses.iter().filter_map(|klass| self.state.find_name(Kind::Klass, klass.shared()));
        let mut known: Vec<NameId> = known.collect();
        known.sort_unstable();
        known.dedup();
        known
    }

    /// The klasses that its worker's announcement restricts a pop to, if it names none itself.
    fn announced_klasses(&self, queue: NameId, context: PopContext<'_>) -> Option<Vec<NameId>> {
        match context.named {
            Some(_) => None,
            None => self.state.announced_klasses(context.worker, queue),
        }
    }

    /// The klasses that a pop is restricted to in each of its queues, sorted; none for all.
    pub fn klasses_of(&self, pop: &Pop) -> Vec<Option<Vec<Klass>>> {
        let worker = self.state.find_worker(pop.worker.as_str());
        let of_queue = |queue: &QueueName| {
            let queue = self.state.find_queue(queue.as_str())?;
            let announced = self.state.announced_klasses(worker?, queue)?;
            Some(announced.into_iter().map(|klass| self.state.klass(klass)).collect())
        };
        let klasses = |queue| pop.klasses.clone().or_else(|| of_queue(queue));
        let sorted = |mut klasses: Vec<Klass>| {
            klasses.sort_unstable();
            klasses
        };
        pop.queues.iter().map(|queue| klasses(queue).map(sorted)).collect()
    }

    /// How often announced capabilities have changed.
    pub fn capability_changes(&self) -> u64 {
        self.state.capability_changes()
    }

    /// Whether a pop is restricted to klasses in one of its queues.
    pub(super) fn is_restricted(&self, pop: &Pop) -> bool {
        let worker = || self.state.find_worker(pop.worker.as_str());
        let in_queue = |worker: NameId, queue: &QueueName| {
            let queue = self.state.find_queue(queue.as_str());
            queue.is_some_and(|queue| self.state.announced_klasses(worker, queue).is_some())
        };
        pop.klasses.is_some()
            || worker().is_some_and(|worker| pop.queues.iter().any(|queue| in_queue(worker, queue)))
    }

    /// The jobs with expired locks, the oldest expiry first.
    fn expired(&mut self, queue: NameId, klasses: Klasses<'_>, now: Timestamp, max: usize) -> Vec<RowId> {
        if let Some(klasses) = klasses {
            return self.state.expired_of(queue, klasses, now, max);
        }
        let locks = &self.state.queue(queue).locks;
        match locks.first() {
            Some(first) if first.at <= now => {
                let expired = locks.count_while(|lock| lock.at <= now);
                locks.slice(0..expired.min(max)).into_iter().map(|lock| lock.row).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Handles an expired lock: warns the holder the first time, fails the job if no retry is left, and
    /// otherwise returns true: another worker may take the job over.
    fn handle_expired_lock(&mut self, row: RowId, now: Timestamp, fx: &mut Effects) -> bool {
        let of = self.state.row(row);
        let (warned, exhausted_failure) = (of.flags.has(Flags::GRACE), of.remaining <= 0);
        if !warned && self.state.numbers().grace > Seconds::ZERO {
            self.warn(row, now, fx);
            return false;
        }
        if exhausted_failure {
            self.take_over(row, now, fx);
            self.exhaust(row, now, fx);
        }
        !exhausted_failure
    }

    /// Ends the attempt of a holder that was warned, or of any holder if there is no grace period.
    fn take_over(&mut self, row: RowId, now: Timestamp, fx: &mut Effects) {
        if self.state.numbers().grace <= Seconds::ZERO {
            self.warn(row, now, fx);
        }
        self.end_attempt(row, now, EndReason::LockExpired, None, None, fx);
        self.commit(Delta::SpendRetry(row), fx);
    }

    fn warn(&mut self, row: RowId, now: Timestamp, fx: &mut Effects) {
        self.milestone(row, Milestone::Stalled, fx);
        if let Some(worker) = self.holder(row) {
            fx.publish(|| Event::LockLost { jid: self.state.jid(row), worker });
        }
        let until = now + self.state.numbers().grace;
        self.commit(Delta::Warn { row, now, until }, fx);
    }

    /// Fails a job whose lock expired with no retries left.
    fn exhaust(&mut self, row: RowId, now: Timestamp, fx: &mut Effects) {
        let (group, message) = self.exhausted_failure(row);
        self.fail_into_group(row, now, group, message, FailedBy::Expiry, fx);
    }

    /// Fails a job that may not be retried, publishes that and delivers it to result streams.
    pub(super) fn fail_without_retries(
        &mut self,
        row: RowId,
        now: Timestamp,
        group: Group,
        failure: FailureDelta,
        by: FailedBy,
        fx: &mut Effects,
    ) {
        self.milestone(row, Milestone::Failed, fx);
        let actions = self.end_actions(row);
        let message = failure.message.to_string();
        fx.publish(|| Event::Failed {
            jid: self.state.jid(row),
            queue: self.state.queue_name(self.state.row(row).queue),
            // An expired job has no holder.
            worker: self.holder(row).filter(|_| by != FailedBy::Expired),
            group: group.clone(),
            message: message.clone(),
            by,
        });
        self.commit(
            Delta::Fail(Box::new(FailDelta { row, now, failure, by_worker: false, payload: None })),
            fx,
        );
        if let Some(actions) = actions {
            self.conclude(row, now, actions, JobEnding::Failed { group, message }, None, fx);
        }
    }

    /// Group and message of the failure of a job without retries left.
    pub(super) fn exhausted_failure(&self, row: RowId) -> (Group, String) {
        let queue = self.state.queue_name(self.state.row(row).queue);
        (self.group_for("failed-retries", row), format!("Job exhausted retries in queue \"{queue}\""))
    }

    /// Makes up to `max` scheduled jobs of a queue ready that are due, the longest due first.
    pub(super) fn promote(
        &mut self,
        queue: NameId,
        klasses: Klasses<'_>,
        now: Timestamp,
        max: usize,
        fx: &mut Effects,
    ) {
        if let Some(klasses) = klasses {
            for row in self.state.due_of(queue, klasses, now, max) {
                self.commit(Delta::Promote(row, now), fx);
            }
            return;
        }
        for _ in 0..max {
            match self.state.queue(queue).scheduled.first() {
                Some(first) if first.at <= now => self.commit(Delta::Promote(first.row, now), fx),
                _ => break,
            }
        }
    }

    /// Sets the attempt's deadline, if the job's options or the worker's capability limit it.
    pub(super) fn set_deadline(&mut self, row: RowId, worker: NameId, now: Timestamp, fx: &mut Effects) {
        let of = self.state.row(row);
        let of_job = if of.cold == NONE {
            None
        } else {
            self.state.extension(row).and_then(|extension| extension.options.attempt_max)
        };
        let of_worker = self.state.attempt_max(worker, of.queue, of.klass);
        if let Some(attempt_max) = of_job.into_iter().chain(of_worker).min() {
            self.commit(Delta::Deadline(row, now + attempt_max), fx);
        }
    }

    fn hand_out(&mut self, row: RowId, context: PopContext<'_>, jobs: &mut Vec<Popped>, fx: &mut Effects) {
        let PopContext { worker, now, whole, .. } = context;
        let expires = now + self.state.heartbeat(self.state.row(row).queue);
        fx.ephemeral = self.is_ephemeral(row);
        self.commit(Delta::Pop { row, worker, now, expires }, fx);
        self.set_deadline(row, worker, now, fx);
        fx.ephemeral = false;
        let popped = self.state.popped(row, whole);
        fx.publish(|| Event::Popped {
            jid: popped.jid.clone(),
            queue: popped.queue.clone(),
            worker: popped.lock.worker.clone(),
        });
        self.milestone(row, Milestone::Popped, fx);
        jobs.push(popped);
    }
}

fn check_klasses(pop: &Pop) -> Result<(), Refusal> {
    let Some(klasses) = &pop.klasses else { return Ok(()) };
    at_least_one("klasses", klasses)?;
    at_most("klasses", klasses.len(), KLASSES_MAX)
}
