//! Whoever writes: many batches of the engine, one write and one sync for all of them, and then the answers.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use flume::Sender;
use geartrain_core::engine::SpillTask;

use crate::checkpoint::{CheckpointWriter, Checkpoints, panicked};
use crate::delivery::{Audience, Outcome};
use crate::fetch::fetch;
use crate::log::{Aside, Log, LogError, Position, Released, is_full};
use crate::options::SyncMode;
use crate::payloads;
use crate::spill::Mover;
use crate::subscribers::Subscribers;
use crate::trouble::Trouble;

/// What some commands changed, and what goes out once that is written.
#[derive(Default)]
pub(crate) struct Group {
    /// The changes, encoded; empty if there were none.
    pub(crate) body: Vec<u8>,
    pub(crate) outcome: Outcome,
    /// A part of a snapshot that was begun before these changes, or earlier.
    pub(crate) picture: Option<Piece>,
    /// It is enough that it is written: it need not be synced before it is told.
    pub(crate) light: bool,
    /// Payloads that are to be written elsewhere, when everything else is done.
    pub(crate) moves: Option<Vec<SpillTask>>,
    /// Files of one payload that no job refers to after these changes.
    pub(crate) released: Vec<u64>,
}

/// A part of a snapshot.
pub(crate) struct Piece {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_head: bool,
    pub(crate) is_last: bool,
    /// Payload files that were empty before it was begun.
    pub(crate) empty_files: Vec<u64>,
    /// How long the whole snapshot is expected to be.
    pub(crate) bytes_expected: u64,
}

/// What the thread is told.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every order is a group, and a box would cost each an allocation"
)]
pub(crate) enum Order {
    Write(Group),
    /// Make room for so many bytes, and say whether there is.
    Reserve {
        bytes: usize,
        purpose: Purpose,
        slot: Sender<Result<(), Trouble>>,
    },
}

/// What room in the log is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Commands that may bring something. They leave a part of the log to the others, and so much of the disk
    /// to the next checkpoint.
    Ordinary { checkpoint_bytes: u64 },
    /// Commands that free room, now or by what follows from them.
    Freeing,
}

/// By how much the log may grow while a picture is made to count, which is when there is most on the disk.
const FINISHING_LOG_BYTES_MAX: u64 = 4 << 20;

/// When it is tried again to remove files that could not be removed, because others were being removed or a
/// copy was being made.
const REMOVE_PAUSE: Duration = Duration::from_millis(50);

/// What came of making a picture count.
enum Finished {
    /// It does, at this position, and this was let go of.
    Counts(Position, Released),
    /// Somebody is copying what it would let go of.
    PutOff(CheckpointWriter),
}

/// The log, and those who wait for it.
pub(crate) struct Writer {
    log: Log,
    mode: SyncMode,
    audience: Audience,
    checkpoints: Checkpoints,
    mover: Mover,
    /// Where the checkpoint belongs that counts; nought if there is none. It becomes the one to fall back to.
    checkpoint: Position,
    picture: Option<CheckpointWriter>,
    /// A picture that is whole, and does not count yet.
    ripe: Option<CheckpointWriter>,
    /// One that is being made to count, beside everything else.
    finishing: Option<Aside<io::Result<Finished>>>,
    /// How much of the log there was when that began.
    log_bytes_then: u64,
    /// Since when something is written and not synced that has to be.
    unsynced: Option<Instant>,
    /// Files of one payload that go once the log is synced, and those that are being removed; these come back
    /// if a copy is being made.
    released: Vec<u64>,
    removing: Option<Aside<Vec<u64>>>,
    /// Why nothing is acknowledged any more.
    trouble: Arc<OnceLock<Trouble>>,
}

impl Writer {
    /// Writes to a log of which all before `checkpoint` is in the checkpoint that counts.
    pub(crate) fn new(
        log: Log,
        mode: SyncMode,
        checkpoints: Checkpoints,
        mover: Mover,
        checkpoint: Position,
    ) -> Writer {
        Writer {
            log,
            checkpoint,
            mode,
            audience: Audience::default(),
            checkpoints,
            mover,
            picture: None,
            ripe: None,
            finishing: None,
            log_bytes_then: 0,
            unsynced: None,
            released: Vec::new(),
            removing: None,
            trouble: Arc::default(),
        }
    }

    /// Where it will say why nothing is acknowledged any more.
    pub(crate) fn trouble(&self) -> Arc<OnceLock<Trouble>> {
        self.trouble.clone()
    }

