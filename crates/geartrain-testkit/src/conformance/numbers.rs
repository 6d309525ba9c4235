//! Numbers that are handed out, and waiting jobs that are counted by priority.

use super::prelude::*;

fn allot(counter: &str, wanted: i64) -> AllocateIds {
    AllocateIds { counter: counter.into(), count: count(wanted) }
}

fn by_priority(name: &str) -> PriorityCounts {
    PriorityCounts { queue: queue(name) }
}

/// A counter hands out 1, 2, 3 and so on, and no number twice.
pub async fn a_counter_hands_out_no_number_twice(system: System) -> Checked {
    assert_eq!(system.at(5, allot("handles", 1)).await?, 1);
    assert_eq!(system.at(4, allot("handles", 5)).await?, 2);
    assert_eq!(system.at(3, allot("handles", 1)).await?, 7);
    let batch: Vec<Call> = (1..=3).map(|wanted| Call::from(allot("handles", wanted))).collect();
    let answers = system.backend.execute(batch).await?;
    assert_eq!(answers, [8, 9, 11].map(|first| Ok(Reply::AllocateIds(first))));
    assert_eq!(system.now(allot("handles", 1)).await?, 14);
    Ok(())
}

/// A hundred thousand numbers are handed out at once, and each counter has its own.
pub async fn each_counter_has_numbers_of_its_own(system: System) -> Checked {
    let longest = "x".repeat(512);
    let counters = ["a", "A", "a ", "é", "a\0", &longest];
    for counter in counters {
        assert_eq!(system.at(0, allot(counter, 100_000)).await?, 1, "{counter:?}");
    }
    for counter in counters {
        assert_eq!(system.at(1, allot(counter, 100_000)).await?, 100_001, "{counter:?}");
        assert_eq!(system.at(1, allot(counter, 1)).await?, 200_001, "{counter:?}");
    }
    Ok(())
}

/// A counter has a name of 1 to 512 bytes, and is asked for one number at least. Otherwise none is gone.
pub async fn bad_allotments_are_refused(system: System) -> Checked {
    system.refuses(0, allot("", 1), no::good("counter")).await?;
    system.refuses(0, allot(&"x".repeat(513), 1), no::good("counter")).await?;
    system.refuses(0, allot("handles", 0), no::good("count")).await?;
    assert_eq!(system.at(0, allot("handles", 1)).await?, 1);
    Ok(())
}

/// Nobody hears of numbers or of counting, and nothing comes of it but the number.
pub async fn numbers_are_handed_out_in_silence(system: System) -> Checked {
    let mut listener = system.listen().await?;
    system.ignores(0, allot("handles", 3)).await?;
    system.ignores(0, by_priority("mail")).await?;
    listener.heard(&system, []).await?;
    assert_eq!(system.registered().await?, NONE);
    Ok(())
}

/// Waiting jobs are counted by whether their priority is above, at or below nought; jobs that stand elsewhere are not.
pub async fn waiting_jobs_are_counted_by_priority(system: System) -> Checked {
    assert_eq!(system.at(0, by_priority("mail")).await?, PriorityCountsReply::default());
    system.run(0, Put { priority: Some(priority(9)), ..put("mail", "running") }, "w1").await?;
    for (name, value) in [("a", 2), ("b", 1), ("c", 0), ("d", -1), ("e", -7), ("f", -1)] {
        system.at(1, Put { priority: Some(priority(value)), ..put("mail", name) }).await?;
    }
    system.at(1, put("mail", "g")).await?;
    system.at(1, Put { priority: Some(priority(1)), depends: jids(["a"]), ..put("mail", "blocked") }).await?;
    system.at(1, Put { priority: Some(priority(1)), ..put("post", "elsewhere") }).await?;
    let expected = PriorityCountsReply { above: 2, at: 2, below: 3 };
    assert_eq!(system.ignores(2, by_priority("mail")).await?, expected);
    system.at(3, set_priority("c", 1)).await?;
    system.at(3, cancel(["d"])).await?;
    assert_eq!(system.at(3, by_priority("mail")).await?, PriorityCountsReply { above: 3, at: 1, below: 2 });
    Ok(())
}

/// Counting by priority makes due jobs wait, as counting a queue does.
pub async fn counting_by_priority_moves_every_due_job(system: System) -> Checked {
    for (name, value) in [("a", 1), ("b", -1), ("c", -1)] {
        let delay = seconds(if name == "c" { 20 } else { 10 });
        system.at(0, Put { priority: Some(priority(value)), delay, ..put("mail", name) }).await?;
    }
    assert_eq!(system.at(9, by_priority("mail")).await?, PriorityCountsReply::default());
    assert_eq!(system.at(10, by_priority("mail")).await?, PriorityCountsReply { above: 1, at: 0, below: 1 });
    assert_eq!(system.state("a").await?, StateName::Waiting);
    assert_eq!(system.state("c").await?, StateName::Scheduled);
    Ok(())
}

/// A job that a timeout brought before everything counts as above nought; one that was handed back by its own priority.
pub async fn jobs_that_came_back_are_counted_where_they_stand(system: System) -> Checked {
    for (name, by) in [("timed-out", "w1"), ("handed-back", "w2")] {
        system.run(0, Put { priority: Some(priority(-1)), ..put("mail", name) }, by).await?;
    }
    system.at(1, timeout(["timed-out"])).await?;
    system.at(1, hand_back("handed-back", "w2")).await?;
    assert_eq!(system.at(2, by_priority("mail")).await?, PriorityCountsReply { above: 1, at: 0, below: 1 });
    system.at(3, set_priority("timed-out", 0)).await?;
    assert_eq!(system.at(3, by_priority("mail")).await?, PriorityCountsReply { above: 0, at: 1, below: 1 });
    Ok(())
}
