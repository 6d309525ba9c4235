//! Delta codec, continued: the deltas that go beyond Qless.

use std::sync::Arc;

use super::reader::wrong;
use super::{
    CodecError, CodecErrorWhy, Reader, Writer, events, kind_byte, read_failure, read_kind, read_name,
    write_failure,
};
use crate::engine::change::is_counter;
use crate::engine::delta::{Delta, FailDelta, PeriodicRun};
use crate::engine::state::RowState;
use crate::{
    AttemptEnd, Backoff, DependencyPolicy, EndReason, Group, Jid, JobEnding, JobResult, Klass,
    METADATA_BYTES_MAX, OnEnd, OrphanPolicy, Payload, Periodic, Portion, Priority, Progressed, PutOptions,
    QueueLimits, QueueName, Rate, Refusal, ResultWaiter, Seconds, StateName, StoredResult, Timestamp,
    Tombstone, Traceparent, UniqueKey, WorkerName, wire,
};

/// The first byte of a delta, as in the parent module.
pub(super) mod kind {
    pub(crate) const PUT_OPTIONS: u8 = 33;
    pub(crate) const COALESCED: u8 = 34;
    pub(crate) const ATTACHED: u8 = 35;
    pub(crate) const DETACHED: u8 = 36;
    pub(crate) const PROGRESSED: u8 = 37;
    pub(crate) const DEADLINE: u8 = 38;
    pub(crate) const ATTEMPT_TIMED_OUT: u8 = 39;
    pub(crate) const CRASHED: u8 = 40;
    pub(crate) const RELEASE: u8 = 41;
    pub(crate) const TO_FRONT: u8 = 42;
    pub(crate) const CAPABILITY_ADDED: u8 = 43;
    pub(crate) const CAPABILITY_REMOVED: u8 = 44;
    pub(crate) const CAPABILITIES_CLEARED: u8 = 45;
    pub(crate) const LIMITS: u8 = 46;
    pub(crate) const POLLED: u8 = 47;
    pub(crate) const RESULT_STORED: u8 = 48;
    pub(crate) const RESULT_DROPPED: u8 = 49;
    pub(crate) const LISTENING: u8 = 50;
    pub(crate) const EVENT_LOGGED: u8 = 51;
    pub(crate) const IDS_ALLOCATED: u8 = 52;
    pub(crate) const PUT_OPTIONS_WITH_METADATA: u8 = 53;
    pub(crate) const REUSE_NAME_ID: u8 = 54;
    pub(crate) const FREE_NAME_ID: u8 = 55;
    pub(crate) const TAG_CLEARED: u8 = 56;
    pub(crate) const QUEUE_CLEARED: u8 = 57;
    pub(crate) const RUN_WITHOUT: u8 = 58;
    pub(crate) const ATTEMPT_ENDED: u8 = 59;
    pub(crate) const CANCELED: u8 = 60;
    pub(crate) const TOMBSTONE_DROPPED: u8 = 61;
    pub(crate) const REQUEUE: u8 = 62;
    pub(crate) const PUT_OPTIONS_WITH_POLICY: u8 = 63;
    pub(crate) const RATES_SAMPLED: u8 = 65;
    pub(crate) const EVENT_LOGGED_AT: u8 = 66;
    pub(crate) const SNOOZE: u8 = 67;
    pub(crate) const RELOCK: u8 = 68;
    pub(crate) const PUT_OPTIONS_WITH_TRACE: u8 = 69;
    pub(crate) const PERIODIC: u8 = 70;
    pub(crate) const PERIODIC_REMOVED: u8 = 71;
    pub(crate) const PERIODIC_RAN: u8 = 72;
    pub(crate) const SPAWNED_FROM: u8 = 73;
    pub(crate) const SET_ASIDE: u8 = 74;
    pub(crate) const RETURN: u8 = 75;
}

type Read<T> = Result<T, CodecError>;

