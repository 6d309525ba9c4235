//! The details of a job beyond Qless as JSON: put options, progress, crashes.

use geartrain_core::{Backoff, JobDetails, OnEnd, OrphanPolicy, Progressed};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::number::Number;
use crate::payload::bytes_to_json;

/// The details of a job beyond Qless.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct JobDetailsView {
    unique: Option<Value>,
    submissions: u64,
    attached: u64,
    lives: &'static str,
    afterwards: &'static str,
    keep_result: Option<Number>,
    expires: Option<Number>,
    timeout: Option<Number>,
    deadline: Option<Number>,
    backoff: Option<BackoffView>,
    crashes_max: Option<u32>,
    crashes: u32,
    evidence: Option<String>,
    progress: Option<ProgressView>,
    on_dependency_failure: &'static str,
    traceparent: Option<String>,
}

impl JobDetailsView {
    /// Of the details.
    pub(crate) fn new(about: &JobDetails) -> JobDetailsView {
        JobDetailsView {
            unique: about.unique.as_ref().map(|key| bytes_to_json(key.as_bytes())),
            submissions: about.submissions,
            attached: about.attached,
            lives: match about.orphan_policy {
                OrphanPolicy::Always => "always",
                OrphanPolicy::WhileAwaited => "while-awaited",
            },
            afterwards: match about.on_end {
                OnEnd::Keep => "keep",
                OnEnd::Forget => "forget",
            },
            keep_result: about.result_ttl.map(Number::from),
            expires: about.expires.map(Number::from),
            timeout: about.attempt_max.map(Number::from),
            deadline: about.deadline.map(Number::from),
            backoff: about.backoff.as_ref().map(BackoffView::new),
            crashes_max: about.crashes_max,
            crashes: about.crashes,
            evidence: about.evidence.clone(),
            progress: about.progress.map(ProgressView::new),
            on_dependency_failure: about.on_dependency_failure.as_str(),
            traceparent: about.traceparent.as_ref().map(ToString::to_string),
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
struct BackoffView {
    first: Number,
    factor: Number,
    max: Number,
    jitter: Number,
}

impl BackoffView {
    fn new(backoff: &Backoff) -> BackoffView {
        let (first, factor, max, jitter) = backoff.parts();
        BackoffView { first: first.into(), factor: Number(factor), max: max.into(), jitter: Number(jitter) }
    }
}

/// The progress of an attempt.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProgressView {
    part: u64,
    whole: u64,
    percent: u8,
    left: Option<u32>,
}

impl ProgressView {
    /// Of a progress report.
    pub fn new(progress: Progressed) -> ProgressView {
        let portion = progress.portion;
        ProgressView {
            part: portion.part(),
            whole: portion.whole(),
            percent: portion.percent(),
            left: progress.seconds_left,
        }
    }
}

#[cfg(test)]
mod tests {
    use geartrain_core::{DependencyPolicy, Portion, Seconds, Timestamp, UniqueKey};
    use serde_json::json;

    use super::*;

    fn everything() -> JobDetails {
        JobDetails {
            unique: Some(UniqueKey::new(b"\xff\0").unwrap()),
            submissions: 3,
            attached: 2,
            orphan_policy: OrphanPolicy::WhileAwaited,
            on_end: OnEnd::Forget,
            result_ttl: Some(Seconds::from(90_000)),
            expires: Some(Timestamp::from(3_600)),
            attempt_max: Some(Seconds::from(90)),
            deadline: Some(Timestamp::from(60)),
            backoff: Some(Backoff::exponential(Seconds::from(10), 3.0, Seconds::from(3_600), 0.2).unwrap()),
            crashes_max: Some(4),
            crashes: 1,
            evidence: Some("signal 9".to_owned()),
            progress: Some(Progressed { portion: Portion::new(3, 10).unwrap(), seconds_left: Some(90) }),
            metadata: None,
            on_dependency_failure: DependencyPolicy::Skip,
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap()),
        }
    }

    #[test]
    fn json_has_every_key() {
        assert_eq!(
            json!(JobDetailsView::new(&everything())),
            json!({
                "unique": { "$bytes": "/wA=" }, "submissions": 3, "attached": 2, "lives": "while-awaited",
                "afterwards": "forget", "keep_result": 90_000, "expires": 3_600, "timeout": 90, "deadline": 60,
                "backoff": { "first": 10, "factor": 3, "max": 3_600, "jitter": 0.2 },
                "crashes_max": 4, "crashes": 1, "evidence": "signal 9",
                "progress": { "part": 3, "whole": 10, "percent": 30, "left": 90 },
                "on_dependency_failure": "skip",
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            })
        );
        let text = JobDetails { unique: Some(UniqueKey::new("7").unwrap()), ..JobDetails::default() };
        assert_eq!(json!(JobDetailsView::new(&text))["unique"], "7");
    }
}
