//! Timestamps as people write them: seconds since the epoch, or RFC 3339.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use geartrain::{DELAY_MAX, Seconds, Timestamp};
use jiff::civil::Date;
use jiff::tz::{Offset, TimeZone};

use crate::duration;

/// The time now, by this machine's clock.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO + Seconds::from(since)
}

/// Parses seconds since the epoch, or RFC 3339 with its offset. A leap second is the second before it.
pub(crate) fn parse(text: &str) -> Result<Timestamp, String> {
    let seconds = match text.parse::<f64>() {
        Ok(seconds) => seconds,
        Err(_) => match text.parse::<jiff::Timestamp>() {
            Ok(timestamp) => timestamp.as_duration().as_secs_f64(),
            Err(_) => {
                return Err(format!(
                    "{text:?} is not a time: write it like 2026-04-01T12:00:00Z, or in seconds since the epoch"
                ));
            }
        },
    };
    Timestamp::new(seconds).map_err(|error| error.to_string())
}

/// Parses a time at which something starts: as `parse` does, and not too far ahead.
pub(crate) fn parse_start(text: &str) -> Result<Timestamp, String> {
    parse(text).and_then(near)
}

/// Refuses a time that is longer ahead than the longest delay.
pub(crate) fn near(time: Timestamp) -> Result<Timestamp, String> {
    if time - now() <= DELAY_MAX {
        return Ok(time);
    }
    Err("it is more than a hundred years ahead: a number is in seconds since the epoch, not in milliseconds"
        .to_owned())
}

/// Parses a time in the future: as `parse_start` does, or a duration from now, with its unit.
pub(crate) fn parse_ahead(text: &str) -> Result<Timestamp, String> {
    parse_start(text).or_else(|why| match duration_with_unit(text) {
        Some(span) => Ok(now() + span),
        None => Err(why),
    })
}

/// Parses a time in the past: as `parse` does, or a duration before now, with its unit.
pub(crate) fn parse_ago(text: &str) -> Result<Timestamp, String> {
    parse(text).or_else(|why| match duration_with_unit(text) {
        Some(span) => Ok(now() - span),
        None => Err(format!("{why}, or how long ago it was, like 2h")),
    })
}

fn duration_with_unit(text: &str) -> Option<Seconds> {
    let has_unit = text.ends_with(|c: char| c.is_ascii_lowercase());
    has_unit.then(|| duration::parse(text).ok().map(Seconds::from)).flatten()
}

/// Parses a day: `today`, `yesterday`, a date, or any time of it. Days are in UTC.
pub(crate) fn parse_day(text: &str) -> Result<Timestamp, String> {
    match text {
        "today" => Ok(now().day()),
        "yesterday" => Ok((now() - Seconds::from(86_400)).day()),
        _ => parse(text)
            .or_else(|_| date(text))
            .map(Timestamp::day)
            .map_err(|_| format!("{text:?} is not a day: write it like 2026-04-01, or today, or yesterday")),
    }
}

fn date(text: &str) -> Result<Timestamp, String> {
    let date: Date = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    let midnight = Offset::UTC.to_timestamp(date.at(0, 0, 0, 0)).map_err(|error| error.to_string())?;
    Timestamp::new(midnight.as_second() as f64).map_err(|error| error.to_string())
}

/// The date of a timestamp, in UTC.
pub(crate) fn format_day(time: Timestamp) -> String {
    whole_seconds(time)
        .map_or_else(|| time.to_string(), |time| Offset::UTC.to_datetime(time).date().to_string())
}

/// The zone in which times are shown; UTC if it is not set.
static ZONE: OnceLock<TimeZone> = OnceLock::new();

/// Shows times in the zone of this machine from now on; in UTC if it is not known.
pub(crate) fn use_local_zone() {
    if let Ok(zone) = TimeZone::try_system() {
        // An error means that it was set before.
        let _ = ZONE.set(zone);
    }
}

/// A timestamp to the second, with its zone, so that `parse` can read it again.
pub(crate) fn format(time: Timestamp) -> String {
    format_in(ZONE.get(), time)
}

fn format_in(zone: Option<&TimeZone>, time: Timestamp) -> String {
    let Some(seconds) = whole_seconds(time) else { return time.to_string() };
    match zone.map(|zone| zone.to_offset(seconds)) {
        None | Some(Offset::UTC) => seconds.to_string(),
        Some(offset) => seconds.display_with_offset(offset).to_string(),
    }
}

/// Rounded down; none if the year has more than four digits.
fn whole_seconds(time: Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_second(time.get().floor() as i64).ok()
}

/// A timestamp relative to now: `in 5m`, `3h ago`, `now`. Rounded to seconds.
pub(crate) fn relative(time: Timestamp, now: Timestamp) -> String {
    let span = (time - now).get();
    if span.abs() < 1.0 {
        "now".to_owned()
    } else if span > 0.0 {
        format!("in {}", duration::format(span.round()))
    } else {
        format!("{} ago", duration::format((-span).round()))
    }
}

