//! Events: what subscribers receive, and in what order.

use super::prelude::*;

const EXHAUSTED: &str = "Job exhausted retries in queue \"mail\"";

/// Puts a job, tracks it, and subscribes.
async fn tracked(system: &System, job: Put) -> Result<Listener, BackendError> {
    let name = job.jid.to_string();
    system.at(0, job).await?;
    system.at(0, track(&name)).await?;
    system.listen().await
}

/// The same with a running job.
async fn tracked_and_running(system: &System, job: Put) -> Result<Listener, BackendError> {
    let queue = job.queue.to_string();
    tracked(system, job).await?;
    system.pop(0, &queue, "w1", 1).await?;
    system.listen().await
}

/// A subscriber receives events from then on, with increasing positions.
pub async fn a_subscriber_receives_events_from_then_on(system: System) -> Checked {
    system.at(0, put("mail", "before")).await?;
    let (mut first, mut second) = (system.listen().await?, system.listen().await?);
    system.at(1, put("mail", "a")).await?;
    system.at(2, put("post", "b")).await?;
    let expected = [heard::put("a", "mail"), heard::put("b", "post")];
    first.heard(&system, expected.clone()).await?;
    drop(first);
    for event in expected {
        assert_eq!(second.next(&system).await?, event);
    }
    Ok(())
}

/// A put that changes nothing publishes no event.
pub async fn a_put_is_published_unless_it_changes_nothing(system: System) -> Checked {
    let mut listener = system.listen().await?;
    system.at(0, put("mail", "j1")).await?;
    system.at(1, put("mail", "j1")).await?;
    system.at(2, put_again("post", "j1")).await?;
    listener.heard(&system, [heard::put("j1", "mail"), heard::put("j1", "post")]).await?;
    Ok(())
}

