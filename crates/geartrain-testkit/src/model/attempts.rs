//! How attempts ended that did not complete their job, and tombstones of cancelled jobs (rules Attempts and
//! Tombstones).

use geartrain_core::{AttemptEnd, EndReason, Group, Jid, Seconds, Timestamp, Tombstone};

use super::{Model, Record};

/// How many ends a job keeps, and how much of each message.
const ENDS_MAX: usize = 25;
const MESSAGE_BYTES_MAX: usize = 1_024;
/// How much of a caller's name a tombstone keeps.
const CALLER_BYTES_MAX: usize = 512;
/// How many tombstones one cancelled job drops at most.
const DROPPED_MAX: usize = 100;

/// As many characters as fit.
fn cut(text: &str, bytes_max: usize) -> String {
    let mut fitting = String::new();
    for character in text.chars() {
        if fitting.len() + character.len_utf8() > bytes_max {
            break;
        }
        fitting.push(character);
    }
    fitting
}

impl Model {
    /// Notes why the current attempt ends.
    pub(super) fn note_end(
        &mut self,
        jid: &Jid,
        now: Timestamp,
        reason: EndReason,
        group: Option<Group>,
        message: Option<&str>,
    ) {
        let message = message.map(|message| cut(message, MESSAGE_BYTES_MAX));
        let job = self.job_mut(jid);
        let worker = job.worker.clone();
        job.attempts.push(AttemptEnd { when: now.floor(), reason, worker, group, message });
        if job.attempts.len() > ENDS_MAX {
            job.attempts.remove(0);
        }
    }

    /// Leaves a tombstone for a job that is cancelled.
    pub(super) fn bury(&mut self, now: Timestamp, jid: &Jid, job: &Record, because: Option<&String>) {
        let (age, count_max) = (self.canceled_age(), self.canceled_count());
        if age <= Seconds::ZERO || count_max == 0 {
            return;
        }
        let tombstone = Tombstone {
            jid: jid.clone(),
            queue: job.its_queue(),
            klass: job.klass.clone(),
            state: job.place.state(),
            when: now,
            by: self.by.as_deref().map(|by| cut(by, CALLER_BYTES_MAX)),
            because: because.cloned(),
        };
        self.tombstones.insert(jid.clone(), tombstone);
        for (when, oldest) in self.tombstones_by_age().into_iter().take(DROPPED_MAX) {
            if when <= now - age || self.tombstones.len() > count_max {
                self.tombstones.remove(&oldest);
            }
        }
    }

    /// When each job was cancelled, the earliest first and among equals by jid.
    pub(super) fn tombstones_by_age(&self) -> Vec<(Timestamp, Jid)> {
        let mut all: Vec<(Timestamp, Jid)> =
            self.tombstones.values().map(|tombstone| (tombstone.when, tombstone.jid.clone())).collect();
        all.sort();
        all
    }
}
