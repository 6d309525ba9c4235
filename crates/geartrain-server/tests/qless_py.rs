//! The real Qless client for Python sees the same with Qless on Redis, our script on Redis, and a geartrain
//! server.
//!
//! The programs and their expected output are in peers/qless-py.

mod shared_redis;

use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use geartrain_server::{Server, Settings};
use geartrain_testkit::peers::RedisServer;
use tokio::runtime::Runtime;

/// Every operation of the client, with times set by hand.
#[test]
fn a_client_sees_what_it_sees_on_redis() {
    on_each_peer(|port| {
        let printed = Program::start("client.py", port, &[]).output();
        assert_same_lines(&printed, include_str!("../../../peers/qless-py/client.expected"));
    });
}

/// The client's own worker class: jobs that complete, advance, retry, fail, and depend on each other.
#[test]
fn a_worker_does_its_jobs() {
    on_each_peer(|port| errands(port, port, port));
}

/// On one Redis, jobs put with Qless's own script are worked on with ours, and the other way round.
#[test]
fn jobs_flow_both_ways_between_two_scripts_on_one_redis() {
    let redis = RedisServer::start(&[]);
    let geartrain = Geartrain::start(&redis.url());
    errands(geartrain.port(), redis.port(), redis.port());
    let redis = RedisServer::start(&[]);
    let geartrain = Geartrain::start(&redis.url());
    errands(redis.port(), geartrain.port(), redis.port());
}

/// Events of a worker with one script reach subscribers of the other.
#[test]
fn events_flow_both_ways_between_two_scripts_on_one_redis() {
    let redis = RedisServer::start(&[]);
    let geartrain = Geartrain::start(&redis.url());
    errands(redis.port(), geartrain.port(), geartrain.port());
    let redis = RedisServer::start(&[]);
    let geartrain = Geartrain::start(&redis.url());
    errands(geartrain.port(), redis.port(), geartrain.port());
    // And everything on one side, except the subscriber.
    let redis = RedisServer::start(&[]);
    let geartrain = Geartrain::start(&redis.url());
    errands(redis.port(), redis.port(), geartrain.port());
}

/// A worker on one port, a client on another, and a subscriber on a third.
fn errands(worker_port: u16, client_port: u16, listener_port: u16) {
    let queues = ["--name", "peer", "--queue", "errands", "--queue", "goal"];
    let mut worker = Program::start("worker.py", worker_port, &queues);
    assert_eq!(worker.line().as_deref(), Some("ready"));
    let listen = ["--queue", "errands", "--listen", &listener_port.to_string()];
    let printed = Program::start("errands.py", client_port, &listen).output();
    assert_same_lines(&printed, include_str!("../../../peers/qless-py/errands.expected"));
    worker.end_input();
    assert_eq!(worker.line(), None, "it stops when it is told to");
    assert_eq!(worker.exit_code(), Some(0));
}

/// A worker gets a message on its channel that its job was taken away, and stops working on it.
#[test]
fn a_worker_is_notified_when_its_job_is_taken() {
    on_each_peer(|port| {
        for how in WAYS_TO_TAKE {
            take_away(port, port, how);
        }
    });
}

/// Also if the job was taken away with the other script on the same Redis.
#[test]
fn a_worker_is_notified_when_another_script_takes_its_job() {
    let redis = RedisServer::start(&[]);
    let geartrain = Geartrain::start(&redis.url());
    for how in WAYS_TO_TAKE {
        take_away(redis.port(), geartrain.port(), how);
        take_away(geartrain.port(), redis.port(), how);
    }
}

const WAYS_TO_TAKE: [&str; 3] = ["cancel", "timeout", "put"];

