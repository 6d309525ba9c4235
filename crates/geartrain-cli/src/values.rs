//! Value parsers that several commands share.

use std::str::FromStr;

use clap::builder::{OsStringValueParser, TypedValueParser};
use geartrain::schedule::Zone;
use geartrain::{Count, Priority, Seconds, UniqueKey};
pub(crate) use geartrain_json::put::policy;
use geartrain_json::time::allowed_span;
pub(crate) use geartrain_json::time::{Delay, length};

use crate::timestamp;

pub(crate) fn priority(text: &str) -> Result<Priority, String> {
    let number: f64 = text.parse().map_err(|_| "it is not a number".to_owned())?;
    Priority::new(number).map_err(|error| error.to_string())
}

pub(crate) fn count(text: &str) -> Result<Count, String> {
    let number: i64 = text.parse().map_err(|_| "it is not a whole number".to_owned())?;
    Count::new(number).map_err(|error| error.to_string())
}

pub(crate) fn at_least_one(text: &str) -> Result<Count, String> {
    let count = count(text)?;
    if count.get() == 0 { Err("it must be at least 1".to_owned()) } else { Ok(count) }
}

/// A duration from now: as `length`, or with months and years.
pub(crate) fn delay(text: &str) -> Result<Delay, String> {
    timestamp::times().delay(text)
}

/// A zone by its IANA name.
pub(crate) fn zone(text: &str) -> Result<Zone, String> {
    Zone::named(text).map_err(|error| error.to_string())
}

/// A duration above zero and up to ten years.
pub(crate) fn span(text: &str) -> Result<Seconds, String> {
    allowed_span(length(text)?.into())
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

/// How similar two names must be for one to be proposed for the other.
const SIMILARITY_MIN: f64 = 0.85;

/// The name with the highest similarity, if one is similar enough.
pub(crate) fn closest<T>(names: impl Iterator<Item = (f64, T)>) -> Option<T> {
    let best = names.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(similarity, _)| *similarity >= SIMILARITY_MIN).map(|(_, name)| name)
}

/// A unique key: any bytes.
pub(crate) fn unique_key() -> impl TypedValueParser<Value = UniqueKey> {
    OsStringValueParser::new().try_map(|text| UniqueKey::new(text.as_encoded_bytes()))
}
