//! The history of a job.

use super::prelude::*;

/// A job's history tells where it was put, who had it and how that ended, in whole seconds.
pub async fn a_history_tells_what_happened_in_whole_seconds(system: System) -> Checked {
    system.at(0.9, put("mail", "j1")).await?;
    system.take(1.9, "mail", "w1").await?;
    system.at(2.9, fail("j1", "w1", "g")).await?;
    system.at(3.9, unfail("post", "g", 1)).await?;
    system.take(4.9, "post", "w2").await?;
    system.at(5.9, timeout(["j1"])).await?;
    system.take(6.9, "post", "w3").await?;
    system.at(7.9, advance("j1", "w3", "last")).await?;
    system.take(8.9, "last", "w4").await?;
    system.at(9.9, complete("j1", "w4")).await?;
    let expected = [
        entry(0, was_put("mail")),
        entry(1, was_popped("w1")),
        entry(2, had_failed(Some("w1"), "g")),
        entry(3, was_put("post")),
        entry(4, was_popped("w2")),
        entry(5, HistoryEvent::TimedOut),
        entry(6, was_popped("w3")),
        entry(7, HistoryEvent::Done),
        entry(7, was_put("last")),
        entry(8, was_popped("w4")),
        entry(9, HistoryEvent::Done),
    ];
    assert_eq!(system.job("j1").await?.history, expected);
    Ok(())
}

/// Whole seconds are rounded down, also before the epoch.
pub async fn moments_before_the_epoch_are_rounded_down(system: System) -> Checked {
    system.at(-0.5, put("mail", "j1")).await?;
    assert_eq!(system.job("j1").await?.history, [entry(-1, was_put("mail"))]);
    Ok(())
}

/// Any caller may write into a job's history, in any state.
pub async fn any_caller_may_write_into_a_history(system: System) -> Checked {
    system.at(0, put("mail", "j1")).await?;
    system.at(1.5, log("j1", "seen")).await?;
    let data = Some(" {\"by\": [\"me\"]}".to_string());
    system.at(2, Log { data: data.clone(), ..log("j1", "seen again") }).await?;
    system.take(3, "mail", "w1").await?;
    system.at(4, complete("j1", "w1")).await?;
    system.at(5, log("j1", "filed")).await?;
    let history = system.job("j1").await?.history;
    assert_eq!(history[1], entry(1, was_logged("seen")));
    assert_eq!(history[2], entry(2, HistoryEvent::Log { message: "seen again".into(), data }));
    assert_eq!(history[5..], [entry(5, was_logged("filed"))]);
    Ok(())
}

/// Changes that do not move a job are not in its history, nor is a retry.
pub async fn small_changes_are_not_in_the_history(system: System) -> Checked {
    system.at(0, put("post", "needed")).await?;
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, heartbeat("j1", "w1")).await?;
    system.at(1, set_priority("j1", 5)).await?;
    system.at(1, add_tags("j1", ["t"])).await?;
    system.at(1, remove_tags("j1", ["t"])).await?;
    system.at(1, track("j1")).await?;
    system.at(1, retry("j1", "w1")).await?;
    assert_eq!(system.job("j1").await?.history.len(), 2);
    system.at(2, Put { depends: jids(["needed"]), ..put("mail", "j2") }).await?;
    system.at(2, depend_off_all("j2")).await?;
    assert_eq!(system.job("j2").await?.history.len(), 1);
    Ok(())
}

/// Writes so many numbered entries into a job's history.
async fn write(system: &System, entries: u32) -> Result<(), BackendError> {
    system.at(0, put("mail", "j1")).await?;
    for number in 1..=entries {
        system.at(number, log("j1", format!("entry {number}"))).await?;
    }
    Ok(())
}

/// A hundred entries are kept: how the job began, and the latest.
pub async fn a_long_history_keeps_its_beginning_and_its_end(system: System) -> Checked {
    write(&system, 99).await?;
    assert_eq!(system.job("j1").await?.history.len(), 100);
    system.at(100, log("j1", "entry 100")).await?;
    system.at(101, log("j1", "entry 101")).await?;
    let history = system.job("j1").await?.history;
    assert_eq!(history.len(), 100);
    assert_eq!(history[0], entry(0, was_put("mail")));
    assert_eq!(history[1], entry(3, was_logged("entry 3")));
    assert_eq!(history[99], entry(101, was_logged("entry 101")));
    Ok(())
}

/// How much is kept is an option, also where that is one or two entries, and a fraction is rounded down.
pub async fn how_long_a_history_may_be_is_an_option(system: System) -> Checked {
    let (first, last) = (entry(0, was_put("mail")), entry(9, was_logged("entry 9")));
    let before_last = entry(8, was_logged("entry 8"));
    for (limit, expected) in [
        ("1", vec![last.clone()]),
        ("2", vec![first.clone(), last.clone()]),
        ("3.9", vec![first, before_last, last]),
    ] {
        system.ask(set_any("max-job-history", limit)).await?;
        write(&system, 9).await?;
        assert_eq!(system.job("j1").await?.history, expected, "with a limit of {limit}");
        system.at(10, cancel(["j1"])).await?;
    }
    Ok(())
}

/// A limit of zero or less is none.
pub async fn a_history_may_have_no_limit(system: System) -> Checked {
    for limit in ["0", "-1"] {
        system.ask(set_any("max-job-history", limit)).await?;
        write(&system, 150).await?;
        assert_eq!(system.job("j1").await?.history.len(), 151);
        system.at(0, cancel(["j1"])).await?;
    }
    Ok(())
}

/// A lower limit counts from the next entry on.
pub async fn a_lower_limit_counts_from_the_next_entry(system: System) -> Checked {
    write(&system, 9).await?;
    system.ask(set("max-job-history", "3")).await?;
    assert_eq!(system.job("j1").await?.history.len(), 10);
    system.at(10, log("j1", "entry 10")).await?;
    let expected =
        [entry(0, was_put("mail")), entry(9, was_logged("entry 9")), entry(10, was_logged("entry 10"))];
    assert_eq!(system.job("j1").await?.history, expected);
    Ok(())
}
