//! Cron expressions and plain-English times.

#[path = "schedule/cron.rs"]
mod cron;
#[path = "schedule/phrase.rs"]
mod phrase;
#[path = "schedule/search.rs"]
mod search;

use geartrain_core::Timestamp;
use geartrain_core::schedule::Zone;

/// A timestamp in RFC 3339.
fn time(text: &str) -> Timestamp {
    let time: jiff::Timestamp = text.parse().unwrap();
    Timestamp::new(time.as_duration().as_secs_f64()).unwrap()
}

/// A timestamp in UTC.
fn utc(time: Timestamp) -> String {
    Zone::UTC.format(time)
}

/// 5 March 2014 was a Wednesday.
const NOW: &str = "2014-03-05T09:34:16Z";
