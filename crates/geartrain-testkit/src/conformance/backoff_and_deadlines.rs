//! Backoff, attempt deadlines and expiry.

use super::prelude::*;

/// Waits 10 seconds, then 20, 40 and so on up to 100; chance makes it up to half of that more or less.
fn doubling(name: &str) -> Result<Put, BadArgument> {
    let backoff = Some(Backoff::exponential(seconds(10), 2.0, seconds(100), 0.5)?);
    Ok(on_terms(put("mail", name), PutOptions { backoff, ..PutOptions::default() }))
}

fn limited(name: &str, attempt_max: impl Into<f64>) -> Put {
    on_terms(
        put("mail", name),
        PutOptions { attempt_max: Some(seconds(attempt_max)), ..PutOptions::default() },
    )
}

fn expiring(name: &str, expires: impl Into<f64>) -> Put {
    on_terms(put("mail", name), PutOptions { expires: Some(moment(expires)), ..PutOptions::default() })
}

fn due(at: impl Into<f64>) -> JobState {
    JobState::Scheduled { due: moment(at) }
}

/// Who failed for which kind of reason, of all that was heard.
fn failures(heard: Vec<Event>) -> Vec<(String, String, FailedBy)> {
    let failures = heard.into_iter().filter_map(|event| match event {
        Event::Failed { jid, group, by, .. } => Some((jid.to_string(), group.to_string(), by)),
        _ => None,
    });
    failures.collect()
}

/// A retry by chance waits as the job's backoff says, longer each time, and that is not written down as a
/// delay of the caller's.
pub async fn a_retry_by_chance_waits_as_the_backoff_says(system: System) -> Checked {
    let chance = |value| RandomUnit::new(value).map(Some);
    system.at(0, doubling("a")?).await?;
    let mut now = 0.0;
    for (value, wait) in [(0.5, 10.0), (0.5, 20.0), (0.0, 20.0), (1.0, 120.0), (0.5, 100.0)] {
        system.take(now, "mail", "w1").await?;
        system.at(now, Retry { random: chance(value)?, delay: seconds(7), ..retry("a", "w1") }).await?;
        assert_eq!(system.job("a").await?.state, due(now + wait));
        now += wait;
    }
    Ok(())
}

/// Without chance the delay of the retry counts, and so it does for a job without backoff.
pub async fn without_chance_or_backoff_the_delay_counts(system: System) -> Checked {
    system.run(0, doubling("a")?, "w1").await?;
    system.at(1, Retry { delay: seconds(7), ..retry("a", "w1") }).await?;
    assert_eq!(system.job("a").await?.state, due(8));
    system.run(0, put("mail", "b"), "w1").await?;
    system.at(1, Retry { delay: seconds(7), random: Some(RandomUnit::HALF), ..retry("b", "w1") }).await?;
    assert_eq!(system.job("b").await?.state, due(8));
    system.run(0, doubling("c")?, "w1").await?;
    system.at(1, retry("c", "w1")).await?;
    assert_eq!(system.state("c").await?, StateName::Waiting);
    Ok(())
}

/// A retry by chance of a job without backoff waits for the default one, unless it names a delay. Without
/// chance, as Qless retries, the job may run again at once.
pub async fn a_retry_by_chance_without_a_backoff_waits_for_the_default(system: System) -> Checked {
    system.at(0, Put { retries: Some(20), ..put("mail", "a") }).await?;
    let mut now = 0.0;
    for (value, wait) in
        [(0.5, 1.0), (0.5, 2.0), (0.0, 3.0), (1.0, 10.0), (0.5, 16.0), (0.5, 32.0), (0.5, 60.0), (1.0, 75.0)]
    {
        system.take(now, "mail", "w1").await?;
        system.at(now, Retry { random: Some(RandomUnit::new(value)?), ..retry("a", "w1") }).await?;
        assert_eq!(system.job("a").await?.state, due(now + wait));
        now += wait;
    }
    system.take(now, "mail", "w1").await?;
    let later = Retry { random: Some(RandomUnit::HALF), delay: seconds(7), ..retry("a", "w1") };
    system.at(now, later).await?;
    assert_eq!(system.job("a").await?.state, due(now + 7.0));
    system.take(now + 7.0, "mail", "w1").await?;
    system.at(now + 8.0, retry("a", "w1")).await?;
    assert_eq!(system.state("a").await?, StateName::Waiting);
    Ok(())
}

