//! The queue as its specification reads, to compare the engine with.
//!
//! Nothing in here is clever, so that it can be checked against the text line by line: one plain record per
//! job, with the fields of Qless's hash, and every container (work, locks, a worker's list …) is found by
//! looking at all jobs and sorting. Section numbers are those of the Qless specification; "decision" means a
//! numbered line of `docs/decisions/0001-qless-rules-kept-and-changed.md`, which wins. What goes beyond Qless
//! is in `docs/decisions/0009-beyond-qless.md`; "rule" and a word means the paragraph there that begins with
//! it.

mod attach;
mod attempts;
mod capabilities;
mod change;
mod check;
mod config;
mod dependency_policy;
mod figures;
mod limits;
mod periodic;
mod pop;
mod put;
mod put_options;
mod read;
mod recur;
mod results;
mod select;
mod set_aside;
mod stats;
mod tick;
mod why;

use std::collections::{BTreeMap, BTreeSet};

use geartrain_core::engine::Limits;
use geartrain_core::{
    Answer, AttemptEnd, Command, CompleteReply, Cycles, EndSetAside, Event, Existing, Failure, Flush, Group,
    HistoryEntry, HistoryEvent, Holder, Jid, JobDetails, JobEnding, JobResult, Klass, Milestone, Payload,
    Periodic, Priority, QueueName, Refusal, Reply, ResultWaiter, Seconds, SetAside, StateName, StoredResult,
    StreamItem, StreamMessage, Tag, Timestamp, Token, Tombstone, WorkerName,
};

use capabilities::Abilities;
use limits::Restraint;
use recur::Template;
pub(crate) use recur::interval;
use stats::Day;

/// The whole queue, naively.
#[derive(Debug, Clone, Default)]
pub struct Model {
    limits: Limits,
    jobs: BTreeMap<Jid, Record>,
    recurring: BTreeMap<Jid, Template>,
    periodics: BTreeMap<Jid, Periodic>,
    /// When each registered queue was first seen.
    queues: BTreeMap<QueueName, Timestamp>,
    paused: BTreeSet<QueueName>,
    /// When each registered worker was last seen.
    workers: BTreeMap<WorkerName, Timestamp>,
    /// Tracked jobs, some of which are gone.
    tracked: BTreeMap<Jid, Entry>,
    /// Qless's usage counters, which drift.
    tag_uses: BTreeMap<Tag, i64>,
    /// The options that were set.
    options: BTreeMap<String, String>,
    figures: BTreeMap<(QueueName, Timestamp), Day>,
    /// Who waits for which job, in the order in which they came.
    waiters: Vec<(ResultWaiter, Jid)>,
    /// In the order in which they were kept.
    results: Vec<StoredResult>,
    /// Announced capabilities. Workers without any are absent.
    abilities: BTreeMap<WorkerName, Abilities>,
    /// The limits of each queue that has any.
    restraints: BTreeMap<QueueName, Restraint>,
    /// When a pop last asked each queue for jobs, to within ten seconds.
    asked: BTreeMap<QueueName, Timestamp>,
    /// What is left of cancelled jobs.
    tombstones: BTreeMap<Jid, Tombstone>,
    /// Who asks for the present command.
    by: Option<String>,
    /// Samples of completions, oldest first.
    samples: Vec<figures::Sample>,
    /// The last number that each counter gave out.
    counters: BTreeMap<String, u64>,
    arrivals: u64,
    tokens: u64,
    /// What the present command has published so far.
    events: Vec<Event>,
    /// The deliveries of the last command.
    deliveries: Vec<StreamMessage>,
}

/// A place in a container: a score, and among equal scores the order of arrival (decision 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    score: Timestamp,
    arrival: u64,
}

