//! Statistics per queue and day.

use super::prelude::*;

const DAY: f64 = 86_400.0;

/// The places of a histogram that are not zero, and what is there.
fn filled(summary: &Summary) -> Vec<(usize, u64)> {
    summary.histogram.iter().copied().enumerate().filter(|(_, times)| *times > 0).collect()
}

/// Puts a job, pops it after some time and completes it at once.
async fn wait_for(system: &System, now: f64, name: &str, wait: f64) -> Checked {
    system.at(now - wait, put("mail", name)).await?;
    assert_eq!(system.pop(now, "mail", "w1", 1).await?, [name]);
    system.at(now, complete(name, "w1")).await?;
    Ok(())
}

/// A day without jobs is empty in all 148 buckets.
pub async fn a_quiet_day_has_empty_figures(system: System) -> Checked {
    let quiet = Summary { count: 0, mean: 0.0, std: 0.0, histogram: vec![0; 148] };
    let expected = StatsReply { wait: quiet.clone(), run: quiet, retries: 0, failed: 0, failures: 0 };
    assert_eq!(system.stats("mail", 0).await?, expected);
    Ok(())
}

/// How long a job waited is filed under the day of its pop, how long it ran under the day of its completion.
pub async fn waiting_and_running_times_are_measured(system: System) -> Checked {
    system.at(DAY - 10.0, put("mail", "j1")).await?;
    system.take(DAY - 3.0, "mail", "w1").await?;
    system.at(DAY + 2.5, complete("j1", "w1")).await?;
    let first = system.stats("mail", 0).await?;
    assert_eq!((first.wait.count, first.wait.mean, first.run.count), (1, 7.0, 0));
    assert_eq!(filled(&first.wait), [(7, 1)]);
    let second = system.stats("mail", DAY).await?;
    assert_eq!((second.wait.count, second.run.count, second.run.mean), (0, 1, 5.5));
    assert_eq!(filled(&second.run), [(5, 1)]);
    assert_eq!(system.stats("mail", DAY * 2.0 - 0.5).await?, second);
    assert_eq!(system.stats("post", DAY).await?.run.count, 0);
    Ok(())
}

/// Several times have a mean and a deviation; one alone deviates from nothing.
pub async fn figures_have_a_mean_and_a_deviation(system: System) -> Checked {
    wait_for(&system, 100.0, "a", 10.0).await?;
    assert_eq!(system.stats("mail", 0).await?.wait.std, 0.0);
    wait_for(&system, 101.0, "b", 20.0).await?;
    wait_for(&system, 102.0, "c", 30.0).await?;
    let wait = system.stats("mail", 0).await?.wait;
    assert_eq!(wait.count, 3);
    assert!((wait.mean - 20.0).abs() < 1e-9, "the mean is {}", wait.mean);
    assert!((wait.std - 10.0).abs() < 1e-9, "the deviation is {}", wait.std);
    Ok(())
}

/// A histogram has a place for each second below a minute, minute below an hour, hour below a day, and six
/// days.
pub async fn a_histogram_has_seconds_minutes_hours_and_days(system: System) -> Checked {
    let waits = [0.9, 59.9, 60.0, 3599.0, 3600.0, DAY - 1.0, DAY, DAY * 7.0 - 1.0];
    for (number, wait) in waits.into_iter().enumerate() {
        wait_for(&system, DAY * 10.0, &format!("j{number}"), wait).await?;
    }
    let wait = system.stats("mail", DAY * 10.0).await?.wait;
    let expected = [(0, 1), (59, 1), (60, 1), (118, 1), (119, 1), (141, 1), (142, 1), (147, 1)];
    assert_eq!((wait.count, wait.histogram.len()), (8, 148));
    assert_eq!(filled(&wait), expected);
    Ok(())
}

/// A week and more, and less than nothing, count in the mean but have no place in the histogram.
pub async fn times_out_of_range_count_but_are_not_shown(system: System) -> Checked {
    wait_for(&system, DAY * 10.0, "long", DAY * 7.0).await?;
    wait_for(&system, DAY * 10.0, "negative", -5.0).await?;
    let wait = system.stats("mail", DAY * 10.0).await?.wait;
    assert_eq!((wait.count, wait.mean), (2, (DAY * 7.0 - 5.0) / 2.0));
    assert_eq!(filled(&wait), []);
    Ok(())
}

