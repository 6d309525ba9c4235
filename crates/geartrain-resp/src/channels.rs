//! Publish/subscribe: Qless's channels and our own, and the publisher task that feeds them with events.
//!
//! Messages are in the subscribers' outboxes before the reply of the call that caused them leaves. Between
//! the backend's answer and the reply, the backend's events are flushed into its event stream, and the stream
//! is drained. One task, the publisher, holds that stream: it drains it whenever a reply is due and whenever
//! an event arrives.
//!
//! A subscription takes effect when its request is read, as in Redis: calls that are read after it wait while
//! the stream is being opened.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use geartrain_core::wire::{self, EventBatch, EventRecord};
use geartrain_core::{Backend, BackendError, PositionedEvent, Subscription, SubscriptionEnd};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::glob::glob;
use crate::outbox::{self, Push};
use crate::qless::messages;
use crate::result_streams::ResultStreams;

/// How many commands the publisher's queue holds; connections wait when it is full.
const COMMANDS_MAX: usize = 1024;
/// Pause before the publisher subscribes again to a backend that refused.
const SUBSCRIBE_RETRY: Duration = Duration::from_secs(1);
/// How long calls wait at most for the event stream of a backend that does not open it.
const OPENING_MAX: Duration = Duration::from_secs(1);

/// How many events go into one message of our own channel.
const EVENTS_MAX: usize = 1000;
/// The channel of all events, for our own driver.
const EVENTS: &[u8] = b"gt:events";
/// A result stream's channel is this and the stream's number.
const RESULT_STREAM: &[u8] = b"gt:front:";

/// The outboxes of subscribers, by connection.
type Outboxes = BTreeMap<u64, outbox::Sender>;

#[derive(Debug, Default)]
struct Subscribers {
    channels: HashMap<Bytes, Outboxes>,
    patterns: HashMap<Bytes, Outboxes>,
    /// How often a first subscription to events was added. An event stream serves one generation: the events
    /// of an older one may have been published before the subscriptions that exist now.
    generation: u64,
}

enum Command {
    /// Subscribes to the backend's events, unless that is done already.
    Subscribe(oneshot::Sender<Result<(), BackendError>>),
    /// Publishes all events that the backend has published so far.
    Flush(oneshot::Sender<()>),
}

/// All subscriptions, and the publisher task that serves them.
pub(crate) struct Channels {
    backend: Arc<dyn Backend>,
    subscribers: Mutex<Subscribers>,
    /// Subscriptions to channels and patterns that carry events.
    event_subscriptions: AtomicUsize,
    /// The first of them waits for the event stream, and calls wait with it.
    opening: watch::Sender<bool>,
    publisher: Mutex<PublisherHandle>,
    result_streams: ResultStreams,
}

#[derive(Default)]
struct PublisherHandle {
    /// How many listeners need it.
    users: usize,
    commands: Option<mpsc::Sender<Command>>,
    task: Option<JoinHandle<()>>,
}

/// What a subscription names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Channel,
    Pattern,
}

impl Kind {
    pub(crate) const ALL: [Kind; 2] = [Kind::Channel, Kind::Pattern];
}

impl Channels {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Channels {
        Channels {
            backend,
            subscribers: Mutex::default(),
            event_subscriptions: AtomicUsize::new(0),
            opening: watch::Sender::new(false),
            publisher: Mutex::default(),
            result_streams: ResultStreams::default(),
        }
    }

    /// Starts the publisher for one more listener, if it does not run. Ends with [`Channels::stop`].
    pub(crate) fn start(self: &Arc<Channels>) {
        let mut publisher = self.publisher.lock();
        publisher.users += 1;
        if publisher.users == 1 {
            let (sender, commands) = mpsc::channel(COMMANDS_MAX);
            publisher.commands = Some(sender);
            let task = PublisherTask {
                channels: self.clone(),
                commands,
                events: None,
                opening: None,
                generation: 0,
                waiting: VecDeque::new(),
            };
            publisher.task = Some(tokio::spawn(task.run()));
        }
    }

    /// Ends what [`Channels::start`] began. The last listener waits for the publisher and the relays to end.
    pub(crate) async fn stop(&self) {
        let task = {
            let mut publisher = self.publisher.lock();
            publisher.users -= 1;
            if publisher.users == 0 {
                publisher.commands = None;
                publisher.task.take()
            } else {
                None
            }
        };
        if let Some(task) = task {
            // A panic was printed when it happened.
            let _ = task.await;
            // No connection is left that could open another stream.
            self.result_streams.shut_down().await;
        }
    }

