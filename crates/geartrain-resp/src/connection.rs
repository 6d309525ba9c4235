//! One peer: reads requests, has them done in batches, and writes the replies in the order of the requests.
//!
//! All calls that have been read go to the backend as one batch, and while it works the next ones are read and sent after it. What is not a call of the
//! queue (a *word*) waits until everything before it is answered, so that it takes effect in its turn.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use geartrain_core::wire::Request as WireRequest;
use geartrain_core::{Answer, BackendError, Call, Command, QueueName, Release};
use geartrain_front::{Evicted, LargeReply, Produced, RepeatedWarning, warn_of_http};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::frame::{Output, Parser, ProtocolError, REQUEST_BYTES_MAX, Request, STRANGER_BYTES_MAX};
use crate::front::Shared;
use crate::native::{self, NativeReply, Waits};
use crate::qless;
use crate::session::Session;
use crate::words;

/// How many batches of one connection may be under way.
const BATCHES_MAX: usize = 4;
/// How much a batch may weigh. A call weighs as much as the jobs that it may answer with.
const BATCH_WEIGHT_MAX: usize = 1024;
/// How much may wait to be written before no more replies are made, and then nothing more is read.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// How much is read at once: little from those who say little.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 256 << 10;

static BROKEN: RepeatedWarning = RepeatedWarning::new();
static EVICTED: RepeatedWarning = RepeatedWarning::new();

/// What is under way at the backend.
type Flight = Pin<Box<dyn Future<Output = Landed> + Send>>;
type Landed = Result<Answered, BackendError>;

/// The answers to a batch, and what looking around brought.
type Answered = (Vec<Answer>, Vec<native::Looked>);

/// What becomes of one request.
enum Slot {
    /// It could not be understood.
    Error(String),
    /// It is one call of the batch, asked by a Qless client.
    Qless(qless::Asked),
    /// It is as many calls as our driver asked for at once.
    Native(native::Asked),
}

impl Slot {
    /// The queues that are to be looked into besides, for each who wants to be told.
    fn looks(&self) -> Vec<Vec<QueueName>> {
        match self {
            Slot::Native(asked) => asked.looks(),
            Slot::Error(_) | Slot::Qless(_) => Vec::new(),
        }
    }
}

/// A reply that can be written.
enum Ready {
    Error(String),
    Qless(qless::Asked, Answer),
    Native(native::NativeReply),
}

/// Requests that are done together.
struct Batch {
    slots: Vec<Slot>,
    flight: Flight,
    landed: Option<Landed>,
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

/// Calls that are not sent yet.
#[derive(Default)]
struct Gathered {
    calls: Vec<Call>,
    slots: Vec<Slot>,
    weight: usize,
}

/// One peer.
pub(crate) struct Connection<R, W> {
    reader: R,
    writer: W,
    shared: Arc<Shared>,
    stop: CancellationToken,
    session: Session,
    parser: Parser,
    incoming: BytesMut,
    read_bytes: usize,
    /// A word that waits for its turn.
    held: Option<Request>,
    gathered: Gathered,
    batches: VecDeque<Batch>,
    ready: VecDeque<Ready>,
    /// A reply that is encoded piece by piece, and how long it may be. Nothing is written between its pieces.
    large: Option<(LargeReply, usize)>,
    waits: Waits,
    out: Output,
    /// Jobs that the peer waited for, and where in the output it is told so. If it goes before that was written, they are nobody's.
    untold: Vec<(u64, Vec<Release>)>,
    /// Nothing more is read: the peer has hung up or made no sense, or the front stops.
    ended: bool,
}

/// What happened first.
enum Happened {
    Cut,
    Evicted(Evicted),
    Produced(Option<Produced>),
    Landed,
    Written(std::io::Result<usize>),
    Read(std::io::Result<usize>),
    Told(crate::channels::Push),
    Waited(native::Waited),
    Stop,
    Late,
}

impl<R, W> Connection<R, W>
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    pub(crate) fn new(
        reader: R,
        writer: W,
        session: Session,
        shared: Arc<Shared>,
        stop: CancellationToken,
    ) -> Connection<R, W> {
        Connection {
            reader,
            writer,
            stop,
            shared,
            parser: Parser::new(request_bytes_max(session.is_trusted())),
            session,
            incoming: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            held: None,
            gathered: Gathered::default(),
            batches: VecDeque::new(),
            ready: VecDeque::new(),
            large: None,
            waits: Waits::default(),
            out: Output::default(),
            untold: Vec::new(),
            ended: false,
        }
    }

    /// Serves the peer until it hangs up or the front stops.
    pub(crate) async fn serve(mut self) {
        self.converse().await;
        self.waits.end_all(&*self.shared.backend).await;
        let untold = self.untold.into_iter().filter(|(end, _)| *end > self.out.bytes.sent());
        native::hand_back(untold.flat_map(|(_, jobs)| jobs).collect(), &*self.shared.backend).await;
        // The peer may have gone before.
        let _ = self.writer.shutdown().await;
    }

