//! Tick: deadlines, expiries, stored results, silent workers, old complete jobs, tombstones and the event log,
//! which end by time alone.

use super::put::due;
use super::{Delta, Effects, Engine, RowId};
use crate::{
    EndReason, Event, FailedBy, RETRIES_MAX, RandomUnit, Seconds, TIMEOUTS_MAX, Tick, TickReply, Timestamp,
    WORKER_SILENCE_MAX,
};

/// How long a complete job may be too old and still be dropped by a tick.
pub(super) const OVERDUE_MAX: Seconds = Seconds::from_whole(30 * 86_400);
/// How long the event log stays on after the last subscriber.
const LISTENED_MAX: Seconds = Seconds::from_whole(86_400);

impl Engine {
    pub(super) fn tick(&mut self, now: Timestamp, tick: &Tick, fx: &mut Effects) -> TickReply {
        if self.state.is_rate_sample_due(now) {
            self.commit(Delta::RatesSampled(Some(now)), fx);
        }
        let mut done = self.take_policy_steps(now, tick.count.get(), fx) as u64;
        while done < tick.count.get() as u64 && self.run_one_due(now, fx) {
            done += 1;
        }
        self.apply_dependency_policies(now, fx);
        TickReply { done, next: self.next_tick(now) }
    }

    /// When [`Tick`] next has something to do, as seen now.
    pub fn next_tick(&self, now: Timestamp) -> Option<Timestamp> {
        let deadline = self.state.first_deadline().map(|(at, _)| at);
        // A job has expired only after that moment.
        let expiry = self.state.first_expiry().map(|(at, _)| at.next_up());
        let result = self.state.results().first_to_end().map(|(until, _)| until);
        let silent = self.state.most_silent().map(|(seen, _)| (seen + WORKER_SILENCE_MAX).next_up());
        let complete = self.oldest_complete(now).map(|(until, _)| until);
        let canceled = self.oldest_canceled(now).map(|(until, _)| until);
        let listened = self.state.event_log().listened.map(|at| (at + LISTENED_MAX).next_up());
        let policy = self.state.is_any_behind_failed().then_some(now);
        let all = [deadline, expiry, result, silent, complete, canceled, listened, policy];
        all.into_iter().flatten().min()
    }

    /// Shortens at most `max` locks that expire later than one taken now would. That happens after the clock
    /// was set back: the job of a dead worker would stay locked for as long. It is no command, because a
    /// client's `now` may be wrong: the owner of the clock calls it. Returns whether there may be more.
    pub fn shorten_locks(&mut self, now: Timestamp, max: usize, effects: &mut Effects) -> bool {
        effects.ephemeral = false;
        let mut left = max;
        for queue in self.state.queue_numbers() {
            let expires = now + self.state.heartbeat(queue);
            while let Some(lock) = self.state.queue(queue).locks.slice_back(0..1).first()
                && lock.at > expires
            {
                if left == 0 {
                    return true;
                }
                left -= 1;
                self.commit(Delta::Heartbeat { row: lock.row, expires, payload: None }, effects);
            }
        }
        false
    }

    fn run_one_due(&mut self, now: Timestamp, fx: &mut Effects) -> bool {
        if let Some((at, row)) = self.state.first_deadline()
            && at <= now
        {
            self.time_out_attempt(row, now, fx);
        } else if let Some((at, row)) = self.state.first_expiry()
            && at < now
        {
            self.expire(row, now, fx);
        } else if let Some((until, jid)) = self.state.results().first_to_end()
            && until <= now
        {
            let jid = jid.clone();
            self.commit(Delta::ResultDropped(jid), fx);
        } else if let Some((seen, worker)) = self.state.most_silent()
            && seen + WORKER_SILENCE_MAX < now
        {
            self.commit(Delta::CapabilitiesCleared(worker), fx);
            if let Some(worker) = self.state.worker_name(worker) {
                fx.publish(|| Event::WorkerLost { worker });
            }
        } else if let Some((until, row)) = self.oldest_complete(now)
            && until <= now
        {
            self.commit(Delta::Remove(row), fx);
        } else if let Some((until, jid)) = self.oldest_canceled(now)
            && until <= now
        {
            let jid = jid.clone();
            self.commit(Delta::TombstoneDropped(jid), fx);
        } else if let Some(listened) = self.state.event_log().listened
            && listened + LISTENED_MAX < now
        {
            self.commit(Delta::Listening(None), fx);
        } else {
            return false;
        }
        true
    }

