//! Fault injection: one kind of fault after another against a server under load.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain_core::{Backend, BackendError};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::{LoadClients, ServerError, ServerProcess, Stalled, Verdict};

/// How many jobs the clients complete between two faults, at most.
const JOBS_MAX: usize = 60;
/// A fault comes up to this long after the last of these jobs, so that it hits the server at any point of its
/// work.
const DELAY_MAX: Duration = Duration::from_millis(30);
/// How long a server stays frozen.
const FROZEN: Duration = Duration::from_secs(2);
/// How far a clock jumps, forward or back, in seconds.
const JUMP_MAX: i64 = 3_600;
/// The size of the file system that is filled.
const SMALL_DISK_BYTES: u64 = 96 << 20;
/// How many calls must have failed before a full disk is given its space back.
const REFUSED_MIN: u64 = 50;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// SIGKILL, and a restart.
    Kill,
    /// SIGSTOP for two seconds, and SIGCONT.
    Freeze,
    /// No space left on a small file system, and then space again.
    FullDisk,
    /// The server's clock jumps up to an hour forward or back; the machine's clock is not touched.
    ClockJump,
}

impl Fault {
    /// The fault as a table shows it.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill -9",
            Fault::Freeze => "frozen process",
            Fault::FullDisk => "full disk",
            Fault::ClockJump => "clock jump",
        }
    }
}

/// How often each fault is injected.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Rounds of [`Fault::Kill`].
    pub kills: u32,
    /// Rounds of [`Fault::Freeze`].
    pub freezes: u32,
    /// Rounds of [`Fault::FullDisk`].
    pub full_disks: u32,
    /// Rounds of [`Fault::ClockJump`].
    pub clock_jumps: u32,
    /// Clients at work at once.
    pub clients: usize,
    /// Seed of the timing of the faults.
    pub seed: u64,
}

/// The result of one kind of fault.
#[derive(Debug, Clone, serde::Serialize)]
pub struct FaultReport {
    /// The fault.
    pub fault: Fault,
    /// How often it was injected.
    pub rounds: u32,
    /// Acknowledged operations: puts, completions and failures.
    pub promised: u64,
    /// Acknowledgements that held.
    pub kept: u64,
    /// Acknowledgements that did not hold.
    pub lost: u64,
    /// Jobs handed to a second client while the first held them, or after their end.
    pub doubled: u64,
    /// What was violated, in words.
    pub violations: Vec<String>,
    /// Why the fault could not be injected on this machine.
    pub skipped: Option<String>,
    /// How long it took.
    pub seconds: f64,
}

impl FaultReport {
    /// Whether every promise was kept.
    pub fn is_kept(&self) -> bool {
        self.lost == 0 && self.doubled == 0
    }
}

