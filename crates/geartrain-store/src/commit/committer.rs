//! Group commit: append several commit groups to the write-ahead log, one fdatasync for all, then release the
//! replies.
//!
//! The committer also writes checkpoints and installs them by a background task, and writes spilled payloads
//! when no reply waits.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use flume::Sender;
use geartrain_core::engine::SpillTask;

use crate::backup::DISK_FULL;
use crate::checkpoint::{CheckpointWriter, Checkpoints, writer_panicked};
use crate::data_dir::CommitTimings;
use crate::error::StoreError;
use crate::options::SyncMode;
use crate::publish::{Publication, Publisher};
use crate::spill::fetch::fetch;
use crate::spill::files;
use crate::spill::policy::SpillWriter;
use crate::subscribers::Subscribers;
use crate::wal::{BackgroundTask, Position, ReleasedSegments, Wal, WalError, is_full};

/// The changes of some commands, and what is published once they are committed.
#[derive(Default)]
pub(crate) struct CommitGroup {
    /// The encoded changes; empty if there were none.
    pub(crate) body: Vec<u8>,
    pub(crate) publication: Publication,
    /// A part of a snapshot that was begun before these changes, or earlier.
    pub(crate) snapshot: Option<SnapshotPart>,
    pub(crate) ack: AckPoint,
    /// Payloads to spill once everything else is done.
    pub(crate) spills: Option<Vec<SpillTask>>,
    /// Payload files that no job refers to after these changes.
    pub(crate) released_files: Vec<u64>,
}

/// When the replies of a commit group may go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum AckPoint {
    /// Once the group is written: its changes concern only ephemeral jobs, which a crash would remove anyway.
    Written,
    /// Once the group is synced, as the sync mode says.
    #[default]
    Synced,
}

/// A part of a snapshot.
pub(crate) struct SnapshotPart {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_head: bool,
    pub(crate) is_last: bool,
    /// Payload files that were empty before the snapshot was begun.
    pub(crate) empty_files: Vec<u64>,
    /// Expected length of the whole snapshot.
    pub(crate) bytes_expected: u64,
}

#[expect(
    clippy::large_enum_variant,
    reason = "nearly every request is a group, and a box would cost each an allocation"
)]
pub(crate) enum CommitRequest {
    Write(CommitGroup),
    /// Reserve this many bytes of the log, and reply whether they fit.
    Reserve {
        bytes: usize,
        purpose: ReservationPurpose,
        slot: Sender<Result<(), StoreError>>,
    },
}

/// Which commands a reservation in the log is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReservationPurpose {
    /// Commands that may add data. They leave a part of the log to freeing commands, and this much of the
    /// disk to the next checkpoint.
    Ordinary { checkpoint_reserve_bytes: u64 },
    /// Commands that free space, now or by what follows from them.
    Freeing,
}

/// How much the log may grow while a checkpoint is being installed, which is when the disk holds the most.
const INSTALLING_WAL_BYTES_MAX: u64 = 4 << 20;

/// Pause before another attempt to remove files, if a removal or a backup was running.
const REMOVE_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// How far the next checkpoint is.
enum CheckpointState {
    Idle,
    Writing(CheckpointWriter),
    /// Complete, but not installed yet.
    Sealed(CheckpointWriter),
    Installing {
        task: BackgroundTask<io::Result<InstallOutcome>>,
        /// How long the log was when the installation began.
        wal_bytes_at_start: u64,
    },
}

enum InstallOutcome {
    Installed {
        position: Position,
        released: ReleasedSegments,
        /// Payload files that only the previous checkpoint referred to.
        removed: Vec<u64>,
    },
    /// A backup is copying files that the checkpoint would release.
    Postponed(CheckpointWriter),
}

/// Writes commit groups to the log and publishes them.
pub(crate) struct Committer {
    wal: Wal,
    sync_mode: SyncMode,
    publisher: Publisher,
    checkpoints: Checkpoints,
    spill_writer: SpillWriter,
    /// Position of the installed checkpoint; zero if there is none. It becomes the one to fall back to.
    installed: Position,
    checkpoint: CheckpointState,
    /// Since when the log holds batches that must be synced and are not.
    unsynced_since: Option<Instant>,
    /// Payload files to remove once the log is synced. The removal hands them back if a backup is running.
    released_files: Vec<u64>,
    removal: Option<BackgroundTask<Vec<u64>>>,
    /// Why nothing is acknowledged any more.
    failure: Arc<OnceLock<StoreError>>,
    timings: Arc<CommitTimings>,
    /// Whether something was written since the last commit began.
    has_written: bool,
}

