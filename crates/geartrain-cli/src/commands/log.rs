//! `geartrain log`: read the result log.

use geartrain::results::{Entry, Gap, LogTarget, Query, ResultLog};
use geartrain::{Timestamp, base64};
use serde::Serialize;
use serde_json::value::RawValue;

use super::Done;
use super::work::own_job;
use crate::batch::syntax_error;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{self, Cell, table};
use crate::timestamp::Moment;
use crate::values::count;
use crate::view::Number;
use crate::{duration, payload, timestamp};
use clap::Args;
use geartrain::{BadName, Count, Jid, Klass, QueueName};

#[derive(Debug, Args)]
#[command(
    override_usage = "geartrain log [OPTIONS]\n       geartrain log [JID] <MESSAGE> [--data <JSON>]",
    after_help = "Examples:
  geartrain log --since 2h --failed
  geartrain log --queue mail --since 2026-04-01T00:00:00Z --limit 1000 --json
  geartrain log JID 'half way' --data '{\"page\":7}'
  geartrain log 'half way'                         # in a program that `geartrain work` started

`geartrain server --result-log sqlite:FILE` writes the result log: every attempt at every job, when it started and
ended, how, and its result. Prints the newest attempts, the latest last."
)]
pub(crate) struct LogArgs {
    /// The job whose history to add a message to [default: the job of this program, under `geartrain work`]
    pub(super) jid: Option<String>,
    /// The message
    pub(super) message: Option<String>,
    /// A JSON object to store with the message
    #[arg(long, value_name = "JSON", value_parser = json_object, requires = "jid")]
    pub(super) data: Option<String>,
    /// Only attempts in this queue
    #[arg(long, conflicts_with = "jid")]
    queue: Option<QueueName>,
    /// Only attempts at jobs of this klass
    #[arg(long, conflicts_with = "jid")]
    klass: Option<Klass>,
    /// Only attempts at this job
    #[arg(long = "jid", value_name = "JID", conflicts_with = "jid")]
    only: Option<Jid>,
    /// Only attempts that ended, or started, since a time, like yesterday, or within a duration like 2h
    #[arg(long, value_name = "WHEN", value_parser = timestamp::parse_ago, conflicts_with = "jid")]
    since: Option<Moment>,
    /// Only attempts that failed, were retried, lost their lock, timed out, crashed, or expired
    #[arg(long, conflicts_with = "jid")]
    failed: bool,
    /// How many attempts to show
    #[arg(long, value_name = "N", value_parser = count, default_value = "25", conflicts_with = "jid")]
    limit: Count,
    /// Show only the size of the log
    #[arg(long, conflicts_with_all = ["jid", "queue", "klass", "only", "since", "failed"])]
    size: bool,
    /// The result log: sqlite:FILE
    #[arg(long, value_name = "URL", env = "GEARTRAIN_RESULT_LOG", hide_env_values = true)]
    result_log: Option<String>,
}

/// A message for the history of a job, and details of it.
pub(super) struct Message {
    pub(super) jid: Jid,
    pub(super) text: String,
    pub(super) data: Option<String>,
}

impl LogArgs {
    /// The message to add; none if the result log is to be read.
    pub(super) fn message(&self) -> Result<Option<Message>, Failure> {
        let (jid, text) = match (&self.jid, &self.message) {
            (None, _) => return Ok(None),
            (Some(jid), Some(text)) => {
                (jid.parse().map_err(|error: BadName| Failure::Usage(error.to_string()))?, text)
            }
            // One word is the message, if the job is known.
            (Some(text), None) => match own_job() {
                Some((jid, _)) => (jid, text),
                None => {
                    let why = "give a job id and a message; to read the result log, use --jid JID";
                    return Err(Failure::Usage(why.to_owned()));
                }
            },
        };
        Ok(Some(Message { jid, text: text.clone(), data: self.data.clone() }))
    }
}

fn json_object(text: &str) -> Result<String, String> {
    match serde_json::from_str(text) {
        Ok(serde_json::Value::Object(_)) => Ok(text.to_owned()),
        Ok(_) => Err("it is JSON, but not an object like {\"key\":\"value\"}".to_owned()),
        Err(error) => Err(syntax_error(&error, text)),
    }
}

/// How many characters of a result a table shows.
const PREVIEW_MAX: usize = 60;

/// The result log of an option. An empty URL, as from an empty environment variable, is none.
pub(super) fn log_target(url: Option<String>) -> Result<Option<LogTarget>, Failure> {
    Ok(url.filter(|url| !url.is_empty()).map(|url| url.parse()).transpose()?)
}

