//! Insertion of jobs: the payload, its id, and the time of the first run.

use geartrain_core::{
    Existing, Jid, Klass, OrphanPolicy, PAYLOAD_BYTES_MAX, Put, PutOptions, PutReply, QueueName, Refusal,
    Seconds, Timestamp,
};

use super::keys::{Keys, SCHEDULES, entry_of};
use super::session::{Session, unsupported};
use super::{canonical, cron, payload, script};
use crate::layout::CallError;

/// A job to insert.
pub(super) struct NewJob<'a> {
    pub(super) schedule: &'a QueueName,
    pub(super) klass: &'a Klass,
    pub(super) args: &'a [u8],
    pub(super) cron: String,
    pub(super) first: Timestamp,
    pub(super) retries: Option<u32>,
    pub(super) nonce: bool,
}

/// An inserted job, or the one that was there.
pub(super) struct Inserted {
    pub(super) jid: Jid,
    pub(super) is_new: bool,
}

impl Session {
    pub(super) async fn put(&self, put: &Put, now: Timestamp) -> Result<PutReply, CallError> {
        check(put)?;
        // One reading of the clock for the cron string and the first run: they must agree on the second.
        let at = if put.delay > Seconds::ZERO { now + put.delay } else { now.floor() };
        let (cron, first) = cron::once(at, self.options.order)?;
        let job = NewJob {
            schedule: &put.queue,
            klass: &put.klass,
            args: put.payload.bytes(),
            cron,
            first,
            retries: put.retries,
            nonce: self.options.nonce,
        };
        let Inserted { jid, is_new } = self.insert(job).await?;
        Ok(if is_new { PutReply::Named { jid } } else { PutReply::NamedExisting { jid } })
    }

    pub(super) async fn insert(&self, job: NewJob<'_>) -> Result<Inserted, CallError> {
        self.enter(job.schedule)?;
        let bytes = job.args.len();
        if bytes > PAYLOAD_BYTES_MAX {
            return Err(Refusal::TooLarge { what: "payload".into(), bytes, max: PAYLOAD_BYTES_MAX }.into());
        }
        let nonce = job.nonce.then(|| uuid::Uuid::now_v7().simple().to_string());
        let text = text_of(job.klass, job.args, &job.cron, nonce.as_deref())?;
        let id = canonical::id_of(&text);
        let keys = Keys::of(job.schedule.as_str());
        let score = cron::milliseconds(job.first).to_string();
        let retries = job.retries.map(|retries| retries.to_string()).unwrap_or_default();
        let all = [&keys.jobs, &keys.next, &keys.retry, &keys.dead, SCHEDULES];
        let arguments = [&id, &text, &score, &entry_of(&id), &retries, job.schedule.as_str()];
        let is_new = self.run(&script::PUT, &all, &arguments).await? == 1;
        let jid = Jid::new(&id).expect("40 hex digits are a name");
        Ok(Inserted { jid, is_new })
    }
}

/// The payload of a job.
pub(super) fn text_of(
    klass: &Klass,
    args: &[u8],
    cron: &str,
    nonce: Option<&str>,
) -> Result<String, Refusal> {
    let (args, form) = (canonical::args_text(args)?, payload::form_of(klass)?);
    Ok(canonical::payload_text(&args, cron, &form, nonce))
}

/// Refuses what WorkKit has no notion of.
pub(super) fn check(put: &Put) -> Result<(), Refusal> {
    let given = |has: fn(&PutOptions) -> bool| put.options.as_deref().is_some_and(has);
    for (is_given, operation) in [
        (
            put.priority.is_some_and(|priority| priority.get() != 0.0),
            "order jobs by priority: use several schedules",
        ),
        (put.tags.is_some(), "tag a job"),
        (!put.depends.is_empty(), "make a job depend on others"),
        (put.existing != Existing::Keep, "put a job again: its id is its content"),
        (
            given(|options| options.unique.is_some()),
            "take a unique key: equal jobs of one second are one job",
        ),
        (given(|options| options.attach.is_some()), "wait for a result"),
        (given(|options| options.result_ttl.is_some()), "keep a result"),
        (given(|options| options.expires.is_some()), "let a job expire"),
        (given(|options| options.attempt_max.is_some()), "limit how long an attempt takes"),
        (given(|options| options.backoff.is_some()), "keep a job's backoff"),
        (given(|options| options.crashes_max.is_some()), "count lost workers"),
        (given(|options| options.roll_call), "call the roll of workers"),
        (given(|options| options.metadata.is_some()), "keep metadata with a job"),
        (given(|options| options.traceparent.is_some()), "keep a trace context with a job"),
        (
            given(|options| options.orphan_policy != OrphanPolicy::Always),
            "remove a job that no client waits for",
        ),
    ] {
        if is_given {
            return Err(unsupported(operation));
        }
    }
    Ok(())
}
