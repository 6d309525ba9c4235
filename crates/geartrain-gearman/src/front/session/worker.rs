//! Worker role of a session: announcing functions, grabbing jobs, reporting on them, and being idle.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use geartrain_core::{
    Announce, AnnounceChange, Answer, Capability, Chunk, ChunkKind, Command, Complete, Count, DURATION_MAX,
    Fail, Group, Holder, Jid, JobResult, PAYLOAD_BYTES_MAX, Payload, Pop, PopOrder, PopReply, Popped,
    Portion, Progress, Progressed, QueueName, Refusal, Reply, Seconds,
};
use parking_lot::MappedMutexGuard;

use super::client::unique_id;
use super::{BatchBuilder, Session, Slot, append_shared, shared_payload, write_packet};
use crate::front::held_jobs::{HeldJob, HeldJobs};
use crate::front::report_retry::{PendingReport, ReportKind};
use crate::function;
use crate::packet::{Assignment, Fault, Grab, Report, ReportBody, Response};

/// Functions per worker: as many queues as one pop takes.
const FUNCTIONS_MAX: usize = 1_024;
/// GRAB_JOB requests per pop.
const GRABS_MAX: usize = 1_000;
/// How much of an exception becomes the failure's message.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// Failure groups for WORK_FAIL and WORK_EXCEPTION.
pub(super) const FAIL_GROUP: &str = "gearman-fail";
const EXCEPTION_GROUP: &str = "gearman-exception";

impl Session {
    pub(super) fn can_do(&mut self, function: &[u8], timeout: Option<Duration>, to: &mut BatchBuilder) {
        let Ok(queue) = function::queue(function) else { return to.refuse(&Fault::FunctionName) };
        if !self.functions.contains(&queue) {
            if self.functions.len() >= FUNCTIONS_MAX {
                return to.refuse(&Fault::Argument("A worker can do at most 1024 functions"));
            }
            // As in gearmand, the function announced last is the first that the worker gets jobs of.
            self.functions.insert(0, queue.clone());
            self.peer.info().functions.insert(0, queue.clone());
        }
        let attempt_max = timeout.map(|timeout| {
            Seconds::new(timeout.as_secs_f64()).map_or(DURATION_MAX, |it| it.min(DURATION_MAX))
        });
        let capability = Capability { queue, klass: None, attempt_max };
        self.announce(AnnounceChange::Can(vec![capability]), to);
        if self.is_idle {
            // Registers the idle worker again, with the new function.
            to.slots.push(Slot::PreSleep);
        }
    }

    pub(super) fn cannot_do(&mut self, function: &[u8], to: &mut BatchBuilder) {
        let Ok(queue) = function::queue(function) else { return to.refuse(&Fault::FunctionName) };
        self.functions.retain(|able| *able != queue);
        self.peer.info().functions.retain(|able| *able != queue);
        self.announce(AnnounceChange::Cannot(vec![(queue, None)]), to);
    }

    /// Replaces all functions that the worker has announced.
    pub(crate) fn set_functions(&mut self, functions: Vec<QueueName>, to: &mut BatchBuilder) {
        self.peer.info().functions = functions.clone();
        let capability =
            |queue: &QueueName| Capability { queue: queue.clone(), klass: None, attempt_max: None };
        let capabilities = functions.iter().map(capability).collect();
        self.functions = functions;
        self.announce(AnnounceChange::Only(capabilities), to);
    }

    pub(super) fn announce(&mut self, change: AnnounceChange, to: &mut BatchBuilder) {
        self.is_worker = true;
        self.heartbeats.announce(!self.functions.is_empty(), &self.shared, &self.worker);
        to.call(Announce { worker: self.worker.clone(), change }, Slot::NoReply);
    }

    pub(crate) fn functions(&self) -> &[QueueName] {
        &self.functions
    }

    pub(super) fn grab(&mut self, grab: Grab, to: &mut BatchBuilder) {
        self.end_idle();
        if self.functions.is_empty() {
            return to.reply(|out| write_packet(Response::<&[u8]>::NoJob, out));
        }
        to.grabs.push(grab);
        if to.grabs.len() >= GRABS_MAX {
            self.flush_grabs(to);
        }
    }

    /// Executes the pending grabs as one pop, before the next request.
    pub(crate) fn flush_grabs(&mut self, to: &mut BatchBuilder) {
        if to.grabs.is_empty() {
            return;
        }
        let grabs = std::mem::take(&mut to.grabs);
        to.call(self.pop(grabs.len()), Slot::Grabbed(grabs));
    }

