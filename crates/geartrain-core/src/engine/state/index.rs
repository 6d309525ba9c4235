//! Hash index from jid to row: sharded open addressing with linear probing.
//!
//! With a million jobs every lookup misses the cache, so the number of cache lines counts. Hash and row are
//! side by side, and the next slot to try is the neighbour: nearly always one line, and no row is read in
//! vain. There are many small tables, because growing one stalls a caller; each grows by a quarter, because
//! doubling would leave half of the memory empty.
//!
//! Removals are deferred and done in batches: their cache misses then overlap. Until then a search may meet a
//! row that is free or belongs to another job, so it verifies each hit.

use super::rows::{NONE, RowId};

/// With 100 million jobs each table has 100,000 entries.
const SHARDS: usize = 1024;

/// Batch size of deferred removals: about as many memory loads can be in flight.
const DEFERRED_MAX: usize = 32;

/// Rows by hash. Several rows may have the same hash.
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

/// The shard of a hash, and the part of the hash that is stored.
fn split(hash: u64) -> (usize, u32) {
    ((hash >> 32) as usize % SHARDS, hash as u32)
}

impl Index {
    /// Builds an index at once, much faster than row by row: each table gets its final size and is filled
    /// while it is in the cache.
    pub(crate) fn of(rows: impl Iterator<Item = (u64, RowId)>) -> Index {
        let mut slots = vec![Vec::new(); SHARDS];
        for (hash, row) in rows {
            let (shard, hash) = split(hash);
            slots[shard].push(Slot { hash, row });
        }
        Index { shards: slots.into_iter().map(Shard::of).collect(), ..Index::default() }
    }

    /// The row with this hash that `is_it` accepts.
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

    /// Prefetch: reads the slot where the search begins. Several such loads overlap.
    pub(crate) fn touch(&self, hash: u64) -> RowId {
        let (shard, hash) = split(hash);
        let shard = &self.shards[shard];
        shard.slots.get(shard.home(hash)).map_or(NONE, |slot| slot.row)
    }

    /// Adds a row that is not in the index.
    pub(crate) fn insert(&mut self, hash: u64, row: RowId) {
        let (shard, hash) = split(hash);
        let shard = &mut self.shards[shard];
        if shard.used * 4 >= shard.slots.len() * 3 {
            shard.grow();
        }
        shard.used += 1;
        shard.insert(Slot { hash, row });
    }

    /// Removes a row, possibly later.
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
    /// At least a few slots: one must always be empty, or a search would not end.
    fn with_slots(slots: usize) -> Shard {
        Shard { slots: vec![EMPTY; slots.max(8)].into(), used: 0 }
    }

    fn of(slots: Vec<Slot>) -> Shard {
        let mut shard = Shard::with_slots(slots.len() + slots.len() / 2);
        shard.used = slots.len();
        slots.into_iter().for_each(|slot| shard.insert(slot));
        shard
    }

    /// The home slot: the hash as a fraction of the table, whose size need not be a power of two.
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
        // Later entries move up (backward-shift deletion), unless that would put them before their home slot.
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
    fn inserted_rows_are_found_and_removed_rows_are_not() {
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
    fn a_bulk_built_index_equals_one_built_row_by_row() {
        for rows in 0..200 {
            let mut index = Index::of((0..rows).map(|row| (hash(row), row)));
            (rows..2 * rows).for_each(|row| index.insert(hash(row), row));
            for row in 0..3 * rows + 3 {
                assert_eq!(index.find(hash(row), |found| found == row).is_some(), row < 2 * rows);
            }
        }
    }

    #[test]
    fn a_reused_row_is_found_by_its_new_hash_only() {
        let mut index = Index::default();
        index.insert(5, 1);
        index.remove(5, 1);
        index.insert(6, 1);
        assert_eq!(index.find(6, |_| true), Some(1));
        // Now the whole batch is done, the first removal included.
        for _ in 0..DEFERRED_MAX {
            index.insert(9, 2);
            index.remove(9, 2);
        }
        assert_eq!(index.find(5, |_| true), None);
        assert_eq!(index.find(6, |_| true), Some(1));
    }
}
