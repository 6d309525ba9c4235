//! Filters: which jobs a [`Select`](crate::Select) shows and an [`Act`](crate::Act) changes.
//!
//! The text form is parsed here and nowhere else: terms that must all be true, with blanks between them, such
//! as `queue=mail state=failed age>2h args.user.id=42`.

use std::fmt;
use std::str::FromStr;

use crate::{Group, Klass, Payload, QueueName, Seconds, StateName, Tag, WorkerName, json};

/// The most terms of a filter.
pub const FILTER_TERMS_MAX: usize = 32;
/// The most keys of a payload path.
pub const PATH_KEYS_MAX: usize = 32;
/// The longest key or value of a payload term, in bytes.
pub const FILTER_VALUE_BYTES_MAX: usize = 4096;

/// Which jobs to select: those for which every term is true. Without a term, all.
///
/// | term | true for |
/// |---|---|
/// | `queue=Q` | jobs in this queue, and complete jobs that were last in it |
/// | `klass=K` | jobs of this klass |
/// | `state=S` | jobs in this state; `stalled` for running jobs whose lock has expired |
/// | `tag=T` | jobs with this tag; several of these may be given |
/// | `group=G` | jobs that are failed, in this group |
/// | `worker=W` | running jobs in this worker's list |
/// | `age>2h`, `>=`, `<`, `<=` | jobs first put so long ago, to the second |
/// | `attempts>=3`, `>`, `<`, `<=`, `=` | jobs with so many [attempts](crate::Selected::attempts) |
/// | `args.user.id=42` | jobs whose payload is JSON with this value at this path |
///
/// A value with blanks is quoted: `tag="two words"`, with `\"` and `\\` inside. The keys of a path are
/// separated by dots and may be quoted too; a number is also a position in an array, from 0. A payload value
/// without quotes equals a string, a number, `true`, `false` or `null`; with quotes only a string.
///
/// ```
/// use geartrain_core::Filter;
/// let filter: Filter = "queue=mail  state=failed age>120m args.user.id=42".parse()?;
/// assert_eq!(filter.to_string(), "queue=mail state=failed age>2h args.user.id=42");
/// assert_eq!(
///     "queue=mail quue=news".parse::<Filter>().unwrap_err().to_string(),
///     "at position 12: there is no field quue (did you mean queue?); expected queue, klass, state, tag, \
///      group, worker, age, attempts or args.PATH"
/// );
/// # Ok::<(), geartrain_core::BadFilter>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Filter {
    /// The terms.
    pub terms: Vec<Term>,
}

/// One condition of a [`Filter`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Term {
    /// It is in this queue, or was last.
    Queue(QueueName),
    /// It has this klass.
    Klass(Klass),
    /// It is in this state.
    State(FilterState),
    /// It has this tag.
    Tag(Tag),
    /// It is failed, in this group.
    Group(Group),
    /// It is running and in this worker's list.
    Worker(WorkerName),
    /// The time since it was first put.
    Age(Comparison, Seconds),
    /// Its number of attempts.
    Attempts(Comparison, u32),
    /// Its payload is JSON with this value at this path.
    Args(Vec<String>, PayloadValue),
}

/// A state as filters name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "JobState says what they mean")]
pub enum FilterState {
    Scheduled,
    Depends,
    Waiting,
    /// With a valid or an expired lock.
    Running,
    /// Running, with an expired lock.
    Stalled,
    Complete,
    Failed,
}

impl FilterState {
    /// All states.
    pub const ALL: [FilterState; 7] = [
        FilterState::Scheduled,
        FilterState::Depends,
        FilterState::Waiting,
        FilterState::Running,
        FilterState::Stalled,
        FilterState::Complete,
        FilterState::Failed,
    ];

    /// The state, of which `Stalled` is a part.
    pub fn state(self) -> StateName {
        match self {
            FilterState::Scheduled => StateName::Scheduled,
            FilterState::Depends => StateName::Depends,
            FilterState::Waiting => StateName::Waiting,
            FilterState::Running | FilterState::Stalled => StateName::Running,
            FilterState::Complete => StateName::Complete,
            FilterState::Failed => StateName::Failed,
        }
    }

