//! Moments and durations.

use jiff::ToSpan as _;
use jiff::civil::{Date, DateTime};
use jiff::tz::AmbiguousOffset;

use super::super::fields::weekday_name;
use super::super::{BadSchedule, Zone};
use super::words::{Clock, Unit, Words, all_digits, clock_parts, month, number, unit, weekday};
use crate::{Seconds, Timestamp};

/// On which side of now a moment lies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Strictly after now.
    Ahead,
    /// Up to now.
    Back,
}

const EXPECTED: &str = "not understood: expected a time such as 7pm tomorrow, friday at 18:00, 2026-11-17, in 5 \
                        minutes or every monday at 9am";

/// The longest duration, in seconds: more than the calendar has.
const SECONDS_MAX: u64 = 10_000 * 366 * 86_400;

const MIDNIGHT: Clock = Clock { hour: 0, minute: 0, second: 0, utc: false };
const EVENING: Clock = Clock { hour: 20, minute: 0, second: 0, utc: false };

/// A date as it is written, before it is resolved.
#[derive(Clone, Copy)]
enum Day {
    On(Date),
    Tonight(Date),
    /// The next one; 0 is Sunday.
    Weekday(u8),
    /// The next one.
    OfYear {
        month: u8,
        day: u8,
    },
}

struct Duration {
    months: u32,
    seconds: u64,
}

/// Parses a duration without months and years.
pub(super) fn span(words: &mut Words<'_>) -> Result<Seconds, BadSchedule> {
    words.eat(&["in"]);
    let start = words.index();
    let duration = duration(words)?
        .ok_or_else(|| words.bad("expected a duration such as 5 minutes, 1h30m or half an hour"))?;
    if duration.months > 0 {
        return Err(words.bad_since(start, "a month or a year has no fixed length: write days or weeks"));
    }
    words.end()?;
    Ok(Seconds::saturating(duration.seconds as f64))
}

/// Parses a moment, all words of it.
pub(super) fn moment(
    words: &mut Words<'_>,
    now: Timestamp,
    zone: &Zone,
    direction: Direction,
) -> Result<Timestamp, BadSchedule> {
    let whole = now.get().floor();
    // The bounds of jiff's timestamps, with a margin for offsets.
    if !(-3e11..2.5e11).contains(&whole) {
        return Err(words.bad("the current time is out of the calendar"));
    }
    let parser = Moment { now: whole as i64, fraction: now.get() > whole, direction };
    let seconds = parser.parse(words, zone)?;
    Ok(Timestamp::saturating(seconds as f64))
}

struct Moment {
    /// The current second.
    now: i64,
    /// Whether now is later than the beginning of its second.
    fraction: bool,
    direction: Direction,
}

impl Moment {
    fn parse(&self, words: &mut Words<'_>, zone: &Zone) -> Result<i64, BadSchedule> {
        if words.is_done() {
            return Err(words.bad("expected a time such as 7pm tomorrow or in 5 minutes"));
        }
        if words.eat(&["now"]) || words.eat(&["right", "now"]) || words.eat(&["immediately"]) {
            words.end()?;
            return Ok(self.now);
        }
        if let Some(digits) = words.peek().strip_prefix('@') {
            // Twelve digits reach beyond the year 9999.
            let seconds = Some(digits).filter(|digits| all_digits(digits) && digits.len() <= 12);
            let seconds = seconds.and_then(|digits| digits.parse::<i64>().ok());
            let seconds = seconds.filter(|seconds| *seconds < super::super::search::END);
            let seconds = seconds
                .ok_or_else(|| words.bad("expected seconds since the epoch after @, up to the year 9999"))?;
            words.skip(1);
            words.end()?;
            return self.checked(words, 0, seconds);
        }
        if let Some(seconds) = self.duration(words, zone)? {
            return Ok(seconds);
        }
        if let Some(seconds) = self.iso(words, zone)? {
            return Ok(seconds);
        }
        self.phrase(words, zone)
    }

