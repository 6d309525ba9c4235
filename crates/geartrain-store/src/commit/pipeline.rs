//! The commit pipeline: the engine's side of group commit.
//!
//! Takes the effects of executed commands, holds the log reservation, takes snapshots in small parts, defers
//! the changes of ephemeral jobs, and submits commit groups to the queue. Without a data directory it
//! publishes at once.

use std::io;
use std::sync::Arc;

use flume::{Receiver, WeakSender};
use geartrain_core::Timestamp;
use geartrain_core::engine::{Effects, Engine, Written};

use crate::commit::committer::{AckPoint, CommitGroup, Committer, ReservationPurpose, SnapshotPart};
use crate::commit::queue::{CommitQueue, SubmitMode, Threading};
use crate::engine_loop::{Envelope, Message};
use crate::error::StoreError;
use crate::inline_exec::InlineClass;
use crate::publish::{PendingReply, Publication, Publisher};
use crate::recovery::{Started, Store};
use crate::spill::large::LargePayloads;
use crate::spill::policy::SpillPolicy;
use crate::subscribers::Subscribers;
use crate::wal;

/// Jobs added to a snapshot per step.
const SNAPSHOT_STEP_JOBS: usize = 64;
/// A snapshot grows this many times as fast as the log, so that the log does not grow much meanwhile.
const SNAPSHOT_PACE: usize = 4;
/// Snapshot bytes per commit group, at least and at most: no reply should wait long for them.
const SNAPSHOT_PART_BYTES: (usize, usize) = (64 << 10, 16 << 20);
/// On a full disk, how much a snapshot must free to be worth taking.
const FULL_GAIN_BYTES_MIN: u64 = 64 << 10;
/// Bytes a checkpoint may need beyond the estimate.
const CHECKPOINT_SLACK_BYTES: u64 = 64 << 10;
/// Bytes per reservation.
const RESERVATION_BYTES: usize = 4 << 20;
/// Bytes of changes that may be deferred, at most.
const DEFERRED_BYTES_MAX: usize = 64 << 10;
/// Bytes a batch takes in the log besides its body, at most.
const BATCH_OVERHEAD_BYTES: usize = 8 << 10;

/// Where the effects of commands go.
pub(crate) enum CommitPipeline {
    /// Nothing is stored; effects are published at once.
    Volatile(Publisher),
    /// Effects are published once they are in the write-ahead log.
    Wal {
        /// Dropped first: the directory stays locked until the last write is done.
        pipeline: Box<WalPipeline>,
        store: Store,
    },
}

impl CommitPipeline {
    /// Lets the committer wake the engine's thread after a spill.
    pub(crate) fn wake_engine_through(&self, inbox: WeakSender<Envelope>) {
        if let CommitPipeline::Wal { store, .. } = self {
            // If the inbox is full the engine is awake, and looks for spill reports when it has read it.
            store.wake_by(Arc::new(move || {
                inbox.upgrade().into_iter().for_each(|inbox| drop(inbox.try_send(Message::Wake.into())));
            }));
        }
    }

    /// Effects in the form that this pipeline commits.
    pub(crate) fn new_effects(&self) -> Effects {
        match self {
            CommitPipeline::Volatile(_) => Effects::default(),
            CommitPipeline::Wal { .. } => Effects::in_bytes(),
        }
    }

    /// Commits the effects since the last call, then publishes them and sends the replies.
    pub(crate) fn commit(
        &mut self,
        effects: &mut Effects,
        replies: Vec<PendingReply>,
        engine: &mut Engine,
        mode: SubmitMode,
    ) {
        let is_deferred = match self {
            CommitPipeline::Volatile(_) => false,
            CommitPipeline::Wal { pipeline, .. } => pipeline.defer_ephemeral(effects, engine),
        };
        let written = if is_deferred { Written::default() } else { effects.take_written() };
        effects.deltas.clear();
        let has_spilled = std::mem::take(&mut effects.any_spilled);
        let events = std::mem::take(&mut effects.events);
        let last_position = if events.is_empty() { 0 } else { engine.event_position() };
        let deliveries = std::mem::take(&mut effects.deliveries);
        let publication =
            Publication { events, last_position, deliveries, replies, has_spilled, unread: Vec::new() };
        match self {
            CommitPipeline::Volatile(publisher) => publication.publish(publisher),
            CommitPipeline::Wal { pipeline, .. } if is_deferred => pipeline.queue.publish_now(publication),
            CommitPipeline::Wal { pipeline, .. } => pipeline.commit(written, publication, engine, mode),
        }
    }

