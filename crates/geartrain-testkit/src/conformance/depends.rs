//! Dependencies.

use super::prelude::*;

/// A put of a job with dependencies.
fn blocked<N: AsRef<str>>(name: &str, on: impl IntoIterator<Item = N>) -> Put {
    Put { depends: jids(on), ..put("mail", name) }
}

/// Puts jobs into a queue of their own, to be dependencies of others.
async fn put_needed<const N: usize>(system: &System, names: [&str; N]) -> Result<(), BackendError> {
    for name in names {
        system.at(0, put("needs", name)).await?;
    }
    Ok(())
}

/// Completes the first job of the queue of dependencies.
async fn finish(system: &System, now: f64, name: &str) -> Checked {
    assert_eq!(system.pop(now, "needs", "w1", 1).await?, [name]);
    system.at(now, complete(name, "w1")).await?;
    Ok(())
}

/// A job with open dependencies is not handed out; both sides list each other, sorted by jid.
pub async fn a_job_waits_for_its_dependencies(system: System) -> Checked {
    put_needed(&system, ["b", "a"]).await?;
    system.at(1, blocked("y", ["b", "a"])).await?;
    system.at(2, blocked("x", ["a"])).await?;
    let job = system.job("y").await?;
    assert_eq!(texts(job.dependencies()), ["a", "b"]);
    assert_eq!(job.state, JobState::Depends { on: jids(["a", "b"]), due: None });
    assert_eq!((job.queue, job.qless.state), (Some(queue("mail")), "depends"));
    assert_eq!(texts(system.job("a").await?.dependents), ["x", "y"]);
    assert_eq!(texts(system.job("b").await?.dependents), ["y"]);
    assert_eq!(system.pop(3, "mail", "w1", 5).await?, NONE);
    Ok(())
}

/// A job is released when its last dependency completes.
pub async fn the_last_completion_releases_a_job(system: System) -> Checked {
    put_needed(&system, ["a", "b"]).await?;
    system.at(1, blocked("x", ["a", "b"])).await?;
    finish(&system, 2.0, "a").await?;
    assert_eq!(texts(system.job("x").await?.dependencies()), ["b"]);
    assert_eq!(system.pop(3, "mail", "w1", 1).await?, NONE);
    finish(&system, 4.0, "b").await?;
    let job = system.job("x").await?;
    assert_eq!((job.state, job.history.len()), (JobState::Waiting, 1));
    assert_eq!(system.job("a").await?.dependents, []);
    assert_eq!(system.pop(5, "mail", "w1", 1).await?, ["x"]);
    Ok(())
}

/// A chain of jobs runs link by link.
pub async fn a_chain_is_released_one_job_at_a_time(system: System) -> Checked {
    put_needed(&system, ["a"]).await?;
    system.at(0, Put { depends: jids(["a"]), ..put("needs", "b") }).await?;
    system.at(0, Put { depends: jids(["b"]), ..put("needs", "c") }).await?;
    for (now, name) in [(1.0, "a"), (2.0, "b"), (3.0, "c")] {
        finish(&system, now, name).await?;
    }
    Ok(())
}

/// Unknown and complete jobs are no dependencies.
pub async fn unknown_and_complete_dependencies_count_as_done(system: System) -> Checked {
    put_needed(&system, ["done", "open"]).await?;
    finish(&system, 0.0, "done").await?;
    system.at(1, blocked("free", ["done", "unknown"])).await?;
    system.at(1, blocked("held", ["done", "unknown", "open"])).await?;
    assert_eq!(system.state("free").await?, StateName::Waiting);
    assert_eq!(texts(system.job("held").await?.dependencies()), ["open"]);
    Ok(())
}

/// A delayed job whose dependencies are all done is still delayed.
pub async fn a_delay_is_kept_when_the_dependencies_are_done(system: System) -> Checked {
    system.at(0, Put { delay: seconds(10), ..blocked("x", ["unknown"]) }).await?;
    assert_eq!(system.job("x").await?.state, JobState::Scheduled { due: moment(10) });
    Ok(())
}

/// A job that advances to another queue is not complete, and releases no dependents.
pub async fn a_job_that_advances_releases_no_dependents(system: System) -> Checked {
    put_needed(&system, ["a"]).await?;
    system.at(0, blocked("x", ["a"])).await?;
    system.take(1, "needs", "w1").await?;
    system.at(2, advance("a", "w1", "later")).await?;
    assert_eq!(system.state("x").await?, StateName::Depends);
    system.take(3, "later", "w1").await?;
    system.at(4, complete("a", "w1")).await?;
    assert_eq!(system.state("x").await?, StateName::Waiting);
    Ok(())
}

