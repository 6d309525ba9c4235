//! What happened, kept for those who come back and want to know what they missed.

use super::{Effects, Engine};
use crate::{Published, Refusal, Timestamp};

impl Engine {
    /// Somebody listens: from now on events are kept.
    pub fn listen(&mut self, _now: Timestamp, _effects: &mut Effects) {}

    /// Whether events are kept.
    pub fn keeps_events(&self) -> bool {
        false
    }

    /// The position of the last event; of several that one command brought about, the last one's.
    pub fn event_position(&self) -> u64 {
        0
    }

    /// The events after a position, as far as they are kept.
    pub fn events_after(&self, after: u64) -> Result<Vec<Published>, Refusal> {
        Err(Refusal::CursorAhead { after, newest: self.event_position() })
    }

    /// When [`Tick`](crate::Tick) next has something to do, as far as is known now.
    pub fn next_tick(&self) -> Option<Timestamp> {
        None
    }
}
