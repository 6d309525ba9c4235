//! Cron expressions: the fields, the next runs, the clock changes, and what is refused.

use geartrain_core::Timestamp;
use geartrain_core::schedule::{Schedule, Zone};

use super::{NOW, time, utc};

/// Expressions, and their runs at or after 2014-03-05T09:34:16Z.
const SEVEN_FIELDS: &[(&str, &str)] = &[
    (
        "* * * * * * *",
        "2014-03-05T09:34:16Z, 2014-03-05T09:34:17Z, 2014-03-05T09:34:18Z, 2014-03-05T09:34:19Z",
    ),
    (
        "* * * * * * 15",
        "2014-03-05T09:35:15Z, 2014-03-05T09:36:15Z, 2014-03-05T09:37:15Z, 2014-03-05T09:38:15Z",
    ),
    (
        "* * * * * * 17",
        "2014-03-05T09:34:17Z, 2014-03-05T09:35:17Z, 2014-03-05T09:36:17Z, 2014-03-05T09:37:17Z",
    ),
    (
        "* * * * * * 10,14,19,20",
        "2014-03-05T09:34:19Z, 2014-03-05T09:34:20Z, 2014-03-05T09:35:10Z, 2014-03-05T09:35:14Z",
    ),
    (
        "* * * * * 35 *",
        "2014-03-05T09:35:00Z, 2014-03-05T09:35:01Z, 2014-03-05T09:35:02Z, 2014-03-05T09:35:03Z",
    ),
    (
        "* * * * * 35 20",
        "2014-03-05T09:35:20Z, 2014-03-05T10:35:20Z, 2014-03-05T11:35:20Z, 2014-03-05T12:35:20Z",
    ),
    (
        "* * * * * 0 0",
        "2014-03-05T10:00:00Z, 2014-03-05T11:00:00Z, 2014-03-05T12:00:00Z, 2014-03-05T13:00:00Z",
    ),
    (
        "* * * * */6 0 0",
        "2014-03-05T12:00:00Z, 2014-03-05T18:00:00Z, 2014-03-06T00:00:00Z, 2014-03-06T06:00:00Z",
    ),
    (
        "* * * * * * */7",
        "2014-03-05T09:34:21Z, 2014-03-05T09:34:28Z, 2014-03-05T09:34:35Z, 2014-03-05T09:34:42Z",
    ),
    (
        "* * * * 17 */4 0",
        "2014-03-05T17:00:00Z, 2014-03-05T17:04:00Z, 2014-03-05T17:08:00Z, 2014-03-05T17:12:00Z",
    ),
    (
        "* * * * 14-16 0 0",
        "2014-03-05T14:00:00Z, 2014-03-05T15:00:00Z, 2014-03-05T16:00:00Z, 2014-03-06T14:00:00Z",
    ),
    (
        "* * * * 14,19,22 0 0",
        "2014-03-05T14:00:00Z, 2014-03-05T19:00:00Z, 2014-03-05T22:00:00Z, 2014-03-06T14:00:00Z",
    ),
    (
        "* * * * 1-23/5 0 0",
        "2014-03-05T11:00:00Z, 2014-03-05T16:00:00Z, 2014-03-05T21:00:00Z, 2014-03-06T01:00:00Z",
    ),
    ("2014 3 6 * 19 0 0", "2014-03-06T19:00:00Z, then never"),
    ("2013 * * * * * *", "never"),
    (
        "* 2 29 * 0 0 0",
        "2016-02-29T00:00:00Z, 2020-02-29T00:00:00Z, 2024-02-29T00:00:00Z, 2028-02-29T00:00:00Z",
    ),
    (
        "* * 31 * 0 0 0",
        "2014-03-31T00:00:00Z, 2014-05-31T00:00:00Z, 2014-07-31T00:00:00Z, 2014-08-31T00:00:00Z",
    ),
    (
        "* * */10 * 0 0 0",
        "2014-03-11T00:00:00Z, 2014-03-21T00:00:00Z, 2014-03-31T00:00:00Z, 2014-04-01T00:00:00Z",
    ),
    (
        "* */5 1 * 0 0 0",
        "2014-06-01T00:00:00Z, 2014-11-01T00:00:00Z, 2015-01-01T00:00:00Z, 2015-06-01T00:00:00Z",
    ),
    (
        "*/4 1 1 * 0 0 0",
        "2018-01-01T00:00:00Z, 2022-01-01T00:00:00Z, 2026-01-01T00:00:00Z, 2030-01-01T00:00:00Z",
    ),
    (
        "* * * 0 12 0 0",
        "2014-03-09T12:00:00Z, 2014-03-16T12:00:00Z, 2014-03-23T12:00:00Z, 2014-03-30T12:00:00Z",
    ),
    (
        "* * * 1-5 9 0 0",
        "2014-03-06T09:00:00Z, 2014-03-07T09:00:00Z, 2014-03-10T09:00:00Z, 2014-03-11T09:00:00Z",
    ),
    (
        "* * 15 0 12 0 0",
        "2014-03-09T12:00:00Z, 2014-03-15T12:00:00Z, 2014-03-16T12:00:00Z, 2014-03-23T12:00:00Z",
    ),
    (
        "* * */10 1 0 0 0",
        "2014-03-10T00:00:00Z, 2014-03-11T00:00:00Z, 2014-03-17T00:00:00Z, 2014-03-21T00:00:00Z",
    ),
    (
        "* * * 3/2 9 0 0",
        "2014-03-12T09:00:00Z, 2014-03-26T09:00:00Z, 2014-04-09T09:00:00Z, 2014-04-23T09:00:00Z",
    ),
    (
        "* * * 0/2 9 0 0",
        "2014-03-09T09:00:00Z, 2014-03-23T09:00:00Z, 2014-04-13T09:00:00Z, 2014-04-27T09:00:00Z",
    ),
    (
        "* * * 5/3 18 30 0",
        "2014-03-21T18:30:00Z, 2014-04-18T18:30:00Z, 2014-05-16T18:30:00Z, 2014-06-20T18:30:00Z",
    ),
    (
        "* * * 0/5 0 0 0",
        "2014-03-30T00:00:00Z, 2014-06-29T00:00:00Z, 2014-08-31T00:00:00Z, 2014-11-30T00:00:00Z",
    ),
    (
        "* * 15/2 * 6 0 0",
        "2014-04-15T06:00:00Z, 2014-06-15T06:00:00Z, 2014-08-15T06:00:00Z, 2014-10-15T06:00:00Z",
    ),
    (
        "* * 31/2 * 0 0 0",
        "2014-03-31T00:00:00Z, 2014-07-31T00:00:00Z, 2014-10-31T00:00:00Z, 2015-03-31T00:00:00Z",
    ),
    (
        "* * * * 9/2 0 0",
        "2014-03-06T09:00:00Z, 2014-03-08T09:00:00Z, 2014-03-10T09:00:00Z, 2014-03-12T09:00:00Z",
    ),
    (
        "* * * * * 15/6 0",
        "2014-03-05T11:15:00Z, 2014-03-05T17:15:00Z, 2014-03-05T23:15:00Z, 2014-03-06T05:15:00Z",
    ),
    ("* * * * 0 15/6 0", "never"),
    (
        "* * * * * * 30/2",
        "2014-03-05T09:35:30Z, 2014-03-05T09:37:30Z, 2014-03-05T09:39:30Z, 2014-03-05T09:41:30Z",
    ),
    (
        "* 3/2 1 * 0 0 0",
        "2015-03-01T00:00:00Z, 2017-03-01T00:00:00Z, 2019-03-01T00:00:00Z, 2021-03-01T00:00:00Z",
    ),
    (
        "2014 3 * 0/2,3 9-17 * */5",
        "2014-03-05T09:34:20Z, 2014-03-05T09:34:25Z, 2014-03-05T09:34:30Z, 2014-03-05T09:34:35Z",
    ),
    ("* 2 30 * 0 0 0", "never"),
    ("* * * 0/6 0 0 0", "never"),
    ("2014-2016/2 3 1 * 0 0 0", "2016-03-01T00:00:00Z, then never"),
];

