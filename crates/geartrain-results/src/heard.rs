//! From events to what the log wants to know.
//!
//! Events do not say when, nor what code a job is for. A job's history says when, in whole seconds; so the moment is when the log heard of it if that is
//! in the same second, and else that second. Of a job that is forgotten already there is only what the event says and when it was heard.

use std::collections::HashMap;

use geartrain_core::{
    Event, FailedBy, HistoryEntry, HistoryEvent, Jid, Job, JobState, Published, StoredResult, Timestamp,
};

use crate::batch::{cut, cut_text};
use crate::{Batch, Change, Ended, Ending, Gotten, Started};

/// An event, and when it was heard.
#[derive(Debug, Clone, PartialEq)]
pub struct Heard {
    /// What happened.
    pub published: Published,
    /// When it was heard.
    pub at: Timestamp,
}

/// The job that the log must look up to make something of an event.
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

/// The job whose result the log must look up.
pub fn result_of(event: &Event) -> Option<&Jid> {
    match event {
        Event::ResultStored { jid } => Some(jid),
        _ => None,
    }
}

/// What the log makes of events, with the jobs and the results that were looked up.
pub fn changes(heard: &[Heard], jobs: &HashMap<Jid, Job>, results: &HashMap<Jid, StoredResult>) -> Batch {
    let mut read = Reading { jobs, seen: HashMap::new() };
    let mut changes = Vec::with_capacity(heard.len());
    // From the last to the first, because histories are matched from their ends: what is older than the log stands at their beginnings.
    for last in heard.iter().rev() {
        let change = match &*last.published.event {
            Event::ResultStored { jid } => {
                results.get(jid).map(|kept| gotten(last.published.position, kept)).map(Change::Gotten)
            }
            event => read.change(last, event),
        };
        changes.extend(change);
    }
    changes.reverse();
    Batch { changes, position: heard.last().map_or(0, |last| last.published.position) }
}

fn gotten(position: u64, kept: &StoredResult) -> Gotten {
    let bytes = kept.result.bytes.bytes();
    Gotten {
        position,
        jid: kept.jid.clone(),
        code: kept.result.code,
        bytes: cut(bytes).to_vec(),
        length: bytes.len() as u64,
    }
}

/// Marks of a history that tell one thing apart from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Mark {
    Popped,
    Done,
    Failed,
    TimedOut,
    HandedBack,
    Crashed,
}

impl Mark {
    fn of(what: &HistoryEvent) -> Option<Mark> {
        Some(match what {
            HistoryEvent::Popped { .. } => Mark::Popped,
            HistoryEvent::Done => Mark::Done,
            HistoryEvent::Failed { .. } => Mark::Failed,
            HistoryEvent::TimedOut => Mark::TimedOut,
            HistoryEvent::Released { .. } => Mark::HandedBack,
            HistoryEvent::Crashed { .. } => Mark::Crashed,
            _ => return None,
        })
    }
}

struct Reading<'a> {
    jobs: &'a HashMap<Jid, Job>,
    /// How many marks of each kind belong to later events.
    seen: HashMap<(&'a Jid, Mark), usize>,
}

