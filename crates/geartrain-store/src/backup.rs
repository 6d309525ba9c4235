//! Backup: copies a data directory while it is in use, to another directory or as a tar archive. The copy can
//! be opened by itself.
//!
//! The backup pins the files that it has yet to copy: first checkpoint and log, then the payload files. The
//! manifest comes last, so that what is left of an interrupted copy does not open.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flume::{Receiver, SendTimeoutError, Sender, TrySendError};
use geartrain_core::{Backup, BackupStep, BackupSummary, BackupTarget, Pending, Refusal, SpillLocation};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::checkpoint::Checkpoints;
use crate::copy_target::{CopyTarget, DirectoryTarget, FileReader};
use crate::data_dir::DataDir;
use crate::recovery::OpenError;
use crate::spill::files;
use crate::wal::{self, CopiedWal, Disk};

/// Bytes of a chunk of an archive.
const CHUNK_BYTES: usize = 256 << 10;

/// How many chunks are made ahead of the client of an archive.
const CHUNKS_AHEAD: usize = 2;

/// How long the client of an archive may take for a chunk: until then, files stay pinned.
const CHUNK_WAIT_MAX: Duration = Duration::from_secs(60);

/// How often a backup that waits for its client checks whether it is cancelled.
const CANCEL_CHECK: Duration = Duration::from_millis(50);

/// How long a queue that is closed waits for the end of its backup.
const END_WAIT_MAX: Duration = Duration::from_secs(10);

/// Between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The longest pause after a chunk, if the disk is slow.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Why a backup is cancelled that pins files on a full disk.
pub(crate) const DISK_FULL: &str = "the disk of the queue is full";

/// Keeps the files that a backup has yet to copy from being removed or overwritten.
#[derive(Default)]
pub(crate) struct BackupGate {
    /// Held while a backup copies checkpoint and log, and by tasks that remove files.
    files: Mutex<()>,
    /// Payload files that the backup has yet to copy, once it has copied the log.
    payload_files: Mutex<BTreeSet<u64>>,
    running: Mutex<Option<Arc<Control>>>,
    /// Notified when the running backup has ended.
    ended: Condvar,
}

impl BackupGate {
    /// Permits to remove files, except for [pinned](BackupGate::split_pinned) payload files, while the guard
    /// is held; `None` if a backup copies checkpoint and log.
    pub(crate) fn try_remove(&self) -> Option<MutexGuard<'_, ()>> {
        self.files.try_lock()
    }

    /// Splits payload files into those that may be removed, and those that a backup has yet to copy.
    pub(crate) fn split_pinned(&self, files: Vec<u64>) -> (Vec<u64>, Vec<u64>) {
        let pinned = self.payload_files.lock();
        files.into_iter().partition(|file| !pinned.contains(file))
    }

    /// Whether a payload file is pinned.
    pub(crate) fn has_pinned(&self) -> bool {
        !self.payload_files.lock().is_empty()
    }

    /// Cancels the running backup, if there is one.
    pub(crate) fn cancel(&self, why: &'static str) {
        self.running.lock().iter().for_each(|control| control.cancel(why));
    }

    /// Cancels the running backup, and waits until it has removed what it wrote and no longer uses the
    /// directory. Not for ever: its disk may hang.
    pub(crate) fn end(&self, why: &'static str) {
        self.cancel(why);
        let mut running = self.running.lock();
        self.ended.wait_while_for(&mut running, |running| running.is_some(), END_WAIT_MAX);
    }
}

/// The state that a running backup shares with its caller.
#[derive(Default)]
struct Control {
    /// Why it is to end.
    cancelled: OnceLock<&'static str>,
    bytes: AtomicU64,
    bytes_expected: AtomicU64,
}

impl Control {
    fn cancel(&self, why: &'static str) {
        // The first reason is the cause.
        let _ = self.cancelled.set(why);
    }

    fn check(&self) -> io::Result<()> {
        self.cancelled.get().map_or(Ok(()), |why| Err(io::Error::other(*why)))
    }

