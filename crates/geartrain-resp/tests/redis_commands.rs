//! Redis commands that client libraries send besides calling scripts.
use crate::common;

use common::{Server, Value};
use geartrain_resp::Options;

#[tokio::test]
async fn commands_of_client_libraries_on_connect_are_answered() {
    let server = Server::start().await;
    let mut peer = server.peer().await;
    server.clock.set(12.5);
    for (words, expected) in [
        (vec!["PING"], Value::simple("PONG")),
        (vec!["ping", "x"], "x".into()),
        (vec!["ECHO", "x"], "x".into()),
        (vec!["SELECT", "0"], Value::simple("OK")),
        (
            vec!["SELECT", "1"],
            Value::error(
                "ERR DB index is out of range: a geartrain server has database 0 only; start another server for another queue system",
            ),
        ),
        (vec!["CLIENT", "SETINFO", "LIB-NAME", "redis-py"], Value::simple("OK")),
        (vec!["CLIENT", "GETNAME"], Value::Nil),
        (vec!["CLIENT", "SETNAME", "me"], Value::simple("OK")),
        (vec!["client", "getname"], "me".into()),
        (
            vec!["CLIENT", "SETNAME", "m e"],
            Value::error("ERR a client's name has at most 512 bytes, and no blanks or special characters"),
        ),
        (vec!["CLIENT", "NO-EVICT", "on"], Value::simple("OK")),
        (vec!["CLIENT", "NO-TOUCH", "on"], Value::simple("OK")),
        (vec!["CLIENT", "ID"], 1.into()),
        (vec!["CONFIG", "GET", "save"], Value::Array(vec![])),
        (vec!["COMMAND", "DOCS"], Value::Array(vec![])),
        (vec!["COMMAND", "COUNT"], 39.into()),
        (vec!["COMMAND", "INFO", "nonsense"], Value::Array(vec![Value::Nil])),
        (vec!["UNWATCH"], Value::simple("OK")),
        (vec!["TIME"], Value::array(["12", "500000"])),
        (vec!["ROLE"], Value::Array(vec!["master".into(), 0.into(), Value::Array(vec![])])),
        (vec!["DBSIZE"], 0.into()),
        (vec!["FUNCTION", "LOAD", "REPLACE", "#!lua name=geartrain_1\nreturn 1"], "geartrain_1".into()),
        (
            vec!["FUNCTION", "LOAD", "return 1"],
            Value::error("ERR a library begins with a line like #!lua name=<name>"),
        ),
        (vec!["FUNCTION", "LIST"], Value::Array(vec![])),
        (vec!["FUNCTION", "DUMP"], Value::Nil),
        (vec!["FUNCTION", "FLUSH"], Value::simple("OK")),
        (vec!["AUTH", "x"], Value::error("ERR AUTH is not needed: no password or key is set here")),
        (vec!["ECHO"], Value::error("ERR wrong number of arguments for 'echo' command")),
        (vec!["SUBSCRIBE"], Value::error("ERR wrong number of arguments for 'subscribe' command")),
        (vec!["FCALL"], Value::error("ERR wrong number of arguments for 'fcall' command")),
        (vec!["HELLO", "4"], Value::error("NOPROTO unsupported protocol version")),
        (vec!["HELLO", "3", "NONSENSE"], Value::error("ERR Syntax error in HELLO")),
    ] {
        assert_eq!(peer.ask(&words).await, expected, "{words:?}");
    }
    for words in [
        vec!["WATCH", "x"],
        vec!["GET", "x"],
        vec!["SET", "x", "y"],
        vec!["RPUSH", "x", "y"],
        vec!["BRPOP", "x", "1"],
        vec!["HGET", "ql:j:x", "state"],
        vec!["DEL", "ql:j:x"],
    ] {
        let error = peer.ask(&words).await;
        let expected = format!("ERR geartrain does not know the command '{}'", words[0]);
        assert!(error.text().starts_with(&expected), "{error:?}");
    }
    for words in [
        vec!["CLIENT", "REPLY", "OFF"],
        vec!["COMMAND", "GETKEYS"],
        vec!["PUBSUB", "SHARDCHANNELS"],
        vec!["SCRIPT", "DEBUG", "YES"],
    ] {
        let error = peer.ask(&words).await;
        assert!(error.text().starts_with("ERR geartrain "), "{error:?}");
    }
    for words in [["KEYS", "*"], ["FLUSHDB", "ASYNC"]] {
        assert!(peer.ask(&words).await.text().contains("is not allowed here"), "{words:?}");
    }
    let info = peer.ask(&["INFO", "server"]).await;
    assert!(info.text().contains("redis_version:7.0.0\r\n") && info.text().contains("geartrain_version:"));
    assert!(peer.ask(&["CLIENT", "LIST"]).await.text().contains("name=me"));
    assert!(peer.ask(&["CLIENT", "INFO"]).await.text().starts_with("id=1 addr=127.0.0.1:"));
    assert_eq!(peer.ask(&["COMMAND"]).await.items().len(), 39);
    assert_eq!(peer.ask(&["QUIT"]).await, Value::simple("OK"));
    assert_eq!(peer.next().await, None);
    server.end().await;
}

