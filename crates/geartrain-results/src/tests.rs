//! The result log: writing, a locked database, retention, and reading.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{
    Event, HistoryEntry, HistoryEvent, Jid, Job, Klass, Popped, PositionedEvent, QueueName, Timestamp,
    WorkerName,
};
use geartrain_testkit::peers::{Scratch, until};
use pollster::block_on;
use rusqlite::{Connection, TransactionBehavior};

use crate::{
    Batch, Change, Ended, Ending, Entry, Gap, LogError, LogTarget, Query, RESULT_BYTES_MAX, ReceivedEvent,
    Recorder, ResultLog, ResultRecord, Started, changes, sqlite::Sqlite,
};

fn file(scratch: &Scratch) -> PathBuf {
    scratch.path().join("results.db")
}

fn target(scratch: &Scratch) -> LogTarget {
    format!("sqlite:{}", file(scratch).display()).parse().unwrap()
}

fn entries(scratch: &Scratch) -> Vec<Entry> {
    let query = Query { limit: 1_000_000, ..Query::default() };
    ResultLog::open_existing(&target(scratch)).unwrap().entries(&query).unwrap()
}

fn jid(number: u64) -> Jid {
    Jid::new(format!("j{number}")).unwrap()
}

fn started(position: u64, number: u64) -> Change {
    Change::Started(Started {
        position,
        jid: jid(number),
        queue: QueueName::new("mail").unwrap(),
        klass: Some(Klass::new("welcome").unwrap()),
        worker: WorkerName::new("w1").unwrap(),
        token: None,
        at: 1_000.0 + position as f64,
        exact: true,
    })
}

fn ended(position: u64, number: u64, ending: Ending) -> Change {
    Change::Ended(Ended {
        position,
        jid: jid(number),
        queue: Some(QueueName::new("mail").unwrap()),
        klass: None,
        worker: None,
        started: None,
        at: 1_000.0 + position as f64,
        exact: true,
        ending,
        attempted: true,
        settled: true,
        group: None,
        message: None,
    })
}

/// One attempt at one job: positions 2n and 2n + 1.
fn attempt(number: u64) -> Batch {
    let changes = vec![started(2 * number, number), ended(2 * number + 1, number, Ending::Completed)];
    Batch { changes, position: 2 * number + 1 }
}

fn open(scratch: &Scratch) -> Sqlite {
    Sqlite::open(&file(scratch), Duration::ZERO).unwrap()
}

#[test]
fn a_repeated_batch_is_not_written_twice() {
    let scratch = Scratch::new("log");
    let mut log = open(&scratch);
    assert_eq!(log.position().unwrap(), None);
    for _ in 0..2 {
        (1..=3).for_each(|number| log.write(&attempt(number)).unwrap());
    }
    // A batch that is partly stored already.
    let both = Batch { changes: [attempt(3).changes, attempt(4).changes].concat(), position: 9 };
    log.write(&both).unwrap();
    assert_eq!(log.position().unwrap(), Some(9));
    let entries = entries(&scratch);
    let found: Vec<_> =
        entries.iter().map(|entry| (entry.jid.as_str(), entry.attempt, entry.ending)).collect();
    let done = Some(Ending::Completed);
    assert_eq!(
        found,
        [("j1", Some(1), done), ("j2", Some(1), done), ("j3", Some(1), done), ("j4", Some(1), done)]
    );
}

#[test]
fn an_attempt_without_an_end_is_lost_when_the_next_one_starts() {
    let scratch = Scratch::new("log");
    let mut log = open(&scratch);
    let warned = match ended(2, 1, Ending::Lost) {
        Change::Ended(ended) => {
            Change::Ended(Ended { settled: false, worker: Some(WorkerName::new("w1").unwrap()), ..ended })
        }
        other => other,
    };
    // Warned, but back in time; then lost; then completed.
    let changes = vec![
        started(1, 1),
        warned,
        ended(3, 1, Ending::Retried),
        started(4, 1),
        started(5, 1),
        ended(6, 1, Ending::Completed),
    ];
    log.write(&Batch { changes, position: 6 }).unwrap();
    let found: Vec<_> = entries(&scratch).iter().map(|entry| (entry.attempt, entry.ending)).collect();
    assert_eq!(
        found,
        [(Some(1), Some(Ending::Retried)), (Some(2), Some(Ending::Lost)), (Some(3), Some(Ending::Completed))]
    );
}

