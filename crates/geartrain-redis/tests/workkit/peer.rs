//! Another implementation of WorkKit, written with plain Redis commands: it enqueues and listens as the
//! published algorithms say, without our scripts and keys.

use std::collections::BTreeMap;

use geartrain_core::PutReply;
use geartrain_testkit::peers::RedisServer;
use redis::Connection;

use super::{NOW_MS, connect, pop, put, run_at, take};

/// A peer on one schedule.
pub(super) struct Peer {
    port: u16,
    schedule: String,
}

/// A job that the peer took.
pub(super) struct Taken {
    pub(super) id: String,
    pub(super) score: f64,
    pub(super) payload: serde_json::Value,
}

impl Peer {
    pub(super) fn of(redis: &RedisServer, schedule: &str) -> Peer {
        Peer { port: redis.port(), schedule: schedule.to_owned() }
    }

    pub(super) fn at(port: u16, schedule: &str) -> Peer {
        Peer { port, schedule: schedule.to_owned() }
    }

    fn connection(&self) -> Connection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        client.get_connection().unwrap()
    }

    fn jobs(&self) -> String {
        format!("{}:jobs", self.schedule)
    }

    fn next(&self) -> String {
        format!("{}:next", self.schedule)
    }

    pub(super) fn now_ms(&self) -> i64 {
        let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(&mut self.connection()).unwrap();
        seconds * 1_000 + micros / 1_000
    }

    /// Entries with their scores.
    pub(super) fn entries(&self) -> Vec<(String, f64)> {
        let mut range = redis::cmd("ZRANGE");
        range.arg(self.next()).arg(0).arg(-1).arg("WITHSCORES").query(&mut self.connection()).unwrap()
    }

    /// Inserts a job, unless it is there.
    pub(super) fn enqueue(&self, id: &str, payload: &str, score: i64) -> bool {
        let connection = &mut self.connection();
        let is_new: bool =
            redis::cmd("HSETNX").arg(self.jobs()).arg(id).arg(payload).query(connection).unwrap();
        if is_new {
            let entry = format!(r#"{{"id":"{id}"}}"#);
            let _: i64 = redis::cmd("ZADD").arg(self.next()).arg(score).arg(entry).query(connection).unwrap();
        }
        is_new
    }

    /// Takes the first job if it is due, puts it back if it runs again, and forgets it otherwise. The peer
    /// knows two kinds of cron strings: every second, and once.
    pub(super) fn listen_once(&self, now_ms: i64) -> Option<Taken> {
        let connection = &mut self.connection();
        let mut taking = redis::pipe();
        taking.atomic().cmd("ZRANGE").arg(self.next()).arg(0).arg(0).arg("WITHSCORES");
        taking.cmd("ZREMRANGEBYRANK").arg(self.next()).arg(0).arg(0);
        let (first, _): (Vec<(String, f64)>, i64) = taking.query(connection).unwrap();
        let (entry, score) = first.into_iter().next()?;
        let mut add = |score: f64| {
            let _: i64 =
                redis::cmd("ZADD").arg(self.next()).arg(score).arg(&entry).query(connection).unwrap();
        };
        if score > now_ms as f64 {
            add(score);
            return None;
        }
        let id =
            serde_json::from_str::<serde_json::Value>(&entry).unwrap()["id"].as_str().unwrap().to_owned();
        let every_second = |payload: &serde_json::Value| payload["cron"] == "* * * * * * *";
        let payload: Option<String> =
            redis::cmd("HGET").arg(self.jobs()).arg(&id).query(&mut self.connection()).unwrap();
        let payload: serde_json::Value = serde_json::from_str(&payload?).unwrap();
        if every_second(&payload) {
            add(score.max((now_ms / 1_000 * 1_000) as f64) + 1_000.0);
        } else {
            let _: i64 = redis::cmd("HDEL").arg(self.jobs()).arg(&id).query(connection).unwrap();
        }
        Some(Taken { id, score, payload })
    }
}

