//! The way in: commands from any thread, to the one that owns the engine.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use flume::{Receiver, Sender};
use geartrain_core::engine::{Engine, Limits};
use geartrain_core::{
    Answer, Backend, BackendError, Call, Clock, Pending, Pop, PopReply, QueueName, ResultStream, Seconds,
    Subscription,
};

use crate::backup::{self, BackedUp};
use crate::delivery::{Answered, Audience, RefusableSlot, Slot};
use crate::embedded::{OpenError, Premises, Started, Store};
use crate::host::{Host, Message, Posted};
use crate::keeper::Keeper;
use crate::large::LargeWriter;
use crate::log::{Disk, chance};
use crate::options::StoreOptions;
use crate::seat::{Seat, Tally};
use crate::trouble::Trouble;

/// How many batches wait for the engine before those who send more have to wait themselves.
const INBOX_BATCHES_MAX: usize = 16_384;

/// The engine in this process.
///
/// Dropping it shuts it down, and waits for its thread to end.
pub struct StoreBackend {
    name: &'static str,
    inbox: Sender<Posted>,
    gone: Gone,
    seat: Arc<Seat>,
    thread: Option<JoinHandle<()>>,
    /// Writes large payloads to files of their own; none if nothing is kept.
    large: Option<LargeWriter>,
    /// Where everything is kept, as long as the thread is there; nowhere if nothing is.
    premises: Weak<Premises>,
}

impl std::fmt::Debug for StoreBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreBackend").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Whether the thread is gone, and what it can no longer answer.
///
/// A message may be sent just when the thread ends, and would then be neither answered nor dropped. So the thread first says that it
/// is gone and then drops what is left; whoever sends looks afterwards whether it is gone, and drops what is left too. One of the two
/// comes last.
#[derive(Debug, Clone)]
struct Gone {
    flag: Arc<AtomicBool>,
    left: Receiver<Posted>,
}

impl Gone {
    fn drop_what_is_left(&self) {
        while self.left.drain().count() > 0 {}
    }
}

/// Held by the thread: says that it is gone even if it panics.
struct LastOut(Gone);

impl Drop for LastOut {
    fn drop(&mut self) {
        self.0.flag.store(true, Ordering::SeqCst);
        self.0.drop_what_is_left();
    }
}

