//! Several commands at once.

use super::prelude::*;

fn call(now: impl Into<f64>, command: impl Into<Command>) -> Call {
    Call::at(moment(now), command)
}

/// Each command of a batch is answered, in the order in which they were given.
pub async fn a_batch_is_answered_in_order(system: System) -> Checked {
    let batch = vec![
        call(0, put("mail", "j1")),
        call(0, put("mail", "j1")),
        call(0, Length { queue: queue("mail") }),
        call(0, cancel(["j1"])),
        call(0, Length { queue: queue("mail") }),
    ];
    let expected = [
        Ok(Reply::Put(PutReply::Created)),
        Ok(Reply::Put(PutReply::Existing)),
        Ok(Reply::Length(1)),
        Ok(Reply::Cancel(1)),
        Ok(Reply::Length(0)),
    ];
    assert_eq!(system.backend.execute(batch).await?, expected);
    Ok(())
}

/// A refused command stops none of the others and leaves nothing behind.
pub async fn a_refused_command_stops_none_of_the_others(system: System) -> Checked {
    system.run(0, put("mail", "running"), "w1").await?;
    let batch = vec![
        call(1, put("mail", "before")),
        call(1, timeout(["running", "unknown"])),
        call(1, put("mail", "after")),
    ];
    let expected =
        [Ok(Reply::Put(PutReply::Created)), Err(no::such_job("unknown")), Ok(Reply::Put(PutReply::Created))];
    assert_eq!(system.backend.execute(batch).await?, expected);
    assert_eq!(system.state("running").await?, StateName::Running);
    assert_eq!(system.pop(2, "mail", "w2", 5).await?, ["before", "after"]);
    Ok(())
}

/// Jobs put by one batch at one moment keep its order.
pub async fn a_batch_of_puts_keeps_its_order(system: System) -> Checked {
    let names: Vec<String> = (0..100).map(|number| format!("j{}", number * 37 % 100)).collect();
    let batch = names.iter().map(|name| call(5, put("mail", name))).collect();
    assert_eq!(system.backend.execute(batch).await?.len(), 100);
    assert_eq!(system.pop(6, "mail", "w1", 100).await?, names);
    Ok(())
}

/// Each command of a batch goes by its own moment.
pub async fn each_command_of_a_batch_has_its_own_moment(system: System) -> Checked {
    let batch = vec![
        call(5, put("mail", "second")),
        call(3, put("mail", "first")),
        call(60, pop("mail", "w1")),
        call(10, pop("mail", "w1")),
    ];
    assert_eq!(system.backend.execute(batch).await?.len(), 4);
    assert_eq!(system.job("first").await?.qless.expires, moment(120));
    assert_eq!(system.job("second").await?.qless.expires, moment(70));
    Ok(())
}

/// What a batch brings about is heard in its order.
pub async fn a_batch_publishes_its_events_in_order(system: System) -> Checked {
    let mut listener = system.listen().await?;
    let batch = vec![
        call(0, put("mail", "j1")),
        call(1, pop("mail", "w1")),
        call(2, complete("j1", "w2")),
        call(2, complete("j1", "w1")),
    ];
    system.backend.execute(batch).await?;
    let expected =
        [heard::put("j1", "mail"), heard::popped("j1", "mail", "w1"), heard::completed("j1", "mail")];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// A batch of nothing has no answers.
pub async fn an_empty_batch_has_no_answers(system: System) -> Checked {
    assert_eq!(system.backend.execute(vec![]).await?, []);
    Ok(())
}

/// A command that brings no moment is given that of the backend's clock.
pub async fn a_command_without_a_moment_goes_by_the_clock(system: System) -> Checked {
    system.clock.set(50.5);
    system.now(Put { delay: seconds(10), ..put("mail", "j1") }).await?;
    assert_eq!(system.job("j1").await?.state, JobState::Scheduled { due: moment(60.5) });
    system.clock.advance(9);
    assert_eq!(popped_jids(system.now(pop("mail", "w1")).await?), NONE);
    system.clock.advance(1);
    assert_eq!(system.now(pop("mail", "w1")).await?.jobs[0].lock.expires, moment(120.5));
    Ok(())
}
