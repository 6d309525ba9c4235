//! Tombstones: what is left of cancelled jobs for a while.

use std::sync::Arc;

use super::tick::OVERDUE_MAX;
use super::{Delta, Effects, Engine, RowId};
use crate::{Canceled, Jid, Seconds, Timestamp, Tombstone};

impl Engine {
    pub(super) fn canceled(&self, canceled: &Canceled) -> Option<Box<Tombstone>> {
        self.state.tombstones().get(&canceled.jid).cloned().map(Box::new)
    }

    /// Removes a cancelled job. Without a limit in age and number above 0 it leaves nothing.
    pub(super) fn remove_canceled(
        &mut self,
        row: RowId,
        now: Timestamp,
        by: Option<&Arc<str>>,
        because: Option<&Arc<str>>,
        fx: &mut Effects,
    ) {
        let numbers = self.state.numbers();
        if numbers.canceled_count == 0 || numbers.canceled_age <= Seconds::ZERO {
            return self.commit(Delta::Remove(row), fx);
        }
        self.commit(Delta::Canceled { row, now, by: by.cloned(), because: because.cloned() }, fx);
    }

    /// The oldest tombstone that a tick may drop, and when. As with complete jobs, those of callers with
    /// another clock stay until the next cancellation by that clock.
    pub(super) fn oldest_canceled(&self, now: Timestamp) -> Option<(Timestamp, &Jid)> {
        let age = self.state.numbers().canceled_age;
        let (when, jid) = self.state.tombstones().oldest_since(now - age - OVERDUE_MAX)?;
        Some((when + age, jid))
    }
}
