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

use super::connection::BROKEN;
use super::inbox::Inbox;

/// How long whoever was woken may take to ask for the job before more are woken.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long the backend is asked to wait at a time.
const WATCH: i32 = 600;
/// How long to wait when the backend cannot be asked.
const TROUBLE: Duration = Duration::from_secs(1);

/// All who are asleep.
pub(crate) struct Sleepers {
    backend: Arc<dyn Backend>,
    /// How many to wake at first; all of them, if 0.
    few: usize,
    lines: Mutex<BTreeMap<QueueName, Line>>,
    /// For how many functions there is a job, as far as is known.
    ready: AtomicUsize,
    places: AtomicU64,
    stop: CancellationToken,
}

/// Those who sleep for one function. It is there as long as a task watches the function.
#[derive(Default)]
struct Line {
    asleep: BTreeMap<u64, Arc<Sleeper>>,
    /// Set as long as there was a job when somebody last looked, and nobody who can do it has asked for one since.
    ready: Option<Arc<Notify>>,
}

/// Somebody who is asleep.
struct Sleeper {
    /// Their place in each line: who came first is woken first.
    place: u64,
    inbox: Arc<Inbox>,
    functions: Vec<QueueName>,
}

/// Where somebody sleeps.
pub(crate) struct Bed(Arc<Sleeper>);

impl Sleepers {
    pub(crate) fn new(backend: Arc<dyn Backend>, few: usize, stop: CancellationToken) -> Arc<Sleepers> {
        Arc::new(Sleepers {
            backend,
            few,
            lines: Mutex::default(),
            ready: AtomicUsize::new(0),
            places: AtomicU64::new(0),
            stop,
        })
    }

    /// Watches these functions, for somebody who asks for a job and will lie down if there is none. What the backend is asked for at the same time costs
    /// less than what it is asked for later.
    pub(crate) fn watch_ahead(self: &Arc<Sleepers>, functions: &[QueueName]) {
        let mut lines = self.lines();
        for function in functions {
            self.watch_if_nobody_does(function, &mut lines);
        }
    }

    fn watch_if_nobody_does(
        self: &Arc<Sleepers>,
        function: &QueueName,
        lines: &mut BTreeMap<QueueName, Line>,
    ) {
        if lines.contains_key(function) {
            return;
        }
        lines.insert(function.clone(), Line::default());
        let (sleepers, function) = (self.clone(), function.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = sleepers.watch(&function) => {}
                () = sleepers.stop.cancelled() => {}
            }
        });
    }

    /// Lets somebody sleep until there is a job of one of these functions. If it is known that there is one, they are woken at once.
    pub(crate) fn lie_down(self: &Arc<Sleepers>, inbox: &Arc<Inbox>, functions: &[QueueName]) -> Option<Bed> {
        let mut lines = self.lines();
        if functions.iter().any(|function| lines.get(function).is_some_and(|line| line.ready.is_some())) {
            drop(lines);
            inbox.wake();
            return None;
        }
        let place = self.places.fetch_add(1, Ordering::Relaxed);
        let sleeper = Arc::new(Sleeper { place, inbox: inbox.clone(), functions: functions.to_vec() });
        for function in functions {
            self.watch_if_nobody_does(function, &mut lines);
            lines.entry(function.clone()).or_default().asleep.insert(place, sleeper.clone());
        }
        Some(Bed(sleeper))
    }

    /// They are not to be woken any more.
    pub(crate) fn get_up(&self, Bed(sleeper): Bed) {
        remove(&sleeper, &mut self.lines());
        sleeper.inbox.let_sleep();
    }

    /// Somebody who can do these has asked for a job: there may be no more, or it may be time to wake the next.
    pub(crate) fn asked(&self, functions: &[QueueName]) {
        if self.ready.load(Ordering::Relaxed) == 0 {
            return;
        }
        let lines = self.lines();
        for function in functions {
            if let Some(asked) = lines.get(function).and_then(|line| line.ready.as_ref()) {
                asked.notify_one();
            }
        }
    }

    /// Wakes those who sleep for a function whenever there is a job, until nobody sleeps for it.
    async fn watch(&self, function: &QueueName) {
        loop {
            match self.backend.ready_or_wait(vec![function.clone()], Seconds::from(WATCH)).await {
                Ok(true) => {}
                Ok(false) => {
                    if self.is_over(function) {
                        return;
                    }
                    continue;
                }
                Err(error) => {
                    BROKEN.warn(format_args!("idle workers cannot be woken now: {error}"));
                    tokio::time::sleep(TROUBLE).await;
                    if self.is_over(function) {
                        return;
                    }
                    continue;
                }
            }
            let mut few = if self.few == 0 { usize::MAX } else { self.few };
            loop {
                let Some(asked) = self.wake(function, few) else { return };
                tokio::select! {
                    () = asked.notified() => break,
                    () = tokio::time::sleep(PATIENCE) => few = few.saturating_mul(2),
                }
            }
            self.note_asked(function);
        }
    }

    /// Wakes those who have slept longest. None if nobody is asleep any more: then nobody needs to watch the function either.
    fn wake(&self, function: &QueueName, few: usize) -> Option<Arc<Notify>> {
        let mut lines = self.lines();
        let line = lines.get(function)?;
        let woken: Vec<Arc<Sleeper>> = line.asleep.values().take(few).cloned().collect();
        for sleeper in woken {
            // Whoever is awake sleeps for nothing else either.
            remove(&sleeper, &mut lines);
            sleeper.inbox.wake();
        }
        let line = lines.get_mut(function)?;
        if line.asleep.is_empty() {
            self.end(lines.remove(function));
            return None;
        }
        if line.ready.is_none() {
            self.ready.fetch_add(1, Ordering::Relaxed);
        }
        Some(line.ready.get_or_insert_default().clone())
    }

    /// Somebody has asked for a job, so whether there is one must be looked at again.
    fn note_asked(&self, function: &QueueName) {
        if let Some(line) = self.lines().get_mut(function)
            && line.ready.take().is_some()
        {
            self.ready.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends a line if nobody is in it.
    fn is_over(&self, function: &QueueName) -> bool {
        let mut lines = self.lines();
        if lines.get(function).is_some_and(|line| !line.asleep.is_empty()) {
            return false;
        }
        self.end(lines.remove(function));
        true
    }

    fn end(&self, line: Option<Line>) {
        if line.is_some_and(|line| line.ready.is_some()) {
            self.ready.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn lines(&self) -> MutexGuard<'_, BTreeMap<QueueName, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove(sleeper: &Sleeper, lines: &mut BTreeMap<QueueName, Line>) {
    for function in &sleeper.functions {
        if let Some(line) = lines.get_mut(function) {
            line.asleep.remove(&sleeper.place);
        }
    }
}
