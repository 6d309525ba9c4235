//! The result log: what a request asks of it, and its documents.

use std::borrow::Cow;

use geartrain_core::schedule::parse_past;
use geartrain_core::{Jid, Klass, QueueName, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::object::of_key;
use crate::time::{EXAMPLES, Moment, Times, duration_with_unit, parse};
use crate::{FieldInfo, FieldKind, Number, Object, OperationError};

/// How many attempts are shown unless given, and at most.
const ATTEMPTS_DEFAULT: u64 = 25;
const ATTEMPTS_MAX: u64 = 1_000;

/// The fields of a request for attempts.
pub const LOG_FIELDS: &[FieldInfo] = &[
    FieldInfo::new("queue", FieldKind::Name, "Only attempts in this queue"),
    FieldInfo::new("klass", FieldKind::Name, "Only attempts at jobs of this klass"),
    FieldInfo::new("jid", FieldKind::Name, "Only attempts at this job"),
    FieldInfo::new(
        "since",
        FieldKind::Past,
        "Only attempts that ended, or started, since a time, or within a duration such as 2h",
    ),
    FieldInfo::new(
        "failed",
        FieldKind::Flag,
        "Only attempts that failed, were retried, lost their lock, timed out, crashed, or expired",
    ),
    FieldInfo::new(
        "limit",
        FieldKind::Whole(1, ATTEMPTS_MAX),
        "How many at most, the newest; 25 by default, up to 1000",
    ),
];

/// What a request asks of the result log.
#[derive(Debug, Clone, PartialEq)]
pub enum LogRequest {
    /// The newest attempts that a query selects.
    Attempts(LogQuery),
    /// How large it is.
    Size,
}

/// A query for attempts; every given condition must hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LogQuery {
    /// Only this queue.
    pub queue: Option<QueueName>,
    /// Only this klass.
    pub klass: Option<Klass>,
    /// Only this job.
    pub jid: Option<Jid>,
    /// Only attempts that ended, or started if they still run, at this time or later.
    pub since: Option<Timestamp>,
    /// Only attempts that went wrong.
    pub failed: bool,
    /// How many at most.
    pub limit: u64,
}

impl LogRequest {
    /// Reads the fields of a request for attempts.
    pub fn read(object: &Object<'_>, times: &Times) -> Result<LogRequest, OperationError> {
        let limit = object.whole("limit")?.unwrap_or(ATTEMPTS_DEFAULT);
        if !(1..=ATTEMPTS_MAX).contains(&limit) {
            return Err(of_key("limit")(format!("it must be from 1 to {ATTEMPTS_MAX}")));
        }
        Ok(LogRequest::Attempts(LogQuery {
            queue: object.name("queue")?,
            klass: object.name("klass")?,
            jid: object.name("jid")?,
            since: object.parsed("since", |text| times.ago(text))?.map(|since| since.at),
            failed: object.flag("failed")?,
            limit,
        }))
    }
}

impl Times {
    /// Parses a time in the past: as [`parse`] does, a duration before now, with its unit, or a phrase.
    pub fn ago(&self, text: &str) -> Result<Moment, String> {
        if let Ok(at) = parse(text) {
            return Ok(Moment::exact(at));
        }
        if let Some(span) = duration_with_unit(text) {
            return Ok(Moment::exact(self.now - span));
        }
        let at = parse_past(text, self.now, &(self.zones)()?.once).map_err(|why| {
            format!("{text:?} is not a time: {why}; {EXAMPLES}, or how long ago it was, like 2h")
        })?;
        Ok(Moment::of_phrase(at))
    }
}

/// Attempts, the newest last.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct LogView {
    /// The attempts.
    pub attempts: Vec<AttemptView>,
    /// Gaps in the log.
    pub gaps: Vec<GapView>,
    /// Whether there are older attempts than those shown.
    pub more: bool,
}

/// One attempt at a job, or the end of a job that no worker held.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct AttemptView {
    /// The id of the job.
    pub jid: String,
    /// Counted from 1; null if no worker held the job when it ended.
    pub attempt: Option<u64>,
    /// The queue, if known.
    pub queue: Option<String>,
    /// The klass, if known.
    pub klass: Option<String>,
    /// The worker.
    pub worker: Option<String>,
    /// When it started.
    pub started: Option<Number>,
    /// When it ended.
    pub ended: Option<Number>,
    /// Seconds.
    pub took: Option<Number>,
    /// How it ended, or `running`.
    pub outcome: Cow<'static, str>,
    /// The group of the failure.
    pub group: Option<String>,
    /// The message of the failure.
    pub message: Option<String>,
    /// The code of the result.
    pub code: Option<i32>,
    /// The result, as JSON if it is JSON.
    #[schemars(with = "serde_json::Value")]
    pub result: Option<Box<RawValue>>,
    /// Its full length.
    pub result_bytes: u64,
    /// Whether the result is cut off.
    pub cut: bool,
    /// Whether both times are the queue's. If not, one of them is when the log received the event.
    pub exact: bool,
}

/// Events that the log has not received. Positions are strings, because they may exceed what a double holds.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct GapView {
    /// The last position before the gap.
    pub after: String,
    /// The first position after it.
    pub before: String,
    /// When it was noticed.
    pub noticed: Number,
    /// How many events are missing at most; null if the queue is another one.
    pub missing_max: Option<String>,
}

/// How large the result log is.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct LogSizeView {
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes in it that are free.
    pub free_bytes: u64,
    /// When the oldest attempt ended.
    pub oldest: Option<Number>,
}
