//! The thread that owns the engine.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flume::{Receiver, WeakSender};
use geartrain_core::engine::{Effects, Engine};
use geartrain_core::{
    Answer, Call, Clock, Command, Count, Detach, DetachScope, Pop, PopReply, QueueName, Refusal, Reply,
    ResultStream, Seconds, Subscription, Tick, TickReply, Timestamp,
};

use crate::delivery::{Answered, BatchSlot, Outgoing, RefusableSlot, Slot};
use crate::desk::Giver;
use crate::followers::{Dropped, Follower, Fronts, Stream};
use crate::keeper::Keeper;
use crate::large::OwnFiles;
use crate::room;
use crate::seat::{Size, Tally, UnderWay};
use crate::subscribers::{EventReceiver, Listeners, Subscriber, subscription};
use crate::trouble::Trouble;
use crate::waiters::{Waiter, Waiters, Wanted};

/// What the thread is asked.
pub(crate) enum Message {
    Batch {
        batch: Vec<Call>,
        slot: BatchSlot,
        /// The files of its large payloads.
        files: Option<OwnFiles>,
    },
    Wait {
        pop: Pop,
        wait: Seconds,
        slot: RefusableSlot<PopReply>,
    },
    /// Somebody wants to know when there is something to pop.
    Ready {
        queues: Vec<QueueName>,
        wait: Seconds,
        slot: RefusableSlot<bool>,
    },
    /// Somebody listens: from now on, or from after a position.
    Subscribe {
        after: Option<u64>,
        slot: RefusableSlot<Box<dyn Subscription>>,
    },
    Follow {
        front: u64,
        slot: RefusableSlot<Box<dyn ResultStream>>,
    },
    /// Whoever is to have every event has those up to a position.
    LetEventsGo {
        position: u64,
    },
    /// Somebody who followed has left: who, if there was room to say it.
    Left {
        dropped: Option<Dropped>,
    },
    /// Time has jumped.
    LookAgain,
    /// The writer has moved payloads: there may be more to move.
    Moved,
    Stop {
        slot: Option<Slot<()>>,
    },
}

/// A message on its way to the thread.
pub(crate) struct Posted {
    pub(crate) message: Message,
    /// Counts it, until whoever sits there takes it, if nobody may overtake it.
    pub(crate) _waits: Option<UnderWay>,
}

