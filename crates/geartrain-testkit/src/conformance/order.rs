//! The order of waiting jobs.

use super::prelude::*;

/// Puts a job of this priority.
async fn put_with(system: &System, now: f64, name: &str, value: f64) -> Checked {
    system.at(now, Put { priority: Some(priority(value)), ..put("mail", name) }).await?;
    Ok(())
}

/// What matters more goes first, whenever it came.
pub async fn a_higher_priority_goes_first(system: System) -> Checked {
    for (now, (name, value)) in
        [("low", -1.0), ("none", 0.0), ("high", 10.0), ("middle", 5.5)].into_iter().enumerate()
    {
        put_with(&system, now as f64, name, value).await?;
    }
    assert_eq!(system.pop(9, "mail", "w1", 4).await?, ["high", "middle", "none", "low"]);
    Ok(())
}

/// Among equals the order is that of the moments at which they were put, not of the calls.
pub async fn among_equals_the_earlier_moment_goes_first(system: System) -> Checked {
    for (now, name) in [(5, "a"), (3, "b"), (4, "c")] {
        system.at(now, put("mail", name)).await?;
    }
    assert_eq!(system.pop(9, "mail", "w1", 3).await?, ["b", "c", "a"]);
    Ok(())
}

/// Jobs put at one moment keep the order in which they came. Qless would turn it into one of ids.
pub async fn among_equals_of_one_moment_the_first_to_arrive_goes_first(system: System) -> Checked {
    for name in ["b", "a", "c"] {
        system.at(0, put("mail", name)).await?;
    }
    assert_eq!(system.pop(0, "mail", "w1", 3).await?, ["b", "a", "c"]);
    Ok(())
}

/// A little more priority is more, however much later the job came. In Qless years of waiting would outweigh
/// it.
pub async fn priorities_never_mix_with_time(system: System) -> Checked {
    put_with(&system, 0.0, "early", 0.0).await?;
    put_with(&system, 2e9, "late", 0.01).await?;
    // In one double two billion seconds weigh as much as a fifth of a priority.
    let expected = match system.order {
        Order::Exact => ["late", "early"],
        Order::OneDouble => ["early", "late"],
    };
    assert_eq!(system.pop(2e9, "mail", "w1", 2).await?, expected);
    Ok(())
}

/// Moments tell equals apart even where priorities are so large that a sum of both would not show them.
pub async fn huge_priorities_do_not_blur_the_moments(system: System) -> Checked {
    put_with(&system, 2.0, "second", 1e15).await?;
    put_with(&system, 1.0, "first", 1e15).await?;
    // A double cannot tell these times apart, so the first to arrive goes first.
    let expected = match system.order {
        Order::Exact => ["first", "second"],
        Order::OneDouble => ["second", "first"],
    };
    assert_eq!(system.pop(3, "mail", "w1", 2).await?, expected);
    Ok(())
}

/// A job that comes due gets the moment at which it was moved, so those that waited by then go first.
pub async fn a_due_job_joins_behind_those_that_wait(system: System) -> Checked {
    system.at(0, Put { delay: seconds(10), ..put("mail", "due") }).await?;
    system.at(12, put("mail", "waiting")).await?;
    assert_eq!(system.pop(15, "mail", "w1", 2).await?, ["waiting", "due"]);
    Ok(())
}

/// Jobs that one call moves keep the order in which they were due.
pub async fn due_jobs_moved_together_keep_the_order_of_their_due_times(system: System) -> Checked {
    for (name, delay) in [("b", 7), ("a", 5), ("c", 6)] {
        system.at(0, Put { delay: seconds(delay), ..put("mail", name) }).await?;
    }
    assert_eq!(system.pop(20, "mail", "w1", 3).await?, ["a", "c", "b"]);
    Ok(())
}

/// Jobs due at one moment keep the order in which they were scheduled.
pub async fn jobs_due_at_one_moment_keep_the_order_of_their_puts(system: System) -> Checked {
    for name in ["b", "c", "a"] {
        system.at(0, Put { delay: seconds(5), ..put("mail", name) }).await?;
    }
    assert_eq!(system.pop(5, "mail", "w1", 3).await?, system.equals(["b", "c", "a"]));
    Ok(())
}

/// A pop moves as many due jobs as it wants, the first due first: one that matters more may be missed.
pub async fn a_pop_moves_no_more_due_jobs_than_it_wants(system: System) -> Checked {
    system.at(0, Put { delay: seconds(5), ..put("mail", "early") }).await?;
    system.at(0, Put { delay: seconds(6), priority: Some(priority(9)), ..put("mail", "important") }).await?;
    assert_eq!(system.pop(10, "mail", "w1", 1).await?, ["early"]);
    assert_eq!(system.state("important").await?, StateName::Scheduled);
    assert_eq!(system.pop(10, "mail", "w1", 1).await?, ["important"]);
    Ok(())
}

/// To set a priority, even to what it is, puts a waiting job ahead of its equals.
pub async fn setting_the_priority_puts_a_waiting_job_ahead_of_its_equals(system: System) -> Checked {
    for (now, name) in [(1, "a"), (2, "b"), (3, "c")] {
        system.at(now, put("mail", name)).await?;
    }
    system.at(4, set_priority("c", 0)).await?;
    system.at(5, set_priority("b", 0)).await?;
    assert_eq!(system.pop(9, "mail", "w1", 3).await?, ["c", "b", "a"]);
    Ok(())
}

