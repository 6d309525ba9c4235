//! Released jobs and lost workers.

use super::prelude::*;

fn dies(by: &str, evidence: &str) -> WorkerLost {
    WorkerLost { worker: worker(by), evidence: Some(evidence.into()) }
}

/// A released job waits again without losing a retry, and names no worker.
pub async fn handing_back_costs_nothing(system: System) -> Checked {
    let popped = system.run(0, put("mail", "a"), "w1").await?;
    let mut listener = system.listen().await?;
    system.at(5, hand_back("a", "w1")).await?;
    listener.heard(&system, [heard::handed_back("a", "mail", "w1", false)]).await?;
    let job = system.job("a").await?;
    assert_eq!((job.state, job.remaining, job.past_failure), (JobState::Waiting, 5, None));
    assert_eq!((job.qless.worker, job.qless.state), (None, "waiting"));
    assert_eq!(job.history.last(), Some(&entry(0, was_popped("w1"))));
    assert_eq!(job.attempts.last().map(|end| end.reason), Some(EndReason::Released));
    assert_eq!(system.worker_jobs(6, "w1").await?, (vec![], vec![]));
    let again = Release::new(jid("a"), holding(&popped));
    system.refuses(6, again, no::lock("a", StateName::Waiting)).await?;
    assert_eq!(system.take(7, "mail", "w2").await?.remaining, 5);
    Ok(())
}

fn snooze(job: &str, by: &str, delay: impl Into<f64>) -> Release {
    Release { delay: seconds(delay), ..hand_back(job, by) }
}

/// A job that is released with a delay is scheduled, and loses neither a retry nor its place in the statistics.
pub async fn a_snoozed_job_is_scheduled(system: System) -> Checked {
    let popped = system.run(0, put("mail", "a"), "w1").await?;
    let mut listener = system.listen().await?;
    let until_noon = Release { message: Some("the bank opens at noon".into()), ..snooze("a", "w1", 30) };
    system.at(5, until_noon).await?;
    listener.heard(&system, [heard::handed_back("a", "mail", "w1", false)]).await?;
    let job = system.job("a").await?;
    assert_eq!(
        (job.state, job.remaining, job.past_failure),
        (JobState::Scheduled { due: moment(35) }, 5, None)
    );
    assert_eq!((job.qless.worker, job.qless.state, job.qless.expires), (None, "scheduled", moment(0)));
    assert_eq!(job.history.last(), Some(&entry(0, was_popped("w1"))));
    assert_eq!(
        job.attempts,
        [AttemptEnd {
            when: moment(5),
            reason: EndReason::Released,
            worker: Some(worker("w1")),
            group: None,
            message: Some("the bank opens at noon".into()),
        }]
    );
    assert_eq!(system.worker_jobs(6, "w1").await?, (vec![], vec![]));
    let again = Release { delay: seconds(30), ..Release::new(jid("a"), holding(&popped)) };
    system.refuses(6, again, no::lock("a", StateName::Scheduled)).await?;
    assert_eq!(system.pop(34.5, "mail", "w2", 1).await?, [""; 0]);
    assert_eq!(system.take(35, "mail", "w2").await?.remaining, 5);
    Ok(())
}

/// A job that was snoozed has no place at the front when it is due, and its expiry goes on to count.
pub async fn a_snoozed_job_waits_as_others_do(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(1, snooze("a", "w1", 9)).await?;
    let late = PutOptions { expires: Some(moment(20)), ..PutOptions::default() };
    system.run(2, on_terms(put("mail", "late"), late), "w1").await?;
    system.at(3, snooze("late", "w1", 17.5)).await?;
    system.at(4, put("mail", "b")).await?;
    assert_eq!(system.pop(10, "mail", "w2", 9).await?, ["b", "a"]);
    assert_eq!(system.pop(20.5, "mail", "w2", 9).await?, [""; 0]);
    assert_eq!(system.job("late").await?.state.name(), StateName::Failed);
    Ok(())
}

