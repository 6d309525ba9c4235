//! Outages: a worker whose queue cannot be reached says so once, tries again, and loses nothing.

use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{Backend, StateName};
use geartrain_redis::{RedisBackend, RedisUrl};
use geartrain_testkit::peers::RedisServer;
use geartrain_worker::{Context, Worker, WorkerError, WorkerEvent};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::support::{put, run, state};

async fn connect(redis: &RedisServer) -> Arc<dyn Backend> {
    // A call fails after a second without a Redis.
    let url: RedisUrl = format!("{}?patience=1", redis.url()).parse().unwrap();
    Arc::new(RedisBackend::connect(url).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_goes_on_after_an_outage_and_reports_what_ended_meanwhile() {
    let mut redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let backend = connect(&redis).await;
    for jid in ["during", "after"] {
        run(&backend, put("mail", jid, "k", "")).await;
    }
    let (started, mut starts) = mpsc::unbounded_channel();
    let (down, stop) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let events = Arc::new(Mutex::new(Vec::new()));
    let (seen, is_down, told) = (events.clone(), down.clone(), Arc::new(Notify::new()));
    let unreachable = told.clone();
    let worker = Worker::new(backend.clone())
        .queues(["mail"])
        .concurrency(1)
        .on_klass("k", move |_, _, cx: Context| {
            started.send(cx.jid().to_string()).unwrap();
            let is_down = is_down.clone();
            async move {
                if cx.jid().to_string() == "during" {
                    is_down.notified().await;
                }
                Ok("")
            }
        })
        .observe(move |event| match event {
            WorkerEvent::Unreachable(_) => {
                seen.lock().push("unreachable");
                unreachable.notify_one();
            }
            WorkerEvent::Reachable(_) => seen.lock().push("reachable"),
            _ => {}
        });
    let stopped = stop.clone();
    let worker = tokio::spawn(async move { worker.run_until(stopped.notified()).await });
    assert_eq!(starts.recv().await.unwrap(), "during");
    redis.kill();
    // The handler ends, and its report finds no Redis.
    down.notify_one();
    told.notified().await;
    redis.start_again();
    assert_eq!(starts.recv().await.unwrap(), "after");
    stop.notify_one();
    let report = worker.await.unwrap().unwrap();
    assert_eq!((report.completed, report.attempts()), (2, 2));
    assert_eq!(*events.lock(), ["unreachable", "reachable"]);
    for jid in ["during", "after"] {
        assert_eq!(state(&backend, jid).await, StateName::Complete, "{jid}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_may_end_if_its_queue_is_gone_for_too_long() {
    let mut redis = RedisServer::start(&[]);
    let backend = connect(&redis).await;
    redis.kill();
    let error = Worker::new(backend)
        .queues(["mail"])
        .on_klass("k", async |payload, _, _| Ok(payload))
        .exit_unhealthy(Duration::from_millis(100))
        .run_until(std::future::pending::<()>())
        .await
        .unwrap_err();
    assert!(matches!(error, WorkerError::Unhealthy(_)), "{error}");
}
