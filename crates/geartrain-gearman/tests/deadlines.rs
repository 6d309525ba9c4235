//! Workers that take longer than they declared with CAN_DO_TIMEOUT.
use crate::common;
use crate::common::faulty::{Fault, Faulty};

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use common::{Peer, Server};
use geartrain_core::{
    Count, Failures, GetResult, Jid, Klass, Put, PutOptions, QueueName, Seconds, SetConfig, TIMEOUTS_MAX,
    Tick,
};
use geartrain_gearman::front::Options;
use geartrain_gearman::packet::{Report, ReportBody, Request};
use geartrain_store::StoreBackend;
use geartrain_testkit::clock::ManualClock;

/// A server, its backend and its clock.
struct Rig {
    server: Server,
    backend: Arc<Faulty>,
    clock: Arc<ManualClock>,
}

impl Rig {
    async fn start(options: Options) -> Rig {
        let clock = ManualClock::new();
        let backend = Faulty::new(Arc::new(StoreBackend::in_memory(clock.clone()).unwrap()));
        let server = Server::over(backend.clone(), clock.clone(), options).await;
        Rig { server, backend, clock }
    }

    /// A worker of `f` that declares a second per job.
    async fn worker(&self) -> Peer {
        let mut worker = self.server.peer().await;
        let timeout = Some(Duration::from_secs(1));
        worker.send(Request::CanDo { function: "f", timeout }).await;
        worker.sync().await;
        worker
    }

    /// Ends all attempts that are running.
    async fn time_out(&self) {
        self.clock.advance(2);
        self.server.run(Tick { count: Count::new(100).unwrap() }).await;
    }
}

#[tokio::test]
async fn a_client_hears_a_completion_after_the_timeout_with_all_of_its_data() {
    let rig = Rig::start(Options::default()).await;
    let (mut client, mut worker) = (rig.server.peer().await, rig.worker().await);
    let handle = client.foreground("f", "", "").await;
    worker.grab().await.unwrap();
    worker.report(&handle, ReportBody::Data("in time")).await;
    assert_eq!(client.next_report().await, (handle.clone(), ReportBody::Data("in time".into())));
    rig.time_out().await;
    let status = client.status(&handle).await;
    assert!(status.known && !status.running, "{status:?}");
    worker.report(&handle, ReportBody::Data("late, ")).await;
    worker.report(&handle, ReportBody::Status { numerator: "1", denominator: "2" }).await;
    worker.report(&handle, ReportBody::Complete("done")).await;
    assert_eq!(client.next_report().await, (handle.clone(), ReportBody::Complete("late, done".into())));
    assert_eq!(worker.grab().await, None);

    // A failure counts as well.
    let handle = client.foreground("f", "", "").await;
    worker.grab().await.unwrap();
    rig.time_out().await;
    worker.report(&handle, ReportBody::Fail).await;
    assert_eq!(client.next_report().await, (handle, ReportBody::Fail));
    rig.server.end().await;
}

/// The worker sends the chunks in time, but the backend gets them after the deadline.
#[tokio::test]
async fn chunks_that_the_deadline_overtakes_go_along_with_the_completion() {
    let rig = Rig::start(Options::default()).await;
    let (mut client, mut worker) = (rig.server.peer().await, rig.worker().await);
    for in_one_write in [false, true] {
        let handle = client.foreground("f", "", "").await;
        worker.grab().await.unwrap();
        worker.report(&handle, ReportBody::Data("in time")).await;
        assert_eq!(client.next_report().await, (handle.clone(), ReportBody::Data("in time".into())));
        rig.backend.set(Fault::Reports);
        let mut packets = BytesMut::new();
        let chunks = [ReportBody::Data("one, "), ReportBody::Data("two, ")];
        let end = in_one_write.then_some(ReportBody::Complete("done"));
        for body in chunks.into_iter().chain(end) {
            let handle = std::str::from_utf8(&handle).unwrap();
            Request::Report(Report { handle, body }).encode(&mut packets).unwrap();
        }
        worker.raw(&packets).await;
        rig.backend.refusals(1).await;
        rig.time_out().await;
        rig.backend.set(Fault::Nothing);
        if !in_one_write {
            worker.report(&handle, ReportBody::Complete("done")).await;
        }
        let result = ReportBody::Complete("one, two, done".into());
        assert_eq!(client.next_report().await, (handle, result), "in one write: {in_one_write}");
    }
    rig.server.end().await;
}

#[tokio::test]
async fn a_stored_result_has_each_chunk_that_the_deadline_overtakes_once() {
    let rig = Rig::start(Options::default()).await;
    let mut worker = rig.worker().await;
    let (queue, klass) = (QueueName::new("f").unwrap(), Klass::new("f").unwrap());
    let options = PutOptions { result_ttl: Some(Seconds::from(60)), ..PutOptions::default() };
    let jid = Jid::new("stored").unwrap();
    rig.server.run(Put { options: Some(Box::new(options)), ..Put::new(queue, jid.clone(), klass, "") }).await;
    let handle = worker.grab().await.unwrap().handle;
    worker.report(&handle, ReportBody::Data("in time, ")).await;
    worker.sync().await;
    rig.backend.set(Fault::Reports);
    worker.report(&handle, ReportBody::Data("overtaken, ")).await;
    rig.backend.refusals(1).await;
    rig.time_out().await;
    rig.backend.set(Fault::Nothing);
    worker.report(&handle, ReportBody::Data("late, ")).await;
    worker.report(&handle, ReportBody::Complete("done")).await;
    worker.sync().await;
    let stored = rig.server.run(GetResult { jid }).await.unwrap();
    assert_eq!(stored.result.bytes.bytes(), b"in time, overtaken, late, done");
    rig.server.end().await;
}

