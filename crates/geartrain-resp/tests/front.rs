//! What protects clients from each other: HTTP requests, guessed passwords, large replies, a broken backend.
use crate::common;

use std::sync::Arc;
use std::time::Duration;

use common::{Peer, Server, Value};
use geartrain_core::{Backend, BackendError, Call, Pending, Pop, PopReply, Seconds, Subscription, wire};
use geartrain_front::{AUTHENTICATE_WITHIN, AccessControl, Admission};
use geartrain_resp::{Front, Options};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::scaled;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// As a browser sends it for `fetch(url, {method: "POST", mode: "no-cors", body})`.
fn post(port: u16, body: &str) -> Vec<u8> {
    format!(
        "POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: keep-alive\r\nContent-Length: {}\r\n\
         Content-Type: text/plain;charset=UTF-8\r\nOrigin: http://evil.example\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The connection ends with an error about HTTP, and nothing else comes.
async fn ends(peer: &mut Peer) {
    let error = peer.read().await;
    assert!(error.text().starts_with("ERR Protocol error: a request that begins with"), "{error:?}");
    assert_eq!(peer.next().await, None);
}

#[tokio::test]
async fn http_ends_the_connection_and_its_body_is_not_executed() {
    let server = Server::with(Options { allow_flush: true, ..Options::default() }).await;
    let mut witness = server.qless().await;
    witness.qless("put 0 w q kept k {} 0").await;
    let body = "FLUSHALL\r\nEVAL \"\" 0 put 0 w q stolen k {} 0\r\n*1\r\n$8\r\nFLUSHALL\r\n";
    let get = b"GET /FLUSHALL HTTP/1.1\r\nHost: x\r\n\r\nFLUSHALL\r\n".to_vec();
    let preflight = b"OPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
    let host_alone = format!("Host: x\r\n{body}").into_bytes();
    for bytes in [post(server.port, body), get, preflight, host_alone] {
        let mut peer = server.peer().await;
        peer.send(&bytes).await;
        ends(&mut peer).await;
        // In small pieces, and after a valid request.
        let mut peer = server.peer().await;
        assert_eq!(peer.ask(&["PING"]).await, Value::simple("PONG"));
        for byte in bytes {
            // The server may have closed it already.
            if tokio::io::AsyncWriteExt::write_all(&mut peer.stream, &[byte]).await.is_err() {
                break;
            }
        }
        while peer.next().await.is_some() {}
        assert_eq!(witness.qless("length 0 q").await, 1.into());
    }
    server.end().await;
}

#[tokio::test]
async fn a_connection_that_does_not_authenticate_in_time_is_closed() {
    let admission = Admission::with_limits(100, Duration::from_millis(100));
    let options = Options {
        access: Arc::new(AccessControl::open().with_password("secret")),
        admission,
        ..Options::default()
    };
    let server = Server::with(options).await;
    let mut client = server.peer().await;
    assert_eq!(client.ask(&["AUTH", "secret"]).await, Value::simple("OK"));
    let mut silent = server.peer().await;
    assert_eq!(silent.next().await, None);
    // Commands in the meantime are answered, and do not extend the deadline.
    let mut talker = server.peer().await;
    loop {
        talker.send(&common::request(&["RESET"])).await;
        if talker.next().await.is_none() {
            break;
        }
    }
    // Neither do pipelined guesses: each of the last takes a second.
    let mut guesser = server.peer().await;
    guesser.send(&common::request(&["AUTH", "guess"]).repeat(1_000)).await;
    let mut answered = 0;
    while guesser.next().await.is_some() {
        answered += 1;
    }
    assert!((1..100).contains(&answered), "{answered} guesses were answered");
    assert_eq!(client.ask(&["PING"]).await, Value::simple("PONG"));
    // A connection that resets its authentication has to authenticate again in time.
    assert_eq!(client.ask(&["RESET"]).await, Value::simple("RESET"));
    assert_eq!(client.next().await, None);
    server.end().await;
}

#[tokio::test]
async fn connections_without_a_password_do_not_keep_others_out() {
    let admission = Admission::with_limits(40, AUTHENTICATE_WITHIN);
    let options = Options {
        access: Arc::new(AccessControl::open().with_password("secret")),
        admission,
        ..Options::default()
    };
    let server = Server::with(options).await;
    let mut unauthenticated = Vec::new();
    for _ in 0..100 {
        let mut connection = server.peer().await;
        assert!(connection.ask(&["PING"]).await.text().starts_with("NOAUTH"));
        unauthenticated.push(connection);
    }
    // The oldest were closed, and the newest five are there.
    for connection in &mut unauthenticated[..95] {
        assert_eq!(connection.next().await, None);
    }
    let mut client = server.peer().await;
    assert_eq!(client.ask(&["AUTH", "secret"]).await, Value::simple("OK"));
    for connection in &mut unauthenticated[96..] {
        assert!(connection.ask(&["PING"]).await.text().starts_with("NOAUTH"));
    }
    server.end().await;
}

#[tokio::test]
async fn the_right_password_is_taken_after_wrong_ones() {
    let options =
        Options { access: Arc::new(AccessControl::open().with_password("secret")), ..Options::default() };
    let server = Server::with(options).await;
    let mut peer = server.peer().await;
    let guesses = [common::request(&["AUTH", "guess"]).repeat(6), common::request(&["AUTH", "secret"])];
    peer.send(&guesses.concat()).await;
    for _ in 0..6 {
        assert!(peer.read().await.text().starts_with("WRONGPASS"));
    }
    assert_eq!(peer.read().await, Value::simple("OK"));
    server.end().await;
}

/// All on one thread, and the large replies take long: the witness is answered meanwhile.
async fn witness_is_answered_while(mut peer: Peer, mut witness: Peer, request: &[u8]) -> Peer {
    let mut answered = 0;
    peer.send(request).await;
    loop {
        tokio::select! {
            biased;
            _ = peer.stream.readable() => break,
            value = async { witness.ask(&["PING"]).await } => assert_eq!(value, Value::simple("PONG")),
        }
        answered += 1;
    }
    assert!(answered >= 20, "the witness was answered only {answered} times");
    peer
}

#[tokio::test]
async fn a_large_qless_reply_does_not_block_other_clients() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let (jobs, bytes) = (8, scaled(1 << 20, 25 << 20));
    // Escaped, unchanged, and not JSON: each comes back as it was put.
    let payloads = [
        format!("\"{}\"", "/\\n".repeat(bytes / 3)),
        format!("[{}1]", "12345,".repeat(bytes / 6)),
        format!("{{\"$bytes\":\"{}\"}}", "AAAA".repeat(bytes / 4)),
    ];
    let mut jids = Vec::new();
    for number in 0..jobs {
        let (jid, payload) = (format!("j{number}"), &payloads[number % 3]);
        let put = peer.qless_words(&["put", "0", "w", "q", &jid, "k", payload, "0"]).await;
        assert_eq!(put, jid.as_str().into());
        jids.push(jid);
    }
    peer.qless("put 0 w q small k {} 0").await;
    let words: Vec<&str> = ["multiget", "0"].into_iter().chain(jids.iter().map(String::as_str)).collect();
    let request = [peer.call_words(&words), common::request(&["ECHO", "behind"])].concat();
    let mut peer = witness_is_answered_while(peer, server.peer().await, &request).await;
    let got = peer.read().await.json();
    for number in 0..jobs {
        assert_eq!(got[number]["jid"], format!("j{number}"));
        assert!(got[number]["data"] == payloads[number % 3].as_str(), "job {number}");
    }
    assert_eq!(peer.read().await, "behind".into());
    // A single one, the tracked ones, and the popped ones.
    let alone = peer.qless("get 0 j1").await.json();
    assert!(alone["data"] == payloads[1].as_str());
    for jid in ["j0", "small", "j2"] {
        peer.qless(&format!("track 0 track {jid}")).await;
    }
    peer.qless("cancel 0 small").await;
    let tracked = peer.qless("track 0").await.json();
    assert_eq!((tracked["jobs"].as_array().unwrap().len(), &tracked["expired"][0]), (2, &"small".into()));
    assert!(tracked["jobs"][0]["data"] == payloads[0].as_str());
    let popped = peer.qless("pop 0 q w 100").await.json();
    assert_eq!(popped.as_array().unwrap().len(), jobs);
    server.end().await;
}

#[tokio::test]
async fn a_large_native_reply_does_not_block_other_clients() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let payload = format!("[{}1]", "12345,".repeat(scaled(1 << 20, 25 << 20) / 6));
    for number in 0..8 {
        peer.qless_words(&["put", "0", "w", "q", &format!("j{number}"), "k", &payload, "0"]).await;
    }
    let pop: Pop = serde_json::from_value(serde_json::json!({
        "queues": ["q"], "worker": "w", "count": 100, "order": "Strict", "whole": false
    }))
    .unwrap();
    let batch = wire::Request::Batch(vec![Call::from(pop)]).encode();
    let call = common::request(&[&b"FCALL"[..], b"geartrain_x", b"1", b"", &batch]);
    let mut peer = witness_is_answered_while(peer, server.peer().await, &call).await;
    let answers = wire::decode_answers(&peer.bytes().await).unwrap();
    match &answers[..] {
        [Ok(geartrain_core::Reply::Pop(PopReply { jobs, .. }))] => {
            assert_eq!(jobs.len(), 8);
            assert!(jobs.iter().all(|job| job.payload.bytes() == payload.as_bytes()));
        }
        other => panic!("not a pop: {}", other.len()),
    }
    server.end().await;
}

