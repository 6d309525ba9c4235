//! Schedules of SUBMIT_JOB_SCHED: finds the next minute that matches.

use geartrain_core::{DELAY_MAX, Seconds, Timestamp};
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{ToSpan, Zoned};

use crate::packet::Calendar;

/// How many days are searched: 29 February can be eight years away.
const DAYS_MAX: usize = 9 * 366;

/// The delay until a Unix second; zero if it is past, and the longest one if it is further away.
pub(crate) fn delay_until(second: u64, now: Timestamp) -> Seconds {
    Seconds::new(second as f64 - now.get()).unwrap_or(Seconds::ZERO).clamp(Seconds::ZERO, DELAY_MAX)
}

/// The next matching minute in local time, as the Unix second at which it begins.
pub(crate) fn next_match(calendar: Calendar, now: Timestamp) -> Option<u64> {
    next_match_in(calendar, now, TimeZone::system())
}

fn next_match_in(calendar: Calendar, now: Timestamp, zone: TimeZone) -> Option<u64> {
    let now = jiff::Timestamp::from_second(now.get().floor() as i64).ok()?;
    let local = Zoned::new(now, zone.clone()).datetime();
    let mut date = local.date();
    for _ in 0..DAYS_MAX {
        if matches_date(&calendar, date) {
            for hour in candidates(calendar.hour, 23) {
                for minute in candidates(calendar.minute, 59) {
                    let moment = DateTime::from_parts(date, Time::new(hour, minute, 0, 0).ok()?);
                    if moment <= local {
                        continue;
                    }
                    // A local time that daylight saving skips or repeats: the time zone's rules say which
                    // instant it is.
                    let second = moment.to_zoned(zone.clone()).ok()?.timestamp().as_second();
                    if second > now.as_second() {
                        return u64::try_from(second).ok();
                    }
                }
            }
        }
        date = date.checked_add(1.day()).ok()?;
    }
    None
}

/// The given number, or all up to `last`.
fn candidates(given: Option<u8>, last: i8) -> std::ops::RangeInclusive<i8> {
    match given.and_then(|given| i8::try_from(given).ok()) {
        Some(given) => given..=given,
        None => 0..=last,
    }
}

fn matches_date(calendar: &Calendar, date: Date) -> bool {
    let is = |given: Option<u8>, number: i8| given.is_none_or(|given| i8::try_from(given) == Ok(number));
    is(calendar.day, date.day())
        && is(calendar.month, date.month())
        && is(calendar.weekday, date.weekday().to_monday_zero_offset())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next match after `now`, both as text.
    fn after(now: &str, calendar: Calendar) -> Option<String> {
        let now: jiff::Timestamp = now.parse().expect("a moment");
        let now = Timestamp::new(now.as_second() as f64).expect("a moment");
        let second = next_match_in(calendar, now, TimeZone::UTC)?;
        Some(jiff::Timestamp::from_second(i64::try_from(second).ok()?).ok()?.to_string())
    }

    #[test]
    fn the_next_matching_minute_is_found() {
        let any = Calendar::default();
        // 2026-03-11 is a Wednesday.
        let now = "2026-03-11T10:30:20Z";
        for (calendar, next) in [
            (any, "2026-03-11T10:31:00Z"),
            (Calendar { minute: Some(30), ..any }, "2026-03-11T11:30:00Z"),
            (Calendar { minute: Some(0), hour: Some(9), ..any }, "2026-03-12T09:00:00Z"),
            (Calendar { minute: Some(5), hour: Some(0), weekday: Some(0), ..any }, "2026-03-16T00:05:00Z"),
            (Calendar { day: Some(29), month: Some(2), ..any }, "2028-02-29T00:00:00Z"),
        ] {
            assert_eq!(after(now, calendar).as_deref(), Some(next), "{calendar:?}");
        }
        assert_eq!(after(now, Calendar { day: Some(31), month: Some(2), ..any }), None);
    }

    #[test]
    fn a_past_second_has_no_delay() {
        let now = Timestamp::new(1_000.5).expect("a moment");
        assert_eq!(delay_until(1_000, now), Seconds::ZERO);
        assert_eq!(delay_until(1_002, now).get(), 1.5);
        assert_eq!(delay_until(u64::MAX, now), DELAY_MAX);
    }
}
