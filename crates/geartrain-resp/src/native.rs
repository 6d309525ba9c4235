//! Our own calls: batches of commands, waits for jobs, and events, as docs/formats/wire.md tells.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::try_join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use geartrain_core::wire::{self, EventsReply, ParkReply, ParkedPop, ParkedPopNotice, Request};
use geartrain_core::{
    Answer, Backend, BackendError, Call, Event, PopReply, QueueName, Refusal, Release, Reply, Seconds,
};
use geartrain_front::{PIECE_BYTES, Pieces, RepeatedWarning, encode_off_thread};
use tokio_util::sync::CancellationToken;

use crate::channels::Push;

/// What the functions' names begin with that are ours.
const NAME: &[u8] = b"geartrain_";
/// How many waits of one connection may be under way.
const WAITS_MAX: usize = 10_000;

/// How many waits that are over are remembered.
const TOLD_MAX: usize = 1_000;

/// How many bytes a job has on the wire besides its payload, about.
const JOB_BYTES: usize = 256;

static WAIT_FAILED: RepeatedWarning = RepeatedWarning::new();

/// Reads `FCALL geartrain_<hash> 1 <prefix> <request>`, or says what is wrong with it.
pub(crate) fn read(request: &[Bytes]) -> Result<Request, String> {
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
    Request::decode(request).map_err(|error| format!("ERR {error}"))
}

/// What a call of ours becomes part of a batch as.
pub(crate) enum Asked {
    /// So many commands.
    Batch(usize),
    /// Waits, and whether each is new: then there is a pop for it, or a look. Those that find nothing begin.
    Wait { process: String, waits: Vec<(ParkedPop, bool)> },
}

/// The commands of a call, and what is done with their answers; none if it is not about commands.
pub(crate) fn commands(request: Request, waits: &Waits) -> Option<(Vec<Call>, Asked)> {
    match request {
        Request::Batch(calls) => {
            let count = calls.len();
            Some((calls, Asked::Batch(count)))
        }
        Request::Park { process, now, waits: asked, .. } => {
            // Who waits already does not pop again: it would go before those who wait longer.
            let asked: Vec<(ParkedPop, bool)> = asked
                .into_iter()
                .map(|wait| {
                    let is_new = !waits.has(wait.number);
                    (wait, is_new)
                })
                .collect();
            let pops = asked.iter().filter(|(wait, is_new)| *is_new && !is_for_a_word(wait));
            let calls = pops.map(|(wait, _)| Call { now, command: wait.pop.clone().into() }).collect();
            Some((calls, Asked::Wait { process, waits: asked }))
        }
        _ => None,
    }
}

/// Whether somebody waits only to be told that there is something to pop.
fn is_for_a_word(wait: &ParkedPop) -> bool {
    wait.pop.count.get() == 0
}

/// What they are told.
fn word() -> PopReply {
    PopReply { jobs: Vec::new(), turn: 0 }
}

/// Whether there is something to pop; or why that was not looked at.
pub(crate) type Looked = Result<bool, Refusal>;

/// Looks whether there is something to pop, for each of these lists of queues.
pub(crate) async fn look(
    looks: Vec<Vec<QueueName>>,
    backend: &dyn Backend,
) -> Result<Vec<Looked>, BackendError> {
    let look = |queues| async move {
        match backend.ready_or_wait(queues, Seconds::ZERO).await {
            Ok(ready) => Ok(Ok(ready)),
            Err(BackendError::Refused(refusal)) => Ok(Err(refusal)),
            Err(error) => Err(error),
        }
    };
    try_join_all(looks.into_iter().map(look)).await
}

/// A reply to a call of ours.
pub(crate) enum NativeReply {
    Encoded(Vec<u8>),
    /// Too large to be encoded in one go.
    Large(LargeReply),
}

/// A reply in pieces.
pub(crate) enum LargeReply {
    Answers(wire::AnswerPieces),
    /// One piece: a pop that waits is for few jobs.
    Waiting(Vec<ParkReply>),
}

impl Pieces for LargeReply {
    fn write(&self, number: usize, out: &mut Vec<u8>) -> bool {
        match self {
            LargeReply::Answers(answers) => answers.write(number, out),
            LargeReply::Waiting(waiting) if number == 0 => {
                out.extend(wire::encode(waiting));
                true
            }
            LargeReply::Waiting(_) => false,
        }
    }
}

/// How many bytes an answer takes, about.
fn bytes(answer: &Answer) -> usize {
    let of = |payload: &geartrain_core::Payload| JOB_BYTES + payload.bytes().len();
    match answer {
        Ok(Reply::Pop(reply)) => popped_bytes(reply),
        Ok(Reply::Get(Some(job))) => of(&job.payload),
        Ok(Reply::GetMany(jobs) | Reply::Peek(jobs)) => jobs.iter().map(|job| of(&job.payload)).sum(),
        Ok(Reply::Tracked(tracked)) => tracked.jobs.iter().map(|job| of(&job.payload)).sum(),
        Ok(Reply::GetResult(Some(kept))) => of(&kept.result.bytes),
        Ok(Reply::GetRecurring(Some(recurring))) => of(&recurring.payload),
        _ => 0,
    }
}