impl From<Message> for Posted {
    fn from(message: Message) -> Posted {
        Posted { message, _waits: None }
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

    /// Whether it only frees room, or reads.
    fn frees_room(&self, engine: &Engine) -> bool {
        match self {
            Message::Wait { .. } | Message::Ready { .. } => true,
            _ => self.commands().all(|command| room::frees_room(command, engine)),
        }
    }

    /// About how much it makes the store write down.
    fn bytes(&self, engine: &Engine) -> usize {
        match self {
            Message::Wait { pop, .. } => room::for_pop(pop),
            Message::Ready { queues, .. } => room::for_names(queues),
            _ => self.commands().map(|command| room::for_command(command, engine)).sum(),
        }
    }
}

/// The engine, and everyone who waits for it.
pub(crate) struct Host {
    engine: Engine,
    effects: Effects,
    clock: Arc<dyn Clock>,
    inbox: Receiver<Posted>,
    waiters: Waiters,
    fronts: Fronts,
    listeners: Listeners,
    keeper: Keeper,
    outgoing: Vec<Outgoing>,
    stopping: Vec<Slot<()>>,
    /// How many commands were executed whose answers were not passed on.
    executed: usize,
    /// For how many of the next commands the engine has fetched what they need.
    looked_ahead: usize,
    /// How often what was kept was read again.
    recoveries: u64,
    /// What is due is done without being asked for.
    ticks: bool,
    /// How long the next tick is put off at least, however much is due.
    tick_pause: Duration,
    /// When it is next noted who waits for jobs.
    note_waiting_at: Seconds,
    /// Whoever works is not the engine's thread, and must not wait for the disk.
    is_visited: bool,
    /// When somebody else last worked here.
    visited_at: Option<Instant>,
    /// What the wall clock showed when it was last read.
    last_now: Timestamp,
    /// When locks are next shortened, by the monotonic clock, if the wall clock went back.
    shorten_locks_at: Option<Seconds>,
    /// Names are not freed before this, by the monotonic clock.
    reclaim_at: Seconds,
}

/// After more commands than so, others are likely to ask for something while they are written down, even if nobody does yet.
const ALONE_COMMANDS_MAX: usize = 128;
/// What somebody writes down who cannot wait, at the most, and what they have written by others.
const LITTLE_BYTES_MAX: usize = 64 << 10;
const MUCH_BYTES_MAX: usize = 1 << 20;
/// How long to sleep at least: what is due at this very moment may have been tried a moment too early.
const NAP: Duration = Duration::from_millis(1);
/// How long the engine's thread leaves a snapshot to those who visit: each takes it further, and would find the seat taken.
const SNAPSHOT_NAP: Duration = Duration::from_millis(10);
/// How long to sleep when nothing can be kept: until somebody asks, but those who wait are to be turned away in time.
const TROUBLE_NAP: Duration = Duration::from_secs(1);
/// How long to sleep at most for a moment of the wall clock: setting the clock forward does not end a sleep, so it
/// is read once a second.
const WALL_SLEEP_MAX: Duration = Duration::from_secs(1);
/// How long to sleep at most: an hour, because a far moment may not fit a duration.
const SLEEP_SECONDS_MAX: f64 = 3600.0;
/// The wall clock was set back if it shows a time that is so many seconds before the last one. Less can be a clock that is slowed down.
const CLOCK_BACK_SECONDS: f64 = 1.0;
/// How often names are freed at most, so that one which is used again and again is not interned for each job.
const RECLAIM_SECONDS: f64 = 1.0;
/// How many names are examined, or locks shortened, at a time: others may have asked for something meanwhile.
const UPKEEP_MAX: usize = 1_000;

impl Host {
    pub(crate) fn new(
        engine: Engine,
        clock: Arc<dyn Clock>,
        inbox: Receiver<Posted>,
        again: WeakSender<Posted>,
        tally: &Tally,
        keeper: Keeper,
    ) -> Host {
        let effects = Effects { listening: engine.keeps_events(), ..keeper.effects() };
        Host {
            engine,
            effects,
            clock,
            inbox,
            waiters: Waiters::default(),
            fronts: Fronts::new(again, tally.clone()),
            listeners: Listeners::default(),
            keeper,
            outgoing: Vec::new(),
            stopping: Vec::new(),
            executed: 0,
            looked_ahead: 0,
            recoveries: 0,
            ticks: false,
            tick_pause: NAP,
            note_waiting_at: Seconds::ZERO,
            is_visited: false,
            visited_at: None,
            last_now: Timestamp::ZERO,
            shorten_locks_at: None,
            reclaim_at: Seconds::ZERO,
        }
    }

    /// Does what is due by itself from now on.
    pub(crate) fn begin(&mut self) {
        self.ticks = true;
        // Before this process began the clock may have been set back.
        self.last_now = self.clock.now();
        self.shorten_locks_at = Some(self.clock.elapsed());
        // At once: a lock that is taken from here on is as long as its caller's clock makes it.
        while self.shorten_locks() {}
        // What was read may be more than fits into memory.
        self.send();
    }

    /// Whether a batch can be done by somebody who cannot wait: nothing is asked or due, there is room for it, and if it is little nothing is under way.
    pub(crate) fn is_free_for(&mut self, batch: &[Call], size: Size) -> bool {
        let bytes: usize = batch.iter().map(|call| room::for_command(&call.command, &self.engine)).sum();
        let is_passing = |call: &Call| self.engine.is_ephemeral_command(self.clock.now(), &call.command);
        let may = match size {
            // What must be written is better written together with what others ask for.
            Size::Little => {
                bytes <= LITTLE_BYTES_MAX && (self.keeper.keeps_nothing() || batch.iter().all(is_passing))
            }
            Size::Much => bytes <= MUCH_BYTES_MAX,
        };
        may && self.inbox.is_empty()
            && !self.fronts.has_left()
            && self.keeper.is_free_for(bytes, size)
            && self.engine.next_tick().is_none_or(|due| due > self.clock.now())
    }