/// A job, field by field as Qless's hash has it (section 2).
#[derive(Debug, Clone)]
struct Record {
    klass: Klass,
    payload: Payload,
    priority: Priority,
    tags: Vec<Tag>,
    /// Its score in the index of each of its tags, where equals are in the order of their jids.
    tagged: BTreeMap<Tag, Timestamp>,
    place: Position,
    /// The hash's field `state`.
    word: &'static str,
    /// The hash's field `worker`: also names the last holder after a retry and a timeout.
    worker: Option<WorkerName>,
    /// The hash's field `expires`; zero when it is stored empty.
    expires: Timestamp,
    /// The deadline under which it is in the list of `worker`, if it is.
    listed: Option<Timestamp>,
    queue: Option<QueueName>,
    retries: u32,
    remaining: i64,
    time: Timestamp,
    failure: Option<Failure>,
    grace: bool,
    /// The due time kept aside while it waits for others.
    scheduled: Option<Timestamp>,
    spawned_from: Option<Jid>,
    history: Vec<HistoryEntry>,
    attempts: Vec<AttemptEnd>,
    dependencies: BTreeSet<Jid>,
    /// The jobs that it depended on when it failed because one of them did.
    dropped: BTreeSet<Jid>,
    /// The last attempt.
    token: Token,
    /// The last attempt that is over, and how it ended.
    ended: Option<(Token, Ending)>,
    /// What it was before it was set aside (rule Set aside).
    aside: Option<set_aside::Before>,
    /// What is true of it beyond Qless, but for `attached`, which is counted when it is shown.
    beyond: JobDetails,
    /// Whether it holds its unique key in its queue.
    holds_key: bool,
}

/// The one container that a job is in, with its score there (section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    Work { front: Front, entry: Entry },
    Scheduled(Entry),
    Depends(Entry),
    Locks { deadline: Timestamp },
    Failed { arrival: u64 },
    Completed { at: Timestamp },
}

/// Whether a job that waits is before others (rule Front).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Front {
    /// It waits where its priority and its moment put it.
    Not,
    /// It came back, and is before those of its priority that did not, by token.
    OfItsPriority,
    /// It was taken away by a timeout, and is before everything.
    OfAll,
}

impl Position {
    fn state(self) -> StateName {
        match self {
            Position::Work { .. } => StateName::Waiting,
            Position::Scheduled(_) => StateName::Scheduled,
            Position::Depends(_) => StateName::Depends,
            Position::Locks { .. } => StateName::Running,
            Position::Failed { .. } => StateName::Failed,
            Position::Completed { .. } => StateName::Complete,
        }
    }
}

/// How an attempt ended, as far as decision 16 asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Completed(CompleteReply),
    Failed,
    /// By its deadline: its token may still complete or fail the job until the next attempt (rule Deadline).
    TimedOut,
    /// Given back, taken away or run out of retries: nothing that can be repeated.
    Otherwise,
}

impl Record {
    /// Notes that the attempt that holds the job, or that its deadline ended, if there is one, is over.
    fn end_attempt(&mut self, how: Ending) {
        if matches!(self.place, Position::Locks { .. }) || matches!(self.ended, Some((_, Ending::TimedOut))) {
            self.ended = Some((self.token, how));
            self.beyond.progress = None;
            self.beyond.deadline = None;
        }
    }

    /// Resets deadline and crash count, because a caller put the job again.
    fn renew(&mut self, now: Timestamp) {
        self.beyond.expires = self.beyond.expires.filter(|expires| *expires > now);
        self.beyond.crashes = 0;
        self.beyond.evidence = None;
    }

    fn is_unfinished(&self) -> bool {
        match self.place.state() {
            StateName::Scheduled | StateName::Depends | StateName::Waiting | StateName::Running => true,
            StateName::Complete | StateName::Failed => false,
        }
    }

    /// The queue of a job that is not complete.
    fn its_queue(&self) -> QueueName {
        self.queue.clone().expect("only a complete job has no queue")
    }
}

impl Model {
    /// An empty one.
    pub fn new(limits: Limits) -> Model {
        Model { limits, ..Model::default() }
    }

    /// Executes one command at a moment: what is answered, and what is published.
    pub fn run(&mut self, now: Timestamp, command: &Command) -> (Answer, Vec<Event>) {
        self.deliveries.clear();
        let answer = self.validate(command).and_then(|()| self.answer(now, command));
        if answer.is_ok() {
            self.apply_dependency_policies(now);
        }
        (answer, std::mem::take(&mut self.events))
    }

