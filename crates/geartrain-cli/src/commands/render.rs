//! Rendering jobs for people: tables, cards and history.

use std::borrow::Cow;
use std::io::{self, Write};

use geartrain::{EndReason, Failure, HistoryEntry, HistoryEvent, Job, JobState, Payload, Timestamp, base64};

use crate::text::{Cell, FAINT, HEADING, TextOut, card, clean, clean_lines, count, table, table_with_texts};
use crate::timestamp::when;
use crate::{duration, job_details, timestamp};
use geartrain_json::{is_stalled, texts};

/// A history with as many entries has lost some, unless the option `max-job-history` is not its default.
const HISTORY_ENTRIES: usize = 100;

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

pub(super) fn job_table(out: &mut TextOut<'_>, jobs: &[Job], now: Timestamp) -> io::Result<()> {
    let rows: Vec<[Cell; 6]> = jobs
        .iter()
        .map(|job| {
            [
                Cell::id(&job.jid),
                Cell::state(state(job, now)),
                Cell::from(queue(job)),
                Cell::from(&job.klass),
                Cell::right(job.priority),
                Cell::faint(note(job, now)),
            ]
        })
        .collect();
    table(out, ["JID", "STATE", "QUEUE", "KLASS", "PRIORITY", "NOTE"], &rows)
}

/// Failed jobs, each with its message under it.
pub(super) fn failure_table(out: &mut TextOut<'_>, jobs: &[Job], now: Timestamp) -> io::Result<()> {
    let rows: Vec<[Cell; 5]> = jobs
        .iter()
        .map(|job| {
            let failure = job.failure();
            let worker = failure.and_then(|failure| failure.worker.as_ref());
            [
                Cell::id(&job.jid),
                Cell::from(queue(job)),
                Cell::from(&job.klass),
                Cell::from(worker.map_or("", |worker| worker.as_str())),
                Cell::whole(
                    failure.map(|failure| timestamp::relative(failure.when, now)).unwrap_or_default(),
                ),
            ]
        })
        .collect();
    let lines_max = if out.width.is_some() { MESSAGE_LINES_MAX } else { usize::MAX };
    table_with_texts(out, ["JID", "QUEUE", "KLASS", "WORKER", "FAILED"], &rows, |row| {
        let job = &jobs[row];
        job.failure().map(|failure| message_lines(job, &failure.message, lines_max)).unwrap_or_default()
    })
}

/// How many lines of a message a list on a terminal shows.
const MESSAGE_LINES_MAX: usize = 12;

/// A message, without lines in the middle if it has too many: the first ones say what failed, or the last.
fn message_lines(job: &Job, message: &str, lines_max: usize) -> String {
    let message = message.trim_end().replace("\r\n", "\n").replace('\t', "    ");
    let message = clean_lines(&message);
    let lines: Vec<Cow<'_, str>> = message.lines().map(Cow::from).collect();
    if lines.len() <= lines_max {
        return lines.join("\n");
    }
    let (head, tail) = (lines_max / 2, lines.len() - (lines_max - lines_max / 2 - 1));
    let between =
        format!("… {} more lines, see `geartrain get {}`", tail - head, clean(&job.jid.to_string()));
    [&lines[..head], &[Cow::from(between)], &lines[tail..]].concat().join("\n")
}

fn queue(job: &Job) -> &str {
    job.queue.as_ref().map_or("", |queue| queue.as_str())
}

/// A remark on the state of a job.
fn note(job: &Job, now: Timestamp) -> String {
    match &job.state {
        JobState::Scheduled { due } => timestamp::relative(*due, now),
        JobState::Depends { on, .. } => format!("on {}", count(on.len() as u64, "job")),
        JobState::Waiting => String::new(),
        JobState::Running { lock } => {
            let running = match popped(job) {
                Some(popped) => {
                    format!("running {}, ", duration::format((now - popped).get().max(0.0).round()))
                }
                None => String::new(),
            };
            let lock_left = if lock.expires <= now {
                format!("lock expired {}", timestamp::relative(lock.expires, now))
            } else {
                format!("lock {} left", duration::format((lock.expires - now).get().round()))
            };
            format!("{running}{lock_left}, {}", lock.worker)
        }
        JobState::Complete { at } => timestamp::relative(*at, now),
        JobState::Failed { failure } => {
            format!("{}, {}", failure.group, timestamp::relative(failure.when, now))
        }
    }
}

