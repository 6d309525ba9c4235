//! Applies ends of attempts that did not complete the job, and cancellations.

use super::super::{RowId, State};
use crate::attempt::clip;
use crate::{
    ATTEMPT_ENDS_MAX, ATTEMPT_MESSAGE_BYTES_MAX, AttemptEnd, CALLER_BYTES_MAX, EndReason, Group, Timestamp,
    Tombstone,
};

/// How many tombstones one cancelled job drops at most, so that a lower limit takes effect step by step.
const DROPPED_MAX: usize = 100;

impl State {
    /// Stores how the current attempt ends. Call it while the worker still has the job.
    pub(super) fn end_attempt(
        &mut self,
        at: RowId,
        now: Timestamp,
        reason: EndReason,
        group: Option<&Group>,
        message: Option<&str>,
    ) {
        let worker = self.worker_name(self.rows[at].worker);
        let message = message.map(|message| clip(message, ATTEMPT_MESSAGE_BYTES_MAX).to_owned());
        let end = AttemptEnd { when: now.floor(), reason, worker, group: group.cloned(), message };
        let ends = &mut self.cold_mut(at).attempts.get_or_insert_default().0;
        if ends.len() == ATTEMPT_ENDS_MAX {
            ends.pop_front();
        }
        ends.push_back(end);
    }

    /// Removes a job and stores a tombstone; drops those that are too old or too many.
    pub(super) fn cancel(&mut self, at: RowId, now: Timestamp, by: Option<&str>, because: Option<&str>) {
        let row = &self.rows[at];
        let tombstone = Tombstone {
            jid: self.rows.jid(at),
            queue: self.queue_name(row.queue),
            klass: self.klass(row.klass),
            state: row.state.name(),
            when: now,
            by: by.map(|by| clip(by, CALLER_BYTES_MAX).to_owned()),
            because: because.map(ToOwned::to_owned),
        };
        self.remove(at);
        self.tombstones.insert(tombstone);
        let numbers = &self.config.numbers;
        let (oldest, count_max) = (now - numbers.canceled_age, numbers.canceled_count);
        for _ in 0..DROPPED_MAX {
            let first = self.tombstones.oldest().map(|(when, jid)| (when, jid.clone()));
            match first {
                Some((when, jid)) if when <= oldest || self.tombstones.len() > count_max => {
                    self.tombstones.remove(&jid);
                }
                _ => break,
            }
        }
    }
}
