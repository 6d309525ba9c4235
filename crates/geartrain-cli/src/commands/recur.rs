//! `geartrain recur`: create, list, change and remove recurring jobs.

use geartrain::{
    Call, Client, Count, Every, GetRecurring, Jid, Jobs, Listing, Page, Period, Periodic, PeriodicTemplate,
    Put, QueueName, Queues, Recurring, Refusal, Reply, TagRecurring, Timestamp, Unrecur, UntagRecurring,
    UpdateRecurring,
};
use serde_json::json;

use super::periodic::{self, Backlog, PeriodicArgs, PeriodicView};
use super::put::{WhenArgs, read_payload};
use super::render::payload_text;
use super::{Done, new_jid};
use super::{JidArg, JidsArg, PageArgs};
use crate::duration;
use crate::failure::Failure;
use crate::output::{Output, Total};
use crate::payload::Source;
use crate::text::{Cell, card, count, table};
use crate::timestamp::{self, when};
use crate::values::{self, priority};
use crate::view::{RecurringView, interval, texts};
use clap::{Args, Subcommand};
use geartrain::{Klass, Priority, Tag};
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(crate) enum RecurVerb {
    /// Create a recurring job, or replace the one with that --jid
    #[command(after_help = "Examples:
  geartrain recur add reports nightly --every 1d --at 2026-04-01T03:00:00Z --jid nightly
  geartrain recur add reports nightly --cron '0 3 * * *' --zone Europe/Berlin --timeout 10m --overlap skip
  geartrain recur add mail digest --cron 'weekdays at 9:00' --backlog skip

A recurring job with --cron, or with options that Qless does not have, is put by a process: `geartrain server`,
`geartrain work`, or a program with a worker. Others are made when a worker pops, as in Qless.")]
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
    /// Pause a recurring job that has --cron or put options: it has no next run
    Pause(JidArg),
    /// Resume a paused recurring job: runs in the meantime are left out
    Resume(JidArg),
    /// Run a recurring job that has --cron or put options now, beside its schedule
    Run(JidArg),
    /// Remove recurring jobs; jobs already submitted by them stay
    Rm(JidsArg),
}

#[derive(Debug, Args)]
#[command(mut_arg("cron", |cron| cron.conflicts_with_all(["delay", "at"])))]
pub(crate) struct RecurAddArgs {
    /// The queue to submit jobs to
    queue: QueueName,
    /// The kind of job: the name of the code that runs it
    klass: Klass,
    /// The payload: text, @FILE, or - for standard input [default: empty]
    #[arg(allow_negative_numbers = true)]
    payload: Option<Source>,
    /// The interval between jobs
    #[arg(long, value_name = "DURATION", value_parser = values::length, required_unless_present = "cron")]
    every: Option<Duration>,
    #[command(flatten)]
    when: WhenArgs,
    /// Priority: higher runs first [default: 0]
    #[arg(long, value_name = "N", value_parser = priority, allow_negative_numbers = true)]
    priority: Option<Priority>,
    /// A tag to find the jobs by; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<Tag>,
    /// How many times each job may be retried [default: 5]
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    /// How many missed jobs to catch up on, 0 for all of them, or skip [default: 0, and 1 with --cron]
    #[arg(long, value_name = "N", value_parser = periodic::backlog)]
    backlog: Option<Backlog>,
    /// The id of the recurring job; its jobs are named <JID>-<number> [default: a new id]
    #[arg(long)]
    jid: Option<Jid>,
    #[command(flatten)]
    periodic: PeriodicArgs,
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
    /// How many missed jobs to catch up on, 0 for all of them, or skip
    #[arg(long, value_name = "N", value_parser = periodic::backlog)]
    backlog: Option<Backlog>,
    #[command(flatten)]
    periodic: PeriodicArgs,
}

