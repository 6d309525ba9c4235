//! Put: a new job enters a queue, or an existing one is put again.

use super::{
    Delta, Effects, Engine, ITSELF, NONE, PutDelta, RowId, RowState, TAGS_MAX, at_most, check_retries,
};
use crate::{
    Cycles, DELAY_MAX, EndReason, Event, Existing, FailedBy, Jid, Milestone, Priority, Put, PutOptions,
    PutReply, Refusal, Seconds, Timestamp,
};

const RETRIES: u32 = 5;

/// How many jobs the search for a dependency cycle visits at most.
const CYCLE_WALK_MAX: usize = 10_000;

impl Engine {
    /// Takes payload, tags and options out of the command, unless it is refused.
    pub(super) fn put(
        &mut self,
        now: Timestamp,
        put: &mut Put,
        fx: &mut Effects,
    ) -> Result<PutReply, Refusal> {
        check_delay(put.delay, put.cycles == Cycles::Accept)?;
        self.check_size("payload", put.payload.byte_len())?;
        check_retries(put.retries)?;
        at_most("tags", put.tags.as_ref().map_or(0, Vec::len), TAGS_MAX)?;
        if let Some(options) = &put.options {
            Engine::check_put_options(options)?;
            let is_plain =
                put.existing == Existing::Keep && put.depends.is_empty() && put.delay <= Seconds::ZERO;
            if options.failure.is_some() && !is_plain {
                let why = "is for new jobs without dependencies and delay".into();
                return Err(Refusal::BadArgument { what: "failure".into(), why });
            }
        }
        let row = self.state.find(&put.jid);
        match (row, put.existing) {
            (Some(row), Existing::Keep) => return self.join_existing(row, put, fx),
            (None, Existing::Require) => return Err(Refusal::NoSuchJob { jid: put.jid.clone() }),
            _ => {}
        }
        let queue = self.state.find_queue(put.queue.as_str());
        fx.ephemeral = row.is_none()
            && put.depends.is_empty()
            && put.options.as_deref().is_some_and(PutOptions::are_ephemeral);
        if let Some(options) = &put.options
            && let Some(joined) = self.coalesce_or_check(now, row, queue, options, put, fx)?
        {
            return Ok(joined);
        }
        if let (None, Some(queue)) = (row, queue) {
            self.check_limits(queue, put)?;
        }
        let depends = if put.depends.is_empty() {
            None
        } else {
            let open = self.open_dependencies(&put.jid, &put.depends);
            self.check_cycles(&put.jid, row, &open, put.cycles)?;
            Some(open.into())
        };
        let queue = queue.unwrap_or_else(|| self.queue_id(&put.queue, fx));
        let klass = self.klass_id(&put.klass, fx);
        fx.publish(|| Event::Put { jid: put.jid.clone(), queue: put.queue.clone() });
        if let Some(holder) = row.and_then(|row| self.holder(row))
            && put.caller.as_ref() != Some(&holder)
        {
            fx.publish(|| Event::LockLost { jid: put.jid.clone(), worker: holder });
        }
        if let Some(running) = row.filter(|row| self.state.row(*row).state == RowState::Running) {
            self.end_attempt(running, now, EndReason::PutAgain, None, None, fx);
        }
        let old = row.map(|row| self.state.row(row));
        let delta = PutDelta {
            row,
            now,
            queue,
            klass,
            priority: put.priority.unwrap_or_else(|| old.map_or(Priority::ZERO, |old| old.priority)),
            retries: put.retries.unwrap_or_else(|| old.map_or(RETRIES, |old| old.retries)),
            due: due(now, put.delay),
            tags: put.tags.take().map(Into::into),
            depends,
            payload: std::mem::take(&mut put.payload),
            jid: put.jid.clone(),
        };
        self.commit(Delta::Put(delta), fx);
        let failure = put.options.as_mut().and_then(|options| options.failure.take());
        if let Some(options) = &mut put.options
            && let Some(row) = self.state.find(&put.jid)
        {
            self.set_put_options(row, options, fx);
        }
        if fx.listening && self.state.is_tracked(&put.jid) {
            fx.publish(|| Event::Milestone { jid: put.jid.clone(), what: Milestone::Put });
        }
        if let Some(failure) = failure
            && let Some(row) = self.state.find(&put.jid)
        {
            let (group, message) = *failure;
            self.fail_into_group(row, now, group, message, FailedBy::Moved, fx);
        }
        Ok(if row.is_some() { PutReply::Replaced } else { PutReply::Created })
    }

    /// The dependencies that exist and are not complete; the job itself, which may not exist yet, as
    /// [`ITSELF`].
    pub(super) fn open_dependencies(&self, jid: &Jid, depends: &[Jid]) -> Vec<RowId> {
        let open = |on: &Jid| {
            if on == jid {
                return Some(ITSELF);
            }
            self.state.find(on).filter(|row| self.state.row(*row).state != RowState::Complete)
        };
        depends.iter().filter_map(open).collect()
    }

    /// Refuses a dependency cycle, unless the caller accepts it.
    pub(super) fn check_cycles(
        &self,
        jid: &Jid,
        row: Option<RowId>,
        open: &[RowId],
        cycles: Cycles,
    ) -> Result<(), Refusal> {
        if cycles == Cycles::Accept {
            return Ok(());
        }
        // Nothing depends on a new job, and a job without dependents closes no cycle.
        let awaited = row.filter(|row| self.state.dependents(*row).next().is_some());
        if awaited.is_none() && !open.contains(&ITSELF) {
            return Ok(());
        }
        let mut seen = std::collections::HashSet::with_hasher(foldhash::fast::FixedState::default());
        for through in open {
            let mut ahead = vec![*through];
            while let Some(at) = ahead.pop() {
                if at == ITSELF {
                    return Err(Refusal::Cycle { jid: jid.clone(), through: jid.clone() });
                }
                if Some(at) == row {
                    return Err(Refusal::Cycle { jid: jid.clone(), through: self.state.jid(*through) });
                }
                if seen.insert(at) {
                    ahead.extend(self.state.dependencies(at));
                }
                if seen.len() > CYCLE_WALK_MAX {
                    return Err(Refusal::TooManyDependencies { jid: jid.clone(), max: CYCLE_WALK_MAX });
                }
            }
        }
        Ok(())
    }
}

/// Refuses a delay over a hundred years. Qless callers may give any.
pub(super) fn check_delay(delay: Seconds, is_qless: bool) -> Result<(), Refusal> {
    if delay > DELAY_MAX && !is_qless {
        return Err(Refusal::BadArgument {
            what: "delay".into(),
            why: format!("must be at most a hundred years, not {:e} seconds", delay.get()),
        });
    }
    Ok(())
}

/// When a delayed job may run; none without a delay.
pub(super) fn due(now: Timestamp, delay: Seconds) -> Option<Timestamp> {
    (delay > Seconds::ZERO).then(|| now + delay)
}

const _: () = assert!(ITSELF == NONE, "no row has this number");
