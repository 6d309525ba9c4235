//! Jobs that are set aside for a transfer to another backend.

use super::prelude::*;

fn aside(names: &[&str]) -> SetAside {
    SetAside { jids: names.iter().map(jid).collect(), to: "redis://b".to_owned() }
}

fn end(names: &[&str], end: TransferEnd) -> EndSetAside {
    EndSetAside { jids: names.iter().map(jid).collect(), end }
}

fn names(jobs: &[Job]) -> Vec<String> {
    jobs.iter().map(|job| job.jid.to_string()).collect()
}

/// A job in each state, and what replies say of it.
async fn jobs_in_all_states(system: &System) -> Result<Vec<Job>, Surprise> {
    let failed = system.run(0, put("mail", "failed"), "w1").await?;
    system.at(1, Fail::new(jid("failed"), holding(&failed), group("io"), "no such host")).await?;
    system.at(2, put("mail", "waiting")).await?;
    system.at(2, Put { delay: Seconds::from(60), ..put("mail", "scheduled") }).await?;
    system.at(3, Put { depends: vec![jid("waiting")], ..put("mail", "depends") }).await?;
    let jids = ["failed", "waiting", "scheduled", "depends"].iter().map(jid).collect();
    Ok(system.at(3, GetMany { jids }).await?)
}

/// A job that is set aside is handed to no worker, and is a failed one of a group of its own. The reply has it
/// with the state that it had and without its past, the first time and when the command is sent again.
pub async fn a_job_that_is_set_aside_is_not_handed_out(system: System) -> Checked {
    let before = jobs_in_all_states(&system).await?;
    for now in [4, 5] {
        let reply = system.at(now, aside(&["failed", "waiting", "scheduled", "depends"])).await?;
        assert_eq!((names(&reply.jobs), &reply.stay), (names(&before), &vec![]));
        for (job, before) in reply.jobs.iter().zip(&before) {
            assert_eq!((&job.state, &job.payload), (&before.state, &before.payload));
            assert_eq!((&job.history[..], &job.attempts[..]), (&[][..], &[][..]));
            assert_eq!((&job.past_failure, &job.tags), (&before.past_failure, &before.tags));
        }
    }
    assert_eq!(system.at(100, pop("mail", "w1")).await?.jobs, vec![]);
    let failures = system.at(100, Failures).await?;
    assert_eq!(failures.into_iter().collect::<Vec<_>>(), [(group(TRANSFER_GROUP), 4)]);
    let job = system.job("waiting").await?;
    let JobState::Failed { failure } = job.state else { panic!("{:?}", job.state) };
    assert_eq!(failure.message, "set aside to be moved to redis://b , was waiting");
    Ok(())
}

/// A transfer that is given up leaves each job as it was.
pub async fn a_job_that_is_put_back_is_as_it_was(system: System) -> Checked {
    let before = jobs_in_all_states(&system).await?;
    let all = ["failed", "waiting", "scheduled", "depends"];
    system.at(4, aside(&all)).await?;
    let reply = system.at(5, end(&all, TransferEnd::Return)).await?;
    assert_eq!((reply.ended, reply.stay), (4, vec![]));
    let jids = all.iter().map(jid).collect();
    assert_eq!(system.at(5, GetMany { jids }).await?, before);
    let popped = system.at(6, pop("mail", "w1")).await?.jobs;
    assert_eq!(popped[0].jid, jid("waiting"));
    system.at(7, Complete::new(jid("waiting"), holding(&popped[0]))).await?;
    assert_eq!(system.at(8, pop("mail", "w1")).await?.jobs[0].jid, jid("depends"));
    Ok(())
}

