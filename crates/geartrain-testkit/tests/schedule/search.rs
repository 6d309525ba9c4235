//! Next runs against a slow search that shares no code with the fast one, and random texts for both parsers.
//!
//! The slow search reads the text of an expression again, steps through all seconds, counts occurrences on the
//! calendar, and asks jiff for the local time of each second.

use std::fmt::Write as _;

use fastrand::Rng;
use geartrain_core::Timestamp;
use geartrain_core::schedule::{Schedule, When, Zone, Zones, parse_past, parse_span};
use geartrain_testkit::{scaled, seeds};
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone};

/// The clock changes of these are an hour, half an hour, at midnight, and a whole day.
const ZONES: [&str; 5] =
    ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Pacific/Apia"];

/// An item of a field: bounds, step, and whether it is an nth occurrence.
#[derive(Clone, Copy)]
struct Item {
    first: i32,
    last: i32,
    n: i32,
    occurrence: bool,
}

/// An expression as a list of items for each of the seven fields, in their order.
struct Slow {
    fields: [Vec<Item>; 7],
    either_day: bool,
    every_hour: bool,
}

const BOUNDS: [(i32, i32); 7] = [(1970, 9999), (1, 12), (1, 31), (0, 6), (0, 23), (0, 59), (0, 59)];

impl Slow {
    fn new(text: &str) -> Slow {
        let words: Vec<&str> = text.split(' ').collect();
        let (texts, cron): ([&str; 7], bool) = match words[..] {
            [minute, hour, day, month, weekday] => (["*", month, day, weekday, hour, minute, "0"], true),
            [second, minute, hour, day, month, weekday] => {
                (["*", month, day, weekday, hour, minute, second], true)
            }
            [..] => (words.try_into().unwrap(), false),
        };
        let fields =
            std::array::from_fn(|field| texts[field].split(',').map(|item| read(field, item)).collect());
        let open = |text: &str| if cron { text.starts_with('*') } else { text == "*" };
        let mut slow = Slow { fields, either_day: !open(texts[2]) && !open(texts[3]), every_hour: false };
        let minute = &slow.fields[5];
        let rare = minute.iter().filter(|item| item.occurrence && !slow.plain(5, item.first)).count();
        slow.every_hour = rare == 0 && (0..24).all(|hour| slow.plain(4, hour));
        slow
    }

    fn plain(&self, field: usize, value: i32) -> bool {
        self.fields[field].iter().any(|item| !item.occurrence && item.selects(value))
    }

    /// Whether a field selects a value of which this is the `k`th occurrence.
    fn selects(&self, field: usize, value: i32, k: i32) -> bool {
        self.plain(field, value)
            || self.fields[field].iter().any(|item| item.occurrence && item.first == value && k % item.n == 0)
    }

    fn selects_date(&self, date: Date) -> bool {
        let (year, month, day) = (i32::from(date.year()), i32::from(date.month()), i32::from(date.day()));
        let weekday = i32::from(date.weekday().to_sunday_zero_offset());
        let with_day = |month: i8| Date::new(date.year(), month, date.day()).is_ok();
        let months_with_day = (1..=date.month()).filter(|month| with_day(*month)).count() as i32;
        let weekdays = (1..=date.day())
            .filter(|day| Date::new(date.year(), date.month(), *day).unwrap().weekday() == date.weekday())
            .count() as i32;
        let by_day = self.selects(2, day, months_with_day);
        let by_weekday = self.selects(3, weekday, weekdays);
        (1970..=9999).contains(&year)
            && self.plain(0, year)
            && self.selects(1, month, (1970..=year).count() as i32)
            && if self.either_day { by_day || by_weekday } else { by_day && by_weekday }
    }

    fn selects_time(&self, time: DateTime) -> bool {
        let [day, hour, minute, second] =
            [time.day(), time.hour(), time.minute(), time.second()].map(i32::from);
        self.selects(6, second, minute + 1) && self.selects(5, minute, hour + 1) && self.selects(4, hour, day)
    }

    /// The first second of a day that matches.
    fn first_time(&self, date: Date) -> Option<i64> {
        let day = i32::from(date.day());
        let hours = (0..24).filter(|hour| self.selects(4, *hour, day));
        let minutes = hours.flat_map(|hour| (0..60).map(move |minute| (hour, minute)));
        let minutes = minutes.filter(|(hour, minute)| self.selects(5, *minute, hour + 1));
        let mut seconds =
            minutes.flat_map(|(hour, minute)| (0..60).map(move |second| (hour, minute, second)));
        let first = seconds.find(|(_, minute, second)| self.selects(6, *second, minute + 1));
        first.map(|(hour, minute, second)| i64::from(hour * 3_600 + minute * 60 + second))
    }

