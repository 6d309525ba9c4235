//! Cron expressions and plain-English times. Pure: `now` is a parameter, and nothing is read but the time-zone
//! database.
//!
//! - [`Schedule`]: a cron expression of five, six or seven fields, in UTC or a named zone, and its next run.
//! - [`When`]: a phrase (`7pm tomorrow`, `every 2nd sunday at 7pm`) as a moment or a schedule.
//! - [`parse_past`] and [`parse_span`]: a moment in the past (`yesterday`), and a duration (`1h30m`, `5 minutes`).
//! - [`Zone`]: a time zone by its IANA name.

mod civil;
mod fields;
mod parse;
mod phrase;
mod search;
mod zone;

use std::fmt;
use std::str::FromStr;

use fields::{Field, Nth, YearRange, mask_text, push_item, starred_text};

pub use phrase::{When, Zones, parse_past, parse_span};
pub use zone::{UnknownZone, Zone};

use crate::Timestamp;

/// The moments that a cron expression selects, to the second.
///
/// The number of fields decides about the form:
///
/// | fields | form |
/// |---|---|
/// | 7 | WorkKit's: year, month, day of month, day of week, hour, minute, second |
/// | 6 | cron with seconds: second, minute, hour, day of month, month, day of week |
/// | 5 | cron: minute, hour, day of month, month, day of week |
///
/// All take `*`, lists, ranges (`9-17`), steps (`*/5`, `9-17/2`) and English names of months and weekdays. In the
/// seven fields `3/2` is every second occurrence of the value 3 (the 2nd and 4th Wednesday of a month), weekdays
/// are 0 to 6, and a day matches either day field if both are set, that is, not `*` or `?`. Five and six fields
/// follow Vixie cron: 7 is Sunday too, `@daily` and its like work, and a day must match both day fields if one of
/// them begins with `*`.
///
/// Times are in UTC, or in the zone of a prefix: `CRON_TZ=Europe/Berlin 0 9 * * *`. Where clocks change,
///
/// - a schedule that selects **every hour** follows the clock: it runs in both passes of a doubled hour, and
///   nothing is made up for in a skipped one;
/// - a schedule with **certain hours** runs once for each time of day: in the first pass of a doubled hour, and if
///   runs fell into a skipped hour, once at the first instant after it.
///
/// A schedule takes 48 bytes, and [`next`](Schedule::next) does not allocate.
///
/// ```
/// use geartrain_core::Timestamp;
/// use geartrain_core::schedule::Schedule;
/// let schedule: Schedule = "*/15 9-17 * * mon-fri".parse()?;
/// assert_eq!(schedule.canonical().as_deref(), Some("* * * 1-5 9-17 */15 0"));
/// // 2014-03-05T09:34:16Z, a Wednesday.
/// let next = schedule.next(Timestamp::from(1_394_012_056));
/// assert_eq!(next, Some(Timestamp::from(1_394_012_700)));
/// assert_eq!("0 0 30 2 *".parse::<Schedule>().unwrap_err().position, 0);
/// # Ok::<(), geartrain_core::schedule::BadSchedule>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Schedule {
    second: u64,
    minute: u64,
    hour: u32,
    /// Bit 1 is the first day.
    day: u32,
    month: u16,
    weekday: u8,
    /// A day matches if either day field does, instead of both. Neither selects every day then.
    either_day: bool,
    /// None if it selects all years and has no nth occurrences, as nearly all schedules.
    extension: Option<Box<Extension>>,
    zone: Zone,
}

/// The rarely used parts of a schedule. Both lists are sorted and without duplicates.
#[derive(Clone, PartialEq, Eq)]
struct Extension {
    /// Empty for all years.
    years: Vec<YearRange>,
    nth: Vec<Nth>,
}

/// A cron expression or a phrase that was not understood or cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadSchedule {
    /// The byte of the text at which the problem begins; the length of the text if something is missing there.
    pub position: usize,
    /// The part of the text that is wrong; empty at the end.
    pub word: String,
    /// What is wrong, or what is expected instead.
    pub reason: String,
}

impl BadSchedule {
    fn new(position: usize, word: impl Into<String>, reason: impl Into<String>) -> BadSchedule {
        BadSchedule { position, word: word.into(), reason: reason.into() }
    }
}

impl fmt::Display for BadSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadSchedule { position, word, reason } = self;
        if word.is_empty() {
            write!(f, "at byte {position}: {reason}")
        } else {
            write!(f, "{word:?} at byte {position}: {reason}")
        }
    }
}

impl std::error::Error for BadSchedule {}

impl Schedule {
    /// Parses a cron expression of five, six or seven fields. Refuses one that can never match.
    pub fn parse(text: &str) -> Result<Schedule, BadSchedule> {
        parse::any(text)
    }

    /// Parses the seven fields of WorkKit and nothing else: no prefix, and no other number of fields.
    pub fn parse_seven(text: &str) -> Result<Schedule, BadSchedule> {
        parse::seven(text)
    }

