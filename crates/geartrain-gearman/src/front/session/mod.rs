//! One peer of today's protocol: what it can do, what it holds, and what it waits for.
//!
//! Each request becomes calls to the backend, and a slot for what is answered. Answers come in the order of the requests, and each is written into its slot's place.

mod client;
mod worker;

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use geartrain_core::{
    Answer, BackendError, Call, Delivery, Detach, DetachScope, Jid, Klass, Payload, QueueName, Refusal,
    Reply, WorkerLost, WorkerName,
};
use geartrain_front::SHARED_BYTES_MIN;

use super::handles::{Alias, Aliases, HANDLE_BYTES_MAX, is_handle};
use super::heartbeats::Heartbeats;
use super::idle_workers::Registration;
use super::mailbox::Mailbox;
use super::report_retry::{self, ReportRetries};
use super::{Peer, Shared};
use crate::packet::{self, Fault, Grab, JobStatus, Request, Response, is_exceptions_option};

pub(crate) use client::{job_status, unique_id, unique_key};

/// What becomes of a request.
pub(crate) enum Slot {
    /// It is answered already.
    Encoded(BytesMut),
    /// A job was put: which, and the number of whoever waits for it.
    Submitted { jid: Jid, number: Option<u64>, stream_id: u64 },
    /// So many jobs were asked for at once.
    Grabbed(Vec<Grab>),
    /// How a job stands was asked for.
    Status(Bytes),
    /// The first of the batch's reports that has none yet.
    Report,
    /// Nobody waits for an answer.
    NoReply,
    /// The worker sleeps from here on.
    PreSleep,
}

impl Slot {
    /// Whether the backend was asked something.
    pub(crate) fn has_call(&self) -> bool {
        !matches!(self, Slot::Encoded(_) | Slot::PreSleep)
    }
}

/// Calls that are not sent yet, and what becomes of their answers.
#[derive(Default)]
pub(crate) struct BatchBuilder {
    pub(crate) calls: Vec<Call>,
    pub(crate) slots: Vec<Slot>,
    /// The reports among the calls, so that they can be repeated.
    pub(crate) reports: VecDeque<report_retry::PendingReport>,
    /// Jobs that were asked for. They are asked for last, together: reports can only make more jobs ready.
    grabs: Vec<Grab>,
    /// The number of this batch.
    pub(crate) number: u64,
}

impl BatchBuilder {
    fn call(&mut self, call: impl Into<Call>, slot: Slot) {
        self.calls.push(call.into());
        self.slots.push(slot);
    }

    fn reply(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let mut bytes = BytesMut::new();
        write(&mut bytes);
        self.slots.push(Slot::Encoded(bytes));
    }

    /// Answers that something is wrong.
    pub(crate) fn refuse(&mut self, fault: &Fault) {
        self.reply(|out| fault.encode(out));
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() + self.grabs.len()
    }
}

/// One peer.
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) peer: Arc<Peer>,
    mailbox: Arc<Mailbox>,
    pub(crate) worker: WorkerName,
    /// Whether the backend may know it as a worker.
    is_worker: bool,
    /// Whether it wants to know why jobs fail.
    exceptions: bool,
    functions: Vec<QueueName>,
    /// The function of the last submission: mostly it is that of the next.
    last_function: Option<(Bytes, QueueName, Klass)>,
    /// Where the next pop begins among the functions.
    pop_turn: usize,
    /// The jobs that it holds.
    heartbeats: Heartbeats,
    /// Reports that the backend did not take yet.
    pub(crate) report_retries: ReportRetries,
    /// What the peer knows those jobs as whose jids are no good as handles.
    aliases: Aliases,
    /// The number of the last submission of somebody who waits, and of the last that was answered.
    last_submitted: u64,
    last_answered: u64,
    /// What cannot be told yet, because the submission is not answered.
    undelivered: VecDeque<Delivery>,
    is_idle: bool,
    /// Whether it was woken and has not asked for a job since: then it is likely to lie down again soon.
    was_woken: bool,
    registration: Option<Registration>,
    /// Large payloads that go into the output without a copy, each with the offset in the buffer that it
    /// goes to.
    pub(crate) spliced: Vec<(usize, Bytes)>,
}

impl Session {
    pub(crate) fn new(
        shared: Arc<Shared>,
        peer: Arc<Peer>,
        worker: WorkerName,
        inbox: Arc<Mailbox>,
    ) -> Session {
        let exceptions = shared.options.exceptions;
        Session {
            shared,
            peer,
            mailbox: inbox,
            worker,
            is_worker: false,
            exceptions,
            functions: Vec::new(),
            last_function: None,
            pop_turn: 0,
            heartbeats: Heartbeats::default(),
            report_retries: ReportRetries::default(),
            aliases: Aliases::default(),
            last_submitted: 0,
            last_answered: 0,
            undelivered: VecDeque::new(),
            is_idle: false,
            was_woken: false,
            registration: None,
            spliced: Vec::new(),
        }
    }

