//! What a put asks for beyond Qless: its terms, and unique keys.

use geartrain_core::{
    Backoff, Chance, Event, Jid, Lives, Particulars, Put, PutReply, QueueName, Refusal, SPAN_MAX, Seconds,
    Terms, Timestamp, UniqueKey,
};

use super::{Model, bad_argument};

/// What is true beyond Qless of a job that was put without terms.
pub(super) fn nothing() -> Particulars {
    Particulars { submissions: 1, ..Particulars::default() }
}

/// What is true of a job that was just put on these terms.
pub(super) fn particulars(terms: &Terms) -> Particulars {
    Particulars {
        unique: terms.unique.clone(),
        lives: terms.lives,
        afterwards: terms.afterwards,
        result_for: terms.result_for,
        expires: terms.expires,
        attempt_max: terms.attempt_max,
        backoff: terms.backoff,
        crashes_max: terms.crashes_max,
        aside: terms.aside.clone(),
        ..nothing()
    }
}

/// A put's terms. Those that ask for nothing are as good as none (rule Put).
pub(super) fn asked_for(put: &Put) -> Option<&Terms> {
    put.terms.as_deref().filter(|terms| **terms != Terms::default())
}

pub(super) fn validate(terms: &Terms) -> Result<(), Refusal> {
    validate_span("timeout", terms.attempt_max)?;
    validate_span("result_for", terms.result_for)?;
    let (bytes, max) = (terms.aside.as_ref().map_or(0, |aside| aside.bytes().len()), 4_096);
    if bytes > max {
        return Err(Refusal::TooLarge { what: "aside", bytes, max });
    }
    if terms.crashes_max == Some(0) {
        return Err(bad_argument("crashes_max"));
    }
    Ok(())
}

/// Checks a time that is above 0 and at most ten years.
pub(super) fn validate_span(what: &'static str, span: Option<Seconds>) -> Result<(), Refusal> {
    match span {
        Some(span) if span <= Seconds::ZERO || span > SPAN_MAX => Err(bad_argument(what)),
        Some(_) | None => Ok(()),
    }
}

impl Model {
    /// What is shown of a job beyond Qless, if anything is true of it.
    pub(super) fn particulars(&self, jid: &Jid) -> Option<Box<Particulars>> {
        let attached = self.waiters_of(jid).len() as u64;
        let shown = Particulars { attached, ..self.jobs[jid].beyond.clone() };
        (shown != nothing()).then(|| Box::new(shown))
    }

    /// A put that finds its job there and leaves it alone.
    pub(super) fn keep_existing(&mut self, jid: &Jid, terms: Option<&Terms>) -> Result<PutReply, Refusal> {
        if let Some(waiter) = terms.and_then(|terms| terms.attach)
            && self.jobs[jid].is_unfinished()
        {
            self.refuse_waiter(jid, waiter)?;
            self.attach_to(jid, waiter);
        }
        Ok(PutReply::Existing)
    }

    /// Lets a job that holds the key of a put stand for it as well, if there is one (rule Coalescing).
    pub(super) fn coalesce(&mut self, queue: &QueueName, terms: &Terms) -> Result<Option<PutReply>, Refusal> {
        let Some(jid) = terms.unique.as_ref().and_then(|key| self.holder_of_key(queue, key)) else {
            return Ok(None);
        };
        if let Some(waiter) = terms.attach {
            self.refuse_waiter(&jid, waiter)?;
            self.attach_to(&jid, waiter);
        }
        let beyond = &mut self.job_mut(&jid).beyond;
        beyond.submissions += 1;
        beyond.result_for = beyond.result_for.max(terms.result_for);
        if terms.lives == Lives::Always {
            beyond.lives = Lives::Always;
        }
        let submissions = beyond.submissions;
        self.events.push(Event::Coalesced { jid: jid.clone(), queue: queue.clone(), submissions });
        Ok(Some(PutReply::Coalesced { jid }))
    }

    /// Refuses what a job, new or put again, cannot be put on.
    pub(super) fn refuse_terms(&self, now: Timestamp, put: &Put, terms: &Terms) -> Result<(), Refusal> {
        if let Some(waiter) = terms.attach {
            self.refuse_waiter(&put.jid, waiter)?;
        }
        if terms.expires.is_some_and(|expires| expires <= now) {
            return Err(bad_argument("expires"));
        }
        if terms.roll_call && self.roll_call(&put.queue, Some(&put.klass)) == 0 {
            return Err(Refusal::NobodyCan { queue: put.queue.clone(), klass: put.klass.clone() });
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

    /// Lets a job have its key in the queue that it is in now, unless another has it there. One that it held elsewhere is free.
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
    pub(super) fn backoff(&self, jid: &Jid, chance: Chance) -> Option<Seconds> {
        let job = &self.jobs[jid];
        let tries = (i64::from(job.retries) - job.remaining).max(0);
        let wait = |backoff: &Backoff| backoff.wait(u32::try_from(tries).unwrap_or(u32::MAX), chance);
        job.beyond.backoff.as_ref().map(wait)
    }
}
