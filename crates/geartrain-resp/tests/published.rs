//! Publish/subscribe: which messages, in which order, and always before the reply of the call that caused
//! them.
use std::sync::Arc;

use crate::common;

use common::{Peer, Server, Value};
use geartrain_core::{Answer, Backend, Call, Pending, Pop, PopReply, Seconds, Subscription};
use geartrain_resp::{Front, Options};
use geartrain_store::StoreBackend;
use geartrain_testkit::clock::ManualClock;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A subscriber's messages, up to one that is published as a marker.
async fn messages_until_marker(subscriber: &mut Peer, caller: &mut Peer) -> Vec<String> {
    caller.qless("config.unset 0 the-end").await;
    let mut messages_until_marker = Vec::new();
    loop {
        let (channel, text) = subscriber.message().await;
        if text.contains("the-end") {
            return messages_until_marker;
        }
        let event = serde_json::from_str::<serde_json::Value>(&text).ok();
        let event = event.and_then(|event| Some(event.get("event")?.as_str()?.to_owned()));
        let channel = channel.strip_prefix("ql:").unwrap();
        messages_until_marker.push(event.map_or(channel.to_owned(), |event| format!("{channel}({event})")));
    }
}

#[tokio::test]
async fn the_order_within_one_call_is_that_of_the_table() {
    let server = Server::start().await;
    let mut subscriber = server.peer().await;
    subscriber.ask(&["PSUBSCRIBE", "*"]).await;
    let mut peer = server.qless().await;
    let pop = "pop 0 q w 1";
    for (name, before, call, expected) in [
        (
            "put of a running job by another worker",
            vec![pop],
            "put 0 other q j k {} 0",
            "log(put) w:w(lock_lost) log(lock_lost) put",
        ),
        ("put of a running job by its holder", vec![pop], "put 0 w q j k {} 0", "log(put) put"),
        ("pop", vec![], pop, "popped"),
        ("complete", vec![pop], "complete 0 j w q {}", "completed log(completed)"),
        ("advance", vec![pop], "complete 0 j w q {} next r", "completed log(advanced)"),
        ("fail", vec![pop], "fail 0 j w g m", "log(failed) failed"),
        ("cancel", vec![pop], "cancel 0 j", "log(canceled) w:w(canceled) canceled"),
        ("timeout", vec![pop], "timeout 0 j", "w:w(lock_lost) log(lock_lost)"),
        ("expiry, warning", vec![pop], "pop 60 q v 1", "stalled w:w(lock_lost) log(lock_lost)"),
        ("expiry, exhausted", vec![pop, "pop 60 q v 1"], "pop 70 q v 1", "failed log(failed)"),
        (
            "expiry with grace 0, exhausted",
            vec![pop, "config.set 0 grace-period 0"],
            "pop 60 q v 1",
            "stalled w:w(lock_lost) log(lock_lost) failed log(failed)",
        ),
        ("retry, exhausted", vec![pop], "retry 0 j q w", "failed"),
        ("heartbeat", vec![pop], "heartbeat 0 j w", ""),
        ("priority", vec![], "priority 0 j 7", ""),
        ("tag", vec![], "tag 0 add j t", ""),
        ("log", vec![], "log 0 j m", ""),
        ("pause", vec![], "pause 0 elsewhere", ""),
        ("recur", vec![], "recur 0 elsewhere r k {} interval 1 0", ""),
        ("untrack", vec![], "track 0 untrack j", "untrack"),
        ("track again", vec![], "track 0 track j", "track"),
        ("cancel of nobody", vec![], "cancel 0 nobody", "log(canceled)"),
        ("config", vec![], "config.set 0 a b", "log(config_set)"),
    ] {
        peer.qless("put 0 w q j k {} 0 retries 0").await;
        peer.qless("track 0 track j").await;
        for call in before {
            peer.qless(call).await;
        }
        messages_until_marker(&mut subscriber, &mut peer).await;
        let reply = peer.qless(call).await;
        assert!(!matches!(reply, Value::Error(_)), "{name}: {reply:?}");
        assert_eq!(messages_until_marker(&mut subscriber, &mut peer).await.join(" "), expected, "{name}");
        peer.qless("cancel 0 j").await;
        peer.qless("config.unset 0 grace-period").await;
    }
    server.end().await;
}

