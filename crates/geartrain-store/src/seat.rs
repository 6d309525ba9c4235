//! The engine's seat. Its own thread sits there; but while that has nothing to do, whoever asks for little may sit down, do it, and go on: to hand it over and to be
//! woken for the answer takes longer than most commands. Whoever brings much may sit down too, and leaves it to others to write: then their thread works, and not a
//! third one beside it.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, Sender};
use geartrain_core::{Call, Command};

use crate::delivery::{Answered, BatchSlot, Slot};
use crate::host::{Host, Message, Posted};
use crate::large::OwnFiles;
use crate::trouble::Trouble;

/// How many commands are little.
const LITTLE: usize = 8;
/// How many are much, so that writing them with what others ask for gains nothing. With more, others would wait for long on the thread of whoever sits there.
const MUCH: RangeInclusive<usize> = 64..=2048;

/// Where the engine is.
pub(crate) struct Seat {
    /// None when the thread has ended.
    taken: Mutex<Option<Taken>>,
    tally: Tally,
}

/// The engine, and until when its thread means to sleep; for ever, if not given.
struct Taken {
    host: Host,
    sleeps_until: Option<Instant>,
}

/// How many messages were sent of those that nobody may overtake.
#[derive(Default, Clone)]
pub(crate) struct Tally {
    /// Batches that are not answered, and streams that were dropped and not seen off.
    pub(crate) under_way: Arc<AtomicUsize>,
    /// All that is on its way to the engine, or in the hand of its thread.
    pub(crate) waiting: Arc<AtomicUsize>,
}

/// A message that nobody may overtake, until it is dealt with.
pub(crate) struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> UnderWay {
        count.fetch_add(1, Ordering::AcqRel);
        UnderWay(count.clone())
    }

    /// Counts it only if nothing else is counted.
    fn alone(count: &Arc<AtomicUsize>) -> Option<UnderWay> {
        let is_first = count.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        is_first.then(|| UnderWay(count.clone()))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Seat {
    /// What the host counts is counted here too.
    pub(crate) fn new(host: Host, tally: Tally) -> Seat {
        Seat { taken: Mutex::new(Some(Taken { host, sleeps_until: None })), tally }
    }

    /// A message to the engine's thread that nobody may overtake.
    pub(crate) fn posted(&self, message: Message) -> Posted {
        Posted { message, _waits: Some(UnderWay::new(&self.tally.waiting)) }
    }

    /// A batch for it.
    pub(crate) fn batch(&self, batch: Vec<Call>, files: Option<OwnFiles>, slot: Slot<Answered>) -> Message {
        let under_way = Some(UnderWay::new(&self.tally.under_way));
        Message::Batch { batch, slot: BatchSlot { slot, under_way }, files }
    }

    /// Has the engine's thread work until it is told to stop or nobody is left to ask, and do what is due by itself.
    pub(crate) fn run(&self, inbox: &Receiver<Posted>) {
        loop {
            let sleep = {
                let mut taken = self.lock();
                let Some(taken) = &mut *taken else { return };
                let sleep = taken.host.sleep();
                taken.sleeps_until = sleep.map(|sleep| Instant::now() + sleep);
                sleep
            };
            let first = match sleep {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(sleep) => inbox.recv_timeout(sleep),
            };
            let stop = matches!(first, Err(RecvTimeoutError::Disconnected));
            let mut taken = self.lock();
            // If somebody panicked there, nobody knows what the engine has done and what not.
            let is_sound = !self.taken.is_poisoned();
            let Some(Taken { host, .. }) = &mut *taken else { return };
            if !is_sound || host.round(first.ok()) || stop {
                *taken = None;
                return;
            }
        }
    }

    /// Does a batch at once, if it is little and nothing else is under way or due, or if it is much and nothing waits to be done. Otherwise it is handed back.
    /// Answers where the answers will be.
    pub(crate) fn do_now(
        &self,
        batch: Vec<Call>,
        thread: &Sender<Posted>,
    ) -> Result<Receiver<Result<Answered, Trouble>>, Vec<Call>> {
        let Some(size) = size(&batch) else { return Err(batch) };
        let Tally { under_way, waiting } = &self.tally;
        let counted = match size {
            Size::Little => UnderWay::alone(under_way),
            Size::Much => (waiting.load(Ordering::Acquire) == 0).then(|| UnderWay::new(under_way)),
        };
        let Some(counted) = counted else { return Err(batch) };
        let mut taken = match self.taken.try_lock() {
            Ok(taken) => taken,
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return Err(batch),
        };
        let Some(Taken { host, sleeps_until }) = &mut *taken else { return Err(batch) };
        if !host.is_free_for(&batch, size) {
            return Err(batch);
        }
        let (slot, answer) = flume::bounded(1);
        let slot = BatchSlot { slot, under_way: Some(counted) };
        host.visit(Message::Batch { batch, slot, files: None });
        let due = host.sleep().map(|sleep| Instant::now() + sleep.max(SLACK));
        let is_earlier = due.is_some_and(|due| sleeps_until.is_none_or(|until| due < until));
        drop(taken);
        if is_earlier {
            // If the inbox is full the thread is awake, and looks when it has read it.
            let _ = thread.try_send(Message::Moved.into());
        }
        Ok(answer)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Taken>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much is asked by a batch that somebody may do who has other things to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// It is done before it could be handed over.
    Little,
    /// It takes a while, and is worth a write of its own.
    Much,
}

/// How much a batch is, if it is one of those.
fn size(batch: &[Call]) -> Option<Size> {
    let mut steps = 0_usize;
    for call in batch {
        steps = steps_of(&call.command)?.saturating_add(steps);
    }
    match steps {
        ..=LITTLE => Some(Size::Little),
        _ if MUCH.contains(&steps) => Some(Size::Much),
        _ => None,
    }
}

/// How often a command does what takes a microsecond or two, if that is all that it does, whatever there is.
fn steps_of(command: &Command) -> Option<usize> {
    match command {
        Command::Pop(pop) if pop.queues.len() <= LITTLE => Some(pop.count.get().max(1)),
        Command::Put(put) if put.depends.is_empty() => Some(1),
        Command::Complete(_)
        | Command::Fail(_)
        | Command::Heartbeat(_)
        | Command::Progress(_)
        | Command::Chunk(_)
        | Command::Status(_)
        | Command::Get(_) => Some(1),
        _ => None,
    }
}

/// By how much the thread may come late to what is due.
const SLACK: Duration = Duration::from_micros(100);
