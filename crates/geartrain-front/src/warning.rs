//! Rate-limited warnings: log lines that clients can cause, at most once a second.

use std::fmt::Display;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// How long warnings are only counted after one was logged.
const INTERVAL: Duration = Duration::from_secs(1);

/// Warnings whose count is not logged yet, for [`RepeatedWarning::flush_all`].
static COUNTED: Mutex<Vec<&'static RepeatedWarning>> = Mutex::new(Vec::new());

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
    /// The task that logs the count when the interval is over.
    timer: Option<AbortHandle>,
}

impl RepeatedWarning {
    /// For statics, so that all connections share the count.
    pub const fn new() -> RepeatedWarning {
        let state = State { until: None, counted: 0, last: String::new(), timer: None };
        RepeatedWarning { state: Mutex::new(state) }
    }

    /// Logs or counts one occurrence.
    pub fn warn(&'static self, text: impl Display) {
        if let Some(line) = self.line(Instant::now(), &text) {
            tracing::warn!("{line}");
        }
    }

    /// Logs all counts at once and ends their timers: for the end of a server, whose last warnings would
    /// otherwise be lost with its runtime.
    pub fn flush_all() {
        let counted = std::mem::take(&mut *COUNTED.lock());
        for warning in counted {
            let until = warning.state.lock().until;
            if let Some(line) = until.and_then(|until| warning.counted(until, Instant::now())) {
                tracing::warn!("{line}");
            }
        }
    }

    /// What to log now, if anything.
    fn line(&'static self, now: Instant, text: &dyn Display) -> Option<String> {
        let mut state = self.state.lock();
        match state.until {
            Some(until) if now < until => {
                state.counted += 1;
                state.last = text.to_string();
                // Whether or not there is another, these are logged when the second is over.
                if state.counted == 1
                    && let Ok(runtime) = tokio::runtime::Handle::try_current()
                {
                    let timer = runtime.spawn(async move {
                        tokio::time::sleep_until(until).await;
                        if let Some(line) = self.counted(until, Instant::now()) {
                            tracing::warn!("{line}");
                        }
                    });
                    state.timer = Some(timer.abort_handle());
                    drop(state);
                    let mut counted = COUNTED.lock();
                    if !counted.iter().any(|warning| std::ptr::eq(*warning, self)) {
                        counted.push(self);
                    }
                }
                None
            }
            _ => {
                state.end_timer();
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
        let mut state = self.state.lock();
        if state.until != Some(until) {
            return None;
        }
        state.end_timer();
        let count = std::mem::take(&mut state.counted);
        if count == 0 {
            return None;
        }
        state.until = Some(now + INTERVAL);
        let last = std::mem::take(&mut state.last);
        Some(if count == 1 { last } else { format!("{last} ({count} times within a second)") })
    }
}

impl State {
    /// Aborts the timer. If it is the one that is logging right now, it has nothing left to wait for.
    fn end_timer(&mut self) {
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_flush_logs_the_count_and_ends_the_timer() {
        static WARNING: RepeatedWarning = RepeatedWarning::new();
        let alive_tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        (0..3).for_each(|_| WARNING.warn("full disk"));
        assert_eq!((WARNING.state.lock().counted, alive_tasks()), (2, 1));
        RepeatedWarning::flush_all();
        tokio::task::yield_now().await;
        assert_eq!((WARNING.state.lock().counted, alive_tasks()), (0, 0));
    }

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
