//! What is left of a cancelled job, as JSON.

use geartrain_core::Tombstone;
use schemars::JsonSchema;
use serde::Serialize;

use crate::number::Number;

/// What is left of a cancelled job.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TombstoneView {
    jid: String,
    state: &'static str,
    queue: String,
    klass: String,
    was: &'static str,
    when: Number,
    by: Option<String>,
    because: Option<String>,
}

impl TombstoneView {
    /// Of a tombstone.
    pub fn new(of: &Tombstone) -> TombstoneView {
        TombstoneView {
            jid: of.jid.to_string(),
            state: "cancelled",
            queue: of.queue.to_string(),
            klass: of.klass.to_string(),
            was: of.state.as_str(),
            when: of.when.into(),
            by: of.by.clone(),
            because: of.because.clone(),
        }
    }
}
