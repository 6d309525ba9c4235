//! Interner with reference counts: queues, workers, klasses and groups, each kind with its own ids.
//!
//! Rows, histories, templates and capabilities refer to a name by its id, and each reference is counted. A
//! name whose count falls to zero, or that may be removable for another reason, becomes a candidate;
//! [`Engine::reclaim`](crate::engine::Engine::reclaim) examines the candidates and removes those that nothing
//! needs. A removed id is reused, the lowest first, and ids above the last name in use are dropped: after
//! many short-lived names the interner shrinks back. Counts and candidates are derived from the rest of the
//! state and are not logged.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::Timestamp;

/// Below this number of slots shrinking is not worth it.
const SHRINK_MIN: usize = 64;

/// Interned names of one kind, each with a value.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    slots: Vec<Slot<T>>,
    by_name: HashTable<u32>,
    /// The last id found: it is often looked up again.
    last: Cell<u32>,
    hasher: FixedState,
    /// The free ids below `slots.len()`.
    free: BTreeSet<u32>,
    /// Candidates for removal that can be examined at any time.
    unused: BTreeSet<u32>,
    /// Candidates that need not be examined before a time.
    postponed: BTreeSet<(Timestamp, u32)>,
}

/// An id. The entry is boxed, so that a free id takes little memory.
#[derive(Debug)]
struct Slot<T> {
    entry: Option<Box<Entry<T>>>,
    references: u64,
}

#[derive(Debug)]
struct Entry<T> {
    name: Arc<str>,
    value: T,
    /// Its key in [`Interner::postponed`].
    examined_at: Option<Timestamp>,
}

impl<T> Interner<T> {
    pub(crate) fn new(hash_seed: u64) -> Interner<T> {
        let hasher = FixedState::with_seed(hash_seed);
        Interner {
            slots: Vec::new(),
            by_name: HashTable::new(),
            last: Cell::new(0),
            hasher,
            free: BTreeSet::new(),
            unused: BTreeSet::new(),
            postponed: BTreeSet::new(),
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        let last = self.last.get();
        if self.entry(last).is_some_and(|entry| *entry.name == *name) {
            return Some(last);
        }
        let hash = self.hasher.hash_one(name);
        let found = self.by_name.find(hash, |number| *self.at(*number).name == *name).copied();
        found.into_iter().for_each(|number| self.last.set(number));
        found
    }

    /// The lowest free id.
    pub(crate) fn first_free(&self) -> Option<u32> {
        self.free.first().copied()
    }

    /// Adds a name under the next id.
    pub(crate) fn add(&mut self, name: &Arc<str>, value: T) -> u32 {
        let number = self.add_free();
        self.add_at(number, name, value);
        number
    }

    /// Adds a free id.
    pub(crate) fn add_free(&mut self) -> u32 {
        let number = u32::try_from(self.slots.len()).expect("there are fewer than four billion names");
        self.slots.push(Slot { entry: None, references: 0 });
        self.free.insert(number);
        number
    }

    /// Adds a name under a free id. Until something refers to it, it is a candidate for removal.
    pub(crate) fn add_at(&mut self, number: u32, name: &Arc<str>, value: T) {
        assert!(self.free.remove(&number), "id {number} is not free for {name}");
        self.slots[number as usize].entry =
            Some(Box::new(Entry { name: name.clone(), value, examined_at: None }));
        let hash = self.hasher.hash_one(&**name);
        self.by_name.insert_unique(hash, number, |other| {
            self.hasher.hash_one(&*self.slots[*other as usize].entry.as_ref().expect(NAMED).name)
        });
        self.unused.insert(number);
    }

    /// Removes a name that nothing refers to, and frees its id.
    pub(crate) fn remove(&mut self, number: u32) {
        assert!(self.references(number) == 0, "{} is still referred to", self.name(number));
        let hash = self.hasher.hash_one(&**self.name(number));
        if let Ok(found) = self.by_name.find_entry(hash, |other| *other == number) {
            found.remove();
        }
        self.unused.remove(&number);
        self.cancel_postponed(number);
        self.slots[number as usize].entry = None;
        self.free.insert(number);
        while self.slots.last().is_some_and(|slot| slot.entry.is_none()) {
            self.slots.pop();
            self.free.remove(&(self.slots.len() as u32));
        }
        self.shrink();
    }

    /// Frees memory once three quarters of it are unused, so that the cost of moving the rest is amortised.
    fn shrink(&mut self) {
        if self.slots.capacity() > SHRINK_MIN.max(4 * self.slots.len()) {
            self.slots.shrink_to(2 * self.slots.len());
        }
        let names = self.by_name.len();
        if self.by_name.capacity() > SHRINK_MIN.max(4 * names) {
            let (slots, hasher) = (&self.slots, &self.hasher);
            self.by_name.shrink_to(2 * names, |other| {
                hasher.hash_one(&*slots[*other as usize].entry.as_ref().expect(NAMED).name)
            });
        }
    }

    /// Counts a reference. [`NONE`](super::NONE) is not counted.
    pub(crate) fn hold(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.references += 1;
        }
    }

