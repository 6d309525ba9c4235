//! Who listens to what, and what they are told: Qless's channels, and ours.
//!
//! What a call publishes must be on its way to every subscriber before the caller gets a reply. The backend puts events into its stream before it answers, so
//! it is enough to empty the stream between the answer and the reply. One task, the crier, holds the stream: it empties it whenever somebody is about to
//! reply and whenever something comes by itself.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use geartrain_core::wire::{self, EventBatch};
use geartrain_core::{
    Backend, BackendError, Delivery, Event, Published, ResultStream, StreamItem, Subscription,
    SubscriptionEnd,
};
use geartrain_front::encode_off_thread;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::frame::Output;
use crate::qless::messages;

/// How much may wait for one subscriber before it is cut off.
const QUEUED_BYTES_MAX: usize = 32 << 20;
/// What a message takes besides its text.
const MESSAGE_BYTES: usize = 128;
/// How many orders wait for the crier before those who give more have to wait.
const ORDERS_MAX: usize = 1024;
/// How long the crier waits before it asks a backend again that cannot tell what happens.
const AGAIN: Duration = Duration::from_secs(1);

/// How many events are told at once.
const EVENTS_MAX: usize = 1000;
/// Where all events are told, to our own driver.
const EVENTS: &[u8] = b"gt:events";
/// Before the number of a front, where those are told who wait for jobs through it.
const FRONT: &[u8] = b"gt:front:";

/// Something for one subscriber.
#[derive(Debug, Clone)]
pub(crate) struct Push {
    /// The pattern because of which it is told, if that is why.
    pattern: Option<Bytes>,
    channel: Bytes,
    text: Bytes,
}

impl Push {
    /// On a channel.
    pub(crate) fn new(channel: Bytes, text: Bytes) -> Push {
        Push { pattern: None, channel, text }
    }

    pub(crate) fn write(&self, out: &mut Output) {
        match &self.pattern {
            Some(pattern) => {
                out.push(4);
                out.bulk("pmessage");
                out.bulk(pattern);
            }
            None => {
                out.push(3);
                out.bulk("message");
            }
        }
        out.bulk(&self.channel);
        out.shared_bulk(self.text.clone());
    }

    fn bytes(&self) -> usize {
        MESSAGE_BYTES + self.channel.len() + self.text.len()
    }
}

/// The end of a connection that is told.
#[derive(Debug, Clone)]
pub(crate) struct Mouth {
    sender: mpsc::UnboundedSender<Push>,
    /// How many bytes wait. The queue has no bound of its own, because messages differ so much in size.
    queued: Arc<AtomicUsize>,
    cut: CancellationToken,
}

impl Mouth {
    /// Puts a message on its way, or cuts off whoever does not keep up.
    pub(crate) fn tell(&self, push: Push) {
        let bytes = push.bytes();
        let before = self.queued.fetch_add(bytes, Ordering::Relaxed);
        // A message that is larger than the bound alone is told to whoever has taken all others.
        if before > 0 && before + bytes > QUEUED_BYTES_MAX {
            self.cut.cancel();
        } else {
            // If nobody hears any more, that is how it is.
            let _ = self.sender.send(push);
        }
    }

    /// Ends when the connection is cut off.
    pub(crate) fn is_cut(&self) -> impl Future<Output = ()> + use<> {
        self.cut.clone().cancelled_owned()
    }
}

/// The end of a connection that hears.
#[derive(Debug)]
pub(crate) struct Ear {
    pub(crate) mouth: Mouth,
    receiver: mpsc::UnboundedReceiver<Push>,
}

impl Ear {
    pub(crate) fn new() -> Ear {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mouth = Mouth { sender, queued: Arc::default(), cut: CancellationToken::new() };
        Ear { mouth, receiver }
    }

    /// What has been told already, if anything.
    pub(crate) fn take(&mut self) -> Option<Push> {
        let push = self.receiver.try_recv().ok()?;
        Some(self.heard(push))
    }

    /// The next thing that is told.
    pub(crate) async fn next(&mut self) -> Push {
        match self.receiver.recv().await {
            Some(push) => self.heard(push),
            None => std::future::pending().await,
        }
    }

