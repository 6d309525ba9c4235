//! C

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use geartrain_core::{
    Answer, Call, ChunkKind, Delivery, Jid, JobEnding, OnEnd, OrphanPolicy, Payload, Priority, Put,
    PutOptions, PutReply, RETRIES_MAX, Reply, ResultWaiter, StateName, Status, StatusOf, StatusReply,
    StreamItem, UniqueKey,
};
use sha2::{Digest, Sha256};

use super::super::{AwaitedJob, calendar};
use super::worker::FAIL_GROUP;
use super::{
    BatchBuilder, Session, Slot, append_shared, error_fault, no_reply_fault, refusal_fault, shared_payload,
    write_packet,
};
use crate::function;
use crate::packet::{Fault, JobStatus, Mode, Priority as Level, Report, ReportBody, Response, Submission};

/// What a unique ID begins with that stands for a job's data. No ID that a client gives holds a NUL.
const DATA_KEY_PREFIX: &[u8] = b"-\0";

impl Session {
    pub(super) async fn submit(&mut self, submission: Submission, to: &mut BatchBuilder) {
        let (queue, klass) = match &self.last_function {
            Some((function, queue, klass)) if *function == submission.function => {
                (queue.clone(), klass.clone())
            }
            _ => {
                let named = function::queue(&submission.function)
                    .and_then(|queue| Ok((function::klass(&queue)?, queue)));
                let Ok((klass, queue)) = named else { return to.refuse(&Fault::FunctionName) };
                let function = Bytes::copy_from_slice(&submission.function);
                self.last_function = Some((function, queue.clone(), klass.clone()));
                (queue, klass)
            }
        };
        let jid = match self.shared.handles.next(&*self.shared.backend).await {
            Ok(jid) => jid,
            Err(error) => return to.refuse(&error_fault(&error)),
        };
        let now = self.shared.clock.now();
        let mut put = Put::new(queue, jid.clone(), klass, &submission.data[..]);
        put.priority = match submission.priority() {
            Level::High => Some(Priority::from(1)),
            Level::Normal => None,
            Level::Low => Some(Priority::from(-1)),
        };
        match submission.mode {
            Mode::Epoch(second) => put.delay = calendar::delay_until(second, now),
            Mode::Scheduled(calendar) => match calendar::next_match(calendar, now) {
                Some(second) => put.delay = calendar::delay_until(second, now),
                None => {
                    return to.refuse(&Fault::Argument("No minute of the next years matches this schedule"));
                }
            },
            _ => {}
        }
        let front = self.shared.router.stream_id();
        let number = (!submission.is_background()).then(|| {
            self.last_submitted += 1;
            self.last_submitted
        });
        let waiter =
            number.map(|number| ResultWaiter { stream_id: front, connection: self.peer.number, number });
        let mut terms = self.put_options(&mut put, waiter, unique_key(&submission.unique, &submission.data));
        if let Mode::Reduce { reducer, .. } = &submission.mode
            && !reducer.is_empty()
        {
            terms.metadata = Some(Payload::from(&reducer[..]));
        }
        if terms != PutOptions::default() {
            put.options = Some(Box::new(terms));
        }
        to.call(
            Call { now: Some(now), command: put.into() },
            Slot::Submitted { jid, number, stream_id: front },
        );
    }

