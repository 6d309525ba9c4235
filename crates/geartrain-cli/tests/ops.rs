//! Looking after a directory from the command line: check, salvage and backup.

use crate::place;

use place::Place;
use serde_json::json;

impl Place {
    /// Runs a command that must fail with a code, and answers its one sentence.
    fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let (out, err, found) = self.try_run(arguments);
        assert_eq!((out.as_str(), found), ("", code), "{arguments:?}: {err}");
        assert!(err.starts_with("geartrain: ") && err.matches('\n').count() == 1, "{err}");
        err
    }

    /// Puts a few jobs, each from a process of its own.
    fn with_jobs() -> Place {
        let place = Place::new();
        for n in 0..4 {
            place.run(&["put", "mail", "welcome", "{}", "--jid", &format!("j{n}")]);
        }
        place.run(&["put", "mail", "welcome", "--in", "1h"]);
        place.run(&["recur", "add", "reports", "nightly", "--every", "1d", "--in", "1h"]);
        place
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
    let place = Place::with_jobs();
    let found = place.json(&["check"]);
    let jobs =
        json!({ "scheduled": 1, "depends": 0, "waiting": 4, "running": 0, "complete": 0, "failed": 0 });
    assert_eq!(found["jobs"], jobs);
    assert_eq!((&found["queues"], &found["recurring"]), (&json!(2), &json!(1)));
    assert_eq!((&found["log_segments"], &found["log_bytes"]), (&json!(1), &json!(8 << 20)));
    assert_eq!(found["checkpoint_bytes"], 0);
    assert!(found["changes"].as_u64().unwrap() > 5);
    let text = place.run(&["check"]);
    assert!(text.starts_with(&format!("{} is sound\n", place.path("data"))), "{text}");
    assert!(text.lines().any(|line| line.split_whitespace().eq(["waiting", "4"])), "{text}");
    assert!(text.lines().any(|line| line.split_whitespace().eq(["log", "8.0", "MiB"])), "{text}");
}

#[test]
fn only_a_directory_can_be_looked_after() {
    let place = Place::new();
    for command in [&["check"][..], &["check", "--salvage", "out"], &["backup", "out"]] {
        let err = place.fails(2, &[&["--url", "memory:"], command].concat());
        assert!(err.contains("give --url embedded:DIR"), "{err}");
        let err = place.fails(3, command);
        assert!(err.contains("there is no directory"), "{err}");
        assert!(!place.directory.join("data").exists());
    }
}

#[test]
fn a_directory_in_use_is_left_alone() {
    let place = Place::with_jobs();
    // As the process does that has it.
    let lock = std::fs::File::open(place.directory.join("data/lock")).unwrap();
    lock.lock().unwrap();
    let out = place.path("out");
    for command in [&["check"][..], &["check", "--salvage", &out], &["backup", &out]] {
        let err = place.fails(3, command);
        assert!(err.contains("another process uses this directory"), "{err}");
    }
    drop(lock);
    assert!(!place.directory.join("out").exists());
    place.run(&["check"]);
}

#[test]
fn damage_is_named_and_what_came_before_it_can_be_saved() {
    let place = Place::with_jobs();
    place.damage();
    let data = place.directory.join("data/log-00000000000000000001");
    let before = std::fs::read(&data).unwrap();
    let err = place.fails(1, &["check"]);
    assert!(err.contains("segment 1 (file log-00000000000000000001) is damaged at byte 16384: "), "{err}");
    assert!(err.contains("`geartrain check --salvage OUT`"), "{err}");
    // Whoever wants to work with it is told the same.
    assert!(place.fails(3, &["queues"]).contains("`geartrain check --salvage OUT`"));

    let out = place.path("out");
    let text = place.run(&["check", "--salvage", &out]);
    assert!(text.contains("the copy ends where segment 1 "), "{text}");
    assert!(text.contains("good batches behind it"), "{text}");
    assert_eq!(std::fs::read(&data).unwrap(), before);
    assert!(place.fails(2, &["check", "--salvage", &out]).contains("is not empty"));

    let again = place.json(&["check", "--salvage", &place.path("again")]);
    assert_eq!((&again["saved"]["jobs"]["waiting"], &again["batches"]), (&json!(1), &json!(3)));
    assert!(
        again["damage"].as_str().unwrap().contains("byte 16384") && again["left_batches"] == 8,
        "{again}"
    );
    let url = place.url("out");
    assert_eq!(place.json(&["--url", &url, "queues", "mail"])[0]["waiting"], 1);
    assert_eq!(place.json(&["--url", &url, "check"])["jobs"]["waiting"], 1);
}

#[test]
fn a_backup_is_a_queue_of_its_own() {
    let place = Place::with_jobs();
    let out = place.path("out");
    let copied = place.json(&["backup", &out]);
    assert_eq!((&copied["directory"], &copied["log_segments"]), (&json!(out), &json!(1)));
    place.run(&["cancel", "j0"]);
    let url = place.url("out");
    assert_eq!(place.json(&["--url", &url, "check"])["jobs"]["waiting"], 4);
    assert_eq!(place.json(&["--url", &url, "get", "j0"])["state"], "waiting");
    assert_eq!(place.json(&["check"])["jobs"]["waiting"], 3);
    assert!(place.fails(2, &["backup", &out]).contains("is not empty"));
    assert_eq!(
        place.run(&["backup", &place.path("more")]),
        format!("copied 8.0 MiB to {}\n", place.path("more"))
    );
}
