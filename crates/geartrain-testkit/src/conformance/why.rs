//! Why a job does not run. That the answer is right wherever a job stands is looked at after every command of
//! every case; here is each reason once.

use super::prelude::*;

fn paused(name: &str) -> Reason {
    Reason::Paused { queue: queue(name) }
}

/// Where there is no job, there is no reason.
pub async fn an_unknown_job_has_no_reason(system: System) -> Checked {
    system.refuses(0, Why { jid: jid("unknown") }, no::such_job("unknown")).await?;
    system.at(0, recur("mail", "r", 10)).await?;
    system.refuses(0, Why { jid: jid("r") }, no::such_job("r")).await?;
    Ok(())
}

/// To ask why changes nothing, not even where jobs stand that are due.
pub async fn asking_why_changes_nothing(system: System) -> Checked {
    system.at(0, Put { delay: seconds(5), ..put("mail", "a") }).await?;
    let reply = system.ignores(9, Why { jid: jid("a") }).await?;
    assert_eq!((reply.jid, reply.state, reply.queue), (jid("a"), StateName::Scheduled, Some(queue("mail"))));
    assert_eq!(system.state("a").await?, StateName::Scheduled);
    Ok(())
}

/// A job that runs has its worker for a reason, until its lock has expired; then that the worker is silent.
pub async fn a_running_job_is_in_its_workers_hands(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    let running = Reason::Running { worker: worker("w1"), until: moment(60), warned: false };
    assert_eq!(system.why(59.9, "a").await?, std::slice::from_ref(&running));
    let stalled = Reason::Stalled { worker: worker("w1"), since: moment(60), remaining: 5, warned: false };
    assert_eq!(system.why(60, "a").await?, std::slice::from_ref(&stalled));
    system.at(60, pause("mail")).await?;
    assert_eq!(system.why(59, "a").await?, [running]);
    assert_eq!(system.why(99, "a").await?, [stalled, paused("mail")]);
    Ok(())
}

/// A warned worker has the grace period; then the next pop gets its job.
pub async fn a_warned_worker_has_its_grace(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    assert_eq!(system.pop(60, "mail", "w2", 1).await?, [""; 0]);
    let warned = Reason::Running { worker: worker("w1"), until: moment(70), warned: true };
    assert_eq!(system.why(61, "a").await?, [warned]);
    let stalled = Reason::Stalled { worker: worker("w1"), since: moment(70), remaining: 5, warned: true };
    assert_eq!(system.why(70, "a").await?, [stalled]);
    Ok(())
}

/// A job that is over is over, and one that failed says how.
pub async fn a_job_that_is_over_says_how(system: System) -> Checked {
    for name in ["complete", "failed", "crashed", "pretends"] {
        system.run(0, put("mail", name), name).await?;
    }
    system.at(1, pause("mail")).await?;
    system.at(1, complete("complete", "complete")).await?;
    assert_eq!(system.why(2, "complete").await?, [Reason::Complete { at: moment(1) }]);
    system.at(1, fail("failed", "failed", "g")).await?;
    let oops = |kind: &str| Reason::Failed { group: group(kind), message: "oops".into() };
    assert_eq!(system.why(2, "failed").await?, [oops("g")]);
    system.ask(set("crashes-max", "1")).await?;
    system.at(1, WorkerLost { worker: worker("crashed"), evidence: Some("signal 9".into()) }).await?;
    let aside =
        Reason::SetAside { group: group("crashed-mail"), crashes: 1, evidence: Some("signal 9".into()) };
    assert_eq!(system.why(2, "crashed").await?, [aside]);
    system.at(1, fail("pretends", "pretends", "crashed-mail")).await?;
    assert_eq!(system.why(2, "pretends").await?, [oops("crashed-mail")]);
    Ok(())
}

