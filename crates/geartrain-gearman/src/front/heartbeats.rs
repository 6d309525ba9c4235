//! Heartbeat renewal: one task per worker connection renews the locks of the jobs that the worker holds.
//!
//! The task shares only the table of held jobs with the connection. So a peer that reads slowly, a long
//! reply, or a report that waits for the backend does not delay a heartbeat: a job stays locked as long as
//! its connection lives.

use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{Announce, AnnounceChange, Call, Heartbeat, Holder, Jid, Reply, Token, WorkerName};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Shared;
use super::connection::BACKEND_UNAVAILABLE;
use super::held_jobs::{HeldJob, HeldJobs};
use super::session::with_causes;

/// How often a worker with functions is announced again. The backend treats it as lost after 60 s.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(20);

/// The held jobs of one connection, and the task that renews their locks. The task is aborted when this is
/// dropped.
#[derive(Default)]
pub(crate) struct Heartbeats {
    schedule: Arc<Schedule>,
    /// Started with the first job or function; client connections usually have none.
    task: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Schedule {
    state: Mutex<ScheduleState>,
    /// Notified when something is due earlier than the task expects.
    rescheduled: Notify,
}

#[derive(Default)]
struct ScheduleState {
    jobs: HeldJobs,
    /// When to announce the worker again; `None` if it has no functions.
    announce_at: Option<Instant>,
}

impl Schedule {
    fn state(&self) -> MutexGuard<'_, ScheduleState> {
        self.state.lock()
    }
}

impl Heartbeats {
    pub(crate) fn held_jobs(&self) -> MappedMutexGuard<'_, HeldJobs> {
        MutexGuard::map(self.schedule.state(), |state| &mut state.jobs)
    }

    /// Adds a job and renews its lock from now on.
    pub(crate) fn hold(&mut self, held: HeldJob, shared: &Arc<Shared>, worker: &WorkerName) {
        if self.schedule.state().jobs.hold(held) {
            self.schedule.rescheduled.notify_one();
        }
        self.start(shared, worker);
    }

    /// Starts or stops announcing the worker.
    pub(crate) fn announce(&mut self, can_do: bool, shared: &Arc<Shared>, worker: &WorkerName) {
        {
            let mut state = self.schedule.state();
            if can_do == state.announce_at.is_some() {
                return;
            }
            state.announce_at = can_do.then(|| Instant::now() + ANNOUNCE_INTERVAL);
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

    /// Stops the task. When this returns, no heartbeat is in flight.
    pub(crate) async fn stop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            // It reports that it was aborted.
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

/// Renews locks until it is aborted.
async fn renew_locks(schedule: Arc<Schedule>, shared: Arc<Shared>, worker: WorkerName) {
    // Logged once per outage: each connection with a job would log it every second.
    let mut is_unavailable = false;
    loop {
        let next = {
            let state = schedule.state();
            state.jobs.next_heartbeat().into_iter().chain(state.announce_at).min()
        };
        let due = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            () = schedule.rescheduled.notified() => continue,
        }
        let sent = Instant::now();
        let (heartbeats, announces) = {
            let mut state = schedule.state();
            let announces = state.announce_at.is_some_and(|at| at <= sent);
            if announces {
                state.announce_at = Some(sent + ANNOUNCE_INTERVAL);
            }
            (state.jobs.due(sent), announces)
        };
        let call = |(jid, token): &(Jid, Token)| {
            Call::from(Heartbeat { jid: jid.clone(), holder: Holder::Token(*token), payload: None })
        };
        let mut calls: Vec<Call> = heartbeats.iter().map(call).collect();
        if announces {
            let change = AnnounceChange::Can(Vec::new());
            calls.push(Call::from(Announce { worker: worker.clone(), change }));
        }
        if calls.is_empty() {
            continue;
        }
        let answers = shared.backend.execute(calls).await;
        let now = Instant::now();
        let mut state = schedule.state();
        let jobs = &mut state.jobs;
        match answers {
            Ok(answers) => {
                for ((jid, token), answer) in heartbeats.iter().zip(answers) {
                    match answer {
                        Ok(Reply::Heartbeat(expires)) => {
                            jobs.renewed(jid, *token, shared.lock_remaining(expires), now);
                        }
                        Ok(_) => {}
                        // The lock is lost, or the job has ended.
                        Err(_) => jobs.lose_attempt(jid, *token),
                    }
                }
                is_unavailable = false;
            }
            Err(error) => {
                heartbeats.iter().for_each(|(jid, token)| jobs.not_renewed(jid, *token, now));
                if !std::mem::replace(&mut is_unavailable, true) {
                    let error = with_causes(&error);
                    BACKEND_UNAVAILABLE
                        .warn(format_args!("locks of {worker} cannot be renewed now: {error}"));
                }
            }
        }
        jobs.update_next_heartbeat();
    }
}
