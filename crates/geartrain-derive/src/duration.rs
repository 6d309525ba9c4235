//! Durations as people write them, `90`, `90s`, `1h30m`, `250ms`, and backoffs of retries, `30s`, `10s..1h`,
//! `10sx3..1h+-0.2`. The grammar is that of the command `geartrain`, whose tests include this file and compare
//! both.

use std::time::Duration;

/// The units, longest first, in milliseconds.
const UNITS: [(&str, u64); 6] =
    [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

const DURATIONS: &str = "write it like 90, 90s, 1h30m or 250ms";

/// The growth from one delay to the next, unless given.
const FACTOR_DEFAULT: f64 = 2.0;

const BACKOFFS: &str = "write it like 30s, 10s..1h or 10sx3..1h+-0.2";

/// Parses a duration of at most `seconds_max`. A bare number is seconds; units go from long to short, each at
/// most once.
pub(crate) fn parse(text: &str, seconds_max: f64) -> Result<Duration, String> {
    let bad = |why: &str| format!("{text:?} is not a duration: {why}");
    if text.starts_with('-') {
        return Err(bad("it is negative"));
    }
    let number = |digits: &str| digits.parse::<f64>().map_err(|_| bad(DURATIONS));
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let seconds = if text.chars().all(is_number) {
        number(text)?
    } else {
        let (mut rest, mut seconds, mut units) = (text, 0.0, &UNITS[..]);
        while !rest.is_empty() {
            let (digits, tail) = rest.split_at(rest.find(|c| !is_number(c)).ok_or_else(|| bad(DURATIONS))?);
            let (unit, tail) = tail.split_at(tail.find(is_number).unwrap_or(tail.len()));
            let index = units.iter().position(|(name, _)| *name == unit).ok_or_else(|| bad(DURATIONS))?;
            seconds += number(digits)? * units[index].1 as f64 / 1_000.0;
            units = &units[index + 1..];
            rest = tail;
        }
        seconds
    };
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds <= seconds_max);
    let duration = duration.ok_or_else(|| bad("it is too long"))?;
    // What is above zero stays above it.
    Ok(if seconds > 0.0 { duration.max(Duration::from_nanos(1)) } else { duration })
}

/// First wait, factor, longest wait and jitter; waits in seconds.
pub(crate) type BackoffParts = (f64, f64, f64, f64);

/// Parses `FIRST[xFACTOR][..MAX][+-JITTER]` with waits of at most `seconds_max`. Without `..MAX` the delay is
/// constant.
pub(crate) fn parse_backoff(text: &str, seconds_max: f64) -> Result<BackoffParts, String> {
    let bad = |why: &str| format!("{text:?} is not a backoff: {why}");
    let (waits, jitter) = match text.split_once("+-") {
        Some((waits, jitter)) => (waits, number(jitter).ok_or_else(|| bad(BACKOFFS))?),
        None => (text, 0.0),
    };
    let span = |text: &str| {
        let span = parse(text, f64::MAX).map_err(|_| bad(BACKOFFS))?.as_secs_f64();
        if span <= seconds_max { Ok(span) } else { Err(bad("a delay is at most ten years")) }
    };
    let (first, max) = match waits.split_once("..") {
        Some((first, max)) => (first, Some(span(max)?)),
        None => (waits, None),
    };
    let (first, factor) = match first.split_once('x') {
        Some(_) if max.is_none() => return Err(bad("a growing delay needs a maximum, as in 10sx3..1h")),
        Some((first, factor)) => (span(first)?, number(factor).ok_or_else(|| bad(BACKOFFS))?),
        None => (span(first)?, if max.is_some() { FACTOR_DEFAULT } else { 1.0 }),
    };
    let max = max.unwrap_or(first);
    if !(1.0..=1e6).contains(&factor) {
        return Err(bad("it grows by a factor of 1 to 1,000,000"));
    }
    if max < first {
        return Err(bad("its longest delay is shorter than its first"));
    }
    if jitter > 1.0 {
        return Err(bad("it varies by 0 to 1 times itself"));
    }
    Ok((first, factor, max, jitter))
}

fn number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_plain { text.parse().ok() } else { None }
}
