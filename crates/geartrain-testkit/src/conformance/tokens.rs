//! Fencing tokens: an old attempt cannot end a newer one, and repeated reports are idempotent.

use super::prelude::*;

fn with(popped: &Popped) -> Holder {
    Holder::Token(popped.lock.token)
}

fn complete_with(popped: &Popped) -> Complete {
    Complete::new(popped.jid.clone(), with(popped))
}

fn fail_with(popped: &Popped) -> Fail {
    Fail { holder: with(popped), ..fail("j1", "w1", "g") }
}

/// A token is new at each pop, and a heartbeat keeps it.
pub async fn a_token_is_new_at_each_pop(system: System) -> Checked {
    let first = system.run(0, put("mail", "j1"), "w1").await?.lock.token;
    let other = system.run(0, put("mail", "j2"), "w1").await?.lock.token;
    system.at(1, heartbeat("j1", "w1")).await?;
    let JobState::Running { lock } = system.job("j1").await?.state else { return Err("not running".into()) };
    assert_eq!(lock.token, first);
    system.at(2, retry("j1", "w1")).await?;
    let second = system.take(3, "mail", "w1").await?.lock.token;
    assert!(first < other && other < second, "{first}, {other} and {second} are not in order");
    Ok(())
}

/// The token alone authorizes what its holder may do.
pub async fn a_token_is_as_good_as_the_holders_name(system: System) -> Checked {
    let popped = system.run(0, put("mail", "j1"), "w1").await?;
    let beat = Heartbeat { jid: jid("j1"), holder: with(&popped), payload: None };
    assert_eq!(system.at(1, beat).await?, moment(61));
    assert_eq!(system.at(2, Retry::new(jid("j1"), with(&popped))).await?, 4);
    let popped = system.take(3, "mail", "w1").await?;
    system.at(4, fail_with(&popped)).await?;
    assert_eq!(
        system.job("j1").await?.failure().and_then(|failure| failure.worker.clone()),
        Some(worker("w1"))
    );
    system.at(5, unfail("mail", "g", 1)).await?;
    let popped = system.take(6, "mail", "w1").await?;
    assert_eq!(system.at(7, complete_with(&popped)).await?, CompleteReply::Complete);
    Ok(())
}

/// A token stays valid during the grace period, until another worker has the job.
pub async fn a_token_holds_until_the_take_over(system: System) -> Checked {
    let first = system.run(0, put("mail", "j1"), "w1").await?;
    system.pop(60, "mail", "w2", 1).await?;
    let beat = Heartbeat { jid: jid("j1"), holder: with(&first), payload: None };
    assert_eq!(system.at(61, beat.clone()).await?, moment(121));
    let second = system.take(121, "mail", "w2").await?;
    system.refuses(122, beat, no::lock("j1", StateName::Running)).await?;
    assert_eq!(system.at(123, complete_with(&second)).await?, CompleteReply::Complete);
    Ok(())
}

/// A worker that lost a job and got it again cannot end the new attempt with the old token, only with its
/// name.
pub async fn an_old_token_cannot_end_a_new_attempt_of_the_same_worker(system: System) -> Checked {
    system.ask(set("grace-period", "0")).await?;
    let first = system.run(0, put("mail", "j1"), "w1").await?;
    system.take(60, "mail", "w1").await?;
    let lost = || no::lock("j1", StateName::Running);
    system.refuses(61, complete_with(&first), lost()).await?;
    system.refuses(61, fail_with(&first), lost()).await?;
    system.refuses(61, Retry::new(jid("j1"), with(&first)), lost()).await?;
    assert_eq!(system.at(62, complete("j1", "w1")).await?, CompleteReply::Complete);
    Ok(())
}

/// An attempt that is over has lost its lock, and is told where the job stands instead.
pub async fn a_token_of_an_attempt_that_is_over_is_refused(system: System) -> Checked {
    let popped = system.run(0, put("mail", "j1"), "w1").await?;
    let beat = Heartbeat { jid: jid("j1"), holder: with(&popped), payload: None };
    system.at(1, timeout(["j1"])).await?;
    system.refuses(2, beat.clone(), no::lock("j1", StateName::Waiting)).await?;
    system.refuses(2, complete_with(&popped), no::lock("j1", StateName::Waiting)).await?;
    system.at(3, Put { delay: seconds(9), ..put_again("mail", "j1") }).await?;
    system.refuses(4, beat.clone(), no::lock("j1", StateName::Scheduled)).await?;
    system.at(5, cancel(["j1"])).await?;
    system.refuses(6, beat, no::such_job("j1")).await?;
    Ok(())
}

/// A token that was never issued is refused like an old one.
pub async fn a_made_up_token_is_refused(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    let forged = Holder::Token(Token::new(u64::MAX));
    system.refuses(1, Complete::new(jid("j1"), forged.clone()), no::lock("j1", StateName::Running)).await?;
    system.refuses(1, Complete::new(jid("unknown"), forged), no::such_job("unknown")).await?;
    Ok(())
}

/// The token of one job does not open another.
pub async fn a_token_is_good_for_its_own_job_only(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    let other = system.run(0, put("mail", "j2"), "w1").await?;
    system.refuses(1, fail_with(&other), no::lock("j1", StateName::Running)).await?;
    Ok(())
}

/// A completion sent again after a lost reply is answered again, and nothing happens twice.
pub async fn a_completion_may_be_repeated_with_its_token(system: System) -> Checked {
    let popped = system.run(0, put("mail", "j1"), "w1").await?;
    assert_eq!(system.at(1, complete_with(&popped)).await?, CompleteReply::Complete);
    let mut listener = system.listen().await?;
    assert_eq!(system.ignores(2, complete_with(&popped)).await?, CompleteReply::Complete);
    listener.heard(&system, []).await?;
    Ok(())
}

