//! Locks: pop, heartbeat, expiry, grace period and take-over.
//!
//! A lock lasts 60 seconds and the grace after its end 10, unless a case says otherwise.

use super::prelude::*;

/// A popped job is locked until its deadline.
pub async fn a_pop_hands_out_a_job_with_a_lock(system: System) -> Checked {
    system.at(0, Put { payload: "[1]".into(), priority: Some(priority(3)), ..put("mail", "j1") }).await?;
    let popped = system.take(10, "mail", "w1").await?;
    assert_eq!((popped.jid, popped.queue, popped.klass), (jid("j1"), queue("mail"), klass("k")));
    assert_eq!((popped.payload, popped.priority), ("[1]".into(), priority(3)));
    assert_eq!((popped.retries, popped.remaining, popped.job), (5, 5, None));
    assert_eq!((popped.lock.worker.clone(), popped.lock.expires), (worker("w1"), moment(70)));
    let job = system.job("j1").await?;
    assert_eq!(job.state, JobState::Running { lock: popped.lock });
    assert_eq!(job.qless, QlessView { state: "running", worker: Some(worker("w1")), expires: moment(70) });
    assert_eq!(job.history, [entry(0, was_put("mail")), entry(10, was_popped("w1"))]);
    assert_eq!(system.worker_jobs(10, "w1").await?, (vec!["j1".into()], vec![]));
    Ok(())
}

/// A pop that asks for whole jobs gets them as a look afterwards would show them.
pub async fn a_pop_of_whole_jobs_shows_them_as_they_are_then(system: System) -> Checked {
    system.at(0, Put { tags: Some(tags(["t"])), ..put("mail", "j1") }).await?;
    system.at(0, track("j1")).await?;
    let reply = system.at(1, Pop { whole: true, ..pop("mail", "w1") }).await?;
    let whole: Vec<Job> = reply.jobs.into_iter().filter_map(|popped| popped.job).map(|job| *job).collect();
    assert_eq!(whole, [system.job("j1").await?]);
    Ok(())
}

/// A locked job is not handed out to another worker.
pub async fn a_job_goes_to_one_worker_only(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    assert_eq!(system.pop(1, "mail", "w2", 10).await?, NONE);
    assert_eq!(system.pop(1, "mail", "w1", 10).await?, NONE);
    Ok(())
}

/// A pop that wants nothing gets nothing, and the worker has been seen.
pub async fn a_pop_of_no_jobs_registers_its_worker(system: System) -> Checked {
    system.at(0, put("mail", "j1")).await?;
    assert_eq!(system.pop(1, "mail", "w1", 0).await?, NONE);
    assert_eq!(system.workers(1).await?, ["w1"]);
    assert_eq!(system.state("j1").await?, StateName::Waiting);
    Ok(())
}

/// A heartbeat begins the lock's time anew, from its own moment.
pub async fn a_heartbeat_pushes_the_deadline_back(system: System) -> Checked {
    let before = system.run(0, put("mail", "j1"), "w1").await?.lock;
    assert_eq!(system.at(30.5, heartbeat("j1", "w1")).await?, moment(90.5));
    let lock = Lock { expires: moment(90.5), ..before };
    assert_eq!(system.job("j1").await?.state, JobState::Running { lock });
    assert_eq!(system.pop(90.4, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.worker_jobs(90.4, "w1").await?, (vec!["j1".into()], vec![]));
    assert_eq!(system.stats("mail", 0).await?.retries, 0);
    Ok(())
}

/// A heartbeat replaces the payload if it carries one.
pub async fn a_heartbeat_may_bring_a_new_payload(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, Heartbeat { payload: Some("[2]".into()), ..heartbeat("j1", "w1") }).await?;
    assert_eq!(system.job("j1").await?.payload, "[2]".into());
    system.at(2, heartbeat("j1", "w1")).await?;
    assert_eq!(system.job("j1").await?.payload, "[2]".into());
    Ok(())
}

