//! Slow command log: names the commands that took long, at most once a second.

use std::fmt::Display;
use std::time::Duration;

use crate::RepeatedWarning;

static SLOW: RepeatedWarning = RepeatedWarning::new();

/// A moment of a monotonic clock that costs little to read and is a few milliseconds coarse.
#[derive(Debug, Clone, Copy)]
pub struct CoarseInstant(Duration);

impl CoarseInstant {
    /// The current moment.
    #[cfg(target_os = "linux")]
    pub fn now() -> CoarseInstant {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        // Both are positive on a monotonic clock.
        CoarseInstant(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
    }

    /// The current moment.
    #[cfg(not(target_os = "linux"))]
    pub fn now() -> CoarseInstant {
        static BEGIN: std::sync::LazyLock<std::time::Instant> =
            std::sync::LazyLock::new(std::time::Instant::now);
        CoarseInstant(BEGIN.elapsed())
    }

    /// The time since this moment.
    pub fn elapsed(self) -> Duration {
        CoarseInstant::now().0.saturating_sub(self.0)
    }
}

/// The commands of a batch that is being executed, for the log.
#[derive(Debug, Clone, Copy)]
pub struct TimedBatch {
    first: &'static str,
    commands: usize,
    begun: CoarseInstant,
    took: Duration,
}

impl TimedBatch {
    /// A batch that begins now. `first` is the name of its first command.
    pub fn begin(first: Option<&'static str>, commands: usize) -> TimedBatch {
        let (first, begun) = (first.unwrap_or("a wait for jobs"), CoarseInstant::now());
        TimedBatch { first, commands, begun, took: Duration::ZERO }
    }

    /// The backend has answered. The client may read the answers much later.
    pub fn answered(&mut self) {
        self.took = self.begun.elapsed();
    }

    /// Logs the batch if its answers took at least that long. `client` names the client.
    pub fn warn_if_slow<C: Display>(self, slow_after: Option<Duration>, client: impl FnOnce() -> C) {
        if slow_after.is_some_and(|slow_after| self.took >= slow_after) {
            let more = match self.commands {
                0 | 1 => String::new(),
                commands => format!(" and {} more", commands - 1),
            };
            warn(&format!("{}{more}", self.first), self.took, client());
        }
    }
}

/// Logs a command that took at least that long.
pub fn warn_if_slow<C: Display>(
    command: &[u8],
    took: Duration,
    slow_after: Option<Duration>,
    client: impl FnOnce() -> C,
) {
    if slow_after.is_some_and(|slow_after| took >= slow_after) {
        warn(&String::from_utf8_lossy(command), took, client());
    }
}

fn warn(command: &str, took: Duration, client: impl Display) {
    SLOW.warn(format_args!("slow: {command} took {:.2} s, sent by {client}", took.as_secs_f64()));
}
