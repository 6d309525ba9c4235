//! The driver: a queue on Redis, on Valkey or on a geartrain server as a `Backend`, with retries across
//! failovers.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use geartrain_core::wire::{self, Request};
use geartrain_core::{
    Answer, Backend, BackendError, Backup, BackupTarget, BadInput, Call, Clock, Command, Count,
    METADATA_BYTES_MAX, Measures, PAYLOAD_BYTES_MAX, Payload, Pending, Pop, PopOrder, PopReply, QueueName,
    Refusal, Release, Reply, ResultStream, Seconds, Software, Subscription, Timestamp, Timing, WorkerName,
};
use parking_lot::Mutex;
use redis::ConnectionAddr;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender, unbounded_channel};

use crate::backup::ServerBackup;
use crate::cancelled::PopCall;
use crate::clock::SharedClock;
use crate::connection::{Connection, ConnectionError, Connector, EncodedRequest, receivers};
use crate::event_barrier::{self, EventBarrier};
use crate::foreign::CHANNELS;
use crate::parked::Waiting;
use crate::subscriber::{
    ClientMessage, CloseTarget, Command as SubscriberCommand, StreamError, SubscriberTask,
};
use crate::url::{Kind, RedisUrl};

/// After how long without a reply the node is probed, and how often from then on. Shorter than sentinels and
/// Clusters take to declare a node down, so that no call across a failover returns before the first probe.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// The most commands in one call: the Redis serves no other client meanwhile.
const BATCH_MAX: usize = 1_000;

/// How long a node may take to tell its sync mode.
const SYNC_MODE_MAX: Duration = Duration::from_secs(5);

/// Pause before a call is sent again: the first, and the longest.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// How long dropping the backend may block, if jobs of cancelled pops are still to be released.
const CLEAN_UP_MAX: Duration = Duration::from_secs(1);

/// A queue on Redis, on Valkey or on a geartrain server.
///
/// After a lost connection, a failover or a restart it reconnects and resends every call that has no reply.
/// Our own put, and a complete or fail with a token, are idempotent. A resent pop takes other jobs, and the
/// first ones come back when their locks expire. A resent retry or release is refused if the first one was
/// executed. Commands that replace a job or count (a Qless put, unfail, a tag's count) may be executed twice.
pub struct RedisBackend {
    shared: Arc<Shared>,
    subscriber: UnboundedSender<SubscriberCommand>,
    waits: AtomicU64,
    /// Runs the connections. Callers may be on any executor, or on none.
    runtime: Option<Runtime>,
}

impl RedisBackend {
    /// Connects, and fails if there is no queue behind the URL now.
    pub async fn connect(url: RedisUrl) -> Result<RedisBackend, BackendError> {
        let clock = Arc::new(SharedClock::new());
        RedisBackend::start(Connector::new(url, Some(clock.clone())), clock, false).await
    }

    /// Connects with the caller's clock instead of the Redis's. Commands then also wait until all parked pops
    /// are registered, which makes tests deterministic.
    pub async fn with_clock(url: RedisUrl, clock: Arc<dyn Clock>) -> Result<RedisBackend, BackendError> {
        RedisBackend::start(Connector::new(url, None), clock, true).await
    }

    async fn start(
        connector: Connector,
        clock: Arc<dyn Clock>,
        deterministic: bool,
    ) -> Result<RedisBackend, BackendError> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("geartrain-redis").enable_all().build();
        let runtime =
            runtime.map_err(|error| BackendError::Broken { backend: NAME, source: error.into() })?;
        let shared = Shared::new(connector, clock, runtime.handle().clone(), deterministic);
        let (subscriber, commands) = unbounded_channel();
        let (again, unsettled) = (subscriber.downgrade(), shared.unsettled.clone());
        shared.clock.on_jump(Box::new(move || {
            if let Some(subscriber) = again.upgrade() {
                // If the subscriber task has ended, no pop is parked.
                unsettled.ask(&subscriber, SubscriberCommand::ClockJumped);
            }
        }));
        runtime.spawn(SubscriberTask::new(shared.clone(), commands, subscriber.downgrade()).run());
        let backend = RedisBackend { shared, subscriber, waits: AtomicU64::new(0), runtime: Some(runtime) };
        backend.shared.connection().await.map_err(broken)?;
        Ok(backend)
    }
}

