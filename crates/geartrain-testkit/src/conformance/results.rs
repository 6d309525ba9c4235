//! Result streams and stored results.

use super::prelude::*;

/// A put whose result is kept.
fn with_result(name: &str, result_for: impl Into<f64>) -> Put {
    let terms = PutOptions { result_ttl: Some(seconds(result_for)), ..PutOptions::default() };
    on_terms(put("mail", name), terms)
}

/// A result of a job that was completed, kept for a minute.
fn kept(name: &str, ended: i32, code: i32, bytes: &str) -> StoredResult {
    StoredResult {
        jid: jid(name),
        ending: JobEnding::Completed,
        result: outcome(code, bytes),
        ended: moment(ended),
        until: moment(ended + 60),
    }
}

/// A waiter receives the ending and the result once.
pub async fn a_result_waiter_receives_the_job_ending(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    for (number, name) in (1..).zip(["plain", "complete", "failed", "failed-with", "cancelled"]) {
        system.run(0, awaited("mail", name, number), "w1").await?;
    }
    follower.told(&system, []).await?;
    system.at(1, complete("plain", "w1")).await?;
    follower.told(&system, [told::completed(1, "plain")]).await?;
    system.at(1, complete_with("complete", "w1", 7, "done")).await?;
    follower.told(&system, [told::ended(2, "complete", JobEnding::Completed, 7, "done")]).await?;
    system.at(1, fail("failed", "w1", "g")).await?;
    follower.told(&system, [told::failed(3, "failed", "g", "oops")]).await?;
    system.at(1, fail_with("failed-with", "w1", 9, "why")).await?;
    let how = JobEnding::Failed { group: group("g"), message: "oops".into() };
    follower.told(&system, [told::ended(4, "failed-with", how, 9, "why")]).await?;
    system.at(1, cancel(["cancelled"])).await?;
    follower.told(&system, [told::canceled(5, "cancelled")]).await?;
    system.at(2, put_again("mail", "plain")).await?;
    system.at(3, cancel(["plain"])).await?;
    follower.told(&system, []).await?;
    Ok(())
}

/// Every way to fail is delivered to waiters.
pub async fn a_result_waiter_receives_every_kind_of_failure(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    const SPENT: &str = "Job exhausted retries in queue \"mail\"";
    system.ask(set("grace-period", "0")).await?;
    for (number, name) in (1..).zip(["retried", "gone", "crashed", "late", "expired", "silent"]) {
        let mut job = Put { retries: Some(0), ..awaited("mail", name, number) };
        let terms = job.options.as_mut().ok_or("it has terms")?;
        terms.crashes_max = (name == "crashed").then_some(1);
        terms.attempt_max = (name == "late").then_some(seconds(10));
        terms.expires = (name == "expired").then_some(moment(10));
        match name {
            "expired" => drop(system.at(0, Put { delay: seconds(99), ..job }).await?),
            _ => drop(system.run(0, job, name).await?),
        }
    }
    system.at(1, retry("retried", "retried")).await?;
    follower.told(&system, [told::failed(1, "retried", "failed-retries-mail", SPENT)]).await?;
    system.at(1, gone("gone")).await?;
    follower.told(&system, [told::failed(2, "gone", "failed-retries-mail", SPENT)]).await?;
    system.at(1, gone("crashed")).await?;
    let message = "Job was set aside after 1 of its workers died";
    follower.told(&system, [told::failed(3, "crashed", "crashed-mail", message)]).await?;
    system.tick(10).await?;
    let message = "An attempt took longer than it may";
    follower.told(&system, [told::failed(4, "late", "timed-out-mail", message)]).await?;
    system.tick(11).await?;
    follower
        .told(&system, [told::failed(5, "expired", "expired-mail", "Job was not started in time")])
        .await?;
    system.pop(60, "mail", "w2", 1).await?;
    follower.told(&system, [told::failed(6, "silent", "failed-retries-mail", SPENT)]).await?;
    Ok(())
}

