//! Names that nothing needs any more are freed by the store itself, and stay so when it is opened
//! again.

use std::path::{Path, PathBuf};

use geartrain_core::*;
use geartrain_store::{StoreBackend, StoreOptions};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::scaled;
use pollster::block_on;

const DAY: i32 = 86_400;

fn run<O: Operation>(backend: &StoreBackend, operation: O) -> O::Reply {
    let answer = block_on(backend.execute(vec![operation.into().into()])).unwrap().remove(0);
    O::answer(answer.unwrap()).unwrap()
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

/// A worker per connection, as Gearman has them: each takes a job and is never seen again.
fn connect_once(backend: &StoreBackend, n: usize) {
    let jid = Jid::new(format!("j{n}")).unwrap();
    run(backend, Put::new(queue("mail"), jid.clone(), Klass::new("k").unwrap(), "{}"));
    let worker = WorkerName::new(format!("connection-{n}")).unwrap();
    let job = run(backend, Pop::new(queue("mail"), worker)).jobs.remove(0);
    run(backend, Complete::new(jid, Holder::Token(job.lock.token)));
}

/// How many names there are in a directory when it is opened again.
fn names(directory: &Path) -> u64 {
    geartrain_store::check(directory).unwrap().census.names
}

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        Scratch(std::env::temp_dir().join(format!("geartrain-names-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn workers_that_come_once_vanish_with_their_jobs() {
    let directory = Scratch::new();
    let clock = ManualClock::new();
    let open = || StoreBackend::open(&directory.0, StoreOptions::default(), clock.clone()).unwrap();
    let backend = open();
    run(&backend, SetConfig { option: "jobs-history".into(), value: "3600".into() });
    connect_once(&backend, 0);
    drop(backend);
    let before = names(&directory.0);
    let backend = open();
    let connections = scaled(500, 20_000);
    for n in 1..=connections {
        connect_once(&backend, n);
    }
    assert_eq!(run(&backend, Workers).len(), connections + 1);
    // Old jobs are dropped when another completes, and workers are examined when a day has passed.
    clock.advance(DAY + 1);
    connect_once(&backend, connections + 1);
    // A thousand names are examined at a time, and what is asked is answered after that.
    for _ in 0..connections / 200 + 5 {
        clock.advance(1.5);
        run(&backend, Length { queue: queue("mail") });
    }
    // What was removed is written together with what is done next.
    run(&backend, SetConfig { option: "jobs-history".into(), value: "3600".into() });
    drop(backend);
    assert_eq!(names(&directory.0), before, "one queue, one klass and the last worker");
    // It goes on as if nothing had been freed.
    connect_once(&open(), connections + 2);
}
