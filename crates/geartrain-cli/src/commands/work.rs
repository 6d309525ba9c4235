//! What workers do: pop, and report.

use geartrain::{
    Client, Complete, CompleteReply, Fail, Heartbeat, Holder, Next, Payload, Pop, PopOrder, Popped, Retry,
    Seconds, Timestamp, WorkerName,
};
use serde_json::json;

use super::Done;
use super::show::{payload_text, when};
use crate::args::{CompleteArgs, FailArgs, HeartbeatArgs, HolderArgs, OrderArg, PopArgs, RetryArgs};
use crate::duration;
use crate::failure::Failure;
use crate::output::Output;
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
    vec![
        ("jid", Cell::from(&job.jid)),
        ("queue", Cell::from(&job.queue)),
        ("klass", Cell::from(&job.klass)),
        ("priority", Cell::from(job.priority)),
        ("retries", Cell::from(format!("{} of {} left", job.remaining, job.retries))),
        ("worker", Cell::from(&job.lock.worker)),
        ("token", Cell::from(job.lock.token)),
        ("expires", Cell::from(when(job.lock.expires, now))),
        ("payload", Cell::from(payload_text(&job.payload))),
    ]
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

pub(super) async fn complete(client: &Client, args: CompleteArgs, out: &mut Output<'_>) -> Done {
    let delay = args.delay.map_or(Seconds::ZERO, Seconds::from);
    let next = args.next.map(|queue| Next { delay, depends: args.depends, ..Next::new(queue) });
    let queue = next.as_ref().map(|next| next.queue.to_string());
    let complete = Complete {
        payload: new_payload(args.payload.as_ref())?,
        next,
        ..Complete::new(args.jid.clone(), holder(args.holder)?)
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
    Ok(out.line(&json!({ "jid": args.jid.to_string(), "state": state, "queue": queue }), people)?)
}

pub(super) async fn fail(client: &Client, args: FailArgs, out: &mut Output<'_>) -> Done {
    let fail = Fail {
        payload: new_payload(args.payload.as_ref())?,
        ..Fail::new(args.jid.clone(), holder(args.holder)?, args.group.clone(), args.message)
    };
    client.run(fail).await?;
    let view = json!({ "jid": args.jid.to_string(), "state": "failed", "group": args.group.as_str() });
    Ok(out.line(&view, format_args!("failed in {}", args.group))?)
}

pub(super) async fn retry(client: &Client, args: RetryArgs, out: &mut Output<'_>) -> Done {
    let retry = Retry {
        delay: args.delay.map_or(Seconds::ZERO, Seconds::from),
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
