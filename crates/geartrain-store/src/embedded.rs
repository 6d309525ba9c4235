//! Opening a data directory: what was kept is read again, and from then on everything is kept there. Also looking at one without opening it.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use geartrain_core::engine::{CodecError, Delta, Effects, Engine, Limits, MemoryReport};
use geartrain_core::{Clock, Detach, DetachScope, Jid, SpillLocation, Timestamp};

use crate::checkpoint::{Checkpoint, Checkpoints, Gate, position_in};
use crate::desk::Threads;
use crate::keeper::Scribe;
use crate::large::LargePayloads;
use crate::log::{self, Disk, Extent, Log, LogError, Position, RealDisk, Replay, TornTail};
use crate::options::StoreOptions;
use crate::payloads::{self, PayloadFiles, PayloadReader, Unreadable};
use crate::spill::{Wake, spill};
use crate::writer::Writer;
use geartrain_core::SystemClock;

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
            OpenError::Log(error) => error.is_damage(),
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
    _lock: Option<Locks>,
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
    /// The position of the checkpoint that was read.
    from: Position,
    checkpoint_bytes: u64,
    /// The epoch in which it was begun.
    epoch: u32,
    changes: u64,
    /// The payload files that the checkpoint speaks of.
    payload_files: BTreeSet<u64>,
    /// Newer checkpoints that are damaged, and what is wrong with them.
    damaged: Vec<(String, OpenError)>,
}

impl Store {
    /// A directory, which is made if it is not there, and which nobody else may use meanwhile.
    pub(crate) fn in_directory(
        directory: &Path,
        options: StoreOptions,
        limits: Limits,
    ) -> Result<Store, OpenError> {
        make_private(directory)?;
        let lock = Locks::exclusive(directory)?;
        let disk = Arc::new(RealDisk::new(directory)?);
        Ok(Store::at(disk, options, limits, Some(lock)))
    }

    /// A directory that is there, to be looked at and not to be changed.
    pub(crate) fn to_be_read(directory: &Path, limits: Limits) -> Result<Store, OpenError> {
        let lock = Locks::to_read(directory)?;
        let disk = Arc::new(RealDisk::read_only(directory)?);
        Ok(Store::at(disk, StoreOptions::default(), limits, Some(lock)))
    }

    /// Any disk, which nobody else uses.
    pub(crate) fn on(disk: Arc<dyn Disk>, options: StoreOptions, limits: Limits) -> Store {
        Store::at(disk, options, limits, None)
    }

