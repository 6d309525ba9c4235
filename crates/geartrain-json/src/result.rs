//! Status and results of jobs as JSON.

use geartrain_core::{Jid, JobEnding, JobResult, StatusReply, StoredResult, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::details::ProgressView;
use crate::number::Number;
use crate::payload;

/// A stored result.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StoredResultView {
    jid: String,
    #[serde(flatten)]
    ended: EndedView,
    #[serde(rename = "ended")]
    when: Option<Number>,
    until: Option<Number>,
}

impl StoredResultView {
    /// Of a stored result.
    pub fn new(kept: &StoredResult) -> StoredResultView {
        StoredResultView {
            jid: kept.jid.to_string(),
            ended: EndedView::new(&kept.ending, &kept.result),
            when: Some(kept.ended.into()),
            until: Some(kept.until.into()),
        }
    }

    /// Of a job that has just ended, and whose result is not stored.
    pub fn not_stored(jid: &Jid, ending: &JobEnding, result: &JobResult, now: Timestamp) -> StoredResultView {
        StoredResultView {
            jid: jid.to_string(),
            ended: EndedView::new(ending, result),
            when: Some(now.into()),
            until: None,
        }
    }
}

/// How a job ended, and its result; all `null` for one that has not ended.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct EndedView {
    how: Option<&'static str>,
    group: Option<String>,
    message: Option<String>,
    code: Option<i32>,
    #[schemars(with = "serde_json::Value")]
    result: Option<Box<RawValue>>,
}

impl EndedView {
    /// Of an ending and its result.
    pub fn new(how: &JobEnding, outcome: &JobResult) -> EndedView {
        let (how, group, message) = match how {
            JobEnding::Completed => ("completed", None, None),
            JobEnding::Failed { group, message } => {
                ("failed", Some(group.to_string()), Some(message.clone()))
            }
            JobEnding::Canceled => ("canceled", None, None),
            _ => ("ended", None, None),
        };
        let result = Some(payload::to_json(&outcome.bytes));
        EndedView { how: Some(how), group, message, code: Some(outcome.code), result }
    }
}

/// The status of an unfinished job.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StatusView {
    jid: String,
    queue: String,
    state: &'static str,
    progress: Option<ProgressView>,
    /// Puts that the job stands for.
    submissions: u64,
    /// Clients that wait for it.
    attached: u64,
}

impl StatusView {
    /// Of a reply.
    pub fn new(status: &StatusReply) -> StatusView {
        StatusView {
            jid: status.jid.to_string(),
            queue: status.queue.to_string(),
            state: status.state.as_str(),
            progress: status.progress.map(ProgressView::new),
            submissions: status.submissions,
            attached: status.attached,
        }
    }
}

#[cfg(test)]
mod tests {
    use geartrain_core::Group;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_result_in_json_has_every_key() {
        let stored = StoredResult {
            jid: Jid::new("j1").unwrap(),
            ending: JobEnding::Failed {
                group: Group::new("smtp").unwrap(),
                message: "it said 451".to_owned(),
            },
            result: JobResult { code: 3, bytes: b"\xff\0".into() },
            ended: Timestamp::from(100),
            until: Timestamp::from(200),
        };
        let expected = json!({
            "jid": "j1", "how": "failed", "group": "smtp", "message": "it said 451", "code": 3,
            "result": { "$bytes": "/wA=" }, "ended": 100, "until": 200,
        });
        assert_eq!(json!(StoredResultView::new(&stored)), expected);
        let long = JobResult { code: 0, bytes: "1.000000000000000000001".into() };
        let shown =
            serde_json::to_string(&StoredResultView::new(&StoredResult { result: long, ..stored })).unwrap();
        assert!(shown.contains("\"result\":1.000000000000000000001,"), "{shown}");
    }
}
