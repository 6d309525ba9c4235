//! Simulation of spilling on a failing disk: an acknowledged job has the payload it was given.
//!
//! A history has several runs on one disk. In each, jobs are put, replaced and cancelled, one at a time; then
//! the power goes, the process dies, or a write or a sync fails, at any operation. The state afterwards must
//! be the acknowledged one, byte for byte; the last command, which was not acknowledged, may have been
//! executed or not. Files are so short that spilling, copying forward, checkpoints and removal of files
//! happen all the time. When the engine and the committer run is drawn too, so a seed always gives the same
//! history. `GEARTRAIN_SEED=n` runs one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fastrand::Rng;
use geartrain_core::*;
use geartrain_store::wal::{Disk, WalOptions};
use geartrain_store::{Lockstep, StoreOptions};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;

const HISTORIES: u64 = 150;
const RUNS: usize = 6;
const COMMANDS: usize = 80;
const JOBS: u8 = 30;

type Jobs = BTreeMap<String, Vec<u8>>;

#[test]
fn no_fault_loses_or_mixes_up_payloads() {
    let seeds = geartrain_testkit::seeds(HISTORIES);
    let mut counts = Counts::default();
    for seed in seeds.clone() {
        run_history(seed, &mut counts).unwrap_or_else(|why| panic!("GEARTRAIN_SEED={seed}: {why}"));
    }
    if seeds == (0..HISTORIES) {
        // Otherwise the histories would cover nothing.
        assert!(
            counts.files_left > 500 && counts.files_gone > 500 && counts.own_files_left > 500,
            "{counts:?}"
        );
        assert!(counts.checkpoints_with_files > 250 && counts.unacknowledged > 100, "{counts:?}");
        assert!(counts.damaged_checkpoints > 50, "{counts:?}");
    }
}

/// Jobs are put whose payloads are spilled at once, with a power cut at each operation in turn around the
/// first checkpoint that refers to them: also at the moment when the checkpoint has its name and nothing else
/// has made the names of the spill files durable.
#[test]
fn a_checkpoint_is_not_installed_before_its_spill_files_are_durable() {
    for (seed, after) in (0..12).flat_map(|seed| (45..90).map(move |after| (seed, after))) {
        let (disk, mut rng) = (SimDisk::new(seed), Rng::with_seed(seed));
        let options = StoreOptions {
            // So long that nothing else makes names durable.
            wal: WalOptions { segment_bytes: 64 << 10, spare_segments: 0 },
            checkpoint_bytes_min: 2 << 10,
            payload_memory: 0,
            payload_file_bytes: 500,
            ..StoreOptions::default()
        };
        let open =
            |disk: &SimDisk| Lockstep::open_on(Arc::new(disk.clone()), options.clone(), ManualClock::new());
        let mut store = open(&disk).unwrap();
        let (mut acknowledged, mut tried) = (Jobs::new(), None);
        disk.cut_power_after(after);
        for number in 0..12 {
            let payload = vec![number; 300];
            let put = Put::new(
                QueueName::new("q").unwrap(),
                Jid::new(number.to_string()).unwrap(),
                Klass::new("k").unwrap(),
                payload.clone(),
            );
            let mut jobs = acknowledged.clone();
            jobs.insert(number.to_string(), payload);
            if execute(&mut store, put.into(), &mut rng).is_err() {
                tried = Some(jobs);
                break;
            }
            acknowledged = jobs;
        }
        let disk = disk.crash();
        disk.heal();
        let mut store = open(&disk).unwrap_or_else(|error| panic!("seed {seed} after {after}: {error:?}"));
        settle(&mut store, &mut acknowledged, tried)
            .unwrap_or_else(|why| panic!("seed {seed} after {after}: {why}"));
    }
}

/// Counts, to check that the histories cover everything.
#[derive(Debug, Default)]
struct Counts {
    /// Payload files that one run left to the next, and files removed during a run.
    files_left: u64,
    files_gone: u64,
    /// Of those that were left, the ones that hold one payload.
    own_files_left: u64,
    checkpoints_with_files: u64,
    damaged_checkpoints: u64,
    /// Runs that ended with a command that was not acknowledged.
    unacknowledged: u64,
}

/// The fault.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    PowerCut,
    OneFailure,
    Killed,
}

