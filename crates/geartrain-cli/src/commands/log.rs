//! The result log: what became of every attempt.

use geartrain::log::{Entry, Gap, LogPlace, Query, ResultLog};
use geartrain::{Timestamp, base64};
use serde::Serialize;
use serde_json::value::RawValue;

use super::Done;
use crate::args::LogArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{self, Cell, table};
use crate::view::Number;
use crate::{duration, moment, payload};

/// How many characters of a result a table shows.
const PREVIEW_MAX: usize = 60;

/// The log that somebody named, if they did. An empty name, as of a variable that was not set, is none.
pub(super) fn place(url: Option<String>) -> Result<Option<LogPlace>, Failure> {
    Ok(url.filter(|url| !url.is_empty()).map(|url| url.parse()).transpose()?)
}

/// Shows what the log says.
pub(super) fn read(args: LogArgs, out: &mut Output<'_>) -> Done {
    let place = place(args.result_log)?.ok_or_else(|| {
        Failure::Usage(
            "which result log? Name it with --result-log sqlite:FILE or GEARTRAIN_RESULT_LOG, as the server's".to_owned(),
        )
    })?;
    let log = ResultLog::open_existing(&place)?;
    if args.size {
        return size(&log, out);
    }
    let limit = args.limit.get() as u64;
    let entries = log.entries(&Query {
        queue: args.queue.map(|queue| queue.to_string()),
        klass: args.klass.map(|klass| klass.to_string()),
        jid: args.only.map(|jid| jid.to_string()),
        since: args.since,
        failed: args.failed,
        limit,
    })?;
    // Where the list begins later than was asked for, what is missing before that is of no interest.
    let whole = (entries.len() as u64) < limit;
    let since = if whole { args.since } else { entries.first().and_then(last_moment) };
    let gaps = log.gaps(since)?;
    if entries.is_empty() && gaps.is_empty() && !out.json {
        return Ok(out.remark("the log has nothing of the kind")?);
    }
    let view = LogView {
        attempts: entries.iter().map(EntryView::new).collect(),
        gaps: gaps.iter().map(GapView::new).collect(),
    };
    Ok(out.show(&view, |out| {
        let attempts = entries.iter().map(|entry| (last_moment(entry), entry_row(entry)));
        let gaps = gaps.iter().map(|gap| (Timestamp::new(gap.noticed).ok(), gap_row(gap)));
        let mut rows: Vec<_> = attempts.chain(gaps).collect();
        rows.sort_by(|(one, _), (other, _)| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
        let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
        let heading = ["TIME", "QUEUE", "KLASS", "JID", "ATTEMPT", "WORKER", "TOOK", "OUTCOME", "RESULT"];
        table(out, heading, &rows)
    })?)
}

/// Shows how large the log is.
fn size(log: &ResultLog, out: &mut Output<'_>) -> Done {
    let size = log.size()?;
    let view =
        SizeView { bytes: size.bytes, free_bytes: size.free_bytes, oldest: size.oldest.map(Number::from) };
    Ok(out.show(&view, |out| {
        let (all, free) = (text::size(size.bytes), text::size(size.free_bytes));
        let oldest = size.oldest.map(moment::format).unwrap_or_default();
        table(out, ["SIZE", "FREE", "OLDEST"], &[[Cell::right(all), Cell::right(free), Cell::from(oldest)]])
    })?)
}

fn last_moment(entry: &Entry) -> Option<Timestamp> {
    entry.ended.or(entry.started)
}

fn entry_row(entry: &Entry) -> [Cell; 9] {
    let text = |text: &Option<String>| Cell::from(text.as_deref().unwrap_or(""));
    let outcome = entry.ending.map_or("running", |ending| ending.as_str());
    [
        Cell::from(entry.started.or(entry.ended).map(moment::format).unwrap_or_default()),
        text(&entry.queue),
        text(&entry.klass),
        Cell::from(&entry.jid),
        Cell::right(entry.attempt.map(|attempt| attempt.to_string()).unwrap_or_default()),
        text(&entry.worker),
        Cell::right(entry.took().map(duration::format).unwrap_or_default()),
        Cell::state(outcome),
        Cell::faint(preview(entry)),
    ]
}

fn gap_row(gap: &Gap) -> [Cell; 9] {
    let missing = match gap.missing_max() {
        Some(_) => format!("events between positions {} and {} were missed", gap.after, gap.before),
        None => {
            format!("the queue knew nothing of position {}: it is another one, or was emptied", gap.after)
        }
    };
    let time = Timestamp::new(gap.noticed).map(moment::format).unwrap_or_default();
    let [queue, klass, jid, worker] = [(); 4].map(|()| Cell::from(""));
    let [attempt, took] = [(); 2].map(|()| Cell::right(""));
    [Cell::from(time), queue, klass, jid, attempt, worker, took, Cell::state("gap"), Cell::from(missing)]
}

/// What came out, or what went wrong, on one line and not too long.
fn preview(entry: &Entry) -> String {
    let said = match (&entry.group, &entry.message, &entry.outcome) {
        (Some(group), message, _) => format!("{group}: {}", message.as_deref().unwrap_or("")),
        (None, Some(message), _) => message.clone(),
        (None, None, Some(outcome)) => {
            let bytes = outcome.bytes.bytes();
            let text = match outcome.bytes.text() {
                Some(text) => text.to_owned(),
                None => base64::encode(&bytes[..bytes.len().min(PREVIEW_MAX)]),
            };
            if outcome.code == 0 { text } else { format!("({}) {text}", outcome.code) }
        }
        (None, None, None) => String::new(),
    };
    let mut shown: String = said.chars().take(PREVIEW_MAX).collect();
    if shown.len() < said.len() || entry.is_cut() {
        shown.push('…');
    }
    shown
}

/// The log. These shapes are documented in docs/cli.md.
#[derive(Debug, Serialize)]
struct LogView {
    attempts: Vec<EntryView>,
    gaps: Vec<GapView>,
}

#[derive(Debug, Serialize)]
struct SizeView {
    bytes: u64,
    free_bytes: u64,
    oldest: Option<Number>,
}

#[derive(Debug, Serialize)]
struct EntryView {
    jid: String,
    attempt: Option<u64>,
    queue: Option<String>,
    klass: Option<String>,
    worker: Option<String>,
    started: Option<Number>,
    ended: Option<Number>,
    took: Option<Number>,
    outcome: &'static str,
    group: Option<String>,
    message: Option<String>,
    code: Option<i32>,
    result: Option<Box<RawValue>>,
    result_bytes: u64,
    cut: bool,
    exact: bool,
}

impl EntryView {
    fn new(entry: &Entry) -> EntryView {
        let outcome = entry.outcome.as_ref();
        EntryView {
            jid: entry.jid.clone(),
            attempt: entry.attempt,
            queue: entry.queue.clone(),
            klass: entry.klass.clone(),
            worker: entry.worker.clone(),
            started: entry.started.map(Number::from),
            ended: entry.ended.map(Number::from),
            took: entry.took().map(Number),
            outcome: entry.ending.map_or("running", |ending| ending.as_str()),
            group: entry.group.clone(),
            message: entry.message.clone(),
            code: outcome.map(|outcome| outcome.code),
            result: outcome.map(|outcome| payload::to_json(&outcome.bytes)),
            result_bytes: entry.result_bytes,
            cut: entry.is_cut(),
            exact: entry.exact,
        }
    }
}

/// Positions are texts, because they may be more than a double can count.
#[derive(Debug, Serialize)]
struct GapView {
    after: String,
    before: String,
    noticed: Number,
    missing_max: Option<String>,
}

impl GapView {
    fn new(gap: &Gap) -> GapView {
        GapView {
            after: gap.after.to_string(),
            before: gap.before.to_string(),
            noticed: Number(gap.noticed),
            missing_max: gap.missing_max().map(|missing| missing.to_string()),
        }
    }
}
