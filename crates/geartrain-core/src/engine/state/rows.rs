//! Packed rows: one fixed-size row per job, found by row number or by jid.

use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use foldhash::fast::FixedState;
use slab::Slab;

use super::blobs::BlobRef;
use super::index::Index as JidIndex;
use crate::names::Repr;
use crate::{Jid, Priority, StateName, Timestamp};

/// The number of a job's row. It is reused after the job is removed.
pub type RowId = u32;

/// No queue, no worker, no cold part.
pub(crate) const NONE: u32 = u32::MAX;

/// A job. Rarely used parts are in its [`ColdPart`](super::cold::ColdPart).
#[derive(Debug, Clone)]
pub(crate) struct Row {
    jid: [u8; 16],
    /// The sort key of the job's index: ready, when it entered; running, its lock's expiry; scheduled, when
    /// it is due; depending, when it was put; complete, when it completed.
    pub(crate) score: Timestamp,
    /// Arrival number in that index. For a running or complete job, the fencing token of its attempt.
    pub(crate) seq: u64,
    /// When it was last put, popped or completed; statistics measure from it.
    pub(crate) time: Timestamp,
    pub(crate) priority: Priority,
    pub(crate) payload: BlobRef,
    pub(crate) payload_bytes: u32,
    pub(crate) queue: u32,
    pub(crate) klass: u32,
    /// The holder, or the last one for as long as Qless names it.
    pub(crate) worker: u32,
    pub(crate) retries: u32,
    pub(crate) remaining: i32,
    /// Its history; none if it was only put.
    pub(crate) history: BlobRef,
    pub(crate) cold: u32,
    pub(crate) flags: Flags,
    pub(crate) state: RowState,
}

/// The state of a row: free, or that of its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RowState {
    Free,
    Scheduled,
    Depends,
    Waiting,
    Running,
    Complete,
    Failed,
}

impl RowState {
    pub(crate) fn from_byte(byte: u8) -> Option<RowState> {
        use RowState::*;
        [Scheduled, Depends, Waiting, Running, Complete, Failed]
            .into_iter()
            .find(|state| *state as u8 == byte)
    }

    pub(crate) fn name(self) -> StateName {
        match self {
            RowState::Scheduled => StateName::Scheduled,
            RowState::Depends => StateName::Depends,
            RowState::Waiting => StateName::Waiting,
            RowState::Free => unreachable!("a free row is no job"),
            RowState::Running => StateName::Running,
            RowState::Complete => StateName::Complete,
            RowState::Failed => StateName::Failed,
        }
    }
}

/// Flags of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags(u16);

impl Flags {
    /// The jid is a text in `Rows::texts`.
    pub(crate) const TEXT: Flags = Flags(1);
    pub(crate) const TRACKED: Flags = Flags(1 << 1);
    /// The holder was warned; at the next expiry another worker takes over.
    pub(crate) const GRACE: Flags = Flags(1 << 2);
    /// The job is in its worker's list.
    pub(crate) const LISTED: Flags = Flags(1 << 3);
    /// Qless names a deadline other than the score; it is in the cold part.
    pub(crate) const EXPIRES: Flags = Flags(1 << 4);
    /// The job was timed out; Qless calls it stalled until it is popped.
    pub(crate) const STALLED: Flags = Flags(1 << 5);
    /// The job is before all others of its queue.
    pub(crate) const FRONT: Flags = Flags(1 << 6);
    /// The job was advanced with a delay; Qless calls it waiting though it is scheduled.
    pub(crate) const ADVANCED: Flags = Flags(1 << 7);

    /// All flags except `TEXT`, which is internal to rows.
    pub(crate) fn bits(self) -> u16 {
        self.0 & !Flags::TEXT.0
    }

    /// None if a flag is unknown.
    pub(crate) fn from_bits(bits: u64) -> Option<Flags> {
        let bits = u8::try_from(bits).ok().map(u16::from)?;
        (bits & Flags::TEXT.0 == 0).then_some(Flags(bits))
    }

    pub(crate) fn with(self, others: Flags) -> Flags {
        Flags(self.0 | others.0)
    }

