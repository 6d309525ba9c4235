//! Recurring jobs.

use super::prelude::*;

/// A recurring job is what it was made as, has spawned nothing, and waits for its offset.
pub async fn a_recurring_job_is_as_it_was_made(system: System) -> Checked {
    let made = Recur {
        offset: seconds(5),
        priority: priority(2),
        retries: 3,
        tags: tags(["t"]),
        backlog: 4,
        payload: " [ ] ".into(),
        ..recur("mail", "r", 60)
    };
    system.at(10, made).await?;
    let shown = system.recurring("r").await?;
    assert_eq!((shown.jid, shown.queue, shown.klass), (jid("r"), queue("mail"), klass("k")));
    assert_eq!((shown.payload, shown.priority, shown.retries), (" [ ] ".into(), priority(2), 3));
    assert_eq!(
        (texts(shown.tags), shown.every, shown.backlog),
        (vec!["t".into()], Every::Interval(seconds(60)), 4)
    );
    assert_eq!((shown.count, shown.next), (0, moment(15)));
    assert!(!system.has("r").await?);
    assert_eq!(system.registered().await?, ["mail"]);
    Ok(())
}

/// A recurring job that says nothing of retries gives its children five, as a put; none are none, as in Qless.
pub async fn children_have_the_retries_of_a_put_unless_others_are_given(system: System) -> Checked {
    system.at(0, recur("mail", "r", 60)).await?;
    assert_eq!(system.take(0, "mail", "w1").await?.retries, 5);
    system.at(0, Recur { retries: 0, ..recur("news", "n", 60) }).await?;
    assert_eq!(system.take(0, "news", "w1").await?.retries, 0);
    assert_eq!(system.at(1, retry("n-1", "w1")).await?, -1);
    Ok(())
}

/// A child is an ordinary job, dated at its nominal time, that knows where it came from.
pub async fn a_child_is_like_its_parent_and_knows_it(system: System) -> Checked {
    let made = Recur {
        offset: seconds(5),
        priority: priority(2),
        retries: 3,
        tags: tags(["t"]),
        payload: "[1]".into(),
        ..recur("mail", "r", 60)
    };
    system.at(0, made).await?;
    assert_eq!(system.pop(4.9, "mail", "w1", 1).await?, NONE);
    assert_eq!(system.pop(8, "mail", "w1", 1).await?, ["r-1"]);
    let job = system.job("r-1").await?;
    assert_eq!((job.klass, job.payload, job.priority), (klass("k"), "[1]".into(), priority(2)));
    assert_eq!((job.retries, job.remaining, texts(job.tags)), (3, 3, vec!["t".into()]));
    assert_eq!((job.spawned_from, job.queue), (Some(jid("r")), Some(queue("mail"))));
    assert_eq!(job.history, [entry(5, was_put("mail")), entry(8, was_popped("w1"))]);
    assert_eq!(texts(system.ask(tagged("t")).await?.jids), ["r-1"]);
    Ok(())
}

/// Every interval that passed spawns one child, dated at its own time.
pub async fn every_missed_interval_spawns_a_child(system: System) -> Checked {
    system.at(0, recur("mail", "r", 10)).await?;
    assert_eq!(system.pop(25, "mail", "w1", 9).await?, ["r-1", "r-2", "r-3"]);
    for (name, when) in [("r-1", 0), ("r-2", 10), ("r-3", 20)] {
        assert_eq!(system.job(name).await?.history[0], entry(when, was_put("mail")));
    }
    let shown = system.recurring("r").await?;
    assert_eq!((shown.count, shown.next), (3, moment(30)));
    assert_eq!(system.pop(29.9, "mail", "w1", 9).await?, NONE);
    assert_eq!(system.pop(30, "mail", "w1", 9).await?, ["r-4"]);
    Ok(())
}

/// A pop spawns as many children as it wants jobs; the others come with later pops.
pub async fn a_pop_spawns_no_more_children_than_it_wants(system: System) -> Checked {
    system.at(0, recur("mail", "r", 10)).await?;
    assert_eq!(system.pop(25, "mail", "w1", 1).await?, ["r-1"]);
    assert!(!system.has("r-2").await?);
    assert_eq!(system.pop(25, "mail", "w1", 1).await?, ["r-2"]);
    assert_eq!(system.pop(25, "mail", "w1", 5).await?, ["r-3"]);
    Ok(())
}

