//! Look jobs up: by id, by filter, with the reasons why they are not running.

use geartrain_core::{
    Canceled, Count, Cursor, Filter, FilterState, Get, GetMany, Jid, Refusal, Role, SELECT_MAX, Select,
    Status, StatusOf, Tag, Term, Tracked, Why, WhyQueue,
};
use schemars::JsonSchema;

use super::{FieldInfo, FieldKind, JID, Need, OperationInfo, Outcome, Plan, Queue, document};
use crate::object::{missing, of_key};
use crate::put;
use crate::select::not_json;
use crate::time::Times;
use crate::{JobView, Object, OperationError, StatusView, TombstoneView, WhyQueueView, WhyView, texts};

/// How many jobs a page of `jobs` has unless given.
const PAGE_JOBS: i64 = 25;
/// How often a page is asked for before it is shown as it is: one command examines a bounded number of jobs.
const SELECTS_MAX: usize = 16;

pub(super) const WHERE: FieldInfo = FieldInfo::new(
    "where",
    FieldKind::Format("filter"),
    "A filter, such as `queue=mail state=failed age>2h args.user.id=42`",
);
/// For changes, which are of all jobs that it selects.
pub(super) const WHERE_MANY: FieldInfo = WHERE.needed(Need::AtLeastOne).of_many();

/// [`FilterState::ALL`], which a test compares.
const STATES: &[&str] = &["scheduled", "depends", "waiting", "running", "stalled", "complete", "failed"];

pub(super) const OPERATIONS: &[OperationInfo] = &[
    OperationInfo {
        name: "get",
        access: Role::Viewer,
        meaning: "Looks up a job.",
        fields: &[JID],
        read: get,
    },
    OperationInfo {
        name: "canceled",
        access: Role::Viewer,
        meaning: "Looks up what is left of a cancelled job.",
        fields: &[JID],
        read: canceled,
    },
    OperationInfo {
        name: "jobs",
        access: Role::Viewer,
        meaning: "Lists the jobs that a filter selects, a page at a time. `next` is the `after` of the next page.",
        fields: &[
            WHERE,
            FieldInfo::new("queue", FieldKind::Name, "Only jobs of this queue"),
            FieldInfo::new("state", FieldKind::Choice(STATES), "Only jobs in this state"),
            FieldInfo::new("klass", FieldKind::Name, "Only jobs of this klass"),
            FieldInfo::new("tag", FieldKind::Name, "Only jobs with this tag"),
            FieldInfo::new("group", FieldKind::LongName, "Only jobs that failed in this group"),
            FieldInfo::new("worker", FieldKind::Name, "Only jobs that this worker holds"),
            FieldInfo::new(
                "limit",
                FieldKind::Whole(1, SELECT_MAX as u64),
                "How many at most; 25 by default, up to 1000",
            ),
            FieldInfo::new(
                "after",
                FieldKind::Format("cursor"),
                "Continues after the page that had this `next`",
            ),
        ],
        read: jobs,
    },
    OperationInfo {
        name: "status",
        access: Role::Viewer,
        meaning: "Looks up an unfinished job, by its id or by its queue and unique key.",
        fields: &[
            FieldInfo::new("jid", FieldKind::Name, "The id of the job").needed(Need::ExactlyOne),
            FieldInfo::new("queue", FieldKind::Name, "The queue of the unique key"),
            FieldInfo::new("unique", FieldKind::UniqueKey, "The unique key").needed(Need::ExactlyOne),
        ],
        read: status,
    },
    OperationInfo {
        name: "why",
        access: Role::Viewer,
        meaning: "Explains why a job, or the jobs of a queue, are not running.",
        fields: &[
            FieldInfo::new("jid", FieldKind::Name, "The id of the job").needed(Need::ExactlyOne),
            FieldInfo::new("queue", FieldKind::Name, "The queue, instead of a job").needed(Need::ExactlyOne),
        ],
        read: why,
    },
    OperationInfo {
        name: "tracked",
        access: Role::Viewer,
        meaning: "Lists the tracked jobs.",
        fields: &[],
        read: tracked,
    },
];

fn get(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let jid: Jid = object.required_name("jid")?;
    let named = jid.clone();
    Plan::command(Get { jid }, move |job, now| match job {
        Some(job) => document(&JobView::new(&job, now)),
        None => Err(Refusal::NoSuchJob { jid: named }.into()),
    })
}

fn canceled(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let jid: Jid = object.required_name("jid")?;
    let named = jid.clone();
    Plan::command(Canceled { jid }, move |tombstone, _| match tombstone {
        Some(tombstone) => document(&TombstoneView::new(&tombstone)),
        None => Err(Refusal::NoSuchJob { jid: named }.into()),
    })
}

