//! Checkpoints and checkpoint install: snapshots of the engine on disk, so that recovery replays only the log
//! behind the newest.
//!
//! A checkpoint is a file of its own: its position in the log, then the parts of the snapshot, each with its
//! length and checksum, then an empty part, and the first part once more. It is written under a temporary
//! name, and renamed when it is complete and synced, so that a file with the final name is never half a
//! checkpoint. Recovery loads the newest one. The one before it stays, with the log from its position on, so
//! that recovery can fall back to it if the newest is damaged. The bytes are described in
//! `docs/formats/checkpoint.md`.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::backup::BackupGate;
use crate::wal::{
    BackgroundTask, Disk, DiskFile, Position, SYNC_CHUNK_BYTES, read_or_zero, read_u64, write_synced,
};

const MAGIC: &[u8; 8] = b"gearckp1";
const HEADER_BYTES: usize = 24;
const UNFINISHED: &str = "checkpoint.new";

/// Bytes buffered while the previous buffer is being written, at most; then the writer waits.
const BUFFERED_BYTES_MAX: usize = 8 << 20;
/// Capacity of each of the two buffers: a full one and a large piece. Memory that is never written is not
/// resident, whereas a buffer that grows by doubling leaves up to 15 MB of old buffers to the allocator.
const BUFFER_BYTES: usize = BUFFERED_BYTES_MAX + (4 << 20);

/// The checkpoints of a directory.
#[derive(Clone)]
pub(crate) struct Checkpoints {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) backup_gate: Arc<BackupGate>,
}

/// A checkpoint that is being written.
pub(crate) struct CheckpointWriter {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    /// The checkpoint stands for all of the log before this position.
    pub(crate) position: Position,
    /// The first part, which is written once more at the end: without it no other part can be decoded.
    head: Vec<u8>,
    buffer: Vec<u8>,
    /// Where in the file the buffer goes.
    offset: u64,
    /// Writes the previous buffer, and hands it back to be filled again.
    writing: Option<BackgroundTask<io::Result<Vec<u8>>>>,
}

/// A checkpoint that is being read.
pub(crate) struct Checkpoint {
    pub(crate) name: String,
    pub(crate) position: Position,
    pub(crate) bytes: u64,
    file: Arc<dyn DiskFile>,
    /// Where the next part begins.
    offset: u64,
}

fn name_of(position: Position) -> String {
    format!("checkpoint-{:016x}-{:016x}", position.segment, position.offset)
}

/// The position in the name of a checkpoint's file.
pub(crate) fn position_in(name: &str) -> Option<Position> {
    let (segment, offset) = name.strip_prefix("checkpoint-")?.split_once('-')?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    Some(Position { segment: number(segment)?, offset: number(offset)? })
}

impl Checkpoints {
    pub(crate) fn new(disk: Arc<dyn Disk>, backup_gate: Arc<BackupGate>) -> Checkpoints {
        Checkpoints { disk, backup_gate }
    }

    /// Begins a checkpoint that stands for all of the log before a position.
    pub(crate) fn begin(&self, position: Position) -> io::Result<CheckpointWriter> {
        self.remove_unfinished()?;
        let file = self.disk.create(UNFINISHED)?;
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        buffer.extend_from_slice(MAGIC);
        buffer.extend_from_slice(&position.segment.to_le_bytes());
        buffer.extend_from_slice(&position.offset.to_le_bytes());
        let (disk, head) = (self.disk.clone(), Vec::new());
        Ok(CheckpointWriter { disk, file, position, head, buffer, offset: 0, writing: None })
    }

    /// Removes an unfinished checkpoint.
    pub(crate) fn remove_unfinished(&self) -> io::Result<()> {
        if self.disk.list()?.iter().any(|(name, _)| name == UNFINISHED) {
            self.disk.remove(UNFINISHED)?;
        }
        Ok(())
    }

    /// Checkpoint install: syncs and renames a complete checkpoint. The one installed so far, at position
    /// `previous`, stays to fall back to; older ones are removed.
    pub(crate) fn install(&self, mut writer: CheckpointWriter, previous: Position) -> io::Result<()> {
        writer.wait()?;
        let head = std::mem::take(&mut writer.head);
        writer.append_part(&[]);
        writer.append_part(&head);
        write_synced(&*writer.file, writer.offset, writer.buffer.chunks(SYNC_CHUNK_BYTES))?;
        let name = name_of(writer.position);
        self.disk.rename(UNFINISHED, &name)?;
        // The old one is removed only when a crash cannot bring it back in the place of the new one. If this
        // sync fails, it is unknown what has become of other names in the directory either, and a full disk
        // is no better than another error.
        self.disk.sync_directory().map_err(io::Error::other)?;
        self.remove_all_but(&[writer.position, previous])
    }

