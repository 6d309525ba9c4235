//! The time of day.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use geartrain_core::{Clock, Seconds, Timestamp};

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_secs_f64(),
            // A machine that believes it is before 1970 still has a time.
            Err(before) => -before.duration().as_secs_f64(),
        };
        Timestamp::new(since).unwrap_or_default()
    }

    fn elapsed(&self) -> Seconds {
        static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
        BEGINNING.elapsed().into()
    }
}
