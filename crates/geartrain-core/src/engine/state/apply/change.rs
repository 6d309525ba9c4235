//! Applies changes of priority, dependencies, tags, tracking, history, options and limits.

use super::super::blobs::BlobRef;
use super::super::cold::Tagging;
use super::super::history::{self, Mark};
use super::super::stats::Days;
use super::super::{Flags, NONE, RateLimiter, RowId, RowState, State, config};
use crate::{Jid, Priority, QueueLimits, Tag, Timestamp};

impl State {
    pub(super) fn prioritise(&mut self, at: RowId, priority: Priority) {
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

    pub(super) fn limit(&mut self, queue: u32, limits: Option<&QueueLimits>) {
        let of = &mut self.queues[queue];
        of.rate_limiter = limits.and_then(|limits| limits.rate).map(RateLimiter::new);
        of.limits = limits.map(|limits| Box::new(limits.clone()));
        self.mark_dirty(queue);
        self.queues.examine(queue);
    }

    pub(super) fn mark(&mut self, at: RowId, when: Timestamp, mark: Mark<'_>) {
        let limit = self.config.numbers.history_max;
        let row = &mut self.rows[at];
        if row.history == BlobRef::NONE {
            row.history = history::begin(&mut self.blobs, row.time, row.queue);
            self.queues.hold(row.queue);
        }
        let mut dropped = Vec::new();
        row.history = history::append(&mut self.blobs, row.history, limit, when, mark, &mut dropped);
        match mark {
            Mark::Put { queue } => self.queues.hold(queue),
            Mark::Popped { worker } | Mark::Released { worker } | Mark::Crashed { worker } => {
                self.workers.hold(worker);
            }
            Mark::Failed { worker, group } => {
                self.workers.hold(worker);
                self.groups.hold(group);
            }
            Mark::Done | Mark::TimedOut | Mark::Log { .. } => {}
        }
        dropped.into_iter().for_each(|(kind, name)| self.release_name(kind, name));
    }

    pub(super) fn configure(&mut self, option: &str, value: Option<&str>) {
        self.config.set(option, value);
        for name in config::queues_of(option) {
            if let Some(queue) = self.queues.find(name) {
                self.queues[queue].options = self.config.of_queue(name);
                self.mark_dirty(queue);
            }
        }
    }

    pub(super) fn link(&mut self, at: RowId, on: RowId) {
        self.save_preimage(on);
        self.cold_mut(at).dependencies.insert(on);
        self.cold_mut(on).dependents.insert(at);
    }

    pub(super) fn unlink(&mut self, at: RowId, on: RowId) {
        self.save_preimage(at);
        self.save_preimage(on);
        self.cold_mut(at).dependencies.remove(&on);
        self.cold_mut(on).dependents.remove(&at);
        self.trim(at);
        self.trim(on);
    }

    pub(super) fn undepend(&mut self, at: RowId, off: &[RowId], now: Timestamp) {
        off.iter().for_each(|on| self.unlink(at, *on));
        if self.dependencies(at).next().is_none() {
            self.detach(at);
            self.enter_work(at, now);
        } else {
            self.note_behind_failed(at);
        }
    }

    pub(super) fn release_dependents(&mut self, at: RowId, now: Timestamp) {
        let mut dependents: Vec<(Jid, RowId)> =
            self.dependents(at).map(|of| (self.rows.jid(of), of)).collect();
        dependents.sort_unstable();
        for (_, of) in dependents {
            self.unlink(of, at);
            self.release_if_free(of, now);
        }
    }

    /// Tags a job now. A tag that it has already is stored again only if it is to be stored twice.
    pub(super) fn tag(&mut self, at: RowId, tag: &Tag, now: Timestamp, twice: bool) {
        self.count_tag(tag, 1);
        let seq = self.next_seq();
        let cold = self.cold_mut(at);
        let mut old = None;
        for tagging in cold.tags.iter_mut().filter(|tagging| tagging.tag == *tag) {
            old = Some(tagging.at);
            (tagging.at, tagging.seq) = (now, seq);
        }
        if twice || old.is_none() {
            cold.tags.push(Tagging { tag: tag.clone(), at: now, seq });
        }
        let (old, new) = (old.map(|old| self.tag_key(at, old)), self.tag_key(at, now));
        let jobs = &mut self.tags.entry(tag.clone()).or_default().jobs;
        if let Some(old) = old {
            jobs.remove(old);
        }
        jobs.insert(new);
    }

    pub(super) fn untag(&mut self, at: RowId, tag: &Tag) {
        if let Some(found) =
            self.cold(at).and_then(|cold| cold.tags.iter().find(|tagging| tagging.tag == *tag))
        {
            let entry = self.tag_key(at, found.at);
            if let Some(usage) = self.tags.get_mut(tag) {
                usage.jobs.remove(entry);
            }
            self.cold_mut(at).tags.retain(|tagging| tagging.tag != *tag);
            self.trim(at);
        }
        self.count_tag(tag, -1);
    }

    /// Removes all tags of a job, and returns them.
    pub(super) fn untag_all(&mut self, at: RowId) -> Vec<Tag> {
        if self.rows[at].cold == NONE {
            return Vec::new();
        }
        let taggings = std::mem::take(&mut self.cold_mut(at).tags);
        for tagging in &taggings {
            let entry = self.tag_key(at, tagging.at);
            if let Some(usage) = self.tags.get_mut(&tagging.tag) {
                usage.jobs.remove(entry);
            }
            self.count_tag(&tagging.tag, -1);
        }
        self.trim(at);
        taggings.into_iter().map(|tagging| tagging.tag).collect()
    }

    pub(super) fn count_tag(&mut self, tag: &Tag, change: i64) {
        let before = self.tags.get(tag).map_or(0, |usage| usage.count);
        self.set_tag_count(tag.clone(), before + change);
    }

    pub(in crate::engine::state) fn set_tag_count(&mut self, tag: Tag, count: i64) {
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

    /// Clears all of a queue but its jobs.
    pub(super) fn clear_queue(&mut self, queue: u32) {
        let of = &mut self.queues[queue];
        (of.registered, of.paused, of.last_polled) = (None, false, None);
        (of.limits, of.rate_limiter) = (None, None);
        of.days = Days::default();
        of.by_klass = None;
        self.mark_dirty(queue);
        self.queues.examine(queue);
    }

    pub(super) fn track(&mut self, jid: &Jid, now: Timestamp) {
        let seq = self.next_seq();
        if let Some(old) = self.tracked.insert(jid.clone(), (now, seq)) {
            self.tracked_order.remove(&old);
        }
        self.tracked_order.insert((now, seq), jid.clone());
        self.flag_tracked(jid, true);
    }

    pub(super) fn untrack(&mut self, jid: &Jid) {
        if let Some(old) = self.tracked.remove(jid) {
            self.tracked_order.remove(&old);
        }
        self.flag_tracked(jid, false);
    }

    pub(super) fn flag_tracked(&mut self, jid: &Jid, on: bool) {
        if let Some(at) = self.rows.find(jid) {
            self.save_preimage(at);
            self.rows[at].flags.set(Flags::TRACKED, on);
        }
    }
}
