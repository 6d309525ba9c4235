//! Foreign scripts: what they publish on a Redis that they share with ours, as events.
//!
//! They publish on Qless's channels only, with less detail than our own events.

use geartrain_core::{Event, FailedBy, Group, Jid, Milestone, QueueName, WorkerName};
use serde::Deserialize;

/// The channels without their prefix. Messages of worker channels are on `ql:log` as well.
pub(crate) const CHANNELS: [&str; 9] = [
    "ql:log",
    "ql:track",
    "ql:untrack",
    "ql:put",
    "ql:popped",
    "ql:stalled",
    "ql:completed",
    "ql:failed",
    "ql:canceled",
];

/// A message on `ql:log`.
#[derive(Deserialize)]
struct Said {
    event: String,
    jid: Option<String>,
    /// False for a job that does not exist.
    queue: Option<TextOrFalse>,
    to: Option<String>,
    worker: Option<TextOrFalse>,
    group: Option<String>,
    message: Option<String>,
    option: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrFalse {
    Text(String),
    False(#[allow(dead_code, reason = "only that it is not a text matters")] bool),
}

impl TextOrFalse {
    fn text(self) -> Option<String> {
        match self {
            TextOrFalse::Text(text) => Some(text),
            TextOrFalse::False(_) => None,
        }
    }
}

/// The event of a message, if it is a known one. `queue_of` is used where the message does not name the job's
/// queue.
pub(crate) fn event(channel: &str, message: &[u8], queue_of: Option<QueueName>) -> Option<Event> {
    let milestone = match channel {
        "ql:log" => return logged(message, queue_of),
        "ql:track" => return Some(Event::Track { jid: jid(message)? }),
        "ql:untrack" => return Some(Event::Untrack { jid: jid(message)? }),
        "ql:put" => Milestone::Put,
        "ql:popped" => Milestone::Popped,
        "ql:stalled" => Milestone::Stalled,
        "ql:completed" => Milestone::Completed,
        "ql:failed" => Milestone::Failed,
        "ql:canceled" => Milestone::Canceled,
        _ => return None,
    };
    Some(Event::Milestone { jid: jid(message)?, what: milestone })
}

/// The job of a message about a failure, which does not name the queue.
pub(crate) fn failed_job(channel: &str, message: &[u8]) -> Option<Jid> {
    if channel != "ql:log" {
        return None;
    }
    let said: Said = serde_json::from_slice(message).ok()?;
    if said.event == "failed" { Jid::new(said.jid?).ok() } else { None }
}

fn jid(message: &[u8]) -> Option<Jid> {
    Jid::new(std::str::from_utf8(message).ok()?).ok()
}

fn logged(message: &[u8], queue_of: Option<QueueName>) -> Option<Event> {
    let said: Said = serde_json::from_slice(message).ok()?;
    let jid = said.jid.as_deref().and_then(|jid| Jid::new(jid).ok());
    let queue = said.queue.and_then(TextOrFalse::text).and_then(|queue| QueueName::of_function(queue).ok());
    let worker = said.worker.and_then(TextOrFalse::text).and_then(|worker| WorkerName::new(worker).ok());
    Some(match said.event.as_str() {
        "put" => Event::Put { jid: jid?, queue: queue? },
        "completed" => Event::Completed { jid: jid?, queue: queue? },
        "advanced" => {
            Event::Advanced { jid: jid?, queue: queue?, to: QueueName::of_function(said.to?).ok()? }
        }
        "failed" => Event::Failed {
            jid: jid?,
            queue: queue_of?,
            worker,
            group: Group::new(said.group?).ok()?,
            message: said.message?,
            by: FailedBy::Worker,
        },
        "canceled" => Event::Canceled { jid: jid?, was: queue.map(|queue| (queue, worker)) },
        "lock_lost" => Event::LockLost { jid: jid?, worker: worker? },
        "config_set" => Event::ConfigSet { option: said.option?, value: said.value? },
        "config_unset" => Event::ConfigUnset { option: said.option? },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_qless_become_events() {
        let (j, q, w) = (Jid::new("j").unwrap(), QueueName::new("q").unwrap(), WorkerName::new("w").unwrap());
        for (channel, message, expected) in [
            (
                "ql:log",
                r#"{"jid":"j","event":"put","queue":"q"}"#,
                Event::Put { jid: j.clone(), queue: q.clone() },
            ),
            (
                "ql:log",
                r#"{"jid":"j","to":"q","event":"advanced","queue":"q"}"#,
                Event::Advanced { jid: j.clone(), queue: q.clone(), to: q.clone() },
            ),
            (
                "ql:log",
                r#"{"jid":"j","queue":"q","event":"canceled","worker":""}"#,
                Event::Canceled { jid: j.clone(), was: Some((q.clone(), None)) },
            ),
            (
                "ql:log",
                r#"{"jid":"j","queue":false,"event":"canceled","worker":false}"#,
                Event::Canceled { jid: j.clone(), was: None },
            ),
            (
                "ql:log",
                r#"{"jid":"j","event":"lock_lost","worker":"w"}"#,
                Event::LockLost { jid: j.clone(), worker: w.clone() },
            ),
            (
                "ql:log",
                r#"{"message":"m","jid":"j","group":"g","event":"failed","worker":"w"}"#,
                Event::Failed {
                    jid: j.clone(),
                    queue: q.clone(),
                    worker: Some(w.clone()),
                    group: Group::new("g").unwrap(),
                    message: "m".into(),
                    by: FailedBy::Worker,
                },
            ),
            ("ql:popped", "j", Event::Milestone { jid: j.clone(), what: Milestone::Popped }),
            ("ql:track", "j", Event::Track { jid: j.clone() }),
        ] {
            assert_eq!(event(channel, message.as_bytes(), Some(q.clone())), Some(expected), "{message}");
        }
    }

    #[test]
    fn unknown_messages_are_ignored() {
        for message in [
            "",
            "7",
            "{}",
            r#"{"event":"put"}"#,
            r#"{"event":"danced","jid":"j"}"#,
            r#"{"event":"put","jid":"","queue":"q"}"#,
        ] {
            assert_eq!(event("ql:log", message.as_bytes(), None), None, "{message}");
        }
        assert_eq!(event("ql:put", b"", None), None);
        assert_eq!(event("other", b"j", None), None);
    }
}