    /// The same for a caller whose name is known.
    pub fn run_by(&mut self, by: Option<&str>, now: Timestamp, command: &Command) -> (Answer, Vec<Event>) {
        self.by = by.map(ToOwned::to_owned);
        let answered = self.run(now, command);
        self.by = None;
        answered
    }

    /// The deliveries of the last command, in order.
    pub fn deliveries(&self) -> &[StreamMessage] {
        &self.deliveries
    }

    /// Every job there is.
    pub fn jids(&self) -> Vec<Jid> {
        self.jobs.keys().cloned().collect()
    }

    /// When a lock, a scheduled or a recurring job of a queue next comes due.
    pub fn next_due(&self, queue: &QueueName) -> Option<Timestamp> {
        let locks = self.locks(queue).into_iter().map(|(deadline, _)| deadline);
        let scheduled = self.scheduled(queue).into_iter().map(|(due, _)| due);
        let recurring = self.recurring_in(queue).into_iter().map(|(next, _)| next.score);
        locks.chain(scheduled).chain(recurring).min()
    }

    #[allow(clippy::unit_arg, reason = "answers that say nothing read like all others")]
    fn answer(&mut self, now: Timestamp, command: &Command) -> Answer {
        Ok(match command {
            Command::Put(put) => Reply::Put(self.put(now, put)?),
            Command::Pop(pop) => Reply::Pop(self.pop(now, pop)),
            Command::Peek(peek) => Reply::Peek(self.peek(now, peek)),
            Command::Heartbeat(heartbeat) => Reply::Heartbeat(self.heartbeat(now, heartbeat)?),
            Command::Complete(complete) => Reply::Complete(self.complete(now, complete)?),
            Command::Fail(fail) => Reply::Fail(self.fail(now, fail)?),
            Command::Retry(retry) => Reply::Retry(self.retry(now, retry)?),
            Command::Timeout(timeout) => Reply::Timeout(self.timeout(now, timeout)?),
            Command::Cancel(cancel) => Reply::Cancel(self.cancel(now, cancel)?),
            Command::Unfail(unfail) => Reply::Unfail(self.unfail(now, unfail)),
            Command::SetPriority(set) => Reply::SetPriority(self.set_priority(set)?),
            Command::Depend(depend) => Reply::Depend(self.depend(now, depend)?),
            Command::Log(log) => Reply::Log(self.log(now, log)?),
            Command::Track(track) => Reply::Track(self.track(now, track)?),
            Command::Tracked(_) => Reply::Tracked(self.tracked_jobs()),
            Command::AddTags(add) => Reply::AddTags(self.add_tags(now, add)?),
            Command::RemoveTags(remove) => Reply::RemoveTags(self.remove_tags(remove)?),
            Command::Tagged(tagged) => Reply::Tagged(self.tagged(tagged)),
            Command::TopTags(top) => Reply::TopTags(self.top_tags(top)),
            Command::Get(get) => Reply::Get(self.view(&get.jid).map(Box::new)),
            Command::GetMany(get) => {
                Reply::GetMany(get.jids.iter().filter_map(|jid| self.view(jid)).collect())
            }
            Command::Length(length) => Reply::Length(self.length(&length.queue)),
            Command::Jobs(jobs) => Reply::Jobs(self.list(now, jobs)),
            Command::Failures(_) => Reply::Failures(self.failures()),
            Command::Failed(failed) => Reply::Failed(self.failed(failed)),
            Command::Queues(queues) => Reply::Queues(self.count_queues(now, queues)),
            Command::Workers(_) => Reply::Workers(self.count_workers(now)),
            Command::WorkerJobs(jobs) => Reply::WorkerJobs(self.worker_jobs(now, &jobs.worker)),
            Command::Stats(stats) => Reply::Stats(Box::new(self.stats(stats))),
            Command::Pause(pause) => Reply::Pause(self.paused.extend(pause.queues.iter().cloned())),
            Command::Resume(resume) => {
                Reply::Resume(self.paused.retain(|queue| !resume.queues.contains(queue)))
            }
            Command::ForgetQueues(forget) => {
                Reply::ForgetQueues(self.queues.retain(|queue, _| !forget.queues.contains(queue)))
            }
            Command::ForgetWorkers(forget) => {
                self.abilities.retain(|worker, _| !forget.workers.contains(worker));
                Reply::ForgetWorkers(self.workers.retain(|worker, _| !forget.workers.contains(worker)))
            }
            Command::GetConfig(get) => Reply::GetConfig(self.setting(&get.option)),
            Command::AllConfig(_) => Reply::AllConfig(self.all_settings()),
            Command::SetConfig(set) => Reply::SetConfig(self.set_option(set)),
            Command::UnsetConfig(unset) => Reply::UnsetConfig(self.unset_option(unset)),
            Command::Recur(recur) => Reply::Recur(self.recur(now, recur)),
            Command::Unrecur(unrecur) => {
                self.recurring.remove(&unrecur.jid);
                Reply::Unrecur(())
            }
            Command::GetRecurring(get) => Reply::GetRecurring(self.view_recurring(&get.jid).map(Box::new)),
            Command::UpdateRecurring(update) => Reply::UpdateRecurring(self.update_recurring(now, update)?),
            Command::TagRecurring(tag) => Reply::TagRecurring(self.tag_recurring(tag)?),
            Command::UntagRecurring(untag) => Reply::UntagRecurring(self.untag_recurring(untag)?),
            Command::Attach(attach) => Reply::Attach(self.attach(now, attach)?),
            Command::Detach(leave) => Reply::Detach(self.leave(&leave.scope)),
            Command::Progress(progress) => Reply::Progress(self.progress(progress)?),
            Command::Chunk(chunk) => Reply::Chunk(self.chunk(chunk)?),
            Command::Release(back) => Reply::Release(self.hand_back(now, back)?),
            Command::WorkerLost(gone) => Reply::WorkerLost(self.gone(now, gone)),
            Command::Announce(announce) => Reply::Announce(self.announce(now, announce)?),
            Command::RollCall(call) => Reply::RollCall(self.roll_call(&call.queue, call.klass.as_ref())),
            Command::Announced(announced) => Reply::Announced(self.announced(announced)),
            Command::SetLimits(set) => Reply::SetLimits(self.set_limits(set)),
            Command::GetLimits(get) => Reply::GetLimits(self.limits_of(&get.queue)),
            Command::GetResult(get) => Reply::GetResult(self.result(now, &get.jid).map(Box::new)),
            Command::Status(status) => Reply::Status(self.status(status)),
            Command::Why(why) => Reply::Why(Box::new(self.why(now, &why.jid)?)),
            Command::Tick(tick) => Reply::Tick(self.tick(now, tick)),
            Command::Flush(flush) => Reply::Flush(self.flush(flush)?),
            Command::Canceled(canceled) => {
                Reply::Canceled(self.tombstones.get(&canceled.jid).cloned().map(Box::new))
            }
            Command::AllocateIds(allot) => Reply::AllocateIds(self.allot(allot)),
            Command::Figures(figures) => Reply::Figures(self.figures_of(now, figures)),
            Command::WhyQueue(why) => Reply::WhyQueue(Box::new(self.why_queue(now, &why.queue))),
            Command::PriorityCounts(counts) => {
                Reply::PriorityCounts(self.priority_counts(now, &counts.queue))
            }
            Command::Select(select) => Reply::Select(Box::new(self.select(now, select))),
            Command::Act(act) => Reply::Act(Box::new(self.act(now, act))),
            Command::SetAside(set) => Reply::SetAside(Box::new(self.set_aside(now, set))),
            Command::EndSetAside(end) => Reply::EndSetAside(self.end_set_aside(now, end)),
            Command::Relock(relock) => Reply::Relock(self.relock(now, relock)),
            Command::PutPeriodic(put) => Reply::PutPeriodic(self.put_periodic(put)?),
            Command::RemovePeriodic(remove) => {
                Reply::RemovePeriodic(self.periodics.remove(&remove.jid).is_some())
            }
            Command::Periodics(asked) => Reply::Periodics(Box::new(self.list_periodics(asked))),
            Command::DuePeriodics(asked) => Reply::DuePeriodics(Box::new(self.due_periodics(now, asked))),
            Command::FirePeriodic(fire) => Reply::FirePeriodic(self.fire_periodic(now, fire)?),
            unknown => panic!("the model does not know {}", unknown.name()),
        })
    }

