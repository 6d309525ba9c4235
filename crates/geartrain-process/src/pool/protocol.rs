//! The lines between a worker and the children of its pool: `docs/formats/pool.md`.

use std::borrow::Cow;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use geartrain_core::{JobResult, Payload, Portion, Tag, base64, json};
use geartrain_worker::{Context, Interruption, JobError, JobOutput};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use tower::BoxError;

use super::{PoolOptions, delayed};

/// The version of the protocol.
pub(crate) const VERSION: u32 = 1;
/// The longest line of a child. A payload of 64 MiB in base64 fits.
pub(crate) const LINE_BYTES_MAX: usize = 96 << 20;
/// The longest first line of a child.
pub(crate) const READY_BYTES_MAX: usize = 64 << 10;
/// A century: longer delays are refused by the queue.
const DELAY_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// How many characters of a bad line a message has.
const EXCERPT_CHARACTERS_MAX: usize = 200;

/// Facts about a job, without its payload.
#[derive(Serialize)]
struct JobFacts<'a> {
    jid: Cow<'a, str>,
    queue: &'a str,
    klass: &'a str,
    attempt: u32,
    retries: u32,
    remaining: i64,
    priority: f64,
    tags: Vec<&'a str>,
    token: String,
    deadline: Option<f64>,
    worker: &'a str,
    traceparent: Option<String>,
}

/// The line that gives a job to a child.
pub(crate) fn job_line(context: &Context, tags: &[Tag]) -> Vec<u8> {
    let job = context.job();
    let facts = JobFacts {
        jid: job.jid.to_string().into(),
        queue: job.queue.as_str(),
        klass: job.klass.as_str(),
        attempt: context.attempt(),
        retries: job.retries,
        remaining: job.remaining,
        priority: job.priority.get(),
        tags: tags.iter().map(|tag| tag.as_str()).collect(),
        token: job.lock.token.to_string(),
        deadline: context.deadline().map(unix_seconds),
        worker: job.lock.worker.as_str(),
        traceparent: context.traceparent(),
    };
    let mut line = serde_json::to_vec(&facts).expect("names and finite numbers are JSON");
    // The payload is appended as it is: parsing it would change numbers and the order of keys.
    line.pop();
    append_payload(&mut line, &job.payload);
    line.extend_from_slice(b"}\n");
    line
}