    fn matches(&self, time: DateTime) -> bool {
        self.selects_time(time) && self.selects_date(time.date())
    }

    /// Whether there is a run in a second since the epoch.
    fn runs_at(&self, zone: &TimeZone, second: i64) -> bool {
        let at = jiff::Timestamp::from_second(second).unwrap();
        let offset = zone.to_offset(at);
        let local = offset.to_datetime(at);
        if self.every_hour {
            return self.matches(local);
        }
        let before = zone.to_offset(jiff::Timestamp::from_second(second - 1).unwrap());
        if before < offset {
            let length = i64::from(offset.seconds() - before.seconds());
            let mut skipped = before.to_datetime(at);
            for _ in 0..length {
                if self.matches(skipped) {
                    return true;
                }
                skipped = skipped.saturating_add(jiff::SignedDuration::from_secs(1));
            }
        }
        if !self.matches(local) {
            return false;
        }
        let second_pass = match zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Fold { after, .. } => offset == after,
            _ => false,
        };
        !second_pass
    }
}

impl Item {
    fn selects(self, value: i32) -> bool {
        (self.first..=self.last).contains(&value) && (value - self.first) % self.n == 0
    }
}

fn read(field: usize, item: &str) -> Item {
    let (base, n) = item.split_once('/').unwrap_or((item, "1"));
    let n: i32 = n.parse().unwrap();
    let number = |text: &str| text.parse::<i32>().unwrap();
    if base == "*" {
        let (first, last) = BOUNDS[field];
        return Item { first, last, n, occurrence: false };
    }
    match base.split_once('-') {
        Some((first, last)) => Item { first: number(first), last: number(last), n, occurrence: false },
        None if n > 1 => Item { first: number(base), last: number(base), n, occurrence: true },
        None => Item { first: number(base), last: number(base), n: 1, occurrence: false },
    }
}

/// A random expression of five, six or seven fields that is likely to match around a local time.
fn expression(rng: &mut Rng, near: DateTime) -> String {
    let values = [
        i32::from(near.year()),
        i32::from(near.month()),
        i32::from(near.day()),
        i32::from(near.weekday().to_sunday_zero_offset()),
        i32::from(near.hour()),
        i32::from(near.minute()),
        i32::from(near.second()),
    ];
    let seven = rng.u8(..2) == 0;
    // In percent: how often a field is `*`.
    let open = [90, 70, 55, 60, 40, 30, 15];
    let fields: [String; 7] = std::array::from_fn(|field| {
        if rng.u8(..100) < open[field] {
            return "*".to_owned();
        }
        let mut text = item(rng, field, values[field], seven);
        while rng.u8(..4) == 0 {
            let another = item(rng, field, values[field], seven);
            write!(text, ",{another}").unwrap();
        }
        text
    });
    let [year, month, day, weekday, hour, minute, second] = fields;
    if seven {
        format!("{year} {month} {day} {weekday} {hour} {minute} {second}")
    } else if rng.bool() {
        format!("{minute} {hour} {day} {month} {weekday}")
    } else {
        format!("{second} {minute} {hour} {day} {month} {weekday}")
    }
}

