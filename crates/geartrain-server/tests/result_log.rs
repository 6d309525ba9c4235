//! The result log of a server: a row for each attempt, however it ends, even while the database is locked.

use std::net::Ipv4Addr;
use std::time::Duration;

use geartrain::{
    Call, Client, Clock, Complete, Count, Fail, Group, Holder, Jid, JobResult, OnEnd, Pop, Popped, Put,
    PutOptions, QueueName, Release, Reply, Seconds, Timeout, WorkerLost, WorkerName,
};
use geartrain_core::SystemClock;
use geartrain_results::{Ending, Entry, LogTarget, Query, RESULT_BYTES_MAX, ResultLog};
use geartrain_server::{Server, Settings, StartError};
use geartrain_testkit::peers::{RedisServer, Scratch, until};
use rusqlite::Connection;
use tokio::runtime::Runtime;

/// A server with a result log, and a client.
struct LoggedServer {
    server: Option<Server>,
    client: Client,
    settings: Settings,
    runtime: Runtime,
    scratch: Scratch,
    /// The Redis that stores the queue, if any.
    redis: Option<RedisServer>,
}

impl LoggedServer {
    fn start() -> LoggedServer {
        let scratch = Scratch::new("logged");
        let store = format!("embedded:{}", scratch.path().join("data").display());
        LoggedServer::on(store, scratch, None)
    }

    fn on_redis() -> LoggedServer {
        // It syncs before it answers.
        let redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
        LoggedServer::on(redis.url(), Scratch::new("logged"), Some(redis))
    }

    fn on(store: String, scratch: Scratch, redis: Option<RedisServer>) -> LoggedServer {
        let settings = Settings {
            allow_flush: true,
            result_log: Some(log_in(&scratch)),
            ..Settings::new(store, (Ipv4Addr::LOCALHOST, 0).into())
        };
        let runtime = Runtime::new().unwrap();
        let server = runtime.block_on(Server::start(&settings)).unwrap();
        let client = connect(&runtime, &server);
        LoggedServer { server: Some(server), client, settings, runtime, scratch, redis }
    }

    fn run<T>(&self, what: impl Future<Output = Result<T, geartrain::Error>>) -> T {
        self.runtime.block_on(what).unwrap()
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
    }

    fn restart(&mut self) {
        self.stop();
        let server = self.runtime.block_on(Server::start(&self.settings)).unwrap();
        self.client = connect(&self.runtime, &server);
        self.server = Some(server);
    }

    fn put(&self, jid: &str) -> Jid {
        self.run(async { self.client.put("mail", "welcome", "{}").jid(jid).await })
    }

    fn pop(&self, worker: &str) -> Popped {
        let wait = Duration::from_secs(30);
        self.run(self.client.pop_wait("mail", worker, wait)).expect("there is a job")
    }

    fn log(&self) -> ResultLog {
        ResultLog::open_existing(&log_in(&self.scratch)).unwrap()
    }

    /// The rows of a job, once there are this many and the last attempt has ended.
    fn ended(&self, jid: &str, rows: usize) -> Vec<Entry> {
        let log = self.log();
        let query = Query { jid: Some(jid.to_owned()), ..Query::default() };
        until("the log has the rows", || {
            let entries = log.entries(&query).unwrap();
            entries.len() == rows && entries.iter().all(|entry| entry.ending.is_some())
        });
        log.entries(&query).unwrap()
    }

    fn database(&self) -> Connection {
        Connection::open(log_in(&self.scratch).file()).unwrap()
    }

    fn count(&self) -> u64 {
        let count: i64 = self
            .database()
            .query_row("SELECT count(*) FROM attempts WHERE outcome = 'completed'", [], |row| row.get(0))
            .unwrap();
        count as u64
    }

