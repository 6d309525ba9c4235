//! Delta codec, version 1: deltas as bytes. `docs/formats/deltas.md` describes the format.
//!
//! A delta is a byte for its kind, then its fields in order. Its length follows from its fields. Logged bytes
//! must stay readable for ever, so the fields of a kind never change: other fields need a new kind.

mod events;
mod extensions;
mod reader;
mod writer;

use std::sync::Arc;

use super::delta::{AdvanceDelta, Delta, FailDelta, FailureDelta, Kind, PutDelta, RecurDelta};
use super::state::EPOCH_MAX;
use crate::{
    CompleteReply, Every, Group, Klass, Payload, Priority, QueueName, Seconds, SpillLocation, WorkerName,
};

pub(crate) use events::{read as read_event, write as write_event};
pub(crate) use reader::Reader;
pub use reader::{CodecError, CodecErrorWhy};
use reader::{is_plain, wrong};
pub(crate) use writer::Writer;

/// The first byte of a delta. None is 0, so that the padding of a batch cannot pass for a delta.
mod kind {
    pub(super) const NAME: u8 = 1;
    pub(super) const SEEN: u8 = 2;
    pub(super) const PUT: u8 = 3;
    pub(super) const SPAWN: u8 = 4;
    pub(super) const PROMOTE: u8 = 5;
    pub(super) const POP: u8 = 6;
    pub(super) const WARN: u8 = 7;
    pub(super) const SPEND_RETRY: u8 = 8;
    pub(super) const HEARTBEAT: u8 = 9;
    pub(super) const COMPLETE: u8 = 10;
    pub(super) const ADVANCE: u8 = 11;
    pub(super) const FAIL: u8 = 12;
    pub(super) const RETRY: u8 = 13;
    pub(super) const TIMEOUT: u8 = 14;
    pub(super) const REMOVE: u8 = 15;
    pub(super) const UNFAIL: u8 = 16;
    pub(super) const PRIORITY: u8 = 17;
    pub(super) const DEPEND: u8 = 18;
    pub(super) const UNDEPEND: u8 = 19;
    pub(super) const LOG: u8 = 20;
    pub(super) const TRACK: u8 = 21;
    pub(super) const UNTRACK: u8 = 22;
    pub(super) const TAG: u8 = 23;
    pub(super) const UNTAG: u8 = 24;
    pub(super) const PAUSE: u8 = 25;
    pub(super) const FORGET_QUEUE: u8 = 26;
    pub(super) const FORGET_WORKER: u8 = 27;
    pub(super) const AGE_WORKER: u8 = 28;
    pub(super) const CONFIG: u8 = 29;
    pub(super) const RECUR: u8 = 30;
    pub(super) const UNRECUR: u8 = 31;
    pub(super) const EPOCH: u8 = 32;
    /// Precedes a delta whose payload is in a file. Kinds below are used, or free, for deltas.
    pub(super) const PAYLOAD_IN_FILE: u8 = 64;
}

/// Optional fields of a put, one bit each. Most puts have none.
mod has {
    pub(super) const ROW: u8 = 1;
    pub(super) const PRIORITY: u8 = 1 << 1;
    pub(super) const DUE: u8 = 1 << 2;
    pub(super) const TAGS: u8 = 1 << 3;
    pub(super) const DEPENDS: u8 = 1 << 4;
    pub(super) const ALL: u8 = (1 << 5) - 1;
}

/// Precedes the seconds of an [`Every::Interval`].
const INTERVAL: u8 = 0;

