//! The command on Worqr's queues: every command that it serves, a killed worker, and what is refused.

use std::process::{Child, Command, Output, Stdio};

use geartrain_testkit::peers::{RedisServer, Scratch, until};
use serde_json::{Value, json};

struct Queues {
    redis: RedisServer,
}

/// A running command, killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // SIGKILL; it fails only if the process has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Queues {
    fn start() -> Queues {
        Queues { redis: RedisServer::start(&[]) }
    }

    fn command(&self, options: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_geartrain"));
        command.args(["--url", &format!("worqr+{}{options}", self.redis.url())]).args(arguments);
        command.env_remove("GEARTRAIN_URL");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        // A long timer, so that locks outlast a slow machine.
        self.command("?timer=60", arguments).output().unwrap()
    }

    /// The standard output and the remarks of a command that must succeed.
    fn both(&self, arguments: &[&str]) -> (String, String) {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
        (String::from_utf8(output.stdout).unwrap().trim_end().to_owned(), error)
    }

    fn ok(&self, arguments: &[&str]) -> String {
        self.both(arguments).0
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// The error of a command and its exit code.
    fn error(&self, arguments: &[&str]) -> (String, Option<i32>) {
        let output = self.run(arguments);
        (String::from_utf8(output.stderr).unwrap().trim_end().to_owned(), output.status.code())
    }
}

#[test]
fn jobs_go_through_a_queue() {
    let queues = Queues::start();
    let (printed, remark) = queues.both(&["put", "q", "q", "one"]);
    assert_eq!(printed, "", "there is no id to print");
    assert!(remark.contains("the job has no id while it waits"), "{remark}");
    let put = queues.json(&["put", "q", "q", "two", "--unique", "two"]);
    assert_eq!(put, json!({ "jid": null, "outcome": "unnamed", "coalesced": false }));
    let peeked = queues.json(&["peek", "q", "--count", "9"]);
    assert_eq!((&peeked[0]["payload"], &peeked[1]["payload"]), (&"one".into(), &"two".into()));
    let batch = Scratch::new("worqr-batch");
    let file = batch.path().join("jobs");
    std::fs::write(&file, "{\"payload\":\"three\"}\n{\"payload\":\"four\"}\n").unwrap();
    assert_eq!(queues.json(&["put", "q", "q", "--batch", file.to_str().unwrap()])["put"], 2);

    let (popped, remark) = queues.both(&["pop", "q", "--worker", "w1", "--count", "2", "--json"]);
    assert!(remark.contains("the lock lasts 1m, and the job then goes back to its queue"), "{remark}");
    let popped: Value = serde_json::from_str(&popped).unwrap();
    let jid = |at: usize| popped[at]["jid"].as_str().unwrap();
    let token = popped[0]["token"].as_str().unwrap();
    assert!(jid(0).starts_with("q_"), "the id of the process");
    assert_eq!(popped[0]["payload"], "one");
    assert_eq!(queues.json(&["get", jid(0)])["state"], "running");
    assert_eq!(queues.json(&["status", jid(0)])["state"], "running");
    assert_eq!(queues.json(&["jobs"]).as_array().unwrap().len(), 2);
    assert_eq!(queues.json(&["jobs", "--state", "running", "--queue", "q"]).as_array().unwrap().len(), 2);
    let counts = queues.json(&["queues"]);
    assert_eq!((&counts[0]["waiting"], &counts[0]["running"]), (&2.into(), &2.into()));
    let workers = queues.json(&["workers"]);
    assert_eq!((&workers[0]["running"], &workers[0]["can"][0]["queue"]), (&2.into(), &"q".into()));
    assert_eq!(queues.json(&["workers", "w1"]).as_array().unwrap().len(), 2);
    assert!(queues.ok(&["roll-call", "q"]).contains('1'));
    queues.ok(&["heartbeat", jid(0), "--token", token]);
    queues.ok(&["complete", jid(0), "--token", token]);
    queues.ok(&["hand-back", jid(1), "--worker", "w1"]);
    assert_eq!(queues.json(&["peek", "q"])[0]["payload"], "two", "back at the front");

    let again = queues.json(&["pop", "q", "--worker", "w2"]);
    queues.ok(&["retry", again[0]["jid"].as_str().unwrap(), "--worker", "w2"]);
    let again = queues.json(&["pop", "q", "--worker", "w2"]);
    assert_eq!(again[0]["remaining"], 4, "{again}");
    let failed = again[0]["jid"].as_str().unwrap();
    queues.ok(&["fail", failed, "g", "no paper", "--worker", "w2"]);

    assert_eq!(queues.json(&["cancel", "--queue", "q", "--payload", "three"]), json!({ "cancelled": 1 }));
    assert_eq!(queues.ok(&["work", "q", "--drain", "--", "cat"]), "1 job completed");
    assert_eq!(queues.json(&["queues"]), json!([]));
}

