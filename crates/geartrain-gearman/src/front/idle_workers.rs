//! Idle workers after PRE_SLEEP, and the wake-ups (NOOP) that end their sleep.
//!
//! For each function with an idle worker, one task waits at the backend until a job of it is ready. Then it
//! wakes a few workers, those idle longest first. When one of them has asked for a job, the task looks
//! whether there is another one and wakes the next worker. So one job wakes one worker, and hundreds of jobs
//! wake hundreds of workers in a few rounds (no thundering herd). If no woken worker asks in time, the task
//! wakes twice as many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use geartrain_core::{Backend, QueueName, Seconds};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::connection::BACKEND_UNAVAILABLE;
use super::mailbox::Mailbox;
use super::tasks::Tasks;

/// How long a woken worker may take to ask for the job before more are woken.
const WAKE_TIMEOUT: Duration = Duration::from_millis(20);
/// How long one wait at the backend lasts.
const WATCH_SECONDS: i32 = 600;
/// Pause after the backend did not answer.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// All idle workers of a front-end.
pub(crate) struct IdleWorkers {
    backend: Arc<dyn Backend>,
    /// How many workers a job wakes at first; 0 wakes all.
    wake_initial: usize,
    watched: Mutex<BTreeMap<QueueName, WatchedFunction>>,
    /// Number of functions with [`WatchedFunction::ready`] set.
    ready: AtomicUsize,
    next_position: AtomicU64,
    tasks: Arc<Tasks>,
}

/// The idle workers of one function. It exists as long as a task watches the function.
#[derive(Default)]
struct WatchedFunction {
    idle: BTreeMap<u64, Arc<IdleWorker>>,
    /// Set while the backend reported a job and no worker of this function has asked for one since.
    ready: Option<Arc<Notify>>,
}

struct IdleWorker {
    /// Its position in the wake order of each of its functions: the longest idle first.
    position: u64,
    mailbox: Arc<Mailbox>,
    functions: Vec<QueueName>,
}

/// The registration of an idle worker, needed to deregister it.
pub(crate) struct Registration(Arc<IdleWorker>);

impl IdleWorkers {
    pub(crate) fn new(backend: Arc<dyn Backend>, wake_initial: usize, tasks: Arc<Tasks>) -> Arc<IdleWorkers> {
        Arc::new(IdleWorkers {
            backend,
            wake_initial,
            watched: Mutex::default(),
            ready: AtomicUsize::new(0),
            next_position: AtomicU64::new(0),
            tasks,
        })
    }

    /// Watches these functions for a worker that has just asked for a job and will be idle if there is none:
    /// the backend executes the wait together with that pop, which costs less than a call of its own later.
    pub(crate) fn watch_early(self: &Arc<IdleWorkers>, functions: &[QueueName]) {
        let mut watched = self.watched();
        for function in functions {
            self.ensure_watched(function, &mut watched);
        }
    }

    fn ensure_watched(
        self: &Arc<IdleWorkers>,
        function: &QueueName,
        watched: &mut BTreeMap<QueueName, WatchedFunction>,
    ) {
        if watched.contains_key(function) {
            return;
        }
        watched.insert(function.clone(), WatchedFunction::default());
        let (workers, function) = (self.clone(), function.clone());
        self.tasks.spawn(async move { workers.watch(&function).await });
    }

    /// Registers an idle worker, to be woken for a job of one of these functions. If a job is known to be
    /// ready, the worker is woken at once and not registered.
    pub(crate) fn register(
        self: &Arc<IdleWorkers>,
        mailbox: &Arc<Mailbox>,
        functions: &[QueueName],
    ) -> Option<Registration> {
        let mut watched = self.watched();
        if functions.iter().any(|function| watched.get(function).is_some_and(|it| it.ready.is_some())) {
            drop(watched);
            mailbox.wake();
            return None;
        }
        let position = self.next_position.fetch_add(1, Ordering::Relaxed);
        let worker =
            Arc::new(IdleWorker { position, mailbox: mailbox.clone(), functions: functions.to_vec() });
        for function in functions {
            self.ensure_watched(function, &mut watched);
            watched.entry(function.clone()).or_default().idle.insert(position, worker.clone());
        }
        Some(Registration(worker))
    }

