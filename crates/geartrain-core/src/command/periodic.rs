//! Periodic jobs: recurring jobs beyond Qless, by a cron expression or an interval, with all put options.
//!
//! A template has the time of its next run. A process that finds it due computes the runs and the time after
//! them ([`DuePeriodic::fire`]) and sends [`FirePeriodic`], which is a compare-and-set on the next run: of several
//! processes, one puts the jobs.

use std::collections::VecDeque;

use crate::schedule::Schedule;
use crate::{Count, Jid, NAME_BYTES_MAX, Put, Refusal, Seconds, Timestamp, wire};

/// How many jobs one [`FirePeriodic`] puts at most.
pub const PERIODIC_RUNS_MAX: usize = 1_000;
/// Bytes of payloads that one [`FirePeriodic`] puts, about.
const FIRED_BYTES_MAX: usize = 8 << 20;
/// A hyphen and the longest number, which follow the jid of a template in the jids of its jobs.
const CHILD_BYTES: usize = 1 + 21;
/// The shortest interval, in seconds.
const INTERVAL_MIN: f64 = 0.001;
/// How long a cron expression that cannot be read any more is left alone.
const UNREADABLE_PAUSE: Seconds = Seconds::from_whole(3_600);
/// With [`Missed::Skip`], a run is missed if it is later than this: a restart takes less.
const MISSED_AFTER: Seconds = Seconds::from_whole(60);

/// What a periodic job puts, and when.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PeriodicTemplate {
    /// The put of each run. Its jid names the template, at most 490 bytes: the jobs are `<jid>-<number>`. It has
    /// no delay, no dependencies and no waiter; [`expires_in`](PeriodicTemplate::expires_in) replaces the time
    /// after which a job must not start.
    pub put: Put,
    /// When it runs.
    pub every: Period,
    /// What happens to runs that came due while no process fired them.
    pub missed: Missed,
    /// What happens if the job of an earlier run is not finished.
    pub overlap: Overlap,
    /// How long after its run a job may start.
    pub expires_in: Option<Seconds>,
    /// Whether it is paused: it has no next run.
    pub is_paused: bool,
    /// The text that its author gave for [`every`](PeriodicTemplate::every), if that has been rewritten: a
    /// phrase, or a cron expression that was read in a zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phrase: Option<String>,
}

/// When a periodic job runs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Period {
    /// A fixed interval between runs; at least a millisecond.
    Interval(Seconds),
    /// A cron expression of five, six or seven fields, see [`Schedule`].
    Cron(String),
}

/// What happens to runs that came due while no process fired them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Missed {
    /// All of them run.
    All,
    /// The last so many run; 1 to [`PERIODIC_RUNS_MAX`].
    Last(u32),
    /// None runs but the last one, if that is no more than a minute late.
    Skip,
}

/// What happens to a run if the job of an earlier one is not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Overlap {
    /// Both jobs run.
    Allow,
    /// The new run is left out: its jobs have a unique key in common.
    Skip,
    /// The earlier job is cancelled, also while it runs.
    CancelOld,
}

impl PeriodicTemplate {
    /// A template that runs by a cron expression, with defaults for everything else: the last missed run is made
    /// up, and runs may overlap.
    pub fn new(put: Put, every: Period) -> PeriodicTemplate {
        let missed = match every {
            Period::Interval(_) => Missed::All,
            Period::Cron(_) => Missed::Last(1),
        };
        let (overlap, expires_in) = (Overlap::Allow, None);
        PeriodicTemplate { put, every, missed, overlap, expires_in, is_paused: false, phrase: None }
    }