    async fn converse(&mut self) {
        let farewell = tokio::time::sleep(self.shared.options.farewell);
        tokio::pin!(farewell);
        let mut stopping = false;
        loop {
            self.take_up().await;
            self.make_replies();
            if self.is_done() {
                break;
            }
            let has_space = self.out.bytes.len() < OUTPUT_BYTES_MAX;
            let room = has_space && self.large.is_none();
            let may_read = !self.ended && room && self.held.is_none() && !self.must_land();
            if may_read {
                let wanted = self.parser.wants(&self.incoming).clamp(self.read_bytes, READ_BYTES_MAX);
                self.incoming.reserve(wanted);
            }
            let Connection {
                reader, writer, incoming, batches, out, large, ready, session, stop, waits, ..
            } = self;
            let may_land = ready.is_empty() && large.is_none();
            let (ear, cut, evicted) = session.ear();
            // The losing branches are dropped half-way: reading, writing and listening lose nothing by that, and the batches are kept.
            let happened = tokio::select! {
                biased;
                () = cut => Happened::Cut,
                evicted = evicted => Happened::Evicted(evicted),
                () = stop.cancelled(), if !stopping => Happened::Stop,
                () = &mut farewell, if stopping => Happened::Late,
                () = landed(batches), if may_land && !batches.is_empty() => Happened::Landed,
                waited = waits.next(), if room && !waits.is_empty() => Happened::Waited(waited),
                push = ear.next(), if room => Happened::Told(push),
                produced = produced(large), if has_space && large.is_some() => Happened::Produced(produced),
                written = writer.write(out.bytes.chunk()), if !out.bytes.is_empty() => {
                    Happened::Written(written)
                }
                // Last, so that whoever never stops asking does not keep the rest from happening.
                read = reader.read_buf(incoming), if may_read => Happened::Read(read),
            };
            match happened {
                Happened::Cut => {
                    tracing::info!(
                        "connection {} did not keep up with what it subscribed to",
                        self.session.number
                    );
                    return;
                }
                Happened::Evicted(why) => {
                    EVICTED.warn(format_args!("connection {} is closed: {why}", self.session.number));
                    return;
                }
                Happened::Landed => self.land().await,
                Happened::Produced(Some(produced)) => self.add(produced),
                // Half of a reply was sent, so nothing else can be.
                Happened::Produced(None) => {
                    tracing::error!(
                        "connection {} is closed: a reply could not be encoded",
                        self.session.number
                    );
                    return;
                }
                Happened::Written(Ok(bytes)) if bytes > 0 => self.wrote(bytes),
                // Whoever cannot be written to does not want to hear more.
                Happened::Written(_) | Happened::Late => return,
                Happened::Read(Ok(0) | Err(_)) => self.ended = true,
                Happened::Read(Ok(bytes)) => self.adapt(bytes),
                Happened::Told(push) => push.write(&mut self.out),
                Happened::Waited(waited) => {
                    self.shared.channels.told().await;
                    if let Some((push, jobs)) = self.waits.over(waited, &*self.shared.backend).await {
                        self.hear();
                        push.write(&mut self.out);
                        self.untold.push((self.out.bytes.end(), jobs));
                    }
                }
                Happened::Stop => {
                    stopping = true;
                    self.ended = true;
                    farewell.as_mut().reset(tokio::time::Instant::now() + self.shared.options.farewell);
                }
            }
        }
    }

    /// Whether there is nothing left to do for this peer.
    fn is_done(&self) -> bool {
        (self.ended || self.session.closing)
            && self.held.is_none()
            && self.batches.is_empty()
            && self.ready.is_empty()
            && self.large.is_none()
            && self.out.bytes.is_empty()
    }

    /// Whether everything before the next request is answered.
    fn is_idle(&self) -> bool {
        self.gathered.slots.is_empty()
            && self.batches.is_empty()
            && self.ready.is_empty()
            && self.large.is_none()
    }

