//! The server as a process: killed, stopped, unreachable, or with a password. No acknowledged job is lost.

use crate::sandbox;
use crate::server_process;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain::{
    Backend, Client, Complete, Error, Event, Get, Holder, Jid, JobResult, Length, QueueName, StateName,
    Status, StatusOf,
};
use geartrain_drill::LoadClients;
use geartrain_testkit::peers::Scratch;
use pollster::block_on;
use sandbox::Sandbox;
use serde_json::Value;
use server_process::{ServerProcess, try_start, until};

/// The number of clients, and how many jobs they complete between two kills.
const CLIENTS: usize = 8;
const JOBS: usize = 60;

/// A timeout that must not be reached: the tests do not depend on it.
const TIMEOUT: Duration = Duration::from_secs(60);

fn connect(url: &str) -> Client {
    block_on(geartrain::connect(url)).unwrap()
}

fn backend(url: &str) -> Arc<dyn Backend> {
    connect(url).backend().clone()
}

#[test]
fn no_acknowledged_job_is_lost_when_the_server_is_killed_repeatedly() {
    let mut server = ServerProcess::start(&[]);
    let clients = LoadClients::start(CLIENTS, "load", || Ok(backend(&server.url()))).unwrap();
    for _ in 0..4 {
        clients.wait_for_completed(JOBS).unwrap();
        server.kill();
        server.restart();
    }
    clients.wait_for_completed(JOBS).unwrap();
    let ledger = clients.finish();
    assert_eq!(ledger.unanswered, 0, "{:?}", ledger.errors);
    ledger.verify(&*backend(&server.url())).unwrap().assert_kept();
}

