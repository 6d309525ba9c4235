//! Queues: counts, statistics, pausing, limits, failures by group.

use std::collections::BTreeMap;

use geartrain_core::{
    AllConfig, Count, Existing, Failed, Failures, Figures, ForgetQueues, ForgetWorkers, GetLimits, GetMany,
    Group, Page, Pause, Priority, Put, QueueLimits, QueueName, Queues, Refusal, Resume, Role, SetConfig,
    SetLimits, Setting, Stats, Timestamp, Unfail, UnsetConfig, WorkerName, read_number,
};

use super::bulk::{self, ALL, DRY_RUN};
use super::jobs::WHERE_MANY;
use super::{FieldInfo, FieldKind, Need, OperationInfo, Plan, QUEUE, Queue, document, field};
use crate::object::{missing, of_key};
use crate::reply::{FailureGroupView, ForgetView, PauseView, UnfailView};
use crate::time::{self, Times};
use crate::{
    JobView, LimitsView, MAX_CONCURRENCY, Object, OperationError, QueueView, StatsView, queue_option, rate,
    spellings, texts,
};

/// How many failed jobs one step of `unfail` moves.
const UNFAIL_STEP: u64 = 500;

const QUEUES: FieldInfo = FieldInfo::required("queues", FieldKind::Names(1), "The queues");

pub(super) const OPERATIONS: &[OperationInfo] = &[
    OperationInfo {
        name: "queues",
        access: Role::Viewer,
        meaning: "Counts the jobs of one queue, or of each queue, by state.",
        fields: &[FieldInfo::new("queue", FieldKind::Name, "Only this queue")],
        read: queues,
    },
    OperationInfo {
        name: "stats",
        access: Role::Viewer,
        meaning: "Shows the statistics of a queue for one day.",
        fields: &[
            QUEUE,
            FieldInfo::new("day", FieldKind::Day, "Any time of the day, in UTC; today by default"),
        ],
        read: stats,
    },
    OperationInfo {
        name: "pause",
        access: Role::Operator,
        meaning: "Pauses queues: pops get none of their jobs.",
        fields: &[QUEUES],
        read: pause,
    },
    OperationInfo {
        name: "resume",
        access: Role::Operator,
        meaning: "Resumes paused queues.",
        fields: &[QUEUES],
        read: resume,
    },
    OperationInfo {
        name: "limits",
        access: Role::Operator,
        meaning: "Shows the limits of a queue, and sets those that are given.",
        fields: &[
            QUEUE,
            FieldInfo::new("max", FieldKind::Whole(1, u64::MAX), "The most unfinished jobs"),
            FieldInfo::new("by_priority", FieldKind::Levels, "A list of {\"priority\", \"max\"}"),
            FieldInfo::new("rate", FieldKind::Format("rate"), "How often jobs may start, such as 100/1m+20"),
            FieldInfo::new(
                "max_concurrency",
                FieldKind::Whole(0, u32::MAX as u64),
                "How many jobs may run at once; 0 for no limit",
            ),
            FieldInfo::new("none", FieldKind::Flag, "Removes all limits"),
        ],
        read: set_limits,
    },
    OperationInfo {
        name: "forget",
        access: Role::Admin,
        meaning: "Removes queues or workers from the lists; jobs and locks stay.",
        fields: &[
            FieldInfo::new("queues", FieldKind::Names(1), "The queues").needed(Need::ExactlyOne),
            FieldInfo::new("workers", FieldKind::Names(1), "The workers").needed(Need::ExactlyOne),
        ],
        read: forget,
    },
    OperationInfo {
        name: "failed",
        access: Role::Viewer,
        meaning: "Counts the failed jobs by group, or lists those of one group, newest first.",
        fields: &[
            FieldInfo::new("group", FieldKind::LongName, "The group"),
            FieldInfo::new(
                "limit",
                FieldKind::Whole(1, 1_000),
                "How many jobs at most; 25 by default, up to 1000",
            ),
            FieldInfo::new("offset", FieldKind::Whole(0, u64::MAX), "How many jobs to skip"),
        ],
        read: failed,
    },
    OperationInfo {
        name: "unfail",
        access: Role::Operator,
        meaning: "Puts the oldest failed jobs of a group again.",
        fields: &[
            FieldInfo::new("group", FieldKind::LongName, "The group, unless a filter is given")
                .needed(Need::ExactlyOne)
                .of_one(),
            FieldInfo::new("queue", FieldKind::Name, "The queue; by default that of each job"),
            FieldInfo::new("count", FieldKind::Whole(0, u64::MAX), "How many at most; all by default")
                .of_one(),
            WHERE_MANY,
            ALL,
            DRY_RUN,
        ],
        read: unfail,
    },
];

