//! Tick: housekeeping that only the passing of time makes necessary. And flush, which removes everything.

use crate::{Count, Timestamp};

/// Housekeeping: ends attempts past their `attempt_max`, fails jobs that did not start before `expires`,
/// drops expired results, the capabilities of silent workers, and complete jobs older than `jobs-history`.
/// Idempotent, so several processes may send it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tick {
    /// How many items to process at most.
    pub count: Count,
}

/// Removes jobs, recurring jobs, results, tags, options, limits, statistics, workers and queues, whatever
/// their state: after the last part the queue system is as new, but for fencing tokens, event positions and
/// [allocated ids](crate::AllocateIds), which go on. Clients that wait for a removed job are told that it was
/// cancelled; no event is published.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Flush {
    /// How many items to remove at most; at least 1. A Redis removes everything at once.
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
