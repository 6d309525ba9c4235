//! Ending attempts: heartbeat extends the lock; complete, fail, retry and timeout end the attempt; unfail and
//! cancel.

use std::collections::BTreeSet;

use super::put::{check_delay, due};
use super::{
    AdvanceDelta, Delta, Effects, Ended, Engine, FailDelta, FailureDelta, ITSELF, RowId, RowState, check_size,
};
use crate::attempt::clip;
use crate::{
    ATTEMPT_MESSAGE_BYTES_MAX, BECAUSE_BYTES_MAX, Backoff, Cancel, Complete, CompleteReply, Cycles,
    EndReason, Event, Fail, FailedBy, Group, Heartbeat, Holder, Jid, JobEnding, Milestone, Next, Payload,
    Refusal, Retry, Seconds, StateName, Timeout, Timestamp, Unfail,
};

impl Engine {
    pub(super) fn heartbeat(
        &mut self,
        now: Timestamp,
        beat: &mut Heartbeat,
        fx: &mut Effects,
    ) -> Result<Timestamp, Refusal> {
        self.check_payload(&beat.payload)?;
        let row = self.claimed(&beat.jid, &beat.holder)?;
        self.check_holder(row, &beat.jid, &beat.holder)?;
        let of = self.state.row(row);
        let (worker, expires) = (of.worker, now + self.state.heartbeat(of.queue));
        fx.ephemeral = self.is_ephemeral(row);
        self.commit(Delta::Heartbeat { row, expires, payload: beat.payload.take() }, fx);
        self.commit(Delta::Seen(worker, now), fx);
        Ok(expires)
    }

    pub(super) fn complete(
        &mut self,
        now: Timestamp,
        complete: &mut Complete,
        fx: &mut Effects,
    ) -> Result<CompleteReply, Refusal> {
        if let Some(next) = &complete.next {
            check_delay(next.delay, next.cycles == Cycles::Accept)?;
        }
        self.check_payload(&complete.payload)?;
        let Complete { jid, holder, queue, payload, next, result } = complete;
        self.check_size("result", result.as_ref().map_or(0, |result| result.bytes.bytes().len()))?;
        let row = self.claimed(jid, holder)?;
        if let Err(refusal) = self.check_holder(row, jid, holder) {
            match self.ended(row, holder) {
                Some(Ended::Completed(reply)) if (reply == CompleteReply::Complete) == next.is_none() => {
                    return Ok(reply);
                }
                Some(Ended::TimedOut) => {}
                _ => return Err(refusal),
            }
        }
        self.check_queue(row, jid, queue)?;
        match next.take() {
            Some(next) => self.advance(now, row, jid.clone(), payload.take(), next, fx),
            None => {
                self.check_result(row, result.as_deref())?;
                let actions = self.end_actions(row);
                fx.ephemeral = self.is_ephemeral(row);
                self.milestone(row, Milestone::Completed, fx);
                fx.publish(|| Event::Completed {
                    jid: jid.clone(),
                    queue: self.state.queue_name(self.state.row(row).queue),
                });
                self.commit(Delta::Complete { row, now, payload: payload.take() }, fx);
                if let Some(actions) = actions {
                    self.conclude(row, now, actions, JobEnding::Completed, result.take(), fx);
                }
                self.drop_old_complete(now, fx);
                Ok(CompleteReply::Complete)
            }
        }
    }

    fn advance(
        &mut self,
        now: Timestamp,
        row: RowId,
        jid: Jid,
        payload: Option<Payload>,
        next: Next,
        fx: &mut Effects,
    ) -> Result<CompleteReply, Refusal> {
        let mut open = self.open_dependencies(&jid, &next.depends);
        self.check_cycles(&jid, Some(row), &open, next.cycles)?;
        open.iter_mut().filter(|on| **on == ITSELF).for_each(|on| *on = row);
        // A delay is ignored if all dependencies are complete already.
        let is_delayed = next.depends.is_empty() || !open.is_empty();
        let due = due(now, next.delay).filter(|_| is_delayed);
        let reply = match due {
            _ if !open.is_empty() => CompleteReply::Depends,
            Some(_) => CompleteReply::Scheduled,
            None => CompleteReply::Waiting,
        };
        let queue = self.queue_id(&next.queue, fx);
        self.milestone(row, Milestone::Completed, fx);
        fx.publish(|| Event::Advanced {
            jid,
            queue: self.state.queue_name(self.state.row(row).queue),
            to: next.queue,
        });
        let delta = AdvanceDelta { row, now, queue, due, depends: open.into(), payload, reply };
        self.commit(Delta::Advance(Box::new(delta)), fx);
        Ok(reply)
    }

