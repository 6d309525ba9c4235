//! The ledger of acknowledgements, and its verification.

use std::collections::{HashMap, HashSet};

use geartrain_core::{
    Answer, Backend, BackendError, Call, Command, Complete, Count, GetMany, Holder, Jid, Job, Jobs, Listing,
    Page, Payload, Pop, Popped, QueueName, Reply, StateName, Timeout, Token, WorkerName,
};
use pollster::block_on;

/// How many violations and error texts are stored; the rest is only counted.
const TEXTS_MAX: usize = 20;
/// How many jobs are read or completed per batch of the verification.
const BATCH_JOBS: usize = 500;

/// Every acknowledgement that the clients of one run received.
#[derive(Debug, Default, Clone)]
pub struct Ledger {
    /// Jobs whose put was acknowledged.
    pub put: HashSet<Jid>,
    /// Jobs whose completion was acknowledged.
    pub completed: HashSet<Jid>,
    /// Jobs whose failure was acknowledged.
    pub failed: HashSet<Jid>,
    /// Calls that ended with an error. They promise nothing.
    pub unanswered: u64,
    /// The texts of the latest of these errors.
    pub errors: Vec<String>,
    /// The lock token of each job that a client holds.
    held: HashMap<Jid, Token>,
    doubled: Violations,
    refused: Violations,
}

/// Violations of one kind: the count, and the first texts.
#[derive(Debug, Default, Clone)]
struct Violations {
    count: u64,
    texts: Vec<String>,
}

impl Violations {
    fn add(&mut self, text: String) {
        self.count += 1;
        if self.texts.len() < TEXTS_MAX {
            self.texts.push(text);
        }
    }
}

impl Ledger {
    /// Records an error.
    pub(crate) fn error(&mut self, text: String) {
        self.unanswered += 1;
        if self.errors.len() >= TEXTS_MAX {
            self.errors.remove(0);
        }
        self.errors.push(text);
    }

    /// Records that a client was handed a job: another client must not hold it, and it must not have ended.
    pub(crate) fn popped(&mut self, job: &Popped) {
        let (jid, token) = (&job.jid, job.lock.token);
        if let Some(first) = self.held.insert(jid.clone(), token) {
            self.doubled.add(format!("{jid} is held with token {first} and was handed out with {token}"));
        }
        if self.has_ended(jid) {
            self.doubled.add(format!("{jid} has ended and was handed out with token {token}"));
        }
    }

    /// Records that a client releases its lock, whatever the answer will be.
    pub(crate) fn released(&mut self, jid: &Jid) {
        self.held.remove(jid);
    }

    /// Records an acknowledged completion or failure.
    pub(crate) fn ended(&mut self, jid: Jid, failed: bool) {
        self.held.remove(&jid);
        let ended = if failed { &mut self.failed } else { &mut self.completed };
        ended.insert(jid);
    }

    /// Records that the report of a lock holder was refused, which no fault excuses: locks outlast the run.
    pub(crate) fn refused(&mut self, jid: &Jid, refusal: &dyn std::fmt::Display) {
        self.refused.add(format!("{jid} was held and its report was refused: {refusal}"));
    }

    /// The promises that hold for every later state too: a lock held now may be gone by then.
    pub(crate) fn lasting(&self) -> Ledger {
        Ledger { held: HashMap::new(), ..self.clone() }
    }

    /// Acknowledged operations: puts, completions and failures.
    pub fn acknowledged(&self) -> u64 {
        (self.put.len() + self.completed.len() + self.failed.len()) as u64
    }

    /// Violations seen so far, while the clients are still at work.
    pub fn violations(&self) -> Vec<String> {
        self.doubled.texts.iter().chain(&self.refused.texts).cloned().collect()
    }

    fn has_ended(&self, jid: &Jid) -> bool {
        self.completed.contains(jid) || self.failed.contains(jid)
    }

    /// Compares the ledger with what the backend has, then takes every lock away and completes all jobs that
    /// are left: each must come to its end.
    pub fn verify(&self, backend: &dyn Backend) -> Result<Verdict, BackendError> {
        let mut lost = Violations::default();
        // A put whose reply was lost may have been executed; then its completion is a promise all the same.
        let ended = self.completed.union(&self.failed).filter(|jid| !self.put.contains(*jid));
        let jids: Vec<&Jid> = self.put.iter().chain(ended).collect();
        for jids in jids.chunks(BATCH_JOBS) {
            let found = jobs(backend, jids)?;
            for jid in jids {
                match found.get(*jid) {
                    None => lost.add(format!("{jid} was put and is missing")),
                    Some(job) => self.compare(jid, job, &mut lost),
                }
            }
        }
        drain(backend)?;
        let mut stuck = Violations::default();
        for jids in jids.chunks(BATCH_JOBS) {
            for (jid, job) in jobs(backend, jids)? {
                let state = job.state.name();
                if !matches!(state, StateName::Complete | StateName::Failed) {
                    stuck.add(format!("{jid} is {state} after every job was worked on"));
                }
            }
        }
        let kinds = [&lost, &self.doubled, &self.refused, &stuck];
        Ok(Verdict {
            promised: self.acknowledged(),
            lost: lost.count + self.refused.count + stuck.count,
            doubled: self.doubled.count,
            violations: kinds.iter().flat_map(|kind| kind.texts.iter().cloned()).collect(),
        })
    }