    /// Does what is asked by somebody who cannot wait: not for the disk either. What others ask meanwhile is left to the thread.
    pub(crate) fn visit(&mut self, message: Message) {
        self.is_visited = true;
        self.do_all(vec![message], Vec::new());
        self.is_visited = false;
        self.visited_at = Some(Instant::now());
    }

    /// Takes all that is waiting at once, so that one commit can cover it. Says whether it is told to stop.
    pub(crate) fn round(&mut self, first: Option<Posted>) -> bool {
        // Looked at before the inbox, so that what they had asked for before they left is done before they leave.
        let left = self.fronts.take_left();
        let posted = first.into_iter().chain(self.inbox.drain());
        let messages: Vec<Message> = posted.map(|posted| posted.message).collect();
        let stop = messages.iter().any(|message| matches!(message, Message::Stop { .. }));
        self.do_all(messages, left);
        stop
    }

    fn do_all(&mut self, messages: Vec<Message>, left: Vec<Dropped>) {
        match self.recover(!messages.is_empty() && !self.is_visited) {
            Ok(()) => {
                self.work_on(messages);
                left.iter().for_each(|dropped| self.leave(dropped));
            }
            Err(trouble) => refuse(messages, &trouble),
        }
        self.turn_away();
        self.send();
    }

    /// Without a thread that writes, writes so many of the groups that were handed in.
    pub(crate) fn write(&mut self, groups: usize) {
        self.keeper.write(groups);
    }

    fn work_on(&mut self, messages: Vec<Message>) {
        // What came due meanwhile belongs to those who wait for it, and not to those who ask now.
        if self.ticks {
            self.shorten_locks();
            self.tick();
            self.reclaim();
        }
        self.serve_due();
        let mut messages = self.refuse_without_room(messages).into_iter();
        self.looked_ahead = 0;
        loop {
            self.look_ahead(messages.as_slice().iter().flat_map(Message::commands));
            let Some(message) = messages.next() else { return };
            self.take(message);
        }
    }

    /// Fetches what the next commands need, unless that was done.
    fn look_ahead<'a>(&mut self, commands: impl Iterator<Item = &'a Command>) {
        if self.looked_ahead == 0 {
            self.looked_ahead = self.engine.prefetch(commands);
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Batch { mut batch, slot, files } => {
                let now = self.clock.now();
                self.note_clock(now);
                let mut answers = Vec::with_capacity(batch.len());
                for at in 0..batch.len() {
                    self.look_ahead(batch[at..].iter().map(|call| &call.command));
                    self.looked_ahead = self.looked_ahead.saturating_sub(1);
                    let Call { now: given, command } = &mut batch[at];
                    answers.push(self.execute(given.unwrap_or(now), command));
                    self.serve_stirred(now);
                }
                // A command may have been refused, or have joined another job.
                for file in files.map(OwnFiles::adopt).into_iter().flatten() {
                    self.engine.release_payload_file_unless_needed(file);
                }
                self.outgoing.push(Outgoing::Batch { slot, answered: Answered { answers, spent: batch } });
            }
            // Whoever has gone away already is not given a job.
            Message::Wait { slot, .. } if slot.is_disconnected() => {}
            Message::Ready { slot, .. } if slot.is_disconnected() => {}
            Message::Wait { pop, wait, slot } => {
                let now = self.clock.now();
                let answer = self.pop(now, pop.clone());
                self.serve_stirred(now);
                match answer {
                    Ok(nothing) if nothing.jobs.is_empty() && pop.count.get() > 0 && wait > Seconds::ZERO => {
                        self.wait(now, wait, Wanted::Jobs { pop, nothing, slot });
                    }
                    answer => self.outgoing.push(Outgoing::Pop(slot, answer)),
                }
            }
            Message::Ready { queues, wait, slot } => {
                let now = self.clock.now();
                // What came due meanwhile belongs to the pops that wait for it.
                self.serve(now, self.waiters.due_queues(now));
                match self.engine.is_any_ready(&queues, now) {
                    Ok(false) if wait > Seconds::ZERO => self.wait(now, wait, Wanted::Word { queues, slot }),
                    answer => self.outgoing.push(Outgoing::Ready(slot, answer)),
                }
            }
            Message::Subscribe { after, slot } => {
                // What happened before is not for the newcomer, unless they ask for it, and then they get it all at once.
                self.send();
                let answer = self.subscribe(after);
                self.outgoing.push(Outgoing::Subscribe(slot, answer.map(Box::new)));
                self.send();
            }
            Message::Follow { front, slot } => {
                let answer = self.follow(front);
                self.outgoing.push(Outgoing::Follow(slot, answer.map(Box::new)));
                // What is told from here on is for the newcomer, so it goes out later.
                self.send();
            }
            Message::LetEventsGo { position } => self.engine.ack_events(position),
            Message::LookAgain => self.serve(self.clock.now(), self.waiters.queues()),
            // What is sent next takes it in.
            Message::Moved => {}
            Message::Left { dropped } => dropped.iter().for_each(|dropped| self.leave(dropped)),
            // Whoever asked hears of it when the thread lets go of everything.
            Message::Stop { slot } => self.stopping.extend(slot),
        }
    }