fn popped_bytes(reply: &PopReply) -> usize {
    reply.jobs.iter().map(|job| JOB_BYTES + job.payload.bytes().len()).sum()
}

impl Asked {
    /// The queues that are to be looked into, for each who wants to be told.
    pub(crate) fn looks(&self) -> Vec<Vec<QueueName>> {
        match self {
            Asked::Batch(_) => Vec::new(),
            Asked::Wait { waits, .. } => {
                let words = waits.iter().filter(|(wait, is_new)| *is_new && is_for_a_word(wait));
                words.map(|(wait, _)| wait.pop.queues.clone()).collect()
            }
        }
    }

    /// The reply; and what is not there yet is waited for.
    pub(crate) fn reply(
        self,
        answers: &mut impl Iterator<Item = Answer>,
        looked: &mut impl Iterator<Item = Looked>,
        backend: &Arc<dyn Backend>,
        waiting: &mut Waits,
    ) -> NativeReply {
        match self {
            Asked::Batch(count) => {
                let answers: Vec<Answer> = answers.take(count).collect();
                if answers.iter().map(bytes).sum::<usize>() < PIECE_BYTES {
                    return NativeReply::Encoded(wire::encode_answers(&answers));
                }
                NativeReply::Large(LargeReply::Answers(wire::AnswerPieces::new(answers)))
            }
            Asked::Wait { process, waits } => {
                let became = waits.into_iter().map(|(wait, is_new)| {
                    if !is_new {
                        return ParkReply::Parked { next: None };
                    }
                    let found = if is_for_a_word(&wait) {
                        looked.next().map(|looked| looked.map(|ready| ready.then(word)))
                    } else {
                        answers.next().map(|answer| answer.map(jobs))
                    };
                    match found {
                        Some(Err(refusal)) => ParkReply::Refused(refusal),
                        Some(Ok(Some(reply))) => ParkReply::Popped(reply),
                        Some(Ok(None)) | None => waiting.begin(&process, wait, backend),
                    }
                });
                let became: Vec<ParkReply> = became.collect();
                let popped = |became: &ParkReply| match became {
                    ParkReply::Popped(reply) => popped_bytes(reply),
                    _ => 0,
                };
                if became.iter().map(popped).sum::<usize>() < PIECE_BYTES {
                    return NativeReply::Encoded(wire::encode(&became));
                }
                NativeReply::Large(LargeReply::Waiting(became))
            }
        }
    }
}

/// What a pop found, if it found any.
fn jobs(reply: Reply) -> Option<PopReply> {
    match reply {
        Reply::Pop(reply) if !reply.jobs.is_empty() => Some(reply),
        _ => None,
    }
}

/// Answers what is not about commands.
pub(crate) async fn answer(
    request: Request,
    backend: &dyn Backend,
    waits: &mut Waits,
) -> Result<Vec<u8>, BackendError> {
    match request {
        Request::Unpark { number, .. } => {
            waits.end(number);
            Ok(wire::encode(&()))
        }
        Request::Listen { .. } => {
            // From the first subscription on events are kept, whether or not it goes on.
            drop(backend.subscribe().await?);
            newest(backend).await.map(|newest| wire::encode(&newest))
        }
        Request::Since { after, count } => {
            let happened: EventsReply = match backend.subscribe_from(after).await {
                Ok(mut stream) => {
                    let mut happened = Vec::new();
                    // What has happened comes without waiting.
                    while happened.len() < count.get()
                        && let Some(Ok(published)) = stream.next().now_or_never()
                    {
                        happened.push((published.position, Event::clone(&published.event)));
                    }
                    Ok(happened)
                }
                Err(BackendError::Refused(refusal)) => Err(refusal),
                Err(error) => return Err(error),
            };
            Ok(wire::encode(&happened))
        }
        _ => Err(Refusal::Unsupported {
            operation: "do what a newer driver asks".into(),
            backend: "chosen".into(),
        }
        .into()),
    }
}

/// The position of the last event: whoever asks for what comes after the end of all positions is told.
async fn newest(backend: &dyn Backend) -> Result<u64, BackendError> {
    match backend.subscribe_from(u64::MAX).await {
        Err(BackendError::Refused(Refusal::CursorAhead { newest, .. })) => Ok(newest),
        Err(error) => Err(error),
        Ok(_) => Ok(u64::MAX),
    }
}

/// A wait that is over, and what came of it; nothing if nobody wanted it any more, or if there is no word to tell.
pub(crate) type Waited = (u64, Option<Result<PopReply, BackendError>>);

