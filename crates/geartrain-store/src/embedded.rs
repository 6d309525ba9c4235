//! Opening a data directory: what was kept is read again, and from then on everything is kept there.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::sync::Arc;

use geartrain_core::engine::{Delta, Effects, Engine, Limits};

use crate::checkpoint::Checkpoints;
use crate::log::{Log, LogError, LogOptions, Position, RealDisk};

/// Why a data directory cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it.
    #[error("another process uses this directory: stop it, or use another directory")]
    InUse,
    /// The files cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// What was read does not agree with itself.
    #[error("what is kept does not agree with itself: {wrong}")]
    Unsound {
        /// What is wrong.
        wrong: String,
    },
    /// A checkpoint or a change makes no sense.
    #[error("what is written in {place} makes no sense")]
    Damaged {
        /// Where.
        place: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A data directory that was opened.
pub(crate) struct Opened {
    pub(crate) engine: Engine,
    pub(crate) log: Log,
    pub(crate) checkpoints: Checkpoints,
    /// How large the checkpoint is that it was read from.
    pub(crate) checkpoint_bytes: u64,
    /// Held as long as the directory is in use.
    pub(crate) lock: File,
}

pub(crate) fn open(directory: &Path, limits: Limits) -> Result<Opened, OpenError> {
    fs::create_dir_all(directory)?;
    let lock = lock(directory)?;
    let checkpoints = Checkpoints::new(directory);
    let (mut engine, mut log, checkpoint_bytes, _) = read(directory, limits, &checkpoints)?;
    // No token that was given out before, and may be lost from the log, is ever given out again.
    let mut effects = Effects::default();
    engine.begin_epoch(&mut effects);
    let mut body = Vec::new();
    effects.deltas.iter().for_each(|delta| delta.encode(&mut body));
    log.append(&body)?;
    log.sync()?;
    Ok(Opened { engine, log, checkpoints, checkpoint_bytes, lock })
}

/// Reads the newest checkpoint, and what was written after it: the engine, the log, the checkpoint's size and how many changes there were.
fn read(
    directory: &Path,
    limits: Limits,
    checkpoints: &Checkpoints,
) -> Result<(Engine, Log, u64, u64), OpenError> {
    let (mut engine, from, checkpoint_bytes) = match checkpoints.read()? {
        None => (Engine::new(limits), Position::default(), 0),
        Some(checkpoint) => {
            let engine = Engine::restore(limits, &checkpoint.head, &checkpoint.jobs).map_err(|source| {
                OpenError::Damaged { place: "the checkpoint".into(), source: Box::new(source) }
            })?;
            (engine, checkpoint.position, checkpoint.bytes)
        }
    };
    let disk = Arc::new(RealDisk::new(directory)?);
    let (mut damaged, mut changes) = (None, 0);
    let log = Log::open(disk, LogOptions::default(), from, &mut |position, body| {
        let mut rest = body;
        while !rest.is_empty() && damaged.is_none() {
            match Delta::decode(&mut rest) {
                Ok(delta) => {
                    engine.apply(&delta);
                    changes += 1;
                }
                Err(source) => {
                    let place = format!("segment {} at {}", position.segment, position.offset);
                    damaged = Some(OpenError::Damaged { place, source: Box::new(source) });
                }
            }
        }
        Ok(())
    })?;
    if let Some(damaged) = damaged {
        return Err(damaged);
    }
    Ok((engine, log, checkpoint_bytes, changes))
}

/// What was found in a data directory that is sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// How many bytes the checkpoint has that it was read from; 0 if there is none.
    pub checkpoint_bytes: u64,
    /// How many changes were written after it.
    pub changes: u64,
}

/// Reads a data directory that nobody uses, and looks whether every job is in exactly one place and every index agrees with the jobs.
/// Nothing in it is changed but for an unfinished end, which is cut off as by any opening.
pub fn check(directory: &Path) -> Result<Report, OpenError> {
    if !directory.is_dir() {
        return Err(std::io::Error::new(std::io::ErrorKind::NotFound, "there is no such directory").into());
    }
    let _lock = lock(directory)?;
    let (engine, _, checkpoint_bytes, changes) =
        read(directory, Limits::default(), &Checkpoints::new(directory))?;
    match engine.check() {
        Ok(()) => Ok(Report { checkpoint_bytes, changes }),
        Err(wrong) => Err(OpenError::Unsound { wrong }),
    }
}

fn lock(directory: &Path) -> Result<File, OpenError> {
    let file = File::options().create(true).truncate(false).write(true).open(directory.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}
