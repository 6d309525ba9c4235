//! `geartrain put`: submit one job, many, or a recurring one.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use geartrain::{
    Client, DependencyPolicy, Existing, Jid, Payload, Period, PeriodicTemplate, Put, PutOptions, PutReply,
    RESULT_TTL_DEFAULT, Seconds,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::periodic::Recurrence;
use super::wait::put_and_wait;
use super::{Done, Due, list, new_jid, periodic, workkit};
use crate::batch::{BadLines, Batch, OnBad};
use crate::failure::Failure;
use crate::output::Output;
use crate::payload::Source;
use crate::text;
use crate::timestamp::Moment;
use crate::values::{Delay, policy, priority, span, unique_key};
use crate::{backoff, timestamp, values};
use clap::Args;
use geartrain::{Backoff, Klass, Priority, QueueName, Tag, Traceparent, UniqueKey};
use geartrain_json::put::{Defaults, outcome};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(
    override_usage = "geartrain put [OPTIONS] <QUEUE> <KLASS> [PAYLOAD]
       geartrain put [QUEUE] [KLASS] --batch <FILE> [--check | --skip-bad <FILE>] [--from-line <N>]
       geartrain put --resubmit [--all] --record <FILE>",
    after_help = r#"Examples:
  geartrain put mail welcome '{"to":"a"}' --priority 5 --tag new
  geartrain put mail welcome @letter.json --in 1h30m
  geartrain put mail welcome @letter.json --at "7pm tomorrow" --zone Europe/Berlin
  geartrain put reports nightly --every 1d --at 2026-04-01T03:00:00Z
  geartrain put reports nightly --cron "0 3 * * *" --zone Europe/Berlin --timeout 10m
  geartrain put mail --batch jobs.ndjson
  geartrain put reports monthly --unique 2026-04 --timeout 10m --backoff 10s..1h --keep-result
  geartrain put thumbnails make @cat.jpg --wait 30s > cat-small.jpg
  geartrain put --resubmit --record jobs.record --url gearman://a,b    # a is lost: its jobs go to b

To submit a payload that begins with @, or is just -, pass it through standard input.

When a job of --depends fails, this one waits until that job is requeued and complete. With
--on-dependency-failure fail it fails too, into the group upstream-QUEUE; with skip it is cancelled, and the
jobs that depend on it depend on the failed one; with run it starts when its other dependencies are complete.

A backoff is a fixed delay like 30s, or a range: 10s..1h doubles from 10s up to 1h. 10sx3..1h triples. A suffix
+-0.2 adds jitter: each delay is up to a fifth longer or shorter, at random.

--batch takes one JSON object per line. Every key but klass is optional, and so is klass if KLASS is given:
  {"klass":"welcome","payload":{"to":"a"},"priority":5,"in":"1h","tags":["new"],"jid":"j1"}
  keys: queue klass payload priority in at tags depends retries jid replace
        unique timeout expires backoff crashes roll_call keep_result on_dependency_failure traceparent
Empty lines, and lines that begin with #, are skipped. A payload that is a JSON string is stored as its text,
{"$bytes":"<base64>"} as those bytes, and any other JSON as it is written."#
)]
pub(crate) struct PutArgs {
    /// The queue to submit to
    #[arg(required_unless_present_any = ["batch", "resubmit"])]
    queue: Option<QueueName>,
    /// The kind of job: the name of the code that runs it
    #[arg(required_unless_present_any = ["batch", "resubmit"])]
    klass: Option<Klass>,
    /// The payload: text, @FILE, or - for standard input [default: empty]
    #[arg(conflicts_with = "batch", allow_negative_numbers = true)]
    payload: Option<Source>,
    #[command(flatten)]
    when: WhenArgs,
    /// Submit a recurring job, at this interval; prints its jid
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = values::length,
        conflicts_with_all = ["batch", "depends", "replace", "on_dependency_failure", "wait"]
    )]
    every: Option<Duration>,
    /// Submit a recurring job, by a cron expression or a phrase such as "weekdays at 9:00"; prints its jid
    #[arg(
        long,
        value_name = "WHEN",
        value_parser = periodic::recurrence,
        conflicts_with_all =
            ["batch", "depends", "replace", "on_dependency_failure", "every", "delay", "at", "wait"]
    )]
    cron: Option<Recurrence>,
    /// Priority: higher runs first [default: 0]
    #[arg(
        long,
        value_name = "N",
        value_parser = priority,
        allow_negative_numbers = true,
        conflicts_with = "batch"
    )]
    priority: Option<Priority>,
    /// A tag to find the job by; may be repeated
    #[arg(long = "tag", value_name = "TAG", conflicts_with = "batch")]
    tags: Vec<Tag>,
    /// A job that must be complete before this one runs; may be repeated
    #[arg(long, value_name = "JID", conflicts_with = "batch")]
    depends: Vec<Jid>,
    /// How many times the job may be retried [default: 5]
    #[arg(long, value_name = "N", conflicts_with = "batch")]
    retries: Option<u32>,
    /// The job id; an existing job with this id is left unchanged [default: a new id]
    #[arg(long, conflicts_with = "batch")]
    jid: Option<Jid>,
    /// With --jid: submit an existing job again, whatever its state
    #[arg(long, requires = "jid", conflicts_with = "batch")]
    replace: bool,
    #[command(flatten)]
    options: OptionArgs,
    /// Wait for the result and print it; without a duration, wait for ever
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = values::length,
        num_args = 0..=1,
        conflicts_with = "batch"
    )]
    wait: Option<Option<Duration>>,
    /// Submit many jobs: one JSON object per line of FILE, or of standard input if FILE is -
    #[arg(long, value_name = "FILE", conflicts_with_all = ["delay", "at"])]
    batch: Option<PathBuf>,
    /// With --batch: check every line, and submit nothing
    #[arg(long, requires = "batch", conflicts_with_all = ["skip_bad", "record"])]
    pub(super) check: bool,
    /// With --batch: submit the valid lines, and append the others to FILE with what is wrong
    #[arg(long, value_name = "FILE", requires = "batch")]
    skip_bad: Option<PathBuf>,
    /// With --batch: start at line N
    #[arg(long, value_name = "N", requires = "batch", value_parser = values::limit, default_value = "1")]
    from_line: u64,
    /// Make this a job of its own, even if the schedule has an equal one in this second
    #[arg(long, help_heading = "WorkKit schedules")]
    pub(super) nonce: bool,
    /// Whether the time of --at is sent as it is: a delay would be rounded up to another second.
    #[arg(skip)]
    pub(super) sends_time: bool,
    /// Record each job in FILE before it is sent, until it is known to be done
    #[arg(long, value_name = "FILE", help_heading = "Gearman servers")]
    pub(super) record: Option<PathBuf>,
    /// Resubmit the recorded jobs that were lost with their server
    #[arg(
        long,
        conflicts_with_all = [
            "queue", "klass", "payload", "batch", "every", "cron", "wait", "jid", "delay", "at", "priority",
            "tags", "depends", "retries", "unique", "timeout", "expires", "backoff", "crashes",
            "roll_call", "keep_result", "on_dependency_failure", "traceparent"
        ],
        help_heading = "Gearman servers"
    )]
    pub(super) resubmit: bool,
    /// With --resubmit: also jobs that a reachable server does not know
    #[arg(long, requires = "resubmit", help_heading = "Gearman servers")]
    pub(super) all: bool,
}

