//! The pool model: long-lived children that get jobs as JSON lines, see `docs/formats/pool.md`.
//!
//! ```text
//! Pool::call ──► queue of assignments ──► Member (one task per child) ──► stdin
//!      ▲                                        │
//!      └───────── messages of the child ◄───────┴──────────────────────── stdout
//! ```

mod lines;
mod member;
mod protocol;
mod stderr;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use geartrain_core::{PAYLOAD_BYTES_MAX, QueueName, Tag};
use geartrain_worker::{Context, Interruption, JobError, JobOutput, JobRequest, ReportError};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::BoxError;

use crate::{Launcher, WorkDirectories};
use member::Member;
use protocol::Message;

/// Messages of a child about one job that are not handled yet. Its output is not read any further meanwhile.
const MESSAGES_MAX: usize = 64;

/// How the children of a pool are run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PoolOptions {
    /// How many children.
    pub children: usize,
    /// How many jobs a child has at once.
    pub slots: usize,
    /// A child is replaced after this many jobs.
    pub max_jobs: Option<u64>,
    /// A child is replaced when it has more resident memory than this after a job, in bytes.
    pub max_memory_bytes: Option<u64>,
    /// How long a child may take until it is ready.
    pub ready_within: Duration,
    /// How long a child may take to end a cancelled job, or to exit when its input has ended.
    pub grace: Duration,
    /// How long a job waits for a child while children crash or do not start, before it goes back to its queue.
    pub child_within: Duration,
    /// The delay of retries for which the child gives none, instead of the backoff of each job.
    pub retry_delay: Option<Duration>,
    /// The largest result, in bytes.
    pub result_bytes_max: usize,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            children: std::thread::available_parallelism().map_or(1, usize::from),
            slots: 1,
            max_jobs: None,
            max_memory_bytes: None,
            ready_within: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            child_within: Duration::from_secs(10),
            retry_delay: None,
            result_bytes_max: PAYLOAD_BYTES_MAX,
        }
    }
}

/// A pool did not start: its first child did not become ready.
#[derive(Debug, thiserror::Error)]
#[error("the program does not work as a child of a pool: {0}")]
pub struct PoolError(String);

/// Runs jobs in long-lived children: a [`Service<JobRequest>`](tower::Service). Clones share the children.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    assignments: flume::Sender<Assignment>,
    members: Mutex<Option<JoinSet<()>>>,
    trouble: Trouble,
    stop: CancellationToken,
    options: PoolOptions,
}

/// Why the last child ended that should not have, until a child answers a job.
type Trouble = Arc<Mutex<Option<String>>>;

/// A job for one of the children.
#[derive(Debug)]
struct Assignment {
    context: Context,
    tags: Vec<Tag>,
    /// Whether a child has it, or its caller withdrew it.
    taken: Arc<AtomicBool>,
    messages: mpsc::Sender<Result<Message, Lost>>,
    /// Cancelled when the caller no longer waits.
    abandoned: CancellationToken,
}

impl Assignment {
    /// Takes it, unless its caller withdrew it or is gone.
    fn take(&self) -> bool {
        !self.abandoned.is_cancelled() && !self.taken.swap(true, Ordering::SeqCst)
    }
}

/// Why a child did not answer a job.
#[derive(Debug, Clone)]
enum Lost {
    /// It broke the protocol.
    Protocol(String),
    /// It ended.
    Exit(String),
    /// It was stopped, because the job was interrupted and it cannot be asked to end a single job.
    Stopped(Option<Interruption>),
    /// It was asked to end the interrupted job, did not answer, and was killed.
    Killed { grace: Duration },
    /// It was stopped because of another of its jobs.
    Sibling,
}

impl Lost {
    fn error(self, queue: &QueueName, retry_delay: Option<Duration>) -> JobError {
        let (kind, message) = match self {
            Lost::Protocol(message) => ("protocol", message),
            Lost::Exit(message) => ("exit", message),
            Lost::Stopped(why) => {
                let why = match why {
                    Some(Interruption::Cancelled) => "was cancelled",
                    Some(Interruption::LockLost) => "was taken away: its lock is lost",
                    Some(Interruption::TimedOut) => "took too long",
                    _ => "was interrupted",
                };
                ("stopped", format!("the child was stopped, because the job {why}"))
            }
            Lost::Killed { grace } => (
                "stopped",
                format!("the child was killed: it did not answer the cancel line within {grace:?}"),
            ),
            Lost::Sibling => {
                return JobError::release("the child was stopped because of another of its jobs");
            }
        };
        delayed(JobError::retry(message).group(format!("{queue}-pool-{kind}")), retry_delay)
    }
}

