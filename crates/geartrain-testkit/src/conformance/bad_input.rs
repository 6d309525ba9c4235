//! Bad input: refused, and nothing changes.

use super::prelude::*;

/// A system with something in every place that a bad command could disturb.
async fn furnish(system: &System) -> Checked {
    for name in ["running", "failed", "complete"] {
        system.run(0, Put { tags: Some(tags(["t"])), ..put("mail", name) }, "w1").await?;
    }
    system.at(1, fail("failed", "w1", "g")).await?;
    system.at(1, complete("complete", "w1")).await?;
    system.at(1, put("mail", "waiting")).await?;
    system.at(1, Put { delay: seconds(50), ..put("mail", "scheduled") }).await?;
    system.at(1, Put { depends: jids(["waiting"]), ..put("mail", "blocked") }).await?;
    system.at(1, Recur { offset: seconds(50), ..recur("mail", "recurring", 10) }).await?;
    system.at(1, track("waiting")).await?;
    system.at(1, set("mail-heartbeat", "30")).await?;
    Ok(())
}

/// The states of the furnished jobs that do not run.
const IDLE: [(&str, StateName); 5] = [
    ("waiting", StateName::Waiting),
    ("scheduled", StateName::Scheduled),
    ("blocked", StateName::Depends),
    ("failed", StateName::Failed),
    ("complete", StateName::Complete),
];

/// A name that is empty, too long or holds a NUL cannot even be written down.
pub async fn bad_names_cannot_be_written_down(_: System) -> Checked {
    for bad in ["", "a\0b", &"x".repeat(NAME_BYTES_MAX + 1)] {
        assert!(QueueName::new(bad).is_err() && WorkerName::new(bad).is_err() && Jid::new(bad).is_err());
        assert!(Klass::new(bad).is_err() && Tag::new(bad).is_err());
    }
    for bad in ["", "a\0b", &"x".repeat(GROUP_BYTES_MAX + 1)] {
        assert!(Group::new(bad).is_err());
    }
    Ok(())
}

/// The longest names there are work like any others.
pub async fn the_longest_names_work(system: System) -> Checked {
    let long = "é".repeat(256);
    let job = Put { klass: klass(&long), tags: Some(tags([&long])), ..put(&long, &long) };
    system.run(0, Put { retries: Some(0), ..job }, &long).await?;
    assert_eq!(system.worker_jobs(1, &long).await?.0, [long.as_str()]);
    assert_eq!(system.at(1, retry(&long, &long)).await?, -1);
    let group = format!("failed-retries-{long}");
    assert_eq!(texts(system.ask(failed(&group)).await?.jids), [long.as_str()]);
    assert_eq!(system.at(2, unfail(&long, &group, 1)).await?, 1);
    assert_eq!(texts(system.ask(tagged(&long)).await?.jids), [long]);
    Ok(())
}

/// Names are bytes: they may look like options, patterns or numbers, and only equal ones are equal.
pub async fn odd_names_are_names(system: System) -> Checked {
    for (now, name) in
        [" ", "*", "a b", "A", "a", "-1", "\n", "ql:j:x", "日本", "mail-heartbeat"].into_iter().enumerate()
    {
        let now = u32::try_from(now)?;
        system.run(now, put(name, name), name).await?;
        assert_eq!(system.worker_jobs(now, name).await?.0, [name]);
        assert_eq!(system.ask(Length { queue: queue(name) }).await?, 1);
    }
    Ok(())
}

/// A number that is infinite or none at all cannot be a moment, a span of time or a priority.
pub async fn numbers_that_are_not_finite_cannot_be_written_down(_: System) -> Checked {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(Timestamp::new(bad).is_err() && Seconds::new(bad).is_err() && Priority::new(bad).is_err());
    }
    Ok(())
}

