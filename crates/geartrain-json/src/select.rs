//! Jobs that a filter selects, as JSON.

use geartrain_core::{ActReply, Jid, REFUSALS_MAX, Refusal, Selected};
use schemars::JsonSchema;
use serde::Serialize;

use crate::OperationError;
use crate::number::Number;

/// A job that a filter selects.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SelectedView {
    jid: String,
    queue: Option<String>,
    klass: String,
    state: &'static str,
    stalled: bool,
    priority: Number,
    put: Number,
    attempts: u32,
    worker: Option<String>,
    group: Option<String>,
}

impl SelectedView {
    /// Of a selected job.
    pub fn new(job: &Selected) -> SelectedView {
        SelectedView {
            jid: job.jid.to_string(),
            queue: job.queue.as_ref().map(ToString::to_string),
            klass: job.klass.to_string(),
            state: job.state.as_str(),
            stalled: job.stalled,
            priority: Number(job.priority.get()),
            put: job.put.into(),
            attempts: job.attempts,
            worker: job.worker.as_ref().map(ToString::to_string),
            group: job.group.as_ref().map(ToString::to_string),
        }
    }
}

/// The jobs that a change would concern: how many, and some of them.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PreviewView {
    /// How many.
    pub matching: u64,
    /// Some of them.
    pub samples: Vec<SelectedView>,
}

/// What a change of many jobs did.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BulkView {
    #[serde(flatten)]
    preview: PreviewView,
    /// Jobs that were changed.
    acted: u64,
    /// Selected jobs that stay as they are.
    unchanged: u64,
    /// Selected jobs for which the change was refused.
    refused: u64,
    /// Jobs that were no longer selected when they were to be changed.
    changed: u64,
    /// The first that were refused.
    refusals: Vec<RefusalView>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RefusalView {
    jid: String,
    code: &'static str,
    why: String,
}

/// What a change of many jobs did in all steps.
#[derive(Debug, Default)]
pub struct BulkSum {
    /// Jobs that were changed.
    pub acted: u64,
    /// Selected jobs that stay as they are.
    pub unchanged: u64,
    /// Selected jobs for which the change was refused.
    pub refused: u64,
    /// The first of these.
    pub refusals: Vec<(Jid, Refusal)>,
}

impl BulkSum {
    /// Adds a step.
    pub fn add(&mut self, step: ActReply) {
        self.acted += step.acted;
        self.unchanged += step.unchanged;
        self.refused += step.refused;
        self.refusals.extend(step.refusals);
        self.refusals.truncate(REFUSALS_MAX);
    }

    /// How many jobs were no longer selected when they were to be changed.
    pub fn changed(&self, matching: u64) -> u64 {
        matching.saturating_sub(self.acted + self.unchanged + self.refused)
    }

    /// The sum as a document, with the count and the samples of the preview.
    pub fn document(&self, matching: u64, samples: Vec<SelectedView>) -> BulkView {
        let refusal = |(jid, why): &(Jid, Refusal)| RefusalView {
            jid: jid.to_string(),
            code: why.code(),
            why: why.to_string(),
        };
        BulkView {
            preview: PreviewView { matching, samples },
            acted: self.acted,
            unchanged: self.unchanged,
            refused: self.refused,
            changed: self.changed(matching),
            refusals: self.refusals.iter().map(refusal).collect(),
        }
    }
}

/// The refusal of a filter that compares payloads, of which some are not JSON.
pub fn not_json(jobs: u64) -> OperationError {
    let (noun, them) = if jobs == 1 { ("job", "it") } else { ("jobs", "these") };
    OperationError::new(
        "not-json",
        format!(
            "the filter compares payloads as JSON, and that of {jobs} {noun} is not JSON; add a klass or a queue to the \
             filter that leaves {them} out"
        ),
    )
}