fn write(delta: &Delta, to: &mut Writer<'_>) {
    // The delta follows with an empty payload.
    if let Some(SpillLocation { file, offset, bytes }) = delta.payload().and_then(Payload::spill_location) {
        to.byte(kind::PAYLOAD_IN_FILE).number(file).id(offset).id(bytes);
    }
    match delta {
        Delta::Name(kind, name) => to.byte(kind::NAME).byte(kind_byte(*kind)).text(name),
        Delta::Seen(worker, now) => to.byte(kind::SEEN).id(*worker).moment(*now),
        Delta::Put(put) => write_put(to.byte(kind::PUT), put),
        Delta::Spawn { template, jid, count, at, next, now } => {
            let to = to.byte(kind::SPAWN).id(*template).jid(jid).number(*count);
            to.moment(*at).moment(*next).moment(*now)
        }
        Delta::Promote(row, now) => to.byte(kind::PROMOTE).id(*row).moment(*now),
        Delta::Pop { row, worker, now, expires } => {
            to.byte(kind::POP).id(*row).id(*worker).moment(*now).moment(*expires)
        }
        Delta::Warn { row, now, until } => to.byte(kind::WARN).id(*row).moment(*now).moment(*until),
        Delta::SpendRetry(row) => to.byte(kind::SPEND_RETRY).id(*row),
        Delta::Heartbeat { row, expires, payload } => {
            to.byte(kind::HEARTBEAT).id(*row).moment(*expires).optional(payload.as_ref(), Writer::payload)
        }
        Delta::Complete { row, now, payload } => {
            to.byte(kind::COMPLETE).id(*row).moment(*now).optional(payload.as_ref(), Writer::payload)
        }
        Delta::Advance(advance) => write_advance(to.byte(kind::ADVANCE), advance),
        Delta::Fail(fail) => {
            let to = write_failure(to.byte(kind::FAIL).id(fail.row).moment(fail.now), &fail.failure);
            to.flag(fail.by_worker).optional(fail.payload.as_ref(), Writer::payload)
        }
        Delta::Retry { row, now, due, failure } => {
            let to = to.byte(kind::RETRY).id(*row).moment(*now).optional(*due, Writer::moment);
            to.optional(failure.as_deref(), write_failure)
        }
        Delta::Timeout(row, now) => to.byte(kind::TIMEOUT).id(*row).moment(*now),
        Delta::Remove(row) => to.byte(kind::REMOVE).id(*row),
        Delta::Unfail(row, queue, now) => to.byte(kind::UNFAIL).id(*row).id(*queue).moment(*now),
        Delta::Priority(row, priority) => to.byte(kind::PRIORITY).id(*row).double(priority.get()),
        Delta::Depend(row, on) => to.byte(kind::DEPEND).id(*row).ids(on),
        Delta::Undepend(row, off, now) => to.byte(kind::UNDEPEND).id(*row).ids(off).moment(*now),
        Delta::Log { row, now, message, data } => {
            let to = to.byte(kind::LOG).id(*row).moment(*now).text(message);
            to.optional(data.as_deref(), Writer::text)
        }
        Delta::Track(jid, now) => to.byte(kind::TRACK).jid(jid).moment(*now),
        Delta::Untrack(jid) => to.byte(kind::UNTRACK).jid(jid),
        Delta::Tag(row, tag, now) => to.byte(kind::TAG).id(*row).tag(tag).moment(*now),
        Delta::Untag(row, tag) => to.byte(kind::UNTAG).id(*row).tag(tag),
        Delta::Pause(queue, paused) => to.byte(kind::PAUSE).id(*queue).flag(*paused),
        Delta::ForgetQueue(queue) => to.byte(kind::FORGET_QUEUE).id(*queue),
        Delta::ForgetWorker(worker) => to.byte(kind::FORGET_WORKER).id(*worker),
        Delta::AgeWorker(worker) => to.byte(kind::AGE_WORKER).id(*worker),
        Delta::Config(option, value) => {
            to.byte(kind::CONFIG).text(option).optional(value.as_deref(), Writer::text)
        }
        Delta::Recur(recur) => write_recur(to.byte(kind::RECUR), recur),
        Delta::Unrecur(template) => to.byte(kind::UNRECUR).id(*template),
        Delta::Epoch(epoch) => to.byte(kind::EPOCH).id(*epoch),
        extension => extensions::write(extension, to),
    };
}

impl Delta {
    /// Appends the encoded delta.
    pub fn encode(&self, into: &mut Vec<u8>) {
        write(self, &mut Writer::new(into));
    }

    /// Decodes a delta from the front of `bytes`, and advances them unless it fails.
    pub fn decode(bytes: &mut &[u8]) -> Result<Delta, CodecError> {
        let mut reader = Reader::new(bytes);
        let delta = read(&mut reader)?;
        *bytes = reader.left();
        Ok(delta)
    }
}

