//! The connection that listens: for jobs that somebody waits for, for events, and for what those are told who wait for jobs to end.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use geartrain_core::wire::{self, EventBatch, EventsReply, ParkReply, ParkedPopNotice, Request};
use geartrain_core::{
    Call, Count, Delivery, Detach, DetachScope, Event, Get, Jid, Pop, PopReply, Published, QueueName,
    Refusal, Release, Reply, ResultStream, ResultStreamEnd, Seconds, Subscription, SubscriptionEnd,
};
use redis::{Cmd, PushInfo, PushKind, Value, cmd};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel};

use crate::driver::{CloseOnDrop, Shared, broken};
use crate::foreign::{self, CHANNELS};
use crate::link::{Encoded, Link, Trouble};
use crate::sleepers::{Sleeper, Sleepers, Wanted};

/// How often whoever waits asks again: foreign scripts wake nobody.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How long to wait before a lost connection is opened again.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long an answer over this connection may take at the most; less where patience is shorter, but not less
/// than this.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const ANSWER_MIN: Duration = Duration::from_secs(1);

/// How many events or deliveries may wait to be taken.
const QUEUED_MAX: usize = 100_000;

/// How often it is said again that somebody listens: where nobody says so for a day, events are no longer kept.
const LISTEN_AGAIN: Duration = Duration::from_secs(1_800);

/// How often it is said that the result streams of this process are alive. Their waiters are detached by the
/// tick of another process if this is not said for 30 s (`RENEWED_MAX` in `lua/tick.lua`).
const RENEW: Duration = Duration::from_secs(5);

/// How many events are asked for at once.
const PAGE: i64 = 1_000;

/// Positions of a Redis times two to this power are ours, which leaves room between them for events of foreign scripts, that have none.
/// When it is used up, the rest of them share the last place: none of ours may ever seem to be one that was told already.
const ROOM_BITS: u32 = 10;

/// What is asked of the listening connection.
pub(crate) enum Ask {
    Sleep { number: u64, pop: Pop, until: Seconds, wanted: Wanted },
    Close(Closed),
    Listen { after: Option<u64>, ready: flume::Sender<Result<EventStream, Unheard>> },
    Follow { front: u64, ready: flume::Sender<Result<DeliveryStream, Unheard>> },
    LookAgain,
}

/// Why somebody cannot listen.
pub(crate) enum Unheard {
    /// What they ask for is not kept.
    Refused(Refusal),
    /// There is no answer.
    Trouble(Trouble),
}

impl From<Trouble> for Unheard {
    fn from(trouble: Trouble) -> Unheard {
        Unheard::Trouble(trouble)
    }
}

/// What somebody has let go of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Closed {
    Wait { number: u64 },
    Events,
    Front { front: u64 },
}

struct Listener {
    last: u64,
    /// Up to here it was told what is kept. What comes of that over the connection besides is the same again.
    kept: u64,
    to: flume::Sender<Published>,
    end: Arc<OnceLock<SubscriptionEnd>>,
}

impl Listener {
    /// Tells one event. False if it is not taken, and then no more are.
    fn tell(&mut self, position: u64, event: &Arc<Event>) -> bool {
        match self.to.try_send(Published { position, event: event.clone() }) {
            Ok(()) => self.last = position,
            Err(flume::TrySendError::Disconnected(_)) => return false,
            Err(flume::TrySendError::Full(_)) => {
                let _ = self.end.set(SubscriptionEnd::Lagged { missed: position });
                return false;
            }
        }
        true
    }
}

struct Front {
    to: flume::Sender<Delivery>,
    end: Arc<OnceLock<ResultStreamEnd>>,
}

pub(crate) struct Ears {
    shared: Arc<Shared>,
    asks: UnboundedReceiver<Ask>,
    /// To ourselves, for streams that say when they are dropped.
    ears: WeakUnboundedSender<Ask>,
    pushes: (UnboundedSender<PushInfo>, UnboundedReceiver<PushInfo>),
    link: Option<Link>,
    sleepers: Sleepers,
    listeners: Vec<Listener>,
    /// How far positions of the other side are shifted to be ours; none where there are no foreign scripts.
    room_bits: u32,
    /// How many messages that come next on Qless's channels were announced by our own script.
    announced: u64,
    fronts: HashMap<u64, Front>,
    asked_at: tokio::time::Instant,
    listened_at: tokio::time::Instant,
    /// When the result streams were last registered.
    renewed_at: tokio::time::Instant,
    /// Since when there is no connection, although somebody waits.
    lost_at: Option<tokio::time::Instant>,
    /// How many things that the next command waits for were dealt with.
    settled: usize,
}

