//! Commands for workers: pop, and report about the job.

use geartrain::{
    Chunk, ChunkKind, Client, Complete, CompleteReply, Fail, Heartbeat, Holder, JobResult, Next, Payload,
    Pop, PopOrder, Popped, Progress, Progressed, Release, Relock, Retry, Seconds, Timestamp, WorkerName,
};
use serde_json::json;

use super::Done;
use super::list;
use super::render::payload_text;
use crate::duration;
use crate::failure::Failure;
use crate::job_details::progress_text;
use crate::output::Output;
use crate::payload::Source;
use crate::text::{Cell, card};
use crate::timestamp::when;
use crate::values::{self, at_least_one};
use clap::{Args, ValueEnum};
use geartrain::{Count, Group, Jid, Klass, Portion, QueueName, Token};
use geartrain_json::{Number, PoppedView, ProgressView};
use std::time::Duration;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain pop mail
  geartrain pop mail thumbnails --worker w1 --count 10 --order round-robin --wait 30s
  geartrain pop mail --klass welcome --klass goodbye
  geartrain pop mail --json | jq -r '.[0].token'

An empty queue is no error: nothing is printed (with --json, an empty list) and the exit code is 0.
With --wait it is 4, so that a script can tell.")]
pub(crate) struct PopArgs {
    /// The queues to take jobs from
    #[arg(required = true, value_name = "QUEUE")]
    queues: Vec<QueueName>,
    /// The name of the worker [default: <hostname>-<pid>]
    #[arg(long)]
    worker: Option<WorkerName>,
    /// How many jobs to take at most
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value = "1")]
    count: Count,
    /// If there is no job, wait this long for one
    #[arg(long, value_name = "DURATION", value_parser = values::length)]
    wait: Option<Duration>,
    /// Which queue's jobs come first
    #[arg(long, value_enum, default_value_t = OrderArg::Strict)]
    order: OrderArg,
    /// Take only jobs of this klass; may be repeated [default: what the worker announced, or all]
    #[arg(long = "klass", value_name = "KLASS")]
    klasses: Vec<Klass>,
    /// Whether locks are so short that a remark says so.
    #[arg(skip)]
    pub(super) has_short_locks: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OrderArg {
    /// From the first queue that has any
    Strict,
    /// One from each queue in turn
    RoundRobin,
    /// The highest priority of all queues
    Priority,
}

/// Proof that the caller holds the job's lock.
#[derive(Debug, Args)]
#[group(multiple = false)]
struct HolderArgs {
    /// The token that pop printed with the job; not needed in a program that `geartrain work` started
    #[arg(long)]
    token: Option<Token>,
    /// The worker that popped the job, instead of the token
    #[arg(long)]
    worker: Option<WorkerName>,
}

#[derive(Debug, Args)]
#[command(after_help = r#"Examples:
  geartrain complete JID --token 1.0
  geartrain complete JID --token 1.0 --result '{"sent":true}'
  geartrain complete JID --token 1.0 --next upload --delay 5m

