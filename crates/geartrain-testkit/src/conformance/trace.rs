//! The specification's own example, step by step.

use super::prelude::*;

/// A job is put, lost, taken over, sent on, failed and cancelled.
pub async fn the_worked_trace_of_the_specification(system: System) -> Checked {
    let mut listener = system.listen().await?;
    let first = Put {
        payload: "{\"x\":[]}".into(),
        priority: Some(priority(5)),
        tags: Some(tags(["t"])),
        caller: Some(worker("w1")),
        ..put_again("q", "a")
    };
    assert_eq!(system.at(0, first).await?, PutReply::Created);
    listener.heard(&system, [heard::put("a", "q")]).await?;
    assert_eq!(system.registered().await?, ["q"]);
    assert_eq!(texts(system.ask(tagged("t")).await?.jids), ["a"]);

    let popped = system.take(10, "q", "w1").await?;
    assert_eq!((popped.lock.expires, popped.payload), (moment(70), "{\"x\":[]}".into()));
    let wait = system.stats("q", 0).await?.wait;
    assert_eq!((wait.count, wait.mean, wait.histogram[10]), (1, 10.0, 1));
    listener.skip(&system).await?;

    assert_eq!(system.pop(70, "q", "w2", 1).await?, NONE);
    listener.heard(&system, [heard::lock_lost("a", "w1")]).await?;
    assert_eq!(system.worker_jobs(70, "w1").await?, (vec![], vec![]));
    assert_eq!(system.stats("q", 0).await?.retries, 1);

    assert_eq!(system.at(75, heartbeat("a", "w1")).await?, moment(135));
    let popped = system.take(135, "q", "w2").await?;
    assert_eq!((popped.remaining, popped.lock.expires), (4, moment(195)));
    system.refuses(136, heartbeat("a", "w1"), no::not_held_by("w1", "a", "w2")).await?;
    listener.skip(&system).await?;

    let next = Next { delay: seconds(5), ..Next::new(queue("r")) };
    let on = Complete {
        queue: Some(queue("q")),
        payload: Some("[]".into()),
        next: Some(next),
        ..complete("a", "w2")
    };
    assert_eq!(system.at(140, on).await?, CompleteReply::Scheduled);
    listener.heard(&system, [heard::advanced("a", "q", "r")]).await?;
    let job = system.job("a").await?;
    assert_eq!((job.state, job.qless.state), (JobState::Scheduled { due: moment(145) }, "waiting"));
    assert_eq!((job.remaining, job.payload), (5, "[]".into()));
    assert_eq!(system.stats("q", 0).await?.run.mean, 5.0);

    assert_eq!(system.pop(146, "r", "w3", 1).await?, ["a"]);
    listener.skip(&system).await?;
    system.at(147.8, fail("a", "w3", "g")).await?;
    listener.heard(&system, [heard::failed("a", "r", "w3", "g", "oops", FailedBy::Worker)]).await?;
    let failure =
        Failure { group: group("g"), message: "oops".into(), when: moment(147), worker: Some(worker("w3")) };
    assert_eq!(system.job("a").await?.state, JobState::Failed { failure });
    let failures: Vec<(Group, u64)> = system.at(150, Failures).await?.into_iter().collect();
    assert_eq!(failures, [(group("g"), 1)]);

    assert_eq!(system.at(151, cancel(["a"])).await?, 1);
    listener.heard(&system, [heard::canceled("a", "r", None)]).await?;
    let stats = system.stats("r", 0).await?;
    assert_eq!((stats.failures, stats.failed), (1, 0));
    assert!(!system.has("a").await?);
    assert_eq!(system.ask(tagged("t")).await?, Listed::default());
    Ok(())
}