/// A warned worker may snooze its job: the next one is warned anew before it loses the job.
pub async fn a_snooze_in_grace_ends_the_warning(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    assert_eq!(system.pop(60, "mail", "w2", 1).await?, [""; 0]);
    system.at(61, snooze("a", "w1", 1)).await?;
    assert_eq!(system.pop(62, "mail", "w2", 1).await?, ["a"]);
    assert_eq!(system.pop(122, "mail", "w3", 1).await?, [""; 0], "w2 is warned");
    assert_eq!(system.pop(132, "mail", "w3", 1).await?, ["a"]);
    assert_eq!(system.job("a").await?.remaining, 4);
    Ok(())
}

/// A delay is from 0 to a hundred years, whoever holds the job.
pub async fn a_snooze_has_its_limits(system: System) -> Checked {
    let popped = system.run(0, put("mail", "a"), "w1").await?;
    let before = system.snapshot(1.0).await?;
    for delay in [-0.5, -3_155_760_001.0, 3_155_760_001.0, f64::MAX] {
        system.refuses(1, snooze("a", "w1", delay), no::good("delay")).await?;
        let by_token = Release { delay: seconds(delay), ..Release::new(jid("a"), holding(&popped)) };
        system.refuses(1, by_token, no::good("delay")).await?;
    }
    assert_eq!(system.snapshot(1.0).await?, before);
    system.at(1, snooze("a", "w1", 3_155_760_000.0)).await?;
    assert_eq!(system.job("a").await?.state, JobState::Scheduled { due: moment(3_155_760_001.0) });
    Ok(())
}

/// Only who holds a job can hand it back.
pub async fn only_the_holder_hands_back(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(0, put("mail", "b")).await?;
    system.refuses(1, hand_back("a", "w2"), no::not_held_by("w2", "a", "w1")).await?;
    system.refuses(1, hand_back("b", "w1"), no::running("b", StateName::Waiting)).await?;
    system.refuses(1, hand_back("unknown", "w1"), no::such_job("unknown")).await?;
    let other = system.run(2, put_again("mail", "b"), "w1").await?;
    let wrong = Release::new(jid("a"), holding(&other));
    system.refuses(3, wrong, no::lock("a", StateName::Running)).await?;
    Ok(())
}

/// What is handed back goes before its equals, in the order of the attempts, and behind what matters more.
pub async fn what_is_handed_back_goes_to_the_front(system: System) -> Checked {
    for name in ["a", "b", "c"] {
        system.run(0, put("mail", name), "w1").await?;
    }
    // Regardless of the clock of the put's caller.
    system.at(-1, put("mail", "early")).await?;
    system.at(2, Put { priority: Some(priority(5)), ..put("mail", "urgent") }).await?;
    system.at(2, Put { priority: Some(priority(-5)), ..put("mail", "idle") }).await?;
    for name in ["c", "a", "b"] {
        system.at(3, hand_back(name, "w1")).await?;
    }
    let expected = ["urgent", "a", "b", "c", "early", "idle"];
    assert_eq!(system.list(4, Listing::Waiting(queue("mail"))).await?, expected);
    assert_eq!(system.pop(4, "mail", "w2", 9).await?, expected);
    Ok(())
}

/// What died comes back among what was handed back, and what was timed out goes before everything.
pub async fn the_front_is_behind_what_was_timed_out(system: System) -> Checked {
    for (name, by) in [("a", "w1"), ("b", "w2"), ("c", "w1")] {
        system.run(0, put("mail", name), by).await?;
    }
    system.run(0, put("mail", "slow"), "w3").await?;
    system.at(1, Put { priority: Some(priority(5)), ..put("mail", "urgent") }).await?;
    system.at(1, put("mail", "early")).await?;
    system.at(2, hand_back("b", "w2")).await?;
    system.at(2, gone("w1")).await?;
    system.at(2, timeout(["slow"])).await?;
    assert_eq!(system.pop(3, "mail", "w4", 9).await?, ["slow", "urgent", "a", "b", "c", "early"]);
    Ok(())
}

