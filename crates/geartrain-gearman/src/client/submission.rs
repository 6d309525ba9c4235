//! Puts as submissions: what Gearman can represent of a put, and a refusal of the rest.

use bytes::Bytes;
use geartrain_core::{
    DependencyPolicy, Existing, Klass, Put, PutOptions, Refusal, Seconds, Timestamp, UniqueKey,
};

use super::error::{ClientError, unsupported};
use crate::function;
use crate::packet::{Mode, Priority, Submission, UNIQUE_BYTES_MAX};

/// The submission for a put, with a generated key if it has none.
///
/// With a key, an unanswered submission can be sent again without creating a second job while the first is
/// unfinished (idempotent submission). Most Gearman clients do the same.
pub(crate) fn from_put(put: &Put, now: Timestamp) -> Result<Submission, ClientError> {
    let none = PutOptions::default();
    let options = put.options.as_deref().unwrap_or(&none);
    check_supported(put, options)?;
    if klass_differs(&put.klass, put) {
        return Err(bad_argument(
            "klass",
            format!("must be {}, as the queue is: to Gearman a job's function is all there is", put.queue),
        ));
    }
    let unique = match &options.unique {
        Some(key) => unique_id(key)?,
        None => Bytes::from(uuid::Uuid::now_v7().simple().to_string()),
    };
    Ok(Submission {
        function: Bytes::copy_from_slice(&function::bytes(&put.queue)),
        unique,
        data: Bytes::copy_from_slice(put.payload.bytes()),
        mode: mode(put, options, now)?,
    })
}

/// A unique key as a Gearman unique ID.
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

/// Refuses options that no packet can carry. Nothing of a put is dropped silently.
fn check_supported(put: &Put, options: &PutOptions) -> Result<(), ClientError> {
    // What happens after the job's end and the orphan policy are not checked: Gearman forgets ended jobs, and
    // keeps an awaited job as long as its client waits.
    for (is_set, operation) in [
        (put.existing != Existing::Keep, "put a job again"),
        (put.retries.is_some(), "limit how often a job is retried"),
        (put.tags.as_ref().is_some_and(|tags| !tags.is_empty()), "tag a job"),
        (!put.depends.is_empty(), "make a job depend on others"),
        (options.result_ttl.is_some(), "keep a result"),
        (options.expires.is_some(), "expire a job"),
        (options.attempt_max.is_some(), "limit how long an attempt takes"),
        (options.backoff.is_some(), "delay retries"),
        (options.crashes_max.is_some(), "limit crashes of a job"),
        (options.roll_call, "put a job only if a worker can run it"),
        (
            options.on_dependency_failure != DependencyPolicy::Wait,
            "say what a job does when a dependency fails",
        ),
        (options.traceparent.is_some(), "carry the trace context of a job"),
    ] {
        if is_set {
            return Err(unsupported(operation));
        }
    }
    Ok(())
}

fn mode(put: &Put, options: &PutOptions, now: Timestamp) -> Result<Mode, ClientError> {
    let priority = match put.priority.map_or(0.0, geartrain_core::Priority::get) {
        above if above > 0.0 => Priority::High,
        below if below < 0.0 => Priority::Low,
        _ => Priority::Normal,
    };
    let (delayed, awaited) = (put.delay > Seconds::ZERO, options.attach.is_some());
    let reducer =
        options.metadata.as_ref().map(|metadata| metadata.bytes()).filter(|metadata| !metadata.is_empty());
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
        // Whole seconds, rounded up so that the job is not early; clamped to what the packet can carry.
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

    fn with(options: PutOptions) -> Put {
        Put { options: Some(Box::new(options)), ..put() }
    }

    fn refused(put: &Put) -> String {
        match from_put(put, Timestamp::ZERO) {
            Err(ClientError::Refused(refusal)) => refusal.to_string(),
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn a_put_becomes_the_matching_submission() {
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
    fn options_that_gearman_cannot_carry_are_refused() {
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
                "put a job only if a worker can run it",
            ),
            (
                with(PutOptions { on_dependency_failure: DependencyPolicy::Run, ..PutOptions::default() }),
                "say what a job does when a dependency fails",
            ),
        ] {
            assert_eq!(refused(&put), format!("the gearman backend cannot {operation}"));
        }
    }
}
