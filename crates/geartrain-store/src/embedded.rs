//! Opening a data directory: what was kept is read again, and from then on everything is kept there. Also looking at one without opening it.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use geartrain_core::engine::{Census, CodecError, Delta, Effects, Engine, Limits};
use geartrain_core::{Clock, Jid, Leave, Leaving, Place, Timestamp};

use crate::checkpoint::{Checkpoint, Checkpoints, Gate};
use crate::clock::SystemClock;
use crate::desk::Threads;
use crate::keeper::Scribe;
use crate::large::LargePayloads;
use crate::log::{self, Disk, Extent, Log, LogError, Position, RealDisk, Replay};
use crate::options::StoreOptions;
use crate::payloads::{self, PayloadFiles, PayloadReader, Unreadable};
use crate::spill::{Wake, spill};
use crate::writer::Writer;

/// Why a data directory cannot be opened, looked at or copied.
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
    /// A payload cannot be read.
    #[error("the payload of a job cannot be read: {why}")]
    Payload {
        /// Where it is, and what is wrong there.
        why: String,
    },
    /// A copy goes into a directory of its own.
    #[error("{} is there already and is not empty: name a directory that is empty, or that is not there", .directory.display())]
    NotEmpty {
        /// Which.
        directory: PathBuf,
    },
    /// There is nothing that could be copied.
    #[error("there is nothing to copy: {why}")]
    NothingKept {
        /// Why there is not.
        why: &'static str,
    },
}

impl OpenError {
    /// Whether what is kept is damaged, so that [`salvage`](crate::salvage) is what is left to do.
    pub fn is_damage(&self) -> bool {
        match self {
            OpenError::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
            OpenError::Log(error) => matches!(error, LogError::Damaged { .. }),
            OpenError::Unsound { .. } | OpenError::Damaged { .. } | OpenError::Payload { .. } => true,
            OpenError::InUse | OpenError::NotEmpty { .. } | OpenError::NothingKept { .. } => false,
        }
    }
}

/// A place where everything is kept, and how.
pub(crate) struct Store {
    premises: Arc<Premises>,
    options: StoreOptions,
    limits: Limits,
    threads: Threads,
    /// Wakes the engine's thread, once there is one.
    wake: Arc<OnceLock<Wake>>,
}

/// A place that is in use.
#[derive(Debug)]
pub(crate) struct Premises {
    pub(crate) disk: OnDisk,
    pub(crate) gate: Gate,
    /// How many bytes of payloads are in memory.
    pub(crate) payload_bytes: Arc<AtomicU64>,
    pub(crate) large: Large,
    /// Held as long as the directory is in use.
    _lock: Option<File>,
}

/// A disk, of which nothing can be shown.
pub(crate) struct OnDisk(pub(crate) Arc<dyn Disk>);

impl std::fmt::Debug for OnDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnDisk")
    }
}

/// The files of large payloads, of which nothing can be shown.
pub(crate) struct Large(pub(crate) Arc<LargePayloads>);

impl std::fmt::Debug for Large {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Large")
    }
}

/// A store that is ready to keep what comes.
pub(crate) struct Started {
    pub(crate) engine: Engine,
    pub(crate) scribe: Box<Scribe>,
}

