//! Those who wait for jobs, a stream for each front. Nobody waits for them: whoever does not take what they are told is cut off.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flume::{Receiver, Sender, TrySendError, WeakSender};
use geartrain_core::{Delivery, Refusal, ResultStream, ResultStreamEnd};

use crate::host::{Message, Posted};
use crate::seat::{Tally, UnderWay};

/// How many deliveries a follower may be behind.
const BEHIND_MAX: usize = 10_000;
/// How many bytes of chunks, of words about progress and of results it may be behind, unless one alone has more.
const BEHIND_BYTES_MAX: u64 = 256 << 20;
/// With fewer followers than this it is not worth looking for those who have gone away.
const LOOK_AT_LEAST: usize = 64;

/// Everyone who follows, by front: kept by whoever tells them.
#[derive(Default)]
pub(crate) struct Followers {
    by_front: BTreeMap<u64, Follower>,
    look_at: usize,
}

/// The end of a stream that is told.
pub(crate) struct Follower {
    front: u64,
    sender: Sender<Delivery>,
    shared: Arc<Shared>,
}

/// The end of a stream that hears. When it is dropped, those who wait through it leave.
pub(crate) struct Stream {
    front: u64,
    receiver: Receiver<Delivery>,
    shared: Arc<Shared>,
    left: Arc<Left>,
}

/// What both ends of a stream, and the engine's thread, know of it.
#[derive(Default)]
struct Shared {
    lagged: AtomicBool,
    dropped: AtomicBool,
    /// How many bytes it is behind.
    bytes: AtomicU64,
}

impl Followers {
    pub(crate) fn add(&mut self, follower: Follower) {
        // Those who have gone away are looked for whenever there are twice as many as there were after the last look.
        if self.by_front.len() >= self.look_at.max(LOOK_AT_LEAST) {
            self.by_front.retain(|_, follower| !follower.sender.is_disconnected());
            self.look_at = 2 * self.by_front.len();
        }
        self.by_front.insert(follower.front, follower);
    }

    /// Tells each what is for it.
    pub(crate) fn tell(&mut self, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            let front = delivery.waiter.stream_id;
            if let Some(follower) = self.by_front.get(&front)
                && !follower.tell(delivery)
            {
                self.by_front.remove(&front);
            }
        }
    }

    /// Ends all streams, once what was told is taken.
    pub(crate) fn close(&mut self) {
        self.by_front.clear();
    }
}

impl Follower {
    /// Says whether it keeps up.
    fn tell(&self, delivery: Delivery) -> bool {
        let bytes = delivery.byte_len() as u64;
        let behind = self.shared.bytes.fetch_add(bytes, Ordering::AcqRel);
        let is_too_much = behind > 0 && behind + bytes > BEHIND_BYTES_MAX;
        let keeps_up = !is_too_much && self.sender.try_send(delivery).is_ok();
        if !keeps_up {
            self.shared.lagged.store(true, Ordering::Release);
        }
        keeps_up
    }
}

