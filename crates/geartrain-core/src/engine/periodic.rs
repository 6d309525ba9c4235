//! Periodic jobs: templates, and the jobs of their runs.

use std::sync::Arc;

use super::{Delta, Effects, Engine, PeriodicRun, RowState, TAGS_MAX, at_most, check_retries};
use crate::{
    Cancel, Count, DuePeriodic, DuePeriodics, DuePeriodicsReply, Existing, FirePeriodic, FirePeriodicReply,
    Jid, Overlap, PERIODIC_RUNS_MAX, Payload, Periodic, PeriodicTemplate, Periodics, PeriodicsReply, Put,
    PutPeriodic, PutReply, Refusal, Timestamp, UniqueKey,
};

impl Engine {
    pub(super) fn put_periodic(&mut self, put: PutPeriodic, fx: &mut Effects) -> Result<bool, Refusal> {
        let PutPeriodic { jid, template, next, must_exist } = put;
        template.check()?;
        self.check_size("payload", template.put.payload.byte_len())?;
        check_retries(template.put.retries)?;
        at_most("tags", template.put.tags.as_ref().map_or(0, Vec::len), TAGS_MAX)?;
        if let Some(options) = &template.put.options {
            Engine::check_put_options(options)?;
        }
        if jid != template.put.jid {
            let why = format!("must be that of the template, {}", template.put.jid);
            return Err(Refusal::BadArgument { what: "jid".into(), why });
        }
        let old = self.state.periodics().get(&jid);
        if old.is_none() && must_exist {
            return Err(Refusal::NoSuchRecurring { jid });
        }
        let is_new = old.is_none();
        let (count, last) = old.map_or((0, None), |old| (old.count, old.last.clone()));
        let next = next.filter(|_| !template.is_paused);
        let periodic = Periodic { template, next, count, last, error: None };
        self.commit(Delta::Periodic(Arc::new(periodic)), fx);
        Ok(is_new)
    }

    pub(super) fn remove_periodic(&mut self, jid: Jid, fx: &mut Effects) -> bool {
        let exists = self.state.periodics().get(&jid).is_some();
        if exists {
            self.commit(Delta::PeriodicRemoved(jid), fx);
        }
        exists
    }

    pub(super) fn periodics(&self, now: Timestamp, asked: &Periodics) -> PeriodicsReply {
        let periodics = self.state.periodics();
        let found: Vec<Periodic> = match &asked.only {
            Some(jid) => periodics.get(jid).into_iter().map(|of| (**of).clone()).collect(),
            None => {
                let page = periodics.after(asked.after.as_ref()).take(asked.count.get());
                page.map(|of| (**of).clone()).collect()
            }
        };
        // The engine's owner fires them.
        PeriodicsReply { periodics: found, watched: Some(now) }
    }

    pub(super) fn due_periodics(&self, now: Timestamp, asked: &DuePeriodics) -> DuePeriodicsReply {
        let mut runs = self.state.periodics().by_run();
        let mut reply = DuePeriodicsReply::default();
        for (next, of) in runs.by_ref() {
            if next > now || reply.due.len() == asked.count.get() {
                reply.next = Some(next);
                break;
            }
            reply.due.push(DuePeriodic { template: of.template.clone(), next });
        }
        reply
    }

    /// Bytes of the payload, the metadata and the names of each job that a periodic job puts.
    pub fn periodic_bytes(&self, jid: &Jid) -> usize {
        self.state.periodics().get(jid).map_or(0, |of| {
            let Put { payload, queue, klass, tags, options, .. } = &of.template.put;
            let tags: usize = tags.iter().flatten().map(|tag| tag.as_str().len()).sum();
            let options = options.as_ref().map_or(0, |options| {
                let unique = options.unique.as_ref().map_or(0, |key| key.as_bytes().len());
                unique + options.metadata.as_ref().map_or(0, Payload::byte_len)
            });
            payload.byte_len() + 2 * queue.as_str().len() + klass.as_str().len() + tags + options
        })
    }

