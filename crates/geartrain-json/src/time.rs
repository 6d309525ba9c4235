//! Times and delays as people write them: numbers of seconds, RFC 3339, durations, and phrases such as
//! `7pm tomorrow`.

use std::time::Duration;

use geartrain_core::schedule::{BadSchedule, When, Zones, parse_delay, parse_span};
use geartrain_core::{DELAY_MAX, DURATION_MAX, Seconds, Timestamp};
use jiff::tz::Offset;

use crate::duration;

/// The present, by which relative times are read, and the zones of phrases that name none.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// The time now.
    pub now: Timestamp,
    /// The zones; an error if they are not known.
    pub zones: fn() -> Result<Zones, String>,
}

/// A time, and whether it was written as a phrase, so that people want to see what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The time.
    pub at: Timestamp,
    /// Whether it was a phrase.
    pub is_phrase: bool,
    /// The time from now until then, if it was written so.
    pub span: Option<Seconds>,
}

impl Moment {
    /// A time that was written exactly.
    pub fn exact(at: Timestamp) -> Moment {
        Moment { at, is_phrase: false, span: None }
    }

    /// A time that was written as a phrase.
    pub fn of_phrase(at: Timestamp) -> Moment {
        Moment { at, is_phrase: true, span: None }
    }
}

/// A duration from now, and whether it was written as a phrase.
#[derive(Debug, Clone, Copy)]
pub struct Delay {
    /// How long.
    pub length: Duration,
    /// Whether it was a phrase.
    pub is_phrase: bool,
}

/// How times are written, for errors.
pub const EXAMPLES: &str = "write it like 2026-04-01T12:00:00Z, 7pm tomorrow, or in seconds since the epoch";

/// Parses seconds since the epoch, or RFC 3339 with its offset. A leap second is the second before it.
pub fn parse(text: &str) -> Result<Timestamp, String> {
    let seconds = match text.parse::<f64>() {
        Ok(seconds) => seconds,
        Err(_) => match text.parse::<jiff::Timestamp>() {
            Ok(timestamp) => timestamp.as_duration().as_secs_f64(),
            Err(_) => {
                return Err(format!("{text:?} is not a time: {EXAMPLES}"));
            }
        },
    };
    Timestamp::new(seconds).map_err(|error| error.to_string())
}

/// Whether a text is a number, if not a valid one; `inf` and `nan` are.
fn is_number(text: &str) -> bool {
    text.parse::<f64>().is_ok()
}

/// A duration with its unit, such as `2h`.
pub fn duration_with_unit(text: &str) -> Option<Seconds> {
    let has_unit = text.ends_with(|c: char| c.is_ascii_lowercase());
    has_unit.then(|| duration::parse(text).ok().map(Seconds::from)).flatten()
}

/// A duration: `90`, `1h30m`, or in words: `5 minutes`.
pub fn length(text: &str) -> Result<Duration, String> {
    duration::parse(text).or_else(|why| {
        let span = parse_span(text).map_err(|phrase| not_a_duration(text, &why, &phrase))?;
        duration::from_seconds(span.get()).ok_or(why)
    })
}

/// One word is taken for the short form; several of them for a phrase, and the error points at one of them.
fn not_a_duration(text: &str, why: &str, phrase: &BadSchedule) -> String {
    if text.contains(' ') { format!("{text:?} is not a duration: {phrase}") } else { why.to_owned() }
}

/// Refuses a duration that is not above zero and at most ten years.
pub fn allowed_span(span: Seconds) -> Result<Seconds, String> {
    if span > Seconds::ZERO && span <= DURATION_MAX {
        return Ok(span);
    }
    Err("it must be more than 0 and at most ten years".to_owned())
}

impl Times {
    /// Phrases are in UTC.
    pub fn utc(now: Timestamp) -> Times {
        Times { now, zones: || Ok(Zones::default()) }
    }

    /// Parses a time at which something starts: as [`parse`] does, or a phrase for a time in the future; not
    /// too far ahead.
    pub fn start(&self, text: &str) -> Result<Moment, String> {
        let moment = match parse(text) {
            Ok(at) => Moment::exact(at),
            Err(why) if is_number(text) => return Err(why),
            Err(_) => self.phrase(text)?,
        };
        self.near(moment.at)?;
        Ok(moment)
    }

    /// Parses a phrase for a moment in the future.
    fn phrase(&self, text: &str) -> Result<Moment, String> {
        match When::parse(text, self.now, &(self.zones)()?) {
            Ok(When::Once(at)) => Ok(Moment::of_phrase(at)),
            Ok(When::Recurring(_)) => {
                Err(format!("{text:?} is not a time: it recurs; `geartrain next` shows its moments"))
            }
            Err(why) => Err(format!("{text:?} is not a time: {why}; {EXAMPLES}")),
        }
    }

    /// Refuses a time that is longer ahead than the longest delay.
    pub fn near(&self, time: Timestamp) -> Result<Timestamp, String> {
        if time - self.now <= DELAY_MAX {
            return Ok(time);
        }
        Err("it is more than a hundred years ahead: a number is in seconds since the epoch, not in milliseconds"
            .to_owned())
    }

    /// Parses a time in the future: as [`start`](Times::start) does, or a duration from now, with its unit.
    pub fn ahead(&self, text: &str) -> Result<Moment, String> {
        match duration_with_unit(text) {
            Some(span) => Ok(Moment { span: Some(span), ..Moment::exact(self.now + span) }),
            None => self.start(text),
        }
    }

    /// Parses a duration from now: as [`length`] does, or with months and years.
    pub fn delay(&self, text: &str) -> Result<Delay, String> {
        if let Ok(length) = duration::parse(text) {
            return Ok(Delay { length, is_phrase: false });
        }
        let length = length(text).or_else(|why| {
            let due = parse_delay(text, self.now, &(self.zones)()?.once)
                .map_err(|phrase| not_a_duration(text, &why, &phrase))?;
            duration::from_seconds((due - self.now).get()).ok_or(why)
        })?;
        Ok(Delay { length, is_phrase: true })
    }
}

/// The date of a timestamp, in UTC.
pub fn format_day(time: Timestamp) -> String {
    whole_seconds(time)
        .map_or_else(|| time.to_string(), |time| Offset::UTC.to_datetime(time).date().to_string())
}

/// Rounded down; none if the year has more than four digits.
pub fn whole_seconds(time: Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_second(time.get().floor() as i64).ok()
}
