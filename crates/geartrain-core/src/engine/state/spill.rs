//! Spill: moving payloads from memory to files, and out of sparse files.
//!
//! It takes two steps, so that a failed write loses nothing: payloads are picked and stay where they are; the
//! store writes them and reports the location; then the row refers to it, unless the payload has changed
//! meanwhile. Spilling is no change of the state: it is not logged, and a snapshot records where payloads are
//! at the time.

use std::collections::{BTreeMap, BTreeSet};

use super::blobs::{BlobRef, SPILLED_MAX};
use super::spill_map::Next;
use super::{RowId, RowState, State};
use crate::{Payload, SpillLocation};

/// Limits of fruitless looks at candidates, and of looks at slots: each takes less than 0.1 ms.
const LOOKS_MAX: usize = 1 << 10;
const SLOT_LOOKS_MAX: usize = 1 << 15;

/// Size of a job without payload in a snapshot, if its history is short.
const SNAPSHOT_ROW_BYTES: u64 = 160;

/// A payload to be written to a file: its bytes, or its current location.
#[derive(Debug, Clone)]
pub struct SpillTask {
    row: RowId,
    ticket: u64,
    /// The payload to write.
    pub payload: Payload,
}

/// The outcome of a [`SpillTask`].
#[derive(Debug, Clone, Copy)]
pub struct SpillDone {
    row: RowId,
    ticket: u64,
    from: Option<SpillLocation>,
    to: Option<SpillLocation>,
}

impl SpillTask {
    /// The payload was written to a location; `None` if it was not, and then nothing changes.
    pub fn ended(&self, to: Option<SpillLocation>) -> SpillDone {
        SpillDone { row: self.row, ticket: self.ticket, from: self.payload.spill_location(), to }
    }
}

/// Candidates for spilling, and tasks in flight.
#[derive(Debug)]
pub(crate) struct Spill {
    /// The smallest payload that may be spilled.
    pub(super) bytes_min: u32,
    /// A bit for each row that may have such a payload. A stale bit is cleared when the clock hand passes.
    candidates: Vec<u64>,
    /// Clock hand: the word of `candidates` to look at next.
    clock_hand: usize,
    /// The picked rows, each with a unique ticket: a row may change and be picked again before the first task
    /// finishes.
    in_flight: BTreeMap<RowId, u64>,
    in_flight_bytes: u64,
    tickets: u64,
    /// The files being emptied, and the slot to look at next.
    emptying: BTreeSet<u64>,
    sweep_slot: usize,
}

impl Spill {
    pub(crate) fn new(bytes_min: u32) -> Spill {
        Spill {
            bytes_min,
            candidates: Vec::new(),
            clock_hand: 0,
            in_flight: BTreeMap::new(),
            in_flight_bytes: 0,
            tickets: 0,
            emptying: BTreeSet::new(),
            sweep_slot: 0,
        }
    }

    fn add_candidate(&mut self, at: RowId) {
        let word = at as usize / 64;
        if word >= self.candidates.len() {
            self.candidates.resize(word + 1, 0);
        }
        self.candidates[word] |= 1 << (at % 64);
    }
}

impl State {
    /// Stores the payload of a row that has none.
    pub(super) fn set_new_payload(&mut self, at: RowId, payload: &Payload) {
        let blob = match payload.spill_location() {
            None => self.blobs.insert_payload(&payload.to_shared()),
            Some(location) => self.blobs.insert_spilled(location, at),
        };
        self.has_payload(at, blob, payload.byte_len() as u32);
    }

    /// Sets where a row's new payload is.
    pub(super) fn has_payload(&mut self, at: RowId, payload: BlobRef, bytes: u32) {
        let row = &mut self.rows[at];
        (row.payload, row.payload_bytes) = (payload, bytes);
        if bytes >= self.spill.bytes_min {
            self.spill.add_candidate(at);
        }
    }

    /// Drops a row's payload. The caller must set another one or remove the row.
    pub(super) fn drop_payload(&mut self, at: RowId) {
        let row = &self.rows[at];
        let (payload, bytes) = (row.payload, row.payload_bytes);
        self.blobs.remove_payload(payload, bytes);
        if !self.spill.in_flight.is_empty() {
            self.cancel_spill(at);
        }
    }

    fn cancel_spill(&mut self, at: RowId) {
        if self.spill.in_flight.remove(&at).is_some() {
            self.spill.in_flight_bytes -= u64::from(self.rows[at].payload_bytes);
        }
    }

    /// Picks payloads by the clock algorithm until at most `memory` bytes would stay, or `bytes_max` bytes
    /// are picked. Running jobs are skipped: they soon end or change.
    pub(crate) fn pick_spill_victims(&mut self, memory: u64, bytes_max: u64) -> Vec<SpillTask> {
        let (mut picked, mut bytes, mut wasted_looks) = (Vec::new(), 0, 0);
        for _ in 0..self.spill.candidates.len() {
            if wasted_looks >= LOOKS_MAX {
                break;
            }
            let word = self.spill.clock_hand;
            let mut bits = self.spill.candidates[word];
            wasted_looks += usize::from(bits == 0);
            while bits != 0 {
                if bytes >= bytes_max
                    || self.blobs.spill_map().len() + self.spill.in_flight.len() >= SPILLED_MAX
                    || self.blobs.memory_bytes() <= memory + self.spill.in_flight_bytes
                {
                    return picked;
                }
                let at = word as RowId * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                let row = &self.rows[at];
                if row.state == RowState::Running {
                    wasted_looks += 1;
                    continue;
                }
                self.spill.candidates[word] &= !(1 << (at % 64));
                if row.state == RowState::Free
                    || row.payload_bytes < self.spill.bytes_min
                    || row.payload.is_spilled()
                {
                    wasted_looks += 1;
                    continue;
                }
                self.spill.tickets += 1;
                self.spill.in_flight.insert(at, self.spill.tickets);
                self.spill.in_flight_bytes += u64::from(row.payload_bytes);
                bytes += u64::from(row.payload_bytes);
                let payload = self.blobs.payload(row.payload, row.payload_bytes);
                picked.push(SpillTask { row: at, ticket: self.spill.tickets, payload });
            }
            self.spill.clock_hand = (word + 1) % self.spill.candidates.len();
        }
        picked
    }

