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
use crate::host::{Host, Message};
use crate::trouble::Trouble;

/// How many commands are little.
const LITTLE: usize = 8;
/// How many are much, so that writing them with what others ask for gains nothing. With more, others would wait for long on the thread of whoever sits there.
const MUCH: RangeInclusive<usize> = 64..=2048;

/// Where the engine is.
pub(crate) struct Seat {
    /// None when the thread has ended.
    taken: Mutex<Option<Taken>>,
    under_way: Arc<Unanswered>,
    /// Those batches among them that were not even executed.
    waiting: Arc<Unanswered>,
}

/// The engine, and until when its thread means to sleep; for ever, if not given.
struct Taken {
    host: Host,
    sleeps_until: Option<Instant>,
}

/// How many messages were sent, of those that nobody may overtake, and are not dealt with.
pub(crate) type Unanswered = AtomicUsize;

/// A message that nobody may overtake, until it is dealt with.
pub(crate) struct UnderWay(Arc<Unanswered>);

impl UnderWay {
    pub(crate) fn new(count: &Arc<Unanswered>) -> UnderWay {
        count.fetch_add(1, Ordering::AcqRel);
        UnderWay(count.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Seat {
    /// What the host counts as under way is counted here too.
    pub(crate) fn new(host: Host, under_way: Arc<Unanswered>) -> Seat {
        let taken = Mutex::new(Some(Taken { host, sleeps_until: None }));
        Seat { taken, under_way, waiting: Arc::default() }
    }

    /// Counts a batch that is sent, until it is executed and until it is answered.
    pub(crate) fn message(&self, batch: Vec<Call>, slot: Slot<Answered>) -> Message {
        let (under_way, waits) = (Some(UnderWay::new(&self.under_way)), Some(UnderWay::new(&self.waiting)));
        Message::Batch { batch, slot: BatchSlot { slot, under_way }, waits }
    }

    /// Has the engine's thread work until it is told to stop or nobody is left to ask, and do what is due by itself.
    pub(crate) fn run(&self, inbox: &Receiver<Message>) {
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
        thread: &Sender<Message>,
    ) -> Result<Receiver<Result<Answered, Trouble>>, Vec<Call>> {
        let Some(size) = size(&batch) else { return Err(batch) };
        let under_way = match size {
            Size::Little
                if self.under_way.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() =>
            {
                UnderWay(self.under_way.clone())
            }
            Size::Much if self.waiting.load(Ordering::Acquire) == 0 => UnderWay::new(&self.under_way),
            _ => return Err(batch),
        };
        let mut taken = match self.taken.try_lock() {
            Ok(taken) => taken,
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return Err(batch),
        };
        let Some(Taken { host, sleeps_until }) = &mut *taken else { return Err(batch) };
        if !host.is_free_for(&batch, size) {
            return Err(batch);
        }
        let (slot, answer) = flume::bounded(1);
        let slot = BatchSlot { slot, under_way: Some(under_way) };
        host.visit(Message::Batch { batch, slot, waits: None });
        let due = host.sleep().map(|sleep| Instant::now() + sleep.max(SLACK));
        let is_earlier = due.is_some_and(|due| sleeps_until.is_none_or(|until| due < until));
        drop(taken);
        if is_earlier {
            // If the inbox is full the thread is awake, and looks when it has read it.
            let _ = thread.try_send(Message::Moved);
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
        Command::Pop(pop) if pop.queues.len() <= LITTLE => Some(pop.count.get()),
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
