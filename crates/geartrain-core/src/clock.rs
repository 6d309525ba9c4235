//! Clocks. The engine never reads one: the backend that runs it passes `now` with every command.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::{Seconds, Timestamp};

/// A source of time for the backend that runs an engine. Tests use a simulated one.
pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time. It may jump, also backwards.
    fn now(&self) -> Timestamp;

    /// Monotonic time since an arbitrary start; timeouts are measured by it.
    fn elapsed(&self) -> Seconds;

    /// Registers a callback for clock jumps, so that timers can be computed again.
    /// A clock that never jumps never calls it.
    fn on_jump(&self, _callback: Box<dyn Fn() + Send + Sync>) {}
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

/// Seconds added to the machine's clock.
static OFFSET: AtomicI64 = AtomicI64::new(0);

impl SystemClock {
    /// Sets all clocks of this process `seconds` ahead of the machine's: a clock jump for `geartrain drill`.
    #[doc(hidden)]
    pub fn set_offset(seconds: i64) {
        OFFSET.store(seconds, Ordering::Relaxed);
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_secs_f64(),
            // A machine whose clock is set before 1970 still has a time.
            Err(before) => -before.duration().as_secs_f64(),
        };
        Timestamp::new(since + OFFSET.load(Ordering::Relaxed) as f64).unwrap_or_default()
    }

    fn elapsed(&self) -> Seconds {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed().into()
    }
}