fn read(from: &mut Reader<'_>) -> Result<Delta, CodecError> {
    let at = from.at();
    let kind = from.byte("kind of delta")?;
    if kind != kind::PAYLOAD_IN_FILE {
        return read_of_kind(kind, at, from);
    }
    let (file, offset) = (from.number("payload file")?, from.id("payload offset")?);
    let location = SpillLocation { file, offset, bytes: from.id("payload length")? };
    let at = from.at();
    let kind = from.byte("kind of delta")?;
    let mut delta = read_of_kind(kind, at, from)?;
    match delta.payload_mut() {
        Some(payload) if payload.bytes().is_empty() => *payload = location.into(),
        _ => return wrong(at, "delta of a payload in a file", CodecErrorWhy::Unknown(kind)),
    }
    Ok(delta)
}

fn read_of_kind(kind: u8, at: usize, from: &mut Reader<'_>) -> Result<Delta, CodecError> {
    Ok(match kind {
        kind::NAME => {
            let kind = read_kind(from)?;
            Delta::Name(kind, read_name(from, kind)?)
        }
        kind::SEEN => Delta::Seen(from.id("worker")?, from.moment("now")?),
        kind::PUT => Delta::Put(read_put(from)?),
        kind::SPAWN => Delta::Spawn {
            template: from.id("template")?,
            jid: from.jid("jid")?,
            count: from.number("count")?,
            at: from.moment("at")?,
            next: from.moment("next")?,
            now: from.moment("now")?,
        },
        kind::PROMOTE => Delta::Promote(from.id("row")?, from.moment("now")?),
        kind::POP => Delta::Pop {
            row: from.id("row")?,
            worker: from.id("worker")?,
            now: from.moment("now")?,
            expires: from.moment("expires")?,
        },
        kind::WARN => {
            Delta::Warn { row: from.id("row")?, now: from.moment("now")?, until: from.moment("until")? }
        }
        kind::SPEND_RETRY => Delta::SpendRetry(from.id("row")?),
        kind::HEARTBEAT => Delta::Heartbeat {
            row: from.id("row")?,
            expires: from.moment("expires")?,
            payload: from.optional("payload", Reader::payload)?,
        },
        kind::COMPLETE => Delta::Complete {
            row: from.id("row")?,
            now: from.moment("now")?,
            payload: from.optional("payload", Reader::payload)?,
        },
        kind::ADVANCE => Delta::Advance(Box::new(read_advance(from)?)),
        kind::FAIL => Delta::Fail(Box::new(FailDelta {
            row: from.id("row")?,
            now: from.moment("now")?,
            failure: read_failure(from)?,
            by_worker: from.flag("by_worker")?,
            payload: from.optional("payload", Reader::payload)?,
        })),
        kind::RETRY => Delta::Retry {
            row: from.id("row")?,
            now: from.moment("now")?,
            due: from.optional("due", Reader::moment)?,
            failure: from.optional("failure", |from, _| read_failure(from).map(Box::new))?,
        },
        kind::TIMEOUT => Delta::Timeout(from.id("row")?, from.moment("now")?),
        kind::REMOVE => Delta::Remove(from.id("row")?),
        kind::UNFAIL => Delta::Unfail(from.id("row")?, from.id("queue")?, from.moment("now")?),
        kind::PRIORITY => Delta::Priority(from.id("row")?, from.finite("priority", Priority::new)?),
        kind::DEPEND => Delta::Depend(from.id("row")?, from.ids("depends")?),
        kind::UNDEPEND => Delta::Undepend(from.id("row")?, from.ids("depends")?, from.moment("now")?),
        kind::LOG => Delta::Log {
            row: from.id("row")?,
            now: from.moment("now")?,
            message: from.text("message")?.into(),
            data: from.optional("data", Reader::text)?.map(Into::into),
        },
        kind::TRACK => Delta::Track(from.jid("jid")?, from.moment("now")?),
        kind::UNTRACK => Delta::Untrack(from.jid("jid")?),
        kind::TAG => Delta::Tag(from.id("row")?, from.tag("tag")?, from.moment("now")?),
        kind::UNTAG => Delta::Untag(from.id("row")?, from.tag("tag")?),
        kind::PAUSE => Delta::Pause(from.id("queue")?, from.flag("paused")?),
        kind::FORGET_QUEUE => Delta::ForgetQueue(from.id("queue")?),
        kind::FORGET_WORKER => Delta::ForgetWorker(from.id("worker")?),
        kind::AGE_WORKER => Delta::AgeWorker(from.id("worker")?),
        kind::CONFIG => {
            Delta::Config(from.text("option")?.into(), from.optional("value", Reader::text)?.map(Into::into))
        }
        kind::RECUR => Delta::Recur(Box::new(read_recur(from)?)),
        kind::UNRECUR => Delta::Unrecur(from.id("template")?),
        kind::EPOCH => Delta::Epoch(from.number_to(EPOCH_MAX, "epoch")?),
        other => match extensions::read(other, from)? {
            Some(delta) => delta,
            None => return wrong(at, "kind of delta", CodecErrorWhy::Unknown(other)),
        },
    })
}