impl ResultStream for Stream {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Delivery, ResultStreamEnd>> + Send + '_>> {
        Box::pin(async {
            let delivery = self.receiver.recv_async().await.map_err(|_| {
                match self.shared.lagged.load(Ordering::Acquire) {
                    true => ResultStreamEnd::Lagged,
                    false => ResultStreamEnd::Closed,
                }
            })?;
            self.shared.bytes.fetch_sub(delivery.byte_len() as u64, Ordering::AcqRel);
            Ok(delivery)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.dropped.store(true, Ordering::Release);
        self.left.add(self.front, &self.shared);
        // The other end is only looked at now and then, and what was told would stay until then.
        while self.receiver.drain().count() > 0 {}
    }
}

/// Who follows, as far as the engine's thread knows.
pub(crate) struct Fronts {
    known: BTreeMap<u64, Arc<Shared>>,
    left: Arc<Left>,
}

/// The way to say that a stream was dropped, so that its waiters leave.
struct Left {
    inbox: WeakSender<Posted>,
    tally: Tally,
    /// Those for which there was no room in the inbox.
    streams: Mutex<Vec<Dropped>>,
    any: AtomicBool,
}

/// A stream that was dropped.
pub(crate) struct Dropped {
    front: u64,
    shared: Arc<Shared>,
    _under_way: UnderWay,
}

impl Left {
    /// In the inbox it is in order: behind what was asked for before, and before all that comes later. Nobody who drops something can wait for room there, so
    /// without any it goes another way, and what comes later may be done before it.
    fn add(&self, front: u64, shared: &Arc<Shared>) {
        // If the engine is gone, everyone has left.
        let Some(inbox) = self.inbox.upgrade() else { return };
        let _under_way = UnderWay::new(&self.tally.under_way);
        let dropped = Some(Dropped { front, shared: shared.clone(), _under_way });
        let _waits = Some(UnderWay::new(&self.tally.waiting));
        let posted = Posted { message: Message::Left { dropped }, _waits };
        if let Err(TrySendError::Full(Posted { message: Message::Left { dropped }, .. })) =
            inbox.try_send(posted)
        {
            self.streams().extend(dropped);
            self.any.store(true, Ordering::SeqCst);
            // If the inbox is still full the engine is awake, and looks here before it sleeps.
            let _ = inbox.try_send(Message::Left { dropped: None }.into());
        }
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Dropped>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fronts {
    /// Those who leave say so through an inbox.
    pub(crate) fn new(inbox: WeakSender<Posted>, tally: Tally) -> Fronts {
        let left = Left { inbox, tally, streams: Mutex::default(), any: AtomicBool::new(false) };
        Fronts { known: BTreeMap::new(), left: Arc::new(left) }
    }

    /// Both ends of a stream, unless somebody has it. Also says whether somebody had it and those who waited through it must leave first.
    pub(crate) fn follow(&mut self, front: u64) -> Result<(Follower, Stream, bool), Refusal> {
        let known = self.known.get(&front);
        if known.is_some_and(|shared| !shared.dropped.load(Ordering::Acquire)) {
            return Err(Refusal::BadArgument {
                what: "front".into(),
                why: format!("{front} is followed already: choose another number"),
            });
        }
        let must_leave = known.is_some();
        let (sender, receiver) = flume::bounded(BEHIND_MAX);
        let shared = Arc::<Shared>::default();
        self.known.insert(front, shared.clone());
        let follower = Follower { front, sender, shared: shared.clone() };
        Ok((follower, Stream { front, receiver, shared, left: self.left.clone() }, must_leave))
    }

    /// Whether streams were dropped for which there was no room in the inbox.
    pub(crate) fn has_left(&self) -> bool {
        self.left.any.load(Ordering::SeqCst)
    }

    /// Those streams, once.
    pub(crate) fn take_left(&mut self) -> Vec<Dropped> {
        if !self.has_left() {
            return Vec::new();
        }
        self.left.any.store(false, Ordering::SeqCst);
        std::mem::take(&mut *self.left.streams())
    }

    /// Lets go of a stream that was dropped. Answers its front, unless another stream has it by now.
    pub(crate) fn let_go(&mut self, dropped: &Dropped) -> Option<u64> {
        match self.known.get(&dropped.front) {
            Some(known) if !Arc::ptr_eq(known, &dropped.shared) => return None,
            // Its stream had ended, but somebody may have begun to wait through it before they heard.
            _ => self.known.remove(&dropped.front),
        };
        Some(dropped.front)
    }

    /// All streams have ended.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use geartrain_core::{ChunkKind, Jid, Payload, Portion, Progressed, ResultWaiter, StreamItem};
    use pollster::block_on;

    use super::*;

    fn chunk(front: u64, bytes: usize) -> Delivery {
        let waiter = ResultWaiter { stream_id: front, connection: 0, number: 0 };
        let told = StreamItem::Chunk(ChunkKind::Data, Payload::from(vec![b'x'; bytes]));
        Delivery { waiter, jid: Jid::new("j1").expect("a good name"), item: told }
    }

    fn progress(front: u64, bytes: usize) -> Delivery {
        let progress = Progressed { portion: Portion::unchecked(1, 2), seconds_left: None };
        let said = Some(Payload::from(vec![b'x'; bytes]));
        Delivery { item: StreamItem::Progress { progress, text: said }, ..chunk(front, 0) }
    }

    fn fronts() -> (Fronts, Receiver<Posted>) {
        let (sender, inbox) = flume::bounded(1);
        let fronts = Fronts::new(sender.downgrade(), Tally::default());
        sender.try_send(Message::Moved.into()).expect("there is room for one");
        std::mem::forget(sender);
        (fronts, inbox)
    }

    #[test]
    fn each_front_hears_what_is_for_it_and_a_closed_one_hears_what_was_told_before() {
        let (mut fronts, _inbox) = fronts();
        let mut followers = Followers::default();
        let (one, mut first, _) = fronts.follow(1).expect("nobody has it");
        let (two, mut second, _) = fronts.follow(2).expect("nobody has it");
        followers.add(one);
        followers.add(two);
        followers.tell(vec![chunk(1, 1), chunk(2, 2), chunk(3, 3), chunk(1, 4)]);
        followers.close();
        assert_eq!(block_on(first.next()), Ok(chunk(1, 1)));
        assert_eq!(block_on(first.next()), Ok(chunk(1, 4)));
        assert_eq!(block_on(first.next()), Err(ResultStreamEnd::Closed));
        assert_eq!(block_on(second.next()), Ok(chunk(2, 2)));
        assert_eq!(block_on(second.next()), Err(ResultStreamEnd::Closed));
    }

    #[test]
    fn whoever_is_too_far_behind_in_number_or_in_bytes_is_cut_off() {
        type Tell = fn(u64, usize) -> Delivery;
        for (tell, bytes, fit) in [
            (chunk as Tell, 0, BEHIND_MAX),
            (chunk, 100 << 20, 2),
            (chunk, 300 << 20, 1),
            (progress, 100 << 20, 2),
        ] {
            let told = tell(1, bytes);
            let (mut fronts, _inbox) = fronts();
            let mut followers = Followers::default();
            let (slow, mut stream, _) = fronts.follow(1).expect("nobody has it");
            followers.add(slow);
            (0..fit + 1).for_each(|_| followers.tell(vec![told.clone()]));
            (0..fit).for_each(|_| assert_eq!(block_on(stream.next()), Ok(told.clone())));
            assert_eq!(block_on(stream.next()), Err(ResultStreamEnd::Lagged));
        }
    }

    #[test]
    fn whoever_takes_what_they_are_told_is_never_cut_off() {
        let (mut fronts, _inbox) = fronts();
        let mut followers = Followers::default();
        let (quick, mut stream, _) = fronts.follow(1).expect("nobody has it");
        followers.add(quick);
        let told = chunk(1, 100 << 20);
        for _ in 0..20 {
            followers.tell(vec![told.clone(), told.clone()]);
            assert_eq!(block_on(stream.next()), Ok(told.clone()));
            assert_eq!(block_on(stream.next()), Ok(told.clone()));
        }
    }

    #[test]
    fn a_stream_that_is_dropped_is_noted_even_if_the_inbox_is_full_and_its_front_is_free_again() {
        let (mut fronts, inbox) = fronts();
        let (_follower, stream, must_leave) = fronts.follow(1).expect("nobody has it");
        assert!(!must_leave);
        assert!(fronts.follow(1).is_err());
        assert!(inbox.is_full() && !fronts.has_left());
        drop(stream);
        assert!(fronts.has_left());
        let (_follower, _stream, must_leave) = fronts.follow(1).expect("nobody has it any more");
        assert!(must_leave);
        // Those who wait through the second one do not leave with the first.
        let left = fronts.take_left();
        assert_eq!(left.iter().filter_map(|dropped| fronts.let_go(dropped)).count(), 0);
        assert_eq!(left.len(), 1);
    }

    #[test]
    fn those_who_have_gone_away_are_let_go_of() {
        let (mut fronts, _inbox) = fronts();
        let mut followers = Followers::default();
        for front in 0..1_000 {
            let (follower, stream, _) = fronts.follow(front).expect("nobody has it");
            followers.add(follower);
            drop(stream);
            fronts.take_left().iter().for_each(|dropped| assert!(fronts.let_go(dropped).is_some()));
        }
        assert!(followers.by_front.len() <= LOOK_AT_LEAST && fronts.known.is_empty());
    }
}