    /// Removes everything at once; the engine needs several commands for much.
    fn flush(&mut self, flush: &Flush) -> Result<bool, Refusal> {
        at_least_one("count", flush.count.get())?;
        for jid in self.waiters.iter().map(|(_, jid)| jid.clone()).collect::<BTreeSet<_>>() {
            let result = JobResult { code: 1, ..JobResult::default() };
            self.deliver(&jid, &StreamItem::Ended(JobEnding::Canceled, result));
        }
        *self = Model {
            limits: self.limits.clone(),
            counters: std::mem::take(&mut self.counters),
            arrivals: self.arrivals,
            tokens: self.tokens,
            deliveries: std::mem::take(&mut self.deliveries),
            ..Model::default()
        };
        Ok(false)
    }

    /// What is wrong with a command in itself, whatever is in the queue. This comes before all else.
    fn validate(&self, command: &Command) -> Result<(), Refusal> {
        match command {
            Command::Put(put) => {
                validate_delay(put.delay, put.cycles == Cycles::Accept)?;
                self.fits("payload", put.payload.bytes())?;
                put.options.as_deref().map_or(Ok(()), put_options::validate)?;
                let is_plain =
                    put.existing == Existing::Keep && put.depends.is_empty() && put.delay <= Seconds::ZERO;
                let is_failed = put.options.as_ref().is_some_and(|terms| terms.failure.is_some());
                if is_failed && !is_plain { Err(bad_argument("failure")) } else { Ok(()) }
            }
            Command::Pop(pop) => {
                at_least_one("queues", pop.queues.len())?;
                at_least_one("klasses", pop.klasses.as_ref().map_or(1, Vec::len))
            }
            Command::Heartbeat(heartbeat) => self.payload_fits(&heartbeat.payload),
            Command::Complete(complete) => {
                if let Some(next) = &complete.next {
                    validate_delay(next.delay, next.cycles == Cycles::Accept)?;
                }
                self.payload_fits(&complete.payload)?;
                self.result_fits(&complete.result)
            }
            Command::Fail(fail) => {
                self.payload_fits(&fail.payload)?;
                self.fits("message", fail.message.as_bytes())?;
                self.result_fits(&fail.result)
            }
            Command::Retry(retry) => {
                validate_delay(retry.delay, matches!(retry.holder, Holder::Worker(_)))?;
                self.fits("message", retry.message.as_deref().unwrap_or_default().as_bytes())
            }
            Command::Unfail(unfail) => at_least_one("count", unfail.count.get()),
            Command::Log(log) => {
                self.fits("message", log.message.as_bytes())?;
                self.fits("log data", log.data.as_deref().unwrap_or_default().as_bytes())
            }
            Command::Pause(pause) => at_least_one("queues", pause.queues.len()),
            Command::Resume(resume) => at_least_one("queues", resume.queues.len()),
            Command::ForgetQueues(forget) => at_least_one("queues", forget.queues.len()),
            Command::ForgetWorkers(forget) => at_least_one("workers", forget.workers.len()),
            Command::SetConfig(set) => {
                config::validate(&set.option, (!set.any).then_some(set.value.as_str()))
            }
            Command::UnsetConfig(unset) => config::validate(&unset.option, None),
            Command::Recur(recur) => {
                self.fits("payload", recur.payload.bytes())?;
                recur::validate(Some(&recur.jid), Some(&recur.every))
            }
            Command::UpdateRecurring(update) => {
                self.payload_fits(&update.payload)?;
                recur::validate(None, update.every.as_ref())
            }
            Command::Progress(progress) => {
                self.fits("progress", progress.text.as_ref().map(Payload::bytes).unwrap_or_default())
            }
            Command::Chunk(chunk) => self.fits("chunk", chunk.bytes.bytes()),
            Command::Release(back) => {
                validate_delay(back.delay, false)?;
                if back.delay < Seconds::ZERO {
                    return Err(bad_argument("delay"));
                }
                self.fits("message", back.message.as_deref().unwrap_or_default().as_bytes())
            }
            Command::Cancel(cancel) => validate_because(cancel.because.as_deref()),
            Command::WorkerLost(gone) => capabilities::validate_evidence(gone.evidence.as_deref()),
            Command::Announce(announce) => capabilities::validate(&announce.change),
            Command::SetLimits(set) => limits::validate(&set.limits),
            Command::AllocateIds(allot) if !(1..=512).contains(&allot.counter.len()) => {
                Err(bad_argument("counter"))
            }
            Command::AllocateIds(allot) => at_least_one("count", allot.count.get()),
            Command::Select(select) => {
                Model::validate_select(&select.filter, select.after.is_some(), select.count.get())
            }
            Command::Act(act) => Model::validate_act(act),
            Command::PutPeriodic(put) => self.validate_periodic(put),
            Command::FirePeriodic(fire) if fire.runs.len() > 1_000 => Err(bad_argument("runs")),
            Command::SetAside(SetAside { jids, .. }) | Command::EndSetAside(EndSetAside { jids, .. })
                if !(1..=1_000).contains(&jids.len()) =>
            {
                Err(bad_argument("jids"))
            }
            Command::SetAside(set) if set.to.is_empty() || set.to.len() > 512 || set.to.contains(' ') => {
                Err(bad_argument("to"))
            }
            Command::Relock(relock) if !(1..=1_000).contains(&relock.count.get()) => {
                Err(bad_argument("count"))
            }
            _ => Ok(()),
        }
    }

