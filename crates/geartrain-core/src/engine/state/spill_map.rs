//! Spill map: the file locations of spilled payloads, and how much of each file is still needed.

use std::collections::{BTreeMap, BTreeSet};

use slab::Slab;

use super::rows::RowId;
use crate::SpillLocation;

/// Locations of spilled payloads, and their files.
#[derive(Debug, Default)]
pub(crate) struct SpillMap {
    slots: Slab<Slot>,
    files: BTreeMap<u64, FileUse>,
    /// Sparse files (less than half needed), and empty ones (nothing needed).
    sparse: BTreeSet<u64>,
    empty: BTreeSet<u64>,
    /// Files from this number on may still grow, except those of one payload.
    growing: u64,
    /// Files of one payload that no job refers to any more.
    released: BTreeSet<u64>,
}

/// A location. Its length is in the row.
#[derive(Debug)]
struct Slot {
    file: u64,
    offset: u32,
    row: RowId,
}

/// Usage of a file.
#[derive(Debug, Default, PartialEq)]
struct FileUse {
    /// Records that are needed, and their bytes.
    live: u64,
    live_bytes: u64,
    /// Bytes of all records.
    bytes: u64,
    /// It was swept, and something in it could not be moved.
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

    /// The row of a location.
    pub(crate) fn row(&self, slot: u32) -> Option<RowId> {
        self.slots.get(slot as usize).map(|slot| slot.row)
    }

    /// Records that a row's payload is at a location. Returns the slot.
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

    /// Removes a location that is not needed any more.
    pub(crate) fn remove(&mut self, slot: u32, bytes: u32) {
        let Slot { file, offset, .. } = self.slots.remove(slot as usize);
        if let Some(of) = self.files.get_mut(&file) {
            of.live -= 1;
            of.live_bytes -= SpillLocation { file, offset, bytes }.record_bytes();
        }
        self.reclassify(file);
    }

    /// Counts a record that was written, needed or not.
    pub(crate) fn record_written(&mut self, location: SpillLocation) {
        self.files.entry(location.file).or_default().bytes += location.record_bytes();
        self.growing = self.growing.max(location.file);
        self.reclassify(location.file);
    }

    /// Registers an existing file and the bytes of its records. It does not grow.
    pub(crate) fn found_file(&mut self, file: u64, bytes: u64) {
        if SpillLocation::is_own_file(file) {
            return self.release_unless_needed(file);
        }
        self.files.entry(file).or_default().bytes = bytes;
        self.growing = self.growing.max(file + 1);
        self.reclassify(file);
    }

    /// Registers a file of one payload, and releases it if no job refers to it.
    pub(crate) fn release_unless_needed(&mut self, file: u64) {
        if !self.files.contains_key(&file) {
            self.released.insert(file);
        }
    }

    /// Takes the files of one payload that no job refers to any more. They may be removed when all deltas up
    /// to now are durable: replaying those leads to a state without them, from any checkpoint.
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

    /// The sparse files that do not grow.
    pub(crate) fn sparse(&self) -> BTreeSet<u64> {
        self.sparse.range(..self.growing).copied().collect()
    }

    /// Gives up emptying a file: something in it cannot be moved.
    pub(crate) fn give_up(&mut self, file: u64) {
        if let Some(of) = self.files.get_mut(&file) {
            of.stuck = true;
            self.reclassify(file);
        }
    }

    /// Bytes of empty files that do not grow.
    pub(crate) fn empty_bytes(&self) -> u64 {
        self.empty.range(..self.growing).map(|file| self.files[file].bytes).sum()
    }

    /// Takes the empty files that do not grow. Nothing will refer to them again.
    pub(crate) fn take_empty(&mut self) -> Vec<u64> {
        let growing = self.empty.split_off(&self.growing);
        let empty = std::mem::replace(&mut self.empty, growing);
        self.files.retain(|file, _| !empty.contains(file));
        empty.into_iter().collect()
    }

    /// The next slot in one of `files`, and its row. Looks at no more than `looks` slots.
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

    /// The files with needed records.
    pub(crate) fn files(&self) -> impl Iterator<Item = u64> {
        self.files.iter().filter(|(_, of)| of.live > 0).map(|(file, _)| *file)
    }

    /// The rows with spilled payloads.
    pub(crate) fn rows(&self) -> impl Iterator<Item = RowId> {
        self.slots.iter().map(|(_, slot)| slot.row)
    }

    /// Whether the files' usage is exactly that of these records.
    pub(crate) fn agrees_with(&self, live: &BTreeMap<u64, (u64, u64)>) -> bool {
        let known = self.files.iter().filter(|(_, of)| of.live > 0);
        known
            .map(|(file, of)| (*file, (of.live, of.live_bytes)))
            .eq(live.iter().map(|(file, of)| (*file, *of)))
    }
}

/// Result of [`SpillMap::next_in`].
pub(crate) enum Next {
    Found {
        slot: usize,
        row: RowId,
    },
    /// Nothing so far; continue at this slot.
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