    /// Does what it is told: writes all of it, syncs once if that is due, and then answers. Payloads are moved when nobody waits for anything else.
    pub(crate) fn work(&mut self, orders: impl IntoIterator<Item = Order>, stop: bool) {
        let (mut outcomes, mut moves) = (Vec::new(), Vec::new());
        for order in orders {
            match order {
                Order::Write(mut group) => {
                    moves.extend(group.moves.take());
                    self.released.append(&mut group.released);
                    let outcome = self.write(group);
                    // With nothing before it that has to be synced, nobody need wait for what comes after it.
                    if self.unsynced.is_none() && self.trouble.get().is_none() {
                        outcome.deliver(&mut self.audience);
                    } else {
                        outcomes.push(outcome);
                    }
                }
                Order::Reserve { bytes, purpose, slot } => drop(slot.send(self.reserve(bytes, purpose))),
            }
        }
        let due = stop || self.sync_in().is_some_and(|wait| wait.is_zero());
        if due && let Err(trouble) = self.sync() {
            self.fail(trouble);
        }
        // Everything is synced and acknowledged either way; without the mark a bad last batch would only look
        // like a torn tail.
        if stop
            && self.trouble.get().is_none()
            && let Err(error) = self.log.close()
        {
            tracing::warn!(%error, "the log could not be marked as closed");
        }
        for outcome in outcomes {
            // After a failed sync nobody knows what was kept, so nothing is acknowledged.
            match self.trouble.get() {
                None => outcome.deliver(&mut self.audience),
                Some(trouble) => outcome.call_off(trouble),
            }
        }
        moves.into_iter().for_each(|moves| self.move_payloads(moves));
        self.remove_released();
    }

    /// Removes files of one payload that no job refers to any more, beside everything else. What says so is
    /// durable before: otherwise a power cut could bring the job back without its payload.
    fn remove_released(&mut self) {
        if self.removing.as_ref().is_some_and(Aside::is_done)
            && let Some(left) = self.removing.take().and_then(Aside::join)
        {
            self.released.extend(left);
        }
        if self.released.is_empty() || self.removing.is_some() || self.trouble.get().is_some() {
            return;
        }
        if let Err(error) = self.log.sync() {
            return self.fail(error.into());
        }
        let (files, checkpoints) = (std::mem::take(&mut self.released), self.checkpoints.clone());
        self.removing = Some(Aside::new(&*self.checkpoints.disk, move || {
            // A backup may be about to copy them.
            let Some(_nobody_copies) = checkpoints.nobody_copies() else { return files };
            for file in files {
                // One that cannot be removed is found when the directory is opened.
                let _ = payloads::remove_if_there(&*checkpoints.disk, file);
            }
            Vec::new()
        }));
    }

    /// Whether it may be used by whoever has something to write, and need not be woken later for what they wrote.
    pub(crate) fn needs_no_waking(&self) -> bool {
        !matches!(self.mode, SyncMode::Every(_))
    }

    /// Leaves large payloads in answers to a thread of its own.
    pub(crate) fn read_large_aside(&mut self) {
        self.mover.files.reader.defers_large = true;
    }

    /// Whether nothing ever waits for the disk.
    pub(crate) fn never_syncs(&self) -> bool {
        matches!(self.mode, SyncMode::Never)
    }

    /// Those who listen, from now on.
    pub(crate) fn listen(&mut self, subscribers: Subscribers) {
        self.audience.subscribers = subscribers;
    }

    /// Lets go of everything but those who listen.
    pub(crate) fn into_subscribers(self) -> Subscribers {
        self.audience.subscribers
    }

    /// Writes a group down. If that fails, nothing is acknowledged from then on.
    fn write(&mut self, group: Group) -> Outcome {
        let Group { body, mut outcome, picture, light, moves: _, released: _ } = group;
        // Before anything else: a checkpoint may take away the file that a payload is in.
        if outcome.elsewhere {
            fetch(&mut outcome, &mut self.mover.files.reader);
        }
        if self.trouble.get().is_none()
            && let Err(trouble) = self.try_write(&body, picture, light)
        {
            self.fail(trouble);
        }
        outcome
    }

    /// Writes payloads elsewhere. If that fails, other than for want of room, it is as bad as if the log had failed.
    fn move_payloads(&mut self, moves: Vec<SpillTask>) {
        if self.trouble.get().is_none()
            && let Err(error) = self.mover.write(moves)
        {
            self.fail(error.into());
        }
    }

