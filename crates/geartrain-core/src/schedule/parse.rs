//! Cron text to a schedule.

use super::fields::{Field, Nth, YearRange, progression};
use super::{BadSchedule, Extension, Schedule, Zone};

/// The order of the fields, and the rules that differ with it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// WorkKit: `v/n` is the nth occurrence of a value, weekdays are 0 to 6, `?` is a day field without a value.
    Seven,
    /// Vixie cron, with or without seconds: weekdays are 0 to 7, and there is no `v/n`.
    Cron,
}

const SEVEN: [Field; 7] =
    [Field::Year, Field::Month, Field::Day, Field::Weekday, Field::Hour, Field::Minute, Field::Second];
const SIX: [Field; 6] = [Field::Second, Field::Minute, Field::Hour, Field::Day, Field::Month, Field::Weekday];

/// The prefixes that name a zone.
const ZONE_PREFIXES: [&str; 2] = ["CRON_TZ=", "TZ="];

/// The nicknames of Vixie cron.
const NICKNAMES: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

/// Whether a text is meant as a cron expression and not as a phrase. No phrase contains `*`, begins with a nickname
/// or a prefix for the zone, or has five words of which the first two are digits, commas, hyphens and slashes.
pub(super) fn looks_like_cron(text: &str) -> bool {
    let numeric = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit() || b"?,-/".contains(&byte));
    let mut bytes = text.bytes();
    text.contains('*')
        || ZONE_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
        || (bytes.next() == Some(b'@') && bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic()))
        || (text.split_ascii_whitespace().count() >= 5 && text.split_ascii_whitespace().take(2).all(numeric))
}

/// Five, six or seven fields, a nickname, and a zone before them.
pub(super) fn any(text: &str) -> Result<Schedule, BadSchedule> {
    let Some(prefix) = ZONE_PREFIXES.iter().find(|prefix| text.starts_with(**prefix)) else {
        return fields(text, 0);
    };
    let end = text.find([' ', '\t']).unwrap_or(text.len());
    let name = &text[prefix.len()..end];
    let zone = Zone::named(name).map_err(|error| BadSchedule::new(prefix.len(), name, error.to_string()))?;
    let rest = text[end..].trim_start_matches([' ', '\t']);
    Ok(fields(rest, text.len() - rest.len())?.in_zone(zone))
}

/// Fields that begin at a byte of the text.
fn fields(text: &str, start: usize) -> Result<Schedule, BadSchedule> {
    if text.starts_with('@') {
        if let Some((_, fields)) = NICKNAMES.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)) {
            return fields_of_cron(fields, start);
        }
        let reason = if text.eq_ignore_ascii_case("@reboot") {
            "a queue does not notice that a machine starts"
        } else {
            "not one of @hourly, @daily, @midnight, @weekly, @monthly, @yearly and @annually"
        };
        return Err(BadSchedule::new(start, text, reason));
    }
    match split(text, start)?.len() {
        5 | 6 => fields_of_cron(text, start),
        7 => fields_of_seven(text, start),
        _ => Err(wrong_count(text, start, "5, 6 or 7 fields")),
    }
}

/// Seven fields alone.
pub(super) fn seven(text: &str) -> Result<Schedule, BadSchedule> {
    match split(text, 0)?.len() {
        7 => fields_of_seven(text, 0),
        5 | 6 => Err(wrong_count(
            text,
            0,
            "7 fields (year, month, day of month, day of week, hour, minute, second; five or six fields, with the \
             minute or the second first, are another order)",
        )),
        _ => Err(wrong_count(
            text,
            0,
            "7 fields (year, month, day of month, day of week, hour, minute, second)",
        )),
    }
}

fn fields_of_seven(text: &str, start: usize) -> Result<Schedule, BadSchedule> {
    let words = split(text, start)?;
    let mut builder = Builder::new(Form::Seven);
    for (field, (at, word)) in SEVEN.into_iter().zip(&words) {
        builder.field(field, *at, word).map_err(|error| name_the_other_order(error, &words))?;
    }
    builder.build(text, start)
}

fn fields_of_cron(text: &str, start: usize) -> Result<Schedule, BadSchedule> {
    let words = split(text, start)?;
    let mut builder = Builder::new(Form::Cron);
    if words.len() == 5 {
        builder.masks[Field::Second as usize] = 1;
    }
    for (field, (at, word)) in SIX.into_iter().skip(6 - words.len()).zip(&words) {
        builder.field(field, *at, word)?;
    }
    builder.build(text, start)
}