/// A count that is negative or huge cannot be written down; the largest there is is only a limit.
pub async fn bad_counts_cannot_be_written_down(system: System) -> Checked {
    for bad in [-1, i64::MIN, 100_001, i64::MAX] {
        assert_eq!(Count::new(bad), Err(BadCount { value: bad }));
    }
    system.at(0, put("mail", "j1")).await?;
    assert_eq!(system.pop(1, "mail", "w1", 100_000).await?, ["j1"]);
    let far = Page { offset: usize::MAX, count: Count::MAX };
    assert_eq!(system.at(1, Jobs { which: Listing::Running(queue("mail")), page: far }).await?, []);
    assert_eq!(system.at(1, Tagged { page: far, ..tagged("t") }).await?, Listed::default());
    Ok(())
}

/// The largest numbers there are do no harm: sums stay finite.
pub async fn huge_numbers_stay_finite(system: System) -> Checked {
    let far = Put {
        cycles: Cycles::Accept,
        delay: seconds(f64::MAX),
        priority: Some(priority(f64::MAX)),
        ..put("mail", "far")
    };
    system.at(f64::MAX, far).await?;
    assert_eq!(system.job("far").await?.state, JobState::Scheduled { due: moment(f64::MAX) });
    assert_eq!(system.pop(f64::MAX, "mail", "w1", 1).await?, ["far"]);
    system.ask(set_any("heartbeat", "1e308")).await?;
    assert_eq!(system.at(f64::MAX, heartbeat("far", "w1")).await?, moment(f64::MAX));
    system.at(f64::MIN, complete("far", "w1")).await?;
    let run = system.stats("mail", f64::MIN).await?.run;
    assert!(run.mean.is_finite() && run.std.is_finite());
    Ok(())
}

/// Every command that needs a job refuses one that is not there.
pub async fn an_unknown_job_is_refused_by_all_that_need_one(system: System) -> Checked {
    furnish(&system).await?;
    // A recurring job is no job.
    for name in ["unknown", "recurring"] {
        system.refuses(2, requeue("mail", name), no::such_job(name)).await?;
        system.refuses(2, heartbeat(name, "w1"), no::such_job(name)).await?;
        system.refuses(2, complete(name, "w1"), no::such_job(name)).await?;
        system.refuses(2, advance(name, "w1", "post"), no::such_job(name)).await?;
        system.refuses(2, fail(name, "w1", "g"), no::such_job(name)).await?;
        system.refuses(2, retry(name, "w1"), no::such_job(name)).await?;
        system.refuses(2, timeout([name]), no::such_job(name)).await?;
        system.refuses(2, set_priority(name, 1), no::such_job(name)).await?;
        system.refuses(2, depend_on(name, ["waiting"]), no::such_job(name)).await?;
        system.refuses(2, depend_off(name, ["waiting"]), no::such_job(name)).await?;
        system.refuses(2, depend_off_all(name), no::such_job(name)).await?;
        system.refuses(2, log(name, "seen"), no::such_job(name)).await?;
        system.refuses(2, track(name), no::such_job(name)).await?;
        system.refuses(2, untrack(name), no::such_job(name)).await?;
        system.refuses(2, add_tags(name, ["t"]), no::such_job(name)).await?;
        system.refuses(2, remove_tags(name, ["t"]), no::such_job(name)).await?;
    }
    Ok(())
}

/// Every command that needs a recurring job refuses one that is not there.
pub async fn an_unknown_recurring_job_is_refused_by_all_that_need_one(system: System) -> Checked {
    furnish(&system).await?;
    for name in ["unknown", "waiting"] {
        let change = UpdateRecurring { priority: Some(priority(1)), ..UpdateRecurring::new(jid(name)) };
        system.refuses(2, change, no::such_recurring(name)).await?;
        let add = TagRecurring { jid: jid(name), tags: tags(["t"]) };
        system.refuses(2, add, no::such_recurring(name)).await?;
        let remove = UntagRecurring { jid: jid(name), tags: tags(["t"]) };
        system.refuses(2, remove, no::such_recurring(name)).await?;
    }
    Ok(())
}