    /// Releases a reference.
    pub(crate) fn release(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.references -= 1;
            if slot.references == 0 {
                self.unused.insert(number);
            }
        }
    }

    /// Counts or releases a reference.
    #[inline]
    pub(crate) fn count(&mut self, number: u32, hold: bool) {
        if hold {
            self.hold(number);
        } else {
            self.release(number);
        }
    }

    pub(crate) fn references(&self, number: u32) -> u64 {
        self.slots[number as usize].references
    }

    /// Makes a name a candidate for removal.
    pub(crate) fn examine(&mut self, number: u32) {
        self.unused.insert(number);
    }

    /// Postpones a name that is no candidate: [`Interner::next_candidate`] returns it after `until`.
    pub(crate) fn postpone(&mut self, number: u32, until: Timestamp) {
        self.cancel_postponed(number);
        self.at_mut(number).examined_at = Some(until);
        self.postponed.insert((until, number));
    }

    fn cancel_postponed(&mut self, number: u32) {
        if let Some(until) = self.at_mut(number).examined_at.take() {
            self.postponed.remove(&(until, number));
        }
    }

    /// Takes a candidate that can be examined now.
    pub(crate) fn next_candidate(&mut self, now: Timestamp) -> Option<u32> {
        if let Some(number) = self.unused.pop_first() {
            return Some(number);
        }
        let (until, number) = *self.postponed.first()?;
        (until <= now).then(|| {
            self.cancel_postponed(number);
            number
        })
    }

    /// When there is a candidate: [`Timestamp::MIN`] if there is one now.
    pub(crate) fn next_examination(&self) -> Option<Timestamp> {
        if self.unused.is_empty() {
            return self.postponed.first().map(|(until, _)| *until);
        }
        Some(Timestamp::MIN)
    }

    /// Whether an id is in use.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.entry(number).is_some()
    }

    pub(crate) fn name(&self, number: u32) -> &Arc<str> {
        &self.at(number).name
    }

    /// Number of ids, free ones included.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// All ids in order, with name and value of those in use.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Option<(&Arc<str>, &T)>> {
        self.slots.iter().map(|slot| slot.entry.as_deref().map(|entry| (&entry.name, &entry.value)))
    }

    /// All names in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Arc<str>, &T)> {
        let numbered = self.slots().enumerate();
        numbered.filter_map(|(number, slot)| slot.map(|(name, value)| (number as u32, name, value)))
    }

    /// Approximate memory; `of_value` is what a value takes besides itself.
    pub(crate) fn bytes(&self, of_value: impl Fn(&T) -> usize) -> usize {
        // Overhead of an `Arc`, and of a hash table per entry.
        let (shared, hashed) = (16, 5);
        let names =
            self.iter().map(|(_, name, value)| size_of::<Entry<T>>() + shared + name.len() + of_value(value));
        let candidates = size_of::<u32>() * self.free.len()
            + size_of::<(Timestamp, u32)>() * (self.unused.len() + self.postponed.len());
        names.sum::<usize>()
            + candidates
            + size_of::<Slot<T>>() * self.slots.capacity()
            + hashed * self.by_name.capacity()
    }

    fn entry(&self, number: u32) -> Option<&Entry<T>> {
        self.slots.get(number as usize)?.entry.as_deref()
    }

    fn at(&self, number: u32) -> &Entry<T> {
        self.slots[number as usize].entry.as_ref().expect(NAMED)
    }

    fn at_mut(&mut self, number: u32) -> &mut Entry<T> {
        self.slots[number as usize].entry.as_mut().expect(NAMED)
    }

    /// Checks ids, names and reference counts against the counts derived from the rest of the state.
    pub(crate) fn check(&self, counted: &[u64]) -> Result<(), String> {
        for (number, slot) in self.slots.iter().enumerate() {
            let number = number as u32;
            let wanted = counted.get(number as usize).copied().unwrap_or_default();
            if slot.references != wanted {
                let name = slot.entry.as_ref().map(|entry| &entry.name);
                return Err(format!("name {name:?} counts {} references of {wanted}", slot.references));
            }
            let found = match &slot.entry {
                Some(entry) => !self.free.contains(&number) && self.find(&entry.name) == Some(number),
                None => self.free.contains(&number) && slot.references == 0,
            };
            if !found {
                return Err(format!("id {number} is neither free nor found by its name"));
            }
        }
        let is_compact = self.slots.last().is_none_or(|slot| slot.entry.is_some());
        let in_use = self.slots.len() - self.free.len();
        if is_compact && counted.len() <= self.slots.len() && in_use == self.by_name.len() {
            Ok(())
        } else {
            Err(format!("{in_use} ids are in use for {} names", self.by_name.len()))
        }
    }
}