#[test]
fn a_gap_is_written_once_and_the_log_continues_after_it() {
    let scratch = Scratch::new("log");
    let mut log = open(&scratch);
    log.write(&attempt(10)).unwrap();
    let gap = |after, before| Batch {
        changes: vec![Change::Gap(Gap { after, before, noticed: 5.0 })],
        position: before - 1,
    };
    let forwards = gap(21, 40);
    (0..2).for_each(|_| log.write(&forwards).unwrap());
    assert_eq!(log.position().unwrap(), Some(39));
    log.write(&attempt(20)).unwrap();
    // A queue that was emptied counts from the beginning.
    let backwards = gap(41, 2);
    log.write(&backwards).unwrap();
    assert_eq!(log.position().unwrap(), Some(1));
    log.write(&attempt(1)).unwrap();
    log.write(&backwards).unwrap();
    log.write(&attempt(1)).unwrap();
    let read = ResultLog::open_existing(&target(&scratch)).unwrap();
    let missing: Vec<_> = read.gaps(None).unwrap().iter().map(Gap::missing_max).collect();
    assert_eq!(missing, [Some(18), None]);
    assert_eq!(read.gaps(Some(Timestamp::new(6.0).unwrap())).unwrap(), []);
    assert_eq!(entries(&scratch).len(), 3);
}

#[test]
fn batches_survive_in_the_spool_while_the_database_is_locked() {
    let scratch = Scratch::new("log");
    let (mut opened, known) = Recorder::open(&target(&scratch)).unwrap();
    assert_eq!(known, None);
    opened.begin_after(1).unwrap();
    let mut lock = Connection::open(file(&scratch)).unwrap();
    let held = lock.transaction_with_behavior(TransactionBehavior::Exclusive).unwrap();
    let recorder = opened.start().unwrap();
    for number in 1..=50 {
        assert!(block_on(recorder.write(attempt(number))));
    }
    until("every batch is durable", || recorder.durable_position() == 101);
    recorder.close();
    assert_eq!(entries(&scratch), []);

    let (opened, known) = Recorder::open(&target(&scratch)).unwrap();
    assert_eq!(known, Some(101));
    let recorder = opened.start().unwrap();
    assert!(block_on(recorder.write(attempt(51))));
    held.rollback().unwrap();
    until("every batch is written", || entries(&scratch).len() == 51);
    recorder.close();
    assert!(!scratch.path().join("results.db-spool").exists());
    assert!(entries(&scratch).iter().all(|entry| entry.attempt == Some(1)));
}

#[test]
fn a_full_spool_applies_back_pressure_and_loses_nothing() {
    let scratch = Scratch::new("log");
    let (mut opened, _) = Recorder::open(&target(&scratch)).unwrap();
    opened.limit_spool(1_000);
    let mut lock = Connection::open(file(&scratch)).unwrap();
    let held = lock.transaction_with_behavior(TransactionBehavior::Exclusive).unwrap();
    let recorder = Arc::new(opened.start().unwrap());
    let writer = recorder.clone();
    let writing = std::thread::spawn(move || (1..=50).all(|number| block_on(writer.write(attempt(number)))));
    until("some batches are in the spool", || recorder.durable_position() > 0);
    // The caller waits.
    assert!(!writing.is_finished() && recorder.durable_position() < 101);
    held.rollback().unwrap();
    assert!(writing.join().unwrap());
    until("every batch is written", || entries(&scratch).len() == 50);
}

#[test]
fn a_second_recorder_is_refused() {
    let scratch = Scratch::new("log");
    let first = Recorder::open(&target(&scratch)).unwrap();
    assert!(matches!(Recorder::open(&target(&scratch)), Err(LogError::InUse { .. })));
    drop(first);
    assert!(Recorder::open(&target(&scratch)).is_ok());
}

#[test]
fn a_file_that_is_no_result_log_is_not_changed() {
    let scratch = Scratch::new("log");
    let missing = ResultLog::open_existing(&target(&scratch)).err().unwrap();
    assert!(matches!(missing, LogError::Missing { .. }), "{missing}");
    assert!(!file(&scratch).exists());

    std::fs::write(file(&scratch), "this is a letter, and no database of any kind at all").unwrap();
    let letter = ResultLog::open(&target(&scratch).to_string()).err().unwrap();
    assert!(matches!(letter, LogError::NotALog { .. }), "{letter}");
    std::fs::remove_file(file(&scratch)).unwrap();

    Connection::open(file(&scratch)).unwrap().execute_batch("CREATE TABLE letters (text)").unwrap();
    let before = std::fs::read(file(&scratch)).unwrap();
    let other = ResultLog::open(&target(&scratch).to_string()).err().unwrap();
    assert!(matches!(other, LogError::NotALog { .. }), "{other}");
    assert_eq!(std::fs::read(file(&scratch)).unwrap(), before);
    std::fs::remove_file(file(&scratch)).unwrap();

    drop(open(&scratch));
    Connection::open(file(&scratch)).unwrap().pragma_update(None, "user_version", 2).unwrap();
    let newer = ResultLog::open_existing(&target(&scratch)).err().unwrap();
    assert!(matches!(newer, LogError::Newer { version: 2, .. }), "{newer}");

    for url in ["", "results.db", "sqlite:", "postgres://host/db", "sqlite://host/x"] {
        assert!(matches!(url.parse::<LogTarget>(), Err(LogError::Url { .. })), "{url}");
    }
}