The result is sent to the clients that wait for the job, and stored if it was submitted with --keep-result."#)]
pub(crate) struct CompleteArgs {
    /// The job id
    jid: Jid,
    #[command(flatten)]
    holder: HolderArgs,
    /// A new payload: text, @FILE, or - for standard input
    #[arg(long)]
    payload: Option<Source>,
    /// The queue that the job moves on to
    #[arg(long, value_name = "QUEUE")]
    next: Option<QueueName>,
    /// With --next: delay the job there by this long
    #[arg(long, value_name = "DURATION", value_parser = values::length, requires = "next")]
    delay: Option<Duration>,
    /// With --next: a job that must be complete before this one runs there; may be repeated
    #[arg(long, value_name = "JID", requires = "next")]
    depends: Vec<Jid>,
    /// The result: text, @FILE, or - for standard input [default: empty]
    #[arg(long, conflicts_with = "next")]
    result: Option<Source>,
    /// A status code for the result [default: 0]
    #[arg(long, value_name = "N", conflicts_with = "next", allow_negative_numbers = true)]
    code: Option<i32>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  geartrain fail JID smtp 'the server said 451' --token 1.0

The job stays in its group, like in a dead letter queue, until `geartrain requeue`, `unfail` or `cancel`.")]
pub(crate) struct FailArgs {
    /// The job id
    jid: Jid,
    /// The kind of failure, shared by many jobs
    group: Group,
    /// What went wrong this time
    message: String,
    #[command(flatten)]
    holder: HolderArgs,
    /// A new payload: text, @FILE, or - for standard input
    #[arg(long)]
    payload: Option<Source>,
    /// A result despite the failure: text, @FILE, or - for standard input [default: empty]
    #[arg(long)]
    result: Option<Source>,
    /// A status code for the result [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    code: Option<i32>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  geartrain retry JID --token 1.0 --delay 5m --group smtp --message 'the server said 451'"
)]
pub(crate) struct RetryArgs {
    /// The job id
    jid: Jid,
    #[command(flatten)]
    holder: HolderArgs,
    /// Delay the retry by this long [default: the job's backoff, or 1s..1m+-0.25]
    #[arg(long, value_name = "DURATION", value_parser = values::length)]
    delay: Option<Duration>,
    /// The kind of failure, if one is the reason
    #[arg(long, requires = "message")]
    group: Option<Group>,
    /// What went wrong this time
    #[arg(long, requires = "group")]
    message: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  geartrain heartbeat JID --token 1.0

A program that `geartrain work` started need not do this, unless it replaces the payload.")]
pub(crate) struct HeartbeatArgs {
    /// The job id [default: the job of this program, under `geartrain work`]
    jid: Option<Jid>,
    #[command(flatten)]
    holder: HolderArgs,
    /// A new payload: text, @FILE, or - for standard input
    #[arg(long)]
    payload: Option<Source>,
}

#[derive(Debug, Args)]
#[command(
    allow_missing_positional = true,
    after_help = "Examples:
  geartrain progress JID 3/10 --token 1.0 --left 90
  geartrain progress 3/10                          # in a program that `geartrain work` started

Clients that wait for the job receive it, and `geartrain status` shows it. It does not renew the lock."
)]
pub(crate) struct ProgressArgs {
    /// The job id [default: the job of this program, under `geartrain work`]
    jid: Option<Jid>,
    /// How much is done, of how much: 3/10
    #[arg(value_name = "N/M", value_parser = portion, required = true)]
    portion: Portion,
    #[command(flatten)]
    holder: HolderArgs,
    /// How many seconds are left, estimated
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    left: Option<u32>,
}

#[derive(Debug, Args)]
#[command(
    allow_missing_positional = true,
    after_help = "Examples:
  geartrain chunk JID @part-1 --token 1.0
  geartrain chunk @part-1                          # in a program that `geartrain work` started

A chunk is not stored: only clients that wait at that moment receive it. It does not renew the lock."
)]
pub(crate) struct ChunkArgs {
    /// The job id [default: the job of this program, under `geartrain work`]
    jid: Option<Jid>,
    /// A part of the result: text, @FILE, or - for standard input
    #[arg(allow_negative_numbers = true, required = true)]
    data: Source,
    /// Send a warning, not a part of the result
    #[arg(long)]
    warning: bool,
    #[command(flatten)]
    holder: HolderArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "For a worker that shuts down or, with --delay, for a job that cannot run yet: no retry is
used up. If the work went wrong, use `geartrain retry`."
)]
pub(crate) struct ReleaseArgs {
    /// The job id
    jid: Jid,
    /// Do not run it again for this long [default: return it to the front of its queue]
    #[arg(long, value_name = "DURATION", value_parser = values::length)]
    delay: Option<Duration>,
    /// Why, for the job's history
    #[arg(long, value_name = "TEXT")]
    message: Option<String>,
    #[command(flatten)]
    holder: HolderArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain relock worker-1
  geartrain relock worker-1 mail --json | jq -r '.[].token'

For a worker that was restarted: its jobs go on with new tokens, and no retry is used up. A process of the
same worker that still has one of them loses it.")]
pub(crate) struct RelockArgs {
    /// The worker
    worker: WorkerName,
    /// Only jobs of these queues [default: all]
    #[arg(value_name = "QUEUE")]
    queues: Vec<QueueName>,
    /// How many jobs at most, the first popped first, up to 1000
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value = "1000")]
    count: Count,
}

