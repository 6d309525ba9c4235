//! Recurring jobs beyond Qless: by cron expression or phrase, and with put options.

use std::time::Duration;

use clap::Args;
use geartrain::schedule::{Schedule, When};
use geartrain::{
    Backoff, Client, Count, FirePeriodic, Jid, Missed, Overlap, Period, Periodic, PeriodicTemplate,
    Periodics, Put, PutOptions, PutPeriodic, RESULT_TTL_DEFAULT, Recur, Refusal, RemovePeriodic, Seconds,
    Timestamp, UniqueKey,
};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::put::RETRIES_DEFAULT;
use super::render::payload_text;
use super::{Done, Due};
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, TextOut, card, count};
use crate::timestamp::when;
use crate::values::{span, unique_key};
use crate::view::{Number, texts};
use crate::{backoff, duration, payload, timestamp};

/// On a Redis, a process that fires periodic jobs looks for due ones once a second; so many seconds are too long.
const WATCHED_WITHIN: i32 = 15;

/// Options of a recurring job that Qless does not have.
#[derive(Debug, Default, PartialEq, Args)]
pub(super) struct PeriodicArgs {
    /// Run by a cron expression or a phrase: "0 9 * * mon-fri", "weekdays at 9:00"; see `geartrain next --help`
    #[arg(long, value_name = "WHEN", value_parser = recurrence, conflicts_with = "every")]
    pub(super) cron: Option<Recurrence>,
    /// If the job of an earlier run is not finished: allow both, skip the new run, or cancel-old
    #[arg(long, value_name = "POLICY", value_parser = overlap)]
    pub(super) overlap: Option<Overlap>,
    /// How long one attempt may take, regardless of heartbeats
    #[arg(long, value_name = "DURATION", value_parser = span)]
    timeout: Option<Seconds>,
    /// The delay before a retry: 30s, or growing as in 10s..1h
    #[arg(long, value_name = "SPEC", value_parser = backoff::parse)]
    backoff: Option<Backoff>,
    /// Keep results for `geartrain result`; without a duration, for 25h
    #[arg(long, value_name = "DURATION", value_parser = span, num_args = 0..=1)]
    keep_result: Option<Option<Seconds>>,
    /// Deduplicate: leave a run out while an unfinished job of the queue has this key
    #[arg(long, value_name = "KEY", value_parser = unique_key())]
    unique: Option<UniqueKey>,
    /// Fail a job that has not started this long after its run
    #[arg(long, value_name = "DURATION", value_parser = span)]
    expires_in: Option<Seconds>,
}

impl PeriodicArgs {
    pub(super) fn is_given(&self) -> bool {
        *self != PeriodicArgs::default()
    }

    /// The template that these options and a put make.
    pub(super) fn template(self, put: Put, every: Period, backlog: Option<Backlog>) -> PeriodicTemplate {
        // A cron expression has another default for missed runs.
        let every = self.cron.clone().map_or(every, |recurrence| Period::Cron(recurrence.cron));
        let mut template = PeriodicTemplate::new(put, every);
        self.change(&mut template);
        if let Some(Backlog(missed)) = backlog {
            template.missed = missed;
        }
        template
    }

    /// Changes what is given.
    pub(super) fn change(self, template: &mut PeriodicTemplate) {
        if let Some(Recurrence { cron, phrase }) = self.cron {
            (template.every, template.phrase) = (Period::Cron(cron), phrase);
        }
        template.overlap = self.overlap.unwrap_or(template.overlap);
        template.expires_in = self.expires_in.or(template.expires_in);
        let mut options = template.put.options.take().unwrap_or_default();
        options.attempt_max = self.timeout.or(options.attempt_max);
        options.backoff = self.backoff.or(options.backoff);
        options.unique = self.unique.or(options.unique);
        if let Some(span) = self.keep_result {
            options.result_ttl = Some(span.unwrap_or(RESULT_TTL_DEFAULT));
        }
        template.put.options = (*options != PutOptions::default()).then_some(options);
    }
}

/// How many missed runs are made up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Backlog(Missed);

impl Backlog {
    /// The number of Qless; none if it has no notion of it.
    pub(super) fn as_number(self) -> Option<u32> {
        match self.0 {
            Missed::All => Some(0),
            Missed::Last(runs) => Some(runs),
            _ => None,
        }
    }

    pub(super) fn missed(self) -> Missed {
        self.0
    }
}

pub(super) fn backlog(text: &str) -> Result<Backlog, String> {
    let missed = match text {
        "skip" => Missed::Skip,
        "0" => Missed::All,
        number => {
            let bad = || format!("expected a number of runs, 0 for all of them, or skip, not {number:?}");
            Missed::Last(number.parse().map_err(|_| bad())?)
        }
    };
    Ok(Backlog(missed))
}

