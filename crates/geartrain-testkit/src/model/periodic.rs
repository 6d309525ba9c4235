//! Periodic jobs (rule Periodic).

use geartrain_core::{
    Cancel, DuePeriodic, DuePeriodics, DuePeriodicsReply, Existing, FirePeriodic, FirePeriodicReply, Jid,
    Overlap, Periodic, Periodics, PeriodicsReply, Put, PutPeriodic, PutReply, Refusal, StateName, Timestamp,
    UniqueKey,
};

use super::{Model, bad_argument, put_options};

impl Model {
    pub(super) fn validate_periodic(&self, put: &PutPeriodic) -> Result<(), Refusal> {
        let template = &put.template;
        template.check().map_err(|refusal| match refusal {
            Refusal::BadArgument { what, .. } => Refusal::BadArgument { what, why: String::new() },
            other => other,
        })?;
        self.fits("payload", template.put.payload.bytes())?;
        template.put.options.as_deref().map_or(Ok(()), put_options::validate)?;
        if put.jid == template.put.jid { Ok(()) } else { Err(bad_argument("jid")) }
    }

    pub(super) fn put_periodic(&mut self, put: &PutPeriodic) -> Result<bool, Refusal> {
        let old = self.periodics.get(&put.jid);
        if old.is_none() && put.must_exist {
            return Err(Refusal::NoSuchRecurring { jid: put.jid.clone() });
        }
        let is_new = old.is_none();
        let periodic = Periodic {
            template: put.template.clone(),
            next: put.next.filter(|_| !put.template.is_paused),
            count: old.map_or(0, |old| old.count),
            last: old.and_then(|old| old.last.clone()),
            error: None,
        };
        self.periodics.insert(put.jid.clone(), periodic);
        Ok(is_new)
    }

    /// When a periodic job runs next, if it exists and does.
    pub(crate) fn next_run(&self, jid: &Jid) -> Option<Timestamp> {
        self.periodics.get(jid)?.next
    }

    pub(super) fn list_periodics(&self, asked: &Periodics) -> PeriodicsReply {
        let is_asked = |jid: &Jid| match (&asked.only, &asked.after) {
            (Some(only), _) => jid == only,
            (None, Some(after)) => jid > after,
            (None, None) => true,
        };
        let found = self.periodics.iter().filter(|(jid, _)| is_asked(jid)).map(|(_, of)| of.clone());
        let count = if asked.only.is_some() { 1 } else { asked.count.get() };
        PeriodicsReply { periodics: found.take(count).collect(), watched: None }
    }

    pub(super) fn due_periodics(&self, now: Timestamp, asked: &DuePeriodics) -> DuePeriodicsReply {
        let mut runs: Vec<(Timestamp, &Periodic)> =
            self.periodics.values().filter_map(|of| Some((of.next?, of))).collect();
        runs.sort_by(|one, other| {
            (one.0, &one.1.template.put.jid).cmp(&(other.0, &other.1.template.put.jid))
        });
        let due = runs.iter().take_while(|(next, _)| *next <= now).take(asked.count.get());
        let due: Vec<DuePeriodic> =
            due.map(|(next, of)| DuePeriodic { template: of.template.clone(), next: *next }).collect();
        DuePeriodicsReply { next: runs.get(due.len()).map(|(next, _)| *next), due }
    }

    pub(super) fn fire_periodic(
        &mut self,
        now: Timestamp,
        fire: &FirePeriodic,
    ) -> Result<FirePeriodicReply, Refusal> {
        let Some(mut periodic) = self.periodics.get(&fire.jid).cloned() else {
            return Err(Refusal::NoSuchRecurring { jid: fire.jid.clone() });
        };
        if periodic.next != fire.expected {
            return Ok(FirePeriodicReply { is_stale: true, jobs: Vec::new() });
        }
        let mut jobs = Vec::new();
        for run in &fire.runs {
            jobs.extend(self.run_periodic(now, *run, &mut periodic));
        }
        periodic.next = fire.next;
        self.periodics.insert(fire.jid.clone(), periodic);
        Ok(FirePeriodicReply { is_stale: false, jobs })
    }

    fn run_periodic(&mut self, now: Timestamp, run: Timestamp, periodic: &mut Periodic) -> Option<Jid> {
        let template = &periodic.template;
        let name = &template.put.jid;
        if template.overlap == Overlap::CancelOld
            && let Some(last) = &periodic.last
            && let Some(job) = self.jobs.get(last)
            && !matches!(job.place.state(), StateName::Complete | StateName::Failed)
        {
            let because = Some(format!("The next run of {name} has begun"));
            // A job that others depend on stays.
            let _ = self.cancel(now, &Cancel { because, ..Cancel::new(vec![last.clone()]) });
        }
        let free = (periodic.count + 1..).map(|count| (count, format!("{name}-{count}")));
        let mut free = free.map(|(count, child)| (count, Jid::new(child).expect("it has room for a number")));
        let (count, child) = free.find(|(_, child)| !self.jobs.contains_key(child))?;
        let mut put = Put { jid: child.clone(), existing: Existing::Keep, ..template.put.clone() };
        let mut options = put.options.take().unwrap_or_default();
        if template.overlap == Overlap::Skip && options.unique.is_none() {
            options.unique = UniqueKey::new(name.to_string()).ok();
        }
        options.expires = template.expires_in.map(|span| run + span);
        put.options = Some(options);
        match self.put(run, &put) {
            Ok(PutReply::Created) => {
                self.job_mut(&child).spawned_from = Some(name.clone());
                (periodic.count, periodic.last, periodic.error) = (count, Some(child.clone()), None);
                Some(child)
            }
            Ok(_) => None,
            Err(refusal) => {
                periodic.error = Some(Box::new(refusal));
                None
            }
        }
    }
}
