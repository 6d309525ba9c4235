//! One connection: pipelining. Requests are executed in batches, and replies are written in the order of the
//! requests.
//!
//! All requests read so far form one batch; while the backend executes it, the next batch is read and
//! submitted behind it. Requests that need several calls, and all of the draft, wait until everything before
//! them is answered.
//!
//! Back-pressure: nothing more is read while too many batches are pending, too much output is unwritten, or a
//! report must be retried. A client that does not read for a minute, or whose mailbox overflows, is
//! disconnected.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use geartrain_core::{Answer, BackendError, Reply, WorkerName};
use geartrain_front::{Output, RepeatedWarning, TimedBatch, http_word, warn_of_http};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::draft::DraftSession;
use super::mailbox::Mailbox;
use super::quick_ack::QuickAck;
use super::report_retry::{PendingReport, RetryReplies};
use super::session::{BatchBuilder, Session, Slot, error_fault, with_causes, write_packet};
use super::{Peer, Shared, admin};
use crate::packet::{Fault, Request, Response};
use crate::{Incoming, Parser, text};

/// Batches of one connection that may be pending at the backend.
const BATCHES_MAX: usize = 4;
/// Requests per batch.
const BATCH_REQUESTS_MAX: usize = 1_024;
/// Above this much unwritten output nothing more is read.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Size of a read, adapted to how much the peer sends.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 256 << 10;
/// How long a peer may leave output unread before it is disconnected.
const WRITE_STALL_MAX: Duration = Duration::from_secs(60);

/// Rate-limited warning that the backend does not answer, shared by all requests of clients and workers.
pub(super) static BACKEND_UNAVAILABLE: RepeatedWarning = RepeatedWarning::new();
/// Rate-limited warning that the backend could not be told that a worker is lost.
static WORKER_LOSS_NOT_REPORTED: RepeatedWarning = RepeatedWarning::new();

type PendingReplies = Pin<Box<dyn Future<Output = BatchReplies> + Send>>;
type BatchReplies = Result<Vec<Answer>, BackendError>;

/// Requests executed as one batch.
struct Batch {
    slots: Vec<Slot>,
    reports: VecDeque<PendingReport>,
    pending: PendingReplies,
    replies: Option<BatchReplies>,
    /// Whether the popped jobs are registered for heartbeats. That happens as soon as the replies are there,
    /// however long the peer takes to read earlier output.
    jobs_held: bool,
    /// Carries a large payload, so the backend may execute later batches before it.
    is_large: bool,
    timed: TimedBatch,
}

impl Batch {
    /// Polls for the replies. The first poll submits the calls, so batches are first polled in request order.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.replies.is_none()
            && let Poll::Ready(landed) = self.pending.as_mut().poll(context)
        {
            self.replies = Some(landed);
            self.timed.answered();
        }
        if self.replies.is_some() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// A request that must wait until everything before it is answered.
enum Deferred {
    Request(Request),
    Incoming(Incoming),
}

/// The connection of one peer.
pub(crate) struct Connection<R, W> {
    reader: R,
    writer: W,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    stop: CancellationToken,
    parser: Parser,
    incoming: BytesMut,
    read_bytes: usize,
    session: Session,
    /// Set by the first packet of the draft.
    draft: Option<DraftSession>,
    deferred: Option<Deferred>,
    next_batch: BatchBuilder,
    batches: VecDeque<Batch>,
    out: Output,
    /// The peer is gone and nothing more is written, but some of its reports are not stored yet.
    is_disconnected: bool,
    /// Nothing more is read: the peer closed the connection or sent garbage, or the front-end stops.
    reading_ended: bool,
}

/// The branch of the connection's loop that became ready first.
enum LoopEvent {
    Stop,
    DrainTimeout,
    BatchReady,
    MailboxReady,
    ReportsRetried(RetryReplies),
    Written(std::io::Result<usize>),
    WriteStalled,
    Read(std::io::Result<usize>),
}

impl<R, W> Connection<R, W>
where
    R: AsyncRead + QuickAck + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    pub(crate) fn new(
        reader: R,
        writer: W,
        shared: Arc<Shared>,
        peer: Arc<Peer>,
        worker: WorkerName,
        mailbox: Arc<Mailbox>,
        stop: CancellationToken,
    ) -> Connection<R, W> {
        let options = crate::Options {
            packet_bytes_max: shared.options.packet_bytes_max,
            draft_magic: shared.options.draft_magic,
            ..crate::Options::default()
        };
        Connection {
            reader,
            writer,
            mailbox: mailbox.clone(),
            stop,
            parser: Parser::server(options),
            incoming: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            session: Session::new(shared.clone(), peer, worker, mailbox),
            shared,
            draft: None,
            deferred: None,
            next_batch: BatchBuilder::default(),
            batches: VecDeque::new(),
            out: Output::default(),
            is_disconnected: false,
            reading_ended: false,
        }
    }

