//! Reads: jobs, lists and counts.

use super::prelude::*;

/// A page of a list.
async fn part(
    system: &System,
    which: Listing,
    offset: usize,
    shown: i64,
) -> Result<Vec<String>, BackendError> {
    system.at(0, Jobs { which, page: page(offset, shown) }).await.map(texts)
}

/// A job that is not there is no error.
pub async fn an_unknown_job_is_none(system: System) -> Checked {
    assert_eq!(system.ask(Get { jid: jid("unknown") }).await?, None);
    assert_eq!(system.ask(recurring("unknown")).await?, None);
    Ok(())
}

/// Several jobs come in the order in which they were asked for, without those that are not there.
pub async fn many_jobs_come_in_the_order_asked_for_without_unknown_ones(system: System) -> Checked {
    for name in ["a", "b"] {
        system.at(0, put("mail", name)).await?;
    }
    let found = system.ask(GetMany { jids: jids(["b", "unknown", "a"]) }).await?;
    assert_eq!(found, [system.job("b").await?, system.job("a").await?]);
    Ok(())
}

/// A queue's length counts what runs, waits or is scheduled, but not what is blocked, failed, done or
/// recurring.
pub async fn a_queues_length_leaves_out_blocked_and_recurring_jobs(system: System) -> Checked {
    for name in ["running", "failed", "complete"] {
        system.run(0, put("mail", name), "w1").await?;
    }
    system.at(1, fail("failed", "w1", "g")).await?;
    system.at(1, complete("complete", "w1")).await?;
    system.at(1, Recur { offset: seconds(50), ..recur("mail", "r", 10) }).await?;
    system.at(1, Put { delay: seconds(50), ..put("mail", "scheduled") }).await?;
    system.at(1, Put { depends: jids(["running"]), ..put("mail", "blocked") }).await?;
    system.at(1, put("mail", "waiting")).await?;
    assert_eq!(system.ask(Length { queue: queue("mail") }).await?, 3);
    assert_eq!(system.ask(Length { queue: queue("unknown") }).await?, 0);
    Ok(())
}

/// The counts of a queue tell where each of its jobs stands.
pub async fn the_counts_of_a_queue_tell_where_its_jobs_stand(system: System) -> Checked {
    system.run(0, put("mail", "late"), "w1").await?;
    system.run(10, put("mail", "running"), "w1").await?;
    system.at(10, Recur { offset: seconds(500), ..recur("mail", "r", 10) }).await?;
    system.at(10, Put { delay: seconds(500), ..put("mail", "scheduled") }).await?;
    system.at(10, Put { depends: jids(["running"]), ..put("mail", "blocked") }).await?;
    system.at(10, put("mail", "waiting")).await?;
    let expected = QueueCounts {
        name: queue("mail"),
        waiting: 1,
        running: 1,
        stalled: 1,
        scheduled: 1,
        depends: 1,
        recurring: 1,
        paused: false,
    };
    assert_eq!(system.counts(60, "mail").await?, expected);
    assert_eq!(system.at(60, Queues { queue: None }).await?, [expected]);
    Ok(())
}

/// An unknown queue is empty.
pub async fn an_unknown_queue_counts_nothing(system: System) -> Checked {
    let counts = system.counts(0, "unknown").await?;
    assert_eq!((counts.name, counts.waiting, counts.paused), (queue("unknown"), 0, false));
    assert_eq!(system.registered().await?, NONE);
    Ok(())
}

/// To count a queue's jobs moves all that are due, of all queues if all are counted.
pub async fn counting_moves_every_due_job(system: System) -> Checked {
    for name in ["a", "b", "c"] {
        system.at(0, Put { delay: seconds(5), ..put("mail", name) }).await?;
    }
    system.at(0, Put { delay: seconds(6), ..put("mail", "later") }).await?;
    system.at(0, Put { delay: seconds(5), ..put("post", "d") }).await?;
    let counts = system.counts(5, "mail").await?;
    assert_eq!((counts.waiting, counts.scheduled), (3, 1));
    assert_eq!(system.state("a").await?, StateName::Waiting);
    assert_eq!(system.state("d").await?, StateName::Scheduled);
    system.at(5, Queues { queue: None }).await?;
    assert_eq!(system.state("d").await?, StateName::Waiting);
    Ok(())
}

/// Queues are listed as they were first seen, and those of one moment by name.
pub async fn queues_are_listed_as_they_were_first_seen(system: System) -> Checked {
    for (now, name) in [(2, "c"), (2, "b"), (1, "d"), (3, "a"), (0, "c")] {
        system.at(now, put(name, format!("in {name} at {now}"))).await?;
    }
    assert_eq!(system.registered().await?, ["d", "b", "c", "a"]);
    Ok(())
}

