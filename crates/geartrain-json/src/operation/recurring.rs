//! Recurring jobs: those of Qless, and periodic ones by cron expression or with put options.

use geartrain_core::schedule::{Schedule, When};
use geartrain_core::{
    Call, Count, FirePeriodic, GetRecurring, Jid, Jobs, Listing, Missed, Operation as _, Overlap, Page,
    Period, Periodic, PeriodicTemplate, Periodics, Put, PutOptions, PutPeriodic, QueueName, Queues, Recur,
    Recurring, Refusal, RemovePeriodic, Reply, Role, Seconds, Tag, Timestamp, Unrecur,
};

use super::{
    Document, FieldInfo, FieldKind, JID, Need, OperationInfo, Outcome, Plan, QUEUE, Queue, document, field,
    wrong_answer,
};
use crate::object::missing;
use crate::reply::{PutView, RunView, UnrecurView};
use crate::time::Times;
use crate::{Number, Object, OperationError, PeriodicView, RETRIES_DEFAULT, RecurringView, put, texts};

/// How many recurring jobs are listed per request.
const PAGE: i64 = 1_000;
/// How often a run that another process makes at the same time is tried again.
const RUNS_MAX: usize = 5;
/// What may be done if an earlier job is not finished.
pub(super) const OVERLAPS: &[&str] = &["allow", "skip", "cancel-old"];

pub(super) const OPERATIONS: &[OperationInfo] = &[
    OperationInfo {
        name: "recur",
        access: Role::Operator,
        meaning: "Creates or replaces a recurring job, by an interval or a cron expression.",
        fields: &[
            QUEUE,
            FieldInfo::required("klass", FieldKind::Name, "The klass of its jobs"),
            FieldInfo::new("payload", FieldKind::Json, "Their payload"),
            FieldInfo::new("every", FieldKind::Interval, "The interval").needed(Need::ExactlyOne),
            FieldInfo::new(
                "cron",
                FieldKind::Format("recurrence"),
                "Instead of an interval: a cron expression, or a phrase",
            )
            .needed(Need::ExactlyOne),
            FieldInfo::new("in", FieldKind::Duration, "With an interval: the time until the first job"),
            FieldInfo::new("jid", FieldKind::Name, "Its id; by default a UUID"),
            FieldInfo::new("priority", FieldKind::Number, "The priority of its jobs"),
            FieldInfo::new("retries", field::RETRIES, "How often each may be retried"),
            FieldInfo::new("tags", FieldKind::Names(0), "Their tags"),
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
            FieldInfo::new(
                "keep_result",
                FieldKind::Retention,
                "How long results are kept; `true` for 25 hours",
            ),
            FieldInfo::new(
                "unique",
                FieldKind::UniqueKey,
                "A key: a run is left out while a job of the queue has it",
            ),
            FieldInfo::new("expires_in", FieldKind::Span, "How long after its run a job may start"),
        ],
        read: recur,
    },
    OperationInfo {
        name: "recurring",
        access: Role::Viewer,
        meaning: "Lists the recurring jobs, of all queues or one, or shows one of them.",
        fields: &[
            FieldInfo::new("jid", FieldKind::Name, "Shows this one").needed(Need::AtMostOne),
            FieldInfo::new("queue", FieldKind::Name, "Only those of this queue").needed(Need::AtMostOne),
        ],
        read: recurring,
    },
    OperationInfo {
        name: "unrecur",
        access: Role::Operator,
        meaning: "Removes recurring jobs; the jobs that they put stay.",
        fields: &[FieldInfo::required("jids", FieldKind::Names(0), "The recurring jobs")],
        read: unrecur,
    },
    OperationInfo {
        name: "recur-pause",
        access: Role::Operator,
        meaning: "Pauses a recurring job.",
        fields: &[JID],
        read: pause,
    },
    OperationInfo {
        name: "recur-resume",
        access: Role::Operator,
        meaning: "Resumes a recurring job.",
        fields: &[JID],
        read: resume,
    },
    OperationInfo {
        name: "recur-run",
        access: Role::Operator,
        meaning: "Runs a recurring job now, beside its schedule.",
        fields: &[JID],
        read: run,
    },
];

/// How many missed runs are made up.
pub(super) fn backlog(object: &Object<'_>) -> Result<Option<Missed>, OperationError> {
    let Some(raw) = object.raw("backlog") else { return Ok(None) };
    if raw.get() == "\"skip\"" {
        return Ok(Some(Missed::Skip));
    }
    let runs = object.integer("backlog", "a number of runs, or \"skip\"")?;
    Ok(runs.map(|runs| if runs == 0 { Missed::All } else { Missed::Last(runs) }))
}

pub(super) fn overlap(text: &str) -> Result<Overlap, String> {
    match text {
        "allow" => Ok(Overlap::Allow),
        "skip" => Ok(Overlap::Skip),
        "cancel-old" => Ok(Overlap::CancelOld),
        other => Err(format!("must be allow, skip or cancel-old, not {:?}", crate::excerpt(other))),
    }
}

