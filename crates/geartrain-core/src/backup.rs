//! Backups: copies of what a backend stores, made while it is in use.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Pending;

/// Where a backup goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupTarget {
    /// A directory on the machine of the backend, which must be empty or missing. The backend writes it.
    Directory(PathBuf),
    /// The caller, as a tar archive in [chunks](BackupStep::Chunk).
    Archive,
}

/// A backup that is being made. Dropping it cancels it.
pub trait Backup: Send {
    /// Waits for the next step. After [`BackupStep::Done`] or an error there is none. Dropping the future
    /// loses no step.
    fn next(&mut self) -> Pending<'_, BackupStep>;
}

/// What a backup has done since the last step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum BackupStep {
    /// Some more was copied.
    Copied {
        /// Bytes copied so far.
        bytes: u64,
        /// Bytes to copy, as estimated at the start.
        bytes_expected: u64,
    },
    /// The next bytes of the archive.
    #[serde(skip)]
    Chunk(Vec<u8>),
    /// The copy is complete, and durable if it is a directory.
    Done(BackupSummary),
}

/// The contents of a backup.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BackupSummary {
    /// The absolute path of the directory, on the machine of the backend; `None` for an archive.
    pub directory: Option<String>,
    /// Jobs in the queue when the backup began.
    pub jobs: u64,
    /// The segment of the log in which the copy ends.
    pub log_segment: u64,
    /// The byte of that segment up to which the log is copied.
    pub log_offset: u64,
    /// Bytes of the checkpoint; 0 if there is none.
    pub checkpoint_bytes: u64,
    /// Segments of the log.
    pub log_segments: u64,
    /// Their length together.
    pub log_bytes: u64,
    /// Files that hold spilled or large payloads.
    pub payload_files: u64,
    /// Their length together.
    pub payload_file_bytes: u64,
    /// How long the backup took.
    pub seconds: f64,
}

impl BackupSummary {
    /// Bytes copied in all.
    pub fn bytes(&self) -> u64 {
        self.checkpoint_bytes + self.log_bytes + self.payload_file_bytes
    }
}