fn queues(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let queue: Option<QueueName> = object.name("queue")?;
    Plan::steps(move |to| async move {
        let counts = to.run(Queues { queue: queue.clone() }).await?;
        let figures = to.run_if_supported(Figures { queue }).await?.unwrap_or_default();
        // By name, because there may be a hundred thousand queues.
        let figures: BTreeMap<_, _> = figures.iter().map(|figures| (&figures.name, figures)).collect();
        let views: Vec<QueueView> =
            counts.iter().map(|counts| QueueView::new(counts, figures.get(&counts.name).copied())).collect();
        document(&views)
    })
}

fn stats(object: &Object<'_>, times: &Times) -> Result<Plan, OperationError> {
    let queue: QueueName = object.required_name("queue")?;
    let day = day(object, times)?;
    let named = queue.to_string();
    Plan::command(Stats { queue, date: day }, move |stats, _| document(&StatsView::new(&named, day, &stats)))
}

/// A day: seconds since the epoch, or a text: today, yesterday, a date, or a time.
fn day(object: &Object<'_>, times: &Times) -> Result<Timestamp, OperationError> {
    let Some(raw) = object.raw("day") else { return Ok(times.now.day()) };
    let text = raw.get().trim_matches('"');
    let day = match text {
        "today" => Ok(times.now),
        "yesterday" => Ok(times.now - geartrain_core::Seconds::from(86_400)),
        date if date.len() == 10 && date.as_bytes()[4] == b'-' => time::parse(&format!("{date}T00:00:00Z")),
        other => time::parse(other),
    };
    let day = day.ok().filter(|day| (0.0..=field::DAY_MAX).contains(&day.get()));
    day.map(Timestamp::day).ok_or_else(|| {
        let given = crate::excerpt(text);
        of_key("day")(format!("{given:?} is not a day: write it like 2026-04-01, or today, or yesterday"))
    })
}

fn pause(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let queues: Vec<QueueName> = object.names("queues")?.ok_or_else(|| missing("queues"))?;
    let named = texts(&queues);
    Plan::command(Pause { queues }, move |(), _| document(&PauseView { queues: named, paused: true }))
}

fn resume(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let queues: Vec<QueueName> = object.names("queues")?.ok_or_else(|| missing("queues"))?;
    let named = texts(&queues);
    Plan::command(Resume { queues }, move |(), _| document(&PauseView { queues: named, paused: false }))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Level {
    priority: f64,
    max: Whole,
}

/// A whole number, which JSON may write as `2.0`.
#[derive(serde::Deserialize)]
#[serde(try_from = "serde_json::Number")]
struct Whole(u64);

impl TryFrom<serde_json::Number> for Whole {
    type Error = &'static str;

    fn try_from(number: serde_json::Number) -> Result<Whole, &'static str> {
        let written = || {
            let number = number.as_f64().filter(|number| number.fract() == 0.0)?;
            format!("{number:.0}").parse().ok()
        };
        number.as_u64().or_else(written).map(Whole).ok_or("it must be a whole number of 0 or more")
    }
}

fn set_limits(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let queue: QueueName = object.required_name("queue")?;
    let levels: Vec<Level> =
        object.read("by_priority", "a list of {\"priority\": 5, \"max\": 100}")?.unwrap_or_default();
    let by_priority = levels.into_iter().map(|level| Ok((Priority::new(level.priority)?, level.max.0)));
    let by_priority: Result<Vec<(Priority, u64)>, geartrain_core::NotFinite> = by_priority.collect();
    let given = QueueLimits {
        jobs_max: object.whole("max")?,
        by_priority: by_priority.map_err(geartrain_core::BadInput::from)?,
        rate: object.parsed("rate", rate::parse)?,
    };
    let max_concurrency: Option<u32> = object.whole("max_concurrency")?;
    let none = object.flag("none")?;
    if none && (given != QueueLimits::default() || max_concurrency.is_some()) {
        return Err(OperationError::bad_argument("`none` removes all limits: give no other"));
    }
    Plan::steps(move |to| async move {
        if none || given != QueueLimits::default() {
            to.run(SetLimits { queue: queue.clone(), limits: given }).await?;
        }
        let [option, other_spelling] = spellings(MAX_CONCURRENCY, queue.as_str());
        if none || max_concurrency == Some(0) {
            let settings = to.run(AllConfig).await?;
            for option in [option, other_spelling] {
                if let Some(Setting::Chosen(_)) = settings.get(&option) {
                    to.run(UnsetConfig { option }).await?;
                }
            }
        } else if let Some(max) = max_concurrency {
            to.run(SetConfig::new(option, max.to_string())).await?;
        }
        let found = to.run(GetLimits { queue: queue.clone() }).await?;
        let max = queue_option(MAX_CONCURRENCY, &queue, &to.run(AllConfig).await?);
        let max = max.and_then(|max| read_number(max.as_bytes())).filter(|max| *max > 0.0);
        document(&LimitsView::new(&queue, &found, max.map(|max| max as u64)))
    })
}