/// A retry beyond the last fails the job, backoff or not.
pub async fn a_backoff_saves_no_job_without_retries(system: System) -> Checked {
    system.run(0, Put { retries: Some(0), ..doubling("a")? }, "w1").await?;
    assert_eq!(system.at(1, Retry { random: Some(RandomUnit::HALF), ..retry("a", "w1") }).await?, -1);
    assert_eq!(system.state("a").await?, StateName::Failed);
    Ok(())
}

/// How often a job was tried is counted from its last put.
pub async fn a_backoff_begins_anew_with_a_put(system: System) -> Checked {
    system.run(0, doubling("a")?, "w1").await?;
    for _ in 0..2 {
        system.at(1, Retry { random: Some(RandomUnit::HALF), ..retry("a", "w1") }).await?;
        system.run(1, put_again("mail", "a"), "w1").await?;
    }
    system.at(2, Retry { random: Some(RandomUnit::HALF), ..retry("a", "w1") }).await?;
    assert_eq!(system.job("a").await?.state, due(12));
    Ok(())
}

/// A pop says until when the attempt must be over, and no heartbeat changes that.
pub async fn heartbeats_do_not_move_the_deadline(system: System) -> Checked {
    system.at(0, limited("a", 100)).await?;
    assert_eq!(system.details("a").await?.deadline, None);
    let popped = system.take(10, "mail", "w1").await?;
    let deadline = popped.details.and_then(|details| details.deadline);
    assert_eq!((deadline, popped.lock.expires), (Some(moment(110)), moment(70)));
    assert_eq!(system.at(60, heartbeat("a", "w1")).await?, moment(120));
    assert_eq!(system.details("a").await?.deadline, Some(moment(110)));
    system.tick(109.9).await?;
    assert_eq!(system.state("a").await?, StateName::Running);
    system.tick(110).await?;
    assert_eq!(system.state("a").await?, StateName::Waiting);
    assert_eq!(system.details("a").await?.deadline, None);
    Ok(())
}

/// An attempt that takes too long is over: its worker has lost the job, and that costs a retry.
pub async fn an_attempt_past_its_deadline_is_retried(system: System) -> Checked {
    let popped = system.run(0, limited("a", 30), "w1").await?;
    let mut listener = system.listen().await?;
    system.tick(30).await?;
    listener.heard(&system, [heard::lock_lost("a", "w1"), heard::retried("a", "mail")]).await?;
    let job = system.job("a").await?;
    assert_eq!((job.state.name(), job.remaining), (StateName::Waiting, 4));
    let failure = Failure {
        group: group("timed-out-mail"),
        message: "An attempt took longer than it may".into(),
        when: moment(30),
        worker: Some(worker("w1")),
    };
    assert_eq!(job.past_failure, Some(failure));
    assert_eq!(job.history.last(), Some(&entry(30, HistoryEvent::TimedOut)));
    assert_eq!(system.worker_jobs(31, "w1").await?, (vec![], vec![]));
    let lost = || no::lock("a", StateName::Waiting);
    let beat = Heartbeat { jid: jid("a"), holder: holding(&popped), payload: None };
    system.refuses(31, beat, lost()).await?;
    system.refuses(31, progress("a", holding(&popped), 1, 2), lost()).await?;
    system.refuses(31, chunk("a", holding(&popped), "bytes"), lost()).await?;
    system.refuses(31, Retry::new(jid("a"), holding(&popped)), lost()).await?;
    system.refuses(31, complete("a", "w1"), no::running("a", StateName::Waiting)).await?;
    let second = system.take(40, "mail", "w2").await?;
    assert_eq!(second.details.and_then(|details| details.deadline), Some(moment(70)));
    Ok(())
}

