//! A server that writes a result log: a row for each attempt, however it ends, whatever the database does meanwhile.

use std::net::Ipv4Addr;
use std::time::Duration;

use geartrain::{
    Call, Client, Clock, Complete, Count, Fail, Group, Holder, Jid, JobResult, OnEnd, Pop, Popped, Put,
    PutOptions, QueueName, Release, Reply, Seconds, Timeout, WorkerLost, WorkerName,
};
use geartrain_core::SystemClock;
use geartrain_results::{Ending, Entry, LogPlace, Query, RESULT_BYTES_MAX, ResultLog};
use geartrain_server::{Server, Settings, StartError};
use geartrain_testkit::peers::{RedisServer, Scratch, until};
use rusqlite::Connection;
use tokio::runtime::Runtime;

/// A server with a log, and a client of it.
struct Logged {
    server: Option<Server>,
    client: Client,
    settings: Settings,
    runtime: Runtime,
    scratch: Scratch,
    /// Behind all of it, if that is where the queue is.
    redis: Option<RedisServer>,
}

impl Logged {
    fn start() -> Logged {
        let scratch = Scratch::new("logged");
        let store = format!("embedded:{}", scratch.path().join("data").display());
        Logged::on(store, scratch, None)
    }

    fn on_redis() -> Logged {
        // It has on its disk whatever it has answered.
        let redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
        Logged::on(redis.url(), Scratch::new("logged"), Some(redis))
    }

    fn on(store: String, scratch: Scratch, redis: Option<RedisServer>) -> Logged {
        let settings = Settings {
            gearman: None,
            store,
            resp: (Ipv4Addr::LOCALHOST, 0).into(),
            password: None,
            insecure: false,
            allow_flush: true,
            demo: false,
            result_log: Some(log_in(&scratch)),
            result_log_keep: None,
        };
        let runtime = Runtime::new().unwrap();
        let server = runtime.block_on(Server::start(&settings)).unwrap();
        let client = connect(&runtime, &server);
        Logged { server: Some(server), client, settings, runtime, scratch, redis }
    }

    fn run<T>(&self, what: impl Future<Output = Result<T, geartrain::Error>>) -> T {
        self.runtime.block_on(what).unwrap()
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
    }

    fn start_again(&mut self) {
        self.stop();
        let server = self.runtime.block_on(Server::start(&self.settings)).unwrap();
        self.client = connect(&self.runtime, &server);
        self.server = Some(server);
    }

    fn put(&self, jid: &str) -> Jid {
        self.run(async { self.client.put("mail", "welcome", "{}").jid(jid).await })
    }

    fn pop(&self, worker: &str) -> Popped {
        self.run(self.client.pop("mail", worker)).expect("there is a job")
    }

    fn log(&self) -> ResultLog {
        ResultLog::open_existing(&log_in(&self.scratch)).unwrap()
    }

