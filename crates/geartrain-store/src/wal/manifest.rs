//! The manifest: how far the log reached at least, in a small file of its own.
//!
//! Nothing inside a segment can say that the segment is missing, nor that the last batch of all was once
//! durable. The manifest says both with one position: everything before it was synced. It is written when a
//! segment begins and when the log is closed, never for a commit, so it costs nothing on the commit path; and
//! it is a lower bound, so an old one is never wrong.

use std::sync::Arc;

use super::batch::BLOCK;
use super::disk::{Disk, DiskFile};
use super::{Position, WalError, read_u64};

pub(crate) const NAME: &str = "manifest";
/// The name until it is complete. A file with the final name was written completely.
const UNFINISHED: &str = "manifest.new";

/// Two slots, written in turn: a torn write destroys the older one only.
const SLOTS: usize = 2;
pub(super) const BYTES: u64 = (SLOTS * BLOCK) as u64;
/// Length of a slot's contents. The rest of its block is zero.
const SLOT_BYTES: usize = 48;
const MAGIC: [u8; 4] = *b"GTm\0";
const VERSION: u32 = 1;
/// How often a slot that may be written meanwhile is read, before it counts as damaged.
const READS_MAX: usize = 3;

/// The manifest of a log.
pub(super) struct Manifest {
    file: Arc<dyn DiskFile>,
    /// Which slot in the file holds `slot`.
    index: usize,
    slot: Slot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    /// The random id of the log.
    wal_id: u64,
    /// Counts the writes: the slot with the higher one is the newer.
    sequence: u64,
    /// Every batch before this position is durable.
    synced: Position,
}

impl Manifest {
    /// Creates the manifest of a log in which nothing is durable yet. It is durable itself when this returns.
    pub(super) fn create(disk: &dyn Disk, wal_id: u64) -> Result<Manifest, WalError> {
        if disk.list()?.iter().any(|(name, _)| name == UNFINISHED) {
            disk.remove(UNFINISHED)?;
        }
        let slot = Slot { wal_id, sequence: 1, synced: Position::default() };
        let file = disk.create(UNFINISHED)?;
        let written = file.write_at(&slot.encode().repeat(SLOTS), 0);
        if let Err(error) = written {
            // On a full disk nothing is left behind. The first error is the one to report.
            let _ = disk.remove(UNFINISHED);
            return Err(error.into());
        }
        file.sync_data().map_err(WalError::Io)?;
        disk.rename(UNFINISHED, NAME)?;
        disk.sync_directory().map_err(WalError::Io)?;
        Ok(Manifest { file, index: 0, slot })
    }

    /// The contents of the manifest of a log in which every batch before a position is durable.
    pub(super) fn encode(wal_id: u64, synced: Position) -> Vec<u8> {
        Slot { wal_id, sequence: 1, synced }.encode().repeat(SLOTS)
    }

    /// Reads the manifest of a directory; `None` if there is none.
    pub(super) fn read(disk: &dyn Disk) -> Result<Option<Manifest>, WalError> {
        if !disk.list()?.iter().any(|(name, _)| name == NAME) {
            return Ok(None);
        }
        let file = disk.open(NAME)?;
        for _ in 0..READS_MAX {
            let slots = (0..SLOTS).filter_map(|index| Some((index, Slot::read(&*file, index)?)));
            if let Some((index, slot)) = slots.max_by_key(|(_, slot)| slot.sequence) {
                return Ok(Some(Manifest { file, index, slot }));
            }
        }
        Err(WalError::Manifest { why: "neither of its two entries has a correct checksum".into() })
    }

    /// Like [`read`](Manifest::read), but from the disk itself: after a failed sync the page cache may show
    /// an entry that was never written, and the next write would then overwrite the only one that was.
    pub(super) fn open(disk: &dyn Disk) -> Result<Option<Manifest>, WalError> {
        if let Some(Manifest { file, .. }) = Manifest::read(disk)? {
            file.sync_data()?;
            file.forget(0, BYTES)?;
        }
        Manifest::read(disk)
    }

    /// The id of its log.
    pub(super) fn wal_id(&self) -> u64 {
        self.slot.wal_id
    }

    /// Every batch before this position is durable.
    pub(super) fn synced(&self) -> Position {
        self.slot.synced
    }

    /// Records that every batch before a position is durable: one overwrite and one fdatasync, or nothing if
    /// that is known already.
    pub(super) fn advance(&mut self, synced: Position) -> Result<(), WalError> {
        if synced <= self.slot.synced {
            return Ok(());
        }
        let slot = Slot { sequence: self.slot.sequence + 1, synced, ..self.slot };
        let index = (self.index + 1) % SLOTS;
        // A full disk is no better than another failure: the segment that this refers to has its name
        // already.
        self.file.write_at(&slot.encode(), (index * BLOCK) as u64).map_err(WalError::Io)?;
        self.file.sync_data().map_err(WalError::Io)?;
        (self.index, self.slot) = (index, slot);
        Ok(())
    }
}

impl Slot {
    fn encode(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[4..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let numbers = [self.wal_id, self.sequence, self.synced.segment, self.synced.offset];
        for (index, number) in numbers.into_iter().enumerate() {
            block[16 + 8 * index..][..8].copy_from_slice(&number.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&block[4..SLOT_BYTES]);
        block[..4].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// Reads a slot; `None` if it is torn, damaged or cannot be read.
    fn read(file: &dyn DiskFile, index: usize) -> Option<Slot> {
        let mut bytes = [0; SLOT_BYTES];
        file.read_at(&mut bytes, (index * BLOCK) as u64).ok()?;
        Slot::decode(&bytes)
    }

    fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<Slot> {
        let is_good = bytes[4..8] == MAGIC
            && bytes[..4] == crc32c::crc32c(&bytes[4..]).to_le_bytes()
            && read_u64(bytes, 8) == u64::from(VERSION);
        is_good.then(|| Slot {
            wal_id: read_u64(bytes, 16),
            sequence: read_u64(bytes, 24),
            synced: Position { segment: read_u64(bytes, 32), offset: read_u64(bytes, 40) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_slot_is_noticed() {
        let slot = Slot { wal_id: 1, sequence: 2, synced: Position { segment: 3, offset: 4 } };
        let mut bytes = *slot.encode().first_chunk().expect("a slot is shorter than a block");
        assert_eq!(Slot::decode(&bytes), Some(slot));
        for bit in 0..SLOT_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Slot::decode(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
