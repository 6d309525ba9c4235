//! Result waiters: attach, detach, and the deliveries they receive.

use geartrain_core::{
    Attach, AttachReply, Chunk, DetachScope, Event, Jid, OrphanPolicy, Progress, Refusal, ResultWaiter,
    StateName, Status, StatusOf, StatusReply, StreamItem, StreamMessage, Timestamp,
};

use super::{Model, bad_argument};

impl Model {
    /// Who waits for a job, in the order in which they came.
    pub(super) fn waiters_of(&self, jid: &Jid) -> Vec<ResultWaiter> {
        self.waiters.iter().filter(|(_, of)| of == jid).map(|(waiter, _)| *waiter).collect()
    }

    /// Refuses a waiter that is attached to another job.
    pub(super) fn refuse_waiter(&self, jid: &Jid, waiter: ResultWaiter) -> Result<(), Refusal> {
        match self.waiters.iter().find(|(other, _)| *other == waiter) {
            Some((_, of)) if of != jid => Err(bad_argument("waiter")),
            Some(_) | None => Ok(()),
        }
    }

    /// Attaches a waiter to a job, unless it is attached already.
    pub(super) fn attach_to(&mut self, jid: &Jid, waiter: ResultWaiter) {
        if !self.waiters_of(jid).contains(&waiter) {
            self.waiters.push((waiter, jid.clone()));
        }
    }

    pub(super) fn attach(&mut self, now: Timestamp, attach: &Attach) -> Result<AttachReply, Refusal> {
        let jid = &attach.jid;
        let kept = self.result(now, jid).map(Box::new);
        match self.jobs.get(jid) {
            Some(job) if job.is_unfinished() => {
                self.refuse_waiter(jid, attach.waiter)?;
                self.attach_to(jid, attach.waiter);
                Ok(AttachReply::Attached)
            }
            Some(job) => Ok(AttachReply::Ended { state: Some(job.place.state()), result: kept }),
            None if kept.is_some() => Ok(AttachReply::Ended { state: None, result: kept }),
            None => Err(Refusal::NoSuchJob { jid: jid.clone() }),
        }
    }

    /// Waiters are detached in the order of their numbers.
    pub(super) fn leave(&mut self, who: &DetachScope) -> u64 {
        let leaves = |waiter: &ResultWaiter| match who {
            DetachScope::One(one) => waiter == one,
            DetachScope::Connection { stream_id: front, connection } => {
                waiter.stream_id == *front && waiter.connection == *connection
            }
            DetachScope::Stream(front) => waiter.stream_id == *front,
            DetachScope::All => true,
            unknown => panic!("the model does not know {unknown:?}"),
        };
        let mut leaving: Vec<(ResultWaiter, Jid)> =
            self.waiters.iter().filter(|(waiter, _)| leaves(waiter)).cloned().collect();
        leaving.sort();
        for (waiter, jid) in &leaving {
            self.waiters.retain(|(other, _)| other != waiter);
            self.abandon_if_unwanted(jid);
        }
        leaving.len() as u64
    }

    /// Removes an orphan: a job that lives only while a waiter is attached, has none left, and has no
    /// dependents (rule Abandoned).
    pub(super) fn abandon_if_unwanted(&mut self, jid: &Jid) {
        let Some(job) = self.jobs.get(jid) else { return };
        let at_rest = job.is_unfinished() && job.place.state() != StateName::Running;
        let wanted = !self.waiters_of(jid).is_empty() || !self.dependents(jid).is_empty();
        if job.beyond.orphan_policy == OrphanPolicy::WhileAwaited && at_rest && !wanted {
            let queue = job.its_queue();
            self.drop_job(jid);
            self.events.push(Event::Abandoned { jid: jid.clone(), queue });
        }
    }

    /// Tells all who wait for a job something. Answers how many they are.
    pub(super) fn deliver(&mut self, jid: &Jid, told: &StreamItem) -> u64 {
        let waiters = self.waiters_of(jid);
        for waiter in &waiters {
            self.deliveries.push(StreamMessage { waiter: *waiter, jid: jid.clone(), item: told.clone() });
        }
        waiters.len() as u64
    }

    pub(super) fn progress(&mut self, progress: &Progress) -> Result<(), Refusal> {
        self.held(&progress.jid, &progress.holder, None)?;
        self.job_mut(&progress.jid).beyond.progress = Some(progress.progress);
        self.events.push(Event::Progress { jid: progress.jid.clone(), progress: progress.progress });
        self.deliver(
            &progress.jid,
            &StreamItem::Progress { progress: progress.progress, text: progress.text.clone() },
        );
        Ok(())
    }

    pub(super) fn chunk(&mut self, chunk: &Chunk) -> Result<u64, Refusal> {
        self.held(&chunk.jid, &chunk.holder, None)?;
        Ok(self.deliver(&chunk.jid, &StreamItem::Chunk(chunk.kind, chunk.bytes.clone())))
    }

    pub(super) fn status(&self, status: &Status) -> Option<StatusReply> {
        let jid = match &status.of {
            StatusOf::Jid(jid) => jid.clone(),
            StatusOf::Unique(queue, key) => self.holder_of_key(queue, key)?,
            unknown => panic!("the model does not know {unknown:?}"),
        };
        let job = self.jobs.get(&jid).filter(|job| job.is_unfinished())?;
        Some(StatusReply {
            queue: job.its_queue(),
            state: job.place.state(),
            progress: job.beyond.progress,
            submissions: job.beyond.submissions,
            attached: self.waiters_of(&jid).len() as u64,
            jid,
        })
    }
}
