//! Applies what follows when a job fails that others depend on, and maintains the index of these others.

use super::super::{NONE, RowId, RowState, State};
use crate::{DependencyPolicy, Jid, Timestamp};

/// How many jobs the search for a dependency cycle visits at most, before a dependency is restored.
const CYCLE_WALK_MAX: usize = 10_000;

impl State {
    /// Adds a job to the index of jobs behind a failed one, or removes it, as its row says.
    pub(in crate::engine::state) fn note_behind_failed(&mut self, at: RowId) {
        if self.is_behind_failed(at) {
            self.behind_failed.insert((self.rows.jid(at), at));
        } else {
            self.leave_behind_failed(at);
        }
    }

    /// Removes a job that no longer depends on others from that index.
    pub(super) fn leave_behind_failed(&mut self, at: RowId) {
        if !self.behind_failed.is_empty() {
            self.behind_failed.remove(&(self.rows.jid(at), at));
        }
    }

    /// Notes the dependents of a job that failed.
    pub(super) fn note_failed(&mut self, at: RowId) {
        let dependents: Vec<RowId> = self.dependents(at).collect();
        dependents.into_iter().for_each(|of| self.note_behind_failed(of));
    }

    /// Notes that a failed job is about to leave that state.
    pub(super) fn note_no_longer_failed(&mut self, at: RowId) {
        if self.behind_failed.is_empty() {
            return;
        }
        let dependents: Vec<RowId> = self.dependents(at).collect();
        for of in dependents {
            if self.failed_dependencies(of).all(|on| on == at) {
                self.leave_behind_failed(of);
            }
        }
    }

    /// Counts a job's dependency policy, or no longer.
    pub(in crate::engine::state) fn count_dependency_policy(&mut self, at: RowId, hold: bool) {
        if self.dependency_policy(at) != DependencyPolicy::Wait {
            self.dependency_policies = match hold {
                true => self.dependency_policies + 1,
                false => self.dependency_policies - 1,
            };
        }
    }

    /// A job that depends on others fails because one of them did. It remembers them for when it is to run
    /// again, but no longer depends on them: a failed job is not released by a completion.
    pub(super) fn drop_dependencies(&mut self, at: RowId) {
        let on: Vec<RowId> = self.dependencies(at).collect();
        let mut dropped: Vec<Jid> = on.iter().map(|on| self.rows.jid(*on)).collect();
        dropped.sort_unstable();
        on.into_iter().for_each(|on| self.unlink(at, on));
        self.extension_mut(at).dropped_dependencies = dropped.into();
    }

    /// The dropped dependencies of a failed job that are unfinished, so that it depends on them again. It
    /// forgets all of them.
    pub(super) fn take_dropped_dependencies(&mut self, at: RowId) -> Vec<RowId> {
        if !self.failed_upstream(at) {
            return Vec::new();
        }
        let dropped = std::mem::take(&mut self.extension_mut(at).dropped_dependencies);
        self.trim_extension(at);
        let mut again: Vec<RowId> = dropped.iter().filter_map(|jid| self.rows.find(jid)).collect();
        again.retain(|on| {
            let unfinished = !matches!(self.rows[*on].state, RowState::Complete | RowState::Failed);
            unfinished && !self.leads_to(*on, at)
        });
        again
    }

    /// The dependencies of a job that is put back after it was set aside: those that are not complete.
    pub(super) fn take_set_aside_dependencies(&mut self, at: RowId) -> Vec<RowId> {
        let dropped = std::mem::take(&mut self.extension_mut(at).dropped_dependencies);
        self.trim_extension(at);
        let mut again: Vec<RowId> = dropped.iter().filter_map(|jid| self.rows.find(jid)).collect();
        again.retain(|on| self.rows[*on].state != RowState::Complete && !self.leads_to(*on, at));
        again
    }

    /// Whether a job depends on another, directly or through others; also if that would take too long to
    /// find out.
    fn leads_to(&self, from: RowId, to: RowId) -> bool {
        if self.dependents(to).next().is_none() {
            return from == to;
        }
        let mut seen = std::collections::HashSet::with_hasher(foldhash::fast::FixedState::default());
        let mut ahead = vec![from];
        while let Some(at) = ahead.pop() {
            if at == to || seen.len() > CYCLE_WALK_MAX {
                return true;
            }
            if seen.insert(at) {
                ahead.extend(self.dependencies(at));
            }
        }
        false
    }

    /// A job no longer depends on some failed jobs.
    pub(super) fn run_without(&mut self, at: RowId, off: &[RowId], now: Timestamp) {
        off.iter().for_each(|on| self.unlink(at, *on));
        self.release_if_free(at, now);
        self.note_behind_failed(at);
    }

    /// Lets a job that depends on no other any more run, or wait for its time.
    pub(super) fn release_if_free(&mut self, of: RowId, now: Timestamp) {
        if self.dependencies(of).next().is_some() {
            return;
        }
        self.detach(of);
        let due = if self.rows[of].cold == NONE { None } else { self.cold_mut(of).due.take() };
        match due {
            Some(due) => self.schedule(of, due),
            None => self.enter_work(of, now),
        }
        self.trim(of);
    }
}
