//! The engine loop: the thread that owns the engine executes all queued messages, then commits them as one
//! group.
//!
//! It also serves parked pops when jobs become ready, and executes due work (ticks, lock shortening, name
//! reclaim) between messages. Callers may run the same loop inline, see [`inline_exec`](crate::inline_exec).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flume::{Receiver, WeakSender};
use geartrain_core::engine::{Effects, Engine};
use geartrain_core::{
    Answer, Call, Clock, Command, Count, Detach, DetachScope, Pop, PopReply, QueueName, Refusal, Release,
    Reply, ResultStream, Seconds, Subscription, Tick, TickReply, Timestamp,
};

use crate::commit::pipeline::CommitPipeline;
use crate::commit::queue::SubmitMode;
use crate::error::StoreError;
use crate::inline_exec::{InFlight, InFlightGuard, InlineClass};
use crate::parked::{Parked, ParkedKind, ParkedRequest};
use crate::publish::{BatchReply, BatchSlot, PendingReply, PopGuard, RefusableSlot, Slot};
use crate::reply_guard::{ReplyGuard, Undelivered};
use crate::reservation;
use crate::result_streams::{DroppedStream, StreamReceiver, StreamRegistry, StreamSender};
use crate::spill::large::OwnFiles;
use crate::subscribers::{EventReceiver, LiveSubscribers, Subscriber, subscription};

/// A message to the engine.
pub(crate) enum Message {
    Batch {
        batch: Vec<Call>,
        slot: BatchSlot,
        /// The files of the batch's large payloads.
        files: Option<OwnFiles>,
    },
    ParkPop {
        pop: Pop,
        wait: Seconds,
        slot: Slot<PopGuard>,
    },
    /// Waits until one of the queues has a job to pop.
    AwaitReady {
        queues: Vec<QueueName>,
        wait: Seconds,
        slot: RefusableSlot<bool>,
    },
    /// Subscribes to events: from now on, or from after a position.
    Subscribe {
        after: Option<u64>,
        slot: RefusableSlot<Box<dyn Subscription>>,
    },
    OpenResultStream {
        stream_id: u64,
        slot: RefusableSlot<Box<dyn ResultStream>>,
    },
    /// Counts the jobs.
    CountJobs {
        slot: Slot<u64>,
    },
    /// The reliable consumer has stored the events up to this position.
    AckEvents {
        position: u64,
    },
    /// A result stream was dropped; `None` if it did not fit into the inbox and waits in the overflow.
    StreamDropped {
        dropped: Option<DroppedStream>,
    },
    /// The wall clock jumped forward.
    ClockJumped,
    /// Wakes the engine's thread: there are payloads to spill, undelivered jobs to release, or other work that
    /// is due.
    Wake,
    Stop {
        slot: Option<Slot<()>>,
    },
}

/// A message on its way to the engine.
pub(crate) struct Envelope {
    pub(crate) message: Message,
    /// Counts a message that inline batches must not overtake, until the engine takes it.
    pub(crate) _queued: Option<InFlightGuard>,
}

impl From<Message> for Envelope {
    fn from(message: Message) -> Envelope {
        Envelope { message, _queued: None }
    }
}

impl Message {
    fn commands(&self) -> impl Iterator<Item = &Command> {
        let calls = match self {
            Message::Batch { batch, .. } => &batch[..],
            _ => &[],
        };
        calls.iter().map(|call| &call.command)
    }

    /// Whether the message only reads or frees space.
    fn frees_space(&self, engine: &Engine) -> bool {
        match self {
            Message::ParkPop { .. } | Message::AwaitReady { .. } => true,
            _ => self.commands().all(|command| reservation::frees_space(command, engine)),
        }
    }

    /// An estimate of the log space the message needs.
    fn bytes(&self, engine: &Engine) -> usize {
        match self {
            Message::ParkPop { pop, .. } => reservation::pop_bytes(pop),
            Message::AwaitReady { queues, .. } => reservation::names_bytes(queues),
            _ => self.commands().map(|command| reservation::command_bytes(command, engine)).sum(),
        }
    }
}

