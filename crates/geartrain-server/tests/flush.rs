//! `FLUSHDB` makes a server as new, on every store, after a restart too; on a Redis it removes the queue's
//! keys only.

use std::net::{Ipv4Addr, SocketAddr};

use geartrain::{Client, Complete, Holder, Put, PutOptions, QueueLimits, Seconds, SetLimits};
use geartrain_redis::script;
use geartrain_server::{Server, Settings};
use geartrain_testkit::peers::{RedisServer, Scratch};
use tokio::runtime::Runtime;

use crate::parity::connection::{Connection, Reply};

fn settings(store: String) -> Settings {
    Settings { allow_flush: true, ..Settings::new(store, (Ipv4Addr::LOCALHOST, 0).into()) }
}

fn qless(connection: &mut Connection, call: &str) -> Reply {
    let mut request: Vec<&[u8]> = vec![b"EVALSHA", script::script().sha.as_bytes(), b"0"];
    request.extend(call.split(' ').map(str::as_bytes));
    connection.call(&request).reply
}

/// Something of every kind, by Qless calls and by our own.
fn fill(runtime: &Runtime, address: SocketAddr) {
    let mut connection = Connection::open(address);
    for call in [
        r#"put 0 w q done k {} 0 tags ["t","u"]"#,
        "pop 1 q w 1",
        "complete 2 done w q {}",
        "put 2 w q failed k {} 0",
        "pop 3 q w 1",
        "fail 4 failed w g m",
        r#"put 4 w q running k {} 0 tags ["t"]"#,
        "pop 5 q w 1",
        r#"put 5 w q waiting k {} 0 tags ["t"]"#,
        "tag 5 add waiting t u",
        "tag 5 remove waiting gone",
        "put 5 w q late k {} 1000000000000",
        r#"put 5 w r blocked k {} 0 depends ["waiting","running"]"#,
        r#"put 5 w r deeper k {} 0 depends ["blocked"]"#,
        "recur 5 q every k {} interval 60 1000000000000",
        "config.set 5 heartbeat 7",
        "config.set 5 any-option 8",
        "track 5 track waiting",
        "queue.forget 5 r",
        "pause 5 q",
    ] {
        let reply = qless(&mut connection, call);
        assert!(!matches!(reply, Reply::Error(_)), "{call}: {reply}");
    }
    runtime.block_on(async {
        let client: Client = geartrain::connect(&format!("redis://{address}")).await.unwrap();
        let limits = QueueLimits { jobs_max: Some(100), ..QueueLimits::default() };
        client.run(SetLimits { queue: "native".parse().unwrap(), limits }).await.unwrap();
        let options = PutOptions { result_ttl: Some(Seconds::from(1_000)), ..PutOptions::default() };
        let (queue, jid, klass) = ("native".parse(), "kept".parse(), "k".parse());
        let put = Put::new(queue.unwrap(), jid.unwrap(), klass.unwrap(), "{}");
        client.run(Put { options: Some(Box::new(options)), ..put }).await.unwrap();
        let job = client.pop("native", "n").await.unwrap().unwrap();
        client.run(Complete::new(job.jid, Holder::Token(job.lock.token))).await.unwrap();
    });
}

/// The replies to all calls that read.
fn reads(runtime: &Runtime, address: SocketAddr) -> Vec<String> {
    let mut connection = Connection::open(address);
    let mut replies = Vec::new();
    for call in [
        "queues 9",
        "queues 9 q",
        "queues 9 native",
        "workers 9",
        "workers 9 w",
        "workers 9 n",
        "failed 9",
        "failed 9 g 0 25",
        "track 9",
        "config.get 9",
        "config.get 9 any-option",
        "tag 9 top 0 25",
        "tag 9 get t 0 25",
        "tag 9 get u 0 25",
        "stats 9 q 0",
        "stats 9 r 0",
        "jobs 9 complete 0 25",
        "jobs 9 running q 0 25",
        "jobs 9 stalled q 0 25",
        "jobs 9 scheduled q 0 25",
        "jobs 9 depends r 0 25",
        "jobs 9 recurring q 0 25",
        "peek 9 q 25",
        "length 9 q",
        "multiget 9 done failed running waiting late blocked deeper kept",
        "recur.get 9 every",
        "pop 9 q w 1",
    ] {
        replies.push(format!("{call}: {}", qless(&mut connection, call)));
    }
    for request in [&[&b"DBSIZE"[..]][..], &[b"KEYS", b"*"]] {
        // The pop above has put its worker on the list.
        qless(&mut connection, "worker.deregister 9 w");
        replies.push(format!("{}", connection.call(request).reply));
    }
    runtime.block_on(async {
        let client: Client = geartrain::connect(&format!("redis://{address}")).await.unwrap();
        let limits = geartrain::GetLimits { queue: "native".parse().unwrap() };
        replies.push(format!("{:?}", client.run(limits).await.unwrap()));
        let result = geartrain::GetResult { jid: "kept".parse().unwrap() };
        replies.push(format!("{:?}", client.run(result).await.unwrap()));
    });
    replies
}

