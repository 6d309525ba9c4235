//! Queues: counts, statistics, pausing, and what is due.

use geartrain::{
    Client, Error, ForgetQueues, ForgetWorkers, Pause, QueueCounts, QueueName, Queues, Resume, Stats,
    Summary, Tick,
};
use serde_json::json;

use super::Done;
use super::QueuesArg;
use super::workers::{is_known, no_worker};
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, HEADING, clean, count, table};
use crate::timestamp::when;
use crate::values::at_least_one;
use crate::view::{Number, QueueView, StatsView, texts};
use crate::{duration, timestamp};
use clap::{Args, Subcommand};
use geartrain::{Count, Timestamp, WorkerName};

#[derive(Debug, Args)]
pub(crate) struct QueuesArgs {
    /// Only this queue
    queue: Option<QueueName>,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// The queue
    queue: QueueName,
    /// The day, in UTC: 2026-04-01, today or yesterday
    #[arg(value_parser = timestamp::parse_day, default_value = "today")]
    day: Timestamp,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ForgetVerb {
    /// Remove queues from the list; their jobs stay
    Queue(QueuesArg),
    /// Remove workers from the list; their locks stay
    Worker {
        /// The names of the workers
        #[arg(required = true, value_name = "WORKER")]
        workers: Vec<WorkerName>,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "An open queue does this by itself. Running it more often does no harm.")]
pub(crate) struct TickArgs {
    /// How many steps to do at most
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value = "1000")]
    count: Count,
}

/// The counts of a queue; none if it is not on the list and has no jobs.
pub(super) async fn find_queue(client: &Client, queue: &QueueName) -> Result<Option<QueueCounts>, Error> {
    let counts = client.run(Queues { queue: Some(queue.clone()) }).await?.pop();
    let Some(counts) = counts else { return Ok(None) };
    let is_used = jobs_in(&counts) > 0 || counts.paused;
    if is_used || client.run(Queues::default()).await?.iter().any(|listed| listed.name == *queue) {
        return Ok(Some(counts));
    }
    Ok(None)
}

fn jobs_in(counts: &QueueCounts) -> u64 {
    counts.waiting + counts.running + counts.stalled + counts.scheduled + counts.depends + counts.recurring
}

pub(super) fn no_queue(queue: &QueueName) -> String {
    format!("there is no queue {queue}; `geartrain queues` lists the queues")
}

/// Remarks on a queue that has had no jobs yet, to which a setting applies all the same: its name may be
/// misspelled.
pub(super) async fn remark_if_new(client: &Client, queue: &QueueName, out: &mut Output<'_>) -> Done {
    if !out.json && find_queue(client, queue).await?.is_none() {
        out.remark(format_args!("{queue} has had no jobs yet; `geartrain queues` lists the queues"))?;
    }
    Ok(())
}

/// Remarks on names for which nothing was done. It is an error if that is all of them.
fn all_or_some(nothing_done: Vec<String>, names: usize, out: &mut Output<'_>) -> Done {
    if nothing_done.len() == names {
        return Err(Failure::Refused(nothing_done.join("; ")));
    }
    for remark in nothing_done {
        out.remark(remark)?;
    }
    Ok(())
}

pub(super) async fn queues(client: &Client, args: QueuesArgs, out: &mut Output<'_>) -> Done {
    let queues = match args.queue {
        Some(queue) => match find_queue(client, &queue).await? {
            Some(counts) => vec![counts],
            None => {
                if out.json {
                    out.line(&json!([]), "")?;
                }
                return Err(Failure::Refused(no_queue(&queue)));
            }
        },
        None => client.run(Queues::default()).await?,
    };
    let views: Vec<QueueView> = queues.iter().map(QueueView::new).collect();
    Ok(out.list(&views, "no queues yet; `geartrain put` creates the first", |out| {
        let rows: Vec<_> = queues
            .iter()
            .map(|queue| {
                [
                    Cell::from(&queue.name),
                    Cell::number(queue.waiting),
                    Cell::number(queue.running),
                    Cell::number(queue.stalled),
                    Cell::number(queue.scheduled),
                    Cell::number(queue.depends),
                    Cell::number(queue.recurring),
                    Cell::state(if queue.paused { "paused" } else { "" }),
                ]
            })
            .collect();
        let heading = ["QUEUE", "WAITING", "RUNNING", "STALLED", "SCHEDULED", "DEPENDS", "RECURRING", ""];
        table(out, heading, &rows)
    })?)
}