    /// Subscribes a connection to a channel or pattern that it has not subscribed to yet. [`Channels::open`]
    /// must follow.
    pub(crate) fn add(&self, connection: u64, outbox: &outbox::Sender, kind: Kind, name: &Bytes) {
        let mut subscribers = self.subscribers();
        subscribers.of(kind).entry(name.clone()).or_default().insert(connection, outbox.clone());
        // Counted before it is opened, so that the publisher does not unsubscribe in between.
        if carries_events(kind, name) && self.event_subscriptions.fetch_add(1, Ordering::SeqCst) == 0 {
            subscribers.generation += 1;
            self.opening.send_replace(true);
        }
    }

    /// Returns when the messages of added subscriptions arrive. If that fails, they must be removed.
    pub(crate) async fn open(
        &self,
        connection: u64,
        outbox: &outbox::Sender,
        kind: Kind,
        added: &[Bytes],
    ) -> Result<(), BackendError> {
        if added.iter().any(|name| carries_events(kind, name)) {
            let (done, opened) = oneshot::channel();
            match self.command(Command::Subscribe(done)).await {
                true => opened.await.unwrap_or(Ok(()))?,
                // The publisher has ended, and so do all connections.
                false => drop(self.opening.send_replace(false)),
            }
        }
        for name in added {
            if let (Kind::Channel, Some(stream_id)) = (kind, result_stream_id(name)) {
                self.result_streams.open(&*self.backend, stream_id, name, connection, outbox).await?;
            }
        }
        Ok(())
    }

    /// Returns when the subscriptions so far receive what is published from now on; after a second in any
    /// case.
    pub(crate) async fn opened(&self) {
        if self.event_subscriptions.load(Ordering::SeqCst) == 0 || !*self.opening.borrow() {
            return;
        }
        let mut opening = self.opening.subscribe();
        if tokio::time::timeout(OPENING_MAX, opening.wait_for(|opening| !opening)).await.is_err() {
            // Other calls do not wait for it too.
            self.opening.send_replace(false);
        }
    }

    /// Ends the wait of calls for the stream of a generation. False if that generation has ended.
    fn release(&self, generation: u64) -> bool {
        let subscribers = self.subscribers();
        let is_current = subscribers.generation == generation;
        if is_current {
            self.opening.send_replace(false);
        }
        is_current
    }

    /// Ends a connection's subscription.
    pub(crate) fn unsubscribe(&self, connection: u64, kind: Kind, name: &Bytes) {
        if kind == Kind::Channel {
            self.result_streams.close(connection, name);
        }
        let mut subscribers = self.subscribers();
        let Some(outboxes) = subscribers.of(kind).get_mut(name) else { return };
        if outboxes.remove(&connection).is_some()
            && carries_events(kind, name)
            && self.event_subscriptions.fetch_sub(1, Ordering::SeqCst) == 1
        {
            // Wakes the publisher, so that it unsubscribes. If its queue is full, it is awake.
            if let Some(commands) = &self.publisher.lock().commands {
                let _ = commands.try_send(Command::Flush(oneshot::channel().0));
            }
        }
        if outboxes.is_empty() {
            subscribers.of(kind).remove(name);
        }
    }

    /// Returns when all events and deliveries so far are in the outboxes; at once if nothing is pending.
    pub(crate) async fn flush(&self) {
        if self.event_subscriptions.load(Ordering::SeqCst) > 0 {
            self.backend.flush_events().await;
            let (done, flushed) = oneshot::channel();
            if self.command(Command::Flush(done)).await {
                // If the publisher has ended, there are no subscribers.
                let _ = flushed.await;
            }
        }
        self.result_streams.flush().await;
    }

    async fn command(&self, command: Command) -> bool {
        let commands = self.publisher.lock().commands.clone();
        match commands {
            Some(commands) => commands.send(command).await.is_ok(),
            None => false,
        }
    }

    /// Channels with subscribers, without those of patterns.
    pub(crate) fn channel_names(&self, pattern: Option<&[u8]>) -> Vec<Bytes> {
        let subscribers = self.subscribers();
        let mut names: Vec<Bytes> = subscribers
            .channels
            .keys()
            .filter(|name| pattern.is_none_or(|pattern| glob(pattern, name)))
            .cloned()
            .collect();
        names.sort_unstable();
        names
    }

    pub(crate) fn subscriber_count(&self, channel: &Bytes) -> usize {
        self.subscribers().channels.get(channel).map_or(0, BTreeMap::len)
    }

    /// How many different patterns have subscribers.
    pub(crate) fn pattern_count(&self) -> usize {
        self.subscribers().patterns.len()
    }

