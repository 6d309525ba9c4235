//! Layers that the worker provides: a span for each attempt, and panics as errors.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tower::{BoxError, Layer, Service};
use tracing::Instrument;

use crate::{JobError, JobOutput, JobRequest};

/// Runs each attempt in a [`tracing`] span with its job id, klass, queue and attempt, and the trace that the
/// put named.
#[derive(Debug, Clone, Copy, Default)]
pub struct TraceLayer;

/// The service of [`TraceLayer`].
#[derive(Debug, Clone)]
pub struct Trace<S>(S);

impl<S> Layer<S> for TraceLayer {
    type Service = Trace<S>;
    fn layer(&self, inner: S) -> Trace<S> {
        Trace(inner)
    }
}

impl<S: Service<JobRequest>> Service<JobRequest> for Trace<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = tracing::instrument::Instrumented<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: JobRequest) -> Self::Future {
        let job = &request.context;
        let span = tracing::info_span!(
            "job",
            jid = %job.jid(),
            klass = %job.klass(),
            queue = %job.queue(),
            attempt = job.attempt(),
            traceparent = job.traceparent(),
        );
        let _entered = span.clone().entered();
        self.0.call(request).instrument(span)
    }
}

/// Turns a panic into an error that fails the job with the panic's message. A worker does so for all jobs; the
/// layer is for services outside of a worker, and below layers that must see the error.
#[derive(Debug, Clone, Copy, Default)]
pub struct CatchPanicLayer;

/// The service of [`CatchPanicLayer`].
#[derive(Debug, Clone)]
pub struct CatchPanic<S>(S);

impl<S> Layer<S> for CatchPanicLayer {
    type Service = CatchPanic<S>;
    fn layer(&self, inner: S) -> CatchPanic<S> {
        CatchPanic(inner)
    }
}

impl<S> Service<JobRequest> for CatchPanic<S>
where
    S: Service<JobRequest, Response = JobOutput>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = JobOutput;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<JobOutput, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: JobRequest) -> Self::Future {
        let queue = request.context.queue().clone();
        // A service may panic before it returns its future.
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.0.call(request))) {
            Ok(attempt) => Box::pin(async move {
                match AssertUnwindSafe(attempt).catch_unwind().await {
                    Ok(ended) => ended.map_err(Into::into),
                    Err(panic) => Err(panicked(queue.as_str(), &*panic).into_service_error()),
                }
            }),
            Err(panic) => {
                let error = panicked(queue.as_str(), &*panic).into_service_error();
                Box::pin(std::future::ready(Err(error)))
            }
        }
    }
}

/// The failure of a job whose handler panicked. A panic is a bug, so the job is not retried.
pub(crate) fn panicked(queue: &str, panic: &(dyn Any + Send)) -> JobError {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    JobError::fail(format!("{queue}-panic"), message.unwrap_or("the handler panicked"))
}