    /// Removes the oldest complete jobs that exceed `jobs-history` or `jobs-history-count`.
    fn drop_old_complete(&mut self, now: Timestamp, fx: &mut Effects) {
        let numbers = self.state.numbers();
        let (oldest, count_max) = (now - numbers.complete_age, numbers.complete_count);
        while let Some(first) = self.state.complete().first()
            && (first.at <= oldest || self.state.complete().len() > count_max)
        {
            self.commit(Delta::Remove(first.row), fx);
        }
    }

    pub(super) fn fail(&mut self, now: Timestamp, fail: Fail, fx: &mut Effects) -> Result<(), Refusal> {
        self.check_payload(&fail.payload)?;
        self.check_size("message", fail.message.len())?;
        self.check_size("result", fail.result.as_ref().map_or(0, |result| result.bytes.bytes().len()))?;
        let row = self.claimed(&fail.jid, &fail.holder)?;
        if let Err(refusal) = self.check_holder(row, &fail.jid, &fail.holder) {
            match self.ended(row, &fail.holder) {
                Some(Ended::Failed) => return Ok(()),
                Some(Ended::TimedOut) => {}
                _ => return Err(refusal),
            }
        }
        self.check_result(row, fail.result.as_deref())?;
        let ended = self.end_actions(row).map(|actions| {
            let ending = JobEnding::Failed { group: fail.group.clone(), message: fail.message.clone() };
            (actions, ending)
        });
        fx.ephemeral = self.is_ephemeral(row);
        fx.publish(|| Event::Failed {
            jid: fail.jid,
            queue: self.state.queue_name(self.state.row(row).queue),
            worker: self.holder(row),
            group: fail.group.clone(),
            message: fail.message.clone(),
            by: FailedBy::Worker,
        });
        self.milestone(row, Milestone::Failed, fx);
        let failure = self.failure(row, now, &fail.group, fail.message, fx);
        self.commit(
            Delta::Fail(Box::new(FailDelta { row, now, failure, by_worker: true, payload: fail.payload })),
            fx,
        );
        if let Some((actions, ending)) = ended {
            self.conclude(row, now, actions, ending, fail.result, fx);
        }
        Ok(())
    }

    pub(super) fn retry(&mut self, now: Timestamp, retry: Retry, fx: &mut Effects) -> Result<i64, Refusal> {
        check_delay(retry.delay, matches!(retry.holder, Holder::Worker(_)))?;
        self.check_size("message", retry.message.as_ref().map_or(0, String::len))?;
        let row = self.claimed(&retry.jid, &retry.holder)?;
        self.check_holder(row, &retry.jid, &retry.holder)?;
        self.check_queue(row, &retry.jid, &retry.queue)?;
        let remaining = i64::from(self.state.row(row).remaining) - 1;
        let delay = match retry.random {
            None => retry.delay,
            Some(random) => self.backoff(row, random).unwrap_or_else(|| match retry.delay > Seconds::ZERO {
                true => retry.delay,
                false => Backoff::DEFAULT.wait(self.attempts_before(row), random),
            }),
        };
        self.end_attempt(row, now, EndReason::Retried, retry.group.as_ref(), retry.message.as_deref(), fx);
        self.commit(Delta::SpendRetry(row), fx);
        if remaining >= 0 {
            let queue = self.state.row(row).queue;
            fx.publish(|| Event::Retried { jid: retry.jid, queue: self.state.queue_name(queue) });
            let failure = match (retry.group, retry.message) {
                (Some(group), Some(message)) => Some(Box::new(self.failure(row, now, &group, message, fx))),
                _ => None,
            };
            self.commit(Delta::Retry { row, now, due: due(now, delay), failure }, fx);
            self.remove_if_abandoned(row, fx);
            return Ok(remaining);
        }
        let (usual_group, usual_message) = self.exhausted_failure(row);
        let (group, failure) = match (retry.group, retry.message) {
            (Some(group), Some(message)) => {
                let failure = self.failure(row, now, &group, message, fx);
                (group, failure)
            }
            (group, _) => {
                let group = group.unwrap_or(usual_group);
                let number = self.group_id(&group, fx);
                let message = usual_message.into();
                (group, FailureDelta { group: number, message, when: now, worker: None })
            }
        };
        self.fail_without_retries(row, now, group, failure, FailedBy::Retry, fx);
        Ok(remaining)
    }

