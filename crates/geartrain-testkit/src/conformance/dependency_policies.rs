//! What a job does when one that it depends on fails, and the cancellation of dependents.

use super::prelude::*;

/// A put of a job into `mail` that depends on others, with a policy.
fn behind<N: AsRef<str>>(name: &str, on: impl IntoIterator<Item = N>, policy: DependencyPolicy) -> Put {
    let terms = PutOptions { on_dependency_failure: policy, ..PutOptions::default() };
    on_terms(Put { depends: jids(on), ..put("mail", name) }, terms)
}

/// The message of a job that failed because another did.
fn upstream(cause: &str, kind: &str) -> String {
    format!("Job {cause} failed ({kind}), and this job depends on it")
}

/// Puts a job into a queue of its own, and fails it.
async fn fail_new(system: &System, now: i32, name: &str) -> Checked {
    system.run(now, put("needs", name), "w1").await?;
    system.at(now, fail(name, "w1", "g")).await?;
    Ok(())
}

/// Group and message of the failure of a job.
async fn failure(system: &System, name: &str) -> Result<(String, String), Surprise> {
    let job = system.job(name).await?;
    let failure = job.failure().ok_or_else(|| format!("{name} has not failed"))?;
    Ok((failure.group.to_string(), failure.message.clone()))
}

/// Without a policy a job waits until the failed one is put back and complete.
pub async fn a_job_waits_behind_a_failed_one_by_default(system: System) -> Checked {
    system.run(0, put("needs", "a"), "w1").await?;
    system.at(0, Put { depends: jids(["a"]), ..put("mail", "x") }).await?;
    system.at(0, behind("y", ["a"], DependencyPolicy::Wait)).await?;
    system.at(1, fail("a", "w1", "g")).await?;
    system.tick(2).await?;
    for name in ["x", "y"] {
        assert_eq!(system.state(name).await?, StateName::Depends);
    }
    assert_eq!(system.job("y").await?.details, None);
    system.at(3, unfail("needs", "g", 1)).await?;
    system.take(4, "needs", "w1").await?;
    system.at(5, complete("a", "w1")).await?;
    assert_eq!(system.pop(6, "mail", "w1", 2).await?, ["x", "y"]);
    Ok(())
}

/// A job fails with the one that it depends on, and so do its dependents; all of them name the job that
/// failed by itself.
pub async fn a_job_fails_with_its_dependency(system: System) -> Checked {
    system.run(0, put("needs", "a"), "w1").await?;
    system.at(0, put("needs", "other")).await?;
    system.at(0, behind("x", ["a", "other"], DependencyPolicy::Fail)).await?;
    system.at(0, behind("w", ["x"], DependencyPolicy::Fail)).await?;
    system.at(0, behind("v", ["w"], DependencyPolicy::Wait)).await?;
    assert_eq!(system.details("x").await?.on_dependency_failure, DependencyPolicy::Fail);
    let in_group = failed("upstream-mail");
    let mut listener = system.listen().await?;
    system.at(5, fail("a", "w1", "g")).await?;
    let failed = |name: &str| Event::Failed {
        jid: jid(name),
        queue: queue("mail"),
        worker: None,
        group: group("upstream-mail"),
        message: upstream("a", "g"),
        by: FailedBy::Upstream,
    };
    let cause = heard::failed("a", "needs", "w1", "g", "oops", FailedBy::Worker);
    listener.heard(&system, [cause, failed("x"), failed("w")]).await?;
    for name in ["x", "w"] {
        assert_eq!(failure(&system, name).await?, ("upstream-mail".into(), upstream("a", "g")));
        let job = system.job(name).await?;
        assert_eq!(job.history.last(), Some(&entry(5, had_failed(None, "upstream-mail"))));
        assert_eq!(job.failure().map(|failure| failure.when), Some(moment(5)));
        assert_eq!(job.details.ok_or("it has a policy")?.on_dependency_failure, DependencyPolicy::Fail);
    }
    assert_eq!(system.job("other").await?.dependents, []);
    assert_eq!(system.state("v").await?, StateName::Depends);
    assert_eq!(texts(system.ask(in_group).await?.jids), ["w", "x"]);
    let day = system.stats("mail", 5).await?;
    assert_eq!((day.failed, day.failures), (2, 2));
    Ok(())
}

