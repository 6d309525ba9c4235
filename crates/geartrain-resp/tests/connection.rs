//! Connections: pipelined requests, replies in order, bad input, back-pressure, shutdown.
use crate::common;

use common::{Server, Value, request};
use geartrain_front::{AUTHENTICATE_WITHIN, AccessControl, Admission};
use geartrain_resp::Options;
use std::sync::Arc;

/// The store writes a large payload before it queues the put, and executes other batches meanwhile, but none
/// of this connection.
#[tokio::test]
async fn nothing_overtakes_a_large_payload_of_the_same_connection() {
    // More than go into one batch with the put.
    const LATER: usize = 1_500;
    let server = Server::on_disk().await;
    let mut peer = server.qless().await;
    let data = format!("{:?}", "x".repeat(geartrain_core::LARGE_PAYLOAD_BYTES));
    for number in 0..3 {
        let jid = format!("j{number}");
        let mut requests = peer.call_words(&["put", "0", "w", "q", &jid, "k", &data, "0"]);
        (0..LATER).for_each(|_| requests.extend(peer.call("length 0 q")));
        peer.send(&requests).await;
        assert_eq!(peer.read().await, Value::Bulk(jid));
        for _ in 0..LATER {
            assert_eq!(peer.read().await, Value::Integer(number + 1));
        }
    }
    server.end().await;
}

#[tokio::test]
async fn replies_come_in_the_order_of_the_requests() {
    let server = Server::start().await;
    let peer = server.qless().await;
    let (mut requests, mut expected) = (Vec::new(), Vec::new());
    for number in 0..3_000 {
        let jid = format!("j{number}");
        requests.extend(peer.call(&format!("put 0 w q {jid} k {{}} 0")));
        expected.push(Value::Bulk(jid));
        match number % 7 {
            0 => {
                requests.extend(request(&["ECHO", &number.to_string()]));
                expected.push(Value::Bulk(number.to_string()));
            }
            1 => {
                requests.extend(peer.call("put 0 w"));
                expected.push(Value::wrong("Put(): Arg \"jid\" missing"));
            }
            2 => {
                requests.extend(peer.call("length 0 q"));
                expected.push(Value::Integer(number + 1));
            }
            3 => {
                requests.extend(request(&["NONSENSE"]));
                let text = "ERR geartrain does not know the command 'NONSENSE': it is a job queue that answers the Qless API, as scripts are called, and what Redis libraries ask when they connect";
                expected.push(Value::error(text));
            }
            _ => {}
        }
    }
    // Written and read concurrently, because neither side buffers everything.
    let (mut reader, mut writer) = tokio::io::split(peer.stream);
    let sender = tokio::spawn(async move {
        tokio::io::AsyncWriteExt::write_all(&mut writer, &requests).await.unwrap();
        writer
    });
    let mut bytes = bytes::BytesMut::new();
    for expected in expected {
        let value = loop {
            if let Some(value) = common::take(&mut bytes) {
                break value;
            }
            let read = tokio::io::AsyncReadExt::read_buf(&mut reader, &mut bytes).await.unwrap();
            assert!(read > 0);
        };
        assert_eq!(value, expected);
    }
    sender.await.unwrap();
    server.end().await;
}

#[tokio::test]
async fn a_request_may_come_in_any_pieces() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let bytes = [
        peer.call(r#"put 0 w q j k {"a":"b"} 0"#),
        b"PING\r\n\r\necho \"a b\"\n".to_vec(),
        peer.call("length 0 q"),
    ]
    .concat();
    for byte in &bytes {
        peer.send(&[*byte]).await;
    }
    assert_eq!(peer.read().await, "j".into());
    assert_eq!(peer.read().await, Value::simple("PONG"));
    assert_eq!(peer.read().await, "a b".into());
    assert_eq!(peer.read().await, 1.into());
    server.end().await;
}

