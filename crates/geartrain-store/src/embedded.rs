//! Opening a data directory: what was kept is read again, and from then on everything is kept there.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::sync::Arc;

use geartrain_core::engine::{CodecError, Delta, Effects, Engine, Limits};

use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::keeper::Scribe;
use crate::log::{Disk, Log, LogError, Position, RealDisk};
use crate::options::StoreOptions;
use crate::subscribers::Subscribers;
use crate::writer::Writer;

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

/// A place where everything is kept, and how.
pub(crate) struct Store {
    disk: Arc<dyn Disk>,
    options: StoreOptions,
    limits: Limits,
    /// Held as long as the directory is in use.
    _lock: Option<File>,
}

/// What is read from a store.
struct Kept {
    engine: Engine,
    log: Log,
    checkpoint_bytes: u64,
    changes: u64,
}

impl Store {
    /// A directory, which is made if it is not there, and which nobody else may use meanwhile.
    pub(crate) fn in_directory(
        directory: &Path,
        options: StoreOptions,
        limits: Limits,
    ) -> Result<Store, OpenError> {
        fs::create_dir_all(directory)?;
        let lock = lock(directory)?;
        let disk = Arc::new(RealDisk::new(directory)?);
        Ok(Store { disk, options, limits, _lock: Some(lock) })
    }

    /// Any disk, which nobody else uses.
    pub(crate) fn on(disk: Arc<dyn Disk>, options: StoreOptions, limits: Limits) -> Store {
        Store { disk, options, limits, _lock: None }
    }

    /// Reads what was kept, and starts the thread that keeps what comes.
    pub(crate) fn start(&self, subscribers: Subscribers) -> Result<(Engine, Scribe), OpenError> {
        let Kept { mut engine, mut log, checkpoint_bytes, .. } = self.read()?;
        // No token that was given out before, and may be lost from the log, is ever given out again.
        let mut effects = Effects::default();
        engine.begin_epoch(&mut effects);
        let mut body = Vec::new();
        effects.deltas.iter().for_each(|delta| delta.encode(&mut body));
        log.append(&body)?;
        log.sync()?;
        let log_bytes = log.used_bytes();
        let writer = Writer::new(log, self.options.sync, subscribers, Checkpoints::new(self.disk.clone()));
        let scribe = Scribe::start(writer, checkpoint_bytes, self.options.checkpoint_bytes_min, log_bytes)?;
        Ok((engine, scribe))
    }

    /// Reads the newest checkpoint, and what was written after it.
    fn read(&self) -> Result<Kept, OpenError> {
        let damaged =
            |place: String, source: CodecError| OpenError::Damaged { place, source: Box::new(source) };
        let (mut engine, from, checkpoint_bytes) = match Checkpoints::new(self.disk.clone()).read()? {
            None => (Engine::new(self.limits.clone()), Position::default(), 0),
            Some(Checkpoint { position, head, jobs, bytes }) => {
                let engine = Engine::restore(self.limits.clone(), &head, &jobs);
                (engine.map_err(|source| damaged("the checkpoint".into(), source))?, position, bytes)
            }
        };
        let (mut wrong, mut changes) = (None, 0);
        let log = Log::open(self.disk.clone(), self.options.log, from, &mut |position, body| {
            let mut rest = body;
            while !rest.is_empty() && wrong.is_none() {
                match Delta::decode(&mut rest) {
                    Ok(delta) => engine.apply(&delta),
                    Err(source) => {
                        let place = format!("segment {} at byte {}", position.segment, position.offset);
                        wrong = Some(damaged(place, source));
                    }
                }
                changes += 1;
            }
            Ok(())
        })?;
        match wrong {
            Some(wrong) => Err(wrong),
            None => Ok(Kept { engine, log, checkpoint_bytes, changes }),
        }
    }
}

/// What was found in a data directory that is sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// How many bytes the checkpoint has that it was read from; 0 if there is none.
    pub checkpoint_bytes: u64,
    /// How many changes were written after it.
    pub changes: u64,
}

impl Store {
    /// Reads what was kept, and looks whether it agrees with itself.
    pub(crate) fn check(&self) -> Result<Report, OpenError> {
        let Kept { engine, checkpoint_bytes, changes, .. } = self.read()?;
        match engine.check() {
            Ok(()) => Ok(Report { checkpoint_bytes, changes }),
            Err(wrong) => Err(OpenError::Unsound { wrong }),
        }
    }
}

/// Reads a data directory that nobody uses, and looks whether every job is in exactly one place and every index agrees with the jobs.
/// Nothing in it is changed but for an unfinished end, which is cut off as by any opening.
pub fn check(directory: &Path) -> Result<Report, OpenError> {
    if !directory.is_dir() {
        return Err(std::io::Error::new(std::io::ErrorKind::NotFound, "there is no such directory").into());
    }
    let store = Store::in_directory(directory, StoreOptions::default(), Limits::default())?;
    store.check()
}

fn lock(directory: &Path) -> Result<File, OpenError> {
    let file = File::options().create(true).truncate(false).write(true).open(directory.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}
