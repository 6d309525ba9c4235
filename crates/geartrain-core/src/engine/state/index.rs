//! From a hash to the rows that have it.
//!
//! With a million jobs every look-up misses the cache, so what counts is how many lines it touches. Hash and row stand side by
//! side, and the next one to try is the neighbour: one line nearly always, and no row is looked at in vain. Many small tables, because
//! growing one stalls whoever happens to ask; each grows by a quarter, because doubling would leave half of the memory empty.
//!
//! Removals are put off and done many at once: the memory that they touch is then fetched side by side instead of one after the other.
//! Until then a search may meet a row that is gone or is another job's now, and asks whether it is the one anyway.

use super::rows::{NONE, RowId};

/// At 100 million jobs each table holds 100,000.
const SHARDS: usize = 1024;

/// How many removals are put off. About as many fetches as this can be under way at a time.
const DEFERRED_MAX: usize = 32;

/// Rows by hash. Several rows may have the same one.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Vec<Shard>,
    deferred: Vec<(u64, RowId)>,
}

#[derive(Debug, Clone, Default)]
struct Shard {
    slots: Box<[Slot]>,
    used: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    hash: u32,
    row: RowId,
}

const EMPTY: Slot = Slot { hash: 0, row: NONE };

impl Default for Index {
    fn default() -> Index {
        Index { shards: vec![Shard::default(); SHARDS], deferred: Vec::with_capacity(DEFERRED_MAX) }
    }
}

/// The table that a hash belongs to, and what tells it from others there.
fn split(hash: u64) -> (usize, u32) {
    ((hash >> 32) as usize % SHARDS, hash as u32)
}

impl Index {
    /// An index of all these rows at once, which is much quicker than one after the other: each table is made at its size, while it is in the cache.
    pub(crate) fn of(rows: impl Iterator<Item = (u64, RowId)>) -> Index {
        let mut slots = vec![Vec::new(); SHARDS];
        for (hash, row) in rows {
            let (shard, hash) = split(hash);
            slots[shard].push(Slot { hash, row });
        }
        Index { shards: slots.into_iter().map(Shard::of).collect(), ..Index::default() }
    }

    /// The row with this hash that is the one.
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(RowId) -> bool) -> Option<RowId> {
        let (shard, hash) = split(hash);
        let shard = &self.shards[shard];
        if shard.slots.is_empty() {
            return None;
        }
        let mut at = shard.home(hash);
        loop {
            let slot = shard.slots[at];
            if slot.row == NONE {
                return None;
            }
            if slot.hash == hash && is_it(slot.row) {
                return Some(slot.row);
            }
            at = shard.after(at);
        }
    }

    /// Reads where a search for a hash will begin. Many of these in a row are fetched at the same time.
    pub(crate) fn touch(&self, hash: u64) -> RowId {
        let (shard, hash) = split(hash);
        let shard = &self.shards[shard];
        shard.slots.get(shard.home(hash)).map_or(NONE, |slot| slot.row)
    }

    /// Adds a row that is not there.
    pub(crate) fn insert(&mut self, hash: u64, row: RowId) {
        let (shard, hash) = split(hash);
        let shard = &mut self.shards[shard];
        if shard.used * 4 >= shard.slots.len() * 3 {
            shard.grow();
        }
        shard.used += 1;
        shard.insert(Slot { hash, row });
    }

    /// Removes a row that is there, sooner or later.
    pub(crate) fn remove(&mut self, hash: u64, row: RowId) {
        self.deferred.push((hash, row));
        if self.deferred.len() < DEFERRED_MAX {
            return;
        }
        std::hint::black_box(self.deferred.iter().fold(0, |touched, (hash, _)| touched ^ self.touch(*hash)));
        for (hash, row) in self.deferred.drain(..) {
            let (shard, hash) = split(hash);
            self.shards[shard].remove(Slot { hash, row });
        }
    }
}

