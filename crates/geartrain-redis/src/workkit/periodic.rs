//! Recurring jobs: a job with a cron string that has more than one run.

use geartrain_core::schedule::Schedule;
use geartrain_core::{
    Jid, Klass, Missed, Overlap, Period, Periodic, PeriodicTemplate, Periodics, PeriodicsReply, Put,
    PutPeriodic, QueueName, Refusal, Seconds, Timestamp,
};

use super::payload::StoredJob;
use super::put::{self, NewJob};
use super::session::{Session, unsupported};
use super::{CronOrder, canonical, cron};
use crate::layout::CallError;

impl Session {
    /// Inserts a recurring job. Its id is that of its content, whatever the template's.
    pub(super) async fn put_periodic(&self, put: &PutPeriodic, now: Timestamp) -> Result<bool, CallError> {
        // A phrase is for people, and stands for what is in the cron string.
        let PeriodicTemplate { put: of, every, missed, overlap, expires_in, is_paused, phrase: _ } =
            &*put.template;
        put::check(of)?;
        for (is_given, operation) in [
            (matches!(every, Period::Interval(_)), "run a job at an interval: use a cron expression"),
            (
                !matches!(missed, Missed::Last(1)),
                "keep with a job what happens to missed runs: listeners choose with ?catch_up=true",
            ),
            (
                *overlap != Overlap::Allow,
                "keep with a job whether runs overlap: listeners choose with ?no_overlap=true",
            ),
            (expires_in.is_some(), "let a job expire"),
            (*is_paused, "pause a recurring job"),
            (put.must_exist, "change a recurring job: its id is its content. Remove it, and put another"),
            (of.delay != Seconds::ZERO, "delay a recurring job"),
        ] {
            if is_given {
                return Err(unsupported(operation).into());
            }
        }
        let Period::Cron(text) = every else { return Err(unsupported("run a job at such a period").into()) };
        let (cron, first) = self.recurrence(text, now)?;
        let job = NewJob {
            schedule: &of.queue,
            klass: &of.klass,
            args: of.payload.bytes(),
            first,
            cron,
            retries: of.retries.filter(|retries| *retries > 0),
            // Their ids are those that `periodic_jid` gives.
            nonce: false,
        };
        Ok(self.insert(job).await?.is_new)
    }

    /// The id that a recurring job will have; none if it will be refused.
    pub(super) fn periodic_jid(&self, template: &PeriodicTemplate) -> Option<Jid> {
        let PeriodicTemplate { put, every: Period::Cron(text), .. } = template else { return None };
        let text = put::text_of(&put.klass, put.payload.bytes(), &self.cron_of(text).ok()?, None).ok()?;
        Jid::new(canonical::id_of(&text)).ok()
    }

    /// The cron string to store: as it was written, if it has the fields of the schedule, because it is part of
    /// the id. The order of Cuckoo is not looked for: a text may be valid in both, and the caller's is ours.
    fn cron_of(&self, text: &str) -> Result<String, Refusal> {
        if self.options.order == CronOrder::Document && Schedule::parse_seven(text).is_ok() {
            return Ok(text.to_owned());
        }
        let schedule = Schedule::parse(text).map_err(|error| bad_cron(error.to_string()))?;
        if !schedule.zone().is_utc() {
            return Err(unsupported("run a job in a time zone: its cron strings are in UTC"));
        }
        self.written(&schedule)
    }

    /// The cron string to store for an expression, and its first run.
    pub(super) fn recurrence(&self, text: &str, now: Timestamp) -> Result<(String, Timestamp), CallError> {
        let cron = self.cron_of(text)?;
        let schedule = self.options.order.parse(&cron).map_err(bad_cron)?;
        let first = cron::first_run(&schedule, now)?;
        Ok((cron, first))
    }

    /// A schedule as a cron string, which is refused if the seven fields cannot express it.
    fn written(&self, schedule: &Schedule) -> Result<String, Refusal> {
        self.options.order.write(schedule).ok_or_else(|| {
            bad_cron(format!(
                "{schedule} cannot be written in WorkKit's seven fields: days must match both day fields"
            ))
        })
    }

    /// Removes a recurring job. False if there is none.
    pub(super) async fn remove_periodic(&self, jid: &Jid) -> Result<bool, CallError> {
        for schedule in self.schedules().await? {
            let jobs = self.recurring_jobs(&schedule).await?;
            if jobs.iter().any(|(id, ..)| *id == jid.to_string()) {
                return self.remove(&schedule, &jid.to_string()).await;
            }
        }
        Ok(false)
    }

    /// Lists recurring jobs by id. Listeners of all kinds run them and leave no trace, but a run that is long
    /// overdue shows that none does: it is reported as the last look for due ones.
    pub(super) async fn periodics(
        &self,
        request: &Periodics,
        now: Timestamp,
    ) -> Result<PeriodicsReply, CallError> {
        let (mut periodics, mut watched) = (Vec::new(), now);
        for schedule in self.schedules().await? {
            let mut oldest = now;
            for (id, job, score) in self.recurring_jobs(&schedule).await? {
                let (Ok(jid), Some(klass)) = (Jid::new(&id), job.klass()) else { continue };
                if request.only.as_ref().is_some_and(|only| jid != *only) {
                    continue;
                }
                oldest = oldest.min(cron::time_of(score));
                let next = cron::time_of(score);
                periodics.push(periodic_of(&schedule, jid, klass, job, next, self.options.order));
            }
            // A listener that makes up missed runs takes old ones too.
            if oldest < now && !self.has_leases(&schedule, now).await? {
                watched = watched.min(oldest);
            }
        }
        let jid = |periodic: &Periodic| periodic.template.put.jid.clone();
        periodics.sort_by_key(jid);
        periodics.retain(|periodic| request.after.as_ref().is_none_or(|after| jid(periodic) > *after));
        periodics.truncate(request.count.get());
        Ok(PeriodicsReply { periodics, watched: Some(watched) })
    }
}

/// A recurring job of a schedule.
pub(super) fn periodic_of(
    schedule: &QueueName,
    jid: Jid,
    klass: Klass,
    job: StoredJob,
    next: Timestamp,
    order: CronOrder,
) -> Periodic {
    let put = Put::new(schedule.clone(), jid, klass, job.payload());
    let cron = match order {
        CronOrder::Document => job.cron,
        CronOrder::Cuckoo => job.schedule.to_string(),
    };
    Periodic {
        template: Box::new(PeriodicTemplate::new(put, Period::Cron(cron))),
        next: Some(next),
        count: 0,
        last: None,
        error: None,
    }
}

fn bad_cron(why: String) -> Refusal {
    Refusal::BadArgument { what: "cron".into(), why }
}
