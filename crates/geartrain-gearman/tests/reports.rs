//! Heartbeat renewal and report retry while the backend fails.
use crate::common;
use crate::common::faulty;

use std::sync::Arc;

use common::{Peer, Server};
use faulty::{Fault, Faulty};
use geartrain_core::{Cancel, Get, Jid, JobState, Klass, Put, PutOptions, QueueName, Seconds, SetConfig};
use geartrain_gearman::draft::{self, Code, Magic};
use geartrain_gearman::front::Options;
use geartrain_gearman::packet::{ReportBody, Request, Response};
use geartrain_store::StoreBackend;
use geartrain_testkit::clock::ManualClock;

/// A server over a backend with faults and a manual clock.
struct Rig {
    server: Server,
    backend: Arc<Faulty>,
    clock: Arc<ManualClock>,
}

impl Rig {
    async fn start() -> Rig {
        let clock = ManualClock::new();
        let backend = Faulty::new(Arc::new(StoreBackend::in_memory(clock.clone()).unwrap()));
        let server = Server::over(backend.clone(), clock.clone(), Options::default()).await;
        Rig { server, backend, clock }
    }

    async fn set(&self, option: &str, value: &str) {
        self.server.run(SetConfig::new(option, value)).await;
    }
}

/// Advances the clock several times by nine tenths of the lock; the other worker must get no job.
async fn expect_held(rig: &Rig, other: &mut Peer, lock: f64) {
    for round in 0..4 {
        rig.backend.heartbeats(1).await;
        rig.clock.advance(lock * 0.9);
        assert_eq!(other.grab().await, None, "in round {round}");
    }
}

#[tokio::test]
async fn a_job_stays_locked_as_long_as_its_connection_lives_however_short_the_lock() {
    let rig = Rig::start().await;
    rig.set("grace-period", "0").await;
    rig.set("heartbeat", "1").await;
    let mut client = rig.server.peer().await;
    let (mut worker, mut other) = (rig.server.worker("f").await, rig.server.worker("f").await);
    let handle = client.background("f", "", "").await;
    assert_eq!(worker.grab().await.unwrap().handle, handle);
    expect_held(&rig, &mut other, 1.0).await;
    // The option changes while the job is held.
    rig.set("f-heartbeat", "0.3").await;
    rig.backend.heartbeats(1).await;
    expect_held(&rig, &mut other, 0.3).await;
    rig.set("f-heartbeat", "2").await;
    rig.backend.heartbeats(1).await;
    expect_held(&rig, &mut other, 2.0).await;
    other.sleep().await;
    drop(worker);
    other.expect_noop().await;
    assert_eq!(other.grab().await.unwrap().handle, handle);
    rig.server.end().await;
}

#[tokio::test]
async fn a_failed_report_is_retried_until_it_is_stored() {
    let rig = Rig::start().await;
    let (mut client, mut worker) = (rig.server.peer().await, rig.server.worker("f").await);
    for end in [ReportBody::Complete("whole"), ReportBody::Fail] {
        let handle = client.foreground("f", "", "").await;
        assert_eq!(worker.grab().await.unwrap().handle, handle);
        rig.backend.set(Fault::Reports);
        worker.report(&handle, ReportBody::Data("half")).await;
        rig.backend.refusals(2).await;
        worker.report(&handle, ReportBody::Warning("hot")).await;
        worker.report(&handle, end.clone()).await;
        rig.backend.refusals(1).await;
        rig.backend.set(Fault::Nothing);
        assert_eq!(client.next_report().await, (handle.clone(), ReportBody::Data("half".into())));
        assert_eq!(client.next_report().await, (handle.clone(), ReportBody::Warning("hot".into())));
        let end =
            if end == ReportBody::Fail { ReportBody::Fail } else { ReportBody::Complete("whole".into()) };
        assert_eq!(client.next_report().await, (handle.clone(), end));
        worker.sync().await;
        assert_eq!(worker.grab().await, None);
    }
    rig.server.end().await;
}

#[tokio::test]
async fn heartbeats_go_on_while_a_report_is_retried() {
    let rig = Rig::start().await;
    rig.set("grace-period", "0").await;
    rig.set("heartbeat", "1").await;
    let mut client = rig.server.peer().await;
    let (mut worker, mut other) = (rig.server.worker("f").await, rig.server.worker("f").await);
    let handle = client.foreground("f", "", "").await;
    worker.grab().await.unwrap();
    rig.backend.set(Fault::Reports);
    worker.report(&handle, ReportBody::Complete("done")).await;
    rig.backend.refusals(1).await;
    expect_held(&rig, &mut other, 1.0).await;
    rig.backend.set(Fault::Nothing);
    assert_eq!(client.next_report().await, (handle, ReportBody::Complete("done".into())));
    assert_eq!(other.grab().await, None);
    rig.server.end().await;
}

