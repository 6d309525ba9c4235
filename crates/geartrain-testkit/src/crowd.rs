//! Many clients at work at once, who remember what they were promised: for tests in which the other side breaks meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use geartrain_core::{
    Answer, Backend, BackendError, Call, Command, Complete, Count, Fail, GetMany, Group, HandBack, Holder,
    Jid, Jobs, Klass, Listing, Page, Pop, Popped, Put, QueueName, Refusal, Reply, Seconds, SetConfig,
    StateName, Timeout, Token, WorkerName,
};
use pollster::block_on;

/// How long a test waits for something that must happen. It is only there so that a test that fails ends.
const LIMIT: Duration = Duration::from_secs(60);

/// Locks outlast every test, so that a job that somebody knows to hold is handed to nobody else.
const LOCK_SECONDS: &str = "36000";

/// Clients that put, pop, and report, each on a thread of its own.
pub struct Crowd {
    ledger: Arc<Ledger>,
    threads: Vec<JoinHandle<()>>,
}

/// What the clients were promised.
#[derive(Debug, Default)]
pub struct Promises {
    /// Jobs whose put was acknowledged.
    pub put: HashSet<Jid>,
    /// Those whose completion was.
    pub completed: HashSet<Jid>,
    /// Those whose failure was.
    pub failed: HashSet<Jid>,
    /// Calls that had no answer: nothing is promised then.
    pub unanswered: Vec<String>,
    /// Who holds what, as far as they know: the token that they were given.
    held: HashMap<Jid, Token>,
    /// What must not happen.
    wrong: Vec<String>,
    over: bool,
}

#[derive(Default)]
struct Ledger {
    promises: Mutex<Promises>,
    changed: Condvar,
}

impl Ledger {
    fn promises(&self) -> MutexGuard<'_, Promises> {
        self.promises.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note<T>(&self, what: impl FnOnce(&mut Promises) -> T) {
        what(&mut self.promises());
        self.changed.notify_all();
    }

    fn taken(&self, job: &Popped) {
        self.note(|promises| {
            if let Some(token) = promises.held.insert(job.jid.clone(), job.lock.token) {
                let jid = &job.jid;
                promises
                    .wrong
                    .push(format!("{jid} is held with {token} and was handed out with {}", job.lock.token));
            }
            if promises.completed.contains(&job.jid) || promises.failed.contains(&job.jid) {
                promises.wrong.push(format!("{} has ended and was handed out", job.jid));
            }
        });
    }
}

impl Crowd {
    /// Starts so many clients, each with a backend of its own.
    pub fn start(count: usize, connect: impl Fn() -> Arc<dyn Backend>) -> Crowd {
        let ledger = Arc::new(Ledger::default());
        let first = connect();
        done(&*first, SetConfig { option: "heartbeat".into(), value: LOCK_SECONDS.into() });
        let threads = (0..count).map(|number| {
            let (backend, ledger) = (connect(), ledger.clone());
            std::thread::spawn(move || work(number, &*backend, &ledger))
        });
        Crowd { threads: threads.collect(), ledger }
    }

    /// Waits until so many more jobs have been completed.
    pub fn goes_on(&self, more: usize) {
        let begun = Instant::now();
        let mut promises = self.ledger.promises();
        let until = promises.completed.len() + more;
        while promises.completed.len() < until {
            assert_eq!(promises.wrong, Vec::<String>::new());
            assert!(begun.elapsed() < LIMIT, "the clients got stuck: {:?}", promises.unanswered.last());
            let (next, _) = self
                .ledger
                .changed
                .wait_timeout(promises, Duration::from_millis(100))
                .unwrap_or_else(PoisonError::into_inner);
            promises = next;
        }
    }

    /// Ends the clients, and answers what they were promised.
    pub fn finish(self) -> Promises {
        self.ledger.note(|promises| promises.over = true);
        for thread in self.threads {
            thread.join().expect("a client does not panic");
        }
        std::mem::take(&mut *self.ledger.promises())
    }
}

fn work(number: usize, backend: &dyn Backend, ledger: &Ledger) {
    let worker = WorkerName::new(format!("w{number}")).expect("a good name");
    let klass = Klass::new("load").expect("a good name");
    for turn in 0_u64.. {
        if ledger.promises().over {
            return;
        }
        let jid = Jid::new(format!("{number}-{turn}")).expect("a good name");
        let put = Put::new(queue(), jid.clone(), klass.clone(), "{}");
        if ask(backend, ledger, put).is_some_and(|answer| answer.is_ok()) {
            ledger.note(|promises| promises.put.insert(jid));
        }
        let pop = Pop::new(queue(), worker.clone());
        let jobs = if turn % 2 == 0 {
            match ask(backend, ledger, pop) {
                Some(Ok(Reply::Pop(reply))) => reply.jobs,
                _ => Vec::new(),
            }
        } else {
            let waited = block_on(backend.pop_or_wait(pop, Seconds::from(1)));
            answered(ledger, waited).map(|reply| reply.jobs).unwrap_or_default()
        };
        for job in jobs {
            ledger.taken(&job);
            report(backend, ledger, &job, turn);
        }
    }
}

