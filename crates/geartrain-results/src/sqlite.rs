//! The result log in SQLite: schema, writes and pruning.

use std::path::{Path, PathBuf};
use std::time::Duration;

use geartrain_core::Timestamp;
use rusqlite::{CachedStatement, Connection, OpenFlags, OptionalExtension, TransactionBehavior, params};

use crate::size::{bytes_of, create_private, with_suffix};
use crate::{Batch, Change, Ended, Ending, Gap, LogError, LogSize, ResultRecord, Started};

/// Identifies the file as a result log: `gtrl`.
const APPLICATION: i64 = 0x6774_726c;
/// The version of the schema.
const VERSION: i64 = 1;

const SCHEMA: &str = "
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY,
    jid TEXT NOT NULL,
    attempt INTEGER,
    queue TEXT,
    klass TEXT,
    worker TEXT,
    token INTEGER,
    started REAL,
    ended REAL,
    outcome TEXT,
    failure_group TEXT,
    message TEXT,
    code INTEGER,
    result BLOB,
    result_bytes INTEGER,
    exact INTEGER NOT NULL,
    started_position INTEGER,
    ended_position INTEGER,
    UNIQUE (jid, attempt)
);
CREATE INDEX attempts_by_moment ON attempts (coalesce(ended, started));
CREATE TABLE gaps (
    id INTEGER PRIMARY KEY,
    after_position INTEGER NOT NULL,
    before_position INTEGER NOT NULL,
    noticed REAL NOT NULL
);
CREATE TABLE cursor (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    position INTEGER NOT NULL
);
";

pub(crate) struct Sqlite {
    pub(crate) connection: Connection,
    pub(crate) file: String,
}

impl Sqlite {
    /// Opens a log to write, and creates it if it is missing. Each operation waits up to `busy_timeout` for a
    /// lock.
    pub(crate) fn open(file: &Path, busy_timeout: Duration) -> Result<Sqlite, LogError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // If this fails, SQLite reports the reason.
        let _ = create_private(file);
        let mut log = Sqlite::connect(file, flags, busy_timeout)?;
        if !log.is_known()? {
            log.create()?;
        }
        // Readers and the writer do not block each other, and commits survive a power cut.
        for (pragma, value) in [("journal_mode", "WAL"), ("synchronous", "FULL")] {
            log.connection.pragma_update(None, pragma, value).map_err(LogError::of(&log.file))?;
        }
        Ok(log)
    }

    /// Opens an existing log to read it.
    pub(crate) fn open_existing(file: &Path, busy_timeout: Duration) -> Result<Sqlite, LogError> {
        let shown = file.display().to_string();
        if !file.exists() {
            return Err(LogError::Missing { file: shown });
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let log = Sqlite::connect(file, flags, busy_timeout)?;
        if log.is_known()? { Ok(log) } else { Err(LogError::NotALog { file: shown }) }
    }

    fn connect(file: &Path, flags: OpenFlags, busy_timeout: Duration) -> Result<Sqlite, LogError> {
        let shown = file.display().to_string();
        let connection = Connection::open_with_flags(file, flags).map_err(LogError::of(&shown))?;
        connection.busy_timeout(busy_timeout).map_err(LogError::of(&shown))?;
        connection.set_prepared_statement_cache_capacity(32);
        Ok(Sqlite { connection, file: shown })
    }

    /// Whether this is a result log of a known version; false if the file is empty, an error if it is
    /// anything else.
    fn is_known(&self) -> Result<bool, LogError> {
        let failed = LogError::of(&self.file);
        let number =
            |pragma: &str| self.connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        let (application, version) =
            (number("application_id").map_err(&failed)?, number("user_version").map_err(&failed)?);
        let tables: i64 = self
            .connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
            .map_err(&failed)?;
        match (application, version) {
            (APPLICATION, VERSION) => Ok(true),
            (APPLICATION, version) if version > VERSION => {
                Err(LogError::Newer { file: self.file.clone(), version, known: VERSION })
            }
            (0, 0) if tables == 0 => Ok(false),
            _ => Err(LogError::NotALog { file: self.file.clone() }),
        }
    }

    fn create(&mut self) -> Result<(), LogError> {
        let file = self.file.clone();
        let failed = LogError::of(&file);
        // So that the file can shrink after rows were removed. It only takes effect before the first table is
        // created.
        self.connection.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(&failed)?;
        let create =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&failed)?;
        // Another process may have created it meanwhile.
        let tables: i64 =
            create.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(&failed)?;
        if tables == 0 {
            create.execute_batch(SCHEMA).map_err(&failed)?;
            create.pragma_update(None, "application_id", APPLICATION).map_err(&failed)?;
            create.pragma_update(None, "user_version", VERSION).map_err(&failed)?;
        }
        create.commit().map_err(&failed)?;
        self.is_known().map(|_| ())
    }
}

