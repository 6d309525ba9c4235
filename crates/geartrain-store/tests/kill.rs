//! A process that is killed at any moment has made durable what it acknowledged.
//!
//! The test starts itself again as the process to be killed. That process puts and completes jobs, and prints
//! each acknowledgement; the test kills it after a random number of lines, and reads the directory. In every
//! other round all payloads are spilled. The process also subscribes to events and prints the last position
//! it received; the test subscribes from there.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use geartrain_core::SystemClock;
use geartrain_core::*;
use geartrain_store::{StoreBackend, StoreOptions};
use pollster::block_on;

use crate::scratch::Scratch;

const ROUNDS: u64 = 100;
const LINES_MAX: usize = 400;
/// Numbers the process allocates at a time.
const NUMBERS: u64 = 3;

/// Set in the process to be killed: its data directory.
const VICTIM: &str = "GEARTRAIN_TEST_VICTIM";

#[test]
fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    if let Ok(directory) = std::env::var(VICTIM) {
        work_until_killed(Path::new(&directory));
    }
    let seed = std::env::var("GEARTRAIN_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut rng = fastrand::Rng::with_seed(seed.unwrap_or(7041));
    let directory = Scratch::new("kill");
    // What was acknowledged, over all rounds: the directory is never emptied.
    let mut acknowledged: BTreeMap<String, String> = BTreeMap::new();
    let mut resumed = 0;
    // The last number that was allocated.
    let mut allocated = 0_u64;
    for round in 0..ROUNDS {
        // The last event position that was reported, and what was acknowledged after it.
        let (mut received, mut since) = (None, Vec::new());
        for line in kill_after(rng.usize(1..LINES_MAX), directory.path(), round) {
            let (kind, jid) = line.split_once(' ').expect("a line has a kind and a jid");
            if kind == "received" {
                received = Some(jid.parse().expect("a position is a number"));
                since.clear();
                continue;
            }
            if kind == "allocated" {
                let first: u64 = jid.parse().expect("a number is a number");
                assert!(first > allocated, "round {round}: {first} was allocated after {allocated}");
                allocated = first + NUMBERS - 1;
                continue;
            }
            since.push((kind.to_owned(), jid.to_owned()));
            acknowledged.insert(jid.to_owned(), kind.to_owned());
        }
        geartrain_store::check(directory.path()).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let backend = open(directory.path(), round);
        if let Some(received) = received {
            let events = events_after(&backend, received);
            resumed += since.len();
            for kind in since {
                assert!(events.contains(&kind), "round {round}: {kind:?} has no event after {received}");
            }
        }
        let kept = states(&backend, acknowledged.keys());
        for (jid, kind) in &acknowledged {
            let state =
                *kept.get(jid).unwrap_or_else(|| panic!("round {round}: {jid} was {kind} and is gone"));
            match kind.as_str() {
                // It may have gone further than was reported, but not back.
                "put" => {}
                "failed" => assert_eq!(state, StateName::Failed, "round {round}: {jid} was failed"),
                "done" => assert_eq!(state, StateName::Complete, "round {round}: {jid} was done"),
                other => panic!("unknown line {other}"),
            }
        }
    }
    assert!(acknowledged.len() > 1_000, "only {} jobs were acknowledged", acknowledged.len());
    assert!(allocated > 1_000, "only {allocated} numbers were allocated");
    assert!(resumed > 100, "only {resumed} events after a received position");
}

