//! Applies heartbeats and the ends of attempts, and removes jobs.

use super::super::blobs::BlobRef;
use super::super::cold::{Ended, FailureRow};
use super::super::history::Mark;
use super::super::stats::Day;
use super::super::{DueKey, Flags, NONE, RowId, RowState, State};
use crate::engine::delta::{AdvanceDelta, FailDelta, FailureDelta};
use crate::{Payload, Timestamp};

impl State {
    pub(super) fn extend(&mut self, at: RowId, expires: Timestamp, payload: &Option<Payload>) {
        self.set_payload(at, payload);
        self.unlist(at);
        self.relock(at, expires);
        self.forget_expires(at);
        self.list(at);
    }

    pub(super) fn finish(&mut self, at: RowId, now: Timestamp, payload: &Option<Payload>) {
        self.complete_attempt(at, now, payload);
        let row = &mut self.rows[at];
        row.state = RowState::Complete;
        // The fencing token stays in `seq`, so that a repeated completion is recognised.
        row.score = now;
        let entry = DueKey::of(at, row);
        self.set_queue(at, NONE);
        self.complete.insert(entry);
        if self.rows[at].cold != NONE {
            self.dismiss_waiters(at);
            self.release_dependents(at, now);
            self.trim(at);
        }
    }

    pub(super) fn advance(&mut self, advance: &AdvanceDelta) {
        let (at, now) = (advance.row, advance.now);
        self.complete_attempt(at, now, &advance.payload);
        let token = self.rows[at].seq;
        self.cold_mut(at).ended = Some((token, Ended::Completed(advance.reply)));
        self.mark(at, now, Mark::Put { queue: advance.queue });
        self.set_queue(at, advance.queue);
        self.take_key(at);
        self.register(advance.queue, now);
        advance.depends.iter().for_each(|on| self.link(at, *on));
        self.enqueue(at, now, advance.due);
        let row = &mut self.rows[at];
        row.flags.set(Flags::ADVANCED, row.state == RowState::Scheduled);
    }

    /// The common part of completing and advancing.
    pub(super) fn complete_attempt(&mut self, at: RowId, now: Timestamp, payload: &Option<Payload>) {
        self.mark(at, now, Mark::Done);
        self.set_payload(at, payload);
        self.unlist(at);
        if self.rows[at].cold != NONE {
            self.release_key(at);
        }
        self.detach(at);
        self.rows[at].seq = self.last_token(at);
        let row = &self.rows[at];
        let (queue, ran) = (row.queue, now - row.time);
        self.days(queue, now).run.add(ran);
        self.set_worker(at, NONE);
        let row = &mut self.rows[at];
        row.time = now;
        row.remaining = row.retries as i32;
        self.forget_expires(at);
        if self.rows[at].cold != NONE {
            self.set_failure(at, None);
            self.cold_mut(at).ended = None;
        }
    }

    pub(super) fn fail(&mut self, fail: &FailDelta) {
        let (at, group) = (fail.row, fail.failure.group);
        let worker = if fail.by_worker { self.rows[at].worker } else { NONE };
        self.mark(at, fail.now, Mark::Failed { worker, group });
        let queue = self.rows[at].queue;
        let day = self.days(queue, fail.now);
        day.failures += 1;
        day.failed += 1;
        self.set_payload(at, &fail.payload);
        self.unlist(at);
        self.release_key(at);
        self.dismiss_waiters(at);
        let ran = self.rows[at].state == RowState::Running;
        let depended = self.rows[at].state == RowState::Depends;
        // Behind an expired job there may be one that can start.
        self.mark_dirty(queue);
        self.detach(at);
        self.forget_expires(at);
        let token = self.last_token(at);
        self.set_failure(at, Some(failure_row(&fail.failure)));
        if ran || fail.by_worker {
            self.cold_mut(at).ended = fail.by_worker.then_some((token, Ended::Failed));
        }
        self.forget_timed_out(at);
        self.set_worker(at, NONE);
        let entry = self.enter(at, RowState::Failed, fail.now);
        self.groups[group].insert((entry.seq, at));
        if depended {
            self.drop_dependencies(at);
        }
        self.note_failed(at);
        self.queues[queue].failed += 1;
    }

