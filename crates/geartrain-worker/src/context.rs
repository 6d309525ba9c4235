//! The context of an attempt: facts about the job, reports to the queue, and its interruption.

use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain_core::{
    Answer, Backend, BackendError, Call, Chunk, ChunkKind, Heartbeat, Jid, Klass, Log, Operation, Payload,
    Popped, Portion, Progress, Progressed, QueueName, Refusal, WorkerName,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Why an attempt is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interruption {
    /// The lock was lost: another worker may have the job. The result of this attempt is discarded.
    LockLost,
    /// The job was cancelled. The result of this attempt is discarded.
    Cancelled,
    /// The attempt took longer than its timeout. The job is retried.
    TimedOut,
    /// The worker shuts down and its grace period is over. The job is released, unless it is completed now.
    Shutdown,
}

impl Interruption {
    /// Whether the queue no longer accepts a result of the attempt.
    pub fn discards_result(self) -> bool {
        matches!(self, Interruption::LockLost | Interruption::Cancelled)
    }
}

/// One attempt at a job: the job, reports to the queue about it, and its interruption. Clones share it.
///
/// ```no_run
/// # async fn render(_page: u64) {}
/// # async fn handler(cx: geartrain_worker::Context) -> Result<(), geartrain_worker::JobError> {
/// for page in 0..10 {
///     if cx.is_interrupted() {
///         return Err(geartrain_worker::JobError::release("interrupted"));
///     }
///     render(page).await;
///     cx.progress(page + 1, 10).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Context(Arc<Attempt>);

struct Attempt {
    backend: Arc<dyn Backend>,
    job: Popped,
    deadline: Option<Instant>,
    interrupted: CancellationToken,
    interruption: Mutex<Option<Interruption>>,
    progress: Mutex<Option<Portion>>,
    stopping: Arc<CancellationToken>,
}

/// Why a report about a job was not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The queue refused it, for example because the lock was lost.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The queue cannot be reached.
    #[error(transparent)]
    Backend(BackendError),
}

impl From<BackendError> for ReportError {
    fn from(error: BackendError) -> ReportError {
        match error {
            BackendError::Refused(refusal) => ReportError::Refused(refusal),
            broken => ReportError::Backend(broken),
        }
    }
}

impl Context {
    /// The context of an attempt that ends at `deadline`, if given. `stopping` is cancelled when the worker
    /// begins to shut down.
    pub fn new(
        backend: Arc<dyn Backend>,
        job: Popped,
        deadline: Option<Instant>,
        stopping: impl Into<Arc<CancellationToken>>,
    ) -> Context {
        Context(Arc::new(Attempt {
            backend,
            job,
            deadline,
            interrupted: CancellationToken::new(),
            interruption: Mutex::new(None),
            progress: Mutex::new(None),
            stopping: stopping.into(),
        }))
    }

    /// The job.
    pub fn job(&self) -> &Popped {
        &self.0.job
    }

    /// The id of the job.
    pub fn jid(&self) -> &Jid {
        &self.0.job.jid
    }

    /// The queue that the job came from.
    pub fn queue(&self) -> &QueueName {
        &self.0.job.queue
    }

    /// The kind of job.
    pub fn klass(&self) -> &Klass {
        &self.0.job.klass
    }

    /// The input of the job.
    pub fn payload(&self) -> &Payload {
        &self.0.job.payload
    }

    /// The worker that holds the job.
    pub fn worker(&self) -> &WorkerName {
        &self.0.job.lock.worker
    }

    /// The number of this attempt, from 1 on. Released attempts are not counted.
    pub fn attempt(&self) -> u32 {
        let used = i64::from(self.0.job.retries) - self.0.job.remaining;
        u32::try_from(used.max(0)).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// Whether the job fails if this attempt does.
    pub fn is_last_attempt(&self) -> bool {
        self.0.job.remaining <= 0
    }

    /// The trace that the put belongs to, in the form of W3C's `traceparent` header.
    pub fn traceparent(&self) -> Option<String> {
        self.0.job.details.as_ref()?.traceparent.as_ref().map(ToString::to_string)
    }

    /// When this attempt is interrupted because it takes too long.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline
    }

