//! Finds out what a log holds, after whatever happened to it.
//!
//! A segment that has a successor was synced before that one got its name, and the successor's header says where it ends: all of it
//! must be there. In the last segment batches are followed one by one. The first that is not as it should be was cut off by a crash,
//! unless a batch behind it, or the manifest, says that it was durable once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::batch::{BLOCK, Batch, HEADER, padded};
use super::disk::{Disk, DiskFile};
use super::manifest::Manifest;
use super::segment::{Segment, segment_name};
use super::{LogError, Position, Replay, TornTail};

/// What was found in a log.
pub(super) struct Found {
    pub(super) log: u64,
    /// The number of the last segment, and its file.
    pub(super) segment: u64,
    pub(super) file: Arc<dyn DiskFile>,
    /// Where its batches end.
    pub(super) end: u64,
    /// The number of the last batch.
    pub(super) number: u64,
    /// The `opening` of the last batch.
    pub(super) before: u64,
    /// What a crash left of batches that were never acknowledged, behind the last one.
    pub(super) torn_tail: Option<TornTail>,
}

/// How far batches were followed.
pub(super) struct Chain {
    pub(super) log: u64,
    pub(super) segment: u64,
    /// The last batch's number and opening.
    pub(super) number: u64,
    pub(super) before: u64,
    /// Where the next batch should begin.
    pub(super) offset: usize,
    pub(super) batches: Vec<Link>,
}

/// A batch that was followed.
pub(super) struct Link {
    pub(super) offset: usize,
    pub(super) body: Range<usize>,
    pub(super) batch: Batch,
}

impl Chain {
    pub(super) fn new(header: &Segment) -> Chain {
        let first = Position { segment: header.number, offset: BLOCK as u64 };
        Chain::before(header.log, first, header.first_batch.wrapping_sub(1), header.before)
    }

    /// One that goes on at a place, behind a batch of this number and opening.
    pub(super) fn before(log: u64, place: Position, number: u64, before: u64) -> Chain {
        let Position { segment, offset } = place;
        Chain { log, segment, number, before, offset: offset as usize, batches: Vec::new() }
    }

    /// Goes on at the beginning of the next segment.
    pub(super) fn go_on_in_next(&mut self) {
        self.segment += 1;
        self.offset = BLOCK;
        self.batches.clear();
    }

    /// Follows batches until one is not as it should be, and says what is wrong with it.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> &'static str {
        loop {
            let rest = bytes.get(self.offset..).unwrap_or_default();
            let (batch, body) = match Batch::decode(self.log, self.segment, rest) {
                Ok(found) => found,
                Err(why) => return why,
            };
            if batch.number != self.number.wrapping_add(1) {
                return "the batch here has another number than the one that belongs here";
            }
            if batch.before != self.before {
                return "the batch here was written behind another one";
            }
            let start = self.offset + HEADER;
            self.batches.push(Link { offset: self.offset, body: start..start + body.len(), batch });
            (self.number, self.before) = (batch.number, batch.opening);
            self.offset += padded(body.len());
        }
    }

    /// Takes back the batches that nobody has called durable. What they were is to be read again.
    fn step_back(&mut self, header: &Segment) {
        let synced = self.batches.last().map_or(0, |last| last.batch.synced);
        let keep = self.batches.partition_point(|link| link.batch.number <= synced);
        if let Some(first) = self.batches.get(keep) {
            self.offset = first.offset;
        }
        self.batches.truncate(keep);
        (self.number, self.before) = match self.batches.last() {
            Some(last) => (last.batch.number, last.batch.opening),
            None => (header.first_batch.wrapping_sub(1), header.before),
        };
    }

    /// Whether a batch further on says that the one that should be here was durable.
    pub(super) fn was_durable_here(&self, bytes: &[u8]) -> bool {
        let missing = self.number.wrapping_add(1);
        (self.offset..bytes.len()).step_by(BLOCK).any(|offset| {
            let found = Batch::decode(self.log, self.segment, &bytes[offset..]);
            matches!(found, Ok((batch, _)) if batch.number > missing && batch.synced >= missing)
        })
    }

    /// What there is of batches behind the last good one, which are cut off.
    pub(super) fn torn_tail(&self, bytes: &[u8]) -> Option<TornTail> {
        let (rest, next) = (bytes.get(self.offset..)?, self.number.wrapping_add(1));
        // A batch that is whole and does not follow was cut off by an earlier opening.
        let is_stale = Batch::decode(self.log, self.segment, rest).is_ok();
        let here = if is_stale { 0 } else { Batch::torn_bytes(self.log, self.segment, next, rest) };
        // Batches of the same opening behind a torn one.
        let behind = (0..rest.len()).step_by(BLOCK).filter_map(|offset| {
            let (batch, body) = Batch::decode(self.log, self.segment, &rest[offset..]).ok()?;
            (batch.number > next && batch.before == self.before).then(|| offset + padded(body.len()))
        });
        let bytes = behind.max().unwrap_or(0).max(here) as u64;
        let (segment, offset) = (self.segment, self.offset as u64);
        (bytes > 0).then_some(TornTail { segment, offset, bytes })
    }

    /// The position behind the last batch.
    pub(super) fn end(&self) -> Position {
        Position { segment: self.segment, offset: self.offset as u64 }
    }

    pub(super) fn damaged(&self, why: &str) -> LogError {
        LogError::damaged(self.segment, self.offset as u64, why)
    }
}