/// A job that is not running cannot be finished by any caller; the refusal names its state.
pub async fn a_job_that_does_not_run_cannot_be_finished(system: System) -> Checked {
    furnish(&system).await?;
    for (name, state) in IDLE {
        system.refuses(2, heartbeat(name, "w1"), no::running(name, state)).await?;
        system.refuses(2, complete(name, "w1"), no::running(name, state)).await?;
        system.refuses(2, advance(name, "w1", "post"), no::running(name, state)).await?;
        system.refuses(2, fail(name, "w1", "g"), no::running(name, state)).await?;
        system.refuses(2, retry(name, "w1"), no::running(name, state)).await?;
        system.refuses(2, timeout([name]), no::running(name, state)).await?;
    }
    Ok(())
}

/// A job that another worker holds cannot be finished.
pub async fn a_job_of_another_worker_cannot_be_finished(system: System) -> Checked {
    furnish(&system).await?;
    let held = || no::not_held_by("w2", "running", "w1");
    system.refuses(2, heartbeat("running", "w2"), held()).await?;
    system.refuses(2, complete("running", "w2"), held()).await?;
    system.refuses(2, advance("running", "w2", "post"), held()).await?;
    system.refuses(2, fail("running", "w2", "g"), held()).await?;
    system.refuses(2, retry("running", "w2"), held()).await?;
    Ok(())
}

/// A stale token opens nothing, whatever state the job is in.
pub async fn a_stale_token_is_refused_in_every_state(system: System) -> Checked {
    furnish(&system).await?;
    let stale = || Holder::Token(Token::new(u64::MAX));
    for (name, state) in IDLE.into_iter().chain([("running", StateName::Running)]) {
        let (lost, job) = (|| no::lock(name, state), jid(name));
        let beat = Heartbeat { jid: job.clone(), holder: stale(), payload: None };
        system.refuses(2, beat, lost()).await?;
        system.refuses(2, Complete::new(job.clone(), stale()), lost()).await?;
        system.refuses(2, Fail { holder: stale(), ..fail(name, "w1", "g") }, lost()).await?;
        system.refuses(2, Retry::new(job, stale()), lost()).await?;
    }
    Ok(())
}

/// A job cannot be made to wait for itself, in however many steps, by a put.
pub async fn a_put_that_closes_a_cycle_is_refused(system: System) -> Checked {
    let on = |put: Put, name: &str| Put { depends: jids([name]), ..put };
    system.refuses(0, on(put("mail", "a"), "a"), no::cycle("a", "a")).await?;
    assert!(!system.has("a").await?);
    system.at(0, put("mail", "a")).await?;
    for (name, needed) in [("b", "a"), ("c", "b"), ("d", "c"), ("e", "d")] {
        system.at(0, on(put("mail", name), needed)).await?;
    }
    for through in ["a", "b", "e"] {
        system.refuses(1, on(put_again("mail", "a"), through), no::cycle("a", through)).await?;
    }
    system.refuses(1, on(requeue("mail", "b"), "e"), no::cycle("b", "e")).await?;
    Ok(())
}

/// Nor can it by a change of what it waits for, nor on its way to its next queue.
pub async fn other_ways_to_close_a_cycle_are_refused(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(0, put("mail", "x")).await?;
    system.at(0, Put { depends: jids(["a", "x"]), ..put("mail", "b") }).await?;
    system.at(0, Put { depends: jids(["b"]), ..put("mail", "c") }).await?;
    system.refuses(1, depend_on("b", ["b"]), no::cycle("b", "b")).await?;
    system.refuses(1, depend_on("b", ["x", "c"]), no::cycle("b", "c")).await?;
    for through in ["a", "b", "c"] {
        let next = Next { depends: jids([through]), ..Next::new(queue("post")) };
        let closing = Complete { next: Some(next), ..complete("a", "w1") };
        system.refuses(1, closing, no::cycle("a", through)).await?;
    }
    Ok(())
}