/// Waiters of one job receive deliveries in the order in which they attached.
pub async fn waiters_receive_messages_in_the_order_they_attached(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    let popped = system.run(0, awaited("mail", "a", 3), "w1").await?;
    for number in [1, 2] {
        assert_eq!(system.at(1, attach("a", number)).await?, AttachReply::Attached);
    }
    assert_eq!(system.at(2, chunk("a", holding(&popped), "x")).await?, 3);
    system.at(3, progress("a", holding(&popped), 1, 2)).await?;
    system.at(4, complete("a", "w1")).await?;
    let expected = [
        told::chunk(3, "a", "x"),
        told::chunk(1, "a", "x"),
        told::chunk(2, "a", "x"),
        told::progress(3, "a", 1, 2),
        told::progress(1, "a", 1, 2),
        told::progress(2, "a", 1, 2),
        told::completed(3, "a"),
        told::completed(1, "a"),
        told::completed(2, "a"),
    ];
    follower.told(&system, expected).await?;
    Ok(())
}

/// A job that advances to another queue has not ended: its result so far is not delivered.
pub async fn a_job_that_advances_has_not_ended(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    let terms =
        PutOptions { attach: Some(waiter(1)), result_ttl: Some(seconds(60)), ..PutOptions::default() };
    system.run(0, on_terms(put("mail", "a"), terms), "w1").await?;
    let on = Complete { next: Some(Next::new(queue("post"))), ..complete_with("a", "w1", 3, "half") };
    system.at(1, on).await?;
    follower.told(&system, []).await?;
    assert_eq!(system.at(1, GetResult { jid: jid("a") }).await?, None);
    assert_eq!(system.details("a").await?.attached, 1);
    system.take(2, "post", "w2").await?;
    system.at(3, complete_with("a", "w2", 4, "whole")).await?;
    follower.told(&system, [told::ended(1, "a", JobEnding::Completed, 4, "whole")]).await?;
    assert_eq!(system.result(4, "a").await?, kept("a", 3, 4, "whole"));
    Ok(())
}

/// Attach to an unfinished job adds a waiter; for an ended one it returns the ending at once.
pub async fn attaching_to_a_job_that_ended_answers_how(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    let ended = |state, kept: Option<StoredResult>| AttachReply::Ended { state, result: kept.map(Box::new) };
    system.run(0, with_result("complete", 60), "w1").await?;
    system.run(0, put("mail", "plain"), "w1").await?;
    system.run(0, put("mail", "failed"), "w1").await?;
    let forget = PutOptions { on_end: OnEnd::Forget, result_ttl: Some(seconds(60)), ..PutOptions::default() };
    system.run(0, on_terms(put("mail", "forgotten"), forget), "w1").await?;
    system.at(1, complete_with("complete", "w1", 0, "a")).await?;
    system.at(1, complete("plain", "w1")).await?;
    system.at(1, fail("failed", "w1", "g")).await?;
    system.at(1, complete_with("forgotten", "w1", 0, "b")).await?;
    let (complete, failed) = (Some(StateName::Complete), Some(StateName::Failed));
    let with_a = ended(complete, Some(kept("complete", 1, 0, "a")));
    assert_eq!(system.ignores(2, attach("complete", 1)).await?, with_a);
    assert_eq!(system.ignores(2, attach("plain", 1)).await?, ended(complete, None));
    assert_eq!(system.ignores(2, attach("failed", 1)).await?, ended(failed, None));
    let with_b = ended(None, Some(kept("forgotten", 1, 0, "b")));
    assert_eq!(system.ignores(2, attach("forgotten", 1)).await?, with_b);
    assert_eq!(system.ignores(61, attach("complete", 1)).await?, ended(complete, None));
    system.refuses(61, attach("forgotten", 1), no::such_job("forgotten")).await?;
    system.refuses(2, attach("unknown", 1), no::such_job("unknown")).await?;
    system.at(62, put("mail", "unfinished")).await?;
    assert_eq!(system.at(62, attach("unfinished", 1)).await?, AttachReply::Attached);
    follower.told(&system, []).await?;
    Ok(())
}

