//! What filters ask of a job, and the indexes in which they find candidates.

use super::history::{self, Mark};
use super::{BlobRef, Flags, NONE, RowId, RowState, State};
use crate::{Group, Payload, Selected, Tag, Timestamp};

impl State {
    /// The number of rows, free ones included.
    pub(crate) fn rows_used(&self) -> RowId {
        self.rows.used()
    }

    /// When a job was first put: the time of its first history entry.
    pub(crate) fn first_put(&self, at: RowId) -> Timestamp {
        let row = &self.rows[at];
        if row.history == BlobRef::NONE {
            return row.time.floor();
        }
        history::read(&self.blobs, row.history).next().map_or(row.time.floor(), |(when, _)| when)
    }

    /// The queue that a job is in, or was in last as far as its history says.
    pub(crate) fn last_queue(&self, at: RowId) -> Option<u32> {
        let row = &self.rows[at];
        if row.queue != NONE {
            return Some(row.queue);
        }
        let puts = history::read(&self.blobs, row.history).filter_map(|(_, mark)| match mark {
            Mark::Put { queue } => Some(queue),
            _ => None,
        });
        puts.last()
    }

    /// Attempts since the last put: those that cost a retry, and the one that runs or that a worker failed.
    pub(crate) fn attempts(&self, at: RowId) -> u32 {
        let row = &self.rows[at];
        let used = u32::try_from(i64::from(row.retries) - i64::from(row.remaining)).unwrap_or(0);
        let is_one_more = match row.state {
            RowState::Running => true,
            RowState::Failed => self.failure_ids(at).is_some_and(|(_, worker)| worker != NONE),
            _ => false,
        };
        used + u32::from(is_one_more)
    }

    /// The group and the worker of the current failure of a failed job, or of a past one.
    fn failure_ids(&self, at: RowId) -> Option<(u32, u32)> {
        self.cold(at)?.failure.as_ref().map(|failure| (failure.group, failure.worker))
    }

    /// The group of a failed job.
    pub(crate) fn failed_group(&self, at: RowId) -> Option<u32> {
        let is_failed = self.rows[at].state == RowState::Failed;
        self.failure_ids(at).filter(|_| is_failed).map(|(group, _)| group)
    }

    pub(crate) fn has_tag(&self, at: RowId, tag: &Tag) -> bool {
        self.cold(at).is_some_and(|cold| cold.tags.iter().any(|tagging| tagging.tag == *tag))
    }

    /// Whether a job is running and in the list of this worker.
    pub(crate) fn is_listed_by(&self, at: RowId, worker: u32) -> bool {
        let row = &self.rows[at];
        row.state == RowState::Running && row.worker == worker && row.flags.has(Flags::LISTED)
    }

    pub(crate) fn is_stalled(&self, at: RowId, now: Timestamp) -> bool {
        let row = &self.rows[at];
        row.state == RowState::Running && row.score <= now
    }

    /// The payload of a job, or its location.
    pub(crate) fn payload_of(&self, at: RowId) -> Payload {
        let row = &self.rows[at];
        self.blobs.payload(row.payload, row.payload_bytes)
    }

    pub(crate) fn selected(&self, at: RowId, now: Timestamp) -> Selected {
        let row = &self.rows[at];
        let worker = if row.state == RowState::Running { row.worker } else { NONE };
        Selected {
            jid: self.rows.jid(at),
            queue: self.last_queue(at).map(|queue| self.queue_name(queue)),
            klass: self.klass(row.klass),
            state: row.state.name(),
            stalled: self.is_stalled(at, now),
            priority: row.priority,
            put: self.first_put(at),
            attempts: self.attempts(at),
            worker: self.worker_name(worker),
            group: self.failed_group(at).map(|group| Group::from_checked(self.groups.name(group).clone())),
        }
    }

    /// The jobs of a group, or `None` if there are more than `max`. The same for the following.
    pub(crate) fn rows_of_group(&self, group: u32, max: usize) -> Option<Vec<RowId>> {
        let jobs = &self.groups[group];
        (jobs.len() <= max).then(|| jobs.slice(0..max).into_iter().map(|(_, row)| row).collect())
    }

    pub(crate) fn rows_of_tag(&self, tag: &Tag, max: usize) -> Option<Vec<RowId>> {
        let Some(jobs) = self.tagged(tag) else { return Some(Vec::new()) };
        (jobs.len() <= max).then(|| jobs.slice(0..max).into_iter().map(|entry| entry.row).collect())
    }

    pub(crate) fn rows_of_worker(&self, worker: u32, max: usize) -> Option<Vec<RowId>> {
        let jobs = &self.workers[worker].jobs;
        (jobs.len() <= max).then(|| jobs.slice(0..max).into_iter().map(|entry| entry.row).collect())
    }

    /// The jobs in a state: of a queue, or of all if there are not too many queues. Failed and complete jobs
    /// are indexed without their queues.
    pub(crate) fn rows_in_state(
        &self,
        state: RowState,
        queue: Option<u32>,
        max: usize,
    ) -> Option<Vec<RowId>> {
        let mut rows = Vec::new();
        match state {
            RowState::Complete => {
                if self.complete.len() > max {
                    return None;
                }
                rows.extend(self.complete.slice(0..max).into_iter().map(|entry| entry.row));
            }
            RowState::Failed => {
                for (place, (_, _, group)) in self.groups.iter().enumerate() {
                    if place >= max || rows.len() + group.len() > max {
                        return None;
                    }
                    rows.extend(group.slice(0..max).into_iter().map(|(_, row)| row));
                }
            }
            RowState::Free => {}
            RowState::Scheduled | RowState::Depends | RowState::Waiting | RowState::Running => {
                let mut add = |number: u32| {
                    let of = &self.queues[number];
                    let timed = match state {
                        RowState::Scheduled => &of.scheduled,
                        RowState::Depends => &of.depends,
                        RowState::Running => &of.locks,
                        _ => {
                            if rows.len() + of.work.len() > max {
                                return false;
                            }
                            rows.extend(of.work.slice(0..max).into_iter().map(|entry| entry.row));
                            return true;
                        }
                    };
                    if rows.len() + timed.len() > max {
                        return false;
                    }
                    rows.extend(timed.slice(0..max).into_iter().map(|entry| entry.row));
                    true
                };
                let is_whole = match queue {
                    Some(queue) => add(queue),
                    None => {
                        self.queues.iter().enumerate().all(|(place, (number, ..))| place < max && add(number))
                    }
                };
                if !is_whole {
                    return None;
                }
            }
        }
        Some(rows)
    }
}
