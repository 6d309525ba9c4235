//! Snapshots of the engine on disk, so that opening need not read the whole log.
//!
//! A checkpoint is a file of its own: where in the log it belongs, then the pieces of the snapshot, each with its length and checksum, then an
//! empty piece, and the first piece once more. It is written under another name, and gets its own when it is
//! whole and synced, so that a file of this name is never half a checkpoint. The newest one counts. The one
//! before it stays, with the log from its position on, so that opening can fall back to it if the newest is
//! damaged. The bytes are described in `docs/formats/checkpoint.md`.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use crate::log::{Aside, Disk, DiskFile, Position, STRETCH, field, read_what_can_be_read, write_synced};

const MAGIC: &[u8; 8] = b"gearckp1";
const HEADER_BYTES: usize = 24;
const UNFINISHED: &str = "checkpoint.new";

/// How much is gathered while what came before it is still being written; then whoever brings more has to wait.
const GATHERED_BYTES_MAX: usize = 8 << 20;
/// Capacity of each of the two buffers of a checkpoint: a full one and a large piece. Memory that is never written is not
/// resident, whereas a buffer that grows by doubling leaves up to 15 MB of old buffers to the allocator.
const BUFFER_BYTES: usize = GATHERED_BYTES_MAX + (4 << 20);

/// The checkpoints of a directory.
#[derive(Clone)]
pub(crate) struct Checkpoints {
    pub(crate) disk: Arc<dyn Disk>,
    gate: Gate,
}

/// Whoever copies a directory holds it, and meanwhile no file goes away.
pub(crate) type Gate = Arc<Mutex<()>>;

/// A checkpoint that is being written.
pub(crate) struct CheckpointWriter {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    /// All of the log before it is what the checkpoint stands for.
    pub(crate) position: Position,
    /// The first piece, which is written once more at the end: without it no other piece can be interpreted.
    head: Vec<u8>,
    buffer: Vec<u8>,
    /// Where in the file that goes.
    offset: u64,
    /// What is being written, and comes back to be filled again.
    writing: Option<Aside<io::Result<Vec<u8>>>>,
}

/// A checkpoint that is being read.
pub(crate) struct Checkpoint {
    pub(crate) name: String,
    pub(crate) position: Position,
    pub(crate) bytes: u64,
    file: Arc<dyn DiskFile>,
    /// Where the next piece begins.
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
    pub(crate) fn new(disk: Arc<dyn Disk>, gate: Gate) -> Checkpoints {
        Checkpoints { disk, gate }
    }

