//! What workers do: pop, and report.

use geartrain::{
    Chunk, ChunkKind, Client, Complete, CompleteReply, Fail, Heartbeat, Holder, JobResult, Next, Payload,
    Pop, PopOrder, Popped, Progress, Progressed, RandomUnit, Release, Retry, Seconds, Timestamp, WorkerName,
};
use serde_json::json;

use super::Done;
use super::show::payload_text;
use crate::args::{
    ChunkArgs, CompleteArgs, FailArgs, HandBackArgs, HeartbeatArgs, HolderArgs, OrderArg, PopArgs,
    ProgressArgs, RetryArgs,
};
use crate::duration;
use crate::failure::Failure;
use crate::moment::when;
use crate::output::Output;
use crate::particulars::{ProgressView, progress_text};
use crate::payload::Source;
use crate::text::{Cell, card};
use crate::view::{Number, PoppedView};

pub(super) async fn pop(client: &Client, args: PopArgs, out: &mut Output<'_>) -> Done {
    let worker = args.worker.map_or_else(this_worker, Ok)?;
    let order = match args.order {
        OrderArg::Strict => PopOrder::Strict,
        OrderArg::RoundRobin => PopOrder::RoundRobin { turn: 0 },
        OrderArg::Priority => PopOrder::Priority { turn: 0 },
    };
    let names = crate::view::texts(&args.queues).join(", ");
    let pop = Pop { queues: args.queues, worker, count: args.count, order, whole: false };
    let reply = match args.wait {
        Some(wait) => client.pop_any(pop, wait).await?,
        None => client.run(pop).await?,
    };
    let jobs = reply.jobs;
    let views: Vec<PoppedView> = jobs.iter().map(PoppedView::new).collect();
    let now = out.now;
    out.show(&views, |out| {
        for (place, job) in jobs.iter().enumerate() {
            if place > 0 {
                writeln!(out)?;
            }
            card(out, &popped_card(job, now))?;
        }
        Ok(())
    })?;
    match args.wait {
        Some(wait) if jobs.is_empty() => Err(Failure::TimedOut(format!(
            "no job came to {} within {}; try again, or look at `geartrain queues`",
            names,
            duration::format(wait.as_secs_f64())
        ))),
        _ => Ok(()),
    }
}

