//! The backend under test, its clock, and helpers to query it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::poll_fn;
use std::panic::Location;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use geartrain_core::*;

use super::CASES;
use super::builders::*;
use super::walk::Watch;
use crate::clock::ManualClock;

/// The outcome of a case. It fails by an assertion or by an unexpected error.
pub type Checked = Result<(), Unexpected>;

/// Any error, on its way to the case that did not expect it.
pub(crate) type Surprise = Box<dyn std::error::Error + Send + Sync>;

/// An error that a case did not expect, and where in the case it came up.
#[derive(Debug)]
pub struct Unexpected {
    error: Surprise,
    at: &'static Location<'static>,
}

impl<E: Into<Surprise>> From<E> for Unexpected {
    // The place is that of the `?`, which is all that tells one of a case's commands from the next.
    #[track_caller]
    fn from(error: E) -> Unexpected {
        Unexpected { error: error.into(), at: Location::caller() }
    }
}

/// A case, ready to run on a system.
pub(crate) type Case = fn(System) -> Pin<Box<dyn Future<Output = Checked>>>;

/// Makes a fresh backend that goes by a clock.
pub type Start = fn(Arc<ManualClock>) -> Arc<dyn Backend>;

/// Runs one case on a fresh backend, and looks at every job along the way. A backend's tests come here
/// through [`conformance!`](crate::conformance!).
pub fn check(case: &str, order: Order, backend: Start) {
    let (_, case) = CASES.iter().find(|(name, _)| *name == case).expect("the tests are made from the table");
    run(*case, order, backend);
}

pub(crate) fn run(case: Case, order: Order, backend: Start) {
    let clock = ManualClock::new();
    let watch = Watch::new(backend(clock.clone()), clock.clone());
    let system = System { backend: watch.clone(), clock, order };
    let checked = pollster::block_on(async {
        case(system).await?;
        Ok(watch.walk().await?)
    });
    if let Err(Unexpected { error, at }) = checked {
        panic!("{at}: {error}");
    }
}

/// How a backend tells jobs apart that nearly are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// By priority, then by moment, then by when they came.
    Exact,
    /// Waiting jobs by one double that holds priority and moment, then by when they came; other lists by
    /// moment, then by name.
    OneDouble,
}

/// One backend, and the clock that it goes by.
///
/// Commands bring their own moment, because that is what nearly all rules are about; only those about waiting
/// and about calls without a moment look at the clock.
pub struct System {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) order: Order,
}

/// Early enough that to look at anything then moves no job and forgets no worker.
pub(crate) const LONG_AGO: f64 = -1e12;

