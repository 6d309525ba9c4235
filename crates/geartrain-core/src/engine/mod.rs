//! The engine, a deterministic state machine: `(now, command)` in; reply, deltas and events out.
//!
//! Executing a command only reads the state, decides what changes, and expresses that as [`Delta`]s. Applying
//! a delta is the only way to change the state, here and when a store replays its log. Each file holds the
//! rules of a few commands:
//! - `put` (and requeue), `put_options` (unique keys, result waiters, progress, results)
//! - `pop` (and peek: locks, fencing tokens, grace, scheduled and recurring jobs that come due)
//! - `finish` (heartbeat, complete, fail, retry, timeout, unfail, cancel)
//! - `change` (priority, dependencies, tags, tracking, log, options, pausing), `recur`, `read`, `why`
//! - `dependency_policy` (what a job does when one that it depends on fails, cancellation of dependents)
//! - `canceled` (tombstones of cancelled jobs), `capabilities` (announcements, lost workers, limits)
//! - `event_log`, `tick` (what only time brings about), `flush` (removes everything)
//! - `select` (jobs by filter, and bulk changes of them), `set_aside` (jobs that are moved elsewhere)
//!
//! `fencing` checks who holds a job, `ephemeral` says what a crash may lose, `reclaim` removes names that
//! nothing refers to, `prefetch` warms the cache for a batch, `payloads` is the engine's side of spilling,
//! `salvage` restores a damaged snapshot. `state` holds the data, `codec` turns deltas into bytes.

mod canceled;
mod capabilities;
mod change;
mod codec;
mod delta;
mod dependency_policy;
mod ephemeral;
mod event_log;
mod fencing;
mod figures;
mod finish;
mod flush;
mod payloads;
mod periodic;
mod pop;
mod prefetch;
mod put;
mod put_options;
mod read;
mod reclaim;
mod recur;
mod relock;
mod salvage;
mod select;
mod set_aside;
mod state;
mod tick;
mod why;

use std::sync::Arc;

pub use codec::{CodecError, CodecErrorWhy};

pub use delta::{
    AdvanceDelta, Delta, FailDelta, FailureDelta, ITSELF, Kind, NameId, PeriodicRun, PutDelta, RecurDelta,
};
pub use salvage::Placeholders;
pub(crate) use state::COPIED_BYTES_MAX;
pub use state::{EPOCH_MAX, MemoryReport, RowId, SpillDone, SpillTask};
use state::{Ended, Flags, NONE, RowState, State};

use crate::{
    Answer, Command, Event, Group, Jid, Klass, Milestone, PAYLOAD_BYTES_MAX, QueueName, RETRIES_MAX, Refusal,
    Reply, StreamMessage, TimedEvent, Timestamp, WorkerName,
};

/// Limit of tags per job.
const TAGS_MAX: usize = 1_000;
/// Limit of queues per pop.
const QUEUES_MAX: usize = 1_024;
/// Limit of a history entry's message, and of its data.
const LOG_BYTES_MAX: usize = 64 << 10;

/// Limits and settings of an engine.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The largest payload, message or log data.
    pub payload_bytes_max: usize,
    /// Seeds the hash tables. A value that clients cannot guess keeps them from choosing jids that collide.
    pub hash_seed: u64,
    /// Payloads of at least this size may be spilled.
    pub spill_bytes_min: u32,
    /// How many events are retained for a subscriber that must receive each of them, until it
    /// [acknowledges](Engine::ack_events) them; 0 without such a subscriber. Other subscribers find the usual
    /// number of events, or more.
    pub events_held_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        let payload_bytes_max = PAYLOAD_BYTES_MAX;
        Limits { payload_bytes_max, hash_seed: 0, spill_bytes_min: u32::MAX, events_held_max: 0 }
    }
}

