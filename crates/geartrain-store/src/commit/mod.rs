//! Group commit: how the effects of executed commands become durable before their replies go out.
//!
//! [`pipeline`] is the engine's side: it turns effects into commit groups, holds the reservation and takes
//! snapshots. [`queue`] hands the groups to the committer thread, or commits inline when nothing is pending.
//! [`committer`] appends several groups to the write-ahead log, syncs once for all of them, and publishes.

pub(crate) mod committer;
pub(crate) mod pipeline;
pub(crate) mod queue;
