//! The next run of a schedule. The search moves on by the largest field that does not match and never steps
//! through seconds.
//!
//! Within a year of one kind (leap or not, and the weekday of 1 January) the days that match depend on the month
//! alone. Months without a match are remembered for each of the 14 kinds, so that even a search through all years up
//! to 9999 takes less than 0.1 ms; an impossible date is known in microseconds.

use super::Schedule;
use super::civil::{DAY_SECONDS, date_of, days_in_month, days_of, is_leap, weekday_of};
use super::fields::{Field, YEARS, first_from};
use super::zone::{OFFSET_BOUND, Zone};

/// The first second after the year 9999, in seconds since the epoch.
pub(super) const END: i64 = 253_402_300_800;

impl Schedule {
    /// The first run at or after an instant in seconds since the epoch.
    pub(super) fn run_from(&self, from: i64) -> Option<i64> {
        if self.zone.is_utc() { self.civil_from(from) } else { self.zoned_from(&self.zone, from) }
    }

    /// Whether every hour is selected. Such a schedule follows the clock through clock changes; the others have
    /// times of day, which run once.
    pub(super) fn selects_every_hour(&self) -> bool {
        u64::from(self.hour) == Field::Hour.all() && self.nth(Field::Minute).next().is_none()
    }

    fn zoned_from(&self, zone: &Zone, from: i64) -> Option<i64> {
        let once = !self.selects_every_hour();
        let mut from = from.max(-OFFSET_BOUND);
        loop {
            let offset = zone.offset(from)?;
            let mut local = from + offset;
            if once && let Some(change) = zone.latest_transition(from) {
                if change.at == from && change.after > change.before {
                    // The first instant after a skipped hour: the runs of that hour are made up for by one.
                    let skipped = self.civil_from(change.at + change.before);
                    if skipped.is_some_and(|skipped| skipped < change.at + change.after) {
                        return Some(from);
                    }
                }
                // In the second pass of a doubled hour: its runs were in the first.
                local = local.max(change.at + change.before);
            }
            let run = self.civil_from(local);
            let Some(change) = zone.next_transition(from, offset) else {
                return run.map(|run| run - offset);
            };
            if let Some(run) = run
                && run < change.at + offset
            {
                return Some(run - offset);
            }
            let doubled = !once
                && change.after < change.before
                && self
                    .civil_from(change.at + change.after)
                    .is_some_and(|run| run < change.at + change.before);
            // No reading of the clock before `run` matches, and `run` is at least an offset away.
            from = if doubled { change.at } else { change.at.max(run? - OFFSET_BOUND) };
        }
    }

    /// The first match at or after a civil time, both in seconds since 1970-01-01T00:00:00 of their zone.
    pub(super) fn civil_from(&self, from: i64) -> Option<i64> {
        let from = from.max(0);
        if from >= END {
            return None;
        }
        let (days, second) = (from / DAY_SECONDS, (from % DAY_SECONDS) as u32);
        let (year, month, day) = date_of(days);
        let times = Times::new(self);
        let today = self.year_from(year as u16) == Some(year as u16)
            && self.months(year) & 1 << month != 0
            && self.days(&times, is_leap(year), month, weekday_of(days - i64::from(day) + 1)) & 1 << day != 0;
        if today && let Some(second) = self.time_from(&times, day, second) {
            return Some(days * DAY_SECONDS + i64::from(second));
        }
        let days = self.day_from(&times, year, month, u32::from(day) + 1)?;
        let (_, _, day) = date_of(days);
        let second =
            self.time_from(&times, day, 0).expect("a day matches only if it has a time that matches");
        Some(days * DAY_SECONDS + i64::from(second))
    }

    /// The first day at or after a date that matches and has a time that matches, in days since 1970-01-01.
    fn day_from(&self, times: &Times, year: i32, month: u8, day: u32) -> Option<i64> {
        let mut barren = [0_u16; 14];
        let mut next = self.year_from(year as u16);
        let mut tried = 0;
        while let Some(candidate) = next {
            // Nearly all schedules have been found by now; the others may be impossible in any year.
            if tried == 8 && !self.has_a_day(times) {
                return None;
            }
            tried += 1;
            let (candidate, leap) = (i32::from(candidate), is_leap(i32::from(candidate)));
            let new_year = days_of(candidate, 1, 1);
            let kind = usize::from(weekday_of(new_year)) * 2 + usize::from(leap);
            let same = candidate == year;
            let mut months = self.months(candidate) & !barren[kind];
            if same {
                months &= u16::MAX << month;
            }
            while months != 0 {
                let found = months.trailing_zeros() as u8;
                months &= months - 1;
                let first = days_of(candidate, found, 1);
                let mut days = self.days(times, leap, found, weekday_of(first));
                if days == 0 {
                    barren[kind] |= 1 << found;
                } else if same && found == month {
                    days = if day > 31 { 0 } else { days & u32::MAX << day };
                }
                if days != 0 {
                    return Some(first + i64::from(days.trailing_zeros()) - 1);
                }
            }
            next = self.year_from(candidate as u16 + 1);
        }
        None
    }

