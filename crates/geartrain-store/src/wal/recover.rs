//! Recovery of the log: finds its last batch after a crash.
//!
//! A segment that has a successor was synced before the successor got its name, and the successor's header
//! says where it ends: all of it must be there. In the last segment batches are followed one by one. The
//! first bad one was cut off by a crash, unless a later batch, or the manifest, says that it was durable
//! once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::batch::{BLOCK, Batch, HEADER, padded};
use super::disk::{Disk, DiskFile};
use super::manifest::Manifest;
use super::segment::{Segment, segment_name};
use super::{Position, Replay, TornTail, WalError};

/// The end of a recovered log.
pub(super) struct RecoveredTail {
    pub(super) wal_id: u64,
    /// The number of the last segment, and its file.
    pub(super) segment: u64,
    pub(super) file: Arc<dyn DiskFile>,
    /// Where its batches end.
    pub(super) end: u64,
    /// The number of the last batch.
    pub(super) number: u64,
    /// The `opening_id` of the last batch.
    pub(super) previous_opening: u64,
    /// The torn tail behind the last batch, which was never acknowledged.
    pub(super) torn_tail: Option<TornTail>,
}

/// Consecutive good batches, and where they end.
pub(super) struct BatchChain {
    pub(super) wal_id: u64,
    pub(super) segment: u64,
    /// The number and `opening_id` of the last batch.
    pub(super) number: u64,
    pub(super) previous_opening: u64,
    /// Where the next batch should begin.
    pub(super) offset: usize,
    pub(super) batches: Vec<ChainedBatch>,
}

/// A batch of the chain.
pub(super) struct ChainedBatch {
    pub(super) offset: usize,
    pub(super) body: Range<usize>,
    pub(super) batch: Batch,
}

impl BatchChain {
    pub(super) fn new(header: &Segment) -> BatchChain {
        let first = Position { segment: header.number, offset: BLOCK as u64 };
        BatchChain::starting_at(
            header.wal_id,
            first,
            header.first_batch.wrapping_sub(1),
            header.previous_opening,
        )
    }

    /// An empty chain at a position, behind a batch of this number and `opening_id`.
    pub(super) fn starting_at(
        wal_id: u64,
        position: Position,
        number: u64,
        previous_opening: u64,
    ) -> BatchChain {
        let Position { segment, offset } = position;
        BatchChain { wal_id, segment, number, previous_opening, offset: offset as usize, batches: Vec::new() }
    }

    /// Continues at the beginning of the next segment.
    pub(super) fn enter_next_segment(&mut self) {
        self.segment += 1;
        self.offset = BLOCK;
        self.batches.clear();
    }

