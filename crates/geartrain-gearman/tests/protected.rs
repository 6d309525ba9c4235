//! Protection of clients from each other: HTTP on the port, large payloads, the connection limit.
use crate::common;

use std::time::Duration;

use bytes::BytesMut;
use common::Server;
use geartrain_core::Queues;
use geartrain_front::{AUTHENTICATE_WITHIN, Admission};
use geartrain_gearman::front::Options;
use geartrain_gearman::packet::{Mode, Priority, ReportBody, Request, Submission};
use geartrain_testkit::scaled;
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn http_ends_the_connection_and_its_body_is_not_executed() {
    let server = Server::start().await;
    let mut body = BytesMut::new();
    let mode = Mode::Background(Priority::Normal);
    let submission = Submission { function: "stolen", unique: "", data: "", mode };
    Request::Submit(submission).encode(&mut body).unwrap();
    let body = [&body[..], b"create function stolen\n"].concat();
    for head in [
        "POST / HTTP/1.1\r\nHost: 127.0.0.1:4730\r\nContent-Length: 50\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1:4730\r\n\r\n",
        "options * HTTP/1.1\r\n\r\n",
        "Host: 127.0.0.1:4730\r\n",
        "host:\n",
    ] {
        let mut peer = server.peer().await;
        peer.raw(&[head.as_bytes(), &body[..]].concat()).await;
        assert!(peer.is_closed().await, "{head}");
        // Behind a valid packet and a valid line.
        let mut peer = server.peer().await;
        peer.sync().await;
        assert_eq!(peer.ask("verbose").await, "OK INFO");
        for byte in [head.as_bytes(), &body[..]].concat() {
            // The server may have closed it already.
            if peer.stream.write_all(&[byte]).await.is_err() {
                break;
            }
        }
        assert!(peer.is_closed().await, "{head}");
    }
    assert_eq!(server.run(Queues { queue: None }).await, []);
    let mut peer = server.peer().await;
    assert_eq!(peer.ask("hosts").await, "ERR UNKNOWN_COMMAND Unknown+server+commandhosts");
    assert_eq!(peer.ask("create function POST").await, "OK");
    server.end().await;
}

/// Counted warnings are logged by a timer after a second, or when the server stops.
#[tokio::test]
async fn no_counted_warning_is_left_when_the_server_has_stopped() {
    let alive_tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive_tasks();
    let server = Server::start().await;
    for _ in 0..3 {
        let mut peer = server.peer().await;
        peer.raw(b"GET / HTTP/1.1\r\n\r\n").await;
        assert!(peer.is_closed().await);
    }
    server.end().await;
    for _ in 0..100 {
        if alive_tasks() > before {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(alive_tasks(), before);
}

#[tokio::test]
async fn large_payloads_arrive_complete_and_in_order() {
    let server = Server::start().await;
    let mut client = server.peer().await;
    let sizes = [0, 1, 16_383, 16_384, 16_385, scaled(3 << 20, 60 << 20), 5, 200_000];
    let payload = |size: usize| "0123456789abcdef".repeat(size / 16 + 1)[..size].to_owned();
    let mut worker = server.worker("f").await;
    for size in sizes {
        client.background("f", "", &payload(size)).await;
    }
    // Grabs all at once, with another request behind them.
    let mut requests = BytesMut::new();
    for _ in sizes {
        Request::<&str>::Grab(geartrain_gearman::packet::Grab::Plain).encode(&mut requests).unwrap();
    }
    Request::Echo { data: "behind" }.encode(&mut requests).unwrap();
    worker.raw(&requests).await;
    for size in sizes {
        match worker.next().await {
            geartrain_gearman::packet::Response::Assign(job) => {
                assert!(job.data == payload(size), "{size}: {}", job.data.len());
                worker.report(&job.handle, ReportBody::Complete("")).await;
            }
            other => panic!("no job: {other:?}"),
        }
    }
    worker.expect(b"\0RES\0\0\0\x11\0\0\0\x06behind").await;
    // The other direction: data, warnings and results.
    let handle = client.foreground("f", "", "").await;
    let job = worker.grab().await.unwrap();
    for size in sizes {
        worker.report(&job.handle, ReportBody::Data(&payload(size))).await;
        worker.report(&job.handle, ReportBody::Warning(&payload(size))).await;
    }
    let last = sizes[5];
    worker.report(&job.handle, ReportBody::Complete(&payload(last))).await;
    for size in sizes {
        assert!(
            client.next_report().await == (handle.clone(), ReportBody::Data(payload(size).into())),
            "{size}"
        );
        assert!(
            client.next_report().await == (handle.clone(), ReportBody::Warning(payload(size).into())),
            "{size}"
        );
    }
    assert!(client.next_report().await == (handle, ReportBody::Complete(payload(last).into())));
    server.end().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed() {
    let admission = Admission::with_limits(2, AUTHENTICATE_WITHIN);
    let server = Server::with(Options { admission, ..Options::default() }).await;
    let (mut first, mut second) = (server.peer().await, server.peer().await);
    first.sync().await;
    second.sync().await;
    assert!(server.peer().await.is_closed().await);
    // Without TLS no client has to authenticate, and idle connections stay.
    let late = tokio::time::timeout(Duration::from_millis(50), second.is_closed());
    assert!(late.await.is_err());
    server.end().await;
}
