//! Ends of attempts: complete, fail, retry, release; and heartbeats between.

use geartrain_core::{
    Backoff, Cancel, Complete, CompleteReply, Fail, Heartbeat, Jid, QueueName, Refusal, Release, Retry,
    Seconds, Timestamp,
};
use redis::cmd;

use super::attempt::Attempt;
use super::keys::Keys;
use super::pop::dead_record;
use super::session::{Session, unsupported};
use super::{cron, script};
use crate::layout::CallError;

impl Session {
    pub(super) async fn heartbeat(
        &self,
        heartbeat: &Heartbeat,
        now: Timestamp,
    ) -> Result<Timestamp, CallError> {
        if heartbeat.payload.is_some() {
            return Err(unsupported("change a job's payload").into());
        }
        let held = self.held(&heartbeat.jid, &heartbeat.holder).await?;
        let keys = Keys::of(held.schedule.as_str());
        let expires = now + Seconds::from(self.options.lease);
        let deadline = cron::milliseconds(expires).to_string();
        let all = [keys.inflight.as_str(), &keys.owner];
        let extended = self.run(&script::HEARTBEAT, &all, &[&held.name, &deadline]).await?;
        self.accepted(extended, &heartbeat.jid).await?;
        Ok(expires)
    }

    /// Completes a run. The result is dropped: WorkKit keeps none.
    pub(super) async fn complete(&self, complete: &Complete) -> Result<CompleteReply, CallError> {
        let Complete { jid, holder, queue, payload, next, result: _ } = complete;
        if payload.is_some() {
            return Err(unsupported("change a job's payload").into());
        }
        if next.is_some() {
            return Err(unsupported("send a job on to another queue").into());
        }
        let held = self.held(jid, holder).await?;
        check_queue(&held, jid, queue.as_ref())?;
        self.finish(&held, jid, "").await?;
        Ok(CompleteReply::Complete)
    }

    pub(super) async fn fail(&self, fail: &Fail, now: Timestamp) -> Result<(), CallError> {
        if fail.payload.is_some() {
            return Err(unsupported("change a job's payload").into());
        }
        let held = self.held(&fail.jid, &fail.holder).await?;
        self.give_up(&held, &fail.jid, &format!("{}: {}", fail.group, fail.message), now).await
    }

    /// Ends a run that failed for good, and notes the reason if the URL asks for it.
    async fn give_up(
        &self,
        held: &Attempt,
        jid: &Jid,
        reason: &str,
        now: Timestamp,
    ) -> Result<(), CallError> {
        if !self.options.keep_failed {
            return self.finish(held, jid, "").await;
        }
        let keys = Keys::of(held.schedule.as_str());
        let payload: Option<String> = self.ask(cmd("HGET").arg(&keys.jobs).arg(&held.id)).await?;
        self.finish(held, jid, &dead_record(reason, now, payload.as_deref())).await
    }

    async fn finish(&self, held: &Attempt, jid: &Jid, reason: &str) -> Result<(), CallError> {
        let keys = Keys::of(held.schedule.as_str());
        let all = [keys.jobs.as_str(), &keys.next, &keys.inflight, &keys.owner, &keys.retry, &keys.dead];
        let last = if held.record.is_last() { "1" } else { "" };
        let arguments = [held.id.as_str(), &held.record.entry, &held.name, last, reason];
        let finished = self.run(&script::FINISH, &all, &arguments).await?;
        self.accepted(finished, jid).await
    }

