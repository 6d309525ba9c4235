//! `geartrain events`: print events as they happen.

use geartrain::{Client, Event, Events, FailedBy, Milestone, PositionedEvent, SubscriptionEnd, Timestamp};
use serde::Serialize;

use super::Done;
use crate::failure::Failure;
use crate::job_details::{ProgressView, progress_text};
use crate::output::Output;
use crate::text::{clean, count};
use crate::timestamp;
use crate::values::{limit, whole};
use crate::view::Number;
use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain events
  geartrain events --after 41 --count 10 --json

Prints one line per event: its position, its time, and what happened. Stop it with Ctrl-C, and continue with --after
and the last position printed: events are retained from the first subscription on.")]
pub(crate) struct EventsArgs {
    /// Start after this position, if it is still retained [default: with new events]
    #[arg(long, value_name = "POSITION", value_parser = whole::<u64>, allow_negative_numbers = true)]
    after: Option<u64>,
    /// Stop after this many events [default: never]
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    count: Option<u64>,
}

pub(super) async fn events(client: &Client, args: EventsArgs, out: &mut Output<'_>) -> Done {
    let events = match args.after {
        Some(after) => client.events_after(after).await?,
        None => client.events().await?,
    };
    if args.count.is_none() && !out.json {
        out.remark("stop with Ctrl-C; continue with --after and the last position printed")?;
    }
    print(events, args.count, out).await
}

/// Prints events as they arrive, at most `count_max`.
async fn print(mut events: Events, count_max: Option<u64>, out: &mut Output<'_>) -> Done {
    let (mut printed, mut last) = (0, None);
    while count_max.is_none_or(|max| printed < max) {
        let PositionedEvent { position, event, at } = events.next().await.map_err(|end| ended(&end, last))?;
        out.show(&PublishedView::new(position, at, &event), |out| {
            let at = at.map_or_else(|| "-".to_owned(), timestamp::format);
            writeln!(out, "{position}  {at}  {}", clean(&text(&event)))
        })?;
        out.out.flush()?;
        (printed, last) = (printed + 1, Some(position));
    }
    match last {
        Some(last) if !out.json => {
            Ok(out.remark(format_args!("continue with `geartrain events --after {last}`"))?)
        }
        _ => Ok(()),
    }
}

/// Why the subscription ended, and how to continue.
fn ended(end: &SubscriptionEnd, last: Option<u64>) -> Failure {
    let resume_after = match (end, last) {
        (SubscriptionEnd::Lagged { missed }, _) => Some(missed.saturating_sub(1)),
        (_, last) => last,
    };
    let advice = match resume_after {
        Some(after) => format!("; continue with `geartrain events --after {after}`"),
        None => "; try again".to_owned(),
    };
    Failure::Unreachable(format!("{end}{advice}"))
}

#[derive(Debug, Serialize)]
struct PublishedView {
    /// A string, because many JSON parsers read numbers as doubles, and positions grow large.
    position: String,
    /// When it happened; null if an earlier version retained it.
    at: Option<Number>,
    #[serde(flatten)]
    event: EventView,
}

impl PublishedView {
    fn new(position: u64, at: Option<Timestamp>, event: &Event) -> PublishedView {
        PublishedView {
            position: position.to_string(),
            at: at.map(Number::from),
            event: EventView::new(event),
        }
    }
}

/// An event, with the keys that its kind has.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum EventView {
    Put {
        jid: String,
        queue: String,
    },
    Popped {
        jid: String,
        queue: String,
        worker: String,
    },
    Completed {
        jid: String,
        queue: String,
    },
    Advanced {
        jid: String,
        queue: String,
        to: String,
    },
    Retried {
        jid: String,
        queue: String,
    },
    Failed {
        jid: String,
        queue: String,
        worker: Option<String>,
        group: String,
        message: String,
        by: &'static str,
    },
    Canceled {
        jid: String,
        queue: Option<String>,
        worker: Option<String>,
    },
    LockLost {
        jid: String,
        worker: String,
    },
    ConfigSet {
        option: String,
        value: String,
    },
    ConfigUnset {
        option: String,
    },
    Track {
        jid: String,
    },
    Untrack {
        jid: String,
    },
    Coalesced {
        jid: String,
        queue: String,
        submissions: u64,
    },
    Abandoned {
        jid: String,
        queue: String,
    },
    Progress {
        jid: String,
        progress: ProgressView,
    },
    ResultKept {
        jid: String,
    },
    HandedBack {
        jid: String,
        queue: String,
        worker: String,
        crashed: bool,
    },
    Announced {
        worker: String,
    },
    WorkerGone {
        worker: String,
    },
    LimitsSet {
        queue: String,
    },
    Milestone {
        jid: String,
        what: &'static str,
    },
    Other,
}

