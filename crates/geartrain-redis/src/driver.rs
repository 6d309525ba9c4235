//! A queue on Redis, on Valkey or on a geartrain server, as a backend.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use geartrain_core::wire::{self, Request};
use geartrain_core::{
    Answer, Backend, BackendError, BadInput, Call, Clock, Command, Count, METADATA_BYTES_MAX,
    PAYLOAD_BYTES_MAX, Payload, Pending, Pop, PopOrder, PopReply, QueueName, Refusal, Reply, ResultStream,
    Seconds, Subscription, Timestamp, WorkerName,
};
use redis::ConnectionAddr;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender, unbounded_channel};

use crate::clock::SharedClock;
use crate::ears::{Ask, Closed, Ears, Unheard};
use crate::link::{Door, Encoded, Link, Trouble};
use crate::sleepers::Wanted;
use crate::url::{Kind, RedisUrl};

/// After how long without an answer the node is looked after, and how often from then on. It is shorter than
/// sentinels and Clusters take to find a node gone, so that no call across a failover is answered sooner.
const LOOK: Duration = Duration::from_millis(500);

/// The most commands in one call: nobody else is served meanwhile.
const BATCH_MAX: usize = 1_000;

/// How long to wait before a call is sent again: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// A queue on Redis, on Valkey or on a geartrain server.
///
/// After a lost connection, a failover or a restart it connects again by itself, and sends again what was not answered. A put of our own kind, and a complete or fail with a token, do no harm
/// when they come twice. A pop hands out other jobs the second time, and the first come back when their locks expire; a retry or hand-back that was done already is answered with a refusal; whatever replaces a
/// job or counts (a Qless put, unfail, a tag's count) may be done twice.
pub struct RedisBackend {
    shared: Arc<Shared>,
    ears: UnboundedSender<Ask>,
    waits: AtomicU64,
    /// Where connections live. Callers may be on any executor, or on none.
    runtime: Option<Runtime>,
}

impl RedisBackend {
    /// Connects. That the queue is there is seen to; that it stays there is not.
    pub async fn connect(url: RedisUrl) -> Result<RedisBackend, BackendError> {
        let clock = Arc::new(SharedClock::new());
        RedisBackend::start(Door::new(url, Some(clock.clone())), clock, false).await
    }

    /// The same with a clock of one's own, which nobody puts right. Commands then also wait until the other side knows who waits for jobs, so that what happens in
    /// a test is exactly what it says.
    pub async fn with_clock(url: RedisUrl, clock: Arc<dyn Clock>) -> Result<RedisBackend, BackendError> {
        RedisBackend::start(Door::new(url, None), clock, true).await
    }

    async fn start(door: Door, clock: Arc<dyn Clock>, exact: bool) -> Result<RedisBackend, BackendError> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("geartrain-redis").enable_all().build();
        let runtime =
            runtime.map_err(|error| BackendError::Broken { backend: NAME, source: error.into() })?;
        let shared = Arc::new(Shared {
            door,
            clock,
            process: uuid::Uuid::now_v7().simple().to_string(),
            current: Mutex::new(None),
            opening: tokio::sync::Mutex::new(()),
            looked: tokio::sync::Mutex::new(None),
            handle: runtime.handle().clone(),
            unsettled: Arc::default(),
            exact,
        });
        let (ears, asks) = unbounded_channel();
        let (again, unsettled) = (ears.downgrade(), shared.unsettled.clone());
        shared.clock.on_jump(Box::new(move || {
            if let Some(ears) = again.upgrade() {
                // If nobody listens any more, nobody waits for anything either.
                unsettled.ask(&ears, Ask::LookAgain);
            }
        }));
        if let Kind::Sentinel { sentinels, master } = &shared.door.url.kind {
            for sentinel in sentinels.clone() {
                let (shared, master) = (shared.clone(), master.clone());
                runtime.spawn(async move { shared.door.watch_sentinel(&sentinel, &master).await });
            }
        }
        runtime.spawn(Ears::new(shared.clone(), asks, ears.downgrade()).run());
        let backend = RedisBackend { shared, ears, waits: AtomicU64::new(0), runtime: Some(runtime) };
        backend.shared.link().await.map_err(broken)?;
        Ok(backend)
    }
}

