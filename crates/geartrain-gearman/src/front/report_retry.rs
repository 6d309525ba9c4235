//! Report retry: keeps a worker's reports until the backend has stored them.
//!
//! A worker reports once and gets no reply. So a report that the backend did not take, because its disk is
//! full or it is unreachable, is retried with exponential back-off until it is stored or refused (it is
//! refused when the lock is lost). A repeated end of a job is idempotent: it carries the fencing token of its
//! attempt, and is refused if the first one was stored after all. Meanwhile nothing more is read from the
//! connection (back-pressure), so no more reports wait than were pending when the first one failed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{Answer, Backend, BackendError, Call, Command, Jid, Token};
use tokio::time::Instant;

/// Back-off before a retry: the first delay, doubled each time, and the largest.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A report, as the command that stores it.
pub(crate) struct PendingReport {
    pub(crate) jid: Jid,
    pub(crate) token: Token,
    pub(crate) kind: ReportKind,
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportKind {
    /// Data or a warning.
    Chunk,
    Progress,
    /// Completed or failed.
    End,
}

/// The backend's replies to the reports at the front of the queue.
pub(crate) type RetryReplies = Result<Vec<Answer>, BackendError>;

type PendingReplies = Pin<Box<dyn Future<Output = RetryReplies> + Send>>;

/// The reports that the backend did not take, in their order.
#[derive(Default)]
pub(crate) struct ReportRetries {
    reports: VecDeque<PendingReport>,
    /// How many are sent together: one after a failure, because the backend may have room for some only, then
    /// twice as many each time.
    window: usize,
    pending: Option<PendingReplies>,
    /// How many reports are pending.
    sent: usize,
    delay: Duration,
    /// When to send the next ones.
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
            (self.window, self.delay) = (1, BACKOFF_MIN);
            self.not_before = Some(Instant::now() + self.delay);
        }
        self.reports.push_back(report);
    }

    /// Sends the first reports again and waits for the replies. Cancel safe. The queue must not be empty.
    pub(crate) async fn retry(&mut self, backend: &Arc<dyn Backend>) -> RetryReplies {
        if let Some(moment) = self.not_before {
            tokio::time::sleep_until(moment).await;
            self.not_before = None;
        }
        let pending = self.pending.get_or_insert_with(|| {
            self.sent = self.window.min(self.reports.len());
            let first = self.reports.iter().take(self.sent);
            let calls: Vec<Call> = first.map(|report| Call::from(report.command.clone())).collect();
            let backend = backend.clone();
            Box::pin(async move { backend.execute(calls).await })
        });
        let replies = pending.await;
        self.pending = None;
        replies
    }

    /// Removes the reports that were answered, each with its reply. Empty if the backend still does not take
    /// them.
    pub(crate) fn take_answered(&mut self, replies: RetryReplies) -> Vec<(PendingReport, Answer)> {
        match replies {
            Ok(answers) => {
                self.delay = BACKOFF_MIN;
                self.window *= 2;
                self.reports.drain(..self.sent).zip(answers).collect()
            }
            Err(_) => {
                self.window = 1;
                self.delay = (self.delay * 2).min(BACKOFF_MAX);
                self.not_before = Some(Instant::now() + self.delay);
                self.drop_superseded();
                Vec::new()
            }
        }
    }

    /// Drops a progress report at the front if a later report supersedes it: a full disk may have room for
    /// the end of the job, which must not wait for this.
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