impl System {
    /// Equals of one list, named as they came, in the order in which they are listed.
    pub(crate) fn equals<const N: usize>(&self, mut names: [&'static str; N]) -> [&'static str; N] {
        if self.order == Order::OneDouble {
            names.sort_unstable();
        }
        names
    }

    /// Gives one command at a moment.
    pub(crate) async fn at<O: Operation>(
        &self,
        now: impl Into<f64>,
        operation: O,
    ) -> Result<O::Reply, BackendError> {
        self.call(Call::at(moment(now), operation)).await.map(answer::<O>)
    }

    /// Gives one command at the moment that the backend's clock shows.
    pub(crate) async fn now<O: Operation>(&self, operation: O) -> Result<O::Reply, BackendError> {
        self.call(Call::from(operation.into())).await.map(answer::<O>)
    }

    /// Gives one command that does not care what time it is.
    pub(crate) async fn ask<O: Operation>(&self, operation: O) -> Result<O::Reply, BackendError> {
        self.at(LONG_AGO, operation).await
    }

    async fn call(&self, call: Call) -> Result<Reply, BackendError> {
        let mut answers = self.backend.execute(vec![call]).await?;
        assert_eq!(answers.len(), 1, "one command has one answer");
        Ok(answers.remove(0)?)
    }

    /// Gives a command that must be refused, and must then have changed nothing.
    pub(crate) async fn refuses<O: Operation<Reply: Debug>>(
        &self,
        now: impl Into<f64>,
        operation: O,
        expected: Refusal,
    ) -> Result<(), Surprise> {
        let now = now.into();
        let before = self.snapshot(now).await?;
        refused(self.at(now, operation).await, expected);
        assert_eq!(self.snapshot(now).await?, before, "a refused command changed something");
        Ok(())
    }

    /// Gives a command that must be answered, and must then have changed nothing.
    pub(crate) async fn ignores<O: Operation>(
        &self,
        now: impl Into<f64>,
        operation: O,
    ) -> Result<O::Reply, Surprise> {
        let now = now.into();
        let before = self.snapshot(now).await?;
        let reply = self.at(now, operation).await?;
        assert_eq!(self.snapshot(now).await?, before, "the command changed something");
        Ok(reply)
    }

    /// Pops up to so many jobs, and says which they were.
    pub(crate) async fn pop(
        &self,
        now: impl Into<f64>,
        from: &str,
        by: &str,
        wanted: i64,
    ) -> Result<Vec<String>, BackendError> {
        self.at(now, pop_many(from, by, wanted)).await.map(popped_jids)
    }

    /// Pops the one job that there must be.
    pub(crate) async fn take(&self, now: impl Into<f64>, from: &str, by: &str) -> Result<Popped, Surprise> {
        Ok(self.at(now, pop(from, by)).await?.jobs.pop().ok_or("there was nothing to pop")?)
    }

    /// Puts a job and pops it at the same moment; it must be the first in its queue.
    pub(crate) async fn run(&self, now: impl Into<f64>, job: Put, by: &str) -> Result<Popped, Surprise> {
        let (now, from, expected) = (now.into(), job.queue.to_string(), job.jid.clone());
        self.at(now, job).await?;
        let popped = self.take(now, &from, by).await?;
        assert_eq!(popped.jid, expected, "another job was first in the queue");
        Ok(popped)
    }

    /// A job that there must be.
    pub(crate) async fn job(&self, name: impl AsRef<str>) -> Result<Job, Surprise> {
        let name = name.as_ref();
        let job = self.ask(Get { jid: jid(name) }).await?;
        Ok(*job.ok_or_else(|| format!("there is no job {name}"))?)
    }

    /// Whether there is a job of this name.
    pub(crate) async fn has(&self, name: &str) -> Result<bool, BackendError> {
        Ok(self.ask(Get { jid: jid(name) }).await?.is_some())
    }

    /// Where a job stands.
    pub(crate) async fn state(&self, name: &str) -> Result<StateName, Surprise> {
        Ok(self.job(name).await?.state.name())
    }

    /// The jobs of a list.
    pub(crate) async fn list(
        &self,
        now: impl Into<f64>,
        which: Listing,
    ) -> Result<Vec<String>, BackendError> {
        self.at(now, Jobs { which, page: Page::default() }).await.map(texts)
    }

    /// How many jobs of one queue stand where.
    pub(crate) async fn counts(&self, now: impl Into<f64>, name: &str) -> Result<QueueCounts, Surprise> {
        let mut counts = self.at(now, Queues { queue: Some(queue(name)) }).await?;
        assert_eq!(counts.len(), 1, "one queue was asked about");
        Ok(counts.remove(0))
    }

    /// The registered queues.
    pub(crate) async fn registered(&self) -> Result<Vec<String>, BackendError> {
        Ok(texts(self.ask(Queues { queue: None }).await?.into_iter().map(|counts| counts.name)))
    }

    /// The workers, most recently seen first.
    pub(crate) async fn workers(&self, now: impl Into<f64>) -> Result<Vec<String>, BackendError> {
        Ok(texts(self.at(now, Workers).await?.into_iter().map(|counts| counts.name)))
    }

    /// A worker's jobs: with a valid lock, and with an expired one.
    pub(crate) async fn worker_jobs(
        &self,
        now: impl Into<f64>,
        name: &str,
    ) -> Result<(Vec<String>, Vec<String>), BackendError> {
        let reply = self.at(now, WorkerJobs { worker: worker(name) }).await?;
        Ok((texts(reply.jobs), texts(reply.stalled)))
    }

    /// A recurring job that there must be.
    pub(crate) async fn recurring(&self, name: &str) -> Result<Recurring, Surprise> {
        let recurring = self.ask(GetRecurring { jid: jid(name) }).await?;
        Ok(*recurring.ok_or_else(|| format!("there is no recurring job {name}"))?)
    }

    /// How a queue did on the day of a moment.
    pub(crate) async fn stats(&self, name: &str, date: impl Into<f64>) -> Result<StatsReply, BackendError> {
        Ok(*self.ask(Stats { queue: queue(name), date: moment(date) }).await?)
    }

    /// The tags used at least twice.
    pub(crate) async fn top_tags(&self) -> Result<Vec<String>, BackendError> {
        self.ask(TopTags::default()).await.map(texts)
    }

    /// Subscribes to events.
    pub(crate) async fn listen(&self) -> Result<Listener, BackendError> {
        Ok(Listener { events: self.backend.subscribe().await?, last: None })
    }

    /// Resumes a subscription after a position.
    pub(crate) async fn resume(&self, after: u64) -> Result<Listener, BackendError> {
        Ok(Listener { events: self.backend.subscribe_from(after).await?, last: Some(after) })
    }

    /// Opens a result stream.
    pub(crate) async fn follow(&self, front: u64) -> Result<Follower, BackendError> {
        Ok(Follower { deliveries: self.backend.open_result_stream(front).await?, front })
    }

    /// The reasons why a job is not running.
    pub(crate) async fn why(&self, now: impl Into<f64>, name: &str) -> Result<Vec<Reason>, Surprise> {
        Ok(self.at(now, Why { jid: jid(name) }).await?.reasons)
    }

    /// The details of a job that must exist.
    pub(crate) async fn details(&self, name: &str) -> Result<JobDetails, Surprise> {
        let details = self.job(name).await?.details;
        Ok(*details.ok_or_else(|| format!("there is nothing particular about job {name}"))?)
    }

    /// Runs ticks until nothing is due.
    pub(crate) async fn tick(&self, now: impl Into<f64>) -> Result<TickReply, BackendError> {
        self.at(now, Tick { count: Count::MAX }).await
    }

    /// A result that must be kept.
    pub(crate) async fn result(&self, now: impl Into<f64>, name: &str) -> Result<StoredResult, Surprise> {
        let kept = self.at(now, GetResult { jid: jid(name) }).await?;
        Ok(*kept.ok_or_else(|| format!("no result of job {name} is kept"))?)
    }

    /// How many workers can do a klass in a queue.
    pub(crate) async fn capable_workers(&self, name: &str, kind: Option<&str>) -> Result<u64, BackendError> {
        self.ask(RollCall { queue: queue(name), klass: kind.map(klass) }).await
    }

    /// Parks a pop; there must be no job yet.
    pub(crate) async fn waits(&self, wanted: Pop, wait: impl Into<f64>) -> Result<IdleWorker<'_>, Surprise> {
        let mut waiter = IdleWorker { reply: self.backend.pop_or_wait(wanted, seconds(wait)) };
        waiter.still_waits(self).await?;
        Ok(waiter)
    }