    /// Serves the peer until it disconnects or the front-end stops.
    pub(crate) async fn serve(mut self) {
        self.run().await;
        // Sent behind all pending batches, so that jobs popped by them are released as well.
        drop(self.batches);
        let calls = self.session.close().await;
        if !calls.is_empty()
            && let Err(error) = self.shared.backend.execute(calls).await
        {
            let error = with_causes(&error);
            WORKER_LOSS_NOT_REPORTED
                .warn(format_args!("jobs of a lost worker stay locked until their locks expire: {error}"));
        }
        // The peer may be gone already.
        let _ = self.writer.shutdown().await;
    }

    async fn run(&mut self) {
        let drain_timer = tokio::time::sleep(self.shared.options.drain_timeout);
        let write_timer = tokio::time::sleep(WRITE_STALL_MAX);
        tokio::pin!(drain_timer, write_timer);
        let (mut stopping, mut output_pending) = (false, false);
        loop {
            self.dispatch().await;
            self.out.splice(self.session.spliced.drain(..));
            if self.is_done() {
                return;
            }
            // Measured from the moment when the output was first non-empty.
            if !output_pending && !self.out.is_empty() {
                write_timer.as_mut().reset(Instant::now() + WRITE_STALL_MAX);
            }
            output_pending = !self.out.is_empty();
            let room = self.out.len() < OUTPUT_BYTES_MAX;
            let may_read = !self.reading_ended && room && self.accepts_input() && !self.must_wait_for_batch();
            if may_read {
                let wanted = self.parser.bytes_wanted(&self.incoming).clamp(self.read_bytes, READ_BYTES_MAX);
                self.incoming.reserve(wanted);
            }
            let Connection { reader, writer, incoming, batches, out, stop, mailbox, session, shared, .. } =
                self;
            let report_retries = &mut session.report_retries;
            // Cancel safety: `select!` drops the losing branches. Reads, writes and timers lose nothing by
            // that, and the batches live outside.
            let event = tokio::select! {
                biased;
                () = stop.cancelled(), if !stopping => LoopEvent::Stop,
                () = &mut drain_timer, if stopping => LoopEvent::DrainTimeout,
                () = batch_ready(batches, room), if !batches.is_empty() => LoopEvent::BatchReady,
                replies = report_retries.retry(&shared.backend), if !report_retries.is_empty() => {
                    LoopEvent::ReportsRetried(replies)
                }
                () = mailbox.ready(), if room => LoopEvent::MailboxReady,
                written = writer.write(out.chunk()), if !out.is_empty() => LoopEvent::Written(written),
                () = &mut write_timer, if !out.is_empty() => LoopEvent::WriteStalled,
                // Last, so that a peer that never stops sending does not starve the other branches.
                read = reader.read_buf(incoming), if may_read => LoopEvent::Read(read),
            };
            match event {
                LoopEvent::BatchReady => {
                    self.hold_popped_jobs();
                    if room && self.batches.front().is_some_and(|first| first.replies.is_some()) {
                        self.complete_batch();
                    }
                }
                LoopEvent::MailboxReady => {
                    if !self.drain_mailbox() && self.disconnect() {
                        return;
                    }
                }
                LoopEvent::ReportsRetried(replies) => {
                    for (report, answer) in self.session.report_retries.take_answered(replies) {
                        self.session.complete_report(report, answer);
                    }
                }
                LoopEvent::Written(Ok(bytes)) if bytes > 0 => {
                    self.out.advance(bytes);
                    output_pending = false;
                }
                LoopEvent::DrainTimeout => return,
                // A peer that cannot be written to is disconnected.
                LoopEvent::Written(_) | LoopEvent::WriteStalled => {
                    if self.disconnect() {
                        return;
                    }
                }
                LoopEvent::Read(Ok(0) | Err(_)) => self.reading_ended = true,
                LoopEvent::Read(Ok(bytes)) => self.adapt_read_size(bytes),
                LoopEvent::Stop => {
                    stopping = true;
                    self.reading_ended = true;
                    drain_timer.as_mut().reset(Instant::now() + self.shared.options.drain_timeout);
                }
            }
        }
    }