impl EventView {
    fn new(event: &Event) -> EventView {
        match event {
            Event::Put { jid, queue } => EventView::Put { jid: jid.to_string(), queue: queue.to_string() },
            Event::Popped { jid, queue, worker } => EventView::Popped {
                jid: jid.to_string(),
                queue: queue.to_string(),
                worker: worker.to_string(),
            },
            Event::Completed { jid, queue } => {
                EventView::Completed { jid: jid.to_string(), queue: queue.to_string() }
            }
            Event::Advanced { jid, queue, to } => {
                EventView::Advanced { jid: jid.to_string(), queue: queue.to_string(), to: to.to_string() }
            }
            Event::Retried { jid, queue } => {
                EventView::Retried { jid: jid.to_string(), queue: queue.to_string() }
            }
            Event::Failed { jid, queue, worker, group, message, by } => EventView::Failed {
                jid: jid.to_string(),
                queue: queue.to_string(),
                worker: worker.as_ref().map(ToString::to_string),
                group: group.to_string(),
                message: message.clone(),
                by: failed_by(*by),
            },
            Event::Canceled { jid, was } => EventView::Canceled {
                jid: jid.to_string(),
                queue: was.as_ref().map(|(queue, _)| queue.to_string()),
                worker: was.as_ref().and_then(|(_, worker)| worker.as_ref()).map(ToString::to_string),
            },
            Event::LockLost { jid, worker } => {
                EventView::LockLost { jid: jid.to_string(), worker: worker.to_string() }
            }
            Event::ConfigSet { option, value } => {
                EventView::ConfigSet { option: option.clone(), value: value.clone() }
            }
            Event::ConfigUnset { option } => EventView::ConfigUnset { option: option.clone() },
            Event::Track { jid } => EventView::Track { jid: jid.to_string() },
            Event::Untrack { jid } => EventView::Untrack { jid: jid.to_string() },
            Event::Coalesced { jid, queue, submissions } => EventView::Coalesced {
                jid: jid.to_string(),
                queue: queue.to_string(),
                submissions: *submissions,
            },
            Event::Abandoned { jid, queue } => {
                EventView::Abandoned { jid: jid.to_string(), queue: queue.to_string() }
            }
            Event::Progress { jid, progress } => {
                EventView::Progress { jid: jid.to_string(), progress: ProgressView::new(*progress) }
            }
            Event::ResultStored { jid } => EventView::ResultKept { jid: jid.to_string() },
            Event::Released { jid, queue, worker, crashed } => EventView::HandedBack {
                jid: jid.to_string(),
                queue: queue.to_string(),
                worker: worker.to_string(),
                crashed: *crashed,
            },
            Event::Announced { worker } => EventView::Announced { worker: worker.to_string() },
            Event::WorkerLost { worker } => EventView::WorkerGone { worker: worker.to_string() },
            Event::LimitsSet { queue } => EventView::LimitsSet { queue: queue.to_string() },
            Event::Milestone { jid, what } => {
                EventView::Milestone { jid: jid.to_string(), what: milestone(*what) }
            }
            _ => EventView::Other,
        }
    }
}

fn failed_by(by: FailedBy) -> &'static str {
    match by {
        FailedBy::Worker => "worker",
        FailedBy::Expiry => "expiry",
        FailedBy::Retry => "retry",
        FailedBy::WorkerLost => "gone",
        FailedBy::Crashes => "crashes",
        FailedBy::Deadline => "deadline",
        FailedBy::Expired => "expired",
        FailedBy::Upstream => "upstream",
        FailedBy::Moved => "moved",
        _ => "other",
    }
}

fn milestone(what: Milestone) -> &'static str {
    match what {
        Milestone::Put => "put",
        Milestone::Popped => "popped",
        Milestone::Stalled => "stalled",
        Milestone::Completed => "completed",
        Milestone::Failed => "failed",
        Milestone::Canceled => "canceled",
        _ => "other",
    }
}

