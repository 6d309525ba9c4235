//! `geartrain log`: read the result log.

use clap::Args;
use geartrain::results::{LogTarget, ResultLog};
use geartrain::{BadName, Count, Jid, Klass, QueueName, Timestamp, base64};
use geartrain_json::{AttemptView, GapView, LogQuery, LogSizeView, LogView, Number, payload, syntax_error};

use super::Done;
use super::work::own_job;
use crate::failure::Failure;
use crate::http_client::{HttpClient, is_http};
use crate::output::Output;
use crate::text::{self, Cell, table};
use crate::timestamp::Moment;
use crate::values::count;
use crate::{duration, timestamp};

#[derive(Debug, Args)]
#[command(
    override_usage = "geartrain log [OPTIONS]\n       geartrain log [JID] <MESSAGE> [--data <JSON>]",
    after_help = "Examples:
  geartrain log --since 2h --failed
  geartrain log --queue mail --since 2026-04-01T00:00:00Z --limit 1000 --json
  geartrain log JID 'half way' --data '{\"page\":7}'
  geartrain log 'half way'                         # in a program that `geartrain work` started

`geartrain server --result-log sqlite:FILE` writes the result log: every attempt at every job, when it started and
ended, how, and its result. Prints the newest attempts, the latest last. On another machine, --result-log
http://HOST:7410 asks the server."
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
    /// The result log: sqlite:FILE, or http://HOST:7410, the server that writes it
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

/// Where a result log is read.
enum Source {
    /// In a database on this machine.
    File(Box<ResultLog>),
    /// From the server that writes it, over HTTP.
    Server(HttpClient),
}

impl Source {
    fn open(args: &LogArgs, password: Option<String>) -> Result<Source, Failure> {
        if let Some(url) = args.result_log.as_deref().filter(|url| is_http(url)) {
            return Ok(Source::Server(HttpClient::new(url, password)?));
        }
        let target = log_target(args.result_log.clone())?.ok_or_else(|| {
            Failure::Usage(
                "no result log given: name the server's with --result-log sqlite:FILE, or the server with \
                 --result-log http://HOST:7410, or set GEARTRAIN_RESULT_LOG"
                    .to_owned(),
            )
        })?;
        Ok(Source::File(Box::new(ResultLog::open_existing(&target)?)))
    }

    fn attempts(&self, query: &LogQuery) -> Result<LogView, Failure> {
        let client = match self {
            Source::File(log) => return Ok(log.view(query)?),
            Source::Server(client) => client,
        };
        let name = |name: &dyn ToString| Some(name.to_string());
        client.get(
            "v1/log",
            &[
                ("queue", query.queue.as_ref().and_then(|queue| name(queue))),
                ("klass", query.klass.as_ref().and_then(|klass| name(klass))),
                ("jid", query.jid.as_ref().and_then(|jid| name(jid))),
                ("since", query.since.map(|since| since.get().to_string())),
                ("failed", query.failed.then(|| "true".to_owned())),
                ("limit", Some(query.limit.to_string())),
            ],
        )
    }

    fn size(&self) -> Result<LogSizeView, Failure> {
        match self {
            Source::File(log) => Ok(log.size_view()?),
            Source::Server(client) => client.get("v1/log/size", &[]),
        }
    }
}

