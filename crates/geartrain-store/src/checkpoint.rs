//! Snapshots of the engine on disk, so that opening need not read the whole log.
//!
//! A checkpoint is a file of its own: where in the log it belongs, then the pieces of the snapshot, each with its length and checksum, then an
//! empty piece. It is written under another name and renamed when it is whole and synced, so that a file of this name is never half a
//! checkpoint. The newest one counts, and older ones are removed.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::log::Position;

const MAGIC: &[u8; 8] = b"gearckp1";

/// How much is written before it is synced, so that the last sync has little left to do.
const SYNC_BYTES: usize = 4 << 20;

/// The checkpoints of a directory.
pub(crate) struct Checkpoints {
    directory: PathBuf,
}

/// A checkpoint that is being written.
pub(crate) struct CheckpointWriter {
    file: BufWriter<File>,
    position: Position,
    unsynced: usize,
}

/// A checkpoint that was read.
pub(crate) struct Checkpoint {
    pub(crate) position: Position,
    pub(crate) head: Vec<u8>,
    pub(crate) jobs: Vec<Vec<u8>>,
    pub(crate) bytes: u64,
}

impl Checkpoints {
    pub(crate) fn new(directory: &Path) -> Checkpoints {
        Checkpoints { directory: directory.to_owned() }
    }

    fn unfinished(&self) -> PathBuf {
        self.directory.join("checkpoint.new")
    }

    fn finished(&self, position: Position) -> PathBuf {
        self.directory.join(format!("checkpoint-{:016x}-{:08x}", position.segment, position.offset))
    }

    /// Begins a checkpoint that stands for all of the log before a position.
    pub(crate) fn begin(&self, position: Position) -> io::Result<CheckpointWriter> {
        let mut file = BufWriter::with_capacity(256 << 10, File::create(self.unfinished())?);
        file.write_all(MAGIC)?;
        file.write_all(&position.segment.to_le_bytes())?;
        file.write_all(&position.offset.to_le_bytes())?;
        Ok(CheckpointWriter { file, position, unsynced: 0 })
    }

    /// Makes a checkpoint count, and says where in the log it belongs.
    pub(crate) fn finish(&self, mut writer: CheckpointWriter) -> io::Result<Position> {
        writer.piece(&[])?;
        writer.sync()?;
        fs::rename(self.unfinished(), self.finished(writer.position))?;
        File::open(&self.directory)?.sync_all()?;
        for old in self.names()? {
            if old != self.finished(writer.position) {
                fs::remove_file(old)?;
            }
        }
        Ok(writer.position)
    }

    /// The newest checkpoint, if there is one.
    pub(crate) fn read(&self) -> io::Result<Option<Checkpoint>> {
        let Some(newest) = self.names()?.pop() else { return Ok(None) };
        let bytes = fs::read(&newest)?;
        let damaged = || {
            let what = format!("the checkpoint {} is damaged", newest.display());
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        parse(&bytes).map(Some).ok_or_else(damaged)
    }

    /// The finished ones, the newest last.
    fn names(&self) -> io::Result<Vec<PathBuf>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(|name| name.starts_with("checkpoint-")) {
                names.push(entry.path());
            }
        }
        names.sort();
        Ok(names)
    }
}

impl CheckpointWriter {
    pub(crate) fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        // An empty piece would end it.
        if piece.is_empty() { Ok(()) } else { self.piece(piece) }
    }

    fn piece(&mut self, piece: &[u8]) -> io::Result<()> {
        self.file.write_all(&(piece.len() as u64).to_le_bytes())?;
        self.file.write_all(&crc32c::crc32c(piece).to_le_bytes())?;
        self.file.write_all(piece)?;
        self.unsynced += piece.len();
        if self.unsynced > SYNC_BYTES { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.unsynced = 0;
        self.file.flush()?;
        self.file.get_ref().sync_data()
    }
}

fn parse(bytes: &[u8]) -> Option<Checkpoint> {
    let mut rest = bytes;
    let mut take = |count: usize| {
        let (taken, left) = rest.split_at_checked(count)?;
        rest = left;
        Some(taken)
    };
    let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
    if take(8)? != MAGIC {
        return None;
    }
    let position = Position { segment: number(take(8)?)?, offset: number(take(8)?)? };
    let mut pieces = Vec::new();
    loop {
        let length = usize::try_from(number(take(8)?)?).ok()?;
        let sum = u32::from_le_bytes(take(4)?.try_into().ok()?);
        let piece = take(length)?;
        if crc32c::crc32c(piece) != sum {
            return None;
        }
        if piece.is_empty() {
            break;
        }
        pieces.push(piece.to_vec());
    }
    let mut pieces = pieces.into_iter();
    Some(Checkpoint { position, head: pieces.next()?, jobs: pieces.collect(), bytes: bytes.len() as u64 })
}
