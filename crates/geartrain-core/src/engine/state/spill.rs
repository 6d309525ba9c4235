//! Moving payloads out of memory, and out of files of which little is still needed.
//!
//! It takes two steps, so that a move which fails loses nothing. Payloads are picked, and stay where they are; somebody writes them
//! elsewhere and says so; then they are there, unless they have changed or gone meanwhile. None of this is a change of what is known: it is not written
//! down, and a snapshot says where a payload lies at the time.

use std::collections::{BTreeMap, BTreeSet};

use super::blobs::{BlobRef, PLACES_MAX};
use super::spill_map::Next;
use super::{RowId, RowState, State};
use crate::{Payload, SpillLocation};

/// How many looks may be in vain when payloads are picked, and at how many places is looked: neither takes a tenth of a millisecond.
const LOOKS_MAX: usize = 1 << 10;
const PLACE_LOOKS_MAX: usize = 1 << 15;

/// What a job without its payload takes in a picture, if its history is short.
const SNAPSHOT_ROW_BYTES: u64 = 160;

/// A payload that is to be written elsewhere: its bytes, or the place where they are now.
#[derive(Debug, Clone)]
pub struct SpillTask {
    row: RowId,
    ticket: u64,
    /// What is to be written.
    pub payload: Payload,
}

/// What has become of a [`Move`].
#[derive(Debug, Clone, Copy)]
pub struct SpillDone {
    row: RowId,
    ticket: u64,
    from: Option<SpillLocation>,
    to: Option<SpillLocation>,
}

impl SpillTask {
    /// It was written there; or it was not, and everything is as it was.
    pub fn ended(&self, to: Option<SpillLocation>) -> SpillDone {
        SpillDone { row: self.row, ticket: self.ticket, from: self.payload.spill_location(), to }
    }
}

/// Which payloads may be moved, and which are about to be.
#[derive(Debug)]
pub(crate) struct Spill {
    /// Payloads of so many bytes, or more, may be moved.
    pub(super) bytes_min: u32,
    /// A bit for each row that may have such a payload. One that has lost it keeps its bit until somebody looks.
    candidates: Vec<u64>,
    /// The word of `candidates` at which to look next.
    hand: usize,
    /// The rows that were picked, each with a number that no other pick has: a row may change and be picked again before the first is answered.
    moving: BTreeMap<RowId, u64>,
    moving_bytes: u64,
    tickets: u64,
    /// The files that are being emptied, and the place at which to look next.
    emptying: BTreeSet<u64>,
    sweep: usize,
}

impl Spill {
    pub(crate) fn new(bytes_min: u32) -> Spill {
        Spill {
            bytes_min,
            candidates: Vec::new(),
            hand: 0,
            moving: BTreeMap::new(),
            moving_bytes: 0,
            tickets: 0,
            emptying: BTreeSet::new(),
            sweep: 0,
        }
    }

    fn note(&mut self, at: RowId) {
        let word = at as usize / 64;
        if word >= self.candidates.len() {
            self.candidates.resize(word + 1, 0);
        }
        self.candidates[word] |= 1 << (at % 64);
    }
}

impl State {
    /// Gives a row that has none a payload.
    pub(super) fn set_new_payload(&mut self, at: RowId, payload: &Payload) {
        let kept = match payload.spill_location() {
            None => self.blobs.insert_payload(&payload.to_shared()),
            Some(place) => self.blobs.insert_place(place, at),
        };
        self.has_payload(at, kept, payload.byte_len() as u32);
    }

    /// Notes where a row's new payload is.
    pub(super) fn has_payload(&mut self, at: RowId, payload: BlobRef, bytes: u32) {
        let row = &mut self.rows[at];
        (row.payload, row.payload_bytes) = (payload, bytes);
        if bytes >= self.spill.bytes_min {
            self.spill.note(at);
        }
    }

    /// Takes a row's payload away. Another one must follow, or the row must go.
    pub(super) fn drop_payload(&mut self, at: RowId) {
        let row = &self.rows[at];
        let (payload, bytes) = (row.payload, row.payload_bytes);
        self.blobs.remove_payload(payload, bytes);
        if !self.spill.moving.is_empty() {
            self.forget_move(at);
        }
    }

    fn forget_move(&mut self, at: RowId) {
        if self.spill.moving.remove(&at).is_some() {
            self.spill.moving_bytes -= u64::from(self.rows[at].payload_bytes);
        }
    }