    /// The name in lower case.
    pub fn as_str(self) -> &'static str {
        if self == FilterState::Stalled { "stalled" } else { self.state().as_str() }
    }
}

/// How a number is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Comparison {
    Below,
    AtMost,
    Equal,
    AtLeast,
    Above,
}

impl Comparison {
    /// Longer symbols first, so that `>=` is not taken for `>`.
    const ALL: [(&'static str, Comparison); 5] = [
        ("<=", Comparison::AtMost),
        (">=", Comparison::AtLeast),
        ("<", Comparison::Below),
        (">", Comparison::Above),
        ("=", Comparison::Equal),
    ];

    /// Whether `number` compares like this to `with`.
    pub fn is_true<T: PartialOrd>(self, number: T, with: T) -> bool {
        match self {
            Comparison::Below => number < with,
            Comparison::AtMost => number <= with,
            Comparison::Equal => number == with,
            Comparison::AtLeast => number >= with,
            Comparison::Above => number > with,
        }
    }

    fn symbol(self) -> &'static str {
        Comparison::ALL.iter().find(|(_, comparison)| *comparison == self).map_or("=", |(symbol, _)| symbol)
    }
}

/// The value that a payload must have at a path.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum PayloadValue {
    /// Written without quotes: equals a string of this text, and a number, `true`, `false` or `null`.
    Bare(String),
    /// Written with quotes: equals only a string.
    Quoted(String),
}

impl PayloadValue {
    /// Whether a JSON value equals this. Whole numbers are compared digit by digit, others as doubles.
    fn equals(&self, raw: &str) -> bool {
        let (PayloadValue::Bare(text) | PayloadValue::Quoted(text)) = self;
        match raw.as_bytes().first() {
            Some(b'"') => json::unquote(raw).is_some_and(|string| string == *text),
            Some(b'{' | b'[') | None => false,
            Some(_) => matches!(self, PayloadValue::Bare(_)) && (raw == text || same_number(raw, text)),
        }
    }
}

fn same_number(raw: &str, text: &str) -> bool {
    let is_number = |text: &str| {
        text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
            && json::is_json_text(text)
            && !text.ends_with(|last: char| last.is_ascii_whitespace())
    };
    let is_whole = |text: &str| text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
    if !is_number(raw) || !is_number(text) || (is_whole(raw) && is_whole(text)) {
        return false;
    }
    matches!((raw.parse::<f64>(), text.parse::<f64>()), (Ok(one), Ok(other)) if one == other)
}

impl Filter {
    /// Whether it has no term, and so selects every job.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether payloads must be read to decide.
    pub fn needs_payload(&self) -> bool {
        self.terms.iter().any(|term| matches!(term, Term::Args(..)))
    }

    /// Whether the payload terms are true of a payload. A payload that is not JSON matches none.
    pub fn matches_payload(&self, payload: &Payload) -> bool {
        self.payload_verdict(payload) == Some(true)
    }

    /// The same, and `None` if the filter has payload terms and the payload is not JSON.
    pub fn payload_verdict(&self, payload: &Payload) -> Option<bool> {
        if !self.needs_payload() {
            return Some(true);
        }
        let text = std::str::from_utf8(payload.bytes()).ok()?;
        // Bytes that are not JSON are wrapped in JSON on a Redis. What looks wrapped matches nowhere.
        if !json::is_json_text(text) || crate::payload::unwrap_bytes(text).is_some() {
            return None;
        }
        Some(self.terms.iter().all(|term| match term {
            Term::Args(path, value) => json::at_path(text, path).is_some_and(|raw| value.equals(raw)),
            _ => true,
        }))
    }