    /// `["in"] duration`, `duration from now`, `duration later`, `duration ago`.
    fn duration(&self, words: &mut Words<'_>, zone: &Zone) -> Result<Option<i64>, BadSchedule> {
        let with_in = words.eat(&["in"]);
        let start = words.index();
        let Some(duration) = duration(words)? else {
            if with_in {
                return Err(words.bad("expected a duration such as 5 minutes after `in`"));
            }
            return Ok(None);
        };
        let ahead = with_in || words.eat(&["from", "now"]) || words.eat(&["later"]);
        let back = !ahead && (words.eat(&["ago"]) || self.direction == Direction::Back);
        let named = words.zone()?;
        words.end()?;
        if back != (self.direction == Direction::Back) {
            return Err(self.wrong_side(words, start));
        }
        let zone = named.as_ref().unwrap_or(zone);
        let too_far = || words.bad_since(start, "beyond the end of the calendar");
        let mut at = self.now;
        if duration.months > 0 {
            // The same day and time, or the last day of the month if it has no such day.
            let months = i64::from(duration.months) * if back { -1 } else { 1 };
            let span = jiff::Span::new().try_months(months).map_err(|_| too_far())?;
            let moved = self.local(zone).checked_add(span).map_err(|_| too_far())?;
            at = zone.inner().to_timestamp(moved).map_err(|_| too_far())?.as_second();
        }
        let seconds = i64::try_from(duration.seconds).map_err(|_| too_far())?;
        // A fraction of a second is rounded up, away from the past.
        let at = if back { at - seconds } else { at + seconds + i64::from(self.fraction) };
        jiff::Timestamp::from_second(at).map_err(|_| too_far())?;
        Ok(Some(at))
    }

    /// `2014-03-06T19:00[:00]` and `2014-03-06 19:00[:00]`, with an optional `Z` or offset.
    fn iso(&self, words: &mut Words<'_>, zone: &Zone) -> Result<Option<i64>, BadSchedule> {
        let start = words.index();
        let first = words.peek();
        let split = first.get(..10).filter(|date| looks_like_iso_date(date)).map(|date| (date, &first[10..]));
        let Some((date, rest)) = split else { return Ok(None) };
        let with_t = rest.starts_with('t');
        let time = if with_t {
            rest[1..].to_owned()
        } else if rest.is_empty()
            && (words.peek_at(1).contains(['+', '-']) || words.peek_at(2).starts_with(['+', '-']))
        {
            words.peek_at(1).to_owned()
        } else {
            return Ok(None);
        };
        let date = iso_date(date).ok_or_else(|| words.bad("no such date"))?;
        if !with_t {
            words.skip(1);
        }
        let (clock, mut offset) = match time.find(['z', '+', '-']) {
            None => (time.as_str(), None),
            Some(at) => {
                let expected = "expected Z or an offset such as +02:00 after the time";
                (&time[..at], Some(iso_offset(&time[at..]).ok_or_else(|| words.bad(expected))?))
            }
        };
        let clock = Some(clock).filter(|clock| clock.len() >= 5 && !clock.contains('.'));
        let Some((hour @ 0..=23, minute, second)) = clock.and_then(|clock| clock_parts(clock, false)) else {
            return Err(words.bad("no such time of day: expected hh:mm or hh:mm:ss"));
        };
        let clock = Clock { hour, minute, second, utc: false };
        words.skip(1);
        if offset.is_none() && words.peek().starts_with(['+', '-']) {
            offset =
                Some(iso_offset(words.peek()).ok_or_else(|| words.bad("expected an offset such as +02:00"))?);
            words.skip(1);
        }
        if let Some(offset) = offset {
            words.end()?;
            let at = civil_seconds(at_clock(date, clock)) - offset;
            jiff::Timestamp::from_second(at)
                .map_err(|_| words.bad_since(start, "beyond the end of the calendar"))?;
            return self.checked(words, start, at).map(Some);
        }
        let named = words.zone()?;
        words.end()?;
        self.resolve(words, start, named.as_ref().unwrap_or(zone), Some(Day::On(date)), Some(clock)).map(Some)
    }

