//! What a put with options does: keys that make two submissions one, how long a job lives, and what is left
//! of it.

use super::prelude::*;

/// A second put with the key of an unfinished job joins that job, and makes none of its own.
pub async fn a_second_put_with_a_key_joins_the_first(system: System) -> Checked {
    assert_eq!(system.at(0, unique("mail", "a", "report")).await?, PutReply::Created);
    let mut listener = system.listen().await?;
    for (name, submissions) in [("b", 2), ("c", 3)] {
        let reply = system.at(1, unique("mail", name, "report")).await?;
        assert_eq!(reply, PutReply::Coalesced { jid: jid("a") });
        assert!(!system.has(name).await?);
        listener.heard(&system, [heard::coalesced("a", "mail", submissions)]).await?;
    }
    assert_eq!(system.details("a").await?.submissions, 3);
    assert_eq!(system.pop(2, "mail", "w1", 5).await?, ["a"]);
    Ok(())
}

/// A job is joined in every state in which it is unfinished.
pub async fn a_job_can_be_joined_until_it_is_finished(system: System) -> Checked {
    system.at(0, put("elsewhere", "needed")).await?;
    system.at(0, unique("mail", "waiting", "1")).await?;
    system.at(0, Put { delay: seconds(99), ..unique("mail", "scheduled", "2") }).await?;
    system.at(0, Put { depends: jids(["needed"]), ..unique("mail", "blocked", "3") }).await?;
    system.run(0, unique("post", "running", "4"), "w1").await?;
    for (to, name, text) in [
        ("mail", "waiting", "1"),
        ("mail", "scheduled", "2"),
        ("mail", "blocked", "3"),
        ("post", "running", "4"),
    ] {
        let reply = system.at(1, unique(to, "new", text)).await?;
        assert_eq!(reply, PutReply::Coalesced { jid: jid(name) });
    }
    Ok(())
}

/// Of a put that joins, nothing but the submission is left.
pub async fn a_put_that_joins_changes_nothing_else(system: System) -> Checked {
    system.at(0, unique("mail", "a", "report")).await?;
    let before = system.job("a").await?;
    let second = Put {
        payload: "[2]".into(),
        klass: klass("other"),
        delay: seconds(9),
        priority: Some(priority(9)),
        retries: Some(1),
        tags: Some(tags(["t"])),
        depends: jids(["a"]),
        ..on_terms(
            put("mail", "b"),
            PutOptions {
                unique: Some(key("report")),
                expires: Some(moment(50)),
                attempt_max: Some(seconds(5)),
                crashes_max: Some(1),
                on_end: OnEnd::Forget,
                backoff: Some(Backoff::constant(seconds(3))?),
                ..PutOptions::default()
            },
        )
    };
    assert_eq!(system.at(1, second).await?, PutReply::Coalesced { jid: jid("a") });
    let mut after = system.job("a").await?;
    after.details.as_mut().ok_or("the job has terms")?.submissions = 1;
    assert_eq!(after, before);
    assert_eq!(system.ask(tagged("t")).await?, Listed::default());
    Ok(())
}

/// A key counts within its queue, and is bytes: only the same ones are the same.
pub async fn a_key_counts_within_its_queue(system: System) -> Checked {
    assert_eq!(system.at(0, unique("mail", "a", "report")).await?, PutReply::Created);
    assert_eq!(system.at(0, unique("post", "b", "report")).await?, PutReply::Created);
    assert_eq!(system.at(0, unique("mail", "c", "Report")).await?, PutReply::Created);
    assert_eq!(system.at(0, put("mail", "report")).await?, PutReply::Created);
    let odd = |name| {
        let unique = Some(UniqueKey::new([0, 255, b'\n'])?);
        Ok::<Put, BadArgument>(on_terms(put("mail", name), PutOptions { unique, ..PutOptions::default() }))
    };
    assert_eq!(system.at(0, odd("d")?).await?, PutReply::Created);
    assert_eq!(system.at(0, odd("e")?).await?, PutReply::Coalesced { jid: jid("d") });
    Ok(())
}

