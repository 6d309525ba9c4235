//! A put as a submission: what Gearman can carry of it, and a refusal for what it cannot.

use bytes::Bytes;
use geartrain_core::{Existing, Klass, Put, PutOptions, Refusal, Seconds, Timestamp, UniqueKey};

use super::error::{ClientError, unsupported};
use crate::function;
use crate::packet::{Mode, Priority, Submission, UNIQUE_BYTES_MAX};

/// The submission that a put is, with a key made up where none is given.
///
/// Each has a key: a submission that was not answered can then be sent again, and makes no second job while the first is unfinished. So do most clients of Gearman.
pub(crate) fn from_put(put: &Put, now: Timestamp) -> Result<Submission, ClientError> {
    let none = PutOptions::default();
    let terms = put.options.as_deref().unwrap_or(&none);
    check_supported(put, terms)?;
    if klass_differs(&put.klass, put) {
        return Err(bad_argument(
            "klass",
            format!("must be {}, as the queue is: to Gearman a job's function is all there is", put.queue),
        ));
    }
    let unique = match &terms.unique {
        Some(key) => unique_id(key)?,
        None => Bytes::from(uuid::Uuid::now_v7().simple().to_string()),
    };
    Ok(Submission {
        function: Bytes::copy_from_slice(&function::bytes(&put.queue)),
        unique,
        data: Bytes::copy_from_slice(put.payload.bytes()),
        mode: mode(put, terms, now)?,
    })
}

/// A key as Gearman has them.
pub(crate) fn unique_id(key: &UniqueKey) -> Result<Bytes, ClientError> {
    let bytes = key.as_bytes();
    if bytes.len() > UNIQUE_BYTES_MAX {
        let (bytes, max) = (bytes.len(), UNIQUE_BYTES_MAX);
        return Err(Refusal::TooLarge { what: "unique key".into(), bytes, max }.into());
    }
    if bytes.contains(&0) {
        return Err(bad_argument("unique key", "must hold no NUL, which ends it in Gearman".to_owned()));
    }
    if bytes == b"-" {
        return Err(bad_argument(
            "unique key",
            "must not be -, by which Gearman means the payload".to_owned(),
        ));
    }
    Ok(Bytes::copy_from_slice(bytes))
}

fn bad_argument(what: &'static str, why: String) -> ClientError {
    Refusal::BadArgument { what: what.into(), why }.into()
}

fn klass_differs(klass: &Klass, put: &Put) -> bool {
    klass.as_str() != put.queue.as_str()
}

/// Refuses what no packet can say. Nothing of a put is left out in silence.
fn check_supported(put: &Put, terms: &PutOptions) -> Result<(), ClientError> {
    // Whether it is kept afterwards and how long it lives is not asked: to Gearman a job that ended is forgotten, and one that somebody waits for lives as long as they do.
    for (asked, operation) in [
        (put.existing != Existing::Keep, "put a job again"),
        (put.retries.is_some(), "limit how often a job is retried"),
        (put.tags.as_ref().is_some_and(|tags| !tags.is_empty()), "tag a job"),
        (!put.depends.is_empty(), "let a job wait for others"),
        (terms.result_ttl.is_some(), "keep a result"),
        (terms.expires.is_some(), "let a job expire"),
        (terms.attempt_max.is_some(), "limit how long an attempt takes"),
        (terms.backoff.is_some(), "let retries wait"),
        (terms.crashes_max.is_some(), "count how often a job's workers died"),
        (terms.roll_call, "put a job only if somebody can do it"),
    ] {
        if asked {
            return Err(unsupported(operation));
        }
    }
    Ok(())
}

fn mode(put: &Put, terms: &PutOptions, now: Timestamp) -> Result<Mode, ClientError> {
    let priority = match put.priority.map_or(0.0, geartrain_core::Priority::get) {
        above if above > 0.0 => Priority::High,
        below if below < 0.0 => Priority::Low,
        _ => Priority::Normal,
    };
    let (delayed, awaited) = (put.delay > Seconds::ZERO, terms.attach.is_some());
    let reducer = terms.metadata.as_ref().map(|aside| aside.bytes()).filter(|aside| !aside.is_empty());
    if priority != Priority::Normal && delayed {
        return Err(unsupported("delay a job that has a priority"));
    }
    if priority != Priority::Normal && reducer.is_some() {
        return Err(unsupported("carry something beside the payload of a job that has a priority"));
    }
    if delayed && awaited {
        return Err(unsupported("wait for a job that is delayed"));
    }
    if delayed && reducer.is_some() {
        return Err(unsupported("carry something beside the payload of a job that is delayed"));
    }
    Ok(match reducer {
        Some(reducer) if reducer.len() > UNIQUE_BYTES_MAX => {
            let (bytes, max) = (reducer.len(), UNIQUE_BYTES_MAX);
            return Err(Refusal::TooLarge { what: "aside".into(), bytes, max }.into());
        }
        Some(reducer) if reducer.contains(&0) => {
            return Err(bad_argument("aside", "must hold no NUL, which ends it in Gearman".to_owned()));
        }
        Some(reducer) => Mode::Reduce { reducer: Bytes::copy_from_slice(reducer), background: !awaited },
        // In whole seconds, and not before it is due. What is beyond all clocks is as far as can be said.
        None if delayed => Mode::Epoch((now + put.delay).get().ceil().clamp(0.0, 9e18) as u64),
        None if awaited => Mode::Foreground(priority),
        None => Mode::Background(priority),
    })
}

