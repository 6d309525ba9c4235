//! Workers: their jobs and capabilities, roll call, and reporting a lost one.

use std::collections::BTreeMap;

use geartrain_core::{
    Announce, AnnounceChange, Announced, Capability, GetMany, Klass, QueueName, Role, RollCall, Seconds,
    WorkerJobs, WorkerLost, WorkerName, Workers,
};

use super::{FieldInfo, FieldKind, Need, OperationInfo, Plan, QUEUE, document};
use crate::object::missing;
use crate::reply::{AnnounceView, RollCallView, WorkerLostView};
use crate::time::{Times, allowed_span};
use crate::{CapabilityView, JobView, Object, OperationError, WorkerView, duration, texts};

const WORKER: FieldInfo = FieldInfo::required("worker", FieldKind::Name, "The worker");
const KLASS: FieldInfo = FieldInfo::new("klass", FieldKind::Name, "The klass; any, if not given");

pub(super) const OPERATIONS: &[OperationInfo] = &[
    OperationInfo {
        name: "workers",
        access: Role::Viewer,
        meaning: "Lists the workers with their capabilities, or the jobs of one worker.",
        fields: &[FieldInfo::new("worker", FieldKind::Name, "Lists the jobs of this worker")],
        read: workers,
    },
    OperationInfo {
        name: "roll-call",
        access: Role::Viewer,
        meaning: "Counts the live workers that can run a job.",
        fields: &[QUEUE, KLASS],
        read: roll_call,
    },
    OperationInfo {
        name: "announce",
        access: Role::Operator,
        meaning: "Announces capabilities of a worker, for a minute after its last sign of life.",
        fields: &[
            WORKER,
            FieldInfo::new("can", FieldKind::Capabilities, "Adds these").needed(Need::ExactlyOne),
            FieldInfo::new("cannot", FieldKind::Capabilities, "Removes these").needed(Need::ExactlyOne),
            FieldInfo::new("only", FieldKind::Capabilities, "Replaces all capabilities by these")
                .needed(Need::ExactlyOne),
        ],
        read: announce,
    },
    OperationInfo {
        name: "worker-lost",
        access: Role::Operator,
        meaning: "Reports a dead worker: its jobs go back to their queues.",
        fields: &[WORKER, FieldInfo::new("evidence", FieldKind::Text, "How it died")],
        read: worker_lost,
    },
];

fn workers(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let worker: Option<WorkerName> = object.name("worker")?;
    Plan::steps(move |queue| async move {
        if let Some(worker) = worker {
            let reply = queue.run(WorkerJobs { worker }).await?;
            let jids = [reply.jobs, reply.stalled].concat();
            let jobs = if jids.is_empty() { Vec::new() } else { queue.run(GetMany { jids }).await? };
            let now = queue.now();
            return document(&jobs.iter().map(|job| JobView::new(job, now)).collect::<Vec<_>>());
        }
        let workers = queue.run(Workers).await?;
        let announced = queue.run_if_supported(Announced { worker: None }).await?.unwrap_or_default();
        let can: BTreeMap<_, _> =
            announced.into_iter().map(|announced| (announced.worker, announced.capabilities)).collect();
        let view = |worker| WorkerView::new(worker, can.get(&worker.name).map_or(&[], Vec::as_slice));
        document(&workers.iter().map(view).collect::<Vec<_>>())
    })
}

fn roll_call(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let queue: QueueName = object.required_name("queue")?;
    let klass: Option<Klass> = object.name("klass")?;
    let (named, kind) = (queue.to_string(), klass.as_ref().map(ToString::to_string));
    Plan::command(RollCall { queue, klass }, move |workers, _| {
        document(&RollCallView { queue: named, klass: kind, workers })
    })
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Can {
    queue: String,
    klass: Option<String>,
    timeout: Option<f64>,
}

fn capabilities(object: &Object<'_>, key: &str) -> Result<Option<Vec<Capability>>, OperationError> {
    let given: Option<Vec<Can>> =
        object.read(key, "a list of {\"queue\": \"mail\", \"klass\": null, \"timeout\": null}")?;
    let Some(given) = given else { return Ok(None) };
    let read = |can: Can| {
        let span = |seconds: f64| {
            let span = duration::from_seconds(seconds).map(Seconds::from).unwrap_or_default();
            allowed_span(span).map_err(|why| OperationError::bad_argument(format!("`timeout`: {why}")))
        };
        Ok(Capability {
            queue: QueueName::new(can.queue)?,
            klass: can.klass.map(Klass::new).transpose()?,
            attempt_max: can.timeout.map(span).transpose()?,
        })
    };
    given.into_iter().map(read).collect::<Result<_, OperationError>>().map(Some)
}

fn announce(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let worker: WorkerName = object.required_name("worker")?;
    let [can, cannot, only] =
        [capabilities(object, "can")?, capabilities(object, "cannot")?, capabilities(object, "only")?];
    let change = match (can, cannot, only) {
        (Some(can), None, None) => AnnounceChange::Can(can),
        (None, Some(cannot), None) => {
            AnnounceChange::Cannot(cannot.into_iter().map(|can| (can.queue, can.klass)).collect())
        }
        (None, None, Some(only)) => AnnounceChange::Only(only),
        (None, None, None) => return Err(missing("can")),
        _ => return Err(OperationError::bad_argument("give one of `can`, `cannot` and `only`")),
    };
    Plan::steps(move |queue| async move {
        queue.run(Announce { worker: worker.clone(), change }).await?;
        let announcement = queue.run(Announced { worker: Some(worker.clone()) }).await?.pop();
        let can = announcement.map(|announcement| announcement.capabilities).unwrap_or_default();
        let can: Vec<CapabilityView> = can.iter().map(CapabilityView::new).collect();
        document(&AnnounceView { worker: worker.to_string(), can })
    })
}

fn worker_lost(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let worker: WorkerName = object.required_name("worker")?;
    let named = worker.to_string();
    Plan::command(WorkerLost { worker, evidence: object.text("evidence")? }, move |jids, _| {
        document(&WorkerLostView { worker: named, jids: texts(&jids) })
    })
}
