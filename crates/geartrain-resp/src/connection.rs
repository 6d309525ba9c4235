//! One connection: pipelined requests, executed in batches, replies in the order of requests.
//!
//! All calls that have been read go to the backend as one batch, and while it executes the next ones are read
//! and sent after it. A Redis command that is no call of the queue waits until everything before it is
//! answered, so that it takes effect in its turn.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use geartrain_core::wire::Request as WireRequest;
use geartrain_core::{Answer, Backend, BackendError, Call, Command, QueueName, Release};
use geartrain_front::{
    CoarseInstant, Evicted, LargeReply, Produced, RepeatedWarning, TimedBatch, warn_if_slow, warn_of_http,
};
use geartrain_json::{Document, Outcome};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::backup::ConnectionBackup;
use crate::frame::{Output, Parser, ProtocolError, REQUEST_BYTES_MAX, Request, UNAUTHENTICATED_BYTES_MAX};
use crate::front::Shared;
use crate::json;
use crate::keys::{self, KeyRead};
use crate::native::{self, EncodedReply, NativeReply, ParkedPops};
use crate::qless;
use crate::redis_commands;
use crate::reset::Writer;
use crate::session::Session;

/// How many batches of one connection may be in flight.
const BATCHES_MAX: usize = 4;
/// A batch's weight limit. A call weighs as much as the number of jobs it may return.
const BATCH_WEIGHT_MAX: usize = 1024;
/// The same within a transaction, whose calls stay together if they can: as much as one pop may return.
const TRANSACTION_WEIGHT_MAX: usize = 100_000;
/// Back-pressure: with so many bytes unsent no more replies are encoded, and then no more requests are read.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// The size of reads adapts to the client.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 256 << 10;

/// A connection that is reset this soon after a reply with jobs was sent is taken for one whose client did not
/// read the reply. Later, the network may have reset it.
const RESET_AGE_MAX: Duration = Duration::from_millis(100);
/// A client that closed before a reply arrived answers it with a TCP reset, which is looked for after these
/// pauses.
const RESET_PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];

static BROKEN: RepeatedWarning = RepeatedWarning::new();
static EVICTED: RepeatedWarning = RepeatedWarning::new();

type Pending<T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send>>;

/// The answers to a batch, and to its readiness checks.
type Answers = (Vec<Answer>, Vec<native::Readiness>);

/// A request of a batch, and how its reply is made.
enum Slot {
    /// Not decoded.
    Error(String),
    /// One call, by a Qless client.
    Qless(qless::CallContext),
    /// A read of keys, by a Qless client.
    Key(KeyRead),
    /// As many calls as our driver sent at once.
    Native(native::PendingReply),
    /// A request in JSON, which is a batch of its own.
    Json,
}

impl Slot {
    /// The queues of each wait for readiness.
    fn readiness_checks(&self) -> Vec<Vec<QueueName>> {
        match self {
            Slot::Native(pending) => pending.readiness_checks(),
            Slot::Error(_) | Slot::Qless(_) | Slot::Key(_) | Slot::Json => Vec::new(),
        }
    }
}

/// A reply that can be encoded.
enum Ready {
    Error(String),
    Qless(qless::CallContext, Answer),
    Key(KeyRead, Vec<Answer>),
    Native(NativeReply),
    Json(Document),
}

impl Ready {
    /// The jobs that it hands out.
    fn jobs(&mut self) -> Vec<Release> {
        match self {
            Ready::Error(_) | Ready::Key(..) => Vec::new(),
            Ready::Qless(_, answer) => Release::of_answers([&*answer]),
            Ready::Native(reply) => std::mem::take(&mut reply.jobs),
            Ready::Json(document) => std::mem::take(&mut document.jobs),
        }
    }
}

struct Batch {
    slots: Vec<Slot>,
    stage: Stage,
    /// Of the calls, once they are answered. They are kept here and not in a future, because a connection that
    /// ends releases their jobs.
    answers: Vec<Answer>,
    /// The outcome of a request in JSON, kept here for the same reason.
    json: Option<Outcome>,
    /// Carries a large payload, or is executed in steps, so that the backend may execute later batches first.
    is_large: bool,
    /// Waits for as long as the client asked, so it is given up when the client is gone.
    waits: bool,
    timed: TimedBatch,
}