impl Committer {
    /// `installed` is the position of the installed checkpoint: it stands for all of the log before.
    pub(crate) fn new(
        wal: Wal,
        sync_mode: SyncMode,
        checkpoints: Checkpoints,
        spill_writer: SpillWriter,
        installed: Position,
        timings: Arc<CommitTimings>,
    ) -> Committer {
        Committer {
            wal,
            sync_mode,
            publisher: Publisher::default(),
            checkpoints,
            spill_writer,
            installed,
            checkpoint: CheckpointState::Idle,
            unsynced_since: None,
            released_files: Vec::new(),
            removal: None,
            failure: Arc::default(),
            timings,
            has_written: false,
        }
    }

    /// Where the committer stores its first failure.
    pub(crate) fn failure(&self) -> Arc<OnceLock<StoreError>> {
        self.failure.clone()
    }

    /// Appends all groups, syncs once if a sync is due, and publishes. Spills payloads afterwards.
    pub(crate) fn process(&mut self, requests: impl IntoIterator<Item = CommitRequest>, stop: bool) {
        let (mut publications, mut spills) = (Vec::new(), Vec::new());
        let begun = Instant::now();
        for request in requests {
            match request {
                CommitRequest::Write(mut group) => {
                    spills.extend(group.spills.take());
                    self.released_files.append(&mut group.released_files);
                    let publication = self.append_group(group);
                    // With no unsynced batch before it, a publication need not wait for the sync.
                    if self.unsynced_since.is_none() && self.failure.get().is_none() {
                        publication.publish(&mut self.publisher);
                    } else {
                        publications.push(publication);
                    }
                }
                CommitRequest::Reserve { bytes, purpose, slot } => {
                    drop(slot.send(self.reserve(bytes, purpose)));
                }
            }
        }
        let is_sync_due = stop || self.sync_in().is_some_and(|wait| wait.is_zero());
        if is_sync_due && let Err(failure) = self.sync() {
            self.fail(failure);
        }
        if std::mem::take(&mut self.has_written) {
            self.timings.commit.record(begun.elapsed());
        }
        // Everything is synced and acknowledged either way; without the mark a bad last batch would only look
        // like a torn tail.
        if stop
            && self.failure.get().is_none()
            && let Err(error) = self.wal.close()
        {
            tracing::warn!(%error, "the log could not be marked as closed");
        }
        for publication in publications {
            // After a failed sync it is unknown what is durable, so nothing is acknowledged.
            match self.failure.get() {
                None => publication.publish(&mut self.publisher),
                Some(failure) => publication.cancel(failure),
            }
        }
        spills.into_iter().for_each(|spills| self.write_spills(spills));
        self.remove_released_files();
    }

    /// Removes released payload files by a background task. The changes that released them are durable
    /// before: otherwise a power cut could bring the job back without its payload.
    fn remove_released_files(&mut self) {
        if self.removal.as_ref().is_some_and(BackgroundTask::is_done)
            && let Some(not_removed) = self.removal.take().and_then(BackgroundTask::join)
        {
            self.released_files.extend(not_removed);
        }
        if self.released_files.is_empty() || self.removal.is_some() || self.failure.get().is_some() {
            return;
        }
        if let Err(error) = self.wal.sync() {
            return self.fail(error.into());
        }
        let (to_remove, checkpoints) = (std::mem::take(&mut self.released_files), self.checkpoints.clone());
        self.removal = Some(BackgroundTask::new(&*self.checkpoints.disk, move || {
            // A backup may be about to copy them.
            let Some(_no_backup) = checkpoints.backup_gate.try_remove() else { return to_remove };
            let (to_remove, pinned) = checkpoints.backup_gate.split_pinned(to_remove);
            for file in to_remove {
                // A file that cannot be removed is found when the directory is opened.
                let _ = files::remove_if_there(&*checkpoints.disk, file);
            }
            pinned
        }));
    }

