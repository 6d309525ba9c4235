//! Applies put options: unique keys, result waiters, deadlines, expiries. Also allocates and frees the cold
//! part of a row.

use std::collections::btree_map::Entry;

use super::super::cold::ColdPart;
use super::super::extension::Extension;
use super::super::{NONE, RowId, RowState, State};
use crate::{OrphanPolicy, PutOptions, ResultWaiter, Seconds, Timestamp};

impl State {
    pub(super) fn set_put_options(&mut self, at: RowId, options: &PutOptions) {
        self.release_key(at);
        self.leave_expiries(at);
        self.count_dependency_policy(at, false);
        let extension = self.extension_mut(at);
        *extension = Extension {
            options: options.clone(),
            waiters: std::mem::take(&mut extension.waiters),
            deadline: extension.deadline,
            progress: extension.progress,
            ..Extension::default()
        };
        self.count_dependency_policy(at, true);
        self.take_key(at);
        self.enter_expiries(at);
        self.note_behind_failed(at);
        self.trim_extension(at);
    }

    /// The job is to run again: past expiry and crashes of workers no longer count.
    pub(super) fn renew(&mut self, at: RowId, now: Timestamp) {
        let Some(extension) = self.cold_mut(at).extension.as_deref_mut() else { return };
        extension.options.expires = extension.options.expires.filter(|expires| *expires > now);
        (extension.crashes, extension.evidence) = (0, None);
        self.trim_extension(at);
    }

    pub(super) fn merge(&mut self, at: RowId, result_ttl: Option<Seconds>, always: bool) {
        let extension = self.extension_mut(at);
        extension.joined += 1;
        extension.options.result_ttl = extension.options.result_ttl.max(result_ttl);
        if always {
            extension.options.orphan_policy = OrphanPolicy::Always;
        }
    }

    pub(super) fn attach(&mut self, at: RowId, waiter: ResultWaiter) {
        self.extension_mut(at).waiters.push_back(waiter);
        self.waiters.insert(waiter, at);
    }

    pub(super) fn detach_waiter(&mut self, at: RowId, waiter: &ResultWaiter) {
        let waiters = &mut self.extension_mut(at).waiters;
        // Mostly the oldest waiter leaves first.
        if let Some(position) = waiters.iter().position(|other| other == waiter) {
            waiters.remove(position);
        }
        self.waiters.remove(waiter);
        self.trim_extension(at);
    }

    /// Detaches all waiters of a job that ended.
    pub(super) fn dismiss_waiters(&mut self, at: RowId) {
        if self.extension(at).is_none_or(|extension| extension.waiters.is_empty()) {
            return;
        }
        for waiter in std::mem::take(&mut self.extension_mut(at).waiters) {
            self.waiters.remove(&waiter);
        }
        self.trim_extension(at);
    }

    pub(super) fn set_deadline(&mut self, at: RowId, deadline: Timestamp) {
        self.extension_mut(at).deadline = Some(deadline);
        self.deadlines.insert((deadline, self.rows[at].seq, at));
    }

    /// Takes the job's unique key, if it has one and no other job owns it.
    pub(super) fn take_key(&mut self, at: RowId) {
        let queue = self.rows[at].queue;
        let Some(key) = self.extension(at).and_then(|extension| extension.options.unique.clone()) else {
            return;
        };
        let keys = &mut self.queues[queue].keys;
        if let Entry::Vacant(free) = keys.entry(key) {
            free.insert(at);
            self.extension_mut(at).has_key = true;
        }
    }

    pub(super) fn release_key(&mut self, at: RowId) {
        if !self.extension(at).is_some_and(|extension| extension.has_key) {
            return;
        }
        let queue = self.rows[at].queue;
        let extension = self.extension_mut(at);
        extension.has_key = false;
        if let Some(key) = extension.options.unique.clone() {
            self.queues[queue].keys.remove(&key);
        }
    }

    /// Removes a job with a cold part from the expiries, and a running one from the deadlines.
    pub(super) fn leave_extension_indexes(&mut self, at: RowId) {
        self.leave_expiries(at);
        if self.rows[at].state != RowState::Running {
            return;
        }
        let token = self.rows[at].seq;
        let Some(extension) = self.cold_mut(at).extension.as_deref_mut() else { return };
        extension.progress = None;
        if let Some(deadline) = extension.deadline.take() {
            self.deadlines.remove(&(deadline, token, at));
        }
        self.trim_extension(at);
    }

    pub(in crate::engine::state) fn enter_expiries(&mut self, at: RowId) {
        if let Some(entry) = self.expiry(at) {
            self.expiries.insert(entry);
        }
    }

    pub(super) fn leave_expiries(&mut self, at: RowId) {
        if let Some(entry) = self.expiry(at) {
            self.expiries.remove(&entry);
        }
    }

    pub(super) fn extension_mut(&mut self, at: RowId) -> &mut Extension {
        self.cold_mut(at).extension.get_or_insert_default()
    }

    /// Frees an empty extension.
    pub(super) fn trim_extension(&mut self, at: RowId) {
        if self.rows[at].cold == NONE {
            return;
        }
        let cold = self.cold_mut(at);
        if cold.extension.as_deref() == Some(&Extension::default()) {
            cold.extension = None;
            self.trim(at);
        }
    }

    pub(in crate::engine::state) fn cold_mut(&mut self, at: RowId) -> &mut ColdPart {
        let row = &mut self.rows[at];
        if row.cold == NONE {
            row.cold = u32::try_from(self.cold_parts.insert(Box::default()))
                .expect("there are fewer of these than rows");
        }
        &mut self.cold_parts[row.cold as usize]
    }

    /// Frees an empty cold part.
    pub(super) fn trim(&mut self, at: RowId) {
        let row = &mut self.rows[at];
        if row.cold != NONE && *self.cold_parts[row.cold as usize] == ColdPart::default() {
            self.cold_parts.remove(row.cold as usize);
            row.cold = NONE;
        }
    }
}
