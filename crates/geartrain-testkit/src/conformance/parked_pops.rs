//! Parked pops: a worker blocked in a pop with a wait. These cases move the backend's own clock.

use super::prelude::*;

/// A pop with a wait returns an available job at once.
pub async fn a_parked_pop_returns_at_once_if_there_is_a_job(system: System) -> Checked {
    system.clock.set(100);
    for name in ["a", "b"] {
        system.now(put("mail", name)).await?;
    }
    let reply = system.backend.pop_or_wait(pop_many("mail", "w1", 5), seconds(600)).await?;
    assert_eq!(reply.jobs[0].lock.expires, moment(160));
    assert_eq!(popped_jids(reply), ["a", "b"]);
    assert_eq!(system.now(heartbeat("a", "w1")).await?, moment(160));
    Ok(())
}

/// A pop with no wait on an empty queue returns nothing at once.
pub async fn a_pop_with_no_wait_is_answered_at_once(system: System) -> Checked {
    let reply = system.backend.pop_or_wait(pop("mail", "w1"), Seconds::ZERO).await?;
    assert_eq!(popped_jids(reply), NONE);
    Ok(())
}

/// A put serves a parked pop, whose lock begins at that time.
pub async fn a_waiting_worker_gets_a_job_that_is_put(system: System) -> Checked {
    let waiter = system.waits(pop("mail", "w1"), 600).await?;
    system.clock.set(30);
    system.now(put("mail", "j1")).await?;
    assert_eq!(waiter.served(&system).await?, ["j1"]);
    assert_eq!(system.job("j1").await?.qless.expires, moment(90));
    Ok(())
}

/// A put into one queue wakes no pop that is parked on another.
pub async fn a_put_wakes_no_pop_parked_on_another_queue(system: System) -> Checked {
    let mut waiter = system.waits(pop("mail", "w1"), 600).await?;
    system.now(put("post", "j1")).await?;
    waiter.still_waits(&system).await?;
    assert_eq!(system.state("j1").await?, StateName::Waiting);
    Ok(())
}

/// Parked pops are served in order of arrival, one job each.
pub async fn waiting_workers_are_served_in_the_order_they_came(system: System) -> Checked {
    let first = system.waits(pop("mail", "w1"), 600).await?;
    let mut second = system.waits(pop("mail", "w2"), 600).await?;
    let mut third = system.waits(pop("mail", "w3"), 600).await?;
    system.now(put("mail", "a")).await?;
    assert_eq!(first.served(&system).await?, ["a"]);
    second.still_waits(&system).await?;
    third.still_waits(&system).await?;
    system.now(put("mail", "b")).await?;
    assert_eq!(second.served(&system).await?, ["b"]);
    third.still_waits(&system).await?;
    system.now(put("mail", "c")).await?;
    assert_eq!(third.served(&system).await?, ["c"]);
    Ok(())
}

/// Several jobs put by one batch go to as many parked pops.
pub async fn a_batch_of_puts_serves_as_many_workers(system: System) -> Checked {
    let first = system.waits(pop("mail", "w1"), 600).await?;
    let second = system.waits(pop("mail", "w2"), 600).await?;
    let mut third = system.waits(pop("mail", "w3"), 600).await?;
    let batch = ["a", "b"].map(|name| Call::from(put("mail", name)));
    system.backend.execute(batch.into()).await?;
    assert_eq!(first.served(&system).await?, ["a"]);
    assert_eq!(second.served(&system).await?, ["b"]);
    third.still_waits(&system).await?;
    Ok(())
}

/// A parked pop of several jobs is served by the first that arrives.
pub async fn one_job_is_enough_to_end_a_wait_for_several(system: System) -> Checked {
    let waiter = system.waits(pop_many("mail", "w1", 5), 600).await?;
    system.now(put("mail", "a")).await?;
    assert_eq!(waiter.served(&system).await?, ["a"]);
    Ok(())
}