#[tokio::test]
async fn a_late_completion_counts_after_a_heartbeat_was_refused() {
    let rig = Rig::start(Options::default()).await;
    rig.server.run(SetConfig { option: "heartbeat".into(), value: "1".into(), any: false }).await;
    let (mut client, mut worker) = (rig.server.peer().await, rig.worker().await);
    let handle = client.foreground("f", "", "").await;
    worker.grab().await.unwrap();
    rig.time_out().await;
    rig.backend.heartbeats(1).await;
    worker.sync().await;
    worker.report(&handle, ReportBody::Complete("done")).await;
    assert_eq!(client.next_report().await, (handle, ReportBody::Complete("done".into())));
    rig.server.end().await;
}

#[tokio::test]
async fn a_completion_does_not_count_once_another_worker_has_the_job() {
    let rig = Rig::start(Options::default()).await;
    let (mut client, mut slow, mut other) = (rig.server.peer().await, rig.worker().await, rig.worker().await);
    let handle = client.foreground("f", "", "").await;
    slow.grab().await.unwrap();
    rig.time_out().await;
    assert_eq!(other.grab().await.unwrap().handle, handle);
    slow.report(&handle, ReportBody::Complete("slow")).await;
    slow.sync().await;
    other.report(&handle, ReportBody::Complete("other")).await;
    assert_eq!(client.next_report().await, (handle, ReportBody::Complete("other".into())));
    rig.server.end().await;
}

#[tokio::test]
async fn a_client_hears_a_failure_when_every_attempt_timed_out() {
    for (attempts_max, expected) in [(None, TIMEOUTS_MAX), (Some(3), 3), (Some(12), 12)] {
        let rig = Rig::start(Options { attempts_max, ..Options::default() }).await;
        let (mut client, mut worker) = (rig.server.peer().await, rig.worker().await);
        let handle = client.foreground("f", "", "").await;
        for attempt in 1..=expected {
            assert!(worker.grab().await.is_some(), "attempt {attempt} of {expected}");
            rig.time_out().await;
        }
        assert_eq!(client.next_report().await, (handle, ReportBody::Fail));
        assert_eq!(worker.grab().await, None);
        rig.server.end().await;
    }
}

#[tokio::test]
async fn a_background_job_that_always_times_out_is_among_the_failed_ones() {
    let rig = Rig::start(Options::default()).await;
    let (mut client, mut worker) = (rig.server.peer().await, rig.worker().await);
    let handle = client.background("f", "", "").await;
    // Workers that are lost do not count.
    for _ in 0..5 {
        let mut lost = rig.worker().await;
        lost.grab().await.unwrap();
        drop(lost);
        while client.status(&handle).await.running {}
    }
    for _ in 0..TIMEOUTS_MAX {
        worker.grab().await.unwrap();
        rig.time_out().await;
    }
    let failures = rig.server.run(Failures).await;
    assert_eq!(
        failures.into_iter().map(|(group, count)| (group.to_string(), count)).collect::<Vec<_>>(),
        [("timed-out-f".to_owned(), 1)]
    );
    rig.server.end().await;
}

#[tokio::test]
async fn a_late_report_of_the_draft_is_an_error() {
    fn packet(kind: u8, data: &[u8]) -> Vec<u8> {
        [&b"\0GRM"[..], &[kind], &(data.len() as u32).to_be_bytes(), data].concat()
    }
    let rig = Rig::start(Options::default()).await;
    let (queue, klass) = (QueueName::new("f").unwrap(), Klass::new("f").unwrap());
    let options = PutOptions { attempt_max: Some(Seconds::from(1)), ..PutOptions::default() };
    let jid = Jid::new("limited").unwrap();
    rig.server.run(Put { options: Some(Box::new(options)), ..Put::new(queue, jid, klass, "x") }).await;
    let mut worker = rig.server.peer().await;
    worker.raw(&packet(1, b"f")).await;
    worker.raw(&packet(6, b"")).await;
    worker.expect(&packet(7, b"f\0x")).await;
    rig.time_out().await;
    worker.raw(&packet(11, b"\0done")).await;
    worker.expect(&packet(14, b"\x0b\x06no current job")).await;
    worker.raw(&packet(6, b"")).await;
    worker.expect(&packet(7, b"f\0x")).await;
    worker.raw(&packet(11, b"\0done")).await;
    worker.raw(&packet(6, b"")).await;
    worker.expect(&packet(7, b"")).await;
    rig.server.end().await;
}
