//! Tombstones: what is left of cancelled jobs.

use super::prelude::*;

fn tombstone(job: &str, state: StateName, when: i32) -> Tombstone {
    Tombstone {
        jid: jid(job),
        queue: queue("mail"),
        klass: put("mail", job).klass,
        state,
        when: moment(when),
        by: None,
        because: None,
    }
}

/// A tombstone without the caller, because a server names the address of one that did not name itself.
async fn left_of(system: &System, job: &str) -> Result<Option<Tombstone>, BackendError> {
    let left = system.ask(Canceled { jid: jid(job) }).await?;
    Ok(left.map(|tombstone| Tombstone { by: None, ..*tombstone }))
}

fn cancel_because(jobs: &[&str], because: &str) -> Cancel {
    Cancel { because: Some(because.into()), ..cancel(jobs) }
}

/// A cancelled job leaves its queue and klass, its state, when it was cancelled, and why if that was said.
pub async fn a_cancelled_job_leaves_a_tombstone(system: System) -> Checked {
    system.run(0, put("mail", "running"), "w1").await?;
    system.at(0, put("mail", "waiting")).await?;
    system.at(0, Put { delay: seconds(100), ..put("mail", "scheduled") }).await?;
    system.at(0, Put { depends: jids(["waiting"]), ..put("mail", "depends") }).await?;
    system.at(1, cancel_because(&["running", "waiting", "depends"], "no longer needed")).await?;
    system.at(2, cancel(["scheduled"])).await?;
    for (name, state) in
        [("running", StateName::Running), ("waiting", StateName::Waiting), ("depends", StateName::Depends)]
    {
        let because = Some("no longer needed".into());
        let expected = Tombstone { because, ..tombstone(name, state, 1) };
        assert_eq!(left_of(&system, name).await?, Some(expected));
    }
    let expected = tombstone("scheduled", StateName::Scheduled, 2);
    assert_eq!(left_of(&system, "scheduled").await?, Some(expected));
    assert!(!system.has("waiting").await?);
    system.refuses(3, Why { jid: jid("waiting") }, no::such_job("waiting")).await?;
    Ok(())
}

/// The caller that a front-end names is in the tombstone, as much of it as fits; other commands forget it.
pub async fn a_tombstone_names_who_cancelled_the_job(system: System) -> Checked {
    for name in ["a", "b", "c"] {
        system.at(0, put("mail", name)).await?;
    }
    let by = |by: &str, command: Command| Call { by: Some(by.into()), ..Call::at(moment(1), command) };
    let long = "\u{e4}".repeat(400);
    let batch = vec![
        by("ana", cancel(["a"]).into()),
        by(&long, cancel(["b"]).into()),
        by("ben", put("mail", "d").into()),
        Call::at(moment(1), cancel(["c"])),
    ];
    for answer in system.backend.execute(batch).await? {
        answer?;
    }
    let mut callers = Vec::new();
    for name in ["a", "b", "c"] {
        let tombstone = system.ask(Canceled { jid: jid(name) }).await?.ok_or("it was cancelled")?;
        callers.push(tombstone.by);
    }
    let [Some(ana), Some(clipped), other] = &callers[..] else { panic!("{callers:?}") };
    // A server adds the address.
    assert!(ana == "ana" || ana.starts_with("ana (127.0.0.1:"), "{ana}");
    assert_eq!(*clipped, "\u{e4}".repeat(256));
    assert!(other.as_deref().is_none_or(|address| address.starts_with("127.0.0.1:")), "{other:?}");
    Ok(())
}

/// A jid that was cancelled can be put anew, alone or in a batch, and then has no tombstone any more.
pub async fn a_new_job_removes_the_tombstone_of_its_jid(system: System) -> Checked {
    let names = ["a", "b", "c", "d"];
    for name in names {
        system.at(0, put("mail", name)).await?;
    }
    system.at(1, cancel(names)).await?;
    assert_eq!(system.at(2, put("mail", "a")).await?, PutReply::Created);
    let batch = ["b", "c"].map(|name| Call::at(moment(2), put("mail", name)));
    for answer in system.backend.execute(batch.into()).await? {
        assert_eq!(answer?, Reply::Put(PutReply::Created));
    }
    for name in ["a", "b", "c"] {
        assert_eq!(left_of(&system, name).await?, None, "{name}");
    }
    assert_eq!(left_of(&system, "d").await?, Some(tombstone("d", StateName::Waiting, 1)));
    // Nor once they are dropped.
    system.ask(set("jobs-history-count", "0")).await?;
    for name in ["a", "b", "c"] {
        system.take(3, "mail", "w1").await?;
        system.at(3, complete(name, "w1")).await?;
        assert_eq!((system.has(name).await?, left_of(&system, name).await?), (false, None));
    }
    system.at(4, Put { delay: seconds(5), ..put("mail", "d") }).await?;
    assert_eq!(left_of(&system, "d").await?, None);
    Ok(())
}

