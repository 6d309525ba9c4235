//! Where what happened is kept: nowhere, or in the log.

use std::io;
use std::sync::Arc;

use flume::{Receiver, WeakSender};
use geartrain_core::Timestamp;
use geartrain_core::engine::{Effects, Engine, Written};

use crate::delivery::{Audience, Outcome, Outgoing};
use crate::desk::{Desk, Giver, Threads};
use crate::embedded::{Started, Store};
use crate::host::{Message, Posted};
use crate::large::LargePayloads;
use crate::log;
use crate::seat::Size;
use crate::spill::Spill;
use crate::subscribers::Subscribers;
use crate::trouble::Trouble;
use crate::writer::{Group, Piece, Purpose, Writer};

/// How many jobs are added to a snapshot at a time.
const SNAPSHOT_JOBS: usize = 64;
/// A snapshot goes on so many times as fast as the log, so that the log does not grow much meanwhile.
const SNAPSHOT_PACE: usize = 4;
/// How much of it goes with a group, however small that is, and however large: nobody should wait for it.
const SNAPSHOT_STEP: (usize, usize) = (64 << 10, 16 << 20);
/// On a full disk, how much a snapshot must make room for to be worth it.
const FULL_GAIN_BYTES_MIN: u64 = 64 << 10;
/// What a checkpoint may need beyond what is expected.
const CHECKPOINT_SLACK_BYTES: u64 = 64 << 10;
/// How much room is asked for at a time.
const ROOM_BYTES: usize = 4 << 20;
/// How much may be put off until something must be written.
const PUT_OFF_BYTES_MAX: usize = 64 << 10;
/// What a batch takes besides its bytes, at the most.
const BATCH_BYTES: usize = 8 << 10;

/// Where what happened is kept.
pub(crate) enum Keeper {
    /// Nowhere: it is told at once.
    Nowhere(Audience),
    /// In the log: it is told once it is written.
    Log {
        /// It goes first: until nothing is written any more, nobody else may use the directory.
        scribe: Box<Scribe>,
        /// Where the log is.
        store: Store,
    },
}

impl Keeper {
    /// Lets whoever writes wake the engine's thread.
    pub(crate) fn wake_through(&self, inbox: WeakSender<Posted>) {
        if let Keeper::Log { store, .. } = self {
            // If the inbox is full the engine is awake, and looks for reports when it has read it.
            store.wake_by(Arc::new(move || {
                inbox.upgrade().into_iter().for_each(|inbox| drop(inbox.try_send(Message::Moved.into())));
            }));
        }
    }

    /// What executing commands is to leave behind.
    pub(crate) fn effects(&self) -> Effects {
        match self {
            Keeper::Nowhere(_) => Effects::default(),
            Keeper::Log { .. } => Effects::in_bytes(),
        }
    }

    /// Keeps what was taken down since the last time, and then tells what came of it.
    pub(crate) fn keep(
        &mut self,
        effects: &mut Effects,
        outgoing: Vec<Outgoing>,
        engine: &mut Engine,
        giver: Giver,
    ) {
        let is_put_off = match self {
            Keeper::Nowhere(_) => false,
            Keeper::Log { scribe, .. } => scribe.puts_off(effects, engine),
        };
        let written = if is_put_off { Written::default() } else { effects.take_written() };
        effects.deltas.clear();
        let elsewhere = std::mem::take(&mut effects.any_spilled);
        let events = std::mem::take(&mut effects.events);
        let last_event = if events.is_empty() { 0 } else { engine.event_position() };
        let deliveries = std::mem::take(&mut effects.deliveries);
        let outcome = Outcome { events, last_event, deliveries, outgoing, elsewhere, unread: Vec::new() };
        match self {
            Keeper::Nowhere(audience) => outcome.deliver(audience),
            Keeper::Log { scribe, .. } if is_put_off => scribe.desk.tell(outcome),
            Keeper::Log { scribe, .. } => scribe.keep(written, outcome, engine, giver),
        }
    }