fn kind_byte(kind: Kind) -> u8 {
    match kind {
        Kind::Queue => 0,
        Kind::Klass => 1,
        Kind::Worker => 2,
        Kind::Group => 3,
    }
}

fn read_kind(from: &mut Reader<'_>) -> Result<Kind, CodecError> {
    let at = from.at();
    Ok(match from.byte("kind of name")? {
        0 => Kind::Queue,
        1 => Kind::Klass,
        2 => Kind::Worker,
        3 => Kind::Group,
        other => return wrong(at, "kind of name", CodecErrorWhy::Unknown(other)),
    })
}

fn read_name(from: &mut Reader<'_>, kind: Kind) -> Result<Arc<str>, CodecError> {
    from.name("name", |text| {
        match kind {
            Kind::Queue => QueueName::of_function(text).map(drop),
            Kind::Klass => Klass::of_function(text).map(drop),
            Kind::Worker => WorkerName::new(text).map(drop),
            Kind::Group => Group::new(text).map(drop),
        }?;
        Ok(Arc::from(text))
    })
}

fn write_put<'w, 'a>(to: &'w mut Writer<'a>, put: &PutDelta) -> &'w mut Writer<'a> {
    let prioritised = put.priority != Priority::ZERO;
    let present = [
        (put.row.is_some(), has::ROW),
        (prioritised, has::PRIORITY),
        (put.due.is_some(), has::DUE),
        (put.tags.is_some(), has::TAGS),
        (put.depends.is_some(), has::DEPENDS),
    ];
    to.byte(present.iter().filter(|(present, _)| *present).fold(0, |bits, (_, bit)| bits | bit));
    if let Some(row) = put.row {
        to.id(row);
    }
    to.jid(&put.jid).moment(put.now).id(put.queue).id(put.klass).payload(&put.payload);
    if prioritised {
        to.double(put.priority.get());
    }
    to.id(put.retries);
    if let Some(due) = put.due {
        to.moment(due);
    }
    if let Some(tags) = &put.tags {
        to.list(tags, Writer::tag);
    }
    if let Some(depends) = &put.depends {
        to.ids(depends);
    }
    to
}

fn read_put(from: &mut Reader<'_>) -> Result<PutDelta, CodecError> {
    let at = from.at();
    let bits = from.byte("bits of a put")?;
    if bits & !has::ALL != 0 {
        return wrong(at, "bits of a put", CodecErrorWhy::Unknown(bits));
    }
    let has = |bit| bits & bit != 0;
    Ok(PutDelta {
        row: has(has::ROW).then(|| from.id("row")).transpose()?,
        jid: from.jid("jid")?,
        now: from.moment("now")?,
        queue: from.id("queue")?,
        klass: from.id("klass")?,
        payload: from.payload("payload")?,
        priority: if has(has::PRIORITY) { read_priority(from)? } else { Priority::ZERO },
        retries: from.id("retries")?,
        due: has(has::DUE).then(|| from.moment("due")).transpose()?,
        tags: has(has::TAGS).then(|| from.tags("tags")).transpose()?,
        depends: has(has::DEPENDS).then(|| from.ids("depends")).transpose()?,
    })
}

/// A put's priority; zero is never encoded.
fn read_priority(from: &mut Reader<'_>) -> Result<Priority, CodecError> {
    let at = from.at();
    let priority = from.finite("priority", Priority::new)?;
    if priority == Priority::ZERO { wrong(at, "priority", CodecErrorWhy::Overlong) } else { Ok(priority) }
}

