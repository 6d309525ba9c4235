//! `geartrain limits`: the length, rate and concurrency limits of a queue.

use geartrain::{
    AllConfig, Client, GetLimits, QueueLimits, QueueName, SetConfig, SetLimits, Setting, UnsetConfig,
};

use super::Done;
use super::queue::remark_if_new;
use crate::output::Output;
use crate::rate;
use crate::text::{Cell, card, count};
use crate::values::{limit, priority};
use clap::Args;
use geartrain::{Priority, Rate, read_number};
use geartrain_json::{MAX_CONCURRENCY, queue_option, spellings};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain limits mail
  geartrain limits mail --max 10000 --rate 100/1m+20
  geartrain limits mail --max-at 0=10000 --max-at 10=12000
  geartrain limits mail --max-concurrency 4
  geartrain limits mail --none

A put into a full queue is refused. Setting limits of length or rate replaces all of these; --max-concurrency,
which is the option QUEUE-max-concurrency, is set apart from them, and 0 removes it.
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
    /// The maximum number of jobs that run at the same time; 0 for no limit
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_concurrency: Option<u32>,
    /// Remove all limits
    #[arg(long, conflicts_with_all = ["max", "max_at", "rate", "max_concurrency"])]
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
    let is_set = limits != QueueLimits::default() || args.max_concurrency.is_some_and(|max| max > 0);
    if args.none || limits != QueueLimits::default() {
        client.run(SetLimits { queue: queue.clone(), limits }).await?;
    }
    let [option, other_spelling] = spellings(MAX_CONCURRENCY, queue.as_str());
    if args.none || args.max_concurrency == Some(0) {
        let settings = client.run(AllConfig).await?;
        for option in [option, other_spelling] {
            if let Some(Setting::Chosen(_)) = settings.get(&option) {
                client.run(UnsetConfig { option }).await?;
            }
        }
    } else if let Some(max) = args.max_concurrency {
        client.run(SetConfig::new(option, max.to_string())).await?;
    }
    let limits = client.run(GetLimits { queue: queue.clone() }).await?;
    let max_concurrency = queue_option(MAX_CONCURRENCY, &queue, &client.run(AllConfig).await?);
    // A Qless client may have set a negative number, which is no limit, or a fraction, which is rounded down.
    let max_concurrency = max_concurrency.and_then(|max| read_number(max.as_bytes()));
    show(&queue, &limits, max_concurrency.filter(|max| *max > 0.0).map(|max| max as u64), out)?;
    if is_set { remark_if_new(client, &queue, out).await } else { Ok(()) }
}

fn show(queue: &QueueName, limits: &QueueLimits, max_concurrency: Option<u64>, out: &mut Output<'_>) -> Done {
    let view = geartrain_json::LimitsView::new(queue, limits, max_concurrency);
    if *limits == QueueLimits::default() && max_concurrency.is_none() {
        return Ok(out.line(&view, format_args!("{queue} has no limits"))?);
    }
    Ok(out.show(&view, |out| {
        let mut lines = vec![("queue", Cell::from(queue))];
        lines.extend(limits.jobs_max.map(|max| ("max", Cell::from(count(max, "unfinished job")))));
        lines.extend(limits.by_priority.iter().map(|(priority, max)| {
            ("max", Cell::from(format!("{} for priority {priority} and up", count(*max, "unfinished job"))))
        }));
        lines.extend(limits.rate.map(|often| ("rate", Cell::from(rate::format(often)))));
        lines.extend(max_concurrency.map(|max| ("max-concurrency", Cell::from(count(max, "running job")))));
        card(out, &lines)
    })?)
}