    fn execute(&mut self, now: Timestamp, command: &mut Command) -> Answer {
        self.executed += 1;
        if let Command::Tick(_) = command {
            return self.execute_tick(now, command);
        }
        self.engine.execute_in_place(now, command, &mut self.effects)
    }

    /// A tick may find that nobody has listened, or that a worker was silent, for long. So it is told first who listens and who waits.
    fn execute_tick(&mut self, now: Timestamp, tick: &mut Command) -> Answer {
        if self.clock.elapsed() >= self.note_waiting_at {
            self.note_waiting_at = self.clock.elapsed() + note_waiting_after();
            for pop in self.waiters.pops() {
                self.engine.note_parked_poll(now, pop, &mut self.effects);
            }
        }
        if self.listeners.any() {
            self.listen(now);
        }
        let answer = self.engine.execute_in_place(now, tick, &mut self.effects);
        self.effects.listening = self.engine.keeps_events();
        answer
    }

    /// Lets somebody listen, from after a position if one is given.
    fn subscribe(&mut self, after: Option<u64>) -> Result<(Subscriber, EventReceiver), Refusal> {
        let before = after.map_or(Ok(Vec::new()), |after| self.engine.events_after(after))?;
        self.listen(self.clock.now());
        let (subscriber, subscription) = subscription(before, self.engine.event_position());
        self.listeners.add(&subscriber);
        Ok((subscriber, subscription))
    }

    /// Somebody listens: what happens is to be told, and kept.
    fn listen(&mut self, now: Timestamp) {
        self.engine.start_event_log(now, &mut self.effects);
        self.effects.listening = self.engine.keeps_events();
    }

    /// Lets somebody hear what those are told who wait.
    fn follow(&mut self, front: u64) -> Result<(Follower, Stream), Refusal> {
        let (follower, stream, must_leave) = self.fronts.follow(front)?;
        if must_leave {
            self.all_leave(front);
        }
        Ok((follower, stream))
    }

    /// Lets those leave who waited through a stream that was dropped.
    fn leave(&mut self, dropped: &Dropped) {
        if let Some(front) = self.fronts.let_go(dropped) {
            self.all_leave(front);
        }
    }

    fn all_leave(&mut self, front: u64) {
        let now = self.clock.now();
        // Nobody is told that it cannot be done: there is nobody left.
        let _ = self.execute(now, &mut Detach { scope: DetachScope::Stream(front) }.into());
        self.serve_stirred(now);
    }

