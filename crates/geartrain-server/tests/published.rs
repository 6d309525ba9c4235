//! Messages to subscribers come before the replies of the calls that published them, whatever store the
//! server has: with a Redis, replies and messages reach the server over different connections.

use std::net::Ipv4Addr;
use std::time::Duration;

use geartrain_server::{Server, Settings};
use geartrain_testkit::peers::{RedisServer, Scratch};
use redis::Value;
use tokio::runtime::Runtime;

/// How often a subscriber comes and goes.
const ROUNDS: usize = 2_000;

/// A timeout that must not be reached: the tests do not depend on it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection whose replies and messages are read one by one.
struct Peer {
    connection: redis::Connection,
    sha: String,
}

impl Peer {
    fn connect(server: &Server) -> Peer {
        let client = redis::Client::open(format!("redis://{}", server.resp())).unwrap();
        let connection = client.get_connection().unwrap();
        connection.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut peer = Peer { connection, sha: String::new() };
        let Value::BulkString(sha) = peer.ask("SCRIPT LOAD qless") else { panic!("no script") };
        peer.sha = String::from_utf8(sha).unwrap();
        peer
    }

    /// Sends words that are separated by single blanks.
    fn send(&mut self, words: &str) {
        let mut command = redis::Cmd::new();
        for word in words.split(' ') {
            command.arg(word);
        }
        self.connection.send_packed_command(&command.get_packed_command()).unwrap();
    }

    fn read(&mut self) -> Value {
        self.connection.recv_response().unwrap()
    }

    fn ask(&mut self, words: &str) -> Value {
        self.send(words);
        self.read()
    }

    fn qless(&mut self, call: &str) {
        let words = format!("EVALSHA {} 0 {call}", self.sha);
        let reply = self.ask(&words);
        assert!(!matches!(reply, Value::ServerError(_)), "{call}: {reply:?}");
    }

    /// The kind, channel and text of what arrives next on a connection with subscriptions.
    fn arrived(&mut self) -> Vec<String> {
        let Value::Array(parts) = self.read() else { panic!("not a message") };
        let text = |part: &Value| match part {
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => format!("{other:?}"),
        };
        parts.iter().map(text).collect()
    }
}

fn start(runtime: &Runtime, store: &str) -> Server {
    let settings = Settings {
        gearman: None,
        store: store.to_owned(),
        resp: (Ipv4Addr::LOCALHOST, 0).into(),
        password: None,
        insecure: false,
        allow_flush: false,
        demo: false,
        result_log: None,
        result_log_keep: None,
    };
    runtime.block_on(Server::start(&settings)).unwrap()
}

/// A caller cancels running jobs that are tracked. After each reply the subscriber sends a request: every
/// message must have arrived before its reply.
fn no_message_comes_late(subscriber_at: &Server, caller_at: &Server, ends: &[&str]) {
    let (mut subscriber, mut caller) = (Peer::connect(subscriber_at), Peer::connect(caller_at));
    for round in 0..ROUNDS {
        caller.qless(&format!("put 0 w q j{round} k {{}} 0"));
        caller.qless(&format!("track 0 track j{round}"));
        caller.qless("pop 0 q w 1");
        let by_pattern = round % 2 == 1;
        if by_pattern {
            subscriber.ask("PSUBSCRIBE ql:*");
        } else {
            subscriber.send("SUBSCRIBE ql:log ql:w:w ql:canceled");
            (0..3).for_each(|_| drop(subscriber.arrived()));
        }
        caller.qless(&format!("cancel 0 j{round}"));
        for end in ends {
            subscriber.send(match (*end, by_pattern) {
                ("UNSUBSCRIBE", true) => "PUNSUBSCRIBE",
                (end, _) => end,
            });
        }
        for channel in ["ql:log", "ql:w:w", "ql:canceled"] {
            let message = subscriber.arrived();
            let last = &message[message.len() - 2..];
            let is_it = message[0].ends_with("message") && last[0] == channel;
            assert!(is_it && last[1].contains(&format!("j{round}")), "round {round}: {message:?}");
        }
        for end in ends {
            let confirmations = if *end == "UNSUBSCRIBE" && !by_pattern { 3 } else { 1 };
            for _ in 0..confirmations {
                let arrived = subscriber.arrived();
                assert!(["pong", "unsubscribe", "punsubscribe"].contains(&&*arrived[0]), "{arrived:?}");
            }
        }
    }
}

fn on_store(store: &str) {
    let runtime = Runtime::new().unwrap();
    let server = start(&runtime, store);
    // A PING is answered at once, so it tells what has arrived before the caller's reply.
    no_message_comes_late(&server, &server, &["PING", "UNSUBSCRIBE"]);
    runtime.block_on(server.stop());
}

#[test]
fn a_subscriber_in_memory_has_every_message_before_the_callers_reply() {
    on_store("memory:");
}

#[test]
fn a_subscriber_of_a_directory_has_every_message_before_the_callers_reply() {
    let directory = Scratch::new("published");
    on_store(&format!("embedded:{}", directory.path().display()));
}

#[test]
fn a_subscriber_in_front_of_a_redis_has_every_message_before_the_callers_reply() {
    on_store(&RedisServer::start(&[]).url());
}

#[test]
fn a_subscriber_that_leaves_after_a_reply_of_another_server_has_every_message() {
    let (redis, runtime) = (RedisServer::start(&[]), Runtime::new().unwrap());
    let servers = [start(&runtime, &redis.url()), start(&runtime, &redis.url())];
    no_message_comes_late(&servers[0], &servers[1], &["UNSUBSCRIBE"]);
    for server in servers {
        runtime.block_on(server.stop());
    }
}

/// The connection over which a server gets its messages from the Redis is closed again and again.
#[test]
fn no_message_is_lost_with_the_connection_to_the_redis_and_every_call_is_answered() {
    let (redis, runtime) = (RedisServer::start(&[]), Runtime::new().unwrap());
    let server = start(&runtime, &redis.url());
    let (mut subscriber, mut caller) = (Peer::connect(&server), Peer::connect(&server));
    let mut admin = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    subscriber.ask("SUBSCRIBE ql:log");
    for round in 0..30 {
        let _: i64 = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").query(&mut admin).unwrap();
        for number in 0..3 {
            caller.qless(&format!("put 0 w q {round}-{number} k {{}} 0"));
        }
        for number in 0..3 {
            let message = subscriber.arrived();
            assert!(message[2].contains(&format!("\"{round}-{number}\"")), "{message:?}");
        }
    }
    runtime.block_on(server.stop());
}
