//! Capabilities: what workers announced, what happens to the jobs of a lost or interrupted worker, and limits
//! of queues.

use super::put::{check_delay, due};
use super::put_options::check_span;
use super::{Delta, Effects, Engine, FailureDelta, Kind, NameId, RowId, at_most, check_size};
use crate::{
    Announce, AnnounceChange, Announced, Announcement, EndReason, Event, FailedBy, GetLimits, Group, Jid,
    Klass, Pop, Priority, Put, QueueLimits, QueueName, RETRIES_MAX, Refusal, Release, RollCall, Seconds,
    SetLimits, Timestamp, WorkerLost, WorkerName,
};

/// How often a parked worker is noted as seen.
const SEEN_AGAIN: Seconds = Seconds::from_whole(15);
/// Limit of capabilities per worker.
const CAPABILITIES_MAX: usize = 1_024;
/// Limit of the evidence of a lost worker: it is stored for each of its jobs.
const EVIDENCE_BYTES_MAX: usize = 4 << 10;
/// Limit of priorities with a limit of their own.
const PRIORITIES_MAX: usize = 16;

impl Engine {
    pub(super) fn announce(
        &mut self,
        now: Timestamp,
        announce: Announce,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        let Announce { worker: name, change } = announce;
        let known = self.state.find_worker(name.as_str());
        self.check_announcement(known, &change)?;
        let worker = self.id(Kind::Worker, name.shared(), fx);
        self.commit(Delta::Seen(worker, now), fx);
        let can = match change {
            AnnounceChange::Can(can) => can,
            AnnounceChange::Only(only) => {
                self.commit(Delta::CapabilitiesCleared(worker), fx);
                only
            }
            AnnounceChange::Cannot(cannot) => {
                for (queue, klass) in cannot {
                    self.disable(worker, &queue, klass.as_ref(), fx);
                }
                Vec::new()
            }
        };
        for capability in can {
            let queue = self.queue_id(&capability.queue, fx);
            let klass = capability.klass.map(|klass| self.klass_id(&klass, fx));
            self.commit(
                Delta::CapabilityAdded { worker, queue, klass, attempt_max: capability.attempt_max },
                fx,
            );
        }
        fx.publish(|| Event::Announced { worker: name });
        Ok(())
    }

    /// Withdraws a capability. A queue or klass that is not interned has none.
    fn disable(&mut self, worker: NameId, queue: &QueueName, klass: Option<&Klass>, fx: &mut Effects) {
        let Some(queue) = self.state.find_queue(queue.as_str()) else { return };
        let known = klass.map(|klass| self.state.find_name(Kind::Klass, klass.shared()));
        match known {
            Some(None) => {}
            klass => self.commit(Delta::CapabilityRemoved { worker, queue, klass: klass.flatten() }, fx),
        }
    }

    /// How many jobs a worker holds.
    pub fn held_by(&self, worker: &WorkerName) -> usize {
        let worker = self.state.find_worker(worker.as_str());
        worker.map_or(0, |worker| self.state.held(worker).len())
    }

    /// Notes that a parked pop still waits, unless that was noted a moment ago.
    pub fn note_parked_poll(&mut self, now: Timestamp, pop: &Pop, effects: &mut Effects) {
        for queue in &pop.queues {
            let queue = self.queue_id(queue, effects);
            self.note_poll(queue, pop, now, effects);
        }
        if let Some(worker) = self.state.find_worker(pop.worker.as_str())
            && self.state.worker(worker).seen.is_some_and(|seen| now - seen > SEEN_AGAIN)
        {
            self.commit(Delta::Seen(worker, now), effects);
        }
    }

