//! Applies announced capabilities, and the changes for a worker that is lost or was not seen for long.

use super::super::{Flags, NONE, ReadyKey, RowId, RowState, State, Worker};
use crate::engine::delta::NameId;
use crate::{EndReason, Seconds, Timestamp};

impl State {
    pub(super) fn see(&mut self, worker: NameId, now: Timestamp) {
        if self.workers[worker].capabilities.is_empty() {
            if self.workers[worker].seen.replace(now).is_none() {
                // From now on it can age.
                self.workers.examine(worker);
            }
            return;
        }
        self.by_last_seen.remove(&self.last_seen_key(worker));
        self.workers[worker].seen = Some(now);
        self.by_last_seen.insert(self.last_seen_key(worker));
    }

    pub(in crate::engine::state) fn add_capability(
        &mut self,
        worker: NameId,
        capability: (NameId, NameId),
        attempt_max: Option<Seconds>,
    ) {
        if self.workers[worker].capabilities.insert(capability, attempt_max).is_none() {
            self.queues.hold(capability.0);
            self.klasses.hold(capability.1);
            self.capability_changes += 1;
            // A parked pop of this worker may have other klasses now.
            self.mark_dirty(capability.0);
        }
        self.by_last_seen.insert(self.last_seen_key(worker));
        self.capable_workers.entry(capability).or_default().insert(worker);
    }

    pub(super) fn remove_capability(&mut self, worker: NameId, capability: (NameId, NameId)) {
        if self.workers[worker].capabilities.remove(&capability).is_none() {
            return;
        }
        self.queues.release(capability.0);
        self.klasses.release(capability.1);
        self.capability_changes += 1;
        self.mark_dirty(capability.0);
        if self.workers[worker].capabilities.is_empty() {
            self.by_last_seen.remove(&self.last_seen_key(worker));
            self.workers.examine(worker);
        }
        if let Some(workers) = self.capable_workers.get_mut(&capability) {
            workers.remove(&worker);
            if workers.is_empty() {
                self.capable_workers.remove(&capability);
            }
        }
    }

    pub(super) fn clear_capabilities(&mut self, worker: NameId) {
        let capabilities: Vec<_> = self.workers[worker].capabilities.keys().copied().collect();
        capabilities.into_iter().for_each(|capability| self.remove_capability(worker, capability));
    }

    pub(super) fn age_worker(&mut self, worker: u32) {
        self.clear_capabilities(worker);
        let warned = std::mem::take(&mut self.workers[worker].warned);
        let aged = std::mem::replace(&mut self.workers[worker], Worker { warned, ..Default::default() });
        for entry in aged.jobs.slice(0..aged.jobs.len()) {
            self.save_preimage(entry.row);
            self.rows[entry.row].flags.set(Flags::LISTED, false);
            if self.rows[entry.row].cold != NONE {
                self.cold_mut(entry.row).listed = None;
            }
        }
        self.workers.examine(worker);
    }

    pub(super) fn crash(&mut self, at: RowId, now: Timestamp, evidence: &Option<Box<str>>) {
        self.end_attempt(at, now, EndReason::WorkerLost, None, evidence.as_deref());
        self.spend_retry(at);
        let extension = self.extension_mut(at);
        extension.crashes += 1;
        extension.evidence = evidence.clone();
    }

    /// Moves a job to the front of its priority. Its token serves as arrival number, so several such jobs
    /// keep their order.
    pub(super) fn bring_to_front(&mut self, at: RowId) {
        self.take_from_worker(at);
        let row = &mut self.rows[at];
        (row.state, row.score) = (RowState::Waiting, Timestamp::MIN);
        let (queue, klass, entry) = (row.queue, row.klass, ReadyKey::of(at, row));
        self.queues[queue].insert_work(klass, entry);
        if self.rows[at].cold != NONE {
            self.enter_expiries(at);
        }
        self.mark_dirty(queue);
    }

    /// Schedules a job that its worker gives back.
    pub(super) fn snooze(&mut self, at: RowId, due: Timestamp) {
        self.take_from_worker(at);
        self.schedule(at, due);
    }

    /// Ends the attempt at a running job, and forgets its worker. The caller must add it to an index.
    fn take_from_worker(&mut self, at: RowId) {
        self.set_grace(at, false);
        self.unlist(at);
        self.detach(at);
        self.forget_expires(at);
        self.forget_ended(at);
        self.set_worker(at, NONE);
    }
}