const NAME: &str = "redis";

/// Whoever waits only to be told is no worker, but a pop names one.
const NOBODY: &str = "-";

/// How long something is tried again.
struct Patience {
    begun: Instant,
    lasts: Duration,
    /// Before the next time.
    pause: Duration,
}

impl Patience {
    fn new(lasts: Duration) -> Patience {
        Patience { begun: Instant::now(), lasts, pause: PAUSE.0 }
    }

    fn left(&self) -> Duration {
        self.lasts.saturating_sub(self.begun.elapsed())
    }
}

pub(crate) fn broken(trouble: Trouble) -> BackendError {
    BackendError::Broken { backend: NAME, source: Box::new(trouble) }
}

/// What calls and the listening connection share.
pub(crate) struct Shared {
    pub(crate) door: Door,
    pub(crate) clock: Arc<dyn Clock>,
    /// What this process is called where it waits.
    pub(crate) process: String,
    current: Mutex<Option<(u64, Link)>>,
    /// Held while a connection is opened, so that only one is.
    opening: tokio::sync::Mutex<()>,
    /// The last look after a node that owed an answer: which, when the look began, and whether the node
    /// answered.
    looked: tokio::sync::Mutex<Option<(ConnectionAddr, Instant, bool)>>,
    handle: Handle,
    pub(crate) unsettled: Arc<Unsettled>,
    /// Whether commands wait until it is known who waits for jobs.
    pub(crate) exact: bool,
}