#[test]
fn seven_fields_run_as_specified() {
    let now = time(NOW);
    for (text, expected) in SEVEN_FIELDS {
        let schedule = match Schedule::parse(text) {
            Ok(schedule) => schedule,
            Err(error) => {
                // An expression that never matches is refused, unless it did in the past.
                assert_eq!(*expected, "never", "{text}: {error}");
                assert!(error.reason.contains("never matches"), "{text}: {error}");
                continue;
            }
        };
        assert_eq!(Schedule::parse_seven(text), Ok(schedule.clone()), "{text}");
        let mut run = schedule.first(now);
        for expected in expected.split(", ").filter(|expected| *expected != "never") {
            if expected == "then never" {
                break;
            }
            let found = run.unwrap_or_else(|| panic!("{text} has no run {expected}"));
            assert_eq!(utc(found), expected, "{text}");
            run = schedule.next(found);
        }
        assert_eq!(run.is_none(), expected.ends_with("never"), "{text}: {run:?}");
    }
}

/// The example that WorkKit publishes: every 5 seconds from 9am to 5pm on every 2nd Sunday and every Wednesday.
#[test]
fn the_published_example_runs_38880_times() {
    let schedule = Schedule::parse("2014 3 * 0/2,3 9-17 * */5").unwrap();
    let mut runs = Vec::new();
    let mut run = schedule.first(Timestamp::ZERO);
    while let Some(found) = run {
        runs.push(found);
        run = schedule.next(found);
    }
    assert_eq!(runs.len(), 38_880);
    assert_eq!(utc(runs[0]), "2014-03-05T09:00:00Z");
    assert_eq!(utc(runs[38_879]), "2014-03-26T17:59:55Z");
    let mut days: Vec<String> = runs.iter().map(|run| utc(*run)[8..10].to_owned()).collect();
    days.dedup();
    assert_eq!(days, ["05", "09", "12", "19", "23", "26"]);
}

