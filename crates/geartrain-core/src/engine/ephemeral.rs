//! Ephemeral jobs live only while a client waits and leave nothing, so their deltas need not be durable.

use super::{Engine, RowId, state};
use crate::{Command, Jid, PutOptions, Timestamp};

impl Engine {
    /// Whether a command concerns only ephemeral jobs, or only reads a job. May return false for such a
    /// command.
    pub fn is_ephemeral_command(&self, now: Timestamp, command: &Command) -> bool {
        let is_ephemeral = |jid: &Jid| self.state.find(jid).is_some_and(|row| self.is_ephemeral(row));
        // What earlier commands left may concern any job.
        if self.state.is_any_behind_failed() {
            return false;
        }
        match command {
            Command::Put(put) => {
                put.options.as_deref().is_some_and(PutOptions::are_ephemeral) && put.depends.is_empty()
            }
            Command::Pop(pop) => {
                let [queue] = &pop.queues[..] else { return false };
                let Some(queue) = self.state.find_queue(queue.as_str()) else { return false };
                let queue = self.state.queue(queue);
                let is_due = |entries: &state::OrderStatTree<state::DueKey>| {
                    entries.first().is_some_and(|first| first.at <= now)
                };
                let is_quiet = ![&queue.locks, &queue.scheduled, &queue.recurring].into_iter().any(is_due);
                let next = queue.work.slice(0..pop.count.get());
                // Restricted to klasses, it may hand out others than the first jobs.
                is_quiet && next.iter().all(|work| self.is_ephemeral(work.row)) && !self.is_restricted(pop)
            }
            Command::Complete(complete) => is_ephemeral(&complete.jid),
            Command::Fail(fail) => is_ephemeral(&fail.jid),
            Command::Progress(progress) => is_ephemeral(&progress.jid),
            Command::Heartbeat(beat) => is_ephemeral(&beat.jid),
            Command::Chunk(_) | Command::Status(_) | Command::Get(_) => true,
            _ => false,
        }
    }

    /// Whether a job is ephemeral: it lives only while a client waits and leaves nothing, so a crash removes
    /// it anyway.
    pub(super) fn is_ephemeral(&self, row: RowId) -> bool {
        self.state.extension(row).is_some_and(|extension| extension.options.are_ephemeral())
            && self.state.dependents(row).next().is_none()
    }
}