    /// Takes a request up. What the backend has to do for it goes to the others that are gathered.
    pub(crate) async fn enqueue(&mut self, request: Request, to: &mut BatchBuilder) {
        match request {
            Request::Grab(grab) => return self.grab(grab, to),
            Request::Report(report) => return self.report(report, to),
            _ => self.flush_grabs(to),
        }
        match request {
            Request::Submit(submission) => self.submit(submission, to).await,
            Request::CanDo { function, timeout } => self.can_do(&function, timeout, to),
            Request::CantDo { function } => self.cannot_do(&function, to),
            Request::ResetAbilities => self.set_functions(Vec::new(), to),
            Request::PreSleep => {
                self.is_idle = true;
                to.slots.push(Slot::PreSleep);
            }
            Request::SetClientId { id } => self.peer.info().id = Bytes::copy_from_slice(&id),
            Request::GetStatus { handle } => self.get_status(handle, to),
            Request::SetOption { option } if is_exceptions_option(&option) => {
                self.exceptions = true;
                to.reply(|out| write_packet(Response::OptionSet { option }, out));
            }
            Request::SetOption { .. } => to.refuse(&Fault::UnknownOption),
            Request::Echo { data } => to.reply(|out| write_packet(Response::Echo { data }, out)),
            // It promises something that makes no difference.
            Request::AllYours => {}
            // These were dealt with, or wait for their turn.
            Request::Grab(_) | Request::Report(_) | Request::GetStatusUnique { .. } => {}
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
        (!is_good).then(|| self.aliases.get_or_create(jid, self.peer.number))
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
    pub(crate) fn complete(&mut self, slot: Slot, answer: Option<Answer>, out: &mut BytesMut) {
        match slot {
            Slot::Encoded(bytes) => out.extend_from_slice(&bytes),
            Slot::Submitted { jid, number, stream_id: front } => {
                self.complete_submit(jid, number, front, answer, out)
            }
            Slot::Grabbed(grabs) => self.complete_grab(&grabs, answer, out),
            Slot::Status(handle) => match answer {
                Some(Ok(Reply::Status(status))) => {
                    let status = status.as_ref().map_or(JobStatus::default(), job_status);
                    write_packet(Response::Status { handle, status }, out);
                }
                Some(Err(refusal)) => refusal_fault(&refusal).encode(out),
                _ => no_reply_fault().encode(out),
            },
            // What was answered to a report, the connection has taken.
            Slot::Report | Slot::NoReply => {}
            Slot::PreSleep => self.register_idle(),
        }
    }

    /// What is left to be said when the peer has gone.
    pub(crate) async fn close(&mut self) -> Vec<Call> {
        self.end_idle();
        self.heartbeats.stop().await;
        if !self.report_retries.is_empty() {
            let (worker, reports) = (&self.worker, self.report_retries.len());
            tracing::warn!(%worker, reports, "reports were not stored in time; the jobs are done again");
        }
        let mut calls = Vec::new();
        if self.last_submitted > 0 {
            let front = self.shared.router.stream_id();
            let who = DetachScope::Connection { stream_id: front, connection: self.peer.number };
            calls.push(Call::from(Detach { scope: who }));
        }
        if self.is_worker {
            let evidence = Some("its connection ended".to_owned());
            calls.push(Call::from(WorkerLost { worker: self.worker.clone(), evidence }));
        }
        calls
    }
}

/// What a client is told if a job cannot be put.
pub(crate) fn refusal_fault(refusal: &Refusal) -> Fault {
    match refusal {
        Refusal::QueueFull { .. } => Fault::QueueFull,
        other => Fault::Storage(other.to_string()),
    }
}

/// The same if the backend has no answers.
pub(crate) fn error_fault(error: &BackendError) -> Fault {
    match error {
        BackendError::Refused(refusal) => refusal_fault(refusal),
        error => Fault::Storage(with_causes(error)),
    }
}

/// A payload that is better shared than copied.
fn shared_payload(payload: &Payload) -> Option<Bytes> {
    (payload.bytes().len() >= SHARED_BYTES_MIN).then(|| payload.to_shared())
}

/// Ends a packet that was written without its last argument, which is shared: the length counts it, and it
/// is to be put where the packet ends.
fn append_shared(payload: Bytes, start: usize, out: &mut BytesMut) -> Option<(usize, Bytes)> {
    packet::extend_length(&mut out[start..], payload.len()).then(|| (out.len(), payload))
}

/// What a client is told if the backend answered something else.
fn no_reply_fault() -> Fault {
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
pub(crate) fn write_packet<B: AsRef<[u8]>>(response: Response<B>, out: &mut BytesMut) {
    if let Err(error) = response.encode(out) {
        tracing::error!(%error, "a packet could not be written");
    }
}