/// A put that is refused has not stripped the job of its tags, as it would have in Qless.
pub async fn putting_a_job_badly_keeps_its_tags(system: System) -> Checked {
    system.at(0, Put { tags: Some(tags(["t"])), ..put("mail", "j1") }).await?;
    let bad = Put { tags: Some(tags(["u"])), depends: jids(["j1"]), ..put_again("post", "j1") };
    system.refuses(1, bad, no::cycle("j1", "j1")).await?;
    assert_eq!(texts(system.job("j1").await?.tags), ["t"]);
    assert_eq!(texts(system.ask(tagged("t")).await?.jids), ["j1"]);
    Ok(())
}

/// One command may name more jobs than Qless could take.
pub async fn many_names_fit_into_one_command(system: System) -> Checked {
    let names: Vec<String> = (0..10_000).map(|number| format!("j{number}")).collect();
    let puts = names.iter().map(|name| Call::from(put("mail", name))).collect();
    system.backend.execute(puts).await?;
    assert_eq!(system.ask(GetMany { jids: jids(&names) }).await?.len(), 10_000);
    assert_eq!(system.pop(0, "mail", "w1", 10_000).await?, names);
    system.at(1, timeout(&names)).await?;
    assert_eq!(system.at(2, cancel(&names)).await?, 10_000);
    Ok(())
}

/// Two ways to one job are no cycle, nor is a way that was given up in the same put.
pub async fn what_is_no_cycle_is_accepted(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    for name in ["b", "c"] {
        system.at(0, Put { depends: jids(["a"]), ..put("mail", name) }).await?;
    }
    system.at(0, Put { depends: jids(["b", "c"]), ..put("mail", "d") }).await?;
    assert_eq!(texts(system.job("d").await?.dependencies()), ["b", "c"]);
    system.at(1, Put { depends: jids(["c"]), ..put_again("mail", "b") }).await?;
    assert_eq!(texts(system.job("b").await?.dependencies()), ["c"]);
    Ok(())
}

/// A dependency graph too large to rule out a cycle is refused, unless the caller accepts cycles.
pub async fn more_dependencies_than_can_be_followed_are_refused(system: System) -> Checked {
    let on = |name: &str, needed: &str| Put {
        depends: jids([needed]),
        cycles: Cycles::Accept,
        ..put("mail", name)
    };
    system.at(0, put("mail", "c0")).await?;
    let chain = (1..=10_010).map(|link| on(&format!("c{link}"), &format!("c{}", link - 1)));
    let calls = chain.map(|put| Call::at(moment(0), put)).collect();
    assert!(system.backend.execute(calls).await?.iter().all(Result::is_ok));
    system.at(0, put("mail", "a")).await?;
    system.at(0, on("b", "a")).await?;
    let long = Put { existing: Existing::Replace, ..on("a", "c10010") };
    let careful = Put { cycles: Cycles::Refuse, ..long.clone() };
    let too_many = Refusal::TooManyDependencies { jid: jid("a"), max: 10_000 };
    refused(system.at(1, careful).await, too_many);
    assert_eq!(system.state("a").await?, StateName::Waiting);
    assert_eq!(system.at(1, long).await?, PutReply::Replaced);
    Ok(())
}

/// A payload of 64 MiB is the largest, wherever it comes in.
pub async fn a_payload_over_the_limit_is_refused(system: System) -> Checked {
    furnish(&system).await?;
    let max = 64 << 20;
    let large = Payload::from(vec![b' '; max + 1]);
    let too_large = || Refusal::TooLarge { what: "payload".into(), bytes: max + 1, max };
    let payload = Some(large.clone());
    system.refuses(2, Put { payload: large.clone(), ..put("mail", "new") }, too_large()).await?;
    system.refuses(2, Put { payload: large.clone(), ..put_again("mail", "running") }, too_large()).await?;
    system
        .refuses(2, Heartbeat { payload: payload.clone(), ..heartbeat("running", "w1") }, too_large())
        .await?;
    system
        .refuses(2, Complete { payload: payload.clone(), ..complete("running", "w1") }, too_large())
        .await?;
    system.refuses(2, Fail { payload: payload.clone(), ..fail("running", "w1", "g") }, too_large()).await?;
    system.refuses(2, Recur { payload: large.clone(), ..recur("mail", "new", 10) }, too_large()).await?;
    let change = UpdateRecurring { payload, ..UpdateRecurring::new(jid("recurring")) };
    system.refuses(2, change, too_large()).await?;
    let most = Payload::from(large.to_shared().slice(1..));
    assert_eq!(system.at(2, Put { payload: most, ..put("mail", "new") }).await?, PutReply::Created);
    assert_eq!(system.job("new").await?.payload.bytes().len(), max);
    Ok(())
}

