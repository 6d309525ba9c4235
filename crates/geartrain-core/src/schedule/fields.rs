//! The fields of a cron expression as bit masks, and their text.

use std::fmt::{self, Write as _};

/// The first and the last year of the seven-field form.
pub(super) const YEARS: (u16, u16) = (1970, 9999);

/// A field of a cron expression, from the largest unit to the smallest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    Year,
    Month,
    Day,
    Weekday,
    Hour,
    Minute,
    Second,
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

const WEEKDAYS: [&str; 7] = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];

impl Field {
    /// What messages call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Field::Year => "year",
            Field::Month => "month",
            Field::Day => "day of month",
            Field::Weekday => "day of week",
            Field::Hour => "hour",
            Field::Minute => "minute",
            Field::Second => "second",
        }
    }

    /// The smallest and the largest value.
    pub(super) fn range(self) -> (u16, u16) {
        match self {
            Field::Year => YEARS,
            Field::Month => (1, 12),
            Field::Day => (1, 31),
            Field::Weekday => (0, 6),
            Field::Hour => (0, 23),
            Field::Minute | Field::Second => (0, 59),
        }
    }

    /// The mask of all values; years have none.
    pub(super) fn all(self) -> u64 {
        let (first, last) = self.range();
        progression(first, last, 1)
    }

    /// The value of an English name in three letters or in full, in any case.
    pub(super) fn value_of_name(self, text: &str) -> Option<u16> {
        let (names, first): (&[&str], u16) = match self {
            Field::Month => (&MONTHS, 1),
            Field::Weekday => (&WEEKDAYS, 0),
            _ => return None,
        };
        let named = |name: &&str| {
            text.eq_ignore_ascii_case(name) || (text.len() == 3 && text.eq_ignore_ascii_case(&name[..3]))
        };
        names.iter().position(named).map(|index| index as u16 + first)
    }
}

/// The English name of a weekday; 0 is Sunday.
pub(super) fn weekday_name(weekday: u8) -> &'static str {
    WEEKDAYS[usize::from(weekday % 7)]
}

/// The mask of `first`, `first + step`, and so on up to `last`.
pub(super) fn progression(first: u16, last: u16, step: u16) -> u64 {
    let mut mask = 0;
    let mut value = u32::from(first);
    while value <= u32::from(last) && value < 64 {
        mask |= 1 << value;
        value += u32::from(step);
    }
    mask
}

/// The smallest value of a mask that is at least `from`.
pub(super) fn first_from(mask: u64, from: u32) -> Option<u32> {
    let rest = if from > 63 { 0 } else { mask & (u64::MAX << from) };
    (rest != 0).then(|| rest.trailing_zeros())
}

/// `value/n` with n above 1: every nth occurrence of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Nth {
    pub(super) field: Field,
    pub(super) value: u8,
    pub(super) n: u16,
}

/// Every `step`th year from `first` to `last`, which is one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct YearRange {
    first: u16,
    last: u16,
    step: u16,
}

impl YearRange {
    /// The bounds are in order, and the step is at least 1.
    pub(super) fn new(first: u16, last: u16, step: u16) -> YearRange {
        let last = last - (last - first) % step;
        YearRange { first, last, step: if first == last { 1 } else { step } }
    }

    /// The first year of the range that is at least `from`.
    pub(super) fn from(self, from: u16) -> Option<u16> {
        if from > self.last {
            return None;
        }
        let steps = from.saturating_sub(self.first).div_ceil(self.step);
        // At most the last year, since the distance to the last year is a multiple of the step.
        Some(self.first + steps * self.step)
    }

    pub(super) fn is_every_year(self) -> bool {
        self == YearRange { first: YEARS.0, last: YEARS.1, step: 1 }
    }
}

impl fmt::Display for YearRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let YearRange { first, last, step } = *self;
        if first == last {
            write!(f, "{first}")
        } else if first == YEARS.0 && u32::from(last) + u32::from(step) > u32::from(YEARS.1) {
            write!(f, "*/{step}")
        } else if step == 1 {
            write!(f, "{first}-{last}")
        } else {
            write!(f, "{first}-{last}/{step}")
        }
    }
}

