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

use super::acknowledge::Acknowledge;
use super::draft::Draft;
use super::inbox::Inbox;
use super::reports::{Repeated, Report};
use super::session::{Gathered, Session, Slot, trouble, with_causes, write};
use super::{Peer, Shared, admin};
use crate::packet::{Fault, Request, Response};
use crate::{Incoming, Parser, text};

/// How many batches of one connection may be under way.
const BATCHES_MAX: usize = 4;
/// How many requests go into one batch.
const BATCH_MAX: usize = 1_024;
/// How much may wait to be written before nothing more is read.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// How much is read at once: little from those who say little.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 256 << 10;
/// How long a peer may leave what it is sent unread.
const UNREAD_MAX: Duration = Duration::from_secs(60);

/// The backend has no answer. One count for all that clients and workers can ask.
pub(super) static BROKEN: RepeatedWarning = RepeatedWarning::new();
/// A worker is gone, and the backend could not be told.
static GONE: RepeatedWarning = RepeatedWarning::new();

/// What is under way at the backend.
type Flight = Pin<Box<dyn Future<Output = Landed> + Send>>;
type Landed = Result<Vec<Answer>, BackendError>;

/// Requests that are done together.
struct Batch {
    slots: Vec<Slot>,
    reports: VecDeque<Report>,
    flight: Flight,
    landed: Option<Landed>,
    /// Whether the jobs that were handed out are held. They are as soon as the answers are there, however
    /// long the peer takes to read what came before.
    is_held: bool,
    /// It carries a large payload, so that the backend may execute later batches before it.
    is_large: bool,
}