    /// Waits until all queued groups are committed and published.
    pub(crate) fn flush(&mut self) {
        if let CommitPipeline::Wal { pipeline, .. } = self {
            // A reservation is answered behind all queued groups. After a failure there is nothing to wait for.
            let _ = pipeline.queue.reserve(0, ReservationPurpose::Freeing);
        }
    }

    /// Reserves log space before commands are executed.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), StoreError> {
        match self {
            CommitPipeline::Volatile(_) => Ok(()),
            CommitPipeline::Wal { pipeline, .. } => pipeline.reserve(bytes),
        }
    }

    /// Reserves log space for commands that free space: on a full disk some is held back for them.
    pub(crate) fn reserve_freeing(&mut self, bytes: usize) -> Result<(), StoreError> {
        match self {
            CommitPipeline::Volatile(_) => Ok(()),
            CommitPipeline::Wal { pipeline, .. } => pipeline.reserve_freeing(bytes),
        }
    }

    pub(crate) fn is_volatile(&self) -> bool {
        matches!(self, CommitPipeline::Volatile(_))
    }

    /// Whether a batch executed inline can be committed without waiting for a reservation or a queue place.
    pub(crate) fn can_commit_now(&mut self, bytes: usize, class: InlineClass) -> bool {
        match self {
            CommitPipeline::Volatile(_) => true,
            CommitPipeline::Wal { pipeline, .. } => pipeline.can_commit_now(bytes, class),
        }
    }

    /// Why nothing is acknowledged any more, if the committer has failed.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        match self {
            CommitPipeline::Volatile(_) => None,
            CommitPipeline::Wal { pipeline, .. } => pipeline.queue.failure().cloned(),
        }
    }

    /// After a failure, reads the data directory again, because the engine may know more than is durable.
    /// Returns the recovered engine. Subscribers receive the events that turned out to be durable; result
    /// streams have ended.
    pub(crate) fn recover(&mut self, now: Timestamp, failure: StoreError) -> Result<Engine, StoreError> {
        let CommitPipeline::Wal { store, pipeline } = self else { return Err(failure) };
        // Queued groups are answered with the failure.
        pipeline.queue.commit_queued(usize::MAX);
        if let Some(subscribers) = pipeline.queue.stop() {
            pipeline.subscribers = subscribers;
        }
        let Started { engine, pipeline: mut started } = store.start(now).map_err(|_| failure)?;
        pipeline.subscribers.catch_up(|position| engine.events_after(position));
        started.queue.set_subscribers(std::mem::take(&mut pipeline.subscribers));
        *pipeline = started;
        Ok(engine)
    }

    /// Without a committer thread, commits this many of the queued groups.
    pub(crate) fn commit_queued(&mut self, groups: usize) {
        if let CommitPipeline::Wal { pipeline, .. } = self {
            pipeline.queue.commit_queued(groups);
        }
    }

    /// Whether a snapshot is being taken, which must not wait for the next command.
    pub(crate) fn is_snapshotting(&self) -> bool {
        matches!(self, CommitPipeline::Wal { pipeline, .. } if pipeline.snapshot_progress.is_some())
    }
}

/// A reservation that was requested ahead of time.
struct PendingReservation {
    reply: Receiver<Result<(), StoreError>>,
    /// Bytes used before the reply arrived.
    used: usize,
}

/// The engine's side of the write-ahead log.
pub(crate) struct WalPipeline {
    queue: CommitQueue,
    /// Bytes that surely fit into the log.
    reserved_bytes: usize,
    /// The same for commands that free space; what it has more comes from the space held back for them.
    reserved_freeing_bytes: usize,
    /// The last reservation failed because the disk is full.
    is_disk_full: bool,
    /// Disk space to leave free for the next checkpoint.
    checkpoint_reserve_bytes: u64,
    large: Arc<LargePayloads>,
    pending_reservation: Option<PendingReservation>,
    /// Bytes of deferred changes, to be written with the next group.
    deferred_bytes: usize,
    /// Bytes logged since the last snapshot was begun.
    wal_bytes_since_snapshot: u64,
    /// Bytes of the payload files that were empty when the last snapshot was begun. They are removed when the
    /// next checkpoint is installed.
    leaving_file_bytes: u64,
    last_snapshot_bytes: u64,
    snapshot_bytes_min: u64,
    /// Bytes so far of the snapshot that is being taken.
    snapshot_progress: Option<u64>,
    spill: SpillPolicy,
    /// Holds the subscribers while there is no committer.
    subscribers: Subscribers,
}

