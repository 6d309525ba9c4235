//! A process that is killed at any moment has kept what it said it did.
//!
//! The test starts itself again as the process to be killed. That one puts and works jobs, and says so on its standard output after
//! each acknowledgement; the test kills it after a number of lines that it drew, and reads what is there. In every other round no payload stays in memory.
//! The process also listens to what happens and says up to which position it has heard; the test goes on from there.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use geartrain_core::SystemClock;
use geartrain_core::*;
use geartrain_store::{StoreBackend, StoreOptions};
use pollster::block_on;

const ROUNDS: u64 = 100;
const LINES_MAX: usize = 400;
/// How many numbers the process asks for at a time.
const NUMBERS: u64 = 3;

/// Tells the process what it is.
const VICTIM: &str = "GEARTRAIN_TEST_VICTIM";

#[test]
fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    if let Ok(directory) = std::env::var(VICTIM) {
        work_until_killed(Path::new(&directory));
    }
    let seed = std::env::var("GEARTRAIN_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut rng = fastrand::Rng::with_seed(seed.unwrap_or(7041));
    let directory = Scratch::new();
    // What was acknowledged, over all rounds: the directory is never emptied.
    let mut acknowledged: BTreeMap<String, String> = BTreeMap::new();
    let mut resumed = 0;
    // The last number that anybody was handed.
    let mut allotted = 0_u64;
    for round in 0..ROUNDS {
        // The last position that was heard of, and what was acknowledged after that.
        let (mut heard, mut since) = (None, Vec::new());
        for line in kill_after(rng.usize(1..LINES_MAX), &directory.0, round) {
            let (what, jid) = line.split_once(' ').expect("a line says what was done to which job");
            if what == "heard" {
                heard = Some(jid.parse().expect("a position is a number"));
                since.clear();
                continue;
            }
            if what == "allotted" {
                let first: u64 = jid.parse().expect("a number is a number");
                assert!(first > allotted, "round {round}: {first} was handed out after {allotted}");
                allotted = first + NUMBERS - 1;
                continue;
            }
            since.push((what.to_owned(), jid.to_owned()));
            acknowledged.insert(jid.to_owned(), what.to_owned());
        }
        geartrain_store::check(&directory.0).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let backend = open(&directory.0, round);
        if let Some(heard) = heard {
            let happened = happened_after(&backend, heard);
            resumed += since.len();
            for what in since {
                assert!(happened.contains(&what), "round {round}: {what:?} has not happened after {heard}");
            }
        }
        let kept = states(&backend, acknowledged.keys());
        for (jid, what) in &acknowledged {
            let state =
                *kept.get(jid).unwrap_or_else(|| panic!("round {round}: {jid} was {what} and is gone"));
            match what.as_str() {
                // It may have gone further than was said, but not back.
                "put" => {}
                "failed" => assert_eq!(state, StateName::Failed, "round {round}: {jid} was failed"),
                "done" => assert_eq!(state, StateName::Complete, "round {round}: {jid} was done"),
                other => panic!("nobody says {other}"),
            }
        }
    }
    assert!(acknowledged.len() > 1_000, "only {} jobs were acknowledged", acknowledged.len());
    assert!(allotted > 1_000, "only {allotted} numbers were handed out");
    assert!(resumed > 100, "only {resumed} things happened after what was heard");
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
        ["put ", "done ", "failed ", "heard ", "allotted "].iter().any(|what| line.starts_with(what))
    };
    let mut said: Vec<String> = output.by_ref().filter(is_report).take(lines).collect();
    victim.kill().unwrap();
    // What it had said before it was killed counts as well; half a line does not.
    said.extend(output.filter(is_report).filter(|line| line.ends_with('.')));
    victim.wait().unwrap();
    assert!(!said.is_empty(), "the process said nothing");
    said.into_iter().map(|line| line.trim_end_matches('.').to_owned()).collect()
}