/// A queue is registered by a put, a completion into it and a recurring job, and by nothing else.
pub async fn unfail_retry_and_pop_register_no_queue(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(1, fail("a", "w1", "g")).await?;
    system.at(2, unfail("revived", "g", 1)).await?;
    system.take(3, "revived", "w1").await?;
    system.at(4, retry("a", "w1")).await?;
    system.pop(5, "asked", "w1", 1).await?;
    assert_eq!(system.registered().await?, ["mail"]);
    system.take(6, "revived", "w1").await?;
    system.at(7, advance("a", "w1", "next")).await?;
    system.at(8, recur("often", "r", 10)).await?;
    assert_eq!(system.registered().await?, ["mail", "next", "often"]);
    Ok(())
}

/// A forgotten queue is off the list; its jobs stay, and the next put brings it back as a new one.
pub async fn a_forgotten_queue_keeps_its_jobs(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    system.at(1, put("post", "b")).await?;
    system.at(2, ForgetQueues { queues: queues(["mail", "unknown"]) }).await?;
    assert_eq!(system.registered().await?, ["post"]);
    assert_eq!(system.counts(2, "mail").await?.waiting, 1);
    system.at(3, put("mail", "c")).await?;
    assert_eq!(system.registered().await?, ["post", "mail"]);
    assert_eq!(system.pop(4, "mail", "w1", 5).await?, ["a", "c"]);
    Ok(())
}

/// A lock at its very deadline is both running and stalled in lists and for workers, but only stalled in
/// counts.
pub async fn a_lock_at_its_deadline_is_running_and_stalled(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    assert_eq!(system.list(60, Listing::Running(queue("mail"))).await?, ["j1"]);
    assert_eq!(system.list(60, Listing::Stalled(queue("mail"))).await?, ["j1"]);
    assert_eq!(system.worker_jobs(60, "w1").await?, (vec!["j1".into()], vec!["j1".into()]));
    let both = WorkerCounts { name: worker("w1"), jobs: 1, stalled: 1, seen: Some(moment(0)) };
    assert_eq!(system.at(60, Workers).await?, [both]);
    let counts = system.counts(60, "mail").await?;
    assert_eq!((counts.running, counts.stalled), (0, 1));
    assert_eq!(system.list(59, Listing::Stalled(queue("mail"))).await?, NONE);
    assert_eq!(system.list(61, Listing::Running(queue("mail"))).await?, NONE);
    Ok(())
}

/// Running and stalled jobs are listed by their deadlines, the first to expire first.
pub async fn locked_jobs_are_listed_by_deadline(system: System) -> Checked {
    for (now, name) in [(3, "c"), (1, "a"), (2, "b")] {
        system.run(now, put("mail", name), "w1").await?;
    }
    assert_eq!(system.list(10, Listing::Running(queue("mail"))).await?, ["a", "b", "c"]);
    assert_eq!(system.list(62, Listing::Stalled(queue("mail"))).await?, ["a", "b"]);
    assert_eq!(part(&system, Listing::Running(queue("mail")), 1, 1).await?, ["b"]);
    Ok(())
}

/// Locks with one deadline are listed in the order of their pops, and a worker's jobs in the reverse of it.
pub async fn locks_of_one_deadline_are_listed_in_the_order_of_their_pops(system: System) -> Checked {
    for name in ["b", "c", "a"] {
        system.run(0, put("mail", name), "w1").await?;
    }
    let [first, second, third] = system.equals(["b", "c", "a"]);
    assert_eq!(system.list(1, Listing::Running(queue("mail"))).await?, [first, second, third]);
    assert_eq!(system.worker_jobs(1, "w1").await?.0, [third, second, first]);
    Ok(())
}

/// To list scheduled jobs moves those that are due; the others come in the order of their due times.
pub async fn listing_scheduled_jobs_moves_those_that_are_due(system: System) -> Checked {
    for (name, delay) in [("d", 9), ("b", 7), ("due", 5), ("c", 7), ("a", 8)] {
        system.at(0, Put { delay: seconds(delay), ..put("mail", name) }).await?;
    }
    assert_eq!(system.list(5, Listing::Scheduled(queue("mail"))).await?, ["b", "c", "a", "d"]);
    assert_eq!(system.state("due").await?, StateName::Waiting);
    assert_eq!(part(&system, Listing::Scheduled(queue("mail")), 1, 2).await?, ["c", "a"]);
    Ok(())
}

/// Blocked jobs are listed in the order in which they were put, by moment and then by arrival.
pub async fn blocked_jobs_are_listed_in_the_order_of_their_puts(system: System) -> Checked {
    system.at(0, put("mail", "needed")).await?;
    for (now, name) in [(2, "b"), (2, "a"), (1, "c")] {
        system.at(now, Put { depends: jids(["needed"]), ..put("mail", name) }).await?;
    }
    let [first, second] = system.equals(["b", "a"]);
    assert_eq!(system.list(3, Listing::Depends(queue("mail"))).await?, ["c", first, second]);
    assert_eq!(part(&system, Listing::Depends(queue("mail")), 2, 5).await?, [second]);
    Ok(())
}

