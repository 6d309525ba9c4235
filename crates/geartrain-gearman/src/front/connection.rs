//! One peer: reads packets and lines, has them done in batches, and writes the answers in the order in which they were asked for.
//!
//! All that was read goes to the backend as one batch, and while it works the next is read and sent after it. What needs more than one call, and all of the draft,
//! waits until everything before it is answered.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use geartrain_core::{Answer, BackendError, Reply, WorkerName};
use geartrain_front::{Output, RepeatedWarning, http_word, warn_of_http};
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

/// How many batches of one connection may be under way.
const BATCHES_MAX: usize = 4;
/// How many requests go into one batch.
const BATCH_REQUESTS_MAX: usize = 1_024;
/// How much may wait to be written before nothing more is read.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// How much is read at once: little from those who say little.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 256 << 10;
/// How long a peer may leave what it is sent unread.
const WRITE_STALL_MAX: Duration = Duration::from_secs(60);

/// The backend has no answer. One count for all that clients and workers can ask.
pub(super) static BACKEND_UNAVAILABLE: RepeatedWarning = RepeatedWarning::new();
/// A worker is gone, and the backend could not be told.
static WORKER_LOSS_NOT_REPORTED: RepeatedWarning = RepeatedWarning::new();

/// What is under way at the backend.
type PendingReplies = Pin<Box<dyn Future<Output = BatchReplies> + Send>>;
type BatchReplies = Result<Vec<Answer>, BackendError>;

/// Requests that are done together.
struct Batch {
    slots: Vec<Slot>,
    reports: VecDeque<PendingReport>,
    pending: PendingReplies,
    replies: Option<BatchReplies>,
    /// Whether the jobs that were handed out are held. They are as soon as the answers are there, however
    /// long the peer takes to read what came before.
    jobs_held: bool,
    /// It carries a large payload, so that the backend may execute later batches before it.
    is_large: bool,
}

impl Batch {
    /// Asks whether the answers are there. The first time sends the calls, so batches are asked once in the order of their requests.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.replies.is_none()
            && let Poll::Ready(landed) = self.pending.as_mut().poll(context)
        {
            self.replies = Some(landed);
        }
        if self.replies.is_some() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// What waits until everything before it is answered.
enum Deferred {
    Request(Request),
    Incoming(Incoming),
}

/// One peer.
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
    /// Set once it is known that the peer speaks the draft.
    draft: Option<DraftSession>,
    deferred: Option<Deferred>,
    next_batch: BatchBuilder,
    batches: VecDeque<Batch>,
    out: Output,
    /// The peer is gone, and nothing is written any more; but reports of it are not stored yet.
    is_disconnected: bool,
    /// Nothing more is read: the peer has hung up or made no sense, or the front stops.
    reading_ended: bool,
}

