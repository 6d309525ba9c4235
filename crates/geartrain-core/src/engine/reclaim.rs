//! Removing names that nothing needs, and workers that were not seen for long.
//!
//! Names are interned and their references counted (`state/table.rs`). That a count has fallen to zero is
//! noticed when it happens; the name is removed later, here, so that one which is used again and again is not
//! removed and interned for each job. Neither is part of a command: the store calls this now
//! and then, and removals are deltas like every other change.

use super::state::Need;
use super::{Delta, Effects, Engine};
use crate::Timestamp;

impl Engine {
    /// Examines at most so many names that may not be needed any more, and removes those that are not:
    /// klasses and groups that no job refers to; workers that are off the list, or have nothing and were not
    /// seen for `max-worker-age`; queues that are off the list and empty, once their statistics are as old as
    /// `stats-history` lets them be. Says whether there may be more.
    pub fn reclaim(&mut self, now: Timestamp, max: usize, effects: &mut Effects) -> bool {
        effects.ephemeral = false;
        for _ in 0..max {
            let Some((kind, number)) = self.state.next_candidate(now) else { return false };
            loop {
                match self.state.need(kind, number, now) {
                    Need::Needed => {}
                    Need::Until(until) => self.state.postpone(kind, number, until),
                    Need::Aged => {
                        self.commit(Delta::AgeWorker(number), effects);
                        continue;
                    }
                    Need::Unneeded => self.commit(Delta::FreeNameId(kind, number), effects),
                }
                break;
            }
        }
        true
    }

    /// When [`Engine::reclaim`] next has something to examine.
    pub fn next_reclaim(&self) -> Option<Timestamp> {
        self.state.next_examination()
    }
}
