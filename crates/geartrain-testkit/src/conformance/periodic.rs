//! Periodic jobs: templates by cron expression or interval, with all put options.

use super::prelude::*;

fn template(name: &str, every: Period) -> PeriodicTemplate {
    PeriodicTemplate::new(put("mail", name), every)
}

fn every_minute(name: &str) -> PeriodicTemplate {
    template(name, Period::Cron("* * * * *".into()))
}

fn fire(name: &str, expected: i32, runs: &[i32], next: i32) -> FirePeriodic {
    FirePeriodic {
        jid: jid(name),
        expected: Some(moment(expected)),
        runs: runs.iter().map(|run| moment(*run)).collect(),
        next: Some(moment(next)),
    }
}

async fn shown(system: &System, name: &str) -> Result<Option<Periodic>, BackendError> {
    Ok(system.at(0, Periodics::one(jid(name))).await?.periodics.pop())
}

/// A periodic job is what it was put as, and has no job before its first run.
pub async fn a_periodic_job_is_as_it_was_put(system: System) -> Checked {
    let options = PutOptions { attempt_max: Some(seconds(30)), ..PutOptions::default() };
    let mut made = every_minute("nightly");
    made.put = Put {
        payload: "\0\u{ff}".into(),
        priority: Some(priority(2)),
        retries: Some(3),
        tags: Some(tags(["t"])),
        options: Some(Box::new(options)),
        ..made.put
    };
    made.overlap = Overlap::CancelOld;
    made.phrase = Some("every minute, \u{fc}".to_owned());
    assert!(system.at(10, PutPeriodic::new(made.clone(), moment(10))).await?);
    assert!(!system.at(20, PutPeriodic::new(made.clone(), moment(20))).await?);
    let periodic = shown(&system, "nightly").await?.expect("it was put");
    let expected =
        Periodic { template: Box::new(made), next: Some(moment(60)), count: 0, last: None, error: None };
    assert_eq!(periodic, expected);
    assert!(!system.has("nightly").await?);
    assert!(system.at(30, RemovePeriodic { jid: jid("nightly") }).await?);
    assert!(!system.at(30, RemovePeriodic { jid: jid("nightly") }).await?);
    assert_eq!(shown(&system, "nightly").await?, None);
    Ok(())
}

/// Periodic jobs are listed by jid, a page at a time.
pub async fn periodic_jobs_are_listed_by_jid(system: System) -> Checked {
    for name in ["c", "a", "b"] {
        system.at(0, PutPeriodic::new(every_minute(name), moment(0))).await?;
    }
    let page = async |after: Option<&str>| {
        let asked = Periodics { only: None, after: after.map(jid), count: count(2) };
        Ok::<_, BackendError>(texts(
            system.at(0, asked).await?.periodics.iter().map(|of| &of.template.put.jid),
        ))
    };
    assert_eq!((page(None).await?, page(Some("b")).await?), (texts(["a", "b"]), texts(["c"])));
    Ok(())
}

/// Each run puts a job as of its time, with all options; what is relative counts from there.
pub async fn a_run_puts_a_job_as_of_its_time(system: System) -> Checked {
    let made = PeriodicTemplate { expires_in: Some(seconds(50)), ..every_minute("r") };
    system.at(0, PutPeriodic::new(made, moment(0))).await?;
    let mut listener = system.listen().await?;
    let fired = system.at(125, fire("r", 60, &[60, 120], 180)).await?;
    assert_eq!(fired, FirePeriodicReply { is_stale: false, jobs: jids(["r-1", "r-2"]) });
    listener.heard(&system, [heard::put("r-1", "mail"), heard::put("r-2", "mail")]).await?;
    let job = system.job("r-2").await?;
    assert_eq!((job.spawned_from, job.retries), (Some(jid("r")), 5));
    assert_eq!(job.history, [entry(120, was_put("mail"))]);
    let periodic = shown(&system, "r").await?.expect("it is there");
    assert_eq!((periodic.count, periodic.last, periodic.next), (2, Some(jid("r-2")), Some(moment(180))));
    // The first one expired at 110.
    assert_eq!(system.pop(126, "mail", "w1", 5).await?, ["r-2"]);
    Ok(())
}

