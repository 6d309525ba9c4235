//! Setting jobs aside for a transfer: a hash of our own has them meanwhile, so that no listener finds them.

use std::collections::{BTreeMap, BTreeSet};

use geartrain_core::{
    EndSetAside, EndSetAsideReply, Failure, Group, Jid, Job, JobState, Periodic, QueueName, Refusal,
    SET_ASIDE_BYTES_MAX, SET_ASIDE_MAX, SetAside, SetAsideReply, StayReason, TRANSFER_BYTES_MAX,
    TRANSFER_GROUP, Timestamp, TransferEnd,
};
use redis::cmd;

use super::keys::{Keys, SCHEDULES, entry_of};
use super::payload::StoredJob;
use super::periodic::periodic_of;
use super::read::job_of;
use super::session::Session;
use super::{cron, script};
use crate::layout::{CallError, bad_argument};

/// Jobs that are looked up at once: their payloads are in memory.
const PART: usize = 100;
/// The reply of the script for a job that has no entry of this spelling.
const NO_ENTRY: i64 = 0;

/// A job that is set aside.
pub(super) struct MoveRecord {
    record: Record,
    pub(super) payload: Vec<u8>,
}

#[derive(serde::Deserialize)]
struct Record {
    to: String,
    score: String,
    retry: String,
}

impl MoveRecord {
    fn of(value: &[u8]) -> Option<MoveRecord> {
        let at = value.iter().position(|byte| *byte == b'\n')?;
        let record = serde_json::from_slice(value.get(..at)?).ok()?;
        Some(MoveRecord { record, payload: value.get(at + 1..)?.to_vec() })
    }

    pub(super) fn failure(&self) -> Failure {
        let message = format!("set aside to be moved to {}", self.record.to);
        Failure { group: transfer_group(), message, when: Timestamp::ZERO, worker: None }
    }

    fn due(&self) -> Timestamp {
        cron::time_of(self.record.score.parse().unwrap_or_default())
    }
}

pub(super) fn transfer_group() -> Group {
    Group::new(TRANSFER_GROUP).expect("it is a name")
}