    /// The schedule that runs once, in the second of a timestamp or the next one; none outside of 1970 to 9999.
    pub fn once(at: Timestamp) -> Option<Schedule> {
        let seconds = at.get().ceil();
        if !(0.0..search::END as f64).contains(&seconds) {
            return None;
        }
        let seconds = seconds as i64;
        let (year, month, day) = civil::date_of(seconds / civil::DAY_SECONDS);
        let time = seconds % civil::DAY_SECONDS;
        let year = year as u16;
        Some(Schedule {
            second: 1 << (time % 60),
            minute: 1 << (time / 60 % 60),
            hour: 1 << (time / 3_600),
            day: 1 << day,
            month: 1 << month,
            weekday: Field::Weekday.all() as u8,
            either_day: false,
            extension: Some(Box::new(Extension {
                years: vec![YearRange::new(year, year, 1)],
                nth: Vec::new(),
            })),
            zone: Zone::UTC,
        })
    }

    /// The first run in the second of `now` or later, as for a job that is put now.
    pub fn first(&self, now: Timestamp) -> Option<Timestamp> {
        self.timestamp_from(now.get().floor())
    }

    /// The first run strictly after a timestamp.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.timestamp_from(after.get().floor() + 1.0)
    }

    fn timestamp_from(&self, from: f64) -> Option<Timestamp> {
        // The cast saturates; the search clamps what lies before 1970 and ends with the year 9999.
        let from = from.clamp(-1e12, 1e12) as i64;
        self.run_from(from).map(|run| Timestamp::saturating(run as f64))
    }

    /// The zone its fields are read in.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// The same fields in another zone.
    pub fn in_zone(mut self, zone: Zone) -> Schedule {
        self.zone = zone;
        self
    }

    /// The seven fields of WorkKit, without the zone. None for a schedule of five or six fields whose days must
    /// match both day fields (`0 0 */2 * 1`): in the seven fields either would do.
    pub fn canonical(&self) -> Option<String> {
        if !self.either_day && self.day_is_set() && self.weekday_is_set() {
            return None;
        }
        Some(format!(
            "{} {} {} {} {} {} {}",
            self.years_text(),
            self.field_text(Field::Month, self.month.into()),
            self.field_text(Field::Day, self.day.into()),
            self.field_text(Field::Weekday, self.weekday.into()),
            self.field_text(Field::Hour, self.hour.into()),
            self.field_text(Field::Minute, self.minute),
            self.field_text(Field::Second, self.second),
        ))
    }

    fn day_is_set(&self) -> bool {
        u64::from(self.day) != Field::Day.all()
    }

    fn weekday_is_set(&self) -> bool {
        u64::from(self.weekday) != Field::Weekday.all()
    }

    fn has_nth(&self) -> bool {
        self.extension.as_ref().is_some_and(|extension| !extension.nth.is_empty())
    }

    fn nth(&self, field: Field) -> impl Iterator<Item = Nth> + '_ {
        let all = self.extension.as_ref().map_or(&[][..], |extension| &extension.nth);
        all.iter().filter(move |nth| nth.field == field).copied()
    }

    fn years(&self) -> &[YearRange] {
        self.extension.as_ref().map_or(&[], |extension| &extension.years)
    }

    fn years_text(&self) -> String {
        let mut text = String::new();
        self.years().iter().for_each(|range| push_item(&mut text, range));
        if text.is_empty() { "*".to_owned() } else { text }
    }

    fn field_text(&self, field: Field, mask: u64) -> String {
        let mut text = if mask == 0 { String::new() } else { mask_text(field, mask) };
        for nth in self.nth(field) {
            push_item(&mut text, format_args!("{}/{}", nth.value, nth.n));
        }
        text
    }

    /// Six fields, for a schedule that the seven fields cannot express. It has all years and no nth occurrences.
    fn six_fields(&self) -> String {
        // One of the day fields begins with `*`, or days would match either of them.
        let (day, weekday) = if self.day & 1 << 1 != 0 {
            (starred_text(Field::Day, self.day.into()), mask_text(Field::Weekday, self.weekday.into()))
        } else {
            (mask_text(Field::Day, self.day.into()), starred_text(Field::Weekday, self.weekday.into()))
        };
        format!(
            "{} {} {} {day} {} {weekday}",
            mask_text(Field::Second, self.second),
            mask_text(Field::Minute, self.minute),
            mask_text(Field::Hour, self.hour.into()),
            mask_text(Field::Month, self.month.into()),
        )
    }
}

impl fmt::Display for Schedule {
    /// A text that [`Schedule::parse`] reads as the same schedule: the seven fields, or six where these cannot
    /// express it, after `CRON_TZ=` and the zone if it is not UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.zone.is_utc() {
            write!(f, "CRON_TZ={} ", self.zone.name().unwrap_or("unnamed"))?;
        }
        f.write_str(&self.canonical().unwrap_or_else(|| self.six_fields()))
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schedule({self})")
    }
}

impl FromStr for Schedule {
    type Err = BadSchedule;
    fn from_str(text: &str) -> Result<Schedule, BadSchedule> {
        Schedule::parse(text)
    }
}

/// A number of whole seconds since the epoch in RFC 3339, from 1970 to 9999.
fn utc_text(seconds: f64) -> Option<String> {
    if !(0.0..search::END as f64).contains(&seconds) {
        return None;
    }
    let seconds = seconds as i64;
    let (year, month, day) = civil::date_of(seconds / civil::DAY_SECONDS);
    let time = seconds % civil::DAY_SECONDS;
    let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"))
}
