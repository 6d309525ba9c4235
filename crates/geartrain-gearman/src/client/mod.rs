//! Any Gearman server as a backend, or several of them.
//!
//! An application puts its jobs to one server, picked at random, and stays with it as long as it answers; then it takes the next one. A worker asks all of them, and sleeps on all of them.
//!
//! | command | what is sent |
//! |---|---|
//! | `Put` | SUBMIT_JOB with its variants by priority, in the background unless somebody is attached; SUBMIT_JOB_EPOCH for a delay, SUBMIT_REDUCE_JOB if something is carried aside |
//! | `Pop`, [`pop_or_wait`](Backend::pop_or_wait) | CAN_DO, GRAB_JOB_ALL to each server in turn, PRE_SLEEP to all |
//! | `Complete`, `Fail`, `Progress`, `Chunk` | WORK_COMPLETE; WORK_EXCEPTION with the message, or WORK_FAIL without one; WORK_STATUS; WORK_DATA or WORK_WARNING; each with an echo behind it, so that a refusal is heard |
//! | `Heartbeat` | nothing: a lock is a connection, and holds as long as it does |
//! | `Status` | GET_STATUS, GET_STATUS_UNIQUE |
//! | `Queues`, `Length`, `RollCall`, `PriorityCounts`, `Workers`, `Announced`, `Cancel` | the lines `status`, `prioritystatus`, `workers`, `cancel job` |
//!
//! Everything else is refused. Servers say less than our own do, so some answers say less too: the jid of a job is chosen by the server ([`PutReply::Named`](geartrain_core::PutReply::Named)), and with several
//! servers in the URL it ends with `@HOST:PORT`; of a job found by its jid the queue is `?`, of one found by its key the jid is; which of several queues a job is popped from is the server's choice; the kind of a failure, and how long a worker thinks that it still needs, are not passed on; how many were told of a
//! chunk, and how many jobs a worker has, is not known and given as 0.
//!
//! Every submission has a unique key, made up if none was given, and is sent again when the connection was lost before the answer. So a job is done at least once, and twice only if it ended in that moment. A job that
//! somebody waits for lives as long as they do: that is how Gearman is.

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
    Seconds, Subscription, Timestamp,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use completion_watch::WatchedJobs;
use error::{ClientError, NAME, ServerError};
use held_jobs::HeldJobs;
use result_streams::ResultStreams;
use servers::Servers;
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
    /// Where connections live. Callers may be on any executor, or on none.
    runtime: Option<Runtime>,
}

/// What all calls share.
struct Shared {
    servers: Servers,
    worker_conns: WorkerConnCache,
    held_jobs: HeldJobs,
    result_streams: Arc<ResultStreams>,
    record: Option<Record>,
    watched: WatchedJobs,
}

impl GearmanBackend {
    /// Connects. That one of the servers is there is seen to; that it stays there is not.
    pub async fn connect(url: GearmanUrl) -> Result<GearmanBackend, BackendError> {
        // Before there is a runtime, which must not be dropped on an executor's thread.
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

    /// Does something on the runtime. It goes on if nobody waits for it any more.
    async fn run<T: Send + 'static>(
        &self,
        what: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ServerError> {
        let (to, answer) = oneshot::channel();
        self.spawn(async move {
            // Nobody may wait for it.
            let _ = to.send(what.await);
        });
        answer.await.map_err(|_| ServerError::ShutDown)
    }

    /// Puts again what is in the [record](Record) and not known to be done: see [`Which`].
    pub async fn resubmit(&self, which: ResubmitScope) -> Result<Resubmitted, BackendError> {
        let shared = self.shared.clone();
        match self.run(async move { shared.resubmit(which).await }).await? {
            Ok(done) => Ok(done),
            Err(ClientError::Refused(refusal)) => Err(refusal.into()),
            Err(ClientError::Failed(trouble)) => Err(trouble.into()),
        }
    }
}

/// Answers on their way to whoever asked. If they are dropped before they are taken, wherever they are by then, nobody will report on the jobs among them: those are given back.
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
                // Whoever asked may have gone, and then this is dropped here.
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
                Ok(mut handed) => match handed.take().pop() {
                    Some(Ok(Reply::Pop(reply))) => Ok(reply),
                    _ => Err(ServerError::ShutDown.into()),
                },
                Err(ClientError::Refused(refusal)) => Err(refusal.into()),
                Err(ClientError::Failed(trouble)) => Err(trouble.into()),
            }
        })
    }

    fn ready_or_wait(&self, _: Vec<QueueName>, _: Seconds) -> Pending<'_, bool> {
        refuse("wait for a job without popping it")
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        refuse("tell what happens")
    }

    fn subscribe_from(&self, _: u64) -> Pending<'_, Box<dyn Subscription>> {
        refuse("tell what happened")
    }

    fn open_result_stream(&self, front: u64) -> Pending<'_, Box<dyn ResultStream>> {
        Box::pin(async move { Ok(Box::new(self.shared.result_streams.open(front)) as Box<dyn ResultStream>) })
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
            // Not waited for: whoever drops this may be on an executor's thread. All connections end, and servers hand on the jobs that were held.
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    /// Sees to it that one of the servers is there, and picks it.
    async fn connect_any(&self) -> Result<(), ServerError> {
        let mut trouble = ServerError::ShutDown;
        for place in self.servers.preferred_first() {
            match self.servers.get(place).connection().await {
                Ok(_) => {
                    self.servers.prefer(place);
                    return Ok(());
                }
                Err(failed) => trouble = failed,
            }
        }
        Err(trouble)
    }
}

/// The time of day.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO + Seconds::from(since)
}

/// A wait as the system counts it; one that is too long to be told is ten years.
fn to_duration(wait: Seconds) -> Duration {
    let longest = geartrain_core::DURATION_MAX.get();
    Duration::try_from_secs_f64(wait.get().clamp(0.0, longest)).unwrap_or_default()
}