/// Parses `3/10`.
fn portion(text: &str) -> Result<Portion, String> {
    let numbers =
        text.split_once('/').and_then(|(part, whole)| Some((part.parse().ok()?, whole.parse().ok()?)));
    let (part, whole) = numbers.ok_or_else(|| format!("{text:?} is not a fraction: write it like 3/10"))?;
    Portion::new(part, whole).map_err(|error| error.to_string())
}

pub(super) async fn pop(client: &Client, args: PopArgs, out: &mut Output<'_>) -> Done {
    let worker = args.worker.map_or_else(default_worker, Ok)?;
    let order = match args.order {
        OrderArg::Strict => PopOrder::Strict,
        OrderArg::RoundRobin => PopOrder::RoundRobin { turn: 0 },
        OrderArg::Priority => PopOrder::Priority { turn: 0 },
    };
    let names = geartrain_json::texts(&args.queues).join(", ");
    let klasses = (!args.klasses.is_empty()).then_some(args.klasses);
    let pop = Pop { queues: args.queues, worker, count: args.count, order, whole: false, klasses };
    let reply = match args.wait {
        Some(wait) => client.pop_any(pop, wait).await?,
        None => client.run(pop).await?,
    };
    show_popped(&reply.jobs, out)?;
    if let (true, Some(job)) = (args.has_short_locks, reply.jobs.first()) {
        let left = (job.lock.expires - client.backend().now().unwrap_or(out.now)).get().ceil();
        out.remark(format_args!(
            "the lock lasts {}, and the job then goes back to its queue: renew it with `geartrain heartbeat`",
            duration::format(left)
        ))?;
    }
    match args.wait {
        Some(wait) if reply.jobs.is_empty() => Err(Failure::TimedOut(format!(
            "no job in {} within {}; try again, or look at `geartrain queues`",
            names,
            duration::format(wait.as_secs_f64())
        ))),
        _ => Ok(()),
    }
}

pub(super) async fn relock(client: &Client, args: RelockArgs, out: &mut Output<'_>) -> Done {
    let RelockArgs { worker, queues, count } = args;
    let jobs = client.run(Relock { queues, count, ..Relock::new(worker) }).await?;
    Ok(show_popped(&jobs, out)?)
}

fn show_popped(jobs: &[Popped], out: &mut Output<'_>) -> std::io::Result<()> {
    let views: Vec<PoppedView> = jobs.iter().map(PoppedView::new).collect();
    let now = out.now;
    out.show(&views, |out| {
        for (index, job) in jobs.iter().enumerate() {
            if index > 0 {
                writeln!(out)?;
            }
            card(out, &popped_card(job, now))?;
        }
        Ok(())
    })
}

/// `<hostname>-<pid>`.
pub(super) fn default_worker() -> Result<WorkerName, Failure> {
    let host = gethostname::gethostname();
    let name = format!("{}-{}", host.to_string_lossy(), std::process::id());
    WorkerName::new(name).map_err(|error| Failure::Usage(format!("{error}; give a name with --worker")))
}

