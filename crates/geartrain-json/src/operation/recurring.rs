//! Recurring jobs: those of Qless, and periodic ones by cron expression or with put options.

use geartrain_core::schedule::{Schedule, When};
use geartrain_core::{
    Call, Count, FirePeriodic, GetRecurring, Jid, Jobs, Listing, Missed, Overlap, Page, Period, Periodic,
    PeriodicTemplate, Periodics, Put, PutOptions, PutPeriodic, QueueName, Queues, Recur, Recurring, Refusal,
    RemovePeriodic, Reply, Seconds, Tag, Timestamp, Unrecur,
};
use serde_json::json;

use super::{Document, FieldInfo, FieldKind, JID, OperationInfo, Outcome, Plan, QUEUE, Queue, document};
use crate::object::{missing, of_key};
use crate::time::Times;
use crate::{Number, Object, OperationError, PeriodicView, RETRIES_DEFAULT, RecurringView, put, texts};

/// How many recurring jobs are listed per request.
const PAGE: i64 = 1_000;
/// How often a run that another process makes at the same time is tried again.
const RUNS_MAX: usize = 5;

pub(super) const OPERATIONS: &[OperationInfo] = &[
    OperationInfo {
        name: "recur",
        meaning: "Creates or replaces a recurring job, by an interval or a cron expression.",
        fields: &[
            QUEUE,
            FieldInfo::required("klass", FieldKind::Text, "The klass of its jobs"),
            FieldInfo::new("payload", FieldKind::Json, "Their payload"),
            FieldInfo::new("every", FieldKind::Duration, "The interval"),
            FieldInfo::new("cron", FieldKind::Text, "Instead of an interval: a cron expression, or a phrase"),
            FieldInfo::new("in", FieldKind::Duration, "With an interval: the time until the first job"),
            FieldInfo::new("jid", FieldKind::Text, "Its id; by default a UUID"),
            FieldInfo::new("priority", FieldKind::Number, "The priority of its jobs"),
            FieldInfo::new("retries", FieldKind::Whole, "How often each may be retried"),
            FieldInfo::new("tags", FieldKind::Texts, "Their tags"),
            FieldInfo::new(
                "backlog",
                FieldKind::Whole,
                "How many missed runs are made up: 0 for all, or \"skip\"",
            ),
            FieldInfo::new(
                "overlap",
                FieldKind::Text,
                "If an earlier job is not finished: allow, skip or cancel-old",
            ),
            FieldInfo::new("timeout", FieldKind::Duration, "How long one attempt may take"),
            FieldInfo::new("backoff", FieldKind::Text, "The delay of retries, such as 10s..1h"),
            FieldInfo::new(
                "keep_result",
                FieldKind::Duration,
                "How long results are kept; `true` for 25 hours",
            ),
            FieldInfo::new(
                "unique",
                FieldKind::Json,
                "A key: a run is left out while a job of the queue has it",
            ),
            FieldInfo::new("expires_in", FieldKind::Duration, "How long after its run a job may start"),
        ],
        read: recur,
    },
    OperationInfo {
        name: "recurring",
        meaning: "Lists the recurring jobs, of all queues or one, or shows one of them.",
        fields: &[
            FieldInfo::new("jid", FieldKind::Text, "Shows this one"),
            FieldInfo::new("queue", FieldKind::Text, "Only those of this queue"),
        ],
        read: recurring,
    },
    OperationInfo {
        name: "unrecur",
        meaning: "Removes recurring jobs; the jobs that they put stay.",
        fields: &[FieldInfo::required("jids", FieldKind::Texts, "The recurring jobs")],
        read: unrecur,
    },
    OperationInfo { name: "recur-pause", meaning: "Pauses a recurring job.", fields: &[JID], read: pause },
    OperationInfo { name: "recur-resume", meaning: "Resumes a recurring job.", fields: &[JID], read: resume },
    OperationInfo {
        name: "recur-run",
        meaning: "Runs a recurring job now, beside its schedule.",
        fields: &[JID],
        read: run,
    },
];

/// How many missed runs are made up.
fn backlog(object: &Object<'_>) -> Result<Option<Missed>, OperationError> {
    let Some(raw) = object.raw("backlog") else { return Ok(None) };
    Ok(Some(match raw.get() {
        "\"skip\"" => Missed::Skip,
        "0" => Missed::All,
        other => Missed::Last(other.parse().map_err(|_| {
            of_key("backlog")(format!(
                "it must be a number of runs, or \"skip\", not {}",
                crate::excerpt(other)
            ))
        })?),
    }))
}

fn overlap(text: &str) -> Result<Overlap, String> {
    match text {
        "allow" => Ok(Overlap::Allow),
        "skip" => Ok(Overlap::Skip),
        "cancel-old" => Ok(Overlap::CancelOld),
        other => Err(format!("must be allow, skip or cancel-old, not {:?}", crate::excerpt(other))),
    }
}

fn recur(object: &Object<'_>, times: &Times) -> Result<Plan, OperationError> {
    let queue: QueueName = object.required_name("queue")?;
    let klass = object.required_name("klass")?;
    let payload = put::payload(object, "payload")?.unwrap_or_default();
    let jid: Jid = object.name("jid")?.unwrap_or_else(put::new_jid);
    let (every, first) = (put::span(object, "every", times)?, put::delay(object, "in", times)?);
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
    let (every, phrase) = match (every, cron) {
        (Some(every), None) => (Period::Interval(every), None),
        (None, Some((cron, phrase))) => (Period::Cron(cron), phrase),
        (None, None) => return Err(missing("every")),
        (Some(_), Some(_)) => {
            return Err(OperationError::bad_argument("`every` and `cron` are both given: leave one out"));
        }
    };
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
    document(&json!({ "jid": jid, "outcome": "recurring", "coalesced": false, "due": due.map(Number::from) }))
}

async fn find_periodic(queue: &Queue, jid: &Jid) -> Result<Option<Periodic>, OperationError> {
    let found = queue.run_if_supported(Periodics::one(jid.clone())).await?;
    Ok(found.and_then(|mut found| found.periodics.pop()))
}

async fn find_qless(queue: &Queue, jid: &Jid) -> Result<Recurring, OperationError> {
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

async fn show(queue: &Queue, jid: &Jid) -> Outcome {
    match find_periodic(queue, jid).await? {
        Some(periodic) => document(&PeriodicView::new(&periodic)),
        None => document(&RecurringView::new(&find_qless(queue, jid).await?)),
    }
}

/// Those of Qless come first.
async fn list(queue: &Queue, of: Option<QueueName>) -> Outcome {
    let count = Count::new(PAGE).unwrap_or(Count::ONE);
    let mut items: Vec<String> = Vec::new();
    for counts in queue.run(Queues { queue: of.clone() }).await? {
        let mut offset = 0;
        loop {
            let page = Page { offset, count };
            let jids = queue.run(Jobs { which: Listing::Recurring(counts.name.clone()), page }).await?;
            offset += jids.len();
            let is_last = jids.len() < count.get();
            let calls: Vec<Call> = jids.into_iter().map(|jid| Call::from(GetRecurring { jid })).collect();
            let answers = if calls.is_empty() { Vec::new() } else { queue.send(calls).await? };
            for answer in answers {
                if let Ok(Reply::GetRecurring(Some(job))) = answer {
                    items.push(document(&RecurringView::new(&job))?.json);
                }
            }
            if is_last {
                break;
            }
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
        document(&json!({ "removed": texts(&jids) }))
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
                return document(&json!({ "jid": job.to_string(), "outcome": "created" }));
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
