//! The last events, kept for those who come back.

use std::collections::VecDeque;

use super::State;
use crate::{Event, Published, Refusal, Timestamp};

/// How many are kept at the most.
pub(super) const EVENTS_MAX: usize = 10_000;
/// How many bytes of them.
pub(super) const EVENT_BYTES_MAX: usize = 16 << 20;
/// About what an event takes besides what was said in it.
pub(super) const EVENT_BYTES: usize = 256;

/// The last events.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    /// When somebody was last known to listen; none if events are not kept.
    pub(crate) listened: Option<Timestamp>,
    pub(super) events: VecDeque<Published>,
    pub(super) bytes: usize,
    /// The position of the last one there ever was, or beyond that.
    pub(super) last: u64,
    /// The position of the last one that is not kept any more.
    pub(super) dropped: u64,
    /// How many are kept for somebody who is to have every one. This and what follows is not state: it only says how long the past is remembered.
    pub(super) held_max: usize,
    /// The position up to which they have them.
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

    /// Those after a position.
    pub(crate) fn after(&self, after: u64) -> Result<Vec<Published>, Refusal> {
        // Whatever happened while events are not kept is missed.
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
