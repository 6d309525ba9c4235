//! Handlers: functions that run jobs of one klass, and the router that chooses among them.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{self, Poll};

use futures_util::future::BoxFuture;
use geartrain_core::{JobResult, Payload};
use serde::Serialize;
use tower::{BoxError, Service, ServiceExt};

use crate::{Context, Job, JobError, JobOutput, JobRequest, JobService};

/// The state that a worker shares with its handlers, see [`Worker::with_state`](crate::Worker::with_state).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State<S>(pub S);

/// The future of one attempt.
pub(crate) type Running = BoxFuture<'static, Result<JobOutput, BoxError>>;

/// A handler whose types are erased.
pub(crate) type Handler = Arc<dyn Fn(Context) -> Running + Send + Sync>;

/// A typed async handler: the payload is JSON, and so is the result.
pub(crate) fn typed<J, S, R, F, Fut>(state: S, handler: F) -> Handler
where
    J: Job,
    S: Clone + Send + Sync + 'static,
    R: Serialize,
    F: Fn(J, State<S>, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, JobError>> + Send + 'static,
{
    Arc::new(move |context| {
        let attempt = job_of::<J>(&context).map(|job| handler(job, State(state.clone()), context));
        Box::pin(async move {
            let value = match attempt {
                Ok(attempt) => attempt.await,
                Err(error) => Err(error),
            };
            value.and_then(output).map_err(JobError::into_service_error)
        })
    })
}

/// A typed handler for blocking or CPU-bound work, on a thread of its own.
pub(crate) fn blocking<J, S, R, F>(state: S, handler: F) -> Handler
where
    J: Job,
    S: Clone + Send + Sync + 'static,
    R: Serialize,
    F: Fn(J, State<S>, Context) -> Result<R, JobError> + Send + Sync + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |context| {
        let (state, handler) = (state.clone(), handler.clone());
        let run = move || {
            let job = job_of::<J>(&context)?;
            handler(job, State(state), context).and_then(output)
        };
        Box::pin(async move {
            match tokio::task::spawn_blocking(run).await {
                Ok(ended) => ended.map_err(JobError::into_service_error),
                // Handled like the panic of an async handler.
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(error) => Err(error.into()),
                },
            }
        })
    })
}

/// A handler of bytes. Without bytes there is no result.
pub(crate) fn bytes<S, R, F, Fut>(state: S, handler: F) -> Handler
where
    S: Clone + Send + Sync + 'static,
    R: Into<Payload>,
    F: Fn(Payload, State<S>, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, JobError>> + Send + 'static,
{
    Arc::new(move |context| {
        let attempt = handler(context.payload().clone(), State(state.clone()), context);
        Box::pin(async move {
            let bytes: Payload = attempt.await.map_err(JobError::into_service_error)?.into();
            if bytes.byte_len() == 0 {
                return Ok(JobOutput::default());
            }
            Ok(JobOutput::with_result(JobResult { code: 0, bytes }))
        })
    })
}

/// Parses the payload. A payload that does not parse fails the job: no retry would change it.
fn job_of<J: Job>(context: &Context) -> Result<J, JobError> {
    serde_json::from_slice(context.payload().bytes()).map_err(|error| {
        let group = format!("{}-bad-payload", context.queue());
        JobError::fail(group, format!("the payload is no {} job: {error}", context.klass()))
    })
}

/// The JSON of a handler's value. `()` is no result.
fn output<R: Serialize>(value: R) -> Result<JobOutput, JobError> {
    let json =
        serde_json::to_string(&value).map_err(|error| JobError::from(error).give_up().group("bad-result"))?;
    if json == "null" {
        return Ok(JobOutput::default());
    }
    Ok(JobOutput::with_result(JobResult { code: 0, bytes: json.into() }))
}

/// Chooses the handler of a job by its klass.
#[derive(Clone)]
pub(crate) struct Router {
    by_klass: Arc<HashMap<String, Handler>>,
    other: Option<JobService>,
}

impl Router {
    pub(crate) fn new(by_klass: HashMap<String, Handler>, other: Option<JobService>) -> Router {
        Router { by_klass: Arc::new(by_klass), other }
    }
}

impl Service<JobRequest> for Router {
    type Response = JobOutput;
    type Error = BoxError;
    type Future = Running;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        // Which service has to be ready is known only with the job.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: JobRequest) -> Running {
        match (self.by_klass.get(request.context.klass().as_str()), &self.other) {
            (Some(handler), _) => handler(request.context),
            (None, Some(other)) => Box::pin(other.clone().oneshot(request)),
            (None, None) => {
                let why = format!("no handler of this worker runs klass {}", request.context.klass());
                Box::pin(std::future::ready(Err(JobError::release(why).into_service_error())))
            }
        }
    }
}