/// A put of a running job publishes that its holder lost the lock; the milestone comes last.
pub async fn a_put_by_another_tells_the_holder(system: System) -> Checked {
    let mut listener = tracked_and_running(&system, put("mail", "j1")).await?;
    system.at(1, Put { caller: Some(worker("w2")), ..put_again("post", "j1") }).await?;
    let expected =
        [heard::put("j1", "post"), heard::lock_lost("j1", "w1"), heard::passed("j1", Milestone::Put)];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// No lost lock is published when the holder puts its own job; it is when the caller is not named.
pub async fn a_put_by_the_holder_does_not_tell_it(system: System) -> Checked {
    system.run(0, put("mail", "own"), "w1").await?;
    system.run(0, put("mail", "other"), "w1").await?;
    let mut listener = system.listen().await?;
    system.at(1, Put { caller: Some(worker("w1")), ..put_again("mail", "own") }).await?;
    system.at(1, put_again("mail", "other")).await?;
    let expected = [heard::put("own", "mail"), heard::put("other", "mail"), heard::lock_lost("other", "w1")];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// A released job still names its last holder, and publishes a lost lock when another caller puts it.
pub async fn a_put_after_a_retry_tells_the_last_holder(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.at(1, retry("j1", "w1")).await?;
    let mut listener = system.listen().await?;
    system.at(2, put_again("mail", "j1")).await?;
    listener.heard(&system, [heard::put("j1", "mail"), heard::lock_lost("j1", "w1")]).await?;
    Ok(())
}

/// A requeue publishes the events of a put.
pub async fn a_requeue_sounds_like_a_put(system: System) -> Checked {
    system.at(0, put("mail", "j1")).await?;
    let mut listener = system.listen().await?;
    system.at(1, requeue("post", "j1")).await?;
    listener.heard(&system, [heard::put("j1", "post")]).await?;
    Ok(())
}

/// Each popped job publishes an event, and a milestone if it is tracked.
pub async fn a_pop_is_published_for_each_job(system: System) -> Checked {
    system.at(0, put("mail", "plain")).await?;
    let mut listener = tracked(&system, put("mail", "j1")).await?;
    system.pop(1, "mail", "w1", 5).await?;
    let expected = [
        heard::popped("plain", "mail", "w1"),
        heard::popped("j1", "mail", "w1"),
        heard::passed("j1", Milestone::Popped),
    ];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// A completion publishes the milestone first, also when the job advances.
pub async fn a_completion_is_published_after_its_milestone(system: System) -> Checked {
    let mut listener = tracked_and_running(&system, put("mail", "j1")).await?;
    system.at(1, advance("j1", "w1", "post")).await?;
    let milestone = heard::passed("j1", Milestone::Completed);
    listener.heard(&system, [milestone.clone(), heard::advanced("j1", "mail", "post")]).await?;
    system.pop(2, "post", "w1", 1).await?;
    listener.skip(&system).await?;
    system.at(3, complete("j1", "w1")).await?;
    listener.heard(&system, [milestone, heard::completed("j1", "post")]).await?;
    Ok(())
}

/// A failure is published before its milestone.
pub async fn a_failure_is_published_before_its_milestone(system: System) -> Checked {
    let mut listener = tracked_and_running(&system, put("mail", "j1")).await?;
    system.at(1, fail("j1", "w1", "g")).await?;
    let expected = [
        heard::failed("j1", "mail", "w1", "g", "oops", FailedBy::Worker),
        heard::passed("j1", Milestone::Failed),
    ];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// A retry is published, but is no milestone.
pub async fn a_retry_is_published_without_a_milestone(system: System) -> Checked {
    let mut listener = tracked_and_running(&system, put("mail", "j1")).await?;
    system.at(1, retry("j1", "w1")).await?;
    listener.heard(&system, [heard::retried("j1", "mail")]).await?;
    Ok(())
}

/// A retry beyond the last publishes the milestone first, and names the worker.
pub async fn a_last_retry_is_published_as_a_failure(system: System) -> Checked {
    let mut listener = tracked_and_running(&system, Put { retries: Some(0), ..put("mail", "j1") }).await?;
    system.at(1, retry("j1", "w1")).await?;
    let expected = [
        heard::passed("j1", Milestone::Failed),
        heard::failed("j1", "mail", "w1", "failed-retries-mail", EXHAUSTED, FailedBy::Retry),
    ];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// The holder of an expired lock is warned; the take-over that follows is a pop like any other.
pub async fn an_expired_lock_is_published_with_its_warning(system: System) -> Checked {
    let mut listener = tracked_and_running(&system, put("mail", "j1")).await?;
    system.pop(60, "mail", "w2", 1).await?;
    listener.heard(&system, [heard::passed("j1", Milestone::Stalled), heard::lock_lost("j1", "w1")]).await?;
    system.pop(70, "mail", "w2", 1).await?;
    let expected = [heard::popped("j1", "mail", "w2"), heard::passed("j1", Milestone::Popped)];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// A job whose lock expired once too often publishes the milestone first, and names its last holder.
pub async fn an_exhausted_job_is_published_as_a_failure(system: System) -> Checked {
    let mut listener = tracked_and_running(&system, Put { retries: Some(0), ..put("mail", "j1") }).await?;
    system.pop(60, "mail", "w2", 1).await?;
    listener.skip(&system).await?;
    system.pop(70, "mail", "w2", 1).await?;
    let expected = [
        heard::passed("j1", Milestone::Failed),
        heard::failed("j1", "mail", "w1", "failed-retries-mail", EXHAUSTED, FailedBy::Expiry),
    ];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// Without grace the warning and the take-over are published by one pop, in this order.
pub async fn without_grace_warning_and_failure_are_published_in_turn(system: System) -> Checked {
    system.ask(set("grace-period", "0")).await?;
    let mut listener = tracked_and_running(&system, Put { retries: Some(0), ..put("mail", "j1") }).await?;
    system.pop(60, "mail", "w2", 1).await?;
    let expected = [
        heard::passed("j1", Milestone::Stalled),
        heard::lock_lost("j1", "w1"),
        heard::passed("j1", Milestone::Failed),
        heard::failed("j1", "mail", "w1", "failed-retries-mail", EXHAUSTED, FailedBy::Expiry),
    ];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// A pop warns of what expired before it hands anything out.
pub async fn a_warning_is_published_before_the_popped_jobs(system: System) -> Checked {
    system.run(0, put("mail", "late"), "w1").await?;
    system.at(1, put("mail", "waiting")).await?;
    let mut listener = system.listen().await?;
    system.pop(60, "mail", "w2", 1).await?;
    let expected = [heard::lock_lost("late", "w1"), heard::popped("waiting", "mail", "w2")];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// A cancellation publishes the queue and the holder, then the milestone.
pub async fn a_cancellation_is_published_before_its_milestone(system: System) -> Checked {
    let mut listener = tracked_and_running(&system, put("mail", "j1")).await?;
    system.at(1, cancel(["j1"])).await?;
    let expected = [heard::canceled("j1", "mail", Some("w1")), heard::passed("j1", Milestone::Canceled)];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// Cancellations are published in the order of the arguments, for unknown jobs too, but not for complete
/// ones.
pub async fn cancellations_are_published_in_the_order_of_the_arguments(system: System) -> Checked {
    system.run(0, put("mail", "done"), "w1").await?;
    system.at(0, complete("done", "w1")).await?;
    system.at(0, put("mail", "a")).await?;
    system.at(0, put("post", "b")).await?;
    let mut listener = system.listen().await?;
    system.at(1, cancel(["b", "unknown", "done", "a", "b"])).await?;
    let gone = |name| Event::Canceled { jid: jid(name), was: None };
    let expected =
        [heard::canceled("b", "post", None), gone("unknown"), heard::canceled("a", "mail", None), gone("b")];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// A timeout publishes a lost lock for each job, and no milestone.
pub async fn a_timeout_tells_the_holders(system: System) -> Checked {
    let mut listener = tracked_and_running(&system, put("mail", "a")).await?;
    system.run(0, put("mail", "b"), "w2").await?;
    listener.skip(&system).await?;
    system.at(1, timeout(["b", "a"])).await?;
    listener.heard(&system, [heard::lock_lost("b", "w2"), heard::lock_lost("a", "w1")]).await?;
    Ok(())
}

/// Tracking is published every time, also when it changes nothing.
pub async fn tracking_is_published_even_if_it_changes_nothing(system: System) -> Checked {
    system.at(0, put("mail", "j1")).await?;
    let mut listener = system.listen().await?;
    for _ in 0..2 {
        system.at(1, track("j1")).await?;
    }
    for _ in 0..2 {
        system.at(2, untrack("j1")).await?;
    }
    let (on, off) = (Event::Track { jid: jid("j1") }, Event::Untrack { jid: jid("j1") });
    listener.heard(&system, [on.clone(), on, off.clone(), off]).await?;
    Ok(())
}

/// Setting and unsetting an option is published, also when it changes nothing.
pub async fn options_are_published_when_they_are_set_and_unset(system: System) -> Checked {
    let mut listener = system.listen().await?;
    system.ask(set("heartbeat", "30")).await?;
    system.ask(unset("heartbeat")).await?;
    system.ask(unset("heartbeat")).await?;
    let unset = Event::ConfigUnset { option: "heartbeat".into() };
    let expected =
        [Event::ConfigSet { option: "heartbeat".into(), value: "30".into() }, unset.clone(), unset];
    listener.heard(&system, expected).await?;
    Ok(())
}

/// Changes that do not move a job publish no event, nor do automatic promotions.
pub async fn small_changes_make_no_sound(system: System) -> Checked {
    system.run(0, put("mail", "a"), "w1").await?;
    system.run(0, put("mail", "failed"), "w1").await?;
    system.at(0, fail("failed", "w1", "g")).await?;
    system.at(0, put("post", "b")).await?;
    system.at(0, Put { depends: jids(["b"]), delay: seconds(1), ..put("post", "blocked") }).await?;
    let mut listener = system.listen().await?;
    system.at(1, heartbeat("a", "w1")).await?;
    system.at(1, set_priority("a", 5)).await?;
    system.at(1, add_tags("a", ["t"])).await?;
    system.at(1, remove_tags("a", ["t"])).await?;
    system.at(1, log("a", "seen")).await?;
    system.at(1, depend_off_all("blocked")).await?;
    system.at(1, pause("post")).await?;
    system.at(1, resume("post")).await?;
    system.at(1, unfail("revived", "g", 1)).await?;
    system.at(1, Recur { tags: tags(["t"]), ..recur("often", "r", 10) }).await?;
    system.at(1, TagRecurring { jid: jid("r"), tags: tags(["u"]) }).await?;
    system.at(1, UntagRecurring { jid: jid("r"), tags: tags(["u"]) }).await?;
    system.at(1, UpdateRecurring { retries: Some(1), ..UpdateRecurring::new(jid("r")) }).await?;
    system.at(50, peek("often", 3)).await?;
    system.at(50, Unrecur { jid: jid("r") }).await?;
    system.at(50, ForgetQueues { queues: queues(["often"]) }).await?;
    system.at(50, ForgetWorkers { workers: vec![worker("w1")] }).await?;
    listener.heard(&system, []).await?;
    Ok(())
}

/// Released dependents and dropped old jobs publish no event; the completion does.
pub async fn what_a_completion_brings_about_makes_no_sound(system: System) -> Checked {
    system.ask(set_any("jobs-history", "-1")).await?;
    system.run(0, put("mail", "a"), "w1").await?;
    system.at(0, Put { depends: jids(["a"]), ..put("mail", "b") }).await?;
    system.at(0, track("b")).await?;
    let mut listener = system.listen().await?;
    system.at(1, complete("a", "w1")).await?;
    listener.heard(&system, [heard::completed("a", "mail")]).await?;
    Ok(())
}

/// A refused command publishes no event.
pub async fn a_refused_command_makes_no_sound(system: System) -> Checked {
    let mut listener = tracked_and_running(&system, put("mail", "j1")).await?;
    system.at(0, Put { depends: jids(["j1"]), ..put("mail", "blocked") }).await?;
    listener.skip(&system).await?;
    refused(system.at(1, complete("j1", "w2")).await, no::not_held_by("w2", "j1", "w1"));
    refused(system.at(1, cancel(["j1"])).await, no::needed_by("j1", "blocked"));
    refused(system.at(1, timeout(["j1", "unknown"])).await, no::such_job("unknown"));
    refused(system.at(1, requeue("mail", "unknown")).await, no::such_job("unknown"));
    refused(system.at(1, track("unknown")).await, no::such_job("unknown"));
    refused(system.at(1, set("heartbeat", "never")).await, no::good("value"));
    listener.heard(&system, []).await?;
    Ok(())
}