/// A job that was at the front once returns as others do.
pub async fn a_place_at_the_front_is_used_once(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(1, put("mail", "early")).await?;
    system.at(2, hand_back("a", "w1")).await?;
    assert_eq!(system.pop(3, "mail", "w1", 1).await?, ["a"]);
    system.at(4, retry("a", "w1")).await?;
    assert_eq!(system.pop(5, "mail", "w1", 2).await?, ["early", "a"]);
    Ok(())
}

/// The jobs of a worker that died come back at the price of a retry, and each counts a crash.
pub async fn the_jobs_of_a_dead_worker_come_back(system: System) -> Checked {
    for (name, by) in [("b", "w1"), ("a", "w1"), ("other", "w2")] {
        system.run(0, put("mail", name), by).await?;
    }
    system.run(0, put("post", "c"), "w1").await?;
    let mut listener = system.listen().await?;
    assert_eq!(texts(system.at(5, dies("w1", "signal 9")).await?), ["b", "a", "c"]);
    let expected = [
        heard::handed_back("b", "mail", "w1", true),
        heard::handed_back("a", "mail", "w1", true),
        heard::handed_back("c", "post", "w1", true),
        heard::worker_gone("w1"),
    ];
    listener.heard(&system, expected).await?;
    for name in ["a", "b", "c"] {
        let job = system.job(name).await?;
        assert_eq!((job.state, job.remaining), (JobState::Waiting, 4));
        assert_eq!(job.attempts.last().map(|end| end.reason), Some(EndReason::WorkerLost));
        let details = job.details.ok_or("it has crashed")?;
        assert_eq!((details.crashes, details.evidence.as_deref()), (1, Some("signal 9")));
    }
    assert_eq!(system.state("other").await?, StateName::Running);
    assert_eq!(system.workers(6).await?, ["w2"]);
    assert_eq!(system.pop(6, "mail", "w2", 9).await?, ["b", "a"]);
    Ok(())
}

/// A worker that is off the list and has jobs can die of them; one that has none is gone already.
pub async fn a_worker_off_the_list_dies_only_with_its_jobs(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    system.pop(0, "post", "w2", 1).await?;
    system.at(1, ForgetWorkers { workers: vec![worker("w1"), worker("w2")] }).await?;
    let mut listener = system.listen().await?;
    assert_eq!(system.ignores(2, gone("w2")).await?, []);
    listener.heard(&system, []).await?;
    assert_eq!(texts(system.at(2, gone("w1")).await?), ["a"]);
    listener.heard(&system, [heard::handed_back("a", "mail", "w1", true), heard::worker_gone("w1")]).await?;
    Ok(())
}

/// A worker that returns after it was lost has lost its jobs.
pub async fn a_dead_workers_tokens_are_worth_nothing(system: System) -> Checked {
    let popped = system.run(0, put("mail", "a"), "w1").await?;
    system.at(1, gone("w1")).await?;
    let late = Complete::new(jid("a"), holding(&popped));
    system.refuses(2, late.clone(), no::lock("a", StateName::Waiting)).await?;
    system.take(3, "mail", "w1").await?;
    system.refuses(4, late, no::lock("a", StateName::Running)).await?;
    assert_eq!(system.workers(4).await?, ["w1"]);
    Ok(())
}

/// An unknown worker cannot be lost; a known one can, with or without jobs.
pub async fn an_unknown_worker_is_gone_already(system: System) -> Checked {
    let mut listener = system.listen().await?;
    assert_eq!(system.ignores(0, gone("unknown")).await?, []);
    listener.heard(&system, []).await?;
    system.pop(0, "mail", "w1", 1).await?;
    assert_eq!(system.at(1, gone("w1")).await?, []);
    listener.heard(&system, [heard::worker_gone("w1")]).await?;
    Ok(())
}