/// Two pops parked on the same queues get one job each, from any of them.
pub async fn workers_that_wait_for_several_queues_get_one_job_each(system: System) -> Checked {
    let wanted = |by| Pop { queues: queues(["x", "y"]), ..pop("x", by) };
    let first = system.waits(wanted("w1"), 600).await?;
    let mut second = system.waits(wanted("w2"), 600).await?;
    system.now(put("y", "a")).await?;
    assert_eq!(first.served(&system).await?, ["a"]);
    second.still_waits(&system).await?;
    system.now(put("x", "b")).await?;
    assert_eq!(second.served(&system).await?, ["b"]);
    assert_eq!(system.job("a").await?.qless.worker, Some(worker("w1")));
    assert_eq!(system.job("b").await?.qless.worker, Some(worker("w2")));
    Ok(())
}

/// A pop served from one queue is no longer parked on the other.
pub async fn a_served_worker_waits_nowhere_else(system: System) -> Checked {
    let wanted = Pop { queues: queues(["x", "y"]), ..pop("x", "w1") };
    let waiter = system.waits(wanted, 600).await?;
    system.now(put("x", "a")).await?;
    assert_eq!(waiter.served(&system).await?, ["a"]);
    system.now(put("y", "b")).await?;
    assert_eq!(system.state("b").await?, StateName::Waiting);
    Ok(())
}

/// A parked pop times out with nothing, and not early.
pub async fn a_wait_ends_when_its_time_is_over(system: System) -> Checked {
    let mut waiter = system.waits(pop("mail", "w1"), 30).await?;
    system.clock.set(29);
    waiter.still_waits(&system).await?;
    system.clock.set(30);
    assert_eq!(waiter.served(&system).await?, NONE);
    system.now(put("mail", "j1")).await?;
    assert_eq!(system.state("j1").await?, StateName::Waiting);
    Ok(())
}

/// Of two waits the shorter ends first, although it began last.
pub async fn a_shorter_wait_ends_first(system: System) -> Checked {
    let mut long = system.waits(pop("mail", "w1"), 60).await?;
    let short = system.waits(pop("mail", "w2"), 10).await?;
    system.clock.set(10);
    assert_eq!(short.served(&system).await?, NONE);
    long.still_waits(&system).await?;
    system.clock.set(60);
    assert_eq!(long.served(&system).await?, NONE);
    Ok(())
}

/// A job that comes due goes to a parked pop without another command.
pub async fn a_waiting_worker_gets_a_job_that_comes_due(system: System) -> Checked {
    let mut waiter = system.waits(pop("mail", "w1"), 600).await?;
    system.now(Put { delay: seconds(50), ..put("mail", "j1") }).await?;
    system.clock.set(49);
    waiter.still_waits(&system).await?;
    system.clock.set(50);
    assert_eq!(waiter.served(&system).await?, ["j1"]);
    assert_eq!(system.job("j1").await?.qless.expires, moment(110));
    Ok(())
}

/// So does a recurring job's next child.
pub async fn a_waiting_worker_gets_a_child_that_comes_due(system: System) -> Checked {
    let mut waiter = system.waits(pop("mail", "w1"), 600).await?;
    system.now(Recur { offset: seconds(50), ..recur("mail", "r", 10) }).await?;
    waiter.still_waits(&system).await?;
    system.clock.set(50);
    assert_eq!(waiter.served(&system).await?, ["r-1"]);
    Ok(())
}

/// A job with an expired lock goes to a parked pop: at once without a grace period.
pub async fn a_waiting_worker_takes_over_an_expired_lock(system: System) -> Checked {
    system.ask(set("grace-period", "0")).await?;
    system.now(put("mail", "j1")).await?;
    system.now(pop("mail", "w1")).await?;
    let mut waiter = system.waits(pop("mail", "w2"), 600).await?;
    system.clock.set(59);
    waiter.still_waits(&system).await?;
    system.clock.set(60);
    assert_eq!(waiter.served(&system).await?, ["j1"]);
    assert_eq!(system.job("j1").await?.remaining, 4);
    Ok(())
}

/// With a grace period the holder is warned at expiry, and the parked pop gets the job after it.
pub async fn a_waiting_worker_takes_over_after_the_grace(system: System) -> Checked {
    system.now(put("mail", "j1")).await?;
    system.now(pop("mail", "w1")).await?;
    let mut listener = system.listen().await?;
    let mut waiter = system.waits(pop("mail", "w2"), 600).await?;
    system.clock.set(60);
    assert_eq!(listener.next(&system).await?, heard::lock_lost("j1", "w1"));
    waiter.still_waits(&system).await?;
    system.clock.set(70);
    assert_eq!(waiter.served(&system).await?, ["j1"]);
    Ok(())
}

