//! A directory that a running program has: other processes with the same URL work through the program's socket file.

use crate::place;
use crate::served;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use geartrain::{Client, Complete, Holder, Jid, JobResult, StateName};
use place::Place;
use pollster::block_on;
use serde_json::{Value, json};
use served::{Served, until};

/// How long a wait may take that must not: the tests do not depend on it.
const LONG: Duration = Duration::from_secs(60);

/// A command under way, ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(place: &Place, arguments: &[&str]) -> Running {
        Running(place.command(arguments).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// What it has printed when it has ended, which it must have done well.
    fn printed(mut self) -> String {
        let text = std::io::read_to_string(self.0.stdout.take().unwrap()).unwrap();
        assert!(self.0.wait().unwrap().success(), "{text}");
        text
    }
}

fn open(place: &Place) -> Client {
    block_on(geartrain::connect(&place.url("data"))).unwrap()
}

fn jid(name: &str) -> Jid {
    Jid::new(name).unwrap()
}

#[test]
fn another_process_sees_and_changes_the_same_jobs() {
    let place = Place::new();
    let owner = open(&place);
    block_on(owner.put("mail", "k", "{}").jid("mine")).unwrap();
    assert_eq!(place.json(&["get", "mine"])["state"], "waiting");
    place.run(&["put", "mail", "k", "--jid", "theirs", "--priority", "5"]);
    let job = block_on(owner.pop("mail", "w1")).unwrap().unwrap();
    assert_eq!(job.jid, jid("theirs"));
    let token = job.lock.token.to_string();
    place.run(&["complete", "theirs", "--token", &token]);
    assert_eq!(block_on(owner.get(&jid("theirs"))).unwrap().unwrap().state.name(), StateName::Complete);
    place.run(&["cancel", "mine"]);
    assert_eq!(block_on(owner.get(&jid("mine"))).unwrap(), None);
}

#[test]
fn another_process_waits_for_jobs_and_for_what_comes_of_them() {
    let place = Place::new();
    let owner = open(&place);

    let putting = Running::start(&place, &["put", "sums", "add", "[40,2]", "--wait", "60s"]);
    let job = block_on(owner.pop_wait("sums", "w1", LONG)).unwrap().unwrap();
    let result = Some(Box::new(JobResult { code: 0, bytes: "42".into() }));
    let holder = Holder::Token(job.lock.token);
    block_on(owner.run(Complete { result, ..Complete::new(job.jid, holder) })).unwrap();
    assert_eq!(putting.printed().trim(), "42");

    let popping = Running::start(&place, &["pop", "mail", "--worker", "w2", "--wait", "60s", "--json"]);
    block_on(owner.put("mail", "k", "{}").jid("j1")).unwrap();
    let popped: Value = serde_json::from_str(&popping.printed()).unwrap();
    assert_eq!(popped[0]["jid"], "j1");
    let held = block_on(owner.get(&jid("j1"))).unwrap().unwrap();
    assert_eq!(held.state.name(), StateName::Running);
}

#[test]
fn another_process_hears_what_happens() {
    let place = Place::new();
    let owner = open(&place);
    let mut listening = Running::start(&place, &["events", "--json"]);
    let (lines, heard) = std::sync::mpsc::channel();
    let stdout = BufReader::new(listening.0.stdout.take().unwrap());
    let reading = std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    // It takes a moment to begin; from then on it hears everything.
    let mut number = 0;
    let mut first = None;
    until("something is heard", || {
        number += 1;
        block_on(owner.put("mail", "k", "{}").jid(&format!("j{number}"))).unwrap();
        first = heard.recv_timeout(Duration::from_millis(200)).ok();
        first.is_some()
    });
    let event: Value = serde_json::from_str(&first.unwrap()).unwrap();
    assert!(event.to_string().contains("\"mail\""), "{event}");
    drop(listening);
    reading.join().unwrap();
}

#[test]
fn a_socket_file_that_a_killed_program_left_keeps_nobody_out() {
    let mut server = Served::start(&[]);
    let place = Place::new();
    let url = format!("embedded:{}", server.data().display());
    let socket = server.data().join("geartrain.sock");
    place.run(&["put", "mail", "k", "--jid", "j1", "--url", &url]);
    assert_eq!(place.json(&["get", "j1", "--url", &server.url()])["state"], "waiting");
    server.kill();
    assert!(socket.exists(), "a killed program cannot clean up");
    // The next process has the directory for itself, and cleans up behind it.
    assert_eq!(place.json(&["get", "j1", "--url", &url])["state"], "waiting");
    assert!(!socket.exists());

    server.start_again();
    assert!(socket.exists());
    place.run(&["put", "mail", "k", "--jid", "j2", "--url", &url]);
    assert_eq!(server.terminate(), Some(0));
    assert!(!socket.exists());
    assert_eq!(place.json(&["queues", "mail", "--url", &url])[0]["waiting"], json!(2));
}

#[test]
fn where_the_path_is_too_long_for_a_socket_the_owner_works_alone() {
    let place = Place::new();
    let deep = format!("{}/{}", place.path("deep"), "d".repeat(120));
    std::fs::create_dir_all(&deep).unwrap();
    let url = format!("embedded:{deep}");
    let owner = block_on(geartrain::connect(&url)).unwrap();
    block_on(owner.put("mail", "k", "{}").jid("j1")).unwrap();
    let (out, err, code) = place.try_run(&["queues", "--url", &url]);
    assert_eq!((out.as_str(), code), ("", 3), "{err}");
    assert!(err.contains("another process uses this directory"), "{err}");
    drop(owner);
    assert_eq!(place.json(&["get", "j1", "--url", &url])["state"], "waiting");
}
