//! Jobs popped for a client that is gone go back to the front of their queue.

use std::sync::Arc;
use std::time::Duration;

use geartrain_core::wire::{ParkedPop, Request};
use geartrain_core::{
    Answer, Backend, BackendError, Call, Complete, Count, Get, Jid, Job, Klass, Pending, Pop, PopReply,
    Popped, Put, QueueName, Reply, Seconds, StateName, Subscription, SystemClock, WorkerName,
};
use geartrain_resp::{Front, Options};
use geartrain_store::StoreBackend;
use geartrain_testkit::peers::Scratch;
use geartrain_testkit::scaled;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixStream};
use tokio_util::sync::CancellationToken;

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
    execute_on(&*server.backend, call).await
}

async fn execute_on(backend: &dyn Backend, call: impl Into<Call>) -> Reply {
    backend.execute(vec![call.into()]).await.unwrap().remove(0).unwrap()
}

async fn put(server: &Server, jid: &str, payload: Vec<u8>) {
    execute(server, a_put(jid, payload)).await;
}

fn a_put(jid: &str, payload: Vec<u8>) -> Put {
    Put::new(queue(), Jid::new(jid).unwrap(), Klass::new("k").unwrap(), payload)
}

async fn job(server: &Server, jid: &str) -> Job {
    job_on(&*server.backend, jid).await
}

async fn job_on(backend: &dyn Backend, jid: &str) -> Job {
    match execute_on(backend, Get { jid: Jid::new(jid).unwrap() }).await {
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
    let (server, directory) = (Server::start().await, Scratch::new("gone-clients"));
    let socket = directory.path().join("socket");
    let serving = server.serve_unix(&socket);
    let qless_pop = server.qless().await.call("pop 0 q gone 1");
    for round in 0..scaled(200, 5_000) {
        let pop = if round % 2 == 0 { native_pop() } else { qless_pop.clone() };
        let jid = format!("j{round}");
        put(&server, &jid, b"1".to_vec()).await;
        if round % 4 < 2 {
            server.peer().await.send(&pop).await;
        } else {
            Peer::over(UnixStream::connect(&socket).await.unwrap()).send(&pop).await;
        }
        assert_eq!(next(&server).await.jid, Jid::new(&jid).unwrap());
    }
    server.end().await;
    serving.await.unwrap();
}

/// Takes a job and closes, as a command does whose user goes on to work on the job.
async fn pop_and_close<S: AsyncRead + AsyncWrite + Unpin>(mut peer: Peer<S>) {
    peer.send(&native_pop()).await;
    peer.bytes().await;
}

/// The same after a wait.
async fn wait_and_close<S: AsyncRead + AsyncWrite + Unpin>(mut peer: Peer<S>, server: &Server, jid: &str) {
    peer.ask(&["HELLO", "3"]).await;
    peer.ask(&["SUBSCRIBE", "gt:to:p"]).await;
    peer.send(&parked_pop()).await;
    peer.bytes().await;
    put(server, jid, b"1".to_vec()).await;
    tokio::time::timeout(Duration::from_secs(20), peer.push()).await.expect("the job comes");
}

#[tokio::test]
async fn a_client_that_closes_after_it_has_read_its_job_keeps_the_job() {
    let (mut server, directory) = (Server::start().await, Scratch::new("kept-jobs"));
    let socket = directory.path().join("socket");
    let serving = server.serve_unix(&socket);
    let local = async || Peer::over(UnixStream::connect(&socket).await.unwrap());
    put(&server, "popped", b"1".to_vec()).await;
    pop_and_close(server.peer().await).await;
    wait_and_close(server.peer().await, &server, "waited-for").await;
    put(&server, "popped-locally", b"1".to_vec()).await;
    pop_and_close(local().await).await;
    wait_and_close(local().await, &server, "waited-for-locally").await;
    // When the server has stopped, all connections have ended.
    server.stop.cancel();
    serving.await.unwrap();
    server.task.take().unwrap().await.unwrap();
    for jid in ["popped", "waited-for", "popped-locally", "waited-for-locally"] {
        let job = job(&server, jid).await;
        assert_eq!(job.state.name(), StateName::Running, "{jid}: {:?}", job.history);
    }
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

/// A backend that does not tell whether there is something to pop, or fails to.
struct WithoutReadiness {
    backend: StoreBackend,
    fails: bool,
}

impl Backend for WithoutReadiness {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        self.backend.execute(batch)
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        self.backend.pop_or_wait(pop, wait)
    }

    fn ready_or_wait(&self, _: Vec<QueueName>, _: Seconds) -> Pending<'_, bool> {
        if self.fails {
            let error = BackendError::Broken { backend: "faulty", source: "no answer".into() };
            return Box::pin(std::future::ready(Err(error)));
        }
        Box::pin(std::future::pending())
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.backend.subscribe()
    }
}

/// A client parks a pop and a wait for readiness in one request. The pop finds a job, but there is no reply,
/// because the answer to the other does not come.
#[tokio::test]
async fn a_pop_beside_a_wait_for_readiness_that_is_not_answered_returns_its_job() {
    for fails in [true, false] {
        let clock = Arc::new(SystemClock);
        let backend = StoreBackend::in_memory(clock.clone()).unwrap();
        let backend = Arc::new(WithoutReadiness { backend, fails });
        execute_on(&*backend, a_put("a", b"1".to_vec())).await;
        let options = Options { drain_timeout: Duration::ZERO, ..Options::default() };
        let front = Front::new(backend.clone(), clock, options);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (port, stop) = (listener.local_addr().unwrap().port(), CancellationToken::new());
        let stopped = stop.clone();
        let serving = tokio::spawn(async move { front.serve_tcp(listener, stopped).await });
        let mut peer = Peer::connect(port).await;
        peer.ask(&["HELLO", "3"]).await;
        let ready = Pop { count: Count::new(0).unwrap(), ..pop("gone") };
        let wait = |number, pop| ParkedPop { number, pop, wait: Seconds::from(1_000) };
        let waits = vec![wait(1, pop("gone")), wait(2, ready)];
        peer.send(&native(&Request::Park { process: "p".into(), now: None, waits, tick: false })).await;
        if fails {
            assert!(peer.read().await.text().contains("no answer"));
        } else {
            while job_on(&*backend, "a").await.state.name() != StateName::Running {
                tokio::task::yield_now().await;
            }
        }
        stop.cancel();
        serving.await.unwrap();
        assert_eq!(job_on(&*backend, "a").await.state.name(), StateName::Waiting, "fails: {fails}");
    }
}