    /// Whether nothing is left to do for this peer.
    fn is_done(&self) -> bool {
        let nothing_to_write = self.out.is_empty() && self.deferred.is_none();
        self.reading_ended && self.is_idle() && nothing_to_write && self.session.report_retries.is_empty()
    }

    /// Gives up the peer, except for its unstored reports. Returns whether there are none.
    fn disconnect(&mut self) -> bool {
        (self.is_disconnected, self.reading_ended) = (true, true);
        // A report may be waiting for an earlier one to be stored.
        self.deferred.take_if(|deferred| !matches!(deferred, Deferred::Request(Request::Report(_))));
        self.incoming.clear();
        self.out.clear();
        self.deferred.is_none()
            && self.batches.iter().all(|batch| batch.reports.is_empty())
            && self.next_batch.reports.is_empty()
            && self.session.report_retries.is_empty()
    }

    /// Whether every request read is answered.
    fn is_idle(&self) -> bool {
        self.next_batch.slots.is_empty() && self.batches.is_empty()
    }

    /// Whether to read more. While a draft client waits for a job, reading only serves to notice a closed
    /// connection: its next request has to wait.
    fn accepts_input(&self) -> bool {
        let waits = self.draft.as_ref().is_some_and(DraftSession::is_waiting);
        self.deferred.is_none()
            && self.session.report_retries.is_empty()
            && (!waits || self.incoming.len() < READ_BYTES_MIN)
    }

    /// Parses and starts all requests read so far, as far as the limits allow.
    async fn dispatch(&mut self) {
        // Requests behind an unstored report must not overtake it.
        while !self.draft.as_ref().is_some_and(DraftSession::is_waiting)
            && self.session.report_retries.is_empty()
        {
            if let Some(request) = self.deferred.take() {
                if !self.is_idle() || self.out.len() >= OUTPUT_BYTES_MAX {
                    self.session.flush_grabs(&mut self.next_batch);
                    self.deferred = Some(request);
                    break;
                }
                self.execute_deferred(request).await;
                continue;
            }
            if self.must_wait_for_batch() {
                break;
            }
            match self.parser.next(&mut self.incoming) {
                Ok(Some(Incoming::Packet(packet))) => match Request::decode(packet) {
                    Ok(request @ Request::GetStatusUnique { .. }) => self.defer(Deferred::Request(request)),
                    Ok(Request::Report(report))
                        if self.session.report_must_wait(&report, self.next_batch.number) =>
                    {
                        self.defer(Deferred::Request(Request::Report(report)));
                    }
                    Ok(request) => self.session.enqueue(request, &mut self.next_batch).await,
                    Err(fault) => self.refuse(&fault),
                },
                Ok(Some(Incoming::Misdirected { .. })) => self.refuse(&Fault::Magic),
                Ok(Some(incoming)) => {
                    if let Some(word) = http(&incoming) {
                        warn_of_http("Gearman", self.session.peer.address, word);
                        self.incoming.clear();
                        self.reading_ended = true;
                        break;
                    }
                    self.defer(Deferred::Incoming(incoming));
                }
                Ok(None) => break,
                Err(framing) => {
                    let mut reply = BytesMut::new();
                    framing.encode_reply(self.shared.options.draft_magic, &mut reply);
                    self.session.flush_grabs(&mut self.next_batch);
                    self.next_batch.slots.push(Slot::Encoded(reply));
                    self.incoming.clear();
                    self.reading_ended = true;
                    break;
                }
            }
            if self.next_batch.len() >= BATCH_REQUESTS_MAX {
                self.submit_batch().await;
            }
        }
        self.submit_batch().await;
    }

