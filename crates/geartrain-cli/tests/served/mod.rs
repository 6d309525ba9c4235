//! `geartrain server` as a process of its own, ended with the test however that ends.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use geartrain_testkit::peers::Scratch;
pub(crate) use geartrain_testkit::peers::until;
use serde_json::Value;

/// A server at work, with a directory of its own.
pub(crate) struct Served {
    child: Child,
    address: String,
    /// Where Gearman is spoken. Another port each time, unless the test chose one.
    gearman: Option<String>,
    arguments: Vec<String>,
    limits: Option<DescriptorLimits>,
    log: Log,
    scratch: Scratch,
}

/// Soft and hard limit of the server's descriptors.
pub(crate) type DescriptorLimits = (u64, u64);

/// What the server logs.
type Log = Arc<Mutex<Vec<String>>>;

/// Starts a server with a directory of its own; or says what it said, and its exit code.
pub(crate) fn try_start(arguments: &[&str]) -> Result<Served, (String, i32)> {
    try_start_under(None, arguments)
}

fn try_start_under(limits: Option<DescriptorLimits>, arguments: &[&str]) -> Result<Served, (String, i32)> {
    let scratch = Scratch::new("server");
    let mut arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    if !arguments.iter().any(|argument| argument == "--resp") {
        arguments.extend(["--resp".to_owned(), "127.0.0.1:0".to_owned()]);
    }
    if !arguments.iter().any(|argument| argument == "--gearman") {
        arguments.extend(["--gearman".to_owned(), "127.0.0.1:0".to_owned()]);
    }
    let log = Log::default();
    let (child, address, gearman) = spawn(&scratch, limits, &arguments, &log)?;
    Ok(Served { child, address, gearman, arguments, limits, log, scratch })
}

/// A process, and where it speaks RESP and Gearman.
type Spawned = (Child, String, Option<String>);

fn spawn(
    scratch: &Scratch,
    limits: Option<DescriptorLimits>,
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
    command.args(["server", "--json", "--data"]).arg(scratch.path().join("data"));
    if !arguments.iter().any(|argument| argument == "--log") {
        command.args(["--log", "error"]);
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut stderr = child.stderr.take().unwrap();
    if line.is_empty() {
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        return Err((said, child.wait().unwrap().code().unwrap_or(-1)));
    }
    // What it says from now on is shown if the test fails, and never waited for.
    let log = log.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            eprintln!("server: {line}");
            log.lock().unwrap().push(line);
        }
    });
    let ready: Value = serde_json::from_str(&line).unwrap();
    let address = |name: &str| ready[name].as_str().map(str::to_owned);
    Ok((child, address("resp").unwrap(), address("gearman")))
}

impl Served {
    pub(crate) fn start(arguments: &[&str]) -> Served {
        Served::start_under(None, arguments)
    }

    /// The same with limits of descriptors.
    pub(crate) fn start_under(limits: Option<DescriptorLimits>, arguments: &[&str]) -> Served {
        let started = try_start_under(limits, arguments);
        let mut served = started.unwrap_or_else(|(said, code)| panic!("{code}: {said}"));
        // Whoever starts it again finds it at the same address.
        if let Some(place) = served.arguments.iter().position(|argument| argument == "--resp") {
            served.arguments[place + 1] = served.address.clone();
        }
        served
    }

    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    /// The port that speaks Gearman.
    pub(crate) fn gearman_port(&self) -> u16 {
        let address = self.gearman.as_ref().expect("it speaks Gearman");
        address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("an address ends with a port")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// What it has logged so far that contains this text.
    pub(crate) fn logged(&self, text: &str) -> Vec<String> {
        self.log.lock().unwrap().iter().filter(|line| line.contains(text)).cloned().collect()
    }

    /// Where its jobs are.
    pub(crate) fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    /// Ends it with `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end, and answers its exit code.
    pub(crate) fn terminate(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }

    /// Starts it again with what it kept, at the same address.
    pub(crate) fn start_again(&mut self) {
        self.kill();
        let (child, address, gearman) = spawn(&self.scratch, self.limits, &self.arguments, &self.log)
            .unwrap_or_else(|(said, code)| panic!("{code}: {said}"));
        assert_eq!(address, self.address);
        self.child = child;
        self.gearman = gearman;
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}
