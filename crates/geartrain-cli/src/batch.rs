//! `geartrain put --batch`: many jobs from lines of JSON, one object each.

use std::io::BufRead;

use geartrain::{
    Answer, BadInput, Call, Client, Existing, Jid, Klass, Payload, Priority, Put, PutOptions, PutReply,
    QueueName, RESULT_TTL_DEFAULT, Reply, Seconds, Tag, Timestamp, UniqueKey,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::values::allowed_span;
use crate::{backoff, duration, payload, text, timestamp};

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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    queue: Option<String>,
    klass: Option<String>,
    payload: Option<Box<RawValue>>,
    priority: Option<f64>,
    #[serde(rename = "in")]
    delay: Option<NumberOrText>,
    at: Option<NumberOrText>,
    tags: Option<Vec<String>>,
    #[serde(default)]
    depends: Vec<String>,
    retries: Option<u32>,
    jid: Option<String>,
    #[serde(default)]
    replace: bool,
    unique: Option<Box<RawValue>>,
    timeout: Option<NumberOrText>,
    expires: Option<NumberOrText>,
    backoff: Option<String>,
    crashes: Option<u32>,
    #[serde(default)]
    roll_call: bool,
    keep_result: Option<Keep>,
}

/// How long a result is stored; `true` for the default.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected true, a number or a text")]
enum Keep {
    Default(bool),
    For(NumberOrText),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number or a text")]
enum NumberOrText {
    Number(f64),
    Text(String),
}

impl NumberOrText {
    fn delay(self) -> Result<Seconds, String> {
        match self {
            NumberOrText::Number(seconds) => duration::from_seconds(seconds)
                .map(Seconds::from)
                .ok_or_else(|| format!("{seconds} is not a duration")),
            NumberOrText::Text(text) => duration::parse(&text).map(Seconds::from),
        }
    }

    fn time(self) -> Result<Timestamp, String> {
        match self {
            NumberOrText::Number(seconds) => Timestamp::new(seconds).map_err(|error| error.to_string()),
            NumberOrText::Text(text) => timestamp::parse(&text),
        }
    }

