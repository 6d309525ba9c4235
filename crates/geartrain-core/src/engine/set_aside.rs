//! Set aside: jobs that are being moved to another backend wait as failed ones of a group of their own.
//!
//! The message of that failure records what the job was before, so that it is found again after a restart, by
//! any reader, and is gone as soon as the job leaves the group by another way.

use super::{Delta, Effects, Engine, FailDelta, FailureDelta, RowState, at_least_one, at_most};
use crate::{
    EndSetAside, EndSetAsideReply, Group, Jid, Job, Refusal, SET_ASIDE_BYTES_MAX, SET_ASIDE_MAX, SetAside,
    SetAsideReply, StateName, StayReason, TRANSFER_BYTES_MAX, TRANSFER_GROUP, Timestamp, TransferEnd,
};

const BEGINNING: &str = "set aside to be moved to ";

/// What is recorded of a job that is set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransferRecord {
    /// The target.
    pub(crate) to: String,
    /// The state before: scheduled, depends, waiting or failed.
    pub(crate) was: StateName,
    /// Group and message of the failure before, or of the last one.
    pub(crate) failure: Option<(String, String)>,
}

impl TransferRecord {
    /// Writes the record as the message of a failure.
    fn to_message(&self) -> String {
        let TransferRecord { to, was, failure } = self;
        match failure {
            None => format!("{BEGINNING}{to} , was {was}"),
            // The length says where the group ends, which may have any character.
            Some((group, message)) => {
                format!("{BEGINNING}{to} , was {was}, failure [{}] {group}: {message}", group.len())
            }
        }
    }

    /// Reads the message of a failure; none if it is not such a record.
    pub(crate) fn parse(message: &str) -> Option<TransferRecord> {
        let (to, rest) = message.strip_prefix(BEGINNING)?.split_once(' ')?;
        let rest = rest.strip_prefix(", was ")?;
        let (was, failure) = match rest.split_once(", failure [") {
            None => (rest, None),
            Some((was, failure)) => {
                let (length, failure) = failure.split_once("] ")?;
                let (group, message) = failure.split_at_checked(length.parse().ok()?)?;
                (was, Some((group.to_owned(), message.strip_prefix(": ")?.to_owned())))
            }
        };
        use StateName::{Depends, Failed, Scheduled, Waiting};
        let was = [Scheduled, Depends, Waiting, Failed].into_iter().find(|state| state.as_str() == was)?;
        (was != Failed || failure.is_some()).then(|| TransferRecord { to: to.to_owned(), was, failure })
    }
}

impl Engine {
    pub(super) fn set_aside(
        &mut self,
        now: Timestamp,
        set: SetAside,
        fx: &mut Effects,
    ) -> Result<SetAsideReply, Refusal> {
        let SetAside { jids, to } = set;
        check_jids(&jids)?;
        let is_target = (1..=TRANSFER_BYTES_MAX).contains(&to.len()) && !to.contains(' ');
        if !is_target {
            let why = format!("must have 1 to {TRANSFER_BYTES_MAX} bytes and no blanks");
            return Err(Refusal::BadArgument { what: "to".into(), why });
        }
        let (mut reply, mut bytes) = (SetAsideReply::default(), 0);
        for jid in jids {
            if bytes >= SET_ASIDE_BYTES_MAX {
                break;
            }
            match self.set_one_aside(now, &jid, &to, fx) {
                Ok(job) => {
                    bytes += job.payload.byte_len();
                    reply.jobs.push(job);
                }
                Err(reason) => reply.stay.push((jid, reason)),
            }
        }
        Ok(reply)
    }

    /// Bytes of the failures of jobs, which the records of a transfer contain.
    pub fn failure_bytes(&self, jids: &[Jid]) -> usize {
        let rows = jids.iter().filter_map(|jid| self.state.find(jid));
        rows.map(|row| self.state.failure_bytes(row)).sum()
    }

