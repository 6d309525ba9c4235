//! Commands that change existing jobs.

use geartrain::{
    AddTags, BulkAct, Cancel, Client, Cycles, Depend, DependChange, Error, Existing, Jid, Log, Put, PutReply,
    QueueName, Refusal, RemoveTags, Seconds, SetPriority, Tag, Timeout, Track,
};
use serde_json::json;

use super::list::{self, find, jobs_done};
use super::log::Message;
use super::select::{self, BulkArgs, Words};
use super::{Done, canceled};
use crate::failure::Failure;
use crate::output::Output;
use crate::payload::Source;
use crate::text::count;
use crate::values;
use clap::Args;
use geartrain::Klass;
use geartrain_json::put::outcome;
use geartrain_json::{Number, last_queue, texts};
use std::time::Duration;

#[derive(Debug, Args)]
#[command(
    after_help = "A running job is taken away from its worker. A complete job runs again, in the queue it was in last."
)]
pub(crate) struct RequeueArgs {
    /// The job id
    #[arg(required_unless_present_any = ["filter", "all"], conflicts_with_all = ["filter", "all"])]
    jid: Option<Jid>,
    /// Another queue
    #[arg(long)]
    queue: Option<QueueName>,
    /// Delay the job by this long
    #[arg(long, value_name = "DURATION", value_parser = values::length, conflicts_with_all = ["filter", "all"])]
    delay: Option<Duration>,
    /// Another klass
    #[arg(long, conflicts_with_all = ["filter", "all"])]
    klass: Option<Klass>,
    /// Another payload: text, @FILE, or - for standard input
    #[arg(long, conflicts_with_all = ["filter", "all"])]
    payload: Option<Source>,
    #[command(flatten)]
    bulk: BulkArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain cancel JID
  geartrain cancel --where 'queue=mail state=failed age>7d' --dry-run
  geartrain cancel --where 'args.user.id=42' --rate 100/s --yes

`geartrain help jobs` explains filters. For a day, `geartrain get JID` tells who cancelled a job, when, and why.")]
pub(crate) struct CancelArgs {
    /// The job ids
    #[arg(
        required_unless_present_any = ["filter", "all", "payload"],
        conflicts_with_all = ["filter", "all"],
        value_name = "JID"
    )]
    jids: Vec<Jid>,
    /// With --payload: the queue of the jobs
    #[arg(long, requires = "payload", help_heading = "Worqr's queues")]
    pub(super) queue: Option<QueueName>,
    /// Cancel all jobs of --queue with this payload: text, @FILE, or - for standard input
    #[arg(
        long,
        requires = "queue",
        conflicts_with_all = ["jids", "filter", "all", "because", "cascade"],
        allow_negative_numbers = true,
        help_heading = "Worqr's queues"
    )]
    pub(super) payload: Option<Source>,
    /// Why, for those who look for the jobs later
    #[arg(long, value_name = "TEXT")]
    because: Option<String>,
    /// Also cancel the jobs that depend on them, and those that depend on these
    #[arg(long, conflicts_with_all = ["filter", "all"])]
    cascade: bool,
    #[command(flatten)]
    pub(super) bulk: BulkArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PriorityArgs {
    /// The job id, unless a filter is given, and the new priority: higher runs first
    #[arg(value_names = ["JID", "N"], num_args = 1..=2, required = true, allow_negative_numbers = true)]
    values: Vec<String>,
    #[command(flatten)]
    bulk: BulkArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TagArgs {
    /// The job id, unless a filter is given, and the tags
    #[arg(required = true, value_names = ["JID", "TAG"], num_args = 1..)]
    values: Vec<String>,
    #[command(flatten)]
    bulk: BulkArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DependArgs {
    /// The job that waits
    jid: Jid,
    /// The jobs it waits for
    #[arg(required = true, value_name = "ON")]
    on: Vec<Jid>,
}

#[derive(Debug, Args)]
pub(crate) struct UndependArgs {
    /// The job that waits
    jid: Jid,
    /// The jobs it no longer waits for
    #[arg(required_unless_present = "all", value_name = "ON")]
    on: Vec<Jid>,
    /// Remove all dependencies
    #[arg(long, conflicts_with = "on")]
    all: bool,
}

impl CancelArgs {
    /// Whether jobs are named by their payload, because they have no ids.
    pub(super) fn is_by_payload(&self) -> bool {
        self.payload.is_some()
    }
}

pub(super) async fn cancel(client: &Client, args: CancelArgs, out: &mut Output<'_>) -> Done {
    let CancelArgs { mut jids, because, cascade, bulk, .. } = args;
    if bulk.is_given() {
        let words = Words { verb: "cancel", done: "cancelled" };
        return select::act(client, bulk, BulkAct::Cancel { because }, words, out).await;
    }
    bulk.check_unused()?;
    jids.sort_unstable();
    jids.dedup();
    let requested = jids.len() as u64;
    let missing = if cascade { list::missing(client, &jids).await?.len() as u64 } else { 0 };
    let cancelled = client.run(Cancel { jids, because, cascade }).await?;
    // How many of a cascade were dependents is not known.
    let missing = missing.max(requested.saturating_sub(cancelled));
    if cancelled > 0 || out.json {
        out.line(&json!({ "cancelled": cancelled }), jobs_done(cancelled, "cancelled"))?;
    }
    if missing == 0 {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "{} could not be cancelled: missing or complete; see `geartrain get JID`",
        count(missing, "job")
    )))
}

