//! Subscriptions through the driver.

use std::sync::Arc;

use geartrain_core::{Backend, Event, Jid, Klass, Put, QueueName, Subscription};
use geartrain_redis::RedisBackend;
use geartrain_testkit::clock::ManualClock;
use pollster::block_on;

use crate::support;

fn put(backend: &RedisBackend, jid: &str) {
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
    put(&backend, "a");
    let (position, jid) = next_jid(&mut first);
    assert_eq!(jid, "a");
    assert!(first.position() < position);
    let mut second = block_on(backend.subscribe()).unwrap();
    assert_eq!(second.position(), position);
    put(&backend, "b");
    assert_eq!(next_jid(&mut second).1, "b");
    let mut resumed = block_on(backend.subscribe_from(position)).unwrap();
    assert!(resumed.position() > position);
    assert_eq!(next_jid(&mut resumed).1, "b");
}
