//! The end of an attempt: complete, fail, retry, timeout.

use super::prelude::*;

/// A completed job is in no queue, has no holder, and has all of its retries again.
pub async fn completing_a_job_ends_it(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, retry("j1", "w1")).await?;
    system.take(2, "mail", "w1").await?;
    assert_eq!(system.at(3.5, complete("j1", "w1")).await?, CompleteReply::Complete);
    let job = system.job("j1").await?;
    assert_eq!((job.state, job.queue), (JobState::Complete { at: moment(3.5) }, None));
    assert_eq!((job.retries, job.remaining), (5, 5));
    assert_eq!(job.qless, QlessView { state: "complete", worker: None, expires: moment(0) });
    assert_eq!(job.history.last(), Some(&entry(3, HistoryEvent::Done)));
    assert_eq!(system.worker_jobs(3.5, "w1").await?, (vec![], vec![]));
    assert_eq!(system.ask(Length { queue: queue("mail") }).await?, 0);
    assert_eq!(system.list(4, Listing::Complete).await?, ["j1"]);
    Ok(())
}

/// A completion replaces the payload if it carries one.
pub async fn completing_may_bring_a_new_payload(system: System) -> Checked {
    system.run(0, Put { payload: "[1]".into(), ..put("mail", "j1") }, "w1").await?;
    system.run(0, Put { payload: "[1]".into(), ..put("mail", "j2") }, "w1").await?;
    system.at(1, Complete { payload: Some(" [ ] ".into()), ..complete("j1", "w1") }).await?;
    system.at(1, complete("j2", "w1")).await?;
    assert_eq!(system.job("j1").await?.payload, " [ ] ".into());
    assert_eq!(system.job("j2").await?.payload, "[1]".into());
    Ok(())
}

/// A wrong queue name is refused with the right one.
pub async fn completing_checks_the_queue_if_it_is_given(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    let elsewhere = Complete { queue: Some(queue("post")), ..complete("j1", "w1") };
    system.refuses(1, elsewhere, no::not_in("post", "j1", "mail")).await?;
    let right = Complete { queue: Some(queue("mail")), ..complete("j1", "w1") };
    assert_eq!(system.at(1, right).await?, CompleteReply::Complete);
    Ok(())
}

/// Of several reasons to refuse, the job's state comes first, then its holder, then its queue.
pub async fn completing_checks_state_then_holder_then_queue(system: System) -> Checked {
    system.run(0, put("mail", "running"), "w1").await?;
    system.at(0, put("mail", "waiting")).await?;
    let wrong = |name| Complete { queue: Some(queue("post")), ..complete(name, "w2") };
    system.refuses(1, wrong("waiting"), no::running("waiting", StateName::Waiting)).await?;
    system.refuses(1, wrong("running"), no::not_held_by("w2", "running", "w1")).await?;
    Ok(())
}

/// A job that advances waits in its next queue as if it had been put there.
pub async fn a_completed_job_may_go_on_to_another_queue(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, retry("j1", "w1")).await?;
    system.take(2, "mail", "w1").await?;
    assert_eq!(system.at(3, advance("j1", "w1", "post")).await?, CompleteReply::Waiting);
    let job = system.job("j1").await?;
    assert_eq!((job.state, job.queue, job.remaining), (JobState::Waiting, Some(queue("post")), 5));
    assert_eq!(job.qless, QlessView { state: "waiting", worker: None, expires: moment(0) });
    assert_eq!(job.history[3..], [entry(3, HistoryEvent::Done), entry(3, was_put("post"))]);
    assert_eq!(system.registered().await?, ["mail", "post"]);
    assert_eq!(system.worker_jobs(3, "w1").await?, (vec![], vec![]));
    assert_eq!(system.list(3, Listing::Complete).await?, NONE);
    assert_eq!(system.pop(4, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.pop(4, "post", "w2", 1).await?, ["j1"]);
    Ok(())
}