    /// `["at" / "on"] moment`, and a zone after the time or at the end.
    fn phrase(&self, words: &mut Words<'_>, zone: &Zone) -> Result<i64, BadSchedule> {
        let start = words.index();
        if !words.eat(&["at"]) {
            words.eat(&["on"]);
        }
        let first = words.index();
        let mut named = None;
        // The date is read in a zone that may come after it.
        let mut clock = self.clock(words, &mut named)?;
        let zone_of = |named: &Option<Zone>| named.clone().unwrap_or_else(|| zone.clone());
        let mut date_at = words.index();
        let mut date = if clock.is_some() {
            let on = words.eat(&["on"]);
            date_at = words.index();
            let date = self.date(words, &zone_of(&named))?;
            if on && date.is_none() {
                return Err(words.bad("expected a date after `on`"));
            }
            date
        } else {
            self.date(words, &zone_of(&named))?
        };
        if clock.is_none() && date.is_none() {
            words.rewind(first);
            let bare = number(words.peek()).is_some() && all_digits(words.peek());
            return Err(words.bad(if bare && words.peek_at(1).is_empty() {
                "a number alone is not a time: write 7am, 7pm or 19:00"
            } else {
                EXPECTED
            }));
        }
        if clock.is_none() {
            let at = words.eat(&["at"]);
            clock = self.clock(words, &mut named)?;
            if at && clock.is_none() {
                return Err(words.bad("expected a time of day such as 7pm or 19:00 after `at`"));
            }
        }
        if let Some(found) = words.zone()? {
            if named.is_some() {
                words.rewind(words.index() - 1);
                return Err(words.bad("a second time zone"));
            }
            named = Some(found);
        }
        words.end()?;
        if named.is_some() && date.is_some() {
            // Read again, because today in that zone may be another day.
            let end = words.index();
            words.rewind(date_at);
            date = self.date(words, &zone_of(&named))?;
            words.rewind(end);
        }
        self.resolve(words, start, &zone_of(&named), date, clock)
    }

    fn clock(&self, words: &mut Words<'_>, named: &mut Option<Zone>) -> Result<Option<Clock>, BadSchedule> {
        let clock = words.clock()?;
        if let Some(found) = clock {
            *named = if found.utc { Some(Zone::UTC) } else { words.zone()? };
        }
        Ok(clock)
    }

    fn date(&self, words: &mut Words<'_>, zone: &Zone) -> Result<Option<Day>, BadSchedule> {
        let start = words.index();
        let today = self.local(zone).date();
        let ahead = |days: i64| today.checked_add(days.days()).map(Day::On);
        // Days since Monday.
        let in_week = i64::from(today.weekday().to_monday_zero_offset());
        let found = if words.eat(&["today"]) {
            ahead(0)
        } else if words.eat(&["tonight"]) {
            Ok(Day::Tonight(today))
        } else if words.eat(&["tomorrow"]) {
            ahead(1)
        } else if words.eat(&["yesterday"]) {
            ahead(-1)
        } else if words.eat(&["day", "after", "tomorrow"]) || words.eat(&["the", "day", "after", "tomorrow"])
        {
            ahead(2)
        } else if words.eat(&["next", "week"]) {
            ahead(7 - in_week)
        } else if words.eat(&["next", "month"]) {
            today.first_of_month().checked_add(1.month()).map(Day::On)
        } else if words.eat(&["next", "year"]) {
            today.first_of_year().checked_add(1.year()).map(Day::On)
        } else if matches!(words.peek(), "this" | "next") {
            let weeks = i64::from(words.peek() == "next");
            words.skip(1);
            let expected = if weeks == 1 { "a weekday, week, month or year" } else { "a weekday" };
            let weekday = words.weekday().ok_or_else(|| words.bad(format!("expected {expected}")))?;
            ahead(7 * weeks + i64::from((weekday + 6) % 7) - in_week)
        } else {
            return self.written_date(words);
        };
        found.map(Some).map_err(|_| words.bad_since(start, "beyond the end of the calendar"))
    }

