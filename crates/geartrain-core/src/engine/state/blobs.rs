//! Blobs: a slab allocator with size classes for payloads and histories.
//!
//! A blob is in a slot of the smallest class that fits, in pages of equal slots. That saves the allocator's
//! header, rounding and time for each job. Blobs too large for any slot are kept as they came, shared and not
//! copied. Spilled payloads have an entry in the [`SpillMap`].

use bytes::Bytes;
use slab::Slab;

use super::rows::RowId;
use super::spill_map::SpillMap;
use crate::{Payload, SpillLocation};

/// The size classes: eighths of each power of two from 128 to 4096, and multiples of 8 below.
const SIZES: [usize; 56] = sizes();
/// Not a power of two: allocators that place blocks behind a header in a page of a power of two would waste
/// nearly one block.
const PAGE_BYTES: usize = 56 << 10;
/// Limit of slots per class: 26 bits of a reference.
const SLOTS_MAX: u32 = 1 << 26;
/// Exact for every slot: 26 bits for its number and 13 for the slots per page.
const PAGE_SHIFT: u32 = 39;
const LARGE: u32 = 63;
/// The class of a spilled payload.
const SPILLED: u32 = 62;
/// Limit of spilled payloads. One that is copied to another file has two entries for a moment.
pub(super) const SPILLED_MAX: usize = SLOTS_MAX as usize - 1;

/// Blobs up to this size are copied into slots. Larger ones are kept as they came.
pub(crate) const COPIED_BYTES_MAX: usize = SIZES[SIZES.len() - 1];

const fn sizes() -> [usize; 56] {
    let mut sizes = [0; 56];
    let (mut at, mut size) = (0, 0_usize);
    while at < sizes.len() {
        let step: usize = if size < 128 { 8 } else { (1 << size.ilog2()) / 8 };
        size += step;
        sizes[at] = size;
        at += 1;
    }
    sizes
}

/// The smallest class that fits; beyond the last, if none does.
fn size_for(bytes: usize) -> usize {
    match bytes.saturating_sub(1) {
        below @ ..128 => below / 8,
        below => {
            // 16 classes up to 128 bytes, then eight for each power of two.
            let power = below.ilog2() as usize;
            16 + (power - 7) * 8 + (below >> (power - 3)) - 8
        }
    }
}

/// Reference to a blob: 6 bits for the size class, 26 for the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlobRef(u32);

impl BlobRef {
    /// No blob.
    pub(crate) const NONE: BlobRef = BlobRef(u32::MAX);

    fn new(size: u32, slot: u32) -> BlobRef {
        BlobRef(size << 26 | slot)
    }

    fn parts(self) -> (u32, u32) {
        (self.0 >> 26, self.0 & (SLOTS_MAX - 1))
    }

    /// Whether the payload is spilled.
    pub(crate) fn is_spilled(self) -> bool {
        self.0 >> 26 == SPILLED
    }
}

#[derive(Debug)]
pub(crate) struct Blobs {
    sizes: Vec<Slots>,
    large: Slab<Bytes>,
    spill_map: SpillMap,
    /// Bytes of the payloads in memory.
    memory_bytes: u64,
}

#[derive(Debug)]
struct Slots {
    bytes_each: usize,
    per_page: u32,
    /// Multiplying a slot's number by this finds its page, many times faster than a division.
    page_factor: u64,
    pages: Vec<Box<[u8]>>,
    free: Vec<u32>,
    used: u32,
}

impl Default for Blobs {
    fn default() -> Blobs {
        Blobs {
            sizes: SIZES.map(Slots::new).into(),
            large: Slab::new(),
            spill_map: SpillMap::default(),
            memory_bytes: 0,
        }
    }
}

impl Blobs {
    /// Stores a blob.
    pub(crate) fn insert(&mut self, blob: &Bytes) -> BlobRef {
        self.insert_small(blob).unwrap_or_else(|| self.insert_large(blob.clone()))
    }

