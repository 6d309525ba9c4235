//! Front-end sessions in the draft of 2005, byte for byte.
use crate::common;

use common::Server;
use geartrain_gearman::front::Options;
use geartrain_testkit::clock::ManualClock;

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

#[tokio::test]
async fn the_conversation_of_the_specification_passes_byte_for_byte() {
    let clock = ManualClock::new();
    clock.set(1_000.0);
    let server = Server::at(clock.clone(), Options::default()).await;
    let (mut worker, mut poller, mut waiter) =
        (server.peer().await, server.peer().await, server.peer().await);
    // The worker offers resize and thumbgen, asks for a job, gets none, and is idle.
    worker.raw(&hex("00 47 52 4d 01 00 00 00 0f 72 65 73 69 7a 65 00 74 68 75 6d 62 67 65 6e")).await;
    worker.raw(&hex("00 47 52 4d 06 00 00 00 00")).await;
    worker.expect(&hex("00 47 52 4d 07 00 00 00 00")).await;
    worker.raw(&hex("00 47 52 4d 03 00 00 00 00")).await;
    // A job with a dupkey whose result is stored. It wakes the worker.
    poller
        .raw(&hex("00 47 52 4d 04 00 00 00 12 72 65 73 69 7a 65 00 75 37 2d 67 32 00 00 01 00 01 78"))
        .await;
    poller.expect(&hex("00 47 52 4d 05 00 00 00 07 48 3a 6c 61 70 3a 31")).await;
    worker.expect(&hex("00 47 52 4d 00 00 00 00 00")).await;
    worker.raw(&hex("00 47 52 4d 06 00 00 00 00")).await;
    worker.expect(&hex("00 47 52 4d 07 00 00 00 0a 72 65 73 69 7a 65 00 00 01 78")).await;
    // 1 of 100, 30 seconds left. The busy error shows that the report was processed.
    worker.raw(&hex("00 47 52 4d 08 00 00 00 0c 00 00 00 01 00 00 00 64 00 00 00 1e")).await;
    worker.raw(&hex("00 47 52 4d 06 00 00 00 00")).await;
    worker.expect(&hex("00 47 52 4d 0e 00 00 00 06 06 07 62 75 73 79")).await;
    poller.raw(&hex("00 47 52 4d 09 00 00 00 07 48 3a 6c 61 70 3a 31")).await;
    poller.expect(&hex("00 47 52 4d 0a 00 00 00 0c 00 00 00 01 00 00 00 64 00 00 00 1e")).await;
    poller.raw(&hex("00 47 52 4d 0c 00 00 00 07 48 3a 6c 61 70 3a 31")).await;
    poller.expect(&hex("00 47 52 4d 0d 00 00 00 05 00 00 00 00 00")).await;
    // A duplicate joins the existing job; its own args are dropped.
    poller
        .raw(&hex("00 47 52 4d 04 00 00 00 14 72 65 73 69 7a 65 00 75 37 2d 67 32 00 00 01 6f 74 68 65 72"))
        .await;
    poller.expect(&hex("00 47 52 4d 05 00 00 00 07 48 3a 6c 61 70 3a 31")).await;
    clock.advance(3.2);
    worker.raw(&hex("00 47 52 4d 0b 00 00 00 05 00 64 6f 6e 65")).await;
    worker.raw(&hex("00 47 52 4d 06 00 00 00 00")).await;
    worker.expect(&hex("00 47 52 4d 07 00 00 00 00")).await;
    poller.raw(&hex("00 47 52 4d 0c 00 00 00 07 48 3a 6c 61 70 3a 31")).await;
    poller.expect(&hex("00 47 52 4d 0d 00 00 00 09 00 00 00 04 00 64 6f 6e 65")).await;
    // An awaited job: accepted, progress, ended.
    waiter.raw(&hex("00 47 52 4d 04 00 00 00 0b 72 65 73 69 7a 65 00 00 00 00 7a")).await;
    waiter.expect(&hex("00 47 52 4d 05 00 00 00 00")).await;
    worker.raw(&hex("00 47 52 4d 06 00 00 00 00")).await;
    worker.expect(&hex("00 47 52 4d 07 00 00 00 08 72 65 73 69 7a 65 00 7a")).await;
    worker.raw(&hex("00 47 52 4d 08 00 00 00 0c 00 00 00 01 00 00 00 02 00 00 00 00")).await;
    worker.raw(&hex("00 47 52 4d 0b 00 00 00 04 03 62 61 64")).await;
    waiter.expect(&hex("00 47 52 4d 0a 00 00 00 0c 00 00 00 01 00 00 00 02 00 00 00 00")).await;
    waiter.expect(&hex("00 47 52 4d 0d 00 00 00 08 00 00 00 01 03 62 61 64")).await;
    // A report without a job.
    worker.raw(&hex("00 47 52 4d 0b 00 00 00 05 00 64 6f 6e 65")).await;
    worker.expect(&hex("00 47 52 4d 0e 00 00 00 10 0b 06 6e 6f 20 63 75 72 72 65 6e 74 20 6a 6f 62")).await;
    worker.raw(&hex("00 47 52 4d 02 00 00 00 00")).await;
    assert!(worker.is_closed().await);
    server.end().await;
}

