//! Recurring jobs: templates, and the jobs that they spawn when a worker pops.

use super::pop::Klasses;
use super::{Delta, Effects, Engine, NameId, RecurDelta, TAGS_MAX, at_most, check_retries};
use crate::{
    Every, Jid, NAME_BYTES_MAX, Recur, Recurring, Refusal, Seconds, Tag, TagRecurring, Timestamp,
    UntagRecurring, UpdateRecurring,
};

/// A hyphen and the longest number, which follow a recurring job's jid in the jids of its jobs.
const CHILD_BYTES: usize = 1 + 21;

/// The shortest interval, in seconds.
const INTERVAL_MIN: f64 = 0.001;

impl Engine {
    pub(super) fn recur(&mut self, now: Timestamp, recur: Recur, fx: &mut Effects) -> Result<(), Refusal> {
        self.check_size("payload", recur.payload.bytes().len())?;
        check_retries(Some(recur.retries))?;
        check_every(&recur.every)?;
        at_most("tags", recur.tags.len(), TAGS_MAX)?;
        if recur.jid.text_bytes() > NAME_BYTES_MAX - CHILD_BYTES {
            let why = format!("of a recurring job must have at most {} bytes", NAME_BYTES_MAX - CHILD_BYTES);
            return Err(Refusal::BadArgument { what: "jid".into(), why });
        }
        let delta = RecurDelta {
            template: self.state.find_template(&recur.jid),
            queue: self.queue_id(&recur.queue, fx),
            klass: self.klass_id(&recur.klass, fx),
            jid: recur.jid,
            payload: recur.payload,
            priority: recur.priority,
            retries: recur.retries,
            tags: recur.tags.into(),
            every: recur.every,
            backlog: recur.backlog,
            next: now + recur.offset,
            arrives: true,
            registers: Some(now),
        };
        self.commit(Delta::Recur(Box::new(delta)), fx);
        Ok(())
    }

    pub(super) fn unrecur(&mut self, jid: &Jid, fx: &mut Effects) {
        if let Some(template) = self.state.find_template(jid) {
            self.commit(Delta::Unrecur(template), fx);
        }
    }

    pub(super) fn get_recurring(&self, jid: &Jid) -> Option<Recurring> {
        self.state.find_template(jid).map(|template| self.state.recurring(template))
    }

    pub(super) fn update_recurring(
        &mut self,
        now: Timestamp,
        update: UpdateRecurring,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        self.check_size("payload", update.payload.as_ref().map_or(0, |payload| payload.bytes().len()))?;
        check_retries(update.retries)?;
        update.every.as_ref().map_or(Ok(()), check_every)?;
        let template = self.existing_template(&update.jid)?;
        let mut delta = self.as_delta(template);
        if let Some(every) = update.every {
            let (Every::Interval(new), Every::Interval(old)) = (&every, &delta.every);
            delta.next = delta.next + (*new - *old);
            delta.every = every;
        }
        if let Some(queue) = update.queue {
            delta.queue = self.queue_id(&queue, fx);
            delta.registers = Some(now);
        }
        if let Some(klass) = update.klass {
            delta.klass = self.klass_id(&klass, fx);
        }
        delta.priority = update.priority.unwrap_or(delta.priority);
        delta.retries = update.retries.unwrap_or(delta.retries);
        delta.backlog = update.backlog.unwrap_or(delta.backlog);
        delta.payload = update.payload.unwrap_or(delta.payload);
        self.commit(Delta::Recur(Box::new(delta)), fx);
        Ok(())
    }

    pub(super) fn tag_recurring(&mut self, tag: TagRecurring, fx: &mut Effects) -> Result<Vec<Tag>, Refusal> {
        let template = self.existing_template(&tag.jid)?;
        let old = &self.state.template(template).tags;
        // Compared with what was there before the call: a tag named twice is added twice, as in Qless.
        let new: Vec<Tag> = tag.tags.into_iter().filter(|tag| !old.contains(tag)).collect();
        let tags = [&old[..], &new].concat();
        at_most("tags", tags.len(), TAGS_MAX)?;
        Ok(self.set_template_tags(template, tags, fx))
    }

