//! Debian's `gearman`, as a client and as a worker, and `gearadmin`.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use geartrain_testkit::peers::{Scratch, until};

use crate::gearman_peers::program::{Geartrain, Program, ProgramOutput, Running};

const LARGE_BYTES: usize = 1 << 20;
const MANY: usize = 500;

#[test]
fn a_client_prints_the_result_of_its_job() {
    on_each_store(|port| {
        let _worker = worker(port, &["-f", "rev"], &["rev"]);
        let output = client(port, &["-f", "rev", "abc"], b"");
        assert_eq!((output.code, output.text()), (Some(0), "cba"), "{output:?}");
        // Each line as data. The tool uses the first one for the result as well, and prints it twice.
        let _worker = worker(port, &["-n", "-f", "lines"], &["cat"]);
        let output = client(port, &["-f", "lines"], b"one\ntwo\n");
        assert_eq!((output.code, output.text()), (Some(0), "one\none\ntwo\n"), "{output:?}");
    });
}

#[test]
fn large_binary_payloads_make_the_round_trip() {
    let geartrain = Geartrain::start();
    // The tool writes everything to the command before it reads, so the command has to read all input first.
    let scratch = Scratch::new("bytes");
    let mut command = gearman(geartrain.port());
    command.args(["-w", "-f", "cat", "--", "sh", "-c", "cat > all; cat all"]).current_dir(scratch.path());
    let _worker = Program::start(&mut command);
    let every_byte: Vec<u8> = (0..=255).cycle().take(LARGE_BYTES).collect();
    let output = client(geartrain.port(), &["-f", "cat"], &every_byte);
    assert_eq!(output.code, Some(0), "{}", output.complaints);
    assert!(output.output == every_byte, "{} bytes output back as something else", output.output.len());
}

#[test]
fn background_jobs_run_by_priority() {
    let geartrain = Geartrain::start();
    let port = geartrain.port();
    for (number, (data, priority)) in
        [("5", Some("-L")), ("3", None), ("1", Some("-I")), ("6", Some("-L")), ("4", None), ("2", Some("-I"))]
            .into_iter()
            .enumerate()
    {
        let mut arguments = vec!["-v", "-b", "-f", "later"];
        arguments.extend(priority);
        arguments.push(data);
        let output = client(port, &arguments, b"");
        let created = format!("Task created: H:here:{}\n", number + 1);
        assert_eq!((output.code, output.text()), (Some(0), &*created), "{output:?}");
    }
    assert_eq!(administer(port, &["--priority-status"]), "later\t2\t2\t2\t0\n.\n");
    // Without a command it prints the payloads, and ends after the given number of jobs.
    let worker = Running::start(gearman(port).args(["-w", "-f", "later", "-c", "6"]), b"");
    let output = worker.output();
    assert_eq!((output.code, output.text()), (Some(0), "123456"), "{output:?}");
    assert_eq!(administer(port, &["--status"]), "later\t0\t0\t0\n.\n");
}

#[test]
fn two_clients_share_a_job_by_its_unique_id() {
    let geartrain = Geartrain::start();
    let (port, slow) = (geartrain.port(), SlowJobs::new());
    let _worker = slow.worker(port);
    let hold = |data: &str| Running::start(gearman(port).args(["-f", "hold", "-u", "same", data]), b"");
    let one = hold("first");
    until("the job is running", || slow.started() == 1);
    let other = hold("second");
    until("both clients wait for it", || admin_line(port, "jobs").ends_with("\t2\n"));
    slow.finish_job();
    for client in [one, other] {
        let output = client.output();
        assert_eq!((output.code, output.text()), (Some(0), "first"), "{output:?}");
    }
    assert_eq!(slow.started(), 1);
}

#[test]
fn a_client_is_told_that_its_job_failed() {
    let geartrain = Geartrain::start();
    let _worker = worker(geartrain.port(), &["-f", "bad"], &["false"]);
    let output = client(geartrain.port(), &["-f", "bad", "x"], b"");
    let expected = ProgramOutput { code: Some(1), output: Vec::new(), complaints: "Job failed\n".to_owned() };
    assert_eq!(output, expected);
}

