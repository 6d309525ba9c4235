//! The event barrier: waits until the subscriptions of this process have received what was published.
//!
//! Replies and events arrive over different connections, so an event may come after the reply to the call
//! that published it. The answer to a PING over the subscriber's connection comes after every message that
//! the Redis published before the PING. One PING covers all callers that waited when it was sent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// How long a caller waits at most. After that the subscriber's connection is overdue, and no caller waits
/// until it answers again.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct EventBarrier {
    /// How many barriers have begun.
    begun: AtomicU64,
    /// The number of the last barrier that is passed.
    passed: watch::Sender<u64>,
    /// The subscriber task was asked for a barrier that has not begun yet.
    requested: AtomicBool,
    overdue: AtomicBool,
}

impl EventBarrier {
    pub(crate) fn new() -> EventBarrier {
        EventBarrier {
            begun: AtomicU64::new(0),
            passed: watch::Sender::new(0),
            requested: AtomicBool::new(false),
            overdue: AtomicBool::new(false),
        }
    }

    /// The number of the next barrier to begin. `ask` is called unless that is requested already.
    pub(crate) fn request(&self, ask: impl FnOnce()) -> u64 {
        // Before `requested` is read: the subscriber task clears it, and then begins a barrier.
        let next = self.begun.load(Ordering::SeqCst) + 1;
        if !self.requested.swap(true, Ordering::SeqCst) {
            ask();
        }
        next
    }

    /// Waits for a barrier.
    pub(crate) async fn wait(&self, number: u64) {
        // Fails if the sender is gone, which is here.
        let _ = self.passed.subscribe().wait_for(|passed| *passed >= number).await;
    }

    pub(crate) fn is_overdue(&self) -> bool {
        self.overdue.load(Ordering::SeqCst)
    }

    pub(crate) fn set_overdue(&self) {
        self.overdue.store(true, Ordering::SeqCst);
    }

    /// Begins a barrier: what is published until now is covered by it.
    pub(crate) fn begin(&self) -> u64 {
        self.requested.store(false, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Ends the wait for a barrier and for all before it.
    pub(crate) fn pass(&self, number: u64) {
        self.overdue.store(false, Ordering::SeqCst);
        self.passed.send_replace(number);
    }
}