#[test]
fn a_lock_lasts_three_seconds_unless_the_url_says_otherwise() {
    let queues = Queues::start();
    queues.ok(&["put", "q", "q", "one"]);
    let output = queues.command("", &["pop", "q"]).output().unwrap();
    let remark = String::from_utf8(output.stderr).unwrap();
    assert!(remark.contains("the lock lasts 3s"), "{remark}");
}

#[test]
fn a_client_waits_for_a_result_and_events_are_printed() {
    let queues = Queues::start();
    let mut listening = queues.command("", &["events", "--json", "--count", "2"]);
    let listening = Running(listening.stdout(Stdio::piped()).spawn().unwrap());
    until("it is subscribed", || {
        let mut connection = connection(&queues.redis);
        let patterns: u64 = redis::cmd("PUBSUB").arg("NUMPAT").query(&mut connection).unwrap();
        patterns == 1
    });
    let work = ["work", "sums", "--", "sh", "-c", "cat >/dev/null; echo 42"];
    let _working = Running(queues.command("", &work).stdout(Stdio::null()).spawn().unwrap());
    let received = queues.json(&["put", "sums", "sums", "40+2", "--wait", "60s"]);
    assert_eq!((&received["jid"], &received["how"]), (&Value::Null, &"completed".into()), "{received}");
    let mut listening = listening;
    let events = std::io::read_to_string(listening.0.stdout.take().unwrap()).unwrap();
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["put", "completed"]);
}

fn connection(redis: &RedisServer) -> redis::Connection {
    redis::Client::open(redis.url()).unwrap().get_connection().unwrap()
}

#[test]
fn the_tasks_of_a_killed_worker_are_back_at_the_front_by_the_second_look() {
    let queues = Queues::start();
    for task in ["1", "2", "3", "4"] {
        queues.ok(&["put", "q", "q", task]);
    }
    let scratch = Scratch::new("worqr-killed");
    let started = scratch.path().join("started");
    let mark = format!("echo x >> {}; exec sleep 600", started.display());
    let options = "?timer=0.6&heartbeat=0.2";
    let work = ["work", "q", "--concurrency", "3", "--", "sh", "-c", &mark];
    let mut killed = Running(queues.command(options, &work).stderr(Stdio::null()).spawn().unwrap());
    until("it holds three tasks", || {
        std::fs::read_to_string(&started).is_ok_and(|text| text.lines().count() == 3)
    });
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    let mut connection = connection(&queues.redis);
    let waiting: Vec<String> =
        redis::cmd("LRANGE").arg("worqr:queues:q").arg(0).arg(-1).query(&mut connection).unwrap();
    assert_eq!(waiting, ["4"]);

    // Looks are an hour apart, but for the first two: one when a worker starts, while the timer runs still or has
    // run out, and one by hand.
    let done = scratch.path().join("done");
    let write = format!("cat >> {0}; echo >> {0}", done.display());
    let other = ["work", "q", "--drain", "--concurrency", "1", "--", "sh", "-c", &write];
    until("the timer ran out", || {
        let timers: Vec<String> =
            redis::cmd("KEYS").arg("worqr:workerTimers:*").query(&mut connection).unwrap();
        timers.is_empty()
    });
    let watched = watch(&queues.redis);
    let looks = format!("{options}&reap=0.5");
    let mut idle = queues.command(&looks, &["pop", "other", "--wait", "60s"]);
    let _looking = Running(idle.stderr(Stdio::null()).spawn().unwrap());
    let (back, looks) = watched.join().unwrap();
    assert_eq!(back, ["1", "2", "3", "4"], "at the front in their order");
    assert!((1..=2).contains(&looks), "after {looks} looks");
    let output = queues.command("?timer=60", &other).output().unwrap();
    assert!(output.status.success());
    assert_eq!(std::fs::read_to_string(&done).unwrap(), "1\n2\n3\n4\n", "each once");
    let workers: Vec<String> = redis::cmd("SMEMBERS").arg("worqr:workers").query(&mut connection).unwrap();
    assert_eq!(workers.len(), 1, "the killed one is removed: {workers:?}");
}