/// Effects of executed commands: the store writes the deltas, and publishes the events and deliveries.
#[derive(Debug, Default)]
pub struct Effects {
    /// The changes in order. Applied to an engine in the state before, they lead to the state after.
    pub deltas: Vec<Delta>,
    /// If set, deltas are encoded here instead of listed in `deltas`.
    pub written: Option<Written>,
    /// The events in order; empty unless `listening`.
    pub events: Vec<TimedEvent>,
    /// Whether events are collected.
    pub listening: bool,
    /// Items for result streams, in order. They follow the events.
    pub deliveries: Vec<StreamMessage>,
    /// Whether any payload was spilled when a command was executed: replies may hold a location instead of a
    /// payload.
    pub any_spilled: bool,
    /// The time of the command. Set by the engine.
    pub now: Timestamp,
    /// Whether the deltas recorded now concern an ephemeral job. Set by the engine.
    pub ephemeral: bool,
    /// Who asks for the next command, if it [records that](Command::records_caller).
    pub by: Option<Arc<str>>,
}

/// Encoded deltas.
#[derive(Debug, Default)]
pub struct Written {
    /// The deltas, encoded one after the other.
    pub bytes: Vec<u8>,
    /// Whether one of them [must be synced](Delta::must_be_synced).
    pub must_be_synced: bool,
    /// Whether one of them [must be logged](Delta::must_be_logged). If not, they can be written together with
    /// later ones.
    pub must_be_logged: bool,
}

impl Written {
    fn add(&mut self, delta: &Delta, ephemeral: bool) {
        delta.encode(&mut self.bytes);
        if !ephemeral {
            self.must_be_synced |= delta.must_be_synced();
            self.must_be_logged |= delta.must_be_logged();
        }
    }
}

/// Limit of the capacity that is reserved for the next group of deltas.
const WRITTEN_BYTES_MAX: usize = 1 << 20;

impl Effects {
    /// Effects that encode deltas instead of listing them.
    pub fn in_bytes() -> Effects {
        Effects { written: Some(Written::default()), ..Effects::default() }
    }

    /// Takes the deltas encoded since the last call. The new buffer has room for about as many.
    pub fn take_written(&mut self) -> Written {
        let Some(written) = &mut self.written else { return Written::default() };
        // A small group may come between two large ones, so the capacity shrinks slowly.
        let room = written.bytes.len().max(written.bytes.capacity() / 4 * 3);
        let bytes = Vec::with_capacity(room.min(WRITTEN_BYTES_MAX));
        std::mem::replace(written, Written { bytes, ..Written::default() })
    }

    fn publish(&mut self, event: impl FnOnce() -> Event) {
        if self.listening {
            self.events.push(TimedEvent { at: self.now, event: event() });
        }
    }
}

/// The queue's rules: no clock, no I/O, no threads, no randomness.
///
/// ```
/// use geartrain_core::engine::{Effects, Engine, Limits};
/// use geartrain_core::*;
///
/// let (mut engine, mut effects) = (Engine::new(Limits::default()), Effects::default());
/// let (mail, j1, w1) = (QueueName::new("mail")?, Jid::new("j1")?, WorkerName::new("w1")?);
/// let put = Put::new(mail.clone(), j1.clone(), Klass::new("welcome")?, "{}");
/// engine.execute(Timestamp::from(0), put.into(), &mut effects)?;
/// let popped = engine.execute(Timestamp::from(1), Pop::new(mail, w1).into(), &mut effects)?;
/// let Reply::Pop(popped) = popped else { panic!() };
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

/// An engine that is being restored from a snapshot.
#[derive(Debug)]
pub struct Restoring(Engine);

impl Restoring {
    /// Adds jobs: the bytes of one or several calls of [`Engine::continue_snapshot`].
    pub fn add(&mut self, jobs: &[u8]) -> Result<(), CodecError> {
        self.0.state.read_rows(jobs)
    }

    /// Builds the indexes, after all jobs were added.
    pub fn finish(mut self) -> Engine {
        self.0.state.rebuild_indexes();
        self.0
    }
}

impl Engine {
    /// An empty engine.
    pub fn new(limits: Limits) -> Engine {
        // A row counts its payload's bytes in 32 bits.
        let limits = Limits { payload_bytes_max: limits.payload_bytes_max.min(u32::MAX as usize), ..limits };
        let mut state = State::new(limits.hash_seed, limits.spill_bytes_min);
        state.hold_events(limits.events_held_max);
        Engine { state, limits }
    }