    fn heard(&self, push: Push) -> Push {
        self.mouth.queued.fetch_sub(push.bytes(), Ordering::Relaxed);
        push
    }
}

/// Who listens, by connection.
type Listeners = BTreeMap<u64, Mouth>;

#[derive(Debug, Default)]
struct Audience {
    channels: HashMap<Bytes, Listeners>,
    patterns: HashMap<Bytes, Listeners>,
}

enum Order {
    /// Makes sure that what happens from now on is heard.
    Listen(oneshot::Sender<Result<(), BackendError>>),
    /// Tells everyone what has happened so far.
    Tell(oneshot::Sender<()>),
}

/// Everyone who listens, and the crier.
pub(crate) struct Channels {
    backend: Arc<dyn Backend>,
    audience: Mutex<Audience>,
    /// How many channels and patterns anybody listens to on which events are told.
    subscriptions: AtomicUsize,
    crier: Mutex<Crier>,
    fronts: Mutex<Fronts>,
}

#[derive(Default)]
struct Crier {
    /// For how many listeners it works.
    employers: usize,
    orders: Option<mpsc::Sender<Order>>,
    task: Option<JoinHandle<()>>,
}

/// Those who wait for jobs through a front. Each front has a stream of its own, and a task that holds it.
#[derive(Default)]
struct Fronts {
    /// How the tasks are asked to tell what there is to tell, by channel; with the connection that they tell.
    orders: BTreeMap<Bytes, (u64, mpsc::Sender<oneshot::Sender<()>>)>,
    tasks: JoinSet<()>,
}