fn overlap(text: &str) -> Result<Overlap, String> {
    match text {
        "allow" => Ok(Overlap::Allow),
        "skip" => Ok(Overlap::Skip),
        "cancel-old" => Ok(Overlap::CancelOld),
        other => Err(format!("expected allow, skip or cancel-old, not {other:?}")),
    }
}

/// A cron expression as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Recurrence {
    pub(super) cron: String,
    /// What was given, if that is not the expression.
    pub(super) phrase: Option<String>,
}

/// An expression is stored as it was written, because on a WorkKit schedule it is part of the id. A phrase, or an
/// expression that is read in the zone of --zone, is stored as the expression that it stands for.
pub(super) fn recurrence(text: &str) -> Result<Recurrence, String> {
    match When::parse(text, timestamp::now(), &timestamp::zones()?).map_err(|why| why.to_string())? {
        When::Recurring(schedule) if Schedule::parse(text).as_ref() == Ok(&schedule) => {
            Ok(Recurrence { cron: text.to_owned(), phrase: None })
        }
        When::Recurring(schedule) => {
            Ok(Recurrence { cron: schedule.to_string(), phrase: Some(text.to_owned()) })
        }
        When::Once(at) => {
            Err(format!("names one time, {}, and not a recurrence: see `put --at`", timestamp::format(at)))
        }
    }
}

/// Creates or replaces a recurring job of Qless.
pub(super) async fn recur(
    client: &Client,
    put: Put,
    every: Duration,
    backlog: u32,
    due: &Due,
    out: &mut Output<'_>,
) -> Done {
    let jid = put.jid.clone();
    client
        .run(Recur {
            offset: due.delay,
            priority: put.priority.unwrap_or_default(),
            retries: put.retries.unwrap_or(RETRIES_DEFAULT),
            tags: put.tags.unwrap_or_default(),
            backlog,
            ..Recur::new(put.queue, jid.clone(), put.klass, put.payload, every.into())
        })
        .await?;
    due.remark(out)?;
    let view = json!({ "jid": jid.to_string(), "outcome": "recurring", "coalesced": false });
    Ok(out.line(&due.add_to(view), jid)?)
}

/// Creates or replaces a periodic job.
pub(super) async fn add(
    client: &Client,
    mut template: PeriodicTemplate,
    first: Option<Timestamp>,
    out: &mut Output<'_>,
) -> Done {
    if let Some(jid) = client.backend().periodic_jid(&template) {
        template.put.jid = jid;
    }
    let jid = template.put.jid.clone();
    let mut put = PutPeriodic::new(template, out.now);
    let Some(next) = first.map(|first| first.max(out.now)).or(put.next) else {
        return Err(Failure::Refused("it would never run: its last run is in the past".to_owned()));
    };
    put.next = Some(next);
    client.run(put).await?;
    let watched = client.run(Periodics::one(jid.clone())).await?.watched;
    if !out.json {
        out.remark(format_args!("runs first {}", when(next, out.now)))?;
        if !is_watched(client, watched, out.now) {
            out.remark(UNWATCHED)?;
        }
    }
    let view = json!({
        "jid": jid.to_string(), "outcome": "recurring", "coalesced": false, "due": Number::from(next),
    });
    Ok(out.line(&view, jid)?)
}

/// What people are told about periodic jobs that no process fires.
pub(super) const UNWATCHED: &str =
    "no process runs it: start `geartrain work` with this --url, or `geartrain server` with it as --store";

/// Whether a process fires periodic jobs. One that owns a directory does, but this one ends.
pub(super) fn is_watched(client: &Client, watched: Option<Timestamp>, now: Timestamp) -> bool {
    !client.is_own_directory() && watched.is_some_and(|at| at + Seconds::from(WATCHED_WITHIN) >= now)
}

/// A periodic job.
pub(super) async fn find(client: &Client, jid: &Jid) -> Result<Option<Periodic>, Failure> {
    Ok(find_watched(client, jid).await?.map(|(of, _)| of))
}