/// An event in one line for people.
fn text(event: &Event) -> String {
    match event {
        Event::Put { jid, queue } => format!("{jid} was submitted to {queue}"),
        Event::Popped { jid, queue, worker } => format!("{jid} of {queue} was popped by {worker}"),
        Event::Completed { jid, queue } => format!("{jid} of {queue} is complete"),
        Event::Advanced { jid, queue, to } => format!("{jid} moved on from {queue} to {to}"),
        Event::Retried { jid, queue } => format!("{jid} of {queue} will be retried"),
        Event::Failed { jid, queue, worker, group, message, .. } => {
            let worker = worker.as_ref().map(|worker| format!(" at {worker}")).unwrap_or_default();
            format!("{jid} of {queue} failed{worker} in {group}: {message}")
        }
        Event::Canceled { jid, was } => {
            let holder = was.as_ref().and_then(|(_, worker)| worker.as_ref());
            let holder = holder.map(|worker| format!(" while {worker} held it")).unwrap_or_default();
            format!("{jid} was cancelled{holder}")
        }
        Event::LockLost { jid, worker } => format!("{worker} lost its lock on {jid}"),
        Event::ConfigSet { option, value } => format!("option {option} was set to {value}"),
        Event::ConfigUnset { option } => format!("option {option} was reset to its default"),
        Event::Track { jid } => format!("{jid} is tracked"),
        Event::Untrack { jid } => format!("{jid} is no longer tracked"),
        Event::Coalesced { jid, queue, submissions } => {
            format!("{jid} of {queue} now stands for {}", count(*submissions, "submission"))
        }
        Event::Abandoned { jid, queue } => format!("{jid} of {queue} was removed: no client waits for it"),
        Event::Progress { jid, progress } => format!("{jid} is at {}", progress_text(*progress)),
        Event::ResultStored { jid } => format!("the result of {jid} was stored"),
        Event::Released { jid, queue, worker, crashed: false } => {
            format!("{jid} was released to {queue} by {worker}")
        }
        Event::Released { jid, queue, worker, crashed: true } => {
            format!("{jid} returned to {queue}: {worker} was lost")
        }
        Event::Announced { worker } => format!("{worker} announced its capabilities"),
        Event::WorkerLost { worker } => format!("{worker} was lost"),
        Event::LimitsSet { queue } => format!("the limits of {queue} changed"),
        Event::Milestone { jid, what: Milestone::Canceled } => format!("tracked job {jid} was cancelled"),
        Event::Milestone { jid, what } => format!("tracked job {jid} was {}", milestone(*what)),
        _ => "an event that this version does not know".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use geartrain::{Group, Jid, Portion, Progressed, QueueName};
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_has_the_keys_of_its_kind() {
        let (jid, queue) = (Jid::new("j1").unwrap(), QueueName::new("mail").unwrap());
        let failed = Event::Failed {
            jid: jid.clone(),
            queue: queue.clone(),
            worker: None,
            group: Group::new("expired-mail").unwrap(),
            message: "Job was not started in time".to_owned(),
            by: FailedBy::Expired,
        };
        let progress = Progressed { portion: Portion::new(1, 4).unwrap(), seconds_left: None };
        for (event, people, view) in [
            (
                Event::Put { jid: jid.clone(), queue },
                "j1 was submitted to mail",
                json!({ "position": "7", "at": 5, "event": "put", "jid": "j1", "queue": "mail" }),
            ),
            (
                failed,
                "j1 of mail failed in expired-mail: Job was not started in time",
                json!({ "position": "7", "at": 5, "event": "failed", "jid": "j1", "queue": "mail", "worker": null,
                    "group": "expired-mail", "message": "Job was not started in time", "by": "expired" }),
            ),
            (
                Event::Progress { jid: jid.clone(), progress },
                "j1 is at 25% (1 of 4)",
                json!({ "position": "7", "at": 5, "event": "progress", "jid": "j1",
                    "progress": { "part": 1, "whole": 4, "percent": 25, "left": null } }),
            ),
            (
                Event::Canceled { jid: jid.clone(), was: None },
                "j1 was cancelled",
                json!({ "position": "7", "at": 5, "event": "canceled", "jid": "j1", "queue": null, "worker": null }),
            ),
            (
                Event::ResultStored { jid },
                "the result of j1 was stored",
                json!({ "position": "7", "at": 5, "event": "result-kept", "jid": "j1" }),
            ),
        ] {
            assert_eq!(text(&event), people);
            assert_eq!(json!(PublishedView::new(7, Some(Timestamp::from(5)), &event)), view);
        }
    }

    #[test]
    fn the_end_of_a_subscription_says_how_to_continue() {
        let lagged = ended(&SubscriptionEnd::Lagged { missed: 42 }, Some(7));
        assert_eq!(lagged.exit_code(), 3);
        assert!(lagged.to_string().ends_with("; continue with `geartrain events --after 41`"), "{lagged}");
        assert!(ended(&SubscriptionEnd::Closed, Some(7)).to_string().ends_with("--after 7`"));
        assert!(ended(&SubscriptionEnd::Closed, None).to_string().ends_with("; try again"));
    }
}
