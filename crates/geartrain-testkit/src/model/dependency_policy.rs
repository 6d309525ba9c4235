//! What jobs do when one that they depend on fails, and which jobs a cancellation takes along (rule Dependency
//! policies).

use std::collections::BTreeSet;

use geartrain_core::{
    Cancel, DependencyPolicy, FailedBy, Failure, Group, Jid, Refusal, StateName, Timestamp,
};

use super::{Model, Position};

impl Model {
    /// Applies the policies of all jobs that depend on a failed one, the first by jid first.
    pub(super) fn apply_dependency_policies(&mut self, now: Timestamp) {
        while let Some((jid, cause)) = self.first_behind_failed() {
            match self.jobs[&jid].beyond.on_dependency_failure {
                DependencyPolicy::Fail => self.fail_upstream(now, &jid, &cause),
                DependencyPolicy::Skip => self.skip(now, &jid, &cause),
                DependencyPolicy::Run => self.run_without_failed(now, &jid),
                policy => panic!("{policy:?} is never applied"),
            }
        }
    }

    /// The first job with something to do, and the first failed job that it depends on.
    fn first_behind_failed(&self) -> Option<(Jid, Jid)> {
        let has_policy = |jid: &&Jid| {
            self.jobs[*jid].beyond.on_dependency_failure != DependencyPolicy::Wait
                && matches!(self.jobs[*jid].place, Position::Depends(_))
        };
        self.jobs.keys().filter(has_policy).find_map(|jid| {
            let cause = self.jobs[jid].dependencies.iter().find(|on| self.is_failed(on))?;
            Some((jid.clone(), cause.clone()))
        })
    }

    pub(super) fn is_failed(&self, jid: &Jid) -> bool {
        self.jobs.get(jid).is_some_and(|job| job.place.state() == StateName::Failed && job.aside.is_none())
    }

    fn fail_upstream(&mut self, now: Timestamp, jid: &Jid, cause: &Jid) {
        let other = &self.jobs[cause];
        let failure = other.failure.as_ref().expect("it has failed");
        let message = if other.dropped.is_empty() {
            format!("Job {cause} failed ({}), and this job depends on it", failure.group)
        } else {
            failure.message.clone()
        };
        let job = self.job_mut(jid);
        job.dropped = std::mem::take(&mut job.dependencies);
        let group = Group::new(format!("upstream-{}", job.its_queue())).expect("it fits");
        let failure = Failure { group, message, when: now, worker: None };
        self.give_up(now, jid, failure, FailedBy::Upstream, None);
    }

    fn skip(&mut self, now: Timestamp, jid: &Jid, cause: &Jid) {
        for dependent in self.dependents(jid).iter().filter(|dependent| *dependent != jid) {
            let dependencies = &mut self.job_mut(dependent).dependencies;
            dependencies.remove(jid);
            dependencies.insert(cause.clone());
        }
        let because = Some(format!("Job {cause} failed, and this job depends on it"));
        let cancel = Cancel { because, ..Cancel::new(vec![jid.clone()]) };
        self.cancel(now, &cancel).expect("no other job depends on it");
    }

    fn run_without_failed(&mut self, now: Timestamp, jid: &Jid) {
        let failed: Vec<Jid> =
            self.jobs[jid].dependencies.iter().filter(|on| self.is_failed(on)).cloned().collect();
        self.job_mut(jid).dependencies.retain(|on| !failed.contains(on));
        self.release_if_free(now, jid);
    }

    /// The jobs that one depends on again that failed because of another and is to run again: those that are
    /// unfinished and do not depend on it.
    pub(super) fn take_dropped(&mut self, jid: &Jid) -> BTreeSet<Jid> {
        let mut dropped = std::mem::take(&mut self.job_mut(jid).dropped);
        dropped
            .retain(|on| self.jobs.get(on).is_some_and(|job| job.is_unfinished()) && !self.leads_to(on, jid));
        dropped
    }

    pub(super) fn leads_to(&self, from: &Jid, to: &Jid) -> bool {
        let (mut seen, mut to_visit) = (BTreeSet::new(), vec![from]);
        while let Some(visited) = to_visit.pop() {
            if seen.insert(visited) {
                to_visit.extend(self.jobs.get(visited).iter().flat_map(|job| &job.dependencies));
            }
        }
        seen.contains(to)
    }

    /// The jobs that a cancellation is about: those that it names, and then level by level those that depend
    /// on them, if it takes these along.
    pub(super) fn cancelled_by(&self, cancel: &Cancel) -> Result<Vec<Jid>, Refusal> {
        let mut jids = cancel.jids.clone();
        let mut next = 0;
        while cancel.cascade && next < jids.len() {
            let dependents = self.dependents(&jids[next]);
            jids.extend(dependents.into_iter().filter(|jid| !jids.contains(jid)).collect::<Vec<_>>());
            next += 1;
        }
        let is_in_cycle = |jid: &Jid| {
            let dependencies = self.jobs.get(jid).into_iter().flat_map(|job| &job.dependencies);
            dependencies.into_iter().any(|on| self.leads_to(on, jid))
        };
        if cancel.cascade && jids.iter().any(is_in_cycle) {
            return Err(super::bad_argument("cascade"));
        }
        Ok(jids)
    }
}
