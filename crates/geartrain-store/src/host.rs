//! The thread that owns the engine.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use flume::{Receiver, RecvTimeoutError};
use geartrain_core::engine::{Effects, Engine};
use geartrain_core::{
    Answer, Call, Clock, Command, Events, Payload, Pop, PopReply, QueueName, Refusal, Reply, Seconds,
    Timestamp,
};

use crate::delivery::{Answered, Outgoing, Slot};
use crate::keeper::Keeper;
use crate::trouble::Trouble;
use crate::waiters::{Waiter, Waiters};

/// What the thread is asked.
pub(crate) enum Message {
    Batch {
        batch: Vec<Call>,
        slot: Slot<Answered>,
    },
    Wait {
        pop: Pop,
        wait: Seconds,
        slot: Slot<Result<PopReply, Refusal>>,
    },
    Subscribe {
        slot: Slot<Box<dyn Events>>,
    },
    /// Time has jumped.
    LookAgain,
    /// The writer has moved payloads: there may be more to move.
    Moved,
    Stop {
        slot: Option<Slot<()>>,
    },
}

impl Message {
    fn commands(&self) -> impl Iterator<Item = &Command> {
        let calls = match self {
            Message::Batch { batch, .. } => &batch[..],
            _ => &[],
        };
        calls.iter().map(|call| &call.command)
    }

    /// About how much it makes the store write down.
    fn bytes(&self) -> usize {
        match self {
            Message::Wait { pop, .. } => MOVED_BYTES + POPPED_BYTES * pop.count.get(),
            _ => self.commands().map(bytes_of).sum(),
        }
    }
}

/// The engine, and everyone who waits for it.
pub(crate) struct Host {
    engine: Engine,
    effects: Effects,
    clock: Arc<dyn Clock>,
    inbox: Receiver<Message>,
    waiters: Waiters,
    keeper: Keeper,
    outgoing: Vec<Outgoing>,
    stopping: Vec<Slot<()>>,
    /// How many commands were executed whose answers were not passed on.
    executed: usize,
    /// For how many of the next commands the engine has fetched what they need.
    looked_ahead: usize,
}

/// After more commands than so, others are likely to ask for something while they are written down, even if nobody does yet.
const ALONE_COMMANDS_MAX: usize = 128;
/// How long to sleep at least: what is due at this very moment may have been tried a moment too early.
const NAP: Duration = Duration::from_millis(1);
/// How long to sleep when nothing can be kept: until somebody asks, but those who wait are to be turned away in time.
const TROUBLE_NAP: Duration = Duration::from_secs(1);
/// How long to sleep at most: an hour, because a far moment may not fit a duration.
const SLEEP_SECONDS_MAX: f64 = 3600.0;

impl Host {
    pub(crate) fn new(
        engine: Engine,
        clock: Arc<dyn Clock>,
        inbox: Receiver<Message>,
        keeper: Keeper,
    ) -> Host {
        Host {
            engine,
            effects: keeper.effects(),
            clock,
            inbox,
            waiters: Waiters::default(),
            keeper,
            outgoing: Vec::new(),
            stopping: Vec::new(),
            executed: 0,
            looked_ahead: 0,
        }
    }

    /// Works until it is told to stop or nobody is left to ask.
    pub(crate) fn run(mut self) {
        // What was read may be more than fits into memory.
        self.send();
        loop {
            let first = match self.sleep() {
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(sleep) => self.inbox.recv_timeout(sleep),
            };
            let stop = matches!(first, Err(RecvTimeoutError::Disconnected));
            if self.round(first.ok()) || stop {
                return;
            }
        }
    }

    /// Takes all that is waiting at once, so that one commit can cover it. Says whether it is told to stop.
    pub(crate) fn round(&mut self, first: Option<Message>) -> bool {
        let messages: Vec<Message> = first.into_iter().chain(self.inbox.drain()).collect();
        let stop = messages.iter().any(|message| matches!(message, Message::Stop { .. }));
        match self.recover(!messages.is_empty()) {
            Ok(()) => self.work_on(messages),
            Err(trouble) => refuse(messages, &trouble),
        }
        self.turn_away();
        self.send();
        stop
    }

    /// Without a thread that writes, writes so many of the groups that were handed in.
    pub(crate) fn write(&mut self, groups: usize) {
        self.keeper.write(groups);
    }

