//! Result streams: a relay task per open stream moves the backend's deliveries into the subscriber's outbox.
//!
//! The deliveries of a command are in the outboxes before its reply leaves. To wait for every open stream
//! would cost each reply O(open streams), so the streams that may hold deliveries are tracked: the backend
//! wakes a stream when it delivers, before it answers the command, and the waker marks the stream as
//! undelivered. Its relay clears the mark once the stream is drained. A reply waits for the marked streams
//! only, usually none.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use bytes::Bytes;
use geartrain_core::{Backend, BackendError, ResultStream, ResultStreamEnd, StreamMessage, wire};
use geartrain_front::encode_off_thread;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::outbox::{self, Push};

/// The open result streams of all connections.
#[derive(Default)]
pub(crate) struct ResultStreams {
    open: Mutex<Open>,
    marks: Arc<Marks>,
}

#[derive(Default)]
struct Open {
    by_channel: HashMap<Bytes, Subscriber>,
    relays: JoinSet<Option<()>>,
    last_relay: u64,
}

struct Subscriber {
    connection: u64,
    /// Ends the relay, which closes the stream.
    _relay: DropGuard,
}

impl ResultStreams {
    /// Opens a stream and relays it to a connection. The last connection that opens a stream has it, as in
    /// every backend.
    pub(crate) async fn open(
        &self,
        backend: &dyn Backend,
        stream_id: u64,
        channel: &Bytes,
        connection: u64,
        outbox: &outbox::Sender,
    ) -> Result<(), BackendError> {
        let stream = backend.open_result_stream(stream_id).await?;
        let mut open = self.open.lock();
        open.last_relay += 1;
        let (relay_id, stop) = (open.last_relay, CancellationToken::new());
        let relay = Relay::new(relay_id, stream, channel.clone(), outbox.clone(), self.marks.clone());
        while open.relays.try_join_next().is_some() {}
        open.relays.spawn(stop.clone().run_until_cancelled_owned(relay.run()));
        open.by_channel.insert(channel.clone(), Subscriber { connection, _relay: stop.drop_guard() });
        Ok(())
    }

    /// Closes the stream of a channel, if this connection has it.
    pub(crate) fn close(&self, connection: u64, channel: &Bytes) {
        let mut open = self.open.lock();
        if open.by_channel.get(channel).is_some_and(|subscriber| subscriber.connection == connection) {
            open.by_channel.remove(channel);
        }
    }

    /// Closes all streams, and waits for their relays to end.
    pub(crate) async fn shut_down(&self) {
        let Open { by_channel, mut relays, .. } = std::mem::take(&mut *self.open.lock());
        drop(by_channel);
        while relays.join_next().await.is_some() {}
    }

    /// Returns when all deliveries that the backend has made so far are in the outboxes.
    pub(crate) async fn flush(&self) {
        for drained in self.marks.wait_for_marked() {
            // Ends when the sender is dropped: the stream is drained or closed.
            let _ = drained.await;
        }
    }
}

/// Which streams may hold deliveries that are in no outbox yet.
#[derive(Default)]
struct Marks(Mutex<MarksState>);

#[derive(Default)]
struct MarksState {
    relays: HashMap<u64, RelayState>,
    undelivered: HashSet<u64>,
}

#[derive(Default)]
struct RelayState {
    /// The relay's own waker, behind the one that marks.
    task: Option<Waker>,
    /// The stream woke its relay since the last poll began.
    woken: bool,
    /// Replies that wait until the stream is drained; dropped then.
    replies: Vec<oneshot::Sender<()>>,
}

impl Marks {
    /// A stream is undelivered until its first poll: what arrives before that wakes nothing.
    fn register(&self, relay_id: u64) {
        let mut state = self.0.lock();
        state.relays.insert(relay_id, RelayState::default());
        state.undelivered.insert(relay_id);
    }

    fn unregister(&self, relay_id: u64) {
        let mut state = self.0.lock();
        state.undelivered.remove(&relay_id);
        let relay = state.relays.remove(&relay_id);
        drop(state);
        drop(relay);
    }

    /// Called by the backend when it delivers. A late call, after the relay has ended, changes nothing.
    fn mark(&self, relay_id: u64) {
        let mut state = self.0.lock();
        let Some(relay) = state.relays.get_mut(&relay_id) else { return };
        relay.woken = true;
        let task = relay.task.clone();
        state.undelivered.insert(relay_id);
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }

    fn begin_poll(&self, relay_id: u64, task: &Waker) {
        if let Some(relay) = self.0.lock().relays.get_mut(&relay_id) {
            relay.woken = false;
            if !relay.task.as_ref().is_some_and(|known| known.will_wake(task)) {
                relay.task = Some(task.clone());
            }
        }
    }