impl Sqlite {
    /// The position up to which the log has the queue's events; none if it is new.
    pub(crate) fn position(&mut self) -> Result<Option<u64>, LogError> {
        position(&self.connection).map_err(LogError::of(&self.file))
    }

    /// Adds a batch and its position in one transaction. Changes that are already stored are skipped, so that
    /// a batch may be written twice.
    pub(crate) fn write(&mut self, batch: &Batch) -> Result<(), LogError> {
        let Sqlite { connection, file } = self;
        write(connection, batch).map_err(LogError::of(file))
    }

    /// Removes attempts that ended, and gaps noticed, before a time in seconds since the epoch: the oldest
    /// first and at most `rows_max`, so that writes do not wait long. Returns how many were removed.
    pub(crate) fn prune(&mut self, before: f64, rows_max: usize) -> Result<usize, LogError> {
        let Sqlite { connection, file } = self;
        prune(connection, before, rows_max).map_err(LogError::of(file))
    }

    pub(crate) fn size(&self) -> Result<LogSize, LogError> {
        let number = |pragma| self.connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        let read = || -> rusqlite::Result<(i64, Option<f64>)> {
            let oldest = self.connection.query_row(
                "SELECT coalesce(ended, started) FROM attempts
                 WHERE coalesce(ended, started) IS NOT NULL ORDER BY coalesce(ended, started) LIMIT 1",
                [],
                |row| row.get::<_, f64>(0),
            );
            Ok((number("freelist_count")? * number("page_size")?, oldest.optional()?))
        };
        let (free, oldest) = read().map_err(LogError::of(&self.file))?;
        Ok(LogSize {
            bytes: bytes_of(Path::new(&self.file)),
            free_bytes: free.max(0) as u64,
            oldest: oldest.and_then(|at| Timestamp::new(at).ok()),
        })
    }
}

/// How many pages are returned to the file system after each batch of removed rows.
const PAGES_RELEASED_MAX: usize = 1_000;

fn prune(connection: &mut Connection, before: f64, rows_max: usize) -> rusqlite::Result<usize> {
    let all = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // A running attempt stays, however long ago it started.
    let attempts = all
        .prepare_cached(
            "DELETE FROM attempts WHERE id IN (SELECT id FROM attempts
                 WHERE coalesce(ended, started) < ?1 AND ended IS NOT NULL
                 ORDER BY coalesce(ended, started) LIMIT ?2)",
        )?
        .execute(params![before, rows_max as i64])?;
    let gaps = all
        .prepare_cached("DELETE FROM gaps WHERE id IN (SELECT id FROM gaps WHERE noticed < ?1 LIMIT ?2)")?
        .execute(params![before, rows_max.saturating_sub(attempts) as i64])?;
    all.commit()?;
    if attempts > 0 {
        // Has no effect on a log created by an earlier version: there the space is reused, but the file does
        // not shrink.
        connection.prepare(&format!("PRAGMA incremental_vacuum({PAGES_RELEASED_MAX})"))?.query([]).and_then(
            |mut pages| {
                while pages.next()?.is_some() {}
                Ok(())
            },
        )?;
    }
    Ok(attempts + gaps)
}

fn position(connection: &Connection) -> rusqlite::Result<Option<u64>> {
    let known =
        connection.prepare_cached("SELECT position FROM cursor")?.query_row([], |row| row.get::<_, i64>(0));
    Ok(known.optional()?.map(|position| position as u64))
}

