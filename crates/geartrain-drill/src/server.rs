//! `geartrain server` as a child process that faults are injected into.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A server process with a data directory. It ends when this value is dropped, and when the process that
/// started it dies: with `--drill` a server stops at the end of its standard input.
#[derive(Debug)]
pub struct ServerProcess {
    program: PathBuf,
    data: PathBuf,
    /// Standard error of the server, across restarts.
    log: PathBuf,
    /// The RESP address: a free port at first, the same one after every restart.
    address: String,
    child: Child,
    stdout: BufReader<ChildStdout>,
}

/// Why the server process failed.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The process cannot be started, or its pipes failed.
    #[error("cannot run {}: {source}", program.display())]
    Process {
        /// The program.
        program: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The server ended instead of getting ready.
    #[error("the server did not start; its log is {}", log.display())]
    NotReady {
        /// Where its standard error went.
        log: PathBuf,
    },
    /// A signal cannot be sent.
    #[error("the server cannot be signalled: {0}")]
    Signal(io::Error),
}

impl ServerProcess {
    /// Starts a server on a free port of the loopback interface. Its standard error is appended to the file
    /// `log`.
    pub fn start(program: &Path, data: &Path, log: &Path) -> Result<ServerProcess, ServerError> {
        let (child, stdout, address) = spawn(program, data, log, "127.0.0.1:0")?;
        let (program, data, log) = (program.to_owned(), data.to_owned(), log.to_owned());
        Ok(ServerProcess { program, data, log, address, child, stdout })
    }

    /// The URL that clients connect to.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        // Fails only for a process that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts the server again on the same data and the same port.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.kill();
        (self.child, self.stdout, self.address) = spawn(&self.program, &self.data, &self.log, &self.address)?;
        Ok(())
    }

    /// SIGSTOP: the process keeps its sockets and answers nothing.
    pub fn freeze(&self) -> Result<(), ServerError> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub fn thaw(&self) -> Result<(), ServerError> {
        self.signal(Signal::CONT)
    }

    /// SIGTERM, and the exit code.
    pub fn terminate(&mut self) -> Result<Option<i32>, ServerError> {
        self.signal(Signal::TERM)?;
        let ended = self.child.wait().map_err(|source| self.broken(source))?;
        Ok(ended.code())
    }

    /// Sets the offset between the server's clock and the machine's, and returns when the server uses it.
    pub fn set_clock_offset(&mut self, seconds: i64) -> Result<(), ServerError> {
        let mut answer = String::new();
        let stdin = self.child.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe);
        stdin
            .map_err(io::Error::from)
            .and_then(|stdin| writeln!(stdin, "clock {seconds}"))
            .and_then(|()| self.stdout.read_line(&mut answer))
            .map_err(|source| self.broken(source))?;
        if answer.trim() == format!("clock {seconds}") {
            Ok(())
        } else {
            Err(self.broken(io::Error::other(format!("it answered {answer:?} to a clock offset"))))
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), ServerError> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).map_err(|error| ServerError::Signal(error.into()))
    }

    fn broken(&self, source: io::Error) -> ServerError {
        ServerError::Process { program: self.program.clone(), source }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

type Spawned = (Child, BufReader<ChildStdout>, String);

fn spawn(program: &Path, data: &Path, log: &Path, address: &str) -> Result<Spawned, ServerError> {
    let broken = |source| ServerError::Process { program: program.to_owned(), source };
    let stderr = File::options().create(true).append(true).open(log).map_err(broken)?;
    let mut child = Command::new(program)
        .args([
            "server",
            "--drill",
            "--json",
            "--gearman",
            "off",
            "--http",
            "off",
            "--log",
            "warn",
            "--resp",
            address,
        ])
        .arg("--data")
        .arg(data)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .map_err(broken)?;
    let mut line = String::new();
    let ready = match child.stdout.take() {
        Some(stdout) => {
            let mut stdout = BufReader::new(stdout);
            let read = stdout.read_line(&mut line);
            read.ok().map(|_| stdout)
        }
        None => None,
    };
    let parsed = serde_json::from_str::<serde_json::Value>(&line).ok();
    let address = parsed.as_ref().and_then(|ready| ready["resp"].as_str().map(str::to_owned));
    match ready.zip(address) {
        Some((stdout, address)) => Ok((child, stdout, address)),
        None => {
            let _ = child.kill();
            let _ = child.wait();
            Err(ServerError::NotReady { log: log.to_owned() })
        }
    }
}