    fn fail(&mut self, trouble: Trouble) {
        // Only the first one says what happened.
        let _ = self.trouble.set(trouble);
        self.let_followers_go();
    }

    /// Ends the streams of those who wait for jobs: what they were to be told next may not be kept, and they should ask.
    pub(crate) fn let_followers_go(&mut self) {
        self.audience.followers.close();
    }

    fn try_write(&mut self, body: &[u8], picture: Option<Piece>, light: bool) -> Result<(), Trouble> {
        self.go_on_with_checkpoint(picture, !body.is_empty())?;
        if !body.is_empty() {
            self.log.append(body)?;
            if !light {
                self.unsynced.get_or_insert_with(Instant::now);
            }
        }
        Ok(())
    }

    /// Goes on with a checkpoint, if there is anything to do, before the log grows or not.
    fn go_on_with_checkpoint(&mut self, piece: Option<Piece>, log_grows: bool) -> Result<(), Trouble> {
        let is_next = piece.as_ref().is_some_and(|piece| piece.is_head);
        // The next one waits for the one before, and so does a log that would have grown by too much when that is done.
        let must_wait =
            || is_next || log_grows && self.log.used_bytes() > self.log_bytes_then + FINISHING_LOG_BYTES_MAX;
        if self.finishing.as_ref().is_some_and(|finishing| finishing.is_done() || must_wait()) {
            self.take_in()?;
        }
        let outcome = piece.map_or(Ok(()), |piece| self.add(piece)).and_then(|()| self.settle());
        self.or_give_up(outcome)
    }

    /// Without room for a checkpoint there is none this time: the log has everything, and may have room yet.
    fn or_give_up(&mut self, outcome: io::Result<()>) -> Result<(), Trouble> {
        match outcome {
            Err(error) if is_full(&error) => {
                (self.picture, self.ripe) = (None, None);
                self.checkpoints.give_up()?;
                // The next one should have room.
                self.drop_fallback()?;
                Ok(())
            }
            outcome => Ok(outcome?),
        }
    }

    fn add(&mut self, piece: Piece) -> io::Result<()> {
        if piece.is_head {
            self.ripe = None;
            self.mover.files.are_empty(piece.empty_files);
            if self.checkpoints.disk.free_bytes()?.is_some_and(|free| free < piece.bytes_expected) {
                self.log.remove_spares().map_err(io::Error::other)?;
            }
            // All that the picture shows is before this place in the log, and nothing else is.
            self.picture = Some(self.checkpoints.begin(self.log.end())?);
        }
        let Some(picture) = &mut self.picture else { return Ok(()) };
        picture.write(&piece.bytes)?;
        if piece.is_last {
            self.ripe = self.picture.take();
        }
        Ok(())
    }

    /// Has a picture made to count that is whole, and let go of what it stands for; later, if somebody is copying that.
    fn settle(&mut self) -> io::Result<()> {
        let nobody_copies = |_: &mut CheckpointWriter| self.checkpoints.nobody_copies().is_some();
        let Some(picture) = self.ripe.take_if(nobody_copies) else { return Ok(()) };
        // The log must not end before the place where it is to be read from.
        self.log.sync().map_err(io::Error::other)?;
        // What the log had of these payloads goes now.
        self.mover.files.sync()?;
        // The checkpoint that counted so far stays to fall back to, and so does all that it needs.
        let previous = self.checkpoint;
        let (release, leaving) = (self.log.choose(previous), self.mover.files.leaving());
        let checkpoints = self.checkpoints.clone();
        self.log_bytes_then = self.log.used_bytes();
        self.finishing = Some(Aside::new(&*self.checkpoints.disk, move || {
            // Until all is done. Somebody may have begun since it was looked at.
            let Some(_nobody_copies) = checkpoints.nobody_copies() else {
                return Ok(Finished::PutOff(picture));
            };
            let position = picture.position;
            checkpoints.finish(picture, previous)?;
            payloads::remove(&*checkpoints.disk, &leaving).map_err(io::Error::other)?;
            Ok(Finished::Counts(position, release.carry_out(&*checkpoints.disk)))
        }));
        Ok(())
    }

