//! Deltas: each change of the state as data. Executing a command decides them, a store logs and replays them,
//! and `State::apply` alone makes them happen.

#![allow(missing_docs, reason = "a field whose name says it all has no doc line")]

use std::sync::Arc;

use super::state::RowId;
use crate::{
    CompleteReply, EndReason, Event, Every, Group, Jid, Payload, Periodic, Priority, Progressed, PutOptions,
    QueueLimits, Refusal, ResultWaiter, Seconds, StoredResult, Tag, Timestamp,
};

/// The kinds of interned names. Each kind has its own ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Queue,
    Klass,
    Worker,
    Group,
}

/// The id of an interned name, given by [`Delta::Name`] or [`Delta::ReuseNameId`].
pub type NameId = u32;

/// Stands among dependencies for the job itself, which may have no row yet.
pub const ITSELF: RowId = RowId::MAX;

/// A change of the state. Applied to equal states, it leads to equal states.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// Fencing tokens and arrival numbers continue from this epoch, above all issued before.
    Epoch(u32),
    /// A name gets the next id of its kind.
    Name(Kind, Arc<str>),
    /// A name gets an id of its kind that is free.
    ReuseNameId(Kind, NameId, Arc<str>),
    /// A name that nothing refers to is removed, and its id is free.
    FreeNameId(Kind, NameId),
    /// A worker was seen.
    Seen(NameId, Timestamp),
    /// A job enters a queue.
    Put(PutDelta),
    /// A recurring job makes a job.
    Spawn {
        template: u32,
        jid: Jid,
        /// The new job's number, which ends its jid.
        count: u64,
        /// The new job's nominal time.
        at: Timestamp,
        /// The next job's nominal time.
        next: Timestamp,
        now: Timestamp,
    },
    /// A scheduled job is due and becomes ready.
    Promote(RowId, Timestamp),
    /// A worker gets a job, with a lock and a new fencing token.
    Pop { row: RowId, worker: NameId, now: Timestamp, expires: Timestamp },
    /// A worker's lock has expired: it is warned, and has a grace period to come back.
    Warn {
        row: RowId,
        now: Timestamp,
        /// The end of the grace period.
        until: Timestamp,
    },
    /// An attempt is given up and costs a retry.
    SpendRetry(RowId),
    /// A lock is extended.
    Heartbeat { row: RowId, expires: Timestamp, payload: Option<Payload> },
    /// A job completes.
    Complete { row: RowId, now: Timestamp, payload: Option<Payload> },
    /// A job completes in one queue and continues in another.
    Advance(Box<AdvanceDelta>),
    /// A job fails.
    Fail(Box<FailDelta>),
    /// A job goes back to its queue to be retried.
    Retry {
        row: RowId,
        now: Timestamp,
        /// The earliest start, if delayed.
        due: Option<Timestamp>,
        failure: Option<Box<FailureDelta>>,
    },
    /// A job is taken from its worker and goes before all others of its queue.
    Timeout(RowId, Timestamp),
    /// A job is removed.
    Remove(RowId),
    /// A failed job goes back into a queue.
    Unfail(RowId, NameId, Timestamp),
    /// A job's priority changes.
    Priority(RowId, Priority),
    /// A job depends on more jobs.
    Depend(RowId, Box<[RowId]>),
    /// A job no longer depends on some jobs.
    Undepend(RowId, Box<[RowId]>, Timestamp),
    /// A message is added to a job's history.
    Log { row: RowId, now: Timestamp, message: Box<str>, data: Option<Box<str>> },
    /// A job is tracked.
    Track(Jid, Timestamp),
    /// A job is no longer tracked.
    Untrack(Jid),
    /// A job gets a tag, or gets it again.
    Tag(RowId, Tag, Timestamp),
    /// A job loses a tag, or would if it had it.
    Untag(RowId, Tag),
    /// A queue is paused or resumed.
    Pause(NameId, bool),
    /// A queue is removed from the list of queues.
    ForgetQueue(NameId),
    /// A worker is removed from the list of workers.
    ForgetWorker(NameId),
    /// A worker not seen for long is removed from the list, and its own list of jobs is cleared.
    AgeWorker(NameId),
    /// An option is set, or reset to its default.
    Config(Box<str>, Option<Box<str>>),
    /// A recurring job is new or has changed.
    Recur(Box<RecurDelta>),
    /// A recurring job is removed.
    Unrecur(u32),
    /// A job's put options are replaced. The waiter and the roll call are not part of them.
    PutOptions(RowId, Box<PutOptions>),
    /// A put is coalesced with a job that has its unique key.
    Coalesced {
        row: RowId,
        /// The least time to store the result.
        result_ttl: Option<Seconds>,
        /// Whether the job no longer depends on waiting clients.
        always: bool,
    },
    /// A client waits for a job's result.
    Attached(RowId, ResultWaiter),
    /// A client stops waiting.
    Detached(RowId, ResultWaiter),
    /// An attempt reports progress.
    Progressed(RowId, Progressed),
    /// An attempt has a deadline.
    Deadline(RowId, Timestamp),
    /// An attempt exceeded its deadline, which costs a retry.
    AttemptTimedOut(RowId, Timestamp),
    /// A job's worker was lost, which costs a retry.
    Crashed {
        row: RowId,
        now: Timestamp,
        /// What is known about the loss.
        evidence: Option<Box<str>>,
    },
    /// A worker releases a job, which goes to the front of its priority.
    Release(RowId, Timestamp),
    /// A job goes from a lost worker to the front of its priority.
    ToFront(RowId),
    /// A worker announces a capability.
    CapabilityAdded {
        worker: NameId,
        queue: NameId,
        /// The klass; `None` for any.
        klass: Option<NameId>,
        /// The longest that an attempt may take.
        attempt_max: Option<Seconds>,
    },
    /// A worker withdraws a capability.
    CapabilityRemoved {
        worker: NameId,
        queue: NameId,
        /// The klass; `None` for any.
        klass: Option<NameId>,
    },
    /// A worker loses all capabilities.
    CapabilitiesCleared(NameId),
    /// A queue's limits are set, or removed.
    Limits(NameId, Option<Box<QueueLimits>>),
    /// A worker polled a queue.
    Polled(NameId, Timestamp),
    /// A result is stored.
    ResultStored(Box<StoredResult>),
    /// A stored result is dropped.
    ResultDropped(Jid),
    /// The event log is on, with when a subscriber was last seen; or off.
    Listening(Option<Timestamp>),
    /// An event is appended to the event log.
    EventLogged {
        event: Box<Event>,
        /// When it happened; `None` in logs of earlier programs.
        at: Option<Timestamp>,
    },
    /// The completions of all queues so far are sampled, for their rates; or all samples are removed.
    RatesSampled(Option<Timestamp>),
    /// A counter's ids up to this one are allocated.
    IdsAllocated(Box<str>, u64),
    /// A tag that no job has loses its count.
    TagCleared(Tag),
    /// A queue leaves the list of queues, and loses its settings and statistics.
    QueueCleared(NameId),
    /// A job no longer depends on some failed jobs, by its policy. Unlike [`Delta::Undepend`] it keeps its
    /// earliest start.
    RunWithout(RowId, Box<[RowId]>, Timestamp),
    /// The current attempt of a job ends without completing it.
    AttemptEnded {
        row: RowId,
        now: Timestamp,
        reason: EndReason,
        /// What the worker reported.
        group: Option<Group>,
        message: Option<Box<str>>,
    },
    /// A job is cancelled, and leaves a tombstone.
    Canceled { row: RowId, now: Timestamp, by: Option<Arc<str>>, because: Option<Arc<str>> },
    /// A tombstone is dropped.
    TombstoneDropped(Jid),
    /// A job is put again into a queue as it is: with its klass, payload, priority, retries and tags.
    Requeue(RowId, NameId, Timestamp),
    /// A worker gives a job back, which is scheduled for a time.
    Snooze(RowId, Timestamp),
    /// A worker that was restarted gets a job again that it has, with a new lock and a new fencing token.
    /// Unlike a pop it must be synced: the earlier token was good until now, and must not be so again.
    Relock { row: RowId, now: Timestamp, expires: Timestamp },
    /// A periodic job is created or replaced.
    Periodic(Arc<Periodic>),
    /// A periodic job is removed.
    PeriodicRemoved(Jid),
    /// A periodic job ran.
    PeriodicRan(Box<PeriodicRun>),
    /// A job was put by a periodic job.
    SpawnedFrom(RowId, Jid),
    /// A job is set aside. Its failure records what it was before.
    SetAside(Box<FailDelta>),
    /// A job that is set aside is put back.
    Return {
        row: RowId,
        now: Timestamp,
        /// Its failure before, or its last one.
        failure: Option<Box<FailureDelta>>,
    },
}

