//! The loop of a worker: pops jobs, runs them, and reports how they ended.
//!
//! One batch carries the reports of all attempts that ended since the last one. Pops are sent apart from them,
//! one at a time for all free slots: a pop does not wait for the sync that reports wait for. If it finds
//! nothing, the next one is parked.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use geartrain_core::{
    Announce, AnnounceChange, Answer, Backend, BackendError, Call, Capability, Count, Klass, Pop, PopOrder,
    PopReply, Popped, QueueName, Refusal, Release, Relock, Reply, Seconds, Token, WorkerName,
};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt};

use crate::ending::{Ending, Finished, is_lost};
use crate::heartbeat::{self, HeartbeatThread, Registry};
use crate::layers::panicked;
use crate::signals::{Signal, Signals};
use crate::worker::Settings;
use crate::{
    AttemptEnding, Context, Interruption, JobRequest, JobService, Order, Report, WorkerError, WorkerEvent,
};

/// Batches of reports in flight, at most.
const BATCHES_MAX: usize = 4;
/// Reports for which a batch is sent while another one is in flight. Fewer wait for it, because a call has a
/// cost of its own.
const REPORTS_MIN: usize = 64;
/// Reports for which a batch is sent while jobs flow in.
const REPORTS_FLOWING: usize = 128;
/// Reports in one batch, at most.
const REPORTS_MAX: usize = 512;
/// With this many reports to be sent, no more jobs are popped.
const UNREPORTED_MAX: usize = 2_048;
/// Bytes of results in one batch, about.
const RESULT_BYTES_MAX: usize = 4 << 20;
/// The longest first poll of a handler in the task of the loop, and how many handlers get a task of their own after
/// a longer one.
const INLINE_MAX: Duration = Duration::from_micros(500);
const SPAWNED_AFTER_LONG: u32 = 100;
/// Jobs of one pop, at most: their payloads come in one reply.
const POP_MAX: usize = 256;
/// How long a parked pop waits before it is repeated, which shows that the queue is there.
const PARK: Duration = Duration::from_secs(10);
/// The same while a worker drains its queues: it ends after the answer.
const PARK_DRAINING: Duration = Duration::from_millis(100);
/// The delays between two attempts to reach the queue.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long a worker that stops tries to reach a queue that is gone.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
/// How often a worker that cannot reach its queue says so.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

pub(crate) struct Runner {
    backend: Arc<dyn Backend>,
    service: JobService,
    settings: Settings,
    name: WorkerName,
    queues: Vec<QueueName>,
    klasses: Option<Vec<Klass>>,
    capabilities: Vec<Capability>,
    registry: Arc<Registry>,
    /// The handlers that run.
    attempts: JoinSet<Finished>,
    /// Attempts that are polled by a task from the beginning.
    spawn_next: u32,
    /// Attempts that ended and are not yet reported.
    outbox: VecDeque<Finished>,
    batches: FuturesUnordered<BoxFuture<'static, Batch>>,
    /// A pop that waits for jobs, or one that does not.
    pop: Option<BoxFuture<'static, Result<PopReply, BackendError>>>,
    /// Slots that the pop may fill.
    reserved: usize,
    is_parked: bool,
    /// Reports were answered since the pop was sent, so that its answer may lack jobs of theirs.
    is_outdated: bool,
    /// The turn of the next pop among the queues.
    turn: usize,
    /// The last pop found no job, or fewer than there were slots.
    is_empty: bool,
    /// Jobs that an earlier process of this name left may still be there.
    is_resuming: bool,
    /// The first token of the jobs that were locked again.
    relocked: Option<Token>,
    jobs_left: Option<u64>,
    trouble: Option<Trouble>,
    /// The last time that the queue answered a pop, or that none was waiting for an answer.
    polled: Instant,
    stopping: Arc<CancellationToken>,
    /// Cancelled when interrupted handlers get no more time.
    at_once: Arc<CancellationToken>,
    /// When running attempts are interrupted, once the worker stops.
    grace_over: Option<Instant>,
    is_interrupted: bool,
    error: Option<WorkerError>,
    report: Report,
}