    /// Follows batches until one is bad, and returns what is wrong with it.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> &'static str {
        loop {
            let rest = bytes.get(self.offset..).unwrap_or_default();
            let (batch, body) = match Batch::decode(self.wal_id, self.segment, rest) {
                Ok(found) => found,
                Err(why) => return why,
            };
            if batch.number != self.number.wrapping_add(1) {
                return "the batch here has another number than the one that belongs here";
            }
            if batch.previous_opening != self.previous_opening {
                return "the batch here was written behind another one";
            }
            let start = self.offset + HEADER;
            self.batches.push(ChainedBatch { offset: self.offset, body: start..start + body.len(), batch });
            (self.number, self.previous_opening) = (batch.number, batch.opening_id);
            self.offset += padded(body.len());
        }
    }

    /// Removes the batches that no later batch calls durable, so that they are read again.
    fn drop_unsynced(&mut self, header: &Segment) {
        let synced = self.batches.last().map_or(0, |last| last.batch.synced);
        let keep = self.batches.partition_point(|link| link.batch.number <= synced);
        if let Some(first) = self.batches.get(keep) {
            self.offset = first.offset;
        }
        self.batches.truncate(keep);
        (self.number, self.previous_opening) = match self.batches.last() {
            Some(last) => (last.batch.number, last.batch.opening_id),
            None => (header.first_batch.wrapping_sub(1), header.previous_opening),
        };
    }

    /// Whether a later batch says that the missing one was durable.
    pub(super) fn was_durable_here(&self, bytes: &[u8]) -> bool {
        let missing = self.number.wrapping_add(1);
        (self.offset..bytes.len()).step_by(BLOCK).any(|offset| {
            let found = Batch::decode(self.wal_id, self.segment, &bytes[offset..]);
            matches!(found, Ok((batch, _)) if batch.number > missing && batch.synced >= missing)
        })
    }

    /// The remains of batches behind the last good one, which are cut off.
    pub(super) fn torn_tail(&self, bytes: &[u8]) -> Option<TornTail> {
        let (rest, next) = (bytes.get(self.offset..)?, self.number.wrapping_add(1));
        // A complete batch that does not follow was cut off by an earlier opening.
        let is_stale = Batch::decode(self.wal_id, self.segment, rest).is_ok();
        let here = if is_stale { 0 } else { Batch::torn_bytes(self.wal_id, self.segment, next, rest) };
        // Batches of the same opening behind a torn one.
        let behind = (0..rest.len()).step_by(BLOCK).filter_map(|offset| {
            let (batch, body) = Batch::decode(self.wal_id, self.segment, &rest[offset..]).ok()?;
            (batch.number > next && batch.previous_opening == self.previous_opening)
                .then(|| offset + padded(body.len()))
        });
        let bytes = behind.max().unwrap_or(0).max(here) as u64;
        let (segment, offset) = (self.segment, self.offset as u64);
        (bytes > 0).then_some(TornTail { segment, offset, bytes })
    }

    /// The position behind the last batch.
    pub(super) fn end(&self) -> Position {
        Position { segment: self.segment, offset: self.offset as u64 }
    }

    pub(super) fn damaged(&self, why: &str) -> WalError {
        WalError::damaged(self.segment, self.offset as u64, why)
    }
}

/// Reads the segments from a position on, and replays their batches. `None` if there is no segment at all.
pub(super) fn recover(
    disk: &dyn Disk,
    segments: &BTreeMap<u64, u64>,
    manifest: Option<&Manifest>,
    from: Position,
    replay: &mut Replay<'_>,
) -> Result<Option<RecoveredTail>, WalError> {
    let synced = manifest.map(Manifest::synced).unwrap_or_default();
    let (oldest, last) = match (segments.first_key_value(), segments.last_key_value()) {
        (Some((&oldest, _)), Some((&last, _))) => (oldest, last),
        _ if from.segment == 0 && synced.segment == 0 => return Ok(None),
        _ => return Err(missing(from.segment.max(synced.segment))),
    };
    let first = if from.segment == 0 { oldest } else { from.segment };
    let highest = last.max(first).max(synced.segment);
    if let Some(gap) = (first..=highest).find(|number| !segments.contains_key(number)) {
        return Err(missing(gap));
    }

    let mut bytes = Vec::new();
    let mut this = OpenedSegment::open(disk, first, segments[&first])?;
    loop {
        check_manifest(&this.header, manifest)?;
        let number = this.header.number;
        let next = match number < last {
            true => Some(OpenedSegment::open(disk, number + 1, segments[&(number + 1)])?),
            false => None,
        };
        let chain = match &next {
            Some(next) => this.read_complete(&next.header, &mut bytes)?,
            None => this.read_last(synced, &mut bytes)?,
        };
        if number == from.segment && from.offset > chain.offset as u64 {
            return Err(chain.damaged("the log ends here, before the requested position"));
        }
        for link in &chain.batches {
            let position = Position { segment: number, offset: link.offset as u64 };
            if position >= from {
                replay(position, &bytes[link.body.clone()])?;
            }
        }
        match next {
            Some(next) => this = next,
            None => {
                return Ok(Some(RecoveredTail {
                    wal_id: chain.wal_id,
                    segment: number,
                    file: this.file,
                    end: chain.offset as u64,
                    number: chain.number,
                    previous_opening: chain.previous_opening,
                    torn_tail: chain.torn_tail(&bytes),
                }));
            }
        }
    }
}