    pub(crate) fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) fn set(&mut self, flag: Flags, on: bool) {
        if on {
            self.0 |= flag.0;
        } else {
            self.0 &= !flag.0;
        }
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// A power of two, so that a row is found by a shift. 512 rows are 44 KiB, a multiple of the system's page
/// size: mimalloc rounds that up to 48 KiB, but the 4 KiB at the end are never written, so they are not
/// resident. Pages of 256 rows (22 KiB) took 24 KiB, 8 bytes more per job.
const ROWS_PER_PAGE: u32 = 512;

/// All rows, and their index by jid.
#[derive(Debug)]
pub(crate) struct Rows {
    pages: Vec<Box<[Row]>>,
    free: Vec<RowId>,
    used: RowId,
    by_jid: JidIndex,
    texts: Slab<Arc<str>>,
    hasher: FixedState,
}

impl Rows {
    pub(crate) fn new(hash_seed: u64) -> Rows {
        Rows {
            pages: Vec::new(),
            free: Vec::new(),
            used: 0,
            by_jid: JidIndex::default(),
            texts: Slab::new(),
            hasher: FixedState::with_seed(hash_seed),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.used as usize - self.free.len()
    }

    pub(crate) fn find(&self, jid: &Jid) -> Option<RowId> {
        self.by_jid.find(self.hasher.hash_one(jid), |row| self.is(row, jid))
    }

    /// Prefetch: see [`JidIndex::touch`].
    pub(crate) fn touch(&self, jid: &Jid) -> RowId {
        self.by_jid.touch(self.hasher.hash_one(jid))
    }

    /// The rows in use.
    pub(crate) fn ids(&self) -> impl Iterator<Item = RowId> {
        (0..self.used).filter(|row| self[*row].state != RowState::Free)
    }

    pub(crate) fn jid(&self, row: RowId) -> Jid {
        let row = &self[row];
        Jid(if row.flags.has(Flags::TEXT) {
            Repr::Text(self.texts[text_slot(&row.jid)].clone())
        } else {
            Repr::Uuid(row.jid)
        })
    }

    /// Number of rows, free ones included.
    pub(crate) fn used(&self) -> RowId {
        self.used
    }

    /// The free rows; the last is used next.
    pub(crate) fn free(&self) -> &[RowId] {
        &self.free
    }

    /// Makes `used` rows. Those not in `free` must be filled by [`Rows::fill`].
    pub(crate) fn prepare(&mut self, used: RowId, free: Vec<RowId>) {
        self.used = used;
        self.free = free;
        self.make_pages();
    }

    /// Whether a row still has to be filled.
    pub(crate) fn is_expected(&self, row: RowId) -> bool {
        row < self.used && self[row].state == RowState::Free
    }

    fn make_pages(&mut self) {
        while (self.pages.len() as u32 * ROWS_PER_PAGE) < self.used {
            self.pages.push(vec![Row::FREE; ROWS_PER_PAGE as usize].into());
        }
    }

    pub(crate) fn insert(&mut self, jid: &Jid) -> RowId {
        let row = self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        });
        self.make_pages();
        self.fill(row, jid);
        self.by_jid.insert(self.hasher.hash_one(jid), row);
        row
    }

    /// Fills a given row. [`Rows::index`] must follow.
    pub(crate) fn fill(&mut self, row: RowId, jid: &Jid) {
        let (bytes, flags) = match &jid.0 {
            Repr::Uuid(uuid) => (*uuid, Flags::default()),
            Repr::Text(text) => {
                let mut slot = [0; 16];
                slot[..8].copy_from_slice(&(self.texts.insert(text.clone()) as u64).to_ne_bytes());
                (slot, Flags::TEXT)
            }
        };
        self[row] = Row { jid: bytes, flags, ..Row::FREE };
    }

    /// Builds the index by jid.
    pub(crate) fn index(&mut self) {
        let hashes = self.ids().map(|row| (self.hasher.hash_one(self.jid(row)), row));
        self.by_jid = JidIndex::of(hashes);
    }

    /// Frees a row.
    pub(crate) fn remove(&mut self, row: RowId) {
        self.by_jid.remove(self.hasher.hash_one(self.jid(row)), row);
        if self[row].flags.has(Flags::TEXT) {
            let slot = text_slot(&self[row].jid);
            self.texts.remove(slot);
        }
        self[row] = Row::FREE;
        self.free.push(row);
    }

    /// Whether this row, which may be any number, belongs to a jid.
    pub(crate) fn is(&self, row: RowId, jid: &Jid) -> bool {
        if row >= self.used || self[row].state == RowState::Free {
            return false;
        }
        let row = &self[row];
        match &jid.0 {
            Repr::Uuid(uuid) => row.jid == *uuid && !row.flags.has(Flags::TEXT),
            Repr::Text(text) => row.flags.has(Flags::TEXT) && self.texts[text_slot(&row.jid)] == *text,
        }
    }
}

fn text_slot(jid: &[u8; 16]) -> usize {
    let mut slot = [0; 8];
    slot.copy_from_slice(&jid[..8]);
    u64::from_ne_bytes(slot) as usize
}

impl Row {
    const FREE: Row = Row {
        jid: [0; 16],
        score: Timestamp::ZERO,
        seq: 0,
        time: Timestamp::ZERO,
        priority: Priority::ZERO,
        payload: BlobRef::NONE,
        payload_bytes: 0,
        queue: NONE,
        klass: NONE,
        worker: NONE,
        retries: 0,
        remaining: 0,
        history: BlobRef::NONE,
        cold: NONE,
        flags: Flags(0),
        state: RowState::Free,
    };
}

impl Index<RowId> for Rows {
    type Output = Row;
    fn index(&self, row: RowId) -> &Row {
        &self.pages[(row / ROWS_PER_PAGE) as usize][(row % ROWS_PER_PAGE) as usize]
    }
}

impl IndexMut<RowId> for Rows {
    fn index_mut(&mut self, row: RowId) -> &mut Row {
        &mut self.pages[(row / ROWS_PER_PAGE) as usize][(row % ROWS_PER_PAGE) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_88_bytes() {
        assert_eq!(size_of::<Row>(), 88);
    }

    #[test]
    fn rows_are_found_by_jid_until_they_are_removed() {
        let mut rows = Rows::new(7);
        let jids: Vec<Jid> = (0..5_000_u32)
            .map(|n| {
                let text = if n % 2 == 0 { format!("{n:032x}") } else { format!("job {n}") };
                Jid::new(text).unwrap()
            })
            .collect();
        for jid in &jids {
            let row = rows.insert(jid);
            rows[row].state = RowState::Waiting;
        }
        for (n, jid) in jids.iter().enumerate() {
            assert_eq!(rows.find(jid), Some(n as u32));
            assert_eq!(rows.jid(n as u32), *jid);
        }
        (0..5_000).step_by(3).for_each(|row| rows.remove(row));
        for (n, jid) in jids.iter().enumerate() {
            assert_eq!(rows.find(jid), (n % 3 != 0).then_some(n as u32));
        }
        assert_eq!(rows.ids().count(), rows.len());
        assert_eq!(rows.insert(&jids[0]), 4_998, "the number freed last is used first");
    }
}