    /// Refuses a template that could not be fired.
    pub fn check(&self) -> Result<(), Refusal> {
        let bad = |what: &'static str, why: String| Err(Refusal::BadArgument { what: what.into(), why });
        let PeriodicTemplate { put, every, missed, phrase, .. } = self;
        if phrase.as_ref().is_some_and(|phrase| phrase.len() > NAME_BYTES_MAX) {
            return bad("phrase", format!("must have at most {NAME_BYTES_MAX} bytes"));
        }
        if put.jid.text_bytes() > NAME_BYTES_MAX - CHILD_BYTES {
            let max = NAME_BYTES_MAX - CHILD_BYTES;
            return bad("jid", format!("of a recurring job must have at most {max} bytes"));
        }
        if put.delay != Seconds::ZERO || !put.depends.is_empty() {
            return bad("put", "of a recurring job has neither a delay nor dependencies".into());
        }
        if let Some(options) = &put.options
            && (options.attach.is_some() || options.expires.is_some() || options.failure.is_some())
        {
            return bad(
                "put",
                "of a recurring job has neither a waiter, a time of expiry nor a failure".into(),
            );
        }
        match every {
            Period::Interval(interval) if interval.get() < INTERVAL_MIN => {
                return bad("interval", format!("must be at least {INTERVAL_MIN} s"));
            }
            Period::Cron(text) => {
                if let Err(error) = Schedule::parse(text) {
                    return bad("cron", error.to_string());
                }
            }
            Period::Interval(_) => {}
        }
        match missed {
            Missed::Last(runs) if !(1..=PERIODIC_RUNS_MAX as u32).contains(runs) => {
                bad("backlog", format!("must be 1 to {PERIODIC_RUNS_MAX}, not {runs}"))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of the template as it is sent and logged.
    pub fn encoded_bytes(&self) -> usize {
        wire::encode_value(self).len()
    }

    /// The first run of a template that is put now; none if it is paused or never runs again. An interval begins
    /// now.
    pub fn first_run(&self, now: Timestamp) -> Option<Timestamp> {
        if self.is_paused {
            return None;
        }
        match &self.every {
            Period::Interval(_) => Some(now),
            Period::Cron(text) => Schedule::parse(text).ok()?.next(now),
        }
    }
}

/// Creates a periodic job, or replaces one but keeps the count of its jobs. Replies with whether it is new.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PutPeriodic {
    /// Its jid.
    pub jid: Jid,
    /// What it puts. A Redis stores it as it is.
    #[serde(with = "packed")]
    pub template: Box<PeriodicTemplate>,
    /// When it runs next: [`PeriodicTemplate::first_run`], computed by the caller because a script cannot.
    pub next: Option<Timestamp>,
    /// Refuses if there is none with this jid.
    pub must_exist: bool,
}

impl PutPeriodic {
    /// Creates or replaces a periodic job that runs from now on.
    pub fn new(template: PeriodicTemplate, now: Timestamp) -> PutPeriodic {
        let next = template.first_run(now);
        PutPeriodic { jid: template.put.jid.clone(), template: Box::new(template), next, must_exist: false }
    }
}

/// Removes a periodic job; the jobs that it put stay. Replies with whether there was one.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RemovePeriodic {
    /// Its jid.
    pub jid: Jid,
}

/// Lists periodic jobs by jid, a page at a time.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Periodics {
    /// Only this one.
    pub only: Option<Jid>,
    /// Continues after this jid.
    pub after: Option<Jid>,
    /// How many at most.
    pub count: Count,
}

impl Periodics {
    /// Looks up one periodic job.
    pub fn one(jid: Jid) -> Periodics {
        Periodics { only: Some(jid), after: None, count: Count::ONE }
    }
}

/// A page of periodic jobs.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct PeriodicsReply {
    /// The periodic jobs, by jid.
    pub periodics: Vec<Periodic>,
    /// When a process last looked for due ones. On a Redis, nothing runs unless one does.
    pub watched: Option<Timestamp>,
}

/// A periodic job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Periodic {
    /// What it puts, and when.
    #[serde(with = "packed")]
    pub template: Box<PeriodicTemplate>,
    /// Its next run; none if it is paused or over.
    pub next: Option<Timestamp>,
    /// How many jobs it has put.
    pub count: u64,
    /// The last of these.
    pub last: Option<Jid>,
    /// Why the last run put no job, if it was refused.
    pub error: Option<Box<Refusal>>,
}

/// Lists the periodic jobs that are due, the longest due first.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DuePeriodics {
    /// How many at most.
    pub count: Count,
}

/// Periodic jobs that are due.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct DuePeriodicsReply {
    /// The periodic jobs, the longest due first.
    pub due: Vec<DuePeriodic>,
    /// When the first one that is not due yet runs.
    pub next: Option<Timestamp>,
}

