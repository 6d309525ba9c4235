//! Put and pop a job, and report on the attempt: heartbeat, progress, complete, fail, retry, release.

use geartrain_core::{
    Chunk, ChunkKind, Complete, CompleteReply, Count, DELAY_MAX, Fail, Heartbeat, Holder, JobResult, Klass,
    Next, Payload, Peek, Pop, PopOrder, Popped, Portion, Progress, Progressed, PutReply, QueueName,
    RandomUnit, Release, Relock, Retry, Role, Seconds, Timeout, Token,
};

use super::{
    Document, FieldInfo, FieldKind, HOLDER, JID, Need, OperationInfo, Outcome, Plan, QUEUE, TOKEN, document,
};
use crate::object::{missing, of_key};
use crate::put::{self, Defaults};
use crate::reply::{
    ChunkView, CompleteView, FailView, HeartbeatView, JidView, JidsView, ProgressReplyView, PutView,
    RetryView,
};
use crate::time::Times;
use crate::{JobView, Number, Object, OperationError, PoppedView, ProgressView, texts};

const PAYLOAD: FieldInfo = FieldInfo::new("payload", FieldKind::Json, "Replaces the payload");
const RESULT: FieldInfo = FieldInfo::new("result", FieldKind::Json, "The result");
const CODE: FieldInfo =
    FieldInfo::new("code", FieldKind::Whole(i32::MIN as i64, i32::MAX as u64), "The exit code of the result");
const COUNT: FieldInfo =
    FieldInfo::new("count", FieldKind::Whole(0, 100_000), "How many jobs at most; 1 by default");