impl StoreBackend {
    /// An engine that keeps nothing beyond this process.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use geartrain_core::{Backend, Call, Length, QueueName, Reply};
    /// use geartrain_core::SystemClock;
    /// use geartrain_store::StoreBackend;
    /// # pollster::block_on(async {
    /// let backend = StoreBackend::in_memory(Arc::new(SystemClock))?;
    /// let length = Length { queue: QueueName::new("mail")? };
    /// assert_eq!(backend.execute(vec![Call::from(length)]).await?, [Ok(Reply::Length(0))]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_memory(clock: Arc<dyn Clock>) -> Result<StoreBackend, BackendError> {
        StoreBackend::start("memory", Engine::new(limits()), clock, Keeper::Nowhere(Audience::default()))
    }

    /// An engine that keeps everything in a directory, which is made if it is not there.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use geartrain_core::{Backend, Call, Jid, Klass, Length, Put, QueueName, Reply};
    /// use geartrain_store::{StoreBackend, StoreOptions, SystemClock};
    /// # pollster::block_on(async {
    /// let directory = std::env::temp_dir().join(format!("geartrain-doc-{}", std::process::id()));
    /// let mail = QueueName::new("mail")?;
    /// let backend = StoreBackend::open(&directory, StoreOptions::default(), Arc::new(SystemClock))?;
    /// let put = Put::new(mail.clone(), Jid::new("j1")?, Klass::new("welcome")?, "{}");
    /// backend.execute(vec![put.into()]).await?;
    /// drop(backend);
    ///
    /// let backend = StoreBackend::open(&directory, StoreOptions::default(), Arc::new(SystemClock))?;
    /// assert_eq!(backend.execute(vec![Call::from(Length { queue: mail })]).await?, [Ok(Reply::Length(1))]);
    /// # drop(backend);
    /// # std::fs::remove_dir_all(directory)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(
        directory: &Path,
        options: StoreOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<StoreBackend, OpenError> {
        StoreBackend::keep_in(Store::in_directory(directory, options, limits())?, clock)
    }

    /// The same on any disk, which nobody else may use meanwhile.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        options: StoreOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<StoreBackend, OpenError> {
        StoreBackend::keep_in(Store::on(disk, options, limits()), clock)
    }

    fn keep_in(store: Store, clock: Arc<dyn Clock>) -> Result<StoreBackend, OpenError> {
        let Started { engine, scribe, .. } = store.start(clock.now())?;
        let premises = Arc::downgrade(store.premises());
        let large = LargeWriter::new(store.large().clone());
        let started = StoreBackend::start("embedded", engine, clock, Keeper::Log { store, scribe });
        let mut started = started.map_err(|error| OpenError::Io(std::io::Error::other(error)))?;
        (started.premises, started.large) = (premises, Some(large));
        Ok(started)
    }

    fn start(
        name: &'static str,
        engine: Engine,
        clock: Arc<dyn Clock>,
        keeper: Keeper,
    ) -> Result<StoreBackend, BackendError> {
        let (inbox, messages) = flume::bounded(INBOX_BATCHES_MAX);
        let again = inbox.downgrade();
        clock.on_jump(Box::new(move || {
            // If the inbox is full the engine is awake, and looks at the clock when it has read it.
            if let Some(inbox) = again.upgrade() {
                let _ = inbox.try_send(Message::LookAgain.into());
            }
        }));
        keeper.wake_through(inbox.downgrade());
        let gone = Gone { flag: Arc::new(AtomicBool::new(false)), left: messages.clone() };
        let last_out = LastOut(gone.clone());
        let tally = Tally::default();
        let mut host = Host::new(engine, clock, messages.clone(), inbox.downgrade(), &tally, keeper);
        host.begin();
        let seat = Arc::new(Seat::new(host, tally));
        let sits = seat.clone();
        let thread = std::thread::Builder::new()
            .name("geartrain-engine".into())
            .spawn(move || {
                let _last_out = last_out;
                sits.run(&messages);
            })
            .map_err(|error| broken(name, error))?;
        Ok(StoreBackend { name, inbox, gone, seat, thread: Some(thread), large: None, premises: Weak::new() })
    }

    /// Copies everything into a directory, which must be empty or not there, while work goes on. The copy can be opened like the original, and all
    /// that was acknowledged before the call is in it; of what comes meanwhile there may be some. If it fails, nothing is left behind.
    pub async fn backup(&self, to: &Path) -> Result<BackedUp, OpenError> {
        let Some(premises) = self.premises.upgrade() else {
            let why = "the queue keeps nothing on a disk, or has been shut down";
            return Err(OpenError::NothingKept { why });
        };
        let (slot, answer) = flume::bounded(1);
        let to = to.to_owned();
        // It has its own thread, because it takes long and neither the engine nor whoever waits for it may stand still.
        std::thread::Builder::new().name("geartrain-backup".into()).spawn(move || {
            let done = backup::backup(&premises, &to);
            // Whoever hears of it may want to open the directory again.
            drop(premises);
            let _ = slot.send(done);
        })?;
        let gone =
            |_| OpenError::Io(std::io::Error::other("the thread that made the copy panicked, and said why"));
        answer.recv_async().await.map_err(gone)?
    }

    /// How many bytes of payloads are in memory, as far as that is limited: those of recurring jobs, and of a queue that keeps nothing on a disk, are
    /// not counted.
    pub fn payload_bytes_in_memory(&self) -> u64 {
        self.premises.upgrade().map_or(0, |premises| premises.payload_bytes.load(Ordering::Relaxed))
    }

    /// Answers what was asked so far, turns away those who wait, and from then on every command.
    pub async fn shut_down(&self) {
        // If it has shut down already, that is what was wanted.
        let _ = self.ask(|slot| Message::Stop { slot: Some(slot) }).await;
    }

    async fn ask<T>(&self, message: impl FnOnce(Slot<T>) -> Message) -> Result<T, BackendError> {
        let (slot, answer) = flume::bounded(1);
        let gone = || broken(self.name, Trouble::Gone);
        self.inbox.send_async(self.seat.posted(message(slot))).await.map_err(|_| gone())?;
        if self.gone.flag.load(Ordering::SeqCst) {
            self.gone.drop_what_is_left();
        }
        self.answer(answer).await
    }

    /// Has the large payloads of a batch written first.
    async fn execute_large(
        &self,
        large: &LargeWriter,
        batch: Vec<Call>,
    ) -> Result<Vec<Answer>, BackendError> {
        let written = large.write(batch).await;
        let (mut batch, files) = written.map_err(|trouble| broken(self.name, trouble))?;
        batch.iter_mut().for_each(|call| call.command.unshare());
        let answered = self.ask(|slot| self.seat.batch(batch, Some(files), slot)).await?;
        Ok(answered.answers)
    }

    async fn answer<T>(&self, answer: Receiver<Result<T, Trouble>>) -> Result<T, BackendError> {
        let answer = answer.recv_async().await;
        answer.unwrap_or(Err(Trouble::Gone)).map_err(|trouble| broken(self.name, trouble))
    }

    /// The same for what may be refused.
    async fn ask_for<T>(&self, message: impl FnOnce(RefusableSlot<T>) -> Message) -> Result<T, BackendError> {
        self.ask(message).await?.map_err(BackendError::Refused)
    }
}

