//! WorkKit schedules on a Redis as a [`Backend`]: jobs with a cron string, in the keys and the JSON that
//! WorkKit published, so that its own clients and listeners can be on the other side.
//!
//! Its words stop here: a *schedule* is our queue, a *named function* `#'ns/name` our klass `ns/name`, the
//! *arguments* (a JSON array) our payload, the *job ID* (the SHA-1 of the payload) our jid.
//!
//! | command | what is done |
//! |---|---|
//! | `Put` | inserts a job whose cron string matches one second: this one, or the first after the delay |
//! | `Pop`, [`pop_or_wait`](Backend::pop_or_wait) | looks at the due entries, and claims those of the klasses; looks again at the next score or after a second |
//! | `Complete`, `Fail`, `Retry`, `Release`, `Heartbeat` | by the lease in our own keys |
//! | `Cancel`, `Get`, `GetMany`, `Status`, `Jobs`, `Peek`, `Queues`, `Length` | read or remove entries and payloads |
//! | `Failures`, `Failed` | jobs that cannot be run, in the group `workkit-dead` |
//! | `PutPeriodic`, `RemovePeriodic`, `Periodics` | jobs whose cron string matches more than once |
//!
//! Everything else is refused by name. Beyond WorkKit, which loses a job whose listener dies:
//!
//! - A recurring job moves from one score to the next in the step that claims it, and is never absent.
//! - A job that runs once comes back when the lease of a lost worker expires.
//! - What we cannot run is left alone: function literals, and functions that no worker asked for.
//!
//! The resolution is one second, jobs of one second have no order, and equal jobs of one second are one job:
//! [`PutReply::NamedExisting`](geartrain_core::PutReply::NamedExisting).

mod add;
mod attempt;
mod canonical;
mod commands;
mod cron;
mod finish;
mod keys;
mod payload;
mod periodic;
mod pop;
mod put;
mod read;
mod recover;
mod script;
mod session;
mod url;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{
    Answer, Backend, BackendError, Call, Clock, DURATION_MAX, Jid, Pending, PeriodicTemplate, Pop, PopReply,
    QueueName, Reply, ResultStream, Seconds, Software, Subscription, Timestamp,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::clock::SharedClock;
use crate::connection::{ConnectionError, Connector};
use crate::driver::Shared;
use session::{CallError, NAME, Session, broken, unsupported};

pub use add::{AddJob, Added};
pub use cron::CronOrder;
pub use url::WorkKitUrl;

/// How long dropping the backend may block, if jobs of cancelled pops are still to be released.
const RELEASE_MAX: Duration = Duration::from_secs(1);

/// WorkKit schedules on a Redis or a Valkey.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use geartrain_core::{Backend, Call, Jid, Klass, Put, QueueName};
/// use geartrain_redis::workkit::WorkKitBackend;
/// let backend = WorkKitBackend::connect("workkit+redis://127.0.0.1:6379".parse()?).await?;
/// let (schedule, clear) = (QueueName::new("app-tasks")?, Klass::new("your-app.cache/clear")?);
/// // The jid does not matter: the schedule has ids of its own.
/// let put = Put::new(schedule, Jid::new("-")?, clear, r#"["users"]"#);
/// let answers = backend.execute(vec![Call::from(put)]).await?;
/// # Ok(()) }
/// ```
pub struct WorkKitBackend {
    session: Arc<Session>,
    /// Cloned by releases under way.
    releasing: Option<flume::Sender<()>>,
    released: flume::Receiver<()>,
    /// Runs the connections. Callers may be on any executor, or on none.
    runtime: Option<Runtime>,
}

impl WorkKitBackend {
    /// Connects, and fails if there is no Redis behind the URL now. Time is that of the Redis.
    pub async fn connect(url: WorkKitUrl) -> Result<WorkKitBackend, BackendError> {
        let clock = Arc::new(SharedClock::new());
        WorkKitBackend::start(url, Some(clock.clone()), clock).await
    }

    /// Connects with the caller's clock instead of the Redis's.
    pub async fn with_clock(url: WorkKitUrl, clock: Arc<dyn Clock>) -> Result<WorkKitBackend, BackendError> {
        WorkKitBackend::start(url, None, clock).await
    }

