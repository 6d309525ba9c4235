//! Client role of a session: submitting jobs, asking for their status, and receiving their result streams.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use geartrain_core::{
    Answer, Call, ChunkKind, Jid, JobEnding, OnEnd, OrphanPolicy, Payload, Priority, Put, PutOptions,
    PutReply, RETRIES_MAX, Reply, ResultWaiter, StateName, Status, StatusOf, StatusReply, StreamItem,
    StreamMessage, UniqueKey,
};
use sha2::{Digest, Sha256};

use super::worker::FAIL_GROUP;
use super::{
    BatchBuilder, Session, Slot, append_shared, error_fault, no_reply_fault, refusal_fault, shared_payload,
    write_packet,
};
use crate::front::{AwaitedJob, calendar};
use crate::function;
use crate::packet::{Fault, JobStatus, Mode, Priority as Level, Report, ReportBody, Response, Submission};

/// Prefix of the unique key for `-` (the job's data is the key). It holds a NUL, which no ID sent by a client
/// does.
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
        let stream_id = self.shared.router.stream_id();
        let number = (!submission.is_background()).then(|| {
            self.last_submitted += 1;
            self.last_submitted
        });
        let waiter = number.map(|number| ResultWaiter { stream_id, connection: self.peer.number, number });
        let mut options =
            self.put_options(&mut put, waiter, unique_key(&submission.unique, &submission.data));
        if let Mode::Reduce { reducer, .. } = &submission.mode
            && !reducer.is_empty()
        {
            options.metadata = Some(Payload::from(&reducer[..]));
        }
        if options != PutOptions::default() {
            put.options = Some(Box::new(options));
        }
        to.call(Call::at(now, put), Slot::Submitted { jid, number, stream_id });
    }

    /// The put options that every Gearman job has.
    pub(crate) fn put_options(
        &self,
        put: &mut Put,
        waiter: Option<ResultWaiter>,
        unique: Option<UniqueKey>,
    ) -> PutOptions {
        let attempts = self.shared.options.attempts_max;
        put.retries = Some(attempts.map_or(RETRIES_MAX, |attempts| attempts.max(1) - 1));
        let mut options = PutOptions {
            unique,
            crashes_max: attempts.map(|attempts| attempts.max(1) + 1),
            ..PutOptions::default()
        };
        if waiter.is_some() {
            options.attach = waiter;
            options.orphan_policy = OrphanPolicy::WhileAwaited;
            options.on_end = OnEnd::Forget;
        }
        options
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
        stream_id: u64,
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
        self.peer.info().awaited.insert(number, AwaitedJob { stream_id, jid, handle, alias });
        if stream_id != self.shared.router.stream_id() {
            // The stream was replaced while the job was put: it will carry no items.
            self.fail_awaited(stream_id, out);
        }
    }

    /// Returns the items that can be written now, each with the handle of its job. Items of a submission that
    /// is not answered yet are kept for later.
    pub(crate) fn take_deliverable(
        &mut self,
        deliveries: VecDeque<StreamMessage>,
    ) -> Vec<(Bytes, StreamItem)> {
        self.undelivered.extend(deliveries);
        let mut deliverable = Vec::new();
        let mut later = VecDeque::new();
        for StreamMessage { waiter, jid, item } in std::mem::take(&mut self.undelivered) {
            if waiter.number > self.last_answered {
                later.push_back(StreamMessage { waiter, jid, item });
                continue;
            }
            let mut info = self.peer.info();
            let is_end = matches!(item, StreamItem::Ended(..));
            let handle = match info.awaited.get(&waiter.number) {
                Some(awaited) if awaited.stream_id == waiter.stream_id => awaited.handle.clone(),
                // Its client has already received WORK_FAIL.
                _ => continue,
            };
            if is_end {
                info.awaited.remove(&waiter.number);
            }
            deliverable.push((handle, item));
        }
        self.undelivered = later;
        deliverable
    }

    /// Whether items wait for their submission to be answered.
    pub(crate) fn has_undelivered(&self) -> bool {
        !self.undelivered.is_empty()
    }

    /// Writes an item of a result stream as a packet.
    pub(crate) fn write_item(&mut self, handle: &[u8], item: StreamItem, out: &mut BytesMut) {
        let start = out.len();
        let payload = match &item {
            StreamItem::Chunk(_, payload) => shared_payload(payload),
            StreamItem::Ended(JobEnding::Completed, result) => shared_payload(&result.bytes),
            _ => None,
        };
        let bytes;
        let body = match &item {
            StreamItem::Chunk(ChunkKind::Data, _) if payload.is_some() => ReportBody::Data(&b""[..]),
            StreamItem::Chunk(ChunkKind::Warning, _) if payload.is_some() => ReportBody::Warning(&b""[..]),
            StreamItem::Ended(JobEnding::Completed, _) if payload.is_some() => ReportBody::Complete(&b""[..]),
            StreamItem::Chunk(ChunkKind::Data, payload) => ReportBody::Data(payload.bytes()),
            StreamItem::Chunk(ChunkKind::Warning, payload) => ReportBody::Warning(payload.bytes()),
            StreamItem::Progress { progress, text } => {
                let portion = progress.portion;
                bytes = match text {
                    Some(text) => text.bytes().to_vec(),
                    None => format!("{}\0{}", portion.part(), portion.whole()).into_bytes(),
                };
                let at = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                ReportBody::Status {
                    numerator: &bytes[..at],
                    denominator: bytes.get(at + 1..).unwrap_or(b"0"),
                }
            }
            StreamItem::Ended(JobEnding::Completed, result) => ReportBody::Complete(result.bytes.bytes()),
            StreamItem::Ended(JobEnding::Failed { group, message }, result) if self.exceptions => {
                match result.bytes.bytes() {
                    [] if group.as_str() == FAIL_GROUP || message.is_empty() => ReportBody::Fail,
                    [] => ReportBody::Exception(message.as_bytes()),
                    bytes => ReportBody::Exception(bytes),
                }
            }
            StreamItem::Ended(..) => ReportBody::Fail,
            _ => return,
        };
        write_packet(Response::Report(Report { handle, body }), out);
        self.spliced.extend(payload.and_then(|payload| append_shared(payload, start, out)));
    }

    /// Sends WORK_FAIL for every job awaited through a stream that has ended.
    pub(crate) fn fail_awaited(&mut self, stream_id: u64, out: &mut BytesMut) {
        let mut info = self.peer.info();
        let lost: Vec<u64> = info
            .awaited
            .iter()
            .filter(|(_, it)| it.stream_id == stream_id)
            .map(|(number, _)| *number)
            .collect();
        for number in lost {
            if let Some(awaited) = info.awaited.remove(&number) {
                write_packet(
                    Response::Report(Report { handle: &awaited.handle[..], body: ReportBody::Fail }),
                    out,
                );
            }
        }
    }

    /// The number of the next foreground submission.
    pub(crate) fn next_submission(&mut self) -> u64 {
        self.last_submitted += 1;
        self.last_submitted
    }

    /// Marks all submissions up to this one as answered.
    pub(crate) fn mark_answered(&mut self, number: u64) {
        self.last_answered = self.last_answered.max(number);
    }
}

/// The unique key for a unique ID, if the ID is not empty.
pub(crate) fn unique_key(unique: &[u8], data: &[u8]) -> Option<UniqueKey> {
    match unique {
        b"-" if data.is_empty() => None,
        b"-" => UniqueKey::new([DATA_KEY_PREFIX, &Sha256::digest(data)[..]].concat()).ok(),
        // An empty ID is no key.
        unique => UniqueKey::new(unique).ok(),
    }
}

/// The unique ID to show for a key.
pub(crate) fn unique_id(key: Option<&UniqueKey>) -> &[u8] {
    match key.map(UniqueKey::as_bytes) {
        Some(key) if key.starts_with(DATA_KEY_PREFIX) => b"-",
        // Not put through Gearman, and not representable in a packet.
        Some(key) if key.contains(&0) => b"",
        key => key.unwrap_or_default(),
    }
}

/// The status of an unfinished job.
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
