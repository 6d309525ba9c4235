//! Events as JSON.

use geartrain_core::{Event, FailedBy, Milestone, PositionedEvent, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use crate::details::ProgressView;
use crate::number::Number;

/// A published event.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PublishedView {
    /// A string, because many JSON parsers read numbers as doubles, and positions grow large.
    position: String,
    /// When it happened; null if an earlier version retained it.
    at: Option<Number>,
    #[serde(flatten)]
    event: EventView,
}

impl PublishedView {
    /// Of a published event.
    pub fn of(published: &PositionedEvent) -> PublishedView {
        PublishedView::new(published.position, published.at, &published.event)
    }

    /// Of an event, its position and its time.
    pub fn new(position: u64, at: Option<Timestamp>, event: &Event) -> PublishedView {
        PublishedView {
            position: position.to_string(),
            at: at.map(Number::from),
            event: EventView::new(event),
        }
    }
}

/// An event, with the keys that its kind has.
#[derive(Debug, Serialize, JsonSchema)]
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

/// The name of a milestone.
pub fn milestone(what: Milestone) -> &'static str {
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
