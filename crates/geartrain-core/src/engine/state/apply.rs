//! The one place where anything changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::blobs::BlobRef;
use super::cold::{ColdPart, Ended, FailureRow, Tagging};
use super::history::{self, Mark, MarkNames};
use super::{
    DueKey, EPOCH_BITS, Flags, Interner, NONE, Queue, ReadyKey, RowId, RowState, State, Template, config,
};
use crate::engine::delta::{
    AdvanceDelta, Delta, FailDelta, FailureDelta, ITSELF, Kind, PutDelta, RecurDelta,
};
use crate::{CompleteReply, Jid, Payload, Tag, Timestamp};

impl State {
    /// Makes a change.
    pub(crate) fn apply(&mut self, delta: &Delta) {
        if let Some(row) = delta.row() {
            self.keep(row);
        }
        match delta {
            Delta::Epoch(epoch) => {
                self.seq = self.seq.max(u64::from(*epoch) << EPOCH_BITS);
                self.begin_event_epoch(*epoch);
            }
            Delta::Name(kind, name) => self.name(*kind, None, name),
            Delta::ReuseNameId(kind, number, name) => self.name(*kind, Some(*number), name),
            Delta::FreeNameId(kind, number) => self.free_number(*kind, *number),
            Delta::Seen(worker, now) => self.see(*worker, *now),
            Delta::Put(put) => self.put(put),
            Delta::Spawn { template, jid, count, at, next, now } => {
                self.spawn(*template, jid, *count, *at, *next, *now);
            }
            Delta::Promote(row, now) => {
                self.detach(*row);
                self.enter_work(*row, *now);
            }
            Delta::Pop { row, worker, now, expires } => self.pop(*row, *worker, *now, *expires),
            Delta::Warn { row, now, until } => self.warn(*row, *now, *until),
            Delta::SpendRetry(row) => self.spend(*row),
            Delta::Heartbeat { row, expires, payload } => self.extend(*row, *expires, payload),
            Delta::Complete { row, now, payload } => self.finish(*row, *now, payload),
            Delta::Advance(advance) => self.advance(advance),
            Delta::Fail(fail) => self.fail(fail),
            Delta::Retry { row, now, due, failure } => self.retry(*row, *now, *due, failure.as_deref()),
            Delta::Timeout(row, now) => self.time_out(*row, *now),
            Delta::Remove(row) => self.remove(*row),
            Delta::Unfail(row, queue, now) => self.unfail(*row, *queue, *now),
            Delta::Priority(row, priority) => self.prioritise(*row, *priority),
            Delta::Depend(row, on) => on.iter().for_each(|on| self.link(*row, *on)),
            Delta::Undepend(row, off, now) => self.undepend(*row, off, *now),
            Delta::Log { row, now, message, data } => {
                self.mark(*row, *now, Mark::Log { message, data: data.as_deref() });
            }
            Delta::Track(jid, now) => self.track(jid, *now),
            Delta::Untrack(jid) => self.untrack(jid),
            Delta::Tag(row, tag, now) => self.tag(*row, tag, *now, false),
            Delta::Untag(row, tag) => self.untag(*row, tag),
            Delta::Pause(queue, paused) => {
                self.queues[*queue].paused = *paused;
                self.stir(*queue);
                self.queues.examine(*queue);
            }
            Delta::ForgetQueue(queue) => {
                self.queues[*queue].registered = None;
                self.queues.examine(*queue);
            }
            Delta::ForgetWorker(worker) => {
                self.set_unable_at_all(*worker);
                self.workers[*worker].seen = None;
                self.workers.examine(*worker);
            }
            Delta::AgeWorker(worker) => self.age_worker(*worker),
            Delta::Config(option, value) => self.configure(option, value.as_deref()),
            Delta::Recur(recur) => self.recur(recur),
            Delta::Unrecur(template) => {
                let gone = self.templates.remove(template).expect("a recurring job that goes was there");
                self.queues[gone.queue].recurring.remove(gone.entry(*template));
                self.count_template(&gone, false);
                self.templates_by_jid.remove(&gone.jid);
            }
            Delta::PutOptions(row, terms) => self.set_terms(*row, terms),
            Delta::Coalesced { row, result_ttl: result_for, always } => self.merge(*row, *result_for, *always),
            Delta::Attached(row, waiter) => self.attach(*row, *waiter),
            Delta::Detached(row, waiter) => self.detach_waiter(*row, waiter),
            Delta::Progressed(row, progress) => self.side_mut(*row).progress = Some(*progress),
            Delta::Deadline(row, at) => self.set_deadline(*row, *at),
            Delta::AttemptTimedOut(row, now) => {
                self.mark(*row, *now, Mark::TimedOut);
                self.spend(*row);
            }
            Delta::Crashed { row, now, evidence } => self.crash(*row, *now, evidence),
            Delta::Release(row, now) => {
                let worker = self.rows[*row].worker;
                self.mark(*row, *now, Mark::HandedBack { worker });
                self.bring_to_front(*row);
            }
            Delta::ToFront(row) => self.bring_to_front(*row),
            Delta::CapabilityAdded { worker, queue, klass, attempt_max } => {
                self.set_able(*worker, (*queue, klass.unwrap_or(NONE)), *attempt_max);
                let seen = self.workers[*worker].seen;
                self.register(*queue, seen.unwrap_or_default());
            }
            Delta::CapabilityRemoved { worker, queue, klass } => {
                self.set_unable(*worker, (*queue, klass.unwrap_or(NONE)))
            }
            Delta::CapabilitiesCleared(worker) => self.set_unable_at_all(*worker),
            Delta::Limits(queue, limits) => self.limit(*queue, limits.as_deref()),
            Delta::Polled(queue, now) => self.queues[*queue].asked = Some(*now),
            Delta::ResultStored(kept) => self.results.keep((**kept).clone()),
            Delta::ResultDropped(jid) => self.results.drop(jid),
            Delta::Listening(listened) => self.start_event_log(*listened),
            Delta::EventLogged(event) => self.append_event(event),
            Delta::IdsAllocated(counter, last) => drop(self.counters.insert(counter.clone(), *last)),
        }
    }