    /// Submits and completes jobs, a hundred at a time.
    fn lifecycles(&self, first: usize, count: usize) {
        let (mail, welcome) = (QueueName::new("mail").unwrap(), geartrain::Klass::new("welcome").unwrap());
        let pop =
            Pop { count: Count::new(100).unwrap(), ..Pop::new(mail.clone(), WorkerName::new("w1").unwrap()) };
        for begin in (first..first + count).step_by(100) {
            let puts = (begin..begin + 100).map(|number| {
                let jid = Jid::new(format!("many-{number}")).unwrap();
                Call::from(Put::new(mail.clone(), jid, welcome.clone(), "{}"))
            });
            let calls = puts.chain([pop.clone().into()]).collect();
            let answers = self.run(self.client.batch(calls));
            let Some(Ok(Reply::Pop(popped))) = answers.last() else { panic!("{answers:?}") };
            assert_eq!(popped.jobs.len(), 100);
            let completes =
                popped.jobs.iter().map(|job| Complete::new(job.jid.clone(), job.holder()).into()).collect();
            let answers = self.run(self.client.batch(completes));
            assert!(answers.iter().all(Result::is_ok));
        }
    }
}

impl Drop for LoggedServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn log_in(scratch: &Scratch) -> LogTarget {
    format!("sqlite:{}", scratch.path().join("results.db").display()).parse().unwrap()
}

fn connect(runtime: &Runtime, server: &Server) -> Client {
    runtime.block_on(geartrain::connect(&format!("redis://{}", server.resp()))).unwrap()
}

fn endings(entries: &[Entry]) -> Vec<Ending> {
    entries.iter().map(|entry| entry.ending.unwrap()).collect()
}

/// Every way in which an attempt can end, on an embedded queue and on a Redis.
fn check_every_ending(logged: &LoggedServer) {
    let client = &logged.client;
    // Retried, then completed.
    logged.put("done");
    let job = logged.pop("w1");
    logged.run(client.retry(&job, Duration::from_millis(1)));
    let job = logged.pop("w2");
    logged.run(client.complete(&job));
    let entries = logged.ended("done", 2);
    assert_eq!(endings(&entries), [Ending::Retried, Ending::Completed]);
    for (entry, (attempt, worker)) in entries.iter().zip([(1, "w1"), (2, "w2")]) {
        assert_eq!((entry.attempt, entry.worker.as_deref()), (Some(attempt), Some(worker)));
        assert_eq!((entry.queue.as_deref(), entry.klass.as_deref()), (Some("mail"), Some("welcome")));
        assert!(entry.started.is_some() && entry.took().unwrap() >= 0.0);
    }
    assert!(entries[1].exact && entries[1].outcome.is_none());

    // Failed, requeued, and cancelled while running.
    logged.put("failed");
    let job = logged.pop("w1");
    logged.run(client.fail(&job, "smtp", "it said 451"));
    logged.run(client.run(geartrain::Unfail {
        queue: QueueName::new("mail").unwrap(),
        group: Group::new("smtp").unwrap(),
        count: Count::ONE,
    }));
    logged.pop("w2");
    assert!(logged.run(client.cancel(&Jid::new("failed").unwrap())));
    let entries = logged.ended("failed", 2);
    assert_eq!(endings(&entries), [Ending::Failed, Ending::Canceled]);
    let said = (entries[0].group.as_deref(), entries[0].message.as_deref());
    assert_eq!(said, (Some("smtp"), Some("it said 451")));

    // Released by its worker, and then lost with another one.
    logged.put("handed");
    let job = logged.pop("w1");
    logged.run(client.run(Release::new(job.jid.clone(), job.holder())));
    logged.pop("w2");
    let worker = WorkerName::new("w2").unwrap();
    logged.run(client.run(WorkerLost { worker, evidence: Some("killed by signal 9".to_owned()) }));
    let job = logged.pop("w3");
    logged.run(client.advance(&job, "elsewhere"));
    let entries = logged.ended("handed", 3);
    assert_eq!(endings(&entries), [Ending::HandedBack, Ending::Crashed, Ending::Advanced]);
    assert_eq!(entries[1].message.as_deref(), Some("killed by signal 9"));

    // Taken away, and popped by another worker.
    logged.put("taken");
    let job = logged.pop("w1");
    logged.run(client.run(Timeout { jids: vec![job.jid] }));
    let job = logged.pop("w2");
    logged.run(client.complete(&job));
    assert_eq!(endings(&logged.ended("taken", 2)), [Ending::Lost, Ending::Completed]);

    // The lock expired: the next pop warns the worker, and another worker gets the job after the grace
    // period.
    logged.put("silent");
    logged.pop("w1");
    let mail = QueueName::new("mail").unwrap();
    let pop_in = |seconds: i32| {
        let pop = Pop::new(mail.clone(), WorkerName::new("w2").unwrap());
        let call = Call::at(SystemClock.now() + Seconds::from(seconds), pop);
        match logged.run(client.batch(vec![call])).remove(0) {
            Ok(Reply::Pop(reply)) => reply.jobs.into_iter().next(),
            other => panic!("{other:?}"),
        }
    };
    assert!(pop_in(3_600).is_none());
    let job = pop_in(7_200).expect("it is another's turn");
    logged.run(client.complete(&job));
    assert_eq!(endings(&logged.ended("silent", 2)), [Ending::Lost, Ending::Completed]);

    // Expired before it started.
    let soon = std::time::SystemTime::now() + Duration::from_millis(100);
    logged.run(async { client.put("unworked", "welcome", "{}").jid("stale").expires(soon).await });
    let entry = logged.ended("stale", 1).remove(0);
    assert_eq!((entry.ending, entry.attempt, entry.started), (Some(Ending::Expired), None, None));
    assert_eq!(entry.group.as_deref(), Some("expired-unworked"));

    // Timed out, twice.
    logged.run(async {
        client.put("mail", "welcome", "{}").jid("late").retries(1).timeout(Duration::from_millis(1)).await
    });
    logged.pop("w1");
    until("the job is in the queue again", || logged.run(client.pop("mail", "w2")).is_some());
    let entries = logged.ended("late", 2);
    assert_eq!(endings(&entries), [Ending::TimedOut, Ending::TimedOut]);
    assert_eq!(entries[1].group.as_deref(), Some("timed-out-mail"));

    // Never started.
    let jid = logged.put("unbegun");
    assert!(logged.run(client.cancel(&jid)));
    let entries = logged.ended("unbegun", 1);
    assert_eq!(
        (entries[0].ending, entries[0].attempt, entries[0].started),
        (Some(Ending::Canceled), None, None)
    );

    // The query for failures finds exactly these.
    let wrong = logged.log().entries(&Query { failed: true, ..Query::default() }).unwrap();
    assert_eq!(
        wrong.iter().map(|entry| (entry.jid.as_str(), entry.ending.unwrap())).collect::<Vec<_>>(),
        [
            ("done", Ending::Retried),
            ("failed", Ending::Failed),
            ("handed", Ending::Crashed),
            ("taken", Ending::Lost),
            ("stale", Ending::Expired),
            ("late", Ending::TimedOut),
            ("late", Ending::TimedOut),
            // It was late by an hour, by its own clock.
            ("silent", Ending::Lost)
        ]
    );
    assert_eq!(logged.log().gaps(None).unwrap(), []);
}

