//! The store frees unused names by itself, and they stay freed after a restart.

use std::path::Path;

use geartrain_core::*;
use geartrain_store::{StoreBackend, StoreOptions};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::scaled;
use pollster::block_on;

use crate::scratch::Scratch;

const DAY: i32 = 86_400;

fn run<O: Operation>(backend: &StoreBackend, operation: O) -> O::Reply {
    let answer = block_on(backend.execute(vec![operation.into().into()])).unwrap().remove(0);
    O::answer(answer.unwrap()).unwrap()
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

/// A worker per connection, as in Gearman: each takes a job and is never seen again.
fn connect_once(backend: &StoreBackend, n: usize) {
    let jid = Jid::new(format!("j{n}")).unwrap();
    run(backend, Put::new(queue("mail"), jid.clone(), Klass::new("k").unwrap(), "{}"));
    let worker = WorkerName::new(format!("connection-{n}")).unwrap();
    let job = run(backend, Pop::new(queue("mail"), worker)).jobs.remove(0);
    run(backend, Complete::new(jid, Holder::Token(job.lock.token)));
}

/// How many names a directory has when it is opened again.
fn names(directory: &Path) -> u64 {
    geartrain_store::check(directory).unwrap().memory.names
}

#[test]
fn names_of_workers_seen_once_are_freed_with_their_jobs() {
    let directory = Scratch::new("names");
    let clock = ManualClock::new();
    let open = || StoreBackend::open(directory.path(), StoreOptions::default(), clock.clone()).unwrap();
    let backend = open();
    run(&backend, SetConfig::new("jobs-history", "3600"));
    connect_once(&backend, 0);
    drop(backend);
    let before = names(directory.path());
    let backend = open();
    let connections = scaled(500, 20_000);
    for n in 1..=connections {
        connect_once(&backend, n);
    }
    assert_eq!(run(&backend, Workers).len(), connections + 1);
    // Old jobs are removed when another completes, and workers are examined after a day.
    clock.advance(DAY + 1);
    connect_once(&backend, connections + 1);
    // A thousand names are examined at a time, and commands are answered after that.
    for _ in 0..connections / 200 + 5 {
        clock.advance(1.5);
        run(&backend, Length { queue: queue("mail") });
    }
    // The removal is written together with the next change.
    run(&backend, SetConfig::new("jobs-history", "3600"));
    drop(backend);
    assert_eq!(names(directory.path()), before, "one queue, one klass and the last worker");
    // It works as if nothing had been freed.
    connect_once(&open(), connections + 2);
}
