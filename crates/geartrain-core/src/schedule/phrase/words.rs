//! The words of a phrase, and those that stand for numbers, units, weekdays, months and times of day.

use super::super::fields::Field;
use super::super::{BadSchedule, Zone};

/// A phrase, split into words, with a position in it.
pub(super) struct Words<'a> {
    text: &'a str,
    lower: String,
    /// Byte ranges of the words.
    words: Vec<(usize, usize)>,
    next: usize,
}

impl<'a> Words<'a> {
    pub(super) fn new(text: &'a str) -> Words<'a> {
        let separates = |c: char| c.is_ascii_whitespace() || c == ',';
        let end = text.trim_end_matches(separates);
        let end = end.strip_suffix('.').unwrap_or(end).len();
        let mut words = Vec::new();
        let mut at = 0;
        for part in text[..end].split(separates) {
            if !part.is_empty() {
                words.push((at, at + part.len()));
            }
            // Every separator is one byte.
            at += part.len() + 1;
        }
        Words { text, lower: text.to_ascii_lowercase(), words, next: 0 }
    }

    /// The index of the next word.
    pub(super) fn index(&self) -> usize {
        self.next
    }

    /// Goes back to a word.
    pub(super) fn rewind(&mut self, index: usize) {
        self.next = index;
    }

    /// The word that is `ahead` words after the next one, in lower case; empty after the last word.
    pub(super) fn peek_at(&self, ahead: usize) -> &str {
        self.words.get(self.next + ahead).map_or("", |&(start, end)| &self.lower[start..end])
    }

    pub(super) fn peek(&self) -> &str {
        self.peek_at(0)
    }

    pub(super) fn skip(&mut self, words: usize) {
        self.next = (self.next + words).min(self.words.len());
    }

    pub(super) fn is_done(&self) -> bool {
        self.next == self.words.len()
    }

    /// Consumes these words if they come next.
    pub(super) fn eat(&mut self, words: &[&str]) -> bool {
        let found = words.iter().enumerate().all(|(ahead, word)| self.peek_at(ahead) == *word);
        if found {
            self.skip(words.len());
        }
        found
    }

    /// An error at the next word, or at the end of the text.
    pub(super) fn bad(&self, reason: impl Into<String>) -> BadSchedule {
        self.bad_from(self.next, 1, reason)
    }

    /// An error about the words from an index up to the next word.
    pub(super) fn bad_since(&self, index: usize, reason: impl Into<String>) -> BadSchedule {
        self.bad_from(index, self.next.saturating_sub(index).max(1), reason)
    }

    fn bad_from(&self, index: usize, count: usize, reason: impl Into<String>) -> BadSchedule {
        let last = (index + count - 1).min(self.words.len().saturating_sub(1));
        match self.words.get(index) {
            Some(&(start, _)) => BadSchedule::new(start, &self.text[start..self.words[last].1], reason),
            None => BadSchedule::new(self.text.len(), "", reason),
        }
    }

    /// Refuses words that are left.
    pub(super) fn end(&self) -> Result<(), BadSchedule> {
        if self.is_done() {
            Ok(())
        } else {
            Err(self.bad("not understood here; nothing is expected after the time"))
        }
    }

    /// A zone: `utc`, `z`, `gmt`, or an IANA name with a slash in it. Abbreviations such as EST are refused.
    pub(super) fn zone(&mut self) -> Result<Option<Zone>, BadSchedule> {
        let word = self.peek();
        let zone = match word {
            "utc" | "z" | "gmt" => Zone::UTC,
            _ if word.starts_with(|c: char| c.is_ascii_alphabetic()) && word.contains('/') => {
                Zone::named(word).map_err(|error| self.bad(error.to_string()))?
            }
            "est" | "edt" | "cst" | "cdt" | "mst" | "mdt" | "pst" | "pdt" | "cet" | "cest" | "bst"
            | "ist" | "eet" | "eest" | "wet" | "west" | "jst" | "aest" | "aedt" | "msk" | "hst" => {
                return Err(
                    self.bad("abbreviations of zones are ambiguous: write a name such as Europe/Berlin")
                );
            }
            _ => return Ok(None),
        };
        self.skip(1);
        Ok(Some(zone))
    }

    /// `monday`, `mon`, also `tues`, `thur`, `thurs`.
    pub(super) fn weekday(&mut self) -> Option<u8> {
        let weekday = weekday(self.peek())?;
        self.skip(1);
        Some(weekday)
    }

    pub(super) fn month(&mut self) -> Option<u8> {
        let month = month(self.peek())?;
        self.skip(1);
        Some(month)
    }

    /// `["the"] 1–31 ["st" / "nd" / "rd" / "th"] ["of"]`. `of` is only taken if a month follows it.
    pub(super) fn day(&mut self) -> Result<Option<u8>, BadSchedule> {
        let the = usize::from(self.peek() == "the");
        let word = self.peek_at(the);
        let digits = word.strip_suffix("st").or_else(|| word.strip_suffix("nd"));
        let digits = digits.or_else(|| word.strip_suffix("rd")).or_else(|| word.strip_suffix("th"));
        let digits = digits.unwrap_or(word);
        if digits.is_empty() || digits.len() > 2 || !all_digits(digits) {
            return Ok(None);
        }
        let day: u8 = digits.parse().expect("one or two digits fit");
        if !(1..=31).contains(&day) {
            self.skip(the);
            return Err(self.bad("no such day: a day of a month is from 1 to 31"));
        }
        self.skip(the + 1);
        if self.peek() == "of" && month(self.peek_at(1)).is_some() {
            self.skip(1);
        }
        Ok(Some(day))
    }

    /// Whether a time of day comes next, valid or not.
    pub(super) fn is_clock(&self) -> bool {
        let word = self.peek();
        let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
        matches!(word, "noon" | "midday" | "midnight")
            || digits > 0
                && (word[digits..].starts_with([':', '.'])
                    || matches!(&word[digits..], "am" | "pm")
                    || (digits == word.len() && matches!(self.peek_at(1), "am" | "pm")))
    }

    /// A time of day: `noon`, `7pm`, `7.30 pm`, `19:30:00`. A `z` at its end is left in `utc`.
    pub(super) fn clock(&mut self) -> Result<Option<Clock>, BadSchedule> {
        if !self.is_clock() {
            return Ok(None);
        }
        let start = self.index();
        let word = self.peek().to_owned();
        self.skip(1);
        let named = match word.as_str() {
            "noon" | "midday" => Some(12),
            "midnight" => Some(0),
            _ => None,
        };
        if let Some(hour) = named {
            return Ok(Some(Clock { hour, minute: 0, second: 0, utc: false }));
        }
        let halves = [("am", 0), ("pm", 12)];
        let mut half = halves.iter().find_map(|(name, add)| Some((word.strip_suffix(name)?, *add)));
        if half.is_none() && matches!(self.peek(), "am" | "pm") {
            half = Some((&word, if self.peek() == "pm" { 12 } else { 0 }));
            self.skip(1);
        }
        let no_such = |words: &Words<'_>| words.bad_since(start, "no such time of day");
        let clock = match half {
            Some((digits, add)) => match clock_parts(digits, true) {
                Some((hour @ 1..=12, minute, second)) => {
                    Clock { hour: hour % 12 + add, minute, second, utc: false }
                }
                _ => return Err(no_such(self)),
            },
            None if word.contains('.') => {
                return Err(
                    self.bad_since(start, "expected am or pm after a time with a point; or write 19:30")
                );
            }
            None => {
                let (digits, utc) =
                    word.strip_suffix('z').map_or((word.as_str(), false), |digits| (digits, true));
                match clock_parts(digits, false) {
                    Some((hour @ 0..=23, minute, second)) => Clock { hour, minute, second, utc },
                    _ => return Err(no_such(self)),
                }
            }
        };
        Ok(Some(clock))
    }
}

/// A time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clock {
    pub(super) hour: u8,
    pub(super) minute: u8,
    pub(super) second: u8,
    /// Written with a `z` at its end.
    pub(super) utc: bool,
}