/// Whether something is a channel or a pattern of them.
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
            audience: Mutex::default(),
            subscriptions: AtomicUsize::new(0),
            crier: Mutex::default(),
            fronts: Mutex::default(),
        }
    }

    /// Makes sure that there is a crier, until [`Channels::dismiss`].
    pub(crate) fn employ(self: &Arc<Channels>) {
        let mut crier = lock(&self.crier);
        crier.employers += 1;
        if crier.employers == 1 {
            let (sender, orders) = mpsc::channel(ORDERS_MAX);
            crier.orders = Some(sender);
            crier.task = Some(tokio::spawn(cry(self.clone(), orders)));
        }
    }

    /// Needs the crier no longer; whoever is the last waits for it to end.
    pub(crate) async fn dismiss(&self) {
        let task = {
            let mut crier = lock(&self.crier);
            crier.employers -= 1;
            if crier.employers == 0 {
                crier.orders = None;
                crier.task.take()
            } else {
                None
            }
        };
        if let Some(task) = task {
            // If it panicked, that was printed, and there is nothing to add.
            let _ = task.await;
            // Nobody is connected any more, so these end too.
            let mut fronts = std::mem::take(&mut *lock(&self.fronts));
            fronts.orders.clear();
            while fronts.tasks.join_next().await.is_some() {}
        }
    }

    /// Begins to listen to something that the connection does not listen to yet.
    pub(crate) async fn subscribe(
        &self,
        connection: u64,
        mouth: &Mouth,
        kind: Kind,
        name: &Bytes,
    ) -> Result<(), BackendError> {
        if tells_events(kind, name) {
            // Counted first, so that the crier does not stop listening in between.
            self.subscriptions.fetch_add(1, Ordering::SeqCst);
            let (done, listening) = oneshot::channel();
            let listened = match self.order(Order::Listen(done)).await {
                true => listening.await.unwrap_or(Ok(())),
                false => Ok(()),
            };
            if listened.is_err() {
                self.subscriptions.fetch_sub(1, Ordering::SeqCst);
                return listened;
            }
        }
        self.audience().of(kind).entry(name.clone()).or_default().insert(connection, mouth.clone());
        if let (Kind::Channel, Some(front)) = (kind, front(name)) {
            let followed = self.follow(connection, mouth, name, front).await;
            if followed.is_err() {
                self.unsubscribe(connection, kind, name);
            }
            return followed;
        }
        Ok(())
    }

    /// Begins to tell a connection what those are told who wait through a front.
    async fn follow(
        &self,
        connection: u64,
        mouth: &Mouth,
        channel: &Bytes,
        front: u64,
    ) -> Result<(), BackendError> {
        let stream = self.backend.open_result_stream(front).await?;
        let (sender, orders) = mpsc::channel(ORDERS_MAX);
        let mut fronts = lock(&self.fronts);
        // The last who follows a front is the one who follows it; that is how backends see it too.
        fronts.orders.insert(channel.clone(), (connection, sender));
        while fronts.tasks.try_join_next().is_some() {}
        fronts.tasks.spawn(relay(stream, channel.clone(), mouth.clone(), orders));
        Ok(())
    }

    /// Listens no longer to something that the connection listened to.
    pub(crate) fn unsubscribe(&self, connection: u64, kind: Kind, name: &Bytes) {
        if kind == Kind::Channel {
            let mut fronts = lock(&self.fronts);
            if fronts.orders.get(name).is_some_and(|(follower, _)| *follower == connection) {
                fronts.orders.remove(name);
            }
        }
        let mut audience = self.audience();
        let Some(listeners) = audience.of(kind).get_mut(name) else { return };
        if listeners.remove(&connection).is_some()
            && tells_events(kind, name)
            && self.subscriptions.fetch_sub(1, Ordering::SeqCst) == 1
        {
            // The crier looks up, and stops listening. If it has much to do, it looks up soon anyway.
            if let Some(orders) = &lock(&self.crier).orders {
                let _ = orders.try_send(Order::Tell(oneshot::channel().0));
            }
        }
        if listeners.is_empty() {
            audience.of(kind).remove(name);
        }
    }

    /// Returns when everybody has been told what happened so far; at once if nobody listens.
    pub(crate) async fn told(&self) {
        if self.subscriptions.load(Ordering::SeqCst) > 0 {
            let (done, told) = oneshot::channel();
            if self.order(Order::Tell(done)).await {
                // If the crier is gone, nobody listens.
                let _ = told.await;
            }
        }
        let fronts: Vec<_> = lock(&self.fronts).orders.values().map(|(_, orders)| orders.clone()).collect();
        for orders in fronts {
            let (done, told) = oneshot::channel();
            if orders.send(done).await.is_ok() {
                let _ = told.await;
            }
        }
    }

    async fn order(&self, order: Order) -> bool {
        let orders = lock(&self.crier).orders.clone();
        match orders {
            Some(orders) => orders.send(order).await.is_ok(),
            None => false,
        }
    }

    /// The channels that somebody listens to, but for those who listen to patterns.
    pub(crate) fn names(&self, pattern: Option<&[u8]>) -> Vec<Bytes> {
        let audience = self.audience();
        let mut names: Vec<Bytes> = audience
            .channels
            .keys()
            .filter(|name| pattern.is_none_or(|pattern| glob(pattern, name)))
            .cloned()
            .collect();
        names.sort_unstable();
        names
    }

    /// How many listen to a channel.
    pub(crate) fn count(&self, name: &Bytes) -> usize {
        self.audience().channels.get(name).map_or(0, BTreeMap::len)
    }

    /// How many different patterns somebody listens to.
    pub(crate) fn patterns(&self) -> usize {
        self.audience().patterns.len()
    }

    fn publish(&self, happened: &[Published]) {
        let audience = self.audience();
        for published in happened {
            for (channel, text) in messages::of(&published.event) {
                audience.tell(&channel, &text);
            }
        }
        if audience.channels.contains_key(EVENTS) && !happened.is_empty() {
            let events: Vec<(u64, Event)> = happened
                .iter()
                .map(|published| (published.position, Event::clone(&published.event)))
                .collect();
            let heard: EventBatch = (0, events);
            audience.tell_channel(&Bytes::from_static(EVENTS), &wire::encode(&heard).into());
        }
    }

    fn audience(&self) -> MutexGuard<'_, Audience> {
        lock(&self.audience)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is in here is never left half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Audience {
    fn of(&mut self, kind: Kind) -> &mut HashMap<Bytes, Listeners> {
        match kind {
            Kind::Channel => &mut self.channels,
            Kind::Pattern => &mut self.patterns,
        }
    }

    /// Tells those who listen to the channel itself. Patterns are of Qless's channels: what goes over ours means nothing to anybody else.
    fn tell_channel(&self, channel: &Bytes, text: &Bytes) {
        for mouth in self.channels.get(channel).into_iter().flat_map(BTreeMap::values) {
            mouth.tell(Push::new(channel.clone(), text.clone()));
        }
    }

    fn tell(&self, channel: &Bytes, text: &Bytes) {
        self.tell_channel(channel, text);
        for (pattern, listeners) in self.patterns.iter().filter(|(pattern, _)| glob(pattern, channel)) {
            for mouth in listeners.values() {
                let (channel, text) = (channel.clone(), text.clone());
                mouth.tell(Push { pattern: Some(pattern.clone()), channel, text });
            }
        }
    }
}

