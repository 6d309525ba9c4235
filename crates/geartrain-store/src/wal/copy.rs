//! Copies the log to another place: all of it, or up to the first damage.
//!
//! Every batch has the same position in the copy as in the original. A range that cannot be read is zeroes in
//! the copy, as if it had never been written.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;

use super::batch::{BLOCK, Batch, HEADER, padded};
use super::disk::{Disk, read_or_zero};
use super::manifest::Manifest;
use super::recover::{BatchChain, check_manifest};
use super::segment::{Segment, segment_name};
use super::{Position, Replay, TornTail, WalError, random_u64, segments_in};
use crate::copy_target::CopyTarget;

/// Maximum length of a filler segment made where the original has none.
const FILLER_BYTES_MAX: u64 = 4 << 30;

/// What was copied, and what was not.
#[derive(Debug, Default)]
pub(crate) struct CopiedWal {
    /// Segments, and their length together.
    pub(crate) segments: u64,
    pub(crate) bytes: u64,
    /// Batches from the first position on.
    pub(crate) batches: u64,
    /// Where the copy ends because the original is damaged.
    pub(crate) damage: Option<WalError>,
    /// The position behind the last batch of the copy.
    pub(crate) end: Position,
    /// The manifest of the copy, which the caller adds when everything else is copied: without it, the copy
    /// does not open.
    pub(crate) manifest: Vec<u8>,
    /// The torn tail of the original, which the copy does not have.
    pub(crate) torn_tail: Option<TornTail>,
    /// Good batches behind the damage, and the bytes in them.
    pub(crate) left_batches: u64,
    pub(crate) left_bytes: u64,
}

/// The position of the first batch of all.
pub(crate) const BEGINNING: Position = Position { segment: 1, offset: BLOCK as u64 };

/// Copies the log from `first` on. `replay` sees each batch, and may call it damaged: then the copy ends
/// before it.
///
/// The log may be appended to meanwhile, but no segment may be released. Every batch appended before is in
/// the copy.
pub(crate) fn copy(
    from: &dyn Disk,
    to: &mut dyn CopyTarget,
    first: Position,
    replay: &mut Replay<'_>,
) -> Result<CopiedWal, WalError> {
    // Before the directory is listed: every segment that the manifest refers to is then in the list.
    let (manifest, mut damage) = match Manifest::read(from) {
        Ok(manifest) => (manifest, None),
        Err(damage @ WalError::Manifest { .. }) => (None, Some(damage)),
        Err(error) => return Err(error),
    };
    // A file that appears while a directory is listed may be missed, but one that was there before is not. So
    // all segments up to the highest of the first list are in the second.
    let highest = segments_in(&from.list()?).last_key_value().map(|(number, _)| *number);
    let mut segments = segments_in(&from.list()?);
    segments.retain(|number, _| Some(*number) <= highest);
    let (image, chain) = (Vec::new(), BatchChain::starting_at(random_u64(), first, 0, 0));
    let synced = manifest.as_ref().map(Manifest::synced).unwrap_or_default();
    let mut copier =
        Copier { from, to, segments, synced, first, image, chain, why: "", copied: CopiedWal::default() };
    match copier.copy_segments(replay) {
        Ok(()) => {
            copier.copied.torn_tail = copier.chain.torn_tail(&copier.image);
            if damage.is_none()
                && let Ok(header) = header_of(&copier.image, copier.chain.segment)
            {
                // Read again: the committer may have created it since, with its first segment of version 2.
                damage = check_manifest(&header, Manifest::read(from)?.as_ref()).err();
            }
        }
        Err(found @ WalError::Damaged { .. }) => {
            copier.count_unreachable()?;
            damage = Some(found);
        }
        Err(error) => return Err(error),
    }
    copier.copied.damage = damage;
    copier.finish()?;
    Ok(copier.copied)
}

struct Copier<'a> {
    from: &'a dyn Disk,
    to: &'a mut dyn CopyTarget,
    segments: BTreeMap<u64, u64>,
    /// Every batch before this position was durable, by the manifest of the original.
    synced: Position,
    first: Position,
    /// The segment that is being copied.
    image: Vec<u8>,
    /// The batches in it, and what is wrong behind them.
    chain: BatchChain,
    why: &'static str,
    copied: CopiedWal,
}

