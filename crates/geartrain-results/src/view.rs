//! Entries of the result log as documents.

use geartrain_json::{AttemptView, GapView, LogQuery, LogRequest, LogSizeView, LogView, Number, payload};

use crate::{Entry, Gap, LogError, Query, ResultLog};

impl ResultLog {
    /// The document that a request asks for, as JSON.
    pub fn answer(&self, request: &LogRequest) -> Result<String, LogError> {
        let document = match request {
            LogRequest::Attempts(query) => serde_json::to_string(&self.view(query)?),
            LogRequest::Size => serde_json::to_string(&self.size_view()?),
        };
        Ok(document.expect("the documents have text keys only"))
    }

    /// The newest attempts that a query selects, and the gaps between them.
    pub fn view(&self, query: &LogQuery) -> Result<LogView, LogError> {
        let mut entries = self.entries(&Query {
            queue: query.queue.as_ref().map(ToString::to_string),
            klass: query.klass.as_ref().map(ToString::to_string),
            jid: query.jid.as_ref().map(ToString::to_string),
            since: query.since,
            failed: query.failed,
            // One more than is shown tells whether there are more. The newest come last.
            limit: query.limit + 1,
        })?;
        let more = entries.len() as u64 > query.limit;
        if more {
            entries.remove(0);
        }
        // If the limit cuts the list off, gaps before its first entry are of no interest.
        let since =
            if more { entries.first().and_then(|entry| entry.ended.or(entry.started)) } else { query.since };
        let gaps = self.gaps(since)?;
        Ok(LogView {
            attempts: entries.iter().map(attempt_view).collect(),
            gaps: gaps.iter().map(gap_view).collect(),
            more,
        })
    }

    /// How large the log is.
    pub fn size_view(&self) -> Result<LogSizeView, LogError> {
        let size = self.size()?;
        Ok(LogSizeView {
            bytes: size.bytes,
            free_bytes: size.free_bytes,
            oldest: size.oldest.map(Number::from),
        })
    }
}

fn attempt_view(entry: &Entry) -> AttemptView {
    let outcome = entry.outcome.as_ref();
    AttemptView {
        jid: entry.jid.clone(),
        attempt: entry.attempt,
        queue: entry.queue.clone(),
        klass: entry.klass.clone(),
        worker: entry.worker.clone(),
        started: entry.started.map(Number::from),
        ended: entry.ended.map(Number::from),
        took: entry.took().map(Number),
        outcome: entry.ending.map_or("running", |ending| ending.as_str()).into(),
        group: entry.group.clone(),
        message: entry.message.clone(),
        code: outcome.map(|outcome| outcome.code),
        result: outcome.map(|outcome| payload::to_json(&outcome.bytes)),
        result_bytes: entry.result_bytes,
        cut: entry.is_cut(),
        exact: entry.exact,
    }
}

fn gap_view(gap: &Gap) -> GapView {
    GapView {
        after: gap.after.to_string(),
        before: gap.before.to_string(),
        noticed: Number(gap.noticed),
        missing_max: gap.missing_max().map(|missing| missing.to_string()),
    }
}
