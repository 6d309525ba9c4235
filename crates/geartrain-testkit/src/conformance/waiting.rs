//! How workers wait for jobs. Here the backend's own clock counts, and it moves when a case moves it.

use super::prelude::*;

/// A worker that asks where there is a job gets it without waiting, as by a pop.
pub async fn whoever_need_not_wait_is_served_at_once(system: System) -> Checked {
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

/// A worker that will not wait is answered at once, with nothing.
pub async fn whoever_will_not_wait_is_answered_at_once(system: System) -> Checked {
    let reply = system.backend.pop_or_wait(pop("mail", "w1"), Seconds::ZERO).await?;
    assert_eq!(popped_jids(reply), NONE);
    Ok(())
}

/// A worker that waits hears of a put, and has the job from that moment.
pub async fn a_waiting_worker_gets_a_job_that_is_put(system: System) -> Checked {
    let waiter = system.waits(pop("mail", "w1"), 600).await?;
    system.clock.set(30);
    system.now(put("mail", "j1")).await?;
    assert_eq!(waiter.served(&system).await?, ["j1"]);
    assert_eq!(system.job("j1").await?.qless.expires, moment(90));
    Ok(())
}

/// A put into a queue that nobody waits for wakes nobody.
pub async fn a_job_elsewhere_is_not_for_those_who_wait_here(system: System) -> Checked {
    let mut waiter = system.waits(pop("mail", "w1"), 600).await?;
    system.now(put("post", "j1")).await?;
    waiter.still_waits(&system).await?;
    assert_eq!(system.state("j1").await?, StateName::Waiting);
    Ok(())
}

/// Those who wait are served in the order in which they came, one job each.
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

/// Several jobs put at once go to as many workers.
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

/// A worker that waits for several jobs is served with the first that comes.
pub async fn one_job_is_enough_to_end_a_wait_for_several(system: System) -> Checked {
    let waiter = system.waits(pop_many("mail", "w1", 5), 600).await?;
    system.now(put("mail", "a")).await?;
    assert_eq!(waiter.served(&system).await?, ["a"]);
    Ok(())
}

/// Two workers that wait for the same queues get one job each, from whichever queue it comes.
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

/// A worker that was served from one queue no longer waits for the other.
pub async fn a_served_worker_waits_nowhere_else(system: System) -> Checked {
    let wanted = Pop { queues: queues(["x", "y"]), ..pop("x", "w1") };
    let waiter = system.waits(wanted, 600).await?;
    system.now(put("x", "a")).await?;
    assert_eq!(waiter.served(&system).await?, ["a"]);
    system.now(put("y", "b")).await?;
    assert_eq!(system.state("b").await?, StateName::Waiting);
    Ok(())
}

/// A wait ends with nothing when its time is over, and not before.
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

/// A job that comes due while a worker waits goes to it, without anybody asking.
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

/// A job whose worker goes quiet goes to the one that waits: at once if there is no grace.
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

/// With grace the quiet worker is warned when its lock expires, and the one that waits has the job after that.
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

/// Whatever brings a job into a queue serves those who wait there.
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

/// While a queue is paused those who wait for it wait on, and are served when it is not.
pub async fn those_who_wait_for_a_paused_queue_are_served_when_it_resumes(system: System) -> Checked {
    system.now(pause("mail")).await?;
    system.now(put("mail", "j1")).await?;
    let mut waiter = system.waits(pop("mail", "w1"), 600).await?;
    system.now(put("mail", "j2")).await?;
    waiter.still_waits(&system).await?;
    system.now(resume("mail")).await?;
    assert_eq!(waiter.served(&system).await?, ["j1"]);
    Ok(())
}

/// While a queue is full those who wait for it wait on, and are served when there is a place or a higher limit.
pub async fn those_who_wait_for_a_full_queue_are_served_when_there_is_a_place(system: System) -> Checked {
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

/// A place is free, and its lock's holder warned, as soon as the lock's deadline is past.
pub async fn those_who_wait_for_a_full_queue_are_served_when_a_lock_expires(system: System) -> Checked {
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

/// Somebody who asks for no jobs at all does not keep them from those who ask for some.
pub async fn a_wait_for_no_jobs_is_in_nobodys_way(system: System) -> Checked {
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

/// A worker that stops waiting takes no job, and the next in line gets it.
pub async fn a_worker_that_stops_waiting_takes_no_job(system: System) -> Checked {
    let first = system.waits(pop("mail", "w1"), 600).await?;
    let second = system.waits(pop("mail", "w2"), 600).await?;
    drop(first);
    system.now(put("mail", "j1")).await?;
    assert_eq!(second.served(&system).await?, ["j1"]);
    Ok(())
}

/// If all stop waiting, a job stays for whoever asks next.
pub async fn a_job_outlives_those_who_stopped_waiting(system: System) -> Checked {
    for by in ["w1", "w2"] {
        drop(system.waits(pop("mail", by), 600).await?);
    }
    system.now(put("mail", "j1")).await?;
    assert_eq!(system.state("j1").await?, StateName::Waiting);
    assert_eq!(popped_jids(system.now(pop("mail", "w3")).await?), ["j1"]);
    Ok(())
}

/// A pop that makes no sense is refused rather than waited for.
pub async fn a_bad_pop_does_not_wait(system: System) -> Checked {
    let nowhere = Pop { queues: vec![], ..pop("mail", "w1") };
    refused(system.backend.pop_or_wait(nowhere, seconds(600)).await, no::good("queues"));
    Ok(())
}

/// A wait that ends with nothing answers the turn that it was given.
pub async fn a_wait_for_nothing_keeps_its_turn(system: System) -> Checked {
    let order = PopOrder::RoundRobin { turn: 4 };
    let waiter = system.waits(Pop { queues: queues(["x", "y", "z"]), order, ..pop("x", "w1") }, 30).await?;
    system.clock.set(30);
    assert_eq!(waiter.answered(&system).await?, PopReply { jobs: Vec::new(), turn: 1 });
    Ok(())
}

/// Whoever waits for one job does not make the holders of others wait for their warning.
pub async fn all_expired_locks_are_dealt_with_while_somebody_waits(system: System) -> Checked {
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

/// A job that comes due goes to whoever waited for it, and not to whoever asks after that.
pub async fn a_job_that_came_due_belongs_to_whoever_waited_first(system: System) -> Checked {
    system.now(Put { delay: seconds(50), ..put("mail", "j1") }).await?;
    let waiter = system.waits(pop("mail", "w1"), 600).await?;
    system.clock.set(50);
    let late = system.backend.pop_or_wait(pop("mail", "w2"), Seconds::ZERO).await?;
    assert_eq!(popped_jids(late), NONE);
    assert_eq!(waiter.served(&system).await?, ["j1"]);
    Ok(())
}

/// How long somebody waits is measured by a clock that never goes back.
pub async fn a_clock_that_goes_back_does_not_lengthen_a_wait(system: System) -> Checked {
    system.clock.set(1000);
    let mut waiter = system.waits(pop("mail", "w1"), 30).await?;
    system.clock.set(100);
    waiter.still_waits(&system).await?;
    system.clock.set(130);
    assert_eq!(waiter.served(&system).await?, NONE);
    Ok(())
}