#[tokio::test]
async fn hello_chooses_the_protocol_and_reset_goes_back() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let Value::Map(hello) = peer.ask(&["HELLO", "3", "SETNAME", "me"]).await else { panic!("not a map") };
    assert!(
        hello.contains(&("proto".into(), 3.into())) && hello.contains(&("server".into(), "redis".into()))
    );
    assert_eq!(peer.ask(&["CLIENT", "GETNAME"]).await, "me".into());
    assert_eq!(peer.ask(&["CONFIG", "GET", "x"]).await, Value::Map(vec![]));
    peer.qless("recur 0 q r k {} interval 60 1.5").await;
    assert_eq!(peer.ask(&["ZSCORE", "ql:q:q-recur", "r"]).await, Value::Double("1.5".into()));
    // The API replies with the same types in both.
    assert_eq!(peer.qless("get 0 nobody").await, Value::Nil);
    assert_eq!(peer.qless("put 0 w q j k {} 0").await, "j".into());
    assert_eq!(peer.qless("cancel 0 j").await, Value::array(["j"]));
    assert_eq!(peer.qless("length 0 q").await, 0.into());
    assert_eq!(peer.qless("heartbeat 0 j w").await, Value::wrong("Heartbeat(): Job j does not exist"));
    assert_eq!(peer.ask(&["RESET"]).await, Value::simple("RESET"));
    assert_eq!(peer.ask(&["CONFIG", "GET", "x"]).await, Value::Array(vec![]));
    assert_eq!(peer.ask(&["HELLO"]).await.items()[5], 2.into());
    server.end().await;
}

#[tokio::test]
async fn flushing_leaves_nothing_that_can_be_listed() {
    let server = Server::with(Options { allow_flush: true, ..Options::default() }).await;
    let mut peer = server.qless().await;
    for call in [
        "put 0 w q done k {} 0",
        "pop 0 q w 1",
        "complete 0 done w q {}",
        "put 0 w q failed k {} 0",
        "pop 0 q w 1",
        "fail 0 failed w g m",
        "put 0 w q running k {} 0",
        "pop 0 q w 1",
        "put 0 w q waiting k {} 0",
        "put 0 w q late k {} 1000",
        r#"put 0 w r blocked k {} 0 depends ["waiting"]"#,
        r#"put 0 w q deeper k {} 0 depends ["blocked","running"]"#,
        "recur 0 q every k {} interval 60 1000",
        "config.set 0 heartbeat 7",
        "track 0 track waiting",
        "pause 0 q",
    ] {
        let reply = peer.qless(call).await;
        assert!(!matches!(reply, Value::Error(_)), "{call}: {reply:?}");
    }
    let keys = |value: Value| value.items().iter().map(|key| key.text().to_owned()).collect::<Vec<_>>();
    assert_eq!(
        keys(peer.ask(&["KEYS", "ql:j:*"]).await),
        [
            "ql:j:blocked",
            "ql:j:deeper",
            "ql:j:done",
            "ql:j:failed",
            "ql:j:late",
            "ql:j:running",
            "ql:j:waiting"
        ]
    );
    assert_eq!(keys(peer.ask(&["KEYS", "ql:r:*"]).await), ["ql:r:every"]);
    assert_eq!(
        keys(peer.ask(&["KEYS", "ql:q:*"]).await),
        [
            "ql:q:q-depends",
            "ql:q:q-locks",
            "ql:q:q-recur",
            "ql:q:q-scheduled",
            "ql:q:q-work",
            "ql:q:r-depends"
        ]
    );
    assert_eq!(peer.ask(&["DBSIZE"]).await, 6.into());
    assert_eq!(peer.ask(&["FLUSHDB"]).await, Value::simple("OK"));
    assert_eq!(peer.ask(&["KEYS", "*"]).await, Value::Array(vec![]));
    for (call, expected) in [
        ("queues 0", "{}"),
        ("workers 0", "{}"),
        ("failed 0", "{}"),
        ("track 0", r#"{"jobs":{},"expired":{}}"#),
        ("multiget 0 done failed running waiting late blocked deeper", "{}"),
    ] {
        assert_eq!(peer.qless(call).await, expected.into(), "{call}");
    }
    assert_eq!(peer.qless("config.get 0 heartbeat").await, 60.into());
    // The queue is no longer paused.
    peer.qless("put 0 w q again k {} 0").await;
    assert_eq!(peer.qless("pop 0 q w 1").await.json()[0]["jid"], "again");
    server.end().await;
}