/// Reads the segments from a position on, and hands on their batches. `None` if there is no segment at all.
pub(super) fn recover(
    disk: &dyn Disk,
    segments: &BTreeMap<u64, u64>,
    manifest: Option<&Manifest>,
    from: Position,
    replay: &mut Replay<'_>,
) -> Result<Option<Found>, LogError> {
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
    let mut this = Opened::open(disk, first, segments[&first])?;
    loop {
        check_manifest(&this.header, manifest)?;
        let number = this.header.number;
        let next = match number < last {
            true => Some(Opened::open(disk, number + 1, segments[&(number + 1)])?),
            false => None,
        };
        let chain = match &next {
            Some(next) => this.read_complete(&next.header, &mut bytes)?,
            None => this.read_last(synced, &mut bytes)?,
        };
        if number == from.segment && from.offset > chain.offset as u64 {
            return Err(chain.damaged("the log ends here, before the place that is asked for"));
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
                return Ok(Some(Found {
                    log: chain.log,
                    segment: number,
                    file: this.file,
                    end: chain.offset as u64,
                    number: chain.number,
                    before: chain.before,
                    torn_tail: chain.torn_tail(&bytes),
                }));
            }
        }
    }
}

fn missing(segment: u64) -> LogError {
    LogError::damaged(segment, 0, "the segment is missing")
}

/// A segment of version 2 begins only when there is a manifest, and that speaks of the same log.
pub(super) fn check_manifest(header: &Segment, manifest: Option<&Manifest>) -> Result<(), LogError> {
    let why = match manifest {
        None if header.bytes.is_some() => "it is missing",
        Some(manifest) if manifest.log() != header.log => "it is of another log",
        _ => return Ok(()),
    };
    Err(LogError::Manifest { why: why.into() })
}

/// A segment whose header is as it should be.
struct Opened {
    header: Segment,
    file: Arc<dyn DiskFile>,
    bytes: u64,
}

impl Opened {
    fn open(disk: &dyn Disk, number: u64, bytes: u64) -> Result<Opened, LogError> {
        let damaged = |why: &str| LogError::damaged(number, 0, why);
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
            return Err(LogError::damaged(number, bytes, why));
        }
        Ok(Opened { header, file, bytes })
    }

    /// A segment that was full when the next one began.
    fn read_complete(&self, next: &Segment, bytes: &mut Vec<u8>) -> Result<Chain, LogError> {
        let beginning = |why: &str| LogError::damaged(next.number, 0, why);
        if next.log != self.header.log {
            return Err(beginning("it is of another log"));
        }
        let mut chain = Chain::new(&self.header);
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
        if (chain.number.wrapping_add(1), chain.before) != (next.first_batch, next.before) {
            return Err(beginning("it does not continue the segment before"));
        }
        Ok(chain)
    }

    /// The segment that was being written, of which all before a position is known to be durable.
    fn read_last(&self, synced: Position, bytes: &mut Vec<u8>) -> Result<Chain, LogError> {
        bytes.resize(self.bytes as usize, 0);
        self.file.read_at(bytes, 0)?;
        let mut chain = Chain::new(&self.header);
        chain.follow(bytes);
        // A process that was killed may have left batches in the system's memory only; one whose sync failed may have left batches
        // there that the system believes to be on disk. So those that may never have been durable are made so and read once more.
        self.file.sync_data()?;
        let end = chain.offset;
        chain.step_back(&self.header);
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
