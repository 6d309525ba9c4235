//! Events as Qless's channels carry them. Clients compare the texts byte by byte, so the order of keys
//! matters.

use bytes::Bytes;
use geartrain_core::{Event, FailedBy, Jid, Milestone, WorkerName};

use super::json::write_string;

const LOG: &str = "ql:log";

/// A channel and a text.
pub(crate) type Message = (Bytes, Bytes);

/// The messages of an event, in order; none if Qless does not publish it.
pub(crate) fn of(event: &Event) -> Vec<Message> {
    match event {
        Event::Put { jid, queue } => {
            vec![log(&[("jid", &text(jid)), ("event", "put"), ("queue", queue.as_str())])]
        }
        Event::Completed { jid, queue } => {
            vec![log(&[("jid", &text(jid)), ("event", "completed"), ("queue", queue.as_str())])]
        }
        Event::Advanced { jid, queue, to } => vec![log(&[
            ("jid", &text(jid)),
            ("to", to.as_str()),
            ("event", "advanced"),
            ("queue", queue.as_str()),
        ])],
        // Qless does not publish this one.
        Event::Failed { by: FailedBy::Retry, .. } => Vec::new(),
        Event::Failed { jid, worker, group, message, .. } => vec![log(&[
            ("message", message),
            ("jid", &text(jid)),
            ("group", group.as_str()),
            ("event", "failed"),
            ("worker", name(worker.as_ref())),
        ])],
        Event::Canceled { jid, was: None } => {
            let mut unknown = Vec::from(&b"{\"jid\":"[..]);
            write_string(&mut unknown, text(jid).as_bytes());
            unknown.extend_from_slice(b",\"queue\":false,\"event\":\"canceled\",\"worker\":false}");
            vec![(Bytes::from_static(LOG.as_bytes()), unknown.into())]
        }
        Event::Canceled { jid, was: Some((queue, holder)) } => {
            let log = log(&[
                ("jid", &text(jid)),
                ("queue", queue.as_str()),
                ("event", "canceled"),
                ("worker", name(holder.as_ref())),
            ]);
            match holder {
                Some(holder) => vec![log.clone(), (of_worker(holder), log.1)],
                None => vec![log],
            }
        }
        Event::LockLost { jid, worker } => {
            let log = log(&[("jid", &text(jid)), ("event", "lock_lost"), ("worker", worker.as_str())]);
            vec![(of_worker(worker), log.1.clone()), log]
        }
        Event::ConfigSet { option, value } => {
            vec![log(&[("option", option), ("event", "config_set"), ("value", value)])]
        }
        Event::ConfigUnset { option } => vec![log(&[("event", "config_unset"), ("option", option)])],
        Event::Track { jid } => vec![bare("ql:track", jid)],
        Event::Untrack { jid } => vec![bare("ql:untrack", jid)],
        Event::Milestone { jid, what } => match what {
            Milestone::Put => vec![bare("ql:put", jid)],
            Milestone::Popped => vec![bare("ql:popped", jid)],
            Milestone::Stalled => vec![bare("ql:stalled", jid)],
            Milestone::Completed => vec![bare("ql:completed", jid)],
            Milestone::Failed => vec![bare("ql:failed", jid)],
            Milestone::Canceled => vec![bare("ql:canceled", jid)],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

fn text(jid: &Jid) -> String {
    jid.to_string()
}

fn name(worker: Option<&WorkerName>) -> &str {
    worker.map_or("", WorkerName::as_str)
}

fn of_worker(worker: &WorkerName) -> Bytes {
    format!("ql:w:{worker}").into()
}

fn bare(channel: &'static str, jid: &Jid) -> Message {
    (Bytes::from_static(channel.as_bytes()), text(jid).into())
}

fn log(fields: &[(&str, &str)]) -> Message {
    let mut object = Vec::with_capacity(96);
    for (at, (key, value)) in fields.iter().enumerate() {
        object.push(if at == 0 { b'{' } else { b',' });
        write_string(&mut object, key.as_bytes());
        object.push(b':');
        write_string(&mut object, value.as_bytes());
    }
    object.push(b'}');
    (Bytes::from_static(LOG.as_bytes()), object.into())
}

#[cfg(test)]
mod tests {
    use geartrain_core::{Group, QueueName};

    use super::*;

    #[test]
    fn every_event_of_qless_has_its_channels_and_its_text() {
        let (jid, queue) = (Jid::new("a/b").unwrap(), QueueName::new("q").unwrap());
        let worker = WorkerName::new("w").unwrap();
        let failed = |by| Event::Failed {
            jid: jid.clone(),
            queue: queue.clone(),
            worker: Some(worker.clone()),
            group: Group::new("g").unwrap(),
            message: "oops\n".into(),
            by,
        };
        let failed_text = r#"{"message":"oops\n","jid":"a\/b","group":"g","event":"failed","worker":"w"}"#;
        let canceled = r#"{"jid":"a\/b","queue":"q","event":"canceled","worker":"w"}"#;
        let lost = r#"{"jid":"a\/b","event":"lock_lost","worker":"w"}"#;
        let milestone = |what| Event::Milestone { jid: jid.clone(), what };
        for (event, messages) in [
            (
                Event::Put { jid: jid.clone(), queue: queue.clone() },
                vec![("ql:log", r#"{"jid":"a\/b","event":"put","queue":"q"}"#)],
            ),
            (
                Event::Completed { jid: jid.clone(), queue: queue.clone() },
                vec![("ql:log", r#"{"jid":"a\/b","event":"completed","queue":"q"}"#)],
            ),
            (
                Event::Advanced { jid: jid.clone(), queue: queue.clone(), to: QueueName::new("r").unwrap() },
                vec![("ql:log", r#"{"jid":"a\/b","to":"r","event":"advanced","queue":"q"}"#)],
            ),
            (failed(FailedBy::Worker), vec![("ql:log", failed_text)]),
            (failed(FailedBy::Expiry), vec![("ql:log", failed_text)]),
            (failed(FailedBy::Retry), vec![]),
            (
                Event::Canceled { jid: jid.clone(), was: Some((queue.clone(), Some(worker.clone()))) },
                vec![("ql:log", canceled), ("ql:w:w", canceled)],
            ),
            (
                Event::Canceled { jid: jid.clone(), was: Some((queue.clone(), None)) },
                vec![("ql:log", r#"{"jid":"a\/b","queue":"q","event":"canceled","worker":""}"#)],
            ),
            (
                Event::Canceled { jid: jid.clone(), was: None },
                vec![("ql:log", r#"{"jid":"a\/b","queue":false,"event":"canceled","worker":false}"#)],
            ),
            (
                Event::LockLost { jid: jid.clone(), worker: worker.clone() },
                vec![("ql:w:w", lost), ("ql:log", lost)],
            ),
            (
                Event::ConfigSet { option: "o".into(), value: "v".into() },
                vec![("ql:log", r#"{"option":"o","event":"config_set","value":"v"}"#)],
            ),
            (
                Event::ConfigUnset { option: "o".into() },
                vec![("ql:log", r#"{"event":"config_unset","option":"o"}"#)],
            ),
            (Event::Track { jid: jid.clone() }, vec![("ql:track", "a/b")]),
            (Event::Untrack { jid: jid.clone() }, vec![("ql:untrack", "a/b")]),
            (milestone(Milestone::Put), vec![("ql:put", "a/b")]),
            (milestone(Milestone::Popped), vec![("ql:popped", "a/b")]),
            (milestone(Milestone::Stalled), vec![("ql:stalled", "a/b")]),
            (milestone(Milestone::Completed), vec![("ql:completed", "a/b")]),
            (milestone(Milestone::Failed), vec![("ql:failed", "a/b")]),
            (milestone(Milestone::Canceled), vec![("ql:canceled", "a/b")]),
            (Event::Popped { jid: jid.clone(), queue, worker }, vec![]),
        ] {
            let expected: Vec<_> =
                messages.iter().map(|(channel, text)| (Bytes::from(*channel), Bytes::from(*text))).collect();
            assert_eq!(of(&event), expected);
        }
    }
}
