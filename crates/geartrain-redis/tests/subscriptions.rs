//! Subscriptions through the driver.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use futures_util::FutureExt;
use geartrain_core::{Backend, Event, Jid, Klass, Pop, Put, QueueName, Seconds, Subscription, WorkerName};
use geartrain_redis::RedisBackend;
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::peers::{RedisServer, until};
use pollster::block_on;

use crate::support;

fn put(backend: &dyn Backend, jid: &str) {
    let put = Put::new(QueueName::new("q").unwrap(), Jid::new(jid).unwrap(), Klass::new("k").unwrap(), "{}");
    block_on(backend.execute(vec![put.into()])).unwrap().remove(0).unwrap();
}

fn next_jid(events: &mut Box<dyn Subscription>) -> (u64, String) {
    let published = block_on(events.next()).unwrap();
    match &*published.event {
        Event::Put { jid, .. } => (published.position, jid.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_subscription_knows_the_newest_position_when_it_began() {
    let url = support::shared_redis_url().parse().unwrap();
    let backend = block_on(RedisBackend::with_clock(url, ManualClock::new())).map(Arc::new).unwrap();
    let mut first = block_on(backend.subscribe()).unwrap();
    put(&*backend, "a");
    let (position, jid) = next_jid(&mut first);
    assert_eq!(jid, "a");
    assert!(first.position() < position);
    let mut second = block_on(backend.subscribe()).unwrap();
    assert_eq!(second.position(), position);
    put(&*backend, "b");
    assert_eq!(next_jid(&mut second).1, "b");
    let mut resumed = block_on(backend.subscribe_from(position)).unwrap();
    assert!(resumed.position() > position);
    assert_eq!(next_jid(&mut resumed).1, "b");
}

/// The jid of an event that has arrived already.
fn arrived_jid(events: &mut Box<dyn Subscription>) -> Option<String> {
    let published = events.next().now_or_never()?.unwrap();
    match &*published.event {
        Event::Put { jid, .. } => Some(jid.to_string()),
        other => panic!("{other:?}"),
    }
}

/// Puts jobs, and asserts that the event of each has arrived after a flush.
pub(crate) fn assert_flushed(backend: &dyn Backend, name: &str) {
    let mut events = block_on(backend.subscribe()).unwrap();
    for round in 0..200 {
        let jid = format!("{name}-{round}");
        put(backend, &jid);
        block_on(backend.flush_events());
        assert_eq!(arrived_jid(&mut events), Some(jid));
    }
}

#[test]
fn after_a_flush_the_events_of_answered_calls_have_arrived() {
    let url = support::shared_redis_url().parse().unwrap();
    let backend = block_on(RedisBackend::connect(url)).unwrap();
    // Without a subscription there is nothing to wait for.
    block_on(backend.flush_events());
    let mut subscriptions = [block_on(backend.subscribe()).unwrap(), block_on(backend.subscribe()).unwrap()];
    for round in 0..2_000 {
        put(&backend, &round.to_string());
        block_on(backend.flush_events());
        for events in &mut subscriptions {
            assert_eq!(arrived_jid(events), Some(round.to_string()));
        }
    }
}

/// One barrier serves callers that wait at the same time.
#[test]
fn concurrent_flushes_each_cover_their_own_call() {
    let url = support::shared_redis_url().parse().unwrap();
    let backend = Arc::new(block_on(RedisBackend::connect(url)).unwrap());
    let mut events = block_on(backend.subscribe()).unwrap();
    let (ended, ends) = std::sync::mpsc::channel();
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let (backend, ended) = (backend.clone(), ended.clone());
            std::thread::spawn(move || {
                for number in 0..200 {
                    let jid = format!("{caller}-{number}");
                    put(&*backend, &jid);
                    block_on(backend.flush_events());
                    ended.send(jid).unwrap();
                }
            })
        })
        .collect();
    drop(ended);
    let mut arrived = std::collections::HashSet::new();
    for jid in ends {
        while let Some(jid) = arrived_jid(&mut events) {
            arrived.insert(jid);
        }
        assert!(arrived.contains(&jid), "{jid}");
    }
    callers.into_iter().for_each(|caller| caller.join().unwrap());
}

/// Pops are parked without a pause meanwhile, so that the subscriber task always has something to do.
#[test]
fn a_flush_is_not_held_up_by_parked_pops() {
    /// Ends the threads, also if the test fails.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let url = support::shared_redis_url().parse().unwrap();
    let backend = block_on(RedisBackend::connect(url)).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&ended);
        for number in 0..8 {
            let worker = WorkerName::new(format!("w{number}")).unwrap();
            let pop = Pop::new(QueueName::new("idle").unwrap(), worker);
            let (backend, ended) = (&backend, &ended);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    block_on(backend.pop_or_wait(pop.clone(), Seconds::ZERO)).unwrap();
                }
            });
        }
        assert_flushed(&backend, "busy");
    });
}