/// A priority that changes changes the job's place.
pub async fn a_changed_priority_changes_the_order(system: System) -> Checked {
    put_with(&system, 1.0, "a", 5.0).await?;
    put_with(&system, 2.0, "b", 3.0).await?;
    put_with(&system, 3.0, "c", 1.0).await?;
    system.at(4, set_priority("c", 4)).await?;
    assert_eq!(system.job("c").await?.priority, priority(4));
    system.at(4, set_priority("a", 2.5)).await?;
    assert_eq!(system.pop(9, "mail", "w1", 3).await?, ["c", "b", "a"]);
    Ok(())
}

/// The priority of a job that does not wait is only written down, and counts when it comes to wait.
pub async fn the_priority_of_a_job_elsewhere_counts_once_it_waits(system: System) -> Checked {
    system.run(0, put("mail", "running"), "w1").await?;
    system.at(0, Put { delay: seconds(10), ..put("mail", "scheduled") }).await?;
    system.at(0, put("mail", "plain")).await?;
    system.at(1, set_priority("running", 2)).await?;
    system.at(1, set_priority("scheduled", 1)).await?;
    assert_eq!(system.state("running").await?, StateName::Running);
    assert_eq!(system.job("scheduled").await?.state, JobState::Scheduled { due: moment(10) });
    system.at(2, retry("running", "w1")).await?;
    assert_eq!(system.pop(10, "mail", "w2", 3).await?, ["running", "scheduled", "plain"]);
    Ok(())
}

/// Jobs taken away from their workers go before everything else, in the order in which they were taken away.
pub async fn timed_out_jobs_go_before_all_others(system: System) -> Checked {
    for name in ["a", "b"] {
        system.run(0, Put { priority: Some(priority(-5)), ..put("mail", name) }, "w1").await?;
    }
    put_with(&system, 0.0, "important", 1000.0).await?;
    system.at(1, timeout(["b", "a"])).await?;
    assert_eq!(system.pop(2, "mail", "w2", 3).await?, ["b", "a", "important"]);
    Ok(())
}

/// A timed out job whose priority is set stands where its priority says.
pub async fn setting_the_priority_of_a_timed_out_job_makes_it_ordinary(system: System) -> Checked {
    system.run(0, put("mail", "late"), "w1").await?;
    put_with(&system, 0.0, "important", 1.0).await?;
    system.at(1, put("mail", "plain")).await?;
    system.at(2, timeout(["late"])).await?;
    system.at(3, set_priority("late", 0)).await?;
    assert_eq!(system.pop(4, "mail", "w2", 3).await?, ["important", "late", "plain"]);
    Ok(())
}

/// A job given back, revived, sent on or released stands where one put at that moment would.
pub async fn a_job_that_returns_joins_at_that_moment(system: System) -> Checked {
    system.run(0, put("mail", "retried"), "w1").await?;
    system.run(0, put("mail", "unfailed"), "w1").await?;
    system.run(0, put("post", "advanced"), "w1").await?;
    system.run(0, put("post", "needed"), "w1").await?;
    system.at(0, Put { depends: jids(["needed"]), ..put("mail", "released") }).await?;
    system.at(1, fail("unfailed", "w1", "g")).await?;
    for (now, name) in [(1, "p1"), (3, "p3"), (5, "p5"), (7, "p7"), (9, "p9")] {
        system.at(now, put("mail", name)).await?;
    }
    system.at(8, complete("needed", "w1")).await?;
    system.at(6, advance("advanced", "w1", "mail")).await?;
    system.at(4, unfail("mail", "g", 1)).await?;
    system.at(2, retry("retried", "w1")).await?;
    let order = ["p1", "retried", "p3", "unfailed", "p5", "advanced", "p7", "released", "p9"];
    assert_eq!(system.pop(10, "mail", "w2", 9).await?, order);
    Ok(())
}

/// Dependents released by one completion arrive in the order of their ids.
pub async fn dependents_released_together_go_in_the_order_of_their_ids(system: System) -> Checked {
    system.run(0, put("post", "needed"), "w1").await?;
    for name in ["b", "c", "a"] {
        system.at(0, Put { depends: jids(["needed"]), ..put("mail", name) }).await?;
    }
    system.at(1, complete("needed", "w1")).await?;
    assert_eq!(system.pop(2, "mail", "w1", 3).await?, ["a", "b", "c"]);
    Ok(())
}

/// Jobs of a group come back the oldest first.
pub async fn unfailed_jobs_come_back_the_oldest_failure_first(system: System) -> Checked {
    for name in ["b", "c", "a"] {
        system.run(0, put("mail", name), "w1").await?;
        system.at(1, fail(name, "w1", "g")).await?;
    }
    assert_eq!(system.at(2, unfail("mail", "g", 25)).await?, 3);
    assert_eq!(system.pop(3, "mail", "w1", 3).await?, ["b", "c", "a"]);
    Ok(())
}

/// A job that is put again has a new place, behind its equals.
pub async fn a_job_put_again_goes_to_the_back(system: System) -> Checked {
    for name in ["a", "b", "c"] {
        system.at(0, put("mail", name)).await?;
    }
    system.at(0, put_again("mail", "a")).await?;
    assert_eq!(system.pop(1, "mail", "w1", 3).await?, ["b", "c", "a"]);
    Ok(())
}
