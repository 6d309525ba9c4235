//! The native API over RESP (docs/formats/wire.md): batches of commands, parked pops, and events.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::try_join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use geartrain_core::wire::{self, EventRecord, EventsReply, ParkReply, ParkedPop, ParkedPopNotice, Request};
use geartrain_core::{
    Answer, Backend, BackendError, Call, Command, PopReply, QueueName, Refusal, Release, Reply, Seconds,
};
use geartrain_front::{PIECE_BYTES, Pieces, RepeatedWarning, encode_off_thread};
use tokio_util::sync::CancellationToken;

use crate::connection::with_causes;
use crate::flush::flush_refusal;
use crate::outbox::Push;

/// Our functions' names start with this.
const NAME: &[u8] = b"geartrain_";
/// How many pops one connection may park.
const PARKED_MAX: usize = 10_000;

/// How many answered pops are remembered.
const ANSWERED_MAX: usize = 1_000;

/// Approximate size of a job on the wire besides its payload.
const JOB_BYTES: usize = 256;

static WAIT_FAILED: RepeatedWarning = RepeatedWarning::new();

/// Decodes `FCALL geartrain_<hash> 1 <prefix> <request>`; the error is the reply.
pub(crate) fn read(request: &[Bytes], allow_flush: bool) -> Result<Request, String> {
    let [_, name, keys, rest @ ..] = request else {
        return Err("ERR wrong number of arguments for 'fcall' command".to_owned());
    };
    if !name.starts_with(NAME) {
        return Err("ERR Function not found".to_owned());
    }
    let (true, [prefix, request]) = (keys == "1", rest) else {
        return Err(
            "ERR a call of geartrain has one key, the prefix, and one argument, the request".to_owned()
        );
    };
    if !prefix.is_empty() {
        return Err("ERR a geartrain server has one namespace: the prefix must be empty".to_owned());
    }
    let request = Request::decode(request).map_err(|error| format!("ERR {error}"))?;
    if let Request::Batch(calls) = &request
        && !allow_flush
        && calls.iter().any(|call| matches!(call.command, Command::Flush(_)))
    {
        return Err(flush_refusal("Flush"));
    }
    Ok(request)
}

/// How the reply to a native call is made from the answers of its batch.
pub(crate) enum PendingReply {
    /// The number of commands.
    Batch(usize),
    /// Parked pops, and whether each is new: a new one has a pop or a readiness check in the batch, and is
    /// parked if that finds nothing.
    Park { process: String, parked: Vec<(ParkedPop, bool)> },
}

/// The commands of a call, and how its reply is made; None if the call has no commands.
pub(crate) fn commands(request: Request, parked: &ParkedPops) -> Option<(Vec<Call>, PendingReply)> {
    match request {
        Request::Batch(calls) => {
            let count = calls.len();
            Some((calls, PendingReply::Batch(count)))
        }
        Request::Park { process, now, waits, .. } => {
            // A pop that is parked already is not executed again: it would overtake those parked before it.
            let requested: Vec<(ParkedPop, bool)> = waits
                .into_iter()
                .map(|wait| {
                    let is_new = !parked.has(wait.number);
                    (wait, is_new)
                })
                .collect();
            let pops = requested.iter().filter(|(wait, is_new)| *is_new && !waits_for_readiness(wait));
            let calls = pops.map(|(wait, _)| Call { now, ..Call::from(wait.pop.clone()) }).collect();
            Some((calls, PendingReply::Park { process, parked: requested }))
        }
        _ => None,
    }
}

/// A pop of no jobs waits until there is something to pop.
fn waits_for_readiness(wait: &ParkedPop) -> bool {
    wait.pop.count.get() == 0
}

/// The answer to a wait for readiness.
fn ready_reply() -> PopReply {
    PopReply { jobs: Vec::new(), turn: 0 }
}

/// Whether there is something to pop, or the refusal.
pub(crate) type Readiness = Result<bool, Refusal>;