    async fn start(
        url: WorkKitUrl,
        followed: Option<Arc<SharedClock>>,
        clock: Arc<dyn Clock>,
    ) -> Result<WorkKitBackend, BackendError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("geartrain-workkit")
            .enable_all()
            .build();
        let runtime =
            runtime.map_err(|error| BackendError::Broken { backend: NAME, source: error.into() })?;
        let connector = Connector::new(url.redis, followed);
        let shared = Shared::new(connector, clock, runtime.handle().clone(), false);
        let session = Arc::new(Session::new(shared, url.options));
        let (releasing, released) = flume::bounded(0);
        let backend =
            WorkKitBackend { session, releasing: Some(releasing), released, runtime: Some(runtime) };
        backend.session.shared.connection().await.map_err(broken)?;
        Ok(backend)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }

    fn guard(&self, answers: Vec<Answer>) -> ReplyGuard {
        ReplyGuard { session: self.session.clone(), releasing: self.releasing.clone(), answers }
    }
}

/// Replies on their way to the caller. If they are dropped before the caller takes them, the popped jobs
/// among them are released.
struct ReplyGuard {
    session: Arc<Session>,
    releasing: Option<flume::Sender<()>>,
    answers: Vec<Answer>,
}

impl ReplyGuard {
    fn take(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }
}

impl Drop for ReplyGuard {
    fn drop(&mut self) {
        let answers = self.take();
        if geartrain_core::Release::of_answers(&answers).is_empty() {
            return;
        }
        let (session, releasing) = (self.session.clone(), self.releasing.take());
        self.session.shared.handle.spawn(async move {
            session.release_all(&answers).await;
            drop(releasing);
        });
    }
}

fn shut_down<E>(_: E) -> BackendError {
    broken(ConnectionError::ShutDown)
}

impl Backend for WorkKitBackend {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        Box::pin(async move {
            let (to, answers) = oneshot::channel();
            let (session, mut guard) = (self.session.clone(), self.guard(Vec::new()));
            self.spawn(async move {
                let executed = session.execute(batch).await;
                // If the caller is gone, this drops the replies.
                let _ = to.send(executed.map(|answers| {
                    guard.answers = answers;
                    guard
                }));
            });
            Ok(answers.await.map_err(shut_down)??.take())
        })
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        Box::pin(async move {
            let (mut to, reply) = oneshot::channel();
            let (session, mut guard) = (self.session.clone(), self.guard(Vec::new()));
            self.spawn(async move {
                let popped = session.pop(&pop, None, Some(to_duration(wait)), pin!(to.closed())).await;
                let _ = to.send(popped.map(|reply| {
                    guard.answers = vec![Ok(Reply::Pop(reply))];
                    guard
                }));
            });
            match reply.await.map_err(shut_down)??.take().pop() {
                Some(Ok(Reply::Pop(reply))) => Ok(reply),
                _ => Err(shut_down(())),
            }
        })
    }

    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        Box::pin(async move {
            let (mut to, is_ready) = oneshot::channel();
            let session = self.session.clone();
            self.spawn(async move {
                let ready = tokio::select! {
                    ready = session.ready(&queues, to_duration(wait)) => ready,
                    () = to.closed() => return,
                };
                let _ = to.send(ready);
            });
            Ok(is_ready.await.map_err(shut_down)??)
        })
    }

    fn now(&self) -> Option<Timestamp> {
        Some(self.session.shared.clock.now())
    }

    fn identify(&self) -> Pending<'_, Software> {
        Box::pin(async move { self.session.shared.software().await.map_err(broken) })
    }

    fn periodic_jid(&self, template: &PeriodicTemplate) -> Option<Jid> {
        self.session.periodic_jid(template)
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        refuse("publish events")
    }

    fn subscribe_from(&self, _: u64) -> Pending<'_, Box<dyn Subscription>> {
        refuse("publish events")
    }

    fn open_result_stream(&self, _: u64) -> Pending<'_, Box<dyn ResultStream>> {
        refuse("wait for a result")
    }
}

fn refuse<T: Send + 'static>(operation: &'static str) -> Pending<'static, T> {
    Box::pin(async move { Err(CallError::from(unsupported(operation)).into()) })
}

/// A wait as a `Duration`; at most [`DURATION_MAX`].
fn to_duration(wait: Seconds) -> Duration {
    Duration::try_from_secs_f64(wait.get().clamp(0.0, DURATION_MAX.get())).unwrap_or_default()
}

impl Drop for WorkKitBackend {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // A process often ends after a cancelled pop, and the job should not wait for its lease to expire.
        // Ends as soon as no release holds a sender.
        self.releasing = None;
        let _ = self.released.recv_timeout(RELEASE_MAX);
        runtime.shutdown_background();
    }
}
