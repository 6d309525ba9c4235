//! Interned names with reference counts: queues, workers, klasses and groups, each kind numbered for itself.
//!
//! Rows, histories, templates and capabilities refer to a name by its number, and each reference is counted.
//! A name whose count falls to zero, or that may have to go for another reason, becomes a candidate;
//! [`Engine::reclaim`](crate::engine::Engine::reclaim) examines the candidates and removes those that nothing
//! needs. A removed number is used again, the lowest first, and numbers behind the last name in use are
//! dropped: so after many short-lived names a table shrinks to what it was before them. Counts and candidates
//! are derived from the rest of the state and are not written down.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::Timestamp;

/// With fewer slots than this a table is not worth shrinking.
const SHRINK_MIN: usize = 64;

/// Named things of one kind.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    slots: Vec<Slot<T>>,
    by_name: HashTable<u32>,
    /// The last that was found: it is often asked for again.
    last: Cell<u32>,
    hasher: FixedState,
    /// The numbers below `slots.len()` that no name has.
    free: BTreeSet<u32>,
    /// Candidates for removal that can be examined at any time.
    unused: BTreeSet<u32>,
    /// Candidates that need not be examined before a moment.
    postponed: BTreeSet<(Timestamp, u32)>,
}

/// A number. What belongs to a name is boxed, so that a number without one takes little.
#[derive(Debug)]
struct Slot<T> {
    entry: Option<Box<Entry<T>>>,
    references: u64,
}

#[derive(Debug)]
struct Entry<T> {
    name: Arc<str>,
    value: T,
    /// Its place in [`Table::postponed`].
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

    /// The lowest number that is free among those in use.
    pub(crate) fn first_free(&self) -> Option<u32> {
        self.free.first().copied()
    }

    /// Gives a new thing the number after the last.
    pub(crate) fn add(&mut self, name: &Arc<str>, value: T) -> u32 {
        let number = self.add_free();
        self.add_at(number, name, value);
        number
    }

    /// Adds a number that no name has.
    pub(crate) fn add_free(&mut self) -> u32 {
        let number = u32::try_from(self.slots.len()).expect("there are fewer than four billion names");
        self.slots.push(Slot { entry: None, references: 0 });
        self.free.insert(number);
        number
    }

    /// Gives a new thing a number that is free. Until something refers to it, it is a candidate for removal.
    pub(crate) fn add_at(&mut self, number: u32, name: &Arc<str>, value: T) {
        assert!(self.free.remove(&number), "number {number} is not free for {name}");
        self.slots[number as usize].entry =
            Some(Box::new(Entry { name: name.clone(), value, examined_at: None }));
        let hash = self.hasher.hash_one(&**name);
        self.by_name.insert_unique(hash, number, |other| {
            self.hasher.hash_one(&*self.slots[*other as usize].entry.as_ref().expect(NAMED).name)
        });
        self.unused.insert(number);
    }

    /// Removes a name that nothing refers to. Its number is free from now on.
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

    /// Gives memory back once three quarters of it are not needed, so that the cost of moving the rest is
    /// amortised.
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

