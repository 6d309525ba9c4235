//! The log: batches of bytes in the order in which they were appended, in files that are written before they are needed.
//!
//! ```text
//! log-…17  [header | batch 40 | batch 41 |   batch 42   | …]     the next header says where this one ends
//! log-…18  [header | batch 43 | 44 | what the file held before …]
//! spare-…5 [zeroes, or what a released segment held            ]
//! ```
//!
//! A commit is one overwrite and one fdatasync. It changes neither the length of a file nor the place of its blocks, so the file system
//! has nothing else to write. The log knows nothing of what is in a batch.
//!
//! After a crash a batch is wholly there or it is not there, and neither is any after it. Every batch that was synced is there; if one is
//! not, opening fails and says where. The bytes are described in `docs/formats/log.md`.

mod aside;
mod batch;
mod copy;
mod disk;
mod manifest;
mod reader;
mod recover;
mod release;
mod segment;
mod spares;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

pub(crate) use aside::Aside;
pub(crate) use copy::{BEGINNING, Copied, copy};
pub use disk::{Disk, DiskFile, Join, RealDisk, Work};
pub(crate) use disk::{STRETCH, read_what_can_be_read, write_synced};
pub use reader::LogReader;
pub(crate) use release::{Release, Released};

pub(crate) use batch::padded;
use batch::{BLOCK, Batch};
use manifest::Manifest;
use recover::{Found, recover};
use segment::{Segment, segment_name, segment_number, spare_number};
use spares::{Spare, Spares};

/// How much memory is held between batches to write the next.
const BUFFER_BYTES_MAX: usize = 4 << 20;

/// Where a batch begins. Later batches have larger positions.
///
/// Segments are numbered from 1 on and no number is given twice. The default, segment nought, is before every batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position {
    /// The running number of the segment.
    pub segment: u64,
    /// Bytes from the beginning of its file.
    pub offset: u64,
}

/// How a log uses the disk.
#[derive(Debug, Clone, Copy)]
pub struct LogOptions {
    /// How long a segment is; rounded up to whole blocks. A batch that is longer gets a segment of its own size.
    pub segment_bytes: u64,
    /// How many segments that nobody needs are kept to be used again. Unless that is nought, one is made ahead if there is none.
    pub spare_segments: usize,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        // What is written between two checkpoints of a store that is not large, and one.
        LogOptions { segment_bytes: 8 << 20, spare_segments: 5 }
    }
}

/// What can go wrong with a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// Nothing was changed; the same may succeed when there is room.
    #[error(
        "the disk is full: nothing was changed; jobs can still be popped, completed and cancelled, which makes room"
    )]
    Full,
    /// What the log says was once durable is not there.
    #[error("segment {segment} (file {}) is damaged at byte {offset}: {why}", segment_name(*segment))]
    Damaged {
        /// The running number of the segment.
        segment: u64,
        /// Bytes from the beginning of its file.
        offset: u64,
        /// What is wrong there.
        why: String,
    },
    /// The file that says how far the log reaches is damaged.
    #[error("the manifest of the log (file {}) is damaged at byte 0: {why}", manifest::NAME)]
    Manifest {
        /// What is wrong with it.
        why: String,
    },
    /// A write or a sync has failed before, so nobody knows what is on the disk until the log has been opened again.
    #[error("the log has failed before, and must be opened again")]
    Broken,
    /// The disk refused for another reason.
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for LogError {
    fn from(error: io::Error) -> LogError {
        if is_full(&error) { LogError::Full } else { LogError::Io(error) }
    }
}

impl LogError {
    /// What was read at this place cannot be right.
    pub fn damaged(segment: u64, offset: u64, why: impl Into<String>) -> LogError {
        LogError::Damaged { segment, offset, why: why.into() }
    }

    /// Whether something is not there, or not as it was written.
    pub fn is_damage(&self) -> bool {
        matches!(self, LogError::Damaged { .. } | LogError::Manifest { .. })
    }
}

