//! Session of a peer that speaks the draft of 2005. Its packets carry no handles, so each request is answered
//! before the next one is read, and a client that waits for a job sends nothing else.

use std::ops::ControlFlow;

use bytes::{Bytes, BytesMut};
use geartrain_core::{
    Answer, BackendError, Call, ChunkKind, Get, GetResult, Heartbeat, Holder, Job, JobEnding, JobResult,
    PAYLOAD_BYTES_MAX, Put, PutReply, Reply, ResultWaiter, StateName, Status, StatusOf, StoredResult,
    StreamItem, Timestamp,
};

use super::AwaitedJob;
use super::connection::BACKEND_UNAVAILABLE;
use super::report_retry::{PendingReport, ReportKind};
use super::session::{BatchBuilder, Session, unique_key, with_causes};
use crate::draft::{Code, Error, JobType, Packet, Progress, Request, Response, names};
use crate::function;
use crate::packet::ReportBody;

/// After this many errors the connection is closed.
const ERRORS_MAX: u32 = 100;
/// Result code of results that the server itself makes.
const SERVER_RESULT: u8 = 255;
/// The status of an unknown handle.
const UNKNOWN: Progress = Progress { numerator: 0, denominator: 0, seconds_left: u32::MAX };

/// State of a peer that speaks the draft.
#[derive(Default)]
pub(crate) struct DraftSession {
    errors: u32,
    /// The job that the client waits for.
    waiting: Option<Waiting>,
}

struct Waiting {
    /// When the job was accepted.
    since: Timestamp,
    /// The data chunks received so far.
    chunks: Vec<u8>,
}

impl DraftSession {
    /// Whether the client waits for a job; its next request is read after that.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Answers a packet. Breaks if the connection must end.
    pub(crate) async fn answer(
        &mut self,
        packet: Packet,
        session: &mut Session,
        out: &mut BytesMut,
    ) -> ControlFlow<()> {
        let kind = packet.kind;
        let request = match Request::decode(packet) {
            Ok(Request::WorkerDisconnect) => return ControlFlow::Break(()),
            Ok(request) => request,
            Err(error) => return self.refuse(error, session, out),
        };
        match self.serve(request, session, out).await {
            Ok(()) => ControlFlow::Continue(()),
            Err(code) => self.refuse(Error { kind, code }, session, out),
        }
    }