impl WalPipeline {
    /// `wal_bytes` is the length of the log behind the last snapshot.
    pub(crate) fn new(
        committer: Committer,
        spill: SpillPolicy,
        large: Arc<LargePayloads>,
        threading: Threading,
        last_snapshot_bytes: u64,
        snapshot_bytes_min: u64,
        wal_bytes: u64,
    ) -> io::Result<WalPipeline> {
        Ok(WalPipeline {
            queue: CommitQueue::new(committer, threading)?,
            reserved_bytes: 0,
            reserved_freeing_bytes: 0,
            is_disk_full: false,
            checkpoint_reserve_bytes: 0,
            large,
            pending_reservation: None,
            deferred_bytes: 0,
            wal_bytes_since_snapshot: wal_bytes,
            leaving_file_bytes: 0,
            last_snapshot_bytes,
            snapshot_bytes_min,
            snapshot_progress: None,
            spill,
            subscribers: Subscribers::default(),
        })
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), StoreError> {
        if bytes == 0 {
            return Ok(());
        }
        self.poll_reservation();
        let bytes = bytes + BATCH_OVERHEAD_BYTES;
        if bytes > self.reserved_bytes {
            // More than needed, so that not every call needs a reservation; on a nearly full disk only what
            // is needed.
            let ample = bytes.max(RESERVATION_BYTES);
            let reserved = match self.reserve_ordinary(ample) {
                Err(_) if ample > bytes => self.reserve_ordinary(bytes),
                reserved => reserved,
            };
            self.is_disk_full = matches!(&reserved, Err(failure) if failure.is_full());
            self.reserved_bytes = reserved?;
        }
        Ok(())
    }

    fn reserve_freeing(&mut self, bytes: usize) -> Result<(), StoreError> {
        let bytes = bytes + BATCH_OVERHEAD_BYTES;
        if bytes > self.reserved_bytes.max(self.reserved_freeing_bytes) {
            self.queue.reserve(bytes, ReservationPurpose::Freeing)?;
            self.reserved_freeing_bytes = bytes;
        }
        Ok(())
    }

    /// Whether these changes may be acknowledged before they are written, and be written with the next group:
    /// they concern only ephemeral jobs, which a crash would remove anyway. Their publication must not
    /// overtake a pending group, and what a snapshot shows must be in the log before it.
    fn defer_ephemeral(&mut self, effects: &Effects, engine: &Engine) -> bool {
        let Some(written) = &effects.written else { return false };
        let may_defer = !written.must_be_logged
            && !written.bytes.is_empty()
            && written.bytes.len() <= DEFERRED_BYTES_MAX
            && !effects.any_spilled
            && !engine.keeps_events()
            && self.snapshot_progress.is_none()
            && self.queue.may_publish_now();
        if may_defer {
            self.consume_reservation(written.bytes.len() - self.deferred_bytes);
            self.deferred_bytes = written.bytes.len();
        }
        may_defer
    }

    fn can_commit_now(&mut self, bytes: usize, class: InlineClass) -> bool {
        if class == InlineClass::Bulk {
            self.poll_reservation();
        }
        let is_free = match class {
            InlineClass::Small => self.queue.is_idle() && self.snapshot_progress.is_none(),
            InlineClass::Bulk => self.queue.has_capacity(),
        };
        is_free && self.queue.failure().is_none() && bytes + BATCH_OVERHEAD_BYTES <= self.reserved_bytes
    }

    /// Requests the next reservation before the current one is used up, so that no command waits for it.
    fn poll_reservation(&mut self) {
        match &self.pending_reservation {
            None if self.reserved_bytes < RESERVATION_BYTES / 2 => {
                let reply = self.queue.request_reservation(RESERVATION_BYTES, self.ordinary());
                self.pending_reservation = reply.map(|reply| PendingReservation { reply, used: 0 });
            }
            Some(PendingReservation { reply, used }) if let Ok(reply) = reply.try_recv() => {
                if reply.is_ok() {
                    self.reserved_bytes = self.reserved_bytes.max(RESERVATION_BYTES.saturating_sub(*used));
                }
                self.pending_reservation = None;
            }
            _ => {}
        }
    }

    fn consume_reservation(&mut self, bytes: usize) {
        self.reserved_bytes = self.reserved_bytes.saturating_sub(bytes);
        self.reserved_freeing_bytes = self.reserved_freeing_bytes.saturating_sub(bytes);
        self.pending_reservation.iter_mut().for_each(|pending| pending.used += bytes);
    }

    fn reserve_ordinary(&mut self, bytes: usize) -> Result<usize, StoreError> {
        self.queue.reserve(bytes, self.ordinary())?;
        Ok(bytes)
    }

