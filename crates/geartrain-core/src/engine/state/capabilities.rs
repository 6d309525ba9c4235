//! Capabilities that workers announced: lookups.

use std::sync::Arc;

use super::{NONE, State};
use crate::engine::delta::NameId;
use crate::{Capability, Seconds, Timestamp};

impl State {
    /// How many workers are capable of a klass of a queue.
    pub(crate) fn capable_workers(&self, queue: NameId, klass: Option<NameId>) -> usize {
        let any = self.capable_workers.get(&(queue, NONE));
        match (any, klass.and_then(|klass| self.capable_workers.get(&(queue, klass)))) {
            (Some(any), Some(those)) => any.len() + those.difference(any).count(),
            (some, None) | (None, some) => some.map_or(0, |some| some.len()),
        }
    }

    /// How many workers have any capability in a queue.
    pub(crate) fn workers_capable_in_queue(&self, queue: NameId) -> usize {
        let workers = self.capable_workers.range((queue, 0)..=(queue, NONE)).flat_map(|(_, workers)| workers);
        workers.collect::<std::collections::BTreeSet<_>>().len()
    }

    /// The longest attempt that a worker announced for a klass.
    pub(crate) fn attempt_max(&self, worker: NameId, queue: NameId, klass: NameId) -> Option<Seconds> {
        let capabilities = &self.workers[worker].capabilities;
        if capabilities.is_empty() {
            return None;
        }
        capabilities.get(&(queue, klass)).or_else(|| capabilities.get(&(queue, NONE))).copied().flatten()
    }

    /// How often capabilities changed.
    pub(crate) fn capability_changes(&self) -> u64 {
        self.capability_changes
    }

    /// A worker's capabilities, sorted.
    pub(crate) fn capabilities(&self, worker: NameId) -> Vec<Capability> {
        let capability = |(&(queue, klass), &attempt_max): (&(u32, u32), &Option<Seconds>)| Capability {
            queue: self.queue_name(queue),
            klass: (klass != NONE).then(|| self.klass(klass)),
            attempt_max,
        };
        let mut capabilities: Vec<Capability> =
            self.workers[worker].capabilities.iter().map(capability).collect();
        capabilities.sort_unstable();
        capabilities
    }

    pub(crate) fn workers_with_capabilities(&self) -> impl Iterator<Item = NameId> {
        self.by_last_seen.iter().map(|(_, _, worker)| *worker)
    }

    /// The worker with capabilities that was silent the longest, and when it was last seen.
    pub(crate) fn most_silent(&self) -> Option<(Timestamp, NameId)> {
        self.by_last_seen.first().map(|(seen, _, worker)| (*seen, *worker))
    }

    /// A worker's key in `by_last_seen`.
    pub(super) fn last_seen_key(&self, worker: NameId) -> (Timestamp, Arc<str>, NameId) {
        (self.workers[worker].seen.unwrap_or_default(), self.workers.name(worker).clone(), worker)
    }

    pub(super) fn check_capabilities(&self) -> Result<(), String> {
        let mut announced = 0;
        for (number, name, worker) in self.workers.iter() {
            announced += worker.capabilities.len();
            let known = worker.capabilities.keys().all(|capability| {
                self.capable_workers.get(capability).is_some_and(|workers| workers.contains(&number))
            });
            let last_seen_key = self.by_last_seen.contains(&self.last_seen_key(number));
            if !known || last_seen_key == worker.capabilities.is_empty() {
                return Err(format!("capabilities of worker {name} are not indexed"));
            }
        }
        let counted: usize = self.capable_workers.values().map(|workers| workers.len()).sum();
        if counted == announced {
            Ok(())
        } else {
            Err("more capabilities are indexed than were announced".into())
        }
    }
}
