//! Queues: counts, statistics, pausing, and what is due.

use std::collections::BTreeMap;

use geartrain::{
    Client, Error, Figures, ForgetQueues, ForgetWorkers, Pause, QueueCounts, QueueFigures, QueueName, Queues,
    Refusal, Resume, Stats, Summary, Tick,
};
use serde_json::json;

use super::Done;
use super::QueuesArg;
use super::workers::{is_known, no_worker};
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, HEADING, TextOut, clean, count, table};
use crate::timestamp::when;
use crate::values::at_least_one;
use crate::{duration, timestamp};
use clap::{Args, Subcommand};
use geartrain::{Count, Timestamp, WorkerName};
use geartrain_json::{Number, QueueView, StatsView, texts};

#[derive(Debug, Args)]
#[command(
    after_help = "OLDEST is how long the oldest waiting job has waited, and PER MIN how many jobs were completed per minute
in the last one to two minutes. `geartrain why --queue QUEUE` explains why the jobs of a queue are not running."
)]
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
    let queues = match &args.queue {
        Some(queue) => match find_queue(client, queue).await? {
            Some(counts) => vec![counts],
            None => {
                if out.json {
                    out.line(&json!([]), "")?;
                }
                return Err(Failure::Refused(no_queue(queue)));
            }
        },
        None => client.run(Queues::default()).await?,
    };
    let figures = figures(client, args.queue).await?;
    // By name, because there may be a hundred thousand queues.
    let figures: BTreeMap<_, _> = figures.iter().map(|figures| (&figures.name, figures)).collect();
    let figures_of = |queue: &QueueCounts| figures.get(&queue.name).copied();
    let views: Vec<QueueView> = queues.iter().map(|queue| QueueView::new(queue, figures_of(queue))).collect();
    let now = out.now;
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
                    failed_cell(figures_of(queue)),
                    oldest_cell(figures_of(queue), now),
                    Cell::right(figures_of(queue).and_then(|of| of.rate).map_or_else(String::new, rate_text)),
                    Cell::state(if queue.paused { "paused" } else { "" }),
                ]
            })
            .collect();
        let heading = [
            "QUEUE",
            "WAITING",
            "RUNNING",
            "STALLED",
            "SCHEDULED",
            "DEPENDS",
            "RECURRING",
            "FAILED",
            "OLDEST",
            "PER MIN",
            "",
        ];
        table(out, heading, &rows)
    })?)
}

/// The figures of queues; none on a backend without them.
async fn figures(client: &Client, queue: Option<QueueName>) -> Result<Vec<QueueFigures>, Error> {
    match client.run(Figures { queue }).await {
        Err(Error::Refused(Refusal::Unsupported { .. })) => Ok(Vec::new()),
        figures => figures,
    }
}

fn failed_cell(figures: Option<&QueueFigures>) -> Cell {
    Cell::right(match figures {
        Some(QueueFigures { failed, failed_or_more: true, .. }) => format!("{failed}+"),
        Some(figures) => return Cell::number(figures.failed),
        None => String::new(),
    })
}

/// How long the oldest job has waited.
fn oldest_cell(figures: Option<&QueueFigures>, now: Timestamp) -> Cell {
    let oldest = figures.and_then(|figures| figures.oldest);
    Cell::right(oldest.map_or_else(String::new, |oldest| oldest_text(oldest, now)))
}

pub(super) fn oldest_text(oldest: Timestamp, now: Timestamp) -> String {
    duration::format((now - oldest).get().max(0.0).round())
}

/// Completions per minute, to two digits below ten.
fn rate_text(per_minute: f64) -> String {
    match per_minute {
        0.0 => "0".to_owned(),
        ..10.0 => format!("{per_minute:.1}"),
        _ => format!("{per_minute:.0}"),
    }
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
        histogram(out, "waited", &stats.wait)?;
        histogram(out, "ran", &stats.run)?;
        writeln!(
            out,
            "\nlocks expired {}, failures {}, failed jobs that were not put again or cancelled {}",
            stats.retries, stats.failures, stats.failed
        )
    })?)
}

/// The rows of a printed histogram: a title, and the first bucket after it. Buckets are the seconds 0 to 59,
/// the minutes 1 to 59, the hours 1 to 23 and the days 1 to 6.
const HISTOGRAM_ROWS: [(&str, usize); 12] = [
    ("under 1s", 1),
    ("1s to 2s", 2),
    ("2s to 5s", 5),
    ("5s to 10s", 10),
    ("10s to 30s", 30),
    ("30s to 1m", 60),
    ("1m to 5m", 64),
    ("5m to 15m", 74),
    ("15m to 1h", 119),
    ("1h to 6h", 124),
    ("6h to 1d", 142),
    ("1d or more", usize::MAX),
];

/// The longest bar, in characters.
const BAR_MAX: u64 = 40;

/// Prints how many jobs took how long, as bars. Rows before the first and after the last job are left out.
fn histogram(out: &mut TextOut<'_>, what: &str, summary: &Summary) -> std::io::Result<()> {
    let mut from = 0;
    let counts: Vec<(&str, u64)> = HISTOGRAM_ROWS
        .iter()
        .map(|(title, to)| {
            let buckets = summary.histogram.iter().take(*to).skip(from);
            from = *to;
            (*title, buckets.sum())
        })
        .collect();
    let Some(first) = counts.iter().position(|(_, jobs)| *jobs > 0) else { return Ok(()) };
    let last = counts.iter().rposition(|(_, jobs)| *jobs > 0).unwrap_or(first);
    let most = counts.iter().map(|(_, jobs)| *jobs).max().unwrap_or(1);
    let all: u64 = counts.iter().map(|(_, jobs)| jobs).sum();
    let rows: Vec<_> = counts[first..=last]
        .iter()
        .map(|(title, jobs)| {
            // A job is never invisible.
            let bar = "#".repeat((jobs * BAR_MAX).div_ceil(most) as usize);
            let share = format!("{:.0}%", *jobs as f64 * 100.0 / all as f64);
            [Cell::right(title), Cell::number(*jobs), Cell::right(share), Cell::from(bar)]
        })
        .collect();
    writeln!(out)?;
    table(out, [&what.to_uppercase(), "JOBS", "SHARE", ""], &rows)
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
