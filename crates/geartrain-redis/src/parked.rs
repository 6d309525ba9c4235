//! Parked pops of this process: pops that wait for jobs, and waits for readiness.

use std::collections::BTreeMap;

use geartrain_core::{BackendError, Pop, PopReply, QueueName, Seconds, Timestamp, wire};

use crate::cancelled::PopGuard;

/// Where the answer goes.
pub(crate) enum Waiting {
    ForJobs(flume::Sender<Result<PopGuard, BackendError>>),
    /// Whether there is something to pop.
    ForReadiness(flume::Sender<Result<bool, BackendError>>),
}

pub(crate) struct ParkedPop {
    /// Of no jobs, for a wait for readiness.
    pop: Pop,
    until: Seconds,
    waiting: Waiting,
    /// It is in the next request.
    due: bool,
    /// When a job falls due for it.
    next: Option<Timestamp>,
}

impl ParkedPop {
    pub(crate) fn new(pop: Pop, until: Seconds, waiting: Waiting) -> ParkedPop {
        ParkedPop { pop, until, waiting, due: true, next: None }
    }

    /// Answers it. If the caller has stopped waiting, the guard releases the jobs.
    pub(crate) fn complete(self, reply: PopGuard) {
        match self.waiting {
            // Fails if the caller has stopped waiting, here and below.
            Waiting::ForJobs(to) => drop(to.send(Ok(reply))),
            Waiting::ForReadiness(to) => drop(to.send(Ok(true))),
        }
    }

    /// Ends the wait with an error, or else without jobs.
    pub(crate) fn end(&self, error: Option<BackendError>) {
        match &self.waiting {
            Waiting::ForJobs(to) => {
                let turn = self.pop.order.turn(self.pop.queues.len());
                let nothing = || Ok(PopGuard::without_jobs(PopReply { jobs: Vec::new(), turn }));
                let _ = to.send(error.map_or_else(nothing, Err));
            }
            Waiting::ForReadiness(to) => {
                let _ = to.send(error.map_or(Ok(false), Err));
            }
        }
    }

    pub(crate) fn is_due(&self) -> bool {
        self.due
    }

    pub(crate) fn is_expired(&self, elapsed: Seconds) -> bool {
        self.until <= elapsed
    }

    fn wants_jobs(&self) -> bool {
        matches!(self.waiting, Waiting::ForJobs(_))
    }
}

/// All parked pops, by number and so in the order of their arrival.
#[derive(Default)]
pub(crate) struct ParkedPops {
    all: BTreeMap<u64, ParkedPop>,
}

impl ParkedPops {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn add(&mut self, number: u64, parked: ParkedPop) {
        self.all.insert(number, parked);
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<ParkedPop> {
        self.all.remove(&number)
    }

    pub(crate) fn any_due(&self) -> bool {
        self.all.values().any(ParkedPop::is_due)
    }

    pub(crate) fn mark_all_due(&mut self) {
        self.all.values_mut().for_each(|parked| parked.due = true);
    }

    /// Moves parked pops with a passed deadline or a due job into the next request.
    pub(crate) fn mark_due(&mut self, elapsed: Seconds, moment: Timestamp) {
        for parked in self.all.values_mut() {
            parked.due |= parked.is_expired(elapsed) || parked.next.is_some_and(|next| next <= moment);
        }
    }

    /// How long until the first deadline or due job.
    pub(crate) fn first_due(&self, elapsed: Seconds, moment: Timestamp) -> Option<Seconds> {
        let ends = self.all.values().map(|parked| parked.until - elapsed);
        let dues = self.all.values().filter_map(|parked| Some(parked.next? - moment));
        ends.chain(dues).min()
    }

    /// The next request. Pops come first: readiness means that they leave something.
    pub(crate) fn requests(&self, elapsed: Seconds) -> Vec<wire::ParkedPop> {
        let asking = self.all.iter().filter(|(_, parked)| parked.due);
        let (pops, readiness): (Vec<_>, Vec<_>) = asking.partition(|(_, parked)| parked.wants_jobs());
        let wait = |(number, parked): (&u64, &ParkedPop)| {
            let wait = (parked.until - elapsed).max(Seconds::ZERO);
            wire::ParkedPop { number: *number, pop: parked.pop.clone(), wait }
        };
        pops.into_iter().chain(readiness).map(wait).collect()
    }

    /// Leaves it parked until `next`, unless it is woken.
    pub(crate) fn park(&mut self, number: u64, next: Option<Timestamp>) {
        if let Some(parked) = self.all.get_mut(&number) {
            (parked.due, parked.next) = (false, next);
        }
    }

    /// Wakes the first pop that waits for this queue, in order of arrival.
    pub(crate) fn mark_first_pop(&mut self, queue: &QueueName) {
        let mut candidates = self.all.values_mut().filter(|parked| parked.wants_jobs() && !parked.due);
        if let Some(parked) = candidates.find(|parked| parked.pop.queues.contains(queue)) {
            parked.due = true;
        }
    }

    /// Wakes all waits for the readiness of this queue.
    pub(crate) fn mark_readiness_waits(&mut self, queue: &QueueName) {
        let candidates = self.all.values_mut().filter(|parked| !parked.wants_jobs() && !parked.due);
        candidates.filter(|parked| parked.pop.queues.contains(queue)).for_each(|parked| parked.due = true);
    }

    /// Ends waits with an error, or else without jobs.
    pub(crate) fn end(
        &mut self,
        is_expired: impl Fn(&ParkedPop) -> bool,
        error: impl Fn() -> Option<BackendError>,
    ) {
        self.all.retain(|_, parked| {
            let expired = is_expired(parked);
            if expired {
                parked.end(error());
            }
            !expired
        });
    }
}