fn forget(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let queues: Option<Vec<QueueName>> = object.names("queues")?;
    let workers: Option<Vec<WorkerName>> = object.names("workers")?;
    match (queues, workers) {
        (Some(queues), None) => {
            let named = texts(&queues);
            Plan::command(ForgetQueues { queues }, move |(), _| document(&ForgetView { forgotten: named }))
        }
        (None, Some(workers)) => {
            let named = texts(&workers);
            Plan::command(ForgetWorkers { workers }, move |(), _| document(&ForgetView { forgotten: named }))
        }
        (None, None) => Err(missing("queues")),
        (Some(_), Some(_)) => Err(OperationError::bad_argument("give either `queues` or `workers`")),
    }
}

fn failed(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let (limit, offset) = (object.whole("limit")?.unwrap_or(25), object.whole("offset")?.unwrap_or(0));
    if !(1..=1_000).contains(&limit) {
        return Err(of_key("limit")("it must be from 1 to 1000".to_owned()));
    }
    let count = Count::new(limit).map_err(|error| of_key("limit")(error.to_string()))?;
    let Some(group) = object.name::<Group>("group")? else {
        return Plan::command(Failures, |groups, _| {
            let mut groups: Vec<_> = groups.into_iter().collect();
            // Stable: groups of one size stay in the order of their names.
            groups.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let view =
                |(group, count): &(Group, u64)| FailureGroupView { group: group.to_string(), count: *count };
            document(&groups.iter().map(view).collect::<Vec<_>>())
        });
    };
    Plan::steps(move |queue| async move {
        let jids = queue.run(Failed { group, page: Page { offset, count } }).await?.jids;
        let jobs = if jids.is_empty() { Vec::new() } else { queue.run(GetMany { jids }).await? };
        let now = queue.now();
        document(&jobs.iter().map(|job| JobView::new(job, now)).collect::<Vec<_>>())
    })
}

fn unfail(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let into: Option<QueueName> = object.name("queue")?;
    if let Some(filter) = bulk::filter(object)? {
        return bulk::act(object, filter, geartrain_core::BulkAct::Unfail { queue: into });
    }
    let group: Group = object.required_name("group")?;
    let count: Option<u64> = object.whole("count")?;
    Plan::steps(move |queue| async move {
        let available = queue.run(Failures).await?.get(&group).copied().unwrap_or(0);
        // Jobs that fail meanwhile are left alone, or this might never end.
        let wanted = count.unwrap_or(available).min(available);
        let mut moved = 0;
        while moved < wanted {
            let step = Count::new((wanted - moved).min(UNFAIL_STEP) as i64).unwrap_or(Count::ONE);
            let some = match &into {
                Some(into) => {
                    queue.run(Unfail { queue: into.clone(), group: group.clone(), count: step }).await?
                }
                None => unfail_in_place(&queue, &group, step).await?,
            };
            if some == 0 {
                break;
            }
            moved += some;
        }
        document(&UnfailView { group: group.to_string(), moved })
    })
}

/// Puts each job again where it was. The list is newest first, so the oldest are at its end.
async fn unfail_in_place(queue: &Queue, group: &Group, count: Count) -> Result<u64, OperationError> {
    let first = Failed { group: group.clone(), page: Page { offset: 0, count: Count::ONE } };
    let total = queue.run(first).await?.total as usize;
    let page = Page { offset: total.saturating_sub(count.get()), count };
    let mut jids = queue.run(Failed { group: group.clone(), page }).await?.jids;
    jids.reverse();
    let jobs = queue.run(GetMany { jids }).await?;
    let puts = jobs.into_iter().filter_map(|job| {
        let put = Put::new(job.queue?, job.jid, job.klass, job.payload);
        Some(queue.call(Put { existing: Existing::Require, ..put }.into()))
    });
    let mut moved = 0;
    for answer in queue.send(puts.collect()).await? {
        match answer {
            Ok(_) => moved += 1,
            // It was cancelled meanwhile.
            Err(Refusal::NoSuchJob { .. }) => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Ok(moved)
}