pub(super) async fn recur(client: &Client, verb: RecurVerb, out: &mut Output<'_>) -> Done {
    match verb {
        RecurVerb::Add(args) => add(client, args, out).await,
        RecurVerb::Ls { queue, page } => list(client, queue, &page, out).await,
        RecurVerb::Get(args) => show(client, &args.jid, out).await,
        RecurVerb::Edit(args) => edit(client, args, out).await,
        RecurVerb::Pause(args) => {
            show_periodic(&periodic::pause(client, &args.jid, true, out.now).await?, out)
        }
        RecurVerb::Resume(args) => {
            show_periodic(&periodic::pause(client, &args.jid, false, out.now).await?, out)
        }
        RecurVerb::Run(args) => {
            let jid = periodic::run(client, &args.jid, out.now).await?;
            Ok(out.line(&json!({ "jid": jid.to_string(), "outcome": "created" }), jid)?)
        }
        RecurVerb::Rm(args) => remove(client, args.jids, out).await,
    }
}

async fn add(client: &Client, args: RecurAddArgs, out: &mut Output<'_>) -> Done {
    let jid = args.jid.unwrap_or_else(new_jid);
    let due = args.when.due();
    let payload = read_payload(args.payload.as_ref())?;
    let put = Put {
        priority: args.priority,
        retries: args.retries,
        tags: (!args.tags.is_empty()).then_some(args.tags),
        ..Put::new(args.queue, jid, args.klass, payload)
    };
    match (args.every, args.backlog.map_or(Some(0), Backlog::as_number)) {
        (Some(every), Some(backlog)) if !args.periodic.is_given() => {
            periodic::recur(client, put, every, backlog, &due, out).await
        }
        (every, _) => {
            let every = Period::Interval(every.unwrap_or_default().into());
            periodic::add(client, args.periodic.template(put, every, args.backlog), due.at, out).await
        }
    }
}

/// A recurring job of either kind.
enum Any {
    Qless(Recurring),
    Periodic(Periodic),
}

impl Any {
    fn view(&self) -> serde_json::Result<serde_json::Value> {
        match self {
            Any::Qless(job) => serde_json::to_value(RecurringView::new(job)),
            Any::Periodic(of) => serde_json::to_value(PeriodicView::new(of)),
        }
    }

    fn row(&self, now: Timestamp) -> [Cell; 6] {
        match self {
            Any::Qless(job) => [
                Cell::id(&job.jid),
                Cell::from(&job.queue),
                Cell::from(&job.klass),
                Cell::right(every_text(&job.every)),
                Cell::number(job.count),
                Cell::whole(timestamp::relative(job.next, now)),
            ],
            Any::Periodic(of) => [
                Cell::id(&of.template.put.jid),
                Cell::from(&of.template.put.queue),
                Cell::from(&of.template.put.klass),
                Cell::right(periodic::every_text(&of.template)),
                Cell::number(of.count),
                Cell::whole(periodic::next_text(of, now)),
            ],
        }
    }
}