/// What is said about a job may not be larger than its payload may.
pub async fn a_message_over_the_limit_is_refused(system: System) -> Checked {
    furnish(&system).await?;
    let max = 64 << 20;
    let large = " ".repeat(max + 1);
    let too_large = |what: &'static str| Refusal::TooLarge { what: what.into(), bytes: max + 1, max };
    let failing = Fail { message: large.clone(), ..fail("running", "w1", "g") };
    system.refuses(2, failing, too_large("message")).await?;
    let back = Retry { group: Some(group("g")), message: Some(large.clone()), ..retry("running", "w1") };
    system.refuses(2, back, too_large("message")).await?;
    // What is logged stays in the job's history, and so has a limit of its own.
    let max = 64 << 10;
    let large = " ".repeat(max + 1);
    let too_large = |what: &'static str| Refusal::TooLarge { what: what.into(), bytes: max + 1, max };
    system.refuses(2, log("waiting", large.clone()), too_large("message")).await?;
    system.refuses(2, Log { data: Some(large), ..log("waiting", "seen") }, too_large("log data")).await?;
    Ok(())
}

/// Where names are needed, none is too few, and to unfail no job is a mistake.
pub async fn empty_lists_are_refused_where_names_are_needed(system: System) -> Checked {
    furnish(&system).await?;
    for order in [PopOrder::Strict, PopOrder::RoundRobin { turn: 3 }, PopOrder::Priority { turn: 3 }] {
        let pop = Pop { queues: vec![], order, ..pop("mail", "w2") };
        system.refuses(2, pop, no::good("queues")).await?;
    }
    system.refuses(2, Pause { queues: vec![] }, no::good("queues")).await?;
    system.refuses(2, Resume { queues: vec![] }, no::good("queues")).await?;
    system.refuses(2, ForgetQueues { queues: vec![] }, no::good("queues")).await?;
    system.refuses(2, ForgetWorkers { workers: vec![] }, no::good("workers")).await?;
    system.refuses(2, unfail("mail", "g", 0), no::good("count")).await?;
    Ok(())
}

/// The name of an option has one byte or more, not too many, and no NUL.
pub async fn bad_option_names_are_refused(system: System) -> Checked {
    for name in [String::new(), "a\0b".into(), "x".repeat(4161)] {
        system.refuses(0, set(name.clone(), "1"), no::good("option")).await?;
        system.refuses(0, set_any(name, "1"), no::good("option")).await?;
    }
    system.ask(set_any("x".repeat(4160), "1")).await?;
    assert_eq!(system.ask(AllConfig).await?.len(), 8);
    Ok(())
}

/// An option that must be a number keeps its last good value.
pub async fn a_bad_value_leaves_the_option_as_it_was(system: System) -> Checked {
    system.ask(set("heartbeat", "30")).await?;
    for value in ["soon", "", "nan", "inf", "-5", "0", "1e308"] {
        system.refuses(0, set("heartbeat", value), no::good("value")).await?;
    }
    assert_eq!(system.run(0, put("mail", "j1"), "w1").await?.lock.expires, moment(30));
    Ok(())
}

