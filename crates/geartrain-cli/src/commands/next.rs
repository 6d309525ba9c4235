//! `geartrain next`: the moments of a time phrase or a cron expression, without storing anything.

use clap::Args;
use geartrain::schedule::{Schedule, When, Zone};
use geartrain::{Count, Timestamp};
use serde_json::json;

use super::Done;
use crate::failure::Failure;
use crate::output::Output;
use crate::timestamp::{self, Moment, relative};
use crate::values::at_least_one;
use geartrain_json::Number;

#[derive(Debug, Args)]
#[command(after_help = r#"Examples:
  geartrain next "every 2nd sunday at 7pm"
  geartrain next "weekdays at 9:00" --zone Europe/Berlin --count 10
  geartrain next "*/15 9-17 * * mon-fri" --from 2026-04-01
  geartrain next "* * * 0/2 19 0 0"                      # year month day weekday hour minute second
  geartrain next "7pm tomorrow" --json

Cron expressions have five fields (minute, hour, day of month, month, day of week), six (a second before them), or
seven as in the last but one example. Moments without a zone are in the local one, recurrences and cron expressions
in UTC, or both in that of --zone."#)]
pub(crate) struct NextArgs {
    /// A phrase such as "every monday at 9am" or "7pm tomorrow", or a cron expression
    when: String,
    /// How many moments to show
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value = "5")]
    count: Count,
    /// Show the moments from this time on, and not from now on
    #[arg(long, value_name = "WHEN", value_parser = timestamp::parse_any, allow_negative_numbers = true)]
    from: Option<Moment>,
}

pub(super) fn next(args: NextArgs, out: &mut Output<'_>) -> Done {
    let from = args.from.map_or(out.now, |from| from.at);
    let zones = timestamp::zones().map_err(Failure::Usage)?;
    let parsed = When::parse(&args.when, from, &zones);
    let (schedule, zone) = match parsed.map_err(|why| Failure::Usage(format!("{:?}: {why}", args.when)))? {
        When::Once(at) => return once(at, &zones.once, out),
        When::Recurring(schedule) => {
            let zone = schedule.zone().clone();
            (schedule, zone)
        }
    };
    let moments: Vec<Timestamp> =
        std::iter::successors(schedule.first(from), |at| schedule.next(*at)).take(args.count.get()).collect();
    if moments.is_empty() {
        return Err(Failure::Refused(format!(
            "{schedule} has no moment from {} on",
            timestamp::format(from)
        )));
    }
    if !out.json {
        let fields = schedule.canonical().unwrap_or_else(|| schedule.to_string());
        out.remark(format_args!("recurs: {fields} in {zone}"))?;
    }
    print("recurring", schedule.canonical(), &zone, &moments, out)
}

fn once(at: Timestamp, zone: &Zone, out: &mut Output<'_>) -> Done {
    let canonical = Schedule::once(at).and_then(|schedule| schedule.canonical());
    print("once", canonical, zone, &[at], out)
}

fn print(kind: &str, cron: Option<String>, zone: &Zone, moments: &[Timestamp], out: &mut Output<'_>) -> Done {
    let seconds: Vec<Number> = moments.iter().copied().map(Number::from).collect();
    // The seven fields of a moment are in UTC, like those of a schedule without a zone.
    let zone_of_fields = if kind == "once" { Some("UTC") } else { zone.name() };
    let view = json!({ "kind": kind, "cron": cron, "zone": zone_of_fields, "moments": seconds });
    let now = out.now;
    Ok(out.show(&view, |text| {
        for at in moments {
            let shown = zone.format(*at);
            let weekday = shown.get(..10).and_then(|date| date.parse::<jiff::civil::Date>().ok());
            let weekday = weekday.map_or_else(String::new, |date| format!("{:?}", date.weekday()));
            writeln!(text, "{shown}  {weekday:9}  {}", relative(*at, now))?;
        }
        Ok(())
    })?)
}
