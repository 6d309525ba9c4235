//! Jobs that are moved to another backend (rule Set aside).

use geartrain_core::{
    EndSetAside, EndSetAsideReply, Failure, Group, Jid, Job, JobState, SetAside, SetAsideReply, StateName,
    StayReason, Timestamp, TransferEnd,
};

use super::{Ending, Model, Position};

/// What a job was before it was set aside.
#[derive(Debug, Clone)]
pub(super) struct Before {
    to: String,
    was: StateName,
    due: Option<Timestamp>,
    failure: Option<Failure>,
}

impl Model {
    /// Whether a job is set aside.
    pub(crate) fn is_set_aside(&self, jid: &Jid) -> bool {
        self.jobs.get(jid).is_some_and(|job| job.aside.is_some())
    }

    pub(super) fn set_aside(&mut self, now: Timestamp, set: &SetAside) -> SetAsideReply {
        let mut reply = SetAsideReply::default();
        for jid in &set.jids {
            match self.set_one_aside(now, jid, &set.to) {
                Ok(()) => reply.jobs.push(self.before(jid)),
                Err(reason) => reply.stay.push((jid.clone(), reason)),
            }
        }
        reply
    }

    fn set_one_aside(&mut self, now: Timestamp, jid: &Jid, to: &str) -> Result<(), StayReason> {
        let job = self.jobs.get(jid).ok_or(StayReason::Unknown)?.clone();
        match &job.aside {
            Some(before) if before.to == to => return Ok(()),
            Some(_) => return Err(StayReason::OtherTarget),
            None => {}
        }
        let was = job.place.state();
        match was {
            StateName::Running => return Err(StayReason::Running),
            StateName::Complete => return Err(StayReason::Complete),
            StateName::Depends if job.dependencies.iter().any(|on| !self.is_set_aside(on)) => {
                return Err(StayReason::Depends);
            }
            _ => {}
        }
        if !self.waiters_of(jid).is_empty() {
            return Err(StayReason::Awaited);
        }
        let queue = job.its_queue();
        let due = match job.place {
            Position::Scheduled(entry) => Some(entry.score),
            Position::Depends(_) => job.scheduled,
            _ => None,
        };
        if let (StateName::Failed, Some(failure)) = (was, &job.failure) {
            self.day(&queue, failure.when).failed -= 1;
        }
        let (when, worker) =
            job.failure.as_ref().map_or((now.floor(), None), |last| (last.when, last.worker.clone()));
        let message = match &job.failure {
            None => format!("set aside to be moved to {to} , was {was}"),
            Some(Failure { group, message, .. }) => format!(
                "set aside to be moved to {to} , was {was}, failure [{}] {group}: {message}",
                group.as_str().len()
            ),
        };
        self.day(&queue, when).failed += 1;
        let arrival = self.arrival();
        let job = self.job_mut(jid);
        job.holds_key = false;
        if matches!(job.ended, Some((_, Ending::TimedOut))) {
            job.ended = None;
        }
        if was == StateName::Depends {
            job.dropped = std::mem::take(&mut job.dependencies);
        }
        job.scheduled = due;
        job.place = Position::Failed { arrival };
        job.word = "failed";
        (job.worker, job.listed, job.expires) = (None, None, Timestamp::ZERO);
        let failure = job.failure.take();
        let group = Group::new("geartrain-transfer").expect("it is a name");
        job.failure = Some(Failure { group, message, when, worker });
        job.aside = Some(Before { to: to.to_owned(), was, due, failure });
        Ok(())
    }

    /// A job that is set aside, as it was before, but for its past.
    fn before(&self, jid: &Jid) -> Job {
        let job = self.view(jid).expect("it was set aside");
        let job = Job { history: Vec::new(), attempts: Vec::new(), ..job };
        let record = &self.jobs[jid];
        let Some(Before { was, due, failure, .. }) = record.aside.clone() else { return job };
        let (state, past_failure) = match (was, due, failure) {
            (StateName::Failed, _, Some(failure)) => (JobState::Failed { failure }, None),
            (StateName::Scheduled, Some(due), last) => (JobState::Scheduled { due }, last),
            (StateName::Depends, due, last) => {
                (JobState::Depends { on: record.dropped.iter().cloned().collect(), due }, last)
            }
            (_, _, last) => (JobState::Waiting, last),
        };
        let qless = geartrain_core::QlessView { state: was.as_str(), ..job.qless };
        Job { state, past_failure, qless, ..job }
    }

    pub(super) fn end_set_aside(&mut self, now: Timestamp, end: &EndSetAside) -> EndSetAsideReply {
        let mut reply = EndSetAsideReply::default();
        for jid in &end.jids {
            match self.end_one_set_aside(now, jid, end.end) {
                Ok(()) => reply.ended += 1,
                Err(reason) => reply.stay.push((jid.clone(), reason)),
            }
        }
        reply
    }

    fn end_one_set_aside(&mut self, now: Timestamp, jid: &Jid, end: TransferEnd) -> Result<(), StayReason> {
        let job = self.jobs.get(jid).ok_or(StayReason::Unknown)?.clone();
        let Some(Before { was, due, failure, .. }) = job.aside.clone() else {
            return Err(StayReason::NotSetAside);
        };
        if end == TransferEnd::Remove && !self.dependents(jid).is_empty() {
            return Err(StayReason::HasDependents);
        }
        let (queue, when) = (job.its_queue(), job.failure.expect("it is in a group").when);
        self.day(&queue, when).failed -= 1;
        if end == TransferEnd::Remove {
            self.drop_job(jid);
            return Ok(());
        }
        let job = self.job_mut(jid);
        job.aside = None;
        job.failure = failure;
        job.scheduled = None;
        if was == StateName::Failed {
            self.day(&queue, when).failed += 1;
            let arrival = self.arrival();
            self.job_mut(jid).place = Position::Failed { arrival };
            return Ok(());
        }
        if was == StateName::Depends {
            let mut again = std::mem::take(&mut self.job_mut(jid).dropped);
            again.retain(|on| self.is_open(on) && !self.leads_to(on, jid));
            self.job_mut(jid).dependencies = again;
        }
        let depends = !self.jobs[jid].dependencies.is_empty();
        let time = self.jobs[jid].time;
        let (place, word) = match due {
            _ if depends => (Position::Depends(self.enter(now)), "depends"),
            Some(due) => (Position::Scheduled(self.enter(due)), "scheduled"),
            None => (self.enter_work(time), "waiting"),
        };
        let job = self.job_mut(jid);
        (job.place, job.word) = (place, word);
        job.scheduled = due.filter(|_| depends);
        self.take_key(jid);
        Ok(())
    }
}
