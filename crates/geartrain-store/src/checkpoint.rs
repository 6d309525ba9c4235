//! Snapshots of the engine on disk, so that opening need not read the whole log.
//!
//! A checkpoint is a file of its own: where in the log it belongs, then the pieces of the snapshot, each with its length and checksum, then an
//! empty piece. It is written under another name, and gets its own when it is whole and synced, so that a file of this name is never half a
//! checkpoint. The newest one counts, and older ones are removed. The bytes are described in `docs/formats/checkpoint.md`.

use std::io;
use std::sync::{Arc, Mutex};

use crate::log::{Disk, DiskFile, Position};

const MAGIC: &[u8; 8] = b"gearckp1";
const HEADER_BYTES: usize = 24;
const UNFINISHED: &str = "checkpoint.new";

/// How much is gathered before it is written.
const WRITE_BYTES: usize = 256 << 10;
/// How much is written before it is synced, so that the last sync has little left to do.
const SYNC_BYTES: u64 = 4 << 20;

/// The checkpoints of a directory.
pub(crate) struct Checkpoints {
    disk: Arc<dyn Disk>,
    gate: Gate,
}

/// Whoever copies a directory holds it, and meanwhile no file goes away.
pub(crate) type Gate = Arc<Mutex<()>>;

/// A checkpoint that is being written.
pub(crate) struct CheckpointWriter {
    file: Arc<dyn DiskFile>,
    position: Position,
    buffer: Vec<u8>,
    written: u64,
    synced: u64,
}

/// A checkpoint that was read.
pub(crate) struct Checkpoint {
    pub(crate) position: Position,
    pub(crate) head: Vec<u8>,
    pub(crate) jobs: Vec<Vec<u8>>,
    pub(crate) bytes: u64,
}

fn name_of(position: Position) -> String {
    format!("checkpoint-{:016x}-{:016x}", position.segment, position.offset)
}

impl Checkpoints {
    pub(crate) fn new(disk: Arc<dyn Disk>, gate: Gate) -> Checkpoints {
        Checkpoints { disk, gate }
    }

    /// What keeps files from going away.
    pub(crate) fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Begins a checkpoint that stands for all of the log before a position.
    pub(crate) fn begin(&self, position: Position) -> io::Result<CheckpointWriter> {
        self.give_up()?;
        let file = self.disk.create(UNFINISHED)?;
        let mut buffer = Vec::with_capacity(2 * WRITE_BYTES);
        buffer.extend_from_slice(MAGIC);
        buffer.extend_from_slice(&position.segment.to_le_bytes());
        buffer.extend_from_slice(&position.offset.to_le_bytes());
        Ok(CheckpointWriter { file, position, buffer, written: 0, synced: 0 })
    }

    /// Removes what there is of an unfinished checkpoint.
    pub(crate) fn give_up(&self) -> io::Result<()> {
        if self.disk.list()?.iter().any(|(name, _)| name == UNFINISHED) {
            self.disk.remove(UNFINISHED)?;
        }
        Ok(())
    }

    /// Makes a checkpoint count, and says where in the log it belongs.
    pub(crate) fn finish(&self, mut writer: CheckpointWriter) -> io::Result<Position> {
        writer.gather(&[]);
        writer.flush()?;
        writer.file.sync_data()?;
        let name = name_of(writer.position);
        self.disk.rename(UNFINISHED, &name)?;
        // The old one goes only when nothing can bring it back in the place of the new one.
        self.disk.sync_directory()?;
        for old in self.names()?.into_iter().filter(|(old, _)| *old != name) {
            self.disk.remove(&old.0)?;
        }
        Ok(writer.position)
    }

    /// The newest checkpoint, if there is one.
    pub(crate) fn read(&self) -> io::Result<Option<Checkpoint>> {
        let Some((name, bytes)) = self.names()?.pop() else { return Ok(None) };
        self.read_one(&name, bytes).map(Some)
    }

    /// The checkpoint of a name and length.
    pub(crate) fn read_one(&self, name: &str, bytes: u64) -> io::Result<Checkpoint> {
        let mut whole = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        self.disk.open(name)?.read_at(&mut whole, 0)?;
        let found = parse(&whole).and_then(|found| {
            // The place in the log has no checksum, but it stands in the name as well.
            if name_of(found.position) == name { Ok(found) } else { Err(MAGIC.len()) }
        });
        found.map_err(|offset| {
            let why = format!("the checkpoint (file {name}) is damaged at byte {offset}");
            io::Error::new(io::ErrorKind::InvalidData, why)
        })
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
        if self.buffer.len() >= WRITE_BYTES {
            self.flush()?;
        }
        if self.written - self.synced >= SYNC_BYTES {
            self.file.sync_data()?;
            self.synced = self.written;
        }
        Ok(())
    }

    fn gather(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(&(piece.len() as u64).to_le_bytes());
        self.buffer.extend_from_slice(&crc32c::crc32c(piece).to_le_bytes());
        self.buffer.extend_from_slice(piece);
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_at(&self.buffer, self.written)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// What a checkpoint's bytes say, or where they make no sense.
fn parse(bytes: &[u8]) -> Result<Checkpoint, usize> {
    let Some((header, mut rest)) = bytes.split_at_checked(HEADER_BYTES) else { return Err(0) };
    let (magic, position) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(0);
    }
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let position = Position { segment: number(&position[..8]), offset: number(&position[8..]) };
    let mut pieces = Vec::new();
    loop {
        let (piece, left) = piece(rest).ok_or(bytes.len() - rest.len())?;
        if piece.is_empty() {
            break;
        }
        pieces.push(piece.to_vec());
        rest = left;
    }
    let mut pieces = pieces.into_iter();
    let head = pieces.next().ok_or(HEADER_BYTES)?;
    Ok(Checkpoint { position, head, jobs: pieces.collect(), bytes: bytes.len() as u64 })
}

/// The piece that some bytes begin with, and what comes after it.
fn piece(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (checksum, rest) = rest.split_first_chunk::<4>()?;
    let (piece, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    (crc32c::crc32c(piece).to_le_bytes() == *checksum).then_some((piece, rest))
}
