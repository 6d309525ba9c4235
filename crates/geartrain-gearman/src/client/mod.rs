//! Gearman servers, one or several, as a [`Backend`].
//!
//! An application puts its jobs to one server, chosen at random, and stays with it as long as it answers;
//! then it fails over to the next one. A worker asks all servers for jobs, and is idle on all of them.
//!
//! | command | what is sent |
//! |---|---|
//! | `Put` | SUBMIT_JOB and its variants by priority, in the background unless a client is attached; SUBMIT_JOB_EPOCH for a delay, SUBMIT_REDUCE_JOB for metadata |
//! | `Pop`, [`pop_or_wait`](Backend::pop_or_wait) | CAN_DO, GRAB_JOB_ALL to each server in turn, PRE_SLEEP to all |
//! | `Complete`, `Fail`, `Progress`, `Chunk` | WORK_COMPLETE; WORK_EXCEPTION with the message, or WORK_FAIL without one; WORK_STATUS; WORK_DATA or WORK_WARNING; each followed by an echo, so that a refusal is noticed |
//! | `Heartbeat` | nothing: a lock is a connection and lasts as long as it does |
//! | `Status` | GET_STATUS, GET_STATUS_UNIQUE |
//! | `SetAside`, `EndSetAside` | CAN_DO and GRAB_JOB_ALL over a connection of their own, GET_STATUS_UNIQUE or the admin command `show jobs`; WORK_COMPLETE, or nothing |
//! | `Queues`, `Length`, `RollCall`, `PriorityCounts`, `Workers`, `Announced`, `Cancel` | the admin commands `status`, `prioritystatus`, `workers`, `cancel job` |
//!
//! Everything else is refused. Gearman servers report less than our own, so some replies hold less:
//!
//! - The server chooses a job's jid ([`PutReply::Named`](geartrain_core::PutReply::Named)); with several
//!   servers in the URL it ends with `@HOST:PORT`.
//! - A status by jid has the queue `?`, a status by unique key has the jid `?`.
//! - The server chooses which of several queues a job is popped from.
//! - The group of a failure and a worker's estimate of the seconds left are not passed on.
//! - How many clients received a chunk, and how many jobs a worker has, is unknown and given as 0.
//!
//! Every submission has a unique key, generated if none was given, and is sent again if the connection was
//! lost before the reply. So a job runs at least once, and twice only if it ended in that moment. A
//! foreground job lives as long as its client waits, as always in Gearman.
//!
//! Tasks run on the backend's own runtime, which aborts them when the backend is dropped.

mod admin;
mod commands;
mod completion_watch;
mod connection;
mod error;
mod held_jobs;
mod job_ids;
mod record;
mod resubmit;
mod result_streams;
mod servers;
mod set_aside;
mod submission;
mod submit;
mod url;
mod worker;
mod worker_conns;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use geartrain_core::{
    Answer, Backend, BackendError, Call, Pending, Pop, PopReply, QueueName, Refusal, Reply, ResultStream,
    Seconds, Software, Subscription, Timestamp,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use completion_watch::WatchedJobs;
use error::{ClientError, NAME, ServerError};
use held_jobs::HeldJobs;
use result_streams::ResultStreams;
use servers::Servers;
use set_aside::AsideConns;
use worker_conns::WorkerConnCache;

pub use record::Record;
pub use resubmit::{ResubmitScope, Resubmitted};
pub use url::{BadUrl, GearmanUrl};

/// One or several Gearman servers as a queue.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use geartrain_core::{Backend, Call, Length, QueueName};
/// use geartrain_gearman::client::GearmanBackend;
/// let backend = GearmanBackend::connect("gearman://10.0.0.1,10.0.0.2".parse()?).await?;
/// let answers = backend.execute(vec![Call::from(Length { queue: QueueName::new("resize")? })]).await?;
/// # Ok(()) }
/// ```
pub struct GearmanBackend {
    shared: Arc<Shared>,
    /// Runs all connections and tasks. Callers may be on any executor, or on none.
    runtime: Option<Runtime>,
}

/// State shared by all calls.
struct Shared {
    servers: Servers,
    worker_conns: WorkerConnCache,
    held_jobs: HeldJobs,
    aside: AsideConns,
    result_streams: Arc<ResultStreams>,
    record: Option<Record>,
    watched: WatchedJobs,
}

impl GearmanBackend {
    /// Connects to one of the servers. Later failures are handled by retries and failover.
    pub async fn connect(url: GearmanUrl) -> Result<GearmanBackend, BackendError> {
        // Before the runtime exists, because a runtime must not be dropped on an executor's thread.
        let servers = Servers::new(&url)?;
        let broken = |error: std::io::Error| BackendError::Broken { backend: NAME, source: error.into() };
        let threads = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("geartrain-gearman")
            .enable_all()
            .build();
        let runtime = threads.map_err(broken)?;
        let shared = Arc::new(Shared {
            servers,
            worker_conns: WorkerConnCache::default(),
            held_jobs: HeldJobs::new(),
            aside: AsideConns::default(),
            result_streams: Arc::default(),
            record: url.record.map(Record::new),
            watched: WatchedJobs::default(),
        });
        let backend = GearmanBackend { shared: shared.clone(), runtime: Some(runtime) };
        backend.run(async move { shared.connect_any().await }).await??;
        if backend.shared.record.is_some() {
            backend.spawn(completion_watch::watch_completions(Arc::downgrade(&backend.shared)));
        }
        Ok(backend)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }

    /// Runs a task on the runtime. The task goes on if the caller stops waiting.
    async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ServerError> {
        let (to, answer) = oneshot::channel();
        self.spawn(async move {
            // The caller may be gone.
            let _ = to.send(task.await);
        });
        answer.await.map_err(|_| ServerError::ShutDown)
    }

    /// Puts recorded jobs again that are not known to be done: see [`Record`] and [`ResubmitScope`].
    pub async fn resubmit(&self, scope: ResubmitScope) -> Result<Resubmitted, BackendError> {
        let shared = self.shared.clone();
        match self.run(async move { shared.resubmit(scope).await }).await? {
            Ok(done) => Ok(done),
            Err(ClientError::Refused(refusal)) => Err(refusal.into()),
            Err(ClientError::Failed(error)) => Err(error.into()),
        }
    }
}

/// Replies on their way to the caller. If they are dropped before the caller takes them, the popped jobs
/// among them are returned, because nothing would ever report on them.
struct ReplyGuard {
    shared: Arc<Shared>,
    answers: Vec<Answer>,
}

impl ReplyGuard {
    fn take(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }
}

impl Drop for ReplyGuard {
    fn drop(&mut self) {
        for answer in self.take() {
            if let Ok(Reply::Pop(PopReply { jobs, .. })) = answer {
                self.shared.return_jobs(jobs);
            }
        }
    }
}

impl Backend for GearmanBackend {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        Box::pin(async move {
            let (to, answers) = oneshot::channel();
            let shared = self.shared.clone();
            self.spawn(async move {
                let answers = shared.execute(batch).await;
                // If the caller is gone, this drops the replies.
                let _ = to.send(answers.map(|answers| ReplyGuard { shared, answers }));
            });
            Ok(answers.await.map_err(|_| ServerError::ShutDown)??.take())
        })
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        Box::pin(async move {
            let (mut to, reply) = oneshot::channel();
            let shared = self.shared.clone();
            self.spawn(async move {
                let popped = shared.pop(&pop, Some(to_duration(wait)), pin!(to.closed())).await;
                let _ =
                    to.send(popped.map(|reply| ReplyGuard { shared, answers: vec![Ok(Reply::Pop(reply))] }));
            });
            match reply.await.map_err(|_| ServerError::ShutDown)? {
                Ok(mut reply) => match reply.take().pop() {
                    Some(Ok(Reply::Pop(reply))) => Ok(reply),
                    _ => Err(ServerError::ShutDown.into()),
                },
                Err(ClientError::Refused(refusal)) => Err(refusal.into()),
                Err(ClientError::Failed(error)) => Err(error.into()),
            }
        })
    }

    fn ready_or_wait(&self, _: Vec<QueueName>, _: Seconds) -> Pending<'_, bool> {
        refuse("wait for a job without popping it")
    }

    fn identify(&self) -> Pending<'_, Software> {
        Box::pin(async move {
            let (to, software) = oneshot::channel();
            let shared = self.shared.clone();
            self.spawn(async move {
                let _ = to.send(admin::software(&shared.servers).await);
            });
            Ok(software.await.map_err(|_| ServerError::ShutDown)??)
        })
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        refuse("tell what happens")
    }

    fn subscribe_from(&self, _: u64) -> Pending<'_, Box<dyn Subscription>> {
        refuse("tell what happened")
    }

    fn open_result_stream(&self, stream_id: u64) -> Pending<'_, Box<dyn ResultStream>> {
        Box::pin(
            async move { Ok(Box::new(self.shared.result_streams.open(stream_id)) as Box<dyn ResultStream>) },
        )
    }
}

fn refuse<T: Send + 'static>(operation: &'static str) -> Pending<'static, T> {
    Box::pin(
        async move { Err(Refusal::Unsupported { operation: operation.into(), backend: NAME.into() }.into()) },
    )
}

impl Drop for GearmanBackend {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Does not wait, because the caller may be on an executor's thread. The runtime drops all tasks
            // and connections, and the servers requeue the jobs that were held.
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    /// Connects to the first server that answers, and prefers it.
    async fn connect_any(&self) -> Result<(), ServerError> {
        let mut error = ServerError::ShutDown;
        for index in self.servers.preferred_first() {
            match self.servers.get(index).connection().await {
                Ok(_) => {
                    self.servers.prefer(index);
                    return Ok(());
                }
                Err(failed) => error = failed,
            }
        }
        Err(error)
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO + Seconds::from(since)
}

/// A wait as a `Duration`; at most [`DURATION_MAX`](geartrain_core::DURATION_MAX).
fn to_duration(wait: Seconds) -> Duration {
    let longest = geartrain_core::DURATION_MAX.get();
    Duration::try_from_secs_f64(wait.get().clamp(0.0, longest)).unwrap_or_default()
}