/// The fields and the bytes at which they begin. Blanks around them are refused: in WorkKit the text is part of
/// the job's id, so none may be added or dropped.
fn split(text: &str, start: usize) -> Result<Vec<(usize, &str)>, BadSchedule> {
    let blank = [' ', '\t'];
    if text.starts_with(blank) {
        return Err(BadSchedule::new(start, &text[..1], "there is a blank before the first field"));
    }
    if text.ends_with(blank) {
        let last = text.len() - 1;
        return Err(BadSchedule::new(start + last, &text[last..], "there is a blank after the last field"));
    }
    let words = text.split(blank).filter(|word| !word.is_empty());
    Ok(words.map(|word| (start + word.as_ptr().addr() - text.as_ptr().addr(), word)).collect())
}

fn wrong_count(text: &str, start: usize, expected: &str) -> BadSchedule {
    let words = split(text, start).unwrap_or_default();
    let (at, word) = words.get(7).copied().unwrap_or((start + text.len(), ""));
    BadSchedule::new(at, word, format!("expected {expected}, found {}", words.len()))
}

/// Points at the likely mistake if the year is in the last field.
fn name_the_other_order(mut error: BadSchedule, words: &[(usize, &str)]) -> BadSchedule {
    let has_year = |word: &str| {
        word.split([',', '-', '/'])
            .any(|part| part.len() == 4 && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let first = words.first().is_some_and(|(_, word)| has_year(word));
    let last = words.last().is_some_and(|(_, word)| has_year(word));
    if last && !first {
        error.reason.push_str(
            "; seven fields begin with the year and end with the second, and these look like the opposite order",
        );
    }
    error
}

struct Builder {
    form: Form,
    /// By field; that of the year stays empty.
    masks: [u64; 7],
    years: Vec<YearRange>,
    every_year: bool,
    nth: Vec<Nth>,
    /// Whether the day fields say that every day will do.
    day_open: bool,
    weekday_open: bool,
}

impl Builder {
    fn new(form: Form) -> Builder {
        Builder {
            form,
            masks: [0; 7],
            years: Vec::new(),
            every_year: form == Form::Cron,
            nth: Vec::new(),
            day_open: false,
            weekday_open: false,
        }
    }

    fn field(&mut self, field: Field, at: usize, text: &str) -> Result<(), BadSchedule> {
        let open = match self.form {
            Form::Seven => text == "*" || text == "?",
            // As in Vixie cron: `*/2` counts, too.
            Form::Cron => text.starts_with('*'),
        };
        match field {
            Field::Day => self.day_open = open,
            Field::Weekday => self.weekday_open = open,
            _ => {}
        }
        if text == "?" && matches!(field, Field::Day | Field::Weekday) {
            if self.form == Form::Cron {
                return Err(BadSchedule::new(
                    at,
                    text,
                    "`?` belongs to another form of cron, whose weekdays are numbered differently; write *",
                ));
            }
            self.masks[field as usize] = field.all();
            return Ok(());
        }
        let mut start = at;
        for item in text.split(',') {
            self.item(field, start, item)?;
            start += item.len() + 1;
        }
        Ok(())
    }

    fn item(&mut self, field: Field, at: usize, text: &str) -> Result<(), BadSchedule> {
        if text.is_empty() {
            return Err(BadSchedule::new(at, "", format!("an empty item in the field {}", field.name())));
        }
        let (base, step) = match text.split_once('/') {
            Some((base, step)) => (base, Some((at + base.len() + 1, step))),
            None => (text, None),
        };
        let n = match step {
            None => None,
            Some((at, step)) => Some(number(step).filter(|n| *n > 0).ok_or_else(|| {
                BadSchedule::new(at, step, "expected a whole number of at least 1 after the slash")
            })?),
        };
        let (smallest, largest) = self.range(field);
        if base == "*" {
            self.select(field, smallest, largest, n.unwrap_or(1));
            return Ok(());
        }
        // A name has no hyphen in it, so the first one separates the ends of a range.
        if let Some((first, last)) = base.split_once('-') {
            let last_at = at + first.len() + 1;
            let (first, last) = (self.value(field, at, first)?, self.value(field, last_at, last)?);
            if first > last {
                return Err(BadSchedule::new(at, base, backwards(field, first, last, self.form)));
            }
            self.select(field, first, last, n.unwrap_or(1));
            return Ok(());
        }
        let value = self.value(field, at, base)?;
        match n {
            None => self.select(field, value, value, 1),
            Some(1) if self.form == Form::Seven => self.select(field, value, value, 1),
            Some(n) if self.form == Form::Cron => {
                let reason = format!(
                    "a step needs a range here: write {base}-{largest}/{n} for every {n} from {base} on, or use the \
                     seven fields, where {base}/{n} is every nth occurrence"
                );
                return Err(BadSchedule::new(at, text, reason));
            }
            Some(_) if field == Field::Year => {
                return Err(BadSchedule::new(at, text, "a year occurs once: it has no nth occurrence"));
            }
            Some(n) => self.nth.push(Nth { field, value: value as u8, n }),
        }
        Ok(())
    }

    fn range(&self, field: Field) -> (u16, u16) {
        match (field, self.form) {
            (Field::Weekday, Form::Cron) => (0, 7),
            _ => field.range(),
        }
    }

    fn select(&mut self, field: Field, first: u16, last: u16, step: u16) {
        if field == Field::Year {
            let range = YearRange::new(first, last, step);
            self.every_year |= range.is_every_year();
            self.years.push(range);
        } else {
            self.masks[field as usize] |= progression(first, last, step);
        }
    }

    fn value(&self, field: Field, at: usize, text: &str) -> Result<u16, BadSchedule> {
        let (smallest, largest) = self.range(field);
        let bad = |reason: String| Err(BadSchedule::new(at, text, reason));
        if text.is_empty() {
            return bad(format!("a value is missing in the field {}", field.name()));
        }
        if let Some(value) = field.value_of_name(text) {
            return Ok(value);
        }
        if belongs_to_quartz(text) {
            return bad("`L` (last), `W` (nearest weekday) and `#` (nth weekday) are not supported; 3/2 in the seven \
                        fields is the 2nd and 4th Wednesday"
                .to_owned());
        }
        let Some(value) = number(text) else {
            let names =
                if matches!(field, Field::Month | Field::Weekday) { " or an English name" } else { "" };
            return bad(format!("expected a {} from {smallest} to {largest}{names}, or *", field.name()));
        };
        if field == Field::Year && text.len() != 4 {
            return bad("expected a year of four digits, or *".to_owned());
        }
        if !(smallest..=largest).contains(&value) {
            let sunday =
                if field == Field::Weekday && value == 7 { "; Sunday is 0 in the seven fields" } else { "" };
            return bad(format!("expected a {} from {smallest} to {largest}{sunday}", field.name()));
        }
        Ok(value)
    }

    fn build(mut self, text: &str, start: usize) -> Result<Schedule, BadSchedule> {
        let weekday = &mut self.masks[Field::Weekday as usize];
        *weekday = (*weekday | *weekday >> 7) & Field::Weekday.all();
        let masks = self.masks;
        // An occurrence of a value that is selected anyway says nothing.
        self.nth.retain(|nth| masks[nth.field as usize] & 1 << nth.value == 0);
        self.nth.sort_unstable();
        self.nth.dedup();
        if self.every_year {
            self.years.clear();
        }
        self.years.sort_unstable();
        self.years.dedup();
        let mut schedule = Schedule {
            second: masks[Field::Second as usize],
            minute: masks[Field::Minute as usize],
            hour: masks[Field::Hour as usize] as u32,
            day: masks[Field::Day as usize] as u32,
            month: masks[Field::Month as usize] as u16,
            weekday: masks[Field::Weekday as usize] as u8,
            either_day: !self.day_open && !self.weekday_open,
            extension: (!self.years.is_empty() || !self.nth.is_empty())
                .then(|| Box::new(Extension { years: self.years, nth: self.nth })),
            zone: Zone::UTC,
        };
        // One spelling for the same days: if either field selects every day, so do both together.
        if schedule.either_day && !(schedule.day_is_set() && schedule.weekday_is_set()) {
            schedule.either_day = false;
            schedule.day = Field::Day.all() as u32;
            schedule.weekday = Field::Weekday.all() as u8;
            if let Some(extension) = &mut schedule.extension {
                extension.nth.retain(|nth| !matches!(nth.field, Field::Day | Field::Weekday));
            }
        }
        schedule.extension =
            schedule.extension.filter(|extension| !extension.years.is_empty() || !extension.nth.is_empty());
        if schedule.civil_from(0).is_none() {
            return Err(BadSchedule::new(start, text, "it never matches: there is no such time"));
        }
        Ok(schedule)
    }
}

/// `L`, `LW`, `5L`, `15W`, `1#2`.
fn belongs_to_quartz(text: &str) -> bool {
    let letters = text.trim_start_matches(|c: char| c.is_ascii_digit());
    text.contains('#') || ["L", "W", "LW"].iter().any(|name| letters.eq_ignore_ascii_case(name))
}

fn backwards(field: Field, first: u16, last: u16, form: Form) -> String {
    let (smallest, largest) = field.range();
    if field == Field::Year {
        return "the range runs backwards".to_owned();
    }
    if field == Field::Weekday && last == 0 && form == Form::Cron {
        return format!("the range runs backwards: write {first}-7");
    }
    let part = |from: u16, to: u16| if from == to { from.to_string() } else { format!("{from}-{to}") };
    format!("the range runs backwards: write {},{}", part(first, largest), part(smallest, last))
}

/// A number of digits alone. Large ones saturate: as values they are out of range, as steps they select one value.
fn number(text: &str) -> Option<u16> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = text.bytes().map(|byte| u16::from(byte - b'0'));
    Some(digits.fold(0, |value, digit| value.saturating_mul(10).saturating_add(digit)))
}