/// Why a drill could not run.
#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    /// The server process failed.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The clients stopped making progress.
    #[error(transparent)]
    Stalled(#[from] Stalled),
    /// The server does not answer.
    #[error("the server does not answer: {}", chain(.0))]
    Backend(#[from] BackendError),
    /// The directory of the drill cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    Directory {
        /// The directory or file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

fn chain(error: &BackendError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Connects a client to the server at a URL.
pub type Connect<'a> = &'a dyn Fn(&str) -> Result<Arc<dyn Backend>, BackendError>;

/// A drill in a directory.
pub struct Drill<'a> {
    /// The `geartrain` program.
    pub program: PathBuf,
    /// An existing directory on the disk to be drilled. Each fault makes and removes a directory in it.
    pub directory: PathBuf,
    /// How often each fault is injected.
    pub plan: Plan,
    /// Connects a client.
    pub connect: Connect<'a>,
    /// Called before each round with the fault, the round and the number of rounds.
    pub progress: &'a dyn Fn(Fault, u32, u32),
}

impl Drill<'_> {
    /// Injects one kind of fault as often as the plan says, on a server and a data directory of its own.
    pub fn run(&self, fault: Fault) -> Result<FaultReport, DrillError> {
        let plan = &self.plan;
        let rounds = match fault {
            Fault::Kill => plan.kills,
            Fault::Freeze => plan.freezes,
            Fault::FullDisk => plan.full_disks,
            Fault::ClockJump => plan.clock_jumps,
        };
        let started = Instant::now();
        let scratch = Scratch::new(&self.directory, fault)?;
        let small_disk = match fault {
            Fault::FullDisk => match SmallDisk::mount(&scratch.path.join("disk")) {
                Ok(disk) => Some(disk),
                Err(why) => return Ok(report(fault, 0, Verdict::default(), Some(why), started)),
            },
            Fault::Kill | Fault::Freeze | Fault::ClockJump => None,
        };
        let data = small_disk.as_ref().map_or(&scratch.path, |disk| &disk.path).join("data");
        // Not on the small disk: a log cannot be written there when it matters.
        let server = ServerProcess::start(&self.program, &data, &scratch.path.join("server.log"))?;
        let verdict = self.inject(fault, rounds, server, small_disk.as_ref())?;
        if verdict.violations.is_empty() {
            drop(small_disk);
            scratch.remove();
        } else if let Some(disk) = small_disk {
            // The evidence outlives the drill.
            disk.keep();
        }
        Ok(report(fault, rounds, verdict, None, started))
    }

    fn inject(
        &self,
        fault: Fault,
        rounds: u32,
        mut server: ServerProcess,
        small_disk: Option<&SmallDisk>,
    ) -> Result<Verdict, DrillError> {
        let mut timing = fastrand::Rng::with_seed(self.plan.seed ^ fault as u64);
        let url = server.url();
        let clients = LoadClients::start(self.plan.clients, "drill", || (self.connect)(&url))?;
        for round in 0..rounds {
            (self.progress)(fault, round, rounds);
            clients.wait_for_completed(timing.usize(1..=JOBS_MAX))?;
            std::thread::sleep(DELAY_MAX.mul_f64(timing.f64()));
            match fault {
                Fault::Kill => {
                    server.kill();
                    server.restart()?;
                }
                Fault::Freeze => {
                    server.freeze()?;
                    std::thread::sleep(FROZEN);
                    server.thaw()?;
                }
                Fault::FullDisk => {
                    let Some(disk) = small_disk else { continue };
                    let ballast = disk.fill()?;
                    clients.wait_for_errors(REFUSED_MIN)?;
                    drop(ballast);
                }
                Fault::ClockJump => server.set_clock_offset(timing.i64(-JUMP_MAX..=JUMP_MAX))?,
            }
        }
        clients.wait_for_completed(JOBS_MAX)?;
        let ledger = clients.finish();
        let mut verdict = ledger.verify(&*(self.connect)(&url)?)?;
        verdict.violations.extend(self.close(&mut server)?);
        Ok(verdict)
    }

    /// Stops the server and checks the directory; returns the error of either.
    fn close(&self, server: &mut ServerProcess) -> Result<Option<String>, DrillError> {
        match server.terminate()? {
            Some(0) => {}
            code => return Ok(Some(format!("the server ended with {code:?} after SIGTERM"))),
        }
        let checked = Command::new(&self.program)
            .args(["check", "--url"])
            .arg(format!("embedded:{}", server.data().display()))
            .stdin(Stdio::null())
            .output()
            .map_err(|source| DrillError::Directory { path: server.data().to_owned(), source })?;
        let error = String::from_utf8_lossy(&checked.stderr).trim().to_owned();
        Ok((!checked.status.success()).then_some(error))
    }
}

fn report(
    fault: Fault,
    rounds: u32,
    verdict: Verdict,
    skipped: Option<String>,
    started: Instant,
) -> FaultReport {
    // A server that does not stop, or a directory that `check` refuses, is a loss even if every job was
    // found.
    let lost = verdict.lost.max(u64::from(!verdict.violations.is_empty() && verdict.doubled == 0));
    FaultReport {
        fault,
        rounds,
        promised: verdict.promised,
        kept: verdict.promised.saturating_sub(lost),
        lost,
        doubled: verdict.doubled,
        violations: verdict.violations,
        skipped,
        seconds: started.elapsed().as_secs_f64(),
    }
}

/// The directory of one fault. It stays if something was lost, and is removed otherwise.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(parent: &Path, fault: Fault) -> Result<Scratch, DrillError> {
        let name = format!("geartrain-drill-{}-{}", std::process::id(), fault.name().replace(' ', ""));
        let path = parent.join(name);
        match fs::create_dir_all(&path) {
            Ok(()) => Ok(Scratch { path }),
            Err(source) => Err(DrillError::Directory { path, source }),
        }
    }

    fn remove(self) {
        // A directory left behind only costs space.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A small file system in memory, unmounted when dropped.
struct SmallDisk {
    path: PathBuf,
    is_kept: bool,
}

impl SmallDisk {
    /// Mounts it, or returns the reason why that is not possible here.
    fn mount(path: &Path) -> Result<SmallDisk, String> {
        let why = |error: &dyn std::fmt::Display| {
            format!("cannot mount a small file system ({error}): run the drill as root")
        };
        fs::create_dir_all(path).map_err(|error| why(&error))?;
        let size = std::ffi::CString::new(format!("size={SMALL_DISK_BYTES},mode=0700"));
        let options = size.map_err(|error| why(&error))?;
        mount("geartrain-drill", path, "tmpfs", MountFlags::empty(), Some(options.as_c_str()))
            .map_err(|error| why(&error))?;
        Ok(SmallDisk { path: path.to_owned(), is_kept: false })
    }

    /// Uses up all free space.
    fn fill(&self) -> Result<Ballast, DrillError> {
        let ballast = Ballast { path: self.path.join("ballast") };
        let failed = |source| DrillError::Directory { path: ballast.path.clone(), source };
        let mut file = File::create(&ballast.path).map_err(failed)?;
        let block = [0; 4096];
        loop {
            match file.write_all(&block) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(ballast)
    }

    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if !self.is_kept {
            // Fails only if a process still uses it, and the drill has ended its own.
            let _ = unmount(&self.path, UnmountFlags::empty());
        }
    }
}

/// A file that fills the disk, removed when dropped.
struct Ballast {
    path: PathBuf,
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
