//! Three listeners on one schedule with a job every second, one of them killed again and again: no run is
//! claimed twice, and with catch-up none is missing.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use geartrain_core::{Backend, Call, Complete, Reply, Seconds};
use geartrain_testkit::peers::{RedisServer, until};
use geartrain_testkit::scaled;
use pollster::block_on;

use super::peer::Peer;
use super::{ask, connect, pop};

/// Set for a process of this test that is a listener: the port of the Redis.
const LISTENER: &str = "GEARTRAIN_TEST_WORKKIT_LISTENER";
const NAME: &str = "workkit::killed::no_run_is_claimed_twice_or_missing_though_listeners_are_killed";
const ID: &str = "every-second";

struct Listener(Child);

impl Listener {
    fn start(port: u16) -> Listener {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(LISTENER, port.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Listener(child)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SIGKILL; it fails only if the process has ended by itself.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

/// Claims runs, writes each down with its token, and completes it.
fn listen(port: u16) -> ! {
    let url = format!("workkit+redis://127.0.0.1:{port}?catch_up=true&lease=86400");
    let backend = block_on(geartrain_redis::workkit::WorkKitBackend::connect(url.parse().unwrap())).unwrap();
    loop {
        for job in block_on(backend.pop_or_wait(pop(2), Seconds::from(60))).unwrap().jobs {
            let attempt = format!("{ID}:{}", job.lock.token.number());
            let record: String = ask(port, &["HGET", "geartrain:wk:s:owner", &attempt]).unwrap();
            let _: i64 = ask(port, &["HSET", "claims", &attempt, &record]).unwrap();
            let _: i64 = ask(port, &["HINCRBY", "counts", &std::process::id().to_string(), "1"]).unwrap();
            let done = Complete::new(job.jid.clone(), job.holder());
            let answer = block_on(backend.execute(vec![Call::from(done)])).unwrap().remove(0);
            assert!(matches!(answer, Ok(Reply::Complete(_))), "{answer:?}");
        }
    }
}

#[test]
fn no_run_is_claimed_twice_or_missing_though_listeners_are_killed() {
    if let Ok(port) = std::env::var(LISTENER) {
        listen(port.parse().unwrap());
    }
    let redis = RedisServer::start(&[]);
    let (port, peer) = (redis.port(), Peer::of(&redis, "s"));
    // Runs of the past hours, which the listeners make up as fast as they can.
    let kills = scaled(20, 300);
    let first = peer.now_ms() / 1_000 * 1_000 - 86_400_000;
    peer.enqueue(ID, r##"{"args":[],"cron":"* * * * * * *","job":"#'a\/b"}"##, first);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watched = scope.spawn(|| {
            let mut looks = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                let score: Option<f64> =
                    ask(port, &["ZSCORE", "s:next", r#"{"id":"every-second"}"#]).unwrap();
                assert!(score.is_some(), "the entry is absent");
                looks += 1;
            }
            looks
        });
        {
            let _others = [Listener::start(port), Listener::start(port)];
            for kill in 0..kills {
                let victim = Listener::start(port);
                let id = victim.0.id().to_string();
                // After more or fewer runs of its own, so that it is killed at different moments.
                until("it takes part", || {
                    let runs: Option<u64> = ask(port, &["HGET", "counts", &id]).unwrap();
                    runs.unwrap_or(0) > kill % 7
                });
                drop(victim);
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(watched.join().unwrap() > 100, "the entry was looked at often");
    });

    // Those of killed listeners that were not written down have their leases still.
    let mut claims: BTreeMap<String, String> = ask(port, &["HGETALL", "claims"]).unwrap();
    let held: BTreeMap<String, String> = ask(port, &["HGETALL", "geartrain:wk:s:owner"]).unwrap();
    claims.extend(held);
    let run = |record: &String| {
        let record: serde_json::Value = serde_json::from_str(record).unwrap();
        record["run"].as_str().unwrap().parse::<f64>().unwrap() as i64
    };
    let mut runs: Vec<i64> = claims.values().map(run).collect();
    runs.sort_unstable();
    let next = peer.entries()[0].1 as i64;
    let expected: Vec<i64> = (first..next).step_by(1_000).collect();
    assert!(runs.len() as u64 > kills);
    assert_eq!(runs, expected, "each run has one claim");
}

#[test]
fn a_job_in_flight_at_a_kill_runs_again_after_its_lease() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "?lease=1");
    Peer::at(redis.port(), "s").enqueue("once", r##"{"cron":"2014 3 5 * 9 34 16","job":"#'a/b"}"##, 1);
    let first = block_on(backend.pop_or_wait(pop(1), Seconds::ZERO)).unwrap().jobs;
    assert_eq!(first.len(), 1);
    // As if it were killed: nothing is reported.
    drop(backend);
    let other = connect(&redis, "?lease=60");
    let again = block_on(other.pop_or_wait(pop(1), Seconds::from(60))).unwrap().jobs;
    assert_eq!(again.first().map(|job| &job.jid), first.first().map(|job| &job.jid));
    assert_eq!(ask::<u64>(redis.port(), &["ZCARD", "geartrain:wk:s:inflight"]).unwrap(), 1);
}
