//! The queue itself: (now, command) in; answer, changes and events out.
//!
//! Executing a command only reads the state, decides what changes, and says so in [`Delta`]s; applying a delta is the one way in which
//! the state changes, here and when a store replays what it wrote down. Each file beside this one holds the rules of a few commands:
//! `put` (and requeue), `pop` (and peek: locks, grace, scheduled and recurring jobs coming due), `finish` (heartbeat, complete, fail, retry,
//! timeout, unfail, cancel), `change` (priority, dependencies, tags, tracking, log, options, pausing), `recur`, and `read`; beyond Qless `terms` (keys, waiting,
//! progress, results), `able` (what workers can do, their deaths, limits), `tick` (what only time brings
//! about), `why` and `happened`. `reclaim` removes names that nothing needs. `state` holds what is known.

mod capabilities;
mod change;
mod codec;
mod delta;
mod event_log;
mod finish;
mod payloads;
mod pop;
mod prefetch;
mod put;
mod put_options;
mod read;
mod reclaim;
mod recur;
mod salvage;
mod state;
mod tick;
mod why;

use std::sync::Arc;

pub use codec::{CodecError, CodecErrorWhy};

pub use delta::{AdvanceDelta, Delta, FailDelta, FailureDelta, ITSELF, Kind, NameId, PutDelta, RecurDelta};
pub use salvage::Placeholders;
pub(crate) use state::COPIED_BYTES_MAX;
pub use state::{EPOCH_MAX, MemoryReport, RowId, SpillDone, SpillTask};
use state::{Ended, Flags, NONE, RowState, State};

use crate::{
    Answer, Command, Delivery, Event, Group, Holder, Jid, Klass, Milestone, PAYLOAD_BYTES_MAX, PutOptions,
    QueueName, RETRIES_MAX, Refusal, Reply, Timestamp, WorkerName,
};

/// The most tags that a job may have.
const TAGS_MAX: usize = 1_000;
/// The most queues that one pop may look into.
const QUEUES_MAX: usize = 1_024;
/// The longest message, and the longest data, that is logged.
const LOG_BYTES_MAX: usize = 64 << 10;

/// What the engine will not take, and what it is given at its start.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The largest payload, message or log data.
    pub payload_bytes_max: usize,
    /// Any number. One that outsiders cannot guess keeps them from choosing jids that slow the index down.
    pub hash_seed: u64,
    /// Payloads of so many bytes, or more, may be moved out of memory.
    pub moved_bytes_min: u32,
    /// How many events are kept at the most for somebody who is to have every one of them, until [they have](Engine::let_events_go); 0 if there is nobody.
    /// What others find is as much as ever, or more.
    pub events_held_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        let payload_bytes_max = PAYLOAD_BYTES_MAX;
        Limits { payload_bytes_max, hash_seed: 0, moved_bytes_min: u32::MAX, events_held_max: 0 }
    }
}

/// What executing commands brought about, for whoever runs the engine to write down and to publish.
#[derive(Debug, Default)]
pub struct Effects {
    /// The changes, in order. Applied to an engine in the state from before, they lead to the state after.
    pub deltas: Vec<Delta>,
    /// Where the changes are written down instead, for whoever wants nothing but their bytes.
    pub written: Option<Written>,
    /// What happened, in order; left empty unless `listening`.
    pub events: Vec<Event>,
    /// Whether anybody wants the events.
    pub listening: bool,
    /// What those are to be told who wait for jobs, in order, after the events.
    pub deliveries: Vec<Delivery>,
    /// Whether any payload was elsewhere when a command was executed, so that an answer may name a place instead of a payload.
    pub elsewhere: bool,
    /// Whether what is noted now concerns a job that need not outlive the machine: the engine's own mark.
    pub passing: bool,
}

/// Changes, written down.
#[derive(Debug, Default)]
pub struct Written {
    /// All of them, encoded one after the other.
    pub bytes: Vec<u8>,
    /// Whether any of them [must be synced](Delta::must_be_synced).
    pub must_be_synced: bool,
    /// Whether any of them matters once the process is gone. If not, all of them can be written with what comes next.
    pub must_be_kept: bool,
}

/// How much room there is at the most for what is not written down yet.
const WRITTEN_BYTES_MAX: usize = 1 << 20;

impl Effects {
    /// Effects whose changes are written down instead of listed.
    pub fn in_bytes() -> Effects {
        Effects { written: Some(Written::default()), ..Effects::default() }
    }