    /// Stores a payload.
    pub(crate) fn insert_payload(&mut self, payload: &Bytes) -> BlobRef {
        self.memory_bytes += payload.len() as u64;
        self.insert(payload)
    }

    /// Stores a payload by copying it.
    pub(crate) fn insert_payload_slice(&mut self, payload: &[u8]) -> BlobRef {
        self.memory_bytes += payload.len() as u64;
        self.insert_slice(payload)
    }

    /// Stores the location of a row's spilled payload.
    pub(crate) fn insert_spilled(&mut self, location: SpillLocation, row: RowId) -> BlobRef {
        let slot = self.spill_map.insert(location, row);
        assert!(
            slot < SLOTS_MAX as usize,
            "there are fewer spill_map than rows, and memory does not hold as many"
        );
        BlobRef::new(SPILLED, slot as u32)
    }

    /// Stores a blob by copying it.
    pub(crate) fn insert_slice(&mut self, blob: &[u8]) -> BlobRef {
        self.insert_small(blob).unwrap_or_else(|| self.insert_large(Bytes::copy_from_slice(blob)))
    }

    fn insert_small(&mut self, blob: &[u8]) -> Option<BlobRef> {
        let at = self.slot(blob.len())?;
        self.slot_mut(at)[..blob.len()].copy_from_slice(blob);
        Some(at)
    }

    /// Allocates a slot, to be written by [`Blobs::slot_mut`]; none if the blob is too large for a slot.
    pub(crate) fn slot(&mut self, bytes: usize) -> Option<BlobRef> {
        (size_for(bytes)..SIZES.len()).find_map(|size| {
            let slot = self.sizes[size].take()?;
            Some(BlobRef::new(size as u32, slot))
        })
    }

    /// Stores a blob that is too large for a slot.
    pub(crate) fn insert_large(&mut self, blob: Bytes) -> BlobRef {
        let slot = self.large.insert(blob);
        assert!(
            slot < SLOTS_MAX as usize - 1,
            "a quarter of a terabyte of large blobs is more than memory holds"
        );
        BlobRef::new(LARGE, slot as u32)
    }

    /// The whole slot of a blob, which may be longer than the blob; empty for a spilled payload.
    pub(crate) fn get(&self, at: BlobRef) -> &[u8] {
        match at.parts() {
            (LARGE, slot) => &self.large[slot as usize],
            (SPILLED, _) => &[],
            (size, slot) => self.sizes[size as usize].get(slot),
        }
    }

    /// The whole slot, mutable; empty for a blob that is not in a slot.
    pub(crate) fn slot_mut(&mut self, at: BlobRef) -> &mut [u8] {
        match at.parts() {
            (LARGE | SPILLED, _) => &mut [],
            (size, slot) => self.sizes[size as usize].get_mut(slot),
        }
    }

    /// A payload, for a reply.
    pub(crate) fn payload(&self, at: BlobRef, bytes: u32) -> Payload {
        match at.parts() {
            (LARGE, slot) => self.large[slot as usize].clone().into(),
            (SPILLED, slot) => self.spill_map.get(slot, bytes).into(),
            (size, slot) => self.sizes[size as usize].get(slot)[..bytes as usize].into(),
        }
    }

    /// The location of a spilled payload.
    pub(crate) fn spill_location(&self, at: BlobRef, bytes: u32) -> SpillLocation {
        self.spill_map.get(at.parts().1, bytes)
    }

    /// The row of a spilled payload.
    pub(crate) fn row_at(&self, at: BlobRef) -> Option<RowId> {
        self.spill_map.row(at.parts().1)
    }

    pub(crate) fn spill_map(&self) -> &SpillMap {
        &self.spill_map
    }

    pub(crate) fn spill_map_mut(&mut self) -> &mut SpillMap {
        &mut self.spill_map
    }