    /// Starts a ready wait; there must be no job yet.
    pub(crate) async fn waits_for_word<const N: usize>(
        &self,
        of: [&str; N],
        wait: impl Into<f64>,
    ) -> Result<IdleWorker<'_, bool>, Surprise> {
        let mut waiter = IdleWorker { reply: self.backend.ready_or_wait(queues(of), seconds(wait)) };
        waiter.still_waits(self).await?;
        Ok(waiter)
    }

    /// All that can be seen: every job that a list names, with its queue, tags, worker and figures.
    ///
    /// The queues must be registered, and the statistics are those of the day of `now`.
    pub(crate) async fn snapshot(&self, now: f64) -> Result<Snapshot, Surprise> {
        let page = Page { offset: 0, count: Count::MAX };
        let queues = self.ask(Queues { queue: None }).await?;
        let failures = self.ask(Failures).await?;
        let mut lists = vec![self.ask(Jobs { which: Listing::Complete, page }).await?];
        let mut recurring = Vec::new();
        let mut stats = Vec::new();
        let mut limits = Vec::new();
        for QueueCounts { name, .. } in &queues {
            for which in [Listing::Waiting, Listing::Running, Listing::Scheduled, Listing::Depends] {
                lists.push(self.ask(Jobs { which: which(name.clone()), page }).await?);
            }
            for jid in self.ask(Jobs { which: Listing::Recurring(name.clone()), page }).await? {
                recurring.push(self.recurring(&jid.to_string()).await?);
            }
            stats.push(self.stats(name.as_str(), now).await?);
            limits.push(self.ask(GetLimits { queue: name.clone() }).await?);
        }
        for group in failures.keys() {
            lists.push(self.ask(Failed { group: group.clone(), page }).await?.jids);
        }
        let jobs = self.ask(GetMany { jids: lists.concat() }).await?;
        let names: BTreeSet<&Tag> = jobs.iter().flat_map(|job| &job.tags).collect();
        let mut tags = Vec::new();
        for tag in names {
            tags.push(self.ask(Tagged { tag: tag.clone(), page }).await?);
        }
        let mut results = Vec::new();
        for job in &jobs {
            results.extend(self.ask(GetResult { jid: job.jid.clone() }).await?.map(|kept| *kept));
        }
        let mut workers = Vec::new();
        let counts = self.ask(Workers).await?;
        for WorkerCounts { name, .. } in &counts {
            workers.push(self.at(now, WorkerJobs { worker: name.clone() }).await?);
        }
        Ok(Snapshot {
            jobs,
            lists,
            recurring,
            queues,
            failures,
            tags,
            top_tags: self.ask(TopTags { page }).await?,
            tracked: self.ask(Tracked).await?,
            worker_counts: counts,
            workers,
            config: self.ask(AllConfig).await?,
            stats,
            limits,
            results,
            announced: self.ask(Announced { worker: None }).await?,
        })
    }
}