    /// Waits until a picture counts, if one is being made to, and goes by what it let go of.
    fn take_in(&mut self) -> Result<(), Trouble> {
        let Some(finishing) = self.finishing.take() else { return Ok(()) };
        let mut released = Released::default();
        let outcome = match finishing.join().unwrap_or_else(|| Err(panicked())) {
            Ok(Finished::Counts(position, by_it)) => {
                self.mover.files.forget_leaving();
                self.mover.files.checkpoint_counts();
                self.checkpoint = position;
                released = by_it;
                Ok(())
            }
            Ok(Finished::PutOff(picture)) => {
                self.ripe = Some(picture);
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.log.take_in(released)?;
        self.or_give_up(outcome)
    }

    /// On a full disk, gives up the previous checkpoint and all that only it needs. Says whether there was
    /// anything.
    fn drop_fallback(&mut self) -> Result<bool, LogError> {
        if self.finishing.is_some() {
            return Ok(false);
        }
        let Some(_nobody_copies) = self.checkpoints.nobody_copies() else { return Ok(false) };
        let before = self.log.used_bytes();
        let disk = &*self.checkpoints.disk;
        let (others, leaving) = (self.checkpoints.names()?.len() > 1, self.mover.files.leaving());
        if others {
            self.checkpoints.remove_all_but(&[self.checkpoint])?;
            // Nothing may bring it back without the log behind it.
            disk.sync_directory().map_err(LogError::Io)?;
        }
        payloads::remove(disk, &leaving)?;
        self.mover.files.forget_leaving();
        self.log.release(self.checkpoint)?;
        Ok(others || !leaving.is_empty() || self.log.used_bytes() < before)
    }

    /// The same, for whoever writes nothing.
    fn take_in_or_fail(&mut self) -> Result<(), Trouble> {
        let taken = self.take_in();
        if let Err(trouble) = &taken {
            self.fail(trouble.clone());
        }
        taken
    }

    pub(crate) fn reserve(&mut self, bytes: usize, purpose: Purpose) -> Result<(), Trouble> {
        if let Some(trouble) = self.trouble.get() {
            return Err(trouble.clone());
        }
        let reserved = self.reserve_or_wait(bytes, purpose);
        // Unless there is only no room, nothing can be written until what was kept has been read again.
        if let Err(trouble) = &reserved
            && self.log.is_broken()
        {
            self.fail(trouble.clone());
        }
        reserved
    }

    /// Waits for what is being let go of only if there is no room without it, or it would take longer to make a segment.
    fn reserve_or_wait(&mut self, bytes: usize, purpose: Purpose) -> Result<(), Trouble> {
        if self.log.is_about_to_have(bytes) {
            self.take_in_or_fail()?;
        }
        match self.try_reserve(bytes, purpose) {
            Err(LogError::Full) => {
                if self.finishing.is_some() {
                    self.take_in_or_fail()?;
                }
                match self.try_reserve(bytes, purpose) {
                    Err(LogError::Full) if self.drop_fallback()? => Ok(self.try_reserve(bytes, purpose)?),
                    reserved => Ok(reserved?),
                }
            }
            reserved => Ok(reserved?),
        }
    }

    fn try_reserve(&mut self, bytes: usize, purpose: Purpose) -> Result<(), LogError> {
        let Purpose::Ordinary { checkpoint_bytes } = purpose else { return self.log.reserve(bytes) };
        // First, because to make a spare segment would use up the room that the checkpoint needs. What is
        // reserved may be in that checkpoint too.
        let (surplus, missing) = self.log.surplus_and_missing_bytes();
        let wanted = checkpoint_bytes.saturating_add(bytes as u64).saturating_add(missing);
        match self.checkpoints.disk.free_bytes()? {
            Some(free) if free.saturating_add(surplus) < wanted => Err(LogError::Full),
            _ => self.log.reserve_ordinary(bytes),
        }
    }

    /// How long until there is something to do without being asked: something must be synced, or files wait
    /// to be removed.
    pub(crate) fn wake_in(&self) -> Option<Duration> {
        let remove_in = (!self.released.is_empty()).then_some(REMOVE_PAUSE);
        self.sync_in().into_iter().chain(remove_in).min()
    }

    /// How long until what was written must be synced; none if there is nothing to sync, or no hurry at all.
    pub(crate) fn sync_in(&self) -> Option<Duration> {
        let since = self.unsynced?;
        match self.mode {
            SyncMode::Always => Some(Duration::ZERO),
            SyncMode::Every(interval) => Some(interval.saturating_sub(since.elapsed())),
            SyncMode::Never => None,
        }
    }

    fn sync(&mut self) -> Result<(), Trouble> {
        if self.unsynced.take().is_some() && self.trouble.get().is_none() {
            self.log.sync()?;
        }
        Ok(())
    }
}
