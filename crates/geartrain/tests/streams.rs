//! Events and result streams as streams.

use futures_util::{FutureExt, StreamExt, TryStreamExt};
use geartrain::*;
use pollster::block_on;

fn position(event: Option<Result<PositionedEvent, SubscriptionEnd>>) -> u64 {
    event.unwrap().unwrap().position
}

#[test]
fn events_are_a_stream_and_a_dropped_wait_loses_none() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let mut events = client.events().await.unwrap();
        let began = events.position();
        // Both kinds of waiting are begun and dropped.
        assert!(StreamExt::next(&mut events).now_or_never().is_none());
        assert!(events.next().now_or_never().is_none());
        for jid in ["a", "b", "c"] {
            client.put("mail", "welcome", "{}").jid(jid).await.unwrap();
        }
        let first = position(StreamExt::next(&mut events).await);
        assert!(first > began);
        assert_eq!(events.next().await.unwrap().position, first + 1);
        assert_eq!(position(StreamExt::next(&mut events).await), first + 2);
        assert!(StreamExt::next(&mut events).now_or_never().is_none());
    });
}

#[test]
fn a_stream_of_events_ends_after_its_error() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let mut events = client.events().await.unwrap();
        client.put("mail", "welcome", "{}").await.unwrap();
        drop(client);
        assert!(events.try_next().await.unwrap().is_some());
        assert_eq!(events.try_next().await.unwrap_err(), SubscriptionEnd::Closed);
        assert_eq!(events.try_next().await, Ok(None));
        assert_eq!(events.next().await, Err(SubscriptionEnd::Closed));
    });
}

#[test]
fn a_result_stream_is_a_stream_that_ends_with_the_job() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let mut awaited = client.put_and_follow(client.put("sums", "add", "[1,2]")).await.unwrap();
        assert!(StreamExt::next(&mut awaited).now_or_never().is_none());
        let job = client.pop("sums", "w1").await.unwrap().unwrap();
        let chunk = |bytes: &str| {
            let (jid, holder) = (job.jid.clone(), job.holder());
            Chunk { jid, holder, kind: ChunkKind::Data, bytes: bytes.into() }
        };
        client.run(chunk("1")).await.unwrap();
        client.run(chunk("2")).await.unwrap();
        client.complete_with(&job, 3).await.unwrap();
        let data = |bytes: &str| StreamItem::Chunk(ChunkKind::Data, bytes.into());
        assert_eq!(awaited.try_next().await.unwrap(), Some(data("1")));
        assert_eq!(awaited.next().await.unwrap(), data("2"));
        let ended = StreamItem::Ended(JobEnding::Completed, JobResult { code: 0, bytes: "3".into() });
        assert_eq!(awaited.try_next().await.unwrap(), Some(ended.clone()));
        assert_eq!(awaited.try_next().await.unwrap(), None);
        assert_eq!(awaited.next().await.unwrap(), ended);
        assert!(awaited.end(None).await.unwrap().is_completed());
    });
}

#[test]
fn the_end_of_a_result_stream_that_was_polled_is_waited_for() {
    block_on(async {
        let client = connect("memory:").await.unwrap();
        let put = || client.put_and_follow(client.put("sums", "add", "[1,2]").jid("j1"));
        let mut awaited = put().await.unwrap();
        assert!(StreamExt::next(&mut awaited).now_or_never().is_none());
        let late = awaited.end(Some(std::time::Duration::from_millis(1))).await;
        assert!(matches!(late, Err(Error::Wait(WaitError::TimedOut { .. }))), "{late:?}");

        let mut awaited = put().await.unwrap();
        assert!(StreamExt::next(&mut awaited).now_or_never().is_none());
        let job = client.pop("sums", "w1").await.unwrap().unwrap();
        let worker = client.clone();
        let worker = std::thread::spawn(move || block_on(worker.complete_with(&job, 3)).unwrap());
        assert_eq!(awaited.end(None).await.unwrap().json::<u8>().unwrap(), 3);
        worker.join().unwrap();
    });
}
