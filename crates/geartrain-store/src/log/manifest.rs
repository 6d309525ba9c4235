//! The manifest: how far the log reached at least, in a small file of its own.
//!
//! Nothing inside a segment can say that the segment is missing, nor that the last batch of all was once
//! durable. The manifest says both with one position: everything before it was synced. It is written when a
//! segment begins and when the log is closed, never for a commit, so it costs nothing on the commit path; and
//! it is a lower bound, so an old one is never wrong.

use std::sync::Arc;

use super::batch::BLOCK;
use super::disk::{Disk, DiskFile};
use super::{LogError, Position, field};

/// The name of the file.
pub(super) const NAME: &str = "manifest";
/// What it is called until it is whole. A manifest that has its name was written completely.
const UNFINISHED: &str = "manifest.new";

/// Two slots, written in turn: a torn write destroys the older one only.
const SLOTS: usize = 2;
/// The length of the file.
pub(super) const BYTES: u64 = (SLOTS * BLOCK) as u64;
/// Length of what a slot says. The rest of its block is zero.
const SLOT_BYTES: usize = 48;
const MAGIC: [u8; 4] = *b"GTm\0";
const VERSION: u32 = 1;
/// How often a slot is read that is being written meanwhile, before it counts as damaged.
const READS_MAX: usize = 3;

/// The manifest of a log.
pub(super) struct Manifest {
    file: Arc<dyn DiskFile>,
    /// Which slot holds `slot`.
    index: usize,
    slot: Slot,
}

/// What one slot says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    /// The log's own number.
    log: u64,
    /// Counts the writes: the slot with the higher one is the newer.
    sequence: u64,
    /// Every batch before this position is durable.
    synced: Position,
}

impl Manifest {
    /// Creates the manifest of a log of which nothing is durable yet. It is durable itself when this returns.
    pub(super) fn create(disk: &dyn Disk, log: u64) -> Result<Manifest, LogError> {
        if disk.list()?.iter().any(|(name, _)| name == UNFINISHED) {
            disk.remove(UNFINISHED)?;
        }
        let slot = Slot { log, sequence: 1, synced: Position::default() };
        let file = disk.create(UNFINISHED)?;
        let written = file.write_at(&slot.encode().repeat(SLOTS), 0);
        if let Err(error) = written {
            // On a full disk nothing is left behind. The first error is the one to report.
            let _ = disk.remove(UNFINISHED);
            return Err(error.into());
        }
        file.sync_data().map_err(LogError::Io)?;
        disk.rename(UNFINISHED, NAME)?;
        disk.sync_directory().map_err(LogError::Io)?;
        Ok(Manifest { file, index: 0, slot })
    }

    /// Reads the manifest of a directory; none if there is none.
    pub(super) fn read(disk: &dyn Disk) -> Result<Option<Manifest>, LogError> {
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
        Err(LogError::Manifest { why: "neither of its two entries has a correct checksum".into() })
    }

    /// The same, from the disk itself: after a failed sync the page cache may show an entry that was never
    /// written, and the next write would then overwrite the only one that was.
    pub(super) fn open(disk: &dyn Disk) -> Result<Option<Manifest>, LogError> {
        if let Some(Manifest { file, .. }) = Manifest::read(disk)? {
            file.sync_data()?;
            file.forget(0, BYTES)?;
        }
        Manifest::read(disk)
    }

    /// The number of the log that it belongs to.
    pub(super) fn log(&self) -> u64 {
        self.slot.log
    }

    /// Every batch before this position is durable.
    pub(super) fn synced(&self) -> Position {
        self.slot.synced
    }

    /// Records that every batch before a position is durable: one overwrite and one fdatasync, or nothing if
    /// that is known already.
    pub(super) fn advance(&mut self, synced: Position) -> Result<(), LogError> {
        if synced <= self.slot.synced {
            return Ok(());
        }
        let slot = Slot { sequence: self.slot.sequence + 1, synced, ..self.slot };
        let index = (self.index + 1) % SLOTS;
        // A full disk is no better than one that fails: the segment that this speaks of has its name already.
        self.file.write_at(&slot.encode(), (index * BLOCK) as u64).map_err(LogError::Io)?;
        self.file.sync_data().map_err(LogError::Io)?;
        (self.index, self.slot) = (index, slot);
        Ok(())
    }
}

impl Slot {
    fn encode(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[4..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let numbers = [self.log, self.sequence, self.synced.segment, self.synced.offset];
        for (index, number) in numbers.into_iter().enumerate() {
            block[16 + 8 * index..][..8].copy_from_slice(&number.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&block[4..SLOT_BYTES]);
        block[..4].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// What a slot of a file says; none if it is torn, damaged or cannot be read.
    fn read(file: &dyn DiskFile, index: usize) -> Option<Slot> {
        let mut bytes = [0; SLOT_BYTES];
        file.read_at(&mut bytes, (index * BLOCK) as u64).ok()?;
        Slot::decode(&bytes)
    }

    fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<Slot> {
        let is_good = bytes[4..8] == MAGIC
            && bytes[..4] == crc32c::crc32c(&bytes[4..]).to_le_bytes()
            && field(bytes, 8) == u64::from(VERSION);
        is_good.then(|| Slot {
            log: field(bytes, 16),
            sequence: field(bytes, 24),
            synced: Position { segment: field(bytes, 32), offset: field(bytes, 40) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_slot_is_noticed() {
        let slot = Slot { log: 1, sequence: 2, synced: Position { segment: 3, offset: 4 } };
        let mut bytes = *slot.encode().first_chunk().expect("a slot is shorter than a block");
        assert_eq!(Slot::decode(&bytes), Some(slot));
        for bit in 0..SLOT_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Slot::decode(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
