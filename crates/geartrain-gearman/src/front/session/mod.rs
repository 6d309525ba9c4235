//! Session of one peer: turns requests into backend calls, and the backend's replies into packets.
//!
//! Each request adds its calls to the next batch, and a slot that says how to write its reply. Replies arrive
//! in the order of the calls and are written in the order of the slots. A peer may act as a client
//! ([`client`]), as a worker ([`worker`]), or as both.

mod client;
mod worker;

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use geartrain_core::{
    Answer, BackendError, Call, Detach, DetachScope, Jid, Klass, Payload, QueueName, Refusal, Reply,
    StreamMessage, WorkerLost, WorkerName,
};
use geartrain_front::SHARED_BYTES_MIN;

use super::handles::{Alias, Aliases, HANDLE_BYTES_MAX, is_handle};
use super::heartbeats::Heartbeats;
use super::idle_workers::Registration;
use super::mailbox::Mailbox;
use super::report_retry::{PendingReport, ReportRetries};
use super::{Peer, Shared};
use crate::packet::{self, Fault, Grab, JobStatus, Request, Response, is_exceptions_option};

pub(crate) use client::{job_status, unique_id, unique_key};

/// How the reply to one request is written.
pub(crate) enum Slot {
    /// The reply is encoded already.
    Encoded(BytesMut),
    /// A put. `number` is the submission number if the client waits for the job.
    Submitted { jid: Jid, number: Option<u64>, stream_id: u64 },
    /// A pop for this many GRAB_JOB requests.
    Grabbed(Vec<Grab>),
    /// A status request, with the handle to repeat.
    Status(Bytes),
    /// A report: the first in the batch's list that has no slot yet.
    Report,
    /// A call whose reply is ignored.
    NoReply,
    /// The worker is idle from here on.
    PreSleep,
}

impl Slot {
    /// Whether the slot takes a reply of the backend.
    pub(crate) fn has_call(&self) -> bool {
        !matches!(self, Slot::Encoded(_) | Slot::PreSleep)
    }
}

/// Builds the next batch: its calls, and a slot for each reply.
#[derive(Default)]
pub(crate) struct BatchBuilder {
    pub(crate) calls: Vec<Call>,
    pub(crate) slots: Vec<Slot>,
    /// The reports among the calls, kept so that they can be retried.
    pub(crate) reports: VecDeque<PendingReport>,
    /// Pending GRAB_JOB requests. They are executed last and as one pop: reports before it can only make more
    /// jobs ready.
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

    /// Replies with an ERROR packet.
    pub(crate) fn refuse(&mut self, fault: &Fault) {
        self.reply(|out| fault.encode(out));
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() + self.grabs.len()
    }
}

/// State of one peer.
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) peer: Arc<Peer>,
    mailbox: Arc<Mailbox>,
    pub(crate) worker: WorkerName,
    /// Whether the backend may know it as a worker.
    is_worker: bool,
    /// Whether the client has set the option `exceptions`.
    exceptions: bool,
    functions: Vec<QueueName>,
    /// Cache of the last submission's function, which is usually the next one's too.
    last_function: Option<(Bytes, QueueName, Klass)>,
    /// Where the next pop starts among the functions (round robin).
    pop_turn: usize,
    /// Held jobs and their heartbeats.
    heartbeats: Heartbeats,
    /// Reports that the backend has not taken yet.
    pub(crate) report_retries: ReportRetries,
    /// Handles for jobs whose jids are not valid handles.
    aliases: Aliases,
    /// Numbers of the last foreground submission, and of the last one answered.
    last_submitted: u64,
    last_answered: u64,
    /// Result stream items whose submission is not answered yet.
    undelivered: VecDeque<StreamMessage>,
    is_idle: bool,
    /// Whether it was woken and has not asked for a job since: then it will probably be idle again soon.
    was_woken: bool,
    registration: Option<Registration>,
    /// Large payloads to be written without copying, each with its offset in the output buffer.
    pub(crate) spliced: Vec<(usize, Bytes)>,
}

impl Session {
    pub(crate) fn new(
        shared: Arc<Shared>,
        peer: Arc<Peer>,
        worker: WorkerName,
        mailbox: Arc<Mailbox>,
    ) -> Session {
        let exceptions = shared.options.exceptions;
        Session {
            shared,
            peer,
            mailbox,
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

    /// Adds a request to the next batch.
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
            // ALL_YOURS is a promise that changes nothing here.
            Request::AllYours => {}
            // Handled above, or deferred by the connection.
            Request::Grab(_) | Request::Report(_) | Request::GetStatusUnique { .. } => {}
        }
    }

