//! The clock that all clients of one Redis share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use geartrain_core::{Clock, Seconds, Timestamp};

/// The Redis's clock: its last TIME, advanced by this machine's monotonic clock.
///
/// Locks and due times are compared with times that callers send, so callers whose clocks differ would see
/// each other's locks expire early or late. This machine's wall clock is read only once, because it may be
/// set while we are connected.
pub(crate) struct SharedClock {
    begun: Instant,
    /// The Redis's time when this clock started, in seconds, as the bits of a double.
    then: AtomicU64,
}

impl SharedClock {
    pub(crate) fn new() -> SharedClock {
        // This machine's time until the Redis has been asked. Before 1970 it is wrong anyway.
        let own = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        SharedClock { begun: Instant::now(), then: AtomicU64::new(own.to_bits()) }
    }

    /// The Redis showed `shown` at `elapsed` seconds after this clock started.
    pub(crate) fn follow(&self, shown: f64, elapsed: f64) {
        self.then.store((shown - elapsed).to_bits(), Ordering::Relaxed);
    }
}

impl Clock for SharedClock {
    fn now(&self) -> Timestamp {
        let now = f64::from_bits(self.then.load(Ordering::Relaxed)) + self.begun.elapsed().as_secs_f64();
        Timestamp::new(now).unwrap_or_default()
    }

    fn elapsed(&self) -> Seconds {
        self.begun.elapsed().into()
    }
}
