//! The deltas of what goes beyond Qless.

use super::reader::wrong;
use super::{CodecError, CodecErrorWhy, Reader, Writer, events, kind_byte, read_kind, read_name};
use crate::engine::change::is_counter;
use crate::engine::delta::Delta;
use crate::{
    Backoff, JobEnding, JobResult, METADATA_BYTES_MAX, OnEnd, OrphanPolicy, Payload, Portion, Priority,
    Progressed, PutOptions, QueueLimits, Rate, ResultWaiter, Seconds, StoredResult, UniqueKey,
};

/// The byte that a delta begins with, as in the other file.
pub(super) mod kind {
    pub(crate) const TERMS: u8 = 33;
    pub(crate) const MERGED: u8 = 34;
    pub(crate) const ATTACHED: u8 = 35;
    pub(crate) const DETACHED: u8 = 36;
    pub(crate) const PROGRESSED: u8 = 37;
    pub(crate) const DEADLINE: u8 = 38;
    pub(crate) const OVERRUN: u8 = 39;
    pub(crate) const CRASHED: u8 = 40;
    pub(crate) const HAND_BACK: u8 = 41;
    pub(crate) const TO_FRONT: u8 = 42;
    pub(crate) const ABLE: u8 = 43;
    pub(crate) const UNABLE: u8 = 44;
    pub(crate) const UNABLE_AT_ALL: u8 = 45;
    pub(crate) const LIMITS: u8 = 46;
    pub(crate) const ASKED: u8 = 47;
    pub(crate) const RESULT_KEPT: u8 = 48;
    pub(crate) const RESULT_DROPPED: u8 = 49;
    pub(crate) const LISTENING: u8 = 50;
    pub(crate) const HAPPENED: u8 = 51;
    pub(crate) const ALLOTTED: u8 = 52;
    pub(crate) const TERMS_AND_ASIDE: u8 = 53;
    pub(crate) const REUSE_NUMBER: u8 = 54;
    pub(crate) const FREE_NUMBER: u8 = 55;
}

type Read<T> = Result<T, CodecError>;

/// Appends the bytes of a delta of this file.
pub(super) fn write<'w, 'a>(delta: &Delta, to: &'w mut Writer<'a>) -> &'w mut Writer<'a> {
    match delta {
        // What is carried aside came later: terms without it are written as they always were.
        Delta::PutOptions(row, terms) => match &terms.metadata {
            None => to.byte(kind::TERMS).id(*row).terms(terms),
            Some(aside) => to.byte(kind::TERMS_AND_ASIDE).id(*row).terms(terms).payload(aside),
        },
        Delta::Coalesced { row, result_ttl: result_for, always } => {
            to.byte(kind::MERGED).id(*row).optional(*result_for, Writer::span).flag(*always)
        }
        Delta::Attached(row, waiter) => to.byte(kind::ATTACHED).id(*row).waiter(waiter),
        Delta::Detached(row, waiter) => to.byte(kind::DETACHED).id(*row).waiter(waiter),
        Delta::Progressed(row, progress) => to.byte(kind::PROGRESSED).id(*row).progress(progress),
        Delta::Deadline(row, at) => to.byte(kind::DEADLINE).id(*row).moment(*at),
        Delta::AttemptTimedOut(row, now) => to.byte(kind::OVERRUN).id(*row).moment(*now),
        Delta::Crashed { row, now, evidence } => {
            to.byte(kind::CRASHED).id(*row).moment(*now).optional(evidence.as_deref(), Writer::text)
        }
        Delta::Release(row, now) => to.byte(kind::HAND_BACK).id(*row).moment(*now),
        Delta::ToFront(row) => to.byte(kind::TO_FRONT).id(*row),
        Delta::CapabilityAdded { worker, queue, klass, attempt_max } => {
            let to = to.byte(kind::ABLE).id(*worker).id(*queue);
            to.optional(*klass, Writer::id).optional(*attempt_max, Writer::span)
        }
        Delta::CapabilityRemoved { worker, queue, klass } => {
            to.byte(kind::UNABLE).id(*worker).id(*queue).optional(*klass, Writer::id)
        }
        Delta::CapabilitiesCleared(worker) => to.byte(kind::UNABLE_AT_ALL).id(*worker),
        Delta::Limits(queue, limits) => {
            to.byte(kind::LIMITS).id(*queue).optional(limits.as_deref(), Writer::limits)
        }
        Delta::Polled(queue, now) => to.byte(kind::ASKED).id(*queue).moment(*now),
        Delta::ResultStored(kept) => to.byte(kind::RESULT_KEPT).kept(kept),
        Delta::ResultDropped(jid) => to.byte(kind::RESULT_DROPPED).jid(jid),
        Delta::Listening(listened) => to.byte(kind::LISTENING).optional(*listened, Writer::moment),
        Delta::EventLogged(event) => events::write(event, to.byte(kind::HAPPENED)),
        Delta::IdsAllocated(counter, last) => to.byte(kind::ALLOTTED).text(counter).number(*last),
        Delta::ReuseNameId(kind, number, name) => {
            to.byte(kind::REUSE_NUMBER).byte(kind_byte(*kind)).id(*number).text(name)
        }
        Delta::FreeNameId(kind, number) => to.byte(kind::FREE_NUMBER).byte(kind_byte(*kind)).id(*number),
        _ => unreachable!("the other file has it"),
    }
}