/// Jobs with and without tags, options, delays and former workers, of several queues, are set aside by one command,
/// also one that is named twice. Removed in any order, they leave nothing.
pub async fn jobs_of_all_kinds_are_set_aside_together(system: System) -> Checked {
    let released = system.run(0, put("mail", "released"), "w1").await?;
    system.at(0, Release::new(jid("released"), holding(&released))).await?;
    let advanced = system.run(0, put("post", "advanced"), "w1").await?;
    let next = Some(Next { delay: seconds(60), ..Next::new(queue("mail")) });
    let complete = Complete::new(jid("advanced"), holding(&advanced));
    system.at(0, Complete { next, ..complete }).await?;
    system.at(1, put("mail", "a")).await?;
    let labelled = Put { tags: Some(tags(["new", "old"])), retries: Some(2), ..put("mail", "tagged") };
    system.at(1, Put { priority: Some(priority(3)), ..labelled }).await?;
    system.at(1, put("mail", "tracked")).await?;
    system.at(1, Track { jid: jid("tracked"), on: true }).await?;
    let options = PutOptions { metadata: Some("m".into()), ..PutOptions::default() };
    system.at(1, Put { options: Some(Box::new(options)), ..put("mail", "options") }).await?;
    system.at(1, put("post", "b")).await?;

    let asked = ["a", "tagged", "advanced", "tracked", "a", "options", "released", "b"];
    let mut before = Vec::new();
    for name in asked {
        before.push(system.job(name).await?);
    }
    let reply = system.at(2, aside(&asked)).await?;
    assert_eq!((reply.jobs.len(), reply.stay), (before.len(), vec![]));
    for (job, before) in reply.jobs.into_iter().zip(before) {
        let present = Job { history: vec![], attempts: vec![], qless: job.qless.clone(), ..before };
        assert_eq!(job, present);
    }
    assert_eq!(system.stats("mail", 2).await?.failed, 6);
    for (now, back) in [(3, &["tracked", "b"][..]), (4, &["a", "released"])] {
        assert_eq!(system.at(now, end(back, TransferEnd::Return)).await?.ended, 2);
        assert_eq!(system.at(now, aside(back)).await?.jobs.len(), 2);
    }

    let mut reversed = asked;
    reversed.reverse();
    let reply = system.at(5, end(&reversed, TransferEnd::Remove)).await?;
    assert_eq!((reply.ended, reply.stay), (7, vec![(jid("a"), StayReason::Unknown)]));
    assert!(system.at(6, Failures).await?.is_empty());
    assert_eq!(system.at(6, tagged("new")).await?, Listed::default());
    for queue in ["mail", "post"] {
        assert_eq!(system.stats(queue, 2).await?.failed, 0);
        assert_eq!(system.at(100, pop(queue, "w1")).await?.jobs, vec![]);
    }
    Ok(())
}