#[test]
fn a_redis_that_does_not_answer_holds_a_flush_up_for_a_bounded_time() {
    let redis = RedisServer::start(&[]);
    let backend = block_on(RedisBackend::connect(redis.url().parse().unwrap())).unwrap();
    let mut events = block_on(backend.subscribe()).unwrap();
    put(&backend, "before");
    redis.freeze();
    for _ in 0..100 {
        block_on(backend.flush_events());
    }
    redis.thaw();
    assert_eq!(next_jid(&mut events).1, "before");
    let mut number = 0;
    until("a flush waits for events again", || {
        number += 1;
        put(&backend, &number.to_string());
        block_on(backend.flush_events());
        arrived_jid(&mut events) == Some(number.to_string()) || {
            assert_eq!(next_jid(&mut events).1, number.to_string());
            false
        }
    });
}

/// Forwards connections to a server, and what the server answers byte by byte.
struct SlowRelay {
    port: u16,
    ended: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl SlowRelay {
    fn to(address: String) -> SlowRelay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let ended = Arc::new(AtomicBool::new(false));
        let stopped = ended.clone();
        let accepting = std::thread::spawn(move || {
            for client in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&address).unwrap());
                client.set_nodelay(true).unwrap();
                let (mut from_client, mut to_server) =
                    (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || {
                    // Fails if one side has ended, which the other learns here.
                    let _ = std::io::copy(&mut from_client, &mut to_server);
                    let _ = to_server.shutdown(Shutdown::Both);
                });
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(read @ 1..) = server.read(&mut bytes) {
                        for byte in bytes[..read].chunks(1) {
                            if client.write_all(byte).is_err() {
                                return;
                            }
                        }
                    }
                    let _ = client.shutdown(Shutdown::Both);
                });
            }
        });
        SlowRelay { port, ended, accepting: Some(accepting) }
    }
}

impl Drop for SlowRelay {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Wakes it up.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

/// A subscription is confirmed once for each of its channels, and more may be sent meanwhile.
#[test]
fn confirmations_of_a_subscription_are_not_taken_for_other_replies() {
    let url = support::shared_redis_url();
    let (address, rest) = url.strip_prefix("redis://").unwrap().split_once(['/', '?']).unwrap();
    let relay = SlowRelay::to(address.to_owned());
    let prefix = rest.split_once("prefix=").unwrap().1;
    let url = format!("redis://127.0.0.1:{}?prefix={prefix}", relay.port);
    let backend = block_on(RedisBackend::connect(url.parse().unwrap())).unwrap();
    let pop = Pop::new(QueueName::new("q").unwrap(), WorkerName::new("w").unwrap());
    for round in 0..50 {
        let mut events = block_on(backend.subscribe()).unwrap();
        let jid = round.to_string();
        put(&backend, &jid);
        block_on(backend.flush_events());
        assert_eq!(arrived_jid(&mut events), Some(jid.clone()));
        // Unsubscribes, and the pop is sent over the same connection.
        drop(events);
        let popped = block_on(backend.pop_or_wait(pop.clone(), Seconds::ZERO)).unwrap();
        let jids: Vec<_> = popped.jobs.iter().map(|job| job.jid.to_string()).collect();
        assert_eq!(jids, [jid]);
    }
}
