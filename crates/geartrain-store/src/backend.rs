//! The backend: accepts commands from any thread, executes them inline or sends them to the engine's thread.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use flume::{Receiver, Sender};
use geartrain_core::engine::{Engine, Limits};
use geartrain_core::{
    Answer, Backend, BackendError, Backup, BackupStep, BackupSummary, BackupTarget, Call, Clock, Measures,
    Pending, Pop, PopReply, QueueName, ResultStream, Seconds, Subscription, Timestamp,
};

use crate::backup::{DISK_FULL, StoreBackup, refusal};
use crate::commit::pipeline::CommitPipeline;
use crate::data_dir::DataDir;
use crate::engine_loop::{EngineLoop, Envelope, Message};
use crate::error::StoreError;
use crate::inline_exec::{EngineCell, InFlight};
use crate::options::{StoreOptions, SyncMode};
use crate::publish::{BatchReply, Publisher, RefusableSlot, Slot};
use crate::recovery::{OpenError, Started, Store};
use crate::spill::large::LargeWriter;
use crate::wal::{Disk, random_u64};

/// Back-pressure: with this many batches in the inbox, further callers wait.
const INBOX_BATCHES_MAX: usize = 16_384;

/// The engine in this process, in memory or with a data directory.
///
/// Dropping it shuts it down, and waits for its thread to end.
pub struct StoreBackend {
    name: &'static str,
    inbox: Sender<Envelope>,
    shutdown: Shutdown,
    engine_cell: Arc<EngineCell>,
    thread: Option<JoinHandle<()>>,
    /// Writes large payloads to files of their own; `None` without a data directory.
    large: Option<LargeWriter>,
    /// The data directory, as long as the engine's thread runs; dangling without one.
    data_dir: Weak<DataDir>,
    /// `None` in memory.
    sync: Option<SyncMode>,
    /// The engine's clock.
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for StoreBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreBackend").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Whether the engine's thread has ended, and the messages it can no longer answer.
///
/// A message may be sent just when the thread ends, and would then be neither answered nor dropped. So the
/// thread first sets the flag and then drops the queued messages; a sender checks the flag after sending, and
/// drops them too. One of the two comes last.
#[derive(Debug, Clone)]
struct Shutdown {
    has_ended: Arc<AtomicBool>,
    inbox: Receiver<Envelope>,
}

impl Shutdown {
    fn drain(&self) {
        while self.inbox.drain().count() > 0 {}
    }
}

/// Held by the engine's thread: reports its end even if it panics.
struct ShutdownGuard(Shutdown);

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::SeqCst);
        self.0.drain();
    }
}

