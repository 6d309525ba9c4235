//! How a job gets into a queue.

use super::prelude::*;

/// A new job waits, with no priority, five retries, and its arrival in its history.
pub async fn a_new_job_waits_with_the_defaults(system: System) -> Checked {
    assert_eq!(system.at(10.5, put("mail", "j1")).await?, PutReply::Created);
    let job = system.job("j1").await?;
    assert_eq!((job.jid, job.klass, job.queue), (jid("j1"), klass("k"), Some(queue("mail"))));
    assert_eq!((job.state, job.payload), (JobState::Waiting, "{}".into()));
    assert_eq!((job.priority, job.retries, job.remaining), (priority(0), 5, 5));
    assert_eq!((job.tags, job.dependents, job.tracked), (vec![], vec![], false));
    assert_eq!((job.past_failure, job.spawned_from), (None, None));
    assert_eq!(job.history, [entry(10, was_put("mail"))]);
    assert_eq!(job.qless, QlessView { state: "waiting", worker: None, expires: moment(0) });
    Ok(())
}

/// What a put says about a job is what the job says about itself.
pub async fn a_new_job_is_as_it_was_put(system: System) -> Checked {
    let given = Put {
        klass: klass("welcome"),
        priority: Some(priority(2.7)),
        retries: Some(0),
        tags: Some(tags(["b", "a"])),
        ..put("mail", "j1")
    };
    system.at(0, given).await?;
    let job = system.job("j1").await?;
    assert_eq!((job.klass, job.priority), (klass("welcome"), priority(2.7)));
    assert_eq!((job.retries, job.remaining), (0, 0));
    assert_eq!(texts(job.tags), ["b", "a"]);
    Ok(())
}

/// A payload is bytes, kept as they are: blanks, empty lists, and what is no text at all.
pub async fn a_payload_is_kept_byte_for_byte(system: System) -> Checked {
    for (name, bytes) in [("j1", &b" { \"x\" : [] } "[..]), ("j2", b"[]"), ("j3", b""), ("j4", b"\0\xff\n")] {
        system.at(0, Put { payload: bytes.into(), ..put("mail", name) }).await?;
        assert_eq!(system.job(name).await?.payload.bytes(), bytes);
        assert_eq!(system.take(0, "mail", "w1").await?.payload.bytes(), bytes);
    }
    Ok(())
}

/// A delayed job may run from the moment at which it is due, and not before.
pub async fn a_delayed_job_is_scheduled_until_it_is_due(system: System) -> Checked {
    system.at(5, Put { delay: seconds(10), ..put("mail", "j1") }).await?;
    let job = system.job("j1").await?;
    assert_eq!((job.state, job.qless.state), (JobState::Scheduled { due: moment(15) }, "scheduled"));
    assert_eq!(system.pop(14.9, "mail", "w1", 1).await?, NONE);
    assert_eq!(system.pop(15, "mail", "w1", 1).await?, ["j1"]);
    Ok(())
}

/// A delay below nought is no delay.
pub async fn a_negative_delay_counts_as_none(system: System) -> Checked {
    system.at(5, Put { delay: seconds(-10), ..put("mail", "j1") }).await?;
    assert_eq!(system.state("j1").await?, StateName::Waiting);
    assert_eq!(system.pop(5, "mail", "w1", 1).await?, ["j1"]);
    Ok(())
}

/// A put sent twice makes one job, so that it is safe to send it again after a lost reply.
pub async fn a_put_that_keeps_leaves_an_existing_job_alone(system: System) -> Checked {
    system.at(0, Put { tags: Some(tags(["t"])), ..put("mail", "j1") }).await?;
    let second = Put { priority: Some(priority(9)), delay: seconds(5), ..put("post", "j1") };
    assert_eq!(system.ignores(1, second.clone()).await?, PutReply::Existing);
    system.take(2, "mail", "w1").await?;
    assert_eq!(system.ignores(3, second.clone()).await?, PutReply::Existing);
    system.at(4, complete("j1", "w1")).await?;
    assert_eq!(system.ignores(5, second).await?, PutReply::Existing);
    Ok(())
}