impl Delta {
    /// Whether it must be synced before it is acknowledged. Not if losing it only means that a job that was
    /// handed out waits again and its worker loses the lock. Jobs themselves, and how they ended, must be.
    pub fn must_be_synced(&self) -> bool {
        let may_be_lost = matches!(
            self,
            Delta::Promote(..)
                | Delta::Pop { .. }
                | Delta::Heartbeat { payload: None, .. }
                | Delta::Attached(..)
                | Delta::Progressed(..)
                | Delta::Deadline(..)
                | Delta::CapabilityAdded { .. }
                | Delta::CapabilityRemoved { .. }
                | Delta::CapabilitiesCleared(_)
                | Delta::EventLogged { .. }
        );
        self.must_be_logged() && !may_be_lost
    }

    /// Whether it matters after a restart. Names and times of contact do not: they can be written with the
    /// next delta that does.
    pub fn must_be_logged(&self) -> bool {
        !matches!(
            self,
            Delta::RatesSampled(_)
                | Delta::Name(..)
                | Delta::ReuseNameId(..)
                | Delta::FreeNameId(..)
                | Delta::Seen(..)
                | Delta::Polled(..)
        )
    }

    /// The new payload of a job, if it has one.
    pub fn payload(&self) -> Option<&Payload> {
        match self {
            Delta::Put(put) => Some(&put.payload),
            Delta::Heartbeat { payload, .. } | Delta::Complete { payload, .. } => payload.as_ref(),
            Delta::Advance(advance) => advance.payload.as_ref(),
            Delta::Fail(fail) => fail.payload.as_ref(),
            _ => None,
        }
    }