/// A job advanced with a delay is scheduled, although Qless clients see it as waiting.
pub async fn a_job_sent_on_with_a_delay_is_scheduled_there(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    let next = Next { delay: seconds(5), ..Next::new(queue("post")) };
    let reply = system.at(1, Complete { next: Some(next), ..complete("j1", "w1") }).await?;
    assert_eq!(reply, CompleteReply::Scheduled);
    let job = system.job("j1").await?;
    assert_eq!((job.state, job.qless.state), (JobState::Scheduled { due: moment(6) }, "waiting"));
    assert_eq!(system.list(2, Listing::Scheduled(queue("post"))).await?, ["j1"]);
    assert_eq!(system.pop(5.9, "post", "w2", 1).await?, NONE);
    assert_eq!(system.pop(6, "post", "w2", 1).await?, ["j1"]);
    Ok(())
}

/// That holds for the advanced job only: after a put or a retry it is shown as scheduled.
pub async fn a_job_sent_on_with_a_delay_is_called_scheduled_once_it_is_put_again(system: System) -> Checked {
    let later = Some(Next { delay: seconds(5), ..Next::new(queue("post")) });
    for name in ["put", "retried"] {
        system.run(0, put("mail", name), "w1").await?;
        system.at(1, Complete { next: later.clone(), ..complete(name, "w1") }).await?;
    }
    system.at(2, Put { delay: seconds(100), ..put_again("post", "put") }).await?;
    assert_eq!(system.pop(6, "post", "w1", 5).await?, ["retried"]);
    system.at(7, Retry { delay: seconds(100), ..retry("retried", "w1") }).await?;
    for name in ["put", "retried"] {
        let job = system.job(name).await?;
        assert_eq!((job.state.name(), job.qless.state), (StateName::Scheduled, "scheduled"), "{name}");
    }
    Ok(())
}

/// A job may advance with dependencies and a delay.
pub async fn a_job_sent_on_may_wait_for_others_there(system: System) -> Checked {
    for name in ["needed", "a", "b"] {
        system.run(0, put("mail", name), "w1").await?;
    }
    for (name, delay, due) in [("a", 0, None), ("b", 50, Some(moment(51)))] {
        let next = Next { delay: seconds(delay), depends: jids(["needed"]), ..Next::new(queue("post")) };
        let reply = system.at(1, Complete { next: Some(next), ..complete(name, "w1") }).await?;
        assert_eq!(reply, CompleteReply::Depends);
        let job = system.job(name).await?;
        assert_eq!(job.state, JobState::Depends { on: jids(["needed"]), due });
        assert_eq!((job.queue, job.qless.state), (Some(queue("post")), "depends"));
    }
    assert_eq!(system.list(2, Listing::Depends(queue("post"))).await?, ["a", "b"]);
    system.at(2, complete("needed", "w1")).await?;
    assert_eq!(system.state("a").await?, StateName::Waiting);
    assert_eq!(system.job("b").await?.state, JobState::Scheduled { due: moment(51) });
    Ok(())
}

/// If all dependencies of an advanced job are complete or unknown, it waits for nothing, not even its delay.
pub async fn a_job_sent_on_to_wait_for_done_jobs_loses_its_delay(system: System) -> Checked {
    system.run(0, put("mail", "done"), "w1").await?;
    system.at(0, complete("done", "w1")).await?;
    for (name, delay) in [("a", 0), ("b", 50)] {
        system.run(0, put("mail", name), "w1").await?;
        let depends = jids(["done", "unknown"]);
        let next = Next { delay: seconds(delay), depends, ..Next::new(queue("post")) };
        let reply = system.at(1, Complete { next: Some(next), ..complete(name, "w1") }).await?;
        assert_eq!((reply, system.state(name).await?), (CompleteReply::Waiting, StateName::Waiting));
    }
    assert_eq!(system.pop(1, "post", "w1", 2).await?, ["a", "b"]);
    Ok(())
}

/// A completion clears an earlier failure, also when the job advances.
pub async fn completing_clears_an_earlier_failure(system: System) -> Checked {
    for name in ["a", "b"] {
        system.run(0, put("mail", name), "w1").await?;
        system.at(1, fail(name, "w1", "g")).await?;
        system.at(2, put_again("mail", name)).await?;
        system.take(3, "mail", "w1").await?;
        assert!(system.job(name).await?.past_failure.is_some());
    }
    system.at(4, complete("a", "w1")).await?;
    system.at(4, advance("b", "w1", "post")).await?;
    assert_eq!(system.job("a").await?.past_failure, None);
    assert_eq!(system.job("b").await?.past_failure, None);
    Ok(())
}