/// The engine with its parked pops, result streams and commit pipeline.
pub(crate) struct EngineLoop {
    engine: Engine,
    effects: Effects,
    clock: Arc<dyn Clock>,
    inbox: Receiver<Envelope>,
    parked: Parked,
    streams: StreamRegistry,
    undelivered: Arc<Undelivered>,
    live_subscribers: LiveSubscribers,
    pipeline: CommitPipeline,
    replies: Vec<PendingReply>,
    stop_slots: Vec<Slot<()>>,
    /// Commands executed since the last commit.
    executed: usize,
    /// How many of the next commands the engine has prefetched rows for.
    prefetched: usize,
    /// How often the engine was recovered from disk after a failure.
    recoveries: u64,
    /// Whether due work is executed without a `Tick` command.
    auto_tick: bool,
    /// Minimum pause before the next tick, however much is due.
    tick_pause: Duration,
    /// When parked workers are next reported to the engine as alive.
    note_parked_at: Seconds,
    /// The changes of capabilities after which parked pops were grouped.
    grouped_at: u64,
    /// A caller executes inline: it must not wait for the disk.
    is_inline: bool,
    /// When a caller last executed inline.
    last_inline_at: Option<Instant>,
    /// The wall clock when it was last read.
    last_now: Timestamp,
    /// When locks are next shortened, by the monotonic clock, if the wall clock went back.
    shorten_locks_at: Option<Seconds>,
    /// Names are not reclaimed before this time of the monotonic clock.
    reclaim_at: Seconds,
}

/// After more commands than this, further messages are likely to arrive during the commit, so the committer
/// thread does it.
const INLINE_COMMIT_COMMANDS_MAX: usize = 128;
/// Log bytes of an inline batch, at most.
const SMALL_BYTES_MAX: usize = 64 << 10;
const BULK_BYTES_MAX: usize = 1 << 20;
/// Minimum sleep: what is due at this very moment may have been tried a moment too early.
const SLEEP_MIN: Duration = Duration::from_millis(1);
/// How long the engine's thread leaves a snapshot to inline callers: each takes it one step further, and
/// would find the engine locked.
const SNAPSHOT_YIELD: Duration = Duration::from_millis(10);
/// How often parked requests are expired while the store has failed and waits for a caller to retry.
const FAILED_SLEEP: Duration = Duration::from_secs(1);
/// Maximum sleep for a time of the wall clock: setting the clock forward does not end a sleep, so the clock
/// is read once a second.
const WALL_SLEEP_MAX: Duration = Duration::from_secs(1);
/// Maximum sleep, because a far time may not fit a `Duration`.
const SLEEP_SECONDS_MAX: f64 = 3600.0;
/// The wall clock was set back if it is this much before the last reading. Less can be a clock that is slowed
/// down.
const CLOCK_BACK_SECONDS: f64 = 1.0;
/// Minimum time between two reclaims, so that a name in constant use is not interned for each job.
const RECLAIM_SECONDS: f64 = 1.0;
/// Names examined, or locks shortened, per step: messages may have arrived meanwhile.
const UPKEEP_MAX: usize = 1_000;

impl EngineLoop {
    pub(crate) fn new(
        engine: Engine,
        clock: Arc<dyn Clock>,
        inbox: Receiver<Envelope>,
        inbox_sender: WeakSender<Envelope>,
        in_flight: &InFlight,
        pipeline: CommitPipeline,
    ) -> EngineLoop {
        let effects = Effects { listening: engine.keeps_events(), ..pipeline.new_effects() };
        EngineLoop {
            engine,
            effects,
            clock,
            inbox,
            parked: Parked::default(),
            streams: StreamRegistry::new(inbox_sender.clone(), in_flight.clone()),
            undelivered: Arc::new(Undelivered::new(inbox_sender)),
            live_subscribers: LiveSubscribers::default(),
            pipeline,
            replies: Vec::new(),
            stop_slots: Vec::new(),
            executed: 0,
            prefetched: 0,
            recoveries: 0,
            auto_tick: false,
            tick_pause: SLEEP_MIN,
            note_parked_at: Seconds::ZERO,
            grouped_at: 0,
            is_inline: false,
            last_inline_at: None,
            last_now: Timestamp::ZERO,
            shorten_locks_at: None,
            reclaim_at: Seconds::ZERO,
        }
    }

