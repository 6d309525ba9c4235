//! Mailbox of a connection: wake-ups and result stream items, bounded in bytes.
//!
//! The bound limits what a client that does not read can make the server keep: above it the mailbox
//! overflows, and the connection is closed. The router never blocks on a slow client.

use std::collections::VecDeque;

use geartrain_core::StreamMessage;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// Most bytes that may wait for a client that does not read; a single larger item is accepted.
const MAILBOX_BYTES_MAX: usize = 128 << 20;
/// Most bytes taken at once, because they are encoded in one go; a single larger item is accepted.
const DRAIN_BYTES_MAX: usize = 1 << 20;
/// What each item counts besides its payload.
const DELIVERY_OVERHEAD_BYTES: usize = 128;

#[derive(Default)]
pub(crate) struct Mailbox {
    state: Mutex<MailboxState>,
    changed: Notify,
}

#[derive(Default)]
struct MailboxState {
    wake: bool,
    deliveries: VecDeque<StreamMessage>,
    bytes: usize,
    /// A stream that has ended while jobs may still be awaited through it.
    ended_stream: Option<u64>,
    overflowed: bool,
}

/// The content taken from a mailbox.
#[derive(Default)]
pub(crate) struct Drained {
    /// The worker is to be woken.
    pub(crate) wake: bool,
    pub(crate) deliveries: VecDeque<StreamMessage>,
    /// This stream has ended: jobs awaited through it receive no more items.
    pub(crate) ended_stream: Option<u64>,
    /// The client did not read, and items were dropped.
    pub(crate) overflowed: bool,
}

impl Mailbox {
    /// Wakes the worker.
    pub(crate) fn wake(&self) {
        self.state().wake = true;
        self.changed.notify_one();
    }

    /// Takes back a wake-up that was not read yet.
    pub(crate) fn cancel_wake(&self) {
        self.state().wake = false;
    }

    /// Adds an item of a result stream.
    pub(crate) fn deliver(&self, delivery: StreamMessage) {
        let mut state = self.state();
        let bytes = DELIVERY_OVERHEAD_BYTES + delivery.byte_len();
        if state.bytes > 0 && state.bytes + bytes > MAILBOX_BYTES_MAX {
            state.overflowed = true;
        } else {
            state.bytes += bytes;
            state.deliveries.push_back(delivery);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Notes that a stream has ended.
    pub(crate) fn end_stream(&self, stream_id: u64) {
        self.state().ended_stream = Some(stream_id);
        self.changed.notify_one();
    }

    /// Takes the content, up to [`DRAIN_BYTES_MAX`]; `None` if the mailbox is empty.
    pub(crate) fn drain(&self) -> Option<Drained> {
        let mut state = self.state();
        if !state.wake && state.deliveries.is_empty() && state.ended_stream.is_none() && !state.overflowed {
            return None;
        }
        let (mut deliveries, mut bytes) = (VecDeque::new(), 0);
        while bytes < DRAIN_BYTES_MAX
            && let Some(delivery) = state.deliveries.pop_front()
        {
            bytes += DELIVERY_OVERHEAD_BYTES + delivery.byte_len();
            deliveries.push_back(delivery);
        }
        state.bytes -= bytes;
        let is_all = state.deliveries.is_empty();
        if !is_all {
            self.changed.notify_one();
        }
        Some(Drained {
            wake: std::mem::take(&mut state.wake),
            deliveries,
            // The end of a stream comes after all of its items.
            ended_stream: state.ended_stream.take_if(|_| is_all),
            overflowed: state.overflowed,
        })
    }

    /// Waits until there may be something to drain. Cancel safe.
    pub(crate) async fn ready(&self) {
        self.changed.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]
mod tests {
    use super::*;
    use geartrain_core::{ChunkKind, Jid, Payload, Portion, Progressed, ResultWaiter, StreamItem};

    #[test]
    fn a_large_mailbox_is_drained_in_parts_and_the_end_of_a_stream_comes_last() {
        let mailbox = Mailbox::default();
        let waiter = ResultWaiter { stream_id: 7, connection: 1, number: 1 };
        for size in 0..10 {
            let item = StreamItem::Chunk(ChunkKind::Data, vec![0; (1 << 18) + size].into());
            mailbox.deliver(StreamMessage { waiter, jid: Jid::new("j").unwrap(), item });
        }
        mailbox.end_stream(7);
        mailbox.wake();
        let mut parts = Vec::new();
        while let Some(drained) = mailbox.drain() {
            parts.push((drained.deliveries.len(), drained.wake, drained.ended_stream));
        }
        assert_eq!(parts, [(4, true, None), (4, false, None), (2, false, Some(7))]);
        assert_eq!(mailbox.state().bytes, 0);
    }

    #[test]
    fn long_progress_texts_count_toward_the_limit_of_a_client_that_does_not_read() {
        let mailbox = Mailbox::default();
        let waiter = ResultWaiter { stream_id: 7, connection: 1, number: 1 };
        let progress = Progressed { portion: Portion::unchecked(1, 2), seconds_left: None };
        let text: Payload = vec![b'x'; 1 << 20].into();
        let sent = 2 * MAILBOX_BYTES_MAX / (1 << 20);
        for _ in 0..sent {
            let item = StreamItem::Progress { progress, text: Some(text.clone()) };
            mailbox.deliver(StreamMessage { waiter, jid: Jid::new("j").unwrap(), item });
        }
        assert!(mailbox.state().overflowed);
        assert!(mailbox.state().bytes <= MAILBOX_BYTES_MAX);
    }
}