    /// What was written down since the last time. The next will be about as much, or as much as the one before.
    pub fn take_written(&mut self) -> Written {
        let Some(written) = &mut self.written else { return Written::default() };
        // Little may come between two that are much, so the room goes down slowly.
        let room = written.bytes.len().max(written.bytes.capacity() / 4 * 3);
        let bytes = Vec::with_capacity(room.min(WRITTEN_BYTES_MAX));
        std::mem::replace(written, Written { bytes, ..Written::default() })
    }

    fn note(&mut self, delta: Delta) {
        match &mut self.written {
            None => self.deltas.push(delta),
            Some(written) => {
                delta.encode(&mut written.bytes);
                if !self.passing {
                    written.must_be_synced |= delta.must_be_synced();
                    written.must_be_kept |= delta.must_be_logged();
                }
            }
        }
    }

    fn tell(&mut self, event: impl FnOnce() -> Event) {
        if self.listening {
            self.events.push(event());
        }
    }
}

/// The queue itself: every rule, no clock, no I/O, no threads, no chance.
///
/// ```
/// use geartrain_core::engine::{Effects, Engine, Limits};
/// use geartrain_core::*;
///
/// let (mut engine, mut effects) = (Engine::new(Limits::default()), Effects::default());
/// let (mail, j1, w1) = (QueueName::new("mail")?, Jid::new("j1")?, WorkerName::new("w1")?);
/// let put = Put::new(mail.clone(), j1.clone(), Klass::new("welcome")?, "{}");
/// engine.execute(Timestamp::from(0), put.into(), &mut effects)?;
/// let Reply::Pop(popped) = engine.execute(Timestamp::from(1), Pop::new(mail, w1).into(), &mut effects)? else { panic!() };
/// assert_eq!(popped.jobs[0].lock.expires, Timestamp::from(61));
///
/// let mut copy = Engine::new(Limits::default());
/// effects.deltas.iter().for_each(|delta| copy.apply(delta));
/// let token = popped.jobs[0].lock.token;
/// copy.execute(Timestamp::from(2), Complete::new(j1, Holder::Token(token)).into(), &mut effects)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    state: State,
    limits: Limits,
}

/// An engine that is being made of a snapshot.
#[derive(Debug)]
pub struct Restoring(Engine);

impl Restoring {
    /// Adds jobs: all that one call of [`Engine::go_on_with_snapshot`] wrote, or several.
    pub fn add(&mut self, jobs: &[u8]) -> Result<(), CodecError> {
        self.0.state.read_rows(jobs)
    }

    /// The engine, when all have been added.
    pub fn finish(mut self) -> Engine {
        self.0.state.rebuild_indexes();
        self.0
    }
}

impl Engine {
    /// An empty one.
    pub fn new(limits: Limits) -> Engine {
        // A row counts its payload's bytes in 32 bits.
        let limits = Limits { payload_bytes_max: limits.payload_bytes_max.min(u32::MAX as usize), ..limits };
        let mut state = State::new(limits.hash_seed, limits.moved_bytes_min);
        state.hold_events(limits.events_held_max);
        Engine { state, limits }
    }

    /// Executes one command at a moment: refuses it and changes nothing, or answers it and appends what it did to `effects`.
    pub fn execute(&mut self, now: Timestamp, mut command: Command, effects: &mut Effects) -> Answer {
        self.execute_in_place(now, &mut command, effects)
    }

    /// The same for a command that is left where it is, because the most frequent ones cost about as much to move as to execute. What is left of it
    /// is of no use.
    pub fn execute_in_place(
        &mut self,
        now: Timestamp,
        command: &mut Command,
        effects: &mut Effects,
    ) -> Answer {
        if !self.keeps_events() {
            return self.execute_any(now, command, effects);
        }
        let told = effects.events.len();
        let answer = self.execute_any(now, command, effects);
        self.keep_events(told, effects);
        answer
    }

    fn execute_any(&mut self, now: Timestamp, command: &mut Command, fx: &mut Effects) -> Answer {
        fx.elsewhere |= !self.state.blobs().places().is_empty();
        fx.passing = false;
        Ok(match command {
            Command::Put(put) => Reply::Put(self.put(now, put, fx)?),
            Command::Pop(pop) => Reply::Pop(self.pop(now, pop, fx)?),
            Command::Heartbeat(heartbeat) => Reply::Heartbeat(self.heartbeat(now, heartbeat, fx)?),
            Command::Complete(complete) => Reply::Complete(self.complete(now, complete, fx)?),
            other => self.execute_less_frequent(now, std::mem::replace(other, crate::Workers.into()), fx)?,
        })
    }

