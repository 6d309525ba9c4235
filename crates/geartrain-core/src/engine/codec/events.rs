//! Event codec: a byte for the kind, then the fields in order.

use super::reader::wrong;
use super::{CodecError, CodecErrorWhy, Reader, Writer};
use crate::{Event, FailedBy, Group, Milestone, QueueName, WorkerName};

type Read<T> = Result<T, CodecError>;

pub(crate) fn write<'w, 'a>(event: &Event, to: &'w mut Writer<'a>) -> &'w mut Writer<'a> {
    match event {
        Event::Put { jid, queue } => to.byte(0).jid(jid).text(queue.as_str()),
        Event::Popped { jid, queue, worker } => {
            to.byte(1).jid(jid).text(queue.as_str()).text(worker.as_str())
        }
        Event::Completed { jid, queue } => to.byte(2).jid(jid).text(queue.as_str()),
        Event::Advanced { jid, queue, to: next } => {
            to.byte(3).jid(jid).text(queue.as_str()).text(next.as_str())
        }
        Event::Retried { jid, queue } => to.byte(4).jid(jid).text(queue.as_str()),
        Event::Failed { jid, queue, worker, group, message, by } => {
            let to = to.byte(5).jid(jid).text(queue.as_str());
            let to = to.optional(worker.as_ref(), |to, worker| to.text(worker.as_str()));
            to.text(group.as_str()).text(message).byte(failed_by(*by))
        }
        Event::Canceled { jid, was } => to.byte(6).jid(jid).optional(was.as_ref(), |to, (queue, worker)| {
            to.text(queue.as_str()).optional(worker.as_ref(), |to, worker| to.text(worker.as_str()))
        }),
        Event::LockLost { jid, worker } => to.byte(7).jid(jid).text(worker.as_str()),
        Event::ConfigSet { option, value } => to.byte(8).text(option).text(value),
        Event::ConfigUnset { option } => to.byte(9).text(option),
        Event::Track { jid } => to.byte(10).jid(jid),
        Event::Untrack { jid } => to.byte(11).jid(jid),
        Event::Milestone { jid, what } => to.byte(12).jid(jid).byte(milestone(*what)),
        Event::Coalesced { jid, queue, submissions } => {
            to.byte(13).jid(jid).text(queue.as_str()).number(*submissions)
        }
        Event::Abandoned { jid, queue } => to.byte(14).jid(jid).text(queue.as_str()),
        Event::Progress { jid, progress } => to.byte(15).jid(jid).progress(progress),
        Event::ResultStored { jid } => to.byte(16).jid(jid),
        Event::Released { jid, queue, worker, crashed } => {
            to.byte(17).jid(jid).text(queue.as_str()).text(worker.as_str()).flag(*crashed)
        }
        Event::Announced { worker } => to.byte(18).text(worker.as_str()),
        Event::WorkerLost { worker } => to.byte(19).text(worker.as_str()),
        Event::LimitsSet { queue } => to.byte(20).text(queue.as_str()),
    }
}

pub(crate) fn read(from: &mut Reader<'_>) -> Read<Event> {
    let at = from.at();
    Ok(match from.byte("kind of event")? {
        0 => Event::Put { jid: from.jid("jid")?, queue: from.queue()? },
        1 => Event::Popped { jid: from.jid("jid")?, queue: from.queue()?, worker: from.worker()? },
        2 => Event::Completed { jid: from.jid("jid")?, queue: from.queue()? },
        3 => Event::Advanced { jid: from.jid("jid")?, queue: from.queue()?, to: from.queue()? },
        4 => Event::Retried { jid: from.jid("jid")?, queue: from.queue()? },
        5 => Event::Failed {
            jid: from.jid("jid")?,
            queue: from.queue()?,
            worker: from.optional("worker", |from, _| from.worker())?,
            group: from.group()?,
            message: from.text("message")?.to_owned(),
            by: read_failed_by(from)?,
        },
        6 => Event::Canceled {
            jid: from.jid("jid")?,
            was: from.optional("where it was", |from, _| {
                Ok((from.queue()?, from.optional("worker", |from, _| from.worker())?))
            })?,
        },
        7 => Event::LockLost { jid: from.jid("jid")?, worker: from.worker()? },
        8 => Event::ConfigSet {
            option: from.text("option")?.to_owned(),
            value: from.text("value")?.to_owned(),
        },
        9 => Event::ConfigUnset { option: from.text("option")?.to_owned() },
        10 => Event::Track { jid: from.jid("jid")? },
        11 => Event::Untrack { jid: from.jid("jid")? },
        12 => Event::Milestone { jid: from.jid("jid")?, what: read_milestone(from)? },
        13 => Event::Coalesced {
            jid: from.jid("jid")?,
            queue: from.queue()?,
            submissions: from.number("submissions")?,
        },
        14 => Event::Abandoned { jid: from.jid("jid")?, queue: from.queue()? },
        15 => Event::Progress { jid: from.jid("jid")?, progress: from.progress()? },
        16 => Event::ResultStored { jid: from.jid("jid")? },
        17 => Event::Released {
            jid: from.jid("jid")?,
            queue: from.queue()?,
            worker: from.worker()?,
            crashed: from.flag("crashed")?,
        },
        18 => Event::Announced { worker: from.worker()? },
        19 => Event::WorkerLost { worker: from.worker()? },
        20 => Event::LimitsSet { queue: from.queue()? },
        other => return wrong(at, "kind of event", CodecErrorWhy::Unknown(other)),
    })
}

/// Causes of failure; the index is the encoded byte.
const FAILED_BY: [FailedBy; 9] = [
    FailedBy::Worker,
    FailedBy::Expiry,
    FailedBy::Retry,
    FailedBy::WorkerLost,
    FailedBy::Crashes,
    FailedBy::Deadline,
    FailedBy::Expired,
    FailedBy::Upstream,
    FailedBy::Moved,
];

const MILESTONES: [Milestone; 6] = [
    Milestone::Put,
    Milestone::Popped,
    Milestone::Stalled,
    Milestone::Completed,
    Milestone::Failed,
    Milestone::Canceled,
];

fn failed_by(by: FailedBy) -> u8 {
    FAILED_BY.iter().position(|other| *other == by).expect("all of them are listed") as u8
}

fn milestone(what: Milestone) -> u8 {
    MILESTONES.iter().position(|other| *other == what).expect("all of them are listed") as u8
}

fn read_failed_by(from: &mut Reader<'_>) -> Read<FailedBy> {
    let (at, byte) = (from.at(), from.byte("what made it fail")?);
    let by = FAILED_BY.get(usize::from(byte)).copied();
    by.map_or_else(|| wrong(at, "what made it fail", CodecErrorWhy::Unknown(byte)), Ok)
}

fn read_milestone(from: &mut Reader<'_>) -> Read<Milestone> {
    let (at, byte) = (from.at(), from.byte("milestone")?);
    let what = MILESTONES.get(usize::from(byte)).copied();
    what.map_or_else(|| wrong(at, "milestone", CodecErrorWhy::Unknown(byte)), Ok)
}

impl Reader<'_> {
    pub(crate) fn queue(&mut self) -> Read<QueueName> {
        self.name("queue", QueueName::of_function)
    }

    pub(crate) fn worker(&mut self) -> Read<WorkerName> {
        self.name("worker", WorkerName::new)
    }

    pub(crate) fn group(&mut self) -> Read<Group> {
        self.name("group", Group::new)
    }
}
