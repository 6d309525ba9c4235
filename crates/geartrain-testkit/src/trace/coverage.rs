//! Coverage of a run of traces.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use geartrain_core::{
    Answer, Command, Event, FailedBy, JobEnding, Milestone, Reason, Refusal, Reply, StreamItem, StreamMessage,
};

/// Every kind of refusal that a trace can meet. `TooManyDependencies` needs more jobs than a trace has.
const REFUSALS: [&str; 13] = [
    "NoSuchJob",
    "NoSuchRecurring",
    "NotRunning",
    "HeldByAnother",
    "LockLost",
    "WrongQueue",
    "NotInDepends",
    "IsDependency",
    "Cycle",
    "QueueFull",
    "NoCapableWorker",
    "TooLarge",
    "BadArgument",
];

/// What is named by those refusals that are of several kinds, and that only what goes beyond Qless meets.
const REFUSED_THINGS: [&str; 16] = [
    "abilities",
    "after",
    "aside",
    "because",
    "chunk",
    "counter",
    "crashes_max",
    "evidence",
    "expires",
    "filter",
    "limit",
    "progress",
    "result",
    "result_for",
    "timeout",
    "waiter",
];

/// How often each command was answered and how often refused, how often each refusal was given, how often
/// each thing occurred, how often each reason kept a job from running, and which stream items were delivered.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    commands: BTreeMap<&'static str, (u64, u64)>,
    refusals: BTreeMap<&'static str, u64>,
    refused_things: BTreeMap<&'static str, u64>,
    events: BTreeMap<&'static str, u64>,
    reasons: BTreeMap<&'static str, u64>,
    told: BTreeMap<&'static str, u64>,
}

impl Coverage {
    /// Counts one more.
    pub fn count(
        &mut self,
        command: &Command,
        answer: &Answer,
        events: &[Event],
        deliveries: &[StreamMessage],
    ) {
        let (answered, refused) = self.commands.entry(command.name()).or_default();
        match answer {
            Ok(_) => *answered += 1,
            Err(refusal) => {
                *refused += 1;
                *self.refusals.entry(name(refusal)).or_default() += 1;
                // The engine's own words are static.
                if let Refusal::BadArgument { what: Cow::Borrowed(what), .. }
                | Refusal::TooLarge { what: Cow::Borrowed(what), .. } = refusal
                {
                    *self.refused_things.entry(what).or_default() += 1;
                }
            }
        }
        for event in events {
            *self.events.entry(name_of_event(event)).or_default() += 1;
        }
        if let Ok(Reply::Why(reply)) = answer {
            for reason in &reply.reasons {
                *self.reasons.entry(name_of_reason(reason)).or_default() += 1;
            }
        }
        for delivery in deliveries {
            *self.told.entry(name_of_item(&delivery.item)).or_default() += 1;
        }
    }

    /// How many commands there were.
    pub fn total(&self) -> u64 {
        self.commands.values().map(|(answered, refused)| answered + refused).sum()
    }

    /// What was met too seldom: commands answered less often than `least`, and refusals, reasons and what can
    /// happen or be told that never were.
    pub fn missing(&self, least: u64) -> Vec<&'static str> {
        let seldom = |name: &&&str| self.commands.get(**name).is_none_or(|(answered, _)| *answered < least);
        let mut missing: Vec<&str> = COMMANDS.iter().filter(seldom).copied().collect();
        let never = |all: &[&'static str], met: &BTreeMap<&str, u64>| -> Vec<&'static str> {
            all.iter().filter(|name| !met.contains_key(**name)).copied().collect()
        };
        missing.extend(never(&REFUSALS, &self.refusals));
        missing.extend(never(&REFUSED_THINGS, &self.refused_things));
        missing.extend(never(&EVENTS, &self.events));
        missing.extend(never(&REASONS, &self.reasons));
        missing.extend(never(&TOLD, &self.told));
        missing
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<19} {:>8} {:>8}", "command", "answered", "refused")?;
        for (name, (answered, refused)) in &self.commands {
            writeln!(f, "{name:<19} {answered:>8} {refused:>8}")?;
        }
        let tables = [
            ("refusal", "given", &self.refusals),
            ("refused for", "given", &self.refused_things),
            ("event", "published", &self.events),
            ("why", "named", &self.reasons),
            ("delivery", "told", &self.told),
        ];
        for (what, how_often, table) in tables {
            writeln!(f, "\n{what:<19} {how_often:>8}")?;
            for (name, times) in table {
                writeln!(f, "{name:<19} {times:>8}")?;
            }
        }
        Ok(())
    }
}

