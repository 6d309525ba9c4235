//! The command on GearMonkey functions: put, work, pop and what follows, and what is refused.

use std::process::{Command, Output, Stdio};

use geartrain_testkit::peers::{RedisServer, Scratch, until};
use serde_json::Value;

struct Functions {
    redis: RedisServer,
    options: &'static str,
}

impl Functions {
    fn start(options: &'static str) -> Functions {
        Functions { redis: RedisServer::start(&[]), options }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_geartrain"));
        command
            .args(["--url", &format!("gearmonkey+{}{}", self.redis.url(), self.options)])
            .args(arguments)
            .env_remove("GEARTRAIN_URL");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The standard output of a command that must succeed.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// The error of a command and its exit code.
    fn error(&self, arguments: &[&str]) -> (String, Option<i32>) {
        let output = self.run(arguments);
        (String::from_utf8(output.stderr).unwrap().trim_end().to_owned(), output.status.code())
    }

    /// A command to the Redis itself.
    fn redis(&self, words: &str) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.redis.port().to_string()]).args(words.split(' '));
        String::from_utf8(command.output().unwrap().stdout).unwrap().trim_end().to_owned()
    }
}

#[test]
fn jobs_go_through_a_function() {
    let functions = Functions::start("");
    let put = functions.json(&["put", "up", "up", "hello", "--priority", "1"]);
    assert_eq!((&put["jid"], &put["outcome"]), (&"up:1".into(), &"named".into()));
    assert_eq!(functions.ok(&["put", "up", "up", "later", "--in", "1h"]), "up:2");
    assert_eq!(functions.ok(&["put", "up", "up", "retried", "--retries", "1"]), "up:3");
    assert_eq!(functions.json(&["get", "up:2"])["state"], "scheduled");
    assert_eq!(functions.json(&["peek", "up"])[0]["jid"], "up:1");
    assert_eq!(functions.json(&["jobs"]).as_array().unwrap().len(), 3);
    let queues = functions.json(&["queues", "up"]);
    assert!(queues.to_string().contains(r#""scheduled":1"#), "{queues}");

    let popped = functions.json(&["pop", "up", "--worker", "w1", "--count", "2"]);
    let token = |at: usize| popped[at]["token"].as_str().unwrap();
    assert_eq!((&popped[0]["jid"], &popped[1]["jid"]), (&"up:1".into(), &"up:3".into()));
    functions.ok(&["heartbeat", "up:1", "--token", token(0)]);
    functions.ok(&["progress", "up:1", "3/10", "--token", token(0)]);
    assert!(functions.ok(&["status", "up:1"]).contains("30%"));
    assert_eq!(functions.json(&["workers"])[0]["name"], "w1");
    functions.ok(&["complete", "up:1", "--token", token(0)]);
    assert_eq!(functions.json(&["result", "up:1"])["jid"], "up:1");
    functions.ok(&["retry", "up:3", "--token", token(1)]);
    let popped = functions.json(&["pop", "up", "--worker", "w1", "--wait", "60s"]);
    functions.ok(&["hand-back", "up:3", "--token", popped[0]["token"].as_str().unwrap()]);
    let popped = functions.json(&["pop", "up", "--worker", "w1"]);
    let token = popped[0]["token"].as_str().unwrap();
    functions.ok(&["fail", "up:3", "bad", "it broke", "--token", token]);
    assert_eq!(functions.redis("HGET job:up:3 output"), "it broke");
    assert_eq!(functions.json(&["get", "up:3"])["state"], "failed");
    assert_eq!(functions.ok(&["cancel", "up:2"]), "1 job cancelled");
    assert_eq!(functions.redis("HGET job:up:2 output"), "cancelled");

    functions.ok(&["put", "up", "up", "[1]"]);
    assert_eq!(functions.ok(&["work", "up", "--drain", "--", "cat"]), "1 job completed");
    assert_eq!(functions.redis("HGET job:up:4 output"), "[1]");
    assert_eq!(functions.redis("GET count:up"), "0");
}

#[test]
fn the_job_of_a_killed_worker_comes_back_and_a_put_waits_for_it() {
    let functions = Functions::start("?lease=1");
    let (error, code) = functions.error(&["put", "up", "up", "x", "--roll-call"]);
    assert!(error.starts_with("geartrain: no worker has announced that it can do up in queue up"), "{error}");
    assert_eq!(code, Some(1));
    assert_eq!(functions.run(&["roll-call", "up"]).status.code(), Some(1));
    let mut killed = functions
        .command(&["work", "up", "--", "sleep", "600"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the worker is registered", || functions.redis("GET count:up") == "1");
    assert_eq!(functions.ok(&["roll-call", "up"]), "1");
    let waiting = functions
        .command(&["put", "up", "up", "\"back\"", "--roll-call", "--wait", "60s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the worker has the job", || functions.redis("HGET job:up:1 status") == "busy");
    killed.kill().unwrap();
    killed.wait().unwrap();
    let worked = functions.ok(&["work", "up", "--once", "--", "cat"]);
    assert!(worked.contains("1 job completed"), "{worked}");
    assert_eq!(waiting.wait_with_output().unwrap().stdout, b"\"back\"");
    assert_eq!(functions.redis("HGET job:up:1 gt:lost"), "1");
    // The other worker has taken itself off the counter. The deadline of the killed one is moved up.
    assert_eq!(functions.redis("GET count:up"), "1");
    let name = functions.redis("ZRANGE geartrain:gm:up:workers 0 -1");
    functions.redis(&format!("ZADD geartrain:gm:up:workers XX 1 {name}"));
    assert_eq!(functions.run(&["roll-call", "up"]).status.code(), Some(1));
    assert_eq!(functions.redis("GET count:up"), "0");
}

#[test]
fn the_counter_of_workers_that_others_left_behind_is_set() {
    let functions = Functions::start("");
    for (left, shown) in [("3", "0, was 3"), ("-2", "0, was -2"), ("many", "0, was many")] {
        functions.redis(&format!("SET count:up {left}"));
        assert_eq!(functions.ok(&["roll-call", "up", "--set", "0"]), shown);
        assert_eq!(functions.run(&["put", "up", "up", "x", "--roll-call"]).status.code(), Some(1));
    }
    let set = functions.json(&["roll-call", "up", "--set", "2"]);
    assert_eq!(set, serde_json::json!({ "queue": "up", "workers": 2, "before": "0" }));
    assert_eq!(functions.ok(&["roll-call", "up"]), "2");
    // In production only after a confirmation.
    let scratch = Scratch::new("production");
    let config = scratch.path().join("geartrain.toml");
    let url = format!("gearmonkey+{}", functions.redis.url());
    std::fs::write(&config, format!("[context.live]\nurl = \"{url}\"\nproduction = true\n")).unwrap();
    let set = |more: &[&str]| {
        let given =
            ["--config", config.to_str().unwrap(), "--context", "live", "roll-call", "up", "--set", "1"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_geartrain"));
        command.args(given).args(more).env_remove("GEARTRAIN_URL").stdin(Stdio::null()).output().unwrap()
    };
    assert_eq!(set(&[]).status.code(), Some(2));
    assert_eq!(functions.ok(&["roll-call", "up"]), "2");
    assert!(set(&["--yes"]).status.success());
    functions.redis("DEL count:up");
    functions.redis("LPUSH count:up x");
    let (error, code) = functions.error(&["roll-call", "up", "--set", "0"]);
    assert_eq!((code, error.contains("count:up")), (Some(1), true), "{error}");
}

#[test]
fn a_job_that_another_implementation_has_lost_is_listed_and_queued_again() {
    let functions = Functions::start("");
    functions.ok(&["put", "up", "up", "x"]);
    functions.redis("RPOP queue:up:normal");
    functions.redis("HSET job:up:1 status busy");
    let stalled = functions.json(&["jobs", "--queue", "up", "--state", "stalled"]);
    assert_eq!(stalled[0]["jid"], "up:1");
    functions.ok(&["requeue", "up:1"]);
    assert_eq!(functions.json(&["pop", "up", "--worker", "w"])[0]["jid"], "up:1");
}

#[test]
fn what_a_function_does_not_have_is_refused_in_one_sentence() {
    let functions = Functions::start("");
    for (arguments, expected) in [
        (&["put", "up", "other", "x"][..], "klass must be up, as the queue is"),
        (&["put", "up", "up", "x", "--tag", "t"], "the gearmonkey backend cannot tag a job"),
        (&["put", "up", "up", "x", "--unique", "k"], "the gearmonkey backend cannot take a unique key"),
        (
            &["put", "up", "up", "x", "--every", "1h"],
            "the gearmonkey backend cannot run a job again and again",
        ),
        (
            &["put", "up", "up", "x", "--in", "5", "--priority", "1"],
            "the gearmonkey backend cannot delay a job that has a priority",
        ),
        (&["events", "--after", "0"], "the gearmonkey backend cannot store events"),
        (&["priority", "up:1", "5"], "the gearmonkey backend cannot change a job's priority"),
        (&["pause", "up"], "the gearmonkey backend cannot pause a function"),
        (&["track", "up:1"], "the gearmonkey backend cannot track a job"),
        (&["why", "up:1"], "the gearmonkey backend cannot explain why a job is not running"),
        (&["get", "x"], "jid must be FUNCTION:NUMBER, as in resize:7, not x"),
        (&["get", "up:1"], "job up:1 does not exist"),
    ] {
        let (error, code) = functions.error(arguments);
        assert!(error.starts_with(&format!("geartrain: {expected}")), "{arguments:?}: {error}");
        assert_eq!(code, Some(1), "{arguments:?}");
    }
    assert_eq!(functions.redis("KEYS *"), "");
}
