//! What a put asks for beyond Qless: its terms, and unique keys.

use geartrain_core::{
    Backoff, DURATION_MAX, Event, Jid, JobDetails, OrphanPolicy, Put, PutOptions, PutReply, QueueName,
    RandomUnit, Refusal, Seconds, Timestamp, UniqueKey,
};

use super::{Model, bad_argument};

/// What is true beyond Qless of a job that was put without options.
pub(super) fn nothing() -> JobDetails {
    JobDetails { submissions: 1, ..JobDetails::default() }
}

/// What is true of a job that was just put on these terms.
pub(super) fn details(terms: &PutOptions) -> JobDetails {
    JobDetails {
        unique: terms.unique.clone(),
        orphan_policy: terms.orphan_policy,
        on_end: terms.on_end,
        result_ttl: terms.result_ttl,
        expires: terms.expires,
        attempt_max: terms.attempt_max,
        backoff: terms.backoff,
        crashes_max: terms.crashes_max,
        metadata: terms.metadata.clone(),
        on_dependency_failure: terms.on_dependency_failure,
        traceparent: terms.traceparent.clone(),
        ..nothing()
    }
}

/// A put's terms. Those that ask for nothing are as good as none (rule Put).
pub(super) fn asked_for(put: &Put) -> Option<&PutOptions> {
    put.options.as_deref().filter(|terms| **terms != PutOptions::default())
}

pub(super) fn validate(terms: &PutOptions) -> Result<(), Refusal> {
    validate_span("timeout", terms.attempt_max)?;
    validate_span("result_for", terms.result_ttl)?;
    let (bytes, max) = (terms.metadata.as_ref().map_or(0, |aside| aside.bytes().len()), 4_096);
    if bytes > max {
        return Err(Refusal::TooLarge { what: "aside".into(), bytes, max });
    }
    if terms.crashes_max == Some(0) {
        return Err(bad_argument("crashes_max"));
    }
    Ok(())
}

/// Checks a time that is above 0 and at most ten years.
pub(super) fn validate_span(what: &'static str, span: Option<Seconds>) -> Result<(), Refusal> {
    match span {
        Some(span) if span <= Seconds::ZERO || span > DURATION_MAX => Err(bad_argument(what)),
        Some(_) | None => Ok(()),
    }
}

impl Model {
    /// What is shown of a job beyond Qless, if anything is true of it.
    pub(super) fn details(&self, jid: &Jid) -> Option<Box<JobDetails>> {
        let attached = self.waiters_of(jid).len() as u64;
        let shown = JobDetails { attached, ..self.jobs[jid].beyond.clone() };
        (shown != nothing()).then(|| Box::new(shown))
    }

    /// A put that finds its job there and leaves it alone.
    pub(super) fn keep_existing(
        &mut self,
        jid: &Jid,
        terms: Option<&PutOptions>,
    ) -> Result<PutReply, Refusal> {
        if let Some(waiter) = terms.and_then(|terms| terms.attach)
            && self.jobs[jid].is_unfinished()
        {
            self.refuse_waiter(jid, waiter)?;
            self.attach_to(jid, waiter);
        }
        Ok(PutReply::Existing)
    }

    /// Lets a job that holds the key of a put stand for it as well, if there is one (rule Coalescing).
    pub(super) fn coalesce(
        &mut self,
        queue: &QueueName,
        terms: &PutOptions,
    ) -> Result<Option<PutReply>, Refusal> {
        let Some(jid) = terms.unique.as_ref().and_then(|key| self.holder_of_key(queue, key)) else {
            return Ok(None);
        };
        if let Some(waiter) = terms.attach {
            self.refuse_waiter(&jid, waiter)?;
            self.attach_to(&jid, waiter);
        }
        let beyond = &mut self.job_mut(&jid).beyond;
        beyond.submissions += 1;
        beyond.result_ttl = beyond.result_ttl.max(terms.result_ttl);
        if terms.orphan_policy == OrphanPolicy::Always {
            beyond.orphan_policy = OrphanPolicy::Always;
        }
        let submissions = beyond.submissions;
        self.events.push(Event::Coalesced { jid: jid.clone(), queue: queue.clone(), submissions });
        Ok(Some(PutReply::Coalesced { jid }))
    }

    /// Refuses what a job, new or put again, cannot be put on.
    pub(super) fn refuse_terms(&self, now: Timestamp, put: &Put, terms: &PutOptions) -> Result<(), Refusal> {
        if let Some(waiter) = terms.attach {
            self.refuse_waiter(&put.jid, waiter)?;
        }
        if terms.expires.is_some_and(|expires| expires <= now) {
            return Err(bad_argument("expires"));
        }
        if terms.roll_call && self.roll_call(&put.queue, Some(&put.klass)) == 0 {
            return Err(Refusal::NoCapableWorker { queue: put.queue.clone(), klass: put.klass.clone() });
        }
        Ok(())
    }

    // Keys.

    /// The job that holds a key in a queue.
    pub(super) fn holder_of_key(&self, queue: &QueueName, key: &UniqueKey) -> Option<Jid> {
        let holds = |(_, job): &(&Jid, &super::Record)| {
            job.holds_key && job.queue.as_ref() == Some(queue) && job.beyond.unique.as_ref() == Some(key)
        };
        self.jobs.iter().find(holds).map(|(jid, _)| jid.clone())
    }

    /// Lets a job have its key in the queue that it is in now, unless another has it there. One that it held
    /// elsewhere is free.
    pub(super) fn take_key(&mut self, jid: &Jid) {
        self.job_mut(jid).holds_key = false;
        let job = &self.jobs[jid];
        let free = match &job.beyond.unique {
            Some(key) => self.holder_of_key(&job.its_queue(), key).is_none(),
            None => false,
        };
        self.job_mut(jid).holds_key = free;
    }

    /// How long a job's backoff makes it wait before the next attempt, if it has one (rule Retry).
    pub(super) fn backoff(&self, jid: &Jid, chance: RandomUnit) -> Option<Seconds> {
        let wait = |backoff: &Backoff| backoff.wait(self.attempts_before(jid), chance);
        self.jobs[jid].beyond.backoff.as_ref().map(wait)
    }

    pub(super) fn attempts_before(&self, jid: &Jid) -> u32 {
        let job = &self.jobs[jid];
        u32::try_from((i64::from(job.retries) - job.remaining).max(0)).unwrap_or(u32::MAX)
    }
}