/// Put options beyond Qless.
#[derive(Debug, Default, Args)]
struct OptionArgs {
    /// Deduplicate: join the unfinished job of the queue that has this key, if there is one
    #[arg(long, value_name = "KEY", value_parser = unique_key(), conflicts_with = "batch")]
    unique: Option<UniqueKey>,
    /// How long one attempt may take, regardless of heartbeats
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = span,
        allow_negative_numbers = true,
        conflicts_with = "batch"
    )]
    timeout: Option<Seconds>,
    /// Fail the job if it has not started by then: 1h from now, a time as in --at, or 1h after each recurring run
    #[arg(
        long,
        value_name = "WHEN",
        value_parser = timestamp::parse_ahead,
        allow_negative_numbers = true,
        conflicts_with = "batch"
    )]
    expires: Option<Moment>,
    /// The delay before a retry: 30s, or growing as in 10s..1h [default: 1s..1m+-0.25; none after a timeout]
    #[arg(long, value_name = "SPEC", value_parser = backoff::parse, conflicts_with = "batch")]
    backoff: Option<Backoff>,
    /// Fail the job after it was lost with this many workers [default: 3, or the option crashes-max]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "batch"
    )]
    crashes: Option<u32>,
    /// What to do when a job of --depends fails: wait, fail, skip (cancel it) or run [default: wait]
    #[arg(long, value_name = "POLICY", value_parser = policy, conflicts_with = "batch")]
    on_dependency_failure: Option<DependencyPolicy>,
    /// The trace that the job belongs to, as in W3C's traceparent header
    #[arg(long, value_name = "CONTEXT", conflicts_with = "batch")]
    traceparent: Option<Traceparent>,
    /// Refuse the job if no live worker has announced that it can run it
    #[arg(long, conflicts_with = "batch")]
    roll_call: bool,
    /// Keep the result for `geartrain result`; without a duration, for 25h
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = span,
        allow_negative_numbers = true,
        num_args = 0..=1,
        conflicts_with = "batch"
    )]
    keep_result: Option<Option<Seconds>>,
}