/// Shows attempts, and gaps between them.
pub(super) fn read(args: LogArgs, out: &mut Output<'_>) -> Done {
    let target = log_target(args.result_log)?.ok_or_else(|| {
        Failure::Usage(
            "no result log given: use the server's --result-log sqlite:FILE, or GEARTRAIN_RESULT_LOG"
                .to_owned(),
        )
    })?;
    let log = ResultLog::open_existing(&target)?;
    if args.size {
        return size(&log, out);
    }
    if let Some(Moment { at, is_phrase: true, .. }) = args.since
        && !out.json
    {
        out.remark(format_args!("since {}", timestamp::when(at, out.now)))?;
    }
    let limit = args.limit.get() as u64;
    let since = args.since.map(|since| since.at);
    let mut entries = log.entries(&Query {
        queue: args.queue.map(|queue| queue.to_string()),
        klass: args.klass.map(|klass| klass.to_string()),
        jid: args.only.map(|jid| jid.to_string()),
        since,
        failed: args.failed,
        // One more than is shown tells whether there are more. The newest come last.
        limit: limit + 1,
    })?;
    let whole = entries.len() as u64 <= limit;
    if !whole {
        entries.remove(0);
    }
    // If the limit cuts the list off, gaps before its first entry are of no interest.
    let since = if whole { since } else { entries.first().and_then(last_time) };
    let gaps = log.gaps(since)?;
    if entries.is_empty() && gaps.is_empty() && !out.json {
        return Ok(out.remark("no such attempts in the result log")?);
    }
    let view = LogView {
        attempts: entries.iter().map(EntryView::new).collect(),
        gaps: gaps.iter().map(GapView::new).collect(),
        more: !whole,
    };
    out.show(&view, |out| {
        let attempts = entries.iter().map(|entry| (last_time(entry), entry_row(entry)));
        let gaps = gaps.iter().map(|gap| (Timestamp::new(gap.noticed).ok(), gap_row(gap)));
        let mut rows: Vec<_> = attempts.chain(gaps).collect();
        rows.sort_by(|(one, _), (other, _)| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
        let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
        let heading = ["TIME", "QUEUE", "KLASS", "JID", "ATTEMPT", "WORKER", "TOOK", "OUTCOME", "RESULT"];
        table(out, heading, &rows)
    })?;
    if !whole && !out.json {
        let shown = text::count(limit, "attempt");
        out.remark(format_args!(
            "the newest {shown}; --limit N shows more, --since WHEN those from then on"
        ))?;
    }
    Ok(())
}

/// Shows how large the log is.
fn size(log: &ResultLog, out: &mut Output<'_>) -> Done {
    let size = log.size()?;
    let view =
        SizeView { bytes: size.bytes, free_bytes: size.free_bytes, oldest: size.oldest.map(Number::from) };
    Ok(out.show(&view, |out| {
        let (all, free) = (text::size(size.bytes), text::size(size.free_bytes));
        let oldest = size.oldest.map(timestamp::format).unwrap_or_default();
        table(out, ["SIZE", "FREE", "OLDEST"], &[[Cell::right(all), Cell::right(free), Cell::from(oldest)]])
    })?)
}

fn last_time(entry: &Entry) -> Option<Timestamp> {
    entry.ended.or(entry.started)
}

fn entry_row(entry: &Entry) -> [Cell; 9] {
    let text = |text: &Option<String>| Cell::from(text.as_deref().unwrap_or(""));
    let outcome = entry.ending.map_or("running", |ending| ending.as_str());
    [
        Cell::whole(entry.started.or(entry.ended).map(timestamp::format).unwrap_or_default()),
        text(&entry.queue),
        text(&entry.klass),
        Cell::id(&entry.jid),
        Cell::right(entry.attempt.map(|attempt| attempt.to_string()).unwrap_or_default()),
        text(&entry.worker),
        Cell::right(entry.took().map(duration::format).unwrap_or_default()),
        // Texts have one spelling; the stored word has another.
        Cell::state(if outcome == "canceled" { "cancelled" } else { outcome }),
        Cell::faint(preview(entry)),
    ]
}

fn gap_row(gap: &Gap) -> [Cell; 9] {
    let missing = match gap.missing_max() {
        Some(_) => format!("events between positions {} and {} are missing", gap.after, gap.before),
        None => {
            format!("the queue did not know position {}: it is another queue, or was emptied", gap.after)
        }
    };
    let time = Timestamp::new(gap.noticed).map(timestamp::format).unwrap_or_default();
    let [queue, klass, jid, worker] = [(); 4].map(|()| Cell::from(""));
    let [attempt, took] = [(); 2].map(|()| Cell::right(""));
    [Cell::whole(time), queue, klass, jid, attempt, worker, took, Cell::state("gap"), Cell::from(missing)]
}

/// The result or the failure, shortened to one line.
fn preview(entry: &Entry) -> String {
    let text = match (&entry.group, &entry.message, &entry.outcome) {
        (Some(group), message, _) => format!("{group}: {}", message.as_deref().unwrap_or("")),
        (None, Some(message), _) => message.clone(),
        (None, None, Some(outcome)) => {
            let bytes = outcome.bytes.bytes();
            let result = match outcome.bytes.text() {
                Some(text) => text.to_owned(),
                None => base64::encode(&bytes[..bytes.len().min(PREVIEW_MAX)]),
            };
            if outcome.code == 0 { result } else { format!("({}) {result}", outcome.code) }
        }
        (None, None, None) => String::new(),
    };
    let mut shown: String = text.chars().take(PREVIEW_MAX).collect();
    if shown.len() < text.len() || entry.is_cut() {
        shown.push('…');
    }
    shown
}

/// The reply. docs/cli.md documents these shapes.
#[derive(Debug, Serialize)]
struct LogView {
    attempts: Vec<EntryView>,
    gaps: Vec<GapView>,
    /// Whether there are older attempts than those shown.
    more: bool,
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

/// Positions are strings, because they may exceed what a double holds exactly.
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