    fn progress(&self) -> BackupStep {
        BackupStep::Copied {
            bytes: self.bytes.load(Ordering::Relaxed),
            bytes_expected: self.bytes_expected.load(Ordering::Relaxed),
        }
    }
}

type Step = Result<BackupStep, OpenError>;

/// A backup on its own thread.
pub(crate) struct StoreBackup {
    steps: Receiver<Step>,
    control: Arc<Control>,
}

impl StoreBackup {
    /// Starts the thread: a backup takes long, and must block neither the engine nor an executor.
    pub(crate) fn start(
        data_dir: Arc<DataDir>,
        to: BackupTarget,
        jobs: u64,
    ) -> Result<StoreBackup, OpenError> {
        let control = Arc::new(Control::default());
        {
            let mut running = data_dir.backup_gate.running.lock();
            if running.is_some() {
                return Err(OpenError::BackupRunning);
            }
            *running = Some(control.clone());
        }
        let gate = data_dir.backup_gate.clone();
        let disk = data_dir.disk.clone();
        let running = Running { data_dir: Some(data_dir), disk, gate, control: control.clone() };
        let (sender, steps) = flume::bounded(CHUNKS_AHEAD);
        std::thread::Builder::new().name("geartrain-backup".into()).spawn(move || {
            let done = running.run(to, jobs, &sender);
            // Before the last step: the caller may open the directory again, or begin another backup.
            drop(running);
            let _ = sender.send(done.map(BackupStep::Done));
        })?;
        Ok(StoreBackup { steps, control })
    }

    /// Like [`next`](Backup::next).
    pub(crate) async fn next_step(&mut self) -> Step {
        let panicked = |_| OpenError::Io(io::Error::other("the backup thread panicked and printed why"));
        self.steps.recv_async().await.map_err(panicked)?
    }
}

impl Backup for StoreBackup {
    fn next(&mut self) -> Pending<'_, BackupStep> {
        Box::pin(async { Ok(self.next_step().await.map_err(refusal)?) })
    }
}

impl Drop for StoreBackup {
    fn drop(&mut self) {
        self.control.cancel("its caller has gone");
    }
}

/// The refusal for a backup that failed.
pub(crate) fn refusal(error: OpenError) -> Refusal {
    Refusal::Backup { why: format!("cannot make a backup: {error}") }
}

/// The one backup of a directory.
struct Running {
    /// Keeps the directory locked until the backup ends.
    data_dir: Option<Arc<DataDir>>,
    disk: Arc<dyn Disk>,
    gate: Arc<BackupGate>,
    control: Arc<Control>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.gate.payload_files.lock().clear();
        // First, because the directory may be opened again when the backup has ended.
        self.data_dir = None;
        *self.gate.running.lock() = None;
        self.gate.ended.notify_all();
    }
}

impl Running {
    fn run(&self, to: BackupTarget, jobs: u64, steps: &Sender<Step>) -> Result<BackupSummary, OpenError> {
        let begun = Instant::now();
        let made = match to {
            BackupTarget::Directory(path) => self.to_directory(&path, steps),
            BackupTarget::Archive => self.to_archive(steps),
        };
        // The cause, and not the write that it interrupted.
        if let (Err(_), Some(why)) = (&made, self.control.cancelled.get()) {
            return Err(OpenError::BackupCancelled { why });
        }
        Ok(BackupSummary { jobs, seconds: begun.elapsed().as_secs_f64(), ..made? })
    }

    fn to_directory(&self, path: &std::path::Path, steps: &Sender<Step>) -> Result<BackupSummary, OpenError> {
        let mut target = DirectoryTarget::new(path)?;
        let copied = self.copy(&mut target, steps, Pacing::HalfTheTime)?;
        let directory = target.keep()?;
        Ok(BackupSummary { directory: Some(directory.display().to_string()), ..copied })
    }

