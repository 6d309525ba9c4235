//! Durations as people write them: `90`, `90s`, `1h30m`, `250ms`. The grammar is that of the command
//! `geartrain`, whose tests include this file and compare both.

use std::time::Duration;

/// The units, longest first, in milliseconds.
const UNITS: [(&str, u64); 6] =
    [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

const EXAMPLES: &str = "write it like 90, 90s, 1h30m or 250ms";

/// Parses a duration of at most `seconds_max`. A bare number is seconds; units go from long to short, each at
/// most once.
pub(crate) fn parse(text: &str, seconds_max: f64) -> Result<Duration, String> {
    let bad = |why: &str| format!("{text:?} is not a duration: {why}");
    if text.starts_with('-') {
        return Err(bad("it is negative"));
    }
    let number = |digits: &str| digits.parse::<f64>().map_err(|_| bad(EXAMPLES));
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let seconds = if text.chars().all(is_number) {
        number(text)?
    } else {
        let (mut rest, mut seconds, mut units) = (text, 0.0, &UNITS[..]);
        while !rest.is_empty() {
            let (digits, tail) = rest.split_at(rest.find(|c| !is_number(c)).ok_or_else(|| bad(EXAMPLES))?);
            let (unit, tail) = tail.split_at(tail.find(is_number).unwrap_or(tail.len()));
            let index = units.iter().position(|(name, _)| *name == unit).ok_or_else(|| bad(EXAMPLES))?;
            seconds += number(digits)? * units[index].1 as f64 / 1_000.0;
            units = &units[index + 1..];
            rest = tail;
        }
        seconds
    };
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds <= seconds_max);
    duration.ok_or_else(|| bad("it is too long"))
}
