//! The clock that peers of one Redis share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use geartrain_core::{Clock, Seconds, Timestamp};

/// The Redis's clock: what it said when it was last asked, and how long ago that is.
///
/// Locks and due times are compared with the moments that callers bring, so callers on machines whose clocks differ would see each other's locks expire early or late. This machine's own clock is not
/// looked at again, because somebody may set it while we are connected.
pub(crate) struct SharedClock {
    begun: Instant,
    /// What it was there when this clock began, in seconds, as the bits of a double.
    then: AtomicU64,
}

impl SharedClock {
    pub(crate) fn new() -> SharedClock {
        // Until the Redis has been asked, this machine's own. A clock before 1970 is wrong by far more than this.
        let own = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        SharedClock { begun: Instant::now(), then: AtomicU64::new(own.to_bits()) }
    }

    /// The other clock showed this when it was asked so long after this one began.
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
