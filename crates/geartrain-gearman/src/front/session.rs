//! One peer of today's protocol: what it can do, what it holds, and what it waits for.
//!
//! Each request becomes calls to the backend, and a slot for what is answered. Answers come in the order of the requests, and each is written into its slot's place.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use geartrain_core::{
    Announce, AnnounceChange, Answer, BackendError, Call, Capability, Chunk, ChunkKind, Command, Complete,
    Count, DURATION_MAX, Delivery, Detach, DetachScope, Fail, Group, Holder, Jid, JobEnding, JobResult,
    Klass, OnEnd, OrphanPolicy, PAYLOAD_BYTES_MAX, Payload, Pop, PopOrder, PopReply, Popped, Portion,
    Priority, Progress, Progressed, Put, PutOptions, PutReply, QueueName, RETRIES_MAX, Refusal, Reply,
    ResultWaiter, Seconds, StateName, Status, StatusOf, StatusReply, StreamItem, UniqueKey, WorkerLost,
    WorkerName,
};
use sha2::{Digest, Sha256};

use geartrain_front::SHARED_BYTES_MIN;

use super::handles::{Alias, Aliases, HANDLE_BYTES_MAX, is_handle};
use super::heartbeats::{Heartbeats, JobsGuard};
use super::inbox::Inbox;
use super::jobs::Held;
use super::reports::{self, ReportKind, Unstored};
use super::sleepers::Bed;
use super::{Awaited, Peer, Shared, calendar, function};
use crate::packet::{
    self, Assignment, Fault, Grab, JobStatus, Mode, News, Priority as Level, Report, Request, Response,
    Submission, names_exceptions,
};

/// The most functions that one worker can do: as many as one pop looks at.
const FUNCTIONS_MAX: usize = 1_024;
/// The most jobs that are asked for at once.
const GRABS_MAX: usize = 1_000;
/// How much of an exception is kept as what was said about a failure.
const MESSAGE_BYTES_MAX: usize = 1_024;
/// What a unique ID begins with that stands for a job's data. No ID that a client gives holds a NUL.
const SAME_DATA: &[u8] = b"-\0";

/// The groups that jobs fail into when their worker says so.
pub(crate) const FAIL_GROUP: &str = "gearman-fail";
pub(crate) const EXCEPTION_GROUP: &str = "gearman-exception";

/// What becomes of a request.
pub(crate) enum Slot {
    /// It is answered already.
    Said(BytesMut),
    /// A job was put: which, and the number of whoever waits for it.
    Submitted { jid: Jid, number: Option<u64>, front: u64 },
    /// So many jobs were asked for at once.
    Grabbed(Vec<Grab>),
    /// How a job stands was asked for.
    Status(Bytes),
    /// The first of the batch's reports that has none yet.
    Report,
    /// Nobody waits for an answer.
    Silent,
    /// The worker sleeps from here on.
    Asleep,
}

impl Slot {
    /// Whether the backend was asked something.
    pub(crate) fn has_call(&self) -> bool {
        !matches!(self, Slot::Said(_) | Slot::Asleep)
    }
}

/// Calls that are not sent yet, and what becomes of their answers.
#[derive(Default)]
pub(crate) struct Gathered {
    pub(crate) calls: Vec<Call>,
    pub(crate) slots: Vec<Slot>,
    /// The reports among the calls, so that they can be repeated.
    pub(crate) reports: VecDeque<reports::Report>,
    /// Jobs that were asked for. They are asked for last, together: reports can only make more jobs ready.
    grabs: Vec<Grab>,
    /// The number of this batch.
    pub(crate) number: u64,
}

impl Gathered {
    fn call(&mut self, call: impl Into<Call>, slot: Slot) {
        self.calls.push(call.into());
        self.slots.push(slot);
    }

    fn say(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let mut bytes = BytesMut::new();
        write(&mut bytes);
        self.slots.push(Slot::Said(bytes));
    }

