//! Three Gearman libraries, each as client and as worker: the same cases for all.

use geartrain_testkit::peers::{Scratch, until};
use serde_json::{Value, json};

use crate::gearman_peers::program::{Geartrain, Library, Program};

/// Defines a test for each case with each library.
macro_rules! with_each_library {
    ($($case:ident,)*) => {
        mod gear {
            $(#[test] fn $case() { super::$case(crate::gearman_peers::program::Library::Gear); })*
        }
        mod python3_gearman {
            $(#[test] fn $case() { super::$case(crate::gearman_peers::program::Library::Python3Gearman); })*
        }
        mod gearmanode {
            $(#[test] fn $case() { super::$case(crate::gearman_peers::program::Library::Gearmanode); })*
        }
    };
}

with_each_library! {
    a_client_receives_everything_about_its_job,
    the_same_holds_on_a_durable_queue,
    a_large_payload_makes_the_round_trip,
    a_client_is_told_that_a_job_failed,
    background_jobs_run_by_priority,
    two_clients_share_a_job_by_its_unique_id,
    a_client_can_request_the_status_of_a_job,
    another_worker_gets_the_job_of_one_that_was_killed,
    one_worker_runs_five_hundred_jobs_in_order,
}

const LARGE_BYTES: usize = 1 << 20;
const MANY: usize = 500;

fn a_client_receives_everything_about_its_job(library: Library) {
    steps_and_bytes(&Geartrain::start(), library);
}

fn the_same_holds_on_a_durable_queue(library: Library) {
    let scratch = Scratch::new("gearman-peers");
    let store = format!("embedded:{}", scratch.path().join("data").display());
    steps_and_bytes(&Geartrain::with(&store, |_| {}), library);
}

fn steps_and_bytes(geartrain: &Geartrain, library: Library) {
    let mut worker = library.worker(geartrain.port(), &["reverse", "steps"]);
    let mut client = library.client(geartrain.port());
    let ended = client.run(&json!({"submit": "steps", "data": ""}));
    let expected = json!({
        "ended": "complete", "result": "done",
        "data": ["one", "two"], "warnings": ["careful"], "progress": [[1, 2]],
    });
    assert_eq!(ended, expected);
    assert_eq!(worker.took(), "");
    let bytes = every_byte(library);
    let ended = client.run(&json!({"submit": "reverse", "data": bytes, "unique": "every byte"}));
    assert_eq!(ended, complete(&bytes.chars().rev().collect::<String>()));
    // All of them request the unique ID with a job.
    let took = worker.read_json();
    assert_eq!(took, json!({"took": first_hundred(&bytes), "function": "reverse", "unique": "every byte"}));
}

fn a_large_payload_makes_the_round_trip(library: Library) {
    let geartrain = Geartrain::start();
    let _worker = library.worker(geartrain.port(), &["echo"]);
    let bytes = every_byte(library);
    let large: String = bytes.chars().cycle().take(LARGE_BYTES).collect();
    let ended = library.client(geartrain.port()).run(&json!({"submit": "echo", "data": large}));
    assert_eq!(ended["ended"], "complete");
    assert!(ended["result"].as_str() == Some(&large), "it output back as something else");
}

fn a_client_is_told_that_a_job_failed(library: Library) {
    let geartrain = Geartrain::start();
    let _worker = library.worker(geartrain.port(), &["fail", "raise", "echo"]);
    let mut client = library.client(geartrain.port());
    assert_eq!(client.run(&json!({"submit": "fail", "data": "x"})), ended("fail", ""));
    // Without the exceptions option the client does not get the reason.
    assert_eq!(client.run(&json!({"submit": "raise", "data": "oops"})), ended("fail", ""));
    // This library's clients cannot set the option.
    if library != Library::Python3Gearman {
        assert_eq!(client.answer(&json!({"option": "exceptions"})), json!({"option": true}));
        assert_eq!(client.run(&json!({"submit": "raise", "data": "oops"})), ended("exception", "oops"));
        assert_eq!(client.run(&json!({"submit": "fail", "data": "x"})), ended("fail", ""));
    }
    // Both continue.
    assert_eq!(client.run(&json!({"submit": "echo", "data": "still here"})), complete("still here"));
}

fn background_jobs_run_by_priority(library: Library) {
    let geartrain = Geartrain::start();
    let mut client = library.client(geartrain.port());
    for (data, priority) in
        [("5", "low"), ("3", "normal"), ("1", "high"), ("6", "low"), ("4", "normal"), ("2", "high")]
    {
        client.submit_background(json!({"submit": "echo", "data": data, "priority": priority}));
    }
    let mut worker = library.worker(geartrain.port(), &["echo"]);
    let order: Vec<String> = (0..6).map(|_| worker.took()).collect();
    assert_eq!(order, ["1", "2", "3", "4", "5", "6"]);
}

fn two_clients_share_a_job_by_its_unique_id(library: Library) {
    let geartrain = Geartrain::start();
    let mut worker = library.worker(geartrain.port(), &["hold"]);
    let (mut one, mut other) = (library.client(geartrain.port()), library.client(geartrain.port()));
    let handle = one.created(&json!({"submit": "hold", "data": "first", "unique": "shared"}));
    assert_eq!(worker.took(), "first");
    let again = json!({"submit": "hold", "data": "second", "unique": "shared"});
    assert_eq!(other.created(&again), handle);
    worker.finish_job();
    assert_eq!(one.read_json()["result"], "first");
    assert_eq!(other.read_json()["result"], "first");
    // The ID is free again, and no second job is left.
    assert_ne!(one.submit_background(json!({"submit": "hold", "data": "third", "unique": "shared"})), handle);
    assert_eq!(worker.took(), "third");
}

fn a_client_can_request_the_status_of_a_job(library: Library) {
    let geartrain = Geartrain::start();
    let mut client = library.client(geartrain.port());
    let handle = client.submit_background(json!({"submit": "hold", "data": "slow"}));
    let mut status = || client.answer(&json!({"status": handle}));
    assert_eq!(status(), json!({"known": true, "running": false, "progress": [0, 0]}));
    let mut worker = library.worker(geartrain.port(), &["hold"]);
    assert_eq!(worker.took(), "slow");
    let running = json!({"known": true, "running": true, "progress": [1, 4]});
    until("the status shows the progress", || status() == running);
    worker.finish_job();
    let unknown = json!({"known": false, "running": false, "progress": [0, 0]});
    until("the job is done", || status() == unknown);
}

fn another_worker_gets_the_job_of_one_that_was_killed(library: Library) {
    let geartrain = Geartrain::start();
    let mut killed = library.worker(geartrain.port(), &["hold"]);
    let mut client = library.client(geartrain.port());
    client.created(&json!({"submit": "hold", "data": "twice"}));
    assert_eq!(killed.took(), "twice");
    // It is idle, and is woken when the job is back in the queue.
    let mut next = library.worker(geartrain.port(), &["hold"]);
    killed.kill();
    assert_eq!(next.took(), "twice");
    next.finish_job();
    assert_eq!(client.read_json()["result"], "twice");
}

fn one_worker_runs_five_hundred_jobs_in_order(library: Library) {
    let geartrain = Geartrain::start();
    let mut worker = library.worker(geartrain.port(), &["echo"]);
    let mut client = library.client(geartrain.port());
    for number in 0..MANY {
        client.send(&json!({"submit": "echo", "data": number.to_string(), "background": true}));
    }
    for number in 0..MANY {
        assert_eq!(worker.took(), number.to_string());
    }
    let handles: std::collections::BTreeSet<String> =
        (0..MANY).map(|_| client.read_json()["created"].to_string()).collect();
    assert_eq!(handles.len(), MANY);
}

/// The admin commands of `gear` and their texts.
#[test]
fn gear_administers() {
    let geartrain = Geartrain::start();
    let mut client = Library::Gear.client(geartrain.port());
    let first = client.submit_background(json!({"submit": "hold", "data": "1", "unique": "one"}));
    let second = client.submit_background(json!({"submit": "hold", "data": "2", "unique": "two"}));
    assert_eq!(admin(&mut client, "version"), format!("OK {VERSION}\n"));
    assert_eq!(admin(&mut client, "status"), "hold\t2\t0\t0\n.\n");
    assert_eq!(admin(&mut client, "show-jobs"), format!("{first}\t0\t0\t1\n{second}\t0\t0\t1\n.\n"));
    assert_eq!(admin(&mut client, "show-unique-jobs"), "one\ntwo\n.\n");
    assert_eq!(admin(&mut client, &format!("cancel-job {first}")), "OK\n");
    assert_eq!(admin(&mut client, &format!("cancel-job {first}")), "ERR UNKNOWN_JOB\r\n");
    assert_eq!(admin(&mut client, "show-unique-jobs"), "two\n.\n");
    let mut worker = Library::Gear.worker(geartrain.port(), &["hold"]);
    assert_eq!(worker.took(), "2");
    assert_eq!(admin(&mut client, "status"), "hold\t1\t1\t1\n.\n");
    // Its client id is only set on worker connections.
    let workers = admin(&mut client, "workers").as_str().unwrap_or_default().to_owned();
    assert_eq!(ids_and_functions(&workers), ["- :", "gear-worker : hold", "."]);
}

/// The admin commands of `python3_gearman`, parsed by it.
#[test]
fn python3_gearman_administers() {
    let geartrain = Geartrain::with("memory:", |gearman| gearman.shutdown = true);
    let mut client = Library::Python3Gearman.client(geartrain.port());
    client.submit_background(json!({"submit": "hold", "data": "1"}));
    let mut running = Library::Python3Gearman.worker(geartrain.port(), &["hold", "echo"]);
    assert_eq!(running.took(), "1");
    client.submit_background(json!({"submit": "hold", "data": "2"}));
    assert_eq!(admin(&mut client, "version"), format!("OK {VERSION}"));
    let functions = json!([
        {"task": "echo", "queued": 0, "running": 0, "workers": 1},
        {"task": "hold", "queued": 2, "running": 1, "workers": 1},
    ]);
    assert_eq!(admin(&mut client, "status"), functions);
    let workers = admin(&mut client, "workers");
    let workers: Vec<&Value> = workers.as_array().expect("it is a list").iter().collect();
    let worker = workers.iter().find(|worker| worker["client_id"] == "gearman-worker").expect("it is there");
    // In the order of registration, which differs from run to run.
    let mut tasks: Vec<&str> = worker["tasks"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    tasks.sort_unstable();
    assert_eq!((&worker["ip"], tasks), (&json!("127.0.0.1"), vec!["echo", "hold"]));
    assert_eq!(client.answer(&json!({"ping": ""})), json!({"pong": ""}));
    assert_eq!(admin(&mut client, "maxqueue hold 2"), "OK");
    let refused =
        Library::Gearmanode.client(geartrain.port()).answer(&json!({"submit": "hold", "data": "3"}));
    assert_eq!(refused, json!({"refused": "QUEUE_ERROR"}));
    // Gracefully: when there are no more jobs.
    client.send(&json!({"admin": "shutdown"}));
    running.finish_job();
    assert_eq!(running.took(), "2");
    running.finish_job();
    geartrain.is_shutdown_requested();
}

/// With --exceptions, clients get the reason without asking for it.
///
/// Clients of `python3_gearman` are left out: they wait for a failure after an exception, which no server
/// sends. Its workers send both, and the second one is about a job that has ended.
#[test]
fn all_clients_get_exceptions_if_the_server_is_set_so() {
    for (of_client, of_worker) in [
        (Library::Gear, Library::Gear),
        (Library::Gear, Library::Python3Gearman),
        (Library::Gearmanode, Library::Gearmanode),
    ] {
        let geartrain = Geartrain::with("memory:", |gearman| gearman.exceptions = true);
        let _worker = of_worker.worker(geartrain.port(), &["raise", "echo"]);
        let mut client = of_client.client(geartrain.port());
        assert_eq!(client.run(&json!({"submit": "raise", "data": "oops"})), ended("exception", "oops"));
        assert_eq!(client.run(&json!({"submit": "echo", "data": "still here"})), complete("still here"));
    }
}

/// `gearmanode` has no admin commands, but sends echo requests and options.
#[test]
fn gearmanode_pings() {
    let geartrain = Geartrain::start();
    let mut client = Library::Gearmanode.client(geartrain.port());
    assert_eq!(client.answer(&json!({"ping": "anybody there?"})), json!({"pong": "anybody there?"}));
    assert_eq!(client.answer(&json!({"option": "no such thing"})), json!({"option": false}));
}

const VERSION: &str = concat!("1.1.20-geartrain-", env!("CARGO_PKG_VERSION"));

#[track_caller]
fn admin(client: &mut Program, words: &str) -> Value {
    client.answer(&json!({"admin": words}))["admin"].take()
}

/// A list of workers without what varies: their file descriptors and their order.
fn ids_and_functions(workers: &str) -> Vec<&str> {
    let mut lines: Vec<&str> =
        workers.lines().map(|line| line.splitn(3, ' ').nth(2).unwrap_or(line)).collect();
    let end = lines.pop();
    lines.sort_unstable();
    lines.extend(end);
    lines
}

/// Each byte once, as a character; only ASCII for the libraries that decode payloads or results as text.
fn every_byte(library: Library) -> String {
    let last = if library == Library::Gear { 0xff } else { 0x7f };
    (0..=last).map(char::from).collect()
}

/// The part of a payload that workers print.
fn first_hundred(payload: &str) -> String {
    payload.chars().take(100).collect()
}

fn ended(how: &str, result: &str) -> Value {
    json!({"ended": how, "result": result, "data": [], "warnings": [], "progress": []})
}

fn complete(result: &str) -> Value {
    ended("complete", result)
}