    /// Interns a name under a number that is free, or else under the next one.
    fn name(&mut self, kind: Kind, number: Option<u32>, name: &Arc<str>) {
        fn add<T>(to: &mut Interner<T>, number: Option<u32>, name: &Arc<str>, thing: T) {
            let number = number.unwrap_or_else(|| to.add_free());
            to.add_at(number, name, thing);
        }
        match kind {
            Kind::Queue => {
                let options = self.config.of_queue(name);
                add(&mut self.queues, number, name, Queue { options, ..Queue::default() });
            }
            Kind::Klass => add(&mut self.klasses, number, name, ()),
            Kind::Worker => add(&mut self.workers, number, name, Default::default()),
            Kind::Group => add(&mut self.groups, number, name, Default::default()),
        }
    }

    fn free_number(&mut self, kind: Kind, number: u32) {
        match kind {
            Kind::Queue => self.queues.remove(number),
            Kind::Klass => self.klasses.remove(number),
            Kind::Worker => self.workers.remove(number),
            Kind::Group => self.groups.remove(number),
        }
    }

    // References to names. Each number that a row, a history, a failure or a template holds is counted.

    fn set_queue(&mut self, at: RowId, queue: u32) {
        let old = std::mem::replace(&mut self.rows[at].queue, queue);
        self.queues.hold(queue);
        self.queues.release(old);
    }

    fn set_klass(&mut self, at: RowId, klass: u32) {
        let old = std::mem::replace(&mut self.rows[at].klass, klass);
        self.klasses.hold(klass);
        self.klasses.release(old);
    }

    fn set_worker(&mut self, at: RowId, worker: u32) {
        let old = std::mem::replace(&mut self.rows[at].worker, worker);
        self.workers.hold(worker);
        self.workers.release(old);
    }

    fn set_failure(&mut self, at: RowId, failure: Option<FailureRow>) {
        let names = failure.as_ref().map(|failure| (failure.group, failure.worker));
        let old = std::mem::replace(&mut self.rare_mut(at).failure, failure);
        if let Some((group, worker)) = names {
            self.groups.hold(group);
            self.workers.hold(worker);
        }
        if let Some(FailureRow { group, worker, .. }) = old {
            self.groups.release(group);
            self.workers.release(worker);
        }
    }

    fn count_mark(&mut self, MarkNames { queue, worker, group }: MarkNames, hold: bool) {
        self.queues.count(queue, hold);
        self.workers.count(worker, hold);
        self.groups.count(group, hold);
    }

    pub(super) fn count_template(&mut self, template: &Template, hold: bool) {
        self.queues.count(template.queue, hold);
        self.klasses.count(template.klass, hold);
    }

    /// Counts what a row refers to that was read from a snapshot, or takes it back before the row goes.
    pub(super) fn count_row(&mut self, at: RowId, hold: bool) {
        let State { rows, rares, blobs, queues, klasses, workers, groups, .. } = self;
        let row = &rows[at];
        queues.count(row.queue, hold);
        klasses.count(row.klass, hold);
        workers.count(row.worker, hold);
        if row.history != BlobRef::NONE {
            for (_, mark) in history::read(blobs, row.history) {
                let names = mark.names();
                queues.count(names.queue, hold);
                workers.count(names.worker, hold);
                groups.count(names.group, hold);
            }
        }
        let failure = rares.get(row.rare as usize).and_then(|rare| rare.failure.as_ref());
        if let Some(failure) = failure {
            groups.count(failure.group, hold);
            workers.count(failure.worker, hold);
        }
    }

    fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    // Entering and leaving

    fn put(&mut self, put: &PutDelta) {
        let (at, kept_tags) = match put.row {
            Some(at) => (at, self.leave_to_be_put(at, put)),
            None => (self.new_row(&put.jid), Vec::new()),
        };
        self.fill(at, put.queue, put.klass, &put.payload, put.priority, put.retries, put.now);
        self.set_worker(at, NONE);
        self.forget_expires(at);
        if self.rows[at].rare != NONE {
            self.renew(at, put.now);
            self.take_key(at);
        }
        for tag in put.tags.as_deref().unwrap_or(&kept_tags) {
            self.tag(at, tag, put.now, true);
        }
        for on in put.depends.as_deref().unwrap_or_default() {
            self.link(at, if *on == ITSELF { at } else { *on });
        }
        self.place(at, put.now, put.due);
        self.register(put.queue, put.now);
    }

    /// Takes a job out of wherever it is, to be put again; gives back its tags.
    fn leave_to_be_put(&mut self, at: RowId, put: &PutDelta) -> Vec<Tag> {
        if let Some(depends) = &put.depends {
            let depends: BTreeSet<RowId> = depends.iter().copied().collect();
            let kept = |on: &RowId| depends.contains(on) || (*on == at && depends.contains(&ITSELF));
            let old: Vec<RowId> = self.dependencies(at).filter(|on| !kept(on)).collect();
            old.into_iter().for_each(|on| self.unlink(at, on));
        }
        self.mark(at, put.now, Mark::Put { queue: put.queue });
        match self.rows[at].state {
            RowState::Complete => {
                let token = self.rows[at].seq;
                self.rare_mut(at).ended = Some((token, Ended::Completed(CompleteReply::Complete)));
            }
            RowState::Running => self.forget_ended(at),
            _ => {}
        }
        self.unlist(at);
        self.let_go_of_key(at);
        self.detach(at);
        self.forget_failed(at, put.queue);
        self.drop_payload(at);
        self.untag_all(at)
    }

    fn spawn(
        &mut self,
        template: u32,
        jid: &Jid,
        count: u64,
        at: Timestamp,
        next: Timestamp,
        now: Timestamp,
    ) {
        let of = self.templates.get_mut(&template).expect("a recurring job that spawns is there");
        let entry = of.entry(template);
        of.count = count;
        of.next = next;
        let of = of.clone();
        let recurring = &mut self.queues[of.queue].recurring;
        recurring.remove(entry);
        recurring.insert(of.entry(template));
        let child = self.new_row(jid);
        self.fill(child, of.queue, of.klass, &of.payload, of.priority, of.retries, at);
        self.rare_mut(child).spawned_from = Some(of.jid);
        of.tags.iter().for_each(|tag| self.tag(child, tag, now, true));
        self.enter_work(child, at);
    }

    /// Writes what a job is into a row that has no payload.
    #[allow(clippy::too_many_arguments, reason = "a put and a spawn have these in common and nothing else")]
    fn fill(
        &mut self,
        at: RowId,
        queue: u32,
        klass: u32,
        payload: &Payload,
        priority: crate::Priority,
        retries: u32,
        time: Timestamp,
    ) {
        self.set_new_payload(at, payload);
        self.set_queue(at, queue);
        self.set_klass(at, klass);
        let row = &mut self.rows[at];
        row.priority = priority;
        row.retries = retries;
        row.remaining = retries as i32;
        row.time = time;
    }

    fn new_row(&mut self, jid: &Jid) -> RowId {
        let at = self.rows.insert(jid);
        if !self.tracked.is_empty() && self.tracked.contains_key(jid) {
            self.rows[at].flags.set(Flags::TRACKED, true);
        }
        at
    }

    fn remove(&mut self, at: RowId) {
        self.unlist(at);
        self.detach(at);
        let queue = self.rows[at].queue;
        self.forget_failed(at, queue);
        if self.rows[at].rare != NONE {
            self.let_go_of_key(at);
            self.dismiss_waiters(at);
            self.untag_all(at);
            let dependencies: Vec<RowId> = self.dependencies(at).collect();
            dependencies.into_iter().for_each(|on| self.unlink(at, on));
            // Whoever depends on it is removed by the same command.
            let dependents: Vec<RowId> = self.dependents(at).collect();
            dependents.into_iter().for_each(|of| self.unlink(of, at));
        }
        self.drop_payload(at);
        self.count_row(at, false);
        let row = &self.rows[at];
        if row.history != BlobRef::NONE {
            self.blobs.remove(row.history);
        }
        if row.rare != NONE {
            self.rares.remove(row.rare as usize);
        }
        self.rows.remove(at);
    }