/// A put of an existing unfinished job attaches its waiter; of an ended one it attaches none.
pub async fn a_put_that_keeps_an_unfinished_job_attaches_to_it(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    system.run(0, put("mail", "a"), "w1").await?;
    assert_eq!(system.at(1, awaited("mail", "a", 1)).await?, PutReply::Existing);
    assert_eq!(system.details("a").await?.attached, 1);
    assert_eq!(system.ignores(1, awaited("mail", "a", 1)).await?, PutReply::Existing);
    system.at(2, complete("a", "w1")).await?;
    assert_eq!(system.ignores(3, awaited("mail", "a", 1)).await?, PutReply::Existing);
    follower.told(&system, [told::completed(1, "a")]).await?;
    assert_eq!(system.at(4, leave(1)).await?, 0);
    Ok(())
}

/// A waiter waits for one job at a time: for the same one again is nothing new, and another is refused.
pub async fn a_waiter_waits_for_one_job_at_a_time(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    system.run(0, awaited("mail", "a", 1), "w1").await?;
    system.at(0, unique("mail", "b", "report")).await?;
    assert_eq!(system.ignores(1, attach("a", 1)).await?, AttachReply::Attached);
    system.refuses(1, attach("b", 1), no::good("waiter")).await?;
    system.refuses(1, awaited("mail", "c", 1), no::good("waiter")).await?;
    system.refuses(1, awaited("mail", "b", 1), no::good("waiter")).await?;
    let again = Put { existing: Existing::Replace, ..awaited("post", "b", 1) };
    system.refuses(1, again, no::good("waiter")).await?;
    let joining =
        PutOptions { unique: Some(key("report")), attach: Some(waiter(1)), ..PutOptions::default() };
    system.refuses(1, on_terms(put("mail", "c"), joining), no::good("waiter")).await?;
    system.at(2, complete("a", "w1")).await?;
    assert_eq!(system.at(3, attach("b", 1)).await?, AttachReply::Attached);
    follower.told(&system, [told::completed(1, "a")]).await?;
    Ok(())
}

/// Detached waiters receive nothing more: one waiter, a connection, a stream, or all.
pub async fn a_detached_waiter_receives_nothing_more(system: System) -> Checked {
    let mut here = system.follow(1).await?;
    let mut there = system.follow(2).await?;
    let popped = system.run(0, put("mail", "a"), "w1").await?;
    let someone = |front, connection, number| ResultWaiter { stream_id: front, connection, number };
    let all = [someone(1, 1, 1), someone(1, 1, 2), someone(1, 2, 1), someone(1, 3, 1), someone(2, 1, 1)];
    for waiter in all {
        system.at(0, Attach { jid: jid("a"), waiter }).await?;
    }
    assert_eq!(system.details("a").await?.attached, 5);
    let gone = |who| Detach { scope: who };
    assert_eq!(system.ignores(1, gone(DetachScope::One(someone(1, 9, 9)))).await?, 0);
    assert_eq!(system.at(1, gone(DetachScope::One(all[1]))).await?, 1);
    assert_eq!(system.at(1, chunk("a", holding(&popped), "1")).await?, 4);
    assert_eq!(system.at(2, gone(DetachScope::Connection { stream_id: 1, connection: 1 })).await?, 1);
    assert_eq!(system.at(2, chunk("a", holding(&popped), "2")).await?, 3);
    assert_eq!(system.at(3, gone(DetachScope::Stream(1))).await?, 2);
    assert_eq!(system.at(3, chunk("a", holding(&popped), "3")).await?, 1);
    assert_eq!(system.at(4, gone(DetachScope::All)).await?, 1);
    assert_eq!(system.ignores(4, chunk("a", holding(&popped), "4")).await?, 0);
    let chunk = |waiter, bytes: &str| StreamMessage {
        waiter,
        jid: jid("a"),
        item: StreamItem::Chunk(ChunkKind::Data, bytes.into()),
    };
    let expected =
        [chunk(all[0], "1"), chunk(all[2], "1"), chunk(all[3], "1"), chunk(all[2], "2"), chunk(all[3], "2")];
    here.told(&system, expected).await?;
    there.told(&system, [chunk(all[4], "1"), chunk(all[4], "2"), chunk(all[4], "3")]).await?;
    Ok(())
}

