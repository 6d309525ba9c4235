//! Rate limiting by GCRA, the generic cell rate algorithm (a leaky bucket in its virtual-scheduling form):
//! one timestamp per queue says when the next job would start if all had started as late as they may.

use crate::{Rate, Seconds, Timestamp};

/// The rate limiter of a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RateLimiter {
    pub(crate) rate: Rate,
    /// The theoretical arrival time of GCRA.
    pub(crate) next: Timestamp,
}

impl RateLimiter {
    pub(crate) fn new(rate: Rate) -> RateLimiter {
        RateLimiter { rate, next: Timestamp::MIN }
    }

    fn span(&self, starts: u32) -> Seconds {
        Seconds::saturating(self.rate.interval().get() * f64::from(starts))
    }

    /// The theoretical arrival time at `now`. If it is too far ahead, the clock was set back, and the past
    /// does not count.
    fn at(&self, now: Timestamp) -> Timestamp {
        if self.next > now + self.span(self.rate.burst().saturating_add(1)) {
            now
        } else {
            self.next.max(now)
        }
    }

    fn may_start(&self, now: Timestamp) -> bool {
        self.at(now) - now <= self.span(self.rate.burst() - 1)
    }

    pub(crate) fn start(&mut self, now: Timestamp) {
        self.next = self.at(now) + self.rate.interval();
    }

    /// How many jobs may start now, up to `max`.
    pub(crate) fn starts(mut self, now: Timestamp, max: usize) -> usize {
        let mut starts = 0;
        while starts < max && self.may_start(now) {
            self.start(now);
            starts += 1;
        }
        starts
    }

    /// When the next job may start.
    pub(crate) fn opens(&self, now: Timestamp) -> Timestamp {
        self.at(now) - self.span(self.rate.burst() - 1)
    }
}
