//! `geartrain work`: programs as workers, on every kind of queue.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use geartrain_testkit::peers::{Gearmand, RedisServer, until};
use geartrain_testkit::scaled;
use serde_json::Value;

use crate::sandbox::Sandbox;
use crate::server_process::ServerProcess;

const BINARY: &str = env!("CARGO_BIN_EXE_geartrain");

/// A worker process, killed when dropped.
struct WorkerProcess {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl WorkerProcess {
    fn start(sandbox: &Sandbox, arguments: &[&str]) -> WorkerProcess {
        let mut command = sandbox.command(arguments);
        command.current_dir(&sandbox.directory);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = log.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("worker: {line}");
                lines.lock().unwrap().push(line);
            }
        });
        WorkerProcess { child, log }
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Log lines about the end of a job, as `<jid> <ending>`.
    fn endings(&self) -> Vec<String> {
        let lines = self.log.lock().unwrap();
        let ended = lines.iter().filter_map(|line| {
            let line: Value = serde_json::from_str(line).ok()?;
            Some(format!("{} {}", line["jid"].as_str()?, line["ending"].as_str()?))
        });
        ended.collect()
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Sandbox {
    /// An executable shell script.
    fn script(&self, name: &str, text: &str) -> String {
        let path = self.file(name, &format!("#!/bin/sh\n{text}"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        path
    }
}

/// Processes whose command line contains a word.
fn processes(word: &str) -> usize {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let has_word = |path: std::path::PathBuf| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        line.windows(word.len()).any(|window| window == word.as_bytes())
    };
    pids.filter(|entry| has_word(entry.path())).count()
}

fn unique_word(test: &str) -> String {
    format!("gt-{test}-{}", uuid::Uuid::now_v7().simple())
}

fn state(sandbox: &Sandbox, url: &str, jid: &str) -> String {
    let (out, _, code) = sandbox.try_run(&["--url", url, "get", jid, "--json"]);
    if code != 0 {
        return "gone".to_owned();
    }
    let job: Value = serde_json::from_str(&out).unwrap();
    job["state"].as_str().unwrap().to_owned()
}

#[test]
fn jobs_of_a_file_are_worked_by_processes_with_the_right_results() {
    let sandbox = Sandbox::new();
    let jobs = scaled(100, 1_000);
    let lines: String = (0..jobs)
        .map(|number| {
            format!(
                "{{\"klass\":\"square\",\"payload\":{number},\"jid\":\"j{number}\",\"keep_result\":3600}}\n"
            )
        })
        .collect();
    sandbox.file("jobs.ndjson", &lines);
    sandbox.run(&["put", "numbers", "--batch", &sandbox.path("jobs.ndjson")]);
    let script = sandbox.script("square", "read n; echo $((n * n))");
    let work = ["--json", "work", "numbers", "--drain", "--concurrency", "8", "--", &script];
    let report: Value = serde_json::from_str(&sandbox.run(&work)).unwrap();
    assert_eq!((report["completed"].as_u64(), report["failed"].as_u64()), (Some(jobs), Some(0)));
    for number in [0, 1, 7, jobs - 1] {
        assert_eq!(sandbox.run(&["result", &format!("j{number}")]).trim(), (number * number).to_string());
    }
}

#[test]
fn a_program_reports_on_its_job_without_naming_it_and_on_nothing_else() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "mail", "welcome", "{}", "--jid", "j1", "--keep-result", "1h"]);
    sandbox.run(&["put", "other", "welcome", "{}", "--jid", "j2"]);
    let script = format!(
        "G={BINARY}; exec 2>&1; $G progress 3/10 && $G log 'half way' && $G heartbeat >/dev/null && $G chunk part
         $G log j2 hello; echo \"log $?\"
         $G get j2; echo \"get $?\"
         $G put mail welcome 1; echo \"put $?\"
         $G complete $GEARTRAIN_JOB_JID; echo \"complete $?\"
         env | grep -c SECRET; true"
    );
    let script = sandbox.script("report", &script);
    let mut command = sandbox.command(&["work", "mail", "--drain", "--", &script]);
    // Secrets of the worker are not for its programs.
    command.env("GEARTRAIN_PASSWORD", "SECRET").env("GEARTRAIN_STORE", "redis://:SECRET@cache");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result = sandbox.run(&["result", "j1"]);
    let lines: Vec<&str> = result.lines().collect();
    assert_eq!(lines[0], "30% (3 of 10)");
    assert!(lines.contains(&"added to the history"), "{result}");
    for refused in ["log 1", "get 1", "put 1", "complete 1", "0"] {
        assert!(lines.contains(&refused), "{refused}: {result}");
    }
    assert!(result.contains("Put is not allowed on the socket of a job"), "{result}");
    assert!(result.contains("job j2 is not the job of this program"), "{result}");
    let shown = sandbox.run(&["get", "j1"]);
    assert!(shown.contains("half way") && shown.contains("exited with code 0"), "{shown}");
    // Outside of a program these commands still need a job.
    let (_, error, code) = sandbox.try_run(&["progress", "3/10"]);
    assert_eq!((code, error.contains("give a job id")), (2, true), "{error}");
    let (_, error, code) = sandbox.try_run(&["log", "text"]);
    assert_eq!((code, error.contains("give a job id and a message")), (2, true), "{error}");
}