    /// Whether the engine's thread may commit inline: not if a later sync needs the committer thread's timer.
    pub(crate) fn can_commit_inline(&self) -> bool {
        !matches!(self.sync_mode, SyncMode::Every(_))
    }

    /// Leaves large payloads of replies to a thread of their own.
    pub(crate) fn defer_large_reads(&mut self) {
        self.spill_writer.files.reader.defers_large = true;
    }

    pub(crate) fn never_syncs(&self) -> bool {
        matches!(self.sync_mode, SyncMode::Never)
    }

    pub(crate) fn set_subscribers(&mut self, subscribers: Subscribers) {
        self.publisher.subscribers = subscribers;
    }

    /// Drops everything but the subscribers.
    pub(crate) fn into_subscribers(self) -> Subscribers {
        self.publisher.subscribers
    }

    /// Appends a group to the log. If that fails, nothing is acknowledged from then on.
    fn append_group(&mut self, group: CommitGroup) -> Publication {
        let CommitGroup { body, mut publication, snapshot, ack, spills: _, released_files: _ } = group;
        // First, because installing a checkpoint may remove the file that a payload is in.
        if publication.has_spilled {
            fetch(&mut publication, &mut self.spill_writer.files.reader);
        }
        if self.failure.get().is_none()
            && let Err(failure) = self.try_append(&body, snapshot, ack)
        {
            self.fail(failure);
        }
        publication
    }

    /// Spills payloads. A failure other than a full disk is as bad as a failure of the log.
    fn write_spills(&mut self, spills: Vec<SpillTask>) {
        if self.failure.get().is_none()
            && let Err(error) = self.spill_writer.write(spills)
        {
            self.fail(error.into());
        }
    }

    fn fail(&mut self, failure: StoreError) {
        if failure.is_full() {
            self.cancel_backup();
        }
        // Only the first failure is the cause.
        let _ = self.failure.set(failure);
        self.close_result_streams();
    }

    /// Ends all result streams: their next items may not be durable, so their clients must ask again.
    pub(crate) fn close_result_streams(&mut self) {
        self.publisher.result_streams.close();
    }

    fn try_append(
        &mut self,
        body: &[u8],
        snapshot: Option<SnapshotPart>,
        ack: AckPoint,
    ) -> Result<(), StoreError> {
        self.advance_checkpoint(snapshot, !body.is_empty())?;
        if !body.is_empty() {
            self.wal.append(body)?;
            self.has_written = true;
            if ack == AckPoint::Synced {
                self.unsynced_since.get_or_insert_with(Instant::now);
            }
        }
        Ok(())
    }

    /// Takes the checkpoint one step further. `wal_grows` says whether a batch is about to be appended.
    fn advance_checkpoint(&mut self, part: Option<SnapshotPart>, wal_grows: bool) -> Result<(), StoreError> {
        if let CheckpointState::Installing { task, wal_bytes_at_start } = &self.checkpoint {
            // The next checkpoint waits for this one, and so does a log that would grow too much meanwhile.
            let is_next = part.as_ref().is_some_and(|part| part.is_head);
            let is_too_long =
                || wal_grows && self.wal.used_bytes() > wal_bytes_at_start + INSTALLING_WAL_BYTES_MAX;
            if task.is_done() || is_next || is_too_long() {
                self.finish_install()?;
            }
        }
        let advanced = part.map_or(Ok(()), |part| self.add_snapshot_part(part));
        let advanced = advanced.and_then(|()| self.install_checkpoint());
        self.abandon_if_full(advanced)
    }

    /// Without space for a checkpoint there is none this time: the log has everything, and may have space
    /// yet.
    fn abandon_if_full(&mut self, result: io::Result<()>) -> Result<(), StoreError> {
        match result {
            Err(error) if is_full(&error) => {
                self.checkpoint = CheckpointState::Idle;
                self.checkpoints.remove_unfinished()?;
                // Make space for the next one.
                self.drop_previous_checkpoint()?;
                Ok(())
            }
            result => Ok(result?),
        }
    }

