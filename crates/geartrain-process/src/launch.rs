//! Launching: starts a program under a supervisor, and stops it with all that it started.

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Pid;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

use crate::Environment;
use crate::limits::Limits;
use crate::process_tree::kill_adopted;
use crate::supervisor::{self, Ended, OWN_EXECUTABLE, Report, parse_report, supervise_arguments};

/// How a program is launched: the command, its limits, and how it is stopped.
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
    arguments: Vec<OsString>,
    supervisor: PathBuf,
    limits: Limits,
    kill_after: Duration,
}

/// Why a command cannot be launched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// There is no such file.
    #[error("there is no program {0:?}: give its path, or check PATH")]
    NotFound(String),
    /// The file cannot be executed.
    #[error("{0:?} cannot be executed: make it executable (chmod +x), or name its interpreter first")]
    NotExecutable(String),
    /// This process cannot adopt the processes of a program.
    #[error("cannot supervise programs: {0}")]
    Supervise(#[from] io::Error),
}

/// How long a program may take to end after SIGTERM by default.
pub const KILL_AFTER_DEFAULT: Duration = Duration::from_secs(5);

impl Launcher {
    /// Launches a command. A name without a slash is searched for in PATH; a relative path is one of the
    /// worker's current directory, because programs start in directories of their own. So is an argument that
    /// names a file there and has a dot or a slash in it: `python3 handler.py` works.
    pub fn new(
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Launcher, CommandError> {
        let program = find(program.as_ref())?;
        // Processes of a killed supervisor are adopted by this process, which kills them.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(io::Error::from)?;
        Ok(Launcher {
            program,
            arguments: arguments.into_iter().map(|argument| absolute_file(argument.into())).collect(),
            supervisor: OWN_EXECUTABLE.into(),
            limits: Limits::default(),
            kill_after: KILL_AFTER_DEFAULT,
        })
    }

    /// Sets the limits of each program.
    pub fn limits(self, limits: Limits) -> Launcher {
        Launcher { limits, ..self }
    }

    /// Sets how long a program may take to end after SIGTERM, before it gets SIGKILL.
    pub fn kill_after(self, kill_after: Duration) -> Launcher {
        Launcher { kill_after, ..self }
    }

    /// Uses the [hidden commands](crate::run_hidden_command) of another executable than that of this process.
    pub fn supervisor(self, executable: impl Into<PathBuf>) -> Launcher {
        Launcher { supervisor: executable.into(), ..self }
    }

    pub(crate) fn current_limits(&self) -> Limits {
        self.limits
    }

    /// The program that is launched.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Starts the program in a directory. All pipes are open and nothing is written yet.
    pub fn launch(&self, directory: &Path, environment: &Environment) -> io::Result<Process> {
        let (control, supervisors_end) = std::os::unix::net::UnixStream::pair()?;
        let (stdin_reader, stdin) = io::pipe()?;
        let (stdout, stdout_writer) = io::pipe()?;
        let (stderr, stderr_writer) = io::pipe()?;
        let (reports, reports_writer) = io::pipe()?;
        // Before the supervisor starts: the socket buffers it.
        send_descriptors(&control, [&stdin_reader.into(), &reports_writer.into()])?;
        let mut command = Command::new(&self.supervisor);
        command.arg0("geartrain").args(supervise_arguments(self.limits, self.kill_after));
        command.arg(&self.program).args(&self.arguments);
        command.stdin(Stdio::from(OwnedFd::from(supervisors_end)));
        command.stdout(Stdio::from(stdout_writer)).stderr(Stdio::from(stderr_writer));
        // Out of the worker's group, so that Ctrl-C reaches only the worker.
        command.process_group(0).current_dir(directory);
        environment.apply(&mut command);
        command.env("PWD", directory);
        let child = command.spawn()?;
        // The command holds the writing ends of the pipes.
        drop(command);
        control.set_nonblocking(true)?;
        let (read, write) = UnixStream::from_std(control)?.into_split();
        Ok(Process {
            stdin: pipe::Sender::from_owned_fd(stdin.into())?,
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
            reports: pipe::Receiver::from_owned_fd(reports.into())?,
            supervised: Supervised {
                lines: BufReader::new(read).lines(),
                control: write,
                child,
                pid: None,
                kill_after: self.kill_after,
                marker: environment.marker(),
                ended: None,
            },
        })
    }
}

/// An argument that names a file of the current directory as an absolute path, and any other as it is. A word
/// without a dot or a slash may be the name of a file by chance, as in `npm run test`.
fn absolute_file(argument: OsString) -> OsString {
    let bytes = argument.as_encoded_bytes();
    let is_path = !bytes.starts_with(b"-") && bytes.iter().any(|byte| b"./".contains(byte));
    if is_path && Path::new(&argument).is_file() {
        return std::path::absolute(&argument).map_or(argument, PathBuf::into_os_string);
    }
    argument
}

/// The path of a program, checked to be executable.
fn find(program: &OsStr) -> Result<PathBuf, CommandError> {
    let shown = || program.to_string_lossy().into_owned();
    let is_executable =
        |path: &Path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    if program.as_encoded_bytes().contains(&b'/') {
        let path = std::path::absolute(program)?;
        return match is_executable(&path) {
            true => Ok(path),
            false if path.exists() => Err(CommandError::NotExecutable(shown())),
            false => Err(CommandError::NotFound(shown())),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut is_there = false;
    for directory in std::env::split_paths(&path) {
        let candidate = std::path::absolute(directory.join(program))?;
        if is_executable(&candidate) {
            return Ok(candidate);
        }
        is_there |= candidate.is_file();
    }
    Err(if is_there { CommandError::NotExecutable(shown()) } else { CommandError::NotFound(shown()) })
}

fn send_descriptors(control: &std::os::unix::net::UnixStream, sent: [&OwnedFd; 2]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let sent = sent.map(AsFd::as_fd);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&sent)) {
        return Err(io::Error::other("no space for the descriptors"));
    }
    sendmsg(control, &[io::IoSlice::new(b"S")], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// A launched program: its pipes, and its supervision. Dropped, it is killed with all that it started.
#[derive(Debug)]
pub struct Process {
    /// Its standard input.
    pub stdin: pipe::Sender,
    /// Its standard output.
    pub stdout: pipe::Receiver,
    /// Its standard error.
    pub stderr: pipe::Receiver,
    /// Its descriptor 3.
    pub reports: pipe::Receiver,
    /// Stops it, and tells how it ended.
    pub supervised: Supervised,
}

/// The supervision of a launched program.
///
/// Dropped, the program is killed with all that it started, unless it has ended.
#[derive(Debug)]
pub struct Supervised {
    lines: Lines<BufReader<OwnedReadHalf>>,
    control: OwnedWriteHalf,
    child: Child,
    pid: Option<Pid>,
    kill_after: Duration,
    marker: Vec<u8>,
    ended: Option<Result<Ended, String>>,
}

impl Supervised {
    /// Waits until the program runs, and returns its process id; `None` if it has ended already or could not be
    /// started, see [`Supervised::ended`]. Cancel safe.
    pub async fn started(&mut self) -> Option<Pid> {
        if self.pid.is_none() && self.ended.is_none() {
            self.next_report().await;
        }
        self.pid
    }

    /// Waits until the program has ended, and nothing that it started is left. The error says why it could not
    /// be started, or that its supervisor was killed. Cancel safe.
    pub async fn ended(&mut self) -> Result<Ended, String> {
        while self.ended.is_none() {
            self.next_report().await;
        }
        // It has nothing left to do. The reply of `wait` is remembered if it is called again.
        let _ = self.child.wait().await;
        self.ended.clone().unwrap_or_else(|| Err("the supervisor did not report".to_owned()))
    }

    async fn next_report(&mut self) {
        let line = self.lines.next_line().await;
        match line.ok().flatten().as_deref().map(parse_report) {
            Some(Some(Report::Started { pid })) => self.pid = Pid::from_raw(pid),
            Some(Some(Report::NotStarted { why })) => self.ended = Some(Err(why)),
            Some(Some(Report::Ended(ended))) => self.ended = Some(Ok(ended)),
            Some(None) | None => {
                let _ = self.child.start_kill();
                let (marker, pid) = (self.marker.clone(), self.pid);
                let _ = tokio::task::spawn_blocking(move || kill_adopted(&marker, pid)).await;
                self.ended = Some(Err("the supervisor of the program was killed".to_owned()));
            }
        }
    }

    /// Sends SIGTERM to the program and to all that it started.
    pub fn terminate(&self) {
        self.order(supervisor::TERMINATE);
    }

    /// Sends SIGKILL to the program and to all that it started, until nothing is left.
    pub fn kill(&self) {
        self.order(supervisor::KILL);
    }

    fn order(&self, byte: u8) {
        // It fails only if the supervisor has ended. Few bytes are ever sent, so the buffer is never full.
        let _ = self.control.try_write(&[byte]);
    }

    /// Stops the program: SIGTERM, and SIGKILL after the grace period. Returns when nothing is left of it. If the
    /// future is dropped, call it again.
    pub async fn stop(&mut self) -> Result<Ended, String> {
        self.terminate();
        let kill_after = self.kill_after;
        if let Ok(ended) = tokio::time::timeout(kill_after, self.ended()).await {
            return ended;
        }
        self.kill();
        self.ended().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_that_names_a_file_is_made_absolute() {
        // Tests run in the directory of their crate.
        let here = std::env::current_dir().unwrap();
        let absolute = |argument: &str| absolute_file(argument.into());
        assert_eq!(absolute("Cargo.toml"), here.join("Cargo.toml"));
        assert_eq!(absolute("src/lib.rs"), here.join("src/lib.rs"));
        for other in ["no-such-file.py", "src", "./src", "-f", "--file=Cargo.toml", "", ".", "/etc/passwd"] {
            assert_eq!(absolute(other), other);
        }
    }
}
