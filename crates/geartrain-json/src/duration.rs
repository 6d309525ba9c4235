//! Durations as people write them: `90`, `90s`, `1h30m`, `250ms`.

use std::time::Duration;

use geartrain_core::DELAY_MAX;

/// The units, longest first, in milliseconds.
const UNITS: [(&str, u64); 6] =
    [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses a duration. A bare number is seconds; units go from long to short, each at most once.
pub fn parse(text: &str) -> Result<Duration, String> {
    let bad = |why: &str| format!("{text:?} is not a duration: {why}");
    if text.starts_with('-') {
        return Err(bad("it is negative"));
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        let seconds: f64 = text.parse().map_err(|_| bad(EXAMPLES))?;
        return from_seconds(seconds).ok_or_else(|| bad(TOO_LONG));
    }
    let (mut rest, mut seconds, mut units) = (text, 0.0, &UNITS[..]);
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(|| bad(EXAMPLES))?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let index = units.iter().position(|(name, _)| *name == unit).ok_or_else(|| bad(EXAMPLES))?;
        let number: f64 = number.parse().map_err(|_| bad(EXAMPLES))?;
        seconds += number * units[index].1 as f64 / 1_000.0;
        units = &units[index + 1..];
        rest = tail;
    }
    from_seconds(seconds).ok_or_else(|| bad(TOO_LONG))
}

const EXAMPLES: &str = "write it like 90, 90s, 1h30m or 250ms";

const TOO_LONG: &str = "it is longer than a hundred years";

/// None if the number is negative, not finite, or longer than the longest delay.
pub fn from_seconds(seconds: f64) -> Option<Duration> {
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds <= DELAY_MAX.get())?;
    // What is above zero stays above it.
    Some(if seconds > 0.0 { duration.max(Duration::from_nanos(1)) } else { duration })
}

/// Formats a duration with its two largest units, so that `parse` can read it again.
pub fn format(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "-" } else { "" };
    let seconds = seconds.abs();
    // Milliseconds only matter below ten seconds.
    let mut left =
        if seconds < 10.0 { (seconds * 1_000.0).round() } else { seconds.round() * 1_000.0 } as u64;
    let mut text = String::from(sign);
    let mut parts = 0;
    for (unit, length) in UNITS {
        if left >= length {
            text.push_str(&format!("{}{unit}", left / length));
            left %= length;
            parts += 1;
        } else if parts == 0 {
            continue;
        } else {
            parts += 1; // a unit of zero still counts: 3d, not 3d5s
        }
        if parts == 2 {
            break;
        }
    }
    if parts == 0 { "0s".to_owned() } else { text }
}

/// The same grammar in the derive macro of the library.
#[cfg(test)]
#[path = "../../geartrain-derive/src/duration.rs"]
pub mod of_derive;

#[cfg(test)]
mod tests {
    use super::*;

    /// All texts of up to five characters.
    #[test]
    fn the_derive_macro_reads_the_same_durations() {
        let mut texts = vec![String::new()];
        let mut longest = texts.clone();
        for _ in 0..5 {
            let longer =
                |text: &String| "059.mshdw-x ".chars().map(|c| format!("{text}{c}")).collect::<Vec<_>>();
            longest = longest.iter().flat_map(longer).collect();
            texts.extend_from_slice(&longest);
        }
        texts.extend(["1w2d3h4m5s6ms", "3155760000", "3155760001", "36526d", "1e3"].map(String::from));
        let mut durations = 0;
        for text in texts {
            let (ours, derived) = (parse(&text).ok(), of_derive::parse(&text, DELAY_MAX.get()).ok());
            assert_eq!(ours, derived, "{text:?}");
            durations += usize::from(ours.is_some());
        }
        assert!(durations > 1_000, "{durations}");
    }

    #[test]
    fn durations_are_parsed() {
        for (text, milliseconds) in [
            ("0", 0),
            ("90", 90_000),
            ("90s", 90_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
            ("1.5", 1_500),
            ("1.5h", 5_400_000),
            ("1w2d3h4m5s6ms", 788_645_006),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn a_bad_duration_is_refused_with_an_example() {
        for text in
            ["", "s", "h1", "1x", "1.2.3", ".", "1h 30m", "30m1h", "1h1h", "1h30", "5S", "soon", "inf"]
        {
            let error = parse(text).unwrap_err();
            assert!(error.contains("write it like 90, 90s, 1h30m or 250ms"), "{text}: {error}");
        }
        assert_eq!(parse("-5").unwrap_err(), r#""-5" is not a duration: it is negative"#);
        assert_eq!(
            parse("99999999999999999999w").unwrap_err(),
            r#""99999999999999999999w" is not a duration: it is longer than a hundred years"#
        );
        for endless in ["3155760001", "36526d", "9999999999999999999999999", "1.8e19"] {
            assert!(parse(endless).is_err(), "{endless}");
        }
    }

    #[test]
    fn durations_are_formatted_short() {
        for (seconds, text) in [
            (0.0, "0s"),
            (0.0001, "0s"),
            (0.25, "250ms"),
            (1.5, "1s500ms"),
            (42.4, "42s"),
            (59.9, "1m"),
            (90.0, "1m30s"),
            (3_600.0, "1h"),
            (3_605.0, "1h"),
            (5_430.0, "1h30m"),
            (90_000.0, "1d1h"),
            (-90.0, "-1m30s"),
        ] {
            assert_eq!(format(seconds), text);
        }
    }
}
