//! The write-ahead log (WAL): batches of bytes in append order, in segment files whose blocks are allocated
//! ahead.
//!
//! ```text
//! log-…17  [header | batch 40 | batch 41 |   batch 42   | …]     the next header says where this one ends
//! log-…18  [header | batch 43 | 44 | old contents of the file …]
//! spare-…5 [zeroes, or the contents of a released segment     ]
//! ```
//!
//! A commit is one overwrite and one fdatasync. It changes neither the length of a file nor its block
//! allocation, so the file system has no metadata to write. The log does not interpret its batches.
//!
//! After a crash a batch is there completely, or neither it nor any later one is. Every batch that was synced
//! is there; if one is not, opening fails and says where. The bytes are described in `docs/formats/log.md`.

mod background;
mod batch;
mod copy;
mod disk;
mod manifest;
mod recover;
mod release;
mod segment;
mod spares;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

pub(crate) use background::BackgroundTask;
pub(crate) use copy::{BEGINNING, CopiedWal, copy};
pub use disk::{Disk, DiskFile, Join, RealDisk, Task};
pub(crate) use disk::{SYNC_CHUNK_BYTES, naming, read_or_zero, write_synced};
pub(crate) use manifest::NAME as MANIFEST;
pub(crate) use release::{ReleasedSegments, SegmentRelease};

pub(crate) use batch::padded;
use batch::{BLOCK, Batch};
use manifest::Manifest;
use recover::{RecoveredTail, recover};
pub(crate) use segment::segment_number;
use segment::{Segment, segment_name, spare_number};
use spares::{SpareSegment, SpareSegments};

/// Buffer memory kept between two batches, at most.
const BUFFER_BYTES_MAX: usize = 4 << 20;

/// Where a batch begins. Later batches have larger positions.
///
/// Segments are numbered from 1 on and no number is used twice. The default, segment 0, is before every
/// batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position {
    /// The number of the segment.
    pub segment: u64,
    /// Bytes from the beginning of its file.
    pub offset: u64,
}

/// How a log uses the disk.
#[derive(Debug, Clone, Copy)]
pub struct WalOptions {
    /// Length of a segment; rounded up to whole blocks. A longer batch gets a segment of its own size.
    pub segment_bytes: u64,
    /// How many released segments are kept for reuse. Unless it is 0, one is made ahead if there is none.
    pub spare_segments: usize,
}

impl Default for WalOptions {
    fn default() -> WalOptions {
        // What is logged between two checkpoints of a small store, and one more.
        WalOptions { segment_bytes: 8 << 20, spare_segments: 5 }
    }
}

/// Why the log cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WalError {
    /// The disk is full. Nothing was changed; the same may succeed when there is space.
    #[error(
        "the disk is full: nothing was changed; jobs can still be popped, completed and cancelled, which frees space"
    )]
    Full,
    /// Batches that were durable once are missing or damaged.
    #[error("segment {segment} (file {}) is damaged at byte {offset}: {why}", segment_name(*segment))]
    Damaged {
        /// The number of the segment.
        segment: u64,
        /// Bytes from the beginning of its file.
        offset: u64,
        /// What is wrong there.
        why: String,
    },
    /// The manifest, which says how far the log reaches, is damaged or missing.
    #[error("the manifest of the log (file {}) is damaged at byte 0: {why}", manifest::NAME)]
    Manifest {
        /// What is wrong with it.
        why: String,
    },
    /// A write or a sync has failed before, so it is unknown what is on the disk until the log has been
    /// opened again.
    #[error("the log has failed before, and must be opened again")]
    Broken,
    /// The disk failed for another reason.
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for WalError {
    fn from(error: io::Error) -> WalError {
        if is_full(&error) { WalError::Full } else { WalError::Io(error) }
    }
}

impl WalError {
    /// Damage at a position.
    pub fn damaged(segment: u64, offset: u64, why: impl Into<String>) -> WalError {
        WalError::Damaged { segment, offset, why: why.into() }
    }

    /// Whether stored data is missing or not as it was written.
    pub fn is_damage(&self) -> bool {
        matches!(self, WalError::Damaged { .. } | WalError::Manifest { .. })
    }
}