/// What is read from a store.
struct Kept<L> {
    engine: Engine,
    log: L,
    checkpoint_bytes: u64,
    changes: u64,
    /// The payload files that the checkpoint speaks of.
    payload_files: BTreeSet<u64>,
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
        Ok(Store::at(disk, options, limits, Some(lock)))
    }

    /// A directory that is there, to be looked at and not to be changed.
    pub(crate) fn to_be_read(directory: &Path, limits: Limits) -> Result<Store, OpenError> {
        let lock = lock_to_read(directory)?;
        let disk = Arc::new(RealDisk::read_only(directory)?);
        Ok(Store::at(disk, StoreOptions::default(), limits, lock))
    }

    /// Any disk, which nobody else uses.
    pub(crate) fn on(disk: Arc<dyn Disk>, options: StoreOptions, limits: Limits) -> Store {
        Store::at(disk, options, limits, None)
    }

    fn at(disk: Arc<dyn Disk>, options: StoreOptions, limits: Limits, lock: Option<File>) -> Store {
        let (gate, payload_bytes) = (Gate::default(), Arc::default());
        let large = Large(Arc::new(LargePayloads::new(disk.clone(), options.own_file_bytes_min)));
        let premises = Premises { disk: OnDisk(disk), gate, payload_bytes, large, _lock: lock };
        // An empty payload takes nothing anywhere.
        let limits = Limits {
            moved_bytes_min: options.spill_bytes_min.max(1),
            events_held_max: options.events_held_max,
            ..limits
        };
        Store { premises: Arc::new(premises), options, limits, threads: Threads::Two, wake: Arc::default() }
    }

    /// The same, without a thread that writes.
    pub(crate) fn without_threads(self) -> Store {
        Store { threads: Threads::None, ..self }
    }

    pub(crate) fn premises(&self) -> &Arc<Premises> {
        &self.premises
    }

    pub(crate) fn disk(&self) -> Arc<dyn Disk> {
        self.premises.disk.0.clone()
    }

    pub(crate) fn large(&self) -> &Arc<LargePayloads> {
        &self.premises.large.0
    }

    pub(crate) fn checkpoints(&self) -> Checkpoints {
        Checkpoints::new(self.disk(), self.premises.gate.clone())
    }

    /// Reads what was kept, and gets ready to keep what comes.
    pub(crate) fn start(&self, now: Timestamp) -> Result<Started, OpenError> {
        let Kept { mut engine, mut log, checkpoint_bytes, payload_files, .. } =
            self.read(|from, replay| Log::open(self.disk(), self.options.log, from, replay))?;
        self.take_over_payload_files(&mut engine, &payload_files)?;
        // No token that was given out before, and may be lost from the log, is ever given out again.
        let mut effects = Effects::in_bytes();
        engine.begin_epoch(&mut effects);
        // Whoever waited for a job did so through a process that is gone, or through a stream that has ended.
        effects.listening = engine.keeps_events();
        let everyone = Leave { who: Leaving::Everyone };
        let _ = engine.execute(now, everyone.into(), &mut effects);
        log.append(&effects.take_written().bytes)?;
        log.sync()?;
        let log_bytes = log.used_bytes();
        // No epoch comes twice, so neither does the number of a file.
        let first_file = u64::from(engine.epoch()) << 32;
        self.large().begin_epoch(engine.epoch());
        let files = PayloadFiles::new(self.disk(), first_file, self.options.payload_file_bytes);
        let (in_memory, wake) = (self.premises.payload_bytes.clone(), self.wake.clone());
        let wake: Wake = Arc::new(move || wake.get().into_iter().for_each(|wake| wake()));
        let (spill, mover) = spill(files, self.options.payload_memory_within_limit(), in_memory, wake);
        let writer = Writer::new(log, self.options.sync, self.checkpoints(), mover);
        let min = self.options.checkpoint_bytes_min;
        let large = self.large().clone();
        let scribe = Scribe::new(writer, spill, large, self.threads, checkpoint_bytes, min, log_bytes)?;
        Ok(Started { engine, scribe: Box::new(scribe) })
    }

    /// Says how the engine's thread is woken.
    pub(crate) fn wake_by(&self, wake: Wake) {
        let _ = self.wake.set(wake);
    }

    /// Looks whether the payload files are there that the checkpoint speaks of, and removes the others.
    fn take_over_payload_files(
        &self,
        engine: &mut Engine,
        spoken_of: &BTreeSet<u64>,
    ) -> Result<(), OpenError> {
        let disk = self.disk();
        let found = payloads::files_on(&*disk)?;
        for (_, place) in engine.payload_places() {
            let end = u64::from(place.offset) + place.record_bytes();
            if found.get(&place.file).is_none_or(|bytes| *bytes < end) {
                let why = "the file is missing, or ends before".into();
                return Err(Unreadable { place, is_damaged: true, why }.into());
            }
        }
        // Somebody may be copying them, if this is not the first time that the store is opened.
        let nobody_copies = self.premises.gate.try_lock();
        // All that was read is durable, so a file of one payload that no job refers to by now is not needed,
        // whatever the checkpoint says.
        let needed: BTreeSet<u64> = engine.payload_files().collect();
        for (file, bytes) in found {
            let is_needed = match Place::is_own_file(file) {
                true => needed.contains(&file) || self.large().is_in_flight(file),
                false => spoken_of.contains(&file),
            };
            if !is_needed && nobody_copies.is_ok() {
                payloads::remove_if_there(&*disk, file)?;
            } else if !(Place::is_own_file(file) && self.large().is_in_flight(file)) {
                engine.found_payload_file(file, payloads::record_bytes(bytes));
            }
        }
        if nobody_copies.is_ok() {
            // They were removed above. While a copy is made they are left to go later.
            engine.take_released_payload_files();
        }
        Ok(())
    }

    /// The engine that a checkpoint shows.
    pub(crate) fn restore(&self, mut checkpoint: Checkpoint) -> Result<Engine, OpenError> {
        let place = format!("the checkpoint (file {})", checkpoint.name);
        let damaged = |source: CodecError| OpenError::Damaged { place: place.clone(), source: source.into() };
        let mut piece = Vec::new();
        checkpoint.read_piece(&mut piece)?;
        let mut restoring = Engine::restore(self.limits.clone(), &piece).map_err(damaged)?;
        while checkpoint.read_piece(&mut piece)? {
            restoring.add(&piece).map_err(damaged)?;
        }
        Ok(restoring.finish())
    }

    /// Reads the newest checkpoint, and what was written after it.
    fn read<L>(
        &self,
        read_log: impl FnOnce(Position, &mut Replay<'_>) -> Result<L, LogError>,
    ) -> Result<Kept<L>, OpenError> {
        let (mut engine, from, checkpoint_bytes) = match self.checkpoints().newest()? {
            None => (Engine::new(self.limits.clone()), Position::default(), 0),
            Some(checkpoint) => {
                let (position, bytes) = (checkpoint.position, checkpoint.bytes);
                (self.restore(checkpoint)?, position, bytes)
            }
        };
        let payload_files = engine.payload_files().collect();
        let (mut wrong, mut changes) = (None, 0);
        let log = read_log(from, &mut |position, body| {
            // What is in a batch rests on all that came before it.
            if changes == 0 && from == Position::default() && position.segment != 1 {
                return Err(LogError::damaged(1, 0, "the segment is missing, and so is a checkpoint"));
            }
            let mut rest = body;
            while !rest.is_empty() && wrong.is_none() {
                match Delta::decode(&mut rest) {
                    Ok(delta) => engine.apply(&delta),
                    Err(source) => {
                        let place = format!("segment {} at byte {}", position.segment, position.offset);
                        wrong = Some(OpenError::Damaged { place, source: source.into() });
                    }
                }
                changes += 1;
            }
            Ok(())
        })?;
        match wrong {
            Some(wrong) => Err(wrong),
            None => Ok(Kept { engine, log, checkpoint_bytes, changes, payload_files }),
        }
    }
}

