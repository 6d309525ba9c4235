//! Inline execution (flat combining): a caller executes its own batch on its own thread while the engine is
//! free.
//!
//! Handing a batch to the engine's thread and waking the caller for the reply takes longer than most
//! commands. So a caller that finds the engine free executes a small batch itself. A bulk batch is executed
//! inline too, but the committer thread writes it: then the caller's thread works instead of a third one.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, Sender};
use geartrain_core::{Call, Command};
use parking_lot::{Mutex, MutexGuard};

use crate::engine_loop::{EngineLoop, Envelope, Message};
use crate::error::StoreError;
use crate::publish::{BatchReply, BatchSlot, Slot};
use crate::reply_guard::ReplyGuard;
use crate::spill::large::OwnFiles;

/// Steps of a small batch, at most.
const SMALL_STEPS_MAX: usize = 8;
/// Steps of a bulk batch. With fewer it gains from sharing a commit with other callers; with more it would
/// keep other callers waiting for too long.
const BULK_STEPS: RangeInclusive<usize> = 64..=2048;
/// How late the engine's thread may start work that is due.
const WAKE_SLACK: Duration = Duration::from_micros(100);

/// Exclusive access to the engine, shared by its thread and by callers that execute inline.
pub(crate) struct EngineCell {
    /// `None` once the engine's thread has ended.
    slot: Mutex<Option<EngineSlot>>,
    /// Set when a thread panicked while it held the engine: the engine's state is then unknown, and nothing
    /// is executed any more.
    panicked: AtomicBool,
    in_flight: InFlight,
}

struct EngineSlot {
    engine_loop: EngineLoop,
    /// Until when the engine's thread sleeps if no message arrives; `None` if it sleeps without limit.
    sleeps_until: Option<Instant>,
}

/// Counts the messages that an inline batch must not overtake.
#[derive(Default, Clone)]
pub(crate) struct InFlight {
    /// Batches without a reply, and dropped result streams whose clients are not detached yet.
    pub(crate) unanswered: Arc<AtomicUsize>,
    /// Messages in the engine's inbox, or taken from it and not executed yet.
    pub(crate) queued: Arc<AtomicUsize>,
}

/// Counts one message until it is dropped.
pub(crate) struct InFlightGuard(Arc<AtomicUsize>);

impl InFlightGuard {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> InFlightGuard {
        count.fetch_add(1, Ordering::AcqRel);
        InFlightGuard(count.clone())
    }

    /// Counts the message only if no other is counted.
    fn new_if_first(count: &Arc<AtomicUsize>) -> Option<InFlightGuard> {
        let is_first = count.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        is_first.then(|| InFlightGuard(count.clone()))
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Holds the engine, and sets `panicked` if the thread unwinds meanwhile.
struct EngineGuard<'a> {
    slot: MutexGuard<'a, Option<EngineSlot>>,
    panicked: &'a AtomicBool,
    /// The thread was unwinding already when it took the engine.
    was_panicking: bool,
}

impl Drop for EngineGuard<'_> {
    fn drop(&mut self) {
        if !self.was_panicking && std::thread::panicking() {
            self.panicked.store(true, Ordering::Release);
        }
    }
}

impl EngineCell {
    /// `in_flight` is the same that the engine loop counts with.
    pub(crate) fn new(engine_loop: EngineLoop, in_flight: InFlight) -> EngineCell {
        let slot = Mutex::new(Some(EngineSlot { engine_loop, sleeps_until: None }));
        EngineCell { slot, panicked: AtomicBool::new(false), in_flight }
    }

    /// A counted message for the engine's thread.
    pub(crate) fn envelope(&self, message: Message) -> Envelope {
        Envelope { message, _queued: Some(InFlightGuard::new(&self.in_flight.queued)) }
    }

    pub(crate) fn batch(
        &self,
        batch: Vec<Call>,
        files: Option<OwnFiles>,
        slot: Slot<ReplyGuard<BatchReply>>,
    ) -> Message {
        let in_flight = Some(InFlightGuard::new(&self.in_flight.unanswered));
        Message::Batch { batch, slot: BatchSlot { slot, in_flight }, files }
    }