fn kill_after(lines: usize, directory: &Path, round: u64) -> Vec<String> {
    let mut victim = Process::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::nothing_acknowledged_is_lost_when_the_process_is_killed", "--nocapture"])
        .env(VICTIM, directory)
        .env("GEARTRAIN_TEST_ROUND", round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    let is_report = |line: &String| {
        ["put ", "done ", "failed ", "received ", "allocated "].iter().any(|kind| line.starts_with(kind))
    };
    let mut printed: Vec<String> = output.by_ref().filter(is_report).take(lines).collect();
    victim.kill().unwrap();
    // Lines printed before the kill count as well; half a line does not.
    printed.extend(output.filter(is_report).filter(|line| line.ends_with('.')));
    victim.wait().unwrap();
    assert!(!printed.is_empty(), "the process printed nothing");
    printed.into_iter().map(|line| line.trim_end_matches('.').to_owned()).collect()
}

fn work_until_killed(directory: &Path) -> ! {
    let round: u64 = std::env::var("GEARTRAIN_TEST_ROUND").unwrap().parse().unwrap();
    let backend = open(directory, round);
    let (mail, klass, worker) =
        (QueueName::new("mail").unwrap(), Klass::new("welcome").unwrap(), WorkerName::new("w1").unwrap());
    let print = |kind: &str, jids: &[Jid]| {
        let lines: String = jids.iter().map(|jid| format!("{kind} {jid}.\n")).collect();
        let mut out = std::io::stdout().lock();
        out.write_all(lines.as_bytes()).and_then(|()| out.flush()).unwrap();
    };
    let mut events = block_on(backend.subscribe()).unwrap();
    for number in 0_u64.. {
        let jids: Vec<Jid> =
            (0..1 + number % 7).map(|n| Jid::new(format!("{round}-{number}-{n}")).unwrap()).collect();
        let put =
            |jid: &Jid| Put::new(mail.clone(), jid.clone(), klass.clone(), payload(&jid.to_string())).into();
        execute(&backend, jids.iter().map(put).collect());
        print("put", &jids);
        let pop = Pop { count: Count::new(3).unwrap(), ..Pop::new(mail.clone(), worker.clone()) };
        let Ok(Reply::Pop(popped)) = execute(&backend, vec![pop.into()]).remove(0) else { panic!("no jobs") };
        let (failing, done): (Vec<Popped>, Vec<Popped>) =
            popped.jobs.into_iter().partition(|job| job.payload.bytes().len() % 5 == 4);
        let holder = |job: &Popped| Holder::Token(job.lock.token);
        let group = Group::new("odd").unwrap();
        execute(
            &backend,
            done.iter().map(|job| Complete::new(job.jid.clone(), holder(job)).into()).collect(),
        );
        print("done", &done.iter().map(|job| job.jid.clone()).collect::<Vec<_>>());
        let fail = |job: &Popped| Fail::new(job.jid.clone(), holder(job), group.clone(), "odd").into();
        execute(&backend, failing.iter().map(fail).collect());
        print("failed", &failing.iter().map(|job| job.jid.clone()).collect::<Vec<_>>());
        let allocate = AllocateIds { counter: "numbers".into(), count: Count::new(NUMBERS as i64).unwrap() };
        let Ok(Reply::AllocateIds(first)) = execute(&backend, vec![allocate.into()]).remove(0) else {
            panic!("no number")
        };
        print("allocated", &[Jid::new(first.to_string()).unwrap()]);
        // Events are published before the reply.
        if let Some((position, _)) = received_events(&mut *events).pop() {
            print("received", &[Jid::new(position.to_string()).unwrap()]);
        }
    }
    unreachable!("it is killed before it has counted that far")
}

fn open(directory: &Path, round: u64) -> StoreBackend {
    let mut options = StoreOptions::default();
    if round % 2 == 1 {
        options.payload_memory = 0;
        options.payload_file_bytes = 256 << 10;
        // So that checkpoints refer to spilled payloads, and files are removed.
        options.checkpoint_bytes_min = 256 << 10;
    }
    StoreBackend::open(directory, options, Arc::new(SystemClock)).unwrap()
}

/// The events received so far, each with its position.
fn received_events(events: &mut dyn Subscription) -> Vec<(u64, Arc<Event>)> {
    let mut received = Vec::new();
    while let Poll::Ready(next) = events.next().as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        let PositionedEvent { position, event, .. } = next.unwrap();
        received.push((position, event));
    }
    received
}

/// The events after a position, in the words that the process prints.
fn events_after(backend: &StoreBackend, position: u64) -> BTreeSet<(String, String)> {
    let mut events = block_on(backend.subscribe_from(position)).unwrap();
    let received = received_events(&mut *events);
    assert!(received.iter().map(|(position, _)| *position).is_sorted_by(|a, b| a < b));
    assert!(received.first().is_none_or(|(first, _)| *first > position));
    let as_printed = |event: &Event| match event {
        Event::Put { jid, .. } => Some(("put".to_owned(), jid.to_string())),
        Event::Completed { jid, .. } => Some(("done".to_owned(), jid.to_string())),
        Event::Failed { jid, .. } => Some(("failed".to_owned(), jid.to_string())),
        _ => None,
    };
    received.iter().filter_map(|(_, event)| as_printed(event)).collect()
}

/// The payload of a job: distinct for each, and up to 5,000 bytes.
fn payload(jid: &str) -> String {
    let number: usize = jid.split('-').nth(1).unwrap().parse().unwrap();
    jid.repeat(1 + number * 37 % 5_000 / jid.len())
}

fn execute(backend: &StoreBackend, batch: Vec<Call>) -> Vec<Answer> {
    let answers = block_on(backend.execute(batch)).unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    answers
}

/// The states of the jobs that exist.
fn states<'a>(backend: &StoreBackend, jids: impl Iterator<Item = &'a String>) -> BTreeMap<String, StateName> {
    let jids = jids.map(|jid| Jid::new(jid).unwrap()).collect();
    match execute(backend, vec![GetMany { jids }.into()]).remove(0) {
        Ok(Reply::GetMany(jobs)) => {
            let job_state = |job: Job| {
                let jid = job.jid.to_string();
                assert_eq!(job.payload.text(), Some(payload(&jid).as_str()), "{jid} has another payload");
                (jid, job.state.name())
            };
            jobs.into_iter().map(job_state).collect()
        }
        other => panic!("{other:?}"),
    }
}