/// Every command that brings a job into a queue serves the pops parked there.
pub async fn a_waiting_worker_gets_a_job_however_it_comes(system: System) -> Checked {
    for (now, name) in ["retried", "timed-out", "failed", "advanced", "needed"].into_iter().enumerate() {
        system.clock.set(u32::try_from(now)?);
        system.now(put("mail", name)).await?;
        system.now(pop("mail", "w1")).await?;
    }
    system.now(Put { depends: jids(["needed"]), ..put("mail", "released") }).await?;
    system.now(Put { depends: jids(["needed"]), ..put("mail", "freed") }).await?;
    system.now(fail("failed", "w1", "g")).await?;
    let wanted = || pop("mail", "w2");

    let waiter = system.waits(wanted(), 600).await?;
    system.now(retry("retried", "w1")).await?;
    assert_eq!(waiter.served(&system).await?, ["retried"]);

    let waiter = system.waits(wanted(), 600).await?;
    system.now(timeout(["timed-out"])).await?;
    assert_eq!(waiter.served(&system).await?, ["timed-out"]);

    let waiter = system.waits(wanted(), 600).await?;
    system.now(unfail("mail", "g", 1)).await?;
    assert_eq!(waiter.served(&system).await?, ["failed"]);

    let waiter = system.waits(wanted(), 600).await?;
    system.now(advance("advanced", "w1", "mail")).await?;
    assert_eq!(waiter.served(&system).await?, ["advanced"]);

    let waiter = system.waits(wanted(), 600).await?;
    system.now(depend_off_all("freed")).await?;
    assert_eq!(waiter.served(&system).await?, ["freed"]);

    let waiter = system.waits(wanted(), 600).await?;
    system.now(complete("needed", "w1")).await?;
    assert_eq!(waiter.served(&system).await?, ["released"]);
    Ok(())
}

/// Pops stay parked while their queue is paused, and are served when it is resumed.
pub async fn pops_parked_on_a_paused_queue_are_served_when_it_resumes(system: System) -> Checked {
    system.now(pause("mail")).await?;
    system.now(put("mail", "j1")).await?;
    let mut waiter = system.waits(pop("mail", "w1"), 600).await?;
    system.now(put("mail", "j2")).await?;
    waiter.still_waits(&system).await?;
    system.now(resume("mail")).await?;
    assert_eq!(waiter.served(&system).await?, ["j1"]);
    Ok(())
}

/// Pops stay parked while the concurrency limit is reached, and are served when a slot is free or the limit
/// rises.
pub async fn pops_parked_at_the_concurrency_limit_are_served_when_a_slot_is_free(system: System) -> Checked {
    system.now(set("mail-max-concurrency", "1")).await?;
    for name in ["a", "b", "c"] {
        system.now(put("mail", name)).await?;
    }
    system.now(pop("mail", "w1")).await?;
    let waiter = system.waits(pop("mail", "w2"), 600).await?;
    system.now(complete("a", "w1")).await?;
    assert_eq!(waiter.served(&system).await?, ["b"]);
    let waiter = system.waits(pop("mail", "w3"), 600).await?;
    system.now(set("mail-max-concurrency", "2")).await?;
    assert_eq!(waiter.served(&system).await?, ["c"]);
    Ok(())
}

/// A concurrency slot is free, and the holder warned, as soon as the deadline is past.
pub async fn pops_parked_at_the_concurrency_limit_are_served_when_a_lock_expires(system: System) -> Checked {
    system.now(set("mail-max-concurrency", "1")).await?;
    for name in ["a", "b"] {
        system.now(put("mail", name)).await?;
    }
    system.now(pop("mail", "w1")).await?;
    let mut waiter = system.waits(pop("mail", "w2"), 600).await?;
    system.clock.set(60);
    waiter.still_waits(&system).await?;
    system.clock.set(61);
    assert_eq!(waiter.served(&system).await?, ["b"]);
    Ok(())
}

