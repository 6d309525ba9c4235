//! A log as workers write it, and as people read it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use geartrain_core::{JobResult, Payload, Popped, Timestamp};
use rusqlite::{Row, named_params, params};

use crate::batch::{cut, cut_text};
use crate::sqlite::{NEXT_ATTEMPT, Sqlite, failures};
use crate::{Ending, Entry, Gap, Ledger, LogError, LogPlace, LogSize, Query};

/// How long somebody else may have the file locked.
const PATIENCE: Duration = Duration::from_secs(5);

/// A log, for workers that write down themselves what they do, and for whoever reads it.
///
/// A server that was started with a result log writes it too, and knows of every attempt; but what came out of a job it only knows if the queue keeps that. A worker
/// on the same machine may add it: there is one row for each attempt, whoever writes. Every call waits for the disk, and for others that write, up to 5
/// seconds; in an async program it belongs on a thread that may wait.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let place = std::env::temp_dir().join(format!("geartrain-results-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&place)?;
/// # let url = format!("sqlite:{}", place.join("results.db").display());
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
/// # std::fs::remove_dir_all(place)?;
/// # Ok(()) }) }
/// ```
pub struct ResultLog {
    sqlite: Mutex<Sqlite>,
}

impl ResultLog {
    /// Opens a log to write and read it, and makes it if there is none.
    pub fn open(url: &str) -> Result<ResultLog, LogError> {
        let place: LogPlace = url.parse()?;
        Ok(ResultLog::of(Sqlite::open(place.file(), PATIENCE)?))
    }

    /// Opens a log that is there.
    pub fn open_existing(place: &LogPlace) -> Result<ResultLog, LogError> {
        Ok(ResultLog::of(Sqlite::open_existing(place.file(), PATIENCE)?))
    }

    fn of(sqlite: Sqlite) -> ResultLog {
        ResultLog { sqlite: Mutex::new(sqlite) }
    }

    /// Writes down that a worker begins a job, now. Once more changes nothing.
    pub fn start(&self, job: &Popped) -> Result<(), LogError> {
        self.upsert(job, Report::Started)
    }

    /// Writes down that a worker has done a job, now, and what came out.
    pub fn completed(&self, job: &Popped, result: &[u8]) -> Result<(), LogError> {
        self.upsert(job, Report::Completed(result))
    }

    /// Writes down that a job failed in the hands of a worker, now, and why.
    pub fn failed(&self, job: &Popped, group: &str, message: &str) -> Result<(), LogError> {
        self.upsert(job, Report::Failed(group, message))
    }

    fn upsert(&self, job: &Popped, report: Report<'_>) -> Result<(), LogError> {
        let mut sqlite = self.sqlite();
        let Sqlite { connection, file } = &mut *sqlite;
        write(connection, job, report).map_err(LogError::of(file))
    }

    /// What the log says, oldest first; if that is more than may be, the newest of it.
    pub fn entries(&self, query: &Query) -> Result<Vec<Entry>, LogError> {
        let sqlite = self.sqlite();
        let wrong = LogError::of(&sqlite.file);
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
        let mut entries = read().map_err(wrong)?;
        entries.reverse();
        Ok(entries)
    }

    /// Where events were missed, noticed at a moment or later, the oldest first.
    pub fn gaps(&self, since: Option<Timestamp>) -> Result<Vec<Gap>, LogError> {
        let sqlite = self.sqlite();
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

    /// How large the log is. It takes no longer if it is larger.
    pub fn size(&self) -> Result<LogSize, LogError> {
        self.sqlite().size()
    }

    fn sqlite(&self) -> MutexGuard<'_, Sqlite> {
        // A transaction that panicked was rolled back.
        self.sqlite.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a worker says.
enum Report<'a> {
    Started,
    Completed(&'a [u8]),
    Failed(&'a str, &'a str),
}

fn write(connection: &mut rusqlite::Connection, job: &Popped, report: Report<'_>) -> rusqlite::Result<()> {
    let write = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let (jid, worker) = (job.jid.to_string(), job.lock.worker.as_str());
    let (token, now) = (job.lock.token.number() as i64, now());
    // A server that writes the same log may have been faster, and may not know the token.
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
    // How it ended the server knows better, if it said so.
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
    let moment = |place: usize| -> rusqlite::Result<Option<Timestamp>> {
        Ok(row.get::<_, Option<f64>>(place)?.and_then(|at| Timestamp::new(at).ok()))
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
        started: moment(5)?,
        ended: moment(6)?,
        ending: row.get::<_, Option<String>>(7)?.as_deref().and_then(Ending::of),
        group: row.get(8)?,
        message: row.get(9)?,
        outcome,
        result_bytes: row.get::<_, Option<i64>>(12)?.unwrap_or(0) as u64,
        exact: row.get(13)?,
    })
}