/// A recurring job needs an interval above zero, and a name short enough to put a number behind it.
pub async fn bad_recurring_jobs_are_refused(system: System) -> Checked {
    furnish(&system).await?;
    for interval in [0.0, -1.0] {
        system.refuses(2, recur("mail", "new", interval), no::good("interval")).await?;
        system.refuses(2, recur("mail", "recurring", interval), no::good("interval")).await?;
    }
    system.refuses(2, recur("mail", &"x".repeat(491), 10), no::good("jid")).await?;
    let longest = "x".repeat(490);
    system.at(2, recur("mail", &longest, 10)).await?;
    assert_eq!(system.pop(2, "mail", "w1", 2).await?, ["waiting".to_string(), format!("{longest}-1")]);
    Ok(())
}

/// A change of a recurring job is made whole or not at all.
pub async fn a_bad_change_of_a_recurring_job_changes_none_of_it(system: System) -> Checked {
    furnish(&system).await?;
    for interval in [0, -5] {
        let change = UpdateRecurring {
            priority: Some(priority(9)),
            queue: Some(queue("post")),
            every: Some(Every::Interval(seconds(interval))),
            ..UpdateRecurring::new(jid("recurring"))
        };
        system.refuses(2, change, no::good("interval")).await?;
    }
    Ok(())
}

/// Time 0 is a time like any other.
pub async fn a_moment_of_nought_is_legal(system: System) -> Checked {
    assert_eq!(system.run(0, put("mail", "j1"), "w1").await?.lock.expires, moment(60));
    assert_eq!(system.at(0, complete("j1", "w1")).await?, CompleteReply::Complete);
    assert_eq!(system.job("j1").await?.state, JobState::Complete { at: moment(0) });
    assert_eq!(system.list(0, Listing::Complete).await?, ["j1"]);
    Ok(())
}

