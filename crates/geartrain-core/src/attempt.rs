//! How attempts ended: who had the job, why the attempt ended without completing it, and what was said.
//!
//! Qless knows nothing of these: they are stored beside a job's history and do not count in it.

use crate::{Group, HistoryEntry, HistoryEvent, Job, Timestamp, WorkerName};

/// How many ended attempts of a job are stored; the newest stay.
pub const ATTEMPT_ENDS_MAX: usize = 25;
/// The stored part of an attempt's message, in bytes.
pub const ATTEMPT_MESSAGE_BYTES_MAX: usize = 1_024;

/// The end of an attempt that did not complete the job. Reports of failure are in the history alone.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AttemptEnd {
    /// The time, in whole seconds.
    pub when: Timestamp,
    /// Why it ended.
    pub reason: EndReason,
    /// The worker that had the job.
    pub worker: Option<WorkerName>,
    /// The kind of failure, if the worker reported one.
    pub group: Option<Group>,
    /// What the worker said, or what is known about its loss; at most [`ATTEMPT_MESSAGE_BYTES_MAX`] bytes.
    pub message: Option<String>,
}

/// Why an attempt ended without completing the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum EndReason {
    /// The worker returned the job to be retried.
    Retried,
    /// The lock expired, and the job was taken over or failed.
    LockExpired,
    /// It took longer than it may.
    Deadline,
    /// The worker died.
    WorkerLost,
    /// The worker was interrupted and gave the job back.
    Released,
    /// The job was taken away from the worker by [`Timeout`](crate::Timeout).
    TakenAway,
    /// The job was put again while it was running.
    PutAgain,
    /// The worker was restarted and locked the job [again](crate::Relock).
    Resumed,
}

impl EndReason {
    /// Its name in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            EndReason::Retried => "retried",
            EndReason::LockExpired => "lock-expired",
            EndReason::Deadline => "deadline",
            EndReason::WorkerLost => "worker-lost",
            EndReason::Released => "released",
            EndReason::TakenAway => "taken-away",
            EndReason::PutAgain => "put-again",
            EndReason::Resumed => "resumed",
        }
    }
}

/// The longest beginning of a text that has at most `bytes_max` bytes and splits no character.
pub(crate) fn clip(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

impl Job {
    /// The history and the ends of attempts in one list, oldest first. Times are in whole seconds, so an end
    /// goes behind the pop that began its attempt, and before the next one.
    pub fn story(&self) -> Vec<HistoryEntry> {
        let mut story = self.history.clone();
        let mut from = 0;
        for end in &self.attempts {
            let at = place_of(end, &story, from);
            let AttemptEnd { when, reason, worker, group, message } = end.clone();
            let what = HistoryEvent::AttemptEnded { reason, worker, group, message };
            story.insert(at, HistoryEntry { when, what });
            from = at + 1;
        }
        story
    }
}

/// Where the end of an attempt belongs in a history, at or behind `from`.
fn place_of(end: &AttemptEnd, history: &[HistoryEntry], from: usize) -> usize {
    let is_pop = |entry: &HistoryEntry| matches!(entry.what, HistoryEvent::Popped { .. });
    let next_pop = |after: usize| {
        history[after..].iter().position(is_pop).map_or(history.len(), |distance| after + distance)
    };
    let mut pop = next_pop(from);
    while pop < history.len() {
        let next = next_pop(pop + 1);
        let is_own = matches!(&history[pop].what, HistoryEvent::Popped { worker } if Some(worker) == end.worker.as_ref());
        let has_end = |entry: &HistoryEntry| {
            matches!(entry.what, HistoryEvent::Done | HistoryEvent::Failed { worker: Some(_), .. })
        };
        // An attempt that its deadline ended may be completed or failed all the same.
        let is_open = end.reason == EndReason::Deadline || !history[pop + 1..next].iter().any(has_end);
        let is_in_time =
            history[pop].when <= end.when && history.get(next).is_none_or(|entry| end.when <= entry.when);
        if is_own && is_open && is_in_time {
            let comes_later = |entry: &HistoryEntry| {
                let follows = !matches!(entry.what, HistoryEvent::TimedOut | HistoryEvent::Log { .. })
                    || entry.when > end.when;
                follows && entry.when >= end.when
            };
            return history[pop + 1..next].iter().position(comes_later).map_or(next, |at| pop + 1 + at);
        }
        pop = next;
    }
    // Its pop is not in the history any more.
    history[from..].iter().position(|entry| entry.when > end.when).map_or(history.len(), |at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_clipped_between_characters() {
        assert_eq!(clip("häh", 2), "h");
        assert_eq!(clip("häh", 3), "hä");
        assert_eq!(clip("häh", 9), "häh");
    }
}