    /// Removes the installed checkpoints, except for those at some positions.
    pub(crate) fn remove_all_but(&self, positions: &[Position]) -> io::Result<()> {
        for (name, _) in self.names()? {
            if !positions.iter().any(|position| name_of(*position) == name) {
                self.disk.remove(&name)?;
            }
        }
        Ok(())
    }

    pub(crate) fn open(&self, name: &str, bytes: u64) -> io::Result<Checkpoint> {
        let file = self.disk.open(name)?;
        let mut header = [0; HEADER_BYTES];
        if bytes >= HEADER_BYTES as u64 {
            file.read_at(&mut header, 0)?;
        }
        let position = Position { segment: read_u64(&header, 8), offset: read_u64(&header, 16) };
        let mut checkpoint = Checkpoint { name: name.to_owned(), position, bytes, file, offset: 0 };
        if !header.starts_with(MAGIC) {
            return Err(checkpoint.damaged());
        }
        // The position has no checksum, but it is in the name as well.
        checkpoint.offset = MAGIC.len() as u64;
        if name_of(position) != name {
            return Err(checkpoint.damaged());
        }
        checkpoint.offset = HEADER_BYTES as u64;
        Ok(checkpoint)
    }

    /// Reads every part whose checksum is right, whatever is between them.
    pub(crate) fn read_good_parts(&self, name: &str, bytes: u64) -> io::Result<GoodParts> {
        let mut image = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        read_or_zero(&*self.disk.open(name)?, 0, &mut image);
        let (mut good, mut lost, mut after_end) = (Vec::new(), Vec::new(), None);
        let mut offset = HEADER_BYTES;
        while offset < image.len() {
            match good_part(&image, offset) {
                Some(part) if part.is_empty() => {
                    after_end = good_part(&image, part.end).filter(|head| !head.is_empty());
                    break;
                }
                Some(part) => {
                    offset = part.end;
                    good.push(part);
                }
                None => {
                    // The length of a damaged part says where the next one begins, unless the length is what
                    // is damaged.
                    let is_good = |next: &usize| good_part(&image, *next).is_some();
                    let is_full =
                        |next: &usize| good_part(&image, *next).is_some_and(|part| !part.is_empty());
                    let named = end_named_at(&image, offset).filter(is_good);
                    let next = named.or_else(|| (offset + 1..image.len()).find(is_full));
                    let next = next.unwrap_or(image.len());
                    lost.push(offset..next);
                    offset = next;
                }
            }
        }
        let has_head = good.first().is_some_and(|first| first.start == HEADER_BYTES + PART_HEADER_BYTES);
        let head = if has_head { Some(good.remove(0)) } else { after_end };
        // If the end part is lost, the copy of the head is among the other parts.
        if let Some(head) = &head {
            good.retain(|part| image[part.clone()] != image[head.clone()]);
        }
        Ok(GoodParts { image, head, jobs: good, lost })
    }

    /// The installed checkpoints with their lengths, the newest last.
    pub(crate) fn names(&self) -> io::Result<Vec<(String, u64)>> {
        let mut names = self.disk.list()?;
        names.retain(|(name, _)| name.starts_with("checkpoint-"));
        names.sort();
        Ok(names)
    }
}

impl CheckpointWriter {
    /// Adds a part.
    pub(crate) fn write(&mut self, part: &[u8]) -> io::Result<()> {
        // An empty part would end the checkpoint.
        if part.is_empty() {
            return Ok(());
        }
        if self.head.is_empty() {
            self.head = part.to_vec();
        }
        self.append_part(part);
        let is_free = self.writing.as_ref().is_none_or(BackgroundTask::is_done);
        let enough = if is_free { SYNC_CHUNK_BYTES } else { BUFFERED_BYTES_MAX };
        if self.buffer.len() >= enough { self.flush() } else { Ok(()) }
    }

