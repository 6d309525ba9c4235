//! The thread that writes the result log. The server never waits for the database: a batch that cannot be
//! written at once goes to the spool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flume::{Receiver, RecvTimeoutError, Sender};

use crate::spool::Spool;
use crate::sqlite::{Sqlite, spool_of};
use crate::{Batch, LogError, LogSize, LogTarget};

/// How many batches may wait in memory before `write` waits (back-pressure).
const BATCHES_MAX: usize = 2;
/// How long the database may be locked before a batch goes to the spool.
const BUSY_TIMEOUT: Duration = Duration::from_millis(250);
/// How often to retry a database that failed.
const RETRY_EVERY: Duration = Duration::from_millis(500);
/// How often to log that it still fails.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// How often to remove old rows; more often if the retention is shorter than that.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// How many rows are removed per transaction, and for how long before batches are written again.
const PRUNE_ROWS_MAX: usize = 500;
const PRUNE_TIME_MAX: Duration = Duration::from_millis(50);

/// Writes a result log on its own thread.
pub struct Recorder {
    batches: Option<Sender<Batch>>,
    durable: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Opens or creates a log, and returns the position up to which it has the queue's events. A new log has
    /// none: [`begin_after`](OpenedLog::begin_after) sets it.
    pub fn open(target: &LogTarget) -> Result<(OpenedLog, Option<u64>), LogError> {
        let mut database = Sqlite::open(target.file(), BUSY_TIMEOUT)?;
        let in_use = |error| match error {
            LogError::Busy { .. } => LogError::InUse { file: target.file().display().to_string() },
            other => other,
        };
        let spool = Spool::open(&spool_of(target.file())).map_err(in_use)?;
        // The spool is newer than the database.
        let position = match spool.position()? {
            Some(position) => Some(position),
            None => database.position()?,
        };
        Ok((OpenedLog { database, spool, retention: None }, position))
    }

    /// Hands a batch to the thread; waits while too many are pending. False if the thread has ended.
    pub async fn write(&self, batch: Batch) -> bool {
        match &self.batches {
            Some(batches) => batches.send_async(batch).await.is_ok(),
            None => false,
        }
    }