pub(super) async fn requeue(client: &Client, args: RequeueArgs, out: &mut Output<'_>) -> Done {
    let Some(jid) = args.jid else {
        let words = Words { verb: "requeue", done: "requeued" };
        return select::act(client, args.bulk, BulkAct::Requeue { queue: args.queue }, words, out).await;
    };
    args.bulk.check_unused()?;
    let RequeueArgs { queue, delay, klass, payload, .. } = args;
    let change = |mut put: Put| {
        put.delay = delay.map_or(Seconds::ZERO, Seconds::from);
        put.klass = klass.unwrap_or(put.klass);
        put.payload = payload.map_or(Ok(put.payload), |source| source.read())?;
        Ok(put)
    };
    let (queue, reply) = requeue_job(client, &jid, queue, change).await?;
    let view = json!({ "jid": jid.to_string(), "queue": queue.as_str(), "outcome": outcome(&reply) });
    Ok(out.line(&view, format_args!("submitted to {queue}"))?)
}

/// Puts a job again, as it is but for a change, into a queue or the one it was in last.
pub(super) async fn requeue_job(
    client: &Client,
    jid: &Jid,
    queue: Option<QueueName>,
    change: impl FnOnce(Put) -> Result<Put, Failure>,
) -> Result<(QueueName, PutReply), Failure> {
    let job = find(client, jid).await?;
    let Some(queue) = queue.or_else(|| last_queue(&job)) else {
        return Err(Failure::Refused(format!(
            "the last queue of job {jid} is not known any more; give one with --queue"
        )));
    };
    let put = Put::new(queue.clone(), jid.clone(), job.klass, job.payload);
    let reply = client.run(change(Put { existing: Existing::Require, ..put })?).await?;
    Ok((queue, reply))
}

pub(super) async fn timeout(client: &Client, jids: Vec<Jid>, out: &mut Output<'_>) -> Done {
    client.run(Timeout { jids: jids.clone() }).await?;
    let done = if jids.len() == 1 { "taken from its worker" } else { "taken from their workers" };
    Ok(out.line(&json!({ "jids": texts(&jids) }), jobs_done(jids.len() as u64, done))?)
}