    /// The jid for a handle, if the handle can be one.
    pub(crate) fn jid_of(&self, handle: &[u8]) -> Option<Jid> {
        match self.aliases.get(handle) {
            Some(alias) => Some(alias.jid.clone()),
            None => {
                let text = std::str::from_utf8(handle).ok()?;
                Jid::new(Some(text).filter(|text| text.len() <= HANDLE_BYTES_MAX)?).ok()
            }
        }
    }

    /// The alias of a job whose jid is not a valid handle.
    pub(crate) fn alias_of(&mut self, jid: &Jid) -> Option<Arc<Alias>> {
        let is_good = jid.with_str(is_handle);
        (!is_good).then(|| self.aliases.get_or_create(jid, self.peer.number))
    }

    /// Passes the handle of a job to `read`, without copying it.
    pub(crate) fn with_handle<T>(&mut self, jid: &Jid, read: impl FnOnce(&[u8]) -> T) -> T {
        match self.alias_of(jid) {
            Some(alias) => read(&alias.handle),
            None => jid.with_str(|text| read(text.as_bytes())),
        }
    }

    /// The handle of a job.
    pub(crate) fn handle_of(&mut self, jid: &Jid) -> Bytes {
        self.with_handle(jid, Bytes::copy_from_slice)
    }

    /// Writes the reply to a request.
    pub(crate) fn complete(&mut self, slot: Slot, answer: Option<Answer>, out: &mut BytesMut) {
        match slot {
            Slot::Encoded(bytes) => out.extend_from_slice(&bytes),
            Slot::Submitted { jid, number, stream_id } => {
                self.complete_submit(jid, number, stream_id, answer, out)
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
            // The connection handles the replies to reports.
            Slot::Report | Slot::NoReply => {}
            Slot::PreSleep => self.register_idle(),
        }
    }

    /// Ends the session. Returns the final calls: detach from awaited jobs, report the worker as lost.
    pub(crate) async fn close(&mut self) -> Vec<Call> {
        self.end_idle();
        self.heartbeats.stop().await;
        if !self.report_retries.is_empty() {
            let (worker, reports) = (&self.worker, self.report_retries.len());
            tracing::warn!(%worker, reports, "reports were not stored in time; the jobs will run again");
        }
        let mut calls = Vec::new();
        if self.last_submitted > 0 {
            let stream_id = self.shared.router.stream_id();
            let scope = DetachScope::Connection { stream_id, connection: self.peer.number };
            calls.push(Call::from(Detach { scope }));
        }
        if self.is_worker {
            let evidence = Some("its connection ended".to_owned());
            calls.push(Call::from(WorkerLost { worker: self.worker.clone(), evidence }));
        }
        calls
    }
}

/// The ERROR packet for a refusal.
pub(crate) fn refusal_fault(refusal: &Refusal) -> Fault {
    match refusal {
        Refusal::QueueFull { .. } => Fault::QueueFull,
        other => Fault::Storage(other.to_string()),
    }
}

/// The ERROR packet for a backend that does not answer.
pub(crate) fn error_fault(error: &BackendError) -> Fault {
    match error {
        BackendError::Refused(refusal) => refusal_fault(refusal),
        error => Fault::Storage(with_causes(error)),
    }
}

/// Returns a payload that is large enough to be shared rather than copied.
fn shared_payload(payload: &Payload) -> Option<Bytes> {
    (payload.bytes().len() >= SHARED_BYTES_MIN).then(|| payload.to_shared())
}

/// Finishes a packet whose last argument is a shared payload: counts it into the packet's length, and returns
/// the offset to splice it in at.
fn append_shared(payload: Bytes, start: usize, out: &mut BytesMut) -> Option<(usize, Bytes)> {
    packet::extend_length(&mut out[start..], payload.len()).then(|| (out.len(), payload))
}

/// The ERROR packet for a missing or unexpected reply.
fn no_reply_fault() -> Fault {
    Fault::Storage("The queue did not answer".to_owned())
}

/// An error and its causes, on one line.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let (mut text, mut next) = (error.to_string(), error.source());
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Encodes a packet. It cannot fail: handles hold no NUL, and payloads are smaller than 4 GiB.
pub(crate) fn write_packet<B: AsRef<[u8]>>(response: Response<B>, out: &mut BytesMut) {
    if let Err(error) = response.encode(out) {
        tracing::error!(%error, "a packet could not be written");
    }
}
