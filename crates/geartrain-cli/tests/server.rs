//! The server as a process: killed, stopped, not there, or not letting everybody in. Nothing that it acknowledged is lost by any of it.

use crate::place;
use crate::served;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use geartrain::{
    Backend, Client, Complete, Error, Event, Get, Holder, Jid, JobResult, StateName, Status, StatusOf,
};
use geartrain_drill::LoadClients;
use geartrain_testkit::peers::Scratch;
use place::Place;
use pollster::block_on;
use serde_json::Value;
use served::{Served, try_start, until};

/// How many clients there are at once, and how many jobs they complete between one blow and the next.
const CLIENTS: usize = 8;
const JOBS: usize = 60;

/// How long a wait may take that must not: the tests do not depend on it.
const LONG: Duration = Duration::from_secs(60);

fn connect(url: &str) -> Client {
    block_on(geartrain::connect(url)).unwrap()
}

fn backend(url: &str) -> Arc<dyn Backend> {
    connect(url).backend().clone()
}

#[test]
fn nothing_acknowledged_is_lost_when_the_server_is_killed_again_and_again() {
    let mut server = Served::start(&[]);
    let clients = LoadClients::start(CLIENTS, "load", || Ok(backend(&server.url()))).unwrap();
    for _ in 0..4 {
        clients.wait_for_completed(JOBS).unwrap();
        server.kill();
        server.start_again();
    }
    clients.wait_for_completed(JOBS).unwrap();
    let ledger = clients.finish();
    assert_eq!(ledger.unanswered, 0, "{:?}", ledger.errors);
    ledger.verify(&*backend(&server.url())).unwrap().assert_kept();
}