/// Receives each batch of a log that is being read: its position and its body.
pub type Replay<'a> = dyn FnMut(Position, &[u8]) -> Result<(), WalError> + 'a;

/// The size of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// Number of segments.
    pub segments: u64,
    /// Their length together.
    pub bytes: u64,
    /// The position behind the last batch.
    pub end: Position,
    /// The torn tail behind the last batch, if there is one.
    pub torn_tail: Option<TornTail>,
}

/// The torn tail of a log: batches that a crash interrupted before they were synced, so that they were never
/// acknowledged as durable.
///
/// They are cut off. Unless the log was closed, a last batch that was synced and damaged later looks the
/// same, which is why this is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes of unfinished batches in file {} from byte {offset} on", segment_name(*segment))]
pub struct TornTail {
    /// The number of the segment.
    pub segment: u64,
    /// Where the first of them begins in its file.
    pub offset: u64,
    /// Their length together, as far as it is known.
    pub bytes: u64,
}

/// Reads the log of a directory like [`Wal::open`], and changes nothing. A directory without a log has 0
/// segments.
pub fn survey(disk: &dyn Disk, from: Position, replay: &mut Replay<'_>) -> Result<Extent, WalError> {
    let manifest = Manifest::read(disk)?;
    let segments = segments_in(&disk.list()?);
    let found = recover(disk, &segments, manifest.as_ref(), from, replay)?;
    let end = found.as_ref().map(|found| Position { segment: found.segment, offset: found.end });
    Ok(Extent {
        segments: segments.len() as u64,
        bytes: segments.values().sum(),
        end: end.unwrap_or_default(),
        torn_tail: found.and_then(|found| found.torn_tail),
    })
}

/// Whether the first segment of all still exists.
pub(crate) fn has_beginning(disk: &dyn Disk) -> io::Result<bool> {
    Ok(segments_in(&disk.list()?).contains_key(&BEGINNING.segment))
}

/// The segments among some files: their numbers and lengths.
fn segments_in(files: &[(String, u64)]) -> BTreeMap<u64, u64> {
    files.iter().filter_map(|(name, bytes)| Some((segment_number(name)?, *bytes))).collect()
}

/// A log that is open for writing. The caller makes sure that no other one has it open.
pub struct Wal {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    /// The random id of the log.
    wal_id: u64,
    /// Drawn when it was opened.
    opening_id: u64,
    /// The length of every segment, including the one in use.
    segments: BTreeMap<u64, u64>,
    /// The segment in use: its number, its file, its length, and where the next batch goes.
    segment: u64,
    file: Arc<dyn DiskFile>,
    bytes: u64,
    offset: u64,
    /// The number of the last batch, of the last durable one, and the `opening_id` of the last.
    number: u64,
    synced: u64,
    previous_opening: u64,
    /// `None` in a directory of version 1, until the next segment begins.
    manifest: Option<Manifest>,
    spares: SpareSegments,
    buffer: Vec<u8>,
    broken: bool,
}

