//! What changes, as data: decided by executing a command, written down by a store, and applied in one place.

use std::sync::Arc;

use super::state::RowId;
use crate::{
    CompleteReply, Event, Every, Jid, Payload, Priority, Progressed, PutOptions, QueueLimits, ResultWaiter,
    Seconds, StoredResult, Tag, Timestamp,
};

/// A kind of thing that goes by a name and is numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words say it")]
pub enum Kind {
    Queue,
    Klass,
    Worker,
    Group,
}

/// The number of a queue, klass, worker or group, given by [`Delta::Name`] or [`Delta::ReuseNumber`].
pub type NameId = u32;

/// Stands among dependencies for the very job that is put, which may have no row yet.
pub const ITSELF: RowId = RowId::MAX;

/// A change of state. Applied to a state equal to the one in which it was decided, it leads to an equal state.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// Tokens and arrivals go on from here, beyond all that were given out before.
    Epoch(u32),
    /// A name gets the next number of its kind.
    Name(Kind, Arc<str>),
    /// A name gets a number of its kind that is free.
    ReuseNameId(Kind, NameId, Arc<str>),
    /// A name that nothing refers to is removed, and its number is free.
    FreeNameId(Kind, NameId),
    /// A worker was seen.
    Seen(NameId, Timestamp),
    /// A job enters a queue.
    Put(PutDelta),
    /// A recurring job makes a job.
    Spawn {
        /// The recurring job.
        template: u32,
        /// The new job's id.
        jid: Jid,
        /// Its number.
        count: u64,
        /// Its nominal time.
        at: Timestamp,
        /// The nominal time of the next one.
        next: Timestamp,
        /// When it was made.
        now: Timestamp,
    },
    /// A due job may run.
    Promote(RowId, Timestamp),
    /// A worker gets a job.
    Pop {
        /// The job.
        row: RowId,
        /// The worker.
        worker: NameId,
        /// When.
        now: Timestamp,
        /// Until when.
        expires: Timestamp,
    },
    /// A worker's lock has expired; it has until then to come back.
    Warn {
        /// The job.
        row: RowId,
        /// When.
        now: Timestamp,
        /// The end of its grace.
        until: Timestamp,
    },
    /// An attempt is given up: one retry less.
    SpendRetry(RowId),
    /// A lock lasts longer.
    Heartbeat {
        /// The job.
        row: RowId,
        /// Until when.
        expires: Timestamp,
        /// The new payload.
        payload: Option<Payload>,
    },
    /// A job is done.
    Complete {
        /// The job.
        row: RowId,
        /// When.
        now: Timestamp,
        /// The new payload.
        payload: Option<Payload>,
    },
    /// A job is done in one queue and goes on to another.
    Advance(Box<AdvanceDelta>),
    /// A job fails.
    Fail(Box<FailDelta>),
    /// A job goes back to its queue.
    Retry {
        /// The job.
        row: RowId,
        /// When.
        now: Timestamp,
        /// When it may run.
        due: Option<Timestamp>,
        /// Why.
        failure: Option<Box<FailureDelta>>,
    },
    /// A job is taken from its worker and goes to the very front.
    Timeout(RowId, Timestamp),
    /// A job is gone.
    Remove(RowId),
    /// A failed job goes into a queue.
    Unfail(RowId, NameId, Timestamp),
    /// A job matters more or less.
    Priority(RowId, Priority),
    /// A job waits for others as well.
    Depend(RowId, Box<[RowId]>),
    /// A job waits for others no longer.
    Undepend(RowId, Box<[RowId]>, Timestamp),
    /// Something is written into a job's history.
    Log {
        /// The job.
        row: RowId,
        /// When.
        now: Timestamp,
        /// What.
        message: Box<str>,
        /// And more about it.
        data: Option<Box<str>>,
    },
    /// A job is tracked.
    Track(Jid, Timestamp),
    /// A job is tracked no longer.
    Untrack(Jid),
    /// A job gets a tag, or gets it again.
    Tag(RowId, Tag, Timestamp),
    /// A job loses a tag, or would if it had it.
    Untag(RowId, Tag),
    /// A queue is paused, or not.
    Pause(NameId, bool),
    /// A queue is off the list.
    ForgetQueue(NameId),
    /// A worker is off the list.
    ForgetWorker(NameId),
    /// A worker was not seen for long: it is off the list, and its own list of jobs is gone.
    AgeWorker(NameId),
    /// An option has a value, or its default.
    Config(Box<str>, Option<Box<str>>),
    /// A recurring job is new or has changed.
    Recur(Box<RecurDelta>),
    /// A recurring job is gone.
    Unrecur(u32),
    /// A job has these terms and no others. Who is attached is told apart, and nobody is called.
    PutOptions(RowId, Box<PutOptions>),
    /// A put joins a job.
    Coalesced {
        /// The job.
        row: RowId,
        /// How long its result is to be kept at least.
        result_ttl: Option<Seconds>,
        /// Whether it lives on without anybody who waits.
        always: bool,
    },
    /// Somebody waits for a job.
    Attached(RowId, ResultWaiter),
    /// Somebody waits for a job no longer.
    Detached(RowId, ResultWaiter),
    /// An attempt got further.
    Progressed(RowId, Progressed),
    /// An attempt must be over at a moment.
    Deadline(RowId, Timestamp),
    /// An attempt took too long: one retry less.
    AttemptTimedOut(RowId, Timestamp),
    /// A job's worker died: one retry less.
    Crashed {
        /// The job.
        row: RowId,
        /// When.
        now: Timestamp,
        /// What is known of it.
        evidence: Option<Box<str>>,
    },
    /// A worker was interrupted, and its job goes to the front.
    Release(RowId, Timestamp),
    /// A job goes from its worker to the front.
    ToFront(RowId),
    /// A worker can do jobs.
    CapabilityAdded {
        /// The worker.
        worker: NameId,
        /// The queue.
        queue: NameId,
        /// The klass; any, if there is none.
        klass: Option<NameId>,
        /// How long it takes for one at the most.
        attempt_max: Option<Seconds>,
    },
    /// A worker cannot do jobs any more.
    CapabilityRemoved {
        /// The worker.
        worker: NameId,
        /// The queue.
        queue: NameId,
        /// The klass; any, if there is none.
        klass: Option<NameId>,
    },
    /// A worker can do nothing any more.
    CapabilitiesCleared(NameId),
    /// A queue has these limits, or none.
    Limits(NameId, Option<Box<QueueLimits>>),
    /// Somebody asked a queue for jobs.
    Polled(NameId, Timestamp),
    /// A result is kept.
    ResultStored(Box<StoredResult>),
    /// A result is kept no longer.
    ResultDropped(Jid),
    /// Events are kept because somebody listened at a moment, or not kept.
    Listening(Option<Timestamp>),
    /// An event is kept.
    EventLogged(Box<Event>),
    /// Numbers of a counter are given out, up to this one.
    IdsAllocated(Box<str>, u64),
}