const NAME: &str = "redis";

/// A pop must name a worker; a wait for readiness has none.
const NO_WORKER: &str = "-";

/// Bounds how long a call is retried, with exponential back-off.
struct RetryBudget {
    begun: Instant,
    lasts: Duration,
    /// Before the next attempt.
    pause: Duration,
}

impl RetryBudget {
    fn new(lasts: Duration) -> RetryBudget {
        RetryBudget { begun: Instant::now(), lasts, pause: BACK_OFF.0 }
    }

    fn left(&self) -> Duration {
        self.lasts.saturating_sub(self.begun.elapsed())
    }
}

pub(crate) fn broken(error: ConnectionError) -> BackendError {
    BackendError::Broken { backend: NAME, source: Box::new(error) }
}

/// Shared by calls and the subscriber task.
pub(crate) struct Shared {
    pub(crate) connector: Connector,
    pub(crate) clock: Arc<dyn Clock>,
    /// The id of this process, in the channel that its parked pops are answered on.
    pub(crate) process: String,
    current: Mutex<Option<(u64, Connection)>>,
    /// Held while a connection is opened, so that only one is.
    opening: tokio::sync::Mutex<()>,
    /// The last probe of a node that owed a reply: its address, when the probe began, and whether it
    /// answered.
    last_probe: tokio::sync::Mutex<Option<(ConnectionAddr, Instant, bool)>>,
    pub(crate) handle: Handle,
    pub(crate) unsettled: Arc<Unsettled>,
    pub(crate) event_barrier: EventBarrier,
    /// How long the node took to answer a batch.
    round_trip: Timing,
    /// Commands wait until the subscriber task has handled everything sent to it before.
    pub(crate) deterministic: bool,
}

impl Shared {
    /// Connects nothing yet, but follows the sentinels of the URL from now on.
    pub(crate) fn new(
        connector: Connector,
        clock: Arc<dyn Clock>,
        handle: Handle,
        deterministic: bool,
    ) -> Arc<Shared> {
        let shared = Arc::new(Shared {
            connector,
            clock,
            process: uuid::Uuid::now_v7().simple().to_string(),
            current: Mutex::new(None),
            opening: tokio::sync::Mutex::new(()),
            last_probe: tokio::sync::Mutex::new(None),
            handle,
            unsettled: Arc::default(),
            event_barrier: EventBarrier::new(),
            round_trip: Timing::default(),
            deterministic,
        });
        if let Kind::Sentinel { sentinels, master } = &shared.connector.url.kind {
            for sentinel in sentinels.clone() {
                let (watching, master) = (shared.clone(), master.clone());
                shared
                    .handle
                    .spawn(async move { watching.connector.watch_sentinel(&sentinel, &master).await });
            }
        }
        shared
    }

    /// The open connection, unless its node was superseded.
    fn current(&self) -> Option<(u64, Connection)> {
        let mut current = self.current.lock();
        current.take_if(|(_, connection)| self.connector.primary.is_superseded(connection.node.as_deref()));
        current.clone()
    }