/// A late worker still holds its job until another worker asks for one.
pub async fn a_heartbeat_renews_an_expired_lock(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    assert_eq!(system.at(100, heartbeat("j1", "w1")).await?, moment(160));
    assert_eq!(system.pop(159, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.stats("mail", 0).await?.retries, 0);
    Ok(())
}

/// A worker that goes quiet is warned by the first pop after its deadline, and loses the job to the first
/// after the grace.
pub async fn an_expired_lock_goes_to_the_next_worker_after_a_grace(system: System) -> Checked {
    let first = system.run(0, put("mail", "j1"), "w1").await?;
    assert_eq!(system.pop(60, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.pop(69.9, "mail", "w2", 1).await?, NONE);
    let second = system.take(70, "mail", "w2").await?;
    assert_eq!((second.jid, second.remaining), (jid("j1"), 4));
    assert_eq!((second.lock.worker, second.lock.expires), (worker("w2"), moment(130)));
    assert_ne!(second.lock.token, first.lock.token);
    let late = complete("j1", "w1");
    system.refuses(71, late, no::not_held_by("w1", "j1", "w2")).await?;
    let history = [
        entry(0, was_put("mail")),
        entry(0, was_popped("w1")),
        entry(60, HistoryEvent::TimedOut),
        entry(70, was_popped("w2")),
    ];
    assert_eq!(system.job("j1").await?.history, history);
    Ok(())
}

/// A lock has expired at its deadline, not only after it.
pub async fn a_lock_expires_at_its_very_deadline(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.pop(59.999, "mail", "w2", 1).await?;
    assert_eq!(system.stats("mail", 0).await?.retries, 0);
    system.pop(60, "mail", "w2", 1).await?;
    assert_eq!(system.stats("mail", 0).await?.retries, 1);
    Ok(())
}

/// The grace is counted from the warning, however long after the deadline that comes.
pub async fn the_grace_begins_with_the_warning(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    assert_eq!(system.pop(1000, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.pop(1009.9, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.pop(1010, "mail", "w2", 1).await?, ["j1"]);
    Ok(())
}

/// The warning is what counts as an expired lock; the take-over is what costs a retry.
pub async fn the_warning_is_counted_and_the_take_over_costs_a_retry(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.pop(60, "mail", "w2", 1).await?;
    assert_eq!(system.job("j1").await?.remaining, 5);
    assert_eq!(system.stats("mail", 0).await?.retries, 1);
    system.take(70, "mail", "w2").await?;
    assert_eq!(system.job("j1").await?.remaining, 4);
    assert_eq!(system.stats("mail", 0).await?.retries, 1);
    Ok(())
}

/// An expired lock is noticed by a pop of its queue and by nothing else.
pub async fn only_a_pop_of_its_queue_notices_an_expired_lock(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(100, put("mail", "j2")).await?;
    system.pop(100, "post", "w2", 5).await?;
    system.at(100, peek("mail", 5)).await?;
    system.counts(100, "mail").await?;
    system.list(100, Listing::Stalled(queue("mail"))).await?;
    system.at(100, Workers).await?;
    let job = system.job("j1").await?;
    assert_eq!((job.state.name(), job.history.len()), (StateName::Running, 2));
    assert_eq!(system.stats("mail", 0).await?.retries, 0);
    Ok(())
}

/// A warned worker no longer has the job in its list, although it still holds it.
pub async fn a_job_in_grace_runs_but_is_in_no_workers_list(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.pop(60, "mail", "w2", 1).await?;
    assert_eq!(system.worker_jobs(61, "w1").await?, (vec![], vec![]));
    let job = system.job("j1").await?;
    assert_eq!(job.state.name(), StateName::Running);
    assert_eq!(job.qless, QlessView { state: "running", worker: Some(worker("w1")), expires: moment(60) });
    let counts = system.counts(61, "mail").await?;
    assert_eq!((counts.running, counts.stalled), (1, 0));
    let counts = system.counts(70, "mail").await?;
    assert_eq!((counts.running, counts.stalled), (0, 1));
    Ok(())
}

/// Until the take-over the holder may do with the job what it likes.
pub async fn a_warned_holder_may_still_finish(system: System) -> Checked {
    for name in ["a", "b", "c", "d"] {
        system.run(0, put("mail", name), "w1").await?;
    }
    assert_eq!(system.pop(60, "mail", "w2", 4).await?, NONE);
    assert_eq!(system.at(61, heartbeat("a", "w1")).await?, moment(121));
    assert_eq!(system.worker_jobs(61, "w1").await?, (vec!["a".into()], vec![]));
    assert_eq!(system.at(61, complete("b", "w1")).await?, CompleteReply::Complete);
    system.at(61, fail("c", "w1", "g")).await?;
    assert_eq!(system.state("c").await?, StateName::Failed);
    assert_eq!(system.at(61, retry("d", "w1")).await?, 4);
    assert_eq!(system.pop(62, "mail", "w2", 4).await?, ["d"]);
    Ok(())
}

/// A job whose lock expires with no retry left fails, without a worker and to the fraction of a second.
pub async fn an_expired_lock_without_retries_fails_the_job(system: System) -> Checked {
    system.run(0, Put { retries: Some(0), ..put("mail", "j1") }, "w1").await?;
    assert_eq!(system.pop(60, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.pop(70.5, "mail", "w2", 1).await?, NONE);
    let job = system.job("j1").await?;
    let failure = Failure {
        group: group("failed-retries-mail"),
        message: "Job exhausted retries in queue \"mail\"".into(),
        when: moment(70.5),
        worker: None,
    };
    assert_eq!(job.state, JobState::Failed { failure });
    assert_eq!((job.queue, job.remaining), (Some(queue("mail")), -1));
    assert_eq!(job.qless, QlessView { state: "failed", worker: None, expires: moment(0) });
    assert_eq!(job.history.last(), Some(&entry(70, had_failed(None, "failed-retries-mail"))));
    assert_eq!(system.ask(failed("failed-retries-mail")).await?.total, 1);
    let stats = system.stats("mail", 0).await?;
    assert_eq!((stats.failures, stats.failed, stats.retries), (1, 1, 1));
    Ok(())
}

/// A job with one retry is tried twice.
pub async fn a_job_is_tried_once_more_often_than_its_retries(system: System) -> Checked {
    system.run(0, Put { retries: Some(1), ..put("mail", "j1") }, "w1").await?;
    system.pop(60, "mail", "w2", 1).await?;
    assert_eq!(system.take(70, "mail", "w2").await?.remaining, 0);
    system.pop(130, "mail", "w3", 1).await?;
    assert_eq!(system.pop(140, "mail", "w3", 1).await?, NONE);
    assert_eq!(system.state("j1").await?, StateName::Failed);
    Ok(())
}

/// A job keeps its warning through a heartbeat: the next expiry comes without one.
pub async fn a_warning_sticks_through_a_heartbeat(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.pop(60, "mail", "w2", 1).await?;
    system.at(65, heartbeat("j1", "w1")).await?;
    assert_eq!(system.pop(124.9, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.take(125, "mail", "w2").await?.remaining, 4);
    assert_eq!(system.stats("mail", 0).await?.retries, 1);
    Ok(())
}

/// It also keeps it when it is put again, advanced, failed and unfailed, or timed out.
pub async fn a_warning_sticks_until_a_take_over_or_a_retry(system: System) -> Checked {
    for name in ["a", "b", "c", "d"] {
        system.run(0, put("mail", name), "w1").await?;
    }
    assert_eq!(system.pop(60, "mail", "w2", 4).await?, NONE);
    system.at(61, put_again("post", "a")).await?;
    system.at(62, advance("b", "w1", "post")).await?;
    system.at(63, fail("c", "w1", "g")).await?;
    system.at(63, unfail("post", "g", 1)).await?;
    system.at(64, timeout(["d"])).await?;
    assert_eq!(system.pop(100, "post", "w2", 3).await?, ["a", "b", "c"]);
    assert_eq!(system.pop(100, "mail", "w2", 1).await?, ["d"]);
    assert_eq!(system.pop(160, "post", "w3", 3).await?, ["a", "b", "c"]);
    assert_eq!(system.pop(160, "mail", "w3", 1).await?, ["d"]);
    assert_eq!(system.stats("post", 0).await?.retries, 0);
    Ok(())
}

/// A take-over uses the warning up: the next holder is warned in turn.
pub async fn a_take_over_or_a_retry_uses_the_warning_up(system: System) -> Checked {
    system.run(0, put("mail", "taken"), "w1").await?;
    system.run(0, put("mail", "then"), "w1").await?;
    system.pop(60, "mail", "w2", 2).await?;
    system.at(61, retry("then", "w1")).await?;
    assert_eq!(system.pop(70, "mail", "w2", 2).await?, ["taken", "then"]);
    assert_eq!(system.pop(130, "mail", "w3", 2).await?, NONE);
    assert_eq!(system.stats("mail", 0).await?.retries, 4);
    assert_eq!(system.pop(140, "mail", "w3", 2).await?, ["taken", "then"]);
    Ok(())
}

/// With no grace the warning and the take-over are one.
pub async fn without_grace_an_expired_lock_is_taken_over_at_once(system: System) -> Checked {
    for (grace, name) in [("0", "a"), ("-5", "b")] {
        system.ask(set_any("grace-period", grace)).await?;
        system.run(0, put("mail", name), "w1").await?;
        assert_eq!(system.take(60, "mail", "w2").await?.remaining, 4);
        let history = system.job(name).await?.history;
        assert_eq!(history[2..], [entry(60, HistoryEvent::TimedOut), entry(60, was_popped("w2"))]);
        system.at(61, complete(name, "w2")).await?;
    }
    assert_eq!(system.stats("mail", 0).await?.retries, 2);
    Ok(())
}

/// With no grace a job without retries fails at its deadline.
pub async fn without_grace_an_expired_lock_without_retries_fails_at_once(system: System) -> Checked {
    system.ask(set("grace-period", "0")).await?;
    system.run(0, Put { retries: Some(0), ..put("mail", "j1") }, "w1").await?;
    assert_eq!(system.pop(60, "mail", "w2", 1).await?, NONE);
    let job = system.job("j1").await?;
    assert_eq!((job.state.name(), job.remaining), (StateName::Failed, -1));
    let stats = system.stats("mail", 0).await?;
    assert_eq!((stats.failures, stats.failed, stats.retries), (1, 1, 1));
    Ok(())
}

/// A pop examines as many expired locks as it wants jobs, the longest expired first.
pub async fn a_pop_examines_no_more_expired_locks_than_it_wants(system: System) -> Checked {
    system.run(1, put("mail", "second"), "w1").await?;
    system.run(0, put("mail", "first"), "w1").await?;
    system.pop(61, "mail", "w2", 1).await?;
    assert_eq!(system.job("first").await?.history.len(), 3);
    assert_eq!(system.job("second").await?.history.len(), 2);
    system.pop(61, "mail", "w2", 1).await?;
    assert_eq!(system.job("second").await?.history.len(), 3);
    Ok(())
}

/// A warning leaves room for a waiting job in the same pop.
pub async fn a_warning_does_not_use_up_a_place(system: System) -> Checked {
    system.run(0, put("mail", "late"), "w1").await?;
    system.at(1, put("mail", "waiting")).await?;
    assert_eq!(system.pop(60, "mail", "w2", 1).await?, ["waiting"]);
    assert_eq!(system.stats("mail", 0).await?.retries, 1);
    Ok(())
}

/// A take-over does use up a place.
pub async fn a_take_over_uses_up_a_place(system: System) -> Checked {
    system.run(0, put("mail", "late"), "w1").await?;
    system.pop(60, "mail", "w2", 1).await?;
    system.at(61, put("mail", "waiting")).await?;
    assert_eq!(system.pop(70, "mail", "w2", 1).await?, ["late"]);
    assert_eq!(system.state("waiting").await?, StateName::Waiting);
    Ok(())
}

/// Jobs taken over come before those that wait, the longest expired first, whatever their priority.
pub async fn jobs_taken_over_come_first(system: System) -> Checked {
    system.run(2, Put { priority: Some(priority(5)), ..put("mail", "b") }, "w1").await?;
    system.run(1, put("mail", "a"), "w1").await?;
    system.pop(63, "mail", "w2", 1).await?;
    system.pop(64, "mail", "w2", 1).await?;
    system.at(64, Put { priority: Some(priority(9)), ..put("mail", "c") }).await?;
    assert_eq!(system.pop(80, "mail", "w2", 3).await?, ["a", "b", "c"]);
    Ok(())
}

/// A lock that is expired from the start is no lock for long.
pub async fn a_negative_heartbeat_makes_locks_that_have_expired(system: System) -> Checked {
    system.ask(set_any("heartbeat", "-1")).await?;
    assert_eq!(system.run(10, put("mail", "j1"), "w1").await?.lock.expires, moment(9));
    assert_eq!(system.list(10, Listing::Stalled(queue("mail"))).await?, ["j1"]);
    assert_eq!(system.pop(10, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.pop(20, "mail", "w2", 1).await?, ["j1"]);
    Ok(())
}

/// A queue gives out no more locks than it may have at a time.
pub async fn a_queue_hands_out_no_more_than_its_concurrency(system: System) -> Checked {
    system.ask(set("mail-max-concurrency", "2")).await?;
    for name in ["a", "b", "c"] {
        system.at(0, put("mail", name)).await?;
    }
    assert_eq!(system.pop(1, "mail", "w1", 3).await?, ["a", "b"]);
    assert_eq!(system.pop(2, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.workers(2).await?, ["w2", "w1"]);
    system.at(3, complete("a", "w1")).await?;
    assert_eq!(system.pop(4, "mail", "w2", 3).await?, ["c"]);
    Ok(())
}

/// A fraction of a place is none, and a limit of zero or less is no limit.
pub async fn a_concurrency_is_rounded_down_and_nought_is_no_limit(system: System) -> Checked {
    for name in ["a", "b", "c", "d", "e"] {
        system.at(0, put("mail", name)).await?;
    }
    system.ask(set_any("mail-max-concurrency", "2.9")).await?;
    assert_eq!(system.pop(0, "mail", "w1", 5).await?, ["a", "b"]);
    system.ask(set("mail-max-concurrency", "0")).await?;
    assert_eq!(system.pop(0, "mail", "w1", 1).await?, ["c"]);
    system.ask(set_any("mail-max-concurrency", "-1")).await?;
    assert_eq!(system.pop(0, "mail", "w1", 5).await?, ["d", "e"]);
    Ok(())
}

/// A lock at its very deadline takes a place still. While there is no place, expired locks are not examined.
pub async fn a_full_queue_examines_no_locks(system: System) -> Checked {
    system.ask(set("mail-max-concurrency", "1")).await?;
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(1, put("mail", "b")).await?;
    assert_eq!(system.pop(60, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.stats("mail", 0).await?.retries, 0);
    // Now a is warned, and while it is in its grace b takes the place that it had.
    assert_eq!(system.pop(60.5, "mail", "w2", 1).await?, ["b"]);
    assert_eq!(system.counts(60.5, "mail").await?.running, 2);
    assert_eq!(system.pop(100, "mail", "w3", 1).await?, NONE);
    assert_eq!(system.job("a").await?.remaining, 5);
    system.at(101, complete("b", "w2")).await?;
    assert_eq!(system.pop(102, "mail", "w3", 1).await?, ["a"]);
    Ok(())
}

/// A paused queue hands out nothing, does not count its worker as seen, and leaves expired locks alone.
pub async fn a_paused_queue_hands_out_nothing(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(0, put("mail", "b")).await?;
    system.at(1, pause("mail")).await?;
    assert!(system.counts(1, "mail").await?.paused);
    assert_eq!(system.pop(100, "mail", "w2", 5).await?, NONE);
    assert_eq!(system.workers(100).await?, ["w1"]);
    assert_eq!(system.stats("mail", 0).await?.retries, 0);
    system.at(101, resume("mail")).await?;
    assert!(!system.counts(101, "mail").await?.paused);
    assert_eq!(system.pop(102, "mail", "w2", 5).await?, ["b"]);
    Ok(())
}

/// Everything but a pop works on a paused queue as on any other.
pub async fn a_paused_queue_takes_jobs_and_reports(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(1, pause("mail")).await?;
    system.at(2, put("mail", "b")).await?;
    assert_eq!(system.at(3, peek("mail", 5)).await?.len(), 1);
    assert_eq!(system.at(4, heartbeat("a", "w1")).await?, moment(64));
    assert_eq!(system.at(5, complete("a", "w1")).await?, CompleteReply::Complete);
    Ok(())
}

/// A queue can be paused before it has had a job, and stays paused while it is empty.
pub async fn a_pause_needs_no_jobs(system: System) -> Checked {
    system.at(0, pause("mail")).await?;
    assert_eq!(system.registered().await?, NONE);
    assert!(system.counts(0, "mail").await?.paused);
    system.at(1, put("mail", "j1")).await?;
    assert_eq!(system.pop(2, "mail", "w1", 1).await?, NONE);
    system.at(3, cancel(["j1"])).await?;
    system.at(4, put("mail", "j2")).await?;
    assert_eq!(system.pop(5, "mail", "w1", 1).await?, NONE);
    system.at(6, Resume { queues: queues(["mail", "post"]) }).await?;
    assert_eq!(system.pop(7, "mail", "w1", 1).await?, ["j2"]);
    Ok(())
}