/// Encodes a delta of this file.
pub(super) fn write<'w, 'a>(delta: &Delta, to: &'w mut Writer<'a>) -> &'w mut Writer<'a> {
    match delta {
        // Metadata, the dependency policy and the trace came later: options without them are encoded as
        // before.
        Delta::PutOptions(row, options) if options.traceparent.is_some() => to
            .byte(kind::PUT_OPTIONS_WITH_TRACE)
            .id(*row)
            .put_options(options)
            .optional(options.metadata.as_ref(), Writer::payload)
            .dependency_policy(options.on_dependency_failure)
            .bytes(options.traceparent.as_ref().map_or(&[], Traceparent::bytes)),
        Delta::PutOptions(row, options) if options.on_dependency_failure != DependencyPolicy::Wait => to
            .byte(kind::PUT_OPTIONS_WITH_POLICY)
            .id(*row)
            .put_options(options)
            .optional(options.metadata.as_ref(), Writer::payload)
            .dependency_policy(options.on_dependency_failure),
        Delta::RunWithout(row, off, now) => to.byte(kind::RUN_WITHOUT).id(*row).ids(off).moment(*now),
        Delta::PutOptions(row, options) => match &options.metadata {
            None => to.byte(kind::PUT_OPTIONS).id(*row).put_options(options),
            Some(metadata) => {
                to.byte(kind::PUT_OPTIONS_WITH_METADATA).id(*row).put_options(options).payload(metadata)
            }
        },
        Delta::Coalesced { row, result_ttl: result_for, always } => {
            to.byte(kind::COALESCED).id(*row).optional(*result_for, Writer::span).flag(*always)
        }
        Delta::Attached(row, waiter) => to.byte(kind::ATTACHED).id(*row).waiter(waiter),
        Delta::Detached(row, waiter) => to.byte(kind::DETACHED).id(*row).waiter(waiter),
        Delta::Progressed(row, progress) => to.byte(kind::PROGRESSED).id(*row).progress(progress),
        Delta::Deadline(row, at) => to.byte(kind::DEADLINE).id(*row).moment(*at),
        Delta::AttemptTimedOut(row, now) => to.byte(kind::ATTEMPT_TIMED_OUT).id(*row).moment(*now),
        Delta::Crashed { row, now, evidence } => {
            to.byte(kind::CRASHED).id(*row).moment(*now).optional(evidence.as_deref(), Writer::text)
        }
        Delta::Release(row, now) => to.byte(kind::RELEASE).id(*row).moment(*now),
        Delta::ToFront(row) => to.byte(kind::TO_FRONT).id(*row),
        Delta::CapabilityAdded { worker, queue, klass, attempt_max } => {
            let to = to.byte(kind::CAPABILITY_ADDED).id(*worker).id(*queue);
            to.optional(*klass, Writer::id).optional(*attempt_max, Writer::span)
        }
        Delta::CapabilityRemoved { worker, queue, klass } => {
            to.byte(kind::CAPABILITY_REMOVED).id(*worker).id(*queue).optional(*klass, Writer::id)
        }
        Delta::CapabilitiesCleared(worker) => to.byte(kind::CAPABILITIES_CLEARED).id(*worker),
        Delta::Limits(queue, limits) => {
            to.byte(kind::LIMITS).id(*queue).optional(limits.as_deref(), Writer::limits)
        }
        Delta::Polled(queue, now) => to.byte(kind::POLLED).id(*queue).moment(*now),
        Delta::ResultStored(stored) => to.byte(kind::RESULT_STORED).stored_result(stored),
        Delta::ResultDropped(jid) => to.byte(kind::RESULT_DROPPED).jid(jid),
        Delta::Listening(listened) => to.byte(kind::LISTENING).optional(*listened, Writer::moment),
        Delta::EventLogged { event, at: None } => events::write(event, to.byte(kind::EVENT_LOGGED)),
        Delta::EventLogged { event, at: Some(at) } => {
            events::write(event, to.byte(kind::EVENT_LOGGED_AT).moment(*at))
        }
        Delta::RatesSampled(at) => to.byte(kind::RATES_SAMPLED).optional(*at, Writer::moment),
        Delta::IdsAllocated(counter, last) => to.byte(kind::IDS_ALLOCATED).text(counter).number(*last),
        Delta::ReuseNameId(kind, number, name) => {
            to.byte(kind::REUSE_NAME_ID).byte(kind_byte(*kind)).id(*number).text(name)
        }
        Delta::FreeNameId(kind, number) => to.byte(kind::FREE_NAME_ID).byte(kind_byte(*kind)).id(*number),
        Delta::TagCleared(tag) => to.byte(kind::TAG_CLEARED).tag(tag),
        Delta::QueueCleared(queue) => to.byte(kind::QUEUE_CLEARED).id(*queue),
        Delta::AttemptEnded { row, now, reason, group, message } => {
            let to = to.byte(kind::ATTEMPT_ENDED).id(*row).moment(*now).end_reason(*reason);
            to.optional(group.as_ref().map(Group::as_str), Writer::text)
                .optional(message.as_deref(), Writer::text)
        }
        Delta::Canceled { row, now, by, because } => {
            let to = to.byte(kind::CANCELED).id(*row).moment(*now);
            to.optional(by.as_deref(), Writer::text).optional(because.as_deref(), Writer::text)
        }
        Delta::TombstoneDropped(jid) => to.byte(kind::TOMBSTONE_DROPPED).jid(jid),
        Delta::Requeue(row, queue, now) => to.byte(kind::REQUEUE).id(*row).id(*queue).moment(*now),
        Delta::Snooze(row, due) => to.byte(kind::SNOOZE).id(*row).moment(*due),
        Delta::Relock { row, now, expires } => to.byte(kind::RELOCK).id(*row).moment(*now).moment(*expires),
        Delta::Periodic(periodic) => to.byte(kind::PERIODIC).periodic(periodic),
        Delta::PeriodicRemoved(jid) => to.byte(kind::PERIODIC_REMOVED).jid(jid),
        Delta::PeriodicRan(run) => {
            let PeriodicRun { jid, next, count, last, error } = &**run;
            to.byte(kind::PERIODIC_RAN).jid(jid).runs(*next, *count, last.as_ref(), error.as_deref())
        }
        Delta::SpawnedFrom(row, jid) => to.byte(kind::SPAWNED_FROM).id(*row).jid(jid),
        Delta::SetAside(aside) => {
            write_failure(to.byte(kind::SET_ASIDE).id(aside.row).moment(aside.now), &aside.failure)
        }
        Delta::Return { row, now, failure } => {
            to.byte(kind::RETURN).id(*row).moment(*now).optional(failure.as_deref(), write_failure)
        }
        _ => unreachable!("the parent module encodes it"),
    }
}

