//! Clocks. The engine never reads one: the backend that runs it passes `now` with every command.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
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

/// A simulated clock: shows the time it was set to, at first 0, and runs the callbacks at every jump.
///
/// ```
/// use geartrain_core::{Clock, ManualClock, Timestamp};
/// let clock = ManualClock::new();
/// clock.advance(60);
/// assert_eq!(clock.now(), Timestamp::from(60));
/// ```
#[derive(Default)]
pub struct ManualClock {
    reading: Mutex<Reading>,
}

#[derive(Default)]
struct Reading {
    now: Timestamp,
    /// Monotonic time: the sum of all moves forward.
    elapsed: Seconds,
    callbacks: Vec<Arc<dyn Fn() + Send + Sync>>,
}

impl ManualClock {
    /// A clock at time 0.
    pub fn new() -> Arc<ManualClock> {
        Arc::default()
    }

    /// Sets the time, in seconds since the epoch, also backwards.
    ///
    /// # Panics
    ///
    /// If the number is not finite.
    pub fn set(&self, now: impl Into<f64>) {
        let now = Timestamp::new(now.into()).expect("a test's moments are finite");
        self.change(|_| now);
    }

    /// Moves the clock on, by seconds.
    ///
    /// # Panics
    ///
    /// If the number is not finite.
    pub fn advance(&self, by: impl Into<f64>) {
        let by = Seconds::new(by.into()).expect("a test's spans of time are finite");
        self.change(|now| now + by);
    }

    fn change(&self, to: impl FnOnce(Timestamp) -> Timestamp) {
        let callbacks = {
            let mut reading = self.reading();
            let before = reading.now;
            reading.now = to(before);
            reading.elapsed = reading.elapsed + (reading.now - before).max(Seconds::ZERO);
            reading.callbacks.clone()
        };
        // Called without the lock, because callbacks read the clock.
        for callback in callbacks {
            callback();
        }
    }

    fn reading(&self) -> MutexGuard<'_, Reading> {
        // No code that could panic runs with the lock held.
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ManualClock").field(&self.now()).finish()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.reading().now
    }

    fn elapsed(&self) -> Seconds {
        self.reading().elapsed
    }

    fn on_jump(&self, callback: Box<dyn Fn() + Send + Sync>) {
        self.reading().callbacks.push(Arc::from(callback));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_callback_runs_at_every_jump_and_sees_the_new_time() {
        let clock = ManualClock::new();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (witness, log) = (clock.clone(), seen.clone());
        clock.on_jump(Box::new(move || log.lock().unwrap().push(witness.now().get())));
        clock.set(100);
        clock.advance(0.5);
        clock.set(-3);
        assert_eq!(*seen.lock().unwrap(), [100.0, 100.5, -3.0]);
        assert_eq!(clock.elapsed(), Seconds::new(100.5).unwrap());
    }
}
