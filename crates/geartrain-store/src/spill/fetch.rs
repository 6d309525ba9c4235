//! Fetch: reads spilled payloads back into the replies that hold only their locations.
//!
//! The committer reads most of them. Large payloads are read by a thread of their own, so that no commit
//! waits for them.

use flume::Sender;
use geartrain_core::{
    Answer, Jid, Job, Payload, Popped, Refusal, Reply, SelectReply, Selected, TrackedReply,
};

use crate::publish::{PendingReply, Publication};
use crate::spill::files::PayloadReader;

/// Reads the payloads of all replies, or leaves large ones to another thread. A reply whose payload cannot be
/// read becomes a refusal.
pub(crate) fn fetch(publication: &mut Publication, from: &mut PayloadReader) {
    for mut reply in std::mem::take(&mut publication.replies) {
        fetch_one(&mut reply, from);
        match from.take_deferred() {
            None => publication.replies.push(reply),
            Some(from) => publication.unread.push(Unread { reply, from }),
        }
    }
}

fn fetch_one(reply: &mut PendingReply, from: &mut PayloadReader) {
    match reply {
        PendingReply::Batch { reply, .. } => {
            reply.reply_mut().answers.iter_mut().for_each(|answer| for_answer(answer, from))
        }
        PendingReply::Pop(_, reply) => {
            let answer = reply.reply_mut();
            if let Ok(reply) = answer
                && let Err(refusal) = for_pop(&mut reply.jobs, from)
            {
                *answer = Err(refusal);
            }
        }
        // Items of result streams are never spilled.
        PendingReply::Ready(..) | PendingReply::Subscribe(..) | PendingReply::OpenResultStream(..) => {}
    }
}

/// A reply with large payloads that are not read yet, and their files.
pub(crate) struct Unread {
    pub(crate) reply: PendingReply,
    from: PayloadReader,
}

impl Unread {
    /// Reads the payloads, which completes the reply.
    pub(crate) fn read(mut self) -> PendingReply {
        fetch_one(&mut self.reply, &mut self.from);
        self.reply
    }
}

/// The thread that reads large payloads and sends the replies. It starts with the first one, and ends when
/// all are sent and this is dropped.
#[derive(Default)]
pub(crate) struct LargeReader(Option<Sender<Unread>>);

impl LargeReader {
    /// Sends a reply once its payloads are read.
    pub(crate) fn send(&mut self, unread: Unread) {
        let to_send = match self.0.get_or_insert_with(start).try_send(unread) {
            Ok(()) => return,
            Err(error) => error.into_inner(),
        };
        // If the thread could not be started, this thread reads.
        to_send.read().send();
    }
}

fn start() -> Sender<Unread> {
    // Unbounded: queued replies are small, because their payloads are not read yet.
    let (requests, inbox) = flume::unbounded::<Unread>();
    let run = move || inbox.iter().for_each(|unread| unread.read().send());
    // If the thread cannot be started, its receiver is dropped and `send` reads itself.
    drop(std::thread::Builder::new().name("geartrain-read".into()).spawn(run));
    requests
}

fn for_answer(answer: &mut Answer, from: &mut PayloadReader) {
    let Ok(reply) = answer else { return };
    let fetched = match reply {
        Reply::Pop(reply) => for_pop(&mut reply.jobs, from),
        Reply::Relock(jobs) => for_pop(jobs, from),
        Reply::Get(Some(job)) => for_job(job, from),
        Reply::GetMany(jobs) | Reply::Peek(jobs) | Reply::Tracked(TrackedReply { jobs, .. }) => {
            jobs.iter_mut().try_for_each(|job| for_job(job, from))
        }
        Reply::SetAside(reply) => reply.jobs.iter_mut().try_for_each(|job| for_job(job, from)),
        Reply::Select(reply) => {
            for_select(reply, from);
            Ok(())
        }
        Reply::Act(reply) => {
            if let Some(unread) = reply.unread.take() {
                let decided = unread.decide(|payload| load(payload, from));
                reply.again.extend(decided.matching.into_iter().map(|job| job.jid));
                reply.unread = decided.left;
            }
            Ok(())
        }
        // Recurring jobs keep their payloads in memory, and other replies have none.
        _ => Ok(()),
    };
    if let Err(refusal) = fetched {
        *answer = Err(refusal);
    }
}

/// Adds the jobs whose payloads match to a page. One that cannot be read does not match.
fn for_select(reply: &mut SelectReply, from: &mut PayloadReader) {
    if let Some(unread) = reply.unread.take() {
        let decided = unread.decide(|payload| load(payload, from));
        reply.jobs.extend(decided.matching);
        reply.jobs.sort_unstable_by(Selected::order);
        reply.not_json += decided.not_json;
        reply.unread = decided.left;
    }
}

/// Loads a payload, or leaves its location if its read is deferred. Returns whether it can be read.
fn load(payload: &mut Payload, from: &mut PayloadReader) -> bool {
    match payload.spill_location().map(|location| from.read_or_defer(location)) {
        Some(Ok(loaded)) => *payload = loaded,
        Some(Err(_)) => return false,
        None => {}
    }
    true
}

/// A job whose payload cannot be read is left out, so that the other jobs need not wait for their locks to
/// expire. Its own lock expires, again and again, until it has no retries left and fails. If there is no
/// other job, the reply is the refusal.
fn for_pop(jobs: &mut Vec<Popped>, from: &mut PayloadReader) -> Result<(), Refusal> {
    let mut unreadable = Ok(());
    jobs.retain_mut(|job| {
        let fetched = for_popped(job, from);
        let is_readable = fetched.is_ok();
        unreadable = std::mem::replace(&mut unreadable, Ok(())).and(fetched);
        is_readable
    });
    if jobs.is_empty() { unreadable } else { Ok(()) }
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
    if let Some(location) = payload.spill_location() {
        let unreadable = |why: crate::spill::files::UnreadablePayload| Refusal::Unreadable {
            jid: jid.clone(),
            why: why.to_string(),
        };
        *payload = from.read_or_defer(location).map_err(unreadable)?;
    }
    Ok(())
}
