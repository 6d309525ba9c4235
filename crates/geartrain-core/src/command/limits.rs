//! Queue limits: how many unfinished jobs a queue takes, and how often its jobs may start.

use crate::{BadArgument, DURATION_MAX, Priority, QueueName, Seconds};

/// Sets the limits of a queue; they replace its earlier limits.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SetLimits {
    /// The queue.
    pub queue: QueueName,
    /// Its limits.
    pub limits: QueueLimits,
}

/// Looks up the limits of a queue.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetLimits {
    /// The queue.
    pub queue: QueueName,
}

/// A rate limit: `count` jobs of a queue may start every `per`, and up to `burst` at once after an idle
/// period.
///
/// ```
/// use geartrain_core::{Rate, Seconds};
/// assert_eq!(Rate::new(10, Seconds::from(60), 1)?.interval(), Seconds::from(6));
/// assert!(Rate::new(0, Seconds::from(1), 1).is_err());
/// # Ok::<(), geartrain_core::BadArgument>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "(u32, Seconds, u32)")]
pub struct Rate {
    count: u32,
    per: Seconds,
    burst: u32,
}

impl Rate {
    /// Checks a rate. A rate of zero is refused: pause the queue instead.
    pub fn new(count: u32, per: Seconds, burst: u32) -> Result<Rate, BadArgument> {
        let bad = |why: String| Err(BadArgument::new("rate", why));
        if count == 0 || burst == 0 {
            return bad("must let at least one job start; to let none start, pause the queue".into());
        }
        if per <= Seconds::ZERO || per > DURATION_MAX {
            return bad(format!("must be for a time of up to ten years, not {per} seconds"));
        }
        Ok(Rate { count, per, burst })
    }

    /// How many jobs may start within [`per`](Rate::per).
    pub fn count(self) -> u32 {
        self.count
    }

    /// The period of the rate.
    pub fn per(self) -> Seconds {
        self.per
    }

    /// How many jobs may start at once after an idle period.
    pub fn burst(self) -> u32 {
        self.burst
    }

    /// The time between two starts at full rate.
    pub fn interval(self) -> Seconds {
        Seconds::saturating(self.per.get() / f64::from(self.count))
    }
}

impl TryFrom<(u32, Seconds, u32)> for Rate {
    type Error = BadArgument;
    fn try_from((count, per, burst): (u32, Seconds, u32)) -> Result<Rate, BadArgument> {
        Rate::new(count, per, burst)
    }
}

/// Limits of a queue. The default is no limit.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct QueueLimits {
    /// The most unfinished jobs; puts beyond it are refused with
    /// [`Refusal::QueueFull`](crate::Refusal::QueueFull).
    pub jobs_max: Option<u64>,
    /// The most unfinished jobs by the priority of a put. An entry applies from its priority up to the next
    /// one listed; the lowest entry applies to all lower priorities too. At most 16 entries.
    pub by_priority: Vec<(Priority, u64)>,
    /// How often jobs may start.
    pub rate: Option<Rate>,
}