fn packet(kind: u8, data: &[u8]) -> Vec<u8> {
    [&b"\0GRM"[..], &[kind], &(data.len() as u32).to_be_bytes(), data].concat()
}

#[tokio::test]
async fn a_waiting_client_is_answered_first_and_its_job_ends_with_its_connection() {
    let server = Server::start().await;
    let mut waiter = server.peer().await;
    waiter.raw(&packet(4, b"f\0key\0\0\0one")).await;
    waiter.expect(&packet(5, b"")).await;
    // Requests sent while it waits are answered after the job.
    waiter.raw(&packet(9, b"H:lap:99")).await;
    let mut modern = server.worker("f").await;
    let job = modern.grab().await.unwrap();
    assert_eq!((&job.unique[..], &job.data[..]), (&b"key"[..], &b"one"[..]));
    modern.report(&job.handle, geartrain_gearman::packet::ReportBody::Data("part, ")).await;
    modern.report(&job.handle, geartrain_gearman::packet::ReportBody::Complete("rest")).await;
    waiter.expect(&packet(13, b"\0\0\0\x01\0part, rest")).await;
    waiter.expect(&packet(10, b"\0\0\0\0\0\0\0\0\xff\xff\xff\xff")).await;
    waiter.raw(&packet(4, b"f\0key\0\0\0two")).await;
    waiter.expect(&packet(5, b"")).await;
    drop(waiter);
    let mut admin = server.peer().await;
    while admin.list("show jobs").await != Vec::<String>::new() {}
    assert_eq!(modern.grab().await, None);
    server.end().await;
}

#[tokio::test]
async fn each_error_has_its_code() {
    let server = Server::start().await;
    let mut peer = server.peer().await;
    for (kind, data, code) in [
        (5, &b""[..], 4),
        (8, b"too short", 5),
        (11, b"", 5),
        (4, b"no separators", 5),
        (3, b"too much", 5),
        (9, b"", 5),
        (8, &[0; 12], 6),
        (11, &[0], 6),
        (4, b"f\0\0\0\x03x", 8),
        (4, b"\0\0\0\0x", 9),
    ] {
        peer.raw(&packet(kind, data)).await;
        let geartrain_gearman::Incoming::Draft(answer) = peer.incoming().await.unwrap() else { panic!() };
        assert_eq!((answer.kind, answer.data[0], answer.data[1]), (14, kind, code), "{answer:?}");
    }
    // An unknown handle stops a client that polls.
    peer.raw(&packet(12, b"H:lap:99")).await;
    peer.expect(&packet(13, b"\0\0\0\x01\xffunknown handle")).await;
    // After a hundred errors the connection is closed.
    for _ in 10..100 {
        peer.raw(&packet(5, b"")).await;
    }
    for _ in 10..100 {
        assert!(peer.incoming().await.is_some());
    }
    assert!(peer.is_closed().await);
    server.end().await;
}
