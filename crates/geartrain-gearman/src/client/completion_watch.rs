//! Completion watch: finds out which jobs of the record have ended, as long as this process runs.
//!
//! A server forgets a job that has ended, and a restarted server has forgotten all. So a job counts as done
//! only if its server does not know it over the same connection that accepted it: then the server was not
//! restarted in between.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use geartrain_core::Jid;
use parking_lot::{Mutex, MutexGuard};

use super::Shared;
use super::connection::Connection;
use super::record::{OpenJob, RecordLine};
use super::submit::Accepted;
use crate::packet::{Request, Response};

/// How often to poll, and how many jobs at a time.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
const POLL_JOBS_MAX: usize = 1_000;
/// Most jobs watched at once; the others stay in the record.
const WATCHED_MAX: usize = 100_000;

/// Recorded jobs that this process has put.
#[derive(Default)]
pub(super) struct WatchedJobs {
    jobs: Mutex<BTreeMap<Jid, WatchedJob>>,
}

#[derive(Clone)]
struct WatchedJob {
    record_id: String,
    handle: String,
    /// The connection over which the job was accepted.
    connection: Weak<Connection>,
}

impl WatchedJobs {
    fn jobs(&self) -> MutexGuard<'_, BTreeMap<Jid, WatchedJob>> {
        self.jobs.lock()
    }

    /// The next jobs after this one; empty if there are no more.
    fn next_page(&self, jid: Option<&Jid>) -> Vec<(Jid, WatchedJob)> {
        let jobs = self.jobs();
        let after = jid.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let page = jobs.range((after, std::ops::Bound::Unbounded)).take(POLL_JOBS_MAX);
        page.map(|(jid, job)| (jid.clone(), job.clone())).collect()
    }
}

impl Shared {
    /// Watches an accepted job, if it is recorded.
    pub(super) fn watch_job(&self, accepted: &Accepted) {
        let Some(id) = accepted.record_id.clone() else { return };
        let mut jobs = self.watched.jobs();
        if jobs.len() < WATCHED_MAX {
            let job = WatchedJob {
                record_id: id,
                handle: accepted.handle.clone(),
                connection: Arc::downgrade(&accepted.connection),
            };
            jobs.insert(accepted.jid.clone(), job);
        }
    }

    /// A server does not know a job. If its connection is the one that accepted it, the job is done.
    pub(super) async fn job_unknown(&self, jid: &Jid) {
        let Some(job) = self.watched.jobs().get(jid).cloned() else { return };
        if let Some(true) = has_ended(&job).await {
            self.watched.jobs().remove(jid);
            self.record_done(Some(&job.record_id)).await;
        }
    }

    /// A job was cancelled, so it is done.
    pub(super) async fn job_cancelled(&self, jid: &Jid, index: usize, handle: &str) {
        let watched = self.watched.jobs().remove(jid);
        if let Some(job) = watched {
            return self.record_done(Some(&job.record_id)).await;
        }
        // Another process may have put it.
        let Some(record) = &self.record else { return };
        let server = &self.servers.get(index).name;
        match record.open_jobs().await {
            Ok(open) => {
                let is_job =
                    |open: &&OpenJob| open.server == *server && open.handle.as_deref() == Some(handle);
                self.record_done(open.iter().find(is_job).map(|open| &open.recorded.id)).await;
            }
            Err(error) => {
                tracing::warn!(%error, %jid, "could not record that a job was cancelled")
            }
        }
    }
}

/// Whether its server has forgotten it; `None` if that can no longer be determined.
async fn has_ended(job: &WatchedJob) -> Option<bool> {
    let connection = job.connection.upgrade().filter(|connection| !connection.is_closed())?;
    match connection.request(Request::GetStatus { handle: job.handle.as_bytes() }).await {
        Ok(Response::Status { status, .. }) => Some(!status.known),
        _ => None,
    }
}

/// Polls until the backend is dropped.
pub(super) async fn watch_completions(shared: Weak<Shared>) {
    let mut last: Option<Jid> = None;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let Some(shared) = shared.upgrade() else { return };
        let page = shared.watched.next_page(last.as_ref());
        last = (page.len() == POLL_JOBS_MAX).then(|| page.last().map(|(jid, _)| jid.clone())).flatten();
        let mut done = Vec::new();
        for (jid, job) in page {
            let ended = has_ended(&job).await;
            if ended != Some(false) {
                shared.watched.jobs().remove(&jid);
            }
            if ended == Some(true) {
                done.push(RecordLine::Done { id: job.record_id });
            }
        }
        if let (Some(record), false) = (&shared.record, done.is_empty())
            && let Err(error) = record.write(done).await
        {
            tracing::warn!(%error, "could not record that jobs are done");
        }
    }
}
