//! Klass index: the entries of a queue's indexes by klass, for pops that are restricted to klasses.
//!
//! A queue gets one when klasses are first asked of it. It is derived from the rows: neither logged nor part of
//! a snapshot. It is built a part at a time, in the order of the index that it divides: entries up to the last
//! one built are kept up to date, and those behind it are added when the building reaches them.

use std::collections::{BTreeMap, BTreeSet};

use super::{DueKey, NONE, OrderStatTree, Queue, ReadyKey, RowId, State};
use crate::{Klass, Timestamp};

/// How many entries of each index one pop adds, besides those that it needs.
const BUILT_AT_ONCE: usize = 256;

/// The indexes of one queue by klass.
#[derive(Debug, Default)]
pub(crate) struct KlassIndex {
    work: ByKlass<ReadyKey>,
    locks: ByKlass<DueKey>,
    scheduled: ByKlass<DueKey>,
    recurring: ByKlass<DueKey>,
}

impl KlassIndex {
    /// Approximate memory of the capacity at both ends of its trees.
    pub(super) fn bytes(&self) -> usize {
        let KlassIndex { work, locks, scheduled, recurring } = self;
        work.bytes() + locks.bytes() + scheduled.bytes() + recurring.bytes()
    }
}

/// The entries of one index by klass.
#[derive(Debug)]
struct ByKlass<E> {
    entries: BTreeMap<u32, OrderStatTree<E>>,
    built: Built<E>,
}

#[derive(Debug)]
enum Built<E> {
    /// Up to this entry, which need not exist any more.
    UpTo(Option<E>),
    All,
}

impl<E> Default for ByKlass<E> {
    fn default() -> ByKlass<E> {
        ByKlass { entries: BTreeMap::new(), built: Built::UpTo(None) }
    }
}

impl<E: Ord + Copy> ByKlass<E> {
    /// Whether an entry of the whole index belongs here already.
    fn covers(&self, entry: E) -> bool {
        match self.built {
            Built::UpTo(last) => last.is_some_and(|last| entry <= last),
            Built::All => true,
        }
    }

    fn insert(&mut self, klass: u32, entry: E) {
        if self.covers(entry) {
            self.entries.entry(klass).or_default().insert(entry);
        }
    }

    fn remove(&mut self, klass: u32, entry: E) {
        if self.covers(entry)
            && let Some(entries) = self.entries.get_mut(&klass)
        {
            let was_there = entries.remove(entry);
            debug_assert!(was_there, "an entry is not in the index of its klass");
            // Klasses come and go: an empty tree must not remain.
            if entries.is_empty() {
                self.entries.remove(&klass);
            }
        }
    }

    /// Adds the next entries of the whole index.
    fn build(&mut self, whole: &OrderStatTree<E>, klass_of: impl Fn(E) -> u32) {
        let Built::UpTo(last) = self.built else { return };
        let from = last.map_or(0, |last| whole.count_while(|entry| *entry <= last));
        let next = whole.slice(from..from + BUILT_AT_ONCE);
        self.built = match next.last() {
            Some(last) if next.len() == BUILT_AT_ONCE => Built::UpTo(Some(*last)),
            _ => Built::All,
        };
        for entry in next {
            self.entries.entry(klass_of(entry)).or_default().insert(entry);
        }
    }

    /// Builds a part of the index, and goes on until it has an entry of one of the klasses, or is complete.
    fn build_for(&mut self, klasses: &[u32], whole: &OrderStatTree<E>, klass_of: impl Fn(E) -> u32) {
        self.build(whole, &klass_of);
        while matches!(self.built, Built::UpTo(_)) && self.first(klasses).is_none() {
            self.build(whole, &klass_of);
        }
    }

    /// The first entry of these klasses.
    fn first(&self, klasses: &[u32]) -> Option<E> {
        klasses.iter().filter_map(|klass| self.entries.get(klass)?.first()).min()
    }

    /// Whether it agrees with the whole index.
    fn check(&self, whole: &OrderStatTree<E>, klass_of: impl Fn(E) -> u32) -> bool {
        let all = whole.slice(0..whole.len()).into_iter().filter(|entry| self.covers(*entry));
        let mut count = 0;
        let is_indexed = all
            .inspect(|_| count += 1)
            .all(|entry| self.entries.get(&klass_of(entry)).is_some_and(|entries| entries.contains(entry)));
        is_indexed && count == self.entries.values().map(OrderStatTree::len).sum::<usize>()
    }

    fn bytes(&self) -> usize {
        self.entries.values().map(OrderStatTree::bytes).sum()
    }
}

impl ByKlass<DueKey> {
    /// The rows of the first `max` entries of these klasses that are due.
    fn due(
        &mut self,
        klasses: &[u32],
        now: Timestamp,
        max: usize,
        whole: &OrderStatTree<DueKey>,
        klass_of: impl Fn(DueKey) -> u32,
    ) -> Vec<u32> {
        if whole.first().is_none_or(|first| first.at > now) {
            return Vec::new();
        }
        self.build(whole, &klass_of);
        while matches!(self.built, Built::UpTo(last) if last.is_none_or(|last| last.at <= now)) {
            self.build(whole, &klass_of);
        }
        let of_klass = |klass: &u32| {
            let entries = self.entries.get(klass)?;
            let due = entries.count_while(|entry| entry.at <= now);
            Some(entries.slice(0..due.min(max)))
        };
        let mut due: Vec<DueKey> = klasses.iter().filter_map(of_klass).flatten().collect();
        due.sort_unstable();
        due.truncate(max);
        due.into_iter().map(|entry| entry.row).collect()
    }
}