    fn at(disk: Arc<dyn Disk>, options: StoreOptions, limits: Limits, lock: Option<Locks>) -> Store {
        let (gate, payload_bytes) = (Gate::default(), Arc::default());
        let large = Large(Arc::new(LargePayloads::new(disk.clone(), options.own_file_bytes_min)));
        let premises = Premises { disk: OnDisk(disk), gate, payload_bytes, large, _lock: lock };
        // An empty payload takes nothing anywhere.
        let limits = Limits {
            spill_bytes_min: options.spill_bytes_min.max(1),
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
        let Kept { mut engine, mut log, from, checkpoint_bytes, epoch, payload_files, damaged, .. } =
            self.read(|from, replay| self.open_log(from, replay))?;
        self.remove_damaged_checkpoints(&damaged)?;
        self.take_over_payload_files(&mut engine, &payload_files, epoch)?;
        // No token that was given out before, and may be lost from the log, is ever given out again.
        let mut effects = Effects::in_bytes();
        engine.begin_epoch(&mut effects);
        // Whoever waited for a job did so through a process that is gone, or through a stream that has ended.
        effects.listening = engine.keeps_events();
        let everyone = Detach { scope: DetachScope::All };
        let _ = engine.execute(now, everyone.into(), &mut effects);
        log.append(&effects.take_written().bytes)?;
        log.sync()?;
        let log_bytes = log.bytes_since(from);
        // No epoch comes twice, so neither does the number of a file.
        let first_file = u64::from(engine.epoch()) << 32;
        self.large().begin_epoch(engine.epoch());
        let files = PayloadFiles::new(self.disk(), first_file, self.options.payload_file_bytes);
        let (in_memory, wake) = (self.premises.payload_bytes.clone(), self.wake.clone());
        let wake: Wake = Arc::new(move || wake.get().into_iter().for_each(|wake| wake()));
        let (spill, mover) = spill(files, self.options.payload_memory_within_limit(), in_memory, wake);
        let writer = Writer::new(log, self.options.sync, self.checkpoints(), mover, from);
        let min = self.options.checkpoint_bytes_min;
        let large = self.large().clone();
        let scribe = Scribe::new(writer, spill, large, self.threads, checkpoint_bytes, min, log_bytes)?;
        Ok(Started { engine, scribe: Box::new(scribe) })
    }

    /// Opens the log to write, and says where it ends.
    fn open_log(&self, from: Position, replay: &mut Replay<'_>) -> Result<(Log, Position), LogError> {
        let log = Log::open(self.disk(), self.options.log, from, replay)?;
        let end = log.end();
        Ok((log, end))
    }

    /// Reads the log, changes nothing, and says where it ends.
    fn survey(&self, from: Position, replay: &mut Replay<'_>) -> Result<(Extent, Position), LogError> {
        log::survey(&*self.disk(), from, replay).map(|extent| (extent, extent.end))
    }

    /// Says how the engine's thread is woken.
    pub(crate) fn wake_by(&self, wake: Wake) {
        let _ = self.wake.set(wake);
    }

    /// Looks whether the payload files are there that the checkpoint speaks of. Removes those that were made
    /// in an epoch after it: what they hold is in the log. Older ones may be needed by the previous
    /// checkpoint; the engine takes them for empty, so they go later.
    fn take_over_payload_files(
        &self,
        engine: &mut Engine,
        spoken_of: &BTreeSet<u64>,
        epoch: u32,
    ) -> Result<(), OpenError> {
        let disk = self.disk();
        let found = payloads::files_on(&*disk)?;
        for (_, place) in engine.spilled_payloads() {
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
            let (is_own, is_in_flight) = (SpillLocation::is_own_file(file), self.large().is_in_flight(file));
            let is_newer = file >> 32 > u64::from(epoch);
            let is_needed = match is_own {
                true => needed.contains(&file) || is_in_flight,
                // An older spill file may be needed by the previous checkpoint.
                false => spoken_of.contains(&file) || !is_newer,
            };
            if !is_needed && nobody_copies.is_ok() {
                payloads::remove_if_there(&*disk, file)?;
            } else if !is_in_flight {
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

    /// Reads the newest checkpoint that is not damaged, and what was written after it. `read_log` says where
    /// the log ends, too.
    ///
    /// A checkpoint stands for a part of the log, and the previous one is kept together with the log from its
    /// position on. So falling back to it loses nothing, as long as the log reaches at least as far as the
    /// damaged one did.
    fn read<L>(
        &self,
        read_log: impl Fn(Position, &mut Replay<'_>) -> Result<(L, Position), LogError>,
    ) -> Result<Kept<L>, OpenError> {
        self.read_without(0, read_log)
    }

    /// The same, without the newest so many checkpoints.
    fn read_without<L>(
        &self,
        skipped: usize,
        read_log: impl Fn(Position, &mut Replay<'_>) -> Result<(L, Position), LogError>,
    ) -> Result<Kept<L>, OpenError> {
        let checkpoints = self.checkpoints();
        let names = checkpoints.names()?;
        let newest = names.last().and_then(|(name, _)| position_in(name)).unwrap_or_default();
        let mut damaged: Vec<(String, OpenError)> = Vec::new();
        let mut base = None;
        for (name, bytes) in names.into_iter().rev().skip(skipped) {
            let opened = checkpoints.open(&name, bytes).map_err(OpenError::from);
            let position_and_engine = opened.and_then(|checkpoint| {
                let position = checkpoint.position;
                Ok((position, self.restore(checkpoint)?))
            });
            match position_and_engine {
                Ok((from, engine)) => {
                    base = Some((from, engine, bytes));
                    break;
                }
                Err(error) => damaged.push((name, error)),
            }
        }
        let (from, engine, checkpoint_bytes) = match base {
            Some(base) => base,
            // Without any, the log must have been kept from its beginning.
            None if !damaged.is_empty() && !log::has_beginning(&*self.disk())? => {
                return Err(damaged.remove(0).1);
            }
            None => (Position::default(), Engine::new(self.limits.clone()), 0),
        };
        let (epoch, payload_files) = (engine.epoch(), engine.payload_files().collect());
        let read = self.replay(engine, from, newest, read_log);
        let (engine, log, changes) = match read {
            Ok(read) => read,
            // What is wrong with the checkpoint comes first: without that the log would not have been needed
            // so far back.
            Err(error) if error.is_damage() && !damaged.is_empty() => return Err(damaged.remove(0).1),
            Err(error) => return Err(error),
        };
        Ok(Kept { engine, log, from, checkpoint_bytes, epoch, changes, payload_files, damaged })
    }

    /// Applies the log from a position on to an engine. It must reach at least to `reach`.
    fn replay<L>(
        &self,
        mut engine: Engine,
        from: Position,
        reach: Position,
        read_log: impl Fn(Position, &mut Replay<'_>) -> Result<(L, Position), LogError>,
    ) -> Result<(Engine, L, u64), OpenError> {
        let (mut wrong, mut changes) = (None, 0);
        let (log, end) = read_log(from, &mut |position, body| {
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
        if end < reach {
            let why = "the log ends here, before the position of a checkpoint";
            return Err(LogError::damaged(end.segment, end.offset, why).into());
        }
        match wrong {
            Some(wrong) => Err(wrong),
            None => Ok((engine, log, changes)),
        }
    }

    /// Says which checkpoints were damaged, and removes them: what they stand for was read without them, and
    /// the payload files that only they speak of are about to go.
    fn remove_damaged_checkpoints(&self, damaged: &[(String, OpenError)]) -> Result<(), OpenError> {
        if damaged.is_empty() {
            return Ok(());
        }
        for (file, error) in damaged {
            tracing::warn!(file, %error, "opened without a damaged checkpoint; nothing is lost");
        }
        // If a backup is under way it fails by itself, and the next opening removes them.
        if let Ok(_nobody_copies) = self.premises.gate.try_lock() {
            let disk = self.disk();
            damaged.iter().try_for_each(|(file, _)| disk.remove(file))?;
            disk.sync_directory()?;
        }
        Ok(())
    }
}

/// What was found in a data directory that is sound.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
    /// Checkpoints that are damaged, with file and offset. Nothing is lost with them: there is another, and
    /// the log behind it.
    pub damaged_checkpoints: Vec<String>,
    /// What a crash left at the end of the log, which opening cuts off; none if there is nothing.
    pub torn_tail: Option<TornTail>,
    /// How much of everything there is.
    pub census: MemoryReport,
}

impl Store {
    /// Reads what was kept, and looks whether it agrees with itself.
    pub(crate) fn check(&self) -> Result<Report, OpenError> {
        let disk = self.disk();
        let Kept { engine, log, from, checkpoint_bytes, changes, damaged, .. } =
            self.read(|from, replay| self.survey(from, replay))?;
        let mut damaged_checkpoints: Vec<String> =
            damaged.into_iter().map(|(_, error)| error.to_string()).collect();
        let checkpoints = self.checkpoints();
        for (name, bytes) in checkpoints.names()? {
            // One to fall back to is not read otherwise.
            if position_in(&name).is_some_and(|position| position < from)
                && let Err(error) = checkpoints.open(&name, bytes).and_then(Checkpoint::verify)
            {
                damaged_checkpoints.push(error.to_string());
            }
        }
        let Extent { segments, bytes, torn_tail, .. } = log;
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
                damaged_checkpoints,
                torn_tail,
                census: engine.memory_report(),
            }),
            Err(wrong) => Err(OpenError::Unsound { wrong }),
        }
    }

    /// The jobs whose payloads cannot be read, each with why.
    fn unreadable(&self, engine: &Engine) -> impl Iterator<Item = (Jid, Unreadable)> {
        let mut reader = PayloadReader::new(self.disk());
        // In the order in which they lie on the disk.
        let mut places: Vec<(SpillLocation, Jid)> =
            engine.spilled_payloads().map(|(jid, place)| (place, jid)).collect();
        places.sort_unstable();
        places.into_iter().filter_map(move |(place, jid)| Some((jid, reader.read(place).err()?)))
    }

    /// How many payloads cannot be read if the newest so many checkpoints are not used.
    pub(crate) fn unreadable_without(&self, skipped: usize) -> Result<usize, OpenError> {
        let Kept { engine, .. } = self.read_without(skipped, |from, replay| self.survey(from, replay))?;
        Ok(self.unreadable(&engine).count())
    }

    /// Lets go of the jobs whose payloads cannot be read, for good, and says which they were and why.
    pub(crate) fn abandon_unreadable(&self) -> Result<Vec<String>, OpenError> {
        let Kept { mut engine, .. } = self.read(|from, replay| self.survey(from, replay))?;
        let unreadable: Vec<(Jid, Unreadable)> = self.unreadable(&engine).collect();
        let mut effects = Effects::in_bytes();
        let now = SystemClock.now();
        unreadable.iter().for_each(|(jid, _)| engine.abandon(now, jid, &mut effects));
        let body = effects.take_written().bytes;
        if !body.is_empty() {
            let Kept { mut log, .. } = self.read(|from, replay| self.open_log(from, replay))?;
            log.append(&body)?;
            log.close()?;
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

/// The locks on a directory that is in use.
///
/// The one on the directory itself stays whatever becomes of the files in it. The one on the file `lock`
/// keeps out programs from before there was the other. To take either needs read access to the directory,
/// which no other user has: its mode is 0700.
#[derive(Debug)]
struct Locks {
    _directory: Option<File>,
    _file: Option<File>,
}

impl Locks {
    /// Locks a directory that is to be changed.
    fn exclusive(directory: &Path) -> Result<Locks, OpenError> {
        let of_directory = lock_directory(directory)?;
        let file =
            File::options().create(true).truncate(false).write(true).mode(0o600).open(lock_in(directory))?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        Ok(Locks { _directory: of_directory, _file: Some(locked(file)?) })
    }

    /// Locks a directory without changing anything in it. If there is no lock file, no older program can be
    /// using it.
    fn to_read(directory: &Path) -> Result<Locks, OpenError> {
        if !directory.is_dir() {
            let why = format!("there is no directory {}", directory.display());
            return Err(std::io::Error::new(std::io::ErrorKind::NotFound, why).into());
        }
        let of_directory = lock_directory(directory)?;
        let of_file = match File::open(lock_in(directory)) {
            Ok(file) => Some(locked(file)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Locks { _directory: of_directory, _file: of_file })
    }
}

fn lock_in(directory: &Path) -> PathBuf {
    directory.join("lock")
}

/// Locks the directory's own descriptor; none where a file system cannot (NFS locks only what is open for
/// writing). Then the file must do.
fn lock_directory(directory: &Path) -> Result<Option<File>, OpenError> {
    match locked(File::open(directory)?) {
        Ok(locked) => Ok(Some(locked)),
        Err(OpenError::Io(error)) => {
            let path = directory.display();
            tracing::warn!(%error, directory = %path, "only the file `lock` is locked, not the directory");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn locked(file: File) -> Result<File, OpenError> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Makes a directory that is there only for its owner, whatever the umask; also one that an earlier version
/// made.
pub(crate) fn make_private(directory: &Path) -> std::io::Result<()> {
    let is_new = match fs::metadata(directory) {
        Ok(_) => false,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(error),
    };
    if is_new {
        if let Some(parent) = directory.parent() {
            fs::create_dir_all(parent)?;
        }
        match fs::DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    let mode = fs::metadata(directory)?.permissions().mode();
    // One that others put files into, such as /tmp, is left as it is.
    const STICKY: u32 = 0o1000;
    if mode & 0o777 == 0o700 || mode & STICKY != 0 || !is_new && !is_ours(directory)? {
        return Ok(());
    }
    match fs::set_permissions(directory, Permissions::from_mode(0o700)) {
        // It belongs to another user who lets this one in. That is theirs to decide.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let path = directory.display();
            tracing::warn!(%error, directory = %path, "other users may read this directory: chmod 700 it");
            Ok(())
        }
        set => set,
    }
}

/// Whether a directory is empty, or was a data directory before: not one that serves other purposes as well.
fn is_ours(directory: &Path) -> std::io::Result<bool> {
    let mut is_empty = true;
    for entry in fs::read_dir(directory)? {
        is_empty = false;
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("log-0") || name.starts_with("checkpoint-") {
            return Ok(true);
        }
    }
    Ok(is_empty)
}
