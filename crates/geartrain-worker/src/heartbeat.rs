//! Heartbeats: a thread of its own renews the locks of running attempts, looks for lost ones, and repeats the
//! worker's announcement. It goes on while handlers block every thread of the program's executor.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use geartrain_core::{
    Announce, AnnounceChange, Answer, Backend, BackendError, Call, Capability, Clock, Heartbeat, Jid,
    PopReply, Popped, Refusal, Reply, Seconds, SystemClock, Timestamp, Token, WorkerJobs, WorkerName,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::ending::is_lost;
use crate::periodic::fire_periodics;
use crate::{Context, Interruption};

/// How often locks are looked at, unless one is shorter than six times this.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The shortest interval between two looks.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(20);
/// The longest time between two heartbeats. One that is refused is how a worker learns that an operator took
/// its job away, because Qless leaves such a job in the worker's list.
const RENEW_EVERY_MAX: Duration = Duration::from_secs(5);
/// How often the queue is asked which jobs this worker still has. A cancelled job is noticed that fast.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The thread sleeps without a timer after this long without a job.
const IDLE_AFTER: Duration = Duration::from_secs(2);
/// How often capabilities are announced. They expire after a minute of silence.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(20);
/// Heartbeats in one batch, at most.
const BATCH_MAX: usize = 256;

/// The attempts whose locks this worker holds.
#[derive(Default)]
pub(crate) struct Registry {
    held: Mutex<HashMap<Token, Held>>,
    /// Whether the thread sleeps without a timer.
    asleep: AtomicBool,
    wake: Notify,
}

struct Held {
    context: Context,
    since: Instant,
    renew_at: Instant,
    lock: Duration,
}

impl Held {
    fn new(context: Context, lock: Duration) -> Held {
        let since = Instant::now();
        Held { context, since, renew_at: since + renew_after(lock), lock }
    }
}

/// A lock is renewed after a third of its time at the latest, so that two more tries are left if that fails.
fn renew_after(lock: Duration) -> Duration {
    (lock / 3).min(RENEW_EVERY_MAX)
}

