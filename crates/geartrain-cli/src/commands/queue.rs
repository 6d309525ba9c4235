//! Queues: counts, statistics, pausing, and what is due.

use geartrain::{
    Client, ForgetQueues, ForgetWorkers, Pause, QueueName, Queues, Resume, Stats, Summary, Tick,
};
use serde_json::json;

use super::Done;
use super::QueuesArg;
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

pub(super) async fn queues(client: &Client, args: QueuesArgs, out: &mut Output<'_>) -> Done {
    let queues = client.run(Queues { queue: args.queue }).await?;
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
    Ok(out.show(&StatsView::new(args.queue.as_str(), args.day, &stats), |out| {
        let (queue, day) = (clean(args.queue.as_str()), timestamp::format_day(args.day));
        writeln!(out, "{HEADING}{queue} on {day}{HEADING:#}\n")?;
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
    client.run(Pause { queues: queues.clone() }).await?;
    show_paused(&queues, true, out)
}

pub(super) async fn resume(client: &Client, queues: Vec<QueueName>, out: &mut Output<'_>) -> Done {
    client.run(Resume { queues: queues.clone() }).await?;
    show_paused(&queues, false, out)
}

fn show_paused(queues: &[QueueName], paused: bool, out: &mut Output<'_>) -> Done {
    let names = texts(queues);
    let people = format!("{} {}", if paused { "paused" } else { "resumed" }, names.join(" "));
    Ok(out.line(&json!({ "queues": names, "paused": paused }), people)?)
}

pub(super) async fn forget(client: &Client, verb: ForgetVerb, out: &mut Output<'_>) -> Done {
    let names = match verb {
        ForgetVerb::Queue(args) => {
            let names = texts(&args.queues);
            client.run(ForgetQueues { queues: args.queues }).await?;
            names
        }
        ForgetVerb::Worker { workers } => {
            let names = texts(&workers);
            client.run(ForgetWorkers { workers }).await?;
            names
        }
    };
    let people = format!("forgot {}", names.join(" "));
    Ok(out.line(&json!({ "forgotten": names }), people)?)
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