    /// A date in figures or with the name of a month, or a weekday.
    fn written_date(&self, words: &mut Words<'_>) -> Result<Option<Day>, BadSchedule> {
        if looks_like_iso_date(words.peek()) {
            let date = iso_date(words.peek()).ok_or_else(|| words.bad("no such date"))?;
            words.skip(1);
            return Ok(Some(Day::On(date)));
        }
        let start = words.index();
        let weekday = words.weekday();
        let date_start = words.index();
        let Some((day, month)) = day_and_month(words)? else {
            return Ok(weekday.map(Day::Weekday));
        };
        // 2000 is a leap year: every day of a month that exists in some year exists in it.
        let no_such = |words: &Words<'_>| words.bad_since(date_start, "no such date");
        Date::new(2000, month as i8, day as i8).map_err(|_| no_such(words))?;
        let year = words.peek();
        if year.len() != 4 || !all_digits(year) {
            if weekday.is_some() {
                return Err(words.bad("expected a year of four digits: a weekday goes with a full date"));
            }
            return Ok(Some(Day::OfYear { month, day }));
        }
        let year: i16 = year.parse().expect("four digits fit");
        words.skip(1);
        let date = Date::new(year, month as i8, day as i8).map_err(|_| no_such(words))?;
        let actual = date.weekday().to_sunday_zero_offset() as u8;
        if let Some(weekday) = weekday
            && weekday != actual
        {
            let reason = format!("that date is a {}, not a {}", weekday_name(actual), weekday_name(weekday));
            return Err(words.bad_since(start, reason));
        }
        Ok(Some(Day::On(date)))
    }

    fn resolve(
        &self,
        words: &Words<'_>,
        start: usize,
        zone: &Zone,
        day: Option<Day>,
        clock: Option<Clock>,
    ) -> Result<i64, BadSchedule> {
        let out = |_: jiff::Error| words.bad_since(start, "beyond the end of the calendar");
        let local = self.local(zone);
        let (today, back) = (local.date(), self.direction == Direction::Back);
        let step: i64 = if back { -1 } else { 1 };
        let candidate = |date: Date| self.on(words, start, zone, date, clock);
        match day {
            Some(Day::On(date)) => candidate(date)?.ok_or_else(|| self.wrong_side(words, start)),
            Some(Day::Tonight(date)) => self
                .on(words, start, zone, date, Some(clock.unwrap_or(EVENING)))?
                .ok_or_else(|| self.wrong_side(words, start)),
            // The day of now, and if that is on the wrong side, the nearest other one.
            None => match candidate(today)? {
                Some(found) => Ok(found),
                None => candidate(today.checked_add(step.days()).map_err(out)?)?
                    .ok_or_else(|| self.wrong_side(words, start)),
            },
            Some(Day::Weekday(weekday)) => {
                let distance = i64::from(weekday) - i64::from(today.weekday().to_sunday_zero_offset());
                let first = if back { -(-distance).rem_euclid(7) } else { distance.rem_euclid(7) };
                for days in [first, first + 7 * step] {
                    if let Some(found) = candidate(today.checked_add(days.days()).map_err(out)?)? {
                        return Ok(found);
                    }
                }
                Err(self.wrong_side(words, start))
            }
            Some(Day::OfYear { month, day }) => {
                // 29 February is missing for eight years around 2100.
                for years in 0..=8 {
                    let year = i64::from(today.year()) + step * years;
                    let year = i16::try_from(year).ok().filter(|year| (0..=9999).contains(year));
                    let year =
                        year.ok_or_else(|| words.bad_since(start, "beyond the end of the calendar"))?;
                    if let Ok(date) = Date::new(year, month as i8, day as i8)
                        && let Some(found) = candidate(date)?
                    {
                        return Ok(found);
                    }
                }
                Err(self.wrong_side(words, start))
            }
        }
    }