    fn add_snapshot_part(&mut self, part: SnapshotPart) -> io::Result<()> {
        if part.is_head {
            self.checkpoint = CheckpointState::Idle;
            self.spill_writer.files.mark_empty(part.empty_files);
            if self.checkpoints.disk.free_bytes()?.is_some_and(|free| free < part.bytes_expected) {
                self.wal.remove_spares().map_err(io::Error::other)?;
            }
            // The snapshot shows exactly the changes before this position of the log.
            self.checkpoint = CheckpointState::Writing(self.checkpoints.begin(self.wal.end())?);
        }
        let CheckpointState::Writing(writer) = &mut self.checkpoint else { return Ok(()) };
        writer.write(&part.bytes)?;
        if part.is_last
            && let CheckpointState::Writing(writer) =
                std::mem::replace(&mut self.checkpoint, CheckpointState::Idle)
        {
            self.checkpoint = CheckpointState::Sealed(writer);
        }
        Ok(())
    }

    /// Checkpoint install: installs a complete checkpoint by a background task and releases the segments and
    /// files it replaces. Postponed while a backup runs.
    fn install_checkpoint(&mut self) -> io::Result<()> {
        let gate = &self.checkpoints.backup_gate;
        if !matches!(self.checkpoint, CheckpointState::Sealed(_)) || gate.try_remove().is_none() {
            return Ok(());
        }
        let sealed = std::mem::replace(&mut self.checkpoint, CheckpointState::Idle);
        let CheckpointState::Sealed(writer) = sealed else { return Ok(()) };
        // The log must not end before the position it is to be read from.
        self.wal.sync().map_err(io::Error::other)?;
        // The segments that hold the same payloads are about to go.
        self.spill_writer.files.sync()?;
        // The previous checkpoint stays to fall back to, with all that it needs.
        let previous = self.installed;
        let (release, leaving) = (self.wal.begin_release(previous), self.spill_writer.files.leaving());
        let checkpoints = self.checkpoints.clone();
        let wal_bytes_at_start = self.wal.used_bytes();
        let task = BackgroundTask::new(&*self.checkpoints.disk, move || {
            // Held until all is done. A backup may have begun since the check above.
            let Some(_no_backup) = checkpoints.backup_gate.try_remove() else {
                return Ok(InstallOutcome::Postponed(writer));
            };
            let position = writer.position;
            checkpoints.install(writer, previous)?;
            // Pinned files are left to the next installation.
            let (removed, _) = checkpoints.backup_gate.split_pinned(leaving);
            files::remove(&*checkpoints.disk, &removed).map_err(io::Error::other)?;
            let released = release.run(&*checkpoints.disk);
            Ok(InstallOutcome::Installed { position, released, removed })
        });
        self.checkpoint = CheckpointState::Installing { task, wal_bytes_at_start };
        Ok(())
    }