    pub(crate) fn pop(&mut self, count: usize) -> Pop {
        self.is_worker = true;
        let order = match self.functions.len() {
            1 => PopOrder::Strict,
            _ => PopOrder::Priority { turn: self.pop_turn },
        };
        Pop {
            queues: self.functions.clone(),
            worker: self.worker.clone(),
            count: i64::try_from(count).ok().and_then(|count| Count::new(count).ok()).unwrap_or(Count::ONE),
            order,
            whole: false,
            klasses: None,
        }
    }

    /// The jobs that the worker holds.
    pub(crate) fn held_jobs(&self) -> MappedMutexGuard<'_, HeldJobs> {
        self.heartbeats.held_jobs()
    }

    pub(super) fn report(&mut self, report: Report, to: &mut BatchBuilder) {
        let Report { handle, body } = report;
        let jid = self.jid_bytes(&handle);
        if self.held_jobs().get(&jid).is_none() {
            // A late report on a job held earlier is ignored: an ERROR would end many workers.
            if !self.held_jobs().was_held(&jid) {
                to.refuse(&Fault::job_not_found(&body));
            }
            return;
        }
        if let Some(report) = self.report_command(&jid, &body, to.number) {
            to.call(report.command.clone(), Slot::Report);
            to.reports.push_back(report);
        }
    }

    /// The jid for a handle.
    pub(super) fn jid_bytes(&self, handle: &Bytes) -> Bytes {
        match self.aliases.get(handle) {
            Some(alias) => alias.jid.to_string().into(),
            None => handle.clone(),
        }
    }

    /// Whether a report must wait until earlier ones are stored. If a chunk was retried after the end of its
    /// job was stored, the waiting clients would miss it. If it turns out to be late, it goes along with the
    /// completion, before all later data.
    pub(crate) fn report_must_wait(&self, report: &Report, batch: u64) -> bool {
        let jid = self.jid_bytes(&report.handle);
        let jobs = self.held_jobs();
        let Some(held) = jobs.get(&jid) else { return false };
        held.chunk_in_batch.is_some_and(|carrier| {
            carrier != batch
                || match report.body {
                    ReportBody::Complete(_) => held.has_deadline(),
                    ReportBody::Data(_) => held.is_late(|| self.shared.now()),
                    _ => false,
                }
        })
    }

    /// The command for a report on a held job. The last report of a job releases it.
    pub(crate) fn report_command(
        &mut self,
        jid: &[u8],
        body: &ReportBody,
        batch: u64,
    ) -> Option<PendingReport> {
        if body.is_final() {
            let held = self.held_jobs().release(jid)?;
            let (jid, token) = (held.jid.clone(), held.token);
            return Some(PendingReport {
                jid,
                token,
                kind: ReportKind::End,
                command: end_command(held, body)?,
            });
        }
        let mut jobs = self.held_jobs();
        let held = jobs.get_mut(jid)?;
        if held.is_late(|| self.shared.now()) {
            // The backend refuses all but the end of a late attempt, so its data goes along with that.
            if let ReportBody::Data(bytes) = body {
                append_chunk(held.chunks.as_mut().unwrap_or(&mut held.late_chunks), bytes);
            }
            return None;
        }
        let ((jid, holder), token) = (held.jid_and_holder(), held.token);
        let chunk = |kind, bytes: &Bytes| {
            let (jid, holder, bytes) = (jid.clone(), holder.clone(), bytes[..].into());
            Command::from(Chunk { jid, holder, kind, bytes })
        };
        let (kind, command) = match body {
            ReportBody::Status { numerator, denominator } => {
                let (part, whole) = body.progress()?;
                let text = [&numerator[..], &[0], denominator].concat();
                let progress = Progressed { portion: Portion::unchecked(part, whole), seconds_left: None };
                let progress = Progress::new(jid.clone(), holder, progress);
                (ReportKind::Progress, Command::from(Progress { text: Some(text.into()), ..progress }))
            }
            ReportBody::Data(bytes) => {
                if let Some(chunks) = &mut held.chunks {
                    append_chunk(chunks, bytes);
                }
                (ReportKind::Chunk, chunk(ChunkKind::Data, bytes))
            }
            ReportBody::Warning(bytes) => (ReportKind::Chunk, chunk(ChunkKind::Warning, bytes)),
            ReportBody::Complete(_) | ReportBody::Fail | ReportBody::Exception(_) => return None,
        };
        if kind == ReportKind::Chunk {
            held.chunk_in_batch = Some(batch);
        }
        Some(PendingReport { jid, token, kind, command })
    }

    /// Handles the backend's reply to a report.
    pub(crate) fn complete_report(&mut self, report: PendingReport, answer: Answer) {
        let PendingReport { jid, token, kind, command } = report;
        match (kind, answer) {
            (ReportKind::Chunk, answer) => {
                let mut jobs = self.held_jobs();
                if let Some(held) = jobs.attempt(&jid, token) {
                    held.chunk_in_batch = None;
                    if let Command::Chunk(Chunk { kind: ChunkKind::Data, bytes, .. }) = command {
                        match answer {
                            // A client that received a chunk must not receive it again with the result.
                            Ok(Reply::Chunk(1..)) => held.chunks = None,
                            // The deadline passed on the way to the backend.
                            Err(Refusal::LockLost { .. }) if held.has_deadline() && held.chunks.is_none() => {
                                append_chunk(&mut held.late_chunks, bytes.bytes());
                            }
                            _ => {}
                        }
                    }
                }
            }
            (ReportKind::End, Err(refusal @ Refusal::TooLarge { .. })) => {
                // Otherwise the job would run again and again, each time with a result that is too large.
                tracing::warn!(%jid, %refusal, "the result of a job cannot be stored; the job fails");
                let holder = Holder::Token(token);
                let command = fail_command(jid.clone(), holder, FAIL_GROUP, &refusal.to_string(), 1, &[]);
                self.retry_report(PendingReport { jid, token, kind, command });
            }
            // Held again if the report had to be retried.
            (ReportKind::End, _) => drop(self.held_jobs().release_attempt(&jid, token)),
            (ReportKind::Progress, _) => {}
        }
    }

    /// Retries a report that the backend did not take. Until its end is stored, the job stays held.
    pub(crate) fn retry_report(&mut self, report: PendingReport) {
        if report.kind == ReportKind::End {
            let held = HeldJob::end_reported(report.jid.clone(), report.token);
            self.heartbeats.hold(held, &self.shared, &self.worker);
        }
        self.report_retries.push(report);
    }

    /// The held job. Workers of the draft have one at a time.
    pub(crate) fn current_jid(&self) -> Option<Bytes> {
        self.held_jobs().any().map(|held| held.jid.to_string().into())
    }

    /// Report of a failure with the worker's own code (draft).
    pub(crate) fn fail_report(&mut self, jid: &[u8], code: u8, bytes: &[u8]) -> Option<PendingReport> {
        let held = self.held_jobs().release(jid)?;
        let ((jid, holder), token) = (held.jid_and_holder(), held.token);
        let command = if bytes.is_empty() {
            let message = format!("its worker ended it with code {code}");
            fail_command(jid.clone(), holder, FAIL_GROUP, &message, code.into(), bytes)
        } else {
            fail_command(jid.clone(), holder, EXCEPTION_GROUP, &message(bytes), code.into(), bytes)
        };
        Some(PendingReport { jid, token, kind: ReportKind::End, command })
    }

    /// Report of progress (draft).
    pub(crate) fn progress_report(
        &self,
        jid: &[u8],
        part: u32,
        whole: u32,
        seconds_left: u32,
    ) -> Option<PendingReport> {
        let jobs = self.held_jobs();
        let held = jobs.get(jid)?;
        let ((jid, holder), token) = (held.jid_and_holder(), held.token);
        let seconds_left = (seconds_left > 0).then_some(seconds_left);
        let progress = Progressed { portion: Portion::unchecked(part, whole), seconds_left };
        let command = Progress::new(jid.clone(), holder, progress).into();
        Some(PendingReport { jid, token, kind: ReportKind::Progress, command })
    }

    pub(super) fn complete_grab(&mut self, grabs: &[Grab], answer: Option<Answer>, out: &mut BytesMut) {
        let reply = match answer {
            Some(Ok(Reply::Pop(reply))) => reply,
            _ => PopReply { jobs: Vec::new(), turn: self.pop_turn },
        };
        self.pop_turn = reply.turn;
        let mut jobs = reply.jobs.into_iter();
        for grab in grabs {
            match jobs.next() {
                Some(job) => {
                    let start = out.len();
                    let payload = shared_payload(&job.payload);
                    let data = if payload.is_some() { b"" } else { job.payload.bytes() };
                    self.with_handle(&job.jid, |handle| write_assignment(*grab, handle, &job, data, out));
                    self.spliced.extend(payload.and_then(|payload| append_shared(payload, start, out)));
                }
                None => write_packet(Response::<&[u8]>::NoJob, out),
            }
        }
        self.shared.idle_workers.job_requested(&self.functions);
    }

    /// Registers a popped job for heartbeats.
    pub(crate) fn hold(&mut self, job: &Popped) {
        let alias = self.alias_of(&job.jid);
        let lock = self.shared.lock_remaining(job.lock.expires);
        self.heartbeats.hold(HeldJob::new(job, lock, alias), &self.shared, &self.worker);
    }

    pub(super) fn register_idle(&mut self) {
        if let Some(registration) = self.registration.take() {
            self.shared.idle_workers.deregister(registration);
        }
        if self.is_idle && !self.functions.is_empty() {
            self.registration = self.shared.idle_workers.register(&self.mailbox, &self.functions);
        }
    }

    /// The worker has asked for jobs and nothing else. If it was just woken, it will probably be idle soon,
    /// so its functions are watched early.
    pub(crate) fn watch_early(&mut self) {
        if std::mem::take(&mut self.was_woken) {
            self.shared.idle_workers.watch_early(&self.functions);
        }
    }

    /// Makes the worker idle at once. The draft answers requests one by one, so nothing is pending before it.
    pub(crate) fn pre_sleep(&mut self) {
        self.is_idle = true;
        self.register_idle();
    }

    /// Ends the idle state.
    pub(crate) fn end_idle(&mut self) {
        self.is_idle = false;
        if let Some(registration) = self.registration.take() {
            self.shared.idle_workers.deregister(registration);
        }
    }

    /// Takes a wake-up. Returns whether the worker was idle and must be sent a NOOP.
    pub(crate) fn take_wakeup(&mut self) -> bool {
        self.registration = None;
        self.was_woken = true;
        std::mem::take(&mut self.is_idle)
    }

    /// The backend knows this peer as a worker.
    pub(crate) fn mark_worker(&mut self) {
        self.is_worker = true;
    }

    /// Sets where the next pop starts among the functions.
    pub(crate) fn set_pop_turn(&mut self, turn: usize) {
        self.pop_turn = turn;
    }
}