    fn execute_less_frequent(&mut self, now: Timestamp, command: Command, fx: &mut Effects) -> Answer {
        Ok(match command {
            Command::Put(_) | Command::Pop(_) | Command::Heartbeat(_) | Command::Complete(_) => {
                unreachable!("executed in place")
            }
            Command::Peek(peek) => Reply::Peek(self.peek(now, peek, fx)),
            Command::Fail(fail) => Reply::Fail(self.fail(now, fail, fx)?),
            Command::Retry(retry) => Reply::Retry(self.retry(now, retry, fx)?),
            Command::Timeout(timeout) => Reply::Timeout(self.timeout(now, timeout, fx)?),
            Command::Cancel(cancel) => Reply::Cancel(self.cancel(cancel, fx)?),
            Command::Unfail(unfail) => Reply::Unfail(self.unfail(now, unfail, fx)?),
            Command::SetPriority(priority) => Reply::SetPriority(self.set_priority(priority, fx)?),
            Command::Depend(depend) => Reply::Depend(self.depend(now, depend, fx)?),
            Command::Log(log) => Reply::Log(self.log(now, log, fx)?),
            Command::Track(track) => Reply::Track(self.track(now, track, fx)?),
            Command::Tracked(_) => Reply::Tracked(self.tracked()),
            Command::AddTags(add) => Reply::AddTags(self.add_tags(now, add, fx)?),
            Command::RemoveTags(remove) => Reply::RemoveTags(self.remove_tags(remove, fx)?),
            Command::Tagged(tagged) => Reply::Tagged(self.tagged(&tagged)),
            Command::TopTags(top) => Reply::TopTags(self.top_tags(&top)),
            Command::Get(get) => Reply::Get(self.get(&get.jid).map(Box::new)),
            Command::GetMany(many) => {
                Reply::GetMany(many.jids.iter().filter_map(|jid| self.get(jid)).collect())
            }
            Command::Length(length) => Reply::Length(self.length(&length.queue)),
            Command::Jobs(jobs) => Reply::Jobs(self.jobs(now, &jobs, fx)),
            Command::Failures(_) => Reply::Failures(self.failures()),
            Command::Failed(failed) => Reply::Failed(self.failed(&failed)),
            Command::Queues(queues) => Reply::Queues(self.queues(now, queues, fx)),
            Command::Workers(_) => Reply::Workers(self.workers(now, fx)),
            Command::WorkerJobs(worker) => Reply::WorkerJobs(self.worker_jobs(now, &worker.worker, fx)),
            Command::Stats(stats) => Reply::Stats(Box::new(self.stats(&stats))),
            Command::Pause(pause) => Reply::Pause(self.pause(&pause.queues, true, fx)?),
            Command::Resume(resume) => Reply::Resume(self.pause(&resume.queues, false, fx)?),
            Command::ForgetQueues(forget) => Reply::ForgetQueues(self.forget_queues(&forget.queues, fx)?),
            Command::ForgetWorkers(forget) => Reply::ForgetWorkers(self.forget_workers(&forget.workers, fx)?),
            Command::GetConfig(get) => Reply::GetConfig(self.state.option(&get.option)),
            Command::AllConfig(_) => Reply::AllConfig(self.state.options()),
            Command::SetConfig(set) => Reply::SetConfig(self.configure(set.option, Some(set.value), fx)?),
            Command::UnsetConfig(unset) => Reply::UnsetConfig(self.configure(unset.option, None, fx)?),
            Command::Recur(recur) => Reply::Recur(self.recur(now, recur, fx)?),
            Command::Unrecur(unrecur) => {
                self.unrecur(&unrecur.jid, fx);
                Reply::Unrecur(())
            }
            Command::GetRecurring(get) => Reply::GetRecurring(self.get_recurring(&get.jid).map(Box::new)),
            Command::UpdateRecurring(update) => {
                Reply::UpdateRecurring(self.update_recurring(now, update, fx)?)
            }
            Command::TagRecurring(tag) => Reply::TagRecurring(self.tag_recurring(tag, fx)?),
            Command::UntagRecurring(untag) => Reply::UntagRecurring(self.untag_recurring(untag, fx)?),
            Command::Attach(attach) => Reply::Attach(self.attach(now, attach, fx)?),
            Command::Detach(leave) => Reply::Detach(self.leave(&leave, fx)),
            Command::Progress(progress) => Reply::Progress(self.progress(progress, fx)?),
            Command::Chunk(chunk) => Reply::Chunk(self.chunk(chunk, fx)?),
            Command::Release(hand_back) => Reply::Release(self.hand_back(now, hand_back, fx)?),
            Command::WorkerLost(gone) => Reply::WorkerLost(self.gone(now, gone, fx)?),
            Command::Announce(announce) => Reply::Announce(self.announce(now, announce, fx)?),
            Command::RollCall(call) => Reply::RollCall(self.roll_call(&call)),
            Command::Announced(announced) => Reply::Announced(self.announced(&announced)),
            Command::SetLimits(set) => Reply::SetLimits(self.set_limits(set, fx)?),
            Command::GetLimits(get) => Reply::GetLimits(self.get_limits(&get)),
            Command::GetResult(get) => Reply::GetResult(self.result(now, &get.jid)),
            Command::Status(status) => Reply::Status(self.status(&status)),
            Command::Why(why) => Reply::Why(Box::new(self.why(now, &why)?)),
            Command::Tick(tick) => Reply::Tick(self.tick(now, &tick, fx)),
            Command::AllocateIds(allot) => Reply::AllocateIds(self.allot(allot, fx)?),
            Command::PriorityCounts(counts) => Reply::PriorityCounts(self.priority_counts(now, &counts, fx)),
        })
    }

