//! Stopping: no job stays locked without a holder, none is lost, and no retry is used up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use geartrain_core::{
    Answer, Backend, Call, Count, Jobs, Length, Listing, Page, Pending, Pop, PopReply, QueueName, Seconds,
    SetConfig, StateName, Subscription, Timestamp, WorkerJobs, WorkerName,
};
use geartrain_worker::{Context, JobError, Worker};
use tokio::sync::{Notify, oneshot};

use crate::support::{job, memory, put, run, state};

fn queue() -> QueueName {
    QueueName::new("mail").unwrap()
}

#[tokio::test]
async fn running_jobs_end_within_the_grace_period() {
    let backend = memory();
    run(&backend, put("mail", "j1", "k", "")).await;
    run(&backend, put("mail", "j2", "k", "")).await;
    let started = Arc::new(Notify::new());
    let starts = started.clone();
    let report = Worker::new(backend.clone())
        .queues(["mail"])
        .on_klass("k", move |_, _, cx: Context| {
            starts.notify_one();
            async move {
                cx.stopping().cancelled().await;
                Ok("in time")
            }
        })
        .concurrency(1)
        .run_until(started.notified())
        .await
        .unwrap();
    assert_eq!((report.completed, report.attempts()), (1, 1));
    assert_eq!(state(&backend, "j1").await, StateName::Complete);
    assert_eq!(state(&backend, "j2").await, StateName::Waiting);
}

#[tokio::test]
async fn what_takes_longer_than_the_grace_period_is_handed_back_at_no_cost() {
    let backend = memory();
    run(&backend, put("mail", "j1", "k", "")).await;
    let started = Arc::new(Notify::new());
    let starts = started.clone();
    let report = Worker::new(backend.clone())
        .queues(["mail"])
        .on_klass("k", move |_, _, _| {
            starts.notify_one();
            std::future::pending::<Result<&str, JobError>>()
        })
        .grace(Duration::ZERO)
        .cleanup(Duration::ZERO)
        .run_until(started.notified())
        .await
        .unwrap();
    assert_eq!((report.released, report.attempts()), (1, 1));
    let job = job(&backend, "j1").await;
    assert_eq!((job.state.name(), job.remaining), (StateName::Waiting, 5));
    assert_eq!(job.attempts[0].message.as_deref(), Some("the worker was stopped"));
}

#[tokio::test]
async fn a_dropped_worker_hands_its_jobs_back() {
    let backend = memory();
    run(&backend, put("mail", "j1", "k", "")).await;
    let started = Arc::new(Notify::new());
    let starts = started.clone();
    let worker = Worker::new(backend.clone()).queues(["mail"]).on_klass("k", move |_, _, _| {
        starts.notify_one();
        std::future::pending::<Result<&str, JobError>>()
    });
    tokio::select! {
        _ = worker.run_until(std::future::pending::<()>()) => panic!("it does not end by itself"),
        () = started.notified() => {}
    }
    // The release was sent when the worker was dropped; a parked pop gets the job after it.
    let pop = geartrain_core::Pop::new(queue(), WorkerName::new("other").unwrap());
    let reply = backend.pop_or_wait(pop, 30.into()).await.unwrap();
    assert_eq!((reply.jobs.len(), reply.jobs[0].remaining), (1, 5));
}

/// All jobs of a queue in one state.
async fn jids(backend: &Arc<dyn Backend>, which: Listing) -> usize {
    let page = Page { offset: 0, count: Count::new(10_000).unwrap() };
    run(backend, Jobs { which, page }).await.len()
}

