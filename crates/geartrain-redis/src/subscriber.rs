//! The subscriber task: one RESP3 connection for all that arrives unasked: answers to parked pops, events,
//! and deliveries of result streams.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use geartrain_core::wire::{self, EventBatch, EventRecord, EventsReply, ParkReply, ParkedPopNotice, Request};
use geartrain_core::{
    Call, Count, Detach, DetachScope, Get, Jid, Pop, PopReply, PositionedEvent, QueueName, Refusal, Reply,
    ResultStream, ResultStreamEnd, Seconds, StreamMessage, Subscription, SubscriptionEnd,
};
use redis::{PushInfo, PushKind, Value, cmd};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::cancelled::PopGuard;
use crate::connection::{Connection, ConnectionError, EncodedRequest, receivers};
use crate::driver::{CloseOnDrop, Shared, broken};
use crate::foreign::{self, CHANNELS};
use crate::parked::{ParkedPop, ParkedPops, Waiting};

/// How often parked pops are sent again, because foreign scripts wake none.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Pause before a lost connection is opened again; it grows with the outage.
const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(100);
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long a reply over this connection may take at most. A shorter `patience=` shortens it, down to the
/// minimum.
const REPLY_TIMEOUT_MAX: Duration = Duration::from_secs(10);
const REPLY_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// How many events or deliveries a slow subscriber may fall behind.
const QUEUED_MAX: usize = 100_000;

/// How often the subscription to events is renewed. Without that for a day, the Redis retains no more events.
const SUBSCRIPTION_RENEWAL: Duration = Duration::from_secs(1_800);

/// How often the result streams of this process are registered as alive. The tick of another process detaches
/// their waiters if that does not happen for 30 s (`RENEWED_MAX` in `lua/tick.lua`).
const REGISTRATION_RENEWAL: Duration = Duration::from_secs(5);

/// How many events one request of a replay asks for.
const EVENTS_PAGE: i64 = 1_000;

/// Event positions are those of the Redis shifted by this many bits, which leaves positions in between for
/// events of foreign scripts, which have none. When these are used up, further foreign events share the last
/// position: a position of ours must never look like one that was delivered already.
const FOREIGN_POSITION_BITS: u32 = 10;

/// Commands to the subscriber task.
pub(crate) enum Command {
    Park { number: u64, pop: Pop, until: Seconds, waiting: Waiting },
    Close(CloseTarget),
    Subscribe { after: Option<u64>, ready: flume::Sender<Result<RedisEventStream, StreamError>> },
    OpenResultStream { stream_id: u64, ready: flume::Sender<Result<RedisResultStream, StreamError>> },
    Publish(ClientMessage),
    FlushEvents,
    ClockJumped,
}

/// A client's message on one of Qless's channels, which this task may be subscribed to.
pub(crate) struct ClientMessage {
    pub(crate) channel: &'static str,
    pub(crate) text: Vec<u8>,
    /// Gets the number of receivers.
    pub(crate) done: flume::Sender<Result<u64, ConnectionError>>,
}

/// Why a stream cannot be opened.
pub(crate) enum StreamError {
    /// The requested events are no longer retained.
    Refused(Refusal),
    /// The Redis did not answer.
    Connection(ConnectionError),
}

impl From<ConnectionError> for StreamError {
    fn from(error: ConnectionError) -> StreamError {
        StreamError::Connection(error)
    }
}

/// A stream or parked pop whose owner has dropped it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CloseTarget {
    ParkedPop { number: u64 },
    Events,
    ResultStream { stream_id: u64 },
}

impl CloseTarget {
    pub(crate) fn is_parked_pop(self) -> bool {
        matches!(self, CloseTarget::ParkedPop { .. })
    }
}

struct EventSubscriber {
    last_sent: u64,
    /// Replayed from the event log up to this position; live messages at or below it are duplicates.
    replayed_to: u64,
    to: flume::Sender<PositionedEvent>,
    end: Arc<OnceLock<SubscriptionEnd>>,
}

impl EventSubscriber {
    /// Delivers one event. False if the subscriber is gone or has fallen behind, which ends the subscription.
    fn deliver(&mut self, event: PositionedEvent) -> bool {
        let position = event.position;
        match self.to.try_send(event) {
            Ok(()) => self.last_sent = position,
            Err(flume::TrySendError::Disconnected(_)) => return false,
            Err(flume::TrySendError::Full(_)) => {
                let _ = self.end.set(SubscriptionEnd::Lagged { missed: position });
                return false;
            }
        }
        true
    }
}