impl Ears {
    pub(crate) fn new(
        shared: Arc<Shared>,
        asks: UnboundedReceiver<Ask>,
        ears: WeakUnboundedSender<Ask>,
    ) -> Ears {
        Ears {
            shared,
            asks,
            ears,
            pushes: unbounded_channel(),
            link: None,
            sleepers: Sleepers::default(),
            listeners: Vec::new(),
            room_bits: 0,
            announced: 0,
            fronts: HashMap::new(),
            asked_at: tokio::time::Instant::now(),
            listened_at: tokio::time::Instant::now(),
            renewed_at: tokio::time::Instant::now(),
            lost_at: None,
            settled: 0,
        }
    }

    /// Listens until the backend is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let wake_at = self.wake_at();
            let (shared, link) = (self.shared.clone(), self.link.clone());
            let node = link.as_ref().and_then(|link| link.node.as_deref());
            tokio::select! {
                biased;
                () = shared.door.primary.superseded(node) => self.superseded(),
                ask = self.asks.recv() => match ask {
                    Some(ask) => self.asked(ask).await,
                    None => return,
                },
                Some(push) = self.pushes.1.recv() => self.pushed(push).await,
                () = tokio::time::sleep_until(wake_at) => self.look_at_the_clock(),
            }
            // All that is there already goes into one call.
            while let Ok(ask) = self.asks.try_recv() {
                self.asked(ask).await;
            }
            while let Ok(push) = self.pushes.1.try_recv() {
                self.pushed(push).await;
            }
            self.expire();
            self.ask_for_jobs().await;
            self.keep_listening().await;
            self.renew().await;
            self.shared.unsettled.settled(std::mem::take(&mut self.settled));
        }
    }

    /// Those whose time has come ask again, and once a second all of them.
    fn look_at_the_clock(&mut self) {
        if self.asked_at.elapsed() >= ASK_AGAIN || self.link.is_none() {
            return self.sleepers.all_ask();
        }
        self.sleepers.ask_if_due(self.shared.clock.elapsed(), self.shared.clock.now());
    }

    /// When to look again although nothing was heard.
    fn wake_at(&self) -> tokio::time::Instant {
        let now = tokio::time::Instant::now();
        let renew_at = if self.registers() { self.renewed_at + RENEW } else { now + LISTEN_AGAIN };
        if self.sleepers.is_empty() && self.link.is_some() {
            let listen_at = self.listened_at + LISTEN_AGAIN;
            return renew_at.min(if self.listeners.is_empty() { now + LISTEN_AGAIN } else { listen_at });
        }
        if self.link.is_none() {
            let idle = self.sleepers.is_empty() && self.listeners.is_empty();
            let lost = self.lost_at.map_or(Duration::ZERO, |lost_at| lost_at.elapsed());
            // The longer it is gone, the less often it is looked for.
            return now + if idle { Duration::from_secs(3_600) } else { PAUSE.max(lost / 4).min(PAUSE_MAX) };
        }
        let (elapsed, moment) = (self.shared.clock.elapsed(), self.shared.clock.now());
        let due = self.sleepers.first_due(elapsed, moment).map_or(f64::INFINITY, Seconds::get);
        let again = self.asked_at + ASK_AGAIN;
        // A deadline that was not met, because a clock stands still, is looked at again after a moment and not at once.
        again.min(renew_at).min(now + Duration::from_secs_f64(due.clamp(0.001, ASK_AGAIN.as_secs_f64())))
    }

    async fn asked(&mut self, ask: Ask) {
        match ask {
            Ask::Sleep { number, pop, until, wanted } => {
                if self.sleepers.is_empty() {
                    // How long there was no connection when nobody needed one does not count.
                    self.lost_at = None;
                }
                self.sleepers.add(number, Sleeper::new(pop, until, wanted));
                self.settled += usize::from(self.shared.exact);
            }
            Ask::Close(what) => {
                self.close(what).await;
                self.settled += 1;
            }
            Ask::LookAgain => {
                self.settled += 1;
                self.sleepers.all_ask();
            }
            Ask::Listen { after, ready } => {
                let stream = self.listen(after).await;
                let _ = ready.send(self.checked(stream));
            }
            Ask::Follow { front, ready } => {
                let stream = self.follow(front).await;
                let _ = ready.send(self.checked(stream));
            }
        }
    }

    /// A connection over which somebody could not begin to listen is not used again: it may be to a node that is no longer the right one.
    fn checked<T>(&mut self, stream: Result<T, Unheard>) -> Result<T, Unheard> {
        if let Err(Unheard::Trouble(trouble)) = &stream
            && trouble.passes()
        {
            self.lost();
        }
        stream
    }

    async fn close(&mut self, what: Closed) {
        let channels = match what {
            Closed::Wait { number } => {
                if self.sleepers.remove(number).is_some() {
                    self.wake(number).await;
                }
                return;
            }
            Closed::Events => {
                self.listeners.retain(|listener| !listener.to.is_disconnected());
                if !self.listeners.is_empty() {
                    return;
                }
                self.event_channels()
            }
            Closed::Front { front } => {
                self.fronts.remove(&front);
                let leave = vec![Call::from(Detach { scope: DetachScope::Stream(front) })];
                if self.link.is_none() || !self.shared.exact {
                    // It may take as long as patience lasts, and others wait for us.
                    self.leave_aside(front, leave);
                } else if let Err(trouble) = self.shared.execute(leave).await {
                    tracing::warn!(%trouble, "those who waited here could not leave");
                }
                vec![self.front_channel(front)]
            }
        };
        if let Some(mut link) = self.link.clone()
            && self.say(&mut link, cmd("UNSUBSCRIBE").arg(channels)).await.is_err()
        {
            self.lost();
        }
    }

    /// Does something that nobody waits for.
    fn aside(&self, batch: Vec<Call>) {
        let shared = self.shared.clone();
        tokio::spawn(async move {
            if let Err(trouble) = shared.execute(batch).await {
                tracing::warn!(%trouble, "could not clean up");
            }
        });
    }

    /// Detaches the waiters of a result stream, and then takes back its registration: if this process dies in
    /// between, another one does the same.
    fn leave_aside(&self, front: u64, leave: Vec<Call>) {
        let shared = self.shared.clone();
        let registered = self.room_bits > 0 && !shared.exact;
        let unregister = cmd("ZREM").arg(self.streams_key()).arg(format!("{front:016x}")).take();
        tokio::spawn(async move {
            let left = shared.execute(leave).await;
            let left = match left {
                Ok(_) if registered => shared.send(&unregister).await,
                left => left.map(drop),
            };
            if let Err(trouble) = left {
                tracing::warn!(%trouble, "could not clean up");
            }
        });
    }

    fn channel(&self) -> String {
        self.shared.door.key(format_args!("gt:to:{}", self.shared.process))
    }

    /// All that events come over.
    fn event_channels(&self) -> Vec<String> {
        let foreign = if self.room_bits > 0 { &CHANNELS[..] } else { &[] };
        ["gt:events"].iter().chain(foreign).map(|channel| self.shared.door.key(channel)).collect()
    }

    fn front_channel(&self, front: u64) -> String {
        self.shared.door.key(format_args!("gt:front:{front}"))
    }

    /// The connection, opened if need be, and subscribed to all that somebody here listens to.
    async fn link(&mut self) -> Result<Link, Trouble> {
        if let Some(link) = &self.link {
            return Ok(link.clone());
        }
        // What the last connection left unread may be jobs that were given to us.
        while let Ok(push) = self.pushes.1.try_recv() {
            self.message(push).await;
        }
        self.pushes = unbounded_channel();
        let mut link = self.shared.door.open(Some(self.pushes.0.clone())).await?;
        self.announced = 0;
        self.room_bits = if self.shared.door.is_geartrain(&mut link).await? { 0 } else { ROOM_BITS };
        self.say(&mut link, cmd("SUBSCRIBE").arg(self.channel())).await?;
        if !self.listeners.is_empty() {
            self.say(&mut link, cmd("SUBSCRIBE").arg(self.event_channels())).await?;
        }
        self.catch_up(&mut link).await?;
        self.link = Some(link.clone());
        self.lost_at = None;
        Ok(link)
    }

    /// After a lost connection, tells listeners what happened meanwhile; those for whom it is not kept are ended.
    async fn catch_up(&mut self, link: &mut Link) -> Result<(), Trouble> {
        let mut behind = std::mem::take(&mut self.listeners);
        while let Some(mut listener) = behind.pop() {
            match self.since(link, &mut listener).await {
                Ok(true) => self.listeners.push(listener),
                Ok(false) => {}
                Err(Unheard::Refused(_)) => {
                    let _ = listener.end.set(SubscriptionEnd::Lagged { missed: listener.last + 1 });
                }
                Err(Unheard::Trouble(trouble)) => {
                    // The next connection tells them.
                    self.listeners.push(listener);
                    self.listeners.append(&mut behind);
                    return Err(trouble);
                }
            }
        }
        Ok(())
    }

    /// Tells a listener what happened after the last that it heard. False if it does not take it, and then it has ended.
    async fn since(&self, link: &mut Link, listener: &mut Listener) -> Result<bool, Unheard> {
        let count = Count::new(PAGE).unwrap_or(Count::ONE);
        loop {
            let request = Request::Since { after: listener.last >> self.room_bits, count };
            let answer = self.ask(link, &request).await?;
            let happened: EventsReply =
                wire::decode(&answer).map_err(wire::BadWire::from).map_err(Trouble::from)?;
            let refused = |refusal| Unheard::Refused(self.shifted(listener.last, refusal));
            let happened = happened.map_err(refused)?;
            let full = happened.len() == count.get();
            for (position, event) in happened {
                if !listener.tell(position << self.room_bits, &Arc::new(event)) {
                    return Ok(false);
                }
            }
            listener.kept = listener.last;
            if !full {
                return Ok(true);
            }
        }
    }

    /// How long an answer over this connection may take.
    fn answer_max(&self) -> Duration {
        ANSWER_MAX.min(self.shared.door.url.patience.max(ANSWER_MIN))
    }

    /// Sends something over the listening connection.
    async fn say(&self, link: &mut Link, command: &Cmd) -> Result<(), Trouble> {
        let said = tokio::time::timeout(self.answer_max(), link.send(command)).await;
        said.unwrap_or_else(|_| Err(Trouble::Silent(self.answer_max()))).map(drop)
    }

    /// Asks over the listening connection. Whoever listens is waited for by nobody, but we are.
    async fn ask(&self, link: &mut Link, request: &Request) -> Result<Vec<u8>, Trouble> {
        let (request, watched, max) = (Encoded::of(request), link.clone(), self.answer_max());
        let call = self.shared.watched(&watched, max, self.shared.door.ask(link, &request, max));
        tokio::time::timeout(max, call).await.unwrap_or(Err(Trouble::Silent(max)))
    }

    /// Says now and then that somebody listens; and if there is no connection to listen to, opens one.
    async fn keep_listening(&mut self) {
        if self.listeners.is_empty() {
            return;
        }
        let Ok(mut link) = self.link().await else { return };
        if self.listened_at.elapsed() < LISTEN_AGAIN {
            return;
        }
        self.listened_at = tokio::time::Instant::now();
        if self.ask(&mut link, &Request::Listen { now: Some(self.shared.clock.now()) }).await.is_err() {
            self.lost();
        }
    }

    /// Whether there are result streams that must be registered. A geartrain server sees when a connection
    /// ends, and with a clock of the caller's own the moments of registrations would mean nothing to others.
    fn registers(&self) -> bool {
        self.link.is_some() && !self.fronts.is_empty() && self.room_bits > 0 && !self.shared.exact
    }

    fn streams_key(&self) -> String {
        self.shared.door.key("gt:fronts")
    }

    /// Registers result streams as alive now. Answers how many were not registered.
    async fn register(&self, link: &mut Link, streams: &[u64]) -> Result<usize, Trouble> {
        let mut register = cmd("ZADD");
        register.arg(self.streams_key());
        for stream in streams {
            register.arg(self.shared.clock.now().get()).arg(format!("{stream:016x}"));
        }
        let added = tokio::time::timeout(self.answer_max(), link.send(&register)).await;
        let added = added.unwrap_or_else(|_| Err(Trouble::Silent(self.answer_max())))?;
        redis::from_redis_value(added).map_err(|_| Trouble::Nonsense("members added are a number"))
    }

    /// Says now and then that the result streams of this process are alive.
    async fn renew(&mut self) {
        if !self.registers() || self.renewed_at.elapsed() < RENEW {
            return;
        }
        let Some(mut link) = self.link.clone() else { return };
        self.renewed_at = tokio::time::Instant::now();
        let streams: Vec<u64> = self.fronts.keys().copied().collect();
        match self.register(&mut link, &streams).await {
            Ok(0) => {}
            // This process was stopped for so long that another one has detached its waiters.
            Ok(_) => self.end_streams(),
            Err(trouble) if trouble.passes() => self.lost(),
            Err(trouble) => tracing::warn!(%trouble, "cannot register the result streams of this process"),
        }
    }

    fn end_streams(&mut self) {
        for (_, front) in self.fronts.drain() {
            let _ = front.end.set(ResultStreamEnd::Closed);
        }
    }

    /// A refusal in our positions.
    fn shifted(&self, asked: u64, refusal: Refusal) -> Refusal {
        match refusal {
            Refusal::CursorTooOld { oldest, .. } => {
                Refusal::CursorTooOld { after: asked, oldest: oldest << self.room_bits }
            }
            Refusal::CursorAhead { newest, .. } => {
                Refusal::CursorAhead { after: asked, newest: newest << self.room_bits }
            }
            other => other,
        }
    }

    fn lost(&mut self) {
        self.link = None;
        self.lost_at.get_or_insert_with(tokio::time::Instant::now);
        self.end_streams();
    }

    /// Another node has been promoted. What the old one still says does not count.
    fn superseded(&mut self) {
        self.lost();
        self.pushes = unbounded_channel();
        self.sleepers.all_ask();
    }

    async fn listen(&mut self, after: Option<u64>) -> Result<EventStream, Unheard> {
        let mut link = self.link().await?;
        let (to, from) = flume::bounded(QUEUED_MAX);
        let end = Arc::new(OnceLock::new());
        let mut listener = Listener { last: after.unwrap_or(0), kept: 0, to, end: end.clone() };
        if after.is_some() {
            // Before anything is asked to be kept: what is not kept is refused.
            self.since(&mut link, &mut listener).await?;
        }
        self.say(&mut link, cmd("SUBSCRIBE").arg(self.event_channels())).await?;
        let request = Request::Listen { now: Some(self.shared.clock.now()) };
        let answer = self.ask(&mut link, &request).await?;
        let newest: u64 = wire::decode(&answer).map_err(wire::BadWire::from).map_err(Trouble::from)?;
        let hears = match after {
            None => {
                listener.last = newest << self.room_bits;
                listener.kept = listener.last;
                true
            }
            Some(_) => self.since(&mut link, &mut listener).await?,
        };
        if hears {
            self.listeners.push(listener);
        }
        self.listened_at = tokio::time::Instant::now();
        let guard = self.shared.unsettled.on_drop(self.ears.clone(), Closed::Events);
        Ok(EventStream { from, end, _guard: guard })
    }

    async fn follow(&mut self, front: u64) -> Result<DeliveryStream, Unheard> {
        let mut link = self.link().await?;
        self.say(&mut link, cmd("SUBSCRIBE").arg(self.front_channel(front))).await?;
        let (to, from) = flume::bounded(QUEUED_MAX);
        let end = Arc::new(OnceLock::new());
        self.fronts.insert(front, Front { to, end: end.clone() });
        if self.registers() {
            // Before the first waiter attaches, so that none is left behind if this process dies.
            match self.register(&mut link, &[front]).await {
                Err(trouble) if trouble.passes() => {
                    self.fronts.remove(&front);
                    return Err(trouble.into());
                }
                Err(trouble) => {
                    tracing::warn!(%trouble, "cannot register the result streams of this process")
                }
                Ok(_) => {}
            }
        }
        let guard = self.shared.unsettled.on_drop(self.ears.clone(), Closed::Front { front });
        Ok(DeliveryStream { from, end, _guard: guard })
    }

    /// Whoever waited long enough gets nothing.
    fn expire(&mut self) {
        let elapsed = self.shared.clock.elapsed();
        // The wait is over on the other side too, by its own measure; what still comes of it is handed back.
        self.sleepers.end(|sleeper| !sleeper.is_asking() && sleeper.is_over(elapsed), || None);
    }

    /// Asks for all that is to be asked for, in one call.
    async fn ask_for_jobs(&mut self) {
        if !self.sleepers.any_asks() {
            return;
        }
        let mut link = match self.link().await {
            Ok(link) => link,
            Err(trouble) => {
                tracing::debug!(%trouble, "nobody to wait with");
                return self.give_up(&trouble);
            }
        };
        let waits = self.sleepers.waits(self.shared.clock.elapsed());
        let asked: Vec<u64> = waits.iter().map(|wait| wait.number).collect();
        let request = Request::Park {
            process: self.shared.process.clone(),
            now: Some(self.shared.clock.now()),
            waits,
            tick: !self.shared.exact,
        };
        self.asked_at = tokio::time::Instant::now();
        let waiting: Vec<ParkReply> = match self.ask(&mut link, &request).await {
            Ok(answer) => match wire::decode(&answer) {
                Ok(waiting) => waiting,
                Err(_) => return self.refuse(|| Trouble::Nonsense("what became of waits is a list")),
            },
            Err(trouble) if !trouble.passes() => {
                let said = trouble.to_string();
                return self.refuse(|| Trouble::NoMaster(said.clone()));
            }
            Err(trouble) => {
                self.lost();
                // It was lost already when this was asked.
                self.lost_at = self.lost_at.map(|lost_at| lost_at.min(self.asked_at));
                return self.give_up(&trouble);
            }
        };
        for (number, waiting) in asked.into_iter().zip(waiting) {
            match waiting {
                ParkReply::Popped(reply) => self.deliver(number, Ok(reply)),
                ParkReply::Refused(refusal) => self.deliver(number, Err(refusal)),
                ParkReply::Parked { next } => self.sleepers.sleep(number, next),
                _ => {}
            }
        }
        // Those that wait no time at all are done.
        self.expire();
    }

    /// There is no connection: whoever has waited long enough is told, and everybody when patience is over.
    fn give_up(&mut self, trouble: &Trouble) {
        let lost_at = *self.lost_at.get_or_insert_with(tokio::time::Instant::now);
        let too_long = !trouble.passes() || lost_at.elapsed() >= self.shared.door.url.patience;
        let elapsed = self.shared.clock.elapsed();
        let said = || Trouble::NoMaster(format!("there was no connection to wait with: {trouble}"));
        self.sleepers.end(|sleeper| too_long || sleeper.is_over(elapsed), || Some(broken(said())));
    }

    fn refuse(&mut self, trouble: impl Fn() -> Trouble) {
        self.sleepers.end(Sleeper::is_asking, || Some(broken(trouble())));
    }

    /// Gives jobs to whoever waits for them, or the word that there are some. Jobs for which nobody waits any more go back.
    fn deliver(&mut self, number: u64, reply: Result<PopReply, Refusal>) {
        let left = match (self.sleepers.remove(number), reply) {
            (Some(sleeper), Err(refusal)) => return sleeper.end(Some(refusal.into())),
            (None, Err(_)) => return,
            (None, Ok(reply)) => reply,
            (Some(sleeper), Ok(reply)) => match sleeper.give(reply) {
                Ok(()) => return,
                Err(reply) => reply,
            },
        };
        let back: Vec<Call> = left.jobs.iter().map(|job| Release::of(job).into()).collect();
        if !back.is_empty() {
            self.aside(back);
        }
    }

    async fn wake(&mut self, number: u64) {
        let Some(mut link) = self.link.clone() else { return };
        let request = Request::Unpark { process: self.shared.process.clone(), number };
        if self.ask(&mut link, &request).await.is_err() {
            self.lost();
        }
    }

    async fn pushed(&mut self, push: PushInfo) {
        match push.kind {
            PushKind::Disconnection => {
                self.lost();
                self.sleepers.all_ask();
            }
            _ => self.message(push).await,
        }
    }

    async fn message(&mut self, push: PushInfo) {
        let mut data = push.data.into_iter();
        if push.kind == PushKind::Message
            && let (Some(Value::BulkString(channel)), Some(Value::BulkString(message))) =
                (data.next(), data.next())
        {
            self.heard(&channel, &message).await;
        }
    }

    async fn heard(&mut self, channel: &[u8], message: &[u8]) {
        let prefix = self.shared.door.url.prefix.as_bytes();
        let Some(channel) =
            channel.strip_prefix(prefix).and_then(|channel| std::str::from_utf8(channel).ok())
        else {
            return;
        };
        let read = if channel == "gt:events" {
            wire::decode(message).map(|heard| self.happened(heard))
        } else if let Some(front) = channel.strip_prefix("gt:front:").and_then(|front| front.parse().ok()) {
            wire::decode(message).map(|delivery| self.told(front, delivery))
        } else if channel.starts_with("gt:to:") {
            wire::decode(message).map(|roused| self.roused(roused))
        } else {
            self.overheard(channel, message).await;
            Ok(())
        };
        if let Err(error) = read {
            tracing::warn!(%error, channel, "a message that makes no sense");
        }
    }

    fn roused(&mut self, roused: ParkedPopNotice) {
        match roused {
            ParkedPopNotice::Popped { number, reply } => self.deliver(number, reply),
            ParkedPopNotice::Wake(queue) => self.sleepers.wake_first(&queue),
            ParkedPopNotice::Ready(queue) => self.sleepers.rouse(&queue),
            _ => {}
        }
    }

    /// A message on one of Qless's channels: announced by our own script, or else said by a foreign one.
    async fn overheard(&mut self, channel: &str, message: &[u8]) {
        if self.announced > 0 {
            self.announced -= 1;
            return;
        }
        let queue = match foreign::failed_job(channel, message) {
            Some(jid) => self.queue_of(jid).await,
            None => None,
        };
        if let Some(event) = foreign::event(channel, message, queue) {
            let (event, room) = (Arc::new(event), (1 << self.room_bits) - 1);
            // After what each was told last, because one may know already what others have yet to hear of.
            self.listeners.retain_mut(|it| it.tell((it.last + 1).min(it.last | room), &event));
        }
    }

    async fn queue_of(&self, jid: Jid) -> Option<QueueName> {
        let answers = self.shared.execute(vec![Call::from(Get { jid })]).await.ok()?;
        match answers.into_iter().next() {
            Some(Ok(Reply::Get(Some(job)))) => job.queue,
            _ => None,
        }
    }

    fn happened(&mut self, (announced, events): EventBatch) {
        self.announced = announced;
        let shift = |(position, event): (u64, Event)| (position << self.room_bits, Arc::new(event));
        let events: Vec<(u64, Arc<Event>)> = events.into_iter().map(shift).collect();
        self.listeners.retain_mut(|listener| {
            let kept = listener.kept;
            let mut new = events.iter().filter(|(position, _)| *position > kept);
            new.all(|(position, event)| listener.tell(*position, event))
        });
    }

    fn told(&mut self, front: u64, delivery: Delivery) {
        let Some(stream) = self.fronts.get(&front) else { return };
        if stream.to.try_send(delivery).is_err() {
            let _ = stream.end.set(ResultStreamEnd::Lagged);
            self.fronts.remove(&front);
        }
    }
}

/// Events that come over the listening connection.
pub(crate) struct EventStream {
    /// Dropped first: then nobody takes what is told.
    from: flume::Receiver<Published>,
    end: Arc<OnceLock<SubscriptionEnd>>,
    _guard: CloseOnDrop,
}

impl Subscription for EventStream {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Published, SubscriptionEnd>> + Send + '_>> {
        Box::pin(async move {
            let closed = |_| self.end.get().cloned().unwrap_or(SubscriptionEnd::Closed);
            self.from.recv_async().await.map_err(closed)
        })
    }
}

/// What those are told who wait through this process.
pub(crate) struct DeliveryStream {
    from: flume::Receiver<Delivery>,
    end: Arc<OnceLock<ResultStreamEnd>>,
    _guard: CloseOnDrop,
}

impl ResultStream for DeliveryStream {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Delivery, ResultStreamEnd>> + Send + '_>> {
        Box::pin(async move {
            let closed = |_| self.end.get().cloned().unwrap_or(ResultStreamEnd::Closed);
            self.from.recv_async().await.map_err(closed)
        })
    }
}