/// Reads a delta of this file, whose first byte was read at a place; none if it is of no known kind.
pub(super) fn read(byte: u8, from: &mut Reader<'_>) -> Read<Option<Delta>> {
    Ok(Some(match byte {
        kind::TERMS => Delta::PutOptions(from.id("row")?, Box::new(from.terms()?)),
        kind::MERGED => Delta::Coalesced {
            row: from.id("row")?,
            result_ttl: from.optional("result_for", Reader::span)?,
            always: from.flag("always")?,
        },
        kind::ATTACHED => Delta::Attached(from.id("row")?, from.waiter()?),
        kind::DETACHED => Delta::Detached(from.id("row")?, from.waiter()?),
        kind::PROGRESSED => Delta::Progressed(from.id("row")?, from.progress()?),
        kind::DEADLINE => Delta::Deadline(from.id("row")?, from.moment("deadline")?),
        kind::OVERRUN => Delta::AttemptTimedOut(from.id("row")?, from.moment("now")?),
        kind::CRASHED => Delta::Crashed {
            row: from.id("row")?,
            now: from.moment("now")?,
            evidence: from.optional("evidence", Reader::text)?.map(Into::into),
        },
        kind::HAND_BACK => Delta::Release(from.id("row")?, from.moment("now")?),
        kind::TO_FRONT => Delta::ToFront(from.id("row")?),
        kind::ABLE => Delta::CapabilityAdded {
            worker: from.id("worker")?,
            queue: from.id("queue")?,
            klass: from.optional("klass", Reader::id)?,
            attempt_max: from.optional("attempt_max", Reader::span)?,
        },
        kind::UNABLE => Delta::CapabilityRemoved {
            worker: from.id("worker")?,
            queue: from.id("queue")?,
            klass: from.optional("klass", Reader::id)?,
        },
        kind::UNABLE_AT_ALL => Delta::CapabilitiesCleared(from.id("worker")?),
        kind::LIMITS => {
            Delta::Limits(from.id("queue")?, from.optional("limits", |from, _| from.limits().map(Box::new))?)
        }
        kind::ASKED => Delta::Polled(from.id("queue")?, from.moment("now")?),
        kind::RESULT_KEPT => Delta::ResultStored(Box::new(from.kept()?)),
        kind::RESULT_DROPPED => Delta::ResultDropped(from.jid("jid")?),
        kind::LISTENING => Delta::Listening(from.optional("listened", Reader::moment)?),
        kind::HAPPENED => Delta::EventLogged(Box::new(events::read(from)?)),
        kind::ALLOTTED => Delta::IdsAllocated(from.counter()?.into(), from.number("number of a counter")?),
        kind::REUSE_NUMBER => {
            let kind = read_kind(from)?;
            let number = from.id("number of a name")?;
            Delta::ReuseNameId(kind, number, read_name(from, kind)?)
        }
        kind::FREE_NUMBER => Delta::FreeNameId(read_kind(from)?, from.id("number of a name")?),
        kind::TERMS_AND_ASIDE => {
            let (row, terms) = (from.id("row")?, from.terms()?);
            Delta::PutOptions(row, Box::new(PutOptions { metadata: Some(from.aside()?), ..terms }))
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

    /// What is kept of terms, but for what is carried aside.
    pub(crate) fn terms(&mut self, terms: &PutOptions) -> &mut Self {
        self.optional(terms.unique.as_ref(), |to, key| to.bytes(key.as_bytes()));
        self.flag(terms.orphan_policy == OrphanPolicy::WhileAwaited).flag(terms.on_end == OnEnd::Forget);
        self.optional(terms.result_ttl, Writer::span).optional(terms.expires, Writer::moment);
        self.optional(terms.attempt_max, Writer::span).optional(terms.backoff, Writer::backoff);
        self.optional(terms.crashes_max, Writer::id)
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

    pub(crate) fn kept(&mut self, kept: &StoredResult) -> &mut Self {
        self.jid(&kept.jid);
        match &kept.ending {
            JobEnding::Completed => self.byte(0),
            JobEnding::Failed { group, message } => self.byte(1).text(group.as_str()).text(message),
            JobEnding::Canceled => self.byte(2),
        };
        let JobResult { code, bytes } = &kept.result;
        self.signed(i64::from(*code)).payload(bytes).moment(kept.ended).moment(kept.until)
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn span(&mut self, what: &'static str) -> Read<Seconds> {
        self.finite(what, Seconds::new)
    }

    pub(crate) fn terms(&mut self) -> Read<PutOptions> {
        let unique = self.optional("unique key", |from, what| {
            let bytes = from.bytes(what)?;
            UniqueKey::new(bytes).map_err(|_| from.misfit(what))
        })?;
        Ok(PutOptions {
            unique,
            orphan_policy: if self.flag("lives")? {
                OrphanPolicy::WhileAwaited
            } else {
                OrphanPolicy::Always
            },
            on_end: if self.flag("afterwards")? { OnEnd::Forget } else { OnEnd::Keep },
            result_ttl: self.optional("result_for", Reader::span)?,
            expires: self.optional("expires", Reader::moment)?,
            attempt_max: self.optional("attempt_max", Reader::span)?,
            backoff: self.optional("backoff", |from, _| from.backoff())?,
            crashes_max: self.optional("crashes_max", Reader::id)?,
            ..PutOptions::default()
        })
    }

    /// What is carried beside a payload.
    pub(crate) fn aside(&mut self) -> Read<Payload> {
        let aside = self.payload("aside")?;
        if aside.bytes().len() > METADATA_BYTES_MAX { Err(self.misfit("aside")) } else { Ok(aside) }
    }

    /// A counter's name.
    pub(crate) fn counter(&mut self) -> Read<&'a str> {
        let counter = self.text("counter")?;
        if is_counter(counter) { Ok(counter) } else { Err(self.misfit("counter")) }
    }

    pub(crate) fn waiter(&mut self) -> Read<ResultWaiter> {
        Ok(ResultWaiter {
            stream_id: self.number("front")?,
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

    pub(crate) fn kept(&mut self) -> Read<StoredResult> {
        let jid = self.jid("jid")?;
        let at = self.at();
        let how = match self.byte("how it ended")? {
            0 => JobEnding::Completed,
            1 => JobEnding::Failed { group: self.group()?, message: self.text("message")?.to_owned() },
            2 => JobEnding::Canceled,
            other => return wrong(at, "how it ended", CodecErrorWhy::Unknown(other)),
        };
        let code = self.signed("code")?;
        let code = i32::try_from(code).map_err(|_| self.misfit("code"))?;
        let bytes = self.payload("result")?;
        Ok(StoredResult {
            jid,
            ending: how,
            result: JobResult { code, bytes },
            ended: self.moment("ended")?,
            until: self.moment("until")?,
        })
    }
}