#[test]
fn the_first_run_may_be_now_and_the_next_is_strictly_later() {
    let parse = |text: &str| Schedule::parse(text).unwrap();
    let first = |text: &str, now: &str| parse(text).first(time(now)).map(utc);
    let next = |text: &str, after: &str| parse(text).next(time(after)).map(utc);
    let at = |time: &str| Some(format!("2014-03-05T{time}Z"));
    assert_eq!(first("* * * * * * *", "2014-03-05T09:34:16.500Z"), at("09:34:16"));
    assert_eq!(first("* * * * * * 17", "2014-03-05T09:34:16.500Z"), at("09:34:17"));
    assert_eq!(next("* * * * * * *", "2014-03-05T09:34:20.300Z"), at("09:34:21"));
    assert_eq!(next("* * * * * * *", "2014-03-05T09:34:16Z"), at("09:34:17"));
    assert_eq!(next("* * * * * */20 0", "2014-03-05T09:40:00.002Z"), at("10:00:00"));
    assert_eq!(next("2014 3 6 * 19 0 0", "2014-03-06T19:00:00.004Z"), None);
}

#[test]
fn the_search_covers_1970_to_9999_and_nothing_else() {
    let every = Schedule::parse("* * * * * * *").unwrap();
    assert_eq!(every.first(Timestamp::new(f64::MIN).unwrap()), Some(Timestamp::ZERO));
    assert_eq!(every.next(Timestamp::new(-1.0).unwrap()), Some(Timestamp::ZERO));
    let last = Schedule::parse("9999 12 31 * 23 59 59").unwrap().first(Timestamp::ZERO).unwrap();
    assert_eq!(utc(last), "9999-12-31T23:59:59Z");
    assert_eq!(every.first(last), Some(last));
    assert_eq!(every.next(last), None);
    assert_eq!(every.next(Timestamp::new(f64::MAX).unwrap()), None);
    // In a zone the last day is cut off; there is no run before or after the calendar either.
    let berlin = every.in_zone(Zone::named("Europe/Berlin").unwrap());
    assert_eq!(berlin.first(Timestamp::new(-1e300).unwrap()), Some(Timestamp::from(-3_600)));
    assert_eq!(berlin.next(last), None);
}