    /// Takes a failed job out of the count of those still failed.
    fn forget_failed(&mut self, at: RowId, queue: u32) {
        if self.rows[at].state == RowState::Failed
            && let Some(when) =
                self.rare(at).and_then(|rare| rare.failure.as_ref()).map(|failure| failure.when)
        {
            self.days(queue, when).failed -= 1;
        }
    }

    /// Puts a job that is nowhere where it belongs: with what it depends on, on the schedule, or to work.
    fn place(&mut self, at: RowId, now: Timestamp, due: Option<Timestamp>) {
        let depends = self.rare(at).is_some_and(|rare| !rare.dependencies.is_empty());
        match due {
            _ if depends => {
                if due.is_some() {
                    self.rare_mut(at).due = due;
                }
                let entry = self.enter(at, RowState::Depends, now);
                self.queues[self.rows[at].queue].depends.insert(entry);
            }
            Some(due) => self.schedule(at, due),
            None => self.enter_work(at, now),
        }
    }

    fn schedule(&mut self, at: RowId, due: Timestamp) {
        let entry = self.enter(at, RowState::Scheduled, due);
        let queue = self.rows[at].queue;
        self.queues[queue].scheduled.insert(entry);
        self.stir(queue);
    }

    fn enter_work(&mut self, at: RowId, moment: Timestamp) {
        self.enter(at, RowState::Waiting, moment);
        let row = &self.rows[at];
        let (queue, entry) = (row.queue, ReadyKey::of(at, row));
        self.queues[queue].work.insert(entry);
        self.stir(queue);
    }

    fn enter(&mut self, at: RowId, state: RowState, score: Timestamp) -> DueKey {
        let seq = self.next_seq();
        let row = &mut self.rows[at];
        row.state = state;
        row.score = score;
        row.seq = seq;
        let (entry, rare) = (DueKey::of(at, row), row.rare);
        if rare != NONE {
            self.enter_expiries(at);
        }
        entry
    }

    /// Takes a job out of where it is. Where it goes must follow.
    fn detach(&mut self, at: RowId) {
        if self.rows[at].rare != NONE {
            self.side_leaves(at);
        }
        let row = &self.rows[at];
        let was_there = match row.state {
            RowState::Free => true,
            RowState::Scheduled => self.queues[row.queue].scheduled.remove(DueKey::of(at, row)),
            RowState::Depends => self.queues[row.queue].depends.remove(DueKey::of(at, row)),
            RowState::Waiting => self.queues[row.queue].work.remove(ReadyKey::of(at, row)),
            RowState::Running => {
                let (queue, lock) = (row.queue, DueKey::of(at, row));
                if row.flags.has(Flags::GRACE) {
                    let worker = row.worker;
                    self.workers[worker].warned.remove(&at);
                }
                self.stir(queue);
                self.queues[queue].locks.remove(lock)
            }
            RowState::Complete => self.complete.remove(DueKey::of(at, row)),
            RowState::Failed => {
                let group = self
                    .rare(at)
                    .and_then(|rare| rare.failure.as_ref())
                    .map_or(NONE, |failure| failure.group);
                let seq = self.rows[at].seq;
                self.groups[group].remove((seq, at))
            }
        };
        debug_assert!(was_there, "row {at} was not where its state says");
        // These are about where it was.
        self.rows[at].flags.set(Flags::FRONT | Flags::STALLED | Flags::ADVANCED, false);
    }

    fn register(&mut self, queue: u32, now: Timestamp) {
        self.queues[queue].registered.get_or_insert(now);
    }

    fn stir(&mut self, queue: u32) {
        let of = &mut self.queues[queue];
        if of.watched && !of.stirred {
            of.stirred = true;
            self.stirred.push(queue);
        }
    }

    // Working

    fn pop(&mut self, at: RowId, worker: u32, now: Timestamp, expires: Timestamp) {
        self.mark(at, now, Mark::Popped { worker });
        self.unlist(at);
        self.detach(at);
        let row = &self.rows[at];
        let (queue, waited) = (row.queue, now - row.time);
        self.days(queue, now).wait.add(waited);
        if let Some(pace) = &mut self.queues[queue].pace {
            pace.start(now);
        }
        let lock = self.enter(at, RowState::Running, expires);
        self.set_worker(at, worker);
        let row = &mut self.rows[at];
        row.time = now;
        if row.flags.has(Flags::GRACE) {
            self.workers[worker].warned.insert(at);
        }
        self.forget_expires(at);
        self.queues[queue].locks.insert(lock);
        self.list(at);
        self.stir(queue);
    }

    fn warn(&mut self, at: RowId, now: Timestamp, until: Timestamp) {
        self.unlist(at);
        self.mark(at, now, Mark::TimedOut);
        self.keep_expires(at);
        self.relock(at, until);
        self.set_grace(at, true);
        let queue = self.rows[at].queue;
        self.days(queue, now).retries += 1;
    }