#[test]
fn every_attempt_has_its_row_however_it_ended() {
    check_every_ending(&LoggedServer::start());
}

#[test]
fn every_attempt_has_its_row_however_it_ended_on_a_redis() {
    check_every_ending(&LoggedServer::on_redis());
}

#[test]
fn a_stored_result_is_in_the_log_up_to_a_size() {
    let logged = LoggedServer::start();
    for (jid, bytes, code) in
        [("small", b"42".to_vec(), 0), ("large", vec![7; RESULT_BYTES_MAX + 1], 3), ("none", Vec::new(), 0)]
    {
        let hour = Duration::from_secs(3_600);
        logged.run(async { logged.client.put("mail", "welcome", "{}").jid(jid).keep_result(hour).await });
        let job = logged.pop("w1");
        let result = Some(Box::new(JobResult { code, bytes: bytes.clone().into() }));
        let complete = Complete { result, ..Complete::new(job.jid.clone(), job.holder()) };
        logged.run(logged.client.run(complete));
        logged.ended(jid, 1);
        until("the log has the result", || logged.ended(jid, 1)[0].outcome.is_some());
        let entry = logged.ended(jid, 1).remove(0);
        let kept = entry.outcome.as_ref().unwrap();
        assert_eq!((kept.code, entry.result_bytes), (code, bytes.len() as u64), "{jid}");
        assert_eq!(kept.bytes.bytes(), &bytes[..bytes.len().min(RESULT_BYTES_MAX)], "{jid}");
        assert_eq!(entry.is_cut(), jid == "large");
    }
    // The message of a failure is cut off too, at a character boundary.
    logged.put("said");
    let job = logged.pop("w1");
    let message = "ä".repeat(RESULT_BYTES_MAX);
    let fail = Fail::new(job.jid.clone(), job.holder(), Group::new("long").unwrap(), message);
    logged.run(logged.client.run(fail));
    let said = logged.ended("said", 1).remove(0).message.unwrap();
    assert!(said.len() <= RESULT_BYTES_MAX && said.ends_with("ä…"), "{}", said.len());
}

