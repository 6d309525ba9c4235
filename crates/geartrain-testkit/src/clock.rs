//! A simulated clock.

use std::sync::{Arc, Mutex, MutexGuard};

use geartrain_core::{Clock, Seconds, Timestamp};

/// A simulated clock: shows the time it was set to, at first 0, and runs the callbacks at every jump.
///
/// ```
/// use geartrain_core::{Clock, Timestamp};
/// use geartrain_testkit::clock::ManualClock;
/// let clock = ManualClock::new();
/// clock.advance(60);
/// assert_eq!(clock.now(), Timestamp::from(60));
/// ```
#[derive(Default)]
pub struct ManualClock {
    face: Mutex<Reading>,
}

#[derive(Default)]
struct Reading {
    now: Timestamp,
    /// Monotonic time: the sum of all moves forward.
    elapsed: Seconds,
    listeners: Vec<Arc<dyn Fn() + Send + Sync>>,
}

impl ManualClock {
    /// A clock at time 0.
    pub fn new() -> Arc<ManualClock> {
        Arc::default()
    }

    /// Sets the time, also backwards.
    pub fn set(&self, now: impl Into<f64>) {
        let now = Timestamp::new(now.into()).expect("a test's moments are finite");
        self.change(|_| now);
    }

    /// Moves the clock on.
    pub fn advance(&self, by: impl Into<f64>) {
        let by = Seconds::new(by.into()).expect("a test's spans of time are finite");
        self.change(|now| now + by);
    }

    fn change(&self, to: impl FnOnce(Timestamp) -> Timestamp) {
        let listeners = {
            let mut face = self.reading();
            let before = std::mem::replace(&mut face.now, Timestamp::ZERO);
            face.now = to(before);
            face.elapsed = face.elapsed + (face.now - before).max(Seconds::ZERO);
            face.listeners.clone()
        };
        // Called without the lock, because callbacks read the clock.
        for listener in listeners {
            listener();
        }
    }

    fn reading(&self) -> MutexGuard<'_, Reading> {
        self.face.lock().expect("no code panics while it holds the clock")
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.reading().now
    }

    fn elapsed(&self) -> Seconds {
        self.reading().elapsed
    }

    fn on_jump(&self, look_again: Box<dyn Fn() + Send + Sync>) {
        self.reading().listeners.push(Arc::from(look_again));
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
    }
}