    fn refuse(&mut self, fault: &Fault) {
        self.session.flush_grabs(&mut self.next_batch);
        self.next_batch.refuse(fault);
    }

    fn defer(&mut self, request: Deferred) {
        self.session.flush_grabs(&mut self.next_batch);
        self.deferred = Some(request);
    }

    /// Executes a request that had to wait for its turn.
    async fn execute_deferred(&mut self, request: Deferred) {
        match request {
            Deferred::Request(Request::GetStatusUnique { unique }) => {
                admin::status_by_unique(&self.shared, unique, &mut self.out).await;
            }
            Deferred::Request(request @ Request::Report(_)) => {
                self.session.enqueue(request, &mut self.next_batch).await;
            }
            Deferred::Incoming(Incoming::Line(line)) => {
                admin::answer(&line, &mut self.session, &mut self.out).await
            }
            Deferred::Incoming(Incoming::Draft(packet)) => {
                let draft = self.draft.get_or_insert_default();
                if draft.answer(packet, &mut self.session, &mut self.out).await.is_break() {
                    self.reading_ended = true;
                    self.incoming.clear();
                }
            }
            Deferred::Request(_) | Deferred::Incoming(_) => {}
        }
        // Items that arrived before the handle of their job was known.
        self.deliver_postponed();
    }

    /// Whether the next batch must wait for a pending one: because there are enough, or because it could
    /// overtake a large one.
    fn must_wait_for_batch(&self) -> bool {
        self.batches.len() >= BATCHES_MAX || self.batches.iter().any(|batch| batch.is_large)
    }

    /// Submits the next batch.
    async fn submit_batch(&mut self) {
        self.session.flush_grabs(&mut self.next_batch);
        if self.next_batch.slots.is_empty() {
            return;
        }
        let calls = std::mem::take(&mut self.next_batch.calls);
        let slots = std::mem::take(&mut self.next_batch.slots);
        let reports = std::mem::take(&mut self.next_batch.reports);
        self.next_batch.number += 1;
        let is_large = calls.iter().any(|call| call.command.is_large());
        let timed = TimedBatch::begin(calls.first().map(|call| call.command.name()), calls.len());
        let backend = self.shared.backend.clone();
        let pending: PendingReplies = if calls.is_empty() {
            Box::pin(std::future::ready(Ok(Vec::new())))
        } else {
            Box::pin(async move { backend.execute(calls).await })
        };
        let mut batch = Batch { slots, reports, pending, replies: None, jobs_held: false, is_large, timed };
        poll_fn(|context| {
            // The replies are collected later, even if they are there already.
            let _ = batch.poll(context);
            Poll::Ready(())
        })
        .await;
        if matches!(batch.slots.last(), Some(Slot::Grabbed(_))) {
            self.session.watch_early();
        }
        self.batches.push_back(batch);
    }

    /// Registers popped jobs for heartbeats.
    fn hold_popped_jobs(&mut self) {
        for batch in &mut self.batches {
            if let (Some(Ok(answers)), false) = (&batch.replies, batch.jobs_held) {
                for answer in answers {
                    if let Ok(Reply::Pop(reply)) = answer {
                        reply.jobs.iter().for_each(|job| self.session.hold(job));
                    }
                }
            }
            batch.jobs_held = batch.replies.is_some();
        }
    }