#[test]
fn a_server_that_is_told_to_stop_answers_and_leaves_nothing_behind() {
    let mut server = Served::start(&[]);
    let clients = LoadClients::start(CLIENTS, "load", || Ok(backend(&server.url()))).unwrap();
    for _ in 0..2 {
        clients.wait_for_completed(JOBS).unwrap();
        assert_eq!(server.terminate(), Some(0));
        assert!(!server.data().join("geartrain.sock").exists());
        // Nobody else has the directory, and all of it is there.
        geartrain::check(&server.data()).unwrap();
        server.start_again();
    }
    clients.wait_for_completed(JOBS).unwrap();
    let ledger = clients.finish();
    assert_eq!(ledger.unanswered, 0, "{:?}", ledger.errors);
    ledger.verify(&*backend(&server.url())).unwrap().assert_kept();
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn whoever_listens_or_waits_does_so_still_after_a_restart() {
    let mut server = Served::start(&[]);
    let client = connect(&server.url());
    let mut events = block_on(client.events()).unwrap();
    let mut heard = move || {
        let published = block_on(events.next()).unwrap();
        (published.position, Event::clone(&published.event))
    };
    let sleeper = client.clone();
    let sleeping = std::thread::spawn(move || block_on(sleeper.pop_wait("later", "w1", LONG)));
    let (asked, waiter) = (client.clone(), client.clone());
    let waiting = std::thread::spawn(move || {
        let put = asked.put("sums", "add", "[1,1]").jid("sum").keep_result(LONG);
        block_on(waiter.put_and_wait(put, Some(LONG)))
    });
    let (first, event) = heard();
    assert!(matches!(event, Event::Put { .. }), "{event:?}");

    server.kill();
    server.start_again();

    let job = block_on(client.pop("sums", "w2")).unwrap().unwrap();
    block_on(client.complete(&job)).unwrap();
    block_on(client.put("later", "k", "{}").jid("later")).unwrap();
    assert!(waiting.join().unwrap().unwrap().is_completed());
    assert_eq!(sleeping.join().unwrap().unwrap().unwrap().jid.to_string(), "later");
    // Nothing is left out and nothing comes twice.
    let (mut last, mut completed) = (first, 0);
    loop {
        let (position, event) = heard();
        assert!(position > last, "{event:?}");
        last = position;
        match event {
            Event::Completed { .. } => completed += 1,
            Event::Put { jid, .. } if jid.to_string() == "later" => break,
            _ => {}
        }
    }
    assert_eq!(completed, 1);
}

/// A process of the command, ended with the test however that ends.
struct Running(std::process::Child);

impl Running {
    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server restarts, the worker completes, and only then the client that waits is attached again.
#[test]
fn put_wait_gets_its_result_although_the_job_ended_before_the_wait_went_on() {
    let mut server = Served::start(&[]);
    let (place, url) = (Place::new(), server.url());
    let mut put = place.command(&["put", "sums", "add", "[1,1]", "--jid", "sum", "--url", &url, "--wait"]);
    let mut waiting = Running(put.stdout(std::process::Stdio::piped()).spawn().unwrap());
    let client = connect(&url);
    let of = || StatusOf::Jid(Jid::new("sum").unwrap());
    let attached = || block_on(client.run(Status { of: of() })).unwrap().map_or(0, |status| status.attached);
    until("somebody waits for the job", || attached() == 1);
    waiting.signal("-STOP");

    server.kill();
    server.start_again();

    let job = block_on(client.pop("sums", "w1")).unwrap().unwrap();
    let result = Some(Box::new(JobResult { code: 0, bytes: "2".into() }));
    let complete = Complete { result, ..Complete::new(job.jid, Holder::Token(job.lock.token)) };
    block_on(client.run(complete)).unwrap();
    waiting.signal("-CONT");
    assert_eq!(waiting.0.wait().unwrap().code(), Some(0));
    assert_eq!(std::io::read_to_string(waiting.0.stdout.take().unwrap()).unwrap(), "2");
}

#[test]
fn a_client_gives_up_when_its_patience_is_over() {
    let mut server = Served::start(&[]);
    let client = connect(&format!("{}?patience=1", server.url()));
    block_on(client.put("mail", "k", "{}").jid("j1")).unwrap();
    let sleeper = client.clone();
    let sleeping = std::thread::spawn(move || block_on(sleeper.pop_wait("empty", "w1", LONG)));
    server.kill();
    for error in [
        block_on(client.put("mail", "k", "{}")).unwrap_err(),
        block_on(client.events()).err().unwrap(),
        block_on(client.put_and_wait(client.put("mail", "k", "{}"), None)).unwrap_err(),
        sleeping.join().unwrap().unwrap_err(),
    ] {
        assert!(matches!(error, Error::Backend(_)), "{error:?}");
    }
    server.start_again();
    let jid = geartrain::Jid::new("j1").unwrap();
    assert_eq!(block_on(client.run(Get { jid })).unwrap().unwrap().state.name(), StateName::Waiting);
}

#[test]
fn only_who_knows_the_password_is_let_in() {
    let server = Served::start(&["--password", "secret"]);
    let place = Place::new();
    let at = |credentials: &str| format!("redis://{credentials}{}", server.address());
    assert!(place.run(&["put", "mail", "k", "--jid", "j1", "--url", &at(":secret@")]).contains("j1"));
    assert!(place.run(&["put", "mail", "k", "--jid", "j2", "--url", &at("default:secret@")]).contains("j2"));
    for credentials in ["", ":wrong@", ":secre@", "ann:secret@"] {
        let (out, err, code) = place.try_run(&["queues", "--url", &at(credentials)]);
        assert_eq!((out.as_str(), code), ("", 3), "{credentials}: {err}");
        assert!(err.starts_with("geartrain: ") && err.matches('\n').count() == 1, "{err}");
        assert!(!err.contains("secret@") && !err.contains("wrong"), "a password is never repeated: {err}");
    }
    let found = place.json(&["queues", "mail", "--url", &at(":secret@")]);
    assert_eq!(found[0]["waiting"], 2);
}

#[test]
fn an_address_that_others_can_reach_needs_a_password() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let (err, code) = try_start(&["--resp", address]).err().expect("it does not start");
        assert_eq!(code, 2, "{err}");
        assert!(err.contains("--password") && err.contains("--insecure"), "{err}");
    }
    for further in [&["--insecure"][..], &["--password", "secret"]] {
        let arguments = [&["--resp", "0.0.0.0:0"], further].concat();
        let mut server = try_start(&arguments).unwrap_or_else(|(err, _)| panic!("{err}"));
        assert_eq!(server.terminate(), Some(0));
    }
}

#[test]
fn two_servers_do_not_share_an_address_or_a_directory() {
    let server = Served::start(&[]);
    let (err, code) = try_start(&["--resp", &server.address()]).err().expect("it does not start");
    assert_eq!(code, 3, "{err}");
    assert!(err.contains(&server.address()) && err.contains("--resp"), "{err}");
}

#[test]
fn a_demonstration_has_something_to_look_at() {
    let mut server = Served::start(&["--demo"]);
    let place = Place::new();
    let url = server.url();
    let jobs = |state: &str| match place.json(&["jobs", "--state", state, "--url", &url]) {
        Value::Array(jobs) => jobs.len(),
        other => panic!("{other}"),
    };
    until("a sample job is complete", || jobs("complete") > 0);
    assert!(place.json(&["workers", "--url", &url]).as_array().is_some_and(|workers| !workers.is_empty()));
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_server_whose_log_cannot_be_written_goes_on() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let scratch = Scratch::new("unwritable-log");
    let mut child = Command::new(env!("CARGO_BIN_EXE_geartrain"))
        .args(["server", "--json", "--log", "trace", "--resp", "127.0.0.1:0", "--gearman", "off", "--data"])
        .arg(scratch.path().join("data"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(full)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let put = || {
        let client = connect(&format!("redis://{}?patience=5", ready["resp"].as_str().unwrap()));
        block_on(client.put("mail", "k", "{}")).map(drop)
    };
    let done = (0..5).try_for_each(|_| put());
    child.kill().unwrap();
    child.wait().unwrap();
    done.unwrap();
}
