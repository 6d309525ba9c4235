//! Cron strings of a schedule: the order of their fields, and the times of runs.

use geartrain_core::schedule::Schedule;
use geartrain_core::{Refusal, Timestamp};

/// The order of the seven fields in cron strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CronOrder {
    /// Year, month, day of month, day of week, hour, minute, second, as WorkKit's document has it.
    #[default]
    Document,
    /// Second, minute, hour, month, day of month, day of week, year, as the code of Cuckoo has it. The year,
    /// and the second with it, may be left out.
    Cuckoo,
}

impl CronOrder {
    /// Parses a cron string; the error says what is wrong with it.
    pub(super) fn parse(self, cron: &str) -> Result<Schedule, String> {
        let fields: Vec<&str> = cron.split([' ', '\t']).filter(|field| !field.is_empty()).collect();
        match self {
            CronOrder::Document => Schedule::parse_seven(cron).map_err(|error| {
                let is_year = |field: Option<&&str>| {
                    field.is_some_and(|field| field.len() >= 4 && field.bytes().all(|b| b.is_ascii_digit()))
                };
                let looks_reversed = matches!(fields.len(), 5 | 6)
                    || fields.len() == 7 && !is_year(fields.first()) && is_year(fields.last());
                let hint = if looks_reversed {
                    "; the fields may be in the order of Cuckoo: connect with ?cron_order=cuckoo"
                } else {
                    ""
                };
                format!("{error}{hint}")
            }),
            CronOrder::Cuckoo => {
                let (second, rest) = match fields[..] {
                    [second, ref rest @ ..] if fields.len() > 5 => (second, rest),
                    ref rest => ("0", rest),
                };
                let [minute, hour, month, day, weekday, ref year @ ..] = *rest else {
                    return Err("a cron string has 5, 6 or 7 fields".to_owned());
                };
                let year = match *year {
                    [] => "*",
                    [year] => year,
                    _ => return Err("a cron string has 5, 6 or 7 fields".to_owned()),
                };
                let fields = format!("{year} {month} {day} {weekday} {hour} {minute} {second}");
                Schedule::parse_seven(&fields).map_err(|error| error.to_string())
            }
        }
    }

    /// Writes a schedule as seven fields; none if they cannot express it.
    pub(super) fn write(self, schedule: &Schedule) -> Option<String> {
        let text = schedule.canonical()?;
        if self == CronOrder::Document {
            return Some(text);
        }
        let fields: Vec<&str> = text.split(' ').collect();
        let [year, month, day, weekday, hour, minute, second] = fields[..] else { return None };
        Some(format!("{second} {minute} {hour} {month} {day} {weekday} {year}"))
    }
}

/// The cron string of a job that runs once, and its time: this second, or the first one after a delay.
pub(super) fn once(at: Timestamp, order: CronOrder) -> Result<(String, Timestamp), Refusal> {
    // To the millisecond, as scores are: a time that was added up from parts may be a hair above its second.
    let at = Timestamp::new((at.get() * 1_000.0).round() / 1_000.0).unwrap_or(at);
    let cron = || {
        let schedule = Schedule::once(at)?;
        Some((order.write(&schedule)?, schedule.first(at)?))
    };
    cron().ok_or_else(|| Refusal::BadArgument {
        what: "delay".into(),
        why: "must end between the years 1970 and 9999".into(),
    })
}

/// Milliseconds since the epoch, as in scores.
pub(super) fn milliseconds(time: Timestamp) -> i64 {
    (time.get() * 1_000.0).floor() as i64
}

/// The time of a score.
pub(super) fn time_of(score: f64) -> Timestamp {
    Timestamp::new(score / 1_000.0).unwrap_or_default()
}

/// The first run of a job that is put now.
pub(super) fn first_run(schedule: &Schedule, now: Timestamp) -> Result<Timestamp, Refusal> {
    schedule.first(now).ok_or_else(|| Refusal::BadArgument {
        what: "cron".into(),
        why: format!("{schedule} never comes again"),
    })
}

