//! Recurrences, as far as the seven fields can hold them.

use super::super::{BadSchedule, Schedule, Zone};
use super::moment::day_and_month;
use super::words::{Clock, Unit, Words, number, unit, weekday, weekday_plural};

/// Weekdays as the text of their field.
const WORKING_DAYS: &str = "1-5";
const WEEKEND: &str = "0,6";

/// What recurs.
enum Cycle {
    /// Every so many seconds, minutes or hours.
    Interval { unit: Unit, n: u32 },
    /// On days: the fields for month, day of month and day of week.
    Days { month: String, day: String, weekday: String },
}

/// Parses a recurrence, all words of it; none if the phrase does not begin like one.
pub(super) fn recurrence(words: &mut Words<'_>, zone: &Zone) -> Result<Option<Schedule>, BadSchedule> {
    let start = words.index();
    let Some(cycle) = cycle(words)? else {
        words.rewind(start);
        return Ok(None);
    };
    let mut parts = Parts::default();
    while !words.is_done() {
        parts.next(words, &cycle)?;
    }
    let schedule = Schedule::parse_seven(&parts.fields(&cycle))
        .expect("the phrases that are understood make fields that can match");
    Ok(Some(schedule.in_zone(parts.zone.unwrap_or_else(|| zone.clone()))))
}

fn days(month: &str, day: &str, weekday: &str) -> Cycle {
    Cycle::Days { month: month.to_owned(), day: day.to_owned(), weekday: weekday.to_owned() }
}

fn cycle(words: &mut Words<'_>) -> Result<Option<Cycle>, BadSchedule> {
    let word = words.peek();
    let named = match word {
        "every" | "each" => {
            words.skip(1);
            return every(words).map(Some);
        }
        "hourly" => Cycle::Interval { unit: Unit::Hour, n: 1 },
        "daily" => days("*", "*", "*"),
        "weekly" => days("*", "*", "1"),
        "monthly" => days("*", "1", "*"),
        "yearly" | "annually" => days("1", "1", "*"),
        _ => {
            words.eat(&["on"]);
            return Ok(plural_weekdays(words)?.map(|weekdays| days("*", "*", &weekdays)));
        }
    };
    words.skip(1);
    Ok(Some(named))
}

/// What comes after `every`.
fn every(words: &mut Words<'_>) -> Result<Cycle, BadSchedule> {
    let word = words.peek().to_owned();
    if word == "other" {
        let what = words.peek_at(1);
        let what = if what.is_empty() { "friday" } else { what };
        return Err(words.bad(format!(
            "ambiguous: every 2nd {what} is the 2nd and the 4th {what} of each month; every 14 days from a first one \
             is an interval of two weeks, which cron cannot hold"
        )));
    }
    let ordinal = match word.as_str() {
        "1st" | "first" => Some(1),
        "2nd" | "second" => Some(2),
        "3rd" | "third" => Some(3),
        "4th" | "fourth" => Some(4),
        "5th" | "fifth" => Some(5),
        _ => None,
    };
    if let Some(n) = ordinal
        && let Some(weekday) = weekday(words.peek_at(1))
    {
        if n == 1 {
            return Err(words.bad(
                "the first one of each month alone cannot be expressed: every nth occurrence repeats; 2nd to 5th can",
            ));
        }
        words.skip(2);
        return Ok(days("*", "*", &format!("{weekday}/{n}")));
    }
    if ordinal.is_some() && word != "second" {
        words.skip(1);
        return Err(words.bad("expected a weekday: only weekdays have every nth occurrence here"));
    }
    if let Some(interval) = counted(words)? {
        return Ok(interval);
    }
    if let Some(weekdays) = weekday_list(words)? {
        return Ok(days("*", "*", &weekdays));
    }
    let cycle = match word.as_str() {
        "second" => Cycle::Interval { unit: Unit::Second, n: 1 },
        "minute" => Cycle::Interval { unit: Unit::Minute, n: 1 },
        "hour" => Cycle::Interval { unit: Unit::Hour, n: 1 },
        "day" => days("*", "*", "*"),
        "weekday" => days("*", "*", WORKING_DAYS),
        "weekend" => days("*", "*", WEEKEND),
        "week" => days("*", "*", "1"),
        "month" => {
            words.skip(1);
            return month(words);
        }
        "year" => {
            words.skip(1);
            return year(words);
        }
        _ => {
            return Err(words.bad(
                "expected second, minute, hour, day, weekday, weekend, week, month, year, a weekday, or a number of \
                 seconds, minutes or hours",
            ));
        }
    };
    words.skip(1);
    Ok(cycle)
}