    /// Starts to execute due work without commands.
    pub(crate) fn start(&mut self) {
        self.auto_tick = true;
        // The clock may have been set back before this process began.
        self.last_now = self.clock.now();
        self.shorten_locks_at = Some(self.clock.elapsed());
        // At once: a lock taken from here on is as long as its caller's clock makes it.
        while self.shorten_locks() {}
        // The recovered payloads may exceed the memory limit.
        self.commit();
    }

    /// Whether a batch can be executed inline: the inbox is empty, nothing is due, the batch is within its
    /// byte limit and fits into the reservation, and for a small batch nothing is in flight.
    pub(crate) fn can_run_inline(&mut self, batch: &[Call], class: InlineClass) -> bool {
        let bytes: usize =
            batch.iter().map(|call| reservation::command_bytes(&call.command, &self.engine)).sum();
        let is_ephemeral = |call: &Call| self.engine.is_ephemeral_command(self.clock.now(), &call.command);
        let may = match class {
            // Changes that must be synced are better committed as a group with those of other callers.
            InlineClass::Small => {
                bytes <= SMALL_BYTES_MAX && (self.pipeline.is_volatile() || batch.iter().all(is_ephemeral))
            }
            InlineClass::Bulk => bytes <= BULK_BYTES_MAX,
        };
        may && self.inbox.is_empty()
            && !self.streams.has_dropped()
            && !self.undelivered.any()
            && self.pipeline.can_commit_now(bytes, class)
            && {
                let now = self.clock.now();
                self.engine.next_tick(now).is_none_or(|due| due > now)
            }
    }

    /// Executes a message on the caller's thread, without waiting for the disk. Queued messages are left to
    /// the engine's thread.
    pub(crate) fn run_inline(&mut self, message: Message) {
        self.is_inline = true;
        self.process(vec![message], Vec::new());
        self.is_inline = false;
        self.last_inline_at = Some(Instant::now());
    }

    /// Executes all queued messages, so that one commit covers them. Returns whether one of them was a stop.
    pub(crate) fn run_once(&mut self, first: Option<Envelope>) -> bool {
        // Taken before the inbox is read, so that the messages of a client are executed before the client is
        // detached.
        let dropped_streams = self.streams.take_dropped();
        let undelivered = self.undelivered.take();
        let envelope = first.into_iter().chain(self.inbox.drain());
        let mut messages: Vec<Message> = envelope.map(|envelope| envelope.message).collect();
        if !undelivered.is_empty() {
            // First, so that these jobs are in front of what the other messages do.
            messages.insert(0, release_batch(undelivered));
        }
        let stop = messages.iter().any(|message| matches!(message, Message::Stop { .. }));
        self.process(messages, dropped_streams);
        stop
    }

    fn process(&mut self, messages: Vec<Message>, dropped_streams: Vec<DroppedStream>) {
        match self.recover(!messages.is_empty() && !self.is_inline) {
            Ok(()) => {
                self.execute_all(messages);
                dropped_streams.iter().for_each(|dropped| self.close_result_stream(dropped));
            }
            Err(failure) => refuse(messages, &failure),
        }
        self.expire_parked();
        self.commit();
    }

    /// Without a committer thread, commits this many of the queued groups.
    pub(crate) fn commit_queued(&mut self, groups: usize) {
        self.pipeline.commit_queued(groups);
    }

    fn execute_all(&mut self, messages: Vec<Message>) {
        // Jobs that came due belong to the pops parked before, not to the new messages.
        if self.auto_tick {
            self.shorten_locks();
            self.tick();
            self.fire_periodics();
            self.reclaim();
        }
        self.serve_due_queues();
        let mut messages = self.refuse_without_space(messages).into_iter();
        self.prefetched = 0;
        loop {
            self.prefetch_for(messages.as_slice().iter().flat_map(Message::commands));
            let Some(message) = messages.next() else { return };
            self.handle(message);
        }
    }

