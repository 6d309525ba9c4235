//! Jobs popped for a client that is gone go back to the front of their queue.

use std::time::Duration;

use geartrain_core::wire::{ParkedPop, Request};
use geartrain_core::{
    Backend, Call, Complete, Count, Get, Jid, Job, Klass, Pop, Popped, Put, QueueName, Reply, Seconds,
    StateName, WorkerName,
};
use geartrain_testkit::scaled;

use crate::common::{self, Peer, Server, Value};

/// More than the buffers of a socket hold.
const LARGE_BYTES: usize = 16 << 20;

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn pop(worker: &str) -> Pop {
    Pop::new(queue(), WorkerName::new(worker).unwrap())
}

fn native(request: &Request) -> Vec<u8> {
    common::request(&[&b"FCALL"[..], b"geartrain_abc", b"1", b"", &request.encode()])
}

fn native_pop() -> Vec<u8> {
    native(&Request::Batch(vec![pop("gone").into()]))
}

fn parked_pop() -> Vec<u8> {
    let wait = ParkedPop { number: 1, pop: pop("gone"), wait: Seconds::from(1_000) };
    native(&Request::Park { process: "p".into(), now: None, waits: vec![wait], tick: false })
}

async fn execute(server: &Server, call: impl Into<Call>) -> Reply {
    server.backend.execute(vec![call.into()]).await.unwrap().remove(0).unwrap()
}

async fn put(server: &Server, jid: &str, payload: Vec<u8>) {
    let put = Put::new(queue(), Jid::new(jid).unwrap(), Klass::new("k").unwrap(), payload);
    execute(server, put).await;
}

async fn job(server: &Server, jid: &str) -> Job {
    match execute(server, Get { jid: Jid::new(jid).unwrap() }).await {
        Reply::Get(Some(job)) => *job,
        other => panic!("{other:?}"),
    }
}

/// The next job, which must come without the help of the clock, with all its retries.
async fn next(server: &Server) -> Popped {
    let pop = Pop { count: Count::ONE, ..pop("patient") };
    let popped = server.backend.pop_or_wait(pop, Seconds::from(1_000));
    let mut reply =
        tokio::time::timeout(Duration::from_secs(20), popped).await.expect("a job comes").unwrap();
    let popped = reply.jobs.remove(0);
    assert_eq!(popped.remaining, i64::from(popped.retries));
    execute(server, Complete::new(popped.jid.clone(), popped.holder())).await;
    popped
}

async fn wait_until_running(server: &Server, jid: &str) {
    while job(server, jid).await.state.name() != StateName::Running {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn jobs_of_a_reply_that_cannot_be_written_go_back_in_order() {
    for is_native in [true, false] {
        let server = Server::start().await;
        for jid in ["a", "b", "c"] {
            put(&server, jid, vec![b'1'; LARGE_BYTES]).await;
        }
        let mut peer = server.qless().await;
        let pop = if is_native { native_pop() } else { peer.call("pop 0 q gone 1") };
        // One batch. The first reply fills the buffers, and the others wait behind it.
        peer.send(&pop.repeat(3)).await;
        let running = wait_until_running(&server, "c");
        tokio::time::timeout(Duration::from_secs(20), running).await.expect("the pops are executed");
        drop(peer);
        for expected in ["a", "b", "c"] {
            assert_eq!(next(&server).await.jid, Jid::new(expected).unwrap());
        }
        server.end().await;
    }
}

#[tokio::test]
async fn a_client_that_closes_before_the_reply_to_its_pop_holds_no_job() {
    let server = Server::start().await;
    let sha = server.qless().await.sha.clone();
    for round in 0..scaled(200, 5_000) {
        let mut peer = server.peer().await;
        peer.sha.clone_from(&sha);
        let pop = if round % 2 == 0 { native_pop() } else { peer.call("pop 0 q gone 1") };
        let jid = format!("j{round}");
        put(&server, &jid, b"1".to_vec()).await;
        peer.send(&pop).await;
        drop(peer);
        assert_eq!(next(&server).await.jid, Jid::new(&jid).unwrap());
    }
    server.end().await;
}

/// A client as our driver has one.
async fn driver(server: &Server) -> Peer {
    let mut peer = server.peer().await;
    peer.ask(&["HELLO", "3"]).await;
    peer.ask(&["SUBSCRIBE", "gt:to:p"]).await;
    peer
}

#[tokio::test]
async fn a_client_that_closes_while_its_pop_is_parked_holds_no_job() {
    let server = Server::start().await;
    for round in 0..scaled(200, 5_000) {
        let mut peer = driver(&server).await;
        peer.send(&parked_pop()).await;
        let jid = format!("j{round}");
        // Before and after the server learns that the client has closed.
        match round % 3 {
            0 => {
                peer.bytes().await;
                drop(peer);
                put(&server, &jid, b"1".to_vec()).await;
            }
            1 => {
                peer.bytes().await;
                put(&server, &jid, b"1".to_vec()).await;
                drop(peer);
            }
            _ => {
                put(&server, &jid, b"1".to_vec()).await;
                drop(peer);
            }
        }
        assert_eq!(next(&server).await.jid, Jid::new(&jid).unwrap(), "round {round}");
    }
    server.end().await;
}

/// The first half of a connection may close before the replies are read, as `nc` does.
#[tokio::test]
async fn a_half_closed_client_gets_its_job() {
    let server = Server::start().await;
    put(&server, "a", b"1".to_vec()).await;
    let mut peer = server.peer().await;
    peer.send(&native_pop()).await;
    tokio::io::AsyncWriteExt::shutdown(&mut peer.stream).await.unwrap();
    assert!(!peer.bytes().await.is_empty());
    assert!(peer.next().await.is_none());
    assert_eq!(job(&server, "a").await.state.name(), StateName::Running);
    server.end().await;
}

/// It closes before it has read a later message, and so the connection is reset.
#[tokio::test]
async fn a_client_that_received_its_job_keeps_it_when_the_connection_is_reset() {
    let server = Server::start().await;
    let mut publisher = server.peer().await;
    for round in 0..scaled(50, 1_000) {
        let jid = format!("j{round}");
        put(&server, &jid, b"1".to_vec()).await;
        let mut peer = server.peer().await;
        peer.ask(&["HELLO", "3"]).await;
        peer.ask(&["SUBSCRIBE", "news"]).await;
        peer.send(&native_pop()).await;
        peer.bytes().await;
        let receivers = publisher.ask(&["PUBLISH", "news", "unread"]).await;
        assert_eq!(receivers, Value::Integer(1));
        drop(peer);
        // Jobs are released before the session ends, and with it the subscription.
        while publisher.ask(&["PUBLISH", "news", "unread"]).await != Value::Integer(0) {}
        assert_eq!(job(&server, &jid).await.state.name(), StateName::Running);
    }
    server.end().await;
}