/// The crier's work.
async fn cry(channels: Arc<Channels>, mut orders: mpsc::Receiver<Order>) {
    let mut stream: Option<Box<dyn Subscription>> = None;
    loop {
        let wanted = channels.subscriptions.load(Ordering::SeqCst) > 0;
        if !wanted {
            // Events that nobody wants cost the backend something.
            stream = None;
        }
        let order = tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(order) => order,
                None => return,
            },
            heard = next(&mut stream), if stream.is_some() => {
                tell_all(&channels, &mut stream, heard).await;
                continue;
            }
            () = tokio::time::sleep(AGAIN), if wanted && stream.is_none() => {
                stream = channels.backend.subscribe().await.ok();
                continue;
            }
        };
        match order {
            Order::Listen(done) => {
                let mut listening = Ok(());
                if stream.is_none() {
                    match channels.backend.subscribe().await {
                        Ok(events) => stream = Some(events),
                        Err(error) => listening = Err(error),
                    }
                }
                // Whoever asked may have gone.
                let _ = done.send(listening);
            }
            Order::Tell(done) => {
                if let Some(heard) = next(&mut stream).now_or_never() {
                    tell_all(&channels, &mut stream, heard).await;
                }
                let _ = done.send(());
            }
        }
    }
}

async fn next(stream: &mut Option<Box<dyn Subscription>>) -> Result<Published, SubscriptionEnd> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

/// Tells what was heard, and all that can be heard without waiting.
async fn tell_all(
    channels: &Channels,
    stream: &mut Option<Box<dyn Subscription>>,
    first: Result<Published, SubscriptionEnd>,
) {
    let mut happened = Vec::new();
    let mut heard = Some(first);
    while let Some(next_heard) = heard {
        match next_heard {
            Ok(published) => happened.push(published),
            Err(end) => {
                channels.publish(&std::mem::take(&mut happened));
                *stream = listen_again(&*channels.backend, &end).await;
            }
        }
        if happened.len() >= EVENTS_MAX {
            channels.publish(&std::mem::take(&mut happened));
        }
        heard = next(stream).now_or_never();
    }
    channels.publish(&happened);
}

/// Goes on where the stream ended, or else from now on.
async fn listen_again(backend: &dyn Backend, end: &SubscriptionEnd) -> Option<Box<dyn Subscription>> {
    tracing::warn!("subscribers may have missed something: {end}");
    if let SubscriptionEnd::Lagged { missed } = end
        && let Ok(events) = backend.subscribe_from(missed.saturating_sub(1)).await
    {
        return Some(events);
    }
    backend.subscribe().await.ok()
}

/// Whether events are told to whoever listens to this.
fn tells_events(kind: Kind, name: &[u8]) -> bool {
    kind == Kind::Pattern || name == EVENTS || name.starts_with(b"ql:")
}

/// The front whose channel this is.
fn front(name: &[u8]) -> Option<u64> {
    std::str::from_utf8(name.strip_prefix(FRONT)?).ok()?.parse().ok()
}