#[tokio::test]
async fn a_report_is_stored_even_if_its_worker_disconnects() {
    let rig = Rig::start().await;
    let mut client = rig.server.peer().await;
    // One worker closes properly; the other leaves a reply unread, so its connection is reset.
    for leaves_unread in [false, true] {
        let mut worker = rig.server.worker("f").await;
        let handle = client.foreground("f", "", "").await;
        worker.grab().await.unwrap();
        rig.backend.set(Fault::Reports);
        if leaves_unread {
            worker.send(Request::Echo { data: "unread" }).await;
            worker.stream.readable().await.unwrap();
        }
        worker.report(&handle, ReportBody::Complete("done")).await;
        rig.backend.refusals(1).await;
        drop(worker);
        rig.backend.refusals(2).await;
        rig.backend.set(Fault::Nothing);
        assert_eq!(client.next_report().await, (handle, ReportBody::Complete("done".into())));
    }
    rig.server.end().await;
}

#[tokio::test]
async fn nothing_is_read_while_a_report_is_retried_and_a_lost_lock_ends_the_retries() {
    let rig = Rig::start().await;
    let (mut client, mut worker) = (rig.server.peer().await, rig.server.worker("f").await);
    let handle = client.background("f", "", "").await;
    worker.grab().await.unwrap();
    rig.backend.set(Fault::Reports);
    worker.report(&handle, ReportBody::Complete("done")).await;
    rig.backend.refusals(1).await;
    worker.send(Request::Echo { data: "sync" }).await;
    rig.backend.refusals(3).await;
    let read = worker.stream.try_read(&mut [0; 1]);
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    let jid = Jid::new(std::str::from_utf8(&handle).unwrap()).unwrap();
    assert_eq!(rig.server.run(Cancel::new(vec![jid])).await, 1);
    rig.backend.set(Fault::Nothing);
    assert_eq!(worker.next().await, Response::Echo { data: "sync".into() });
    assert_eq!(worker.grab().await, None);
    rig.server.end().await;
}

#[tokio::test]
async fn the_end_of_a_job_does_not_overtake_a_chunk() {
    let rig = Rig::start().await;
    let (mut client, mut worker) = (rig.server.peer().await, rig.server.worker("f").await);
    let handle = client.foreground("f", "", "").await;
    worker.grab().await.unwrap();
    rig.backend.set(Fault::ChunksLate);
    worker.report(&handle, ReportBody::Data("half")).await;
    rig.backend.refusals(1).await;
    worker.report(&handle, ReportBody::Complete("whole")).await;
    // Enough time for the end to be stored, if it did not wait.
    for _ in 0..100 {
        client.sync().await;
    }
    rig.backend.set(Fault::Nothing);
    assert_eq!(client.next_report().await, (handle.clone(), ReportBody::Data("half".into())));
    assert_eq!(client.next_report().await, (handle, ReportBody::Complete("whole".into())));
    rig.server.end().await;
}

#[tokio::test]
async fn a_status_request_gets_an_error_while_the_backend_does_not_answer() {
    let rig = Rig::start().await;
    let mut client = rig.server.peer().await;
    let handle = client.background("f", "u", "").await;
    rig.backend.set(Fault::Everything);
    client.send(Request::GetStatus { handle: &handle[..] }).await;
    client.send(Request::GetStatusUnique { unique: "u" }).await;
    for _ in 0..2 {
        let Response::Error { code, text } = client.next().await else { panic!("no error") };
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert_eq!(&code[..], b"QUEUE_ERROR");
        assert_eq!(text, "the faulty backend cannot answer: no space left on device");
    }
    let mut old = rig.server.peer().await;
    for request in [
        draft::Request::JobStatus { handle: handle.clone() },
        draft::Request::JobComplete { handle: handle.clone() },
    ] {
        let (mut asked, mut answer) = (bytes::BytesMut::new(), bytes::BytesMut::new());
        request.encode(Magic::default(), &mut asked).unwrap();
        draft::Error { kind: asked[4], code: Code::QueueFull }.encode(Magic::default(), &mut answer);
        old.raw(&asked).await;
        old.expect(&answer).await;
    }
    rig.backend.set(Fault::Nothing);
    assert!(client.status(&handle).await.known);
    rig.server.end().await;
}

#[tokio::test]
async fn a_result_that_is_too_large_to_store_fails_its_job() {
    let rig = Rig::start().await;
    rig.set("results-bytes", "300").await;
    let mut worker = rig.server.worker("f").await;
    let (queue, klass) = (QueueName::new("f").unwrap(), Klass::new("f").unwrap());
    let jid = Jid::new("no handle").unwrap();
    let options = PutOptions { result_ttl: Some(Seconds::from(60)), ..PutOptions::default() };
    let put = Put { options: Some(Box::new(options)), ..Put::new(queue, jid.clone(), klass, "") };
    rig.server.run(put).await;
    let job = worker.grab().await.unwrap();
    worker.report(&job.handle, ReportBody::Complete(&"x".repeat(1_000))).await;
    // Reports on an ended job are ignored, whatever its handle was.
    worker.report(&job.handle, ReportBody::Fail).await;
    worker.sync().await;
    // The second sync is read when no report waits to be stored.
    worker.sync().await;
    let failed = rig.server.run(Get { jid }).await.unwrap();
    let JobState::Failed { failure, .. } = failed.state else { panic!("{failed:?}") };
    assert_eq!(failure.group.as_str(), "gearman-fail");
    assert_eq!(failure.message, "result of 1000 bytes is over the limit of 172");
    rig.server.end().await;
}
