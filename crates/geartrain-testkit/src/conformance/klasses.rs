//! Pops that are restricted to klasses, by name or by what their worker announced.

use super::prelude::*;

fn put_of(kind: &str, to: &str, job: impl AsRef<str>) -> Put {
    Put { klass: klass(kind), ..put(to, job) }
}

fn pop_of(kinds: &[&str], from: &str, by: &str) -> Pop {
    Pop { klasses: Some(kinds.iter().copied().map(klass).collect()), ..pop(from, by) }
}

async fn popped(system: &System, now: i32, pop: Pop) -> Result<Vec<String>, Surprise> {
    Ok(popped_jids(system.at(now, pop).await?))
}

/// Jobs of other klasses are passed over; those of the named ones come in the order of the queue.
pub async fn a_pop_of_klasses_gets_only_their_jobs(system: System) -> Checked {
    for (job, kind, order) in [("a", "alpha", 0), ("b", "beta", 5), ("c", "gamma", 1), ("d", "alpha", 2)] {
        system.at(0, Put { priority: Some(priority(order)), ..put_of(kind, "mail", job) }).await?;
    }
    let both = |wanted| Pop { count: count(wanted), ..pop_of(&["gamma", "alpha", "gamma"], "mail", "w1") };
    assert_eq!(popped(&system, 1, both(2)).await?, ["d", "c"]);
    assert_eq!(popped(&system, 1, pop_of(&["unknown"], "mail", "w1")).await?, NONE);
    assert_eq!(popped(&system, 1, both(2)).await?, ["a"]);
    assert_eq!(popped(&system, 1, pop("mail", "w1")).await?, ["b"]);
    Ok(())
}

/// A restricted pop sees what comes and goes after the first one, in whatever way.
pub async fn jobs_that_begin_to_wait_later_are_found_by_their_klass(system: System) -> Checked {
    assert_eq!(popped(&system, 0, pop_of(&["alpha"], "mail", "w1")).await?, NONE);
    system.at(0, put_of("alpha", "mail", "gone")).await?;
    system.at(0, put_of("alpha", "mail", "a")).await?;
    system.at(0, put_of("alpha", "mail", "b")).await?;
    system.at(1, cancel(["gone"])).await?;
    assert_eq!(popped(&system, 1, pop("mail", "w1")).await?, ["a"]);
    system.at(2, retry("a", "w1")).await?;
    system.at(3, set_priority("a", 9)).await?;
    assert_eq!(popped(&system, 4, pop_of(&["alpha"], "mail", "w1")).await?, ["a"]);
    system.at(5, timeout(["a"])).await?;
    system.at(6, Put { klass: klass("beta"), ..put_again("mail", "a") }).await?;
    assert_eq!(popped(&system, 7, pop_of(&["beta"], "mail", "w1")).await?, ["a"]);
    assert_eq!(popped(&system, 7, pop_of(&["alpha"], "mail", "w1")).await?, ["b"]);
    Ok(())
}

/// A lock that expired is taken over only by a pop that may have the job's klass.
pub async fn an_expired_lock_is_taken_over_for_its_klass_only(system: System) -> Checked {
    system.ask(set("grace-period", "0")).await?;
    for (job, kind) in [("a", "alpha"), ("b", "beta")] {
        system.at(0, put_of(kind, "mail", job)).await?;
    }
    assert_eq!(popped_jids(system.at(1, pop_many("mail", "w1", 2)).await?), ["a", "b"]);
    assert_eq!(popped(&system, 100, pop_of(&["beta"], "mail", "w2")).await?, ["b"]);
    assert_eq!(popped(&system, 100, pop_of(&["beta"], "mail", "w2")).await?, NONE);
    assert_eq!(system.job("a").await?.qless.worker, Some(worker("w1")));
    assert_eq!(popped(&system, 100, pop_of(&["alpha"], "mail", "w2")).await?, ["a"]);
    Ok(())
}

/// What is due of other klasses stays as it is: scheduled jobs, and recurring ones.
pub async fn a_pop_of_klasses_moves_only_their_due_jobs(system: System) -> Checked {
    for (job, kind) in [("a", "alpha"), ("b", "beta")] {
        system.at(0, Put { delay: seconds(10), ..put_of(kind, "mail", job) }).await?;
        system.at(0, Recur { klass: klass(kind), ..recur("mail", &format!("r-{job}"), 100) }).await?;
    }
    assert_eq!(popped(&system, 20, pop_of(&["beta"], "mail", "w1")).await?, ["r-b-1"]);
    assert_eq!(popped(&system, 20, pop_of(&["beta"], "mail", "w1")).await?, ["b"]);
    assert_eq!(popped(&system, 20, pop_of(&["beta"], "mail", "w1")).await?, NONE);
    assert_eq!(system.state("a").await?, StateName::Scheduled);
    assert!(!system.has("r-a-1").await?);
    Ok(())
}