/// What a batch waits for.
enum Stage {
    Calls(Pending<Vec<Answer>>),
    Json(Pin<Box<dyn Future<Output = Outcome> + Send>>),
    /// Behind the calls: something is ready if the batch's own pops leave it.
    Readiness(Pending<Vec<native::Readiness>>),
    Done(Result<Vec<native::Readiness>, BackendError>),
}

impl Batch {
    /// The first poll sends the calls, so batches are first polled in the order of their requests.
    fn poll(&mut self, backend: &Arc<dyn Backend>, context: &mut Context<'_>) -> Poll<()> {
        if let Stage::Calls(calls) = &mut self.stage {
            let answered = std::task::ready!(calls.as_mut().poll(context));
            self.stage = match answered {
                Ok(answers) => {
                    self.answers = answers;
                    self.check_readiness(backend)
                }
                Err(error) => Stage::Done(Err(error)),
            };
            self.note_answered();
        }
        if let Stage::Json(outcome) = &mut self.stage {
            self.json = Some(std::task::ready!(outcome.as_mut().poll(context)));
            self.stage = Stage::Done(Ok(Vec::new()));
            // A wait takes as long as the client asked.
            if !self.waits {
                self.note_answered();
            }
        }
        if let Stage::Readiness(readiness) = &mut self.stage {
            self.stage = Stage::Done(std::task::ready!(readiness.as_mut().poll(context)));
            self.note_answered();
        }
        Poll::Ready(())
    }

    fn check_readiness(&self, backend: &Arc<dyn Backend>) -> Stage {
        let checks: Vec<_> = self.slots.iter().flat_map(Slot::readiness_checks).collect();
        if checks.is_empty() {
            return Stage::Done(Ok(Vec::new()));
        }
        let backend = backend.clone();
        Stage::Readiness(Box::pin(async move { native::check_readiness(checks, &*backend).await }))
    }

    fn note_answered(&mut self) {
        if matches!(self.stage, Stage::Done(_)) {
            self.timed.answered();
        }
    }

    /// The answers, or the error and the jobs of the calls that were answered before it.
    fn finish(self) -> Result<Answers, (BackendError, Vec<Release>)> {
        match self.stage {
            Stage::Done(Ok(readiness)) => Ok((self.answers, readiness)),
            Stage::Done(Err(error)) => Err((error, Release::of_answers(&self.answers))),
            Stage::Calls(_) | Stage::Json(_) | Stage::Readiness(_) => {
                unreachable!("only a batch that is done is finished")
            }
        }
    }
}

/// Calls for the next batch.
#[derive(Default)]
struct Gathered {
    calls: Vec<Call>,
    slots: Vec<Slot>,
    weight: usize,
}

pub(crate) struct Connection<R, W> {
    reader: R,
    writer: W,
    shared: Arc<Shared>,
    stop: CancellationToken,
    session: Session,
    parser: Parser,
    incoming: BytesMut,
    read_bytes: usize,
    /// A Redis command that waits for its turn.
    held: Option<Request>,
    /// Requests of a transaction that are executed now, before others.
    executing: VecDeque<Request>,
    /// How many replies the reply of `EXEC` still lacks. No message is written in between.
    exec_replies_left: usize,
    gathered: Gathered,
    batches: VecDeque<Batch>,
    ready: VecDeque<Ready>,
    /// A reply that is encoded piece by piece, and its largest length. Nothing is written between its pieces.
    large: Option<(LargeReply, usize)>,
    parked: ParkedPops,
    backup: ConnectionBackup,
    out: Output,
    /// Jobs popped for this client, and the output offset at which it learns of them; `u64::MAX` while their
    /// reply is being encoded. Released if the connection ends before.
    unsent_jobs: VecDeque<(u64, Vec<Release>)>,
    /// The jobs of the reply that was sent last, and when, if nothing was sent after it.
    last_sent_jobs: Option<(Instant, Vec<Release>)>,
    /// The client has closed the connection, or at least its half of it.
    closed: bool,
    /// A read or a write has failed because of a reset.
    reset: bool,
    /// Nothing more is read: the client has closed or sent a protocol error, or the server stops.
    ended: bool,
}

/// Why the connection's loop continues.
enum Wakeup {
    Disconnect,
    Evicted(Evicted),
    Produced(Option<Produced>),
    BatchDone,
    Written(std::io::Result<usize>),
    Read(std::io::Result<usize>),
    Message(crate::outbox::Push),
    Unparked(native::Unparked),
    Stop,
    DrainTimeout,
}

