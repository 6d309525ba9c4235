//! Value parsers that several commands share.

use std::str::FromStr;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use geartrain::schedule::{BadSchedule, Zone, parse_delay, parse_span};
use geartrain::{Count, DURATION_MAX, DependencyPolicy, Priority, Seconds, UniqueKey};

use crate::{duration, timestamp};

pub(crate) fn priority(text: &str) -> Result<Priority, String> {
    let number: f64 = text.parse().map_err(|_| "it is not a number".to_owned())?;
    Priority::new(number).map_err(|error| error.to_string())
}

pub(crate) fn policy(text: &str) -> Result<DependencyPolicy, String> {
    text.parse().map_err(|_| format!("{text:?} is not a policy: use wait, fail, skip or run"))
}

pub(crate) fn count(text: &str) -> Result<Count, String> {
    let number: i64 = text.parse().map_err(|_| "it is not a whole number".to_owned())?;
    Count::new(number).map_err(|error| error.to_string())
}

pub(crate) fn at_least_one(text: &str) -> Result<Count, String> {
    let count = count(text)?;
    if count.get() == 0 { Err("it must be at least 1".to_owned()) } else { Ok(count) }
}

/// A duration: `90`, `1h30m`, or in words: `5 minutes`.
pub(crate) fn length(text: &str) -> Result<Duration, String> {
    duration::parse(text).or_else(|why| {
        let span = parse_span(text).map_err(|phrase| not_a_duration(text, &why, &phrase))?;
        duration::from_seconds(span.get()).ok_or(why)
    })
}

/// One word is taken for the short form; several of them for a phrase, and the error points at one of them.
fn not_a_duration(text: &str, why: &str, phrase: &BadSchedule) -> String {
    if text.contains(' ') { format!("{text:?} is not a duration: {phrase}") } else { why.to_owned() }
}

/// A duration from now: as `length`, or with months and years.
pub(crate) fn delay(text: &str) -> Result<Delay, String> {
    if let Ok(length) = duration::parse(text) {
        return Ok(Delay { length, is_phrase: false });
    }
    let length = length(text).or_else(|why| {
        let (now, zone) = (timestamp::now(), timestamp::zones()?.once);
        let due = parse_delay(text, now, &zone).map_err(|phrase| not_a_duration(text, &why, &phrase))?;
        duration::from_seconds((due - now).get()).ok_or(why)
    })?;
    Ok(Delay { length, is_phrase: true })
}

/// A duration from now, and whether it was written as a phrase.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delay {
    pub(crate) length: Duration,
    pub(crate) is_phrase: bool,
}

/// A zone by its IANA name.
pub(crate) fn zone(text: &str) -> Result<Zone, String> {
    Zone::named(text).map_err(|error| error.to_string())
}

/// A duration above zero and up to ten years.
pub(crate) fn span(text: &str) -> Result<Seconds, String> {
    allowed_span(length(text)?.into())
}

pub(crate) fn allowed_span(span: Seconds) -> Result<Seconds, String> {
    if span > Seconds::ZERO && span <= DURATION_MAX {
        return Ok(span);
    }
    Err("it must be more than 0 and at most ten years".to_owned())
}

/// A position or an offset.
pub(crate) fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "it must be a whole number of 0 or more".to_owned())
}

/// A limit of at least 1.
pub(crate) fn limit(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(limit) if limit > 0 => Ok(limit),
        _ => Err("it must be a whole number of at least 1".to_owned()),
    }
}

/// A number of bytes: `512mb`, or a number alone.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let end = lower.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(lower.len());
    let (number, unit) = lower.split_at(end);
    let shift = match unit.trim() {
        "" | "b" => 0,
        "k" | "kb" => 10,
        "m" | "mb" => 20,
        "g" | "gb" => 30,
        _ => return Err(format!("{text:?} is not a size: write it like 512mb or 2gb")),
    };
    let number: Option<u64> = number.parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("{text:?} is not a size: write it like 512mb or 2gb"))
}

/// A unique key: any bytes.
pub(crate) fn unique_key() -> impl TypedValueParser<Value = UniqueKey> {
    OsStringValueParser::new().try_map(|text| UniqueKey::new(text.as_encoded_bytes()))
}