fn write(connection: &mut Connection, batch: &Batch) -> rusqlite::Result<()> {
    let all = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let known = position(&all)?;
        let mut at = known;
        let mut statements = Statements::prepare(&all)?;
        for change in &batch.changes {
            let position = match change {
                Change::Gap(gap) => {
                    // A gap that is already stored does not begin at the current position.
                    if at == Some(gap.after) {
                        statements.gap(gap)?;
                        at = Some(gap.before.saturating_sub(1));
                    }
                    continue;
                }
                Change::Started(started) => started.position,
                Change::Ended(ended) => ended.position,
                Change::Result(result) => result.position,
            };
            if at.is_some_and(|at| position <= at) {
                continue;
            }
            match change {
                Change::Started(started) => statements.started(started)?,
                Change::Ended(ended) if ended.attempted => statements.ended(ended)?,
                Change::Ended(ended) => statements.ended_unattempted(ended)?,
                Change::Result(result) => statements.set_result(result)?,
                Change::Gap(_) => {}
            }
        }
        let to = at.map_or(batch.position, |at| at.max(batch.position));
        if known != Some(to) {
            all.prepare_cached(
                "INSERT INTO cursor VALUES (1, ?) ON CONFLICT DO UPDATE SET position = excluded.position",
            )?
            .execute([to as i64])?;
        }
    }
    all.commit()
}

struct Statements<'a> {
    known: CachedStatement<'a>,
    settle: CachedStatement<'a>,
    adopt: CachedStatement<'a>,
    start: CachedStatement<'a>,
    end: CachedStatement<'a>,
    warn: CachedStatement<'a>,
    insert_ended: CachedStatement<'a>,
    result: CachedStatement<'a>,
    gap: CachedStatement<'a>,
}

/// The number of the next attempt at a job.
pub(crate) const NEXT_ATTEMPT: &str = "(SELECT coalesce(max(attempt), 0) + 1 FROM attempts WHERE jid = ?1)";