    fn work_on(&mut self, messages: Vec<Message>) {
        // What came due meanwhile belongs to those who wait for it, and not to those who ask now.
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
            self.looked_ahead = self.engine.look_ahead(commands);
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Batch { mut batch, slot } => {
                let now = self.clock.now();
                let mut answers = Vec::with_capacity(batch.len());
                for at in 0..batch.len() {
                    self.look_ahead(batch[at..].iter().map(|call| &call.command));
                    self.looked_ahead = self.looked_ahead.saturating_sub(1);
                    let Call { now: given, command } = &mut batch[at];
                    answers.push(self.execute(given.unwrap_or(now), command));
                    self.serve_stirred(now);
                }
                self.outgoing.push(Outgoing::Batch { slot, answered: Answered { answers, spent: batch } });
            }
            // Whoever has gone away already is not given a job.
            Message::Wait { slot, .. } if slot.is_disconnected() => {}
            Message::Wait { pop, wait, slot } => {
                let now = self.clock.now();
                let answer = self.pop(now, pop.clone());
                self.serve_stirred(now);
                match answer {
                    Ok(nothing) if nothing.jobs.is_empty() && pop.count.get() > 0 && wait > Seconds::ZERO => {
                        self.wait(now, Waiter { pop, nothing, until: self.clock.elapsed() + wait, slot });
                    }
                    answer => self.outgoing.push(Outgoing::Pop(slot, answer)),
                }
            }
            Message::Subscribe { slot } => {
                // What happened before is not for the newcomer.
                self.send();
                self.effects.listening = true;
                self.outgoing.push(Outgoing::Subscribe(slot));
                self.send();
            }
            Message::LookAgain => self.serve(self.clock.now(), self.waiters.queues()),
            // What is sent next takes it in.
            Message::Moved => {}
            // Whoever asked hears of it when the thread lets go of everything.
            Message::Stop { slot } => self.stopping.extend(slot),
        }
    }

    fn execute(&mut self, now: Timestamp, command: &mut Command) -> Answer {
        self.executed += 1;
        self.engine.execute_in_place(now, command, &mut self.effects)
    }

    fn pop(&mut self, now: Timestamp, pop: Pop) -> Result<PopReply, Refusal> {
        match self.execute(now, &mut pop.into())? {
            Reply::Pop(reply) => Ok(reply),
            _ => unreachable!("a pop is answered as a pop"),
        }
    }

    /// Lets somebody wait.
    fn wait(&mut self, now: Timestamp, waiter: Waiter) {
        for id in self.waiters.gone() {
            self.remove(id);
        }
        let queues = waiter.pop.queues.clone();
        self.waiters.add(waiter);
        for queue in &queues {
            self.engine.watch(queue, true, &mut self.effects);
        }
        // The pop that found nothing may have changed something all the same, before the queue was watched.
        self.serve(now, queues);
    }

    /// Hands out what the last command made available, to those who wait for it.
    fn serve_stirred(&mut self, now: Timestamp) {
        if !self.waiters.is_empty() {
            let stirred = self.engine.stirred();
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

    /// Serves those who wait for queues, first come first served, as long as the queues have anything.
    fn serve(&mut self, now: Timestamp, queues: Vec<QueueName>) {
        let mut queues = VecDeque::from(queues);
        while let Some(queue) = queues.pop_front() {
            // A pop stirs the queue if it hands out a job, or warns a holder: then there may be more to do.
            self.serve_one(now, &queue);
            self.note_due(now, &queue);
            queues.extend(self.engine.stirred());
        }
    }

    /// Serves the first of those who wait for a queue, if it has anything.
    fn serve_one(&mut self, now: Timestamp, queue: &QueueName) {
        while let Some(id) = self.waiters.first(queue)
            && self.engine.is_ready(queue, now)
        {
            let waiter = self.waiters.get(id);
            if waiter.slot.is_disconnected() {
                self.remove(id);
                continue;
            }
            match self.pop(now, waiter.pop.clone()) {
                Ok(reply) if reply.jobs.is_empty() => {}
                answer => {
                    let waiter = self.remove(id);
                    self.outgoing.push(Outgoing::Pop(waiter.slot, answer));
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
            self.outgoing.push(Outgoing::Pop(waiter.slot, Ok(waiter.nothing)));
        }
    }

    fn remove(&mut self, id: u64) -> Waiter {
        let (waiter, deserted) = self.waiters.remove(id);
        for queue in deserted {
            self.engine.watch(&queue, false, &mut self.effects);
        }
        waiter
    }

    /// How long nothing can happen by itself; none if nobody waits for anything.
    fn sleep(&self) -> Option<Duration> {
        if self.keeper.is_busy() {
            return Some(Duration::ZERO);
        }
        if self.keeper.trouble().is_some() {
            return Some(TROUBLE_NAP);
        }
        let due = self.waiters.next_due().map(|due| due - self.clock.now());
        let end = self.waiters.next_end().map(|end| end - self.clock.elapsed());
        let seconds = due.into_iter().chain(end).min()?.get().min(SLEEP_SECONDS_MAX);
        Some(Duration::try_from_secs_f64(seconds).unwrap_or_default().max(NAP))
    }

    /// Passes on what happened and what was answered, to be told once it is kept.
    fn send(&mut self) {
        let executed = std::mem::take(&mut self.executed);
        let alone = executed <= ALONE_COMMANDS_MAX && self.inbox.is_empty();
        self.keeper.keep(&mut self.effects, std::mem::take(&mut self.outgoing), &mut self.engine, alone);
    }

    /// If an earlier write failed, reads again what was kept, provided that somebody asks: it may take a while, and may fail again.
    fn recover(&mut self, asked: bool) -> Result<(), Trouble> {
        let Some(trouble) = self.keeper.trouble() else { return Ok(()) };
        if !asked {
            return Err(trouble);
        }
        let engine = self.keeper.recover(trouble)?;
        self.go_on_with(engine);
        Ok(())
    }

    /// Turns away, before anything is done, what there is no room to write down. What only reads needs no room.
    fn refuse_without_room(&mut self, messages: Vec<Message>) -> Vec<Message> {
        let bytes = messages.iter().map(Message::bytes).sum();
        let Err(trouble) = self.keeper.reserve(bytes) else { return messages };
        let (too_much, rest) = messages.into_iter().partition(|message| message.bytes() > 0);
        refuse(too_much, &trouble);
        rest
    }

    /// Goes on with an engine that was read from what was kept. Those who wait go on to wait.
    fn go_on_with(&mut self, engine: Engine) {
        self.engine = engine;
        for queue in self.waiters.queues() {
            self.engine.watch(&queue, true, &mut self.effects);
        }
        self.serve(self.clock.now(), self.waiters.queues());
    }
}

/// Answers messages with why they cannot be dealt with.
fn refuse(messages: Vec<Message>, trouble: &Trouble) {
    for message in messages {
        match message {
            Message::Batch { slot, .. } => drop(slot.send(Err(trouble.clone()))),
            Message::Wait { slot, .. } => drop(slot.send(Err(trouble.clone()))),
            Message::Subscribe { slot } => drop(slot.send(Err(trouble.clone()))),
            Message::LookAgain | Message::Moved | Message::Stop { .. } => {}
        }
    }
}

/// What a command that brings nothing makes the store write down, and then some.
const MOVED_BYTES: usize = 1 << 10;
/// The same for each job that is popped.
const POPPED_BYTES: usize = 64;

/// About how much a command makes the store write down: what it brings, and a good deal for what it moves; nothing if it only reads.
fn bytes_of(command: &Command) -> usize {
    let payload = |payload: &Option<Payload>| payload.as_ref().map_or(0, |payload| payload.bytes().len());
    let brought = match command {
        Command::Get(_)
        | Command::GetMany(_)
        | Command::Length(_)
        | Command::Stats(_)
        | Command::GetConfig(_)
        | Command::AllConfig(_)
        | Command::Tagged(_)
        | Command::TopTags(_)
        | Command::Tracked(_)
        | Command::Failures(_)
        | Command::Failed(_)
        | Command::GetRecurring(_) => return 0,
        Command::Put(put) => put.payload.bytes().len(),
        Command::Heartbeat(beat) => payload(&beat.payload),
        Command::Complete(complete) => payload(&complete.payload),
        Command::Fail(fail) => fail.message.len() + payload(&fail.payload),
        Command::Retry(retry) => retry.message.as_ref().map_or(0, String::len),
        Command::Log(log) => log.message.len() + log.data.as_ref().map_or(0, String::len),
        Command::Recur(recur) => recur.payload.bytes().len(),
        Command::UpdateRecurring(update) => payload(&update.payload),
        Command::Pop(pop) => POPPED_BYTES * pop.count.get(),
        Command::SetConfig(set) => set.value.len(),
        _ => 0,
    };
    brought + MOVED_BYTES
}
