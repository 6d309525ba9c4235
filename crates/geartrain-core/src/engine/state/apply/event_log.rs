//! Applies changes of the event log: starts, appends, trims.

use std::sync::Arc;

use super::super::event_log::{EVENT_BYTES, EVENT_BYTES_MAX, EVENTS_MAX, EventLog, size};
use super::super::{EPOCH_BITS, State};
use crate::{Event, PositionedEvent, Timestamp};

impl State {
    pub(super) fn start_event_log(&mut self, listened: Option<Timestamp>) {
        let event_log = &mut self.event_log;
        if event_log.listened.is_some() != listened.is_some() {
            // While the log is off, all subscribers miss events, so positions from before are invalid.
            event_log.events.clear();
            event_log.bytes = 0;
            event_log.last += 1;
            event_log.dropped = event_log.last;
        }
        event_log.listened = listened;
    }

    /// Events from before the store was opened may have been published and then lost. New positions are above
    /// all of those.
    pub(super) fn begin_event_epoch(&mut self, epoch: u32) {
        self.event_log.last = self.event_log.last.max(u64::from(epoch) << EPOCH_BITS);
    }

    pub(super) fn append_event(&mut self, event: &Event, at: Option<Timestamp>) {
        let event = Arc::new(event.clone());
        self.event_log.add(PositionedEvent { position: self.event_log.last + 1, event, at });
    }

    /// Retains up to `max` events for the subscriber that must receive all.
    pub(crate) fn hold_events(&mut self, max: usize) {
        self.event_log.held_max = max;
    }

    /// That subscriber has received the events up to a position.
    pub(crate) fn ack_events(&mut self, position: u64) {
        self.event_log.acked = self.event_log.acked.max(position);
        self.event_log.trim();
    }
}

impl EventLog {
    pub(in crate::engine::state) fn add(&mut self, event: PositionedEvent) {
        self.last = event.position;
        self.bytes += size(&event.event);
        self.events.push_back(event);
        self.trim();
    }

    /// Drops the oldest events while there are too many.
    pub(super) fn trim(&mut self) {
        let held_bytes_max = self.held_max.saturating_mul(EVENT_BYTES);
        while let Some(oldest) = self.events.front() {
            let many = self.events.len() > EVENTS_MAX || self.bytes > EVENT_BYTES_MAX;
            let held = oldest.position > self.acked
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
}