#[test]
fn sigterm_answers_pending_requests_and_releases_the_directory() {
    let mut server = ServerProcess::start(&[]);
    let clients = LoadClients::start(CLIENTS, "load", || Ok(backend(&server.url()))).unwrap();
    for _ in 0..2 {
        clients.wait_for_completed(JOBS).unwrap();
        assert_eq!(server.terminate(), Some(0));
        assert!(!server.data().join("geartrain.sock").exists());
        // The directory is released, and every job is there.
        geartrain::check(&server.data()).unwrap();
        server.restart();
    }
    clients.wait_for_completed(JOBS).unwrap();
    let ledger = clients.finish();
    assert_eq!(ledger.unanswered, 0, "{:?}", ledger.errors);
    ledger.verify(&*backend(&server.url())).unwrap().assert_kept();
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn subscriptions_and_waits_continue_after_a_restart() {
    let mut server = ServerProcess::start(&[]);
    let client = connect(&server.url());
    let mut events = block_on(client.events()).unwrap();
    let mut next_event = move || {
        let published = block_on(events.next()).unwrap();
        (published.position, Event::clone(&published.event))
    };
    let popping_client = client.clone();
    let parked_pop = std::thread::spawn(move || block_on(popping_client.pop_wait("later", "w1", TIMEOUT)));
    let (asked, waiter) = (client.clone(), client.clone());
    let waiting = std::thread::spawn(move || {
        let put = asked.put("sums", "add", "[1,1]").jid("sum").keep_result(TIMEOUT);
        block_on(waiter.put_and_wait(put, Some(TIMEOUT)))
    });
    let (first, event) = next_event();
    assert!(matches!(event, Event::Put { .. }), "{event:?}");

    server.kill();
    server.restart();

    let job = block_on(client.pop("sums", "w2")).unwrap().unwrap();
    block_on(client.complete(&job)).unwrap();
    block_on(client.put("later", "k", "{}").jid("later")).unwrap();
    assert!(waiting.join().unwrap().unwrap().is_completed());
    assert_eq!(parked_pop.join().unwrap().unwrap().unwrap().jid.to_string(), "later");
    // No event is missing or duplicated.
    let (mut last, mut completed) = (first, 0);
    loop {
        let (position, event) = next_event();
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

/// A process, killed when dropped.
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

/// The server restarts, the worker completes, and only then the waiting client is attached again.
#[test]
fn put_wait_gets_a_result_that_came_while_it_was_disconnected() {
    let mut server = ServerProcess::start(&[]);
    let (sandbox, url) = (Sandbox::new(), server.url());
    let mut put = sandbox.command(&["put", "sums", "add", "[1,1]", "--jid", "sum", "--url", &url, "--wait"]);
    let mut waiting = Running(put.stdout(std::process::Stdio::piped()).spawn().unwrap());
    let client = connect(&url);
    let of = || StatusOf::Jid(Jid::new("sum").unwrap());
    let attached = || block_on(client.run(Status { of: of() })).unwrap().map_or(0, |status| status.attached);
    until("the client waits for the job", || attached() == 1);
    waiting.signal("-STOP");

    server.kill();
    server.restart();

    let job = block_on(client.pop("sums", "w1")).unwrap().unwrap();
    let result = Some(Box::new(JobResult { code: 0, bytes: "2".into() }));
    let complete = Complete { result, ..Complete::new(job.jid, Holder::Token(job.lock.token)) };
    block_on(client.run(complete)).unwrap();
    waiting.signal("-CONT");
    assert_eq!(waiting.0.wait().unwrap().code(), Some(0));
    assert_eq!(std::io::read_to_string(waiting.0.stdout.take().unwrap()).unwrap(), "2");
}

#[test]
fn a_batch_that_loses_its_server_says_from_which_line_to_go_on() {
    let mut server = ServerProcess::start(&[]);
    let (sandbox, url) = (Sandbox::new(), format!("{}?patience=1", server.url()));
    let lines: String =
        (0..1_500).map(|number| format!("{{\"klass\":\"k\",\"jid\":\"j{number}\"}}\n")).collect();
    std::fs::write(sandbox.path("jobs"), &lines).unwrap();
    let mut put = sandbox.command(&["put", "mail", "--batch", "-", "--url", &url]);
    put.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(put.spawn().unwrap());
    // The first request has 500 lines, and the second waits for more lines.
    let (first, rest) = lines.split_at(lines.match_indices('\n').nth(600).unwrap().0);
    let mut input = running.0.stdin.take().unwrap();
    input.write_all(first.as_bytes()).unwrap();
    let client = connect(&server.url());
    let length = || block_on(client.run(Length { queue: QueueName::new("mail").unwrap() })).unwrap();
    until("the first request is done", || length() == 500);
    server.kill();
    input.write_all(rest.as_bytes()).unwrap();
    drop(input);
    assert_eq!(running.0.wait().unwrap().code(), Some(3));
    assert_eq!(std::io::read_to_string(running.0.stdout.take().unwrap()).unwrap(), "500 jobs submitted\n");
    let error = std::io::read_to_string(running.0.stderr.take().unwrap()).unwrap();
    assert!(error.contains("lines 501 to 1000 may have been submitted or not"), "{error}");
    assert!(error.contains("go on with --from-line 501"), "{error}");

    server.restart();
    let (jobs, url) = (sandbox.path("jobs"), server.url());
    let rest = ["put", "mail", "--batch", &jobs, "--from-line", "501", "--url", &url];
    assert_eq!(sandbox.run(&rest), "1000 jobs submitted\n");
    assert_eq!(length(), 1_500);
}

#[test]
fn a_client_gives_up_when_its_retry_budget_is_used_up() {
    let mut server = ServerProcess::start(&[]);
    let client = connect(&format!("{}?patience=1", server.url()));
    block_on(client.put("mail", "k", "{}").jid("j1")).unwrap();
    let popping_client = client.clone();
    let parked_pop = std::thread::spawn(move || block_on(popping_client.pop_wait("empty", "w1", TIMEOUT)));
    server.kill();
    for error in [
        block_on(client.put("mail", "k", "{}")).unwrap_err(),
        block_on(client.events()).err().unwrap(),
        block_on(client.put_and_wait(client.put("mail", "k", "{}"), None)).unwrap_err(),
        parked_pop.join().unwrap().unwrap_err(),
    ] {
        assert!(matches!(error, Error::Backend(_)), "{error:?}");
    }
    server.restart();
    let jid = geartrain::Jid::new("j1").unwrap();
    assert_eq!(block_on(client.run(Get { jid })).unwrap().unwrap().state.name(), StateName::Waiting);
}

#[test]
fn a_password_is_required() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("password", "secret\n");
    let server = ServerProcess::start(&["--password-file", &file]);
    let at = |credentials: &str| format!("redis://{credentials}{}", server.address());
    assert!(sandbox.run(&["put", "mail", "k", "--jid", "j1", "--url", &at(":secret@")]).contains("j1"));
    assert!(
        sandbox.run(&["put", "mail", "k", "--jid", "j2", "--url", &at("default:secret@")]).contains("j2")
    );
    for credentials in ["", ":wrong@", ":secre@", "ann:secret@"] {
        let (out, err, code) = sandbox.try_run(&["queues", "--url", &at(credentials)]);
        assert_eq!((out.as_str(), code), ("", 3), "{credentials}: {err}");
        assert!(err.starts_with("geartrain: ") && err.matches('\n').count() == 1, "{err}");
        assert!(!err.contains("secret@") && !err.contains("wrong"), "a password is never repeated: {err}");
    }
    let found = sandbox.json(&["queues", "mail", "--url", &at(":secret@")]);
    assert_eq!(found[0]["waiting"], 2);
}

#[test]
fn a_public_address_needs_a_password_and_tls() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let (err, code) = try_start(&["--resp", address]).err().expect("it does not start");
        assert_eq!(code, 2, "{err}");
        assert!(err.contains("--password-file") && err.contains("--insecure"), "{err}");
    }
    let sandbox = Sandbox::new();
    let file = sandbox.file("password", "secret");
    let with_password = ["--resp", "0.0.0.0:0", "--password-file", &file];
    let (err, code) = try_start(&with_password).err().expect("it does not start");
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("unencrypted") && err.contains("--resp-tls-cert"), "{err}");
    let mut server =
        try_start(&["--resp", "0.0.0.0:0", "--insecure"]).unwrap_or_else(|(err, _)| panic!("{err}"));
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn two_servers_cannot_share_an_address_or_a_directory() {
    let server = ServerProcess::start(&[]);
    let (err, code) = try_start(&["--resp", &server.address()]).err().expect("it does not start");
    assert_eq!(code, 3, "{err}");
    assert!(err.contains(&server.address()) && err.contains("--resp"), "{err}");
}

