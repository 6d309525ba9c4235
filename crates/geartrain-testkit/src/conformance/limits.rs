//! How many jobs a queue takes, and how often it hands one out.

use super::prelude::*;

fn at_most(jobs: u64) -> QueueLimits {
    QueueLimits { jobs_max: Some(jobs), ..QueueLimits::default() }
}

fn by_priority<const N: usize>(limits: [(i32, u64); N]) -> QueueLimits {
    let by_priority = limits.into_iter().map(|(from, most)| (priority(from), most)).collect();
    QueueLimits { by_priority, ..QueueLimits::default() }
}

/// A queue's limits are those that were set last, and at first none.
pub async fn a_queue_has_the_limits_set_last(system: System) -> Checked {
    let limits = async || Ok::<_, Surprise>(system.ask(GetLimits { queue: queue("mail") }).await?);
    assert_eq!(limits().await?, QueueLimits::default());
    let mut listener = system.listen().await?;
    let first = QueueLimits { by_priority: by_priority([(0, 5), (9, 7)]).by_priority, ..at_most(6) };
    system.at(0, limit("mail", first.clone())).await?;
    assert_eq!(limits().await?, first);
    system.at(1, limit("mail", rate(1, 10, 2))).await?;
    assert_eq!(limits().await?, rate(1, 10, 2));
    system.at(2, limit("mail", QueueLimits::default())).await?;
    assert_eq!(limits().await?, QueueLimits::default());
    let event = Event::LimitsSet { queue: queue("mail") };
    listener.heard(&system, [event.clone(), event.clone(), event]).await?;
    assert_eq!(system.ask(GetLimits { queue: queue("post") }).await?, QueueLimits::default());
    Ok(())
}

/// A full queue takes no new job, on terms or without. All its unfinished jobs count and no others.
pub async fn a_full_queue_takes_no_new_job(system: System) -> Checked {
    system.at(0, limit("mail", at_most(4))).await?;
    system.run(0, put("mail", "running"), "w1").await?;
    system.at(0, put("mail", "waiting")).await?;
    system.at(0, Put { delay: seconds(99), ..put("mail", "scheduled") }).await?;
    system.at(0, Put { depends: jids(["waiting"]), ..put("mail", "blocked") }).await?;
    system.refuses(1, put("mail", "new"), no::room("mail", 4, 4)).await?;
    system.refuses(1, put_again("mail", "new"), no::room("mail", 4, 4)).await?;
    system.refuses(1, unique("mail", "new", "report"), no::room("mail", 4, 4)).await?;
    let needs_itself = Put { depends: jids(["new"]), ..put("mail", "new") };
    system.refuses(1, needs_itself, no::room("mail", 4, 4)).await?;
    assert_eq!(system.at(1, put("post", "elsewhere")).await?, PutReply::Created);
    system.at(2, complete("running", "w1")).await?;
    assert_eq!(system.at(2, put("mail", "b")).await?, PutReply::Created);
    system.refuses(3, put("mail", "c"), no::room("mail", 4, 4)).await?;
    assert_eq!(system.pop(3, "mail", "w1", 1).await?, ["waiting"]);
    system.at(3, fail("waiting", "w1", "g")).await?;
    assert_eq!(system.at(3, put("mail", "c")).await?, PutReply::Created);
    system.refuses(4, put("mail", "d"), no::room("mail", 4, 4)).await?;
    system.at(4, cancel(["c"])).await?;
    assert_eq!(system.at(4, put("mail", "d")).await?, PutReply::Created);
    system.at(5, put_again("post", "d")).await?;
    assert_eq!(system.at(5, put("mail", "e")).await?, PutReply::Created);
    Ok(())
}

/// Only new jobs are refused: what is there already stays, comes back and goes on.
pub async fn a_full_queue_takes_what_is_under_way(system: System) -> Checked {
    system.run(0, put("mail", "retried"), "w1").await?;
    system.run(0, unique("mail", "failed", "report"), "w1").await?;
    system.run(0, put("post", "advanced"), "w1").await?;
    system.at(0, put("post", "moved")).await?;
    system.at(0, recur("mail", "r", 100)).await?;
    system.at(0, limit("mail", at_most(1))).await?;
    system.at(1, fail("failed", "w1", "g")).await?;
    assert_eq!(system.at(1, retry("retried", "w1")).await?, 4);
    assert_eq!(system.at(1, unfail("mail", "g", 1)).await?, 1);
    assert_eq!(system.at(1, advance("advanced", "w1", "mail")).await?, CompleteReply::Waiting);
    assert_eq!(system.at(1, put_again("mail", "moved")).await?, PutReply::Replaced);
    assert_eq!(system.at(1, requeue("mail", "moved")).await?, PutReply::Replaced);
    assert_eq!(system.ignores(1, put("mail", "moved")).await?, PutReply::Existing);
    let joined = system.at(1, unique("mail", "new", "report")).await?;
    assert_eq!(joined, PutReply::Coalesced { jid: jid("failed") });
    let popped = system.pop(2, "mail", "w1", 9).await?;
    assert!(popped.contains(&"r-1".to_string()), "{popped:?}");
    system.refuses(3, put("mail", "new"), no::room("mail", 5, 1)).await?;
    Ok(())
}