    /// Deals with all requests that have been read, as far as there is room.
    async fn take_up(&mut self) {
        while !self.session.closing {
            let request = match self.held.take() {
                Some(request) => request,
                None if self.must_land() => break,
                None => match self.parser.next(&mut self.incoming) {
                    Ok(Some(request)) => request,
                    Ok(None) => break,
                    Err(error) => {
                        if let ProtocolError::Http(word) = error {
                            warn_of_http("RESP", self.session.address(), word);
                        }
                        self.gathered.slots.push(Slot::Error(format!("ERR Protocol error: {error}")));
                        self.incoming.clear();
                        self.ended = true;
                        break;
                    }
                },
            };
            if self.session.may_call() && is_call(&request[0]) {
                self.gather(&request);
                if self.gathered.weight >= BATCH_WEIGHT_MAX {
                    self.send().await;
                }
                continue;
            }
            if self.session.may_call() && is_native(&request[0]) && self.gather_native(&request) {
                if self.gathered.weight >= BATCH_WEIGHT_MAX {
                    self.send().await;
                }
                continue;
            }
            if !self.is_idle() || self.out.bytes.len() >= OUTPUT_BYTES_MAX {
                self.held = Some(request);
                break;
            }
            self.hear();
            if self.session.may_call() && is_native(&request[0]) {
                self.answer_native(&request).await;
            } else {
                words::answer(&request, &mut self.session, &self.shared, &mut self.out).await;
            }
            self.parser.allow(request_bytes_max(self.session.is_trusted()));
            if !self.session.is_trusted() {
                // A wrong password takes a while. Between two of them replies are sent, and the deadline is looked at.
                break;
            }
        }
        self.send().await;
    }

    /// Adds a call to those that will be sent next.
    fn gather(&mut self, request: &[Bytes]) {
        match words::call(request, &self.shared) {
            Ok((call, asked)) => {
                // Once for each batch: reading the clock costs as much as reading a short call.
                if let (Some(now), true) = (call.now, self.gathered.calls.is_empty()) {
                    self.session.check_clock(now);
                }
                self.gathered.weight += weight(&call.command);
                self.gathered.calls.push(call);
                self.gathered.slots.push(Slot::Qless(asked));
            }
            Err(error) => {
                self.gathered.weight += 1;
                self.gathered.slots.push(Slot::Error(error));
            }
        }
    }

    /// The same for a call of ours; false if it is not about commands, and so has to wait for its turn.
    fn gather_native(&mut self, request: &[Bytes]) -> bool {
        let read = native::read(request).and_then(|request| match &request {
            WireRequest::Park { .. } if !self.session.three => {
                Err("ERR to wait for jobs takes RESP3".to_owned())
            }
            _ => Ok(request),
        });
        match read.map(|request| native::commands(request, &self.waits)) {
            Ok(None) => return false,
            Ok(Some((calls, asked))) => {
                let looks = asked.looks().len();
                self.gathered.weight +=
                    (looks + calls.iter().map(|call| weight(&call.command)).sum::<usize>()).max(1);
                self.gathered.calls.extend(calls);
                self.gathered.slots.push(Slot::Native(asked));
            }
            Err(error) => {
                self.gathered.weight += 1;
                self.gathered.slots.push(Slot::Error(error));
            }
        }
        true
    }

    /// Answers a call of ours that is not about commands.
    async fn answer_native(&mut self, request: &[Bytes]) {
        let request = match native::read(request) {
            Ok(request) => request,
            Err(error) => return self.out.error(&error),
        };
        match native::answer(request, &*self.shared.backend, &mut self.waits).await {
            Ok(reply) => self.out.bulk(reply),
            Err(error) => self.out.error(&trouble(&error)),
        }
    }

    /// Whether a batch must be answered before the next is sent: there are enough, or the next could overtake
    /// one.
    fn must_land(&self) -> bool {
        self.batches.len() >= BATCHES_MAX || self.batches.iter().any(|batch| batch.is_large)
    }

    /// Sends what has been gathered.
    async fn send(&mut self) {
        let Gathered { calls, slots, .. } = std::mem::take(&mut self.gathered);
        if slots.is_empty() {
            return;
        }
        self.shared.calls.fetch_add(calls.len() as u64, Ordering::Relaxed);
        let is_large = calls.iter().any(|call| call.command.is_large());
        let backend = self.shared.backend.clone();
        let looks: Vec<_> = slots.iter().flat_map(Slot::looks).collect();
        let flight: Flight = Box::pin(async move {
            let answers = if calls.is_empty() { Vec::new() } else { backend.execute(calls).await? };
            let looked = if looks.is_empty() { Vec::new() } else { native::look(looks, &*backend).await? };
            Ok((answers, looked))
        });
        let mut batch = Batch { slots, flight, landed: None, is_large };
        poll_fn(|context| {
            // Whether it is done at once does not matter here.
            let _ = batch.poll(context);
            Poll::Ready(())
        })
        .await;
        self.batches.push_back(batch);
    }