/// When a result stream is dropped, its waiters are detached.
pub async fn waiters_are_detached_with_their_stream(system: System) -> Checked {
    let follower = system.follow(1).await?;
    let mut other = system.follow(2).await?;
    system.at(0, fleeting("mail", "a", 1)).await?;
    let elsewhere = ResultWaiter { stream_id: 2, connection: 1, number: 1 };
    let terms = PutOptions {
        attach: Some(elsewhere),
        orphan_policy: OrphanPolicy::WhileAwaited,
        ..PutOptions::default()
    };
    system.at(0, on_terms(put("mail", "b"), terms)).await?;
    drop(follower);
    vanishes(&system, "a").await?;
    assert_eq!(system.state("b").await?, StateName::Waiting);
    other.told(&system, []).await?;
    Ok(())
}

/// Chunks of both kinds go to the waiters and are not stored.
pub async fn a_chunk_is_delivered_and_not_stored(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    let popped = system.run(0, awaited("mail", "a", 1), "w1").await?;
    let mut listener = system.listen().await?;
    assert_eq!(system.ignores(1, chunk("a", holding(&popped), "one")).await?, 1);
    let warning = Chunk { kind: ChunkKind::Warning, ..chunk("a", held_by("w1"), "two") };
    assert_eq!(system.ignores(30, warning).await?, 1);
    let warned = StreamItem::Chunk(ChunkKind::Warning, "two".into());
    let expected =
        [told::chunk(1, "a", "one"), StreamMessage { waiter: waiter(1), jid: jid("a"), item: warned }];
    listener.heard(&system, []).await?;
    follower.told(&system, expected).await?;
    Ok(())
}

/// A chunk of a job without waiters is delivered to none.
pub async fn a_chunk_without_waiters_is_delivered_to_none(system: System) -> Checked {
    let popped = system.run(0, put("mail", "a"), "w1").await?;
    assert_eq!(system.ignores(1, chunk("a", holding(&popped), "x")).await?, 0);
    assert_eq!(system.ignores(1, chunk("a", holding(&popped), "")).await?, 0);
    Ok(())
}

/// Progress is delivered, published and shown, and does not renew the lock.
pub async fn progress_is_delivered_published_and_shown(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    let popped = system.run(0, awaited("mail", "a", 1), "w1").await?;
    let mut listener = system.listen().await?;
    system.at(1, progress("a", holding(&popped), 1, 4)).await?;
    assert_eq!(system.details("a").await?.progress, Some(portion(1, 4)));
    let further = Progressed { seconds_left: Some(9), ..portion(4, 4) };
    system.at(30, Progress::new(jid("a"), held_by("w1"), further)).await?;
    assert_eq!(system.details("a").await?.progress, Some(further));
    let event = |progress| Event::Progress { jid: jid("a"), progress };
    listener.heard(&system, [event(portion(1, 4)), event(further)]).await?;
    let last = StreamMessage {
        waiter: waiter(1),
        jid: jid("a"),
        item: StreamItem::Progress { progress: further, text: None },
    };
    follower.told(&system, [told::progress(1, "a", 1, 4), last]).await?;
    let job = system.job("a").await?;
    assert_eq!(job.state, JobState::Running { lock: popped.lock });
    assert_eq!(job.history.len(), 2);
    Ok(())
}

/// A job without put options can have progress, and has no details afterwards.
pub async fn progress_needs_no_terms(system: System) -> Checked {
    let popped = system.run(0, put("mail", "a"), "w1").await?;
    system.at(1, progress("a", holding(&popped), 0, 1)).await?;
    assert_eq!(system.details("a").await?.progress, Some(portion(0, 1)));
    system.at(2, retry("a", "w1")).await?;
    let after = system.job("a").await?.details;
    assert_eq!(after.and_then(|details| details.progress), None);
    Ok(())
}