    /// Does what is due, if anything is: not too much at a time.
    fn tick(&mut self) {
        self.tick_pause = NAP;
        let Some(due) = self.engine.next_tick() else { return };
        let now = self.clock.now();
        if due > now {
            return;
        }
        let mut tick = Command::from(Tick { count: tick_count() });
        let bytes = room::for_command(&tick, &self.engine);
        // What is due may free room: jobs and results that are old go.
        if self.keeper.reserve(bytes).or_else(|_| self.keeper.reserve_to_free(bytes)).is_err() {
            self.tick_pause = TROUBLE_NAP;
            return;
        }
        let answer = self.execute(now, &mut tick);
        self.serve_stirred(now);
        // What is due and cannot be done now is not tried again at once.
        let is_more =
            matches!(answer, Ok(Reply::Tick(TickReply { done, .. })) if done >= tick_count().get() as u64);
        if is_more {
            self.tick_pause = Duration::ZERO;
        }
        // So that the room that was reserved for it is not counted on by what comes next, which should not wait for it either.
        self.pass_on(false);
    }

    /// Notices that the wall clock went back. What was locked before it was last read ends at most a lock length after that, so only
    /// a time before the last one can make a lock too long.
    fn note_clock(&mut self, now: Timestamp) {
        if (self.last_now - now).get() > CLOCK_BACK_SECONDS {
            self.shorten_locks_at = Some(self.clock.elapsed());
        } else if now < self.last_now {
            return;
        }
        self.last_now = now;
    }

    /// If the wall clock was set back, ends locks that would last longer than one taken now, a bounded number at a
    /// time. Says whether there may be more.
    fn shorten_locks(&mut self) -> bool {
        if self.is_visited {
            return false;
        }
        let now = self.clock.now();
        self.note_clock(now);
        if self.shorten_locks_at.is_none_or(|at| at > self.clock.elapsed()) {
            return false;
        }
        if self.keeper.reserve(UPKEEP_MAX * room::UPKEEP_BYTES).is_err() {
            self.shorten_locks_at = Some(self.clock.elapsed() + TROUBLE_NAP.into());
            return false;
        }
        let is_more = self.engine.shorten_locks(now, UPKEEP_MAX, &mut self.effects);
        self.shorten_locks_at = is_more.then(|| self.clock.elapsed());
        self.serve_stirred(now);
        self.pass_on(false);
        is_more
    }

    /// Frees names that nothing needs any more, a few at a time.
    fn reclaim(&mut self) {
        let Some(due) = self.engine.next_reclaim().filter(|_| !self.is_visited) else { return };
        let (now, elapsed) = (self.clock.now(), self.clock.elapsed());
        if due > now || elapsed < self.reclaim_at {
            return;
        }
        let is_more = self.keeper.reserve(UPKEEP_MAX * room::UPKEEP_BYTES).is_ok()
            && self.engine.reclaim(now, UPKEEP_MAX, &mut self.effects);
        if !is_more {
            self.reclaim_at = elapsed + Seconds::new(RECLAIM_SECONDS).unwrap_or_default();
        }
        self.pass_on(false);
    }

    fn pop(&mut self, now: Timestamp, pop: Pop) -> Result<PopReply, Refusal> {
        match self.execute(now, &mut pop.into())? {
            Reply::Pop(reply) => Ok(reply),
            _ => unreachable!("a pop is answered as a pop"),
        }
    }

    /// Lets somebody wait.
    fn wait(&mut self, now: Timestamp, wait: Seconds, wanted: Wanted) {
        for id in self.waiters.gone() {
            self.remove(id);
        }
        let queues = wanted.queues().to_vec();
        self.waiters.add(Waiter { wanted, until: self.clock.elapsed() + wait });
        for queue in &queues {
            self.engine.watch(queue, true, &mut self.effects);
        }
        // The pop that found nothing may have changed something all the same, before the queue was watched.
        self.serve(now, queues);
    }

    /// Hands out what the last command made available, to those who wait for it.
    fn serve_stirred(&mut self, now: Timestamp) {
        if !self.waiters.is_empty() {
            let stirred = self.engine.take_dirty_queues();
            self.serve(now, stirred);
        }
    }

    /// Hands out what has come due.
    fn serve_due(&mut self) {
        if !self.waiters.is_empty() {
            let now = self.clock.now();
            self.serve(now, self.waiters.due_queues(now));
        }
    }