/// Of two processes that find a run due, one puts the jobs.
pub async fn a_run_is_fired_once(system: System) -> Checked {
    system.at(0, PutPeriodic::new(every_minute("r"), moment(0))).await?;
    assert_eq!(system.at(60, fire("r", 60, &[60], 120)).await?.jobs, jids(["r-1"]));
    let stale = FirePeriodicReply { is_stale: true, jobs: Vec::new() };
    assert_eq!(system.at(60, fire("r", 60, &[60], 120)).await?, stale);
    assert_eq!(system.at(120, fire("r", 120, &[120], 180)).await?.jobs, jids(["r-2"]));
    system.refuses(120, fire("x", 60, &[60], 120), Refusal::NoSuchRecurring { jid: jid("x") }).await?;
    Ok(())
}

/// Due ones are found by their next runs, the longest due first; a paused one has none.
pub async fn due_periodic_jobs_are_found(system: System) -> Checked {
    let at = |name: &str, next: i32| PutPeriodic {
        next: Some(moment(next)),
        ..PutPeriodic::new(every_minute(name), moment(0))
    };
    for put in [at("late", 50), at("later", 70), at("latest", 90)] {
        system.at(0, put).await?;
    }
    let paused = PeriodicTemplate { is_paused: true, ..every_minute("paused") };
    system.at(0, PutPeriodic { next: Some(moment(1)), ..PutPeriodic::new(paused, moment(0)) }).await?;
    let due = async |now: i32, most: i64| {
        let reply = system.at(now, DuePeriodics { count: count(most) }).await?;
        Ok::<_, BackendError>((texts(reply.due.iter().map(|due| &due.template.put.jid)), reply.next))
    };
    assert_eq!(due(49, 9).await?, (vec![], Some(moment(50))));
    assert_eq!(due(75, 9).await?, (texts(["late", "later"]), Some(moment(90))));
    assert_eq!(due(75, 1).await?, (texts(["late"]), Some(moment(70))));
    assert_eq!(due(90, 9).await?, (texts(["late", "later", "latest"]), None));
    assert_eq!(shown(&system, "paused").await?.expect("it is there").next, None);
    Ok(())
}

/// A run is left out while the job of an earlier one is not finished, if the template says so.
pub async fn a_run_may_be_left_out(system: System) -> Checked {
    let made = PeriodicTemplate { overlap: Overlap::Skip, ..every_minute("r") };
    system.at(0, PutPeriodic::new(made, moment(0))).await?;
    assert_eq!(system.at(60, fire("r", 60, &[60], 120)).await?.jobs, jids(["r-1"]));
    assert_eq!(system.at(120, fire("r", 120, &[120], 180)).await?.jobs, []);
    assert_eq!(system.pop(121, "mail", "w1", 5).await?, ["r-1"]);
    assert_eq!(system.at(180, fire("r", 180, &[180], 240)).await?.jobs, []);
    system.at(181, complete("r-1", "w1")).await?;
    assert_eq!(system.at(240, fire("r", 240, &[240], 300)).await?.jobs, jids(["r-2"]));
    Ok(())
}

/// The job of an earlier run is cancelled, also while it runs, if the template says so.
pub async fn a_run_may_cancel_the_earlier_one(system: System) -> Checked {
    let made = PeriodicTemplate { overlap: Overlap::CancelOld, ..every_minute("r") };
    system.at(0, PutPeriodic::new(made, moment(0))).await?;
    system.at(60, fire("r", 60, &[60], 120)).await?;
    let popped = system.take(61, "mail", "w1").await?;
    assert_eq!(system.at(120, fire("r", 120, &[120], 180)).await?.jobs, jids(["r-2"]));
    assert!(!system.has("r-1").await?);
    let tombstone = system.at(121, Canceled { jid: jid("r-1") }).await?.expect("it was cancelled");
    assert_eq!(tombstone.because.as_deref(), Some("The next run of r has begun"));
    let late = Heartbeat { jid: jid("r-1"), holder: holding(&popped), payload: None };
    system.refuses(121, late, Refusal::NoSuchJob { jid: jid("r-1") }).await?;
    // One that others depend on stays.
    system.at(121, Put { depends: jids(["r-2"]), ..put("mail", "x") }).await?;
    assert_eq!(system.at(180, fire("r", 180, &[180], 240)).await?.jobs, jids(["r-3"]));
    assert!(system.has("r-2").await?);
    Ok(())
}