#[tokio::test]
async fn a_client_that_leaves_during_a_large_reply_leaves_the_others_alone() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let payload = format!("\"{}\"", "x".repeat(4 << 20));
    peer.qless_words(&["put", "0", "w", "q", "j", "k", &payload, "0"]).await;
    for _ in 0..20 {
        let mut leaver = server.qless().await;
        let request = leaver.call("get 0 j").repeat(3);
        leaver.send(&request).await;
        leaver.stream.readable().await.unwrap();
    }
    assert!(peer.qless("get 0 j").await.json()["data"] == payload.as_str());
    server.end().await;
}

/// A backend that cannot be reached.
struct Broken;

fn broken<T: Send + 'static>() -> Pending<'static, T> {
    Box::pin(async { Err(BackendError::Broken { backend: "test", source: "no space left".into() }) })
}

impl Backend for Broken {
    fn execute(&self, _: Vec<Call>) -> Pending<'_, Vec<geartrain_core::Answer>> {
        broken()
    }

    fn pop_or_wait(&self, _: Pop, _: Seconds) -> Pending<'_, PopReply> {
        broken()
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        broken()
    }
}

#[tokio::test]
async fn every_request_to_a_broken_queue_is_answered_and_few_are_logged() {
    let log = log::Lines::default();
    let _guard = log.collect();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let front = Front::new(Arc::new(Broken), ManualClock::new(), Options::default());
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = tokio::spawn(async move { front.serve_tcp(listener, stopped).await });
    let started = std::time::Instant::now();
    let mut peer = Peer::connect(port).await;
    for _ in 0..2_000 {
        let answer = peer.ask(&["EVAL", "", "0", "length", "0", "q"]).await;
        assert!(answer.text().contains("no space left"), "{answer:?}");
    }
    // The first one, and then one per second.
    let logged = log.count("no space left");
    assert!((1..=2 + started.elapsed().as_secs() as usize).contains(&logged), "{logged} lines");
    stop.cancel();
    task.await.unwrap();
}

/// What the thread of a test logs.
mod log {
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::{Event, Metadata, Subscriber, span};

    #[derive(Clone, Default)]
    pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

    impl Lines {
        pub(crate) fn collect(&self) -> tracing::subscriber::DefaultGuard {
            tracing::subscriber::set_default(self.clone())
        }

        pub(crate) fn count(&self, text: &str) -> usize {
            self.0.lock().unwrap().iter().filter(|line| line.contains(text)).count()
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::WARN
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            struct Text(String);
            impl Visit for Text {
                fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
                    self.0 += &format!("{value:?} ");
                }
            }
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push(text.0);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }
}
