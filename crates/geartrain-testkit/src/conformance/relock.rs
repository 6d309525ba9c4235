//! Jobs that a restarted worker locks again.

use super::prelude::*;

fn relock(by: &str) -> Relock {
    Relock::new(worker(by))
}

/// The jobs that a worker locks again.
async fn relocked(system: &System, now: impl Into<f64>, relock: Relock) -> Result<Vec<String>, BackendError> {
    Ok(system.at(now, relock).await?.into_iter().map(|popped| popped.jid.to_string()).collect())
}

/// A restarted worker gets all that runs under its name, the job popped first first, with new tokens and
/// fresh locks. It costs no retry, and the tokens of before are worth nothing.
pub async fn a_restarted_worker_locks_its_jobs_again(system: System) -> Checked {
    let first = system.run(0, put("post", "b"), "w1").await?;
    let second = system.run(5, put("mail", "a"), "w1").await?;
    system.run(5, put("mail", "other"), "w2").await?;
    let mut listener = system.listen().await?;
    let locked = system.at(10, relock("w1")).await?;
    // No lock is reported as lost: the worker of this name has it.
    listener.heard(&system, [heard::popped("b", "post", "w1"), heard::popped("a", "mail", "w1")]).await?;
    let shown: Vec<(&str, &str)> =
        locked.iter().map(|popped| (popped.queue.as_str(), popped.klass.as_str())).collect();
    assert_eq!(shown, [("post", second.klass.as_str()), ("mail", second.klass.as_str())]);
    assert!(first.lock.token < second.lock.token && second.lock.token < locked[0].lock.token);
    assert!(locked[0].lock.token < locked[1].lock.token);
    for (old, popped) in [first, second].iter().zip(&locked) {
        assert_eq!((&popped.jid, &popped.payload), (&old.jid, &old.payload));
        assert_eq!((popped.remaining, popped.lock.expires), (5, moment(70)));
        assert_eq!(popped.lock.worker, worker("w1"));
        let late = Heartbeat { jid: old.jid.clone(), holder: holding(old), payload: None };
        let refusal = Refusal::LockLost { jid: old.jid.clone(), state: StateName::Running };
        system.refuses(11, late, refusal).await?;
    }
    let job = system.job("b").await?;
    assert_eq!(job.state, JobState::Running { lock: locked[0].lock.clone() });
    assert_eq!(job.history[1..], [entry(0, was_popped("w1")), entry(10, was_popped("w1"))]);
    let [end] = &job.attempts[..] else { panic!("{:?}", job.attempts) };
    assert_eq!(
        (end.when, end.reason, &end.worker, &end.group, &end.message),
        (moment(10), EndReason::Resumed, &Some(worker("w1")), &None, &None)
    );
    let (mut running, stalled) = system.worker_jobs(11, "w1").await?;
    running.sort_unstable();
    assert_eq!((running, stalled), (vec!["a".into(), "b".into()], vec![]));
    system.at(12, Complete::new(jid("b"), holding(&locked[0]))).await?;
    system.at(12, Complete::new(jid("a"), holding(&locked[1]))).await?;
    Ok(())
}

/// Jobs beyond the count come with the next command, if it names the first token that was handed out.
pub async fn what_is_locked_again_comes_in_pages(system: System) -> Checked {
    for name in ["a", "b", "c", "d", "e"] {
        system.run(0, put("mail", name), "w1").await?;
    }
    let page = |before| Relock { count: count(2), before, ..relock("w1") };
    let first = system.at(1, page(None)).await?;
    let before = Some(first[0].lock.token);
    assert_eq!(relocked(&system, 1, page(before)).await?, ["c", "d"]);
    // What is popped meanwhile is not locked again.
    system.run(2, put("mail", "new"), "w1").await?;
    assert_eq!(relocked(&system, 2, page(before)).await?, ["e"]);
    assert_eq!(relocked(&system, 2, page(before)).await?, [""; 0]);
    // Without a token everything is, in the order of the tokens of now.
    assert_eq!(relocked(&system, 3, relock("w1")).await?, ["a", "b", "c", "d", "new", "e"]);
    Ok(())
}

/// A relock may be restricted to queues; all that a worker has in others stays as it is.
pub async fn a_relock_may_be_for_some_queues(system: System) -> Checked {
    let mail = system.run(0, put("mail", "a"), "w1").await?;
    system.run(1, put("post", "b"), "w1").await?;
    system.run(2, put("late", "c"), "w1").await?;
    let of = |names: &[&str]| Relock { queues: names.iter().map(queue).collect(), ..relock("w1") };
    assert_eq!(relocked(&system, 3, of(&["late", "unknown", "post"])).await?, ["b", "c"]);
    assert_eq!(relocked(&system, 3, of(&["unknown"])).await?, [""; 0]);
    system.at(4, Complete::new(jid("a"), holding(&mail))).await?;
    Ok(())
}

/// A lock that has expired is renewed as long as no other worker has the job; the warning no longer counts.
pub async fn an_expired_lock_is_renewed_unless_it_was_taken_over(system: System) -> Checked {
    system.run(0, put("mail", "warned"), "w1").await?;
    assert_eq!(system.pop(60, "mail", "w2", 1).await?, [""; 0], "w1 is warned");
    system.run(1, put("post", "silent"), "w1").await?;
    assert_eq!(relocked(&system, 65, relock("w1")).await?, ["warned", "silent"]);
    assert_eq!(system.job("warned").await?.remaining, 5);
    assert_eq!(system.pop(124, "mail", "w2", 1).await?, [""; 0]);
    assert_eq!(system.pop(125, "mail", "w2", 1).await?, [""; 0], "w1 is warned again");
    assert_eq!(system.pop(135, "mail", "w2", 1).await?, ["warned"]);
    assert_eq!(relocked(&system, 136, relock("w1")).await?, ["silent"]);
    let job = system.job("warned").await?;
    let JobState::Running { lock } = &job.state else { panic!("{job:?}") };
    assert_eq!((&lock.worker, job.remaining), (&worker("w2"), 4));
    Ok(())
}