/// An id that is there already counts for more than a key that another job has.
pub async fn an_id_goes_before_a_key(system: System) -> Checked {
    system.at(0, unique("mail", "a", "report")).await?;
    system.at(0, put("mail", "b")).await?;
    assert_eq!(system.ignores(1, unique("mail", "b", "report")).await?, PutReply::Existing);
    assert_eq!(system.ignores(1, unique("mail", "a", "report")).await?, PutReply::Existing);
    Ok(())
}

/// A job that finds its key taken when it is put again runs without it.
pub async fn a_job_put_again_is_never_joined_to_another(system: System) -> Checked {
    system.at(0, unique("mail", "a", "report")).await?;
    system.at(0, put("mail", "b")).await?;
    for existing in [Existing::Replace, Existing::Require] {
        let again = Put { existing, ..unique("mail", "b", "report") };
        assert_eq!(system.at(1, again).await?, PutReply::Replaced);
    }
    assert_eq!(system.details("a").await?.submissions, 1);
    assert_eq!(system.at(2, unique("mail", "c", "report")).await?, PutReply::Coalesced { jid: jid("a") });
    system.at(3, cancel(["a"])).await?;
    assert_eq!(system.at(4, unique("mail", "c", "report")).await?, PutReply::Created);
    system.at(5, cancel(["c"])).await?;
    system.at(6, put_again("mail", "b")).await?;
    assert_eq!(system.at(7, unique("mail", "d", "report")).await?, PutReply::Coalesced { jid: jid("b") });
    Ok(())
}

/// A key is free once its job is complete, failed, removed or elsewhere.
pub async fn a_key_is_free_once_its_job_is_finished_or_gone(system: System) -> Checked {
    for name in ["complete", "failed", "spent", "advanced"] {
        system.run(0, Put { retries: Some(0), ..unique("mail", name, name) }, "w1").await?;
    }
    for name in ["moved", "cancelled"] {
        system.at(0, unique("mail", name, name)).await?;
    }
    system.at(1, complete("complete", "w1")).await?;
    system.at(1, fail("failed", "w1", "g")).await?;
    system.at(1, retry("spent", "w1")).await?;
    system.at(1, advance("advanced", "w1", "post")).await?;
    system.at(1, put_again("post", "moved")).await?;
    system.at(1, cancel(["cancelled"])).await?;
    for name in ["complete", "failed", "spent", "advanced", "moved", "cancelled"] {
        let new = format!("new-{name}");
        assert_eq!(system.at(2, unique("mail", &new, name)).await?, PutReply::Created, "{name}");
    }
    Ok(())
}

/// A job takes its key along to another queue, by a put or a completion, and runs without it if it is taken
/// there.
pub async fn a_job_takes_its_key_along(system: System) -> Checked {
    system.run(0, unique("mail", "a", "1"), "w1").await?;
    system.at(1, advance("a", "w1", "post")).await?;
    assert_eq!(system.at(2, unique("post", "new", "1")).await?, PutReply::Coalesced { jid: jid("a") });
    system.at(3, put_again("mail", "a")).await?;
    assert_eq!(system.at(4, unique("mail", "new", "1")).await?, PutReply::Coalesced { jid: jid("a") });
    system.at(5, unique("post", "b", "1")).await?;
    system.at(6, put_again("post", "a")).await?;
    assert_eq!(system.at(7, unique("post", "new", "1")).await?, PutReply::Coalesced { jid: jid("b") });
    assert_eq!(system.at(8, unique("mail", "new", "1")).await?, PutReply::Created);
    Ok(())
}

/// A failed job takes its key again when it is put back to work, unless another has it by then.
pub async fn an_unfailed_job_takes_its_key_again(system: System) -> Checked {
    for name in ["a", "b"] {
        system.run(0, unique("mail", name, name), "w1").await?;
        system.at(1, fail(name, "w1", "g")).await?;
    }
    system.at(2, unique("mail", "other", "b")).await?;
    assert_eq!(system.at(3, unfail("mail", "g", 2)).await?, 2);
    assert_eq!(system.at(4, unique("mail", "new", "a")).await?, PutReply::Coalesced { jid: jid("a") });
    assert_eq!(system.at(4, unique("mail", "new", "b")).await?, PutReply::Coalesced { jid: jid("other") });
    Ok(())
}

