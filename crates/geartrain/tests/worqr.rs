//! Worqr's queues through a client and a worker.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use geartrain::{
    Client, Context, Interruption, JobEnding, JobError, NO_JID, Payload, QueueName, State, Worker,
    WorkerLost, WorkerName, WorqrBackend,
};
use geartrain_testkit::peers::RedisServer;

type Ran = Arc<Mutex<Vec<String>>>;

/// A timer that does not run out in a test, and no pause after a failure.
const OPTIONS: &str = "?timer=60&heartbeat=0.1&reap=0.1&backoff=0&retries=1";

async fn connect(redis: &RedisServer) -> (Arc<WorqrBackend>, Client) {
    let url = format!("worqr+{}{OPTIONS}", redis.url());
    let backend = Arc::new(WorqrBackend::connect(url.parse().unwrap()).await.unwrap());
    (backend.clone(), Client::new(backend))
}

#[tokio::test]
async fn a_worker_does_tasks_and_clients_get_the_results() {
    let redis = RedisServer::start(&[]);
    let (_, client) = connect(&redis).await;
    assert_eq!(client.put("sums", "sums", "1").await.unwrap().to_string(), NO_JID);
    let other = geartrain::connect(&format!("worqr+{}{OPTIONS}", redis.url())).await.unwrap();
    let asking = tokio::spawn(async move {
        let put = other.put("sums", "sums", "2");
        let ended = other.put_and_wait(put, Some(Duration::from_secs(60))).await.unwrap();
        let failed = other.put_and_wait(other.put("sums", "sums", "bad"), None).await.unwrap();
        (ended, failed)
    });
    let ran = Ran::default();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::new(client.backend().clone())
        .with_state(ran.clone())
        .queues(["sums"])
        .concurrency(3)
        .on_klass("sums", async |task: Payload, State(ran): State<Ran>, _: Context| {
            let task = task.text().unwrap().to_owned();
            ran.lock().unwrap().push(task.clone());
            match task.as_str() {
                "bad" => Err(JobError::retry("no sum")),
                task => Ok(format!("{task} done")),
            }
        })
        .run_until(stopped);
    let working = tokio::spawn(worker);
    let (ended, failed) = asking.await.unwrap();
    assert_eq!(ended.ending, JobEnding::Completed);
    assert!(ended.result.bytes.text().unwrap().contains("2 done"));
    assert!(matches!(failed.ending, JobEnding::Failed { message, .. } if message == "no sum"));
    stop.send(()).unwrap();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.completed, report.retried + report.failed), (2, 2));
    let mut ran = ran.lock().unwrap().clone();
    ran.sort();
    assert_eq!(ran, ["1", "2", "bad", "bad"], "retried once, as the URL says");
}

/// What a handler sends to the test: the task that it has, and why it was interrupted.
type Said = tokio::sync::mpsc::UnboundedSender<(String, Option<Interruption>)>;

#[tokio::test]
async fn handlers_are_told_that_a_task_is_cancelled_or_its_lock_lost() {
    let redis = RedisServer::start(&[]);
    let (backend, client) = connect(&redis).await;
    client.put("q", "q", "first").await.unwrap();
    let (said, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let attempts = Arc::new(AtomicUsize::new(0));
    let worker = Worker::new(client.backend().clone())
        .name("w1")
        .with_state((said, attempts))
        .queues(["q"])
        .on_klass(
            "q",
            async |task: Payload,
                   State((said, attempts)): State<(Said, Arc<AtomicUsize>)>,
                   context: Context| {
                let task = task.text().unwrap().to_owned();
                said.send((task.clone(), None)).unwrap();
                if attempts.fetch_add(1, Ordering::Relaxed) < 2 {
                    let why = context.interrupted().await;
                    said.send((task, Some(why))).unwrap();
                }
                Ok::<_, JobError>("")
            },
        )
        .run_until(stopped);
    let working = tokio::spawn(worker);
    let mut next = async || hears.recv().await.unwrap();
    assert_eq!(next().await, ("first".to_owned(), None));
    let queue = QueueName::new("q").unwrap();
    assert_eq!(backend.cancel_tasks(queue, "first".into()).await.unwrap(), 0, "it does not wait");
    assert_eq!(next().await, ("first".to_owned(), Some(Interruption::Cancelled)));
    client.put("q", "q", "second").await.unwrap();
    assert_eq!(next().await, ("second".to_owned(), None));
    // As if its timer had run out in a long pause: another process fails it.
    let (_, other) = connect(&redis).await;
    let lost = WorkerLost { worker: WorkerName::new("w1").unwrap(), evidence: None };
    assert_eq!(other.run(lost).await.unwrap().len(), 1);
    // It goes on under another ID, maybe before the handler is told.
    let mut both = [next().await.1, next().await.1];
    both.sort_by_key(Option::is_some);
    assert_eq!(both, [None, Some(Interruption::LockLost)]);
    stop.send(()).unwrap();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.completed, report.lost), (1, 2));
}