/// Decodes a delta of this file after its first byte; none for an unknown kind.
pub(super) fn read(byte: u8, from: &mut Reader<'_>) -> Read<Option<Delta>> {
    Ok(Some(match byte {
        kind::PUT_OPTIONS => Delta::PutOptions(from.id("row")?, Box::new(from.put_options()?)),
        kind::COALESCED => Delta::Coalesced {
            row: from.id("row")?,
            result_ttl: from.optional("result_ttl", Reader::span)?,
            always: from.flag("always")?,
        },
        kind::ATTACHED => Delta::Attached(from.id("row")?, from.waiter()?),
        kind::DETACHED => Delta::Detached(from.id("row")?, from.waiter()?),
        kind::PROGRESSED => Delta::Progressed(from.id("row")?, from.progress()?),
        kind::DEADLINE => Delta::Deadline(from.id("row")?, from.moment("deadline")?),
        kind::ATTEMPT_TIMED_OUT => Delta::AttemptTimedOut(from.id("row")?, from.moment("now")?),
        kind::CRASHED => Delta::Crashed {
            row: from.id("row")?,
            now: from.moment("now")?,
            evidence: from.optional("evidence", Reader::text)?.map(Into::into),
        },
        kind::RELEASE => Delta::Release(from.id("row")?, from.moment("now")?),
        kind::TO_FRONT => Delta::ToFront(from.id("row")?),
        kind::CAPABILITY_ADDED => Delta::CapabilityAdded {
            worker: from.id("worker")?,
            queue: from.id("queue")?,
            klass: from.optional("klass", Reader::id)?,
            attempt_max: from.optional("attempt_max", Reader::span)?,
        },
        kind::CAPABILITY_REMOVED => Delta::CapabilityRemoved {
            worker: from.id("worker")?,
            queue: from.id("queue")?,
            klass: from.optional("klass", Reader::id)?,
        },
        kind::CAPABILITIES_CLEARED => Delta::CapabilitiesCleared(from.id("worker")?),
        kind::LIMITS => {
            Delta::Limits(from.id("queue")?, from.optional("limits", |from, _| from.limits().map(Box::new))?)
        }
        kind::POLLED => Delta::Polled(from.id("queue")?, from.moment("now")?),
        kind::RESULT_STORED => Delta::ResultStored(Box::new(from.stored_result()?)),
        kind::RESULT_DROPPED => Delta::ResultDropped(from.jid("jid")?),
        kind::LISTENING => Delta::Listening(from.optional("listened", Reader::moment)?),
        kind::EVENT_LOGGED => Delta::EventLogged { event: Box::new(events::read(from)?), at: None },
        kind::EVENT_LOGGED_AT => {
            let at = Some(from.moment("time of an event")?);
            Delta::EventLogged { event: Box::new(events::read(from)?), at }
        }
        kind::RATES_SAMPLED => Delta::RatesSampled(from.optional("now", Reader::moment)?),
        kind::IDS_ALLOCATED => {
            Delta::IdsAllocated(from.counter()?.into(), from.number("number of a counter")?)
        }
        kind::REUSE_NAME_ID => {
            let kind = read_kind(from)?;
            let number = from.id("number of a name")?;
            Delta::ReuseNameId(kind, number, read_name(from, kind)?)
        }
        kind::FREE_NAME_ID => Delta::FreeNameId(read_kind(from)?, from.id("number of a name")?),
        kind::TAG_CLEARED => Delta::TagCleared(from.tag("tag")?),
        kind::QUEUE_CLEARED => Delta::QueueCleared(from.id("queue")?),
        kind::ATTEMPT_ENDED => Delta::AttemptEnded {
            row: from.id("row")?,
            now: from.moment("now")?,
            reason: from.end_reason()?,
            group: from.optional("group", |from, _| from.group())?,
            message: from.optional("message", Reader::text)?.map(Into::into),
        },
        kind::CANCELED => Delta::Canceled {
            row: from.id("row")?,
            now: from.moment("now")?,
            by: from.optional("by", Reader::text)?.map(Into::into),
            because: from.optional("because", Reader::text)?.map(Into::into),
        },
        kind::TOMBSTONE_DROPPED => Delta::TombstoneDropped(from.jid("jid")?),
        kind::PERIODIC => Delta::Periodic(Arc::new(from.periodic()?)),
        kind::PERIODIC_REMOVED => Delta::PeriodicRemoved(from.jid("jid")?),
        kind::PERIODIC_RAN => {
            let jid = from.jid("jid")?;
            let (next, count, last, error) = from.runs()?;
            Delta::PeriodicRan(Box::new(PeriodicRun { jid, next, count, last, error }))
        }
        kind::SPAWNED_FROM => Delta::SpawnedFrom(from.id("row")?, from.jid("jid")?),
        kind::REQUEUE => Delta::Requeue(from.id("row")?, from.id("queue")?, from.moment("now")?),
        kind::SNOOZE => Delta::Snooze(from.id("row")?, from.moment("due")?),
        kind::RELOCK => {
            Delta::Relock { row: from.id("row")?, now: from.moment("now")?, expires: from.moment("expires")? }
        }
        kind::SET_ASIDE => {
            let (row, now, failure) = (from.id("row")?, from.moment("now")?, read_failure(from)?);
            Delta::SetAside(Box::new(FailDelta { row, now, failure, by_worker: false, payload: None }))
        }
        kind::RETURN => Delta::Return {
            row: from.id("row")?,
            now: from.moment("now")?,
            failure: from.optional("failure", |from, _| read_failure(from).map(Box::new))?,
        },
        kind::PUT_OPTIONS_WITH_METADATA => {
            let (row, options) = (from.id("row")?, from.put_options()?);
            Delta::PutOptions(row, Box::new(PutOptions { metadata: Some(from.metadata()?), ..options }))
        }
        kind::PUT_OPTIONS_WITH_POLICY => {
            let (row, options) = (from.id("row")?, from.put_options()?);
            let metadata = from.optional("metadata", |from, _| from.metadata())?;
            let on_dependency_failure = from.dependency_policy()?;
            if on_dependency_failure == DependencyPolicy::Wait {
                return Err(from.misfit("dependency policy"));
            }
            Delta::PutOptions(row, Box::new(PutOptions { metadata, on_dependency_failure, ..options }))
        }
        kind::PUT_OPTIONS_WITH_TRACE => {
            let (row, options) = (from.id("row")?, from.put_options()?);
            let metadata = from.optional("metadata", |from, _| from.metadata())?;
            let on_dependency_failure = from.dependency_policy()?;
            let traceparent = Some(from.traceparent()?);
            let options = PutOptions { metadata, on_dependency_failure, traceparent, ..options };
            Delta::PutOptions(row, Box::new(options))
        }
        kind::RUN_WITHOUT => {
            Delta::RunWithout(from.id("row")?, from.ids("dependencies")?, from.moment("now")?)
        }
        _ => return Ok(None),
    }))
}