/// The klasses that a worker announced for a queue restrict its pops there; a capability without a klass, and
/// one of another queue, do not.
pub async fn announced_klasses_restrict_the_pops_of_a_worker(system: System) -> Checked {
    for (job, kind) in [("a", "alpha"), ("b", "beta"), ("c", "gamma")] {
        system.at(0, put_of(kind, "mail", job)).await?;
    }
    system.at(1, can("w1", "mail", Some("beta"))).await?;
    system.at(1, can("w2", "post", Some("beta"))).await?;
    let three = |by| pop_many("mail", by, 3);
    assert_eq!(popped(&system, 2, three("w1")).await?, ["b"]);
    assert_eq!(popped(&system, 2, three("w2")).await?, ["a", "c"]);
    system.at(3, put_of("alpha", "mail", "d")).await?;
    assert_eq!(popped(&system, 3, three("w1")).await?, NONE);
    system.at(4, can("w1", "mail", None)).await?;
    assert_eq!(popped(&system, 4, three("w1")).await?, ["d"]);
    Ok(())
}

/// The klasses that a pop names count, whatever its worker announced.
pub async fn the_klasses_of_a_pop_go_before_announced_ones(system: System) -> Checked {
    for (job, kind) in [("a", "alpha"), ("b", "beta")] {
        system.at(0, put_of(kind, "mail", job)).await?;
    }
    system.at(1, can("w1", "mail", Some("alpha"))).await?;
    assert_eq!(popped(&system, 2, pop_of(&["beta"], "mail", "w1")).await?, ["b"]);
    Ok(())
}

/// Several queues are served in each order, as if they held no other klasses.
pub async fn several_queues_are_popped_by_klass_in_every_order(system: System) -> Checked {
    for order in [PopOrder::Strict, PopOrder::RoundRobin { turn: 0 }, PopOrder::Priority { turn: 0 }] {
        for (job, at, kind, rank) in
            [("a", "x", "alpha", 1), ("b", "x", "beta", 9), ("c", "y", "alpha", 5), ("d", "x", "alpha", 0)]
        {
            let put = Put { existing: Existing::Replace, ..put_of(kind, at, job) };
            system.at(0, Put { priority: Some(priority(rank)), ..put }).await?;
        }
        let expected = match order {
            PopOrder::Strict => ["a", "d", "c"],
            PopOrder::RoundRobin { .. } => ["a", "c", "d"],
            PopOrder::Priority { .. } => ["c", "a", "d"],
        };
        let pop = Pop { queues: queues(["x", "y"]), order, count: count(9), ..pop_of(&["alpha"], "x", "w1") };
        assert_eq!(popped(&system, 1, pop).await?, expected, "{order:?}");
    }
    Ok(())
}

/// A parked pop that may not have a job does not keep it from one behind it.
pub async fn a_job_goes_to_the_first_parked_pop_of_its_klass(system: System) -> Checked {
    let mut alpha = system.waits(pop_of(&["alpha"], "mail", "w1"), 600).await?;
    let beta = system.waits(pop_of(&["beta"], "mail", "w2"), 600).await?;
    let mut later = system.waits(pop_of(&["beta"], "mail", "w3"), 600).await?;
    system.now(put_of("beta", "mail", "b")).await?;
    assert_eq!(beta.served(&system).await?, ["b"]);
    alpha.still_waits(&system).await?;
    later.still_waits(&system).await?;
    system.now(put_of("alpha", "mail", "a")).await?;
    assert_eq!(alpha.served(&system).await?, ["a"]);
    let any = system.waits(pop("mail", "w4"), 600).await?;
    system.now(put_of("gamma", "mail", "c")).await?;
    assert_eq!(any.served(&system).await?, ["c"]);
    system.now(put_of("beta", "mail", "d")).await?;
    assert_eq!(later.served(&system).await?, ["d"]);
    Ok(())
}

/// A list of klasses has at least one, and not too many.
pub async fn bad_lists_of_klasses_are_refused(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    let many = |many: usize| Pop { klasses: Some(vec![klass("k"); many]), ..pop("mail", "w1") };
    system.refuses(1, many(0), no::good("klasses")).await?;
    system.refuses(1, many(1_025), no::good("klasses")).await?;
    assert_eq!(popped(&system, 1, many(1_024)).await?, ["a"]);
    Ok(())
}

/// A job whose klass no worker announced says so, with what they announced. Their pops do not count for it.
pub async fn why_names_the_klasses_that_workers_announced(system: System) -> Checked {
    system.at(0, put_of("beta", "mail", "b")).await?;
    let no_worker = |others: &[&str], workers| Reason::NoWorker {
        klass: klass("beta"),
        asked: None,
        others: others.iter().copied().map(klass).collect(),
        workers,
    };
    system.at(1, can("w1", "mail", Some("gamma"))).await?;
    assert_eq!(popped(&system, 1, pop("mail", "w1")).await?, NONE);
    assert_eq!(system.why(1, "b").await?, [no_worker(&["gamma"], 1)]);
    system.at(2, can("w2", "mail", Some("alpha"))).await?;
    system.at(2, can("w2", "mail", Some("gamma"))).await?;
    system.at(2, can("w3", "post", Some("beta"))).await?;
    assert_eq!(system.why(2, "b").await?, [no_worker(&["alpha", "gamma"], 2)]);
    assert_eq!(popped(&system, 3, pop_of(&["delta"], "mail", "w4")).await?, NONE);
    assert_eq!(system.why(3, "b").await?, [Reason::Next]);
    Ok(())
}
