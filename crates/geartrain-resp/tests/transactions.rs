//! `MULTI`, `EXEC` and `DISCARD`.
use crate::common;

use common::{Server, Value, request};

/// What the length of a queue is in Ruby, Java and Lua.
#[tokio::test]
async fn a_transaction_replies_with_the_replies_of_its_requests() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    peer.qless("put 0 w q a k {} 0").await;
    peer.qless("put 0 w q b k {} 10").await;
    assert_eq!(peer.ask(&["MULTI"]).await, Value::simple("OK"));
    for part in ["locks", "work", "scheduled", "depends"] {
        assert_eq!(peer.ask(&["ZCARD", &format!("ql:q:q-{part}")]).await, Value::simple("QUEUED"));
    }
    assert_eq!(peer.ask(&["EXEC"]).await, Value::array([0, 1, 1, 0]));
    // Everything in one go, with requests of all kinds.
    let mut bytes = Vec::new();
    bytes.extend(request(&["multi"]));
    bytes.extend(peer.call("put 0 w q c k {} 0"));
    bytes.extend(request(&["PING"]));
    bytes.extend(request(&["ZCARD", "ql:q:q-work"]));
    bytes.extend(peer.call("nonsense 0"));
    bytes.extend(request(&["PUBLISH", "x", "y"]));
    bytes.extend(request(&["UNWATCH"]));
    bytes.extend(peer.call("length 0 q"));
    bytes.extend(request(&["exec"]));
    bytes.extend(peer.call("length 0 q"));
    peer.send(&bytes).await;
    assert_eq!(peer.read().await, Value::simple("OK"));
    for _ in 0..7 {
        assert_eq!(peer.read().await, Value::simple("QUEUED"));
    }
    assert_eq!(
        peer.read().await,
        Value::Array(vec![
            "c".into(),
            Value::simple("PONG"),
            2.into(),
            Value::wrong("Unknown command nonsense"),
            0.into(),
            Value::simple("OK"),
            3.into(),
        ])
    );
    assert_eq!(peer.read().await, 3.into());
    server.end().await;
}

#[tokio::test]
async fn a_transaction_is_executed_by_exec_alone() {
    let server = Server::start().await;
    let (mut peer, mut other) = (server.qless().await, server.qless().await);
    let put = peer.call("put 0 w q a k {} 0");
    peer.ask(&["MULTI"]).await;
    peer.send(&put).await;
    assert_eq!(peer.read().await, Value::simple("QUEUED"));
    assert_eq!(other.qless("length 0 q").await, 0.into());
    assert_eq!(peer.ask(&["DISCARD"]).await, Value::simple("OK"));
    assert_eq!(peer.qless("length 0 q").await, 0.into());
    peer.ask(&["MULTI"]).await;
    peer.send(&put).await;
    assert_eq!(peer.read().await, Value::simple("QUEUED"));
    assert_eq!(peer.ask(&["RESET"]).await, Value::simple("RESET"));
    assert_eq!(peer.qless("length 0 q").await, 0.into());
    assert_eq!(peer.ask(&["MULTI"]).await, Value::simple("OK"));
    assert_eq!(peer.ask(&["EXEC"]).await, Value::Array(vec![]));
    server.end().await;
}

#[tokio::test]
async fn wrong_transactions_get_the_errors_of_redis() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    assert_eq!(peer.ask(&["EXEC"]).await, Value::error("ERR EXEC without MULTI"));
    assert_eq!(peer.ask(&["DISCARD"]).await, Value::error("ERR DISCARD without MULTI"));
    peer.ask(&["MULTI"]).await;
    assert_eq!(peer.ask(&["MULTI"]).await, Value::error("ERR MULTI calls can not be nested"));
    assert_eq!(peer.ask(&["EXEC"]).await, Value::Array(vec![]));
    let abort = Value::error("EXECABORT Transaction discarded because of previous errors.");
    for (words, error) in [
        (vec!["ZCARD"], "ERR wrong number of arguments for 'zcard' command"),
        (vec!["EXEC", "x"], "ERR wrong number of arguments for 'exec' command"),
        (vec!["WATCH", "x"], "ERR WATCH inside MULTI is not allowed"),
        (vec!["SUBSCRIBE", "x"], "ERR Command not allowed inside a transaction"),
        (vec!["HELLO", "3"], "ERR Command not allowed inside a transaction"),
        (vec!["RPUSH", "x", "y"], "ERR geartrain does not know the command 'RPUSH'"),
    ] {
        peer.ask(&["MULTI"]).await;
        let put = peer.call("put 0 w q a k {} 0");
        peer.send(&put).await;
        assert_eq!(peer.read().await, Value::simple("QUEUED"));
        let refused = peer.ask(&words).await;
        assert!(refused.text().starts_with(error), "{words:?}: {refused:?}");
        assert_eq!(peer.ask(&["PING"]).await, Value::simple("QUEUED"));
        assert_eq!(peer.ask(&["EXEC"]).await, abort, "{words:?}");
        assert_eq!(peer.qless("length 0 q").await, 0.into(), "{words:?}");
    }
    server.end().await;
}

/// A push inside an array would be read as one of its items.
#[tokio::test]
async fn no_message_is_sent_within_the_reply_of_a_transaction() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    peer.ask(&["HELLO", "3"]).await;
    peer.send(&request(&["PSUBSCRIBE", "*"])).await;
    peer.read().await;
    let mut bytes = request(&["MULTI"]);
    let calls: usize = 40;
    for number in 0..calls {
        bytes.extend(peer.call(&format!("put 0 w q j{number} k {{}} 0")));
        bytes.extend(request(&["PUBLISH", "x", "y"]));
    }
    bytes.extend(request(&["EXEC"]));
    peer.send(&bytes).await;
    let (mut messages, mut replies) = (0, Vec::new());
    while messages < 2 * calls || replies.len() < 2 * calls + 2 {
        match peer.read().await {
            Value::Push(_) => messages += 1,
            reply => replies.push(reply),
        }
    }
    let done = replies.pop().unwrap();
    for (number, pair) in done.items().chunks(2).enumerate() {
        assert_eq!(pair, [Value::from(&format!("j{number}")[..]), 1.into()]);
    }
    assert_eq!(done.items().len(), 2 * calls);
    server.end().await;
}

/// Such a reply is encoded in pieces.
#[tokio::test]
async fn a_large_reply_is_one_of_a_transactions_replies() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let data = format!("\"{}\"", "x".repeat(200_000));
    for jid in ["a", "b", "c", "d"] {
        assert_eq!(peer.qless_words(&["put", "0", "w", "q", jid, "k", &data, "0"]).await, jid.into());
    }
    let mut bytes = request(&["MULTI"]);
    bytes.extend(request(&["ZCARD", "ql:q:q-work"]));
    bytes.extend(peer.call("pop 0 q w 3"));
    bytes.extend(peer.call("pop 0 q w 3"));
    bytes.extend(request(&["ZCARD", "ql:q:q-locks"]));
    bytes.extend(request(&["EXEC"]));
    bytes.extend(request(&["PING"]));
    peer.send(&bytes).await;
    for _ in 0..5 {
        peer.read().await;
    }
    let done = peer.read().await;
    let [before, first, second, after] = done.items() else { panic!("not four replies") };
    assert_eq!((before, after), (&4.into(), &4.into()));
    assert_eq!(first.json().as_array().unwrap().len(), 3);
    assert_eq!(second.json()[0]["jid"], "d");
    assert_eq!(peer.read().await, Value::simple("PONG"));
    server.end().await;
}
