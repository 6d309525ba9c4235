//! Setting jobs aside for a transfer: a hash of our own has them meanwhile, with the queues that they came from.

use geartrain_core::{
    EndSetAside, EndSetAsideReply, Failure, Jid, JobState, QueueName, SET_ASIDE_BYTES_MAX, SetAside,
    SetAsideReply, StatusReply, StayReason, Timestamp, TransferEnd, UniqueKey,
};
use redis::cmd;

use super::keys::{JobName, Keys, jid_of, valid_id};
use super::pop::priority_of;
use super::put::transfer_of;
use super::read::{Fields, view};
use super::script;
use super::session::{Session, unsupported};
use crate::layout::{CallError, check_aside, check_set_aside, transfer_group};

/// What the script replies of a job: ID, what became of it, input, retries, failed attempts, queue, due second.
type Answered = (String, String, Vec<u8>, String, String, String, String);

/// What is known of a job that is set aside.
pub(super) struct MoveRecord {
    to: String,
    /// Microseconds; grows from job to job.
    place: f64,
}

impl MoveRecord {
    fn of(record: &[u8]) -> Option<MoveRecord> {
        let mut parts = std::str::from_utf8(record).ok()?.splitn(4, ' ').skip(2);
        Some(MoveRecord { place: parts.next()?.parse().ok()?, to: parts.next()?.to_owned() })
    }

    pub(super) fn failure(self) -> Failure {
        let when = Timestamp::new(self.place / 1e6).unwrap_or_default();
        Failure { group: transfer_group(), message: format!("for {}", self.to), when, worker: None }
    }
}

impl Session {
    /// Takes queued jobs out of work. Running ones stay, and so does what another implementation has.
    pub(super) async fn set_aside(&self, set: &SetAside, now: Timestamp) -> Result<SetAsideReply, CallError> {
        check_set_aside(set)?;
        let (mut reply, mut left, mut bytes) = (SetAsideReply::default(), &set.jids[..], 0);
        let bytes_max = SET_ASIDE_BYTES_MAX.to_string();
        while let Some(first) = left.first().filter(|_| bytes <= SET_ASIDE_BYTES_MAX) {
            let (function, ids) = of_one_function(left);
            let Some(function) = function else {
                reply.stay.push((first.clone(), StayReason::Unknown));
                left = &left[1..];
                continue;
            };
            let mut arguments = vec![set.to.as_bytes(), bytes_max.as_bytes()];
            arguments.extend(ids.iter().map(String::as_bytes));
            let keys = Keys::of(function.as_str());
            let answered: Vec<Answered> = self.run(&script::SET_ASIDE, &keys, &arguments).await?;
            let (given, rest) = left.split_at(answered.len().min(left.len()));
            for (jid, (_, what, input, retries, used, from, due)) in given.iter().zip(answered) {
                let reason = match what.as_str() {
                    "ok" => None,
                    "running" => Some(StayReason::Running),
                    "complete" => Some(StayReason::Complete),
                    "other" => Some(StayReason::OtherTarget),
                    _ => Some(StayReason::Unknown),
                };
                if let Some(reason) = reason {
                    reply.stay.push((jid.clone(), reason));
                    continue;
                }
                bytes += input.len();
                let due = due.parse().ok().and_then(|due| Timestamp::new(due).ok()).filter(|due| *due > now);
                let state = due.map_or(JobState::Waiting, |due| JobState::Scheduled { due });
                let fields = Fields {
                    input,
                    retries: retries.parse().unwrap_or(self.options.retries),
                    used: used.parse().unwrap_or_default(),
                    ..Fields::default()
                };
                reply.jobs.push(view(&function, jid, &fields, state, priority_of(&from)));
            }
            left = rest;
            if given.len() < ids.len() {
                break;
            }
        }
        Ok(reply)
    }

