//! Queue limits: how many unfinished jobs a queue takes, and how often its jobs may start.

use crate::{BadArgument, DURATION_MAX, Priority, QueueName, Seconds};

/// Limits a queue; these limits and no others count from then on.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SetLimits {
    /// The queue.
    pub queue: QueueName,
    /// Its limits.
    pub limits: QueueLimits,
}

/// Shows a queue's limits.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetLimits {
    /// The queue.
    pub queue: QueueName,
}

/// How often jobs of a queue may start: `count` every `per`, and up to `burst` at once after a pause.
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
    /// So many every so often. None at all, or none ever, is refused: that is what pausing a queue is for.
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

    /// How many start in that time.
    pub fn count(self) -> u32 {
        self.count
    }

    /// In what time.
    pub fn per(self) -> Seconds {
        self.per
    }

    /// How many may start at once after a pause.
    pub fn burst(self) -> u32 {
        self.burst
    }

    /// The time from one start to the next, if all the jobs start as soon as they may.
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

/// What a queue takes and hands out. The default is all of it.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct QueueLimits {
    /// The most unfinished jobs.
    pub jobs_max: Option<u64>,
    /// The most unfinished jobs for a put of at least this priority, and below the next one listed; for lower ones the lowest listed counts. At most 16.
    pub by_priority: Vec<(Priority, u64)>,
    /// How often its jobs may start.
    pub rate: Option<Rate>,
}