/// Complete jobs are kept for a time; a later completion drops expired ones.
pub async fn complete_jobs_are_dropped_once_they_are_old(system: System) -> Checked {
    system.ask(set("jobs-history", "10")).await?;
    for (now, name) in [(0, "a"), (5, "b"), (9, "c")] {
        system.run(now, Put { tags: Some(tags(["t"])), ..put("mail", name) }, "w1").await?;
        system.at(now, complete(name, "w1")).await?;
    }
    assert_eq!(system.list(9, Listing::Complete).await?, ["c", "b", "a"]);
    system.run(10, put("mail", "d"), "w1").await?;
    system.at(10, complete("d", "w1")).await?;
    assert_eq!(system.list(10, Listing::Complete).await?, ["d", "c", "b"]);
    assert!(!system.has("a").await?);
    assert_eq!(texts(system.ask(tagged("t")).await?.jids), ["b", "c"]);
    Ok(())
}

/// A tick drops them too, the oldest first and no more than it is asked to, and says when the next is too
/// old.
pub async fn a_tick_drops_complete_jobs_that_are_old(system: System) -> Checked {
    system.ask(set("jobs-history", "10")).await?;
    for (now, name) in [(0, "a"), (5, "b"), (9, "c")] {
        system.run(now, Put { tags: Some(tags(["t"])), ..put("mail", name) }, "w1").await?;
        system.at(now, complete(name, "w1")).await?;
    }
    assert_eq!(system.tick(9).await?, TickReply { done: 0, next: Some(moment(10)) });
    let one = Tick { count: count(1) };
    assert_eq!(system.at(15, one).await?, TickReply { done: 1, next: Some(moment(15)) });
    assert_eq!(system.list(15, Listing::Complete).await?, ["c", "b"]);
    assert_eq!(system.tick(15).await?, TickReply { done: 1, next: Some(moment(19)) });
    assert_eq!(texts(system.ask(tagged("t")).await?.jids), ["c"]);
    assert!(!system.has("a").await? && !system.has("b").await? && system.has("c").await?);
    // A clock that is more than thirty days ahead is another one than that of the workers.
    assert_eq!(system.tick(2_592_020).await?, TickReply { done: 0, next: None });
    system.ask(set("jobs-history", "1000")).await?;
    assert_eq!(system.tick(19).await?, TickReply { done: 0, next: Some(moment(1009)) });
    assert_eq!(system.tick(1009).await?, TickReply { done: 1, next: None });
    Ok(())
}

/// Only so many complete jobs are kept, the latest.
pub async fn only_the_latest_complete_jobs_are_kept(system: System) -> Checked {
    system.ask(set_any("jobs-history-count", "2.9")).await?;
    for (now, name) in [(1, "a"), (2, "b"), (3, "c")] {
        system.run(now, put("mail", name), "w1").await?;
        system.at(now, complete(name, "w1")).await?;
    }
    assert_eq!(system.list(4, Listing::Complete).await?, ["c", "b"]);
    assert!(!system.has("a").await?);
    Ok(())
}

/// A job may be dropped by its own completion; what waited for it is released all the same.
pub async fn a_job_dropped_at_once_still_releases_its_dependents(system: System) -> Checked {
    for (option, value) in [("jobs-history", "-1"), ("jobs-history-count", "0"), ("jobs-history-count", "-3")]
    {
        system.ask(set_any(option, value)).await?;
        system.run(1, put("mail", "needed"), "w1").await?;
        system.at(1, Put { depends: jids(["needed"]), ..put("post", "blocked") }).await?;
        assert_eq!(system.at(2, complete("needed", "w1")).await?, CompleteReply::Complete);
        assert!(!system.has("needed").await?, "{option} of {value} kept the job");
        assert_eq!(system.state("blocked").await?, StateName::Waiting);
        system.at(3, cancel(["blocked"])).await?;
        system.ask(unset(option)).await?;
    }
    Ok(())
}