    /// Like [`payload`](Delta::payload), to be replaced.
    pub(crate) fn payload_mut(&mut self) -> Option<&mut Payload> {
        match self {
            Delta::Put(put) => Some(&mut put.payload),
            Delta::Heartbeat { payload, .. } | Delta::Complete { payload, .. } => payload.as_mut(),
            Delta::Advance(advance) => advance.payload.as_mut(),
            Delta::Fail(fail) => fail.payload.as_mut(),
            _ => None,
        }
    }

    /// The row that it changes; none if it changes no job, makes a new one, or changes jobs only by way of
    /// something else.
    pub fn row(&self) -> Option<RowId> {
        match self {
            Delta::Put(put) => put.row,
            Delta::Advance(advance) => Some(advance.row),
            Delta::Fail(fail) | Delta::SetAside(fail) => Some(fail.row),
            Delta::Promote(row, _)
            | Delta::Pop { row, .. }
            | Delta::Warn { row, .. }
            | Delta::SpendRetry(row)
            | Delta::Heartbeat { row, .. }
            | Delta::Complete { row, .. }
            | Delta::Retry { row, .. }
            | Delta::Return { row, .. }
            | Delta::Timeout(row, _)
            | Delta::Remove(row)
            | Delta::Unfail(row, ..)
            | Delta::Priority(row, _)
            | Delta::Depend(row, _)
            | Delta::Undepend(row, ..)
            | Delta::Log { row, .. }
            | Delta::Tag(row, ..)
            | Delta::Untag(row, _)
            | Delta::Coalesced { row, .. }
            | Delta::Attached(row, _)
            | Delta::Detached(row, _)
            | Delta::Progressed(row, _)
            | Delta::Deadline(row, _)
            | Delta::AttemptTimedOut(row, _)
            | Delta::Crashed { row, .. }
            | Delta::Release(row, _)
            | Delta::ToFront(row)
            | Delta::Requeue(row, ..)
            | Delta::Snooze(row, _)
            | Delta::Relock { row, .. }
            | Delta::RunWithout(row, ..)
            | Delta::AttemptEnded { row, .. }
            | Delta::Canceled { row, .. }
            | Delta::SpawnedFrom(row, _)
            | Delta::PutOptions(row, _) => Some(*row),

            Delta::Epoch(_)
            | Delta::Name(..)
            | Delta::ReuseNameId(..)
            | Delta::FreeNameId(..)
            | Delta::Seen(..)
            | Delta::Spawn { .. }
            | Delta::Track(..)
            | Delta::Untrack(_)
            | Delta::Pause(..)
            | Delta::ForgetQueue(_)
            | Delta::ForgetWorker(_)
            | Delta::AgeWorker(_)
            | Delta::Config(..)
            | Delta::Recur(_)
            | Delta::Unrecur(_)
            | Delta::CapabilityAdded { .. }
            | Delta::CapabilityRemoved { .. }
            | Delta::CapabilitiesCleared(_)
            | Delta::Limits(..)
            | Delta::Polled(..)
            | Delta::ResultStored(_)
            | Delta::ResultDropped(_)
            | Delta::Listening(_)
            | Delta::EventLogged { .. }
            | Delta::RatesSampled(_)
            | Delta::IdsAllocated(..)
            | Delta::TagCleared(_)
            | Delta::QueueCleared(_)
            | Delta::Periodic(_)
            | Delta::PeriodicRemoved(_)
            | Delta::PeriodicRan(_)
            | Delta::TombstoneDropped(_) => None,
        }
    }
}