    /// Waits for a running installation, and takes note of what it released.
    fn finish_install(&mut self) -> Result<(), StoreError> {
        let state = std::mem::replace(&mut self.checkpoint, CheckpointState::Idle);
        let CheckpointState::Installing { task, .. } = state else {
            self.checkpoint = state;
            return Ok(());
        };
        let mut released = ReleasedSegments::default();
        let result = match task.join().unwrap_or_else(|| Err(writer_panicked())) {
            Ok(InstallOutcome::Installed { position, released: by_it, removed }) => {
                self.spill_writer.files.forget_leaving(&removed);
                self.spill_writer.files.checkpoint_installed();
                self.installed = position;
                released = by_it;
                Ok(())
            }
            Ok(InstallOutcome::Postponed(writer)) => {
                self.checkpoint = CheckpointState::Sealed(writer);
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.wal.finish_release(released)?;
        self.abandon_if_full(result)
    }

    fn is_installing(&self) -> bool {
        matches!(self.checkpoint, CheckpointState::Installing { .. })
    }

    /// On a full disk, removes the previous checkpoint and all that only it needs. Returns whether that freed
    /// anything.
    fn drop_previous_checkpoint(&mut self) -> Result<bool, WalError> {
        if self.is_installing() {
            return Ok(false);
        }
        let gate = &self.checkpoints.backup_gate;
        let Some(_no_backup) = gate.try_remove() else { return Ok(false) };
        let before = self.wal.used_bytes();
        let disk = &*self.checkpoints.disk;
        let others = self.checkpoints.names()?.len() > 1;
        let (leaving, _) = gate.split_pinned(self.spill_writer.files.leaving());
        if others {
            self.checkpoints.remove_all_but(&[self.installed])?;
            // A crash must not bring it back without the log behind it.
            disk.sync_directory().map_err(WalError::Io)?;
        }
        files::remove(disk, &leaving)?;
        self.spill_writer.files.forget_leaving(&leaving);
        self.wal.release(self.installed)?;
        Ok(others || !leaving.is_empty() || self.wal.used_bytes() < before)
    }

    /// Like [`finish_install`](Self::finish_install), for a caller that does not report the failure itself.
    fn finish_install_or_fail(&mut self) -> Result<(), StoreError> {
        let finished = self.finish_install();
        if let Err(failure) = &finished {
            self.fail(failure.clone());
        }
        finished
    }

    pub(crate) fn reserve(&mut self, bytes: usize, purpose: ReservationPurpose) -> Result<(), StoreError> {
        if let Some(failure) = self.failure.get() {
            return Err(failure.clone());
        }
        let reserved = self.reserve_or_wait(bytes, purpose);
        // Unless the disk is only full, nothing can be written before the store has recovered.
        if let Err(failure) = &reserved
            && self.wal.is_broken()
        {
            self.fail(failure.clone());
        }
        reserved
    }

    /// Waits for a checkpoint install only if there is no space without it, or if making a segment would take
    /// longer.
    fn reserve_or_wait(&mut self, bytes: usize, purpose: ReservationPurpose) -> Result<(), StoreError> {
        if self.wal.is_about_to_have(bytes) {
            self.finish_install_or_fail()?;
        }
        match self.try_reserve(bytes, purpose) {
            Err(WalError::Full) => {
                if self.is_installing() {
                    self.finish_install_or_fail()?;
                }
                self.cancel_backup();
                match self.try_reserve(bytes, purpose) {
                    Err(WalError::Full) if self.drop_previous_checkpoint()? => {
                        Ok(self.try_reserve(bytes, purpose)?)
                    }
                    reserved => Ok(reserved?),
                }
            }
            reserved => Ok(reserved?),
        }
    }

    /// On a full disk, cancels a running backup: the files that it pins are worth more as free space.
    fn cancel_backup(&self) {
        self.checkpoints.backup_gate.cancel(DISK_FULL);
    }

    fn try_reserve(&mut self, bytes: usize, purpose: ReservationPurpose) -> Result<(), WalError> {
        let ReservationPurpose::Ordinary { checkpoint_reserve_bytes } = purpose else {
            return self.wal.reserve(bytes);
        };
        // First, because a new spare segment would use up the space that the checkpoint needs. The reserved
        // bytes may be in that checkpoint too.
        let (surplus, missing) = self.wal.surplus_and_missing_bytes();
        let wanted = checkpoint_reserve_bytes.saturating_add(bytes as u64).saturating_add(missing);
        match self.checkpoints.disk.free_bytes()? {
            Some(free) if free.saturating_add(surplus) < wanted => Err(WalError::Full),
            _ => self.wal.reserve_ordinary(bytes),
        }
    }

    /// How long until there is work without a request: a sync is due, or files wait to be removed.
    pub(crate) fn wake_in(&self) -> Option<Duration> {
        let remove_in = (!self.released_files.is_empty()).then_some(REMOVE_RETRY_PAUSE);
        self.sync_in().into_iter().chain(remove_in).min()
    }

    /// How long until the log must be synced; `None` if nothing is unsynced, or no sync is required.
    pub(crate) fn sync_in(&self) -> Option<Duration> {
        let since = self.unsynced_since?;
        match self.sync_mode {
            SyncMode::Always => Some(Duration::ZERO),
            SyncMode::Every(interval) => Some(interval.saturating_sub(since.elapsed())),
            SyncMode::Never => None,
        }
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if self.unsynced_since.take().is_some() && self.failure.get().is_none() {
            let begun = Instant::now();
            self.wal.sync()?;
            self.timings.sync.record(begun.elapsed());
        }
        Ok(())
    }
}