/// Expressions of five and six fields, and the seven fields that mean the same.
const CRON: &[(&str, Option<&str>)] = &[
    ("* * * * *", Some("* * * * * * 0")),
    ("*/5 * * * *", Some("* * * * * */5 0")),
    ("0 9 * * 1-5", Some("* * * 1-5 9 0 0")),
    ("0 9 * * mon-fri", Some("* * * 1-5 9 0 0")),
    ("0 9 * * MON,Wednesday", Some("* * * 1,3 9 0 0")),
    ("30 4 1,15 * 5", Some("* * 1,15 5 4 30 0")),
    ("0 0 1 jan *", Some("* 1 1 * 0 0 0")),
    ("0 0 * * 7", Some("* * * 0 0 0 0")),
    ("0 0 * * 5-7", Some("* * * 0,5,6 0 0 0")),
    ("0 0 * * 0,7", Some("* * * 0 0 0 0")),
    ("0 0 * * 0-7", Some("* * * * 0 0 0")),
    ("0 0 * * */2", Some("* * * */2 0 0 0")),
    ("23 0-20/2 * * *", Some("* * * * 0-20/2 23 0")),
    ("0 0 */2 * *", Some("* * */2 * 0 0 0")),
    // Days must match both fields, because one of them begins with `*`.
    ("0 0 */2 * 1", None),
    ("0 0 13 * */5", None),
    ("0 0 */2,4 * 1", None),
    ("*/10 0 9 * * *", Some("* * * * 9 0 */10")),
    ("15 30 9 1 1 *", Some("* 1 1 * 9 30 15")),
    ("@hourly", Some("* * * * * 0 0")),
    ("@daily", Some("* * * * 0 0 0")),
    ("@midnight", Some("* * * * 0 0 0")),
    ("@weekly", Some("* * * 0 0 0 0")),
    ("@Monthly", Some("* * 1 * 0 0 0")),
    ("@yearly", Some("* 1 1 * 0 0 0")),
    ("@annually", Some("* 1 1 * 0 0 0")),
    ("TZ=Europe/Berlin 0 9 * * *", Some("* * * * 9 0 0")),
    ("CRON_TZ=europe/berlin  @daily", Some("* * * * 0 0 0")),
];

#[test]
fn five_and_six_fields_are_ordinary_cron() {
    for (text, canonical) in CRON {
        let schedule = Schedule::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(schedule.canonical().as_deref(), *canonical, "{text}");
        assert_eq!(Schedule::parse(&schedule.to_string()), Ok(schedule), "{text}");
    }
    let zoned = Schedule::parse("TZ=europe/berlin 0 9 * * *").unwrap();
    assert_eq!(zoned.to_string(), "CRON_TZ=Europe/Berlin * * * * 9 0 0");
    assert_eq!(Schedule::parse("CRON_TZ=UTC 0 9 * * *"), Schedule::parse("0 9 * * *"));
}

#[test]
fn days_match_either_day_field_or_both_as_in_vixie_cron() {
    let days = |text: &str| {
        let schedule = Schedule::parse(text).unwrap();
        let mut run = schedule.first(time("2014-03-01T00:00:00Z"));
        let mut days = Vec::new();
        while let Some(found) = run.filter(|run| *run < time("2014-04-01T00:00:00Z")) {
            days.push(utc(found)[8..10].parse::<u8>().unwrap());
            run = schedule.next(found);
        }
        days
    };
    // Mondays were 3, 10, 17, 24 and 31 March.
    assert_eq!(days("0 0 15 * 1"), [3, 10, 15, 17, 24, 31]);
    assert_eq!(days("0 0 */2 * 1"), [3, 17, 31]);
    assert_eq!(
        days("0 0 1-31/2 * 1"),
        (1..=31).filter(|day| day % 2 == 1 || *day == 10 || *day == 24).collect::<Vec<_>>()
    );
    assert_eq!(days("* * */2 1 0 0 0"), days("0 0 1-31/2 * 1"));
    // `*/1` is set in the seven fields: every day is one of them.
    assert_eq!(days("* * */1 1 0 0 0").len(), 31);
    assert_eq!(days("* * * 1 0 0 0"), [3, 10, 17, 24, 31]);
    assert_eq!(days("* * ? 1 0 0 0"), [3, 10, 17, 24, 31]);
}