fn run_history(seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let mut disk = SimDisk::new(seed);
    let mut acknowledged = Jobs::new();
    // The last command, which was not acknowledged.
    let mut tried = None;
    // The run after which the newest checkpoint is damaged. The previous one needs payload files that this
    // one may not.
    let damaged_run = rng.usize(..RUNS);
    for run_number in 0..RUNS {
        let fault = [Fault::PowerCut, Fault::OneFailure, Fault::Killed][rng.usize(..3)];
        let with_seed = |why: String| format!("run {run_number}, {fault:?}: {why}");
        let mut store = open(&disk, &mut rng).map_err(with_seed)?;
        settle(&mut store, &mut acknowledged, tried.take()).map_err(with_seed)?;
        let before = payload_files(&disk);
        match fault {
            Fault::PowerCut => disk.cut_power_after(rng.u64(..400)),
            Fault::OneFailure => disk.fail_after(rng.u64(..400)),
            Fault::Killed => {}
        }
        for _ in 0..rng.usize(1..COMMANDS) {
            let mut after = acknowledged.clone();
            let command = change(&mut after, &mut rng);
            match execute(&mut store, command, &mut rng) {
                Ok(Ok(_)) => acknowledged = after,
                Ok(Err(refusal)) => return Err(with_seed(refusal.to_string())),
                Err(_) => {
                    counts.unacknowledged += 1;
                    tried = Some(after);
                    break;
                }
            }
            // Without commands the store goes on by itself for a while.
            for _ in 0..rng.usize(..6) {
                step(&mut store, &mut rng);
            }
        }
        disk.heal();
        if fault == Fault::OneFailure {
            // The store recovers by itself from what is durable.
            settle(&mut store, &mut acknowledged, tried.take()).map_err(with_seed)?;
        }
        let left = payload_files(&disk);
        counts.files_left += left.len() as u64;
        counts.own_files_left += left.iter().filter(|name| is_own_file(name)).count() as u64;
        counts.files_gone += before.iter().filter(|name| !left.contains(name)).count() as u64;
        let has_checkpoint = disk.names().iter().any(|name| name.starts_with("checkpoint-"));
        counts.checkpoints_with_files += u64::from(has_checkpoint && !left.is_empty());
        disk = if fault == Fault::Killed { disk.kill() } else { disk.crash() };
        disk.heal();
        // Once per history, because after falling back there is no previous checkpoint until the next one.
        if run_number == damaged_run {
            let newest = disk.list().unwrap().into_iter().rfind(|(name, _)| name.starts_with("checkpoint-"));
            if let Some((newest, bytes)) = newest {
                disk.flip(&newest, rng.u64(..bytes));
                counts.damaged_checkpoints += 1;
            }
        }
    }
    let mut store = open(&disk, &mut rng)?;
    settle(&mut store, &mut acknowledged, tried)
}

/// Checks that the state is the acknowledged one, or else the one with the unacknowledged command, which then
/// counts as acknowledged.
fn settle(store: &mut Lockstep, acknowledged: &mut Jobs, tried: Option<Jobs>) -> Result<(), String> {
    let outcome = compare(store, acknowledged);
    match tried {
        Some(tried) if outcome.is_err() => {
            compare(store, &tried)?;
            *acknowledged = tried;
            Ok(())
        }
        _ => outcome,
    }
}

/// A random change of a random job.
fn change(jobs: &mut Jobs, rng: &mut Rng) -> Command {
    let name = rng.u8(..JOBS).to_string();
    let jid = Jid::new(&name).unwrap();
    if rng.u8(..4) == 0 {
        jobs.remove(&name);
        return Cancel::new(vec![jid]).into();
    }
    let bytes = rng.usize(..800);
    let payload: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(bytes).collect();
    jobs.insert(name, payload.clone());
    let put = Put::new(QueueName::new("q").unwrap(), jid, Klass::new("k").unwrap(), payload);
    Put { existing: Existing::Replace, ..put }.into()
}

fn compare(store: &mut Lockstep, expected: &Jobs) -> Result<(), String> {
    let jids: Vec<Jid> = (0..JOBS).map(|n| Jid::new(n.to_string()).unwrap()).collect();
    // The first command after a failure may get its error.
    let mut execute = || execute(store, GetMany { jids: jids.clone() }.into(), &mut Rng::with_seed(0));
    let jobs = match execute().or_else(|_| execute())? {
        Ok(Reply::GetMany(jobs)) => jobs,
        other => return Err(format!("{other:?}")),
    };
    let payload = |job: Job| (job.jid.to_string(), job.payload.bytes().to_vec());
    let found: Jobs = jobs.into_iter().map(payload).collect();
    if found == *expected {
        return Ok(());
    }
    let names: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    let differ: Vec<_> = names.into_iter().filter(|name| found.get(*name) != expected.get(*name)).collect();
    Err(format!("these are not as they should be: {differ:?}"))
}

/// Sends a command, and runs random steps until there is an answer.
fn execute(store: &mut Lockstep, command: Command, rng: &mut Rng) -> Result<Answer, String> {
    let sent = store.send(vec![Call::at(Timestamp::ZERO, command)]);
    for _ in 0..1_000 {
        step(store, rng);
        if let Some(answers) = sent.answers() {
            let mut answers = answers.map_err(|error| format!("{error:?}"))?;
            return answers.pop().ok_or("there is no answer in the batch".to_owned());
        }
    }
    Err("there is no answer".to_owned())
}

fn step(store: &mut Lockstep, rng: &mut Rng) {
    if rng.bool() {
        store.engine_step();
    } else {
        store.writer_step(rng.usize(1..4));
    }
}

fn is_own_file(name: &str) -> bool {
    let number = name.strip_prefix("payloads-").and_then(|number| u64::from_str_radix(number, 16).ok());
    number.is_some_and(SpillLocation::is_own_file)
}

fn payload_files(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.starts_with("payloads-")).collect()
}

fn open(disk: &SimDisk, rng: &mut Rng) -> Result<Lockstep, String> {
    let options = StoreOptions {
        wal: WalOptions { segment_bytes: 16 << 10, spare_segments: 1 },
        checkpoint_bytes_min: rng.u64(1 << 10..16 << 10),
        payload_memory: if rng.bool() { 0 } else { rng.u64(..6_000) },
        spill_bytes_min: rng.u32(..200),
        payload_file_bytes: rng.u64(100..4_000),
        // In two of three runs the longer payloads get files of their own.
        own_file_bytes_min: [usize::MAX, 600, 300][rng.usize(..3)],
        ..StoreOptions::default()
    };
    Lockstep::open_on(Arc::new(disk.clone()), options, ManualClock::new())
        .map_err(|error| format!("{error:?}"))
}