fn popped_card(job: &Popped, now: Timestamp) -> Vec<(&'static str, Cell)> {
    let mut lines = vec![
        ("jid", Cell::from(&job.jid)),
        ("queue", Cell::from(&job.queue)),
        ("klass", Cell::from(&job.klass)),
        ("priority", Cell::from(job.priority)),
        ("retries", Cell::from(format!("{} of {} left", job.remaining, job.retries))),
        ("worker", Cell::from(&job.lock.worker)),
        ("token", Cell::from(job.lock.token)),
        ("expires", Cell::from(when(job.lock.expires, now))),
    ];
    let deadline = job.details.as_ref().and_then(|about| about.deadline);
    lines.extend(deadline.map(|deadline| ("deadline", Cell::from(when(deadline, now)))));
    lines.push(("payload", Cell::from(payload_text(&job.payload))));
    lines
}

/// The job that this program runs, if `geartrain work` started it.
pub(super) fn own_job() -> Option<(Jid, Token)> {
    let variable = |name: &str| std::env::var(name).ok();
    let jid = variable("GEARTRAIN_JOB_JID")?.parse().ok()?;
    Some((jid, variable("GEARTRAIN_JOB_TOKEN")?.parse().ok()?))
}

/// The job id that was given, or that of the job that this program runs.
fn jid(given: Option<Jid>) -> Result<Jid, Failure> {
    given.or_else(|| own_job().map(|(jid, _)| jid)).ok_or_else(|| {
        let why = "give a job id: only a program that `geartrain work` started has a job of its own";
        Failure::Usage(why.to_owned())
    })
}

fn holder(jid: &Jid, args: HolderArgs) -> Result<Holder, Failure> {
    let own = || own_job().filter(|(own, _)| own == jid).map(|(_, token)| token);
    match (args.token, args.worker) {
        (Some(token), _) => Ok(Holder::Token(token)),
        (None, Some(worker)) => Ok(Holder::Worker(worker)),
        (None, None) => own().map(Holder::Token).ok_or_else(|| {
            Failure::Usage("give --token or --worker: the holder of the job's lock".to_owned())
        }),
    }
}

fn new_payload(source: Option<&Source>) -> Result<Option<Payload>, Failure> {
    source.map(Source::read).transpose()
}

/// The new payload and the result, if they were given.
fn payload_and_result(
    payload: Option<&Source>,
    result: Option<&Source>,
    code: Option<i32>,
    default_code: i32,
) -> Result<(Option<Payload>, Option<Box<JobResult>>), Failure> {
    if payload == Some(&Source::Stdin) && result == Some(&Source::Stdin) {
        let why = "standard input can only be read once: give the payload or the result in a file, as @FILE";
        return Err(Failure::Usage(why.to_owned()));
    }
    let payload = new_payload(payload)?;
    let bytes = result.map(|source| source.read_as("result")).transpose()?;
    let result = (bytes.is_some() || code.is_some()).then(|| {
        Box::new(JobResult { code: code.unwrap_or(default_code), bytes: bytes.unwrap_or_default() })
    });
    Ok((payload, result))
}

pub(super) async fn complete(client: &Client, args: CompleteArgs, out: &mut Output<'_>) -> Done {
    let delay = args.delay.map_or(Seconds::ZERO, Seconds::from);
    let missing = list::missing(client, &args.depends).await?;
    let next = args.next.map(|queue| Next { delay, depends: args.depends, ..Next::new(queue) });
    let queue = next.as_ref().map(|next| next.queue.to_string());
    let (payload, result) = payload_and_result(args.payload.as_ref(), args.result.as_ref(), args.code, 0)?;
    let complete = Complete {
        payload,
        next,
        result,
        ..Complete::new(args.jid.clone(), holder(&args.jid, args.holder)?)
    };
    let state = match client.run(complete).await? {
        CompleteReply::Complete => "complete",
        CompleteReply::Waiting => "waiting",
        CompleteReply::Scheduled => "scheduled",
        CompleteReply::Depends => "depends",
    };
    let people = match &queue {
        Some(queue) => format!("{state} in {queue}"),
        None => state.to_owned(),
    };
    out.line(&json!({ "jid": args.jid.to_string(), "state": state, "queue": queue }), people)?;
    Ok(list::remark_on_missing(&missing, out)?)
}

