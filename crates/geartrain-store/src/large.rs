//! Large payloads: each is written to a file of its own before its command is queued for execution.
//!
//! The log then carries where the payload is instead of its bytes, so that no commit group of other clients
//! waits for megabytes. A dedicated thread writes; neither the engine nor the committer does. File, contents
//! and name are durable before the command is executed. A file that no durable delta refers to is an orphan:
//! it is removed when its batch is dropped unexecuted, and otherwise when the directory is opened.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use flume::{Receiver, Sender};
use geartrain_core::{Call, PAYLOAD_BYTES_MAX, SpillLocation};

use crate::log::{Disk, LogError, is_full};
use crate::payloads;
use crate::trouble::Trouble;

/// How many batches wait for the thread before their callers do.
const ORDERS_MAX: usize = 16;

/// The files of large payloads in one directory.
pub(crate) struct LargePayloads {
    disk: Arc<dyn Disk>,
    /// Payloads of so many bytes, or more, are large.
    bytes_min: usize,
    /// The number of the next file. None was ever used before.
    next: AtomicU64,
    /// Files of batches that the engine has not executed. To the engine they look like orphans.
    in_flight: Mutex<BTreeSet<u64>>,
    /// How much of the disk must stay free for the next checkpoint.
    checkpoint_reserve: AtomicU64,
}

/// The files of a batch that is on its way to the engine. Dropping it removes them.
pub(crate) struct OwnFiles {
    of: Arc<LargePayloads>,
    files: Vec<u64>,
}

impl LargePayloads {
    pub(crate) fn new(disk: Arc<dyn Disk>, bytes_min: usize) -> LargePayloads {
        LargePayloads {
            disk,
            // The place of an empty payload would be longer than the payload.
            bytes_min: bytes_min.max(1),
            next: AtomicU64::new(0),
            in_flight: Mutex::default(),
            checkpoint_reserve: AtomicU64::new(0),
        }
    }

    /// From now on numbers are of this epoch. No epoch comes twice, so neither does the number of a file.
    pub(crate) fn begin_epoch(&self, epoch: u32) {
        self.next.fetch_max(u64::from(epoch) << 32 | SpillLocation::OWN_FILE, Ordering::AcqRel);
    }

    pub(crate) fn is_in_flight(&self, file: u64) -> bool {
        self.in_flight().contains(&file)
    }

    /// Says how much of the disk must stay free for the next checkpoint.
    pub(crate) fn reserve_for_checkpoint(&self, bytes: u64) {
        self.checkpoint_reserve.store(bytes, Ordering::Relaxed);
    }

    /// Whether a batch brings a large payload.
    pub(crate) fn has_large(&self, batch: &[Call]) -> bool {
        let is_large = |call: &Call| self.is_large(call);
        batch.iter().any(is_large)
    }

    fn is_large(&self, call: &Call) -> bool {
        // One that is too large for the engine is not worth writing: it will be refused.
        let sizes = self.bytes_min..=PAYLOAD_BYTES_MAX;
        call.command
            .payload()
            .is_some_and(|it| it.spill_location().is_none() && sizes.contains(&it.byte_len()))
    }

    /// Writes the large payloads of a batch, and leaves their places in the commands. If that fails nothing
    /// is left of it.
    pub(crate) fn write(self: &Arc<Self>, batch: &mut [Call]) -> Result<OwnFiles, Trouble> {
        let mut written = OwnFiles { of: self.clone(), files: Vec::new() };
        self.try_write(batch, &mut written.files).map_err(|error| match error {
            error if is_full(&error) => Trouble::from(LogError::Full),
            error => Trouble::from(error),
        })?;
        Ok(written)
    }

    fn try_write(&self, batch: &mut [Call], files: &mut Vec<u64>) -> io::Result<()> {
        for call in batch.iter_mut().filter(|call| self.is_large(call)) {
            let Some(payload) = call.command.payload_mut() else { continue };
            self.check_room(payload.byte_len() as u64)?;
            let file = self.next.fetch_add(1, Ordering::AcqRel);
            self.in_flight().insert(file);
            files.push(file);
            *payload = payloads::write_own_file(&*self.disk, file, payload.bytes())?.into();
        }
        self.disk.sync_directory()
    }

    /// Leaves room for a checkpoint: without one, what is cancelled later would not make room in the log.
    fn check_room(&self, bytes: u64) -> io::Result<()> {
        let wanted = bytes.saturating_add(self.checkpoint_reserve.load(Ordering::Relaxed));
        match self.disk.free_bytes()? {
            Some(free) if free < wanted => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }

    fn in_flight(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnFiles {
    /// The engine knows from here on which of these files are needed.
    pub(crate) fn adopt(mut self) -> Vec<u64> {
        self.land();
        std::mem::take(&mut self.files)
    }

    fn land(&self) {
        let mut in_flight = self.of.in_flight();
        in_flight.retain(|file| !self.files.contains(file));
    }
}

impl Drop for OwnFiles {
    fn drop(&mut self) {
        for file in &self.files {
            // If it cannot be removed now, the next opening does it.
            let _ = self.of.disk.remove(&payloads::name_of(*file));
        }
        self.land();
    }
}

/// A batch to be written, and where it goes then.
struct Order {
    batch: Vec<Call>,
    slot: Sender<Result<(Vec<Call>, OwnFiles), Trouble>>,
}

/// The thread that writes large payloads. It starts with the first of them.
pub(crate) struct LargeWriter {
    large: Arc<LargePayloads>,
    thread: OnceLock<Option<(Sender<Order>, JoinHandle<()>)>>,
}

impl LargeWriter {
    pub(crate) fn new(large: Arc<LargePayloads>) -> LargeWriter {
        LargeWriter { large, thread: OnceLock::new() }
    }

    /// Whether a batch has to be written first.
    pub(crate) fn is_for(&self, batch: &[Call]) -> bool {
        self.large.has_large(batch)
    }

    /// Has the large payloads of a batch written, and hands it back.
    pub(crate) async fn write(&self, batch: Vec<Call>) -> Result<(Vec<Call>, OwnFiles), Trouble> {
        let (slot, written) = flume::bounded(1);
        let order = Order { batch, slot };
        match self.thread.get_or_init(|| start(self.large.clone())) {
            Some((orders, _)) => orders.send_async(order).await.map_err(|_| Trouble::Gone)?,
            // Without another thread it is this one.
            None => order.carry_out(&self.large),
        }
        written.recv_async().await.unwrap_or(Err(Trouble::Gone))
    }
}

impl Drop for LargeWriter {
    fn drop(&mut self) {
        if let Some(Some((orders, thread))) = self.thread.take() {
            drop(orders);
            // If it panicked it said so, and its callers were told.
            let _ = thread.join();
        }
    }
}

fn start(large: Arc<LargePayloads>) -> Option<(Sender<Order>, JoinHandle<()>)> {
    let (orders, inbox): (_, Receiver<Order>) = flume::bounded(ORDERS_MAX);
    let run = move || inbox.iter().for_each(|order| order.carry_out(&large));
    let thread = std::thread::Builder::new().name("geartrain-large".into()).spawn(run).ok()?;
    Some((orders, thread))
}

impl Order {
    fn carry_out(self, large: &Arc<LargePayloads>) {
        let Order { mut batch, slot } = self;
        let written = large.write(&mut batch);
        // If the caller has gone, its files go with the batch.
        let _ = slot.send(written.map(|files| (batch, files)));
    }
}
