//! Puts payloads into answers that only say where they are.
//!
//! The committer does so for most. Large payloads are read by a thread of their own, so that no commit waits
//! for them.

use flume::Sender;
use geartrain_core::{Answer, Jid, Job, Payload, PopReply, Popped, Refusal, Reply, TrackedReply};

use crate::delivery::{Outcome, Outgoing};
use crate::payloads::PayloadReader;

/// Puts all payloads into all answers, or leaves large ones to another thread. Where one cannot be read, the
/// answer says so instead.
pub(crate) fn fetch(outcome: &mut Outcome, from: &mut PayloadReader) {
    for mut outgoing in std::mem::take(&mut outcome.outgoing) {
        fetch_one(&mut outgoing, from);
        match from.take_deferred() {
            None => outcome.outgoing.push(outgoing),
            Some(from) => outcome.unread.push(Unread { outgoing, from }),
        }
    }
}

fn fetch_one(outgoing: &mut Outgoing, from: &mut PayloadReader) {
    match outgoing {
        Outgoing::Batch { answered, .. } => {
            answered.answers.iter_mut().for_each(|answer| for_answer(answer, from))
        }
        Outgoing::Pop(_, answer) => {
            if let Ok(reply) = answer
                && let Err(refusal) = for_pop(reply, from)
            {
                *answer = Err(refusal);
            }
        }
        // What those are told who wait is always there.
        Outgoing::Ready(..) | Outgoing::Subscribe(..) | Outgoing::Follow(..) => {}
    }
}

/// An answer with large payloads that are not read yet, and their files.
pub(crate) struct Unread {
    pub(crate) outgoing: Outgoing,
    from: PayloadReader,
}

impl Unread {
    /// Reads the payloads. The answer is complete then.
    pub(crate) fn read(mut self) -> Outgoing {
        fetch_one(&mut self.outgoing, &mut self.from);
        self.outgoing
    }
}

/// The thread that reads large payloads and sends the answers. It starts with the first of them, and ends
/// when all are sent and this is dropped.
#[derive(Default)]
pub(crate) struct LargeReader(Option<Sender<Unread>>);

impl LargeReader {
    /// Sends an answer once its payloads are read.
    pub(crate) fn send(&mut self, unread: Unread) {
        let to_send = match self.0.get_or_insert_with(start).try_send(unread) {
            Ok(()) => return,
            Err(error) => error.into_inner(),
        };
        // Without another thread it is this one.
        to_send.read().send();
    }
}

fn start() -> Sender<Unread> {
    // It has no limit: what waits is small, because nothing of it is read yet.
    let (orders, inbox) = flume::unbounded::<Unread>();
    let run = move || inbox.iter().for_each(|unread| unread.read().send());
    // If there is no thread, neither is there anybody to take an order.
    drop(std::thread::Builder::new().name("geartrain-read".into()).spawn(run));
    orders
}

fn for_answer(answer: &mut Answer, from: &mut PayloadReader) {
    let Ok(reply) = answer else { return };
    let fetched = match reply {
        Reply::Pop(reply) => for_pop(reply, from),
        Reply::Get(Some(job)) => for_job(job, from),
        Reply::GetMany(jobs) | Reply::Peek(jobs) | Reply::Tracked(TrackedReply { jobs, .. }) => {
            jobs.iter_mut().try_for_each(|job| for_job(job, from))
        }
        // Recurring jobs keep theirs in memory, and nobody else has any.
        _ => Ok(()),
    };
    if let Err(refusal) = fetched {
        *answer = Err(refusal);
    }
}

/// A job whose payload cannot be read is left out, so that the others need not wait for their locks to run out. Its own lock runs out, again and
/// again, until it has no retries left and is failed. If there is no other, the answer is that it cannot be read.
fn for_pop(reply: &mut PopReply, from: &mut PayloadReader) -> Result<(), Refusal> {
    let mut unreadable = Ok(());
    reply.jobs.retain_mut(|job| {
        let fetched = for_popped(job, from);
        let is_readable = fetched.is_ok();
        unreadable = std::mem::replace(&mut unreadable, Ok(())).and(fetched);
        is_readable
    });
    if reply.jobs.is_empty() { unreadable } else { Ok(()) }
}

fn for_popped(popped: &mut Popped, from: &mut PayloadReader) -> Result<(), Refusal> {
    one(&popped.jid, &mut popped.payload, from)?;
    if let Some(job) = &mut popped.job {
        job.payload = popped.payload.clone();
    }
    Ok(())
}

fn for_job(job: &mut Job, from: &mut PayloadReader) -> Result<(), Refusal> {
    one(&job.jid, &mut job.payload, from)
}

fn one(jid: &Jid, payload: &mut Payload, from: &mut PayloadReader) -> Result<(), Refusal> {
    if let Some(place) = payload.spill_location() {
        let unreadable =
            |why: crate::payloads::Unreadable| Refusal::Unreadable { jid: jid.clone(), why: why.to_string() };
        *payload = from.read_or_defer(place).map_err(unreadable)?;
    }
    Ok(())
}
