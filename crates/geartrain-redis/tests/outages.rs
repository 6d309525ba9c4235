//! Outages: a Redis that is killed, loses our functions, or fails over. Clients continue by themselves, and
//! every acknowledged job is there.

use crate::peers;
use crate::subscriptions::assert_flushed;

use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain_core::{Backend, Jid, Klass, Pause, Pop, Put, QueueName, Seconds, WorkerName};
use geartrain_drill::LoadClients;
use geartrain_redis::RedisBackend;
use geartrain_testkit::peers::RedisServer;
use peers::{SentinelGroup, ask, until};
use pollster::block_on;

const CLIENTS: usize = 8;
const JOBS: usize = 60;

/// Parked pops that wait at once without a job.
const WAITS: usize = 10;

/// A Redis that has written to disk whatever it has answered.
const KEEPS_ALL: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

fn connect(url: &str) -> Arc<dyn Backend> {
    Arc::new(block_on(RedisBackend::connect(url.parse().unwrap())).unwrap())
}

#[test]
fn nothing_acknowledged_is_lost_when_a_redis_that_keeps_all_is_killed() {
    let mut redis = RedisServer::start(&KEEPS_ALL);
    let clients = LoadClients::start(CLIENTS, "load", || Ok(connect(&redis.url()))).unwrap();
    for _ in 0..3 {
        clients.wait_for_completed(JOBS).unwrap();
        redis.kill();
        redis.start_again();
    }
    clients.wait_for_completed(JOBS).unwrap();
    let ledger = clients.finish();
    assert_eq!(ledger.unanswered, 0, "{:?}", ledger.errors);
    ledger.verify(&*connect(&redis.url())).unwrap().assert_kept();
}

#[test]
fn functions_and_scripts_that_are_gone_are_loaded_again() {
    // Without functions it is a script that may be lost.
    for (further, flush) in [(&[][..], "FUNCTION"), (&["--rename-command", "FCALL", ""], "SCRIPT")] {
        let redis = RedisServer::start(further);
        let clients = LoadClients::start(CLIENTS, "load", || Ok(connect(&redis.url()))).unwrap();
        for _ in 0..5 {
            clients.wait_for_completed(JOBS / 2).unwrap();
            ask::<String>(redis.port(), &[flush, "FLUSH"]).unwrap();
        }
        clients.wait_for_completed(JOBS).unwrap();
        let ledger = clients.finish();
        assert_eq!(ledger.unanswered, 0, "{:?}", ledger.errors);
        ledger.verify(&*connect(&redis.url())).unwrap().assert_kept();
    }
}

#[test]
fn after_a_failover_clients_go_on_with_the_new_master_and_nothing_confirmed_is_lost() {
    // The first master comes back empty, and must not be promoted again before it is in sync, only because
    // the other was slow for a moment.
    let mut group = SentinelGroup::start(&["--replica-priority", "0"], &[]);
    let url = group.url();

    let confirmed = format!("{url}?replicas=1");
    let clients = LoadClients::start(CLIENTS, "load", || Ok(connect(&confirmed))).unwrap();
    clients.wait_for_completed(JOBS).unwrap();
    let subscribed = connect(&url);
    let _events = block_on(subscribed.subscribe()).unwrap();
    group.nodes[0].kill();
    group.until_master(1);
    // It comes back as a replica, and can confirm writes again. The sentinels would arrange that too, but
    // later.
    group.nodes[0].start_again();
    group.make_replica(0, 1);
    clients.wait_for_completed(JOBS).unwrap();
    let ledger = clients.finish();
    assert!(ledger.put.len() > JOBS, "{ledger:?}");
    ledger.verify(&*connect(&url)).unwrap().assert_kept();
    assert_flushed(&*subscribed, "after");
}

#[test]
fn parked_pops_cost_one_command_a_second() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis.url());
    let calls = || -> u64 {
        let said: String = ask(redis.port(), &["INFO", "commandstats"]).unwrap();
        let figures = said.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:calls="));
        figures.map_or(0, |figures| figures.split(',').next().unwrap().parse().unwrap())
    };
    // A due job that cannot be popped, and one that will be due, must not cause more requests.
    let (paused, queue) = (QueueName::new("paused").unwrap(), QueueName::new("empty").unwrap());
    let put = |queue: &QueueName, jid: &str, delay: i32| Put {
        delay: Seconds::from(delay),
        ..Put::new(queue.clone(), Jid::new(jid).unwrap(), Klass::new("k").unwrap(), "{}")
    };
    let pause = Pause { queues: vec![paused.clone()] };
    let puts = [put(&paused, "due", 0), put(&paused, "later", 3_600)];
    let calls_before = std::iter::once(pause.into()).chain(puts.map(Into::into));
    block_on(backend.execute(calls_before.collect())).unwrap();
    let pop = |worker: usize| Pop {
        queues: vec![queue.clone(), paused.clone()],
        ..Pop::new(queue.clone(), WorkerName::new(format!("w{worker}")).unwrap())
    };
    std::thread::scope(|threads| {
        let waits: Vec<_> = (0..WAITS)
            .map(|worker| {
                let (backend, pop) = (backend.clone(), pop(worker));
                threads.spawn(move || block_on(backend.pop_or_wait(pop, Seconds::from(60))))
            })
            .collect();
        let words: Vec<_> = (0..WAITS)
            .map(|_| {
                let (backend, queues) = (backend.clone(), vec![queue.clone(), paused.clone()]);
                threads.spawn(move || block_on(backend.ready_or_wait(queues, Seconds::from(60))))
            })
            .collect();
        until("all are parked", || {
            let parked = |command: &str, key: &str| ask::<usize>(redis.port(), &[command, key]).unwrap_or(0);
            parked("ZCARD", "gt:sleep:empty") == WAITS && parked("SCARD", "gt:watch:empty") == 1
        });
        let (begun, before) = (Instant::now(), calls());
        // Requests are counted over a time, so time has to pass here.
        until("some seconds have passed", || begun.elapsed() > Duration::from_secs(3));
        let sent = calls() - before;
        let took = begun.elapsed();
        assert!(sent <= took.as_secs() + 1, "{sent} commands in {took:?}");
        // They do wait: each is served, and the job left over wakes all waits for readiness.
        let puts = (0..=WAITS).map(|number| put(&queue, &format!("j{number}"), 0).into());
        block_on(backend.execute(puts.collect())).unwrap();
        for wait in waits {
            assert_eq!(wait.join().unwrap().unwrap().jobs.len(), 1);
        }
        for word in words {
            assert!(word.join().unwrap().unwrap());
        }
    });
}

/// An encrypted URL of a server without TLS is an error, and nothing worse.
#[test]
fn an_encrypted_url_of_a_plain_redis_is_an_error() {
    let redis = RedisServer::start(&[]);
    let url = redis.url().replace("redis://", "rediss://").parse().expect("it is a URL");
    let connected = pollster::block_on(geartrain_redis::RedisBackend::connect(url));
    assert!(matches!(connected, Err(geartrain_core::BackendError::Broken { .. })));
}
