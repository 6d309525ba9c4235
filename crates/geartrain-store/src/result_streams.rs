//! Result streams, one per client id: chunks, warnings, progress and results for a client that waits for
//! jobs.
//!
//! A client that falls behind its limit is disconnected; the engine never blocks on it. A client that drops
//! its stream stops waiting for its jobs.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flume::{Receiver, Sender, TrySendError, WeakSender};
use geartrain_core::{Refusal, ResultStream, ResultStreamEnd, StreamMessage};
use parking_lot::Mutex;

use crate::engine_loop::{Envelope, Message};
use crate::inline_exec::{InFlight, InFlightGuard};

/// Items a result stream may lag behind.
const LAG_ITEMS_MAX: usize = 10_000;
/// Bytes of chunks, progress texts and results it may lag behind, unless one item alone has more.
const LAG_BYTES_MAX: u64 = 256 << 20;
/// With fewer streams than this it is not worth looking for disconnected ones.
const SWEEP_MIN: usize = 64;

/// The sending ends of all result streams, by stream id; owned by the committer.
#[derive(Default)]
pub(crate) struct ResultStreams {
    by_id: BTreeMap<u64, StreamSender>,
    /// With this many streams, disconnected ones are looked for.
    sweep_at: usize,
}

/// The sending end of a result stream.
pub(crate) struct StreamSender {
    stream_id: u64,
    sender: Sender<StreamMessage>,
    state: Arc<StreamState>,
}

/// The receiving end of a result stream. Dropping it detaches its clients from their jobs.
pub(crate) struct StreamReceiver {
    stream_id: u64,
    receiver: Receiver<StreamMessage>,
    state: Arc<StreamState>,
    drops: Arc<DropQueue>,
}

/// Shared by both ends of a stream and the engine's thread.
#[derive(Default)]
struct StreamState {
    lagged: AtomicBool,
    dropped: AtomicBool,
    /// Bytes sent and not received yet.
    lag_bytes: AtomicU64,
}

impl ResultStreams {
    pub(crate) fn add(&mut self, sender: StreamSender) {
        // Looks for disconnected streams whenever there are twice as many as after the last look.
        if self.by_id.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.by_id.retain(|_, sender| !sender.sender.is_disconnected());
            self.sweep_at = 2 * self.by_id.len();
        }
        self.by_id.insert(sender.stream_id, sender);
    }

    /// Sends each item to its stream, and drops the streams that lag too far behind.
    pub(crate) fn send(&mut self, deliveries: Vec<StreamMessage>) {
        for delivery in deliveries {
            let stream_id = delivery.waiter.stream_id;
            if let Some(sender) = self.by_id.get(&stream_id)
                && !sender.send(delivery)
            {
                self.by_id.remove(&stream_id);
            }
        }
    }

    /// Ends all streams. Items already sent are still received.
    pub(crate) fn close(&mut self) {
        self.by_id.clear();
    }
}

impl StreamSender {
    /// Returns whether the stream keeps up.
    fn send(&self, delivery: StreamMessage) -> bool {
        let bytes = delivery.byte_len() as u64;
        let lag_bytes = self.state.lag_bytes.fetch_add(bytes, Ordering::AcqRel);
        let is_too_far_behind = lag_bytes > 0 && lag_bytes + bytes > LAG_BYTES_MAX;
        let keeps_up = !is_too_far_behind && self.sender.try_send(delivery).is_ok();
        if !keeps_up {
            self.state.lagged.store(true, Ordering::Release);
        }
        keeps_up
    }
}

impl ResultStream for StreamReceiver {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<StreamMessage, ResultStreamEnd>> + Send + '_>> {
        Box::pin(async {
            let delivery = self.receiver.recv_async().await.map_err(|_| {
                match self.state.lagged.load(Ordering::Acquire) {
                    true => ResultStreamEnd::Lagged,
                    false => ResultStreamEnd::Closed,
                }
            })?;
            self.state.lag_bytes.fetch_sub(delivery.byte_len() as u64, Ordering::AcqRel);
            Ok(delivery)
        })
    }
}

impl Drop for StreamReceiver {
    fn drop(&mut self) {
        self.state.dropped.store(true, Ordering::Release);
        self.drops.add(self.stream_id, &self.state);
        // The sending end is swept only now and then, and unread items would stay in memory until then.
        while self.receiver.drain().count() > 0 {}
    }
}

/// The open result streams as far as the engine's thread knows.
pub(crate) struct StreamRegistry {
    open_streams: BTreeMap<u64, Arc<StreamState>>,
    drops: Arc<DropQueue>,
}

