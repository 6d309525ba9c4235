//! Interruptions: a cancelled job, a lost lock and a timeout stop the handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use geartrain_core::{
    Answer, Backend, Call, Cancel, Command, Jid, ManualClock, Pending, Pop, PopReply, Put, PutOptions,
    QueueName, Seconds, SetConfig, StateName, Subscription, Timeout, Timestamp, WorkerName,
};
use geartrain_store::StoreBackend;
use geartrain_worker::{Context, Interruption, JobError, Worker};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::support::{job, memory, put, run, state};

fn jid() -> Jid {
    Jid::new("j1").unwrap()
}

/// Starts a job whose handler waits for its interruption, interrupts it, and returns what the handler saw.
async fn interrupted_by<Fut: Future>(
    interrupt: impl FnOnce(std::sync::Arc<dyn geartrain_core::Backend>) -> Fut,
) -> Interruption {
    let backend = memory();
    run(&backend, put("mail", "j1", "k", "")).await;
    let (started, mut starts) = mpsc::unbounded_channel();
    let (seen, mut sights) = mpsc::unbounded_channel();
    let stop = Arc::new(Notify::new());
    let worker = Worker::new(backend.clone())
        .queues(["mail"])
        .on_klass("k", move |_, _, cx: Context| {
            let (started, seen) = (started.clone(), seen.clone());
            async move {
                started.send(()).unwrap();
                seen.send(cx.interrupted().await).unwrap();
                Ok("discarded")
            }
        })
        .once(true);
    let stopped = stop.clone();
    let worker = tokio::spawn(async move { worker.run_until(stopped.notified()).await });
    starts.recv().await.unwrap();
    interrupt(backend.clone()).await;
    let interruption = sights.recv().await.unwrap();
    let report = worker.await.unwrap().unwrap();
    assert_eq!((report.lost, report.attempts()), (1, 1));
    interruption
}

#[tokio::test]
async fn a_cancelled_job_interrupts_its_handler_and_discards_its_value() {
    let interruption = interrupted_by(|backend| async move {
        assert_eq!(run(&backend, Cancel::new(vec![jid()])).await, 1);
    });
    assert_eq!(interruption.await, Interruption::Cancelled);
}

#[tokio::test]
async fn a_lost_lock_interrupts_the_handler_and_discards_its_value() {
    let interruption = interrupted_by(|backend| async move {
        run(&backend, Timeout { jids: vec![jid()] }).await;
    });
    assert_eq!(interruption.await, Interruption::LockLost);
}

#[tokio::test]
async fn a_put_of_a_running_job_counts_as_a_lost_lock() {
    let interruption = interrupted_by(|backend| async move {
        let existing = geartrain_core::Existing::Replace;
        run(&backend, Put { existing, ..put("mail", "j1", "other", "") }).await;
    });
    assert_eq!(interruption.await, Interruption::LockLost);
}

#[tokio::test]
async fn a_handler_that_ignores_its_interruption_is_dropped() {
    struct OnDrop(mpsc::UnboundedSender<()>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let backend = memory();
    let options = PutOptions { attempt_max: Some(Seconds::from(1)), ..PutOptions::default() };
    run(&backend, Put { options: Some(Box::new(options)), ..put("mail", "j1", "k", "") }).await;
    let (dropped, mut drops) = mpsc::unbounded_channel();
    let report = Worker::new(backend.clone())
        .queues(["mail"])
        .on_klass("k", move |_, _, _| {
            let guard = OnDrop(dropped.clone());
            async move {
                let _guard = guard;
                std::future::pending::<Result<&str, JobError>>().await
            }
        })
        .cleanup(Duration::ZERO)
        .once(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    drops.recv().await.unwrap();
    assert_eq!((report.retried + report.lost, report.attempts()), (1, 1));
    // The worker has reported it, or the queue has ended the attempt at its deadline.
    let job = job(&backend, "j1").await;
    assert_eq!((job.remaining, job.attempts.len()), (4, 1));
}

#[tokio::test]
async fn locks_are_renewed_while_handlers_run_even_if_they_block_the_executor() {
    let backend = memory();
    run(&backend, SetConfig { option: "heartbeat".into(), value: "1".into(), any: false }).await;
    run(&backend, put("mail", "j1", "k", "")).await;
    let others = Arc::new(Mutex::new(Vec::<PopReply>::new()));
    let (rival, seen) = (backend.clone(), others.clone());
    Worker::new(backend.clone())
        .queues(["mail"])
        .on_klass("k", move |_, _, _| {
            // Blocks this test's only thread until another worker has asked for longer than two locks.
            let (rival, seen) = (rival.clone(), seen.clone());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let queue = geartrain_core::QueueName::new("mail").unwrap();
                    let worker = geartrain_core::WorkerName::new("rival").unwrap();
                    let pop = geartrain_core::Pop::new(queue, worker);
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    let reply = runtime.block_on(rival.pop_or_wait(pop, Seconds::from(3))).unwrap();
                    seen.lock().push(reply);
                });
            });
            std::future::ready(Ok("done"))
        })
        .once(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    assert!(others.lock()[0].jobs.is_empty(), "the lock expired");
    assert_eq!(state(&backend, "j1").await, StateName::Complete);
}

/// A queue whose first pop is answered to a process that is stopped (SIGSTOP): when it goes on, the lock has expired
/// and another worker has the job.
struct Stopped {
    inner: Arc<dyn Backend>,
    clock: Arc<ManualClock>,
    has_stopped: AtomicBool,
}

impl Backend for Stopped {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        Box::pin(async move {
            let is_pop = batch.iter().any(|call| matches!(call.command, Command::Pop(_)));
            let answers = self.inner.execute(batch).await?;
            if is_pop && !self.has_stopped.swap(true, Ordering::SeqCst) {
                self.clock.advance(1_000);
                let (mail, rival) = (QueueName::new("mail").unwrap(), WorkerName::new("rival").unwrap());
                assert_eq!(run(&self.inner, Pop::new(mail, rival)).await.jobs[0].jid, jid());
            }
            Ok(answers)
        })
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        self.inner.pop_or_wait(pop, wait)
    }

    fn now(&self) -> Option<Timestamp> {
        self.inner.now()
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.inner.subscribe()
    }
}

#[tokio::test]
async fn a_job_that_was_lost_before_the_reply_to_its_pop_came_is_not_started() {
    let clock = ManualClock::new();
    let inner: Arc<dyn Backend> = Arc::new(StoreBackend::in_memory(clock.clone()).unwrap());
    run(&inner, SetConfig::new("grace-period", "0")).await;
    for jid in ["j1", "j2"] {
        run(&inner, put("mail", jid, "k", "")).await;
    }
    let began = Arc::new(Mutex::new(Vec::new()));
    let begins = began.clone();
    let backend: Arc<dyn Backend> = Arc::new(Stopped { inner, clock, has_stopped: AtomicBool::new(false) });
    let report = Worker::new(backend)
        .queues(["mail"])
        .on_klass("k", move |_, _, cx: Context| {
            begins.lock().push(cx.jid().to_string());
            std::future::ready(Ok(""))
        })
        .once(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    assert_eq!((report.completed, report.attempts()), (1, 1));
    assert_eq!(*began.lock(), ["j2"]);
}