    fn compare(&self, jid: &Jid, job: &Job, lost: &mut Violations) {
        let state = job.state.name();
        let expected = match state {
            StateName::Complete => !self.failed.contains(jid),
            StateName::Failed => !self.completed.contains(jid),
            StateName::Waiting => !self.has_ended(jid) && !self.held.contains_key(jid),
            // A pop whose reply was lost leaves a running job that no client knows of.
            StateName::Running => !self.has_ended(jid),
            StateName::Scheduled | StateName::Depends => false,
        };
        if !expected {
            let promise = match (self.completed.contains(jid), self.failed.contains(jid)) {
                (true, _) => "complete",
                (_, true) => "failed",
                _ if self.held.contains_key(jid) => "running",
                _ => "waiting",
            };
            lost.add(format!("{jid} is {state}, and the acknowledgement said {promise}"));
        }
        if job.payload != payload_of(jid) {
            lost.add(format!("{jid} has another payload than the one that was put"));
        }
    }
}

/// The result of the verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Acknowledged operations.
    pub promised: u64,
    /// Acknowledgements that did not hold: a job gone, in another state, with another payload, or stuck.
    pub lost: u64,
    /// Jobs handed out while another client held them, or after their end.
    pub doubled: u64,
    /// The texts of the violations, at most 20 of each kind.
    pub violations: Vec<String>,
}

impl Verdict {
    /// Panics unless every promise was kept: for tests.
    #[track_caller]
    pub fn assert_kept(&self) {
        assert!(self.violations.is_empty() && self.promised > 0, "{self:#?}");
    }
}

/// The payload of a job: a function of its jid, so that the verification can tell whether it is the one that
/// was put. Most are a few bytes, one of sixteen has 2 KiB, one of a thousand 200 KiB.
pub(crate) fn payload_of(jid: &Jid) -> Payload {
    let text = jid.to_string();
    let sum = text.bytes().fold(17_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let bytes = match sum % 1_000 {
        0 => 200 << 10,
        1..=62 => 2 << 10,
        _ => 0,
    };
    Payload::from(format!("{{\"jid\":\"{text}\",\"padding\":\"{}\"}}", "x".repeat(bytes)))
}

pub(crate) fn queue() -> QueueName {
    QueueName::new("drill").expect("the name is valid")
}

fn jobs(backend: &dyn Backend, jids: &[&Jid]) -> Result<HashMap<Jid, Job>, BackendError> {
    let jids = jids.iter().map(|jid| (*jid).clone()).collect();
    match run(backend, GetMany { jids })? {
        Reply::GetMany(jobs) => Ok(jobs.into_iter().map(|job| (job.jid.clone(), job)).collect()),
        _ => Err(unexpected()),
    }
}

/// Ends every lock, then pops and completes until the queue is empty.
fn drain(backend: &dyn Backend) -> Result<(), BackendError> {
    let count = Count::new(BATCH_JOBS as i64).expect("the count is valid");
    let page = Page { offset: 0, count };
    loop {
        match run(backend, Jobs { which: Listing::Running(queue()), page })? {
            Reply::Jobs(held) if held.is_empty() => break,
            Reply::Jobs(held) => run(backend, Timeout { jids: held })?,
            _ => return Err(unexpected()),
        };
    }
    let worker = WorkerName::new("drain").expect("the name is valid");
    let pop = Pop { count, ..Pop::new(queue(), worker) };
    loop {
        let Reply::Pop(popped) = run(backend, pop.clone())? else { return Err(unexpected()) };
        if popped.jobs.is_empty() {
            return Ok(());
        }
        let complete = |job: Popped| Complete::new(job.jid, Holder::Token(job.lock.token)).into();
        for answer in block_on(backend.execute(popped.jobs.into_iter().map(complete).collect()))? {
            answer?;
        }
    }
}

pub(crate) fn run(backend: &dyn Backend, command: impl Into<Command>) -> Result<Reply, BackendError> {
    let answer: Option<Answer> = block_on(backend.execute(vec![Call::from(command)]))?.pop();
    Ok(answer.ok_or_else(unexpected)??)
}

fn unexpected() -> BackendError {
    BackendError::Broken { backend: "drilled", source: "its reply belongs to another command".into() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use geartrain_core::SystemClock;
    use geartrain_core::{Klass, Put};
    use geartrain_store::StoreBackend;

    use super::*;

    fn pop(backend: &dyn Backend) -> Popped {
        let pop = Pop::new(queue(), WorkerName::new("w").unwrap());
        match run(backend, pop).unwrap() {
            Reply::Pop(reply) => reply.jobs.into_iter().next().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_job_handed_out_while_it_is_held_or_after_its_end_is_doubled() {
        let backend = StoreBackend::in_memory(Arc::new(SystemClock)).unwrap();
        let jid = Jid::new("j").unwrap();
        run(&backend, Put::new(queue(), jid.clone(), Klass::new("k").unwrap(), payload_of(&jid))).unwrap();
        let first = pop(&backend);
        run(&backend, Timeout { jids: vec![jid.clone()] }).unwrap();
        let second = pop(&backend);

        let mut held = Ledger::default();
        held.popped(&first);
        assert_eq!(held.violations(), Vec::<String>::new());
        held.popped(&second);
        assert_eq!(held.doubled.count, 1, "{:?}", held.violations());

        let mut ended = Ledger::default();
        ended.popped(&first);
        ended.ended(jid.clone(), false);
        ended.popped(&second);
        assert_eq!(ended.doubled.count, 1, "{:?}", ended.violations());

        let mut released = Ledger::default();
        released.popped(&first);
        released.released(&jid);
        released.popped(&second);
        assert_eq!(released.doubled.count, 0, "{:?}", released.violations());
    }
}