/// Appends an item to a list.
pub(super) fn push_item(list: &mut String, item: impl fmt::Display) {
    let comma = if list.is_empty() { "" } else { "," };
    write!(list, "{comma}{item}").expect("a String takes any text");
}

/// Writes a mask as briefly as the grammar allows: `*`, `*/5`, `9-17`, `1-21/5`, or a list.
pub(super) fn mask_text(field: Field, mask: u64) -> String {
    let (first, last) = field.range();
    if mask == field.all() {
        return "*".to_owned();
    }
    let mut text = String::new();
    let lowest = mask.trailing_zeros() as u16;
    let highest = 63_u16.saturating_sub(mask.leading_zeros() as u16);
    if mask.count_ones() >= 2 {
        let step = (mask & (mask - 1)).trailing_zeros() as u16 - lowest;
        // Two days are a list, not a step: `0,6` for weekends.
        let values_min = if matches!(field, Field::Day | Field::Weekday) { 3 } else { 2 };
        if lowest == first && mask.count_ones() >= values_min && mask == progression(first, last, step) {
            return format!("*/{step}");
        }
        if step > 1 && mask.count_ones() >= 3 && mask == progression(lowest, highest, step) {
            return format!("{lowest}-{highest}/{step}");
        }
    }
    let mut from = 0;
    while let Some(start) = first_from(mask, from) {
        let end = start + (!(mask >> start)).trailing_zeros() - 1;
        match end - start {
            0 => push_item(&mut text, start),
            1 => push_item(&mut text, format_args!("{start},{end}")),
            _ => push_item(&mut text, format_args!("{start}-{end}")),
        }
        from = end + 1;
    }
    text
}

/// Writes a mask that holds the field's first value so that it begins with `*`.
pub(super) fn starred_text(field: Field, mask: u64) -> String {
    let (first, last) = field.range();
    if mask == field.all() {
        return "*".to_owned();
    }
    let covered = |step: &u16| progression(first, last, *step) & !mask == 0;
    let step = (2..=last + 1).find(covered).unwrap_or(last + 1);
    let mut text = format!("*/{step}");
    let rest = mask & !progression(first, last, step);
    if rest != 0 {
        push_item(&mut text, mask_text(field, rest));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_written_briefly() {
        for (field, mask, text) in [
            (Field::Second, Field::Second.all(), "*"),
            (Field::Second, progression(0, 59, 5), "*/5"),
            (Field::Hour, progression(9, 17, 1), "9-17"),
            (Field::Hour, progression(1, 23, 5), "1-21/5"),
            (Field::Hour, 1 << 9 | 1 << 17, "9,17"),
            (Field::Weekday, 1 << 0 | 1 << 6, "0,6"),
            (Field::Weekday, 1 << 1 | 1 << 2 | 1 << 4, "1,2,4"),
            (Field::Minute, 1, "0"),
            (Field::Minute, 1 << 0 | 1 << 1 | 1 << 2 | 1 << 59, "0-2,59"),
        ] {
            assert_eq!(mask_text(field, mask), text);
        }
        assert_eq!(starred_text(Field::Day, progression(1, 31, 2)), "*/2");
        assert_eq!(starred_text(Field::Day, 1 << 1 | 1 << 5), "*/31,5");
    }

    #[test]
    fn year_ranges_end_with_one_of_their_years() {
        let range = YearRange::new(2014, 2017, 2);
        assert_eq!(range, YearRange::new(2014, 2016, 2));
        assert_eq!(
            [2013, 2015, 2016, 2017].map(|from| range.from(from)),
            [Some(2014), Some(2016), Some(2016), None]
        );
        assert_eq!(YearRange::new(1970, 9999, 4).to_string(), "*/4");
        assert_eq!(YearRange::new(2014, 2015, 2).to_string(), "2014");
    }
}