/// The interval or the cron expression, and the phrase that it was given as.
pub(super) fn period(
    object: &Object<'_>,
    times: &Times,
) -> Result<Option<(Period, Option<String>)>, OperationError> {
    let every = put::span(object, "every", times)?;
    let cron = object.parsed("cron", |text| {
        match When::parse(text, times.now, &(times.zones)()?).map_err(|why| why.to_string())? {
            // An expression is stored as it was written, because on a WorkKit schedule it is part of the id.
            When::Recurring(schedule) if Schedule::parse(text).as_ref() == Ok(&schedule) => {
                Ok((text.to_owned(), None))
            }
            When::Recurring(schedule) => Ok((schedule.to_string(), Some(text.to_owned()))),
            When::Once(_) => Err("it names one time, and not a recurrence: put a job with `at`".to_owned()),
        }
    })?;
    match (every, cron) {
        (Some(_), Some(_)) => {
            Err(OperationError::bad_argument("`every` and `cron` are both given: leave one out"))
        }
        (Some(every), None) => Ok(Some((Period::Interval(every), None))),
        (None, cron) => Ok(cron.map(|(cron, phrase)| (Period::Cron(cron), phrase))),
    }
}

fn recur(object: &Object<'_>, times: &Times) -> Result<Plan, OperationError> {
    let queue: QueueName = object.required_name("queue")?;
    let klass = object.required_name("klass")?;
    let payload = put::payload(object, "payload")?.unwrap_or_default();
    let jid: Jid = object.name("jid")?.unwrap_or_else(put::new_jid);
    let first = put::delay(object, "in", times)?;
    let Some((every, phrase)) = period(object, times)? else { return Err(missing("every")) };
    let tags: Vec<Tag> = object.names("tags")?.unwrap_or_default();
    let (priority, retries) = (put::priority(object)?, object.whole("retries")?);
    let options = PutOptions {
        attempt_max: put::span(object, "timeout", times)?,
        backoff: put::backoff(object)?,
        result_ttl: put::keep_result(object, times)?,
        unique: put::unique(object)?,
        ..PutOptions::default()
    };
    let missed = backlog(object)?;
    let overlap = object.parsed("overlap", overlap)?;
    let expires_in = put::span(object, "expires_in", times)?;
    let is_plain = options == PutOptions::default() && overlap.is_none() && expires_in.is_none();
    let backlog = missed.map_or(Some(0), crate::backlog_number);
    if let (Period::Interval(interval), Some(backlog), true) = (&every, backlog, is_plain) {
        let offset = first.unwrap_or(Seconds::ZERO);
        let due = first.map(|first| times.now + first);
        let named = jid.to_string();
        let recur = Recur {
            offset,
            priority: priority.unwrap_or_default(),
            retries: retries.unwrap_or(RETRIES_DEFAULT),
            tags,
            backlog,
            ..Recur::new(queue, jid, klass, payload, *interval)
        };
        return Plan::command(recur, move |(), _| recurs(&named, due));
    }
    let put = Put {
        priority,
        retries,
        tags: (!tags.is_empty()).then_some(tags),
        options: (options != PutOptions::default()).then(|| Box::new(options)),
        ..Put::new(queue, jid, klass, payload)
    };
    let first = first.filter(|_| matches!(every, Period::Interval(_)));
    let mut template = PeriodicTemplate::new(put, every);
    template.overlap = overlap.unwrap_or(template.overlap);
    template.missed = missed.unwrap_or(template.missed);
    template.expires_in = expires_in;
    template.phrase = phrase;
    Plan::steps(move |queue| async move {
        if let Some(jid) = queue.backend.periodic_jid(&template) {
            template.put.jid = jid;
        }
        let (jid, now) = (template.put.jid.to_string(), queue.now());
        let mut put = PutPeriodic::new(template, now);
        put.next = first.map(|first| now + first).or(put.next);
        let next = put.next;
        if next.is_none() {
            return Err(OperationError::bad_argument("it would never run: its last run is in the past"));
        }
        queue.run(put).await?;
        recurs(&jid, next)
    })
}

fn recurs(jid: &str, due: Option<Timestamp>) -> Outcome {
    let due = due.map(Number::from);
    document(&PutView { jid: Some(jid.to_owned()), outcome: "recurring", coalesced: false, due })
}

pub(super) async fn find_periodic(queue: &Queue, jid: &Jid) -> Result<Option<Periodic>, OperationError> {
    let found = queue.run_if_supported(Periodics::one(jid.clone())).await?;
    Ok(found.and_then(|mut found| found.periodics.pop()))
}

pub(super) async fn find_qless(queue: &Queue, jid: &Jid) -> Result<Recurring, OperationError> {
    match queue.run(GetRecurring { jid: jid.clone() }).await? {
        Some(job) => Ok(*job),
        None => Err(Refusal::NoSuchRecurring { jid: jid.clone() }.into()),
    }
}

