//! A process that is killed while its clients wait for results: a tick of another process detaches its
//! waiters, and removes ephemeral jobs without waiters.

use crate::peers;

use std::sync::Arc;

use geartrain_core::{
    Backend, Call, Command, Count, Get, Jid, Klass, Operation, OrphanPolicy, Put, PutOptions, QueueName,
    ResultStreamEnd, ResultWaiter, Tick,
};
use geartrain_redis::RedisBackend;
use geartrain_testkit::peers::RedisServer;
use peers::ask;
use pollster::block_on;

/// Stream ids of the two processes. One needs 64 bits, which a double cannot hold.
const DEAD: u64 = 0xfedc_ba98_7654_3210;
const ALIVE: u64 = 7;

fn connect(redis: &RedisServer) -> Arc<dyn Backend> {
    Arc::new(block_on(RedisBackend::connect(redis.url().parse().unwrap())).unwrap())
}

fn run<O: Operation>(backend: &dyn Backend, operation: O) -> O::Reply {
    let command: Command = operation.into();
    let mut answers = block_on(backend.execute(vec![Call::from(command)])).unwrap();
    O::answer(answers.remove(0).unwrap()).unwrap()
}

/// A job that lives as long as a waiter of this result stream waits for it.
fn ephemeral(jid: &str, stream: u64) -> Put {
    let terms = PutOptions {
        attach: Some(ResultWaiter { stream_id: stream, connection: 1, number: 1 }),
        orphan_policy: OrphanPolicy::WhileAwaited,
        ..PutOptions::default()
    };
    let put = Put::new(QueueName::new("q").unwrap(), Jid::new(jid).unwrap(), Klass::new("k").unwrap(), "{}");
    Put { options: Some(Box::new(terms)), ..put }
}

/// Backdates the registration of a result stream by a minute.
fn age(redis: &RedisServer, stream: u64) {
    ask::<f64>(redis.port(), &["ZINCRBY", "gt:fronts", "-60", &format!("{stream:016x}")]).unwrap();
}

/// Backdates a time of the tick.
fn age_ticks(redis: &RedisServer, field: &str) {
    ask::<f64>(redis.port(), &["HINCRBYFLOAT", "gt:counts", field, "-120"]).unwrap();
}

#[test]
fn a_tick_detaches_the_waiters_of_a_process_that_died_and_of_no_other() {
    let redis = RedisServer::start(&[]);
    let (dead, alive, other) = (connect(&redis), connect(&redis), connect(&redis));
    let died = block_on(dead.open_result_stream(DEAD)).unwrap();
    let mut lives = block_on(alive.open_result_stream(ALIVE)).unwrap();
    run(&*dead, ephemeral("of-the-dead", DEAD));
    run(&*alive, ephemeral("of-the-living", ALIVE));
    // As if it were killed: the stream's end is not reported.
    std::mem::forget(died);
    drop(dead);

    let tick = || run(&*other, Tick { count: Count::new(100).unwrap() });
    let there = |jid: &str| run(&*other, Get { jid: Jid::new(jid).unwrap() }).is_some();
    tick();
    assert!(there("of-the-dead"), "its process may be alive still");
    age(&redis, DEAD);
    tick();
    assert!(there("of-the-dead"), "ticks have begun just now, and it may have been Redis that was away");
    age_ticks(&redis, "ticked-since");
    tick();
    assert!(!there("of-the-dead"));
    assert!(there("of-the-living"));
    assert_eq!(ask::<u64>(redis.port(), &["ZCARD", "gt:waiters"]).unwrap(), 1);
    assert_eq!(ask::<u64>(redis.port(), &["ZCARD", "gt:fronts"]).unwrap(), 1);

    // After a time without ticks, as while the Redis is down, registrations are renewed.
    age(&redis, ALIVE);
    age_ticks(&redis, "ticked-since");
    age_ticks(&redis, "ticked");
    tick();
    assert!(there("of-the-living"));

    // A process that was only stopped learns that its waiters are detached.
    age(&redis, ALIVE);
    age_ticks(&redis, "ticked-since");
    tick();
    assert!(!there("of-the-living"));
    assert_eq!(block_on(lives.next()).unwrap_err(), ResultStreamEnd::Closed);
}

#[test]
fn a_process_that_shuts_down_removes_its_registration() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis);
    let stream = block_on(backend.open_result_stream(ALIVE)).unwrap();
    run(&*backend, ephemeral("job", ALIVE));
    assert_eq!(ask::<u64>(redis.port(), &["ZCARD", "gt:fronts"]).unwrap(), 1);
    drop(stream);
    peers::until("nothing is left of it", || {
        ask::<u64>(redis.port(), &["EXISTS", "gt:fronts", "gt:waiters", "ql:j:job"]).unwrap() == 0
    });
}