fn write_advance<'w, 'a>(to: &'w mut Writer<'a>, advance: &AdvanceDelta) -> &'w mut Writer<'a> {
    to.id(advance.row).moment(advance.now).id(advance.queue).optional(advance.due, Writer::moment);
    to.ids(&advance.depends).optional(advance.payload.as_ref(), Writer::payload);
    to.byte(match advance.reply {
        CompleteReply::Complete => 0,
        CompleteReply::Waiting => 1,
        CompleteReply::Scheduled => 2,
        CompleteReply::Depends => 3,
    })
}

fn read_advance(from: &mut Reader<'_>) -> Result<AdvanceDelta, CodecError> {
    Ok(AdvanceDelta {
        row: from.id("row")?,
        now: from.moment("now")?,
        queue: from.id("queue")?,
        due: from.optional("due", Reader::moment)?,
        depends: from.ids("depends")?,
        payload: from.optional("payload", Reader::payload)?,
        reply: {
            let at = from.at();
            match from.byte("reply")? {
                0 => CompleteReply::Complete,
                1 => CompleteReply::Waiting,
                2 => CompleteReply::Scheduled,
                3 => CompleteReply::Depends,
                other => return wrong(at, "reply", CodecErrorWhy::Unknown(other)),
            }
        },
    })
}

fn write_failure<'w, 'a>(to: &'w mut Writer<'a>, failure: &FailureDelta) -> &'w mut Writer<'a> {
    to.id(failure.group).text(&failure.message).moment(failure.when).optional(failure.worker, Writer::id)
}

fn read_failure(from: &mut Reader<'_>) -> Result<FailureDelta, CodecError> {
    Ok(FailureDelta {
        group: from.id("group")?,
        message: from.text("message")?.into(),
        when: from.moment("when")?,
        worker: from.optional("worker", Reader::id)?,
    })
}

fn write_recur<'w, 'a>(to: &'w mut Writer<'a>, recur: &RecurDelta) -> &'w mut Writer<'a> {
    let Every::Interval(interval) = recur.every;
    to.optional(recur.template, Writer::id).jid(&recur.jid).id(recur.queue).id(recur.klass);
    to.payload(&recur.payload).double(recur.priority.get()).id(recur.retries).list(&recur.tags, Writer::tag);
    to.byte(INTERVAL).double(interval.get()).id(recur.backlog).moment(recur.next);
    to.flag(recur.arrives).optional(recur.registers, Writer::moment)
}

fn read_recur(from: &mut Reader<'_>) -> Result<RecurDelta, CodecError> {
    Ok(RecurDelta {
        template: from.optional("template", Reader::id)?,
        jid: from.jid("jid")?,
        queue: from.id("queue")?,
        klass: from.id("klass")?,
        payload: from.payload("payload")?,
        priority: from.finite("priority", Priority::new)?,
        retries: from.id("retries")?,
        tags: from.tags("tags")?,
        every: {
            let at = from.at();
            match from.byte("every")? {
                INTERVAL => Every::Interval(from.finite("interval", Seconds::new)?),
                other => return wrong(at, "every", CodecErrorWhy::Unknown(other)),
            }
        },
        backlog: from.id("backlog")?,
        next: from.moment("next")?,
        arrives: from.flag("arrives")?,
        registers: from.optional("registers", Reader::moment)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_take_a_byte_for_each_seven_bits() {
        for (number, bytes) in [
            (0, &[0x00][..]),
            (0x7f, &[0x7f][..]),
            (0x80, &[0x80, 0x01][..]),
            (0x3fff, &[0xff, 0x7f][..]),
            (0x4000, &[0x80, 0x80, 0x01][..]),
            (u64::from(u32::MAX), &[0xff, 0xff, 0xff, 0xff, 0x0f][..]),
            (u64::MAX, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01][..]),
        ] {
            let mut written = Vec::new();
            Writer::new(&mut written).number(number);
            assert_eq!(written, bytes);
            assert_eq!(Reader::new(&written).number("n"), Ok(number));
        }
        for (number, bytes) in [
            (0, &[0x00][..]),
            (-1, &[0x01][..]),
            (1, &[0x02][..]),
            (-64, &[0x7f][..]),
            (64, &[0x80, 0x01][..]),
            (i64::MAX, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01][..]),
            (i64::MIN, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01][..]),
        ] {
            let mut written = Vec::new();
            Writer::new(&mut written).signed(number);
            assert_eq!(written, bytes);
            assert_eq!(Reader::new(&written).signed("n"), Ok(number));
        }
    }
}
