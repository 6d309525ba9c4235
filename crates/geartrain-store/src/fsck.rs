//! Fsck: verifies a data directory without opening it, and finds the payloads that cannot be read.

use std::io;
use std::path::Path;

use geartrain_core::engine::{Effects, Engine, Limits, MemoryReport};
use geartrain_core::{Clock, Jid, SpillLocation, SystemClock};

use crate::checkpoint::{Checkpoint, position_in};
use crate::recovery::{OpenError, Recovered, Store};
use crate::spill::files::{self, PayloadReader, UnreadablePayload};
use crate::wal::{Disk as _, Extent, RealDisk, TornTail, segment_number};

/// The contents of a data directory that is sound.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Bytes of the checkpoint that was read; 0 if there is none.
    pub checkpoint_bytes: u64,
    /// Segments of the log.
    pub log_segments: u64,
    /// Their length together.
    pub log_bytes: u64,
    /// Changes read from the log, because they were written after the checkpoint.
    pub changes: u64,
    /// Files that hold spilled payloads.
    pub payload_files: u64,
    /// Their length together.
    pub payload_file_bytes: u64,
    /// Damaged checkpoints, with file and offset. Nothing is lost with them: there is another one, and the
    /// log behind it.
    pub damaged_checkpoints: Vec<String>,
    /// The torn tail of the log, which opening cuts off; `None` if there is none.
    pub torn_tail: Option<TornTail>,
    /// Jobs, queues and their memory.
    pub memory: MemoryReport,
}

/// Verifies a data directory that no process uses: every checksum, that every job is in exactly one place,
/// and that every index agrees with the jobs. Nothing in it is changed.
pub fn check(directory: &Path) -> Result<Report, OpenError> {
    Store::read_only(directory, Limits::default())?.check()
}

/// Whether a directory has a log, and so is a data directory or a copy of one.
pub fn is_data_directory(directory: &Path) -> io::Result<bool> {
    let files = RealDisk::read_only(directory)?.list()?;
    Ok(files.iter().any(|(name, _)| segment_number(name).is_some()))
}

/// Verifies a copy of a data directory, such as a backup, like [`check`]. Takes no lock, so that a copy on a
/// file system that is mounted for reading only can be verified; no process may use the copy meanwhile.
pub fn check_copy(directory: &Path) -> Result<Report, OpenError> {
    let store = Store::read_only_copy(directory, Limits::default())?;
    if !is_data_directory(directory)? {
        return Err(OpenError::NoLog { directory: directory.to_owned() });
    }
    store.check()
}

impl Store {
    fn check(&self) -> Result<Report, OpenError> {
        let disk = self.disk();
        let Recovered { engine, wal, from, checkpoint_bytes, changes, damaged, .. } =
            self.load(|from, replay| self.survey(from, replay))?;
        let mut damaged_checkpoints: Vec<String> =
            damaged.into_iter().map(|(_, error)| error.to_string()).collect();
        let checkpoints = self.checkpoints();
        for (name, bytes) in checkpoints.names()? {
            // Loading does not read the previous checkpoint.
            if position_in(&name).is_some_and(|position| position < from)
                && let Err(error) = checkpoints.open(&name, bytes).and_then(Checkpoint::verify)
            {
                damaged_checkpoints.push(error.to_string());
            }
        }
        let Extent { segments, bytes, torn_tail, .. } = wal;
        if let Some((_, unreadable)) = self.unreadable(&engine).next() {
            return Err(unreadable.into());
        }
        let payload_files = files::files_on(&*disk)?;
        match engine.check() {
            Ok(()) => Ok(Report {
                checkpoint_bytes,
                log_segments: segments,
                log_bytes: bytes,
                changes,
                payload_files: payload_files.len() as u64,
                payload_file_bytes: payload_files.values().sum(),
                damaged_checkpoints,
                torn_tail,
                memory: engine.memory_report(),
            }),
            Err(wrong) => Err(OpenError::Unsound { wrong }),
        }
    }

    /// The jobs whose payloads cannot be read, each with the reason.
    fn unreadable(&self, engine: &Engine) -> impl Iterator<Item = (Jid, UnreadablePayload)> {
        let mut reader = PayloadReader::new(self.disk());
        // Sorted, so that each file is read front to back.
        let mut locations: Vec<(SpillLocation, Jid)> =
            engine.spilled_payloads().map(|(jid, location)| (location, jid)).collect();
        locations.sort_unstable();
        locations.into_iter().filter_map(move |(location, jid)| Some((jid, reader.read(location).err()?)))
    }

    /// How many payloads cannot be read without the newest `skipped` checkpoints.
    pub(crate) fn unreadable_skipping(&self, skipped: usize) -> Result<usize, OpenError> {
        let Recovered { engine, .. } =
            self.load_skipping(skipped, |from, replay| self.survey(from, replay))?;
        Ok(self.unreadable(&engine).count())
    }

    /// Removes the jobs whose payloads cannot be read for good. Returns their jids, each with the reason.
    pub(crate) fn abandon_unreadable(&self) -> Result<Vec<String>, OpenError> {
        let Recovered { mut engine, .. } = self.load(|from, replay| self.survey(from, replay))?;
        let unreadable: Vec<(Jid, UnreadablePayload)> = self.unreadable(&engine).collect();
        let mut effects = Effects::in_bytes();
        let now = SystemClock.now();
        unreadable.iter().for_each(|(jid, _)| engine.abandon(now, jid, &mut effects));
        let body = effects.take_written().bytes;
        if !body.is_empty() {
            let Recovered { mut wal, .. } = self.load(|from, replay| self.open_wal(from, replay))?;
            wal.append(&body)?;
            wal.close()?;
        }
        Ok(unreadable.into_iter().map(|(jid, why)| format!("job {jid}: {why}")).collect())
    }
}

impl From<UnreadablePayload> for OpenError {
    fn from(why: UnreadablePayload) -> OpenError {
        OpenError::Payload { why: why.to_string() }
    }
}
