//! From events to changes of the result log.
//!
//! Events have neither a time nor a klass. A job's history has times, in whole seconds: if the event was
//! received in that second, its receive time counts, and otherwise the second. For a job that was removed
//! meanwhile there is only the event and its receive time.

use std::collections::HashMap;

use geartrain_core::{
    EndReason, Event, FailedBy, HistoryEntry, HistoryEvent, Jid, Job, JobState, PositionedEvent,
    StoredResult, Timestamp, Tombstone,
};

use crate::batch::{cut, cut_text};
use crate::{Batch, Change, Ended, Ending, ResultRecord, Started};

/// An event and its receive time.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedEvent {
    /// The event and its position.
    pub published: PositionedEvent,
    /// When it was received.
    pub at: Timestamp,
}

/// The job to look up for an event.
pub fn job_of(event: &Event) -> Option<&Jid> {
    match event {
        Event::Popped { jid, .. }
        | Event::Completed { jid, .. }
        | Event::Advanced { jid, .. }
        | Event::Retried { jid, .. }
        | Event::Failed { jid, .. }
        | Event::Released { jid, .. }
        | Event::LockLost { jid, .. } => Some(jid),
        _ => None,
    }
}

/// The job whose result to look up for an event.
pub fn result_of(event: &Event) -> Option<&Jid> {
    match event {
        Event::ResultStored { jid } => Some(jid),
        _ => None,
    }
}

/// The job whose tombstone to look up for an event.
pub fn tombstone_of(event: &Event) -> Option<&Jid> {
    match event {
        Event::Canceled { jid, was: Some(_) } => Some(jid),
        _ => None,
    }
}

/// The changes of events, with the jobs, results and tombstones that were looked up for them.
pub fn changes(
    received: &[ReceivedEvent],
    jobs: &HashMap<Jid, Job>,
    results: &HashMap<Jid, StoredResult>,
    tombstones: &HashMap<Jid, Tombstone>,
) -> Batch {
    let mut matcher = HistoryMatcher { jobs, tombstones, seen: HashMap::new() };
    let mut changes = Vec::with_capacity(received.len());
    // From the last to the first, because histories are matched from their ends: entries older than the log
    // are at their beginnings.
    for event in received.iter().rev() {
        let change = match &*event.published.event {
            Event::ResultStored { jid } => {
                results.get(jid).map(|stored| Change::Result(result_record(event.published.position, stored)))
            }
            kind => matcher.change(event, kind),
        };
        changes.extend(change);
    }
    changes.reverse();
    Batch { changes, position: received.last().map_or(0, |last| last.published.position) }
}

fn result_record(position: u64, stored: &StoredResult) -> ResultRecord {
    let bytes = stored.result.bytes.bytes();
    ResultRecord {
        position,
        jid: stored.jid.clone(),
        code: stored.result.code,
        bytes: cut(bytes).to_vec(),
        length: bytes.len() as u64,
    }
}

/// The kinds of history entries that belong to events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum EntryKind {
    Popped,
    Done,
    Failed,
    TimedOut,
    HandedBack,
    Crashed,
    Canceled,
}

impl EntryKind {
    fn of(event: &HistoryEvent) -> Option<EntryKind> {
        Some(match event {
            HistoryEvent::Popped { .. } => EntryKind::Popped,
            HistoryEvent::Done => EntryKind::Done,
            HistoryEvent::Failed { .. } => EntryKind::Failed,
            HistoryEvent::TimedOut => EntryKind::TimedOut,
            HistoryEvent::Released { .. } => EntryKind::HandedBack,
            HistoryEvent::Crashed { .. } => EntryKind::Crashed,
            _ => return None,
        })
    }
}

/// Matches events with entries of the jobs' histories.
struct HistoryMatcher<'a> {
    jobs: &'a HashMap<Jid, Job>,
    tombstones: &'a HashMap<Jid, Tombstone>,
    /// How many entries of each kind belong to later events.
    seen: HashMap<(&'a Jid, EntryKind), usize>,
}