    /// Keeps the gate from whoever wants to copy, unless somebody does so already.
    pub(crate) fn nobody_copies(&self) -> Option<MutexGuard<'_, ()>> {
        match self.gate.try_lock() {
            Ok(nobody) => Some(nobody),
            Err(TryLockError::Poisoned(nobody)) => Some(nobody.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Begins a checkpoint that stands for all of the log before a position.
    pub(crate) fn begin(&self, position: Position) -> io::Result<CheckpointWriter> {
        self.give_up()?;
        let file = self.disk.create(UNFINISHED)?;
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        buffer.extend_from_slice(MAGIC);
        buffer.extend_from_slice(&position.segment.to_le_bytes());
        buffer.extend_from_slice(&position.offset.to_le_bytes());
        let (disk, head) = (self.disk.clone(), Vec::new());
        Ok(CheckpointWriter { disk, file, position, head, buffer, offset: 0, writing: None })
    }

    /// Removes what there is of an unfinished checkpoint.
    pub(crate) fn give_up(&self) -> io::Result<()> {
        if self.disk.list()?.iter().any(|(name, _)| name == UNFINISHED) {
            self.disk.remove(UNFINISHED)?;
        }
        Ok(())
    }

    /// Makes a checkpoint count. The one that counted so far, at position `previous`, stays to fall back to;
    /// older ones are removed.
    pub(crate) fn finish(&self, mut writer: CheckpointWriter, previous: Position) -> io::Result<()> {
        writer.wait()?;
        let head = std::mem::take(&mut writer.head);
        writer.gather(&[]);
        writer.gather(&head);
        write_synced(&*writer.file, writer.offset, writer.buffer.chunks(STRETCH))?;
        let name = name_of(writer.position);
        self.disk.rename(UNFINISHED, &name)?;
        // The old one goes only when nothing can bring it back in the place of the new one. If this fails, nobody knows what has become of names that
        // the log gave meanwhile either, and that the disk is full makes it no better.
        self.disk.sync_directory().map_err(io::Error::other)?;
        self.remove_all_but(&[writer.position, previous])
    }

    /// Removes the finished checkpoints, except for those at some positions.
    pub(crate) fn remove_all_but(&self, positions: &[Position]) -> io::Result<()> {
        for (name, _) in self.names()? {
            if !positions.iter().any(|position| name_of(*position) == name) {
                self.disk.remove(&name)?;
            }
        }
        Ok(())
    }

    /// The checkpoint of a name and length.
    pub(crate) fn open(&self, name: &str, bytes: u64) -> io::Result<Checkpoint> {
        let file = self.disk.open(name)?;
        let mut header = [0; HEADER_BYTES];
        if bytes >= HEADER_BYTES as u64 {
            file.read_at(&mut header, 0)?;
        }
        let position = Position { segment: field(&header, 8), offset: field(&header, 16) };
        let mut checkpoint = Checkpoint { name: name.to_owned(), position, bytes, file, offset: 0 };
        if !header.starts_with(MAGIC) {
            return Err(checkpoint.damaged());
        }
        // The place in the log has no checksum, but it stands in the name as well.
        checkpoint.offset = MAGIC.len() as u64;
        if name_of(position) != name {
            return Err(checkpoint.damaged());
        }
        checkpoint.offset = HEADER_BYTES as u64;
        Ok(checkpoint)
    }

    /// Reads every piece whose checksum is right, whatever is between them.
    pub(crate) fn read_good_pieces(&self, name: &str, bytes: u64) -> io::Result<GoodPieces> {
        let mut image = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        read_what_can_be_read(&*self.disk.open(name)?, 0, &mut image);
        let (mut good, mut lost, mut after_end) = (Vec::new(), Vec::new(), None);
        let mut offset = HEADER_BYTES;
        while offset < image.len() {
            match good_piece(&image, offset) {
                Some(piece) if piece.is_empty() => {
                    after_end = good_piece(&image, piece.end).filter(|head| !head.is_empty());
                    break;
                }
                Some(piece) => {
                    offset = piece.end;
                    good.push(piece);
                }
                None => {
                    // Where the next one begins its length says, unless that is what is damaged.
                    let is_good = |next: &usize| good_piece(&image, *next).is_some();
                    let is_full =
                        |next: &usize| good_piece(&image, *next).is_some_and(|piece| !piece.is_empty());
                    let named = end_named_at(&image, offset).filter(is_good);
                    let next = named.or_else(|| (offset + 1..image.len()).find(is_full));
                    let next = next.unwrap_or(image.len());
                    lost.push(offset..next);
                    offset = next;
                }
            }
        }
        let has_head = good.first().is_some_and(|first| first.start == HEADER_BYTES + PIECE_HEADER_BYTES);
        let head = if has_head { Some(good.remove(0)) } else { after_end };
        // Without the end piece the copy of the head is among the others.
        if let Some(head) = &head {
            good.retain(|piece| image[piece.clone()] != image[head.clone()]);
        }
        Ok(GoodPieces { image, head, jobs: good, lost })
    }

    /// The finished ones with their lengths, the newest last.
    pub(crate) fn names(&self) -> io::Result<Vec<(String, u64)>> {
        let mut names = self.disk.list()?;
        names.retain(|(name, _)| name.starts_with("checkpoint-"));
        names.sort();
        Ok(names)
    }
}

impl CheckpointWriter {
    /// Adds a piece.
    pub(crate) fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        // An empty one would end it.
        if piece.is_empty() {
            return Ok(());
        }
        if self.head.is_empty() {
            self.head = piece.to_vec();
        }
        self.gather(piece);
        let is_free = self.writing.as_ref().is_none_or(Aside::is_done);
        let enough = if is_free { STRETCH } else { GATHERED_BYTES_MAX };
        if self.buffer.len() >= enough { self.flush() } else { Ok(()) }
    }

    fn gather(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(&(piece.len() as u64).to_le_bytes());
        self.buffer.extend_from_slice(&crc32c::crc32c(piece).to_le_bytes());
        self.buffer.extend_from_slice(piece);
    }

    /// Has what was gathered written and synced aside, once what came before it is.
    fn flush(&mut self) -> io::Result<()> {
        let empty = self.wait()?;
        let full = std::mem::replace(&mut self.buffer, empty);
        let (file, offset) = (self.file.clone(), self.offset);
        self.offset += full.len() as u64;
        self.writing = Some(Aside::new(&*self.disk, move || {
            write_synced(&*file, offset, full.chunks(STRETCH))?;
            Ok(full)
        }));
        Ok(())
    }

    /// Waits for what is being written, and hands back an empty buffer.
    fn wait(&mut self) -> io::Result<Vec<u8>> {
        let Some(writing) = self.writing.take() else { return Ok(Vec::with_capacity(BUFFER_BYTES)) };
        let mut buffer = writing.join().unwrap_or_else(|| Err(panicked()))?;
        buffer.clear();
        Ok(buffer)
    }
}

/// What was put aside came to nothing.
pub(crate) fn panicked() -> io::Error {
    io::Error::other("a part of a checkpoint is missing: the thread that wrote it panicked and said why")
}

/// What stands before a piece: its length and its checksum.
const PIECE_HEADER_BYTES: usize = 12;

impl Checkpoint {
    /// Reads the next piece, of which the head is the first. Says whether there was one.
    pub(crate) fn read_piece(&mut self, piece: &mut Vec<u8>) -> io::Result<bool> {
        let mut header = [0; PIECE_HEADER_BYTES];
        let left = self.bytes - self.offset;
        if left < header.len() as u64 {
            return Err(self.damaged());
        }
        self.file.read_at(&mut header, self.offset)?;
        let (length, checksum) = (field(&header, 0), &header[8..]);
        if length > left - header.len() as u64 {
            return Err(self.damaged());
        }
        piece.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
        self.file.read_at(piece, self.offset + header.len() as u64)?;
        if crc32c::crc32c(piece).to_le_bytes() != *checksum {
            return Err(self.damaged());
        }
        self.offset += header.len() as u64 + length;
        Ok(!piece.is_empty())
    }

