//! `geartrain server` as a child process, killed when dropped.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use geartrain_testkit::peers::Scratch;
pub(crate) use geartrain_testkit::peers::until;
use serde_json::Value;

/// A running server with a temporary data directory.
pub(crate) struct ServerProcess {
    child: Child,
    address: String,
    /// The Gearman address; another port after a restart, unless the test chose one.
    gearman: Option<String>,
    /// The HTTP address, as for Gearman.
    http: Option<String>,
    arguments: Vec<String>,
    limits: Option<DescriptorLimits>,
    variables: Vec<(String, String)>,
    log: Log,
    scratch: Scratch,
}

/// Soft and hard limit of the server's descriptors.
pub(crate) type DescriptorLimits = (u64, u64);

/// The log of the server.
type Log = Arc<Mutex<Vec<String>>>;

/// Starts a server; on failure returns its error and its exit code.
pub(crate) fn try_start(arguments: &[&str]) -> Result<ServerProcess, (String, i32)> {
    try_start_under(None, &[], arguments)
}

fn try_start_under(
    limits: Option<DescriptorLimits>,
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> Result<ServerProcess, (String, i32)> {
    let scratch = Scratch::new("server");
    let mut arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    if !arguments.iter().any(|argument| argument == "--resp") {
        arguments.extend(["--resp".to_owned(), "127.0.0.1:0".to_owned()]);
    }
    if !arguments.iter().any(|argument| argument == "--gearman") {
        arguments.extend(["--gearman".to_owned(), "127.0.0.1:0".to_owned()]);
    }
    if !arguments.iter().any(|argument| argument == "--http") {
        arguments.extend(["--http".to_owned(), "off".to_owned()]);
    }
    let variables: Vec<(String, String)> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let log = Log::default();
    let (child, address, gearman, http) = spawn(&scratch, limits, &variables, &arguments, &log)?;
    Ok(ServerProcess { child, address, gearman, http, arguments, limits, variables, log, scratch })
}

/// A process, with its RESP, Gearman and HTTP addresses.
type Spawned = (Child, String, Option<String>, Option<String>);

fn spawn(
    scratch: &Scratch,
    limits: Option<DescriptorLimits>,
    variables: &[(String, String)],
    arguments: &[String],
    log: &Log,
) -> Result<Spawned, (String, i32)> {
    const BINARY: &str = env!("CARGO_BIN_EXE_geartrain");
    let mut command = match limits {
        None => Command::new(BINARY),
        Some((soft, hard)) => {
            let mut shell = Command::new("sh");
            let script = format!("ulimit -S -n {soft} && ulimit -H -n {hard} && exec \"$0\" \"$@\"");
            shell.args(["-c", &script, BINARY]);
            shell
        }
    };
    command.envs(variables.iter().cloned());
    command.args(["server", "--json"]);
    if !arguments.iter().any(|argument| argument == "--store") {
        command.arg("--data").arg(scratch.path().join("data"));
    }
    if !arguments.iter().any(|argument| argument == "--log") {
        command.args(["--log", "error"]);
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut stderr = child.stderr.take().unwrap();
    if line.is_empty() {
        let mut error = String::new();
        stderr.read_to_string(&mut error).unwrap();
        return Err((error, child.wait().unwrap().code().unwrap_or(-1)));
    }
    // The log is shown if the test fails, and never blocks the server.
    let log = log.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            eprintln!("server: {line}");
            log.lock().unwrap().push(line);
        }
    });
    let ready: Value = serde_json::from_str(&line).unwrap();
    let address = |name: &str| ready[name].as_str().map(str::to_owned);
    Ok((child, address("resp").unwrap(), address("gearman"), address("http")))
}

impl ServerProcess {
    pub(crate) fn start(arguments: &[&str]) -> ServerProcess {
        ServerProcess::start_under(None, arguments)
    }

    /// Like `start`, with descriptor limits.
    pub(crate) fn start_under(limits: Option<DescriptorLimits>, arguments: &[&str]) -> ServerProcess {
        ServerProcess::started(try_start_under(limits, &[], arguments))
    }

    /// Like `start`, with environment variables.
    pub(crate) fn start_in(variables: &[(&str, &str)], arguments: &[&str]) -> ServerProcess {
        ServerProcess::started(try_start_under(None, variables, arguments))
    }

    fn started(started: Result<ServerProcess, (String, i32)>) -> ServerProcess {
        let mut server = started.unwrap_or_else(|(error, code)| panic!("{code}: {error}"));
        // A restart uses the same address.
        if let Some(index) = server.arguments.iter().position(|argument| argument == "--resp") {
            server.arguments[index + 1] = server.address.clone();
        }
        server
    }

    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    /// The Gearman port.
    pub(crate) fn gearman_port(&self) -> u16 {
        let address = self.gearman.as_ref().expect("the Gearman front-end is on");
        address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("an address ends with a port")
    }

    /// The HTTP address.
    pub(crate) fn http(&self) -> String {
        self.http.clone().expect("the HTTP front-end is on")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The id of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The log lines so far that contain a text.
    pub(crate) fn logged(&self, text: &str) -> Vec<String> {
        self.log.lock().unwrap().iter().filter(|line| line.contains(text)).cloned().collect()
    }

    /// The data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// SIGTERM; returns the exit code.
    pub(crate) fn terminate(&mut self) -> Option<i32> {
        self.signal("-TERM");
        self.child.wait().unwrap().code()
    }

    /// Restarts it with the same data and address.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let (child, address, gearman, http) =
            spawn(&self.scratch, self.limits, &self.variables, &self.arguments, &self.log)
                .unwrap_or_else(|(error, code)| panic!("{code}: {error}"));
        assert_eq!(address, self.address);
        self.child = child;
        (self.gearman, self.http) = (gearman, http);
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
