//! What others have for a connection: wake-ups, and news of the jobs that it waits for.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use geartrain_core::Delivery;
use tokio::sync::Notify;

/// How many bytes may wait for a peer that does not read, unless one thing alone has more.
const BEHIND_BYTES_MAX: usize = 128 << 20;
/// How many bytes are taken out at once, unless one thing alone has more: what is taken is encoded in one go.
const TAKEN_BYTES_MAX: usize = 1 << 20;
/// What each thing counts besides its bytes.
const DELIVERY_BYTES: usize = 128;

/// One connection's inbox.
#[derive(Default)]
pub(crate) struct Inbox {
    content: Mutex<Content>,
    filled: Notify,
}

#[derive(Default)]
struct Content {
    noop: bool,
    deliveries: VecDeque<Delivery>,
    bytes: usize,
    /// The stream that nothing more comes from, though jobs may be waited for through it.
    ended: Option<u64>,
    overflown: bool,
}

/// What is taken out of an inbox.
#[derive(Default)]
pub(crate) struct Taken {
    /// The peer is to be woken.
    pub(crate) noop: bool,
    /// What it is told.
    pub(crate) deliveries: VecDeque<Delivery>,
    /// Whoever waits through this stream will not be told anything more.
    pub(crate) ended: Option<u64>,
    /// The peer did not read, and what it would have been told is lost.
    pub(crate) overflown: bool,
}

impl Inbox {
    /// Wakes the peer.
    pub(crate) fn wake(&self) {
        self.content().noop = true;
        self.filled.notify_one();
    }

    /// The peer is not to be woken after all.
    pub(crate) fn let_sleep(&self) {
        self.content().noop = false;
    }

    /// Tells the peer something.
    pub(crate) fn tell(&self, delivery: Delivery) {
        let mut content = self.content();
        let bytes = DELIVERY_BYTES + delivery.byte_len();
        if content.bytes > 0 && content.bytes + bytes > BEHIND_BYTES_MAX {
            content.overflown = true;
        } else {
            content.bytes += bytes;
            content.deliveries.push_back(delivery);
        }
        drop(content);
        self.filled.notify_one();
    }

    /// Nothing more comes from a stream.
    pub(crate) fn end(&self, front: u64) {
        self.content().ended = Some(front);
        self.filled.notify_one();
    }

    /// Takes what is there, if there is anything; of much, the first part.
    pub(crate) fn take(&self) -> Option<Taken> {
        let mut content = self.content();
        if !content.noop && content.deliveries.is_empty() && content.ended.is_none() && !content.overflown {
            return None;
        }
        let (mut deliveries, mut bytes) = (VecDeque::new(), 0);
        while bytes < TAKEN_BYTES_MAX
            && let Some(delivery) = content.deliveries.pop_front()
        {
            bytes += DELIVERY_BYTES + delivery.byte_len();
            deliveries.push_back(delivery);
        }
        content.bytes -= bytes;
        let is_all = content.deliveries.is_empty();
        if !is_all {
            self.filled.notify_one();
        }
        Some(Taken {
            noop: std::mem::take(&mut content.noop),
            deliveries,
            // The end of a stream comes behind all that came from it.
            ended: content.ended.take_if(|_| is_all),
            overflown: content.overflown,
        })
    }

    /// Returns when there may be something. Nothing is lost if it is dropped half-way.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]
mod tests {
    use super::*;
    use geartrain_core::{ChunkKind, Jid, Payload, Portion, Progressed, ResultWaiter, StreamItem};

    #[test]
    fn much_is_taken_in_parts_and_the_end_of_a_stream_comes_last() {
        let inbox = Inbox::default();
        let waiter = ResultWaiter { stream_id: 7, connection: 1, number: 1 };
        for size in 0..10 {
            let told = StreamItem::Chunk(ChunkKind::Data, vec![0; (1 << 18) + size].into());
            inbox.tell(Delivery { waiter, jid: Jid::new("j").unwrap(), item: told });
        }
        inbox.end(7);
        inbox.wake();
        let mut parts = Vec::new();
        while let Some(taken) = inbox.take() {
            parts.push((taken.deliveries.len(), taken.noop, taken.ended));
        }
        assert_eq!(parts, [(4, true, None), (4, false, None), (2, false, Some(7))]);
        assert_eq!(inbox.content().bytes, 0);
    }

    #[test]
    fn long_progress_texts_count_toward_the_limit_of_a_client_that_does_not_read() {
        let inbox = Inbox::default();
        let waiter = ResultWaiter { stream_id: 7, connection: 1, number: 1 };
        let progress = Progressed { portion: Portion::unchecked(1, 2), seconds_left: None };
        let text: Payload = vec![b'x'; 1 << 20].into();
        let sent = 2 * BEHIND_BYTES_MAX / (1 << 20);
        for _ in 0..sent {
            let item = StreamItem::Progress { progress, text: Some(text.clone()) };
            inbox.tell(Delivery { waiter, jid: Jid::new("j").unwrap(), item });
        }
        assert!(inbox.content().overflown);
        assert!(inbox.content().bytes <= BEHIND_BYTES_MAX);
    }
}