    /// Sends a client's message to all subscribers, here and through the backend in other processes. Returns
    /// how many there are.
    pub(crate) async fn send(&self, channel: &Bytes, text: &Bytes) -> Result<u64, BackendError> {
        // The backend first: if it fails, the message was not sent at all.
        let elsewhere = self.backend.publish(channel, text).await?;
        // Copies: slices would keep the whole read buffer in memory.
        let (channel, text) = (Bytes::copy_from_slice(channel), Bytes::copy_from_slice(text));
        Ok(elsewhere + self.subscribers().publish(&channel, &text))
    }

    /// Publishes the events of a generation's stream, unless its subscriptions have ended.
    fn publish(&self, generation: u64, events: &[PositionedEvent]) {
        let subscribers = self.subscribers();
        if subscribers.generation != generation {
            return;
        }
        for published in events {
            for (channel, text) in messages::of(&published.event) {
                subscribers.publish(&channel, &text);
            }
        }
        if subscribers.channels.contains_key(EVENTS) && !events.is_empty() {
            let batch: EventBatch = (0, events.iter().map(EventRecord::from).collect());
            subscribers.publish_to_channel(&Bytes::from_static(EVENTS), &wire::encode(&batch).into());
        }
    }

    fn subscribers(&self) -> MutexGuard<'_, Subscribers> {
        self.subscribers.lock()
    }
}

impl Subscribers {
    fn of(&mut self, kind: Kind) -> &mut HashMap<Bytes, Outboxes> {
        match kind {
            Kind::Channel => &mut self.channels,
            Kind::Pattern => &mut self.patterns,
        }
    }

    /// Not to patterns: these are for Qless's channels, and only our driver can read what our own carry.
    fn publish_to_channel(&self, channel: &Bytes, text: &Bytes) -> u64 {
        let mut receivers = 0;
        for outbox in self.channels.get(channel).into_iter().flat_map(BTreeMap::values) {
            outbox.send(Push::new(channel.clone(), text.clone()));
            receivers += 1;
        }
        receivers
    }

    /// Returns how many receive it: a connection counts once for each of its subscriptions.
    fn publish(&self, channel: &Bytes, text: &Bytes) -> u64 {
        let mut receivers = self.publish_to_channel(channel, text);
        for (pattern, outboxes) in self.patterns.iter().filter(|(pattern, _)| glob(pattern, channel)) {
            for outbox in outboxes.values() {
                outbox.send(Push::matched(pattern.clone(), channel.clone(), text.clone()));
                receivers += 1;
            }
        }
        receivers
    }
}

/// A subscription to the backend's events that is being opened.
type Opening = Pin<Box<dyn Future<Output = Result<Box<dyn Subscription>, BackendError>> + Send>>;

/// Holds the backend's event stream and publishes what it carries.
struct PublisherTask {
    channels: Arc<Channels>,
    commands: mpsc::Receiver<Command>,
    /// None while there are no subscriptions, because published events cost the backend something.
    events: Option<Box<dyn Subscription>>,
    /// Polled beside commands: it takes as long as a backend is out of reach, and replies must not.
    opening: Option<Opening>,
    /// The generation of subscriptions that the stream serves or is being opened for.
    generation: u64,
    /// Connections that wait for the event stream.
    waiting: VecDeque<oneshot::Sender<Result<(), BackendError>>>,
}

impl PublisherTask {
    async fn run(mut self) {
        loop {
            let wanted = self.channels.event_subscriptions.load(Ordering::SeqCst) > 0;
            if !wanted || self.is_stale() {
                self.events = None;
            }
            let command = tokio::select! {
                biased;
                opened = opened(&mut self.opening), if self.opening.is_some() => {
                    self.on_opened(opened);
                    continue;
                }
                command = self.commands.recv() => match command {
                    Some(command) => command,
                    None => {
                        self.channels.opening.send_replace(false);
                        return;
                    }
                },
                event = next(&mut self.events), if self.events.is_some() => {
                    self.publish_from(event);
                    continue;
                }
                () = tokio::time::sleep(SUBSCRIBE_RETRY),
                    if wanted && self.events.is_none() && self.opening.is_none() =>
                {
                    self.open();
                    continue;
                }
            };
            match command {
                Command::Subscribe(done)
                    if self.events.is_some() && self.channels.release(self.generation) =>
                {
                    // Fails if the connection has ended meanwhile.
                    let _ = done.send(Ok(()));
                }
                Command::Subscribe(done) => {
                    self.waiting.push_back(done);
                    if self.opening.is_none() {
                        self.open();
                    }
                }
                Command::Flush(done) => {
                    if let Some(event) = next(&mut self.events).now_or_never() {
                        self.publish_from(event);
                    }
                    let _ = done.send(());
                }
            }
        }
    }

