//! Reports of a worker, kept until the backend has answered them.
//!
//! A worker gets no answer to a report, and reports once. So what the backend did not take, because its disk
//! is full or it cannot be reached, is repeated until it is stored or refused; it is refused when the lock is
//! lost. Nothing more is read from the connection meanwhile (back-pressure), so no more reports wait than
//! were under way when the first one failed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{Answer, Backend, BackendError, Call, Command, Jid, Token};
use tokio::time::Instant;

/// How long to wait before reports are repeated: so long the first time, twice as long each time after, and
/// at most so long.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A report, and the command that it is.
pub(crate) struct PendingReport {
    pub(crate) jid: Jid,
    pub(crate) token: Token,
    pub(crate) kind: ReportKind,
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportKind {
    /// A part of the result, or a warning.
    Chunk,
    Progress,
    /// The worker is done with the job.
    End,
}

/// What the backend said to the reports at the front of the queue.
pub(crate) type RetryReplies = Result<Vec<Answer>, BackendError>;

type PendingReplies = Pin<Box<dyn Future<Output = RetryReplies> + Send>>;

/// The reports that the backend did not take, in the order in which they were made.
#[derive(Default)]
pub(crate) struct ReportRetries {
    reports: VecDeque<PendingReport>,
    /// How many of them are sent together. One after a failure, because the backend may have room for some of
    /// them only; then twice as many each time.
    window: usize,
    pending: Option<PendingReplies>,
    /// How many of them are in it.
    sent: usize,
    delay: Duration,
    /// Nothing is sent before.
    not_before: Option<Instant>,
}

impl ReportRetries {
    pub(crate) fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.reports.len()
    }

    /// Adds a report that the backend did not take.
    pub(crate) fn push(&mut self, report: PendingReport) {
        if self.reports.is_empty() {
            (self.window, self.delay) = (1, PAUSE.0);
            self.not_before = Some(Instant::now() + self.delay);
        }
        self.reports.push_back(report);
    }

    /// Sends the first reports again and waits for what is said to them. Nothing is lost if this is dropped
    /// half-way. There must be some.
    pub(crate) async fn retry(&mut self, backend: &Arc<dyn Backend>) -> RetryReplies {
        if let Some(moment) = self.not_before {
            tokio::time::sleep_until(moment).await;
            self.not_before = None;
        }
        let flight = self.pending.get_or_insert_with(|| {
            self.sent = self.window.min(self.reports.len());
            let first = self.reports.iter().take(self.sent);
            let calls: Vec<Call> = first.map(|report| Call::from(report.command.clone())).collect();
            let backend = backend.clone();
            Box::pin(async move { backend.execute(calls).await })
        });
        let repeated = flight.await;
        self.pending = None;
        repeated
    }

    /// Takes out what was answered: each report with its answer. None if the backend still does not take
    /// them.
    pub(crate) fn take_answered(&mut self, repeated: RetryReplies) -> Vec<(PendingReport, Answer)> {
        match repeated {
            Ok(answers) => {
                self.delay = PAUSE.0;
                self.window *= 2;
                self.reports.drain(..self.sent).zip(answers).collect()
            }
            Err(_) => {
                self.window = 1;
                self.delay = (self.delay * 2).min(PAUSE.1);
                self.not_before = Some(Instant::now() + self.delay);
                self.drop_superseded();
                Vec::new()
            }
        }
    }

    /// Drops the first report if it only says how far a job is, and a later one says more: a disk that is
    /// full may have room for the end of a job, which must not wait for this.
    fn drop_superseded(&mut self) {
        let Some(first) = self.reports.front() else { return };
        let is_superseded = first.kind == ReportKind::Progress
            && self.reports.iter().skip(1).any(|later| {
                later.token == first.token && later.jid == first.jid && later.kind != ReportKind::Chunk
            });
        if is_superseded {
            self.reports.pop_front();
        }
    }
}
