//! Backoff of retries as people write it: `30s`, `10s..1h`, `10sx3..1h+-0.2`. The grammar is that of the
//! command `geartrain`, whose tests include this file and compare both.

use super::duration;

/// The growth from one delay to the next, unless given.
const FACTOR_DEFAULT: f64 = 2.0;

const EXAMPLES: &str = "write it like 30s, 10s..1h or 10sx3..1h+-0.2";

/// First wait, factor, longest wait and jitter; waits in seconds.
pub(crate) type Parts = (f64, f64, f64, f64);

/// Parses `FIRST[xFACTOR][..MAX][+-JITTER]` with waits of at most `seconds_max`. Without `..MAX` the delay is
/// constant.
pub(crate) fn parse(text: &str, seconds_max: f64) -> Result<Parts, String> {
    let bad = |why: &str| format!("{text:?} is not a backoff: {why}");
    let (waits, jitter) = match text.split_once("+-") {
        Some((waits, jitter)) => (waits, number(jitter).ok_or_else(|| bad(EXAMPLES))?),
        None => (text, 0.0),
    };
    let span = |text: &str| {
        let span = duration::parse(text, f64::MAX).map_err(|_| bad(EXAMPLES))?.as_secs_f64();
        if span <= seconds_max { Ok(span) } else { Err(bad("a delay is at most ten years")) }
    };
    let (first, max) = match waits.split_once("..") {
        Some((first, max)) => (first, Some(span(max)?)),
        None => (waits, None),
    };
    let (first, factor) = match first.split_once('x') {
        Some(_) if max.is_none() => return Err(bad("a growing delay needs a maximum, as in 10sx3..1h")),
        Some((first, factor)) => (span(first)?, number(factor).ok_or_else(|| bad(EXAMPLES))?),
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