/// The waits of one connection.
#[derive(Default)]
pub(crate) struct Waits {
    /// Those that somebody still wants, with their process and how they are ended.
    wanted: HashMap<u64, (Bytes, CancellationToken)>,
    under_way: FuturesUnordered<Pin<Box<dyn Future<Output = Waited> + Send>>>,
    /// Those that were over as soon as they had begun.
    over_already: VecDeque<Waited>,
    /// The last that were told what came of them: whoever asks again for one of these has not read it yet.
    told: VecDeque<u64>,
}

impl Waits {
    fn has(&self, number: u64) -> bool {
        self.wanted.contains_key(&number) || self.told.contains(&number)
    }

    fn begin(&mut self, process: &str, wait: ParkedPop, backend: &Arc<dyn Backend>) -> ParkReply {
        if wait.wait <= Seconds::ZERO || self.has(wait.number) {
            return ParkReply::Parked { next: None };
        }
        if self.wanted.len() >= WAITS_MAX {
            let why = format!("of one connection must be at most {WAITS_MAX}");
            return ParkReply::Refused(Refusal::BadArgument { what: "waits".into(), why });
        }
        let (number, enough, backend) = (wait.number, CancellationToken::new(), backend.clone());
        let channel = format!("gt:to:{process}").into();
        self.wanted.insert(number, (channel, enough.clone()));
        self.under_way.push(Box::pin(async move {
            tokio::select! {
                // Looked at first, so that a job that was handed out already is not lost.
                biased;
                reply = until_over(wait, backend) => (number, reply),
                () = enough.cancelled() => (number, None),
            }
        }));
        ParkReply::Parked { next: None }
    }

    fn end(&mut self, number: u64) {
        if let Some((_, enough)) = self.wanted.remove(&number) {
            enough.cancel();
        }
    }

    /// Sends new waits to the backend. Done before their caller is told that it sleeps: what is put afterwards is for those who sleep.
    pub(crate) async fn send(&mut self) {
        while let Some(Some(waited)) = self.under_way.next().now_or_never() {
            self.over_already.push_back(waited);
        }
    }

    /// The next wait that is over.
    pub(crate) async fn next(&mut self) -> Waited {
        if let Some(waited) = self.over_already.pop_front() {
            return waited;
        }
        match self.under_way.next().await {
            Some(waited) => waited,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.over_already.is_empty()
    }

    /// What is told of a wait that is over, and the jobs that are given with it. If nobody wants them any more, they go back.
    pub(crate) async fn over(
        &mut self,
        (number, reply): Waited,
        backend: &dyn Backend,
    ) -> Option<(Push, Vec<Release>)> {
        let wanted = self.wanted.remove(&number);
        let reply = match reply? {
            Ok(reply) => Ok(reply),
            Err(BackendError::Refused(refusal)) => Err(refusal),
            Err(error) => {
                // A process that waits asks again soon, and then gets an error.
                WAIT_FAILED.warn(format_args!("a wait has failed: {error}"));
                return None;
            }
        };
        let popped = reply.iter().flat_map(|reply| &reply.jobs);
        let jobs = popped.map(Release::of);
        let jobs: Vec<Release> = jobs.collect();
        let Some((channel, _)) = wanted else {
            hand_back(jobs, backend).await;
            return None;
        };
        self.told.truncate(TOLD_MAX - 1);
        self.told.push_front(number);
        let bytes = reply.as_ref().map_or(0, popped_bytes);
        let encode = move || wire::encode(&ParkedPopNotice::Popped { number, reply });
        let Some(message) = encode_off_thread(bytes, encode).await else {
            hand_back(jobs, backend).await;
            return None;
        };
        Some((Push::new(channel, message.into()), jobs))
    }

    /// Ends all waits. What comes of them in this moment goes back.
    pub(crate) async fn end_all(&mut self, backend: &dyn Backend) {
        for (_, (_, enough)) in self.wanted.drain() {
            enough.cancel();
        }
        while let Some(waited) = self.over_already.pop_front() {
            self.over(waited, backend).await;
        }
        while let Some(waited) = self.under_way.next().await {
            self.over(waited, backend).await;
        }
    }
}

/// Waits for jobs, or for the word that there are some.
async fn until_over(wait: ParkedPop, backend: Arc<dyn Backend>) -> Option<Result<PopReply, BackendError>> {
    if !is_for_a_word(&wait) {
        return Some(backend.pop_or_wait(wait.pop, wait.wait).await);
    }
    let ready = backend.ready_or_wait(wait.pop.queues, wait.wait).await;
    ready.map(|ready| ready.then(word)).transpose()
}

/// Gives jobs back that nobody will work on.
pub(crate) async fn hand_back(jobs: Vec<Release>, backend: &dyn Backend) {
    if jobs.is_empty() {
        return;
    }
    if let Err(error) = backend.execute(jobs.into_iter().map(Call::from).collect()).await {
        tracing::warn!("jobs that nobody waits for any more come back when their locks expire: {error}");
    }
}
