//! From a hash to the rows that have it.
//!
//! With a million jobs every look-up misses the cache, so what counts is how many lines it touches. Hash and row stand side by
//! side, and the next one to try is the neighbour: one line nearly always, and no row is looked at in vain. Many small tables, because
//! growing one stalls whoever happens to ask; each grows by a quarter, because doubling would leave half of the memory empty.

use super::rows::{NONE, RowId};

/// At 100 million jobs each table holds 100,000.
const SHARDS: usize = 1024;

/// Rows by hash. Several rows may have the same one.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Vec<Shard>,
}

#[derive(Debug, Clone, Default)]
struct Shard {
    slots: Box<[Slot]>,
    used: usize,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    hash: u32,
    row: RowId,
}

const EMPTY: Slot = Slot { hash: 0, row: NONE };

impl Default for Index {
    fn default() -> Index {
        Index { shards: vec![Shard::default(); SHARDS] }
    }
}

/// The table that a hash belongs to, and what tells it from others there.
fn split(hash: u64) -> (usize, u32) {
    ((hash >> 32) as usize % SHARDS, hash as u32)
}

impl Index {
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

    /// Adds a row that is not there.
    pub(crate) fn insert(&mut self, hash: u64, row: RowId) {
        let (shard, hash) = split(hash);
        let shard = &mut self.shards[shard];
        if shard.used * 4 >= shard.slots.len() * 3 {
            shard.grow();
        }
        shard.used += 1;
        shard.place(Slot { hash, row });
    }

    /// Removes a row that is there.
    pub(crate) fn remove(&mut self, hash: u64, row: RowId) {
        let (shard, hash) = split(hash);
        let shard = &mut self.shards[shard];
        let mut hole = shard.home(hash);
        while shard.slots[hole].row != row {
            hole = shard.after(hole);
        }
        shard.used -= 1;
        // Those behind it move up, unless that would put them before the place where a search for them begins.
        let mut at = hole;
        loop {
            at = shard.after(at);
            let slot = shard.slots[at];
            if slot.row == NONE {
                break;
            }
            if shard.distance(shard.home(slot.hash), at) >= shard.distance(hole, at) {
                shard.slots[hole] = slot;
                hole = at;
            }
        }
        shard.slots[hole] = EMPTY;
    }
}

impl Shard {
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

    fn place(&mut self, slot: Slot) {
        let mut at = self.home(slot.hash);
        while self.slots[at].row != NONE {
            at = self.after(at);
        }
        self.slots[at] = slot;
    }

    fn grow(&mut self) {
        let slots = (self.slots.len() + self.slots.len() / 4).max(8);
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; slots].into());
        old.into_iter().filter(|slot| slot.row != NONE).for_each(|slot| self.place(slot));
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
        for step in 0..60_000_u32 {
            let row = step.wrapping_mul(2_654_435_761) % 4_000;
            if there[row as usize] {
                index.remove(hash(row), row);
            } else {
                index.insert(hash(row), row);
            }
            there[row as usize] ^= true;
            let other = (row * 7 + 1) % 4_000;
            assert_eq!(index.find(hash(other), |found| found == other).is_some(), there[other as usize]);
        }
        for row in 0..4_000 {
            assert_eq!(index.find(hash(row), |found| found == row).is_some(), there[row as usize]);
        }
        let used: usize = index.shards.iter().map(|shard| shard.used).sum();
        assert_eq!(used, there.iter().filter(|there| **there).count());
    }
}
