//! Recovery: opens a data directory by loading the newest checkpoint and replaying the write-ahead log behind
//! it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use geartrain_core::engine::{CodecError, Delta, Effects, Engine, Limits};
use geartrain_core::{Detach, DetachScope, SpillLocation, Timestamp};

use crate::checkpoint::{Checkpoint, Checkpoints, position_in};
use crate::commit::committer::Committer;
use crate::commit::pipeline::WalPipeline;
use crate::commit::queue::Threading;
use crate::data_dir::{DataDir, DirLock, make_private};
use crate::options::{StoreOptions, SyncMode};
use crate::spill::files::{self, PayloadFiles, UnreadablePayload};
use crate::spill::large::LargePayloads;
use crate::spill::policy::{Wake, policy_and_writer};
use crate::wal::{self, Disk, Extent, Position, RealDisk, Replay, Wal, WalError};

/// Why a data directory cannot be opened, verified or copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has locked the directory.
    #[error("another process uses this directory: stop it, or use another directory")]
    InUse,
    /// The files cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The log cannot be read.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The stored jobs and indexes contradict each other.
    #[error("the stored data contradicts itself: {wrong}")]
    Unsound {
        /// What is wrong.
        wrong: String,
    },
    /// A checkpoint or a change cannot be decoded.
    #[error("{place} cannot be decoded")]
    Damaged {
        /// The file or the segment, and the offset.
        place: String,
        /// The codec's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A spilled payload cannot be read.
    #[error("the payload of a job cannot be read: {why}")]
    Payload {
        /// Its file and offset, and what is wrong there.
        why: String,
    },
    /// The target directory of a copy has files in it.
    #[error("{} is not empty: name an empty directory, or one that does not exist", .directory.display())]
    NotEmpty {
        /// The target directory.
        directory: PathBuf,
    },
    /// The target directory of a copy is a file system of its own, or the root directory.
    #[error("{} is a file system of its own: name a new directory in it", .directory.display())]
    MountPoint {
        /// The target directory.
        directory: PathBuf,
    },
    /// The name of the target directory of a copy is one that incomplete copies have.
    #[error("{} has the name of an incomplete copy: choose one that does not end with .partial", .directory.display())]
    PartialName {
        /// The target directory.
        directory: PathBuf,
    },
    /// The directory has no log.
    #[error("{} has no log, so it is neither a data directory nor a complete copy of one", .directory.display())]
    NoLog {
        /// The directory.
        directory: PathBuf,
    },
    /// A directory has one backup at a time.
    #[error("another backup of this queue is running: wait until it has ended")]
    BackupRunning,
    /// The backup was cancelled.
    #[error("the backup was cancelled: {why}")]
    BackupCancelled {
        /// Why.
        why: &'static str,
    },
    /// There is no data to copy.
    #[error("there is nothing to copy: {why}")]
    NothingKept {
        /// Why there is no data.
        why: &'static str,
    },
}

impl OpenError {
    /// Whether the stored data is damaged, so that [`salvage`](crate::salvage) is what is left to do.
    pub fn is_damage(&self) -> bool {
        match self {
            OpenError::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
            OpenError::Wal(error) => error.is_damage(),
            OpenError::Unsound { .. } | OpenError::Damaged { .. } | OpenError::Payload { .. } => true,
            OpenError::InUse
            | OpenError::NotEmpty { .. }
            | OpenError::MountPoint { .. }
            | OpenError::PartialName { .. }
            | OpenError::NoLog { .. }
            | OpenError::BackupRunning
            | OpenError::BackupCancelled { .. }
            | OpenError::NothingKept { .. } => false,
        }
    }
}

/// A data directory and how it is used.
pub(crate) struct Store {
    data_dir: Arc<DataDir>,
    options: StoreOptions,
    limits: Limits,
    threading: Threading,
    /// Wakes the engine's thread, once there is one.
    wake: Arc<OnceLock<Wake>>,
}

/// A recovered engine, and the pipeline that commits its changes from now on.
pub(crate) struct Started {
    pub(crate) engine: Engine,
    pub(crate) pipeline: Box<WalPipeline>,
}

