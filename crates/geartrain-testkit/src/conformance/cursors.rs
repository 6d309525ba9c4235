//! Event cursors: a subscription that resumes after a position.

use super::prelude::*;

/// A resumed subscription receives exactly the missed events, then live ones.
pub async fn a_listener_goes_on_where_it_stopped(system: System) -> Checked {
    let mut first = system.listen().await?;
    for name in ["a", "b", "c"] {
        system.at(0, put("mail", name)).await?;
    }
    assert_eq!(first.next(&system).await?, heard::put("a", "mail"));
    let stopped = first.position()?;
    drop(first);
    system.at(1, put("mail", "d")).await?;
    let mut second = system.resume(stopped).await?;
    let missed = ["b", "c", "d"].map(|name| heard::put(name, "mail"));
    second.heard(&system, missed.clone()).await?;
    system.pop(2, "mail", "w1", 1).await?;
    second.heard(&system, [heard::popped("a", "mail", "w1")]).await?;
    let mut third = system.resume(stopped).await?;
    for event in missed {
        assert_eq!(third.next(&system).await?, event);
    }
    Ok(())
}

/// A subscription resumed at the newest position replays nothing.
pub async fn a_listener_that_missed_nothing_only_goes_on(system: System) -> Checked {
    let mut first = system.listen().await?;
    system.at(0, put("mail", "a")).await?;
    first.skip(&system).await?;
    let mut second = system.resume(first.position()?).await?;
    second.heard(&system, []).await?;
    system.at(1, put("mail", "b")).await?;
    second.heard(&system, [heard::put("b", "mail")]).await?;
    Ok(())
}

/// Positions are the same for all subscribers, also for resumed ones.
pub async fn positions_are_the_same_for_all(system: System) -> Checked {
    let (mut first, mut second) = (system.listen().await?, system.listen().await?);
    let mut positions = Vec::new();
    for name in ["a", "b", "c"] {
        system.at(0, put("mail", name)).await?;
        assert_eq!(first.next(&system).await?, second.next(&system).await?);
        assert_eq!(first.position()?, second.position()?);
        positions.push(first.position()?);
    }
    assert!(positions.is_sorted() && positions[0] < positions[2], "{positions:?} do not grow");
    let mut again = system.resume(positions[0]).await?;
    for position in &positions[1..] {
        again.next(&system).await?;
        assert_eq!(again.position()?, *position);
    }
    Ok(())
}

/// A position that is still to come is refused.
pub async fn a_cursor_that_is_ahead_is_refused(system: System) -> Checked {
    let mut listener = system.listen().await?;
    system.at(0, put("mail", "a")).await?;
    listener.next(&system).await?;
    let newest = listener.position()?;
    // A backend may leave some room between positions.
    for after in [newest + 2_000, newest + 1_000_000, u64::MAX] {
        let ahead = Refusal::CursorAhead { after, newest };
        refused(system.resume(after).await.map(drop), ahead);
    }
    Ok(())
}

/// Not more than 10,000 events are kept. An older position is refused, and told which one would do.
pub async fn a_cursor_that_is_too_old_is_refused(system: System) -> Checked {
    let mut listener = system.listen().await?;
    system.at(0, put("mail", "a")).await?;
    listener.next(&system).await?;
    let after = listener.position()?;
    drop(listener);
    let noise = (0..10_500).map(|_| Call::at(moment(1), track("a")));
    assert!(system.backend.execute(noise.collect()).await?.iter().all(Result::is_ok));
    let oldest = match system.resume(after).await {
        Err(BackendError::Refused(Refusal::CursorTooOld { after: told, oldest })) => {
            assert_eq!(told, after);
            oldest
        }
        other => return Err(format!("an old position is refused, not {:?}", other.map(drop)).into()),
    };
    assert!(oldest > after + 500, "{oldest} is one of more than 10,000 after {after}");
    let mut again = system.resume(oldest - 1).await?;
    assert_eq!(again.next(&system).await?, Event::Track { jid: jid("a") });
    assert_eq!(again.position()?, oldest);
    Ok(())
}

/// After a day without subscribers the event log is switched off and emptied.
pub async fn events_are_not_kept_without_subscribers(system: System) -> Checked {
    let mut listener = system.listen().await?;
    system.now(put("mail", "a")).await?;
    system.now(put("mail", "b")).await?;
    listener.next(&system).await?;
    let after = listener.position()?;
    drop(listener);
    system.now(Tick { count: Count::MAX }).await?;
    system.clock.set(80_000);
    system.now(Tick { count: Count::MAX }).await?;
    let mut again = system.resume(after).await?;
    assert_eq!(again.next(&system).await?, heard::put("b", "mail"));
    drop(again);
    system.now(Tick { count: Count::MAX }).await?;
    system.clock.set(170_000);
    system.now(Tick { count: Count::MAX }).await?;
    system.now(put("mail", "c")).await?;
    match system.resume(after).await {
        Err(BackendError::Refused(Refusal::CursorTooOld { after: told, .. })) => assert_eq!(told, after),
        other => return Err(format!("nothing is kept, and yet {:?}", other.map(drop)).into()),
    }
    let mut anew = system.listen().await?;
    system.now(put("mail", "d")).await?;
    assert_eq!(anew.next(&system).await?, heard::put("d", "mail"));
    assert!(after < anew.position()?);
    Ok(())
}