    fn to_archive(&self, steps: &Sender<Step>) -> Result<BackupSummary, OpenError> {
        let (chunk, control) = (Vec::with_capacity(CHUNK_BYTES), &*self.control);
        let mut archive = Archive { chunk, control, steps };
        let copied = self.copy(&mut archive, steps, Pacing::None)?;
        archive.finish()?;
        Ok(copied)
    }

    /// Copies the newest checkpoint, the log behind it as far as it is written, and the payload files.
    fn copy(
        &self,
        to: &mut dyn CopyTarget,
        steps: &Sender<Step>,
        pacing: Pacing,
    ) -> Result<BackupSummary, OpenError> {
        let (from, gate) = (&self.disk, &self.gate);
        let no_removals = gate.files.lock();
        let checkpoints = Checkpoints::new(from.clone(), gate.clone());
        let newest = checkpoints.names()?.pop();
        let expected = bytes_expected(&from.list()?, newest.as_ref().map(|(name, _)| name.as_str()));
        self.control.bytes_expected.store(expected, Ordering::Relaxed);
        to.expect(expected)?;
        let _ = steps.try_send(Ok(self.control.progress()));
        let mut to = Paced { to, control: &self.control, steps, pacing, reported: Instant::now() };
        let (first, checkpoint_bytes) = match newest {
            None => (wal::BEGINNING, 0),
            Some((name, bytes)) => {
                // Verified, so that a damaged one is noticed while the original is still there.
                let checkpoint = checkpoints.open(&name, bytes)?;
                let position = checkpoint.position;
                checkpoint.verify()?;
                to.add(&name, bytes, &mut FileReader::new(&**from, &name)?)?;
                (position, bytes)
            }
        };
        let copied = wal::copy(&**from, &mut to, first, &mut |_, _| Ok(()))?;
        let CopiedWal { segments, bytes, damage, end, manifest, .. } = copied;
        if let Some(damage) = damage {
            return Err(damage.into());
        }
        // After the log: the files that its changes refer to were complete before it was written. Payloads
        // added to spill files meanwhile are in the log too, and need not be in the copy of the file.
        let payload_files = files::files_on(&**from)?;
        *gate.payload_files.lock() = payload_files.keys().copied().collect();
        // Checkpoints are installed and segments recycled again, so the log does not grow any longer.
        drop(no_removals);
        let mut summary = BackupSummary {
            log_segment: end.segment,
            log_offset: end.offset,
            checkpoint_bytes,
            log_segments: segments,
            log_bytes: bytes,
            ..BackupSummary::default()
        };
        for (file, bytes) in payload_files {
            let name = files::name_of(file);
            match FileReader::new(&**from, &name) {
                Ok(mut contents) => {
                    to.add(&name, bytes, &mut contents)?;
                    summary.payload_files += 1;
                    summary.payload_file_bytes += bytes;
                }
                // The file of a payload whose put was never executed.
                Err(error) if error.kind() == io::ErrorKind::NotFound && SpillLocation::is_own_file(file) => {
                }
                Err(error) => return Err(error.into()),
            }
            gate.payload_files.lock().remove(&file);
        }
        to.add(wal::MANIFEST, manifest.len() as u64, &mut &manifest[..])?;
        Ok(summary)
    }
}

/// Bytes of the files that a copy from the newest checkpoint on has.
fn bytes_expected(files: &[(String, u64)], newest: Option<&str>) -> u64 {
    let is_copied = |name: &str| match wal::segment_number(name) {
        Some(number) => {
            let first = newest.and_then(crate::checkpoint::position_in);
            number >= first.unwrap_or_default().segment
        }
        None => Some(name) == newest || files::number_of(name).is_some(),
    };
    files.iter().filter(|(name, _)| is_copied(name)).map(|(_, bytes)| bytes).sum()
}

/// How much of the time a backup uses the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pacing {
    /// After each chunk it pauses for as long as the chunk took, so that commits are not slowed down for
    /// long.
    HalfTheTime,
    /// The client of an archive sets the pace.
    None,
}