    /// Answers that something is wrong.
    pub(crate) fn refuse(&mut self, fault: &Fault) {
        self.say(|out| fault.encode(out));
    }

    pub(crate) fn weight(&self) -> usize {
        self.slots.len() + self.grabs.len()
    }
}

/// One peer.
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) peer: Arc<Peer>,
    inbox: Arc<Inbox>,
    pub(crate) worker: WorkerName,
    /// Whether the backend may know it as a worker.
    is_worker: bool,
    /// Whether it wants to know why jobs fail.
    exceptions: bool,
    functions: Vec<QueueName>,
    /// The function of the last submission: mostly it is that of the next.
    last: Option<(Bytes, QueueName, Klass)>,
    /// Where the next pop begins among the functions.
    turn: usize,
    /// The jobs that it holds.
    heartbeats: Heartbeats,
    /// Reports that the backend did not take yet.
    pub(crate) unstored: Unstored,
    /// What the peer knows those jobs as whose jids are no good as handles.
    aliases: Aliases,
    /// The number of the last submission of somebody who waits, and of the last that was answered.
    submitted: u64,
    answered: u64,
    /// What cannot be told yet, because the submission is not answered.
    untold: VecDeque<Delivery>,
    is_asleep: bool,
    /// Whether it was woken and has not asked for a job since: then it is likely to lie down again soon.
    was_woken: bool,
    bed: Option<Bed>,
    /// Large payloads that go into the output without a copy, each with the offset in the buffer that it
    /// goes to.
    pub(crate) spliced: Vec<(usize, Bytes)>,
}

impl Session {
    pub(crate) fn new(
        shared: Arc<Shared>,
        peer: Arc<Peer>,
        worker: WorkerName,
        inbox: Arc<Inbox>,
    ) -> Session {
        let exceptions = shared.options.exceptions;
        Session {
            shared,
            peer,
            inbox,
            worker,
            is_worker: false,
            exceptions,
            functions: Vec::new(),
            last: None,
            turn: 0,
            heartbeats: Heartbeats::default(),
            unstored: Unstored::default(),
            aliases: Aliases::default(),
            submitted: 0,
            answered: 0,
            untold: VecDeque::new(),
            is_asleep: false,
            was_woken: false,
            bed: None,
            spliced: Vec::new(),
        }
    }

    /// Takes a request up. What the backend has to do for it goes to the others that are gathered.
    pub(crate) async fn take(&mut self, request: Request, to: &mut Gathered) {
        match request {
            Request::Grab(grab) => return self.grab(grab, to),
            Request::Report(report) => return self.report(report, to),
            _ => self.ask_for_jobs(to),
        }
        match request {
            Request::Submit(submission) => self.submit(submission, to).await,
            Request::CanDo { function, timeout } => self.can_do(&function, timeout, to),
            Request::CantDo { function } => self.cannot_do(&function, to),
            Request::ResetAbilities => self.can_do_only(Vec::new(), to),
            Request::PreSleep => {
                self.is_asleep = true;
                to.slots.push(Slot::Asleep);
            }
            Request::SetClientId { id } => self.peer.about().id = Bytes::copy_from_slice(&id),
            Request::GetStatus { handle } => self.ask_status(handle, to),
            Request::SetOption { option } if names_exceptions(&option) => {
                self.exceptions = true;
                to.say(|out| write(Response::OptionSet { option }, out));
            }
            Request::SetOption { .. } => to.refuse(&Fault::UnknownOption),
            Request::Echo { data } => to.say(|out| write(Response::Echo { data }, out)),
            // It promises something that makes no difference.
            Request::AllYours => {}
            // These were dealt with, or wait for their turn.
            Request::Grab(_) | Request::Report(_) | Request::GetStatusUnique { .. } => {}
        }
    }