    /// Picks payloads until all but so many bytes are out of memory or about to be, or so many are picked. A hand goes round over the rows; it
    /// passes over jobs that run, which are soon gone or changed.
    pub(crate) fn pick(&mut self, memory: u64, bytes_max: u64) -> Vec<SpillTask> {
        let (mut picked, mut bytes, mut in_vain) = (Vec::new(), 0, 0);
        for _ in 0..self.spill.candidates.len() {
            if in_vain >= LOOKS_MAX {
                break;
            }
            let word = self.spill.hand;
            let mut bits = self.spill.candidates[word];
            in_vain += usize::from(bits == 0);
            while bits != 0 {
                if bytes >= bytes_max
                    || self.blobs.places().len() + self.spill.moving.len() >= PLACES_MAX
                    || self.blobs.here_bytes() <= memory + self.spill.moving_bytes
                {
                    return picked;
                }
                let at = word as RowId * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                let row = &self.rows[at];
                if row.state == RowState::Running {
                    in_vain += 1;
                    continue;
                }
                self.spill.candidates[word] &= !(1 << (at % 64));
                if row.state == RowState::Free
                    || row.payload_bytes < self.spill.bytes_min
                    || row.payload.is_place()
                {
                    in_vain += 1;
                    continue;
                }
                self.spill.tickets += 1;
                self.spill.moving.insert(at, self.spill.tickets);
                self.spill.moving_bytes += u64::from(row.payload_bytes);
                bytes += u64::from(row.payload_bytes);
                let payload = self.blobs.payload(row.payload, row.payload_bytes);
                picked.push(SpillTask { row: at, ticket: self.spill.tickets, payload });
            }
            self.spill.hand = (word + 1) % self.spill.candidates.len();
        }
        picked
    }

    /// Picks payloads in files of which less than half is needed. Those of the last time must have been answered. None if there is nothing to do; if
    /// nothing was found yet the list is empty.
    pub(crate) fn pick_forward(&mut self, bytes_max: u64) -> Option<Vec<SpillTask>> {
        let (mut picked, mut bytes) = (Vec::new(), 0);
        if self.spill.emptying.is_empty() {
            (self.spill.emptying, self.spill.sweep) = (self.blobs.places().sparse(), 0);
        }
        if self.spill.emptying.is_empty() {
            return None;
        }
        let end = self.spill.sweep.saturating_add(PLACE_LOOKS_MAX);
        while bytes < bytes_max {
            let looks = end.saturating_sub(self.spill.sweep);
            match self.blobs.places().next_in(&self.spill.emptying, self.spill.sweep, looks) {
                Next::Found { slot, row } => {
                    self.spill.sweep = slot + 1;
                    let payload = self.blobs.payload(self.rows[row].payload, self.rows[row].payload_bytes);
                    bytes += u64::from(self.rows[row].payload_bytes);
                    picked.push(SpillTask { row, ticket: 0, payload });
                }
                Next::NotYet(slot) => {
                    self.spill.sweep = slot;
                    break;
                }
                Next::End if picked.is_empty() => {
                    // All is moved that could be: what is left cannot be read, or was not taken.
                    let left = self.blobs.places().sparse();
                    let emptied = std::mem::take(&mut self.spill.emptying);
                    emptied.intersection(&left).for_each(|file| self.blobs.places_mut().give_up(*file));
                    return self.pick_forward(bytes_max);
                }
                Next::End => break,
            }
        }
        Some(picked)
    }

    /// Leaves files that are being emptied as they are, to begin again another time.
    pub(crate) fn stop_emptying(&mut self) {
        self.spill.emptying.clear();
    }

    /// Takes note of what has become of a move.
    pub(crate) fn moved(&mut self, moved: SpillDone) {
        let SpillDone { row: at, ticket, from, to } = moved;
        if let Some(to) = to {
            self.blobs.places_mut().wrote(to);
        }
        let still_so = match from {
            None => self.spill.moving.get(&at) == Some(&ticket),
            Some(from) => at < self.rows.used() && self.place_of(at) == Some(from),
        };
        if !still_so {
            return;
        }
        self.forget_move(at);
        match to {
            Some(to) => {
                let (old, bytes) = (self.rows[at].payload, self.rows[at].payload_bytes);
                self.rows[at].payload = self.blobs.insert_place(to, at);
                self.blobs.remove_payload(old, bytes);
            }
            None if from.is_none() => self.spill.note(at),
            None => {}
        }
    }

    /// About how many bytes a picture would have: payloads in memory, and a row with its history and indexes
    /// for each job.
    pub(crate) fn snapshot_bytes_estimate(&self) -> u64 {
        self.blobs.here_bytes() + SNAPSHOT_ROW_BYTES * self.rows.len() as u64
    }

    /// Where a row's payload is, if it has one that is not in memory.
    pub(crate) fn place_of(&self, at: RowId) -> Option<SpillLocation> {
        let row = &self.rows[at];
        row.payload.is_place().then(|| self.blobs.place(row.payload, row.payload_bytes))
    }

    /// Looks whether what is known about payloads agrees with the rows.
    pub(super) fn check_payloads(&self) -> Result<(), String> {
        let (mut here, mut moving, mut there) = (0, 0, 0);
        let mut live: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for at in self.rows.ids() {
            let bytes = u64::from(self.rows[at].payload_bytes);
            let Some(place) = self.place_of(at) else {
                here += bytes;
                moving += if self.spill.moving.contains_key(&at) { bytes } else { 0 };
                continue;
            };
            there += 1;
            let of = live.entry(place.file).or_default();
            *of = (of.0 + 1, of.1 + place.record_bytes());
            if self.blobs.row_at(self.rows[at].payload) != Some(at) {
                return Err(format!("the place of row {at}'s payload is that of another row"));
            }
        }
        let agree = here == self.blobs.here_bytes()
            && moving == self.spill.moving_bytes
            && there == self.blobs.places().len()
            && self.blobs.places().agrees_with(&live);
        if agree { Ok(()) } else { Err("payloads are not where they are said to be".into()) }
    }
}
