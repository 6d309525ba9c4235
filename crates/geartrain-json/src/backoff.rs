//! Retry backoff as people write it: `30s`, `10s..1h`, `10sx3..1h+-0.2`. It needs no quotes in a shell.

use geartrain_core::{Backoff, Seconds};

use crate::duration;

/// The growth from one delay to the next, unless given.
const FACTOR_DEFAULT: f64 = 2.0;

/// Parses `FIRST[xFACTOR][..MAX][+-JITTER]`. Without `..MAX` the delay is constant.
pub fn parse(text: &str) -> Result<Backoff, String> {
    let bad = |why: &str| format!("{text:?} is not a backoff: {why}");
    let (waits, jitter) = match text.split_once("+-") {
        Some((waits, jitter)) => (waits, number(jitter).ok_or_else(|| bad(EXAMPLES))?),
        None => (text, 0.0),
    };
    let span = |text: &str| duration::parse(text).map(Seconds::from).map_err(|_| bad(EXAMPLES));
    let (first, max) = match waits.split_once("..") {
        Some((first, max)) => (first, Some(span(max)?)),
        None => (waits, None),
    };
    let (first, factor) = match first.split_once('x') {
        Some(_) if max.is_none() => {
            return Err(bad("a growing delay needs a maximum, as in 10sx3..1h"));
        }
        Some((first, factor)) => (span(first)?, number(factor).ok_or_else(|| bad(EXAMPLES))?),
        None => (span(first)?, if max.is_some() { FACTOR_DEFAULT } else { 1.0 }),
    };
    // The type's own errors name the value.
    Backoff::exponential(first, factor, max.unwrap_or(first), jitter).map_err(|error| error.to_string())
}

const EXAMPLES: &str = "write it like 30s, 10s..1h or 10sx3..1h+-0.2";

fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if plain { text.parse().ok() } else { None }
}

/// Formats a backoff so that `parse` can read it, with rounded durations.
pub fn format(backoff: &Backoff) -> String {
    let (first, factor, max, jitter) = backoff.parts();
    let mut text = duration::format(first.get());
    if max > first && factor > 1.0 {
        if factor != FACTOR_DEFAULT {
            text.push_str(&format!("x{factor}"));
        }
        text.push_str(&format!("..{}", duration::format(max.get())));
    }
    if jitter > 0.0 {
        text.push_str(&format!("+-{jitter}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use geartrain_core::DURATION_MAX;

    use super::*;
    use crate::duration::of_derive;

    #[test]
    fn the_derive_macro_reads_the_same_backoffs() {
        let mut backoffs = 0;
        for first in ["", "0", "30s", "1h", "-1", "600w", "s"] {
            for factor in ["", "x", "x1", "x2.5", "x0.5", "x1000001", "x-1", "xinf"] {
                for max in ["", "..", "..30s", "..1h", "..0", "..600w", "..-1"] {
                    for jitter in ["", "+-", "+-0", "+-0.5", "+-1", "+-1.1", "+--1", "+-inf"] {
                        let text = format!("{first}{factor}{max}{jitter}");
                        let parts = |backoff: Backoff| {
                            let (first, factor, max, jitter) = backoff.parts();
                            (first.get(), factor, max.get(), jitter)
                        };
                        let ours = parse(&text).ok().map(parts);
                        assert_eq!(
                            ours,
                            of_derive::parse_backoff(&text, DURATION_MAX.get()).ok(),
                            "{text:?}"
                        );
                        backoffs += usize::from(ours.is_some());
                    }
                }
            }
        }
        assert!(backoffs > 50, "{backoffs}");
    }

    #[test]
    fn backoffs_are_parsed() {
        let seconds = |seconds: i32| Seconds::from(seconds);
        for (text, parts) in [
            ("30s", (seconds(30), 1.0, seconds(30), 0.0)),
            ("0", (seconds(0), 1.0, seconds(0), 0.0)),
            ("1m30s+-0.5", (seconds(90), 1.0, seconds(90), 0.5)),
            ("10s..1h", (seconds(10), 2.0, seconds(3_600), 0.0)),
            ("10sx3..1h", (seconds(10), 3.0, seconds(3_600), 0.0)),
            ("10sx1.5..1h+-0.2", (seconds(10), 1.5, seconds(3_600), 0.2)),
        ] {
            let backoff = parse(text).unwrap();
            assert_eq!(backoff.parts(), parts, "{text}");
            if text != "0" {
                assert_eq!(format(&backoff), text);
            }
        }
    }

    #[test]
    fn a_bad_backoff_is_refused_with_what_is_wrong() {
        for (text, why) in [
            ("", "write it like 30s, 10s..1h or 10sx3..1h+-0.2"),
            ("soon", "write it like"),
            ("10s..", "write it like"),
            ("..1h", "write it like"),
            ("10sx..1h", "write it like"),
            ("10sx-2..1h", "write it like"),
            ("10sxinf..1h", "write it like"),
            ("10s+-", "write it like"),
            ("10s+--1", "write it like"),
            ("-5s", "write it like"),
            ("10sx3", "a growing delay needs a maximum"),
            ("10sx0.5..1h", "backoff must grow by a factor of 1 to 1,000,000, not 0.5"),
            ("1h..10s", "backoff must end with 3600 seconds to ten years, not 10"),
            ("10s+-1.5", "backoff must vary by 0 to 1 times itself, not 1.5"),
            ("600w", "backoff must begin with 0 seconds to ten years"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