    /// Serves those who wait for queues, first come first served, as long as the queues have anything; and if they still have then, tells
    /// those who only wait for word of it.
    fn serve(&mut self, now: Timestamp, queues: Vec<QueueName>) {
        let mut looked_at = Vec::new();
        let mut queues = VecDeque::from(queues);
        while let Some(queue) = queues.pop_front() {
            // A pop stirs the queue if it hands out a job, or warns a holder: then there may be more to do.
            self.serve_one(now, &queue);
            self.note_due(now, &queue);
            queues.extend(self.engine.take_dirty_queues());
            if self.waiters.has_words() {
                looked_at.push(queue);
            }
        }
        for queue in looked_at {
            if self.engine.is_ready(&queue, now) {
                self.give_word(&queue);
            }
        }
    }

    /// Tells all who wait for it that a queue has something.
    fn give_word(&mut self, queue: &QueueName) {
        for id in self.waiters.words(queue) {
            if let Wanted::Word { slot, .. } = self.remove(id).wanted {
                self.outgoing.push(Outgoing::Ready(slot, Ok(true)));
            }
        }
    }

    /// Serves the first of those who wait for jobs of a queue, if it has anything.
    fn serve_one(&mut self, now: Timestamp, queue: &QueueName) {
        while let Some((id, waiter)) = self.waiters.first(queue)
            && self.engine.is_ready(queue, now)
        {
            if waiter.is_gone() {
                self.remove(id);
                continue;
            }
            let Wanted::Jobs { pop, .. } = &waiter.wanted else { return };
            match self.pop(now, pop.clone()) {
                Ok(reply) if reply.jobs.is_empty() => {}
                answer => {
                    if let Wanted::Jobs { slot, .. } = self.remove(id).wanted {
                        self.outgoing.push(Outgoing::Pop(slot, answer));
                    }
                }
            }
            return;
        }
    }

    /// What is due already was just tried; whatever stops it from being handed out will stir when it is gone.
    fn note_due(&mut self, now: Timestamp, queue: &QueueName) {
        self.waiters.set_due(queue, self.engine.next_due(queue, now));
    }

    /// Answers those who have waited long enough.
    fn turn_away(&mut self) {
        while let Some(id) = self.waiters.overdue(self.clock.elapsed()) {
            let waiter = self.remove(id);
            self.outgoing.push(waiter.in_vain());
        }
    }

    fn remove(&mut self, id: u64) -> Waiter {
        let (waiter, deserted) = self.waiters.remove(id);
        for queue in deserted {
            self.engine.watch(&queue, false, &mut self.effects);
        }
        waiter
    }

    /// How long nothing can happen by itself; none if nobody waits for anything and nothing comes due.
    pub(crate) fn sleep(&self) -> Option<Duration> {
        let is_visited = || self.visited_at.is_some_and(|at| at.elapsed() < SNAPSHOT_NAP);
        let busy = self.keeper.is_busy().then(|| if is_visited() { SNAPSHOT_NAP } else { Duration::ZERO });
        if self.fronts.has_left() || busy == Some(Duration::ZERO) {
            return Some(Duration::ZERO);
        }
        if self.keeper.trouble().is_some() {
            return Some(TROUBLE_NAP);
        }
        let (due, tick) = (self.waiters.next_due(), self.engine.next_tick());
        let names = self.engine.next_reclaim().filter(|_| self.ticks);
        let now = if due.or(tick).or(names).is_some() { self.clock.now() } else { Timestamp::ZERO };
        let due = due.map(|due| until(due - now).clamp(NAP, WALL_SLEEP_MAX));
        let tick = tick.map(|tick| until(tick - now).min(WALL_SLEEP_MAX).max(self.tick_pause));
        let until_elapsed = |at: Seconds| until(at - self.clock.elapsed());
        let names = names.map(|at| until(at - now).max(until_elapsed(self.reclaim_at)));
        let locks = self.shorten_locks_at.map(until_elapsed);
        let end = self.waiters.next_end().map(|end| until_elapsed(end).max(NAP));
        [busy, due, tick, names, locks, end].into_iter().flatten().min()
    }

    /// Passes on what happened and what was answered, to be told once it is kept.
    fn send(&mut self) {
        self.pass_on(self.executed <= ALONE_COMMANDS_MAX && self.inbox.is_empty());
    }

