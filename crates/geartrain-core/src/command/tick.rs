//! Tick: housekeeping that only the passing of time makes necessary.

use crate::{Count, Timestamp};

/// Housekeeping: ends attempts past their `attempt_max`, fails jobs that did not start before `expires`,
/// drops expired results, and drops the capabilities of silent workers. Idempotent, so several processes may
/// send it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tick {
    /// How many items to process at most.
    pub count: Count,
}

/// The outcome of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TickReply {
    /// How many items were processed.
    pub done: u64,
    /// When the next item is due, as far as known now; possibly in the past.
    pub next: Option<Timestamp>,
}