/// A parked pop of zero jobs keeps no job from another.
pub async fn a_parked_pop_of_zero_jobs_blocks_no_other(system: System) -> Checked {
    let nothing = system.backend.pop_or_wait(pop_many("mail", "w1", 0), seconds(600));
    let mut nothing = IdleWorker { reply: nothing };
    nothing.look().await;
    let waiter = system.waits(pop("mail", "w2"), 600).await?;
    system.now(put("mail", "j1")).await?;
    // Were the job kept from it, the worker would now be answered with nothing rather than wait for ever.
    system.clock.set(600);
    assert_eq!(waiter.served(&system).await?, ["j1"]);
    Ok(())
}

/// A dropped parked pop takes no job; the next one gets it.
pub async fn a_worker_that_stops_waiting_takes_no_job(system: System) -> Checked {
    let first = system.waits(pop("mail", "w1"), 600).await?;
    let second = system.waits(pop("mail", "w2"), 600).await?;
    drop(first);
    system.now(put("mail", "j1")).await?;
    assert_eq!(second.served(&system).await?, ["j1"]);
    Ok(())
}

/// When all parked pops are dropped, a job stays for the next pop.
pub async fn a_job_outlives_those_who_stopped_waiting(system: System) -> Checked {
    for by in ["w1", "w2"] {
        drop(system.waits(pop("mail", by), 600).await?);
    }
    system.now(put("mail", "j1")).await?;
    assert_eq!(system.state("j1").await?, StateName::Waiting);
    assert_eq!(popped_jids(system.now(pop("mail", "w3")).await?), ["j1"]);
    Ok(())
}

/// An invalid pop is refused, not parked.
pub async fn a_bad_pop_does_not_wait(system: System) -> Checked {
    let nowhere = Pop { queues: vec![], ..pop("mail", "w1") };
    refused(system.backend.pop_or_wait(nowhere, seconds(600)).await, no::good("queues"));
    Ok(())
}

/// A parked pop that times out returns the turn that it was given.
pub async fn a_wait_for_nothing_keeps_its_turn(system: System) -> Checked {
    let order = PopOrder::RoundRobin { turn: 4 };
    let waiter = system.waits(Pop { queues: queues(["x", "y", "z"]), order, ..pop("x", "w1") }, 30).await?;
    system.clock.set(30);
    assert_eq!(waiter.answered(&system).await?, PopReply { jobs: Vec::new(), turn: 1 });
    Ok(())
}

/// A parked pop of one job still warns the holders of all expired locks.
pub async fn all_expired_locks_are_handled_while_a_pop_is_parked(system: System) -> Checked {
    for name in ["a", "b", "c"] {
        system.now(put("mail", name)).await?;
    }
    system.now(pop_many("mail", "dead", 3)).await?;
    let mut waiter = system.waits(pop("mail", "w1"), 600).await?;
    // Later than the deadline, as a real clock always is.
    system.clock.set(61);
    waiter.still_waits(&system).await?;
    for name in ["a", "b", "c"] {
        assert_eq!(
            system.job(name).await?.history.last(),
            Some(&entry(61, HistoryEvent::TimedOut)),
            "job {name}"
        );
    }
    system.clock.set(72);
    assert_eq!(waiter.served(&system).await?, ["a"]);
    Ok(())
}

/// A job that comes due goes to the parked pop, not to a later pop.
pub async fn a_job_that_came_due_goes_to_the_first_parked_pop(system: System) -> Checked {
    system.now(Put { delay: seconds(50), ..put("mail", "j1") }).await?;
    let waiter = system.waits(pop("mail", "w1"), 600).await?;
    system.clock.set(50);
    let late = system.backend.pop_or_wait(pop("mail", "w2"), Seconds::ZERO).await?;
    assert_eq!(popped_jids(late), NONE);
    assert_eq!(waiter.served(&system).await?, ["j1"]);
    Ok(())
}

/// A wait is measured by the monotonic clock.
pub async fn a_clock_that_goes_back_does_not_lengthen_a_wait(system: System) -> Checked {
    system.clock.set(1000);
    let mut waiter = system.waits(pop("mail", "w1"), 30).await?;
    system.clock.set(100);
    waiter.still_waits(&system).await?;
    system.clock.set(130);
    assert_eq!(waiter.served(&system).await?, NONE);
    Ok(())
}