/// What a jid stands for.
enum Found<'a> {
    SetAside(&'a QueueName, MoveRecord),
    /// It is in the schedule, and could leave it.
    Stored(&'a QueueName),
    Stays(StayReason),
}

/// What a job was before it was set aside.
enum Before {
    Once(Box<Job>),
    Recurring(Box<Periodic>),
}

impl Session {
    /// Takes jobs out of their schedules. What runs stays, and so does what only its own listeners can run.
    pub(super) async fn set_aside(&self, set: &SetAside, now: Timestamp) -> Result<SetAsideReply, CallError> {
        check(&set.jids)?;
        if !(1..=TRANSFER_BYTES_MAX).contains(&set.to.len()) || set.to.contains(' ') {
            let why = format!("must have 1 to {TRANSFER_BYTES_MAX} bytes and no blanks");
            return Err(bad_argument("to", why).into());
        }
        let known = self.known().await?;
        let (mut reply, mut bytes) = (SetAsideReply::default(), 0);
        for jids in set.jids.chunks(PART) {
            if bytes >= SET_ASIDE_BYTES_MAX {
                break;
            }
            let mut found = self.look_up(&known, jids).await?;
            if self.take_out(jids, &found, &set.to).await? {
                found = self.look_up(&known, jids).await?;
            }
            for (jid, found) in jids.iter().zip(found) {
                let reason = match found {
                    Found::SetAside(_, aside) if aside.record.to != set.to => StayReason::OtherTarget,
                    Found::SetAside(schedule, aside) => {
                        bytes += aside.payload.len();
                        match self.before(schedule, jid, &aside, now) {
                            Ok(Before::Once(job)) => {
                                reply.jobs.push(*job);
                                continue;
                            }
                            Ok(Before::Recurring(periodic)) => {
                                reply.recurring.push(*periodic);
                                continue;
                            }
                            Err(reason) => reason,
                        }
                    }
                    // It has a lease, or no entry because another listener has it.
                    Found::Stored(_) => StayReason::Running,
                    Found::Stays(StayReason::Unknown) => {
                        self.drop_entries(&known, jid, now).await?;
                        StayReason::Unknown
                    }
                    Found::Stays(reason) => reason,
                };
                reply.stay.push((jid.clone(), reason));
            }
        }
        Ok(reply)
    }

    /// Removes jobs that are set aside, or puts them back.
    pub(super) async fn end_set_aside(&self, end: &EndSetAside) -> Result<EndSetAsideReply, CallError> {
        check(&end.jids)?;
        let returns = if end.end == TransferEnd::Return { "1" } else { "" };
        let ids: Vec<String> = end.jids.iter().map(ToString::to_string).collect();
        let mut ended = BTreeSet::new();
        for schedule in self.known().await? {
            let keys = Keys::of(schedule.as_str());
            let all = [keys.jobs.as_str(), &keys.next, &keys.retry, &keys.moving];
            let arguments: Vec<&str> = [returns].into_iter().chain(ids.iter().map(String::as_str)).collect();
            let done: Vec<i64> = match self.run_each(&script::END_SET_ASIDE, &all, &arguments).await {
                // Its keys belong to something else.
                Err(CallError::Refused(_)) => continue,
                other => other?,
            };
            ended.extend(end.jids.iter().zip(done).filter(|(_, done)| *done == 1).map(|(jid, _)| jid));
        }
        let others = end.jids.iter().filter(|jid| !ended.contains(jid));
        let stay = others.map(|jid| (jid.clone(), StayReason::NotSetAside)).collect();
        Ok(EndSetAsideReply { ended: ended.len() as u64, stay })
    }

    /// The record of a job of a schedule, if it is set aside.
    pub(super) async fn aside(&self, keys: &Keys, id: &str) -> Result<Option<MoveRecord>, CallError> {
        let value: Option<Vec<u8>> = self.ask(cmd("HGET").arg(&keys.moving).arg(id)).await?;
        Ok(value.and_then(|value| MoveRecord::of(&value)))
    }

    /// What some jids stand for. A job that is in several schedules stays: its id would name one at the target.
    async fn look_up<'a>(
        &self,
        known: &'a BTreeSet<QueueName>,
        jids: &[Jid],
    ) -> Result<Vec<Found<'a>>, CallError> {
        let mut found: Vec<Found<'a>> = jids.iter().map(|_| Found::Stays(StayReason::Unknown)).collect();
        for schedule in known {
            let keys = Keys::of(schedule.as_str());
            let aside = self.values(&keys.moving, jids).await?;
            let stored = self.values(&keys.jobs, jids).await?;
            for (found, (aside, stored)) in found.iter_mut().zip(aside.into_iter().zip(stored)) {
                let here = match (aside.and_then(|value| MoveRecord::of(&value)), stored) {
                    (Some(aside), _) => Found::SetAside(schedule, aside),
                    (None, Some(payload)) => match self.stays(&payload) {
                        Some(reason) => Found::Stays(reason),
                        None => Found::Stored(schedule),
                    },
                    (None, None) => continue,
                };
                *found = match found {
                    Found::Stays(StayReason::Unknown) => here,
                    _ => Found::Stays(StayReason::InSeveral),
                };
            }
        }
        Ok(found)
    }

    /// Fields of a hash; none if the key belongs to something else.
    async fn values(&self, key: &str, jids: &[Jid]) -> Result<Vec<Option<Vec<u8>>>, CallError> {
        let ids: Vec<String> = jids.iter().map(ToString::to_string).collect();
        match self.ask(cmd("HMGET").arg(key).arg(&ids)).await {
            Err(CallError::Refused(_)) => Ok(vec![None; ids.len()]),
            other => other,
        }
    }

    /// Why a job cannot leave its schedule, if it cannot.
    fn stays(&self, payload: &[u8]) -> Option<StayReason> {
        match StoredJob::parse(payload, self.options.order) {
            Ok(job) if job.klass().is_none() => Some(StayReason::Literal),
            Ok(_) => None,
            Err(_) => Some(StayReason::Unreadable),
        }
    }

    /// Sets aside what was found in schedules. Returns whether there was such a job.
    async fn take_out(&self, jids: &[Jid], found: &[Found<'_>], to: &str) -> Result<bool, CallError> {
        let mut stored: BTreeMap<&QueueName, Vec<(String, String)>> = BTreeMap::new();
        for (jid, found) in jids.iter().zip(found) {
            if let Found::Stored(schedule) = found {
                let id = jid.to_string();
                let entry = entry_of(&id);
                stored.entry(*schedule).or_default().push((id, entry));
            }
        }
        for (schedule, entries) in &stored {
            let keys = Keys::of(schedule.as_str());
            let replies = self.take_entries_out(schedule, &keys, entries, to).await?;
            let mut others = Vec::new();
            for ((id, entry), _) in entries.iter().zip(replies).filter(|(_, reply)| *reply == NO_ENTRY) {
                // Another implementation may spell it differently.
                let (other, score) = self.entry(&keys, id).await?;
                if score.is_some() && other != *entry {
                    others.push((id.clone(), other));
                }
            }
            if !others.is_empty() {
                self.take_entries_out(schedule, &keys, &others, to).await?;
            }
        }
        Ok(!stored.is_empty())
    }

    async fn take_entries_out(
        &self,
        schedule: &QueueName,
        keys: &Keys,
        entries: &[(String, String)],
        to: &str,
    ) -> Result<Vec<i64>, CallError> {
        let all = [keys.jobs.as_str(), &keys.next, &keys.inflight, &keys.retry, &keys.moving, SCHEDULES];
        let mut arguments = vec![to, schedule.as_str()];
        arguments.extend(entries.iter().flat_map(|(id, entry)| [id.as_str(), entry]));
        self.run_each(&script::SET_ASIDE, &all, &arguments).await
    }

    /// Removes the entries of a job that is nowhere, as a pop does: they would be listed again and again.
    async fn drop_entries(
        &self,
        known: &BTreeSet<QueueName>,
        jid: &Jid,
        now: Timestamp,
    ) -> Result<(), CallError> {
        for schedule in known {
            let id = jid.to_string();
            match self.entry(&Keys::of(schedule.as_str()), &id).await {
                // Its keys belong to something else.
                Err(CallError::Refused(_)) | Ok((_, None)) => {}
                Ok((entry, Some(_))) => {
                    self.drop_entry(schedule, &id, &entry, now).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What a job was before it was set aside.
    fn before(
        &self,
        schedule: &QueueName,
        jid: &Jid,
        aside: &MoveRecord,
        now: Timestamp,
    ) -> Result<Before, StayReason> {
        let unreadable = |_| StayReason::Unreadable;
        let job = StoredJob::parse(&aside.payload, self.options.order).map_err(unreadable)?;
        let klass = job.klass().ok_or(StayReason::Literal)?;
        let (due, retries) = (aside.due(), self.retries_in(Some(&aside.record.retry)));
        if job.is_recurring() {
            let mut periodic = periodic_of(schedule, jid.clone(), klass, job, due, self.options.order);
            periodic.template.put.retries = Some(retries.0);
            return Ok(Before::Recurring(Box::new(periodic)));
        }
        let state = if due > now { JobState::Scheduled { due } } else { JobState::Waiting };
        Ok(Before::Once(Box::new(job_of(schedule, jid, &job, state, retries))))
    }
}

fn check(jids: &[Jid]) -> Result<(), Refusal> {
    if (1..=SET_ASIDE_MAX).contains(&jids.len()) {
        return Ok(());
    }
    Err(bad_argument("jids", format!("must be 1 to {SET_ASIDE_MAX}, not {}", jids.len())))
}
