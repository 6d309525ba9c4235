//! Figures of queues for operators, why a queue stands still, and the times of workers and events.

use super::prelude::*;

async fn figures(system: &System, now: i32, name: &str) -> Result<QueueFigures, Surprise> {
    let mut all = system.at(now, Figures { queue: Some(queue(name)) }).await?;
    assert_eq!(all.len(), 1);
    Ok(all.remove(0))
}

async fn why_queue(system: &System, now: i32, name: &str) -> Result<WhyQueueReply, Surprise> {
    Ok(*system.at(now, WhyQueue { queue: queue(name) }).await?)
}

/// Failed jobs are counted by the queue in which they failed, until they leave their group.
pub async fn failed_jobs_are_counted_by_their_queue(system: System) -> Checked {
    for (job, to) in [("a", "mail"), ("b", "mail"), ("c", "post")] {
        system.at(0, put(to, job)).await?;
        system.at(1, pop(to, "w1")).await?;
        system.at(2, fail(job, "w1", "smtp")).await?;
    }
    assert_eq!(figures(&system, 3, "mail").await?.failed, 2);
    assert_eq!(figures(&system, 3, "post").await?.failed, 1);
    assert_eq!(figures(&system, 3, "unknown").await?.failed, 0);
    system.at(4, put_again("post", "a")).await?;
    system.at(4, cancel(["b"])).await?;
    assert_eq!(figures(&system, 5, "mail").await?.failed, 0);
    assert_eq!(figures(&system, 5, "post").await?.failed, 1);
    let all = system.at(5, Figures { queue: None }).await?;
    assert_eq!(all.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(), ["mail", "post"]);
    assert!(all.iter().all(|queue| !queue.failed_or_more));
    Ok(())
}

/// The oldest waiting job counts, whatever its priority: in a long queue, of those at both ends.
pub async fn the_oldest_waiting_job_tells_the_latency(system: System) -> Checked {
    assert_eq!(figures(&system, 0, "mail").await?.oldest, None);
    system.at(5, Put { priority: Some(priority(-1)), ..put("mail", "low") }).await?;
    for number in 0..30 {
        system.at(10 + number, put("mail", format!("j{number}"))).await?;
    }
    assert_eq!(figures(&system, 50, "mail").await?.oldest, Some(moment(5)));
    system.at(51, cancel(["low"])).await?;
    assert_eq!(figures(&system, 52, "mail").await?.oldest, Some(moment(10)));
    system.at(53, pop_many("mail", "w1", 2)).await?;
    assert_eq!(figures(&system, 54, "mail").await?.oldest, Some(moment(12)));
    Ok(())
}

/// A tick samples completions once a minute; the rate is per minute since the older of two samples.
pub async fn the_rate_is_that_of_the_last_one_to_two_minutes(system: System) -> Checked {
    let complete_some = async |now: i32, prefix: &str, jobs: i32| {
        for number in 0..jobs {
            let job = format!("{prefix}{number}");
            system.at(now, put("mail", &job)).await?;
            system.at(now, pop("mail", "w1")).await?;
            system.at(now, complete(&job, "w1")).await?;
        }
        Ok::<(), Surprise>(())
    };
    complete_some(100, "a", 5).await?;
    assert_eq!(figures(&system, 101, "mail").await?.rate, None);
    system.tick(120).await?;
    assert_eq!(figures(&system, 120, "mail").await?.rate, None);
    complete_some(130, "b", 4).await?;
    assert_eq!(figures(&system, 150, "mail").await?.rate, Some(8.0));
    system.tick(150).await?;
    assert_eq!(figures(&system, 180, "mail").await?.rate, Some(4.0));
    system.tick(180).await?;
    complete_some(190, "c", 2).await?;
    assert_eq!(figures(&system, 200, "mail").await?.rate, Some(4.5), "since the older sample");
    system.tick(240).await?;
    assert_eq!(figures(&system, 240, "mail").await?.rate, Some(2.0));
    system.tick(300).await?;
    assert_eq!(figures(&system, 301, "mail").await?.rate, Some(0.0));
    assert_eq!(figures(&system, 301, "unknown").await?.rate, Some(0.0));
    assert_eq!(figures(&system, 481, "mail").await?.rate, None, "the samples are too old");
    Ok(())
}

