//! Where what is to be written is handed in: to a thread, or to nobody.
//!
//! While the thread waits for the disk the engine's thread works on what comes next, so neither waits for the other longer than it must. When
//! nothing comes next, handing over would only cost time, and the engine's thread writes itself.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use flume::{Receiver, RecvTimeoutError, Sender};

use crate::subscribers::Subscribers;
use crate::trouble::Trouble;
use crate::writer::{Group, Order, Writer};

/// How many groups may wait to be written. With more, nothing would be written sooner, and each would be smaller.
const GROUPS_MAX: usize = 1;

/// Whether there are threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// One for the engine and one that writes.
    Two,
    /// None: whoever has the engine says when something is written.
    None,
}

/// Where what is to be written is handed in.
pub(crate) struct Desk {
    /// Held while something is written.
    writer: Arc<Mutex<Writer>>,
    hand: Hand,
}

/// Who writes.
enum Hand {
    Thread {
        /// None when it is stopped.
        orders: Option<Sender<Order>>,
        thread: Option<JoinHandle<()>>,
        /// How many orders it was given, and how many of them are done.
        given: u64,
        done: Arc<AtomicU64>,
        /// Whether the engine's thread may write too.
        shared: bool,
    },
    Nobody {
        waiting: Vec<Order>,
    },
}

impl Desk {
    pub(crate) fn new(writer: Writer, threads: Threads) -> io::Result<Desk> {
        let shared = writer.needs_no_waking();
        let writer = Arc::new(Mutex::new(writer));
        let hand = match threads {
            Threads::None => Hand::Nobody { waiting: Vec::new() },
            Threads::Two => {
                let (orders, inbox) = flume::bounded(GROUPS_MAX);
                let done = Arc::new(AtomicU64::new(0));
                let (writer, written) = (writer.clone(), done.clone());
                let thread = std::thread::Builder::new()
                    .name("geartrain-writer".into())
                    .spawn(move || write(&writer, &inbox, &written))?;
                Hand::Thread { orders: Some(orders), thread: Some(thread), given: 0, done, shared }
            }
        };
        Ok(Desk { writer, hand })
    }

    /// Has a group written: now, if nobody else waits for anything.
    pub(crate) fn write(&mut self, group: Group, alone: bool) {
        let idle = self.is_idle();
        match &mut self.hand {
            Hand::Thread { shared: true, .. } if alone && idle => {
                lock(&self.writer).work([Order::Write(group)], false);
            }
            Hand::Thread { orders: Some(orders), given, .. } => {
                *given += 1;
                // If the thread is gone, dropping the group tells everyone in it.
                let _ = orders.send(Order::Write(group));
            }
            Hand::Thread { orders: None, .. } => {}
            Hand::Nobody { waiting } => {
                waiting.push(Order::Write(group));
                if waiting.len() > GROUPS_MAX + 1 {
                    self.work(usize::MAX);
                }
            }
        }
    }

    /// Whether there is a thread that writes, and it has nothing to do.
    fn is_idle(&self) -> bool {
        matches!(&self.hand, Hand::Thread { given, done, .. } if *given == done.load(Ordering::Acquire))
    }

    /// Makes sure that so much can be written, after all that was handed in.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), Trouble> {
        match &mut self.hand {
            Hand::Thread { orders, given, .. } => {
                let (slot, answer) = flume::bounded(1);
                let orders = orders.as_ref().ok_or(Trouble::Gone)?;
                orders.send(Order::Reserve { bytes, slot }).map_err(|_| Trouble::Gone)?;
                *given += 1;
                answer.recv().map_err(|_| Trouble::Gone)?
            }
            Hand::Nobody { .. } => {
                self.work(usize::MAX);
                lock(&self.writer).reserve(bytes)
            }
        }
    }

    /// Without a thread, writes so many of the groups that were handed in.
    pub(crate) fn work(&mut self, groups: usize) {
        if let Hand::Nobody { waiting } = &mut self.hand {
            let groups = groups.min(waiting.len());
            lock(&self.writer).work(waiting.drain(..groups), false);
        }
    }

    /// Ends the thread, once all is written, and takes back those who listen.
    pub(crate) fn stop(&mut self) -> Subscribers {
        if let Hand::Thread { orders, thread, .. } = &mut self.hand {
            *orders = None;
            // If it panicked it said why.
            let _ = thread.take().map(JoinHandle::join);
        }
        lock(&self.writer).take_subscribers()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread does, until nobody is left to tell it anything.
fn write(writer: &Mutex<Writer>, inbox: &Receiver<Order>, done: &AtomicU64) {
    loop {
        let sync_in = lock(writer).sync_in();
        let first = match sync_in {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait) => inbox.recv_timeout(wait),
        };
        let stop = matches!(first, Err(RecvTimeoutError::Disconnected));
        let orders: Vec<Order> = first.into_iter().chain(inbox.drain()).collect();
        let count = orders.len() as u64;
        lock(writer).work(orders, stop);
        done.fetch_add(count, Ordering::Release);
        if stop {
            return;
        }
    }
}

/// If somebody panicked while they wrote, the trouble is known, and nothing is acknowledged any more.
fn lock(writer: &Mutex<Writer>) -> MutexGuard<'_, Writer> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}