impl Backend for StoreBackend {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        Box::pin(async move {
            if let Some(large) = &self.large
                && large.is_for(&batch)
            {
                return self.execute_large(large, batch).await;
            }
            let mut batch = batch;
            // On the caller's thread: no other has the time.
            batch.iter_mut().for_each(|call| call.command.unshare());
            let Answered { answers, spent } = match self.seat.do_now(batch, &self.inbox) {
                Ok(answer) => self.answer(answer).await?,
                Err(batch) => self.ask(|slot| self.seat.batch(batch, None, slot)).await?,
            };
            drop(spent);
            Ok(answers)
        })
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        Box::pin(self.ask_for(move |slot| Message::Wait { pop, wait, slot }))
    }

    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        Box::pin(self.ask_for(move |slot| Message::Ready { queues, wait, slot }))
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        Box::pin(self.ask_for(|slot| Message::Subscribe { after: None, slot }))
    }

    fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
        Box::pin(self.ask_for(move |slot| Message::Subscribe { after: Some(after), slot }))
    }

    fn ack_events(&self, position: u64) {
        // If the inbox is full they are held until the next time that somebody says so.
        let _ = self.inbox.try_send(Message::LetEventsGo { position }.into());
    }

    fn open_result_stream(&self, front: u64) -> Pending<'_, Box<dyn ResultStream>> {
        Box::pin(self.ask_for(move |slot| Message::Follow { front, slot }))
    }
}

impl Drop for StoreBackend {
    fn drop(&mut self) {
        // Nothing is written any more when the directory is let go of.
        self.large = None;
        if !self.gone.flag.load(Ordering::SeqCst) {
            // Behind all that was sent before it, so that is answered first.
            let _ = self.inbox.send(Message::Stop { slot: None }.into());
        }
        if let Some(thread) = self.thread.take() {
            // If it panicked, its message was printed and every caller was told; there is nothing to add here.
            let _ = thread.join();
        }
    }
}

fn broken(backend: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> BackendError {
    BackendError::Broken { backend, source: Box::new(source) }
}

fn limits() -> Limits {
    Limits { hash_seed: chance(), ..Limits::default() }
}
