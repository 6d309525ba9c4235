//! Reads of Qless's documented keys, and messages that clients publish.
use crate::common;

use common::{Server, Value, request};

/// Calls that leave a job in each part of a queue.
const JOBS: [&str; 12] = [
    r#"put 100 w q held k {} 0 tags ["t"]"#,
    "pop 100 q w 1",
    "put 100 w q waits k {} 0",
    "put 100 w q waits-too k {} 0",
    "put 100 w q later k {} 1000",
    r#"put 100 w q blocked k {} 0 depends ["waits"]"#,
    "recur 100 q every k {} interval 60 1000",
    "put 100 w other done k {} 0",
    "pop 100 other w 1",
    "complete 101.5 done w other {}",
    "put 100 w other bad k {} 0",
    "track 100 track held",
];

async fn with_jobs() -> (Server, common::Peer) {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    for call in JOBS {
        let reply = peer.qless(call).await;
        assert!(!matches!(reply, Value::Error(_)), "{call}: {reply:?}");
    }
    (server, peer)
}

#[tokio::test]
async fn the_parts_of_a_queue_are_counted_without_moving_a_job() {
    let (server, mut peer) = with_jobs().await;
    // By this clock everything is due, and every worker silent for long.
    server.clock.set(1e9);
    for (part, count) in [("locks", 1), ("work", 2), ("scheduled", 1), ("depends", 1), ("recur", 1)] {
        assert_eq!(peer.ask(&["ZCARD", &format!("ql:q:q-{part}")]).await, count.into(), "{part}");
        assert_eq!(peer.ask(&["zcard", &format!("ql:q:nobody-{part}")]).await, 0.into(), "{part}");
    }
    for (key, count) in [("ql:queues", 2), ("ql:workers", 1), ("ql:tracked", 1), ("ql:t:t", 1), ("ql:t:x", 0)]
    {
        assert_eq!(peer.ask(&["ZCARD", key]).await, count.into(), "{key}");
    }
    assert_eq!(peer.qless("jobs 100 scheduled q").await, Value::array(["later"]));
    server.end().await;
}

#[tokio::test]
async fn scores_are_those_of_the_job() {
    let (server, mut peer) = with_jobs().await;
    for (key, jid, score) in [
        ("ql:q:q-scheduled", "later", Some("1100")),
        ("ql:q:q-scheduled", "waits", None),
        ("ql:q:other-scheduled", "later", None),
        ("ql:q:q-locks", "held", Some("160")),
        ("ql:q:q-recur", "every", Some("1100")),
        ("ql:q:q-recur", "held", None),
        ("ql:completed", "done", Some("101.5")),
        ("ql:completed", "", None),
    ] {
        assert_eq!(
            peer.ask(&["ZSCORE", key, jid]).await,
            score.map_or(Value::Nil, Value::from),
            "{key} {jid}"
        );
    }
    server.end().await;
}

#[tokio::test]
async fn keys_exist_where_qless_would_have_them() {
    let (server, mut peer) = with_jobs().await;
    for (key, kind) in [
        ("ql:q:q-work", "zset"),
        ("ql:q:x-work", "none"),
        ("ql:j:held", "hash"),
        ("ql:j:x", "none"),
        ("ql:j:held-history", "list"),
        ("ql:j:blocked-dependencies", "set"),
        ("ql:j:waits-dependents", "set"),
        ("ql:j:held-dependents", "none"),
        ("ql:r:every", "hash"),
        ("ql:r:held", "none"),
        ("ql:config", "none"),
        ("ql:queues", "zset"),
        ("ql:workers", "zset"),
        ("ql:tracked", "zset"),
        ("ql:completed", "zset"),
        ("ql:failures", "none"),
        ("ql:f:g", "none"),
        ("ql:t:t", "zset"),
    ] {
        assert_eq!(peer.ask(&["TYPE", key]).await, Value::simple(kind), "{key}");
        assert_eq!(peer.ask(&["EXISTS", key]).await, i64::from(kind != "none").into(), "{key}");
    }
    peer.qless("config.set 100 heartbeat 7").await;
    peer.qless("pop 100 other w 1").await;
    peer.qless("fail 100 bad w g m").await;
    assert_eq!(
        peer.ask(&["EXISTS", "ql:config", "ql:failures", "ql:f:g", "ql:f:g", "ql:j:x"]).await,
        4.into()
    );
    server.end().await;
}

