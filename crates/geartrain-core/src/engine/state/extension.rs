//! The extension of a row: what goes beyond Qless (put options, unique key, result waiters, deadline,
//! progress).

use std::collections::VecDeque;

use super::{RowId, RowState, State};
use crate::{Jid, JobDetails, Progressed, PutOptions, ResultWaiter, Timestamp, UniqueKey};

/// The part of a job that goes beyond Qless.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Extension {
    /// The options of its put, without the waiter.
    pub(crate) options: PutOptions,
    /// Whether it owns its unique key, so that later puts are coalesced with it.
    pub(crate) has_key: bool,
    /// How many puts were coalesced with it.
    pub(crate) joined: u64,
    /// Its result waiters, in order of arrival.
    pub(crate) waiters: VecDeque<ResultWaiter>,
    /// The deadline of the current attempt.
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) crashes: u32,
    pub(crate) evidence: Option<Box<str>>,
    pub(crate) progress: Option<Progressed>,
    /// The jobs that it depended on when it failed because one of them did.
    pub(crate) dropped_dependencies: Box<[Jid]>,
}

impl State {
    pub(crate) fn extension(&self, at: RowId) -> Option<&Extension> {
        self.cold(at)?.extension.as_deref()
    }

    /// What a reply says of a job beyond Qless.
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
            on_dependency_failure: extension.options.on_dependency_failure,
            traceparent: extension.options.traceparent.clone(),
        };
        let nothing = JobDetails { submissions: 1, ..JobDetails::default() };
        (details != nothing).then(|| Box::new(details))
    }

    /// The job that owns a unique key in a queue.
    pub(crate) fn keyed(&self, queue: u32, key: &UniqueKey) -> Option<RowId> {
        self.queues[queue].keys.get(key).copied()
    }

    /// The job that a result waiter waits for.
    pub(crate) fn awaited_by(&self, waiter: &ResultWaiter) -> Option<RowId> {
        self.waiters.get(waiter).copied()
    }

    /// The result waiters in order, from `first` on.
    pub(crate) fn waiters_from(&self, first: ResultWaiter) -> impl Iterator<Item = (ResultWaiter, RowId)> {
        self.waiters.range(first..).map(|(waiter, row)| (*waiter, *row))
    }

    /// The attempt with the earliest deadline.
    pub(crate) fn first_deadline(&self) -> Option<(Timestamp, RowId)> {
        self.deadlines.first().map(|(deadline, _, row)| (*deadline, *row))
    }

    /// The queued job that expires first.
    pub(crate) fn first_expiry(&self) -> Option<(Timestamp, RowId)> {
        self.expiries.first().copied()
    }

    /// A job's key among the expiries, if it is queued and expires.
    pub(super) fn expiry(&self, at: RowId) -> Option<(Timestamp, RowId)> {
        let queued = matches!(self.rows[at].state, RowState::Scheduled | RowState::Waiting);
        let expires = self.extension(at)?.options.expires?;
        queued.then_some((expires, at))
    }
}