    /// Begins or ends the time in which a job's worker may come back.
    fn set_grace(&mut self, at: RowId, on: bool) {
        let row = &mut self.rows[at];
        if row.flags.has(Flags::GRACE) == on {
            return;
        }
        row.flags.set(Flags::GRACE, on);
        let worker = row.worker;
        if row.state == RowState::Running {
            let warned = &mut self.workers[worker].warned;
            if on {
                warned.insert(at)
            } else {
                warned.remove(&at)
            };
        }
    }

    fn spend(&mut self, at: RowId) {
        self.unlist(at);
        self.forget_ended(at);
        self.set_grace(at, false);
        self.rows[at].remaining -= 1;
    }

    fn extend(&mut self, at: RowId, expires: Timestamp, payload: &Option<Payload>) {
        self.set_payload(at, payload);
        self.unlist(at);
        self.relock(at, expires);
        self.forget_expires(at);
        self.list(at);
    }

    fn finish(&mut self, at: RowId, now: Timestamp, payload: &Option<Payload>) {
        self.end_well(at, now, payload);
        let row = &mut self.rows[at];
        row.state = RowState::Complete;
        // The token stays in `seq`, so that the attempt can say again that it is done.
        row.score = now;
        let entry = DueKey::of(at, row);
        self.set_queue(at, NONE);
        self.complete.insert(entry);
        if self.rows[at].rare != NONE {
            self.dismiss_waiters(at);
            self.release_dependents(at, now);
            self.trim(at);
        }
    }

    fn advance(&mut self, advance: &AdvanceDelta) {
        let (at, now) = (advance.row, advance.now);
        self.end_well(at, now, &advance.payload);
        let token = self.rows[at].seq;
        self.rare_mut(at).ended = Some((token, Ended::Completed(advance.reply)));
        self.mark(at, now, Mark::Put { queue: advance.queue });
        self.set_queue(at, advance.queue);
        self.take_key(at);
        self.register(advance.queue, now);
        advance.depends.iter().for_each(|on| self.link(at, *on));
        self.place(at, now, advance.due);
        let row = &mut self.rows[at];
        row.flags.set(Flags::ADVANCED, row.state == RowState::Scheduled);
    }

    /// What completing for good and going on to another queue have in common.
    fn end_well(&mut self, at: RowId, now: Timestamp, payload: &Option<Payload>) {
        self.mark(at, now, Mark::Done);
        self.set_payload(at, payload);
        self.unlist(at);
        if self.rows[at].rare != NONE {
            self.let_go_of_key(at);
        }
        self.detach(at);
        let row = &self.rows[at];
        let (queue, ran) = (row.queue, now - row.time);
        self.days(queue, now).run.add(ran);
        self.set_worker(at, NONE);
        let row = &mut self.rows[at];
        row.time = now;
        row.remaining = row.retries as i32;
        self.forget_expires(at);
        if self.rows[at].rare != NONE {
            self.set_failure(at, None);
            self.rare_mut(at).ended = None;
        }
    }

    fn fail(&mut self, fail: &FailDelta) {
        let (at, group) = (fail.row, fail.failure.group);
        let worker = if fail.by_worker { self.rows[at].worker } else { NONE };
        self.mark(at, fail.now, Mark::Failed { worker, group });
        let queue = self.rows[at].queue;
        let day = self.days(queue, fail.now);
        day.failures += 1;
        day.failed += 1;
        self.set_payload(at, &fail.payload);
        self.unlist(at);
        self.let_go_of_key(at);
        self.dismiss_waiters(at);
        let ran = self.rows[at].state == RowState::Running;
        // Behind one that was late there may be another.
        self.stir(queue);
        self.detach(at);
        self.forget_expires(at);
        let token = self.rows[at].seq;
        self.set_failure(at, Some(failure_row(&fail.failure)));
        if ran {
            self.rare_mut(at).ended = fail.by_worker.then_some((token, Ended::Failed));
        }
        self.set_worker(at, NONE);
        let entry = self.enter(at, RowState::Failed, fail.now);
        self.groups[group].insert((entry.seq, at));
    }

    fn retry(&mut self, at: RowId, now: Timestamp, due: Option<Timestamp>, failure: Option<&FailureDelta>) {
        self.keep_expires(at);
        self.unlist(at);
        self.detach(at);
        if let Some(failure) = failure {
            self.set_failure(at, Some(failure_row(failure)));
        }
        match due {
            Some(due) => self.schedule(at, due),
            None => self.enter_work(at, now),
        }
    }