/// Moments before the epoch are moments like any others: jobs come due, locks expire, workers and days age.
pub async fn moments_before_the_epoch_are_legal(system: System) -> Checked {
    system.clock.set(-1000);
    system.at(-1000, Put { delay: seconds(100), ..put("mail", "j1") }).await?;
    assert_eq!(system.pop(-900.1, "mail", "w1", 1).await?, NONE);
    assert_eq!(system.take(-900, "mail", "w1").await?.lock.expires, moment(-840));
    assert_eq!(system.counts(-840, "mail").await?.stalled, 1);
    assert_eq!(system.worker_jobs(-841, "w1").await?, (vec!["j1".into()], vec![]));
    assert_eq!(system.worker_jobs(-839, "w1").await?, (vec![], vec!["j1".into()]));
    assert_eq!(system.pop(-840, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.pop(-830, "mail", "w2", 1).await?, ["j1"]);
    let stats = system.stats("mail", -1).await?;
    assert_eq!((stats.wait.count, stats.retries), (2, 1));
    assert_eq!(system.stats("mail", 0).await?.wait.count, 0);
    system.ask(set("jobs-history", "10")).await?;
    system.at(-820, complete("j1", "w2")).await?;
    system.run(-810, put("mail", "j2"), "w2").await?;
    system.at(-810, complete("j2", "w2")).await?;
    assert_eq!(system.list(-810, Listing::Complete).await?, ["j2"]);
    Ok(())
}

/// Time may go backwards between calls: each is taken at its word.
pub async fn time_may_go_backwards(system: System) -> Checked {
    system.at(1000, Put { delay: seconds(100), ..put("mail", "later") }).await?;
    system.at(1000, put("mail", "j1")).await?;
    assert_eq!(system.pop(500, "mail", "w1", 5).await?, ["j1"]);
    assert_eq!(system.job("j1").await?.history[1], entry(500, was_popped("w1")));
    assert_eq!(system.at(400, heartbeat("j1", "w1")).await?, moment(460));
    assert_eq!(system.pop(450, "mail", "w2", 5).await?, NONE);
    system.at(300, complete("j1", "w1")).await?;
    assert_eq!(system.job("j1").await?.state, JobState::Complete { at: moment(300) });
    assert_eq!(system.workers(500).await?, ["w2", "w1"]);
    Ok(())
}

/// A job has at most a thousand tags, however it gets them.
pub async fn too_many_tags_are_refused(system: System) -> Checked {
    let many: Vec<String> = (0..=1000).map(|number| format!("t{number}")).collect();
    system.refuses(0, Put { tags: Some(tags(&many)), ..put("mail", "j1") }, no::good("tags")).await?;
    system.refuses(0, Recur { tags: tags(&many), ..recur("mail", "r", 60) }, no::good("tags")).await?;
    system.at(0, Put { tags: Some(tags(&many[..999])), ..put("mail", "j1") }).await?;
    let add = |names: &[&str]| AddTags { jid: jid("j1"), tags: tags(names) };
    system.refuses(1, add(&["a", "b"]), no::good("tags")).await?;
    assert_eq!(system.at(2, add(&["a"])).await?.len(), 1000);
    Ok(())
}

/// A pop looks into at most 1,024 queues.
pub async fn too_many_queues_are_refused(system: System) -> Checked {
    let many = |count: usize| queues((0..count).map(|number| format!("q{number}")));
    let pop = |queues| Pop { queues, ..pop("mail", "w1") };
    system.refuses(0, pop(many(1025)), no::good("queues")).await?;
    assert!(system.at(0, pop(many(1024))).await?.jobs.is_empty());
    Ok(())
}

/// A key is 1 to 4,095 bytes, and the longest works like any other.
pub async fn bad_keys_cannot_be_written_down(system: System) -> Checked {
    for bad in [0, 4096, 100_000] {
        assert_eq!(UniqueKey::new(vec![b'x'; bad]).map_err(|bad| bad.what), Err("unique key"));
    }
    let longest = "x".repeat(UNIQUE_BYTES_MAX);
    assert_eq!(system.at(0, unique("mail", "a", &longest)).await?, PutReply::Created);
    let second = system.at(0, unique("mail", "b", &longest)).await?;
    assert_eq!(second, PutReply::Coalesced { jid: jid("a") });
    Ok(())
}

/// Progress is out of at least one and at most the whole; chance is from 0 to 1; a backoff neither shrinks
/// nor lasts for ever.
pub async fn bad_portions_chances_and_backoffs_cannot_be_written_down(system: System) -> Checked {
    for (part, whole) in [(0, 0), (1, 0), (5, 4), (u64::MAX, 1)] {
        assert_eq!(Portion::new(part, whole).map_err(|bad| bad.what), Err("progress"));
    }
    for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert_eq!(RandomUnit::new(bad).map_err(|bad| bad.what), Err("chance"));
    }
    let far = seconds(315_360_001);
    for (first, factor, max, jitter) in [
        (seconds(-1), 2.0, seconds(9), 0.0),
        (far, 2.0, far, 0.0),
        (seconds(1), 0.5, seconds(9), 0.0),
        (seconds(1), f64::NAN, seconds(9), 0.0),
        (seconds(1), 2.0, seconds(0), 0.0),
        (seconds(1), 2.0, far, 0.0),
        (seconds(1), 2.0, seconds(9), 1.1),
        (seconds(1), 2.0, seconds(9), -0.1),
    ] {
        assert_eq!(Backoff::exponential(first, factor, max, jitter).map_err(|bad| bad.what), Err("backoff"));
    }
    let popped = system.run(0, put("mail", "a"), "w1").await?;
    system.at(1, progress("a", holding(&popped), u64::MAX, u64::MAX)).await?;
    let most = system.details("a").await?.progress.map(|progress| progress.portion.percent());
    assert_eq!(most, Some(100));
    Ok(())
}