#[tokio::test]
async fn wrong_types_and_keys_that_are_not_documented_are_errors() {
    let (server, mut peer) = with_jobs().await;
    let wrong_type = Value::error("WRONGTYPE Operation against a key holding the wrong kind of value");
    for words in [
        vec!["ZCARD", "ql:j:held"],
        vec!["ZSCORE", "ql:j:held", "x"],
        vec!["ZCARD", "ql:j:held-history"],
        vec!["ZCARD", "ql:r:every"],
    ] {
        assert_eq!(peer.ask(&words).await, wrong_type, "{words:?}");
    }
    assert_eq!(peer.ask(&["ZCARD", "ql:j:x"]).await, 0.into());
    assert_eq!(peer.ask(&["ZSCORE", "ql:j:x", "y"]).await, Value::Nil);
    for words in [vec!["ZCARD"], vec!["ZCARD", "a", "b"], vec!["ZSCORE", "a"], vec!["EXISTS"], vec!["TYPE"]] {
        let error = format!("ERR wrong number of arguments for '{}' command", words[0].to_lowercase());
        assert_eq!(peer.ask(&words).await, Value::error(&error), "{words:?}");
    }
    for words in [
        vec!["ZCARD", "mine"],
        vec!["EXISTS", "ql:config", "mine"],
        vec!["TYPE", "ql:tags"],
        vec!["ZCARD", "ql:w:w:jobs"],
        vec!["ZSCORE", "ql:q:q-work", "waits"],
        vec!["ZCARD", "ql:completed"],
    ] {
        let error = peer.ask(&words).await;
        let key = words.iter().skip(1).find(|word| **word != "ql:config").unwrap();
        assert!(error.text().starts_with("ERR geartrain has no keys"), "{error:?}");
        assert!(error.text().contains(&format!("{} of '{key}'", words[0])), "{error:?}");
    }
    server.end().await;
}

/// The Perl client sends them one after the other and reads the replies later.
#[tokio::test]
async fn reads_are_answered_in_their_turn_among_pipelined_calls() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let mut bytes = Vec::new();
    for number in 0..3 {
        bytes.extend(peer.call(&format!("put 0 w q j{number} k {{}} 0")));
        bytes.extend(request(&["ZCARD", "ql:q:q-work"]));
    }
    bytes.extend(request(&["ZCARD"]));
    peer.send(&bytes).await;
    for number in 0..3 {
        assert_eq!(peer.read().await, Value::from(&format!("j{number}")[..]));
        assert_eq!(peer.read().await, (number + 1).into());
    }
    assert!(matches!(peer.read().await, Value::Error(_)));
    server.end().await;
}

/// How Ruby's workers end the thread that listens for lost locks.
#[tokio::test]
async fn a_published_message_reaches_subscribers_and_is_counted() {
    let server = Server::start().await;
    let (mut worker, mut listener, mut all) =
        (server.qless().await, server.peer().await, server.peer().await);
    listener.send(&request(&["SUBSCRIBE", "ql:w:w", "4f5b"])).await;
    listener.read().await;
    listener.read().await;
    assert_eq!(worker.ask(&["PUBLISH", "4f5b", "disconnect"]).await, 1.into());
    assert_eq!(listener.message().await, ("4f5b".into(), "disconnect".into()));
    all.ask(&["PSUBSCRIBE", "*"]).await;
    assert_eq!(worker.ask(&["PUBLISH", "ql:w:w", "{}"]).await, 2.into());
    assert_eq!(listener.message().await, ("ql:w:w".into(), "{}".into()));
    assert_eq!(all.message().await, ("ql:w:w".into(), "{}".into()));
    listener.send(&request(&["UNSUBSCRIBE", "ql:w:w", "4f5b"])).await;
    listener.read().await;
    listener.read().await;
    assert_eq!(worker.ask(&["PUBLISH", "4f5b", "x"]).await, 1.into());
    assert_eq!(all.ask(&["PUNSUBSCRIBE"]).await.items()[0], "pmessage".into());
    assert_eq!(all.read().await.items()[0], "punsubscribe".into());
    assert_eq!(worker.ask(&["PUBLISH", "4f5b", "x"]).await, 0.into());
    for words in [vec!["PUBLISH", "x"], vec!["PUBLISH", "x", "y", "z"]] {
        let error = "ERR wrong number of arguments for 'publish' command";
        assert_eq!(worker.ask(&words).await, Value::error(error));
    }
    assert_eq!(
        worker.ask(&["PUBLISH", "gt:events", "x"]).await,
        Value::error("ERR channels that begin with gt: are geartrain's own")
    );
    server.end().await;
}