    fn check_announcement(&self, worker: Option<NameId>, change: &AnnounceChange) -> Result<(), Refusal> {
        let (can, before) = match change {
            AnnounceChange::Cannot(cannot) => return at_most("abilities", cannot.len(), CAPABILITIES_MAX),
            AnnounceChange::Only(only) => (only, Vec::new()),
            AnnounceChange::Can(can) => {
                (can, worker.map_or(Vec::new(), |worker| self.state.capabilities(worker)))
            }
        };
        can.iter().try_for_each(|capability| check_span("timeout", capability.attempt_max))?;
        let all: std::collections::BTreeSet<_> =
            can.iter().chain(&before).map(|capability| (&capability.queue, &capability.klass)).collect();
        at_most("abilities", all.len(), CAPABILITIES_MAX)
    }

    pub(super) fn roll_call(&self, call: &RollCall) -> u64 {
        let Some(queue) = self.state.find_queue(call.queue.as_str()) else { return 0 };
        let count = match &call.klass {
            None => self.state.workers_capable_in_queue(queue),
            Some(klass) => {
                self.state.capable_workers(queue, self.state.find_name(Kind::Klass, klass.shared()))
            }
        };
        count as u64
    }

    pub(super) fn announced(&self, announced: &Announced) -> Vec<Announcement> {
        let workers: Vec<NameId> = match &announced.worker {
            None => self.state.workers_with_capabilities().collect(),
            Some(worker) => self.state.find_worker(worker.as_str()).into_iter().collect(),
        };
        let mut all: Vec<Announcement> = workers
            .into_iter()
            .filter_map(|worker| {
                let capabilities = self.state.capabilities(worker);
                let seen = self.state.worker(worker).seen;
                let name = self.state.worker_name(worker)?;
                (!capabilities.is_empty()).then_some(Announcement { worker: name, seen, capabilities })
            })
            .collect();
        all.sort_by(|one, other| one.worker.cmp(&other.worker));
        all
    }

    pub(super) fn release(
        &mut self,
        now: Timestamp,
        release: Release,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        let Release { jid, holder, message, delay } = release;
        if delay < Seconds::ZERO {
            let why = format!("must not be negative, and is {} seconds", delay.get());
            return Err(Refusal::BadArgument { what: "delay".into(), why });
        }
        check_delay(delay, false)?;
        self.check_size("message", message.as_ref().map_or(0, String::len))?;
        let row = self.claimed(&jid, &holder)?;
        self.check_holder(row, &jid, &holder)?;
        self.publish_release(row, false, fx);
        match (message, due(now, delay)) {
            (None, None) => self.commit(Delta::Release(row, now), fx),
            (message, due) => {
                self.end_attempt(row, now, EndReason::Released, None, message.as_deref(), fx);
                self.commit(due.map_or(Delta::ToFront(row), |due| Delta::Snooze(row, due)), fx);
            }
        }
        self.remove_if_abandoned(row, fx);
        Ok(())
    }

    fn publish_release(&self, row: RowId, crashed: bool, fx: &mut Effects) {
        if let Some(worker) = self.holder(row) {
            fx.publish(|| Event::Released {
                jid: self.state.jid(row),
                queue: self.state.queue_name(self.state.row(row).queue),
                worker,
                crashed,
            });
        }
    }

    pub(super) fn worker_lost(
        &mut self,
        now: Timestamp,
        lost: WorkerLost,
        fx: &mut Effects,
    ) -> Result<Vec<Jid>, Refusal> {
        check_size("evidence", lost.evidence.as_ref().map_or(0, String::len), EVIDENCE_BYTES_MAX)?;
        let Some(worker) = self.state.find_worker(lost.worker.as_str()) else { return Ok(Vec::new()) };
        let held = self.state.held(worker);
        if held.is_empty() && self.state.worker(worker).seen.is_none() {
            return Ok(Vec::new());
        }
        let jids = held.iter().map(|row| self.state.jid(*row)).collect();
        for row in held {
            self.crash(row, now, lost.evidence.as_deref(), fx);
        }
        self.commit(Delta::ForgetWorker(worker), fx);
        fx.publish(|| Event::WorkerLost { worker: lost.worker });
        Ok(jids)
    }