/// An attempt that its deadline ended may still complete the job until the next attempt begins: the waiting
/// client gets the result, and a repeated completion is answered again.
pub async fn a_late_completion_counts_until_the_next_attempt(system: System) -> Checked {
    for (backoff, state) in [(None, StateName::Waiting), (Some(seconds(60)), StateName::Scheduled)] {
        let attempt_max = Some(seconds(30));
        let attach = Some(waiter(1));
        let backoff = match backoff {
            Some(wait) => Some(Backoff::exponential(wait, 1.0, wait, 0.0)?),
            None => None,
        };
        let options = PutOptions { attempt_max, attach, backoff, ..PutOptions::default() };
        let late = system.run(0, on_terms(put_again("mail", "a"), options), "w1").await?;
        system.tick(30).await?;
        assert_eq!(system.state("a").await?, state);
        let complete = || Complete {
            result: Some(Box::new(outcome(0, "result"))),
            ..Complete::new(jid("a"), holding(&late))
        };
        let mut listener = system.listen().await?;
        assert_eq!(system.at(40, complete()).await?, CompleteReply::Complete);
        listener.heard(&system, [heard::completed("a", "mail")]).await?;
        let job = system.job("a").await?;
        assert_eq!((job.state.name(), job.past_failure), (StateName::Complete, None));
        assert_eq!(job.history.last(), Some(&entry(40, HistoryEvent::Done)));
        assert_eq!(system.ignores(41, complete()).await?, CompleteReply::Complete);
        assert_eq!(system.pop(1000, "mail", "w2", 9).await?, NONE);
    }
    let run = system.ask(Stats { queue: queue("mail"), date: moment(40) }).await?.run;
    assert_eq!((run.count, run.mean), (2, 40.0));
    Ok(())
}

