//! The result log for workers that write it themselves, and for readers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use geartrain_core::{JobResult, Payload, Popped, Timestamp};
use parking_lot::Mutex;
use rusqlite::{Row, named_params, params};

use crate::batch::{cut, cut_text};
use crate::sqlite::{NEXT_ATTEMPT, Sqlite, failures};
use crate::{Ending, Entry, Gap, LogError, LogSize, LogTarget, Query};

/// How long another process may have the file locked.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// An open result log.
///
/// A server with `--result-log` writes every attempt, but has the result of a job only if the queue stores
/// it. A worker on the same machine may add it: both write to the same row of the attempt. Every call blocks
/// on the disk, and on other writers up to 5 seconds; in an async program it belongs on a blocking thread.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let directory = std::env::temp_dir().join(format!("geartrain-results-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
/// # let url = format!("sqlite:{}", directory.join("results.db").display());
/// use geartrain_results::{Ending, Query, ResultLog};
/// let client = geartrain::connect("memory:").await?;
/// let log = ResultLog::open(&url)?; // such as sqlite:./results.db
///
/// client.put("sums", "add", "[40,2]").jid("j1").await?;
/// let job = client.pop("sums", "worker-1").await?.expect("there is a job");
/// log.start(&job)?;
/// client.complete(&job).await?;
/// log.completed(&job, b"42")?;
///
/// let entries = log.entries(&Query { queue: Some("sums".to_owned()), ..Query::default() })?;
/// assert_eq!((entries[0].jid.as_str(), entries[0].ending), ("j1", Some(Ending::Completed)));
/// # drop(log);
/// # std::fs::remove_dir_all(directory)?;
/// # Ok(()) }) }
/// ```
pub struct ResultLog {
    sqlite: Mutex<Sqlite>,
}

impl ResultLog {
    /// Opens a log to write and read it, and creates it if it is missing.
    pub fn open(url: &str) -> Result<ResultLog, LogError> {
        let target: LogTarget = url.parse()?;
        Ok(ResultLog::of(Sqlite::open(target.file(), BUSY_TIMEOUT)?))
    }

    /// Opens an existing log.
    pub fn open_existing(target: &LogTarget) -> Result<ResultLog, LogError> {
        Ok(ResultLog::of(Sqlite::open_existing(target.file(), BUSY_TIMEOUT)?))
    }

    fn of(sqlite: Sqlite) -> ResultLog {
        ResultLog { sqlite: Mutex::new(sqlite) }
    }

    /// Records that a worker starts a job now. Idempotent.
    pub fn start(&self, job: &Popped) -> Result<(), LogError> {
        self.upsert(job, Report::Started)
    }

    /// Records that a worker completed a job now, with its result.
    pub fn completed(&self, job: &Popped, result: &[u8]) -> Result<(), LogError> {
        self.upsert(job, Report::Completed(result))
    }

    /// Records that a worker failed a job now.
    pub fn failed(&self, job: &Popped, group: &str, message: &str) -> Result<(), LogError> {
        self.upsert(job, Report::Failed(group, message))
    }

    fn upsert(&self, job: &Popped, report: Report<'_>) -> Result<(), LogError> {
        let mut sqlite = self.sqlite.lock();
        let Sqlite { connection, file } = &mut *sqlite;
        write(connection, job, report).map_err(LogError::of(file))
    }

    /// The newest entries that match a query, oldest first.
    pub fn entries(&self, query: &Query) -> Result<Vec<Entry>, LogError> {
        let sqlite = self.sqlite.lock();
        let failed_read = LogError::of(&sqlite.file);
        let failed = if query.failed { format!("AND outcome IN ({})", failures()) } else { String::new() };
        let read = || {
            let mut select = sqlite.connection.prepare(&format!(
                "SELECT jid, attempt, queue, klass, worker, started, ended, outcome, failure_group, message, code, result,
                     result_bytes, exact
                 FROM attempts
                 WHERE (:queue IS NULL OR queue = :queue) AND (:klass IS NULL OR klass = :klass) AND (:jid IS NULL OR jid = :jid)
                     AND coalesce(ended, started) >= :since {failed}
                 ORDER BY coalesce(ended, started) DESC, id DESC LIMIT :limit"
            ))?;
            let rows = select.query_map(
                named_params! {
                    ":queue": query.queue, ":klass": query.klass, ":jid": query.jid,
                    ":since": query.since.map_or(f64::MIN, Timestamp::get),
                    ":limit": i64::try_from(query.limit).unwrap_or(i64::MAX),
                },
                entry,
            )?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        };
        let mut entries = read().map_err(failed_read)?;
        entries.reverse();
        Ok(entries)
    }