impl StoreBackend {
    /// An engine without a data directory: its jobs end with the process.
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
        StoreBackend::start(
            "memory",
            Engine::new(limits()),
            clock,
            CommitPipeline::Volatile(Publisher::default()),
        )
    }

    /// An engine whose jobs are durable in a data directory, which is created if it is missing.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use geartrain_core::{Backend, Call, Jid, Klass, Length, Put, QueueName, Reply, SystemClock};
    /// use geartrain_store::{StoreBackend, StoreOptions};
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
        StoreBackend::start_durable(Store::in_directory(directory, options, limits())?, clock)
    }

    /// Like [`open`](StoreBackend::open), on any disk. No other store may use the disk meanwhile.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        options: StoreOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<StoreBackend, OpenError> {
        StoreBackend::start_durable(Store::on(disk, options, limits()), clock)
    }

    fn start_durable(store: Store, clock: Arc<dyn Clock>) -> Result<StoreBackend, OpenError> {
        let Started { engine, pipeline, .. } = store.start(clock.now())?;
        let sync = Some(store.sync());
        let data_dir = Arc::downgrade(store.data_dir());
        let large = LargeWriter::new(store.large().clone());
        let started = StoreBackend::start("embedded", engine, clock, CommitPipeline::Wal { store, pipeline });
        let mut started = started.map_err(|error| OpenError::Io(std::io::Error::other(error)))?;
        (started.data_dir, started.large, started.sync) = (data_dir, Some(large), sync);
        Ok(started)
    }

    fn start(
        name: &'static str,
        engine: Engine,
        clock: Arc<dyn Clock>,
        pipeline: CommitPipeline,
    ) -> Result<StoreBackend, BackendError> {
        let (inbox, messages) = flume::bounded(INBOX_BATCHES_MAX);
        let weak_inbox = inbox.downgrade();
        clock.on_jump(Box::new(move || {
            // If the inbox is full the engine is awake, and looks at the clock when it has read it.
            if let Some(inbox) = weak_inbox.upgrade() {
                let _ = inbox.try_send(Message::ClockJumped.into());
            }
        }));
        pipeline.wake_engine_through(inbox.downgrade());
        let shutdown = Shutdown { has_ended: Arc::new(AtomicBool::new(false)), inbox: messages.clone() };
        let shutdown_guard = ShutdownGuard(shutdown.clone());
        let in_flight = InFlight::default();
        let mut engine_loop =
            EngineLoop::new(engine, clock.clone(), messages.clone(), inbox.downgrade(), &in_flight, pipeline);
        engine_loop.start();
        let engine_cell = Arc::new(EngineCell::new(engine_loop, in_flight));
        let thread_cell = engine_cell.clone();
        let thread = std::thread::Builder::new()
            .name("geartrain-engine".into())
            .spawn(move || {
                let _shutdown_guard = shutdown_guard;
                thread_cell.run(&messages);
            })
            .map_err(|error| broken(name, error))?;
        Ok(StoreBackend {
            name,
            inbox,
            shutdown,
            engine_cell,
            thread: Some(thread),
            large: None,
            data_dir: Weak::new(),
            sync: None,
            clock,
        })
    }

    /// Copies the data directory, while work goes on, into a directory that must be empty or missing. The
    /// copy can be opened like the original. It has all that was acknowledged before the call, and maybe some
    /// of what comes meanwhile. If the backup fails, or the future is dropped, nothing is left behind.
    pub async fn backup(&self, to: &Path) -> Result<BackupSummary, OpenError> {
        let mut backup = self.begin_backup(BackupTarget::Directory(to.to_owned())).await?;
        loop {
            if let BackupStep::Done(summary) = backup.next_step().await? {
                return Ok(summary);
            }
        }
    }

    async fn begin_backup(&self, to: BackupTarget) -> Result<StoreBackup, OpenError> {
        let nothing = |why| OpenError::NothingKept { why };
        if self.large.is_none() {
            return Err(nothing("a memory: queue stores nothing on disk"));
        }
        let stopped = "the queue has been shut down";
        let jobs = self.ask(|slot| Message::CountJobs { slot }).await.map_err(|_| nothing(stopped))?;
        StoreBackup::start(self.data_dir.upgrade().ok_or(nothing(stopped))?, to, jobs)
    }

    /// Bytes of payloads in memory that count towards the limit: not those of recurring jobs, and 0 without a
    /// data directory.
    pub fn payload_bytes_in_memory(&self) -> u64 {
        self.data_dir.upgrade().map_or(0, |data_dir| data_dir.payload_bytes.load(Ordering::Relaxed))
    }

    /// Answers the queued messages, fails the parked pops, and refuses every later command.
    pub async fn shut_down(&self) {
        // If it has shut down already, that is what was wanted.
        let _ = self.ask(|slot| Message::Stop { slot: Some(slot) }).await;
    }

    async fn ask<T>(&self, message: impl FnOnce(Slot<T>) -> Message) -> Result<T, BackendError> {
        let (slot, answer) = flume::bounded(1);
        let stopped = || broken(self.name, StoreError::Stopped);
        self.inbox.send_async(self.engine_cell.envelope(message(slot))).await.map_err(|_| stopped())?;
        if self.shutdown.has_ended.load(Ordering::SeqCst) {
            self.shutdown.drain();
        }
        self.answer(answer).await
    }

    /// Writes the large payloads of a batch, then executes it.
    async fn execute_large(
        &self,
        large: &LargeWriter,
        batch: Vec<Call>,
    ) -> Result<Vec<Answer>, BackendError> {
        let written = large.write(batch).await;
        let (mut batch, files) = written.map_err(|failure| {
            // The files that a backup pins are worth more as free space.
            if failure.is_full()
                && let Some(data_dir) = self.data_dir.upgrade()
            {
                data_dir.backup_gate.cancel(DISK_FULL);
            }
            broken(self.name, failure)
        })?;
        batch.iter_mut().for_each(|call| call.command.unshare());
        let reply = self.ask(|slot| self.engine_cell.batch(batch, Some(files), slot)).await?;
        Ok(reply.take().answers)
    }

    async fn answer<T>(&self, answer: Receiver<Result<T, StoreError>>) -> Result<T, BackendError> {
        let answer = answer.recv_async().await;
        answer.unwrap_or(Err(StoreError::Stopped)).map_err(|failure| broken(self.name, failure))
    }

    /// Like [`ask`](StoreBackend::ask), for a reply that may be a refusal.
    async fn ask_for<T>(&self, message: impl FnOnce(RefusableSlot<T>) -> Message) -> Result<T, BackendError> {
        self.ask(message).await?.map_err(BackendError::Refused)
    }
}