/// Takes each batch of a log that is being read: where it begins, and its body.
pub type Replay<'a> = dyn FnMut(Position, &[u8]) -> Result<(), LogError> + 'a;

/// How much of the disk a log uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// How many segments there are.
    pub segments: u64,
    /// How long they are together.
    pub bytes: u64,
    /// The position behind the last batch.
    pub end: Position,
    /// What a crash left behind the last batch, if it left anything.
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
    /// The running number of the segment.
    pub segment: u64,
    /// Where the first of them begins in its file.
    pub offset: u64,
    /// How long they are together, as far as that can be known.
    pub bytes: u64,
}

/// Reads the log of a directory like [`Log::open`], and changes nothing there. A directory without a log has nought segments.
pub fn survey(disk: &dyn Disk, from: Position, replay: &mut Replay<'_>) -> Result<Extent, LogError> {
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

/// Whether the first segment of all is still there.
pub(crate) fn has_beginning(disk: &dyn Disk) -> io::Result<bool> {
    Ok(segments_in(&disk.list()?).contains_key(&BEGINNING.segment))
}

/// The segments among some files: their numbers and lengths.
fn segments_in(files: &[(String, u64)]) -> BTreeMap<u64, u64> {
    files.iter().filter_map(|(name, bytes)| Some((segment_number(name)?, *bytes))).collect()
}

/// A log that is open for writing. One at a time: whoever opens it makes sure of that.
pub struct Log {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    /// The log's own number.
    log: u64,
    /// Drawn when it was opened.
    opening: u64,
    /// The length of every segment that is kept, the one in use included.
    segments: BTreeMap<u64, u64>,
    /// The segment in use: its number, its file, its length, and where the next batch goes.
    segment: u64,
    file: Arc<dyn DiskFile>,
    bytes: u64,
    offset: u64,
    /// The number of the last batch, the last one that is durable, and the `opening` of the last.
    number: u64,
    synced: u64,
    before: u64,
    /// None in a directory of version 1, until the next segment begins.
    manifest: Option<Manifest>,
    spares: Spares,
    reader: LogReader,
    buffer: Vec<u8>,
    broken: bool,
}

impl Log {
    /// Opens the log of a directory and hands every batch at or after `from` to `replay`, in order, with its position.
    ///
    /// All that is handed over is durable. `from` is nought, for the oldest there is, or what [`end`](Log::end) said at a time when
    /// everything before was synced, and has not been released. Segments before it are kept and can be read, but are not looked at.
    /// A directory without a log gets one.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: LogOptions,
        from: Position,
        replay: &mut Replay<'_>,
    ) -> Result<Log, LogError> {
        let segment_bytes = options.segment_bytes.next_multiple_of(BLOCK as u64).max(2 * BLOCK as u64);
        // A name that the process before gave, and did not live to make durable, counts from here on.
        disk.sync_directory()?;
        let mut manifest = Manifest::open(&*disk)?;
        let files = disk.list()?;
        let mut segments = segments_in(&files);
        let found = recover(&*disk, &segments, manifest.as_ref(), from, replay)?;
        let mut found_spares: Vec<(u64, u64)> =
            files.iter().filter_map(|(name, bytes)| Some((spare_number(name)?, *bytes))).collect();
        found_spares.sort_unstable();
        let mut spares = Spares::new(disk.clone(), options.spare_segments, segment_bytes, found_spares)?;

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
                // All that was found is durable now, so losing any of it is damage from here on.
                let end = Position { segment: found.segment, offset: found.end };
                manifest.as_mut().map_or(Ok(()), |manifest| manifest.advance(end))?;
                found
            }
            None => {
                let log = manifest.as_ref().map_or_else(chance, Manifest::log);
                let spare = spares.take(segment_bytes)?;
                let bytes = Some(spare.bytes);
                let first = Segment { log, number: 1, first_batch: 1, previous_end: 0, before: 0, bytes };
                begin(&*disk, &mut manifest, &spare, &first)?;
                segments.insert(1, spare.bytes);
                let end = BLOCK as u64;
                Found { log, segment: 1, file: spare.file, end, number: 0, before: 0, torn_tail: None }
            }
        };
        let reader = LogReader::new(disk.clone(), found.log);
        reader.keep(found.segment, found.file.clone());
        Ok(Log {
            disk,
            segment_bytes,
            log: found.log,
            opening: chance(),
            bytes: segments[&found.segment],
            segments,
            segment: found.segment,
            file: found.file,
            offset: found.end,
            number: found.number,
            synced: found.number,
            before: found.before,
            manifest,
            spares,
            reader,
            buffer: Vec::new(),
            broken: false,
        })
    }

    /// Where the next batch will begin, or a place shortly before that if it needs a new segment.
    pub fn end(&self) -> Position {
        Position { segment: self.segment, offset: self.offset }
    }

    /// Makes sure that a batch of so many bytes can be appended without asking the disk for room.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), LogError> {
        self.check()?;
        let bytes = padded(bytes) as u64;
        if bytes <= self.room() {
            return Ok(());
        }
        let reserved = self.spares.ensure(self.segment_for(bytes));
        self.or_break(reserved.map_err(LogError::from))
    }

    /// The same, and leaves spare segments for commands that free room and for a checkpoint. Those call
    /// [`reserve`](Log::reserve), others this.
    ///
    /// While there is one segment the second half of it will do, so that a store that is opened to put one
    /// job need not write another.
    pub(crate) fn reserve_ordinary(&mut self, bytes: usize) -> Result<(), LogError> {
        self.check()?;
        let bytes = padded(bytes) as u64;
        if self.segments.len() == 1 && bytes + self.bytes / 2 <= self.room() {
            return Ok(());
        }
        let reserved = match bytes <= self.room() {
            true => self.spares.ensure_held_back(),
            false => self.spares.ensure_besides(self.segment_for(bytes), self.spares.held_back()),
        };
        self.or_break(reserved.map_err(LogError::from))
    }

    /// How many bytes of spare segments are only kept because they may be used again, and how many are
    /// missing of those that are held back.
    pub(crate) fn surplus_and_missing_bytes(&self) -> (u64, u64) {
        (self.spares.surplus_bytes(), self.spares.missing_bytes())
    }

    /// Removes all spare segments but one, to make room for a checkpoint.
    pub(crate) fn remove_spares(&mut self) -> Result<(), LogError> {
        self.check()?;
        let removed = self.spares.remove_all_but_one();
        self.or_break(removed.map_err(LogError::from))
    }

    /// Whether there is no room for so many bytes, and there will be when what was [chosen](Log::choose) is taken in.
    pub(crate) fn is_about_to_have(&self, bytes: usize) -> bool {
        let bytes = padded(bytes) as u64;
        bytes > self.room() && self.spares.is_about_to_have(self.segment_for(bytes))
    }

    /// Writes a batch: one overwrite of pre-written sectors. It is durable only after the next `sync`.
    pub fn append(&mut self, body: &[u8]) -> Result<Position, LogError> {
        self.check()?;
        let bytes = padded(body.len()) as u64;
        if bytes > self.room() {
            self.next_segment(self.segment_for(bytes))?;
        }
        let batch = Batch {
            log: self.log,
            segment: self.segment,
            number: self.number + 1,
            synced: self.synced,
            opening: self.opening,
            before: self.before,
        };
        batch.encode(body, &mut self.buffer);
        let position = self.end();
        if let Err(error) = self.file.write_at(&self.buffer, self.offset) {
            return Err(self.take_back(error));
        }
        // A long batch is rare, and so much memory should not be held for the next.
        if self.buffer.capacity() > BUFFER_BYTES_MAX {
            self.buffer = Vec::new();
        }
        self.number = batch.number;
        self.before = self.opening;
        self.offset += bytes;
        // Not at once: a store that is opened to put one job need not write two segments for it.
        if self.offset >= self.bytes / 4 {
            self.spares.top_up();
        }
        Ok(position)
    }

    /// One fdatasync. After a failed one the log answers nothing but [`LogError::Broken`] until it is opened again.
    ///
    /// If nothing was appended since the last one there is nothing to do.
    pub fn sync(&mut self) -> Result<(), LogError> {
        self.check()?;
        if self.synced != self.number {
            // A disk that turns out to be full only now has lost something, like any other that fails here.
            let synced = self.file.sync_data().map_err(LogError::Io);
            self.or_break(synced)?;
            self.synced = self.number;
        }
        Ok(())
    }

    /// Syncs, and records in the manifest that nothing is missing before the end: from here on a bad batch is
    /// damage, not a torn tail.
    ///
    /// For a clean shutdown. The log goes on as before if something is appended after all.
    pub fn close(&mut self) -> Result<(), LogError> {
        self.sync()?;
        let end = self.end();
        let closed = self.manifest.as_mut().map_or(Ok(()), |manifest| manifest.advance(end));
        self.or_break(closed)
    }

    /// Recycles segments that lie wholly before a position: renamed to spare and overwritten later.
    pub fn release(&mut self, before: Position) -> Result<(), LogError> {
        self.check()?;
        let released = self.choose(before).carry_out(&*self.disk);
        self.take_in(released)
    }

    /// Chooses the segments that lie wholly before a position, to be released beside everything else.
    ///
    /// One such choice at a time: whatever becomes of it must be [taken in](Log::take_in) before the next.
    pub(crate) fn choose(&mut self, before: Position) -> Release {
        let end = before.segment.min(self.segment);
        let chosen = self.segments.range(..end);
        let segments = chosen.map(|(&number, &bytes)| (number, self.spares.name_for(bytes))).collect();
        Release { segments }
    }

    /// Takes in what has become of the segments that were chosen. From here on they may be overwritten.
    pub(crate) fn take_in(&mut self, released: Released) -> Result<(), LogError> {
        self.check()?;
        let Released { segments, failure } = released;
        for (number, _) in &segments {
            self.segments.remove(number);
            self.reader.let_go(*number);
        }
        let failed = self.or_break(failure.map_or(Ok(()), Err));
        // If that broke it, they are not overwritten after all.
        let kept = self.spares.keep(segments.into_iter().filter_map(|(_, spare)| spare));
        failed.and(self.or_break(kept.map_err(LogError::from)))
    }

    /// Reads bytes of a batch's body again, by the batch's position, an offset inside its body and a length.
    pub fn read(&self, batch: Position, offset: usize, bytes: usize) -> Result<Vec<u8>, LogError> {
        self.check()?;
        self.reader.read(batch, offset, bytes)
    }

    /// Reads like [`read`](Log::read), from other threads.
    pub fn reader(&self) -> LogReader {
        self.reader.clone()
    }

    /// Bytes on disk, spare segments included.
    pub fn disk_bytes(&self) -> u64 {
        let manifest = if self.manifest.is_some() { manifest::BYTES } else { 0 };
        self.segments.values().sum::<u64>() + self.spares.disk_bytes() + manifest
    }

    /// Bytes from a position to the end.
    pub fn bytes_since(&self, position: Position) -> u64 {
        let all = self.segments.range(position.segment..).map(|(_, bytes)| bytes).sum::<u64>();
        all.saturating_sub(position.offset + self.room())
    }

    /// Bytes from the oldest kept segment to the end.
    pub fn used_bytes(&self) -> u64 {
        self.segments.values().sum::<u64>() - self.bytes + self.offset
    }

    /// Whether it must be opened again before it does anything else.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Bytes left in the segment in use.
    fn room(&self) -> u64 {
        self.bytes - self.offset
    }

    /// How long a segment must be for a batch that takes so many bytes.
    fn segment_for(&self, bytes: u64) -> u64 {
        self.segment_bytes.max(BLOCK as u64 + bytes)
    }

    /// Goes on in a new segment. What is in this one is durable before the new one has its name.
    fn next_segment(&mut self, bytes: u64) -> Result<(), LogError> {
        let ready = self.spares.ensure(bytes);
        self.or_break(ready.map_err(LogError::from))?;
        self.sync()?;
        let taken = self.spares.take(bytes);
        let spare = self.or_break(taken.map_err(LogError::from))?;
        let header = Segment {
            log: self.log,
            number: self.segment + 1,
            first_batch: self.number + 1,
            previous_end: self.offset,
            before: self.before,
            bytes: Some(spare.bytes),
        };
        if let Err(error) = begin(&*self.disk, &mut self.manifest, &spare, &header) {
            self.spares.put_back(spare);
            return self.or_break(Err(error));
        }
        self.segment = header.number;
        self.segments.insert(header.number, spare.bytes);
        self.reader.keep(header.number, spare.file.clone());
        (self.file, self.bytes, self.offset) = (spare.file, spare.bytes, BLOCK as u64);
        Ok(())
    }

    /// Sees to it that a batch which could not be written is not found by the next who opens the log, if the disk was full.
    ///
    /// That a disk is full for an overwrite happens where it copies on write.
    fn take_back(&mut self, error: io::Error) -> LogError {
        let mut error = LogError::from(error);
        if matches!(error, LogError::Full) {
            let zeroed = self.file.write_at(&[0; BLOCK], self.offset).and_then(|()| self.file.sync_data());
            match zeroed {
                Ok(()) => self.synced = self.number,
                Err(failed) => error = LogError::Io(failed),
            }
        }
        self.broken |= !matches!(error, LogError::Full);
        error
    }

    fn check(&self) -> Result<(), LogError> {
        if self.broken { Err(LogError::Broken) } else { Ok(()) }
    }

    /// A full disk leaves everything as it was. After any other failure nobody knows.
    fn or_break<T>(&mut self, result: Result<T, LogError>) -> Result<T, LogError> {
        self.broken |= matches!(&result, Err(error) if !matches!(error, LogError::Full));
        result
    }
}