#[tokio::test]
async fn a_retry_that_is_not_the_last_publishes_nothing_and_neither_does_unfail() {
    let server = Server::start().await;
    let mut subscriber = server.peer().await;
    subscriber.ask(&["PSUBSCRIBE", "ql:*"]).await;
    let mut peer = server.qless().await;
    for call in ["put 0 w q j k {} 0", "track 0 track j", "pop 0 q w 1"] {
        peer.qless(call).await;
    }
    messages_until_marker(&mut subscriber, &mut peer).await;
    assert_eq!(peer.qless("retry 0 j q w").await, 4.into());
    peer.qless("pop 0 q w 1").await;
    peer.qless("fail 0 j w g m").await;
    assert_eq!(peer.qless("unfail 0 q g").await, 1.into());
    assert_eq!(
        messages_until_marker(&mut subscriber, &mut peer).await.join(" "),
        "popped log(failed) failed"
    );
    server.end().await;
}

#[tokio::test]
async fn a_subscriber_that_leaves_after_the_reply_has_got_every_message() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    for round in 0..50 {
        let mut subscriber = server.peer().await;
        subscriber.ask(&["SUBSCRIBE", "ql:log"]).await;
        let calls: Vec<u8> =
            (0..20).flat_map(|number| peer.call(&format!("put 0 w q {round}-{number} k {{}} 0"))).collect();
        peer.send(&calls).await;
        for _ in 0..20 {
            peer.read().await;
        }
        subscriber.send(&common::request(&["UNSUBSCRIBE", "ql:log"])).await;
        for number in 0..20 {
            let (_, text) = subscriber.message().await;
            assert!(text.contains(&format!("\"{round}-{number}\"")), "{text}");
        }
        assert_eq!(subscriber.read().await.items()[0], "unsubscribe".into());
    }
    server.end().await;
}

#[tokio::test]
async fn in_resp3_messages_are_pushes_and_come_before_the_callers_own_reply() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    peer.ask(&["HELLO", "3"]).await;
    let subscribed = peer.ask(&["SUBSCRIBE", "ql:log"]).await;
    assert_eq!(subscribed, Value::Push(vec!["subscribe".into(), "ql:log".into(), 1.into()]));
    let message = |jid: &str| {
        let text = format!(r#"{{"jid":"{jid}","event":"put","queue":"q"}}"#);
        Value::Push(vec!["message".into(), "ql:log".into(), Value::Bulk(text)])
    };
    let calls = [peer.call("put 0 w q a k {} 0"), peer.call("get 0 nobody")].concat();
    peer.send(&calls).await;
    assert_eq!(peer.read().await, message("a"));
    assert_eq!(peer.read().await, "a".into());
    assert_eq!(peer.read().await, Value::Nil);
    server.end().await;
}

#[tokio::test]
async fn a_subscription_takes_effect_in_its_turn() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    peer.ask(&["HELLO", "3"]).await;
    let calls = [
        peer.call("put 0 w q before k {} 0"),
        common::request(&["SUBSCRIBE", "ql:log"]),
        peer.call("put 0 w q between k {} 0"),
        common::request(&["UNSUBSCRIBE"]),
        peer.call("put 0 w q after k {} 0"),
    ];
    peer.send(&calls.concat()).await;
    assert_eq!(peer.read().await, "before".into());
    assert_eq!(peer.read().await.items()[0], "subscribe".into());
    assert!(peer.message().await.1.contains("between"));
    assert_eq!(peer.read().await, "between".into());
    assert_eq!(peer.read().await.items()[0], "unsubscribe".into());
    assert_eq!(peer.read().await, "after".into());
    server.end().await;
}

