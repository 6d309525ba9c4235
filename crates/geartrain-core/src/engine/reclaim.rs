//! Reclaiming interned names that nothing needs, and workers that were not seen for long.
//!
//! Names are interned and their references counted (`state/interner.rs`). A name becomes a candidate when its
//! count falls to zero, and is removed later, here, so that a name in frequent use is not removed and
//! interned again for each job. This is no command: the store calls it now and then, and removals are deltas
//! like every other change.

use super::state::Need;
use super::{Delta, Effects, Engine};
use crate::Timestamp;

impl Engine {
    /// Examines at most `max` candidates, and removes those that are not needed: klasses and groups that no
    /// job refers to; workers that are off the list, or hold nothing and were not seen for `max-worker-age`;
    /// queues that are off the list and empty, once their statistics are older than `stats-history`. Returns
    /// whether there may be more.
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