/// Makes a segment of a spare. It has its header before it has its name, so a segment without one is damaged.
/// It is in the manifest before it has a batch, so that one which goes missing is missed.
fn begin(
    disk: &dyn Disk,
    manifest: &mut Option<Manifest>,
    spare: &Spare,
    header: &Segment,
) -> Result<(), LogError> {
    let manifest = match manifest {
        Some(manifest) => manifest,
        None => manifest.insert(Manifest::create(disk, header.log)?),
    };
    // The header says how long the file is. A spare that was found may be as long in the page cache only, if
    // the process that made it was killed when a sync had failed. So its last block is written again, and
    // synced with the header.
    spare.file.write_at(&[0; BLOCK], spare.bytes - BLOCK as u64)?;
    spare.file.write_at(&header.encode(), 0)?;
    spare.file.sync_data().map_err(LogError::Io)?;
    disk.rename(&spare.name, &segment_name(header.number))?;
    disk.sync_directory().map_err(LogError::Io)?;
    manifest.advance(Position { segment: header.number, offset: BLOCK as u64 })
}

/// A number that nobody can guess, from the standard library's own source of them.
pub(crate) fn chance() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// Whether there was no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A number of eight bytes, the lowest first, out of a header.
pub(crate) fn field(bytes: &[u8], offset: usize) -> u64 {
    bytes[offset..offset + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl fmt::Debug for Log {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Log { segment, offset, number, synced, broken, .. } = self;
        write!(
            formatter,
            "Log {{ segment: {segment}, offset: {offset}, number: {number}, synced: {synced}, broken: {broken} }}"
        )
    }
}