/// Children take their place among waiting jobs by the time at which they should have come.
pub async fn children_are_ordered_by_their_nominal_times(system: System) -> Checked {
    system.at(0, Recur { offset: seconds(10), ..recur("mail", "r", 10) }).await?;
    for (now, name) in [(5, "p5"), (15, "p15"), (25, "p25")] {
        system.at(now, put("mail", name)).await?;
    }
    assert_eq!(system.pop(29, "mail", "w1", 9).await?, ["p5", "r-1", "p15", "r-2", "p25"]);
    Ok(())
}

/// A backlog makes up for so many missed intervals, and one more on the very boundary.
pub async fn a_backlog_limits_what_is_made_up_for(system: System) -> Checked {
    for name in ["on", "off"] {
        system.at(0, Recur { backlog: 1, ..recur(name, name, 60) }).await?;
    }
    assert_eq!(system.pop(600, "on", "w1", 9).await?, ["on-1", "on-2"]);
    assert_eq!(system.job("on-1").await?.history[0], entry(540, was_put("on")));
    assert_eq!(system.job("on-2").await?.history[0], entry(600, was_put("on")));
    assert_eq!(system.pop(630, "off", "w1", 9).await?, ["off-1"]);
    assert_eq!(system.job("off-1").await?.history[0], entry(600, was_put("off")));
    Ok(())
}

/// A first time between two seconds is not spawned early, but is rounded down once it is spawned.
pub async fn a_fractional_first_time_is_rounded_down_when_it_spawns(system: System) -> Checked {
    system.at(0, Recur { offset: seconds(5.7), ..recur("mail", "r", 10) }).await?;
    assert_eq!(system.pop(5.5, "mail", "w1", 1).await?, NONE);
    assert_eq!(system.pop(5.8, "mail", "w1", 1).await?, ["r-1"]);
    assert_eq!(system.job("r-1").await?.history[0], entry(5, was_put("mail")));
    assert_eq!(system.recurring("r").await?.next, moment(15));
    Ok(())
}

/// An offset may lie in the past, even before the epoch; what was missed since is spawned.
pub async fn an_offset_may_lie_in_the_past(system: System) -> Checked {
    system.at(0, Recur { offset: seconds(-20), ..recur("mail", "r", 10) }).await?;
    assert_eq!(system.pop(0, "mail", "w1", 9).await?, ["r-1", "r-2", "r-3"]);
    assert_eq!(system.job("r-1").await?.history[0], entry(-20, was_put("mail")));
    Ok(())
}

/// Several recurring jobs that are due spawn in one pop.
pub async fn several_recurring_jobs_spawn_in_one_pop(system: System) -> Checked {
    for (name, offset) in [("s", 5), ("r", 3), ("later", 50)] {
        system.at(0, Recur { offset: seconds(offset), ..recur("mail", name, 100) }).await?;
    }
    assert_eq!(system.pop(10, "mail", "w1", 5).await?, ["r-1", "s-1"]);
    Ok(())
}

/// One recurring job that is far behind can use up all that a pop wants; the next pop turns to the next one.
pub async fn a_busy_recurring_job_makes_the_others_wait(system: System) -> Checked {
    system.at(0, recur("mail", "r", 10)).await?;
    system.at(0, Recur { offset: seconds(5), ..recur("mail", "s", 10) }).await?;
    assert_eq!(system.pop(25, "mail", "w1", 2).await?, ["r-1", "r-2"]);
    assert_eq!(system.pop(25, "mail", "w1", 2).await?, ["s-1", "s-2"]);
    Ok(())
}

/// Peek spawns as a pop does; other looks do not.
pub async fn only_pop_and_peek_spawn(system: System) -> Checked {
    system.at(0, recur("mail", "r", 10)).await?;
    let counts = system.counts(25, "mail").await?;
    assert_eq!((counts.waiting, counts.recurring), (0, 1));
    assert_eq!(system.at(25, Length { queue: queue("mail") }).await?, 0);
    assert_eq!(system.list(25, Listing::Scheduled(queue("mail"))).await?, NONE);
    assert_eq!(system.list(25, Listing::Waiting(queue("mail"))).await?, NONE);
    assert!(!system.has("r-1").await?);
    let seen = system.at(25, peek("mail", 2)).await?;
    assert_eq!(texts(seen.into_iter().map(|job| job.jid)), ["r-1", "r-2"]);
    assert_eq!(system.counts(25, "mail").await?.waiting, 2);
    Ok(())
}