/// A failed job is set aside with what is known of its failure, dated to the second.
pub async fn failing_a_job_sets_it_aside(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(12.8, fail("j1", "w1", "g")).await?;
    let job = system.job("j1").await?;
    let failure =
        Failure { group: group("g"), message: "oops".into(), when: moment(12), worker: Some(worker("w1")) };
    assert_eq!(job.failure(), Some(&failure));
    assert_eq!(job.state, JobState::Failed { failure });
    assert_eq!((job.queue, job.remaining), (Some(queue("mail")), 5));
    assert_eq!(job.qless, QlessView { state: "failed", worker: None, expires: moment(0) });
    assert_eq!(job.history.last(), Some(&entry(12, had_failed(Some("w1"), "g"))));
    assert_eq!(system.worker_jobs(13, "w1").await?, (vec![], vec![]));
    assert_eq!(system.ask(Length { queue: queue("mail") }).await?, 0);
    assert_eq!(system.ask(failed("g")).await?, Listed { total: 1, jids: jids(["j1"]) });
    assert_eq!(system.pop(1000, "mail", "w2", 1).await?, NONE);
    Ok(())
}

/// A failure replaces the payload if it carries one.
pub async fn failing_may_bring_a_new_payload(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.run(0, put("mail", "j2"), "w1").await?;
    system.at(1, Fail { payload: Some("[2]".into()), ..fail("j1", "w1", "g") }).await?;
    system.at(1, fail("j2", "w1", "g")).await?;
    assert_eq!(system.job("j1").await?.payload, "[2]".into());
    assert_eq!(system.job("j2").await?.payload, "{}".into());
    Ok(())
}

/// Failed jobs go back to work with all their retries and the memory of their failure.
pub async fn unfailing_puts_the_oldest_failures_back_to_work(system: System) -> Checked {
    for (now, name) in [(1, "a"), (2, "b"), (3, "c")] {
        system.run(0, put("mail", name), "w1").await?;
        system.at(now, fail(name, "w1", "g")).await?;
    }
    assert_eq!(system.at(4, unfail("post", "g", 2)).await?, 2);
    let job = system.job("a").await?;
    assert_eq!((job.state, job.queue, job.remaining), (JobState::Waiting, Some(queue("post")), 5));
    assert_eq!(job.past_failure.map(|past| past.group), Some(group("g")));
    assert_eq!(job.history.last(), Some(&entry(4, was_put("post"))));
    assert_eq!(system.ask(failed("g")).await?, Listed { total: 1, jids: jids(["c"]) });
    assert_eq!(system.pop(5, "post", "w1", 5).await?, ["a", "b"]);
    assert_eq!(system.at(6, unfail("post", "g", 25)).await?, 1);
    assert!(system.ask(Failures).await?.is_empty());
    assert_eq!(system.at(7, unfail("post", "g", 25)).await?, 0);
    Ok(())
}

/// A job whose retries ran out has them back once it is unfailed.
pub async fn unfailing_gives_used_up_retries_back(system: System) -> Checked {
    system.run(0, Put { retries: Some(0), ..put("mail", "j1") }, "w1").await?;
    assert_eq!(system.at(1, retry("j1", "w1")).await?, -1);
    assert_eq!(system.job("j1").await?.remaining, -1);
    assert_eq!(system.at(2, unfail("mail", "failed-retries-mail", 1)).await?, 1);
    assert_eq!(system.job("j1").await?.remaining, 0);
    Ok(())
}

/// A retried job waits again, with one retry less. Qless clients still see its last worker and deadline.
pub async fn a_retry_gives_the_job_back(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    assert_eq!(system.at(1, retry("j1", "w1")).await?, 4);
    let job = system.job("j1").await?;
    assert_eq!((job.state, job.remaining, job.past_failure), (JobState::Waiting, 4, None));
    assert_eq!(job.qless, QlessView { state: "waiting", worker: Some(worker("w1")), expires: moment(60) });
    assert_eq!(job.history.len(), 2);
    assert_eq!(system.worker_jobs(1, "w1").await?, (vec![], vec![]));
    assert_eq!(system.stats("mail", 0).await?.retries, 0);
    assert_eq!(system.take(2, "mail", "w2").await?.remaining, 4);
    Ok(())
}