fn item(rng: &mut Rng, field: usize, near: i32, seven: bool) -> String {
    let (first, mut last) = BOUNDS[field];
    if field == 0 {
        last = 2_040;
    }
    let value = if rng.bool() { (near + rng.i32(-1..=1)).clamp(first, last) } else { rng.i32(first..=last) };
    let end = rng.i32(value..=last);
    let largest = if rng.u8(..5) == 0 { last } else { 6 };
    let n = rng.i32(1..=largest);
    match rng.u8(..6) {
        0 => format!("*/{n}"),
        1 => format!("{value}-{end}"),
        2 => format!("{value}-{end}/{n}"),
        3 if seven && field > 0 => format!("{value}/{n}"),
        _ => value.to_string(),
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::new(second as f64).unwrap()
}

/// Compares all runs in a window with a search second by second. Returns how many there were, up to a limit.
fn compare(schedule: &Schedule, slow: &Slow, zone: &TimeZone, from: i64, seconds: i64, case: &str) -> usize {
    let mut next = schedule.first(at(from));
    let mut runs = 0;
    for second in from..from + seconds {
        let expected = slow.runs_at(zone, second);
        let found = next == Some(at(second));
        assert_eq!(found, expected, "{case}: at {second}, next {next:?}");
        if found {
            next = schedule.next(at(second));
            runs += 1;
            if runs == 300 {
                break;
            }
        }
        // A start between the runs finds the same one.
        if second % 7_919 == 0 {
            assert_eq!(schedule.next(at(second)), next, "{case}: after {second}");
        }
    }
    runs
}

#[test]
fn next_runs_around_clock_changes_equal_a_search_second_by_second() {
    let (mut runs, mut changes) = (0, 0);
    for seed in seeds(scaled(1_000, 20_000)) {
        let mut rng = Rng::with_seed(seed);
        let name = ZONES[rng.usize(..ZONES.len())];
        let zone = TimeZone::get(name).unwrap();
        // From 1990 to 2037: the table of the zone, and the rule for the years after it.
        let random = jiff::Timestamp::from_second(rng.i64(631_152_000..2_145_916_800)).unwrap();
        let change = zone.following(random).next().map_or(random, |change| change.timestamp());
        let near = zone.to_datetime(change);
        let text = expression(&mut rng, near);
        let Ok(schedule) = Schedule::parse(&text) else { continue };
        let schedule = schedule.in_zone(Zone::named(name).unwrap());
        let from = change.as_second() - rng.i64(0..14_400);
        let case = format!("GEARTRAIN_SEED={seed}: {text} in {name} around {near}");
        runs += compare(&schedule, &Slow::new(&text), &zone, from, 32_400, &case);
        changes += 1;
    }
    assert!(changes > 0 && (runs > 1_000 || changes < 500), "{runs} runs in {changes} nights");
}

#[test]
fn next_runs_equal_a_search_second_by_second() {
    for seed in seeds(scaled(200, 5_000)) {
        let mut rng = Rng::with_seed(seed);
        let from = rng.i64(0..2_208_988_800);
        let near = TimeZone::UTC.to_datetime(jiff::Timestamp::from_second(from).unwrap());
        let text = expression(&mut rng, near);
        let Ok(schedule) = Schedule::parse(&text) else { continue };
        let case = format!("GEARTRAIN_SEED={seed}: {text} from {near}");
        compare(&schedule, &Slow::new(&text), &TimeZone::UTC, from, 100_000, &case);
    }
}

/// Rare runs: the slow search goes day by day, and through the times of the days that match.
#[test]
fn rare_runs_equal_a_search_day_by_day() {
    let (mut rare, mut never) = (0, 0);
    for seed in seeds(scaled(400, 20_000)) {
        let mut rng = Rng::with_seed(seed);
        let start = Date::new(rng.i16(1970..2035), 1, 1).unwrap();
        let start = start.saturating_add(jiff::Span::new().days(rng.i64(0..365)));
        let text = expression(&mut rng, start.at(12, 0, 0, 0));
        let slow = Slow::new(&text);
        let mut day = start;
        let mut expected = None;
        let midnight = |day: Date| TimeZone::UTC.to_timestamp(day.at(0, 0, 0, 0)).unwrap().as_second();
        while expected.is_none() && day.year() < start.year() + 12 {
            if slow.selects_date(day) {
                expected = slow.first_time(day).map(|second| at(midnight(day) + second));
            }
            day = day.tomorrow().unwrap();
        }
        match Schedule::parse(&text) {
            Ok(schedule) => {
                let found = schedule.first(at(midnight(start)));
                if found.is_none_or(|found| found < at(midnight(day))) {
                    assert_eq!(found, expected, "GEARTRAIN_SEED={seed}: {text} from {start}");
                } else {
                    assert_eq!(expected, None, "GEARTRAIN_SEED={seed}: {text} from {start}");
                    rare += 1;
                }
            }
            Err(error) => {
                assert!(error.reason.contains("never matches"), "{text}: {error}");
                assert_eq!(expected, None, "GEARTRAIN_SEED={seed}: {text} from {start}");
                never += 1;
            }
        }
    }
    println!("{rare} rare, {never} never");
}

/// Words of phrases and of cron expressions.
const WORDS: &[&str] = &[
    "every",
    "each",
    "other",
    "2nd",
    "second",
    "third",
    "5",
    "15",
    "1h30m",
    "90s",
    "minutes",
    "hours",
    "days",
    "mo",
    "a",
    "an",
    "half",
    "hour",
    "and",
    "in",
    "at",
    "on",
    "from",
    "to",
    "now",
    "right",
    "later",
    "ago",
    "7pm",
    "7",
    "pm",
    "am",
    "19:30",
    "25:00",
    "7.30pm",
    "noon",
    "midnight",
    "today",
    "tonight",
    "tomorrow",
    "yesterday",
    "the",
    "day",
    "after",
    "monday",
    "fri",
    "weds",
    "mondays",
    "weekdays",
    "weekends",
    "weekday",
    "next",
    "this",
    "week",
    "month",
    "year",
    "25",
    "25th",
    "31st",
    "of",
    "december",
    "feb",
    "2014",
    "2026",
    "9999",
    "0000",
    "2026-12-24",
    "9999-12-31",
    "2014-03-06T19:00:00Z",
    "2014-03-07T06:00+11:00",
    "06:00-05:30",
    "+11:00",
    "utc",
    "z",
    "est",
    "Europe/Berlin",
    "Pacific/Apia",
    "Mars/X",
    "daily",
    "hourly",
    "weekly",
    "@1394132400",
    "@daily",
    "CRON_TZ=Europe/Berlin",
    "*",
    "*/5",
    "0/2,3",
    "9-17",
    "1-23/5",
    "0",
    "MON-FRI",
    "L",
    "?",
    "999999999",
    "99999999999",
    "2020-02-30",
    ",",
    ".",
    "é",
    "7pm.",
    "",
];

fn random_text(rng: &mut Rng, samples: &[String]) -> String {
    let mut text = match rng.u8(..3) {
        0 => samples[rng.usize(..samples.len())].clone(),
        _ => {
            let count = rng.usize(0..9);
            let words: Vec<&str> = (0..count).map(|_| WORDS[rng.usize(..WORDS.len())]).collect();
            words.join(if rng.u8(..10) == 0 { "" } else { " " })
        }
    };
    // Mutations: a character more, one less, one changed, one word more.
    while rng.u8(..3) == 0 {
        let mut chars: Vec<char> = text.chars().collect();
        let index = rng.usize(..=chars.len());
        let random = b"0123456789*/,-:.+@ zapmst\t\x7f"[rng.usize(..27)] as char;
        let random = if rng.u8(..20) == 0 { rng.char(..) } else { random };
        match rng.u8(..4) {
            0 => chars.insert(index, random),
            1 if index < chars.len() => chars[index] = random,
            2 if index < chars.len() => drop(chars.remove(index)),
            _ => chars.extend([' '].into_iter().chain(WORDS[rng.usize(..WORDS.len())].chars())),
        }
        text = chars.into_iter().collect();
    }
    text
}

#[test]
fn random_texts_never_panic_and_what_is_understood_is_written_back() {
    let samples: Vec<String> =
        (super::cron::texts()).chain(super::phrase::texts()).map(str::to_owned).collect();
    let zones = ["UTC"].into_iter().chain(ZONES).map(|name| Zone::named(name).unwrap()).collect::<Vec<_>>();
    let (mut once, mut recurring) = (0, 0);
    for seed in seeds(scaled(150_000, 3_000_000)) {
        let mut rng = Rng::with_seed(seed);
        let text = random_text(&mut rng, &samples);
        let case = || format!("GEARTRAIN_SEED={seed}: {text:?}");
        let now = Timestamp::new(match rng.u8(..10) {
            0 => (rng.f64() - 0.5) * 1e12,
            _ => rng.f64() * 4e9,
        })
        .unwrap();
        let zone = zones[rng.usize(..zones.len())].clone();
        let parsed = When::parse(&text, now, &Zones::both(zone.clone()));
        let errors = [
            parsed.clone().err(),
            Schedule::parse(&text).err(),
            Schedule::parse_seven(&text).err(),
            parse_past(&text, now, &zone).err(),
            parse_span(&text).err(),
        ];
        for error in errors.into_iter().flatten() {
            let found = text.get(error.position..).unwrap_or_else(|| panic!("{}: {error:?}", case()));
            assert!(found.starts_with(&error.word), "{}: {error:?}", case());
            assert!(!error.reason.is_empty());
        }
        if let Ok(past) = parse_past(&text, now, &zone) {
            assert!(past <= now, "{}", case());
        }
        match parsed {
            Ok(When::Once(at)) => {
                let lower = text.to_ascii_lowercase();
                let is_now =
                    ["now", "immediately"].iter().any(|word| lower.contains(word)) && at == now.floor();
                assert!(at > now || is_now, "{}: {at}", case());
                assert_eq!(at, at.floor());
                // Upper case means the same, except for a name of a prefix.
                let upper = When::parse(&text.to_ascii_uppercase(), now, &Zones::both(zone));
                assert_eq!(upper, Ok(When::Once(at)), "{}", case());
                once += 1;
            }
            Ok(When::Recurring(schedule)) => {
                let written = schedule.to_string();
                assert_eq!(Schedule::parse(&written).as_ref(), Ok(&schedule), "{}: {written}", case());
                if let Some(canonical) = schedule.canonical() {
                    let again = Schedule::parse_seven(&canonical).unwrap();
                    assert_eq!(again.canonical(), Some(canonical), "{}", case());
                    assert_eq!(again.in_zone(schedule.zone().clone()), schedule, "{}", case());
                }
                if let Some(next) = schedule.next(now) {
                    assert!(next > now, "{}", case());
                    assert_eq!(schedule.first(next), Some(next), "{}", case());
                }
                recurring += 1;
            }
            Err(_) => {}
        }
    }
    println!("{once} moments, {recurring} recurrences");
}