/// When a job is due, or the first one of an interval.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct WhenArgs {
    /// Delay the job by this long: 90, 90s, 1h30m, 250ms, "5 minutes", "1 month"; with --every, the first one
    #[arg(long = "in", value_name = "DURATION", value_parser = values::delay, conflicts_with = "at")]
    delay: Option<Delay>,
    /// Schedule the job for a time: 2026-04-01T12:00:00Z, "7pm tomorrow", 1775044800; with --every, the first one
    #[arg(long, value_name = "WHEN", value_parser = timestamp::parse_start, allow_negative_numbers = true)]
    at: Option<Moment>,
}

impl WhenArgs {
    pub(super) fn due(self) -> Due {
        Due::new(self.delay, self.at)
    }
}

pub(super) async fn put(client: &Client, args: PutArgs, out: &mut Output<'_>) -> Done {
    if args.batch.is_some() {
        return put_batch((!args.check).then_some(client), args, out).await;
    }
    let (Some(queue), Some(klass)) = (args.queue, args.klass) else {
        return Err(Failure::Usage("put needs a queue and a klass; see `geartrain put --help`".to_owned()));
    };
    let payload = read_payload(args.payload.as_ref())?;
    let jid = args.jid.unwrap_or_else(new_jid);
    let mut due = args.when.due();
    let is_recurring = args.every.is_some() || args.cron.is_some();
    let expires_in = args.options.expires.and_then(|moment| moment.span);
    if is_recurring && args.options.expires.is_some() && expires_in.is_none() {
        let why = "--expires of a recurring job is a duration after each run, such as 1h";
        return Err(Failure::Usage(why.to_owned()));
    }
    if let Some(Moment { at, is_phrase: true, .. }) = args.options.expires
        && !out.json
    {
        out.remark(format_args!("expires {}", timestamp::when(at, out.now)))?;
    }

    let put = Put {
        priority: args.priority,
        retries: args.retries,
        tags: (!args.tags.is_empty()).then_some(args.tags),
        options: put_options(args.options),
        ..Put::new(queue, jid.clone(), klass, payload)
    };
    match (args.every, args.cron) {
        (None, None) => {}
        // Qless has recurring jobs without options.
        (Some(every), _) if put.options.is_none() => {
            return periodic::recur(client, put, every, 0, &due, out).await;
        }
        (every, cron) => {
            let template = template(put, every.unwrap_or_default(), cron, expires_in);
            return periodic::add(client, template, due.at, out).await;
        }
    }

    let existing = if args.replace { Existing::Replace } else { Existing::Keep };
    let put = Put { delay: due.delay, depends: args.depends, existing, ..put };
    let missing = list::missing(client, &put.depends).await?;
    if let Some(wait) = args.wait {
        list::remark_on_missing(&missing, out)?;
        due.remark(out)?;
        return put_and_wait(client, put, wait, out).await;
    }
    let reply = match args.when.at {
        Some(Moment { at, .. }) if args.sends_time && due.delay > Seconds::ZERO => {
            workkit::put_at(client, put, at).await?
        }
        _ => client.run(put).await?,
    };
    let jid = remark_on(&jid, &reply, out)?;
    let coalesced = matches!(reply, PutReply::Coalesced { .. });
    if coalesced || matches!(reply, PutReply::Existing | PutReply::NamedExisting { .. }) {
        // The job that was there before keeps its own time.
        due.at = None;
    }
    due.remark(out)?;
    if reply == PutReply::Unnamed {
        if !out.json {
            return Ok(out.remark(UNNAMED)?);
        }
        let view = json!({ "jid": null, "outcome": outcome(&reply), "coalesced": false });
        return Ok(out.line(&view, "")?);
    }
    let view = json!({ "jid": jid.to_string(), "outcome": outcome(&reply), "coalesced": coalesced });
    out.line(&due.add_to(view), jid)?;
    // A job that was there before has not got these dependencies.
    if matches!(reply, PutReply::Existing | PutReply::NamedExisting { .. } | PutReply::Coalesced { .. }) {
        Ok(())
    } else {
        Ok(list::remark_on_missing(&missing, out)?)
    }
}

/// The template of a recurring job with options.
fn template(
    mut put: Put,
    every: Duration,
    recurrence: Option<Recurrence>,
    expires_in: Option<Seconds>,
) -> PeriodicTemplate {
    if let Some(options) = &mut put.options {
        options.expires = None;
    }
    put.options = put.options.filter(|options| **options != PutOptions::default());
    let every = Period::Interval(every.into());
    let (every, phrase) = recurrence.map_or((every, None), |of| (Period::Cron(of.cron), of.phrase));
    PeriodicTemplate { expires_in, phrase, ..PeriodicTemplate::new(put, every) }
}