/// A job is cancelled with its dependency. Its dependents depend on the failed job instead, so that none of
/// them waits for nothing.
pub async fn a_job_is_skipped_with_its_dependency(system: System) -> Checked {
    system.run(0, put("needs", "a"), "w1").await?;
    system.at(0, behind("x", ["a"], DependencyPolicy::Skip)).await?;
    system.at(0, Put { depends: jids(["x"]), ..put("mail", "waits") }).await?;
    system.at(0, behind("fails", ["x"], DependencyPolicy::Fail)).await?;
    system.at(0, behind("runs", ["x"], DependencyPolicy::Run)).await?;
    system.at(0, behind("skips", ["x"], DependencyPolicy::Skip)).await?;
    let mut listener = system.listen().await?;
    system.at(1, fail("a", "w1", "g")).await?;
    let canceled: Vec<Event> = listener
        .all(&system)
        .await?
        .into_iter()
        .filter(|event| matches!(event, Event::Canceled { .. }))
        .collect();
    assert_eq!(canceled.len(), 2);
    for name in ["x", "skips"] {
        assert!(!system.has(name).await?);
        assert!(canceled.contains(&heard::canceled(name, "mail", None)));
    }
    assert_eq!(texts(system.job("waits").await?.dependencies()), ["a"]);
    assert_eq!(failure(&system, "fails").await?.1, upstream("a", "g"));
    assert_eq!(texts(system.job("a").await?.dependents), ["waits"]);
    assert_eq!(system.pop(2, "mail", "w1", 9).await?, ["runs"]);
    system.at(3, requeue("needs", "a")).await?;
    system.take(4, "needs", "w1").await?;
    system.at(5, complete("a", "w1")).await?;
    assert_eq!(system.pop(6, "mail", "w1", 9).await?, ["waits"]);
    Ok(())
}

/// A job runs without its failed dependencies once the others are complete, and not before its time.
pub async fn a_job_runs_without_its_failed_dependency(system: System) -> Checked {
    for name in ["a", "b", "c"] {
        system.run(0, put("needs", name), "w1").await?;
    }
    system.at(0, behind("now", ["a"], DependencyPolicy::Run)).await?;
    system.at(0, behind("then", ["a", "b", "c"], DependencyPolicy::Run)).await?;
    system.at(0, Put { delay: seconds(50), ..behind("later", ["a"], DependencyPolicy::Run) }).await?;
    system.at(1, fail("a", "w1", "g")).await?;
    assert_eq!(system.pop(2, "mail", "w2", 9).await?, ["now"]);
    assert_eq!(system.job("later").await?.state, JobState::Scheduled { due: moment(50) });
    assert_eq!(texts(system.job("then").await?.dependencies()), ["b", "c"]);
    system.at(3, complete("b", "w1")).await?;
    system.at(4, fail("c", "w1", "g")).await?;
    assert_eq!(system.pop(5, "mail", "w2", 9).await?, ["then"]);
    assert_eq!(system.pop(50, "mail", "w2", 9).await?, ["later"]);
    assert_eq!(system.job("a").await?.dependents, []);
    Ok(())
}

/// A policy applies however the job failed.
pub async fn a_policy_applies_however_the_job_failed(system: System) -> Checked {
    system.ask(set("grace-period", "0")).await?;
    system.ask(set("crashes-max", "1")).await?;
    let limited = PutOptions { attempt_max: Some(seconds(5)), ..PutOptions::default() };
    let expiring = PutOptions { expires: Some(moment(5)), ..PutOptions::default() };
    let tried_once = |name: &str| Put { retries: Some(0), ..put("needs", name) };
    system.run(0, tried_once("retried"), "w1").await?;
    system.run(0, put("needs", "crashed"), "w2").await?;
    system.run(0, on_terms(tried_once("slow"), limited), "w3").await?;
    system.run(0, tried_once("silent"), "w4").await?;
    system.at(0, on_terms(put("needs", "late"), expiring)).await?;
    let causes = ["retried", "crashed", "slow", "silent", "late"];
    for cause in causes {
        system.at(0, behind(&format!("x-{cause}"), [cause], DependencyPolicy::Fail)).await?;
    }
    system.at(1, retry("retried", "w1")).await?;
    system.at(2, gone("w2")).await?;
    system.tick(6).await?;
    system.pop(100, "needs", "w5", 1).await?;
    for (cause, kind) in
        causes.into_iter().zip(["failed-retries", "crashed", "timed-out", "failed-retries", "expired"])
    {
        let expected = ("upstream-mail".into(), upstream(cause, &format!("{kind}-needs")));
        assert_eq!(failure(&system, &format!("x-{cause}")).await?, expected);
    }
    Ok(())
}