impl Registry {
    /// Adds attempts that were just popped, with the time that is left of their locks. An earlier attempt of
    /// this worker at the same job has lost it.
    pub(crate) fn add(&self, popped: impl IntoIterator<Item = (Context, Duration)>) {
        {
            let mut held = self.held.lock();
            for (context, lock) in popped {
                held.insert(context.job().lock.token, Held::new(context, lock));
            }
        }
        if self.asleep.load(Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// Removes attempts.
    pub(crate) fn remove_all<'a>(&self, contexts: impl IntoIterator<Item = &'a Context>) {
        let mut held = self.held.lock();
        for context in contexts {
            held.remove(&context.job().lock.token);
        }
    }

    /// Removes an attempt. Returns whether it was there.
    fn remove(&self, context: &Context) -> bool {
        self.held.lock().remove(&context.job().lock.token).is_some()
    }

    /// All attempts, the oldest first, with when they began.
    pub(crate) fn attempts(&self) -> Vec<(Context, Instant)> {
        let mut attempts: Vec<(Context, Instant)> =
            self.held.lock().values().map(|held| (held.context.clone(), held.since)).collect();
        attempts.sort_by_key(|(_, since)| *since);
        attempts
    }

    /// Attempts whose locks are to be renewed now.
    fn due(&self, now: Instant) -> Vec<Context> {
        let held = self.held.lock();
        held.values().filter(|held| held.renew_at <= now).map(|held| held.context.clone()).collect()
    }

    /// Attempts that are running for some time.
    fn long(&self, now: Instant) -> Vec<Context> {
        let held = self.held.lock();
        let long = held.values().filter(|held| now.duration_since(held.since) >= CHECK_EVERY);
        long.map(|held| held.context.clone()).collect()
    }

    /// The time until the next look; none if there are no attempts.
    fn look_after(&self) -> Option<Duration> {
        let held = self.held.lock();
        let shortest = held.values().map(|held| held.lock).min()?;
        Some((shortest / 6).clamp(LOOK_EVERY_MIN, LOOK_EVERY))
    }

    fn renewed(&self, token: Token, lock: Duration) {
        if let Some(held) = self.held.lock().get_mut(&token) {
            (held.renew_at, held.lock) = (Instant::now() + renew_after(lock), lock);
        }
    }

    /// Tries again soon.
    fn not_renewed(&self, token: Token) {
        if let Some(held) = self.held.lock().get_mut(&token) {
            held.renew_at = Instant::now() + (held.lock / 10).max(LOOK_EVERY_MIN);
        }
    }
}

/// How long it is from now until a time, by the backend's clock.
pub(crate) fn left(now: Timestamp, expires: Timestamp) -> Duration {
    Duration::try_from_secs_f64((expires - now).max(Seconds::ZERO).get())
        .unwrap_or(Duration::from_secs(3_600))
}

/// The time left of a popped job's lock, and until its deadline.
pub(crate) fn limits_of(now: Timestamp, job: &Popped) -> (Duration, Option<Duration>) {
    let deadline = job.details.as_ref().and_then(|details| details.deadline);
    (left(now, job.lock.expires), deadline.map(|deadline| left(now, deadline)))
}

/// Popped jobs without those that were lost before the reply came. A process that was stopped (SIGSTOP) reads it
/// long after the pop: expired locks are renewed before a handler starts.
pub(crate) async fn still_held(backend: &dyn Backend, mut reply: PopReply) -> Result<PopReply, BackendError> {
    let now = now(backend);
    let (expired, mut held): (Vec<Popped>, _) =
        reply.jobs.into_iter().partition(|job| job.lock.expires <= now);
    if !expired.is_empty() {
        let calls = expired
            .iter()
            .map(|job| Call::from(Heartbeat { jid: job.jid.clone(), holder: job.holder(), payload: None }));
        for (mut job, answer) in expired.iter().cloned().zip(backend.execute(calls.collect()).await?) {
            match answer {
                Ok(Reply::Heartbeat(expires)) => job.lock.expires = expires,
                Err(refusal) if is_lost(&refusal).is_some() => {
                    tracing::warn!(jid = %job.jid, %refusal, "not starting a job that was lost after its pop");
                    continue;
                }
                // A backend without heartbeats.
                _ => {}
            }
            held.push(job);
        }
    }
    reply.jobs = held;
    Ok(reply)
}

/// The time by the backend's clock.
pub(crate) fn now(backend: &dyn Backend) -> Timestamp {
    backend.now().unwrap_or_else(|| SystemClock.now())
}

/// The thread, which ends with this handle.
pub(crate) struct HeartbeatThread {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl HeartbeatThread {
    /// Starts the thread. `capabilities` are announced now and then; none if the backend knows none.
    pub(crate) fn start(
        backend: Arc<dyn Backend>,
        registry: Arc<Registry>,
        worker: WorkerName,
        capabilities: Vec<Capability>,
    ) -> std::io::Result<HeartbeatThread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let stop = CancellationToken::new();
        let keeper = Renewer {
            backend,
            registry,
            worker,
            capabilities,
            announced: None,
            checked: Instant::now(),
            can_check: true,
        };
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("geartrain-heartbeat".into()).spawn(move || {
            let periodics = fire_periodics(keeper.backend.clone());
            let both = async { tokio::join!(keeper.run(), periodics) };
            runtime.block_on(stopped.run_until_cancelled(both));
        })?;
        Ok(HeartbeatThread { stop, thread: Some(thread) })
    }

    /// Ends the thread without blocking this executor.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Drop for HeartbeatThread {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct Renewer {
    backend: Arc<dyn Backend>,
    registry: Arc<Registry>,
    worker: WorkerName,
    capabilities: Vec<Capability>,
    announced: Option<Instant>,
    checked: Instant,
    /// Whether the backend lists the jobs of a worker.
    can_check: bool,
}

impl Renewer {
    async fn run(mut self) {
        let mut busy = Instant::now();
        loop {
            self.announce().await;
            match self.registry.look_after() {
                Some(wait) => {
                    busy = Instant::now();
                    tokio::time::sleep(wait).await;
                    self.renew(self.registry.due(Instant::now())).await;
                    self.check().await;
                }
                None if busy.elapsed() < IDLE_AFTER => tokio::time::sleep(LOOK_EVERY).await,
                None => self.sleep().await,
            }
        }
    }

