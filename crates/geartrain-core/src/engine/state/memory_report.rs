//! How much of everything there is.

use super::{RowState, State};

/// How much of everything an engine holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryReport {
    /// Jobs that wait for their time.
    pub scheduled: u64,
    /// Jobs that wait for others.
    pub depends: u64,
    /// Jobs that wait for a worker.
    pub waiting: u64,
    /// Jobs that a worker holds, or held when its lock expired.
    pub running: u64,
    /// Jobs that are done.
    pub complete: u64,
    /// Jobs that were set aside.
    pub failed: u64,
    /// Queues on the list.
    pub queues: u64,
    /// Recurring jobs.
    pub recurring: u64,
    /// Interned names: queues (those off the list included), klasses, workers and groups.
    pub names: u64,
    /// About how much memory the names take with what is kept for each, statistics included and jobs apart.
    pub name_bytes: u64,
}

impl MemoryReport {
    /// All jobs, wherever they stand. Recurring jobs are not jobs themselves.
    pub fn jobs(&self) -> u64 {
        self.scheduled + self.depends + self.waiting + self.running + self.complete + self.failed
    }
}

impl State {
    /// Counts the jobs one by one, so that it can be compared with what the indexes say.
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