/// A job that comes to depend on one that failed already does at once what its policy says.
pub async fn a_policy_applies_at_once_behind_a_failed_job(system: System) -> Checked {
    fail_new(&system, 0, "a").await?;
    assert_eq!(system.at(1, behind("put", ["a"], DependencyPolicy::Fail)).await?, PutReply::Created);
    assert_eq!(system.at(1, behind("run", ["a"], DependencyPolicy::Run)).await?, PutReply::Created);
    assert_eq!(system.at(1, behind("skip", ["a"], DependencyPolicy::Skip)).await?, PutReply::Created);
    system.at(1, put("needs", "b")).await?;
    system.at(1, behind("added", ["b"], DependencyPolicy::Fail)).await?;
    system.at(1, depend_on("added", ["a"])).await?;
    system.at(1, Put { depends: jids(["a"]), ..put("mail", "again") }).await?;
    let fails = PutOptions { on_dependency_failure: DependencyPolicy::Fail, ..PutOptions::default() };
    system.at(1, on_terms(put_again("mail", "again"), fails)).await?;
    for name in ["put", "added", "again"] {
        assert_eq!(failure(&system, name).await?, ("upstream-mail".into(), upstream("a", "g")));
    }
    assert!(!system.has("skip").await?);
    assert_eq!(system.pop(2, "mail", "w2", 9).await?, ["run"]);
    let next = Next { depends: jids(["a"]), ..Next::new(queue("mail")) };
    let reply = system.at(3, Complete { next: Some(next), ..complete("run", "w2") }).await?;
    assert_eq!((reply, system.state("run").await?), (CompleteReply::Depends, StateName::Waiting));
    Ok(())
}

/// A job that failed because of another depends on it again when both are put back, unless it is failed still
/// or done.
pub async fn a_job_put_back_depends_again_on_what_is_unfinished(system: System) -> Checked {
    for name in ["done", "failed", "unfinished"] {
        fail_new(&system, 0, name).await?;
    }
    let on = ["done", "failed", "unfinished"];
    for name in ["x", "y", "z"] {
        system.at(1, behind(name, on, DependencyPolicy::Fail)).await?;
        assert_eq!(failure(&system, name).await?.1, upstream("done", "g"));
    }
    system.at(2, requeue("needs", "done")).await?;
    system.take(2, "needs", "w1").await?;
    system.at(2, complete("done", "w1")).await?;
    system.at(3, requeue("needs", "unfinished")).await?;
    assert_eq!(failure(&system, "x").await?.0, "upstream-mail");
    assert_eq!(system.at(4, unfail("mail", "upstream-mail", 1)).await?, 1);
    system.at(4, requeue("mail", "y")).await?;
    system.at(4, Put { depends: jids(["x"]), ..requeue("mail", "z") }).await?;
    for (name, on) in [("x", "unfinished"), ("y", "unfinished"), ("z", "x")] {
        assert_eq!(texts(system.job(name).await?.dependencies()), [on]);
    }
    system.take(5, "needs", "w1").await?;
    system.at(5, complete("unfinished", "w1")).await?;
    assert_eq!(system.pop(6, "mail", "w1", 9).await?, ["x", "y"]);
    Ok(())
}

