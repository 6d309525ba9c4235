//! `geartrain recur`: create, list, change and remove recurring jobs.

use geartrain::{
    Call, Client, Count, Every, GetRecurring, Jid, Jobs, Listing, Page, QueueName, Queues, Recur, Recurring,
    Refusal, Reply, TagRecurring, Unrecur, UntagRecurring, UpdateRecurring,
};
use serde_json::json;

use super::put::{RETRIES_DEFAULT, read_payload};
use super::render::payload_text;
use super::{Done, Due, new_jid};
use super::{JidArg, JidsArg, PageArgs};
use crate::duration;
use crate::failure::Failure;
use crate::output::{Output, Total};
use crate::payload::Source;
use crate::text::{Cell, card, count, table};
use crate::timestamp::{self, Moment, when};
use crate::values::{self, Delay, priority};
use crate::view::{RecurringView, interval, texts};
use clap::{Args, Subcommand};
use geartrain::{Klass, Priority, Tag};
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(crate) enum RecurVerb {
    /// Create a recurring job, or replace the one with that --jid
    #[command(after_help = "Example:
  geartrain recur add reports nightly --every 1d --at 2026-04-01T03:00:00Z --jid nightly")]
    Add(RecurAddArgs),
    /// List the recurring jobs
    Ls {
        /// Only those of this queue
        #[arg(long)]
        queue: Option<QueueName>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show a recurring job
    Get(JidArg),
    /// Change a recurring job: only what you give
    Edit(RecurEditArgs),
    /// Remove recurring jobs; jobs already submitted by them stay
    Rm(JidsArg),
}

#[derive(Debug, Args)]
pub(crate) struct RecurAddArgs {
    /// The queue to submit jobs to
    queue: QueueName,
    /// The kind of job: the name of the code that runs it
    klass: Klass,
    /// The payload: text, @FILE, or - for standard input [default: empty]
    #[arg(allow_negative_numbers = true)]
    payload: Option<Source>,
    /// The interval between jobs
    #[arg(long, value_name = "DURATION", value_parser = values::length)]
    every: Duration,
    /// Delay the first job by this long [default: none]
    #[arg(long = "in", value_name = "DURATION", value_parser = values::delay, conflicts_with = "at")]
    delay: Option<Delay>,
    /// The time of the first job: 2026-04-01T12:00:00Z, "7pm tomorrow", or seconds since the epoch
    #[arg(long, value_name = "WHEN", value_parser = timestamp::parse_start, allow_negative_numbers = true)]
    at: Option<Moment>,
    /// Priority: higher runs first [default: 0]
    #[arg(long, value_name = "N", value_parser = priority, allow_negative_numbers = true)]
    priority: Option<Priority>,
    /// A tag to find the jobs by; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<Tag>,
    /// How many times each job may be retried [default: 5]
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    /// How many missed jobs to catch up on; 0 for all of them
    #[arg(long, value_name = "N", default_value = "0")]
    backlog: u32,
    /// The id of the recurring job; its jobs are named <JID>-<number> [default: a new id]
    #[arg(long)]
    jid: Option<Jid>,
}

#[derive(Debug, Args)]
pub(crate) struct RecurEditArgs {
    /// The id of the recurring job
    jid: Jid,
    /// The interval between jobs; the next job moves by the difference
    #[arg(long, value_name = "DURATION", value_parser = values::length)]
    every: Option<Duration>,
    /// The queue to submit jobs to
    #[arg(long)]
    queue: Option<QueueName>,
    /// The kind of job
    #[arg(long)]
    klass: Option<Klass>,
    /// The payload: text, @FILE, or - for standard input
    #[arg(long)]
    payload: Option<Source>,
    /// Priority: higher runs first
    #[arg(long, value_name = "N", value_parser = priority, allow_negative_numbers = true)]
    priority: Option<Priority>,
    /// Add a tag; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<Tag>,
    /// Remove a tag; may be repeated
    #[arg(long = "untag", value_name = "TAG")]
    untags: Vec<Tag>,
    /// How many times each job may be retried
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    /// How many missed jobs to catch up on; 0 for all of them
    #[arg(long, value_name = "N")]
    backlog: Option<u32>,
}

pub(super) async fn recur(client: &Client, verb: RecurVerb, out: &mut Output<'_>) -> Done {
    match verb {
        RecurVerb::Add(args) => add(client, args, out).await,
        RecurVerb::Ls { queue, page } => list(client, queue, &page, out).await,
        RecurVerb::Get(args) => show(client, &args.jid, out).await,
        RecurVerb::Edit(args) => edit(client, args, out).await,
        RecurVerb::Rm(args) => remove(client, args.jids, out).await,
    }
}

async fn add(client: &Client, args: RecurAddArgs, out: &mut Output<'_>) -> Done {
    let jid = args.jid.unwrap_or_else(new_jid);
    let due = Due::new(args.delay, args.at);
    let recur = Recur {
        offset: due.delay,
        priority: args.priority.unwrap_or_default(),
        retries: args.retries.unwrap_or(RETRIES_DEFAULT),
        tags: args.tags,
        backlog: args.backlog,
        ..Recur::new(
            args.queue,
            jid.clone(),
            args.klass,
            read_payload(args.payload.as_ref())?,
            args.every.into(),
        )
    };
    client.run(recur).await?;
    due.remark(out)?;
    let view = json!({ "jid": jid.to_string(), "outcome": "recurring" });
    Ok(out.line(&due.add_to(view), jid)?)
}

async fn list(client: &Client, queue: Option<QueueName>, page: &PageArgs, out: &mut Output<'_>) -> Done {
    let mut jids = Vec::new();
    let wanted = page.offset.saturating_add(page.limit());
    let queues = client.run(Queues { queue }).await?;
    let total = Total::Exactly(queues.iter().map(|queue| queue.recurring).sum());
    for queue in queues {
        let mut offset = 0;
        while jids.len() < wanted {
            let part = Page { offset, count: Count::MAX };
            let found =
                client.run(Jobs { which: Listing::Recurring(queue.name.clone()), page: part }).await?;
            let last = found.len() < Count::MAX.get();
            offset += found.len();
            jids.extend(found);
            if last {
                break;
            }
        }
    }
    let asked = jids.into_iter().skip(page.offset).take(page.limit());
    let answers = client.batch(asked.map(|jid| Call::from(GetRecurring { jid })).collect()).await?;
    let jobs: Vec<Recurring> = answers
        .into_iter()
        .filter_map(|answer| match answer {
            Ok(Reply::GetRecurring(job)) => job.map(|job| *job),
            _ => None,
        })
        .collect();
    let views: Vec<RecurringView> = jobs.iter().map(RecurringView::new).collect();
    let now = out.now;
    let page = page.shown("recurring job", jobs.len(), total);
    Ok(out.page(&views, &page, "no recurring jobs", |out| {
        let rows: Vec<_> = jobs
            .iter()
            .map(|job| {
                [
                    Cell::id(&job.jid),
                    Cell::from(&job.queue),
                    Cell::from(&job.klass),
                    Cell::right(every_text(&job.every)),
                    Cell::number(job.count),
                    Cell::whole(timestamp::relative(job.next, now)),
                ]
            })
            .collect();
        table(out, ["JID", "QUEUE", "KLASS", "EVERY", "MADE", "NEXT"], &rows)
    })?)
}

fn every_text(every: &Every) -> String {
    interval(every).map_or_else(|| "other".to_owned(), duration::format)
}

async fn find(client: &Client, jid: &Jid) -> Result<Recurring, Failure> {
    match client.run(GetRecurring { jid: jid.clone() }).await? {
        Some(job) => Ok(*job),
        None => Err(Refusal::NoSuchRecurring { jid: jid.clone() }.into()),
    }
}

async fn show(client: &Client, jid: &Jid, out: &mut Output<'_>) -> Done {
    let job = find(client, jid).await?;
    let now = out.now;
    Ok(out.show(&RecurringView::new(&job), |out| {
        let backlog = match job.backlog {
            0 => "catches up on every missed job".to_owned(),
            max => format!("catches up on at most {max} missed jobs"),
        };
        card(
            out,
            &[
                ("jid", Cell::from(&job.jid)),
                ("queue", Cell::from(&job.queue)),
                ("klass", Cell::from(&job.klass)),
                ("every", every_text(&job.every).into()),
                ("next", when(job.next, now).into()),
                ("made", count(job.count, "job").into()),
                ("backlog", backlog.into()),
                ("priority", Cell::from(job.priority)),
                ("retries", Cell::from(job.retries)),
                ("tags", texts(&job.tags).join(" ").into()),
                ("payload", payload_text(&job.payload).into()),
            ],
        )
    })?)
}

async fn edit(client: &Client, args: RecurEditArgs, out: &mut Output<'_>) -> Done {
    let jid = args.jid;
    let update = UpdateRecurring {
        priority: args.priority,
        retries: args.retries,
        every: args.every.map(|every| Every::Interval(every.into())),
        backlog: args.backlog,
        payload: args.payload.map(|source| source.read()).transpose()?,
        klass: args.klass,
        queue: args.queue,
        ..UpdateRecurring::new(jid.clone())
    };
    if update == UpdateRecurring::new(jid.clone()) && args.tags.is_empty() && args.untags.is_empty() {
        let why = "nothing to change: give --every or another option; see `geartrain recur edit --help`";
        return Err(Failure::Usage(why.to_owned()));
    }
    client.run(update).await?;
    if !args.tags.is_empty() {
        client.run(TagRecurring { jid: jid.clone(), tags: args.tags }).await?;
    }
    if !args.untags.is_empty() {
        client.run(UntagRecurring { jid: jid.clone(), tags: args.untags }).await?;
    }
    show(client, &jid, out).await
}

async fn remove(client: &Client, jids: Vec<Jid>, out: &mut Output<'_>) -> Done {
    for jid in &jids {
        find(client, jid).await?;
    }
    client.batch(jids.iter().map(|jid| Call::from(Unrecur { jid: jid.clone() })).collect()).await?;
    let people = format!("{} removed", count(jids.len() as u64, "recurring job"));
    Ok(out.line(&json!({ "removed": texts(&jids) }), people)?)
}
