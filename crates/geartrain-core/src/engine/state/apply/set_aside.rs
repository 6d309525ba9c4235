//! Applies what sets jobs aside, and what puts them back.

use super::super::{NONE, RowId, RowState, State};
use super::finish::failure_row;
use crate::engine::delta::{FailDelta, FailureDelta};
use crate::{StateName, Timestamp};

impl State {
    /// A job joins the group of those that are set aside. Other than a job that fails, it keeps its history,
    /// and its dependents wait.
    pub(super) fn set_aside(&mut self, aside: &FailDelta) {
        let at = aside.row;
        let (was, queue) = (self.rows[at].state, self.rows[at].queue);
        let due = (was == RowState::Scheduled).then_some(self.rows[at].score);
        self.forget_failed(at, queue);
        self.unlist(at);
        self.release_key(at);
        // Behind it there may be a job that can start.
        self.mark_dirty(queue);
        self.detach(at);
        self.forget_expires(at);
        self.set_worker(at, NONE);
        self.set_failure(at, Some(failure_row(&aside.failure)));
        self.forget_timed_out(at);
        match was {
            RowState::Depends => self.drop_dependencies(at),
            // One that was left behind by earlier dependencies does not count.
            _ => self.cold_mut(at).due = due,
        }
        self.enter_failed(at, aside.now, &aside.failure);
    }

    /// A job that is set aside is put back as it was.
    pub(super) fn put_back(&mut self, at: RowId, now: Timestamp, failure: Option<&FailureDelta>) {
        let Some(record) = self.transfer_record(at) else { return };
        let queue = self.rows[at].queue;
        let due = self.cold_mut(at).due.take();
        self.forget_failed(at, queue);
        self.detach(at);
        self.set_failure(at, failure.map(failure_row));
        if let (StateName::Failed, Some(failure)) = (record.was, failure) {
            self.enter_failed(at, now, failure);
            self.note_failed(at);
            return;
        }
        self.take_key(at);
        if record.was == StateName::Depends {
            for on in self.take_set_aside_dependencies(at) {
                self.link(at, on);
            }
        }
        let depends = self.dependencies(at).next().is_some();
        match due {
            None if !depends => self.enter_work(at, self.rows[at].time),
            due => self.enqueue(at, now, due),
        }
        if self.rows[at].cold != NONE {
            self.trim(at);
        }
    }

    fn enter_failed(&mut self, at: RowId, now: Timestamp, failure: &FailureDelta) {
        let queue = self.rows[at].queue;
        self.days(queue, failure.when).failed += 1;
        let entry = self.enter(at, RowState::Failed, now);
        self.groups[failure.group].insert((entry.seq, at));
        self.queues[queue].failed += 1;
    }
}