    /// Removes jobs that are set aside, or puts them back in front of their queues.
    pub(super) async fn end_set_aside(&self, end: &EndSetAside) -> Result<EndSetAsideReply, CallError> {
        check_aside(&end.jids)?;
        let verb = match end.end {
            TransferEnd::Remove => "remove",
            TransferEnd::Return => "return",
        };
        let (mut reply, mut left) = (EndSetAsideReply::default(), &end.jids[..]);
        while !left.is_empty() {
            let (function, ids) = of_one_function(left);
            let (given, rest) = left.split_at(ids.len().max(1));
            let mut ended: Vec<String> = Vec::new();
            if let Some(function) = function {
                let mut arguments = vec![verb.as_bytes()];
                arguments.extend(ids.iter().map(String::as_bytes));
                ended = self.run(&script::END_SET_ASIDE, &Keys::of(function.as_str()), &arguments).await?;
            }
            reply.ended += ended.len() as u64;
            let ended: std::collections::HashSet<String> = ended.into_iter().collect();
            let stays = |jid: &&Jid| JobName::of(jid).map_or(true, |job| !ended.contains(&job.id));
            reply.stay.extend(given.iter().filter(stays).map(|jid| (jid.clone(), StayReason::NotSetAside)));
            left = rest;
        }
        Ok(reply)
    }

    /// The record of a job, if it is set aside.
    pub(super) async fn aside(&self, keys: &Keys, id: &str) -> Result<Option<MoveRecord>, CallError> {
        let key = keys.moving();
        let record: Option<Vec<u8>> = self.ask(key, cmd("HGET").arg(key).arg(id)).await?;
        Ok(record.and_then(|record| MoveRecord::of(&record)))
    }

    /// The IDs of the jobs of a function that are set aside, with their records.
    pub(super) async fn all_aside(&self, queue: &QueueName) -> Result<Vec<(String, MoveRecord)>, CallError> {
        let keys = Keys::of(queue.as_str());
        let key = keys.moving();
        let all: Vec<(String, Vec<u8>)> = self.ask(key, cmd("HGETALL").arg(key)).await?;
        Ok(all.into_iter().filter_map(|(id, record)| Some((id, MoveRecord::of(&record)?))).collect())
    }

    /// All jobs that are set aside, the last one first.
    pub(super) async fn listed_aside(&self) -> Result<Vec<Jid>, CallError> {
        let mut found = Vec::new();
        for queue in self.functions().await? {
            let all = self.all_aside(&queue).await?.into_iter();
            found.extend(all.filter_map(|(id, aside)| Some((aside.place, jid_of(&queue, valid_id(&id)?)?))));
        }
        found.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        Ok(found.into_iter().map(|(_, jid)| jid).collect())
    }

    /// The job that was put under a transfer ID, if it is still there: also one that has ended.
    pub(super) async fn status_of_transfer(
        &self,
        queue: &QueueName,
        key: &UniqueKey,
        now: Timestamp,
    ) -> Result<Option<StatusReply>, CallError> {
        let Some(transfer) = transfer_of(key) else { return Err(unsupported("take a unique key").into()) };
        let keys = Keys::of(queue.as_str());
        let command = cmd("HGET").arg(keys.transfers()).arg(transfer).take();
        let id: Option<String> = self.ask(keys.transfers(), &command).await?;
        let Some(jid) = id.and_then(|id| jid_of(queue, valid_id(&id)?)) else { return Ok(None) };
        let Some(job) = self.find(&jid, now).await? else { return Ok(None) };
        let (queue, state) = (queue.clone(), job.state.name());
        Ok(Some(StatusReply { jid, queue, state, progress: None, submissions: 1, attached: 0 }))
    }
}

/// The function of the first jid, if it is of one, and the IDs of all jids in front that are of it too.
fn of_one_function(jids: &[Jid]) -> (Option<QueueName>, Vec<String>) {
    let mut names = jids.iter().map_while(|jid| JobName::of(jid).ok()).peekable();
    let function = names.peek().map(|job| job.function.clone());
    let is_same = |job: &JobName| Some(&job.function) == function.as_ref();
    let ids = names.take_while(is_same).map(|job| job.id).collect();
    (function, ids)
}