/// A job that is put back while its dependency is failed runs without it.
pub async fn a_job_put_back_runs_if_its_dependency_is_failed(system: System) -> Checked {
    fail_new(&system, 0, "a").await?;
    system.at(1, behind("x", ["a"], DependencyPolicy::Fail)).await?;
    system.at(1, behind("y", ["x"], DependencyPolicy::Fail)).await?;
    assert_eq!(system.at(2, unfail("mail", "upstream-mail", 9)).await?, 2);
    assert_eq!(texts(system.job("y").await?.dependencies()), ["x"]);
    assert_eq!(system.pop(3, "mail", "w1", 9).await?, ["x"]);
    system.at(4, complete("x", "w1")).await?;
    assert_eq!(system.pop(5, "mail", "w1", 9).await?, ["y"]);
    Ok(())
}

/// A dependency that came to depend on the job meanwhile is not restored: no job would ever run.
pub async fn a_job_put_back_closes_no_cycle(system: System) -> Checked {
    fail_new(&system, 0, "a").await?;
    system.at(1, behind("x", ["a"], DependencyPolicy::Fail)).await?;
    system.at(2, Put { depends: jids(["x"]), ..requeue("needs", "a") }).await?;
    system.at(3, requeue("mail", "x")).await?;
    assert_eq!(system.pop(4, "mail", "w1", 9).await?, ["x"]);
    Ok(())
}

/// Dependents that are too many for one command are done by the next ticks.
pub async fn many_dependents_are_done_by_ticks(system: System) -> Checked {
    system.run(0, put("needs", "a"), "w1").await?;
    system.at(0, behind("middle", ["a"], DependencyPolicy::Skip)).await?;
    for number in 0..130 {
        system.at(0, behind(&format!("x{number:03}"), ["a"], DependencyPolicy::Fail)).await?;
        system.at(0, Put { depends: jids(["middle"]), ..put("mail", format!("y{number:03}")) }).await?;
    }
    system.at(1, fail("a", "w1", "g")).await?;
    let mut ticks = 0;
    while system.at(2, Tick { count: count(50) }).await?.done > 0 {
        ticks += 1;
        assert!(ticks < 20, "ticks go on and on");
    }
    let failures = system.ask(Failures).await?;
    assert_eq!(failures.get(&group("upstream-mail")), Some(&130));
    assert!(!system.has("middle").await?);
    assert_eq!(system.job("a").await?.dependents.len(), 130);
    Ok(())
}

/// Waiters of a job get its end, and a job that is to be forgotten is.
pub async fn an_upstream_failure_ends_a_job(system: System) -> Checked {
    let mut follower = system.follow(1).await?;
    system.run(0, put("needs", "a"), "w1").await?;
    let terms = |by, on_dependency_failure| PutOptions {
        attach: Some(waiter(by)),
        on_end: OnEnd::Forget,
        result_ttl: Some(seconds(60)),
        on_dependency_failure,
        ..PutOptions::default()
    };
    let blocked = |name: &str| Put { depends: jids(["a"]), ..put("mail", name) };
    system.at(0, on_terms(blocked("x"), terms(1, DependencyPolicy::Fail))).await?;
    system.at(0, on_terms(blocked("y"), terms(2, DependencyPolicy::Skip))).await?;
    system.at(1, fail("a", "w1", "g")).await?;
    let failed = told::failed(1, "x", "upstream-mail", &upstream("a", "g"));
    follower.told(&system, [failed, told::canceled(2, "y")]).await?;
    assert!(!system.has("x").await? && !system.has("y").await?);
    let kept = system.result(2, "x").await?;
    assert!(matches!(kept.ending, JobEnding::Failed { group, .. } if group.as_str() == "upstream-mail"));
    Ok(())
}

/// Policies end on a cycle of dependencies, which only a Qless caller can make.
pub async fn policies_end_on_a_cycle(system: System) -> Checked {
    system.run(0, put("needs", "a"), "w1").await?;
    for policy in [DependencyPolicy::Skip, DependencyPolicy::Fail] {
        let accept = |put: Put| Put { cycles: Cycles::Accept, ..put };
        let name = |number: u32| format!("{}{number}", policy.as_str());
        system.at(0, put("mail", name(3))).await?;
        system.at(0, accept(behind(&name(1), ["a".to_owned(), name(3), name(1)], policy))).await?;
        system.at(0, behind(&name(2), [name(1)], policy)).await?;
        let third = behind(&name(3), [name(2)], policy);
        system.at(0, accept(Put { existing: Existing::Replace, ..third })).await?;
    }
    system.at(1, fail("a", "w1", "g")).await?;
    for number in 1..=3 {
        assert!(!system.has(&format!("skip{number}")).await?);
        assert_eq!(system.state(&format!("fail{number}")).await?, StateName::Failed);
    }
    Ok(())
}