/// However far apart times are, their mean and their deviation are numbers.
pub async fn figures_of_huge_times_stay_finite(system: System) -> Checked {
    for (number, wait) in [1e300, -1e300, f64::MAX, f64::MIN].into_iter().enumerate() {
        wait_for(&system, 0.0, &format!("j{number}"), wait).await?;
    }
    let wait = system.stats("mail", 0).await?.wait;
    assert_eq!(wait.count, 4);
    assert!(wait.mean.is_finite() && wait.std.is_finite(), "mean {}, deviation {}", wait.mean, wait.std);
    Ok(())
}

/// A wait begins with the put and goes on through a delay and through dependencies.
pub async fn a_wait_includes_delay_and_dependencies(system: System) -> Checked {
    system.run(0, put("post", "needed"), "w1").await?;
    system.at(0, Put { delay: seconds(5), ..put("mail", "delayed") }).await?;
    system.take(8, "mail", "w1").await?;
    system.at(0, Put { depends: jids(["needed"]), ..put("mail", "blocked") }).await?;
    system.at(20, complete("needed", "w1")).await?;
    system.take(25, "mail", "w1").await?;
    assert_eq!(filled(&system.stats("mail", 0).await?.wait), [(8, 1), (25, 1)]);
    Ok(())
}

/// A job that is put again is measured from then.
pub async fn a_wait_begins_anew_with_each_put(system: System) -> Checked {
    system.at(100, put("mail", "j1")).await?;
    system.at(110, put_again("mail", "j1")).await?;
    system.take(115, "mail", "w1").await?;
    assert_eq!(filled(&system.stats("mail", 0).await?.wait), [(5, 1)]);
    Ok(())
}

/// A job that was handed out before is measured from then, not from its return.
pub async fn a_wait_after_a_retry_is_counted_from_the_last_pop(system: System) -> Checked {
    system.run(0, put("mail", "retried"), "w1").await?;
    system.at(10, retry("retried", "w1")).await?;
    system.take(12, "mail", "w1").await?;
    system.at(13, fail("retried", "w1", "g")).await?;
    system.at(14, unfail("mail", "g", 1)).await?;
    system.take(32, "mail", "w1").await?;
    assert_eq!(filled(&system.stats("mail", 0).await?.wait), [(0, 1), (12, 1), (20, 1)]);
    Ok(())
}

/// A job taken over is measured from the pop of the worker that lost it.
pub async fn a_wait_before_a_take_over_is_counted_from_the_last_pop(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.pop(60, "mail", "w2", 1).await?;
    system.take(70, "mail", "w2").await?;
    system.at(75, complete("j1", "w2")).await?;
    let stats = system.stats("mail", 0).await?;
    assert_eq!(filled(&stats.wait), [(0, 1), (60, 1)]);
    assert_eq!(filled(&stats.run), [(5, 1)]);
    Ok(())
}

/// A job that goes on is measured in each queue for itself.
pub async fn a_job_that_goes_on_is_measured_in_each_queue(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(7, advance("j1", "w1", "post")).await?;
    system.take(10, "post", "w1").await?;
    system.at(14, complete("j1", "w1")).await?;
    assert_eq!(filled(&system.stats("mail", 0).await?.run), [(7, 1)]);
    let post = system.stats("post", 0).await?;
    assert_eq!((filled(&post.wait), filled(&post.run)), (vec![(3, 1)], vec![(4, 1)]));
    Ok(())
}

/// The wait of a spawned job begins at its nominal time.
pub async fn a_childs_wait_begins_at_its_nominal_time(system: System) -> Checked {
    system.at(0, recur("mail", "r", 10)).await?;
    assert_eq!(system.pop(13, "mail", "w1", 5).await?, ["r-1", "r-2"]);
    assert_eq!(filled(&system.stats("mail", 0).await?.wait), [(3, 1), (13, 1)]);
    Ok(())
}

