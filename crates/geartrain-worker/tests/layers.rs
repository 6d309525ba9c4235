//! Middleware: tower's own layers, and layers of users.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use geartrain_core::StateName;
use geartrain_worker::{CatchPanicLayer, JobError, JobOutput, JobRequest, TraceLayer, Worker};
use tower::limit::ConcurrencyLimitLayer;
use tower::timeout::TimeoutLayer;
use tower::{BoxError, Layer, Service};

use crate::support::{job, memory, put, run, state};

/// Counts requests.
#[derive(Clone)]
struct CountLayer(Arc<AtomicUsize>);

#[derive(Clone)]
struct Count<S>(S, Arc<AtomicUsize>);

impl<S> Layer<S> for CountLayer {
    type Service = Count<S>;
    fn layer(&self, inner: S) -> Count<S> {
        Count(inner, self.0.clone())
    }
}

impl<S: Service<JobRequest, Response = JobOutput, Error = BoxError>> Service<JobRequest> for Count<S> {
    type Response = JobOutput;
    type Error = BoxError;
    type Future = S::Future;
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }
    fn call(&mut self, request: JobRequest) -> S::Future {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.call(request)
    }
}

#[tokio::test]
async fn layers_wrap_all_handlers() {
    let backend = memory();
    for number in 0..20 {
        let klass = if number % 2 == 0 { "even" } else { "odd" };
        run(&backend, put("mail", &format!("j{number}"), klass, "")).await;
    }
    let (counted, (now, most)) =
        (Arc::new(AtomicUsize::new(0)), <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default());
    let (running, peak) = (now.clone(), most.clone());
    let handler = move |_, _, _| {
        let (running, peak) = (running.clone(), peak.clone());
        async move {
            peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, JobError>("")
        }
    };
    Worker::new(backend)
        .queues(["mail"])
        .on_klass("even", handler.clone())
        .on_klass("odd", handler)
        .layer(CatchPanicLayer)
        .layer(ConcurrencyLimitLayer::new(3))
        .layer(CountLayer(counted.clone()))
        .layer(TraceLayer)
        .concurrency(10)
        .drain(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    assert_eq!(counted.load(Ordering::Relaxed), 20);
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)));
}

#[tokio::test]
async fn a_timeout_layer_retries_the_job() {
    let backend = memory();
    run(&backend, put("mail", "j1", "k", "")).await;
    Worker::new(backend.clone())
        .queues(["mail"])
        .on_klass("k", async |_, _, _| std::future::pending::<Result<&str, JobError>>().await)
        .layer(TimeoutLayer::new(Duration::from_millis(1)))
        .once(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    let job = job(&backend, "j1").await;
    assert_eq!((job.state.name(), job.remaining), (StateName::Scheduled, 4));
    assert_eq!(job.failure().unwrap().group.as_str(), "mail-timeout");
}

#[tokio::test]
async fn a_panic_below_a_layer_is_an_error_for_it() {
    let backend = memory();
    run(&backend, put("mail", "j1", "k", "")).await;
    Worker::new(backend.clone())
        .queues(["mail"])
        .on_klass("k", |_, _, _| -> std::future::Ready<Result<&str, JobError>> { panic!("at once") })
        .layer(CatchPanicLayer)
        .once(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    assert_eq!(state(&backend, "j1").await, StateName::Failed);
    assert_eq!(job(&backend, "j1").await.failure().unwrap().message, "at once");
}
