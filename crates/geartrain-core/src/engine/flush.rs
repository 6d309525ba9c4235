//! Flush: removes everything, a bounded amount per command. What remains only keeps numbers from being issued
//! twice: fencing tokens, event positions and counters.
//!
//! It consists of deltas that other commands have too, and of some that clear statistics, samples of rates and
//! the count of a tag. Each leaves a consistent state, so a crash in the middle loses some jobs and leaves the
//! others whole.

use super::{Delta, Effects, Engine, RowId, RowState};
use crate::{Flush, Jid, Refusal, Setting, Tag, Timestamp};

impl Engine {
    /// Removes up to `count` items. Returns whether there may be more.
    pub(super) fn flush(&mut self, now: Timestamp, flush: &Flush, fx: &mut Effects) -> Result<bool, Refusal> {
        let mut left = flush.count.get();
        if left == 0 {
            return Err(Refusal::BadArgument { what: "count".into(), why: "must be at least 1".into() });
        }
        for row in self.state.any_rows(left) {
            self.flush_job(row, now, fx);
            left -= 1;
        }
        for template in self.state.any_templates(left) {
            self.commit(Delta::Unrecur(template), fx);
            left -= 1;
        }
        let periodics = self.state.periodics().after(None).take(left).map(|of| of.template.put.jid.clone());
        let periodics: Vec<Jid> = periodics.collect();
        left -= periodics.len();
        periodics.into_iter().for_each(|jid| self.commit(Delta::PeriodicRemoved(jid), fx));
        let tracked: Vec<Jid> = self.state.tracked().take(left).cloned().collect();
        left -= tracked.len();
        tracked.into_iter().for_each(|jid| self.commit(Delta::Untrack(jid), fx));
        let results: Vec<Jid> = self.state.results().iter().take(left).map(|of| of.jid.clone()).collect();
        left -= results.len();
        results.into_iter().for_each(|jid| self.commit(Delta::ResultDropped(jid), fx));
        let tombstones: Vec<Jid> =
            self.state.tombstones().iter().take(left).map(|of| of.jid.clone()).collect();
        left -= tombstones.len();
        tombstones.into_iter().for_each(|jid| self.commit(Delta::TombstoneDropped(jid), fx));
        let options = self.state.options().into_iter();
        let chosen = options.filter(|(_, setting)| matches!(setting, Setting::Chosen(_))).take(left);
        for (option, _) in chosen.collect::<Vec<_>>() {
            self.commit(Delta::Config(option.into(), None), fx);
            left -= 1;
        }
        for worker in self.state.known_workers(left) {
            self.commit(Delta::ForgetWorker(worker), fx);
            left -= 1;
        }
        // Only now: removing jobs, templates and capabilities changes queues and tags.
        let tags: Vec<Tag> = self.state.all_tags().take(left).cloned().collect();
        left -= tags.len();
        tags.into_iter().for_each(|tag| self.commit(Delta::TagCleared(tag), fx));
        for queue in self.state.used_queues(left) {
            self.commit(Delta::QueueCleared(queue), fx);
            left -= 1;
        }
        if left == 0 {
            return Ok(true);
        }
        self.commit(Delta::RatesSampled(None), fx);
        self.clear_event_log(fx);
        Ok(false)
    }

    /// Removes a job. Its result waiters are told that it was cancelled; no event is published.
    fn flush_job(&mut self, row: RowId, now: Timestamp, fx: &mut Effects) {
        // A dependent without dependencies must not be left among those that have some.
        let depends = |of: &RowId| *of != row && self.state.row(*of).state == RowState::Depends;
        let dependents: Vec<RowId> = self.state.dependents(row).filter(depends).collect();
        for dependent in dependents {
            self.commit(Delta::Undepend(dependent, [row].into(), now), fx);
        }
        self.deliver_canceled(row, fx);
        self.commit(Delta::Remove(row), fx);
    }

    /// Discards the retained events, unless a subscriber must receive each of them.
    fn clear_event_log(&mut self, fx: &mut Effects) {
        if let Some(listened) = self.state.event_log().listened.filter(|_| self.limits.events_held_max == 0) {
            self.commit(Delta::Listening(None), fx);
            self.commit(Delta::Listening(Some(listened)), fx);
        }
    }
}
