//! W

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use geartrain_core::{
    Announce, AnnounceChange, Answer, Capability, Chunk, ChunkKind, Command, Complete, Count, DURATION_MAX,
    Fail, Group, Holder, Jid, JobResult, PAYLOAD_BYTES_MAX, Payload, Pop, PopOrder, PopReply, Popped,
    Portion, Progress, Progressed, QueueName, Refusal, Reply, Seconds,
};

use super::super::heartbeats::JobsGuard;
use super::super::jobs::Held;
use super::super::reports::{self, ReportKind};
use super::client::shown;
use super::{Gathered, Session, Slot, end_with, large, write};
use crate::function;
use crate::packet::{Assignment, Fault, Grab, News, Report, Response};

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
    pub(super) fn can_do(&mut self, function: &[u8], timeout: Option<Duration>, to: &mut Gathered) {
        let Ok(queue) = function::queue(function) else { return to.refuse(&Fault::FunctionName) };
        if !self.functions.contains(&queue) {
            if self.functions.len() >= FUNCTIONS_MAX {
                return to.refuse(&Fault::Argument("A worker can do at most 1024 functions"));
            }
            self.functions.push(queue.clone());
            self.peer.about().functions.push(queue.clone());
        }
        let attempt_max = timeout.map(|timeout| {
            Seconds::new(timeout.as_secs_f64()).map_or(DURATION_MAX, |it| it.min(DURATION_MAX))
        });
        let ability = Capability { queue, klass: None, attempt_max };
        self.announce(AnnounceChange::Can(vec![ability]), to);
        if self.is_asleep {
            // Lies down again, to be woken for this as well.
            to.slots.push(Slot::Asleep);
        }
    }

    pub(super) fn cannot_do(&mut self, function: &[u8], to: &mut Gathered) {
        let Ok(queue) = function::queue(function) else { return to.refuse(&Fault::FunctionName) };
        self.functions.retain(|able| *able != queue);
        self.peer.about().functions.retain(|able| *able != queue);
        self.announce(AnnounceChange::Cannot(vec![(queue, None)]), to);
    }

    /// Takes these functions in place of all that it could do before.
    pub(crate) fn can_do_only(&mut self, functions: Vec<QueueName>, to: &mut Gathered) {
        self.peer.about().functions = functions.clone();
        let ability = |queue: &QueueName| Capability { queue: queue.clone(), klass: None, attempt_max: None };
        let abilities = functions.iter().map(ability).collect();
        self.functions = functions;
        self.announce(AnnounceChange::Only(abilities), to);
    }

    pub(super) fn announce(&mut self, change: AnnounceChange, to: &mut Gathered) {
        self.is_worker = true;
        self.heartbeats.announce(!self.functions.is_empty(), &self.shared, &self.worker);
        to.call(Announce { worker: self.worker.clone(), change }, Slot::Silent);
    }

    pub(crate) fn functions(&self) -> &[QueueName] {
        &self.functions
    }

    pub(super) fn grab(&mut self, grab: Grab, to: &mut Gathered) {
        self.get_up();
        if self.functions.is_empty() {
            return to.say(|out| write(Response::<&[u8]>::NoJob, out));
        }
        to.grabs.push(grab);
        if to.grabs.len() >= GRABS_MAX {
            self.ask_for_jobs(to);
        }
    }

    /// Asks for the jobs that are wanted, before anything else is done.
    pub(crate) fn ask_for_jobs(&mut self, to: &mut Gathered) {
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
            _ => PopOrder::Priority { turn: self.turn },
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
    pub(crate) fn jobs(&self) -> JobsGuard<'_> {
        self.heartbeats.jobs()
    }

    pub(super) fn report(&mut self, report: Report, to: &mut Gathered) {
        let Report { handle, news } = report;
        let jid = self.known_as(&handle);
        if self.jobs().get(&jid).is_none() {
            // Of a job that it once held it may still have something to say; that is not worth an error, which would end many workers.
            if !self.jobs().held_once(&jid) {
                to.refuse(&Fault::job_not_found(&news));
            }
            return;
        }
        if let Some(report) = self.command(&jid, &news, to.number) {
            to.call(report.command.clone(), Slot::Report);
            to.reports.push_back(report);
        }
    }

    /// The jid that a handle stands for.
    pub(super) fn known_as(&self, handle: &Bytes) -> Bytes {
        match self.aliases.get(handle) {
            Some(alias) => alias.jid.to_string().into(),
            None => handle.clone(),
        }
    }

    /// Whether a report has to wait until those before it are stored. If the part of a result was repeated
    /// after the end of its job was stored, the waiting clients would miss it.
    pub(crate) fn must_wait(&self, report: &Report, batch: u64) -> bool {
        let jid = self.known_as(&report.handle);
        self.jobs().get(&jid).and_then(|held| held.part_in_batch).is_some_and(|carrier| carrier != batch)
    }

    /// What news of a job that it holds ask of the backend. After the last of them it does not hold it any more.
    pub(crate) fn command(&mut self, jid: &[u8], news: &News, batch: u64) -> Option<reports::Report> {
        if news.is_final() {
            let held = self.jobs().let_go(jid)?;
            let (jid, token) = (held.jid.clone(), held.token);
            return Some(reports::Report { jid, token, kind: ReportKind::End, command: end(held, news)? });
        }
        let mut jobs = self.jobs();
        let held = jobs.get_mut(jid)?;
        let ((jid, holder), token) = (held.right(), held.token);
        let chunk = |kind, bytes: &Bytes| {
            let (jid, holder, bytes) = (jid.clone(), holder.clone(), bytes[..].into());
            Command::from(Chunk { jid, holder, kind, bytes })
        };
        let (kind, command) = match news {
            News::Status { numerator, denominator } => {
                let (part, whole) = news.progress()?;
                let said = [&numerator[..], &[0], denominator].concat();
                let progress = Progressed { portion: Portion::as_said(part, whole), seconds_left: None };
                let progress = Progress::new(jid.clone(), holder, progress);
                (ReportKind::Progress, Command::from(Progress { said: Some(said.into()), ..progress }))
            }
            News::Data(bytes) => {
                if let Some(parts) = &mut held.parts
                    && parts.len() + bytes.len() <= PAYLOAD_BYTES_MAX
                {
                    parts.extend_from_slice(bytes);
                }
                (ReportKind::Chunk, chunk(ChunkKind::Data, bytes))
            }
            News::Warning(bytes) => (ReportKind::Chunk, chunk(ChunkKind::Warning, bytes)),
            News::Complete(_) | News::Fail | News::Exception(_) => return None,
        };
        if kind == ReportKind::Chunk {
            held.part_in_batch = Some(batch);
        }
        Some(reports::Report { jid, token, kind, command })
    }

    /// Takes what the backend said to a report.
    pub(crate) fn stored(&mut self, report: reports::Report, answer: Answer) {
        let reports::Report { jid, token, kind, command } = report;
        match (kind, answer) {
            (ReportKind::Chunk, answer) => {
                let mut jobs = self.jobs();
                if let Some(held) = jobs.attempt(&jid, token) {
                    held.part_in_batch = None;
                    // A client that received a part must not receive it again at the end.
                    if let Ok(Reply::Chunk(1..)) = answer
                        && matches!(command, Command::Chunk(Chunk { kind: ChunkKind::Data, .. }))
                    {
                        held.parts = None;
                    }
                }
            }
            (ReportKind::End, Err(refusal @ Refusal::TooLarge { .. })) => {
                // Otherwise the job would be done again, with the same result, without end.
                tracing::warn!(%jid, %refusal, "the result of a job cannot be stored; the job fails");
                let holder = Holder::Token(token);
                let command = failed(jid.clone(), holder, FAIL_GROUP, &refusal.to_string(), 1, &[]);
                self.not_stored(reports::Report { jid, token, kind, command });
            }
            // It may be held again, if it had to be repeated.
            (ReportKind::End, _) => drop(self.jobs().end(&jid, token)),
            (ReportKind::Progress, _) => {}
        }
    }

    /// The backend did not take a report. It is repeated, and until it is stored the job is held.
    pub(crate) fn not_stored(&mut self, report: reports::Report) {
        if report.kind == ReportKind::End {
            let held = Held::reported(report.jid.clone(), report.token);
            self.heartbeats.hold(held, &self.shared, &self.worker);
        }
        self.unstored.push(report);
    }

    /// The job that it holds: the draft's workers have one at a time.
    pub(crate) fn held(&self) -> Option<Bytes> {
        self.jobs().any().map(|held| held.jid.to_string().into())
    }

    /// A job that it holds ends badly, with a code of the worker's own.
    pub(crate) fn fail(&mut self, jid: &[u8], code: u8, bytes: &[u8]) -> Option<reports::Report> {
        let held = self.jobs().let_go(jid)?;
        let ((jid, holder), token) = (held.right(), held.token);
        let command = if bytes.is_empty() {
            let message = format!("its worker ended it with code {code}");
            failed(jid.clone(), holder, FAIL_GROUP, &message, code.into(), bytes)
        } else {
            failed(jid.clone(), holder, EXCEPTION_GROUP, &message(bytes), code.into(), bytes)
        };
        Some(reports::Report { jid, token, kind: ReportKind::End, command })
    }

    /// A job that it holds got further, as the draft says it.
    pub(crate) fn progress(
        &self,
        jid: &[u8],
        part: u32,
        whole: u32,
        seconds_left: u32,
    ) -> Option<reports::Report> {
        let jobs = self.jobs();
        let held = jobs.get(jid)?;
        let ((jid, holder), token) = (held.right(), held.token);
        let seconds_left = (seconds_left > 0).then_some(seconds_left);
        let progress = Progressed { portion: Portion::as_said(part, whole), seconds_left };
        let command = Progress::new(jid.clone(), holder, progress).into();
        Some(reports::Report { jid, token, kind: ReportKind::Progress, command })
    }

    pub(super) fn grabbed(&mut self, grabs: &[Grab], answer: Option<Answer>, out: &mut BytesMut) {
        let reply = match answer {
            Some(Ok(Reply::Pop(reply))) => reply,
            _ => PopReply { jobs: Vec::new(), turn: self.turn },
        };
        self.turn = reply.turn;
        let mut jobs = reply.jobs.into_iter();
        for grab in grabs {
            match jobs.next() {
                Some(job) => {
                    let start = out.len();
                    let payload = large(&job.payload);
                    let data = if payload.is_some() { b"" } else { job.payload.bytes() };
                    self.with_handle(&job.jid, |handle| assign(*grab, handle, &job, data, out));
                    self.spliced.extend(payload.and_then(|payload| end_with(payload, start, out)));
                }
                None => write(Response::<&[u8]>::NoJob, out),
            }
        }
        self.shared.sleepers.asked(&self.functions);
    }

    /// Holds a job from now on.
    pub(crate) fn hold(&mut self, job: &Popped) {
        let alias = self.alias_of(&job.jid);
        let lock = self.shared.until(job.lock.expires);
        self.heartbeats.hold(Held::new(job, lock, alias), &self.shared, &self.worker);
    }

    pub(super) fn lie_down(&mut self) {
        if let Some(bed) = self.bed.take() {
            self.shared.sleepers.get_up(bed);
        }
        if self.is_asleep && !self.functions.is_empty() {
            self.bed = self.shared.sleepers.lie_down(&self.inbox, &self.functions);
        }
    }

    /// It has asked for jobs, and nothing else after that. If it was just woken, it will lie down again soon.
    pub(crate) fn watch_ahead(&mut self) {
        if std::mem::take(&mut self.was_woken) {
            self.shared.sleepers.watch_ahead(&self.functions);
        }
    }

    /// Sleeps from now on: the draft's workers say so when all before it is answered.
    pub(crate) fn sleep(&mut self) {
        self.is_asleep = true;
        self.lie_down();
    }

    /// Is awake from now on.
    pub(crate) fn get_up(&mut self) {
        self.is_asleep = false;
        if let Some(bed) = self.bed.take() {
            self.shared.sleepers.get_up(bed);
        }
    }

    /// Whether somebody who is woken has been asleep.
    pub(crate) fn wake(&mut self) -> bool {
        self.bed = None;
        self.was_woken = true;
        std::mem::take(&mut self.is_asleep)
    }

    /// The backend knows it as a worker.
    pub(crate) fn note_worker(&mut self) {
        self.is_worker = true;
    }

    /// Where the next pop begins among the functions.
    pub(crate) fn turn(&mut self, turn: usize) {
        self.turn = turn;
    }
}

