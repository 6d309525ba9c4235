//! A retry waits as the job's backoff says, however the library is asked for it.

use std::sync::Arc;
use std::time::Duration;

use geartrain::*;
use geartrain_store::StoreBackend;
use geartrain_testkit::clock::ManualClock;
use pollster::block_on;

/// Puts a job, pops it, retries it, and returns how long it waits then.
async fn wait_after(backoff: Option<Backoff>, retry: impl AsyncFnOnce(&Client, &Popped)) -> Option<f64> {
    let clock = ManualClock::new();
    let client = Client::new(Arc::new(StoreBackend::in_memory(clock.clone()).unwrap()));
    let put = client.put("mail", "welcome", "{}");
    let jid = match backoff {
        Some(backoff) => put.backoff(backoff).await.unwrap(),
        None => put.await.unwrap(),
    };
    let job = client.pop("mail", "w1").await.unwrap().unwrap();
    retry(&client, &job).await;
    match client.get(&jid).await.unwrap().unwrap().state {
        JobState::Scheduled { due } => Some((due - clock.now()).get()),
        JobState::Waiting => None,
        state => panic!("{state:?}"),
    }
}

#[test]
fn every_retry_without_a_delay_waits_as_the_backoff_says() {
    let hour = Backoff::constant(Seconds::from(3_600)).unwrap();
    block_on(async {
        for (backoff, expected) in [(Some(hour), 3_600.0..=3_600.0), (None, 0.75..=1.25)] {
            let by_client = wait_after(backoff, async |client, job| {
                client.retry(job, Duration::ZERO).await.unwrap();
            });
            let by_command = wait_after(backoff, async |client, job| {
                client.run(Retry::new(job.jid.clone(), job.holder())).await.unwrap();
            });
            let by_batch = wait_after(backoff, async |client, job| {
                let retry = Call::from(Retry::new(job.jid.clone(), job.holder()));
                client.batch(vec![retry]).await.unwrap().remove(0).unwrap();
            });
            for wait in [by_client.await, by_command.await, by_batch.await] {
                assert!(wait.is_some_and(|wait| expected.contains(&wait)), "{wait:?}, not {expected:?}");
            }
        }
    });
}

#[test]
fn a_delay_replaces_the_backoff_and_a_released_job_has_none() {
    let hour = Backoff::constant(Seconds::from(3_600)).unwrap();
    block_on(async {
        for backoff in [Some(hour), None] {
            let delayed = wait_after(backoff, async |client, job| {
                client.retry(job, Duration::from_secs(5)).await.unwrap();
            });
            assert_eq!(delayed.await, Some(5.0));
            let released = wait_after(backoff, async |client, job| {
                client.run(Release::of(job)).await.unwrap();
            });
            assert_eq!(released.await, None);
        }
    });
}