impl Shared {
    /// The connection, if there is one and nothing is known against it.
    fn current(&self) -> Option<(u64, Link)> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.take_if(|(_, link)| self.door.primary.is_superseded(link.node.as_deref()));
        current.clone()
    }

    async fn link(self: &Arc<Shared>) -> Result<(u64, Link), Trouble> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        // On the runtime, because whoever asks may stop being polled, and must not hold the others up then.
        let shared = self.clone();
        self.on_runtime(async move { shared.open().await }).await?
    }

    async fn open(&self) -> Result<(u64, Link), Trouble> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let _opening = self.opening.lock().await;
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let opened = (NUMBER.fetch_add(1, Ordering::Relaxed), self.door.open(None).await?);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened.clone());
        Ok(opened)
    }

    /// A connection that did not answer is not used again.
    fn forget(&self, number: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.take_if(|(current, _)| *current == number);
    }

    async fn on_runtime<T: Send + 'static>(
        &self,
        what: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Trouble> {
        self.handle.spawn(what).await.map_err(|_| Trouble::Gone)
    }

    /// Sends a request until it is answered, or until patience is over.
    pub(crate) async fn ask(self: &Arc<Shared>, request: Request) -> Result<Vec<u8>, Trouble> {
        let request = Encoded::of(&request);
        let mut patience = Patience::new(self.door.url.patience);
        loop {
            let opened = match self.current() {
                Some(link) => Ok(link),
                None => self.within(patience.left(), self.link()).await,
            };
            let trouble = match opened {
                Err(trouble) => trouble,
                Ok((number, link)) => {
                    let mut asked = link.clone();
                    let left = patience.left();
                    match self.watched(&link, left, self.door.ask(&mut asked, &request, left)).await {
                        Ok(answer) => return Ok(answer),
                        Err(trouble) => {
                            if trouble.passes() {
                                self.forget(number);
                            }
                            trouble
                        }
                    }
                }
            };
            self.bear(&mut patience, trouble).await?;
        }
    }

    /// Sends one command of Redis's own, once.
    pub(crate) async fn send(self: &Arc<Shared>, command: &redis::Cmd) -> Result<(), Trouble> {
        let (_, link) = self.link().await?;
        let mut sent = link.clone();
        self.watched(&link, self.door.url.patience, sent.send(command)).await.map(drop)
    }

    /// A timer that may be polled by any executor.
    fn timer(&self, lasts: Duration) -> tokio::time::Sleep {
        let _runtime = self.handle.enter();
        tokio::time::sleep(lasts)
    }

    /// Waits for something for so long, but for at least a second: that much it takes to connect.
    async fn within<T>(
        &self,
        lasts: Duration,
        what: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, Trouble> {
        let is_over = self.timer(lasts.max(Duration::from_secs(1)));
        tokio::select! {
            biased;
            done = what => done,
            () = is_over => Err(Trouble::Silent(self.door.url.patience)),
        }
    }

    /// Waits for the answer to a call, and meanwhile watches the node that owes it.
    ///
    /// The answer does not count if another node has been promoted. If the node is silent altogether, it is
    /// waited for as long as patience lasts; one that answers a PING over another connection is at work on
    /// the call.
    pub(crate) async fn watched<T>(
        self: &Arc<Shared>,
        link: &Link,
        patience: Duration,
        call: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, Trouble> {
        let (begun, node) = (Instant::now(), link.node.as_deref());
        let superseded = || {
            let node = node.map_or_else(String::new, |(host, port)| format!("{host}:{port}"));
            Trouble::Superseded(node)
        };
        let (mut call, mut replaced) = (pin!(call), pin!(self.door.primary.superseded(node)));
        // Nearly all calls are answered before the first look.
        tokio::select! {
            biased;
            () = &mut replaced => return Err(superseded()),
            answer = &mut call => return answer,
            () = self.timer(LOOK) => {}
        }
        let mut answers = true;
        // WAIT holds up all calls behind it on a connection: a node that answers a PING may owe theirs for long.
        let bounded = self.door.url.replicas > 0;
        let answer = loop {
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() && (bounded || !answers) {
                return Err(Trouble::Silent(patience));
            }
            let (mut look, mut is_over) = (pin!(self.look_after(link)), pin!(self.timer(left)));
            tokio::select! {
                biased;
                () = &mut replaced => return Err(superseded()),
                answer = &mut call => break answer,
                answered = &mut look => answers = answered?,
                () = &mut is_over, if bounded || !answers => continue,
            }
            let left = patience.saturating_sub(begun.elapsed());
            let pause = if bounded || !answers { LOOK.min(left) } else { LOOK };
            tokio::select! {
                biased;
                () = &mut replaced => return Err(superseded()),
                answer = &mut call => break answer,
                () = self.timer(pause) => {}
            }
        };
        // It took so long that meanwhile the node may have been found gone: its peers are asked before the
        // answer counts.
        if node.is_some() && answer.is_ok() {
            self.look_after(link).await?;
            if self.door.primary.is_superseded(node) {
                return Err(superseded());
            }
        }
        answer
    }

    /// Whether a node answers at all. All who ask while one look is under way share the next.
    async fn look_after(self: &Arc<Shared>, link: &Link) -> Result<bool, Trouble> {
        let (shared, link, asked) = (self.clone(), link.clone(), Instant::now());
        self.on_runtime(async move {
            let mut looked = shared.looked.lock().await;
            match &*looked {
                Some((address, begun, answers)) if *begun >= asked && *address == link.address => *answers,
                _ => {
                    let begun = Instant::now();
                    let answers = shared.door.look_after(&link).await;
                    *looked = Some((link.address.clone(), begun, answers));
                    answers
                }
            }
        })
        .await
    }

    /// Waits a little before something is tried again. If it would be in vain, or patience is over, the trouble is the answer.
    async fn bear(&self, patience: &mut Patience, trouble: Trouble) -> Result<(), Trouble> {
        let pause = patience.pause;
        if !trouble.passes() || patience.begun.elapsed() + pause > patience.lasts {
            return Err(trouble);
        }
        tracing::debug!(%trouble, ?pause, "trying again");
        patience.pause = (pause * 2).min(PAUSE.1);
        self.on_runtime(async move { tokio::time::sleep(pause).await }).await
    }

    /// Waits until the other side knows what was dropped or begun before.
    async fn settled(&self) -> Result<(), Trouble> {
        if self.unsettled.is_over() {
            return Ok(());
        }
        let over = async {
            self.unsettled.over().await;
            Ok(())
        };
        self.within(self.door.url.patience, over).await
    }

    pub(crate) async fn execute(self: &Arc<Shared>, mut batch: Vec<Call>) -> Result<Vec<Answer>, Trouble> {
        let now = self.clock.now();
        for call in &mut batch {
            call.now.get_or_insert(now);
        }
        let mut answers = Vec::with_capacity(batch.len());
        while !batch.is_empty() {
            if let Some(refusal) = too_large(&batch[0].command) {
                answers.push(Err(refusal));
                batch.remove(0);
                continue;
            }
            let rest = batch.split_off(one_call(&batch));
            let asked = batch.len();
            let answer = self.ask(Request::Batch(batch)).await?;
            let answered = wire::decode_answers(&answer)?;
            if answered.len() != asked {
                return Err(Trouble::Nonsense("there are not as many answers as commands"));
            }
            answers.extend(answered);
            batch = rest;
        }
        Ok(answers)
    }
}

/// The most bytes of payloads in one call, unless one alone has more.
const CALL_BYTES_MAX: usize = 8 << 20;

/// How many commands from the beginning of a batch go into one call.
fn one_call(batch: &[Call]) -> usize {
    let mut bytes = 0;
    for (place, call) in batch.iter().enumerate().take(BATCH_MAX) {
        bytes += payloads(&call.command).map(|(_, payload)| payload.bytes().len()).sum::<usize>();
        if place > 0 && bytes > CALL_BYTES_MAX {
            return place;
        }
    }
    batch.len().min(BATCH_MAX)
}

/// Refused here: what is over the limit as bytes may be far more as the text that is sent.
fn too_large(command: &Command) -> Option<Refusal> {
    let (what, payload) = payloads(command).find(|(_, payload)| payload.bytes().len() > PAYLOAD_BYTES_MAX)?;
    let max = if what == ASIDE { METADATA_BYTES_MAX } else { PAYLOAD_BYTES_MAX };
    Some(Refusal::TooLarge { what: what.into(), bytes: payload.bytes().len(), max })
}

/// What is carried beside a payload, of which there may be less.
const ASIDE: &str = "aside";

/// What a command carries, and what it is called.
fn payloads(command: &Command) -> impl Iterator<Item = (&'static str, &Payload)> {
    let (payload, other) = match command {
        Command::Put(put) => (Some(&put.payload), None),
        Command::Heartbeat(heartbeat) => (heartbeat.payload.as_ref(), None),
        Command::Complete(complete) => (complete.payload.as_ref(), complete.result.as_deref()),
        Command::Fail(fail) => (fail.payload.as_ref(), fail.result.as_deref()),
        Command::Recur(recur) => (Some(&recur.payload), None),
        Command::UpdateRecurring(update) => (update.payload.as_ref(), None),
        _ => (None, None),
    };
    let beside = match command {
        Command::Put(put) => put.options.as_ref().and_then(|terms| Some((ASIDE, terms.metadata.as_ref()?))),
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
            self.shared.execute(batch).await.map_err(broken)
        })
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        Box::pin(async move {
            // On the wire, whoever waits for no jobs at all waits to be told of some.
            if pop.count.get() == 0 { self.pop(pop).await } else { self.sleep(pop, wait, Wanted::Jobs).await }
        })
    }

    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        Box::pin(async move {
            let nothing = pop_of_nothing(queues)
                .map_err(|bad| BackendError::Broken { backend: NAME, source: bad.into() })?;
            self.sleep(nothing, wait, Wanted::Word).await
        })
    }

    fn now(&self) -> Option<Timestamp> {
        Some(self.shared.clock.now())
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.listen(None)
    }

    fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
        self.listen(Some(after))
    }

    fn open_result_stream(&self, front: u64) -> Pending<'_, Box<dyn ResultStream>> {
        Box::pin(async move {
            let stream = self.heard(|ready| Ask::Follow { front, ready }).await?;
            Ok(Box::new(stream) as Box<dyn ResultStream>)
        })
    }
}