/// An answered batch of reports.
struct Batch {
    reports: Vec<Finished>,
    answers: Result<Vec<Answer>, BackendError>,
}

/// The queue cannot be reached.
struct Trouble {
    since: Instant,
    complained: Instant,
    tries: u32,
    until: Instant,
}

/// What happened next.
enum Next {
    Batch(Batch),
    Popped(Result<PopReply, BackendError>),
    Finished,
    Stop,
    Signal(Signal),
    Timer,
}

impl Runner {
    #[allow(clippy::too_many_arguments, reason = "it is called once")]
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        service: JobService,
        settings: Settings,
        name: WorkerName,
        queues: Vec<QueueName>,
        klasses: Option<Vec<Klass>>,
        capabilities: Vec<Capability>,
    ) -> Runner {
        Runner {
            jobs_left: settings.jobs_max,
            is_resuming: settings.resume,
            relocked: None,
            backend,
            service,
            settings,
            name,
            queues,
            klasses,
            capabilities,
            registry: Arc::default(),
            attempts: JoinSet::new(),
            spawn_next: 0,
            outbox: VecDeque::new(),
            batches: FuturesUnordered::new(),
            pop: None,
            reserved: 0,
            is_parked: false,
            is_outdated: false,
            turn: 0,
            is_empty: false,
            trouble: None,
            polled: Instant::now(),
            stopping: Arc::default(),
            at_once: Arc::default(),
            grace_over: None,
            is_interrupted: false,
            error: None,
            report: Report::default(),
        }
    }

    /// Runs until `stop`, and with `signals` also until one that ends the worker.
    pub(crate) async fn run(mut self, stop: impl Future, signals: bool) -> Result<Report, WorkerError> {
        let mut stop = pin!(stop.fuse());
        let mut signals = Signals::new(signals).map_err(WorkerError::Start)?;
        let heartbeats = HeartbeatThread::start(
            self.backend.clone(),
            self.registry.clone(),
            self.name.clone(),
            self.capabilities.clone(),
        )
        .map_err(WorkerError::Start)?;
        let mut timer = Box::pin(sleep_until(Instant::now().into()));
        loop {
            self.start_calls();
            if self.is_done() {
                break;
            }
            self.set_timer(timer.as_mut());
            let next = tokio::select! {
                // Reports come first, because they free slots.
                biased;
                Some(batch) = self.batches.next(), if !self.batches.is_empty() => Next::Batch(batch),
                finished = self.attempts.join_next(), if !self.attempts.is_empty() => {
                    self.finished(finished);
                    Next::Finished
                }
                popped = poll(&mut self.pop) => Next::Popped(popped),
                _ = &mut stop, if self.grace_over.is_none() => Next::Stop,
                signal = signals.next() => Next::Signal(signal),
                () = timer.as_mut() => Next::Timer,
            };
            match next {
                Next::Batch(batch) => self.batch_answered(batch),
                Next::Popped(popped) => self.popped(popped),
                Next::Finished => self.collect_finished().await,
                Next::Stop => self.stop(self.settings.grace, &mut signals)?,
                Next::Signal(signal) => self.signalled(signal, &mut signals)?,
                Next::Timer => self.timer_fired(),
            }
        }
        heartbeats.stop().await;
        self.say_goodbye().await;
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(self.report),
        }
    }

    fn is_done(&self) -> bool {
        let is_drained = self.settings.drain && self.is_empty;
        self.is_quiet() && self.pop.is_none() && (self.is_closing() || is_drained)
    }

    /// Whether nothing runs, and nothing is to be reported.
    fn is_quiet(&self) -> bool {
        self.attempts.is_empty() && self.batches.is_empty() && self.outbox.is_empty()
    }

    /// Whether the worker takes no more jobs.
    fn is_closing(&self) -> bool {
        self.grace_over.is_some() || self.jobs_left == Some(0)
    }

    /// Slots for new jobs.
    fn free(&self) -> usize {
        let free = self.settings.concurrency.saturating_sub(self.attempts.len()).min(POP_MAX);
        match self.jobs_left {
            Some(left) => free.min(usize::try_from(left).unwrap_or(usize::MAX)),
            None => free,
        }
    }

    /// Sends reports and pops, as far as there are any.
    fn start_calls(&mut self) {
        if let Some(trouble) = &self.trouble {
            if Instant::now() < trouble.until || !self.batches.is_empty() || self.pop.is_some() {
                return;
            }
            // One call after the other is tried, a pop without waiting.
            self.is_empty = false;
            if !self.outbox.is_empty() {
                self.send_reports();
                return;
            }
        }
        let is_drained = self.settings.drain && self.is_empty && self.is_quiet();
        let is_busy = self.pop.is_some() || self.free() == 0 || self.outbox.len() >= UNREPORTED_MAX;
        if !is_busy && !is_drained && !self.is_closing() {
            self.send_pop();
        }
        while self.outbox.len() >= self.reports_min() && self.batches.len() < BATCHES_MAX {
            self.send_reports();
        }
    }

    /// Reports for which a batch is sent now. While jobs flow in, a batch is larger than a pop, because each batch
    /// costs a change of threads and a sync. A report waits for a few pops then, and for none if the slots are
    /// busy or the queue is empty.
    fn reports_min(&self) -> usize {
        match (self.batches.is_empty(), self.pop.is_some() && !self.is_parked) {
            (_, true) => REPORTS_FLOWING,
            (true, false) => 1,
            (false, false) => REPORTS_MIN,
        }
    }

    fn send_reports(&mut self) {
        let (mut calls, mut reports, mut bytes) = (Vec::new(), Vec::new(), 0);
        while calls.len() < REPORTS_MAX && bytes < RESULT_BYTES_MAX {
            let Some(finished) = self.outbox.pop_front() else { break };
            match finished.command() {
                Some(command) => {
                    bytes += finished.result_bytes();
                    calls.push(Call::from(command));
                    reports.push(finished);
                }
                None => {
                    self.registry.remove_all([&finished.context]);
                    self.ended(&finished, AttemptEnding::Lost);
                }
            }
        }
        if calls.is_empty() {
            return;
        }
        let backend = self.backend.clone();
        self.batches.push(Box::pin(async move {
            let answers = backend.execute(calls).await;
            Batch { reports, answers }
        }));
    }

    /// Asks for jobs; if the last pop found fewer than there were slots, with a parked pop.
    fn send_pop(&mut self) {
        (self.reserved, self.is_parked, self.polled) = (self.free(), self.is_empty, Instant::now());
        if self.is_resuming {
            self.pop = Some(self.relock());
            return;
        }
        let turn = self.turn;
        let pop = Pop {
            queues: self.queues.clone(),
            worker: self.name.clone(),
            count: Count::new(self.reserved as i64).unwrap_or(Count::ONE),
            order: match self.settings.order {
                Order::Strict => PopOrder::Strict,
                Order::RoundRobin => PopOrder::RoundRobin { turn },
                Order::Priority => PopOrder::Priority { turn },
            },
            whole: false,
            klasses: self.klasses.clone(),
        };
        let park = if self.settings.drain { PARK_DRAINING } else { PARK };
        let (backend, is_parked) = (self.backend.clone(), self.is_parked);
        self.pop = Some(Box::pin(async move {
            let reply = if is_parked {
                backend.pop_or_wait(pop, Seconds::from(park)).await?
            } else {
                match heartbeat::run(&*backend, pop.into()).await? {
                    Reply::Pop(reply) => reply,
                    _ => {
                        return Err(BackendError::Broken {
                            backend: "worker",
                            source: "it popped nothing".into(),
                        });
                    }
                }
            };
            heartbeat::still_held(&*backend, reply).await
        }));
    }

    /// Asks for jobs that an earlier process of this name left, as many as there are slots: the locks of more
    /// would only expire.
    fn relock(&self) -> BoxFuture<'static, Result<PopReply, BackendError>> {
        let relock = Relock {
            worker: self.name.clone(),
            queues: self.queues.clone(),
            count: Count::new(self.reserved as i64).unwrap_or(Count::ONE),
            before: self.relocked,
        };
        let (backend, turn) = (self.backend.clone(), self.turn);
        Box::pin(async move {
            match heartbeat::run(&*backend, relock.into()).await? {
                Reply::Relock(jobs) => Ok(PopReply { jobs, turn }),
                _ => Err(BackendError::Broken { backend: "worker", source: "it locked nothing".into() }),
            }
        })
    }

    /// Drops the pop in flight. A job on its way goes back to its queue.
    fn drop_pop(&mut self) {
        (self.pop, self.reserved, self.is_parked, self.is_outdated) = (None, 0, false, false);
    }

    fn popped(&mut self, popped: Result<PopReply, BackendError>) {
        let (slots, was_parked, is_outdated) = (self.reserved, self.is_parked, self.is_outdated);
        self.drop_pop();
        match popped {
            Ok(reply) => {
                self.reached();
                let found = reply.jobs.len();
                if self.is_resuming {
                    self.is_resuming = found == slots;
                    self.relocked = self.relocked.or_else(|| reply.jobs.first().map(|job| job.lock.token));
                } else {
                    // After a parked pop there may be more jobs than it was served with.
                    self.is_empty = !is_outdated && (found == 0 || !was_parked && found < slots);
                }
                self.dispatch(reply);
            }
            Err(BackendError::Refused(refusal)) => self.pop_refused(refusal),
            Err(error) => self.unreachable(&error),
        }
    }

    fn batch_answered(&mut self, batch: Batch) {
        let answers = match batch.answers {
            Ok(answers) => answers,
            Err(error) => {
                // Reports name their attempt, so that repeating them is safe.
                batch.reports.into_iter().rev().for_each(|report| self.outbox.push_front(report));
                self.unreachable(&error);
                return;
            }
        };
        self.reached();
        if self.settings.drain {
            // A retry, a dependent or a put of the handler may have come after the pop found nothing: only a
            // pop that is sent from now on shows that the queues are empty. One in flight is not dropped: a job
            // on its way would return to its queue after that.
            (self.is_empty, self.is_outdated) = (false, self.pop.is_some());
        }
        // Their locks need no renewal any more. A refused one is reported again at once.
        self.registry.remove_all(batch.reports.iter().map(|finished| &finished.context));
        for (finished, answer) in batch.reports.into_iter().zip(answers) {
            match answer {
                // No retry was left.
                Ok(Reply::Retry(..0)) => self.ended(&finished, AttemptEnding::Failed),
                Ok(_) => self.ended(&finished, finished.kind()),
                Err(refusal) => self.report_refused(finished, &refusal),
            }
        }
    }

    fn report_refused(&mut self, finished: Finished, refusal: &Refusal) {
        let is_fail = matches!(finished.kind(), AttemptEnding::Failed);
        if is_lost(refusal).is_some() || is_fail {
            tracing::warn!(jid = %finished.context.jid(), %refusal, "the end of an attempt was not accepted");
            self.ended(&finished, AttemptEnding::Lost);
        } else {
            // For example a result that is too large. The job gets a verdict, and no other attempt.
            self.outbox.push_back(finished.refused(refusal));
        }
    }

    /// Counts an attempt.
    fn ended(&mut self, finished: &Finished, ending: AttemptEnding) {
        self.report.count(ending);
        let Finished { context, took, .. } = finished;
        let message = finished.message();
        self.tell(|| WorkerEvent::Ended { context, ending, message, took: *took });
    }

    fn tell<'a>(&self, event: impl FnOnce() -> WorkerEvent<'a>) {
        if let Some(observer) = &self.settings.observer {
            observer(event());
        }
    }

    /// Starts the handlers of popped jobs.
    fn dispatch(&mut self, reply: PopReply) {
        self.turn = reply.turn;
        self.polled = Instant::now();
        if reply.jobs.is_empty() {
            return;
        }
        if let Some(left) = &mut self.jobs_left {
            *left = left.saturating_sub(reply.jobs.len() as u64);
        }
        if self.grace_over.is_some() {
            // They were popped while the worker was told to stop.
            self.release(reply.jobs);
            return;
        }
        self.start(reply.jobs);
    }

    fn start(&mut self, jobs: Vec<Popped>) {
        let (now, by_the_queue) = (Instant::now(), heartbeat::now(&*self.backend));
        let contexts: Vec<(Context, Duration)> = jobs
            .into_iter()
            .map(|job| {
                let (lock, deadline) = heartbeat::limits_of(by_the_queue, &job);
                let limit = deadline.into_iter().chain(self.settings.timeout).min();
                let deadline = limit.and_then(|limit| now.checked_add(limit));
                (Context::new(self.backend.clone(), job, deadline, self.stopping.clone()), lock)
            })
            .collect();
        self.registry.add(contexts.iter().cloned());
        let mut began = now;
        for (context, _) in contexts {
            self.tell(|| WorkerEvent::Started(&context));
            let (cleanup, at_once) = (self.settings.cleanup, self.at_once.clone());
            self.begin(Box::pin(attempt(self.service.clone(), context, cleanup, at_once)), &mut began);
        }
    }

    /// Begins an attempt. It is polled once here, because a handler that does not wait ends with that: a task of
    /// its own, and waking the thread that runs it, would cost several times as much. A handler that computes for
    /// long is polled in a task, in parallel with others. `began` is about when this one begins.
    fn begin(&mut self, mut attempt: BoxFuture<'static, Finished>, began: &mut Instant) {
        if self.spawn_next > 0 {
            self.spawn_next -= 1;
            self.attempts.spawn(attempt);
            return;
        }
        match attempt.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(finished) => {
                *began += finished.took;
                self.note_poll(finished.took);
                self.outbox.push_back(finished);
            }
            Poll::Pending => {
                // The task polls it again, with a waker.
                self.attempts.spawn(attempt);
                let now = Instant::now();
                self.note_poll(now.saturating_duration_since(*began));
                *began = now;
            }
        }
    }

    fn note_poll(&mut self, took: Duration) {
        if took > INLINE_MAX {
            self.spawn_next = SPAWNED_AFTER_LONG;
        }
    }

    /// Hands back jobs that were popped and not begun.
    fn release(&mut self, jobs: Vec<Popped>) {
        let calls: Vec<Call> = jobs.iter().map(|job| Release::of(job).into()).collect();
        let backend = self.backend.clone();
        self.batches.push(Box::pin(async move {
            // A connection that fails here has released them: no reply, no job.
            let _ = backend.execute(calls).await;
            Batch { reports: Vec::new(), answers: Ok(Vec::new()) }
        }));
    }

    fn finished(&mut self, finished: Option<Result<Finished, tokio::task::JoinError>>) {
        // A panic of a handler is caught inside of its task, and no task is aborted.
        if let Some(Ok(finished)) = finished {
            self.outbox.push_back(finished);
        }
    }

    /// Lets handlers that are about to end do so, because one batch for many reports is cheaper than many. The
    /// task of this loop is woken by the first of them, before the executor has run the others.
    async fn collect_finished(&mut self) {
        while !self.attempts.is_empty() && self.outbox.len() < REPORTS_MAX {
            tokio::task::yield_now().await;
            let before = self.outbox.len();
            while let Some(finished) = self.attempts.try_join_next() {
                self.finished(Some(finished));
            }
            if self.outbox.len() == before {
                return;
            }
        }
    }

    fn reached(&mut self) {
        self.polled = Instant::now();
        if let Some(trouble) = self.trouble.take() {
            let after = trouble.since.elapsed();
            tracing::info!("the queue can be reached again after {after:.1?}");
            self.tell(|| WorkerEvent::Reachable(after));
        }
    }

    fn unreachable(&mut self, error: &BackendError) {
        let now = Instant::now();
        let is_new = self.trouble.is_none();
        let trouble =
            self.trouble.get_or_insert(Trouble { since: now, complained: now, tries: 0, until: now });
        trouble.until = now + (RECONNECT.0 * 2u32.saturating_pow(trouble.tries)).min(RECONNECT.1);
        trouble.tries = (trouble.tries + 1).min(16);
        let is_repeated = now.duration_since(trouble.complained) >= COMPLAIN_EVERY;
        if is_new || is_repeated {
            trouble.complained = now;
            let silent = (!is_new).then(|| now.duration_since(trouble.since));
            tracing::warn!("{}", outage(silent, error));
            self.tell(|| WorkerEvent::Unreachable(error));
        }
    }

    fn pop_refused(&mut self, refusal: Refusal) {
        if matches!(refusal, Refusal::Unsupported { .. } | Refusal::BadArgument { .. }) {
            self.error.get_or_insert(WorkerError::Refused(refusal));
            self.close(Duration::ZERO);
        } else {
            self.unreachable(&BackendError::Refused(refusal));
        }
    }

    /// Begins to stop: takes no more jobs.
    fn close(&mut self, grace: Duration) {
        self.drop_pop();
        let over = Instant::now().checked_add(grace);
        self.grace_over = Some(over.unwrap_or_else(|| Instant::now() + Duration::from_secs(1 << 30)));
        self.stopping.cancel();
        let running = self.attempts.len();
        self.tell(|| WorkerEvent::Stopping(running));
    }

    fn stop(&mut self, grace: Duration, signals: &mut Signals) -> Result<(), WorkerError> {
        self.close(grace);
        // A second Ctrl-C would otherwise be swallowed by the handler that the first one installed.
        signals.listen_for_stop().map_err(WorkerError::Start)
    }

    fn signalled(&mut self, signal: Signal, signals: &mut Signals) -> Result<(), WorkerError> {
        match signal {
            Signal::Stop if self.grace_over.is_none() => self.stop(self.settings.grace, signals)?,
            Signal::Stop => self.interrupt(true),
            Signal::StopWhenDone if self.grace_over.is_none() => self.stop(Duration::MAX, signals)?,
            Signal::StopWhenDone => {}
            Signal::Print => self.print(),
        }
        Ok(())
    }

    /// Interrupts what is running. It goes back to its queue, unless it completes in time.
    fn interrupt(&mut self, at_once: bool) {
        self.is_interrupted = true;
        for (context, _) in self.registry.attempts() {
            context.interrupt(Interruption::Shutdown);
        }
        if at_once {
            self.at_once.cancel();
        }
    }

    /// Logs what is running.
    fn print(&self) {
        let attempts = self.registry.attempts();
        tracing::info!("{} of {} slots are busy", attempts.len(), self.settings.concurrency);
        for (slot, (context, since)) in attempts.iter().enumerate() {
            let (jid, klass, queue) = (context.jid(), context.klass(), context.queue());
            let attempt = context.attempt();
            let running = since.elapsed();
            tracing::info!("slot {slot}: {jid} ({klass} of {queue}), attempt {attempt}, for {running:.1?}");
        }
    }

    /// The next moment at which something is to be done without a message.
    fn set_timer(&self, timer: Pin<&mut Sleep>) {
        let hour = Instant::now() + Duration::from_secs(3_600);
        let (grace, give_up) = match self.grace_over {
            Some(over) if !self.is_interrupted => (Some(over), None),
            Some(over) => (None, self.trouble.as_ref().map(|_| over + self.settings.cleanup + GIVE_UP_AFTER)),
            None => (None, None),
        };
        let retry =
            self.trouble.as_ref().map(|trouble| trouble.until).filter(|until| *until > Instant::now());
        let unhealthy = self.settings.unhealthy_after.filter(|_| self.grace_over.is_none());
        let unhealthy = unhealthy.map(|after| self.unhealthy_at(after));
        let next = [grace, give_up, retry, unhealthy].into_iter().flatten().min().unwrap_or(hour);
        timer.reset(next.min(hour).into());
    }

    fn unhealthy_at(&self, after: Duration) -> Instant {
        match &self.trouble {
            Some(trouble) => trouble.since + after,
            // A poll without an answer.
            None => self.polled + PARK + after,
        }
    }

    fn timer_fired(&mut self) {
        let now = Instant::now();
        if self.grace_over.is_some_and(|over| over <= now) && !self.is_interrupted {
            self.interrupt(false);
        }
        if let Some(after) = self.settings.unhealthy_after
            && self.grace_over.is_none()
        {
            if self.pop.is_none() && self.trouble.is_none() {
                // All slots are busy, so nothing was polled.
                self.polled = now;
            } else if self.unhealthy_at(after) <= now {
                self.error.get_or_insert(WorkerError::Unhealthy(after));
                self.close(Duration::ZERO);
                // Nothing can be reported.
                self.outbox.clear();
            }
        }
        if self.trouble.is_some()
            && self.is_interrupted
            && self.grace_over.is_some_and(|over| over + self.settings.cleanup + GIVE_UP_AFTER <= now)
        {
            let unreported = self.outbox.len();
            tracing::error!("{unreported} ended attempts cannot be reported: their locks expire");
            self.outbox.clear();
            self.batches.clear();
        }
    }

    /// Withdraws the capabilities, so that `why` and roll calls count this worker no more.
    async fn say_goodbye(&mut self) {
        if self.capabilities.is_empty() || self.trouble.is_some() {
            return;
        }
        let announce = Announce { worker: self.name.clone(), change: AnnounceChange::Only(Vec::new()) };
        let _ = heartbeat::run(&*self.backend, announce.into()).await;
    }
}