    pub(crate) async fn connection(self: &Arc<Shared>) -> Result<(u64, Connection), ConnectionError> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        // On the runtime: a caller that is not polled any more must not block the others.
        let shared = self.clone();
        self.on_runtime(async move { shared.open().await }).await?
    }

    async fn open(&self) -> Result<(u64, Connection), ConnectionError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let _opening = self.opening.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let opened = (NUMBER.fetch_add(1, Ordering::Relaxed), self.connector.open(None).await?);
        *self.current.lock() = Some(opened.clone());
        Ok(opened)
    }

    /// Drops a connection that did not reply.
    fn forget(&self, number: u64) {
        let mut current = self.current.lock();
        current.take_if(|(current, _)| *current == number);
    }

    pub(crate) async fn on_runtime<T: Send + 'static>(
        &self,
        what: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ConnectionError> {
        self.handle.spawn(what).await.map_err(|_| ConnectionError::ShutDown)
    }

    /// Sends a request until there is a reply or the retry budget is spent.
    pub(crate) async fn ask(self: &Arc<Shared>, request: Request) -> Result<Vec<u8>, ConnectionError> {
        let request = &EncodedRequest::new(&request);
        let ask = |mut connection, left| async move {
            let begun = Instant::now();
            let answered = self.connector.ask(&mut connection, request, left).await;
            if answered.is_ok() {
                self.round_trip.record(begun.elapsed());
            }
            answered
        };
        self.with_retries(ask).await
    }

    /// Sends one Redis command until there is a reply or the retry budget is spent. It may be executed twice.
    pub(crate) async fn command(
        self: &Arc<Shared>,
        command: &redis::Cmd,
    ) -> Result<redis::Value, ConnectionError> {
        self.with_retries(|mut connection: Connection, _| async move { connection.send(command).await }).await
    }

    async fn with_retries<T, F>(
        self: &Arc<Shared>,
        call: impl Fn(Connection, Duration) -> F,
    ) -> Result<T, ConnectionError>
    where
        F: Future<Output = Result<T, ConnectionError>>,
    {
        let mut budget = RetryBudget::new(self.connector.url.patience);
        loop {
            let opened = match self.current() {
                Some(connection) => Ok(connection),
                None => self.with_timeout(budget.left(), self.connection()).await,
            };
            let error = match opened {
                Err(error) => error,
                Ok((number, connection)) => {
                    let left = budget.left();
                    match self.await_reply(&connection, left, call(connection.clone(), left)).await {
                        Ok(answer) => return Ok(answer),
                        Err(error) => {
                            if error.is_transient() {
                                self.forget(number);
                            }
                            error
                        }
                    }
                }
            };
            self.back_off(&mut budget, error).await?;
        }
    }

    /// Sends one Redis command, without retries.
    pub(crate) async fn send(self: &Arc<Shared>, command: &redis::Cmd) -> Result<(), ConnectionError> {
        let (_, connection) = self.connection().await?;
        let mut sent = connection.clone();
        self.await_reply(&connection, self.connector.url.patience, sent.send(command)).await.map(drop)
    }

    /// Publishes a client's message, without retries, and returns how many received it.
    pub(crate) async fn publish(
        self: &Arc<Shared>,
        channel: &[u8],
        message: &[u8],
    ) -> Result<u64, ConnectionError> {
        let (_, connection) = self.connection().await?;
        let (mut sent, publish) = (connection.clone(), self.connector.publish(channel, message));
        let reply = self.await_reply(&connection, self.connector.url.patience, sent.send(&publish)).await?;
        receivers(reply)
    }

    /// What the Redis or the server is, without retries.
    pub(crate) async fn software(self: &Arc<Shared>) -> Result<Software, ConnectionError> {
        let (_, connection) = self.connection().await?;
        let mut asked = connection.clone();
        let asking = self.connector.software(&mut asked);
        self.await_reply(&connection, self.connector.url.patience, asking).await
    }

    /// A timer that any executor may poll.
    pub(crate) fn timer(&self, lasts: Duration) -> tokio::time::Sleep {
        let _runtime = self.handle.enter();
        tokio::time::sleep(lasts)
    }

    /// Limits a wait, but to no less than a second: connecting takes that long.
    async fn with_timeout<T>(
        &self,
        lasts: Duration,
        what: impl Future<Output = Result<T, ConnectionError>>,
    ) -> Result<T, ConnectionError> {
        let is_over = self.timer(lasts.max(Duration::from_secs(1)));
        tokio::select! {
            biased;
            done = what => done,
            () = is_over => Err(ConnectionError::Timeout(self.connector.url.patience)),
        }
    }

    /// Waits for the reply to a call, and meanwhile watches the node that owes it.
    ///
    /// The reply is rejected if another node has been promoted. A node that does not answer at all is given
    /// up when the budget is spent; one that answers a PING over another connection is still working on the
    /// call.
    pub(crate) async fn await_reply<T>(
        self: &Arc<Shared>,
        connection: &Connection,
        budget: Duration,
        call: impl Future<Output = Result<T, ConnectionError>>,
    ) -> Result<T, ConnectionError> {
        let (begun, node) = (Instant::now(), connection.node.as_deref());
        let superseded = || {
            let node = node.map_or_else(String::new, |(host, port)| format!("{host}:{port}"));
            ConnectionError::Superseded(node)
        };
        let (mut call, mut replaced) = (pin!(call), pin!(self.connector.primary.superseded(node)));
        // Nearly all calls are answered before the first probe.
        tokio::select! {
            biased;
            () = &mut replaced => return Err(superseded()),
            answer = &mut call => return answer,
            () = self.timer(PROBE_INTERVAL) => {}
        }
        let mut answers = true;
        // WAIT blocks all calls behind it on a connection: a node that answers a PING may still owe their
        // replies for long.
        let bounded = self.connector.url.replicas > 0;
        let answer = loop {
            let left = budget.saturating_sub(begun.elapsed());
            if left.is_zero() && (bounded || !answers) {
                return Err(ConnectionError::Timeout(budget));
            }
            let (mut look, mut is_over) = (pin!(self.probe(connection)), pin!(self.timer(left)));
            tokio::select! {
                biased;
                () = &mut replaced => return Err(superseded()),
                answer = &mut call => break answer,
                answered = &mut look => answers = answered?,
                () = &mut is_over, if bounded || !answers => continue,
            }
            let left = budget.saturating_sub(begun.elapsed());
            let pause = if bounded || !answers { PROBE_INTERVAL.min(left) } else { PROBE_INTERVAL };
            tokio::select! {
                biased;
                () = &mut replaced => return Err(superseded()),
                answer = &mut call => break answer,
                () = self.timer(pause) => {}
            }
        };
        // The call took so long that the node may have been declared down meanwhile: its peers are asked
        // before the reply is accepted.
        if node.is_some() && answer.is_ok() {
            self.probe(connection).await?;
            if self.connector.primary.is_superseded(node) {
                return Err(superseded());
            }
        }
        answer
    }

    /// Whether a node answers a PING. Callers that arrive during a probe share the next one.
    async fn probe(self: &Arc<Shared>, connection: &Connection) -> Result<bool, ConnectionError> {
        let (shared, connection, asked) = (self.clone(), connection.clone(), Instant::now());
        self.on_runtime(async move {
            let mut last_probe = shared.last_probe.lock().await;
            match &*last_probe {
                Some((address, begun, answers)) if *begun >= asked && *address == connection.address => {
                    *answers
                }
                _ => {
                    let begun = Instant::now();
                    let answers = shared.connector.probe(&connection).await;
                    *last_probe = Some((connection.address.clone(), begun, answers));
                    answers
                }
            }
        })
        .await
    }

    /// Sleeps before the next attempt. Returns the error if it is permanent or the budget is spent.
    async fn back_off(
        &self,
        budget: &mut RetryBudget,
        error: ConnectionError,
    ) -> Result<(), ConnectionError> {
        let pause = budget.pause;
        if !error.is_transient() || budget.begun.elapsed() + pause > budget.lasts {
            return Err(error);
        }
        tracing::debug!(%error, ?pause, "trying again");
        budget.pause = (pause * 2).min(BACK_OFF.1);
        self.on_runtime(async move { tokio::time::sleep(pause).await }).await
    }

    /// Waits until the subscriber task has handled everything sent to it before.
    async fn settled(&self) -> Result<(), ConnectionError> {
        let cleaned_up = self.deterministic;
        if self.unsettled.is_over(cleaned_up) {
            return Ok(());
        }
        let over = async {
            self.unsettled.over(cleaned_up).await;
            Ok(())
        };
        self.with_timeout(self.connector.url.patience, over).await
    }

    /// Sends a batch. A server from before calls had a caller cannot read one, and gets the batch without.
    async fn ask_batch(self: &Arc<Shared>, batch: Vec<Call>) -> Result<Vec<u8>, ConnectionError> {
        if batch.iter().all(|call| call.by.is_none()) {
            return self.ask(Request::Batch(batch)).await;
        }
        let anonymous = batch.iter().map(|call| Call { by: None, ..call.clone() }).collect();
        match self.ask(Request::Batch(batch)).await {
            Err(error) if error.is_unreadable_request() => self.ask(Request::Batch(anonymous)).await,
            answered => answered,
        }
    }

    pub(crate) async fn execute(
        self: &Arc<Shared>,
        mut batch: Vec<Call>,
    ) -> Result<Vec<Answer>, ConnectionError> {
        let now = self.clock.now();
        for call in &mut batch {
            call.now.get_or_insert(now);
            if call.by.is_some() && !call.command.records_caller() {
                call.by = None;
            }
        }
        let mut answers = Vec::with_capacity(batch.len());
        while !batch.is_empty() {
            if let Some(refusal) = too_large(&batch[0].command) {
                answers.push(Err(refusal));
                batch.remove(0);
                continue;
            }
            let rest = batch.split_off(commands_in_one_call(&batch));
            let asked = batch.len();
            let answered = async {
                let answered = wire::decode_answers(&self.ask_batch(batch).await?)?;
                match answered.len() == asked {
                    true => Ok(answered),
                    false => Err(ConnectionError::InvalidReply("expected as many answers as commands")),
                }
            };
            match answered.await {
                Ok(answered) => answers.extend(answered),
                Err(error) => {
                    // The caller gets no answers, and so no jobs.
                    self.release(Release::of_answers(&answers));
                    return Err(error);
                }
            }
            batch = rest;
        }
        Ok(answers)
    }

    /// Releases jobs whose caller is gone.
    pub(crate) fn release(self: &Arc<Shared>, jobs: Vec<Release>) {
        if !jobs.is_empty() {
            self.clone().clean_up(async move { Ok(jobs) });
        }
    }

    /// Releases jobs whose caller is gone, once they are known. Dropping the backend waits for it.
    pub(crate) fn clean_up(
        self: Arc<Shared>,
        jobs: impl Future<Output = Result<Vec<Release>, ConnectionError>> + Send + 'static,
    ) {
        self.unsettled.clean_up_begins();
        let handle = self.handle.clone();
        handle.spawn(async move {
            let released = async {
                let batch: Vec<Call> = jobs.await?.into_iter().map(Call::from).collect();
                // Boxed, because executing a batch may begin another clean-up.
                let executed: Pin<Box<dyn Future<Output = _> + Send + '_>> = Box::pin(self.execute(batch));
                executed.await
            };
            if let Err(error) = released.await {
                tracing::warn!(%error, "cannot release jobs: they come back when their locks expire");
            }
            self.unsettled.cleaned_up(1);
        });
    }
}

