//! What others have for a connection: wake-ups, and news of the jobs that it waits for.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use geartrain_core::Delivery;
use tokio::sync::Notify;

/// How many bytes may wait for a peer that does not read, unless one thing alone has more.
const MAILBOX_BYTES_MAX: usize = 128 << 20;
/// How many bytes are taken out at once, unless one thing alone has more: what is taken is encoded in one go.
const DRAIN_BYTES_MAX: usize = 1 << 20;
/// What each thing counts besides its bytes.
const DELIVERY_OVERHEAD_BYTES: usize = 128;

/// One connection's inbox.
#[derive(Default)]
pub(crate) struct Mailbox {
    state: Mutex<MailboxState>,
    changed: Notify,
}

#[derive(Default)]
struct MailboxState {
    wake: bool,
    deliveries: VecDeque<Delivery>,
    bytes: usize,
    /// The stream that nothing more comes from, though jobs may be waited for through it.
    ended_stream: Option<u64>,
    overflowed: bool,
}

/// What is taken out of an inbox.
#[derive(Default)]
pub(crate) struct Drained {
    /// The peer is to be woken.
    pub(crate) wake: bool,
    /// What it is told.
    pub(crate) deliveries: VecDeque<Delivery>,
    /// Whoever waits through this stream will not be told anything more.
    pub(crate) ended_stream: Option<u64>,
    /// The peer did not read, and what it would have been told is lost.
    pub(crate) overflowed: bool,
}

impl Mailbox {
    /// Wakes the peer.
    pub(crate) fn wake(&self) {
        self.state().wake = true;
        self.changed.notify_one();
    }

    /// The peer is not to be woken after all.
    pub(crate) fn cancel_wake(&self) {
        self.state().wake = false;
    }

    /// Tells the peer something.
    pub(crate) fn deliver(&self, delivery: Delivery) {
        let mut content = self.state();
        let bytes = DELIVERY_OVERHEAD_BYTES + delivery.byte_len();
        if content.bytes > 0 && content.bytes + bytes > MAILBOX_BYTES_MAX {
            content.overflowed = true;
        } else {
            content.bytes += bytes;
            content.deliveries.push_back(delivery);
        }
        drop(content);
        self.changed.notify_one();
    }

    /// Nothing more comes from a stream.
    pub(crate) fn end_stream(&self, front: u64) {
        self.state().ended_stream = Some(front);
        self.changed.notify_one();
    }

    /// Takes what is there, if there is anything; of much, the first part.
    pub(crate) fn drain(&self) -> Option<Drained> {
        let mut content = self.state();
        if !content.wake
            && content.deliveries.is_empty()
            && content.ended_stream.is_none()
            && !content.overflowed
        {
            return None;
        }
        let (mut deliveries, mut bytes) = (VecDeque::new(), 0);
        while bytes < DRAIN_BYTES_MAX
            && let Some(delivery) = content.deliveries.pop_front()
        {
            bytes += DELIVERY_OVERHEAD_BYTES + delivery.byte_len();
            deliveries.push_back(delivery);
        }
        content.bytes -= bytes;
        let is_all = content.deliveries.is_empty();
        if !is_all {
            self.changed.notify_one();
        }
        Some(Drained {
            wake: std::mem::take(&mut content.wake),
            deliveries,
            // The end of a stream comes behind all that came from it.
            ended_stream: content.ended_stream.take_if(|_| is_all),
            overflowed: content.overflowed,
        })
    }

    /// Returns when there may be something. Nothing is lost if it is dropped half-way.
    pub(crate) async fn ready(&self) {
        self.changed.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]
mod tests {
    use super::*;
    use geartrain_core::{ChunkKind, Jid, Payload, Portion, Progressed, ResultWaiter, StreamItem};

    #[test]
    fn much_is_taken_in_parts_and_the_end_of_a_stream_comes_last() {
        let inbox = Mailbox::default();
        let waiter = ResultWaiter { stream_id: 7, connection: 1, number: 1 };
        for size in 0..10 {
            let told = StreamItem::Chunk(ChunkKind::Data, vec![0; (1 << 18) + size].into());
            inbox.deliver(Delivery { waiter, jid: Jid::new("j").unwrap(), item: told });
        }
        inbox.end_stream(7);
        inbox.wake();
        let mut parts = Vec::new();
        while let Some(taken) = inbox.drain() {
            parts.push((taken.deliveries.len(), taken.wake, taken.ended_stream));
        }
        assert_eq!(parts, [(4, true, None), (4, false, None), (2, false, Some(7))]);
        assert_eq!(inbox.state().bytes, 0);
    }

    #[test]
    fn long_progress_texts_count_toward_the_limit_of_a_client_that_does_not_read() {
        let inbox = Mailbox::default();
        let waiter = ResultWaiter { stream_id: 7, connection: 1, number: 1 };
        let progress = Progressed { portion: Portion::unchecked(1, 2), seconds_left: None };
        let text: Payload = vec![b'x'; 1 << 20].into();
        let sent = 2 * MAILBOX_BYTES_MAX / (1 << 20);
        for _ in 0..sent {
            let item = StreamItem::Progress { progress, text: Some(text.clone()) };
            inbox.deliver(Delivery { waiter, jid: Jid::new("j").unwrap(), item });
        }
        assert!(inbox.state().overflowed);
        assert!(inbox.state().bytes <= MAILBOX_BYTES_MAX);
    }
}