/// Checks readiness, for each of these lists of queues.
pub(crate) async fn check_readiness(
    readiness_checks: Vec<Vec<QueueName>>,
    backend: &dyn Backend,
) -> Result<Vec<Readiness>, BackendError> {
    let check_readiness = |queues| async move {
        match backend.ready_or_wait(queues, Seconds::ZERO).await {
            Ok(ready) => Ok(Ok(ready)),
            Err(BackendError::Refused(refusal)) => Ok(Err(refusal)),
            Err(error) => Err(error),
        }
    };
    try_join_all(readiness_checks.into_iter().map(check_readiness)).await
}

pub(crate) struct NativeReply {
    pub(crate) encoded: EncodedReply,
    /// The jobs that it hands out.
    pub(crate) jobs: Vec<Release>,
}

pub(crate) enum EncodedReply {
    Whole(Vec<u8>),
    /// Encoded piece by piece.
    Large(LargeReply),
}

pub(crate) enum LargeReply {
    Answers(wire::AnswerPieces),
    /// One piece: a parked pop is for few jobs.
    Parked(Vec<ParkReply>),
}

impl Pieces for LargeReply {
    fn write(&self, number: usize, out: &mut Vec<u8>) -> bool {
        match self {
            LargeReply::Answers(answers) => answers.write(number, out),
            LargeReply::Parked(waiting) if number == 0 => {
                out.extend(wire::encode(waiting));
                true
            }
            LargeReply::Parked(_) => false,
        }
    }
}

/// Approximate size of an encoded answer.
fn bytes(answer: &Answer) -> usize {
    let of = |payload: &geartrain_core::Payload| JOB_BYTES + payload.bytes().len();
    match answer {
        Ok(Reply::Pop(reply)) => popped_bytes(reply),
        Ok(Reply::Relock(jobs)) => jobs.iter().map(|job| of(&job.payload)).sum(),
        Ok(Reply::Get(Some(job))) => of(&job.payload),
        Ok(Reply::Periodics(reply)) => {
            reply.periodics.iter().map(|periodic| of(&periodic.template.put.payload)).sum()
        }
        Ok(Reply::DuePeriodics(reply)) => reply.due.iter().map(|due| of(&due.template.put.payload)).sum(),
        Ok(Reply::GetMany(jobs) | Reply::Peek(jobs)) => jobs.iter().map(|job| of(&job.payload)).sum(),
        Ok(Reply::SetAside(reply)) => reply.jobs.iter().map(|job| of(&job.payload)).sum(),
        Ok(Reply::Tracked(tracked)) => tracked.jobs.iter().map(|job| of(&job.payload)).sum(),
        Ok(Reply::GetResult(Some(kept))) => of(&kept.result.bytes),
        Ok(Reply::GetRecurring(Some(recurring))) => of(&recurring.payload),
        _ => 0,
    }
}

fn popped_bytes(reply: &PopReply) -> usize {
    reply.jobs.iter().map(|job| JOB_BYTES + job.payload.bytes().len()).sum()
}

impl PendingReply {
    /// The queues of each new wait for readiness.
    pub(crate) fn readiness_checks(&self) -> Vec<Vec<QueueName>> {
        match self {
            PendingReply::Batch(_) => Vec::new(),
            PendingReply::Park { parked, .. } => {
                let waits = parked.iter().filter(|(wait, is_new)| *is_new && waits_for_readiness(wait));
                waits.map(|(wait, _)| wait.pop.queues.clone()).collect()
            }
        }
    }