    /// Takes the answers of the first batch, when everybody has been told what it brought about.
    async fn land(&mut self) {
        let Some(batch) = self.batches.pop_front() else { return };
        self.shared.channels.told().await;
        match batch.landed.unwrap_or_else(|| Ok(Answered::default())) {
            Ok((answers, looked)) => {
                let (mut answers, mut looked) = (answers.into_iter(), looked.into_iter());
                let (backend, waits) = (&self.shared.backend, &mut self.waits);
                self.ready.extend(batch.slots.into_iter().map(|slot| match slot {
                    Slot::Error(error) => Ready::Error(error),
                    Slot::Qless(asked) => match answers.next() {
                        Some(answer) => Ready::Qless(asked, answer),
                        None => Ready::Error("ERR the backend answered too little".to_owned()),
                    },
                    Slot::Native(asked) => {
                        Ready::Native(asked.reply(&mut answers, &mut looked, backend, waits))
                    }
                }));
                self.waits.send().await;
            }
            Err(error) => {
                let text = trouble(&error);
                self.ready.extend(batch.slots.into_iter().map(|slot| match slot {
                    Slot::Error(error) => Ready::Error(error),
                    Slot::Qless(_) | Slot::Native(_) => Ready::Error(text.clone()),
                }));
            }
        }
    }

    /// Writes what can be written into the output, as long as that is not too much: what the peer has been told already, and then replies.
    fn make_replies(&mut self) {
        while self.large.is_none() && self.out.bytes.len() < OUTPUT_BYTES_MAX {
            if let Some(push) = self.session.take_push() {
                push.write(&mut self.out);
                continue;
            }
            match self.ready.pop_front() {
                Some(Ready::Error(text)) => self.out.error(&text),
                Some(Ready::Qless(asked, answer)) => match qless::LargeReply::new(&asked, answer) {
                    Ok(large) => self.large = Some((LargeReply::new(large), qless::REPLY_BYTES_MAX)),
                    Err(answer) => qless::write(&mut self.out, &asked, answer),
                },
                Some(Ready::Native(NativeReply::Encoded(reply))) => self.out.shared_bulk(reply.into()),
                Some(Ready::Native(NativeReply::Large(large))) => {
                    self.large = Some((LargeReply::new(large), usize::MAX));
                }
                None => return,
            }
        }
    }

    /// Writes what came of the large reply.
    fn add(&mut self, produced: Produced) {
        match (produced, &self.large) {
            (Produced::Length(length), Some((_, length_max))) if length > *length_max => {
                self.large = None;
                self.out.error(&qless::too_long());
            }
            (Produced::Length(length), _) => self.out.bulk_head(length),
            (Produced::Piece(piece), _) => self.out.bytes.share(piece),
            (Produced::End, _) => {
                self.large = None;
                self.out.bulk_end();
            }
        }
    }

    /// Writes what the peer has been told already, which comes before the replies to what brought it about.
    fn hear(&mut self) {
        while let Some(push) = self.session.take_push() {
            push.write(&mut self.out);
        }
    }

    fn wrote(&mut self, bytes: usize) {
        self.out.bytes.advance(bytes);
        if self.out.bytes.is_empty() {
            self.untold.clear();
        }
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

/// Returns when the answers of the first batch are there. The others are asked as well, because they may have something in hand that the first one needs,
/// a turn to connect say.
async fn landed(batches: &mut VecDeque<Batch>) {
    poll_fn(|context| {
        let mut is_first_ready = None;
        for batch in batches.iter_mut() {
            let is_ready = batch.poll(context).is_ready();
            is_first_ready.get_or_insert(is_ready);
        }
        if is_first_ready == Some(true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// What comes next of the large reply.
async fn produced(large: &mut Option<(LargeReply, usize)>) -> Option<Produced> {
    match large {
        Some((large, _)) => large.next().await,
        None => std::future::pending().await,
    }
}

fn request_bytes_max(trusted: bool) -> usize {
    if trusted { REQUEST_BYTES_MAX } else { STRANGER_BYTES_MAX }
}

/// Whether a request asks the queue something, rather than this front.
fn is_call(name: &[u8]) -> bool {
    matches!(name.len(), 4..=10)
        && [&b"evalsha"[..], b"eval", b"evalsha_ro", b"eval_ro"]
            .iter()
            .any(|call| name.eq_ignore_ascii_case(call))
}

/// Whether a request is one of our own calls.
fn is_native(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"fcall") || name.eq_ignore_ascii_case(b"fcall_ro")
}

/// How many jobs a call may answer with.
fn weight(command: &Command) -> usize {
    match command {
        Command::Pop(pop) => pop.count.get().max(1),
        Command::Peek(peek) => peek.count.get().max(1),
        Command::GetMany(many) => many.jids.len().max(1),
        Command::Tracked(_) => BATCH_WEIGHT_MAX,
        Command::Jobs(jobs) => 1 + jobs.page.count.get() / 16,
        _ => 1,
    }
}

/// What a caller is told if the backend has no answers.
pub(crate) fn trouble(error: &BackendError) -> String {
    if let BackendError::Refused(refusal) = error {
        return qless::error(&refusal.to_string());
    }
    let mut text = format!("ERR {error}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    BROKEN.warn(&text);
    text
}