/// The remark on a put whose job has no id.
const UNNAMED: &str =
    "submitted; the job has no id while it waits, and is known by its queue and its payload";

/// None if no such option is given.
fn put_options(args: OptionArgs) -> Option<Box<PutOptions>> {
    let options = PutOptions {
        unique: args.unique,
        result_ttl: args.keep_result.map(|span| span.unwrap_or(RESULT_TTL_DEFAULT)),
        expires: args.expires.map(|moment| moment.at),
        attempt_max: args.timeout,
        backoff: args.backoff,
        crashes_max: args.crashes,
        roll_call: args.roll_call,
        on_dependency_failure: args.on_dependency_failure.unwrap_or_default(),
        traceparent: args.traceparent,
        ..PutOptions::default()
    };
    (options != PutOptions::default()).then(|| Box::new(options))
}

/// Remarks on a put that created no job, and returns the job that stands for it.
fn remark_on<'a>(jid: &'a Jid, reply: &'a PutReply, out: &mut Output<'_>) -> Result<&'a Jid, Failure> {
    let (jid, remark) = match reply {
        PutReply::Coalesced { jid } => (jid, joined(jid)),
        PutReply::Named { jid } => return Ok(jid),
        PutReply::NamedExisting { jid } => {
            (jid, format!("the same job exists already, as {jid}: see --nonce"))
        }
        PutReply::Existing => (
            jid,
            format!("job {jid} exists already and was left unchanged; use --replace to submit it again"),
        ),
        _ => return Ok(jid),
    };
    if !out.json {
        out.remark(remark)?;
    }
    Ok(jid)
}

/// The remark on a put that joined another job.
pub(super) fn joined(jid: &Jid) -> String {
    format!("unfinished job {jid} has the same unique key, so no new job was created")
}

/// The given payload, or an empty one.
pub(super) fn read_payload(source: Option<&Source>) -> Result<Payload, Failure> {
    source.map_or_else(|| Ok(Payload::default()), Source::read)
}

/// Submits a batch, or checks it if there is no queue to submit to.
pub(super) async fn put_batch(client: Option<&Client>, args: PutArgs, out: &mut Output<'_>) -> Done {
    let file = args.batch.unwrap_or_default();
    // The bar is drawn on standard error, and only if that is a terminal.
    let bar = ProgressBar::no_length();
    let mut on_bad = if client.is_some() { OnBad::Stop } else { OnBad::Check };
    let lines: Box<dyn BufRead> = if file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let unreadable = |error| Failure::Usage(format!("{} cannot be read: {error}", file.display()));
        let opened = File::open(&file).map_err(unreadable)?;
        bar.set_length(opened.metadata().map_or(0, |about| about.len()));
        Box::new(BufReader::with_capacity(1 << 16, opened))
    };
    if let Some(path) = &args.skip_bad {
        // Each line appended would be read again.
        if is_same_file(path, if file == Path::new("-") { Path::new("/dev/stdin") } else { &file }) {
            return Err(Failure::Usage(
                "--skip-bad names the file of the batch itself: name another".to_owned(),
            ));
        }
        on_bad = OnBad::Write(BadLines::open(path)?);
    }
    bar.set_style(progress_style(bar.length().is_some_and(|length| length > 0)));

    let batch = Batch {
        lines,
        defaults: Defaults { queue: args.queue, klass: args.klass },
        from_line: args.from_line,
        on_bad,
        sends_time: args.sends_time,
        progress: |bytes, jobs| {
            bar.set_position(bytes);
            bar.set_message(text::count(jobs, "job"));
        },
    };
    let (tally, failure) = batch.run(client).await;
    bar.finish_and_clear();

    if client.is_none() {
        let view = json!({ "valid": tally.valid(), "bad": tally.refused });
        out.line(&view, format_args!("{} can be submitted", text::count(tally.valid(), "job")))?;
    } else {
        let already = match tally.existing {
            0 => String::new(),
            existing => format!(", {existing} existed already"),
        };
        let joined = match tally.coalesced {
            0 => String::new(),
            coalesced => format!(", {coalesced} joined an unfinished job with the same key"),
        };
        out.line(&tally, format_args!("{} submitted{already}{joined}", text::count(tally.put, "job")))?;
    }
    for remark in tally.remarks() {
        out.remark(remark)?;
    }
    failure.map_or(Ok(()), Err)
}

/// Whether two paths lead to the same file; not so if one does not exist.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let about = std::fs::metadata(path).ok()?;
        about.is_file().then(|| (about.dev(), about.ino()))
    };
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

fn progress_style(known_length: bool) -> ProgressStyle {
    let template =
        if known_length { "{bar:40} {percent:>3}%  {msg}  {eta} left" } else { "{spinner} {msg}  {elapsed}" };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