    fn refuse(&mut self, error: Error, session: &Session, out: &mut BytesMut) -> ControlFlow<()> {
        self.errors += 1;
        error.encode(session.shared.options.draft_magic, out);
        if self.errors >= ERRORS_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    async fn serve(
        &mut self,
        request: Request,
        session: &mut Session,
        out: &mut BytesMut,
    ) -> Result<(), Code> {
        match request {
            Request::Noop | Request::WorkerDisconnect => {}
            Request::WorkerConnect { names: list } => {
                let mut functions = Vec::new();
                for name in names(&list) {
                    let queue = function::queue(name).map_err(|_| Code::BadName)?;
                    if !functions.contains(&queue) {
                        functions.push(queue);
                    }
                }
                let mut batch = BatchBuilder::default();
                session.set_functions(functions, &mut batch);
                // If the announcement fails, the worker can still pop.
                let _ = execute(session, batch.calls).await;
            }
            Request::WorkerSleep => session.pre_sleep(),
            Request::JobCreate { name, dupkey, kind, args, .. } => {
                self.create(&name, &dupkey, kind, &args, session, out).await?;
            }
            Request::JobAssign => assign(session, out).await?,
            Request::AnnounceStatus(Progress { numerator, denominator, seconds_left }) => {
                let jid = session.current_jid().ok_or(Code::NoCurrentJob)?;
                let progress = session.progress_report(&jid, numerator, denominator, seconds_left);
                report(session, progress).await?;
            }
            Request::AnnounceComplete { result, data } => {
                let jid = session.current_jid().ok_or(Code::NoCurrentJob)?;
                let end = match result {
                    0 => session.report_command(&jid, &ReportBody::Complete(data), 0),
                    code => session.fail_report(&jid, code, &data),
                };
                report(session, end).await?;
            }
            Request::JobStatus { handle } => {
                let progress = status(session, &handle).await?;
                write_packet(session, Response::<&[u8]>::JobStatus(progress), out);
            }
            Request::JobComplete { handle } => {
                let (state, result, data) = job_result(session, &handle).await?;
                write_packet(session, Response::JobComplete { state, result, data: &data[..] }, out);
            }
        }
        Ok(())
    }

    async fn create(
        &mut self,
        name: &[u8],
        dupkey: &[u8],
        kind: JobType,
        args: &[u8],
        session: &mut Session,
        out: &mut BytesMut,
    ) -> Result<(), Code> {
        let shared = session.shared.clone();
        if shared.draining.load(std::sync::atomic::Ordering::Acquire) {
            return Err(Code::GoingDown);
        }
        let queue = function::queue(name).map_err(|_| Code::BadName)?;
        let klass = function::klass(&queue).map_err(|_| Code::BadName)?;
        // The draft has no other error code for a queue that accepts nothing.
        let jid = shared.handles.next(&*shared.backend).await.map_err(|_| Code::QueueFull)?;
        let stream_id = shared.router.stream_id();
        let number = (kind == JobType::Wait).then(|| session.next_submission());
        let waiter = number.map(|number| ResultWaiter { stream_id, connection: session.peer.number, number });
        let mut put = Put::new(queue, jid.clone(), klass, args);
        // In the draft `-` is an ordinary key.
        let key = if dupkey == b"-" {
            geartrain_core::UniqueKey::new(dupkey).ok()
        } else {
            unique_key(dupkey, args)
        };
        let mut options = session.put_options(&mut put, waiter, key);
        if kind == JobType::Handle {
            options.result_ttl = Some(shared.options.result_ttl);
        }
        put.options = Some(Box::new(options));
        let now = shared.clock.now();
        let answers = shared.backend.execute(vec![Call::at(now, put)]).await;
        let jid = match single_reply(answers) {
            Ok(Reply::Put(PutReply::Coalesced { jid })) => jid,
            Ok(_) => jid,
            Err(error) => {
                tracing::debug!(%error, "a draft job was refused");
                return Err(Code::QueueFull);
            }
        };
        let (handle, alias) = (session.handle_of(&jid), session.alias_of(&jid));
        let reply_handle = if kind == JobType::Handle { handle.clone() } else { Bytes::new() };
        write_packet(session, Response::JobCreate { handle: &reply_handle[..] }, out);
        if let Some(number) = number {
            session.peer.info().awaited.insert(number, AwaitedJob { stream_id, jid, handle, alias });
            session.mark_answered(number);
            self.waiting = Some(Waiting { since: now, chunks: Vec::new() });
            if stream_id != shared.router.stream_id() {
                self.fail_awaited(session, out);
            }
        }
        Ok(())
    }

    /// Writes an item of the awaited job's result stream.
    pub(crate) fn write_item(&mut self, item: StreamItem, session: &Session, out: &mut BytesMut) {
        let Some(waiting) = &mut self.waiting else { return };
        match item {
            StreamItem::Chunk(ChunkKind::Data, payload)
                if waiting.chunks.len() + payload.bytes().len() <= PAYLOAD_BYTES_MAX =>
            {
                waiting.chunks.extend_from_slice(payload.bytes());
            }
            StreamItem::Progress { progress, .. } => {
                let progress = Progress {
                    numerator: saturate(progress.portion.part()),
                    denominator: saturate(progress.portion.whole()),
                    seconds_left: progress.seconds_left.unwrap_or(0),
                };
                write_packet(session, Response::<&[u8]>::JobStatus(progress), out);
            }
            StreamItem::Ended(ending, output) => {
                let state = elapsed_seconds(waiting.since, session.shared.clock.now());
                let (result, mut data) = result_code(&ending, output);
                if ending == JobEnding::Completed && !waiting.chunks.is_empty() {
                    waiting.chunks.extend_from_slice(&data);
                    data = std::mem::take(&mut waiting.chunks).into();
                }
                self.waiting = None;
                write_packet(session, Response::JobComplete { state, result, data: &data[..] }, out);
            }
            _ => {}
        }
    }

    /// Ends the wait with an error: the result stream has ended.
    pub(crate) fn fail_awaited(&mut self, session: &mut Session, out: &mut BytesMut) {
        session.peer.info().awaited.clear();
        if let Some(waiting) = self.waiting.take() {
            let state = elapsed_seconds(waiting.since, session.shared.clock.now());
            let data = &b"the queue was started again"[..];
            write_packet(session, Response::JobComplete { state, result: SERVER_RESULT, data }, out);
        }
    }

    pub(crate) fn write_noop(&self, session: &Session, out: &mut BytesMut) {
        write_packet(session, Response::<&[u8]>::Noop, out);
    }
}

async fn assign(session: &mut Session, out: &mut BytesMut) -> Result<(), Code> {
    if session.current_jid().is_some() {
        return Err(Code::Busy);
    }
    session.end_idle();
    let mut job = None;
    if !session.functions().is_empty() {
        let pop = session.pop(1);
        if let Ok(Reply::Pop(reply)) = single_reply(execute(session, vec![pop.into()]).await) {
            session.set_pop_turn(reply.turn);
            job = reply.jobs.into_iter().next();
        }
        session.shared.idle_workers.job_requested(session.functions());
    }
    match job {
        Some(job) => {
            let name = function::bytes(&job.queue);
            write_packet(session, Response::JobAssign { name: &name[..], args: job.payload.bytes() }, out);
            session.hold(&job);
        }
        None => write_packet(session, Response::<&[u8]>::NoJob, out),
    }
    Ok(())
}

/// Executes a report on the held job. `NoCurrentJob` if the worker does not hold it any more.
async fn report(session: &mut Session, report: Option<PendingReport>) -> Result<(), Code> {
    let report = report.ok_or(Code::NoCurrentJob)?;
    if report.kind == ReportKind::End {
        // The backend accepts the late end of an attempt past its deadline. The draft specifies an error.
        let (jid, holder) = (report.jid.clone(), Holder::Token(report.token));
        let heartbeat = Heartbeat { jid, holder, payload: None };
        if let Ok(Some(Err(_))) = execute(session, vec![heartbeat.into()]).await.map(|mut it| it.pop()) {
            return Err(Code::NoCurrentJob);
        }
    }
    match execute(session, vec![Call::from(report.command.clone())]).await {
        Ok(mut answers) => {
            let answer = answers.pop().ok_or(Code::NoCurrentJob)?;
            let is_stored = answer.is_ok();
            if !is_stored {
                session.held_jobs().release_attempt(&report.jid, report.token);
            }
            session.complete_report(report, answer);
            is_stored.then_some(()).ok_or(Code::NoCurrentJob)
        }
        Err(error) => {
            BACKEND_UNAVAILABLE
                .warn(format_args!("a report is not stored yet and is repeated: {}", with_causes(&error)));
            session.retry_report(report);
            Ok(())
        }
    }
}

/// The error code for a backend that does not answer. The draft has no better one.
fn unavailable(error: BackendError) -> Code {
    tracing::debug!(
        error = with_causes(&error),
        "the backend does not answer; a draft client receives QueueFull"
    );
    Code::QueueFull
}

async fn status(session: &mut Session, handle: &[u8]) -> Result<Progress, Code> {
    let Some(jid) = session.jid_of(handle) else { return Ok(UNKNOWN) };
    let calls = vec![
        Call::from(Status { of: StatusOf::Jid(jid.clone()) }),
        Call::from(GetResult { jid: jid.clone() }),
        Call::from(Get { jid }),
    ];
    let answers = execute(session, calls).await.map_err(unavailable)?;
    let mut is_known = false;
    for answer in answers {
        match answer {
            Ok(Reply::Status(Some(status))) => {
                return Ok(status.progress.map_or(Progress::default(), |progress| Progress {
                    numerator: saturate(progress.portion.part()),
                    denominator: saturate(progress.portion.whole()),
                    seconds_left: progress.seconds_left.unwrap_or(0),
                }));
            }
            Ok(Reply::GetResult(Some(_)) | Reply::Get(Some(_))) => is_known = true,
            _ => {}
        }
    }
    // The last progress of an ended job is not stored, so it is shown as 1 of 1.
    Ok(if is_known { Progress { numerator: 1, denominator: 1, seconds_left: 0 } } else { UNKNOWN })
}

/// The result of a job: elapsed seconds (0 if it has not ended), result code and data.
async fn job_result(session: &mut Session, handle: &[u8]) -> Result<(u32, u8, Bytes), Code> {
    let unknown = (1, SERVER_RESULT, Bytes::from_static(b"unknown handle"));
    let Some(jid) = session.jid_of(handle) else { return Ok(unknown) };
    let calls = vec![Call::from(GetResult { jid: jid.clone() }), Call::from(Get { jid })];
    let answers = execute(session, calls).await.map_err(unavailable)?;
    let (mut stored, mut job) = (None, None);
    for answer in answers {
        match answer {
            Ok(Reply::GetResult(found)) => stored = found,
            Ok(Reply::Get(found)) => job = found,
            _ => {}
        }
    }
    Ok(match (stored, job) {
        (_, Some(job)) if !matches!(job.state.name(), StateName::Complete | StateName::Failed) => {
            (0, 0, Bytes::new())
        }
        (Some(stored), job) => {
            let StoredResult { ending, result: output, ended, .. } = *stored;
            let since = job.and_then(|job| put_at(&job)).unwrap_or(ended);
            let (result, data) = result_code(&ending, output);
            (elapsed_seconds(since, ended), result, data)
        }
        (None, _) => unknown,
    })
}

/// When a job was first put.
fn put_at(job: &Job) -> Option<Timestamp> {
    job.history.first().map(|entry| entry.when)
}

/// Whole seconds, rounded up, at least one.
fn elapsed_seconds(since: Timestamp, until: Timestamp) -> u32 {
    // The cast saturates: negative becomes 0.
    ((until - since).get().ceil() as u32).max(1)
}

fn result_code(ending: &JobEnding, output: JobResult) -> (u8, Bytes) {
    match ending {
        JobEnding::Completed => (u8::try_from(output.code).unwrap_or(0), output.bytes.to_shared()),
        JobEnding::Canceled => (SERVER_RESULT, Bytes::from_static(b"cancelled")),
        JobEnding::Failed { group, .. } => {
            let group = group.as_str();
            let retries_exhausted =
                ["failed-retries-", "crashed-", "timed-out-"].iter().any(|it| group.starts_with(it));
            if retries_exhausted {
                return (SERVER_RESULT, Bytes::from_static(b"retries exhausted"));
            }
            (u8::try_from(output.code).ok().filter(|code| *code > 0).unwrap_or(1), output.bytes.to_shared())
        }
        _ => (1, output.bytes.to_shared()),
    }
}

fn saturate(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

async fn execute(session: &mut Session, calls: Vec<Call>) -> Result<Vec<Answer>, BackendError> {
    session.shared.backend.execute(calls).await
}

fn single_reply(answers: Result<Vec<Answer>, BackendError>) -> Result<Reply, BackendError> {
    match answers?.pop() {
        Some(Ok(reply)) => Ok(reply),
        Some(Err(refusal)) => Err(refusal.into()),
        None => Err(super::unexpected_reply()),
    }
}

fn write_packet<B: AsRef<[u8]>>(session: &Session, response: Response<B>, out: &mut BytesMut) {
    if let Err(error) = response.encode(session.shared.options.draft_magic, out) {
        tracing::error!(%error, "a packet of the draft could not be written");
    }
}