    fn set_one_aside(
        &mut self,
        now: Timestamp,
        jid: &Jid,
        to: &str,
        fx: &mut Effects,
    ) -> Result<Job, StayReason> {
        let row = self.state.find(jid).ok_or(StayReason::Unknown)?;
        match self.state.transfer_record(row) {
            Some(record) if record.to == to => return Ok(self.state.job_before_transfer(row)),
            Some(_) => return Err(StayReason::OtherTarget),
            None => {}
        }
        let was = self.state.row(row).state;
        match was {
            RowState::Running => return Err(StayReason::Running),
            RowState::Complete => return Err(StayReason::Complete),
            RowState::Depends if self.state.dependencies(row).any(|on| !self.state.is_set_aside(on)) => {
                return Err(StayReason::Depends);
            }
            RowState::Scheduled | RowState::Depends | RowState::Waiting | RowState::Failed => {}
            RowState::Free => unreachable!("a free row is no job"),
        }
        if self.state.extension(row).is_some_and(|extension| !extension.waiters.is_empty()) {
            return Err(StayReason::Awaited);
        }
        let (when, worker) = self.state.failure_origin(row).unwrap_or((now.floor(), None));
        let failure = self.state.failure_of(row).map(|last| (last.group.to_string(), last.message));
        let record = TransferRecord { to: to.to_owned(), was: was.name(), failure };
        let group = Group::new(TRANSFER_GROUP).expect("it is a name");
        let failure = FailureDelta {
            group: self.group_id(&group, fx),
            message: record.to_message().into(),
            when,
            worker,
        };
        let delta = FailDelta { row, now, failure, by_worker: false, payload: None };
        self.commit(Delta::SetAside(Box::new(delta)), fx);
        Ok(self.state.job_before_transfer(row))
    }

    pub(super) fn end_set_aside(
        &mut self,
        now: Timestamp,
        end: EndSetAside,
        fx: &mut Effects,
    ) -> Result<EndSetAsideReply, Refusal> {
        let EndSetAside { jids, end } = end;
        check_jids(&jids)?;
        let mut reply = EndSetAsideReply::default();
        for jid in jids {
            match self.end_one_set_aside(now, &jid, end, fx) {
                Ok(()) => reply.ended += 1,
                Err(reason) => reply.stay.push((jid, reason)),
            }
        }
        Ok(reply)
    }

    fn end_one_set_aside(
        &mut self,
        now: Timestamp,
        jid: &Jid,
        end: TransferEnd,
        fx: &mut Effects,
    ) -> Result<(), StayReason> {
        let row = self.state.find(jid).ok_or(StayReason::Unknown)?;
        let record = self.state.transfer_record(row).ok_or(StayReason::NotSetAside)?;
        match end {
            TransferEnd::Remove if self.state.dependents(row).next().is_some() => {
                return Err(StayReason::HasDependents);
            }
            TransferEnd::Remove => self.commit(Delta::Remove(row), fx),
            TransferEnd::Return => {
                let failure = record.failure.map(|(group, message)| {
                    let group = Group::new(group).expect("it was the group of this job");
                    let (when, worker) = self.state.failure_origin(row).expect("a failed job has a failure");
                    let group = self.group_id(&group, fx);
                    Box::new(FailureDelta { group, message: message.into(), when, worker })
                });
                self.commit(Delta::Return { row, now, failure }, fx);
            }
        }
        Ok(())
    }
}

fn check_jids(jids: &[Jid]) -> Result<(), Refusal> {
    at_least_one("jids", jids)?;
    at_most("jids", jids.len(), SET_ASIDE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let failures =
            [None, Some(("io", "no such host")), Some(("], failure [2] a: ", "")), Some(("ü", ": x"))];
        for failure in failures {
            let failure = failure.map(|(group, message)| (group.to_owned(), message.to_owned()));
            for was in [StateName::Waiting, StateName::Failed] {
                let record = TransferRecord { to: "redis://a,b".into(), was, failure: failure.clone() };
                let is_whole = was != StateName::Failed || failure.is_some();
                assert_eq!(TransferRecord::parse(&record.to_message()), is_whole.then_some(record));
            }
        }
        for message in ["", "set aside to be moved to x", "set aside to be moved to x , was running"] {
            assert_eq!(TransferRecord::parse(message), None, "{message}");
        }
    }
}
