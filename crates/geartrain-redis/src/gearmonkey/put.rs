//! Insertion of jobs, and the explicit return of one to its queue.

use geartrain_core::{
    DependencyPolicy, Existing, OnEnd, OrphanPolicy, PAYLOAD_BYTES_MAX, Priority, Put, PutOptions, PutReply,
    RESULT_TTL_DEFAULT, Refusal, Seconds, TRANSFER_GROUP, Timestamp, UniqueKey,
};

use super::keys::{JobName, Keys, jid_of};
use super::script;
use super::session::{Session, check_klass, check_name, due, unsupported, whole_seconds};
use crate::layout::{CallError, bad_argument};

impl Session {
    pub(super) async fn put(&self, put: &Put, now: Timestamp) -> Result<PutReply, CallError> {
        let none = PutOptions::default();
        let options = put.options.as_deref().unwrap_or(&none);
        check(put, options)?;
        if put.existing == Existing::Require {
            return self.requeue(put, now).await;
        }
        if let Some(waiter) = options.attach {
            self.streams.check(waiter)?;
        }
        if options.roll_call {
            self.recover(&put.queue, now).await?;
        }
        let keys = Keys::of(put.queue.as_str());
        let second = due(now, put.delay);
        let retries = put.retries.map(|retries| retries.to_string()).unwrap_or_default();
        let roll_call: &[u8] = if options.roll_call { b"1" } else { b"" };
        let priority = priority_name(put.priority);
        let transfer = options.unique.as_ref().and_then(transfer_of).unwrap_or_default();
        let arguments = [
            put.payload.bytes(),
            priority.as_bytes(),
            second.as_bytes(),
            roll_call,
            retries.as_bytes(),
            transfer,
        ];
        let (id, what): (String, String) = self.run(&script::PUT, &keys, &arguments).await?;
        if id == "0" {
            let (queue, klass) = (put.queue.clone(), put.klass.clone());
            return Err(Refusal::NoCapableWorker { queue, klass }.into());
        }
        let jid = jid_of(&put.queue, &id).ok_or_else(|| bad_argument("queue", "is too long for a jid"))?;
        if what == "other" {
            return Err(bad_argument("unique key", format!("belongs to another job, {jid}")).into());
        }
        if let Some(waiter) = options.attach {
            let job = JobName { function: put.queue.clone(), id };
            self.streams.attach(self, waiter, &job, true)?;
        }
        Ok(if what == "same" { PutReply::NamedExisting { jid } } else { PutReply::Named { jid } })
    }

    /// Queues a job again that a foreign worker is thought to have lost: nothing shows whether it runs.
    async fn requeue(&self, put: &Put, now: Timestamp) -> Result<PutReply, CallError> {
        let job = JobName::of(&put.jid)?;
        if job.function != put.queue {
            return Err(unsupported("send a job on to another queue").into());
        }
        if put.delay > Seconds::ZERO || put.priority.is_some() || put.retries.is_some() {
            return Err(unsupported("change a job that is queued again").into());
        }
        let missing = || Refusal::NoSuchJob { jid: put.jid.clone() };
        let fields = self.fields(&job).await?.ok_or_else(missing)?;
        if fields.input != put.payload.bytes() {
            return Err(unsupported("change a job's payload").into());
        }
        let keys = Keys::of(job.function.as_str());
        let arguments = [job.id.as_bytes(), &whole_seconds(now).into_bytes()];
        let reply: Vec<String> = self.run(&script::REQUEUE, &keys, &arguments).await?;
        match reply.first().map(String::as_str) {
            Some("ok") => Ok(PutReply::Replaced),
            Some("queued") => Ok(PutReply::Existing),
            Some("ended") => Err(unsupported("run a job again that has ended: put it anew").into()),
            _ => Err(missing().into()),
        }
    }
}

/// The transfer ID in a unique key that is made of one. GearMonkey has no unique keys otherwise.
pub(super) fn transfer_of(key: &UniqueKey) -> Option<&[u8]> {
    key.as_bytes().strip_prefix(TRANSFER_GROUP.as_bytes())?.strip_prefix(b":").filter(|id| !id.is_empty())
}

/// The queue of a priority.
fn priority_name(priority: Option<Priority>) -> &'static str {
    match priority.map_or(0.0, Priority::get) {
        above if above > 0.0 => "high",
        below if below < 0.0 => "low",
        _ => "normal",
    }
}

/// Refuses what GearMonkey has no notion of, and what does not fit.
fn check(put: &Put, options: &PutOptions) -> Result<(), Refusal> {
    let is_prioritized = put.priority.is_some_and(|priority| priority.get() != 0.0);
    for (is_given, operation) in [
        (put.existing == Existing::Replace, "replace a job: its id is given out by the Redis"),
        (put.delay > Seconds::ZERO && is_prioritized, "delay a job that has a priority"),
        (put.tags.as_ref().is_some_and(|tags| !tags.is_empty()), "tag a job"),
        (!put.depends.is_empty(), "make a job depend on others"),
        (
            options
                .unique
                .as_ref()
                .is_some_and(|key| transfer_of(key).is_none() || put.existing != Existing::Keep),
            "take a unique key",
        ),
        (
            options.result_ttl.is_some_and(|ttl| ttl > RESULT_TTL_DEFAULT),
            "keep a result for more than 25 hours",
        ),
        (options.expires.is_some(), "let a job expire"),
        (options.attempt_max.is_some(), "limit how long an attempt takes"),
        (options.backoff.is_some(), "keep a job's backoff"),
        (
            options.crashes_max.is_some(),
            "keep with a job how many lost workers end it: use ?lost= in the URL",
        ),
        (options.metadata.is_some(), "keep metadata with a job"),
        (options.traceparent.is_some(), "keep a trace context with a job"),
        (options.on_end != OnEnd::Keep, "forget a job when it ends"),
        (options.orphan_policy != OrphanPolicy::Always, "remove a job that no client waits for"),
        (options.on_dependency_failure != DependencyPolicy::Wait, "make a job depend on others"),
    ] {
        if is_given {
            return Err(unsupported(operation));
        }
    }
    check_klass(&put.klass, &put.queue)?;
    let bytes = put.payload.bytes().len();
    if bytes > PAYLOAD_BYTES_MAX {
        return Err(Refusal::TooLarge { what: "payload".into(), bytes, max: PAYLOAD_BYTES_MAX });
    }
    check_name(&put.queue)
}