/// A submission that joins attaches its waiter, keeps the longer result, and lets the job live on if it
/// would.
pub async fn joining_adds_a_waiter_and_the_better_promises(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    let first = |by, result_for| PutOptions {
        unique: Some(key("report")),
        attach: Some(waiter(by)),
        orphan_policy: OrphanPolicy::WhileAwaited,
        result_ttl: result_for,
        ..PutOptions::default()
    };
    system.at(0, on_terms(put("mail", "a"), first(1, Some(seconds(60))))).await?;
    system.at(1, on_terms(put("mail", "b"), first(2, Some(seconds(90))))).await?;
    system.at(2, on_terms(put("mail", "c"), first(3, Some(seconds(30))))).await?;
    let now = system.details("a").await?;
    assert_eq!((now.submissions, now.attached, now.result_ttl), (3, 3, Some(seconds(90))));
    assert_eq!(now.orphan_policy, OrphanPolicy::WhileAwaited);
    system.at(3, unique("mail", "d", "report")).await?;
    let now = system.details("a").await?;
    assert_eq!((now.submissions, now.attached, now.orphan_policy), (4, 3, OrphanPolicy::Always));
    for number in 1..=3 {
        assert_eq!(system.at(4, leave(number)).await?, 1);
    }
    assert_eq!(system.state("a").await?, StateName::Waiting);
    follower.told(&system, []).await?;
    Ok(())
}

/// The status of a job is found by its id, and while it is unfinished by its key.
pub async fn a_status_is_found_by_id_and_by_key(system: System) -> Checked {
    let by_key = |to: &str| Status { of: StatusOf::Unique(queue(to), key("report")) };
    assert_eq!(system.ask(by_key("mail")).await?, None);
    assert_eq!(system.ask(status("a")).await?, None);
    let popped = system.run(0, unique("mail", "a", "report"), "w1").await?;
    system.at(1, unique("mail", "b", "report")).await?;
    system.at(2, progress("a", holding(&popped), 1, 3)).await?;
    let expected = StatusReply {
        jid: jid("a"),
        queue: queue("mail"),
        state: StateName::Running,
        progress: Some(portion(1, 3)),
        submissions: 2,
        attached: 0,
    };
    assert_eq!(system.ignores(3, by_key("mail")).await?, Some(expected.clone()));
    assert_eq!(system.ignores(3, status("a")).await?, Some(expected));
    assert_eq!(system.ask(by_key("post")).await?, None);
    system.at(4, complete("a", "w1")).await?;
    assert_eq!(system.ask(by_key("mail")).await?, None);
    assert_eq!(system.ask(status("a")).await?, None);
    Ok(())
}

/// A job without options stands for one submission, and there is nothing particular about it.
pub async fn a_job_without_terms_has_nothing_particular(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    system.at(0, on_terms(put("mail", "b"), PutOptions::default())).await?;
    for name in ["a", "b"] {
        assert_eq!(system.job(name).await?.details, None);
        let status = system.ask(status(name)).await?.ok_or("an unfinished job has a status")?;
        assert_eq!((status.state, status.submissions, status.attached), (StateName::Waiting, 1, 0));
    }
    assert_eq!(system.take(1, "mail", "w1").await?.details, None);
    Ok(())
}

/// The options of a put are to be seen in the job, and by the worker that gets it.
pub async fn a_job_is_on_the_terms_that_it_was_put_on(system: System) -> Checked {
    let backoff = Backoff::exponential(seconds(2), 3.0, seconds(60), 0.5)?;
    let terms = PutOptions {
        unique: Some(key("report")),
        on_end: OnEnd::Forget,
        result_ttl: Some(RESULT_TTL_DEFAULT),
        expires: Some(moment(50)),
        attempt_max: Some(seconds(20)),
        backoff: Some(backoff),
        crashes_max: Some(2),
        ..PutOptions::default()
    };
    system.at(0, on_terms(put("mail", "a"), terms)).await?;
    let expected = JobDetails {
        unique: Some(key("report")),
        submissions: 1,
        on_end: OnEnd::Forget,
        result_ttl: Some(seconds(90_000)),
        expires: Some(moment(50)),
        attempt_max: Some(seconds(20)),
        backoff: Some(backoff),
        crashes_max: Some(2),
        ..JobDetails::default()
    };
    assert_eq!(system.details("a").await?, expected);
    let popped = system.take(10, "mail", "w1").await?;
    let running = JobDetails { deadline: Some(moment(30)), ..expected };
    assert_eq!(popped.details.as_deref(), Some(&running));
    assert_eq!(system.details("a").await?, running);
    Ok(())
}