fn answer<O: Operation>(reply: Reply) -> O::Reply {
    O::answer(reply).expect("a reply answers the command that was given")
}

/// Which jobs a pop handed out.
pub(crate) fn popped_jids(reply: PopReply) -> Vec<String> {
    texts(reply.jobs.into_iter().map(|job| job.jid))
}

/// The answer was this refusal. Of bad arguments only what they are about is compared, not how that is put.
#[track_caller]
pub(crate) fn refused<T: Debug>(result: Result<T, BackendError>, expected: Refusal) {
    match (result, expected) {
        (
            Err(BackendError::Refused(Refusal::BadArgument { what, .. })),
            Refusal::BadArgument { what: expected, .. },
        ) => assert_eq!(what, expected),
        (Err(BackendError::Refused(refusal)), expected) => assert_eq!(refusal, expected),
        (result, expected) => panic!("expected a refusal, {expected:?}, and got {result:?}"),
    }
}

/// The answer was that something is too large, whatever the figures.
#[track_caller]
pub(crate) fn too_large<T: Debug>(result: Result<T, BackendError>, expected: &str) {
    match result {
        Err(BackendError::Refused(Refusal::TooLarge { what, bytes, max })) => {
            assert_eq!(what, expected);
            assert!(bytes > max, "{bytes} bytes are not over the limit of {max}");
        }
        result => panic!("expected a {expected} that is too large, and got {result:?}"),
    }
}

/// All that can be seen of a system.
#[derive(Debug, PartialEq)]
pub(crate) struct Snapshot {
    jobs: Vec<Job>,
    lists: Vec<Vec<Jid>>,
    recurring: Vec<Recurring>,
    queues: Vec<QueueCounts>,
    failures: BTreeMap<Group, u64>,
    tags: Vec<Listed>,
    top_tags: Vec<Tag>,
    tracked: TrackedReply,
    worker_counts: Vec<WorkerCounts>,
    workers: Vec<WorkerJobsReply>,
    config: BTreeMap<String, Setting>,
    stats: Vec<StatsReply>,
    limits: Vec<QueueLimits>,
    results: Vec<StoredResult>,
    announced: Vec<Announcement>,
}

/// An event subscriber.
pub(crate) struct Listener {
    events: Box<dyn Subscription>,
    last: Option<u64>,
}

impl Listener {
    /// The next event, which there must be or come.
    pub(crate) async fn next(&mut self, system: &System) -> Result<Event, Surprise> {
        let PositionedEvent { position, event, .. } = soon(system, self.events.next()).await??;
        assert!(self.last < Some(position), "position {position} came after {:?}", self.last);
        self.last = Some(position);
        Ok(Event::clone(&event))
    }

    /// When the next event happened.
    pub(crate) async fn next_time(&mut self, system: &System) -> Result<Option<Timestamp>, Surprise> {
        let published = soon(system, self.events.next()).await??;
        self.last = Some(published.position);
        Ok(published.at)
    }

    /// The position of the last event that was heard.
    pub(crate) fn position(&self) -> Result<u64, Surprise> {
        Ok(self.last.ok_or("nothing was heard yet")?)
    }

