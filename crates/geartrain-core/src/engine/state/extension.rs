//! What goes beyond Qless: a part of a job that few have, and the indexes that find it.

use std::collections::VecDeque;

use super::{NONE, RowId, RowState, State};
use crate::{
    JobDetails, OrphanPolicy, Progressed, PutOptions, Rate, ResultWaiter, Seconds, Timestamp, UniqueKey,
};

/// What a job has that goes beyond Qless.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Extension {
    /// What its put asked for. Who waits is below.
    pub(crate) options: PutOptions,
    /// Whether it has its unique key, so that others join it.
    pub(crate) has_key: bool,
    /// How many submissions have joined it.
    pub(crate) joined: u64,
    /// Who waits for it, first come first.
    pub(crate) waiters: VecDeque<ResultWaiter>,
    /// When the attempt under way must be over.
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) crashes: u32,
    pub(crate) evidence: Option<Box<str>>,
    pub(crate) progress: Option<Progressed>,
}

impl State {
    pub(crate) fn extension(&self, at: RowId) -> Option<&Extension> {
        self.rare(at)?.extension.as_deref()
    }

    /// What is true of a job beyond Qless.
    pub(crate) fn details(&self, at: RowId) -> Option<Box<JobDetails>> {
        let side = self.extension(at)?;
        let particulars = JobDetails {
            unique: side.options.unique.clone(),
            submissions: 1 + side.joined,
            attached: side.waiters.len() as u64,
            orphan_policy: side.options.orphan_policy,
            on_end: side.options.on_end,
            result_ttl: side.options.result_ttl,
            expires: side.options.expires,
            attempt_max: side.options.attempt_max,
            deadline: side.deadline,
            backoff: side.options.backoff,
            crashes_max: side.options.crashes_max,
            crashes: side.crashes,
            evidence: side.evidence.as_deref().map(ToOwned::to_owned),
            progress: side.progress,
            metadata: side.options.metadata.clone(),
        };
        let nothing = JobDetails { submissions: 1, ..JobDetails::default() };
        (particulars != nothing).then(|| Box::new(particulars))
    }

    /// The job that has a key in a queue.
    pub(crate) fn keyed(&self, queue: u32, key: &UniqueKey) -> Option<RowId> {
        self.queues[queue].keys.get(key).copied()
    }

    /// The job that somebody waits for.
    pub(crate) fn awaited_by(&self, waiter: &ResultWaiter) -> Option<RowId> {
        self.waiters.get(waiter).copied()
    }

    /// Those who wait, from one on.
    pub(crate) fn waiters_from(&self, first: ResultWaiter) -> impl Iterator<Item = (ResultWaiter, RowId)> {
        self.waiters.range(first..).map(|(waiter, row)| (*waiter, *row))
    }

    /// The attempt that must be over first.
    pub(crate) fn first_deadline(&self) -> Option<(Timestamp, RowId)> {
        self.deadlines.first().map(|(deadline, _, row)| (*deadline, *row))
    }

    /// The queued job that must start first.
    pub(crate) fn first_expiry(&self) -> Option<(Timestamp, RowId)> {
        self.expiries.first().copied()
    }

    pub(super) fn set_terms(&mut self, at: RowId, terms: &PutOptions) {
        self.let_go_of_key(at);
        self.leave_expiries(at);
        let side = self.side_mut(at);
        *side = Extension {
            options: terms.clone(),
            waiters: std::mem::take(&mut side.waiters),
            deadline: side.deadline,
            progress: side.progress,
            ..Extension::default()
        };
        self.take_key(at);
        self.enter_expiries(at);
        self.trim_side(at);
    }

    /// Somebody decides that a job is to run after all: that it is late, or that workers died of it, counts no more.
    pub(super) fn renew(&mut self, at: RowId, now: Timestamp) {
        let Some(side) = self.rare_mut(at).extension.as_deref_mut() else { return };
        side.options.expires = side.options.expires.filter(|expires| *expires > now);
        (side.crashes, side.evidence) = (0, None);
        self.trim_side(at);
    }

    pub(super) fn merge(&mut self, at: RowId, result_for: Option<Seconds>, always: bool) {
        let side = self.side_mut(at);
        side.joined += 1;
        side.options.result_ttl = side.options.result_ttl.max(result_for);
        if always {
            side.options.orphan_policy = OrphanPolicy::Always;
        }
    }

    pub(super) fn attach(&mut self, at: RowId, waiter: ResultWaiter) {
        self.side_mut(at).waiters.push_back(waiter);
        self.waiters.insert(waiter, at);
    }

    pub(super) fn detach_waiter(&mut self, at: RowId, waiter: &ResultWaiter) {
        let waiters = &mut self.side_mut(at).waiters;
        // Whoever leaves first mostly came first.
        if let Some(place) = waiters.iter().position(|other| other == waiter) {
            waiters.remove(place);
        }
        self.waiters.remove(waiter);
        self.trim_side(at);
    }