/// What happened first.
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
        inbox: Arc<Mailbox>,
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
            mailbox: inbox.clone(),
            stop,
            parser: Parser::server(options),
            incoming: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            session: Session::new(shared.clone(), peer, worker, inbox),
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

    /// Serves the peer until it hangs up or the front stops.
    pub(crate) async fn serve(mut self) {
        self.run().await;
        // Sent behind all that was asked before, so jobs that were handed out meanwhile come back as well.
        drop(self.batches);
        let calls = self.session.close().await;
        if !calls.is_empty()
            && let Err(error) = self.shared.backend.execute(calls).await
        {
            let error = with_causes(&error);
            WORKER_LOSS_NOT_REPORTED
                .warn(format_args!("jobs of a lost worker wait until their locks expire: {error}"));
        }
        // The peer may have gone before.
        let _ = self.writer.shutdown().await;
    }

    async fn run(&mut self) {
        let farewell = tokio::time::sleep(self.shared.options.drain_timeout);
        let unread = tokio::time::sleep(WRITE_STALL_MAX);
        tokio::pin!(farewell, unread);
        let (mut stopping, mut is_unread) = (false, false);
        loop {
            self.dispatch().await;
            self.out.splice(self.session.spliced.drain(..));
            if self.is_done() {
                return;
            }
            // Counted from when there was first something to read.
            if !is_unread && !self.out.is_empty() {
                unread.as_mut().reset(Instant::now() + WRITE_STALL_MAX);
            }
            is_unread = !self.out.is_empty();
            let room = self.out.len() < OUTPUT_BYTES_MAX;
            let may_read = !self.reading_ended && room && self.accepts_input() && !self.must_wait_for_batch();
            if may_read {
                let wanted = self.parser.bytes_wanted(&self.incoming).clamp(self.read_bytes, READ_BYTES_MAX);
                self.incoming.reserve(wanted);
            }
            let Connection {
                reader,
                writer,
                incoming,
                batches,
                out,
                stop,
                mailbox: inbox,
                session,
                shared,
                ..
            } = self;
            let unstored = &mut session.report_retries;
            // The losing branches are dropped half-way: reading, writing and waiting lose nothing by that, and the batches are kept.
            let happened = tokio::select! {
                biased;
                () = stop.cancelled(), if !stopping => LoopEvent::Stop,
                () = &mut farewell, if stopping => LoopEvent::DrainTimeout,
                () = batch_ready(batches, room), if !batches.is_empty() => LoopEvent::BatchReady,
                repeated = unstored.retry(&shared.backend), if !unstored.is_empty() => {
                    LoopEvent::ReportsRetried(repeated)
                }
                () = inbox.ready(), if room => LoopEvent::MailboxReady,
                written = writer.write(out.chunk()), if !out.is_empty() => LoopEvent::Written(written),
                () = &mut unread, if !out.is_empty() => LoopEvent::WriteStalled,
                // Last, so that whoever never stops asking does not keep the rest from happening.
                read = reader.read_buf(incoming), if may_read => LoopEvent::Read(read),
            };
            match happened {
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
                LoopEvent::ReportsRetried(repeated) => {
                    for (report, answer) in self.session.report_retries.take_answered(repeated) {
                        self.session.complete_report(report, answer);
                    }
                }
                LoopEvent::Written(Ok(bytes)) if bytes > 0 => {
                    self.wrote(bytes);
                    is_unread = false;
                }
                LoopEvent::DrainTimeout => return,
                // Whoever cannot be written to does not want to hear more.
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
                    farewell.as_mut().reset(Instant::now() + self.shared.options.drain_timeout);
                }
            }
        }
    }

    /// Whether there is nothing left to do for this peer.
    fn is_done(&self) -> bool {
        let is_silent = self.out.is_empty() && self.deferred.is_none();
        self.reading_ended && self.is_idle() && is_silent && self.session.report_retries.is_empty()
    }

    /// Has nothing more to do with the peer, except that its reports are stored. Says whether they are.
    fn disconnect(&mut self) -> bool {
        (self.is_disconnected, self.reading_ended, self.deferred) = (true, true, None);
        self.incoming.clear();
        self.out.clear();
        self.batches.iter().all(|batch| batch.reports.is_empty())
            && self.next_batch.reports.is_empty()
            && self.session.report_retries.is_empty()
    }

    /// Whether everything that was read is answered.
    fn is_idle(&self) -> bool {
        self.next_batch.slots.is_empty() && self.batches.is_empty()
    }

    /// Whether more is read. While a job is waited for that is only done to notice that the peer has gone: what it says meanwhile has to wait.
    fn accepts_input(&self) -> bool {
        let waits = self.draft.as_ref().is_some_and(DraftSession::is_waiting);
        self.deferred.is_none()
            && self.session.report_retries.is_empty()
            && (!waits || self.incoming.len() < READ_BYTES_MIN)
    }

    /// Deals with all requests that have been read, as far as there is room.
    async fn dispatch(&mut self) {
        // What follows a report must not overtake it.
        while !self.draft.as_ref().is_some_and(DraftSession::is_waiting)
            && self.session.report_retries.is_empty()
        {
            if let Some(word) = self.deferred.take() {
                if !self.is_idle() || self.out.len() >= OUTPUT_BYTES_MAX {
                    self.session.flush_grabs(&mut self.next_batch);
                    self.deferred = Some(word);
                    break;
                }
                self.execute_deferred(word).await;
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
                    let mut last_word = BytesMut::new();
                    framing.encode_reply(self.shared.options.draft_magic, &mut last_word);
                    self.session.flush_grabs(&mut self.next_batch);
                    self.next_batch.slots.push(Slot::Encoded(last_word));
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

    fn defer(&mut self, word: Deferred) {
        self.session.flush_grabs(&mut self.next_batch);
        self.deferred = Some(word);
    }

    /// Answers what had to wait for its turn.
    async fn execute_deferred(&mut self, word: Deferred) {
        match word {
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
        // What came while nobody could be told, because it was not known yet what the job is.
        self.deliver_postponed();
    }

    /// Whether a batch must be answered before the next is sent: there are enough, or the next could overtake
    /// one.
    fn must_wait_for_batch(&self) -> bool {
        self.batches.len() >= BATCHES_MAX || self.batches.iter().any(|batch| batch.is_large)
    }

    /// Sends what has been gathered.
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
        let backend = self.shared.backend.clone();
        let flight: PendingReplies = if calls.is_empty() {
            Box::pin(std::future::ready(Ok(Vec::new())))
        } else {
            Box::pin(async move { backend.execute(calls).await })
        };
        let mut batch = Batch { slots, reports, pending: flight, replies: None, jobs_held: false, is_large };
        poll_fn(|context| {
            // Whether it is done at once does not matter here.
            let _ = batch.poll(context);
            Poll::Ready(())
        })
        .await;
        if matches!(batch.slots.last(), Some(Slot::Grabbed(_))) {
            self.session.watch_early();
        }
        self.batches.push_back(batch);
    }

    /// Holds the jobs that were handed out.
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

    /// Takes the answers of the first batch.
    fn complete_batch(&mut self) {
        let Some(batch) = self.batches.pop_front() else { return };
        let (mut answers, error) = match batch.replies.unwrap_or_else(|| Ok(Vec::new())) {
            Ok(answers) => (answers.into_iter(), None),
            Err(error) => {
                BACKEND_UNAVAILABLE.warn(format_args!("the queue does not answer: {}", with_causes(&error)));
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
            // Nothing is sent that could say that this has come, and the peer may wait for that before it sends the rest.
            self.reader.quick_ack();
        }
    }

    /// Takes what others have for this peer. Says whether the peer kept up with it.
    fn drain_mailbox(&mut self) -> bool {
        let Some(taken) = self.mailbox.drain() else { return true };
        if taken.overflowed {
            tracing::info!(peer = %self.session.peer.address, "a client did not read what it had asked for");
            return false;
        }
        if taken.wake && self.session.take_wakeup() {
            match &self.draft {
                Some(draft) => draft.write_noop(&self.session, &mut self.out),
                None => write_packet(Response::<&[u8]>::Noop, &mut self.out),
            }
        }
        self.deliver(taken.deliveries);
        if let Some(front) = taken.ended_stream {
            match &mut self.draft {
                Some(draft) => draft.fail_awaited(&mut self.session, &mut self.out),
                None => self.session.fail_awaited(front, &mut self.out),
            }
        }
        true
    }

    fn deliver_postponed(&mut self) {
        if self.session.has_undelivered() {
            self.deliver(VecDeque::new());
        }
    }

    fn deliver(&mut self, news: VecDeque<geartrain_core::Delivery>) {
        for (awaited, told) in self.session.take_deliverable(news) {
            match &mut self.draft {
                Some(draft) => draft.write_item(told, &self.session, &mut self.out),
                None => self.session.write_item(&awaited, told, &mut self.out),
            }
        }
    }

    fn wrote(&mut self, bytes: usize) {
        self.out.advance(bytes);
    }

    /// Reads more at once from those who say much, and less from those who do not.
    fn adapt_read_size(&mut self, bytes: usize) {
        if bytes >= self.read_bytes {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        } else if bytes < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 2).max(READ_BYTES_MIN);
        }
    }
}

/// The word of HTTP that a line begins with. A web page can have a browser send HTTP to this port, with
/// lines or packets in the body: no such request is read further.
fn http(incoming: &Incoming) -> Option<&'static str> {
    match incoming {
        Incoming::Line(line) => http_word(text::first_word(line)),
        _ => None,
    }
}

/// Returns when the answers of the first batch are there and there is room for them, or when a batch has
/// handed out jobs that are not held yet. All batches are asked, because a later one may have something in
/// hand that the first one needs, a turn to connect say.
async fn batch_ready(batches: &mut VecDeque<Batch>, room: bool) {
    poll_fn(|context| {
        let mut is_ready = false;
        for (place, batch) in batches.iter_mut().enumerate() {
            let has_landed = batch.poll(context).is_ready();
            is_ready |= has_landed && (!batch.jobs_held || (room && place == 0));
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