    fn time_out(&mut self, at: RowId, now: Timestamp) {
        self.mark(at, now, Mark::TimedOut);
        if self.rows[at].flags.has(Flags::LISTED) {
            let row = &self.rows[at];
            let listed = Some((row.score, row.seq));
            self.rare_mut(at).listed = listed;
        }
        self.detach(at);
        self.forget_expires(at);
        self.forget_ended(at);
        self.rows[at].flags.set(Flags::FRONT | Flags::STALLED, true);
        self.enter_work(at, Timestamp::ZERO);
    }

    fn unfail(&mut self, at: RowId, queue: u32, now: Timestamp) {
        self.mark(at, now, Mark::Put { queue });
        self.detach(at);
        self.set_queue(at, queue);
        let row = &mut self.rows[at];
        row.remaining = row.retries as i32;
        self.renew(at, now);
        self.take_key(at);
        self.enter_work(at, now);
    }

    /// A job goes to the front of its priority. Its token stays where others have their arrival, so those that come back keep their order.
    fn bring_to_front(&mut self, at: RowId) {
        self.set_grace(at, false);
        self.unlist(at);
        self.detach(at);
        self.forget_expires(at);
        self.forget_ended(at);
        self.set_worker(at, NONE);
        let row = &mut self.rows[at];
        (row.state, row.score) = (RowState::Waiting, Timestamp::MIN);
        let (queue, entry) = (row.queue, ReadyKey::of(at, row));
        self.queues[queue].work.insert(entry);
        if self.rows[at].rare != NONE {
            self.enter_expiries(at);
        }
        self.stir(queue);
    }

    fn crash(&mut self, at: RowId, now: Timestamp, evidence: &Option<Box<str>>) {
        let worker = self.rows[at].worker;
        self.mark(at, now, Mark::Crashed { worker });
        self.spend(at);
        let side = self.side_mut(at);
        side.crashes += 1;
        side.evidence = evidence.clone();
    }

    fn limit(&mut self, queue: u32, limits: Option<&crate::QueueLimits>) {
        let of = &mut self.queues[queue];
        of.pace = limits.and_then(|limits| limits.rate).map(super::RateLimiter::new);
        of.limits = limits.map(|limits| Box::new(limits.clone()));
        self.stir(queue);
        self.queues.examine(queue);
    }

    fn prioritise(&mut self, at: RowId, priority: crate::Priority) {
        if self.rows[at].state == RowState::Waiting {
            let stalled = self.rows[at].flags.has(Flags::STALLED);
            self.detach(at);
            self.rows[at].flags.set(Flags::STALLED, stalled);
            self.rows[at].priority = priority;
            self.enter_work(at, Timestamp::ZERO);
        } else {
            self.rows[at].priority = priority;
        }
    }

    fn set_payload(&mut self, at: RowId, payload: &Option<Payload>) {
        if let Some(payload) = payload {
            self.drop_payload(at);
            self.set_new_payload(at, payload);
        }
    }

    fn mark(&mut self, at: RowId, when: Timestamp, mark: Mark<'_>) {
        let limit = self.config.numbers.history_max;
        let row = &mut self.rows[at];
        if row.history == BlobRef::NONE {
            row.history = history::begin(&mut self.blobs, row.time, row.queue);
            self.queues.hold(row.queue);
        }
        let mut dropped = Vec::new();
        row.history = history::append(&mut self.blobs, row.history, limit, when, mark, &mut dropped);
        self.count_mark(mark.names(), true);
        dropped.into_iter().for_each(|names| self.count_mark(names, false));
    }

    fn days(&mut self, queue: u32, now: Timestamp) -> &mut super::stats::Day {
        self.queues[queue].days.at(now, self.config.numbers.keep_stats)
    }

    // Locks and who holds them

    /// Gives a lock another deadline.
    fn relock(&mut self, at: RowId, deadline: Timestamp) {
        let row = &mut self.rows[at];
        let (queue, old) = (row.queue, DueKey::of(at, row));
        row.score = deadline;
        let new = DueKey::of(at, row);
        let locks = &mut self.queues[queue].locks;
        locks.remove(old);
        locks.insert(new);
        self.stir(queue);
    }

    fn list(&mut self, at: RowId) {
        let row = &mut self.rows[at];
        row.flags.set(Flags::LISTED, true);
        let (worker, entry) = (row.worker, DueKey::of(at, row));
        self.workers[worker].jobs.insert(entry);
    }

    fn unlist(&mut self, at: RowId) {
        let row = &self.rows[at];
        if !row.flags.has(Flags::LISTED) {
            return;
        }
        let worker = row.worker;
        let entry = if row.state == RowState::Running {
            DueKey::of(at, row)
        } else {
            let (deadline, seq) = self.rare_mut(at).listed.take().unwrap_or_default();
            DueKey { at: deadline, seq, row: at }
        };
        self.workers[worker].jobs.remove(entry);
        self.rows[at].flags.set(Flags::LISTED, false);
    }