impl Batch {
    /// Asks whether the answers are there. The first time sends the calls, so batches are asked once in the order of their requests.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.landed.is_none()
            && let Poll::Ready(landed) = self.flight.as_mut().poll(context)
        {
            self.landed = Some(landed);
        }
        if self.landed.is_some() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// What waits until everything before it is answered.
enum Word {
    Request(Request),
    Incoming(Incoming),
}

/// One peer.
pub(crate) struct Connection<R, W> {
    reader: R,
    writer: W,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    stop: CancellationToken,
    parser: Parser,
    incoming: BytesMut,
    read_bytes: usize,
    session: Session,
    /// Set once it is known that the peer speaks the draft.
    draft: Option<Draft>,
    held: Option<Word>,
    gathered: Gathered,
    batches: VecDeque<Batch>,
    out: Output,
    /// The peer is gone, and nothing is written any more; but reports of it are not stored yet.
    is_gone: bool,
    /// Nothing more is read: the peer has hung up or made no sense, or the front stops.
    ended: bool,
}

/// What happened first.
enum Happened {
    Stop,
    Late,
    Landed,
    Filled,
    Repeated(Repeated),
    Written(std::io::Result<usize>),
    Unread,
    Read(std::io::Result<usize>),
}

impl<R, W> Connection<R, W>
where
    R: AsyncRead + Acknowledge + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    pub(crate) fn new(
        reader: R,
        writer: W,
        shared: Arc<Shared>,
        peer: Arc<Peer>,
        worker: WorkerName,
        inbox: Arc<Inbox>,
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
            inbox: inbox.clone(),
            stop,
            parser: Parser::server(options),
            incoming: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            session: Session::new(shared.clone(), peer, worker, inbox),
            shared,
            draft: None,
            held: None,
            gathered: Gathered::default(),
            batches: VecDeque::new(),
            out: Output::default(),
            is_gone: false,
            ended: false,
        }
    }

    /// Serves the peer until it hangs up or the front stops.
    pub(crate) async fn serve(mut self) {
        self.converse().await;
        // Sent behind all that was asked before, so jobs that were handed out meanwhile come back as well.
        drop(self.batches);
        let calls = self.session.farewell().await;
        if !calls.is_empty()
            && let Err(error) = self.shared.backend.execute(calls).await
        {
            let error = with_causes(&error);
            GONE.warn(format_args!("jobs of a lost worker wait until their locks expire: {error}"));
        }
        // The peer may have gone before.
        let _ = self.writer.shutdown().await;
    }

    async fn converse(&mut self) {
        let farewell = tokio::time::sleep(self.shared.options.farewell);
        let unread = tokio::time::sleep(UNREAD_MAX);
        tokio::pin!(farewell, unread);
        let (mut stopping, mut is_unread) = (false, false);
        loop {
            self.take_up().await;
            self.out.splice(self.session.spliced.drain(..));
            if self.is_done() {
                return;
            }
            // Counted from when there was first something to read.
            if !is_unread && !self.out.is_empty() {
                unread.as_mut().reset(Instant::now() + UNREAD_MAX);
            }
            is_unread = !self.out.is_empty();
            let room = self.out.len() < OUTPUT_BYTES_MAX;
            let may_read = !self.ended && room && self.listens() && !self.must_land();
            if may_read {
                let wanted = self.parser.wants(&self.incoming).clamp(self.read_bytes, READ_BYTES_MAX);
                self.incoming.reserve(wanted);
            }
            let Connection { reader, writer, incoming, batches, out, stop, inbox, session, shared, .. } =
                self;
            let unstored = &mut session.unstored;
            // The losing branches are dropped half-way: reading, writing and waiting lose nothing by that, and the batches are kept.
            let happened = tokio::select! {
                biased;
                () = stop.cancelled(), if !stopping => Happened::Stop,
                () = &mut farewell, if stopping => Happened::Late,
                () = landed(batches, room), if !batches.is_empty() => Happened::Landed,
                repeated = unstored.repeat(&shared.backend), if !unstored.is_empty() => {
                    Happened::Repeated(repeated)
                }
                () = inbox.filled(), if room => Happened::Filled,
                written = writer.write(out.chunk()), if !out.is_empty() => Happened::Written(written),
                () = &mut unread, if !out.is_empty() => Happened::Unread,
                // Last, so that whoever never stops asking does not keep the rest from happening.
                read = reader.read_buf(incoming), if may_read => Happened::Read(read),
            };
            match happened {
                Happened::Landed => {
                    self.hold_jobs();
                    if room && self.batches.front().is_some_and(|first| first.landed.is_some()) {
                        self.land();
                    }
                }
                Happened::Filled => {
                    if !self.hear() && self.lose_peer() {
                        return;
                    }
                }
                Happened::Repeated(repeated) => {
                    for (report, answer) in self.session.unstored.answered(repeated) {
                        self.session.stored(report, answer);
                    }
                }
                Happened::Written(Ok(bytes)) if bytes > 0 => {
                    self.wrote(bytes);
                    is_unread = false;
                }
                Happened::Late => return,
                // Whoever cannot be written to does not want to hear more.
                Happened::Written(_) | Happened::Unread => {
                    if self.lose_peer() {
                        return;
                    }
                }
                Happened::Read(Ok(0) | Err(_)) => self.ended = true,
                Happened::Read(Ok(bytes)) => self.adapt(bytes),
                Happened::Stop => {
                    stopping = true;
                    self.ended = true;
                    farewell.as_mut().reset(Instant::now() + self.shared.options.farewell);
                }
            }
        }
    }

    /// Whether there is nothing left to do for this peer.
    fn is_done(&self) -> bool {
        let is_silent = self.out.is_empty() && self.held.is_none();
        self.ended && self.is_idle() && is_silent && self.session.unstored.is_empty()
    }

    /// Has nothing more to do with the peer, except that its reports are stored. Says whether they are.
    fn lose_peer(&mut self) -> bool {
        (self.is_gone, self.ended, self.held) = (true, true, None);
        self.incoming.clear();
        self.out.clear();
        self.batches.iter().all(|batch| batch.reports.is_empty())
            && self.gathered.reports.is_empty()
            && self.session.unstored.is_empty()
    }

    /// Whether everything that was read is answered.
    fn is_idle(&self) -> bool {
        self.gathered.slots.is_empty() && self.batches.is_empty()
    }

    /// Whether more is read. While a job is waited for that is only done to notice that the peer has gone: what it says meanwhile has to wait.
    fn listens(&self) -> bool {
        let waits = self.draft.as_ref().is_some_and(Draft::is_waiting);
        self.held.is_none()
            && self.session.unstored.is_empty()
            && (!waits || self.incoming.len() < READ_BYTES_MIN)
    }

    /// Deals with all requests that have been read, as far as there is room.
    async fn take_up(&mut self) {
        // What follows a report must not overtake it.
        while !self.draft.as_ref().is_some_and(Draft::is_waiting) && self.session.unstored.is_empty() {
            if let Some(word) = self.held.take() {
                if !self.is_idle() || self.out.len() >= OUTPUT_BYTES_MAX {
                    self.session.ask_for_jobs(&mut self.gathered);
                    self.held = Some(word);
                    break;
                }
                self.answer(word).await;
                continue;
            }
            if self.must_land() {
                break;
            }
            match self.parser.next(&mut self.incoming) {
                Ok(Some(Incoming::Packet(packet))) => match Request::decode(packet) {
                    Ok(request @ Request::GetStatusUnique { .. }) => self.hold(Word::Request(request)),
                    Ok(Request::Report(report)) if self.session.must_wait(&report, self.gathered.number) => {
                        self.hold(Word::Request(Request::Report(report)));
                    }
                    Ok(request) => self.session.take(request, &mut self.gathered).await,
                    Err(fault) => self.refuse(&fault),
                },
                Ok(Some(Incoming::Misdirected { .. })) => self.refuse(&Fault::Magic),
                Ok(Some(incoming)) => {
                    if let Some(word) = http(&incoming) {
                        warn_of_http("Gearman", self.session.peer.address, word);
                        self.incoming.clear();
                        self.ended = true;
                        break;
                    }
                    self.hold(Word::Incoming(incoming));
                }
                Ok(None) => break,
                Err(framing) => {
                    let mut last_word = BytesMut::new();
                    framing.answer(self.shared.options.draft_magic, &mut last_word);
                    self.session.ask_for_jobs(&mut self.gathered);
                    self.gathered.slots.push(Slot::Said(last_word));
                    self.incoming.clear();
                    self.ended = true;
                    break;
                }
            }
            if self.gathered.weight() >= BATCH_MAX {
                self.send().await;
            }
        }
        self.send().await;
    }

    fn refuse(&mut self, fault: &Fault) {
        self.session.ask_for_jobs(&mut self.gathered);
        self.gathered.refuse(fault);
    }

    fn hold(&mut self, word: Word) {
        self.session.ask_for_jobs(&mut self.gathered);
        self.held = Some(word);
    }

    /// Answers what had to wait for its turn.
    async fn answer(&mut self, word: Word) {
        match word {
            Word::Request(Request::GetStatusUnique { unique }) => {
                admin::status_by_unique(&self.shared, unique, &mut self.out).await;
            }
            Word::Request(request @ Request::Report(_)) => {
                self.session.take(request, &mut self.gathered).await;
            }
            Word::Incoming(Incoming::Line(line)) => {
                admin::answer(&line, &mut self.session, &mut self.out).await
            }
            Word::Incoming(Incoming::Draft(packet)) => {
                let draft = self.draft.get_or_insert_default();
                if draft.answer(packet, &mut self.session, &mut self.out).await.is_break() {
                    self.ended = true;
                    self.incoming.clear();
                }
            }
            Word::Request(_) | Word::Incoming(_) => {}
        }
        // What came while nobody could be told, because it was not known yet what the job is.
        self.tell_rest();
    }

    /// Whether a batch must be answered before the next is sent: there are enough, or the next could overtake
    /// one.
    fn must_land(&self) -> bool {
        self.batches.len() >= BATCHES_MAX || self.batches.iter().any(|batch| batch.is_large)
    }

    /// Sends what has been gathered.
    async fn send(&mut self) {
        self.session.ask_for_jobs(&mut self.gathered);
        if self.gathered.slots.is_empty() {
            return;
        }
        let calls = std::mem::take(&mut self.gathered.calls);
        let slots = std::mem::take(&mut self.gathered.slots);
        let reports = std::mem::take(&mut self.gathered.reports);
        self.gathered.number += 1;
        let is_large = calls.iter().any(|call| call.command.is_large());
        let backend = self.shared.backend.clone();
        let flight: Flight = if calls.is_empty() {
            Box::pin(std::future::ready(Ok(Vec::new())))
        } else {
            Box::pin(async move { backend.execute(calls).await })
        };
        let mut batch = Batch { slots, reports, flight, landed: None, is_held: false, is_large };
        poll_fn(|context| {
            // Whether it is done at once does not matter here.
            let _ = batch.poll(context);
            Poll::Ready(())
        })
        .await;
        if matches!(batch.slots.last(), Some(Slot::Grabbed(_))) {
            self.session.watch_ahead();
        }
        self.batches.push_back(batch);
    }

    /// Holds the jobs that were handed out.
    fn hold_jobs(&mut self) {
        for batch in &mut self.batches {
            if let (Some(Ok(answers)), false) = (&batch.landed, batch.is_held) {
                for answer in answers {
                    if let Ok(Reply::Pop(reply)) = answer {
                        reply.jobs.iter().for_each(|job| self.session.hold(job));
                    }
                }
            }
            batch.is_held = batch.landed.is_some();
        }
    }

    /// Takes the answers of the first batch.
    fn land(&mut self) {
        let Some(batch) = self.batches.pop_front() else { return };
        let (mut answers, error) = match batch.landed.unwrap_or_else(|| Ok(Vec::new())) {
            Ok(answers) => (answers.into_iter(), None),
            Err(error) => {
                BROKEN.warn(format_args!("the queue does not answer: {}", with_causes(&error)));
                (Vec::new().into_iter(), Some(error))
            }
        };
        let mut reports = batch.reports;
        for slot in batch.slots {
            let answer = if slot.has_call() { answers.next() } else { None };
            match (&slot, &error) {
                (Slot::Report, _) => match (reports.pop_front(), answer) {
                    (Some(report), Some(answer)) => self.session.stored(report, answer),
                    (Some(report), None) => self.session.not_stored(report),
                    (None, _) => {}
                },
                (Slot::Status(_), Some(error)) => trouble(error).encode(&mut self.out),
                (Slot::Submitted { number, .. }, Some(error)) => {
                    self.session.note_answered(number.unwrap_or(0));
                    trouble(error).encode(&mut self.out);
                }
                _ => self.session.land(slot, answer, &mut self.out),
            }
        }
        self.tell_rest();
        if self.is_gone {
            self.out.clear();
            self.session.spliced.clear();
        } else if self.out.is_empty() {
            // Nothing is sent that could say that this has come, and the peer may wait for that before it sends the rest.
            self.reader.acknowledge();
        }
    }

    /// Takes what others have for this peer. Says whether the peer kept up with it.
    fn hear(&mut self) -> bool {
        let Some(taken) = self.inbox.take() else { return true };
        if taken.overflown {
            tracing::info!(peer = %self.session.peer.address, "a client did not read what it had asked for");
            return false;
        }
        if taken.noop && self.session.wake() {
            match &self.draft {
                Some(draft) => draft.noop(&self.session, &mut self.out),
                None => write(Response::<&[u8]>::Noop, &mut self.out),
            }
        }
        self.tell(taken.deliveries);
        if let Some(front) = taken.ended {
            match &mut self.draft {
                Some(draft) => draft.lose(&mut self.session, &mut self.out),
                None => self.session.lose(front, &mut self.out),
            }
        }
        true
    }

    fn tell_rest(&mut self) {
        if self.session.has_untold() {
            self.tell(VecDeque::new());
        }
    }

    fn tell(&mut self, news: VecDeque<geartrain_core::Delivery>) {
        for (awaited, told) in self.session.hear(news) {
            match &mut self.draft {
                Some(draft) => draft.tell(told, &self.session, &mut self.out),
                None => self.session.tell(&awaited, told, &mut self.out),
            }
        }
    }

    fn wrote(&mut self, bytes: usize) {
        self.out.advance(bytes);
    }

    /// Reads more at once from those who say much, and less from those who do not.
    fn adapt(&mut self, bytes: usize) {
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
async fn landed(batches: &mut VecDeque<Batch>, room: bool) {
    poll_fn(|context| {
        let mut is_ready = false;
        for (place, batch) in batches.iter_mut().enumerate() {
            let has_landed = batch.poll(context).is_ready();
            is_ready |= has_landed && (!batch.is_held || (room && place == 0));
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