async fn list(client: &Client, queue: Option<QueueName>, page: &PageArgs, out: &mut Output<'_>) -> Done {
    let (mut periodics, watched) = periodic::all(client).await?;
    if let Some(queue) = &queue {
        periodics.retain(|of| of.template.put.queue == *queue);
    }
    let is_unwatched =
        periodics.iter().any(|of| of.next.is_some()) && !periodic::is_watched(client, watched, out.now);
    let mut jids = Vec::new();
    let wanted = page.offset.saturating_add(page.limit());
    let queues = client.run(Queues { queue }).await?;
    let of_qless: u64 = queues.iter().map(|queue| queue.recurring).sum();
    let total = Total::Exactly(of_qless + periodics.len() as u64);
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
    let found = jids.len();
    let asked = jids.into_iter().skip(page.offset).take(page.limit());
    let answers = client.batch(asked.map(|jid| Call::from(GetRecurring { jid })).collect()).await?;
    let jobs = answers.into_iter().filter_map(|answer| match answer {
        Ok(Reply::GetRecurring(job)) => job.map(|job| Any::Qless(*job)),
        _ => None,
    });
    // Those of Qless come first.
    let periodics = periodics.into_iter().map(Any::Periodic).skip(page.offset.saturating_sub(found));
    let jobs: Vec<Any> = jobs.chain(periodics).take(page.limit()).collect();
    let views = jobs.iter().map(Any::view).collect::<Result<Vec<_>, _>>().map_err(std::io::Error::from)?;
    let now = out.now;
    let page = page.shown("recurring job", jobs.len(), total);
    out.page(&views, &page, "no recurring jobs", |out| {
        let rows: Vec<_> = jobs.iter().map(|job| job.row(now)).collect();
        table(out, ["JID", "QUEUE", "KLASS", "EVERY", "MADE", "NEXT"], &rows)
    })?;
    if is_unwatched && !out.json {
        out.remark(periodic::UNWATCHED)?;
    }
    Ok(())
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
    if let Some(of) = periodic::find(client, jid).await? {
        return show_periodic(&of, out);
    }
    let job = find(client, jid).await?;
    let now = out.now;
    Ok(out.show(&RecurringView::new(&job), |out| {
        let backlog = match job.backlog {
            0 => "catches up on every missed job".to_owned(),
            max => format!("catches up on at most {max} missed jobs"),
        };
        let mut rows = vec![
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
        ];
        rows.retain(|(_, cell)| !cell.is_blank());
        card(out, &rows)
    })?)
}

fn show_periodic(of: &Periodic, out: &mut Output<'_>) -> Done {
    let now = out.now;
    Ok(out.show(&PeriodicView::new(of), |text| periodic::show(of, now, text))?)
}

/// Changes a recurring job that goes beyond Qless.
async fn edit_periodic(
    client: &Client,
    mut template: PeriodicTemplate,
    args: RecurEditArgs,
    out: &mut Output<'_>,
) -> Done {
    let mut put = template.put;
    if let Some(source) = args.payload {
        put.payload = source.read()?;
    }
    put.queue = args.queue.unwrap_or(put.queue);
    put.klass = args.klass.unwrap_or(put.klass);
    put.priority = args.priority.or(put.priority);
    put.retries = args.retries.or(put.retries);
    let mut tags = put.tags.unwrap_or_default();
    tags.retain(|tag| !args.untags.contains(tag) && !args.tags.contains(tag));
    tags.extend(args.tags);
    put.tags = (!tags.is_empty()).then_some(tags);
    template.put = put;
    if let Some(every) = args.every {
        (template.every, template.phrase) = (Period::Interval(every.into()), None);
    }
    template.missed = args.backlog.map_or(template.missed, Backlog::missed);
    args.periodic.change(&mut template);
    show_periodic(&periodic::change(client, template, out.now).await?, out)
}

async fn edit(client: &Client, args: RecurEditArgs, out: &mut Output<'_>) -> Done {
    if let Some(of) = periodic::find(client, &args.jid).await? {
        return edit_periodic(client, *of.template, args, out).await;
    }
    let backlog = args.backlog.map(Backlog::as_number);
    if args.periodic.is_given() || backlog == Some(None) {
        find(client, &args.jid).await?;
        let why = "it is a recurring job of Qless, which has no such option; remove it and add it anew";
        return Err(Failure::Refused(why.to_owned()));
    }
    let jid = args.jid;
    let update = UpdateRecurring {
        priority: args.priority,
        retries: args.retries,
        every: args.every.map(|every| Every::Interval(every.into())),
        backlog: backlog.flatten(),
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
        if periodic::find(client, jid).await?.is_none() {
            find(client, jid).await?;
        }
    }
    for jid in &jids {
        periodic::remove(client, jid).await?;
    }
    client.batch(jids.iter().map(|jid| Call::from(Unrecur { jid: jid.clone() })).collect()).await?;
    let people = format!("{} removed", count(jids.len() as u64, "recurring job"));
    Ok(out.line(&json!({ "removed": texts(&jids) }), people)?)
}
