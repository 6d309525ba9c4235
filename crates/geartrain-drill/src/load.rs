//! Clients that put, pop and report jobs, each on a thread and with a connection of its own.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use geartrain_core::{
    Answer, Backend, BackendError, Call, Command, Complete, Fail, Group, Holder, Jid, Klass, Pop, Popped,
    Put, Release, Reply, Seconds, SetConfig, WorkerName,
};
use parking_lot::{Condvar, Mutex};
use pollster::block_on;

use crate::ledger::{Ledger, payload_of, queue, run};

/// How long the clients may make no progress before the run counts as stalled.
const STALL_MAX: Duration = Duration::from_secs(120);
/// How long a client waits after an error. A refused call returns at once, and a loop of them would only fill
/// the ledger.
const ERROR_PAUSE: Duration = Duration::from_millis(20);

/// Options that the run needs: locks that outlast it, so that a lock held is a lock valid, and every finished
/// job kept, so that the verification finds it.
const OPTIONS: [(&str, &str); 3] =
    [("heartbeat", "360000"), ("jobs-history", "31536000"), ("jobs-history-count", "100000000")];

/// Clients at work.
pub struct LoadClients {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ledger: Ledger,
    stop: bool,
}

/// The clients completed nothing for two minutes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the clients made no progress for {} s; the latest error was: {error}", STALL_MAX.as_secs())]
pub struct Stalled {
    /// The latest error of any client.
    pub error: String,
}

impl Shared {
    fn record<T>(&self, change: impl FnOnce(&mut Ledger) -> T) {
        change(&mut self.state.lock().ledger);
        self.changed.notify_all();
    }
}

impl LoadClients {
    /// Sets the options of the run and starts `count` clients. `name` begins the jids and worker names, so
    /// that several runs can share one backend.
    pub fn start(
        count: usize,
        name: &str,
        connect: impl Fn() -> Result<Arc<dyn Backend>, BackendError>,
    ) -> Result<LoadClients, BackendError> {
        let backend = connect()?;
        for (option, value) in OPTIONS {
            run(&*backend, SetConfig::new(option, value))?;
        }
        let shared = Arc::new(Shared::default());
        let mut clients = LoadClients { shared, threads: Vec::new() };
        for number in 0..count {
            let (backend, shared, name) = (connect()?, clients.shared.clone(), format!("{name}-{number}"));
            clients.threads.push(std::thread::spawn(move || work(&name, &*backend, &shared)));
        }
        Ok(clients)
    }

    /// Waits until `more` further jobs are completed.
    pub fn wait_for_completed(&self, more: usize) -> Result<(), Stalled> {
        let until = self.shared.state.lock().ledger.completed.len() + more;
        self.wait_for(|ledger| ledger.completed.len() >= until)
    }

    /// Waits until `more` further calls have ended with an error.
    pub fn wait_for_errors(&self, more: u64) -> Result<(), Stalled> {
        let until = self.shared.state.lock().ledger.unanswered + more;
        self.wait_for(|ledger| ledger.unanswered >= until)
    }

    fn wait_for(&self, is_reached: impl Fn(&Ledger) -> bool) -> Result<(), Stalled> {
        let deadline = Instant::now() + STALL_MAX;
        let mut state = self.shared.state.lock();
        while !is_reached(&state.ledger) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let error = state.ledger.errors.last().cloned();
                return Err(Stalled { error: error.unwrap_or_else(|| "none".to_owned()) });
            }
            self.shared.changed.wait_for(&mut state, left);
        }
        Ok(())
    }

    /// What was acknowledged so far, for the verification of any later state.
    pub fn acknowledged(&self) -> Ledger {
        self.shared.state.lock().ledger.lasting()
    }

    /// Stops the clients and returns their ledger.
    pub fn finish(mut self) -> Ledger {
        self.stop();
        std::mem::take(&mut self.shared.state.lock().ledger)
    }

    fn stop(&mut self) {
        self.shared.state.lock().stop = true;
        for thread in self.threads.drain(..) {
            // A panic was printed by its hook, and the jobs of that client are verified all the same.
            let _ = thread.join();
        }
    }
}

impl Drop for LoadClients {
    fn drop(&mut self) {
        self.stop();
    }
}

fn work(name: &str, backend: &dyn Backend, shared: &Shared) {
    let worker = WorkerName::new(name).expect("the name is valid");
    let klass = Klass::new("drill").expect("the name is valid");
    for turn in 0_u64.. {
        if shared.state.lock().stop {
            return;
        }
        let jid = Jid::new(format!("{name}-{turn}")).expect("the name is valid");
        let put = Put::new(queue(), jid.clone(), klass.clone(), payload_of(&jid));
        if let Some(Ok(_)) = ask(backend, shared, put) {
            shared.record(|ledger| ledger.put.insert(jid));
        }
        let pop = Pop::new(queue(), worker.clone());
        let jobs = if turn % 2 == 0 {
            match ask(backend, shared, pop) {
                Some(Ok(Reply::Pop(reply))) => reply.jobs,
                _ => Vec::new(),
            }
        } else {
            let popped = block_on(backend.pop_or_wait(pop, Seconds::from(1)));
            answered(shared, popped).map(|reply| reply.jobs).unwrap_or_default()
        };
        for job in jobs {
            shared.record(|ledger| ledger.popped(&job));
            report(backend, shared, &job, turn);
        }
    }
}

/// Completes the job; releases every fifth and fails every seventh.
fn report(backend: &dyn Backend, shared: &Shared, job: &Popped, turn: u64) {
    let (jid, holder) = (job.jid.clone(), Holder::Token(job.lock.token));
    if turn % 5 == 4 {
        // Recorded first: as soon as the release is executed another client may be handed the job. A release
        // that the driver repeats because its reply was lost is refused, which is as good.
        shared.record(|ledger| ledger.released(&jid));
        ask(backend, shared, Release::new(jid, holder));
        return;
    }
    let fails = turn % 7 == 6;
    let command: Command = if fails {
        let group = Group::new("drill").expect("the name is valid");
        Fail::new(jid.clone(), holder, group, "every seventh job fails").into()
    } else {
        Complete::new(jid.clone(), holder).into()
    };
    match ask(backend, shared, command) {
        Some(Ok(_)) => shared.record(|ledger| ledger.ended(jid, fails)),
        Some(Err(refusal)) => shared.record(|ledger| ledger.refused(&jid, &refusal)),
        None => {}
    }
}

/// The answer to one command; none if the call ended with an error.
fn ask(backend: &dyn Backend, shared: &Shared, command: impl Into<Command>) -> Option<Answer> {
    answered(shared, block_on(backend.execute(vec![Call::from(command)])))?.pop()
}

fn answered<T>(shared: &Shared, result: Result<T, BackendError>) -> Option<T> {
    match result {
        Ok(answer) => Some(answer),
        Err(error) => {
            let text = match std::error::Error::source(&error) {
                Some(source) => format!("{error}: {source}"),
                None => error.to_string(),
            };
            shared.record(|ledger| ledger.error(text));
            std::thread::sleep(ERROR_PAUSE);
            None
        }
    }
}
