//! Jobs by filter, and what is done to many of them at once (rule Select, rule Act).

use std::collections::BTreeSet;

use geartrain_core::{
    Act, ActReply, AddTags, BulkAct, Cancel, Existing, Filter, FilterState, HistoryEvent, Jid, Put,
    QueueName, REFUSALS_MAX, Refusal, RemoveTags, SELECT_MAX, Select, SelectReply, Selected, SetPriority,
    StateName, Tag, Term, Timestamp,
};

use super::{Model, Position, Record, bad_argument};

impl Model {
    /// All jobs that the filter selects, whatever `count` says: pages are not compared.
    pub(super) fn select(&self, now: Timestamp, select: &Select) -> SelectReply {
        let filter = &select.filter;
        let is_not_json =
            |job: &&Record| is_true(job, now, filter) && filter.payload_verdict(&job.payload).is_none();
        let not_json = self.jobs.values().filter(is_not_json).count() as u64;
        SelectReply { jobs: self.selected(now, filter, None), not_json, ..SelectReply::default() }
    }

    pub(super) fn validate_select(filter: &Filter, after: bool, count: usize) -> Result<(), Refusal> {
        filter.check().map_err(|_| bad_argument("filter"))?;
        if !(1..=SELECT_MAX).contains(&count) {
            return Err(bad_argument("count"));
        }
        // The model gives out no cursor.
        if after { Err(bad_argument("after")) } else { Ok(()) }
    }

    pub(super) fn validate_act(act: &Act) -> Result<(), Refusal> {
        if let BulkAct::AddTags { tags } | BulkAct::RemoveTags { tags } = &act.act
            && tags.is_empty()
        {
            return Err(bad_argument("tags"));
        }
        if let BulkAct::Cancel { because } = &act.act {
            super::validate_because(because.as_deref())?;
        }
        let after = act.after.is_some() && act.only.is_empty();
        Model::validate_select(&act.filter, after, act.count.get())
    }

    fn selected(&self, now: Timestamp, filter: &Filter, only: Option<&[Jid]>) -> Vec<Selected> {
        let is_selected = |(jid, job): &(&Jid, &Record)| {
            let by_payload = only.is_some() || filter.matches_payload(&job.payload);
            only.is_none_or(|only| only.contains(jid)) && by_payload && is_true(job, now, filter)
        };
        let mut found: Vec<Selected> =
            self.jobs.iter().filter(is_selected).map(|(jid, job)| shown(jid, job, now)).collect();
        found.sort_by(Selected::order);
        found
    }

    pub(super) fn act(&mut self, now: Timestamp, act: &Act) -> ActReply {
        let only = (!act.only.is_empty()).then_some(&act.only[..]);
        let mut reply = ActReply::default();
        for job in self.selected(now, &act.filter, only) {
            if !self.jobs.contains_key(&job.jid) {
                continue;
            }
            match self.act_on(now, &job, act) {
                Ok(0) => reply.unchanged += 1,
                Ok(changed) => reply.acted += changed,
                Err(refusal) => {
                    reply.refused += 1;
                    if reply.refusals.len() < REFUSALS_MAX {
                        reply.refusals.push((job.jid, refusal));
                    }
                }
            }
        }
        reply
    }

    fn act_on(&mut self, now: Timestamp, job: &Selected, act: &Act) -> Result<u64, Refusal> {
        let jid = &job.jid;
        let target = |given: &Option<QueueName>| {
            given.clone().or_else(|| job.queue.clone()).ok_or_else(|| bad_argument("queue"))
        };
        match &act.act {
            BulkAct::Cancel { .. } if job.state == StateName::Complete => Ok(0),
            BulkAct::Cancel { because } => {
                let jids = self.with_dependents(now, jid, &act.filter)?;
                self.cancel(now, &Cancel { because: because.clone(), ..Cancel::new(jids) })
            }
            BulkAct::Requeue { queue } => {
                let queue = target(queue)?;
                let waits = matches!(job.state, StateName::Waiting | StateName::Depends);
                if waits && job.queue.as_ref() == Some(&queue) {
                    return Ok(0);
                }
                let Record { klass, payload, .. } = self.jobs[jid].clone();
                let put = Put { existing: Existing::Require, ..Put::new(queue, jid.clone(), klass, payload) };
                self.put(now, &put)?;
                Ok(1)
            }
            BulkAct::Unfail { .. } if job.state != StateName::Failed => Ok(0),
            BulkAct::Unfail { queue } => {
                let queue = target(queue)?;
                self.unfail_one(now, jid, &queue);
                Ok(1)
            }
            BulkAct::SetPriority { priority } if job.priority == *priority => Ok(0),
            BulkAct::SetPriority { priority } => {
                self.set_priority(&SetPriority { jid: jid.clone(), priority: *priority })?;
                Ok(1)
            }
            BulkAct::AddTags { tags } => {
                let tags = self.those(jid, tags, false);
                let changes = u64::from(!tags.is_empty());
                self.add_tags(now, &AddTags { jid: jid.clone(), tags })?;
                Ok(changes)
            }
            BulkAct::RemoveTags { tags } => {
                let tags = self.those(jid, tags, true);
                let changes = u64::from(!tags.is_empty());
                self.remove_tags(&RemoveTags { jid: jid.clone(), tags })?;
                Ok(changes)
            }
            unknown => panic!("the model does not know {unknown:?}"),
        }
    }

