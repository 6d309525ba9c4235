//! Where payloads lie that are not in memory, and how much of each file is still needed.

use std::collections::{BTreeMap, BTreeSet};

use slab::Slab;

use super::rows::RowId;
use crate::SpillLocation;

/// All the places, and the files they are in.
#[derive(Debug, Default)]
pub(crate) struct SpillMap {
    slots: Slab<Slot>,
    files: BTreeMap<u64, FileUse>,
    /// Files of which less than half is needed, and files of which nothing is.
    sparse: BTreeSet<u64>,
    empty: BTreeSet<u64>,
    /// Files from this number on may still grow, those of one payload apart.
    growing: u64,
    /// Files of one payload that nothing refers to any more.
    released: BTreeSet<u64>,
}

/// A place. How many bytes lie there is in the row.
#[derive(Debug)]
struct Slot {
    file: u64,
    offset: u32,
    row: RowId,
}

/// How much of a file is needed.
#[derive(Debug, Default, PartialEq)]
struct FileUse {
    /// Records that are needed, and what they take.
    live: u64,
    live_bytes: u64,
    /// What all records take.
    bytes: u64,
    /// It was gone through, and something in it could not be moved.
    stuck: bool,
}

impl SpillMap {
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn get(&self, slot: u32, bytes: u32) -> SpillLocation {
        let Slot { file, offset, .. } = self.slots[slot as usize];
        SpillLocation { file, offset, bytes }
    }

    /// The row whose payload lies there.
    pub(crate) fn row(&self, slot: u32) -> Option<RowId> {
        self.slots.get(slot as usize).map(|slot| slot.row)
    }

    /// The payload of a row lies there from now on.
    pub(crate) fn insert(&mut self, location: SpillLocation, row: RowId) -> usize {
        let of = self.files.entry(location.file).or_default();
        of.live += 1;
        of.live_bytes += location.record_bytes();
        if SpillLocation::is_own_file(location.file) {
            of.bytes = of.live_bytes;
            self.released.remove(&location.file);
        }
        self.reclassify(location.file);
        self.slots.insert(Slot { file: location.file, offset: location.offset, row })
    }

    /// Nobody needs what lies there any more.
    pub(crate) fn remove(&mut self, slot: u32, bytes: u32) {
        let Slot { file, offset, .. } = self.slots.remove(slot as usize);
        if let Some(of) = self.files.get_mut(&file) {
            of.live -= 1;
            of.live_bytes -= SpillLocation { file, offset, bytes }.record_bytes();
        }
        self.reclassify(file);
    }

    /// A record was written, whether it is needed or not.
    pub(crate) fn record_written(&mut self, location: SpillLocation) {
        self.files.entry(location.file).or_default().bytes += location.record_bytes();
        self.growing = self.growing.max(location.file);
        self.reclassify(location.file);
    }

    /// There is a file, with records that take so many bytes. It does not grow.
    pub(crate) fn found_file(&mut self, file: u64, bytes: u64) {
        if SpillLocation::is_own_file(file) {
            return self.release_unless_needed(file);
        }
        self.files.entry(file).or_default().bytes = bytes;
        self.growing = self.growing.max(file + 1);
        self.reclassify(file);
    }

    /// There is a file of one payload, which may go if no job refers to it.
    pub(crate) fn release_unless_needed(&mut self, file: u64) {
        if !self.files.contains_key(&file) {
            self.released.insert(file);
        }
    }

    /// The files of one payload that nothing refers to since the last call. They may go when all deltas up to
    /// now are durable: replaying these leads to a state without them, whichever checkpoint it begins at.
    pub(crate) fn take_released(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.released).into_iter().collect()
    }

    fn reclassify(&mut self, file: u64) {
        let of = &self.files[&file];
        if SpillLocation::is_own_file(file) {
            if of.live == 0 {
                self.files.remove(&file);
                self.released.insert(file);
            }
            return;
        }
        let (is_empty, is_sparse) = (of.live == 0, of.live > 0 && 2 * of.live_bytes < of.bytes && !of.stuck);
        set(&mut self.empty, file, is_empty);
        set(&mut self.sparse, file, is_sparse);
    }

    /// The files of which less than half is needed, and which do not grow.
    pub(crate) fn sparse(&self) -> BTreeSet<u64> {
        self.sparse.range(..self.growing).copied().collect()
    }

    /// What is still needed of a file cannot be moved.
    pub(crate) fn give_up(&mut self, file: u64) {
        if let Some(of) = self.files.get_mut(&file) {
            of.stuck = true;
            self.reclassify(file);
        }
    }

    /// What the files take of which nothing is needed, and which do not grow.
    pub(crate) fn empty_bytes(&self) -> u64 {
        self.empty.range(..self.growing).map(|file| self.files[file].bytes).sum()
    }

    /// Forgets the files of which nothing is needed, and which do not grow. Nothing will ever be needed of them.
    pub(crate) fn take_empty(&mut self) -> Vec<u64> {
        let growing = self.empty.split_off(&self.growing);
        let empty = std::mem::replace(&mut self.empty, growing);
        self.files.retain(|file, _| !empty.contains(file));
        empty.into_iter().collect()
    }

    /// The next place from a slot on that is in one of these files, with its row and the slot after it. Looks at so many slots at most.
    pub(crate) fn next_in(&self, files: &BTreeSet<u64>, from: usize, looks: usize) -> Next {
        let end = self.slots.capacity();
        for slot in (from..end).take(looks) {
            if let Some(found) = self.slots.get(slot)
                && files.contains(&found.file)
            {
                return Next::Found { slot, row: found.row };
            }
        }
        if from.saturating_add(looks) >= end { Next::End } else { Next::NotYet(from + looks) }
    }

    /// The files that hold what is needed.
    pub(crate) fn files(&self) -> impl Iterator<Item = u64> {
        self.files.iter().filter(|(_, of)| of.live > 0).map(|(file, _)| *file)
    }

    /// The rows whose payloads are elsewhere.
    pub(crate) fn rows(&self) -> impl Iterator<Item = RowId> {
        self.slots.iter().map(|(_, slot)| slot.row)
    }

    /// Whether these records, and no others, are what the files are said to hold.
    pub(crate) fn agrees_with(&self, live: &BTreeMap<u64, (u64, u64)>) -> bool {
        let known = self.files.iter().filter(|(_, of)| of.live > 0);
        known
            .map(|(file, of)| (*file, (of.live, of.live_bytes)))
            .eq(live.iter().map(|(file, of)| (*file, *of)))
    }
}

/// What a search for a place came to.
pub(crate) enum Next {
    Found {
        slot: usize,
        row: RowId,
    },
    /// Nothing so far; go on from this slot.
    NotYet(usize),
    End,
}

fn set(of: &mut BTreeSet<u64>, file: u64, is_in: bool) {
    if is_in {
        of.insert(file);
    } else {
        of.remove(&file);
    }
}