    fn ordinary(&self) -> ReservationPurpose {
        ReservationPurpose::Ordinary { checkpoint_reserve_bytes: self.checkpoint_reserve_bytes }
    }

    /// Updates how much of the disk must stay free for the next checkpoint: without one the log never gets
    /// shorter.
    fn update_checkpoint_reserve(&mut self, engine: &Engine) {
        let written = self.snapshot_progress.unwrap_or_default();
        self.checkpoint_reserve_bytes =
            (engine.snapshot_bytes_estimate() + CHECKPOINT_SLACK_BYTES).saturating_sub(written);
        self.large.reserve_for_checkpoint(self.checkpoint_reserve_bytes);
    }

    fn commit(&mut self, written: Written, publication: Publication, engine: &mut Engine, mode: SubmitMode) {
        let Written { bytes: body, must_be_synced, .. } = written;
        if !body.is_empty() {
            self.consume_reservation(body.len() + BATCH_OVERHEAD_BYTES - self.deferred_bytes);
            self.deferred_bytes = 0;
            self.wal_bytes_since_snapshot += wal::padded(body.len()) as u64;
        }
        // A group acknowledged when written may depend on earlier groups. Those are acknowledged before it:
        // groups are written and published in order.
        let ack = if must_be_synced { AckPoint::Synced } else { AckPoint::Written };
        let snapshot = self.continue_snapshot(engine, body.len());
        self.update_checkpoint_reserve(engine);
        let spills = self.spill.step(engine, body.len());
        let released_files = engine.take_released_payload_files();
        let has_other_work = snapshot.is_some() || spills.is_some() || !released_files.is_empty();
        if has_other_work || !(body.is_empty() && publication.is_empty()) {
            // No reply depends on spills or on the removal of files, and the next caller should not wait for
            // them.
            let inline = mode.inline && spills.is_none() && released_files.is_empty();
            let mode = SubmitMode { inline, ..mode };
            self.queue.submit(CommitGroup { body, publication, snapshot, ack, spills, released_files }, mode);
        }
        // The next group is the first that the snapshot does not show.
        if self.snapshot_progress.is_none() && self.is_snapshot_due(engine) {
            let mut bytes = Vec::new();
            // Taken before the snapshot is begun, so it does not refer to them.
            self.leaving_file_bytes = engine.empty_payload_file_bytes();
            let empty_files = engine.take_empty_payload_files();
            engine.begin_snapshot(&mut bytes);
            self.snapshot_progress = Some(bytes.len() as u64);
            self.wal_bytes_since_snapshot = 0;
            let bytes_expected = engine.snapshot_bytes_estimate();
            let head = SnapshotPart { bytes, is_head: true, is_last: false, empty_files, bytes_expected };
            let group =
                CommitGroup { snapshot: Some(head), ack: AckPoint::Written, ..CommitGroup::default() };
            self.queue.submit(group, SubmitMode { inline: false, ..mode });
        }
    }

    fn continue_snapshot(&mut self, engine: &mut Engine, logged_bytes: usize) -> Option<SnapshotPart> {
        let so_far = self.snapshot_progress.as_mut()?;
        let wanted = (SNAPSHOT_PACE * logged_bytes).clamp(SNAPSHOT_PART_BYTES.0, SNAPSHOT_PART_BYTES.1);
        let mut bytes = Vec::with_capacity(wanted);
        let mut is_last = false;
        while !is_last && bytes.len() < wanted {
            is_last = engine.continue_snapshot(SNAPSHOT_STEP_JOBS, &mut bytes);
        }
        *so_far += bytes.len() as u64;
        if is_last {
            self.last_snapshot_bytes = *so_far;
            self.snapshot_progress = None;
        }
        Some(SnapshotPart { bytes, is_head: false, is_last, empty_files: Vec::new(), bytes_expected: 0 })
    }

    /// Whether a snapshot would release enough of the log and of payload files to be worth it. There is at
    /// most one snapshot per position of the log.
    fn is_snapshot_due(&self, engine: &Engine) -> bool {
        if self.wal_bytes_since_snapshot == 0 {
            return false;
        }
        let releasable =
            self.wal_bytes_since_snapshot + engine.empty_payload_file_bytes() + self.leaving_file_bytes;
        if self.is_disk_full {
            // A smaller gain will do, and a snapshot that is smaller than the last one is a gain too; but not
            // every command should start one.
            let next = engine.snapshot_bytes_estimate();
            let gained = releasable + self.last_snapshot_bytes.saturating_sub(next);
            return gained > FULL_GAIN_BYTES_MIN.max(next / 4);
        }
        releasable > self.snapshot_bytes_min.max(self.last_snapshot_bytes / 3)
    }
}