#[test]
fn the_seven_fields_are_written_briefly() {
    for (text, canonical) in [
        ("* * * * * * */1", "* * * * * * *"),
        ("* * * * * * 0-59", "* * * * * * *"),
        ("* * ? ? * * 05", "* * * * * * 5"),
        ("* MAR-jun * sun * * 0", "* 3-6 * 0 * * 0"),
        ("* * * * 9-17,12 * 0,30", "* * * * 9-17 * */30"),
        ("* * * 3/1 9 0 0", "* * * 3 9 0 0"),
        ("* * * 3/2,3 9 0 0", "* * * 3 9 0 0"),
        ("* * * 3,0/2,0/2 9 0 0", "* * * 3,0/2 9 0 0"),
        ("* * * * 1-23/5 0 0", "* * * * 1-21/5 0 0"),
        ("2016,2014-2015 * * * 0 0 0", "2014-2015,2016 * * * 0 0 0"),
        ("*/4 1 1 * 0 0 0", "*/4 1 1 * 0 0 0"),
        ("2014,* 1 1 * 0 0 0", "* 1 1 * 0 0 0"),
        ("* * */1 1 0 0 0", "* * * * 0 0 0"),
        ("* * */10 1 0 0 0", "* * */10 1 0 0 0"),
        ("*\t*  * * * * *", "* * * * * * *"),
    ] {
        let schedule = Schedule::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(schedule.canonical().as_deref(), Some(canonical), "{text}");
        assert_eq!(Schedule::parse(canonical), Ok(schedule), "{text}");
    }
}

/// Refused expressions: the byte and the word that is wrong, and a part of the reason.
const REFUSED: &[(&str, usize, &str, &str)] = &[
    ("", 0, "", "5, 6 or 7 fields, found 0"),
    ("* * * *", 7, "", "found 4"),
    ("* * * * * * * *", 14, "*", "found 8"),
    (" * * * * * * *", 0, " ", "blank before"),
    ("* * * * * * * ", 13, " ", "blank after"),
    ("* * * * * * 60", 12, "60", "second from 0 to 59"),
    ("* * * * * 60 *", 10, "60", "minute from 0 to 59"),
    ("* * * * 24 * *", 8, "24", "hour from 0 to 23"),
    ("* * * 7 * * *", 6, "7", "Sunday is 0"),
    ("* * 0 * * * *", 4, "0", "day of month from 1 to 31"),
    ("* * 32 * * * *", 4, "32", "day of month from 1 to 31"),
    ("* 13 * * * * *", 2, "13", "month from 1 to 12"),
    ("* 0 * * * * *", 2, "0", "month from 1 to 12"),
    ("1969 * * * * * *", 0, "1969", "year from 1970 to 9999"),
    ("14 * * * * * *", 0, "14", "four digits"),
    ("02014 * * * * * *", 0, "02014", "four digits"),
    ("* * * * 22-2 * *", 8, "22-2", "write 22-23,0-2"),
    ("* * * * 23-0 * *", 8, "23-0", "write 23,0"),
    ("2016-2014 * * * * * *", 0, "2016-2014", "backwards"),
    ("* * * * * * */0", 14, "0", "at least 1"),
    ("* * * 3/0 * * *", 8, "0", "at least 1"),
    ("* * * * * * 1-5/0", 16, "0", "at least 1"),
    ("* * * * * * */", 14, "", "at least 1"),
    ("* * * * * * */x", 14, "x", "at least 1"),
    ("* * * * * * 1/2/3", 14, "2/3", "at least 1"),
    ("* * * * * * 1,,2", 14, "", "empty item"),
    ("* * * * * * ,1", 12, "", "empty item"),
    ("* * * * * * 1,", 14, "", "empty item"),
    ("* * * * * * 1-", 14, "", "missing"),
    ("* * * * * * -5", 12, "", "missing"),
    ("* * * * * * /5", 12, "", "missing"),
    ("* * * * * * 1-2-3", 14, "2-3", "second from 0 to 59"),
    ("* * * * * * *-5", 12, "*", "second from 0 to 59"),
    ("* * * * * * +5", 12, "+5", "second from 0 to 59"),
    ("* * * * * * ٣", 12, "٣", "second from 0 to 59"),
    ("* * * * ? * *", 8, "?", "hour from 0 to 23"),
    ("* * ?,1 * * * *", 4, "?", "day of month"),
    ("2014/2 * * * * * *", 0, "2014/2", "no nth occurrence"),
    ("* * L * 0 0 0", 4, "L", "not supported"),
    ("* * 15w * 0 0 0", 4, "15w", "not supported"),
    ("* * * 1#2 0 0 0", 6, "1#2", "not supported"),
    ("* foo * * 0 0 0", 2, "foo", "or an English name"),
    ("* * * * march * *", 8, "march", "hour from 0 to 23"),
    ("* 2 30 * 0 0 0", 0, "* 2 30 * 0 0 0", "never matches"),
    ("* * * 0/6 0 0 0", 0, "* * * 0/6 0 0 0", "never matches"),
    ("* * * * 0 15/6 0", 0, "* * * * 0 15/6 0", "never matches"),
    ("* * 1 * 9/2 0 0", 0, "* * 1 * 9/2 0 0", "never matches"),
    ("2015 2 29 * 0 0 0", 0, "2015 2 29 * 0 0 0", "never matches"),
    ("* 3/9000 * * 0 0 0", 0, "* 3/9000 * * 0 0 0", "never matches"),
    ("0 0 9 * * 1 2026", 0, "0", "the opposite order"),
    ("* * * * * * 2026", 12, "2026", "the opposite order"),
    ("60 * * * *", 0, "60", "minute from 0 to 59"),
    ("0 24 * * *", 2, "24", "hour from 0 to 23"),
    ("0 0 * * 8", 8, "8", "day of week from 0 to 7"),
    ("0 0 * * fri-sun", 8, "fri-sun", "write 5-7"),
    ("5/15 * * * *", 0, "5/15", "write 5-59/15"),
    ("0 9 ? * 1", 4, "?", "numbered differently"),
    ("0 0 30 2 *", 0, "0 0 30 2 *", "never matches"),
    ("0 0 9 ? * MON-FRI", 6, "?", "write *"),
    ("@reboot", 0, "@reboot", "machine starts"),
    ("@often", 0, "@often", "@hourly"),
    ("@daily 5", 0, "@daily 5", "@hourly"),
    ("CRON_TZ=Mars/Olympus 0 9 * * *", 8, "Mars/Olympus", "no time zone"),
    ("CRON_TZ= 0 9 * * *", 8, "", "no time zone"),
    ("CRON_TZ=Europe/Berlin", 21, "", "found 0"),
    ("CRON_TZ=Europe/Berlin 0 25 * * *", 24, "25", "hour from 0 to 23"),
];