    fn future_time(self) -> Result<Timestamp, String> {
        match self {
            NumberOrText::Text(text) => timestamp::parse_ahead(&text),
            number => number.time(),
        }
    }
}

/// The put options of a line; none if it has no such keys.
fn put_options(line: &mut Line) -> Result<Option<Box<PutOptions>>, String> {
    let in_field = |field: &'static str| move |why: String| format!("{field}: {why}");
    let span = |given: NumberOrText, field| given.delay().and_then(allowed_span).map_err(in_field(field));
    let unique = match line.unique.take() {
        Some(json) => {
            let bad_key = || "unique is neither a text nor {\"$bytes\":\"<base64>\"}".to_owned();
            let key = payload::bytes_from_json(&json).ok_or_else(bad_key)?;
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
        return Err("crashes: it must be at least 1".to_owned());
    }
    let options = PutOptions {
        unique,
        result_ttl,
        expires: line.expires.take().map(NumberOrText::future_time).transpose()?,
        attempt_max: line.timeout.take().map(|given| span(given, "timeout")).transpose()?,
        backoff: line.backoff.take().map(|text| backoff::parse(&text)).transpose()?,
        crashes_max: line.crashes,
        roll_call: line.roll_call,
        ..PutOptions::default()
    };
    Ok((options != PutOptions::default()).then(|| Box::new(options)))
}

/// Parses a line.
fn read(line: &[u8], defaults: &Defaults, now: Timestamp) -> Result<Put, String> {
    // Otherwise serde would also accept an array, as the values of all keys in order.
    if line.trim_ascii_start().first() != Some(&b'{') {
        return Err(r#"it is not a JSON object like {"klass":"welcome"}"#.to_owned());
    }
    let mut line: Line = serde_json::from_slice(line).map_err(|error| in_column(&error))?;
    let options = put_options(&mut line)?;
    let delay = match (line.delay, line.at) {
        (Some(_), Some(_)) => return Err("in and at are both given: leave one out".to_owned()),
        (Some(delay), None) => delay.delay()?,
        (None, Some(at)) => at.time()? - now,
        (None, None) => Seconds::ZERO,
    };
    let payload = line.payload.map_or_else(|| Ok(Payload::default()), |json| payload::from_json(&json))?;
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
        None => default.clone().ok_or_else(|| format!("{what} is missing")),
    }
}

/// A JSON error without its line number: the parser sees one line at a time.
fn in_column(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
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
    /// Lines that the queue refused.
    pub(crate) refused: u64,
    /// The reasons, for the first of them.
    #[serde(skip)]
    pub(crate) errors: Vec<String>,
}

impl Totals {
    fn count(&mut self, line: u64, answer: Answer) {
        match answer {
            Ok(Reply::Put(PutReply::Existing)) => self.existing += 1,
            Ok(Reply::Put(PutReply::Coalesced { .. })) => self.coalesced += 1,
            Ok(_) => self.put += 1,
            Err(refusal) => {
                self.refused += 1;
                if self.errors.len() < ERRORS_MAX {
                    self.errors.push(format!("line {line}: {}", Failure::from(refusal)));
                }
            }
        }
    }
}

/// Submits the job of each line, in order, and reports progress in bytes and jobs.
///
/// An invalid line ends the batch: the lines before it have been submitted, that line and those after it have
/// not. A line that the queue refuses does not end it.
pub(crate) async fn put_lines(
    client: &Client,
    mut lines: impl BufRead,
    defaults: &Defaults,
    progress: impl Fn(u64, u64),
) -> (Totals, Option<Failure>) {
    let mut totals = Totals::default();
    let (mut bytes, mut number, mut line) = (0, 0, Vec::new());
    loop {
        // Fill a batch, then send it, even if a bad line ended it.
        let (mut calls, mut numbers, mut end) = (Vec::new(), Vec::new(), None);
        let (now, start) = (timestamp::now(), bytes);
        while calls.len() < BATCH_JOBS_MAX && bytes - start < BATCH_BYTES_MAX && end.is_none() {
            line.clear();
            match lines.read_until(b'\n', &mut line) {
                Ok(0) => end = Some(None),
                Ok(read_bytes) => {
                    number += 1;
                    bytes += read_bytes as u64;
                    if line.trim_ascii().is_empty() {
                        continue;
                    }
                    match read(&line, defaults, now) {
                        Ok(put) => {
                            calls.push(Call::from(put));
                            numbers.push(number);
                        }
                        Err(why) => end = Some(Some(format!("line {number}: {why}"))),
                    }
                }
                Err(error) => end = Some(Some(format!("line {} cannot be read: {error}", number + 1))),
            }
        }
        if let (Some(first), Some(last)) = (numbers.first().copied(), numbers.last().copied()) {
            match client.batch(calls).await {
                Ok(answers) => {
                    for (number, answer) in numbers.into_iter().zip(answers) {
                        totals.count(number, answer);
                    }
                }
                Err(error) => {
                    let failure = Failure::from(error);
                    let why =
                        format!("{failure}; it is not known whether lines {first} to {last} were submitted");
                    return (totals, Some(Failure::Unreachable(why)));
                }
            }
            progress(bytes, totals.put);
        }
        match end {
            None => {}
            Some(None) => break,
            Some(Some(why)) => {
                let advice = "; nothing was submitted from this line on: fix it and continue from there";
                return (totals, Some(Failure::Usage(format!("{why}{advice}"))));
            }
        }
    }
    let failure = (totals.refused > 0).then(|| {
        Failure::Refused(format!(
            "{} refused, the others were submitted",
            text::count(totals.refused, "line")
        ))
    });
    (totals, failure)
}

#[cfg(test)]
mod tests {
    use geartrain::Length;

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
            "roll_call":true,"keep_result":true}"#;
        let expected = PutOptions {
            unique: Some(UniqueKey::new("key").unwrap()),
            attempt_max: Some(Seconds::from(600)),
            expires: Some(Timestamp::from(2_000)),
            backoff: Some(backoff::parse("10s..1h").unwrap()),
            crashes_max: Some(2),
            roll_call: true,
            result_ttl: Some(RESULT_TTL_DEFAULT),
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
            ("{", "EOF while parsing an object at column 1"),
            ("[]", "it is not a JSON object like {\"klass\":\"welcome\"}"),
            ("{}", "klass is missing"),
            (r#"{"klass":""}"#, "a klass needs at least one byte"),
            (r#"{"klass":7}"#, "invalid type: integer `7`, expected a string at column 10"),
            (r#"{"klass":"k","prio":1}"#, "unknown field `prio`, expected one of "),
            (r#"{"klass":"k","in":"soon"}"#, "\"soon\" is not a duration: write it like 90"),
            (r#"{"klass":"k","in":-1}"#, "-1 is not a duration"),
            (r#"{"klass":"k","in":[]}"#, "expected a number or a text"),
            (r#"{"klass":"k","at":"soon"}"#, "\"soon\" is not a time"),
            (r#"{"klass":"k","in":1,"at":1}"#, "in and at are both given"),
            (r#"{"klass":"k","tags":[""]}"#, "a tag needs at least one byte"),
            (r#"{"klass":"k","retries":-1}"#, "invalid value: integer `-1`, expected u32"),
            (r#"{"klass":"k","payload":{"$bytes":"?"}}"#, "the payload's $bytes are not base64"),
            (r#"{"klass":"k","unique":""}"#, "unique key needs at least one byte"),
            (r#"{"klass":"k","unique":7}"#, "unique is neither a text nor {\"$bytes\":\"<base64>\"}"),
            (r#"{"klass":"k","unique":{"$bytes":"?"}}"#, "unique is neither a text nor"),
            (r#"{"klass":"k","timeout":0}"#, "timeout: it must be more than 0 and at most ten years"),
            (r#"{"klass":"k","timeout":"574w"}"#, "timeout: it must be more than 0"),
            (r#"{"klass":"k","keep_result":0}"#, "keep_result: it must be more than 0"),
            (r#"{"klass":"k","keep_result":[]}"#, "expected true, a number or a text"),
            (r#"{"klass":"k","expires":"soon"}"#, "\"soon\" is not a time"),
            (r#"{"klass":"k","backoff":"10sx3"}"#, "\"10sx3\" is not a backoff: a growing delay"),
            (r#"{"klass":"k","crashes":0}"#, "crashes: it must be at least 1"),
            (r#"{"klass":"k"} x"#, "trailing characters at column 15"),
        ] {
            let error = read_line(line).unwrap_err();
            assert!(error.starts_with(why), "{line}: {error}");
        }
        assert_eq!(
            read(br#"{"klass":"k"}"#, &Defaults::default(), Timestamp::ZERO),
            Err("queue is missing".to_owned())
        );
    }

    #[test]
    fn lines_are_sent_in_batches_and_a_bad_line_ends_them() {
        pollster::block_on(async {
            let client = geartrain::connect("memory:").await.unwrap();
            let mut lines = "{\"klass\":\"k\"}\n\n".repeat(1_200);
            lines.push_str("nonsense\n{\"klass\":\"k\"}");
            let (totals, failure) = put_lines(&client, lines.as_bytes(), &defaults(), |_, _| {}).await;
            assert_eq!(totals.put, 1_200);
            let failure = failure.unwrap();
            assert_eq!(failure.exit_code(), 2);
            assert!(failure.to_string().starts_with("line 2401: it is not a JSON object"), "{failure}");
            let queue = QueueName::new("mail").unwrap();
            assert_eq!(client.run(Length { queue }).await.unwrap(), 1_200);
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
            let (totals, failure) = put_lines(&client, lines.as_bytes(), &defaults(), |_, _| {}).await;
            assert_eq!((totals.put, totals.existing, totals.refused), (2, 1, 1));
            assert!(
                totals.errors[0].starts_with("line 2: job b would depend on itself"),
                "{:?}",
                totals.errors
            );
            assert_eq!(failure.unwrap().exit_code(), 1);
        });
    }
}
