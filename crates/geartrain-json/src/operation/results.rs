//! Results of jobs, and events.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use geartrain_core::{
    Attach, AttachReply, BackendError, Count, Get, GetResult, Jid, JobEnding, JobResult, PositionedEvent,
    Refusal, ResultWaiter, Role, Seconds, StreamItem, Subscription,
};

use super::{FieldInfo, FieldKind, JID, OperationInfo, Outcome, Plan, Queue, document};
use crate::object::of_key;
use crate::put;
use crate::time::Times;
use crate::{Object, OperationError, PublishedView, StoredResultView};

/// How many events one request returns at most.
const EVENTS_MAX: i64 = 1_000;

pub(super) const OPERATIONS: &[OperationInfo] = &[
    OperationInfo {
        name: "result",
        access: Role::Viewer,
        meaning: "Looks up the result of a job. With `wait` it answers when the job has ended.",
        fields: &[
            JID,
            FieldInfo::new("wait", FieldKind::Duration, "How long to wait for the end of the job"),
        ],
        read: result,
    },
    OperationInfo {
        name: "events",
        access: Role::Viewer,
        meaning: "Lists the events after a position.",
        fields: &[
            FieldInfo::required("after", FieldKind::Position, "The position of the last event that is known"),
            FieldInfo::new(
                "count",
                FieldKind::Whole(1, EVENTS_MAX as u64),
                "How many at most; 100 by default, up to 1000",
            ),
            FieldInfo::new("wait", FieldKind::Duration, "How long to wait for the first one"),
        ],
        read: events,
    },
];

fn result(object: &Object<'_>, times: &Times) -> Result<Plan, OperationError> {
    let jid: Jid = object.required_name("jid")?;
    let wait = put::delay(object, "wait", times)?.filter(|wait| *wait > Seconds::ZERO);
    let look_up = move |queue: Queue| async move {
        if let Some(stored) = queue.run(GetResult { jid: jid.clone() }).await? {
            return document(&StoredResultView::new(&stored));
        }
        let Some(wait) = wait else { return Err(no_result(&queue, &jid).await?) };
        let wait = Duration::from_secs_f64(wait.get());
        match queue.within(wait, ending(&queue, &jid)).await {
            Some(document) => document,
            None => Err(no_result(&queue, &jid).await?),
        }
    };
    if wait.is_some() { Plan::wait(look_up) } else { Plan::steps(look_up) }
}

/// Why there is no result: the job has not ended, its result was not stored, or there is no such job.
async fn no_result(queue: &Queue, jid: &Jid) -> Result<OperationError, OperationError> {
    use geartrain_core::StateName::{Complete, Failed};
    let Some(job) = queue.run(Get { jid: jid.clone() }).await? else {
        return Ok(Refusal::NoSuchJob { jid: jid.clone() }.into());
    };
    Ok(match job.state.name() {
        state @ (Complete | Failed) => OperationError {
            help: Some("put jobs with `keep_result` to read it later".to_owned()),
            ..OperationError::new("no-result", format!("job {jid} is {state}, and its result was not stored"))
        },
        state => OperationError {
            help: Some("ask again, or ask why it is not running".to_owned()),
            ..OperationError::new("unfinished", format!("job {jid} is unfinished: it is {state}"))
        },
    })
}

/// Waits for the end of a job, on a result stream of its own.
async fn ending(queue: &Queue, jid: &Jid) -> Outcome {
    let stream_id = random_stream();
    let mut stream = queue.backend.open_result_stream(stream_id).await?;
    let waiter = ResultWaiter { stream_id, connection: 0, number: 0 };
    match queue.run(Attach { jid: jid.clone(), waiter }).await? {
        AttachReply::Ended { result: Some(stored), .. } => return document(&StoredResultView::new(&stored)),
        AttachReply::Ended { .. } => return Err(no_result(queue, jid).await?),
        AttachReply::Attached => {}
    }
    loop {
        let message =
            stream.next().await.map_err(|end| OperationError::new("unavailable", end.to_string()))?;
        if let StreamItem::Ended(ending, result) = message.item {
            return ended(queue, jid, &ending, &result).await;
        }
    }
}

/// The document of a job that has just ended: the stored result, or what the stream said.
async fn ended(queue: &Queue, jid: &Jid, ending: &JobEnding, result: &JobResult) -> Outcome {
    match queue.run(GetResult { jid: jid.clone() }).await? {
        Some(stored) => document(&StoredResultView::new(&stored)),
        None => document(&StoredResultView::not_stored(jid, ending, result, queue.now())),
    }
}

/// The id of a result stream; an id can be open only once.
pub fn random_stream() -> u64 {
    // The last bits of a UUID of version 7 are random. A Redis stores ids as doubles: 53 bits.
    uuid::Uuid::now_v7().as_u128() as u64 & ((1 << 53) - 1)
}

fn events(object: &Object<'_>, times: &Times) -> Result<Plan, OperationError> {
    let after = position(object, "after")?.ok_or_else(|| crate::object::missing("after"))?;
    let count: i64 = object.whole("count")?.unwrap_or(100);
    if !(1..=EVENTS_MAX).contains(&count) {
        return Err(of_key("count")(format!("it must be from 1 to {EVENTS_MAX}")));
    }
    let count = Count::new(count).map_err(|error| of_key("count")(error.to_string()))?;
    let wait = put::delay(object, "wait", times)?.unwrap_or(Seconds::ZERO);
    let look_up = move |queue: Queue| async move {
        let mut subscription = queue.backend.subscribe_from(after).await?;
        let mut events = Vec::new();
        if wait > Seconds::ZERO {
            let first = queue.within(Duration::from_secs_f64(wait.get()), subscription.next()).await;
            events.extend(first.transpose().map_err(ended_subscription)?);
        }
        // Retained events are there without waiting.
        while events.len() < count.get()
            && let Some(event) = ready(&mut *subscription)?
        {
            events.push(event);
        }
        let views: Vec<PublishedView> = events.iter().map(PublishedView::of).collect();
        document(&views)
    };
    if wait > Seconds::ZERO { Plan::wait(look_up) } else { Plan::steps(look_up) }
}

/// A position: a text, because it may be more than a double can count, or a number.
fn position(object: &Object<'_>, key: &str) -> Result<Option<u64>, OperationError> {
    let Some(raw) = object.raw(key) else { return Ok(None) };
    let text = raw.get().trim_matches('"');
    text.parse()
        .map(Some)
        .map_err(|_| of_key(key)(format!("it is not a position: {}", crate::excerpt(raw.get()))))
}

/// The next event, if it is there already.
fn ready(subscription: &mut dyn Subscription) -> Result<Option<PositionedEvent>, OperationError> {
    let mut next = subscription.next();
    match next.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(event) => event.map(Some).map_err(ended_subscription),
        Poll::Pending => Ok(None),
    }
}

fn ended_subscription(end: geartrain_core::SubscriptionEnd) -> OperationError {
    BackendError::Broken { backend: "chosen", source: Box::new(end) }.into()
}
