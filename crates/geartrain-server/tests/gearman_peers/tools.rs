//! Debian's `gearman`, as a client and as a worker, and `gearadmin`.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use geartrain_testkit::peers::{Scratch, until};

use crate::gearman_peers::program::{Came, Geartrain, Program, Running};

const LARGE_BYTES: usize = 1 << 20;
const MANY: usize = 500;

#[test]
fn a_client_prints_what_a_worker_made_of_its_job() {
    on_each_store(|port| {
        let _worker = worker(port, &["-f", "rev"], &["rev"]);
        let came = client(port, &["-f", "rev", "abc"], b"");
        assert_eq!((came.code, came.text()), (Some(0), "cba"), "{came:?}");
        // As data for each line. The tool keeps the first one for the result as well, and says it twice.
        let _worker = worker(port, &["-n", "-f", "lines"], &["cat"]);
        let came = client(port, &["-f", "lines"], b"one\ntwo\n");
        assert_eq!((came.code, came.text()), (Some(0), "one\none\ntwo\n"), "{came:?}");
    });
}

#[test]
fn bytes_of_all_kinds_and_many_of_them_go_there_and_back() {
    let geartrain = Geartrain::start();
    // The tool reads nothing from the command before it has written everything to it, so the command has to take all of it first.
    let scratch = Scratch::new("bytes");
    let mut command = gearman(geartrain.port());
    command.args(["-w", "-f", "cat", "--", "sh", "-c", "cat > all; cat all"]).current_dir(scratch.path());
    let _worker = Program::start(&mut command);
    let every_byte: Vec<u8> = (0..=255).cycle().take(LARGE_BYTES).collect();
    let came = client(geartrain.port(), &["-f", "cat"], &every_byte);
    assert_eq!(came.code, Some(0), "{}", came.complaints);
    assert!(came.output == every_byte, "{} bytes came back as something else", came.output.len());
}

#[test]
fn jobs_in_the_background_are_done_by_priority() {
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
        let came = client(port, &arguments, b"");
        let created = format!("Task created: H:here:{}\n", number + 1);
        assert_eq!((came.code, came.text()), (Some(0), &*created), "{came:?}");
    }
    assert_eq!(administer(port, &["--priority-status"]), "later\t2\t2\t2\t0\n.\n");
    // Without a command it prints what it gets, and it ends after as many jobs as it is told.
    let worker = Running::start(gearman(port).args(["-w", "-f", "later", "-c", "6"]), b"");
    let came = worker.came();
    assert_eq!((came.code, came.text()), (Some(0), "123456"), "{came:?}");
    assert_eq!(administer(port, &["--status"]), "later\t0\t0\t0\n.\n");
}

#[test]
fn two_clients_share_a_job_by_its_unique_id() {
    let geartrain = Geartrain::start();
    let (port, slow) = (geartrain.port(), Slow::new());
    let _worker = slow.worker(port);
    let hold = |data: &str| Running::start(gearman(port).args(["-f", "hold", "-u", "same", data]), b"");
    let one = hold("first");
    until("the job has begun", || slow.begun() == 1);
    let other = hold("second");
    until("both wait for it", || said(port, "jobs").ends_with("\t2\n"));
    slow.go_on();
    for client in [one, other] {
        let came = client.came();
        assert_eq!((came.code, came.text()), (Some(0), "first"), "{came:?}");
    }
    assert_eq!(slow.begun(), 1);
}

#[test]
fn a_client_is_told_that_its_job_failed() {
    let geartrain = Geartrain::start();
    let _worker = worker(geartrain.port(), &["-f", "bad"], &["false"]);
    let came = client(geartrain.port(), &["-f", "bad", "x"], b"");
    let told = Came { code: Some(1), output: Vec::new(), complaints: "Job failed\n".to_owned() };
    assert_eq!(came, told);
}

#[test]
fn a_client_is_told_that_a_queue_is_full() {
    let geartrain = Geartrain::start();
    let port = geartrain.port();
    assert_eq!(said(port, "maxqueue little 1"), "OK\n");
    assert_eq!(client(port, &["-b", "-f", "little", "x"], b"").code, Some(0));
    let came = client(port, &["-b", "-f", "little", "y"], b"");
    // It ends well all the same.
    assert_eq!(came.code, Some(0));
    assert!(came.complaints.contains("QUEUE_ERROR:Job queue is full"), "{came:?}");
    assert_eq!(administer(port, &["--status"]), "little\t1\t0\t0\n.\n");
}

#[test]
fn another_worker_gets_the_job_of_one_that_was_killed() {
    let geartrain = Geartrain::start();
    let (port, slow) = (geartrain.port(), Slow::new());
    let killed = slow.worker(port);
    let client = Running::start(gearman(port).args(["-f", "hold", "twice"]), b"");
    until("the job has begun", || slow.begun() == 1);
    let _next = slow.worker(port);
    killed.kill();
    until("the job has begun again", || slow.begun() == 2);
    slow.go_on();
    let came = client.came();
    assert_eq!((came.code, came.text()), (Some(0), "twice"), "{came:?}");
}