/// A blocked job names the first that it waits for and how many there are, then when it may run, then a
/// pause.
pub async fn a_blocked_job_names_what_it_waits_for(system: System) -> Checked {
    system.run(0, put("mail", "b"), "w1").await?;
    system.at(0, put("mail", "c")).await?;
    system.at(0, Put { depends: jids(["c", "b"]), delay: seconds(50), ..put("post", "a") }).await?;
    let on = |name: &str, state, count| Reason::DependsOn { jid: jid(name), state, count, failed: None };
    let later = Reason::Scheduled { at: moment(50) };
    let both = on("b", StateName::Running, 2);
    assert_eq!(system.why(1, "a").await?, [both.clone(), later.clone()]);
    system.at(1, pause("post")).await?;
    assert_eq!(system.why(1, "a").await?, [both, later, paused("post")]);
    system.at(1, fail("b", "w1", "g")).await?;
    let oops = FailedDependency { jid: jid("b"), group: group("g"), message: "oops".into() };
    let (state, failed) = (StateName::Failed, Some(Box::new(oops)));
    let behind_failed = Reason::DependsOn { jid: jid("b"), state, count: 2, failed };
    assert_eq!(system.why(50, "a").await?, [behind_failed, paused("post")]);
    system.at(51, unfail("mail", "g", 1)).await?;
    system.take(51, "mail", "w1").await?;
    system.take(51, "mail", "w1").await?;
    system.at(52, complete("b", "w1")).await?;
    system.at(52, resume("post")).await?;
    assert_eq!(system.why(53, "a").await?, [on("c", StateName::Running, 1)]);
    Ok(())
}

/// A scheduled job says when it may run, and once it is due, what keeps it from that.
pub async fn a_scheduled_job_says_when(system: System) -> Checked {
    system.at(0, Put { delay: seconds(50), ..put("mail", "a") }).await?;
    system.pop(20, "mail", "w1", 1).await?;
    let later = Reason::Scheduled { at: moment(50) };
    assert_eq!(system.why(49, "a").await?, std::slice::from_ref(&later));
    assert_eq!(system.why(50, "a").await?, [Reason::Next]);
    system.at(20, pause("mail")).await?;
    assert_eq!(system.why(49, "a").await?, [later, paused("mail")]);
    assert_eq!(system.why(50, "a").await?, [paused("mail")]);
    Ok(())
}

/// A job that nothing keeps is next, and the others say how many go before them.
pub async fn a_waiting_job_is_next_or_behind_others(system: System) -> Checked {
    system.run(0, put("mail", "first"), "w1").await?;
    for (name, value) in [("b", 0), ("c", 0), ("a", 5), ("d", -5)] {
        system.at(0, Put { priority: Some(priority(value)), ..put("mail", name) }).await?;
    }
    assert_eq!(system.why(1, "a").await?, [Reason::Next]);
    for (jobs, name) in [(1, "b"), (2, "c"), (3, "d")] {
        assert_eq!(system.why(1, name).await?, [Reason::Behind { jobs }]);
    }
    // Due jobs go behind those that wait with the same priority.
    system.at(0, Put { delay: seconds(5), ..put("mail", "later") }).await?;
    system.at(0, Put { delay: seconds(6), ..put("mail", "last") }).await?;
    assert_eq!(system.why(9, "later").await?, [Reason::Behind { jobs: 3 }]);
    assert_eq!(system.why(9, "last").await?, [Reason::Behind { jobs: 4 }]);
    assert_eq!(system.why(9, "d").await?, [Reason::Behind { jobs: 3 }]);
    Ok(())
}

/// A job that came too late and has not failed yet says so first.
pub async fn a_job_that_is_too_late_says_so(system: System) -> Checked {
    system.run(20, put("mail", "first"), "w1").await?;
    let terms = PutOptions { expires: Some(moment(50)), ..PutOptions::default() };
    system.at(20, on_terms(put("mail", "a"), terms)).await?;
    assert_eq!(system.why(50, "a").await?, [Reason::Next]);
    assert_eq!(system.why(50.5, "a").await?, [Reason::Expired { at: moment(50) }]);
    Ok(())
}

/// A job of a queue that runs as many as it may names some of them, the first to expire first.
pub async fn a_full_queue_names_who_has_its_places(system: System) -> Checked {
    system.ask(set("mail-max-concurrency", "6")).await?;
    for number in 1..=6 {
        let name = format!("j{number}");
        system.run(10 - number, put("mail", &name), "w1").await?;
    }
    system.at(10, put("mail", "a")).await?;
    let held = ["j6", "j5", "j4", "j3", "j2"].map(|name| (jid(name), worker("w1")));
    let full = |max| Reason::Concurrency { max, held: held.clone().into(), running: 6 };
    assert_eq!(system.why(11, "a").await?, [full(6)]);
    system.ask(set("mail-max-concurrency", "2")).await?;
    assert_eq!(system.why(11, "a").await?, [full(2)]);
    system.ask(set("mail-max-concurrency", "6")).await?;
    system.at(12, complete("j1", "w1")).await?;
    assert_eq!(system.why(12, "a").await?, [Reason::Next]);
    Ok(())
}

