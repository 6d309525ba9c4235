//! Plain-English times: a hand-written grammar that understands all of a phrase or refuses it.
//!
//! A phrase is split into words, in lower case; commas are blanks, and a final full stop is dropped. Every word is
//! consumed, or the error points at the one that was not understood.

mod moment;
mod recurrence;
mod words;

use words::Words;

use super::{BadSchedule, Schedule, Zone, parse};
use crate::{Seconds, Timestamp};

/// What a phrase or a cron expression says: a moment or a recurrence.
///
/// ```
/// use geartrain_core::Timestamp;
/// use geartrain_core::schedule::{When, Zones};
/// // 2014-03-05T09:34:16Z, a Wednesday.
/// let (now, zones) = (Timestamp::from(1_394_012_056), Zones::default());
/// let when = When::parse("7pm tomorrow", now, &zones)?;
/// assert_eq!(when, When::Once(Timestamp::from(1_394_132_400)));
/// let When::Recurring(schedule) = When::parse("every 2nd sunday at 7pm", now, &zones)? else { panic!() };
/// assert_eq!(schedule.to_string(), "* * * 0/2 19 0 0");
/// assert_eq!(When::parse("7pm tomorow", now, &zones).unwrap_err().position, 4);
/// # Ok::<(), geartrain_core::schedule::BadSchedule>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum When {
    /// A moment, in whole seconds.
    Once(Timestamp),
    /// Moments that a schedule selects.
    Recurring(Schedule),
}

/// The zones for phrases that name none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zones {
    /// For moments.
    pub once: Zone,
    /// For recurrences and cron expressions, which outlive the session that writes them.
    pub recurring: Zone,
}

impl Zones {
    /// One zone for both.
    pub fn both(zone: Zone) -> Zones {
        Zones { once: zone.clone(), recurring: zone }
    }
}

impl Default for Zones {
    /// UTC.
    fn default() -> Zones {
        Zones::both(Zone::UTC)
    }
}

impl When {
    /// Parses a phrase or a cron expression. A text is a cron expression if it contains `*`, begins with `CRON_TZ=`,
    /// `TZ=` or a nickname such as `@daily`, or has five words or more of which the first two are numeric fields.
    ///
    /// A phrase that names a moment in the past is refused; `now` is the current second.
    pub fn parse(text: &str, now: Timestamp, zones: &Zones) -> Result<When, BadSchedule> {
        if !parse::looks_like_cron(text) {
            return When::parse_phrase(text, now, zones);
        }
        let schedule = Schedule::parse(text)?;
        let named = text.contains("TZ=");
        Ok(When::Recurring(if named { schedule } else { schedule.in_zone(zones.recurring.clone()) }))
    }

    /// Parses a phrase.
    pub fn parse_phrase(text: &str, now: Timestamp, zones: &Zones) -> Result<When, BadSchedule> {
        let mut words = Words::new(text);
        if let Some(schedule) = recurrence::recurrence(&mut words, &zones.recurring)? {
            return Ok(When::Recurring(schedule));
        }
        moment::moment(&mut words, now, &zones.once, moment::Direction::Ahead).map(When::Once)
    }
}

/// Parses a phrase for a moment in the past: `yesterday`, `2 hours ago`, `2014-03-01`. A bare duration is that long
/// ago, and a time of day, a weekday or a day of the year is the latest such moment up to now.
pub fn parse_past(text: &str, now: Timestamp, zone: &Zone) -> Result<Timestamp, BadSchedule> {
    moment::moment(&mut Words::new(text), now, zone, moment::Direction::Back)
}

/// Parses a duration: `5 minutes`, `in 5 minutes`, `1h30m`, `half an hour`. Months and years have no fixed length
/// and are refused.
pub fn parse_span(text: &str) -> Result<Seconds, BadSchedule> {
    moment::span(&mut Words::new(text))
}