#[test]
fn a_client_is_told_that_a_queue_is_full() {
    let geartrain = Geartrain::start();
    let port = geartrain.port();
    assert_eq!(admin_line(port, "maxqueue little 1"), "OK\n");
    assert_eq!(client(port, &["-b", "-f", "little", "x"], b"").code, Some(0));
    let output = client(port, &["-b", "-f", "little", "y"], b"");
    // Its exit code is 0 all the same.
    assert_eq!(output.code, Some(0));
    assert!(output.complaints.contains("QUEUE_ERROR:Job queue is full"), "{output:?}");
    assert_eq!(administer(port, &["--status"]), "little\t1\t0\t0\n.\n");
}

#[test]
fn another_worker_gets_the_job_of_one_that_was_killed() {
    let geartrain = Geartrain::start();
    let (port, slow) = (geartrain.port(), SlowJobs::new());
    let killed = slow.worker(port);
    let client = Running::start(gearman(port).args(["-f", "hold", "twice"]), b"");
    until("the job is running", || slow.started() == 1);
    let _next = slow.worker(port);
    killed.kill();
    until("the job is running again", || slow.started() == 2);
    slow.finish_job();
    let output = client.output();
    assert_eq!((output.code, output.text()), (Some(0), "twice"), "{output:?}");
}

#[test]
fn one_worker_runs_five_hundred_jobs_in_order() {
    let geartrain = Geartrain::start();
    let count = MANY.to_string();
    let worker = Running::start(gearman(geartrain.port()).args(["-w", "-f", "many", "-c", &count]), b"");
    let lines: String = (0..MANY).map(|number| format!("{number}\n")).collect();
    // One job per line.
    let output = client(geartrain.port(), &["-b", "-n", "-f", "many"], lines.as_bytes());
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!(worker.output().text(), lines);
}

#[test]
fn an_administrator_cancels_waiting_and_running_jobs() {
    let geartrain = Geartrain::start();
    let (port, slow) = (geartrain.port(), SlowJobs::new());
    let waiting = Running::start(gearman(port).args(["-f", "hold", "x"]), b"");
    until("the job is in the queue", || administer(port, &["--status"]) == "hold\t1\t0\t0\n.\n");
    assert_eq!(administer(port, &["--show-jobs"]), "H:here:1\t0\t0\t0\n.\n");
    assert_eq!(administer(port, &["--cancel-job", "H:here:1"]), "OK\n");
    assert_eq!(waiting.output().complaints, "Job failed\n");
    let _worker = slow.worker(port);
    let running = Running::start(gearman(port).args(["-f", "hold", "y"]), b"");
    until("the job is running", || slow.started() == 1);
    assert_eq!(administer(port, &["--cancel-job", "H:here:2"]), "OK\n");
    assert_eq!(running.output().complaints, "Job failed\n");
    slow.finish_job();
    // The worker's later report is ignored, and the worker continues.
    let next = client(port, &["-f", "hold", "z"], b"");
    assert_eq!((next.code, next.text()), (Some(0), "z"), "{next:?}");
}

