//! Ready waits: learning that there is a job, without popping it.

use super::prelude::*;

/// A ready wait returns at once if there is a job, and leaves it in its queue.
pub async fn a_ready_wait_returns_at_once_if_there_is_a_job(system: System) -> Checked {
    system.now(put("mail", "j1")).await?;
    for wait in [0, 600] {
        assert!(system.backend.ready_or_wait(queues(["post", "mail"]), seconds(wait)).await?);
    }
    assert_eq!(system.job("j1").await?.history, [entry(0, was_put("mail"))]);
    assert_eq!(popped_jids(system.now(pop("mail", "w1")).await?), ["j1"]);
    Ok(())
}

/// A ready wait of zero seconds on an empty queue returns false at once.
pub async fn a_ready_wait_of_zero_seconds_is_answered_at_once(system: System) -> Checked {
    system.now(put("post", "j1")).await?;
    assert!(!system.backend.ready_or_wait(queues(["mail"]), Seconds::ZERO).await?);
    assert!(!system.backend.ready_or_wait(queues(["mail"]), seconds(-1)).await?);
    Ok(())
}

/// One job wakes all ready waits of its queue, and is given to none.
pub async fn one_job_wakes_all_ready_waits_of_its_queue(system: System) -> Checked {
    let first = system.waits_for_word(["mail"], 600).await?;
    let second = system.waits_for_word(["mail"], 600).await?;
    let mut elsewhere = system.waits_for_word(["post"], 600).await?;
    system.now(put("mail", "j1")).await?;
    assert!(first.answered(&system).await?);
    assert!(second.answered(&system).await?);
    elsewhere.still_waits(&system).await?;
    assert_eq!(system.state("j1").await?, StateName::Waiting);
    Ok(())
}

/// Parked pops are served first; a ready wait returns only if a job is left.
pub async fn parked_pops_are_served_before_ready_waits(system: System) -> Checked {
    let mut word = system.waits_for_word(["mail"], 600).await?;
    let first = system.waits(pop("mail", "w1"), 600).await?;
    let second = system.waits(pop("mail", "w2"), 600).await?;
    system.now(put("mail", "a")).await?;
    assert_eq!(first.served(&system).await?, ["a"]);
    word.still_waits(&system).await?;
    let batch = ["b", "c"].map(|name| Call::from(put("mail", name)));
    system.backend.execute(batch.into()).await?;
    assert_eq!(second.served(&system).await?, ["b"]);
    assert!(word.answered(&system).await?);
    assert_eq!(system.state("c").await?, StateName::Waiting);
    Ok(())
}

/// A job that comes due for a parked pop wakes no ready wait.
pub async fn a_job_that_came_due_for_a_parked_pop_wakes_no_ready_wait(system: System) -> Checked {
    system.now(Put { delay: seconds(50), ..put("mail", "j1") }).await?;
    let waiter = system.waits(pop("mail", "w1"), 600).await?;
    system.clock.set(50);
    assert!(!system.backend.ready_or_wait(queues(["mail"]), Seconds::ZERO).await?);
    assert_eq!(waiter.served(&system).await?, ["j1"]);
    Ok(())
}

/// A job in one of several queues ends the ready wait for all of them.
pub async fn word_of_one_queue_is_enough(system: System) -> Checked {
    let word = system.waits_for_word(["x", "y", "x"], 600).await?;
    system.now(put("y", "a")).await?;
    assert!(word.answered(&system).await?);
    let mut again = system.waits_for_word(["x"], 600).await?;
    system.now(put("y", "b")).await?;
    again.still_waits(&system).await?;
    Ok(())
}

/// A ready wait times out, and not early.
pub async fn a_ready_wait_times_out(system: System) -> Checked {
    let mut word = system.waits_for_word(["mail"], 30).await?;
    let mut longer = system.waits_for_word(["mail"], 60).await?;
    system.clock.set(29);
    word.still_waits(&system).await?;
    system.clock.set(30);
    assert!(!word.answered(&system).await?);
    longer.still_waits(&system).await?;
    system.now(put("mail", "j1")).await?;
    assert!(longer.answered(&system).await?);
    Ok(())
}

/// A scheduled job, a recurring job and an expired lock that come due wake a ready wait, and are not changed.
pub async fn what_comes_due_is_word(system: System) -> Checked {
    system.now(Put { delay: seconds(50), ..put("later", "a") }).await?;
    system.now(Recur { offset: seconds(40), ..recur("often", "r", 1000) }).await?;
    system.now(put("stalled", "b")).await?;
    system.now(pop("stalled", "w1")).await?;
    let mut later = system.waits_for_word(["later"], 600).await?;
    let often = system.waits_for_word(["often"], 600).await?;
    let mut stalled = system.waits_for_word(["stalled"], 600).await?;
    system.clock.set(40);
    assert!(often.answered(&system).await?);
    later.still_waits(&system).await?;
    system.clock.set(50);
    assert!(later.answered(&system).await?);
    stalled.still_waits(&system).await?;
    system.clock.set(60);
    assert!(stalled.answered(&system).await?);
    // No worker was warned yet; the pop that follows does that.
    assert_eq!(system.job("b").await?.history.len(), 2);
    assert_eq!(popped_jids(system.now(pop("stalled", "w2")).await?), NONE);
    let mut again = system.waits_for_word(["stalled"], 600).await?;
    system.clock.set(69);
    again.still_waits(&system).await?;
    system.clock.set(70);
    assert!(again.answered(&system).await?);
    Ok(())
}

