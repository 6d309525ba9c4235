//! The test clock: delays, retries, schedules and locks of a queue in memory take no time.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use geartrain::*;
use pollster::block_on;

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