/// The state loaded from a data directory.
pub(crate) struct Recovered<L> {
    pub(crate) engine: Engine,
    pub(crate) wal: L,
    /// The position of the checkpoint that was loaded.
    pub(crate) from: Position,
    pub(crate) checkpoint_bytes: u64,
    /// The epoch in which that checkpoint was begun.
    checkpoint_epoch: u32,
    pub(crate) changes: u64,
    /// Newer checkpoints that are damaged, each with its error.
    pub(crate) damaged: Vec<(String, OpenError)>,
}

impl Store {
    /// Opens a directory for writing. Creates it if it is missing, and locks it.
    pub(crate) fn in_directory(
        directory: &Path,
        options: StoreOptions,
        limits: Limits,
    ) -> Result<Store, OpenError> {
        make_private(directory)?;
        let lock = DirLock::exclusive(directory)?;
        let disk = Arc::new(RealDisk::new(directory)?);
        Ok(Store::new(disk, options, limits, Some(lock)))
    }

    /// Opens an existing directory for reading only.
    pub(crate) fn read_only(directory: &Path, limits: Limits) -> Result<Store, OpenError> {
        let lock = DirLock::read_only(directory)?;
        let disk = Arc::new(RealDisk::read_only(directory)?);
        Ok(Store::new(disk, StoreOptions::default(), limits, Some(lock)))
    }

    /// Opens an existing directory for reading only, without a lock: a copy that no process uses.
    pub(crate) fn read_only_copy(directory: &Path, limits: Limits) -> Result<Store, OpenError> {
        let disk = Arc::new(RealDisk::read_only(directory)?);
        Ok(Store::new(disk, StoreOptions::default(), limits, None))
    }

    /// Uses any disk. The caller makes sure that no other store uses it.
    pub(crate) fn on(disk: Arc<dyn Disk>, options: StoreOptions, limits: Limits) -> Store {
        Store::new(disk, options, limits, None)
    }

    fn new(disk: Arc<dyn Disk>, options: StoreOptions, limits: Limits, lock: Option<DirLock>) -> Store {
        let data_dir = Arc::new(DataDir::new(disk, options.own_file_bytes_min, lock));
        // An empty payload takes no memory, so it is never spilled.
        let limits = Limits {
            spill_bytes_min: options.spill_bytes_min.max(1),
            events_held_max: options.events_held_max,
            ..limits
        };
        Store { data_dir, options, limits, threading: Threading::CommitterThread, wake: Arc::default() }
    }

    /// Commits when told to, instead of on a thread.
    pub(crate) fn without_committer_thread(self) -> Store {
        Store { threading: Threading::Manual, ..self }
    }

    pub(crate) fn data_dir(&self) -> &Arc<DataDir> {
        &self.data_dir
    }

    pub(crate) fn sync(&self) -> SyncMode {
        self.options.sync
    }

    pub(crate) fn disk(&self) -> Arc<dyn Disk> {
        self.data_dir.disk.clone()
    }

    pub(crate) fn large(&self) -> &Arc<LargePayloads> {
        &self.data_dir.large
    }

    pub(crate) fn checkpoints(&self) -> Checkpoints {
        Checkpoints::new(self.disk(), self.data_dir.backup_gate.clone())
    }

