//! Where what is to be written is handed in: to a thread, or to nobody.
//!
//! While the thread waits for the disk the engine's thread works on what comes next, so neither waits for the other longer than it must. When
//! nothing comes next, handing over would only cost time, and the engine's thread writes itself.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use flume::{Receiver, RecvTimeoutError, Sender};

use crate::delivery::Outcome;
use crate::subscribers::Subscribers;
use crate::trouble::Trouble;
use crate::writer::{Group, Order, Purpose, Writer};

/// How many groups of the engine's thread may wait to be written. With more, nothing would be written sooner, and each would be smaller.
const GROUPS_MAX: usize = 1;
/// How many may wait in all: whoever brings much has better things to do than to wait for its turn. The last of them is for a snapshot that begins.
const ALL_GROUPS_MAX: usize = 5;

/// Whether there are threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// One for the engine and one that writes.
    Two,
    /// None: whoever has the engine says when something is written.
    None,
}

/// What is true of whoever hands something in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Giver {
    /// Nobody else has asked for anything, so handing it over would only cost time.
    pub(crate) is_alone: bool,
    /// They can wait for the disk.
    pub(crate) can_wait: bool,
}

/// Where what is to be written is handed in.
pub(crate) struct Desk {
    /// Held while something is written. None when it is stopped.
    writer: Arc<Mutex<Option<Writer>>>,
    who: Who,
    trouble: Arc<OnceLock<Trouble>>,
}

/// Who writes.
enum Who {
    Thread {
        /// None when it is stopped.
        orders: Option<Sender<Order>>,
        /// What whoever can wait leaves there with each group, until it is taken.
        turns: Sender<()>,
        thread: Option<JoinHandle<()>>,
        /// How many orders it was given, and how many of them are done.
        given: u64,
        done: Arc<AtomicU64>,
        /// Whether the engine's thread may write too.
        shared: bool,
        /// Whether it is written without waiting for the disk, whatever it is.
        never_syncs: bool,
    },
    Nobody {
        waiting: Vec<Order>,
    },
}

impl Desk {
    pub(crate) fn new(mut writer: Writer, threads: Threads) -> io::Result<Desk> {
        if threads == Threads::Two {
            writer.read_large_aside();
        }
        let (shared, never_syncs, trouble) =
            (writer.needs_no_waking(), writer.never_syncs(), writer.trouble());
        let writer = Arc::new(Mutex::new(Some(writer)));
        let who = match threads {
            Threads::None => Who::Nobody { waiting: Vec::new() },
            Threads::Two => {
                let (orders, inbox) = flume::bounded(ALL_GROUPS_MAX);
                let (turns, turns_left) = flume::bounded(GROUPS_MAX);
                let done = Arc::new(AtomicU64::new(0));
                let at_work = AtWork {
                    writer: writer.clone(),
                    turns: turns_left,
                    done: done.clone(),
                    trouble: trouble.clone(),
                };
                let thread = std::thread::Builder::new()
                    .name("geartrain-writer".into())
                    .spawn(move || at_work.run(&inbox))?;
                Who::Thread {
                    orders: Some(orders),
                    turns,
                    thread: Some(thread),
                    given: 0,
                    done,
                    shared,
                    never_syncs,
                }
            }
        };
        Ok(Desk { writer, who, trouble })
    }

    /// Has a group written: now, if nobody else waits for anything.
    pub(crate) fn write(&mut self, group: Group, giver: Giver) {
        let idle = self.is_idle();
        match &mut self.who {
            Who::Thread { shared: true, never_syncs, .. }
                if idle
                    && giver.is_alone
                    && (giver.can_wait || (group.light || *never_syncs) && group.picture.is_none()) =>
            {
                if let Some(writer) = &mut *lock(&self.writer) {
                    writer.work([Order::Write(group)], false);
                }
            }
            Who::Thread { orders: Some(orders), turns, given, .. } => {
                *given += 1;
                if giver.can_wait {
                    let _ = turns.send(());
                }
                // If the thread is gone, dropping the group tells everyone in it.
                let _ = orders.send(Order::Write(group));
            }
            Who::Thread { orders: None, .. } => {
                group.outcome.call_off(self.trouble().unwrap_or(&Trouble::Gone));
            }
            Who::Nobody { waiting } => {
                waiting.push(Order::Write(group));
                if waiting.len() > GROUPS_MAX + 1 {
                    self.work(usize::MAX);
                }
            }
        }
    }

    /// Whether nothing is under way, so that whoever has something to tell can do so at once.
    pub(crate) fn may_tell(&self) -> bool {
        matches!(self.who, Who::Thread { shared: true, .. }) && self.is_idle() && self.trouble().is_none()
    }