fn work_until_killed(directory: &Path) -> ! {
    let round: u64 = std::env::var("GEARTRAIN_TEST_ROUND").unwrap().parse().unwrap();
    let backend = open(directory, round);
    let (mail, klass, worker) =
        (QueueName::new("mail").unwrap(), Klass::new("welcome").unwrap(), WorkerName::new("w1").unwrap());
    let say = |what: &str, jids: &[Jid]| {
        let lines: String = jids.iter().map(|jid| format!("{what} {jid}.\n")).collect();
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
        say("put", &jids);
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
        say("done", &done.iter().map(|job| job.jid.clone()).collect::<Vec<_>>());
        let fail = |job: &Popped| Fail::new(job.jid.clone(), holder(job), group.clone(), "odd").into();
        execute(&backend, failing.iter().map(fail).collect());
        say("failed", &failing.iter().map(|job| job.jid.clone()).collect::<Vec<_>>());
        let allot = AllocateIds { counter: "numbers".into(), count: Count::new(NUMBERS as i64).unwrap() };
        let Ok(Reply::AllocateIds(first)) = execute(&backend, vec![allot.into()]).remove(0) else {
            panic!("no number")
        };
        say("allotted", &[Jid::new(first.to_string()).unwrap()]);
        // What happened is there before it is acknowledged.
        if let Some((position, _)) = all_there_is(&mut *events).pop() {
            say("heard", &[Jid::new(position.to_string()).unwrap()]);
        }
    }
    unreachable!("it is killed before it has counted that far")
}

fn open(directory: &Path, round: u64) -> StoreBackend {
    let mut options = StoreOptions::default();
    if round % 2 == 1 {
        options.payload_memory = 0;
        options.payload_file_bytes = 256 << 10;
        // So that there are checkpoints that speak of payloads in files, and files that go.
        options.checkpoint_bytes_min = 256 << 10;
    }
    StoreBackend::open(directory, options, Arc::new(SystemClock)).unwrap()
}

/// What is there to be heard now, each with its position.
fn all_there_is(events: &mut dyn Subscription) -> Vec<(u64, Arc<Event>)> {
    let mut heard = Vec::new();
    while let Poll::Ready(next) = events.next().as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        let Published { position, event } = next.unwrap();
        heard.push((position, event));
    }
    heard
}

/// What happened to which job after a position, in the words that the process says.
fn happened_after(backend: &StoreBackend, position: u64) -> BTreeSet<(String, String)> {
    let mut events = block_on(backend.subscribe_from(position)).unwrap();
    let heard = all_there_is(&mut *events);
    assert!(heard.iter().map(|(position, _)| *position).is_sorted_by(|a, b| a < b));
    assert!(heard.first().is_none_or(|(first, _)| *first > position));
    let in_words = |event: &Event| match event {
        Event::Put { jid, .. } => Some(("put".to_owned(), jid.to_string())),
        Event::Completed { jid, .. } => Some(("done".to_owned(), jid.to_string())),
        Event::Failed { jid, .. } => Some(("failed".to_owned(), jid.to_string())),
        _ => None,
    };
    heard.iter().filter_map(|(_, event)| in_words(event)).collect()
}

/// The payload of a job: another for each, and up to 5,000 bytes.
fn payload(jid: &str) -> String {
    let number: usize = jid.split('-').nth(1).unwrap().parse().unwrap();
    jid.repeat(1 + number * 37 % 5_000 / jid.len())
}

fn execute(backend: &StoreBackend, batch: Vec<Call>) -> Vec<Answer> {
    let answers = block_on(backend.execute(batch)).unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    answers
}

/// Where those of the jobs stand that are there.
fn states<'a>(backend: &StoreBackend, jids: impl Iterator<Item = &'a String>) -> BTreeMap<String, StateName> {
    let jids = jids.map(|jid| Jid::new(jid).unwrap()).collect();
    match execute(backend, vec![GetMany { jids }.into()]).remove(0) {
        Ok(Reply::GetMany(jobs)) => {
            let looked_at = |job: Job| {
                let jid = job.jid.to_string();
                assert_eq!(job.payload.text(), Some(payload(&jid).as_str()), "{jid} has another payload");
                (jid, job.state.name())
            };
            jobs.into_iter().map(looked_at).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        Scratch(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kill-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