/// A put is limited by the highest priority listed that is not above its own, or else by the lowest.
pub async fn limits_may_differ_by_priority(system: System) -> Checked {
    system.at(0, limit("mail", by_priority([(0, 2), (10, 4), (20, 3)]))).await?;
    let with = |name: &str, value: i32| Put { priority: Some(priority(value)), ..put("mail", name) };
    for name in ["a", "b"] {
        system.at(0, put("mail", name)).await?;
    }
    for value in [-5, 0, 9] {
        system.refuses(1, with("c", value), no::room("mail", 2, 2)).await?;
    }
    system.refuses(1, put("mail", "c"), no::room("mail", 2, 2)).await?;
    assert_eq!(system.at(1, with("c", 20)).await?, PutReply::Created);
    system.refuses(2, with("d", 99), no::room("mail", 3, 3)).await?;
    assert_eq!(system.at(2, with("d", 19)).await?, PutReply::Created);
    system.refuses(3, with("e", 10), no::room("mail", 4, 4)).await?;
    Ok(())
}

/// Where there is a limit for all and one by priority, the smaller one counts.
pub async fn the_smaller_limit_counts(system: System) -> Checked {
    let both = QueueLimits { jobs_max: Some(2), ..by_priority([(0, 1), (10, 3)]) };
    system.at(0, limit("mail", both)).await?;
    let urgent = |name: &str| Put { priority: Some(priority(10)), ..put("mail", name) };
    system.at(0, put("mail", "a")).await?;
    system.refuses(1, put("mail", "b"), no::room("mail", 1, 1)).await?;
    assert_eq!(system.at(1, urgent("b")).await?, PutReply::Created);
    system.refuses(1, urgent("c"), no::room("mail", 2, 2)).await?;
    Ok(())
}

/// Limits that could never be kept to are refused.
pub async fn bad_limits_are_refused(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    system.at(0, limit("mail", at_most(5))).await?;
    let many = |count: i32| QueueLimits {
        by_priority: (0..count).map(|value| (priority(value), 9)).collect(),
        ..QueueLimits::default()
    };
    for bad in [at_most(0), by_priority([(0, 0)]), by_priority([(0, 5), (0, 6)]), many(17)] {
        system.refuses(1, limit("mail", bad), no::good("limit")).await?;
    }
    assert_eq!(system.ask(GetLimits { queue: queue("mail") }).await?, at_most(5));
    system.at(1, limit("mail", many(16))).await?;
    Ok(())
}

/// A rate at which nothing would ever start cannot be written down.
pub async fn bad_rates_cannot_be_written_down(_: System) -> Checked {
    let per = |value: f64| seconds(value);
    for (count, per, burst) in
        [(0, per(1.0), 1), (1, per(1.0), 0), (1, per(0.0), 1), (1, per(-1.0), 1), (1, per(315_360_001.0), 1)]
    {
        assert_eq!(Rate::new(count, per, burst).map_err(|bad| bad.what), Err("rate"));
    }
    assert!(Rate::new(1, DURATION_MAX, u32::MAX).is_ok());
    Ok(())
}

/// Jobs start no more often than their queue's rate lets them.
pub async fn jobs_start_no_more_often_than_they_may(system: System) -> Checked {
    system.at(0, limit("mail", rate(2, 20, 1))).await?;
    for name in ["a", "b", "c", "d"] {
        system.at(0, put("mail", name)).await?;
    }
    assert_eq!(system.pop(0, "mail", "w1", 9).await?, ["a"]);
    assert_eq!(system.pop(9.9, "mail", "w1", 9).await?, NONE);
    assert_eq!(system.pop(10, "mail", "w1", 9).await?, ["b"]);
    // Nothing is saved up.
    assert_eq!(system.pop(100, "mail", "w1", 9).await?, ["c"]);
    assert_eq!(system.pop(109, "mail", "w1", 9).await?, NONE);
    assert_eq!(system.pop(110, "mail", "w1", 9).await?, ["d"]);
    Ok(())
}

/// After a pause as many may start at once as the burst says, and then one at a time.
pub async fn a_burst_may_start_after_a_pause(system: System) -> Checked {
    system.at(0, limit("mail", rate(1, 10, 3))).await?;
    for number in 0..9 {
        system.at(0, put("mail", format!("j{number}"))).await?;
    }
    assert_eq!(system.pop(30, "mail", "w1", 9).await?, ["j0", "j1", "j2"]);
    assert_eq!(system.pop(39, "mail", "w1", 9).await?, NONE);
    assert_eq!(system.pop(40, "mail", "w1", 9).await?, ["j3"]);
    assert_eq!(system.pop(60, "mail", "w1", 9).await?, ["j4", "j5"]);
    assert_eq!(system.pop(65, "mail", "w1", 9).await?, NONE);
    Ok(())
}

