//! The workers that are asleep, and who wakes them.
//!
//! For each function that somebody sleeps for, one task asks the backend to be told when there is a job. Then it wakes few: those who have slept longest.
//! When one of them has asked for a job it looks whether there is still one, and wakes the next; so jobs that come by the hundred wake a hundred workers, in a
//! few rounds, and one job wakes one. Whoever was woken and does not ask is not waited for long: then more are woken.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use geartrain_core::{Backend, QueueName, Seconds};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::connection::BACKEND_UNAVAILABLE;
use super::mailbox::Mailbox;

/// How long whoever was woken may take to ask for the job before more are woken.
const WAKE_TIMEOUT: Duration = Duration::from_millis(20);
/// How long the backend is asked to wait at a time.
const WATCH_SECONDS: i32 = 600;
/// How long to wait when the backend cannot be asked.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// All who are asleep.
pub(crate) struct IdleWorkers {
    backend: Arc<dyn Backend>,
    /// How many to wake at first; all of them, if 0.
    wake_initial: usize,
    functions: Mutex<BTreeMap<QueueName, WatchedFunction>>,
    /// For how many functions there is a job, as far as is known.
    ready: AtomicUsize,
    next_position: AtomicU64,
    stop: CancellationToken,
}

/// Those who sleep for one function. It is there as long as a task watches the function.
#[derive(Default)]
struct WatchedFunction {
    idle: BTreeMap<u64, Arc<IdleWorker>>,
    /// Set as long as there was a job when somebody last looked, and nobody who can do it has asked for one since.
    ready: Option<Arc<Notify>>,
}

/// Somebody who is asleep.
struct IdleWorker {
    /// Their place in each line: who came first is woken first.
    position: u64,
    mailbox: Arc<Mailbox>,
    functions: Vec<QueueName>,
}

/// Where somebody sleeps.
pub(crate) struct Registration(Arc<IdleWorker>);

impl IdleWorkers {
    pub(crate) fn new(backend: Arc<dyn Backend>, few: usize, stop: CancellationToken) -> Arc<IdleWorkers> {
        Arc::new(IdleWorkers {
            backend,
            wake_initial: few,
            functions: Mutex::default(),
            ready: AtomicUsize::new(0),
            next_position: AtomicU64::new(0),
            stop,
        })
    }

    /// Watches these functions, for somebody who asks for a job and will lie down if there is none. What the backend is asked for at the same time costs
    /// less than what it is asked for later.
    pub(crate) fn watch_early(self: &Arc<IdleWorkers>, functions: &[QueueName]) {
        let mut lines = self.functions();
        for function in functions {
            self.ensure_watched(function, &mut lines);
        }
    }

    fn ensure_watched(
        self: &Arc<IdleWorkers>,
        function: &QueueName,
        lines: &mut BTreeMap<QueueName, WatchedFunction>,
    ) {
        if lines.contains_key(function) {
            return;
        }
        lines.insert(function.clone(), WatchedFunction::default());
        let (sleepers, function) = (self.clone(), function.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = sleepers.watch(&function) => {}
                () = sleepers.stop.cancelled() => {}
            }
        });
    }

    /// Lets somebody sleep until there is a job of one of these functions. If it is known that there is one, they are woken at once.
    pub(crate) fn register(
        self: &Arc<IdleWorkers>,
        inbox: &Arc<Mailbox>,
        functions: &[QueueName],
    ) -> Option<Registration> {
        let mut lines = self.functions();
        if functions.iter().any(|function| lines.get(function).is_some_and(|line| line.ready.is_some())) {
            drop(lines);
            inbox.wake();
            return None;
        }
        let place = self.next_position.fetch_add(1, Ordering::Relaxed);
        let sleeper =
            Arc::new(IdleWorker { position: place, mailbox: inbox.clone(), functions: functions.to_vec() });
        for function in functions {
            self.ensure_watched(function, &mut lines);
            lines.entry(function.clone()).or_default().idle.insert(place, sleeper.clone());
        }
        Some(Registration(sleeper))
    }

    /// They are not to be woken any more.
    pub(crate) fn deregister(&self, Registration(sleeper): Registration) {
        remove(&sleeper, &mut self.functions());
        sleeper.mailbox.cancel_wake();
    }

    /// Somebody who can do these has asked for a job: there may be no more, or it may be time to wake the next.
    pub(crate) fn job_requested(&self, functions: &[QueueName]) {
        if self.ready.load(Ordering::Relaxed) == 0 {
            return;
        }
        let lines = self.functions();
        for function in functions {
            if let Some(asked) = lines.get(function).and_then(|line| line.ready.as_ref()) {
                asked.notify_one();
            }
        }
    }

    /// Wakes those who sleep for a function whenever there is a job, until nobody sleeps for it.
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
            let mut few = if self.wake_initial == 0 { usize::MAX } else { self.wake_initial };
            loop {
                let Some(asked) = self.wake(function, few) else { return };
                tokio::select! {
                    () = asked.notified() => break,
                    () = tokio::time::sleep(WAKE_TIMEOUT) => few = few.saturating_mul(2),
                }
            }
            self.clear_ready(function);
        }
    }

    /// Wakes those who have slept longest. None if nobody is asleep any more: then nobody needs to watch the function either.
    fn wake(&self, function: &QueueName, few: usize) -> Option<Arc<Notify>> {
        let mut lines = self.functions();
        let line = lines.get(function)?;
        let woken: Vec<Arc<IdleWorker>> = line.idle.values().take(few).cloned().collect();
        for sleeper in woken {
            // Whoever is awake sleeps for nothing else either.
            remove(&sleeper, &mut lines);
            sleeper.mailbox.wake();
        }
        let line = lines.get_mut(function)?;
        if line.idle.is_empty() {
            self.uncount_ready(lines.remove(function));
            return None;
        }
        if line.ready.is_none() {
            self.ready.fetch_add(1, Ordering::Relaxed);
        }
        Some(line.ready.get_or_insert_default().clone())
    }

    /// Somebody has asked for a job, so whether there is one must be looked at again.
    fn clear_ready(&self, function: &QueueName) {
        if let Some(line) = self.functions().get_mut(function)
            && line.ready.take().is_some()
        {
            self.ready.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends a line if nobody is in it.
    fn end_watch_if_unused(&self, function: &QueueName) -> bool {
        let mut lines = self.functions();
        if lines.get(function).is_some_and(|line| !line.idle.is_empty()) {
            return false;
        }
        self.uncount_ready(lines.remove(function));
        true
    }

    fn uncount_ready(&self, line: Option<WatchedFunction>) {
        if line.is_some_and(|line| line.ready.is_some()) {
            self.ready.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn functions(&self) -> MutexGuard<'_, BTreeMap<QueueName, WatchedFunction>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove(sleeper: &IdleWorker, lines: &mut BTreeMap<QueueName, WatchedFunction>) {
    for function in &sleeper.functions {
        if let Some(line) = lines.get_mut(function) {
            line.idle.remove(&sleeper.position);
        }
    }
}
