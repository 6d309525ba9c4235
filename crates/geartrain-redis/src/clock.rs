//! The clock that peers of one Redis share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use geartrain_core::{Clock, Seconds, Timestamp};

/// This machine's clock, put right by how far it was from the Redis's when that was last asked.
///
/// Locks and due times are compared with the moments that callers bring, so callers on machines whose clocks differ would see each other's locks expire early or late.
pub(crate) struct SharedClock {
    begun: Instant,
    /// Seconds to add, as the bits of a double.
    offset: AtomicU64,
}

impl SharedClock {
    pub(crate) fn new() -> SharedClock {
        SharedClock { begun: Instant::now(), offset: AtomicU64::new(0f64.to_bits()) }
    }

    /// What this machine's own clock says.
    pub(crate) fn own() -> f64 {
        // A clock before 1970 is wrong by far more than this.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
    }

    /// The other clock was found to be ahead by so many seconds.
    pub(crate) fn follow(&self, ahead: f64) {
        self.offset.store(ahead.to_bits(), Ordering::Relaxed);
    }
}

impl Clock for SharedClock {
    fn now(&self) -> Timestamp {
        let now = SharedClock::own() + f64::from_bits(self.offset.load(Ordering::Relaxed));
        Timestamp::new(now).unwrap_or_default()
    }

    fn elapsed(&self) -> Seconds {
        self.begun.elapsed().into()
    }
}