    pub(super) fn set_deadline(&mut self, at: RowId, deadline: Timestamp) {
        self.side_mut(at).deadline = Some(deadline);
        self.deadlines.insert((deadline, self.rows[at].seq, at));
    }

    /// Takes the job's key, if it has one and nobody else does.
    pub(super) fn take_key(&mut self, at: RowId) {
        let queue = self.rows[at].queue;
        let Some(key) = self.extension(at).and_then(|side| side.options.unique.clone()) else { return };
        let keys = &mut self.queues[queue].keys;
        if let std::collections::btree_map::Entry::Vacant(free) = keys.entry(key) {
            free.insert(at);
            self.side_mut(at).has_key = true;
        }
    }

    pub(super) fn let_go_of_key(&mut self, at: RowId) {
        if !self.extension(at).is_some_and(|side| side.has_key) {
            return;
        }
        let queue = self.rows[at].queue;
        let side = self.side_mut(at);
        side.has_key = false;
        if let Some(key) = side.options.unique.clone() {
            self.queues[queue].keys.remove(&key);
        }
    }

    /// Nobody waits any more for a job that ended.
    pub(super) fn dismiss_waiters(&mut self, at: RowId) {
        if self.extension(at).is_none_or(|side| side.waiters.is_empty()) {
            return;
        }
        for waiter in std::mem::take(&mut self.side_mut(at).waiters) {
            self.waiters.remove(&waiter);
        }
        self.trim_side(at);
    }

    /// A job with a rare part leaves where it is.
    pub(super) fn side_leaves(&mut self, at: RowId) {
        self.leave_expiries(at);
        if self.rows[at].state != RowState::Running {
            return;
        }
        let token = self.rows[at].seq;
        let Some(side) = self.rare_mut(at).extension.as_deref_mut() else { return };
        side.progress = None;
        if let Some(deadline) = side.deadline.take() {
            self.deadlines.remove(&(deadline, token, at));
        }
        self.trim_side(at);
    }

    pub(super) fn enter_expiries(&mut self, at: RowId) {
        if let Some(entry) = self.expiry(at) {
            self.expiries.insert(entry);
        }
    }

    fn leave_expiries(&mut self, at: RowId) {
        if let Some(entry) = self.expiry(at) {
            self.expiries.remove(&entry);
        }
    }

    /// Where a job stands among those that must start in time, if it does.
    pub(super) fn expiry(&self, at: RowId) -> Option<(Timestamp, RowId)> {
        let queued = matches!(self.rows[at].state, RowState::Scheduled | RowState::Waiting);
        let expires = self.extension(at)?.options.expires?;
        queued.then_some((expires, at))
    }

    pub(super) fn side_mut(&mut self, at: RowId) -> &mut Extension {
        self.rare_mut(at).extension.get_or_insert_default()
    }

    /// Lets go of what is empty.
    pub(super) fn trim_side(&mut self, at: RowId) {
        if self.rows[at].rare == NONE {
            return;
        }
        let rare = self.rare_mut(at);
        if rare.extension.as_deref() == Some(&Extension::default()) {
            rare.extension = None;
            self.trim(at);
        }
    }
}

/// How often jobs of a queue have started, as far as that limits when the next may.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RateLimiter {
    pub(crate) rate: Rate,
    /// When the next would start if all had started as late as they may.
    pub(crate) next: Timestamp,
}

impl RateLimiter {
    pub(crate) fn new(rate: Rate) -> RateLimiter {
        RateLimiter { rate, next: Timestamp::MIN }
    }

    fn span(&self, starts: u32) -> Seconds {
        Seconds::saturating(self.rate.interval().get() * f64::from(starts))
    }

    /// Where it stands at a moment. If that is long before the last start, the clock went back, and what was does not count.
    fn at(&self, now: Timestamp) -> Timestamp {
        if self.next > now + self.span(self.rate.burst().saturating_add(1)) {
            now
        } else {
            self.next.max(now)
        }
    }

    fn may_start(&self, now: Timestamp) -> bool {
        self.at(now) - now <= self.span(self.rate.burst() - 1)
    }

    pub(crate) fn start(&mut self, now: Timestamp) {
        self.next = self.at(now) + self.rate.interval();
    }

    /// How many may start now, up to so many.
    pub(crate) fn starts(mut self, now: Timestamp, max: usize) -> usize {
        let mut starts = 0;
        while starts < max && self.may_start(now) {
            self.start(now);
            starts += 1;
        }
        starts
    }

    /// When the next may start.
    pub(crate) fn opens(&self, now: Timestamp) -> Timestamp {
        self.at(now) - self.span(self.rate.burst() - 1)
    }
}