    pub(super) fn retry(
        &mut self,
        at: RowId,
        now: Timestamp,
        due: Option<Timestamp>,
        failure: Option<&FailureDelta>,
    ) {
        self.remember_expires(at);
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

    pub(super) fn time_out(&mut self, at: RowId, now: Timestamp) {
        self.mark(at, now, Mark::TimedOut);
        if self.rows[at].flags.has(Flags::LISTED) {
            let row = &self.rows[at];
            let listed = Some((row.score, row.seq));
            self.cold_mut(at).listed = listed;
        }
        self.detach(at);
        self.forget_expires(at);
        self.forget_ended(at);
        self.rows[at].flags.set(Flags::FRONT | Flags::STALLED, true);
        self.enter_work(at, Timestamp::ZERO);
    }

    pub(super) fn unfail(&mut self, at: RowId, queue: u32, now: Timestamp) {
        self.mark(at, now, Mark::Put { queue });
        self.detach(at);
        self.set_queue(at, queue);
        let row = &mut self.rows[at];
        row.remaining = row.retries as i32;
        self.renew(at, now);
        self.take_key(at);
        for on in self.take_dropped_dependencies(at) {
            self.link(at, on);
        }
        self.enqueue(at, now, None);
    }

    pub(super) fn remove(&mut self, at: RowId) {
        self.unlist(at);
        self.detach(at);
        let queue = self.rows[at].queue;
        self.forget_failed(at, queue);
        if self.rows[at].cold != NONE {
            self.count_dependency_policy(at, false);
            self.release_key(at);
            self.dismiss_waiters(at);
            self.untag_all(at);
            let dependencies: Vec<RowId> = self.dependencies(at).collect();
            dependencies.into_iter().for_each(|on| self.unlink(at, on));
            // Dependents are removed by the same command.
            let dependents: Vec<RowId> = self.dependents(at).collect();
            dependents.into_iter().for_each(|of| self.unlink(of, at));
        }
        self.drop_payload(at);
        self.count_row(at, false);
        let row = &self.rows[at];
        if row.history != BlobRef::NONE {
            self.blobs.remove(row.history);
        }
        if row.cold != NONE {
            self.cold_parts.remove(row.cold as usize);
        }
        self.rows.remove(at);
    }

    /// Takes a failed job out of the day's count of failed jobs.
    pub(super) fn forget_failed(&mut self, at: RowId, queue: u32) {
        if self.rows[at].state == RowState::Failed
            && let Some(when) =
                self.cold(at).and_then(|cold| cold.failure.as_ref()).map(|failure| failure.when)
        {
            self.days(queue, when).failed -= 1;
        }
    }

    /// A later attempt is over: how the earlier one ended is not needed any more.
    pub(super) fn forget_ended(&mut self, at: RowId) {
        if self.rows[at].cold != NONE {
            self.cold_mut(at).ended = None;
            self.trim(at);
        }
    }

    /// The token of a job's last attempt: the current one, or one that ended by its deadline.
    fn last_token(&self, at: RowId) -> u64 {
        let row = &self.rows[at];
        match row.state {
            RowState::Running => row.seq,
            _ => self.cold(at).and_then(|cold| cold.ended).map_or(row.seq, |(token, _)| token),
        }
    }

    /// The attempt that ended by its deadline may not complete or fail the job any more.
    pub(super) fn forget_timed_out(&mut self, at: RowId) {
        if self.cold(at).is_some_and(|cold| matches!(cold.ended, Some((_, Ended::TimedOut)))) {
            self.forget_ended(at);
        }
    }

    pub(super) fn days(&mut self, queue: u32, now: Timestamp) -> &mut Day {
        self.queues[queue].days.at(now, self.config.numbers.keep_stats)
    }
}

pub(super) fn failure_row(failure: &FailureDelta) -> FailureRow {
    FailureRow {
        group: failure.group,
        message: failure.message.clone(),
        when: failure.when,
        worker: failure.worker.unwrap_or(NONE),
    }
}
