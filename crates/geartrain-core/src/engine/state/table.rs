//! Things that go by a name, numbered: queues, workers, klasses, groups. A name that was seen once keeps its number.

use std::cell::Cell;
use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// Named things of one kind.
#[derive(Debug)]
pub(crate) struct Table<T> {
    things: Vec<(Arc<str>, T)>,
    by_name: HashTable<u32>,
    /// The last that was found: it is often asked for again.
    last: Cell<u32>,
    hasher: FixedState,
}

impl<T> Table<T> {
    pub(crate) fn new(hash_seed: u64) -> Table<T> {
        let hasher = FixedState::with_seed(hash_seed);
        Table { things: Vec::new(), by_name: HashTable::new(), last: Cell::new(0), hasher }
    }

    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        let last = self.last.get();
        if self.things.get(last as usize).is_some_and(|(of_last, _)| **of_last == *name) {
            return Some(last);
        }
        let hash = self.hasher.hash_one(name);
        let found = self.by_name.find(hash, |number| *self.things[*number as usize].0 == *name).copied();
        found.into_iter().for_each(|number| self.last.set(number));
        found
    }

    /// Gives a new thing the next number.
    pub(crate) fn add(&mut self, name: &Arc<str>, thing: T) -> u32 {
        let number = u32::try_from(self.things.len()).expect("there are fewer than four billion names");
        self.things.push((name.clone(), thing));
        let hash = self.hasher.hash_one(&**name);
        self.by_name
            .insert_unique(hash, number, |other| self.hasher.hash_one(&*self.things[*other as usize].0));
        number
    }

    pub(crate) fn has(&self, number: u32) -> bool {
        (number as usize) < self.things.len()
    }

    pub(crate) fn name(&self, number: u32) -> &Arc<str> {
        &self.things[number as usize].0
    }

    /// All of them, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Arc<str>, &T)> {
        self.things.iter().enumerate().map(|(number, (name, thing))| (number as u32, name, thing))
    }
}

impl<T> Index<u32> for Table<T> {
    type Output = T;
    fn index(&self, number: u32) -> &T {
        &self.things[number as usize].1
    }
}

impl<T> IndexMut<u32> for Table<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.things[number as usize].1
    }
}