    fn append_part(&mut self, part: &[u8]) {
        self.buffer.extend_from_slice(&(part.len() as u64).to_le_bytes());
        self.buffer.extend_from_slice(&crc32c::crc32c(part).to_le_bytes());
        self.buffer.extend_from_slice(part);
    }

    /// Writes and syncs the buffer by a background task, once the previous buffer is written.
    fn flush(&mut self) -> io::Result<()> {
        let empty = self.wait()?;
        let full = std::mem::replace(&mut self.buffer, empty);
        let (file, offset) = (self.file.clone(), self.offset);
        self.offset += full.len() as u64;
        self.writing = Some(BackgroundTask::new(&*self.disk, move || {
            write_synced(&*file, offset, full.chunks(SYNC_CHUNK_BYTES))?;
            Ok(full)
        }));
        Ok(())
    }

    /// Waits for the buffer that is being written, and returns it empty.
    fn wait(&mut self) -> io::Result<Vec<u8>> {
        let Some(writing) = self.writing.take() else { return Ok(Vec::with_capacity(BUFFER_BYTES)) };
        let mut buffer = writing.join().unwrap_or_else(|| Err(writer_panicked()))?;
        buffer.clear();
        Ok(buffer)
    }
}

/// The error of a background task that panicked.
pub(crate) fn writer_panicked() -> io::Error {
    io::Error::other("a part of a checkpoint is missing: the thread that wrote it panicked and printed why")
}

/// A part's header: its length and its checksum.
const PART_HEADER_BYTES: usize = 12;

impl Checkpoint {
    /// Reads the next part; the first one is the head. Returns whether there was one.
    pub(crate) fn read_part(&mut self, part: &mut Vec<u8>) -> io::Result<bool> {
        let mut header = [0; PART_HEADER_BYTES];
        let left = self.bytes - self.offset;
        if left < header.len() as u64 {
            return Err(self.damaged());
        }
        self.file.read_at(&mut header, self.offset)?;
        let (length, checksum) = (read_u64(&header, 0), &header[8..]);
        if length > left - header.len() as u64 {
            return Err(self.damaged());
        }
        part.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
        self.file.read_at(part, self.offset + header.len() as u64)?;
        if crc32c::crc32c(part).to_le_bytes() != *checksum {
            return Err(self.damaged());
        }
        self.offset += header.len() as u64 + length;
        Ok(!part.is_empty())
    }

    /// Reads all parts to verify their checksums.
    pub(crate) fn verify(mut self) -> io::Result<()> {
        let mut part = Vec::new();
        while self.read_part(&mut part)? {}
        Ok(())
    }

    fn damaged(&self) -> io::Error {
        let why = format!("the checkpoint (file {}) is damaged at byte {}", self.name, self.offset);
        io::Error::new(io::ErrorKind::InvalidData, why)
    }
}

/// The readable parts of a damaged checkpoint.
pub(crate) struct GoodParts {
    pub(crate) image: Vec<u8>,
    /// Where in the image the head is, if it is readable.
    pub(crate) head: Option<Range<usize>>,
    /// The parts that hold jobs.
    pub(crate) jobs: Vec<Range<usize>>,
    /// The damaged ranges.
    pub(crate) lost: Vec<Range<usize>>,
}

impl GoodParts {
    /// Bytes that are lost. A damaged head is not, if its copy is readable.
    pub(crate) fn lost_bytes(&self) -> u64 {
        let is_head = |lost: &&Range<usize>| lost.start == HEADER_BYTES && self.head.is_some();
        let lost = self.lost.iter().skip_while(is_head);
        lost.map(|lost| lost.len() as u64).sum()
    }
}

/// Where the part that begins at an offset ends, by its own header.
fn end_named_at(image: &[u8], offset: usize) -> Option<usize> {
    let header = image.get(offset..)?.first_chunk::<PART_HEADER_BYTES>()?;
    (offset + PART_HEADER_BYTES).checked_add(usize::try_from(read_u64(header, 0)).ok()?)
}

/// The contents of the part that begins at an offset, if its checksum is right.
fn good_part(image: &[u8], offset: usize) -> Option<Range<usize>> {
    let part = offset + PART_HEADER_BYTES..end_named_at(image, offset)?;
    let checksum = crc32c::crc32c(image.get(part.clone())?).to_le_bytes();
    (image[offset + 8..part.start] == checksum).then_some(part)
}