    /// Makes sure that so much can be taken down.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), Trouble> {
        match self {
            Keeper::Nowhere(_) => Ok(()),
            Keeper::Log { scribe, .. } => scribe.reserve(bytes),
        }
    }

    /// The same for commands that free room. On a full disk there is a reserve for them.
    pub(crate) fn reserve_to_free(&mut self, bytes: usize) -> Result<(), Trouble> {
        match self {
            Keeper::Nowhere(_) => Ok(()),
            Keeper::Log { scribe, .. } => scribe.reserve_to_free(bytes),
        }
    }

    /// Whether nothing is written down anyway.
    pub(crate) fn keeps_nothing(&self) -> bool {
        matches!(self, Keeper::Nowhere(_))
    }

    /// Whether so much can be taken down without waiting for anything.
    pub(crate) fn is_free_for(&mut self, bytes: usize, size: Size) -> bool {
        match self {
            Keeper::Nowhere(_) => true,
            Keeper::Log { scribe, .. } => scribe.is_free_for(bytes, size),
        }
    }

    /// Why nothing is acknowledged any more, if that is so.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        match self {
            Keeper::Nowhere(_) => None,
            Keeper::Log { scribe, .. } => scribe.desk.trouble().cloned(),
        }
    }

    /// After trouble, reads again what was kept, because what the engine knows may be more than that. Answers the engine to go on with. Those who listen
    /// are told what turned out to be kept; nobody waits for jobs any more.
    pub(crate) fn recover(&mut self, now: Timestamp, trouble: Trouble) -> Result<Engine, Trouble> {
        let Keeper::Log { store, scribe } = self else { return Err(trouble) };
        // Those who still wait for what was handed in are told of the trouble.
        scribe.desk.work(usize::MAX);
        if let Some(listening) = scribe.desk.stop() {
            scribe.listening = listening;
        }
        let Started { engine, scribe: mut started } = store.start(now).map_err(|_| trouble)?;
        scribe.listening.catch_up(|told| engine.events_after(told));
        started.desk.listen(std::mem::take(&mut scribe.listening));
        *scribe = started;
        Ok(engine)
    }

    /// Without a thread, writes so many of the groups that were handed in.
    pub(crate) fn write(&mut self, groups: usize) {
        if let Keeper::Log { scribe, .. } = self {
            scribe.desk.work(groups);
        }
    }

    /// Whether there is something to do that cannot wait for the next command.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Keeper::Log { scribe, .. } if scribe.snapshot.is_some())
    }
}

/// Room that whoever writes was asked for, and how much of it was used before they answered.
struct Asked {
    answer: Receiver<Result<(), Trouble>>,
    used: usize,
}

/// The engine's end of whoever writes.
pub(crate) struct Scribe {
    desk: Desk,
    /// How many more bytes surely fit.
    room: usize,
    /// The same for commands that free room; if it is more, the difference is of the reserve.
    freeing_room: usize,
    /// There was no room for what was asked last.
    is_full: bool,
    /// How much of the disk the next checkpoint needs.
    checkpoint_bytes: u64,
    large: Arc<LargePayloads>,
    /// Room that was asked for ahead of time.
    asked: Option<Asked>,
    /// How many bytes were put off, to be written with what comes next.
    put_off: usize,
    /// How much was written since the last snapshot was begun.
    since_snapshot: u64,
    /// How many bytes the payload files have that were empty when the last snapshot was begun. They go when
    /// the next one counts.
    leaving_bytes: u64,
    /// How large the last snapshot is.
    snapshot_bytes: u64,
    snapshot_bytes_min: u64,
    /// How large the one is that is being taken, so far.
    snapshot: Option<u64>,
    spill: Spill,
    /// Those who listen, while there is nobody who writes.
    listening: Subscribers,
}

