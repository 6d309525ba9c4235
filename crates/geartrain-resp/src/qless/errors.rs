//! Qless's error messages.

use geartrain_core::Refusal;

use super::Verb;

/// The prefix of every error, where clients expect it.
const PREFIX: &str = "ERR user_script:1: ";

/// The error reply with this message.
pub(crate) fn reply(message: &str) -> String {
    format!("{PREFIX}{message}")
}

/// The error reply to a command that was refused. What the caller may not do has the first words that Redis's
/// libraries know.
pub(crate) fn refused(refusal: &Refusal) -> String {
    refused_with(refusal, &refusal.to_string())
}

pub(super) fn refused_with(refusal: &Refusal, message: &str) -> String {
    match refusal {
        Refusal::Forbidden { .. } => format!("NOPERM {refusal}"),
        Refusal::ReadOnly { .. } => format!("READONLY {refusal}"),
        _ => reply(message),
    }
}

/// Qless's message for a refusal; where Qless has none, ours. Clients match parts of these texts, odd as some
/// of them are.
pub(crate) fn message(verb: Verb, refusal: &Refusal) -> String {
    match refusal {
        Refusal::NoSuchJob { jid } => match verb {
            Verb::Heartbeat => format!("Heartbeat(): Job {jid} does not exist"),
            Verb::Complete => format!("Complete(): Job {jid} does not exist"),
            Verb::Fail => format!("Fail(): Job {jid}does not exist"),
            Verb::Retry => format!("Retry(): Job {jid} does not exist"),
            Verb::Timeout => format!("Timeout(): Job {jid} does not exist"),
            Verb::Priority => format!("Priority(): Job {jid} does not exist"),
            Verb::Depends => not_in_depends(jid, "false"),
            Verb::Log => format!("Log(): Job {jid} does not exist"),
            Verb::Track => "Track(): Job does not exist".to_owned(),
            Verb::Tag => format!("Tag(): Job {jid} does not exist"),
            Verb::Requeue => format!("Requeue(): Job {jid} does not exist"),
            _ => refusal.to_string(),
        },
        Refusal::NoSuchRecurring { jid } => match verb {
            Verb::RecurUpdate => format!("Recur(): No recurring job {jid}"),
            Verb::RecurTag => format!("Tag(): Job {jid} does not exist"),
            Verb::RecurUntag => format!("Untag(): Job {jid} does not exist"),
            _ => refusal.to_string(),
        },
        Refusal::NotRunning { jid, qless, .. } => match verb {
            Verb::Heartbeat => format!("Heartbeat(): Job {jid} not currently running: {qless}"),
            Verb::Complete => format!("Complete(): Job {jid} is not currently running: {qless}"),
            Verb::Fail => format!("Fail(): Job {jid}not currently running: {qless}"),
            Verb::Retry => format!("Retry(): Job {jid} is not currently running: {qless}"),
            Verb::Timeout => format!("Timeout(): Job {jid} not running"),
            _ => refusal.to_string(),
        },
        Refusal::HeldByAnother { jid, holder, .. } => match verb {
            Verb::Heartbeat => format!("Heartbeat(): Job {jid} given out to another worker: {holder}"),
            Verb::Complete => {
                format!("Complete(): Job {jid} has been handed out to another worker: {holder}")
            }
            Verb::Fail => format!("Fail(): Job {jid} running with another worker: {holder}"),
            Verb::Retry => format!("Retry(): Job {jid} has been given to another worker: {holder}"),
            _ => refusal.to_string(),
        },
        Refusal::WrongQueue { jid, queue, .. } => match verb {
            Verb::Complete => format!("Complete(): Job {jid} running in another queue: {queue}"),
            // Qless has no check here. Clients know this text from completing.
            Verb::Retry => format!("Retry(): Job {jid} running in another queue: {queue}"),
            _ => refusal.to_string(),
        },
        Refusal::NotInDepends { jid, qless, .. } => not_in_depends(jid, qless),
        Refusal::IsDependency { jid, dependent } => {
            format!("Cancel(): {jid} is a dependency of {dependent} but is not mentioned to be canceled")
        }
        _ => refusal.to_string(),
    }
}

pub(crate) fn not_in_depends(jid: &geartrain_core::Jid, state: &str) -> String {
    format!("Depends(): Job {jid} not in the depends state: {state}")
}
