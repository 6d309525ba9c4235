//! What a queue takes and hands out.

use geartrain::{Client, GetLimits, QueueLimits, QueueName, SetLimits};
use serde_json::json;

use super::Done;
use crate::args::LimitsArgs;
use crate::output::Output;
use crate::rate;
use crate::text::{Cell, card, count};
use crate::view::Number;

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