/// Hands back what was running, if the worker's future is dropped.
impl Drop for Runner {
    fn drop(&mut self) {
        let attempts = self.registry.attempts();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if attempts.is_empty() {
            return;
        }
        let calls = attempts.iter().map(|(context, _)| {
            context.interrupt(Interruption::Shutdown);
            let release = Release::of(context.job());
            Call::from(Release { message: Some("the worker was dropped".to_owned()), ..release })
        });
        let (calls, backend) = (calls.collect(), self.backend.clone());
        runtime.spawn(async move { drop(backend.execute(calls).await) });
    }
}

/// Runs one job.
async fn attempt(
    mut service: JobService,
    context: Context,
    cleanup: Duration,
    at_once: Arc<CancellationToken>,
) -> Finished {
    let began = Instant::now();
    let ending = {
        let request = JobRequest { context: context.clone() };
        let run = async { service.ready().await?.call(request).await };
        let mut run = pin!(AssertUnwindSafe(run).catch_unwind());
        let interrupted = async {
            match context.deadline() {
                Some(deadline) => tokio::select! {
                    () = context.cancellation().cancelled() => {}
                    () = sleep_until(deadline.into()) => context.interrupt(Interruption::TimedOut),
                },
                None => context.cancellation().cancelled().await,
            }
            tokio::select! {
                () = tokio::time::sleep(cleanup) => {}
                () = at_once.cancelled() => {}
            }
        };
        let ended = tokio::select! {
            biased;
            ended = &mut run => Some(ended),
            () = interrupted => None,
        };
        match ended {
            Some(Ok(Ok(output))) => Ending::Output(output),
            Some(Ok(Err(error))) => Ending::Error(crate::JobError::of_service(error)),
            Some(Err(panic)) => Ending::Error(panicked(context.queue().as_str(), &*panic)),
            None => Ending::Dropped(context.interruption().unwrap_or(Interruption::Shutdown)),
        }
    };
    Finished { context, ending, took: began.elapsed() }
}

/// Ready when the future is; never without one.
async fn poll<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    poll_fn(|task| match future {
        Some(future) => future.as_mut().poll(task),
        None => std::task::Poll::Pending,
    })
    .await
}

/// What a worker logs that cannot reach its queue: at first, and from time to time.
fn outage(silent: Option<Duration>, error: &BackendError) -> String {
    let causes = causes(error);
    match silent {
        None => format!("cannot reach the queue: {causes}; trying again until it answers"),
        Some(silent) => {
            let (minutes, seconds) = (silent.as_secs() / 60, silent.as_secs() % 60);
            let minutes = if minutes > 0 { format!("{minutes} min ") } else { String::new() };
            format!("the queue has been unreachable for {minutes}{seconds} s: {causes}; still trying")
        }
    }
}

/// An error and its causes in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_with_its_cause_and_for_how_long_it_lasts() {
        let error = BackendError::Broken { backend: "redis", source: "connection refused".into() };
        assert_eq!(
            outage(None, &error),
            "cannot reach the queue: the redis backend cannot answer: connection refused; trying again until it answers"
        );
        let later = outage(Some(Duration::from_millis(125_400)), &error);
        assert!(later.starts_with("the queue has been unreachable for 2 min 5 s: "), "{later}");
    }
}