impl<'a> Reading<'a> {
    fn change(&mut self, heard: &'a Heard, event: &'a Event) -> Option<Change> {
        let position = heard.published.position;
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
                let newest = !self.seen.contains_key(&(jid, Mark::Popped));
                let (at, exact) = self.moment(jid, Mark::Popped, heard.at);
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
                let newest = !self.seen.contains_key(&(jid, Mark::Done));
                let mut moment = self.moment(jid, Mark::Done, heard.at);
                if let Some(JobState::Complete { at }) = self.jobs.get(jid).map(|job| &job.state)
                    && newest
                {
                    moment = (at.get(), true);
                }
                Ended { queue: Some(queue.clone()), ..ended(jid, Ending::Completed, moment) }
            }
            Event::Advanced { jid, queue, to } => {
                let moment = self.moment(jid, Mark::Done, heard.at);
                let message = Some(format!("went on to {to}"));
                Ended { queue: Some(queue.clone()), message, ..ended(jid, Ending::Advanced, moment) }
            }
            Event::Retried { jid, queue } => {
                let retried = ended(jid, Ending::Retried, (heard.at.get(), false));
                self.retried(jid, Ended { queue: Some(queue.clone()), ..retried }, heard.at)
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
                    ..ended(jid, ending, self.moment(jid, Mark::Failed, heard.at))
                }
            }
            Event::Released { jid, queue, worker, crashed } => {
                let (mark, ending) = match crashed {
                    true => (Mark::Crashed, Ending::Crashed),
                    false => (Mark::HandedBack, Ending::HandedBack),
                };
                let evidence = self.jobs.get(jid).and_then(|job| job.details.as_ref()?.evidence.as_deref());
                Ended {
                    queue: Some(queue.clone()),
                    worker: Some(worker.clone()),
                    message: evidence.filter(|_| *crashed).map(cut_text),
                    ..ended(jid, ending, self.moment(jid, mark, heard.at))
                }
            }
            Event::LockLost { jid, worker } => Ended {
                worker: Some(worker.clone()),
                settled: false,
                ..ended(jid, Ending::Lost, self.moment(jid, Mark::TimedOut, heard.at))
            },
            Event::Canceled { jid, was: Some((queue, worker)) } => Ended {
                queue: Some(queue.clone()),
                worker: worker.clone(),
                attempted: worker.is_some(),
                ..ended(jid, Ending::Canceled, (heard.at.get(), false))
            },
            Event::Abandoned { jid, queue } => Ended {
                queue: Some(queue.clone()),
                attempted: false,
                ..ended(jid, Ending::Abandoned, (heard.at.get(), false))
            },
            _ => return None,
        };
        Some(Change::Ended(self.filled(change)))
    }

    /// A retry has no mark in a history. What was said about it is the job's failure, if that is no older than the attempt.
    fn retried(&self, jid: &'a Jid, ended: Ended, heard: Timestamp) -> Ended {
        let Some(job) = self.jobs.get(jid) else { return ended };
        let later = self.seen.get(&(jid, Mark::Popped)).copied().unwrap_or(0);
        let began = nth_from_end(&job.history, Mark::Popped, later);
        let failure = job.failure().filter(|failure| began.is_some_and(|began| failure.when >= began.when));
        let Some(failure) = failure else { return ended };
        let overrun =
            ended.queue.as_ref().is_some_and(|queue| failure.group.as_str() == format!("timed-out-{queue}"));
        Ended {
            ending: if overrun { Ending::TimedOut } else { Ending::Retried },
            group: Some(failure.group.to_string()),
            message: Some(cut_text(&failure.message)),
            at: if failure.when.floor() == heard.floor() { heard.get() } else { failure.when.get() },
            exact: true,
            ..ended
        }
    }

    /// When something happened, and whether the queue says so.
    fn moment(&mut self, jid: &'a Jid, mark: Mark, heard: Timestamp) -> (f64, bool) {
        let later = self.seen.entry((jid, mark)).or_default();
        let found = self.jobs.get(jid).and_then(|job| nth_from_end(&job.history, mark, *later));
        *later += 1;
        match found {
            Some(entry) if entry.when.floor() == heard.floor() => (heard.get(), true),
            Some(entry) => (entry.when.get(), true),
            None => (heard.get(), false),
        }
    }

    /// Adds what the job says about itself, for a log that was not there when the attempt began.
    fn filled(&self, ended: Ended) -> Ended {
        let Some(job) = self.jobs.get(&ended.jid) else { return ended };
        let begun = job.history.iter().rev().find_map(|entry| match &entry.what {
            HistoryEvent::Popped { worker } if entry.when.get() <= ended.at => Some((entry.when, worker)),
            _ => None,
        });
        Ended {
            klass: Some(job.klass.clone()),
            started: begun.map(|(when, _)| when.get()),
            worker: ended.worker.or_else(|| begun.map(|(_, worker)| worker.clone())),
            ..ended
        }
    }
}

fn nth_from_end(history: &[HistoryEntry], mark: Mark, later: usize) -> Option<&HistoryEntry> {
    history.iter().rev().filter(|entry| Mark::of(&entry.what) == Some(mark)).nth(later)
}