/// Qless's put says anew what the job is and where it goes.
pub async fn putting_again_replaces_klass_payload_and_queue(system: System) -> Checked {
    system.at(0, put("mail", "j1")).await?;
    let again = Put { klass: klass("other"), payload: "[1]".into(), ..put_again("post", "j1") };
    assert_eq!(system.at(1, again).await?, PutReply::Replaced);
    let job = system.job("j1").await?;
    assert_eq!((job.klass, job.queue), (klass("other"), Some(queue("post"))));
    assert_eq!(job.payload, "[1]".into());
    assert_eq!(job.history, [entry(0, was_put("mail")), entry(1, was_put("post"))]);
    assert_eq!(system.pop(2, "mail", "w1", 1).await?, NONE);
    assert_eq!(system.pop(2, "post", "w1", 1).await?, ["j1"]);
    Ok(())
}

/// What a second put does not mention stays as it was.
pub async fn putting_again_keeps_priority_tags_and_retries_that_are_not_given(system: System) -> Checked {
    let first =
        Put { priority: Some(priority(3)), retries: Some(2), tags: Some(tags(["t"])), ..put("mail", "j1") };
    system.at(0, first).await?;
    system.at(1, put_again("mail", "j1")).await?;
    let job = system.job("j1").await?;
    assert_eq!((job.priority, job.retries, texts(job.tags)), (priority(3), 2, vec!["t".to_string()]));
    Ok(())
}

/// What a second put does mention replaces what was there.
pub async fn putting_again_replaces_priority_tags_and_retries_that_are_given(system: System) -> Checked {
    let first =
        Put { priority: Some(priority(3)), retries: Some(2), tags: Some(tags(["t"])), ..put("mail", "j1") };
    system.at(0, first).await?;
    let second =
        Put { priority: Some(priority(0)), retries: Some(7), tags: Some(vec![]), ..put_again("mail", "j1") };
    system.at(1, second).await?;
    let job = system.job("j1").await?;
    assert_eq!((job.priority, job.retries, job.tags), (priority(0), 7, vec![]));
    assert_eq!(system.ask(tagged("t")).await?, Listed::default());
    Ok(())
}

/// A job that enters a queue may be tried as often as at first.
pub async fn putting_again_gives_all_retries_back(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    assert_eq!(system.at(1, retry("j1", "w1")).await?, 4);
    assert_eq!(system.job("j1").await?.remaining, 4);
    system.at(2, put_again("mail", "j1")).await?;
    assert_eq!(system.job("j1").await?.remaining, 5);
    Ok(())
}

/// Somebody who puts a running job takes it from its worker without asking.
pub async fn putting_a_running_job_takes_it_from_its_worker(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, put_again("mail", "j1")).await?;
    let job = system.job("j1").await?;
    assert_eq!(job.state, JobState::Waiting);
    assert_eq!(job.qless, QlessView { state: "waiting", worker: None, expires: moment(0) });
    assert_eq!(system.worker_jobs(1, "w1").await?, (vec![], vec![]));
    assert_eq!(system.counts(1, "mail").await?.running, 0);
    system.refuses(2, complete("j1", "w1"), no::running("j1", StateName::Waiting)).await?;
    assert_eq!(system.pop(3, "mail", "w2", 1).await?, ["j1"]);
    Ok(())
}

/// Wherever a job stands, a put moves it to where it is put, and leaves nothing of it behind.
pub async fn a_put_moves_a_job_from_any_state(system: System) -> Checked {
    system.run(0, put("mail", "running"), "w1").await?;
    system.run(0, put("mail", "stalled"), "w1").await?;
    system.run(0, put("mail", "failed"), "w1").await?;
    system.run(0, put("mail", "complete"), "w1").await?;
    system.at(1, timeout(["stalled"])).await?;
    system.at(1, fail("failed", "w1", "g")).await?;
    system.at(1, complete("complete", "w1")).await?;
    system.at(1, put("mail", "waiting")).await?;
    system.at(1, Put { delay: seconds(100), ..put("mail", "scheduled") }).await?;
    let names = ["running", "stalled", "failed", "complete", "waiting", "scheduled"];
    for name in names {
        assert_eq!(system.at(2, put_again("post", name)).await?, PutReply::Replaced);
    }
    let counts = system.counts(200, "mail").await?;
    assert_eq!((counts.waiting, counts.running, counts.stalled, counts.scheduled), (0, 0, 0, 0));
    assert_eq!(system.list(3, Listing::Complete).await?, NONE);
    assert!(system.ask(Failures).await?.is_empty());
    assert_eq!(system.worker_jobs(3, "w1").await?, (vec![], vec![]));
    assert_eq!(system.pop(3, "post", "w2", 10).await?, names);
    Ok(())
}

