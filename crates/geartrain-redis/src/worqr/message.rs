//! The `done` message: who finished which task, and the result.

use geartrain_core::{Group, JobEnding, JobResult, Payload};
use serde_json::value::RawValue;

/// The group of failures, which have none in Worqr.
const FAILED: &str = "worqr";

/// A message as it is published. The order of the keys is that of other workers.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Published<'a> {
    worker_id: &'a str,
    task: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
}

/// A message as it is read. That of a process which was taken away has no task, and one without a result may
/// have had any that JavaScript takes for false.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Done<'a> {
    #[serde(default)]
    pub(super) worker_id: Option<String>,
    #[serde(default)]
    pub(super) task: Option<String>,
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
}

/// How a task ended, as its worker tells.
pub(super) enum Finish<'a> {
    Completed(Option<&'a JobResult>),
    Failed(&'a str),
    Cancelled,
}

/// The message of a finished task. Bytes that are no text become replacement characters, because JSON has only
/// text.
pub(super) fn done(worker: &str, task: &[u8], finish: &Finish<'_>) -> String {
    let result = match finish {
        Finish::Completed(result) => result.and_then(result_text),
        Finish::Failed(error) => Some(serde_json::json!({ "error": error }).to_string()),
        Finish::Cancelled => Some(r#"{"cancelled":true}"#.to_owned()),
    };
    let result = result.map(|text| RawValue::from_string(text).expect("it is JSON"));
    let task = &text_of(task);
    let message = Published { worker_id: worker, task, result: result.as_deref() };
    serde_json::to_string(&message).expect("texts are JSON")
}

/// A task as messages have it.
pub(super) fn text_of(task: &[u8]) -> String {
    String::from_utf8_lossy(task).into_owned()
}

/// A result as JSON: as it is if it is an object, an array, a number or a word of JSON, and otherwise as a text.
fn result_text(result: &JobResult) -> Option<String> {
    let bytes = result.bytes.bytes();
    if bytes.is_empty() {
        return None;
    }
    let is_json = |text: &str| {
        !text.starts_with('"')
            && serde_json::from_str::<&RawValue>(text).is_ok_and(|value| value.get() == text)
    };
    let text = String::from_utf8_lossy(bytes);
    Some(if is_json(&text) { text.into_owned() } else { serde_json::json!(text).to_string() })
}

impl<'a> Done<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Option<Done<'a>> {
        // serde reads a struct from an array too.
        let text = std::str::from_utf8(message).ok().filter(|text| text.trim_start().starts_with('{'))?;
        serde_json::from_str(text).ok()
    }

    /// How the task ended, and its result.
    pub(super) fn ending(&self) -> (JobEnding, JobResult) {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Known {
            error: Option<String>,
            cancelled: Option<bool>,
        }
        let Some(result) = self.result else { return (JobEnding::Completed, JobResult::default()) };
        let object = result.get().starts_with('{').then_some(result.get());
        let known = object.and_then(|object| serde_json::from_str::<Known>(object).ok());
        let ending = match known {
            Some(Known { error: Some(message), cancelled: None }) => {
                JobEnding::Failed { group: group(), message }
            }
            Some(Known { error: None, cancelled: Some(true) }) => JobEnding::Canceled,
            _ => JobEnding::Completed,
        };
        let bytes = match serde_json::from_str::<String>(result.get()) {
            Ok(text) => Payload::from(text),
            Err(_) => Payload::from(result.get()),
        };
        (ending, JobResult { code: 0, bytes })
    }
}

pub(super) fn group() -> Group {
    Group::new(FAILED).expect("it is a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(bytes: &[u8]) -> JobResult {
        JobResult { code: 0, bytes: bytes.into() }
    }

    #[test]
    fn a_result_is_json_or_a_text_and_comes_back_as_it_was() {
        for (bytes, expected) in [
            (&b"{\"a\": 1}"[..], r#"{"workerId":"w","task":"t","result":{"a": 1}}"#),
            (b"7", r#"{"workerId":"w","task":"t","result":7}"#),
            (b"", r#"{"workerId":"w","task":"t"}"#),
            (b"0", r#"{"workerId":"w","task":"t","result":0}"#),
            (b"caf\xc3\xa9", "{\"workerId\":\"w\",\"task\":\"t\",\"result\":\"caf\u{e9}\"}"),
            (b"\"quoted\"", r#"{"workerId":"w","task":"t","result":"\"quoted\""}"#),
            (b" 7", r#"{"workerId":"w","task":"t","result":" 7"}"#),
        ] {
            let message = done("w", b"t", &Finish::Completed(Some(&result(bytes))));
            assert_eq!(message, expected);
            let read = Done::parse(message.as_bytes()).expect("it was written so");
            assert_eq!((read.worker_id.as_deref(), read.task.as_deref()), (Some("w"), Some("t")));
            assert_eq!(read.ending(), (JobEnding::Completed, result(bytes)));
        }
    }

    #[test]
    fn errors_and_cancellations_are_told_by_their_results() {
        let failed = done("w", b"\xff", &Finish::Failed("no paper"));
        assert_eq!(failed, "{\"workerId\":\"w\",\"task\":\"\u{fffd}\",\"result\":{\"error\":\"no paper\"}}");
        let ending = Done::parse(failed.as_bytes()).expect("it was written so").ending().0;
        assert_eq!(ending, JobEnding::Failed { group: group(), message: "no paper".to_owned() });
        let cancelled = done("w", b"", &Finish::Cancelled);
        assert_eq!(cancelled, r#"{"workerId":"w","task":"","result":{"cancelled":true}}"#);
        let ending = Done::parse(cancelled.as_bytes()).expect("it was written so").ending().0;
        assert_eq!(ending, JobEnding::Canceled);
    }

    #[test]
    fn messages_of_other_workers_are_read() {
        for (message, task, ending) in [
            (r#"{"workerId":"w"}"#, None, JobEnding::Completed),
            (r#"{"task":"t","result":{"error":"x","more":1}}"#, Some("t"), JobEnding::Completed),
            (r#"{"task":"t","result":{"cancelled":false}}"#, Some("t"), JobEnding::Completed),
            (r#"{"task":"t","extra":[],"result":[1]}"#, Some("t"), JobEnding::Completed),
        ] {
            let read = Done::parse(message.as_bytes()).expect("it is an object");
            assert_eq!((read.task.as_deref(), read.ending().0), (task, ending), "{message}");
        }
        for bad in [&b""[..], b"[]", b"7", b"{", b"\xff", br#"{"task":7}"#] {
            assert!(Done::parse(bad).is_none());
        }
    }
}