fn report(backend: &dyn Backend, ledger: &Ledger, job: &Popped, turn: u64) {
    let (jid, holder) = (job.jid.clone(), Holder::Token(job.lock.token));
    if turn % 5 == 4 {
        // From now on others may have it. Said twice, because an answer was lost, it is refused; that is as good.
        ledger.note(|promises| promises.held.remove(&job.jid));
        ask(backend, ledger, HandBack { jid, holder });
        return;
    }
    let fails = turn % 7 == 6;
    let command: Command = if fails {
        Fail::new(jid.clone(), holder, Group::new("load").expect("a good name"), "as every seventh").into()
    } else {
        Complete::new(jid.clone(), holder).into()
    };
    match ask(backend, ledger, command) {
        Some(Ok(_)) => ledger.note(|promises| {
            promises.held.remove(&jid);
            let ended = if fails { &mut promises.failed } else { &mut promises.completed };
            ended.insert(jid);
        }),
        Some(Err(refusal)) => ledger.note(|promises| {
            promises.wrong.push(format!("{jid} was held, and its report was refused: {refusal}"));
        }),
        None => {}
    }
}

/// One answer; none if there is none.
fn ask(backend: &dyn Backend, ledger: &Ledger, command: impl Into<Command>) -> Option<Answer> {
    answered(ledger, block_on(backend.execute(vec![Call::from(command)])))?.pop()
}

fn answered<T>(ledger: &Ledger, answer: Result<T, BackendError>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) => {
            let said = match std::error::Error::source(&error) {
                Some(source) => format!("{error}: {source}"),
                None => error.to_string(),
            };
            ledger.note(|promises| promises.unanswered.push(said));
            None
        }
    }
}

impl Promises {
    /// Compares with what is there, and then works on all that is left: nothing is lost, and nothing is stuck.
    pub fn check(&self, backend: &dyn Backend) {
        assert_eq!(self.wrong, Vec::<String>::new());
        let found = states(backend, &self.put);
        for jid in &self.put {
            assert!(found.contains_key(jid), "{jid} was put and is gone");
        }
        for (jid, state) in &found {
            let expected = match state {
                StateName::Complete => !self.failed.contains(jid),
                StateName::Failed => !self.completed.contains(jid),
                StateName::Waiting => !self.has_ended(jid) && !self.held.contains_key(jid),
                // Or somebody was given it and never heard of it.
                StateName::Running => !self.has_ended(jid),
                other => panic!("{jid} is {other}, and nobody did that"),
            };
            assert!(expected, "{jid} is {state}, which is not what was promised");
        }
        drain(backend);
        for (jid, state) in states(backend, &self.put) {
            assert!(matches!(state, StateName::Complete | StateName::Failed), "{jid} is {state} at the end");
        }
    }

    fn has_ended(&self, jid: &Jid) -> bool {
        self.completed.contains(jid) || self.failed.contains(jid)
    }
}

fn states(backend: &dyn Backend, jids: &HashSet<Jid>) -> HashMap<Jid, StateName> {
    let jids: Vec<Jid> = jids.iter().cloned().collect();
    let mut states = HashMap::new();
    for jids in jids.chunks(1_000) {
        let Reply::GetMany(jobs) = done(backend, GetMany { jids: jids.to_vec() }) else {
            panic!("not the answer to the question")
        };
        states.extend(jobs.into_iter().map(|job| (job.jid.clone(), job.state.name())));
    }
    states
}

/// Takes from everybody what they hold, and completes whatever there is.
fn drain(backend: &dyn Backend) {
    let page = Page { offset: 0, count: Count::new(1_000).expect("a good count") };
    loop {
        let Reply::Jobs(held) = done(backend, Jobs { which: Listing::Running(queue()), page }) else {
            panic!("not the answer to the question")
        };
        if held.is_empty() {
            break;
        }
        done(backend, Timeout { jids: held });
    }
    let worker = WorkerName::new("last").expect("a good name");
    let pop = Pop { count: page.count, ..Pop::new(queue(), worker) };
    loop {
        let Reply::Pop(reply) = done(backend, pop.clone()) else { panic!("not the answer to the question") };
        if reply.jobs.is_empty() {
            return;
        }
        let reports =
            reply.jobs.into_iter().map(|job| Complete::new(job.jid, Holder::Token(job.lock.token)).into());
        let answers = block_on(backend.execute(reports.collect())).expect("it answers");
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
}

fn done(backend: &dyn Backend, command: impl Into<Command>) -> Reply {
    let mut answers = block_on(backend.execute(vec![Call::from(command)])).expect("it answers");
    let answer: Result<Reply, Refusal> = answers.pop().expect("one answer for one command");
    answer.expect("it is not refused")
}

fn queue() -> QueueName {
    QueueName::new("load").expect("a good name")
}