impl Shard {
    /// A few at least: one must always be empty, or a search would not end.
    fn with_slots(slots: usize) -> Shard {
        Shard { slots: vec![EMPTY; slots.max(8)].into(), used: 0 }
    }

    fn of(slots: Vec<Slot>) -> Shard {
        let mut shard = Shard::with_slots(slots.len() + slots.len() / 2);
        shard.used = slots.len();
        slots.into_iter().for_each(|slot| shard.insert(slot));
        shard
    }

    /// Where a search begins: the hash as a fraction of the table, which need not have a power of two slots.
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.slots.len() as u64) >> 32) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }

    fn insert(&mut self, slot: Slot) {
        let mut at = self.home(slot.hash);
        while self.slots[at].row != NONE {
            at = self.after(at);
        }
        self.slots[at] = slot;
    }

    fn remove(&mut self, slot: Slot) {
        let mut hole = self.home(slot.hash);
        while self.slots[hole] != slot {
            hole = self.after(hole);
        }
        self.used -= 1;
        // Those behind it move up, unless that would put them before the place where a search for them begins.
        let mut at = hole;
        loop {
            at = self.after(at);
            let slot = self.slots[at];
            if slot.row == NONE {
                break;
            }
            if self.distance(self.home(slot.hash), at) >= self.distance(hole, at) {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
    }

    fn grow(&mut self) {
        let larger = Shard::with_slots(self.slots.len() + self.slots.len() / 4);
        let old = std::mem::replace(&mut self.slots, larger.slots);
        old.into_iter().filter(|slot| slot.row != NONE).for_each(|slot| self.insert(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few shards and few homes, so that rows collide all the time.
    fn hash(row: RowId) -> u64 {
        let scrambled = u64::from(row).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (scrambled >> 62) << 32 | (scrambled & 0xFFFF_0000) | u64::from(row % 3)
    }

    #[test]
    fn what_is_in_is_found_and_what_was_removed_is_not() {
        let mut index = Index::default();
        let mut there = vec![false; 4_000];
        let find = |index: &Index, there: &[bool], row: RowId| {
            index.find(hash(row), |found| found == row && there[row as usize]).is_some()
        };
        for step in 0..60_000_u32 {
            let row = step.wrapping_mul(2_654_435_761) % 4_000;
            if there[row as usize] {
                index.remove(hash(row), row);
            } else {
                index.insert(hash(row), row);
            }
            there[row as usize] ^= true;
            let other = (row * 7 + 1) % 4_000;
            assert_eq!(find(&index, &there, other), there[other as usize]);
        }
        for row in 0..4_000 {
            assert_eq!(find(&index, &there, row), there[row as usize]);
        }
        let used: usize = index.shards.iter().map(|shard| shard.used).sum();
        assert_eq!(used - index.deferred.len(), there.iter().filter(|there| **there).count());
    }

    #[test]
    fn an_index_made_at_once_is_like_one_made_row_by_row() {
        for rows in 0..200 {
            let mut index = Index::of((0..rows).map(|row| (hash(row), row)));
            (rows..2 * rows).for_each(|row| index.insert(hash(row), row));
            for row in 0..3 * rows + 3 {
                assert_eq!(index.find(hash(row), |found| found == row).is_some(), row < 2 * rows);
            }
        }
    }

    #[test]
    fn a_row_that_another_hash_has_taken_over_is_not_mixed_up() {
        let mut index = Index::default();
        index.insert(5, 1);
        index.remove(5, 1);
        index.insert(6, 1);
        assert_eq!(index.find(6, |_| true), Some(1));
        // All of these are done by now, and so is the first one.
        for _ in 0..DEFERRED_MAX {
            index.insert(9, 2);
            index.remove(9, 2);
        }
        assert_eq!(index.find(5, |_| true), None);
        assert_eq!(index.find(6, |_| true), Some(1));
    }
}
