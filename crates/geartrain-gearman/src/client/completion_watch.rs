//! Finding out which of the jobs in the record are done, as long as this process runs.
//!
//! A server forgets a job that ended, and one that was restarted has forgotten all. So a job counts as done only if the server does not know it over the very connection over which it took it: then it was not restarted in between.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use geartrain_core::Jid;

use super::Shared;
use super::connection::Connection;
use super::record::{OpenJob, RecordLine};
use super::submit::Accepted;
use crate::packet::{Request, Response};

/// How often to ask, and after how many.
const LOOK: (Duration, usize) = (Duration::from_secs(5), 1_000);
/// How many are watched at most; the others stay in the record.
const WATCHED_MAX: usize = 100_000;

/// Jobs in the record that this process has put.
#[derive(Default)]
pub(super) struct WatchedJobs {
    jobs: Mutex<BTreeMap<Jid, WatchedJob>>,
}

#[derive(Clone)]
struct WatchedJob {
    record_id: String,
    handle: String,
    /// The connection over which its server took it.
    connection: Weak<Connection>,
}

impl WatchedJobs {
    fn jobs(&self) -> MutexGuard<'_, BTreeMap<Jid, WatchedJob>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Some of those after this one, and none if there are no more.
    fn next_page(&self, jid: Option<&Jid>) -> Vec<(Jid, WatchedJob)> {
        let jobs = self.jobs();
        let after = jid.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let some = jobs.range((after, std::ops::Bound::Unbounded)).take(LOOK.1);
        some.map(|(jid, job)| (jid.clone(), job.clone())).collect()
    }
}

impl Shared {
    /// Watches a job that was put, if there is a record of it.
    pub(super) fn watch_job(&self, taken: &Accepted) {
        let Some(id) = taken.record_id.clone() else { return };
        let mut jobs = self.watched.jobs();
        if jobs.len() < WATCHED_MAX {
            let job = WatchedJob {
                record_id: id,
                handle: taken.handle.clone(),
                connection: Arc::downgrade(&taken.connection),
            };
            jobs.insert(taken.jid.clone(), job);
        }
    }

    /// A server does not know a job: if it is the one that took it and was there all the while, the job is done.
    pub(super) async fn job_unknown(&self, jid: &Jid) {
        let Some(job) = self.watched.jobs().get(jid).cloned() else { return };
        if let Some(true) = has_ended(&job).await {
            self.watched.jobs().remove(jid);
            self.record_done(Some(&job.record_id)).await;
        }
    }

    /// The application wants a job no longer: it was cancelled.
    pub(super) async fn job_cancelled(&self, jid: &Jid, place: usize, handle: &str) {
        let watched = self.watched.jobs().remove(jid);
        if let Some(job) = watched {
            return self.record_done(Some(&job.record_id)).await;
        }
        // Another process may have put it.
        let Some(record) = &self.record else { return };
        let server = &self.servers.get(place).name;
        match record.open_jobs().await {
            Ok(open) => {
                let is_it =
                    |open: &&OpenJob| open.server == *server && open.handle.as_deref() == Some(handle);
                self.record_done(open.iter().find(is_it).map(|open| &open.recorded.id)).await;
            }
            Err(trouble) => {
                tracing::warn!(%trouble, %jid, "the record does not say that a job was cancelled")
            }
        }
    }
}

/// Whether its server has forgotten it; none if that cannot be found out any more.
async fn has_ended(job: &WatchedJob) -> Option<bool> {
    let link = job.connection.upgrade().filter(|link| !link.is_closed())?;
    match link.request(Request::GetStatus { handle: job.handle.as_bytes() }).await {
        Ok(Response::Status { status, .. }) => Some(!status.known),
        _ => None,
    }
}

/// Asks again and again, until the backend is gone.
pub(super) async fn watch_completions(shared: Weak<Shared>) {
    let mut last: Option<Jid> = None;
    loop {
        tokio::time::sleep(LOOK.0).await;
        let Some(shared) = shared.upgrade() else { return };
        let some = shared.watched.next_page(last.as_ref());
        last = (some.len() == LOOK.1).then(|| some.last().map(|(jid, _)| jid.clone())).flatten();
        let mut done = Vec::new();
        for (jid, job) in some {
            let ended = has_ended(&job).await;
            if ended != Some(false) {
                shared.watched.jobs().remove(&jid);
            }
            if ended == Some(true) {
                done.push(RecordLine::Done { id: job.record_id });
            }
        }
        if let (Some(record), false) = (&shared.record, done.is_empty())
            && let Err(trouble) = record.write(done).await
        {
            tracing::warn!(%trouble, "the record does not say that jobs are done");
        }
    }
}