    /// Executes a command: refuses it and changes nothing, or replies and appends its effects.
    pub fn execute(&mut self, now: Timestamp, mut command: Command, effects: &mut Effects) -> Answer {
        self.execute_in_place(now, &mut command, effects)
    }

    /// Like [`execute`](Engine::execute), but does not move the command: moving the most frequent ones costs
    /// about as much as executing them. The command is unusable afterwards.
    pub fn execute_in_place(
        &mut self,
        now: Timestamp,
        command: &mut Command,
        effects: &mut Effects,
    ) -> Answer {
        if !self.keeps_events() {
            return self.execute_any(now, command, effects);
        }
        let first = effects.events.len();
        let answer = self.execute_any(now, command, effects);
        self.log_events(first, effects);
        answer
    }

    fn execute_any(&mut self, now: Timestamp, command: &mut Command, fx: &mut Effects) -> Answer {
        fx.any_spilled |= !self.state.blobs().spill_map().is_empty();
        fx.ephemeral = false;
        fx.now = now;
        let reply = match command {
            Command::Put(put) => Reply::Put(self.put(now, put, fx)?),
            Command::Pop(pop) => Reply::Pop(self.pop(now, pop, fx)?),
            Command::Heartbeat(heartbeat) => {
                return Ok(Reply::Heartbeat(self.heartbeat(now, heartbeat, fx)?));
            }
            Command::Complete(complete) => Reply::Complete(self.complete(now, complete, fx)?),
            // A tick applies policies itself, because its reply says when the next one is due.
            Command::Fail(_)
            | Command::Retry(_)
            | Command::Depend(_)
            | Command::WorkerLost(_)
            | Command::EndSetAside(_) => self.execute_less_frequent(now, take(command), fx)?,
            _ => return self.execute_less_frequent(now, take(command), fx),
        };
        self.apply_dependency_policies(now, fx);
        Ok(reply)
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
            Command::Cancel(cancel) => Reply::Cancel(self.cancel(now, cancel, fx)?),
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
            Command::SetConfig(set) => {
                Reply::SetConfig(self.configure(set.option, Some(set.value), set.any, fx)?)
            }
            Command::UnsetConfig(unset) => {
                Reply::UnsetConfig(self.configure(unset.option, None, true, fx)?)
            }
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
            Command::Detach(detach) => Reply::Detach(self.detach(&detach, fx)),
            Command::Progress(progress) => Reply::Progress(self.progress(progress, fx)?),
            Command::Chunk(chunk) => Reply::Chunk(self.chunk(chunk, fx)?),
            Command::Release(release) => Reply::Release(self.release(now, release, fx)?),
            Command::WorkerLost(lost) => Reply::WorkerLost(self.worker_lost(now, lost, fx)?),
            Command::Announce(announce) => Reply::Announce(self.announce(now, announce, fx)?),
            Command::RollCall(call) => Reply::RollCall(self.roll_call(&call)),
            Command::Announced(announced) => Reply::Announced(self.announced(&announced)),
            Command::SetLimits(set) => Reply::SetLimits(self.set_limits(set, fx)?),
            Command::GetLimits(get) => Reply::GetLimits(self.get_limits(&get)),
            Command::GetResult(get) => Reply::GetResult(self.result(now, &get.jid)),
            Command::Status(status) => Reply::Status(self.status(&status)),
            Command::Why(why) => Reply::Why(Box::new(self.why(now, &why)?)),
            Command::Tick(tick) => Reply::Tick(self.tick(now, &tick, fx)),
            Command::Flush(flush) => Reply::Flush(self.flush(now, &flush, fx)?),
            Command::Canceled(canceled) => Reply::Canceled(self.canceled(&canceled)),
            Command::AllocateIds(allocate) => Reply::AllocateIds(self.allocate_ids(allocate, fx)?),
            Command::Figures(figures) => Reply::Figures(self.figures(now, &figures)),
            Command::WhyQueue(why) => Reply::WhyQueue(Box::new(self.why_queue(now, why, fx)?)),
            Command::PriorityCounts(counts) => Reply::PriorityCounts(self.priority_counts(now, &counts, fx)),
            Command::Select(select) => Reply::Select(Box::new(self.select(now, &select)?)),
            Command::Act(act) => Reply::Act(Box::new(self.act(now, act, fx)?)),
            Command::SetAside(set) => Reply::SetAside(Box::new(self.set_aside(now, set, fx)?)),
            Command::EndSetAside(end) => Reply::EndSetAside(self.end_set_aside(now, end, fx)?),
            Command::Relock(relock) => Reply::Relock(self.relock(now, relock, fx)?),
            Command::PutPeriodic(put) => Reply::PutPeriodic(self.put_periodic(put, fx)?),
            Command::RemovePeriodic(remove) => Reply::RemovePeriodic(self.remove_periodic(remove.jid, fx)),
            Command::Periodics(asked) => Reply::Periodics(Box::new(self.periodics(now, &asked))),
            Command::DuePeriodics(asked) => Reply::DuePeriodics(Box::new(self.due_periodics(now, &asked))),
            Command::FirePeriodic(fire) => Reply::FirePeriodic(self.fire_periodic(now, fire, fx)?),
        })
    }

    /// Replays a delta of an engine in the same state.
    pub fn apply(&mut self, delta: &Delta) {
        self.state.apply(delta);
    }

    /// When a lock expires, a scheduled or recurring job comes due, or the rate limit opens in a queue, at
    /// `from` or later.
    pub fn next_due(&self, queue: &QueueName, from: Timestamp) -> Option<Timestamp> {
        let queue = self.state.queue(self.state.find_queue(queue.as_str())?);
        let dues = [&queue.locks, &queue.scheduled, &queue.recurring].into_iter().filter_map(|entries| {
            let before = entries.count_while(|entry| entry.at < from);
            entries.slice(before..before + 1).first().map(|entry| entry.at)
        });
        let opens = queue
            .rate_limiter
            .filter(|rate_limiter| rate_limiter.starts(from, 1) == 0)
            .map(|rate_limiter| rate_limiter.opens(from));
        dues.chain(opens).min()
    }

    /// Whether a pop of this queue would have any effect, even if only a lock to warn about or a job that
    /// expired.
    pub fn is_ready(&self, queue: &QueueName, now: Timestamp) -> bool {
        let Some(number) = self.state.find_queue(queue.as_str()) else { return false };
        let queue = self.state.queue(number);
        let due = |entries: &state::OrderStatTree<state::DueKey>| {
            entries.first().is_some_and(|first| first.at <= now)
        };
        let has_any =
            !queue.work.is_empty() || due(&queue.locks) || due(&queue.scheduled) || due(&queue.recurring);
        has_any && self.startable_jobs(number, now, 1) > 0
    }

    /// Whether one of several queues [is ready](Engine::is_ready). Refuses as many queues as a pop does.
    pub fn is_any_ready(&self, queues: &[QueueName], now: Timestamp) -> Result<bool, Refusal> {
        check_queues(queues)?;
        Ok(queues.iter().any(|queue| self.is_ready(queue, now)))
    }

    /// Starts or stops watching a queue: [`take_dirty_queues`](Engine::take_dirty_queues) reports watched
    /// queues.
    pub fn watch(&mut self, queue: &QueueName, on: bool, effects: &mut Effects) {
        let queue = self.queue_id(queue, effects);
        self.state.watch(queue, on);
    }

    /// The watched queues that changed since the last call: a pop may find a job now, or at another time than
    /// before.
    pub fn take_dirty_queues(&mut self) -> Vec<QueueName> {
        let dirty = self.state.take_dirty_queues();
        dirty.into_iter().map(|queue| self.state.queue_name(queue)).collect()
    }

    /// Checks the state's invariants: each job is in exactly one index of its queue, and all indexes agree
    /// with the rows.
    pub fn check(&self) -> Result<(), String> {
        self.state.check()
    }

    /// The number of jobs, in all states.
    pub fn job_count(&self) -> u64 {
        self.state.job_count()
    }

    /// Counts jobs, queues and names.
    pub fn memory_report(&self) -> MemoryReport {
        self.state.memory_report()
    }

    /// Begins a copy-on-write snapshot of this moment, and writes its head. [`Engine::continue_snapshot`]
    /// writes the rest, a few jobs at a time, while commands are executed.
    pub fn begin_snapshot(&mut self, into: &mut Vec<u8>) {
        self.state.begin_snapshot(into);
    }

    /// Writes up to `jobs_max` more jobs, and the preimages of jobs that changed meanwhile. Returns whether
    /// the snapshot is complete.
    pub fn continue_snapshot(&mut self, jobs_max: usize, into: &mut Vec<u8>) -> bool {
        self.state.continue_snapshot(jobs_max, into)
    }

    /// Begins to restore an engine from a snapshot's head.
    pub fn restore(limits: Limits, head: &[u8]) -> Result<Restoring, CodecError> {
        let mut engine = Engine::new(limits);
        engine.state.read_head(head)?;
        Ok(Restoring(engine))
    }

    fn commit(&mut self, delta: Delta, fx: &mut Effects) {
        self.state.apply(&delta);
        // One copy at most: passing the delta on by value copied its 136 bytes three times.
        match &mut fx.written {
            Some(written) => written.add(&delta, fx.ephemeral),
            None => fx.deltas.push(delta),
        }
    }

    fn existing(&self, jid: &Jid) -> Result<RowId, Refusal> {
        self.state.find(jid).ok_or_else(|| Refusal::NoSuchJob { jid: jid.clone() })
    }

    /// Refuses if the job is in another queue than the caller says.
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

    /// Refuses too long a history entry.
    fn check_log(&self, what: &'static str, bytes: usize) -> Result<(), Refusal> {
        check_size(what, bytes, self.limits.payload_bytes_max.min(LOG_BYTES_MAX))
    }

    /// The id of a name, which is interned now if it is new.
    fn id(&mut self, kind: Kind, name: &Arc<str>, fx: &mut Effects) -> NameId {
        self.state.find_name(kind, name).unwrap_or_else(|| {
            let named = match self.state.first_free(kind) {
                Some(number) => Delta::ReuseNameId(kind, number, name.clone()),
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

    /// Publishes a milestone of a tracked job.
    fn milestone(&self, row: RowId, what: Milestone, fx: &mut Effects) {
        if self.state.row(row).flags.has(Flags::TRACKED) {
            fx.publish(|| Event::Milestone { jid: self.state.jid(row), what });
        }
    }

    /// The worker that holds a job, or that Qless still names as its last holder.
    fn holder(&self, row: RowId) -> Option<WorkerName> {
        self.state.worker_name(self.state.row(row).worker)
    }
}

/// Moves a command out of its place.
fn take(command: &mut Command) -> Command {
    std::mem::replace(command, crate::Workers.into())
}

fn check_size(what: &'static str, bytes: usize, max: usize) -> Result<(), Refusal> {
    if bytes > max { Err(Refusal::TooLarge { what: what.into(), bytes, max }) } else { Ok(()) }
}

/// Refuses an empty list.
fn at_least_one<T>(what: &'static str, list: &[T]) -> Result<(), Refusal> {
    if list.is_empty() {
        return Err(Refusal::BadArgument { what: what.into(), why: "must name at least one".into() });
    }
    Ok(())
}

/// Refuses no queue, or too many.
fn check_queues(queues: &[QueueName]) -> Result<(), Refusal> {
    at_least_one("queues", queues)?;
    at_most("queues", queues.len(), QUEUES_MAX)
}

/// Refuses too long a list.
fn at_most(what: &'static str, count: usize, max: usize) -> Result<(), Refusal> {
    if count > max {
        return Err(Refusal::BadArgument {
            what: what.into(),
            why: format!("must be at most {max}, not {count}"),
        });
    }
    Ok(())
}

/// Refuses more retries than a row can store.
fn check_retries(retries: Option<u32>) -> Result<(), Refusal> {
    match retries {
        Some(retries) if retries > RETRIES_MAX => Err(Refusal::BadArgument {
            what: "retries".into(),
            why: format!("must be at most {RETRIES_MAX}, not {retries}"),
        }),
        _ => Ok(()),
    }
}