    fn age_worker(&mut self, worker: u32) {
        self.set_unable_at_all(worker);
        let warned = std::mem::take(&mut self.workers[worker].warned);
        let gone =
            std::mem::replace(&mut self.workers[worker], super::Worker { warned, ..Default::default() });
        for entry in gone.jobs.slice(0..gone.jobs.len()) {
            self.keep(entry.row);
            self.rows[entry.row].flags.set(Flags::LISTED, false);
            if self.rows[entry.row].rare != NONE {
                self.rare_mut(entry.row).listed = None;
            }
        }
        self.workers.examine(worker);
    }

    /// Remembers the deadline that Qless goes on to name.
    fn keep_expires(&mut self, at: RowId) {
        let expires = self.expires(at);
        self.rare_mut(at).expires = Some(expires);
        self.rows[at].flags.set(Flags::EXPIRES, true);
    }

    fn forget_expires(&mut self, at: RowId) {
        if self.rows[at].flags.has(Flags::EXPIRES) {
            self.rows[at].flags.set(Flags::EXPIRES, false);
            self.rare_mut(at).expires = None;
            self.trim(at);
        }
    }

    /// A later attempt is over, so nobody will ask how the one before it ended.
    fn forget_ended(&mut self, at: RowId) {
        if self.rows[at].rare != NONE {
            self.rare_mut(at).ended = None;
            self.trim(at);
        }
    }

    // What only some jobs have

    pub(super) fn rare_mut(&mut self, at: RowId) -> &mut ColdPart {
        let row = &mut self.rows[at];
        if row.rare == NONE {
            row.rare =
                u32::try_from(self.rares.insert(Box::default())).expect("there are fewer of these than rows");
        }
        &mut self.rares[row.rare as usize]
    }

    /// Lets the rare part go if there is nothing in it.
    pub(super) fn trim(&mut self, at: RowId) {
        let row = &mut self.rows[at];
        if row.rare != NONE && *self.rares[row.rare as usize] == ColdPart::default() {
            self.rares.remove(row.rare as usize);
            row.rare = NONE;
        }
    }

    fn link(&mut self, at: RowId, on: RowId) {
        self.keep(on);
        self.rare_mut(at).dependencies.insert(on);
        self.rare_mut(on).dependents.insert(at);
    }

    fn unlink(&mut self, at: RowId, on: RowId) {
        self.keep(at);
        self.keep(on);
        self.rare_mut(at).dependencies.remove(&on);
        self.rare_mut(on).dependents.remove(&at);
        self.trim(at);
        self.trim(on);
    }

    fn undepend(&mut self, at: RowId, off: &[RowId], now: Timestamp) {
        off.iter().for_each(|on| self.unlink(at, *on));
        if self.dependencies(at).next().is_none() {
            self.detach(at);
            self.enter_work(at, now);
        }
    }

    fn release_dependents(&mut self, at: RowId, now: Timestamp) {
        let mut dependents: Vec<(Jid, RowId)> =
            self.dependents(at).map(|of| (self.rows.jid(of), of)).collect();
        dependents.sort_unstable();
        for (_, of) in dependents {
            self.unlink(of, at);
            if self.dependencies(of).next().is_some() {
                continue;
            }
            self.detach(of);
            let due = if self.rows[of].rare == NONE { None } else { self.rare_mut(of).due.take() };
            match due {
                Some(due) => self.schedule(of, due),
                None => self.enter_work(of, now),
            }
            self.trim(of);
        }
    }

    // Tags and tracking

    /// Gives a job a tag. If it has it, it only stands later among those that do, unless the tag is to be kept twice.
    fn tag(&mut self, at: RowId, tag: &Tag, now: Timestamp, twice: bool) {
        self.count_tag(tag, 1);
        let seq = self.next_seq();
        let rare = self.rare_mut(at);
        let mut old = None;
        for tagging in rare.tags.iter_mut().filter(|tagging| tagging.tag == *tag) {
            old = Some(DueKey { at: tagging.at, seq: tagging.seq, row: at });
            (tagging.at, tagging.seq) = (now, seq);
        }
        if twice || old.is_none() {
            rare.tags.push(Tagging { tag: tag.clone(), at: now, seq });
        }
        let jobs = &mut self.tags.entry(tag.clone()).or_default().jobs;
        if let Some(old) = old {
            jobs.remove(old);
        }
        jobs.insert(DueKey { at: now, seq, row: at });
    }

    fn untag(&mut self, at: RowId, tag: &Tag) {
        if let Some(found) =
            self.rare(at).and_then(|rare| rare.tags.iter().find(|tagging| tagging.tag == *tag))
        {
            let entry = DueKey { at: found.at, seq: found.seq, row: at };
            if let Some(usage) = self.tags.get_mut(tag) {
                usage.jobs.remove(entry);
            }
            self.rare_mut(at).tags.retain(|tagging| tagging.tag != *tag);
            self.trim(at);
        }
        self.count_tag(tag, -1);
    }