    fn payload_fits(&self, payload: &Option<Payload>) -> Result<(), Refusal> {
        self.fits("payload", payload.as_ref().map(Payload::bytes).unwrap_or_default())
    }

    fn result_fits(&self, result: &Option<Box<JobResult>>) -> Result<(), Refusal> {
        self.fits("result", result.as_ref().map(|outcome| outcome.bytes.bytes()).unwrap_or_default())
    }

    fn fits(&self, what: &'static str, bytes: &[u8]) -> Result<(), Refusal> {
        let (bytes, max) = (bytes.len(), self.limits.payload_bytes_max);
        if bytes > max { Err(Refusal::TooLarge { what: what.into(), bytes, max }) } else { Ok(()) }
    }

    // Looking jobs up.

    fn job(&self, jid: &Jid) -> Result<&Record, Refusal> {
        self.jobs.get(jid).ok_or_else(|| Refusal::NoSuchJob { jid: jid.clone() })
    }

    /// A job that a container, or a check just made, says is there.
    fn job_mut(&mut self, jid: &Jid) -> &mut Record {
        self.jobs.get_mut(jid).expect("containers are made by looking at the jobs")
    }

    /// Every job that a rule gives a place, by that place.
    fn container<K: Ord>(&self, place: impl Fn(&Record) -> Option<K>) -> Vec<(K, Jid)> {
        let mut found: Vec<(K, Jid)> =
            self.jobs.iter().filter_map(|(jid, job)| Some((place(job)?, jid.clone()))).collect();
        found.sort_by(|one, other| one.0.cmp(&other.0));
        found
    }

