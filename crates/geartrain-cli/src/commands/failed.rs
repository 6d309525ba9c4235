//! Failed jobs (dead letters): count, list, and retry them.

use geartrain::{
    BulkAct, Call, Client, Count, Existing, Failed, Failures, GetMany, Group, Page, Put, QueueName, Refusal,
    Unfail,
};
use serde_json::json;

use super::Done;
use super::PageArgs;
use super::list::{failed_jobs, jobs_done, show_page};
use super::render::failure_table;
use super::select::{self, BulkArgs, Words};
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, table};
use clap::Args;

#[derive(Debug, Args)]
#[command(
    after_help = "Lists all groups, the largest first, or 25 jobs of one group, unless --limit is given."
)]
pub(crate) struct FailedArgs {
    /// List the jobs of this group, the latest first
    group: Option<Group>,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UnfailArgs {
    /// The group of failures
    #[arg(required_unless_present_any = ["filter", "all"], conflicts_with_all = ["filter", "all"])]
    group: Option<Group>,
    /// The queue to put the jobs into [default: the one each was in]
    #[arg(long)]
    queue: Option<QueueName>,
    /// How many jobs at most, oldest failures first [default: all]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["filter", "all"]
    )]
    count: Option<u64>,
    #[command(flatten)]
    bulk: BulkArgs,
}

/// How many jobs are requeued per batch.
const BATCH_JOBS: u64 = 500;

pub(super) async fn failed(client: &Client, args: FailedArgs, out: &mut Output<'_>) -> Done {
    if let Some(group) = args.group {
        let none = format!("no job failed in {group}");
        let (jobs, total) = failed_jobs(client, group, &args.page, out.now).await?;
        return show_page(&jobs, &args.page.shown("job", jobs.len(), total), &none, out, failure_table);
    }
    let mut groups: Vec<_> = client.run(Failures).await?.into_iter().collect();
    // Stable: groups of one size stay in the order of their names.
    groups.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let limit = args.page.limit.map_or(usize::MAX, Count::get);
    let (groups, total) = args.page.of(groups.into_iter(), limit);
    let views: Vec<_> =
        groups.iter().map(|(group, count)| json!({ "group": group.as_str(), "count": count })).collect();
    Ok(out.page(&views, &args.page.shown("group", groups.len(), total), "no job failed", |out| {
        let rows: Vec<_> =
            groups.iter().map(|(group, count)| [Cell::from(group), Cell::number(*count)]).collect();
        table(out, ["GROUP", "JOBS"], &rows)
    })?)
}

pub(super) async fn unfail(client: &Client, args: UnfailArgs, out: &mut Output<'_>) -> Done {
    let Some(group) = args.group else {
        let words = Words { verb: "requeue", done: "requeued" };
        return select::act(client, args.bulk, BulkAct::Unfail { queue: args.queue }, words, out).await;
    };
    args.bulk.check_unused()?;
    let moved = requeue_group(client, &group, args.queue, args.count).await?;
    let view = json!({ "group": group.as_str(), "moved": moved });
    Ok(out.line(&view, jobs_done(moved, "requeued"))?)
}

/// Requeues failed jobs of a group, into one queue or where each was, and returns how many.
pub(super) async fn requeue_group(
    client: &Client,
    group: &Group,
    queue: Option<QueueName>,
    count: Option<u64>,
) -> Result<u64, Failure> {
    let available = client.run(Failures).await?.get(group).copied().unwrap_or(0);
    if available == 0 {
        return Err(Failure::Refused(format!(
            "no job failed in {group}; `geartrain failed` lists the groups"
        )));
    }
    // Jobs that fail meanwhile are left alone, or this might never end.
    let wanted = count.unwrap_or(available).min(available);
    match queue {
        Some(queue) => into_one_queue(client, group, &queue, wanted).await,
        None => into_their_queues(client, group, wanted).await,
    }
}

async fn into_one_queue(
    client: &Client,
    group: &Group,
    queue: &QueueName,
    wanted: u64,
) -> Result<u64, Failure> {
    let mut moved = 0;
    while moved < wanted {
        let unfail =
            Unfail { queue: queue.clone(), group: group.clone(), count: batch_count(wanted - moved)? };
        match client.run(unfail).await? {
            0 => break,
            some => moved += some,
        }
    }
    Ok(moved)
}

/// Requeues each job where it was. The list is newest first, so the oldest are at its end.
async fn into_their_queues(client: &Client, group: &Group, wanted: u64) -> Result<u64, Failure> {
    let mut moved = 0;
    while moved < wanted {
        let count = batch_count(wanted - moved)?;
        let first = Failed { group: group.clone(), page: Page { offset: 0, count: Count::ONE } };
        let total = client.run(first).await?.total as usize;
        let page = Page { offset: total.saturating_sub(count.get()), count };
        let mut jids = client.run(Failed { group: group.clone(), page }).await?.jids;
        jids.reverse();
        let jobs = client.run(GetMany { jids }).await?;
        let puts = jobs.into_iter().filter_map(|job| {
            let put = Put::new(job.queue?, job.jid, job.klass, job.payload);
            Some(Call::from(Put { existing: Existing::Require, ..put }))
        });
        let mut put = 0;
        for answer in client.batch(puts.collect()).await? {
            match answer {
                Ok(_) => put += 1,
                // It was cancelled meanwhile.
                Err(Refusal::NoSuchJob { .. }) => {}
                Err(refusal) => return Err(geartrain::Error::from(refusal).into()),
            }
        }
        if put == 0 {
            break;
        }
        moved += put;
    }
    Ok(moved)
}

fn batch_count(left: u64) -> Result<Count, Failure> {
    Ok(Count::new(left.min(BATCH_JOBS) as i64).map_err(geartrain::Error::from)?)
}