/// What was found in a data directory that is sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// How many bytes the checkpoint has that it was read from; 0 if there is none.
    pub checkpoint_bytes: u64,
    /// How many segments the log has.
    pub log_segments: u64,
    /// How long they are together.
    pub log_bytes: u64,
    /// How many changes were read from the log, because they were written after the checkpoint.
    pub changes: u64,
    /// How many files hold payloads that are not in memory.
    pub payload_files: u64,
    /// How long they are together.
    pub payload_file_bytes: u64,
    /// How much of everything there is.
    pub census: Census,
}

impl Store {
    /// Reads what was kept, and looks whether it agrees with itself.
    pub(crate) fn check(&self) -> Result<Report, OpenError> {
        let disk = self.disk();
        let Kept { engine, log, checkpoint_bytes, changes, .. } =
            self.read(|from, replay| log::survey(&*disk, from, replay))?;
        let Extent { segments, bytes } = log;
        if let Some((_, unreadable)) = self.unreadable(&engine).next() {
            return Err(unreadable.into());
        }
        let payload_files = payloads::files_on(&*disk)?;
        match engine.check() {
            Ok(()) => Ok(Report {
                checkpoint_bytes,
                log_segments: segments,
                log_bytes: bytes,
                changes,
                payload_files: payload_files.len() as u64,
                payload_file_bytes: payload_files.values().sum(),
                census: engine.census(),
            }),
            Err(wrong) => Err(OpenError::Unsound { wrong }),
        }
    }

    /// The jobs whose payloads cannot be read, each with why.
    fn unreadable(&self, engine: &Engine) -> impl Iterator<Item = (Jid, Unreadable)> {
        let mut reader = PayloadReader::new(self.disk());
        // In the order in which they lie on the disk.
        let mut places: Vec<(Place, Jid)> =
            engine.payload_places().map(|(jid, place)| (place, jid)).collect();
        places.sort_unstable();
        places.into_iter().filter_map(move |(place, jid)| Some((jid, reader.read(place).err()?)))
    }

    /// Lets go of the jobs whose payloads cannot be read, for good, and says which they were and why.
    pub(crate) fn abandon_unreadable(&self) -> Result<Vec<String>, OpenError> {
        let (disk, options) = (self.disk(), self.options.log);
        let Kept { mut engine, .. } = self.read(|from, replay| log::survey(&*disk, from, replay))?;
        let unreadable: Vec<(Jid, Unreadable)> = self.unreadable(&engine).collect();
        let mut effects = Effects::in_bytes();
        let now = SystemClock.now();
        unreadable.iter().for_each(|(jid, _)| engine.abandon(now, jid, &mut effects));
        let body = effects.take_written().bytes;
        if !body.is_empty() {
            let Kept { mut log, .. } =
                self.read(|from, replay| Log::open(disk.clone(), options, from, replay))?;
            log.append(&body)?;
            log.sync()?;
        }
        Ok(unreadable.into_iter().map(|(jid, why)| format!("job {jid}: {why}")).collect())
    }
}

impl From<Unreadable> for OpenError {
    fn from(why: Unreadable) -> OpenError {
        OpenError::Payload { why: why.to_string() }
    }
}

/// Reads a data directory that nobody uses, and looks whether every job is in exactly one place and every index agrees with the jobs.
/// Nothing in it is changed.
pub fn check(directory: &Path) -> Result<Report, OpenError> {
    Store::to_be_read(directory, Limits::default())?.check()
}

/// Locks a directory without changing anything in it. If there is no lock file, nobody can be using it.
fn lock_to_read(directory: &Path) -> Result<Option<File>, OpenError> {
    if !directory.is_dir() {
        let why = format!("there is no directory {}", directory.display());
        return Err(std::io::Error::new(std::io::ErrorKind::NotFound, why).into());
    }
    match File::open(directory.join("lock")) {
        Ok(file) => locked(file).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn lock(directory: &Path) -> Result<File, OpenError> {
    locked(File::options().create(true).truncate(false).write(true).open(directory.join("lock"))?)
}

fn locked(file: File) -> Result<File, OpenError> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}