    /// Jobs that may be popped, the first to go first (section 4.1, decision 1).
    fn work(&self, queue: &QueueName) -> Vec<Jid> {
        use std::cmp::Reverse;
        let found = self.container(|job| match job.place {
            Position::Work { front, entry } if job.queue.as_ref() == Some(queue) => Some(match front {
                Front::OfAll => (0, Reverse(Priority::ZERO), 0, Timestamp::ZERO, entry.arrival),
                Front::OfItsPriority => (1, Reverse(job.priority), 0, Timestamp::ZERO, job.token.number()),
                Front::Not => (1, Reverse(job.priority), 1, entry.score, entry.arrival),
            }),
            _ => None,
        });
        jids(found)
    }

    /// Jobs handed out, by the end of their lock or of their grace.
    fn locks(&self, queue: &QueueName) -> Vec<(Timestamp, Jid)> {
        let found = self.container(|job| match job.place {
            Position::Locks { deadline } if job.queue.as_ref() == Some(queue) => Some((deadline, job.token)),
            _ => None,
        });
        found.into_iter().map(|((deadline, _), jid)| (deadline, jid)).collect()
    }

    /// Jobs whose lock is expired; one that ends at this very moment is (trap 16).
    fn expired(&self, now: Timestamp, queue: &QueueName) -> Vec<Jid> {
        self.locks(queue).into_iter().filter(|(deadline, _)| *deadline <= now).map(|(_, jid)| jid).collect()
    }