    /// Loads the stored state, and starts the pipeline that commits further changes.
    pub(crate) fn start(&self, now: Timestamp) -> Result<Started, OpenError> {
        let begun = Instant::now();
        let Recovered { mut engine, mut wal, from, checkpoint_bytes, checkpoint_epoch, changes, damaged } =
            self.load(|from, replay| self.open_wal(from, replay))?;
        tracing::info!(
            jobs = engine.memory_report().jobs(),
            checkpoint_bytes,
            replayed_bytes = wal.bytes_since(from),
            replayed_changes = changes,
            seconds = (begun.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            "the stored jobs are loaded"
        );
        self.remove_damaged_checkpoints(&damaged)?;
        self.reconcile_payload_files(&mut engine, checkpoint_epoch)?;
        // A new epoch: a token given out before a crash, and lost from the log, is never given out again.
        let mut effects = Effects::in_bytes();
        engine.begin_epoch(&mut effects);
        // All result streams of the previous process have ended.
        effects.listening = engine.keeps_events();
        let detach_all = Detach { scope: DetachScope::All };
        let _ = engine.execute(now, detach_all.into(), &mut effects);
        wal.append(&effects.take_written().bytes)?;
        wal.sync()?;
        let wal_bytes = wal.bytes_since(from);
        // No epoch comes twice, so neither does the number of a file.
        let first_file = u64::from(engine.epoch()) << 32;
        self.large().begin_epoch(engine.epoch());
        let files = PayloadFiles::new(self.disk(), first_file, self.options.payload_file_bytes);
        let (in_memory, wake) = (self.data_dir.payload_bytes.clone(), self.wake.clone());
        let wake: Wake = Arc::new(move || wake.get().into_iter().for_each(|wake| wake()));
        let memory_bytes_max = self.options.payload_memory_within_limit();
        let (spill, spill_writer) = policy_and_writer(files, memory_bytes_max, in_memory, wake);
        let committer = Committer::new(
            wal,
            self.options.sync,
            self.checkpoints(),
            spill_writer,
            from,
            self.data_dir.timings.clone(),
        );
        let pipeline = WalPipeline::new(
            committer,
            spill,
            self.large().clone(),
            self.threading,
            checkpoint_bytes,
            self.options.checkpoint_bytes_min,
            wal_bytes,
        )?;
        Ok(Started { engine, pipeline: Box::new(pipeline) })
    }

    /// Opens the log for writing. Also returns its end.
    pub(crate) fn open_wal(
        &self,
        from: Position,
        replay: &mut Replay<'_>,
    ) -> Result<(Wal, Position), WalError> {
        let wal = Wal::open(self.disk(), self.options.wal, from, replay)?;
        let end = wal.end();
        Ok((wal, end))
    }

    /// Reads the log and changes nothing. Also returns its end.
    pub(crate) fn survey(
        &self,
        from: Position,
        replay: &mut Replay<'_>,
    ) -> Result<(Extent, Position), WalError> {
        wal::survey(&*self.disk(), from, replay).map(|extent| (extent, extent.end))
    }

    /// Sets how the engine's thread is woken.
    pub(crate) fn wake_by(&self, wake: Wake) {
        let _ = self.wake.set(wake);
    }

    /// Checks that the payload files have every spilled payload, and removes files that are not needed.
    ///
    /// A spill file made in an epoch after the checkpoint is not needed: the log behind the checkpoint has
    /// its payloads. An older one may be needed by the previous checkpoint; the engine takes it for empty, so
    /// it is removed later. The file of a single payload is needed as long as a job refers to it: all that
    /// was replayed is durable, whatever the checkpoint says.
    fn reconcile_payload_files(&self, engine: &mut Engine, checkpoint_epoch: u32) -> Result<(), OpenError> {
        let disk = self.disk();
        let found = files::files_on(&*disk)?;
        for (_, location) in engine.spilled_payloads() {
            let end = u64::from(location.offset) + location.record_bytes();
            if found.get(&location.file).is_none_or(|bytes| *bytes < end) {
                let why = "the file is missing, or ends before".into();
                return Err(UnreadablePayload { location, is_damaged: true, why }.into());
            }
        }
        // A backup may be copying the files, if this recovery follows a failure of the running store.
        let gate = &self.data_dir.backup_gate;
        let no_backup = gate.try_remove().filter(|_| !gate.has_pinned());
        let referenced: BTreeSet<u64> = engine.payload_files().collect();
        for (file, bytes) in found {
            // Written for a batch that the engine has not executed yet.
            if self.large().is_in_flight(file) {
                continue;
            }
            let is_needed = match SpillLocation::is_own_file(file) {
                true => referenced.contains(&file),
                false => file >> 32 <= u64::from(checkpoint_epoch),
            };
            if !is_needed && no_backup.is_some() {
                files::remove_if_there(&*disk, file)?;
            } else {
                engine.found_payload_file(file, files::record_bytes(bytes));
            }
        }
        if no_backup.is_some() {
            // They were removed above. During a backup they are left, and removed later.
            engine.take_released_payload_files();
        }
        Ok(())
    }

    /// Loads a checkpoint into an engine.
    pub(crate) fn restore(&self, mut checkpoint: Checkpoint) -> Result<Engine, OpenError> {
        let place = format!("the checkpoint (file {})", checkpoint.name);
        let damaged = |source: CodecError| OpenError::Damaged { place: place.clone(), source: source.into() };
        let mut part = Vec::new();
        checkpoint.read_part(&mut part)?;
        let mut restoring = Engine::restore(self.limits.clone(), &part).map_err(damaged)?;
        while checkpoint.read_part(&mut part)? {
            restoring.add(&part).map_err(damaged)?;
        }
        Ok(restoring.finish())
    }

    /// Loads the newest checkpoint that is not damaged, and replays the log behind it. `read_wal` also
    /// returns the end of the log.
    ///
    /// A checkpoint stands for a part of the log, and the previous one is kept together with the log from its
    /// position on. So falling back to it loses nothing, as long as the log reaches at least as far as the
    /// damaged one did.
    pub(crate) fn load<L>(
        &self,
        read_wal: impl Fn(Position, &mut Replay<'_>) -> Result<(L, Position), WalError>,
    ) -> Result<Recovered<L>, OpenError> {
        self.load_skipping(0, read_wal)
    }

    /// Like [`load`](Store::load), without the newest `skipped` checkpoints.
    pub(crate) fn load_skipping<L>(
        &self,
        skipped: usize,
        read_wal: impl Fn(Position, &mut Replay<'_>) -> Result<(L, Position), WalError>,
    ) -> Result<Recovered<L>, OpenError> {
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
            // Without a checkpoint, the log must be there from its beginning.
            None if !damaged.is_empty() && !wal::has_beginning(&*self.disk())? => {
                return Err(damaged.remove(0).1);
            }
            None => (Position::default(), Engine::new(self.limits.clone()), 0),
        };
        let checkpoint_epoch = engine.epoch();
        let (engine, wal, changes) = match self.replay(engine, from, newest, read_wal) {
            Ok(replayed) => replayed,
            // The damage of the checkpoint comes first: without it the log would not have been needed so far
            // back.
            Err(error) if error.is_damage() && !damaged.is_empty() => return Err(damaged.remove(0).1),
            Err(error) => return Err(error),
        };
        Ok(Recovered { engine, wal, from, checkpoint_bytes, checkpoint_epoch, changes, damaged })
    }

    /// Applies the log from a position on to an engine. The log must reach at least to `reach`.
    fn replay<L>(
        &self,
        mut engine: Engine,
        from: Position,
        reach: Position,
        read_wal: impl Fn(Position, &mut Replay<'_>) -> Result<(L, Position), WalError>,
    ) -> Result<(Engine, L, u64), OpenError> {
        let (mut wrong, mut changes) = (None, 0);
        let (wal, end) = read_wal(from, &mut |position, body| {
            // A batch builds on all batches before it.
            if changes == 0 && from == Position::default() && position.segment != 1 {
                return Err(WalError::damaged(1, 0, "the segment is missing, and so is a checkpoint"));
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
            return Err(WalError::damaged(end.segment, end.offset, why).into());
        }
        match wrong {
            Some(wrong) => Err(wrong),
            None => Ok((engine, wal, changes)),
        }
    }

    /// Logs which checkpoints were damaged, and removes them: the state was loaded without them, and the
    /// payload files that only they refer to are about to be removed.
    fn remove_damaged_checkpoints(&self, damaged: &[(String, OpenError)]) -> Result<(), OpenError> {
        if damaged.is_empty() {
            return Ok(());
        }
        for (file, error) in damaged {
            tracing::warn!(file, %error, "opened without a damaged checkpoint; nothing is lost");
        }
        // A running backup fails by itself, and the next opening removes them.
        if let Some(_no_backup) = self.data_dir.backup_gate.try_remove() {
            let disk = self.disk();
            damaged.iter().try_for_each(|(file, _)| disk.remove(file))?;
            disk.sync_directory()?;
        }
        Ok(())
    }
}