    /// The position up to which everything is durable, in the database or in the spool.
    pub fn durable_position(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Writes the pending batches and ends. What the database does not accept now stays in the spool.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes the result log panicked");
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

/// An open log, before its thread starts.
pub struct OpenedLog {
    database: Sqlite,
    spool: Spool,
    retention: Option<Duration>,
}

impl OpenedLog {
    /// Sets the position after which a new log begins.
    pub fn begin_after(&mut self, position: u64) -> Result<(), LogError> {
        self.database.write(&Batch { changes: Vec::new(), position })
    }

    /// How long ago an attempt may have ended before it is removed; without it, none is removed.
    pub fn set_retention(&mut self, retention: Option<Duration>) {
        self.retention = retention;
    }

    /// The size of the log.
    pub fn size(&self) -> Result<LogSize, LogError> {
        self.database.size()
    }

    #[cfg(test)]
    pub(crate) fn limit_spool(&mut self, bytes_max: u64) {
        self.spool.limit(bytes_max);
    }

    /// Starts to write.
    pub fn start(self) -> std::io::Result<Recorder> {
        let (sender, batches) = flume::bounded(BATCHES_MAX);
        let durable = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            database: self.database,
            spool: self.spool,
            batches,
            durable: durable.clone(),
            failing_since: None,
            retry_at: Instant::now(),
            warned_at: None,
            retention: self.retention,
            prune_at: self.retention.map(|_| Instant::now()),
        };
        let thread = std::thread::Builder::new().name("result-log".to_owned()).spawn(move || writer.run())?;
        Ok(Recorder { batches: Some(sender), durable, thread: Some(thread) })
    }
}

struct Writer {
    database: Sqlite,
    spool: Spool,
    batches: Receiver<Batch>,
    durable: Arc<AtomicU64>,
    /// Since when the database fails.
    failing_since: Option<Instant>,
    retry_at: Instant,
    /// When that was last logged.
    warned_at: Option<Instant>,
    retention: Option<Duration>,
    /// When to remove old rows; never, without retention.
    prune_at: Option<Instant>,
}

impl Writer {
    fn run(mut self) {
        loop {
            match self.next() {
                Ok(batch) => self.store(batch),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.spool.len() > 0 && Instant::now() >= self.retry_at {
                self.catch_up();
            }
            if self.prune_at.is_some_and(|at| at <= Instant::now()) {
                self.prune();
            }
        }
        while self.spool.len() > 0 && self.catch_up() {}
        self.spool.close();
    }

    /// The next batch; a timeout when the spool or the pruning is due.
    fn next(&self) -> Result<Batch, RecvTimeoutError> {
        let retry_at = (self.spool.len() > 0).then_some(self.retry_at);
        match retry_at.into_iter().chain(self.prune_at).min() {
            None => self.batches.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => self.batches.recv_deadline(deadline),
        }
    }

    /// Removes old rows for a limited time; the rest follows after the next batch.
    fn prune(&mut self) {
        let Some(retention) = self.retention else { return };
        let started = Instant::now();
        // The spool comes first.
        if self.spool.len() > 0 {
            self.prune_at = Some(started + PRUNE_EVERY);
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let before = now.as_secs_f64() - retention.as_secs_f64();
        let mut pause = PRUNE_EVERY.min(retention);
        loop {
            match self.database.prune(before, PRUNE_ROWS_MAX) {
                Ok(removed) if removed < PRUNE_ROWS_MAX => break,
                Ok(_) if started.elapsed() < PRUNE_TIME_MAX => {}
                // There are more. Other writers, such as workers, get a chance in between.
                Ok(_) => {
                    pause = PRUNE_TIME_MAX;
                    break;
                }
                Err(error) => {
                    self.warn(&error, "cannot remove old rows of the result log, trying again");
                    break;
                }
            }
        }
        self.prune_at = Some(Instant::now() + pause);
    }

    /// Stores a batch in the database or the spool. If both fail it is retried, and back-pressure reaches the
    /// queue's event log.
    fn store(&mut self, batch: Batch) {
        loop {
            match self.try_store(&batch) {
                Ok(()) => break self.durable.store(batch.position, Ordering::Release),
                Err(error) => self.warn(
                    &error,
                    "the result log cannot be written: events wait in the queue, as long as it retains them",
                ),
            }
            // A server that stops does not wait for a full disk: the queue retains the events.
            if self.batches.is_disconnected() {
                return;
            }
            std::thread::sleep(RETRY_EVERY);
            while self.spool.len() > 0 && self.catch_up() {}
        }
    }

    fn try_store(&mut self, batch: &Batch) -> Result<(), LogError> {
        if self.spool.len() == 0 {
            match self.database.write(batch) {
                Ok(()) => return Ok(()),
                Err(error) => self.database_failed(&error),
            }
        }
        self.spool.add(batch)
    }

    /// Moves the oldest batch from the spool to the database. False if that fails.
    fn catch_up(&mut self) -> bool {
        let done = match self.spool.first() {
            Ok(Some((id, batch))) => self.database.write(&batch).and_then(|()| self.spool.remove(id)),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => {
                if self.spool.len() == 0
                    && let Some(since) = self.failing_since.take()
                {
                    self.warned_at = None;
                    tracing::info!(after = ?since.elapsed(), "the result log has caught up: its spool is empty");
                }
                true
            }
            Err(error) => {
                self.database_failed(&error);
                false
            }
        }
    }

    fn database_failed(&mut self, error: &LogError) {
        self.retry_at = Instant::now() + RETRY_EVERY;
        self.failing_since.get_or_insert_with(Instant::now);
        self.warn(
            error,
            "cannot write to the database of the result log: batches go to the spool file beside it",
        );
    }

    /// Logs a problem, at most once per [`WARN_EVERY`].
    fn warn(&mut self, error: &LogError, message: &str) {
        if self.warned_at.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            self.warned_at = Some(Instant::now());
            tracing::warn!(%error, batches = self.spool.len(), "{message}");
        }
    }
}