/// A run that is refused puts nothing, says why, and the next one is tried as usual.
pub async fn a_refused_run_is_shown(system: System) -> Checked {
    system.at(0, PutPeriodic::new(every_minute("r"), moment(0))).await?;
    let limits = QueueLimits { jobs_max: Some(1), ..QueueLimits::default() };
    system.at(0, SetLimits { queue: queue("mail"), limits }).await?;
    assert_eq!(system.at(60, fire("r", 60, &[60, 60], 120)).await?.jobs, jids(["r-1"]));
    let periodic = shown(&system, "r").await?.expect("it is there");
    assert!(matches!(periodic.error.as_deref(), Some(Refusal::QueueFull { .. })), "{:?}", periodic.error);
    assert_eq!((periodic.count, periodic.next), (1, Some(moment(120))));
    system.at(61, cancel(["r-1"])).await?;
    assert_eq!(system.at(120, fire("r", 120, &[120], 180)).await?.jobs, jids(["r-2"]));
    assert_eq!(shown(&system, "r").await?.expect("it is there").error, None);
    Ok(())
}

/// A periodic job that replaces another keeps the numbers of its jobs. A change needs one that is there.
pub async fn a_replaced_periodic_job_counts_on(system: System) -> Checked {
    let change = |now| PutPeriodic { must_exist: true, ..PutPeriodic::new(every_minute("r"), moment(now)) };
    system.refuses(0, change(0), Refusal::NoSuchRecurring { jid: jid("r") }).await?;
    system.at(0, PutPeriodic::new(every_minute("r"), moment(0))).await?;
    system.at(60, fire("r", 60, &[60], 120)).await?;
    assert!(!system.at(70, change(70)).await?);
    assert_eq!(system.at(120, fire("r", 120, &[120], 180)).await?.jobs, jids(["r-2"]));
    Ok(())
}

/// What could never run is refused, and nothing is stored.
pub async fn bad_periodic_jobs_are_refused(system: System) -> Checked {
    let refuses = async |made: PeriodicTemplate, expected: &str| {
        let name = made.put.jid.clone();
        let put = PutPeriodic { next: None, ..PutPeriodic::new(made, moment(0)) };
        match system.at(0, put).await {
            Err(BackendError::Refused(Refusal::BadArgument { what, .. })) => assert_eq!(what, expected),
            other => panic!("{expected}: {other:?}"),
        }
        assert!(system.at(0, Periodics::one(name)).await?.periodics.is_empty(), "{expected}");
        Ok::<_, BackendError>(())
    };
    let cron = |text: &str| template("r", Period::Cron(text.into()));
    refuses(cron("61 * * * *"), "cron").await?;
    refuses(cron("0 0 30 2 *"), "cron").await?;
    refuses(cron("every day"), "cron").await?;
    refuses(template("r", Period::Interval(seconds(0))), "interval").await?;
    refuses(PeriodicTemplate { missed: Missed::Last(0), ..every_minute("r") }, "backlog").await?;
    refuses(PeriodicTemplate { missed: Missed::Last(1_001), ..every_minute("r") }, "backlog").await?;
    refuses(every_minute(&"r".repeat(491)), "jid").await?;
    refuses(PeriodicTemplate { phrase: Some("x".repeat(513)), ..every_minute("r") }, "phrase").await?;
    let mut later = every_minute("r");
    later.put.delay = seconds(5);
    refuses(later, "put").await?;
    let fire = FirePeriodic { runs: vec![moment(1); 1_001], ..fire("r", 60, &[], 120) };
    system.at(0, PutPeriodic::new(every_minute("r"), moment(0))).await?;
    let answer = system.at(60, fire).await;
    assert!(matches!(answer, Err(BackendError::Refused(Refusal::BadArgument { .. }))), "{answer:?}");
    Ok(())
}
