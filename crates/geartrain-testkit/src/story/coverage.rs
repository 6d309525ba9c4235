//! What a run of stories has touched.

use std::collections::BTreeMap;
use std::fmt;

use geartrain_core::{Answer, Command, Event, FailedBy, Milestone, Refusal};

/// Every kind of refusal that a story can meet. Too many dependencies takes more jobs than a story has.
const REFUSALS: [&str; 11] = [
    "NoSuchJob",
    "NoSuchRecurring",
    "NotRunning",
    "HeldByAnother",
    "LockLost",
    "WrongQueue",
    "NotInDepends",
    "IsDependency",
    "Cycle",
    "TooLarge",
    "BadArgument",
];

/// How often each command was answered and how often refused, how often each refusal was given, and how often each
/// thing happened.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    commands: BTreeMap<&'static str, (u64, u64)>,
    refusals: BTreeMap<&'static str, u64>,
    events: BTreeMap<&'static str, u64>,
}

impl Coverage {
    /// Counts one more.
    pub fn count(&mut self, command: &Command, answer: &Answer, events: &[Event]) {
        let (answered, refused) = self.commands.entry(command.name()).or_default();
        match answer {
            Ok(_) => *answered += 1,
            Err(refusal) => {
                *refused += 1;
                *self.refusals.entry(name(refusal)).or_default() += 1;
            }
        }
        for event in events {
            *self.events.entry(name_of_event(event)).or_default() += 1;
        }
    }

    /// How many commands there were.
    pub fn total(&self) -> u64 {
        self.commands.values().map(|(answered, refused)| answered + refused).sum()
    }

    /// What was met too seldom: commands answered less often than `least`, refusals never given, and what never happened.
    pub fn missing(&self, least: u64) -> Vec<&'static str> {
        let seldom = |name: &&&str| self.commands.get(**name).is_none_or(|(answered, _)| *answered < least);
        let never_said = |name: &&&str| !self.refusals.contains_key(**name);
        let never_happened = |name: &&&str| !self.events.contains_key(**name);
        let refusals = REFUSALS.iter().filter(never_said);
        let events = EVENTS.iter().filter(never_happened);
        COMMANDS.iter().filter(seldom).chain(refusals).chain(events).copied().collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<19} {:>8} {:>8}", "command", "answered", "refused")?;
        for (name, (answered, refused)) in &self.commands {
            writeln!(f, "{name:<19} {answered:>8} {refused:>8}")?;
        }
        writeln!(f, "\n{:<19} {:>8}", "refusal", "given")?;
        for (name, given) in &self.refusals {
            writeln!(f, "{name:<19} {given:>8}")?;
        }
        writeln!(f, "\n{:<19} {:>8}", "event", "happened")?;
        for (name, happened) in &self.events {
            writeln!(f, "{name:<19} {happened:>8}")?;
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
        Event::Canceled { .. } => "Canceled",
        Event::LockLost { .. } => "LockLost",
        Event::ConfigSet { .. } => "ConfigSet",
        Event::ConfigUnset { .. } => "ConfigUnset",
        Event::Track { .. } => "Track",
        Event::Untrack { .. } => "Untrack",
        Event::Milestone { what: Milestone::Put, .. } => "Milestone/Put",
        Event::Milestone { what: Milestone::Popped, .. } => "Milestone/Popped",
        Event::Milestone { what: Milestone::Stalled, .. } => "Milestone/Stalled",
        Event::Milestone { what: Milestone::Completed, .. } => "Milestone/Completed",
        Event::Milestone { what: Milestone::Failed, .. } => "Milestone/Failed",
        Event::Milestone { what: Milestone::Canceled, .. } => "Milestone/Canceled",
        _ => "another",
    }
}

/// Everything that can happen.
const EVENTS: [&str; 20] = [
    "Put",
    "Popped",
    "Completed",
    "Advanced",
    "Retried",
    "Failed/Worker",
    "Failed/Expiry",
    "Failed/Retry",
    "Canceled",
    "LockLost",
    "ConfigSet",
    "ConfigUnset",
    "Track",
    "Untrack",
    "Milestone/Put",
    "Milestone/Popped",
    "Milestone/Stalled",
    "Milestone/Completed",
    "Milestone/Failed",
    "Milestone/Canceled",
];

/// The name of every command.
const COMMANDS: [&str; 43] = [
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
];