    /// The engine's thread: executes messages and due work until a stop message arrives, all senders are
    /// gone, or a thread panicked in the engine.
    pub(crate) fn run(&self, inbox: &Receiver<Envelope>) {
        loop {
            let sleep = {
                let mut guard = self.lock();
                let Some(slot) = &mut *guard.slot else { return };
                let sleep = slot.engine_loop.sleep();
                slot.sleeps_until = sleep.map(|sleep| Instant::now() + sleep);
                sleep
            };
            let first = match sleep {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(sleep) => inbox.recv_timeout(sleep),
            };
            let stop = matches!(first, Err(RecvTimeoutError::Disconnected));
            let mut guard = self.lock();
            let has_panicked = self.has_panicked();
            let Some(EngineSlot { engine_loop, .. }) = &mut *guard.slot else { return };
            if has_panicked || engine_loop.run_once(first.ok()) || stop {
                if !has_panicked {
                    engine_loop.release_undelivered();
                }
                *guard.slot = None;
                return;
            }
        }
    }

    /// Executes a batch on this thread, if it is small and nothing else is in flight or due, or if it is bulk
    /// and no message is queued. Returns where the reply will arrive, or the batch if it was not executed.
    pub(crate) fn try_run_inline(
        &self,
        batch: Vec<Call>,
        inbox: &Sender<Envelope>,
    ) -> Result<Receiver<Result<ReplyGuard<BatchReply>, StoreError>>, Vec<Call>> {
        let Some(class) = inline_class(&batch) else { return Err(batch) };
        let InFlight { unanswered, queued } = &self.in_flight;
        let in_flight = match class {
            InlineClass::Small => InFlightGuard::new_if_first(unanswered),
            InlineClass::Bulk => {
                (queued.load(Ordering::Acquire) == 0).then(|| InFlightGuard::new(unanswered))
            }
        };
        let Some(in_flight) = in_flight else { return Err(batch) };
        let Some(mut guard) = self.slot.try_lock().map(|slot| self.guard(slot)) else { return Err(batch) };
        if self.has_panicked() {
            return Err(batch);
        }
        let Some(EngineSlot { engine_loop, sleeps_until }) = &mut *guard.slot else { return Err(batch) };
        if !engine_loop.can_run_inline(&batch, class) {
            return Err(batch);
        }
        let (slot, reply) = flume::bounded(1);
        let slot = BatchSlot { slot, in_flight: Some(in_flight) };
        engine_loop.run_inline(Message::Batch { batch, slot, files: None });
        let due = engine_loop.sleep().map(|sleep| Instant::now() + sleep.max(WAKE_SLACK));
        let is_earlier = due.is_some_and(|due| sleeps_until.is_none_or(|until| due < until));
        drop(guard);
        if is_earlier {
            // If the inbox is full the engine's thread is awake, and looks at what is due when it has read
            // it.
            let _ = inbox.try_send(Message::Wake.into());
        }
        Ok(reply)
    }

    fn lock(&self) -> EngineGuard<'_> {
        self.guard(self.slot.lock())
    }

    fn guard<'a>(&'a self, slot: MutexGuard<'a, Option<EngineSlot>>) -> EngineGuard<'a> {
        EngineGuard { slot, panicked: &self.panicked, was_panicking: std::thread::panicking() }
    }

    fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }
}

/// The batches that may be executed inline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InlineClass {
    /// Executed before it could be handed to another thread.
    Small,
    /// Long enough to be worth a commit of its own.
    Bulk,
}

fn inline_class(batch: &[Call]) -> Option<InlineClass> {
    let mut steps = 0_usize;
    for call in batch {
        steps = inline_steps(&call.command)?.saturating_add(steps);
    }
    match steps {
        ..=SMALL_STEPS_MAX => Some(InlineClass::Small),
        _ if BULK_STEPS.contains(&steps) => Some(InlineClass::Bulk),
        _ => None,
    }
}

/// Cost of a command in O(1) steps of 1–2 µs, or `None` if it depends on the amount of data.
fn inline_steps(command: &Command) -> Option<usize> {
    match command {
        Command::Pop(pop) if pop.queues.len() <= SMALL_STEPS_MAX && pop.klasses.is_none() => {
            Some(pop.count.get().max(1))
        }
        Command::Put(put) if put.depends.is_empty() => Some(1),
        Command::Complete(_)
        | Command::Fail(_)
        | Command::Heartbeat(_)
        | Command::Progress(_)
        | Command::Chunk(_)
        | Command::Status(_)
        | Command::Get(_)
        | Command::Canceled(_) => Some(1),
        _ => None,
    }
}