#[test]
fn a_command_that_cannot_run_is_an_error_at_start() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "mail", "welcome", "{}", "--jid", "j1"]);
    let plain = sandbox.file("plain", "echo");
    for (arguments, error) in [
        (&["--", "no-such-program-anywhere"][..], "there is no program"),
        (&["--", &plain][..], "cannot be executed"),
        (&["--resume", "--", "true"][..], "--worker"),
        (&["--limit-memory", "10", "--", "true"][..], "at least 1mb"),
        (&[][..], "CMD"),
    ] {
        let (_, stderr, code) = sandbox.try_run(&[&["work", "mail"], arguments].concat());
        assert_eq!((code, stderr.contains(error)), (2, true), "{arguments:?}: {stderr}");
    }
    assert_eq!(state(&sandbox, &sandbox.url("data"), "j1"), "waiting");
}

/// A program with a grandchild in a session of its own; both ignore SIGTERM.
const STUBBORN: &str = r#"trap "" TERM; (setsid sh -c 'trap "" TERM; while :; do sleep 1; done' "$1" &)
    while :; do sleep 1; done"#;

#[test]
fn a_cancelled_job_is_stopped_with_all_that_it_started_on_every_kind_of_queue() {
    let sandbox = Sandbox::new();
    let script = sandbox.script("stubborn", STUBBORN);
    let (redis, server) = (RedisServer::start(&[]), ServerProcess::start(&[]));
    for url in [sandbox.url("data"), redis.url(), server.url()] {
        let word = unique_word("cancel");
        let work = ["--url", &url, "work", "mail", "--once", "--kill-after", "300ms", "--", &script, &word];
        let mut worker = WorkerProcess::start(&sandbox, &work);
        // The worker owns the directory first, so that the others come in through its socket.
        until("the worker runs", || processes(&word) >= 1);
        until("the queue answers", || sandbox.try_run(&["--url", &url, "ping"]).2 == 0);
        sandbox.run(&["--url", &url, "put", "mail", "welcome", "{}", "--jid", "j1"]);
        // The worker, the supervisor, the program and the grandchild.
        until("the program runs", || processes(&word) >= 4);
        sandbox.run(&["--url", &url, "cancel", "j1"]);
        assert_eq!(worker.wait(), Some(0));
        assert_eq!(processes(&word), 0, "{url}");
        assert_eq!(worker.endings(), ["j1 lost"], "{url}");
    }
}

/// A short command may have the directory open when a worker starts. The worker must not depend on it.
#[test]
fn a_worker_opens_the_directory_when_the_command_ends_that_had_it_open() {
    let sandbox = Sandbox::new();
    let mut owner = WorkerProcess::start(&sandbox, &["pop", "other", "--wait", "1h"]);
    until("the command owns the directory", || {
        std::path::Path::new(&sandbox.path("data/geartrain.sock")).exists()
    });
    let script = sandbox.script("square", "read n; echo $((n * n))");
    let mut worker = WorkerProcess::start(&sandbox, &["work", "numbers", "--", &script]);
    let taking = format!("taking jobs of numbers at {}", sandbox.path("data"));
    until("the worker has started", || worker.log.lock().unwrap().iter().any(|line| line.contains(&taking)));
    // Through the socket of the command.
    sandbox.run(&["put", "numbers", "square", "3", "--jid", "j1", "--keep-result", "1h"]);
    until("the worker works", || worker.endings() == ["j1 completed"]);
    owner.signal("-KILL");
    owner.wait();
    sandbox.run(&["put", "numbers", "square", "4", "--jid", "j2", "--keep-result", "1h"]);
    until("the worker goes on", || worker.endings() == ["j1 completed", "j2 completed"]);
    assert_eq!(sandbox.run(&["result", "j2"]).trim(), "16");
    worker.signal("-TERM");
    assert_eq!(worker.wait(), Some(0));
}

#[test]
fn killing_the_worker_kills_its_programs_and_all_that_they_started() {
    let sandbox = Sandbox::new();
    let script = sandbox.script("stubborn", STUBBORN);
    let word = unique_word("kill");
    sandbox.run(&["put", "mail", "welcome", "{}"]);
    let mut worker = WorkerProcess::start(&sandbox, &["work", "mail", "--", &script, &word]);
    until("the program runs", || processes(&word) >= 4);
    worker.signal("-KILL");
    worker.wait();
    until("nothing is left", || processes(&word) == 0);
}