/// The most bytes of payloads in one call, unless a single command has more.
const CALL_BYTES_MAX: usize = 8 << 20;

/// How many commands from the start of a batch go into one call.
fn commands_in_one_call(batch: &[Call]) -> usize {
    let mut bytes = 0;
    for (place, call) in batch.iter().enumerate().take(BATCH_MAX) {
        bytes += payloads(&call.command).map(|(_, payload)| payload.bytes().len()).sum::<usize>();
        // A periodic job is checked when it is the first of a call.
        let is_checked = matches!(call.command, Command::PutPeriodic(_));
        if place > 0 && (bytes > CALL_BYTES_MAX || is_checked) {
            return place;
        }
    }
    batch.len().min(BATCH_MAX)
}

/// Refuses what a script cannot: a bad cron expression, and payloads over the limit before they are sent, because
/// encoded as text they may be far larger.
fn too_large(command: &Command) -> Option<Refusal> {
    if let Command::PutPeriodic(put) = command
        && let Err(refusal) = put.template.check()
    {
        return Some(refusal);
    }
    let (what, payload) = payloads(command).find(|(_, payload)| payload.bytes().len() > PAYLOAD_BYTES_MAX)?;
    let max = if what == METADATA { METADATA_BYTES_MAX } else { PAYLOAD_BYTES_MAX };
    Some(Refusal::TooLarge { what: what.into(), bytes: payload.bytes().len(), max })
}

