//! The test clock: delays, retries, schedules and locks of a queue in memory take no time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use geartrain::*;
use pollster::block_on;
use serde::{Deserialize, Serialize};

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_parked_pop_gets_a_job_that_falls_due_when_the_clock_moves() {
    block_on(async {
        let (client, clock) = testing::memory().unwrap();
        client.put("mail", "welcome", "{}").delay(HOUR).await.unwrap();
        let worker = client.clone();
        let parked = std::thread::spawn(move || block_on(worker.pop_wait("mail", "w1", 2 * HOUR)));
        clock.advance(HOUR);
        let job = parked.join().unwrap().unwrap().unwrap();
        client.complete(&job).await.unwrap();
    });
}

#[test]
fn retries_follow_their_backoff_by_the_test_clock() {
    block_on(async {
        let (client, clock) = testing::memory().unwrap();
        let backoff = Backoff::exponential(HOUR.into(), 2.0, (10 * HOUR).into(), 0.0).unwrap();
        let jid = client.put("mail", "welcome", "{}").backoff(backoff).retries(1).await.unwrap();
        for (wait, left) in [(Duration::ZERO, 0), (HOUR, -1)] {
            clock.advance(wait);
            let job = client.pop("mail", "w1").await.unwrap().unwrap();
            assert_eq!(client.retry_because(&job, "smtp", "it said 451").await.unwrap(), left);
            assert!(client.pop("mail", "w1").await.unwrap().is_none());
        }
        let failed = client.get(&jid).await.unwrap().unwrap();
        assert_eq!(failed.failure().unwrap().message, "it said 451");
    });
}

#[test]
fn the_time_of_the_backend_is_that_of_the_test() {
    let clock = testing::TestClock::new();
    let client = clock.memory().unwrap();
    let since = clock.now() - Timestamp::ZERO;
    let machine = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((machine - since.get()).abs() < 3_600.0, "it begins with the machine's time");
    let before = client.backend().now().unwrap();
    assert_eq!(before, clock.now());
    clock.advance(HOUR);
    assert_eq!(client.backend().now().unwrap(), before + Seconds::from(3_600));
    clock.set(UNIX_EPOCH + HOUR);
    assert_eq!(client.backend().now(), Some(Timestamp::from(3_600)));
    let backend: Arc<dyn Backend> = client.into();
    assert_eq!(backend.now(), Some(Timestamp::from(3_600)));
}

#[test]
fn a_recurring_job_runs_on_each_day_that_the_clock_shows() {
    block_on(async {
        let (client, clock) = testing::memory().unwrap();
        let (jid, queue, klass) =
            (Jid::new("daily").unwrap(), QueueName::new("reports").unwrap(), Klass::new("render").unwrap());
        let daily = Recur::new(queue, jid, klass, "{}", Seconds::from(86_400));
        client.run(daily).await.unwrap();
        for _ in 0..3 {
            let job = client.pop("reports", "w1").await.unwrap().unwrap();
            client.complete(&job).await.unwrap();
            assert!(client.pop("reports", "w1").await.unwrap().is_none());
            clock.advance(24 * HOUR);
        }
    });
}

#[derive(Serialize, Deserialize, geartrain::Job)]
#[job(queue = "mail", backoff = "1h..10h", retries = 3)]
struct Flaky;

/// The worker waits for a job in a parked pop, which wakes when the clock moves.
#[test]
fn a_worker_retries_by_the_test_clock() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, clock) = testing::memory().unwrap();
        let mut events = client.events().await.unwrap();
        let began = clock.now();
        let jid = client.put_job(&Flaky).keep_result(240 * HOUR).await.unwrap();
        let worker = Worker::new(&client).with_state(Arc::new(AtomicU32::new(0))).on(
            async |_: Flaky, State(attempts), cx: Context| {
                if attempts.fetch_add(1, Ordering::Relaxed) < 3 {
                    return Err(JobError::retry("not yet"));
                }
                Ok(cx.attempt())
            },
        );
        let mut delay = HOUR;
        let completed = async {
            loop {
                match &*events.next().await.unwrap().event {
                    Event::Retried { .. } => {
                        clock.advance(delay);
                        delay *= 2;
                    }
                    Event::Completed { .. } => return,
                    _ => {}
                }
            }
        };
        let report = worker.run_until(completed).await.unwrap();
        assert_eq!((report.completed, report.retried, report.lost), (1, 3, 0));
        assert_eq!(client.job(&jid).wait(None).await.unwrap().json::<u32>().unwrap(), 4);
        assert_eq!(clock.now() - began, Seconds::from(7 * 3_600));
    });
}