/// What stands for whoever only wants to be told that there is something to pop.
fn pop_of_nothing(queues: Vec<QueueName>) -> Result<Pop, BadInput> {
    let (worker, count) = (WorkerName::new(NOBODY)?, Count::new(0)?);
    Ok(Pop { queues, worker, count, order: PopOrder::Strict, whole: false })
}

impl RedisBackend {
    async fn pop(&self, pop: Pop) -> Result<PopReply, BackendError> {
        match self.execute(vec![Call::from(pop)]).await?.pop() {
            Some(Ok(Reply::Pop(reply))) => Ok(reply),
            Some(Err(refusal)) => Err(refusal.into()),
            _ => Err(broken(Trouble::Nonsense("a pop is answered as a pop"))),
        }
    }

    /// Waits until there is what is wanted, or for as long as that.
    async fn sleep<T>(
        &self,
        pop: Pop,
        wait: Seconds,
        wanted: impl FnOnce(flume::Sender<Result<T, BackendError>>) -> Wanted,
    ) -> Result<T, BackendError> {
        let (to, answer) = flume::bounded(1);
        let number = self.waits.fetch_add(1, Ordering::Relaxed);
        let until = self.shared.clock.elapsed() + wait;
        let sleep = Ask::Sleep { number, pop, until, wanted: wanted(to) };
        if self.shared.exact {
            self.shared.unsettled.ask(&self.ears, sleep);
        } else {
            self.tell(sleep)?;
        }
        let mut awake = self.shared.unsettled.on_drop(self.ears.downgrade(), Closed::Wait { number });
        let answer = answer.recv_async().await.map_err(|_| broken(Trouble::Gone))?;
        awake.is_over();
        answer
    }