/// A worker on one port, and a client on another that takes its jobs away until it has noticed.
fn take_away(worker_port: u16, taker_port: u16, how: &str) {
    // A new queue for each, so that no jobs are left over.
    let queue = format!("{how}-{worker_port}");
    let mut worker = Program::start("worker.py", worker_port, &["--name", "peer", "--queue", &queue]);
    assert_eq!(worker.line().as_deref(), Some("ready"));
    let mut taker = Program::start("take_away.py", taker_port, &["--queue", &queue, "--by", how]);
    // If the taker gives up, the worker is stopped without having lost a job, and the test fails.
    let mut taker_printed = taker.printed.take().expect("it was not read yet");
    let worker_input = worker.input.take();
    let watch = std::thread::spawn(move || {
        let end = taker_printed.next();
        drop(worker_input);
        assert!(end.is_none(), "it prints nothing");
    });
    let lost = worker.line().expect("it says which one it lost");
    assert!(lost.starts_with(&format!("lost {queue}-")), "{lost}");
    assert_eq!(worker.exit_code(), Some(3));
    drop(taker);
    watch.join().expect("the watch saw nothing wrong");
}

/// Runs a check against every implementation of the Qless API.
fn on_each_peer(check: impl Fn(u16)) {
    // First with the client's own script, which shows that the expected output is Qless's.
    check(RedisServer::start(&[]).port());
    check(Geartrain::start("memory:").port());
    let redis = RedisServer::start(&[]);
    check(Geartrain::start(&redis.url()).port());
}

#[track_caller]
fn assert_same_lines(printed: &str, expected: &str) {
    for (number, (printed, expected)) in printed.lines().zip(expected.lines()).enumerate() {
        assert_eq!(printed, expected, "in line {}", number + 1);
    }
    assert_eq!(
        printed.lines().count(),
        expected.lines().count(),
        "what both have is the same, but one goes on"
    );
}

/// A running program of peers/qless-py, killed when dropped.
struct Program {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    printed: Option<Lines<BufReader<ChildStdout>>>,
}

impl Program {
    fn start(name: &str, port: u16, arguments: &[&str]) -> Program {
        let mut child = Command::new(python())
            .arg(programs().join(name))
            .arg("--port")
            .arg(port.to_string())
            .args(arguments)
            // Nothing is written outside the target directory.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("TMPDIR", env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the interpreter that was just installed can be started");
        let input = child.stdin.take();
        let printed = child.stdout.take().map(|output| BufReader::new(output).lines());
        Program { name: name.to_owned(), child, input, printed }
    }

    /// Its next line; none when it has ended.
    fn line(&mut self) -> Option<String> {
        let printed = self.printed.as_mut().expect("it is read here only");
        printed.next().transpose().expect("it prints text")
    }

    fn end_input(&mut self) {
        self.input = None;
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().expect("it was started here").code()
    }

    /// Its output, after it has ended with success.
    fn output(mut self) -> String {
        let mut output = String::new();
        while let Some(line) = self.line() {
            output.push_str(&line);
            output.push('\n');
        }
        assert_eq!(
            self.exit_code(),
            Some(0),
            "{} failed; it said why, and had printed:\n{output}",
            self.name
        );
        output
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers/qless-py")
}

/// The interpreter with the client, installed into the target directory on first use.
pub(crate) fn python() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../qless-py");
    let setup = Command::new(programs().join("setup")).arg(directory).stderr(Stdio::inherit()).output();
    let setup = setup.expect("python3 is there (on Debian and Ubuntu: apt-get install python3 python3-venv)");
    assert!(setup.status.success(), "the Qless client for Python cannot be installed; setup said why");
    PathBuf::from(String::from_utf8(setup.stdout).expect("its path is text").trim_end())
}

/// A geartrain server, stopped when dropped.
struct Geartrain {
    runtime: Runtime,
    server: Option<Server>,
}

impl Geartrain {
    fn start(store: &str) -> Geartrain {
        let settings = Settings::new(store, SocketAddr::from(([127, 0, 0, 1], 0)));
        let runtime = Runtime::new().expect("threads can be started");
        let server = runtime.block_on(Server::start(&settings)).expect("the server starts");
        Geartrain { runtime, server: Some(server) }
    }

    fn port(&self) -> u16 {
        self.server.as_ref().expect("it runs until the end").resp().ip().expect("it has an address").port()
    }
}

impl Drop for Geartrain {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
    }
}
