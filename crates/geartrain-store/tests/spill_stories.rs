//! Whatever the disk does while payloads go out of memory and from file to file, a job that was acknowledged has the payload that it was given.
//!
//! A story has several lives on one disk. In each, jobs are put, replaced and cancelled, one at a time; then the power goes, the process dies, or a
//! write or a sync fails, at any operation. What is there afterwards must be what was acknowledged, byte for byte; the last command, which was not, may have been
//! done or not. Files are so short that all of this goes on all the time: moving, copying forward, checkpoints, and removing files. When the engine works and when something is written is drawn
//! too, so a seed always tells the same story. `GEARTRAIN_SEED=n` tells one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fastrand::Rng;
use geartrain_core::*;
use geartrain_store::log::{Disk, LogOptions};
use geartrain_store::{Lockstep, StoreOptions};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;

const STORIES: u64 = 150;
const LIVES: usize = 6;
const COMMANDS: usize = 80;
const JOBS: u8 = 30;

type Jobs = BTreeMap<String, Vec<u8>>;

#[test]
fn no_payload_is_lost_or_mixed_up_whatever_the_disk_does() {
    let seed = std::env::var("GEARTRAIN_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut seen = Seen::default();
    for seed in seed.map_or(0..STORIES, |seed: u64| seed..seed + 1) {
        tell(seed, &mut seen).unwrap_or_else(|why| panic!("GEARTRAIN_SEED={seed}: {why}"));
    }
    if seed.is_none() {
        // Otherwise the stories would no longer show anything.
        assert!(seen.files_left > 500 && seen.files_gone > 500 && seen.own_files_left > 500, "{seen:?}");
        assert!(seen.checkpoints_with_files > 250 && seen.unacknowledged > 100, "{seen:?}");
        assert!(seen.damaged_checkpoints > 50, "{seen:?}");
    }
}

/// Jobs are put whose payloads go to files at once, and the power goes at each operation in turn around the first checkpoint that speaks of them: at the very
/// moment, too, when it has its name and nobody else has made sure that the files have theirs.
#[test]
fn a_checkpoint_does_not_count_before_the_files_that_it_speaks_of() {
    for (seed, after) in (0..12).flat_map(|seed| (45..90).map(move |after| (seed, after))) {
        let (disk, mut rng) = (SimDisk::new(seed), Rng::with_seed(seed));
        let options = StoreOptions {
            // So long that nothing else makes names durable.
            log: LogOptions { segment_bytes: 64 << 10, spare_segments: 0 },
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
            if ask(&mut store, put.into(), &mut rng).is_err() {
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

/// How much of what the stories are about has happened.
#[derive(Debug, Default)]
struct Seen {
    /// Payload files that a life left to the next, and such as were gone by the end of a life.
    files_left: u64,
    files_gone: u64,
    /// Of those that were left, the ones that hold one payload.
    own_files_left: u64,
    checkpoints_with_files: u64,
    damaged_checkpoints: u64,
    /// Lives that ended with a command that was not acknowledged.
    unacknowledged: u64,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mishap {
    PowerCut,
    OneFailure,
    Killed,
}

fn tell(seed: u64, seen: &mut Seen) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let mut disk = SimDisk::new(seed);
    let mut acknowledged = Jobs::new();
    // What was tried last and not acknowledged.
    let mut tried = None;
    // The life after which the newest checkpoint is damaged. The previous one needs payload files that this
    // one may not.
    let damaged_life = rng.usize(..LIVES);
    for life in 0..LIVES {
        let mishap = [Mishap::PowerCut, Mishap::OneFailure, Mishap::Killed][rng.usize(..3)];
        let about = |why: String| format!("life {life}, {mishap:?}: {why}");
        let mut store = open(&disk, &mut rng).map_err(about)?;
        settle(&mut store, &mut acknowledged, tried.take()).map_err(about)?;
        let before = payload_files(&disk);
        match mishap {
            Mishap::PowerCut => disk.cut_power_after(rng.u64(..400)),
            Mishap::OneFailure => disk.fail_after(rng.u64(..400)),
            Mishap::Killed => {}
        }
        for _ in 0..rng.usize(1..COMMANDS) {
            let mut after = acknowledged.clone();
            let command = change(&mut after, &mut rng);
            match ask(&mut store, command, &mut rng) {
                Ok(Ok(_)) => acknowledged = after,
                Ok(Err(refusal)) => return Err(about(refusal.to_string())),
                Err(_) => {
                    seen.unacknowledged += 1;
                    tried = Some(after);
                    break;
                }
            }
            // With nothing to do it goes on by itself for a while.
            for _ in 0..rng.usize(..6) {
                step(&mut store, &mut rng);
            }
        }
        disk.heal();
        if mishap == Mishap::OneFailure {
            // The store goes on by itself, with what it had kept.
            settle(&mut store, &mut acknowledged, tried.take()).map_err(about)?;
        }
        let left = payload_files(&disk);
        seen.files_left += left.len() as u64;
        seen.own_files_left += left.iter().filter(|name| is_own_file(name)).count() as u64;
        seen.files_gone += before.iter().filter(|name| !left.contains(name)).count() as u64;
        let has_checkpoint = disk.names().iter().any(|name| name.starts_with("checkpoint-"));
        seen.checkpoints_with_files += u64::from(has_checkpoint && !left.is_empty());
        disk = if mishap == Mishap::Killed { disk.kill() } else { disk.crash() };
        disk.heal();
        // Once in a story, because falling back leaves nothing to fall back to until the next checkpoint.
        if life == damaged_life {
            let newest = disk.list().unwrap().into_iter().rfind(|(name, _)| name.starts_with("checkpoint-"));
            if let Some((newest, bytes)) = newest {
                disk.flip(&newest, rng.u64(..bytes));
                seen.damaged_checkpoints += 1;
            }
        }
    }
    let mut store = open(&disk, &mut rng)?;
    settle(&mut store, &mut acknowledged, tried)
}

/// Whether what is there is what was acknowledged, or else what was tried and not acknowledged. From then on that is what counts.
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

/// Some change to some job.
fn change(jobs: &mut Jobs, rng: &mut Rng) -> Command {
    let name = rng.u8(..JOBS).to_string();
    let jid = Jid::new(&name).unwrap();
    if rng.u8(..4) == 0 {
        jobs.remove(&name);
        return Cancel { jids: vec![jid] }.into();
    }
    let bytes = rng.usize(..800);
    let payload: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(bytes).collect();
    jobs.insert(name, payload.clone());
    let put = Put::new(QueueName::new("q").unwrap(), jid, Klass::new("k").unwrap(), payload);
    Put { existing: Existing::Replace, ..put }.into()
}

fn compare(store: &mut Lockstep, expected: &Jobs) -> Result<(), String> {
    let jids: Vec<Jid> = (0..JOBS).map(|n| Jid::new(n.to_string()).unwrap()).collect();
    // Whoever asks first after a failure may be told of it.
    let mut ask = || ask(store, GetMany { jids: jids.clone() }.into(), &mut Rng::with_seed(0));
    let jobs = match ask().or_else(|_| ask())? {
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

/// Sends a command, and has the store do something until there is an answer.
fn ask(store: &mut Lockstep, command: Command, rng: &mut Rng) -> Result<Answer, String> {
    let sent = store.send(vec![Call { now: Some(Timestamp::ZERO), command }]);
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
        log: LogOptions { segment_bytes: 16 << 10, spare_segments: 1 },
        checkpoint_bytes_min: rng.u64(1 << 10..16 << 10),
        payload_memory: if rng.bool() { 0 } else { rng.u64(..6_000) },
        spill_bytes_min: rng.u32(..200),
        payload_file_bytes: rng.u64(100..4_000),
        // In two of three lives the longer payloads get files of their own.
        own_file_bytes_min: [usize::MAX, 600, 300][rng.usize(..3)],
        ..StoreOptions::default()
    };
    Lockstep::open_on(Arc::new(disk.clone()), options, ManualClock::new())
        .map_err(|error| format!("{error:?}"))
}