    /// Prefetches the rows of the next commands, unless that was done.
    fn prefetch_for<'a>(&mut self, commands: impl Iterator<Item = &'a Command>) {
        if self.prefetched == 0 {
            self.prefetched = self.engine.prefetch(commands);
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Batch { mut batch, slot, files } => {
                let now = self.clock.now();
                self.note_clock(now);
                let mut answers = Vec::with_capacity(batch.len());
                for at in 0..batch.len() {
                    self.prefetch_for(batch[at..].iter().map(|call| &call.command));
                    self.prefetched = self.prefetched.saturating_sub(1);
                    let Call { now: given, command, by } = &mut batch[at];
                    if by.is_some() && command.records_caller() {
                        self.effects.by = by.take();
                    }
                    answers.push(self.execute(given.unwrap_or(now), command));
                    self.serve_dirty_queues(now);
                }
                // A command may have been refused, or have joined another job, and then does not need its
                // file.
                for file in files.map(OwnFiles::adopt).into_iter().flatten() {
                    self.engine.release_payload_file_unless_needed(file);
                }
                let reply = BatchReply { answers, spent_calls: batch };
                let reply = ReplyGuard::new(reply, &self.undelivered);
                self.replies.push(PendingReply::Batch { slot, reply });
            }
            // A caller that has gone does not get a job.
            Message::ParkPop { slot, .. } if slot.is_disconnected() => {}
            Message::AwaitReady { slot, .. } if slot.is_disconnected() => {}
            Message::ParkPop { pop, wait, slot } => {
                let now = self.clock.now();
                let answer = self.pop(now, pop.clone());
                self.serve_dirty_queues(now);
                match answer {
                    Ok(empty_reply)
                        if empty_reply.jobs.is_empty() && pop.count.get() > 0 && wait > Seconds::ZERO =>
                    {
                        let empty_reply = self.guarded(Ok(empty_reply));
                        self.park(now, wait, ParkedKind::Pop { pop, empty_reply, slot });
                    }
                    answer => self.replies.push(PendingReply::Pop(slot, self.guarded(answer))),
                }
            }
            Message::AwaitReady { queues, wait, slot } => {
                let now = self.clock.now();
                // Jobs that came due meanwhile belong to the pops parked for them.
                self.serve_queues(now, self.parked.due_queues(now));
                match self.engine.is_any_ready(&queues, now) {
                    Ok(false) if wait > Seconds::ZERO => {
                        self.park(now, wait, ParkedKind::Ready { queues, slot })
                    }
                    answer => self.replies.push(PendingReply::Ready(slot, answer)),
                }
            }
            Message::Subscribe { after, slot } => {
                // Earlier events are not for the new subscriber, unless it asks for them, and then they are
                // its backlog.
                self.commit();
                let answer = self.subscribe(after);
                self.replies.push(PendingReply::Subscribe(slot, answer.map(Box::new)));
                self.commit();
            }
            Message::OpenResultStream { stream_id, slot } => {
                let answer = self.open_result_stream(stream_id);
                self.replies.push(PendingReply::OpenResultStream(slot, answer.map(Box::new)));
                // Later items are for the new stream, so they go out after it is open.
                self.commit();
            }
            Message::CountJobs { slot } => drop(slot.send(Ok(self.engine.job_count()))),
            Message::AckEvents { position } => self.engine.ack_events(position),
            Message::ClockJumped => self.serve_queues(self.clock.now(), self.parked.queues()),
            // What there is to do is found without the message.
            Message::Wake => {}
            Message::StreamDropped { dropped } => {
                dropped.iter().for_each(|dropped| self.close_result_stream(dropped))
            }
            // Answered when the engine is dropped.
            Message::Stop { slot } => self.stop_slots.extend(slot),
        }
    }

    fn execute(&mut self, now: Timestamp, command: &mut Command) -> Answer {
        self.executed += 1;
        if let Command::Tick(_) = command {
            return self.execute_tick(now, command);
        }
        self.engine.execute_in_place(now, command, &mut self.effects)
    }

    /// A tick may drop an event log without subscribers, or a silent worker. So subscribers and parked
    /// workers are reported first.
    fn execute_tick(&mut self, now: Timestamp, tick: &mut Command) -> Answer {
        if self.clock.elapsed() >= self.note_parked_at {
            self.note_parked_at = self.clock.elapsed() + note_parked_interval();
            for pop in self.parked.pops() {
                self.engine.note_parked_poll(now, pop, &mut self.effects);
            }
        }
        if self.live_subscribers.any() {
            self.start_event_log(now);
        }
        let answer = self.engine.execute_in_place(now, tick, &mut self.effects);
        self.effects.listening = self.engine.keeps_events();
        answer
    }

    /// Subscribes to events, with those after a position as backlog if one is given.
    fn subscribe(&mut self, after: Option<u64>) -> Result<(Subscriber, EventReceiver), Refusal> {
        let before = after.map_or(Ok(Vec::new()), |after| self.engine.events_after(after))?;
        self.start_event_log(self.clock.now());
        let (subscriber, subscription) = subscription(before, self.engine.event_position());
        self.live_subscribers.add(&subscriber);
        Ok((subscriber, subscription))
    }

    /// Makes the engine produce and retain events.
    fn start_event_log(&mut self, now: Timestamp) {
        self.engine.start_event_log(now, &mut self.effects);
        self.effects.listening = self.engine.keeps_events();
    }

    fn open_result_stream(&mut self, stream_id: u64) -> Result<(StreamSender, StreamReceiver), Refusal> {
        let (sender, stream, must_detach) = self.streams.open(stream_id)?;
        if must_detach {
            self.detach_stream(stream_id);
        }
        Ok((sender, stream))
    }

    /// Detaches the clients of a dropped stream from their jobs.
    fn close_result_stream(&mut self, dropped: &DroppedStream) {
        if let Some(stream_id) = self.streams.remove(dropped) {
            self.detach_stream(stream_id);
        }
    }

    fn detach_stream(&mut self, stream_id: u64) {
        let now = self.clock.now();
        // A refusal concerns no client: they are all gone.
        let _ = self.execute(now, &mut Detach { scope: DetachScope::Stream(stream_id) }.into());
        self.serve_dirty_queues(now);
    }

    /// Executes due work, a bounded amount at a time.
    fn tick(&mut self) {
        self.tick_pause = SLEEP_MIN;
        let now = self.clock.now();
        if self.engine.next_tick(now).is_none_or(|due| due > now) {
            return;
        }
        let mut tick = Command::from(Tick { count: tick_count() });
        let bytes = reservation::command_bytes(&tick, &self.engine);
        // Due work may free space: expired jobs and results are removed.
        if self.pipeline.reserve(bytes).or_else(|_| self.pipeline.reserve_freeing(bytes)).is_err() {
            self.tick_pause = FAILED_SLEEP;
            return;
        }
        let answer = self.execute(now, &mut tick);
        self.serve_dirty_queues(now);
        // Due work that cannot be done now is not tried again at once.
        let is_more =
            matches!(answer, Ok(Reply::Tick(TickReply { done, .. })) if done >= tick_count().get() as u64);
        if is_more {
            self.tick_pause = Duration::ZERO;
        }
        // Commits now, so that the next message does not use the space reserved for the tick; and not inline,
        // so that it does not wait either.
        self.commit_as(false);
    }

    /// Runs the periodic jobs that are due, a bounded number at a time.
    fn fire_periodics(&mut self) {
        let now = self.clock.now();
        if self.engine.next_periodic().is_none_or(|due| due > now) {
            return;
        }
        // They are committed together, so the space for all of them is reserved.
        let mut bytes = 0;
        for fire in self.engine.due_fires(now, fire_count()) {
            let mut fire = Command::from(fire);
            bytes += reservation::command_bytes(&fire, &self.engine);
            if self.pipeline.reserve(bytes).is_err() {
                self.tick_pause = FAILED_SLEEP;
                break;
            }
            // A refusal concerns a periodic job that is gone.
            let _ = self.execute(now, &mut fire);
        }
        self.serve_dirty_queues(now);
        // As after a tick.
        self.commit_as(false);
    }

    /// Notices that the wall clock went back. A lock taken before the last reading ends at most one lock
    /// length after it, so only a time before the last reading can make a lock too long.
    fn note_clock(&mut self, now: Timestamp) {
        if (self.last_now - now).get() > CLOCK_BACK_SECONDS {
            self.shorten_locks_at = Some(self.clock.elapsed());
        } else if now < self.last_now {
            return;
        }
        self.last_now = now;
    }

    /// If the wall clock was set back, ends locks that would last longer than one taken now, a bounded number
    /// at a time. Returns whether there may be more.
    fn shorten_locks(&mut self) -> bool {
        if self.is_inline {
            return false;
        }
        let now = self.clock.now();
        self.note_clock(now);
        if self.shorten_locks_at.is_none_or(|at| at > self.clock.elapsed()) {
            return false;
        }
        // With a limit of 0 it only tells whether there is a lock to shorten. If not, no log space is
        // reserved.
        if !self.engine.shorten_locks(now, 0, &mut self.effects) {
            self.shorten_locks_at = None;
            return false;
        }
        if self.pipeline.reserve(UPKEEP_MAX * reservation::UPKEEP_BYTES).is_err() {
            self.shorten_locks_at = Some(self.clock.elapsed() + FAILED_SLEEP.into());
            return false;
        }
        let is_more = self.engine.shorten_locks(now, UPKEEP_MAX, &mut self.effects);
        self.shorten_locks_at = is_more.then(|| self.clock.elapsed());
        self.serve_dirty_queues(now);
        self.commit_as(false);
        is_more
    }

    /// Frees interned names that are no longer used, a bounded number at a time.
    fn reclaim(&mut self) {
        let Some(due) = self.engine.next_reclaim().filter(|_| !self.is_inline) else { return };
        let (now, elapsed) = (self.clock.now(), self.clock.elapsed());
        if due > now || elapsed < self.reclaim_at {
            return;
        }
        let is_more = self.pipeline.reserve(UPKEEP_MAX * reservation::UPKEEP_BYTES).is_ok()
            && self.engine.reclaim(now, UPKEEP_MAX, &mut self.effects);
        if !is_more {
            self.reclaim_at = elapsed + Seconds::new(RECLAIM_SECONDS).unwrap_or_default();
        }
        self.commit_as(false);
    }

    fn pop(&mut self, now: Timestamp, pop: Pop) -> Result<PopReply, Refusal> {
        match self.execute(now, &mut pop.into())? {
            Reply::Pop(reply) => Ok(reply),
            _ => unreachable!("the reply to a pop is a pop reply"),
        }
    }

    fn guarded(&self, answer: Result<PopReply, Refusal>) -> PopGuard {
        ReplyGuard::new(answer, &self.undelivered)
    }

    /// Before the engine ends: releases the jobs of replies that could not be sent.
    pub(crate) fn release_undelivered(&mut self) {
        self.pipeline.flush();
        // Once: a release may hand the job to a parked pop, but all that are left are about to fail.
        if self.undelivered.any() {
            self.run_once(None);
        }
    }

    /// Parks a pop or a readiness wait.
    fn park(&mut self, now: Timestamp, wait: Seconds, kind: ParkedKind) {
        for id in self.parked.disconnected() {
            self.unpark(id);
        }
        let queues = kind.queues().to_vec();
        let groups = match &kind {
            ParkedKind::Pop { pop, .. } => self.engine.klasses_of(pop),
            ParkedKind::Ready { .. } => Vec::new(),
        };
        self.parked.add(ParkedRequest { kind, until: self.clock.elapsed() + wait, groups });
        for queue in &queues {
            self.engine.watch(queue, true, &mut self.effects);
        }
        // The pop that found nothing may have changed the queue all the same, before it was watched.
        self.serve_queues(now, queues);
    }

    /// Serves parked pops from the queues that the last command changed.
    fn serve_dirty_queues(&mut self, now: Timestamp) {
        if !self.parked.is_empty() {
            let dirty = self.engine.take_dirty_queues();
            self.serve_queues(now, dirty);
        }
    }

    /// Serves parked pops with jobs that came due.
    fn serve_due_queues(&mut self) {
        if !self.parked.is_empty() {
            let now = self.clock.now();
            self.serve_queues(now, self.parked.due_queues(now));
        }
    }

    /// Serves the parked pops of these queues, first come first served, as long as the queues have jobs. If
    /// jobs are left, answers the readiness waits.
    fn serve_queues(&mut self, now: Timestamp, queues: Vec<QueueName>) {
        let changes = self.engine.capability_changes();
        if std::mem::replace(&mut self.grouped_at, changes) != changes {
            self.parked.regroup(|pop| self.engine.klasses_of(pop));
        }
        let mut checked = Vec::new();
        let mut queues = VecDeque::from(queues);
        while let Some(queue) = queues.pop_front() {
            // A pop marks the queue dirty if it hands out a job or warns a holder: then there may be more to
            // do.
            self.serve_first_parked(now, &queue);
            self.update_due(now, &queue);
            queues.extend(self.engine.take_dirty_queues());
            if self.parked.has_ready_waits() {
                checked.push(queue);
            }
        }
        for queue in checked {
            if self.engine.is_ready(&queue, now) {
                self.notify_ready(&queue);
            }
        }
    }

    /// Answers all readiness waits of a queue.
    fn notify_ready(&mut self, queue: &QueueName) {
        for id in self.parked.ready_waits(queue) {
            if let ParkedKind::Ready { slot, .. } = self.unpark(id).kind {
                self.replies.push(PendingReply::Ready(slot, Ok(true)));
            }
        }
    }

    /// Serves the first parked pop of a queue that finds a job, if the queue has any. Of pops that are
    /// restricted to the same klasses, only the oldest is tried.
    fn serve_first_parked(&mut self, now: Timestamp, queue: &QueueName) {
        let mut tried = 0;
        while let Some((id, request)) = self.parked.next_first(queue, tried)
            && self.engine.is_ready(queue, now)
        {
            if request.is_disconnected() {
                self.unpark(id);
                continue;
            }
            let ParkedKind::Pop { pop, .. } = &request.kind else { return };
            match self.pop(now, pop.clone()) {
                Ok(reply) if reply.jobs.is_empty() => tried = id,
                answer => {
                    let reply = self.guarded(answer);
                    if let ParkedKind::Pop { slot, .. } = self.unpark(id).kind {
                        self.replies.push(PendingReply::Pop(slot, reply));
                    }
                    return;
                }
            }
        }
    }

    /// Already-due jobs were tried above; when what blocks them (a limit, a pause) is lifted, the queue is
    /// marked dirty again.
    fn update_due(&mut self, now: Timestamp, queue: &QueueName) {
        self.parked.set_due(queue, self.engine.next_due(queue, now));
    }

    /// Answers the requests whose wait has ended.
    fn expire_parked(&mut self) {
        while let Some(id) = self.parked.expired(self.clock.elapsed()) {
            let request = self.unpark(id);
            self.replies.push(request.timeout_reply());
        }
    }

    fn unpark(&mut self, id: u64) -> ParkedRequest {
        let (request, unwatched) = self.parked.remove(id);
        for queue in unwatched {
            self.engine.watch(&queue, false, &mut self.effects);
        }
        request
    }

    /// How long until there is work without a message; `None` if nothing is parked or comes due.
    pub(crate) fn sleep(&self) -> Option<Duration> {
        let is_inline = || self.last_inline_at.is_some_and(|at| at.elapsed() < SNAPSHOT_YIELD);
        let busy = self
            .pipeline
            .is_snapshotting()
            .then(|| if is_inline() { SNAPSHOT_YIELD } else { Duration::ZERO });
        if self.streams.has_dropped() || self.undelivered.any() || busy == Some(Duration::ZERO) {
            return Some(Duration::ZERO);
        }
        if self.pipeline.failure().is_some() {
            return Some(FAILED_SLEEP);
        }
        let now = self.clock.now();
        let (due, tick) = (self.parked.next_due(), self.engine.next_tick(now));
        let periodic = self.engine.next_periodic().filter(|_| self.auto_tick);
        let tick = tick.into_iter().chain(periodic).min();
        let names = self.engine.next_reclaim().filter(|_| self.auto_tick);
        let due = due.map(|due| sleepable(due - now).clamp(SLEEP_MIN, WALL_SLEEP_MAX));
        let tick = tick.map(|tick| sleepable(tick - now).min(WALL_SLEEP_MAX).max(self.tick_pause));
        let until_elapsed = |at: Seconds| sleepable(at - self.clock.elapsed());
        let names = names.map(|at| sleepable(at - now).max(until_elapsed(self.reclaim_at)));
        let locks = self.shorten_locks_at.map(until_elapsed);
        let end = self.parked.next_deadline().map(|end| until_elapsed(end).max(SLEEP_MIN));
        [busy, due, tick, names, locks, end].into_iter().flatten().min()
    }

    /// Commits the effects and replies since the last commit.
    fn commit(&mut self) {
        self.commit_as(self.executed <= INLINE_COMMIT_COMMANDS_MAX && self.inbox.is_empty());
    }

    fn commit_as(&mut self, commit_inline: bool) {
        self.executed = 0;
        let may_block = !self.is_inline;
        // Reading a spilled payload would block.
        let mode =
            SubmitMode { inline: commit_inline && (may_block || !self.effects.any_spilled), may_block };
        self.pipeline.commit(&mut self.effects, std::mem::take(&mut self.replies), &mut self.engine, mode);
    }

    /// After a failed commit, recovers from disk, provided that a caller asks who can wait: recovery may take
    /// a while, and may fail again.
    fn recover(&mut self, may_recover: bool) -> Result<(), StoreError> {
        let Some(failure) = self.pipeline.failure() else { return Ok(()) };
        if !may_recover {
            return Err(failure);
        }
        let engine = self.pipeline.recover(self.clock.now(), failure)?;
        self.recoveries += 1;
        self.resume_with(engine);
        Ok(())
    }

    pub(crate) fn recoveries(&self) -> u64 {
        self.recoveries
    }

    /// Refuses, before anything is executed, the messages whose changes do not fit into the log. Reads need
    /// no space.
    fn refuse_without_space(&mut self, messages: Vec<Message>) -> Vec<Message> {
        // Checked by `can_run_inline`.
        if self.is_inline {
            return messages;
        }
        let bytes = messages.iter().map(|message| message.bytes(&self.engine)).sum();
        let Err(failure) = self.pipeline.reserve(bytes) else { return messages };
        let is_freeing = |message: &Message| message.frees_space(&self.engine);
        let freeing = messages.iter().filter(|message| is_freeing(message));
        let bytes: usize = freeing.map(|message| message.bytes(&self.engine)).sum();
        let may_free = failure.is_full() && (bytes == 0 || self.pipeline.reserve_freeing(bytes).is_ok());
        let (rest, refused) = messages.into_iter().partition(|message| {
            message.bytes(&self.engine) == 0 || may_free && message.frees_space(&self.engine)
        });
        refuse(refused, &failure);
        rest
    }

    /// Continues with a recovered engine. Parked pops stay parked and subscriptions go on; result streams
    /// have ended.
    fn resume_with(&mut self, engine: Engine) {
        self.engine = engine;
        self.streams.clear();
        self.effects.events.clear();
        self.effects.deliveries.clear();
        self.effects.listening = self.engine.keeps_events();
        // The event log may not have been durable.
        if self.live_subscribers.any() {
            self.start_event_log(self.clock.now());
        }
        for queue in self.parked.queues() {
            self.engine.watch(&queue, true, &mut self.effects);
        }
        self.serve_queues(self.clock.now(), self.parked.queues());
    }
}