/// The metadata's name in refusals. Its limit is lower than a payload's.
const METADATA: &str = "aside";

/// The payloads that a command carries, with their names in refusals.
fn payloads(command: &Command) -> impl Iterator<Item = (&'static str, &Payload)> {
    let (payload, other) = match command {
        Command::Put(put) => (Some(&put.payload), None),
        Command::Heartbeat(heartbeat) => (heartbeat.payload.as_ref(), None),
        Command::Complete(complete) => (complete.payload.as_ref(), complete.result.as_deref()),
        Command::Fail(fail) => (fail.payload.as_ref(), fail.result.as_deref()),
        Command::Recur(recur) => (Some(&recur.payload), None),
        Command::UpdateRecurring(update) => (update.payload.as_ref(), None),
        Command::PutPeriodic(put) => (Some(&put.template.put.payload), None),
        _ => (None, None),
    };
    let beside = match command {
        Command::Put(put) => {
            put.options.as_ref().and_then(|options| Some((METADATA, options.metadata.as_ref()?)))
        }
        Command::Chunk(chunk) => Some(("chunk", &chunk.bytes)),
        Command::Progress(progress) => progress.text.as_ref().map(|said| ("progress", said)),
        _ => None,
    };
    let result = other.map(|outcome| ("result", &outcome.bytes));
    payload.map(|payload| ("payload", payload)).into_iter().chain(result).chain(beside)
}

