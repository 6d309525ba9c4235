//! The harness itself: a run without faults is clean, and each kind of broken promise is found.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use geartrain_core::SystemClock;
use geartrain_core::{
    Backend, Call, Command, Complete, Count, Existing, Get, Group, Holder, Jid, Klass, Pop, Popped, Put,
    QueueName, Reply, Unfail, WorkerName,
};
use geartrain_drill::{Ledger, LoadClients, Verdict};
use geartrain_store::StoreBackend;
use pollster::block_on;

/// A backend in memory, and the ledger of clients that worked on it.
fn worked() -> (Arc<dyn Backend>, Ledger) {
    let backend: Arc<dyn Backend> = Arc::new(StoreBackend::in_memory(Arc::new(SystemClock)).unwrap());
    let clients = LoadClients::start(4, "c", || Ok(backend.clone())).unwrap();
    clients.wait_for_completed(200).unwrap();
    let ledger = clients.finish();
    (backend, ledger)
}

fn run(backend: &dyn Backend, command: impl Into<Command>) -> Reply {
    block_on(backend.execute(vec![Call::from(command)])).unwrap().pop().unwrap().unwrap()
}

fn verify(backend: &dyn Backend, ledger: &Ledger) -> Verdict {
    ledger.verify(backend).unwrap()
}

/// A job that the clients completed.
fn completed(ledger: &Ledger) -> Jid {
    ledger.completed.iter().next().unwrap().clone()
}

fn put_again(jid: &Jid, payload: &str) -> Put {
    let klass = Klass::new("drill").unwrap();
    let put = Put::new(QueueName::new("drill").unwrap(), jid.clone(), klass, payload);
    Put { existing: Existing::Replace, ..put }
}

#[test]
fn a_run_without_faults_keeps_every_promise() {
    let (backend, ledger) = worked();
    assert_eq!(ledger.unanswered, 0, "{:?}", ledger.errors);
    let verdict = verify(&*backend, &ledger);
    verdict.assert_kept();
    assert_eq!((verdict.lost, verdict.doubled), (0, 0));
    assert_eq!(verdict.promised, ledger.acknowledged());
}

#[test]
fn a_missing_job_is_lost() {
    let (backend, mut ledger) = worked();
    let jid = Jid::new("never-put").unwrap();
    ledger.put.insert(jid.clone());
    let verdict = verify(&*backend, &ledger);
    assert_eq!((verdict.lost, verdict.doubled), (1, 0), "{verdict:?}");
    assert_eq!(verdict.violations, [format!("{jid} was put and is missing")]);
}

#[test]
fn a_completion_that_is_undone_is_lost() {
    let (backend, ledger) = worked();
    let jid = completed(&ledger);
    let payload = match run(&*backend, Get { jid: jid.clone() }) {
        Reply::Get(Some(job)) => job.payload,
        other => panic!("{other:?}"),
    };
    run(&*backend, Put { payload, ..put_again(&jid, "") });
    let verdict = verify(&*backend, &ledger);
    assert_eq!((verdict.lost, verdict.doubled), (1, 0), "{verdict:?}");
    assert_eq!(verdict.violations, [format!("{jid} is waiting, and the acknowledgement said complete")]);
}

#[test]
fn a_failure_that_is_undone_is_lost() {
    let (backend, ledger) = worked();
    let failed = ledger.failed.len() as u64;
    assert!(failed > 0);
    let unfail = Unfail {
        group: Group::new("drill").unwrap(),
        queue: QueueName::new("drill").unwrap(),
        count: Count::MAX,
    };
    run(&*backend, unfail);
    let verdict = verify(&*backend, &ledger);
    assert_eq!((verdict.lost, verdict.doubled), (failed, 0), "{verdict:?}");
}

#[test]
fn a_payload_that_changed_is_lost() {
    let (backend, ledger) = worked();
    let jid = completed(&ledger);
    run(&*backend, put_again(&jid, "{}"));
    let pop = Pop::new(QueueName::new("drill").unwrap(), WorkerName::new("other").unwrap());
    let popped: Vec<Popped> = match run(&*backend, Pop { count: Count::MAX, ..pop }) {
        Reply::Pop(reply) => reply.jobs,
        other => panic!("{other:?}"),
    };
    for job in popped {
        run(&*backend, Complete::new(job.jid, Holder::Token(job.lock.token)));
    }
    let verdict = verify(&*backend, &ledger);
    assert_eq!((verdict.lost, verdict.doubled), (1, 0), "{verdict:?}");
    assert_eq!(verdict.violations, [format!("{jid} has another payload than the one that was put")]);
}