/// Fills and flushes a server, and compares what it shows with a new one in memory.
fn check(runtime: &Runtime, server: &Server, new: &[String]) {
    fill(runtime, server.resp().ip().unwrap());
    assert_ne!(reads(runtime, server.resp().ip().unwrap()), new);
    // The queue is paused, so the reads above have popped nothing.
    let flushed = Connection::open(server.resp().ip().unwrap()).call(&[b"FLUSHDB"]).reply;
    assert_eq!(flushed, Reply::Status("OK".into()));
    assert_eq!(reads(runtime, server.resp().ip().unwrap()), new);
}

fn new_server(runtime: &Runtime) -> Vec<String> {
    let server = runtime.block_on(Server::start(&settings("memory:".into()))).unwrap();
    let new = reads(runtime, server.resp().ip().unwrap());
    runtime.block_on(server.stop());
    new
}

#[test]
fn a_flushed_server_is_as_new_also_after_a_restart() {
    let (runtime, scratch) = (Runtime::new().unwrap(), Scratch::new("flush"));
    let new = new_server(&runtime);
    let settings = settings(format!("embedded:{}", scratch.path().display()));
    for _ in 0..2 {
        let server = runtime.block_on(Server::start(&settings)).unwrap();
        assert_eq!(reads(&runtime, server.resp().ip().unwrap()), new);
        check(&runtime, &server, &new);
        runtime.block_on(server.stop());
    }
}

#[test]
fn a_flush_leaves_foreign_keys_of_a_redis_alone() {
    let (runtime, redis) = (Runtime::new().unwrap(), RedisServer::start(&[]));
    let new = new_server(&runtime);
    let foreign = redis::Client::open(redis.url()).unwrap();
    let mut foreign = foreign.get_connection().unwrap();
    for key in ["foreign", "qlx", "gt", "other:ql:j:1"] {
        redis::cmd("SET").arg(key).arg("1").exec(&mut foreign).unwrap();
    }
    let server = runtime.block_on(Server::start(&settings(redis.url()))).unwrap();
    check(&runtime, &server, &new);
    for key in ["foreign", "qlx", "gt", "other:ql:j:1"] {
        let value: String = redis::cmd("GET").arg(key).query(&mut foreign).unwrap();
        assert_eq!(value, "1", "{key}");
    }
    let left: Vec<String> = redis::cmd("KEYS").arg("ql:*").query(&mut foreign).unwrap();
    assert_eq!(left, Vec::<String>::new());
    runtime.block_on(server.stop());
}

#[test]
fn a_server_that_does_not_allow_it_refuses_to_flush() {
    let runtime = Runtime::new().unwrap();
    let settings = Settings { allow_flush: false, ..settings("memory:".into()) };
    let server = runtime.block_on(Server::start(&settings)).unwrap();
    let refused = Connection::open(server.resp().ip().unwrap()).call(&[b"FLUSHDB"]).reply;
    assert!(matches!(&refused, Reply::Error(why) if why.contains("allows flushing")), "{refused}");
    let client = runtime.block_on(geartrain::connect(&format!("redis://{}", server.resp()))).unwrap();
    let flush = geartrain::Flush { count: geartrain::Count::new(1).unwrap() };
    let refused = runtime.block_on(client.run(flush)).unwrap_err();
    assert!(format!("{refused:?}").contains("allows flushing"), "{refused:?}");
    drop(client);
    runtime.block_on(server.stop());
}