fn unix_seconds(deadline: Instant) -> f64 {
    let at = SystemTime::now() + deadline.saturating_duration_since(Instant::now());
    at.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn append_payload(line: &mut Vec<u8>, payload: &Payload) {
    let (encoding, value): (_, Cow<'_, str>) = match payload.text() {
        // JSON that looks like bytes is sent as bytes, so that it cannot be mistaken for them.
        Some(text) if json::is_json_text(text) && wrapped_bytes(text).is_none() => ("json", text.into()),
        Some(text) if !json::is_json_text(text) => {
            ("text", serde_json::to_string(text).expect("text is JSON").into())
        }
        _ => ("bytes", format!(r#"{{"$bytes":"{}"}}"#, base64::encode(payload.bytes())).into()),
    };
    line.extend_from_slice(format!(r#","encoding":"{encoding}","payload":"#).as_bytes());
    // A line break in valid JSON is whitespace between tokens: strings cannot contain one.
    line.extend(value.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
}

/// The line that asks a child to stop working on a job.
pub(crate) fn cancel_line(jid: &str, why: Option<Interruption>) -> Vec<u8> {
    let why = match why {
        Some(Interruption::LockLost) => "lock-lost",
        Some(Interruption::Cancelled) => "cancelled",
        Some(Interruption::TimedOut) => "timed-out",
        _ => "shutdown",
    };
    let jid = serde_json::to_string(jid).expect("text is JSON");
    format!("{{\"cancel\":{jid},\"why\":\"{why}\"}}\n").into_bytes()
}

/// The first line of a child.
#[derive(Debug, PartialEq, Deserialize)]
pub(crate) struct Ready {
    ready: bool,
    version: Option<u32>,
    /// Whether the child reads cancel lines while it works.
    #[serde(default)]
    pub(crate) cancel: bool,
}

/// Checks the first line of a child.
pub(crate) fn parse_ready(line: &[u8]) -> Result<Ready, String> {
    let expected = r#"expected {"ready":true} as the first line"#;
    match serde_json::from_slice::<Ready>(line) {
        Ok(ready @ Ready { ready: true, version: None | Some(VERSION), .. }) => Ok(ready),
        Ok(Ready { ready: true, version: Some(other), .. }) => {
            Err(format!("it speaks version {other} of the pool protocol, and this worker version {VERSION}"))
        }
        _ => Err(format!("{expected}, got '{}'", excerpt(line))),
    }
}

/// A line of a child about one of its jobs.
#[derive(Debug)]
pub(crate) enum Message {
    Progress(u64, u64),
    Chunk(Payload),
    Log { message: String, data: Option<String> },
    Answer(Answer),
}

/// How a child ends a job.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Complete(Option<Payload>),
    Fail { group: Option<String>, message: String },
    Retry { delay: Option<Duration>, group: Option<String>, message: String },
    Snooze(Duration),
    Release { message: String },
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    jid: Cow<'a, str>,
    encoding: Option<Encoding>,
    #[serde(borrow, default, deserialize_with = "present")]
    complete: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    chunk: Option<&'a RawValue>,
    fail: Option<Failed>,
    retry: Option<Failed>,
    snooze: Option<Failed>,
    release: Option<Failed>,
    progress: Option<(u64, u64)>,
    log: Option<String>,
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    Json,
    Text,
    Bytes,
}

/// The object of an answer that does not complete the job.
#[derive(Deserialize)]
struct Failed {
    delay: Option<f64>,
    group: Option<String>,
    message: Option<String>,
}

/// A member that is there, `null` included.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Reads a line of a child: the jid and what it says about that job, or why it is not allowed.
pub(crate) fn parse(line: &[u8]) -> Result<(String, Message), String> {
    let bad = |why: &str| format!("{why}: '{}'", excerpt(line));
    let parsed: Line<'_> = serde_json::from_slice(line)
        .map_err(|error| bad(&format!("not a line of the pool protocol ({error})")))?;
    let Line { jid, encoding, complete, chunk, fail, retry, snooze, release, progress, log, data } = parsed;
    let answer = |answer: Answer| Some(Message::Answer(answer));
    let text = |message: Option<String>| message.unwrap_or_else(|| "the program gave no reason".to_owned());
    let mut messages = [
        match complete {
            Some(value) if value.get() == "null" && encoding.is_none() => answer(Answer::Complete(None)),
            Some(value) => answer(Answer::Complete(Some(decode(value, encoding).map_err(|why| bad(&why))?))),
            None => None,
        },
        match chunk {
            Some(value) => Some(Message::Chunk(decode(value, encoding).map_err(|why| bad(&why))?)),
            None => None,
        },
        fail.and_then(|fail| answer(Answer::Fail { group: fail.group, message: text(fail.message) })),
        match retry {
            Some(retry) => {
                let delay = retry.delay.map(duration).transpose().map_err(|why| bad(&why))?;
                answer(Answer::Retry { delay, group: retry.group, message: text(retry.message) })
            }
            None => None,
        },
        match snooze {
            Some(snooze) => {
                let delay = snooze.delay.ok_or_else(|| bad("snooze needs a delay"))?;
                answer(Answer::Snooze(duration(delay).map_err(|why| bad(&why))?))
            }
            None => None,
        },
        release.and_then(|release| answer(Answer::Release { message: text(release.message) })),
        match progress {
            Some((done, of)) => {
                Portion::new(done, of).map_err(|error| bad(&error.to_string()))?;
                Some(Message::Progress(done, of))
            }
            None => None,
        },
        log.map(|message| Message::Log { message, data: data.map(|data| data.get().to_owned()) }),
    ]
    .into_iter()
    .flatten();
    match (messages.next(), messages.next()) {
        (Some(message), None) => Ok((jid.into_owned(), message)),
        (None, _) => Err(bad("a line without an answer or a report")),
        (Some(_), Some(_)) => Err(bad("a line with more than one answer or report")),
    }
}

fn duration(seconds: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|delay| *delay <= DELAY_MAX)
        .ok_or_else(|| format!("a delay of {seconds} seconds"))
}

/// The bytes that a value stands for.
fn decode(value: &RawValue, encoding: Option<Encoding>) -> Result<Payload, String> {
    let text = value.get();
    match encoding {
        Some(Encoding::Text) => {
            let text: String = serde_json::from_str(text)
                .map_err(|_| "with encoding text, the value is a string".to_owned())?;
            Ok(Payload::from(text.as_str()))
        }
        Some(Encoding::Bytes) => wrapped_bytes(text)
            .map(Payload::from)
            .ok_or_else(|| r#"with encoding bytes, the value is {"$bytes":"<base64>"}"#.to_owned()),
        Some(Encoding::Json) | None => {
            Ok(wrapped_bytes(text).map_or_else(|| Payload::from(text), Payload::from))
        }
    }
}

/// The bytes of an object whose only member is `$bytes`, with any whitespace.
fn wrapped_bytes(text: &str) -> Option<Vec<u8>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wrapped<'a> {
        #[serde(rename = "$bytes", borrow)]
        bytes: Cow<'a, str>,
    }
    // Most values are something else, and are not parsed.
    if !text.get(..text.len().min(64))?.contains("\"$bytes\"") {
        return None;
    }
    let wrapped: Wrapped<'_> = serde_json::from_str(text).ok()?;
    base64::decode(&wrapped.bytes)
}

impl Answer {
    /// What the worker does with the job.
    pub(crate) fn verdict(self, context: &Context, options: &PoolOptions) -> Result<JobOutput, BoxError> {
        let (queue, max) = (context.queue(), options.result_bytes_max);
        let error = match self {
            Answer::Complete(None) => return Ok(JobOutput::default()),
            Answer::Complete(Some(bytes)) if bytes.byte_len() <= max => {
                return Ok(JobOutput::with_result(JobResult { code: 0, bytes }));
            }
            Answer::Complete(Some(_)) => {
                let message = format!("the result is larger than {max} bytes");
                JobError::fail(format!("{queue}-result-too-large"), message)
            }
            Answer::Fail { group, message } => {
                JobError::fail(group.unwrap_or_else(|| format!("{queue}-failed")), message)
            }
            Answer::Retry { delay, group, message } => {
                let error = JobError::retry(message).group(group.unwrap_or_else(|| format!("{queue}-retry")));
                delayed(error, delay.or(options.retry_delay))
            }
            Answer::Snooze(delay) => JobError::snooze(delay),
            Answer::Release { message } => JobError::release(message),
        };
        Err(error.into_service_error())
    }
}

/// The beginning of a line, for messages.
pub(crate) fn excerpt(line: &[u8]) -> String {
    let beginning = &line[..line.len().min(EXCERPT_CHARACTERS_MAX * 4)];
    let text = String::from_utf8_lossy(beginning);
    let mut excerpt: String = text
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .take(EXCERPT_CHARACTERS_MAX)
        .collect();
    if excerpt.len() < line.len() && excerpt.chars().count() == EXCERPT_CHARACTERS_MAX {
        excerpt.push('…');
    }
    excerpt
}

#[cfg(test)]
mod tests {
    use super::*;

    fn appended(payload: impl Into<Payload>) -> String {
        let mut line = Vec::new();
        append_payload(&mut line, &payload.into());
        String::from_utf8(line).unwrap()
    }

    fn answer(line: &str) -> Answer {
        match parse(line.as_bytes()) {
            Ok((jid, Message::Answer(answer))) if jid == "j" => answer,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_payload_is_json_text_or_bytes_on_one_line() {
        assert_eq!(
            appended("{\"a\":\r\n 1.50,\n\"b\":\"\\n\"}"),
            r#","encoding":"json","payload":{"a":   1.50, "b":"\n"}"#
        );
        assert_eq!(appended("two\nlines"), r#","encoding":"text","payload":"two\nlines""#);
        assert_eq!(appended(""), r#","encoding":"text","payload":"""#);
        assert_eq!(appended(vec![0xff]), r#","encoding":"bytes","payload":{"$bytes":"/w=="}"#);
        // JSON that looks like bytes.
        let looks = r#"{"$bytes":"/w=="}"#;
        let expected =
            format!(r#","encoding":"bytes","payload":{{"$bytes":"{}"}}"#, base64::encode(looks.as_bytes()));
        assert_eq!(appended(looks), expected);
    }

    #[test]
    fn a_payload_that_is_answered_with_its_encoding_comes_back_unchanged() {
        for payload in ["null", "1e2", "\"x\"", "hi", "", r#"{"$bytes": "/w=="}"#, "\u{1}\u{7f}é"]
            .map(Payload::from)
            .into_iter()
            .chain([Payload::from(vec![0, 255])])
        {
            let mut line = br#"{"jid":"j""#.to_vec();
            append_payload(&mut line, &payload);
            line.push(b'}');
            let line = String::from_utf8(line).unwrap().replace("\"payload\"", "\"complete\"");
            assert_eq!(answer(&line), Answer::Complete(Some(payload)), "{line}");
        }
    }

    #[test]
    fn each_answer_is_read() {
        let some = |text: &str| Answer::Complete(Some(text.into()));
        assert_eq!(answer(r#"{"jid":"j","complete":{"n": 1.0}}"#), some(r#"{"n": 1.0}"#));
        assert_eq!(answer(r#"{"jid":"j","complete":"x"}"#), some("\"x\""));
        assert_eq!(answer(r#"{"jid":"j","complete":"x","encoding":"text"}"#), some("x"));
        assert_eq!(answer(r#"{"complete": {"$bytes": "aGk="}, "jid":"j"}"#), some("hi"));
        assert_eq!(answer(r#"{"jid":"j","complete":null}"#), Answer::Complete(None));
        assert_eq!(
            answer(r#"{"jid":"j","fail":{"group":"g","message":"m"},"extra":1}"#),
            Answer::Fail { group: Some("g".into()), message: "m".into() }
        );
        assert_eq!(
            answer(r#"{"jid":"j","retry":{"delay":1.5}}"#),
            Answer::Retry {
                delay: Some(Duration::from_millis(1_500)),
                group: None,
                message: "the program gave no reason".into()
            }
        );
        assert_eq!(answer(r#"{"jid":"j","snooze":{"delay":60}}"#), Answer::Snooze(Duration::from_secs(60)));
        assert_eq!(
            answer(r#"{"jid":"j","release":{"message":"m"}}"#),
            Answer::Release { message: "m".into() }
        );
    }

    #[test]
    fn each_report_is_read() {
        let report = |line: &str| format!("{:?}", parse(line.as_bytes()).unwrap().1);
        assert_eq!(report(r#"{"jid":"j","progress":[3,10]}"#), "Progress(3, 10)");
        assert_eq!(
            report(r#"{"jid":"j","log":"x","data":{"a":1}}"#),
            r#"Log { message: "x", data: Some("{\"a\":1}") }"#
        );
        assert!(
            matches!(parse(br#"{"jid":"j","chunk":"a","encoding":"text"}"#), Ok((_, Message::Chunk(chunk))) if chunk == "a".into())
        );
    }

    #[test]
    fn a_bad_line_is_refused_with_its_beginning() {
        for (line, why) in [
            ("hello", "not a line of the pool protocol"),
            ("", "not a line of the pool protocol"),
            ("[1]", "not a line of the pool protocol"),
            (r#"{"complete":1}"#, "missing field `jid`"),
            (r#"{"jid":"j"}"#, "without an answer or a report: '{\"jid\":\"j\"}'"),
            (r#"{"jid":"j","done":1}"#, "without an answer or a report"),
            (r#"{"jid":"j","complete":1,"fail":{}}"#, "more than one answer or report"),
            (r#"{"jid":"j","progress":[3]}"#, "invalid length 1"),
            (r#"{"jid":"j","progress":["a",0]}"#, "invalid type"),
            (r#"{"jid":"j","snooze":{}}"#, "snooze needs a delay"),
            (r#"{"jid":"j","retry":{"delay":-1}}"#, "a delay of -1 seconds"),
            (r#"{"jid":"j","snooze":{"delay":1e300}}"#, "seconds"),
            (r#"{"jid":"j","complete":1,"encoding":"text"}"#, "the value is a string"),
            (r#"{"jid":"j","complete":1,"encoding":"bytes"}"#, "$bytes"),
            (r#"{"jid":"j","complete":1,"encoding":"xml"}"#, "unknown variant `xml`"),
        ] {
            let error = parse(line.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
        let long = "x".repeat(10_000_000);
        let error = parse(long.as_bytes()).unwrap_err();
        assert!(error.ends_with(&format!("'{}…'", "x".repeat(EXCERPT_CHARACTERS_MAX))), "{error}");
        assert!(parse(b"\xff\xfe").is_err());
    }

    #[test]
    fn the_first_line_says_ready() {
        assert!(!parse_ready(br#"{"ready":true}"#).unwrap().cancel);
        assert!(parse_ready(br#"{"ready":true,"version":1,"cancel":true,"name":"x"}"#).unwrap().cancel);
        for (line, why) in [
            (
                r#"{"ready":true,"version":2}"#,
                "it speaks version 2 of the pool protocol, and this worker version 1",
            ),
            (r#"{"ready":false}"#, r#"expected {"ready":true} as the first line, got '{"ready":false}'"#),
            ("Loading…", r#"expected {"ready":true} as the first line, got 'Loading…'"#),
        ] {
            assert_eq!(parse_ready(line.as_bytes()).unwrap_err(), why);
        }
    }

    #[test]
    fn a_cancel_line_says_why() {
        let line = |why| String::from_utf8(cancel_line("a\"b", why)).unwrap();
        assert_eq!(line(Some(Interruption::LockLost)), "{\"cancel\":\"a\\\"b\",\"why\":\"lock-lost\"}\n");
        assert_eq!(line(None), "{\"cancel\":\"a\\\"b\",\"why\":\"shutdown\"}\n");
    }
}
