//! The worker: which jobs it runs, with what, and how it stops.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{
    Backend, BackendError, BadName, Capability, Klass, Payload, QueueName, Refusal, WorkerName,
};
use serde::Serialize;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer, Service, ServiceExt};

use crate::handler::{self, Handler, Router};
use crate::run::Runner;
use crate::{AttemptEnding, Context, Job, JobError, JobOutput, JobRequest, JobService, Report, State};

/// How long a worker waits for running jobs when it is told to stop, by default.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(30);
/// How long a handler may clean up after its attempt was interrupted, by default.
const CLEANUP_DEFAULT: Duration = Duration::from_secs(5);

/// Which of several queues a worker serves first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The first queue that has a job.
    #[default]
    Strict,
    /// One job from each queue in turn.
    RoundRobin,
    /// The job with the highest priority in any of the queues.
    Priority,
}

/// Runs jobs with handlers: pops them, renews their locks, reports how they ended, and hands back what is
/// left when it stops.
///
/// Handlers take the job, the [state](State) of the worker and the [context](Context) of the attempt. They
/// return a value, which is the job's result, or a [`JobError`]; any error converts into one with `?`.
#[must_use = "a worker does nothing until it runs"]
pub struct Worker<S = ()> {
    backend: Arc<dyn Backend>,
    state: S,
    handlers: HashMap<String, Handler>,
    /// Queues and klasses of typed handlers.
    typed: Vec<(String, String)>,
    /// Klasses of handlers of bytes.
    untyped: Vec<String>,
    other: Option<JobService>,
    layers: Vec<Box<dyn FnOnce(JobService) -> JobService + Send>>,
    settings: Settings,
}

/// What a worker is told.
pub(crate) struct Settings {
    pub(crate) name: Option<String>,
    pub(crate) queues: Vec<String>,
    pub(crate) klasses: Vec<String>,
    pub(crate) order: Order,
    pub(crate) concurrency: usize,
    pub(crate) grace: Duration,
    pub(crate) cleanup: Duration,
    pub(crate) timeout: Option<Duration>,
    pub(crate) jobs_max: Option<u64>,
    pub(crate) drain: bool,
    pub(crate) resume: bool,
    pub(crate) unhealthy_after: Option<Duration>,
    pub(crate) observer: Option<Observer>,
}