    /// How long this attempt may still take.
    pub fn time_left(&self) -> Option<Duration> {
        self.0.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// The backend, for operations that have no method here.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.backend
    }

    /// Cancelled when the attempt is interrupted. The handler then has a short time to clean up before its
    /// future is dropped.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.0.interrupted
    }

    /// Waits until the attempt is interrupted, and returns why.
    pub async fn interrupted(&self) -> Interruption {
        self.0.interrupted.cancelled().await;
        self.interruption().unwrap_or(Interruption::Shutdown)
    }

    /// Whether the attempt is interrupted.
    pub fn is_interrupted(&self) -> bool {
        self.0.interrupted.is_cancelled()
    }

    /// Why the attempt is interrupted, if it is.
    pub fn interruption(&self) -> Option<Interruption> {
        *self.0.interruption.lock()
    }

    /// Cancelled when the worker begins to shut down, a grace period before attempts are interrupted. A long
    /// handler may save its work and return [`JobError::release`](crate::JobError::release).
    pub fn stopping(&self) -> &CancellationToken {
        &self.0.stopping
    }

    /// Interrupts the attempt. The first reason counts, but the loss of the job replaces a reason that would
    /// still report on it.
    pub(crate) fn interrupt(&self, why: Interruption) {
        let mut interruption = self.0.interruption.lock();
        if interruption.is_none_or(|earlier| !earlier.discards_result() && why.discards_result()) {
            *interruption = Some(why);
        }
        drop(interruption);
        self.0.interrupted.cancel();
    }

    /// Reports progress: to clients that wait for the job, and to `geartrain status`.
    pub async fn progress(&self, done: u64, of: u64) -> Result<(), ReportError> {
        let portion = Portion::new(done, of).map_err(Refusal::from)?;
        let progress = Progressed { portion, seconds_left: None };
        self.run(Progress::new(self.jid().clone(), self.0.job.holder(), progress)).await?;
        *self.0.progress.lock() = Some(portion);
        Ok(())
    }

    /// The last progress that this context reported.
    pub fn last_progress(&self) -> Option<Portion> {
        *self.0.progress.lock()
    }

    /// Sends a part of the result to the clients that wait for the job. It is not stored.
    pub async fn chunk(&self, bytes: impl Into<Payload>) -> Result<(), ReportError> {
        self.send(ChunkKind::Data, bytes.into()).await
    }

    /// Sends a warning to the clients that wait for the job. It is not stored.
    pub async fn warning(&self, bytes: impl Into<Payload>) -> Result<(), ReportError> {
        self.send(ChunkKind::Warning, bytes.into()).await
    }

    async fn send(&self, kind: ChunkKind, bytes: Payload) -> Result<(), ReportError> {
        let chunk = Chunk { jid: self.jid().clone(), holder: self.0.job.holder(), kind, bytes };
        self.run(chunk).await.map(|_receivers| ())
    }

    /// Appends a line to the history of the job.
    pub async fn log(&self, message: impl Into<String>) -> Result<(), ReportError> {
        self.log_with(message, None).await
    }

    /// Appends a line to the history of the job, with details as a JSON object.
    pub async fn log_with(
        &self,
        message: impl Into<String>,
        data: Option<String>,
    ) -> Result<(), ReportError> {
        self.run(Log { jid: self.jid().clone(), message: message.into(), data }).await
    }

    /// Renews the lock. The worker does so by itself; only a handler that replaces the payload needs this.
    pub async fn heartbeat(&self, payload: Option<Payload>) -> Result<(), ReportError> {
        let heartbeat = Heartbeat { jid: self.jid().clone(), holder: self.0.job.holder(), payload };
        self.run(heartbeat).await.map(|_expires| ())
    }

    async fn run<O: Operation>(&self, operation: O) -> Result<O::Reply, ReportError> {
        let mut answers: Vec<Answer> = self.0.backend.execute(vec![Call::from(operation)]).await?;
        let reply = answers.pop().transpose()?.and_then(O::answer);
        reply.ok_or_else(|| {
            let source = std::io::Error::other("the reply does not match the request");
            ReportError::Backend(BackendError::Broken { backend: "worker", source: Box::new(source) })
        })
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("jid", self.jid()).finish_non_exhaustive()
    }
}