impl<R, W> Connection<R, W>
where
    R: AsyncRead + Unpin + Send,
    W: Writer,
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
            parser: Parser::new(request_bytes_max(session.is_authenticated())),
            session,
            incoming: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            held: None,
            executing: VecDeque::new(),
            exec_replies_left: 0,
            gathered: Gathered::default(),
            batches: VecDeque::new(),
            ready: VecDeque::new(),
            large: None,
            parked: ParkedPops::default(),
            backup: ConnectionBackup::default(),
            out: Output::default(),
            unsent_jobs: VecDeque::new(),
            last_sent_jobs: None,
            closed: false,
            reset: false,
            ended: false,
        }
    }

    /// Serves the client until it disconnects or the server stops.
    pub(crate) async fn serve(mut self) {
        self.run().await;
        self.parked.unpark_all(&*self.shared.backend).await;
        let unsent_jobs = self.take_unsent_jobs().await;
        native::release(unsent_jobs, &*self.shared.backend).await;
        // Fails if the client has disconnected.
        let _ = self.writer.shutdown().await;
    }

    /// The jobs of all replies that the client has not received. Batches without answers are dropped: the
    /// backend releases their jobs.
    async fn take_unsent_jobs(&mut self) -> Vec<Release> {
        let mut jobs = Vec::new();
        if let Some((sent, last_sent_jobs)) = self.last_sent_jobs.take()
            && sent.elapsed() < RESET_AGE_MAX
            && self.was_reset().await
        {
            jobs.extend(last_sent_jobs);
        }
        jobs.extend(self.unsent_jobs.drain(..).flat_map(|(_, jobs)| jobs));
        jobs.extend(self.ready.drain(..).flat_map(|mut ready| ready.jobs()));
        jobs.extend(self.batches.drain(..).flat_map(|batch| {
            let document = batch.json.and_then(Result::ok);
            [Release::of_answers(&batch.answers), document.map_or_else(Vec::new, |document| document.jobs)]
                .concat()
        }));
        jobs
    }

    /// Whether the client closed without reading everything that was sent to it: then it does not have the end
    /// of the last reply. If that arrived before the client closed, the connection was reset at once; if it
    /// arrived later, the reset takes a round trip.
    async fn was_reset(&mut self) -> bool {
        if !self.closed {
            return self.reset;
        }
        for pause in RESET_PAUSES {
            if self.reset || self.writer.is_reset().await {
                return true;
            }
            tokio::time::sleep(pause).await;
        }
        self.writer.is_reset().await
    }

    async fn run(&mut self) {
        let drain = tokio::time::sleep(self.shared.options.drain_timeout);
        tokio::pin!(drain);
        let mut stopping = false;
        loop {
            self.dispatch().await;
            self.write_replies();
            if self.is_done() {
                break;
            }
            let has_space = self.out.bytes.len() < OUTPUT_BYTES_MAX;
            let room = has_space && self.large.is_none();
            let may_push = room && self.exec_replies_left == 0;
            let may_read = !self.ended && room && self.held.is_none() && !self.must_wait();
            let takes_messages = room && self.takes_messages();
            if may_read {
                let wanted = self.parser.wants(&self.incoming).clamp(self.read_bytes, READ_BYTES_MAX);
                self.incoming.reserve(wanted);
            }
            let Connection {
                reader,
                writer,
                shared,
                incoming,
                batches,
                out,
                large,
                ready,
                session,
                stop,
                parked,
                ..
            } = self;
            let may_complete = ready.is_empty() && large.is_none();
            let (outbox, disconnected, evicted) = session.events();
            // Cancellation-safe: the losing branches only wait. Reads, writes and messages lose nothing, and
            // batches are kept.
            let wakeup = tokio::select! {
                biased;
                () = disconnected => Wakeup::Disconnect,
                evicted = evicted => Wakeup::Evicted(evicted),
                () = stop.cancelled(), if !stopping => Wakeup::Stop,
                () = &mut drain, if stopping => Wakeup::DrainTimeout,
                () = first_batch_done(batches, &shared.backend), if may_complete && !batches.is_empty() => {
                    Wakeup::BatchDone
                }
                unparked = parked.next(), if may_push && !parked.is_empty() => Wakeup::Unparked(unparked),
                push = outbox.next(), if takes_messages => Wakeup::Message(push),
                produced = produced(large), if has_space && large.is_some() => Wakeup::Produced(produced),
                written = writer.write(out.bytes.chunk()), if !out.bytes.is_empty() => {
                    Wakeup::Written(written)
                }
                // Last, so that a client that never stops sending does not starve the rest.
                read = reader.read_buf(incoming), if may_read => Wakeup::Read(read),
            };
            match wakeup {
                Wakeup::Disconnect => {
                    tracing::info!(
                        "connection {} is closed: it does not read its messages fast enough",
                        self.session.number
                    );
                    return;
                }
                Wakeup::Evicted(why) => {
                    EVICTED.warn(format_args!("connection {} is closed: {why}", self.session.number));
                    return;
                }
                Wakeup::BatchDone => self.complete_batch().await,
                Wakeup::Produced(Some(produced)) => self.write_produced(produced),
                // A part of the reply was sent, so nothing else can follow.
                Wakeup::Produced(None) => {
                    tracing::error!(
                        "connection {} is closed: a reply could not be encoded",
                        self.session.number
                    );
                    return;
                }
                Wakeup::Written(Ok(bytes)) if bytes > 0 => self.wrote(bytes),
                // A client that cannot be written to has gone.
                Wakeup::Written(written) => {
                    self.closed = true;
                    self.reset |= written.is_err_and(|error| is_reset(&error));
                    return;
                }
                Wakeup::DrainTimeout => return,
                Wakeup::Read(read) => {
                    self.note_read(read);
                    // A client that waited for a job and has closed does not get it.
                    if self.closed {
                        self.batches.retain(|batch| !batch.waits || batch.json.is_some());
                    }
                }
                Wakeup::Message(push) => push.write(&mut self.out),
                Wakeup::Unparked(unparked) => {
                    self.shared.channels.flush().await;
                    // A client that waited for a job and has closed does not get it.
                    if may_read && let Some(read) = self.reader.read_buf(&mut self.incoming).now_or_never() {
                        self.note_read(read);
                    }
                    if self.closed {
                        self.parked.cancel(&unparked);
                    }
                    if let Some((push, jobs)) = self.parked.finish(unparked, &*self.shared.backend).await {
                        self.session.write_messages(&mut self.out);
                        push.write(&mut self.out);
                        self.note_unsent(self.out.bytes.end(), jobs);
                    }
                }
                Wakeup::Stop => {
                    stopping = true;
                    self.ended = true;
                    drain.as_mut().reset(tokio::time::Instant::now() + self.shared.options.drain_timeout);
                }
            }
        }
    }

    /// Whether nothing is left to do.
    fn is_done(&self) -> bool {
        (self.ended || self.session.closing)
            && self.held.is_none()
            && self.batches.is_empty()
            && self.ready.is_empty()
            && self.large.is_none()
            && self.out.bytes.is_empty()
    }

    /// Whether messages are still written. Not behind the last reply: the connection ends when it is sent, and
    /// with messages behind it that might never be so.
    fn takes_messages(&self) -> bool {
        // None comes between the replies of a transaction.
        self.exec_replies_left == 0
            && !self.session.closing
            && !(self.ended && self.batches.is_empty() && self.ready.is_empty())
    }

    /// Whether everything before the next request is answered.
    fn is_idle(&self) -> bool {
        self.gathered.slots.is_empty()
            && self.batches.is_empty()
            && self.ready.is_empty()
            && self.large.is_none()
    }

    /// Dispatches the requests that have been read, as far as limits allow.
    async fn dispatch(&mut self) {
        while !self.session.closing {
            let request = match self.held.take() {
                Some(request) => request,
                None if self.must_wait() => break,
                None => match self.next_request() {
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
                self.gather_qless(&request);
                if self.is_batch_full() {
                    self.send().await;
                }
                continue;
            }
            if self.session.may_call() && is_native(&request[0]) && json::is_json(&request) {
                self.send().await;
                // Its turn comes when no earlier batch can be overtaken.
                if self.must_wait() {
                    self.held = Some(request);
                    break;
                }
                self.send_json(&request).await;
                continue;
            }
            if self.session.may_call() && is_native(&request[0]) && self.gather_native(&request) {
                if self.is_batch_full() {
                    self.send().await;
                }
                continue;
            }
            if self.session.may_call() && keys::is_read(&request[0]) {
                self.gather_read(&request);
                if self.is_batch_full() {
                    self.send().await;
                }
                continue;
            }
            if !self.is_idle() || self.out.bytes.len() >= OUTPUT_BYTES_MAX {
                self.held = Some(request);
                break;
            }
            if self.exec_replies_left == 0 {
                self.session.write_messages(&mut self.out);
            }
            if self.session.may_call() && is_native(&request[0]) {
                self.answer_native(&request).await;
            } else if self.session.transaction.is_some() && !ends_session(&request[0]) {
                self.transact(&request);
            } else {
                let begun = CoarseInstant::now();
                let was_authenticated = self.session.is_authenticated();
                redis_commands::answer(&request, &mut self.session, &self.shared, &mut self.out).await;
                self.wrote_reply();
                // Passwords are delayed on purpose.
                if was_authenticated && !is_password(&request[0]) {
                    let slow_after = self.shared.options.slow_after;
                    warn_if_slow(&request[0], begun.elapsed(), slow_after, || self.client());
                }
            }
            self.parser.allow(request_bytes_max(self.session.is_authenticated()));
            if !self.session.is_authenticated() {
                // A wrong password takes a while. Between two attempts replies are sent, and the deadline is
                // checked.
                break;
            }
        }
        self.send().await;
    }

    /// For the log.
    fn client(&self) -> String {
        let name = Some(self.session.name()).filter(|name| !name.is_empty());
        let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
        format!("RESP connection {} from {}{name}", self.session.number, self.session.address())
    }

    /// The next request of the transaction that is executed, or else the next one that was read.
    fn next_request(&mut self) -> Result<Option<Request>, ProtocolError> {
        match self.executing.pop_front() {
            Some(request) => Ok(Some(request)),
            None => self.parser.next(&mut self.incoming),
        }
    }

    /// Adds a Qless call to the next batch.
    fn gather_qless(&mut self, request: &[Bytes]) {
        match redis_commands::call(request, &self.shared) {
            Ok((call, pending)) => {
                // Once per batch: reading the clock costs as much as decoding a short call.
                if let (Some(now), true) = (call.now, self.gathered.calls.is_empty()) {
                    self.session.check_clock(now);
                }
                self.gathered.weight += weight(&call.command);
                self.gathered.calls.push(call);
                self.gathered.slots.push(Slot::Qless(pending));
            }
            Err(error) => {
                self.gathered.weight += 1;
                self.gathered.slots.push(Slot::Error(error));
            }
        }
    }

    /// Adds a read of keys to the next batch.
    fn gather_read(&mut self, request: &[Bytes]) {
        let read = redis_commands::check(request).and_then(|()| keys::read(request));
        self.gathered.slots.push(match read {
            Ok((calls, read)) => {
                self.gathered.weight += calls.iter().map(|call| weight(&call.command)).sum::<usize>();
                self.gathered.calls.extend(calls);
                Slot::Key(read)
            }
            Err(error) => Slot::Error(error),
        });
        self.gathered.weight += 1;
    }

    /// Queues a request of a transaction, or ends the transaction.
    fn transact(&mut self, request: &[Bytes]) {
        let Some(mut transaction) = self.session.transaction.take() else { return };
        let is = |word: &[u8]| request.len() == 1 && request[0].eq_ignore_ascii_case(word);
        if is(b"discard") {
            return self.out.simple("OK");
        }
        if is(b"exec") {
            match transaction.finish() {
                Ok(requests) => {
                    self.out.array(requests.len());
                    self.exec_replies_left = requests.len();
                    self.executing = requests.into();
                }
                Err(error) => self.out.error(error),
            }
            return;
        }
        let queued = match is(b"multi") {
            // As in Redis, this does not end the transaction.
            true => Err("ERR MULTI calls can not be nested".to_owned()),
            false => transaction.queue(request),
        };
        match queued {
            Ok(()) => self.out.simple("QUEUED"),
            Err(error) => self.out.error(&error),
        }
        self.session.transaction = Some(transaction);
    }

    /// Counts a reply, which may belong to a transaction.
    fn wrote_reply(&mut self) {
        self.exec_replies_left = self.exec_replies_left.saturating_sub(1);
    }

    /// Adds a native call to the next batch; false if it has no commands and must wait for its turn.
    fn gather_native(&mut self, request: &[Bytes]) -> bool {
        let read =
            native::read(request, self.shared.options.allow_flush).and_then(|request| match &request {
                WireRequest::Park { .. } if !self.session.resp3 => {
                    Err("ERR waiting for jobs requires RESP3 (send HELLO 3)".to_owned())
                }
                _ => Ok(request),
            });
        match read.map(|request| native::commands(request, &self.parked)) {
            Ok(None) => return false,
            Ok(Some((calls, pending))) => {
                let readiness_checks = pending.readiness_checks().len();
                self.gathered.weight +=
                    (readiness_checks + calls.iter().map(|call| weight(&call.command)).sum::<usize>()).max(1);
                self.gathered.calls.extend(calls);
                self.gathered.slots.push(Slot::Native(pending));
            }
            Err(error) => {
                self.gathered.weight += 1;
                self.gathered.slots.push(Slot::Error(error));
            }
        }
        true
    }

    /// Executes a native call without commands.
    async fn answer_native(&mut self, request: &[Bytes]) {
        let request = match native::read(request, self.shared.options.allow_flush) {
            Ok(request) => request,
            Err(error) => return self.out.error(&error),
        };
        let backend = &**self.session.backend();
        let answered = match request {
            WireRequest::Backup { directory } => {
                self.backup.begin(directory, self.session.is_local(), backend).await
            }
            WireRequest::BackupNext => self.backup.next().await,
            request => native::answer(request, backend, &mut self.parked).await,
        };
        match answered {
            Ok(reply) => self.out.bulk(reply),
            Err(error) => self.out.error(&backend_error(&error)),
        }
    }

    /// Whether a batch must be answered before the next is sent: enough are in flight, or the next could
    /// overtake one.
    fn must_wait(&self) -> bool {
        self.batches.len() >= BATCHES_MAX || self.batches.iter().any(|batch| batch.is_large)
    }

    /// Whether the next batch must not grow.
    fn is_batch_full(&self) -> bool {
        let weight_max = if self.executing.is_empty() { BATCH_WEIGHT_MAX } else { TRANSACTION_WEIGHT_MAX };
        self.gathered.weight >= weight_max
    }

    /// Sends the next batch.
    async fn send(&mut self) {
        let Gathered { mut calls, slots, .. } = std::mem::take(&mut self.gathered);
        if slots.is_empty() {
            return;
        }
        if calls.iter().any(|call| call.command.records_caller()) {
            let recording = calls.iter_mut().filter(|call| call.command.records_caller());
            recording.for_each(|call| call.by = Some(self.session.caller(call.by.as_deref())));
        }
        // Not in the future below: batches must be sent in their order.
        self.shared.channels.opened().await;
        self.shared.calls.fetch_add(calls.len() as u64, Ordering::Relaxed);
        let is_large = calls.iter().any(|call| call.command.is_large());
        let timed = TimedBatch::begin(calls.first().map(|call| call.command.name()), calls.len());
        let backend = self.session.backend().clone();
        let answering: Pending<Vec<Answer>> = match calls.is_empty() {
            true => Box::pin(std::future::ready(Ok(Vec::new()))),
            false => Box::pin(async move { backend.execute(calls).await }),
        };
        self.start(Batch {
            slots,
            stage: Stage::Calls(answering),
            answers: Vec::new(),
            json: None,
            is_large,
            waits: false,
            timed,
        })
        .await;
    }

    /// Sends a request in JSON.
    async fn send_json(&mut self, request: &[Bytes]) {
        let caller = self.session.caller(None);
        self.shared.channels.opened().await;
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        let timed = TimedBatch::begin(Some("geartrain_json"), 1);
        let (slot, stage, is_large, waits) =
            match json::read(request, self.session.backend(), caller, &self.stop) {
                Ok(executing) => {
                    (Slot::Json, Stage::Json(executing.outcome), executing.has_steps, executing.waits)
                }
                Err(error) => (Slot::Error(error), Stage::Done(Ok(Vec::new())), false, false),
            };
        let (slots, answers) = (vec![slot], Vec::new());
        self.start(Batch { slots, stage, answers, json: None, is_large, waits, timed }).await;
    }

    async fn start(&mut self, mut batch: Batch) {
        poll_fn(|context| {
            // Ready or not does not matter here.
            let _ = batch.poll(&self.shared.backend, context);
            Poll::Ready(())
        })
        .await;
        self.batches.push_back(batch);
    }

    /// Takes the answers of the first batch, once the messages that it caused are in the outboxes.
    async fn complete_batch(&mut self) {
        let Some(mut batch) = self.batches.pop_front() else { return };
        batch.timed.warn_if_slow(self.shared.options.slow_after, || self.client());
        self.shared.channels.flush().await;
        let slots = std::mem::take(&mut batch.slots);
        let mut json = batch.json.take();
        match batch.finish() {
            Ok((answers, readiness)) => {
                let (mut answers, mut readiness) = (answers.into_iter(), readiness.into_iter());
                let (backend, parked) = (self.session.backend(), &mut self.parked);
                self.ready.extend(slots.into_iter().map(|slot| match slot {
                    Slot::Error(error) => Ready::Error(error),
                    Slot::Qless(pending) => match answers.next() {
                        Some(answer) => Ready::Qless(pending, answer),
                        None => Ready::Error("ERR the backend sent too few answers".to_owned()),
                    },
                    Slot::Key(read) => {
                        let answered = answers.by_ref().take(read.commands()).collect();
                        Ready::Key(read, answered)
                    }
                    Slot::Native(pending) => {
                        Ready::Native(pending.reply(&mut answers, &mut readiness, backend, parked))
                    }
                    Slot::Json => match json.take() {
                        Some(Ok(document)) => Ready::Json(document),
                        Some(Err(error)) => {
                            Ready::Json(Document { json: error.document(), jobs: Vec::new() })
                        }
                        None => Ready::Error("ERR the request has no outcome".to_owned()),
                    },
                }));
                self.parked.send().await;
            }
            Err((error, jobs)) => {
                native::release(jobs, &*self.shared.backend).await;
                let text = backend_error(&error);
                self.ready.extend(slots.into_iter().map(|slot| match slot {
                    Slot::Error(error) => Ready::Error(error),
                    Slot::Qless(_) | Slot::Key(_) | Slot::Native(_) | Slot::Json => {
                        Ready::Error(text.clone())
                    }
                }));
            }
        }
    }

    /// Encodes queued messages and then replies, up to the limit of unsent bytes.
    fn write_replies(&mut self) {
        while self.large.is_none() && self.out.bytes.len() < OUTPUT_BYTES_MAX {
            if self.takes_messages()
                && let Some(push) = self.session.take_push()
            {
                push.write(&mut self.out);
                continue;
            }
            let Some(mut ready) = self.ready.pop_front() else { return };
            let jobs = ready.jobs();
            match ready {
                Ready::Error(text) => self.out.error(&text),
                Ready::Qless(pending, answer) => match qless::LargeReply::new(&pending, answer) {
                    Ok(large) => self.large = Some((LargeReply::new(large), qless::REPLY_BYTES_MAX)),
                    Err(answer) => qless::write(&mut self.out, &pending, answer),
                },
                Ready::Key(read, answers) => read.write(answers, &mut self.out),
                Ready::Json(document) => self.out.shared_bulk(document.json.into_bytes().into()),
                Ready::Native(NativeReply { encoded: EncodedReply::Whole(reply), .. }) => {
                    self.out.shared_bulk(reply.into());
                }
                Ready::Native(NativeReply { encoded: EncodedReply::Large(large), .. }) => {
                    self.large = Some((LargeReply::new(large), usize::MAX));
                }
            }
            let end = if self.large.is_some() { u64::MAX } else { self.out.bytes.end() };
            self.note_unsent(end, jobs);
            if self.large.is_none() {
                self.wrote_reply();
            }
        }
    }

    /// Writes the next part of a large reply.
    fn write_produced(&mut self, produced: Produced) {
        match (produced, &self.large) {
            (Produced::Length(length), Some((_, length_max))) if length > *length_max => {
                self.out.error(&qless::too_long());
                self.end_large();
            }
            (Produced::Length(length), _) => self.out.bulk_head(length),
            (Produced::Piece(piece), _) => self.out.bytes.share(piece),
            (Produced::End, _) => {
                self.out.bulk_end();
                self.end_large();
            }
        }
    }

    /// The large reply is encoded.
    fn end_large(&mut self) {
        self.large = None;
        if let Some((end, _)) = self.unsent_jobs.back_mut()
            && *end == u64::MAX
        {
            *end = self.out.bytes.end();
        }
        self.wrote_reply();
    }

    /// Tracks the jobs of a reply that ends at this output offset.
    fn note_unsent(&mut self, end: u64, jobs: Vec<Release>) {
        if !jobs.is_empty() {
            self.unsent_jobs.push_back((end, jobs));
        }
    }

    fn wrote(&mut self, bytes: usize) {
        self.out.bytes.advance(bytes);
        self.last_sent_jobs = None;
        let sent = self.out.bytes.sent();
        while self.unsent_jobs.front().is_some_and(|(end, _)| *end <= sent)
            && let Some((end, jobs)) = self.unsent_jobs.pop_front()
        {
            self.last_sent_jobs = (end == sent).then(|| (Instant::now(), jobs));
        }
    }

    fn note_read(&mut self, read: std::io::Result<usize>) {
        match read {
            Ok(bytes) if bytes > 0 => self.adapt_read_size(bytes),
            ended => {
                (self.closed, self.ended) = (true, true);
                self.reset |= ended.is_err_and(|error| is_reset(&error));
            }
        }
    }

    /// Doubles or halves the size of reads.
    fn adapt_read_size(&mut self, bytes: usize) {
        if bytes >= self.read_bytes {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        } else if bytes < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 2).max(READ_BYTES_MIN);
        }
    }
}

