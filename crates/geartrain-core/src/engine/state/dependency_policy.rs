//! Jobs behind a failed one: an index of the jobs whose dependency policy is yet to be applied. It is derived
//! from the rows, so what a command left for later is found again after a restart.

use super::{RowId, RowState, State};
use crate::{DependencyPolicy, Jid};

impl State {
    /// Whether a job depends on a failed one and has a policy other than to wait.
    pub(crate) fn is_any_behind_failed(&self) -> bool {
        !self.behind_failed.is_empty()
    }

    /// The first of these jobs by jid.
    pub(crate) fn first_behind_failed(&self) -> Option<RowId> {
        self.behind_failed.first().map(|(_, row)| *row)
    }

    /// How many jobs have a policy other than to wait.
    pub(crate) fn dependency_policies(&self) -> usize {
        self.dependency_policies
    }

    pub(crate) fn dependency_policy(&self, at: RowId) -> DependencyPolicy {
        self.extension(at)
            .map_or_else(DependencyPolicy::default, |extension| extension.options.on_dependency_failure)
    }

    /// The failed dependencies of a job. One that is set aside has not failed.
    pub(crate) fn failed_dependencies(&self, at: RowId) -> impl Iterator<Item = RowId> {
        self.dependencies(at).filter(|on| self.rows[*on].state == RowState::Failed && !self.is_set_aside(*on))
    }

    /// The first failed dependency of a job by jid.
    pub(crate) fn first_failed_dependency(&self, at: RowId) -> Option<(Jid, RowId)> {
        self.failed_dependencies(at).map(|on| (self.rows.jid(on), on)).min()
    }

    /// Whether a job failed because one that it depended on did.
    pub(crate) fn failed_upstream(&self, at: RowId) -> bool {
        self.extension(at).is_some_and(|extension| !extension.dropped_dependencies.is_empty())
    }

    /// Whether a job belongs into the index.
    pub(super) fn is_behind_failed(&self, at: RowId) -> bool {
        self.rows[at].state == RowState::Depends
            && self.dependency_policy(at) != DependencyPolicy::Wait
            && self.failed_dependencies(at).next().is_some()
    }
}