/// A worker that is gone is off the list, and so is gone already when that is said again.
pub async fn a_worker_is_lost_once(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    assert_eq!(texts(system.at(1, gone("w1")).await?), ["a"]);
    let mut listener = system.listen().await?;
    assert_eq!(system.ignores(2, gone("w1")).await?, []);
    listener.heard(&system, []).await?;
    Ok(())
}

/// What a worker has lost already it does not lose again by dying.
pub async fn a_dead_worker_gives_back_only_what_it_holds(system: System) -> Checked {
    for name in ["warned", "timed-out", "retried"] {
        system.run(0, put("mail", name), "w1").await?;
    }
    system.at(1, timeout(["timed-out"])).await?;
    system.at(1, retry("retried", "w1")).await?;
    // The first is warned; it takes what the other two were.
    system.pop(60, "mail", "w2", 2).await?;
    system.run(61, put("post", "held"), "w1").await?;
    assert_eq!(texts(system.at(62, gone("w1")).await?), ["warned", "held"]);
    for name in ["timed-out", "retried"] {
        let job = system.job(name).await?;
        assert_eq!((job.state.name(), job.details), (StateName::Running, None));
    }
    Ok(())
}

/// An expired lock that no pop has examined still belongs to its worker when that is lost.
pub async fn a_dead_worker_gives_back_what_has_expired(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    assert_eq!(texts(system.at(100, gone("w1")).await?), ["a"]);
    assert_eq!(system.pop(100, "mail", "w2", 1).await?, ["a"]);
    Ok(())
}

/// A job whose workers die is set aside after the third, with what is known of the last death.
pub async fn a_job_whose_workers_die_is_set_aside(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    for (now, evidence) in [(1, "signal 6"), (2, "signal 9")] {
        system.take(now, "mail", "w1").await?;
        assert_eq!(texts(system.at(now, dies("w1", evidence)).await?), ["a"]);
        assert_eq!(system.details("a").await?.evidence.as_deref(), Some(evidence));
    }
    system.take(3, "mail", "w1").await?;
    let mut listener = system.listen().await?;
    assert_eq!(texts(system.at(3, dies("w1", "signal 11")).await?), ["a"]);
    let heard = listener.all(&system).await?;
    let crashed = |event: &Event| matches!(event, Event::Failed { group, by: FailedBy::Crashes, .. } if group.as_str() == "crashed-mail");
    assert!(heard.len() == 2 && crashed(&heard[0]), "{heard:?}");
    assert_eq!(heard[1], heard::worker_gone("w1"));
    let job = system.job("a").await?;
    let failure = job.failure().ok_or("it failed")?;
    assert_eq!((job.state.name(), job.remaining), (StateName::Failed, 2));
    assert_eq!(failure.group.as_str(), "crashed-mail");
    assert_eq!(failure.message, "Job was set aside after 3 of its workers died: signal 11");
    assert_eq!(failure.when, moment(3));
    let is_lost = |end: &AttemptEnd| end.reason == EndReason::WorkerLost;
    assert!(job.attempts.len() == 3 && job.attempts.iter().all(is_lost), "{:?}", job.attempts);
    assert_eq!(job.history.last(), Some(&entry(3, had_failed(None, "crashed-mail"))));
    assert_eq!(texts(system.ask(failed("crashed-mail")).await?.jids), ["a"]);
    Ok(())
}