/// Whether a client left something unread when it closed the connection.
fn is_reset(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ConnectionReset
}

/// Returns when the first batch is done. The others are polled as well, because they may hold something that
/// the first one waits for, for example the turn to connect.
async fn first_batch_done(batches: &mut VecDeque<Batch>, backend: &Arc<dyn Backend>) {
    poll_fn(|context| {
        let mut is_first_ready = None;
        for batch in batches.iter_mut() {
            let is_ready = batch.poll(backend, context).is_ready();
            is_first_ready.get_or_insert(is_ready);
        }
        if is_first_ready == Some(true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The next part of the large reply.
async fn produced(large: &mut Option<(LargeReply, usize)>) -> Option<Produced> {
    match large {
        Some((large, _)) => large.next().await,
        None => std::future::pending().await,
    }
}

fn request_bytes_max(authenticated: bool) -> usize {
    if authenticated { REQUEST_BYTES_MAX } else { UNAUTHENTICATED_BYTES_MAX }
}

/// Whether a request is a call of the Qless API.
fn is_call(name: &[u8]) -> bool {
    matches!(name.len(), 4..=10)
        && [&b"evalsha"[..], b"eval", b"evalsha_ro", b"eval_ro"]
            .iter()
            .any(|call| name.eq_ignore_ascii_case(call))
}

/// Whether a request is a call of the native API.
fn is_native(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"fcall") || name.eq_ignore_ascii_case(b"fcall_ro")
}

/// Whether a request is executed at once, also within a transaction.
fn ends_session(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"quit") || name.eq_ignore_ascii_case(b"reset")
}

/// Whether a request has a password.
fn is_password(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"auth") || name.eq_ignore_ascii_case(b"hello")
}

/// How many jobs a call may return.
fn weight(command: &Command) -> usize {
    match command {
        Command::Pop(pop) => pop.count.get().max(1),
        Command::Relock(relock) => relock.count.get().max(1),
        Command::Peek(peek) => peek.count.get().max(1),
        Command::Periodics(asked) => asked.count.get().max(1),
        Command::DuePeriodics(asked) => asked.count.get().max(1),
        Command::GetMany(many) => many.jids.len().max(1),
        Command::SetAside(set) => set.jids.len().max(1),
        Command::Tracked(_) => BATCH_WEIGHT_MAX,
        Command::Jobs(jobs) => 1 + jobs.page.count.get() / 16,
        _ => 1,
    }
}

/// The error reply when the backend has no answers.
pub(crate) fn backend_error(error: &BackendError) -> String {
    if let BackendError::Refused(refusal) = error {
        return qless::refused(refusal);
    }
    let text = with_causes(error);
    BROKEN.warn(&text);
    format!("ERR {text}")
}

/// An error and its causes.
pub(crate) fn with_causes(error: &BackendError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