    fn pass_on(&mut self, is_alone: bool) {
        self.executed = 0;
        let can_wait = !self.is_visited;
        // Whoever hands something out reads its payload, if that is on the disk.
        let giver = Giver { is_alone: is_alone && (can_wait || !self.effects.any_spilled), can_wait };
        self.keeper.keep(&mut self.effects, std::mem::take(&mut self.outgoing), &mut self.engine, giver);
    }

    /// If an earlier write failed, reads again what was kept, provided that somebody asks who can wait: it may take a while, and may fail again.
    fn recover(&mut self, asked: bool) -> Result<(), Trouble> {
        let Some(trouble) = self.keeper.trouble() else { return Ok(()) };
        if !asked {
            return Err(trouble);
        }
        let engine = self.keeper.recover(self.clock.now(), trouble)?;
        self.recoveries += 1;
        self.go_on_with(engine);
        Ok(())
    }

    /// How often it had to read again what was kept.
    pub(crate) fn recoveries(&self) -> u64 {
        self.recoveries
    }

    /// Turns away, before anything is done, what there is no room to write down. What only reads needs no room.
    fn refuse_without_room(&mut self, messages: Vec<Message>) -> Vec<Message> {
        // Whoever cannot wait has asked before.
        if self.is_visited {
            return messages;
        }
        let bytes = messages.iter().map(|message| message.bytes(&self.engine)).sum();
        let Err(trouble) = self.keeper.reserve(bytes) else { return messages };
        let is_freeing = |message: &Message| message.frees_room(&self.engine);
        let freeing = messages.iter().filter(|message| is_freeing(message));
        let bytes: usize = freeing.map(|message| message.bytes(&self.engine)).sum();
        let may_free = trouble.is_full() && (bytes == 0 || self.keeper.reserve_to_free(bytes).is_ok());
        let (rest, too_much) = messages.into_iter().partition(|message| {
            message.bytes(&self.engine) == 0 || may_free && message.frees_room(&self.engine)
        });
        refuse(too_much, &trouble);
        rest
    }

    /// Goes on with an engine that was read from what was kept. Those who want jobs go on to wait, and those who listen go on to listen; the
    /// streams of those who wait for jobs have ended.
    fn go_on_with(&mut self, engine: Engine) {
        self.engine = engine;
        self.fronts.forget();
        self.effects.events.clear();
        self.effects.deliveries.clear();
        self.effects.listening = self.engine.keeps_events();
        // That somebody listens may not have been kept.
        if self.listeners.any() {
            self.listen(self.clock.now());
        }
        for queue in self.waiters.queues() {
            self.engine.watch(&queue, true, &mut self.effects);
        }
        self.serve(self.clock.now(), self.waiters.queues());
    }
}

/// How much is done at a time of what is due: others may have asked for something meanwhile.
fn tick_count() -> Count {
    Count::new(1_000).expect("it is not too many")
}

/// How long it takes until it is noted again who waits for jobs: often enough that none of them is taken for silent.
fn note_waiting_after() -> Seconds {
    Seconds::from(20)
}

/// A span of time as one that can be slept; none of it if it is over.
fn until(seconds: Seconds) -> Duration {
    Duration::try_from_secs_f64(seconds.get().min(SLEEP_SECONDS_MAX)).unwrap_or_default()
}

/// Answers messages with why they cannot be dealt with.
fn refuse(messages: Vec<Message>, trouble: &Trouble) {
    for message in messages {
        match message {
            Message::Batch { slot, .. } => slot.send(Err(trouble.clone())),
            Message::Wait { slot, .. } => drop(slot.send(Err(trouble.clone()))),
            Message::Ready { slot, .. } => drop(slot.send(Err(trouble.clone()))),
            Message::Subscribe { slot, .. } => drop(slot.send(Err(trouble.clone()))),
            Message::Follow { slot, .. } => drop(slot.send(Err(trouble.clone()))),
            Message::LetEventsGo { .. }
            | Message::LookAgain
            | Message::Moved
            | Message::Left { .. }
            | Message::Stop { .. } => {}
        }
    }
}