    /// Jobs that are due at some time, the earliest first.
    fn scheduled(&self, queue: &QueueName) -> Vec<(Timestamp, Jid)> {
        let found = self.container(|job| match job.place {
            Position::Scheduled(entry) if job.queue.as_ref() == Some(queue) => Some(entry),
            _ => None,
        });
        found.into_iter().map(|(entry, jid)| (entry.score, jid)).collect()
    }

    /// Jobs that wait for others, the first put first.
    fn waiting_for_others(&self, queue: &QueueName) -> Vec<Jid> {
        jids(self.container(|job| match job.place {
            Position::Depends(entry) if job.queue.as_ref() == Some(queue) => Some(entry),
            _ => None,
        }))
    }

    /// Complete jobs, the oldest first.
    fn completed(&self) -> Vec<(Timestamp, Jid)> {
        let found = self.container(|job| match job.place {
            Position::Completed { at } => Some((at, job.token)),
            _ => None,
        });
        found.into_iter().map(|((at, _), jid)| (at, jid)).collect()
    }

    /// Failed jobs of a group, the first to fail first.
    fn failed_in(&self, group: &Group) -> Vec<Jid> {
        jids(self.container(|job| match (job.place, &job.failure) {
            (Position::Failed { arrival }, Some(failure)) if failure.group == *group => Some(arrival),
            _ => None,
        }))
    }

    /// Jobs in a worker's list, the first to expire first.
    fn list_of(&self, worker: &WorkerName) -> Vec<(Timestamp, Jid)> {
        let found = self.container(|job| match job.listed {
            Some(deadline) if job.worker.as_ref() == Some(worker) => Some((deadline, job.token)),
            _ => None,
        });
        found.into_iter().map(|((deadline, _), jid)| (deadline, jid)).collect()
    }

    /// Jobs that wait for a job, sorted.
    fn dependents(&self, jid: &Jid) -> Vec<Jid> {
        let waiting = self.jobs.iter().filter(|(_, job)| job.dependencies.contains(jid));
        waiting.map(|(dependent, _)| dependent.clone()).collect()
    }

    /// Whether a job counts as a dependency: it exists and is not complete (trap 25).
    fn is_open(&self, jid: &Jid) -> bool {
        self.jobs.get(jid).is_some_and(|job| job.place.state() != StateName::Complete)
    }

    // What many commands do.

    fn arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    fn enter(&mut self, score: Timestamp) -> Entry {
        Entry { score, arrival: self.arrival() }
    }

    /// Into work, at an ordering moment.
    fn enter_work(&mut self, moment: Timestamp) -> Position {
        Position::Work { front: Front::Not, entry: self.enter(moment) }
    }

    fn publish_milestone(&mut self, jid: &Jid, what: Milestone) {
        if self.tracked.contains_key(jid) {
            self.events.push(Event::Milestone { jid: jid.clone(), what });
        }
    }

    /// Appends to a job's history, and shortens it (section 4.2, decision 13).
    fn remember(&mut self, jid: &Jid, now: Timestamp, what: HistoryEvent) {
        let max = self.number("max-job-history").unwrap_or(100.0).floor();
        let history = &mut self.job_mut(jid).history;
        history.push(HistoryEntry { when: now.floor(), what });
        if max <= 0.0 {
            return;
        }
        let kept_at_the_front = usize::from(max > 1.0);
        while history.len() as f64 > max {
            history.remove(kept_at_the_front);
        }
    }