/// Recurring jobs are listed by their next times, and those of one moment in the order in which they were
/// made.
pub async fn recurring_jobs_are_listed_by_their_next_times(system: System) -> Checked {
    for (name, offset) in [("c", 9), ("b", 5), ("a", 5)] {
        system.at(0, Recur { offset: seconds(offset), ..recur("mail", name, 10) }).await?;
    }
    let [first, second] = system.equals(["b", "a"]);
    assert_eq!(system.list(99, Listing::Recurring(queue("mail"))).await?, [first, second, "c"]);
    assert_eq!(part(&system, Listing::Recurring(queue("mail")), 1, 1).await?, [second]);
    system.at(0, Recur { offset: seconds(5), ..recur("mail", "b", 10) }).await?;
    assert_eq!(system.list(99, Listing::Recurring(queue("mail"))).await?, ["a", "b", "c"]);
    Ok(())
}

/// Complete jobs are listed from the latest to the first.
pub async fn complete_jobs_are_listed_from_the_latest(system: System) -> Checked {
    for (now, name) in [(3, "c"), (1, "a"), (2, "x"), (2, "b")] {
        system.run(0, put("mail", name), "w1").await?;
        system.at(now, complete(name, "w1")).await?;
    }
    let [second, first] = system.equals(["x", "b"]);
    assert_eq!(system.list(9, Listing::Complete).await?, ["c", first, second, "a"]);
    assert_eq!(part(&system, Listing::Complete, 1, 2).await?, [first, second]);
    Ok(())
}

/// Waiting jobs are listed as a pop would find them, and a look at the list moves nothing.
pub async fn listing_waiting_jobs_moves_nothing(system: System) -> Checked {
    system.at(0, Put { delay: seconds(5), ..put("mail", "due") }).await?;
    system.at(0, recur("mail", "r", 10)).await?;
    system.at(1, put("mail", "a")).await?;
    system.at(1, Put { priority: Some(priority(5)), ..put("mail", "b") }).await?;
    let listing = Jobs { which: Listing::Waiting(queue("mail")), page: Page::default() };
    assert_eq!(texts(system.ignores(99, listing).await?), ["b", "a"]);
    assert_eq!(part(&system, Listing::Waiting(queue("mail")), 1, 5).await?, ["a"]);
    Ok(())
}

/// Failed jobs are counted by group.
pub async fn failures_are_counted_by_group(system: System) -> Checked {
    assert!(system.ask(Failures).await?.is_empty());
    for (name, kind) in [("a", "g"), ("b", "h"), ("c", "g")] {
        system.run(0, put("mail", name), "w1").await?;
        system.at(1, fail(name, "w1", kind)).await?;
    }
    let counts: Vec<(Group, u64)> = system.ask(Failures).await?.into_iter().collect();
    assert_eq!(counts, [(group("g"), 2), (group("h"), 1)]);
    Ok(())
}

/// A group is listed from the last job to fail to the first, whatever moments they failed at.
pub async fn failed_jobs_are_listed_from_the_last_to_fail(system: System) -> Checked {
    for (now, name) in [(5, "a"), (1, "b"), (3, "c")] {
        system.run(0, put("mail", name), "w1").await?;
        system.at(now, fail(name, "w1", "g")).await?;
    }
    assert_eq!(system.ask(failed("g")).await?, Listed { total: 3, jids: jids(["c", "b", "a"]) });
    let rest = system.ask(Failed { page: page(1, 5), ..failed("g") }).await?;
    assert_eq!(rest, Listed { total: 3, jids: jids(["b", "a"]) });
    assert_eq!(system.ask(failed("unknown")).await?, Listed::default());
    Ok(())
}

/// Workers are listed from the last seen; a pop and a heartbeat are how they are seen.
pub async fn workers_are_listed_from_the_last_seen(system: System) -> Checked {
    system.run(1, put("mail", "a"), "w1").await?;
    system.pop(2, "mail", "w2", 1).await?;
    system.pop(3, "mail", "w3", 1).await?;
    assert_eq!(system.workers(3).await?, ["w3", "w2", "w1"]);
    system.at(4, heartbeat("a", "w1")).await?;
    assert_eq!(system.workers(4).await?, ["w1", "w3", "w2"]);
    system.at(5, complete("a", "w1")).await?;
    let idle =
        |name, seen| WorkerCounts { name: worker(name), jobs: 0, stalled: 0, seen: Some(moment(seen)) };
    assert_eq!(system.at(5, Workers).await?, [idle("w1", 4), idle("w3", 3), idle("w2", 2)]);
    Ok(())
}