/// What the last news of a job ask of the backend.
fn end(held: Held, news: &News) -> Option<Command> {
    let (jid, holder) = held.right();
    Some(match news {
        News::Complete(bytes) => {
            // Whoever asks for a result later gets the parts that were sent before as well.
            let bytes: Payload = match held.parts {
                Some(mut parts) if !parts.is_empty() => {
                    parts.extend_from_slice(bytes);
                    parts.into()
                }
                _ => bytes[..].into(),
            };
            let result = (!bytes.bytes().is_empty()).then(|| Box::new(JobResult { code: 0, bytes }));
            Command::from(Complete { result, ..Complete::new(jid, holder) })
        }
        News::Fail => failed(jid, holder, FAIL_GROUP, "its worker said that it failed", 1, &[]),
        News::Exception(bytes) => failed(jid, holder, EXCEPTION_GROUP, &message(bytes), 2, bytes),
        News::Data(_) | News::Warning(_) | News::Status { .. } => return None,
    })
}

/// The beginning of what a worker said, as text.
fn message(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MESSAGE_BYTES_MAX)]).into_owned()
}

fn failed(jid: Jid, holder: Holder, group: &str, message: &str, code: i32, bytes: &[u8]) -> Command {
    // All of these are good names.
    let group = Group::new(group).unwrap_or_else(|_| unreachable!("a group of ours has a good name"));
    let result = Some(Box::new(JobResult { code, bytes: bytes.into() }));
    Command::from(Fail { result, ..Fail::new(jid, holder, group, message) })
}

fn assign(grab: Grab, handle: &[u8], job: &Popped, data: &[u8], out: &mut BytesMut) {
    let about = job.details.as_deref();
    let function = function::bytes(&job.queue);
    let reducer = about.and_then(|about| about.metadata.as_ref()).map_or(&b""[..], Payload::bytes);
    let assignment = Assignment {
        grab,
        handle,
        function: &function[..],
        unique: shown(about.and_then(|about| about.unique.as_ref())),
        reducer: if reducer.contains(&0) { b"" } else { reducer },
        data,
    };
    write(Response::Assign(assignment), out);
}