/// An attempt may take, and a result be kept for, more than nothing and at most ten years; a job may cost at
/// least one worker.
pub async fn bad_terms_are_refused(system: System) -> Checked {
    furnish(&system).await?;
    let nothing = PutOptions::default;
    for bad in [seconds(0), seconds(-1), seconds(315_360_001), seconds(f64::MAX)] {
        for (what, terms) in [
            ("timeout", PutOptions { attempt_max: Some(bad), ..nothing() }),
            ("result_for", PutOptions { result_ttl: Some(bad), ..nothing() }),
        ] {
            system.refuses(2, on_terms(put("mail", "new"), terms.clone()), no::good(what)).await?;
            system.refuses(2, on_terms(put("mail", "waiting"), terms.clone()), no::good(what)).await?;
            system.refuses(2, on_terms(put_again("mail", "running"), terms), no::good(what)).await?;
        }
        let ability = Capability { attempt_max: Some(bad), ..ability("mail", None) };
        for change in [AnnounceChange::Can(vec![ability.clone()]), AnnounceChange::Only(vec![ability])] {
            system.refuses(2, announce("w1", change), no::good("timeout")).await?;
        }
    }
    let none = PutOptions { crashes_max: Some(0), ..nothing() };
    let before = system.snapshot(2.0).await?;
    for put in [put("mail", "new"), put("mail", "waiting"), put_again("mail", "running")] {
        let answer = system.at(2, on_terms(put, none.clone())).await;
        assert!(matches!(answer, Err(BackendError::Refused(Refusal::BadArgument { .. }))), "{answer:?}");
    }
    assert_eq!(system.snapshot(2.0).await?, before);
    let most = PutOptions {
        attempt_max: Some(DURATION_MAX),
        result_ttl: Some(DURATION_MAX),
        crashes_max: Some(u32::MAX),
        ..nothing()
    };
    assert_eq!(system.at(2, on_terms(put("mail", "new"), most)).await?, PutReply::Created);
    Ok(())
}

/// What a worker sends or says of a job that it does not hold is refused.
pub async fn progress_and_chunks_need_the_job(system: System) -> Checked {
    furnish(&system).await?;
    let says = |name: &str, by: &str| progress(name, held_by(by), 1, 2);
    let sends = |name: &str, by: &str| chunk(name, held_by(by), "x");
    for name in ["unknown", "recurring"] {
        system.refuses(2, says(name, "w1"), no::such_job(name)).await?;
        system.refuses(2, sends(name, "w1"), no::such_job(name)).await?;
        system.refuses(2, hand_back(name, "w1"), no::such_job(name)).await?;
        system.refuses(2, Why { jid: jid(name) }, no::such_job(name)).await?;
    }
    for (name, state) in IDLE {
        system.refuses(2, says(name, "w1"), no::running(name, state)).await?;
        system.refuses(2, sends(name, "w1"), no::running(name, state)).await?;
        system.refuses(2, hand_back(name, "w1"), no::running(name, state)).await?;
        let old = Holder::Token(Token::new(1 << 60));
        system.refuses(2, progress(name, old.clone(), 1, 2), no::lock(name, state)).await?;
        system.refuses(2, chunk(name, old, "x"), no::lock(name, state)).await?;
    }
    system.refuses(2, says("running", "w2"), no::not_held_by("w2", "running", "w1")).await?;
    system.refuses(2, sends("running", "w2"), no::not_held_by("w2", "running", "w1")).await?;
    Ok(())
}

/// A chunk may not be larger than a payload, with or without waiters.
pub async fn a_chunk_over_the_limit_is_refused(system: System) -> Checked {
    furnish(&system).await?;
    let bytes = Payload::from(vec![b' '; (64 << 20) + 1]);
    let before = system.snapshot(2.0).await?;
    too_large(system.at(2, Chunk { bytes, ..chunk("running", held_by("w1"), "") }).await, "chunk");
    assert_eq!(system.snapshot(2.0).await?, before);
    Ok(())
}

/// The options of results and crashes are numbers.
pub async fn options_beyond_qless_take_numbers_only(system: System) -> Checked {
    for option in ["results-bytes", "crashes-max"] {
        for value in ["many", "", "nan", "inf"] {
            system.refuses(0, set(option, value), no::good("value")).await?;
        }
    }
    Ok(())
}