/// A job that is put again has the new options if there are any, and else its own.
pub async fn a_job_put_again_has_the_new_terms_or_keeps_its_own(system: System) -> Checked {
    let terms = |text: &str, crashes_max| PutOptions {
        unique: Some(key(text)),
        crashes_max,
        ..PutOptions::default()
    };
    system.run(0, on_terms(put("mail", "a"), terms("old", Some(9))), "w1").await?;
    system.at(1, unique("mail", "b", "old")).await?;
    system.at(2, WorkerLost { worker: worker("w1"), evidence: Some("signal 9".into()) }).await?;
    for again in [put_again("mail", "a"), on_terms(put_again("mail", "a"), PutOptions::default())] {
        system.at(3, again).await?;
        let kept = system.details("a").await?;
        assert_eq!((kept.submissions, kept.crashes, kept.crashes_max), (2, 0, Some(9)));
        assert_eq!(kept.unique, Some(key("old")));
    }
    assert_eq!(system.at(4, on_terms(put_again("mail", "a"), terms("new", None))).await?, PutReply::Replaced);
    let new = system.details("a").await?;
    assert_eq!((new.submissions, new.crashes, new.crashes_max), (1, 0, None));
    assert_eq!(system.at(5, unique("mail", "c", "old")).await?, PutReply::Created);
    assert_eq!(system.at(5, unique("mail", "d", "new")).await?, PutReply::Coalesced { jid: jid("a") });
    Ok(())
}

/// A job that is put again keeps its waiters, and gains the waiter of the put.
pub async fn a_job_put_again_keeps_its_waiters(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    system.at(0, awaited("mail", "a", 1)).await?;
    system.at(1, put_again("mail", "a")).await?;
    assert_eq!(system.details("a").await?.attached, 1);
    system.at(2, Put { existing: Existing::Replace, ..awaited("post", "a", 2) }).await?;
    assert_eq!(system.details("a").await?.attached, 2);
    system.take(3, "post", "w1").await?;
    system.at(4, complete("a", "w1")).await?;
    follower.told(&system, [told::completed(1, "a"), told::completed(2, "a")]).await?;
    Ok(())
}

/// A job that lives while it is awaited goes when the last of those leaves who wait for it.
pub async fn a_fleeting_job_goes_with_its_last_waiter(system: System) -> Checked {
    let _follower = system.follow(1).await?;
    system.at(0, put("elsewhere", "needed")).await?;
    system.at(0, fleeting("mail", "waiting", 1)).await?;
    system.at(0, Put { delay: seconds(99), ..fleeting("mail", "scheduled", 2) }).await?;
    system.at(0, Put { depends: jids(["needed"]), ..fleeting("mail", "blocked", 3) }).await?;
    system.at(1, attach("waiting", 4)).await?;
    system.at(2, leave(1)).await?;
    assert_eq!(system.state("waiting").await?, StateName::Waiting);
    let mut listener = system.listen().await?;
    for (number, name) in [(4, "waiting"), (2, "scheduled"), (3, "blocked")] {
        assert_eq!(system.at(3, leave(number)).await?, 1);
        assert!(!system.has(name).await?, "{name}");
        listener.heard(&system, [heard::abandoned(name, "mail")]).await?;
    }
    assert!(system.job("needed").await?.dependents.is_empty());
    assert_eq!(system.counts(4, "mail").await?.scheduled, 0);
    Ok(())
}

/// An orphaned job releases its key and its dependencies.
pub async fn an_abandoned_job_lets_go_of_its_key(system: System) -> Checked {
    let _follower = system.follow(1).await?;
    let mut job = fleeting("mail", "a", 1);
    job.options.as_mut().ok_or("it has terms")?.unique = Some(key("report"));
    system.at(0, job).await?;
    system.at(1, leave(1)).await?;
    assert_eq!(system.at(2, unique("mail", "b", "report")).await?, PutReply::Created);
    Ok(())
}

