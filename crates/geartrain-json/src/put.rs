//! A put as JSON: the line of a batch, and the operation `put`.

use geartrain_core::{
    BadInput, BadName, Existing, Jid, Klass, Payload, Priority, Put, PutOptions, PutReply, QueueName,
    RESULT_TTL_DEFAULT, Seconds, Tag, Timestamp, Traceparent, UniqueKey,
};
use serde::Deserialize;

use crate::object::{missing, of_key};
use crate::operation::field::{self, FieldInfo, FieldKind, Need};
use crate::time::{Times, allowed_span};
use crate::{Object, OperationError, backoff, duration, excerpt, payload};

/// The queue and klass of puts without their own.
#[derive(Debug, Default)]
pub struct Defaults {
    /// The queue.
    pub queue: Option<QueueName>,
    /// The klass.
    pub klass: Option<Klass>,
}

/// The fields of a put, in the order in which errors list them.
pub const FIELDS: [FieldInfo; 20] = [
    FieldInfo::required("queue", FieldKind::Name, "The queue"),
    FieldInfo::required("klass", FieldKind::Name, "The kind of job: names the code that runs it"),
    FieldInfo::new("payload", FieldKind::Json, "The input of that code"),
    FieldInfo::new("priority", FieldKind::Number, "Higher first; 0 by default"),
    FieldInfo::new("in", FieldKind::Duration, "How long to wait before the job may run")
        .needed(Need::AtMostOne),
    FieldInfo::new("at", FieldKind::Time, "When the job may run, instead of a delay").needed(Need::AtMostOne),
    FieldInfo::new("tags", FieldKind::Names(0), "Tags to find the job by"),
    FieldInfo::new("depends", FieldKind::Names(0), "Jobs to wait for"),
    FieldInfo::new("retries", field::RETRIES, "How often it may be retried; 5 by default"),
    FieldInfo::new("jid", FieldKind::Name, "Its id; by default a UUID"),
    FieldInfo::new(
        "replace",
        FieldKind::Flag,
        "Puts a job with this id again, which is left alone otherwise",
    ),
    FieldInfo::new("unique", FieldKind::UniqueKey, "A key: joins an unfinished job of the queue that has it"),
    FieldInfo::new("timeout", FieldKind::Span, "How long one attempt may take"),
    FieldInfo::new("expires", FieldKind::Time, "The job fails if no attempt has started by then"),
    FieldInfo::new("backoff", FieldKind::Format("backoff"), "The delay of retries, such as 10s..1h"),
    FieldInfo::new(
        "crashes",
        FieldKind::Whole(1, u32::MAX as u64),
        "How many workers may die while running it",
    ),
    FieldInfo::new("roll_call", FieldKind::Flag, "Refuses the job if no live worker can run it"),
    FieldInfo::new("keep_result", FieldKind::Retention, "How long the result is kept; `true` for 25 hours"),
    FieldInfo::new(
        "on_dependency_failure",
        FieldKind::Choice(&["wait", "fail", "skip", "run"]),
        "What to do if a dependency fails",
    ),
    FieldInfo::new("traceparent", field::TRACEPARENT, "The trace context, as in W3C's traceparent header"),
];

/// How long a result is stored; `true` for the default.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Keep {
    Default(bool),
    For(NumberOrText),
}

/// A time or a duration: a number of seconds, or a text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(f64),
    Text(String),
}

impl NumberOrText {
    fn delay(self, times: &Times) -> Result<Seconds, String> {
        match self {
            NumberOrText::Number(seconds) => duration::from_seconds(seconds)
                .map(Seconds::from)
                .ok_or_else(|| "it must be from 0 seconds to a hundred years".to_owned()),
            NumberOrText::Text(text) => times.delay(&text).map(|delay| Seconds::from(delay.length)),
        }
    }

    fn time(self, times: &Times) -> Result<Timestamp, String> {
        match self {
            NumberOrText::Number(seconds) => {
                Timestamp::new(seconds).map_err(|error| error.to_string()).and_then(|time| times.near(time))
            }
            NumberOrText::Text(text) => times.start(&text).map(|moment| moment.at),
        }
    }

