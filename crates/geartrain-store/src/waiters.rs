//! Those who wait for a job, or for word of one, in the order in which they came.

use std::collections::{BTreeMap, BTreeSet};

use geartrain_core::{Pop, PopReply, QueueName, Seconds, Timestamp};

use crate::delivery::{Outgoing, RefusableSlot};

/// Somebody who waits.
pub(crate) struct Waiter {
    pub(crate) wanted: Wanted,
    /// When they give up, by the clock that never goes back.
    pub(crate) until: Seconds,
}

/// What somebody waits for.
pub(crate) enum Wanted {
    /// Jobs.
    Jobs {
        pop: Pop,
        /// What is answered if nothing comes: no jobs, and the turn as it was.
        nothing: PopReply,
        slot: RefusableSlot<PopReply>,
    },
    /// To be told when there is something to pop. They are no workers, and take nothing.
    Word { queues: Vec<QueueName>, slot: RefusableSlot<bool> },
}

impl Wanted {
    pub(crate) fn queues(&self) -> &[QueueName] {
        match self {
            Wanted::Jobs { pop, .. } => &pop.queues,
            Wanted::Word { queues, .. } => queues,
        }
    }
}

impl Waiter {
    pub(crate) fn is_gone(&self) -> bool {
        match &self.wanted {
            Wanted::Jobs { slot, .. } => slot.is_disconnected(),
            Wanted::Word { slot, .. } => slot.is_disconnected(),
        }
    }

    /// The answer when nothing came.
    pub(crate) fn in_vain(self) -> Outgoing {
        match self.wanted {
            Wanted::Jobs { nothing, slot, .. } => Outgoing::Pop(slot, Ok(nothing)),
            Wanted::Word { slot, .. } => Outgoing::Ready(slot, Ok(false)),
        }
    }
}

/// Those who wait for word are numbered from here on, so that they stand behind all others in every line.
const FIRST_WORD: u64 = 1 << 63;

/// Everyone who waits, numbered in the order in which they came.
#[derive(Default)]
pub(crate) struct Waiters {
    all: BTreeMap<u64, Waiter>,
    by_queue: BTreeMap<QueueName, Line>,
    by_end: BTreeSet<(Seconds, u64)>,
    by_due: BTreeSet<(Timestamp, QueueName)>,
    /// How many have ever waited.
    came: u64,
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
        self.came += 1;
        let id = match &waiter.wanted {
            Wanted::Jobs { .. } => self.came,
            Wanted::Word { .. } => FIRST_WORD + self.came,
        };
        for queue in waiter.wanted.queues() {
            self.by_queue.entry(queue.clone()).or_default().ids.insert(id);
        }
        self.by_end.insert((waiter.until, id));
        self.all.insert(id, waiter);
    }

    /// What those wait for who wait for jobs.
    pub(crate) fn pops(&self) -> impl Iterator<Item = &Pop> {
        self.all.values().filter_map(|waiter| match &waiter.wanted {
            Wanted::Jobs { pop, .. } => Some(pop),
            Wanted::Word { .. } => None,
        })
    }

    /// Takes one out, and tells for which queues nobody waits any more.
    pub(crate) fn remove(&mut self, id: u64) -> (Waiter, Vec<QueueName>) {
        let waiter = self.all.remove(&id).expect("whoever is removed waits");
        self.by_end.remove(&(waiter.until, id));
        let mut deserted = Vec::new();
        for queue in waiter.wanted.queues() {
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

    /// The first of those who wait for a queue: the first to come who wants jobs, if any does.
    pub(crate) fn first(&self, queue: &QueueName) -> Option<(u64, &Waiter)> {
        let id = *self.by_queue.get(queue)?.ids.first()?;
        Some((id, &self.all[&id]))
    }

    /// Whether anybody waits for word.
    pub(crate) fn has_words(&self) -> bool {
        self.all.last_key_value().is_some_and(|(id, _)| *id >= FIRST_WORD)
    }

    /// Those who wait for word of a queue, in the order in which they came.
    pub(crate) fn words(&self, queue: &QueueName) -> Vec<u64> {
        let line = self.by_queue.get(queue);
        line.map_or(Vec::new(), |line| line.ids.range(FIRST_WORD..).copied().collect())
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
            self.all.iter().filter(|(_, waiter)| waiter.is_gone()).map(|(id, _)| *id).collect();
        self.look_at = LOOK_AT_LEAST.max(2 * (self.all.len() - gone.len()));
        gone
    }
}

/// With fewer waiters than this it is not worth looking for those who have gone away.
const LOOK_AT_LEAST: usize = 64;
