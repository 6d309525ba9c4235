//! Resuming: a restarted worker goes on with its own jobs under new locks.

use std::sync::Arc;

use geartrain_core::{Complete, Count, Pop, QueueName, Refusal, StateName, WorkerName};
use geartrain_worker::{Context, Worker};
use parking_lot::Mutex;

use crate::support::{job, memory, put, run, state};

#[tokio::test]
async fn a_resumed_worker_goes_on_with_its_jobs_before_it_takes_others() {
    let backend = memory();
    for jid in ["a", "b", "c", "new"] {
        run(&backend, put("mail", jid, "k", "")).await;
    }
    // The earlier process of this name had three jobs.
    let (mail, name) = (QueueName::new("mail").unwrap(), WorkerName::new("w1").unwrap());
    let pop = Pop { count: Count::new(3).unwrap(), ..Pop::new(mail, name) };
    let left = run(&backend, pop).await.jobs;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let report = Worker::new(backend.clone())
        .name("w1")
        .resume(true)
        .queues(["mail"])
        .concurrency(2)
        .on_klass("k", move |_, _, cx: Context| {
            log.lock().push((cx.jid().to_string(), cx.attempt()));
            std::future::ready(Ok(""))
        })
        .drain(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    assert_eq!((report.completed, report.attempts()), (4, 4));
    let seen: Vec<(String, u32)> = seen.lock().clone();
    let order: Vec<&str> = seen.iter().map(|(jid, _)| jid.as_str()).collect();
    assert_eq!((order[3], seen.iter().all(|(_, attempt)| *attempt == 1)), ("new", true), "{seen:?}");
    for jid in ["a", "b", "c", "new"] {
        assert_eq!(state(&backend, jid).await, StateName::Complete);
        assert_eq!(job(&backend, jid).await.remaining, 5);
    }
    // The earlier process, if it lives, is refused.
    let late = Complete::new(left[0].jid.clone(), left[0].holder());
    let answers = backend.execute(vec![late.into()]).await.unwrap();
    assert!(
        matches!(answers[0], Err(Refusal::LockLost { .. } | Refusal::NotRunning { .. })),
        "{:?}",
        answers[0]
    );
}