impl<'a> HistoryMatcher<'a> {
    fn change(&mut self, received: &'a ReceivedEvent, event: &'a Event) -> Option<Change> {
        let position = received.published.position;
        let ended = |jid: &Jid, ending, (at, exact)| Ended {
            position,
            jid: jid.clone(),
            queue: None,
            klass: None,
            worker: None,
            started: None,
            at,
            exact,
            ending,
            attempted: true,
            settled: true,
            group: None,
            message: None,
        };
        let change = match event {
            Event::Popped { jid, queue, worker } => {
                let job = self.jobs.get(jid);
                let newest = !self.seen.contains_key(&(jid, EntryKind::Popped));
                let (at, exact) = self.time_of(jid, EntryKind::Popped, received.at);
                let token = job.filter(|_| newest).and_then(|job| match &job.state {
                    JobState::Running { lock } if lock.worker == *worker => Some(lock.token.number()),
                    _ => None,
                });
                return Some(Change::Started(Started {
                    position,
                    jid: jid.clone(),
                    queue: queue.clone(),
                    klass: job.map(|job| job.klass.clone()),
                    worker: worker.clone(),
                    token,
                    at,
                    exact,
                }));
            }
            Event::Completed { jid, queue } => {
                let newest = !self.seen.contains_key(&(jid, EntryKind::Done));
                let mut time = self.time_of(jid, EntryKind::Done, received.at);
                if let Some(JobState::Complete { at }) = self.jobs.get(jid).map(|job| &job.state)
                    && newest
                {
                    time = (at.get(), true);
                }
                Ended { queue: Some(queue.clone()), ..ended(jid, Ending::Completed, time) }
            }
            Event::Advanced { jid, queue, to } => {
                let time = self.time_of(jid, EntryKind::Done, received.at);
                let message = Some(format!("went on to {to}"));
                Ended { queue: Some(queue.clone()), message, ..ended(jid, Ending::Advanced, time) }
            }
            Event::Retried { jid, queue } => {
                let retried = ended(jid, Ending::Retried, (received.at.get(), false));
                self.retried(jid, Ended { queue: Some(queue.clone()), ..retried }, received.at)
            }
            Event::Failed { jid, queue, worker, group, message, by } => {
                let ending = match by {
                    FailedBy::Expiry => Ending::Lost,
                    FailedBy::WorkerLost | FailedBy::Crashes => Ending::Crashed,
                    FailedBy::Deadline => Ending::TimedOut,
                    FailedBy::Expired => Ending::Expired,
                    _ => Ending::Failed,
                };
                Ended {
                    queue: Some(queue.clone()),
                    worker: worker.clone(),
                    attempted: *by != FailedBy::Expired,
                    group: Some(group.to_string()),
                    message: Some(cut_text(message)),
                    ..ended(jid, ending, self.time_of(jid, EntryKind::Failed, received.at))
                }
            }
            Event::Released { jid, queue, worker, crashed } => {
                let (kind, ending) = match crashed {
                    true => (EntryKind::Crashed, Ending::Crashed),
                    false => (EntryKind::HandedBack, Ending::HandedBack),
                };
                let evidence = self.jobs.get(jid).and_then(|job| job.details.as_ref()?.evidence.as_deref());
                Ended {
                    queue: Some(queue.clone()),
                    worker: Some(worker.clone()),
                    message: evidence.filter(|_| *crashed).map(cut_text),
                    ..ended(jid, ending, self.time_of(jid, kind, received.at))
                }
            }
            Event::LockLost { jid, worker } => Ended {
                worker: Some(worker.clone()),
                settled: false,
                ..ended(jid, Ending::Lost, self.time_of(jid, EntryKind::TimedOut, received.at))
            },
            Event::Canceled { jid, was: Some((queue, worker)) } => {
                // A tombstone is that of the last cancellation.
                let is_last = self.seen.insert((jid, EntryKind::Canceled), 1).is_none();
                let tombstone = self.tombstones.get(jid).filter(|_| is_last);
                Ended {
                    queue: Some(queue.clone()),
                    worker: worker.clone(),
                    attempted: worker.is_some(),
                    message: tombstone.and_then(reason_of),
                    ..ended(jid, Ending::Canceled, (received.at.get(), false))
                }
            }
            Event::Abandoned { jid, queue } => Ended {
                queue: Some(queue.clone()),
                attempted: false,
                ..ended(jid, Ending::Abandoned, (received.at.get(), false))
            },
            _ => return None,
        };
        Some(Change::Ended(self.filled(change)))
    }