/// Stops workers at random moments under load. Every job is then complete or waits, with all its retries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stop_leaves_a_job_locked_or_uses_up_a_retry() {
    let stops = geartrain_testkit::scaled(200, 10_000);
    let backend = memory();
    // The long size completes 200,000 jobs, and each is looked up at the end.
    run(&backend, SetConfig::new("jobs-history-count", "1000000")).await;
    let mut rng = fastrand::Rng::with_seed(7041);
    let (mut put_so_far, handled) = (0, Arc::new(AtomicU64::new(0)));
    for _ in 0..stops {
        let end = put_so_far + rng.u64(1..40);
        for number in put_so_far..end {
            run(&backend, put("mail", &format!("j{number}"), "k", "")).await;
        }
        put_so_far = end;
        let (notify, stop_at) = (Arc::new(Notify::new()), handled.load(Ordering::SeqCst) + rng.u64(0..40));
        let (seen, stop, slow) = (handled.clone(), notify.clone(), rng.u32(0..3));
        let worker = Worker::new(backend.clone())
            .name("w1")
            .queues(["mail"])
            .on_klass("k", move |_, _, _| {
                if seen.fetch_add(1, Ordering::SeqCst) >= stop_at {
                    stop.notify_one();
                }
                async move {
                    for _ in 0..slow {
                        tokio::task::yield_now().await;
                    }
                    Ok("")
                }
            })
            .concurrency(rng.usize(1..20))
            .grace(if rng.bool() { Duration::ZERO } else { Duration::from_secs(30) })
            .cleanup(Duration::ZERO);
        let hurried = rng.bool();
        let stopped = async {
            if hurried {
                tokio::task::yield_now().await;
            } else {
                tokio::select! {
                    () = notify.notified() => {}
                    () = tokio::time::sleep(Duration::from_millis(rng.u64(0..5))) => {}
                }
            }
        };
        worker.run_until(stopped).await.unwrap();
        let held = run(&backend, WorkerJobs { worker: WorkerName::new("w1").unwrap() }).await;
        assert_eq!((held.jobs.len(), held.stalled.len()), (0, 0), "after {put_so_far} jobs");
        assert_eq!(jids(&backend, Listing::Running(queue())).await, 0);
        assert_eq!(jids(&backend, Listing::Scheduled(queue())).await, 0, "a retry was used up");
    }
    // The rest can be worked off, and every job is complete in its first attempt.
    let report = Worker::new(backend.clone())
        .queues(["mail"])
        .on_klass("k", async |_, _, cx: Context| {
            assert_eq!(cx.attempt(), 1);
            Ok("")
        })
        .drain(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    assert_eq!(report.attempts(), report.completed);
    assert_eq!(jids(&backend, Listing::Waiting(queue())).await, 0);
    for number in 0..put_so_far {
        assert_eq!(state(&backend, &format!("j{number}")).await, StateName::Complete);
    }
}

/// A queue whose replies to parked pops are on their way for a while, also if the caller does not wait for them.
struct SlowReplies(Arc<dyn Backend>);

impl Backend for SlowReplies {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        self.0.execute(batch)
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        let (inner, (sender, receiver)) = (self.0.clone(), oneshot::channel());
        tokio::spawn(async move {
            let reply = inner.pop_or_wait(pop, wait).await;
            // Replies to other calls, sent later, arrive earlier.
            for _ in 0..3 {
                run(&inner, Length { queue: queue() }).await;
            }
            let _ = sender.send(reply);
        });
        Box::pin(async { receiver.await.expect("it is sent") })
    }

    fn now(&self) -> Option<Timestamp> {
        self.0.now()
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.0.subscribe()
    }
}

#[tokio::test]
async fn a_worker_that_drains_runs_the_retry_whose_pop_is_on_its_way() {
    for _ in 0..5 {
        let backend: Arc<dyn Backend> = Arc::new(SlowReplies(memory()));
        run(&backend, put("mail", "j1", "k", "")).await;
        let report = Worker::new(backend.clone())
            .queues(["mail"])
            .on_klass("k", async |_, _, cx: Context| {
                // With slots that are free, the worker waits for more jobs meanwhile.
                tokio::task::yield_now().await;
                match cx.attempt() {
                    1 => Err(JobError::retry("again").after(Duration::ZERO)),
                    _ => Ok(""),
                }
            })
            .concurrency(4)
            .drain(true)
            .run_until(std::future::pending::<()>())
            .await
            .unwrap();
        assert_eq!((report.retried, report.completed), (1, 1));
    }
}
