//! Tick: housekeeping that only the passing of time makes necessary.

use crate::{Count, Timestamp};

/// Ends attempts that take too long, fails jobs that were not started in time, drops results that are old, and no longer counts what silent workers announced.
/// To send it twice, or from several places, does no harm.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tick {
    /// How much to do at most.
    pub count: Count,
}

/// What a tick did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TickReply {
    /// How much.
    pub done: u64,
    /// When there will be more to do, as far as is known now; that may be at once.
    pub next: Option<Timestamp>,
}