/// Progress ends with the attempt that made it, whatever ends that.
pub async fn progress_ends_with_its_attempt(system: System) -> Checked {
    system.ask(set("grace-period", "0")).await?;
    let names = [
        "retried",
        "timed-out",
        "handed-back",
        "put",
        "advanced",
        "complete",
        "failed",
        "late",
        "gone",
        "silent",
    ];
    for name in names {
        let terms = PutOptions { attempt_max: Some(seconds(50)), ..PutOptions::default() };
        let job = if name == "late" { on_terms(put("mail", name), terms) } else { put("mail", name) };
        let popped = system.run(0, job, name).await?;
        system.at(1, progress(name, holding(&popped), 1, 2)).await?;
    }
    system.at(2, retry("retried", "retried")).await?;
    system.at(2, timeout(["timed-out"])).await?;
    system.at(2, hand_back("handed-back", "handed-back")).await?;
    system.at(2, put_again("mail", "put")).await?;
    system.at(2, advance("advanced", "advanced", "post")).await?;
    system.at(2, complete("complete", "complete")).await?;
    system.at(2, fail("failed", "failed", "g")).await?;
    system.at(2, gone("gone")).await?;
    system.tick(50).await?;
    system.pop(60, "mail", "w2", 9).await?;
    for name in names {
        let after = system.job(name).await?.details;
        assert_eq!(after.and_then(|details| details.progress), None, "{name}");
    }
    assert_eq!(system.job("silent").await?.qless.worker, Some(worker("w2")));
    Ok(())
}

/// A result is kept for as long as the put asked, and from then on it is not found.
pub async fn a_result_is_kept_for_as_long_as_was_asked(system: System) -> Checked {
    system.run(0, with_result("a", 60), "w1").await?;
    let mut listener = system.listen().await?;
    system.at(5, complete_with("a", "w1", 3, "done")).await?;
    let event = Event::ResultStored { jid: jid("a") };
    listener.heard(&system, [heard::completed("a", "mail"), event]).await?;
    assert_eq!(system.result(5, "a").await?, kept("a", 5, 3, "done"));
    assert_eq!(system.result(64.9, "a").await?, kept("a", 5, 3, "done"));
    assert_eq!(system.at(65, GetResult { jid: jid("a") }).await?, None);
    system.tick(65).await?;
    assert_eq!(system.at(6, GetResult { jid: jid("a") }).await?, None);
    assert_eq!(system.state("a").await?, StateName::Complete);
    Ok(())
}

/// A result is kept of what failed as well, and of what brought none; not of what was cancelled or did not
/// ask.
pub async fn what_is_kept_is_what_came_out(system: System) -> Checked {
    for name in ["plain", "failed", "cancelled"] {
        system.run(0, with_result(name, 60), "w1").await?;
    }
    system.run(0, put("mail", "unasked"), "w1").await?;
    system.at(5, complete("plain", "w1")).await?;
    let mut listener = system.listen().await?;
    system.at(5, fail_with("failed", "w1", 8, "why")).await?;
    let failed = heard::failed("failed", "mail", "w1", "g", "oops", FailedBy::Worker);
    listener.heard(&system, [failed, Event::ResultStored { jid: jid("failed") }]).await?;
    system.at(5, cancel(["cancelled"])).await?;
    system.at(5, complete_with("unasked", "w1", 0, "lost")).await?;
    assert_eq!(system.result(6, "plain").await?, kept("plain", 5, 0, ""));
    let how = JobEnding::Failed { group: group("g"), message: "oops".into() };
    assert_eq!(
        system.result(6, "failed").await?,
        StoredResult { ending: how, ..kept("failed", 5, 8, "why") }
    );
    for name in ["cancelled", "unasked", "unknown"] {
        assert_eq!(system.at(6, GetResult { jid: jid(name) }).await?, None, "{name}");
    }
    Ok(())
}

/// A job that fails by itself leaves a result with code 1.
pub async fn a_job_that_fails_by_itself_leaves_a_result(system: System) -> Checked {
    system.run(0, Put { retries: Some(0), ..with_result("a", 60) }, "w1").await?;
    system.at(5, gone("w1")).await?;
    let result = system.result(6, "a").await?;
    assert_eq!((result.result, result.ended, result.until), (outcome(1, ""), moment(5), moment(65)));
    assert!(
        matches!(result.ending, JobEnding::Failed { group, .. } if group.as_str() == "failed-retries-mail")
    );
    Ok(())
}

