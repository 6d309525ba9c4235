//! What happened, kept for those who come back and want to know what they missed.

use super::{Delta, Effects, Engine};
use crate::{Published, Refusal, Seconds, Timestamp};

/// How long it may be since it was last noted that somebody listens.
const NOTED_MAX: Seconds = Seconds::from_whole(3_600);

impl Engine {
    /// Somebody listens: from now on events are kept.
    pub fn start_event_log(&mut self, now: Timestamp, effects: &mut Effects) {
        let noted = self.state.event_log().listened;
        if noted.is_none_or(|noted| now - noted > NOTED_MAX) {
            self.commit(Delta::Listening(Some(now)), effects);
        }
    }

    /// Whether events are kept.
    pub fn keeps_events(&self) -> bool {
        self.state.event_log().listened.is_some()
    }

    /// The position of the last event; of several that one command brought about, the last one's.
    pub fn event_position(&self) -> u64 {
        self.state.event_log().last()
    }

    /// The events after a position, as far as they are kept.
    pub fn events_after(&self, after: u64) -> Result<Vec<Published>, Refusal> {
        self.state.event_log().after(after)
    }

    /// Whoever is to have every event has those up to a position: they are kept no longer than others.
    pub fn ack_events(&mut self, position: u64) {
        self.state.ack_events(position);
    }

    /// Keeps the events that a command brought about, from the first one on.
    pub(super) fn log_events(&mut self, first: usize, fx: &mut Effects) {
        for at in first..fx.events.len() {
            let event = Box::new(fx.events[at].clone());
            self.commit(Delta::EventLogged(event), fx);
        }
    }
}
