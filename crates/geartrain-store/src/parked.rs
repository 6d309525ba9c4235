//! Parked pops: blocked `pop --wait` calls and readiness waits, in the order in which they arrived.
//!
//! The pops of a queue are grouped by the klasses that they are restricted to. If the oldest pop of a group
//! finds no job, the others of the group find none, so that a job that they cannot have does not try them all.

use std::collections::{BTreeMap, BTreeSet};

use geartrain_core::{Klass, Pop, QueueName, Seconds, Timestamp};

use crate::publish::{PendingReply, PopGuard, RefusableSlot, Slot};

/// A request that waits for a queue.
pub(crate) struct ParkedRequest {
    pub(crate) kind: ParkedKind,
    /// When the wait ends, by the monotonic clock.
    pub(crate) until: Seconds,
    /// Of a pop: its group in each of its queues.
    pub(crate) groups: Vec<Group>,
}

/// The klasses that a parked pop is restricted to in a queue, sorted; none for all.
pub(crate) type Group = Option<Vec<Klass>>;

pub(crate) enum ParkedKind {
    /// A worker's pop.
    Pop {
        pop: Pop,
        /// The reply if no job comes: no jobs, and the turn unchanged.
        empty_reply: PopGuard,
        slot: Slot<PopGuard>,
    },
    /// Waits until a queue has a job to pop, and takes none.
    Ready { queues: Vec<QueueName>, slot: RefusableSlot<bool> },
}

impl ParkedKind {
    pub(crate) fn queues(&self) -> &[QueueName] {
        match self {
            ParkedKind::Pop { pop, .. } => &pop.queues,
            ParkedKind::Ready { queues, .. } => queues,
        }
    }
}

impl ParkedRequest {
    pub(crate) fn is_disconnected(&self) -> bool {
        match &self.kind {
            ParkedKind::Pop { slot, .. } => slot.is_disconnected(),
            ParkedKind::Ready { slot, .. } => slot.is_disconnected(),
        }
    }

    /// The reply when the wait ends without a job.
    pub(crate) fn timeout_reply(self) -> PendingReply {
        match self.kind {
            ParkedKind::Pop { empty_reply, slot, .. } => PendingReply::Pop(slot, empty_reply),
            ParkedKind::Ready { slot, .. } => PendingReply::Ready(slot, Ok(false)),
        }
    }
}

/// Readiness waits have ids from here on.
const FIRST_READY_ID: u64 = 1 << 63;
/// With fewer requests than this it is not worth looking for disconnected ones.
const SWEEP_MIN: usize = 64;

/// All parked requests. Ids follow the order of arrival.
#[derive(Default)]
pub(crate) struct Parked {
    all: BTreeMap<u64, ParkedRequest>,
    by_queue: BTreeMap<QueueName, QueueLine>,
    by_deadline: BTreeSet<(Seconds, u64)>,
    by_due: BTreeSet<(Timestamp, QueueName)>,
    parked_ever: u64,
    /// With this many requests, disconnected ones are looked for.
    sweep_at: usize,
}

/// The requests that wait for one queue.
#[derive(Default)]
struct QueueLine {
    pops: BTreeMap<Group, BTreeSet<u64>>,
    ready_waits: BTreeSet<u64>,
    /// When a job next comes due in the queue.
    due: Option<Timestamp>,
}

impl Parked {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn add(&mut self, request: ParkedRequest) {
        self.parked_ever += 1;
        let id = match &request.kind {
            ParkedKind::Pop { .. } => self.parked_ever,
            ParkedKind::Ready { .. } => FIRST_READY_ID + self.parked_ever,
        };
        self.join_lines(id, &request);
        self.by_deadline.insert((request.until, id));
        self.all.insert(id, request);
    }

    fn join_lines(&mut self, id: u64, request: &ParkedRequest) {
        for (place, queue) in request.kind.queues().iter().enumerate() {
            let line = self.by_queue.entry(queue.clone()).or_default();
            match request.groups.get(place) {
                Some(group) => line.pops.entry(group.clone()).or_default().insert(id),
                None => line.ready_waits.insert(id),
            };
        }
    }

    fn leave_lines(&mut self, id: u64, request: &ParkedRequest) {
        for (place, queue) in request.kind.queues().iter().enumerate() {
            let Some(line) = self.by_queue.get_mut(queue) else { continue };
            match request.groups.get(place) {
                None => drop(line.ready_waits.remove(&id)),
                Some(group) => {
                    if let Some(pops) = line.pops.get_mut(group) {
                        pops.remove(&id);
                        if pops.is_empty() {
                            line.pops.remove(group);
                        }
                    }
                }
            }
        }
    }