#[test]
fn a_job_removed_at_its_end_has_a_row_from_its_events() {
    let logged = LoggedServer::start();
    let (queue, jid) = (QueueName::new("mail").unwrap(), Jid::new("gone").unwrap());
    let terms = Some(Box::new(PutOptions { on_end: OnEnd::Forget, ..PutOptions::default() }));
    let put = Put { options: terms, ..Put::new(queue, jid, geartrain::Klass::new("welcome").unwrap(), "{}") };
    logged.run(logged.client.run(put));
    let job = logged.pop("w1");
    logged.run(logged.client.complete(&job));
    let entry = logged.ended("gone", 1).remove(0);
    assert_eq!((entry.ending, entry.worker.as_deref()), (Some(Ending::Completed), Some("w1")));
    assert!(!entry.exact && entry.started.is_some());
}

#[test]
fn an_attempt_that_started_before_the_log_has_a_row_when_it_ends() {
    let mut logged = LoggedServer::start();
    logged.stop();
    std::fs::remove_file(log_in(&logged.scratch).file()).unwrap();
    let with_log = logged.settings.clone();
    logged.settings.result_log = None;
    logged.restart();
    logged.put("early");
    let job = logged.pop("w1");
    logged.settings = with_log;
    logged.restart();
    let complete = Complete::new(job.jid.clone(), Holder::Token(job.lock.token));
    logged.run(logged.client.run(complete));
    let entry = logged.ended("early", 1).remove(0);
    assert_eq!((entry.ending, entry.worker.as_deref()), (Some(Ending::Completed), Some("w1")));
    assert!(entry.started.is_some() && entry.attempt == Some(1));
}

#[test]
fn a_worker_and_the_server_write_the_same_row() {
    let logged = LoggedServer::start();
    let own = logged.log();
    for (number, first) in [true, false].into_iter().enumerate() {
        let jid = format!("own-{number}");
        logged.put(&jid);
        let job = logged.pop("w1");
        if !first {
            // The server's row comes first.
            let query = Query { jid: Some(jid.clone()), ..Query::default() };
            until("the server has written the row", || own.entries(&query).unwrap().len() == 1);
        }
        own.start(&job).unwrap();
        own.start(&job).unwrap();
        own.completed(&job, b"nobody else knows this").unwrap();
        logged.run(logged.client.complete(&job));
        let position = "SELECT count(*) FROM attempts WHERE jid = ? AND ended_position IS NOT NULL";
        until("the server has written the end", || {
            logged.database().query_row(position, [&jid], |row| row.get::<_, i64>(0)).unwrap() == 1
        });
        let entry = logged.ended(&jid, 1).remove(0);
        assert_eq!(entry.ending, Some(Ending::Completed));
        assert_eq!(entry.outcome.unwrap().bytes.text(), Some("nobody else knows this"));
    }
}

