//! Change jobs, one or all that a filter selects: cancel, requeue, priority, tags, tracking, dependencies.

use geartrain_core::{
    AddTags, BulkAct, Cancel, Cycles, Depend, DependChange, Existing, Get, HistoryEvent, Jid, Job, Klass,
    Log, Put, QueueName, Refusal, RemoveTags, Role, Seconds, SetPriority, Tag, Track,
};

use super::bulk::{self, ALL, DRY_RUN};
use super::jobs::WHERE_MANY;
use super::{FieldInfo, FieldKind, JID, Need, OperationInfo, Outcome, Plan, Queue, document};
use crate::object::missing;
use crate::reply::{CancelView, DependencyView, JidView, PriorityView, RequeueView, TagsView, TrackView};
use crate::time::Times;
use crate::{Number, Object, OperationError, put, texts};

const ONE: FieldInfo = FieldInfo::new("jid", FieldKind::Name, "The id of the job, unless a filter is given")
    .needed(Need::ExactlyOne)
    .of_one();
const TAGS: FieldInfo = FieldInfo::required("tags", FieldKind::Names(1), "The tags");

pub(super) const OPERATIONS: &[OperationInfo] = &[
    OperationInfo {
        name: "cancel",
        access: Role::Operator,
        meaning: "Cancels jobs that are not complete.",
        fields: &[
            ONE,
            FieldInfo::new("jids", FieldKind::Names(0), "Several jobs").needed(Need::ExactlyOne).of_one(),
            FieldInfo::new("because", FieldKind::Text, "Why"),
            FieldInfo::new("cascade", FieldKind::Flag, "Also cancels the jobs that depend on them").of_one(),
            WHERE_MANY,
            ALL,
            DRY_RUN,
        ],
        read: cancel,
    },
    OperationInfo {
        name: "requeue",
        access: Role::Operator,
        meaning: "Puts a job again, with all of its retries.",
        fields: &[
            ONE,
            FieldInfo::new("queue", FieldKind::Name, "The queue; by default the one it is or was in"),
            FieldInfo::new("klass", FieldKind::Name, "Another klass").of_one(),
            FieldInfo::new("payload", FieldKind::Json, "Another payload").of_one(),
            FieldInfo::new("in", FieldKind::Duration, "The delay").of_one(),
            WHERE_MANY,
            ALL,
            DRY_RUN,
        ],
        read: requeue,
    },
    OperationInfo {
        name: "priority",
        access: Role::Operator,
        meaning: "Changes the priority of a job.",
        fields: &[
            ONE,
            FieldInfo::required("priority", FieldKind::Number, "The new priority, higher first"),
            WHERE_MANY,
            ALL,
            DRY_RUN,
        ],
        read: priority,
    },
    OperationInfo {
        name: "tag",
        access: Role::Operator,
        meaning: "Adds tags to a job.",
        fields: &[ONE, TAGS, WHERE_MANY, ALL, DRY_RUN],
        read: tag,
    },
    OperationInfo {
        name: "untag",
        access: Role::Operator,
        meaning: "Removes tags from a job.",
        fields: &[ONE, TAGS, WHERE_MANY, ALL, DRY_RUN],
        read: untag,
    },
    OperationInfo {
        name: "track",
        access: Role::Operator,
        meaning: "Starts tracking a job.",
        fields: &[JID],
        read: track,
    },
    OperationInfo {
        name: "untrack",
        access: Role::Operator,
        meaning: "Stops tracking a job.",
        fields: &[JID],
        read: untrack,
    },
    OperationInfo {
        name: "depend",
        access: Role::Operator,
        meaning: "Adds dependencies to a job that waits for others.",
        fields: &[JID, FieldInfo::required("on", FieldKind::Names(0), "The jobs to wait for")],
        read: depend,
    },
    OperationInfo {
        name: "undepend",
        access: Role::Operator,
        meaning: "Removes dependencies of a job.",
        fields: &[
            JID,
            FieldInfo::new("on", FieldKind::Names(0), "The jobs to no longer wait for")
                .needed(Need::ExactlyOne),
            FieldInfo::new("all", FieldKind::Flag, "Removes all dependencies").needed(Need::ExactlyOne),
        ],
        read: undepend,
    },
    OperationInfo {
        name: "log",
        access: Role::Operator,
        meaning: "Appends a message to the history of a job.",
        fields: &[
            JID,
            FieldInfo::required("message", FieldKind::Text, "The message"),
            FieldInfo::new("data", FieldKind::Object, "Details"),
        ],
        read: log,
    },
];

fn cancel(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let because = object.text("because")?;
    if let Some(filter) = bulk::filter(object)? {
        return bulk::act(object, filter, BulkAct::Cancel { because });
    }
    let mut jids: Vec<Jid> = match (object.name("jid")?, object.names("jids")?) {
        (Some(jid), None) => vec![jid],
        (None, Some(jids)) => jids,
        (None, None) => return Err(missing("jid")),
        (Some(_), Some(_)) => {
            return Err(OperationError::bad_argument("`jid` and `jids` are both given: leave one out"));
        }
    };
    jids.sort_unstable();
    jids.dedup();
    let cascade = object.flag("cascade")?;
    Plan::command(Cancel { jids, because, cascade }, |cancelled, _| document(&CancelView { cancelled }))
}