/// A worker's jobs are listed by expiry, latest first; jobs with an expired lock are listed apart.
pub async fn a_workers_jobs_are_listed_from_the_last_to_expire(system: System) -> Checked {
    for (now, name) in [(1, "a"), (2, "b"), (11, "c"), (12, "d")] {
        system.run(now, put("mail", name), "w1").await?;
    }
    let (jobs, stalled) = system.worker_jobs(65, "w1").await?;
    assert_eq!((jobs, stalled), (vec!["d".into(), "c".into()], vec!["b".into(), "a".into()]));
    assert_eq!(system.worker_jobs(65, "unknown").await?, (vec![], vec![]));
    let counts = WorkerCounts { name: worker("w1"), jobs: 2, stalled: 2, seen: Some(moment(12)) };
    assert_eq!(system.at(65, Workers).await?, [counts]);
    Ok(())
}

/// A lock that ends more than a hundred days from now is left out of its worker's list, as in Qless.
pub async fn a_workers_list_leaves_out_locks_of_a_hundred_days(system: System) -> Checked {
    system.ask(set("heartbeat", "8640001")).await?;
    system.run(0, put("mail", "j1"), "w1").await?;
    assert_eq!(system.worker_jobs(0, "w1").await?, (vec![], vec![]));
    assert_eq!(system.worker_jobs(1, "w1").await?, (vec!["j1".into()], vec![]));
    Ok(())
}

/// A worker not seen for a day is forgotten along with its list; what it has keeps running.
pub async fn a_worker_not_seen_for_long_is_forgotten(system: System) -> Checked {
    system.ask(set("heartbeat", "1000000")).await?;
    system.run(0, put("mail", "j1"), "w1").await?;
    assert_eq!(system.workers(86_399.9).await?, ["w1"]);
    assert_eq!(system.workers(86_400).await?, NONE);
    assert_eq!(system.worker_jobs(86_400, "w1").await?, (vec![], vec![]));
    assert_eq!(system.state("j1").await?, StateName::Running);
    Ok(())
}

/// How long a worker is remembered is an option, and to look at one worker forgets as well.
pub async fn how_long_a_worker_is_remembered_is_an_option(system: System) -> Checked {
    system.ask(set("max-worker-age", "10")).await?;
    system.pop(0, "mail", "w1", 1).await?;
    system.pop(1, "mail", "w2", 1).await?;
    system.worker_jobs(10, "w2").await?;
    assert_eq!(system.workers(0).await?, ["w2"]);
    Ok(())
}

/// A worker taken off the list keeps its jobs, and is back when it is next seen.
pub async fn a_worker_taken_off_the_list_keeps_its_jobs(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, ForgetWorkers { workers: vec![worker("w1"), worker("unknown")] }).await?;
    assert_eq!(system.workers(1).await?, NONE);
    assert_eq!(system.worker_jobs(1, "w1").await?.0, ["j1"]);
    system.at(2, heartbeat("j1", "w1")).await?;
    assert_eq!(system.workers(2).await?, ["w1"]);
    Ok(())
}

/// A look at what comes next shows jobs with expired locks first, as they are, then those that wait.
pub async fn a_peek_shows_expired_jobs_then_waiting_ones(system: System) -> Checked {
    system.run(0, put("mail", "late"), "w1").await?;
    system.at(1, put("mail", "b")).await?;
    system.at(1, put("mail", "a")).await?;
    let seen = system.ignores(60, peek("mail", 2)).await?;
    assert_eq!(seen, [system.job("late").await?, system.job("b").await?]);
    assert_eq!(system.at(60, peek("mail", 9)).await?.len(), 3);
    assert_eq!(system.at(59, peek("mail", 9)).await?.len(), 2);
    assert_eq!(system.at(60, peek("mail", 0)).await?, []);
    Ok(())
}

/// Peek ignores pauses and limits, registers no worker, and promotes due jobs.
pub async fn a_peek_moves_due_jobs_but_hands_nothing_out(system: System) -> Checked {
    system.ask(set("mail-max-concurrency", "1")).await?;
    system.run(0, put("mail", "running"), "w1").await?;
    system.at(0, pause("mail")).await?;
    for name in ["a", "b"] {
        system.at(0, Put { delay: seconds(5), ..put("mail", name) }).await?;
    }
    let seen = system.at(5, peek("mail", 1)).await?;
    assert_eq!(texts(seen.into_iter().map(|job| job.jid)), ["a"]);
    assert_eq!(system.state("a").await?, StateName::Waiting);
    assert_eq!(system.state("b").await?, StateName::Scheduled);
    assert_eq!(system.workers(5).await?, ["w1"]);
    Ok(())
}