    fn crash(&mut self, row: RowId, now: Timestamp, evidence: Option<&str>, fx: &mut Effects) {
        self.commit(Delta::Crashed { row, now, evidence: evidence.map(Into::into) }, fx);
        let (crashes, of_job) = self
            .state
            .extension(row)
            .map_or((0, None), |extension| (extension.crashes, extension.options.crashes_max));
        // With the highest number of retries the job is to be tried without end.
        let is_endless = self.state.row(row).retries == RETRIES_MAX;
        let default_max = if is_endless { 0 } else { self.state.numbers().crashes_max };
        let max = of_job.unwrap_or(default_max);
        if max > 0 && crashes >= max {
            let group = self.group_for("crashed", row);
            let evidence = evidence.map_or(String::new(), |evidence| format!(": {evidence}"));
            let message = format!("Job was set aside after {crashes} of its workers died{evidence}");
            self.fail_into_group(row, now, group, message, FailedBy::Crashes, fx);
        } else if self.state.row(row).remaining < 0 {
            let (group, message) = self.exhausted_failure(row);
            self.fail_into_group(row, now, group, message, FailedBy::WorkerLost, fx);
        } else {
            self.publish_release(row, true, fx);
            self.commit(Delta::ToFront(row), fx);
            self.remove_if_abandoned(row, fx);
        }
    }

    /// The failure group of a queue, for one kind of failure.
    pub(super) fn group_for(&self, kind: &str, row: RowId) -> Group {
        let queue = self.state.queue_name(self.state.row(row).queue);
        Group::new(format!("{kind}-{queue}")).expect("a group has room for a queue's name")
    }

    pub(super) fn fail_into_group(
        &mut self,
        row: RowId,
        now: Timestamp,
        group: Group,
        message: String,
        by: FailedBy,
        fx: &mut Effects,
    ) {
        let failure = FailureDelta {
            group: self.group_id(&group, fx),
            message: message.into(),
            when: now,
            worker: None,
        };
        self.fail_without_retries(row, now, group, failure, by, fx);
    }

    pub(super) fn set_limits(&mut self, set: SetLimits, fx: &mut Effects) -> Result<(), Refusal> {
        let SetLimits { queue: name, mut limits } = set;
        let bad = |why: String| Err(Refusal::BadArgument { what: "limit".into(), why });
        if limits.by_priority.len() > PRIORITIES_MAX {
            return bad(format!("must be for at most {PRIORITIES_MAX} priorities"));
        }
        limits.by_priority.sort_unstable_by_key(|(priority, _)| *priority);
        if let Some(twice) = limits.by_priority.windows(2).find(|two| two[0].0 == two[1].0) {
            return bad(format!("for priority {} is given twice", twice[0].0));
        }
        if limits.jobs_max == Some(0) || limits.by_priority.iter().any(|(_, max)| *max == 0) {
            return bad("must let at least one job in".into());
        }
        let queue = self.queue_id(&name, fx);
        let limits = (limits != QueueLimits::default()).then(|| Box::new(limits));
        self.commit(Delta::Limits(queue, limits), fx);
        fx.publish(|| Event::LimitsSet { queue: name });
        Ok(())
    }

    pub(super) fn get_limits(&self, get: &GetLimits) -> QueueLimits {
        let queue = self.state.find_queue(get.queue.as_str());
        queue.and_then(|queue| self.state.limits(queue)).cloned().unwrap_or_default()
    }

    /// Refuses a new job if its queue is full.
    pub(super) fn check_limits(&self, queue: NameId, put: &Put) -> Result<(), Refusal> {
        let Some(limits) = self.state.limits(queue) else { return Ok(()) };
        let priority = put.priority.unwrap_or(Priority::ZERO);
        let by_priority = &limits.by_priority;
        let of_priority = by_priority.iter().rev().find(|(at, _)| *at <= priority).or(by_priority.first());
        let max = limits.jobs_max.into_iter().chain(of_priority.map(|(_, max)| *max)).min();
        let jobs = self.state.unfinished(queue);
        match max {
            Some(max) if jobs >= max => Err(Refusal::QueueFull { queue: put.queue.clone(), jobs, max }),
            _ => Ok(()),
        }
    }
}