/// A result outlives the job, and lasts until the next attempt has one.
pub async fn a_result_is_replaced_by_the_next_one(system: System) -> Checked {
    let _follower = system.follow(1).await?;
    system.run(0, with_result("a", 60), "w1").await?;
    system.at(5, complete_with("a", "w1", 1, "first")).await?;
    system.run(6, put_again("mail", "a"), "w1").await?;
    assert_eq!(system.result(7, "a").await?, kept("a", 5, 1, "first"));
    assert_eq!(system.at(7, attach("a", 1)).await?, AttachReply::Attached);
    system.at(8, complete_with("a", "w1", 2, "second")).await?;
    assert_eq!(system.result(9, "a").await?, kept("a", 8, 2, "second"));
    assert_eq!(system.result(67, "a").await?, kept("a", 8, 2, "second"));
    Ok(())
}

/// A result outlives a job that is forgotten.
pub async fn a_forgotten_job_leaves_its_result(system: System) -> Checked {
    let terms = PutOptions { on_end: OnEnd::Forget, result_ttl: Some(seconds(60)), ..PutOptions::default() };
    system.run(0, on_terms(put("mail", "a"), terms), "w1").await?;
    let mut listener = system.listen().await?;
    system.at(5, complete_with("a", "w1", 0, "done")).await?;
    let event = Event::ResultStored { jid: jid("a") };
    listener.heard(&system, [heard::completed("a", "mail"), event]).await?;
    assert!(!system.has("a").await?);
    assert_eq!(system.result(6, "a").await?, kept("a", 5, 0, "done"));
    Ok(())
}

/// Old results are evicted to store a new one.
pub async fn the_oldest_results_make_room(system: System) -> Checked {
    // Each counts its 272 bytes and 128 more.
    system.ask(set("results-bytes", "1000")).await?;
    let bytes = "x".repeat(272);
    for (now, name) in [(1, "a"), (2, "b"), (3, "c")] {
        system.run(0, with_result(name, 60), "w1").await?;
        system.at(now, complete_with(name, "w1", 0, &bytes)).await?;
    }
    assert_eq!(system.at(4, GetResult { jid: jid("a") }).await?, None);
    assert_eq!(system.result(4, "b").await?, kept("b", 2, 0, &bytes));
    assert_eq!(system.result(4, "c").await?, kept("c", 3, 0, &bytes));
    Ok(())
}

/// A result larger than the limit is refused, and the job keeps running.
pub async fn a_result_without_room_is_refused(system: System) -> Checked {
    system.ask(set("results-bytes", "1000")).await?;
    system.run(0, with_result("small", 60), "w1").await?;
    system.at(1, complete_with("small", "w1", 0, "x")).await?;
    system.run(1, with_result("a", 60), "w1").await?;
    let large = "x".repeat(873);
    let before = system.snapshot(2.0).await?;
    too_large(system.at(2, complete_with("a", "w1", 0, &large)).await, "result");
    too_large(system.at(2, fail_with("a", "w1", 0, &large)).await, "result");
    assert_eq!(system.snapshot(2.0).await?, before);
    assert_eq!(system.result(3, "small").await?, kept("small", 1, 0, "x"));
    system.at(3, complete_with("a", "w1", 0, &large[1..])).await?;
    assert_eq!(system.result(4, "a").await?, kept("a", 3, 0, &large[1..]));
    assert_eq!(system.at(4, GetResult { jid: jid("small") }).await?, None);
    Ok(())
}

/// With a limit of zero a job without a result still ends.
pub async fn without_room_a_job_without_a_result_ends(system: System) -> Checked {
    system.ask(set("results-bytes", "100")).await?;
    for name in ["complete", "failed"] {
        system.run(0, with_result(name, 60), "w1").await?;
    }
    too_large(system.at(1, complete_with("complete", "w1", 0, "x")).await, "result");
    assert_eq!(system.at(1, complete("complete", "w1")).await?, CompleteReply::Complete);
    system.at(1, fail("failed", "w1", "g")).await?;
    for name in ["complete", "failed"] {
        assert_eq!(system.at(2, GetResult { jid: jid(name) }).await?, None, "{name}");
    }
    Ok(())
}