    /// Whether a month of any year, whatever weekday it begins with, has a day that matches.
    fn has_a_day(&self, times: &Times) -> bool {
        let months = self.nth(Field::Month).fold(self.month, |months, nth| months | 1 << nth.value);
        let mut months = (1..=12).filter(|month| months & 1 << month != 0);
        let in_month = |leap, month| (0..7).any(|first| self.days(times, leap, month, first) != 0);
        months.any(|month| in_month(false, month) || in_month(true, month))
    }

    fn year_from(&self, from: u16) -> Option<u16> {
        let years = self.years();
        if years.is_empty() {
            return (from <= YEARS.1).then_some(from.max(YEARS.0));
        }
        years.iter().filter_map(|range| range.from(from)).min()
    }

    fn months(&self, year: i32) -> u16 {
        let nth = self.nth(Field::Month).filter(|nth| (year - 1969) % i32::from(nth.n) == 0);
        nth.fold(self.month, |months, nth| months | 1 << nth.value)
    }

    /// The days of a month that match and have a time that matches. `first` is the weekday of its first day.
    fn days(&self, times: &Times, leap: bool, month: u8, first: u8) -> u32 {
        let length = days_in_month(leap, month);
        let mut by_date = self.day;
        for nth in self.nth(Field::Day) {
            let occurrence = (1..=month).filter(|month| days_in_month(leap, *month) >= nth.value).count();
            if occurrence % usize::from(nth.n) == 0 {
                by_date |= 1 << nth.value;
            }
        }
        // The weekdays in the order of this month's days, five weeks of them; bit 1 is the first day.
        let week = u64::from(self.weekday) << 7 | u64::from(self.weekday);
        let week = week >> first & 0x7f;
        let mut by_weekday = ((week | week << 7 | week << 14 | week << 21 | week << 28) << 1) as u32;
        for nth in self.nth(Field::Weekday) {
            let first = (nth.value + 7 - first) % 7 + 1;
            for occurrence in (1..=5).filter(|occurrence| u16::from(*occurrence) % nth.n == 0) {
                let day = first + 7 * (occurrence - 1);
                by_weekday |= if day > 31 { 0 } else { 1 << day };
            }
        }
        let days = if self.either_day { by_date | by_weekday } else { by_date & by_weekday };
        days & ((1_u64 << (length + 1)) - 2) as u32 & times.days
    }

    fn hours(&self, day: u8) -> u32 {
        let nth = self.nth(Field::Hour).filter(|nth| u16::from(day) % nth.n == 0);
        nth.fold(self.hour, |hours, nth| hours | 1 << nth.value)
    }

    fn minutes(&self, hour: u32) -> u64 {
        let nth = self.nth(Field::Minute).filter(|nth| (hour + 1).is_multiple_of(u32::from(nth.n)));
        nth.fold(self.minute, |minutes, nth| minutes | 1 << nth.value)
    }

    fn seconds(&self, minute: u32) -> u64 {
        let nth = self.nth(Field::Second).filter(|nth| (minute + 1).is_multiple_of(u32::from(nth.n)));
        nth.fold(self.second, |seconds, nth| seconds | 1 << nth.value)
    }

    /// The first time of a day at or after a second of the day.
    fn time_from(&self, times: &Times, day: u8, from: u32) -> Option<u32> {
        let (from_hour, from_minute, from_second) = (from / 3_600, from / 60 % 60, from % 60);
        let hours = u64::from(self.hours(day) & times.hours);
        let mut hour = first_from(hours, from_hour);
        while let Some(found) = hour {
            let same_hour = found == from_hour;
            let minutes = self.minutes(found) & times.minutes;
            let mut minute = first_from(minutes, if same_hour { from_minute } else { 0 });
            while let Some(found_minute) = minute {
                let same = same_hour && found_minute == from_minute;
                let seconds = self.seconds(found_minute);
                if let Some(second) = first_from(seconds, if same { from_second } else { 0 }) {
                    return Some(found * 3_600 + found_minute * 60 + second);
                }
                minute = first_from(minutes, found_minute + 1);
            }
            hour = first_from(hours, found + 1);
        }
        None
    }
}

/// The minutes, hours and days of month in which a smaller field can match at all. Everything, unless there are
/// nth occurrences: the minute decides about those of a second, the hour about those of a minute, and so on.
struct Times {
    minutes: u64,
    hours: u32,
    days: u32,
}

impl Times {
    fn new(schedule: &Schedule) -> Times {
        let mut times = Times { minutes: u64::MAX, hours: u32::MAX, days: u32::MAX };
        if !schedule.has_nth() {
            return times;
        }
        times.minutes =
            (0..60).filter(|minute| schedule.seconds(*minute) != 0).fold(0, |mask, bit| mask | 1 << bit);
        let hours = (0..24).filter(|hour| schedule.minutes(*hour) & times.minutes != 0);
        times.hours = hours.fold(0, |mask, bit| mask | 1 << bit);
        let days = (1..=31).filter(|day| schedule.hours(*day) & times.hours != 0);
        times.days = days.fold(0, |mask, bit| mask | 1 << bit);
        times
    }
}
