//! W

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use geartrain_core::{
    Announce, AnnounceChange, Answer, Capability, Chunk, ChunkKind, Command, Complete, Count, DURATION_MAX,
    Fail, Group, Holder, Jid, JobResult, PAYLOAD_BYTES_MAX, Payload, Pop, PopOrder, PopReply, Popped,
    Portion, Progress, Progressed, QueueName, Refusal, Reply, Seconds,
};

use super::super::heartbeats::HeldJobsGuard;
use super::super::held_jobs::HeldJob;
use super::super::report_retry::{self, ReportKind};
use super::client::unique_id;
use super::{BatchBuilder, Session, Slot, append_shared, shared_payload, write_packet};
use crate::function;
use crate::packet::{Assignment, Fault, Grab, Report, ReportBody, Response};

/// The most functions that one worker can do: as many as one pop looks at.
const FUNCTIONS_MAX: usize = 1_024;
/// The most jobs that are asked for at once.
const GRABS_MAX: usize = 1_000;
/// How much of an exception is kept as what was said about a failure.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// The groups that jobs fail into when their worker says so.
pub(super) const FAIL_GROUP: &str = "gearman-fail";
const EXCEPTION_GROUP: &str = "gearman-exception";

impl Session {
    pub(super) fn can_do(&mut self, function: &[u8], timeout: Option<Duration>, to: &mut BatchBuilder) {
        let Ok(queue) = function::queue(function) else { return to.refuse(&Fault::FunctionName) };
        if !self.functions.contains(&queue) {
            if self.functions.len() >= FUNCTIONS_MAX {
                return to.refuse(&Fault::Argument("A worker can do at most 1024 functions"));
            }
            self.functions.push(queue.clone());
            self.peer.info().functions.push(queue.clone());
        }
        let attempt_max = timeout.map(|timeout| {
            Seconds::new(timeout.as_secs_f64()).map_or(DURATION_MAX, |it| it.min(DURATION_MAX))
        });
        let ability = Capability { queue, klass: None, attempt_max };
        self.announce(AnnounceChange::Can(vec![ability]), to);
        if self.is_idle {
            // Lies down again, to be woken for this as well.
            to.slots.push(Slot::PreSleep);
        }
    }

    pub(super) fn cannot_do(&mut self, function: &[u8], to: &mut BatchBuilder) {
        let Ok(queue) = function::queue(function) else { return to.refuse(&Fault::FunctionName) };
        self.functions.retain(|able| *able != queue);
        self.peer.info().functions.retain(|able| *able != queue);
        self.announce(AnnounceChange::Cannot(vec![(queue, None)]), to);
    }