/// A repeated completion with a next queue is answered as the first time, whatever the job does there by now.
pub async fn a_repeated_completion_answers_as_the_first_time(system: System) -> Checked {
    system.at(0, put("elsewhere", "needed")).await?;
    for (delay, depends, expected) in [
        (0, vec![], CompleteReply::Waiting),
        (5, vec![], CompleteReply::Scheduled),
        (0, jids(["needed"]), CompleteReply::Depends),
    ] {
        let popped = system.run(0, put("mail", "j1"), "w1").await?;
        let next = Next { delay: seconds(delay), depends, ..Next::new(queue("post")) };
        let advance = Complete { next: Some(next), ..complete_with(&popped) };
        assert_eq!(system.at(1, advance.clone()).await?, expected);
        assert_eq!(system.ignores(2, advance).await?, expected);
        system.at(3, cancel(["j1"])).await?;
    }
    Ok(())
}

/// A repeat is answered while the next attempt is under way, and refused once that has ended.
pub async fn a_completion_may_be_repeated_until_a_later_attempt_ends(system: System) -> Checked {
    let first = system.run(0, put("mail", "j1"), "w1").await?;
    let advance = Complete { next: Some(Next::new(queue("post"))), ..complete_with(&first) };
    system.at(1, advance.clone()).await?;
    let second = system.take(2, "post", "w2").await?;
    assert_eq!(system.ignores(3, advance.clone()).await?, CompleteReply::Waiting);
    system.at(4, complete_with(&second)).await?;
    system.refuses(5, advance, no::lock("j1", StateName::Complete)).await?;
    Ok(())
}

/// Nor is a repeat taken for something new when the job has been put again meanwhile.
pub async fn a_completion_may_be_repeated_after_the_job_was_put_again(system: System) -> Checked {
    let popped = system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, complete_with(&popped)).await?;
    system.at(2, put_again("mail", "j1")).await?;
    assert_eq!(system.ignores(3, complete_with(&popped)).await?, CompleteReply::Complete);
    assert_eq!(system.state("j1").await?, StateName::Waiting);
    Ok(())
}

/// A failure sent again is answered again, also when the job has been revived meanwhile.
pub async fn a_failure_may_be_repeated_with_its_token(system: System) -> Checked {
    let popped = system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, fail_with(&popped)).await?;
    let mut listener = system.listen().await?;
    system.ignores(2, fail_with(&popped)).await?;
    system.at(3, unfail("mail", "g", 1)).await?;
    system.ignores(4, fail_with(&popped)).await?;
    listener.heard(&system, []).await?;
    Ok(())
}

/// What an attempt did not do it cannot repeat.
pub async fn an_attempt_cannot_repeat_what_it_did_not_do(system: System) -> Checked {
    let popped = system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, complete_with(&popped)).await?;
    let done = || no::lock("j1", StateName::Complete);
    system.refuses(2, fail_with(&popped), done()).await?;
    system.refuses(2, Retry::new(jid("j1"), with(&popped)), done()).await?;
    let beat = Heartbeat { jid: jid("j1"), holder: with(&popped), payload: None };
    system.refuses(2, beat, done()).await?;
    let popped = system.run(3, put_again("mail", "j1"), "w1").await?;
    system.at(4, fail_with(&popped)).await?;
    system.refuses(5, complete_with(&popped), no::lock("j1", StateName::Failed)).await?;
    Ok(())
}

/// A retry cannot be repeated: the second one would cost a second time.
pub async fn a_retry_cannot_be_repeated(system: System) -> Checked {
    let popped = system.run(0, put("mail", "j1"), "w1").await?;
    let again = Retry::new(jid("j1"), with(&popped));
    assert_eq!(system.at(1, again.clone()).await?, 4);
    system.refuses(2, again, no::lock("j1", StateName::Waiting)).await?;
    Ok(())
}

/// Without a token a repeat is what it is in Qless: a report on a job that is not running.
pub async fn without_a_token_a_repeat_is_refused(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, complete("j1", "w1")).await?;
    system.refuses(2, complete("j1", "w1"), no::running("j1", StateName::Complete)).await?;
    Ok(())
}

/// What is repeated must be of the kind that was done: for good, to another queue, or badly.
pub async fn a_repetition_of_another_kind_is_refused(system: System) -> Checked {
    let popped = system.run(0, put("mail", "j1"), "w1").await?;
    let sent_on = Complete { next: Some(Next::new(queue("post"))), ..complete_with(&popped) };
    assert_eq!(system.at(1, sent_on.clone()).await?, CompleteReply::Waiting);
    system.refuses(2, complete_with(&popped), no::lock("j1", StateName::Waiting)).await?;
    system.refuses(2, fail_with(&popped), no::lock("j1", StateName::Waiting)).await?;
    assert_eq!(system.at(2, sent_on.clone()).await?, CompleteReply::Waiting);
    let popped = system.take(3, "post", "w2").await?;
    system.at(4, complete_with(&popped)).await?;
    system.refuses(5, sent_on, no::lock("j1", StateName::Complete)).await?;
    Ok(())
}

/// Once its holder was warned, a lock lasts to the end of the grace, and only Qless goes on to name the old
/// deadline.
pub async fn a_lock_in_grace_ends_with_the_grace(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.pop(65, "mail", "w2", 1).await?;
    let job = system.job("j1").await?;
    let JobState::Running { lock } = job.state else { return Err("not running".into()) };
    assert_eq!((lock.expires, job.qless.expires), (moment(75), moment(60)));
    Ok(())
}
