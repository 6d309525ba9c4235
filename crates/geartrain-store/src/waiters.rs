//! Those who wait for a job, in the order in which they came.

use std::collections::{BTreeMap, BTreeSet};

use geartrain_core::{Pop, PopReply, QueueName, Refusal, Seconds, Timestamp};

use crate::delivery::Slot;

/// Somebody who waits for a job.
pub(crate) struct Waiter {
    pub(crate) pop: Pop,
    /// What is answered if nothing comes: no jobs, and the turn as it was.
    pub(crate) nothing: PopReply,
    /// When they give up, by the clock that never goes back.
    pub(crate) until: Seconds,
    pub(crate) slot: Slot<Result<PopReply, Refusal>>,
}

/// Everyone who waits, numbered in the order in which they came.
#[derive(Default)]
pub(crate) struct Waiters {
    all: BTreeMap<u64, Waiter>,
    by_queue: BTreeMap<QueueName, Line>,
    by_end: BTreeSet<(Seconds, u64)>,
    by_due: BTreeSet<(Timestamp, QueueName)>,
    last: u64,
    look_at: usize,
}

/// Those who wait for one queue.
#[derive(Default)]
struct Line {
    ids: BTreeSet<u64>,
    /// When something next comes due in the queue.
    due: Option<Timestamp>,
}

impl Waiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn add(&mut self, waiter: Waiter) {
        self.last += 1;
        for queue in &waiter.pop.queues {
            self.by_queue.entry(queue.clone()).or_default().ids.insert(self.last);
        }
        self.by_end.insert((waiter.until, self.last));
        self.all.insert(self.last, waiter);
    }

    pub(crate) fn get(&self, id: u64) -> &Waiter {
        &self.all[&id]
    }

    /// What they wait for.
    pub(crate) fn pops(&self) -> impl Iterator<Item = &Pop> {
        self.all.values().map(|waiter| &waiter.pop)
    }

    /// Takes one out, and tells for which queues nobody waits any more.
    pub(crate) fn remove(&mut self, id: u64) -> (Waiter, Vec<QueueName>) {
        let waiter = self.all.remove(&id).expect("whoever is removed waits");
        self.by_end.remove(&(waiter.until, id));
        let mut deserted = Vec::new();
        for queue in &waiter.pop.queues {
            if let Some(line) = self.by_queue.get_mut(queue) {
                line.ids.remove(&id);
                if line.ids.is_empty() {
                    self.set_due(queue, None);
                    self.by_queue.remove(queue);
                    deserted.push(queue.clone());
                }
            }
        }
        (waiter, deserted)
    }

    /// The first to come of those who wait for a queue.
    pub(crate) fn first(&self, queue: &QueueName) -> Option<u64> {
        self.by_queue.get(queue)?.ids.first().copied()
    }

    /// Notes when something next comes due in a queue, if anybody waits for it.
    pub(crate) fn set_due(&mut self, queue: &QueueName, due: Option<Timestamp>) {
        let Some(line) = self.by_queue.get_mut(queue) else { return };
        let old = std::mem::replace(&mut line.due, due);
        if old != due {
            old.map(|old| self.by_due.remove(&(old, queue.clone())));
            due.map(|due| self.by_due.insert((due, queue.clone())));
        }
    }

    /// The queues that somebody waits for.
    pub(crate) fn queues(&self) -> Vec<QueueName> {
        self.by_queue.keys().cloned().collect()
    }

    /// Those of them in which something is due.
    pub(crate) fn due_queues(&self, now: Timestamp) -> Vec<QueueName> {
        self.by_due.iter().take_while(|(due, _)| *due <= now).map(|(_, queue)| queue.clone()).collect()
    }

    /// When something next comes due in a queue that somebody waits for.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.by_due.first().map(|(due, _)| *due)
    }

    /// When the first of them gives up.
    pub(crate) fn next_end(&self) -> Option<Seconds> {
        self.by_end.first().map(|(end, _)| *end)
    }

    /// One who has waited long enough.
    pub(crate) fn overdue(&self, elapsed: Seconds) -> Option<u64> {
        self.by_end.first().filter(|(end, _)| *end <= elapsed).map(|(_, id)| *id)
    }

    /// Those who have gone away, if it is time to look: whenever there are twice as many as there were after the last look.
    pub(crate) fn gone(&mut self) -> Vec<u64> {
        if self.all.len() < self.look_at {
            return Vec::new();
        }
        let gone: Vec<u64> =
            self.all.iter().filter(|(_, waiter)| waiter.slot.is_disconnected()).map(|(id, _)| *id).collect();
        self.look_at = LOOK_AT_LEAST.max(2 * (self.all.len() - gone.len()));
        gone
    }
}

/// With fewer waiters than this it is not worth looking for those who have gone away.
const LOOK_AT_LEAST: usize = 64;
