//! What workers have announced that they can do.

use std::sync::Arc;

use super::{NONE, State};
use crate::engine::delta::NameId;
use crate::{Capability, Seconds, Timestamp};

impl State {
    /// How many workers can do a klass of a queue.
    pub(crate) fn able(&self, queue: NameId, klass: Option<NameId>) -> usize {
        let any = self.able.get(&(queue, NONE));
        match (any, klass.and_then(|klass| self.able.get(&(queue, klass)))) {
            (Some(any), Some(those)) => any.len() + those.difference(any).count(),
            (some, None) | (None, some) => some.map_or(0, |some| some.len()),
        }
    }

    /// How many workers can do anything of a queue.
    pub(crate) fn able_at_all(&self, queue: NameId) -> usize {
        let workers = self.able.range((queue, 0)..=(queue, NONE)).flat_map(|(_, workers)| workers);
        workers.collect::<std::collections::BTreeSet<_>>().len()
    }

    /// How long a worker takes at the most for a job of a klass, as far as it said so.
    pub(crate) fn attempt_max(&self, worker: NameId, queue: NameId, klass: NameId) -> Option<Seconds> {
        let abilities = &self.workers[worker].abilities;
        if abilities.is_empty() {
            return None;
        }
        abilities.get(&(queue, klass)).or_else(|| abilities.get(&(queue, NONE))).copied().flatten()
    }

    /// What a worker can do, sorted.
    pub(crate) fn abilities(&self, worker: NameId) -> Vec<Capability> {
        let ability = |(&(queue, klass), &attempt_max): (&(u32, u32), &Option<Seconds>)| Capability {
            queue: self.queue_name(queue),
            klass: (klass != NONE).then(|| self.klass(klass)),
            attempt_max,
        };
        let mut abilities: Vec<Capability> = self.workers[worker].abilities.iter().map(ability).collect();
        abilities.sort_unstable();
        abilities
    }

    /// The workers that can do anything.
    pub(crate) fn able_workers(&self) -> impl Iterator<Item = NameId> {
        self.silence.iter().map(|(_, _, worker)| *worker)
    }

    /// The one of them that was silent the longest, and since when.
    pub(crate) fn most_silent(&self) -> Option<(Timestamp, NameId)> {
        self.silence.first().map(|(seen, _, worker)| (*seen, *worker))
    }

    /// Where a worker that can do anything stands among those.
    fn silent(&self, worker: NameId) -> (Timestamp, Arc<str>, NameId) {
        (self.workers[worker].seen.unwrap_or_default(), self.workers.name(worker).clone(), worker)
    }

    pub(super) fn see(&mut self, worker: NameId, now: Timestamp) {
        if self.workers[worker].abilities.is_empty() {
            if self.workers[worker].seen.replace(now).is_none() {
                // It ages from now on.
                self.workers.examine(worker);
            }
            return;
        }
        self.silence.remove(&self.silent(worker));
        self.workers[worker].seen = Some(now);
        self.silence.insert(self.silent(worker));
    }

    pub(super) fn set_able(
        &mut self,
        worker: NameId,
        ability: (NameId, NameId),
        attempt_max: Option<Seconds>,
    ) {
        if self.workers[worker].abilities.insert(ability, attempt_max).is_none() {
            self.queues.hold(ability.0);
            self.klasses.hold(ability.1);
        }
        self.silence.insert(self.silent(worker));
        self.able.entry(ability).or_default().insert(worker);
    }

    pub(super) fn set_unable(&mut self, worker: NameId, ability: (NameId, NameId)) {
        if self.workers[worker].abilities.remove(&ability).is_none() {
            return;
        }
        self.queues.release(ability.0);
        self.klasses.release(ability.1);
        if self.workers[worker].abilities.is_empty() {
            self.silence.remove(&self.silent(worker));
            self.workers.examine(worker);
        }
        if let Some(workers) = self.able.get_mut(&ability) {
            workers.remove(&worker);
            if workers.is_empty() {
                self.able.remove(&ability);
            }
        }
    }

    pub(super) fn set_unable_at_all(&mut self, worker: NameId) {
        let abilities: Vec<_> = self.workers[worker].abilities.keys().copied().collect();
        abilities.into_iter().for_each(|ability| self.set_unable(worker, ability));
    }

    pub(super) fn check_able(&self) -> Result<(), String> {
        let mut announced = 0;
        for (number, name, worker) in self.workers.iter() {
            announced += worker.abilities.len();
            let known = worker
                .abilities
                .keys()
                .all(|ability| self.able.get(ability).is_some_and(|workers| workers.contains(&number)));
            let silent = self.silence.contains(&self.silent(number));
            if !known || silent == worker.abilities.is_empty() {
                return Err(format!("what worker {name} announced is not known everywhere"));
            }
        }
        let counted: usize = self.able.values().map(|workers| workers.len()).sum();
        if counted == announced { Ok(()) } else { Err("more can be done than was announced".into()) }
    }
}