const NAMED: &str = "an id that is referred to has a name";

impl<T> Index<u32> for Interner<T> {
    type Output = T;
    fn index(&self, number: u32) -> &T {
        &self.at(number).value
    }
}

impl<T> IndexMut<u32> for Interner<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.at_mut(number).value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u32) -> Arc<str> {
        format!("name {n}").into()
    }

    #[test]
    fn removed_ids_are_reused_lowest_first() {
        let mut interner = Interner::new(7);
        for n in 0..10 {
            interner.add(&name(n), n);
        }
        [5, 2, 7].into_iter().for_each(|n| interner.remove(n));
        assert_eq!(interner.first_free(), Some(2));
        assert_eq!(
            (interner.find("name 2"), interner.has(2), interner.find("name 3")),
            (None, false, Some(3))
        );
        interner.add_at(2, &name(20), 20);
        assert_eq!((interner.find("name 20"), interner[2]), (Some(2), 20));
        assert_eq!(interner.first_free(), Some(5));
        interner.check(&[0; 10]).unwrap();
    }

    #[test]
    fn ids_above_the_last_name_are_dropped_with_their_memory() {
        let mut interner = Interner::new(7);
        for n in 0..100_000 {
            interner.add(&name(n), n);
        }
        (1..100_000).for_each(|n| interner.remove(n));
        assert_eq!((interner.len(), interner.first_free()), (1, None));
        assert!(interner.slots.capacity() <= SHRINK_MIN && interner.by_name.capacity() <= SHRINK_MIN);
        assert_eq!(interner.find("name 0"), Some(0));
        assert_eq!(interner.add(&name(7), 7), 1);
        interner.check(&[]).unwrap();
    }

    #[test]
    fn a_name_becomes_a_candidate_when_its_last_reference_is_released() {
        let mut interner = Interner::new(7);
        let number = interner.add(&name(0), ());
        assert_eq!(interner.next_candidate(Timestamp::ZERO), Some(number), "nothing refers to a new name");
        (0..2).for_each(|_| interner.hold(number));
        interner.release(number);
        assert_eq!(interner.next_examination(), None);
        interner.release(number);
        assert_eq!(interner.next_examination(), Some(Timestamp::MIN));
        assert_eq!(interner.next_candidate(Timestamp::ZERO), Some(number));
        [5, 3].into_iter().for_each(|until| interner.postpone(number, Timestamp::from(until)));
        assert_eq!(interner.next_examination(), Some(Timestamp::from(3)));
        assert_eq!(interner.next_candidate(Timestamp::from(2)), None);
        assert_eq!(interner.next_candidate(Timestamp::from(3)), Some(number));
        assert_eq!(interner.next_candidate(Timestamp::from(9)), None, "it was postponed once, not twice");
        interner.postpone(number, Timestamp::from(9));
        interner.remove(number);
        assert_eq!(interner.next_examination(), None);
    }
}