impl Delta {
    /// Whether it must be synced before it is acknowledged. It need not be if all that can happen is that a job that was handed out waits again, and that the
    /// worker that has it is told so. Jobs themselves, and how they ended, are not of this kind.
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
                | Delta::EventLogged(_)
        );
        self.must_be_logged() && !may_be_lost
    }

    /// Whether it says anything that matters once the process is gone, rather than who was there when.
    pub fn must_be_logged(&self) -> bool {
        !matches!(
            self,
            Delta::Name(..)
                | Delta::ReuseNameId(..)
                | Delta::FreeNameId(..)
                | Delta::Seen(..)
                | Delta::Polled(..)
        )
    }

    /// The payload that it gives to a job.
    pub fn payload(&self) -> Option<&Payload> {
        match self {
            Delta::Put(put) => Some(&put.payload),
            Delta::Heartbeat { payload, .. } | Delta::Complete { payload, .. } => payload.as_ref(),
            Delta::Advance(advance) => advance.payload.as_ref(),
            Delta::Fail(fail) => fail.payload.as_ref(),
            _ => None,
        }
    }

    /// The same, to be exchanged.
    pub(crate) fn payload_mut(&mut self) -> Option<&mut Payload> {
        match self {
            Delta::Put(put) => Some(&mut put.payload),
            Delta::Heartbeat { payload, .. } | Delta::Complete { payload, .. } => payload.as_mut(),
            Delta::Advance(advance) => advance.payload.as_mut(),
            Delta::Fail(fail) => fail.payload.as_mut(),
            _ => None,
        }
    }

    /// The job that it changes; none if it changes no job, a new one, or others by way of something else.
    pub fn row(&self) -> Option<RowId> {
        match self {
            Delta::Put(put) => put.row,
            Delta::Advance(advance) => Some(advance.row),
            Delta::Fail(fail) => Some(fail.row),
            Delta::Promote(row, _)
            | Delta::Pop { row, .. }
            | Delta::Warn { row, .. }
            | Delta::SpendRetry(row)
            | Delta::Heartbeat { row, .. }
            | Delta::Complete { row, .. }
            | Delta::Retry { row, .. }
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
            | Delta::EventLogged(_)
            | Delta::IdsAllocated(..) => None,
        }
    }
}