impl Queue {
    pub(super) fn insert_work(&mut self, klass: u32, entry: ReadyKey) {
        self.work.insert(entry);
        if let Some(index) = &mut self.by_klass {
            index.work.insert(klass, entry);
        }
    }

    /// Returns whether it was there, as the other removals do.
    pub(super) fn remove_work(&mut self, klass: u32, entry: ReadyKey) -> bool {
        if let Some(index) = &mut self.by_klass {
            index.work.remove(klass, entry);
        }
        self.work.remove(entry)
    }

    pub(super) fn insert_lock(&mut self, klass: u32, entry: DueKey) {
        self.locks.insert(entry);
        if let Some(index) = &mut self.by_klass {
            index.locks.insert(klass, entry);
        }
    }

    pub(super) fn remove_lock(&mut self, klass: u32, entry: DueKey) -> bool {
        if let Some(index) = &mut self.by_klass {
            index.locks.remove(klass, entry);
        }
        self.locks.remove(entry)
    }

    pub(super) fn insert_scheduled(&mut self, klass: u32, entry: DueKey) {
        self.scheduled.insert(entry);
        if let Some(index) = &mut self.by_klass {
            index.scheduled.insert(klass, entry);
        }
    }

    pub(super) fn remove_scheduled(&mut self, klass: u32, entry: DueKey) -> bool {
        if let Some(index) = &mut self.by_klass {
            index.scheduled.remove(klass, entry);
        }
        self.scheduled.remove(entry)
    }

    pub(super) fn insert_recurring(&mut self, klass: u32, entry: DueKey) {
        self.recurring.insert(entry);
        if let Some(index) = &mut self.by_klass {
            index.recurring.insert(klass, entry);
        }
    }

    pub(super) fn remove_recurring(&mut self, klass: u32, entry: DueKey) -> bool {
        if let Some(index) = &mut self.by_klass {
            index.recurring.remove(klass, entry);
        }
        self.recurring.remove(entry)
    }
}

/// Lookups build the index as far as they need it. That is no change of the state, so there is no delta.
impl State {
    /// The klasses that a worker's announcement restricts its pops of a queue to; none if it may have all.
    pub(crate) fn announced_klasses(&self, worker: u32, queue: u32) -> Option<Vec<u32>> {
        let capabilities = &self.workers[worker].capabilities;
        if capabilities.is_empty() || capabilities.contains_key(&(queue, NONE)) {
            return None;
        }
        let of_queue = capabilities.range((queue, 0)..(queue, NONE));
        let klasses: Vec<u32> = of_queue.map(|((_, klass), _)| *klass).collect();
        (!klasses.is_empty()).then_some(klasses)
    }

    /// The first klasses of a queue, by name, that workers announced.
    pub(crate) fn klasses_announced(&self, queue: u32, max: usize) -> Vec<Klass> {
        let announced = self.capable_workers.range((queue, 0)..(queue, NONE));
        let all: BTreeSet<Klass> = announced.map(|((_, klass), _)| self.klass(*klass)).collect();
        all.into_iter().take(max).collect()
    }

    /// Whether any worker has announced a capability.
    pub(crate) fn has_capabilities(&self) -> bool {
        !self.capable_workers.is_empty()
    }

    /// The next ready job of these klasses.
    pub(crate) fn first_ready_of(&mut self, queue: u32, klasses: &[u32]) -> Option<RowId> {
        let Queue { by_klass, work, .. } = &mut self.queues[queue];
        let index = &mut by_klass.get_or_insert_default().work;
        index.build_for(klasses, work, |entry| self.rows[entry.row].klass);
        index.first(klasses).map(|entry| entry.row)
    }

    /// The jobs of these klasses whose locks have expired, the oldest expiry first.
    pub(crate) fn expired_of(
        &mut self,
        queue: u32,
        klasses: &[u32],
        now: Timestamp,
        max: usize,
    ) -> Vec<RowId> {
        let Queue { by_klass, locks, .. } = &mut self.queues[queue];
        let index = &mut by_klass.get_or_insert_default().locks;
        index.due(klasses, now, max, locks, |entry| self.rows[entry.row].klass)
    }

    /// The scheduled jobs of these klasses that are due, the longest due first.
    pub(crate) fn due_of(&mut self, queue: u32, klasses: &[u32], now: Timestamp, max: usize) -> Vec<RowId> {
        let Queue { by_klass, scheduled, .. } = &mut self.queues[queue];
        let index = &mut by_klass.get_or_insert_default().scheduled;
        index.due(klasses, now, max, scheduled, |entry| self.rows[entry.row].klass)
    }

    /// The recurring jobs of these klasses that are due, the longest due first.
    pub(crate) fn recurring_of(
        &mut self,
        queue: u32,
        klasses: &[u32],
        now: Timestamp,
        max: usize,
    ) -> Vec<u32> {
        let Queue { by_klass, recurring, .. } = &mut self.queues[queue];
        let index = &mut by_klass.get_or_insert_default().recurring;
        index.due(klasses, now, max, recurring, |entry| self.templates[&entry.row].klass)
    }

    /// Whether the klass index of a queue agrees with its other indexes.
    pub(super) fn check_klass_index(&self, queue: &Queue) -> bool {
        let Some(index) = &queue.by_klass else { return true };
        let klass_of = |entry: DueKey| self.rows[entry.row].klass;
        index.work.check(&queue.work, |entry| self.rows[entry.row].klass)
            && index.locks.check(&queue.locks, klass_of)
            && index.scheduled.check(&queue.scheduled, klass_of)
            && index.recurring.check(&queue.recurring, |entry| self.templates[&entry.row].klass)
    }
}
