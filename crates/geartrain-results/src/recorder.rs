//! The thread that writes a log. Nobody waits for its database: what the database does not take at once waits in a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flume::{Receiver, RecvTimeoutError, Sender};

use crate::spool::Spool;
use crate::sqlite::{Sqlite, spool_of};
use crate::{Batch, Ledger, LogError, LogPlace, LogSize};

/// How many batches may wait in memory, before whoever brings them waits.
const IN_HAND_MAX: usize = 2;
/// How long the database may be locked before a batch goes to the file instead.
const PATIENCE: Duration = Duration::from_millis(250);
/// How often to try a database that was away.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// How often to say that it still is.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// How often to look for rows that are too old; more often if they are kept for less than that.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// How many of them are removed in one transaction, and how long that may go on before batches are written
/// again.
const PRUNE_ROWS: usize = 500;
const PRUNE_TIME: Duration = Duration::from_millis(50);

/// Writes a log, on a thread of its own.
pub struct Recorder {
    batches: Option<Sender<Batch>>,
    kept: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Opens a log, or makes it, and answers up to which position it knows the queue's events. If it knows of none, [`begin_after`](Opened::begin_after) says
    /// where it begins.
    pub fn open(place: &LogPlace) -> Result<(Opened, Option<u64>), LogError> {
        let mut ledger = Sqlite::open(place.file(), PATIENCE)?;
        let in_use = |error| match error {
            LogError::Busy { .. } => LogError::InUse { file: place.file().display().to_string() },
            other => other,
        };
        let spool = Spool::open(&spool_of(place.file())).map_err(in_use)?;
        // What waits is newer than what is written.
        let position = match spool.position()? {
            Some(position) => Some(position),
            None => ledger.position()?,
        };
        Ok((Opened { ledger: Box::new(ledger), spool, retention: None }, position))
    }

    /// Takes a batch. It waits for whoever takes it: do so where waiting hurts nobody. False if the thread is no longer there.
    pub async fn write(&self, batch: Batch) -> bool {
        match &self.batches {
            Some(batches) => batches.send_async(batch).await.is_ok(),
            None => false,
        }
    }

    /// The position up to which everything is kept, in the database or in the file where it waits for it.
    pub fn kept(&self) -> u64 {
        self.kept.load(Ordering::Acquire)
    }

    /// Writes what is at hand, and ends. What the database does not take now waits for the next time.
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

/// A log that is open, and not yet written.
pub struct Opened {
    ledger: Box<dyn Ledger>,
    spool: Spool,
    retention: Option<Duration>,
}

impl Opened {
    /// Begins a log that knows no events yet after a position.
    pub fn begin_after(&mut self, position: u64) -> Result<(), LogError> {
        self.ledger.write(&Batch { changes: Vec::new(), position })
    }

    /// Removes attempts that ended longer ago than this; without it, none are removed.
    pub fn set_retention(&mut self, retention: Option<Duration>) {
        self.retention = retention;
    }

    /// How large the log is.
    pub fn size(&mut self) -> Result<LogSize, LogError> {
        self.ledger.size()
    }

    #[cfg(test)]
    pub(crate) fn limit_waiting(&mut self, bytes_max: u64) {
        self.spool.limit(bytes_max);
    }

