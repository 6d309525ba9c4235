//! The command as scripts use it, each step in a process of its own, on a queue that outlives them.

use crate::place;

use std::io::Write;
use std::process::Stdio;

use place::Place;
use serde_json::{Value, json};

impl Place {
    fn run_with(&self, arguments: &[&str], input: &[u8]) -> String {
        let mut command = self.command(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn a_job_is_carried_to_complete_by_one_process_after_another() {
    let place = Place::new();
    let put = place.run(&["put", "mail", "welcome", r#"{"to":"a"}"#]);
    let jid = put.trim_end();
    let queues = place.json(&["queues"]);
    assert_eq!((&queues[0]["name"], &queues[0]["waiting"]), (&json!("mail"), &json!(1)));
    let popped = place.json(&["pop", "mail", "--worker", "w1"]);
    assert_eq!((&popped[0]["jid"], &popped[0]["payload"]), (&json!(jid), &json!({ "to": "a" })));
    let token = popped[0]["token"].as_str().unwrap();
    place.run(&["heartbeat", jid, "--token", token]);
    assert_eq!(place.run(&["complete", jid, "--token", token]), "complete\n");
    let job = place.json(&["get", jid]);
    assert_eq!(job["state"], "complete");
    let what: Vec<&Value> = job["history"].as_array().unwrap().iter().map(|entry| &entry["what"]).collect();
    assert_eq!(what, ["put", "popped", "done"]);
    assert!(place.run(&["get", jid]).contains("popped by w1\n"));
}

#[test]
fn payloads_keep_every_byte() {
    let place = Place::new();
    let file = place.directory.join("payload");
    std::fs::write(&file, b"\xff\0").unwrap();
    place.run(&["put", "q", "k", &format!("@{}", file.display()), "--jid", "file"]);
    place.run_with(&["put", "q", "k", "-", "--jid", "stdin"], b"two\nlines\n");
    place.run(&["put", "q", "k", "--jid", "none"]);
    for (jid, payload) in
        [("file", json!({ "$bytes": "/wA=" })), ("stdin", json!("two\nlines\n")), ("none", json!(""))]
    {
        assert_eq!(place.json(&["get", jid])["payload"], payload);
    }
}

#[test]
fn a_late_worker_is_refused() {
    let place = Place::new();
    place.run(&["put", "mail", "k", "--jid", "j1"]);
    let token = place.json(&["pop", "mail", "--worker", "w1"])[0]["token"].as_str().unwrap().to_owned();
    place.run(&["timeout", "j1"]);
    let (out, err, code) = place.try_run(&["complete", "j1", "--token", &token]);
    assert_eq!((out.as_str(), code), ("", 1));
    assert!(err.starts_with("geartrain: the lock on job j1 is lost: "), "{err}");
}

#[test]
fn failed_jobs_go_back_to_their_queues() {
    let place = Place::new();
    for queue in ["mail", "news"] {
        place.run(&["put", queue, "k", queue, "--jid", queue]);
        place.run(&["pop", queue, "--worker", "w1"]);
        place.run(&["fail", queue, "smtp", "it said 451", "--worker", "w1"]);
    }
    assert_eq!(place.json(&["failed"]), json!([{ "group": "smtp", "count": 2 }]));
    assert_eq!(place.json(&["unfail", "smtp"]), json!({ "group": "smtp", "moved": 2 }));
    for queue in ["mail", "news"] {
        assert_eq!(place.json(&["pop", queue])[0]["payload"], queue);
    }
}

#[test]
fn a_batch_is_there_for_the_next_process() {
    let place = Place::new();
    let lines: String = (0..1_500)
        .map(|n| format!("{{\"klass\":\"k\",\"jid\":\"j{n}\",\"payload\":{n},\"tags\":[\"t\"]}}\n"))
        .collect();
    assert_eq!(place.run_with(&["put", "mail", "--batch", "-"], lines.as_bytes()), "1500 jobs put\n");
    assert_eq!(place.json(&["queues", "mail"])[0]["waiting"], 1_500);
    assert_eq!(place.json(&["get", "j1499"])["payload"], 1_499);
    let listed = place.json(&["jobs", "--tag", "t", "--limit", "2", "--offset", "1000"]);
    assert_eq!((&listed[0]["jid"], &listed[1]["jid"]), (&json!("j1000"), &json!("j1001")));
    // Sent again, it does nothing.
    let again = place.run_with(&["put", "mail", "--batch", "-", "--json"], lines.as_bytes());
    assert_eq!(again, "{\"put\":0,\"existing\":1500,\"coalesced\":0,\"refused\":0}\n");
}

#[test]
fn options_recurring_jobs_and_pauses_are_kept() {
    let place = Place::new();
    place.run(&["config", "set", "heartbeat", "90"]);
    place.run(&["recur", "add", "reports", "nightly", "--every", "1d", "--jid", "r1", "--in", "1h"]);
    place.run(&["pause", "mail"]);
    place.run(&["put", "mail", "k"]);
    place.run(&["track", "--", place.json(&["peek", "mail"])[0]["jid"].as_str().unwrap()]);
    assert_eq!(place.run(&["config", "get", "heartbeat"]), "90\n");
    assert_eq!(place.json(&["recur", "get", "r1"])["every"], 86_400);
    assert_eq!(place.json(&["pop", "mail"]), json!([]));
    assert_eq!(place.json(&["tracked"])["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(place.json(&["stats", "mail"])["wait"]["count"], 0);
}

#[test]
fn where_nobody_answers_it_is_said_how_to_start_a_server() {
    let place = Place::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("redis://127.0.0.1:{port}");
    let (out, err, code) = place.try_run(&["queues", "--url", &url]);
    assert_eq!((out.as_str(), code), ("", 3), "{err}");
    assert!(err.contains(&url) && err.contains("`geartrain server`"), "{err}");
}

#[test]
fn a_directory_that_cannot_be_used_is_no_answer() {
    let place = Place::new();
    std::fs::write(place.directory.join("data"), b"a file, not a directory").unwrap();
    let (out, err, code) = place.try_run(&["queues"]);
    assert_eq!((out.as_str(), code), ("", 3), "{err}");
    assert!(err.starts_with("geartrain: ") && err.matches('\n').count() == 1, "{err}");
}