/// Failures are counted on their day for ever, and as failed for as long as the job is.
pub async fn failures_and_failed_jobs_are_counted(system: System) -> Checked {
    for name in ["a", "b"] {
        system.run(0, put("mail", name), "w1").await?;
        system.at(1, fail(name, "w1", "g")).await?;
    }
    let stats = system.stats("mail", 0).await?;
    assert_eq!((stats.failures, stats.failed), (2, 2));
    system.at(DAY, put_again("mail", "a")).await?;
    let stats = system.stats("mail", 0).await?;
    assert_eq!((stats.failures, stats.failed), (2, 1));
    assert_eq!(system.stats("mail", DAY).await?.failed, 0);
    Ok(())
}

/// A failed job put into another queue is subtracted there, although it was added here.
pub async fn a_failed_job_put_elsewhere_is_subtracted_there(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, fail("j1", "w1", "g")).await?;
    system.at(2, put_again("post", "j1")).await?;
    assert_eq!(system.stats("mail", 0).await?.failed, 1);
    assert_eq!(system.stats("post", 0).await?.failed, -1);
    Ok(())
}

/// A job that is unfailed is not subtracted at all.
pub async fn an_unfailed_job_still_counts_as_failed(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, fail("j1", "w1", "g")).await?;
    system.at(2, unfail("mail", "g", 1)).await?;
    let stats = system.stats("mail", 0).await?;
    assert_eq!((stats.failures, stats.failed), (1, 1));
    Ok(())
}

/// Besides the present day a queue keeps its thirty newest; the first figure of another day drops the oldest.
pub async fn days_beyond_the_history_are_dropped(system: System) -> Checked {
    for day in 0..=30 {
        wait_for(&system, DAY * f64::from(day) + 10.0, &format!("j{day}"), 1.0).await?;
    }
    assert_eq!(system.stats("mail", 0).await?.wait.count, 1);
    wait_for(&system, DAY * 40.0 + 10.0, "later", 1.0).await?;
    assert_eq!(system.stats("mail", 0).await?.wait.count, 0);
    assert_eq!(system.stats("mail", 0).await?.run.count, 0);
    assert_eq!(system.stats("mail", DAY).await?.wait.count, 1);
    Ok(())
}

/// Besides the present day it keeps seven histograms; of other days only the counts and means.
pub async fn histograms_beyond_their_history_are_emptied(system: System) -> Checked {
    for day in 0..=7 {
        wait_for(&system, DAY * f64::from(day) + 10.0, &format!("j{day}"), 1.0).await?;
    }
    assert_eq!(filled(&system.stats("mail", 0).await?.wait), [(1, 1)]);
    wait_for(&system, DAY * 9.0 + 10.0, "later", 1.0).await?;
    let stats = system.stats("mail", 0).await?;
    assert_eq!((stats.wait.count, stats.wait.mean), (1, 1.0));
    assert_eq!((filled(&stats.wait), filled(&stats.run)), (vec![], vec![]));
    assert_eq!(stats.wait.histogram.len(), 148);
    assert_eq!(filled(&system.stats("mail", DAY).await?.wait), [(1, 1)]);
    Ok(())
}

/// One caller whose clock is far ahead costs no more than one day.
pub async fn a_wrong_clock_does_not_wipe_the_days_out(system: System) -> Checked {
    wait_for(&system, 10.0, "a", 1.0).await?;
    wait_for(&system, DAY * 100_000.0, "ahead", 1.0).await?;
    wait_for(&system, DAY + 10.0, "b", 1.0).await?;
    for day in [0.0, 1.0, 100_000.0] {
        assert_eq!(system.stats("mail", DAY * day).await?.wait.count, 1, "day {day}");
    }
    Ok(())
}

/// How long days are kept is an option, negative means not at all, and each queue is looked at for itself.
pub async fn how_long_days_are_kept_is_an_option(system: System) -> Checked {
    wait_for(&system, 10.0, "a", 1.0).await?;
    system.run(10, put("post", "b"), "w1").await?;
    system.ask(set_any("stats-history", "-3")).await?;
    wait_for(&system, DAY + 10.0, "c", 1.0).await?;
    assert_eq!(system.stats("mail", 0).await?.wait.count, 0);
    assert_eq!(system.stats("mail", DAY).await?.wait.count, 1);
    assert_eq!(system.stats("post", 0).await?.wait.count, 1);
    Ok(())
}