    fn future_time(self, times: &Times) -> Result<Timestamp, String> {
        match self {
            NumberOrText::Text(text) => times.ahead(&text).map(|moment| moment.at),
            number => number.time(times),
        }
    }
}

/// A delay: a number of seconds, or a text such as `1h30m`.
pub fn delay(object: &Object<'_>, key: &str, times: &Times) -> Result<Option<Seconds>, OperationError> {
    let given: Option<NumberOrText> = object.read(key, "a duration like \"1h\", or a number of seconds")?;
    given.map(|given| given.delay(times)).transpose().map_err(of_key(key))
}

/// A duration above zero.
pub fn span(object: &Object<'_>, key: &str, times: &Times) -> Result<Option<Seconds>, OperationError> {
    let given: Option<NumberOrText> = object.read(key, "a duration like \"10m\", or a number of seconds")?;
    let span = given.map(|given| given.delay(times).and_then(allowed_span));
    span.transpose().map_err(of_key(key))
}

/// How long a result is stored: `true` for the default, or a duration.
pub fn keep_result(object: &Object<'_>, times: &Times) -> Result<Option<Seconds>, OperationError> {
    const KEY: &str = "keep_result";
    Ok(match object.read(KEY, "true, a duration like \"2h\", or a number of seconds")? {
        None | Some(Keep::Default(false)) => None,
        Some(Keep::Default(true)) => Some(RESULT_TTL_DEFAULT),
        Some(Keep::For(given)) => Some(given.delay(times).and_then(allowed_span).map_err(of_key(KEY))?),
    })
}

const A_TIME: &str = "a time like \"2026-04-01T12:00:00Z\", or a number of seconds since the epoch";

/// A unique key: a text, or `{"$bytes": "<base64>"}`.
pub fn unique(object: &Object<'_>) -> Result<Option<UniqueKey>, OperationError> {
    let Some(json) = object.raw("unique") else { return Ok(None) };
    let Some(key) = payload::bytes_from_json(json) else {
        return Err(OperationError::bad_argument(format!(
            "`unique` must be a text in quotes or {{\"$bytes\":\"<base64>\"}}, not {}",
            excerpt(json.get())
        )));
    };
    UniqueKey::new(key).map(Some).map_err(|error| OperationError::bad_argument(error.to_string()))
}

/// A payload.
pub fn payload(object: &Object<'_>, key: &str) -> Result<Option<Payload>, OperationError> {
    let Some(json) = object.raw(key) else { return Ok(None) };
    payload::from_json(json).map(Some).map_err(OperationError::bad_argument)
}

/// A priority.
pub fn priority(object: &Object<'_>) -> Result<Option<Priority>, OperationError> {
    let number: Option<f64> = object.read("priority", "a number")?;
    Ok(number.map(Priority::new).transpose().map_err(BadInput::from)?)
}

/// A backoff, such as `10s..1h`.
pub fn backoff(object: &Object<'_>) -> Result<Option<geartrain_core::Backoff>, OperationError> {
    object.parsed("backoff", backoff::parse)
}

/// The put options of an object; none if it has no such keys.
fn put_options(object: &Object<'_>, times: &Times) -> Result<Option<Box<PutOptions>>, OperationError> {
    let crashes_max = object.whole("crashes")?;
    if crashes_max == Some(0) {
        return Err(of_key("crashes")("it must be at least 1".to_owned()));
    }
    let expires: Option<NumberOrText> = object.read("expires", A_TIME)?;
    let traceparent = object.text("traceparent")?.map(|text| text.parse::<Traceparent>());
    let options = PutOptions {
        unique: unique(object)?,
        result_ttl: keep_result(object, times)?,
        expires: expires.map(|given| given.future_time(times)).transpose().map_err(of_key("expires"))?,
        attempt_max: span(object, "timeout", times)?,
        backoff: backoff(object)?,
        crashes_max,
        roll_call: object.flag("roll_call")?,
        on_dependency_failure: object.parsed("on_dependency_failure", policy)?.unwrap_or_default(),
        traceparent: traceparent
            .transpose()
            .map_err(|error| OperationError::bad_argument(error.to_string()))?,
        ..PutOptions::default()
    };
    Ok((options != PutOptions::default()).then(|| Box::new(options)))
}

