//! Copies a log to another disk: all of it, or what comes before the first damage.
//!
//! The copy has every batch at the place where the original has it, so that positions mean the same in both. What a copy cannot vouch for is
//! left out by writing zeroes in its place, and then it is as if it had never been written.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;

use super::batch::{BLOCK, Batch, HEADER, padded};
use super::disk::{Disk, read_what_can_be_read};
use super::manifest::Manifest;
use super::recover::{Chain, check_manifest};
use super::segment::{Segment, segment_name};
use super::{LogError, Position, Replay, TornTail, chance, segments_in};

/// What the lowest segment is called until all the others are there. A copy that was given up half-way has no beginning, and is not taken for a whole one.
const UNFINISHED: &str = "copy.new";

/// The longest segment that is made up where the original has none.
const MADE_UP_BYTES_MAX: u64 = 4 << 30;

/// What was copied, and what was not.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    /// Segments, and how long they are together.
    pub(crate) segments: u64,
    pub(crate) bytes: u64,
    /// Batches from the place on that mattered.
    pub(crate) batches: u64,
    /// Where the copy ends because the original is damaged there.
    pub(crate) damage: Option<LogError>,
    /// The position behind the last batch of the copy.
    pub(crate) end: Position,
    /// What a crash left behind the last batch, and the copy does not have.
    pub(crate) torn_tail: Option<TornTail>,
    /// Good batches behind the damage, and the bytes in them.
    pub(crate) left_batches: u64,
    pub(crate) left_bytes: u64,
}

/// The place where a log begins.
pub(crate) const BEGINNING: Position = Position { segment: 1, offset: BLOCK as u64 };

/// Copies a log, of which only what comes at or after `first` matters. `replay` sees each batch of that, and may call it damaged: then the copy
/// ends before it.
///
/// Somebody may append to the log meanwhile, but nobody may release anything. All that was appended before is in the copy.
pub(crate) fn copy(
    from: &dyn Disk,
    to: &dyn Disk,
    first: Position,
    replay: &mut Replay<'_>,
) -> Result<Copied, LogError> {
    // Before the directory is listed: every segment that it speaks of is then in the list.
    let (manifest, mut damage) = match Manifest::read(from) {
        Ok(manifest) => (manifest, None),
        Err(damage @ LogError::Manifest { .. }) => (None, Some(damage)),
        Err(error) => return Err(error),
    };
    // A file that appears while a directory is listed may be missed, but one that was there before is not. So all up to the highest of
    // the first list are in the second.
    let highest = segments_in(&from.list()?).last_key_value().map(|(number, _)| *number);
    let mut segments = segments_in(&from.list()?);
    segments.retain(|number, _| Some(*number) <= highest);
    let (image, chain) = (Vec::new(), Chain::before(chance(), first, 0, 0));
    let synced = manifest.as_ref().map(Manifest::synced).unwrap_or_default();
    let mut copier =
        Copier { from, to, segments, synced, first, image, chain, why: "", copied: Copied::default() };
    match copier.walk(replay) {
        Ok(()) => {
            copier.copied.torn_tail = copier.chain.torn_tail(&copier.image);
            if damage.is_none()
                && let Ok(header) = header_of(&copier.image, copier.chain.segment)
            {
                // Read again: the writer may have created it since, with its first segment of version 2.
                damage = check_manifest(&header, Manifest::read(from)?.as_ref()).err();
            }
        }
        Err(found @ LogError::Damaged { .. }) => {
            copier.count_left()?;
            damage = Some(found);
        }
        Err(error) => return Err(error),
    }
    copier.copied.damage = damage;
    copier.end()?;
    Ok(copier.copied)
}

struct Copier<'a> {
    from: &'a dyn Disk,
    to: &'a dyn Disk,
    segments: BTreeMap<u64, u64>,
    /// All before this was durable, as the manifest of the original says.
    synced: Position,
    first: Position,
    /// The segment that is being copied.
    image: Vec<u8>,
    /// The batches in it, and what is wrong with what comes after them.
    chain: Chain,
    why: &'static str,
    copied: Copied,
}

