//! Workers and their capabilities as JSON.

use geartrain_core::{Capability, WorkerCounts};
use schemars::JsonSchema;
use serde::Serialize;

use crate::number::Number;

/// A worker: how many jobs it has, and its capabilities.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WorkerView {
    name: String,
    running: u64,
    stalled: u64,
    seen: Option<Number>,
    can: Vec<CapabilityView>,
}

impl WorkerView {
    /// Of a worker's counts and its announced capabilities.
    pub fn new(worker: &WorkerCounts, can: &[Capability]) -> WorkerView {
        WorkerView {
            name: worker.name.to_string(),
            running: worker.jobs,
            stalled: worker.stalled,
            seen: worker.seen.map(Number::from),
            can: can.iter().map(CapabilityView::new).collect(),
        }
    }
}

/// A capability of a worker.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CapabilityView {
    queue: String,
    klass: Option<String>,
    timeout: Option<Number>,
}

impl CapabilityView {
    /// Of a capability.
    pub fn new(capability: &Capability) -> CapabilityView {
        CapabilityView {
            queue: capability.queue.to_string(),
            klass: capability.klass.as_ref().map(ToString::to_string),
            timeout: capability.attempt_max.map(Number::from),
        }
    }
}