fn missing(segment: u64) -> WalError {
    WalError::damaged(segment, 0, "the segment is missing")
}

/// A segment of version 2 begins only when there is a manifest of the same log.
pub(super) fn check_manifest(header: &Segment, manifest: Option<&Manifest>) -> Result<(), WalError> {
    let why = match manifest {
        None if header.bytes.is_some() => "it is missing",
        Some(manifest) if manifest.wal_id() != header.wal_id => "it is of another log",
        _ => return Ok(()),
    };
    Err(WalError::Manifest { why: why.into() })
}

/// A segment with a good header.
struct OpenedSegment {
    header: Segment,
    file: Arc<dyn DiskFile>,
    bytes: u64,
}

impl OpenedSegment {
    fn open(disk: &dyn Disk, number: u64, bytes: u64) -> Result<OpenedSegment, WalError> {
        let damaged = |why: &str| WalError::damaged(number, 0, why);
        if bytes < BLOCK as u64 {
            return Err(damaged("it is too short for a segment's header"));
        }
        let file = disk.open(&segment_name(number))?;
        let mut block = [0; BLOCK];
        file.read_at(&mut block, 0)?;
        let header = Segment::decode(&block).map_err(|why| damaged(&why))?;
        if header.number != number {
            return Err(damaged("its header is that of another segment"));
        }
        if let Some(why) = header.is_cut_short(bytes) {
            return Err(WalError::damaged(number, bytes, why));
        }
        Ok(OpenedSegment { header, file, bytes })
    }

    /// Reads a segment that was full when the next one began.
    fn read_complete(&self, next: &Segment, bytes: &mut Vec<u8>) -> Result<BatchChain, WalError> {
        let beginning = |why: &str| WalError::damaged(next.number, 0, why);
        if next.wal_id != self.header.wal_id {
            return Err(beginning("it is of another log"));
        }
        let mut chain = BatchChain::new(&self.header);
        if next.previous_end > self.bytes {
            chain.offset = self.bytes as usize;
            return Err(chain.damaged("the segment is shorter than it was"));
        }
        bytes.resize(next.previous_end as usize, 0);
        self.file.read_at(bytes, 0)?;
        let why = chain.follow(bytes);
        if chain.offset as u64 != next.previous_end {
            return Err(chain.damaged(why));
        }
        if (chain.number.wrapping_add(1), chain.previous_opening) != (next.first_batch, next.previous_opening)
        {
            return Err(beginning("it does not continue the segment before"));
        }
        Ok(chain)
    }

    /// Reads the segment that was being written. All before `synced` is known to be durable.
    fn read_last(&self, synced: Position, bytes: &mut Vec<u8>) -> Result<BatchChain, WalError> {
        bytes.resize(self.bytes as usize, 0);
        self.file.read_at(bytes, 0)?;
        let mut chain = BatchChain::new(&self.header);
        chain.follow(bytes);
        // A killed process may have left batches in the page cache only; after a failed sync the page cache
        // may have batches that the system believes to be on disk. So batches that may never have been
        // durable are synced and read once more.
        self.file.sync_data()?;
        let end = chain.offset;
        chain.drop_unsynced(&self.header);
        let doubtful = chain.offset..end;
        self.file.forget(doubtful.start as u64, doubtful.len() as u64)?;
        self.file.read_at(&mut bytes[doubtful.clone()], doubtful.start as u64)?;
        let why = chain.follow(bytes);
        if chain.was_durable_here(bytes) || chain.end() < synced {
            return Err(chain.damaged(why));
        }
        Ok(chain)
    }
}