    /// Groups all pops again, because announced klasses have changed.
    pub(crate) fn regroup(&mut self, groups_of: impl Fn(&Pop) -> Vec<Group>) {
        let mut all = std::mem::take(&mut self.all);
        for (id, request) in &mut all {
            let ParkedKind::Pop { pop, .. } = &request.kind else { continue };
            let groups = groups_of(pop);
            if request.groups != groups {
                self.leave_lines(*id, request);
                request.groups = groups;
                self.join_lines(*id, request);
            }
        }
        self.all = all;
    }

    pub(crate) fn pops(&self) -> impl Iterator<Item = &Pop> {
        self.all.values().filter_map(|request| match &request.kind {
            ParkedKind::Pop { pop, .. } => Some(pop),
            ParkedKind::Ready { .. } => None,
        })
    }

    /// Removes a request. Also returns the queues that no request waits for any more.
    pub(crate) fn remove(&mut self, id: u64) -> (ParkedRequest, Vec<QueueName>) {
        let request = self.all.remove(&id).expect("only parked requests are removed");
        self.by_deadline.remove(&(request.until, id));
        self.leave_lines(id, &request);
        let mut unwatched = Vec::new();
        for queue in request.kind.queues() {
            if let Some(line) = self.by_queue.get(queue)
                && line.pops.is_empty()
                && line.ready_waits.is_empty()
            {
                self.set_due(queue, None);
                self.by_queue.remove(queue);
                unwatched.push(queue.clone());
            }
        }
        (request, unwatched)
    }

    /// The oldest pop of each group of a queue, but for groups whose oldest pop is `after` or older; the oldest
    /// of these pops.
    pub(crate) fn next_first(&self, queue: &QueueName, after: u64) -> Option<(u64, &ParkedRequest)> {
        let firsts = self.by_queue.get(queue)?.pops.values().filter_map(|pops| pops.first());
        let id = *firsts.filter(|id| **id > after).min()?;
        Some((id, &self.all[&id]))
    }

    pub(crate) fn has_ready_waits(&self) -> bool {
        self.all.last_key_value().is_some_and(|(id, _)| *id >= FIRST_READY_ID)
    }

    /// The readiness waits of a queue, oldest first.
    pub(crate) fn ready_waits(&self, queue: &QueueName) -> Vec<u64> {
        let line = self.by_queue.get(queue);
        line.map_or(Vec::new(), |line| line.ready_waits.iter().copied().collect())
    }

    /// Records when a job next comes due in a queue, if a request waits for it.
    pub(crate) fn set_due(&mut self, queue: &QueueName, due: Option<Timestamp>) {
        let Some(line) = self.by_queue.get_mut(queue) else { return };
        let old = std::mem::replace(&mut line.due, due);
        if old != due {
            old.map(|old| self.by_due.remove(&(old, queue.clone())));
            due.map(|due| self.by_due.insert((due, queue.clone())));
        }
    }

    /// The queues that requests wait for.
    pub(crate) fn queues(&self) -> Vec<QueueName> {
        self.by_queue.keys().cloned().collect()
    }

    /// Those of them in which a job is due.
    pub(crate) fn due_queues(&self, now: Timestamp) -> Vec<QueueName> {
        self.by_due.iter().take_while(|(due, _)| *due <= now).map(|(_, queue)| queue.clone()).collect()
    }

    /// When a job next comes due in any of them.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.by_due.first().map(|(due, _)| *due)
    }

    pub(crate) fn next_deadline(&self) -> Option<Seconds> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    /// A request whose wait has ended.
    pub(crate) fn expired(&self, elapsed: Seconds) -> Option<u64> {
        self.by_deadline.first().filter(|(deadline, _)| *deadline <= elapsed).map(|(_, id)| *id)
    }

    /// The requests whose callers have gone. Looks only when there are twice as many requests as after the
    /// last look, so that the cost per request is constant.
    pub(crate) fn disconnected(&mut self) -> Vec<u64> {
        if self.all.len() < self.sweep_at {
            return Vec::new();
        }
        let is_disconnected = |(_, request): &(&u64, &ParkedRequest)| request.is_disconnected();
        let disconnected: Vec<u64> = self.all.iter().filter(is_disconnected).map(|(id, _)| *id).collect();
        self.sweep_at = SWEEP_MIN.max(2 * (self.all.len() - disconnected.len()));
        disconnected
    }
}
