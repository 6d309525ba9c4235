//! Dependency policies: what a job does when a job that it depends on fails. Also the cancellation of a job
//! together with its dependents.
//!
//! Policies are applied at the end of the command that made the job fail, or that put a job behind a failed
//! one, the first by jid first. A job that fails in this way may have dependents in turn. A command applies
//! [`STEPS_MAX`] policies; the next commands and ticks apply the rest.

use std::collections::{HashMap, HashSet};

use super::{Delta, Effects, Engine, RowId};
use crate::{CASCADE_MAX, Cancel, Command, DependencyPolicy, FailedBy, Jid, Refusal, Timestamp};

/// How many steps of policies a command takes at most: a job that fails, runs or is cancelled, or a dependent
/// of a job that is to be cancelled.
const STEPS_MAX: usize = 100;

impl Engine {
    /// Applies the policies of jobs behind a failed one, as many as a command may.
    #[inline]
    pub(super) fn apply_dependency_policies(&mut self, now: Timestamp, fx: &mut Effects) {
        if self.state.is_any_behind_failed() {
            self.take_policy_steps(now, STEPS_MAX, fx);
        }
    }

    /// Takes up to `max` steps. Returns how many.
    pub(super) fn take_policy_steps(&mut self, now: Timestamp, max: usize, fx: &mut Effects) -> usize {
        fx.ephemeral = false;
        let mut steps = 0;
        while steps < max
            && let Some(row) = self.state.first_behind_failed()
            && let Some((jid, cause)) = self.state.first_failed_dependency(row)
        {
            steps += match self.state.dependency_policy(row) {
                DependencyPolicy::Wait => unreachable!("it is not in the index"),
                DependencyPolicy::Fail => self.fail_upstream(row, &jid, cause, now, fx),
                DependencyPolicy::Skip => self.skip(row, cause, max - steps, now, fx),
                DependencyPolicy::Run => {
                    let failed = self.state.failed_dependencies(row).collect();
                    self.commit(Delta::RunWithout(row, failed, now), fx);
                    1
                }
            };
        }
        steps
    }

    /// Fails a job because of a failed dependency. The message names the job that failed by itself.
    fn fail_upstream(
        &mut self,
        row: RowId,
        jid: &Jid,
        cause: RowId,
        now: Timestamp,
        fx: &mut Effects,
    ) -> usize {
        let failure = self.state.failure_of(cause).expect("a failed job has a failure");
        let message = match self.state.failed_upstream(cause) {
            true => failure.message,
            false => format!("Job {jid} failed ({}), and this job depends on it", failure.group),
        };
        let group = self.group_for("upstream", row);
        self.fail_into_group(row, now, group, message, FailedBy::Upstream, fx);
        1
    }

    /// Cancels a job because of a failed dependency, on which its dependents depend from now on: otherwise
    /// those that wait would wait for nothing. Takes several calls if they are many.
    fn skip(&mut self, row: RowId, cause: RowId, max: usize, now: Timestamp, fx: &mut Effects) -> usize {
        let mut dependents: Vec<RowId> =
            self.state.dependents(row).filter(|of| *of != row).take(max + 1).collect();
        let is_last = dependents.len() < max;
        dependents.truncate(max);
        for of in &dependents {
            self.commit(Delta::Depend(*of, [cause].into()), fx);
            self.commit(Delta::Undepend(*of, [row].into(), now), fx);
        }
        if !is_last {
            return dependents.len();
        }
        let because = format!("Job {} failed, and this job depends on it", self.state.jid(cause));
        let cancel = Cancel { because: Some(because), ..Cancel::new(vec![self.state.jid(row)]) };
        // The caller of the command that failed the other job did not ask for this.
        fx.by = None;
        self.cancel(now, cancel, fx).expect("no other job depends on it any more");
        dependents.len() + 1
    }

    /// The jobs and all that depend on them, directly or through others.
    pub(super) fn with_dependents(&self, mut jids: Vec<Jid>) -> Result<Vec<Jid>, Refusal> {
        let rows = jids.iter().filter_map(|jid| self.state.find(jid));
        let mut seen: HashSet<RowId> = rows.collect();
        let mut next = 0;
        while let Some(jid) = jids.get(next) {
            if jids.len() > CASCADE_MAX {
                return Err(Refusal::BadArgument {
                    what: "cascade".into(),
                    why: format!(
                        "would cancel more than {CASCADE_MAX} jobs; cancel some of those that depend on \
                         {jid} first"
                    ),
                });
            }
            next += 1;
            let Some(row) = self.state.find(jid) else { continue };
            let dependents = self.state.dependents(row).filter(|of| seen.insert(*of));
            let mut dependents: Vec<Jid> = dependents.map(|of| self.state.jid(of)).collect();
            dependents.sort_unstable();
            jids.extend(dependents);
        }
        match self.has_cycle(&seen) {
            true => Err(Refusal::BadArgument {
                what: "cascade".into(),
                why: "would go round a cycle of dependencies; cancel the jobs of the cycle by their jids, without \
                      a cascade"
                    .into(),
            }),
            false => Ok(jids),
        }
    }

    /// Whether jobs depend on each other in a cycle: one by one, those without open dependencies are removed.
    fn has_cycle(&self, jobs: &HashSet<RowId>) -> bool {
        let mut open: HashMap<RowId, usize> = HashMap::new();
        jobs.iter()
            .flat_map(|row| self.state.dependents(*row))
            .for_each(|of| *open.entry(of).or_default() += 1);
        let mut free: Vec<RowId> = jobs.iter().copied().filter(|of| !open.contains_key(of)).collect();
        while let Some(row) = free.pop() {
            for of in self.state.dependents(row) {
                if let Some(left) = open.get_mut(&of) {
                    *left -= 1;
                    if *left == 0 {
                        open.remove(&of);
                        free.push(of);
                    }
                }
            }
        }
        !open.is_empty()
    }

    /// How many steps of policies a command may take; 0 if it fails no job, or no job has a policy.
    pub fn policy_steps(&self, command: &Command) -> usize {
        let has_dependents =
            |jid: &Jid| self.state.find(jid).is_some_and(|row| self.state.dependents(row).next().is_some());
        let is_used = self.state.dependency_policies() > 0;
        let may_fail_others = match command {
            Command::Put(put) => put.options.as_ref().is_some_and(|options| {
                (options.on_dependency_failure != DependencyPolicy::Wait && !put.depends.is_empty())
                    || (is_used && options.failure.is_some())
            }),
            Command::Fail(fail) => is_used && has_dependents(&fail.jid),
            Command::Retry(retry) => is_used && has_dependents(&retry.jid),
            Command::Complete(complete) => {
                is_used && complete.next.as_ref().is_some_and(|next| !next.depends.is_empty())
            }
            Command::Pop(_)
            | Command::Depend(_)
            | Command::WorkerLost(_)
            | Command::Tick(_)
            | Command::EndSetAside(_) => is_used,
            _ => return 0,
        };
        if may_fail_others || self.state.is_any_behind_failed() { STEPS_MAX } else { 0 }
    }
}
