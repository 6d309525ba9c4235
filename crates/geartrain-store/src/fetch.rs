//! Puts payloads into answers that only say where they are.

use geartrain_core::{Answer, Jid, Job, Payload, PopReply, Popped, Refusal, Reply, TrackedReply};

use crate::delivery::{Outcome, Outgoing};
use crate::payloads::PayloadReader;

/// Puts all payloads into all answers. Where one cannot be read, the answer says so instead.
pub(crate) fn fetch(outcome: &mut Outcome, from: &mut PayloadReader) {
    for outgoing in &mut outcome.outgoing {
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
    if let Some(place) = payload.place() {
        let unreadable =
            |why: crate::payloads::Unreadable| Refusal::Unreadable { jid: jid.clone(), why: why.to_string() };
        *payload = from.read(place).map_err(unreadable)?;
    }
    Ok(())
}