#[test]
fn a_demonstration_runs_sample_jobs() {
    let mut server = ServerProcess::start(&["--demo"]);
    let sandbox = Sandbox::new();
    let url = server.url();
    let jobs = |state: &str| match sandbox.json(&["jobs", "--state", state, "--url", &url]) {
        Value::Array(jobs) => jobs.len(),
        other => panic!("{other}"),
    };
    until("a sample job is complete", || jobs("complete") > 0);
    assert!(sandbox.json(&["workers", "--url", &url]).as_array().is_some_and(|workers| !workers.is_empty()));
    assert_eq!(server.terminate(), Some(0));
}

/// Within 30 seconds, but the test allows for a slow machine.
#[test]
fn a_demonstration_shows_every_state() {
    const STATES: [&str; 7] = ["waiting", "running", "stalled", "scheduled", "depends", "complete", "failed"];
    let begun = Instant::now();
    let server = ServerProcess::start(&["--demo"]);
    let sandbox = Sandbox::new();
    let url = server.url();
    let ask = |line: &[&str]| sandbox.json(&[&["--url", &url], line].concat());
    let has = |filter: &[&str], is_so: fn(&Value) -> bool| {
        let list = ask(&[&["jobs", "--limit", "200"], filter].concat());
        list.as_array().is_some_and(|jobs| jobs.iter().any(is_so))
    };
    let has_paused = || ask(&["queues"]).as_array().unwrap().iter().any(|queue| queue["paused"] == true);
    let is_retried = |job: &Value| {
        let history = job["history"].as_array();
        history.is_some_and(|entries| entries.iter().any(|entry| entry["reason"] == "retried"))
    };
    let mut missing: Vec<&str> = STATES.into_iter().collect();
    missing.extend(["retried", "progress", "paused", "recurring"]);
    until("every state was there", || {
        missing.retain(|state| {
            let is_seen = match *state {
                "retried" => {
                    has(&["--state", "waiting"], is_retried) || has(&["--state", "scheduled"], is_retried)
                }
                "progress" => has(&["--state", "running"], |job| !job["progress"].is_null()),
                "paused" => has_paused(),
                "recurring" => ask(&["recur", "ls"]).as_array().is_some_and(|list| !list.is_empty()),
                state => has(&["--state", state], |_| true),
            };
            if is_seen {
                println!("{state}: after {:?}", begun.elapsed());
            }
            !is_seen
        });
        missing.is_empty()
    });
}

#[test]
fn a_server_whose_log_cannot_be_written_keeps_running() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let scratch = Scratch::new("unwritable-log");
    let mut child = Command::new(env!("CARGO_BIN_EXE_geartrain"))
        .args([
            "server",
            "--json",
            "--log",
            "trace",
            "--resp",
            "127.0.0.1:0",
            "--gearman",
            "off",
            "--http",
            "off",
            "--data",
        ])
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
