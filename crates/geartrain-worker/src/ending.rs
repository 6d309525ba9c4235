//! The end of an attempt, and the command that reports it to the queue.

use std::time::Duration;

use geartrain_core::{Command, Complete, Fail, Group, RandomUnit, Refusal, Release, Retry, Seconds};

use crate::error::Action;
use crate::{Context, Interruption, JobError, JobOutput};

/// The longest message that is reported, in bytes. A longer one loses its middle.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The handler returned a value.
    Output(JobOutput),
    /// The handler returned an error, or panicked.
    Error(JobError),
    /// The handler did not return in time after it was interrupted, and was dropped.
    Dropped(Interruption),
}

/// How an attempt ended, for [`Worker::observe`](crate::Worker::observe) and the [`Report`](crate::Report).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttemptEnding {
    /// The job is complete, or moved on to its next queue.
    Completed,
    /// The job failed for good, or because no retry was left.
    Failed,
    /// The job is tried again.
    Retried,
    /// The job runs again later; no retry was used up.
    Snoozed,
    /// The job went back to its queue; no retry was used up.
    Released,
    /// The lock was lost or the job was cancelled: the result was discarded.
    Lost,
}

/// An attempt that ended here, until the queue has acknowledged it.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) context: Context,
    pub(crate) ending: Ending,
    pub(crate) took: Duration,
}

impl Finished {
    pub(crate) fn kind(&self) -> AttemptEnding {
        let interruption = self.context.interruption();
        if interruption.is_some_and(Interruption::discards_result) {
            return AttemptEnding::Lost;
        }
        match &self.ending {
            Ending::Output(_) => AttemptEnding::Completed,
            Ending::Error(error) => match error.action {
                Action::Fail => AttemptEnding::Failed,
                // An error after an interruption is caused by it.
                _ if interruption == Some(Interruption::Shutdown) => AttemptEnding::Released,
                Action::Retry { .. } => AttemptEnding::Retried,
                Action::Snooze { .. } => AttemptEnding::Snoozed,
                Action::Release => AttemptEnding::Released,
            },
            Ending::Dropped(Interruption::TimedOut) => AttemptEnding::Retried,
            Ending::Dropped(Interruption::Shutdown) => AttemptEnding::Released,
            Ending::Dropped(_) => AttemptEnding::Lost,
        }
    }

    /// The size of the result, for the size of a batch.
    pub(crate) fn result_bytes(&self) -> usize {
        match &self.ending {
            Ending::Output(output) => output.result.as_ref().map_or(0, |result| result.bytes.byte_len()),
            Ending::Error(error) => error.message.len(),
            Ending::Dropped(_) => 0,
        }
    }

    /// The error to show, if the job was not completed.
    pub(crate) fn message(&self) -> Option<&str> {
        match &self.ending {
            Ending::Error(error) => Some(error.message()),
            _ => None,
        }
    }

    /// The command that tells the queue; none if the job is no longer this worker's.
    pub(crate) fn command(&self) -> Option<Command> {
        let (jid, holder) = (self.context.jid().clone(), self.context.job().holder());
        Some(match (self.kind(), &self.ending) {
            (AttemptEnding::Lost, _) => return None,
            (AttemptEnding::Completed, Ending::Output(output)) => {
                let result = output.result.clone().map(Box::new);
                Complete { result, next: output.next.clone(), ..Complete::new(jid, holder) }.into()
            }
            (AttemptEnding::Failed, Ending::Error(error)) => {
                let result = error.result.clone();
                Fail { result, ..Fail::new(jid, holder, self.group(error), clipped(&error.message)) }.into()
            }
            (AttemptEnding::Snoozed, Ending::Error(JobError { action: Action::Snooze { delay }, .. })) => {
                let message = Some(clipped(self.message().unwrap_or_default()));
                let delay = Seconds::from(*delay);
                Release { message, delay, ..Release::new(jid, holder) }.into()
            }
            (AttemptEnding::Released, ending) => {
                let message = match ending {
                    Ending::Error(JobError { action: Action::Release, message, .. }) => clipped(message),
                    _ => "the worker was stopped".to_owned(),
                };
                Release { message: Some(message), ..Release::new(jid, holder) }.into()
            }
            // A handler that was stopped and says why knows more than this worker.
            (_, Ending::Error(error))
                if self.context.interruption() != Some(Interruption::TimedOut) || error.group.is_some() =>
            {
                let delay = match error.action {
                    // At once, as a delay in the past: zero leaves the delay to the backoff.
                    Action::Retry { delay: Some(Duration::ZERO) } => Seconds::from(-1),
                    Action::Retry { delay: Some(delay) } => delay.into(),
                    _ => Seconds::ZERO,
                };
                Retry {
                    delay,
                    random: (delay == Seconds::ZERO).then(random_unit),
                    group: Some(self.group(error)),
                    message: Some(clipped(&error.message)),
                    ..Retry::new(jid, holder)
                }
                .into()
            }
            _ => Retry {
                random: Some(random_unit()),
                group: Some(group(&format!("{}-timeout", self.context.queue()))),
                message: Some(format!("the attempt was stopped after {:.1?}: it took too long", self.took)),
                ..Retry::new(jid, holder)
            }
            .into(),
        })
    }

