//! `geartrain put --batch`: many jobs from lines of JSON, one object each.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use geartrain::{
    BadInput, Call, Client, Error, Existing, Jid, Klass, Payload, Priority, Put, PutOptions, PutReply,
    QueueName, RESULT_TTL_DEFAULT, Reply, Seconds, Tag, Timestamp, Traceparent, UniqueKey,
};
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::commands::list::{missing, not_waited_for};
use crate::failure::Failure;
use crate::values::allowed_span;
use crate::{backoff, duration, payload, text, timestamp, values};

/// Jobs per request: enough that the round trip costs little, few enough that a batch is soon done.
const BATCH_JOBS_MAX: usize = 500;
/// Bytes per request, about.
const BATCH_BYTES_MAX: u64 = 4 << 20;
/// How many refused lines are reported; the others are only counted.
const ERRORS_MAX: usize = 10;

/// The queue and klass of lines without their own.
#[derive(Debug, Default)]
pub(crate) struct Defaults {
    pub(crate) queue: Option<QueueName>,
    pub(crate) klass: Option<Klass>,
}

/// The keys of a line, in the order in which errors list them.
const KEYS: [&str; 20] = [
    "queue",
    "klass",
    "payload",
    "priority",
    "in",
    "at",
    "tags",
    "depends",
    "retries",
    "jid",
    "replace",
    "unique",
    "timeout",
    "expires",
    "backoff",
    "crashes",
    "roll_call",
    "keep_result",
    "on_dependency_failure",
    "traceparent",
];

#[derive(Debug, Default)]
struct Line<'a> {
    queue: Option<String>,
    klass: Option<String>,
    payload: Option<&'a RawValue>,
    priority: Option<f64>,
    delay: Option<NumberOrText>,
    at: Option<NumberOrText>,
    tags: Option<Vec<String>>,
    depends: Vec<String>,
    retries: Option<u32>,
    jid: Option<String>,
    replace: bool,
    unique: Option<&'a RawValue>,
    timeout: Option<NumberOrText>,
    expires: Option<NumberOrText>,
    backoff: Option<String>,
    crashes: Option<u32>,
    roll_call: bool,
    keep_result: Option<Keep>,
    on_dependency_failure: Option<String>,
    traceparent: Option<String>,
}

/// How long a result is stored; `true` for the default.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Keep {
    Default(bool),
    For(NumberOrText),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(f64),
    Text(String),
}

