//! The event log: retained events, for subscribers that reconnect and continue after a position.

use super::{Delta, Effects, Engine};
use crate::{PositionedEvent, Refusal, Seconds, TimedEvent, Timestamp};

/// How old the note of the last subscriber may become before it is renewed.
const NOTED_MAX: Seconds = Seconds::from_whole(3_600);

impl Engine {
    /// Starts the event log, because there is a subscriber. The tick stops it a day after the last one.
    pub fn start_event_log(&mut self, now: Timestamp, effects: &mut Effects) {
        let noted = self.state.event_log().listened;
        if noted.is_none_or(|noted| now - noted > NOTED_MAX) {
            self.commit(Delta::Listening(Some(now)), effects);
        }
    }

    /// Whether the event log is on.
    pub fn keeps_events(&self) -> bool {
        self.state.event_log().listened.is_some()
    }

    /// The position of the newest event. If a command caused several, it is that of the last.
    pub fn event_position(&self) -> u64 {
        self.state.event_log().last()
    }

    /// The retained events after a position. Refuses a position that is too old or too new.
    pub fn events_after(&self, after: u64) -> Result<Vec<PositionedEvent>, Refusal> {
        self.state.event_log().after(after)
    }

    /// Acknowledges the events up to a position for the subscriber that must receive all of them. They are
    /// then trimmed as usual.
    pub fn ack_events(&mut self, position: u64) {
        self.state.ack_events(position);
    }

    /// Logs the events of a command, from index `first` on.
    pub(super) fn log_events(&mut self, first: usize, fx: &mut Effects) {
        for at in first..fx.events.len() {
            let TimedEvent { at, event } = fx.events[at].clone();
            self.commit(Delta::EventLogged { event: Box::new(event), at: Some(at) }, fx);
        }
    }
}