    /// Exactly these events were published since the last call, in this order.
    ///
    /// An option is set to mark the end, so that a missing event is noticed rather than waited for.
    pub(crate) async fn heard<const N: usize>(
        &mut self,
        system: &System,
        expected: [Event; N],
    ) -> Result<(), Surprise> {
        assert_eq!(self.all(system).await?, expected);
        Ok(())
    }

    /// All events since the last call.
    pub(crate) async fn all(&mut self, system: &System) -> Result<Vec<Event>, Surprise> {
        system.ask(set_any("end-of-events", "here")).await?;
        let end = Event::ConfigSet { option: "end-of-events".into(), value: "here".into() };
        let mut events = Vec::new();
        loop {
            match self.next(system).await? {
                event if event == end => return Ok(events),
                event => events.push(event),
            }
        }
    }

    /// Discards all events until now.
    pub(crate) async fn skip(&mut self, system: &System) -> Result<(), Surprise> {
        system.ask(set_any("end-of-events", "skipped")).await?;
        let end = Event::ConfigSet { option: "end-of-events".into(), value: "skipped".into() };
        while self.next(system).await? != end {}
        Ok(())
    }
}

/// The reader of one result stream.
pub(crate) struct Follower {
    deliveries: Box<dyn ResultStream>,
    front: u64,
}

impl Follower {
    /// Exactly this was told since the last look, in this order.
    ///
    /// A cancelled job with a waiter marks the end, so that a missing delivery is noticed rather than waited
    /// for.
    pub(crate) async fn told<const N: usize>(
        &mut self,
        system: &System,
        expected: [StreamMessage; N],
    ) -> Result<(), Surprise> {
        let last = ResultWaiter { stream_id: self.front, connection: u64::MAX, number: u64::MAX };
        let terms = PutOptions { attach: Some(last), ..PutOptions::default() };
        system.ask(on_terms(put("elsewhere", "end-of-deliveries"), terms)).await?;
        system.ask(cancel(["end-of-deliveries"])).await?;
        let mut told = Vec::new();
        loop {
            match soon(system, self.deliveries.next()).await?? {
                delivery if delivery.waiter == last => break,
                delivery => told.push(delivery),
            }
        }
        assert_eq!(told, expected);
        Ok(())
    }
}

/// A parked pop or ready wait. Dropping it cancels the wait.
pub(crate) struct IdleWorker<'a, T = PopReply> {
    pub(crate) reply: Pending<'a, T>,
}

impl<T> IdleWorker<'_, T> {
    /// It has not been answered.
    pub(crate) async fn still_waits(&mut self, system: &System) -> Result<(), Surprise> {
        assert!(self.look().await.is_none(), "the worker was answered before it should be");
        // Whatever the backend was already doing for the waiter is done before it answers another command.
        system.ask(Length { queue: queue("elsewhere") }).await?;
        assert!(self.look().await.is_none(), "the worker was answered before it should be");
        Ok(())
    }

    /// Its answer, if there is one yet.
    pub(crate) async fn look(&mut self) -> Option<Result<T, BackendError>> {
        look(&mut self.reply).await
    }

    /// What it is answered in the end.
    pub(crate) async fn answered(self, system: &System) -> Result<T, Surprise> {
        Ok(soon(system, self.reply).await??)
    }
}

impl IdleWorker<'_> {
    /// Which jobs it gets in the end.
    pub(crate) async fn served(self, system: &System) -> Result<Vec<String>, Surprise> {
        Ok(popped_jids(self.answered(system).await?))
    }
}

/// How often to look for something that must come.
const LOOKS_MAX: usize = 10_000;

/// What a future comes to, while the backend is kept awake with other commands.
///
/// Awaiting it would be simpler, but a backend that forgets a parked pop should fail the case, not hang it.
async fn soon<T>(system: &System, future: impl Future<Output = T>) -> Result<T, Surprise> {
    let mut future = pin!(future);
    for _ in 0..LOOKS_MAX {
        if let Some(output) = look(&mut future).await {
            return Ok(output);
        }
        system.ask(Length { queue: queue("elsewhere") }).await?;
    }
    Err("what must come did not come".into())
}

/// Waits until a job is gone, which it must be soon.
pub(crate) async fn vanishes(system: &System, name: &str) -> Result<(), Surprise> {
    for _ in 0..LOOKS_MAX {
        if !system.has(name).await? {
            return Ok(());
        }
    }
    Err(format!("job {name} is still there").into())
}

/// What a future has come to, if it has.
async fn look<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|context| match Pin::new(&mut *future).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