/// Due work per tick, at most: messages may have arrived meanwhile.
fn tick_count() -> Count {
    Count::new(1_000).expect("1,000 is within the limit")
}

/// Periodic jobs that run at a time, likewise.
fn fire_count() -> Count {
    Count::new(100).expect("100 is within the limit")
}

/// How often parked workers are reported as alive: often enough that none is taken for silent.
fn note_parked_interval() -> Seconds {
    Seconds::from(20)
}

/// A span of time as a sleep; zero if it is over.
fn sleepable(seconds: Seconds) -> Duration {
    Duration::try_from_secs_f64(seconds.get().min(SLEEP_SECONDS_MAX)).unwrap_or_default()
}

/// Releases jobs. No caller waits for the answers.
fn release_batch(jobs: Vec<Release>) -> Message {
    let (slot, _) = flume::bounded(1);
    let batch = jobs.into_iter().map(Call::from).collect();
    Message::Batch { batch, slot: BatchSlot { slot, in_flight: None }, files: None }
}

/// Answers messages with the failure.
fn refuse(messages: Vec<Message>, failure: &StoreError) {
    for message in messages {
        match message {
            Message::Batch { slot, .. } => slot.send(Err(failure.clone())),
            Message::ParkPop { slot, .. } => drop(slot.send(Err(failure.clone()))),
            Message::AwaitReady { slot, .. } => drop(slot.send(Err(failure.clone()))),
            Message::Subscribe { slot, .. } => drop(slot.send(Err(failure.clone()))),
            Message::OpenResultStream { slot, .. } => drop(slot.send(Err(failure.clone()))),
            Message::CountJobs { slot } => drop(slot.send(Err(failure.clone()))),
            Message::AckEvents { .. }
            | Message::ClockJumped
            | Message::Wake
            | Message::StreamDropped { .. }
            | Message::Stop { .. } => {}
        }
    }
}
