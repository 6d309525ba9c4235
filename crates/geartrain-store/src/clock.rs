//! The time of day.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use geartrain_core::{Clock, Seconds, Timestamp};

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

/// What is added to the machine's clock, in seconds.
static OFFSET: AtomicI64 = AtomicI64::new(0);

impl SystemClock {
    /// Makes every clock of this process run `seconds` ahead of the machine's: a clock jump for `geartrain drill`.
    #[doc(hidden)]
    pub fn set_offset(seconds: i64) {
        OFFSET.store(seconds, Ordering::Relaxed);
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_secs_f64(),
            // A machine that believes it is before 1970 still has a time.
            Err(before) => -before.duration().as_secs_f64(),
        };
        Timestamp::new(since + OFFSET.load(Ordering::Relaxed) as f64).unwrap_or_default()
    }

    fn elapsed(&self) -> Seconds {
        static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
        BEGINNING.elapsed().into()
    }
}
