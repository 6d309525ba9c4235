//! What happens, as it happens.

use geartrain::{Client, Event, FailedBy, Milestone, Published, Subscription, SubscriptionEnd};
use serde::Serialize;

use super::Done;
use crate::args::EventsArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::particulars::{ProgressView, progress_text};
use crate::text::{clean, count};

pub(super) async fn events(client: &Client, args: EventsArgs, out: &mut Output<'_>) -> Done {
    let events = match args.after {
        Some(after) => client.events_after(after).await?,
        None => client.events().await?,
    };
    if args.count.is_none() && !out.json {
        out.remark("Ctrl-C ends this; --after with the last position printed goes on from there")?;
    }
    print(events, args.count, out).await
}

/// Prints so many events, each as soon as it comes.
async fn print(mut events: Box<dyn Subscription>, count_max: Option<u64>, out: &mut Output<'_>) -> Done {
    let (mut printed, mut last) = (0, None);
    while count_max.is_none_or(|most| printed < most) {
        let Published { position, event } = events.next().await.map_err(|end| ended(&end, last))?;
        out.show(&PublishedView { position: position.to_string(), event: EventView::new(&event) }, |out| {
            writeln!(out, "{position}  {}", clean(&text(&event)))
        })?;
        out.out.flush()?;
        (printed, last) = (printed + 1, Some(position));
    }
    match last {
        Some(last) if !out.json => Ok(out.remark(format_args!("`geartrain events --after {last}` goes on"))?),
        _ => Ok(()),
    }
}

/// Why no more events come, and how to go on.
fn ended(end: &SubscriptionEnd, last: Option<u64>) -> Failure {
    let on = match (end, last) {
        (SubscriptionEnd::Lagged { missed }, _) => Some(missed.saturating_sub(1)),
        (_, last) => last,
    };
    let advice = match on {
        Some(after) => format!("; `geartrain events --after {after}` goes on"),
        None => "; try again".to_owned(),
    };
    Failure::Unreachable(format!("{end}{advice}"))
}

#[derive(Debug, Serialize)]
struct PublishedView {
    /// A text, because many programs take numbers for doubles, and these grow large.
    position: String,
    #[serde(flatten)]
    event: EventView,
}

/// What happened, with what there is to say about it and no other keys.
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

/// What happened, in a few words.
fn text(event: &Event) -> String {
    match event {
        Event::Put { jid, queue } => format!("{jid} was put into {queue}"),
        Event::Popped { jid, queue, worker } => format!("{jid} of {queue} was popped by {worker}"),
        Event::Completed { jid, queue } => format!("{jid} of {queue} is complete"),
        Event::Advanced { jid, queue, to } => format!("{jid} went on from {queue} to {to}"),
        Event::Retried { jid, queue } => format!("{jid} of {queue} is to be tried again"),
        Event::Failed { jid, queue, worker, group, message, .. } => {
            let worker = worker.as_ref().map(|worker| format!(" at {worker}")).unwrap_or_default();
            format!("{jid} of {queue} failed{worker} in {group}: {message}")
        }
        Event::Canceled { jid, was } => {
            let holder = was.as_ref().and_then(|(_, worker)| worker.as_ref());
            let holder = holder.map(|worker| format!(", which {worker} held")).unwrap_or_default();
            format!("{jid} was cancelled{holder}")
        }
        Event::LockLost { jid, worker } => format!("{worker} lost its lock on {jid}"),
        Event::ConfigSet { option, value } => format!("option {option} is {value}"),
        Event::ConfigUnset { option } => format!("option {option} has its default"),
        Event::Track { jid } => format!("{jid} is tracked"),
        Event::Untrack { jid } => format!("{jid} is not tracked any more"),
        Event::Coalesced { jid, queue, submissions } => {
            format!("{jid} of {queue} stands for {} now", count(*submissions, "submission"))
        }
        Event::Abandoned { jid, queue } => format!("{jid} of {queue} is gone, since nobody waits for it"),
        Event::Progress { jid, progress } => format!("{jid} got to {}", progress_text(*progress)),
        Event::ResultStored { jid } => format!("the result of {jid} is kept"),
        Event::Released { jid, queue, worker, crashed: false } => {
            format!("{jid} was handed back to {queue} by {worker}")
        }
        Event::Released { jid, queue, worker, crashed: true } => {
            format!("{jid} went back to {queue}, since {worker} died")
        }
        Event::Announced { worker } => format!("{worker} said what it can do"),
        Event::WorkerLost { worker } => format!("{worker} is gone"),
        Event::LimitsSet { queue } => format!("{queue} has other limits"),
        Event::Milestone { jid, what } => format!("{jid} is tracked and was {}", milestone(*what)),
        _ => "something that this version does not know".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use geartrain::{Group, Jid, Portion, Progressed, QueueName};
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_named_and_says_what_there_is() {
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
                "j1 was put into mail",
                json!({ "position": "7", "event": "put", "jid": "j1", "queue": "mail" }),
            ),
            (
                failed,
                "j1 of mail failed in expired-mail: Job was not started in time",
                json!({ "position": "7", "event": "failed", "jid": "j1", "queue": "mail", "worker": null,
                    "group": "expired-mail", "message": "Job was not started in time", "by": "expired" }),
            ),
            (
                Event::Progress { jid: jid.clone(), progress },
                "j1 got to 25% (1 of 4)",
                json!({ "position": "7", "event": "progress", "jid": "j1",
                    "progress": { "part": 1, "whole": 4, "percent": 25, "left": null } }),
            ),
            (
                Event::Canceled { jid: jid.clone(), was: None },
                "j1 was cancelled",
                json!({ "position": "7", "event": "canceled", "jid": "j1", "queue": null, "worker": null }),
            ),
            (
                Event::ResultStored { jid },
                "the result of j1 is kept",
                json!({ "position": "7", "event": "result-kept", "jid": "j1" }),
            ),
        ] {
            assert_eq!(text(&event), people);
            assert_eq!(
                json!(PublishedView { position: "7".to_owned(), event: EventView::new(&event) }),
                view
            );
        }
    }

    #[test]
    fn when_events_end_it_says_how_to_go_on() {
        let lagged = ended(&SubscriptionEnd::Lagged { missed: 42 }, Some(7));
        assert_eq!(lagged.exit_code(), 3);
        assert!(lagged.to_string().ends_with("; `geartrain events --after 41` goes on"), "{lagged}");
        assert!(ended(&SubscriptionEnd::Closed, Some(7)).to_string().ends_with("--after 7` goes on"));
        assert!(ended(&SubscriptionEnd::Closed, None).to_string().ends_with("; try again"));
    }
}