/// The run after one that is taken now. Without `catch_up`, runs that were missed until now are skipped.
pub(super) fn next_run(schedule: &Schedule, score: f64, now: Timestamp, catch_up: bool) -> Option<Timestamp> {
    let run = time_of(score);
    schedule.next(if catch_up { run } else { run.max(now) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2014-03-05T09:34:16Z.
    fn at(seconds: f64) -> Timestamp {
        Timestamp::new(1_394_012_056.0 + seconds).expect("finite")
    }

    fn parse(cron: &str) -> Schedule {
        CronOrder::Document.parse(cron).unwrap_or_else(|error| panic!("{cron}: {error}"))
    }

    #[test]
    fn the_runs_are_those_of_the_specification() {
        let first = |cron: &str| first_run(&parse(cron), at(0.5)).expect("a run");
        assert_eq!(first("* * * * * * *"), at(0.0), "the current second counts");
        assert_eq!(first("* * * * * * 17"), at(1.0));
        let every_second = parse("* * * * * * *");
        let score = milliseconds(at(0.0)) as f64;
        assert_eq!(next_run(&every_second, score, at(4.3), false), Some(at(5.0)));
        assert_eq!(next_run(&every_second, score, at(4.3), true), Some(at(1.0)));
        // A run in the future, as after a peer's clock was ahead.
        assert_eq!(next_run(&every_second, score, at(-9.0), false), Some(at(1.0)));
        let twenty = 1_394_012_400_000.0; // 09:40:00
        let next = next_run(&parse("* * * * * */20 0"), twenty, time_of(twenty + 2.0), false);
        assert_eq!(next, Some(time_of(1_394_013_600_000.0)));
        let evening = 1_394_132_400_000.0;
        assert_eq!(next_run(&parse("2014 3 6 * 19 0 0"), evening, time_of(evening + 4.0), false), None);
    }

    #[test]
    fn a_moment_becomes_a_cron_string() {
        let cron = |at, order| once(at, order).expect("it has one").0;
        assert_eq!(cron(at(0.0), CronOrder::Document), "2014 3 5 * 9 34 16");
        assert_eq!(cron(at(0.2), CronOrder::Document), "2014 3 5 * 9 34 17", "rounded up");
        assert_eq!(cron(at(0.000_000_3), CronOrder::Document), "2014 3 5 * 9 34 16", "an error of doubles");
        assert_eq!(cron(at(0.0), CronOrder::Cuckoo), "16 34 9 3 5 * 2014");
        assert!(once(Timestamp::new(1e15).expect("finite"), CronOrder::Document).is_err());
    }

    #[test]
    fn both_orders_are_read() {
        let cuckoo = |cron: &str| CronOrder::Cuckoo.parse(cron);
        let expected = Ok(parse("2014 3 5 * 9 34 16"));
        assert_eq!(cuckoo("16 34 9 3 5 * 2014"), expected);
        assert_eq!(cuckoo("16 34 9 3 5 *"), Ok(parse("* 3 5 * 9 34 16")));
        assert_eq!(cuckoo("34 9 3 5 *"), Ok(parse("* 3 5 * 9 34 0")));
        assert!(cuckoo("9 3 5 *").is_err());
        assert!(cuckoo("1 2 3 4 5 6 2014 8").is_err());
    }

    #[test]
    fn a_string_in_the_other_order_is_refused_with_a_hint() {
        for cron in ["0 0 12 * * *", "0 12 * * *", "0 0 12 3 6 * 2014"] {
            let error = CronOrder::Document.parse(cron).unwrap_err();
            assert!(error.ends_with("connect with ?cron_order=cuckoo"), "{error}");
        }
        let error = CronOrder::Document.parse("2014 3 6 * 25 0 0").unwrap_err();
        assert!(!error.contains("cuckoo"), "{error}");
    }
}
