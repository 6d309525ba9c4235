//! Timestamps, durations and priorities as in Qless: doubles that are never infinite or NaN.

use std::cmp::Ordering;
use std::ops::{Add, Sub};

/// An infinite number or NaN where only a finite number is valid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{what} must be a finite number, not {value}")]
pub struct NotFinite {
    /// The kind of number.
    pub what: &'static str,
    /// The rejected number.
    pub value: f64,
}

macro_rules! finite {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "f64")]
        pub struct $type(f64);

        impl TryFrom<f64> for $type {
            type Error = NotFinite;
            fn try_from(value: f64) -> Result<$type, NotFinite> {
                $type::new(value)
            }
        }

        impl $type {
            /// Zero.
            pub const ZERO: $type = $type(0.0);

            #[doc = concat!("Makes a number ", $what, ". Refuses infinities and NaN.")]
            pub fn new(value: f64) -> Result<$type, NotFinite> {
                if !value.is_finite() {
                    return Err(NotFinite { what: $what, value });
                }
                Ok($type::saturating(value))
            }

            /// The number.
            pub const fn get(self) -> f64 {
                self.0
            }

            /// Clamps to the range of finite doubles, and turns -0 into 0.
            pub(crate) fn saturating(value: f64) -> $type {
                $type(value.clamp(f64::MIN, f64::MAX) + 0.0)
            }
        }

        impl PartialEq for $type {
            fn eq(&self, other: &$type) -> bool {
                self.0 == other.0
            }
        }
        impl Eq for $type {}
        impl Ord for $type {
            fn cmp(&self, other: &$type) -> Ordering {
                // Faster than `total_cmp` and equivalent: there is no -0 and no NaN.
                if self.0 < other.0 {
                    Ordering::Less
                } else if self.0 == other.0 {
                    Ordering::Equal
                } else {
                    Ordering::Greater
                }
            }
        }
        impl PartialOrd for $type {
            fn partial_cmp(&self, other: &$type) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
        impl From<i32> for $type {
            fn from(value: i32) -> $type {
                $type(f64::from(value))
            }
        }
    };
}

finite! {
    /// A point in time: seconds since the Unix epoch. Any finite number is valid.
    ///
    /// ```
    /// use geartrain_core::{Seconds, Timestamp};
    /// let noon = Timestamp::new(43_200.0)?;
    /// assert_eq!(noon + Seconds::new(0.5)?, Timestamp::new(43_200.5)?);
    /// assert!(Timestamp::new(f64::NAN).is_err());
    /// # Ok::<(), geartrain_core::NotFinite>(())
    /// ```
    Timestamp, "a moment"
}
finite! {
    /// A duration in seconds; may be negative.
    Seconds, "a span of time"
}
finite! {
    /// The priority of a job: higher goes first.
    Priority, "a priority"
}

/// Seconds in a day. Statistics are kept per day.
pub(crate) const DAY: f64 = 86_400.0;

impl Seconds {
    /// A whole number of seconds, in constants.
    pub(crate) const fn from_whole(seconds: u32) -> Seconds {
        Seconds(seconds as f64)
    }

    /// A number of seconds that is known to be finite and not -0, in constants.
    pub(crate) const fn from_finite(seconds: f64) -> Seconds {
        Seconds(seconds)
    }
}

impl Timestamp {
    /// The earliest timestamp.
    pub(crate) const MIN: Timestamp = Timestamp(f64::MIN);

    /// Rounded down to a whole second.
    pub fn floor(self) -> Timestamp {
        Timestamp(self.0.floor())
    }

    /// The next representable timestamp.
    pub(crate) fn next_up(self) -> Timestamp {
        Timestamp::saturating(self.0.next_up())
    }

    /// The beginning of its day (UTC).
    pub fn day(self) -> Timestamp {
        Timestamp::saturating(self.0 - self.0.rem_euclid(DAY))
    }
}

impl Add<Seconds> for Timestamp {
    type Output = Timestamp;
    fn add(self, span: Seconds) -> Timestamp {
        Timestamp::saturating(self.0 + span.0)
    }
}

impl Sub<Seconds> for Timestamp {
    type Output = Timestamp;
    fn sub(self, span: Seconds) -> Timestamp {
        Timestamp::saturating(self.0 - span.0)
    }
}

impl Sub for Timestamp {
    type Output = Seconds;
    fn sub(self, earlier: Timestamp) -> Seconds {
        Seconds::saturating(self.0 - earlier.0)
    }
}

impl Add for Seconds {
    type Output = Seconds;
    fn add(self, other: Seconds) -> Seconds {
        Seconds::saturating(self.0 + other.0)
    }
}

impl Sub for Seconds {
    type Output = Seconds;
    fn sub(self, other: Seconds) -> Seconds {
        Seconds::saturating(self.0 - other.0)
    }
}

impl From<std::time::Duration> for Seconds {
    fn from(span: std::time::Duration) -> Seconds {
        Seconds(span.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_and_nan_are_refused_by_name() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Timestamp::new(value).unwrap_err().what, "a moment");
            assert_eq!(Seconds::new(value).unwrap_err().what, "a span of time");
            assert_eq!(Priority::new(value).unwrap_err().what, "a priority");
        }
        assert_eq!(
            Priority::new(f64::INFINITY).unwrap_err().to_string(),
            "a priority must be a finite number, not inf"
        );
    }

    #[test]
    fn arithmetic_saturates_at_the_finite_range() {
        let far = Timestamp::new(f64::MAX).unwrap();
        assert_eq!(far + Seconds::new(f64::MAX).unwrap(), far);
        assert_eq!(Timestamp::new(f64::MIN).unwrap() - far, Seconds::new(f64::MIN).unwrap());
        assert_eq!(Timestamp::new(-0.0).unwrap().cmp(&Timestamp::ZERO), Ordering::Equal);
    }

    #[test]
    fn a_day_begins_at_midnight_utc_even_before_the_epoch() {
        assert_eq!(Timestamp::from(86_399).day(), Timestamp::ZERO);
        assert_eq!(Timestamp::from(86_400).day(), Timestamp::from(86_400));
        assert_eq!(Timestamp::from(-1).day(), Timestamp::from(-86_400));
    }
}