/// What was released, retried, timed out, completed or failed is not the worker's any more.
pub async fn only_running_jobs_are_locked_again(system: System) -> Checked {
    for name in ["released", "retried", "timed-out", "complete", "failed", "cancelled"] {
        system.run(0, put("mail", name), "w1").await?;
    }
    system.at(1, hand_back("released", "w1")).await?;
    system.at(1, retry("retried", "w1")).await?;
    system.at(1, timeout(["timed-out"])).await?;
    system.at(1, complete("complete", "w1")).await?;
    system.at(1, fail("failed", "w1", "g")).await?;
    system.at(1, cancel(["cancelled"])).await?;
    // The worker is seen then, as by a relock.
    assert_eq!(system.pop(1, "other", "w1", 1).await?, [""; 0]);
    let before = system.snapshot(2.0).await?;
    assert_eq!(relocked(&system, 1, relock("w1")).await?, [""; 0]);
    assert_eq!(system.snapshot(2.0).await?, before);
    Ok(())
}

/// The jobs run already: neither a pause nor a limit stops a relock, and it counts as no start.
pub async fn no_limit_stops_a_relock(system: System) -> Checked {
    system.at(0, limit("mail", rate(1, 100, 2))).await?;
    system.run(0, put("mail", "a"), "w1").await?;
    system.ask(set("mail-max-concurrency", "1")).await?;
    system.ask(pause("mail")).await?;
    assert_eq!(relocked(&system, 1, relock("w1")).await?, ["a"]);
    assert_eq!(relocked(&system, 2, relock("w1")).await?, ["a"]);
    system.ask(Resume { queues: vec![queue("mail")] }).await?;
    system.at(3, complete("a", "w1")).await?;
    // One of two starts was used.
    system.at(3, put("mail", "b")).await?;
    assert_eq!(system.pop(3, "mail", "w1", 1).await?, ["b"]);
    Ok(())
}

/// An attempt's deadline begins anew, and what the last one reported is forgotten.
pub async fn a_relock_begins_an_attempt(system: System) -> Checked {
    let limited = PutOptions { attempt_max: Some(seconds(30)), ..PutOptions::default() };
    let popped = system.run(0, on_terms(put("mail", "a"), limited), "w1").await?;
    system.at(1, progress("a", holding(&popped), 1, 2)).await?;
    let locked = system.at(20, relock("w1")).await?;
    let details = locked[0].details.as_ref().ok_or("it has options")?;
    assert_eq!((details.deadline, details.progress), (Some(moment(50)), None));
    assert_eq!(**details, system.details("a").await?);
    assert_eq!(system.tick(49).await?.done, 0);
    assert_eq!(system.tick(50).await?.done, 1);
    assert_eq!(system.job("a").await?.remaining, 4);
    // The capability of the worker counts as for a pop.
    let quick = Capability { attempt_max: Some(seconds(10)), ..ability("mail", None) };
    system.at(51, announce("w1", AnnounceChange::Can(vec![quick]))).await?;
    system.pop(52, "mail", "w1", 1).await?;
    system.at(55, relock("w1")).await?;
    assert_eq!(system.details("a").await?.deadline, Some(moment(65)));
    Ok(())
}

/// A job that is locked again did not wait: its wait is measured once, and its run from the last lock on.
pub async fn a_relock_measures_no_wait(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    system.take(7, "mail", "w1").await?;
    system.at(20, relock("w1")).await?;
    system.at(23, complete("a", "w1")).await?;
    let stats = system.stats("mail", 0).await?;
    assert_eq!((stats.wait.count, stats.wait.mean), (1, 7.0));
    assert_eq!((stats.run.count, stats.run.mean, stats.retries), (1, 3.0, 0));
    Ok(())
}

/// A relock of a tracked job is told as a pop is.
pub async fn a_relock_of_a_tracked_job_is_told(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(0, track("a")).await?;
    let mut listener = system.listen().await?;
    system.at(1, relock("w1")).await?;
    let expected = [heard::popped("a", "mail", "w1"), heard::passed("a", Milestone::Popped)];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// A worker without jobs has nothing to lock, and is seen.
pub async fn a_relock_is_a_sign_of_life(system: System) -> Checked {
    assert_eq!(relocked(&system, 3, relock("w1")).await?, [""; 0]);
    assert_eq!(system.workers(4).await?, ["w1"]);
    assert_eq!(system.registered().await?, [""; 0]);
    Ok(())
}

/// One command locks 1 to 1,000 jobs.
pub async fn a_relock_has_its_limits(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    let before = system.snapshot(1.0).await?;
    for wrong in [0, 1_001] {
        system.refuses(1, Relock { count: count(wrong), ..relock("w1") }, no::good("count")).await?;
    }
    let queues = vec![queue("mail"); 1_025];
    system.refuses(1, Relock { queues, ..relock("w1") }, no::good("queues")).await?;
    assert_eq!(system.snapshot(1.0).await?, before);
    let queues = vec![queue("mail"); 1_024];
    assert_eq!(relocked(&system, 1, Relock { queues, ..relock("w1") }).await?, ["a"]);
    Ok(())
}
