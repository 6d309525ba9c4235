//! The last events, kept for those who come back.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{EPOCH_BITS, State};
use crate::{Event, Published, Refusal, Timestamp};

/// How many are kept at the most.
const EVENTS_MAX: usize = 10_000;
/// How many bytes of them.
const EVENT_BYTES_MAX: usize = 16 << 20;
/// About what an event takes besides what was said in it.
const EVENT_BYTES: usize = 256;

/// The last events.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    /// When somebody was last known to listen; none if events are not kept.
    pub(crate) listened: Option<Timestamp>,
    pub(super) events: VecDeque<Published>,
    bytes: usize,
    /// The position of the last one there ever was, or beyond that.
    pub(super) last: u64,
    /// The position of the last one that is not kept any more.
    pub(super) dropped: u64,
    /// How many are kept for somebody who is to have every one. This and what follows is not state: it only says how long the past is remembered.
    held_max: usize,
    /// The position up to which they have them.
    let_go: u64,
}

impl State {
    pub(crate) fn event_log(&self) -> &EventLog {
        &self.happened
    }

    pub(super) fn start_event_log(&mut self, listened: Option<Timestamp>) {
        let happened = &mut self.happened;
        if happened.listened.is_some() != listened.is_some() {
            // What happens while events are not kept is missed by everybody, so that no earlier position is good after it.
            happened.events.clear();
            happened.bytes = 0;
            happened.last += 1;
            happened.dropped = happened.last;
        }
        happened.listened = listened;
    }

    /// Of what happened before the store was opened some may have been lost after it was told. What happens now is beyond all that.
    pub(super) fn begin_event_epoch(&mut self, epoch: u32) {
        self.happened.last = self.happened.last.max(u64::from(epoch) << EPOCH_BITS);
    }

    /// So many events are kept for somebody who is to have every one.
    pub(crate) fn hold_events(&mut self, max: usize) {
        self.happened.held_max = max;
    }

    /// They have those up to a position.
    pub(crate) fn ack_events(&mut self, position: u64) {
        self.happened.let_go = self.happened.let_go.max(position);
        self.happened.trim();
    }

    pub(super) fn append_event(&mut self, event: &Event) {
        self.happened.add(self.happened.last + 1, Arc::new(event.clone()));
    }
}

impl EventLog {
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn add(&mut self, position: u64, event: Arc<Event>) {
        self.last = position;
        self.bytes += size(&event);
        self.events.push_back(Published { position, event });
        self.trim();
    }

    /// Drops the oldest, as long as there are too many.
    fn trim(&mut self) {
        let held_bytes_max = self.held_max.saturating_mul(EVENT_BYTES);
        while let Some(oldest) = self.events.front() {
            let many = self.events.len() > EVENTS_MAX || self.bytes > EVENT_BYTES_MAX;
            let held = oldest.position > self.let_go
                && self.events.len() <= self.held_max
                && self.bytes <= held_bytes_max;
            if !many || held {
                return;
            }
            self.bytes -= size(&oldest.event);
            self.dropped = oldest.position;
            self.events.pop_front();
        }
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

fn size(event: &Event) -> usize {
    EVENT_BYTES
        + match event {
            Event::Failed { message, .. } => message.len(),
            Event::ConfigSet { value, .. } => value.len(),
            _ => 0,
        }
}