/// A retry may have a delay.
pub async fn a_retry_with_a_delay_schedules_the_job(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, Retry { delay: seconds(10), ..retry("j1", "w1") }).await?;
    let job = system.job("j1").await?;
    assert_eq!((job.state, job.qless.state), (JobState::Scheduled { due: moment(11) }, "scheduled"));
    assert_eq!(system.pop(10.9, "mail", "w1", 1).await?, NONE);
    assert_eq!(system.pop(11, "mail", "w1", 1).await?, ["j1"]);
    system.at(12, Retry { delay: seconds(-10), ..retry("j1", "w1") }).await?;
    assert_eq!(system.state("j1").await?, StateName::Waiting);
    Ok(())
}

/// A retry's reason is stored if both group and message are given.
pub async fn a_retry_remembers_its_reason_if_it_is_given_whole(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    let (kind, said) = (Some(group("g")), Some("oops".to_string()));
    system.at(1, Retry { group: kind.clone(), ..retry("j1", "w1") }).await?;
    assert_eq!(system.job("j1").await?.past_failure, None);
    system.take(2, "mail", "w1").await?;
    system.at(3, Retry { message: said.clone(), ..retry("j1", "w1") }).await?;
    assert_eq!(system.job("j1").await?.past_failure, None);
    system.take(4, "mail", "w1").await?;
    system.at(5.5, Retry { group: kind, message: said, ..retry("j1", "w1") }).await?;
    let expected =
        Failure { group: group("g"), message: "oops".into(), when: moment(5), worker: Some(worker("w1")) };
    assert_eq!(system.job("j1").await?.past_failure, Some(expected));
    assert!(system.ask(Failures).await?.is_empty());
    Ok(())
}

/// A job that is retried once too often fails, without a worker and to the fraction of a second.
pub async fn a_retry_beyond_the_last_fails_the_job(system: System) -> Checked {
    system.run(0, Put { retries: Some(1), ..put("mail", "j1") }, "w1").await?;
    assert_eq!(system.at(1, retry("j1", "w1")).await?, 0);
    system.take(2, "mail", "w1").await?;
    let last = Retry { delay: seconds(100), ..retry("j1", "w1") };
    assert_eq!(system.at(3.5, last).await?, -1);
    let job = system.job("j1").await?;
    let failure = Failure {
        group: group("failed-retries-mail"),
        message: "Job exhausted retries in queue \"mail\"".into(),
        when: moment(3.5),
        worker: None,
    };
    assert_eq!(job.state, JobState::Failed { failure });
    assert_eq!((job.queue, job.remaining), (Some(queue("mail")), -1));
    assert_eq!(job.qless, QlessView { state: "failed", worker: None, expires: moment(0) });
    assert_eq!(job.history.last(), Some(&entry(3, had_failed(None, "failed-retries-mail"))));
    let stats = system.stats("mail", 0).await?;
    assert_eq!((stats.failures, stats.failed, stats.retries), (1, 1, 0));
    Ok(())
}

/// The last retry's reason is that of the failure, if it is given whole; a group alone only says where it is
/// kept.
pub async fn the_last_retry_fails_for_the_reason_that_it_gives(system: System) -> Checked {
    let exhausted = "Job exhausted retries in queue \"mail\"";
    let (g, m) = (Some(group("g")), Some("oops".to_string()));
    for (name, kind, said, expected) in [
        ("a", g.clone(), m.clone(), ("g", "oops", 1.0, Some(worker("w1")))),
        ("b", g, None, ("g", exhausted, 1.5, None)),
        ("c", None, m, ("failed-retries-mail", exhausted, 1.5, None)),
    ] {
        system.run(0, Put { retries: Some(0), ..put("mail", name) }, "w1").await?;
        assert_eq!(system.at(1.5, Retry { group: kind, message: said, ..retry(name, "w1") }).await?, -1);
        let (kind, message, when, by) = expected;
        let failure = Failure { group: group(kind), message: message.into(), when: moment(when), worker: by };
        assert_eq!(system.job(name).await?.state, JobState::Failed { failure });
        let last = system.job(name).await?.history.pop();
        assert_eq!(last, Some(entry(1, had_failed(None, kind))));
    }
    assert_eq!(texts(system.ask(failed("g")).await?.jids), ["b", "a"]);
    Ok(())
}