    /// Checks a filter that was not parsed from text. The error says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.terms.len() > FILTER_TERMS_MAX {
            return Err(format!("has at most {FILTER_TERMS_MAX} terms, not {}", self.terms.len()));
        }
        for term in &self.terms {
            match term {
                Term::Args(path, value) => check_path(path, value)?,
                Term::Age(Comparison::Equal, _) => return Err(AGE_EQUAL.into()),
                Term::Age(_, age) if *age < Seconds::ZERO => return Err("an age is not negative".into()),
                _ => {}
            }
        }
        Ok(())
    }
}

const AGE_EQUAL: &str = "an age is compared by <, <=, > or >=";

fn check_path(path: &[String], value: &PayloadValue) -> Result<(), String> {
    let (PayloadValue::Bare(text) | PayloadValue::Quoted(text)) = value;
    if path.len() > PATH_KEYS_MAX {
        return Err(format!("a path has at most {PATH_KEYS_MAX} keys, not {}", path.len()));
    }
    if path.iter().chain([text]).any(|text| text.len() > FILTER_VALUE_BYTES_MAX) {
        return Err(format!("a key or a value has at most {FILTER_VALUE_BYTES_MAX} bytes"));
    }
    if matches!(value, PayloadValue::Bare(text) if !is_bare_value(text)) {
        return Err(format!("the value {text:?} must be quoted"));
    }
    Ok(())
}

/// Whether a value needs no quotes.
fn is_bare_value(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('"')
        && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// Whether a key of a path needs no quotes.
fn is_bare_key(text: &str) -> bool {
    is_bare_value(text) && !text.contains(['.', '=', '<', '>', '"'])
}

struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// A value, quoted where that is needed.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_bare_value(self.0) { f.write_str(self.0) } else { Quoted(self.0).fmt(f) }
    }
}

/// The units of an age, longest first, in seconds.
const UNITS: [(&str, f64); 6] =
    [("w", 604_800.0), ("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001)];

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Term::Queue(name) => write!(f, "queue={}", Shown(name.as_str())),
            Term::Klass(name) => write!(f, "klass={}", Shown(name.as_str())),
            Term::State(state) => write!(f, "state={}", state.as_str()),
            Term::Tag(name) => write!(f, "tag={}", Shown(name.as_str())),
            Term::Group(name) => write!(f, "group={}", Shown(name.as_str())),
            Term::Worker(name) => write!(f, "worker={}", Shown(name.as_str())),
            Term::Age(comparison, age) => {
                let seconds = age.get();
                // The longest unit of which it is a whole number.
                let whole = |(_, unit): &&(&str, f64)| seconds > 0.0 && (seconds / unit).fract() == 0.0;
                let (unit, length) = UNITS[..5].iter().find(whole).unwrap_or(&UNITS[4]);
                write!(f, "age{}{}{unit}", comparison.symbol(), seconds / length)
            }
            Term::Attempts(comparison, count) => write!(f, "attempts{}{count}", comparison.symbol()),
            Term::Args(path, value) => {
                f.write_str("args")?;
                for key in path {
                    if is_bare_key(key) { write!(f, ".{key}")? } else { write!(f, ".{}", Quoted(key))? }
                }
                match value {
                    PayloadValue::Bare(text) => write!(f, "={text}"),
                    PayloadValue::Quoted(text) => write!(f, "={}", Quoted(text)),
                }
            }
        }
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, term) in self.terms.iter().enumerate() {
            if place > 0 {
                f.write_str(" ")?;
            }
            term.fmt(f)?;
        }
        Ok(())
    }
}

/// A text that is not a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at position {position}: {why}")]
pub struct BadFilter {
    /// The position of the first character that does not fit, from 1.
    pub position: usize,
    /// What is wrong there, and what was expected.
    pub why: String,
}

const FIELDS: [&str; 9] = ["queue", "klass", "state", "tag", "group", "worker", "age", "attempts", "args"];
const EXPECTED: &str = "expected queue, klass, state, tag, group, worker, age, attempts or args.PATH";

impl FromStr for Filter {
    type Err = BadFilter;