    async fn submit(&mut self, submission: Submission, to: &mut Gathered) {
        let (queue, klass) = match &self.last {
            Some((function, queue, klass)) if *function == submission.function => {
                (queue.clone(), klass.clone())
            }
            _ => {
                let named = function::queue(&submission.function)
                    .and_then(|queue| Ok((function::klass(&queue)?, queue)));
                let Ok((klass, queue)) = named else { return to.refuse(&Fault::FunctionName) };
                let function = Bytes::copy_from_slice(&submission.function);
                self.last = Some((function, queue.clone(), klass.clone()));
                (queue, klass)
            }
        };
        let jid = match self.shared.handles.next(&*self.shared.backend).await {
            Ok(jid) => jid,
            Err(error) => return to.refuse(&trouble(&error)),
        };
        let now = self.shared.clock.now();
        let mut put = Put::new(queue, jid.clone(), klass, &submission.data[..]);
        put.priority = match submission.priority() {
            Level::High => Some(Priority::from(1)),
            Level::Normal => None,
            Level::Low => Some(Priority::from(-1)),
        };
        match submission.mode {
            Mode::Epoch(second) => put.delay = calendar::until(second, now),
            Mode::Scheduled(calendar) => match calendar::next(calendar, now) {
                Some(second) => put.delay = calendar::until(second, now),
                None => {
                    return to.refuse(&Fault::Argument("No minute of the next years matches this schedule"));
                }
            },
            _ => {}
        }
        let front = self.shared.mail.front();
        let number = (!submission.is_background()).then(|| {
            self.submitted += 1;
            self.submitted
        });
        let waiter =
            number.map(|number| ResultWaiter { stream_id: front, connection: self.peer.number, number });
        let mut terms = self.terms(&mut put, waiter, unique(&submission.unique, &submission.data));
        if let Mode::Reduce { reducer, .. } = &submission.mode
            && !reducer.is_empty()
        {
            terms.metadata = Some(Payload::from(&reducer[..]));
        }
        if terms != PutOptions::default() {
            put.options = Some(Box::new(terms));
        }
        to.call(Call { now: Some(now), command: put.into() }, Slot::Submitted { jid, number, front });
    }

    /// What is asked for every job beyond Qless.
    pub(crate) fn terms(
        &self,
        put: &mut Put,
        waiter: Option<ResultWaiter>,
        unique: Option<UniqueKey>,
    ) -> PutOptions {
        let attempts = self.shared.options.attempts_max;
        put.retries = Some(attempts.map_or(RETRIES_MAX, |attempts| attempts.max(1) - 1));
        let mut terms = PutOptions {
            unique,
            crashes_max: attempts.map(|attempts| attempts.max(1) + 1),
            ..PutOptions::default()
        };
        if waiter.is_some() {
            terms.attach = waiter;
            terms.orphan_policy = OrphanPolicy::WhileAwaited;
            terms.on_end = OnEnd::Forget;
        }
        terms
    }