/// A job enters a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct PutDelta {
    /// `None` for a new job.
    pub row: Option<RowId>,
    pub jid: Jid,
    pub now: Timestamp,
    pub queue: NameId,
    pub klass: NameId,
    pub payload: Payload,
    pub priority: Priority,
    /// How often the job may be retried.
    pub retries: u32,
    /// The earliest start, if delayed.
    pub due: Option<Timestamp>,
    /// `None` keeps the tags.
    pub tags: Option<Box<[Tag]>>,
    /// The new dependencies; `None` keeps them.
    pub depends: Option<Box<[RowId]>>,
}

/// A job completes in one queue and continues in another.
#[derive(Debug, Clone, PartialEq)]
pub struct AdvanceDelta {
    pub row: RowId,
    pub now: Timestamp,
    /// The next queue.
    pub queue: NameId,
    /// The earliest start, if delayed.
    pub due: Option<Timestamp>,
    pub depends: Box<[RowId]>,
    pub payload: Option<Payload>,
    /// The reply, which is given again if the attempt repeats its completion.
    pub reply: CompleteReply,
}

/// A job fails.
#[derive(Debug, Clone, PartialEq)]
pub struct FailDelta {
    pub row: RowId,
    pub now: Timestamp,
    pub failure: FailureDelta,
    /// Whether a worker failed it, rather than its retries running out.
    pub by_worker: bool,
    pub payload: Option<Payload>,
}

/// A failure.
#[derive(Debug, Clone, PartialEq)]
pub struct FailureDelta {
    pub group: NameId,
    pub message: Box<str>,
    pub when: Timestamp,
    /// The worker that held the job.
    pub worker: Option<NameId>,
}

/// What changed in a periodic job when it ran.
#[derive(Debug, Clone, PartialEq)]
pub struct PeriodicRun {
    /// The periodic job.
    pub jid: Jid,
    /// Its next run.
    pub next: Option<Timestamp>,
    /// How many jobs it has put.
    pub count: u64,
    /// The last of these.
    pub last: Option<Jid>,
    /// Why the last run put no job, if it was refused.
    pub error: Option<Box<Refusal>>,
}

/// A recurring job.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurDelta {
    /// `None` for a new one.
    pub template: Option<u32>,
    pub jid: Jid,
    pub queue: NameId,
    pub klass: NameId,
    pub payload: Payload,
    pub priority: Priority,
    pub retries: u32,
    pub tags: Box<[Tag]>,
    pub every: Every,
    /// How many missed jobs are made at most.
    pub backlog: u32,
    pub next: Timestamp,
    /// Whether it goes behind others with an equal next time.
    pub arrives: bool,
    /// When to list its queue, if it is not listed yet; `None` leaves the list alone.
    pub registers: Option<Timestamp>,
}