/// Every command that brings a job into a queue wakes its ready waits.
pub async fn word_is_given_however_a_job_comes(system: System) -> Checked {
    for (now, name) in ["retried", "handed-back", "failed", "advanced", "needed"].into_iter().enumerate() {
        system.clock.set(u32::try_from(now)?);
        system.now(put("mail", name)).await?;
        system.now(pop("mail", "w1")).await?;
    }
    system.now(Put { depends: jids(["needed"]), ..put("mail", "released") }).await?;
    system.now(fail("failed", "w1", "g")).await?;
    let told = async |command: Command| -> Checked {
        let word = system.waits_for_word(["mail"], 600).await?;
        system.backend.execute(vec![Call::from(command)]).await?.remove(0)?;
        assert!(word.answered(&system).await?);
        assert_eq!(system.now(pop_many("mail", "w2", 9)).await?.jobs.len(), 1);
        Ok(())
    };
    told(retry("retried", "w1").into()).await?;
    told(hand_back("handed-back", "w1").into()).await?;
    told(unfail("mail", "g", 1).into()).await?;
    told(advance("advanced", "w1", "mail").into()).await?;
    told(complete("needed", "w1").into()).await?;
    Ok(())
}

/// A paused queue, one at its concurrency limit and one at its rate limit wake no ready wait.
pub async fn a_queue_that_hands_out_nothing_gives_no_word(system: System) -> Checked {
    system.now(pause("paused")).await?;
    system.now(put("paused", "a")).await?;
    let mut word = system.waits_for_word(["paused"], 600).await?;
    system.now(put("paused", "b")).await?;
    word.still_waits(&system).await?;
    system.now(resume("paused")).await?;
    assert!(word.answered(&system).await?);

    system.now(set("full-max-concurrency", "1")).await?;
    for name in ["c", "d", "e"] {
        system.now(put("full", name)).await?;
    }
    system.now(pop("full", "w1")).await?;
    let word = system.waits_for_word(["full"], 600).await?;
    system.now(complete("c", "w1")).await?;
    assert!(word.answered(&system).await?);
    system.now(pop("full", "w1")).await?;
    let mut word = system.waits_for_word(["full"], 600).await?;
    system.clock.set(60);
    word.still_waits(&system).await?;
    system.clock.set(61);
    assert!(word.answered(&system).await?);

    system.now(limit("slow", rate(1, 100, 1))).await?;
    for name in ["f", "g"] {
        system.now(put("slow", name)).await?;
    }
    system.now(pop("slow", "w1")).await?;
    let mut word = system.waits_for_word(["slow"], 600).await?;
    system.clock.set(160);
    word.still_waits(&system).await?;
    system.clock.set(161);
    assert!(word.answered(&system).await?);
    Ok(())
}

/// A ready wait registers neither a worker nor a queue, and does not count as a request for jobs.
pub async fn a_ready_wait_registers_no_worker(system: System) -> Checked {
    let mut word = system.waits_for_word(["mail"], 600).await?;
    assert_eq!(system.workers(0).await?, NONE);
    assert_eq!(system.registered().await?, NONE);
    system.now(pause("mail")).await?;
    system.now(put("mail", "j1")).await?;
    word.still_waits(&system).await?;
    let no_worker = Reason::NoWorker { klass: klass("k"), asked: None, others: vec![], workers: 0 };
    assert_eq!(system.why(0, "j1").await?, [Reason::Paused { queue: queue("mail") }, no_worker]);
    Ok(())
}

/// A dropped ready wait blocks no other.
pub async fn a_dropped_ready_wait_blocks_no_other(system: System) -> Checked {
    drop(system.waits_for_word(["mail"], 600).await?);
    let word = system.waits_for_word(["mail"], 600).await?;
    system.now(put("mail", "a")).await?;
    assert!(word.answered(&system).await?);
    Ok(())
}

/// A ready wait takes 1 to 1,024 queues, as a pop does.
pub async fn word_of_no_queue_or_of_too_many_is_refused(system: System) -> Checked {
    let many = |count: usize| queues((0..count).map(|number| format!("q{number}")));
    for bad in [0, 1025] {
        refused(system.backend.ready_or_wait(many(bad), seconds(600)).await, no::good("queues"));
    }
    assert!(!system.backend.ready_or_wait(many(1024), Seconds::ZERO).await?);
    Ok(())
}
