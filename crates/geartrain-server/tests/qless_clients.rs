//! What released Qless clients do besides calling the script, on a server in memory and on a server in front
//! of a Redis: replies are those of a Redis with our script.

use std::net::SocketAddr;
use std::time::Duration;

use geartrain_redis::script;
use geartrain_server::{Server, Settings};
use geartrain_testkit::peers::RedisServer;
use redis::{Connection, Value};
use tokio::runtime::Runtime;

/// A timeout that must not be reached.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Geartrain {
    runtime: Runtime,
    server: Option<Server>,
}

impl Geartrain {
    fn start(store: &str) -> Geartrain {
        let settings = Settings::new(store, SocketAddr::from(([127, 0, 0, 1], 0)));
        let runtime = Runtime::new().unwrap();
        let server = runtime.block_on(Server::start(&settings)).unwrap();
        Geartrain { runtime, server: Some(server) }
    }

    fn url(&self) -> String {
        format!("redis://{}", self.server.as_ref().unwrap().resp())
    }
}

impl Drop for Geartrain {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
    }
}

fn connect(url: &str) -> Connection {
    let connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    connection.set_read_timeout(Some(TIMEOUT)).unwrap();
    connection
}

/// The reply to a request, or the text of its error.
fn ask(connection: &mut Connection, words: &[&str]) -> Result<Value, String> {
    redis::cmd(words[0]).arg(&words[1..]).query(connection).map_err(|error| error.to_string())
}

/// A Qless call from words separated by blanks.
fn call(connection: &mut Connection, words: &str) -> Result<Value, String> {
    let sha = &script::script().sha;
    let words: Vec<&str> = ["EVALSHA", sha, "0"].into_iter().chain(words.split(' ')).collect();
    ask(connection, &words)
}

fn load_script(connection: &mut Connection) {
    ask(connection, &["SCRIPT", "LOAD", &script::script().text]).unwrap();
}

/// Puts jobs into all parts of a queue. One line is one call.
const CALLS: &str = r#"put 100 w q held k {} 0 tags ["t"]
pop 100 q w 1
put 100 w q waits k {} 0
put 100 w q later k {} 1000
put 100 w q blocked k {} 0 depends ["waits"]
recur 100 q every k {} interval 60 1000
put 100 w other done k {} 0
pop 100 other w 1
complete 101.5 done w other {}
put 100 w other bad k {} 0
pop 100 other w 1
fail 102 bad w g m
track 100 track held
config.set 100 heartbeat 60"#;