impl Scribe {
    /// There is a snapshot of so many bytes, and so much of the log after it.
    pub(crate) fn new(
        writer: Writer,
        spill: Spill,
        large: Arc<LargePayloads>,
        threads: Threads,
        snapshot_bytes: u64,
        snapshot_bytes_min: u64,
        log_bytes: u64,
    ) -> io::Result<Scribe> {
        Ok(Scribe {
            desk: Desk::new(writer, threads)?,
            room: 0,
            freeing_room: 0,
            is_full: false,
            checkpoint_bytes: 0,
            large,
            asked: None,
            put_off: 0,
            since_snapshot: log_bytes,
            leaving_bytes: 0,
            snapshot_bytes,
            snapshot_bytes_min,
            snapshot: None,
            spill,
            listening: Subscribers::default(),
        })
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), Trouble> {
        if bytes == 0 {
            return Ok(());
        }
        self.look_for_room();
        let bytes = bytes + BATCH_BYTES;
        if bytes > self.room {
            // A good deal more than is needed, so that it need not be asked for each time; but on a disk that is nearly full, no more than that.
            let more = bytes.max(ROOM_BYTES);
            let asked = match self.ask_for_room(more) {
                Err(_) if more > bytes => self.ask_for_room(bytes),
                asked => asked,
            };
            self.is_full = matches!(&asked, Err(trouble) if trouble.is_full());
            self.room = asked?;
        }
        Ok(())
    }

    fn reserve_to_free(&mut self, bytes: usize) -> Result<(), Trouble> {
        let bytes = bytes + BATCH_BYTES;
        if bytes > self.room.max(self.freeing_room) {
            self.desk.reserve(bytes, Purpose::Freeing)?;
            self.freeing_room = bytes;
        }
        Ok(())
    }

    /// Whether what happened can be told before it is written, and be written with what comes next: it concerns nothing that would be missed if the process were
    /// gone in this instant. What is told must not overtake what is under way, and what is in a snapshot must be in the log before it.
    fn puts_off(&mut self, effects: &Effects, engine: &Engine) -> bool {
        let Some(written) = &effects.written else { return false };
        let may = !written.must_be_logged
            && !written.bytes.is_empty()
            && written.bytes.len() <= PUT_OFF_BYTES_MAX
            && !effects.any_spilled
            && !engine.keeps_events()
            && self.snapshot.is_none()
            && self.desk.may_tell();
        if may {
            self.use_room(written.bytes.len() - self.put_off);
            self.put_off = written.bytes.len();
        }
        may
    }

    fn is_free_for(&mut self, bytes: usize, size: Size) -> bool {
        if size == Size::Much {
            self.look_for_room();
        }
        let is_free = match size {
            Size::Little => self.desk.is_idle() && self.snapshot.is_none(),
            Size::Much => self.desk.has_room(),
        };
        is_free && self.desk.trouble().is_none() && bytes + BATCH_BYTES <= self.room
    }

    /// Asks for room before there is none, so that nobody waits for it.
    fn look_for_room(&mut self) {
        match &self.asked {
            None if self.room < ROOM_BYTES / 2 => {
                let answer = self.desk.ask_for_room(ROOM_BYTES, self.ordinary());
                self.asked = answer.map(|answer| Asked { answer, used: 0 });
            }
            Some(Asked { answer, used }) if let Ok(answer) = answer.try_recv() => {
                if answer.is_ok() {
                    self.room = self.room.max(ROOM_BYTES.saturating_sub(*used));
                }
                self.asked = None;
            }
            _ => {}
        }
    }

    /// Notes that so much of the room is used.
    fn use_room(&mut self, bytes: usize) {
        self.room = self.room.saturating_sub(bytes);
        self.freeing_room = self.freeing_room.saturating_sub(bytes);
        self.asked.iter_mut().for_each(|asked| asked.used += bytes);
    }

    fn ask_for_room(&mut self, bytes: usize) -> Result<usize, Trouble> {
        self.desk.reserve(bytes, self.ordinary())?;
        Ok(bytes)
    }

    fn ordinary(&self) -> Purpose {
        Purpose::Ordinary { checkpoint_bytes: self.checkpoint_bytes }
    }