    /// Starts to write.
    pub fn record(self) -> std::io::Result<Recorder> {
        let (sender, batches) = flume::bounded(IN_HAND_MAX);
        let kept = Arc::new(AtomicU64::new(0));
        let writing = Writing {
            ledger: self.ledger,
            spool: self.spool,
            batches,
            kept: kept.clone(),
            away: None,
            again: Instant::now(),
            said: None,
            retention: self.retention,
            prune_at: self.retention.map(|_| Instant::now()),
        };
        let thread =
            std::thread::Builder::new().name("result-log".to_owned()).spawn(move || writing.run())?;
        Ok(Recorder { batches: Some(sender), kept, thread: Some(thread) })
    }
}

struct Writing {
    ledger: Box<dyn Ledger>,
    spool: Spool,
    batches: Receiver<Batch>,
    kept: Arc<AtomicU64>,
    /// Since when the database does not take what it is given.
    away: Option<Instant>,
    /// When to try it again.
    again: Instant,
    /// When that was last said.
    said: Option<Instant>,
    retention: Option<Duration>,
    /// When to look for rows that are too old; never, without retention.
    prune_at: Option<Instant>,
}

impl Writing {
    fn run(mut self) {
        loop {
            match self.next() {
                Ok(batch) => self.take(batch),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.spool.len() > 0 && Instant::now() >= self.again {
                self.catch_up();
            }
            if self.prune_at.is_some_and(|at| at <= Instant::now()) {
                self.prune();
            }
        }
        while self.spool.len() > 0 && self.catch_up() {}
        self.spool.close();
    }

    /// The next batch; or nothing, when it is time to see to those that wait.
    fn next(&self) -> Result<Batch, RecvTimeoutError> {
        let again = (self.spool.len() > 0).then_some(self.again);
        match again.into_iter().chain(self.prune_at).min() {
            None => self.batches.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(moment) => self.batches.recv_deadline(moment),
        }
    }

    /// Removes rows that are too old, for a while. What is left then has its turn after the next batch.
    fn prune(&mut self) {
        let Some(retention) = self.retention else { return };
        let begun = Instant::now();
        // What waits for the database comes first.
        if self.spool.len() > 0 {
            self.prune_at = Some(begun + PRUNE_EVERY);
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let before = now.as_secs_f64() - retention.as_secs_f64();
        let mut pause = PRUNE_EVERY.min(retention);
        loop {
            match self.ledger.prune(before, PRUNE_ROWS) {
                Ok(removed) if removed < PRUNE_ROWS => break,
                Ok(_) if begun.elapsed() < PRUNE_TIME => {}
                // There are more. Others that want to write, workers say, get a chance in between.
                Ok(_) => {
                    pause = PRUNE_TIME;
                    break;
                }
                Err(error) => {
                    self.complain(&error, "old rows of the result log cannot be removed now");
                    break;
                }
            }
        }
        self.prune_at = Some(Instant::now() + pause);
    }

    /// Keeps a batch, here or there. If there is room in neither place it waits, and so do those behind it, down to the queue itself.
    fn take(&mut self, batch: Batch) {
        loop {
            match self.keep(&batch) {
                Ok(()) => break self.kept.store(batch.position, Ordering::Release),
                Err(error) => self.complain(
                    &error,
                    "the result log cannot go on: what happens waits in the queue, as long as that keeps it",
                ),
            }
            // Whoever stops the server does not wait for a disk that is full: the queue keeps the events.
            if self.batches.is_disconnected() {
                return;
            }
            std::thread::sleep(TRY_AGAIN);
            while self.spool.len() > 0 && self.catch_up() {}
        }
    }

    fn keep(&mut self, batch: &Batch) -> Result<(), LogError> {
        if self.spool.len() == 0 {
            match self.ledger.write(batch) {
                Ok(()) => return Ok(()),
                Err(error) => self.is_away(&error),
            }
        }
        self.spool.add(batch)
    }

    /// Writes the batch that has waited longest. False if it waits still.
    fn catch_up(&mut self) -> bool {
        let done = match self.spool.first() {
            Ok(Some((id, batch))) => self.ledger.write(&batch).and_then(|()| self.spool.remove(id)),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => {
                if self.spool.len() == 0
                    && let Some(since) = self.away.take()
                {
                    self.said = None;
                    tracing::info!(away = ?since.elapsed(), "the result log has caught up");
                }
                true
            }
            Err(error) => {
                self.is_away(&error);
                false
            }
        }
    }

    fn is_away(&mut self, error: &LogError) {
        self.again = Instant::now() + TRY_AGAIN;
        self.away.get_or_insert_with(Instant::now);
        self.complain(
            error,
            "the database of the result log is away: what happens waits for it in a file beside it",
        );
    }

    /// Says what is wrong, but not all the time.
    fn complain(&mut self, error: &LogError, what: &str) {
        if self.said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
            self.said = Some(Instant::now());
            tracing::warn!(%error, batches = self.spool.len(), "{what}");
        }
    }
}
