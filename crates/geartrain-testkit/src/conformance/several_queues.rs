//! Pops from several queues.

use super::prelude::*;

fn strict(wanted: i64) -> Pop {
    Pop { queues: queues(["x", "y"]), ..pop_many("x", "w1", wanted) }
}

fn round_robin(turn: usize, wanted: i64) -> Pop {
    Pop { order: PopOrder::RoundRobin { turn }, ..strict(wanted) }
}

fn by_priority(turn: usize, wanted: i64) -> Pop {
    Pop { order: PopOrder::Priority { turn }, ..strict(wanted) }
}

/// Puts jobs into the queue that their name begins with.
async fn put_all<const N: usize>(system: &System, names: [&str; N]) -> Result<(), BackendError> {
    for name in names {
        system.at(0, put(&name[..1], name)).await?;
    }
    Ok(())
}

/// A put of this priority, into the queue that the job's name begins with.
fn worth(name: &str, value: i32) -> Put {
    Put { priority: Some(priority(value)), ..put(&name[..1], name) }
}

/// Which jobs a pop hands out, and which of two queues is next then.
async fn taken(
    system: &System,
    now: impl Into<f64>,
    wanted: Pop,
) -> Result<(Vec<String>, usize), BackendError> {
    let reply = system.at(now, wanted).await?;
    let turn = reply.turn % 2;
    Ok((popped_jids(reply), turn))
}

/// In strict order the first queue that has a job gives it, and priorities only count within a queue.
pub async fn strict_order_empties_the_first_queue_first(system: System) -> Checked {
    put_all(&system, ["x1", "x2", "x3"]).await?;
    system.at(0, worth("y1", 9)).await?;
    assert_eq!(popped_jids(system.at(1, strict(2)).await?), ["x1", "x2"]);
    assert_eq!(popped_jids(system.at(1, strict(9)).await?), ["x3", "y1"]);
    assert_eq!(popped_jids(system.at(1, strict(9)).await?), NONE);
    Ok(())
}

/// A queue further down is not even looked at once there are enough jobs.
pub async fn strict_order_looks_no_further_than_it_must(system: System) -> Checked {
    system.run(0, put("y", "y1"), "w2").await?;
    system.at(0, put("x", "x1")).await?;
    assert_eq!(popped_jids(system.at(60, strict(1)).await?), ["x1"]);
    assert_eq!(system.stats("y", 0).await?.retries, 0);
    assert_eq!(popped_jids(system.at(60, strict(1)).await?), NONE);
    assert_eq!(system.stats("y", 0).await?.retries, 1);
    Ok(())
}

/// In turn each queue gives one job, and one that has none is passed over.
pub async fn round_robin_takes_one_from_each_in_turn(system: System) -> Checked {
    put_all(&system, ["x1", "x2", "x3", "y1"]).await?;
    let (jobs, turn) = taken(&system, 1, round_robin(0, 9)).await?;
    assert_eq!((jobs, turn), (texts(["x1", "y1", "x2", "x3"]), 1));
    Ok(())
}

/// The turn goes on from one pop to the next, so that one job at a time comes from each queue as well.
pub async fn round_robin_goes_on_where_it_left_off(system: System) -> Checked {
    put_all(&system, ["x1", "x2", "x3", "y1"]).await?;
    let mut turn = 0;
    for expected in ["x1", "y1", "x2", "x3"] {
        let reply = system.at(1, round_robin(turn, 1)).await?;
        turn = reply.turn;
        assert_eq!(popped_jids(reply), [expected]);
    }
    Ok(())
}

/// A turn beyond the last queue goes round.
pub async fn a_turn_beyond_the_last_queue_goes_round(system: System) -> Checked {
    put_all(&system, ["x1", "x2", "y1", "y2"]).await?;
    assert_eq!(taken(&system, 1, round_robin(7, 1)).await?, (texts(["y1"]), 0));
    assert_eq!(taken(&system, 1, by_priority(7, 1)).await?, (texts(["y2"]), 0));
    Ok(())
}

/// By priority the job that matters most comes first, whichever queue it is in.
pub async fn by_priority_the_job_that_matters_most_comes_first(system: System) -> Checked {
    for (name, value) in [("x1", 1), ("y9", 9), ("x5", 5), ("y3", 3)] {
        system.at(0, worth(name, value)).await?;
    }
    assert_eq!(taken(&system, 1, by_priority(0, 3)).await?, (texts(["y9", "x5", "y3"]), 0));
    assert_eq!(taken(&system, 1, by_priority(0, 3)).await?.0, ["x1"]);
    Ok(())
}

