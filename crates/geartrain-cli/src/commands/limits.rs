//! `geartrain limits`: the length and rate limits of a queue.

use geartrain::{Client, GetLimits, QueueLimits, QueueName, SetLimits};
use serde_json::json;

use super::Done;
use crate::output::Output;
use crate::rate;
use crate::text::{Cell, card, count};
use crate::values::{limit, priority};
use crate::view::Number;
use clap::Args;
use geartrain::{Priority, Rate};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain limits mail
  geartrain limits mail --max 10000 --rate 100/1m+20
  geartrain limits mail --max-at 0=10000 --max-at 10=12000
  geartrain limits mail --none

A put into a full queue is refused. Setting limits replaces all previous ones.
A put is held to the highest --max-at that is not above its priority, or else the lowest, so that there is room
for urgent jobs; with --max too, the smaller limit counts.")]
pub(crate) struct LimitsArgs {
    /// The queue
    queue: QueueName,
    /// The maximum number of unfinished jobs
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    max: Option<u64>,
    /// The maximum number of unfinished jobs for puts of at least this priority; may be repeated
    #[arg(long, value_name = "PRIORITY=N", value_parser = level, allow_hyphen_values = true)]
    max_at: Vec<(Priority, u64)>,
    /// Rate limit for starting jobs: 10/s, 100/1m; 100/1m+20 allows a burst of 20
    #[arg(long, value_name = "N/DURATION[+BURST]", value_parser = rate::parse, allow_hyphen_values = true)]
    rate: Option<Rate>,
    /// Remove all limits
    #[arg(long, conflicts_with_all = ["max", "max_at", "rate"])]
    none: bool,
}

/// Parses a limit for a priority: `10=12000`.
fn level(text: &str) -> Result<(Priority, u64), String> {
    let bad = || format!("{text:?} is not a limit of at least 1 for a priority: write it like 10=12000");
    let (at, max) = text.split_once('=').ok_or_else(bad)?;
    Ok((priority(at).map_err(|_| bad())?, limit(max).map_err(|_| bad())?))
}

pub(super) async fn limits(client: &Client, args: LimitsArgs, out: &mut Output<'_>) -> Done {
    let queue = args.queue;
    let limits = QueueLimits { jobs_max: args.max, by_priority: args.max_at, rate: args.rate };
    if args.none || limits != QueueLimits::default() {
        client.run(SetLimits { queue: queue.clone(), limits }).await?;
    }
    let limits = client.run(GetLimits { queue: queue.clone() }).await?;
    show(&queue, &limits, out)
}

fn show(queue: &QueueName, limits: &QueueLimits, out: &mut Output<'_>) -> Done {
    let by_priority: Vec<_> = limits
        .by_priority
        .iter()
        .map(|(priority, max)| json!({ "priority": Number(priority.get()), "max": max }))
        .collect();
    let often = limits
        .rate
        .map(|rate| json!({ "count": rate.count(), "per": Number::from(rate.per()), "burst": rate.burst() }));
    let view = json!({
        "queue": queue.to_string(), "max": limits.jobs_max, "by_priority": by_priority, "rate": often,
    });
    if *limits == QueueLimits::default() {
        return Ok(out.line(&view, format_args!("{queue} has no limits"))?);
    }
    Ok(out.show(&view, |out| {
        let mut lines = vec![("queue", Cell::from(queue))];
        lines.extend(limits.jobs_max.map(|max| ("max", Cell::from(count(max, "unfinished job")))));
        lines.extend(limits.by_priority.iter().map(|(priority, max)| {
            ("max", Cell::from(format!("{} for priority {priority} and up", count(*max, "unfinished job"))))
        }));
        lines.extend(limits.rate.map(|often| ("rate", Cell::from(rate::format(often)))));
        card(out, &lines)
    })?)
}