pub(super) async fn priority(client: &Client, args: PriorityArgs, out: &mut Output<'_>) -> Done {
    let PriorityArgs { values, bulk } = args;
    let wrong = |text: &str, why: String| Failure::Usage(format!("{text:?} is no priority: {why}"));
    let priority = |text: &str| values::priority(text).map_err(|why| wrong(text, why));
    let (jid, priority) = match (&values[..], bulk.is_given()) {
        ([text], true) => (None, priority(text)?),
        ([jid, text], false) => (Some(named(jid)?), priority(text)?),
        (_, true) => return Err(Failure::Usage("give either a job id or a filter".to_owned())),
        _ => return Err(Failure::Usage("give a job id and a priority".to_owned())),
    };
    let Some(jid) = jid else {
        let words = Words { verb: "change the priority of", done: "changed" };
        return select::act(client, bulk, BulkAct::SetPriority { priority }, words, out).await;
    };
    bulk.check_unused()?;
    client.run(SetPriority { jid: jid.clone(), priority }).await?;
    let view = json!({ "jid": jid.to_string(), "priority": Number(priority.get()) });
    Ok(out.line(&view, format_args!("priority {priority}"))?)
}

fn named(jid: &str) -> Result<Jid, Failure> {
    Jid::new(jid).map_err(|error| Failure::Usage(error.to_string()))
}

/// The job and the tags of a command, or only the tags if a filter is given.
fn job_and_tags(values: &[String], bulk: &BulkArgs) -> Result<(Option<Jid>, Vec<Tag>), Failure> {
    let (jid, tags) = match (values, bulk.is_given()) {
        (tags, true) => (None, tags),
        ([jid, tags @ ..], false) if !tags.is_empty() => (Some(named(jid)?), tags),
        _ => return Err(Failure::Usage("give a job id and at least one tag".to_owned())),
    };
    let tags = tags.iter().map(|tag| Tag::new(tag).map_err(|error| Failure::Usage(error.to_string())));
    Ok((jid, tags.collect::<Result<_, _>>()?))
}

pub(super) async fn tag(client: &Client, args: TagArgs, out: &mut Output<'_>) -> Done {
    let (jid, tags) = job_and_tags(&args.values, &args.bulk)?;
    let Some(jid) = jid else {
        let words = Words { verb: "tag", done: "tagged" };
        return select::act(client, args.bulk, BulkAct::AddTags { tags }, words, out).await;
    };
    args.bulk.check_unused()?;
    let tags = client.run(AddTags { jid: jid.clone(), tags }).await?;
    show_tags(&jid, &tags, out)
}

pub(super) async fn untag(client: &Client, args: TagArgs, out: &mut Output<'_>) -> Done {
    let (jid, tags) = job_and_tags(&args.values, &args.bulk)?;
    let Some(jid) = jid else {
        let words = Words { verb: "untag", done: "untagged" };
        return select::act(client, args.bulk, BulkAct::RemoveTags { tags }, words, out).await;
    };
    args.bulk.check_unused()?;
    let tags = client.run(RemoveTags { jid: jid.clone(), tags }).await?;
    show_tags(&jid, &tags, out)
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
        (false, true) => "no longer tracked",
        (false, false) => "not tracked, as before",
    };
    Ok(out.line(&view, people)?)
}

pub(super) async fn depend(client: &Client, args: DependArgs, out: &mut Output<'_>) -> Done {
    let missing = list::missing(client, &args.on).await?;
    let all_missing = missing.len() == args.on.len();
    change_dependencies(client, args.jid, DependChange::On(args.on), out).await?;
    if all_missing {
        let missing: Vec<String> = missing.iter().map(list::not_waited_for).collect();
        return Err(Failure::Refused(missing.join("; ")));
    }
    Ok(list::remark_on_missing(&missing, out)?)
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
        format!("depends on no job and is {}", job.state.name())
    } else {
        format!("depends on {}", dependencies.join(" "))
    };
    let view =
        json!({ "jid": jid.to_string(), "state": job.state.name().as_str(), "dependencies": dependencies });
    Ok(out.line(&view, people)?)
}

pub(super) async fn log(client: &Client, message: Message, out: &mut Output<'_>) -> Done {
    let Message { jid, text, data } = message;
    match client.run(Log { jid: jid.clone(), message: text, data }).await {
        Err(Error::Refused(Refusal::NoSuchJob { .. })) => {
            return Err(canceled::explain(client, &jid, out).await);
        }
        done => done?,
    };
    Ok(out.line(&json!({ "jid": jid.to_string() }), "added to the history")?)
}