#[tokio::test]
async fn channels_and_patterns_come_and_go() {
    let server = Server::start().await;
    let mut peer = server.peer().await;
    let mut other = server.qless().await;
    peer.send(&common::request(&["SUBSCRIBE", "ql:log", "ql:put", "ql:log"])).await;
    for (name, count) in [("ql:log", 1), ("ql:put", 2), ("ql:log", 2)] {
        assert_eq!(peer.read().await, Value::Array(vec!["subscribe".into(), name.into(), count.into()]));
    }
    let pattern = peer.ask(&["PSUBSCRIBE", "ql:[l]og"]).await;
    assert_eq!(pattern, Value::Array(vec!["psubscribe".into(), "ql:[l]og".into(), 3.into()]));
    assert_eq!(other.ask(&["PUBSUB", "CHANNELS"]).await, Value::array(["ql:log", "ql:put"]));
    assert_eq!(other.ask(&["PUBSUB", "CHANNELS", "*put"]).await, Value::array(["ql:put"]));
    assert_eq!(
        other.ask(&["PUBSUB", "NUMSUB", "ql:log", "x"]).await,
        Value::Array(vec!["ql:log".into(), 1.into(), "x".into(), 0.into()])
    );
    assert_eq!(other.ask(&["PUBSUB", "NUMPAT"]).await, 1.into());
    // To the channel first, then to the pattern.
    other.qless("put 0 w q j k {} 0").await;
    assert_eq!(peer.read().await.items()[0], "message".into());
    let matched = peer.read().await;
    assert_eq!(matched.items()[..3], ["pmessage".into(), "ql:[l]og".into(), "ql:log".into()]);
    // In RESP2, a subscriber may send little else.
    let refused = peer.ask(&["ECHO", "x"]).await;
    assert!(refused.text().starts_with("ERR Can't execute 'echo'"), "{refused:?}");
    assert_eq!(peer.ask(&["PING"]).await, Value::array(["pong", ""]));
    assert_eq!(peer.ask(&["PING", "x"]).await, Value::array(["pong", "x"]));
    peer.send(&common::request(&["UNSUBSCRIBE"])).await;
    assert_eq!(peer.read().await.items()[1..], ["ql:log".into(), 2.into()]);
    assert_eq!(peer.read().await.items()[1..], ["ql:put".into(), 1.into()]);
    assert_eq!(peer.ask(&["PUNSUBSCRIBE", "x"]).await.items()[1..], ["x".into(), 1.into()]);
    assert_eq!(peer.ask(&["PUNSUBSCRIBE"]).await.items()[1..], ["ql:[l]og".into(), 0.into()]);
    assert_eq!(
        peer.ask(&["UNSUBSCRIBE"]).await,
        Value::Array(vec!["unsubscribe".into(), Value::Nil, 0.into()])
    );
    assert_eq!(peer.ask(&["ECHO", "x"]).await, "x".into());
    assert_eq!(other.ask(&["PUBSUB", "CHANNELS"]).await, Value::Array(vec![]));
    server.end().await;
}

