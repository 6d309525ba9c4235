//! Those who listen to what happens. Nobody waits for them: whoever does not keep up is told what they missed, and dropped.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flume::{Receiver, Sender, WeakSender};
use geartrain_core::{Event, Events, EventsEnd, Published};

/// How many events a subscriber may be behind: more than any one command brings about.
const BEHIND_MAX: usize = 1 << 18;

/// Not lagged.
const KEEPS_UP: u64 = u64::MAX;

/// Everyone who listens: kept by whoever tells them.
#[derive(Default)]
pub(crate) struct Subscribers {
    all: Vec<Subscriber>,
}

/// The end of a subscription that is told.
pub(crate) struct Subscriber {
    sender: Sender<Published>,
    missed: Arc<AtomicU64>,
}

/// The end of a subscription that hears.
pub(crate) struct Subscription {
    /// What happened before, and is heard first.
    before: VecDeque<Published>,
    receiver: Receiver<Published>,
    missed: Arc<AtomicU64>,
}

/// Both ends of a subscription that begins with what happened before.
pub(crate) fn subscription(before: Vec<Published>) -> (Subscriber, Subscription) {
    let (sender, receiver) = flume::bounded(BEHIND_MAX);
    let missed = Arc::new(AtomicU64::new(KEEPS_UP));
    (Subscriber { sender, missed: missed.clone() }, Subscription { before: before.into(), receiver, missed })
}

impl Subscribers {
    pub(crate) fn add(&mut self, subscriber: Subscriber) {
        self.all.push(subscriber);
    }

    /// Tells everyone what happened. The last of it is at this position, and the others are right before it.
    pub(crate) fn publish(&mut self, events: Vec<Event>, last: u64) {
        if self.all.is_empty() {
            return;
        }
        let before = last.wrapping_sub(events.len() as u64);
        for (event, number) in events.into_iter().zip(1..) {
            let published = Published { position: before.wrapping_add(number), event: Arc::new(event) };
            self.all.retain(|subscriber| match subscriber.sender.try_send(published.clone()) {
                Ok(()) => true,
                Err(_) => {
                    subscriber.missed.store(published.position, Ordering::Release);
                    false
                }
            });
        }
    }
}

impl Events for Subscription {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Published, EventsEnd>> + Send + '_>> {
        Box::pin(async {
            if let Some(published) = self.before.pop_front() {
                return Ok(published);
            }
            self.receiver.recv_async().await.map_err(|_| match self.missed.load(Ordering::Acquire) {
                KEEPS_UP => EventsEnd::Closed,
                missed => EventsEnd::Lagged { missed },
            })
        })
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