#[test]
fn workers_write_attempts_and_queries_find_them() {
    let scratch = Scratch::new("log");
    let log = ResultLog::open(&target(&scratch).to_string()).unwrap();
    let client = block_on(geartrain::connect("memory:")).unwrap();
    let pop = |queue: &str, number: u64| -> Popped {
        block_on(async { client.put(queue, "welcome", "{}").jid(&jid(number).to_string()).await }).unwrap();
        block_on(client.pop(queue, "w1")).unwrap().unwrap()
    };
    let (completed, failed, running) = (pop("mail", 1), pop("mail", 2), pop("other", 3));
    for job in [&completed, &failed, &running] {
        log.start(job).unwrap();
    }
    log.completed(&completed, &vec![7; RESULT_BYTES_MAX + 1]).unwrap();
    log.failed(&failed, "smtp", "it said 451").unwrap();
    // Its start was not recorded.
    let not_started = pop("mail", 4);
    log.completed(&not_started, b"42").unwrap();

    let find = |query: Query| -> Vec<String> {
        log.entries(&query).unwrap().into_iter().map(|entry| entry.jid).collect()
    };
    let query = Query::default;
    let mut all = find(query());
    all.sort_unstable();
    assert_eq!(all, ["j1", "j2", "j3", "j4"]);
    assert_eq!(find(Query { queue: Some("other".to_owned()), ..query() }), ["j3"]);
    assert_eq!(find(Query { failed: true, ..query() }), ["j2"]);
    assert_eq!(find(Query { jid: Some("j4".to_owned()), ..query() }), ["j4"]);
    assert_eq!(find(Query { limit: 1, ..query() }), ["j4"]);
    assert_eq!(find(Query { klass: Some("goodbye".to_owned()), ..query() }), Vec::<String>::new());
    let later = Timestamp::new(1e10).unwrap();
    assert_eq!(find(Query { since: Some(later), ..query() }), Vec::<String>::new());

    let entry = |number: u64| {
        log.entries(&Query { jid: Some(jid(number).to_string()), ..query() }).unwrap().remove(0)
    };
    assert!(entry(1).is_cut() && entry(1).result_bytes == RESULT_BYTES_MAX as u64 + 1);
    assert_eq!(entry(1).outcome.unwrap().bytes.bytes().len(), RESULT_BYTES_MAX);
    assert_eq!((entry(3).ending, entry(3).ended), (None, None));
    assert_eq!((entry(4).started, entry(4).ending), (None, Some(Ending::Completed)));
}

#[test]
fn a_time_combines_the_history_and_the_receive_time() {
    let at = |seconds: f64| Timestamp::new(seconds).unwrap();
    let (queue, worker) = (QueueName::new("mail").unwrap(), WorkerName::new("w1").unwrap());
    let client = block_on(geartrain::connect("memory:")).unwrap();
    block_on(async { client.put("mail", "welcome", "{}").jid("j1").await }).unwrap();
    let job = block_on(client.get(&jid(1))).unwrap().unwrap();
    let popped =
        |when: f64| HistoryEntry { when: at(when), what: HistoryEvent::Popped { worker: worker.clone() } };
    let received = |position, at| ReceivedEvent {
        published: PositionedEvent {
            position,
            event: Arc::new(Event::Popped { jid: jid(1), queue: queue.clone(), worker: worker.clone() }),
            at: None,
        },
        at,
    };
    let times = |history: Vec<HistoryEntry>, events: &[ReceivedEvent]| -> Vec<(f64, bool)> {
        let jobs = HashMap::from([(jid(1), Job { history, ..job.clone() })]);
        let batch = changes(events, &jobs, &HashMap::new(), &HashMap::new());
        let times = batch.changes.iter().map(|change| match change {
            Change::Started(started) => (started.at, started.exact),
            other => panic!("{other:?}"),
        });
        times.collect()
    };
    // In the same second, the receive time; later, the second of the history; without a history, the receive
    // time.
    assert_eq!(times(vec![popped(10.0)], &[received(1, at(10.7))]), [(10.7, true)]);
    assert_eq!(times(vec![popped(10.0)], &[received(1, at(95.5))]), [(10.0, true)]);
    assert_eq!(times(vec![], &[received(1, at(95.5))]), [(95.5, false)]);
    // Entries older than the log are at the beginning of a history, and are skipped.
    let history = vec![popped(5.0), popped(10.0), popped(20.0)];
    assert_eq!(times(history, &[received(1, at(95.5)), received(2, at(95.6))]), [(10.0, true), (20.0, true)]);
}

