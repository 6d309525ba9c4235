//! How the store keeps what it is given.

use std::time::Duration;

use geartrain_core::LARGE_PAYLOAD_BYTES;

use crate::log::LogOptions;

/// When what was written is forced to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// Before it is acknowledged: nothing acknowledged is lost, not even in a power cut.
    #[default]
    Always,
    /// So often: what the process did survives its own end, and a power cut loses no more than this.
    Every(Duration),
    /// When the operating system likes: survives the end of the process, and a power cut may lose anything.
    Never,
}

/// How the store keeps what it is given.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// When what was written is forced to the disk.
    pub sync: SyncMode,
    /// How the log uses the disk.
    pub log: LogOptions,
    /// A checkpoint is not worth it before so much was written.
    pub checkpoint_bytes_min: u64,
    /// How many bytes of payloads stay in memory. What is more is written to files of their own, and read again when somebody asks for it. Payloads of
    /// running and of recurring jobs stay in memory even so.
    pub payload_memory: u64,
    /// How much memory the process may use, if that is limited, as by a [control group](crate::memory_limit).
    /// Then payloads get a quarter of it at the most: the rest is for jobs, buffers and what is under way.
    pub memory_limit: Option<u64>,
    /// Payloads of fewer bytes stay in memory: to know where another one is takes 24 bytes and more.
    pub spill_bytes_min: u32,
    /// How long such a file becomes. A payload that is longer gets one of its own.
    pub payload_file_bytes: u64,
    /// Payloads of so many bytes, or more, are written to a file of their own before they are committed, so
    /// that commits of other clients do not wait for them. The file costs a sync of its own and one of the
    /// directory. If it is less than [`LARGE_PAYLOAD_BYTES`], later batches may overtake a put that
    /// front-ends do not wait for.
    pub own_file_bytes_min: usize,
    /// How many events are kept at the most, in memory and in checkpoints, for somebody who is to have every one of them, until
    /// [they have](geartrain_core::Backend::let_events_go); 0 if there is nobody.
    pub events_held_max: usize,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            sync: SyncMode::default(),
            log: LogOptions::default(),
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
    /// How many bytes of payloads stay in memory, within the limit of the process.
    pub(crate) fn payload_memory_within_limit(&self) -> u64 {
        self.memory_limit.map_or(self.payload_memory, |limit| self.payload_memory.min(limit / 4))
    }
}
