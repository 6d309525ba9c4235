//! Real servers for tests to talk to: started on free ports, ended with the test, however it ends.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The ports of servers that tests start: below those that Linux gives to outgoing connections and to binds of port 0,
/// so that no client takes the port of a server that is about to start, or to start again.
const SERVER_PORTS: Range<u16> = 10_000..32_000;

/// A port without a listener, below those of outgoing connections, and another one for each call.
pub fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    // Test programs that run at the same time begin at different places.
    let next = NEXT.get_or_init(|| AtomicU64::new(RandomState::new().hash_one(std::process::id()) >> 1));
    let candidates = std::iter::repeat_with(|| {
        let step = next.fetch_add(1, Ordering::Relaxed) % SERVER_PORTS.len() as u64;
        SERVER_PORTS.start + step as u16
    });
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    candidates.take(SERVER_PORTS.len()).find(is_free).expect("this machine has a free port")
}

/// How long a test waits for something that must happen, and how often it looks.
const LIMIT: (Duration, Duration) = (Duration::from_secs(60), Duration::from_millis(20));

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT.0, "in vain: {what}");
        std::thread::sleep(LIMIT.1);
    }
}

/// Runs a server as long as something holds the other end of its standard input, so that it does not outlive
/// a test that is killed.
const KEEPER: &str = r#""$@" & pid=$!; echo "pid $pid"; cat >/dev/null; kill -9 $pid 2>/dev/null; wait"#;