/// A periodic job, and when a process last looked for due ones.
pub(super) async fn find_watched(
    client: &Client,
    jid: &Jid,
) -> Result<Option<(Periodic, Option<Timestamp>)>, Failure> {
    match client.run(Periodics::one(jid.clone())).await {
        Ok(mut found) => Ok(found.periodics.pop().map(|of| (of, found.watched))),
        Err(geartrain::Error::Refused(Refusal::Unsupported { .. })) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// All periodic jobs, and when a process last looked for due ones.
pub(super) async fn all(client: &Client) -> Result<(Vec<Periodic>, Option<Timestamp>), Failure> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let asked = Periodics { only: None, after, count: Count::new(1_000).unwrap_or(Count::ONE) };
        let page = match client.run(asked).await {
            Err(geartrain::Error::Refused(Refusal::Unsupported { .. })) => return Ok((all, None)),
            page => page?,
        };
        after = page.periodics.last().map(|of| of.template.put.jid.clone());
        all.extend(page.periodics);
        if after.is_none() {
            return Ok((all, page.watched));
        }
    }
}

/// Pauses or resumes a periodic job.
pub(super) async fn pause(
    client: &Client,
    jid: &Jid,
    is_paused: bool,
    now: Timestamp,
) -> Result<Periodic, Failure> {
    let Some(periodic) = find(client, jid).await? else {
        let hint = "only recurring jobs with --cron or put options can be paused; see `geartrain recur ls`";
        return Err(Failure::Refused(format!("there is no such recurring job: {jid}; {hint}")));
    };
    change(client, PeriodicTemplate { is_paused, ..*periodic.template }, now).await
}

/// Stores a changed template.
pub(super) async fn change(
    client: &Client,
    template: PeriodicTemplate,
    now: Timestamp,
) -> Result<Periodic, Failure> {
    let jid = template.put.jid.clone();
    client.run(PutPeriodic { must_exist: true, ..PutPeriodic::new(template, now) }).await?;
    find(client, &jid).await?.ok_or_else(|| Refusal::NoSuchRecurring { jid }.into())
}

/// Runs a periodic job now, beside its schedule. Returns the job.
pub(super) async fn run(client: &Client, jid: &Jid, now: Timestamp) -> Result<Jid, Failure> {
    // Its own run may come in between.
    for _ in 0..5 {
        let Some(periodic) = find(client, jid).await? else {
            return Err(Refusal::NoSuchRecurring { jid: jid.clone() }.into());
        };
        let next = periodic.next;
        let fire = FirePeriodic { jid: jid.clone(), expected: next, runs: vec![now], next };
        let mut fired = client.run(fire).await?;
        if let Some(job) = fired.jobs.pop() {
            return Ok(job);
        }
        if !fired.is_stale {
            let error = find(client, jid).await?.and_then(|of| of.error);
            let left_out = "the job of an earlier run is not finished, and --overlap is skip".to_owned();
            return Err(Failure::Refused(error.map_or(left_out, |error| error.to_string())));
        }
    }
    Err(Failure::Refused(format!("{jid} ran several times meanwhile; try again")))
}

pub(super) async fn remove(client: &Client, jid: &Jid) -> Result<bool, Failure> {
    Ok(client.run(RemovePeriodic { jid: jid.clone() }).await?)
}

/// When a periodic job runs, for people: as its author wrote it, with the zone if that was given apart.
pub(super) fn every_text(template: &PeriodicTemplate) -> String {
    match (&template.every, &template.phrase) {
        (Period::Interval(interval), _) => duration::format(interval.get()),
        (Period::Cron(cron), None) => cron.clone(),
        (Period::Cron(cron), Some(phrase)) => match zone_of(cron) {
            Some(zone) if zone != "UTC" && !phrase.to_lowercase().contains(&zone.to_lowercase()) => {
                format!("{phrase} {zone}")
            }
            _ => phrase.clone(),
        },
        _ => "other".to_owned(),
    }
}

/// The named zone of a cron expression.
fn zone_of(cron: &str) -> Option<String> {
    Schedule::parse(cron).ok()?.zone().name().map(str::to_owned)
}

/// A cron expression in the seven fields, which WorkKit has too.
fn fields_of(cron: &str) -> String {
    Schedule::parse(cron).map_or_else(|_| cron.to_owned(), |schedule| schedule.to_string())
}

/// A periodic job, for JSON.
#[derive(Debug, Serialize)]
pub(super) struct PeriodicView {
    jid: String,
    queue: String,
    klass: String,
    every: Option<Number>,
    cron: Option<String>,
    text: Option<String>,
    zone: Option<String>,
    next: Option<Number>,
    paused: bool,
    count: u64,
    last: Option<String>,
    error: Option<String>,
    backlog: Option<u32>,
    overlap: &'static str,
    priority: Number,
    retries: u32,
    tags: Vec<String>,
    timeout: Option<Number>,
    keep_result: Option<Number>,
    expires_in: Option<Number>,
    unique: Option<String>,
    payload: Box<RawValue>,
}

