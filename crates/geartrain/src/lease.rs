//! Leases: popped jobs whose locks are renewed by themselves, for programs with a loop of their own.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    BadArgument, Client, Clock, Complete, CompleteReply, Error, Heartbeat, Interruption, Log, Popped,
    Portion, Progress, Progressed, Refusal, Release, Seconds, StateName, Status, StatusOf, SystemClock,
    Timestamp,
};

/// How often to check whether the job is still running. A cancelled job is noticed that fast.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The shortest wait between two heartbeats.
const RENEW_EVERY_MIN: Duration = Duration::from_millis(20);

/// A popped job whose lock is renewed as long as this guard lives, for programs with a loop of their own. A
/// `Worker` does all of this by itself.
///
/// Dropped without a verdict, it releases the job in the background: it goes back to the front of its queue,
/// and no retry is used up. If the runtime shuts down meanwhile, that waits for the queue's answer, up to a
/// second. [`complete`](Lease::complete), [`fail`](Lease::fail) and [`retry`](Lease::retry) give a verdict.
///
/// It needs a tokio runtime, on which a task renews the lock. A program that blocks all threads of the runtime
/// for longer than the lock lasts loses it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// # async fn send(_to: &str) {}
/// let client = geartrain::connect("memory:").await?;
/// client.put("mail", "welcome", r#""a@example.org""#).await?;
///
/// while let Some(lease) = client.lease("mail", "worker-1", Duration::from_millis(1)).await? {
///     let to: String = lease.json()?; // an error here drops the lease
///     tokio::select! {
///         () = send(&to) => drop(lease.complete("sent").await?),
///         () = lease.lost().cancelled() => {} // cancelled, or another worker has it
///     }
/// }
/// # Ok(()) }
/// ```
#[must_use = "dropping a lease releases its job"]
pub struct Lease {
    client: Client,
    job: Popped,
    lost: CancellationToken,
    interruption: Arc<OnceLock<Interruption>>,
    renewal: AbortHandle,
    runtime: Handle,
    /// Whether the job still waits for a verdict.
    is_open: bool,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("jid", &self.job.jid).finish_non_exhaustive()
    }
}

impl Client {
    /// Takes the next job of a queue as a [`Lease`]; if there is none, waits for one up to `wait`. Cancel
    /// safe, like [`pop_wait`](Client::pop_wait).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn lease(&self, queue: &str, worker: &str, wait: Duration) -> Result<Option<Lease>, Error> {
        // Before a job is popped.
        let runtime = Handle::current();
        let popped = self.pop_wait(queue, worker, wait).await?;
        Ok(popped.map(|job| Lease::new(self.clone(), job, runtime)))
    }

    /// Makes a [`Lease`] of a popped job, such as one from [`pop_any`](Client::pop_any).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn hold(&self, job: Popped) -> Lease {
        Lease::new(self.clone(), job, Handle::current())
    }
}

impl Lease {
    fn new(client: Client, job: Popped, runtime: Handle) -> Lease {
        let (lost, interruption) = (CancellationToken::new(), Arc::default());
        let renewal = Renewal {
            client: client.clone(),
            job: job.clone(),
            lost: lost.clone(),
            interruption: Arc::clone(&interruption),
        };
        let renewal = runtime.spawn(renewal.run()).abort_handle();
        Lease { client, job, lost, interruption, renewal, runtime, is_open: true }
    }

    /// The job.
    pub fn job(&self) -> &Popped {
        &self.job
    }

    /// The payload as a value, if it is JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(self.job.payload.bytes()).map_err(|error| {
            let why = format!("of job {} is not what klass {} needs: {error}", self.job.jid, self.job.klass);
            BadArgument { what: "payload", why }.into()
        })
    }

    /// Cancelled when the lock is lost or the job is cancelled. The queue then refuses a verdict: stop
    /// working on the job. A cancellation is noticed within a second, a lock that another worker took when
    /// it is renewed next, after a third of its time.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Whether the lock was lost or the job cancelled, as far as is known.
    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Why the job is [lost](Lease::lost).
    pub fn interruption(&self) -> Option<Interruption> {
        self.interruption.get().copied()
    }

    /// Reports progress: to clients that wait for the job, and to `geartrain status`.
    pub async fn progress(&self, done: u64, of: u64) -> Result<(), Error> {
        let progress = Progressed { portion: Portion::new(done, of)?, seconds_left: None };
        self.client.run(Progress::new(self.job.jid.clone(), self.job.holder(), progress)).await
    }

    /// Appends a line to the history of the job.
    pub async fn log(&self, message: impl Into<String>) -> Result<(), Error> {
        self.client.run(Log { jid: self.job.jid.clone(), message: message.into(), data: None }).await
    }

    /// Completes the job with a result, as JSON.
    ///
    /// Cancel safety, here and in the other verdicts: if the future is dropped, or the backend does not
    /// answer, the job is released unless the verdict has arrived.
    pub async fn complete(mut self, value: impl Serialize) -> Result<CompleteReply, Error> {
        let done = self.client.complete_with(&self.job, value).await;
        self.close(done)
    }

    /// Completes the job with everything that [`Complete`] offers, such as a next queue: the command names
    /// the attempt already.
    pub async fn complete_as(mut self, change: impl FnOnce(&mut Complete)) -> Result<CompleteReply, Error> {
        let mut complete = Complete::new(self.job.jid.clone(), self.job.holder());
        change(&mut complete);
        let done = self.client.run(complete).await;
        self.close(done)
    }

    /// Fails the job for good, in a failure group.
    pub async fn fail(mut self, group: &str, message: &str) -> Result<(), Error> {
        let done = self.client.fail(&self.job, group, message).await;
        self.close(done)
    }

    /// Retries the job as its backoff says. Returns the retries left; -1 if there was none, and the job failed
    /// in this failure group.
    pub async fn retry(mut self, group: &str, message: &str) -> Result<i64, Error> {
        let done = self.client.retry_because(&self.job, group, message).await;
        self.close(done)
    }

    /// Releases the job, like dropping the lease, and waits until that is done.
    pub async fn release(mut self) -> Result<(), Error> {
        let done = self.client.release(&self.job).await;
        self.close(done)
    }

    /// Stops renewing the lock, and gives no verdict.
    pub fn into_popped(mut self) -> Popped {
        self.is_open = false;
        self.job.clone()
    }

    /// A verdict that the queue took, or refused because the job is lost, needs no release.
    fn close<T>(&mut self, done: Result<T, Error>) -> Result<T, Error> {
        self.is_open = match &done {
            Ok(_) => false,
            Err(Error::Refused(refusal)) => interruption_of(refusal).is_none(),
            Err(_) => true,
        };
        done
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewal.abort();
        if !self.is_open || self.is_lost() {
            return;
        }
        let (client, jid) = (self.client.clone(), self.job.jid.clone());
        let message = Some("its worker dropped it".to_owned());
        let release = Release { message, ..Release::of(&self.job) };
        let mut release = Background::new(async move {
            match client.run(release).await {
                Ok(()) | Err(Error::Refused(_)) => {}
                Err(error) => {
                    tracing::warn!(%jid, %error, "a dropped job stays locked until its lock expires")
                }
            }
        });
        // The engine in this process mostly answers at once.
        if Pin::new(&mut release).poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.runtime.spawn(release);
        }
    }
}

