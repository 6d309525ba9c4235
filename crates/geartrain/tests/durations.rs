//! Durations without end are refused with a sentence, and change nothing.

use std::time::Duration;

use geartrain::{Client, Error, Jid};
use pollster::block_on;

/// The error's sentence.
fn refused<T>(result: Result<T, Error>) -> String {
    result.err().expect("it must be refused").to_string()
}

fn memory() -> Client {
    block_on(geartrain::connect("memory:")).unwrap()
}

#[test]
fn a_put_with_a_duration_without_end_is_refused() {
    let client = memory();
    let put = || client.put("mail", "welcome", "{}");
    let endless = "must be at most a hundred years, not 1.8446744073709552e19 seconds";
    assert_eq!(refused(block_on(async { put().delay(Duration::MAX).await })), format!("delay {endless}"));
    for put in [put().timeout(Duration::MAX), put().keep_result(Duration::MAX)] {
        let why = refused(block_on(async { put.await }));
        assert!(why.contains("must be above 0 seconds and at most ten years"), "{why}");
    }
    let waited = block_on(client.put_and_wait(put(), Some(Duration::MAX)));
    assert_eq!(refused(waited), format!("wait {endless}"));
    assert_eq!(block_on(client.queues()).unwrap(), []);
    block_on(async { put().delay(Duration::from_secs(3_155_760_000)).await }).unwrap();
}

#[test]
fn a_wait_or_a_retry_without_end_is_refused() {
    let client = memory();
    assert!(
        refused(block_on(client.pop_wait("mail", "w1", Duration::MAX))).starts_with("wait must be at most")
    );
    block_on(async { client.put("mail", "welcome", "{}").jid("j1").await }).unwrap();
    let wait = block_on(client.wait_for(&Jid::new("j1").unwrap(), Some(Duration::MAX)));
    assert!(refused(wait).starts_with("wait must be at most"));
    let job = block_on(client.pop("mail", "w1")).unwrap().unwrap();
    assert!(refused(block_on(client.retry(&job, Duration::MAX))).starts_with("delay must be at most"));
    block_on(client.complete(&job)).unwrap();
}