#[test]
fn reads_of_documented_keys_and_transactions_reply_as_a_redis_does() {
    let (truth, redis) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let (memory, front) = (Geartrain::start("memory:"), Geartrain::start(&redis.url()));
    let mut peers = [connect(&truth.url()), connect(&memory.url()), connect(&front.url())];
    for peer in &mut peers {
        load_script(peer);
        for line in CALLS.lines() {
            call(peer, line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
    let mut requests: Vec<Vec<String>> = Vec::new();
    let keys = "ql:q:q-locks ql:q:q-work ql:q:q-scheduled ql:q:q-depends ql:q:q-recur ql:q:x-work ql:q:other-locks \
        ql:queues ql:workers ql:tracked ql:t:t ql:t:x ql:config ql:failures ql:f:g ql:f:x ql:j:held ql:j:x \
        ql:j:held-history ql:j:x-history ql:j:blocked-dependencies ql:j:waits-dependents ql:j:held-dependents \
        ql:r:every ql:r:x";
    for key in keys.split_whitespace() {
        requests.extend(["ZCARD", "TYPE", "EXISTS"].map(|word| vec![word.to_owned(), key.to_owned()]));
    }
    for line in "ZSCORE ql:q:q-scheduled later|ZSCORE ql:q:q-scheduled waits|ZSCORE ql:q:q-locks held|\
        ZSCORE ql:q:q-recur every|ZSCORE ql:q:q-recur x|ZSCORE ql:completed done|ZSCORE ql:completed held|\
        ZSCORE ql:j:held x|ZSCORE ql:config x|EXISTS ql:completed ql:j:held ql:j:held ql:j:x|TYPE ql:completed|\
        ZCARD|ZCARD a b|ZSCORE a|ZSCORE a b c|TYPE|TYPE a b|EXISTS|PUBLISH|PUBLISH a|PUBLISH a b c|PUBLISH a b|\
        EXEC|DISCARD|UNWATCH|MULTI|MULTI|EXEC|MULTI|DISCARD|MULTI x|\
        MULTI|ZCARD ql:q:q-locks|ZCARD ql:q:q-work|ZCARD ql:q:q-scheduled|ZCARD ql:q:q-depends|EXEC|\
        MULTI|ZCARD|PING|EXEC|EXEC|MULTI|ZSCORE ql:q:q-scheduled later|ZCARD ql:j:held|PING|ECHO x|EXEC"
        .split('|')
    {
        requests.push(line.split_whitespace().map(str::to_owned).collect());
    }
    for request in requests {
        let words: Vec<&str> = request.iter().map(String::as_str).collect();
        let [expected, memory, front] = &mut peers;
        let expected = ask(expected, &words);
        assert_eq!(ask(memory, &words), expected, "{words:?} in memory");
        assert_eq!(ask(front, &words), expected, "{words:?} in front of a Redis");
    }
}

/// The calls of a transaction are atomic: no other client's call is in between.
#[test]
fn a_job_is_in_one_part_of_its_queue_for_a_transaction() {
    let redis = RedisServer::start(&[]);
    for server in [Geartrain::start("memory:"), Geartrain::start(&redis.url())] {
        let (mut reader, mut worker) = (connect(&server.url()), connect(&server.url()));
        load_script(&mut worker);
        call(&mut worker, "put 0 w q j k {} 0").unwrap();
        let moves = std::thread::spawn(move || {
            for _ in 0..300 {
                call(&mut worker, "pop 0 q w 1").unwrap();
                call(&mut worker, "retry 0 j q w 10").unwrap();
                call(&mut worker, "put 0 w q j k {} 0").unwrap();
            }
        });
        while !moves.is_finished() {
            let mut length = redis::pipe();
            length.atomic();
            for part in ["locks", "work", "scheduled", "depends"] {
                length.cmd("ZCARD").arg(format!("ql:q:q-{part}"));
            }
            let counts: Vec<u64> = length.query(&mut reader).unwrap();
            assert_eq!(counts.iter().sum::<u64>(), 1, "{counts:?}");
        }
        moves.join().unwrap();
    }
}

/// A subscriber's messages up to one with this text, each as `channel text`.
fn until(subscription: &mut redis::PubSub<'_>, last: &str) -> Vec<String> {
    let mut messages = Vec::new();
    loop {
        let message = subscription.get_message().unwrap();
        let text: String = message.get_payload().unwrap();
        messages.push(format!("{} {text}", message.get_channel_name()));
        if text == last {
            return messages;
        }
    }
}

#[test]
fn a_message_published_on_a_server_reaches_its_subscribers_once_and_those_on_its_redis() {
    let redis = RedisServer::start(&[]);
    let server = Geartrain::start(&redis.url());
    let (mut here, mut there) = (connect(&server.url()), connect(&redis.url()));
    let (mut here, mut there) = (here.as_pubsub(), there.as_pubsub());
    let mut publisher = connect(&server.url());
    let mut publish = |channel: &str, text: &str| ask(&mut publisher, &["PUBLISH", channel, text]);
    assert_eq!(publish("ql:log", "too early"), Ok(Value::Int(0)));
    for channel in ["ql:log", "4f5b"] {
        here.subscribe(channel).unwrap();
        there.subscribe(channel).unwrap();
    }
    // A message that looks like an event of Qless comes once, too, as does one that occurs twice.
    let put = r#"{"jid":"j","event":"put","queue":"q"}"#;
    let sent =
        [("ql:log", put), ("ql:log", "x"), ("ql:log", put), ("4f5b", "y"), ("ql:log", put), ("4f5b", "end")];
    for (channel, text) in sent {
        assert_eq!(publish(channel, text), Ok(Value::Int(2)), "{channel} {text}");
    }
    let expected: Vec<String> = sent.iter().map(|(channel, text)| format!("{channel} {text}")).collect();
    assert_eq!(until(&mut here, "end"), expected);
    assert_eq!(until(&mut there, "end"), expected);
    // Events of calls are received as before.
    let mut caller = connect(&server.url());
    load_script(&mut caller);
    call(&mut caller, "put 0 w q j k {} 0").unwrap();
    let expected = [format!("ql:log {put}")];
    assert_eq!(until(&mut here, put), expected);
    assert_eq!(until(&mut there, put), expected);
    assert_eq!(publish("4f5b", "end"), Ok(Value::Int(2)));
    assert_eq!(until(&mut here, "end"), ["4f5b end"]);
    assert_eq!(until(&mut there, "end"), ["4f5b end"]);
    here.unsubscribe("4f5b").unwrap();
    there.unsubscribe("4f5b").unwrap();
    assert_eq!(publish("4f5b", "nobody"), Ok(Value::Int(0)));
}

/// How Ruby's workers end: a listener on its own connection, stopped by a message from another.
#[test]
fn a_listener_is_stopped_by_a_message() {
    let redis = RedisServer::start(&[]);
    for server in [Geartrain::start("memory:"), Geartrain::start(&redis.url())] {
        let (mut listener, mut worker) = (connect(&server.url()), connect(&server.url()));
        let mut subscription = listener.as_pubsub();
        subscription.subscribe(&["ql:w:w", "4f5b"]).unwrap();
        assert_eq!(ask(&mut worker, &["PUBLISH", "4f5b", "disconnect"]), Ok(Value::Int(1)));
        assert_eq!(until(&mut subscription, "disconnect"), ["4f5b disconnect"]);
        subscription.unsubscribe(&["ql:w:w", "4f5b"]).unwrap();
        assert_eq!(ask(&mut worker, &["PUBLISH", "4f5b", "again"]), Ok(Value::Int(0)));
        let refused = ask(&mut worker, &["SELECT", "1"]).unwrap_err();
        assert!(refused.contains("database 0 only"), "{refused}");
    }
}
