//! What a transfer did, and which jobs it left.

use std::collections::BTreeMap;

use geartrain_core::{Jid, Job, QueueName};

/// What a transfer did.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Jobs that arrived; in a dry run, those that would be moved.
    pub moved: u64,
    /// The same by the state that they had.
    pub by_state: BTreeMap<&'static str, u64>,
    /// How many of these an earlier transfer had set aside.
    pub resumed: u64,
    /// Recurring jobs that arrived.
    pub recurring: u64,
    /// Jobs that an abort put back.
    pub returned: u64,
    /// Jobs that are running, which stay.
    pub running: u64,
    /// Jobs that stay because a Gearman server has not handed them out: they are not due, or came in meanwhile.
    pub not_handed_out: u64,
    /// Jobs that could not be moved.
    pub stay: Vec<Stay>,
    /// What is true of all jobs of this source.
    pub notes: Vec<&'static str>,
}

/// A job that could not be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stay {
    /// The job.
    pub jid: Jid,
    /// Its queue.
    pub queue: Option<QueueName>,
    /// Why.
    pub why: String,
}

impl Report {
    pub(super) fn moved(&mut self, job: &Job) {
        self.moved += 1;
        *self.by_state.entry(job.state.name().as_str()).or_default() += 1;
    }

    pub(super) fn would_move(&mut self, job: &Job) {
        self.moved(job);
    }

    pub(super) fn stay(&mut self, job: &Job, why: &str) {
        self.stay.push(Stay { jid: job.jid.clone(), queue: job.queue.clone(), why: why.to_owned() });
    }

    pub(super) fn stay_as(&mut self, jid: &Jid, queue: &QueueName, why: &str) {
        self.stay.push(Stay { jid: jid.clone(), queue: Some(queue.clone()), why: why.to_owned() });
    }
}