impl<'a> Statements<'a> {
    fn prepare(connection: &'a Connection) -> rusqlite::Result<Statements<'a>> {
        let prepare = |sql: &str| connection.prepare_cached(sql);
        Ok(Statements {
            known: prepare("SELECT 1 FROM attempts WHERE jid = ?1 LIMIT 1")?,
            // Only one worker holds a job, so an earlier attempt without an end was lost.
            settle: prepare(
                "UPDATE attempts SET outcome = 'lost', ended = max(coalesce(ended, ?2), coalesce(started, 0)),
                     ended_position = ?3
                 WHERE jid = ?1 AND started_position IS NOT NULL AND ended_position IS NULL",
            )?,
            // The worker wrote this attempt itself: same token, or, if that is not known, started at about
            // the same time.
            adopt: prepare(
                "UPDATE attempts SET started_position = ?3, queue = ?4, klass = coalesce(klass, ?5)
                 WHERE id = (SELECT id FROM attempts WHERE jid = ?1 AND worker = ?2 AND attempt IS NOT NULL
                     AND started_position IS NULL AND ended_position IS NULL
                     AND CASE WHEN ?6 IS NULL THEN abs(started - ?7) < 2 ELSE token = ?6 END
                     ORDER BY attempt DESC LIMIT 1)",
            )?,
            start: prepare(&format!(
                "INSERT INTO attempts (jid, worker, started_position, queue, klass, token, started, exact, attempt)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, {NEXT_ATTEMPT})"
            ))?,
            end: prepare(
                "UPDATE attempts SET outcome = ?3,
                     ended = max(CASE ?3 WHEN 'lost' THEN coalesce(ended, ?4) ELSE ?4 END, coalesce(started, 0)),
                     exact = min(exact, ?5), ended_position = ?6, failure_group = ?7, message = ?8,
                     queue = coalesce(queue, ?9), klass = coalesce(klass, ?10)
                 WHERE id = (SELECT id FROM attempts WHERE jid = ?1 AND attempt IS NOT NULL AND ended_position IS NULL
                     AND (started_position IS NOT NULL OR worker = ?2)
                     ORDER BY started_position IS NULL, attempt DESC LIMIT 1)",
            )?,
            warn: prepare(
                "UPDATE attempts SET outcome = 'lost', ended = max(?3, coalesce(started, 0)), exact = min(exact, ?4)
                 WHERE jid = ?1 AND worker = ?2 AND started_position IS NOT NULL AND ended_position IS NULL",
            )?,
            insert_ended: prepare(&format!(
                "INSERT INTO attempts (jid, worker, outcome, ended, exact, ended_position, failure_group, message, queue,
                     klass, started, attempt)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, CASE WHEN ?12 THEN {NEXT_ATTEMPT} END)"
            ))?,
            result: prepare(
                "UPDATE attempts SET code = ?2, result = ?3, result_bytes = ?4
                 WHERE id = (SELECT id FROM attempts WHERE jid = ?1 AND ended_position IS NOT NULL
                     ORDER BY ended_position DESC LIMIT 1)",
            )?,
            gap: prepare("INSERT INTO gaps (after_position, before_position, noticed) VALUES (?1, ?2, ?3)")?,
        })
    }

    fn started(&mut self, started: &Started) -> rusqlite::Result<()> {
        let jid = started.jid.to_string();
        let (worker, queue) = (started.worker.as_str(), started.queue.as_str());
        let (position, token) = (started.position as i64, started.token.map(|token| token as i64));
        let klass = started.klass.as_ref().map(|klass| klass.as_str());
        // Most jobs complete at the first attempt, with nothing to settle.
        let mut adopted = 0;
        if self.known.exists([&jid])? {
            self.settle.execute(params![jid, started.at, position])?;
            adopted = self.adopt.execute(params![jid, worker, position, queue, klass, token, started.at])?;
        }
        if adopted == 0 {
            self.start.execute(params![
                jid,
                worker,
                position,
                queue,
                klass,
                token,
                started.at,
                started.exact
            ])?;
        }
        Ok(())
    }

    fn ended(&mut self, ended: &Ended) -> rusqlite::Result<()> {
        let jid = ended.jid.to_string();
        let worker = ended.worker.as_ref().map(|worker| worker.as_str());
        if !ended.settled {
            self.warn.execute(params![jid, worker, ended.at, ended.exact])?;
            return Ok(());
        }
        let found = self.end.execute(params![
            jid,
            worker,
            ended.ending.as_str(),
            ended.at,
            ended.exact,
            ended.position as i64,
            ended.group,
            ended.message,
            ended.queue.as_ref().map(|queue| queue.as_str()),
            ended.klass.as_ref().map(|klass| klass.as_str()),
        ])?;
        if found == 0 { self.insert_ended(ended) } else { Ok(()) }
    }

    /// The job ended while no worker held it.
    fn ended_unattempted(&mut self, ended: &Ended) -> rusqlite::Result<()> {
        self.settle.execute(params![ended.jid.to_string(), ended.at, ended.position as i64])?;
        self.insert_ended(ended)
    }

    fn insert_ended(&mut self, ended: &Ended) -> rusqlite::Result<()> {
        self.insert_ended.execute(params![
            ended.jid.to_string(),
            ended.worker.as_ref().filter(|_| ended.attempted).map(|worker| worker.as_str()),
            ended.ending.as_str(),
            ended.at,
            ended.exact,
            ended.position as i64,
            ended.group,
            ended.message,
            ended.queue.as_ref().map(|queue| queue.as_str()),
            ended.klass.as_ref().map(|klass| klass.as_str()),
            ended.started.filter(|_| ended.attempted),
            ended.attempted,
        ])?;
        Ok(())
    }

    fn set_result(&mut self, result: &ResultRecord) -> rusqlite::Result<()> {
        let jid = result.jid.to_string();
        self.result.execute(params![jid, result.code, result.bytes, result.length as i64])?;
        Ok(())
    }

    fn gap(&mut self, gap: &Gap) -> rusqlite::Result<()> {
        self.gap.execute(params![gap.after as i64, gap.before as i64, gap.noticed])?;
        Ok(())
    }
}

/// The endings that are failures, as an SQL list.
pub(crate) fn failures() -> String {
    let endings = Ending::ALL.into_iter().filter(|ending| ending.is_failure());
    endings.map(|ending| format!("'{}'", ending.as_str())).collect::<Vec<_>>().join(", ")
}

/// The spool file of a log.
pub(crate) fn spool_of(file: &Path) -> PathBuf {
    with_suffix(file, "-spool")
}
