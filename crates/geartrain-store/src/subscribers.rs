//! Event subscribers. A slow subscriber is bounded: one that lags by 262,144 events is dropped, and told
//! which event it missed first. The engine never blocks on a subscriber.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flume::{Receiver, Sender, WeakSender};
use geartrain_core::{PositionedEvent, Refusal, Subscription, SubscriptionEnd, TimedEvent};

/// Events a slow subscriber may lag behind: more than any one command causes.
const LAG_EVENTS_MAX: usize = 1 << 18;

/// The value of `missed` while the subscriber keeps up.
const NOT_LAGGED: u64 = u64::MAX;

/// All subscribers, owned by the committer.
#[derive(Default)]
pub(crate) struct Subscribers {
    all: Vec<Subscriber>,
    /// Position of the last published event, or of the last one before the newest subscription.
    last_position: u64,
}

/// The sending end of a subscription.
pub(crate) struct Subscriber {
    /// Position of the last event before the subscription.
    after: u64,
    sender: Sender<PositionedEvent>,
    missed: Arc<AtomicU64>,
}

/// The receiving end of a subscription.
pub(crate) struct EventReceiver {
    /// Events from before the subscription, received first.
    backlog: VecDeque<PositionedEvent>,
    /// The newest event when the subscription began.
    position: u64,
    receiver: Receiver<PositionedEvent>,
    missed: Arc<AtomicU64>,
}

/// Both ends of a subscription that begins with a backlog and continues after a position.
pub(crate) fn subscription(backlog: Vec<PositionedEvent>, after: u64) -> (Subscriber, EventReceiver) {
    let (sender, receiver) = flume::bounded(LAG_EVENTS_MAX);
    let missed = Arc::new(AtomicU64::new(NOT_LAGGED));
    (
        Subscriber { after, sender, missed: missed.clone() },
        EventReceiver { backlog: backlog.into(), position: after, receiver, missed },
    )
}

impl Subscribers {
    pub(crate) fn add(&mut self, subscriber: Subscriber) {
        self.last_position = self.last_position.max(subscriber.after);
        self.all.push(subscriber);
    }

    /// Sends consecutive events, of which the last has position `last`, to all subscribers.
    pub(crate) fn publish(&mut self, events: Vec<TimedEvent>, last: u64) {
        self.last_position = last;
        if self.all.is_empty() {
            return;
        }
        let before = last.wrapping_sub(events.len() as u64);
        for (TimedEvent { at, event }, number) in events.into_iter().zip(1..) {
            let position = before.wrapping_add(number);
            self.send(&PositionedEvent { position, event: Arc::new(event), at: Some(at) });
        }
    }

    /// After a recovery, sends the events that `events_after` finds behind the last published one. If they
    /// are not in the event log any more, all subscriptions end as lagged.
    pub(crate) fn catch_up(
        &mut self,
        events_after: impl FnOnce(u64) -> Result<Vec<PositionedEvent>, Refusal>,
    ) {
        if self.all.is_empty() {
            return;
        }
        match events_after(self.last_position) {
            Ok(missed) => {
                for published in missed {
                    self.last_position = published.position;
                    self.send(&published);
                }
            }
            Err(_) => {
                self.all.drain(..).for_each(|subscriber| subscriber.mark_lagged(self.last_position + 1));
            }
        }
    }

    fn send(&mut self, published: &PositionedEvent) {
        self.all.retain(|subscriber| {
            let keeps_up = subscriber.sender.try_send(published.clone()).is_ok();
            if !keeps_up {
                subscriber.mark_lagged(published.position);
            }
            keeps_up
        });
    }
}

impl Subscriber {
    /// Records the position from which on this subscriber receives nothing.
    fn mark_lagged(&self, missed: u64) {
        self.missed.store(missed, Ordering::Release);
    }
}

impl Subscription for EventReceiver {
    fn next(
        &mut self,
    ) -> Pin<Box<dyn Future<Output = Result<PositionedEvent, SubscriptionEnd>> + Send + '_>> {
        Box::pin(async {
            if let Some(published) = self.backlog.pop_front() {
                return Ok(published);
            }
            self.receiver.recv_async().await.map_err(|_| match self.missed.load(Ordering::Acquire) {
                NOT_LAGGED => SubscriptionEnd::Closed,
                missed => SubscriptionEnd::Lagged { missed },
            })
        })
    }

    fn position(&self) -> u64 {
        self.position
    }
}

/// The subscribers as far as the engine's thread knows.
#[derive(Default)]
pub(crate) struct LiveSubscribers {
    senders: Vec<WeakSender<PositionedEvent>>,
}

impl LiveSubscribers {
    pub(crate) fn add(&mut self, subscriber: &Subscriber) {
        // Removes the ended ones, so that they do not add up.
        self.any();
        self.senders.push(subscriber.sender.downgrade());
    }

    pub(crate) fn any(&mut self) -> bool {
        self.senders.retain(|sender| sender.upgrade().is_some_and(|sender| !sender.is_disconnected()));
        !self.senders.is_empty()
    }
}
