//! Large payloads: each is written to a file of its own before its command is queued for execution.
//!
//! The log then carries where the payload is instead of its bytes, so that no commit group of other clients
//! waits for megabytes. A dedicated thread writes; neither the engine nor the committer does. File, contents
//! and name are durable before the command is executed. A file that no durable delta refers to is an orphan:
//! it is removed when its batch is dropped unexecuted, and otherwise when the directory is opened.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use flume::{Receiver, Sender};
use geartrain_core::{Call, PAYLOAD_BYTES_MAX, SpillLocation};
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::spill::files;
use crate::wal::{Disk, WalError, is_full};

/// Back-pressure: with this many batches queued for the thread, further callers wait.
const REQUESTS_MAX: usize = 16;

/// The large payloads of a data directory.
pub(crate) struct LargePayloads {
    disk: Arc<dyn Disk>,
    /// Payloads of this many bytes or more are large.
    bytes_min: usize,
    /// The number of the next file. No number is used twice.
    next: AtomicU64,
    /// Files of batches that the engine has not executed. To the engine they look like orphans.
    in_flight: Mutex<BTreeSet<u64>>,
    /// Disk space to leave free for the next checkpoint.
    checkpoint_reserve: AtomicU64,
}

/// The files of a batch that is on its way to the engine. Dropping it removes them.
pub(crate) struct OwnFiles {
    large: Arc<LargePayloads>,
    files: Vec<u64>,
}

impl LargePayloads {
    pub(crate) fn new(disk: Arc<dyn Disk>, bytes_min: usize) -> LargePayloads {
        LargePayloads {
            disk,
            // The location of an empty payload would be longer than the payload.
            bytes_min: bytes_min.max(1),
            next: AtomicU64::new(0),
            in_flight: Mutex::default(),
            checkpoint_reserve: AtomicU64::new(0),
        }
    }

    /// Numbers files by this epoch from now on. No epoch comes twice, so neither does the number of a file.
    pub(crate) fn begin_epoch(&self, epoch: u32) {
        self.next.fetch_max(u64::from(epoch) << 32 | SpillLocation::OWN_FILE, Ordering::AcqRel);
    }

    pub(crate) fn is_in_flight(&self, file: u64) -> bool {
        self.in_flight.lock().contains(&file)
    }

    /// Sets how much of the disk must stay free for the next checkpoint.
    pub(crate) fn reserve_for_checkpoint(&self, bytes: u64) {
        self.checkpoint_reserve.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn has_large(&self, batch: &[Call]) -> bool {
        let is_large = |call: &Call| self.is_large(call);
        batch.iter().any(is_large)
    }

    fn is_large(&self, call: &Call) -> bool {
        // A payload that is too large for the engine is not worth writing: it will be refused.
        let sizes = self.bytes_min..=PAYLOAD_BYTES_MAX;
        call.command
            .payload()
            .is_some_and(|it| it.spill_location().is_none() && sizes.contains(&it.byte_len()))
    }

    /// Writes the large payloads of a batch, and replaces them by their locations. Leaves nothing behind if
    /// that fails.
    pub(crate) fn write(self: &Arc<Self>, batch: &mut [Call]) -> Result<OwnFiles, StoreError> {
        let mut written = OwnFiles { large: self.clone(), files: Vec::new() };
        self.try_write(batch, &mut written.files).map_err(|error| match error {
            error if is_full(&error) => StoreError::from(WalError::Full),
            error => StoreError::from(error),
        })?;
        Ok(written)
    }

    fn try_write(&self, batch: &mut [Call], files: &mut Vec<u64>) -> io::Result<()> {
        for call in batch.iter_mut().filter(|call| self.is_large(call)) {
            let Some(payload) = call.command.payload_mut() else { continue };
            self.check_space(payload.byte_len() as u64)?;
            let file = self.next.fetch_add(1, Ordering::AcqRel);
            self.in_flight.lock().insert(file);
            files.push(file);
            *payload = files::write_own_file(&*self.disk, file, payload.bytes())?.into();
        }
        self.disk.sync_directory()
    }

    /// Leaves space for a checkpoint: without one, cancelling jobs later would not shorten the log.
    fn check_space(&self, bytes: u64) -> io::Result<()> {
        let wanted = bytes.saturating_add(self.checkpoint_reserve.load(Ordering::Relaxed));
        match self.disk.free_bytes()? {
            Some(free) if free < wanted => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }
}

impl OwnFiles {
    /// From here on the engine knows which of these files are needed.
    pub(crate) fn adopt(mut self) -> Vec<u64> {
        self.clear_in_flight();
        std::mem::take(&mut self.files)
    }

    fn clear_in_flight(&self) {
        let mut in_flight = self.large.in_flight.lock();
        in_flight.retain(|file| !self.files.contains(file));
    }
}

impl Drop for OwnFiles {
    fn drop(&mut self) {
        for file in &self.files {
            // If it cannot be removed now, the next opening does it.
            let _ = self.large.disk.remove(&files::name_of(*file));
        }
        self.clear_in_flight();
    }
}

/// A batch whose large payloads are to be written, and where it goes then.
struct WriteRequest {
    batch: Vec<Call>,
    slot: Sender<Result<(Vec<Call>, OwnFiles), StoreError>>,
}

/// The thread that writes large payloads. It starts with the first one.
pub(crate) struct LargeWriter {
    large: Arc<LargePayloads>,
    thread: OnceLock<Option<(Sender<WriteRequest>, JoinHandle<()>)>>,
}

impl LargeWriter {
    pub(crate) fn new(large: Arc<LargePayloads>) -> LargeWriter {
        LargeWriter { large, thread: OnceLock::new() }
    }

    /// Whether a batch has large payloads.
    pub(crate) fn is_for(&self, batch: &[Call]) -> bool {
        self.large.has_large(batch)
    }

    /// Writes the large payloads of a batch, and returns it.
    pub(crate) async fn write(&self, batch: Vec<Call>) -> Result<(Vec<Call>, OwnFiles), StoreError> {
        let (slot, written) = flume::bounded(1);
        let request = WriteRequest { batch, slot };
        match self.thread.get_or_init(|| start(self.large.clone())) {
            Some((requests, _)) => requests.send_async(request).await.map_err(|_| StoreError::Stopped)?,
            // If the thread could not be started, this thread writes.
            None => request.run(&self.large),
        }
        written.recv_async().await.unwrap_or(Err(StoreError::Stopped))
    }
}

impl Drop for LargeWriter {
    fn drop(&mut self) {
        if let Some(Some((requests, thread))) = self.thread.take() {
            drop(requests);
            // If it panicked, its message was printed and its callers got an error.
            let _ = thread.join();
        }
    }
}

fn start(large: Arc<LargePayloads>) -> Option<(Sender<WriteRequest>, JoinHandle<()>)> {
    let (requests, inbox): (_, Receiver<WriteRequest>) = flume::bounded(REQUESTS_MAX);
    let run = move || inbox.iter().for_each(|request| request.run(&large));
    let thread = std::thread::Builder::new().name("geartrain-large".into()).spawn(run).ok()?;
    Some((requests, thread))
}

impl WriteRequest {
    fn run(self, large: &Arc<LargePayloads>) {
        let WriteRequest { mut batch, slot } = self;
        let written = large.write(&mut batch);
        // If the caller has gone, dropping the batch removes its files.
        let _ = slot.send(written.map(|files| (batch, files)));
    }
}