    /// The reply. Pops that found nothing are parked.
    pub(crate) fn reply(
        self,
        answers: &mut impl Iterator<Item = Answer>,
        readiness: &mut impl Iterator<Item = Readiness>,
        backend: &Arc<dyn Backend>,
        waiting: &mut ParkedPops,
    ) -> NativeReply {
        match self {
            PendingReply::Batch(count) => {
                let answers: Vec<Answer> = answers.take(count).collect();
                let jobs = Release::of_answers(&answers);
                let encoded = if answers.iter().map(bytes).sum::<usize>() < PIECE_BYTES {
                    EncodedReply::Whole(wire::encode_answers(&answers))
                } else {
                    EncodedReply::Large(LargeReply::Answers(wire::AnswerPieces::new(answers)))
                };
                NativeReply { encoded, jobs }
            }
            PendingReply::Park { process, parked } => {
                let replies = parked.into_iter().map(|(wait, is_new)| {
                    if !is_new {
                        return ParkReply::Parked { next: None };
                    }
                    let found = if waits_for_readiness(&wait) {
                        readiness.next().map(|readiness| readiness.map(|ready| ready.then(ready_reply)))
                    } else {
                        answers.next().map(|answer| answer.map(jobs))
                    };
                    match found {
                        Some(Err(refusal)) => ParkReply::Refused(refusal),
                        Some(Ok(Some(reply))) => ParkReply::Popped(reply),
                        Some(Ok(None)) | None => waiting.park(&process, wait, backend),
                    }
                });
                let replies: Vec<ParkReply> = replies.collect();
                let popped = replies.iter().filter_map(|reply| match reply {
                    ParkReply::Popped(reply) => Some(reply),
                    _ => None,
                });
                let jobs = popped.clone().flat_map(|reply| &reply.jobs).map(Release::of).collect();
                let encoded = if popped.map(popped_bytes).sum::<usize>() < PIECE_BYTES {
                    EncodedReply::Whole(wire::encode(&replies))
                } else {
                    EncodedReply::Large(LargeReply::Parked(replies))
                };
                NativeReply { encoded, jobs }
            }
        }
    }
}

/// The jobs that a pop found, if any.
fn jobs(reply: Reply) -> Option<PopReply> {
    match reply {
        Reply::Pop(reply) if !reply.jobs.is_empty() => Some(reply),
        _ => None,
    }
}

/// Executes calls without commands.
pub(crate) async fn answer(
    request: Request,
    backend: &dyn Backend,
    parked: &mut ParkedPops,
) -> Result<Vec<u8>, BackendError> {
    match request {
        Request::Unpark { number, .. } => {
            parked.unpark(number);
            Ok(wire::encode(&()))
        }
        Request::Listen { .. } => {
            // From the first subscription on events are retained, whether or not it goes on.
            Ok(wire::encode(&backend.subscribe().await?.position()))
        }
        Request::Since { after, count } => {
            let events: EventsReply = match backend.subscribe_from(after).await {
                Ok(mut stream) => {
                    let mut events = Vec::new();
                    // Retained events are there without waiting.
                    while events.len() < count.get()
                        && let Some(Ok(published)) = stream.next().now_or_never()
                    {
                        events.push(EventRecord::from(&published));
                    }
                    Ok(events)
                }
                Err(BackendError::Refused(refusal)) => Err(refusal),
                Err(error) => return Err(error),
            };
            Ok(wire::encode(&events))
        }
        _ => Err(Refusal::Unsupported {
            operation: "execute this request of a newer client".into(),
            backend: "chosen".into(),
        }
        .into()),
    }
}

/// A parked pop that has ended, and its result; None if it was cancelled or timed out without readiness.
pub(crate) type Unparked = (u64, Option<Result<PopReply, BackendError>>);

/// The parked pops of one connection.
#[derive(Default)]
pub(crate) struct ParkedPops {
    /// Those not cancelled, with the channel for the answer and the token that cancels them.
    wanted: HashMap<u64, (Bytes, CancellationToken)>,
    running: FuturesUnordered<Pin<Box<dyn Future<Output = Unparked> + Send>>>,
    /// Those that ended when they were first polled.
    finished: VecDeque<Unparked>,
    /// The last that were answered: a client that asks for one of these again has not read the answer yet.
    answered: VecDeque<u64>,
}

impl ParkedPops {
    fn has(&self, number: u64) -> bool {
        self.wanted.contains_key(&number) || self.answered.contains(&number)
    }

