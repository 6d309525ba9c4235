//! What must be true of a model at any time.

use geartrain_core::StateName;

use super::{Model, Record};

impl Model {
    /// What must be true of a model at any time.
    pub fn check(&self) -> Result<(), String> {
        for (waiter, jid) in &self.waiters {
            if !self.jobs.get(jid).is_some_and(|job| job.is_unfinished()) {
                return Err(format!("{waiter:?} waits for {jid}, which is not unfinished"));
            }
            if self.waiters.iter().filter(|(other, _)| other == waiter).count() > 1 {
                return Err(format!("{waiter:?} waits more than once"));
            }
        }
        for (jid, job) in &self.jobs {
            let running = job.place.state() == StateName::Running;
            if !running && (job.beyond.deadline.is_some() || job.beyond.progress.is_some()) {
                return Err(format!("{jid} does not run, and has a deadline or has got somewhere"));
            }
            let key = job.beyond.unique.as_ref().filter(|_| job.holds_key);
            if job.holds_key && (key.is_none() || !job.is_unfinished()) {
                return Err(format!("{jid} holds a key, and has none or is not unfinished"));
            }
            let same = |other: &Record| {
                other.holds_key && other.queue == job.queue && other.beyond.unique == job.beyond.unique
            };
            if job.holds_key && self.jobs.values().filter(|other| same(other)).count() > 1 {
                return Err(format!("{jid} holds a key that another holds"));
            }
            if let Some(missing) = job.dependencies.iter().find(|jid| !self.is_open(jid)) {
                return Err(format!("{jid} waits for {missing}, which is complete or gone"));
            }
        }
        if let Some(worker) = self.abilities.keys().find(|worker| !self.workers.contains_key(*worker)) {
            return Err(format!("{worker} has announced something and is not on the list"));
        }
        Ok(())
    }
}
