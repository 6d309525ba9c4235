//! The loop of a worker: pops jobs, runs them, and reports how they ended.
//!
//! One batch carries the reports of all attempts that ended since the last one, and a pop for the slots that
//! they left. Several batches may be in flight, so that a commit never keeps slots empty. If a pop finds
//! nothing, the next one is parked.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use geartrain_core::{
    Announce, AnnounceChange, Answer, Backend, BackendError, Call, Capability, Count, Klass, Pop, PopOrder,
    PopReply, Popped, QueueName, Refusal, Release, Reply, Seconds, WorkerName,
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

/// Batches in flight, at most.
const BATCHES_MAX: usize = 4;
/// Reports in one batch, at most.
const REPORTS_MAX: usize = 512;
/// Bytes of results in one batch, about.
const RESULT_BYTES_MAX: usize = 4 << 20;
/// Jobs of one pop, at most: their payloads come in one reply.
const POP_MAX: usize = 256;
/// How long a parked pop waits before it is repeated, which shows that the queue is there.
const PARK: Duration = Duration::from_secs(10);
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
    /// Attempts that ended and are not yet reported.
    outbox: VecDeque<Finished>,
    batches: FuturesUnordered<BoxFuture<'static, Batch>>,
    parked: Option<BoxFuture<'static, Result<PopReply, BackendError>>>,
    /// Slots that pops in flight may fill.
    reserved: usize,
    /// Slots that the parked pop may fill; part of `reserved`.
    parked_slots: usize,
    /// The turn of the next pop among the queues.
    turn: usize,
    /// The last pop found no job, or fewer than there were slots.
    is_empty: bool,
    jobs_left: Option<u64>,
    trouble: Option<Trouble>,
    /// The last time that the queue answered a pop, or that none was waiting for an answer.
    polled: Instant,
    stopping: CancellationToken,
    /// Cancelled when interrupted handlers get no more time.
    at_once: CancellationToken,
    /// When running attempts are interrupted, once the worker stops.
    grace_over: Option<Instant>,
    is_interrupted: bool,
    error: Option<WorkerError>,
    report: Report,
}

/// An answered batch.
struct Batch {
    reports: Vec<Finished>,
    /// Slots that its pop may fill; 0 without a pop.
    slots: usize,
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
    Parked(Result<PopReply, BackendError>),
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
            backend,
            service,
            settings,
            name,
            queues,
            klasses,
            capabilities,
            registry: Arc::default(),
            attempts: JoinSet::new(),
            outbox: VecDeque::new(),
            batches: FuturesUnordered::new(),
            parked: None,
            reserved: 0,
            parked_slots: 0,
            turn: 0,
            is_empty: false,
            trouble: None,
            polled: Instant::now(),
            stopping: CancellationToken::new(),
            at_once: CancellationToken::new(),
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
        if self.settings.resume {
            self.resume().await?;
        }
        let mut timer = Box::pin(sleep_until(Instant::now().into()));
        loop {
            self.start_batches();
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
                popped = poll_parked(&mut self.parked) => Next::Parked(popped),
                _ = &mut stop, if self.grace_over.is_none() => Next::Stop,
                signal = signals.next() => Next::Signal(signal),
                () = timer.as_mut() => Next::Timer,
            };
            match next {
                Next::Batch(batch) => self.batch_answered(batch),
                Next::Parked(popped) => self.parked_answered(popped),
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
        let is_drained = self.settings.drain && self.is_empty && self.parked.is_none();
        self.is_quiet() && (self.is_closing() || is_drained)
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
        let busy = self.attempts.len() + self.reserved;
        let free = self.settings.concurrency.saturating_sub(busy).min(POP_MAX);
        match self.jobs_left {
            Some(left) => free.min(usize::try_from(left).unwrap_or(usize::MAX).saturating_sub(self.reserved)),
            None => free,
        }
    }

    /// Sends reports and pops, as far as there are any.
    fn start_batches(&mut self) {
        if let Some(trouble) = &self.trouble {
            if Instant::now() < trouble.until {
                return;
            }
            // The queue is tried with a pop that does not wait.
            self.is_empty &= !self.batches.is_empty() || self.parked.is_some();
        }
        if self.settings.drain && self.is_quiet() && self.parked.is_some() {
            // The last handlers may have put jobs. Whether there are any shows a pop that does not wait.
            self.unpark();
            self.is_empty = false;
        }
        // After a failure one batch at a time is tried.
        let batches_max = if self.trouble.is_some() { 1 } else { BATCHES_MAX };
        while self.batches.len() < batches_max {
            let slots = if self.is_closing() || self.is_empty { 0 } else { self.free() };
            if self.outbox.is_empty() && slots == 0 {
                break;
            }
            self.send_batch(slots);
        }
        let is_drained = self.settings.drain && self.is_quiet();
        let can_park = self.is_empty && self.parked.is_none() && self.trouble.is_none();
        if can_park && !is_drained && !self.is_closing() && self.free() > 0 {
            self.park();
        }
    }

    fn send_batch(&mut self, slots: usize) {
        let (mut calls, mut reports, mut bytes) = (Vec::new(), Vec::new(), 0);
        while calls.len() < REPORTS_MAX && bytes < RESULT_BYTES_MAX {
            let Some(finished) = self.outbox.pop_front() else { break };
            match finished.command() {
                Some(command) => {
                    bytes += finished.result_bytes();
                    calls.push(Call::from(command));
                    reports.push(finished);
                }
                None => self.ended(&finished, AttemptEnding::Lost),
            }
        }
        if slots > 0 {
            calls.push(Call::from(self.pop(slots)));
        }
        if calls.is_empty() {
            return;
        }
        self.reserved += slots;
        let backend = self.backend.clone();
        self.batches.push(Box::pin(async move {
            let answers = backend.execute(calls).await;
            Batch { reports, slots, answers }
        }));
    }