    /// The instant of a civil time if it is on the right side of now. A time that a clock change skips or doubles is
    /// refused; a date alone begins with its first instant.
    fn on(
        &self,
        words: &Words<'_>,
        start: usize,
        zone: &Zone,
        date: Date,
        clock: Option<Clock>,
    ) -> Result<Option<i64>, BadSchedule> {
        let out = |_: jiff::Error| words.bad_since(start, "beyond the end of the calendar");
        let Some(clock) = clock else {
            let midnight = zone.inner().to_zoned(at_clock(date, MIDNIGHT)).map_err(out)?;
            // Midnight itself may be skipped or doubled.
            let begin = midnight.start_of_day().map_err(out)?.timestamp().as_second();
            return Ok(Some(begin).filter(|begin| self.is_right_side(*begin)));
        };
        let time = at_clock(date, clock);
        let ambiguous = zone.inner().to_ambiguous_timestamp(time);
        let at = |offset: jiff::tz::Offset| civil_seconds(time) - i64::from(offset.seconds());
        let compatible = ambiguous.compatible().map_err(out)?.as_second();
        match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { .. } => {
                Ok(Some(compatible).filter(|found| self.is_right_side(*found)))
            }
            AmbiguousOffset::Gap { .. } if self.is_right_side(compatible) => {
                let reason = format!("{time} does not exist in {zone}: the clocks go forward over it");
                Err(words.bad_since(start, reason))
            }
            AmbiguousOffset::Gap { .. } => Ok(None),
            AmbiguousOffset::Fold { before, after } => {
                let (first, second) = (at(before), at(after));
                match (self.is_right_side(first), self.is_right_side(second)) {
                    (true, true) => {
                        let reason = format!(
                            "{time} occurs twice in {zone}, because the clocks go back: write {} or {}",
                            zone.format(Timestamp::saturating(first as f64)),
                            zone.format(Timestamp::saturating(second as f64)),
                        );
                        Err(words.bad_since(start, reason))
                    }
                    (true, false) => Ok(Some(first)),
                    (false, true) => Ok(Some(second)),
                    (false, false) => Ok(None),
                }
            }
        }
    }

    fn checked(&self, words: &Words<'_>, start: usize, at: i64) -> Result<i64, BadSchedule> {
        if self.is_right_side(at) { Ok(at) } else { Err(self.wrong_side(words, start)) }
    }

    fn is_right_side(&self, at: i64) -> bool {
        // In whole seconds: a moment in the second of now is not after it.
        (at <= self.now) == (self.direction == Direction::Back)
    }

    fn wrong_side(&self, words: &Words<'_>, start: usize) -> BadSchedule {
        words.bad_since(
            start,
            match self.direction {
                Direction::Ahead => "that is in the past",
                Direction::Back => "that is in the future",
            },
        )
    }

    fn local(&self, zone: &Zone) -> DateTime {
        let now = jiff::Timestamp::from_second(self.now).expect("checked when the parser was made");
        zone.inner().to_datetime(now)
    }
}

/// `part *( ["and"] part )`, also without blanks; none if the next words are no duration.
fn duration(words: &mut Words<'_>) -> Result<Option<Duration>, BadSchedule> {
    let start = words.index();
    let mut total = Duration { months: 0, seconds: 0 };
    let mut parts = 0;
    loop {
        let and = parts > 0 && words.eat(&["and"]);
        let found = if words.eat(&["half", "an", "hour"]) {
            total.seconds += 1_800;
            true
        } else {
            part(words, &mut total)?
        };
        if !found && and {
            return Err(words.bad("expected a duration such as 5 minutes after `and`"));
        }
        if !found {
            break;
        }
        if total.seconds > SECONDS_MAX || total.months > 120_000 {
            return Err(words.bad_since(start, "beyond the end of the calendar"));
        }
        parts += 1;
    }
    if parts > 0 && total.months == 0 && total.seconds == 0 {
        return Err(words.bad_since(start, "a duration must be positive"));
    }
    Ok((parts > 0).then_some(total))
}