#[cfg(test)]
mod tests {
    use geartrain_core::{Payload, QueueName, ResultWaiter};

    use super::*;

    fn put() -> Put {
        let name = QueueName::new("resize").unwrap();
        Put::new(name, geartrain_core::Jid::new("j1").unwrap(), Klass::new("resize").unwrap(), "cat")
    }

    fn with(terms: PutOptions) -> Put {
        Put { options: Some(Box::new(terms)), ..put() }
    }

    fn refused(put: &Put) -> String {
        match from_put(put, Timestamp::ZERO) {
            Err(ClientError::Refused(refusal)) => refusal.to_string(),
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn a_put_is_the_packet_that_says_the_same() {
        let waiter = Some(ResultWaiter { stream_id: 1, connection: 2, number: 3 });
        let priority = |value| Some(geartrain_core::Priority::from(value));
        let reducer = Some(Payload::from("sum"));
        for (put, mode) in [
            (put(), Mode::Background(Priority::Normal)),
            (Put { priority: priority(3), ..put() }, Mode::Background(Priority::High)),
            (Put { priority: priority(-1), ..put() }, Mode::Background(Priority::Low)),
            (
                with(PutOptions { attach: waiter, ..PutOptions::default() }),
                Mode::Foreground(Priority::Normal),
            ),
            (Put { delay: Seconds::new(1.2).unwrap(), ..put() }, Mode::Epoch(12)),
            (
                with(PutOptions { metadata: reducer.clone(), ..PutOptions::default() }),
                Mode::Reduce { reducer: "sum".into(), background: true },
            ),
            (
                with(PutOptions { metadata: reducer, attach: waiter, ..PutOptions::default() }),
                Mode::Reduce { reducer: "sum".into(), background: false },
            ),
        ] {
            let submission = from_put(&put, Timestamp::from(10)).unwrap();
            assert_eq!(submission.mode, mode);
            assert_eq!((&submission.function[..], &submission.data[..]), (&b"resize"[..], &b"cat"[..]));
            assert_eq!(submission.unique.len(), 32);
        }
        let keyed =
            with(PutOptions { unique: Some(UniqueKey::new([b'k'; 64]).unwrap()), ..PutOptions::default() });
        assert_eq!(from_put(&keyed, Timestamp::ZERO).unwrap().unique, [b'k'; 64][..]);
    }

    #[test]
    fn what_gearman_cannot_carry_is_refused_and_not_left_out() {
        let key = |bytes: &[u8]| {
            refused(&with(PutOptions {
                unique: Some(UniqueKey::new(bytes).unwrap()),
                ..PutOptions::default()
            }))
        };
        assert_eq!(key(&[b'k'; 65]), "unique key of 65 bytes is over the limit of 64");
        assert_eq!(key(b"a\0b"), "unique key must hold no NUL, which ends it in Gearman");
        assert_eq!(key(b"-"), "unique key must not be -, by which Gearman means the payload");
        assert_eq!(
            refused(&Put { klass: Klass::new("other").unwrap(), ..put() }),
            "klass must be resize, as the queue is: to Gearman a job's function is all there is"
        );
        let later = Seconds::from(1);
        let waiter = Some(ResultWaiter { stream_id: 1, connection: 2, number: 3 });
        for (put, operation) in [
            (Put { retries: Some(1), ..put() }, "limit how often a job is retried"),
            (Put { existing: Existing::Replace, ..put() }, "put a job again"),
            (Put { priority: Some(1.into()), delay: later, ..put() }, "delay a job that has a priority"),
            (
                Put { delay: later, ..with(PutOptions { attach: waiter, ..PutOptions::default() }) },
                "wait for a job that is delayed",
            ),
            (with(PutOptions { result_ttl: Some(later), ..PutOptions::default() }), "keep a result"),
            (
                with(PutOptions { roll_call: true, ..PutOptions::default() }),
                "put a job only if somebody can do it",
            ),
        ] {
            assert_eq!(refused(&put), format!("the gearman backend cannot {operation}"));
        }
    }
}
