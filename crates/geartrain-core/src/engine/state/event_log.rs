//! The event log: a bounded ring of the latest events, each with its position.

use std::collections::VecDeque;

use super::State;
use crate::{Event, PositionedEvent, Refusal, Timestamp};

/// Limit of retained events.
pub(super) const EVENTS_MAX: usize = 10_000;
/// Limit of their bytes.
pub(super) const EVENT_BYTES_MAX: usize = 16 << 20;
/// Approximate size of an event without its message.
pub(super) const EVENT_BYTES: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct EventLog {
    /// When a subscriber was last known; none if the log is off.
    pub(crate) listened: Option<Timestamp>,
    pub(super) events: VecDeque<PositionedEvent>,
    pub(super) bytes: usize,
    /// The position of the newest event ever, or above.
    pub(super) last: u64,
    /// The position of the newest event that was dropped.
    pub(super) dropped: u64,
    /// How many events are retained for the subscriber that must receive all. This and `acked` only bound the
    /// log and are not part of the state.
    pub(super) held_max: usize,
    /// The position up to which that subscriber has acknowledged them.
    pub(super) acked: u64,
}

impl State {
    pub(crate) fn event_log(&self) -> &EventLog {
        &self.event_log
    }
}

impl EventLog {
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The events after a position.
    pub(crate) fn after(&self, after: u64) -> Result<Vec<PositionedEvent>, Refusal> {
        // While the log is off, all events are missed.
        let dropped = if self.listened.is_some() { self.dropped } else { self.last };
        if after > self.last {
            return Err(Refusal::CursorAhead { after, newest: self.last });
        }
        if after < dropped {
            let oldest = self.events.front().map_or(self.last + 1, |first| first.position);
            return Err(Refusal::CursorTooOld { after, oldest });
        }
        let first = self.events.partition_point(|event| event.position <= after);
        Ok(self.events.range(first..).cloned().collect())
    }
}

pub(super) fn size(event: &Event) -> usize {
    EVENT_BYTES
        + match event {
            Event::Failed { message, .. } => message.len(),
            Event::ConfigSet { value, .. } => value.len(),
            _ => 0,
        }
}