    /// Clears the mark of a stream whose poll found nothing. Not if it woke its relay meanwhile: then there
    /// may be something after all, and the relay polls again.
    fn found_nothing(&self, relay_id: u64) {
        let mut state = self.0.lock();
        let Some(relay) = state.relays.get_mut(&relay_id) else { return };
        if relay.woken {
            return;
        }
        let replies = std::mem::take(&mut relay.replies);
        state.undelivered.remove(&relay_id);
        drop(state);
        drop(replies);
    }

    fn wait_for_marked(&self) -> Vec<oneshot::Receiver<()>> {
        let state = &mut *self.0.lock();
        let mut waits = Vec::new();
        for relay_id in &state.undelivered {
            if let Some(relay) = state.relays.get_mut(relay_id) {
                let (reply, drained) = oneshot::channel();
                relay.replies.push(reply);
                waits.push(drained);
            }
        }
        waits
    }
}

/// Wakes a relay, and marks its stream before.
struct MarkingWaker {
    relay_id: u64,
    marks: Arc<Marks>,
}

impl Wake for MarkingWaker {
    fn wake(self: Arc<Self>) {
        self.marks.mark(self.relay_id);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.marks.mark(self.relay_id);
    }
}

/// One stream on its way to one connection.
struct Relay {
    relay_id: u64,
    stream: Box<dyn ResultStream>,
    channel: Bytes,
    outbox: outbox::Sender,
    marks: Arc<Marks>,
    waker: Waker,
}

impl Relay {
    fn new(
        relay_id: u64,
        stream: Box<dyn ResultStream>,
        channel: Bytes,
        outbox: outbox::Sender,
        marks: Arc<Marks>,
    ) -> Relay {
        marks.register(relay_id);
        let waker = Waker::from(Arc::new(MarkingWaker { relay_id, marks: marks.clone() }));
        Relay { relay_id, stream, channel, outbox, marks, waker }
    }

    async fn run(mut self) {
        loop {
            let delivery = match self.next().await {
                Ok(delivery) => delivery,
                Err(end) => {
                    // Only a new connection can begin anew.
                    tracing::warn!("a result stream has ended: {end}");
                    break;
                }
            };
            let bytes = delivery.byte_len();
            match encode_off_thread(bytes, move || wire::encode(&delivery)).await {
                Some(encoded) => self.outbox.send(Push::new(self.channel.clone(), encoded.into())),
                None => break,
            }
        }
        self.outbox.disconnect();
    }

    async fn next(&mut self) -> Result<StreamMessage, ResultStreamEnd> {
        // One future until it is ready: a stream forgets its waker with the future that registered it.
        let mut next = self.stream.next();
        let (relay_id, marks, waker) = (self.relay_id, &self.marks, &self.waker);
        poll_fn(move |context| {
            marks.begin_poll(relay_id, context.waker());
            let polled = next.as_mut().poll(&mut Context::from_waker(waker));
            if polled.is_pending() {
                marks.found_nothing(relay_id);
            }
            polled
        })
        .await
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.marks.unregister(self.relay_id);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]
mod tests {
    use std::pin::Pin;
    use std::task::Poll;

    use futures_util::FutureExt;
    use geartrain_core::{Answer, Call, Pending, Pop, PopReply, Seconds, Subscription};

    use super::*;

    /// A backend whose result streams always announce a delivery and never have one.
    struct NeverDrained;

    impl ResultStream for NeverDrained {
        fn next(
            &mut self,
        ) -> Pin<Box<dyn Future<Output = Result<StreamMessage, ResultStreamEnd>> + Send + '_>> {
            Box::pin(poll_fn(|context| {
                context.waker().wake_by_ref();
                Poll::Pending
            }))
        }
    }

    impl Backend for NeverDrained {
        fn execute(&self, _: Vec<Call>) -> Pending<'_, Vec<Answer>> {
            unreachable!("nothing is executed")
        }

        fn pop_or_wait(&self, _: Pop, _: Seconds) -> Pending<'_, PopReply> {
            unreachable!("nothing is popped")
        }

        fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
            unreachable!("events are not subscribed to")
        }

        fn open_result_stream(&self, _: u64) -> Pending<'_, Box<dyn ResultStream>> {
            Box::pin(async { Ok(Box::new(NeverDrained) as Box<dyn ResultStream>) })
        }
    }

    #[tokio::test]
    async fn closing_a_stream_releases_the_replies_that_wait_for_it() {
        let (streams, outbox) = (ResultStreams::default(), outbox::Receiver::new());
        assert!(streams.flush().now_or_never().is_some(), "nothing is open");
        let channel = Bytes::from_static(b"gt:front:1");
        streams.open(&NeverDrained, 1, &channel, 1, &outbox.sender).await.unwrap();
        let mut reply = Box::pin(streams.flush());
        for _ in 0..10 {
            assert!((&mut reply).now_or_never().is_none(), "the stream is not drained");
            tokio::task::yield_now().await;
        }
        streams.close(2, &channel);
        assert!((&mut reply).now_or_never().is_none(), "another connection does not close it");
        streams.close(1, &channel);
        reply.await;
        streams.shut_down().await;
        assert!(streams.flush().now_or_never().is_some());
    }
}