/// A job enters a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct PutDelta {
    /// The job; none if it is new.
    pub row: Option<RowId>,
    /// Its id.
    pub jid: Jid,
    /// When.
    pub now: Timestamp,
    /// Where.
    pub queue: NameId,
    /// What code runs it.
    pub klass: NameId,
    /// What that code is given.
    pub payload: Payload,
    /// How much it matters.
    pub priority: Priority,
    /// How often it may be tried again.
    pub retries: u32,
    /// When it may run.
    pub due: Option<Timestamp>,
    /// Its tags; as before if not given.
    pub tags: Option<Box<[Tag]>>,
    /// What it waits for from now on; as before if not given.
    pub depends: Option<Box<[RowId]>>,
}

/// A job is done in one queue and goes on to another.
#[derive(Debug, Clone, PartialEq)]
pub struct AdvanceDelta {
    /// The job.
    pub row: RowId,
    /// When.
    pub now: Timestamp,
    /// Where to.
    pub queue: NameId,
    /// When it may run.
    pub due: Option<Timestamp>,
    /// What it waits for.
    pub depends: Box<[RowId]>,
    /// The new payload.
    pub payload: Option<Payload>,
    /// What was answered, and will be if the attempt says so again.
    pub reply: CompleteReply,
}

/// A job fails.
#[derive(Debug, Clone, PartialEq)]
pub struct FailDelta {
    /// The job.
    pub row: RowId,
    /// When.
    pub now: Timestamp,
    /// How.
    pub failure: FailureDelta,
    /// Whether a worker said so, rather than that retries ran out.
    pub by_worker: bool,
    /// The new payload.
    pub payload: Option<Payload>,
}

/// How a job failed.
#[derive(Debug, Clone, PartialEq)]
pub struct FailureDelta {
    /// The kind of failure.
    pub group: NameId,
    /// What was said about it.
    pub message: Box<str>,
    /// When, as it is shown.
    pub when: Timestamp,
    /// Who had it.
    pub worker: Option<NameId>,
}

/// A recurring job.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurDelta {
    /// Its number; none if it is new.
    pub template: Option<u32>,
    /// Its id.
    pub jid: Jid,
    /// Where its jobs go.
    pub queue: NameId,
    /// What code runs them.
    pub klass: NameId,
    /// What that code is given.
    pub payload: Payload,
    /// How much they matter.
    pub priority: Priority,
    /// How often each may be tried again.
    pub retries: u32,
    /// Their tags.
    pub tags: Box<[Tag]>,
    /// When it makes one after the other.
    pub every: Every,
    /// How many missed ones are made up for.
    pub backlog: u32,
    /// When it makes the next one.
    pub next: Timestamp,
    /// Whether it arrives anew among those with an equal next time.
    pub arrives: bool,
    /// When its queue was put on the list, if it was not there; none to leave the list alone.
    pub registers: Option<Timestamp>,
}