    /// Repeats a change that an engine made whose state was the same.
    pub fn apply(&mut self, delta: &Delta) {
        self.state.apply(delta);
    }

    /// When something next comes due in a queue without anybody's doing, at a moment or after it: a lock, a scheduled or a recurring job.
    pub fn next_due(&self, queue: &QueueName, from: Timestamp) -> Option<Timestamp> {
        let queue = self.state.queue(self.state.find_queue(queue.as_str())?);
        let dues = [&queue.locks, &queue.scheduled, &queue.recurring].into_iter().filter_map(|entries| {
            let before = entries.count_while(|entry| entry.at < from);
            entries.slice(before..before + 1).first().map(|entry| entry.at)
        });
        let opens = queue.pace.filter(|pace| pace.starts(from, 1) == 0).map(|pace| pace.opens(from));
        dues.chain(opens).min()
    }

    /// Whether a pop of this queue would find anything to do, be it only a lock to warn about or a job that is late.
    pub fn is_ready(&self, queue: &QueueName, now: Timestamp) -> bool {
        let Some(number) = self.state.find_queue(queue.as_str()) else { return false };
        let queue = self.state.queue(number);
        let due = |entries: &state::OrderStatTree<state::DueKey>| {
            entries.first().is_some_and(|first| first.at <= now)
        };
        let has_any =
            !queue.work.is_empty() || due(&queue.locks) || due(&queue.scheduled) || due(&queue.recurring);
        has_any && self.open_places(number, now, 1) > 0
    }

    /// Whether that is so of one of several queues, which may be as many as a pop looks into.
    pub fn is_any_ready(&self, queues: &[QueueName], now: Timestamp) -> Result<bool, Refusal> {
        check_queues(queues)?;
        Ok(queues.iter().any(|queue| self.is_ready(queue, now)))
    }

    /// Begins or ends the watch on a queue: whether [`Engine::stirred`] tells of it.
    pub fn watch(&mut self, queue: &QueueName, on: bool, effects: &mut Effects) {
        let queue = self.queue_id(queue, effects);
        self.state.watch(queue, on);
    }

    /// The watched queues in which, since the last time, something changed: a pop may find a job now, or later at another moment.
    pub fn take_dirty_queues(&mut self) -> Vec<QueueName> {
        let stirred = self.state.take_stirred();
        stirred.into_iter().map(|queue| self.state.queue_name(queue)).collect()
    }