/// Copies chunk by chunk: reports progress, pauses, and ends if the backup is cancelled.
struct Paced<'a> {
    to: &'a mut dyn CopyTarget,
    control: &'a Control,
    steps: &'a Sender<Step>,
    pacing: Pacing,
    /// When progress was reported last.
    reported: Instant,
}

impl CopyTarget for Paced<'_> {
    fn add(&mut self, name: &str, bytes: u64, contents: &mut dyn Read) -> io::Result<()> {
        let Paced { to, control, steps, pacing, reported } = self;
        let begun = Instant::now();
        to.add(name, bytes, &mut PacedReader { contents, control, steps, pacing: *pacing, begun, reported })
    }
}

struct PacedReader<'a> {
    contents: &'a mut dyn Read,
    control: &'a Control,
    steps: &'a Sender<Step>,
    pacing: Pacing,
    /// When the chunk before was read: it is written and synced now.
    begun: Instant,
    reported: &'a mut Instant,
}

impl Read for PacedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.control.check()?;
        if self.pacing == Pacing::HalfTheTime {
            std::thread::sleep(self.begun.elapsed().min(PAUSE_MAX));
        }
        self.begun = Instant::now();
        let read = self.contents.read(buffer)?;
        self.control.bytes.fetch_add(read as u64, Ordering::Relaxed);
        if self.reported.elapsed() >= PROGRESS_INTERVAL {
            *self.reported = Instant::now();
            match self.steps.try_send(Ok(self.control.progress())) {
                Err(TrySendError::Disconnected(_)) => self.control.cancel("its caller has gone"),
                Ok(()) | Err(TrySendError::Full(_)) => {}
            }
        }
        Ok(read)
    }
}

/// A tar archive, handed over in chunks. Its end mark is missing unless it is finished.
struct Archive<'a> {
    chunk: Vec<u8>,
    control: &'a Control,
    steps: &'a Sender<Step>,
}

/// Entries of a tar archive begin at multiples of this, and two empty ones end it.
const TAR_BLOCK: usize = 512;

impl Archive<'_> {
    fn finish(mut self) -> io::Result<()> {
        self.write_all(&[0; 2 * TAR_BLOCK])?;
        self.flush()
    }
}

impl CopyTarget for Archive<'_> {
    fn add(&mut self, name: &str, bytes: u64, contents: &mut dyn Read) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_path(name)?;
        header.set_size(bytes);
        header.set_mode(0o600);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        header.set_mtime(now.as_secs());
        header.set_cksum();
        self.write_all(header.as_bytes())?;
        let mut left = bytes;
        while left > 0 {
            let space = (CHUNK_BYTES - self.chunk.len()).min(usize::try_from(left).unwrap_or(CHUNK_BYTES));
            let end = self.chunk.len();
            self.chunk.resize(end + space, 0);
            contents.read_exact(&mut self.chunk[end..])?;
            left -= space as u64;
            self.send_full()?;
        }
        let padding = bytes.next_multiple_of(TAR_BLOCK as u64) - bytes;
        self.write_all(&[0; TAR_BLOCK][..padding as usize])
    }
}

impl Archive<'_> {
    fn send_full(&mut self) -> io::Result<()> {
        if self.chunk.len() < CHUNK_BYTES { Ok(()) } else { self.flush() }
    }
}

impl Write for Archive<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        self.send_full()?;
        Ok(taken)
    }

    /// Waits for the client, but not longer than it may take, and not if the backup is cancelled meanwhile.
    fn flush(&mut self) -> io::Result<()> {
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_BYTES));
        let (begun, mut step) = (Instant::now(), Ok(BackupStep::Chunk(chunk)));
        loop {
            self.control.check()?;
            step = match self.steps.send_timeout(step, CANCEL_CHECK) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Disconnected(_)) => {
                    return Err(io::Error::other("its caller has gone"));
                }
                Err(SendTimeoutError::Timeout(_)) if begun.elapsed() >= CHUNK_WAIT_MAX => {
                    return Err(io::Error::other("its caller has read nothing for a minute"));
                }
                Err(SendTimeoutError::Timeout(step)) => step,
            };
        }
    }
}