/// Tells one connection what those are told who wait through its front, until nobody gives orders any more. Then they leave.
async fn relay(
    mut stream: Box<dyn ResultStream>,
    channel: Bytes,
    mouth: Mouth,
    mut orders: mpsc::Receiver<oneshot::Sender<()>>,
) {
    loop {
        let (mut heard, done) = tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(done) => (stream.next().now_or_never(), Some(done)),
                None => return,
            },
            heard = stream.next() => (Some(heard), None),
        };
        while let Some(next) = heard {
            match next {
                Ok(delivery) => {
                    let encoded = encode_off_thread(bytes(&delivery), move || wire::encode(&delivery)).await;
                    match encoded {
                        Some(encoded) => mouth.tell(Push::new(channel.clone(), encoded.into())),
                        None => return mouth.cut.cancel(),
                    }
                }
                Err(end) => {
                    // Only a new connection can begin anew.
                    tracing::warn!("{end}");
                    mouth.cut.cancel();
                    return;
                }
            }
            heard = stream.next().now_or_never();
        }
        if let Some(done) = done {
            // Whoever asked may have gone.
            let _ = done.send(());
        }
    }
}

/// How many bytes of payload a delivery holds.
fn bytes(delivery: &Delivery) -> usize {
    match &delivery.item {
        StreamItem::Chunk(_, payload) => payload.bytes().len(),
        StreamItem::Ended(_, outcome) => outcome.bytes.bytes().len(),
        _ => 0,
    }
}

/// Whether a text matches a pattern: `*` is any text, `?` any byte, `[a-z]` one of these, `[^a-z]` none of these, and a backslash takes what follows as it is.
pub(crate) fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut text_at) = (0, 0);
    // Where to go on when a guess how much the last star stands for turns out wrong.
    let mut star: Option<(usize, usize)> = None;
    while text_at < text.len() {
        let step = match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, text_at));
                at += 1;
                continue;
            }
            Some(_) => one(&pattern[at..], text[text_at]),
            None => None,
        };
        match (step, &mut star) {
            (Some(length), _) => {
                at += length;
                text_at += 1;
            }
            (None, Some((behind, taken))) => {
                *taken += 1;
                (at, text_at) = (*behind, *taken);
            }
            (None, None) => return false,
        }
    }
    pattern[at..].iter().all(|rest| *rest == b'*')
}

/// How long the first part of a pattern is, if it matches this byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', class @ ..] => {
            let negated = class.first() == Some(&b'^');
            let mut at = usize::from(negated);
            let mut found = false;
            loop {
                match &class[at..] {
                    [] | [b']', ..] => break,
                    [b'\\', escaped, ..] => {
                        found |= *escaped == byte;
                        at += 2;
                    }
                    [low, b'-', high, ..] if *high != b']' => {
                        found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                        at += 3;
                    }
                    [only, ..] => {
                        found |= *only == byte;
                        at += 1;
                    }
                }
            }
            // A class that is not closed ends with the pattern.
            (found != negated).then_some((at + 2).min(pattern.len()))
        }
        [plain, ..] => (*plain == byte).then_some(1),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, matches) in [
            ("*", "", true),
            ("*", "ql:log", true),
            ("ql:*", "ql:log", true),
            ("ql:*", "gt:log", false),
            ("ql:w:*-1", "ql:w:host-2-1", true),
            ("ql:w:*-1", "ql:w:host-12", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[a-c]x", "dx", false),
            ("[^a-c]x", "dx", true),
            ("[^a-c]x", "ax", false),
            ("[\\]]", "]", true),
            ("[ab", "b", true),
            ("[", "a", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("**a**", "bab", true),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
            ("a*", "", false),
        ] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), matches, "{pattern} {text}");
        }
        let slow = [&b"a*".repeat(50)[..], b"b"].concat();
        assert!(!glob(&slow, &b"a".repeat(5_000)));
    }

    #[test]
    fn whoever_does_not_keep_up_is_cut_off() {
        let mut ear = Ear::new();
        let text = Bytes::from(vec![0; QUEUED_BYTES_MAX / 4]);
        let tell = || ear.mouth.tell(Push::new(Bytes::from_static(b"c"), text.clone()));
        (0..3).for_each(|_| tell());
        assert!(!ear.mouth.cut.is_cancelled());
        tell();
        assert!(ear.mouth.cut.is_cancelled());
        assert!(ear.take().is_some());
    }
}