    fn from_str(text: &str) -> Result<Filter, BadFilter> {
        let mut parser = Parser { text, at: 0 };
        let mut terms: Vec<Term> = Vec::new();
        loop {
            parser.skip_blanks();
            if parser.rest().is_empty() {
                break;
            }
            let begin = parser.at;
            if terms.len() == FILTER_TERMS_MAX {
                return parser.fail_at(begin, format!("a filter has at most {FILTER_TERMS_MAX} terms"));
            }
            let term = parser.term()?;
            if terms.iter().any(|other| is_repeated(other, &term)) {
                return parser.fail_at(begin, "this field is given twice, and a job has only one".to_owned());
            }
            terms.push(term);
        }
        Ok(Filter { terms })
    }
}

/// Whether two terms name different values of a field of which a job has one.
fn is_repeated(one: &Term, other: &Term) -> bool {
    let is_single =
        matches!(one, Term::Queue(_) | Term::Klass(_) | Term::State(_) | Term::Group(_) | Term::Worker(_));
    is_single && std::mem::discriminant(one) == std::mem::discriminant(other)
}

struct Parser<'a> {
    text: &'a str,
    /// In bytes.
    at: usize,
}

/// A value as it was written.
struct Value {
    text: String,
    quoted: bool,
    /// Where it begins.
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn fail_at<T>(&self, at: usize, why: String) -> Result<T, BadFilter> {
        Err(BadFilter { position: self.text[..at].chars().count() + 1, why })
    }

    fn skip_blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Takes characters as long as they fit.
    fn take(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| !fits(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn term(&mut self) -> Result<Term, BadFilter> {
        let begin = self.at;
        let field = self.take(|c| !c.is_whitespace() && !matches!(c, '=' | '<' | '>' | '"' | '.' | '!'));
        if !FIELDS.contains(&field) {
            if field.is_empty() {
                return self.fail_at(begin, EXPECTED.to_owned());
            }
            let guess = FIELDS.iter().map(|known| (distance(field, known), known)).min();
            let guess = guess.filter(|(distance, known)| *distance <= 2 && *distance < known.len());
            let guess = guess.map_or(String::new(), |(_, known)| format!(" (did you mean {known}?)"));
            return self.fail_at(begin, format!("there is no field {field}{guess}; {EXPECTED}"));
        }
        let path = if field == "args" { self.path()? } else { Vec::new() };
        let operator_at = self.at;
        let found = Comparison::ALL.iter().find(|(symbol, _)| self.rest().starts_with(symbol));
        let compared = matches!(field, "age" | "attempts");
        let comparison = match (field, found) {
            ("age", Some((_, Comparison::Equal)) | None) => {
                return self.fail_at(operator_at, "expected <, <=, > or >= after age".to_owned());
            }
            ("attempts", None) => {
                return self.fail_at(operator_at, "expected =, <, <=, > or >= after attempts".to_owned());
            }
            (_, Some((symbol, comparison))) if compared || *comparison == Comparison::Equal => {
                self.at += symbol.len();
                *comparison
            }
            _ => return self.fail_at(operator_at, format!("expected = after {field}")),
        };
        let value = self.value(field)?;
        let name = |why: crate::BadName| why.to_string();
        let term = match field {
            "queue" => QueueName::of_function(&value.text).map(Term::Queue).map_err(name),
            "klass" => Klass::of_function(&value.text).map(Term::Klass).map_err(name),
            "tag" => Tag::new(&value.text).map(Term::Tag).map_err(name),
            "group" => Group::new(&value.text).map(Term::Group).map_err(name),
            "worker" => WorkerName::new(&value.text).map(Term::Worker).map_err(name),
            "state" => state(&value.text),
            "age" => age(&value.text).map(|age| Term::Age(comparison, age)),
            "attempts" => attempts(&value.text).map(|count| Term::Attempts(comparison, count)),
            _ => {
                let text = value.text;
                let value = if value.quoted { PayloadValue::Quoted(text) } else { PayloadValue::Bare(text) };
                check_path(&path, &value).map(|()| Term::Args(path, value))
            }
        };
        match term {
            Ok(term) => Ok(term),
            Err(why) => self.fail_at(value.at, why),
        }
    }

    /// The keys of a payload path, each after a dot.
    fn path(&mut self) -> Result<Vec<String>, BadFilter> {
        let mut keys = Vec::new();
        while self.rest().starts_with('.') {
            self.at += 1;
            let begin = self.at;
            if self.rest().starts_with('"') {
                keys.push(self.quoted()?);
                continue;
            }
            let key = self
                .take(|c| !c.is_whitespace() && !c.is_control() && !matches!(c, '.' | '=' | '<' | '>' | '"'));
            if key.is_empty() {
                return self.fail_at(begin, "expected a key of the payload after the dot".to_owned());
            }
            keys.push(key.to_owned());
        }
        Ok(keys)
    }

    fn value(&mut self, field: &str) -> Result<Value, BadFilter> {
        let at = self.at;
        if self.rest().starts_with('"') {
            let text = self.quoted()?;
            if !self.rest().is_empty() && !self.rest().starts_with(char::is_whitespace) {
                return self.fail_at(self.at, "expected a blank after the closing quote".to_owned());
            }
            return Ok(Value { text, quoted: true, at });
        }
        let text = self.take(|c| !c.is_whitespace() && !c.is_control());
        if text.is_empty() {
            return self.fail_at(at, format!("expected a value of {field}"));
        }
        Ok(Value { text: text.to_owned(), quoted: false, at })
    }

    fn quoted(&mut self) -> Result<String, BadFilter> {
        let begin = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            text.push_str(self.take(|c| !matches!(c, '"' | '\\')));
            let rest = self.rest();
            if rest.starts_with('"') {
                self.at += 1;
                return Ok(text);
            }
            match rest.as_bytes().get(1) {
                Some(escaped @ (b'"' | b'\\')) => {
                    text.push(char::from(*escaped));
                    self.at += 2;
                }
                Some(_) => {
                    return self.fail_at(self.at + 1, "expected \" or \\ after a backslash".to_owned());
                }
                None => return self.fail_at(begin, "this quote is not closed".to_owned()),
            }
        }
    }
}

fn state(text: &str) -> Result<Term, String> {
    let known = FilterState::ALL.into_iter().find(|state| state.as_str() == text);
    known.map(Term::State).ok_or_else(|| {
        let names: Vec<&str> = FilterState::ALL.iter().map(|state| state.as_str()).collect();
        format!("there is no state {text}; expected one of {}", names.join(", "))
    })
}

fn attempts(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text} is no number of attempts; expected a whole number"))
}

