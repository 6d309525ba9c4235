//! Options: durability, checkpoints, spill and memory limits of a store.

use std::time::Duration;

use geartrain_core::LARGE_PAYLOAD_BYTES;

use crate::wal::WalOptions;

/// When the log is forced to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// Before a change is acknowledged: nothing acknowledged is lost, not even in a power cut.
    #[default]
    Always,
    /// At this interval: changes survive the end of the process, and a power cut loses at most this much
    /// time.
    Every(Duration),
    /// When the operating system likes: changes survive the end of the process, and a power cut may lose
    /// anything.
    Never,
}

impl std::fmt::Display for SyncMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SyncMode::Always => f.write_str("always"),
            SyncMode::Every(interval) => write!(f, "{}ms", interval.as_millis()),
            SyncMode::Never => f.write_str("never"),
        }
    }
}

/// How a store uses disk and memory.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// When the log is forced to the disk.
    pub sync: SyncMode,
    /// How the log uses the disk.
    pub wal: WalOptions,
    /// Log bytes before a checkpoint is worth taking.
    pub checkpoint_bytes_min: u64,
    /// Bytes of payloads in memory. More are spilled to files, and read back when a reply needs them.
    /// Payloads of running and of recurring jobs stay in memory regardless.
    pub payload_memory: u64,
    /// The memory limit of the process, if it has one, for example from a [control
    /// group](crate::memory_limit). Payloads then get a quarter of it at most: the rest is for jobs and
    /// buffers.
    pub memory_limit: Option<u64>,
    /// Payloads of fewer bytes are never spilled: the location of a spilled one takes at least 24 bytes.
    pub spill_bytes_min: u32,
    /// Length of a spill file. A longer payload gets a file of its own.
    pub payload_file_bytes: u64,
    /// Payloads of this many bytes or more are written to a file of their own before they are committed, so
    /// that commits of other clients do not wait for them. The file costs a sync of its own and one of the
    /// directory. If it is less than [`LARGE_PAYLOAD_BYTES`], later batches may overtake a put that
    /// front-ends do not wait for.
    pub own_file_bytes_min: usize,
    /// Events retained at most, in memory and in checkpoints, for the reliable consumer, until it
    /// [acknowledges](geartrain_core::Backend::ack_events) them; 0 if there is no such consumer.
    pub events_held_max: usize,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            sync: SyncMode::default(),
            wal: WalOptions::default(),
            checkpoint_bytes_min: 32 << 20,
            payload_memory: 1 << 30,
            memory_limit: None,
            spill_bytes_min: 256,
            payload_file_bytes: 64 << 20,
            own_file_bytes_min: LARGE_PAYLOAD_BYTES,
            events_held_max: 0,
        }
    }
}

impl StoreOptions {
    /// Bytes of payloads in memory, within the limit of the process.
    pub(crate) fn payload_memory_within_limit(&self) -> u64 {
        self.memory_limit.map_or(self.payload_memory, |limit| self.payload_memory.min(limit / 4))
    }
}