#[test]
fn a_frozen_worker_loses_its_job_and_its_result_is_refused() {
    let sandbox = Sandbox::new();
    let server = ServerProcess::start(&[]);
    let url = server.url();
    sandbox.run(&["--url", &url, "config", "set", "heartbeat", "2"]);
    sandbox.run(&["--url", &url, "config", "set", "grace-period", "0"]);
    sandbox.run(&["--url", &url, "put", "mail", "welcome", "{}", "--jid", "j1", "--keep-result", "1h"]);
    let go = sandbox.path("go");
    let slow = sandbox.script("slow", &format!("while ! [ -e {go} ]; do sleep 0.05; done; echo slow"));
    let mut first = WorkerProcess::start(&sandbox, &["--url", &url, "work", "mail", "--once", "--", &slow]);
    until("the first has it", || state(&sandbox, &url, "j1") == "running");
    until("the program runs", || processes(&slow) >= 2);
    first.signal("-STOP");
    let fast = ["--url", &url, "work", "mail", "--once", "--", "echo", "fast"];
    let mut second = WorkerProcess::start(&sandbox, &fast);
    assert_eq!(second.wait(), Some(0));
    assert_eq!(second.endings(), ["j1 completed"]);
    // The program of the first ends, too, before the worker can notice anything.
    std::fs::write(&go, "").unwrap();
    until("it has ended", || processes(&slow) <= 1);
    first.signal("-CONT");
    assert_eq!(first.wait(), Some(0));
    assert_eq!(first.endings(), ["j1 lost"]);
    assert_eq!(sandbox.run(&["--url", &url, "result", "j1"]).trim(), "fast");
}

#[test]
fn signals_leave_no_job_locked_and_use_up_no_retry() {
    let sandbox = Sandbox::new();
    let server = ServerProcess::start(&[]);
    let url = server.url();
    let jobs = 40;
    let lines: String = (0..jobs)
        .map(|number| format!("{{\"klass\":\"k\",\"payload\":1,\"jid\":\"j{number}\"}}\n"))
        .collect();
    sandbox.file("jobs.ndjson", &lines);
    sandbox.run(&["--url", &url, "put", "mail", "--batch", &sandbox.path("jobs.ndjson")]);
    let word = unique_word("term");
    let script = sandbox.script("nap", "sleep 0.3");
    for round in 0..scaled(5, 50) {
        let name = format!("w{round}");
        let work = [
            "--url",
            &url,
            "work",
            "mail",
            "--worker",
            &name,
            "--concurrency",
            "4",
            "--grace",
            "0",
            "--",
            &script,
            &word,
        ];
        let mut worker = WorkerProcess::start(&sandbox, &work);
        until("programs run", || processes(&word) >= 3);
        worker.signal("-TERM");
        assert_eq!(worker.wait(), Some(0));
        assert_eq!(processes(&word), 0);
        let running: Value = serde_json::from_str(
            &sandbox.run(&["--url", &url, "jobs", "--state", "running", "--queue", "mail", "--json"]),
        )
        .unwrap();
        assert_eq!(running.as_array().map(Vec::len), Some(0), "{running}");
    }
    for number in 0..jobs {
        let job: Value =
            serde_json::from_str(&sandbox.run(&["--url", &url, "get", &format!("j{number}"), "--json"]))
                .unwrap();
        let is_ok =
            job["state"] == "complete" || (job["state"] == "waiting" && job["remaining"] == job["retries"]);
        assert!(is_ok, "{job}");
    }
}

#[test]
fn gearman_jobs_are_worked_retried_and_failed() {
    let sandbox = Sandbox::new();
    let gearmand = Gearmand::start(&[]);
    let url = format!("gearman://127.0.0.1:{}", gearmand.port());
    for flag in ["--retry-delay=5s", "--order=priority", "--klass=k"] {
        let (_, error, code) = sandbox.try_run(&["--url", &url, "work", "mail", flag, "--", "true"]);
        let name = flag.split('=').next().unwrap();
        assert_eq!(
            (code, error.contains(&format!("{name} does not work with Gearman"))),
            (2, true),
            "{error}"
        );
    }
    // Fails once, and succeeds when the server hands it out again.
    let again = sandbox.path("again");
    let script = format!("if [ -e {again} ]; then cat; else touch {again}; exit 1; fi");
    let script = sandbox.script("twice", &script);
    let work = ["--url", &url, "work", "mail", "--concurrency", "2", "--", &script];
    let mut worker = WorkerProcess::start(&sandbox, &work);
    let result = sandbox.run(&["--url", &url, "put", "mail", "mail", "hello", "--wait", "60s"]);
    assert_eq!(result.trim(), "hello");
    worker.signal("-TERM");
    assert_eq!(worker.wait(), Some(0));
    let endings: Vec<String> =
        worker.endings().iter().map(|ending| ending.split(' ').nth(1).unwrap().to_owned()).collect();
    assert_eq!(endings, ["retried", "completed"]);
}