/// A pop that hands nothing out because the queue is paused or full spawns nothing.
pub async fn a_paused_or_full_queue_spawns_nothing(system: System) -> Checked {
    system.ask(set("full-max-concurrency", "1")).await?;
    system.run(0, put("full", "j1"), "w1").await?;
    system.at(0, pause("paused")).await?;
    for name in ["full", "paused"] {
        system.at(0, recur(name, name, 10)).await?;
        assert_eq!(system.pop(1, name, "w2", 5).await?, NONE);
        assert_eq!(system.recurring(name).await?.count, 0);
    }
    Ok(())
}

/// To make a recurring job again resets all of it but its number, and moves it.
pub async fn recurring_again_replaces_all_but_the_count(system: System) -> Checked {
    let first = Recur { tags: tags(["t"]), priority: priority(2), retries: 3, ..recur("mail", "r", 10) };
    system.at(0, first).await?;
    assert_eq!(system.pop(15, "mail", "w1", 5).await?, ["r-1", "r-2"]);
    system.at(20, Recur { klass: klass("other"), offset: seconds(7), ..recur("post", "r", 30) }).await?;
    let shown = system.recurring("r").await?;
    assert_eq!(
        (shown.queue, shown.klass, shown.every),
        (queue("post"), klass("other"), Every::Interval(seconds(30)))
    );
    assert_eq!((shown.tags, shown.priority, shown.retries), (vec![], priority(0), 0));
    assert_eq!((shown.count, shown.next), (2, moment(27)));
    assert_eq!(system.list(20, Listing::Recurring(queue("mail"))).await?, NONE);
    assert_eq!(system.pop(27, "post", "w1", 5).await?, ["r-3"]);
    Ok(())
}

/// What has been spawned outlives its parent.
pub async fn removing_a_recurring_job_leaves_its_children(system: System) -> Checked {
    system.at(0, recur("mail", "r", 10)).await?;
    system.take(0, "mail", "w1").await?;
    system.at(1, Unrecur { jid: jid("r") }).await?;
    assert_eq!(system.ask(recurring("r")).await?, None);
    assert_eq!(system.counts(1, "mail").await?.recurring, 0);
    assert_eq!(system.pop(50, "mail", "w2", 5).await?, NONE);
    assert_eq!(system.job("r-1").await?.spawned_from, Some(jid("r")));
    Ok(())
}

/// A recurring job that is not there can be removed.
pub async fn removing_an_unknown_recurring_job_is_nothing(system: System) -> Checked {
    system.at(0, put("mail", "j1")).await?;
    system.ignores(1, Unrecur { jid: jid("unknown") }).await?;
    system.ignores(1, Unrecur { jid: jid("j1") }).await?;
    Ok(())
}

/// A recurring job never overwrites a job: it passes over the numbers of those that exist.
pub async fn a_child_never_replaces_a_job_that_exists(system: System) -> Checked {
    for name in ["r-1", "r-2", "r-4"] {
        system.at(0, put("mail", name)).await?;
    }
    system.at(1, recur("post", "r", 10)).await?;
    assert_eq!(system.pop(11, "post", "w1", 5).await?, ["r-3", "r-5"]);
    assert_eq!(system.job("r-1").await?.spawned_from, None);
    assert_eq!(system.recurring("r").await?.count, 5);
    Ok(())
}

/// A recurring job made anew after its removal counts from one again, past the children that are left.
pub async fn a_removed_recurring_job_forgets_its_count(system: System) -> Checked {
    system.at(0, recur("mail", "r", 10)).await?;
    assert_eq!(system.pop(10, "mail", "w1", 5).await?, ["r-1", "r-2"]);
    system.at(11, Unrecur { jid: jid("r") }).await?;
    system.at(11, cancel(["r-1"])).await?;
    system.at(11, recur("mail", "r", 10)).await?;
    assert_eq!(system.recurring("r").await?.count, 0);
    assert_eq!(system.pop(21, "mail", "w1", 5).await?, ["r-1", "r-3"]);
    Ok(())
}