/// Among equals by priority the queues take turns, however long one's jobs have waited.
pub async fn by_priority_equals_take_turns(system: System) -> Checked {
    put_all(&system, ["x1", "x2", "x3"]).await?;
    system.at(5, put("y", "y1")).await?;
    assert_eq!(taken(&system, 6, by_priority(1, 1)).await?, (texts(["y1"]), 0));
    system.at(6, put("y", "y2")).await?;
    assert_eq!(taken(&system, 6, by_priority(0, 3)).await?, (texts(["x1", "y2", "x2"]), 1));
    Ok(())
}

/// By priority a job to be taken over competes like any other, and stays with its holder if it is not picked.
pub async fn by_priority_an_unpicked_take_over_is_left_alone(system: System) -> Checked {
    system.run(0, worth("x1", 1), "w2").await?;
    system.pop(60, "x", "w3", 1).await?;
    system.at(60, worth("y5", 5)).await?;
    assert_eq!(taken(&system, 80, by_priority(0, 1)).await?.0, ["y5"]);
    let job = system.job("x1").await?;
    assert_eq!((job.remaining, job.qless.worker), (5, Some(worker("w2"))));
    assert_eq!(system.at(81, heartbeat("x1", "w2")).await?, moment(141));
    system.at(82, worth("y0", 0)).await?;
    let (jobs, _) = taken(&system, 141, by_priority(1, 2)).await?;
    assert_eq!(jobs, ["x1", "y0"]);
    assert_eq!(system.job("x1").await?.remaining, 4);
    Ok(())
}

/// By priority every queue warns of an expired lock and moves a due job, also one that hands nothing out.
pub async fn by_priority_every_queue_is_looked_at(system: System) -> Checked {
    system.run(0, put("x", "late"), "w2").await?;
    for name in ["x1", "x2"] {
        system.at(0, Put { delay: seconds(5), ..put("x", name) }).await?;
    }
    system.at(0, worth("y9", 9)).await?;
    assert_eq!(taken(&system, 60, by_priority(0, 1)).await?.0, ["y9"]);
    assert_eq!(system.stats("x", 0).await?.retries, 1);
    assert_eq!(system.state("x1").await?, StateName::Waiting);
    assert_eq!(system.state("x2").await?, StateName::Scheduled);
    Ok(())
}

/// In every order a paused or full queue is passed over, and the others give.
pub async fn paused_and_full_queues_are_passed_over(system: System) -> Checked {
    system.ask(set("y-max-concurrency", "1")).await?;
    for pick in [strict as fn(i64) -> Pop, |wanted| round_robin(0, wanted), |wanted| by_priority(0, wanted)] {
        put_all(&system, ["x1", "y1", "y2"]).await?;
        system.at(0, pause("x")).await?;
        assert_eq!(popped_jids(system.at(1, pick(3)).await?), ["y1"]);
        system.at(1, resume("x")).await?;
        assert_eq!(popped_jids(system.at(1, pick(3)).await?), ["x1"]);
        system.at(2, cancel(["x1", "y1", "y2"])).await?;
    }
    Ok(())
}

/// A worker is seen if one of its queues could have given it a job, and not if all are paused.
pub async fn a_worker_is_registered_unless_every_queue_is_paused(system: System) -> Checked {
    let by = |name: &str, order| Pop { worker: worker(name), order, ..strict(1) };
    system.at(0, Pause { queues: queues(["x", "y"]) }).await?;
    let orders = [PopOrder::Strict, PopOrder::RoundRobin { turn: 0 }, PopOrder::Priority { turn: 0 }];
    for (name, order) in ["w1", "w2", "w3"].into_iter().zip(orders) {
        system.at(1, by(name, order)).await?;
        assert_eq!(system.workers(1).await?, NONE);
    }
    system.at(2, resume("y")).await?;
    for (now, (name, order)) in (3..).zip(["w1", "w2", "w3"].into_iter().zip(orders)) {
        system.at(now, by(name, order)).await?;
        assert_eq!(system.workers(now).await?[0], name);
    }
    Ok(())
}

/// Of one queue every order gives the same.
pub async fn with_one_queue_every_order_is_the_same(system: System) -> Checked {
    let orders = [PopOrder::Strict, PopOrder::RoundRobin { turn: 0 }, PopOrder::Priority { turn: 0 }];
    for order in orders {
        for (name, value) in [("x1", 1), ("x3", 3), ("x2", 2)] {
            system.at(0, worth(name, value)).await?;
        }
        let pop = Pop { order, ..pop_many("x", "w1", 2) };
        assert_eq!(popped_jids(system.at(1, pop).await?), ["x3", "x2"]);
        system.at(2, cancel(["x1", "x2", "x3"])).await?;
    }
    Ok(())
}