    fn pop(&self, slots: usize) -> Pop {
        let turn = self.turn;
        Pop {
            queues: self.queues.clone(),
            worker: self.name.clone(),
            count: Count::new(slots as i64).unwrap_or(Count::ONE),
            order: match self.settings.order {
                Order::Strict => PopOrder::Strict,
                Order::RoundRobin => PopOrder::RoundRobin { turn },
                Order::Priority => PopOrder::Priority { turn },
            },
            whole: false,
            klasses: self.klasses.clone(),
        }
    }

    /// Waits for jobs with a parked pop.
    fn park(&mut self) {
        let slots = self.free();
        (self.parked_slots, self.polled) = (slots, Instant::now());
        self.reserved += slots;
        let (backend, pop) = (self.backend.clone(), self.pop(slots));
        self.parked = Some(Box::pin(async move { backend.pop_or_wait(pop, Seconds::from(PARK)).await }));
    }

    /// Drops the parked pop. A job on its way goes back to its queue.
    fn unpark(&mut self) {
        self.parked = None;
        self.reserved -= std::mem::take(&mut self.parked_slots);
    }

    fn parked_answered(&mut self, popped: Result<PopReply, BackendError>) {
        self.unpark();
        match popped {
            Ok(reply) => {
                self.reached();
                // There may be more: the next pop does not wait.
                self.is_empty = reply.jobs.is_empty();
                self.dispatch(reply);
            }
            Err(BackendError::Refused(refusal)) => self.pop_refused(refusal),
            Err(error) => self.unreachable(&error),
        }
    }

    fn batch_answered(&mut self, batch: Batch) {
        self.reserved -= batch.slots;
        let mut answers = match batch.answers {
            Ok(answers) => answers,
            Err(error) => {
                // Reports name their attempt, so that repeating them is safe.
                batch.reports.into_iter().rev().for_each(|report| self.outbox.push_front(report));
                self.unreachable(&error);
                return;
            }
        };
        self.reached();
        if batch.slots > 0 {
            match answers.pop() {
                Some(Ok(Reply::Pop(reply))) => {
                    self.is_empty = reply.jobs.len() < batch.slots;
                    self.dispatch(reply);
                }
                Some(Err(refusal)) => self.pop_refused(refusal),
                _ => {}
            }
        }
        for (finished, answer) in batch.reports.into_iter().zip(answers) {
            match answer {
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

    /// Counts an attempt, whose lock needs no renewal any more.
    fn ended(&mut self, finished: &Finished, ending: AttemptEnding) {
        self.registry.remove(&finished.context);
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
        let now = Instant::now();
        let contexts: Vec<(Context, Duration)> = jobs
            .into_iter()
            .map(|job| {
                let (lock, deadline) = heartbeat::limits_of(&*self.backend, &job);
                let limit = deadline.into_iter().chain(self.settings.timeout).min();
                let deadline = limit.and_then(|limit| now.checked_add(limit));
                (Context::new(self.backend.clone(), job, deadline, self.stopping.clone()), lock)
            })
            .collect();
        self.registry.add(contexts.iter().cloned());
        for (context, _) in contexts {
            self.tell(|| WorkerEvent::Started(&context));
            let (cleanup, at_once) = (self.settings.cleanup, self.at_once.clone());
            self.attempts.spawn(attempt(self.service.clone(), context, cleanup, at_once));
        }
    }

    /// Hands back jobs that were popped and not begun.
    fn release(&mut self, jobs: Vec<Popped>) {
        let calls: Vec<Call> = jobs.iter().map(|job| Release::of(job).into()).collect();
        let backend = self.backend.clone();
        self.batches.push(Box::pin(async move {
            // A connection that fails here has released them: no reply, no job.
            let _ = backend.execute(calls).await;
            Batch { reports: Vec::new(), slots: 0, answers: Ok(Vec::new()) }
        }));
    }

    fn finished(&mut self, finished: Option<Result<Finished, tokio::task::JoinError>>) {
        // A panic of a handler is caught inside of its task, and no task is aborted.
        if let Some(Ok(finished)) = finished {
            self.outbox.push_back(finished);
        }
    }

    /// Lets handlers that are about to end do so, because one batch for many reports is cheaper than many.
    async fn collect_finished(&mut self) {
        loop {
            let before = self.outbox.len();
            while let Some(finished) = self.attempts.try_join_next() {
                self.finished(Some(finished));
            }
            if self.attempts.is_empty() || self.outbox.len() == before || self.outbox.len() >= REPORTS_MAX {
                return;
            }
            tokio::task::yield_now().await;
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
            let (since, causes) = (trouble.since.elapsed(), causes(error));
            tracing::warn!("cannot reach the queue since {since:.0?}: {causes}; trying again");
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
        self.unpark();
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
            if self.reserved == 0 && self.trouble.is_none() {
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

    /// Goes on with the jobs that a worker of this name left.
    async fn resume(&mut self) -> Result<(), WorkerError> {
        Ok(())
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
    at_once: CancellationToken,
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

/// Ready when the parked pop is; never without one.
async fn poll_parked<T>(parked: &mut Option<BoxFuture<'static, T>>) -> T {
    poll_fn(|task| match parked {
        Some(parked) => parked.as_mut().poll(task),
        None => std::task::Poll::Pending,
    })
    .await
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