/// Parses `90`, `90s`, `1h30m`. A bare number is seconds.
fn age(text: &str) -> Result<Seconds, String> {
    let bad = || format!("{text} is no age; expected one like 90s, 5m, 2h or 1d12h");
    let number = |text: &str| {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        text.parse::<f64>().ok().filter(|_| is_plain)
    };
    let (mut rest, mut seconds, mut units) = (text, 0.0, &UNITS[..]);
    if let Some(bare) = number(text) {
        (rest, seconds) = ("", bare);
    }
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (amount, tail) = rest.split_at(unit_at);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let place = units.iter().position(|(name, _)| *name == &tail[..end]).ok_or_else(bad)?;
        seconds += number(amount).ok_or_else(bad)? * units[place].1;
        (units, rest) = (&units[place + 1..], &tail[end..]);
    }
    Seconds::new(seconds).map_err(|_| bad())
}

/// The edit distance of two words.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (place, c) in one.chars().take(64).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], place + 1);
        for (column, with) in other.iter().enumerate() {
            let changed = diagonal + usize::from(c != *with);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> Filter {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_filter_is_printed_in_its_canonical_form() {
        for (text, canonical) in [
            ("", ""),
            ("  queue=mail\tstate=failed ", "queue=mail state=failed"),
            ("tag=a tag=b", "tag=a tag=b"),
            (r#"klass="two words" group="a\"b\\""#, r#"klass="two words" group=a"b\"#),
            (r#"worker="w1""#, "worker=w1"),
            ("age>=120m age<1.5 age<90", "age>=2h age<1.5s age<90s"),
            ("age>1h30m age<0 age<=500ms", "age>90m age<0s age<=0.5s"),
            ("attempts>=3 attempts=4 attempts<9", "attempts>=3 attempts=4 attempts<9"),
            ("args.user.id=42 args.user.id=\"42\"", "args.user.id=42 args.user.id=\"42\""),
            (r#"args."a.b"."".c=x=y args=5"#, r#"args."a.b"."".c=x=y args=5"#),
            ("state=stalled", "state=stalled"),
        ] {
            assert_eq!(filter(text).to_string(), canonical, "{text}");
            assert_eq!(filter(canonical), filter(text), "{canonical}");
            assert_eq!(filter(text).check(), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_bad_filter_is_refused_with_its_position() {
        for (text, position, why) in [
            ("quue=mail", 1, "did you mean queue"),
            ("queue=mail und=x", 12, "there is no field und;"),
            ("queue=mail =x", 12, "expected queue, klass"),
            ("queue", 6, "expected = after queue"),
            ("queue>mail", 6, "expected = after queue"),
            ("queue=", 7, "expected a value of queue"),
            ("queue= mail", 7, "expected a value of queue"),
            ("queue=a queue=b", 9, "given twice"),
            ("tag=ü state=broken", 13, "there is no state broken; expected one of scheduled, depends"),
            ("age=5m", 4, "expected <, <=, > or >= after age"),
            ("age>soon", 5, "soon is no age; expected one like"),
            ("age>-5", 5, "is no age"),
            ("age>1m1h", 5, "is no age"),
            ("age>1e999", 5, "is no age"),
            ("attempts>few", 10, "few is no number of attempts"),
            ("attempts>-1", 10, "is no number of attempts"),
            ("attempts!=1", 9, "expected =, <, <=, > or >= after attempts"),
            ("args.=1", 6, "expected a key of the payload"),
            ("args.a..b=1", 8, "expected a key of the payload"),
            ("args.a", 7, "expected = after args"),
            ("args.a>1", 7, "expected = after args"),
            (r#"tag="open"#, 5, "this quote is not closed"),
            (r#"tag="a"b"#, 8, "expected a blank after the closing quote"),
            (r#"tag="a\n""#, 8, "expected \" or \\ after a backslash"),
            (r#"tag="\"#, 5, "this quote is not closed"),
            (r#"tag="""#, 5, "needs at least one byte"),
            (&"tag=x ".repeat(33), 193, "at most 32 terms"),
            (&format!("args{}=1", ".a".repeat(33)), 72, "at most 32 keys"),
        ] {
            let error = text.parse::<Filter>().expect_err(text);
            assert_eq!(error.position, position, "{text}: {error}");
            assert!(error.why.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_value_of_a_payload_is_compared_by_its_kind() {
        let payload = Payload::from(
            r#"{"user": {"id": 42, "name": "Ann\u00e9", "big": 9007199254740993, "ok": true, "none": null},
                "list": [1, "two", {"x": 2.50}], "1": "one", "id": "42", "a": 1, "a": 2, "": 7}"#,
        );
        for (text, expected) in [
            ("args.user.id=42", true),
            ("args.user.id=42.0", true),
            ("args.user.id=4.2e1", true),
            ("args.user.id=43", false),
            ("args.user.id=\"42\"", false),
            ("args.id=42", true),
            ("args.id=\"42\"", true),
            ("args.user.name=Anné", true),
            ("args.user.big=9007199254740993", true),
            ("args.user.big=9007199254740992", false),
            ("args.user.ok=true", true),
            ("args.user.ok=\"true\"", false),
            ("args.user.none=null", true),
            ("args.user.missing=null", false),
            ("args.list.0=1", true),
            ("args.list.1=two", true),
            ("args.list.2.x=2.5", true),
            ("args.list.3=1", false),
            ("args.list.01=two", false),
            ("args.list.x=1", false),
            ("args.1=one", true),
            ("args.user=42", false),
            ("args.user.id.x=42", false),
            ("args.a=2", true),
            ("args.a=1", false),
            (r#"args.""=7"#, true),
            ("args.user.id=42 args.id=43", false),
        ] {
            assert_eq!(filter(text).matches_payload(&payload), expected, "{text}");
        }
        assert!(filter("args=5").matches_payload(&"5".into()));
        assert!(filter("args=hello").matches_payload(&" \"hello\" ".into()));
        for not_json in ["hello", "", "{", "{\"a\":1", r#"{"$bytes":"aGk="}"#] {
            assert!(!filter("args.a=1").matches_payload(&not_json.into()), "{not_json}");
            assert!(!filter("args.$bytes=aGk=").matches_payload(&not_json.into()), "{not_json}");
        }
    }

    /// A small generator of numbers, the same for every run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % end
        }

        fn text(&mut self, of: &[&str], most: usize) -> String {
            (0..self.below(most + 1)).map(|_| of[self.below(of.len())]).collect()
        }

        fn name(&mut self) -> String {
            let text = self.text(&["a", "B", " ", "\"", "\\", "=", ".", "é", "\n", ">", "9"], 6);
            if text.is_empty() { "x".to_owned() } else { text }
        }

        fn comparison(&mut self, equal: bool) -> Comparison {
            Comparison::ALL[self.below(if equal { 5 } else { 4 })].1
        }

        fn term(&mut self) -> Term {
            match self.below(9) {
                0 => Term::Queue(QueueName::new(self.name()).unwrap()),
                1 => Term::Klass(Klass::new(self.name()).unwrap()),
                2 => Term::State(FilterState::ALL[self.below(7)]),
                3 => Term::Tag(Tag::new(self.name()).unwrap()),
                4 => Term::Group(Group::new(self.name()).unwrap()),
                5 => Term::Worker(WorkerName::new(self.name()).unwrap()),
                6 => {
                    let scale = [1.0, 60.0, 3_600.0, 0.001, 86_400.0][self.below(5)];
                    Term::Age(
                        self.comparison(false),
                        Seconds::new(self.below(100_000) as f64 * scale).unwrap(),
                    )
                }
                7 => Term::Attempts(self.comparison(true), self.below(1 << 31) as u32),
                _ => {
                    let path = (0..self.below(4)).map(|_| self.name()).collect();
                    let text = self.name();
                    let value = match is_bare_value(&text) && self.below(2) == 0 {
                        true => PayloadValue::Bare(text),
                        false => PayloadValue::Quoted(text),
                    };
                    Term::Args(path, value)
                }
            }
        }
    }

    #[test]
    fn what_is_printed_is_parsed_again() {
        let mut numbers = Numbers(18);
        for _ in 0..20_000 {
            let mut terms: Vec<Term> = Vec::new();
            for _ in 0..numbers.below(5) {
                let term = numbers.term();
                if !terms.iter().any(|other| is_repeated(other, &term)) {
                    terms.push(term);
                }
            }
            let written = Filter { terms };
            assert_eq!(written.check(), Ok(()), "{written:?}");
            assert_eq!(written.to_string().parse(), Ok(written.clone()), "{written}");
        }
    }

    #[test]
    fn random_text_is_parsed_or_refused_at_a_position_within_it() {
        let parts = [
            "queue", "state", "age", "args", "tag", "attempts", ".", "=", ">", "<", "\"", "\\", " ", "\t",
            "5", "failed", "h", "é", "\u{0}", "-", "!", "🦀", "klas",
        ];
        let mut numbers = Numbers(7);
        let (mut parsed, mut refused) = (0, 0);
        for _ in 0..50_000 {
            let text = numbers.text(&parts, 12);
            match text.parse::<Filter>() {
                Ok(filter) => {
                    assert_eq!(filter.to_string().parse(), Ok(filter.clone()), "{text}");
                    parsed += 1;
                }
                Err(error) => {
                    assert!((1..=text.chars().count() + 1).contains(&error.position), "{text}: {error}");
                    refused += 1;
                }
            }
        }
        assert!(parsed > 100 && refused > 100, "{parsed} parsed, {refused} refused");
    }
}