impl Copier<'_> {
    /// Copies all segments but the last, which is left in the image.
    fn copy_segments(&mut self, replay: &mut Replay<'_>) -> Result<(), WalError> {
        self.find_first_batch()?;
        loop {
            self.reread_tail()?;
            self.replay(replay)?;
            let Some(next) = self.next_segment()? else { return Ok(()) };
            self.write_image()?;
            self.image = next;
            self.chain.enter_next_segment();
            self.why = self.chain.follow(&self.image);
        }
    }

    /// Finds the first batch. If the bytes before it are damaged, a filler batch takes their place.
    fn find_first_batch(&mut self) -> Result<(), WalError> {
        let first = self.first;
        let found = self.read(first.segment)?;
        let is_missing = found.is_none();
        self.image = found.unwrap_or_default();
        let header = header_of(&self.image, first.segment);
        let mut stopped_at = first.offset as usize;
        if let Ok(header) = &header {
            self.chain = BatchChain::new(header);
            self.why = self.chain.follow(&self.image);
            if self.chain.offset as u64 >= first.offset {
                return Ok(());
            }
            stopped_at = self.chain.offset;
        }
        let offset = usize::try_from(first.offset).unwrap_or_default();
        if offset as u64 > FILLER_BYTES_MAX || !offset.is_multiple_of(BLOCK) || offset == 0 {
            let why = "no batch can be at the position of the checkpoint";
            return Err(WalError::Io(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        // A batch names its predecessor.
        let rest = self.image.get(offset..).unwrap_or_default();
        let found = rest.first_chunk::<HEADER>().and_then(Batch::header).map(|(batch, _)| batch);
        let found = found.filter(|batch| Batch::decode(batch.wal_id, first.segment, rest).is_ok());
        let found = found.filter(|batch| first != BEGINNING || batch.number == 1);
        let found = found.map(|batch| {
            BatchChain::starting_at(batch.wal_id, first, batch.number.wrapping_sub(1), batch.previous_opening)
        });
        // So does the next segment, if there is no batch here because this segment was full.
        let found = match found {
            None if first != BEGINNING => self.beginning_of_next(first)?,
            found => found,
        };
        let is_found = found.is_some();
        self.chain = match found {
            Some(chain) => chain,
            // Nothing can be read from here on, but the checkpoint needs a log behind it.
            None => {
                let wal_id = header.as_ref().map_or_else(|_| random_u64(), |header| header.wal_id);
                BatchChain::starting_at(wal_id, first, u64::from(first != BEGINNING), 0)
            }
        };
        write_filler(&mut self.image, &self.chain);
        if is_found {
            self.why = self.chain.follow(&self.image);
            return Ok(());
        }
        Err(match header {
            _ if is_missing => WalError::damaged(first.segment, 0, "the segment is missing"),
            Err(why) => WalError::damaged(first.segment, 0, why),
            Ok(_) => WalError::damaged(first.segment, stopped_at as u64, self.why),
        })
    }

    /// The end of a segment, by the header of the next.
    fn beginning_of_next(&self, end: Position) -> Result<Option<BatchChain>, WalError> {
        let Some(next) = end.segment.checked_add(1) else { return Ok(None) };
        let image = self.read(next)?.unwrap_or_default();
        let header = header_of(&image, next).ok().filter(|header| header.previous_end == end.offset);
        Ok(header.map(|header| {
            BatchChain::starting_at(
                header.wal_id,
                end,
                header.first_batch.wrapping_sub(1),
                header.previous_opening,
            )
        }))
    }

    /// If the end of the log is inconsistent because it was read while it was written, reads it again.
    fn reread_tail(&mut self) -> Result<(), WalError> {
        while self.is_last() && self.chain.was_durable_here(&self.image) {
            // A later batch was written after this one, so this one is here now if it ever was.
            let stopped_at = self.chain.offset;
            let again = self.read(self.chain.segment)?.unwrap_or_default();
            if again.len() == self.image.len() {
                self.image[stopped_at..].copy_from_slice(&again[stopped_at..]);
            }
            self.why = self.chain.follow(&self.image);
            if self.chain.offset == stopped_at {
                break;
            }
        }
        Ok(())
    }

    /// Replays the batches from the first position on. If one is refused the chain ends before it.
    fn replay(&mut self, replay: &mut Replay<'_>) -> Result<(), WalError> {
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

    /// The segment in which the chain continues; `None` if the log ends here.
    fn next_segment(&self) -> Result<Option<Vec<u8>>, WalError> {
        let chain = &self.chain;
        if self.is_last() && self.synced.segment <= chain.segment {
            if chain.was_durable_here(&self.image) || chain.end() < self.synced {
                return Err(chain.damaged(self.why));
            }
            // Batches that were never synced may have been in the part that was cut off.
            let bytes = self.segments.get(&chain.segment).copied().unwrap_or_default();
            let cut =
                header_of(&self.image, chain.segment).ok().and_then(|header| header.is_cut_short(bytes));
            return cut.map_or(Ok(None), |why| Err(WalError::damaged(chain.segment, bytes, why)));
        }
        let mut expected = Segment {
            wal_id: chain.wal_id,
            number: chain.segment + 1,
            first_batch: chain.number.wrapping_add(1),
            previous_end: chain.offset as u64,
            previous_opening: chain.previous_opening,
            bytes: None,
        };
        let beginning = |why: &str| WalError::damaged(expected.number, 0, why);
        let Some(mut image) = self.read(expected.number)? else {
            return Err(beginning("the segment is missing"));
        };
        let header = header_of(&image, expected.number);
        expected.bytes = header.as_ref().map_or(Some(image.len() as u64), |header| header.bytes);
        match header {
            Ok(header) if header == expected => Ok(Some(image)),
            Ok(header) if header.wal_id == chain.wal_id && header.previous_end != expected.previous_end => {
                Err(chain.damaged(self.why))
            }
            Ok(_) => Err(beginning("it does not continue the segment before")),
            Err(why) => {
                // Everything in the header is known. Whether the segment is the next one shows in its first
                // batch.
                let first = Position { segment: expected.number, offset: BLOCK as u64 };
                let mut next =
                    BatchChain::starting_at(chain.wal_id, first, chain.number, chain.previous_opening);
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
    fn count_unreachable(&mut self) -> Result<(), WalError> {
        let (mut image, mut segment, mut offset) =
            (std::mem::take(&mut self.image), self.chain.segment, self.chain.offset);
        loop {
            while let Some(rest) = image.get(offset..).filter(|rest| !rest.is_empty()) {
                offset += match Batch::decode(self.chain.wal_id, segment, rest) {
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
            let Some(next) = self.next_present(segment) else { return Ok(()) };
            (image, segment, offset) = (self.read(next)?.unwrap_or_default(), next, BLOCK);
        }
    }

    /// Copies the last segment up to the end of the chain.
    fn finish(&mut self) -> Result<(), WalError> {
        let end = self.chain.offset.min(self.image.len());
        self.image[end..].fill(0);
        self.write_image()?;
        self.copied.end = self.chain.end();
        self.copied.manifest = Manifest::encode(self.chain.wal_id, self.copied.end);
        Ok(())
    }

    fn is_last(&self) -> bool {
        self.next_present(self.chain.segment).is_none()
    }

    /// The next segment that exists.
    fn next_present(&self, segment: u64) -> Option<u64> {
        let mut next_present = self.segments.range((Bound::Excluded(segment), Bound::Unbounded));
        next_present.next().map(|(number, _)| *number)
    }

    /// The contents of a segment, with zeroes where it cannot be read or was cut off; `None` if it does not
    /// exist.
    fn read(&self, number: u64) -> Result<Option<Vec<u8>>, WalError> {
        let Some(&bytes) = self.segments.get(&number) else { return Ok(None) };
        let file = self.from.open(&segment_name(number))?;
        let mut image = vec![0; bytes as usize];
        read_or_zero(&*file, 0, &mut image);
        // At its full length, which the header in the copy says.
        let bytes = header_of(&image, number).ok().and_then(|header| header.bytes);
        if let Some(bytes) =
            bytes.filter(|bytes| (bytes.saturating_sub(image.len() as u64)) <= FILLER_BYTES_MAX)
        {
            image.resize(image.len().max(bytes as usize), 0);
        }
        Ok(Some(image))
    }

    fn write_image(&mut self) -> Result<(), WalError> {
        let (name, bytes) = (segment_name(self.chain.segment), self.image.len() as u64);
        // Not `WalError::Full`, which is about the disk of the original.
        self.to.add(&name, bytes, &mut &self.image[..]).map_err(WalError::Io)?;
        self.copied.segments += 1;
        self.copied.bytes += bytes;
        Ok(())
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

/// Writes a header and one filler batch before the position where a chain begins.
fn write_filler(image: &mut Vec<u8>, chain: &BatchChain) {
    image.resize(image.len().max(chain.offset + BLOCK).next_multiple_of(BLOCK), 0);
    let mut header = Segment {
        wal_id: chain.wal_id,
        number: chain.segment,
        first_batch: chain.number.wrapping_add(1),
        previous_end: 0,
        previous_opening: chain.previous_opening,
        bytes: Some(image.len() as u64),
    };
    if chain.offset > BLOCK {
        header = Segment { first_batch: chain.number, previous_opening: 0, ..header };
        let batch = Batch {
            wal_id: chain.wal_id,
            segment: chain.segment,
            number: chain.number,
            synced: 0,
            opening_id: chain.previous_opening,
            previous_opening: 0,
        };
        let mut bytes = Vec::new();
        batch.encode(&vec![0; chain.offset - BLOCK - HEADER], &mut bytes);
        image[BLOCK..chain.offset].copy_from_slice(&bytes);
    }
    image[..BLOCK].copy_from_slice(&header.encode());
}