    /// Whether all subscriptions that the stream was opened for have ended and others have begun.
    fn is_stale(&self) -> bool {
        self.channels.subscribers().generation != self.generation
    }

    fn open(&mut self) {
        self.events = None;
        self.generation = self.channels.subscribers().generation;
        let backend = self.channels.backend.clone();
        self.opening = Some(Box::pin(async move { backend.subscribe().await }));
    }

    fn on_opened(&mut self, opened: Result<Box<dyn Subscription>, BackendError>) {
        self.opening = None;
        match opened {
            Ok(events) if self.channels.release(self.generation) => {
                self.events = Some(events);
                for done in self.waiting.drain(..) {
                    let _ = done.send(Ok(()));
                }
            }
            Ok(_) => self.open(),
            Err(error) => {
                if let Some(done) = self.waiting.pop_front() {
                    let _ = done.send(Err(error));
                }
                if self.waiting.is_empty() {
                    self.channels.opening.send_replace(false);
                } else {
                    self.open();
                }
            }
        }
    }

    /// Publishes an event, and all others that are there without waiting.
    fn publish_from(&mut self, first: Result<PositionedEvent, SubscriptionEnd>) {
        let mut batch = Vec::new();
        let mut event = Some(first);
        while let Some(next_event) = event {
            match next_event {
                Ok(published) => batch.push(published),
                Err(end) => {
                    tracing::warn!("subscribers may have missed events: {end}");
                    self.events = None;
                    self.opening = Some(Box::pin(resume(self.channels.backend.clone(), end)));
                }
            }
            if batch.len() >= EVENTS_MAX {
                self.channels.publish(self.generation, &std::mem::take(&mut batch));
            }
            event = next(&mut self.events).now_or_never();
        }
        self.channels.publish(self.generation, &batch);
    }
}

async fn next(events: &mut Option<Box<dyn Subscription>>) -> Result<PositionedEvent, SubscriptionEnd> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

async fn opened(opening: &mut Option<Opening>) -> Result<Box<dyn Subscription>, BackendError> {
    match opening {
        Some(opening) => opening.await,
        None => std::future::pending().await,
    }
}

/// Subscribes where the stream ended, or else from now on.
async fn resume(
    backend: Arc<dyn Backend>,
    end: SubscriptionEnd,
) -> Result<Box<dyn Subscription>, BackendError> {
    if let SubscriptionEnd::Lagged { missed } = end
        && let Ok(events) = backend.subscribe_from(missed.saturating_sub(1)).await
    {
        return Ok(events);
    }
    backend.subscribe().await
}

/// Whether events are published on this channel, or on channels that match this pattern.
fn carries_events(kind: Kind, name: &[u8]) -> bool {
    kind == Kind::Pattern || name == EVENTS || name.starts_with(b"ql:")
}

/// The result stream whose channel this is.
fn result_stream_id(name: &[u8]) -> Option<u64> {
    std::str::from_utf8(name.strip_prefix(RESULT_STREAM)?).ok()?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]
mod tests {
    use geartrain_core::{Call, Jid, Klass, Put, QueueName, SystemClock};
    use geartrain_store::StoreBackend;

    use super::*;

    /// Puts a job from another thread, so that no task of this one runs meanwhile.
    fn put(store: &Arc<StoreBackend>, jid: &str) {
        let store = store.clone();
        let queue = QueueName::new("q").unwrap();
        let put = Put::new(queue, Jid::new(jid).unwrap(), Klass::new("k").unwrap(), "{}");
        let caller = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(store.execute(vec![Call::from(put)])).unwrap()
        });
        assert!(caller.join().unwrap()[0].is_ok());
    }

    #[tokio::test]
    async fn a_subscription_gets_no_event_from_before_it_although_another_has_just_ended() {
        let store = Arc::new(StoreBackend::in_memory(Arc::new(SystemClock)).unwrap());
        let channels = Arc::new(Channels::new(store.clone()));
        channels.start();
        let (name, mut outbox) = (Bytes::from_static(b"ql:*"), outbox::Receiver::new());
        let sender = outbox.sender.clone();
        channels.add(1, &sender, Kind::Pattern, &name);
        channels.open(1, &sender, Kind::Pattern, std::slice::from_ref(&name)).await.unwrap();
        channels.unsubscribe(1, Kind::Pattern, &name);
        put(&store, "before");
        channels.add(2, &sender, Kind::Pattern, &name);
        channels.open(2, &sender, Kind::Pattern, std::slice::from_ref(&name)).await.unwrap();
        put(&store, "after");
        channels.flush().await;
        let first = format!("{:?}", outbox.try_next().unwrap());
        assert!(first.contains("after") && !first.contains("before"), "{first}");
        channels.stop().await;
    }
}