#[tokio::test]
async fn a_closed_connection_is_no_longer_subscribed() {
    let server = Server::start().await;
    let mut other = server.qless().await;
    let mut peer = server.peer().await;
    peer.ask(&["SUBSCRIBE", "ql:log"]).await;
    drop(peer);
    // The server notices when it reads or writes; nothing is lost if that takes a moment.
    while other.ask(&["PUBSUB", "NUMSUB", "ql:log"]).await.items()[1] != 0.into() {
        other.qless("put 0 w q j k {} 0").await;
    }
    server.end().await;
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_is_disconnected_and_others_are_not() {
    let server = Server::start().await;
    let mut slow = server.peer().await;
    slow.ask(&["SUBSCRIBE", "ql:log"]).await;
    let mut subscriber = server.peer().await;
    subscriber.ask(&["SUBSCRIBE", "ql:log"]).await;
    let mut peer = server.qless().await;
    let message = "m".repeat(1 << 20);
    let rounds = 100;
    for number in 0..rounds {
        peer.qless(&format!("put 0 w q j{number} k {{}} 0")).await;
        peer.qless("pop 0 q w 1").await;
        let jid = format!("j{number}");
        assert_eq!(peer.qless_words(&["fail", "0", &jid, "w", "g", &message]).await, jid.as_str().into());
        for _ in 0..2 {
            assert!(subscriber.message().await.1.contains(&jid));
        }
    }
    // Messages on their way arrive, and then the connection ends.
    let mut messages_until_marker = 0;
    while slow.next().await.is_some() {
        messages_until_marker += 1;
    }
    assert!(messages_until_marker < 2 * rounds, "{messages_until_marker}");
    assert_eq!(peer.ask(&["PUBSUB", "NUMSUB", "ql:log"]).await.items()[1], 1.into());
    server.end().await;
}

/// A client that puts jobs without a pause, until it is aborted.
fn publish_without_end(server: &Server) -> JoinHandle<()> {
    let connecting = Peer::connect(server.port);
    tokio::spawn(async move {
        let mut peer = connecting.await;
        peer.sha = peer.ask(&["SCRIPT", "LOAD", "return qless"]).await.text().to_owned();
        let calls: Vec<u8> =
            (0..20).flat_map(|number| peer.call(&format!("put 0 w q {number} k {{}} 0"))).collect();
        loop {
            peer.send(&calls).await;
            for _ in 0..20 {
                peer.read().await;
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_comes_after_the_confirmation_that_ends_a_subscription() {
    let server = Server::start().await;
    let publishing = publish_without_end(&server);
    let mut subscriber = server.peer().await;
    for round in 0..1_000 {
        let (begin, end) = match round % 3 {
            0 => (&["SUBSCRIBE", "ql:log"][..], &["UNSUBSCRIBE", "ql:log"][..]),
            1 => (&["PSUBSCRIBE", "ql:*"][..], &["PUNSUBSCRIBE"][..]),
            _ => (&["SUBSCRIBE", "ql:log"][..], &["RESET"][..]),
        };
        subscriber.ask(begin).await;
        assert!(subscriber.message().await.1.contains("put"));
        // The reply to ECHO comes next, as on a connection that was never subscribed.
        subscriber.send(&[common::request(end), common::request(&["ECHO", "x"])].concat()).await;
        loop {
            match subscriber.read().await {
                Value::Simple(reset) if reset == "RESET" => break,
                reply if reply.items()[0].text().contains("unsubscribe") => break,
                message => assert!(message.items()[0].text().contains("message"), "{message:?}"),
            }
        }
        assert_eq!(subscriber.read().await, "x".into(), "round {round}");
    }
    publishing.abort();
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_quits_or_closes_is_let_go_although_messages_never_end() {
    let server = Server::start().await;
    let publishing: Vec<_> = (0..2).map(|_| publish_without_end(&server)).collect();
    for quits in [true, false] {
        let mut subscriber = server.peer().await;
        subscriber.ask(&["SUBSCRIBE", "ql:log"]).await;
        assert!(subscriber.message().await.1.contains("put"));
        if quits {
            subscriber.send(&common::request(&["QUIT"])).await;
        } else {
            subscriber.stream.shutdown().await.unwrap();
        }
        let (mut messages, mut last) = (0, Value::Nil);
        while let Some(value) = subscriber.next().await {
            (messages, last) = (messages + 1, value);
            assert!(messages < 200_000, "the connection does not end");
        }
        assert_eq!(last == Value::simple("OK"), quits, "{last:?}");
    }
    publishing.iter().for_each(JoinHandle::abort);
    server.end().await;
}

/// A backend in memory whose event stream opens when the test allows it.
struct SlowToSubscribe {
    inner: StoreBackend,
    asked: Semaphore,
    allowed: Semaphore,
}

impl Backend for SlowToSubscribe {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        self.inner.execute(batch)
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        self.inner.pop_or_wait(pop, wait)
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        Box::pin(async {
            self.asked.add_permits(1);
            self.allowed.acquire().await.unwrap().forget();
            self.inner.subscribe().await
        })
    }
}

/// A server over such a backend.
async fn slow_to_subscribe() -> (Arc<SlowToSubscribe>, u16, CancellationToken, JoinHandle<()>) {
    let clock = ManualClock::new();
    let inner = StoreBackend::in_memory(clock.clone()).unwrap();
    let backend = Arc::new(SlowToSubscribe { inner, asked: Semaphore::new(0), allowed: Semaphore::new(0) });
    let front = Front::new(backend.clone(), clock, Options::default());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = tokio::spawn(async move { front.serve_tcp(listener, stopped).await });
    (backend, port, stop, task)
}

#[tokio::test]
async fn a_subscriber_gets_the_messages_of_calls_that_are_read_while_its_subscription_begins() {
    let (backend, port, stop, task) = slow_to_subscribe().await;
    let (mut subscriber, mut caller, mut witness) =
        (Peer::connect(port).await, Peer::connect(port).await, Peer::connect(port).await);
    for round in 0..10 {
        let channels = ["ql:put", "ql:log", "ql:w:w"];
        let names: Vec<&str> = ["SUBSCRIBE"].into_iter().chain(channels).collect();
        subscriber.send(&common::request(&names)).await;
        // The server has read the subscription, and now it reads the call.
        backend.asked.acquire().await.unwrap().forget();
        let jid = format!("j{round}");
        caller.send(&common::request(&["EVAL", "", "0", "put", "0", "w", "q", &jid, "k", "{}", "0"])).await;
        for _ in 0..50 {
            assert_eq!(witness.ask(&["PING"]).await, Value::simple("PONG"));
        }
        backend.allowed.add_permits(1);
        assert_eq!(caller.read().await, jid.as_str().into());
        for (name, count) in channels.iter().zip(1..) {
            let confirmed = Value::Array(vec!["subscribe".into(), (*name).into(), Value::Integer(count)]);
            assert_eq!(subscriber.read().await, confirmed);
        }
        subscriber.send(&common::request(&["UNSUBSCRIBE"])).await;
        assert!(subscriber.message().await.1.contains(&jid));
        for _ in channels {
            assert_eq!(subscriber.read().await.items()[0], "unsubscribe".into());
        }
    }
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn calls_do_not_wait_for_a_subscription_that_never_begins() {
    let (backend, port, stop, task) = slow_to_subscribe().await;
    let (mut subscriber, mut caller) = (Peer::connect(port).await, Peer::connect(port).await);
    subscriber.send(&common::request(&["SUBSCRIBE", "ql:log"])).await;
    backend.asked.acquire().await.unwrap().forget();
    for _ in 0..20 {
        assert_eq!(caller.ask(&["EVAL", "", "0", "length", "0", "q"]).await, 0.into());
    }
    backend.allowed.add_permits(1);
    assert_eq!(subscriber.read().await.items()[0], "subscribe".into());
    stop.cancel();
    task.await.unwrap();
}

/// Names are kept for as long as a connection is subscribed.
#[tokio::test]
async fn the_name_of_a_channel_has_a_limit() {
    let server = Server::start().await;
    let mut peer = server.peer().await;
    let long = "x".repeat(4_097);
    for request in [&["SUBSCRIBE", "ql:log", &long][..], &["PSUBSCRIBE", &long]] {
        let reply = peer.ask(request).await;
        assert!(reply.text().contains("at most 4096 bytes"), "{reply:?}");
    }
    assert_eq!(peer.ask(&["PUBSUB", "CHANNELS"]).await, Value::Array(Vec::new()));
    assert!(!matches!(peer.ask(&["SUBSCRIBE", &long[1..]]).await, Value::Error(_)));
    server.end().await;
}
