//! Worqr's queues: our backend beside peers that are written with plain Redis commands.

mod bad_keys;
mod peer;
mod refused;
mod set_aside;
mod streams;
mod together;
mod workers;

use std::sync::Arc;

use geartrain_core::{
    Backend, Call, Command, Complete, Count, Holder, Jid, JobResult, Klass, Operation, Pop, PopReply, Popped,
    Put, QueueName, Refusal, Seconds, WorkerName,
};
use geartrain_redis::worqr::WorqrBackend;
use geartrain_testkit::peers::{RedisServer, until};
use pollster::block_on;

use crate::peers::ask;

/// A timer that does not run out in a test.
const LONG: &str = "?timer=60&heartbeat=0.1&reap=0.1";
/// A wait that ends before with an event.
fn limit() -> Seconds {
    Seconds::from(60)
}

fn worqr(redis: &RedisServer, options: &str) -> Arc<WorqrBackend> {
    let url = format!("worqr+{}{options}", redis.url());
    Arc::new(block_on(WorqrBackend::connect(url.parse().unwrap())).unwrap())
}

fn run<O: Operation>(backend: &dyn Backend, operation: O) -> Result<O::Reply, Refusal> {
    let command: Command = operation.into();
    let mut answers = block_on(backend.execute(vec![Call::from(command)])).unwrap();
    answers.remove(0).map(|reply| O::answer(reply).unwrap())
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn worker(name: &str) -> WorkerName {
    WorkerName::new(name).unwrap()
}

fn jid(id: &str) -> Jid {
    Jid::new(id).unwrap()
}

fn put_in(name: &str, task: &[u8]) -> Put {
    Put::new(queue(name), jid("-"), Klass::new(name).unwrap(), task)
}

fn put(task: &str) -> Put {
    put_in("q", task.as_bytes())
}

fn pop(count: i64) -> Pop {
    Pop { count: Count::new(count).unwrap(), ..Pop::new(queue("q"), worker("w1")) }
}

fn take(backend: &dyn Backend, count: i64) -> Vec<Popped> {
    let PopReply { jobs, .. } = run(backend, pop(count)).unwrap();
    jobs
}

fn tasks(jobs: &[Popped]) -> Vec<&str> {
    jobs.iter().map(|job| job.payload.text().unwrap()).collect()
}

fn complete(job: &Popped) -> Complete {
    Complete::new(job.jid.clone(), job.holder())
}

fn complete_with(job: &Popped, result: &str) -> Complete {
    let result = JobResult { code: 0, bytes: result.into() };
    Complete { result: Some(Box::new(result)), ..complete(job) }
}

fn by(name: &str) -> Holder {
    Holder::Worker(worker(name))
}

/// Keys of the Redis, sorted.
fn keys(redis: &RedisServer) -> Vec<String> {
    let mut keys: Vec<String> = ask(redis.port(), &["KEYS", "*"]).unwrap();
    keys.sort();
    keys
}

/// Waiting tasks, the next one first.
fn waiting(redis: &RedisServer, name: &str) -> Vec<String> {
    let mut tasks: Vec<String> =
        ask(redis.port(), &["LRANGE", &format!("worqr:queues:{name}"), "0", "-1"]).unwrap();
    tasks.reverse();
    tasks
}

/// The IDs of all workers that are registered.
fn ids(redis: &RedisServer) -> Vec<String> {
    let mut ids: Vec<String> = ask(redis.port(), &["SMEMBERS", "worqr:workers"]).unwrap();
    ids.sort();
    ids
}

/// Ends a worker's timer, as a long pause of its process does.
fn end_timer(redis: &RedisServer, id: &str) {
    let ended: i64 = ask(redis.port(), &["DEL", &format!("worqr:workerTimers:{id}")]).unwrap();
    assert_eq!(ended, 1);
}