/// The command for the last report of a job.
fn end_command(held: HeldJob, body: &ReportBody) -> Option<Command> {
    let (jid, holder) = held.jid_and_holder();
    Some(match body {
        ReportBody::Complete(bytes) => {
            // A client that asks for the result later gets the earlier chunks as well.
            let mut chunks = held.chunks.unwrap_or(held.late_chunks);
            let bytes: Payload = if chunks.is_empty() {
                bytes[..].into()
            } else {
                chunks.extend_from_slice(bytes);
                chunks.into()
            };
            let result = (!bytes.bytes().is_empty()).then(|| Box::new(JobResult { code: 0, bytes }));
            Command::from(Complete { result, ..Complete::new(jid, holder) })
        }
        ReportBody::Fail => {
            fail_command(jid, holder, FAIL_GROUP, "the worker reported a failure without a reason", 1, &[])
        }
        ReportBody::Exception(bytes) => fail_command(jid, holder, EXCEPTION_GROUP, &message(bytes), 2, bytes),
        ReportBody::Data(_) | ReportBody::Warning(_) | ReportBody::Status { .. } => return None,
    })
}

/// Adds a chunk to those that go along with the result, if they are not too large together.
fn append_chunk(chunks: &mut Vec<u8>, chunk: &[u8]) {
    if chunks.len() + chunk.len() <= PAYLOAD_BYTES_MAX {
        chunks.extend_from_slice(chunk);
    }
}

/// The beginning of an exception, as text.
fn message(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MESSAGE_BYTES_MAX)]).into_owned()
}

fn fail_command(jid: Jid, holder: Holder, group: &str, message: &str, code: i32, bytes: &[u8]) -> Command {
    let group = Group::new(group).unwrap_or_else(|_| unreachable!("a group of ours has a good name"));
    let result = Some(Box::new(JobResult { code, bytes: bytes.into() }));
    Command::from(Fail { result, ..Fail::new(jid, holder, group, message) })
}

fn write_assignment(grab: Grab, handle: &[u8], job: &Popped, data: &[u8], out: &mut BytesMut) {
    let details = job.details.as_deref();
    let function = function::bytes(&job.queue);
    let reducer = details.and_then(|details| details.metadata.as_ref()).map_or(&b""[..], Payload::bytes);
    let assignment = Assignment {
        grab,
        handle,
        function: &function[..],
        unique: unique_id(details.and_then(|details| details.unique.as_ref())),
        reducer: if reducer.contains(&0) { b"" } else { reducer },
        data,
    };
    write_packet(Response::Assign(assignment), out);
}
