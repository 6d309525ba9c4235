//! Queues, and how they do.

use geartrain::{
    Client, ForgetQueues, ForgetWorkers, Pause, QueueName, Queues, Resume, Stats, Summary, Tick,
};
use serde_json::json;

use super::Done;
use crate::args::{ForgetVerb, QueuesArgs, StatsArgs, TickArgs};
use crate::moment::when;
use crate::output::Output;
use crate::text::{Cell, HEADING, clean, count, table};
use crate::view::{Number, QueueView, StatsView, texts};
use crate::{duration, moment};

pub(super) async fn queues(client: &Client, args: QueuesArgs, out: &mut Output<'_>) -> Done {
    let queues = client.run(Queues { queue: args.queue }).await?;
    let views: Vec<QueueView> = queues.iter().map(QueueView::new).collect();
    Ok(out.list(&views, "no queues yet; `geartrain put` makes the first", |out| {
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
        let (queue, day) = (clean(args.queue.as_str()), moment::format_day(args.day));
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
    Ok(out.line(&view, format_args!("{} done; {next}", count(reply.done, "thing")))?)
}