/// So may it fail the job, as the worker that it was, and send it on to another queue.
pub async fn a_late_failure_counts_until_the_next_attempt(system: System) -> Checked {
    let late = system.run(0, limited("a", 30), "w1").await?;
    system.tick(30).await?;
    let fail = || Fail { holder: holding(&late), ..fail("a", "w1", "late") };
    system.at(40, fail()).await?;
    let job = system.job("a").await?;
    let failure = job.failure().ok_or("it failed")?;
    assert_eq!((failure.group.as_str(), &failure.worker), ("late", &Some(worker("w1"))));
    assert_eq!(job.history.last(), Some(&entry(40, had_failed(Some("w1"), "late"))));
    system.ignores(41, fail()).await?;
    system.refuses(42, Complete::new(jid("a"), holding(&late)), no::lock("a", StateName::Failed)).await?;

    let late = system.run(0, limited("b", 30), "w1").await?;
    system.tick(30).await?;
    let advance = || Complete { holder: holding(&late), ..advance("b", "w1", "post") };
    assert_eq!(system.at(40, advance()).await?, CompleteReply::Waiting);
    assert_eq!(system.ignores(41, advance()).await?, CompleteReply::Waiting);
    assert_eq!(system.pop(42, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.pop(42, "post", "w2", 1).await?, ["b"]);
    Ok(())
}

/// Once the job was popped or put again, or has failed, the late attempt has lost it for good, wherever the
/// job goes from there.
pub async fn a_late_attempt_has_lost_a_job_that_went_on(system: System) -> Checked {
    let refused = async |now: i32, late: &Popped, state| -> Checked {
        let name = late.jid.to_string();
        system.refuses(now, Complete::new(late.jid.clone(), holding(late)), no::lock(&name, state)).await?;
        let fail = Fail { holder: holding(late), ..fail(&name, "w1", "late") };
        system.refuses(now, fail, no::lock(&name, state)).await?;
        Ok(())
    };
    let popped = system.run(0, limited("popped", 30), "w1").await?;
    system.tick(30).await?;
    system.take(40, "mail", "w2").await?;
    refused(41, &popped, StateName::Running).await?;
    system.at(42, retry("popped", "w2")).await?;
    refused(43, &popped, StateName::Waiting).await?;
    system.at(44, cancel(["popped"])).await?;

    let again = system.run(0, limited("again", 30), "w1").await?;
    system.tick(30).await?;
    system.at(40, put_again("mail", "again")).await?;
    refused(41, &again, StateName::Waiting).await?;

    let mut late = limited("late", 30);
    late.options.as_mut().ok_or("it has options")?.expires = Some(moment(35));
    let late = system.run(0, late, "w1").await?;
    system.tick(30).await?;
    system.tick(36).await?;
    refused(40, &late, StateName::Failed).await?;
    system.at(41, unfail("mail", "expired-mail", 1)).await?;
    refused(42, &late, StateName::Waiting).await?;

    let last = system.run(0, Put { retries: Some(0), ..limited("last", 30) }, "w1").await?;
    system.tick(30).await?;
    refused(40, &last, StateName::Failed).await?;
    Ok(())
}

/// An attempt that took too long is tried again after the job's backoff, without luck.
pub async fn an_attempt_past_its_deadline_waits_for_its_backoff(system: System) -> Checked {
    let mut job = doubling("a")?;
    job.options.as_mut().ok_or("it has terms")?.attempt_max = Some(seconds(30));
    system.run(0, job, "w1").await?;
    system.tick(31).await?;
    assert_eq!(system.job("a").await?.state, due(41));
    system.take(41, "mail", "w1").await?;
    system.tick(71).await?;
    assert_eq!(system.job("a").await?.state, due(91));
    Ok(())
}

/// When the last attempt exceeds its deadline the job fails, without a worker.
pub async fn the_last_attempt_past_its_deadline_fails_the_job(system: System) -> Checked {
    system.run(0, Put { retries: Some(0), ..limited("a", 30) }, "w1").await?;
    let mut listener = system.listen().await?;
    system.tick(30).await?;
    let heard = listener.all(&system).await?;
    assert_eq!(heard.first(), Some(&heard::lock_lost("a", "w1")));
    assert_eq!(failures(heard), [("a".into(), "timed-out-mail".into(), FailedBy::Deadline)]);
    let job = system.job("a").await?;
    let failure = Failure {
        group: group("timed-out-mail"),
        message: "An attempt took longer than it may".into(),
        when: moment(30),
        worker: None,
    };
    assert_eq!((job.state, job.remaining), (JobState::Failed { failure }, -1));
    let end = [entry(30, HistoryEvent::TimedOut), entry(30, had_failed(None, "timed-out-mail"))];
    assert_eq!(job.history[2..], end);
    Ok(())
}

/// A job that is tried without end fails all the same once ten attempts exceeded their deadlines. A lost
/// worker does not count, and a job with fewer retries has them all.
pub async fn a_job_tried_without_end_fails_after_ten_deadlines(system: System) -> Checked {
    let endless = |name: &str, retries| Put { retries: Some(retries), ..limited(name, 30) };
    system.at(0, endless("a", RETRIES_MAX)).await?;
    for now in 1..=5 {
        system.take(now, "mail", "w1").await?;
        system.at(now, gone("w1")).await?;
    }
    for attempt in 1..=10 {
        system.take(attempt * 100, "mail", "w1").await?;
        system.tick(attempt * 100 + 30).await?;
        let state = if attempt < 10 { StateName::Waiting } else { StateName::Failed };
        assert_eq!(system.state("a").await?, state, "attempt {attempt}");
    }
    let job = system.job("a").await?;
    let failure = job.failure().ok_or("it failed")?;
    assert_eq!((failure.group.as_str(), job.remaining), ("timed-out-mail", i64::from(RETRIES_MAX) - 15));
    system.at(2000, endless("b", 20)).await?;
    for attempt in 21..=31 {
        system.take(attempt * 100, "mail", "w1").await?;
        system.tick(attempt * 100 + 30).await?;
    }
    assert_eq!(system.state("b").await?, StateName::Waiting);
    Ok(())
}

/// Of what the job may take and what the worker said that it takes, the shorter counts; for its klass, or
/// else for any.
pub async fn the_shorter_deadline_counts(system: System) -> Checked {
    let takes = |kind: Option<&str>, most: i32| Capability {
        attempt_max: Some(seconds(most)),
        ..ability("mail", kind)
    };
    system.at(0, announce("w1", AnnounceChange::Can(vec![takes(Some("k"), 20), takes(None, 5)]))).await?;
    let other = |job: Put| Put { klass: klass("other"), ..job };
    for (name, job, expected) in [
        ("a", limited("a", 30), 20),
        ("b", limited("b", 10), 10),
        ("c", put("mail", "c"), 20),
        ("d", other(limited("d", 30)), 5),
        ("e", other(put("mail", "e")), 5),
    ] {
        let popped = system.run(0, job, "w1").await?;
        let deadline = popped.details.and_then(|details| details.deadline);
        assert_eq!(deadline, Some(moment(expected)), "{name}");
    }
    let popped = system.run(0, put("post", "elsewhere"), "w1").await?;
    assert_eq!(popped.details, None);
    system.at(0, can("w2", "mail", Some("k"))).await?;
    let popped = system.run(0, limited("f", 30), "w2").await?;
    assert_eq!(popped.details.and_then(|details| details.deadline), Some(moment(30)));
    Ok(())
}

/// A take-over is a new attempt, with a deadline of its own.
pub async fn a_take_over_has_a_deadline_of_its_own(system: System) -> Checked {
    system.ask(set("grace-period", "0")).await?;
    system.run(0, limited("a", 100), "w1").await?;
    assert_eq!(system.pop(60, "mail", "w2", 1).await?, ["a"]);
    assert_eq!(system.details("a").await?.deadline, Some(moment(160)));
    system.tick(100).await?;
    assert_eq!(system.job("a").await?.qless.worker, Some(worker("w2")));
    Ok(())
}

/// The deadline holds for a worker that has gone silent as well.
pub async fn a_deadline_ends_a_silent_attempt(system: System) -> Checked {
    system.run(0, limited("a", 100), "w1").await?;
    system.pop(95, "mail", "w2", 1).await?;
    system.tick(100).await?;
    assert_eq!(system.state("a").await?, StateName::Waiting);
    assert_eq!(system.pop(101, "mail", "w2", 1).await?, ["a"]);
    Ok(())
}

/// A job that was not started in time fails, at a tick after that moment and not at it.
pub async fn a_job_that_is_not_started_in_time_fails(system: System) -> Checked {
    system.at(0, expiring("waiting", 50)).await?;
    system.at(0, Put { delay: seconds(99), ..expiring("scheduled", 50) }).await?;
    let mut listener = system.listen().await?;
    system.tick(50).await?;
    assert_eq!(system.state("waiting").await?, StateName::Waiting);
    system.tick(51).await?;
    let mut heard = failures(listener.all(&system).await?);
    heard.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = |name: &str| (name.to_string(), "expired-mail".to_string(), FailedBy::Expired);
    assert_eq!(heard, [expected("scheduled"), expected("waiting")]);
    for name in ["waiting", "scheduled"] {
        let job = system.job(name).await?;
        let failure = job.failure().ok_or("it failed")?;
        assert_eq!(job.state.name(), StateName::Failed);
        assert_eq!((failure.group.as_str(), failure.when), ("expired-mail", moment(51)));
        assert_eq!((failure.message.as_str(), &failure.worker), ("Job was not started in time", &None));
        assert_eq!(job.history.last(), Some(&entry(51, had_failed(None, "expired-mail"))));
    }
    Ok(())
}

/// A pop does not hand out what came too late, but fails it and takes the next.
pub async fn a_pop_passes_over_what_comes_too_late(system: System) -> Checked {
    for name in ["a", "b"] {
        system.at(0, expiring(name, 50)).await?;
    }
    system.at(1, put("mail", "c")).await?;
    assert_eq!(system.pop(50, "mail", "w1", 1).await?, ["a"]);
    assert_eq!(system.pop(51, "mail", "w1", 1).await?, ["c"]);
    let job = system.job("b").await?;
    let failure = job.failure().ok_or("it failed")?;
    assert_eq!(
        (failure.group.as_str(), failure.message.as_str()),
        ("expired-mail", "Job was not started in time")
    );
    Ok(())
}

/// What is due takes the place of what came too late, in the same pop.
pub async fn what_is_due_takes_the_place_of_what_is_late(system: System) -> Checked {
    let due = |put: Put| Put { delay: seconds(1), ..put };
    system.at(0, due(expiring("late", 2))).await?;
    system.at(0, due(put("mail", "a"))).await?;
    system.at(0, due(put("mail", "b"))).await?;
    assert_eq!(system.pop(5, "mail", "w1", 2).await?, ["a", "b"]);
    Ok(())
}

/// A job that was started in time may end late, be handed on late, and come back only in time.
pub async fn a_job_that_started_in_time_is_handed_on_however_late(system: System) -> Checked {
    system.run(0, expiring("a", 50), "w1").await?;
    system.tick(60).await?;
    assert_eq!(system.pop(60, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.pop(70, "mail", "w2", 1).await?, ["a"]);
    system.at(71, retry("a", "w2")).await?;
    assert_eq!(system.pop(72, "mail", "w2", 1).await?, NONE);
    assert_eq!(
        system.job("a").await?.failure().map(|failure| failure.group.clone()),
        Some(group("expired-mail"))
    );
    Ok(())
}

/// A job that waits for others does not fail for being late until it could start.
pub async fn a_blocked_job_is_not_too_late(system: System) -> Checked {
    system.run(0, put("mail", "needed"), "w1").await?;
    system.at(0, Put { depends: jids(["needed"]), ..expiring("a", 50) }).await?;
    system.tick(51).await?;
    assert_eq!(system.state("a").await?, StateName::Depends);
    system.at(52, complete("needed", "w1")).await?;
    assert_eq!(system.state("a").await?, StateName::Waiting);
    system.tick(52).await?;
    assert_eq!(system.state("a").await?, StateName::Failed);
    Ok(())
}

/// A worker that waits is not given what comes due too late.
pub async fn a_waiting_worker_is_not_given_what_comes_too_late(system: System) -> Checked {
    system.now(Put { delay: seconds(60), ..expiring("a", 50) }).await?;
    let mut waiter = system.waits(pop("mail", "w1"), 600).await?;
    system.clock.set(60);
    waiter.still_waits(&system).await?;
    system.now(put("mail", "b")).await?;
    assert_eq!(waiter.served(&system).await?, ["b"]);
    assert_eq!(system.state("a").await?, StateName::Failed);
    Ok(())
}

/// A job is not put to start in the past.
pub async fn a_put_that_is_too_late_is_refused(system: System) -> Checked {
    system.at(0, unique("mail", "a", "report")).await?;
    for expires in [-1, 9, 10] {
        system.refuses(10, expiring("new", expires), no::good("expires")).await?;
        let again = Put { existing: Existing::Replace, ..expiring("a", expires) };
        system.refuses(10, again, no::good("expires")).await?;
    }
    assert_eq!(system.ignores(10, expiring("a", 5)).await?, PutReply::Existing);
    let joins = PutOptions { unique: Some(key("report")), expires: Some(moment(5)), ..PutOptions::default() };
    assert_eq!(
        system.at(10, on_terms(put("mail", "new"), joins)).await?,
        PutReply::Coalesced { jid: jid("a") }
    );
    assert_eq!(system.at(10, expiring("new", 10.1)).await?, PutReply::Created);
    Ok(())
}

/// A tick does no more than it is asked to, begins with what was due first, and says when there will be more.
pub async fn a_tick_does_what_is_due_the_earliest_first(system: System) -> Checked {
    assert_eq!(system.tick(0).await?, TickReply { done: 0, next: None });
    for (name, most) in [("b", 200), ("a", 100), ("c", 300), ("d", 1000)] {
        system.run(0, limited(name, most), name).await?;
    }
    assert_eq!(system.tick(50).await?, TickReply { done: 0, next: Some(moment(100)) });
    let some = |wanted| Tick { count: count(wanted) };
    assert_eq!(system.at(400, some(0)).await?.done, 0);
    assert_eq!(system.at(400, some(1)).await?.done, 1);
    let states = async || {
        let mut states = Vec::new();
        for name in ["a", "b", "c", "d"] {
            states.push(system.state(name).await?);
        }
        Ok::<_, Surprise>(states)
    };
    use StateName::{Running, Waiting};
    assert_eq!(states().await?, [Waiting, Running, Running, Running]);
    assert_eq!(system.at(400, some(9)).await?, TickReply { done: 2, next: Some(moment(1000)) });
    assert_eq!(states().await?, [Waiting, Waiting, Waiting, Running]);
    assert_eq!(system.at(400, some(9)).await?, TickReply { done: 0, next: Some(moment(1000)) });
    assert_eq!(system.at(50, some(9)).await?.done, 0);
    Ok(())
}

/// All that a tick does counts, of whatever kind it is.
pub async fn a_tick_counts_all_that_it_does(system: System) -> Checked {
    system.run(0, limited("late", 100), "w1").await?;
    let kept = PutOptions { result_ttl: Some(seconds(100)), ..PutOptions::default() };
    system.run(0, on_terms(put("mail", "complete"), kept), "w1").await?;
    system.at(0, complete("complete", "w1")).await?;
    system.at(0, put("mail", "due")).await?;
    system.at(0, expiring("expired", 100)).await?;
    system.at(0, can("silent", "mail", None)).await?;
    for (done, wanted) in [(3, 3), (1, 3), (0, 3)] {
        assert_eq!(system.at(1000, Tick { count: count(wanted) }).await?.done, done);
    }
    assert_eq!(system.state("late").await?, StateName::Waiting);
    assert_eq!(system.state("expired").await?, StateName::Failed);
    assert_eq!(system.ask(GetResult { jid: jid("complete") }).await?, None);
    assert_eq!(system.capable_workers("mail", None).await?, 0);
    // The complete job is kept for a week.
    assert_eq!(system.tick(1000).await?, TickReply { done: 0, next: Some(moment(604_800)) });
    Ok(())
}
