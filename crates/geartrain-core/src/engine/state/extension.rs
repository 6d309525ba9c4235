//! What goes beyond Qless: a part of a job that few have, and the indexes that find it.

use std::collections::VecDeque;

use super::{RowId, RowState, State};
use crate::{JobDetails, Progressed, PutOptions, Rate, ResultWaiter, Seconds, Timestamp, UniqueKey};

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
        self.cold(at)?.extension.as_deref()
    }

    /// What is true of a job beyond Qless.
    pub(crate) fn details(&self, at: RowId) -> Option<Box<JobDetails>> {
        let extension = self.extension(at)?;
        let details = JobDetails {
            unique: extension.options.unique.clone(),
            submissions: 1 + extension.joined,
            attached: extension.waiters.len() as u64,
            orphan_policy: extension.options.orphan_policy,
            on_end: extension.options.on_end,
            result_ttl: extension.options.result_ttl,
            expires: extension.options.expires,
            attempt_max: extension.options.attempt_max,
            deadline: extension.deadline,
            backoff: extension.options.backoff,
            crashes_max: extension.options.crashes_max,
            crashes: extension.crashes,
            evidence: extension.evidence.as_deref().map(ToOwned::to_owned),
            progress: extension.progress,
            metadata: extension.options.metadata.clone(),
        };
        let nothing = JobDetails { submissions: 1, ..JobDetails::default() };
        (details != nothing).then(|| Box::new(details))
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

    /// Where a job stands among those that must start in time, if it does.
    pub(super) fn expiry(&self, at: RowId) -> Option<(Timestamp, RowId)> {
        let queued = matches!(self.rows[at].state, RowState::Scheduled | RowState::Waiting);
        let expires = self.extension(at)?.options.expires?;
        queued.then_some((expires, at))
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
