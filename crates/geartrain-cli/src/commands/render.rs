//! Rendering jobs for people: tables, cards and history.

use std::io::{self, Write};

use geartrain::{Failure, HistoryEntry, HistoryEvent, Job, JobState, Payload, Timestamp, base64};

use crate::text::{Cell, FAINT, HEADING, card, clean, count, table};
use crate::timestamp::when;
use crate::view::{is_stalled, texts};
use crate::{duration, job_details, timestamp};

/// A payload on one line: its text, or its bytes in base64.
pub(super) fn payload_text(payload: &Payload) -> String {
    match payload.text() {
        Some(text) => text.to_owned(),
        None => format!(
            "{} (base64 of {})",
            base64::encode(payload.bytes()),
            count(payload.bytes().len() as u64, "byte")
        ),
    }
}

fn state(job: &Job, now: Timestamp) -> &'static str {
    if is_stalled(job, now) { "stalled" } else { job.state.name().as_str() }
}

pub(super) fn job_table(out: &mut dyn Write, jobs: &[Job], now: Timestamp) -> io::Result<()> {
    let rows: Vec<[Cell; 6]> = jobs
        .iter()
        .map(|job| {
            [
                Cell::from(&job.jid),
                Cell::state(state(job, now)),
                Cell::from(job.queue.as_ref().map_or("", |queue| queue.as_str())),
                Cell::from(&job.klass),
                Cell::right(job.priority),
                Cell::faint(note(job, now)),
            ]
        })
        .collect();
    table(out, ["JID", "STATE", "QUEUE", "KLASS", "PRIORITY", "NOTE"], &rows)
}

/// A remark on the state of a job.
fn note(job: &Job, now: Timestamp) -> String {
    match &job.state {
        JobState::Scheduled { due } => timestamp::relative(*due, now),
        JobState::Depends { on, .. } => format!("on {}", count(on.len() as u64, "job")),
        JobState::Waiting => String::new(),
        JobState::Running { lock } if lock.expires <= now => {
            format!("{}, lock expired {}", lock.worker, timestamp::relative(lock.expires, now))
        }
        JobState::Running { lock } => {
            format!("{}, for {}", lock.worker, duration::format((lock.expires - now).get().round()))
        }
        JobState::Complete { at } => timestamp::relative(*at, now),
        JobState::Failed { failure } => {
            format!("{}, {}", failure.group, timestamp::relative(failure.when, now))
        }
    }
}

/// Everything about a job.
pub(super) fn job_card(out: &mut dyn Write, job: &Job, now: Timestamp) -> io::Result<()> {
    let mut lines = vec![("jid", Cell::from(&job.jid)), ("state", Cell::state(state(job, now)))];
    match &job.state {
        JobState::Scheduled { due } => lines.push(("due", when(*due, now).into())),
        JobState::Depends { on, due } => {
            lines.push(("depends on", texts(on).join(" ").into()));
            lines.extend(due.map(|due| ("due", when(due, now).into())));
        }
        JobState::Running { lock } => {
            lines.push(("worker", Cell::from(&lock.worker)));
            lines.push(("token", Cell::from(lock.token)));
            lines.push(("expires", when(lock.expires, now).into()));
        }
        JobState::Complete { at } => lines.push(("completed", when(*at, now).into())),
        JobState::Waiting | JobState::Failed { .. } => {}
    }
    lines.extend(job.queue.as_ref().map(|queue| ("queue", Cell::from(queue))));
    lines.push(("klass", Cell::from(&job.klass)));
    lines.push(("priority", Cell::from(job.priority)));
    lines.push(("retries", format!("{} of {} left", job.remaining.max(0), job.retries).into()));
    if !job.tags.is_empty() {
        lines.push(("tags", texts(&job.tags).join(" ").into()));
    }
    if job.tracked {
        lines.push(("tracked", "yes".into()));
    }
    if !job.dependents.is_empty() {
        lines.push(("needed by", texts(&job.dependents).join(" ").into()));
    }
    lines.extend(job.spawned_from.as_ref().map(|from| ("made by", Cell::from(from))));
    lines.extend(job.failure().map(|failure| ("failure", failure_text(failure, now).into())));
    if let Some(about) = &job.details {
        lines.extend(job_details::lines(about, now));
    }
    lines.push(("payload", payload_text(&job.payload).into()));
    card(out, &lines)?;

    if !job.history.is_empty() {
        writeln!(out, "\n{HEADING}History{HEADING:#}")?;
    }
    let ago: Vec<String> = job.history.iter().map(|entry| timestamp::relative(entry.when, now)).collect();
    let width = ago.iter().map(String::len).max().unwrap_or(0);
    for (entry, ago) in job.history.iter().zip(&ago) {
        let exact = timestamp::format(entry.when);
        writeln!(out, "{FAINT}{exact}  {ago:>width$}{FAINT:#}  {}", clean(&history_text(entry)))?;
    }
    Ok(())
}

fn failure_text(failure: &Failure, now: Timestamp) -> String {
    let worker = failure.worker.as_ref().map(|worker| format!(", {worker}")).unwrap_or_default();
    format!("{}: {} ({}{worker})", failure.group, failure.message, timestamp::relative(failure.when, now))
}

fn history_text(entry: &HistoryEntry) -> String {
    match &entry.what {
        HistoryEvent::Put { queue } => format!("submitted to {queue}"),
        HistoryEvent::Popped { worker } => format!("popped by {worker}"),
        HistoryEvent::Done => "completed".to_owned(),
        HistoryEvent::Failed { worker: Some(worker), group } => format!("failed in {group} at {worker}"),
        HistoryEvent::Failed { worker: None, group } => format!("failed in {group}"),
        HistoryEvent::TimedOut => "timed out".to_owned(),
        HistoryEvent::Released { worker } => format!("released by {worker}"),
        HistoryEvent::Crashed { worker } => format!("crashed {worker}"),
        HistoryEvent::Log { message, data: Some(data) } => format!("{message} {data}"),
        HistoryEvent::Log { message, data: None } => message.clone(),
        _ => "an entry that this version does not know".to_owned(),
    }
}