/// A dependency that fails, times out, is retried or put again stays a dependency.
pub async fn only_a_completion_releases_a_job(system: System) -> Checked {
    put_needed(&system, ["a"]).await?;
    system.at(0, blocked("x", ["a"])).await?;
    system.take(1, "needs", "w1").await?;
    system.at(2, retry("a", "w1")).await?;
    system.take(3, "needs", "w1").await?;
    system.at(4, timeout(["a"])).await?;
    system.take(5, "needs", "w1").await?;
    system.at(6, fail("a", "w1", "g")).await?;
    system.at(7, put_again("needs", "a")).await?;
    assert_eq!(system.job("x").await?.state, JobState::Depends { on: jids(["a"]), due: None });
    assert_eq!(texts(system.job("a").await?.dependents), ["x"]);
    finish(&system, 8.0, "a").await?;
    assert_eq!(system.state("x").await?, StateName::Waiting);
    Ok(())
}

/// A blocked job that is put again without dependencies stays blocked, also in another queue.
pub async fn putting_again_without_dependencies_keeps_a_job_blocked(system: System) -> Checked {
    put_needed(&system, ["a"]).await?;
    system.at(0, blocked("x", ["a"])).await?;
    system.at(1, put_again("post", "x")).await?;
    let job = system.job("x").await?;
    assert_eq!(job.state, JobState::Depends { on: jids(["a"]), due: None });
    assert_eq!(system.counts(1, "mail").await?.depends, 0);
    assert_eq!(system.list(1, Listing::Depends(queue("post"))).await?, ["x"]);
    finish(&system, 2.0, "a").await?;
    assert_eq!(system.pop(3, "post", "w1", 1).await?, ["x"]);
    Ok(())
}

/// A blocked job that is put again with dependencies has those and no others.
pub async fn putting_again_with_dependencies_replaces_them(system: System) -> Checked {
    put_needed(&system, ["a", "b", "c"]).await?;
    system.at(0, blocked("x", ["a", "b"])).await?;
    system.at(1, Put { depends: jids(["b", "c"]), ..put_again("mail", "x") }).await?;
    assert_eq!(texts(system.job("x").await?.dependencies()), ["b", "c"]);
    assert_eq!(system.job("a").await?.dependents, []);
    assert_eq!(texts(system.job("c").await?.dependents), ["x"]);
    system.at(2, Put { depends: jids(["unknown"]), ..put_again("mail", "x") }).await?;
    assert_eq!(system.state("x").await?, StateName::Waiting);
    assert_eq!(system.job("b").await?.dependents, []);
    Ok(())
}

/// A put can give dependencies to a waiting or running job.
pub async fn putting_again_can_block_a_job(system: System) -> Checked {
    put_needed(&system, ["a"]).await?;
    system.run(0, put("mail", "x"), "w1").await?;
    system.at(1, Put { depends: jids(["a"]), ..put_again("mail", "x") }).await?;
    assert_eq!(system.state("x").await?, StateName::Depends);
    assert_eq!(system.pop(2, "mail", "w1", 1).await?, NONE);
    Ok(())
}

/// The delay of a blocked job is counted from its put, and holds it back when it is released.
pub async fn a_blocked_job_keeps_its_due_time_until_it_is_released(system: System) -> Checked {
    put_needed(&system, ["a"]).await?;
    system.at(1, Put { delay: seconds(50), ..blocked("x", ["a"]) }).await?;
    system.at(1, Put { delay: seconds(5), ..blocked("y", ["a"]) }).await?;
    assert_eq!(system.job("x").await?.state, JobState::Depends { on: jids(["a"]), due: Some(moment(51)) });
    finish(&system, 20.0, "a").await?;
    assert_eq!(system.job("x").await?.state, JobState::Scheduled { due: moment(51) });
    assert_eq!(system.job("y").await?.state, JobState::Scheduled { due: moment(6) });
    assert_eq!(system.pop(20, "mail", "w1", 5).await?, ["y"]);
    assert_eq!(system.pop(51, "mail", "w1", 5).await?, ["x"]);
    Ok(())
}

/// The stored due time outlives a put without a delay, and counts at the next release.
pub async fn a_due_time_set_aside_outlives_a_put_without_a_delay(system: System) -> Checked {
    put_needed(&system, ["a"]).await?;
    system.at(0, Put { delay: seconds(100), ..blocked("x", ["a"]) }).await?;
    system.at(1, put_again("mail", "x")).await?;
    finish(&system, 2.0, "a").await?;
    assert_eq!(system.job("x").await?.state, JobState::Scheduled { due: moment(100) });
    Ok(())
}

/// A later put with a delay replaces the stored due time, and a release consumes it.
pub async fn a_due_time_set_aside_is_used_once(system: System) -> Checked {
    put_needed(&system, ["a", "b"]).await?;
    system.at(0, Put { delay: seconds(100), ..blocked("x", ["a"]) }).await?;
    system.at(1, Put { delay: seconds(10), ..put_again("mail", "x") }).await?;
    finish(&system, 2.0, "a").await?;
    assert_eq!(system.job("x").await?.state, JobState::Scheduled { due: moment(11) });
    system.at(3, Put { depends: jids(["b"]), ..put_again("mail", "x") }).await?;
    finish(&system, 4.0, "b").await?;
    assert_eq!(system.state("x").await?, StateName::Waiting);
    Ok(())
}

