//! Snapshots of the engine on disk, so that opening need not read the whole log.
//!
//! A checkpoint is a file of its own: where in the log it belongs, then the pieces of the snapshot, each with its length and checksum, then an
//! empty piece. It is written under another name, and gets its own when it is whole and synced, so that a file of this name is never half a
//! checkpoint. The newest one counts, and older ones are removed. The bytes are described in `docs/formats/checkpoint.md`.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use crate::log::{Aside, Disk, DiskFile, Position, STRETCH, field, write_synced};

const MAGIC: &[u8; 8] = b"gearckp1";
const HEADER_BYTES: usize = 24;
const UNFINISHED: &str = "checkpoint.new";

/// How much is gathered while what came before it is still being written; then whoever brings more has to wait.
const GATHERED_BYTES_MAX: usize = 8 << 20;

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
        let mut buffer = Vec::with_capacity(2 * STRETCH);
        buffer.extend_from_slice(MAGIC);
        buffer.extend_from_slice(&position.segment.to_le_bytes());
        buffer.extend_from_slice(&position.offset.to_le_bytes());
        Ok(CheckpointWriter { disk: self.disk.clone(), file, position, buffer, offset: 0, writing: None })
    }

    /// Removes what there is of an unfinished checkpoint.
    pub(crate) fn give_up(&self) -> io::Result<()> {
        if self.disk.list()?.iter().any(|(name, _)| name == UNFINISHED) {
            self.disk.remove(UNFINISHED)?;
        }
        Ok(())
    }

    /// Makes a checkpoint count.
    pub(crate) fn finish(&self, mut writer: CheckpointWriter) -> io::Result<()> {
        writer.wait()?;
        writer.gather(&[]);
        write_synced(&*writer.file, writer.offset, writer.buffer.chunks(STRETCH))?;
        let name = name_of(writer.position);
        self.disk.rename(UNFINISHED, &name)?;
        // The old one goes only when nothing can bring it back in the place of the new one. If this fails, nobody knows what has become of names that
        // the log gave meanwhile either, and that the disk is full makes it no better.
        self.disk.sync_directory().map_err(io::Error::other)?;
        for old in self.names()?.into_iter().filter(|(old, _)| *old != name) {
            self.disk.remove(&old.0)?;
        }
        Ok(())
    }

    /// The newest checkpoint, if there is one.
    pub(crate) fn newest(&self) -> io::Result<Option<Checkpoint>> {
        let Some((name, bytes)) = self.names()?.pop() else { return Ok(None) };
        self.open(&name, bytes).map(Some)
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
        let Some(writing) = self.writing.take() else { return Ok(Vec::new()) };
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
