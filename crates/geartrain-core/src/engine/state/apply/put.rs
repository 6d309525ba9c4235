//! Applies puts: makes and fills rows, and moves them between the indexes of their queues.

use std::collections::BTreeSet;

use super::super::cold::Ended;
use super::super::history::Mark;
use super::super::{DueKey, Flags, NONE, ReadyKey, RowId, RowState, State};
use crate::engine::delta::{ITSELF, PutDelta};
use crate::{CompleteReply, Jid, Payload, Tag, Timestamp};

impl State {
    pub(super) fn put(&mut self, put: &PutDelta) {
        let (at, old_tags) = match put.row {
            Some(at) => (at, self.leave_to_be_put(at, put)),
            None => (self.new_row(&put.jid), Vec::new()),
        };
        self.fill(at, put.queue, put.klass, &put.payload, put.priority, put.retries, put.now);
        self.set_worker(at, NONE);
        self.forget_expires(at);
        if self.rows[at].cold != NONE {
            self.renew(at, put.now);
            self.take_key(at);
            let again = self.take_dropped_dependencies(at);
            if put.depends.is_none() {
                again.into_iter().for_each(|on| self.link(at, on));
            }
        }
        for tag in put.tags.as_deref().unwrap_or(&old_tags) {
            self.tag(at, tag, put.now, true);
        }
        for on in put.depends.as_deref().unwrap_or_default() {
            self.link(at, if *on == ITSELF { at } else { *on });
        }
        self.enqueue(at, put.now, put.due);
        self.register(put.queue, put.now);
    }

    /// Prepares a job to be put again: removes it from its index and drops its payload. Returns its tags.
    pub(super) fn leave_to_be_put(&mut self, at: RowId, put: &PutDelta) -> Vec<Tag> {
        if let Some(depends) = &put.depends {
            let depends: BTreeSet<RowId> = depends.iter().copied().collect();
            let stays = |on: &RowId| depends.contains(on) || (*on == at && depends.contains(&ITSELF));
            let old: Vec<RowId> = self.dependencies(at).filter(|on| !stays(on)).collect();
            old.into_iter().for_each(|on| self.unlink(at, on));
        }
        self.leave_index(at, put.queue, put.now);
        self.drop_payload(at);
        self.untag_all(at)
    }

    /// Puts a job again as it is.
    pub(super) fn requeue(&mut self, at: RowId, queue: u32, now: Timestamp) {
        self.leave_index(at, queue, now);
        let tags = self.untag_all(at);
        self.set_queue(at, queue);
        let row = &mut self.rows[at];
        row.remaining = row.retries as i32;
        row.time = now;
        self.set_worker(at, NONE);
        self.forget_expires(at);
        if self.rows[at].cold != NONE {
            self.renew(at, now);
            self.take_key(at);
            for on in self.take_dropped_dependencies(at) {
                self.link(at, on);
            }
        }
        for tag in &tags {
            self.tag(at, tag, now, true);
        }
        self.enqueue(at, now, None);
        self.register(queue, now);
    }

    /// Removes a job that is put again, into this queue, from the index of its state.
    fn leave_index(&mut self, at: RowId, queue: u32, now: Timestamp) {
        self.mark(at, now, Mark::Put { queue });
        match self.rows[at].state {
            RowState::Complete => {
                let token = self.rows[at].seq;
                self.cold_mut(at).ended = Some((token, Ended::Completed(CompleteReply::Complete)));
            }
            RowState::Running => self.forget_ended(at),
            _ => self.forget_timed_out(at),
        }
        self.unlist(at);
        self.release_key(at);
        self.detach(at);
        self.forget_failed(at, queue);
    }