    /// Tells what happened, without writing anything.
    pub(crate) fn tell(&mut self, outcome: Outcome) {
        if let Some(writer) = &mut *lock(&self.writer) {
            writer.work([Order::Write(Group { outcome, light: true, ..Group::default() })], false);
        }
    }

    /// Why nothing is acknowledged any more, if that is so.
    pub(crate) fn trouble(&self) -> Option<&Trouble> {
        self.trouble.get()
    }

    /// Whether there is a thread that writes, and it has nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(&self.who, Who::Thread { given, done, .. } if *given == done.load(Ordering::Acquire))
    }

    /// Whether something can be handed in without waiting.
    pub(crate) fn has_room(&self) -> bool {
        matches!(&self.who, Who::Thread { orders: Some(orders), .. } if orders.len() + 2 <= ALL_GROUPS_MAX)
    }

    /// Asks whether so much can be written, after all that was handed in, without waiting for the answer.
    pub(crate) fn ask_for_room(
        &mut self,
        bytes: usize,
        purpose: Purpose,
    ) -> Option<Receiver<Result<(), Trouble>>> {
        match &mut self.who {
            Who::Thread { orders: Some(orders), given, .. } => {
                let (slot, answer) = flume::bounded(1);
                orders.try_send(Order::Reserve { bytes, purpose, slot }).ok()?;
                *given += 1;
                Some(answer)
            }
            _ => None,
        }
    }

    /// Makes sure that so much can be written, after all that was handed in.
    pub(crate) fn reserve(&mut self, bytes: usize, purpose: Purpose) -> Result<(), Trouble> {
        match &mut self.who {
            Who::Thread { orders, given, .. } => {
                let (slot, answer) = flume::bounded(1);
                let orders = orders.as_ref().ok_or(Trouble::Gone)?;
                orders.send(Order::Reserve { bytes, purpose, slot }).map_err(|_| Trouble::Gone)?;
                *given += 1;
                answer.recv().map_err(|_| Trouble::Gone)?
            }
            Who::Nobody { .. } => {
                self.work(usize::MAX);
                lock(&self.writer).as_mut().ok_or(Trouble::Gone)?.reserve(bytes, purpose)
            }
        }
    }

    /// Without a thread, writes so many of the groups that were handed in.
    pub(crate) fn work(&mut self, groups: usize) {
        if let Who::Nobody { waiting } = &mut self.who
            && let Some(writer) = &mut *lock(&self.writer)
        {
            let groups = groups.min(waiting.len());
            writer.work(waiting.drain(..groups), false);
        }
    }

    /// Ends the thread, once all is written, and lets go of all files. Hands back those who listen, the first time.
    pub(crate) fn stop(&mut self) -> Option<Subscribers> {
        if let Who::Thread { orders, thread, .. } = &mut self.who {
            *orders = None;
            let _ = thread.take().map(JoinHandle::join);
        }
        lock(&self.writer).take().map(Writer::into_subscribers)
    }

    /// Those who listen, from now on.
    pub(crate) fn listen(&mut self, subscribers: Subscribers) {
        if let Some(writer) = &mut *lock(&self.writer) {
            writer.listen(subscribers);
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread has.
struct AtWork {
    writer: Arc<Mutex<Option<Writer>>>,
    turns: Receiver<()>,
    done: Arc<AtomicU64>,
    trouble: Arc<OnceLock<Trouble>>,
}

impl AtWork {
    /// Writes until nobody is left to tell it anything.
    fn run(&self, inbox: &Receiver<Order>) {
        loop {
            let wake_in = lock(&self.writer).as_ref().and_then(Writer::wake_in);
            let first = match wake_in {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => inbox.recv_timeout(wait),
            };
            let stop = matches!(first, Err(RecvTimeoutError::Disconnected));
            let orders: Vec<Order> = first.into_iter().chain(inbox.drain()).collect();
            // One by one: to take them all at once would leave those asleep who wait for theirs.
            while self.turns.try_recv().is_ok() {}
            let count = orders.len() as u64;
            let work = || {
                if let Some(writer) = &mut *lock(&self.writer) {
                    writer.work(orders, stop);
                }
            };
            // If it panics it says why, and whoever waited for it is told. The thread stays, so that nobody waits for it in vain.
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                let _ = self.trouble.set(Trouble::Gone);
                lock(&self.writer).iter_mut().for_each(Writer::let_followers_go);
            }
            self.done.fetch_add(count, Ordering::Release);
            if stop {
                return;
            }
        }
    }
}

/// If somebody panicked while they wrote, that is trouble, and nothing is acknowledged any more.
fn lock(writer: &Mutex<Option<Writer>>) -> MutexGuard<'_, Option<Writer>> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}