#[tokio::test]
async fn bytes_that_are_not_resp_end_the_connection_with_an_error() {
    let server = Server::start().await;
    let mut witness = server.qless().await;
    let long = vec![b'x'; 70_000];
    for (bytes, about) in [
        (&b"*-1\r\n"[..], "number of arguments"),
        (b"*1048577\r\n", "number of arguments"),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", "begins with '$'"),
        (b"*1\r\n$-5\r\n", "length must be"),
        (b"*1\r\n$999999999999\r\n", "length must be"),
        (b"*1\r\n$4\r\nPINGPONG", "CR and LF"),
        (b"*1\n$4\nPING\n", "CR and LF"),
        (b"PING \"\r\n", "quotes"),
        (&long, "in one line"),
    ] {
        let mut peer = server.peer().await;
        peer.send(b"*1\r\n$4\r\nPING\r\n").await;
        peer.send(bytes).await;
        assert_eq!(peer.read().await, Value::simple("PONG"));
        let error = peer.read().await;
        assert!(
            error.text().starts_with("ERR Protocol error: ") && error.text().contains(about),
            "{error:?}"
        );
        assert_eq!(peer.next().await, None);
        assert_eq!(witness.qless("length 0 q").await, 0.into());
    }
    server.end().await;
}

#[tokio::test]
async fn a_payload_of_64_mib_comes_and_goes_and_a_larger_one_is_refused() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let largest = format!("\"{}\"", "x".repeat((64 << 20) - 2));
    assert_eq!(peer.qless_words(&["put", "0", "w", "q", "j", "k", &largest, "0"]).await, "j".into());
    let job = peer.qless("pop 0 q w 1").await.json();
    assert!(job[0]["data"] == largest.as_str());
    let larger = largest.replace("\"x", "\"xx");
    assert_eq!(
        peer.qless_words(&["put", "0", "w", "q", "i", "k", &larger, "0"]).await,
        Value::wrong("payload of 67108865 bytes is over the limit of 67108864")
    );
    server.end().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_replies_is_not_read_from() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let data = format!("\"{}\"", "x".repeat(1 << 20));
    peer.qless_words(&["put", "0", "w", "q", "j", "k", &data, "0"]).await;
    // A mebibyte per reply: more in total than the server may buffer.
    let requests = peer.call("get 0 j").repeat(2_000);
    let (reader, mut writer) = tokio::io::split(peer.stream);
    let sender = tokio::spawn(async move {
        let _ = tokio::io::AsyncWriteExt::write_all(&mut writer, &requests).await;
    });
    let mut witness = server.qless().await;
    for _ in 0..200 {
        assert_eq!(witness.qless("length 0 q").await, 1.into());
    }
    // Requests that were not read are never answered, and no other client waits for them.
    sender.abort();
    drop(reader);
    server.end().await;
}

#[tokio::test]
async fn a_client_that_closes_its_writing_half_is_answered() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let calls = [peer.call("put 0 w q j k {} 0"), peer.call("length 0 q")].concat();
    peer.send(&calls).await;
    tokio::io::AsyncWriteExt::shutdown(&mut peer.stream).await.unwrap();
    assert_eq!(peer.read().await, "j".into());
    assert_eq!(peer.read().await, 1.into());
    assert_eq!(peer.next().await, None);
    server.end().await;
}

#[tokio::test]
async fn a_stopping_server_answers_what_it_has_read_and_ends_every_connection() {
    let server = Server::start().await;
    let mut idle = server.peer().await;
    let mut listener = server.peer().await;
    listener.ask(&["SUBSCRIBE", "ql:log"]).await;
    let mut peer = server.qless().await;
    assert_eq!(peer.qless("put 0 w q j k {} 0").await, "j".into());
    let port = server.port;
    server.end().await;
    assert_eq!(idle.next().await, None);
    assert_eq!(peer.next().await, None);
    assert_eq!(listener.message().await.0, "ql:log");
    assert_eq!(listener.next().await, None);
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err());
}

