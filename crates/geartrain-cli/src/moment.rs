//! Moments as people write them: seconds since the epoch, or RFC 3339.

use std::time::{SystemTime, UNIX_EPOCH};

use geartrain::{Seconds, Timestamp};

use crate::duration;

/// The present moment, by this machine's clock.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO + Seconds::from(since)
}

/// Reads a moment: seconds since the epoch, or RFC 3339 with its zone.
pub(crate) fn parse(text: &str) -> Result<Timestamp, String> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Timestamp::new(seconds).map_err(|error| error.to_string());
    }
    rfc3339(text).ok_or_else(|| {
        format!("{text:?} is not a moment: write it like 2026-04-01T12:00:00Z, or in seconds since the epoch")
    })
}

/// Reads a moment to come: as `parse` does, or how long until then, with its unit.
pub(crate) fn parse_ahead(text: &str) -> Result<Timestamp, String> {
    match parse(text) {
        Err(why) if text.ends_with(|c: char| c.is_ascii_lowercase()) => match duration::parse(text) {
            Ok(span) => Ok(now() + Seconds::from(span)),
            Err(_) => Err(why),
        },
        read => read,
    }
}

/// Reads a moment that has passed: as `parse` does, or how long ago that was, with its unit.
pub(crate) fn parse_ago(text: &str) -> Result<Timestamp, String> {
    match parse(text) {
        Err(why) if text.ends_with(|c: char| c.is_ascii_lowercase()) => match duration::parse(text) {
            Ok(span) => Ok(now() - Seconds::from(span)),
            Err(_) => Err(format!("{why}, or how long ago it was, like 2h")),
        },
        Err(why) => Err(format!("{why}, or how long ago it was, like 2h")),
        read => read,
    }
}

/// Reads a day: `today`, `yesterday`, a date, or any moment of it. Days are UTC's.
pub(crate) fn parse_day(text: &str) -> Result<Timestamp, String> {
    match text {
        "today" => Ok(now().day()),
        "yesterday" => Ok((now() - Seconds::from(86_400)).day()),
        _ => match date(text.as_bytes()) {
            Some(days) => Ok(seconds(days * 86_400)),
            None => parse(text).map(Timestamp::day).map_err(|_| {
                format!("{text:?} is not a day: write it like 2026-04-01, or today, or yesterday")
            }),
        },
    }
}

fn seconds(whole: i64) -> Timestamp {
    // Years have four digits, so this is far from the largest double.
    Timestamp::new(whole as f64).unwrap_or_default()
}

fn rfc3339(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let days = date(bytes.get(..10)?)?;
    let [b'T' | b't' | b' ', h1, h2, b':', m1, m2, b':', s1, s2, rest @ ..] = bytes.get(10..)? else {
        return None;
    };
    let (hour, minute, second) = (two(*h1, *h2)?, two(*m1, *m2)?, two(*s1, *s2)?);
    let digits = match rest {
        [b'.', rest @ ..] => rest.iter().take_while(|byte| byte.is_ascii_digit()).count(),
        _ => 0,
    };
    let (fraction, zone) = match rest {
        [b'.', rest @ ..] if digits > 0 => {
            let text = std::str::from_utf8(&rest[..digits]).ok()?;
            (format!("0.{text}").parse::<f64>().ok()?, &rest[digits..])
        }
        rest => (0.0, rest),
    };
    let east = match zone {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let (hours, minutes) = (two(*h1, *h2)?, two(*m1, *m2)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if *sign == b'-' { -60 } else { 60 }
        }
        _ => return None,
    };
    // A leap second is the first of the next minute.
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let whole = days * 86_400 + hour * 3_600 + minute * 60 + second - east;
    Some(seconds(whole) + Seconds::new(fraction).ok()?)
}

fn two(tens: u8, ones: u8) -> Option<i64> {
    (tens.is_ascii_digit() && ones.is_ascii_digit())
        .then(|| i64::from(tens - b'0') * 10 + i64::from(ones - b'0'))
}

/// Days since the epoch of a date like `2026-04-01`.
fn date(text: &[u8]) -> Option<i64> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = text else { return None };
    let (year, month, day) = (two(*y1, *y2)? * 100 + two(*y3, *y4)?, two(*m1, *m2)?, two(*d1, *d2)?);
    let days = days_from_civil(year, month, day);
    // A day that the month does not have comes back as another.
    ((1..=12).contains(&month) && civil_from_days(days) == (year, month, day)).then_some(days)
}

// Both are Howard Hinnant's, from "chrono-Compatible Low-Level Date Algorithms": years begin in March.

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Writes the date of a moment, in UTC.
pub(crate) fn format_day(moment: Timestamp) -> String {
    match parts(moment) {
        Some((days, _)) => {
            let (year, month, day) = civil_from_days(days);
            format!("{year:04}-{month:02}-{day:02}")
        }
        None => moment.to_string(),
    }
}

/// Writes a moment to the second, in UTC, so that `parse` can read it again.
pub(crate) fn format(moment: Timestamp) -> String {
    match parts(moment) {
        Some((_, second)) => {
            let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
            format!("{}T{hour:02}:{minute:02}:{second:02}Z", format_day(moment))
        }
        None => moment.to_string(),
    }
}