    /// What the log says of a job, once it says so much and the last attempt is over.
    fn ended(&self, jid: &str, rows: usize) -> Vec<Entry> {
        let log = self.log();
        let query = Query { jid: Some(jid.to_owned()), ..Query::default() };
        until("the log has it", || {
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

    /// Puts and completes jobs, a hundred at a time.
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

impl Drop for Logged {
    fn drop(&mut self) {
        self.stop();
    }
}

fn log_in(scratch: &Scratch) -> LogPlace {
    format!("sqlite:{}", scratch.path().join("results.db").display()).parse().unwrap()
}

fn connect(runtime: &Runtime, server: &Server) -> Client {
    runtime.block_on(geartrain::connect(&format!("redis://{}", server.resp()))).unwrap()
}

fn endings(entries: &[Entry]) -> Vec<Ending> {
    entries.iter().map(|entry| entry.ending.unwrap()).collect()
}

/// Every way in which an attempt can end, on a queue of our own and on a Redis.
fn every_attempt_has_its_row(logged: &Logged) {
    let client = &logged.client;
    // Given back, then done.
    logged.put("done");
    let job = logged.pop("w1");
    logged.run(client.retry(&job, Duration::ZERO));
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

    // Failed, put back to work, and cancelled while a worker has it.
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

    // Handed back by a worker that was interrupted, and then by one that died.
    logged.put("handed");
    let job = logged.pop("w1");
    logged.run(client.run(Release { jid: job.jid.clone(), holder: job.holder() }));
    logged.pop("w2");
    let worker = WorkerName::new("w2").unwrap();
    logged.run(client.run(WorkerLost { worker, evidence: Some("killed by signal 9".to_owned()) }));
    let job = logged.pop("w3");
    logged.run(client.advance(&job, "elsewhere"));
    let entries = logged.ended("handed", 3);
    assert_eq!(endings(&entries), [Ending::HandedBack, Ending::Crashed, Ending::Advanced]);
    assert_eq!(entries[1].message.as_deref(), Some("killed by signal 9"));

    // Taken away, and given to another.
    logged.put("taken");
    let job = logged.pop("w1");
    logged.run(client.run(Timeout { jids: vec![job.jid] }));
    let job = logged.pop("w2");
    logged.run(client.complete(&job));
    assert_eq!(endings(&logged.ended("taken", 2)), [Ending::Lost, Ending::Completed]);

    // Silent until its lock ran out: the first who asks has it warned, and another gets it when its grace is over.
    logged.put("silent");
    logged.pop("w1");
    let mail = QueueName::new("mail").unwrap();
    let pop_in = |seconds: i32| {
        let pop = Pop::new(mail.clone(), WorkerName::new("w2").unwrap());
        let call = Call { now: Some(SystemClock.now() + Seconds::from(seconds)), command: pop.into() };
        match logged.run(client.batch(vec![call])).remove(0) {
            Ok(Reply::Pop(reply)) => reply.jobs.into_iter().next(),
            other => panic!("{other:?}"),
        }
    };
    assert!(pop_in(3_600).is_none());
    let job = pop_in(7_200).expect("it is another's turn");
    logged.run(client.complete(&job));
    assert_eq!(endings(&logged.ended("silent", 2)), [Ending::Lost, Ending::Completed]);

    // Not begun in time.
    let soon = std::time::SystemTime::now() + Duration::from_millis(100);
    logged.run(async { client.put("unworked", "welcome", "{}").jid("stale").expires(soon).await });
    let entry = logged.ended("stale", 1).remove(0);
    assert_eq!((entry.ending, entry.attempt, entry.started), (Some(Ending::Expired), None, None));
    assert_eq!(entry.group.as_deref(), Some("expired-unworked"));

    // Longer than it may take, twice.
    logged.run(async {
        client.put("mail", "welcome", "{}").jid("late").retries(1).timeout(Duration::from_millis(1)).await
    });
    logged.pop("w1");
    until("it is there again", || logged.run(client.pop("mail", "w2")).is_some());
    let entries = logged.ended("late", 2);
    assert_eq!(endings(&entries), [Ending::TimedOut, Ending::TimedOut]);
    assert_eq!(entries[1].group.as_deref(), Some("timed-out-mail"));

    // Never begun.
    let jid = logged.put("unbegun");
    assert!(logged.run(client.cancel(&jid)));
    let entries = logged.ended("unbegun", 1);
    assert_eq!(
        (entries[0].ending, entries[0].attempt, entries[0].started),
        (Some(Ending::Canceled), None, None)
    );

    // What went wrong is found by that alone.
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
    every_attempt_has_its_row(&Logged::start());
}

#[test]
fn every_attempt_has_its_row_however_it_ended_on_a_redis() {
    every_attempt_has_its_row(&Logged::on_redis());
}

#[test]
fn a_result_that_the_queue_keeps_is_in_the_log_up_to_a_size() {
    let logged = Logged::start();
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
        until("the result is there", || logged.ended(jid, 1)[0].outcome.is_some());
        let entry = logged.ended(jid, 1).remove(0);
        let kept = entry.outcome.as_ref().unwrap();
        assert_eq!((kept.code, entry.result_bytes), (code, bytes.len() as u64), "{jid}");
        assert_eq!(kept.bytes.bytes(), &bytes[..bytes.len().min(RESULT_BYTES_MAX)], "{jid}");
        assert_eq!(entry.is_cut(), jid == "large");
    }
    // What was said about a failure is cut too, and not in the middle of a character.
    logged.put("said");
    let job = logged.pop("w1");
    let message = "ä".repeat(RESULT_BYTES_MAX);
    let fail = Fail::new(job.jid.clone(), job.holder(), Group::new("long").unwrap(), message);
    logged.run(logged.client.run(fail));
    let said = logged.ended("said", 1).remove(0).message.unwrap();
    assert!(said.len() <= RESULT_BYTES_MAX && said.ends_with("ä…"), "{}", said.len());
}

#[test]
fn a_job_that_is_forgotten_at_once_has_a_row_with_what_its_events_say() {
    let logged = Logged::start();
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
fn an_attempt_that_began_before_the_log_has_a_row_when_it_ends() {
    let mut logged = Logged::start();
    logged.stop();
    std::fs::remove_file(log_in(&logged.scratch).file()).unwrap();
    let with_log = logged.settings.clone();
    logged.settings.result_log = None;
    logged.start_again();
    logged.put("early");
    let job = logged.pop("w1");
    logged.settings = with_log;
    logged.start_again();
    let complete = Complete::new(job.jid.clone(), Holder::Token(job.lock.token));
    logged.run(logged.client.run(complete));
    let entry = logged.ended("early", 1).remove(0);
    assert_eq!((entry.ending, entry.worker.as_deref()), (Some(Ending::Completed), Some("w1")));
    assert!(entry.started.is_some() && entry.attempt == Some(1));
}

#[test]
fn a_worker_that_writes_itself_and_the_server_write_one_row() {
    let logged = Logged::start();
    let own = logged.log();
    for (number, first) in [true, false].into_iter().enumerate() {
        let jid = format!("own-{number}");
        logged.put(&jid);
        let job = logged.pop("w1");
        if !first {
            // The server's row is there before the worker's.
            let query = Query { jid: Some(jid.clone()), ..Query::default() };
            until("the server has written", || own.entries(&query).unwrap().len() == 1);
        }
        own.start(&job).unwrap();
        own.start(&job).unwrap();
        own.completed(&job, b"nobody else knows this").unwrap();
        logged.run(logged.client.complete(&job));
        let position = "SELECT count(*) FROM attempts WHERE jid = ? AND ended_position IS NOT NULL";
        until("the server has written that it ended", || {
            logged.database().query_row(position, [&jid], |row| row.get::<_, i64>(0)).unwrap() == 1
        });
        let entry = logged.ended(&jid, 1).remove(0);
        assert_eq!(entry.ending, Some(Ending::Completed));
        assert_eq!(entry.outcome.unwrap().bytes.text(), Some("nobody else knows this"));
    }
}

/// The queue answers while the database is locked, and all of it is there afterwards.
fn a_locked_database_loses_nothing(logged: &mut Logged) {
    const JOBS: usize = 4_000;
    logged.lifecycles(0, 100);
    until("the log goes on", || logged.count() == 100);
    let mut lock = logged.database();
    let held = lock.transaction_with_behavior(rusqlite::TransactionBehavior::Exclusive).unwrap();
    logged.lifecycles(100, JOBS);
    // All of it waits beside the database, so the server may even end meanwhile.
    logged.start_again();
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
    // Nothing is left beside it.
    logged.stop();
    let files = std::fs::read_dir(logged.scratch.path()).unwrap();
    let left: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert!(left.iter().all(|name| !name.contains("spool")), "{left:?}");
}

#[test]
fn a_locked_database_holds_nobody_up_and_loses_nothing() {
    a_locked_database_loses_nothing(&mut Logged::start());
}

#[test]
fn a_locked_database_holds_nobody_up_and_loses_nothing_on_a_redis() {
    a_locked_database_loses_nothing(&mut Logged::on_redis());
}

#[test]
fn what_was_missed_is_written_down_as_a_gap() {
    let mut logged = Logged::on_redis();
    logged.lifecycles(0, 100);
    until("the log goes on", || logged.count() == 100);
    // Nobody holds events there, and without a log more happens than is kept for everybody.
    let with_log = logged.settings.clone();
    logged.settings.result_log = None;
    logged.start_again();
    logged.lifecycles(100, 5_000);
    logged.settings = with_log;
    logged.start_again();
    logged.put("after");
    let job = logged.pop("w1");
    logged.run(logged.client.complete(&job));
    assert_eq!(endings(&logged.ended("after", 1)), [Ending::Completed]);
    let gaps = logged.log().gaps(None).unwrap();
    assert_eq!(gaps.len(), 1);
    assert!(gaps[0].missing_max().unwrap() >= 5_000, "{gaps:?}");
    // What was still kept is there.
    assert!((3_000..5_100).contains(&logged.count()), "{}", logged.count());

    // It happens once: who starts again has nothing to add.
    logged.start_again();
    assert_eq!(logged.log().gaps(None).unwrap().len(), 1);
}

#[test]
fn what_happens_while_a_directory_is_served_without_its_log_is_found_if_it_is_still_there() {
    let mut logged = Logged::start();
    logged.lifecycles(0, 100);
    until("the log goes on", || logged.count() == 100);
    let with_log = logged.settings.clone();
    logged.settings.result_log = None;
    logged.start_again();
    logged.lifecycles(100, 1_000);
    logged.settings = with_log;
    logged.start_again();
    until("the log has caught up", || logged.count() == 1_100);
    assert_eq!(logged.log().gaps(None).unwrap(), []);
}

#[test]
fn a_redis_that_is_killed_and_started_again_costs_the_log_nothing() {
    let mut logged = Logged::on_redis();
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
fn a_queue_that_was_emptied_is_a_gap_too() {
    let mut logged = Logged::start();
    logged.start_again();
    logged.lifecycles(0, 100);
    until("the log goes on", || logged.count() == 100);
    logged.stop();
    std::fs::remove_dir_all(logged.scratch.path().join("data")).unwrap();
    logged.start_again();
    logged.put("anew");
    let job = logged.pop("w1");
    logged.run(logged.client.complete(&job));
    assert_eq!(endings(&logged.ended("anew", 1)), [Ending::Completed]);
    let gaps = logged.log().gaps(None).unwrap();
    assert_eq!((gaps.len(), gaps[0].missing_max()), (1, None));
}

#[test]
fn a_log_belongs_to_one_server() {
    let logged = Logged::start();
    let store = format!("embedded:{}", logged.scratch.path().join("other").display());
    let other = Settings { store, ..logged.settings.clone() };
    let error = logged.runtime.block_on(Server::start(&other)).err().expect("it does not start");
    assert!(matches!(error, StartError::Log(_)), "{error:?}");
    assert!(error.to_string().contains("another server writes the result log"), "{error}");
}