    /// When a periodic job runs next.
    pub fn next_periodic(&self) -> Option<Timestamp> {
        self.state.periodics().first_run()
    }

    /// The commands that run the first `count` periodic jobs that are due.
    pub fn due_fires(&self, now: Timestamp, count: Count) -> Vec<FirePeriodic> {
        let due = self.due_periodics(now, &DuePeriodics { count }).due;
        due.into_iter().map(|due| due.fire(now)).collect()
    }

    pub(super) fn fire_periodic(
        &mut self,
        now: Timestamp,
        fire: FirePeriodic,
        fx: &mut Effects,
    ) -> Result<FirePeriodicReply, Refusal> {
        let FirePeriodic { jid, expected, runs, next } = fire;
        at_most("runs", runs.len(), PERIODIC_RUNS_MAX)?;
        let Some(periodic) = self.state.periodics().get(&jid).cloned() else {
            return Err(Refusal::NoSuchRecurring { jid });
        };
        if periodic.next != expected {
            return Ok(FirePeriodicReply { is_stale: true, jobs: Vec::new() });
        }
        let Periodic { count, last, error, .. } = (*periodic).clone();
        let mut run = PeriodicRun { jid, next, count, last, error };
        let mut jobs = Vec::new();
        for time in runs {
            if let Some(job) = self.run_periodic(now, time, &periodic.template, &mut run, fx) {
                jobs.push(job);
            }
        }
        fx.ephemeral = false;
        self.commit(Delta::PeriodicRan(Box::new(run)), fx);
        Ok(FirePeriodicReply { is_stale: false, jobs })
    }

    /// Puts the job of one run, unless it is left out or refused.
    fn run_periodic(
        &mut self,
        now: Timestamp,
        time: Timestamp,
        template: &PeriodicTemplate,
        run: &mut PeriodicRun,
        fx: &mut Effects,
    ) -> Option<Jid> {
        if template.overlap == Overlap::CancelOld
            && let Some(last) = run.last.clone()
        {
            self.cancel_unfinished(now, last, &run.jid, fx);
        }
        let mut count = run.count;
        let child = loop {
            count += 1;
            let child = Jid::new(format!("{}-{count}", run.jid));
            let child = child.expect("the jid of a template leaves room for a number");
            if self.state.find(&child).is_none() {
                break child;
            }
        };
        let mut put = put_of_run(template, child.clone(), time);
        match self.put(time, &mut put, fx) {
            Ok(PutReply::Created) => {
                if let Some(row) = self.state.find(&child) {
                    self.commit(Delta::SpawnedFrom(row, run.jid.clone()), fx);
                }
                (run.count, run.last, run.error) = (count, Some(child.clone()), None);
                Some(child)
            }
            // The job of an earlier run has its unique key.
            Ok(_) => None,
            Err(refusal) => {
                run.error = Some(Box::new(refusal));
                None
            }
        }
    }

    /// Cancels the job of an earlier run. One that other jobs depend on stays.
    fn cancel_unfinished(&mut self, now: Timestamp, jid: Jid, template: &Jid, fx: &mut Effects) {
        let state = self.state.find(&jid).map(|row| self.state.row(row).state);
        if state.is_none_or(|state| matches!(state, RowState::Complete | RowState::Failed)) {
            return;
        }
        let because = Some(format!("The next run of {template} has begun"));
        fx.by = None;
        let _ = self.cancel(now, Cancel { because, ..Cancel::new(vec![jid]) }, fx);
    }
}

/// The put of a run.
fn put_of_run(template: &PeriodicTemplate, child: Jid, time: Timestamp) -> Put {
    let mut put = Put { existing: Existing::Keep, ..template.put.clone() };
    let needs_key = template.overlap == Overlap::Skip
        && put.options.as_ref().is_none_or(|options| options.unique.is_none());
    if needs_key || template.expires_in.is_some() {
        let options = put.options.get_or_insert_default();
        if needs_key {
            options.unique = UniqueKey::new(template.put.jid.to_string()).ok();
        }
        options.expires = template.expires_in.map(|span| time + span);
    }
    put.jid = child;
    put
}