fn recurring(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let (jid, of): (Option<Jid>, Option<QueueName>) = (object.name("jid")?, object.name("queue")?);
    if jid.is_some() && of.is_some() {
        return Err(OperationError::bad_argument("give either `jid` or `queue`"));
    }
    Plan::steps(move |queue| async move {
        match jid {
            Some(jid) => show(&queue, &jid).await,
            None => list(&queue, of).await,
        }
    })
}

pub(super) async fn show(queue: &Queue, jid: &Jid) -> Outcome {
    match find_periodic(queue, jid).await? {
        Some(periodic) => document(&PeriodicView::new(&periodic)),
        None => document(&RecurringView::new(&find_qless(queue, jid).await?)),
    }
}

/// Those of Qless come first.
async fn list(queue: &Queue, of: Option<QueueName>) -> Outcome {
    let count = Count::new(PAGE).unwrap_or(Count::ONE);
    let mut items: Vec<String> = Vec::new();
    // The first page of every queue at once: most have none.
    let page =
        |name: QueueName, offset| Jobs { which: Listing::Recurring(name), page: Page { offset, count } };
    let names: Vec<QueueName> =
        queue.run(Queues { queue: of.clone() }).await?.into_iter().map(|counts| counts.name).collect();
    let first = names.iter().map(|name| queue.call(page(name.clone(), 0).into())).collect();
    let first = if names.is_empty() { Vec::new() } else { queue.send(first).await? };
    for (name, answer) in names.into_iter().zip(first) {
        let mut jids = Jobs::answer(answer?).ok_or_else(wrong_answer)?;
        let mut offset = 0;
        while !jids.is_empty() {
            offset += jids.len();
            let is_last = jids.len() < count.get();
            let calls: Vec<Call> = jids.into_iter().map(|jid| Call::from(GetRecurring { jid })).collect();
            for answer in queue.send(calls).await? {
                if let Ok(Reply::GetRecurring(Some(job))) = answer {
                    items.push(document(&RecurringView::new(&job))?.json);
                }
            }
            jids = if is_last { Vec::new() } else { queue.run(page(name.clone(), offset)).await? };
        }
    }
    let mut after = None;
    loop {
        let Some(page) = queue.run_if_supported(Periodics { only: None, after, count }).await? else { break };
        after = page.periodics.last().map(|periodic| periodic.template.put.jid.clone());
        for periodic in &page.periodics {
            if of.as_ref().is_none_or(|of| *of == periodic.template.put.queue) {
                items.push(document(&PeriodicView::new(periodic))?.json);
            }
        }
        if after.is_none() {
            break;
        }
    }
    Ok(Document { json: format!("[{}]", items.join(",")), jobs: Vec::new() })
}

fn unrecur(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let jids: Vec<Jid> = object.names("jids")?.ok_or_else(|| missing("jids"))?;
    Plan::steps(move |queue| async move {
        for jid in &jids {
            if find_periodic(&queue, jid).await?.is_none() {
                find_qless(&queue, jid).await?;
            }
        }
        for jid in &jids {
            queue.run_if_supported(RemovePeriodic { jid: jid.clone() }).await?;
            queue.run(Unrecur { jid: jid.clone() }).await?;
        }
        document(&UnrecurView { removed: texts(&jids) })
    })
}

fn pause(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    set_paused(object, true)
}

fn resume(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    set_paused(object, false)
}

fn set_paused(object: &Object<'_>, is_paused: bool) -> Result<Plan, OperationError> {
    let jid: Jid = object.required_name("jid")?;
    Plan::steps(move |queue| async move {
        let Some(periodic) = find_periodic(&queue, &jid).await? else {
            return Err(OperationError {
                help: Some(
                    "only recurring jobs with a cron expression or put options can be paused".to_owned(),
                ),
                ..Refusal::NoSuchRecurring { jid }.into()
            });
        };
        let template = PeriodicTemplate { is_paused, ..*periodic.template };
        queue.run(PutPeriodic { must_exist: true, ..PutPeriodic::new(template, queue.now()) }).await?;
        show(&queue, &jid).await
    })
}

fn run(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let jid: Jid = object.required_name("jid")?;
    Plan::steps(move |queue| async move {
        // Its own run may come in between.
        for _ in 0..RUNS_MAX {
            let Some(periodic) = find_periodic(&queue, &jid).await? else {
                return Err(Refusal::NoSuchRecurring { jid }.into());
            };
            let next = periodic.next;
            let fire = FirePeriodic { jid: jid.clone(), expected: next, runs: vec![queue.now()], next };
            let mut fired = queue.run(fire).await?;
            if let Some(job) = fired.jobs.pop() {
                return document(&RunView { jid: job.to_string(), outcome: "created" });
            }
            if !fired.is_stale {
                return Err(match find_periodic(&queue, &jid).await?.and_then(|periodic| periodic.error) {
                    Some(refusal) => (*refusal).into(),
                    None => OperationError::new("overlap", "the job of an earlier run is not finished"),
                });
            }
        }
        Err(OperationError::new("conflict", format!("{jid} ran several times meanwhile; try again")))
    })
}