    /// Bytes of the payloads in memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Removes a payload of `bytes` bytes.
    pub(crate) fn remove_payload(&mut self, at: BlobRef, bytes: u32) {
        if at.is_spilled() {
            self.spill_map.remove(at.parts().1, bytes);
        } else {
            self.memory_bytes -= u64::from(bytes);
            self.remove(at);
        }
    }

    /// Removes a blob.
    pub(crate) fn remove(&mut self, at: BlobRef) {
        match at.parts() {
            (LARGE, slot) => drop(self.large.remove(slot as usize)),
            (size, slot) => self.sizes[size as usize].free.push(slot),
        }
    }
}

impl Slots {
    fn new(bytes_each: usize) -> Slots {
        let per_page = (PAGE_BYTES / bytes_each) as u32;
        let page_factor = (1_u64 << PAGE_SHIFT).div_ceil(per_page.into());
        Slots { bytes_each, per_page, page_factor, pages: Vec::new(), free: Vec::new(), used: 0 }
    }

    fn take(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        if self.used == SLOTS_MAX {
            return None;
        }
        if self.used == self.pages.len() as u32 * self.per_page {
            self.pages.push(vec![0; self.per_page as usize * self.bytes_each].into());
        }
        self.used += 1;
        Some(self.used - 1)
    }

    fn locate(&self, slot: u32) -> (usize, std::ops::Range<usize>) {
        let page = ((u64::from(slot) * self.page_factor) >> PAGE_SHIFT) as u32;
        let start = (slot - page * self.per_page) as usize * self.bytes_each;
        (page as usize, start..start + self.bytes_each)
    }

    fn get(&self, slot: u32) -> &[u8] {
        let (page, range) = self.locate(slot);
        &self.pages[page][range]
    }

    fn get_mut(&mut self, slot: u32) -> &mut [u8] {
        let (page, range) = self.locate(slot);
        &mut self.pages[page][range]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_fits_a_slot_that_wastes_little() {
        assert_eq!((SIZES[0], SIZES[15], SIZES[55]), (8, 128, 4096));
        for bytes in 128..=4096 {
            let size = SIZES[size_for(bytes)];
            assert!(size >= bytes && size < bytes + bytes / 7, "{bytes} in {size}");
        }
        for bytes in 0..9_000 {
            let smallest = SIZES.partition_point(|size| *size < bytes);
            assert_eq!(size_for(bytes).min(SIZES.len()), smallest, "{bytes}");
        }
    }

    #[test]
    fn every_slot_is_found_without_a_division() {
        for slots in SIZES.map(Slots::new) {
            let numbers = (0..SLOTS_MAX).step_by(997).chain((0..64).map(|below| SLOTS_MAX - 1 - below));
            let edges = (1..2_000).flat_map(|page| [page * slots.per_page - 1, page * slots.per_page]);
            for slot in numbers.chain(edges) {
                let start = (slot % slots.per_page) as usize * slots.bytes_each;
                let location = ((slot / slots.per_page) as usize, start..start + slots.bytes_each);
                assert_eq!(slots.locate(slot), location);
            }
        }
    }

    #[test]
    fn blobs_of_all_lengths_are_read_back_and_their_slots_are_reused() {
        let mut blobs = Blobs::default();
        for round in 0..3_u8 {
            let contents: Vec<Bytes> =
                (0..9_000).step_by(7).map(|bytes| vec![round ^ bytes as u8; bytes].into()).collect();
            let refs: Vec<BlobRef> = contents.iter().map(|blob| blobs.insert(blob)).collect();
            for (blob, at) in contents.iter().zip(&refs) {
                assert_eq!(blobs.payload(*at, blob.len() as u32).bytes(), *blob);
            }
            refs.into_iter().for_each(|at| blobs.remove(at));
        }
        assert!(blobs.sizes.iter().all(|slots| slots.used as usize == slots.free.len() && slots.used <= 74));
    }
}