/// A job whose dependencies are removed runs at once; its due time stays stored.
pub async fn freeing_a_job_ignores_its_due_time(system: System) -> Checked {
    put_needed(&system, ["a", "b"]).await?;
    system.at(0, Put { delay: seconds(100), ..blocked("x", ["a"]) }).await?;
    system.at(1, depend_off_all("x")).await?;
    assert_eq!(system.state("x").await?, StateName::Waiting);
    system.at(2, Put { depends: jids(["b"]), ..put_again("mail", "x") }).await?;
    system.at(2, cancel(["a"])).await?;
    finish(&system, 3.0, "b").await?;
    assert_eq!(system.job("x").await?.state, JobState::Scheduled { due: moment(100) });
    Ok(())
}

/// A blocked job can get more dependencies, but not unknown or complete ones.
pub async fn a_blocked_job_can_wait_for_more(system: System) -> Checked {
    put_needed(&system, ["done", "a", "b"]).await?;
    finish(&system, 0.0, "done").await?;
    system.at(0, blocked("x", ["b"])).await?;
    system.at(1, depend_on("x", ["a", "b", "unknown", "done"])).await?;
    assert_eq!(texts(system.job("x").await?.dependencies()), ["a", "b"]);
    assert_eq!(texts(system.job("a").await?.dependents), ["x"]);
    finish(&system, 2.0, "a").await?;
    finish(&system, 2.0, "b").await?;
    assert_eq!(system.state("x").await?, StateName::Waiting);
    Ok(())
}

/// Dependencies can be removed one by one; the job runs when none is left.
pub async fn a_blocked_job_can_wait_for_less(system: System) -> Checked {
    put_needed(&system, ["a", "b", "c"]).await?;
    system.at(0, blocked("x", ["a", "b", "c"])).await?;
    system.at(1, depend_off("x", ["b", "unknown"])).await?;
    assert_eq!(texts(system.job("x").await?.dependencies()), ["a", "c"]);
    assert_eq!(system.job("b").await?.dependents, []);
    system.at(2, depend_off("x", ["a", "c"])).await?;
    let job = system.job("x").await?;
    assert_eq!((job.state, job.history.len()), (JobState::Waiting, 1));
    assert_eq!(system.pop(3, "mail", "w1", 1).await?, ["x"]);
    Ok(())
}

/// All dependencies can be removed at once; they then no longer list the job.
pub async fn a_blocked_job_can_be_freed_of_all(system: System) -> Checked {
    put_needed(&system, ["a", "b"]).await?;
    system.at(0, blocked("x", ["a", "b"])).await?;
    system.at(1, depend_off_all("x")).await?;
    assert_eq!(system.state("x").await?, StateName::Waiting);
    assert_eq!(system.job("a").await?.dependents, []);
    assert_eq!(system.job("b").await?.dependents, []);
    Ok(())
}

/// Only a blocked job can gain or lose dependencies.
pub async fn a_job_that_is_not_blocked_cannot_gain_or_lose_dependencies(system: System) -> Checked {
    put_needed(&system, ["a"]).await?;
    system.run(0, put("mail", "running"), "w1").await?;
    system.at(0, put("mail", "waiting")).await?;
    system.at(0, Put { delay: seconds(50), ..put("mail", "scheduled") }).await?;
    for (name, state) in [
        ("waiting", StateName::Waiting),
        ("running", StateName::Running),
        ("scheduled", StateName::Scheduled),
    ] {
        system.refuses(1, depend_on(name, ["a"]), no::not_blocked(name, state)).await?;
        system.refuses(1, depend_off(name, ["a"]), no::not_blocked(name, state)).await?;
        system.refuses(1, depend_off_all(name), no::not_blocked(name, state)).await?;
    }
    Ok(())
}

/// A caller that accepts cycles gets a job that depends on itself and never runs.
pub async fn a_cycle_can_be_asked_for(system: System) -> Checked {
    system.at(0, Put { cycles: Cycles::Accept, ..blocked("self", ["self"]) }).await?;
    assert_eq!(texts(system.job("self").await?.dependencies()), ["self"]);
    system.at(0, put("mail", "a")).await?;
    system.at(0, blocked("b", ["a"])).await?;
    system.at(1, Put { depends: jids(["b"]), cycles: Cycles::Accept, ..put_again("mail", "a") }).await?;
    assert_eq!(texts(system.job("a").await?.dependencies()), ["b"]);
    system.at(1, put("mail", "x")).await?;
    system.at(1, blocked("c", ["x"])).await?;
    system.at(2, Depend { cycles: Cycles::Accept, ..depend_on("c", ["c"]) }).await?;
    assert_eq!(system.pop(3, "mail", "w1", 5).await?, ["x"]);
    system.at(4, complete("x", "w1")).await?;
    assert_eq!(texts(system.job("c").await?.dependencies()), ["c"]);
    assert_eq!(system.pop(5, "mail", "w1", 5).await?, NONE);
    Ok(())
}