    pub(super) fn untag_recurring(
        &mut self,
        untag: UntagRecurring,
        fx: &mut Effects,
    ) -> Result<Vec<Tag>, Refusal> {
        at_most("tags", untag.tags.len(), TAGS_MAX)?;
        let template = self.existing_template(&untag.jid)?;
        let mut tags = self.state.template(template).tags.clone();
        tags.retain(|tag| !untag.tags.contains(tag));
        Ok(self.set_template_tags(template, tags, fx))
    }

    fn set_template_tags(&mut self, template: u32, tags: Vec<Tag>, fx: &mut Effects) -> Vec<Tag> {
        let delta = RecurDelta { tags: tags.clone().into(), ..self.as_delta(template) };
        self.commit(Delta::Recur(Box::new(delta)), fx);
        tags
    }

    fn existing_template(&self, jid: &Jid) -> Result<u32, Refusal> {
        self.state.find_template(jid).ok_or_else(|| Refusal::NoSuchRecurring { jid: jid.clone() })
    }

    /// A recurring job as a delta, to be modified.
    fn as_delta(&self, template: u32) -> RecurDelta {
        let of = self.state.template(template);
        RecurDelta {
            template: Some(template),
            jid: of.jid.clone(),
            queue: of.queue,
            klass: of.klass,
            payload: of.payload.clone(),
            priority: of.priority,
            retries: of.retries,
            tags: of.tags.clone().into(),
            every: of.every.clone(),
            backlog: of.backlog,
            next: of.next,
            arrives: false,
            registers: None,
        }
    }

    /// Spawns up to `max` jobs of the recurring jobs that are due, the longest due first.
    pub(super) fn spawn(
        &mut self,
        queue: NameId,
        klasses: Klasses<'_>,
        now: Timestamp,
        max: usize,
        fx: &mut Effects,
    ) {
        let recurring = &self.state.queue(queue).recurring;
        if recurring.first().is_none_or(|first| first.at > now) {
            return;
        }
        let templates = match klasses {
            Some(klasses) => self.state.recurring_of(queue, klasses, now, max),
            None => {
                let due = recurring.count_while(|entry| entry.at <= now).min(max);
                recurring.slice(0..due).into_iter().map(|entry| entry.row).collect()
            }
        };
        let mut left = max;
        for template in templates {
            left -= self.spawn_from(template, now, left, fx);
        }
    }

    /// Spawns up to `max` jobs of one recurring job. Returns how many.
    fn spawn_from(&mut self, template: u32, now: Timestamp, max: usize, fx: &mut Effects) -> usize {
        let of = self.state.template(template).clone();
        let Every::Interval(span) = of.every;
        let interval = span.get();
        // A fraction in the first time is dropped, and can only come from there. With a fractional interval,
        // dropping it each time would make the job recur too often.
        let mut at = if interval.fract() == 0.0 { of.next.floor() } else { of.next };
        if of.backlog != 0 {
            let missed = (now - at).get() / interval;
            let made_up = f64::from(of.backlog);
            if missed > made_up {
                // No later than now. This only matters for numbers so large that sums are not exact.
                at = (at + Seconds::saturating((missed - made_up).ceil() * interval)).min(now);
            }
        }
        let (mut count, mut made) = (of.count, 0);
        while at <= now && made < max {
            let jid = loop {
                count += 1;
                let child = Jid::new(format!("{}-{count}", of.jid))
                    .expect("a recurring jid leaves room for a number");
                if self.state.find(&child).is_none() {
                    break child;
                }
            };
            // With very large times the interval may be too small to be added; time must advance all the
            // same.
            let next = (at + span).max(at.next_up());
            self.commit(Delta::Spawn { template, jid, count, at, next, now }, fx);
            at = next;
            made += 1;
        }
        made
    }
}

fn check_every(every: &Every) -> Result<(), Refusal> {
    let Every::Interval(interval) = every;
    if interval.get() >= INTERVAL_MIN {
        return Ok(());
    }
    let why = format!("must be at least {INTERVAL_MIN} s");
    Err(Refusal::BadArgument { what: "interval".into(), why })
}