#[test]
fn bad_expressions_are_refused_at_the_right_byte() {
    for (text, position, word, reason) in REFUSED {
        let error = Schedule::parse(text).expect_err(text);
        assert_eq!((error.position, error.word.as_str()), (*position, *word), "{text}: {error}");
        assert!(error.reason.contains(reason), "{text}: {error}");
        assert!(Schedule::parse_seven(text).is_err(), "{text}");
    }
    for text in ["0 9 * * *", "0 0 9 * * *", "@daily", "CRON_TZ=UTC * * * * * * *"] {
        assert!(Schedule::parse(text).is_ok(), "{text}");
        assert!(Schedule::parse_seven(text).is_err(), "{text}");
    }
    assert!(Schedule::parse_seven("0 9 * * *").unwrap_err().reason.contains("another order"));
}

/// Clock changes: expression, start, and the runs, in local time with the offset.
#[test]
fn clock_changes_skip_no_day_and_double_no_time_of_day() {
    for (text, zone, from, expected) in [
        // In Berlin 2026-03-29 02:00 to 03:00 is skipped, and 2026-10-25 02:00 to 03:00 is doubled.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T00:00:00Z",
            "2026-03-28T02:30:00+01:00 2026-03-29T03:00:00+02:00 2026-03-30T02:30:00+02:00",
        ),
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00:00Z",
            "2026-10-25T02:30:00+02:00 2026-10-26T02:30:00+01:00",
        ),
        // Many runs in the skipped hour are made up for by one.
        (
            "*/20 2 * * *",
            "Europe/Berlin",
            "2026-03-28T01:30:00Z",
            "2026-03-28T02:40:00+01:00 2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00",
        ),
        // 03:00 is a run of its own and not doubled by the one that is made up for.
        (
            "30 2,3 * * *",
            "Europe/Berlin",
            "2026-03-28T22:00:00Z",
            "2026-03-29T03:00:00+02:00 2026-03-29T03:30:00+02:00 2026-03-30T02:30:00+02:00",
        ),
        // Every hour: nothing is made up for, and both passes count.
        (
            "30 * * * *",
            "Europe/Berlin",
            "2026-03-29T00:00:00Z",
            "2026-03-29T01:30:00+01:00 2026-03-29T03:30:00+02:00",
        ),
        (
            "30 * * * *",
            "Europe/Berlin",
            "2026-10-24T23:00:00Z",
            "2026-10-25T01:30:00+02:00 2026-10-25T02:30:00+02:00 2026-10-25T02:30:00+01:00 2026-10-25T03:30:00+01:00",
        ),
        (
            "0 2 * * *",
            "America/New_York",
            "2026-03-07T12:00:00Z",
            "2026-03-08T03:00:00-04:00 2026-03-09T02:00:00-04:00",
        ),
        (
            "30 1 * * *",
            "America/New_York",
            "2026-10-31T12:00:00Z",
            "2026-11-01T01:30:00-04:00 2026-11-02T01:30:00-05:00",
        ),
        // Half an hour: 2026-10-04 02:00 to 02:30 is skipped, 2026-04-05 01:30 to 02:00 is doubled.
        (
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-03T00:00:00Z",
            "2026-10-04T02:30:00+11:00 2026-10-05T02:15:00+11:00",
        ),
        (
            "45 1 * * *",
            "Australia/Lord_Howe",
            "2026-04-04T00:00:00Z",
            "2026-04-05T01:45:00+11:00 2026-04-06T01:45:00+10:30",
        ),
        // Midnight is skipped in Santiago, and the whole 30 December 2011 in Apia.
        (
            "0 0 * * *",
            "America/Santiago",
            "2026-09-05T12:00:00Z",
            "2026-09-06T01:00:00-03:00 2026-09-07T00:00:00-03:00",
        ),
        (
            "0 12 * * *",
            "Pacific/Apia",
            "2011-12-29T12:00:00Z",
            "2011-12-29T12:00:00-10:00 2011-12-31T00:00:00+14:00 2011-12-31T12:00:00+14:00",
        ),
        // The second pass lies in the day before the first day of a month, every hour of which counts.
        (
            "* * 4 * * 30 0",
            "America/Santiago",
            "2026-04-05T02:00:00Z",
            "2026-04-04T23:30:00-03:00 2026-04-04T23:30:00-04:00 2026-05-04T00:30:00-04:00",
        ),
    ] {
        let zone = Zone::named(zone).unwrap();
        let schedule = Schedule::parse(text).unwrap().in_zone(zone.clone());
        let mut run = schedule.first(time(from));
        for expected in expected.split(' ') {
            let found = run.unwrap();
            assert_eq!(zone.format(found), expected, "{text} in {zone}");
            run = schedule.next(found);
        }
    }
}