#[tokio::test]
async fn every_connection_needs_the_password() {
    let options =
        Options { access: Arc::new(AccessControl::open().with_password("secret")), ..Options::default() };
    let server = Server::with(options).await;
    let mut peer = server.peer().await;
    let wrong = Value::error("WRONGPASS invalid username-password pair or user is disabled.");
    let first = Value::error("NOAUTH Authentication required.");
    assert_eq!(peer.ask(&["PING"]).await, first);
    assert_eq!(peer.ask(&["EVAL", "x", "0", "queues", "0"]).await, first);
    assert_eq!(peer.ask(&["FCALL", "geartrain_x", "1", "", "x"]).await, first);
    assert_eq!(peer.ask(&["SUBSCRIBE", "ql:log"]).await, first);
    assert!(peer.ask(&["HELLO", "3"]).await.text().starts_with("NOAUTH"));
    assert_eq!(peer.ask(&["AUTH", "wrong"]).await, wrong);
    assert_eq!(peer.ask(&["AUTH", "somebody", "secret"]).await, wrong);
    assert_eq!(peer.ask(&["HELLO", "3", "AUTH", "default", "wrong"]).await, wrong);
    assert_eq!(peer.ask(&["PING"]).await, first);
    assert_eq!(peer.ask(&["AUTH", "secret"]).await, Value::simple("OK"));
    assert_eq!(peer.ask(&["EVAL", "x", "0", "queues", "0"]).await, "{}".into());
    assert_eq!(peer.ask(&["RESET"]).await, Value::simple("RESET"));
    assert_eq!(peer.ask(&["PING"]).await, first);
    assert!(matches!(peer.ask(&["HELLO", "3", "AUTH", "default", "secret"]).await, Value::Map(_)));
    assert_eq!(peer.ask(&["PING"]).await, Value::simple("PONG"));
    // Before authentication, requests must be small.
    let mut unauthenticated = server.peer().await;
    unauthenticated.send(b"*2\r\n$4\r\nECHO\r\n$1000000\r\n").await;
    assert!(unauthenticated.read().await.text().contains("a request has at most 65536 bytes"));
    assert_eq!(unauthenticated.next().await, None);
    server.end().await;
}

#[tokio::test]
async fn connections_over_the_limit_are_refused() {
    let admission = Admission::with_limits(2, AUTHENTICATE_WITHIN);
    let server = Server::with(Options { admission, ..Options::default() }).await;
    let mut first = server.peer().await;
    first.ask(&["PING"]).await;
    let mut second = server.peer().await;
    second.ask(&["PING"]).await;
    let mut third = server.peer().await;
    assert!(
        third.read().await.text().starts_with("ERR there are 2 connections already, and no more are taken")
    );
    assert_eq!(third.next().await, None);
    drop(second);
    // A slot is free as soon as the server has noticed.
    loop {
        let mut fourth = server.peer().await;
        if fourth.ask(&["PING"]).await == Value::simple("PONG") {
            break;
        }
    }
    server.end().await;
}

/// Whatever bytes come, in whatever pieces, the server keeps running and serves others.
#[tokio::test]
async fn malformed_input_affects_only_its_sender() {
    let seed = match std::env::var("GEARTRAIN_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => u64::from(std::process::id()),
    };
    println!("GEARTRAIN_SEED={seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let server = Server::start().await;
    let mut witness = server.qless().await;
    let valid = [
        witness.call(r#"put 0 w q j k {"a":[1,2.5,"\u00e9"]} 0 tags ["a"] depends ["b"]"#),
        witness.call("pop 0 q w 5"),
        witness.call("complete 1 j w q {} next r delay 5"),
        witness.call("recur 0 q r k {} interval 60 0 backlog 3"),
        witness.call("stats 0 q 0"),
        request(&["SUBSCRIBE", "ql:log"]),
        request(&["UNSUBSCRIBE"]),
        request(&["HELLO", "3", "SETNAME", "x"]),
        request(&["CLIENT", "LIST"]),
        request(&["SCRIPT", "EXISTS", "x"]),
        request(&[&b"FCALL"[..], b"geartrain_x", b"1", b"", b"\x92\x01\x81\xa5Batch\x90"]),
        b"PING \"a b\" 'c'\r\n".to_vec(),
    ];
    for round in 0..300 {
        let mut bytes: Vec<u8> =
            (0..chance.usize(1..6)).flat_map(|_| valid[chance.usize(..valid.len())].clone()).collect();
        for _ in 0..chance.usize(0..8) {
            let at = chance.usize(..bytes.len());
            match chance.u8(..5) {
                0 => bytes[at] = chance.u8(..),
                1 => bytes.insert(at, chance.u8(..)),
                2 if bytes.len() > 1 => drop(bytes.remove(at)),
                3 => bytes.truncate(at.max(1)),
                _ => {
                    let other = chance.usize(..bytes.len());
                    bytes.swap(at, other);
                }
            }
        }
        let mut peer = server.peer().await;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(chance.usize(1..=rest.len()));
            // The server may have closed it already.
            if tokio::io::AsyncWriteExt::write_all(&mut peer.stream, piece).await.is_err() {
                break;
            }
            rest = behind;
        }
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut peer.stream).await;
        while peer.next().await.is_some() {}
        assert_eq!(witness.ask(&["ECHO", "x"]).await, "x".into(), "round {round} of seed {seed}");
    }
    server.end().await;
}