    /// Takes all tags from a job, and gives them back.
    fn untag_all(&mut self, at: RowId) -> Vec<Tag> {
        if self.rows[at].rare == NONE {
            return Vec::new();
        }
        let taggings = std::mem::take(&mut self.rare_mut(at).tags);
        for tagging in &taggings {
            if let Some(usage) = self.tags.get_mut(&tagging.tag) {
                usage.jobs.remove(DueKey { at: tagging.at, seq: tagging.seq, row: at });
            }
            self.count_tag(&tagging.tag, -1);
        }
        self.trim(at);
        taggings.into_iter().map(|tagging| tagging.tag).collect()
    }

    fn count_tag(&mut self, tag: &Tag, change: i64) {
        let before = self.tags.get(tag).map_or(0, |usage| usage.count);
        self.set_tag_count(tag.clone(), before + change);
    }

    pub(super) fn set_tag_count(&mut self, tag: Tag, count: i64) {
        let usage = self.tags.entry(tag.clone()).or_default();
        let before = std::mem::replace(&mut usage.count, count);
        if count == 0 && usage.jobs.is_empty() {
            self.tags.remove(&tag);
        }
        if before >= 2 {
            self.top_tags.remove(&(before, tag.clone()));
        }
        if count >= 2 {
            self.top_tags.insert((count, tag));
        }
    }

    fn track(&mut self, jid: &Jid, now: Timestamp) {
        let seq = self.next_seq();
        if let Some(old) = self.tracked.insert(jid.clone(), (now, seq)) {
            self.tracked_order.remove(&old);
        }
        self.tracked_order.insert((now, seq), jid.clone());
        self.flag_tracked(jid, true);
    }

    fn untrack(&mut self, jid: &Jid) {
        if let Some(old) = self.tracked.remove(jid) {
            self.tracked_order.remove(&old);
        }
        self.flag_tracked(jid, false);
    }

    fn flag_tracked(&mut self, jid: &Jid, on: bool) {
        if let Some(at) = self.rows.find(jid) {
            self.keep(at);
            self.rows[at].flags.set(Flags::TRACKED, on);
        }
    }

    // Options and recurring jobs

    fn configure(&mut self, option: &str, value: Option<&str>) {
        self.config.set(option, value);
        for name in config::queues_of(option) {
            if let Some(queue) = self.queues.find(name) {
                self.queues[queue].options = self.config.of_queue(name);
                self.stir(queue);
            }
        }
    }

    fn recur(&mut self, recur: &RecurDelta) {
        let arrival = match recur.template {
            Some(old) if !recur.arrives => self.templates[&old].seq,
            _ => self.next_seq(),
        };
        let count = recur.template.map_or(0, |old| self.templates[&old].count);
        let template = Template {
            jid: recur.jid.clone(),
            queue: recur.queue,
            klass: recur.klass,
            payload: recur.payload.clone(),
            priority: recur.priority,
            retries: recur.retries,
            tags: recur.tags.to_vec(),
            every: recur.every.clone(),
            backlog: recur.backlog,
            count,
            next: recur.next,
            seq: arrival,
        };
        let number = recur.template.unwrap_or_else(|| {
            self.templates_made += 1;
            self.templates_made
        });
        let entry = template.entry(number);
        self.count_template(&template, true);
        if let Some(old) = self.templates.insert(number, template) {
            self.queues[old.queue].recurring.remove(old.entry(number));
            self.count_template(&old, false);
        }
        self.templates_by_jid.insert(recur.jid.clone(), number);
        self.queues[recur.queue].recurring.insert(entry);
        if let Some(now) = recur.registers {
            self.register(recur.queue, now);
        }
        self.stir(recur.queue);
    }

    /// Begins or ends the watch on a queue. That is no change: it is not written down, and nobody can see it.
    pub(crate) fn watch(&mut self, queue: u32, on: bool) {
        let of = &mut self.queues[queue];
        of.watched = on;
        if !on {
            // The list of stirred queues must not name a queue that can be removed.
            if std::mem::take(&mut of.stirred) {
                self.stirred.retain(|stirred| *stirred != queue);
            }
            self.queues.examine(queue);
        }
    }
}

impl Template {
    pub(super) fn entry(&self, number: u32) -> DueKey {
        DueKey { at: self.next, seq: self.seq, row: number }
    }
}

fn failure_row(failure: &FailureDelta) -> FailureRow {
    FailureRow {
        group: failure.group,
        message: failure.message.clone(),
        when: failure.when,
        worker: failure.worker.unwrap_or(NONE),
    }
}