/// A job of a queue that has started as many as it may says when the next one may start.
pub async fn a_queue_at_its_rate_says_when_it_goes_on(system: System) -> Checked {
    system.at(0, limit("mail", rate(1, 10, 2))).await?;
    for name in ["a", "b", "c", "d"] {
        system.at(0, put("mail", name)).await?;
    }
    assert_eq!(system.pop(20, "mail", "w1", 9).await?, ["a", "b"]);
    let limited = Reason::RateLimit { until: moment(30) };
    assert_eq!(system.why(25, "c").await?, std::slice::from_ref(&limited));
    assert_eq!(system.why(25, "d").await?, [limited, Reason::Behind { jobs: 1 }]);
    assert_eq!(system.why(30, "c").await?, [Reason::Next]);
    Ok(())
}

/// Without a live worker the reason says so, and when one last asked.
pub async fn a_job_without_workers_says_so(system: System) -> Checked {
    system.at(100, put("mail", "a")).await?;
    let no_worker = |asked| Reason::NoWorker { klass: klass("k"), asked, others: vec![], workers: 0 };
    assert_eq!(system.why(100, "a").await?, [no_worker(None)]);
    system.at(100, can("w1", "mail", Some("other"))).await?;
    let other = Reason::NoWorker { klass: klass("k"), asked: None, others: vec![klass("other")], workers: 1 };
    assert_eq!(system.why(100, "a").await?, [other]);
    system.at(100, can("w1", "mail", Some("k"))).await?;
    assert_eq!(system.why(100, "a").await?, [Reason::Next]);
    system.at(101, gone("w1")).await?;
    assert_eq!(system.why(101, "a").await?, [no_worker(None)]);
    system.run(200, put("post", "first"), "w2").await?;
    system.at(200, put("post", "b")).await?;
    assert_eq!(system.why(245, "b").await?, [Reason::Next]);
    let later = system.why(275, "b").await?;
    let [Reason::NoWorker { asked: Some(asked), .. }] = later.as_slice() else {
        return Err(format!("there is no worker, and yet {later:?}").into());
    };
    assert!(moment(190) <= *asked && *asked <= moment(210), "they asked at 200, not at {asked}");
    Ok(())
}

/// A pop from an empty queue counts as a request for its jobs.
pub async fn a_worker_that_came_before_the_first_job_counts(system: System) -> Checked {
    system.pop(100, "mail", "w1", 1).await?;
    system.at(110, put("mail", "a")).await?;
    assert_eq!(system.why(110, "a").await?, [Reason::Next]);
    Ok(())
}

/// All that is so is told, what weighs most first.
pub async fn all_reasons_are_listed_in_their_order(system: System) -> Checked {
    system.ask(set("mail-max-concurrency", "1")).await?;
    system.at(0, limit("mail", rate(1, 1000, 1))).await?;
    system.ask(set("mail-heartbeat", "500")).await?;
    system.run(0, put("mail", "running"), "w1").await?;
    system.at(1, put("mail", "before")).await?;
    let terms = PutOptions { expires: Some(moment(50)), ..PutOptions::default() };
    system.at(2, on_terms(put("mail", "a"), terms)).await?;
    system.at(3, pause("mail")).await?;
    let told = system.why(200, "a").await?;
    let expected = [
        Reason::Expired { at: moment(50) },
        paused("mail"),
        Reason::Concurrency { max: 1, held: vec![(jid("running"), worker("w1"))], running: 1 },
        Reason::RateLimit { until: moment(1000) },
    ];
    assert_eq!(told[..4], expected);
    assert!(matches!(told[4], Reason::NoWorker { asked: Some(_), .. }), "{told:?}");
    assert_eq!(told[5..], [Reason::Behind { jobs: 1 }]);
    Ok(())
}
