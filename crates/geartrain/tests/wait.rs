//! A wait for a job returns its result, or an error that says why not, even if the backend restarts
//! meanwhile.

use std::sync::Arc;
use std::time::Duration;

use geartrain::*;
use geartrain_store::{StoreBackend, StoreOptions};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use pollster::block_on;

const AN_HOUR: Duration = Duration::from_secs(3_600);

fn open(disk: &SimDisk) -> Client {
    let options = StoreOptions::default();
    Client::new(Arc::new(StoreBackend::open_on(Arc::new(disk.clone()), options, ManualClock::new()).unwrap()))
}

/// Pops the only job and completes it with a result.
async fn work(client: &Client, result: &str) {
    let job = client.pop("sums", "w1").await.unwrap().unwrap();
    let result = Some(Box::new(JobResult { code: 3, bytes: result.into() }));
    let complete = Complete { result, ..Complete::new(job.jid, Holder::Token(job.lock.token)) };
    client.run(complete).await.unwrap();
}

/// Makes the disk fail, which ends all result streams.
async fn break_disk(client: &Client, disk: &SimDisk) {
    disk.fail_after(0);
    client.put("elsewhere", "unlucky", "").await.unwrap_err();
}

#[test]
fn a_wait_continues_after_the_backend_restarted() {
    block_on(async {
        let disk = SimDisk::new(1);
        let client = open(&disk);
        let awaited = client.put_and_follow(client.put("sums", "add", "[1,2]")).await.unwrap();
        let jid = awaited.jid().clone();
        break_disk(&client, &disk).await;
        // Both the wait and the work go on at the same time, in either order.
        let ended = std::thread::spawn(move || block_on(awaited.end(Some(AN_HOUR))));
        while client.run(Status { of: StatusOf::Jid(jid.clone()) }).await.unwrap().unwrap().attached == 0 {
            std::thread::yield_now();
        }
        work(&client, "3").await;
        let result = JobResult { code: 3, bytes: "3".into() };
        assert_eq!(ended.join().unwrap().unwrap(), Ended { jid, ending: JobEnding::Completed, result });
    });
}

/// With and without keep_result(): the result of a job that ended before its client was attached again is
/// known.
#[test]
fn the_result_of_a_put_that_waits_survives_a_reconnect() {
    block_on(async {
        for keep in [true, false] {
            let disk = SimDisk::new(1);
            let client = open(&disk);
            let put = client.put("sums", "add", "[1,2]").jid("j1");
            let put = if keep { put.keep_result(AN_HOUR) } else { put };
            let awaited = client.put_and_follow(put).await.unwrap();
            break_disk(&client, &disk).await;
            work(&client, "3").await;
            assert_eq!(awaited.end(None).await.unwrap().result.bytes.text(), Some("3"));
        }
    });
}

#[test]
fn a_wait_for_a_job_whose_put_did_not_wait_may_find_no_result() {
    block_on(async {
        let disk = SimDisk::new(1);
        let client = open(&disk);
        let jid = client.put("sums", "add", "[1,2]").await.unwrap();
        let awaited = client.follow_job(&jid).await.unwrap();
        break_disk(&client, &disk).await;
        work(&client, "3").await;
        let end = awaited.end(None).await;
        let state = Some(StateName::Complete);
        assert!(matches!(end, Err(Error::Wait(WaitError::Unknown { state: found, .. })) if found == state));
    });
}

#[test]
fn an_ephemeral_job_does_not_survive_a_restart_of_the_backend() {
    block_on(async {
        let disk = SimDisk::new(1);
        let client = open(&disk);
        let awaited =
            client.put_and_follow(client.put("sums", "add", "[1,2]").while_awaited()).await.unwrap();
        break_disk(&client, &disk).await;
        let end = awaited.end(None).await;
        assert!(matches!(end, Err(Error::Wait(WaitError::Unknown { state: None, .. }))), "{end:?}");
    });
}

#[test]
fn a_client_that_fell_behind_still_gets_the_result() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let put = client.put("sums", "add", "[1,2]").while_awaited().keep_result(AN_HOUR);
        let awaited = client.put_and_follow(put).await.unwrap();
        let job = client.pop("sums", "w1").await.unwrap().unwrap();
        let holder = Holder::Token(job.lock.token);
        let chunk = Chunk { jid: job.jid.clone(), holder, kind: ChunkKind::Data, bytes: "x".into() };
        client.batch((0..20_000).map(|_| chunk.clone().into()).collect()).await.unwrap();
        let release = Release::new(job.jid.clone(), Holder::Token(job.lock.token));
        client.run(release).await.unwrap();
        let ended = std::thread::spawn(move || block_on(awaited.end(Some(AN_HOUR))));
        work(&client, "3").await;
        assert_eq!(ended.join().unwrap().unwrap().result.code, 3);
    });
}

#[test]
fn the_end_is_returned_again_after_it_was_read() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let mut awaited = client.put_and_follow(client.put("sums", "add", "[1,2]")).await.unwrap();
        work(&client, "3").await;
        let end = awaited.next().await.unwrap();
        assert!(matches!(end, StreamItem::Ended(JobEnding::Completed, _)));
        assert_eq!(awaited.next().await.unwrap(), end);
        assert!(awaited.end(None).await.unwrap().is_completed());
    });
}

#[test]
fn a_wait_that_times_out_detaches_and_the_job_goes_on() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let put = client.put("sums", "add", "[1,2]").jid("j1");
        let late = client.put_and_wait(put, Some(Duration::ZERO)).await;
        let jid = Jid::new("j1").unwrap();
        match late {
            Err(Error::Wait(WaitError::TimedOut { jid: awaited, wait: Duration::ZERO })) => {
                assert_eq!(awaited, jid)
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(client.run(Status { of: StatusOf::Jid(jid) }).await.unwrap().unwrap().attached, 0);
        work(&client, "3").await;
    });
}

#[test]
fn a_put_that_joins_or_repeats_a_job_waits_for_that_job() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let keyed = |jid: &str| client.put("sums", "add", "[1,2]").jid(jid).unique("k").keep_result(AN_HOUR);
        assert_eq!(keyed("j1").await.unwrap().to_string(), "j1");
        assert_eq!(keyed("j2").await.unwrap().to_string(), "j1");
        let joined = client.put_and_follow(keyed("j3")).await.unwrap();
        let found = client.put_and_follow(keyed("j1")).await.unwrap();
        let by_name = client.follow_job(joined.jid()).await.unwrap();
        work(&client, "3").await;
        for awaited in [joined, found, by_name] {
            let ended = awaited.end(None).await.unwrap();
            assert_eq!((ended.jid.to_string(), ended.result.code), ("j1".into(), 3));
        }
        // It has ended long ago, and its result is stored.
        assert_eq!(client.put_and_wait(keyed("j1"), None).await.unwrap().result.code, 3);
        let missing = client.wait_for(&Jid::new("missing").unwrap(), None).await;
        assert!(matches!(missing, Err(Error::Refused(Refusal::NoSuchJob { .. }))), "{missing:?}");
    });
}

#[test]
fn a_wait_ends_with_an_error_when_the_backend_shuts_down() {
    block_on(async {
        let backend = Arc::new(StoreBackend::in_memory(ManualClock::new()).unwrap());
        let client = Client::new(backend.clone());
        let awaited = client.put_and_follow(client.put("sums", "add", "[1,2]")).await.unwrap();
        backend.shut_down().await;
        assert!(matches!(awaited.end(None).await, Err(Error::Backend(_))));
    });
}
