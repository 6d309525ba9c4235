//! Tombstones: what is left of cancelled jobs for a while.

use crate::{Jid, Klass, QueueName, StateName, Timestamp};

/// The longest reason of a cancellation, in bytes.
pub const BECAUSE_BYTES_MAX: usize = 1_024;
/// The stored part of a caller's name, in bytes.
pub const CALLER_BYTES_MAX: usize = 512;

/// Looks up the tombstone of a cancelled job; none if there is such a job, or none is known.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Canceled {
    /// The id of the job.
    pub jid: Jid,
}

/// What is left of a cancelled job, for `canceled-history` seconds. The jid can be put anew, which removes it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Tombstone {
    /// The id of the job.
    pub jid: Jid,
    /// Its queue.
    pub queue: QueueName,
    /// Its klass.
    pub klass: Klass,
    /// Its state when it was cancelled.
    pub state: StateName,
    /// When it was cancelled.
    pub when: Timestamp,
    /// Who cancelled it, as far as the front-end knows; at most [`CALLER_BYTES_MAX`] bytes.
    pub by: Option<String>,
    /// Why, if the caller said.
    pub because: Option<String>,
}