    fn park(&mut self, process: &str, wait: ParkedPop, backend: &Arc<dyn Backend>) -> ParkReply {
        if wait.wait <= Seconds::ZERO || self.has(wait.number) {
            return ParkReply::Parked { next: None };
        }
        if self.wanted.len() >= PARKED_MAX {
            let why = format!("of one connection must be at most {PARKED_MAX}");
            return ParkReply::Refused(Refusal::BadArgument { what: "waits".into(), why });
        }
        let (number, cancelled, backend) = (wait.number, CancellationToken::new(), backend.clone());
        let channel = format!("gt:to:{process}").into();
        self.wanted.insert(number, (channel, cancelled.clone()));
        self.running.push(Box::pin(async move {
            tokio::select! {
                // First, so that a job that was popped already is not lost.
                biased;
                reply = wait_for_jobs(wait, backend) => (number, reply),
                () = cancelled.cancelled() => (number, None),
            }
        }));
        ParkReply::Parked { next: None }
    }

    fn unpark(&mut self, number: u64) {
        if let Some((_, cancelled)) = self.wanted.remove(&number) {
            cancelled.cancel();
        }
    }

    /// Registers new waits at the backend, before the client learns that they are parked: jobs put from then
    /// on are for them.
    pub(crate) async fn send(&mut self) {
        while let Some(Some(unparked)) = self.running.next().now_or_never() {
            self.finished.push_back(unparked);
        }
    }

    pub(crate) async fn next(&mut self) -> Unparked {
        if let Some(unparked) = self.finished.pop_front() {
            return unparked;
        }
        match self.running.next().await {
            Some(unparked) => unparked,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.finished.is_empty()
    }

    /// Cancels a parked pop that has ended: its client is gone.
    pub(crate) fn cancel(&mut self, (number, _): &Unparked) {
        self.unpark(*number);
    }

    /// The message that answers a parked pop, and the jobs in it. If the pop was cancelled, its jobs are
    /// released.
    pub(crate) async fn finish(
        &mut self,
        (number, reply): Unparked,
        backend: &dyn Backend,
    ) -> Option<(Push, Vec<Release>)> {
        let wanted = self.wanted.remove(&number);
        let reply = match reply? {
            Ok(reply) => Ok(reply),
            Err(BackendError::Refused(refusal)) => Err(refusal),
            Err(error) => {
                // The client sends its parked pops again soon, and then gets the error.
                WAIT_FAILED.warn(format_args!("a parked pop has failed: {}", with_causes(&error)));
                return None;
            }
        };
        let popped = reply.iter().flat_map(|reply| &reply.jobs);
        let jobs = popped.map(Release::of);
        let jobs: Vec<Release> = jobs.collect();
        let Some((channel, _)) = wanted else {
            release(jobs, backend).await;
            return None;
        };
        self.answered.truncate(ANSWERED_MAX - 1);
        self.answered.push_front(number);
        let bytes = reply.as_ref().map_or(0, popped_bytes);
        let encode = move || wire::encode(&ParkedPopNotice::Popped { number, reply });
        let Some(message) = encode_off_thread(bytes, encode).await else {
            release(jobs, backend).await;
            return None;
        };
        Some((Push::new(channel, message.into()), jobs))
    }

    /// Cancels all, and releases jobs that arrive meanwhile.
    pub(crate) async fn unpark_all(&mut self, backend: &dyn Backend) {
        for (_, (_, cancelled)) in self.wanted.drain() {
            cancelled.cancel();
        }
        while let Some(unparked) = self.finished.pop_front() {
            self.finish(unparked, backend).await;
        }
        while let Some(unparked) = self.running.next().await {
            self.finish(unparked, backend).await;
        }
    }
}

/// Waits for jobs, or for readiness.
async fn wait_for_jobs(wait: ParkedPop, backend: Arc<dyn Backend>) -> Option<Result<PopReply, BackendError>> {
    if !waits_for_readiness(&wait) {
        return Some(backend.pop_or_wait(wait.pop, wait.wait).await);
    }
    let ready = backend.ready_or_wait(wait.pop.queues, wait.wait).await;
    ready.map(|ready| ready.then(ready_reply)).transpose()
}

/// Releases jobs that no worker will receive.
pub(crate) async fn release(jobs: Vec<Release>, backend: &dyn Backend) {
    if jobs.is_empty() {
        return;
    }
    if let Err(error) = backend.execute(jobs.into_iter().map(Call::from).collect()).await {
        let error = with_causes(&error);
        tracing::warn!(
            "cannot release jobs that no caller waits for: they come back when their locks expire: {error}"
        );
    }
}
