//! What operations that change something answer.

use schemars::JsonSchema;
use serde::Serialize;

use crate::number::Number;
use crate::{CapabilityView, ProgressView};

/// A put job, or a recurring one.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PutView {
    /// Null in a queue of Worqr.
    pub(crate) jid: Option<String>,
    /// `created`, `existing`, `replaced`, `recurring`, `named`, `unnamed` or `coalesced`.
    pub(crate) outcome: &'static str,
    /// Whether the put joined an earlier job with the same unique key.
    pub(crate) coalesced: bool,
    /// When it is due, if that is later.
    pub(crate) due: Option<Number>,
}

/// The new expiry of a lock.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HeartbeatView {
    pub(crate) jid: String,
    pub(crate) expires: Number,
}

/// The progress that was reported.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProgressReplyView {
    pub(crate) jid: String,
    pub(crate) progress: ProgressView,
}

/// How many clients received a chunk.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChunkView {
    pub(crate) jid: String,
    pub(crate) told: u64,
}

/// Where a job is after its worker completed it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CompleteView {
    pub(crate) jid: String,
    pub(crate) state: &'static str,
    /// Null if it is complete.
    pub(crate) queue: Option<String>,
}

/// A job that its worker failed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FailView {
    pub(crate) jid: String,
    pub(crate) state: &'static str,
    pub(crate) group: String,
}

/// A job that its worker retried.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RetryView {
    pub(crate) jid: String,
    /// How many retries are left; below 0, none was left.
    pub(crate) remaining: i64,
    /// Whether the job failed because no retry was left.
    pub(crate) failed: bool,
}

/// One job.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct JidView {
    pub(crate) jid: String,
}

/// Several jobs.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct JidsView {
    pub(crate) jids: Vec<String>,
}

/// How many jobs were cancelled.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CancelView {
    pub(crate) cancelled: u64,
}

/// A job that was put again.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RequeueView {
    pub(crate) jid: String,
    pub(crate) queue: String,
    pub(crate) outcome: &'static str,
}

/// The priority of a job.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PriorityView {
    pub(crate) jid: String,
    pub(crate) priority: Number,
}

/// The tags of a job.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TagsView {
    pub(crate) jid: String,
    pub(crate) tags: Vec<String>,
}

/// Whether a job is tracked.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TrackView {
    pub(crate) jid: String,
    pub(crate) tracked: bool,
    pub(crate) changed: bool,
}

/// The dependencies of a job.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DependencyView {
    pub(crate) jid: String,
    pub(crate) state: &'static str,
    pub(crate) dependencies: Vec<String>,
}

/// Queues that were paused or resumed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PauseView {
    pub(crate) queues: Vec<String>,
    pub(crate) paused: bool,
}

/// Queues or workers that are off the lists.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ForgetView {
    pub(crate) forgotten: Vec<String>,
}

/// A failure group.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FailureGroupView {
    pub(crate) group: String,
    pub(crate) count: u64,
}

/// How many failed jobs were put again.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct UnfailView {
    pub(crate) group: String,
    pub(crate) moved: u64,
}

/// How many workers can run a job.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RollCallView {
    pub(crate) queue: String,
    pub(crate) klass: Option<String>,
    pub(crate) workers: u64,
}

/// The capabilities of a worker.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AnnounceView {
    pub(crate) worker: String,
    pub(crate) can: Vec<CapabilityView>,
}

/// The jobs that a lost worker held.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WorkerLostView {
    pub(crate) worker: String,
    pub(crate) jids: Vec<String>,
}

/// Recurring jobs that were removed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct UnrecurView {
    pub(crate) removed: Vec<String>,
}

/// The job of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunView {
    pub(crate) jid: String,
    pub(crate) outcome: &'static str,
}
