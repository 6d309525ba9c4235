//! The details of a job beyond Qless, as JSON and for people.

use geartrain::{
    Backoff, DependencyPolicy, JobDetails, OnEnd, OrphanPolicy, Progressed, Timestamp, UniqueKey, base64,
};
use serde::Serialize;
use serde_json::Value;

use crate::payload::bytes_to_json;
use crate::text::{Cell, count};
use crate::timestamp::when;
use crate::view::Number;
use crate::{backoff, duration};

#[derive(Debug, Serialize)]
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

#[derive(Debug, Serialize)]
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

#[derive(Debug, Serialize)]
pub(crate) struct ProgressView {
    part: u64,
    whole: u64,
    percent: u8,
    left: Option<u32>,
}

impl ProgressView {
    pub(crate) fn new(progress: Progressed) -> ProgressView {
        let portion = progress.portion;
        ProgressView {
            part: portion.part(),
            whole: portion.whole(),
            percent: portion.percent(),
            left: progress.seconds_left,
        }
    }
}

/// `30% (3 of 10), 1m30s left`.
pub(crate) fn progress_text(progress: Progressed) -> String {
    let portion = progress.portion;
    let left = match progress.seconds_left {
        Some(seconds) => format!(", {} left", duration::format(f64::from(seconds))),
        None => String::new(),
    };
    format!("{}% ({} of {}){left}", portion.percent(), portion.part(), portion.whole())
}

/// A unique key on one line: its text, or its bytes in base64.
pub(crate) fn key_text(key: &UniqueKey) -> String {
    match std::str::from_utf8(key.as_bytes()) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let bytes = key.as_bytes();
            format!("{} (base64 of {})", base64::encode(bytes), count(bytes.len() as u64, "byte"))
        }
    }
}

/// The lines of a job's card for the details that it has.
pub(crate) fn lines(about: &JobDetails, now: Timestamp) -> Vec<(&'static str, Cell)> {
    let mut lines: Vec<(&'static str, Cell)> = Vec::new();
    let mut add = |label, text: String| lines.push((label, text.into()));
    if let Some(key) = &about.unique {
        add("unique", key_text(key));
    }
    if about.submissions > 1 {
        add("stands for", count(about.submissions, "submission"));
    }
    if about.attached > 0 {
        add("awaited by", about.attached.to_string());
    }
    if about.orphan_policy == OrphanPolicy::WhileAwaited {
        add("lives", "while a client waits for it".to_owned());
    }
    if about.on_end == OnEnd::Forget {
        add("afterwards", "removed when it ends".to_owned());
    }
    if let Some(span) = about.result_ttl {
        add("result", format!("stored for {}", duration::format(span.get())));
    }
    if let Some(expires) = about.expires {
        add("start by", when(expires, now));
    }
    if let Some(span) = about.attempt_max {
        add("timeout", duration::format(span.get()));
    }
    if let Some(deadline) = about.deadline {
        add("deadline", when(deadline, now));
    }
    if let Some(progress) = about.progress {
        add("progress", progress_text(progress));
    }
    if let Some(spec) = &about.backoff {
        add("backoff", backoff::format(spec));
    }
    match (about.crashes, about.crashes_max) {
        (0, None) => {}
        (crashes, Some(max)) => add("crashes", format!("{crashes} of {max}")),
        (crashes, None) => add("crashes", crashes.to_string()),
    }
    if let Some(evidence) = &about.evidence {
        add("evidence", evidence.clone());
    }
    match about.on_dependency_failure {
        DependencyPolicy::Wait => {}
        DependencyPolicy::Fail => add("upstream", "fails if a dependency does".to_owned()),
        DependencyPolicy::Skip => add("upstream", "is cancelled if a dependency fails".to_owned()),
        DependencyPolicy::Run => add("upstream", "runs without a dependency that fails".to_owned()),
    }
    if let Some(context) = &about.traceparent {
        add("trace", context.to_string());
    }
    lines
}

#[cfg(test)]
mod tests {
    use geartrain::{Portion, Seconds};
    use serde_json::json;

    use super::*;
    use crate::text::card;

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

    #[test]
    fn the_card_shows_only_what_a_job_has() {
        let shown = |about: &JobDetails| {
            let mut bytes = Vec::new();
            let lines = lines(about, Timestamp::ZERO);
            card(&mut anstream::StripStream::new(&mut bytes), &lines).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(shown(&JobDetails { submissions: 1, ..JobDetails::default() }), "");
        assert_eq!(
            shown(&everything()),
            "unique      /wA= (base64 of 2 bytes)
stands for  3 submissions
awaited by  2
lives       while a client waits for it
afterwards  removed when it ends
result      stored for 1d1h
start by    in 1h (1970-01-01T01:00:00Z)
timeout     1m30s
deadline    in 1m (1970-01-01T00:01:00Z)
progress    30% (3 of 10), 1m30s left
backoff     10sx3..1h+-0.2
crashes     1 of 4
evidence    signal 9
upstream    is cancelled if a dependency fails
trace       00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
"
        );
    }
}