    /// A retry has no history entry. Its reason is the job's failure, if that is no older than the attempt.
    fn retried(&self, jid: &'a Jid, ended: Ended, received: Timestamp) -> Ended {
        let Some(job) = self.jobs.get(jid) else { return ended };
        let later = self.seen.get(&(jid, EntryKind::Popped)).copied().unwrap_or(0);
        let started = nth_from_end(&job.history, EntryKind::Popped, later);
        let failure =
            job.failure().filter(|failure| started.is_some_and(|started| failure.when >= started.when));
        let Some(failure) = failure else { return ended };
        let timed_out =
            ended.queue.as_ref().is_some_and(|queue| failure.group.as_str() == format!("timed-out-{queue}"));
        Ended {
            ending: if timed_out { Ending::TimedOut } else { Ending::Retried },
            group: Some(failure.group.to_string()),
            message: Some(cut_text(&failure.message)),
            at: if failure.when.floor() == received.floor() { received.get() } else { failure.when.get() },
            exact: true,
            ..ended
        }
    }

    /// The time of an event, and whether it is from the history.
    fn time_of(&mut self, jid: &'a Jid, kind: EntryKind, received: Timestamp) -> (f64, bool) {
        let later = self.seen.entry((jid, kind)).or_default();
        let found = self.jobs.get(jid).and_then(|job| when_from_end(job, kind, *later));
        *later += 1;
        match found {
            Some(when) if when.floor() == received.floor() => (received.get(), true),
            Some(when) => (when.get(), true),
            None => (received.get(), false),
        }
    }

    /// Adds what the job itself knows, for a log that was opened after the attempt started.
    fn filled(&self, ended: Ended) -> Ended {
        let Some(job) = self.jobs.get(&ended.jid) else { return ended };
        let started = job.history.iter().rev().find_map(|entry| match &entry.what {
            HistoryEvent::Popped { worker } if entry.when.get() <= ended.at => Some((entry.when, worker)),
            _ => None,
        });
        Ended {
            klass: Some(job.klass.clone()),
            started: started.map(|(when, _)| when.get()),
            worker: ended.worker.or_else(|| started.map(|(_, worker)| worker.clone())),
            ..ended
        }
    }
}

/// Who cancelled a job and why, as far as that is known.
fn reason_of(tombstone: &Tombstone) -> Option<String> {
    let by = tombstone.by.as_ref().map(|by| format!("by {by}"));
    let because = tombstone.because.as_ref().map(|because| format!("because {because}"));
    let known: Vec<String> = by.into_iter().chain(because).collect();
    (!known.is_empty()).then(|| cut_text(&known.join(", ")))
}

/// When the last entry but `later` of a kind was made. Releases and crashes are ends of attempts, and were entries
/// of the history once.
fn when_from_end(job: &Job, kind: EntryKind, later: usize) -> Option<Timestamp> {
    let reason = match kind {
        EntryKind::HandedBack => Some(EndReason::Released),
        EntryKind::Crashed => Some(EndReason::WorkerLost),
        _ => None,
    };
    let end = job.attempts.iter().rev().filter(|end| Some(end.reason) == reason).nth(later);
    end.map(|end| end.when).or_else(|| nth_from_end(&job.history, kind, later).map(|entry| entry.when))
}

fn nth_from_end(history: &[HistoryEntry], kind: EntryKind, later: usize) -> Option<&HistoryEntry> {
    history.iter().rev().filter(|entry| EntryKind::of(&entry.what) == Some(kind)).nth(later)
}