fn delayed(error: JobError, delay: Option<Duration>) -> JobError {
    match delay {
        Some(delay) => error.after(delay),
        None => error,
    }
}

impl Pool {
    /// Starts children, and waits until the first of them is ready. Call it inside of a tokio runtime.
    pub async fn start(
        launcher: Launcher,
        directories: Arc<WorkDirectories>,
        options: PoolOptions,
    ) -> Result<Pool, PoolError> {
        let (assignments, queue) = flume::unbounded();
        let (trouble, stop) = (Trouble::default(), CancellationToken::new());
        let (first, mut first_outcome) = mpsc::channel(options.children.max(1));
        let mut members = JoinSet::new();
        for number in 0..options.children.max(1) {
            let member = Member {
                number,
                launcher: launcher.clone(),
                directory: directories.slot(number),
                directories: Arc::clone(&directories),
                options: options.clone(),
                assignments: queue.clone(),
                trouble: Arc::clone(&trouble),
                stop: stop.clone(),
                first: Some(first.clone()),
            };
            members.spawn(member.run());
        }
        drop(first);
        let members = Mutex::new(Some(members));
        let pool = Pool(Arc::new(Shared { assignments, members, trouble, stop, options }));
        match first_outcome.recv().await {
            Some(Ok(())) => {
                first_outcome.close();
                while let Ok(other) = first_outcome.try_recv() {
                    if let Err(why) = other {
                        tracing::warn!("a child of the pool did not start, and is replaced: {why}");
                    }
                }
                Ok(pool)
            }
            Some(Err(why)) => {
                pool.shut_down().await;
                Err(PoolError(why))
            }
            None => Err(PoolError("no child was started".to_owned())),
        }
    }

    /// Ends the children: each gets the end of its input, SIGTERM after the grace period, then SIGKILL. Jobs that
    /// are running still end first, so interrupt them before.
    pub async fn shut_down(&self) {
        self.0.stop.cancel();
        let members = self.0.members.lock().take();
        if let Some(members) = members {
            members.join_all().await;
        }
    }

    /// Gives a job to a child, and handles its messages until the answer.
    async fn run_job(self, context: Context) -> Result<JobOutput, BoxError> {
        let (messages, mut from_child) = mpsc::channel(MESSAGES_MAX);
        let (taken, abandoned) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        // If this future is dropped, the child is told to stop.
        let _guard: DropGuard = abandoned.clone().drop_guard();
        let tags = crate::fork::tags(&context).await;
        let assignment =
            Assignment { context: context.clone(), tags, taken: Arc::clone(&taken), messages, abandoned };
        if self.0.assignments.send(assignment).is_err() {
            return Err(JobError::release("the pool is shut down").into_service_error());
        }
        let withdraw = || !taken.swap(true, Ordering::SeqCst);
        let mut may_withdraw = true;
        loop {
            let message = tokio::select! {
                message = from_child.recv() => message,
                _ = context.interrupted(), if may_withdraw => {
                    if withdraw() {
                        return Err(JobError::release("no child has begun the job").into_service_error());
                    }
                    may_withdraw = false;
                    continue;
                }
                () = tokio::time::sleep(self.0.options.child_within), if may_withdraw => {
                    let trouble = self.0.trouble.lock().clone();
                    match trouble {
                        Some(why) if withdraw() => {
                            let message = format!("no child is ready: {why}");
                            return Err(JobError::release(message).into_service_error());
                        }
                        _ => continue,
                    }
                }
            };
            match message {
                Some(Ok(Message::Answer(answer))) => return answer.verdict(&context, &self.0.options),
                Some(Ok(report)) => forward(&context, report).await,
                Some(Err(lost)) => {
                    return Err(lost.error(context.queue(), self.0.options.retry_delay).into_service_error());
                }
                None => return Err(JobError::release("the pool is shut down").into_service_error()),
            }
        }
    }
}

/// Passes a report on to the queue.
async fn forward(context: &Context, report: Message) {
    let result: Result<(), ReportError> = match report {
        Message::Progress(done, of) => context.progress(done, of).await,
        Message::Chunk(bytes) => context.chunk(bytes).await,
        Message::Log { message, data } => context.log_with(message, data).await,
        Message::Answer(_) => Ok(()),
    };
    if let Err(error) = result {
        // The runtime notices a lost lock by itself, and interrupts the attempt.
        tracing::debug!("a report about {} was not accepted: {error}", context.jid());
    }
}

impl tower::Service<JobRequest> for Pool {
    type Response = JobOutput;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<JobOutput, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: JobRequest) -> Self::Future {
        Box::pin(self.clone().run_job(request.context))
    }
}