/// A job with the default orphan policy lives on without waiters.
pub async fn a_lasting_job_outlives_its_waiters(system: System) -> Checked {
    let _follower = system.follow(1).await?;
    system.at(0, awaited("mail", "a", 1)).await?;
    let mut listener = system.listen().await?;
    system.at(1, leave(1)).await?;
    listener.heard(&system, []).await?;
    assert_eq!(system.pop(2, "mail", "w1", 1).await?, ["a"]);
    Ok(())
}

/// A job that never had a waiter is no orphan until its first waiter has detached.
pub async fn a_fleeting_job_waits_for_its_first_waiter(system: System) -> Checked {
    let _follower = system.follow(1).await?;
    let terms = PutOptions { orphan_policy: OrphanPolicy::WhileAwaited, ..PutOptions::default() };
    system.at(0, on_terms(put("mail", "a"), terms)).await?;
    system.tick(1).await?;
    assert_eq!(system.state("a").await?, StateName::Waiting);
    assert_eq!(system.at(2, attach("a", 1)).await?, AttachReply::Attached);
    system.at(3, leave(1)).await?;
    assert!(!system.has("a").await?);
    Ok(())
}

/// A running job is not abandoned; when it returns to its queue without a waiter, it is.
pub async fn a_fleeting_job_runs_on_and_goes_when_it_comes_back(system: System) -> Checked {
    let _follower = system.follow(1).await?;
    let names = ["retried", "delayed", "timed-out", "handed-back", "crashed", "late", "complete"];
    for (number, name) in (1..).zip(names) {
        let mut job = fleeting("mail", name, number);
        if let Some(terms) = job.options.as_mut().filter(|_| name == "late") {
            terms.attempt_max = Some(seconds(30));
        }
        system.run(0, job, name).await?;
        system.at(1, leave(number)).await?;
        assert_eq!(system.state(name).await?, StateName::Running);
    }
    let mut listener = system.listen().await?;
    system.at(2, retry("retried", "retried")).await?;
    let expected = [heard::retried("retried", "mail"), heard::abandoned("retried", "mail")];
    listener.heard(&system, expected).await?;
    system.at(2, Retry { delay: seconds(9), ..retry("delayed", "delayed") }).await?;
    system.at(2, timeout(["timed-out"])).await?;
    system.at(2, hand_back("handed-back", "handed-back")).await?;
    system.at(2, gone("crashed")).await?;
    system.at(2, complete("complete", "complete")).await?;
    system.tick(30).await?;
    for name in &names[..6] {
        assert!(!system.has(name).await?, "{name}");
    }
    assert_eq!(system.state("complete").await?, StateName::Complete);
    Ok(())
}

/// A job with a waiter returns to its queue like any other.
pub async fn an_awaited_job_comes_back(system: System) -> Checked {
    let _follower = system.follow(1).await?;
    system.run(0, fleeting("mail", "a", 1), "w1").await?;
    system.at(1, retry("a", "w1")).await?;
    assert_eq!(system.pop(2, "mail", "w1", 1).await?, ["a"]);
    system.at(3, gone("w1")).await?;
    assert_eq!(system.pop(4, "mail", "w2", 1).await?, ["a"]);
    Ok(())
}

/// A job that others depend on is not abandoned.
pub async fn an_orphan_with_dependents_stays(system: System) -> Checked {
    let _follower = system.follow(1).await?;
    system.at(0, fleeting("mail", "a", 1)).await?;
    system.at(0, Put { depends: jids(["a"]), ..put("mail", "b") }).await?;
    assert_eq!(system.at(1, leave(1)).await?, 1);
    assert_eq!(system.state("a").await?, StateName::Waiting);
    system.take(2, "mail", "w1").await?;
    system.at(3, retry("a", "w1")).await?;
    assert_eq!(system.state("a").await?, StateName::Waiting);
    Ok(())
}