/// A retry with a wrong queue name cannot move the job there, as it could in Qless.
pub async fn a_retry_into_another_queue_is_refused(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    let elsewhere = Retry { queue: Some(queue("post")), ..retry("j1", "w1") };
    system.refuses(1, elsewhere, no::not_in("post", "j1", "mail")).await?;
    assert_eq!(system.at(1, Retry { queue: Some(queue("mail")), ..retry("j1", "w1") }).await?, 4);
    Ok(())
}

/// A timed-out job waits again and costs no retry. Qless clients see it as stalled.
pub async fn a_timeout_takes_a_running_job_away(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, timeout(["j1"])).await?;
    let job = system.job("j1").await?;
    assert_eq!((job.state, job.remaining), (JobState::Waiting, 5));
    assert_eq!(job.qless, QlessView { state: "stalled", worker: Some(worker("w1")), expires: moment(0) });
    assert_eq!(job.history.last(), Some(&entry(1, HistoryEvent::TimedOut)));
    let counts = system.counts(1, "mail").await?;
    assert_eq!((counts.waiting, counts.running, counts.stalled), (1, 0, 0));
    let late = Refusal::NotRunning { jid: jid("j1"), state: StateName::Waiting, qless: "stalled" };
    system.refuses(2, complete("j1", "w1"), late).await?;
    let popped = system.take(3, "mail", "w2").await?;
    assert_eq!((popped.remaining, popped.lock.expires), (5, moment(63)));
    Ok(())
}

/// A timed-out job stays in its last holder's list until another worker pops it or a caller moves it.
pub async fn a_timed_out_job_stays_in_its_holders_list_until_it_moves(system: System) -> Checked {
    for name in ["a", "b", "c"] {
        system.run(0, put("mail", name), "w1").await?;
    }
    system.at(1, timeout(["a", "b", "c"])).await?;
    assert_eq!(system.worker_jobs(2, "w1").await?.0.len(), 3);
    assert_eq!(system.pop(3, "mail", "w2", 1).await?, ["a"]);
    system.at(3, put_again("mail", "b")).await?;
    assert_eq!(system.worker_jobs(4, "w1").await?, (vec!["c".into()], vec![]));
    assert_eq!(system.worker_jobs(60, "w1").await?.1, ["c"]);
    system.at(5, cancel(["c"])).await?;
    assert_eq!(system.worker_jobs(6, "w1").await?, (vec![], vec![]));
    assert_eq!(system.worker_jobs(6, "w2").await?, (vec!["a".into()], vec![]));
    Ok(())
}

/// If one of the jobs is not running, none is timed out. An empty list changes nothing.
pub async fn a_timeout_is_all_or_nothing(system: System) -> Checked {
    system.run(0, put("mail", "running"), "w1").await?;
    system.at(0, put("mail", "waiting")).await?;
    let waiting = no::running("waiting", StateName::Waiting);
    system.refuses(1, timeout(["running", "waiting"]), waiting).await?;
    system.refuses(1, timeout(["running", "unknown"]), no::such_job("unknown")).await?;
    system.ignores(1, Timeout { jids: vec![] }).await?;
    assert_eq!(system.state("running").await?, StateName::Running);
    Ok(())
}

/// A job that is named twice would not run any more at its second mention.
pub async fn a_timeout_that_names_a_job_twice_is_refused(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    let stalled = Refusal::NotRunning { jid: jid("j1"), state: StateName::Waiting, qless: "stalled" };
    system.refuses(1, timeout(["j1", "j1"]), stalled).await?;
    Ok(())
}
