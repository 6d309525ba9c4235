//! Those who wait for a job, in the order in which they came.

use std::collections::{BTreeMap, BTreeSet};

use flume::Sender;
use geartrain_core::{Pop, PopReply, QueueName, Refusal, Timestamp};

/// Somebody who waits for a job.
pub(crate) struct Waiter {
    pub(crate) pop: Pop,
    pub(crate) until: Timestamp,
    pub(crate) slot: Sender<Result<PopReply, Refusal>>,
}

/// Everyone who waits, numbered in the order in which they came.
#[derive(Default)]
pub(crate) struct Waiters {
    all: BTreeMap<u64, Waiter>,
    by_queue: BTreeMap<QueueName, Line>,
    by_end: BTreeSet<(Timestamp, u64)>,
    by_due: BTreeSet<(Timestamp, QueueName)>,
    last: u64,
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

    /// When something next happens by itself: something comes due, or somebody gives up.
    pub(crate) fn next_moment(&self) -> Option<Timestamp> {
        let due = self.by_due.first().map(|(due, _)| *due);
        let end = self.by_end.first().map(|(end, _)| *end);
        due.into_iter().chain(end).min()
    }

    /// One who has waited long enough.
    pub(crate) fn overdue(&self, now: Timestamp) -> Option<u64> {
        self.by_end.first().filter(|(end, _)| *end <= now).map(|(_, id)| *id)
    }
}