/// Only cancelling an unfinished or failed job leaves a tombstone.
pub async fn other_ends_leave_no_tombstone(system: System) -> Checked {
    system.run(0, put("mail", "done"), "w1").await?;
    system.at(1, complete("done", "w1")).await?;
    system.run(1, put("mail", "failed"), "w1").await?;
    system.at(2, fail("failed", "w1", "g")).await?;
    system.at(3, cancel(["done", "failed", "unknown"])).await?;
    for name in ["done", "unknown", "never"] {
        assert_eq!(left_of(&system, name).await?, None, "{name}");
    }
    assert_eq!(left_of(&system, "failed").await?, Some(tombstone("failed", StateName::Failed, 3)));
    Ok(())
}

/// The oldest tombstones are dropped by the next cancellation if there are too many; those of one moment by
/// jid.
pub async fn only_the_latest_tombstones_are_kept(system: System) -> Checked {
    system.ask(set("canceled-history-max", "2")).await?;
    for name in ["b", "a", "c"] {
        system.at(0, put("mail", name)).await?;
        system.at(1, cancel([name])).await?;
    }
    let mut left = Vec::new();
    for name in ["a", "b", "c"] {
        left.push(left_of(&system, name).await?.is_some());
    }
    assert_eq!(left, [false, true, true]);
    Ok(())
}

/// Tombstones are dropped once they are old, by the next cancellation and by ticks.
pub async fn tombstones_are_dropped_once_they_are_old(system: System) -> Checked {
    system.ask(set("canceled-history", "100")).await?;
    for (name, now) in [("a", 0), ("b", 50), ("c", 99), ("d", 100)] {
        system.at(now, put("mail", name)).await?;
        system.at(now, cancel([name])).await?;
        assert!(left_of(&system, name).await?.is_some());
    }
    assert_eq!(left_of(&system, "a").await?, None, "the last cancellation dropped it");
    let tick = system.tick(149).await?;
    assert_eq!((tick.done, tick.next), (0, Some(moment(150))));
    let tick = system.tick(199).await?;
    assert_eq!((tick.done, tick.next), (2, Some(moment(200))));
    assert!(left_of(&system, "b").await?.is_none() && left_of(&system, "d").await?.is_some());
    Ok(())
}

/// With an age or a number of zero nothing is left.
pub async fn tombstones_can_be_turned_off(system: System) -> Checked {
    for option in ["canceled-history", "canceled-history-max"] {
        system.ask(set(option, "0")).await?;
        system.at(0, put("mail", option)).await?;
        assert_eq!(system.at(1, cancel([option])).await?, 1);
        assert_eq!(left_of(&system, option).await?, None);
        system.ask(unset(option)).await?;
    }
    Ok(())
}

/// A reason over a kibibyte is refused, and nothing is cancelled.
pub async fn a_long_reason_is_refused(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    let refused = Refusal::TooLarge { what: "because".into(), bytes: 1_025, max: 1_024 };
    system.refuses(1, cancel_because(&["a"], &"b".repeat(1_025)), refused).await?;
    let longest = "b".repeat(1_024);
    system.at(1, cancel_because(&["a"], &longest)).await?;
    assert_eq!(left_of(&system, "a").await?.ok_or("it was cancelled")?.because, Some(longest));
    Ok(())
}

/// A flush removes tombstones too.
pub async fn a_flush_removes_tombstones(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    system.at(1, cancel(["a"])).await?;
    while system.at(2, Flush { count: count(1) }).await? {}
    assert_eq!(left_of(&system, "a").await?, None);
    Ok(())
}