/// Shows attempts, and gaps between them.
pub(super) fn read(args: LogArgs, password: Option<String>, out: &mut Output<'_>) -> Done {
    let source = Source::open(&args, password)?;
    if args.size {
        return size(&source.size()?, out);
    }
    if let Some(Moment { at, is_phrase: true, .. }) = args.since
        && !out.json
    {
        out.remark(format_args!("since {}", timestamp::when(at, out.now)))?;
    }
    let limit = args.limit.get() as u64;
    let view = source.attempts(&LogQuery {
        queue: args.queue,
        klass: args.klass,
        jid: args.only,
        since: args.since.map(|since| since.at),
        failed: args.failed,
        limit,
    })?;
    if view.attempts.is_empty() && view.gaps.is_empty() && !out.json {
        return Ok(out.remark("no such attempts in the result log")?);
    }
    out.show(&view, |out| {
        let attempts = view.attempts.iter().map(|attempt| (last_time(attempt), attempt_row(attempt)));
        let gaps = view.gaps.iter().map(|gap| (Some(gap.noticed.0), gap_row(gap)));
        let mut rows: Vec<_> = attempts.chain(gaps).collect();
        rows.sort_by(|(one, _), (other, _)| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
        let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
        let heading = ["TIME", "QUEUE", "KLASS", "JID", "ATTEMPT", "WORKER", "TOOK", "OUTCOME", "RESULT"];
        table(out, heading, &rows)
    })?;
    if view.more && !out.json {
        let shown = text::count(limit, "attempt");
        out.remark(format_args!(
            "the newest {shown}; --limit N shows more, --since WHEN those from then on"
        ))?;
    }
    Ok(())
}

/// Shows how large the log is.
fn size(size: &LogSizeView, out: &mut Output<'_>) -> Done {
    Ok(out.show(size, |out| {
        let (all, free) = (text::size(size.bytes), text::size(size.free_bytes));
        let oldest = size.oldest.map(formatted).unwrap_or_default();
        table(out, ["SIZE", "FREE", "OLDEST"], &[[Cell::right(all), Cell::right(free), Cell::from(oldest)]])
    })?)
}

fn formatted(at: Number) -> String {
    Timestamp::new(at.0).map(timestamp::format).unwrap_or_default()
}

fn last_time(attempt: &AttemptView) -> Option<f64> {
    attempt.ended.or(attempt.started).map(|at| at.0)
}

fn attempt_row(attempt: &AttemptView) -> [Cell; 9] {
    let text = |text: &Option<String>| Cell::from(text.as_deref().unwrap_or(""));
    let outcome = attempt.outcome.as_ref();
    [
        Cell::whole(attempt.started.or(attempt.ended).map(formatted).unwrap_or_default()),
        text(&attempt.queue),
        text(&attempt.klass),
        Cell::id(&attempt.jid),
        Cell::right(attempt.attempt.map(|attempt| attempt.to_string()).unwrap_or_default()),
        text(&attempt.worker),
        Cell::right(attempt.took.map(|took| duration::format(took.0)).unwrap_or_default()),
        // Texts have one spelling; the stored word has another.
        Cell::state(if outcome == "canceled" { "cancelled" } else { outcome }),
        Cell::faint(preview(attempt)),
    ]
}

fn gap_row(gap: &GapView) -> [Cell; 9] {
    let missing = match &gap.missing_max {
        Some(_) => format!("events between positions {} and {} are missing", gap.after, gap.before),
        None => {
            format!("the queue did not know position {}: it is another queue, or was emptied", gap.after)
        }
    };
    let [queue, klass, jid, worker] = [(); 4].map(|()| Cell::from(""));
    let [attempt, took] = [(); 2].map(|()| Cell::right(""));
    let time = Cell::whole(formatted(gap.noticed));
    [time, queue, klass, jid, attempt, worker, took, Cell::state("gap"), Cell::from(missing)]
}

/// The result or the failure, shortened to one line.
fn preview(attempt: &AttemptView) -> String {
    let result = attempt.result.as_deref().and_then(|result| payload::from_json(result).ok());
    let text = match (&attempt.group, &attempt.message, result) {
        (Some(group), message, _) => format!("{group}: {}", message.as_deref().unwrap_or("")),
        (None, Some(message), _) => message.clone(),
        (None, None, Some(result)) => {
            let bytes = result.bytes();
            let result = match result.text() {
                Some(text) => text.to_owned(),
                None => base64::encode(&bytes[..bytes.len().min(PREVIEW_MAX)]),
            };
            match attempt.code {
                None | Some(0) => result,
                Some(code) => format!("({code}) {result}"),
            }
        }
        (None, None, None) => String::new(),
    };
    let mut shown: String = text.chars().take(PREVIEW_MAX).collect();
    if shown.len() < text.len() || attempt.cut {
        shown.push('…');
    }
    shown
}