impl Backend for RedisBackend {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        Box::pin(async move {
            self.shared.settled().await.map_err(broken)?;
            let answers = if batch.iter().any(|call| matches!(call.command, Command::Pop(_))) {
                PopCall::new(&self.shared, batch).await
            } else {
                self.shared.execute(batch).await
            };
            answers.map_err(broken)
        })
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        Box::pin(async move {
            // On the wire, a parked pop of no jobs waits for readiness.
            if pop.count.get() == 0 {
                self.pop(pop).await
            } else {
                Ok(self.park(pop, wait, Waiting::ForJobs).await?.take())
            }
        })
    }

    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        Box::pin(async move {
            let nothing = readiness_pop(queues)
                .map_err(|bad| BackendError::Broken { backend: NAME, source: bad.into() })?;
            self.park(nothing, wait, Waiting::ForReadiness).await
        })
    }

    fn now(&self) -> Option<Timestamp> {
        Some(self.shared.clock.now())
    }

    fn measure(&self) -> Measures {
        Measures { round_trip: Some(self.shared.round_trip.read()), ..Measures::default() }
    }

    fn identify(&self) -> Pending<'_, Software> {
        Box::pin(async move { self.shared.software().await.map_err(broken) })
    }

    fn sync_mode(&self) -> Pending<'_, Option<String>> {
        Box::pin(async move {
            let (_, mut connection) = self.shared.connection().await.map_err(broken)?;
            let shared = self.shared.clone();
            let asked = self.shared.on_runtime(async move {
                let asking = shared.connector.sync_mode(&mut connection);
                tokio::time::timeout(SYNC_MODE_MAX, asking).await
            });
            let too_long = |_| ConnectionError::Timeout(SYNC_MODE_MAX);
            asked.await.and_then(|mode| mode.map_err(too_long)?).map_err(broken)
        })
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.subscribe_after(None)
    }

    fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
        self.subscribe_after(Some(after))
    }

    fn flush_events(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let barrier = &self.shared.event_barrier;
            // Fails if the subscriber task has ended, and then there are no subscriptions.
            let number = barrier.request(|| drop(self.subscriber.send(SubscriberCommand::FlushEvents)));
            if barrier.is_overdue() {
                return;
            }
            tokio::select! {
                biased;
                () = barrier.wait(number) => {}
                () = self.shared.timer(event_barrier::WAIT_MAX) => barrier.set_overdue(),
            }
        })
    }

    fn publish(&self, channel: &[u8], message: &[u8]) -> Pending<'_, u64> {
        let (channel, text) = (channel.to_vec(), message.to_vec());
        Box::pin(async move {
            // On Qless's channels this process may be subscribed itself.
            match CHANNELS.iter().find(|name| name.as_bytes() == channel) {
                Some(channel) => {
                    let (done, receivers) = flume::bounded(1);
                    self.send(SubscriberCommand::Publish(ClientMessage { channel, text, done }))?;
                    let receivers = receivers.recv_async().await;
                    receivers.unwrap_or(Err(ConnectionError::ShutDown)).map_err(broken)
                }
                None => self.shared.publish(&channel, &text).await.map_err(broken),
            }
        })
    }

    fn open_result_stream(&self, stream_id: u64) -> Pending<'_, Box<dyn ResultStream>> {
        Box::pin(async move {
            let stream =
                self.open_stream(|ready| SubscriberCommand::OpenResultStream { stream_id, ready }).await?;
            Ok(Box::new(stream) as Box<dyn ResultStream>)
        })
    }

    fn backup(&self, to: BackupTarget) -> Pending<'_, Box<dyn Backup>> {
        Box::pin(async move {
            let begun = ServerBackup::begin(self.shared.clone(), to).await?;
            Ok(Box::new(begun) as Box<dyn Backup>)
        })
    }
}

