//! The handlers of `examples/workers`, in five languages, under `geartrain work`.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::sandbox::Sandbox;
use crate::server_process::{ServerProcess, until};

/// A handler, with the names that its language gives to the same things.
struct Handler {
    model: &'static str,
    file: &'static str,
    count: &'static str,
    checksum: &'static str,
    /// The groups of a missing file, an unusable payload and an unknown klass, without the queue.
    groups: [&'static str; 3],
}

const FORK_GROUPS: [&str; 3] = ["exit-75", "exit-64", "exit-64"];

const fn fork(file: &'static str, count: &'static str, checksum: &'static str) -> Handler {
    Handler { model: "fork", file, count, checksum, groups: FORK_GROUPS }
}

const fn pool(
    file: &'static str,
    count: &'static str,
    checksum: &'static str,
    groups: [&'static str; 3],
) -> Handler {
    Handler { model: "pool", file, count, checksum, groups }
}

const PYTHON_FORK: Handler = fork("python/fork.py", "files.Count", "files.Checksum");
const PYTHON_POOL: Handler = pool(
    "python/pool.py",
    "files.Count",
    "files.Checksum",
    ["FileNotFoundError", "KeyError", "ModuleNotFoundError"],
);
const NODE_FORK: Handler = fork("node/fork.mjs", "count", "checksum");
const NODE_POOL: Handler = pool("node/pool.mjs", "count", "checksum", ["Error", "GiveUp", "GiveUp"]);
const BASH_FORK: Handler = fork("bash/fork.bash", "count", "checksum");
const BASH_POOL: Handler = pool("bash/pool.bash", "count", "checksum", ["error", "gave-up", "gave-up"]);
const RUBY_FORK: Handler = fork("ruby/fork.rb", "Files::Count", "Files::Checksum");
const RUBY_POOL: Handler =
    pool("ruby/pool.rb", "Files::Count", "Files::Checksum", ["Errno::ENOENT", "KeyError", "NameError"]);
const PERL_FORK: Handler = fork("perl/fork.pl", "count", "checksum");
const PERL_POOL: Handler = pool("perl/pool.pl", "count", "checksum", ["error", "gave-up", "gave-up"]);

/// A module for each handler.
macro_rules! handlers {
    ($($name:ident: $handler:ident),* $(,)?) => {$(
        mod $name {
            #[test]
            fn jobs_end_as_the_handler_says() {
                super::jobs_end_as_the_handler_says(&super::$handler);
            }

            #[test]
            fn progress_is_reported_while_the_job_runs() {
                super::progress_is_reported_while_the_job_runs(&super::$handler);
            }

            #[test]
            fn a_cancelled_job_is_stopped_and_the_next_one_runs() {
                super::a_cancelled_job_is_stopped_and_the_next_one_runs(&super::$handler);
            }
        }
    )*};
}

handlers! {
    python_fork: PYTHON_FORK,
    python_pool: PYTHON_POOL,
    node_fork: NODE_FORK,
    node_pool: NODE_POOL,
    bash_fork: BASH_FORK,
    bash_pool: BASH_POOL,
    ruby_fork: RUBY_FORK,
    ruby_pool: RUBY_POOL,
    perl_fork: PERL_FORK,
    perl_pool: PERL_POOL,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A worker that stops when its queue is empty. In the locale C, in which some runtimes read ASCII by default.
fn worker(sandbox: &Sandbox, queue: &str, handler: &Handler) -> Command {
    let program = root().join("examples/workers").join(handler.file);
    let mut command = sandbox.command(&["work", queue, "--model", handler.model, "--concurrency", "1"]);
    command.args(["--drain", "--retry-delay", "0s", "--"]).arg(program);
    // The modules that a test writes itself.
    command.env("LC_ALL", "C").env("PYTHONPATH", &sandbox.directory).env("RUBYLIB", &sandbox.directory);
    command
}

/// Works until the queue is empty, and returns the log.
fn work(sandbox: &Sandbox, queue: &str, handler: &Handler) -> String {
    let output = worker(sandbox, queue, handler).output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}: {log}", handler.file);
    log
}

/// A worker in the background. Killed if the test fails before it stops by itself, and its programs with it.
struct Running(Child);

impl Running {
    fn start(queue: &ServedQueue, handler: &Handler) -> Running {
        let log = File::create(queue.sandbox.path("log")).unwrap();
        let mut command = worker(&queue.sandbox, "q", handler);
        command.env("GEARTRAIN_URL", queue.server.url()).stdout(Stdio::null()).stderr(log);
        Running(command.spawn().unwrap())
    }

    /// Waits until the queue is empty, and returns the log.
    fn finish(mut self, queue: &ServedQueue) -> String {
        let log = || std::fs::read_to_string(queue.sandbox.path("log")).unwrap();
        let mut status = None;
        until("the worker stops", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "{}", log());
        log()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A queue on a server, for commands while a worker runs.
struct ServedQueue {
    sandbox: Sandbox,
    server: ServerProcess,
}

impl ServedQueue {
    fn start() -> ServedQueue {
        ServedQueue { sandbox: Sandbox::new(), server: ServerProcess::start(&[]) }
    }

    fn try_run(&self, arguments: &[&str]) -> (String, String, i32) {
        self.sandbox.try_run(&[arguments, &["--url", &self.server.url()]].concat())
    }

    fn run(&self, arguments: &[&str]) -> String {
        let (out, err, code) = self.try_run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {err}");
        out
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[arguments, &["--json"]].concat())).unwrap()
    }
}

/// The result of a job, which is JSON.
fn result(sandbox: &Sandbox, jid: &str) -> Value {
    let text = sandbox.run(&["result", jid]);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{jid}: {error}: {text:?}"))
}

/// The group of a failed job, its message, and the number of attempts.
fn failure(sandbox: &Sandbox, jid: &str) -> (String, String, usize) {
    let job = sandbox.json(&["get", jid]);
    assert_eq!(job["state"], "failed", "{job}");
    let text = |name: &str| job["failure"][name].as_str().unwrap().to_owned();
    let attempts = job["history"].as_array().unwrap().iter().filter(|entry| entry["what"] == "popped");
    (text("group"), text("message"), attempts.count())
}

fn paths(paths: &[&str]) -> String {
    json!({ "paths": paths, "note": "a line separator: \u{2028}" }).to_string()
}

fn jobs_end_as_the_handler_says(handler: &Handler) {
    let sandbox = Sandbox::new();
    let file = sandbox.file("lines", "straße\nand more\n");
    let missing = sandbox.path("missing");
    std::fs::write(sandbox.path("bytes"), b"\xff\0\n").unwrap();
    let (bytes, keep) = (format!("@{}", sandbox.path("bytes")), "--keep-result");
    sandbox.run(&["put", "q", handler.count, &paths(&[&file, &file]), "--jid", "counted", keep]);
    sandbox.run(&["put", "q", handler.checksum, &bytes, "--jid", "bytes", keep]);
    sandbox.run(&["put", "q", handler.checksum, "straße", "--jid", "text", keep]);
    sandbox.run(&["put", "q", handler.count, &paths(&[&missing]), "--jid", "missing", "--retries", "1"]);
    sandbox.run(&["put", "q", handler.count, r#"{"path":"x"}"#, "--jid", "unusable"]);
    sandbox.run(&["put", "q", "nowhere.Klass", "{}", "--jid", "unknown"]);
    sandbox.run(&["put", "q", handler.count, &paths(&[&file]), "--jid", "last", "--priority=-1", keep]);
    work(&sandbox, "q", handler);

    assert_eq!(result(&sandbox, "counted"), json!({ "lines": 4 }));
    let checksum = "c933d2fe5a3675b959c287c271739ac2";
    assert_eq!(result(&sandbox, "bytes").as_str().map(|text| &text[..32]), Some(checksum));
    let checksum = "787f4770613d3824cbc89b6d5da90a12";
    assert_eq!(result(&sandbox, "text").as_str().map(|text| &text[..32]), Some(checksum));
    assert_eq!(result(&sandbox, "last"), json!({ "lines": 2 }));

    let groups = handler.groups.map(|group| format!("q-{group}"));
    let (group, message, attempts) = failure(&sandbox, "missing");
    assert_eq!((&group, attempts), (&groups[0], 2), "{message}");
    assert!(message.contains(&missing), "{message}");
    let (group, message, attempts) = failure(&sandbox, "unusable");
    assert_eq!((&group, attempts), (&groups[1], 1), "{message}");
    assert!(message.contains("paths"), "{message}");
    let (group, message, attempts) = failure(&sandbox, "unknown");
    assert_eq!((&group, attempts), (&groups[2], 1), "{message}");
    assert!(message.contains("nowhere"), "{message}");
}

/// A file from which programs read nothing until the test lets go of it.
fn pipe(sandbox: &Sandbox) -> (String, File) {
    let path = sandbox.path("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    (path, file)
}

/// Waits until a running job has reported progress.
fn progress(queue: &ServedQueue, jid: &str) -> Value {
    let mut progress = Value::Null;
    until("the job reports progress", || {
        progress = queue.json(&["status", jid])["progress"].take();
        !progress.is_null()
    });
    progress
}

fn progress_is_reported_while_the_job_runs(handler: &Handler) {
    let queue = ServedQueue::start();
    let (file, (pipe, reader)) = (queue.sandbox.file("lines", "one\n"), pipe(&queue.sandbox));
    drop(reader);
    queue.run(&["put", "q", handler.count, &paths(&[&file, &pipe]), "--jid", "j1", "--keep-result"]);
    let worker = Running::start(&queue, handler);
    let reported = progress(&queue, "j1");
    // Blocks until the handler has opened it too: what is written before that would be lost.
    let mut writer = OpenOptions::new().write(true).open(&pipe).unwrap();
    writer.write_all(b"two\nthree\n").unwrap();
    drop(writer);
    worker.finish(&queue);
    assert_eq!((&reported["part"], &reported["whole"]), (&json!(1), &json!(2)));
    assert_eq!(queue.run(&["result", "j1"]).replace(' ', "").trim_end(), r#"{"lines":3}"#);
}

fn a_cancelled_job_is_stopped_and_the_next_one_runs(handler: &Handler) {
    let queue = ServedQueue::start();
    let (file, (pipe, mut writer)) = (queue.sandbox.file("lines", "one\n"), pipe(&queue.sandbox));
    queue.run(&["put", "q", handler.count, &paths(&[&file, &pipe]), "--jid", "j1"]);
    let worker = Running::start(&queue, handler);
    progress(&queue, "j1");
    queue.run(&["put", "q", handler.count, &paths(&[&file]), "--jid", "j2", "--keep-result"]);
    queue.run(&["cancel", "j1"]);
    let reads_cancel = handler.file == NODE_POOL.file;
    if reads_cancel {
        // It aborts between two reads, so the second one must find something after the cancellation.
        until("the worker notices", || {
            let log = std::fs::read_to_string(queue.sandbox.path("log")).unwrap();
            log.contains("stopping an attempt")
        });
        writer.write_all(b"two\n").unwrap();
    }
    let log = worker.finish(&queue);
    assert_eq!(queue.run(&["result", "j2"]).replace(' ', "").trim_end(), r#"{"lines":1}"#);
    let (_, _, code) = queue.try_run(&["get", "j1"]);
    assert_ne!(code, 0, "a cancelled job is removed");
    if handler.model == "pool" {
        assert_eq!(log.contains("was stopped with its cancelled job"), !reads_cancel, "{log}");
    }
}

const PYTHON_KLASSES: &str = r#"
class Broken:
    @staticmethod
    def process(job):
        return 1 / 0

class Instance:
    def process(self, job):
        return "never"

class Empty:
    pass

class Noisy:
    @staticmethod
    def process(job):
        print("hello")
        return job.data

class Strange:
    @staticmethod
    def process(job):
        return {1, 2}
"#;

const RUBY_KLASSES: &str = r#"
module OddJobs
  class Broken
    def self.process(job) = 1 / 0
  end

  class Empty
  end

  class Noisy
    def self.process(job)
      puts "hello"
      system "echo hello"
      job.data
    end
  end
end
"#;

/// Puts a job of each klass, works, and returns the groups and messages of those that failed.
fn failures(handler: &Handler, klasses: &[&str]) -> Vec<(String, String)> {
    let sandbox = Sandbox::new();
    sandbox.file("odd_jobs.py", PYTHON_KLASSES);
    sandbox.file("odd_jobs.rb", RUBY_KLASSES);
    for klass in klasses {
        sandbox.run(&[
            "put",
            "q",
            klass,
            r#"{"a":[1,null]}"#,
            "--jid",
            &klass.replace(':', "."),
            "--keep-result",
        ]);
    }
    work(&sandbox, "q", handler);
    let noisy = klasses.iter().find(|klass| klass.ends_with("Noisy")).unwrap();
    assert_eq!(result(&sandbox, &noisy.replace(':', ".")), json!({ "a": [1, null] }));
    let failed = klasses.iter().filter(|klass| *klass != noisy);
    let failed = failed.map(|klass| failure(&sandbox, &klass.replace(':', ".")));
    failed
        .map(|(group, message, attempts)| {
            assert_eq!(attempts, 1, "{group}: {message}");
            (group, message)
        })
        .collect()
}

fn assert_failures(handler: &Handler, expected: &[(&str, &str, &str)]) {
    let noisy = if handler.file.contains("ruby") { "OddJobs::Noisy" } else { "odd_jobs.Noisy" };
    let klasses: Vec<&str> = expected.iter().map(|(klass, ..)| *klass).chain([noisy]).collect();
    for ((klass, group, text), (failed_in, message)) in expected.iter().zip(failures(handler, &klasses)) {
        assert_eq!(failed_in, *group, "{klass}: {message}");
        assert!(message.contains(text), "{klass}: {message}");
    }
}

#[test]
fn python_klasses_fail_as_with_qless() {
    assert_failures(
        &PYTHON_POOL,
        &[
            ("odd_jobs.Broken", "q-ZeroDivisionError", "in process"),
            ("odd_jobs.Instance", "q-method-type", "odd_jobs.Instance.process is not a static method"),
            ("odd_jobs.Empty", "q-method-missing", "odd_jobs.Empty has no method q"),
            ("odd_jobs.Absent", "q-AttributeError", "Failed to import odd_jobs.Absent"),
            ("welcome", "q-ValueError", "Failed to import welcome"),
            ("odd_jobs.Strange", "q-TypeError", "not JSON serializable"),
        ],
    );
    assert_failures(
        &PYTHON_FORK,
        &[
            ("odd_jobs.Broken", "q-exit-64", "ZeroDivisionError"),
            ("odd_jobs.Instance", "q-exit-64", "odd_jobs.Instance.process is not a static method"),
            ("odd_jobs.Empty", "q-exit-64", "process"),
            ("odd_jobs.Absent", "q-exit-64", "has no attribute 'Absent'"),
            ("odd_jobs.Strange", "q-exit-64", "not JSON serializable"),
        ],
    );
}

#[test]
fn ruby_klasses_fail_as_with_qless() {
    assert_failures(
        &RUBY_POOL,
        &[
            ("OddJobs::Broken", "q-ZeroDivisionError", "in `process'"),
            ("OddJobs::Empty", "q-method-missing", "OddJobs::Empty has no method q"),
            ("OddJobs::Absent", "q-NameError", "Failed to import OddJobs::Absent"),
            ("welcome", "q-NameError", "Failed to import welcome"),
        ],
    );
    assert_failures(
        &RUBY_FORK,
        &[
            ("OddJobs::Broken", "q-exit-64", "ZeroDivisionError"),
            ("OddJobs::Empty", "q-exit-64", "OddJobs::Empty has no method q"),
            ("OddJobs::Absent", "q-exit-64", "NameError"),
        ],
    );
}

#[test]
fn python_and_ruby_call_the_method_named_like_the_queue() {
    for handler in [&PYTHON_FORK, &PYTHON_POOL, &RUBY_FORK, &RUBY_POOL] {
        let sandbox = Sandbox::new();
        let file = sandbox.file("lines", "one two\nthree\n");
        sandbox.run(&["put", "words", handler.count, &paths(&[&file]), "--jid", "j1", "--keep-result"]);
        work(&sandbox, "words", handler);
        assert_eq!(result(&sandbox, "j1"), json!({ "words": 3 }), "{}", handler.file);
    }
}

#[test]
fn handlers_are_short() {
    for directory in std::fs::read_dir(root().join("examples/workers")).unwrap() {
        let directory = directory.unwrap().path();
        for file in std::fs::read_dir(directory).into_iter().flatten() {
            let path = file.unwrap().path();
            // Beside it, Python leaves what it compiled.
            let lines =
                if path.is_file() { std::fs::read_to_string(&path).unwrap().lines().count() } else { 0 };
            assert!(lines < 40, "{}: {lines} lines", path.display());
        }
    }
}

#[test]
fn the_guides_show_the_tested_handlers() {
    for language in ["python", "node", "bash", "ruby", "perl"] {
        let guide = root().join(format!("docs/guide/worker-{language}.md"));
        let text = std::fs::read_to_string(&guide).unwrap();
        // A link to a file, a colon, and the file itself as a code block.
        let mut shown = Vec::new();
        for part in text.split("](../../examples/workers/").skip(1) {
            let (file, rest) = part.split_once(')').unwrap();
            let Some((_, rest)) = rest.split_once(":\n\n```").filter(|(between, _)| !between.contains('\n'))
            else {
                continue;
            };
            let (_, rest) = rest.split_once('\n').unwrap();
            let (code, _) = rest.split_once("\n```\n").unwrap();
            let tested = std::fs::read_to_string(root().join("examples/workers").join(file)).unwrap();
            assert_eq!(code, tested.trim_end(), "{}: not what {file} is", guide.display());
            shown.push(file);
        }
        assert!(shown.iter().any(|file| file.contains("/fork.")), "{}: shows {shown:?}", guide.display());
        assert_eq!(shown.len(), 2, "{}: shows {shown:?}", guide.display());
    }
}