    /// What is asked for every job beyond Qless.
    pub(crate) fn put_options(
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

    pub(super) fn get_status(&mut self, handle: Bytes, to: &mut BatchBuilder) {
        match self.jid_of(&handle) {
            Some(jid) => to.call(Status { of: StatusOf::Jid(jid) }, Slot::Status(handle)),
            None => {
                to.reply(|out| write_packet(Response::Status { handle, status: JobStatus::default() }, out))
            }
        }
    }

    pub(super) fn complete_submit(
        &mut self,
        jid: Jid,
        number: Option<u64>,
        front: u64,
        answer: Option<Answer>,
        out: &mut BytesMut,
    ) {
        self.last_answered = self.last_answered.max(number.unwrap_or(0));
        let jid = match answer {
            Some(Ok(Reply::Put(PutReply::Coalesced { jid }))) => jid,
            Some(Ok(Reply::Put(_))) => jid,
            Some(Err(refusal)) => return refusal_fault(&refusal).encode(out),
            _ => return no_reply_fault().encode(out),
        };
        self.with_handle(&jid, |handle| write_packet(Response::JobCreated { handle }, out));
        let Some(number) = number else { return };
        let (handle, alias) = (self.handle_of(&jid), self.alias_of(&jid));
        self.peer.info().awaited.insert(number, AwaitedJob { stream_id: front, jid, handle, alias });
        if front != self.shared.router.stream_id() {
            // It was put while the stream changed, so nobody will hear of it.
            self.fail_awaited(front, out);
        }
    }

    /// What can be told of what came: of which job, and what. What is about a submission that is not answered yet has to wait.
    pub(crate) fn take_deliverable(&mut self, news: VecDeque<Delivery>) -> Vec<(Bytes, StreamItem)> {
        self.undelivered.extend(news);
        let mut heard = Vec::new();
        let mut later = VecDeque::new();
        for Delivery { waiter, jid, item: told } in std::mem::take(&mut self.undelivered) {
            if waiter.number > self.last_answered {
                later.push_back(Delivery { waiter, jid, item: told });
                continue;
            }
            let mut about = self.peer.info();
            let is_end = matches!(told, StreamItem::Ended(..));
            let handle = match about.awaited.get(&waiter.number) {
                Some(awaited) if awaited.stream_id == waiter.stream_id => awaited.handle.clone(),
                // It was told already that nothing more comes.
                _ => continue,
            };
            if is_end {
                about.awaited.remove(&waiter.number);
            }
            heard.push((handle, told));
        }
        self.undelivered = later;
        heard
    }

    /// Whether something is known that cannot be told yet.
    pub(crate) fn has_undelivered(&self) -> bool {
        !self.undelivered.is_empty()
    }

    /// Tells the peer of a job that it waits for.
    pub(crate) fn write_item(&mut self, handle: &[u8], told: StreamItem, out: &mut BytesMut) {
        let start = out.len();
        let payload = match &told {
            StreamItem::Chunk(_, payload) => shared_payload(payload),
            StreamItem::Ended(JobEnding::Completed, outcome) => shared_payload(&outcome.bytes),
            _ => None,
        };
        let bytes;
        let news = match &told {
            StreamItem::Chunk(ChunkKind::Data, _) if payload.is_some() => ReportBody::Data(&b""[..]),
            StreamItem::Chunk(ChunkKind::Warning, _) if payload.is_some() => ReportBody::Warning(&b""[..]),
            StreamItem::Ended(JobEnding::Completed, _) if payload.is_some() => ReportBody::Complete(&b""[..]),
            StreamItem::Chunk(ChunkKind::Data, payload) => ReportBody::Data(payload.bytes()),
            StreamItem::Chunk(ChunkKind::Warning, payload) => ReportBody::Warning(payload.bytes()),
            StreamItem::Progress { progress, text: said } => {
                let portion = progress.portion;
                bytes = match said {
                    Some(said) => said.bytes().to_vec(),
                    None => format!("{}\0{}", portion.part(), portion.whole()).into_bytes(),
                };
                let at = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                ReportBody::Status {
                    numerator: &bytes[..at],
                    denominator: bytes.get(at + 1..).unwrap_or(b"0"),
                }
            }
            StreamItem::Ended(JobEnding::Completed, outcome) => ReportBody::Complete(outcome.bytes.bytes()),
            StreamItem::Ended(JobEnding::Failed { group, message }, outcome) if self.exceptions => {
                match outcome.bytes.bytes() {
                    [] if group.as_str() == FAIL_GROUP || message.is_empty() => ReportBody::Fail,
                    [] => ReportBody::Exception(message.as_bytes()),
                    bytes => ReportBody::Exception(bytes),
                }
            }
            StreamItem::Ended(..) => ReportBody::Fail,
            _ => return,
        };
        write_packet(Response::Report(Report { handle, body: news }), out);
        self.spliced.extend(payload.and_then(|payload| append_shared(payload, start, out)));
    }

    /// Nothing more will be heard of what was waited for through a stream.
    pub(crate) fn fail_awaited(&mut self, front: u64, out: &mut BytesMut) {
        let mut about = self.peer.info();
        let lost: Vec<u64> =
            about.awaited.iter().filter(|(_, it)| it.stream_id == front).map(|(number, _)| *number).collect();
        for number in lost {
            if let Some(awaited) = about.awaited.remove(&number) {
                write_packet(
                    Response::Report(Report { handle: &awaited.handle[..], body: ReportBody::Fail }),
                    out,
                );
            }
        }
    }

    /// The number of the next submission of somebody who waits.
    pub(crate) fn next_submission(&mut self) -> u64 {
        self.last_submitted += 1;
        self.last_submitted
    }

    /// All submissions up to this one are answered.
    pub(crate) fn mark_answered(&mut self, number: u64) {
        self.last_answered = self.last_answered.max(number);
    }
}

/// The key that a unique ID stands for, if it stands for one.
pub(crate) fn unique_key(unique: &[u8], data: &[u8]) -> Option<UniqueKey> {
    match unique {
        b"-" if data.is_empty() => None,
        b"-" => UniqueKey::new([DATA_KEY_PREFIX, &Sha256::digest(data)[..]].concat()).ok(),
        // None if it is empty.
        unique => UniqueKey::new(unique).ok(),
    }
}

/// The unique ID that a key is shown as.
pub(crate) fn unique_id(key: Option<&UniqueKey>) -> &[u8] {
    match key.map(UniqueKey::as_bytes) {
        Some(key) if key.starts_with(DATA_KEY_PREFIX) => b"-",
        // It was not put by Gearman, and cannot be said.
        Some(key) if key.contains(&0) => b"",
        key => key.unwrap_or_default(),
    }
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