impl Copier<'_> {
    /// Copies all segments but the last, which is left in the image.
    fn walk(&mut self, replay: &mut Replay<'_>) -> Result<(), LogError> {
        self.begin()?;
        loop {
            self.follow_the_writer()?;
            self.replay(replay)?;
            let Some(next) = self.next()? else { return Ok(()) };
            self.write(self.chain.segment, &self.image)?;
            self.copied.count(&self.image);
            self.image = next;
            self.chain.go_on_in_next();
            self.why = self.chain.follow(&self.image);
        }
    }

    /// Finds the first batch that matters. If what comes before it is damaged, something harmless is put there instead.
    fn begin(&mut self) -> Result<(), LogError> {
        let first = self.first;
        let found = self.read(first.segment)?;
        let is_missing = found.is_none();
        self.image = found.unwrap_or_default();
        let header = header_of(&self.image, first.segment);
        let mut stood = first.offset as usize;
        if let Ok(header) = &header {
            self.chain = Chain::new(header);
            self.why = self.chain.follow(&self.image);
            if self.chain.offset as u64 >= first.offset {
                return Ok(());
            }
            stood = self.chain.offset;
        }
        let offset = usize::try_from(first.offset).unwrap_or_default();
        if offset as u64 > MADE_UP_BYTES_MAX || !offset.is_multiple_of(BLOCK) || offset == 0 {
            let why = "the checkpoint belongs to a place where no batch can be";
            return Err(LogError::Io(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        // A batch says itself which one it follows.
        let rest = self.image.get(offset..).unwrap_or_default();
        let found = rest.first_chunk::<HEADER>().and_then(Batch::header).map(|(batch, _)| batch);
        let found = found.filter(|batch| Batch::decode(batch.log, first.segment, rest).is_ok());
        let found = found.filter(|batch| first != BEGINNING || batch.number == 1);
        let found =
            found.map(|batch| Chain::before(batch.log, first, batch.number.wrapping_sub(1), batch.before));
        // So does the next segment, if there is no batch here because this one was full.
        let found = match found {
            None if first != BEGINNING => self.beginning_of_next(first)?,
            found => found,
        };
        let is_found = found.is_some();
        self.chain = match found {
            Some(chain) => chain,
            // Nothing can be had from here on, but the checkpoint needs a log to belong to.
            None => {
                let log = header.as_ref().map_or_else(|_| chance(), |header| header.log);
                Chain::before(log, first, u64::from(first != BEGINNING), 0)
            }
        };
        bridge(&mut self.image, &self.chain);
        if is_found {
            self.why = self.chain.follow(&self.image);
            return Ok(());
        }
        Err(match header {
            _ if is_missing => LogError::damaged(first.segment, 0, "the segment is missing"),
            Err(why) => LogError::damaged(first.segment, 0, why),
            Ok(_) => LogError::damaged(first.segment, stood as u64, self.why),
        })
    }

    /// What stands at the end of a segment, according to the next.
    fn beginning_of_next(&self, end: Position) -> Result<Option<Chain>, LogError> {
        let Some(next) = end.segment.checked_add(1) else { return Ok(None) };
        let image = self.read(next)?.unwrap_or_default();
        let header = header_of(&image, next).ok().filter(|header| header.previous_end == end.offset);
        Ok(header
            .map(|header| Chain::before(header.log, end, header.first_batch.wrapping_sub(1), header.before)))
    }

    /// If the end of the log is not as it should be because it was read while it was written, reads it again.
    fn follow_the_writer(&mut self) -> Result<(), LogError> {
        while self.is_last() && self.chain.was_durable_here(&self.image) {
            // Whoever wrote what was read had written this before, so it is here now if it ever was.
            let stood = self.chain.offset;
            let again = self.read(self.chain.segment)?.unwrap_or_default();
            if again.len() == self.image.len() {
                self.image[stood..].copy_from_slice(&again[stood..]);
            }
            self.why = self.chain.follow(&self.image);
            if self.chain.offset == stood {
                break;
            }
        }
        Ok(())
    }

    /// Hands on the batches that matter. If one is refused the chain ends before it.
    fn replay(&mut self, replay: &mut Replay<'_>) -> Result<(), LogError> {
        for link in &self.chain.batches {
            let position = Position { segment: self.chain.segment, offset: link.offset as u64 };
            if position < self.first {
                continue;
            }
            if let Err(refused) = replay(position, &self.image[link.body.clone()]) {
                (self.chain.offset, self.chain.number) = (link.offset, link.batch.number);
                return Err(refused);
            }
            self.copied.batches += 1;
        }
        Ok(())
    }

    /// The segment in which the chain goes on; none if the log ends here.
    fn next(&self) -> Result<Option<Vec<u8>>, LogError> {
        let chain = &self.chain;
        if self.is_last() && self.synced.segment <= chain.segment {
            if chain.was_durable_here(&self.image) || chain.end() < self.synced {
                return Err(chain.damaged(self.why));
            }
            // Batches that were never synced may have been in the part that is gone.
            let bytes = self.segments.get(&chain.segment).copied().unwrap_or_default();
            let cut =
                header_of(&self.image, chain.segment).ok().and_then(|header| header.is_cut_short(bytes));
            return cut.map_or(Ok(None), |why| Err(LogError::damaged(chain.segment, bytes, why)));
        }
        let mut expected = Segment {
            log: chain.log,
            number: chain.segment + 1,
            first_batch: chain.number.wrapping_add(1),
            previous_end: chain.offset as u64,
            before: chain.before,
            bytes: None,
        };
        let beginning = |why: &str| LogError::damaged(expected.number, 0, why);
        let Some(mut image) = self.read(expected.number)? else {
            return Err(beginning("the segment is missing"));
        };
        let header = header_of(&image, expected.number);
        expected.bytes = header.as_ref().map_or(Some(image.len() as u64), |header| header.bytes);
        match header {
            Ok(header) if header == expected => Ok(Some(image)),
            Ok(header) if header.log == chain.log && header.previous_end != expected.previous_end => {
                Err(chain.damaged(self.why))
            }
            Ok(_) => Err(beginning("it does not continue the segment before")),
            Err(why) => {
                // All that the header says is known. Whether the segment is the next one, its first batch says.
                let first = Position { segment: expected.number, offset: BLOCK as u64 };
                let mut next = Chain::before(chain.log, first, chain.number, chain.before);
                next.follow(&image);
                if next.batches.is_empty() {
                    return Err(beginning(&why));
                }
                image[..BLOCK].copy_from_slice(&expected.encode());
                Ok(Some(image))
            }
        }
    }

    /// Counts the good batches behind the end of the chain.
    fn count_left(&mut self) -> Result<(), LogError> {
        let (mut image, mut segment, mut offset) =
            (std::mem::take(&mut self.image), self.chain.segment, self.chain.offset);
        loop {
            while let Some(rest) = image.get(offset..).filter(|rest| !rest.is_empty()) {
                offset += match Batch::decode(self.chain.log, segment, rest) {
                    Ok((batch, body)) if batch.number > self.chain.number => {
                        self.copied.left_batches += 1;
                        self.copied.left_bytes += body.len() as u64;
                        padded(body.len())
                    }
                    _ => BLOCK,
                };
            }
            if segment == self.chain.segment {
                self.image = std::mem::take(&mut image);
            }
            let Some(next) = self.above(segment) else { return Ok(()) };
            (image, segment, offset) = (self.read(next)?.unwrap_or_default(), next, BLOCK);
        }
    }

    /// Copies the last segment, without what the chain does not reach, and makes the copy count.
    fn end(&mut self) -> Result<(), LogError> {
        let end = self.chain.offset.min(self.image.len());
        self.image[end..].fill(0);
        self.write(self.chain.segment, &self.image)?;
        self.copied.count(&self.image);
        self.copied.end = self.chain.end();
        Manifest::create(self.to, self.chain.log)?.advance(self.copied.end)?;
        self.to.rename(UNFINISHED, &segment_name(self.first.segment))?;
        Ok(self.to.sync_directory()?)
    }

    fn is_last(&self) -> bool {
        self.above(self.chain.segment).is_none()
    }

    /// The next segment that is there.
    fn above(&self, segment: u64) -> Option<u64> {
        let mut above = self.segments.range((Bound::Excluded(segment), Bound::Unbounded));
        above.next().map(|(number, _)| *number)
    }

    /// What a segment holds, with zeroes where it cannot be read or was cut off; none if there is no such
    /// segment.
    fn read(&self, number: u64) -> Result<Option<Vec<u8>>, LogError> {
        let Some(&bytes) = self.segments.get(&number) else { return Ok(None) };
        let file = self.from.open(&segment_name(number))?;
        let mut image = vec![0; bytes as usize];
        read_what_can_be_read(&*file, 0, &mut image);
        // As long as it was: the copy has a header that says so.
        let bytes = header_of(&image, number).ok().and_then(|header| header.bytes);
        if let Some(bytes) =
            bytes.filter(|bytes| (bytes.saturating_sub(image.len() as u64)) <= MADE_UP_BYTES_MAX)
        {
            image.resize(image.len().max(bytes as usize), 0);
        }
        Ok(Some(image))
    }

    fn write(&self, number: u64, image: &[u8]) -> Result<(), LogError> {
        let name = if number == self.first.segment { UNFINISHED.to_owned() } else { segment_name(number) };
        let file = self.to.create(&name)?;
        file.write_at(image, 0)?;
        file.sync_data()?;
        Ok(())
    }
}

impl Copied {
    fn count(&mut self, image: &[u8]) {
        self.segments += 1;
        self.bytes += image.len() as u64;
    }
}

/// The header of a segment, or what is wrong with it.
fn header_of(image: &[u8], number: u64) -> Result<Segment, String> {
    let Some(block) = image.first_chunk::<BLOCK>() else {
        return Err("it is too short for a segment's header".into());
    };
    let header = Segment::decode(block)?;
    if header.number == number { Ok(header) } else { Err("its header is that of another segment".into()) }
}

/// Puts a header and one batch that nobody reads before the place where a chain begins.
fn bridge(image: &mut Vec<u8>, chain: &Chain) {
    image.resize(image.len().max(chain.offset + BLOCK).next_multiple_of(BLOCK), 0);
    let mut header = Segment {
        log: chain.log,
        number: chain.segment,
        first_batch: chain.number.wrapping_add(1),
        previous_end: 0,
        before: chain.before,
        bytes: Some(image.len() as u64),
    };
    if chain.offset > BLOCK {
        header = Segment { first_batch: chain.number, before: 0, ..header };
        let batch = Batch {
            log: chain.log,
            segment: chain.segment,
            number: chain.number,
            synced: 0,
            opening: chain.before,
            before: 0,
        };
        let mut bytes = Vec::new();
        batch.encode(&vec![0; chain.offset - BLOCK - HEADER], &mut bytes);
        image[BLOCK..chain.offset].copy_from_slice(&bytes);
    }
    image[..BLOCK].copy_from_slice(&header.encode());
}