pub(super) async fn stats(client: &Client, args: StatsArgs, out: &mut Output<'_>) -> Done {
    let stats = client.run(Stats { queue: args.queue.clone(), date: args.day }).await?;
    let is_empty =
        stats.wait.count + stats.run.count == 0 && (stats.retries, stats.failures, stats.failed) == (0, 0, 0);
    if is_empty && find_queue(client, &args.queue).await?.is_none() {
        return Err(Failure::Refused(no_queue(&args.queue)));
    }
    Ok(out.show(&StatsView::new(args.queue.as_str(), args.day, &stats), |out| {
        let (queue, day) = (clean(args.queue.as_str()), timestamp::format_day(args.day));
        writeln!(out, "{HEADING}{queue} on {day} (UTC){HEADING:#}\n")?;
        let row = |what: &str, summary: &Summary| {
            let span = |seconds| {
                Cell::right(if summary.count == 0 { String::new() } else { duration::format(seconds) })
            };
            [Cell::from(what), Cell::number(summary.count), span(summary.mean), span(summary.std)]
        };
        table(out, ["", "JOBS", "MEAN", "DEVIATION"], &[row("waited", &stats.wait), row("ran", &stats.run)])?;
        writeln!(
            out,
            "\nlocks expired {}, failures {}, still failed {}",
            stats.retries, stats.failures, stats.failed
        )
    })?)
}

pub(super) async fn pause(client: &Client, queues: Vec<QueueName>, out: &mut Output<'_>) -> Done {
    let mut unknown = Vec::new();
    for queue in &queues {
        if find_queue(client, queue).await?.is_none() {
            unknown.push(queue);
        }
    }
    client.run(Pause { queues: queues.clone() }).await?;
    show_paused(&queues, true, out)?;
    for queue in unknown {
        out.remark(format_args!(
            "{queue} has had no jobs yet; it is paused for those to come, and `geartrain resume {queue}` undoes that"
        ))?;
    }
    Ok(())
}

pub(super) async fn resume(client: &Client, queues: Vec<QueueName>, out: &mut Output<'_>) -> Done {
    let mut unknown = Vec::new();
    for queue in &queues {
        match find_queue(client, queue).await? {
            None => unknown.push(no_queue(queue)),
            Some(counts) if !counts.paused => out.remark(format_args!("{queue} was not paused"))?,
            Some(_) => {}
        }
    }
    client.run(Resume { queues: queues.clone() }).await?;
    if unknown.len() < queues.len() {
        show_paused(&queues, false, out)?;
    }
    all_or_some(unknown, queues.len(), out)
}

fn show_paused(queues: &[QueueName], paused: bool, out: &mut Output<'_>) -> Done {
    let names = texts(queues);
    let people = format!("{} {}", if paused { "paused" } else { "resumed" }, names.join(" "));
    Ok(out.line(&json!({ "queues": names, "paused": paused }), people)?)
}

pub(super) async fn forget(client: &Client, verb: ForgetVerb, out: &mut Output<'_>) -> Done {
    let (mut forgotten, mut unknown, mut remarks) = (Vec::new(), Vec::new(), Vec::new());
    match verb {
        ForgetVerb::Queue(args) => {
            let listed = client.run(Queues::default()).await?;
            for queue in &args.queues {
                let is_listed = listed.iter().any(|listed| listed.name == *queue);
                let jobs = find_queue(client, queue).await?.map(|counts| jobs_in(&counts));
                let still_there = |jobs| {
                    format!(
                        "{queue} is off the list, but has {} that can still be popped; \
                         `geartrain jobs --queue {queue}` lists them",
                        count(jobs, "job")
                    )
                };
                match jobs {
                    Some(jobs @ 1..) if is_listed => remarks.push(still_there(jobs)),
                    Some(jobs @ 1..) => unknown.push(still_there(jobs)),
                    _ if is_listed => {}
                    _ => unknown.push(no_queue(queue)),
                }
                if is_listed {
                    forgotten.push(queue.to_string());
                }
            }
            client.run(ForgetQueues { queues: args.queues }).await?;
        }
        ForgetVerb::Worker { workers } => {
            for worker in &workers {
                match is_known(client, worker).await? {
                    true => forgotten.push(worker.to_string()),
                    false => unknown.push(no_worker(worker)),
                }
            }
            client.run(ForgetWorkers { workers }).await?;
        }
    }
    if !forgotten.is_empty() || out.json {
        let people = format!("forgot {}", forgotten.join(" "));
        out.line(&json!({ "forgotten": forgotten }), people)?;
    }
    for remark in remarks {
        out.remark(remark)?;
    }
    let names = forgotten.len() + unknown.len();
    all_or_some(unknown, names, out)
}

pub(super) async fn tick(client: &Client, args: TickArgs, out: &mut Output<'_>) -> Done {
    let reply = client.run(Tick { count: args.count }).await?;
    let now = out.now;
    let next = match reply.next {
        Some(next) if next <= now => "more is due now".to_owned(),
        Some(next) => format!("more is due {}", when(next, now)),
        None => "nothing more is due".to_owned(),
    };
    let view = json!({ "done": reply.done, "next": reply.next.map(Number::from) });
    Ok(out.line(&view, format_args!("{} done; {next}", count(reply.done, "step")))?)
}