/// A number and its unit in two words, or several of them in one: `1h30m`.
fn part(words: &mut Words<'_>, total: &mut Duration) -> Result<bool, BadSchedule> {
    let mut add = |count: u32, unit: Unit| {
        let seconds = match unit {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => 86_400,
            Unit::Week => 604_800,
            Unit::Month => return total.months = total.months.saturating_add(count),
            Unit::Year => return total.months = total.months.saturating_add(count.saturating_mul(12)),
        };
        total.seconds = total.seconds.saturating_add(u64::from(count) * seconds);
    };
    let word = words.peek();
    if let Some(unit) = unit(words.peek_at(1)) {
        if let Some(count) = number(word) {
            add(count, unit);
            words.skip(2);
            return Ok(true);
        }
        if all_digits(word) {
            return Err(words.bad("the number is too large"));
        }
    }
    // `1h30m`: all of the word, or nothing of it.
    let mut rest = word;
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let (digits, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let (name, tail) = tail.split_at(tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len()));
        let (Some(unit), true) = (unit(name), all_digits(digits)) else { return Ok(false) };
        let count = number(digits).ok_or_else(|| words.bad("the number is too large"))?;
        parts.push((count, unit));
        rest = tail;
    }
    if parts.is_empty() {
        return Ok(false);
    }
    parts.into_iter().for_each(|(count, unit)| add(count, unit));
    words.skip(1);
    Ok(true)
}

/// `25 december`, `the 25th of december`, `december 25th`; none if the next words are neither.
pub(super) fn day_and_month(words: &mut Words<'_>) -> Result<Option<(u8, u8)>, BadSchedule> {
    if words.is_clock() {
        return Ok(None);
    }
    if let Some(month) = words.month() {
        let day = words.day()?.ok_or_else(|| words.bad("expected a day of the month after its name"))?;
        return Ok(Some((day, month)));
    }
    // A number alone is no date; the caller says what is missing.
    let the = usize::from(words.peek() == "the");
    let of = usize::from(words.peek_at(the + 1) == "of");
    if month(words.peek_at(the + 1 + of)).is_none() || weekday(words.peek_at(the)).is_some() {
        return Ok(None);
    }
    let Some(day) = words.day()? else { return Ok(None) };
    let month = words.month().expect("it was seen before the day was taken");
    Ok(Some((day, month)))
}

/// Whether a word has the form of `2014-03-06`, valid or not.
fn looks_like_iso_date(word: &str) -> bool {
    word.len() == 10
        && word
            .bytes()
            .enumerate()
            .all(|(index, byte)| if matches!(index, 4 | 7) { byte == b'-' } else { byte.is_ascii_digit() })
}

fn iso_date(word: &str) -> Option<Date> {
    Date::new(word[..4].parse().ok()?, word[5..7].parse().ok()?, word[8..].parse().ok()?).ok()
}

/// `z`, `+11:00`, `-05:30`, in seconds.
fn iso_offset(text: &str) -> Option<i64> {
    if text == "z" {
        return Some(0);
    }
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let digits = text.strip_prefix(['+', '-'])?;
    if digits.len() != 5 || !digits.contains(':') {
        return None;
    }
    let (hour, minute, _) = clock_parts(digits, false)?;
    (hour <= 23).then(|| sign * (i64::from(hour) * 3_600 + i64::from(minute) * 60))
}

fn at_clock(date: Date, clock: Clock) -> DateTime {
    date.at(clock.hour as i8, clock.minute as i8, clock.second as i8, 0)
}

/// Seconds from 1970-01-01T00:00:00 to a civil time.
fn civil_seconds(time: DateTime) -> i64 {
    let days = super::super::civil::days_of(time.year().into(), time.month() as u8, time.day() as u8);
    days * 86_400 + i64::from(time.hour()) * 3_600 + i64::from(time.minute()) * 60 + i64::from(time.second())
}