/// `5 seconds`, `15m`; none if no number comes next.
fn counted(words: &mut Words<'_>) -> Result<Option<Cycle>, BadSchedule> {
    let start = words.index();
    let word = words.peek().to_owned();
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (n, unit) = if digits > 0 && digits < word.len() {
        (number(&word[..digits]), unit(&word[digits..]))
    } else if digits > 0 || !matches!(word.as_str(), "a" | "an") && number(&word).is_some() {
        words.skip(1);
        (number(&word), unit(words.peek()))
    } else {
        return Ok(None);
    };
    let Some(unit) = unit else {
        return Err(words.bad("expected seconds, minutes or hours"));
    };
    words.skip(1);
    let n = n.ok_or_else(|| words.bad_since(start, "the number is too large"))?;
    if n == 0 {
        return Err(words.bad_since(start, "the interval must be at least 1"));
    }
    let whole = match unit {
        Unit::Second | Unit::Minute => 60,
        Unit::Hour => 24,
        Unit::Day if n == 1 => return Ok(Some(days("*", "*", "*"))),
        Unit::Week if n == 1 => return Ok(Some(days("*", "*", "1"))),
        Unit::Month if n == 1 => return Ok(Some(days("*", "1", "*"))),
        Unit::Year if n == 1 => return Ok(Some(days("1", "1", "*"))),
        Unit::Day => {
            return Err(words.bad_since(
                start,
                "not expressible exactly: steps of days begin anew each month; an interval of days is possible",
            ));
        }
        Unit::Week | Unit::Month | Unit::Year => {
            return Err(words.bad_since(start, "not expressible exactly by cron; an interval is possible"));
        }
    };
    if whole % n != 0 {
        return Err(words.bad_since(start, format!("{n} does not divide {whole}")));
    }
    Ok(Some(Cycle::Interval { unit, n }))
}

fn weekday_list(words: &mut Words<'_>) -> Result<Option<String>, BadSchedule> {
    let Some(first) = words.weekday() else { return Ok(None) };
    let mut mask: u8 = 1 << first;
    loop {
        let and = words.eat(&["and"]);
        match words.weekday() {
            Some(weekday) => mask |= 1 << weekday,
            None if and => return Err(words.bad("expected a weekday after `and`")),
            None => return Ok(Some(weekdays_text(mask))),
        }
    }
}

/// `weekdays`, `weekends`, `mondays and thursdays`; none if no plural comes next.
fn plural_weekdays(words: &mut Words<'_>) -> Result<Option<String>, BadSchedule> {
    if words.eat(&["weekdays"]) {
        return Ok(Some(WORKING_DAYS.to_owned()));
    }
    if words.eat(&["weekends"]) {
        return Ok(Some(WEEKEND.to_owned()));
    }
    let mut mask = 0_u8;
    loop {
        let and = mask != 0 && words.eat(&["and"]);
        match weekday_plural(words.peek()) {
            Some(weekday) => mask |= 1 << weekday,
            None if and => return Err(words.bad("expected weekdays such as mondays after `and`")),
            None => return Ok((mask != 0).then(|| weekdays_text(mask))),
        }
        words.skip(1);
    }
}

fn weekdays_text(mask: u8) -> String {
    let days = (0..7).filter(|day| mask & 1 << day != 0).map(|day| day.to_string());
    days.collect::<Vec<_>>().join(",")
}

/// `["on the" day]` after `every month`.
fn month(words: &mut Words<'_>) -> Result<Cycle, BadSchedule> {
    if !words.eat(&["on"]) {
        return Ok(days("*", "1", "*"));
    }
    if words.peek() != "the" {
        return Err(words.bad("expected `the` and a day of the month"));
    }
    let day = words.day()?;
    let day = day.ok_or_else(|| {
        words.skip(1);
        words.bad("expected a day of the month, from 1 to 31")
    })?;
    Ok(days("*", &day.to_string(), "*"))
}

/// `["on" day month]` after `every year`.
fn year(words: &mut Words<'_>) -> Result<Cycle, BadSchedule> {
    if !words.eat(&["on"]) {
        return Ok(days("1", "1", "*"));
    }
    let start = words.index();
    let found = day_and_month(words)?.ok_or_else(|| words.bad("expected a day and a month"))?;
    let (day, month) = found;
    // 2000 is a leap year.
    if jiff::civil::Date::new(2000, month as i8, day as i8).is_err() {
        return Err(words.bad_since(start, "no such date"));
    }
    Ok(days(&month.to_string(), &day.to_string(), "*"))
}

/// What comes after the cycle, in any order, each once.
#[derive(Default)]
struct Parts {
    /// They share minute and second.
    times: Vec<Clock>,
    hours: Option<(u8, u8)>,
    weekdays: Option<String>,
    zone: Option<Zone>,
}