    /// Picks payloads in sparse files (less than half needed). All tasks of the last call must be finished.
    /// None if there is nothing to do; an empty list if nothing was found so far.
    pub(crate) fn pick_from_sparse_files(&mut self, bytes_max: u64) -> Option<Vec<SpillTask>> {
        let (mut picked, mut bytes) = (Vec::new(), 0);
        if self.spill.emptying.is_empty() {
            (self.spill.emptying, self.spill.sweep_slot) = (self.blobs.spill_map().sparse(), 0);
        }
        if self.spill.emptying.is_empty() {
            return None;
        }
        let end = self.spill.sweep_slot.saturating_add(SLOT_LOOKS_MAX);
        while bytes < bytes_max {
            let looks = end.saturating_sub(self.spill.sweep_slot);
            match self.blobs.spill_map().next_in(&self.spill.emptying, self.spill.sweep_slot, looks) {
                Next::Found { slot, row } => {
                    self.spill.sweep_slot = slot + 1;
                    let payload = self.blobs.payload(self.rows[row].payload, self.rows[row].payload_bytes);
                    bytes += u64::from(self.rows[row].payload_bytes);
                    picked.push(SpillTask { row, ticket: 0, payload });
                }
                Next::NotYet(slot) => {
                    self.spill.sweep_slot = slot;
                    break;
                }
                Next::End if picked.is_empty() => {
                    // Everything movable was moved; the rest cannot be read or was not written.
                    let left = self.blobs.spill_map().sparse();
                    let emptied = std::mem::take(&mut self.spill.emptying);
                    emptied.intersection(&left).for_each(|file| self.blobs.spill_map_mut().give_up(*file));
                    return self.pick_from_sparse_files(bytes_max);
                }
                Next::End => break,
            }
        }
        Some(picked)
    }

    /// Stops emptying files, to start over another time.
    pub(crate) fn stop_emptying(&mut self) {
        self.spill.emptying.clear();
    }

    /// Completes a spill task.
    pub(crate) fn finish_spill(&mut self, done: SpillDone) {
        let SpillDone { row: at, ticket, from, to } = done;
        if let Some(to) = to {
            self.blobs.spill_map_mut().record_written(to);
        }
        let is_current = match from {
            None => self.spill.in_flight.get(&at) == Some(&ticket),
            Some(from) => at < self.rows.used() && self.spill_location(at) == Some(from),
        };
        if !is_current {
            return;
        }
        self.cancel_spill(at);
        match to {
            Some(to) => {
                let (old, bytes) = (self.rows[at].payload, self.rows[at].payload_bytes);
                self.rows[at].payload = self.blobs.insert_spilled(to, at);
                self.blobs.remove_payload(old, bytes);
            }
            None if from.is_none() => self.spill.add_candidate(at),
            None => {}
        }
    }

    /// Estimated bytes of a snapshot: payloads in memory, and a row with its history for each job.
    pub(crate) fn snapshot_bytes_estimate(&self) -> u64 {
        self.blobs.memory_bytes() + SNAPSHOT_ROW_BYTES * self.rows.len() as u64
    }

    /// The location of a row's payload, if it is spilled.
    pub(crate) fn spill_location(&self, at: RowId) -> Option<SpillLocation> {
        let row = &self.rows[at];
        row.payload.is_spilled().then(|| self.blobs.spill_location(row.payload, row.payload_bytes))
    }

    /// Checks that spilled payloads and their files agree with the rows.
    pub(super) fn check_payloads(&self) -> Result<(), String> {
        let (mut in_memory, mut in_flight, mut spilled) = (0, 0, 0);
        let mut live: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for at in self.rows.ids() {
            let bytes = u64::from(self.rows[at].payload_bytes);
            let Some(location) = self.spill_location(at) else {
                in_memory += bytes;
                in_flight += if self.spill.in_flight.contains_key(&at) { bytes } else { 0 };
                continue;
            };
            spilled += 1;
            let of = live.entry(location.file).or_default();
            *of = (of.0 + 1, of.1 + location.record_bytes());
            if self.blobs.row_at(self.rows[at].payload) != Some(at) {
                return Err(format!("the location of row {at}'s payload belongs to another row"));
            }
        }
        let coalesce_or_check = in_memory == self.blobs.memory_bytes()
            && in_flight == self.spill.in_flight_bytes
            && spilled == self.blobs.spill_map().len()
            && self.blobs.spill_map().agrees_with(&live);
        if coalesce_or_check { Ok(()) } else { Err("spilled payloads and their files disagree".into()) }
    }
}
