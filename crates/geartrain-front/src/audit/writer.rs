//! The thread that writes the audit log. Callers add to a buffer and go on; a disk that is full or slow costs
//! records, which are counted, and never holds up the queue.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use geartrain_core::{Clock as _, SystemClock};
use parking_lot::{Condvar, Mutex};

use super::{AuditRecord, reader, rotated};

/// How much may wait for the disk.
const BUFFER_BYTES_MAX: usize = 16 << 20;

pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    buffer: Mutex<Buffer>,
    /// There is something to write, or the end.
    filled: Condvar,
    /// Something was written, or lost.
    settled: Condvar,
}

#[derive(Default)]
struct Buffer {
    lines: Vec<u8>,
    /// The id of the next record.
    next: u64,
    /// All records before this id are written, or lost.
    settled: u64,
    /// Records that were not written.
    lost: u64,
    ended: bool,
}

impl Writer {
    pub(super) fn start(file: Arc<Path>, bytes_max: u64) -> io::Result<Writer> {
        let newest = reader::newest_id(&file)?;
        let target = Target::open(file, bytes_max)?;
        let buffer = Mutex::new(Buffer { next: newest + 1, settled: newest + 1, ..Buffer::default() });
        let shared = Arc::new(Shared { buffer, filled: Condvar::new(), settled: Condvar::new() });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(move || write_until_ended(&of_thread, target))?;
        Ok(Writer { shared, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn append(&self, record: AuditRecord) {
        let mut buffer = self.shared.buffer.lock();
        if buffer.lines.len() >= BUFFER_BYTES_MAX || !buffer.push(record) {
            buffer.lost += 1;
        }
        self.shared.filled.notify_one();
    }

    /// Waits until everything that was appended before is written, or lost; not for what is appended meanwhile,
    /// which may never end.
    pub(super) fn flush(&self) {
        let mut buffer = self.shared.buffer.lock();
        let upto = buffer.next;
        while buffer.settled < upto {
            self.shared.settled.wait(&mut buffer);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.buffer.lock().ended = true;
        self.shared.filled.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            // It has panicked if this fails, and was reported then.
            let _ = thread.join();
        }
    }
}

impl Buffer {
    fn push(&mut self, record: AuditRecord) -> bool {
        let Ok(line) = serde_json::to_vec(&AuditRecord { id: self.next, ..record }) else { return false };
        self.next += 1;
        self.lines.extend_from_slice(&line);
        self.lines.push(b'\n');
        true
    }

    /// Tells of lost records, in the place where they are missing.
    fn push_loss(&mut self) {
        let count = std::mem::take(&mut self.lost);
        let at = SystemClock.now().get();
        let record = AuditRecord {
            id: 0,
            at,
            who: None,
            role: None,
            from: "server".to_owned(),
            action: "audit-lost".to_owned(),
            target: None,
            count: Some(count),
            outcome: "ok".to_owned(),
        };
        self.push(record);
    }
}

fn write_until_ended(shared: &Shared, mut target: Target) {
    let mut failed = false;
    let mut buffer = shared.buffer.lock();
    loop {
        while buffer.lines.is_empty() && !buffer.ended {
            shared.filled.wait(&mut buffer);
        }
        if buffer.lines.is_empty() {
            return;
        }
        if buffer.lost > 0 {
            buffer.push_loss();
        }
        let (lines, upto) = (std::mem::take(&mut buffer.lines), buffer.next);
        drop(buffer);
        let written = target.write(&lines);
        buffer = shared.buffer.lock();
        buffer.settled = upto;
        shared.settled.notify_all();
        match written {
            Ok(()) if failed => {
                failed = false;
                tracing::info!("the audit log can be written again");
            }
            Ok(()) => {}
            Err(error) => {
                buffer.lost += lines.iter().filter(|byte| **byte == b'\n').count() as u64;
                // Once, because a full disk stays full for a while.
                if !std::mem::replace(&mut failed, true) {
                    tracing::error!(
                        "the audit log {} cannot be written, and its records are lost until it can: {error}",
                        target.path.display()
                    );
                }
            }
        }
    }
}

/// The file, and how long it is.
struct Target {
    path: Arc<Path>,
    file: File,
    bytes: u64,
    bytes_max: u64,
    /// The last write may have left a part of a line.
    is_torn: bool,
    /// The last rotation failed.
    is_stuck: bool,
}

impl Target {
    fn open(path: Arc<Path>, bytes_max: u64) -> io::Result<Target> {
        let file = open(&path)?;
        let bytes = file.metadata()?.len();
        let is_torn = !reader::ends_with_a_line(&path)?;
        Ok(Target { path, file, bytes, bytes_max, is_torn, is_stuck: false })
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + lines.len() as u64 > self.bytes_max {
            // The directory may belong to another user. A file that grows is better than records that are lost.
            match self.rotate() {
                Ok(()) => self.is_stuck = false,
                Err(error) if !std::mem::replace(&mut self.is_stuck, true) => tracing::error!(
                    "the audit log {} has reached its size and cannot be renamed, so it grows: {error}",
                    self.path.display()
                ),
                Err(_) => {}
            }
        }
        if self.is_torn {
            self.file.write_all(b"\n")?;
            self.bytes += 1;
        }
        self.is_torn = true;
        self.file.write_all(lines)?;
        self.is_torn = false;
        self.bytes += lines.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        match fs::rename(&self.path, rotated(&self.path)) {
            // It was renamed before, and no new one could be opened then.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        self.file = open(&self.path)?;
        (self.bytes, self.is_torn) = (0, false);
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}