/// A directory of a test's own, gone with it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new one, with a word in its name.
    pub fn new(word: &str) -> Scratch {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("geartrain-{word}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("there is room for a directory");
        Scratch(directory)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A Redis, or a Sentinel.
#[derive(Debug)]
pub struct RedisServer {
    keeper: Option<Child>,
    pid: u32,
    port: u16,
    arguments: Vec<String>,
    scratch: Scratch,
}

impl RedisServer {
    /// A Redis that keeps nothing, with further arguments as on its command line.
    pub fn start(arguments: &[&str]) -> RedisServer {
        RedisServer::with_arguments(arguments.iter().map(|argument| (*argument).to_owned()).collect())
    }

    fn with_arguments(arguments: Vec<String>) -> RedisServer {
        // Another process may take the port before the server binds it; then another port is tried.
        for _ in 0..5 {
            let scratch = Scratch::new("redis");
            let mut server = RedisServer {
                keeper: None,
                pid: 0,
                port: free_port(),
                arguments: arguments.clone(),
                scratch,
            };
            if server.run() {
                return server;
            }
        }
        panic!("redis-server does not start with {arguments:?}");
    }

    /// Whether it got as far as to take connections.
    fn run(&mut self) -> bool {
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "sh", "redis-server"]);
        // A file among the arguments, as a Sentinel has, comes first.
        let file = self.arguments.first().filter(|argument| !argument.starts_with("--"));
        command.args(file);
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no"]);
        command.arg("--dir").arg(self.scratch.path());
        if file.is_none() {
            command.args(["--save", "", "--appendonly", "no"]);
        }
        command.args(self.arguments.iter().skip(usize::from(file.is_some())));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = command.spawn().expect("there is a shell");
        let mut lines = BufReader::new(keeper.stdout.take().expect("it was piped")).lines();
        let mut ready = false;
        for line in lines.by_ref().map_while(Result::ok) {
            if let Some(pid) = line.strip_prefix("pid ") {
                self.pid = pid.parse().expect("a process has a number");
            }
            if line.contains("not found") {
                panic!("redis-server is missing: install the package redis-server");
            }
            if line.contains("Ready to accept connections") || line.contains("Sentinel ID is") {
                ready = true;
                break;
            }
        }
        // What it says from now on is read, so that it never waits for a reader, and dropped.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        self.keeper = Some(keeper);
        if !ready {
            self.end();
        }
        ready
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same as a URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Ends it with `kill -9`.
    pub fn kill(&mut self) {
        self.end();
    }

    /// Stops it with SIGSTOP: its connections stay open, and it answers nothing until [`RedisServer::thaw`].
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Continues it with SIGCONT.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.pid.to_string()]).status();
        assert!(sent.expect("there is a kill").success(), "kill {signal} {} failed", self.pid);
    }

    /// Starts it again on the same port, with what it kept.
    pub fn start_again(&mut self) {
        self.end();
        assert!(self.run(), "redis-server does not start again");
    }

    fn end(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            // Its standard input is closed, and then it kills the server and waits for it.
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Debian's Gearman server.
#[derive(Debug)]
pub struct Gearmand {
    keeper: Option<Child>,
    port: u16,
    arguments: Vec<String>,
}

impl Gearmand {
    /// One that keeps nothing, unless further arguments say otherwise.
    pub fn start(arguments: &[&str]) -> Gearmand {
        // Another process may take the port before the server binds it; then another port is tried.
        for _ in 0..5 {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            let mut server = Gearmand { keeper: None, port: free_port(), arguments };
            if server.run() {
                return server;
            }
        }
        panic!("gearmand does not start with {arguments:?}: install the package gearman-job-server");
    }

    /// Whether it got as far as to take connections.
    fn run(&mut self) -> bool {
        let mut command = Command::new("sh");
        // Not on every path: it is where administrators have their programs.
        command.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
        command.args(["-c", KEEPER, "sh", "gearmand", "-p", &self.port.to_string(), "-L", "127.0.0.1"]);
        command.args(["-l", "none"]).args(&self.arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = command.spawn().expect("there is a shell");
        let mut lines = BufReader::new(keeper.stdout.take().expect("it was piped")).lines();
        let pid = lines.next().and_then(Result::ok).unwrap_or_default();
        let pid: u32 = pid.strip_prefix("pid ").and_then(|pid| pid.parse().ok()).expect("it says its number");
        self.keeper = Some(keeper);
        let begun = Instant::now();
        // It says nothing when it is ready.
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let is_there = Path::new(&format!("/proc/{pid}")).exists();
            if !is_there || begun.elapsed() > LIMIT.0 {
                self.kill();
                return false;
            }
            std::thread::sleep(LIMIT.1);
        }
        true
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends it with `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            // Its standard input is closed, and then it kills the server and waits for it.
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
    }

    /// Starts it again on the same port.
    pub fn start_again(&mut self) {
        self.kill();
        assert!(self.run(), "gearmand does not start again");
    }
}

impl Drop for Gearmand {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a script of `peers/browser`: Chromium at the dashboard that the first argument names. For each line that the
/// script prints, `serve` does what it asks for. Panics with the script's errors if it fails.
pub fn browse(script: &str, arguments: &[&str], mut serve: impl FnMut(&str)) {
    let peer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers/browser");
    let setup = Command::new(peer.join("setup")).stderr(Stdio::inherit()).output();
    let setup = setup.expect("python3 is there (on Debian and Ubuntu: apt-get install python3)");
    assert!(setup.status.success(), "peers/browser/setup failed; it said why");
    let packages = String::from_utf8(setup.stdout).expect("its path is text");
    // Chromium's profile is a temporary directory.
    let scratch = Scratch::new("browser");
    let errors = scratch.path().join("errors");
    let mut command = Command::new("node");
    command.arg(peer.join(script)).args(arguments);
    command.env("BROWSER_PEER", packages.trim_end()).env("TMPDIR", scratch.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(std::fs::File::create(&errors).expect("there is room for a file"));
    let mut node = command.spawn().expect("node is there (on Debian and Ubuntu: apt-get install nodejs)");
    // The script ends when this end is closed, also by a panic.
    let mut input = node.stdin.take().expect("it was piped");
    for line in BufReader::new(node.stdout.take().expect("it was piped")).lines().map_while(Result::ok) {
        serve(&line);
        writeln!(input, "done").expect("the script reads it");
    }
    let status = node.wait().expect("it was started");
    let errors = std::fs::read_to_string(errors).unwrap_or_default();
    assert!(status.success(), "{script}: {errors}");
}
