//! Maintenance of a data directory: check, salvage and backup.

use crate::sandbox;

use sandbox::Sandbox;
use serde_json::json;

impl Sandbox {
    /// Runs a command that must fail with this code, and returns its error.
    fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let (out, err, found) = self.try_run(arguments);
        assert_eq!((out.as_str(), found), ("", code), "{arguments:?}: {err}");
        assert!(err.starts_with("geartrain: ") && err.matches('\n').count() == 1, "{err}");
        err
    }

    /// Submits a few jobs, each from its own process.
    fn with_jobs() -> Sandbox {
        let sandbox = Sandbox::new();
        for n in 0..4 {
            sandbox.run(&["put", "mail", "welcome", "{}", "--jid", &format!("j{n}")]);
        }
        sandbox.run(&["put", "mail", "welcome", "--in", "1h"]);
        sandbox.run(&["recur", "add", "reports", "nightly", "--every", "1d", "--in", "1h"]);
        sandbox
    }

    /// Damages what the second process wrote: its opening is the third batch, its job the fourth.
    fn damage(&self) {
        let file = self.directory.join("data/log-00000000000000000001");
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[4 * 4096 + 80] ^= 1;
        std::fs::write(file, bytes).unwrap();
    }
}

#[test]
fn check_prints_what_it_found() {
    let sandbox = Sandbox::with_jobs();
    let found = sandbox.json(&["check"]);
    let jobs =
        json!({ "scheduled": 1, "depends": 0, "waiting": 4, "running": 0, "complete": 0, "failed": 0 });
    assert_eq!(found["jobs"], jobs);
    assert_eq!((&found["queues"], &found["recurring"]), (&json!(2), &json!(1)));
    assert_eq!((&found["log_segments"], &found["log_bytes"]), (&json!(1), &json!(8 << 20)));
    assert_eq!(found["checkpoint_bytes"], 0);
    assert!(found["changes"].as_u64().unwrap() > 5);
    let text = sandbox.run(&["check"]);
    assert!(text.starts_with(&format!("{} is not damaged\n", sandbox.path("data"))), "{text}");
    assert!(text.lines().any(|line| line.split_whitespace().eq(["waiting", "4"])), "{text}");
    assert!(text.lines().any(|line| line.split_whitespace().eq(["log", "8.0", "MiB"])), "{text}");
}

#[test]
fn check_and_backup_need_a_data_directory() {
    let sandbox = Sandbox::new();
    for command in [&["check"][..], &["check", "--salvage", "out"], &["backup", "out"]] {
        let err = sandbox.fails(2, &[&["--url", "memory:"], command].concat());
        assert!(err.contains("give --url embedded:DIR"), "{err}");
        let err = sandbox.fails(3, command);
        assert!(err.contains("there is no directory"), "{err}");
        assert!(!sandbox.directory.join("data").exists());
    }
}

#[test]
fn a_directory_in_use_is_not_touched() {
    let sandbox = Sandbox::with_jobs();
    // Locked like by the process that owns it.
    let lock = std::fs::File::open(sandbox.directory.join("data/lock")).unwrap();
    lock.lock().unwrap();
    let out = sandbox.path("out");
    for command in [&["check"][..], &["check", "--salvage", &out], &["backup", &out]] {
        let err = sandbox.fails(3, command);
        assert!(err.contains("another process uses this directory"), "{err}");
    }
    drop(lock);
    assert!(!sandbox.directory.join("out").exists());
    sandbox.run(&["check"]);
}

#[test]
fn damage_is_reported_and_salvage_recovers_what_came_before_it() {
    let sandbox = Sandbox::with_jobs();
    sandbox.damage();
    let data = sandbox.directory.join("data/log-00000000000000000001");
    let before = std::fs::read(&data).unwrap();
    let err = sandbox.fails(1, &["check"]);
    assert!(err.contains("segment 1 (file log-00000000000000000001) is damaged at byte 16384: "), "{err}");
    assert!(err.contains("`geartrain check --salvage OUT`"), "{err}");
    // Other commands report the same.
    assert!(sandbox.fails(3, &["queues"]).contains("`geartrain check --salvage OUT`"));

    let out = sandbox.path("out");
    let text = sandbox.run(&["check", "--salvage", &out]);
    assert!(text.contains("the copy ends where segment 1 "), "{text}");
    assert!(text.contains("good batches after it"), "{text}");
    assert_eq!(std::fs::read(&data).unwrap(), before);
    assert!(sandbox.fails(2, &["check", "--salvage", &out]).contains("is not empty"));

    let again = sandbox.json(&["check", "--salvage", &sandbox.path("again")]);
    assert_eq!((&again["saved"]["jobs"]["waiting"], &again["batches"]), (&json!(1), &json!(3)));
    assert!(
        again["damage"].as_str().unwrap().contains("byte 16384") && again["left_batches"] == 8,
        "{again}"
    );
    let url = sandbox.url("out");
    assert_eq!(sandbox.json(&["--url", &url, "queues", "mail"])[0]["waiting"], 1);
    assert_eq!(sandbox.json(&["--url", &url, "check"])["jobs"]["waiting"], 1);
}

#[test]
fn a_backup_is_an_independent_queue() {
    let sandbox = Sandbox::with_jobs();
    let out = sandbox.path("out");
    let copied = sandbox.json(&["backup", &out]);
    assert_eq!((&copied["directory"], &copied["log_segments"]), (&json!(out), &json!(1)));
    sandbox.run(&["cancel", "j0"]);
    let url = sandbox.url("out");
    assert_eq!(sandbox.json(&["--url", &url, "check"])["jobs"]["waiting"], 4);
    assert_eq!(sandbox.json(&["--url", &url, "get", "j0"])["state"], "waiting");
    assert_eq!(sandbox.json(&["check"])["jobs"]["waiting"], 3);
    assert!(sandbox.fails(1, &["backup", &out]).contains("is not empty"));
    let (more, text) = (sandbox.path("more"), sandbox.run(&["backup", &sandbox.path("more")]));
    assert!(text.starts_with(&format!("backed up 8.0 MiB with 4 jobs to {more} in ")), "{text}");
}