/// Reports dropped streams to the engine's thread, so that it detaches their clients.
struct DropQueue {
    inbox: WeakSender<Envelope>,
    in_flight: InFlight,
    /// The dropped streams that did not fit into the inbox.
    overflow: Mutex<Vec<DroppedStream>>,
    has_overflow: AtomicBool,
}

/// A stream whose receiving end was dropped.
pub(crate) struct DroppedStream {
    stream_id: u64,
    state: Arc<StreamState>,
    _unanswered: InFlightGuard,
}

impl DropQueue {
    /// Through the inbox the drop is in order: behind earlier messages and before later ones. A destructor
    /// cannot wait for a full inbox, so the drop then goes to the overflow, and later messages may be
    /// executed before it.
    fn add(&self, stream_id: u64, state: &Arc<StreamState>) {
        // Without an engine there is no client left to detach.
        let Some(inbox) = self.inbox.upgrade() else { return };
        let _unanswered = InFlightGuard::new(&self.in_flight.unanswered);
        let dropped = Some(DroppedStream { stream_id, state: state.clone(), _unanswered });
        let _queued = Some(InFlightGuard::new(&self.in_flight.queued));
        let envelope = Envelope { message: Message::StreamDropped { dropped }, _queued };
        if let Err(TrySendError::Full(Envelope { message: Message::StreamDropped { dropped }, .. })) =
            inbox.try_send(envelope)
        {
            self.overflow.lock().extend(dropped);
            self.has_overflow.store(true, Ordering::SeqCst);
            // If the inbox is still full the engine is awake, and looks at the overflow before it sleeps.
            let _ = inbox.try_send(Message::StreamDropped { dropped: None }.into());
        }
    }
}

impl StreamRegistry {
    /// `inbox` is the engine's.
    pub(crate) fn new(inbox: WeakSender<Envelope>, in_flight: InFlight) -> StreamRegistry {
        let has_overflow = AtomicBool::new(false);
        let drops = DropQueue { inbox, in_flight, overflow: Mutex::default(), has_overflow };
        StreamRegistry { open_streams: BTreeMap::new(), drops: Arc::new(drops) }
    }

    /// Both ends of a new stream, unless the id is in use. Also returns whether an earlier stream of this id
    /// was dropped, so that its clients must be detached first.
    pub(crate) fn open(&mut self, stream_id: u64) -> Result<(StreamSender, StreamReceiver, bool), Refusal> {
        let existing = self.open_streams.get(&stream_id);
        if existing.is_some_and(|state| !state.dropped.load(Ordering::Acquire)) {
            return Err(Refusal::BadArgument {
                what: "front".into(),
                why: format!("{stream_id} is in use by another stream: choose another number"),
            });
        }
        let must_detach = existing.is_some();
        let (sender, receiver) = flume::bounded(LAG_ITEMS_MAX);
        let state = Arc::<StreamState>::default();
        self.open_streams.insert(stream_id, state.clone());
        let sender = StreamSender { stream_id, sender, state: state.clone() };
        let receiver = StreamReceiver { stream_id, receiver, state, drops: self.drops.clone() };
        Ok((sender, receiver, must_detach))
    }

    /// Whether dropped streams are in the overflow.
    pub(crate) fn has_dropped(&self) -> bool {
        self.drops.has_overflow.load(Ordering::SeqCst)
    }

    /// Takes the dropped streams out of the overflow.
    pub(crate) fn take_dropped(&mut self) -> Vec<DroppedStream> {
        if !self.has_dropped() {
            return Vec::new();
        }
        self.drops.has_overflow.store(false, Ordering::SeqCst);
        std::mem::take(&mut *self.drops.overflow.lock())
    }

    /// Removes a dropped stream. Returns its id, unless a newer stream has the same one.
    pub(crate) fn remove(&mut self, dropped: &DroppedStream) -> Option<u64> {
        match self.open_streams.get(&dropped.stream_id) {
            Some(existing) if !Arc::ptr_eq(existing, &dropped.state) => return None,
            // Also if a recovery has ended the stream: a client may have attached before it noticed.
            _ => self.open_streams.remove(&dropped.stream_id),
        };
        Some(dropped.stream_id)
    }

    /// All streams have ended.
    pub(crate) fn clear(&mut self) {
        self.open_streams.clear();
    }
}

#[cfg(test)]
mod tests {
    use geartrain_core::{ChunkKind, Jid, Payload, Portion, Progressed, ResultWaiter, StreamItem};
    use pollster::block_on;

    use super::*;

    fn chunk(stream_id: u64, bytes: usize) -> StreamMessage {
        let waiter = ResultWaiter { stream_id, connection: 0, number: 0 };
        let item = StreamItem::Chunk(ChunkKind::Data, Payload::from(vec![b'x'; bytes]));
        StreamMessage { waiter, jid: Jid::new("j1").expect("a good name"), item }
    }