    /// Gaps noticed since a time, oldest first.
    pub fn gaps(&self, since: Option<Timestamp>) -> Result<Vec<Gap>, LogError> {
        let sqlite = self.sqlite.lock();
        let read = || {
            let mut select = sqlite.connection.prepare(
                "SELECT after_position, before_position, noticed FROM gaps WHERE noticed >= ? ORDER BY id",
            )?;
            let rows = select.query_map([since.map_or(f64::MIN, Timestamp::get)], |row| {
                let (after, before) = (row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64);
                Ok(Gap { after, before, noticed: row.get(2)? })
            })?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        };
        read().map_err(LogError::of(&sqlite.file))
    }

    /// The size of the log, in constant time.
    pub fn size(&self) -> Result<LogSize, LogError> {
        self.sqlite.lock().size()
    }
}

enum Report<'a> {
    Started,
    Completed(&'a [u8]),
    Failed(&'a str, &'a str),
}

fn write(connection: &mut rusqlite::Connection, job: &Popped, report: Report<'_>) -> rusqlite::Result<()> {
    let write = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let (jid, worker) = (job.jid.to_string(), job.lock.worker.as_str());
    let (token, now) = (job.lock.token.number() as i64, now());
    // The server may have written the row first, without the token.
    let known = write.prepare_cached(
        "UPDATE attempts SET token = ?3 WHERE id = (SELECT id FROM attempts WHERE jid = ?1 AND worker = ?2
             AND attempt IS NOT NULL AND (token = ?3 OR token IS NULL) ORDER BY token IS NULL, attempt DESC LIMIT 1)",
    )?.execute(params![jid, worker, token])?;
    if known == 0 {
        write
            .prepare_cached(&format!(
                "INSERT INTO attempts (jid, worker, token, queue, klass, started, exact, attempt)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, {NEXT_ATTEMPT})"
            ))?
            .execute(params![
                jid,
                worker,
                token,
                job.queue.as_str(),
                job.klass.as_str(),
                matches!(report, Report::Started).then_some(now),
            ])?;
    }
    // The ending that the server wrote, if any, wins.
    let (ending, group, message) = match report {
        Report::Started => return write.commit(),
        Report::Completed(_) => (Ending::Completed, None, None),
        Report::Failed(group, message) => (Ending::Failed, Some(group), Some(cut_text(message))),
    };
    write.prepare_cached(
        "UPDATE attempts SET ended = max(?3, coalesce(started, 0)), outcome = ?4, failure_group = ?5, message = ?6
         WHERE jid = ?1 AND token = ?2 AND ended_position IS NULL",
    )?.execute(params![jid, token, now, ending.as_str(), group, message])?;
    if let Report::Completed(result) = report {
        write
            .prepare_cached(
                "UPDATE attempts SET code = 0, result = ?3, result_bytes = ?4 WHERE jid = ?1 AND token = ?2",
            )?
            .execute(params![jid, token, cut(result), result.len() as i64])?;
    }
    write.commit()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let time = |column: usize| -> rusqlite::Result<Option<Timestamp>> {
        Ok(row.get::<_, Option<f64>>(column)?.and_then(|at| Timestamp::new(at).ok()))
    };
    let outcome = match row.get::<_, Option<Vec<u8>>>(11)? {
        Some(bytes) => {
            Some(JobResult { code: row.get::<_, Option<i32>>(10)?.unwrap_or(0), bytes: Payload::from(bytes) })
        }
        None => None,
    };
    Ok(Entry {
        jid: row.get(0)?,
        attempt: row.get::<_, Option<i64>>(1)?.map(|attempt| attempt as u64),
        queue: row.get(2)?,
        klass: row.get(3)?,
        worker: row.get(4)?,
        started: time(5)?,
        ended: time(6)?,
        ending: row.get::<_, Option<String>>(7)?.as_deref().and_then(Ending::of),
        group: row.get(8)?,
        message: row.get(9)?,
        outcome,
        result_bytes: row.get::<_, Option<i64>>(12)?.unwrap_or(0) as u64,
        exact: row.get(13)?,
    })
}
