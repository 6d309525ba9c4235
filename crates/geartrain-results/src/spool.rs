//! Where batches wait while the database is away: a file beside it that only the server has.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use crate::size::create_private;
use crate::{Batch, LogError};

/// How many bytes may wait. Beyond that the events wait in the queue itself, as long as it keeps them.
const BYTES_MAX: u64 = 1 << 30;

/// Batches that wait for the database, in order.
pub(crate) struct Spool {
    connection: Connection,
    file: PathBuf,
    shown: String,
    bytes: u64,
    batches: u64,
    bytes_max: u64,
}

impl Spool {
    /// Opens the file, with what waits in it from before. Nobody else may have it.
    pub(crate) fn open(file: &Path) -> Result<Spool, LogError> {
        let shown = file.display().to_string();
        let wrong = LogError::of(&shown);
        // If it cannot be made, the database says why.
        let _ = create_private(file);
        let connection = Connection::open(file).map_err(&wrong)?;
        connection.busy_timeout(Duration::ZERO).map_err(&wrong)?;
        let ready = || {
            connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.execute_batch(
                "CREATE TABLE IF NOT EXISTS batches (id INTEGER PRIMARY KEY AUTOINCREMENT, position INTEGER NOT NULL, batch BLOB NOT NULL)",
            )?;
            connection.query_row("SELECT count(*), coalesce(sum(length(batch)), 0) FROM batches", [], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
            })
        };
        let (batches, bytes) = ready().map_err(wrong)?;
        let (bytes, batches) = (bytes.max(0) as u64, batches.max(0) as u64);
        Ok(Spool { connection, file: file.to_owned(), shown, bytes, batches, bytes_max: BYTES_MAX })
    }

    #[cfg(test)]
    pub(crate) fn limit(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// How many batches wait.
    pub(crate) fn len(&self) -> u64 {
        self.batches
    }

    /// The position of the last batch that waits.
    pub(crate) fn position(&self) -> Result<Option<u64>, LogError> {
        let last =
            self.connection.query_row("SELECT position FROM batches ORDER BY id DESC LIMIT 1", [], |row| {
                row.get::<_, i64>(0)
            });
        let last = last.optional().map_err(LogError::of(&self.shown))?;
        Ok(last.map(|position| position as u64))
    }

    /// Has a batch wait behind the others.
    pub(crate) fn add(&mut self, batch: &Batch) -> Result<(), LogError> {
        // With the names of its fields, so that a later version can read what an earlier one left.
        let packed = rmp_serde::to_vec_named(batch)
            .map_err(|source| LogError::Packing { file: self.shown.clone(), source })?;
        let bytes = packed.len() as u64;
        if self.bytes + bytes > self.bytes_max {
            return Err(LogError::Full { file: self.shown.clone(), bytes: self.bytes });
        }
        self.connection
            .prepare_cached("INSERT INTO batches (position, batch) VALUES (?, ?)")
            .and_then(|mut insert| insert.execute(params![batch.position as i64, packed]))
            .map_err(LogError::of(&self.shown))?;
        self.bytes += bytes;
        self.batches += 1;
        Ok(())
    }

    /// The batch that has waited longest, and what to call it.
    pub(crate) fn first(&self) -> Result<Option<(i64, Batch)>, LogError> {
        let first = self
            .connection
            .prepare_cached("SELECT id, batch FROM batches ORDER BY id LIMIT 1")
            .and_then(|mut first| {
                first.query_row([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?))).optional()
            })
            .map_err(LogError::of(&self.shown))?;
        let Some((id, packed)) = first else { return Ok(None) };
        let batch = rmp_serde::from_slice(&packed)
            .map_err(|source| LogError::Damaged { file: self.shown.clone(), source })?;
        Ok(Some((id, batch)))
    }

    /// A batch waits no longer.
    pub(crate) fn remove(&mut self, id: i64) -> Result<(), LogError> {
        let wrong = LogError::of(&self.shown);
        let bytes: i64 = self
            .connection
            .prepare_cached("DELETE FROM batches WHERE id = ? RETURNING length(batch)")
            .and_then(|mut delete| delete.query_row([id], |row| row.get(0)))
            .map_err(wrong)?;
        self.bytes = self.bytes.saturating_sub(bytes.max(0) as u64);
        self.batches = self.batches.saturating_sub(1);
        Ok(())
    }

    /// Closes the file, and leaves none behind if nothing waits in it.
    pub(crate) fn close(self) {
        let Spool { connection, file, batches, .. } = self;
        drop(connection);
        if batches == 0 {
            // Only tidiness: an empty one that stays does no harm.
            let _ = std::fs::remove_file(file);
        }
    }
}