impl<'a> Line<'a> {
    fn parse(text: &'a str) -> Result<Line<'a>, String> {
        // Otherwise an array of pairs would do, too.
        if !text.trim_ascii_start().starts_with('{') {
            return Err(r#"it is not a JSON object like {"klass":"welcome"}"#.to_owned());
        }
        let Fields(fields) = serde_json::from_str(text).map_err(|error| syntax_error(&error, text))?;
        let mut line = Line::default();
        for (index, &(ref key, value)) in fields.iter().enumerate() {
            if fields[..index].iter().any(|(earlier, _)| earlier == key) {
                return Err(format!("`{key}` is there twice"));
            }
            let value = Field { key, value };
            // As if the key were not there.
            if value.value.get() == "null" && KEYS.contains(&key.as_str()) {
                continue;
            }
            match key.as_str() {
                "queue" => line.queue = Some(value.text()?),
                "klass" => line.klass = Some(value.text()?),
                "payload" => line.payload = Some(value.value),
                "priority" => line.priority = Some(value.read("a number")?),
                "in" => line.delay = Some(value.read("a duration like \"1h\", or a number of seconds")?),
                "at" => line.at = Some(value.read(A_TIME)?),
                "tags" => line.tags = Some(value.read(A_LIST)?),
                "depends" => line.depends = value.read(A_LIST)?,
                "retries" => line.retries = Some(value.read(A_COUNT)?),
                "jid" => line.jid = Some(value.text()?),
                "replace" => line.replace = value.read("true or false")?,
                "unique" => line.unique = Some(value.value),
                "timeout" => {
                    line.timeout = Some(value.read("a duration like \"10m\", or a number of seconds")?)
                }
                "expires" => line.expires = Some(value.read(A_TIME)?),
                "backoff" => line.backoff = Some(value.text()?),
                "crashes" => line.crashes = Some(value.read(A_COUNT)?),
                "roll_call" => line.roll_call = value.read("true or false")?,
                "on_dependency_failure" => line.on_dependency_failure = Some(value.text()?),
                "traceparent" => line.traceparent = Some(value.text()?),
                "keep_result" => {
                    line.keep_result =
                        Some(value.read("true, a duration like \"2h\", or a number of seconds")?)
                }
                unknown => {
                    let unknown = text::start(unknown, EXCERPT_CHARS);
                    return Err(format!("there is no key `{unknown}`; the keys are {}", KEYS.join(", ")));
                }
            }
        }
        Ok(line)
    }
}

const A_TIME: &str = "a time like \"2026-04-01T12:00:00Z\", or a number of seconds since the epoch";
const A_LIST: &str = "a list of texts like [\"a\", \"b\"]";
const A_COUNT: &str = "a whole number of 0 or more";

/// One key of a line, and its value.
struct Field<'k, 'a> {
    key: &'k str,
    value: &'a RawValue,
}

impl Field<'_, '_> {
    fn read<T: DeserializeOwned>(&self, must_be: &str) -> Result<T, String> {
        serde_json::from_str(self.value.get()).map_err(|_| {
            format!("`{}` must be {must_be}, not {}", self.key, text::start(self.value.get(), EXCERPT_CHARS))
        })
    }

    fn text(&self) -> Result<String, String> {
        self.read("a text in quotes")
    }
}

/// How many characters of a line an error quotes.
const EXCERPT_CHARS: usize = 40;

/// The keys and values of a JSON object, in order.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'a>, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Where a line stops being JSON.
pub(crate) fn syntax_error(error: &serde_json::Error, line: &str) -> String {
    if error.is_eof() {
        return "its JSON is cut off: a quote, a bracket or a brace is missing at the end".to_owned();
    }
    // The column counts bytes from 1; the parser may stop behind the character that it does not like.
    let mut start = error.column().saturating_sub(1).min(line.len());
    while !line.is_char_boundary(start) {
        start -= 1;
    }
    let column = line[..start].chars().count() + 1;
    format!(
        "it is not JSON from column {column} on: {}",
        text::start(line[start..].trim_end(), EXCERPT_CHARS)
    )
}

impl NumberOrText {
    fn delay(self) -> Result<Seconds, String> {
        match self {
            NumberOrText::Number(seconds) => duration::from_seconds(seconds)
                .map(Seconds::from)
                .ok_or_else(|| "it must be from 0 seconds to a hundred years".to_owned()),
            NumberOrText::Text(text) => values::delay(&text).map(|delay| Seconds::from(delay.length)),
        }
    }

    fn time(self) -> Result<Timestamp, String> {
        match self {
            NumberOrText::Number(seconds) => {
                Timestamp::new(seconds).map_err(|error| error.to_string()).and_then(timestamp::near)
            }
            NumberOrText::Text(text) => timestamp::parse_start(&text).map(|moment| moment.at),
        }
    }

    fn future_time(self) -> Result<Timestamp, String> {
        match self {
            NumberOrText::Text(text) => timestamp::parse_ahead(&text).map(|moment| moment.at),
            number => number.time(),
        }
    }
}

/// The put options of a line; none if it has no such keys.
fn put_options(line: &mut Line<'_>) -> Result<Option<Box<PutOptions>>, String> {
    let span = |given: NumberOrText, key| given.delay().and_then(allowed_span).map_err(of_key(key));
    let unique = match line.unique.take() {
        Some(json) => {
            let bad_key = || {
                let given = text::start(json.get(), EXCERPT_CHARS);
                format!("`unique` must be a text in quotes or {{\"$bytes\":\"<base64>\"}}, not {given}")
            };
            let key = payload::bytes_from_json(json).ok_or_else(bad_key)?;
            Some(UniqueKey::new(key).map_err(|error| error.to_string())?)
        }
        None => None,
    };
    let result_ttl = match line.keep_result.take() {
        None | Some(Keep::Default(false)) => None,
        Some(Keep::Default(true)) => Some(RESULT_TTL_DEFAULT),
        Some(Keep::For(given)) => Some(span(given, "keep_result")?),
    };
    if line.crashes == Some(0) {
        return Err(of_key("crashes")("it must be at least 1".to_owned()));
    }
    let options = PutOptions {
        unique,
        result_ttl,
        expires: line.expires.take().map(NumberOrText::future_time).transpose().map_err(of_key("expires"))?,
        attempt_max: line.timeout.take().map(|given| span(given, "timeout")).transpose()?,
        backoff: line
            .backoff
            .take()
            .map(|text| backoff::parse(&text))
            .transpose()
            .map_err(of_key("backoff"))?,
        crashes_max: line.crashes,
        roll_call: line.roll_call,
        on_dependency_failure: line
            .on_dependency_failure
            .take()
            .map(|text| values::policy(&text))
            .transpose()
            .map_err(of_key("on_dependency_failure"))?
            .unwrap_or_default(),
        traceparent: line
            .traceparent
            .take()
            .map(|text| text.parse::<Traceparent>().map_err(|error| error.to_string()))
            .transpose()?,
        ..PutOptions::default()
    };
    Ok((options != PutOptions::default()).then(|| Box::new(options)))
}

/// Names the key in an error about its value.
fn of_key(key: &'static str) -> impl Fn(String) -> String {
    move |why| format!("`{key}`: {why}")
}

/// Parses a line.
fn read(line: &[u8], defaults: &Defaults, now: Timestamp) -> Result<Put, String> {
    let text = std::str::from_utf8(line)
        .map_err(|error| format!("it is not UTF-8 text from byte {} on", error.valid_up_to() + 1))?;
    let mut line = Line::parse(text)?;
    let options = put_options(&mut line)?;
    let delay = match (line.delay, line.at) {
        (Some(_), Some(_)) => return Err("`in` and `at` are both given: leave one out".to_owned()),
        (Some(delay), None) => delay.delay().map_err(of_key("in"))?,
        (None, Some(at)) => at.time().map_err(of_key("at"))? - now,
        (None, None) => Seconds::ZERO,
    };
    let payload = line.payload.map_or_else(|| Ok(Payload::default()), payload::from_json)?;
    let queue = given_or(line.queue, QueueName::new, &defaults.queue, "queue")?;
    let klass = given_or(line.klass, Klass::new, &defaults.klass, "klass")?;
    let put = || -> Result<Put, BadInput> {
        let jid = match line.jid {
            Some(jid) => Jid::new(jid)?,
            None => Jid::from_uuid(uuid::Uuid::now_v7().into_bytes()),
        };
        Ok(Put {
            delay,
            priority: line.priority.map(Priority::new).transpose()?,
            retries: line.retries,
            tags: line.tags.map(|tags| tags.iter().map(Tag::new).collect()).transpose()?,
            depends: line.depends.iter().map(Jid::new).collect::<Result<_, _>>()?,
            existing: if line.replace { Existing::Replace } else { Existing::Keep },
            options,
            ..Put::new(queue, jid, klass, payload)
        })
    };
    put().map_err(|error| error.to_string())
}

fn given_or<T: Clone>(
    given: Option<String>,
    name: impl FnOnce(String) -> Result<T, geartrain::BadName>,
    default: &Option<T>,
    what: &str,
) -> Result<T, String> {
    match given {
        Some(text) => name(text).map_err(|error| error.to_string()),
        None => default.clone().ok_or_else(|| format!("`{what}` is missing")),
    }
}

/// The outcome of a batch.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Totals {
    /// Jobs submitted.
    pub(crate) put: u64,
    /// Jobs that existed already and were left unchanged.
    pub(crate) existing: u64,
    /// Jobs that joined an unfinished one with the same unique key.
    pub(crate) coalesced: u64,
    /// Lines that were skipped: invalid ones, and those that the queue refused.
    pub(crate) refused: u64,
    /// What is wrong with the first of them.
    #[serde(skip)]
    pub(crate) errors: Vec<String>,
    /// The first dependencies that do not exist.
    #[serde(skip)]
    missing: Vec<String>,
    /// How many dependencies do not exist.
    #[serde(skip)]
    missing_count: u64,
}

impl Totals {
    /// The lines that are in the queue, whether they were there before or not.
    pub(crate) fn valid(&self) -> u64 {
        self.put + self.existing + self.coalesced
    }