/// How many workers a job may cost is said by its options, or else by an option; zero is no limit.
pub async fn how_many_workers_may_die_can_be_set(system: System) -> Checked {
    let strict = PutOptions { crashes_max: Some(1), ..PutOptions::default() };
    system.run(0, on_terms(put("mail", "strict"), strict), "w1").await?;
    system.at(1, gone("w1")).await?;
    let job = system.job("strict").await?;
    let message = job.failure().map(|failure| failure.message.clone());
    assert_eq!(message.as_deref(), Some("Job was set aside after 1 of its workers died"));

    system.ask(set("crashes-max", "2")).await?;
    system.run(2, put("mail", "a"), "w1").await?;
    system.at(3, gone("w1")).await?;
    assert_eq!(system.pop(4, "mail", "w1", 1).await?, ["a"]);
    system.at(5, gone("w1")).await?;
    assert_eq!(system.state("a").await?, StateName::Failed);

    system.ask(set("crashes-max", "0")).await?;
    system.at(6, Put { retries: Some(50), ..put("mail", "b") }).await?;
    for now in 7..17 {
        assert_eq!(system.pop(now, "mail", "w1", 1).await?, ["b"]);
        system.at(now, gone("w1")).await?;
    }
    let job = system.job("b").await?;
    assert_eq!((job.state, job.remaining), (JobState::Waiting, 40));
    assert_eq!(job.details.map(|details| details.crashes), Some(10));
    Ok(())
}

/// A job that is tried without end is not set aside by the option, but is by its own options.
pub async fn a_job_tried_without_end_is_not_set_aside(system: System) -> Checked {
    system.ask(set("crashes-max", "1")).await?;
    let endless = |name: &str| Put { retries: Some(RETRIES_MAX), ..put("mail", name) };
    system.at(0, endless("a")).await?;
    for now in 1..=5 {
        assert_eq!(system.pop(now, "mail", "w1", 1).await?, ["a"]);
        system.at(now, gone("w1")).await?;
    }
    let job = system.job("a").await?;
    assert_eq!((job.state, job.remaining), (JobState::Waiting, i64::from(RETRIES_MAX) - 5));
    assert_eq!(job.details.map(|details| details.crashes), Some(5));

    system
        .run(6, Put { queue: queue("post"), retries: Some(RETRIES_MAX - 1), ..put("mail", "b") }, "w1")
        .await?;
    system.at(7, gone("w1")).await?;
    assert_eq!(system.state("b").await?, StateName::Failed);

    let twice = PutOptions { crashes_max: Some(2), ..PutOptions::default() };
    system.at(8, Put { queue: queue("news"), ..on_terms(endless("c"), twice) }).await?;
    for (now, state) in [(9, StateName::Waiting), (10, StateName::Failed)] {
        assert_eq!(system.pop(now, "news", "w1", 1).await?, ["c"]);
        system.at(now, gone("w1")).await?;
        assert_eq!(system.state("c").await?, state);
    }
    Ok(())
}

/// A job without retries fails with its worker, as one whose retries are used up; but first counts that too
/// many died.
pub async fn a_crash_beyond_the_last_retry_fails_the_job(system: System) -> Checked {
    let strict = PutOptions { crashes_max: Some(1), ..PutOptions::default() };
    system.run(0, Put { retries: Some(0), ..put("mail", "spent") }, "w1").await?;
    system.run(0, Put { retries: Some(0), ..on_terms(put("mail", "both"), strict) }, "w2").await?;
    let mut listener = system.listen().await?;
    system.at(1, dies("w1", "signal 9")).await?;
    let heard = listener.all(&system).await?;
    let gone = |event: &Event| matches!(event, Event::Failed { by: FailedBy::WorkerLost, .. });
    assert!(heard.len() == 2 && gone(&heard[0]), "{heard:?}");
    let job = system.job("spent").await?;
    let failure = job.failure().ok_or("it failed")?;
    assert_eq!((job.state.name(), job.remaining), (StateName::Failed, -1));
    assert_eq!(failure.group.as_str(), "failed-retries-mail");
    assert_eq!(failure.message, "Job exhausted retries in queue \"mail\"");
    system.at(1, dies("w2", "signal 9")).await?;
    let group = system.job("both").await?.failure().map(|failure| failure.group.to_string());
    assert_eq!(group.as_deref(), Some("crashed-mail"));
    Ok(())
}