/// The days since the epoch and the seconds of the day, if the year has four digits.
fn parts(moment: Timestamp) -> Option<(i64, i64)> {
    let whole = moment.get().floor();
    let years = -62_167_219_200.0..253_402_300_800.0;
    years.contains(&whole).then(|| ((whole as i64).div_euclid(86_400), (whole as i64).rem_euclid(86_400)))
}

/// Writes a moment as seen from another: `in 5m`, `3h ago`, `now`.
pub(crate) fn relative(moment: Timestamp, now: Timestamp) -> String {
    let span = (moment - now).get();
    if span.abs() < 1.0 {
        "now".to_owned()
    } else if span > 0.0 {
        format!("in {}", duration::format(coarse(span)))
    } else {
        format!("{} ago", duration::format(coarse(-span)))
    }
}

/// Writes a moment as seen from another, and exactly.
pub(crate) fn when(moment: Timestamp, now: Timestamp) -> String {
    format!("{} ({})", relative(moment, now), format(moment))
}

/// Nobody needs the milliseconds of how long ago something was.
fn coarse(seconds: f64) -> f64 {
    seconds.round()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::new(seconds).unwrap()
    }

    #[test]
    fn moments_are_read() {
        for (text, seconds) in [
            ("0", 0.0),
            ("1700000000.25", 1_700_000_000.25),
            ("1970-01-01T00:00:00Z", 0.0),
            ("2026-04-01T12:00:00Z", 1_775_044_800.0),
            ("2026-04-01t12:00:00.5z", 1_775_044_800.5),
            ("2026-04-01 14:00:00+02:00", 1_775_044_800.0),
            ("2026-04-01T06:30:00-05:30", 1_775_044_800.0),
            ("2024-02-29T00:00:00Z", 1_709_164_800.0),
            ("2016-12-31T23:59:60Z", 1_483_228_800.0),
            ("0000-03-01T00:00:00Z", -62_162_035_200.0),
        ] {
            assert_eq!(parse(text), Ok(at(seconds)), "{text}");
        }
    }

    #[test]
    fn a_moment_to_come_may_be_told_from_now() {
        let ahead = (parse_ahead("1h30m").unwrap() - now()).get();
        assert!((5_399.0..5_401.0).contains(&ahead), "{ahead}");
        assert_eq!(parse_ahead("90"), Ok(at(90.0)));
        assert_eq!(parse_ahead("2026-04-01t12:00:00z"), Ok(at(1_775_044_800.0)));
        assert!(parse_ahead("soon").unwrap_err().contains("is not a moment"));
    }

    #[test]
    fn what_is_no_moment_is_refused_with_an_example() {
        for text in [
            "",
            "tomorrow",
            "2026-04-01",
            "2026-04-01T12:00Z",
            "2026-04-01T12:00:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-04-31T00:00:00Z",
            "2026-04-01T24:00:00Z",
            "2026-04-01T12:60:00Z",
            "2026-04-01T12:00:00.Z",
            "2026-04-01T12:00:00+25:00",
            "2026-04-01T12:00:00+0200",
            "2026-04-0é",
        ] {
            assert!(parse(text).unwrap_err().contains("write it like 2026-04-01T12:00:00Z"), "{text}");
        }
        assert!(parse("inf").unwrap_err().contains("finite"));
    }

    #[test]
    fn a_moment_is_written_as_it_can_be_read() {
        for seconds in [0.0, -1.0, 1_775_044_800.0, 951_782_400.0, 253_402_300_799.0, -62_167_219_200.0] {
            assert_eq!(parse(&format(at(seconds))), Ok(at(seconds)));
        }
        assert_eq!(format(at(1_775_044_800.9)), "2026-04-01T12:00:00Z");
        assert_eq!(format(at(1e20)), "100000000000000000000");
    }

    #[test]
    fn what_was_so_long_ago_is_read() {
        assert_eq!(parse_ago("2026-04-01T12:00:00Z"), Ok(at(1_775_044_800.0)));
        assert_eq!(parse_ago("1775044800"), Ok(at(1_775_044_800.0)));
        let (before, ago, after) = (now(), parse_ago("2h").unwrap(), now());
        assert!(before - Seconds::from(7_200) <= ago && ago <= after - Seconds::from(7_200));
        for text in ["soon", "yesterday", "-2h", "2x", ""] {
            assert!(parse_ago(text).unwrap_err().contains("like 2h"), "{text}");
        }
    }

    #[test]
    fn days_are_read() {
        for text in ["2026-04-01", "2026-04-01T12:00:00Z", "1775044800"] {
            assert_eq!(parse_day(text).map(format_day), Ok("2026-04-01".to_owned()), "{text}");
        }
        assert_eq!(parse_day("today"), Ok(now().day()));
        assert!(parse_day("2026-02-30").unwrap_err().contains("write it like 2026-04-01"));
    }

    #[test]
    fn moments_are_told_from_now() {
        let now = at(1_000.0);
        assert_eq!(relative(at(1_000.4), now), "now");
        assert_eq!(relative(at(1_090.2), now), "in 1m30s");
        assert_eq!(relative(at(995.4), now), "5s ago");
    }
}