    fn report(&mut self, error: String) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(error);
        }
    }

    fn report_missing(&mut self, number: u64, jid: &Jid) {
        self.missing_count += 1;
        if self.missing.len() < ERRORS_MAX {
            self.missing.push(format!("line {number}: {}", not_waited_for(jid)));
        }
    }

    /// What people should know: dependencies that do not exist, then lines that were not submitted.
    pub(crate) fn remarks(&self) -> impl Iterator<Item = String> {
        let more = self.missing_count - self.missing.len() as u64;
        let more = (more > 0).then(|| {
            let dependencies = if more == 1 { "dependency does" } else { "dependencies do" };
            format!("{more} more {dependencies} not exist, and count as complete")
        });
        self.missing.iter().cloned().chain(more).chain(self.errors.iter().cloned())
    }
}

/// What happens to an invalid line.
pub(crate) enum OnBad {
    /// It ends the batch: the lines before it have been submitted, that line and those after it have not.
    Stop,
    /// It is written to a file, and so are lines that the queue refuses.
    Write(BadLines),
    /// It is reported, and nothing is submitted at all: the lines go to a queue in memory that is dropped.
    Check,
}

/// The file for lines that were not submitted: each line as it was, under a comment with its error, so that
/// the file can be corrected and submitted.
pub(crate) struct BadLines {
    file: File,
    path: PathBuf,
    was_empty: bool,
    written: u64,
}