/// A periodic job that is due.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DuePeriodic {
    /// What it puts, and when.
    #[serde(with = "packed")]
    pub template: Box<PeriodicTemplate>,
    /// The run that is due.
    pub next: Timestamp,
}

/// Puts the jobs of some runs, if the next run is the expected one.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct FirePeriodic {
    /// The periodic job.
    pub jid: Jid,
    /// The next run as the caller knows it; if it is another one, nothing is done.
    pub expected: Option<Timestamp>,
    /// The times of the runs, at most [`PERIODIC_RUNS_MAX`]. Each job is put as of its run.
    pub runs: Vec<Timestamp>,
    /// The next run after these.
    pub next: Option<Timestamp>,
}

/// What [`FirePeriodic`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct FirePeriodicReply {
    /// Another process was first: nothing was done.
    pub is_stale: bool,
    /// The jobs.
    pub jobs: Vec<Jid>,
}

impl DuePeriodic {
    /// The command that runs it now.
    pub fn fire(&self, now: Timestamp) -> FirePeriodic {
        let PeriodicTemplate { put, every, missed, .. } = &*self.template;
        let max = (FIRED_BYTES_MAX / put.payload.byte_len().max(1)).clamp(1, PERIODIC_RUNS_MAX);
        let (runs, next) = match every {
            Period::Interval(interval) => runs_of(&Interval(*interval), *missed, self.next, now, max),
            Period::Cron(text) => match Schedule::parse(text) {
                Ok(schedule) => runs_of(&schedule, *missed, self.next, now, max),
                // It was checked when it was put, so its zone has been removed from this machine since.
                Err(_) => (Vec::new(), Some(now + UNREADABLE_PAUSE)),
            },
        };
        FirePeriodic { jid: put.jid.clone(), expected: Some(self.next), runs, next }
    }
}

/// A sequence of runs.
trait Runs {
    /// The first run after a time.
    fn after(&self, run: Timestamp, time: Timestamp) -> Option<Timestamp>;
}

impl Runs for Schedule {
    fn after(&self, _: Timestamp, time: Timestamp) -> Option<Timestamp> {
        self.next(time)
    }
}

struct Interval(Seconds);

impl Runs for Interval {
    fn after(&self, run: Timestamp, time: Timestamp) -> Option<Timestamp> {
        let steps = ((time - run).get() / self.0.get()).floor().max(0.0);
        let next = run + Seconds::saturating((steps + 1.0) * self.0.get());
        // With very large times the interval may be too small to be added.
        Some(if next > time { next } else { time.next_up() })
    }
}

/// The runs from `due` until now that are made up, and the one after them.
fn runs_of(
    of: &impl Runs,
    missed: Missed,
    due: Timestamp,
    now: Timestamp,
    max: usize,
) -> (Vec<Timestamp>, Option<Timestamp>) {
    match missed {
        Missed::All => {
            let (mut runs, mut next) = (Vec::new(), Some(due));
            while let Some(run) = next.filter(|run| *run <= now && runs.len() < max) {
                runs.push(run);
                next = of.after(run, run);
            }
            (runs, next)
        }
        Missed::Skip => {
            let from = now - MISSED_AFTER;
            let first = if due >= from { Some(due) } else { of.after(due, from) };
            (last_runs(of, first, now, 1), of.after(due, now))
        }
        Missed::Last(count) => {
            let count = (count as usize).min(max);
            // The runs of a window that ends now, and grows until it has enough of them.
            let mut window = Seconds::from_whole(60);
            let runs = loop {
                let from = now - window;
                let first = if due >= from { Some(due) } else { of.after(due, from) };
                let runs = last_runs(of, first, now, count);
                if runs.len() >= count || due >= from {
                    break runs;
                }
                window = Seconds::saturating(window.get() * 4.0);
            };
            (runs, of.after(due, now))
        }
    }
}