    /// The oldest complete job, and when it is too old by `jobs-history`. Jobs that have been too old
    /// for more than [`OVERDUE_MAX`] stay: their callers have another clock, as test suites do. The next
    /// completion by that clock drops them.
    fn oldest_complete(&self, now: Timestamp) -> Option<(Timestamp, RowId)> {
        let (complete, age) = (self.state.complete(), self.state.numbers().complete_age);
        let earliest = now - age - OVERDUE_MAX;
        let mut oldest = complete.first()?;
        if oldest.at < earliest {
            let foreign = complete.count_while(|job| job.at < earliest);
            oldest = complete.slice(foreign..foreign + 1).pop()?;
        }
        Some((oldest.at + age, oldest.row))
    }

    /// Ends an attempt that exceeded its deadline.
    fn time_out_attempt(&mut self, row: RowId, now: Timestamp, fx: &mut Effects) {
        let group = self.group_for("timed-out", row);
        let message = "An attempt took longer than it may";
        let wait = self.backoff(row, RandomUnit::HALF).unwrap_or_default();
        if let Some(worker) = self.holder(row) {
            fx.publish(|| Event::LockLost { jid: self.state.jid(row), worker });
        }
        self.end_attempt(row, now, EndReason::Deadline, None, None, fx);
        self.commit(Delta::AttemptTimedOut(row, now), fx);
        if self.state.row(row).remaining < 0 || self.timed_out_too_often(row) {
            self.fail_into_group(row, now, group, message.into(), FailedBy::Deadline, fx);
            return;
        }
        fx.publish(|| Event::Retried {
            jid: self.state.jid(row),
            queue: self.state.queue_name(self.state.row(row).queue),
        });
        let failure = Some(Box::new(self.failure(row, now, &group, message.into(), fx)));
        self.commit(Delta::Retry { row, now, due: due(now, wait), failure }, fx);
        self.remove_if_abandoned(row, fx);
    }

    /// Whether a job that is retried without end is given up, because its attempts always exceed their
    /// deadlines. The loss of a worker does not count: a later worker may well complete the job.
    fn timed_out_too_often(&self, row: RowId) -> bool {
        let of = self.state.row(row);
        let crashes = self.state.extension(row).map_or(0, |extension| extension.crashes);
        let spent = i64::from(of.retries) - i64::from(of.remaining);
        of.retries == RETRIES_MAX && spent - i64::from(crashes) >= i64::from(TIMEOUTS_MAX)
    }

    /// Fails a job that expired before it started.
    pub(super) fn expire(&mut self, row: RowId, now: Timestamp, fx: &mut Effects) {
        let group = self.group_for("expired", row);
        self.fail_into_group(row, now, group, "Job was not started in time".into(), FailedBy::Expired, fx);
    }

    /// When the job expired, if it did.
    pub(super) fn late_since(&self, row: RowId, now: Timestamp) -> Option<Timestamp> {
        self.state.extension(row)?.options.expires.filter(|expires| *expires < now)
    }

    /// The backoff before the retry that follows the current attempt, if the job has one of its own.
    pub(super) fn backoff(&self, row: RowId, chance: RandomUnit) -> Option<Seconds> {
        Some(self.state.extension(row)?.options.backoff?.wait(self.attempts_before(row), chance))
    }

    /// How many attempts at a job have failed since its put.
    pub(super) fn attempts_before(&self, row: RowId) -> u32 {
        let of = self.state.row(row);
        u32::try_from(i64::from(of.retries) - i64::from(of.remaining)).unwrap_or(0)
    }
}