/// A put with a delay schedules a job that has waited or run before, too.
pub async fn putting_again_with_a_delay_schedules_the_job(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, Put { delay: seconds(10), ..put_again("mail", "j1") }).await?;
    assert_eq!(system.job("j1").await?.state, JobState::Scheduled { due: moment(11) });
    assert_eq!(system.pop(2, "mail", "w1", 1).await?, NONE);
    system.at(3, Put { delay: seconds(20), ..put_again("mail", "j1") }).await?;
    assert_eq!(system.pop(22.9, "mail", "w1", 1).await?, NONE);
    assert_eq!(system.pop(23, "mail", "w1", 1).await?, ["j1"]);
    Ok(())
}

/// A failed job that is put leaves its group, and remembers how it failed.
pub async fn putting_a_failed_job_takes_it_out_of_its_group(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.run(0, put("mail", "j2"), "w1").await?;
    system.at(1, fail("j1", "w1", "g")).await?;
    system.at(2, fail("j2", "w1", "g")).await?;
    system.at(3, put_again("mail", "j1")).await?;
    assert_eq!(system.ask(failed("g")).await?, Listed { total: 1, jids: jids(["j2"]) });
    system.at(4, put_again("mail", "j2")).await?;
    assert!(system.ask(Failures).await?.is_empty());
    let past = system.job("j1").await?.past_failure.ok_or("the failure is forgotten")?;
    assert_eq!((past.group, past.when), (group("g"), moment(1)));
    Ok(())
}

/// A job done for good can be put again, and is then done no longer.
pub async fn putting_a_complete_job_runs_it_again(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, complete("j1", "w1")).await?;
    assert_eq!(system.list(1, Listing::Complete).await?, ["j1"]);
    assert_eq!(system.at(2, put_again("mail", "j1")).await?, PutReply::Replaced);
    assert_eq!(system.list(2, Listing::Complete).await?, NONE);
    assert_eq!(system.pop(3, "mail", "w2", 1).await?, ["j1"]);
    Ok(())
}

/// Qless's requeue is a put of a job that exists.
pub async fn requeue_puts_an_existing_job_again(system: System) -> Checked {
    system.run(0, Put { priority: Some(priority(4)), ..put("mail", "j1") }, "w1").await?;
    assert_eq!(system.at(1, requeue("post", "j1")).await?, PutReply::Replaced);
    let job = system.job("j1").await?;
    assert_eq!((job.state, job.queue, job.priority), (JobState::Waiting, Some(queue("post")), priority(4)));
    Ok(())
}

/// There is nothing to requeue where there is no job.
pub async fn requeue_refuses_an_unknown_job(system: System) -> Checked {
    system.refuses(0, requeue("mail", "j1"), no::such_job("j1")).await?;
    assert!(!system.has("j1").await?);
    Ok(())
}

/// A recurring job does not stand in the way of a job with the same id.
pub async fn a_job_may_have_the_id_of_a_recurring_job(system: System) -> Checked {
    system.at(0, Recur { offset: seconds(100), ..recur("mail", "j1", 10) }).await?;
    assert_eq!(system.at(0, put("mail", "j1")).await?, PutReply::Created);
    assert_eq!(system.pop(1, "mail", "w1", 5).await?, ["j1"]);
    assert!(system.ask(recurring("j1")).await?.is_some());
    Ok(())
}
