//! Heartbeats: a task for each worker's connection renews the locks of the jobs that the worker holds.
//!
//! The task shares the table of held jobs with the connection and depends on nothing else of it. So no peer
//! that reads slowly, no long answer, and no report that waits for the backend delays a heartbeat: a job is
//! held as long as its connection lives.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use geartrain_core::{Announce, AnnounceChange, Call, Heartbeat, Holder, Jid, Reply, Token, WorkerName};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Shared;
use super::connection::BACKEND_UNAVAILABLE;
use super::held_jobs::{HeldJob, HeldJobs};
use super::session::with_causes;

/// How often a worker that can do something is announced again. The backend takes it to be gone after 60 s.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(20);

/// The held jobs of one connection, and the task that renews their locks.
#[derive(Default)]
pub(crate) struct Heartbeats {
    schedule: Arc<Schedule>,
    /// Started with the first job or function; most connections of clients have none.
    task: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Schedule {
    state: Mutex<ScheduleState>,
    /// Something is due earlier than the task knows.
    rescheduled: Notify,
}

#[derive(Default)]
struct ScheduleState {
    jobs: HeldJobs,
    /// When the worker is next announced; none if it can do nothing.
    announce_at: Option<Instant>,
}

/// Access to the held jobs, as long as it is not dropped.
pub(crate) struct HeldJobsGuard<'a>(MutexGuard<'a, ScheduleState>);

impl std::ops::Deref for HeldJobsGuard<'_> {
    type Target = HeldJobs;
    fn deref(&self) -> &HeldJobs {
        &self.0.jobs
    }
}

impl std::ops::DerefMut for HeldJobsGuard<'_> {
    fn deref_mut(&mut self) -> &mut HeldJobs {
        &mut self.0.jobs
    }
}

impl Schedule {
    fn state(&self) -> MutexGuard<'_, ScheduleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heartbeats {
    /// The jobs that are held.
    pub(crate) fn held_jobs(&self) -> HeldJobsGuard<'_> {
        HeldJobsGuard(self.schedule.state())
    }

    /// Holds a job and renews its lock from now on.
    pub(crate) fn hold(&mut self, held: HeldJob, shared: &Arc<Shared>, worker: &WorkerName) {
        if self.schedule.state().jobs.hold(held) {
            self.schedule.rescheduled.notify_one();
        }
        self.start(shared, worker);
    }

    /// Announces the worker from now on, if it can do anything.
    pub(crate) fn announce(&mut self, can_do: bool, shared: &Arc<Shared>, worker: &WorkerName) {
        {
            let mut content = self.schedule.state();
            if can_do == content.announce_at.is_some() {
                return;
            }
            content.announce_at = can_do.then(|| Instant::now() + ANNOUNCE_INTERVAL);
        }
        self.schedule.rescheduled.notify_one();
        self.start(shared, worker);
    }

    fn start(&mut self, shared: &Arc<Shared>, worker: &WorkerName) {
        if self.task.is_none() {
            let renewing = renew_locks(self.schedule.clone(), shared.clone(), worker.clone());
            self.task = Some(tokio::spawn(renewing));
        }
    }

    /// Renews nothing any more. When this returns nothing is sent either.
    pub(crate) async fn stop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            // It was cancelled, which is no surprise.
            let _ = task.await;
        }
    }
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Renews locks until it is cancelled.
async fn renew_locks(table: Arc<Schedule>, shared: Arc<Shared>, worker: WorkerName) {
    // Said once for each time that the backend is away: each connection with a job would say it every second.
    let mut is_away = false;
    loop {
        let next = {
            let content = table.state();
            content.jobs.next_heartbeat().into_iter().chain(content.announce_at).min()
        };
        let due = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            () = table.rescheduled.notified() => continue,
        }
        let sent = Instant::now();
        let (beats, announces) = {
            let mut content = table.state();
            let announces = content.announce_at.is_some_and(|at| at <= sent);
            if announces {
                content.announce_at = Some(sent + ANNOUNCE_INTERVAL);
            }
            (content.jobs.due(sent), announces)
        };
        let call = |(jid, token): &(Jid, Token)| {
            Call::from(Heartbeat { jid: jid.clone(), holder: Holder::Token(*token), payload: None })
        };
        let mut calls: Vec<Call> = beats.iter().map(call).collect();
        if announces {
            let change = AnnounceChange::Can(Vec::new());
            calls.push(Call::from(Announce { worker: worker.clone(), change }));
        }
        if calls.is_empty() {
            continue;
        }
        let answers = shared.backend.execute(calls).await;
        let now = Instant::now();
        let mut content = table.state();
        let jobs = &mut content.jobs;
        match answers {
            Ok(answers) => {
                for ((jid, token), answer) in beats.iter().zip(answers) {
                    match answer {
                        Ok(Reply::Heartbeat(expires)) => {
                            jobs.renewed(jid, *token, shared.lock_remaining(expires), now);
                        }
                        Ok(_) => {}
                        // The lock is lost, or the job has ended.
                        Err(_) => drop(jobs.release_attempt(jid, *token)),
                    }
                }
                is_away = false;
            }
            Err(error) => {
                beats.iter().for_each(|(jid, token)| jobs.not_renewed(jid, *token, now));
                if !std::mem::replace(&mut is_away, true) {
                    let error = with_causes(&error);
                    BACKEND_UNAVAILABLE
                        .warn(format_args!("locks of {worker} cannot be renewed now: {error}"));
                }
            }
        }
        jobs.update_next_heartbeat();
    }
}
