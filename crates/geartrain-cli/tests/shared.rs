//! A directory in use: other processes with the same URL go through the socket file of its owner.

use crate::sandbox;
use crate::server_process;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use geartrain::{Client, Complete, Holder, Jid, JobResult, StateName};
use pollster::block_on;
use sandbox::Sandbox;
use serde_json::{Value, json};
use server_process::{ServerProcess, until};

/// A timeout that must not be reached: the tests do not depend on it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running command, killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(sandbox: &Sandbox, arguments: &[&str]) -> Running {
        Running(sandbox.command(arguments).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Its output, after it has ended with success.
    fn printed(mut self) -> String {
        let text = std::io::read_to_string(self.0.stdout.take().unwrap()).unwrap();
        assert!(self.0.wait().unwrap().success(), "{text}");
        text
    }
}

fn open(sandbox: &Sandbox) -> Client {
    block_on(geartrain::connect(&sandbox.url("data"))).unwrap()
}

fn jid(name: &str) -> Jid {
    Jid::new(name).unwrap()
}

#[test]
fn another_process_sees_and_changes_the_same_jobs() {
    let sandbox = Sandbox::new();
    let owner = open(&sandbox);
    block_on(owner.put("mail", "k", "{}").jid("mine")).unwrap();
    assert_eq!(sandbox.json(&["get", "mine"])["state"], "waiting");
    sandbox.run(&["put", "mail", "k", "--jid", "theirs", "--priority", "5"]);
    let job = block_on(owner.pop("mail", "w1")).unwrap().unwrap();
    assert_eq!(job.jid, jid("theirs"));
    let token = job.lock.token.to_string();
    sandbox.run(&["complete", "theirs", "--token", &token]);
    assert_eq!(block_on(owner.get(&jid("theirs"))).unwrap().unwrap().state.name(), StateName::Complete);
    sandbox.run(&["cancel", "mine"]);
    assert_eq!(block_on(owner.get(&jid("mine"))).unwrap(), None);
}

#[test]
fn another_process_waits_for_jobs_and_for_results() {
    let sandbox = Sandbox::new();
    let owner = open(&sandbox);

    let putting = Running::start(&sandbox, &["put", "sums", "add", "[40,2]", "--wait", "60s"]);
    let job = block_on(owner.pop_wait("sums", "w1", TIMEOUT)).unwrap().unwrap();
    let result = Some(Box::new(JobResult { code: 0, bytes: "42".into() }));
    let holder = Holder::Token(job.lock.token);
    block_on(owner.run(Complete { result, ..Complete::new(job.jid, holder) })).unwrap();
    assert_eq!(putting.printed().trim(), "42");

    let popping = Running::start(&sandbox, &["pop", "mail", "--worker", "w2", "--wait", "60s", "--json"]);
    block_on(owner.put("mail", "k", "{}").jid("j1")).unwrap();
    let popped: Value = serde_json::from_str(&popping.printed()).unwrap();
    assert_eq!(popped[0]["jid"], "j1");
    let held = block_on(owner.get(&jid("j1"))).unwrap().unwrap();
    assert_eq!(held.state.name(), StateName::Running);
}

#[test]
fn another_process_receives_events() {
    let sandbox = Sandbox::new();
    let owner = open(&sandbox);
    let mut listening = Running::start(&sandbox, &["events", "--json"]);
    let (lines, received) = std::sync::mpsc::channel();
    let stdout = BufReader::new(listening.0.stdout.take().unwrap());
    let reading = std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    // Subscribing takes a moment; from then on it receives every event.
    let mut number = 0;
    let mut first = None;
    until("an event is received", || {
        number += 1;
        block_on(owner.put("mail", "k", "{}").jid(&format!("j{number}"))).unwrap();
        first = received.recv_timeout(Duration::from_millis(200)).ok();
        first.is_some()
    });
    let event: Value = serde_json::from_str(&first.unwrap()).unwrap();
    assert!(event.to_string().contains("\"mail\""), "{event}");
    drop(listening);
    reading.join().unwrap();
}

#[test]
fn a_socket_file_left_by_a_killed_process_is_replaced() {
    let mut server = ServerProcess::start(&[]);
    let sandbox = Sandbox::new();
    let url = format!("embedded:{}", server.data().display());
    let socket = server.data().join("geartrain.sock");
    sandbox.run(&["put", "mail", "k", "--jid", "j1", "--url", &url]);
    assert_eq!(sandbox.json(&["get", "j1", "--url", &server.url()])["state"], "waiting");
    server.kill();
    assert!(socket.exists(), "a killed program cannot clean up");
    // The next process owns the directory and removes the file.
    assert_eq!(sandbox.json(&["get", "j1", "--url", &url])["state"], "waiting");
    assert!(!socket.exists());

    server.restart();
    assert!(socket.exists());
    sandbox.run(&["put", "mail", "k", "--jid", "j2", "--url", &url]);
    assert_eq!(server.terminate(), Some(0));
    assert!(!socket.exists());
    assert_eq!(sandbox.json(&["queues", "mail", "--url", &url])[0]["waiting"], json!(2));
}

#[test]
fn a_path_too_long_for_a_socket_only_disables_sharing() {
    let sandbox = Sandbox::new();
    let deep = format!("{}/{}", sandbox.path("deep"), "d".repeat(120));
    std::fs::create_dir_all(&deep).unwrap();
    let url = format!("embedded:{deep}");
    let owner = block_on(geartrain::connect(&url)).unwrap();
    block_on(owner.put("mail", "k", "{}").jid("j1")).unwrap();
    let (out, err, code) = sandbox.try_run(&["queues", "--url", &url]);
    assert_eq!((out.as_str(), code), ("", 3), "{err}");
    assert!(err.contains("another process uses this directory"), "{err}");
    drop(owner);
    assert_eq!(sandbox.json(&["get", "j1", "--url", &url])["state"], "waiting");
}
