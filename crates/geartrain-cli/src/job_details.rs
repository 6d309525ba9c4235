//! The details of a job beyond Qless, for people.

use geartrain::{
    DependencyPolicy, JobDetails, OnEnd, OrphanPolicy, Progressed, Timestamp, UniqueKey, base64,
};

use crate::text::{Cell, count};
use crate::timestamp::when;
use crate::{backoff, duration};

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
    use geartrain::{Backoff, Portion, Seconds};

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