    /// The same attempt as a failure, because the queue refused its result.
    pub(crate) fn refused(self, refusal: &Refusal) -> Finished {
        let queue = self.context.queue();
        let error = JobError::fail(format!("{queue}-result-refused"), refusal.to_string());
        Finished { ending: Ending::Error(error), ..self }
    }

    fn group(&self, error: &JobError) -> Group {
        match &error.group {
            Some(name) => group(name),
            None => group(&format!("{}-{}", self.context.queue(), error.kind)),
        }
    }
}

/// A group from any text: what a name cannot have is left out.
fn group(text: &str) -> Group {
    let name: String = text.chars().filter(|letter| *letter != '\0').take(512).collect();
    Group::new(&name).or_else(|_| Group::new("error")).expect("it is a good name")
}

fn clipped(message: &str) -> String {
    if message.len() <= MESSAGE_BYTES_MAX {
        return message.to_owned();
    }
    let half = MESSAGE_BYTES_MAX / 2;
    let head = (0..=half).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
    let tail = message.len() - half;
    let tail = (tail..).find(|start| message.is_char_boundary(*start)).unwrap_or(message.len());
    format!("{}\n[{} bytes left out]\n{}", &message[..head], tail - head, &message[tail..])
}

/// For the jitter of a backoff.
fn random_unit() -> RandomUnit {
    // The last bits of a UUID of version 7 are random; only its first ones are the time.
    let random = uuid::Uuid::now_v7().as_u128() as u32;
    RandomUnit::new(f64::from(random) / f64::from(u32::MAX)).unwrap_or(RandomUnit::HALF)
}

/// How many attempts ended how, since the worker began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Report {
    /// Completed jobs.
    pub completed: u64,
    /// Jobs that failed for good, or because no retry was left.
    pub failed: u64,
    /// Attempts that are retried.
    pub retried: u64,
    /// Jobs that run again later.
    pub snoozed: u64,
    /// Jobs that went back to their queue.
    pub released: u64,
    /// Attempts whose lock was lost or whose job was cancelled.
    pub lost: u64,
}

impl Report {
    pub(crate) fn count(&mut self, ending: AttemptEnding) {
        *match ending {
            AttemptEnding::Completed => &mut self.completed,
            AttemptEnding::Failed => &mut self.failed,
            AttemptEnding::Retried => &mut self.retried,
            AttemptEnding::Snoozed => &mut self.snoozed,
            AttemptEnding::Released => &mut self.released,
            AttemptEnding::Lost => &mut self.lost,
        } += 1;
    }

    /// The sum of two workers.
    pub fn plus(self, other: Report) -> Report {
        Report {
            completed: self.completed + other.completed,
            failed: self.failed + other.failed,
            retried: self.retried + other.retried,
            snoozed: self.snoozed + other.snoozed,
            released: self.released + other.released,
            lost: self.lost + other.lost,
        }
    }

    /// All attempts.
    pub fn attempts(&self) -> u64 {
        self.completed + self.failed + self.retried + self.snoozed + self.released + self.lost
    }
}

/// Whether a refusal means that the attempt no longer holds the job.
pub(crate) fn is_lost(refusal: &Refusal) -> Option<Interruption> {
    match refusal {
        Refusal::NoSuchJob { .. } => Some(Interruption::Cancelled),
        Refusal::LockLost { .. } | Refusal::HeldByAnother { .. } | Refusal::NotRunning { .. } => {
            Some(Interruption::LockLost)
        }
        _ => None,
    }
}