/// A recurring job's parts can be changed one by one; what is not named stays.
pub async fn a_recurring_job_can_be_changed_in_part(system: System) -> Checked {
    system.at(0, Recur { offset: seconds(100), ..recur("mail", "r", 10) }).await?;
    let before = system.recurring("r").await?;
    system.ignores(1, UpdateRecurring::new(jid("r"))).await?;
    let change = UpdateRecurring {
        priority: Some(priority(3)),
        retries: Some(4),
        backlog: Some(5),
        payload: Some(" [ ] ".into()),
        klass: Some(klass("other")),
        ..UpdateRecurring::new(jid("r"))
    };
    system.at(1, change).await?;
    let after = system.recurring("r").await?;
    assert_eq!((after.priority, after.retries, after.backlog), (priority(3), 4, 5));
    assert_eq!((after.payload, after.klass), (" [ ] ".into(), klass("other")));
    assert_eq!((after.queue, after.every), (before.queue, before.every));
    assert_eq!((after.next, after.count, after.tags), (before.next, before.count, before.tags));
    Ok(())
}

/// A new interval moves the next time by the difference, also before the first.
pub async fn a_changed_interval_shifts_the_next_time(system: System) -> Checked {
    system.at(0, Recur { offset: seconds(100), ..recur("mail", "r", 10) }).await?;
    for (interval, next) in [(25, 115), (5, 95)] {
        let change = UpdateRecurring {
            every: Some(Every::Interval(seconds(interval))),
            ..UpdateRecurring::new(jid("r"))
        };
        system.at(1, change).await?;
        assert_eq!(system.recurring("r").await?.next, moment(next));
    }
    assert_eq!(system.pop(94, "mail", "w1", 1).await?, NONE);
    assert_eq!(system.pop(100, "mail", "w1", 5).await?, ["r-1", "r-2"]);
    Ok(())
}

/// A recurring job can be moved to another queue, which is then registered, and keeps its next time.
pub async fn a_recurring_job_can_be_moved(system: System) -> Checked {
    system.at(0, Recur { offset: seconds(5), ..recur("mail", "r", 10) }).await?;
    let change = UpdateRecurring { queue: Some(queue("post")), ..UpdateRecurring::new(jid("r")) };
    system.at(1, change).await?;
    assert_eq!(system.registered().await?, ["mail", "post"]);
    assert_eq!(system.pop(5, "mail", "w1", 5).await?, NONE);
    assert_eq!(system.pop(5, "post", "w1", 5).await?, ["r-1"]);
    Ok(())
}

/// A recurring job's tags are those of its children to come, and nothing is found under them before.
pub async fn a_recurring_job_can_be_tagged_for_its_children(system: System) -> Checked {
    system.at(0, Recur { tags: tags(["a"]), offset: seconds(5), ..recur("mail", "r", 10) }).await?;
    let add = TagRecurring { jid: jid("r"), tags: tags(["a", "c", "b"]) };
    assert_eq!(texts(system.at(1, add).await?), ["a", "c", "b"]);
    let remove = UntagRecurring { jid: jid("r"), tags: tags(["a", "unknown"]) };
    assert_eq!(texts(system.at(2, remove).await?), ["c", "b"]);
    assert_eq!(system.ask(tagged("b")).await?.total, 0);
    system.take(5, "mail", "w1").await?;
    assert_eq!(texts(system.job("r-1").await?.tags), ["c", "b"]);
    assert_eq!(texts(system.ask(tagged("b")).await?.jids), ["r-1"]);
    Ok(())
}

/// A tag named twice in one call is added twice to a recurring job, as in Qless.
pub async fn a_tag_named_twice_is_added_twice_to_a_recurring_job(system: System) -> Checked {
    system.at(0, recur("mail", "r", 10)).await?;
    let add = TagRecurring { jid: jid("r"), tags: tags(["t", "t"]) };
    assert_eq!(texts(system.at(1, add).await?), ["t", "t"]);
    Ok(())
}

/// Where a job came from is not forgotten when it is put again.
pub async fn a_child_put_again_remembers_its_parent(system: System) -> Checked {
    system.at(0, recur("mail", "r", 10)).await?;
    system.take(0, "mail", "w1").await?;
    system.at(1, put_again("post", "r-1")).await?;
    assert_eq!(system.job("r-1").await?.spawned_from, Some(jid("r")));
    Ok(())
}

/// An interval with a fraction is kept to, however many children come with one pop.
pub async fn a_fractional_interval_is_kept_to(system: System) -> Checked {
    system.at(0, recur("mail", "r", 1.5)).await?;
    for (name, next) in [("r-1", 1.5), ("r-2", 3.0), ("r-3", 4.5)] {
        assert_eq!(system.pop(4, "mail", "w1", 1).await?, [name]);
        assert_eq!(system.recurring("r").await?.next, moment(next));
    }
    assert_eq!(system.pop(4, "mail", "w1", 9).await?, NONE);
    Ok(())
}