    /// Those tags, each once, that a job has or has not.
    fn those(&self, jid: &Jid, tags: &[Tag], has: bool) -> Vec<Tag> {
        let mut those: Vec<Tag> = Vec::new();
        for tag in tags {
            if self.jobs[jid].tags.contains(tag) == has && !those.contains(tag) {
                those.push(tag.clone());
            }
        }
        those
    }

    fn with_dependents(&self, now: Timestamp, jid: &Jid, filter: &Filter) -> Result<Vec<Jid>, Refusal> {
        let mut along = BTreeSet::new();
        let mut ahead = vec![jid.clone()];
        while let Some(next) = ahead.pop() {
            for dependent in self.dependents(&next) {
                if dependent != *jid && along.insert(dependent.clone()) {
                    ahead.push(dependent);
                }
            }
        }
        let selected = self.selected(now, filter, None);
        let is_left = |dependent: &&Jid| !selected.iter().any(|job| job.jid == **dependent);
        if let Some(dependent) = along.iter().find(is_left) {
            return Err(Refusal::IsDependency { jid: jid.clone(), dependent: dependent.clone() });
        }
        Ok([jid.clone()].into_iter().chain(along).collect())
    }
}

/// The first entry of the history.
fn put_at(job: &Record) -> Timestamp {
    job.history.first().expect("every job was put").when
}

fn last_queue(job: &Record) -> Option<QueueName> {
    let put = |what: &HistoryEvent| match what {
        HistoryEvent::Put { queue } => Some(queue.clone()),
        _ => None,
    };
    job.queue.clone().or_else(|| job.history.iter().rev().find_map(|entry| put(&entry.what)))
}

fn attempts(job: &Record) -> u32 {
    let used = u32::try_from(i64::from(job.retries) - job.remaining).unwrap_or(0);
    let by_worker = job.failure.as_ref().is_some_and(|failure| failure.worker.is_some());
    match job.place.state() {
        StateName::Running => used + 1,
        StateName::Failed if by_worker => used + 1,
        _ => used,
    }
}

fn is_stalled(job: &Record, now: Timestamp) -> bool {
    matches!(job.place, Position::Locks { deadline } if deadline <= now)
}

fn shown(jid: &Jid, job: &Record, now: Timestamp) -> Selected {
    let state = job.place.state();
    Selected {
        jid: jid.clone(),
        queue: last_queue(job),
        klass: job.klass.clone(),
        state,
        stalled: is_stalled(job, now),
        priority: job.priority,
        put: put_at(job),
        attempts: attempts(job),
        worker: job.worker.clone().filter(|_| state == StateName::Running),
        group: job.failure.clone().filter(|_| state == StateName::Failed).map(|failure| failure.group),
    }
}

fn is_true(job: &Record, now: Timestamp, filter: &Filter) -> bool {
    let state = job.place.state();
    filter.terms.iter().all(|term| match term {
        Term::Queue(queue) => last_queue(job).as_ref() == Some(queue),
        Term::Klass(klass) => job.klass == *klass,
        Term::State(FilterState::Stalled) => is_stalled(job, now),
        Term::State(named) => state == named.state(),
        Term::Tag(tag) => job.tags.contains(tag),
        Term::Group(group) => {
            state == StateName::Failed && job.failure.as_ref().is_some_and(|failure| failure.group == *group)
        }
        Term::Worker(worker) => {
            state == StateName::Running && job.worker.as_ref() == Some(worker) && job.listed.is_some()
        }
        Term::Age(comparison, age) => comparison.is_true(now - put_at(job), *age),
        Term::Attempts(comparison, count) => comparison.is_true(attempts(job), *count),
        Term::Args(..) => true,
        unknown => panic!("the model does not know {unknown:?}"),
    })
}
