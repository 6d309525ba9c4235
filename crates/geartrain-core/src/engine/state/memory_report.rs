//! Memory report: how many jobs and names the engine holds.

use super::{RowState, State};

/// Counts of what an engine holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryReport {
    /// Scheduled jobs.
    pub scheduled: u64,
    /// Jobs that depend on others.
    pub depends: u64,
    /// Jobs that are ready for a worker.
    pub waiting: u64,
    /// Jobs with a lock, expired locks included.
    pub running: u64,
    /// Complete jobs.
    pub complete: u64,
    /// Failed jobs.
    pub failed: u64,
    /// Listed queues.
    pub queues: u64,
    /// Recurring jobs.
    pub recurring: u64,
    /// Interned names: queues (unlisted ones included), klasses, workers and groups.
    pub names: u64,
    /// Approximate memory of the names and their data, statistics included, jobs not.
    pub name_bytes: u64,
}

impl MemoryReport {
    /// All jobs in any state. Recurring jobs are not counted.
    pub fn jobs(&self) -> u64 {
        self.scheduled + self.depends + self.waiting + self.running + self.complete + self.failed
    }
}

impl State {
    pub(crate) fn job_count(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Counts the rows, independently of the indexes.
    pub(crate) fn memory_report(&self) -> MemoryReport {
        let mut report = MemoryReport {
            queues: self.registered_queues().len() as u64,
            recurring: self.templates.len() as u64,
            names: self.name_count() as u64,
            name_bytes: self.name_bytes() as u64,
            ..MemoryReport::default()
        };
        for at in self.rows.ids() {
            let count = match self.rows[at].state {
                RowState::Free => continue,
                RowState::Scheduled => &mut report.scheduled,
                RowState::Depends => &mut report.depends,
                RowState::Waiting => &mut report.waiting,
                RowState::Running => &mut report.running,
                RowState::Complete => &mut report.complete,
                RowState::Failed => &mut report.failed,
            };
            *count += 1;
        }
        report
    }
}