    /// Counts a reference. [`NONE`](super::NONE) is no number, and is not counted.
    pub(crate) fn hold(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.references += 1;
        }
    }

    /// Takes a reference back.
    pub(crate) fn release(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.references -= 1;
            if slot.references == 0 {
                self.unused.insert(number);
            }
        }
    }

    /// Counts a reference, or takes it back.
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

    /// Makes a name a candidate for removal, which it need not be in the end.
    pub(crate) fn examine(&mut self, number: u32) {
        self.unused.insert(number);
    }

    /// Keeps a name, which is no candidate, out of [`Table::next_candidate`] until a moment.
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

    /// When there is a candidate: at once if there is one already.
    pub(crate) fn next_examination(&self) -> Option<Timestamp> {
        if self.unused.is_empty() {
            return self.postponed.first().map(|(until, _)| *until);
        }
        Some(Timestamp::MIN)
    }

    /// Whether a name has this number.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.entry(number).is_some()
    }

    pub(crate) fn name(&self, number: u32) -> &Arc<str> {
        &self.at(number).name
    }

    /// How many numbers there are, free ones included.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// All numbers in order, with the name and the thing of those that are not free.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Option<(&Arc<str>, &T)>> {
        self.slots.iter().map(|slot| slot.entry.as_deref().map(|entry| (&entry.name, &entry.value)))
    }

    /// All names, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Arc<str>, &T)> {
        let numbered = self.slots().enumerate();
        numbered.filter_map(|(number, slot)| slot.map(|(name, value)| (number as u32, name, value)))
    }

    /// About how much memory all of it takes, with what a thing takes besides itself.
    pub(crate) fn bytes(&self, of_value: impl Fn(&T) -> usize) -> usize {
        // What an `Arc` keeps beside its text, and a hash table for each entry.
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

    /// Whether numbers, names and counts agree; the counts are those that the rest of the state calls for.
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
                return Err(format!("number {number} is neither free nor found by its name"));
            }
        }
        let is_compact = self.slots.last().is_none_or(|slot| slot.entry.is_some());
        let in_use = self.slots.len() - self.free.len();
        if is_compact && counted.len() <= self.slots.len() && in_use == self.by_name.len() {
            Ok(())
        } else {
            Err(format!("{in_use} numbers are in use for {} names", self.by_name.len()))
        }
    }
}

const NAMED: &str = "a number that is referred to has a name";

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
    fn a_removed_number_is_used_again_the_lowest_first() {
        let mut table = Interner::new(7);
        for n in 0..10 {
            table.add(&name(n), n);
        }
        [5, 2, 7].into_iter().for_each(|n| table.remove(n));
        assert_eq!(table.first_free(), Some(2));
        assert_eq!((table.find("name 2"), table.has(2), table.find("name 3")), (None, false, Some(3)));
        table.add_at(2, &name(20), 20);
        assert_eq!((table.find("name 20"), table[2]), (Some(2), 20));
        assert_eq!(table.first_free(), Some(5));
        table.check(&[0; 10]).unwrap();
    }

    #[test]
    fn numbers_behind_the_last_name_are_dropped_with_their_memory() {
        let mut table = Interner::new(7);
        for n in 0..100_000 {
            table.add(&name(n), n);
        }
        (1..100_000).for_each(|n| table.remove(n));
        assert_eq!((table.len(), table.first_free()), (1, None));
        assert!(table.slots.capacity() <= SHRINK_MIN && table.by_name.capacity() <= SHRINK_MIN);
        assert_eq!(table.find("name 0"), Some(0));
        assert_eq!(table.add(&name(7), 7), 1);
        table.check(&[]).unwrap();
    }

    #[test]
    fn a_name_becomes_a_candidate_when_its_last_reference_goes() {
        let mut table = Interner::new(7);
        let number = table.add(&name(0), ());
        assert_eq!(
            table.next_candidate(Timestamp::ZERO),
            Some(number),
            "a new one is referred to by nothing"
        );
        (0..2).for_each(|_| table.hold(number));
        table.release(number);
        assert_eq!(table.next_examination(), None);
        table.release(number);
        assert_eq!(table.next_examination(), Some(Timestamp::MIN));
        assert_eq!(table.next_candidate(Timestamp::ZERO), Some(number));
        [5, 3].into_iter().for_each(|until| table.postpone(number, Timestamp::from(until)));
        assert_eq!(table.next_examination(), Some(Timestamp::from(3)));
        assert_eq!(table.next_candidate(Timestamp::from(2)), None);
        assert_eq!(table.next_candidate(Timestamp::from(3)), Some(number));
        assert_eq!(table.next_candidate(Timestamp::from(9)), None, "it was postponed once, not twice");
        table.postpone(number, Timestamp::from(9));
        table.remove(number);
        assert_eq!(table.next_examination(), None);
    }
}
