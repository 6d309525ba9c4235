//! The result log of a server that is killed repeatedly, and `geartrain log`.

use crate::sandbox;
use crate::server_process;

use std::collections::HashMap;
use std::sync::Arc;

use geartrain::results::{Ending, Entry, Query, ResultLog};
use geartrain::{Backend, GetMany, HistoryEvent, Jid, Job, JobState, Reply};
use geartrain_drill::LoadClients;
use pollster::block_on;
use sandbox::Sandbox;
use serde_json::{Value, json};
use server_process::{ServerProcess, try_start, until};

/// The number of clients, and how many jobs they complete between two kills.
const CLIENTS: usize = 8;
const JOBS: usize = 150;

fn log_in(sandbox: &Sandbox) -> String {
    format!("sqlite:{}", sandbox.path("results.db"))
}

fn backend(url: &str) -> Arc<dyn Backend> {
    block_on(geartrain::connect(url)).unwrap().backend().clone()
}

fn jobs(backend: &dyn Backend, jids: &[Jid]) -> Vec<Job> {
    let mut jobs = Vec::new();
    for jids in jids.chunks(500) {
        let answers = block_on(backend.execute(vec![GetMany { jids: jids.to_vec() }.into()])).unwrap();
        let Some(Ok(Reply::GetMany(found))) = answers.into_iter().next() else { panic!("no answer") };
        jobs.extend(found);
    }
    jobs
}

#[test]
fn a_server_killed_repeatedly_logs_every_attempt_once() {
    let sandbox = Sandbox::new();
    let log = log_in(&sandbox);
    let mut server = ServerProcess::start(&["--result-log", &log]);
    let clients = LoadClients::start(CLIENTS, "load", || Ok(backend(&server.url()))).unwrap();
    for _ in 0..6 {
        clients.wait_for_completed(JOBS).unwrap();
        server.kill();
        server.restart();
    }
    clients.wait_for_completed(JOBS).unwrap();
    let ledger = clients.finish();
    let backend = backend(&server.url());
    ledger.verify(&*backend).unwrap().assert_kept();

    // Every job has ended. The log must agree with the queue's own histories.
    let jids: Vec<Jid> = ledger.put.iter().cloned().collect();
    let jobs = jobs(&*backend, &jids);
    let read = ResultLog::open(&log).unwrap();
    let everything = Query { limit: u64::MAX, ..Query::default() };
    let attempts_of = |job: &Job| {
        job.history.iter().filter(|entry| matches!(entry.what, HistoryEvent::Popped { .. })).count()
    };
    let expected: usize = jobs.iter().map(attempts_of).sum();
    let by_jid = || {
        let mut by_jid: HashMap<String, Vec<Entry>> = HashMap::new();
        for entry in read.entries(&everything).unwrap() {
            by_jid.entry(entry.jid.clone()).or_default().push(entry);
        }
        by_jid
    };
    until("the log has every attempt", || {
        let by_jid = by_jid();
        let entries = jobs.iter().filter_map(|job| by_jid.get(&job.jid.to_string())).flatten();
        entries.filter(|entry| entry.ending.is_some()).count() >= expected
    });
    let by_jid = by_jid();
    for job in &jobs {
        let entries = &by_jid[&job.jid.to_string()];
        let attempts: Vec<u64> = entries.iter().filter_map(|entry| entry.attempt).collect();
        let mut sorted = attempts.clone();
        sorted.sort_unstable();
        assert_eq!(
            sorted,
            (1..=attempts_of(job) as u64).collect::<Vec<_>>(),
            "{entries:?} {:?}",
            job.history
        );
        let ended: Vec<Ending> = entries.iter().filter_map(|entry| entry.ending).collect();
        let last = match job.state {
            JobState::Complete { .. } => Ending::Completed,
            JobState::Failed { .. } => Ending::Failed,
            ref other => panic!("{other:?}"),
        };
        assert_eq!(ended.iter().filter(|ending| **ending == last).count(), 1, "{entries:?}");
        assert!(entries.iter().all(|entry| entry.klass.as_deref() == Some("drill")), "{entries:?}");
    }
    assert_eq!(read.gaps(None).unwrap(), []);
}

