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
    Answer, BackendError, Call, Delivery, Detach, DetachScope, Jid, Klass, Payload, QueueName, Refusal, Reply,
    WorkerLost, WorkerName,
};
use geartrain_front::SHARED_BYTES_MIN;

use super::handles::{Alias, Aliases, HANDLE_BYTES_MAX, is_handle};
use super::heartbeats::Heartbeats;
use super::inbox::Inbox;
use super::reports::{self, Unstored};
use super::sleepers::Bed;
use super::{Peer, Shared};
use crate::packet::{self, Fault, Grab, JobStatus, Request, Response, names_exceptions};

pub(crate) use client::{job_status, shown, unique};

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
            let who = DetachScope::Connection { front, connection: self.peer.number };
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