/// The name of a worker that was given none.
fn this_worker() -> Result<WorkerName, Failure> {
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

fn holder(args: HolderArgs) -> Result<Holder, Failure> {
    match (args.token, args.worker) {
        (Some(token), _) => Ok(Holder::Token(token)),
        (None, Some(worker)) => Ok(Holder::Worker(worker)),
        (None, None) => Err(Failure::Usage("say who holds the job, with --token or --worker".to_owned())),
    }
}

fn new_payload(source: Option<&Source>) -> Result<Option<Payload>, Failure> {
    source.map(Source::read).transpose()
}

/// A new payload and what came out, if they were given.
fn payload_and_result(
    payload: Option<&Source>,
    result: Option<&Source>,
    code: Option<i32>,
    usual_code: i32,
) -> Result<(Option<Payload>, Option<Box<JobResult>>), Failure> {
    if payload == Some(&Source::Stdin) && result == Some(&Source::Stdin) {
        let why = "standard input can only be read once: give the payload or the result in a file, as @FILE";
        return Err(Failure::Usage(why.to_owned()));
    }
    let payload = new_payload(payload)?;
    let bytes = result.map(|source| source.read_as("result")).transpose()?;
    let outcome = (bytes.is_some() || code.is_some())
        .then(|| Box::new(JobResult { code: code.unwrap_or(usual_code), bytes: bytes.unwrap_or_default() }));
    Ok((payload, outcome))
}

/// A number from 0 to 1 that nobody can foresee.
fn chance() -> Result<RandomUnit, Failure> {
    // The last bits of such an id are drawn by lot, whatever its first ones say about the time.
    let drawn = uuid::Uuid::now_v7().as_u128() as u32;
    RandomUnit::new(f64::from(drawn) / f64::from(u32::MAX)).map_err(|error| Failure::Usage(error.to_string()))
}

pub(super) async fn complete(client: &Client, args: CompleteArgs, out: &mut Output<'_>) -> Done {
    let delay = args.delay.map_or(Seconds::ZERO, Seconds::from);
    let next = args.next.map(|queue| Next { delay, depends: args.depends, ..Next::new(queue) });
    let queue = next.as_ref().map(|next| next.queue.to_string());
    let (payload, result) = payload_and_result(args.payload.as_ref(), args.result.as_ref(), args.code, 0)?;
    let complete =
        Complete { payload, next, result, ..Complete::new(args.jid.clone(), holder(args.holder)?) };
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
    Ok(out.line(&json!({ "jid": args.jid.to_string(), "state": state, "queue": queue }), people)?)
}

pub(super) async fn fail(client: &Client, args: FailArgs, out: &mut Output<'_>) -> Done {
    let (payload, result) = payload_and_result(args.payload.as_ref(), args.result.as_ref(), args.code, 1)?;
    let fail = Fail {
        payload,
        result,
        ..Fail::new(args.jid.clone(), holder(args.holder)?, args.group.clone(), args.message)
    };
    client.run(fail).await?;
    let view = json!({ "jid": args.jid.to_string(), "state": "failed", "group": args.group.as_str() });
    Ok(out.line(&view, format_args!("failed in {}", args.group))?)
}

pub(super) async fn retry(client: &Client, args: RetryArgs, out: &mut Output<'_>) -> Done {
    let retry = Retry {
        delay: args.delay.map_or(Seconds::ZERO, Seconds::from),
        // Whoever says how long it waits is not asking its backoff.
        random: if args.delay.is_some() { None } else { Some(chance()?) },
        group: args.group,
        message: args.message,
        ..Retry::new(args.jid.clone(), holder(args.holder)?)
    };
    let remaining = client.run(retry).await?;
    let failed = remaining < 0;
    let people = match u64::try_from(remaining) {
        Ok(1) => "1 retry left".to_owned(),
        Ok(left) => format!("{left} retries left"),
        Err(_) => "no retries were left, so it failed".to_owned(),
    };
    let view = json!({ "jid": args.jid.to_string(), "remaining": remaining, "failed": failed });
    Ok(out.line(&view, people)?)
}

pub(super) async fn heartbeat(client: &Client, args: HeartbeatArgs, out: &mut Output<'_>) -> Done {
    let payload = new_payload(args.payload.as_ref())?;
    let heartbeat = Heartbeat { jid: args.jid.clone(), holder: holder(args.holder)?, payload };
    let expires = client.run(heartbeat).await?;
    let view = json!({ "jid": args.jid.to_string(), "expires": Number::from(expires) });
    let now = out.now;
    Ok(out.line(&view, format_args!("held until {}", when(expires, now)))?)
}

pub(super) async fn progress(client: &Client, args: ProgressArgs, out: &mut Output<'_>) -> Done {
    let progress = Progressed { portion: args.portion, seconds_left: args.left };
    client.run(Progress::new(args.jid.clone(), holder(args.holder)?, progress)).await?;
    let view = json!({ "jid": args.jid.to_string(), "progress": ProgressView::new(progress) });
    Ok(out.line(&view, progress_text(progress))?)
}

pub(super) async fn chunk(client: &Client, args: ChunkArgs, out: &mut Output<'_>) -> Done {
    let kind = if args.warning { ChunkKind::Warning } else { ChunkKind::Data };
    let (holder, bytes) = (holder(args.holder)?, args.data.read_as("chunk")?);
    let told = client.run(Chunk { jid: args.jid.clone(), holder, kind, bytes }).await?;
    let people = match told {
        0 => "nobody waits for it, so nobody was told".to_owned(),
        1 => "sent to the one who waits for it".to_owned(),
        told => format!("sent to the {told} who wait for it"),
    };
    Ok(out.line(&json!({ "jid": args.jid.to_string(), "told": told }), people)?)
}

pub(super) async fn hand_back(client: &Client, args: HandBackArgs, out: &mut Output<'_>) -> Done {
    client.run(Release { jid: args.jid.clone(), holder: holder(args.holder)? }).await?;
    Ok(out.line(&json!({ "jid": args.jid.to_string() }), "handed back")?)
}