pub(super) const OPERATIONS: &[OperationInfo] = &[
    OperationInfo {
        name: "put",
        access: Role::Operator,
        meaning: "Puts a job into a queue.",
        fields: &put::FIELDS,
        read: put,
    },
    OperationInfo {
        name: "pop",
        access: Role::Operator,
        meaning: "Hands jobs to a worker. With `wait` it answers when there is one, or with none when the time is over.",
        fields: &[
            FieldInfo::new("queue", FieldKind::Name, "The queue").needed(Need::ExactlyOne),
            FieldInfo::new("queues", FieldKind::Names(1), "Several queues, instead of one")
                .needed(Need::ExactlyOne),
            FieldInfo::required("worker", FieldKind::Name, "The worker that receives the jobs"),
            COUNT,
            FieldInfo::new(
                "order",
                FieldKind::Choice(&["strict", "round-robin", "priority"]),
                "Of several queues",
            ),
            FieldInfo::new("klasses", FieldKind::Names(1), "Only jobs of these klasses"),
            FieldInfo::new("wait", FieldKind::Duration, "How long to wait for a job"),
        ],
        read: pop,
    },
    OperationInfo {
        name: "peek",
        access: Role::Viewer,
        meaning: "Shows which jobs a pop would hand out.",
        fields: &[QUEUE, COUNT],
        read: peek,
    },
    OperationInfo {
        name: "heartbeat",
        access: Role::Operator,
        meaning: "Extends the lock of a running job.",
        fields: &[JID, TOKEN, HOLDER, PAYLOAD],
        read: heartbeat,
    },
    OperationInfo {
        name: "progress",
        access: Role::Operator,
        meaning: "Reports the progress of an attempt.",
        fields: &[
            JID,
            TOKEN,
            HOLDER,
            FieldInfo::required("part", FieldKind::Whole(0, u64::MAX), "How much is done"),
            FieldInfo::required("whole", FieldKind::Whole(1, u64::MAX), "Of how much"),
            FieldInfo::new("left", FieldKind::Whole(0, u32::MAX as u64), "How many seconds are left"),
            FieldInfo::new("text", FieldKind::Json, "A message for the clients that wait for the job"),
        ],
        read: progress,
    },
    OperationInfo {
        name: "chunk",
        access: Role::Operator,
        meaning: "Sends a part of the result, or a warning, to the clients that wait for the job.",
        fields: &[
            JID,
            TOKEN,
            HOLDER,
            FieldInfo::required("data", FieldKind::Json, "The part"),
            FieldInfo::new("warning", FieldKind::Flag, "Whether it is a warning"),
        ],
        read: chunk,
    },
    OperationInfo {
        name: "complete",
        access: Role::Operator,
        meaning: "Completes a job, or moves it on to its next queue.",
        fields: &[
            JID,
            TOKEN,
            HOLDER,
            PAYLOAD,
            RESULT,
            CODE,
            FieldInfo::new("next", FieldKind::Name, "The next queue"),
            FieldInfo::new("in", FieldKind::Duration, "How long to wait in the next queue")
                .needed(Need::With("next")),
            FieldInfo::new("depends", FieldKind::Names(0), "Jobs to wait for in the next queue")
                .needed(Need::With("next")),
        ],
        read: complete,
    },
    OperationInfo {
        name: "fail",
        access: Role::Operator,
        meaning: "Fails a job into a group.",
        fields: &[
            JID,
            TOKEN,
            HOLDER,
            FieldInfo::required("group", FieldKind::LongName, "The kind of failure"),
            FieldInfo::required("message", FieldKind::Text, "The error message"),
            PAYLOAD,
            RESULT,
            CODE,
        ],
        read: fail,
    },
    OperationInfo {
        name: "retry",
        access: Role::Operator,
        meaning: "Returns a job to its queue and uses up one retry.",
        fields: &[
            JID,
            TOKEN,
            HOLDER,
            FieldInfo::new("in", FieldKind::Duration, "The delay; by default that of the job's backoff"),
            FieldInfo::new("group", FieldKind::LongName, "The kind of failure, if no retry is left"),
            FieldInfo::new("message", FieldKind::Text, "The error message"),
        ],
        read: retry,
    },
    OperationInfo {
        name: "release",
        access: Role::Operator,
        meaning: "Returns a job to its queue without using up a retry.",
        fields: &[
            JID,
            TOKEN,
            HOLDER,
            FieldInfo::new(
                "in",
                FieldKind::Duration,
                "The delay; by default none, at the front of the queue",
            ),
            FieldInfo::new("message", FieldKind::Text, "Why, for the history"),
        ],
        read: release,
    },
    OperationInfo {
        name: "timeout",
        access: Role::Operator,
        meaning: "Takes running jobs away from their workers, to the front of their queues.",
        fields: &[FieldInfo::required("jids", FieldKind::Names(0), "The jobs")],
        read: timeout,
    },
    OperationInfo {
        name: "relock",
        access: Role::Operator,
        meaning: "Locks the running jobs of a restarted worker again.",
        fields: &[
            FieldInfo::required("worker", FieldKind::Name, "The worker"),
            FieldInfo::new("queues", FieldKind::Names(0), "Only jobs of these queues"),
            FieldInfo::new("count", FieldKind::Whole(1, 1_000), "How many at most"),
        ],
        read: relock,
    },
];

fn put(object: &Object<'_>, times: &Times) -> Result<Plan, OperationError> {
    let (put, due) = put::read(object, &Defaults::default(), times)?;
    let given = put.jid.clone();
    Plan::command(put, move |reply, _| {
        let coalesced = matches!(reply, PutReply::Coalesced { .. });
        // The job that was there before keeps its own time.
        let existed = coalesced || matches!(reply, PutReply::Existing | PutReply::NamedExisting { .. });
        let due = due.filter(|_| !existed).map(Number::from);
        let outcome = put::outcome(&reply);
        let jid = match reply {
            PutReply::Coalesced { jid } | PutReply::Named { jid } | PutReply::NamedExisting { jid } => {
                Some(jid)
            }
            PutReply::Unnamed => None,
            _ => Some(given),
        };
        document(&PutView { jid: jid.map(|jid| jid.to_string()), outcome, coalesced, due })
    })
}

fn count(object: &Object<'_>, default: i64) -> Result<Count, OperationError> {
    let count = object.whole("count")?.unwrap_or(default);
    Count::new(count).map_err(|error| of_key("count")(error.to_string()))
}

fn popped(jobs: &[Popped]) -> Outcome {
    let document = document(&jobs.iter().map(PoppedView::new).collect::<Vec<_>>())?;
    Ok(Document { jobs: jobs.iter().map(Release::of).collect(), ..document })
}