    /// Removes an idle worker and takes back a wake-up that it has not read yet.
    pub(crate) fn deregister(&self, Registration(worker): Registration) {
        remove(&worker, &mut self.watched());
        worker.mailbox.cancel_wake();
    }

    /// A worker with these functions has asked for a job: the last job may be gone, or the next worker may be
    /// due to be woken.
    pub(crate) fn job_requested(&self, functions: &[QueueName]) {
        if self.ready.load(Ordering::Relaxed) == 0 {
            return;
        }
        let watched = self.watched();
        for function in functions {
            if let Some(requested) = watched.get(function).and_then(|it| it.ready.as_ref()) {
                requested.notify_one();
            }
        }
    }

    /// Wakes idle workers of a function whenever a job is ready, until none is left.
    async fn watch(&self, function: &QueueName) {
        loop {
            match self.backend.ready_or_wait(vec![function.clone()], Seconds::from(WATCH_SECONDS)).await {
                Ok(true) => {}
                Ok(false) => {
                    if self.end_watch_if_unused(function) {
                        return;
                    }
                    continue;
                }
                Err(error) => {
                    BACKEND_UNAVAILABLE.warn(format_args!("idle workers cannot be woken now: {error}"));
                    tokio::time::sleep(RETRY_DELAY).await;
                    if self.end_watch_if_unused(function) {
                        return;
                    }
                    continue;
                }
            }
            let mut count = if self.wake_initial == 0 { usize::MAX } else { self.wake_initial };
            loop {
                let Some(requested) = self.wake(function, count) else { return };
                tokio::select! {
                    () = requested.notified() => break,
                    () = tokio::time::sleep(WAKE_TIMEOUT) => count = count.saturating_mul(2),
                }
            }
            self.clear_ready(function);
        }
    }

    /// Wakes the `count` workers that have been idle longest. `None` if no idle worker is left: then the
    /// watch of the function ends as well.
    fn wake(&self, function: &QueueName, count: usize) -> Option<Arc<Notify>> {
        let mut watched = self.watched();
        let woken: Vec<Arc<IdleWorker>> = watched.get(function)?.idle.values().take(count).cloned().collect();
        for worker in woken {
            // One wake-up ends its registration for all of its functions.
            remove(&worker, &mut watched);
            worker.mailbox.wake();
        }
        let entry = watched.get_mut(function)?;
        if entry.idle.is_empty() {
            self.uncount_ready(watched.remove(function));
            return None;
        }
        if entry.ready.is_none() {
            self.ready.fetch_add(1, Ordering::Relaxed);
        }
        Some(entry.ready.get_or_insert_default().clone())
    }

    /// A worker has asked for a job, so the backend must be asked again whether one is ready.
    fn clear_ready(&self, function: &QueueName) {
        if let Some(entry) = self.watched().get_mut(function)
            && entry.ready.take().is_some()
        {
            self.ready.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends the watch of a function without idle workers. Returns whether it did.
    fn end_watch_if_unused(&self, function: &QueueName) -> bool {
        let mut watched = self.watched();
        if watched.get(function).is_some_and(|entry| !entry.idle.is_empty()) {
            return false;
        }
        self.uncount_ready(watched.remove(function));
        true
    }

    fn uncount_ready(&self, removed: Option<WatchedFunction>) {
        if removed.is_some_and(|entry| entry.ready.is_some()) {
            self.ready.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn watched(&self) -> MutexGuard<'_, BTreeMap<QueueName, WatchedFunction>> {
        self.watched.lock()
    }
}

fn remove(worker: &IdleWorker, watched: &mut BTreeMap<QueueName, WatchedFunction>) {
    for function in &worker.functions {
        if let Some(entry) = watched.get_mut(function) {
            entry.idle.remove(&worker.position);
        }
    }
}
