//! What a queue takes and hands out, at the most.

use std::cmp::Reverse;

use geartrain_core::{Event, Priority, QueueLimits, QueueName, Rate, Refusal, SetLimits, Timestamp};

use super::config::span;
use super::{Model, bad_argument};

/// How many priorities may have limits of their own.
const PRIORITIES_MAX: usize = 16;

/// How close moments are at which a queue is asked for jobs, so that only one of them is remembered.
const ASKED_AGAIN: f64 = 10.0;

/// A queue's limits.
#[derive(Debug, Clone)]
pub(super) struct Restraint {
    limits: QueueLimits,
    /// The moment *t* of rule Rate.
    spent_until: Timestamp,
}

pub(super) fn validate(limits: &QueueLimits) -> Result<(), Refusal> {
    let listed = &limits.by_priority;
    let none = limits.jobs_max == Some(0) || listed.iter().any(|(_, max)| *max == 0);
    let twice = (0..listed.len()).any(|place| listed[..place].iter().any(|(one, _)| *one == listed[place].0));
    if none || twice || listed.len() > PRIORITIES_MAX { Err(bad_argument("limit")) } else { Ok(()) }
}

/// What *t* becomes if a job starts now; none if it may not (rule Rate).
fn start(now: Timestamp, rate: Rate, t: Timestamp) -> Option<Timestamp> {
    let (i, b) = (rate.interval().get(), f64::from(rate.burst()));
    let t = if t > now + span((b + 1.0) * i) { now } else { t.max(now) };
    (t - now <= span(i * (b - 1.0))).then(|| t + rate.interval())
}

impl Model {
    pub(super) fn set_limits(&mut self, set: &SetLimits) {
        let before_everything = Timestamp::new(f64::MIN).expect("it is finite");
        let mut limits = set.limits.clone();
        limits.by_priority.sort_by_key(|(listed, _)| *listed);
        let restraint = Restraint { limits, spent_until: before_everything };
        self.restraints.insert(set.queue.clone(), restraint);
        self.events.push(Event::LimitsSet { queue: set.queue.clone() });
    }

    pub(super) fn limits_of(&self, queue: &QueueName) -> QueueLimits {
        self.restraints.get(queue).map(|restraint| restraint.limits.clone()).unwrap_or_default()
    }

    /// Refuses a new job of a priority where a queue has as many as it may (rule Limits).
    pub(super) fn refuse_full(&self, queue: &QueueName, priority: Priority) -> Result<(), Refusal> {
        let limits = self.limits_of(queue);
        let mut highest_first = limits.by_priority.clone();
        highest_first.sort_by_key(|(listed, _)| Reverse(*listed));
        let not_above = highest_first.iter().find(|(listed, _)| *listed <= priority);
        let by_priority = not_above.or(highest_first.last()).map(|(_, max)| *max);
        let unfinished = |job: &&super::Record| job.queue.as_ref() == Some(queue) && job.is_unfinished();
        let jobs = self.jobs.values().filter(unfinished).count() as u64;
        match by_priority.into_iter().chain(limits.jobs_max).min() {
            Some(max) if jobs >= max => Err(Refusal::QueueFull { queue: queue.clone(), jobs, max }),
            Some(_) | None => Ok(()),
        }
    }

    /// How many of the wanted jobs of a queue may start now.
    pub(super) fn starts_left(&self, now: Timestamp, queue: &QueueName, wanted: usize) -> usize {
        let Some(Restraint { limits: QueueLimits { rate: Some(rate), .. }, spent_until }) =
            self.restraints.get(queue)
        else {
            return wanted;
        };
        let mut t = *spent_until;
        for started in 0..wanted {
            match start(now, *rate, t) {
                Some(next) => t = next,
                None => return started,
            }
        }
        wanted
    }

    /// Takes note that a job of a queue starts.
    pub(super) fn note_start(&mut self, now: Timestamp, queue: &QueueName) {
        if let Some(restraint) = self.restraints.get_mut(queue)
            && let Some(rate) = restraint.limits.rate
        {
            restraint.spent_until =
                start(now, rate, restraint.spent_until).expect("a pop looks before whether a job may start");
        }
    }

    /// When the next job of a queue may start, if none may now.
    pub(super) fn rate_limited_until(&self, now: Timestamp, queue: &QueueName) -> Option<Timestamp> {
        if self.starts_left(now, queue, 1) > 0 {
            return None;
        }
        let restraint = self.restraints.get(queue)?;
        let rate = restraint.limits.rate?;
        // The first moment that is no further from t than this.
        Some(restraint.spent_until - span(rate.interval().get() * (f64::from(rate.burst()) - 1.0)))
    }

    /// Records when a queue was last asked for jobs, unless a recent record exists.
    pub(super) fn note_asked(&mut self, now: Timestamp, queue: &QueueName) {
        let known = |asked: &Timestamp| (now - *asked).get().abs() < ASKED_AGAIN;
        if !self.asked.get(queue).is_some_and(known) {
            self.asked.insert(queue.clone(), now);
        }
    }
}
