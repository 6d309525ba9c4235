//! How the store keeps what it is given.

use std::time::Duration;

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
    /// Payloads of fewer bytes stay in memory: to know where another one is takes 24 bytes and more.
    pub spill_bytes_min: u32,
    /// How long such a file becomes. A payload that is longer gets one of its own.
    pub payload_file_bytes: u64,
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
            spill_bytes_min: 256,
            payload_file_bytes: 64 << 20,
            events_held_max: 0,
        }
    }
}
