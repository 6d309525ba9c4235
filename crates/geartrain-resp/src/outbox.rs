//! The outbox: messages on their way to one connection, bounded in bytes. A subscriber that falls behind is
//! disconnected; publishers never wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::frame::Output;

/// How far a subscriber may fall behind before it is disconnected.
const QUEUED_BYTES_MAX: usize = 32 << 20;
/// Memory that a message takes besides its text.
const MESSAGE_BYTES: usize = 128;

/// A message for one subscriber.
#[derive(Debug, Clone)]
pub(crate) struct Push {
    /// The pattern that matched, if the subscription is to a pattern.
    pattern: Option<Bytes>,
    channel: Bytes,
    text: Bytes,
}

impl Push {
    pub(crate) fn new(channel: Bytes, text: Bytes) -> Push {
        Push { pattern: None, channel, text }
    }

    pub(crate) fn matched(pattern: Bytes, channel: Bytes, text: Bytes) -> Push {
        Push { pattern: Some(pattern), channel, text }
    }

    pub(crate) fn write(&self, out: &mut Output) {
        match &self.pattern {
            Some(pattern) => {
                out.push(4);
                out.bulk("pmessage");
                out.bulk(pattern);
            }
            None => {
                out.push(3);
                out.bulk("message");
            }
        }
        out.bulk(&self.channel);
        out.shared_bulk(self.text.clone());
    }

    fn bytes(&self) -> usize {
        MESSAGE_BYTES + self.channel.len() + self.text.len()
    }
}

/// The publishers' end of an outbox.
#[derive(Debug, Clone)]
pub(crate) struct Sender {
    queue: mpsc::UnboundedSender<Push>,
    /// The bound is on bytes and not on the queue's length, because messages differ so much in size.
    queued_bytes: Arc<AtomicUsize>,
    disconnect: CancellationToken,
}

impl Sender {
    /// Queues a message, or disconnects a subscriber that is too far behind.
    pub(crate) fn send(&self, push: Push) {
        let bytes = push.bytes();
        let before = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        // A message that exceeds the bound alone is delivered if no other is queued.
        if before > 0 && before + bytes > QUEUED_BYTES_MAX {
            self.disconnect();
        } else {
            // Fails if the connection has ended.
            let _ = self.queue.send(push);
        }
    }

    /// Makes the connection end.
    pub(crate) fn disconnect(&self) {
        self.disconnect.cancel();
    }

    /// Returns when the connection has to end.
    pub(crate) fn disconnected(&self) -> impl Future<Output = ()> + use<> {
        self.disconnect.clone().cancelled_owned()
    }
}

/// The connection's end of its outbox.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) sender: Sender,
    queue: mpsc::UnboundedReceiver<Push>,
}

impl Receiver {
    pub(crate) fn new() -> Receiver {
        let (sender, queue) = mpsc::unbounded_channel();
        let sender =
            Sender { queue: sender, queued_bytes: Arc::default(), disconnect: CancellationToken::new() };
        Receiver { sender, queue }
    }

    /// The next message, if one is queued.
    pub(crate) fn try_next(&mut self) -> Option<Push> {
        let push = self.queue.try_recv().ok()?;
        Some(self.taken(push))
    }

    /// The next message, once there is one.
    pub(crate) async fn next(&mut self) -> Push {
        match self.queue.recv().await {
            Some(push) => self.taken(push),
            None => std::future::pending().await,
        }
    }

    fn taken(&self, push: Push) -> Push {
        self.sender.queued_bytes.fetch_sub(push.bytes(), Ordering::Relaxed);
        push
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscriber_that_falls_behind_is_disconnected() {
        let mut receiver = Receiver::new();
        let text = Bytes::from(vec![0; QUEUED_BYTES_MAX / 4]);
        let send = || receiver.sender.send(Push::new(Bytes::from_static(b"c"), text.clone()));
        (0..3).for_each(|_| send());
        assert!(!receiver.sender.disconnect.is_cancelled());
        send();
        assert!(receiver.sender.disconnect.is_cancelled());
        assert!(receiver.try_next().is_some());
    }
}
