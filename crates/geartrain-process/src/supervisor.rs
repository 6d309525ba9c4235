//! The supervisor: a small process between the worker and a launched program.
//!
//! The worker starts it as a hidden command of its own executable. It is a child subreaper, so every process
//! that the program leaves behind, also one that left the process group or the session, becomes its child.
//! When it has no child left, nothing of the program is left. It also survives a `kill -9` of the worker: its
//! control socket is closed then, and it kills the program and all that the program started.
//!
//! ```text
//! worker ── control socket ── supervisor ── execute (sets limits, then is replaced by) ── the program
//! ```
//!
//! `unsafe` is forbidden here, so nothing can run between fork and exec. Limits and the parent-death signal are
//! therefore set by a second hidden command, which then executes the program.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, WaitOptions, getpid, getppid};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use crate::limits::Limits;
use crate::process_tree::{descendants, memory_above, out_of_memory_kills, signal_descendants};

pub(crate) const SUPERVISE: &str = "__supervise";
const EXECUTE: &str = "__execute";

/// The executable of this process, also if its file was replaced by a newer version.
pub(crate) const OWN_EXECUTABLE: &str = "/proc/self/exe";

/// Bytes that the worker sends over the control socket. Its end means that the worker is gone.
pub(crate) const TERMINATE: u8 = b'T';
pub(crate) const KILL: u8 = b'K';

/// How often the memory of the program is compared with its limit.
const MEMORY_CHECK: Duration = Duration::from_millis(50);
/// How often processes are killed that were started after the last time.
const KILL_AGAIN: Duration = Duration::from_millis(5);

/// What the supervisor reports to the worker: one JSON object per line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The program runs.
    Started { pid: i32 },
    /// It could not be started.
    NotStarted { why: String },
    /// It has ended, and nothing that it started is left.
    Ended(Ended),
}

/// How a program ended, and what it used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ended {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The number of the signal that ended it.
    pub signal: Option<i32>,
    /// Whether it was killed because it used more memory than its limit, or than the machine has.
    pub out_of_memory: bool,
    /// The largest resident set of one of its processes, in bytes; at least that of the supervisor, a few MB.
    pub peak_memory_bytes: u64,
    /// CPU time of all of its processes, in seconds.
    pub cpu_seconds: f64,
    /// How many processes it left behind, which were terminated.
    pub stragglers: u64,
}

/// Runs the hidden command that the arguments of this process name; `None` if they name none. An executable that
/// launches programs calls this first in its `main`, before it starts threads.
pub fn run_hidden_command(arguments: &[OsString]) -> Option<ExitCode> {
    let command = arguments.get(1)?;
    if command == SUPERVISE {
        Some(supervise(&arguments[2..]))
    } else if command == EXECUTE {
        Some(execute(&arguments[2..]))
    } else {
        None
    }
}

/// Numbers, followed by the program and its arguments.
fn parse<const N: usize>(arguments: &[OsString]) -> Option<([u64; N], &[OsString])> {
    let (numbers, program) = arguments.split_at_checked(N)?;
    let mut values = [0; N];
    for (value, number) in values.iter_mut().zip(numbers) {
        *value = number.to_str()?.parse().ok()?;
    }
    (!program.is_empty()).then_some((values, program))
}

/// Arguments of [`SUPERVISE`]: the limits, the grace period of stragglers, the program.
pub(crate) fn supervise_arguments(limits: Limits, kill_after: Duration) -> [OsString; 4] {
    let [memory, cpu] = limits.to_arguments();
    [SUPERVISE.into(), memory, cpu, kill_after.as_millis().to_string().into()]
}

fn supervise(arguments: &[OsString]) -> ExitCode {
    let Some(([memory, cpu, kill_after], program)) = parse::<3>(arguments) else { return ExitCode::from(2) };
    // Opened first: it has number 3, unless the worker was started with an open descriptor 3.
    let Ok(reserved) = File::open("/dev/null") else { return ExitCode::from(2) };
    let Ok(control) = std::io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::from(2) };
    let mut control = UnixStream::from(control);
    // A service manager sends its signals to all processes of the worker. The worker decides what that means
    // for this program.
    let Ok(_handlers) = ignore_signals() else { return ExitCode::from(2) };
    let limits = Limits::from_arguments(memory, cpu);
    match start(&control, reserved, limits, program) {
        Ok(main) => {
            let report = Report::Started { pid: main.as_raw_pid() };
            let _ = send(&mut control, &report);
            watch(control, main, limits, Duration::from_millis(kill_after));
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = send(&mut control, &Report::NotStarted { why: error.to_string() });
            ExitCode::from(2)
        }
    }
}

fn send(control: &mut UnixStream, report: &Report) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    control.write_all(&line)
}

/// Signals are received, and thereby do not end this process.
fn ignore_signals() -> std::io::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let context = runtime.enter();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()] {
        let _ = signal(kind)?;
    }
    drop(context);
    Ok(runtime)
}

/// Starts the program with the descriptors that the worker sent.
fn start(control: &UnixStream, reserved: File, limits: Limits, program: &[OsString]) -> std::io::Result<Pid> {
    let [stdin, reports] = receive_descriptors(control)?;
    let mut third = OwnedFd::from(reserved);
    rustix::io::dup2(&reports, &mut third)?; // without close-on-exec, so that the program inherits it
    drop(reports);
    rustix::process::set_child_subreaper(Some(getpid()))?;
    let mut command = Command::new(OWN_EXECUTABLE);
    command.arg0("geartrain").arg(EXECUTE).args(limits.to_arguments());
    command.arg(getpid().as_raw_pid().to_string()).arg(third.as_raw_fd().to_string());
    // The main thread starts it: a parent-death signal is sent when the thread that forked ends.
    let child = command.args(program).stdin(Stdio::from(stdin)).process_group(0).spawn()?;
    // The worker reads the end of these once the program has closed them.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Pid::from_raw(child.id().cast_signed()).ok_or_else(|| std::io::Error::other("a child without a pid"))
}

