//! Attempts: the runs that workers hold, with their leases.

use std::collections::BTreeSet;

use geartrain_core::{Holder, Jid, QueueName, Refusal, StateName, Timestamp, Token, WorkerName};
use redis::cmd;

use super::cron;
use super::keys::Keys;
use super::session::Session;
use crate::layout::CallError;

/// The record of an attempt. Its field is the job's id and the token: runs of one job may overlap, and each
/// has a lease of its own.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct AttemptRecord {
    pub(super) worker: String,
    /// The entry as it was found in the sorted set.
    pub(super) entry: String,
    /// The score of the run as it was found.
    pub(super) run: String,
    /// The score that the claim gave to the entry; empty if the job has no run after this one.
    pub(super) next: String,
    /// When it was claimed, in milliseconds.
    pub(super) at: i64,
}

impl AttemptRecord {
    /// Whether the job has no run after this one.
    pub(super) fn is_last(&self) -> bool {
        self.next.is_empty()
    }
}

/// An attempt that a worker holds.
pub(super) struct Attempt {
    pub(super) schedule: QueueName,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) record: AttemptRecord,
}

/// The name of an attempt in our keys.
pub(super) fn name_of(id: &str, token: Token) -> String {
    format!("{id}:{}", token.number())
}

/// The job's id and the token in the name of an attempt.
pub(super) fn parts_of(name: &str) -> Option<(&str, Token)> {
    let (id, token) = name.rsplit_once(':')?;
    Some((id, Token::new(token.parse().ok()?)))
}

impl Session {
    /// The attempt that a holder has of a job, or the refusal if it has none.
    pub(super) async fn held(&self, jid: &Jid, holder: &Holder) -> Result<Attempt, CallError> {
        let (used, mut other) = (self.used(), None);
        if let Some(held) = self.held_in(&used, jid, holder, &mut other).await? {
            return Ok(held);
        }
        // Popped by another process, as by `geartrain pop`.
        let known = self.known().await?.difference(&used).cloned().collect();
        if let Some(held) = self.held_in(&known, jid, holder, &mut other).await? {
            return Ok(held);
        }
        if let (Holder::Worker(worker), Some(holder)) = (holder, other) {
            return Err(Refusal::HeldByAnother { jid: jid.clone(), worker: worker.clone(), holder }.into());
        }
        Err(self.not_held(jid).await?.into())
    }

    /// Looks for an attempt in some schedules. `other` becomes a worker that has the job instead.
    async fn held_in(
        &self,
        schedules: &BTreeSet<QueueName>,
        jid: &Jid,
        holder: &Holder,
        other: &mut Option<WorkerName>,
    ) -> Result<Option<Attempt>, CallError> {
        let id = jid.to_string();
        for schedule in schedules.iter().cloned() {
            let keys = Keys::of(schedule.as_str());
            match holder {
                Holder::Token(token) => {
                    let name = name_of(&id, *token);
                    let record: Option<String> = self.ask(cmd("HGET").arg(&keys.owner).arg(&name)).await?;
                    if let Some(record) = record.and_then(|record| serde_json::from_str(&record).ok()) {
                        return Ok(Some(Attempt { schedule, id, name, record }));
                    }
                }
                Holder::Worker(worker) => {
                    for (name, record) in self.attempts(&keys, &id).await? {
                        if record.worker == worker.as_str() {
                            return Ok(Some(Attempt { schedule, id, name, record }));
                        }
                        *other = WorkerName::new(&record.worker).ok();
                    }
                }
            }
        }
        Ok(None)
    }

    /// All attempts at a job.
    pub(super) async fn attempts(
        &self,
        keys: &Keys,
        id: &str,
    ) -> Result<Vec<(String, AttemptRecord)>, CallError> {
        let names: Vec<String> = self.ask(cmd("ZRANGE").arg(&keys.inflight).arg(0).arg(-1)).await?;
        let names: Vec<String> =
            names.into_iter().filter(|name| parts_of(name).is_some_and(|(of, _)| of == id)).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let records: Vec<Option<String>> = self.ask(cmd("HMGET").arg(&keys.owner).arg(&names)).await?;
        let read = |record: Option<String>| serde_json::from_str(&record?).ok();
        Ok(names.into_iter().zip(records).filter_map(|(name, record)| Some((name, read(record)?))).collect())
    }

    /// Whether a worker holds a job of a schedule.
    pub(super) async fn has_leases(&self, schedule: &QueueName, now: Timestamp) -> Result<bool, CallError> {
        let mut count = cmd("ZCOUNT");
        count.arg(Keys::of(schedule.as_str()).inflight).arg(cron::milliseconds(now)).arg("+inf");
        Ok(self.ask::<u64>(&count).await? > 0)
    }

    /// The refusal for an attempt that is not held any more, with the present state of its job.
    pub(super) async fn not_held(&self, jid: &Jid) -> Result<Refusal, CallError> {
        let now = self.shared.clock.now();
        Ok(match self.find(jid, now).await? {
            Some(job) => {
                let state = job.state.name();
                let state = if state == StateName::Failed { StateName::Waiting } else { state };
                Refusal::LockLost { jid: jid.clone(), state }
            }
            None => Refusal::NoSuchJob { jid: jid.clone() },
        })
    }
}
