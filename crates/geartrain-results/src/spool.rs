//! The spool: a file beside the database where batches wait while the database is locked or broken.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use crate::size::create_private;
use crate::{Batch, LogError};

/// The limit of the spool. Beyond it the events wait in the queue's event log, as long as that retains them.
const BYTES_MAX: u64 = 1 << 30;

/// Batches in order.
pub(crate) struct Spool {
    connection: Connection,
    file: PathBuf,
    shown: String,
    bytes: u64,
    batches: u64,
    bytes_max: u64,
}

impl Spool {
    /// Opens the file with the batches left in it, exclusively.
    pub(crate) fn open(file: &Path) -> Result<Spool, LogError> {
        let shown = file.display().to_string();
        let failed = LogError::of(&shown);
        // If this fails, SQLite reports the reason.
        let _ = create_private(file);
        let connection = Connection::open(file).map_err(&failed)?;
        connection.busy_timeout(Duration::ZERO).map_err(&failed)?;
        let ready = || {
            connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.execute_batch(
                "CREATE TABLE IF NOT EXISTS batches
                     (id INTEGER PRIMARY KEY AUTOINCREMENT, position INTEGER NOT NULL, batch BLOB NOT NULL)",
            )?;
            connection.query_row("SELECT count(*), coalesce(sum(length(batch)), 0) FROM batches", [], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
            })
        };
        let (batches, bytes) = ready().map_err(failed)?;
        let (bytes, batches) = (bytes.max(0) as u64, batches.max(0) as u64);
        Ok(Spool { connection, file: file.to_owned(), shown, bytes, batches, bytes_max: BYTES_MAX })
    }

    #[cfg(test)]
    pub(crate) fn limit(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// The number of batches.
    pub(crate) fn len(&self) -> u64 {
        self.batches
    }

    /// The position of the last batch.
    pub(crate) fn position(&self) -> Result<Option<u64>, LogError> {
        let last =
            self.connection.query_row("SELECT position FROM batches ORDER BY id DESC LIMIT 1", [], |row| {
                row.get::<_, i64>(0)
            });
        let last = last.optional().map_err(LogError::of(&self.shown))?;
        Ok(last.map(|position| position as u64))
    }

    /// Appends a batch.
    pub(crate) fn add(&mut self, batch: &Batch) -> Result<(), LogError> {
        // With field names, so that a later version can read the batches of an earlier one.
        let encoded = rmp_serde::to_vec_named(batch)
            .map_err(|source| LogError::Packing { file: self.shown.clone(), source })?;
        let bytes = encoded.len() as u64;
        if self.bytes + bytes > self.bytes_max {
            return Err(LogError::Full { file: self.shown.clone(), bytes: self.bytes });
        }
        self.connection
            .prepare_cached("INSERT INTO batches (position, batch) VALUES (?, ?)")
            .and_then(|mut insert| insert.execute(params![batch.position as i64, encoded]))
            .map_err(LogError::of(&self.shown))?;
        self.bytes += bytes;
        self.batches += 1;
        Ok(())
    }

    /// The oldest batch, with its id.
    pub(crate) fn first(&self) -> Result<Option<(i64, Batch)>, LogError> {
        let first = self
            .connection
            .prepare_cached("SELECT id, batch FROM batches ORDER BY id LIMIT 1")
            .and_then(|mut first| {
                first.query_row([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?))).optional()
            })
            .map_err(LogError::of(&self.shown))?;
        let Some((id, encoded)) = first else { return Ok(None) };
        let batch = rmp_serde::from_slice(&encoded)
            .map_err(|source| LogError::Damaged { file: self.shown.clone(), source })?;
        Ok(Some((id, batch)))
    }

    /// Removes a batch.
    pub(crate) fn remove(&mut self, id: i64) -> Result<(), LogError> {
        let failed = LogError::of(&self.shown);
        let bytes: i64 = self
            .connection
            .prepare_cached("DELETE FROM batches WHERE id = ? RETURNING length(batch)")
            .and_then(|mut delete| delete.query_row([id], |row| row.get(0)))
            .map_err(failed)?;
        self.bytes = self.bytes.saturating_sub(bytes.max(0) as u64);
        self.batches = self.batches.saturating_sub(1);
        Ok(())
    }

    /// Closes the file, and removes it if it is empty.
    pub(crate) fn close(self) {
        let Spool { connection, file, batches, .. } = self;
        drop(connection);
        if batches == 0 {
            // An empty file left behind does no harm.
            let _ = std::fs::remove_file(file);
        }
    }
}