/// A queue whose rate is used up is passed over, and the others are not.
pub async fn a_queue_at_its_rate_is_passed_over(system: System) -> Checked {
    system.at(0, limit("x", rate(1, 10, 1))).await?;
    for (to, name) in [("x", "a"), ("x", "b"), ("y", "c"), ("y", "d"), ("y", "e")] {
        system.at(0, put(to, name)).await?;
    }
    for (now, order, expected) in
        [(1, PopOrder::Strict, ["a", "c"]), (12, PopOrder::RoundRobin { turn: 0 }, ["b", "d"])]
    {
        let wanted = Pop { queues: queues(["x", "y"]), order, ..pop_many("x", "w1", 2) };
        assert_eq!(popped_jids(system.at(now, wanted).await?), expected);
    }
    Ok(())
}

/// To look at what a pop would hand out uses nothing up.
pub async fn a_peek_is_no_start(system: System) -> Checked {
    system.at(0, limit("mail", rate(1, 10, 1))).await?;
    for name in ["a", "b"] {
        system.at(0, put("mail", name)).await?;
    }
    for _ in 0..3 {
        system.at(1, peek("mail", 5)).await?;
    }
    assert_eq!(system.pop(1, "mail", "w1", 5).await?, ["a"]);
    Ok(())
}

/// To take a job over is to start it; until that may be, its holder is not even warned.
pub async fn a_take_over_is_a_start(system: System) -> Checked {
    system.at(0, limit("mail", rate(1, 100, 1))).await?;
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(0, put("mail", "b")).await?;
    assert_eq!(system.pop(70, "mail", "w2", 5).await?, NONE);
    assert_eq!(system.job("a").await?.history.len(), 2);
    assert_eq!(system.pop(100, "mail", "w2", 5).await?, ["b"]);
    assert_eq!(system.job("a").await?.history.len(), 3);
    assert_eq!(system.pop(110, "mail", "w3", 5).await?, NONE);
    assert_eq!(system.pop(200, "mail", "w3", 5).await?, ["a"]);
    Ok(())
}

/// When the clock has gone back far, a queue does not wait until it has caught up.
pub async fn a_clock_that_goes_back_does_not_stop_a_queue(system: System) -> Checked {
    system.at(0, limit("mail", rate(1, 10, 2))).await?;
    for name in ["a", "b", "c", "d", "e"] {
        system.at(0, put("mail", name)).await?;
    }
    assert_eq!(system.pop(1000, "mail", "w1", 9).await?, ["a", "b"]);
    // A little is no reason to start more of them.
    for now in [999, 990] {
        assert_eq!(system.pop(now, "mail", "w1", 9).await?, NONE);
    }
    assert_eq!(system.pop(989, "mail", "w1", 9).await?, ["c", "d"]);
    assert_eq!(system.pop(999, "mail", "w1", 9).await?, ["e"]);
    Ok(())
}

/// With new limits a queue begins anew.
pub async fn new_limits_begin_anew(system: System) -> Checked {
    system.at(0, limit("mail", rate(1, 100, 1))).await?;
    for name in ["a", "b", "c"] {
        system.at(0, put("mail", name)).await?;
    }
    assert_eq!(system.pop(1, "mail", "w1", 9).await?, ["a"]);
    system.at(2, limit("mail", rate(1, 100, 1))).await?;
    assert_eq!(system.pop(2, "mail", "w1", 9).await?, ["b"]);
    system.at(3, limit("mail", QueueLimits::default())).await?;
    assert_eq!(system.pop(3, "mail", "w1", 9).await?, ["c"]);
    Ok(())
}

/// A worker that waits gets a job as soon as one may start.
pub async fn a_waiting_worker_is_served_when_a_job_may_start(system: System) -> Checked {
    system.now(limit("mail", rate(1, 10, 1))).await?;
    for name in ["a", "b", "c"] {
        system.now(put("mail", name)).await?;
    }
    system.now(pop("mail", "w1")).await?;
    let mut waiter = system.waits(pop("mail", "w2"), 600).await?;
    system.clock.set(9);
    waiter.still_waits(&system).await?;
    system.clock.set(10);
    assert_eq!(waiter.served(&system).await?, ["b"]);
    let waiter = system.waits(pop("mail", "w3"), 600).await?;
    system.now(limit("mail", QueueLimits::default())).await?;
    assert_eq!(waiter.served(&system).await?, ["c"]);
    Ok(())
}