/// The last `max` runs from `first` until now.
fn last_runs(of: &impl Runs, first: Option<Timestamp>, now: Timestamp, max: usize) -> Vec<Timestamp> {
    let (mut runs, mut next) = (VecDeque::new(), first);
    while let Some(run) = next.filter(|run| *run <= now) {
        if runs.len() == max {
            runs.pop_front();
        }
        runs.push_back(run);
        next = of.after(run, run);
    }
    runs.into()
}

/// A template as one text, which a Redis stores as it is: MessagePack, with a character from U+0000 to U+00FF for
/// each byte, because texts are UTF-8 and Redis's MessagePack library has no bytes.
mod packed {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{PeriodicTemplate, wire};

    pub(super) fn serialize<S: Serializer>(template: &PeriodicTemplate, to: S) -> Result<S::Ok, S::Error> {
        wire::encode_value(template).into_iter().map(char::from).collect::<String>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Box<PeriodicTemplate>, D::Error> {
        let text = String::deserialize(from)?;
        let bytes: Result<Vec<u8>, _> = text.chars().map(u8::try_from).collect();
        let bytes = bytes.map_err(|_| D::Error::custom("a packed template has characters up to U+00FF"))?;
        wire::decode_value(&bytes).map(Box::new).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Klass, QueueName};

    fn due(every: Period, missed: Missed, next: i32) -> DuePeriodic {
        let jid = Jid::new("nightly").expect("a name");
        let put = Put::new(QueueName::new("q").expect("a name"), jid, Klass::new("k").expect("a name"), "{}");
        let template = PeriodicTemplate { missed, ..PeriodicTemplate::new(put, every) };
        DuePeriodic { template: Box::new(template), next: next.into() }
    }

    fn fired(every: &Period, missed: Missed, next: i32, now: i32) -> (Vec<i64>, Option<i64>) {
        let fire = due(every.clone(), missed, next).fire(now.into());
        let whole = |time: &Timestamp| time.get() as i64;
        (fire.runs.iter().map(whole).collect(), fire.next.as_ref().map(whole))
    }

    #[test]
    fn missed_runs_are_made_up_as_the_template_says() {
        let minutes = Period::Cron("* * * * *".into());
        let every_minute = Period::Interval(Seconds::from(60));
        for every in [minutes, every_minute] {
            assert_eq!(fired(&every, Missed::All, 60, 60), (vec![60], Some(120)));
            assert_eq!(fired(&every, Missed::All, 60, 200), (vec![60, 120, 180], Some(240)));
            assert_eq!(fired(&every, Missed::Last(1), 60, 200), (vec![180], Some(240)));
            assert_eq!(fired(&every, Missed::Last(2), 60, 100_000), (vec![99_900, 99_960], Some(100_020)));
            assert_eq!(fired(&every, Missed::Last(9), 60, 200), (vec![60, 120, 180], Some(240)));
            assert_eq!(fired(&every, Missed::Skip, 60, 119), (vec![60], Some(120)));
            assert_eq!(fired(&every, Missed::Skip, 60, 239), (vec![180], Some(240)));
            assert_eq!(fired(&every, Missed::Skip, 60, 240), (vec![240], Some(300)), "180 is missed");
        }
        let hourly = Period::Cron("0 * * * *".into());
        assert_eq!(fired(&hourly, Missed::Skip, 3_600, 3_661), (vec![], Some(7_200)));
        assert_eq!(fired(&hourly, Missed::Last(1), 3_600, 3_661), (vec![3_600], Some(7_200)));
        let once = Period::Cron("1970 1 1 * 1 0 0".into());
        assert_eq!(fired(&once, Missed::Last(1), 3_600, 9_000), (vec![3_600], None));
    }

    #[test]
    fn a_command_puts_a_thousand_jobs_at_most() {
        let (runs, next) = fired(&Period::Interval(Seconds::from(1)), Missed::All, 0, 5_000);
        assert_eq!((runs.len(), runs.last(), next), (1_000, Some(&999), Some(1_000)));
    }

    #[test]
    fn a_packed_template_is_the_same() {
        let put =
            PutPeriodic::new(*due(Period::Cron("* * * * *".into()), Missed::Skip, 0).template, 5.into());
        let bytes = wire::encode_value(&put);
        assert_eq!(wire::decode_value::<PutPeriodic>(&bytes).expect("it was encoded"), put);
    }
}