fn name(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NoSuchJob { .. } => "NoSuchJob",
        Refusal::NoSuchRecurring { .. } => "NoSuchRecurring",
        Refusal::NotRunning { .. } => "NotRunning",
        Refusal::HeldByAnother { .. } => "HeldByAnother",
        Refusal::LockLost { .. } => "LockLost",
        Refusal::WrongQueue { .. } => "WrongQueue",
        Refusal::NotInDepends { .. } => "NotInDepends",
        Refusal::IsDependency { .. } => "IsDependency",
        Refusal::Cycle { .. } => "Cycle",
        Refusal::QueueFull { .. } => "QueueFull",
        Refusal::NoCapableWorker { .. } => "NoCapableWorker",
        Refusal::TooLarge { .. } => "TooLarge",
        Refusal::BadArgument { .. } => "BadArgument",
        _ => "another",
    }
}

fn name_of_event(event: &Event) -> &'static str {
    match event {
        Event::Put { .. } => "Put",
        Event::Popped { .. } => "Popped",
        Event::Completed { .. } => "Completed",
        Event::Advanced { .. } => "Advanced",
        Event::Retried { .. } => "Retried",
        Event::Failed { by: FailedBy::Worker, .. } => "Failed/Worker",
        Event::Failed { by: FailedBy::Expiry, .. } => "Failed/Expiry",
        Event::Failed { by: FailedBy::Retry, .. } => "Failed/Retry",
        Event::Failed { by: FailedBy::WorkerLost, .. } => "Failed/Gone",
        Event::Failed { by: FailedBy::Crashes, .. } => "Failed/Crashes",
        Event::Failed { by: FailedBy::Deadline, .. } => "Failed/Deadline",
        Event::Failed { by: FailedBy::Expired, .. } => "Failed/Expired",
        Event::Failed { by: FailedBy::Upstream, .. } => "Failed/Upstream",
        Event::Failed { by: FailedBy::Moved, .. } => "Failed/Moved",
        Event::Canceled { .. } => "Canceled",
        Event::LockLost { .. } => "LockLost",
        Event::ConfigSet { .. } => "ConfigSet",
        Event::ConfigUnset { .. } => "ConfigUnset",
        Event::Track { .. } => "Track",
        Event::Untrack { .. } => "Untrack",
        Event::Coalesced { .. } => "Coalesced",
        Event::Abandoned { .. } => "Abandoned",
        Event::Progress { .. } => "Progress",
        Event::ResultStored { .. } => "ResultKept",
        Event::Released { crashed: false, .. } => "Released",
        Event::Released { crashed: true, .. } => "HandedBack/crashed",
        Event::Announced { .. } => "Announced",
        Event::WorkerLost { .. } => "WorkerLost",
        Event::LimitsSet { .. } => "LimitsSet",
        Event::Milestone { what: Milestone::Put, .. } => "Milestone/Put",
        Event::Milestone { what: Milestone::Popped, .. } => "Milestone/Popped",
        Event::Milestone { what: Milestone::Stalled, .. } => "Milestone/Stalled",
        Event::Milestone { what: Milestone::Completed, .. } => "Milestone/Completed",
        Event::Milestone { what: Milestone::Failed, .. } => "Milestone/Failed",
        Event::Milestone { what: Milestone::Canceled, .. } => "Milestone/Canceled",
        _ => "another",
    }
}

