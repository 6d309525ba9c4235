//! Rate limits as people write them: `10/s`, `100/1m`, `100/1m+20`.

use geartrain_core::{Rate, Seconds};

use crate::duration;

/// Parses `COUNT/SPAN[+BURST]`; `s` is `1s`.
pub fn parse(text: &str) -> Result<Rate, String> {
    let bad = || format!("{text:?} is not a rate: write it like 10/s, 100/1m or 100/1m+20");
    let (count, span) = text.split_once('/').ok_or_else(bad)?;
    let (span, burst) = match span.split_once('+') {
        Some((span, burst)) => (span, whole(burst).ok_or_else(bad)?),
        None => (span, 1),
    };
    let count = whole(count).ok_or_else(bad)?;
    let one = if span.starts_with(|c: char| c.is_ascii_alphabetic()) { "1" } else { "" };
    let span = duration::parse(&format!("{one}{span}")).map_err(|_| bad())?;
    Rate::new(count, Seconds::from(span), burst).map_err(|error| error.to_string())
}

fn whole(text: &str) -> Option<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Formats a rate so that `parse` can read it, with a rounded duration.
pub fn format(rate: Rate) -> String {
    let burst = if rate.burst() == 1 { String::new() } else { format!("+{}", rate.burst()) };
    format!("{}/{}{burst}", rate.count(), duration::format(rate.per().get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed() {
        for (text, count, per, burst, again) in [
            ("10/s", 10, 1, 1, "10/1s"),
            ("100/1m", 100, 60, 1, "100/1m"),
            ("100/m+20", 100, 60, 20, "100/1m+20"),
            ("1/90", 1, 90, 1, "1/1m30s"),
        ] {
            let rate = parse(text).unwrap();
            assert_eq!(
                (rate.count(), rate.per(), rate.burst()),
                (count, Seconds::from(per), burst),
                "{text}"
            );
            assert_eq!(format(rate), again);
        }
    }

    #[test]
    fn a_bad_rate_is_refused_with_what_is_wrong() {
        for text in ["", "10", "/", "10/", "/s", "-1/s", "10/x", "10/s+", "10/s+-1", "1.5/s", "99999999999/s"]
        {
            let error = parse(text).unwrap_err();
            assert!(error.contains("is not a rate: write it like 10/s"), "{text}: {error}");
        }
        for text in ["0/s", "10/s+0"] {
            assert!(parse(text).unwrap_err().contains("to let none start, pause the queue"), "{text}");
        }
        for text in ["10/0", "10/600w"] {
            assert!(parse(text).unwrap_err().contains("must be for a time of up to ten years"), "{text}");
        }
    }
}