    /// Takes these functions in place of all that it could do before.
    pub(crate) fn set_functions(&mut self, functions: Vec<QueueName>, to: &mut BatchBuilder) {
        self.peer.info().functions = functions.clone();
        let ability = |queue: &QueueName| Capability { queue: queue.clone(), klass: None, attempt_max: None };
        let abilities = functions.iter().map(ability).collect();
        self.functions = functions;
        self.announce(AnnounceChange::Only(abilities), to);
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

    /// Asks for the jobs that are wanted, before anything else is done.
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
        }
    }

    /// The jobs that the peer holds.
    pub(crate) fn held_jobs(&self) -> HeldJobsGuard<'_> {
        self.heartbeats.held_jobs()
    }

    pub(super) fn report(&mut self, report: Report, to: &mut BatchBuilder) {
        let Report { handle, body: news } = report;
        let jid = self.jid_bytes(&handle);
        if self.held_jobs().get(&jid).is_none() {
            // Of a job that it once held it may still have something to say; that is not worth an error, which would end many workers.
            if !self.held_jobs().was_held(&jid) {
                to.refuse(&Fault::job_not_found(&news));
            }
            return;
        }
        if let Some(report) = self.report_command(&jid, &news, to.number) {
            to.call(report.command.clone(), Slot::Report);
            to.reports.push_back(report);
        }
    }

    /// The jid that a handle stands for.
    pub(super) fn jid_bytes(&self, handle: &Bytes) -> Bytes {
        match self.aliases.get(handle) {
            Some(alias) => alias.jid.to_string().into(),
            None => handle.clone(),
        }
    }

    /// Whether a report has to wait until those before it are stored. If the part of a result was repeated
    /// after the end of its job was stored, the waiting clients would miss it.
    pub(crate) fn report_must_wait(&self, report: &Report, batch: u64) -> bool {
        let jid = self.jid_bytes(&report.handle);
        self.held_jobs()
            .get(&jid)
            .and_then(|held| held.chunk_in_batch)
            .is_some_and(|carrier| carrier != batch)
    }

    /// What news of a job that it holds ask of the backend. After the last of them it does not hold it any more.
    pub(crate) fn report_command(
        &mut self,
        jid: &[u8],
        news: &ReportBody,
        batch: u64,
    ) -> Option<report_retry::PendingReport> {
        if news.is_final() {
            let held = self.held_jobs().release(jid)?;
            let (jid, token) = (held.jid.clone(), held.token);
            return Some(report_retry::PendingReport {
                jid,
                token,
                kind: ReportKind::End,
                command: end_command(held, news)?,
            });
        }
        let mut jobs = self.held_jobs();
        let held = jobs.get_mut(jid)?;
        let ((jid, holder), token) = (held.jid_and_holder(), held.token);
        let chunk = |kind, bytes: &Bytes| {
            let (jid, holder, bytes) = (jid.clone(), holder.clone(), bytes[..].into());
            Command::from(Chunk { jid, holder, kind, bytes })
        };
        let (kind, command) = match news {
            ReportBody::Status { numerator, denominator } => {
                let (part, whole) = news.progress()?;
                let said = [&numerator[..], &[0], denominator].concat();
                let progress = Progressed { portion: Portion::unchecked(part, whole), seconds_left: None };
                let progress = Progress::new(jid.clone(), holder, progress);
                (ReportKind::Progress, Command::from(Progress { text: Some(said.into()), ..progress }))
            }
            ReportBody::Data(bytes) => {
                if let Some(parts) = &mut held.chunks
                    && parts.len() + bytes.len() <= PAYLOAD_BYTES_MAX
                {
                    parts.extend_from_slice(bytes);
                }
                (ReportKind::Chunk, chunk(ChunkKind::Data, bytes))
            }
            ReportBody::Warning(bytes) => (ReportKind::Chunk, chunk(ChunkKind::Warning, bytes)),
            ReportBody::Complete(_) | ReportBody::Fail | ReportBody::Exception(_) => return None,
        };
        if kind == ReportKind::Chunk {
            held.chunk_in_batch = Some(batch);
        }
        Some(report_retry::PendingReport { jid, token, kind, command })
    }

    /// Takes what the backend said to a report.
    pub(crate) fn complete_report(&mut self, report: report_retry::PendingReport, answer: Answer) {
        let report_retry::PendingReport { jid, token, kind, command } = report;
        match (kind, answer) {
            (ReportKind::Chunk, answer) => {
                let mut jobs = self.held_jobs();
                if let Some(held) = jobs.attempt(&jid, token) {
                    held.chunk_in_batch = None;
                    // A client that received a part must not receive it again at the end.
                    if let Ok(Reply::Chunk(1..)) = answer
                        && matches!(command, Command::Chunk(Chunk { kind: ChunkKind::Data, .. }))
                    {
                        held.chunks = None;
                    }
                }
            }
            (ReportKind::End, Err(refusal @ Refusal::TooLarge { .. })) => {
                // Otherwise the job would be done again, with the same result, without end.
                tracing::warn!(%jid, %refusal, "the result of a job cannot be stored; the job fails");
                let holder = Holder::Token(token);
                let command = fail_command(jid.clone(), holder, FAIL_GROUP, &refusal.to_string(), 1, &[]);
                self.retry_report(report_retry::PendingReport { jid, token, kind, command });
            }
            // It may be held again, if it had to be repeated.
            (ReportKind::End, _) => drop(self.held_jobs().release_attempt(&jid, token)),
            (ReportKind::Progress, _) => {}
        }
    }

    /// The backend did not take a report. It is repeated, and until it is stored the job is held.
    pub(crate) fn retry_report(&mut self, report: report_retry::PendingReport) {
        if report.kind == ReportKind::End {
            let held = HeldJob::end_reported(report.jid.clone(), report.token);
            self.heartbeats.hold(held, &self.shared, &self.worker);
        }
        self.report_retries.push(report);
    }

    /// The job that it holds: the draft's workers have one at a time.
    pub(crate) fn current_jid(&self) -> Option<Bytes> {
        self.held_jobs().any().map(|held| held.jid.to_string().into())
    }

    /// A job that it holds ends badly, with a code of the worker's own.
    pub(crate) fn fail_report(
        &mut self,
        jid: &[u8],
        code: u8,
        bytes: &[u8],
    ) -> Option<report_retry::PendingReport> {
        let held = self.held_jobs().release(jid)?;
        let ((jid, holder), token) = (held.jid_and_holder(), held.token);
        let command = if bytes.is_empty() {
            let message = format!("its worker ended it with code {code}");
            fail_command(jid.clone(), holder, FAIL_GROUP, &message, code.into(), bytes)
        } else {
            fail_command(jid.clone(), holder, EXCEPTION_GROUP, &message(bytes), code.into(), bytes)
        };
        Some(report_retry::PendingReport { jid, token, kind: ReportKind::End, command })
    }

    /// A job that it holds got further, as the draft says it.
    pub(crate) fn progress_report(
        &self,
        jid: &[u8],
        part: u32,
        whole: u32,
        seconds_left: u32,
    ) -> Option<report_retry::PendingReport> {
        let jobs = self.held_jobs();
        let held = jobs.get(jid)?;
        let ((jid, holder), token) = (held.jid_and_holder(), held.token);
        let seconds_left = (seconds_left > 0).then_some(seconds_left);
        let progress = Progressed { portion: Portion::unchecked(part, whole), seconds_left };
        let command = Progress::new(jid.clone(), holder, progress).into();
        Some(report_retry::PendingReport { jid, token, kind: ReportKind::Progress, command })
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

    /// Holds a job from now on.
    pub(crate) fn hold(&mut self, job: &Popped) {
        let alias = self.alias_of(&job.jid);
        let lock = self.shared.lock_remaining(job.lock.expires);
        self.heartbeats.hold(HeldJob::new(job, lock, alias), &self.shared, &self.worker);
    }

    pub(super) fn register_idle(&mut self) {
        if let Some(bed) = self.registration.take() {
            self.shared.idle_workers.deregister(bed);
        }
        if self.is_idle && !self.functions.is_empty() {
            self.registration = self.shared.idle_workers.register(&self.mailbox, &self.functions);
        }
    }

    /// It has asked for jobs, and nothing else after that. If it was just woken, it will lie down again soon.
    pub(crate) fn watch_early(&mut self) {
        if std::mem::take(&mut self.was_woken) {
            self.shared.idle_workers.watch_early(&self.functions);
        }
    }

    /// Sleeps from now on: the draft's workers say so when all before it is answered.
    pub(crate) fn pre_sleep(&mut self) {
        self.is_idle = true;
        self.register_idle();
    }

    /// Is awake from now on.
    pub(crate) fn end_idle(&mut self) {
        self.is_idle = false;
        if let Some(bed) = self.registration.take() {
            self.shared.idle_workers.deregister(bed);
        }
    }

    /// Whether somebody who is woken has been asleep.
    pub(crate) fn take_wakeup(&mut self) -> bool {
        self.registration = None;
        self.was_woken = true;
        std::mem::take(&mut self.is_idle)
    }

    /// The backend knows it as a worker.
    pub(crate) fn mark_worker(&mut self) {
        self.is_worker = true;
    }

    /// Where the next pop begins among the functions.
    pub(crate) fn set_pop_turn(&mut self, turn: usize) {
        self.pop_turn = turn;
    }
}