/// A blocked job names the failed job that it waits for, and how that failed.
pub async fn why_names_the_failed_dependency(system: System) -> Checked {
    system.at(0, put("needs", "b")).await?;
    system.run(0, Put { priority: Some(priority(1)), ..put("needs", "c") }, "w1").await?;
    system.at(0, Put { depends: jids(["b", "c"]), ..put("mail", "x") }).await?;
    system.at(1, fail("c", "w1", "g")).await?;
    let failed = FailedDependency { jid: jid("c"), group: group("g"), message: "oops".into() };
    let reason = Reason::DependsOn {
        jid: jid("b"),
        state: StateName::Waiting,
        count: 2,
        failed: Some(Box::new(failed)),
    };
    assert_eq!(system.why(2, "x").await?, [reason]);
    Ok(())
}

/// A cancellation takes dependents along if it says so, through any number of jobs. A cycle is refused.
pub async fn a_cascade_cancels_dependents(system: System) -> Checked {
    for name in ["a", "other"] {
        system.at(0, put("needs", name)).await?;
    }
    system.at(0, behind("x", ["a"], DependencyPolicy::Wait)).await?;
    system.at(0, behind("y", ["x", "other"], DependencyPolicy::Fail)).await?;
    system.at(0, behind("z", ["y", "a"], DependencyPolicy::Wait)).await?;
    system.at(0, Put { depends: jids(["x"]), ..put("mail", "loop") }).await?;
    let on = Depend { cycles: Cycles::Accept, ..depend_on("x", ["loop"]) };
    system.at(0, on).await?;
    let refused = Refusal::IsDependency { jid: jid("a"), dependent: jid("x") };
    system.refuses(1, cancel(["a"]), refused).await?;
    let mut listener = system.listen().await?;
    let cascade = |names: &[&str]| Cancel { cascade: true, ..cancel(names) };
    for names in [&["a"][..], &["loop", "x"]] {
        let answer = system.at(1, cascade(names)).await;
        assert!(
            matches!(&answer, Err(BackendError::Refused(Refusal::BadArgument { what, .. })) if what == "cascade"),
            "{answer:?}"
        );
    }
    assert_eq!(system.job("x").await?.dependencies().len(), 2);
    system.at(1, depend_off("x", ["loop"])).await?;
    assert_eq!(system.at(1, cascade(&["a"])).await?, 5);
    let canceled = |name: &str| heard::canceled(name, if name == "a" { "needs" } else { "mail" }, None);
    listener.heard(&system, ["a", "x", "z", "loop", "y"].map(canceled)).await?;
    assert_eq!(system.job("other").await?.dependents, []);
    assert_eq!(system.at(2, cascade(&["a", "other"])).await?, 1);
    Ok(())
}

/// A cascade of too many jobs is refused, and nothing is cancelled.
pub async fn a_cascade_has_a_limit(system: System) -> Checked {
    system.at(0, put("needs", "a")).await?;
    let names: Vec<String> = (0..CASCADE_MAX).map(|number| format!("x{number}")).collect();
    for names in names.chunks(1_000) {
        let puts = names.iter().map(|name| Put { depends: jids(["a"]), ..put("mail", name) });
        let calls = puts.map(|put| Call { now: Some(moment(0)), ..Call::from(put) }).collect();
        for answer in system.backend.execute(calls).await? {
            answer?;
        }
    }
    let cascade = || Cancel { cascade: true, ..cancel(["a"]) };
    let answer = system.at(1, cascade()).await;
    assert!(
        matches!(answer, Err(BackendError::Refused(Refusal::BadArgument { what, .. })) if what == "cascade")
    );
    assert_eq!(system.counts(1, "mail").await?.depends, CASCADE_MAX as u64);
    system.at(1, cancel(["x0"])).await?;
    assert_eq!(system.at(1, cascade()).await?, CASCADE_MAX as u64);
    Ok(())
}