/// Counts the looks for dead workers until tasks are announced, and returns the queue then, the next task first.
fn watch(redis: &RedisServer) -> std::thread::JoinHandle<(Vec<String>, usize)> {
    let client = redis::Client::open(redis.url()).unwrap();
    let mut monitor = client.get_connection().unwrap();
    monitor.send_packed_command(&redis::cmd("MONITOR").get_packed_command()).unwrap();
    assert_eq!(monitor.recv_response().unwrap(), redis::Value::Okay);
    std::thread::spawn(move || {
        let mut looks = 0;
        loop {
            let redis::Value::SimpleString(line) = monitor.recv_response().unwrap() else { continue };
            looks += usize::from(line.contains("\"SMEMBERS\" \"worqr:expiringWorkers\""));
            if line.to_lowercase().contains("\"publish\" \"worqr_q_work\" \"4\"") {
                let mut connection = client.get_connection().unwrap();
                let mut tasks: Vec<String> =
                    redis::cmd("LRANGE").arg("worqr:queues:q").arg(0).arg(-1).query(&mut connection).unwrap();
                tasks.reverse();
                return (tasks, looks);
            }
        }
    })
}

#[test]
fn what_worqr_does_not_have_is_refused_in_one_sentence() {
    let queues = Queues::start();
    for (arguments, expected, code) in [
        (
            &["put", "q", "q", "x", "--priority", "1"][..],
            "geartrain: the worqr backend cannot order tasks by priority",
            1,
        ),
        (&["put", "q", "q", "x", "--in", "5s"], "geartrain: the worqr backend cannot delay a task", 1),
        (&["put", "q", "k", "x"], "geartrain: klass must be q, as the queue is", 1),
        (&["put", "a:b", "a:b", "x"], "geartrain: queue must have no colon", 1),
        (&["put", "q", "q", "x", "--unique", "k"], "geartrain: unique key must be the payload itself", 1),
        (
            &["put", "q", "q", "x", "--every", "1d"],
            "geartrain: the worqr backend cannot keep recurring jobs",
            1,
        ),
        (&["put", "q", "q", "x", "--tag", "t"], "geartrain: the worqr backend cannot tag a task", 1),
        (
            &["put", "q", "q", "x", "--depends", "j"],
            "geartrain: the worqr backend cannot make a task depend",
            1,
        ),
        (&["cancel", "j1"], "geartrain: the worqr backend cannot cancel a job by its id", 1),
        (
            &["progress", "j1", "1/2", "--worker", "w"],
            "geartrain: the worqr backend cannot report progress",
            1,
        ),
        (&["result", "j1"], "geartrain: the worqr backend cannot keep a result", 1),
        (&["events", "--after", "3"], "geartrain: the worqr backend cannot keep events", 1),
        (&["pause", "q"], "geartrain: the worqr backend cannot pause a queue", 1),
        (
            &["jobs", "--state", "waiting", "--queue", "q"],
            "geartrain: the worqr backend cannot list waiting tasks by id",
            1,
        ),
        (&["get", "q_1"], "geartrain: job q_1 does not exist", 1),
        (
            &["cancel", "--payload", "x"],
            "geartrain: the following required arguments were not provided: --queue",
            2,
        ),
    ] {
        let (error, actual) = queues.error(arguments);
        assert!(error.starts_with(expected), "{arguments:?}: {error}");
        assert_eq!((error.lines().count(), actual), (1, Some(code)), "{error}");
    }
    let memory = Command::new(env!("CARGO_BIN_EXE_geartrain"))
        .args(["--url", "memory:", "cancel", "--queue", "q", "--payload", "x"])
        .output()
        .unwrap();
    let error = String::from_utf8(memory.stderr).unwrap();
    assert!(error.starts_with("geartrain: --payload is for Worqr's queues"), "{error}");
    let prefix = queues.command("?prefix=my_app", &["queues"]).output().unwrap();
    assert!(String::from_utf8(prefix.stderr).unwrap().contains("prefix has no _ and no :"));
}
