//! How long retries wait, as people write it: `30s`, `10s..1h`, `10sx3..1h+-0.2`. No shell needs it in quotes.

use geartrain::{Backoff, Seconds};

use crate::duration;

/// How much longer each wait is than the one before, if nobody says.
const FACTOR: f64 = 2.0;

/// Reads `FIRST[xFACTOR][..MAX][+-JITTER]`. Without `..MAX` it is always the same wait.
pub(crate) fn parse(text: &str) -> Result<Backoff, String> {
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
            return Err(bad("a wait that grows needs a longest one, as in 10sx3..1h"));
        }
        Some((first, factor)) => (span(first)?, number(factor).ok_or_else(|| bad(EXAMPLES))?),
        None => (span(first)?, if max.is_some() { FACTOR } else { 1.0 }),
    };
    // What the type refuses, it names itself.
    Backoff::exponential(first, factor, max.unwrap_or(first), jitter).map_err(|error| error.to_string())
}

const EXAMPLES: &str = "write it like 30s, 10s..1h or 10sx3..1h+-0.2";

fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if plain { text.parse().ok() } else { None }
}

/// Writes a backoff so that `parse` can read it, its spans rounded as spans are.
pub(crate) fn format(backoff: &Backoff) -> String {
    let (first, factor, max, jitter) = backoff.parts();
    let mut text = duration::format(first.get());
    if max > first && factor > 1.0 {
        if factor != FACTOR {
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
    use super::*;

    #[test]
    fn what_people_write_is_read() {
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
    fn what_makes_no_sense_is_refused_with_what_is_wrong() {
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
            ("10sx3", "a wait that grows needs a longest one"),
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
