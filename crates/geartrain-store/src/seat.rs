//! The engine's seat. Its own thread sits there; but while that has nothing to do, whoever asks for little may sit down, do it, and go on. To hand it over and to be
//! woken for the answer takes longer than most commands.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, Sender};
use geartrain_core::{Call, Command};

use crate::delivery::{Answered, BatchSlot};
use crate::host::{Host, Message};
use crate::trouble::Trouble;

/// How many commands are little: with more, others would wait for whoever has better things to do.
const LITTLE: usize = 8;

/// Where the engine is.
pub(crate) struct Seat {
    /// None when the thread has ended.
    taken: Mutex<Option<Taken>>,
    /// How many batches were sent and are not answered.
    under_way: Arc<AtomicUsize>,
}

/// The engine, and until when its thread means to sleep; for ever, if not given.
struct Taken {
    host: Host,
    sleeps_until: Option<Instant>,
}

/// A batch that is not answered. As long as there is one, nobody else may overtake it.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Seat {
    pub(crate) fn new(host: Host) -> Seat {
        Seat { taken: Mutex::new(Some(Taken { host, sleeps_until: None })), under_way: Arc::default() }
    }

    /// Counts a batch that is sent.
    pub(crate) fn count(&self) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        UnderWay(self.under_way.clone())
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

    /// Does a batch at once, if it is little and nothing else is under way or due. Otherwise it is handed back. Answers where the answers will be.
    pub(crate) fn do_now(
        &self,
        batch: Vec<Call>,
        thread: &Sender<Message>,
    ) -> Result<Receiver<Result<Answered, Trouble>>, Vec<Call>> {
        if batch.len() > LITTLE
            || !batch.iter().all(|call| is_little(&call.command))
            || self.under_way.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return Err(batch);
        }
        let under_way = Some(UnderWay(self.under_way.clone()));
        let mut taken = match self.taken.try_lock() {
            Ok(taken) => taken,
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return Err(batch),
        };
        let Some(Taken { host, sleeps_until }) = &mut *taken else { return Err(batch) };
        if !host.is_free_for(&batch) {
            return Err(batch);
        }
        let (slot, answer) = flume::bounded(1);
        host.visit(Message::Batch { batch, slot: BatchSlot { slot, under_way } });
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

/// Whether a command is done in a few microseconds, whatever there is.
fn is_little(command: &Command) -> bool {
    match command {
        Command::Pop(pop) => pop.count.get() <= LITTLE && pop.queues.len() <= LITTLE,
        Command::Put(put) => put.depends.is_empty(),
        Command::Complete(_)
        | Command::Fail(_)
        | Command::Heartbeat(_)
        | Command::Progress(_)
        | Command::Chunk(_)
        | Command::Status(_)
        | Command::Get(_) => true,
        _ => false,
    }
}

/// By how much the thread may come late to what is due.
const SLACK: Duration = Duration::from_micros(100);