/// A timestamp relative to now, and exactly.
pub(crate) fn when(time: Timestamp, now: Timestamp) -> String {
    format!("{} ({})", relative(time, now), format(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::new(seconds).unwrap()
    }

    #[test]
    fn timestamps_are_parsed() {
        for (text, seconds) in [
            ("0", 0.0),
            ("1700000000.25", 1_700_000_000.25),
            ("1970-01-01T00:00:00Z", 0.0),
            ("2026-04-01T12:00:00Z", 1_775_044_800.0),
            ("2026-04-01t12:00:00.5z", 1_775_044_800.5),
            ("2026-04-01 14:00:00+02:00", 1_775_044_800.0),
            ("2026-04-01T06:30:00-05:30", 1_775_044_800.0),
            ("2026-04-01T14:00:00+0200", 1_775_044_800.0),
            ("2026-04-01T12:00Z", 1_775_044_800.0),
            ("2024-02-29T00:00:00Z", 1_709_164_800.0),
            ("2016-12-31T23:59:60Z", 1_483_228_799.0),
            ("0000-03-01T00:00:00Z", -62_162_035_200.0),
        ] {
            assert_eq!(parse(text), Ok(at(seconds)), "{text}");
        }
    }

    #[test]
    fn a_future_time_may_be_relative_to_now() {
        let ahead = (parse_ahead("1h30m").unwrap() - now()).get();
        assert!((5_399.0..5_401.0).contains(&ahead), "{ahead}");
        assert_eq!(parse_ahead("90"), Ok(at(90.0)));
        assert_eq!(parse_ahead("2026-04-01t12:00:00z"), Ok(at(1_775_044_800.0)));
        assert!(parse_ahead("soon").unwrap_err().contains("is not a time"));
    }

    #[test]
    fn a_time_in_milliseconds_is_refused_where_it_would_never_come() {
        for text in ["1770000000000", "9999-12-30T00:00:00Z", "1e300"] {
            for refused in [parse_start(text), parse_ahead(text)] {
                assert!(refused.unwrap_err().contains("not in milliseconds"), "{text}");
            }
            assert!(parse(text).is_ok(), "{text}");
        }
        assert_eq!(parse_start("1775044800"), Ok(at(1_775_044_800.0)));
        assert_eq!(parse_start("-5"), Ok(at(-5.0)));
    }

    #[test]
    fn what_is_no_timestamp_is_refused_with_an_example() {
        for text in [
            "",
            "tomorrow",
            "2026-04-01",
            "2026-04-01T12:00:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-04-31T00:00:00Z",
            "2026-04-01T24:00:00Z",
            "2026-04-01T12:60:00Z",
            "2026-04-01T12:00:00.Z",
            "2026-04-01T12:00:00+26:00",
            "2026-04-0é",
        ] {
            assert!(parse(text).unwrap_err().contains("write it like 2026-04-01T12:00:00Z"), "{text}");
        }
        assert!(parse("inf").unwrap_err().contains("finite"));
    }

    #[test]
    fn a_formatted_timestamp_parses_again() {
        for seconds in [0.0, -1.0, 1_775_044_800.0, 951_782_400.0, 253_402_300_799.0, -62_167_219_200.0] {
            assert_eq!(parse(&format(at(seconds))), Ok(at(seconds)));
        }
        assert_eq!(format(at(1_775_044_800.9)), "2026-04-01T12:00:00Z");
        assert_eq!(format(at(1e20)), "100000000000000000000");
    }

    #[test]
    fn a_past_time_may_be_relative_to_now() {
        assert_eq!(parse_ago("2026-04-01T12:00:00Z"), Ok(at(1_775_044_800.0)));
        assert_eq!(parse_ago("1775044800"), Ok(at(1_775_044_800.0)));
        let (before, ago, after) = (now(), parse_ago("2h").unwrap(), now());
        assert!(before - Seconds::from(7_200) <= ago && ago <= after - Seconds::from(7_200));
        for text in ["soon", "yesterday", "-2h", "2x", ""] {
            assert!(parse_ago(text).unwrap_err().contains("like 2h"), "{text}");
        }
    }

    #[test]
    fn days_are_parsed() {
        for text in ["2026-04-01", "2026-04-01T12:00:00Z", "1775044800"] {
            assert_eq!(parse_day(text).map(format_day), Ok("2026-04-01".to_owned()), "{text}");
        }
        assert_eq!(parse_day("today"), Ok(now().day()));
        assert!(parse_day("2026-02-30").unwrap_err().contains("write it like 2026-04-01"));
    }

    #[test]
    fn a_timestamp_is_shown_in_a_zone_and_can_be_read_again() {
        let time = at(1_775_044_800.0);
        let kathmandu =
            TimeZone::fixed(jiff::tz::offset(5).saturating_add(jiff::SignedDuration::from_mins(45)));
        for (zone, text) in [
            (None, "2026-04-01T12:00:00Z"),
            (Some(TimeZone::UTC), "2026-04-01T12:00:00Z"),
            (Some(kathmandu), "2026-04-01T17:45:00+05:45"),
            (Some(TimeZone::fixed(jiff::tz::offset(-3))), "2026-04-01T09:00:00-03:00"),
        ] {
            assert_eq!(format_in(zone.as_ref(), time), text);
            assert_eq!(parse(text), Ok(time));
        }
    }

    #[test]
    fn timestamps_are_shown_relative_to_now() {
        let now = at(1_000.0);
        assert_eq!(relative(at(1_000.4), now), "now");
        assert_eq!(relative(at(1_090.2), now), "in 1m30s");
        assert_eq!(relative(at(995.4), now), "5s ago");
    }
}