/// Unless an option says otherwise, all results together have 64 MiB.
pub async fn results_have_room_for_64_mib(system: System) -> Checked {
    system.run(0, with_result("a", 60), "w1").await?;
    let large = |bytes: usize| {
        let bytes = vec![b' '; bytes].into();
        Complete { result: Some(Box::new(JobResult { code: 0, bytes })), ..complete("a", "w1") }
    };
    too_large(system.at(1, large((64 << 20) - 127)).await, "result");
    assert_eq!(system.state("a").await?, StateName::Running);
    system.at(1, large((64 << 20) - 128)).await?;
    assert_eq!(system.result(2, "a").await?.result.bytes.bytes().len(), (64 << 20) - 128);
    Ok(())
}

/// A completion or failure repeated with its token is idempotent: delivered once, and the first result stays.
pub async fn a_repeated_completion_is_delivered_once(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    let mut ends = Vec::new();
    for (number, name) in [(1, "complete"), (2, "failed")] {
        let terms = PutOptions {
            attach: Some(waiter(number)),
            result_ttl: Some(seconds(60)),
            ..PutOptions::default()
        };
        ends.push(holding(&system.run(0, on_terms(put("mail", name), terms), "w1").await?));
    }
    let completes = |bytes| Complete { holder: ends[0].clone(), ..complete_with("complete", "w1", 0, bytes) };
    let fails = |bytes| Fail { holder: ends[1].clone(), ..fail_with("failed", "w1", 2, bytes) };
    system.at(1, completes("first")).await?;
    system.at(1, fails("first")).await?;
    let how = JobEnding::Failed { group: group("g"), message: "oops".into() };
    let expected = [
        told::ended(1, "complete", JobEnding::Completed, 0, "first"),
        told::ended(2, "failed", how.clone(), 2, "first"),
    ];
    follower.told(&system, expected).await?;
    let mut listener = system.listen().await?;
    assert_eq!(system.ignores(2, completes("second")).await?, CompleteReply::Complete);
    system.ignores(2, fails("second")).await?;
    listener.heard(&system, []).await?;
    follower.told(&system, []).await?;
    assert_eq!(system.result(3, "complete").await?, kept("complete", 1, 0, "first"));
    assert_eq!(
        system.result(3, "failed").await?,
        StoredResult { ending: how, ..kept("failed", 1, 2, "first") }
    );
    Ok(())
}

/// A worker that froze and comes back when another has done its job can change nothing any more: not the
/// outcome, not the result, not the history.
pub async fn a_frozen_worker_changes_nothing_when_it_comes_back(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    let terms =
        PutOptions { attach: Some(waiter(1)), result_ttl: Some(seconds(60)), ..PutOptions::default() };
    let frozen = holding(&system.run(0, on_terms(put("mail", "a"), terms), "w1").await?);
    let beat = Heartbeat { jid: jid("a"), holder: frozen.clone(), payload: Some("[9]".into()) };
    let step = progress("a", frozen.clone(), 1, 2);
    let part = chunk("a", frozen.clone(), "late");
    let done = Complete { holder: frozen.clone(), ..complete_with("a", "w1", 1, "late") };
    assert_eq!(system.pop(60, "mail", "w2", 1).await?, NONE);
    let second = system.take(70, "mail", "w2").await?;
    let refuses_all = async |now: i32, state| {
        system.refuses(now, beat.clone(), no::lock("a", state)).await?;
        system.refuses(now, step.clone(), no::lock("a", state)).await?;
        system.refuses(now, part.clone(), no::lock("a", state)).await?;
        system.refuses(now, done.clone(), no::lock("a", state)).await
    };
    refuses_all(71, StateName::Running).await?;
    let completes = Complete { holder: holding(&second), ..complete_with("a", "w2", 0, "done") };
    system.at(75, completes).await?;
    refuses_all(76, StateName::Complete).await?;
    follower.told(&system, [told::ended(1, "a", JobEnding::Completed, 0, "done")]).await?;
    assert_eq!(system.result(77, "a").await?, kept("a", 75, 0, "done"));
    let history = [
        entry(0, was_put("mail")),
        entry(0, was_popped("w1")),
        entry(60, HistoryEvent::TimedOut),
        entry(70, was_popped("w2")),
        entry(75, HistoryEvent::Done),
    ];
    let job = system.job("a").await?;
    assert_eq!((job.state, job.history), (JobState::Complete { at: moment(75) }, history.into()));
    Ok(())
}