fn requeue(object: &Object<'_>, times: &Times) -> Result<Plan, OperationError> {
    let queue: Option<QueueName> = object.name("queue")?;
    if let Some(filter) = bulk::filter(object)? {
        return bulk::act(object, filter, BulkAct::Requeue { queue });
    }
    let jid: Jid = object.required_name("jid")?;
    let klass: Option<Klass> = object.name("klass")?;
    let payload = put::payload(object, "payload")?;
    let delay = put::delay(object, "in", times)?.unwrap_or(Seconds::ZERO);
    Plan::steps(move |to| async move {
        let job = find(&to, &jid).await?;
        let Some(queue) = queue.or_else(|| last_queue(&job)) else {
            let why = format!("the last queue of job {jid} is not known any more: send a queue");
            return Err(OperationError::new("no-queue", why));
        };
        let put = Put {
            delay,
            existing: Existing::Require,
            ..Put::new(queue.clone(), jid.clone(), klass.unwrap_or(job.klass), payload.unwrap_or(job.payload))
        };
        let outcome = put::outcome(&to.run(put).await?);
        document(&RequeueView { jid: jid.to_string(), queue: queue.to_string(), outcome })
    })
}

async fn find(queue: &Queue, jid: &Jid) -> Result<Job, OperationError> {
    match queue.run(Get { jid: jid.clone() }).await? {
        Some(job) => Ok(*job),
        None => Err(Refusal::NoSuchJob { jid: jid.clone() }.into()),
    }
}

/// The queue that a job is in, or was in last.
pub fn last_queue(job: &Job) -> Option<QueueName> {
    job.queue.clone().or_else(|| {
        job.history.iter().rev().find_map(|entry| match &entry.what {
            HistoryEvent::Put { queue } => Some(queue.clone()),
            _ => None,
        })
    })
}

fn priority(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let priority = put::priority(object)?.ok_or_else(|| missing("priority"))?;
    if let Some(filter) = bulk::filter(object)? {
        return bulk::act(object, filter, BulkAct::SetPriority { priority });
    }
    let jid: Jid = object.required_name("jid")?;
    let view = PriorityView { jid: jid.to_string(), priority: Number(priority.get()) };
    Plan::command(SetPriority { jid, priority }, move |(), _| document(&view))
}

fn tags(object: &Object<'_>) -> Result<Vec<Tag>, OperationError> {
    object.names("tags")?.ok_or_else(|| missing("tags"))
}

fn tagged(jid: String) -> impl FnOnce(Vec<Tag>, geartrain_core::Timestamp) -> Outcome + Send {
    move |tags, _| document(&TagsView { jid, tags: texts(&tags) })
}

fn tag(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let tags = tags(object)?;
    if let Some(filter) = bulk::filter(object)? {
        return bulk::act(object, filter, BulkAct::AddTags { tags });
    }
    let jid: Jid = object.required_name("jid")?;
    let named = jid.to_string();
    Plan::command(AddTags { jid, tags }, tagged(named))
}

fn untag(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let tags = tags(object)?;
    if let Some(filter) = bulk::filter(object)? {
        return bulk::act(object, filter, BulkAct::RemoveTags { tags });
    }
    let jid: Jid = object.required_name("jid")?;
    let named = jid.to_string();
    Plan::command(RemoveTags { jid, tags }, tagged(named))
}

fn track(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    set_tracked(object, true)
}

fn untrack(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    set_tracked(object, false)
}

fn set_tracked(object: &Object<'_>, on: bool) -> Result<Plan, OperationError> {
    let jid: Jid = object.required_name("jid")?;
    let named = jid.to_string();
    Plan::command(Track { jid, on }, move |changed, _| {
        document(&TrackView { jid: named, tracked: on, changed })
    })
}

fn depend(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let on = object.names("on")?.ok_or_else(|| missing("on"))?;
    change_dependencies(object, DependChange::On(on))
}

fn undepend(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let change = match (object.names("on")?, object.flag("all")?) {
        (Some(on), false) => DependChange::Off(on),
        (None, true) => DependChange::OffAll,
        (None, false) => return Err(missing("on")),
        (Some(_), true) => return Err(OperationError::bad_argument("give either `on` or `all`")),
    };
    change_dependencies(object, change)
}

fn change_dependencies(object: &Object<'_>, change: DependChange) -> Result<Plan, OperationError> {
    let jid: Jid = object.required_name("jid")?;
    Plan::steps(move |queue| async move {
        queue.run(Depend { jid: jid.clone(), change, cycles: Cycles::Refuse }).await?;
        let job = find(&queue, &jid).await?;
        let (state, dependencies) = (job.state.name().as_str(), texts(job.dependencies()));
        document(&DependencyView { jid: jid.to_string(), state, dependencies })
    })
}

fn log(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let jid: Jid = object.required_name("jid")?;
    let message = object.text("message")?.ok_or_else(|| missing("message"))?;
    let data = object.raw("data").map(|data| data.get().to_owned());
    if data.as_ref().is_some_and(|data| !data.starts_with('{')) {
        return Err(OperationError::bad_argument("`data` must be a JSON object"));
    }
    let named = jid.to_string();
    Plan::command(Log { jid, message, data }, move |(), _| document(&JidView { jid: named }))
}
