//! Cancel.

use super::prelude::*;

/// A job can be cancelled wherever it stands, and nothing of it is left.
pub async fn cancelling_removes_a_job_from_wherever_it_stands(system: System) -> Checked {
    for name in ["running", "stalled", "failed"] {
        system.run(0, put("mail", name), "w1").await?;
    }
    system.at(1, timeout(["stalled"])).await?;
    system.at(1, fail("failed", "w1", "g")).await?;
    system.at(1, put("mail", "waiting")).await?;
    system.at(1, Put { delay: seconds(50), ..put("mail", "scheduled") }).await?;
    system.at(1, Put { depends: jids(["waiting"]), ..put("mail", "depends") }).await?;
    for name in ["running", "stalled", "failed", "depends", "waiting", "scheduled"] {
        assert_eq!(system.at(2, cancel([name])).await?, 1, "{name}");
        assert!(!system.has(name).await?, "{name}");
    }
    let counts = system.counts(100, "mail").await?;
    assert_eq!((counts.waiting, counts.running, counts.stalled), (0, 0, 0));
    assert_eq!((counts.scheduled, counts.depends), (0, 0));
    assert!(system.ask(Failures).await?.is_empty());
    assert_eq!(system.worker_jobs(2, "w1").await?, (vec![], vec![]));
    assert_eq!(system.pop(100, "mail", "w2", 9).await?, NONE);
    Ok(())
}

/// A worker whose job was cancelled finds it gone.
pub async fn the_holder_of_a_cancelled_job_finds_it_gone(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, cancel(["j1"])).await?;
    system.refuses(2, heartbeat("j1", "w1"), no::such_job("j1")).await?;
    system.refuses(2, complete("j1", "w1"), no::such_job("j1")).await?;
    Ok(())
}

/// A job that is done cannot be undone by cancelling it.
pub async fn cancelling_passes_over_complete_jobs(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, complete("j1", "w1")).await?;
    assert_eq!(system.ignores(2, cancel(["j1"])).await?, 0);
    Ok(())
}

/// Unknown jobs can be cancelled.
pub async fn cancelling_passes_over_unknown_jobs(system: System) -> Checked {
    system.at(0, put("mail", "j1")).await?;
    assert_eq!(system.ignores(1, cancel(["unknown"])).await?, 0);
    assert_eq!(system.at(1, cancel(["unknown", "j1"])).await?, 1);
    assert!(!system.has("j1").await?);
    Ok(())
}

/// An empty cancel changes nothing.
pub async fn cancelling_nothing_does_nothing(system: System) -> Checked {
    system.at(0, put("mail", "j1")).await?;
    assert_eq!(system.ignores(1, Cancel::new(vec![])).await?, 0);
    Ok(())
}

/// A job named twice is cancelled once.
pub async fn a_job_named_twice_is_cancelled_once(system: System) -> Checked {
    system.at(0, put("mail", "j1")).await?;
    assert_eq!(system.at(1, cancel(["j1", "j1"])).await?, 1);
    assert!(!system.has("j1").await?);
    Ok(())
}

/// A job that another waits for is not cancelled without it, nor is anything else that was named with it.
pub async fn a_dependency_is_not_cancelled_without_its_dependents(system: System) -> Checked {
    for name in ["other", "a"] {
        system.at(0, put("mail", name)).await?;
    }
    system.at(0, Put { depends: jids(["a"]), ..put("mail", "b") }).await?;
    system.at(0, Put { depends: jids(["b"]), ..put("mail", "c") }).await?;
    system.refuses(1, cancel(["a"]), no::needed_by("a", "b")).await?;
    system.refuses(1, cancel(["other", "a", "c"]), no::needed_by("a", "b")).await?;
    system.refuses(1, cancel(["a", "b"]), no::needed_by("b", "c")).await?;
    Ok(())
}

/// Jobs that wait for each other can be cancelled together, named in any order.
pub async fn a_dependency_is_cancelled_with_its_dependents(system: System) -> Checked {
    for order in [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]] {
        system.at(0, put("mail", "a")).await?;
        system.at(0, Put { depends: jids(["a"]), ..put("mail", "b") }).await?;
        system.at(0, Put { depends: jids(["b"]), ..put("mail", "c") }).await?;
        assert_eq!(system.at(1, cancel(order)).await?, 3);
    }
    assert_eq!(system.ask(GetMany { jids: jids(["a", "b", "c"]) }).await?, []);
    Ok(())
}

/// A job that waits for another can be cancelled, and is then no longer in the way of the other.
pub async fn a_cancelled_dependent_is_forgotten_by_its_dependency(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    system.at(0, Put { depends: jids(["a"]), ..put("mail", "b") }).await?;
    assert_eq!(system.at(1, cancel(["b"])).await?, 1);
    assert_eq!(system.job("a").await?.dependents, []);
    assert_eq!(system.at(2, cancel(["a"])).await?, 1);
    Ok(())
}

/// A job that waits for itself can be cancelled: its only dependent goes with it.
pub async fn a_job_that_waits_for_itself_can_be_cancelled(system: System) -> Checked {
    let own = Put { depends: jids(["j1"]), cycles: Cycles::Accept, ..put("mail", "j1") };
    system.at(0, own).await?;
    assert_eq!(system.at(1, cancel(["j1"])).await?, 1);
    assert!(!system.has("j1").await?);
    Ok(())
}

/// A cancelled job that had failed counts no longer as failed, on the day on which it did.
pub async fn cancelling_a_failed_job_takes_it_out_of_its_group_and_figures(system: System) -> Checked {
    for name in ["a", "b"] {
        system.run(0, put("mail", name), "w1").await?;
        system.at(1, fail(name, "w1", "g")).await?;
    }
    system.at(90_000, cancel(["a"])).await?;
    assert_eq!(system.ask(failed("g")).await?, Listed { total: 1, jids: jids(["b"]) });
    let stats = system.stats("mail", 0).await?;
    assert_eq!((stats.failed, stats.failures), (1, 2));
    assert_eq!(system.stats("mail", 90_000).await?.failed, 0);
    Ok(())
}

/// A cancelled job is found under its tags no longer, and does not count for them.
pub async fn a_cancelled_job_loses_its_tags(system: System) -> Checked {
    for name in ["a", "b", "c"] {
        system.at(0, Put { tags: Some(tags(["t"])), ..put("mail", name) }).await?;
    }
    system.at(1, cancel(["b", "c"])).await?;
    assert_eq!(system.ask(tagged("t")).await?, Listed { total: 1, jids: jids(["a"]) });
    assert_eq!(system.top_tags().await?, NONE);
    Ok(())
}

/// A job put after its namesake was cancelled begins anew.
pub async fn a_job_put_after_a_cancellation_begins_anew(system: System) -> Checked {
    let old =
        Put { retries: Some(1), tags: Some(tags(["t"])), priority: Some(priority(3)), ..put("mail", "j1") };
    system.at(0, old).await?;
    system.at(1, cancel(["j1"])).await?;
    assert_eq!(system.at(2, put("mail", "j1")).await?, PutReply::Created);
    let job = system.job("j1").await?;
    assert_eq!(job.history, [entry(2, was_put("mail"))]);
    assert_eq!((job.retries, job.priority, job.tags), (5, priority(0), vec![]));
    Ok(())
}