    /// Fills a row that has no payload.
    #[allow(clippy::too_many_arguments, reason = "a put and a spawn have these in common and nothing else")]
    pub(super) fn fill(
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

    pub(super) fn new_row(&mut self, jid: &Jid) -> RowId {
        let at = self.rows.insert(jid);
        if !self.tracked.is_empty() && self.tracked.contains_key(jid) {
            self.rows[at].flags.set(Flags::TRACKED, true);
        }
        if !self.tombstones.is_empty() {
            self.tombstones.remove(jid);
        }
        at
    }

    pub(super) fn set_payload(&mut self, at: RowId, payload: &Option<Payload>) {
        if let Some(payload) = payload {
            self.drop_payload(at);
            self.set_new_payload(at, payload);
        }
    }

    /// Adds a job that is in no index to the right one: dependent, scheduled or ready.
    pub(super) fn enqueue(&mut self, at: RowId, now: Timestamp, due: Option<Timestamp>) {
        let depends = self.cold(at).is_some_and(|cold| !cold.dependencies.is_empty());
        match due {
            _ if depends => {
                if due.is_some() {
                    self.cold_mut(at).due = due;
                }
                let entry = self.enter(at, RowState::Depends, now);
                self.queues[self.rows[at].queue].depends.insert(entry);
                self.note_behind_failed(at);
            }
            Some(due) => self.schedule(at, due),
            None => self.enter_work(at, now),
        }
    }

    pub(super) fn schedule(&mut self, at: RowId, due: Timestamp) {
        let entry = self.enter(at, RowState::Scheduled, due);
        let queue = self.rows[at].queue;
        self.queues[queue].insert_scheduled(self.rows[at].klass, entry);
        self.mark_dirty(queue);
    }

    pub(super) fn enter_work(&mut self, at: RowId, moment: Timestamp) {
        self.enter(at, RowState::Waiting, moment);
        let row = &self.rows[at];
        let (queue, entry) = (row.queue, ReadyKey::of(at, row));
        self.queues[queue].insert_work(row.klass, entry);
        self.mark_dirty(queue);
    }

    pub(super) fn enter(&mut self, at: RowId, state: RowState, score: Timestamp) -> DueKey {
        let seq = self.next_seq();
        let row = &mut self.rows[at];
        row.state = state;
        row.score = score;
        row.seq = seq;
        let (entry, cold) = (DueKey::of(at, row), row.cold);
        if cold != NONE {
            self.enter_expiries(at);
        }
        entry
    }

    /// Removes a job from the index of its state. The caller must add it to another or remove the row.
    pub(super) fn detach(&mut self, at: RowId) {
        if self.rows[at].cold != NONE {
            self.leave_extension_indexes(at);
        }
        let row = &self.rows[at];
        let was_there = match row.state {
            RowState::Free => true,
            RowState::Scheduled => self.queues[row.queue].remove_scheduled(row.klass, DueKey::of(at, row)),
            RowState::Depends => {
                let (queue, entry) = (row.queue, DueKey::of(at, row));
                self.leave_behind_failed(at);
                self.queues[queue].depends.remove(entry)
            }
            RowState::Waiting => self.queues[row.queue].remove_work(row.klass, ReadyKey::of(at, row)),
            RowState::Running => {
                let (queue, klass, lock) = (row.queue, row.klass, DueKey::of(at, row));
                if row.flags.has(Flags::GRACE) {
                    let worker = row.worker;
                    self.workers[worker].warned.remove(&at);
                }
                self.mark_dirty(queue);
                self.queues[queue].remove_lock(klass, lock)
            }
            RowState::Complete => self.complete.remove(DueKey::of(at, row)),
            RowState::Failed => {
                let (queue, seq) = (row.queue, row.seq);
                if self.is_set_aside(at) {
                    self.cold_mut(at).due = None;
                }
                self.note_no_longer_failed(at);
                let group = self
                    .cold(at)
                    .and_then(|cold| cold.failure.as_ref())
                    .map_or(NONE, |failure| failure.group);
                self.queues[queue].failed -= 1;
                self.groups[group].remove((seq, at))
            }
        };
        debug_assert!(was_there, "row {at} was not where its state says");
        // These flags describe the old state.
        self.rows[at].flags.set(Flags::FRONT | Flags::STALLED | Flags::ADVANCED, false);
    }

    pub(super) fn register(&mut self, queue: u32, now: Timestamp) {
        self.queues[queue].registered.get_or_insert(now);
    }
}