impl Writer<'_> {
    pub(crate) fn span(&mut self, span: Seconds) -> &mut Self {
        self.double(span.get())
    }

    pub(crate) fn waiter(&mut self, waiter: &ResultWaiter) -> &mut Self {
        self.number(waiter.stream_id).number(waiter.connection).number(waiter.number)
    }

    /// Put options without waiter, roll call, metadata, dependency policy and trace.
    pub(crate) fn put_options(&mut self, options: &PutOptions) -> &mut Self {
        self.optional(options.unique.as_ref(), |to, key| to.bytes(key.as_bytes()));
        self.flag(options.orphan_policy == OrphanPolicy::WhileAwaited).flag(options.on_end == OnEnd::Forget);
        self.optional(options.result_ttl, Writer::span).optional(options.expires, Writer::moment);
        self.optional(options.attempt_max, Writer::span).optional(options.backoff, Writer::backoff);
        self.optional(options.crashes_max, Writer::id)
    }

    /// A dependency policy as a byte: its index among all.
    pub(crate) fn dependency_policy(&mut self, policy: DependencyPolicy) -> &mut Self {
        let byte = DependencyPolicy::ALL.iter().position(|other| *other == policy);
        self.byte(byte.expect("all of them are listed") as u8)
    }

    fn backoff(&mut self, backoff: Backoff) -> &mut Self {
        let (first, factor, max, jitter) = backoff.parts();
        self.span(first).double(factor).span(max).double(jitter + 0.0)
    }

    pub(crate) fn progress(&mut self, progress: &Progressed) -> &mut Self {
        let to = self.number(progress.portion.part()).number(progress.portion.whole());
        to.optional(progress.seconds_left, Writer::id)
    }

    pub(crate) fn limits(&mut self, limits: &QueueLimits) -> &mut Self {
        self.optional(limits.jobs_max, Writer::number);
        self.list(&limits.by_priority, |to, (priority, max)| to.double(priority.get()).number(*max));
        self.optional(limits.rate, |to, rate| to.id(rate.count()).span(rate.per()).id(rate.burst()))
    }

    pub(crate) fn end_reason(&mut self, reason: EndReason) -> &mut Self {
        self.byte(match reason {
            EndReason::Retried => 0,
            EndReason::LockExpired => 1,
            EndReason::Deadline => 2,
            EndReason::WorkerLost => 3,
            EndReason::Released => 4,
            EndReason::TakenAway => 5,
            EndReason::PutAgain => 6,
            EndReason::Resumed => 7,
        })
    }

    pub(crate) fn attempt_end(&mut self, end: &AttemptEnd) -> &mut Self {
        self.moment(end.when).end_reason(end.reason);
        self.optional(end.worker.as_ref().map(WorkerName::as_str), Writer::text);
        self.optional(end.group.as_ref().map(Group::as_str), Writer::text)
            .optional(end.message.as_deref(), Writer::text)
    }

    /// A periodic job. Its template is encoded as it is sent.
    pub(crate) fn periodic(&mut self, of: &Periodic) -> &mut Self {
        self.bytes(&wire::encode_value(&*of.template));
        self.runs(of.next, of.count, of.last.as_ref(), of.error.as_deref())
    }

    /// The runs of a periodic job.
    fn runs(
        &mut self,
        next: Option<Timestamp>,
        count: u64,
        last: Option<&Jid>,
        error: Option<&Refusal>,
    ) -> &mut Self {
        self.optional(next, Writer::moment).number(count).optional(last, Writer::jid);
        self.optional(error, |to, error| to.bytes(&wire::encode_value(error)))
    }

    pub(crate) fn tombstone(&mut self, of: &Tombstone) -> &mut Self {
        self.jid(&of.jid).text(of.queue.as_str()).text(of.klass.as_str());
        self.byte(match of.state {
            StateName::Scheduled => 1,
            StateName::Depends => 2,
            StateName::Waiting => 3,
            StateName::Running => 4,
            StateName::Complete => 5,
            StateName::Failed => 6,
        });
        let to = self.moment(of.when).optional(of.by.as_deref(), Writer::text);
        to.optional(of.because.as_deref(), Writer::text)
    }

    pub(crate) fn stored_result(&mut self, stored: &StoredResult) -> &mut Self {
        self.jid(&stored.jid);
        match &stored.ending {
            JobEnding::Completed => self.byte(0),
            JobEnding::Failed { group, message } => self.byte(1).text(group.as_str()).text(message),
            JobEnding::Canceled => self.byte(2),
        };
        let JobResult { code, bytes } = &stored.result;
        self.signed(i64::from(*code)).payload(bytes).moment(stored.ended).moment(stored.until)
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn span(&mut self, what: &'static str) -> Read<Seconds> {
        self.finite(what, Seconds::new)
    }

    pub(crate) fn put_options(&mut self) -> Read<PutOptions> {
        let unique = self.optional("unique key", |from, what| {
            let bytes = from.bytes(what)?;
            UniqueKey::new(bytes).map_err(|_| from.misfit(what))
        })?;
        Ok(PutOptions {
            unique,
            orphan_policy: if self.flag("orphan policy")? {
                OrphanPolicy::WhileAwaited
            } else {
                OrphanPolicy::Always
            },
            on_end: if self.flag("on end")? { OnEnd::Forget } else { OnEnd::Keep },
            result_ttl: self.optional("result_ttl", Reader::span)?,
            expires: self.optional("expires", Reader::moment)?,
            attempt_max: self.optional("attempt_max", Reader::span)?,
            backoff: self.optional("backoff", |from, _| from.backoff())?,
            crashes_max: self.optional("crashes_max", Reader::id)?,
            ..PutOptions::default()
        })
    }

    pub(crate) fn dependency_policy(&mut self) -> Read<DependencyPolicy> {
        let at = self.at();
        let byte = self.byte("dependency policy")?;
        match DependencyPolicy::ALL.get(usize::from(byte)) {
            Some(policy) => Ok(*policy),
            None => wrong(at, "dependency policy", CodecErrorWhy::Unknown(byte)),
        }
    }

    pub(crate) fn traceparent(&mut self) -> Read<Traceparent> {
        let bytes = self.bytes("traceparent")?;
        Traceparent::from_bytes(bytes).ok_or_else(|| self.misfit("traceparent"))
    }

    /// Metadata of a job.
    pub(crate) fn metadata(&mut self) -> Read<Payload> {
        let metadata = self.payload("metadata")?;
        if metadata.bytes().len() > METADATA_BYTES_MAX { Err(self.misfit("metadata")) } else { Ok(metadata) }
    }

    pub(crate) fn counter(&mut self) -> Read<&'a str> {
        let counter = self.text("counter")?;
        if is_counter(counter) { Ok(counter) } else { Err(self.misfit("counter")) }
    }

    pub(crate) fn waiter(&mut self) -> Read<ResultWaiter> {
        Ok(ResultWaiter {
            stream_id: self.number("stream id")?,
            connection: self.number("connection")?,
            number: self.number("number of a waiter")?,
        })
    }

    fn backoff(&mut self) -> Read<Backoff> {
        let (first, factor) = (self.span("backoff")?, self.double("backoff")?);
        let (max, jitter) = (self.span("backoff")?, self.double("backoff")?);
        Backoff::exponential(first, factor, max, jitter).map_err(|_| self.misfit("backoff"))
    }

    pub(crate) fn progress(&mut self) -> Read<Progressed> {
        let (part, whole) = (self.number("progress")?, self.number("progress")?);
        let portion = Portion::from((part, whole));
        Ok(Progressed { portion, seconds_left: self.optional("seconds left", Reader::id)? })
    }

    pub(crate) fn limits(&mut self) -> Read<QueueLimits> {
        Ok(QueueLimits {
            jobs_max: self.optional("limit", Reader::number)?,
            by_priority: self
                .list(9, "limits", |from, what| Ok((from.finite(what, Priority::new)?, from.number(what)?)))?
                .into(),
            rate: self.optional("rate", |from, what| {
                let (count, per, burst) = (from.id(what)?, from.span(what)?, from.id(what)?);
                Rate::new(count, per, burst).map_err(|_| from.misfit(what))
            })?,
        })
    }

    pub(crate) fn end_reason(&mut self) -> Read<EndReason> {
        let at = self.at();
        Ok(match self.byte("end of an attempt")? {
            0 => EndReason::Retried,
            1 => EndReason::LockExpired,
            2 => EndReason::Deadline,
            3 => EndReason::WorkerLost,
            4 => EndReason::Released,
            5 => EndReason::TakenAway,
            6 => EndReason::PutAgain,
            7 => EndReason::Resumed,
            other => return wrong(at, "end of an attempt", CodecErrorWhy::Unknown(other)),
        })
    }

    pub(crate) fn attempt_end(&mut self) -> Read<AttemptEnd> {
        Ok(AttemptEnd {
            when: self.moment("when")?,
            reason: self.end_reason()?,
            worker: self.optional("worker", |from, what| from.name(what, WorkerName::new))?,
            group: self.optional("group", |from, _| from.group())?,
            message: self.optional("message", Reader::text)?.map(ToOwned::to_owned),
        })
    }

    pub(crate) fn periodic(&mut self) -> Read<Periodic> {
        let template = self.packed("template")?;
        let (next, count, last, error) = self.runs()?;
        Ok(Periodic { template: Box::new(template), next, count, last, error })
    }

    /// A value in MessagePack, in the one form in which it is written.
    fn packed<T: serde::de::DeserializeOwned + serde::Serialize>(&mut self, what: &'static str) -> Read<T> {
        let bytes = self.bytes(what)?;
        let value: T = wire::decode_value(bytes).map_err(|_| self.misfit(what))?;
        if wire::encode_value(&value) == bytes { Ok(value) } else { Err(self.misfit(what)) }
    }

    #[allow(clippy::type_complexity, reason = "it is read in two places")]
    fn runs(&mut self) -> Read<(Option<Timestamp>, u64, Option<Jid>, Option<Box<Refusal>>)> {
        let next = self.optional("next", Reader::moment)?;
        let count = self.number("count")?;
        let last = self.optional("last", Reader::jid)?;
        let error = self.optional("error", |reader, what| reader.packed(what).map(Box::new))?;
        Ok((next, count, last, error))
    }

    pub(crate) fn tombstone(&mut self) -> Read<Tombstone> {
        Ok(Tombstone {
            jid: self.jid("jid")?,
            queue: self.name("queue", QueueName::of_function)?,
            klass: self.name("klass", Klass::of_function)?,
            state: RowState::from_byte(self.byte("state")?).ok_or_else(|| self.misfit("a state"))?.name(),
            when: self.moment("when")?,
            by: self.optional("by", Reader::text)?.map(ToOwned::to_owned),
            because: self.optional("because", Reader::text)?.map(ToOwned::to_owned),
        })
    }

    pub(crate) fn stored_result(&mut self) -> Read<StoredResult> {
        let jid = self.jid("jid")?;
        let at = self.at();
        let ending = match self.byte("job ending")? {
            0 => JobEnding::Completed,
            1 => JobEnding::Failed { group: self.group()?, message: self.text("message")?.to_owned() },
            2 => JobEnding::Canceled,
            other => return wrong(at, "job ending", CodecErrorWhy::Unknown(other)),
        };
        let code = self.signed("code")?;
        let code = i32::try_from(code).map_err(|_| self.misfit("code"))?;
        let bytes = self.payload("result")?;
        Ok(StoredResult {
            jid,
            ending,
            result: JobResult { code, bytes },
            ended: self.moment("ended")?,
            until: self.moment("until")?,
        })
    }
}