    fn progress(stream_id: u64, bytes: usize) -> StreamMessage {
        let progress = Progressed { portion: Portion::unchecked(1, 2), seconds_left: None };
        let said = Some(Payload::from(vec![b'x'; bytes]));
        StreamMessage { item: StreamItem::Progress { progress, text: said }, ..chunk(stream_id, 0) }
    }

    fn registry() -> (StreamRegistry, Receiver<Envelope>) {
        let (sender, inbox) = flume::bounded(1);
        let registry = StreamRegistry::new(sender.downgrade(), InFlight::default());
        sender.try_send(Message::Wake.into()).expect("the inbox is empty");
        std::mem::forget(sender);
        (registry, inbox)
    }

    #[test]
    fn each_stream_receives_its_own_items_and_a_closed_one_those_sent_before() {
        let (mut registry, _inbox) = registry();
        let mut streams = ResultStreams::default();
        let (one, mut first, _) = registry.open(1).expect("the id is free");
        let (two, mut second, _) = registry.open(2).expect("the id is free");
        streams.add(one);
        streams.add(two);
        streams.send(vec![chunk(1, 1), chunk(2, 2), chunk(3, 3), chunk(1, 4)]);
        streams.close();
        assert_eq!(block_on(first.next()), Ok(chunk(1, 1)));
        assert_eq!(block_on(first.next()), Ok(chunk(1, 4)));
        assert_eq!(block_on(first.next()), Err(ResultStreamEnd::Closed));
        assert_eq!(block_on(second.next()), Ok(chunk(2, 2)));
        assert_eq!(block_on(second.next()), Err(ResultStreamEnd::Closed));
    }

    #[test]
    fn a_stream_that_lags_too_far_in_items_or_bytes_is_disconnected() {
        type NewItem = fn(u64, usize) -> StreamMessage;
        for (new_item, bytes, fit) in [
            (chunk as NewItem, 0, LAG_ITEMS_MAX),
            (chunk, 100 << 20, 2),
            (chunk, 300 << 20, 1),
            (progress, 100 << 20, 2),
        ] {
            let item = new_item(1, bytes);
            let (mut registry, _inbox) = registry();
            let mut streams = ResultStreams::default();
            let (slow, mut stream, _) = registry.open(1).expect("the id is free");
            streams.add(slow);
            (0..fit + 1).for_each(|_| streams.send(vec![item.clone()]));
            (0..fit).for_each(|_| assert_eq!(block_on(stream.next()), Ok(item.clone())));
            assert_eq!(block_on(stream.next()), Err(ResultStreamEnd::Lagged));
        }
    }

    #[test]
    fn a_stream_that_keeps_up_is_never_disconnected() {
        let (mut registry, _inbox) = registry();
        let mut streams = ResultStreams::default();
        let (fast, mut stream, _) = registry.open(1).expect("the id is free");
        streams.add(fast);
        let item = chunk(1, 100 << 20);
        for _ in 0..20 {
            streams.send(vec![item.clone(), item.clone()]);
            assert_eq!(block_on(stream.next()), Ok(item.clone()));
            assert_eq!(block_on(stream.next()), Ok(item.clone()));
        }
    }

    #[test]
    fn a_dropped_stream_is_noticed_even_if_the_inbox_is_full_and_frees_its_id() {
        let (mut registry, inbox) = registry();
        let (_sender, stream, must_detach) = registry.open(1).expect("the id is free");
        assert!(!must_detach);
        assert!(registry.open(1).is_err());
        assert!(inbox.is_full() && !registry.has_dropped());
        drop(stream);
        assert!(registry.has_dropped());
        let (_sender, _stream, must_detach) = registry.open(1).expect("the first stream is dropped");
        assert!(must_detach);
        // Clients of the second stream are not detached with the first.
        let dropped_streams = registry.take_dropped();
        assert_eq!(dropped_streams.iter().filter_map(|dropped| registry.remove(dropped)).count(), 0);
        assert_eq!(dropped_streams.len(), 1);
    }

    #[test]
    fn dropped_streams_are_forgotten() {
        let (mut registry, _inbox) = registry();
        let mut streams = ResultStreams::default();
        for stream_id in 0..1_000 {
            let (sender, stream, _) = registry.open(stream_id).expect("the id is free");
            streams.add(sender);
            drop(stream);
            registry.take_dropped().iter().for_each(|dropped| assert!(registry.remove(dropped).is_some()));
        }
        assert!(streams.by_id.len() <= SWEEP_MIN && registry.open_streams.is_empty());
    }
}