#[test]
fn a_schedule_that_runs_once_is_rounded_up_to_a_second() {
    let once = Schedule::once(time("2014-03-06T18:59:59.001Z")).unwrap();
    assert_eq!(once.to_string(), "2014 3 6 * 19 0 0");
    assert_eq!(Schedule::parse("2014 3 6 * 19 0 0"), Ok(once));
    assert_eq!(Schedule::once(Timestamp::from(-1)), None);
    assert_eq!(Schedule::once(Timestamp::new(1e300).unwrap()), None);
}

#[test]
fn a_zone_is_found_in_any_case_and_utc_is_one_zone() {
    assert_eq!(Zone::named("america/new_york").unwrap().name(), Some("America/New_York"));
    for name in ["UTC", "utc", "Z", "Etc/UTC"] {
        assert_eq!(Zone::named(name), Ok(Zone::UTC));
    }
    for name in ["", "Nowhere", "../../etc/passwd", "/etc/localtime", "Europe/", "Europe"] {
        assert!(Zone::named(name).unwrap_err().to_string().contains("Europe/Berlin"), "{name}");
    }
    assert!(size_of::<Schedule>() <= 48);
}

/// All expressions of this module, as samples for random texts.
pub(super) fn texts() -> impl Iterator<Item = &'static str> {
    let refused = REFUSED.iter().map(|row| row.0);
    SEVEN_FIELDS.iter().map(|row| row.0).chain(CRON.iter().map(|row| row.0)).chain(refused)
}