    fn can_do(&mut self, function: &[u8], timeout: Option<Duration>, to: &mut Gathered) {
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

    fn cannot_do(&mut self, function: &[u8], to: &mut Gathered) {
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

    fn announce(&mut self, change: AnnounceChange, to: &mut Gathered) {
        self.is_worker = true;
        self.heartbeats.announce(!self.functions.is_empty(), &self.shared, &self.worker);
        to.call(Announce { worker: self.worker.clone(), change }, Slot::Silent);
    }

    pub(crate) fn functions(&self) -> &[QueueName] {
        &self.functions
    }

    fn grab(&mut self, grab: Grab, to: &mut Gathered) {
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

    fn report(&mut self, report: Report, to: &mut Gathered) {
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
    fn known_as(&self, handle: &Bytes) -> Bytes {
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
                let progress = Progressed { portion: Portion::unchecked(part, whole), seconds_left: None };
                let progress = Progress::new(jid.clone(), holder, progress);
                (ReportKind::Progress, Command::from(Progress { text: Some(said.into()), ..progress }))
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
        let progress = Progressed { portion: Portion::unchecked(part, whole), seconds_left };
        let command = Progress::new(jid.clone(), holder, progress).into();
        Some(reports::Report { jid, token, kind: ReportKind::Progress, command })
    }

    fn ask_status(&mut self, handle: Bytes, to: &mut Gathered) {
        match self.jid_of(&handle) {
            Some(jid) => to.call(Status { of: StatusOf::Jid(jid) }, Slot::Status(handle)),
            None => to.say(|out| write(Response::Status { handle, status: JobStatus::default() }, out)),
        }
    }

    /// The job that a handle names, if it can name one.
    pub(crate) fn jid_of(&self, handle: &[u8]) -> Option<Jid> {
        match self.aliases.get(handle) {
            Some(alias) => Some(alias.jid.clone()),
            None => {
                let text = std::str::from_utf8(handle).ok()?;
                Jid::new(Some(text).filter(|text| text.len() <= HANDLE_BYTES_MAX)?).ok()
            }
        }
    }

    /// What the peer knows a job as, if its jid is no good as a handle.
    pub(crate) fn alias_of(&mut self, jid: &Jid) -> Option<Arc<Alias>> {
        let is_good = jid.with_str(is_handle);
        (!is_good).then(|| self.aliases.of(jid, self.peer.number))
    }

    /// Lends what the peer knows a job as.
    pub(crate) fn with_handle<T>(&mut self, jid: &Jid, read: impl FnOnce(&[u8]) -> T) -> T {
        match self.alias_of(jid) {
            Some(alias) => read(&alias.handle),
            None => jid.with_str(|text| read(text.as_bytes())),
        }
    }

    /// What the peer knows a job as.
    pub(crate) fn handle_of(&mut self, jid: &Jid) -> Bytes {
        self.with_handle(jid, Bytes::copy_from_slice)
    }

    /// Writes what has come of a request.
    pub(crate) fn land(&mut self, slot: Slot, answer: Option<Answer>, out: &mut BytesMut) {
        match slot {
            Slot::Said(bytes) => out.extend_from_slice(&bytes),
            Slot::Submitted { jid, number, front } => self.submitted(jid, number, front, answer, out),
            Slot::Grabbed(grabs) => self.grabbed(&grabs, answer, out),
            Slot::Status(handle) => match answer {
                Some(Ok(Reply::Status(status))) => {
                    let status = status.as_ref().map_or(JobStatus::default(), job_status);
                    write(Response::Status { handle, status }, out);
                }
                Some(Err(refusal)) => fault(&refusal).encode(out),
                _ => unanswered().encode(out),
            },
            // What was answered to a report, the connection has taken.
            Slot::Report | Slot::Silent => {}
            Slot::Asleep => self.lie_down(),
        }
    }

    fn submitted(
        &mut self,
        jid: Jid,
        number: Option<u64>,
        front: u64,
        answer: Option<Answer>,
        out: &mut BytesMut,
    ) {
        self.answered = self.answered.max(number.unwrap_or(0));
        let jid = match answer {
            Some(Ok(Reply::Put(PutReply::Coalesced { jid }))) => jid,
            Some(Ok(Reply::Put(_))) => jid,
            Some(Err(refusal)) => return fault(&refusal).encode(out),
            _ => return unanswered().encode(out),
        };
        self.with_handle(&jid, |handle| write(Response::JobCreated { handle }, out));
        let Some(number) = number else { return };
        let (handle, alias) = (self.handle_of(&jid), self.alias_of(&jid));
        self.peer.about().awaited.insert(number, Awaited { front, jid, handle, alias });
        if front != self.shared.mail.front() {
            // It was put while the stream changed, so nobody will hear of it.
            self.lose(front, out);
        }
    }

    fn grabbed(&mut self, grabs: &[Grab], answer: Option<Answer>, out: &mut BytesMut) {
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

    fn lie_down(&mut self) {
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

    /// What can be told of what came: of which job, and what. What is about a submission that is not answered yet has to wait.
    pub(crate) fn hear(&mut self, news: VecDeque<Delivery>) -> Vec<(Bytes, StreamItem)> {
        self.untold.extend(news);
        let mut heard = Vec::new();
        let mut later = VecDeque::new();
        for Delivery { waiter, jid, item: told } in std::mem::take(&mut self.untold) {
            if waiter.number > self.answered {
                later.push_back(Delivery { waiter, jid, item: told });
                continue;
            }
            let mut about = self.peer.about();
            let is_end = matches!(told, StreamItem::Ended(..));
            let handle = match about.awaited.get(&waiter.number) {
                Some(awaited) if awaited.front == waiter.stream_id => awaited.handle.clone(),
                // It was told already that nothing more comes.
                _ => continue,
            };
            if is_end {
                about.awaited.remove(&waiter.number);
            }
            heard.push((handle, told));
        }
        self.untold = later;
        heard
    }

    /// Whether something is known that cannot be told yet.
    pub(crate) fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// Tells the peer of a job that it waits for.
    pub(crate) fn tell(&mut self, handle: &[u8], told: StreamItem, out: &mut BytesMut) {
        let start = out.len();
        let payload = match &told {
            StreamItem::Chunk(_, payload) => large(payload),
            StreamItem::Ended(JobEnding::Completed, outcome) => large(&outcome.bytes),
            _ => None,
        };
        let bytes;
        let news = match &told {
            StreamItem::Chunk(ChunkKind::Data, _) if payload.is_some() => News::Data(&b""[..]),
            StreamItem::Chunk(ChunkKind::Warning, _) if payload.is_some() => News::Warning(&b""[..]),
            StreamItem::Ended(JobEnding::Completed, _) if payload.is_some() => News::Complete(&b""[..]),
            StreamItem::Chunk(ChunkKind::Data, payload) => News::Data(payload.bytes()),
            StreamItem::Chunk(ChunkKind::Warning, payload) => News::Warning(payload.bytes()),
            StreamItem::Progress { progress, text: said } => {
                let portion = progress.portion;
                bytes = match said {
                    Some(said) => said.bytes().to_vec(),
                    None => format!("{}\0{}", portion.part(), portion.whole()).into_bytes(),
                };
                let at = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                News::Status { numerator: &bytes[..at], denominator: bytes.get(at + 1..).unwrap_or(b"0") }
            }
            StreamItem::Ended(JobEnding::Completed, outcome) => News::Complete(outcome.bytes.bytes()),
            StreamItem::Ended(JobEnding::Failed { group, message }, outcome) if self.exceptions => {
                match outcome.bytes.bytes() {
                    [] if group.as_str() == FAIL_GROUP || message.is_empty() => News::Fail,
                    [] => News::Exception(message.as_bytes()),
                    bytes => News::Exception(bytes),
                }
            }
            StreamItem::Ended(..) => News::Fail,
            _ => return,
        };
        write(Response::Report(Report { handle, news }), out);
        self.spliced.extend(payload.and_then(|payload| end_with(payload, start, out)));
    }

    /// Nothing more will be heard of what was waited for through a stream.
    pub(crate) fn lose(&mut self, front: u64, out: &mut BytesMut) {
        let mut about = self.peer.about();
        let lost: Vec<u64> =
            about.awaited.iter().filter(|(_, it)| it.front == front).map(|(number, _)| *number).collect();
        for number in lost {
            if let Some(awaited) = about.awaited.remove(&number) {
                write(Response::Report(Report { handle: &awaited.handle[..], news: News::Fail }), out);
            }
        }
    }

    /// What is left to be said when the peer has gone.
    pub(crate) async fn farewell(&mut self) -> Vec<Call> {
        self.get_up();
        self.heartbeats.stop().await;
        if !self.unstored.is_empty() {
            let (worker, reports) = (&self.worker, self.unstored.len());
            tracing::warn!(%worker, reports, "reports were not stored in time; the jobs are done again");
        }
        let mut calls = Vec::new();
        if self.submitted > 0 {
            let front = self.shared.mail.front();
            let who = DetachScope::Connection { stream_id: front, connection: self.peer.number };
            calls.push(Call::from(Detach { scope: who }));
        }
        if self.is_worker {
            let evidence = Some("its connection ended".to_owned());
            calls.push(Call::from(WorkerLost { worker: self.worker.clone(), evidence }));
        }
        calls
    }

    /// The backend knows it as a worker.
    pub(crate) fn note_worker(&mut self) {
        self.is_worker = true;
    }

    /// Where the next pop begins among the functions.
    pub(crate) fn turn(&mut self, turn: usize) {
        self.turn = turn;
    }

    /// The number of the next submission of somebody who waits.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.submitted += 1;
        self.submitted
    }

    /// All submissions up to this one are answered.
    pub(crate) fn note_answered(&mut self, number: u64) {
        self.answered = self.answered.max(number);
    }
}

/// The key that a unique ID stands for, if it stands for one.
pub(crate) fn unique(unique: &[u8], data: &[u8]) -> Option<UniqueKey> {
    match unique {
        b"-" if data.is_empty() => None,
        b"-" => UniqueKey::new([SAME_DATA, &Sha256::digest(data)[..]].concat()).ok(),
        // None if it is empty.
        unique => UniqueKey::new(unique).ok(),
    }
}

/// The unique ID that a key is shown as.
pub(crate) fn shown(key: Option<&UniqueKey>) -> &[u8] {
    match key.map(UniqueKey::as_bytes) {
        Some(key) if key.starts_with(SAME_DATA) => b"-",
        // It was not put by Gearman, and cannot be said.
        Some(key) if key.contains(&0) => b"",
        key => key.unwrap_or_default(),
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

/// How an unfinished job stands.
pub(crate) fn job_status(status: &StatusReply) -> JobStatus {
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let portion = status.progress.map(|progress| progress.portion);
    JobStatus {
        known: true,
        running: status.state == StateName::Running,
        numerator: portion.map_or(0, |portion| small(portion.part())),
        denominator: portion.map_or(0, |portion| small(portion.whole())),
    }
}

/// What a client is told if a job cannot be put.
pub(crate) fn fault(refusal: &Refusal) -> Fault {
    match refusal {
        Refusal::QueueFull { .. } => Fault::QueueFull,
        other => Fault::Storage(other.to_string()),
    }
}

/// The same if the backend has no answers.
pub(crate) fn trouble(error: &BackendError) -> Fault {
    match error {
        BackendError::Refused(refusal) => fault(refusal),
        error => Fault::Storage(with_causes(error)),
    }
}

/// A payload that is better shared than copied.
fn large(payload: &Payload) -> Option<Bytes> {
    (payload.bytes().len() >= SHARED_BYTES_MIN).then(|| payload.to_shared())
}

/// Ends a packet that was written without its last argument, which is shared: the length counts it, and it
/// is to be put where the packet ends.
fn end_with(payload: Bytes, start: usize, out: &mut BytesMut) -> Option<(usize, Bytes)> {
    packet::lengthen(&mut out[start..], payload.len()).then(|| (out.len(), payload))
}

/// What a client is told if the backend answered something else.
fn unanswered() -> Fault {
    Fault::Storage("The queue did not answer".to_owned())
}

/// An error and what caused it, on one line.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let (mut said, mut next) = (error.to_string(), error.source());
    while let Some(cause) = next {
        said = format!("{said}: {cause}");
        next = cause.source();
    }
    said
}

/// Writes a packet. All that is said here can be said: handles hold no NUL, and payloads are not that large.
pub(crate) fn write<B: AsRef<[u8]>>(response: Response<B>, out: &mut BytesMut) {
    if let Err(error) = response.encode(out) {
        tracing::error!(%error, "a packet could not be written");
    }
}
