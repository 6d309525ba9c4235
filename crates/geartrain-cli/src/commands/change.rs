//! Changing jobs that are there.

use geartrain::{
    AddTags, Cancel, Client, Cycles, Depend, DependChange, Existing, HistoryEvent, Jid, Job, Log, Put,
    QueueName, RemoveTags, Seconds, SetPriority, Tag, Timeout, Track,
};
use serde_json::json;

use super::Done;
use super::list::{find, so_many};
use super::put::outcome;
use crate::args::{DependArgs, PriorityArgs, RequeueArgs, TagArgs, UndependArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::text::count;
use crate::view::{Number, texts};

pub(super) async fn cancel(client: &Client, mut jids: Vec<Jid>, out: &mut Output<'_>) -> Done {
    jids.sort_unstable();
    jids.dedup();
    let asked = jids.len() as u64;
    let cancelled = client.run(Cancel { jids }).await?;
    let missing = asked.saturating_sub(cancelled);
    if cancelled > 0 || out.json {
        out.line(&json!({ "cancelled": cancelled }), so_many(cancelled, "cancelled"))?;
    }
    if missing == 0 {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "{} could not be cancelled: not there, or complete; `geartrain get JID` tells",
        count(missing, "job")
    )))
}

pub(super) async fn requeue(client: &Client, args: RequeueArgs, out: &mut Output<'_>) -> Done {
    let job = find(client, &args.jid).await?;
    let Some(queue) = args.queue.or_else(|| last_queue(&job)) else {
        let jid = &args.jid;
        return Err(Failure::Refused(format!(
            "which queue job {jid} was in is forgotten; give one with --queue"
        )));
    };
    let payload = args.payload.map_or(Ok(job.payload), |source| source.read())?;
    let put = Put {
        delay: args.delay.map_or(Seconds::ZERO, Seconds::from),
        existing: Existing::Require,
        ..Put::new(queue.clone(), args.jid.clone(), args.klass.unwrap_or(job.klass), payload)
    };
    let reply = client.run(put).await?;
    let view = json!({ "jid": args.jid.to_string(), "queue": queue.as_str(), "outcome": outcome(&reply) });
    Ok(out.line(&view, format_args!("put into {queue}"))?)
}

/// Where a job is, or was last.
fn last_queue(job: &Job) -> Option<QueueName> {
    job.queue.clone().or_else(|| {
        job.history.iter().rev().find_map(|entry| match &entry.what {
            HistoryEvent::Put { queue } => Some(queue.clone()),
            _ => None,
        })
    })
}

pub(super) async fn timeout(client: &Client, jids: Vec<Jid>, out: &mut Output<'_>) -> Done {
    client.run(Timeout { jids: jids.clone() }).await?;
    Ok(out.line(&json!({ "jids": texts(&jids) }), so_many(jids.len() as u64, "taken away"))?)
}

pub(super) async fn priority(client: &Client, args: PriorityArgs, out: &mut Output<'_>) -> Done {
    client.run(SetPriority { jid: args.jid.clone(), priority: args.priority }).await?;
    let view = json!({ "jid": args.jid.to_string(), "priority": Number(args.priority.get()) });
    Ok(out.line(&view, format_args!("priority {}", args.priority))?)
}

pub(super) async fn tag(client: &Client, args: TagArgs, out: &mut Output<'_>) -> Done {
    let tags = client.run(AddTags { jid: args.jid.clone(), tags: args.tags }).await?;
    show_tags(&args.jid, &tags, out)
}

pub(super) async fn untag(client: &Client, args: TagArgs, out: &mut Output<'_>) -> Done {
    let tags = client.run(RemoveTags { jid: args.jid.clone(), tags: args.tags }).await?;
    show_tags(&args.jid, &tags, out)
}

fn show_tags(jid: &Jid, tags: &[Tag], out: &mut Output<'_>) -> Done {
    let names = texts(tags);
    let people = if names.is_empty() { "no tags".to_owned() } else { format!("tags {}", names.join(" ")) };
    Ok(out.line(&json!({ "jid": jid.to_string(), "tags": names }), people)?)
}

pub(super) async fn track(client: &Client, jid: Jid, on: bool, out: &mut Output<'_>) -> Done {
    let changed = client.run(Track { jid: jid.clone(), on }).await?;
    let view = json!({ "jid": jid.to_string(), "tracked": on, "changed": changed });
    let people = match (on, changed) {
        (true, true) => "tracked",
        (true, false) => "tracked, as before",
        (false, true) => "not tracked any more",
        (false, false) => "not tracked, as before",
    };
    Ok(out.line(&view, people)?)
}

pub(super) async fn depend(client: &Client, args: DependArgs, out: &mut Output<'_>) -> Done {
    change_dependencies(client, args.jid, DependChange::On(args.on), out).await
}

pub(super) async fn undepend(client: &Client, args: UndependArgs, out: &mut Output<'_>) -> Done {
    let change = if args.all { DependChange::OffAll } else { DependChange::Off(args.on) };
    change_dependencies(client, args.jid, change, out).await
}

async fn change_dependencies(client: &Client, jid: Jid, change: DependChange, out: &mut Output<'_>) -> Done {
    client.run(Depend { jid: jid.clone(), change, cycles: Cycles::Refuse }).await?;
    let job = find(client, &jid).await?;
    let dependencies = texts(job.dependencies());
    let people = if dependencies.is_empty() {
        format!("depends on no job; it is {}", job.state.name())
    } else {
        format!("depends on {}", dependencies.join(" "))
    };
    let view =
        json!({ "jid": jid.to_string(), "state": job.state.name().as_str(), "dependencies": dependencies });
    Ok(out.line(&view, people)?)
}

pub(super) async fn log(
    client: &Client,
    jid: Jid,
    message: String,
    data: Option<String>,
    out: &mut Output<'_>,
) -> Done {
    client.run(Log { jid: jid.clone(), message, data }).await?;
    Ok(out.line(&json!({ "jid": jid.to_string() }), "written down")?)
}