/// Jobs that are put back have their order, in whatever order they are named.
pub async fn jobs_that_are_put_back_have_their_order(system: System) -> Checked {
    let names: Vec<String> = (0..20).map(|number| format!("j{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (now, name) in names.iter().enumerate() {
        system.at(now as f64, put("mail", name)).await?;
    }
    for part in names.chunks(7) {
        system.at(20, aside(part)).await?;
    }
    for part in names.rchunks(3) {
        assert_eq!(system.at(21, end(part, TransferEnd::Return)).await?.ended, part.len() as u64);
    }
    assert!(system.at(22, Failures).await?.is_empty());
    assert_eq!(system.pop(22, "mail", "w1", 20).await?, names);
    Ok(())
}

/// A job whose dependency was completed meanwhile waits for nothing when it is put back.
pub async fn a_dependency_that_completes_meanwhile_releases_its_dependent(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    system.at(0, Put { depends: vec![jid("a")], ..put("mail", "b") }).await?;
    system.at(1, aside(&["a", "b"])).await?;
    system.at(2, end(&["a"], TransferEnd::Return)).await?;
    let a = system.at(3, pop("mail", "w1")).await?.jobs;
    system.at(3, Complete::new(jid("a"), holding(&a[0]))).await?;
    assert_eq!(system.at(4, pop("mail", "w1")).await?.jobs, vec![]);
    system.at(5, end(&["b"], TransferEnd::Return)).await?;
    assert_eq!(system.at(6, pop("mail", "w1")).await?.jobs[0].jid, jid("b"));
    Ok(())
}

/// Once a job has arrived, nothing of it is left, not even a tombstone.
pub async fn a_job_that_was_moved_is_removed(system: System) -> Checked {
    system.at(0, Put { tags: Some(tags(["new"])), ..put("mail", "a") }).await?;
    system.at(1, aside(&["a"])).await?;
    assert_eq!(system.at(2, end(&["a"], TransferEnd::Remove)).await?.ended, 1);
    assert_eq!(system.at(2, Get { jid: jid("a") }).await?, None);
    assert_eq!(system.at(2, Canceled { jid: jid("a") }).await?, None);
    assert!(system.at(2, Failures).await?.is_empty());
    let again = system.at(3, end(&["a"], TransferEnd::Remove)).await?;
    assert_eq!((again.ended, again.stay), (0, vec![(jid("a"), StayReason::Unknown)]));
    Ok(())
}

/// Jobs that cannot be set aside stay, each for a reason.
pub async fn jobs_that_cannot_be_set_aside_stay(system: System) -> Checked {
    system.run(0, put("mail", "running"), "w1").await?;
    let done = system.run(0, put("post", "done"), "w1").await?;
    system.at(0, Complete::new(jid("done"), holding(&done))).await?;
    system.at(0, Put { depends: vec![jid("running")], ..put("mail", "depends") }).await?;
    system.at(0, put("mail", "elsewhere")).await?;
    system.at(1, SetAside { to: "redis://c".to_owned(), ..aside(&["elsewhere"]) }).await?;
    let asked = ["running", "done", "depends", "elsewhere", "unknown"];
    let reply = system.at(2, aside(&asked)).await?;
    use StayReason::{Complete as Done, Depends, OtherTarget, Running, Unknown};
    let reasons: Vec<StayReason> = reply.stay.iter().map(|(_, reason)| *reason).collect();
    assert_eq!((reply.jobs, reasons), (vec![], vec![Running, Done, Depends, OtherTarget, Unknown]));
    let reply = system.at(3, end(&["running", "depends"], TransferEnd::Return)).await?;
    assert!(reply.stay.iter().all(|(_, reason)| *reason == StayReason::NotSetAside), "{:?}", reply.stay);
    Ok(())
}

/// A job is not removed while another waits for it here.
pub async fn a_job_with_a_dependent_is_not_removed(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    system.at(1, aside(&["a"])).await?;
    system.at(2, Put { depends: vec![jid("a")], ..put("mail", "b") }).await?;
    let reply = system.at(3, end(&["a"], TransferEnd::Remove)).await?;
    assert_eq!(reply.stay, vec![(jid("a"), StayReason::HasDependents)]);
    system.at(4, aside(&["b"])).await?;
    assert_eq!(system.at(5, end(&["a", "b"], TransferEnd::Remove)).await?.ended, 2);
    Ok(())
}

/// A dependent with a policy does not take a job that is set aside for a failed one.
pub async fn a_job_that_is_set_aside_has_not_failed_for_its_dependents(system: System) -> Checked {
    let skip = PutOptions { on_dependency_failure: DependencyPolicy::Fail, ..PutOptions::default() };
    system.at(0, put("mail", "a")).await?;
    let b = Put { depends: vec![jid("a")], options: Some(Box::new(skip)), ..put("mail", "b") };
    system.at(0, b).await?;
    system.at(1, aside(&["a"])).await?;
    system.at(2, Tick { count: count(100) }).await?;
    assert_eq!(system.job("b").await?.state.name(), StateName::Depends);
    Ok(())
}

/// A job that failed elsewhere arrives as a failed one.
pub async fn a_failed_job_is_put_as_one(system: System) -> Checked {
    let failure = Some(Box::new((group("io"), "no such host".to_owned())));
    let options = || Some(Box::new(PutOptions { failure: failure.clone(), ..PutOptions::default() }));
    system.at(0, Put { options: options(), ..put("mail", "a") }).await?;
    assert_eq!(system.at(1, pop("mail", "w1")).await?.jobs, vec![]);
    let job = system.job("a").await?;
    let JobState::Failed { failure } = job.state else { panic!("{:?}", job.state) };
    assert_eq!((failure.group, failure.message.as_str()), (group("io"), "no such host"));
    system.at(2, Unfail { queue: queue("mail"), group: group("io"), count: count(1) }).await?;
    assert_eq!(system.at(3, pop("mail", "w1")).await?.jobs[0].jid, jid("a"));
    let late = Put { options: options(), delay: Seconds::from(1), ..put("mail", "b") };
    system.refuses(4, late, no::good("failure")).await?;
    Ok(())
}

/// What is wrong with a transfer is refused by name.
pub async fn a_bad_transfer_is_refused(system: System) -> Checked {
    for to in ["", "two words"] {
        let wrong = SetAside { to: to.to_owned(), ..aside(&["a"]) };
        system.refuses(1, wrong, no::good("to")).await?;
    }
    system.refuses(1, aside(&[]), no::good("jids")).await?;
    system.refuses(1, end(&[], TransferEnd::Remove), no::good("jids")).await?;
    Ok(())
}