    /// Reads all pieces, to see whether they are whole.
    pub(crate) fn verify(mut self) -> io::Result<()> {
        let mut piece = Vec::new();
        while self.read_piece(&mut piece)? {}
        Ok(())
    }

    fn damaged(&self) -> io::Error {
        let why = format!("the checkpoint (file {}) is damaged at byte {}", self.name, self.offset);
        io::Error::new(io::ErrorKind::InvalidData, why)
    }
}

/// What can be read of a damaged checkpoint.
pub(crate) struct GoodPieces {
    pub(crate) image: Vec<u8>,
    /// Where in the image the head is, if there is one.
    pub(crate) head: Option<Range<usize>>,
    /// The pieces that hold jobs.
    pub(crate) jobs: Vec<Range<usize>>,
    /// What is damaged.
    pub(crate) lost: Vec<Range<usize>>,
}

impl GoodPieces {
    /// How many bytes are lost. A damaged head is not, if there is the other one.
    pub(crate) fn lost_bytes(&self) -> u64 {
        let is_head = |lost: &&Range<usize>| lost.start == HEADER_BYTES && self.head.is_some();
        let lost = self.lost.iter().skip_while(is_head);
        lost.map(|lost| lost.len() as u64).sum()
    }
}

/// Where the piece that begins at an offset ends, as it says itself.
fn end_named_at(image: &[u8], offset: usize) -> Option<usize> {
    let header = image.get(offset..)?.first_chunk::<PIECE_HEADER_BYTES>()?;
    (offset + PIECE_HEADER_BYTES).checked_add(usize::try_from(field(header, 0)).ok()?)
}

/// Where the bytes are of the piece that begins at an offset, if its checksum is right.
fn good_piece(image: &[u8], offset: usize) -> Option<Range<usize>> {
    let piece = offset + PIECE_HEADER_BYTES..end_named_at(image, offset)?;
    let checksum = crc32c::crc32c(image.get(piece.clone())?).to_le_bytes();
    (image[offset + 8..piece.start] == checksum).then_some(piece)
}