    /// Notes how much of the disk must stay free, so that there can always be a checkpoint: without one the
    /// log never gets shorter.
    fn note_checkpoint_bytes(&mut self, engine: &Engine) {
        let written = self.snapshot.unwrap_or_default();
        self.checkpoint_bytes =
            (engine.snapshot_bytes_estimate() + CHECKPOINT_SLACK_BYTES).saturating_sub(written);
        self.large.reserve_for_checkpoint(self.checkpoint_bytes);
    }

    fn keep(&mut self, written: Written, outcome: Outcome, engine: &mut Engine, giver: Giver) {
        let Written { bytes: body, must_be_synced, .. } = written;
        if !body.is_empty() {
            self.use_room(body.len() + BATCH_BYTES - self.put_off);
            self.put_off = 0;
            self.since_snapshot += log::padded(body.len()) as u64;
        }
        // What a light one rests on is not lost before it is told: groups are written and told in the order in which they come.
        let light = !must_be_synced;
        let picture = self.go_on_with_snapshot(engine, body.len());
        self.note_checkpoint_bytes(engine);
        let moves = self.spill.step(engine, body.len());
        let released = engine.take_released_payload_files();
        let is_more = picture.is_some() || moves.is_some() || !released.is_empty();
        if is_more || !(body.is_empty() && outcome.is_empty()) {
            // No reply depends on moves or on the removal of files, and the next caller should not wait for them.
            let is_alone = giver.is_alone && moves.is_none() && released.is_empty();
            let giver = Giver { is_alone, ..giver };
            self.desk.write(Group { body, outcome, picture, light, moves, released }, giver);
        }
        // The next group is the first that the snapshot does not show.
        if self.snapshot.is_none() && self.is_snapshot_due(engine) {
            let mut bytes = Vec::new();
            // They are empty before it is begun, so it does not speak of them.
            self.leaving_bytes = engine.empty_payload_file_bytes();
            let empty_files = engine.take_empty_payload_files();
            engine.begin_snapshot(&mut bytes);
            self.snapshot = Some(bytes.len() as u64);
            self.since_snapshot = 0;
            let bytes_expected = engine.snapshot_bytes_estimate();
            let picture = Some(Piece { bytes, is_head: true, is_last: false, empty_files, bytes_expected });
            let group = Group { picture, light: true, ..Group::default() };
            self.desk.write(group, Giver { is_alone: false, ..giver });
        }
    }

    fn go_on_with_snapshot(&mut self, engine: &mut Engine, logged: usize) -> Option<Piece> {
        let so_far = self.snapshot.as_mut()?;
        let wanted = (SNAPSHOT_PACE * logged).clamp(SNAPSHOT_STEP.0, SNAPSHOT_STEP.1);
        let mut bytes = Vec::with_capacity(wanted);
        let mut is_last = false;
        while !is_last && bytes.len() < wanted {
            is_last = engine.continue_snapshot(SNAPSHOT_JOBS, &mut bytes);
        }
        *so_far += bytes.len() as u64;
        if is_last {
            self.snapshot_bytes = *so_far;
            self.snapshot = None;
        }
        Some(Piece { bytes, is_head: false, is_last, empty_files: Vec::new(), bytes_expected: 0 })
    }

    /// Whether what a snapshot would let go of, in the log and in payload files, is worth it. There is at most one for each place in the log.
    fn is_snapshot_due(&self, engine: &Engine) -> bool {
        let let_go = self.since_snapshot + engine.empty_payload_file_bytes() + self.leaving_bytes;
        if self.is_full {
            // Also what the last snapshot has more than the next. It is worth less here, but not each
            // command's trouble.
            let next = engine.snapshot_bytes_estimate();
            let gained = let_go + self.snapshot_bytes.saturating_sub(next);
            return self.since_snapshot > 0 && gained > FULL_GAIN_BYTES_MIN.max(next / 4);
        }
        self.since_snapshot > 0 && let_go > self.snapshot_bytes_min.max(self.snapshot_bytes / 3)
    }
}