    /// Sleeps until there is a job, or the next announcement is due.
    async fn sleep(&self) {
        self.registry.asleep.store(true, Ordering::SeqCst);
        // A job that was added before the flag was set has not woken this thread.
        if self.registry.look_after().is_none() {
            let wake = self.registry.wake.notified();
            match self.announced {
                Some(at) => drop(tokio::time::timeout_at((at + ANNOUNCE_EVERY).into(), wake).await),
                None => wake.await,
            }
        }
        self.registry.asleep.store(false, Ordering::SeqCst);
    }

    async fn announce(&mut self) {
        if self.capabilities.is_empty() || self.announced.is_some_and(|at| at.elapsed() < ANNOUNCE_EVERY) {
            return;
        }
        let change = AnnounceChange::Only(self.capabilities.clone());
        let announce = Announce { worker: self.worker.clone(), change };
        if let Err(BackendError::Refused(refusal)) = run(&*self.backend, announce.into()).await {
            // The queue works without, but `why` and roll calls do not know this worker.
            tracing::debug!(%refusal, "capabilities are not announced");
            self.capabilities.clear();
        }
        self.announced = (!self.capabilities.is_empty()).then(Instant::now);
    }

    /// Renews locks. An attempt whose lock is refused is interrupted.
    async fn renew(&self, attempts: Vec<Context>) {
        for attempts in attempts.chunks(BATCH_MAX) {
            let calls = attempts.iter().map(|context| {
                let (jid, holder) = (context.jid().clone(), context.job().holder());
                Call::from(Heartbeat { jid, holder, payload: None })
            });
            let answers = match self.backend.execute(calls.collect()).await {
                Ok(answers) => answers,
                Err(error) => {
                    tracing::debug!(%error, "locks are not renewed");
                    let tokens = attempts.iter().map(|context| context.job().lock.token);
                    tokens.for_each(|token| self.registry.not_renewed(token));
                    return;
                }
            };
            for (context, answer) in attempts.iter().zip(answers) {
                self.renewed(context, answer);
            }
        }
    }

    fn renewed(&self, context: &Context, answer: Answer) {
        let token = context.job().lock.token;
        match answer {
            Ok(Reply::Heartbeat(expires)) => {
                self.registry.renewed(token, left(now(&*self.backend), expires));
            }
            Ok(_) => self.registry.not_renewed(token),
            Err(refusal) => match is_lost(&refusal) {
                Some(interruption) => {
                    if self.registry.remove(context) {
                        lost(context, interruption);
                    }
                }
                // A backend without locks that expire.
                None => self.registry.renewed(token, Duration::from_secs(3_600)),
            },
        }
    }

    /// Asks which jobs this worker still has, and tries to renew the locks of the others to learn why.
    async fn check(&mut self) {
        if !self.can_check || self.checked.elapsed() < CHECK_EVERY {
            return;
        }
        self.checked = Instant::now();
        let running = self.registry.long(self.checked);
        if running.is_empty() {
            return;
        }
        match run(&*self.backend, WorkerJobs { worker: self.worker.clone() }.into()).await {
            Ok(Reply::WorkerJobs(jobs)) => {
                let had: HashSet<Jid> = jobs.jobs.into_iter().chain(jobs.stalled).collect();
                let missing = running.into_iter().filter(|context| !had.contains(context.jid()));
                self.renew(missing.collect()).await;
            }
            Ok(_) => {}
            Err(BackendError::Refused(Refusal::Unsupported { .. })) => self.can_check = false,
            Err(error) => tracing::debug!(%error, "the jobs of this worker are not known"),
        }
    }
}

fn lost(context: &Context, interruption: Interruption) {
    tracing::warn!(jid = %context.jid(), klass = %context.klass(), ?interruption, "stopping an attempt");
    context.interrupt(interruption);
}

/// Runs one command.
pub(crate) async fn run(backend: &dyn Backend, call: Call) -> Result<Reply, BackendError> {
    match backend.execute(vec![call]).await?.pop() {
        Some(answer) => Ok(answer?),
        None => Err(BackendError::Broken { backend: "worker", source: "it gave no answer".into() }),
    }
}