    /// Writes the replies of the first batch.
    fn complete_batch(&mut self) {
        let Some(batch) = self.batches.pop_front() else { return };
        let peer = &self.session.peer;
        batch.timed.warn_if_slow(self.shared.options.slow_after, || {
            format!("Gearman connection {} from {}", peer.number, peer.address)
        });
        let (mut answers, error) = match batch.replies.unwrap_or_else(|| Ok(Vec::new())) {
            Ok(answers) => (answers.into_iter(), None),
            Err(error) => {
                BACKEND_UNAVAILABLE
                    .warn(format_args!("the backend does not answer: {}", with_causes(&error)));
                (Vec::new().into_iter(), Some(error))
            }
        };
        let mut reports = batch.reports;
        for slot in batch.slots {
            let answer = if slot.has_call() { answers.next() } else { None };
            match (&slot, &error) {
                (Slot::Report, _) => match (reports.pop_front(), answer) {
                    (Some(report), Some(answer)) => self.session.complete_report(report, answer),
                    (Some(report), None) => self.session.retry_report(report),
                    (None, _) => {}
                },
                (Slot::Status(_), Some(error)) => error_fault(error).encode(&mut self.out),
                (Slot::Submitted { number, .. }, Some(error)) => {
                    self.session.mark_answered(number.unwrap_or(0));
                    error_fault(error).encode(&mut self.out);
                }
                _ => self.session.complete(slot, answer, &mut self.out),
            }
        }
        self.deliver_postponed();
        if self.is_disconnected {
            self.out.clear();
            self.session.spliced.clear();
        } else if self.out.is_empty() {
            // No reply will carry the TCP acknowledgement, and the peer may hold back its next packet until
            // it arrives.
            self.reader.quick_ack();
        }
    }

    /// Handles wake-ups and result stream items. Returns false if the peer did not keep up and must be
    /// disconnected.
    fn drain_mailbox(&mut self) -> bool {
        let Some(drained) = self.mailbox.drain() else { return true };
        if drained.overflowed {
            let peer = self.session.peer.address;
            tracing::info!(%peer, "a client did not read its results and was disconnected");
            return false;
        }
        if drained.wake && self.session.take_wakeup() {
            match &self.draft {
                Some(draft) => draft.write_noop(&self.session, &mut self.out),
                None => write_packet(Response::<&[u8]>::Noop, &mut self.out),
            }
        }
        self.deliver(drained.deliveries);
        if let Some(stream_id) = drained.ended_stream {
            match &mut self.draft {
                Some(draft) => draft.fail_awaited(&mut self.session, &mut self.out),
                None => self.session.fail_awaited(stream_id, &mut self.out),
            }
        }
        true
    }

    fn deliver_postponed(&mut self) {
        if self.session.has_undelivered() {
            self.deliver(VecDeque::new());
        }
    }

    fn deliver(&mut self, deliveries: VecDeque<geartrain_core::StreamMessage>) {
        for (awaited, item) in self.session.take_deliverable(deliveries) {
            match &mut self.draft {
                Some(draft) => draft.write_item(item, &self.session, &mut self.out),
                None => self.session.write_item(&awaited, item, &mut self.out),
            }
        }
    }

    /// Doubles the read size for peers that fill it and halves it for those that do not.
    fn adapt_read_size(&mut self, bytes: usize) {
        if bytes >= self.read_bytes {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        } else if bytes < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 2).max(READ_BYTES_MIN);
        }
    }
}

/// The HTTP word that a line begins with. A web page can make a browser send HTTP to this port, with lines or
/// packets in the body, so nothing after such a line is read.
fn http(incoming: &Incoming) -> Option<&'static str> {
    match incoming {
        Incoming::Line(line) => http_word(text::first_word(line)),
        _ => None,
    }
}

/// Waits until the first batch is answered and there is room for its replies, or until a batch has popped
/// jobs that are not registered for heartbeats yet. Polls every batch, because a later one may hold what the
/// first one needs, such as its turn to connect.
async fn batch_ready(batches: &mut VecDeque<Batch>, room: bool) {
    poll_fn(|context| {
        let mut is_ready = false;
        for (position, batch) in batches.iter_mut().enumerate() {
            let is_answered = batch.poll(context).is_ready();
            is_ready |= is_answered && (!batch.jobs_held || (room && position == 0));
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