/// To be put again or unfailed is a reason to live.
pub async fn a_fleeting_job_lives_on_when_it_is_put_back(system: System) -> Checked {
    let _follower = system.follow(1).await?;
    for (number, name) in [(1, "failed"), (2, "put")] {
        system.run(0, fleeting("mail", name, number), "w1").await?;
        system.at(1, leave(number)).await?;
    }
    system.at(2, fail("failed", "w1", "g")).await?;
    assert_eq!(system.state("failed").await?, StateName::Failed);
    system.at(3, unfail("mail", "g", 1)).await?;
    assert_eq!(system.state("failed").await?, StateName::Waiting);
    system.at(3, put_again("mail", "put")).await?;
    assert_eq!(system.state("put").await?, StateName::Waiting);
    Ok(())
}

/// A job that is to be forgotten is gone once it is complete or failed, and nothing is heard of that.
pub async fn a_job_may_be_forgotten_afterwards(system: System) -> Checked {
    let forgotten = |name| {
        let terms = PutOptions { on_end: OnEnd::Forget, ..PutOptions::default() };
        Put { retries: Some(0), tags: Some(tags(["t"])), ..on_terms(put("mail", name), terms) }
    };
    for name in ["complete", "failed", "spent"] {
        system.run(0, forgotten(name), "w1").await?;
    }
    let mut listener = system.listen().await?;
    system.at(1, complete("complete", "w1")).await?;
    listener.heard(&system, [heard::completed("complete", "mail")]).await?;
    system.at(1, fail("failed", "w1", "g")).await?;
    let failed = heard::failed("failed", "mail", "w1", "g", "oops", FailedBy::Worker);
    listener.heard(&system, [failed]).await?;
    system.at(1, retry("spent", "w1")).await?;
    for name in ["complete", "failed", "spent"] {
        assert!(!system.has(name).await?, "{name}");
    }
    assert!(system.ask(Failures).await?.is_empty());
    assert_eq!(system.list(2, Listing::Complete).await?, NONE);
    assert_eq!(system.ask(tagged("t")).await?, Listed::default());
    Ok(())
}

/// So is a job that fails without its worker's doing.
pub async fn a_job_that_fails_by_itself_may_be_forgotten(system: System) -> Checked {
    for name in ["late", "crashed", "expired"] {
        let terms = PutOptions {
            on_end: OnEnd::Forget,
            attempt_max: (name == "late").then_some(seconds(30)),
            expires: (name == "expired").then_some(moment(30)),
            ..PutOptions::default()
        };
        let job = Put { retries: Some(0), ..on_terms(put("mail", name), terms) };
        match name {
            "expired" => drop(system.at(0, job).await?),
            _ => drop(system.run(0, job, name).await?),
        }
    }
    system.at(1, gone("crashed")).await?;
    system.tick(31).await?;
    for name in ["late", "crashed", "expired"] {
        assert!(!system.has(name).await?, "{name}");
    }
    assert!(system.ask(Failures).await?.is_empty());
    Ok(())
}

/// A job that goes on to another queue is not over, and so not forgotten.
pub async fn a_job_that_goes_on_is_not_forgotten(system: System) -> Checked {
    let terms = PutOptions { on_end: OnEnd::Forget, ..PutOptions::default() };
    system.run(0, on_terms(put("mail", "a"), terms), "w1").await?;
    system.at(1, advance("a", "w1", "post")).await?;
    system.take(2, "post", "w1").await?;
    system.at(3, complete("a", "w1")).await?;
    assert!(!system.has("a").await?);
    Ok(())
}

/// A failed job that others depend on is kept, so that they can be helped; a complete one has released them.
pub async fn a_job_that_others_depend_on_is_not_forgotten(system: System) -> Checked {
    let terms = PutOptions { on_end: OnEnd::Forget, ..PutOptions::default() };
    for (needed, blocked) in [("a", "after-a"), ("b", "after-b")] {
        system.run(0, on_terms(put("mail", needed), terms.clone()), "w1").await?;
        system.at(0, Put { depends: jids([needed]), ..put("mail", blocked) }).await?;
    }
    system.at(1, fail("a", "w1", "g")).await?;
    assert_eq!(system.state("a").await?, StateName::Failed);
    assert_eq!(system.state("after-a").await?, StateName::Depends);
    system.at(1, complete("b", "w1")).await?;
    assert!(!system.has("b").await?);
    assert_eq!(system.state("after-b").await?, StateName::Waiting);
    Ok(())
}