struct ResultStreamSender {
    to: flume::Sender<StreamMessage>,
    end: Arc<OnceLock<ResultStreamEnd>>,
}

pub(crate) struct SubscriberTask {
    shared: Arc<Shared>,
    commands: UnboundedReceiver<Command>,
    /// Sends to this task, for streams that report their drop.
    own_sender: WeakUnboundedSender<Command>,
    pushes: (UnboundedSender<PushInfo>, UnboundedReceiver<PushInfo>),
    connection: Option<Connection>,
    parked: ParkedPops,
    event_subscribers: Vec<EventSubscriber>,
    /// By how many bits positions are shifted; 0 on a geartrain server, where there are no foreign scripts.
    position_shift: u32,
    /// How many of the next messages on Qless's channels come from our own script, which announced them.
    announced: u64,
    /// Clients' messages that this task published and has yet to receive itself. They are no events, and the
    /// front-end has delivered them already.
    own_messages: VecDeque<(&'static str, Vec<u8>)>,
    result_streams: HashMap<u64, ResultStreamSender>,
    /// An event barrier is to begin.
    barrier_requested: bool,
    /// The PING of the event barrier in flight, and the barrier's number.
    ping: JoinSet<Result<u64, ConnectionError>>,
    polled_at: tokio::time::Instant,
    subscription_renewed_at: tokio::time::Instant,
    registration_renewed_at: tokio::time::Instant,
    /// Since when there is no connection although one is needed.
    lost_at: Option<tokio::time::Instant>,
    /// Clean-up that nothing waits for; aborted when this task ends.
    background: JoinSet<()>,
    /// How many handled commands have to be reported to `Unsettled`.
    settled: usize,
    /// How many of them closed parked pops.
    unparked: usize,
}

impl SubscriberTask {
    pub(crate) fn new(
        shared: Arc<Shared>,
        commands: UnboundedReceiver<Command>,
        own_sender: WeakUnboundedSender<Command>,
    ) -> SubscriberTask {
        SubscriberTask {
            shared,
            commands,
            own_sender,
            pushes: unbounded_channel(),
            connection: None,
            parked: ParkedPops::default(),
            event_subscribers: Vec::new(),
            position_shift: 0,
            announced: 0,
            own_messages: VecDeque::new(),
            result_streams: HashMap::new(),
            barrier_requested: false,
            ping: JoinSet::new(),
            polled_at: tokio::time::Instant::now(),
            subscription_renewed_at: tokio::time::Instant::now(),
            registration_renewed_at: tokio::time::Instant::now(),
            lost_at: None,
            background: JoinSet::new(),
            settled: 0,
            unparked: 0,
        }
    }