#[test]
fn a_job_of_a_foreign_enqueuer_runs_once() {
    let redis = RedisServer::start(&[]);
    let (backend, peer) = (connect(&redis, ""), Peer::of(&redis, "s"));
    // Another order of members, blanks, and one that we do not know.
    let payload =
        r##"{"cron": "2014 3 5 * 9 34 16", "job": "#'a/b", "later": {"x": 1}, "args": [1, "zwei"]}"##;
    assert!(peer.enqueue("0123456789012345678901234567890123456789", payload, NOW_MS));
    let job = take(&*backend, 0.0).unwrap();
    assert_eq!(job.jid.to_string(), "0123456789012345678901234567890123456789");
    assert_eq!(job.payload.text(), Some(r#"[1, "zwei"]"#));
    assert!(!peer.enqueue("0123456789012345678901234567890123456789", payload, NOW_MS), "it is running");
    run_at(&*backend, 1.0, super::complete(&job)).unwrap();
    assert_eq!(super::keys(&redis), ["geartrain:wk:schedules"]);

    // An entry that is spelled differently is moved and removed as it is.
    let every_second = r##"{"args":[],"cron":"* * * * * * *","job":"#'a\/b"}"##;
    let mut connection = peer.connection();
    let _: i64 = redis::cmd("HSET").arg("s:jobs").arg("ab").arg(every_second).query(&mut connection).unwrap();
    let entry = r#"{ "id": "ab" }"#;
    let _: i64 = redis::cmd("ZADD").arg("s:next").arg(NOW_MS).arg(entry).query(&mut connection).unwrap();
    let job = take(&*backend, 0.5).unwrap();
    run_at(&*backend, 0.5, super::complete(&job)).unwrap();
    assert_eq!(peer.entries(), [(entry.to_owned(), NOW_MS as f64 + 1_000.0)]);
    assert_eq!(run_at(&*backend, 0.5, geartrain_core::Cancel::new(vec![job.jid])), Ok(1));
    assert_eq!(peer.entries(), []);
}

#[test]
fn a_foreign_listener_takes_our_jobs() {
    let redis = RedisServer::start(&[]);
    let (backend, peer) = (connect(&redis, ""), Peer::of(&redis, "s"));
    let id = super::named(run_at(&*backend, 0.0, put(r#"["a/b"]"#)).unwrap());
    let every_second = super::recurring::periodic("* * * * * * *", "[1]");
    assert_eq!(run_at(&*backend, 1.0, every_second), Ok(true));
    assert!(peer.listen_once(NOW_MS - 1).is_none());
    let taken = peer.listen_once(NOW_MS).unwrap();
    assert_eq!((taken.id, taken.score), (id.to_string(), NOW_MS as f64));
    assert_eq!(taken.payload["job"], "#'a/b");
    assert_eq!(taken.payload["args"], serde_json::json!(["a/b"]));
    let taken = peer.listen_once(NOW_MS + 1_200).unwrap();
    assert_eq!(taken.payload["args"], serde_json::json!([1]));
    assert_eq!(peer.entries().len(), 1, "it was put back once");
    // And ours go on with what the peer put back.
    assert!(take(&*backend, 1.9).is_none());
    let job = take(&*backend, 2.0).unwrap();
    assert_eq!(job.jid.to_string(), taken.id);
    assert_eq!(peer.entries().len(), 1);
}

#[test]
fn retries_of_a_job_that_a_foreign_listener_finished_are_forgotten() {
    let redis = RedisServer::start(&[]);
    let (backend, peer) = (connect(&redis, ""), Peer::of(&redis, "s"));
    let with_retries = |args: &str| geartrain_core::Put { retries: Some(3), ..put(args) };
    super::named(run_at(&*backend, 0.0, with_retries("[1]")).unwrap());
    assert!(peer.listen_once(NOW_MS).is_some());
    let later = geartrain_core::Put { delay: 500.into(), ..with_retries("[2]") };
    let later = super::named(run_at(&*backend, 0.0, later).unwrap());
    for seconds in [0.0, 61.0] {
        assert!(take(&*backend, seconds).is_none());
    }
    let kept: Vec<String> = crate::peers::ask(redis.port(), &["HKEYS", "geartrain:wk:s:retry"]).unwrap();
    assert_eq!(kept, [later.to_string()]);
}

#[test]
fn the_same_job_of_both_is_one_job() {
    let redis = RedisServer::start(&[]);
    let (backend, peer) = (connect(&redis, ""), Peer::of(&redis, "s"));
    let (id, text) = (
        "b47c4f60e77f631e8045ca999ec215fa74d4d658",
        r##"{"args":["test"],"cron":"* * * * * * *","job":"#'clojure.core\/println"}"##,
    );
    assert!(peer.enqueue(id, text, NOW_MS));
    let mut ours = super::recurring::periodic("* * * * * * *", r#"["test"]"#);
    ours.template.put.klass = super::klass("clojure.core/println");
    assert_eq!(run_at(&*backend, 0.0, ours), Ok(false), "it exists");
    assert_eq!(peer.entries().len(), 1);

    let ours = super::named(run_at(&*backend, 0.0, put("[1]")).unwrap());
    let text = r##"{"args":[1],"cron":"2014 3 5 * 9 34 16","job":"#'a\/b"}"##;
    assert!(!peer.enqueue(&ours.to_string(), text, NOW_MS));
    assert_eq!(run_at(&*backend, 0.0, put("[1]")).unwrap(), PutReply::NamedExisting { jid: ours });
}

#[test]
fn listeners_of_both_kinds_run_every_job_once() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    // Many with equal scores, which a removal by score would lose.
    const JOBS: usize = 300;
    for number in 0..JOBS {
        let second = (number % 3) as f64;
        super::named(run_at(&*backend, second, put(&format!("[{number}]"))).unwrap());
    }
    let runs: Vec<u64> = std::thread::scope(|scope| {
        let foreign = (0..2).map(|_| {
            scope.spawn(|| {
                let peer = Peer::of(&redis, "s");
                let mut runs = Vec::new();
                loop {
                    match peer.listen_once(NOW_MS + 9_000) {
                        Some(taken) => runs.push(taken.payload["args"][0].as_u64().unwrap()),
                        // Empty, or the other listener has the last one in its hands.
                        None if peer.entries().is_empty() => break runs,
                        None => {}
                    }
                }
            })
        });
        let ours = (0..2).map(|_| {
            scope.spawn(|| {
                let (backend, mut runs) = (connect(&redis, ""), Vec::new());
                loop {
                    let jobs = run_at(&*backend, 9.0, pop(3)).unwrap().jobs;
                    if jobs.is_empty() && Peer::of(&redis, "s").entries().is_empty() {
                        break runs;
                    }
                    for job in jobs {
                        let args: Vec<u64> = serde_json::from_str(job.payload.text().unwrap()).unwrap();
                        runs.push(args[0]);
                        run_at(&*backend, 9.0, super::complete(&job)).unwrap();
                    }
                }
            })
        });
        let threads: Vec<_> = foreign.chain(ours).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut counts = BTreeMap::new();
    for run in runs {
        *counts.entry(run).or_insert(0) += 1;
    }
    assert_eq!(counts, (0..JOBS as u64).map(|number| (number, 1)).collect());
    assert_eq!(super::keys(&redis), ["geartrain:wk:schedules"]);
}