/// What a job does when a dependency fails.
pub fn policy(text: &str) -> Result<geartrain_core::DependencyPolicy, String> {
    text.parse().map_err(|_| format!("{text:?} is not a policy: use wait, fail, skip or run"))
}

/// The outcome of a put.
pub fn outcome(reply: &PutReply) -> &'static str {
    match reply {
        PutReply::Created => "created",
        PutReply::Replaced => "replaced",
        PutReply::Existing | PutReply::NamedExisting { .. } => "existing",
        PutReply::Coalesced { .. } => "coalesced",
        PutReply::Named { .. } => "named",
        PutReply::Unnamed => "unnamed",
        _ => "done",
    }
}

/// A jid of our own: a UUID of version 7.
pub fn new_jid() -> Jid {
    Jid::from_uuid(uuid::Uuid::now_v7().into_bytes())
}

/// Parses the line of a batch.
pub fn read_line(line: &[u8], defaults: &Defaults, times: &Times) -> Result<Put, OperationError> {
    let object = Object::parse_bytes(line, r#"{"klass":"welcome"}"#)?;
    object.allow(FIELDS.iter().map(|field| field.name))?;
    read(&object, defaults, times).map(|(put, _)| put)
}

/// The put that an object describes, and when the job is due if that is later.
pub fn read(
    object: &Object<'_>,
    defaults: &Defaults,
    times: &Times,
) -> Result<(Put, Option<Timestamp>), OperationError> {
    let options = put_options(object, times)?;
    let at: Option<NumberOrText> = object.read("at", A_TIME)?;
    let (delay, due) = match (delay(object, "in", times)?, at) {
        (Some(_), Some(_)) => {
            return Err(OperationError::bad_argument("`in` and `at` are both given: leave one out"));
        }
        (Some(delay), None) => (delay, Some(times.now + delay)),
        (None, Some(at)) => {
            let at = at.time(times).map_err(of_key("at"))?;
            (at - times.now, Some(at))
        }
        (None, None) => (Seconds::ZERO, None),
    };
    let payload = payload(object, "payload")?.unwrap_or_default();
    let queue = given_or(object.text("queue")?, QueueName::new, &defaults.queue, "queue")?;
    let klass = given_or(object.text("klass")?, Klass::new, &defaults.klass, "klass")?;
    let put = Put {
        delay,
        priority: priority(object)?,
        retries: object.whole("retries")?,
        tags: object.names::<Tag>("tags")?,
        depends: object.names("depends")?.unwrap_or_default(),
        existing: if object.flag("replace")? { Existing::Replace } else { Existing::Keep },
        options,
        ..Put::new(queue, object.name("jid")?.unwrap_or_else(new_jid), klass, payload)
    };
    Ok((put, due))
}

fn given_or<T: Clone>(
    given: Option<String>,
    name: impl FnOnce(String) -> Result<T, BadName>,
    default: &Option<T>,
    what: &str,
) -> Result<T, OperationError> {
    match given {
        Some(text) => Ok(name(text)?),
        None => default.clone().ok_or_else(|| missing(what)),
    }
}

#[cfg(test)]
mod tests {
    use geartrain_core::DependencyPolicy;

    use super::*;

    fn defaults() -> Defaults {
        Defaults { queue: Some(QueueName::new("mail").unwrap()), klass: None }
    }

    fn read_line(line: &str) -> Result<Put, String> {
        line_at(line.as_bytes(), &defaults(), 1_000)
    }

    fn line_at(line: &[u8], defaults: &Defaults, now: i32) -> Result<Put, String> {
        super::read_line(line, defaults, &Times::utc(now.into())).map_err(|error| error.to_string())
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
            line_at(br#"{"klass":"k"}"#, &Defaults::default(), 0),
            Err("`queue` is missing".to_owned())
        );
        assert_eq!(
            line_at(b"{\"klass\":\"\xff\"}", &defaults(), 0).unwrap_err(),
            "it is not UTF-8 text from byte 11 on"
        );
        assert_eq!(read_line(r#"{"klass":"k","tags":null,"depends":null}"#).unwrap().tags, None);
    }
}