/// The text form of a filter.
pub(super) fn filter(object: &Object<'_>) -> Result<Option<Filter>, OperationError> {
    object.parsed("where", |text| text.parse().map_err(|error: geartrain_core::BadFilter| error.to_string()))
}

fn state(text: &str) -> Result<FilterState, String> {
    let found = FilterState::ALL.into_iter().find(|state| state.as_str() == text);
    found.ok_or_else(|| {
        format!(
            "must be scheduled, depends, waiting, running, stalled, complete or failed, not {:?}",
            crate::excerpt(text)
        )
    })
}

fn jobs(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let mut filter = filter(object)?.unwrap_or_default();
    filter.terms.extend(object.name("queue")?.map(Term::Queue));
    filter.terms.extend(object.parsed("state", state)?.map(Term::State));
    filter.terms.extend(object.name("klass")?.map(Term::Klass));
    filter.terms.extend(object.name::<Tag>("tag")?.map(Term::Tag));
    filter.terms.extend(object.name("group")?.map(Term::Group));
    filter.terms.extend(object.name("worker")?.map(Term::Worker));
    filter.check().map_err(of_key("where"))?;
    let limit: i64 = object.whole("limit")?.unwrap_or(PAGE_JOBS);
    if !(1..=SELECT_MAX as i64).contains(&limit) {
        return Err(of_key("limit")(format!("it must be from 1 to {SELECT_MAX}")));
    }
    let after = object.text("after")?.map(Cursor);
    Plan::steps(move |queue| page(queue, filter, after, limit as usize))
}

async fn page(queue: Queue, filter: Filter, mut after: Option<Cursor>, limit: usize) -> Outcome {
    let mut jids: Vec<Jid> = Vec::new();
    for _ in 0..SELECTS_MAX {
        let count = Count::new((limit - jids.len()) as i64).unwrap_or(Count::ONE);
        let reply = queue.run(Select { filter: filter.clone(), after: after.take(), count }).await?;
        if reply.not_json > 0 {
            return Err(not_json(reply.not_json));
        }
        jids.extend(reply.jobs.into_iter().map(|job| job.jid));
        after = reply.next;
        if after.is_none() || jids.len() >= limit {
            break;
        }
    }
    let jobs = if jids.is_empty() { Vec::new() } else { queue.run(GetMany { jids }).await? };
    let now = queue.now();
    let items: Vec<JobView> = jobs.iter().map(|job| JobView::new(job, now)).collect();
    document(&PageView { items, next: after.map(|cursor| cursor.0) })
}

/// A page of jobs.
#[derive(serde::Serialize, JsonSchema)]
pub(super) struct PageView {
    items: Vec<JobView>,
    /// The `after` of the next page; null on the last one.
    next: Option<String>,
}

fn status(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let of = match (object.name("jid")?, object.name("queue")?, put::unique(object)?) {
        (Some(jid), None, None) => StatusOf::Jid(jid),
        (None, Some(queue), Some(key)) => StatusOf::Unique(queue, key),
        (None, Some(_), None) => return Err(missing("unique")),
        (None, None, Some(_)) => return Err(missing("queue")),
        (None, None, None) => return Err(missing("jid")),
        _ => {
            return Err(OperationError::bad_argument("give either `jid`, or `queue` and `unique`"));
        }
    };
    Plan::command(Status { of }, |status, _| match status {
        Some(status) => document(&StatusView::new(&status)),
        None => Err(OperationError::new("not-unfinished", "there is no such job, or it has ended")),
    })
}

fn why(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    match (object.name("jid")?, object.name("queue")?) {
        (Some(jid), None) => Plan::command(Why { jid }, |reply, _| document(&WhyView::new(&reply))),
        (None, Some(queue)) => {
            Plan::command(WhyQueue { queue }, |reply, _| document(&WhyQueueView::new(&reply)))
        }
        (None, None) => Err(missing("jid")),
        (Some(_), Some(_)) => Err(OperationError::bad_argument("give either `jid` or `queue`")),
    }
}

fn tracked(_: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    Plan::command(Tracked, |reply, now| {
        let jobs: Vec<JobView> = reply.jobs.iter().map(|job| JobView::new(job, now)).collect();
        // Not `json!`, which would read the digits of payloads as numbers.
        document(&TrackedView { jobs, gone: texts(&reply.expired) })
    })
}

/// Tracked jobs.
#[derive(serde::Serialize, JsonSchema)]
pub(super) struct TrackedView {
    jobs: Vec<JobView>,
    /// Tracked jobs that do not exist any more.
    gone: Vec<String>,
}