/// A log with `rows` attempts that ended an hour ago, as many that ended just now, and one that started an
/// hour ago and is still running.
fn filled(scratch: &Scratch, rows: u64) -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let mut log = Sqlite::open(&file(scratch), Duration::from_secs(5)).unwrap();
    let mut changes = Vec::new();
    for number in 0..2 * rows {
        let Change::Ended(mut ended) = ended(number + 1, number, Ending::Completed) else { panic!() };
        ended.at = if number < rows { now - 3_600.0 } else { now };
        ended.message = Some("x".repeat(1_000));
        changes.push(Change::Ended(ended));
    }
    let Change::Started(mut running) = started(2 * rows + 1, 2 * rows) else { panic!() };
    running.at = now - 3_600.0;
    changes.push(Change::Started(running));
    changes.push(Change::Gap(Gap { after: 1, before: 2, noticed: now - 3_600.0 }));
    log.write(&Batch { changes, position: 2 * rows + 2 }).unwrap();
    now
}

#[test]
fn old_attempts_are_removed_in_small_transactions() {
    let scratch = Scratch::new("pruned");
    let rows = geartrain_testkit::scaled(2_000, 200_000);
    let now = filled(&scratch, rows);
    let mut log = Sqlite::open(&file(&scratch), Duration::from_secs(5)).unwrap();
    let before = log.size().unwrap();
    assert_eq!(log.prune(now - 7_200.0, 300).unwrap(), 0);
    let mut removed = Vec::new();
    loop {
        match log.prune(now - 60.0, 300).unwrap() {
            0 => break,
            few => removed.push(few as u64),
        }
    }
    assert_eq!(removed.iter().sum::<u64>(), rows);
    assert!(removed.iter().all(|few| *few <= 300), "{removed:?}");
    // The rest is newer, or running; the space of the removed rows is returned or reused.
    let left = entries(&scratch);
    assert_eq!(left.len() as u64, rows + 1);
    assert!(left.iter().all(|entry| entry.ending.is_none() || entry.ended.unwrap().get() > now - 60.0));
    log.connection.pragma_update(None, "wal_checkpoint", "TRUNCATE").unwrap();
    let after = log.size().unwrap();
    assert!(after.bytes - after.free_bytes < before.bytes * 2 / 3, "{before:?} {after:?}");
    assert_eq!(after.oldest, Timestamp::new(now - 3_600.0).ok());
}

#[test]
fn a_recorder_with_retention_removes_old_attempts_while_it_writes() {
    let scratch = Scratch::new("retention");
    let rows = 2_000;
    filled(&scratch, rows);
    let (mut opened, _) = Recorder::open(&target(&scratch)).unwrap();
    opened.set_retention(Some(Duration::from_secs(600)));
    let recorder = opened.start().unwrap();
    let position = 2 * rows + 10;
    let changes = vec![started(position, 9_999_999)];
    assert!(block_on(recorder.write(Batch { changes, position })));
    until("the old attempts are removed", || entries(&scratch).len() as u64 == rows + 2);
    assert_eq!(recorder.durable_position(), position);
    recorder.close();
}

#[test]
fn only_the_owner_may_read_a_log() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("private");
    let (mut opened, _) = Recorder::open(&target(&scratch)).unwrap();
    opened.begin_after(7).unwrap();
    let mut files: Vec<(String, u32)> = std::fs::read_dir(scratch.path())
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().permissions().mode() & 0o777)
        })
        .filter(|(name, _)| name.starts_with("results.db"))
        .collect();
    files.sort();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"results.db-wal") && names.contains(&"results.db-shm"), "{names:?}");
    assert!(names.contains(&"results.db-spool"), "{names:?}");
    assert!(files.iter().all(|(_, mode)| *mode == 0o600), "{files:?}");
    // An existing log keeps its mode.
    drop(opened);
    let shared = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(file(&scratch), shared).unwrap();
    drop(Recorder::open(&target(&scratch)).unwrap());
    assert_eq!(std::fs::metadata(file(&scratch)).unwrap().permissions().mode() & 0o777, 0o640);
}

/// The spool stores variant names, so a batch of an earlier version must still decode.
#[test]
fn a_result_keeps_its_name_in_the_spool() {
    let record = ResultRecord { position: 1, jid: jid(1), code: 0, bytes: b"42".to_vec(), length: 2 };
    let encoded = rmp_serde::to_vec_named(&Change::Result(record.clone())).unwrap();
    assert!(encoded.windows(6).any(|bytes| bytes == b"Gotten"));
    assert_eq!(rmp_serde::from_slice::<Change>(&encoded).unwrap(), Change::Result(record));
}