pub(super) async fn fail(client: &Client, args: FailArgs, out: &mut Output<'_>) -> Done {
    let (payload, result) = payload_and_result(args.payload.as_ref(), args.result.as_ref(), args.code, 1)?;
    let fail = Fail {
        payload,
        result,
        ..Fail::new(args.jid.clone(), holder(&args.jid, args.holder)?, args.group.clone(), args.message)
    };
    client.run(fail).await?;
    let view = json!({ "jid": args.jid.to_string(), "state": "failed", "group": args.group.as_str() });
    Ok(out.line(&view, format_args!("failed in {}", args.group))?)
}

pub(super) async fn retry(client: &Client, args: RetryArgs, out: &mut Output<'_>) -> Done {
    let retry = Retry {
        delay: match args.delay {
            // Leaves the delay to the backoff.
            None => Seconds::ZERO,
            // At once, as a delay in the past.
            Some(delay) if delay.is_zero() => Seconds::from(-1),
            Some(delay) => delay.into(),
        },
        group: args.group,
        message: args.message,
        ..Retry::new(args.jid.clone(), holder(&args.jid, args.holder)?)
    };
    let remaining = client.run(retry).await?;
    let failed = remaining < 0;
    let people = match u64::try_from(remaining) {
        Ok(1) => "1 retry left".to_owned(),
        Ok(left) => format!("{left} retries left"),
        Err(_) => "no retries left: the job failed".to_owned(),
    };
    let view = json!({ "jid": args.jid.to_string(), "remaining": remaining, "failed": failed });
    Ok(out.line(&view, people)?)
}

pub(super) async fn heartbeat(client: &Client, args: HeartbeatArgs, out: &mut Output<'_>) -> Done {
    let payload = new_payload(args.payload.as_ref())?;
    let jid = jid(args.jid)?;
    let heartbeat = Heartbeat { jid: jid.clone(), holder: holder(&jid, args.holder)?, payload };
    let expires = client.run(heartbeat).await?;
    let view = json!({ "jid": jid.to_string(), "expires": Number::from(expires) });
    let now = out.now;
    Ok(out.line(&view, format_args!("lock expires {}", when(expires, now)))?)
}

pub(super) async fn progress(client: &Client, args: ProgressArgs, out: &mut Output<'_>) -> Done {
    let progress = Progressed { portion: args.portion, seconds_left: args.left };
    let jid = jid(args.jid)?;
    client.run(Progress::new(jid.clone(), holder(&jid, args.holder)?, progress)).await?;
    let view = json!({ "jid": jid.to_string(), "progress": ProgressView::new(progress) });
    Ok(out.line(&view, progress_text(progress))?)
}

pub(super) async fn chunk(client: &Client, args: ChunkArgs, out: &mut Output<'_>) -> Done {
    let kind = if args.warning { ChunkKind::Warning } else { ChunkKind::Data };
    let jid = jid(args.jid)?;
    let (holder, bytes) = (holder(&jid, args.holder)?, args.data.read_as("chunk")?);
    let told = client.run(Chunk { jid: jid.clone(), holder, kind, bytes }).await?;
    let people = match told {
        0 => "not sent: no client waits for this job".to_owned(),
        1 => "sent to 1 client".to_owned(),
        told => format!("sent to {told} clients"),
    };
    Ok(out.line(&json!({ "jid": jid.to_string(), "told": told }), people)?)
}

pub(super) async fn release(client: &Client, args: ReleaseArgs, out: &mut Output<'_>) -> Done {
    let release = Release::new(args.jid.clone(), holder(&args.jid, args.holder)?);
    let delay = args.delay.map_or(Seconds::ZERO, Seconds::from);
    client.run(Release { message: args.message, delay, ..release }).await?;
    let people = match args.delay {
        Some(delay) if !delay.is_zero() => {
            format!("released, and scheduled in {}", duration::format(delay.as_secs_f64()))
        }
        _ => "released".to_owned(),
    };
    Ok(out.line(&json!({ "jid": args.jid.to_string() }), people)?)
}