impl PeriodicView {
    pub(super) fn new(of: &Periodic) -> PeriodicView {
        let PeriodicTemplate { put, every, missed, overlap, expires_in, is_paused, phrase } = &*of.template;
        let (every, cron) = match every {
            Period::Interval(interval) => (Some(Number(interval.get())), None),
            Period::Cron(cron) => (None, Some(cron)),
            _ => (None, None),
        };
        let options = put.options.as_deref();
        let number = |seconds: Seconds| Number(seconds.get());
        PeriodicView {
            jid: put.jid.to_string(),
            queue: put.queue.to_string(),
            klass: put.klass.to_string(),
            every,
            cron: cron.map(|cron| fields_of(cron)),
            text: phrase.as_ref().or(cron).cloned(),
            zone: cron.and_then(|cron| zone_of(cron)),
            next: of.next.map(Number::from),
            paused: *is_paused,
            count: of.count,
            last: of.last.as_ref().map(ToString::to_string),
            error: of.error.as_ref().map(ToString::to_string),
            backlog: Backlog(*missed).as_number(),
            overlap: overlap_text(*overlap),
            priority: Number(put.priority.unwrap_or_default().get()),
            retries: put.retries.unwrap_or(RETRIES_DEFAULT),
            tags: texts(put.tags.as_deref().unwrap_or_default()),
            timeout: options.and_then(|options| options.attempt_max).map(number),
            keep_result: options.and_then(|options| options.result_ttl).map(number),
            expires_in: expires_in.map(number),
            unique: options.and_then(|options| options.unique.as_ref()).map(key_text),
            payload: payload::to_json(&put.payload),
        }
    }
}

fn key_text(key: &UniqueKey) -> String {
    String::from_utf8_lossy(key.as_bytes()).into_owned()
}

fn overlap_text(overlap: Overlap) -> &'static str {
    match overlap {
        Overlap::Skip => "skip",
        Overlap::CancelOld => "cancel-old",
        _ => "allow",
    }
}

/// Its next run, for people.
pub(super) fn next_text(of: &Periodic, now: Timestamp) -> String {
    match of.next {
        Some(next) => timestamp::relative(next, now),
        None if of.template.is_paused => "paused".to_owned(),
        None => "never".to_owned(),
    }
}

pub(super) fn show(of: &Periodic, now: Timestamp, out: &mut TextOut<'_>) -> std::io::Result<()> {
    let PeriodicTemplate { put, every, missed, overlap, expires_in, .. } = &*of.template;
    let text = every_text(&of.template);
    let fields = match every {
        Period::Cron(cron) => Some(fields_of(cron)).filter(|fields| *fields != text),
        _ => None,
    };
    let options = put.options.as_deref().cloned().unwrap_or_default();
    let backlog = match missed {
        Missed::All => "catches up on every missed run".to_owned(),
        Missed::Last(1) => "catches up on the last missed run".to_owned(),
        Missed::Last(runs) => format!("catches up on at most {runs} missed runs"),
        _ => "leaves missed runs out".to_owned(),
    };
    let span = |span: Option<Seconds>| span.map_or_else(String::new, |span| duration::format(span.get()));
    let next = of.next.map_or_else(|| next_text(of, now), |next| when(next, now));
    let mut rows = vec![
        ("jid", Cell::from(&put.jid)),
        ("queue", Cell::from(&put.queue)),
        ("klass", Cell::from(&put.klass)),
        ("every", text.into()),
        ("cron", fields.unwrap_or_default().into()),
        ("next", next.into()),
        ("made", count(of.count, "job").into()),
        ("last", of.last.as_ref().map_or_else(String::new, ToString::to_string).into()),
        ("refused", of.error.as_ref().map_or_else(String::new, ToString::to_string).into()),
        ("backlog", backlog.into()),
        ("overlap", overlap_text(*overlap).to_owned().into()),
        ("priority", Cell::from(put.priority.unwrap_or_default())),
        ("retries", Cell::from(put.retries.unwrap_or(RETRIES_DEFAULT))),
        ("tags", texts(put.tags.as_deref().unwrap_or_default()).join(" ").into()),
        ("timeout", span(options.attempt_max).into()),
        ("backoff", options.backoff.as_ref().map_or_else(String::new, backoff::format).into()),
        ("keep result", span(options.result_ttl).into()),
        ("expires in", span(*expires_in).into()),
        ("unique", options.unique.as_ref().map_or_else(String::new, key_text).into()),
        ("payload", payload_text(&put.payload).into()),
    ];
    rows.retain(|(_, cell)| !cell.is_blank());
    card(out, &rows)
}