    /// Looks whether every job is in exactly one place and every index agrees with the jobs; says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        self.state.check()
    }

    /// Counts what there is.
    pub fn memory_report(&self) -> MemoryReport {
        self.state.memory_report()
    }

    /// Begins a new epoch, so that no token is given out that was given out before, even if that was lost in a crash.
    pub fn begin_epoch(&mut self, effects: &mut Effects) {
        // The one before the next is left out: what was lost may have run over into it.
        self.commit(Delta::Epoch(self.state.epoch() + 2), effects);
    }

    /// Begins a picture of all that the engine knows at this moment, and writes its head. [`Engine::go_on_with_snapshot`] does the rest,
    /// a few jobs at a time, while commands are executed; the picture does not show what they change.
    pub fn begin_snapshot(&mut self, into: &mut Vec<u8>) {
        self.state.begin_picture(into);
    }

    /// Writes up to so many more jobs (and those that changed meanwhile, as they were), and says whether that were all.
    pub fn continue_snapshot(&mut self, jobs_max: usize, into: &mut Vec<u8>) -> bool {
        self.state.go_on_with_picture(jobs_max, into)
    }

    /// Begins to make the engine that a snapshot shows, from its head.
    pub fn restore(limits: Limits, head: &[u8]) -> Result<Restoring, CodecError> {
        let mut engine = Engine::new(limits);
        engine.state.read_head(head)?;
        Ok(Restoring(engine))
    }

    fn commit(&mut self, delta: Delta, fx: &mut Effects) {
        self.state.apply(&delta);
        fx.note(delta);
    }

    /// Whether a command concerns nothing but jobs that nobody can miss if the machine goes down, or only looks at one. It may say no where the answer is yes.
    pub fn is_ephemeral_command(&self, now: Timestamp, command: &Command) -> bool {
        let is_passing = |jid: &Jid| self.state.find(jid).is_some_and(|row| self.is_passing(row));
        match command {
            Command::Put(put) => {
                put.options.as_deref().is_some_and(PutOptions::are_ephemeral) && put.depends.is_empty()
            }
            Command::Pop(pop) => {
                let [queue] = &pop.queues[..] else { return false };
                let Some(queue) = self.state.find_queue(queue.as_str()) else { return false };
                let queue = self.state.queue(queue);
                let is_due = |entries: &state::OrderStatTree<state::DueKey>| {
                    entries.first().is_some_and(|first| first.at <= now)
                };
                let is_quiet = ![&queue.locks, &queue.scheduled, &queue.recurring].into_iter().any(is_due);
                let next = queue.work.slice(0..pop.count.get());
                is_quiet && next.iter().all(|work| self.is_passing(work.row))
            }
            Command::Complete(complete) => is_passing(&complete.jid),
            Command::Fail(fail) => is_passing(&fail.jid),
            Command::Progress(progress) => is_passing(&progress.jid),
            Command::Heartbeat(beat) => is_passing(&beat.jid),
            Command::Chunk(_) | Command::Status(_) | Command::Get(_) => true,
            _ => false,
        }
    }

    /// Whether nobody can miss a job if the machine goes down: those who wait for it go down too, and it would have left nothing behind.
    fn is_passing(&self, row: RowId) -> bool {
        self.state.extension(row).is_some_and(|side| side.options.are_ephemeral())
            && self.state.dependents(row).next().is_none()
    }

    fn existing(&self, jid: &Jid) -> Result<RowId, Refusal> {
        self.state.find(jid).ok_or_else(|| Refusal::NoSuchJob { jid: jid.clone() })
    }

    /// The job that somebody says they hold.
    fn claimed(&self, jid: &Jid, holder: &Holder) -> Result<RowId, Refusal> {
        match holder {
            Holder::Token(token) => {
                self.state.find_at(token.hint, jid).ok_or_else(|| Refusal::NoSuchJob { jid: jid.clone() })
            }
            Holder::Worker(_) => self.existing(jid),
        }
    }

    /// Refuses anybody but who holds the job.
    fn check_holder(&self, row: RowId, jid: &Jid, holder: &Holder) -> Result<(), Refusal> {
        let of = self.state.row(row);
        let (jid, state) = (|| jid.clone(), of.state.name());
        match holder {
            Holder::Token(token) if of.state == RowState::Running && of.seq == token.number => Ok(()),
            Holder::Token(_) => Err(Refusal::LockLost { jid: jid(), state }),
            Holder::Worker(_) if of.state != RowState::Running => {
                Err(Refusal::NotRunning { jid: jid(), state, qless: self.state.qless_word(row) })
            }
            Holder::Worker(worker) => match self.state.worker_name(of.worker) {
                Some(other) if other != *worker => {
                    Err(Refusal::HeldByAnother { jid: jid(), worker: worker.clone(), holder: other })
                }
                _ => Ok(()),
            },
        }
    }

    /// How the attempt of this holder ended, if it did and that is remembered.
    fn ended(&self, row: RowId, holder: &Holder) -> Option<Ended> {
        let Holder::Token(token) = holder else { return None };
        let of = self.state.row(row);
        if of.state == RowState::Complete && of.seq == token.number {
            return Some(Ended::Completed(crate::CompleteReply::Complete));
        }
        self.state.ended(row, token.number)
    }

    /// Refuses a job that is in another queue than the caller thinks.
    fn check_queue(&self, row: RowId, jid: &Jid, given: &Option<QueueName>) -> Result<(), Refusal> {
        let Some(given) = given else { return Ok(()) };
        let queue = self.state.queue_name(self.state.row(row).queue);
        if *given == queue {
            return Ok(());
        }
        Err(Refusal::WrongQueue { jid: jid.clone(), queue, given: given.clone() })
    }

    fn check_size(&self, what: &'static str, bytes: usize) -> Result<(), Refusal> {
        check_size(what, bytes, self.limits.payload_bytes_max)
    }

    /// Refuses to write too much into a history.
    fn check_log(&self, what: &'static str, bytes: usize) -> Result<(), Refusal> {
        check_size(what, bytes, self.limits.payload_bytes_max.min(LOG_BYTES_MAX))
    }

    /// The number of a name, which it gets now if it has none.
    fn id(&mut self, kind: Kind, name: &Arc<str>, fx: &mut Effects) -> NameId {
        self.state.find_name(kind, name).unwrap_or_else(|| {
            let named = match self.state.first_free(kind) {
                Some(number) => Delta::ReuseNumber(kind, number, name.clone()),
                None => Delta::Name(kind, name.clone()),
            };
            self.commit(named, fx);
            self.state.find_name(kind, name).expect("it was just named")
        })
    }

    fn queue_id(&mut self, name: &QueueName, fx: &mut Effects) -> NameId {
        self.id(Kind::Queue, name.shared(), fx)
    }

    fn klass_id(&mut self, name: &Klass, fx: &mut Effects) -> NameId {
        self.id(Kind::Klass, name.shared(), fx)
    }

    fn group_id(&mut self, name: &Group, fx: &mut Effects) -> NameId {
        self.id(Kind::Group, name.shared(), fx)
    }

    /// Tells those who track the job.
    fn milestone(&self, row: RowId, what: Milestone, fx: &mut Effects) {
        if self.state.row(row).flags.has(Flags::TRACKED) {
            fx.tell(|| Event::Milestone { jid: self.state.jid(row), what });
        }
    }

    /// The one who holds a job, or, as long as Qless says so, held it last.
    fn holder(&self, row: RowId) -> Option<WorkerName> {
        self.state.worker_name(self.state.row(row).worker)
    }
}

