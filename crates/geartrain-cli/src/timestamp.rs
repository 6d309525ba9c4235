//! Timestamps as people write them: seconds since the epoch, RFC 3339, or a phrase such as `7pm tomorrow`.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use geartrain::schedule::{Zone, Zones, parse_past};
use geartrain::{Seconds, Timestamp};
pub(crate) use geartrain_json::time::{Moment, format_day, parse};
use geartrain_json::time::{Times, whole_seconds};
use jiff::civil::Date;
use jiff::tz::Offset;

use crate::duration;

/// The time now, by this machine's clock.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO + Seconds::from(since)
}

thread_local! {
    /// The zone of `--zone` or `--utc`. The values of other options depend on it, and clap parses each of
    /// them alone, so it is set before.
    static READING: RefCell<Option<Zone>> = const { RefCell::new(None) };
}

/// Reads phrases in a zone from now on; without one, moments in the zone of this machine, and recurrences in
/// UTC.
pub(crate) fn read_in(zone: Option<Zone>) {
    READING.set(zone);
}

/// The zones for phrases that name none.
pub(crate) fn zones() -> Result<Zones, String> {
    match READING.with_borrow(Clone::clone) {
        Some(zone) => Ok(Zones::both(zone)),
        None => match Zone::system() {
            Ok(once) => Ok(Zones { once, recurring: Zone::UTC }),
            Err(why) => Err(format!("the local time zone is not known, so give --zone: {why}")),
        },
    }
}

/// The present, and the zones of phrases.
pub(crate) fn times() -> Times {
    Times { now: now(), zones }
}

/// Parses a time at which something starts: as `parse` does, or a phrase for a time in the future; not too
/// far ahead.
pub(crate) fn parse_start(text: &str) -> Result<Moment, String> {
    times().start(text)
}

/// Parses a time in the future: as `parse_start` does, or a duration from now, with its unit.
pub(crate) fn parse_ahead(text: &str) -> Result<Moment, String> {
    times().ahead(text)
}

/// Parses a time in the past: as `parse` does, a duration before now, with its unit, or a phrase.
pub(crate) fn parse_ago(text: &str) -> Result<Moment, String> {
    times().ago(text)
}

/// Parses a time in the past or the future.
pub(crate) fn parse_any(text: &str) -> Result<Moment, String> {
    parse_ago(text).or_else(|_| parse_start(text))
}

/// Parses a day: `today`, `yesterday`, a date, or any time of it. Days are in UTC.
pub(crate) fn parse_day(text: &str) -> Result<Timestamp, String> {
    match text {
        "today" => Ok(now().day()),
        "yesterday" => Ok((now() - Seconds::from(86_400)).day()),
        _ => parse(text)
            .or_else(|_| date(text))
            .or_else(|_| parse_past(text, now(), &Zone::UTC).map_err(|error| error.to_string()))
            .map(Timestamp::day)
            .map_err(|_| format!("{text:?} is not a day: write it like 2026-04-01, or today, or yesterday")),
    }
}

fn date(text: &str) -> Result<Timestamp, String> {
    let date: Date = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    let midnight = Offset::UTC.to_timestamp(date.at(0, 0, 0, 0)).map_err(|error| error.to_string())?;
    Timestamp::new(midnight.as_second() as f64).map_err(|error| error.to_string())
}

/// The zone in which times are shown; UTC if it is not set.
static ZONE: OnceLock<Zone> = OnceLock::new();

/// Shows times in this zone from now on; without one, in the zone of this machine, or in UTC if it is not
/// known.
pub(crate) fn show_in(zone: Option<Zone>) {
    if let Some(zone) = zone.or_else(|| Zone::system().ok()) {
        // An error means that it was set before.
        let _ = ZONE.set(zone);
    }
}

/// A timestamp to the second, with its zone, so that `parse` can read it again.
pub(crate) fn format(time: Timestamp) -> String {
    match whole_seconds(time) {
        Some(_) => ZONE.get().unwrap_or(&Zone::UTC).format(time),
        None => time.to_string(),
    }
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
        let ahead = (parse_ahead("1h30m").unwrap().at - now()).get();
        assert!((5_399.0..5_401.0).contains(&ahead), "{ahead}");
        assert_eq!(parse_ahead("90"), Ok(Moment::exact(at(90.0))));
        assert_eq!(parse_ahead("2026-04-01t12:00:00z"), Ok(Moment::exact(at(1_775_044_800.0))));
        assert!(parse_ahead("soon").unwrap_err().contains("is not a time"));
    }

    #[test]
    fn phrases_are_read_in_the_zone_that_is_set() {
        let new_year = |text: &str| parse_start(text).map(|moment| (moment.at.get(), moment.is_phrase));
        read_in(Some(Zone::UTC));
        assert_eq!(new_year("2100-01-01"), Ok((4_102_444_800.0, true)));
        assert_eq!(new_year("1 january 2100 at 1am Europe/Berlin"), Ok((4_102_444_800.0, true)));
        read_in(Some(Zone::named("Europe/Berlin").unwrap()));
        assert_eq!(new_year("2100-01-01 01:00"), Ok((4_102_444_800.0, true)));
        assert_eq!(new_year("2100-01-01T00:00:00Z"), Ok((4_102_444_800.0, false)));
        let tomorrow = parse_ahead("tomorrow").unwrap().at;
        assert!(tomorrow > now() && tomorrow - now() <= Seconds::from(90_000));
        for (text, why) in [
            ("yesterday", "in the past"),
            ("every day", "it recurs"),
            ("*/5 * * * *", "it recurs"),
            ("7pm tomorow", "\"tomorow\" at byte 4"),
            ("nan", "finite"),
        ] {
            assert!(parse_start(text).unwrap_err().contains(why), "{text}");
        }
        let yesterday = parse_ago("yesterday").unwrap();
        assert!(yesterday.is_phrase && now() - yesterday.at < Seconds::from(180_000));
        assert!(parse_ago("tomorrow").unwrap_err().contains("in the future"));
        assert!(parse_any("tomorrow").is_ok() && parse_any("yesterday").is_ok());
    }

    #[test]
    fn a_time_in_milliseconds_is_refused_where_it_would_never_come() {
        for text in ["1770000000000", "9999-12-30T00:00:00Z", "1e300"] {
            for refused in [parse_start(text), parse_ahead(text)] {
                assert!(refused.unwrap_err().contains("not in milliseconds"), "{text}");
            }
            assert!(parse(text).is_ok(), "{text}");
        }
        assert_eq!(parse_start("1775044800"), Ok(Moment::exact(at(1_775_044_800.0))));
        assert_eq!(parse_start("-5"), Ok(Moment::exact(at(-5.0))));
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
        assert_eq!(parse_ago("2026-04-01T12:00:00Z"), Ok(Moment::exact(at(1_775_044_800.0))));
        assert_eq!(parse_ago("1775044800"), Ok(Moment::exact(at(1_775_044_800.0))));
        let (before, ago, after) = (now(), parse_ago("2h").unwrap().at, now());
        assert!(before - Seconds::from(7_200) <= ago && ago <= after - Seconds::from(7_200));
        for text in ["soon", "tomorrow", "-2h", "2x", ""] {
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
        for (zone, text) in [
            ("UTC", "2026-04-01T12:00:00Z"),
            ("Africa/Abidjan", "2026-04-01T12:00:00Z"),
            ("Asia/Kathmandu", "2026-04-01T17:45:00+05:45"),
            ("America/Sao_Paulo", "2026-04-01T09:00:00-03:00"),
        ] {
            assert_eq!(Zone::named(zone).unwrap().format(time), text);
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