/// The queue answers while the database is locked, and every row is there afterwards.
fn a_locked_database_loses_nothing(logged: &mut LoggedServer) {
    const JOBS: usize = 4_000;
    logged.lifecycles(0, 100);
    until("the log has the first rows", || logged.count() == 100);
    let mut lock = logged.database();
    let held = lock.transaction_with_behavior(rusqlite::TransactionBehavior::Exclusive).unwrap();
    logged.lifecycles(100, JOBS);
    // The spool is durable, so the server may even restart meanwhile.
    logged.restart();
    logged.lifecycles(100 + JOBS, JOBS);
    assert_eq!(logged.count(), 100);
    held.rollback().unwrap();
    until("the log has caught up", || logged.count() == 100 + 2 * JOBS as u64);
    let doubled: i64 = logged
        .database()
        .query_row(
            "SELECT count(*) FROM attempts WHERE attempt > 1 OR klass IS NULL OR worker IS NULL",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(doubled, 0);
    assert_eq!(logged.log().gaps(None).unwrap(), []);
    // The spool file is removed.
    logged.stop();
    let files = std::fs::read_dir(logged.scratch.path()).unwrap();
    let left: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert!(left.iter().all(|name| !name.contains("spool")), "{left:?}");
}

#[test]
fn a_locked_database_neither_blocks_the_queue_nor_loses_rows() {
    a_locked_database_loses_nothing(&mut LoggedServer::start());
}

#[test]
fn a_locked_database_neither_blocks_the_queue_nor_loses_rows_on_a_redis() {
    a_locked_database_loses_nothing(&mut LoggedServer::on_redis());
}

#[test]
fn missed_events_are_recorded_as_a_gap() {
    let mut logged = LoggedServer::on_redis();
    logged.lifecycles(0, 100);
    until("the log has the first rows", || logged.count() == 100);
    // On a Redis no events are held for the log, and without it more happen than are retained.
    let with_log = logged.settings.clone();
    logged.settings.result_log = None;
    logged.restart();
    logged.lifecycles(100, 5_000);
    logged.settings = with_log;
    logged.restart();
    logged.put("after");
    let job = logged.pop("w1");
    logged.run(logged.client.complete(&job));
    assert_eq!(endings(&logged.ended("after", 1)), [Ending::Completed]);
    let gaps = logged.log().gaps(None).unwrap();
    assert_eq!(gaps.len(), 1);
    assert!(gaps[0].missing_max().unwrap() >= 5_000, "{gaps:?}");
    // The events still retained are there.
    assert!((3_000..5_100).contains(&logged.count()), "{}", logged.count());

    // The gap is recorded once: a restart adds nothing.
    logged.restart();
    assert_eq!(logged.log().gaps(None).unwrap().len(), 1);
}

#[test]
fn events_of_a_time_without_the_log_are_caught_up_on_if_retained() {
    let mut logged = LoggedServer::start();
    logged.lifecycles(0, 100);
    until("the log has the first rows", || logged.count() == 100);
    let with_log = logged.settings.clone();
    logged.settings.result_log = None;
    logged.restart();
    logged.lifecycles(100, 1_000);
    logged.settings = with_log;
    logged.restart();
    until("the log has caught up", || logged.count() == 1_100);
    assert_eq!(logged.log().gaps(None).unwrap(), []);
}

#[test]
fn a_restarted_redis_loses_no_rows() {
    let mut logged = LoggedServer::on_redis();
    for round in 0..3 {
        logged.lifecycles(round * 500, 500);
        let redis = logged.redis.as_mut().unwrap();
        redis.kill();
        redis.start_again();
    }
    logged.lifecycles(1_500, 500);
    until("the log has caught up", || logged.count() == 2_000);
    assert_eq!(logged.log().gaps(None).unwrap(), []);
}

#[test]
fn an_emptied_queue_is_a_gap() {
    let mut logged = LoggedServer::start();
    logged.restart();
    logged.lifecycles(0, 100);
    until("the log has the first rows", || logged.count() == 100);
    logged.stop();
    std::fs::remove_dir_all(logged.scratch.path().join("data")).unwrap();
    logged.restart();
    logged.put("anew");
    let job = logged.pop("w1");
    logged.run(logged.client.complete(&job));
    assert_eq!(endings(&logged.ended("anew", 1)), [Ending::Completed]);
    let gaps = logged.log().gaps(None).unwrap();
    assert_eq!((gaps.len(), gaps[0].missing_max()), (1, None));
}

#[test]
fn a_second_server_cannot_use_the_same_log() {
    let logged = LoggedServer::start();
    let store = format!("embedded:{}", logged.scratch.path().join("other").display());
    let other = Settings { store, ..logged.settings.clone() };
    let error = logged.runtime.block_on(Server::start(&other)).err().expect("it does not start");
    assert!(matches!(error, StartError::Log(_)), "{error:?}");
    assert!(error.to_string().contains("another server writes the result log"), "{error}");
}