impl Wal {
    /// Opens the log of a directory and passes every batch at or after `from` to `replay`, in order, with its
    /// position.
    ///
    /// All replayed batches are durable. `from` is the default, for the oldest batch, or an earlier
    /// [`end`](Wal::end) before which everything was synced, and which has not been released. Segments before
    /// it are kept but not read. A directory without a log gets one.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: WalOptions,
        from: Position,
        replay: &mut Replay<'_>,
    ) -> Result<Wal, WalError> {
        let segment_bytes = options.segment_bytes.next_multiple_of(BLOCK as u64).max(2 * BLOCK as u64);
        // Makes the names durable that the previous process may not have synced: they count from here on.
        disk.sync_directory()?;
        let mut manifest = Manifest::open(&*disk)?;
        let files = disk.list()?;
        let mut segments = segments_in(&files);
        let found = recover(&*disk, &segments, manifest.as_ref(), from, replay)?;
        let mut found_spares: Vec<(u64, u64)> =
            files.iter().filter_map(|(name, bytes)| Some((spare_number(name)?, *bytes))).collect();
        found_spares.sort_unstable();
        let mut spares =
            SpareSegments::new(disk.clone(), options.spare_segments, segment_bytes, found_spares)?;

        let found = match found {
            Some(found) => {
                if let Some(torn) = &found.torn_tail {
                    tracing::warn!(
                        file = segment_name(torn.segment),
                        offset = torn.offset,
                        bytes = torn.bytes,
                        "cut off batches that were never finished; they were not acknowledged as synced"
                    );
                }
                // All recovered batches are durable now, so losing one is damage from here on.
                let end = Position { segment: found.segment, offset: found.end };
                manifest.as_mut().map_or(Ok(()), |manifest| manifest.advance(end))?;
                found
            }
            None => {
                let wal_id = manifest.as_ref().map_or_else(random_u64, Manifest::wal_id);
                let spare = spares.take(segment_bytes)?;
                let bytes = Some(spare.bytes);
                let first = Segment {
                    wal_id,
                    number: 1,
                    first_batch: 1,
                    previous_end: 0,
                    previous_opening: 0,
                    bytes,
                };
                begin(&*disk, &mut manifest, &spare, &first)?;
                segments.insert(1, spare.bytes);
                let end = BLOCK as u64;
                RecoveredTail {
                    wal_id,
                    segment: 1,
                    file: spare.file,
                    end,
                    number: 0,
                    previous_opening: 0,
                    torn_tail: None,
                }
            }
        };
        Ok(Wal {
            disk,
            segment_bytes,
            wal_id: found.wal_id,
            opening_id: random_u64(),
            bytes: segments[&found.segment],
            segments,
            segment: found.segment,
            file: found.file,
            offset: found.end,
            number: found.number,
            synced: found.number,
            previous_opening: found.previous_opening,
            manifest,
            spares,
            buffer: Vec::new(),
            broken: false,
        })
    }

    /// Where the next batch will begin, or a position shortly before that if it needs a new segment.
    pub fn end(&self) -> Position {
        Position { segment: self.segment, offset: self.offset }
    }

    /// Makes sure that a batch of this many bytes can be appended without allocating disk space.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), WalError> {
        self.check_usable()?;
        let bytes = padded(bytes) as u64;
        if bytes <= self.space_left() {
            return Ok(());
        }
        let reserved = self.spares.ensure(self.segment_bytes_for(bytes));
        self.break_on_error(reserved.map_err(WalError::from))
    }

    /// Like [`reserve`](Wal::reserve), but leaves spare segments for commands that free space and for a
    /// checkpoint, which call `reserve`.
    ///
    /// While there is one segment its second half will do, so that a store that is opened to put one job need
    /// not write another.
    pub(crate) fn reserve_ordinary(&mut self, bytes: usize) -> Result<(), WalError> {
        self.check_usable()?;
        let bytes = padded(bytes) as u64;
        if self.segments.len() == 1 && bytes + self.bytes / 2 <= self.space_left() {
            return Ok(());
        }
        let reserved = match bytes <= self.space_left() {
            true => self.spares.ensure_held_back(),
            false => self.spares.ensure_besides(self.segment_bytes_for(bytes), self.spares.held_back()),
        };
        self.break_on_error(reserved.map_err(WalError::from))
    }

    /// Bytes of spare segments kept only for reuse, and bytes missing of those that are held back.
    pub(crate) fn surplus_and_missing_bytes(&self) -> (u64, u64) {
        (self.spares.surplus_bytes(), self.spares.missing_bytes())
    }

    /// Removes all spare segments but one, to free space for a checkpoint.
    pub(crate) fn remove_spares(&mut self) -> Result<(), WalError> {
        self.check_usable()?;
        let removed = self.spares.remove_all_but_one();
        self.break_on_error(removed.map_err(WalError::from))
    }

    /// Whether there is no space for this many bytes, but there will be after
    /// [`finish_release`](Wal::finish_release).
    pub(crate) fn is_about_to_have(&self, bytes: usize) -> bool {
        let bytes = padded(bytes) as u64;
        bytes > self.space_left() && self.spares.is_about_to_have(self.segment_bytes_for(bytes))
    }

    /// Appends a batch: one overwrite of allocated blocks. It is durable only after the next `sync`.
    pub fn append(&mut self, body: &[u8]) -> Result<Position, WalError> {
        self.check_usable()?;
        let bytes = padded(body.len()) as u64;
        if bytes > self.space_left() {
            self.next_segment(self.segment_bytes_for(bytes))?;
        }
        let batch = Batch {
            wal_id: self.wal_id,
            segment: self.segment,
            number: self.number + 1,
            synced: self.synced,
            opening_id: self.opening_id,
            previous_opening: self.previous_opening,
        };
        batch.encode(body, &mut self.buffer);
        let position = self.end();
        if let Err(error) = self.file.write_at(&self.buffer, self.offset) {
            return Err(self.undo_append(error));
        }
        // A long batch is rare, and its memory should not be held for the next.
        if self.buffer.capacity() > BUFFER_BYTES_MAX {
            self.buffer = Vec::new();
        }
        self.number = batch.number;
        self.previous_opening = self.opening_id;
        self.offset += bytes;
        // Not at once: a store that is opened to put one job need not write two segments for it.
        if self.offset >= self.bytes / 4 {
            self.spares.top_up();
        }
        Ok(position)
    }

    /// One fdatasync. After a failed one the log returns only [`WalError::Broken`] until it is opened again.
    ///
    /// Does nothing if no batch was appended since the last sync.
    pub fn sync(&mut self) -> Result<(), WalError> {
        self.check_usable()?;
        if self.synced != self.number {
            // A disk that reports full only now may have lost something, like any other failed sync.
            let synced = self.file.sync_data().map_err(WalError::Io);
            self.break_on_error(synced)?;
            self.synced = self.number;
        }
        Ok(())
    }

    /// Syncs, and records in the manifest that nothing is missing before the end: from here on a bad batch is
    /// damage, not a torn tail.
    ///
    /// For a clean shutdown. Appending afterwards still works.
    pub fn close(&mut self) -> Result<(), WalError> {
        self.sync()?;
        let end = self.end();
        let closed = self.manifest.as_mut().map_or(Ok(()), |manifest| manifest.advance(end));
        self.break_on_error(closed)
    }

    /// Recycles segments that lie wholly before a position: renamed to spare and overwritten later.
    pub fn release(&mut self, position: Position) -> Result<(), WalError> {
        self.check_usable()?;
        let released = self.begin_release(position).run(&*self.disk);
        self.finish_release(released)
    }

    /// Chooses the segments that lie wholly before a position, to be released by a background task.
    ///
    /// One release at a time: its result must be passed to [`finish_release`](Wal::finish_release) before the
    /// next.
    pub(crate) fn begin_release(&mut self, position: Position) -> SegmentRelease {
        let end = position.segment.min(self.segment);
        let chosen = self.segments.range(..end);
        let segments = chosen.map(|(&number, &bytes)| (number, self.spares.claim_name(bytes))).collect();
        SegmentRelease { segments }
    }

    /// Takes note of the released segments. From here on they may be overwritten.
    pub(crate) fn finish_release(&mut self, released: ReleasedSegments) -> Result<(), WalError> {
        self.check_usable()?;
        let ReleasedSegments { segments, failure } = released;
        for (number, _) in &segments {
            self.segments.remove(number);
        }
        let failed = self.break_on_error(failure.map_or(Ok(()), Err));
        // If that broke the log, they are not overwritten after all.
        let added = self.spares.add_released(segments.into_iter().filter_map(|(_, spare)| spare));
        failed.and(self.break_on_error(added.map_err(WalError::from)))
    }

    /// Bytes on disk, including spare segments.
    pub fn disk_bytes(&self) -> u64 {
        let manifest = if self.manifest.is_some() { manifest::BYTES } else { 0 };
        self.segments.values().sum::<u64>() + self.spares.disk_bytes() + manifest
    }

    /// Bytes from a position to the end.
    pub fn bytes_since(&self, position: Position) -> u64 {
        let all = self.segments.range(position.segment..).map(|(_, bytes)| bytes).sum::<u64>();
        all.saturating_sub(position.offset + self.space_left())
    }

    /// Bytes from the oldest segment to the end.
    pub fn used_bytes(&self) -> u64 {
        self.segments.values().sum::<u64>() - self.bytes + self.offset
    }

    /// Whether it must be opened again before it does anything else.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Bytes left in the segment in use.
    fn space_left(&self) -> u64 {
        self.bytes - self.offset
    }

    /// Length of a segment for a batch of this many bytes.
    fn segment_bytes_for(&self, bytes: u64) -> u64 {
        self.segment_bytes.max(BLOCK as u64 + bytes)
    }

    /// Continues in a new segment. This one is durable before the new one has its name.
    fn next_segment(&mut self, bytes: u64) -> Result<(), WalError> {
        let ready = self.spares.ensure(bytes);
        self.break_on_error(ready.map_err(WalError::from))?;
        self.sync()?;
        let taken = self.spares.take(bytes);
        let spare = self.break_on_error(taken.map_err(WalError::from))?;
        let header = Segment {
            wal_id: self.wal_id,
            number: self.segment + 1,
            first_batch: self.number + 1,
            previous_end: self.offset,
            previous_opening: self.previous_opening,
            bytes: Some(spare.bytes),
        };
        if let Err(error) = begin(&*self.disk, &mut self.manifest, &spare, &header) {
            self.spares.put_back(spare);
            return self.break_on_error(Err(error));
        }
        self.segment = header.number;
        self.segments.insert(header.number, spare.bytes);
        (self.file, self.bytes, self.offset) = (spare.file, spare.bytes, BLOCK as u64);
        Ok(())
    }

    /// If the disk was full, makes sure that the next opening does not find a batch that was not written
    /// completely.
    ///
    /// An overwrite can find a disk full where the file system copies on write.
    fn undo_append(&mut self, error: io::Error) -> WalError {
        let mut error = WalError::from(error);
        if matches!(error, WalError::Full) {
            let zeroed = self.file.write_at(&[0; BLOCK], self.offset).and_then(|()| self.file.sync_data());
            match zeroed {
                Ok(()) => self.synced = self.number,
                Err(failed) => error = WalError::Io(failed),
            }
        }
        self.broken |= !matches!(error, WalError::Full);
        error
    }

    fn check_usable(&self) -> Result<(), WalError> {
        if self.broken { Err(WalError::Broken) } else { Ok(()) }
    }

    /// A full disk leaves everything unchanged. After any other failure the state is unknown.
    fn break_on_error<T>(&mut self, result: Result<T, WalError>) -> Result<T, WalError> {
        self.broken |= matches!(&result, Err(error) if !matches!(error, WalError::Full));
        result
    }
}