/// Every command of gearadmin, with its full output.
#[test]
fn gearadmin_prints_every_reply() {
    let geartrain = Geartrain::start();
    let (port, slow) = (geartrain.port(), SlowJobs::new());
    assert_eq!(administer(port, &["--status"]), ".\n");
    assert_eq!(administer(port, &["--show-jobs"]), ".\n");
    let _worker = slow.worker(port);
    for (data, unique, priority) in [("1", "one", None), ("2", "two", Some("-I")), ("3", "three", Some("-L"))]
    {
        let mut arguments = vec!["-b", "-f", "hold", "-u", unique];
        arguments.extend(priority);
        arguments.push(data);
        assert_eq!(client(port, &arguments, b"").code, Some(0));
        // The first one is running before the others are submitted.
        until("the first job is running", || slow.started() == 1);
    }
    assert_eq!(administer(port, &["--create-function", "new"]), "OK\n");
    assert_eq!(administer(port, &["--create-function", "new"]), "OK\n");
    assert_eq!(administer(port, &["--status"]), "hold\t3\t1\t1\nnew\t0\t0\t0\n.\n");
    assert_eq!(administer(port, &["--priority-status"]), "hold\t1\t0\t1\t1\nnew\t0\t0\t0\t0\n.\n");
    let jobs = "H:here:1\t0\t0\t1\nH:here:2\t0\t0\t1\nH:here:3\t0\t0\t1\n.\n";
    assert_eq!(administer(port, &["--show-jobs"]), jobs);
    assert_eq!(administer(port, &["--show-unique-jobs"]), "one\ntwo\nthree\n.\n");
    let workers = administer(port, &["--workers"]);
    let lines: Vec<&str> = workers.lines().collect();
    let [worker, asking, "."] = lines[..] else { panic!("{workers}") };
    assert!(worker.ends_with(" 127.0.0.1 - : hold"), "{worker}");
    assert!(asking.ends_with(" 127.0.0.1 - :"), "{asking}");
    assert_eq!(administer(port, &["--getpid"]), format!("{}\n", std::process::id()));
    let version = concat!("1.1.20-geartrain-", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(administer(port, &["--server-version"]), version);
    assert_eq!(administer(port, &["--server-verbose"]), "INFO\n");
    assert_eq!(administer(port, &["--cancel-job", "H:here:3"]), "OK\n");
    assert_eq!(administer(port, &["--drop-function", "new"]), "OK\n");
    // Its exit code is 0 whatever the reply.
    for (arguments, error) in [
        (["--cancel-job", "H:here:3"], "Error: UNKNOWN_JOB\r\n"),
        (["--drop-function", "new"], "Error: function not found\r\n"),
        (["--drop-function", "hold"], "Error: there are still connected workers or executing clients\r\n"),
    ] {
        let output = Running::start(gearadmin(port).args(arguments), b"").output();
        assert_eq!(output, ProgramOutput { code: Some(0), output: Vec::new(), complaints: error.to_owned() });
    }
    assert_eq!(administer(port, &["--status"]), "hold\t2\t1\t1\n.\n");
    // Several commands on one connection.
    let all = administer(port, &["--getpid", "--server-verbose"]);
    let mut lines: Vec<&str> = all.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, [&*std::process::id().to_string(), "INFO"]);
}

fn on_each_store(check: impl Fn(u16)) {
    check(Geartrain::start().port());
    let scratch = Scratch::new("gearman-tools");
    let store = format!("embedded:{}", scratch.path().join("data").display());
    check(Geartrain::with(&store, |_| {}).port());
}

pub(crate) fn gearman(port: u16) -> Command {
    let mut command = Command::new("gearman");
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
    command
}

fn gearadmin(port: u16) -> Command {
    let mut command = Command::new("gearadmin");
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    command
}

/// Submits a job and returns the output of the client.
#[track_caller]
pub(crate) fn client(port: u16, arguments: &[&str], input: &[u8]) -> ProgramOutput {
    Running::start(gearman(port).args(arguments), input).output()
}

/// A worker that runs a command for each job.
pub(crate) fn worker(port: u16, options: &[&str], command: &[&str]) -> Program {
    Program::start(gearman(port).arg("-w").args(options).arg("--").args(command))
}

/// The output of `gearadmin`.
#[track_caller]
fn administer(port: u16, arguments: &[&str]) -> String {
    let output = Running::start(gearadmin(port).args(arguments), b"").output();
    assert_eq!((output.code, &*output.complaints), (Some(0), ""), "{arguments:?}");
    output.text().to_owned()
}

/// The reply to an admin line: one line, or a list without its end.
fn admin_line(port: u16, line: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server is there");
    writeln!(stream, "{line}").expect("it listens");
    let mut answer = String::new();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if line == "." {
            break;
        }
        answer.push_str(&format!("{line}\n"));
        if line.starts_with("OK") || line.starts_with("ERR") {
            break;
        }
    }
    answer
}

/// Jobs that run until they are told to end, or until the test ends.
struct SlowJobs {
    scratch: Scratch,
}

impl SlowJobs {
    fn new() -> SlowJobs {
        SlowJobs { scratch: Scratch::new("slow") }
    }

    /// A worker for the function `hold`, which returns the payload.
    fn worker(&self, port: u16) -> Program {
        let script = "cat; echo >> started; until [ -e go ] || [ ! -e here ]; do sleep 0.02; done";
        std::fs::write(self.file("here"), "").expect("there is room for a file");
        let mut command = gearman(port);
        command.args(["-w", "-f", "hold", "--", "sh", "-c", script]).current_dir(self.scratch.path());
        Program::start(&mut command)
    }

    /// How many have started.
    fn started(&self) -> usize {
        std::fs::read(self.file("started")).map_or(0, |lines| lines.len())
    }

    fn finish_job(&self) {
        std::fs::write(self.file("go"), "").expect("there is room for a file");
    }

    fn file(&self, name: &str) -> impl AsRef<Path> + use<> {
        self.scratch.path().join(name)
    }
}