/// The pop of no jobs that stands for a wait for readiness.
fn readiness_pop(queues: Vec<QueueName>) -> Result<Pop, BadInput> {
    let (worker, count) = (WorkerName::new(NO_WORKER)?, Count::new(0)?);
    Ok(Pop { queues, worker, count, order: PopOrder::Strict, whole: false, klasses: None })
}

impl RedisBackend {
    async fn pop(&self, pop: Pop) -> Result<PopReply, BackendError> {
        match self.execute(vec![Call::from(pop)]).await?.pop() {
            Some(Ok(Reply::Pop(reply))) => Ok(reply),
            Some(Err(refusal)) => Err(refusal.into()),
            _ => Err(broken(ConnectionError::InvalidReply("expected the answer to a pop"))),
        }
    }

    /// Parks a pop until it is answered or `wait` is over.
    async fn park<T>(
        &self,
        pop: Pop,
        wait: Seconds,
        waiting: impl FnOnce(flume::Sender<Result<T, BackendError>>) -> Waiting,
    ) -> Result<T, BackendError> {
        let (to, answer) = flume::bounded(1);
        let number = self.waits.fetch_add(1, Ordering::Relaxed);
        let until = self.shared.clock.elapsed() + wait;
        let park = SubscriberCommand::Park { number, pop, until, waiting: waiting(to) };
        if self.shared.deterministic {
            self.shared.unsettled.ask(&self.subscriber, park);
        } else {
            self.send(park)?;
        }
        let mut awake =
            self.shared.unsettled.on_drop(self.subscriber.downgrade(), CloseTarget::ParkedPop { number });
        let answer = answer.recv_async().await.map_err(|_| broken(ConnectionError::ShutDown))?;
        awake.is_over();
        answer
    }

    fn send(&self, ask: SubscriberCommand) -> Result<(), BackendError> {
        self.subscriber.send(ask).map_err(|_| broken(ConnectionError::ShutDown))
    }

    fn subscribe_after(&self, after: Option<u64>) -> Pending<'_, Box<dyn Subscription>> {
        Box::pin(async move {
            let stream = self.open_stream(|ready| SubscriberCommand::Subscribe { after, ready }).await?;
            Ok(Box::new(stream) as Box<dyn Subscription>)
        })
    }

    /// Opens a stream, retrying until the budget is spent.
    async fn open_stream<T>(
        &self,
        ask: impl Fn(flume::Sender<Result<T, StreamError>>) -> SubscriberCommand,
    ) -> Result<T, BackendError> {
        let mut budget = RetryBudget::new(self.shared.connector.url.patience);
        loop {
            let (ready, answer) = flume::bounded(1);
            self.send(ask(ready))?;
            let answer = async { answer.recv_async().await.map_err(|_| ConnectionError::ShutDown) };
            let answer = self.shared.with_timeout(budget.left(), answer).await.map_err(broken)?;
            let error = match answer {
                Ok(stream) => return Ok(stream),
                Err(StreamError::Refused(refusal)) => return Err(refusal.into()),
                Err(StreamError::Connection(error)) => error,
            };
            self.shared.back_off(&mut budget, error).await.map_err(broken)?;
        }
    }
}