    /// Runs until the backend is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let wake_at = self.wake_at();
            let (shared, connection) = (self.shared.clone(), self.connection.clone());
            let node = connection.as_ref().and_then(|connection| connection.node.as_deref());
            tokio::select! {
                biased;
                () = shared.connector.primary.superseded(node) => self.superseded(),
                command = self.commands.recv() => match command {
                    Some(command) => self.handle(command).await,
                    None => return,
                },
                Some(Ok(pinged)) = self.ping.join_next() => self.pinged(pinged).await,
                Some(push) = self.pushes.1.recv() => self.pushed(push).await,
                () = tokio::time::sleep_until(wake_at) => self.check_deadlines(),
            }
            // Everything that has arrived goes into one request.
            while let Ok(command) = self.commands.try_recv() {
                self.handle(command).await;
            }
            self.take_pushes().await;
            // Here as well: if commands come without a pause, none of the other branches is ever reached.
            if let Some(Ok(pinged)) = self.ping.try_join_next() {
                self.pinged(pinged).await;
            }
            while self.background.try_join_next().is_some() {}
            self.expire();
            self.send_parked_pops().await;
            self.renew_subscription().await;
            self.renew_registration().await;
            self.begin_barrier();
            self.shared.unsettled.settled(std::mem::take(&mut self.settled));
            // Jobs that came meanwhile are counted as releases by now: see `PopGuard`.
            self.shared.unsettled.cleaned_up(std::mem::take(&mut self.unparked));
        }
    }

    /// Sends due pops again, and once per `POLL_INTERVAL` all of them.
    fn check_deadlines(&mut self) {
        if self.polled_at.elapsed() >= POLL_INTERVAL || self.connection.is_none() {
            return self.parked.mark_all_due();
        }
        self.parked.mark_due(self.shared.clock.elapsed(), self.shared.clock.now());
    }

    /// When to run again although nothing arrives.
    fn wake_at(&self) -> tokio::time::Instant {
        let now = tokio::time::Instant::now();
        let renew_at = if self.must_register() {
            self.registration_renewed_at + REGISTRATION_RENEWAL
        } else {
            now + SUBSCRIPTION_RENEWAL
        };
        if self.parked.is_empty() && self.connection.is_some() {
            let subscription_due = self.subscription_renewed_at + SUBSCRIPTION_RENEWAL;
            return renew_at.min(if self.event_subscribers.is_empty() {
                now + SUBSCRIPTION_RENEWAL
            } else {
                subscription_due
            });
        }
        if self.connection.is_none() {
            let idle = self.parked.is_empty() && self.event_subscribers.is_empty();
            let lost = self.lost_at.map_or(Duration::ZERO, |lost_at| lost_at.elapsed());
            // The longer the outage, the rarer the attempts.
            return now
                + if idle {
                    Duration::from_secs(3_600)
                } else {
                    RECONNECT_PAUSE_MIN.max(lost / 4).min(RECONNECT_PAUSE_MAX)
                };
        }
        let (elapsed, moment) = (self.shared.clock.elapsed(), self.shared.clock.now());
        let due = self.parked.first_due(elapsed, moment).map_or(f64::INFINITY, Seconds::get);
        let again = self.polled_at + POLL_INTERVAL;
        // A deadline that passes without effect, because the clock stands still, is checked again after a
        // moment and not in a busy loop.
        again.min(renew_at).min(now + Duration::from_secs_f64(due.clamp(0.001, POLL_INTERVAL.as_secs_f64())))
    }

    async fn handle(&mut self, command: Command) {
        match command {
            Command::Park { number, pop, until, waiting } => {
                if self.parked.is_empty() {
                    // Time without a connection counts only while one is needed.
                    self.lost_at = None;
                }
                self.parked.add(number, ParkedPop::new(pop, until, waiting));
                self.settled += usize::from(self.shared.deterministic);
            }
            Command::Close(what) => {
                self.close(what).await;
                self.settled += 1;
                self.unparked += usize::from(what.is_parked_pop());
            }
            Command::ClockJumped => {
                self.settled += 1;
                self.parked.mark_all_due();
            }
            Command::FlushEvents => self.barrier_requested = true,
            Command::Subscribe { after, ready } => {
                let stream = self.subscribe(after).await;
                let _ = ready.send(self.discard_connection_on_error(stream));
            }
            Command::OpenResultStream { stream_id, ready } => {
                let stream = self.open_result_stream(stream_id).await;
                let _ = ready.send(self.discard_connection_on_error(stream));
            }
            Command::Publish(ClientMessage { channel, text, done }) => {
                if self.hears_qless_channels() {
                    let _ = done.send(self.publish(channel, text).await);
                } else {
                    // In the background: this may take as long as `patience=` allows.
                    let shared = self.shared.clone();
                    self.background.spawn(async move {
                        let _ = done.send(shared.publish(channel.as_bytes(), &text).await);
                    });
                }
            }
        }
    }

    /// Whether this task is subscribed to Qless's channels.
    fn hears_qless_channels(&self) -> bool {
        self.connection.is_some() && self.position_shift > 0 && !self.event_subscribers.is_empty()
    }

    /// Publishes a client's message on a channel that this task is subscribed to, and returns how many others
    /// receive it.
    async fn publish(&mut self, channel: &'static str, text: Vec<u8>) -> Result<u64, ConnectionError> {
        let Some(mut connection) = self.connection.clone() else { return Err(ConnectionError::ShutDown) };
        let publish = self.shared.connector.publish(channel.as_bytes(), &text);
        self.own_messages.push_back((channel, text));
        // Over this connection, so that the message comes back on it in any case.
        match self.in_time(connection.send(&publish)).await.and_then(receivers) {
            Ok(receivers) => Ok(receivers.saturating_sub(1)),
            Err(error) => {
                self.own_messages.pop_back();
                if error.is_transient() {
                    self.lost();
                }
                Err(error)
            }
        }
    }

    /// Drops a connection on which opening a stream failed: its node may no longer be the primary.
    fn discard_connection_on_error<T>(&mut self, stream: Result<T, StreamError>) -> Result<T, StreamError> {
        if let Err(StreamError::Connection(error)) = &stream
            && error.is_transient()
        {
            self.lost();
        }
        stream
    }

    async fn close(&mut self, what: CloseTarget) {
        let channels = match what {
            CloseTarget::ParkedPop { number } => {
                if self.parked.remove(number).is_some() {
                    self.unpark(number).await;
                }
                return;
            }
            CloseTarget::Events => {
                self.event_subscribers.retain(|subscriber| !subscriber.to.is_disconnected());
                if !self.event_subscribers.is_empty() {
                    return;
                }
                self.event_channels()
            }
            CloseTarget::ResultStream { stream_id } => {
                self.result_streams.remove(&stream_id);
                let detach = vec![Call::from(Detach { scope: DetachScope::Stream(stream_id) })];
                if self.connection.is_none() || !self.shared.deterministic {
                    // In the background: this may take as long as `patience=` allows, and parked pops must
                    // not wait for it.
                    self.detach_in_background(stream_id, detach);
                } else if let Err(error) = self.shared.execute(detach).await {
                    tracing::warn!(%error, "cannot detach the waiters of a result stream");
                }
                vec![self.result_channel(stream_id)]
            }
        };
        if let Some(mut connection) = self.connection.clone()
            && self.in_time(connection.unsubscribe(&channels)).await.is_err()
        {
            self.lost();
        }
    }

    /// Detaches the waiters of a result stream, and then removes its registration: if this process dies in
    /// between, another one detaches them.
    fn detach_in_background(&mut self, stream_id: u64, detach: Vec<Call>) {
        let shared = self.shared.clone();
        let registered = self.position_shift > 0 && !shared.deterministic;
        let unregister = cmd("ZREM").arg(self.streams_key()).arg(format!("{stream_id:016x}")).take();
        self.background.spawn(async move {
            let detached = match shared.execute(detach).await {
                Ok(_) if registered => shared.send(&unregister).await,
                detached => detached.map(drop),
            };
            if let Err(error) = detached {
                tracing::warn!(%error, stream_id, "cannot detach the waiters of a result stream");
            }
        });
    }

    fn own_channel(&self) -> String {
        self.shared.connector.key(format_args!("gt:to:{}", self.shared.process))
    }

    /// All channels that carry events.
    fn event_channels(&self) -> Vec<String> {
        let foreign = if self.position_shift > 0 { &CHANNELS[..] } else { &[] };
        ["gt:events"].iter().chain(foreign).map(|channel| self.shared.connector.key(channel)).collect()
    }

    fn result_channel(&self, stream_id: u64) -> String {
        self.shared.connector.key(format_args!("gt:front:{stream_id}"))
    }

    /// The connection, opened if necessary and subscribed to every channel that is needed.
    async fn connection(&mut self) -> Result<Connection, ConnectionError> {
        if let Some(connection) = &self.connection {
            return Ok(connection.clone());
        }
        // The lost connection may have left jobs unread that were popped for us.
        while let Ok(push) = self.pushes.1.try_recv() {
            self.on_push_message(push).await;
        }
        self.pushes = unbounded_channel();
        let mut connection = self.shared.connector.open(Some(self.pushes.0.clone())).await?;
        self.announced = 0;
        self.own_messages.clear();
        self.position_shift = if self.shared.connector.is_geartrain(&mut connection).await? {
            0
        } else {
            FOREIGN_POSITION_BITS
        };
        self.in_time(connection.subscribe(&[self.own_channel()])).await?;
        if !self.event_subscribers.is_empty() {
            self.in_time(connection.subscribe(&self.event_channels())).await?;
        }
        self.catch_up(&mut connection).await?;
        self.connection = Some(connection.clone());
        self.lost_at = None;
        Ok(connection)
    }

    /// After a reconnect, replays the missed events to each subscriber; ends subscriptions whose events are
    /// no longer retained.
    async fn catch_up(&mut self, connection: &mut Connection) -> Result<(), ConnectionError> {
        let mut behind = std::mem::take(&mut self.event_subscribers);
        while let Some(mut subscriber) = behind.pop() {
            match self.replay(connection, &mut subscriber).await {
                Ok(true) => self.event_subscribers.push(subscriber),
                Ok(false) => {}
                Err(StreamError::Refused(_)) => {
                    let _ = subscriber.end.set(SubscriptionEnd::Lagged { missed: subscriber.last_sent + 1 });
                }
                Err(StreamError::Connection(error)) => {
                    // The next connection replays them.
                    self.event_subscribers.push(subscriber);
                    self.event_subscribers.append(&mut behind);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Replays the retained events after the last one delivered. False if the subscriber is gone or has
    /// fallen behind.
    async fn replay(
        &self,
        connection: &mut Connection,
        subscriber: &mut EventSubscriber,
    ) -> Result<bool, StreamError> {
        let count = Count::new(EVENTS_PAGE).unwrap_or(Count::ONE);
        loop {
            let request = Request::Since { after: subscriber.last_sent >> self.position_shift, count };
            let answer = self.ask(connection, &request).await?;
            let events: EventsReply =
                wire::decode(&answer).map_err(wire::BadWire::from).map_err(ConnectionError::from)?;
            let refused = |refusal| StreamError::Refused(self.shift_refusal(subscriber.last_sent, refusal));
            let events = events.map_err(refused)?;
            let full = events.len() == count.get();
            for record in events {
                if !subscriber.deliver(self.positioned(record)) {
                    return Ok(false);
                }
            }
            subscriber.replayed_to = subscriber.last_sent;
            if !full {
                return Ok(true);
            }
        }
    }

    fn reply_timeout(&self) -> Duration {
        REPLY_TIMEOUT_MAX.min(self.shared.connector.url.patience.max(REPLY_TIMEOUT_MIN))
    }

    /// What the connection replies, if it does so in time: everything else here waits for it.
    async fn in_time<T>(
        &self,
        reply: impl Future<Output = Result<T, ConnectionError>>,
    ) -> Result<T, ConnectionError> {
        let max = self.reply_timeout();
        tokio::time::timeout(max, reply).await.unwrap_or(Err(ConnectionError::Timeout(max)))
    }

    /// Sends a request over this connection, with a limit of time because everything else here waits for it.
    async fn ask(&self, connection: &mut Connection, request: &Request) -> Result<Vec<u8>, ConnectionError> {
        let (request, watched, max) =
            (EncodedRequest::new(request), connection.clone(), self.reply_timeout());
        let call =
            self.shared.await_reply(&watched, max, self.shared.connector.ask(connection, &request, max));
        tokio::time::timeout(max, call).await.unwrap_or(Err(ConnectionError::Timeout(max)))
    }

    /// Renews the subscription to events when it is time, and reopens a lost connection.
    async fn renew_subscription(&mut self) {
        if self.event_subscribers.is_empty() {
            return;
        }
        let Ok(mut connection) = self.connection().await else { return };
        if self.subscription_renewed_at.elapsed() < SUBSCRIPTION_RENEWAL {
            return;
        }
        self.subscription_renewed_at = tokio::time::Instant::now();
        if self.ask(&mut connection, &Request::Listen { now: Some(self.shared.clock.now()) }).await.is_err() {
            self.lost();
        }
    }

    /// Whether there are result streams that must be registered. A geartrain server notices when a connection
    /// ends, and times from a caller's own clock would mean nothing to other processes.
    fn must_register(&self) -> bool {
        self.connection.is_some()
            && !self.result_streams.is_empty()
            && self.position_shift > 0
            && !self.shared.deterministic
    }

    fn streams_key(&self) -> String {
        self.shared.connector.key("gt:fronts")
    }

    /// Registers result streams as alive now. Returns how many had not been registered.
    async fn register(&self, connection: &mut Connection, streams: &[u64]) -> Result<usize, ConnectionError> {
        let mut register = cmd("ZADD");
        register.arg(self.streams_key());
        for stream in streams {
            register.arg(self.shared.clock.now().get()).arg(format!("{stream:016x}"));
        }
        let added = self.in_time(connection.send(&register)).await?;
        redis::from_redis_value(added)
            .map_err(|_| ConnectionError::InvalidReply("expected a number of members"))
    }

    /// Registers all result streams again when it is time.
    async fn renew_registration(&mut self) {
        if !self.must_register() || self.registration_renewed_at.elapsed() < REGISTRATION_RENEWAL {
            return;
        }
        let Some(mut connection) = self.connection.clone() else { return };
        self.registration_renewed_at = tokio::time::Instant::now();
        let streams: Vec<u64> = self.result_streams.keys().copied().collect();
        match self.register(&mut connection, &streams).await {
            Ok(0) => {}
            // This process was stopped for so long that another one has detached its waiters.
            Ok(_) => self.end_streams(),
            Err(error) if error.is_transient() => self.lost(),
            Err(error) => tracing::warn!(%error, "cannot register the result streams of this process"),
        }
    }

    fn end_streams(&mut self) {
        for (_, stream_id) in self.result_streams.drain() {
            let _ = stream_id.end.set(ResultStreamEnd::Closed);
        }
    }

    /// A refusal with positions as this backend counts them.
    fn shift_refusal(&self, asked: u64, refusal: Refusal) -> Refusal {
        match refusal {
            Refusal::CursorTooOld { oldest, .. } => {
                Refusal::CursorTooOld { after: asked, oldest: oldest << self.position_shift }
            }
            Refusal::CursorAhead { newest, .. } => {
                Refusal::CursorAhead { after: asked, newest: newest << self.position_shift }
            }
            other => other,
        }
    }

    fn lost(&mut self) {
        self.connection = None;
        // The barrier begins again after the next connection has replayed the missed events.
        self.barrier_requested |= !std::mem::take(&mut self.ping).is_empty();
        self.lost_at.get_or_insert_with(tokio::time::Instant::now);
        self.end_streams();
    }

    /// Another node has been promoted. Messages of the old one are discarded.
    fn superseded(&mut self) {
        self.lost();
        self.pushes = unbounded_channel();
        self.parked.mark_all_due();
    }

    async fn subscribe(&mut self, after: Option<u64>) -> Result<RedisEventStream, StreamError> {
        let mut connection = self.connection().await?;
        let (to, from) = flume::bounded(QUEUED_MAX);
        let end = Arc::new(OnceLock::new());
        let mut subscriber =
            EventSubscriber { last_sent: after.unwrap_or(0), replayed_to: 0, to, end: end.clone() };
        if after.is_some() {
            // Before events are retained for this subscription: a position that is not retained is refused.
            self.replay(&mut connection, &mut subscriber).await?;
        }
        self.in_time(connection.subscribe(&self.event_channels())).await?;
        let request = Request::Listen { now: Some(self.shared.clock.now()) };
        let answer = self.ask(&mut connection, &request).await?;
        let newest: u64 =
            wire::decode(&answer).map_err(wire::BadWire::from).map_err(ConnectionError::from)?;
        let keeps_up = match after {
            None => {
                subscriber.last_sent = newest << self.position_shift;
                subscriber.replayed_to = subscriber.last_sent;
                true
            }
            Some(_) => self.replay(&mut connection, &mut subscriber).await?,
        };
        let position = subscriber.last_sent;
        if keeps_up {
            self.event_subscribers.push(subscriber);
        }
        self.subscription_renewed_at = tokio::time::Instant::now();
        let guard = self.shared.unsettled.on_drop(self.own_sender.clone(), CloseTarget::Events);
        Ok(RedisEventStream { from, position, end, _guard: guard })
    }

    async fn open_result_stream(&mut self, stream_id: u64) -> Result<RedisResultStream, StreamError> {
        let mut connection = self.connection().await?;
        self.in_time(connection.subscribe(&[self.result_channel(stream_id)])).await?;
        let (to, from) = flume::bounded(QUEUED_MAX);
        let end = Arc::new(OnceLock::new());
        self.result_streams.insert(stream_id, ResultStreamSender { to, end: end.clone() });
        if self.must_register() {
            // Before the first waiter attaches, so that none is left behind if this process dies.
            match self.register(&mut connection, &[stream_id]).await {
                Err(error) if error.is_transient() => {
                    self.result_streams.remove(&stream_id);
                    return Err(error.into());
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot register the result streams of this process")
                }
                Ok(_) => {}
            }
        }
        let guard =
            self.shared.unsettled.on_drop(self.own_sender.clone(), CloseTarget::ResultStream { stream_id });
        Ok(RedisResultStream { from, end, _guard: guard })
    }

    /// Begins the requested event barrier. Without a connection it waits for the next one.
    fn begin_barrier(&mut self) {
        if !self.barrier_requested || !self.ping.is_empty() {
            return;
        }
        if self.event_subscribers.is_empty() {
            self.barrier_requested = false;
            return self.shared.event_barrier.pass(self.shared.event_barrier.begin());
        }
        let Some(mut connection) = self.connection.clone() else { return };
        self.barrier_requested = false;
        let (barrier, max) = (self.shared.event_barrier.begin(), self.reply_timeout());
        self.ping.spawn(async move {
            let answer = tokio::time::timeout(max, connection.send(&cmd("PING"))).await;
            answer.unwrap_or(Err(ConnectionError::Timeout(max))).map(|_| barrier)
        });
    }

    /// Ends the event barrier: the messages from before the answer have been read.
    async fn pinged(&mut self, pinged: Result<u64, ConnectionError>) {
        match pinged {
            Ok(barrier) => {
                self.take_pushes().await;
                self.shared.event_barrier.pass(barrier);
            }
            Err(error) => {
                tracing::debug!(%error, "no answer on the connection for events");
                self.lost();
                self.barrier_requested = true;
            }
        }
    }

    /// Ends expired waits without jobs.
    fn expire(&mut self) {
        let elapsed = self.shared.clock.elapsed();
        // The Redis ends the wait by its own clock; jobs that still arrive are released.
        self.parked.end(|pop| !pop.is_due() && pop.is_expired(elapsed), || None);
    }

    /// Sends all due pops in one request.
    async fn send_parked_pops(&mut self) {
        if !self.parked.any_due() {
            return;
        }
        let mut connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => {
                tracing::debug!(%error, "no connection for parked pops");
                return self.give_up(&error);
            }
        };
        let waits = self.parked.requests(self.shared.clock.elapsed());
        let asked: Vec<u64> = waits.iter().map(|wait| wait.number).collect();
        let request = Request::Park {
            process: self.shared.process.clone(),
            now: Some(self.shared.clock.now()),
            waits,
            tick: !self.shared.deterministic,
        };
        self.polled_at = tokio::time::Instant::now();
        let waiting: Vec<ParkReply> = match self.ask(&mut connection, &request).await {
            Ok(answer) => match wire::decode(&answer) {
                Ok(waiting) => waiting,
                Err(_) => {
                    return self.refuse(|| ConnectionError::InvalidReply("expected a list of parked pops"));
                }
            },
            Err(error) if !error.is_transient() => {
                let said = error.to_string();
                return self.refuse(|| ConnectionError::NoMaster(said.clone()));
            }
            Err(error) => {
                self.lost();
                // The connection was lost before this request.
                self.lost_at = self.lost_at.map(|lost_at| lost_at.min(self.polled_at));
                return self.give_up(&error);
            }
        };
        for (number, waiting) in asked.into_iter().zip(waiting) {
            match waiting {
                ParkReply::Popped(reply) => self.deliver(number, Ok(reply)),
                ParkReply::Refused(refusal) => self.deliver(number, Err(refusal)),
                ParkReply::Parked { next } => self.parked.park(number, next),
                _ => {}
            }
        }
        // Pops with a wait of zero are done.
        self.expire();
    }

    /// Without a connection, ends expired waits, and all of them once `patience=` is over.
    fn give_up(&mut self, error: &ConnectionError) {
        let lost_at = *self.lost_at.get_or_insert_with(tokio::time::Instant::now);
        let too_long = !error.is_transient() || lost_at.elapsed() >= self.shared.connector.url.patience;
        let elapsed = self.shared.clock.elapsed();
        let said = || ConnectionError::NoMaster(format!("no connection for parked pops: {error}"));
        self.parked.end(|pop| too_long || pop.is_expired(elapsed), || Some(broken(said())));
    }

    fn refuse(&mut self, error: impl Fn() -> ConnectionError) {
        self.parked.end(ParkedPop::is_due, || Some(broken(error())));
    }

    /// Answers a parked pop. Jobs whose caller has stopped waiting are released.
    fn deliver(&mut self, number: u64, reply: Result<PopReply, Refusal>) {
        let reply = reply.map(|reply| PopGuard::new(reply, &self.shared));
        match (self.parked.remove(number), reply) {
            (Some(pop), Ok(reply)) => pop.complete(reply),
            (Some(pop), Err(refusal)) => pop.end(Some(refusal.into())),
            (None, _) => {}
        }
    }

    async fn unpark(&mut self, number: u64) {
        let Some(mut connection) = self.connection.clone() else { return };
        let request = Request::Unpark { process: self.shared.process.clone(), number };
        if self.ask(&mut connection, &request).await.is_err() {
            self.lost();
        }
    }

    /// Handles the messages that have been read.
    async fn take_pushes(&mut self) {
        while let Ok(push) = self.pushes.1.try_recv() {
            self.pushed(push).await;
        }
    }

    async fn pushed(&mut self, push: PushInfo) {
        match push.kind {
            PushKind::Disconnection => {
                self.lost();
                self.parked.mark_all_due();
            }
            _ => self.on_push_message(push).await,
        }
    }

    async fn on_push_message(&mut self, push: PushInfo) {
        let mut data = push.data.into_iter();
        if push.kind == PushKind::Message
            && let (Some(Value::BulkString(channel)), Some(Value::BulkString(message))) =
                (data.next(), data.next())
        {
            self.on_message(&channel, &message).await;
        }
    }

    async fn on_message(&mut self, channel: &[u8], message: &[u8]) {
        let prefix = self.shared.connector.url.prefix.as_bytes();
        let Some(channel) =
            channel.strip_prefix(prefix).and_then(|channel| std::str::from_utf8(channel).ok())
        else {
            return;
        };
        let read = if channel == "gt:events" {
            wire::decode(message).map(|heard| self.on_events(heard))
        } else if let Some(stream_id) =
            channel.strip_prefix("gt:front:").and_then(|stream_id| stream_id.parse().ok())
        {
            wire::decode(message).map(|delivery| self.on_delivery(stream_id, delivery))
        } else if channel.starts_with("gt:to:") {
            wire::decode(message).map(|notice| self.on_notice(notice))
        } else {
            self.on_foreign_message(channel, message).await;
            Ok(())
        };
        if let Err(error) = read {
            tracing::warn!(%error, channel, "cannot decode a message");
        }
    }

    fn on_notice(&mut self, notice: ParkedPopNotice) {
        match notice {
            ParkedPopNotice::Popped { number, reply } => self.deliver(number, reply),
            ParkedPopNotice::Wake(queue) => self.parked.mark_first_pop(&queue),
            ParkedPopNotice::Ready(queue) => self.parked.mark_readiness_waits(&queue),
            _ => {}
        }
    }

    /// A message on one of Qless's channels: announced by our own script, or published by a foreign one.
    async fn on_foreign_message(&mut self, channel: &str, message: &[u8]) {
        if self.announced > 0 {
            self.announced -= 1;
            return;
        }
        let is_own = |own: &(&str, Vec<u8>)| own.0 == channel && own.1 == message;
        if let Some(at) = self.own_messages.iter().position(is_own) {
            self.own_messages.remove(at);
            return;
        }
        let queue = match foreign::failed_job(channel, message) {
            Some(jid) => self.queue_of(jid).await,
            None => None,
        };
        if let Some(event) = foreign::event(channel, message, queue) {
            let (event, room) = (Arc::new(event), (1 << self.position_shift) - 1);
            let at = Some(self.shared.clock.now());
            // Positioned after the last event of each subscriber: some have already seen later events than
            // others.
            self.event_subscribers.retain_mut(|it| {
                let position = (it.last_sent + 1).min(it.last_sent | room);
                it.deliver(PositionedEvent { position, event: event.clone(), at })
            });
        }
    }

    async fn queue_of(&self, jid: Jid) -> Option<QueueName> {
        let answers = self.shared.execute(vec![Call::from(Get { jid })]).await.ok()?;
        match answers.into_iter().next() {
            Some(Ok(Reply::Get(Some(job)))) => job.queue,
            _ => None,
        }
    }

    fn on_events(&mut self, (announced, events): EventBatch) {
        self.announced = announced;
        let events: Vec<PositionedEvent> = events.into_iter().map(|record| self.positioned(record)).collect();
        self.event_subscribers.retain_mut(|subscriber| {
            let replayed_to = subscriber.replayed_to;
            let mut new = events.iter().filter(|event| event.position > replayed_to);
            new.all(|event| subscriber.deliver(event.clone()))
        });
    }

    /// An event of the Redis, with its position shifted.
    fn positioned(&self, EventRecord { position, event, at }: EventRecord) -> PositionedEvent {
        PositionedEvent { position: position << self.position_shift, event: Arc::new(event), at }
    }

    fn on_delivery(&mut self, stream_id: u64, delivery: StreamMessage) {
        let Some(stream) = self.result_streams.get(&stream_id) else { return };
        if stream.to.try_send(delivery).is_err() {
            let _ = stream.end.set(ResultStreamEnd::Lagged);
            self.result_streams.remove(&stream_id);
        }
    }
}

pub(crate) struct RedisEventStream {
    /// Declared first, so that it is dropped before the guard reports the drop.
    from: flume::Receiver<PositionedEvent>,
    position: u64,
    end: Arc<OnceLock<SubscriptionEnd>>,
    _guard: CloseOnDrop,
}

impl Subscription for RedisEventStream {
    fn next(
        &mut self,
    ) -> Pin<Box<dyn Future<Output = Result<PositionedEvent, SubscriptionEnd>> + Send + '_>> {
        Box::pin(async move {
            let closed = |_| self.end.get().cloned().unwrap_or(SubscriptionEnd::Closed);
            self.from.recv_async().await.map_err(closed)
        })
    }

    fn position(&self) -> u64 {
        self.position
    }
}

pub(crate) struct RedisResultStream {
    from: flume::Receiver<StreamMessage>,
    end: Arc<OnceLock<ResultStreamEnd>>,
    _guard: CloseOnDrop,
}

impl ResultStream for RedisResultStream {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<StreamMessage, ResultStreamEnd>> + Send + '_>> {
        Box::pin(async move {
            let closed = |_| self.end.get().cloned().unwrap_or(ResultStreamEnd::Closed);
            self.from.recv_async().await.map_err(closed)
        })
    }
}