/// When the current attempt began, unless the history no longer has it.
pub(super) fn popped(job: &Job) -> Option<Timestamp> {
    let popped = job.history.iter().rev().find(|entry| matches!(entry.what, HistoryEvent::Popped { .. }));
    popped.map(|entry| entry.when)
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
    lines.extend(job.failure().map(|failure| ("failure", Cell::lines(&failure_text(failure, now)))));
    if let Some(about) = &job.details {
        lines.extend(job_details::lines(about, now));
    }
    lines.push(("payload", payload_text(&job.payload).into()));
    card(out, &lines)?;

    let story = job.story();
    if !story.is_empty() {
        writeln!(out, "\n{HEADING}History{HEADING:#}")?;
    }
    let ago: Vec<String> = story.iter().map(|entry| timestamp::relative(entry.when, now)).collect();
    let width = ago.iter().map(String::len).max().unwrap_or(0);
    let pops = story.iter().filter(|entry| matches!(entry.what, HistoryEvent::Popped { .. })).count();
    // Attempts cannot be counted in a history that has lost some.
    let is_counted = pops > 1 && job.history.len() < HISTORY_ENTRIES;
    let mut attempt = 0;
    for (entry, ago) in story.iter().zip(&ago) {
        let exact = timestamp::format(entry.when);
        attempt += usize::from(matches!(entry.what, HistoryEvent::Popped { .. }));
        let counted = match entry.what {
            HistoryEvent::Popped { .. } | HistoryEvent::AttemptEnded { .. } if is_counted && attempt > 0 => {
                format!("attempt {attempt}: ")
            }
            _ => String::new(),
        };
        writeln!(out, "{FAINT}{exact}  {ago:>width$}{FAINT:#}  {counted}{}", clean(&history_text(entry)))?;
    }
    Ok(())
}

fn failure_text(failure: &Failure, now: Timestamp) -> String {
    let worker =
        failure.worker.as_ref().map(|worker| format!(", {}", clean(worker.as_str()))).unwrap_or_default();
    let (group, when) = (clean(failure.group.as_str()), timestamp::relative(failure.when, now));
    let message = failure.message.trim_end().replace("\r\n", "\n");
    if message.contains('\n') {
        return format!("{group} ({when}{worker}):\n{message}");
    }
    format!("{group}: {message} ({when}{worker})")
}

/// How an attempt ended.
fn end_text(reason: EndReason, worker: &str) -> String {
    match reason {
        EndReason::Retried => format!("retried by {worker}"),
        EndReason::LockExpired => format!("lock of {worker} expired"),
        EndReason::Deadline => format!("took too long at {worker}"),
        EndReason::WorkerLost => format!("worker {worker} died"),
        EndReason::Released => format!("released by {worker}"),
        EndReason::TakenAway => format!("taken away from {worker}"),
        EndReason::PutAgain => format!("submitted again while {worker} had it"),
        EndReason::Resumed => format!("resumed by {worker} after a restart"),
        other => format!("ended at {worker} ({})", other.as_str()),
    }
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
        HistoryEvent::AttemptEnded { reason, worker, group, message } => {
            let worker = worker.as_ref().map_or("a worker", |worker| worker.as_str());
            let said = [group.as_ref().map(|group| group.as_str()), message.as_deref()];
            let said: Vec<&str> = said.into_iter().flatten().filter(|said| !said.is_empty()).collect();
            let end = end_text(*reason, worker);
            if said.is_empty() { end } else { format!("{end}: {}", said.join(": ")) }
        }
        _ => "an entry that this version does not know".to_owned(),
    }
}