fn pop(object: &Object<'_>, times: &Times) -> Result<Plan, OperationError> {
    let queues: Vec<QueueName> = match (object.name("queue")?, object.names("queues")?) {
        (Some(queue), None) => vec![queue],
        (None, Some(queues)) => queues,
        (None, None) => return Err(missing("queue")),
        (Some(_), Some(_)) => {
            return Err(OperationError::bad_argument("`queue` and `queues` are both given: leave one out"));
        }
    };
    let order = match object.text("order")?.as_deref() {
        None | Some("strict") => PopOrder::Strict,
        Some("round-robin") => PopOrder::RoundRobin { turn: 0 },
        Some("priority") => PopOrder::Priority { turn: 0 },
        Some(other) => {
            let why = format!("must be strict, round-robin or priority, not {:?}", crate::excerpt(other));
            return Err(OperationError::bad_argument(format!("`order` {why}")));
        }
    };
    let klasses: Option<Vec<Klass>> = object.names("klasses")?;
    let (worker, count) = (object.required_name("worker")?, count(object, 1)?);
    let pop = Pop { queues, worker, count, order, whole: false, klasses };
    match put::delay(object, "wait", times)? {
        Some(wait) if wait > Seconds::ZERO => Plan::wait(move |queue| async move {
            let reply = queue.pop_or_wait(pop, wait.min(DELAY_MAX)).await?;
            popped(&reply.jobs)
        }),
        _ => Plan::command(pop, |reply, _| popped(&reply.jobs)),
    }
}

fn peek(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let peek = Peek { queue: object.required_name("queue")?, count: count(object, 1)? };
    Plan::command(peek, |jobs, now| {
        document(&jobs.iter().map(|job| JobView::new(job, now)).collect::<Vec<_>>())
    })
}

/// The job, and the holder of its lock.
fn held(object: &Object<'_>) -> Result<(geartrain_core::Jid, Holder), OperationError> {
    let jid = object.required_name("jid")?;
    let token = object.parsed("token", |text| text.parse::<Token>().map_err(|error| error.to_string()))?;
    let holder = match (token, object.name("worker")?) {
        (Some(token), _) => Holder::Token(token),
        (None, Some(worker)) => Holder::Worker(worker),
        (None, None) => {
            return Err(OperationError::new(
                "missing-field",
                "`token` is missing: send the one that came with the job",
            ));
        }
    };
    Ok((jid, holder))
}

fn heartbeat(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let (jid, holder) = held(object)?;
    let named = jid.to_string();
    Plan::command(Heartbeat { jid, holder, payload: put::payload(object, "payload")? }, move |expires, _| {
        document(&HeartbeatView { jid: named, expires: expires.into() })
    })
}

fn progress(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let (jid, holder) = held(object)?;
    let number = |key| object.whole::<u64>(key)?.ok_or_else(|| missing(key));
    let portion = Portion::new(number("part")?, number("whole")?)
        .map_err(|error| OperationError::bad_argument(error.to_string()))?;
    let progress = Progressed { portion, seconds_left: object.whole("left")? };
    let (named, text) = (jid.to_string(), put::payload(object, "text")?);
    Plan::command(Progress { text, ..Progress::new(jid, holder, progress) }, move |_, _| {
        document(&ProgressReplyView { jid: named, progress: ProgressView::new(progress) })
    })
}

fn chunk(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let (jid, holder) = held(object)?;
    let kind = if object.flag("warning")? { ChunkKind::Warning } else { ChunkKind::Data };
    let bytes = put::payload(object, "data")?.ok_or_else(|| missing("data"))?;
    let named = jid.to_string();
    Plan::command(Chunk { jid, holder, kind, bytes }, move |told, _| {
        document(&ChunkView { jid: named, told })
    })
}

/// The new payload and the result, if they were given.
fn payload_and_result(
    object: &Object<'_>,
    default_code: i32,
) -> Result<(Option<Payload>, Option<Box<JobResult>>), OperationError> {
    let code: Option<i32> = object.integer("code", "a whole number")?;
    let bytes = put::payload(object, "result")?;
    let result = (bytes.is_some() || code.is_some()).then(|| {
        Box::new(JobResult { code: code.unwrap_or(default_code), bytes: bytes.unwrap_or_default() })
    });
    Ok((put::payload(object, "payload")?, result))
}