    fn tell(&self, ask: Ask) -> Result<(), BackendError> {
        self.ears.send(ask).map_err(|_| broken(Trouble::Gone))
    }

    fn listen(&self, after: Option<u64>) -> Pending<'_, Box<dyn Subscription>> {
        Box::pin(async move {
            let stream = self.heard(|ready| Ask::Listen { after, ready }).await?;
            Ok(Box::new(stream) as Box<dyn Subscription>)
        })
    }

    /// Asks for a stream until there is one, or until patience is over.
    async fn heard<T>(
        &self,
        ask: impl Fn(flume::Sender<Result<T, Unheard>>) -> Ask,
    ) -> Result<T, BackendError> {
        let mut patience = Patience::new(self.shared.door.url.patience);
        loop {
            let (ready, answer) = flume::bounded(1);
            self.tell(ask(ready))?;
            let answer = async { answer.recv_async().await.map_err(|_| Trouble::Gone) };
            let answer = self.shared.within(patience.left(), answer).await.map_err(broken)?;
            let trouble = match answer {
                Ok(stream) => return Ok(stream),
                Err(Unheard::Refused(refusal)) => return Err(refusal.into()),
                Err(Unheard::Trouble(trouble)) => trouble,
            };
            self.shared.bear(&mut patience, trouble).await.map_err(broken)?;
        }
    }
}

/// What the other side has not been told yet.
///
/// Whoever drops a stream or stops waiting cannot wait for that; the next command does, so that what was dropped before it is over.
#[derive(Default)]
pub(crate) struct Unsettled {
    count: AtomicUsize,
    done: Notify,
}

impl Unsettled {
    /// Asks for something that the next command waits for.
    fn ask(&self, ears: &UnboundedSender<Ask>, ask: Ask) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if ears.send(ask).is_err() {
            self.settled(1);
        }
    }

    /// Asks for something when the guard is dropped.
    pub(crate) fn on_drop(
        self: &Arc<Unsettled>,
        ears: WeakUnboundedSender<Ask>,
        what: Closed,
    ) -> CloseOnDrop {
        CloseOnDrop { unsettled: self.clone(), ears, what: Some(what) }
    }

    /// So many are settled.
    pub(crate) fn settled(&self, count: usize) {
        self.count.fetch_sub(count, Ordering::SeqCst);
        self.done.notify_waiters();
    }

    fn is_over(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    async fn over(&self) {
        while !self.is_over() {
            let done = self.done.notified();
            if !self.is_over() {
                done.await;
            }
        }
    }
}

pub(crate) struct CloseOnDrop {
    unsettled: Arc<Unsettled>,
    ears: WeakUnboundedSender<Ask>,
    /// None once there is nothing left to say.
    what: Option<Closed>,
}

impl CloseOnDrop {
    /// It came to its end by itself.
    fn is_over(&mut self) {
        self.what = None;
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let (Some(ears), Some(what)) = (self.ears.upgrade(), self.what) {
            self.unsettled.ask(&ears, Ask::Close(what));
        }
    }
}

impl Drop for RedisBackend {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Not waited for: whoever drops this may be on an executor's thread, and nothing is left to be done.
            runtime.shutdown_background();
        }
    }
}