fn check_size(what: &'static str, bytes: usize, max: usize) -> Result<(), Refusal> {
    if bytes > max { Err(Refusal::TooLarge { what: what.into(), bytes, max }) } else { Ok(()) }
}

/// Refuses an empty list where at least one is needed.
fn at_least_one<T>(what: &'static str, list: &[T]) -> Result<(), Refusal> {
    if list.is_empty() {
        return Err(Refusal::BadArgument { what: what.into(), why: "must name at least one".into() });
    }
    Ok(())
}

/// Refuses to look into no queue, or into too many.
fn check_queues(queues: &[QueueName]) -> Result<(), Refusal> {
    at_least_one("queues", queues)?;
    at_most("queues", queues.len(), QUEUES_MAX)
}

/// Refuses a list that would take long to go through for each of its entries.
fn at_most(what: &'static str, count: usize, max: usize) -> Result<(), Refusal> {
    if count > max {
        return Err(Refusal::BadArgument {
            what: what.into(),
            why: format!("must be at most {max}, not {count}"),
        });
    }
    Ok(())
}

/// Refuses more retries than a row can count.
fn check_retries(retries: Option<u32>) -> Result<(), Refusal> {
    match retries {
        Some(retries) if retries > RETRIES_MAX => Err(Refusal::BadArgument {
            what: "retries".into(),
            why: format!("must be at most {RETRIES_MAX}, not {retries}"),
        }),
        _ => Ok(()),
    }
}