/// A sample of the day before still gives the rate.
pub async fn a_rate_goes_on_over_midnight(system: System) -> Checked {
    for (now, job) in [(86_380, "a"), (86_395, "b"), (86_405, "c")] {
        if job == "b" {
            system.tick(86_390).await?;
        }
        system.at(now, put("mail", job)).await?;
        system.at(now, pop("mail", "w1")).await?;
        system.at(now, complete(job, "w1")).await?;
    }
    assert_eq!(figures(&system, 86_420, "mail").await?.rate, Some(4.0));
    Ok(())
}

/// What keeps the jobs of a queue from running is counted: state by state, klasses that no worker asks for,
/// and jobs behind failed ones.
pub async fn why_counts_what_stops_a_queue(system: System) -> Checked {
    for (job, kind) in [("a", "beta"), ("b", "alpha"), ("c", "beta"), ("d", "gamma")] {
        system.at(0, Put { klass: klass(kind), ..put("mail", job) }).await?;
    }
    system.at(0, Put { delay: seconds(100), ..put("mail", "later") }).await?;
    system.at(0, put("post", "bad")).await?;
    system.at(0, put("post", "good")).await?;
    system.at(0, Put { depends: jids(["bad", "good"]), ..put("mail", "x") }).await?;
    system.at(0, Put { depends: jids(["good"]), ..put("mail", "y") }).await?;
    system.at(0, pop("post", "w1")).await?;
    system.at(0, fail("bad", "w1", "smtp")).await?;
    system.at(1, can("w2", "mail", Some("alpha"))).await?;
    let reply = why_queue(&system, 2, "mail").await?;
    let QueueCounts { waiting, scheduled, depends, .. } = reply.counts;
    assert_eq!((waiting, scheduled, depends), (4, 1, 2));
    assert_eq!(reply.next_due, Some(moment(100)));
    assert_eq!((reply.asked, reply.workers, reply.waiting_examined), (None, 1, 4));
    assert_eq!(reply.unasked, [(klass("beta"), 2), (klass("gamma"), 1)]);
    assert_eq!((reply.depends_examined, reply.behind_failed), (2, 1));
    assert_eq!(reply.failed_dependency, Some(jid("bad")));
    system.at(3, pop("mail", "w3")).await?;
    assert_eq!(why_queue(&system, 4, "mail").await?.unasked, [], "a worker of all klasses asks");
    Ok(())
}

/// Limits that are reached are named, with when they end.
pub async fn why_names_the_limits_that_stop_a_queue(system: System) -> Checked {
    let free = why_queue(&system, 0, "mail").await?;
    assert_eq!((free.concurrency_max, free.rate_limited_until), (None, None));
    system.ask(set("mail-max-concurrency", "1")).await?;
    let rate = Some(Rate::new(1, seconds(60), 1)?);
    let limits = QueueLimits { rate, ..QueueLimits::default() };
    system.at(0, SetLimits { queue: queue("mail"), limits }).await?;
    for job in ["a", "b"] {
        system.at(0, put("mail", job)).await?;
    }
    system.at(10, pop("mail", "w1")).await?;
    let reply = why_queue(&system, 20, "mail").await?;
    assert_eq!((reply.concurrency_max, reply.rate_limited_until), (Some(1), Some(moment(70))));
    assert_eq!(reply.counts.running, 1);
    Ok(())
}

/// A list of workers says when each was last seen.
pub async fn workers_are_listed_with_when_they_were_seen(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    system.at(3, pop("mail", "w1")).await?;
    system.at(7, pop("mail", "w2")).await?;
    system.at(9, heartbeat("a", "w1")).await?;
    let workers = system.at(10, Workers).await?;
    let seen: Vec<_> = workers.iter().map(|worker| (worker.name.as_str(), worker.seen)).collect();
    assert_eq!(seen, [("w1", Some(moment(9))), ("w2", Some(moment(7)))]);
    Ok(())
}

/// Events carry the time of the command that caused them, live and replayed.
pub async fn events_carry_their_time(system: System) -> Checked {
    let mut live = system.listen().await?;
    system.at(5, put("mail", "a")).await?;
    assert_eq!(live.next_time(&system).await?, Some(moment(5)));
    let position = live.position()?;
    system.at(8, pop("mail", "w1")).await?;
    assert_eq!(live.next_time(&system).await?, Some(moment(8)));
    let mut replayed = system.resume(position).await?;
    assert_eq!(replayed.next_time(&system).await?, Some(moment(8)));
    Ok(())
}
