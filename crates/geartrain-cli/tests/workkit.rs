//! The command on WorkKit schedules: put, work, jobs, get, cancel, and what is refused.

use std::process::{Command, Output};

use geartrain_testkit::peers::{RedisServer, Scratch};
use serde_json::Value;

struct Schedules {
    redis: RedisServer,
}

impl Schedules {
    fn start() -> Schedules {
        Schedules { redis: RedisServer::start(&[]) }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_geartrain"))
            .args(["--url", &format!("workkit+{}", self.redis.url())])
            .args(arguments)
            .env_remove("GEARTRAIN_URL")
            .output()
            .unwrap()
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
}

#[test]
fn jobs_go_through_a_schedule() {
    let schedules = Schedules::start();
    let put = ["put", "tasks", "cache/clear", r#"["users"]"#, "--at", "2099-01-01T00:00:00Z"];
    let first = schedules.json(&put);
    assert_eq!(first["outcome"], "named");
    let jid = first["jid"].as_str().unwrap();
    assert_eq!(jid.len(), 40);
    assert_eq!(schedules.json(&["get", jid])["due"], 4_070_908_800_i64, "to the second");
    let equal = schedules.json(&put);
    assert_eq!((&equal["outcome"], &equal["jid"]), (&"existing".into(), &first["jid"]));
    let second = schedules.json(&[&put[..], &["--nonce"]].concat());
    assert_eq!(second["outcome"], "named");
    assert_ne!(second["jid"], first["jid"]);

    let scratch = Scratch::new("workkit-batch");
    let file = scratch.path().join("jobs");
    std::fs::write(&file, r#"{"klass":"cache/clear","payload":["users"],"at":"2099-01-01T00:00:00Z"}"#)
        .unwrap();
    let batch = schedules.json(&["put", "tasks", "--batch", file.to_str().unwrap()]);
    assert_eq!(batch["existing"], 1, "the same second, and so the same job: {batch}");

    let now = schedules.ok(&["put", "tasks", "cache/clear", "[1]"]);
    assert_eq!(schedules.ok(&["put", "tasks", "cache/fill", "[2]"]).len(), 40);
    let listed = schedules.json(&["jobs", "--queue", "tasks"]);
    assert_eq!(listed.as_array().unwrap().len(), 4);
    assert_eq!(schedules.json(&["get", &now])["state"], "waiting");
    assert_eq!(schedules.json(&["get", jid])["state"], "scheduled");
    let counts = schedules.json(&["queues", "tasks"]);
    assert!(counts.to_string().contains(r#""scheduled":2"#), "{counts}");

    let worked = schedules.ok(&["work", "tasks", "--klass", "cache/clear", "--drain", "--", "cat"]);
    assert_eq!(worked, "1 job completed");
    let popped = schedules.json(&["pop", "tasks", "--klass", "cache/fill", "--worker", "w1"]);
    let (filled, token) = (popped[0]["jid"].as_str().unwrap(), popped[0]["token"].as_str().unwrap());
    assert_eq!(popped[0]["payload"], serde_json::json!([2]));
    assert_eq!(schedules.ok(&["complete", filled, "--token", token]), "complete");
    assert_eq!(schedules.ok(&["cancel", jid]), "1 job cancelled");
    assert_eq!(schedules.json(&["jobs"]).as_array().unwrap().len(), 1);

    schedules.ok(&["put", "tasks", "any/thing", "[]"]);
    assert_eq!(schedules.ok(&["work", "tasks", "--all", "--drain", "--", "cat"]), "1 job completed");
}

#[test]
fn recurring_jobs_are_added_listed_and_removed() {
    let schedules = Schedules::start();
    let added =
        schedules.json(&["recur", "add", "tasks", "cache/clear", r#"["x"]"#, "--cron", "every day at 7pm"]);
    let jid = added["jid"].as_str().unwrap();
    assert_eq!(jid.len(), 40);
    let listed = schedules.json(&["recur", "ls"]);
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["jid"]), (1, &added["jid"]));
    assert!(schedules.ok(&["recur", "get", jid]).contains("* * * * 19 0 0"));
    assert_eq!(schedules.json(&["get", jid])["state"], "scheduled");
    let same = schedules.json(&["put", "tasks", "cache/clear", r#"["x"]"#, "--cron", "* * * * 19 0 0"]);
    assert_eq!(same["jid"], added["jid"], "it is the same job");
    assert!(schedules.ok(&["why", jid]).contains(" is a recurring job of tasks: its next run is due "));
    assert!(schedules.error(&["why", "x"]).0.contains("cannot explain why a job is not running"));
    schedules.ok(&["recur", "rm", jid]);
    assert_eq!(schedules.json(&["recur", "ls"]), serde_json::json!([]));

    // The cron string is part of the id, and is not rewritten.
    let written = "2099 3 * 0/2,3 9-17 * */5";
    let added = schedules.json(&["put", "tasks", "cache/clear", "[]", "--cron", written]);
    let jid = added["jid"].as_str().unwrap();
    assert_eq!(schedules.json(&["recur", "get", jid])["text"], written);
    schedules.ok(&["recur", "rm", jid]);

    for (arguments, expected) in [
        (&["--cron", "CRON_TZ=Europe/Berlin 0 9 * * *"][..], "cannot run a job in a time zone"),
        (&["--cron", "hourly", "--overlap", "skip"], "cannot keep with a job whether runs overlap"),
        (&["--every", "1d"], "cannot run a job at an interval"),
    ] {
        let (error, code) = schedules.error(&[&["recur", "add", "tasks", "a/b", "[]"], arguments].concat());
        assert!(error.contains(expected), "{error}");
        assert_eq!(code, Some(1));
    }
}

#[test]
fn what_a_schedule_does_not_have_is_refused_in_one_sentence() {
    let schedules = Schedules::start();
    for (arguments, expected, code) in [
        (
            &["put", "s", "a/b", "[]", "--priority", "1"][..],
            "geartrain: the workkit backend cannot order jobs by priority: use several schedules",
            1,
        ),
        (&["put", "s", "mail", "[]"], "geartrain: klass must name a function with its namespace", 1),
        (&["put", "s", "a/b", "{}"], "geartrain: payload must be a JSON array", 1),
        (
            &["put", "s", "a/b", "[]", "--wait", "1s"],
            "geartrain: the workkit backend cannot wait for a result",
            1,
        ),
        (
            &["put", "s", "a/b", "[]", "--every", "1d"],
            "geartrain: the workkit backend cannot run a job at an interval: use a cron expression",
            1,
        ),
        (&["pause", "s"], "geartrain: the workkit backend cannot pause a schedule", 1),
        (&["pop", "s"], "geartrain: klasses must name the functions to take", 1),
        (&["work", "s", "--", "cat"], "geartrain: name the functions to run with --klass", 2),
        (&["get", "x"], "geartrain: job x does not exist", 1),
    ] {
        let (error, exit) = schedules.error(arguments);
        assert!(error.starts_with(expected), "{arguments:?}: {error}");
        assert_eq!(exit, Some(code), "{arguments:?}");
    }
    for (arguments, expected) in [
        (&["work", "q", "--all", "--", "cat"][..], "geartrain: --all is for WorkKit schedules"),
        (&["work", "q", "--literals", "--", "cat"], "geartrain: --literals is for WorkKit schedules"),
        (&["put", "q", "k", "--nonce"], "geartrain: --nonce is for WorkKit schedules"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_geartrain"))
            .args(["--url", "memory:"])
            .args(arguments)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(output.status.code(), Some(2));
    }
}