/// Turns a spare into a segment. Its header is written before it is renamed, so a segment without one is
/// damaged. It is in the manifest before it has a batch, so that a missing segment is noticed.
fn begin(
    disk: &dyn Disk,
    manifest: &mut Option<Manifest>,
    spare: &SpareSegment,
    header: &Segment,
) -> Result<(), WalError> {
    let manifest = match manifest {
        Some(manifest) => manifest,
        None => manifest.insert(Manifest::create(disk, header.wal_id)?),
    };
    // The header says how long the file is. A spare that was found may have that length in the page cache
    // only, if the process that made it was killed when a sync had failed. So its last block is written
    // again, and synced with the header.
    spare.file.write_at(&[0; BLOCK], spare.bytes - BLOCK as u64)?;
    spare.file.write_at(&header.encode(), 0)?;
    spare.file.sync_data().map_err(WalError::Io)?;
    disk.rename(&spare.name, &segment_name(header.number))?;
    disk.sync_directory().map_err(WalError::Io)?;
    manifest.advance(Position { segment: header.number, offset: BLOCK as u64 })
}

/// A random number from the standard library's hasher seed.
pub(crate) fn random_u64() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// Whether an error means that the disk is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Reads a little-endian number of eight bytes.
pub(crate) fn read_u64(bytes: &[u8], offset: usize) -> u64 {
    bytes[offset..offset + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl fmt::Debug for Wal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wal { segment, offset, number, synced, broken, .. } = self;
        write!(
            formatter,
            "Wal {{ segment: {segment}, offset: {offset}, number: {number}, synced: {synced}, broken: {broken} }}"
        )
    }
}
