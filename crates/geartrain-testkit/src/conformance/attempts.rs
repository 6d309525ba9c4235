//! Why attempts ended that did not complete their job.

use super::prelude::*;

fn end(when: i32, reason: EndReason, by: &str) -> AttemptEnd {
    AttemptEnd { when: moment(when), reason, worker: Some(worker(by)), group: None, message: None }
}

fn said(message: &str, end: AttemptEnd) -> AttemptEnd {
    AttemptEnd { message: Some(message.into()), ..end }
}

fn retry_for(job: &str, by: &str, kind: &str, message: &str) -> Retry {
    Retry { group: Some(group(kind)), message: Some(message.into()), ..retry(job, by) }
}

/// Each attempt that did not complete the job has a worker and a reason, and what was said about it.
pub async fn a_job_tells_why_its_attempts_ended(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(2, retry_for("a", "w1", "net", "no route")).await?;
    system.take(3, "mail", "w2").await?;
    assert_eq!(system.pop(63, "mail", "w3", 1).await?, [""; 0], "w2 is warned");
    assert_eq!(system.pop(74, "mail", "w3", 1).await?, ["a"]);
    system.at(75, Release { message: Some("shutting down".into()), ..hand_back("a", "w3") }).await?;
    system.take(76, "mail", "w4").await?;
    system.at(77, WorkerLost { worker: worker("w4"), evidence: Some("signal 9".into()) }).await?;
    system.take(78, "mail", "w5").await?;
    let retried = said("no route", end(2, EndReason::Retried, "w1"));
    let expected = [
        AttemptEnd { group: Some(group("net")), ..retried },
        end(74, EndReason::LockExpired, "w2"),
        said("shutting down", end(75, EndReason::Released, "w3")),
        said("signal 9", end(77, EndReason::WorkerLost, "w4")),
    ];
    assert_eq!(system.job("a").await?.attempts, expected);
    Ok(())
}

/// A deadline, a timeout and another put end an attempt too.
pub async fn an_attempt_may_be_ended_by_others(system: System) -> Checked {
    let limited = PutOptions { attempt_max: Some(seconds(30)), ..PutOptions::default() };
    system.run(0, on_terms(put("mail", "a"), limited), "w1").await?;
    system.tick(30).await?;
    system.take(31, "mail", "w2").await?;
    system.at(32, timeout(["a"])).await?;
    system.take(33, "mail", "w3").await?;
    system.at(34, put_again("mail", "a")).await?;
    system.at(35, put_again("mail", "a")).await?;
    let expected = [
        end(30, EndReason::Deadline, "w1"),
        end(32, EndReason::TakenAway, "w2"),
        end(34, EndReason::PutAgain, "w3"),
    ];
    assert_eq!(system.job("a").await?.attempts, expected);
    Ok(())
}

/// What completes or fails a job is in its history alone; the last retry is told before the failure.
pub async fn the_last_attempt_of_a_job_is_told_too(system: System) -> Checked {
    for name in ["retried", "lost", "silent"] {
        system.at(0, Put { retries: Some(0), ..put("mail", name) }).await?;
    }
    system.pop(0, "mail", "w1", 1).await?;
    system.pop(0, "mail", "w2", 1).await?;
    system.at(1, retry_for("retried", "w1", "net", "no route")).await?;
    system.at(2, gone("w2")).await?;
    system.ask(set("grace-period", "0")).await?;
    system.pop(3, "mail", "w3", 1).await?;
    assert_eq!(system.pop(70, "mail", "w4", 1).await?, [""; 0]);
    for (name, expected) in [
        (
            "retried",
            AttemptEnd { group: Some(group("net")), ..said("no route", end(1, EndReason::Retried, "w1")) },
        ),
        ("lost", end(2, EndReason::WorkerLost, "w2")),
        ("silent", end(70, EndReason::LockExpired, "w3")),
    ] {
        let job = system.job(name).await?;
        assert_eq!((job.state.name(), job.attempts), (StateName::Failed, vec![expected]), "{name}");
    }
    system.run(80, put("mail", "done"), "w1").await?;
    system.at(81, complete("done", "w1")).await?;
    system.run(82, put("mail", "failed"), "w1").await?;
    system.at(83, fail("failed", "w1", "g")).await?;
    for name in ["done", "failed"] {
        assert_eq!(system.job(name).await?.attempts, []);
    }
    Ok(())
}

/// Ends of attempts are no entries of the history, and do not count in its limit.
pub async fn ends_of_attempts_are_not_in_the_history(system: System) -> Checked {
    system.ask(set("max-job-history", "3")).await?;
    system.at(0, put("mail", "a")).await?;
    for now in [1, 2] {
        system.take(now, "mail", "w1").await?;
        system.at(now, hand_back("a", "w1")).await?;
    }
    system.take(3, "mail", "w2").await?;
    system.at(3, gone("w2")).await?;
    let job = system.job("a").await?;
    let expected = [entry(0, was_put("mail")), entry(2, was_popped("w1")), entry(3, was_popped("w2"))];
    assert_eq!(job.history, expected);
    let expected = [
        end(1, EndReason::Released, "w1"),
        end(2, EndReason::Released, "w1"),
        end(3, EndReason::WorkerLost, "w2"),
    ];
    assert_eq!(job.attempts, expected);
    Ok(())
}

/// A story has both in the order in which they happened, within a second too.
pub async fn a_story_is_told_in_order(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(0, log("a", "begins")).await?;
    system.at(0, retry("a", "w1")).await?;
    system.take(0, "mail", "w1").await?;
    system.at(0, timeout(["a"])).await?;
    system.take(0, "mail", "w1").await?;
    system.at(0, complete("a", "w1")).await?;
    system.at(0, put_again("mail", "a")).await?;
    system.take(0, "mail", "w1").await?;
    system.at(0, retry("a", "w1")).await?;
    let ended = |reason| HistoryEvent::AttemptEnded {
        reason,
        worker: Some(worker("w1")),
        group: None,
        message: None,
    };
    let expected = [
        was_put("mail"),
        was_popped("w1"),
        was_logged("begins"),
        ended(EndReason::Retried),
        was_popped("w1"),
        HistoryEvent::TimedOut,
        ended(EndReason::TakenAway),
        was_popped("w1"),
        HistoryEvent::Done,
        was_put("mail"),
        was_popped("w1"),
        ended(EndReason::Retried),
    ];
    let story = system.job("a").await?.story();
    assert_eq!(story.into_iter().map(|entry| entry.what).collect::<Vec<_>>(), expected);
    Ok(())
}

/// A job has the newest 25 ends, and of each message the first kibibyte, in whole characters.
pub async fn ends_of_attempts_are_bounded(system: System) -> Checked {
    let long = format!("x{}", "\u{e4}".repeat(1_000));
    let rest = PutOptions::default();
    system.at(0, Put { retries: Some(100), ..on_terms(put("mail", "a"), rest) }).await?;
    for now in 1..=27 {
        system.take(now, "mail", "w1").await?;
        system.at(now, retry_for("a", "w1", "g", &long)).await?;
    }
    let attempts = system.job("a").await?.attempts;
    assert_eq!((attempts.len(), attempts[0].when), (25, moment(3)));
    let clipped = format!("x{}", "\u{e4}".repeat(511));
    assert!(attempts.iter().all(|end| end.message.as_deref() == Some(&clipped)));
    Ok(())
}