#[test]
fn the_log_is_printed_as_a_table_and_as_json() {
    let sandbox = Sandbox::new();
    let log = log_in(&sandbox);
    let server = ServerProcess::start(&["--result-log", &log]);
    let url = server.url();
    let on = |line: &[&str]| sandbox.json(&[line, &["--url", &url]].concat());
    let token = |queue: &str| on(&["pop", queue, "--worker", "w1"])[0]["token"].as_str().unwrap().to_owned();
    on(&["put", "mail", "welcome", "--jid", "good", "--keep-result"]);
    on(&["complete", "good", "--token", &token("mail"), "--result", r#"{"sent":2}"#]);
    on(&["put", "mail", "goodbye", "--jid", "bad"]);
    on(&["fail", "bad", "--token", &token("mail"), "smtp", "it said 451"]);
    on(&["put", "other", "welcome", "--jid", "busy"]);
    token("other");

    let read = |line: &[&str]| sandbox.json(&[&["log", "--result-log", &log], line].concat());
    until("the log has every attempt", || {
        let all = read(&[])["attempts"].as_array().unwrap().clone();
        all.len() == 3 && all.iter().any(|entry| entry["result"] == json!({ "sent": 2 }))
    });
    let jids = |line: &[&str]| -> Vec<String> {
        let found = read(line)["attempts"].as_array().unwrap().clone();
        found.iter().map(|entry| entry["jid"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(jids(&[]), ["good", "bad", "busy"]);
    assert_eq!(jids(&["--failed"]), ["bad"]);
    assert_eq!(jids(&["--queue", "other"]), ["busy"]);
    assert_eq!(jids(&["--klass", "welcome", "--queue", "mail"]), ["good"]);
    assert_eq!(jids(&["--jid", "bad"]), ["bad"]);
    assert_eq!(jids(&["--limit", "1"]), ["busy"]);
    assert_eq!(jids(&["--since", "1h"]).len(), 3);
    assert_eq!(jids(&["--since", "2100-01-01T00:00:00Z"]), Vec::<String>::new());

    let all = read(&[]);
    let (good, bad, busy) = (&all["attempts"][0], &all["attempts"][1], &all["attempts"][2]);
    let keys: Vec<&str> = good.as_object().unwrap().keys().map(String::as_str).collect();
    for key in [
        "jid",
        "attempt",
        "queue",
        "klass",
        "worker",
        "started",
        "ended",
        "took",
        "outcome",
        "group",
        "message",
        "code",
        "result",
        "result_bytes",
        "cut",
        "exact",
    ] {
        assert!(keys.contains(&key), "{key}: {good}");
    }
    assert_eq!(
        (&good["outcome"], &good["code"], &good["cut"]),
        (&json!("completed"), &json!(0), &json!(false))
    );
    assert_eq!((&bad["group"], &bad["message"]), (&json!("smtp"), &json!("it said 451")));
    assert_eq!((&busy["outcome"], &busy["ended"]), (&json!("running"), &Value::Null));
    assert_eq!(all["gaps"], json!([]));

    let text = sandbox.run(&["log", "--result-log", &log]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("TIME") && lines[0].ends_with("RESULT"), "{text}");
    assert!(lines[1].contains("completed") && lines[1].ends_with(r#"{"sent":2}"#), "{text}");
    assert!(lines[2].ends_with("smtp: it said 451"), "{text}");
    assert!(lines[3].ends_with("running"), "{text}");

    // Also with the environment variable; an empty result is no error.
    let mut command = sandbox.command(&["log", "--queue", "missing"]);
    let output = command.env("GEARTRAIN_RESULT_LOG", &log).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "geartrain: no such attempts in the result log\n");
}

#[test]
fn a_file_that_is_no_result_log_is_refused_in_one_sentence() {
    let sandbox = Sandbox::new();
    let (letter, none) = (sandbox.path("letter"), sandbox.path("none"));
    std::fs::write(&letter, "not a database, but a letter that is long enough to be taken for one").unwrap();
    let (letter, none) = (format!("sqlite:{letter}"), format!("sqlite:{none}"));
    for (arguments, code, says) in [
        (&["log"][..], 2, "--result-log sqlite:FILE"),
        (&["log", "--result-log", "results.db"], 2, "sqlite:./results.db"),
        (&["log", "--result-log", &none], 3, "there is no result log"),
        (&["log", "--result-log", &letter], 2, "is not a result log"),
        (&["log", "--result-log", &none, "--since", "soon"], 2, "like 2h"),
        (&["log", "j1"], 2, "give a job id and a message"),
        (&["log", "j1", "hello", "--failed"], 2, "--failed"),
        (&["server", "--result-log", "mysql://host"], 2, "sqlite:./results.db"),
    ] {
        let (out, err, exit) = sandbox.try_run(arguments);
        assert_eq!((out.as_str(), exit), ("", code), "{arguments:?}: {err}");
        assert!(err.starts_with("geartrain: ") && err.matches('\n').count() == 1, "{err}");
        assert!(err.contains(says), "{err}");
    }
    let (err, code) = try_start(&["--result-log", &letter]).err().expect("it does not start");
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("is not a result log"), "{err}");
    let nowhere = format!("sqlite:{}", sandbox.path("no/such/directory/results.db"));
    let (err, code) = try_start(&["--result-log", &nowhere]).err().expect("it does not start");
    assert_eq!(code, 3, "{err}");
}

#[test]
fn a_log_removes_old_attempts_and_shows_its_size() {
    let sandbox = Sandbox::new();
    let log = log_in(&sandbox);
    let server = ServerProcess::start(&["--result-log", &log, "--result-log-keep", "1s"]);
    let client = block_on(geartrain::connect(&server.url())).unwrap();
    block_on(client.put("mail", "k", "{}").jid("done")).unwrap();
    let done = block_on(client.pop("mail", "w1")).unwrap().unwrap();
    block_on(client.complete(&done)).unwrap();
    block_on(client.put("mail", "k", "{}").jid("running")).unwrap();
    block_on(client.pop("mail", "w1")).unwrap().unwrap();
    // The second started after the first had ended, so if it is in the log, the first was.
    until("only the running attempt is left", || {
        let shown = sandbox.json(&["log", "--result-log", &log]);
        let jids: Vec<&str> =
            shown["attempts"].as_array().unwrap().iter().flat_map(|it| it["jid"].as_str()).collect();
        jids == ["running"]
    });
    let size = sandbox.json(&["log", "--size", "--result-log", &log]);
    assert!(size["bytes"].as_u64().unwrap() > 0 && size["oldest"].as_f64().unwrap() > 0.0, "{size}");
    assert!(size["free_bytes"].is_u64(), "{size}");
    let text = sandbox.run(&["log", "--size", "--result-log", &log]);
    assert!(text.trim_start().starts_with("SIZE") && text.lines().count() == 2, "{text}");
    let (said, code) = try_start(&["--result-log", &log, "--result-log-keep", "0"]).err().unwrap();
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("at least 1s"), "{said}");
}
