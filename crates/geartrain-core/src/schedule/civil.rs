//! The Gregorian calendar in whole days and seconds. Written here and not taken from jiff, because its timestamps
//! end a day before the last day of the year 9999, and because the search needs nothing else.

/// Seconds in a day of the civil calendar.
pub(super) const DAY_SECONDS: i64 = 86_400;

/// The date of a number of days since 1970-01-01: year, month and day.
pub(super) fn date_of(days: i64) -> (i32, u8, u8) {
    // Years are counted from 1 March 0000, so that the leap day is the last day of a year.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year as i32, month as u8, day as u8)
}

/// Days since 1970-01-01 of a date.
pub(super) fn days_of(year: i32, month: u8, day: u8) -> i64 {
    let year = i64::from(year) - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (i64::from(month) + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + 365 * year_of_era + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The weekday of a number of days since 1970-01-01, a Thursday; 0 is Sunday.
pub(super) fn weekday_of(days: i64) -> u8 {
    (days + 4).rem_euclid(7) as u8
}

pub(super) fn is_leap(year: i32) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

pub(super) fn days_in_month(leap: bool, month: u8) -> u8 {
    match month {
        2 => 28 + u8::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_agree_with_a_calendar_that_counts() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..=days_of(9999, 12, 31) {
            assert_eq!(date_of(days), (year, month, day));
            assert_eq!(days_of(year, month, day), days);
            day += 1;
            if day > days_in_month(is_leap(year), month) {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
        assert_eq!(year, 10_000);
        assert_eq!(date_of(-1), (1969, 12, 31));
        // 5 March 2014 was a Wednesday.
        assert_eq!(weekday_of(days_of(2014, 3, 5)), 3);
    }
}