impl Parts {
    fn next(&mut self, words: &mut Words<'_>, cycle: &Cycle) -> Result<(), BadSchedule> {
        let interval = matches!(cycle, Cycle::Interval { .. });
        match words.peek() {
            "at" if interval => {
                Err(words.bad("a time of day goes with days, not with seconds, minutes or hours"))
            }
            "from" if !interval => {
                Err(words.bad("`from` and `to` go with every so many seconds, minutes or hours"))
            }
            "on" if !interval => Err(words.bad("the days are given already")),
            "at" if self.times.is_empty() => {
                words.skip(1);
                self.times(words)
            }
            "from" if self.hours.is_none() => {
                words.skip(1);
                self.hours(words)
            }
            "on" if self.weekdays.is_none() => {
                words.skip(1);
                let weekdays = plural_weekdays(words)?;
                let weekdays = weekdays.ok_or_else(|| words.bad("expected weekdays such as mondays"))?;
                self.weekdays = Some(weekdays);
                Ok(())
            }
            _ if self.zone.is_none() => match words.zone()? {
                Some(zone) => {
                    self.zone = Some(zone);
                    Ok(())
                }
                None => Err(words.bad("not understood here")),
            },
            _ => Err(words.bad("not understood here")),
        }
    }

    /// `time *("and" time)`
    fn times(&mut self, words: &mut Words<'_>) -> Result<(), BadSchedule> {
        loop {
            let start = words.index();
            let Some(clock) = words.clock()? else {
                return Err(words.bad("expected a time of day such as 7pm or 19:00"));
            };
            if clock.utc {
                self.set_utc(words)?;
            }
            if let Some(first) = self.times.first()
                && (clock.minute, clock.second) != (first.minute, first.second)
            {
                return Err(words.bad_since(start, "the times must share minute and second"));
            }
            self.times.push(clock);
            // A comma is a blank, so `9am, 1pm and 5pm` comes without the first `and`.
            if !words.eat(&["and"]) && !words.is_clock() {
                return Ok(());
            }
        }
    }

    /// `time "to" time`
    fn hours(&mut self, words: &mut Words<'_>) -> Result<(), BadSchedule> {
        let start = words.index();
        let first = self.whole_hour(words)?;
        if !words.eat(&["to"]) {
            return Err(words.bad("expected `to` and a time of day"));
        }
        let last = self.whole_hour(words)?;
        if first > last {
            return Err(words.bad_since(start, "the hours run backwards, over midnight"));
        }
        self.hours = Some((first, last));
        Ok(())
    }

    fn whole_hour(&mut self, words: &mut Words<'_>) -> Result<u8, BadSchedule> {
        let start = words.index();
        let clock = words.clock()?.ok_or_else(|| words.bad("expected a time of day such as 9am or 9:00"))?;
        if clock.utc {
            self.set_utc(words)?;
        }
        if (clock.minute, clock.second) != (0, 0) {
            return Err(words.bad_since(start, "expected a whole hour"));
        }
        Ok(clock.hour)
    }

    fn set_utc(&mut self, words: &mut Words<'_>) -> Result<(), BadSchedule> {
        if self.zone.as_ref().is_some_and(|zone| !zone.is_utc()) {
            words.rewind(words.index() - 1);
            return Err(words.bad("a second time zone"));
        }
        self.zone = Some(Zone::UTC);
        Ok(())
    }

    fn fields(&self, cycle: &Cycle) -> String {
        match cycle {
            Cycle::Interval { unit, n } => {
                let hours = self.hours.map(|(first, last)| format!("{first}-{last}"));
                let hours = hours.unwrap_or_else(|| "*".to_owned());
                let (hour, minute, second) = match unit {
                    Unit::Second => (hours, "*".to_owned(), format!("*/{n}")),
                    Unit::Minute => (hours, format!("*/{n}"), "0".to_owned()),
                    // Counted from the first hour of a range.
                    _ => (format!("{hours}/{n}"), "0".to_owned(), "0".to_owned()),
                };
                let weekdays = self.weekdays.as_deref().unwrap_or("*");
                format!("* * * {weekdays} {hour} {minute} {second}")
            }
            Cycle::Days { month, day, weekday } => {
                let hours: Vec<String> = self.times.iter().map(|clock| clock.hour.to_string()).collect();
                let hours = if hours.is_empty() { "0".to_owned() } else { hours.join(",") };
                let (minute, second) =
                    self.times.first().map_or((0, 0), |clock| (clock.minute, clock.second));
                format!("* {month} {day} {weekday} {hours} {minute} {second}")
            }
        }
    }
}
