//! Log lines that clients can cause, at most once a second.

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long warnings are only counted after one was logged.
const INTERVAL: Duration = Duration::from_secs(1);

/// A warning that may occur thousands of times a second: the first is logged at once, and the others once a
/// second with their number.
#[derive(Debug, Default)]
pub struct RepeatedWarning {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Until when warnings are only counted.
    until: Option<Instant>,
    /// How many were counted, and the text of the last.
    counted: u64,
    last: String,
}

impl RepeatedWarning {
    /// One that has not occurred. Statics, so that all connections share the count.
    pub const fn new() -> RepeatedWarning {
        RepeatedWarning { state: Mutex::new(State { until: None, counted: 0, last: String::new() }) }
    }

    /// The warning occurred.
    pub fn warn(&'static self, text: impl Display) {
        if let Some(line) = self.line(Instant::now(), &text) {
            tracing::warn!("{line}");
        }
    }

    /// What to log now, if anything.
    fn line(&'static self, now: Instant, text: &dyn Display) -> Option<String> {
        let mut state = self.state();
        match state.until {
            Some(until) if now < until => {
                state.counted += 1;
                state.last = text.to_string();
                // Whether or not there is another, these are logged when the second is over.
                if state.counted == 1
                    && let Ok(runtime) = tokio::runtime::Handle::try_current()
                {
                    runtime.spawn(async move {
                        tokio::time::sleep_until(until).await;
                        if let Some(line) = self.counted(until, Instant::now()) {
                            tracing::warn!("{line}");
                        }
                    });
                }
                None
            }
            _ => {
                // Left over if the runtime that should have logged them has ended.
                let before = std::mem::take(&mut state.counted);
                state.until = Some(now + INTERVAL);
                Some(if before == 0 {
                    text.to_string()
                } else {
                    format!("{text} (and {before} times before)")
                })
            }
        }
    }

    /// What to log at the end of an interval, of those that were only counted. Nothing if another warning was
    /// logged at that moment, and with it the count: then another interval has begun.
    fn counted(&self, until: Instant, now: Instant) -> Option<String> {
        let mut state = self.state();
        if state.until != Some(until) {
            return None;
        }
        let count = std::mem::take(&mut state.counted);
        if count == 0 {
            return None;
        }
        state.until = Some(now + INTERVAL);
        let last = std::mem::take(&mut state.last);
        Some(if count == 1 { last } else { format!("{last} ({count} times within a second)") })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Not in a runtime, so that nothing is logged by itself.
    #[test]
    fn the_first_is_logged_at_once_and_the_rest_once_a_second_with_their_number() {
        static WARNING: RepeatedWarning = RepeatedWarning::new();
        let start = Instant::now();
        let line = |after: u64| WARNING.line(start + Duration::from_millis(after), &"full disk");
        assert_eq!(line(0).as_deref(), Some("full disk"));
        assert!((1..1_000).all(|after| line(after).is_none()));
        let second = start + INTERVAL;
        assert_eq!(WARNING.counted(second, second).as_deref(), Some("full disk (999 times within a second)"));
        assert_eq!(WARNING.counted(second, second), None);
        assert_eq!(line(1_500), None);
        assert_eq!(line(2_600).as_deref(), Some("full disk (and 1 times before)"));
        assert_eq!(line(2_700), None);
        // The end of the interval before this one is late.
        assert_eq!(WARNING.counted(start + 2 * INTERVAL, start + 3 * INTERVAL), None);
        assert_eq!(line(3_700).as_deref(), Some("full disk (and 1 times before)"));
        assert_eq!(line(4_800).as_deref(), Some("full disk"));
    }
}
