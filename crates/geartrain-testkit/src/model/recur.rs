//! Recurring jobs (sections 5.6 and 9).

use std::collections::{BTreeMap, BTreeSet};

use geartrain_core::{
    Every, HistoryEvent, Jid, Klass, Payload, Priority, QueueName, Recur, Recurring, Refusal, Seconds, Tag,
    TagRecurring, Timestamp, Token, UntagRecurring, UpdateRecurring,
};

use super::config::span;
use super::pop::Klasses;
use super::{Entry, Model, Record, bad_argument, put_options};

/// A recurring job.
#[derive(Debug, Clone)]
pub(super) struct Template {
    queue: QueueName,
    klass: Klass,
    payload: Payload,
    priority: Priority,
    retries: u32,
    tags: Vec<Tag>,
    interval: Seconds,
    backlog: u32,
    count: u64,
    /// When it next makes a job; the arrival stays until it is replaced.
    next: Entry,
}

/// Checks an id that needs room for a number, and an interval.
pub(super) fn validate(jid: Option<&Jid>, every: Option<&Every>) -> Result<(), Refusal> {
    if jid.is_some_and(|jid| jid.text_bytes() > 490) {
        return Err(bad_argument("jid"));
    }
    if every.is_some_and(|every| interval(every).get() < 0.001) {
        return Err(bad_argument("interval"));
    }
    Ok(())
}

/// The only way to recur that there is so far.
pub(crate) fn interval(every: &Every) -> Seconds {
    match every {
        Every::Interval(interval) => *interval,
        other => panic!("the model does not know {other:?}"),
    }
}

impl Model {
    pub(super) fn recur(&mut self, now: Timestamp, recur: &Recur) {
        let count = self.recurring.get(&recur.jid).map_or(0, |before| before.count);
        let template = Template {
            queue: recur.queue.clone(),
            klass: recur.klass.clone(),
            payload: recur.payload.clone(),
            priority: recur.priority,
            retries: recur.retries,
            tags: recur.tags.clone(),
            interval: interval(&recur.every),
            backlog: recur.backlog,
            count,
            next: self.enter(now + recur.offset),
        };
        self.recurring.insert(recur.jid.clone(), template);
        self.register(now, &recur.queue);
    }

    pub(super) fn view_recurring(&self, jid: &Jid) -> Option<Recurring> {
        let template = self.recurring.get(jid)?.clone();
        Some(Recurring {
            jid: jid.clone(),
            queue: template.queue,
            klass: template.klass,
            payload: template.payload,
            priority: template.priority,
            retries: template.retries,
            tags: template.tags,
            every: Every::Interval(template.interval),
            backlog: template.backlog,
            count: template.count,
            next: template.next.score,
        })
    }

    fn template(&mut self, jid: &Jid) -> Result<&mut Template, Refusal> {
        self.recurring.get_mut(jid).ok_or_else(|| Refusal::NoSuchRecurring { jid: jid.clone() })
    }

    pub(super) fn update_recurring(
        &mut self,
        now: Timestamp,
        update: &UpdateRecurring,
    ) -> Result<(), Refusal> {
        let template = self.template(&update.jid)?;
        template.priority = update.priority.unwrap_or(template.priority);
        template.retries = update.retries.unwrap_or(template.retries);
        if let Some(interval) = update.every.as_ref().map(interval) {
            let shift = span(interval.get() - template.interval.get());
            template.next.score = template.next.score + shift;
            template.interval = interval;
        }
        template.backlog = update.backlog.unwrap_or(template.backlog);
        if let Some(payload) = &update.payload {
            template.payload = payload.clone();
        }
        if let Some(klass) = &update.klass {
            template.klass = klass.clone();
        }
        if let Some(queue) = &update.queue {
            template.queue = queue.clone();
            self.register(now, queue);
        }
        Ok(())
    }