fn complete(object: &Object<'_>, times: &Times) -> Result<Plan, OperationError> {
    let (jid, holder) = held(object)?;
    let (payload, result) = payload_and_result(object, 0)?;
    let delay = put::delay(object, "in", times)?;
    let depends = object.names("depends")?;
    let next: Option<QueueName> = object.name("next")?;
    if next.is_none() && (delay.is_some() || depends.is_some()) {
        return Err(OperationError::bad_argument("`in` and `depends` go with `next`, the next queue"));
    }
    let (named, queue) = (jid.to_string(), next.as_ref().map(ToString::to_string));
    let next = next.map(|queue| Next {
        delay: delay.unwrap_or(Seconds::ZERO),
        depends: depends.unwrap_or_default(),
        ..Next::new(queue)
    });
    Plan::command(Complete { payload, next, result, ..Complete::new(jid, holder) }, move |reply, _| {
        let state = match reply {
            CompleteReply::Complete => "complete",
            CompleteReply::Waiting => "waiting",
            CompleteReply::Scheduled => "scheduled",
            CompleteReply::Depends => "depends",
        };
        document(&CompleteView { jid: named, state, queue })
    })
}

fn fail(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let (jid, holder) = held(object)?;
    let (payload, result) = payload_and_result(object, 1)?;
    let group: geartrain_core::Group = object.required_name("group")?;
    let message = object.text("message")?.ok_or_else(|| missing("message"))?;
    let (named, in_group) = (jid.to_string(), group.to_string());
    Plan::command(Fail { payload, result, ..Fail::new(jid, holder, group, message) }, move |(), _| {
        document(&FailView { jid: named, state: "failed", group: in_group })
    })
}

fn retry(object: &Object<'_>, times: &Times) -> Result<Plan, OperationError> {
    let (jid, holder) = held(object)?;
    let named = jid.to_string();
    let (delay, random) = match put::delay(object, "in", times)? {
        // Leaves the delay to the backoff.
        None => (Seconds::ZERO, Some(random_unit())),
        // At once, as a delay in the past.
        Some(delay) if delay == Seconds::ZERO => (Seconds::from(-1), None),
        Some(delay) => (delay, None),
    };
    let (group, message) = (object.name("group")?, object.text("message")?);
    Plan::command(Retry { delay, random, group, message, ..Retry::new(jid, holder) }, move |remaining, _| {
        document(&RetryView { jid: named, remaining, failed: remaining < 0 })
    })
}

fn random_unit() -> RandomUnit {
    // The last bits of a UUID of version 7 are random; only its first ones are the time.
    let random = uuid::Uuid::now_v7().as_u128() as u32;
    RandomUnit::new(f64::from(random) / f64::from(u32::MAX)).unwrap_or(RandomUnit::HALF)
}

fn release(object: &Object<'_>, times: &Times) -> Result<Plan, OperationError> {
    let (jid, holder) = held(object)?;
    let named = jid.to_string();
    let delay = put::delay(object, "in", times)?.unwrap_or(Seconds::ZERO);
    let message = object.text("message")?;
    Plan::command(Release { message, delay, ..Release::new(jid, holder) }, move |_, _| {
        document(&JidView { jid: named })
    })
}

fn timeout(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let jids: Vec<geartrain_core::Jid> = object.names("jids")?.ok_or_else(|| missing("jids"))?;
    let named = texts(&jids);
    Plan::command(Timeout { jids }, move |(), _| document(&JidsView { jids: named }))
}

fn relock(object: &Object<'_>, _: &Times) -> Result<Plan, OperationError> {
    let relock = Relock {
        queues: object.names("queues")?.unwrap_or_default(),
        count: count(object, geartrain_core::RELOCK_MAX as i64)?,
        ..Relock::new(object.required_name("worker")?)
    };
    Plan::command(relock, |jobs, _| document(&jobs.iter().map(PoppedView::new).collect::<Vec<_>>()))
}
