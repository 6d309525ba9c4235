//! Changes a recurring job: only what is given.

use geartrain_core::{
    Every, Jid, Klass, Missed, Overlap, Period, Periodic, Priority, PutOptions, PutPeriodic, QueueName, Role,
    Seconds, Tag, TagRecurring, UntagRecurring, UpdateRecurring,
};

use super::recurring::{self, OVERLAPS, backlog, overlap};
use super::{FieldInfo, FieldKind, JID, Need, OperationInfo, Outcome, Plan, Queue, field};
use crate::time::Times;
use crate::{Object, OperationError, put};

pub(super) const OPERATIONS: &[OperationInfo] = &[OperationInfo {
    name: "recur-edit",
    access: Role::Operator,
    meaning: "Changes a recurring job: only what is given.",
    fields: &[
        JID,
        FieldInfo::new("queue", FieldKind::Name, "Another queue for its jobs"),
        FieldInfo::new("klass", FieldKind::Name, "Another klass"),
        FieldInfo::new("payload", FieldKind::Json, "Another payload"),
        FieldInfo::new("every", FieldKind::Interval, "Another interval").needed(Need::AtMostOne),
        FieldInfo::new("cron", FieldKind::Format("recurrence"), "Another cron expression, or a phrase")
            .needed(Need::AtMostOne),
        FieldInfo::new("priority", FieldKind::Number, "Another priority"),
        FieldInfo::new("retries", field::RETRIES, "How often each may be retried"),
        FieldInfo::new("tags", FieldKind::Names(0), "Tags to add"),
        FieldInfo::new("untags", FieldKind::Names(0), "Tags to remove"),
        FieldInfo::new(
            "backlog",
            FieldKind::Backlog,
            "How many missed runs are made up: 0 for all, or \"skip\"",
        ),
        FieldInfo::new(
            "overlap",
            FieldKind::Choice(OVERLAPS),
            "What to do if an earlier job is not finished",
        ),
        FieldInfo::new("timeout", FieldKind::Span, "How long one attempt may take"),
        FieldInfo::new("backoff", FieldKind::Format("backoff"), "The delay of retries, such as 10s..1h"),
        FieldInfo::new("keep_result", FieldKind::Retention, "How long results are kept; `true` for 25 hours"),
        FieldInfo::new(
            "unique",
            FieldKind::UniqueKey,
            "A key: a run is left out while a job of the queue has it",
        ),
        FieldInfo::new("expires_in", FieldKind::Span, "How long after its run a job may start"),
    ],
    read: edit,
}];

/// What is to be changed.
struct Edit {
    jid: Jid,
    queue: Option<QueueName>,
    klass: Option<Klass>,
    payload: Option<geartrain_core::Payload>,
    /// The period, and the phrase that it was given as.
    every: Option<(Period, Option<String>)>,
    priority: Option<Priority>,
    retries: Option<u32>,
    tags: Vec<Tag>,
    untags: Vec<Tag>,
    missed: Option<Missed>,
    overlap: Option<Overlap>,
    options: PutOptions,
    expires_in: Option<Seconds>,
}

fn edit(object: &Object<'_>, times: &Times) -> Result<Plan, OperationError> {
    let edit = Edit {
        jid: object.required_name("jid")?,
        queue: object.name("queue")?,
        klass: object.name("klass")?,
        payload: put::payload(object, "payload")?,
        every: recurring::period(object, times)?,
        priority: put::priority(object)?,
        retries: object.whole("retries")?,
        tags: object.names("tags")?.unwrap_or_default(),
        untags: object.names("untags")?.unwrap_or_default(),
        missed: backlog(object)?,
        overlap: object.parsed("overlap", overlap)?,
        options: PutOptions {
            attempt_max: put::span(object, "timeout", times)?,
            backoff: put::backoff(object)?,
            result_ttl: put::keep_result(object, times)?,
            unique: put::unique(object)?,
            ..PutOptions::default()
        },
        expires_in: put::span(object, "expires_in", times)?,
    };
    Plan::steps(move |queue| async move {
        match recurring::find_periodic(&queue, &edit.jid).await? {
            Some(periodic) => edit_periodic(&queue, edit, periodic).await,
            None => edit_qless(&queue, edit).await,
        }
    })
}

async fn edit_periodic(queue: &Queue, edit: Edit, periodic: Periodic) -> Outcome {
    let mut template = *periodic.template;
    let put = &mut template.put;
    put.queue = edit.queue.unwrap_or(put.queue.clone());
    put.klass = edit.klass.unwrap_or(put.klass.clone());
    put.payload = edit.payload.unwrap_or(put.payload.clone());
    put.priority = edit.priority.or(put.priority);
    put.retries = edit.retries.or(put.retries);
    let mut tags = put.tags.take().unwrap_or_default();
    tags.retain(|tag| !edit.untags.contains(tag) && !edit.tags.contains(tag));
    tags.extend(edit.tags);
    put.tags = (!tags.is_empty()).then_some(tags);
    let mut options = put.options.take().unwrap_or_default();
    options.attempt_max = edit.options.attempt_max.or(options.attempt_max);
    options.backoff = edit.options.backoff.or(options.backoff);
    options.result_ttl = edit.options.result_ttl.or(options.result_ttl);
    options.unique = edit.options.unique.or(options.unique);
    put.options = (*options != PutOptions::default()).then_some(options);
    if let Some((every, phrase)) = edit.every {
        (template.every, template.phrase) = (every, phrase);
    }
    template.missed = edit.missed.unwrap_or(template.missed);
    template.overlap = edit.overlap.unwrap_or(template.overlap);
    template.expires_in = edit.expires_in.or(template.expires_in);
    queue.run(PutPeriodic { must_exist: true, ..PutPeriodic::new(template, queue.now()) }).await?;
    recurring::show(queue, &edit.jid).await
}

async fn edit_qless(queue: &Queue, edit: Edit) -> Outcome {
    recurring::find_qless(queue, &edit.jid).await?;
    let every = match edit.every {
        None => None,
        Some((Period::Interval(every), _)) => Some(Every::Interval(every)),
        Some(_) => return Err(not_of_qless()),
    };
    let backlog = edit.missed.map(crate::backlog_number);
    let has_options =
        edit.options != PutOptions::default() || edit.overlap.is_some() || edit.expires_in.is_some();
    if has_options || backlog == Some(None) {
        return Err(not_of_qless());
    }
    let jid = edit.jid;
    let update = UpdateRecurring {
        priority: edit.priority,
        retries: edit.retries,
        every,
        backlog: backlog.flatten(),
        payload: edit.payload,
        klass: edit.klass,
        queue: edit.queue,
        ..UpdateRecurring::new(jid.clone())
    };
    queue.run(update).await?;
    if !edit.tags.is_empty() {
        queue.run(TagRecurring { jid: jid.clone(), tags: edit.tags }).await?;
    }
    if !edit.untags.is_empty() {
        queue.run(UntagRecurring { jid: jid.clone(), tags: edit.untags }).await?;
    }
    recurring::show(queue, &jid).await
}

fn not_of_qless() -> OperationError {
    OperationError::new(
        "conflict",
        "the recurring job is one of Qless, which has no such option: remove it and add it anew",
    )
}