    /// Tags already present are skipped, but one that is named twice in one call is added twice.
    pub(super) fn tag_recurring(&mut self, tag: &TagRecurring) -> Result<Vec<Tag>, Refusal> {
        let template = self.template(&tag.jid)?;
        let new: Vec<Tag> = tag.tags.iter().filter(|tag| !template.tags.contains(tag)).cloned().collect();
        template.tags.extend(new);
        Ok(template.tags.clone())
    }

    pub(super) fn untag_recurring(&mut self, untag: &UntagRecurring) -> Result<Vec<Tag>, Refusal> {
        let template = self.template(&untag.jid)?;
        template.tags.retain(|tag| !untag.tags.contains(tag));
        Ok(template.tags.clone())
    }

    /// Recurring jobs of a queue, the next to spawn first.
    pub(super) fn recurring_in(&self, queue: &QueueName) -> Vec<(Entry, Jid)> {
        let mut found: Vec<(Entry, Jid)> = self
            .recurring
            .iter()
            .filter(|(_, template)| template.queue == *queue)
            .map(|(jid, template)| (template.next, jid.clone()))
            .collect();
        found.sort();
        found
    }

    /// Makes the jobs that are due, but no more than wanted.
    pub(super) fn spawn(&mut self, now: Timestamp, queue: &QueueName, klasses: &Klasses, wanted: usize) {
        let mut due = self.recurring_in(queue);
        due.retain(|(next, jid)| {
            let klass = &self.recurring[jid].klass;
            next.score <= now && klasses.as_ref().is_none_or(|klasses| klasses.contains(klass))
        });
        due.truncate(wanted);
        let mut moved = 0;
        for (next, jid) in due {
            let template = self.recurring[&jid].clone();
            // Decision 20.
            let whole = template.interval.get().fract() == 0.0;
            let mut moment = if whole { next.score.floor() } else { next.score };
            let backlog = f64::from(template.backlog);
            if template.backlog != 0 {
                let missed = (now - moment).get() / template.interval.get();
                if missed > backlog {
                    moment = (moment + span((missed - backlog).ceil() * template.interval.get())).min(now);
                }
            }
            while moment <= now && moved < wanted {
                self.spawn_one(now, &jid, moment);
                moved += 1;
                // Decision 20: time goes on, however large the numbers.
                let on = Timestamp::new(moment.get().next_up()).unwrap_or(moment);
                moment = (moment + template.interval).max(on);
                self.recurring.get_mut(&jid).expect("it was due").next.score = moment;
            }
        }
    }

    fn spawn_one(&mut self, now: Timestamp, parent: &Jid, moment: Timestamp) {
        let mut count = self.recurring[parent].count + 1;
        let mut jid = child(parent, count);
        while self.jobs.contains_key(&jid) {
            count += 1;
            jid = child(parent, count);
        }
        let template = self.recurring.get_mut(parent).expect("it was due");
        template.count = count;
        let template = template.clone();
        let job = Record {
            klass: template.klass,
            payload: template.payload,
            priority: template.priority,
            tags: template.tags,
            tagged: BTreeMap::new(),
            place: self.enter_work(moment),
            word: "waiting",
            worker: None,
            expires: Timestamp::ZERO,
            listed: None,
            queue: Some(template.queue.clone()),
            retries: template.retries,
            remaining: i64::from(template.retries),
            time: moment,
            failure: None,
            grace: false,
            scheduled: None,
            spawned_from: Some(parent.clone()),
            history: Vec::new(),
            attempts: Vec::new(),
            dependencies: BTreeSet::new(),
            dropped: BTreeSet::new(),
            token: Token::new(0),
            ended: None,
            beyond: put_options::nothing(),
            aside: None,
            holds_key: false,
        };
        self.jobs.insert(jid.clone(), job);
        self.tombstones.remove(&jid);
        self.index_tags(now, &jid);
        self.remember(&jid, moment, HistoryEvent::Put { queue: template.queue });
    }
}

fn child(parent: &Jid, number: u64) -> Jid {
    Jid::new(format!("{parent}-{number}")).expect("a recurring jid has room for a number behind it")
}