/// What the last news of a job ask of the backend.
fn end_command(held: HeldJob, news: &ReportBody) -> Option<Command> {
    let (jid, holder) = held.jid_and_holder();
    Some(match news {
        ReportBody::Complete(bytes) => {
            // Whoever asks for a result later gets the parts that were sent before as well.
            let bytes: Payload = match held.chunks {
                Some(mut parts) if !parts.is_empty() => {
                    parts.extend_from_slice(bytes);
                    parts.into()
                }
                _ => bytes[..].into(),
            };
            let result = (!bytes.bytes().is_empty()).then(|| Box::new(JobResult { code: 0, bytes }));
            Command::from(Complete { result, ..Complete::new(jid, holder) })
        }
        ReportBody::Fail => fail_command(jid, holder, FAIL_GROUP, "its worker said that it failed", 1, &[]),
        ReportBody::Exception(bytes) => fail_command(jid, holder, EXCEPTION_GROUP, &message(bytes), 2, bytes),
        ReportBody::Data(_) | ReportBody::Warning(_) | ReportBody::Status { .. } => return None,
    })
}

/// The beginning of what a worker said, as text.
fn message(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MESSAGE_BYTES_MAX)]).into_owned()
}

fn fail_command(jid: Jid, holder: Holder, group: &str, message: &str, code: i32, bytes: &[u8]) -> Command {
    // All of these are good names.
    let group = Group::new(group).unwrap_or_else(|_| unreachable!("a group of ours has a good name"));
    let result = Some(Box::new(JobResult { code, bytes: bytes.into() }));
    Command::from(Fail { result, ..Fail::new(jid, holder, group, message) })
}

fn write_assignment(grab: Grab, handle: &[u8], job: &Popped, data: &[u8], out: &mut BytesMut) {
    let about = job.details.as_deref();
    let function = function::bytes(&job.queue);
    let reducer = about.and_then(|about| about.metadata.as_ref()).map_or(&b""[..], Payload::bytes);
    let assignment = Assignment {
        grab,
        handle,
        function: &function[..],
        unique: unique_id(about.and_then(|about| about.unique.as_ref())),
        reducer: if reducer.contains(&0) { b"" } else { reducer },
        data,
    };
    write_packet(Response::Assign(assignment), out);
}