/// Hour, minute and second of `7`, `7:30`, `7.30`, `7:30:15`; the hour is not checked.
pub(super) fn clock_parts(text: &str, hour_alone: bool) -> Option<(u8, u8, u8)> {
    let (hour, rest) = match text.find([':', '.']) {
        Some(end) => (&text[..end], Some(&text[end + 1..])),
        None => (text, None),
    };
    if hour.is_empty() || hour.len() > 2 || !all_digits(hour) || (rest.is_none() && !hour_alone) {
        return None;
    }
    let sixty = |text: &str| {
        let number = (text.len() == 2 && all_digits(text)).then(|| text.parse::<u8>().ok()).flatten();
        number.filter(|number| *number < 60)
    };
    let (minute, second) =
        match rest.map(|rest| rest.split_once(':').map_or((rest, None), |(m, s)| (m, Some(s)))) {
            None => (0, 0),
            Some((minute, None)) => (sixty(minute)?, 0),
            Some((minute, Some(second))) => (sixty(minute)?, sixty(second)?),
        };
    Some((hour.parse().ok()?, minute, second))
}

pub(super) fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A weekday's number, 0 for Sunday.
pub(super) fn weekday(word: &str) -> Option<u8> {
    let word = match word {
        "tues" => "tue",
        "thur" | "thurs" => "thu",
        _ => word,
    };
    Field::Weekday.value_of_name(word).map(|value| value as u8)
}

/// `mondays`, `weds` is none: full names and three letters with an s.
pub(super) fn weekday_plural(word: &str) -> Option<u8> {
    let singular = word.strip_suffix('s')?;
    // `tues` and `thurs` are short forms of one day.
    if word == "tues" || word == "thurs" { None } else { weekday(singular) }
}

pub(super) fn month(word: &str) -> Option<u8> {
    Field::Month.value_of_name(if word == "sept" { "sep" } else { word }).map(|value| value as u8)
}

/// A number in digits or words up to twelve. Too many digits are none.
pub(super) fn number(word: &str) -> Option<u32> {
    const WORDS: [&str; 12] =
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
    if all_digits(word) {
        return (word.len() <= 9).then(|| word.parse().ok()).flatten();
    }
    match word {
        "a" | "an" => Some(1),
        _ => WORDS.iter().position(|name| *name == word).map(|index| index as u32 + 1),
    }
}

/// A unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

pub(super) fn unit(word: &str) -> Option<Unit> {
    Some(match word {
        "s" | "sec" | "secs" | "second" | "seconds" => Unit::Second,
        "m" | "min" | "mins" | "minute" | "minutes" => Unit::Minute,
        "h" | "hr" | "hrs" | "hour" | "hours" => Unit::Hour,
        "d" | "day" | "days" => Unit::Day,
        "w" | "wk" | "wks" | "week" | "weeks" => Unit::Week,
        "mo" | "month" | "months" => Unit::Month,
        "y" | "yr" | "yrs" | "year" | "years" => Unit::Year,
        _ => return None,
    })
}