/// Descriptors that come with the first byte: the program's standard input, and its descriptor 3.
fn receive_descriptors(control: &UnixStream) -> std::io::Result<[OwnedFd; 2]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8; 1];
    let mut buffers = [std::io::IoSliceMut::new(&mut byte)];
    recvmsg(control, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut received: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            received.extend(descriptors);
        }
    }
    received.try_into().map_err(|_| std::io::Error::other("the worker sent no descriptors"))
}

/// Waits for the program and for all that it started, and then reports.
fn watch(mut control: UnixStream, main: Pid, limits: Limits, kill_after: Duration) {
    let (this, kills_before) = (getpid(), out_of_memory_kills());
    let (exceeded, killed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let kill_all = {
        let killed = killed.clone();
        move || {
            killed.store(true, Ordering::SeqCst);
            // Until this process ends, which it does when nothing is left.
            loop {
                signal_descendants(this, Signal::KILL);
                std::thread::sleep(KILL_AGAIN);
            }
        }
    };
    if let Ok(mut commands) = control.try_clone() {
        let kill_all = kill_all.clone();
        std::thread::spawn(move || {
            let mut byte = [0];
            loop {
                match commands.read(&mut byte) {
                    Ok(1) if byte[0] == TERMINATE => terminate(this, main),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    // An order to kill, or the worker is gone.
                    _ => kill_all(),
                }
            }
        });
    }
    if let Some(limit) = limits.memory_bytes {
        let (kill_all, exceeded) = (kill_all.clone(), exceeded.clone());
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(MEMORY_CHECK);
                if memory_above(&descendants(this), limit).is_some() {
                    exceeded.store(true, Ordering::SeqCst);
                    kill_all();
                }
            }
        });
    }
    let (mut ended, stragglers) = (None, Arc::new(AtomicU64::new(0)));
    loop {
        // After the program itself has ended, a first look decides whether it left anything behind.
        let is_left = match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == main => {
                ended = Some(status);
                !matches!(rustix::process::wait(WaitOptions::NOHANG), Err(Errno::CHILD))
            }
            Ok(_) | Err(Errno::INTR) => continue,
            // No child is left, and therefore no descendant.
            Err(_) => break,
        };
        if is_left {
            let (kill_all, stragglers) = (kill_all.clone(), stragglers.clone());
            std::thread::spawn(move || {
                let found = descendants(this);
                stragglers.store(found.len() as u64, Ordering::SeqCst);
                for pid in found {
                    let _ = rustix::process::kill_process(pid, Signal::TERM);
                }
                std::thread::sleep(kill_after);
                kill_all();
            });
        }
    }
    let signal = ended.and_then(|status| status.terminating_signal());
    let is_kernels = signal == Some(Signal::KILL.as_raw())
        && !killed.load(Ordering::SeqCst)
        && out_of_memory_kills() > kills_before;
    let (peak_memory_bytes, cpu_seconds) = usage();
    let report = Ended {
        code: ended.and_then(|status| status.exit_status()),
        signal,
        out_of_memory: exceeded.load(Ordering::SeqCst) || is_kernels,
        peak_memory_bytes,
        cpu_seconds,
        stragglers: stragglers.load(Ordering::SeqCst),
    };
    let _ = send(&mut control, &Report::Ended(report));
}

/// Sends SIGTERM to the whole tree: to the process group at once, so that no fork escapes, then to those outside.
fn terminate(this: Pid, main: Pid) {
    let _ = rustix::process::kill_process_group(main, Signal::TERM);
    for pid in descendants(this) {
        if rustix::process::getpgid(Some(pid)) != Ok(main) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }
}

/// Peak memory and CPU time of the children that were waited for, and of theirs.
fn usage() -> (u64, f64) {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return (0, 0.0) };
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    let peak = u64::try_from(usage.max_rss()).unwrap_or(0) * 1_024;
    (peak, seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Sets limits and the parent-death signal, and becomes the program.
fn execute(arguments: &[OsString]) -> ExitCode {
    let Some(([memory, cpu, supervisor, third], program)) = parse::<4>(arguments) else {
        return ExitCode::from(2);
    };
    let [program, arguments @ ..] = program else { return ExitCode::from(2) };
    let set_death_signal = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // The supervisor may have ended before the signal was set.
    if set_death_signal.is_err() || getppid().map(|parent| parent.as_raw_pid() as u64) != Some(supervisor) {
        return ExitCode::from(2);
    }
    let mut command = match third {
        3 => Command::new(program),
        // Descriptor 3 was open already when the worker started, and only a shell can replace it without
        // unsafe code.
        _ => {
            let mut shell = Command::new("/bin/sh");
            let source = format!("/proc/self/fd/{third}");
            shell.args(["-c", r#"exec 3>"$0" "$@""#, &source]).arg(program);
            shell
        }
    };
    command.args(arguments);
    let error = match Limits::from_arguments(memory, cpu).apply() {
        Ok(()) => command.exec(),
        Err(error) => error,
    };
    let name = OsStr::new(program).display();
    let _ = writeln!(std::io::stderr(), "geartrain: cannot run {name}: {error}");
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Reads the reports of a supervisor.
pub(crate) fn parse_report(line: &str) -> Option<Report> {
    serde_json::from_str(line).ok()
}