    pub(super) fn timeout(
        &mut self,
        now: Timestamp,
        timeout: Timeout,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        let (mut rows, mut named) = (Vec::with_capacity(timeout.jids.len()), BTreeSet::new());
        for jid in &timeout.jids {
            let row = self.existing(jid)?;
            let (state, qless) = match self.state.row(row).state {
                // A job that is named twice is stalled at the second mention.
                RowState::Running if !named.insert(row) => (StateName::Waiting, "stalled"),
                RowState::Running => {
                    rows.push(row);
                    continue;
                }
                state => (state.name(), self.state.qless_word(row)),
            };
            return Err(Refusal::NotRunning { jid: jid.clone(), state, qless });
        }
        for (row, jid) in rows.into_iter().zip(timeout.jids) {
            if let Some(worker) = self.holder(row) {
                fx.publish(|| Event::LockLost { jid, worker });
            }
            self.end_attempt(row, now, EndReason::TakenAway, None, None, fx);
            self.commit(Delta::Timeout(row, now), fx);
            self.remove_if_abandoned(row, fx);
        }
        Ok(())
    }

    pub(super) fn unfail(
        &mut self,
        now: Timestamp,
        unfail: Unfail,
        fx: &mut Effects,
    ) -> Result<u64, Refusal> {
        if unfail.count.get() == 0 {
            return Err(Refusal::BadArgument { what: "count".into(), why: "must be at least 1".into() });
        }
        let Some(group) = self.state.find_group(unfail.group.as_str()) else { return Ok(0) };
        let oldest = self.state.group(group).slice(0..unfail.count.get());
        if oldest.is_empty() {
            return Ok(0);
        }
        let queue = self.queue_id(&unfail.queue, fx);
        for (_, row) in &oldest {
            self.commit(Delta::Unfail(*row, queue, now), fx);
        }
        Ok(oldest.len() as u64)
    }

    pub(super) fn cancel(
        &mut self,
        now: Timestamp,
        cancel: Cancel,
        fx: &mut Effects,
    ) -> Result<u64, Refusal> {
        let by = fx.by.take();
        check_size("because", cancel.because.as_ref().map_or(0, String::len), BECAUSE_BYTES_MAX)?;
        let because = cancel.because.map(std::sync::Arc::from);
        let jids = if cancel.cascade { self.with_dependents(cancel.jids)? } else { cancel.jids };
        let mut rows: Vec<RowId> = jids.iter().filter_map(|jid| self.state.find(jid)).collect();
        rows.sort_unstable();
        for jid in &jids {
            let Some(row) = self.state.find(jid) else { continue };
            let left_behind = self.state.dependents(row).filter(|of| rows.binary_search(of).is_err());
            if let Some(dependent) = left_behind.map(|of| self.state.jid(of)).min() {
                return Err(Refusal::IsDependency { jid: jid.clone(), dependent });
            }
        }
        let mut canceled = 0;
        for jid in jids {
            let row = self.state.find(&jid);
            if row.is_some_and(|row| self.state.row(row).state == RowState::Complete) {
                continue;
            }
            let was = row.map(|row| (self.state.queue_name(self.state.row(row).queue), self.holder(row)));
            fx.publish(|| Event::Canceled { jid: jid.clone(), was });
            if self.state.is_tracked(&jid) {
                fx.publish(|| Event::Milestone { jid, what: Milestone::Canceled });
            }
            if let Some(row) = row {
                self.deliver_canceled(row, fx);
                self.remove_canceled(row, now, by.as_ref(), because.as_ref(), fx);
                canceled += 1;
            }
        }
        Ok(canceled)
    }

    /// Records why an attempt ends without completing the job. Must come before what ends it.
    pub(super) fn end_attempt(
        &mut self,
        row: RowId,
        now: Timestamp,
        reason: EndReason,
        group: Option<&Group>,
        message: Option<&str>,
        fx: &mut Effects,
    ) {
        let message = message.map(|message| clip(message, ATTEMPT_MESSAGE_BYTES_MAX).into());
        self.commit(Delta::AttemptEnded { row, now, reason, group: group.cloned(), message }, fx);
    }

    /// A failure that a worker reports.
    pub(super) fn failure(
        &mut self,
        row: RowId,
        now: Timestamp,
        group: &Group,
        message: String,
        fx: &mut Effects,
    ) -> FailureDelta {
        let worker = Some(self.state.row(row).worker);
        FailureDelta { group: self.group_id(group, fx), message: message.into(), when: now.floor(), worker }
    }

    fn check_payload(&self, payload: &Option<Payload>) -> Result<(), Refusal> {
        payload.as_ref().map_or(Ok(()), |payload| self.check_size("payload", payload.byte_len()))
    }
}