impl Backend for StoreBackend {
    fn now(&self) -> Option<Timestamp> {
        Some(self.clock.now())
    }

    fn sync_mode(&self) -> Pending<'_, Option<String>> {
        let mode = self.sync.map_or_else(|| "none".to_owned(), |sync| sync.to_string());
        Box::pin(async { Ok(Some(mode)) })
    }

    fn measure(&self) -> Measures {
        self.data_dir.upgrade().map_or_else(Measures::default, |data_dir| data_dir.measure())
    }

    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        Box::pin(async move {
            if let Some(large) = &self.large
                && large.is_for(&batch)
            {
                return self.execute_large(large, batch).await;
            }
            let mut batch = batch;
            // On the caller's thread, to save the engine's time.
            batch.iter_mut().for_each(|call| call.command.unshare());
            let BatchReply { answers, spent_calls } =
                match self.engine_cell.try_run_inline(batch, &self.inbox) {
                    Ok(answer) => self.answer(answer).await?.take(),
                    Err(batch) => self.ask(|slot| self.engine_cell.batch(batch, None, slot)).await?.take(),
                };
            drop(spent_calls);
            Ok(answers)
        })
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        Box::pin(async move {
            let reply = self.ask(|slot| Message::ParkPop { pop, wait, slot }).await?;
            reply.take().map_err(BackendError::Refused)
        })
    }

    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        Box::pin(self.ask_for(move |slot| Message::AwaitReady { queues, wait, slot }))
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        Box::pin(self.ask_for(|slot| Message::Subscribe { after: None, slot }))
    }

    fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
        Box::pin(self.ask_for(move |slot| Message::Subscribe { after: Some(after), slot }))
    }

    fn ack_events(&self, position: u64) {
        // If the inbox is full the events are retained until the next acknowledgement.
        let _ = self.inbox.try_send(Message::AckEvents { position }.into());
    }

    fn open_result_stream(&self, stream_id: u64) -> Pending<'_, Box<dyn ResultStream>> {
        Box::pin(self.ask_for(move |slot| Message::OpenResultStream { stream_id, slot }))
    }

    fn backup(&self, to: BackupTarget) -> Pending<'_, Box<dyn Backup>> {
        Box::pin(async move {
            let begun = self.begin_backup(to).await.map_err(refusal)?;
            Ok(Box::new(begun) as Box<dyn Backup>)
        })
    }
}

impl Drop for StoreBackend {
    fn drop(&mut self) {
        let gate = self.data_dir.upgrade().map(|data_dir| data_dir.backup_gate.clone());
        // Before the process may end, because the backup removes what it has written.
        gate.iter().for_each(|gate| gate.end("the queue is closed"));
        // First, so that nothing is written any more when the directory is unlocked.
        self.large = None;
        if !self.shutdown.has_ended.load(Ordering::SeqCst) {
            // Behind all earlier messages, so those are answered first.
            let _ = self.inbox.send(Message::Stop { slot: None }.into());
        }
        if let Some(thread) = self.thread.take() {
            // If it panicked, its message was printed and every caller got an error; there is nothing to add
            // here.
            let _ = thread.join();
        }
    }
}

fn broken(backend: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> BackendError {
    BackendError::Broken { backend, source: Box::new(source) }
}

fn limits() -> Limits {
    Limits { hash_seed: random_u64(), ..Limits::default() }
}