impl BadLines {
    /// Opens a file, to append to it.
    pub(crate) fn open(path: &Path) -> Result<BadLines, Failure> {
        let open = || {
            let file = File::options().append(true).create(true).open(path)?;
            let was_empty = file.metadata()?.len() == 0;
            Ok(BadLines { file, path: path.to_owned(), was_empty, written: 0 })
        };
        open().map_err(|error| cannot_write(path, &error))
    }

    /// Appends a line. If that fails, the error says to go on with line `go_on`.
    fn write(&mut self, error: &str, line: &[u8], go_on: u64) -> Result<(), Failure> {
        let text = [b"# ", text::clean(error).as_bytes(), b"\n", line, b"\n"].concat();
        self.written += 1;
        self.file.write_all(&text).map_err(|failed| {
            let failed = cannot_write(&self.path, &failed);
            Failure::Usage(format!("{error}; {failed}; go on with --from-line {go_on}"))
        })
    }

    /// Removes a file in which nothing was written.
    fn close(self) {
        if self.was_empty && self.written == 0 {
            // An empty file does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Usage(format!("{} cannot be written: {error}", path.display()))
}

/// The lines of one request.
#[derive(Default)]
struct Chunk {
    puts: Vec<Put>,
    /// The number of each line, and its text if a refused line is to be written to a file.
    lines: Vec<(u64, Vec<u8>)>,
    /// When the lines were read: their delays begin then.
    now: Timestamp,
}

/// A batch of jobs: lines of JSON.
pub(crate) struct Batch<R, P> {
    pub(crate) lines: R,
    pub(crate) defaults: Defaults,
    /// The number of the first line that is submitted, from 1.
    pub(crate) from_line: u64,
    pub(crate) on_bad: OnBad,
    /// Whether delays are sent with the time at which they begin, for a queue that rounds times up to seconds.
    pub(crate) sends_time: bool,
    /// Called with the bytes read and the jobs submitted so far.
    pub(crate) progress: P,
}

impl<R: BufRead, P: Fn(u64, u64)> Batch<R, P> {
    /// Submits the job of each line, in order. A line that the queue refuses does not end the batch.
    pub(crate) async fn run(mut self, client: Option<&Client>) -> (Totals, Option<Failure>) {
        let mut totals = Totals::default();
        let failure = self.submit(client, &mut totals).await.err();
        let lines = text::count(totals.refused, "line");
        let failure = failure.or_else(|| match &self.on_bad {
            _ if totals.refused == 0 => None,
            OnBad::Stop => Some(Failure::Refused(format!("{lines} refused, the others were submitted"))),
            OnBad::Write(file) => Some(Failure::Refused(format!(
                "{lines} written to {} with what is wrong, the others were submitted",
                file.path.display()
            ))),
            OnBad::Check => Some(Failure::Usage(format!("{lines} would not be submitted"))),
        });
        if let OnBad::Write(file) = self.on_bad {
            file.close();
        }
        (totals, failure)
    }

    async fn submit(&mut self, client: Option<&Client>, totals: &mut Totals) -> Result<(), Failure> {
        let (mut bytes, mut number) = (0, 0);
        loop {
            // Fill a chunk, then send it, even if a bad line ended it.
            let mut chunk = Chunk::default();
            let end = self.fill(&mut chunk, &mut bytes, &mut number, totals);
            if !chunk.puts.is_empty() {
                match client {
                    Some(client) => self.send(client, chunk, totals).await?,
                    None => self.send(&geartrain::connect("memory:").await?, chunk, totals).await?,
                }
                (self.progress)(bytes, totals.valid());
            }
            match end {
                End::Full => {}
                // A batch may be empty.
                End::Last if number < self.from_line && self.from_line > 1 => {
                    let lines = text::count(number, "line");
                    return Err(Failure::Usage(format!(
                        "--from-line {} is too far: the batch has {lines}",
                        self.from_line
                    )));
                }
                End::Last => return Ok(()),
                End::Failed(failure) => return Err(failure),
            }
        }
    }

    /// Reads the lines of the next request.
    fn fill(&mut self, chunk: &mut Chunk, bytes: &mut u64, number: &mut u64, totals: &mut Totals) -> End {
        let (now, start, mut line) = (timestamp::now(), *bytes, Vec::new());
        chunk.now = now;
        while chunk.puts.len() < BATCH_JOBS_MAX && *bytes - start < BATCH_BYTES_MAX {
            line.clear();
            match self.lines.read_until(b'\n', &mut line) {
                Ok(0) => return End::Last,
                Ok(read_bytes) => *bytes += read_bytes as u64,
                Err(error) => {
                    let line = *number + 1;
                    return End::Failed(Failure::Usage(format!(
                        "line {line} cannot be read: {error}; go on with --from-line {line}"
                    )));
                }
            }
            *number += 1;
            let text =
                line.strip_prefix(b"\xef\xbb\xbf").filter(|_| *number == 1).unwrap_or(&line).trim_ascii();
            if *number < self.from_line || text.is_empty() || text.starts_with(b"#") {
                continue;
            }
            match read(text, &self.defaults, now) {
                Ok(put) => {
                    let kept =
                        if matches!(self.on_bad, OnBad::Write(_)) { text.to_vec() } else { Vec::new() };
                    chunk.puts.push(put);
                    chunk.lines.push((*number, kept));
                }
                Err(why) => {
                    let error = format!("line {number}: {why}");
                    match &mut self.on_bad {
                        OnBad::Stop => {
                            return End::Failed(Failure::Usage(format!(
                                "{error}; nothing was submitted from this line on: fix it and go on with \
                                 --from-line {number}, or write such lines to a file with --skip-bad FILE"
                            )));
                        }
                        OnBad::Write(file) => {
                            if let Err(failure) = file.write(&error, text, *number) {
                                return End::Failed(failure);
                            }
                        }
                        OnBad::Check => {}
                    }
                    totals.refused += 1;
                    totals.report(error);
                }
            }
        }
        End::Full
    }

    async fn send(&mut self, client: &Client, mut chunk: Chunk, totals: &mut Totals) -> Result<(), Failure> {
        let first = chunk.lines.first().map_or(0, |line| line.0);
        let last = chunk.lines.last().map_or(0, |line| line.0);
        let mut missing = HashMap::new();
        if matches!(self.on_bad, OnBad::Check) {
            // There are no workers in memory.
            let options = chunk.puts.iter_mut().filter_map(|put| put.options.as_mut());
            options.for_each(|options| options.roll_call = false);
        } else {
            missing = missing_by_line(client, &chunk).await.map_err(|error| {
                let failure = Failure::from(error);
                Failure::Unreachable(format!("{failure}; go on with --from-line {first}"))
            })?;
        }
        let lines = chunk.lines;
        let (now, sends_time) = (chunk.now, self.sends_time);
        let call = |put: Put| match sends_time && put.delay > Seconds::ZERO {
            true => Call::at(now, put),
            false => Call::from(put),
        };
        let answers = client.batch(chunk.puts.into_iter().map(call).collect()).await.map_err(|error| {
            Failure::Unreachable(format!(
                "{}; lines {first} to {last} may have been submitted or not: go on with --from-line {first}, which \
                 leaves the jobs of lines with a jid unchanged if they exist, but submits lines without one again",
                Failure::from(error)
            ))
        })?;
        for ((number, line), answer) in lines.into_iter().zip(answers) {
            match answer {
                Ok(Reply::Put(PutReply::Existing | PutReply::NamedExisting { .. })) => totals.existing += 1,
                Ok(Reply::Put(PutReply::Coalesced { .. })) => totals.coalesced += 1,
                Ok(_) => {
                    totals.put += 1;
                    // A job that was there before has not got these dependencies.
                    let missing = missing.remove(&number).unwrap_or_default();
                    missing.iter().for_each(|jid| totals.report_missing(number, jid));
                }
                Err(refusal) => {
                    let error = format!("line {number}: {}", Failure::from(refusal));
                    totals.refused += 1;
                    if let OnBad::Write(file) = &mut self.on_bad {
                        file.write(&error, &line, last + 1)?;
                    }
                    totals.report(error);
                }
            }
        }
        Ok(())
    }
}

/// Why no more lines were read.
enum End {
    Full,
    Last,
    Failed(Failure),
}

/// The dependencies that do not exist when their line is submitted, by the number of the line.
async fn missing_by_line(client: &Client, chunk: &Chunk) -> Result<HashMap<u64, Vec<Jid>>, Error> {
    let mut depends: Vec<Jid> = chunk.puts.iter().flat_map(|put| put.depends.iter().cloned()).collect();
    depends.sort_unstable();
    depends.dedup();
    let mut missing: HashSet<Jid> = missing(client, &depends).await?.into_iter().collect();
    let mut by_line = HashMap::new();
    for (put, (number, _)) in chunk.puts.iter().zip(&chunk.lines) {
        let of_line: Vec<Jid> = put.depends.iter().filter(|jid| missing.contains(jid)).cloned().collect();
        if !of_line.is_empty() {
            by_line.insert(*number, of_line);
        }
        missing.remove(&put.jid);
    }
    Ok(by_line)
}

#[cfg(test)]
mod tests {
    use geartrain::Length;

    use geartrain::DependencyPolicy;

    use super::*;

    fn defaults() -> Defaults {
        Defaults { queue: Some(QueueName::new("mail").unwrap()), klass: None }
    }

    fn read_line(line: &str) -> Result<Put, String> {
        read(line.as_bytes(), &defaults(), Timestamp::from(1_000))
    }

    #[test]
    fn a_line_can_have_every_key_of_a_put() {
        let put = read_line(
            r#"{"klass":"k","payload":{"a": 1},"priority":2.5,"in":"1m30s","tags":["t"],"depends":["j0"],
                "retries":3,"jid":"j1","replace":true,"queue":"other"}"#,
        )
        .unwrap();
        let jid = |text| Jid::new(text).unwrap();
        let expected = Put {
            priority: Some(Priority::new(2.5).unwrap()),
            delay: Seconds::from(90),
            tags: Some(vec![Tag::new("t").unwrap()]),
            depends: vec![jid("j0")],
            retries: Some(3),
            existing: Existing::Replace,
            ..Put::new(QueueName::new("other").unwrap(), jid("j1"), Klass::new("k").unwrap(), "{\"a\": 1}")
        };
        assert_eq!(put, expected);
        let at = read_line(r#"{"klass":"k","at":1010.5}"#).unwrap();
        assert_eq!(at.delay, Seconds::new(10.5).unwrap());
        let at = read_line(r#"{"klass":"k","at":"1970-01-01T01:00:00Z","payload":"text"}"#).unwrap();
        assert_eq!((at.delay, at.payload.bytes()), (Seconds::from(2_600), &b"text"[..]));
    }

    #[test]
    fn a_line_can_have_the_options_beyond_qless() {
        let options = |line| read_line(line).unwrap().options.map(|options| *options);
        assert_eq!(options(r#"{"klass":"k","roll_call":false,"keep_result":false}"#), None);
        let all = r#"{"klass":"k","unique":"key","timeout":"10m","expires":2000,"backoff":"10s..1h","crashes":2,
            "roll_call":true,"keep_result":true,"on_dependency_failure":"skip",
            "traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}"#;
        let expected = PutOptions {
            unique: Some(UniqueKey::new("key").unwrap()),
            attempt_max: Some(Seconds::from(600)),
            expires: Some(Timestamp::from(2_000)),
            backoff: Some(backoff::parse("10s..1h").unwrap()),
            crashes_max: Some(2),
            roll_call: true,
            result_ttl: Some(RESULT_TTL_DEFAULT),
            on_dependency_failure: DependencyPolicy::Skip,
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap()),
            ..PutOptions::default()
        };
        assert_eq!(options(all), Some(expected));
        let bytes = options(r#"{"klass":"k","unique":{"$bytes":"/wA="},"keep_result":"2h"}"#).unwrap();
        assert_eq!(bytes.unique.unwrap().as_bytes(), b"\xff\0");
        assert_eq!(bytes.result_ttl, Some(Seconds::from(7_200)));
    }

    #[test]
    fn a_bad_line_is_refused_with_what_is_wrong() {
        for (line, why) in [
            ("{", "its JSON is cut off: "),
            (r#"{"klass":"k""#, "its JSON is cut off: "),
            (r#"{"klass":"k",}"#, "it is not JSON from column 14 on: }"),
            (r#"{"größe" "k"}"#, "it is not JSON from column 10 on: \"k\"}"),
            ("[]", "it is not a JSON object like {\"klass\":\"welcome\"}"),
            ("{}", "`klass` is missing"),
            (r#"{"klass":""}"#, "a klass needs at least one byte"),
            (r#"{"klass":7}"#, "`klass` must be a text in quotes, not 7"),
            (r#"{"klass":"k","klass":"k"}"#, "`klass` is there twice"),
            (r#"{"klass":"k","priority":"high"}"#, "`priority` must be a number, not \"high\""),
            (r#"{"klass":"k","priority":1e999}"#, "`priority` must be a number, not 1e999"),
            (
                r#"{"klass":"k","on_dependency_failure":"stop"}"#,
                "`on_dependency_failure`: \"stop\" is not a policy: use wait, fail, skip or run",
            ),
            (r#"{"klass":"k","traceparent":"00-1-1-01"}"#, "traceparent must be 00-<trace id>-<parent id>"),
            (r#"{"klass":"k","replace":1}"#, "`replace` must be true or false, not 1"),
            (r#"{"klass":"k","prio":1}"#, "there is no key `prio`; the keys are queue, klass, payload, "),
            (r#"{"klass":"k","prio":null}"#, "there is no key `prio`"),
            (r#"{"klass":"k","in":"soon"}"#, "`in`: \"soon\" is not a duration: write it like 90"),
            (r#"{"klass":"k","in":-1}"#, "`in`: it must be from 0 seconds to a hundred years"),
            (
                r#"{"klass":"k","at":1770000000000}"#,
                "`at`: it is more than a hundred years ahead: a number is in seconds since the epoch, not in \
                 milliseconds",
            ),
            (r#"{"klass":"k","expires":1770000000000}"#, "`expires`: it is more than a hundred years ahead"),
            (r#"{"klass":"k","payload":"\ud800"}"#, "the payload has half of a surrogate pair"),
            (
                r#"{"klass":"k","in":[]}"#,
                "`in` must be a duration like \"1h\", or a number of seconds, not []",
            ),
            (r#"{"klass":"k","at":"soon"}"#, "`at`: \"soon\" is not a time"),
            (r#"{"klass":"k","in":1,"at":1}"#, "`in` and `at` are both given"),
            (r#"{"klass":"k","tags":[""]}"#, "a tag needs at least one byte"),
            (
                r#"{"klass":"k","tags":"new"}"#,
                "`tags` must be a list of texts like [\"a\", \"b\"], not \"new\"",
            ),
            (r#"{"klass":"k","retries":-1}"#, "`retries` must be a whole number of 0 or more, not -1"),
            (r#"{"klass":"k","payload":{"$bytes":"?"}}"#, "the payload's $bytes are not base64"),
            (r#"{"klass":"k","unique":""}"#, "unique key needs at least one byte"),
            (
                r#"{"klass":"k","unique":7}"#,
                "`unique` must be a text in quotes or {\"$bytes\":\"<base64>\"}, not 7",
            ),
            (r#"{"klass":"k","unique":{"$bytes":"?"}}"#, "`unique` must be a text in quotes or"),
            (r#"{"klass":"k","timeout":0}"#, "`timeout`: it must be more than 0 and at most ten years"),
            (r#"{"klass":"k","timeout":"574w"}"#, "`timeout`: it must be more than 0"),
            (r#"{"klass":"k","keep_result":0}"#, "`keep_result`: it must be more than 0"),
            (r#"{"klass":"k","keep_result":[]}"#, "`keep_result` must be true, a duration"),
            (r#"{"klass":"k","expires":"soon"}"#, "`expires`: \"soon\" is not a time"),
            (r#"{"klass":"k","backoff":"10sx3"}"#, "`backoff`: \"10sx3\" is not a backoff: a growing delay"),
            (r#"{"klass":"k","crashes":0}"#, "`crashes`: it must be at least 1"),
            (r#"{"klass":"k"} x"#, "it is not JSON from column 15 on: x"),
        ] {
            let error = read_line(line).unwrap_err();
            assert!(error.starts_with(why), "{line}: {error}");
        }
        assert_eq!(
            read(br#"{"klass":"k"}"#, &Defaults::default(), Timestamp::ZERO),
            Err("`queue` is missing".to_owned())
        );
        assert_eq!(
            read(b"{\"klass\":\"\xff\"}", &defaults(), Timestamp::ZERO).unwrap_err(),
            "it is not UTF-8 text from byte 11 on"
        );
        assert_eq!(read_line(r#"{"klass":"k","tags":null,"depends":null}"#).unwrap().tags, None);
    }

    fn batch(lines: &str) -> Batch<&[u8], fn(u64, u64)> {
        let (defaults, on_bad) = (defaults(), OnBad::Stop);
        Batch {
            lines: lines.as_bytes(),
            defaults,
            from_line: 1,
            on_bad,
            sends_time: false,
            progress: |_, _| {},
        }
    }

    #[test]
    fn lines_are_sent_in_batches_and_a_bad_line_ends_them() {
        pollster::block_on(async {
            let client = geartrain::connect("memory:").await.unwrap();
            let mut lines = "{\"klass\":\"k\"}\n\n".repeat(1_200);
            lines.push_str("nonsense\n{\"klass\":\"k\"}");
            let (totals, failure) = batch(&lines).run(Some(&client)).await;
            assert_eq!(totals.put, 1_200);
            let failure = failure.unwrap();
            assert_eq!(failure.exit_code(), 2);
            assert!(failure.to_string().starts_with("line 2401: it is not a JSON object"), "{failure}");
            assert!(failure.to_string().contains("go on with --from-line 2401"), "{failure}");
            let length = Length { queue: QueueName::new("mail").unwrap() };
            assert_eq!(client.run(length.clone()).await.unwrap(), 1_200);

            let lines = lines.replace("nonsense", "{\"klass\":\"k\"}");
            let rest = Batch { from_line: 2_401, ..batch(&lines) };
            assert!(rest.run(Some(&client)).await.1.is_none());
            assert_eq!(client.run(length).await.unwrap(), 1_202);
            let beyond = Batch { from_line: 2_403, ..batch(&lines) };
            let failure = beyond.run(Some(&client)).await.1.unwrap();
            assert_eq!(failure.to_string(), "--from-line 2403 is too far: the batch has 2402 lines");
        });
    }

    #[test]
    fn a_batch_without_lines_is_no_error() {
        pollster::block_on(async {
            let client = geartrain::connect("memory:").await.unwrap();
            for lines in ["", "\n", "# nothing today\n"] {
                let (totals, failure) = batch(lines).run(Some(&client)).await;
                assert_eq!((totals.put, failure.map(|failure| failure.to_string())), (0, None), "{lines:?}");
                let check = Batch { on_bad: OnBad::Check, ..batch(lines) };
                assert!(check.run(None).await.1.is_none(), "{lines:?}");
            }
        });
    }

    #[test]
    fn dependencies_that_do_not_exist_leave_room_for_lines_that_are_refused() {
        pollster::block_on(async {
            let client = geartrain::connect("memory:").await.unwrap();
            let line = |number| format!("{{\"klass\":\"k\",\"depends\":[\"nope{number}\"]}}\n");
            let mut lines: String = (0..ERRORS_MAX + 3).map(line).collect();
            lines.push_str("{\"klass\":\"k\",\"jid\":\"b\",\"depends\":[\"b\"]}\n");
            let (totals, failure) = batch(&lines).run(Some(&client)).await;
            assert_eq!(failure.unwrap().to_string(), "1 line refused, the others were submitted");
            let remarks: Vec<String> = totals.remarks().collect();
            assert_eq!(remarks.len(), ERRORS_MAX + 2);
            assert_eq!(remarks[0], "line 1: there is no job nope0 to wait for: it counts as complete");
            assert_eq!(remarks[ERRORS_MAX], "3 more dependencies do not exist, and count as complete");
            assert!(
                remarks[ERRORS_MAX + 1].starts_with("line 14: job b would depend on itself"),
                "{remarks:?}"
            );
        });
    }

    #[test]
    fn a_refused_line_is_reported_and_the_others_are_submitted() {
        pollster::block_on(async {
            let client = geartrain::connect("memory:").await.unwrap();
            let lines = r#"{"klass":"k","jid":"a"}
{"klass":"k","jid":"b","depends":["b"]}
{"klass":"k","jid":"a"}
{"klass":"k","jid":"c"}"#;
            let (totals, failure) = batch(lines).run(Some(&client)).await;
            assert_eq!((totals.put, totals.existing, totals.refused), (2, 1, 1));
            assert!(
                totals.errors[0].starts_with("line 2: job b would depend on itself"),
                "{:?}",
                totals.errors
            );
            assert_eq!(failure.unwrap().exit_code(), 1);
        });
    }

    #[test]
    fn a_check_reports_every_line_that_would_not_be_submitted() {
        pollster::block_on(async {
            let mut lines = "{\"klass\":\"k\",\"roll_call\":true}\n".repeat(700);
            lines.push_str(
                "{\"klass\":7}\n# a comment\n{\"klass\":\"k\",\"jid\":\"b\",\"depends\":[\"b\"]}\n",
            );
            let check = Batch { on_bad: OnBad::Check, ..batch(&lines) };
            let (totals, failure) = check.run(None).await;
            assert_eq!((totals.valid(), totals.refused), (700, 2));
            assert_eq!(totals.errors[0], "line 701: `klass` must be a text in quotes, not 7");
            assert!(
                totals.errors[1].starts_with("line 703: job b would depend on itself"),
                "{:?}",
                totals.errors
            );
            let failure = failure.unwrap();
            assert_eq!(
                (failure.exit_code(), failure.to_string().as_str()),
                (2, "2 lines would not be submitted")
            );
        });
    }

    #[test]
    fn a_line_that_depends_on_a_later_one_is_reported() {
        pollster::block_on(async {
            let client = geartrain::connect("memory:").await.unwrap();
            client.put("mail", "k", "").jid("done").await.unwrap();
            let done = client.pop("mail", "w1").await.unwrap().unwrap();
            client.complete(&done).await.unwrap();
            let lines = r#"{"klass":"k","jid":"a","depends":["b","done"]}
{"klass":"k","jid":"b"}
{"klass":"k","jid":"c","depends":["a","nope"]}"#;
            let (totals, failure) = batch(lines).run(Some(&client)).await;
            let (again, _) = batch(lines).run(Some(&client)).await;
            assert_eq!((again.existing, again.remarks().count()), (3, 0));
            assert_eq!((totals.put, failure.is_none()), (3, true));
            assert_eq!(
                totals.remarks().collect::<Vec<_>>(),
                [
                    "line 1: there is no job b to wait for: it counts as complete",
                    "line 3: there is no job nope to wait for: it counts as complete"
                ]
            );
        });
    }
}