pub(crate) type Observer = Arc<dyn Fn(WorkerEvent<'_>) + Send + Sync>;

/// What a worker does, for a display or a log, see [`Worker::observe`].
#[derive(Debug)]
#[non_exhaustive]
pub enum WorkerEvent<'a> {
    /// An attempt began.
    Started(&'a Context),
    /// An attempt ended, and the queue knows it.
    Ended {
        /// The attempt.
        context: &'a Context,
        /// How it ended.
        ending: AttemptEnding,
        /// The error message, if there is one.
        message: Option<&'a str>,
        /// How long it took.
        took: Duration,
    },
    /// The queue cannot be reached. The worker tries again.
    Unreachable(&'a BackendError),
    /// The queue can be reached again, after this time.
    Reachable(Duration),
    /// The worker begins to stop, with this many attempts running.
    Stopping(usize),
}

/// Why a worker ended before it was told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// It has no handler.
    #[error("the worker has no handler: add one with on(), on_klass() or on_any()")]
    NoHandlers,
    /// It has no queue.
    #[error("the worker has no queue: name one with queues()")]
    NoQueues,
    /// A name is invalid.
    #[error(transparent)]
    Name(#[from] BadName),
    /// Resuming needs a name that stays the same.
    #[error("to resume its jobs, a worker needs a name: set it with name()")]
    ResumeWithoutName,
    /// The queue refuses to hand out jobs.
    #[error("the queue refuses to hand out jobs: {0}")]
    Refused(Refusal),
    /// The queue could not be reached for too long.
    #[error("no successful poll for {0:.0?}")]
    Unhealthy(Duration),
    /// A thread or a signal handler could not be started.
    #[error("the worker cannot start")]
    Start(#[source] std::io::Error),
}

impl Worker<()> {
    /// A worker without handlers, for any backend; a `geartrain::Client` is one.
    pub fn new(backend: impl Into<Arc<dyn Backend>>) -> Worker<()> {
        Worker {
            backend: backend.into(),
            state: (),
            handlers: HashMap::new(),
            typed: Vec::new(),
            untyped: Vec::new(),
            other: None,
            layers: Vec::new(),
            settings: Settings {
                name: None,
                queues: Vec::new(),
                klasses: Vec::new(),
                order: Order::default(),
                concurrency: std::thread::available_parallelism().map_or(1, usize::from),
                grace: GRACE_DEFAULT,
                cleanup: CLEANUP_DEFAULT,
                timeout: None,
                jobs_max: None,
                drain: false,
                resume: false,
                unhealthy_after: None,
                observer: None,
            },
        }
    }
}

impl<S: Clone + Send + Sync + 'static> Worker<S> {
    /// Shares a value with the handlers that are added from now on: a database pool, a client.
    pub fn with_state<T: Clone + Send + Sync + 'static>(self, state: T) -> Worker<T> {
        let Worker { backend, handlers, typed, untyped, other, layers, settings, .. } = self;
        Worker { backend, state, handlers, typed, untyped, other, layers, settings }
    }

    /// Runs jobs of a type with an async function, and takes them from the type's queue.
    pub fn on<J, R, F, Fut>(mut self, handler: F) -> Worker<S>
    where
        J: Job,
        R: Serialize,
        F: Fn(J, State<S>, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, JobError>> + Send + 'static,
    {
        let handler = handler::typed(self.state.clone(), handler);
        self.typed.push((J::QUEUE.to_owned(), J::KLASS.to_owned()));
        self.handlers.insert(J::KLASS.to_owned(), handler);
        self
    }

    /// Runs jobs of a type with a blocking or CPU-bound function, on a thread pool. The function cannot be
    /// stopped from outside: a long one should look at [`Context::is_interrupted`].
    pub fn on_blocking<J, R, F>(mut self, handler: F) -> Worker<S>
    where
        J: Job,
        R: Serialize,
        F: Fn(J, State<S>, Context) -> Result<R, JobError> + Send + Sync + 'static,
    {
        let handler = handler::blocking(self.state.clone(), handler);
        self.typed.push((J::QUEUE.to_owned(), J::KLASS.to_owned()));
        self.handlers.insert(J::KLASS.to_owned(), handler);
        self
    }

    /// Runs jobs of a klass with an async function of bytes: the payload in, the result out. The worker needs
    /// [queues](Worker::queues) then.
    pub fn on_klass<R, F, Fut>(mut self, klass: &str, handler: F) -> Worker<S>
    where
        R: Into<Payload>,
        F: Fn(Payload, State<S>, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, JobError>> + Send + 'static,
    {
        let handler = handler::bytes(self.state.clone(), handler);
        self.untyped.push(klass.to_owned());
        self.handlers.insert(klass.to_owned(), handler);
        self
    }

    /// Runs all jobs that have no other handler with a service: those of the [klasses](Worker::klasses) given,
    /// or of any klass if none are. The worker needs [queues](Worker::queues) then.
    pub fn on_any<T>(mut self, service: T) -> Worker<S>
    where
        T: Service<JobRequest, Response = JobOutput> + Clone + Send + Sync + 'static,
        T::Error: Into<BoxError>,
        T::Future: Send + 'static,
    {
        self.other = Some(boxed(service));
        self
    }

    /// Wraps all handlers in a [tower layer](tower::Layer). The layer that is added last is the outermost.
    pub fn layer<L>(mut self, layer: L) -> Worker<S>
    where
        L: Layer<JobService> + Send + 'static,
        L::Service: Service<JobRequest, Response = JobOutput> + Clone + Send + Sync + 'static,
        <L::Service as Service<JobRequest>>::Error: Into<BoxError>,
        <L::Service as Service<JobRequest>>::Future: Send + 'static,
    {
        self.layers.push(Box::new(move |inner| boxed(layer.layer(inner))));
        self
    }

    /// Takes jobs from these queues, beside those of typed handlers. Their order counts, see
    /// [`order`](Worker::order).
    pub fn queues<Q: Into<String>>(mut self, queues: impl IntoIterator<Item = Q>) -> Worker<S> {
        self.settings.queues.extend(queues.into_iter().map(Into::into));
        self
    }

    /// Takes only jobs of these klasses, beside those that have a handler of their own.
    pub fn klasses<K: Into<String>>(mut self, klasses: impl IntoIterator<Item = K>) -> Worker<S> {
        self.settings.klasses.extend(klasses.into_iter().map(Into::into));
        self
    }

    /// Sets which queue is served first; [`Order::Strict`] by default.
    pub fn order(mut self, order: Order) -> Worker<S> {
        self.settings.order = order;
        self
    }

    /// Sets how many jobs run at the same time, at least one; by default as many as there are processors.
    pub fn concurrency(mut self, jobs: usize) -> Worker<S> {
        self.settings.concurrency = jobs.max(1);
        self
    }

    /// Sets the name of the worker; `<hostname>-<pid>` by default.
    pub fn name(mut self, name: &str) -> Worker<S> {
        self.settings.name = Some(name.to_owned());
        self
    }

    /// Sets how long running jobs may go on when the worker stops; 30 seconds by default. What runs then still
    /// is handed back, and uses up no retry.
    pub fn grace(mut self, grace: Duration) -> Worker<S> {
        self.settings.grace = grace;
        self
    }

    /// Sets how long a handler may go on after its attempt was interrupted, before its future is dropped; 5
    /// seconds by default.
    pub fn cleanup(mut self, cleanup: Duration) -> Worker<S> {
        self.settings.cleanup = cleanup;
        self
    }

    /// Limits the duration of every attempt. A shorter limit of the job itself counts.
    pub fn timeout(mut self, timeout: Duration) -> Worker<S> {
        self.settings.timeout = Some(timeout);
        self
    }

    /// Stops after one job.
    pub fn once(self, once: bool) -> Worker<S> {
        self.jobs_max(once.then_some(1))
    }

    /// Stops after this many jobs.
    pub fn jobs_max(mut self, jobs: Option<u64>) -> Worker<S> {
        self.settings.jobs_max = jobs;
        self
    }

    /// Stops when its queues have no job that could run now. Jobs that are due later do not count.
    pub fn drain(mut self, drain: bool) -> Worker<S> {
        self.settings.drain = drain;
        self
    }

    /// Goes on with the jobs that a worker of this [name](Worker::name) left running, for example before it
    /// was restarted. They get new locks and lose no retry; if the earlier process still lives, it loses them.
    pub fn resume(mut self, resume: bool) -> Worker<S> {
        self.settings.resume = resume;
        self
    }

    /// Ends with [`WorkerError::Unhealthy`] if the queue cannot be polled for this long.
    pub fn exit_unhealthy(mut self, after: Duration) -> Worker<S> {
        self.settings.unhealthy_after = Some(after);
        self
    }

    /// Calls a function for everything that the worker does, on its own task: it must not block.
    pub fn observe(mut self, observer: impl Fn(WorkerEvent<'_>) + Send + Sync + 'static) -> Worker<S> {
        self.settings.observer = Some(Arc::new(observer));
        self
    }

    /// Runs until a future is ready, for example `tokio::signal::ctrl_c()`. Then it takes no more jobs, waits
    /// for those that run, at most for the [grace](Worker::grace) period, and hands the rest back. SIGINT or
    /// SIGTERM meanwhile hands them back at once.
    ///
    /// If the future that this returns is dropped, all running jobs are handed back in the background.
    pub async fn run_until<F: Future>(self, stop: F) -> Result<Report, WorkerError> {
        self.runner()?.run(stop, false).await
    }

    /// Runs until SIGTERM or SIGINT, which stop it as in [`run_until`](Worker::run_until). SIGQUIT stops it
    /// when all running jobs have ended, however long that takes; SIGUSR1 logs what is running; SIGUSR2 is
    /// ignored.
    pub async fn run(self) -> Result<Report, WorkerError> {
        self.runner()?.run(std::future::pending::<()>(), true).await
    }

    fn runner(self) -> Result<Runner, WorkerError> {
        let Worker { backend, handlers, typed, untyped, other, layers, settings, .. } = self;
        if handlers.is_empty() && other.is_none() {
            return Err(WorkerError::NoHandlers);
        }
        let mut queues = Vec::new();
        for name in settings.queues.iter().chain(typed.iter().map(|(queue, _)| queue)) {
            let queue = QueueName::of_function(name)?;
            if !queues.contains(&queue) {
                queues.push(queue);
            }
        }
        if queues.is_empty() {
            return Err(WorkerError::NoQueues);
        }
        let any = other.is_some() && settings.klasses.is_empty();
        let mut klasses = Vec::new();
        let typed = typed.iter().map(|(_, klass)| klass);
        for name in typed.chain(&untyped).chain(&settings.klasses) {
            let klass = Klass::of_function(name)?;
            if !klasses.contains(&klass) {
                klasses.push(klass);
            }
        }
        let capability = |queue: &QueueName, klass: Option<&Klass>| Capability {
            queue: queue.clone(),
            klass: klass.cloned(),
            // Later than here: the handler stops and is reported on before the queue takes the job away.
            attempt_max: settings.timeout.map(|timeout| (timeout + settings.cleanup * 2).into()),
        };
        let capabilities = queues.iter().flat_map(|queue| match any {
            true => vec![capability(queue, None)],
            false => klasses.iter().map(|klass| capability(queue, Some(klass))).collect(),
        });
        let capabilities = capabilities.collect();
        if settings.resume && settings.name.is_none() {
            return Err(WorkerError::ResumeWithoutName);
        }
        let name = WorkerName::new(settings.name.clone().unwrap_or_else(default_name))?;
        let router = boxed(Router::new(handlers, other));
        let service = layers.into_iter().fold(router, |service, layer| layer(service));
        let klasses = (!any).then_some(klasses);
        Ok(Runner::new(backend, service, settings, name, queues, klasses, capabilities))
    }
}

/// `<hostname>-<pid>`.
fn default_name() -> String {
    format!("{}-{}", gethostname::gethostname().to_string_lossy(), std::process::id())
}

fn boxed<T>(service: T) -> JobService
where
    T: Service<JobRequest, Response = JobOutput> + Clone + Send + Sync + 'static,
    T::Error: Into<BoxError>,
    T::Future: Send + 'static,
{
    BoxCloneSyncService::new(service.map_err(Into::into))
}