/// What a job remembers of its crashes it keeps until it is put on new terms.
pub async fn crashes_are_counted_across_attempts(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(1, dies("w1", "signal 9")).await?;
    system.take(2, "mail", "w2").await?;
    system.at(3, retry("a", "w2")).await?;
    system.take(4, "mail", "w2").await?;
    system.at(5, advance("a", "w2", "post")).await?;
    system.take(6, "post", "w2").await?;
    system.at(7, dies("w2", "signal 6")).await?;
    let details = system.details("a").await?;
    assert_eq!((details.crashes, details.evidence.as_deref()), (2, Some("signal 6")));
    Ok(())
}

/// A worker that was warned and then died gives its jobs back like any other.
pub async fn death_in_grace_gives_jobs_back(system: System) -> Checked {
    let popped = system.run(0, put("mail", "a"), "w1").await?;
    system.pop(60, "mail", "w2", 1).await?;
    assert_eq!(system.at(61, gone("w1")).await?, [jid("a")]);
    let late = Release::new(jid("a"), holding(&popped));
    system.refuses(61, late, no::lock("a", StateName::Waiting)).await?;
    assert_eq!(system.pop(61, "mail", "w2", 1).await?, ["a"]);
    Ok(())
}

/// A job that was set aside or expired starts afresh when a caller puts it again.
pub async fn what_is_put_back_begins_anew(system: System) -> Checked {
    let once = PutOptions { crashes_max: Some(1), ..PutOptions::default() };
    system.run(0, on_terms(put("mail", "a"), once), "w1").await?;
    system.at(1, gone("w1")).await?;
    system.at(2, unfail("mail", "crashed-mail", 1)).await?;
    let details = system.details("a").await?;
    assert_eq!((details.crashes, details.crashes_max), (0, Some(1)));
    let late = PutOptions { expires: Some(moment(5)), ..PutOptions::default() };
    system.at(2, on_terms(put("late", "b"), late)).await?;
    assert_eq!(system.pop(6, "late", "w1", 1).await?, [""; 0]);
    system.at(7, put_again("late", "b")).await?;
    assert_eq!(system.pop(8, "late", "w1", 1).await?, ["b"]);
    Ok(())
}

/// Evidence has 4 KiB at the most.
pub async fn too_much_evidence_is_refused(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    let before = system.snapshot(1.0).await?;
    too_large(system.at(1, dies("w1", &"x".repeat(4_097))).await, "evidence");
    too_large(system.at(1, dies("unknown", &"x".repeat(4_097))).await, "evidence");
    assert_eq!(system.snapshot(1.0).await?, before);
    system.at(1, dies("w1", &"x".repeat(4_096))).await?;
    assert_eq!(system.details("a").await?.evidence.map(|evidence| evidence.len()), Some(4_096));
    Ok(())
}

/// A returned job serves parked pops.
pub async fn a_waiting_worker_gets_what_comes_back(system: System) -> Checked {
    system.now(put("mail", "a")).await?;
    system.now(pop("mail", "w1")).await?;
    let waiter = system.waits(pop("mail", "w2"), 600).await?;
    system.now(hand_back("a", "w1")).await?;
    assert_eq!(waiter.served(&system).await?, ["a"]);
    let waiter = system.waits(pop("mail", "w3"), 600).await?;
    system.now(gone("w2")).await?;
    assert_eq!(waiter.served(&system).await?, ["a"]);
    Ok(())
}

/// A parked pop gets a snoozed job when that is due.
pub async fn a_waiting_worker_gets_what_was_snoozed(system: System) -> Checked {
    system.now(put("mail", "a")).await?;
    system.now(pop("mail", "w1")).await?;
    let waiter = system.waits(pop("mail", "w2"), 600).await?;
    system.now(snooze("a", "w1", 5)).await?;
    system.clock.set(5);
    assert_eq!(waiter.served(&system).await?, ["a"]);
    Ok(())
}