/// Work that outlives the runtime on which it runs: if the runtime shuts down and drops it, a thread finishes
/// it.
struct Background(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

/// How long the end of a runtime waits for such a thread.
const SHUTDOWN_WAIT_MAX: Duration = Duration::from_secs(1);
/// After this time the thread gives up.
const BACKGROUND_MAX: Duration = Duration::from_secs(30);

impl Background {
    fn new(work: impl Future<Output = ()> + Send + 'static) -> Background {
        Background(Some(Box::pin(work)))
    }
}

impl Future for Background {
    type Output = ();

    fn poll(mut self: Pin<&mut Background>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(work) = &mut self.0 {
            ready!(work.as_mut().poll(context));
            self.0 = None;
        }
        Poll::Ready(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Set once the backend did not answer in time: with many leases the waits would add up.
        static IS_SLOW: AtomicBool = AtomicBool::new(false);
        let Some(work) = self.0.take() else { return };
        let (done, is_done) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("geartrain-release".into());
        let started = thread.spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else {
                return;
            };
            let _ = runtime.block_on(async { tokio::time::timeout(BACKGROUND_MAX, work).await });
            let _ = done.send(());
        });
        // The process often ends after its runtime.
        if started.is_ok() && !IS_SLOW.load(Ordering::Relaxed) {
            let in_time = is_done.recv_timeout(SHUTDOWN_WAIT_MAX);
            IS_SLOW.store(in_time == Err(RecvTimeoutError::Timeout), Ordering::Relaxed);
        }
    }
}

/// Why the job of an attempt is lost, if this refusal says so.
fn interruption_of(refusal: &Refusal) -> Option<Interruption> {
    match refusal {
        Refusal::NoSuchJob { .. } => Some(Interruption::Cancelled),
        Refusal::LockLost { .. } | Refusal::HeldByAnother { .. } | Refusal::NotRunning { .. } => {
            Some(Interruption::LockLost)
        }
        _ => None,
    }
}

/// The task that renews a lock.
struct Renewal {
    client: Client,
    job: Popped,
    lost: CancellationToken,
    interruption: Arc<OnceLock<Interruption>>,
}

impl Renewal {
    async fn run(self) {
        let mut expires = self.job.lock.expires;
        // A lock is renewed after a third of its time, so that two more tries are left if that fails.
        let mut wait = self.lock_left(expires) / 3;
        loop {
            self.wait(wait.max(RENEW_EVERY_MIN)).await;
            let (jid, holder) = (self.job.jid.clone(), self.job.holder());
            match self.client.run(Heartbeat { jid, holder, payload: None }).await {
                Ok(renewed) => {
                    expires = renewed;
                    wait = self.lock_left(expires) / 3;
                }
                Err(Error::Refused(refusal)) => {
                    if let Some(interruption) = interruption_of(&refusal) {
                        let _ = self.interruption.set(interruption);
                        self.lost.cancel();
                    }
                    // Otherwise a backend without locks that expire.
                    return;
                }
                Err(error) => {
                    tracing::debug!(jid = %self.job.jid, %error, "a lock is not renewed");
                    wait = (self.lock_left(expires) / 10).min(CHECK_EVERY);
                }
            }
        }
    }

    /// By the backend's clock.
    fn lock_left(&self, expires: Timestamp) -> Duration {
        let now = self.client.backend().now().unwrap_or_else(|| SystemClock.now());
        let left = (expires - now).max(Seconds::ZERO).get();
        Duration::try_from_secs_f64(left).unwrap_or(CHECK_EVERY)
    }

    /// Waits, or less if the job is not running any more.
    async fn wait(&self, wait: Duration) {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            tokio::time::sleep(left.min(CHECK_EVERY)).await;
            if left <= CHECK_EVERY || !self.is_running().await {
                return;
            }
        }
    }

    /// A heartbeat would tell more, but is written to disk.
    async fn is_running(&self) -> bool {
        match self.client.run(Status { of: StatusOf::Jid(self.job.jid.clone()) }).await {
            Ok(status) => status.is_some_and(|status| status.state == StateName::Running),
            Err(_) => true,
        }
    }
}
