//! Applies pops and changes of locks: fencing tokens, grace periods, the workers' lists. Also tracks dirty
//! queues.

use super::super::history::Mark;
use super::super::{DueKey, Flags, RowId, RowState, State};
use crate::{EndReason, Timestamp};

impl State {
    pub(super) fn pop(&mut self, at: RowId, worker: u32, now: Timestamp, expires: Timestamp) {
        self.mark(at, now, Mark::Popped { worker });
        self.unlist(at);
        self.detach(at);
        let row = &self.rows[at];
        let (queue, waited) = (row.queue, now - row.time);
        self.days(queue, now).wait.add(waited);
        if let Some(rate_limiter) = &mut self.queues[queue].rate_limiter {
            rate_limiter.start(now);
        }
        let lock = self.enter(at, RowState::Running, expires);
        self.set_worker(at, worker);
        let row = &mut self.rows[at];
        row.time = now;
        if row.flags.has(Flags::GRACE) {
            self.workers[worker].warned.insert(at);
        }
        self.forget_expires(at);
        self.queues[queue].insert_lock(self.rows[at].klass, lock);
        self.list(at);
        self.mark_dirty(queue);
    }

    /// Begins another attempt of the worker that has the job. The job did not wait, so no wait is measured,
    /// and its start was counted by the rate limiter already.
    pub(super) fn lock_again(&mut self, at: RowId, now: Timestamp, expires: Timestamp) {
        self.end_attempt(at, now, EndReason::Resumed, None, None);
        let (queue, klass, worker) = (self.rows[at].queue, self.rows[at].klass, self.rows[at].worker);
        self.mark(at, now, Mark::Popped { worker });
        self.set_grace(at, false);
        self.unlist(at);
        self.detach(at);
        self.forget_ended(at);
        let lock = self.enter(at, RowState::Running, expires);
        self.rows[at].time = now;
        self.forget_expires(at);
        self.queues[queue].insert_lock(klass, lock);
        self.list(at);
        self.mark_dirty(queue);
    }

    pub(super) fn warn(&mut self, at: RowId, now: Timestamp, until: Timestamp) {
        self.unlist(at);
        self.mark(at, now, Mark::TimedOut);
        self.remember_expires(at);
        self.relock(at, until);
        self.set_grace(at, true);
        let queue = self.rows[at].queue;
        self.days(queue, now).retries += 1;
    }

    /// Begins or ends the grace period of a job's holder.
    pub(super) fn set_grace(&mut self, at: RowId, on: bool) {
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

    pub(super) fn spend_retry(&mut self, at: RowId) {
        self.unlist(at);
        self.forget_ended(at);
        self.set_grace(at, false);
        self.rows[at].remaining -= 1;
    }

    /// Changes a lock's expiry.
    pub(super) fn relock(&mut self, at: RowId, deadline: Timestamp) {
        let row = &mut self.rows[at];
        let (queue, klass, old) = (row.queue, row.klass, DueKey::of(at, row));
        row.score = deadline;
        let new = DueKey::of(at, row);
        let of = &mut self.queues[queue];
        of.remove_lock(klass, old);
        of.insert_lock(klass, new);
        self.mark_dirty(queue);
    }

    pub(super) fn list(&mut self, at: RowId) {
        let row = &mut self.rows[at];
        row.flags.set(Flags::LISTED, true);
        let (worker, entry) = (row.worker, DueKey::of(at, row));
        self.workers[worker].jobs.insert(entry);
    }

    pub(super) fn unlist(&mut self, at: RowId) {
        let row = &self.rows[at];
        if !row.flags.has(Flags::LISTED) {
            return;
        }
        let worker = row.worker;
        let entry = if row.state == RowState::Running {
            DueKey::of(at, row)
        } else {
            let (deadline, seq) = self.cold_mut(at).listed.take().unwrap_or_default();
            DueKey { at: deadline, seq, row: at }
        };
        self.workers[worker].jobs.remove(entry);
        self.rows[at].flags.set(Flags::LISTED, false);
    }

    /// Stores the deadline that Qless continues to name.
    pub(super) fn remember_expires(&mut self, at: RowId) {
        let expires = self.expires(at);
        self.cold_mut(at).expires = Some(expires);
        self.rows[at].flags.set(Flags::EXPIRES, true);
    }

    pub(super) fn forget_expires(&mut self, at: RowId) {
        if self.rows[at].flags.has(Flags::EXPIRES) {
            self.rows[at].flags.set(Flags::EXPIRES, false);
            self.cold_mut(at).expires = None;
            self.trim(at);
        }
    }

    /// Starts or stops watching a queue. No delta: it is neither logged nor visible.
    pub(crate) fn watch(&mut self, queue: u32, on: bool) {
        let of = &mut self.queues[queue];
        of.watched = on;
        if !on {
            // The list of dirty queues must not name a queue that can be removed.
            if std::mem::take(&mut of.dirty) {
                self.dirty_queues.retain(|dirty| *dirty != queue);
            }
            self.queues.examine(queue);
        }
    }

    pub(super) fn mark_dirty(&mut self, queue: u32) {
        let of = &mut self.queues[queue];
        if of.watched && !of.dirty {
            of.dirty = true;
            self.dirty_queues.push(queue);
        }
    }

    /// The queues that became dirty since the last call, each once.
    pub(crate) fn take_dirty_queues(&mut self) -> Vec<u32> {
        let dirty = std::mem::take(&mut self.dirty_queues);
        for queue in &dirty {
            self.queues[*queue].dirty = false;
        }
        dirty
    }
}
