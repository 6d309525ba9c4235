//! Those who listen to what happens. Nobody waits for them: whoever does not keep up is told what they missed, and dropped.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flume::{Receiver, Sender, WeakSender};
use geartrain_core::{Event, Published, Refusal, Subscription, SubscriptionEnd};

/// How many events a subscriber may be behind: more than any one command brings about.
const BEHIND_MAX: usize = 1 << 18;

/// Not lagged.
const KEEPS_UP: u64 = u64::MAX;

/// Everyone who listens: kept by whoever tells them.
#[derive(Default)]
pub(crate) struct Subscribers {
    all: Vec<Subscriber>,
    /// The position of the last event that they were told, or that came before they listened.
    told: u64,
}

/// The end of a subscription that is told.
pub(crate) struct Subscriber {
    /// The position of the last event before it listened.
    after: u64,
    sender: Sender<Published>,
    missed: Arc<AtomicU64>,
}

/// The end of a subscription that hears.
pub(crate) struct EventReceiver {
    /// What happened before, and is heard first.
    before: VecDeque<Published>,
    /// The newest event when the subscription began.
    position: u64,
    receiver: Receiver<Published>,
    missed: Arc<AtomicU64>,
}

/// Both ends of a subscription that begins with what happened before.
pub(crate) fn subscription(before: Vec<Published>, after: u64) -> (Subscriber, EventReceiver) {
    let (sender, receiver) = flume::bounded(BEHIND_MAX);
    let missed = Arc::new(AtomicU64::new(KEEPS_UP));
    (
        Subscriber { after, sender, missed: missed.clone() },
        EventReceiver { before: before.into(), position: after, receiver, missed },
    )
}

impl Subscribers {
    pub(crate) fn add(&mut self, subscriber: Subscriber) {
        self.told = self.told.max(subscriber.after);
        self.all.push(subscriber);
    }

    /// Tells everyone what happened. The last of it is at this position, and the others are right before it.
    pub(crate) fn publish(&mut self, events: Vec<Event>, last: u64) {
        self.told = last;
        if self.all.is_empty() {
            return;
        }
        let before = last.wrapping_sub(events.len() as u64);
        for (event, number) in events.into_iter().zip(1..) {
            self.tell(&Published { position: before.wrapping_add(number), event: Arc::new(event) });
        }
    }

    /// Tells everyone what they have missed, as it is found in what was kept; or, if it is not, that they have.
    pub(crate) fn catch_up(&mut self, kept: impl FnOnce(u64) -> Result<Vec<Published>, Refusal>) {
        if self.all.is_empty() {
            return;
        }
        match kept(self.told) {
            Ok(missed) => {
                for published in missed {
                    self.told = published.position;
                    self.tell(&published);
                }
            }
            Err(_) => self.all.drain(..).for_each(|subscriber| subscriber.lags(self.told + 1)),
        }
    }

    fn tell(&mut self, published: &Published) {
        self.all.retain(|subscriber| {
            let keeps_up = subscriber.sender.try_send(published.clone()).is_ok();
            if !keeps_up {
                subscriber.lags(published.position);
            }
            keeps_up
        });
    }
}

impl Subscriber {
    /// It will not hear of what happened from this position on.
    fn lags(&self, missed: u64) {
        self.missed.store(missed, Ordering::Release);
    }
}

impl Subscription for EventReceiver {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Published, SubscriptionEnd>> + Send + '_>> {
        Box::pin(async {
            if let Some(published) = self.before.pop_front() {
                return Ok(published);
            }
            self.receiver.recv_async().await.map_err(|_| match self.missed.load(Ordering::Acquire) {
                KEEPS_UP => SubscriptionEnd::Closed,
                missed => SubscriptionEnd::Lagged { missed },
            })
        })
    }

    fn position(&self) -> u64 {
        self.position
    }
}

/// Whether anybody listens, as far as the engine's thread knows.
#[derive(Default)]
pub(crate) struct Listeners {
    all: Vec<WeakSender<Published>>,
}

impl Listeners {
    pub(crate) fn add(&mut self, subscriber: &Subscriber) {
        // So that those who come and go do not add up.
        self.any();
        self.all.push(subscriber.sender.downgrade());
    }

    pub(crate) fn any(&mut self) -> bool {
        self.all.retain(|listener| listener.upgrade().is_some_and(|sender| !sender.is_disconnected()));
        !self.all.is_empty()
    }
}