/// Counts messages to the subscriber task that it has not handled yet.
///
/// Dropping a stream or a parked pop cannot wait for that; the next command does, so that it takes effect
/// after the drop.
#[derive(Default)]
pub(crate) struct Unsettled {
    count: AtomicUsize,
    /// Cancelled pops whose jobs may still have to be released.
    clean_ups: AtomicUsize,
    done: Notify,
}

impl Unsettled {
    /// Sends a command that the next call waits for.
    fn ask(&self, subscriber: &UnboundedSender<SubscriberCommand>, ask: SubscriberCommand) {
        self.count.fetch_add(1, Ordering::SeqCst);
        let is_cancelled = matches!(ask, SubscriberCommand::Close(target) if target.is_parked_pop());
        if is_cancelled {
            self.clean_up_begins();
        }
        if subscriber.send(ask).is_err() {
            self.settled(1);
            self.cleaned_up(usize::from(is_cancelled));
        }
    }

    fn clean_up_begins(&self) {
        self.clean_ups.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn cleaned_up(&self, count: usize) {
        self.clean_ups.fetch_sub(count, Ordering::SeqCst);
        self.done.notify_waiters();
    }

    /// A guard that closes a stream or a parked pop when it is dropped.
    pub(crate) fn on_drop(
        self: &Arc<Unsettled>,
        subscriber: WeakUnboundedSender<SubscriberCommand>,
        target: CloseTarget,
    ) -> CloseOnDrop {
        CloseOnDrop { unsettled: self.clone(), subscriber, target: Some(target) }
    }

    pub(crate) fn settled(&self, count: usize) {
        self.count.fetch_sub(count, Ordering::SeqCst);
        self.done.notify_waiters();
    }

    /// Whether all is handled and, if asked for, cleaned up.
    fn is_over(&self, cleaned_up: bool) -> bool {
        self.count.load(Ordering::SeqCst) == 0 && !(cleaned_up && self.has_clean_ups())
    }

    fn has_clean_ups(&self) -> bool {
        self.clean_ups.load(Ordering::SeqCst) > 0
    }

    async fn over(&self, cleaned_up: bool) {
        while !self.is_over(cleaned_up) {
            let done = self.done.notified();
            if !self.is_over(cleaned_up) {
                done.await;
            }
        }
    }
}

pub(crate) struct CloseOnDrop {
    unsettled: Arc<Unsettled>,
    subscriber: WeakUnboundedSender<SubscriberCommand>,
    /// None once the wait is over.
    target: Option<CloseTarget>,
}

impl CloseOnDrop {
    /// Disarms the guard: the wait has ended by itself.
    fn is_over(&mut self) {
        self.target = None;
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let (Some(subscriber), Some(target)) = (self.subscriber.upgrade(), self.target) {
            self.unsettled.ask(&subscriber, SubscriberCommand::Close(target));
        }
    }
}

impl Drop for RedisBackend {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // A process often ends after a cancelled pop, and the job should not wait for its lock to expire.
        if self.shared.unsettled.has_clean_ups() {
            let (done, is_done) = flume::bounded(1);
            let unsettled = self.shared.unsettled.clone();
            runtime.spawn(async move {
                unsettled.over(true).await;
                let _ = done.send(());
            });
            let _ = is_done.recv_timeout(CLEAN_UP_MAX);
        }
        // Not waited for: the caller may be on an executor's thread, which must not block. The runtime aborts
        // its tasks.
        runtime.shutdown_background();
    }
}