#[test]
fn one_worker_does_five_hundred_jobs_in_their_order() {
    let geartrain = Geartrain::start();
    let count = MANY.to_string();
    let worker = Running::start(gearman(geartrain.port()).args(["-w", "-f", "many", "-c", &count]), b"");
    let lines: String = (0..MANY).map(|number| format!("{number}\n")).collect();
    // A job for each line.
    let came = client(geartrain.port(), &["-b", "-n", "-f", "many"], lines.as_bytes());
    assert_eq!(came.code, Some(0), "{came:?}");
    assert_eq!(worker.came().text(), lines);
}

#[test]
fn an_administrator_cancels_jobs_that_wait_and_that_run() {
    let geartrain = Geartrain::start();
    let (port, slow) = (geartrain.port(), Slow::new());
    let waiting = Running::start(gearman(port).args(["-f", "hold", "x"]), b"");
    until("it is there", || administer(port, &["--status"]) == "hold\t1\t0\t0\n.\n");
    assert_eq!(administer(port, &["--show-jobs"]), "H:here:1\t0\t0\t0\n.\n");
    assert_eq!(administer(port, &["--cancel-job", "H:here:1"]), "OK\n");
    assert_eq!(waiting.came().complaints, "Job failed\n");
    let _worker = slow.worker(port);
    let running = Running::start(gearman(port).args(["-f", "hold", "y"]), b"");
    until("the job has begun", || slow.begun() == 1);
    assert_eq!(administer(port, &["--cancel-job", "H:here:2"]), "OK\n");
    assert_eq!(running.came().complaints, "Job failed\n");
    slow.go_on();
    // What the worker says of it later is nobody's business, and the worker goes on.
    let next = client(port, &["-f", "hold", "z"], b"");
    assert_eq!((next.code, next.text()), (Some(0), "z"), "{next:?}");
}

/// Every command that it has, with every word of what it prints.
#[test]
fn gearadmin_prints_what_it_is_told() {
    let geartrain = Geartrain::start();
    let (port, slow) = (geartrain.port(), Slow::new());
    assert_eq!(administer(port, &["--status"]), ".\n");
    assert_eq!(administer(port, &["--show-jobs"]), ".\n");
    let _worker = slow.worker(port);
    for (data, unique, priority) in [("1", "one", None), ("2", "two", Some("-I")), ("3", "three", Some("-L"))]
    {
        let mut arguments = vec!["-b", "-f", "hold", "-u", unique];
        arguments.extend(priority);
        arguments.push(data);
        assert_eq!(client(port, &arguments, b"").code, Some(0));
        // The first of them runs before there are others.
        until("the first job has begun", || slow.begun() == 1);
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
    // It ends well whatever it is told.
    for (arguments, error) in [
        (["--cancel-job", "H:here:3"], "Error: UNKNOWN_JOB\r\n"),
        (["--drop-function", "new"], "Error: function not found\r\n"),
        (["--drop-function", "hold"], "Error: there are still connected workers or executing clients\r\n"),
    ] {
        let came = Running::start(gearadmin(port).args(arguments), b"").came();
        assert_eq!(came, Came { code: Some(0), output: Vec::new(), complaints: error.to_owned() });
    }
    assert_eq!(administer(port, &["--status"]), "hold\t2\t1\t1\n.\n");
    // Several at once are asked for on one connection.
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

/// Hands a job in, and answers what came of it.
#[track_caller]
pub(crate) fn client(port: u16, arguments: &[&str], input: &[u8]) -> Came {
    Running::start(gearman(port).args(arguments), input).came()
}

/// A worker that has a command do its jobs.
pub(crate) fn worker(port: u16, options: &[&str], command: &[&str]) -> Program {
    Program::start(gearman(port).arg("-w").args(options).arg("--").args(command))
}

/// What `gearadmin` prints.
#[track_caller]
fn administer(port: u16, arguments: &[&str]) -> String {
    let came = Running::start(gearadmin(port).args(arguments), b"").came();
    assert_eq!((came.code, &*came.complaints), (Some(0), ""), "{arguments:?}");
    came.text().to_owned()
}

/// What is answered to a line: another line, or a list without its end.
fn said(port: u16, line: &str) -> String {
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

/// Jobs that take until they are told to end. They end as well when the test does, whatever became of their worker.
struct Slow {
    scratch: Scratch,
}

impl Slow {
    fn new() -> Slow {
        Slow { scratch: Scratch::new("slow") }
    }

    /// A worker for the function `hold`, which answers the payload.
    fn worker(&self, port: u16) -> Program {
        let script = "cat; echo >> begun; until [ -e go ] || [ ! -e here ]; do sleep 0.02; done";
        std::fs::write(self.file("here"), "").expect("there is room for a file");
        let mut command = gearman(port);
        command.args(["-w", "-f", "hold", "--", "sh", "-c", script]).current_dir(self.scratch.path());
        Program::start(&mut command)
    }

    /// How many were begun.
    fn begun(&self) -> usize {
        std::fs::read(self.file("begun")).map_or(0, |lines| lines.len())
    }

    fn go_on(&self) {
        std::fs::write(self.file("go"), "").expect("there is room for a file");
    }

    fn file(&self, name: &str) -> impl AsRef<Path> + use<> {
        self.scratch.path().join(name)
    }
}