fn name_of_reason(reason: &Reason) -> &'static str {
    match reason {
        Reason::Running { .. } => "Running",
        Reason::Stalled { .. } => "Stalled",
        Reason::Complete { .. } => "Complete",
        Reason::Failed { .. } => "Failed",
        Reason::SetAside { .. } => "SetAside",
        Reason::DependsOn { failed: Some(_), .. } => "DependsOn/failed",
        Reason::DependsOn { .. } => "DependsOn",
        Reason::Scheduled { .. } => "Scheduled",
        Reason::Expired { .. } => "Expired",
        Reason::Paused { .. } => "Paused",
        Reason::Concurrency { .. } => "Concurrency",
        Reason::RateLimit { .. } => "RateLimit",
        Reason::NoWorker { asked: None, .. } => "NoWorker/never",
        Reason::NoWorker { asked: Some(_), .. } => "NoWorker",
        Reason::Behind { .. } => "Behind",
        Reason::Next => "Next",
        _ => "another",
    }
}

/// Every reason why a job does not run.
const REASONS: [&str; 16] = [
    "Running",
    "Stalled",
    "Complete",
    "Failed",
    "SetAside",
    "DependsOn",
    "DependsOn/failed",
    "Scheduled",
    "Expired",
    "Paused",
    "Concurrency",
    "RateLimit",
    "NoWorker/never",
    "NoWorker",
    "Behind",
    "Next",
];

fn name_of_item(told: &StreamItem) -> &'static str {
    match told {
        StreamItem::Chunk(..) => "Chunk",
        StreamItem::Progress { .. } => "Progress",
        StreamItem::Ended(JobEnding::Completed, _) => "Ended/Completed",
        StreamItem::Ended(JobEnding::Failed { .. }, _) => "Ended/Failed",
        StreamItem::Ended(JobEnding::Canceled, _) => "Ended/Canceled",
        _ => "another",
    }
}

/// All kinds of stream items.
const TOLD: [&str; 5] = ["Chunk", "Progress", "Ended/Completed", "Ended/Failed", "Ended/Canceled"];

/// Everything that can happen.
const EVENTS: [&str; 35] = [
    "Put",
    "Popped",
    "Completed",
    "Advanced",
    "Retried",
    "Failed/Worker",
    "Failed/Expiry",
    "Failed/Retry",
    "Failed/Gone",
    "Failed/Crashes",
    "Failed/Deadline",
    "Failed/Expired",
    "Failed/Upstream",
    "Failed/Moved",
    "Canceled",
    "LockLost",
    "ConfigSet",
    "ConfigUnset",
    "Track",
    "Untrack",
    "Coalesced",
    "Abandoned",
    "Progress",
    "ResultKept",
    "Released",
    "HandedBack/crashed",
    "Announced",
    "WorkerLost",
    "LimitsSet",
    "Milestone/Put",
    "Milestone/Popped",
    "Milestone/Stalled",
    "Milestone/Completed",
    "Milestone/Failed",
    "Milestone/Canceled",
];

/// The name of every command.
const COMMANDS: [&str; 73] = [
    "Put",
    "Pop",
    "Peek",
    "Heartbeat",
    "Complete",
    "Fail",
    "Retry",
    "Timeout",
    "Cancel",
    "Unfail",
    "SetPriority",
    "Depend",
    "Log",
    "Track",
    "Tracked",
    "AddTags",
    "RemoveTags",
    "Tagged",
    "TopTags",
    "Get",
    "GetMany",
    "Length",
    "Jobs",
    "Failures",
    "Failed",
    "Queues",
    "Workers",
    "WorkerJobs",
    "Stats",
    "Pause",
    "Resume",
    "ForgetQueues",
    "ForgetWorkers",
    "GetConfig",
    "AllConfig",
    "SetConfig",
    "UnsetConfig",
    "Recur",
    "Unrecur",
    "GetRecurring",
    "UpdateRecurring",
    "TagRecurring",
    "UntagRecurring",
    "Attach",
    "Detach",
    "Progress",
    "Chunk",
    "Release",
    "WorkerLost",
    "Announce",
    "RollCall",
    "Announced",
    "SetLimits",
    "GetLimits",
    "GetResult",
    "Status",
    "Why",
    "Tick",
    "AllocateIds",
    "PriorityCounts",
    "Canceled",
    "Select",
    "Act",
    "Figures",
    "WhyQueue",
    "Relock",
    "PutPeriodic",
    "RemovePeriodic",
    "Periodics",
    "DuePeriodics",
    "FirePeriodic",
    "SetAside",
    "EndSetAside",
];
