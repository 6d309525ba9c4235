//! Setting tasks aside for a transfer: a hash of our own has them meanwhile, under IDs that are given to them then.

use std::collections::HashSet;

use geartrain_core::{
    EndSetAside, EndSetAsideReply, Jid, JobState, QueueName, SET_ASIDE_BYTES_MAX, SetAside, SetAsideReply,
    StayReason, TransferEnd,
};
use redis::cmd;

use super::names::{Notice, Process, check_queue, digest};
use super::read::view;
use super::script;
use super::session::{Session, texts};
use crate::layout::{CallError, check_aside, check_set_aside, keys_like};

/// Stands in front of the ID of a task that may be taken from its queue.
const NEW: char = '+';

impl Session {
    /// Takes waiting tasks out of their queues. A jid `{Q}_+{UUID}` takes the next task of the queue, whose jid is
    /// `{Q}_{UUID}` from then on; named again, it is the same task.
    pub(super) async fn set_aside(&self, set: &SetAside) -> Result<SetAsideReply, CallError> {
        check_set_aside(set)?;
        let (mut reply, mut left, mut bytes) = (SetAsideReply::default(), &set.jids[..], 0);
        let bytes_max = SET_ASIDE_BYTES_MAX.to_string();
        while let Some(first) = left.first().filter(|_| bytes <= SET_ASIDE_BYTES_MAX) {
            let (queue, ids) = of_one_queue(left);
            let Some(queue) = queue else {
                reply.stay.push((first.clone(), StayReason::Unknown));
                left = &left[1..];
                continue;
            };
            check_queue(&queue)?;
            let mut arguments = vec![set.to.as_bytes(), bytes_max.as_bytes()];
            arguments.extend(ids.iter().map(String::as_bytes));
            let keys = [self.names.queue(queue.as_str()), self.names.moving(queue.as_str())];
            let keys = keys.each_ref().map(String::as_str);
            let answered: Vec<(String, Vec<u8>)> = self.run(&script::SET_ASIDE, &keys, arguments).await?;
            let (given, rest) = left.split_at(answered.len().min(left.len()));
            let digests: Vec<String> = answered.iter().map(|(_, task)| digest(task)).collect();
            let digests: Vec<&str> = digests.iter().map(String::as_str).collect();
            let used = self.attempts(&queue, &digests).await?;
            for ((jid, id), ((what, task), used)) in
                given.iter().zip(&ids).zip(answered.into_iter().zip(used))
            {
                let own = Jid::new(format!("{queue}_{}", id.trim_start_matches(NEW)));
                match (what.as_str(), own) {
                    ("ok", Ok(own)) => {
                        bytes += task.len();
                        let retries = self.options.retries;
                        let retries = (retries, i64::from(retries) - used);
                        reply.jobs.push(view(&queue, own, task.into(), JobState::Waiting, retries));
                    }
                    ("other", _) => reply.stay.push((jid.clone(), StayReason::OtherTarget)),
                    _ => reply.stay.push((jid.clone(), StayReason::Unknown)),
                }
            }
            left = rest;
            if given.len() < ids.len() {
                break;
            }
        }
        Ok(reply)
    }

    /// Removes tasks that are set aside, or returns them to the front of their queues.
    pub(super) async fn end_set_aside(&self, end: &EndSetAside) -> Result<EndSetAsideReply, CallError> {
        check_aside(&end.jids)?;
        let verb = match end.end {
            TransferEnd::Remove => "remove",
            TransferEnd::Return => "return",
        };
        let (mut reply, mut left) = (EndSetAsideReply::default(), &end.jids[..]);
        while !left.is_empty() {
            let (queue, ids) = of_one_queue(left);
            let (given, rest) = left.split_at(ids.len().max(1));
            let mut ended: HashSet<String> = HashSet::new();
            if let Some(queue) = queue {
                let queue = queue.as_str();
                let (key, moving) = (self.names.queue(queue), self.names.moving(queue));
                let records: Vec<Option<Vec<u8>>> =
                    self.ask(&moving, cmd("HMGET").arg(&moving).arg(&ids)).await?;
                let digests: Vec<String> = records.iter().flatten().map(|it| digest(task_of(it))).collect();
                let there = ids.iter().zip(&records).filter(|(_, record)| record.is_some());
                let (markers, channel) = (self.names.marker(""), self.names.channel(queue, Notice::Work));
                let mut arguments = vec![verb, &markers, &channel];
                arguments.extend(there.zip(&digests).flat_map(|((id, _), digest)| [id.as_str(), digest]));
                let attempts = self.names.attempts(queue);
                let keys = [key.as_str(), &moving, &attempts];
                ended = self
                    .run::<Vec<String>>(&script::END_SET_ASIDE, &keys, arguments)
                    .await?
                    .into_iter()
                    .collect();
            }
            reply.ended += ended.len() as u64;
            let stay =
                given.iter().enumerate().filter(|(at, _)| ids.get(*at).is_none_or(|id| !ended.contains(id)));
            reply.stay.extend(stay.map(|(_, jid)| (jid.clone(), StayReason::NotSetAside)));
            left = rest;
        }
        Ok(reply)
    }

    /// All tasks that are set aside, the last one first.
    pub(super) async fn aside(&self) -> Result<Vec<Jid>, CallError> {
        let prefix = self.names.moving("");
        let mut found: Vec<(f64, Jid)> = Vec::new();
        for key in texts(keys_like(&self.shared, &format!("{prefix}*"), "hash").await?) {
            let Some(queue) = key.strip_prefix(&prefix) else { continue };
            let all: Vec<(String, Vec<u8>)> = self.ask(&key, cmd("HGETALL").arg(&key)).await?;
            found.extend(all.into_iter().filter_map(|(id, record)| {
                let place = std::str::from_utf8(record.split(|byte| *byte == b' ').next()?).ok()?;
                Some((place.parse().ok()?, Jid::new(format!("{queue}_{id}")).ok()?))
            }));
        }
        found.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        Ok(found.into_iter().map(|(_, jid)| jid).collect())
    }
}

/// The task in a record: behind two blanks.
fn task_of(record: &[u8]) -> &[u8] {
    record.splitn(3, |byte| *byte == b' ').nth(2).unwrap_or_default()
}

/// The queue of the first jid, if it has one, and the IDs of all jids in front that have it too.
fn of_one_queue(jids: &[Jid]) -> (Option<QueueName>, Vec<String>) {
    let mut names = jids.iter().map_while(|jid| Process::parse(&jid.to_string())).peekable();
    let queue = names.peek().map(|process| process.queue.clone());
    let id = |process: Process| process.id[process.queue.as_str().len() + 1..].to_owned();
    let ids = names.take_while(|process| Some(&process.queue) == queue.as_ref()).map(id).collect();
    (queue, ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jids_are_taken_by_queue() {
        let jids: Vec<Jid> =
            ["a_b_+1", "a_b_2", "a_3", "x"].iter().map(|jid| Jid::new(jid).expect("it is a jid")).collect();
        let (queue, ids) = of_one_queue(&jids);
        assert_eq!(
            (queue.map(|it| it.to_string()), ids),
            (Some("a_b".into()), vec!["+1".into(), "2".into()])
        );
        assert_eq!(of_one_queue(&jids[3..]), (None, Vec::new()));
        assert_eq!(task_of(b"17 redis://a a b"), b"a b");
    }
}