    /// Checks that the caller holds a job, in the queue that it names. Returns the worker.
    fn held(&self, jid: &Jid, holder: &Holder, given: Option<&QueueName>) -> Result<WorkerName, Refusal> {
        let job = self.job(jid)?;
        let state = job.place.state();
        match holder {
            Holder::Token(token) if state != StateName::Running || job.token != *token => {
                return Err(Refusal::LockLost { jid: jid.clone(), state });
            }
            Holder::Worker(_) if state != StateName::Running => return Err(not_running(jid, job)),
            Holder::Worker(worker) if job.worker.as_ref() != Some(worker) => {
                let holder = job.worker.clone().expect("a running job has a worker");
                return Err(Refusal::HeldByAnother { jid: jid.clone(), worker: worker.clone(), holder });
            }
            Holder::Token(_) | Holder::Worker(_) => {}
        }
        let queue = job.queue.clone().expect("a running job has a queue");
        if let Some(given) = given.filter(|given| **given != queue) {
            return Err(Refusal::WrongQueue { jid: jid.clone(), queue, given: given.clone() });
        }
        Ok(job.worker.clone().expect("a running job has a worker"))
    }

    /// The same for a caller that ends an attempt, which its deadline may have ended before (rule Deadline).
    fn held_or_late(
        &self,
        jid: &Jid,
        holder: &Holder,
        given: Option<&QueueName>,
    ) -> Result<WorkerName, Refusal> {
        if self.last_ending(jid, holder) != Some(Ending::TimedOut) {
            return self.held(jid, holder, given);
        }
        let job = self.job(jid)?;
        let queue = job.its_queue();
        if let Some(given) = given.filter(|given| **given != queue) {
            return Err(Refusal::WrongQueue { jid: jid.clone(), queue, given: given.clone() });
        }
        Ok(job.worker.clone().expect("the hash names the last worker after a retry"))
    }

    /// How the attempt that a caller names ended, if it is over and no later one is (decision 16).
    fn last_ending(&self, jid: &Jid, holder: &Holder) -> Option<Ending> {
        match (self.jobs.get(jid)?.ended, holder) {
            (Some((ended, how)), Holder::Token(token)) if ended == *token => Some(how),
            _ => None,
        }
    }

    /// Refuses dependencies that lead back to the job that is to have them (decision 18).
    fn refuse_cycle(&self, jid: &Jid, depends: &[Jid], cycles: Cycles) -> Result<(), Refusal> {
        if cycles == Cycles::Accept {
            return Ok(());
        }
        for through in depends {
            let mut behind = BTreeSet::new();
            let mut to_visit = vec![through];
            while let Some(visited) = to_visit.pop() {
                if visited == jid {
                    return Err(Refusal::Cycle { jid: jid.clone(), through: through.clone() });
                }
                if behind.insert(visited) {
                    to_visit.extend(self.jobs.get(visited).iter().flat_map(|job| &job.dependencies));
                }
            }
        }
        Ok(())
    }
}

fn not_running(jid: &Jid, job: &Record) -> Refusal {
    Refusal::NotRunning { jid: jid.clone(), state: job.place.state(), qless: job.word }
}

fn at_least_one(what: &'static str, number: usize) -> Result<(), Refusal> {
    if number == 0 { Err(bad_argument(what)) } else { Ok(()) }
}

fn validate_delay(delay: Seconds, is_qless: bool) -> Result<(), Refusal> {
    if delay.get() > 3_155_760_000.0 && !is_qless { Err(bad_argument("delay")) } else { Ok(()) }
}

/// The model does not know how the engine words it.
fn bad_argument(what: &'static str) -> Refusal {
    Refusal::BadArgument { what: what.into(), why: String::new() }
}

fn jids<K>(container: Vec<(K, Jid)>) -> Vec<Jid> {
    container.into_iter().map(|(_, jid)| jid).collect()
}

/// A reason for a cancellation has a limit of its own (rule Tombstones).
fn validate_because(because: Option<&str>) -> Result<(), Refusal> {
    let (bytes, max) = (because.map_or(0, str::len), 1_024);
    if bytes > max { Err(Refusal::TooLarge { what: "because".into(), bytes, max }) } else { Ok(()) }
}