    /// Queues a run again and uses up a retry. Without one left, the run has failed.
    pub(super) async fn retry(&self, retry: &Retry, now: Timestamp) -> Result<i64, CallError> {
        let held = self.held(&retry.jid, &retry.holder).await?;
        check_queue(&held, &retry.jid, retry.queue.as_ref())?;
        let (retries, used) = self.retry_state(&Keys::of(held.schedule.as_str()), &held.id).await?;
        if used >= retries {
            let group = retry.group.as_ref().map_or("failed-retries", |group| group.as_str());
            let reason = format!("{group}: {}", retry.message.as_deref().unwrap_or("no retries are left"));
            self.give_up(&held, &retry.jid, &reason, now).await?;
            return Ok(-1);
        }
        let delay = match retry.random {
            Some(random) if retry.delay == Seconds::ZERO => Backoff::DEFAULT.wait(used, random),
            _ => retry.delay.max(Seconds::ZERO),
        };
        let score = cron::milliseconds(now + delay).to_string();
        self.requeue(&held, &retry.jid, &score, &format!("{retries} {}", used + 1), None).await?;
        Ok(i64::from(retries) - i64::from(used) - 1)
    }

    /// Queues a run again without using up a retry: at its own time, or after a delay.
    pub(super) async fn release(&self, release: &Release, now: Timestamp) -> Result<(), CallError> {
        let held = self.held(&release.jid, &release.holder).await?;
        if release.delay > Seconds::ZERO {
            let score = cron::milliseconds(now + release.delay).to_string();
            return self.requeue(&held, &release.jid, &score, "", None).await;
        }
        self.requeue(&held, &release.jid, &held.record.run, "", Some(now)).await
    }

    /// Queues a run again. With `now`, at that time if later runs were claimed meanwhile.
    async fn requeue(
        &self,
        held: &Attempt,
        jid: &Jid,
        score: &str,
        state: &str,
        now: Option<Timestamp>,
    ) -> Result<(), CallError> {
        let keys = Keys::of(held.schedule.as_str());
        let all = [keys.jobs.as_str(), &keys.next, &keys.inflight, &keys.owner, &keys.retry];
        let claimed = if now.is_some() { held.record.next.as_str() } else { "" };
        let now = now.map(|now| cron::milliseconds(now).to_string()).unwrap_or_default();
        let arguments = [held.id.as_str(), &held.record.entry, &held.name, score, state, claimed, &now];
        let requeued = self.run(&script::REQUEUE, &all, &arguments).await?;
        self.accepted(requeued, jid).await
    }

    /// Whether a script found the attempt that it is about.
    async fn accepted(&self, reply: i64, jid: &Jid) -> Result<(), CallError> {
        match reply {
            0 => Err(self.not_held(jid).await?.into()),
            _ => Ok(()),
        }
    }

    /// Removes jobs. A run in progress goes on, and is the last one.
    pub(super) async fn cancel(&self, cancel: &Cancel) -> Result<u64, CallError> {
        if cancel.because.is_some() {
            return Err(unsupported("remember why a job was cancelled").into());
        }
        if cancel.cascade {
            return Err(unsupported("make a job depend on others").into());
        }
        let mut found = Vec::with_capacity(cancel.jids.len());
        for jid in &cancel.jids {
            found.push((jid.to_string(), self.locate(jid).await?));
        }
        let mut cancelled = 0;
        for (id, schedule) in found {
            let Some(schedule) = schedule else { continue };
            cancelled += u64::from(self.remove(&schedule, &id).await?);
        }
        Ok(cancelled)
    }

    /// Removes a job from its schedule. False if there was none.
    pub(super) async fn remove(&self, schedule: &QueueName, id: &str) -> Result<bool, CallError> {
        let keys = Keys::of(schedule.as_str());
        let entry = self.entry(&keys, id).await?.0;
        let all = [keys.jobs.as_str(), &keys.next, &keys.retry, &keys.dead, &keys.moving];
        Ok(self.run(&script::CANCEL, &all, &[id, &entry]).await? > 0)
    }
}

/// Refuses to end a job that is in another schedule than the caller thinks.
fn check_queue(held: &Attempt, jid: &Jid, given: Option<&QueueName>) -> Result<(), Refusal> {
    match given {
        Some(given) if *given != held.schedule => {
            let (queue, given) = (held.schedule.clone(), given.clone());
            Err(Refusal::WrongQueue { jid: jid.clone(), queue, given })
        }
        _ => Ok(()),
    }
}
