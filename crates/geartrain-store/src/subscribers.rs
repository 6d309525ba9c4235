//! Those who listen to what happens. Nobody waits for them: whoever does not keep up is told what they missed, and dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flume::{Receiver, Sender};
use geartrain_core::{Event, Events, EventsEnd, Published};

/// How many events a subscriber may be behind: more than any one command brings about.
const BEHIND_MAX: usize = 1 << 18;

/// Not lagged.
const KEEPS_UP: u64 = u64::MAX;

/// Everyone who listens.
#[derive(Default)]
pub(crate) struct Subscribers {
    all: Vec<Subscriber>,
    next: u64,
}

struct Subscriber {
    sender: Sender<Published>,
    missed: Arc<AtomicU64>,
}

impl Subscribers {
    pub(crate) fn add(&mut self) -> Box<dyn Events> {
        let (sender, receiver) = flume::bounded(BEHIND_MAX);
        let missed = Arc::new(AtomicU64::new(KEEPS_UP));
        self.all.push(Subscriber { sender, missed: missed.clone() });
        Box::new(Subscription { receiver, missed })
    }

    pub(crate) fn publish(&mut self, events: impl Iterator<Item = Event>) {
        for event in events {
            let published = Published { position: self.next, event: Arc::new(event) };
            self.next += 1;
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

struct Subscription {
    receiver: Receiver<Published>,
    missed: Arc<AtomicU64>,
}

impl Events for Subscription {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Published, EventsEnd>> + Send + '_>> {
        Box::pin(async {
            self.receiver.recv_async().await.map_err(|_| match self.missed.load(Ordering::Acquire) {
                KEEPS_UP => EventsEnd::Closed,
                missed => EventsEnd::Lagged { missed },
            })
        })
    }
}
