//! Damaged data directories: one bit flipped, one file cut short, or one file removed. Each opens with
//! everything that was acknowledged as synced, or refuses and names file and offset, or salvage saves what
//! can be read and names the rest. None loses anything silently.
//!
//! `GEARTRAIN_SEED=7041` replays one directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use geartrain_core::*;
use geartrain_store::wal::{Disk, WalOptions};
use geartrain_store::{OpenError, Salvaged, StoreBackend, StoreOptions, check, salvage};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use geartrain_testkit::scaled;
use pollster::block_on;

use crate::scratch::Scratch;

/// Damaged copies of each directory.
const DAMAGES: u64 = 10;

type Files = BTreeMap<String, Vec<u8>>;
/// What a client knows of its jobs: whether they exist, their state and their payload.
type Jobs = BTreeMap<Jid, (&'static str, Payload)>;

#[test]
fn no_damaged_directory_loses_acknowledged_jobs_silently() {
    let seed = std::env::var("GEARTRAIN_SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds: Vec<u64> = seed.map_or_else(|| (0..scaled(40, 300)).collect(), |seed| vec![seed]);
    let directories = Directories::new();
    let mut outcomes = Outcomes::default();
    let mut original: Option<(u64, Original)> = None;
    for seed in seeds {
        let number = seed / DAMAGES;
        let built = match original.take() {
            Some((of, built)) if of == number => built,
            _ => Original::build(number),
        };
        let mut rng = Rng::with_seed(seed);
        let (files, what) = damage(&built.files, &mut rng);
        let damage_text =
            format!("GEARTRAIN_SEED={seed}: {what}, {}", if built.is_closed { "closed" } else { "killed" });
        check_outcome(&directories, &built, &files, &damage_text, &mut outcomes);
        original = Some((number, built));
    }
    println!("{outcomes:?}");
    if seed.is_none() {
        assert!(outcomes.whole > 10 && outcomes.refused > 5 && outcomes.saved_whole > 1, "{outcomes:?}");
        let kinds = ["checkpoint", "log", "payloads", "manifest"];
        assert!(kinds.iter().all(|kind| outcomes.kinds.contains(*kind)), "{outcomes:?}");
    }
}

/// Counts of the outcomes.
#[derive(Debug, Default)]
struct Outcomes {
    /// Opened with everything.
    whole: u64,
    /// Opened without the last batch, which was reported as a torn tail.
    cut: u64,
    /// Refused, with file and offset.
    refused: u64,
    /// Refused, and salvage saved all of it; or a part, and named the rest; or nothing.
    saved_whole: u64,
    saved_part: u64,
    saved_nothing: u64,
    /// Kinds of files that were damaged.
    kinds: BTreeSet<String>,
}

/// Checks the outcome for one damaged directory.
fn check_outcome(
    directories: &Directories,
    original: &Original,
    files: &Files,
    damage_text: &str,
    outcomes: &mut Outcomes,
) {
    outcomes.kinds.insert(damage_text.split(": ").nth(1).unwrap().split(['-', ' ']).next().unwrap().into());
    let data = directories.fill(files);
    let checked = check(&data);
    let is_refused = match &checked {
        Ok(_) => false,
        Err(error) => {
            assert!(error.is_damage(), "{damage_text}: {error}");
            names_file_and_offset(damage_text, &error.to_string());
            true
        }
    };
    // Salvage first: opening may change the directory.
    let out = directories.fresh();
    let salvaged = salvage(&data, &out);
    match &salvaged {
        Ok(salvaged) => {
            let found = read_all(&open(&out), &original.jids);
            let is_all =
                found.iter().all(|job| job.is_some()) && jobs_of(&found, &original.jids) == original.jobs;
            if salvaged.is_whole() && !is_all {
                assert!(
                    salvaged.torn_tail.is_some() && !original.is_closed,
                    "{damage_text}: salvage lost something silently"
                );
            }
            for (jid, job) in original.jids.iter().zip(&found) {
                let job = job
                    .as_ref()
                    .unwrap_or_else(|| panic!("{damage_text}: {jid} cannot be read in a salvaged copy"));
                // A job that depended on a lost one no longer does.
                let waited = job.clone().map(|(state, payload)| match state {
                    "waiting" => ("depends", payload),
                    _ => (state, payload),
                });
                let known = &original.versions[jid];
                assert!(
                    known.contains(job) || known.contains(&waited),
                    "{damage_text}: {jid} was never {job:?}"
                );
            }
            if is_refused {
                outcomes.saved_whole += u64::from(is_all);
                outcomes.saved_part += u64::from(!is_all);
                assert!(is_all || names_what_is_lost(salvaged), "{damage_text}: {salvaged:?}");
            }
        }
        Err(error) => {
            assert!(is_refused && matches!(error, OpenError::NothingKept { .. }), "{damage_text}: {error}");
            outcomes.saved_nothing += 1;
        }
    }
    match try_open(&data) {
        Err(error) => {
            assert!(is_refused, "{damage_text}: check found nothing, and yet {error}");
            names_file_and_offset(damage_text, &error.to_string());
            outcomes.refused += 1;
        }
        Ok(backend) => {
            let found = read_all(&backend, &original.jids);
            // A payload is read when a reply needs it, so that is when its damage is noticed. The check
            // noticed it as well.
            assert!(
                is_refused || found.iter().all(Option::is_some),
                "{damage_text}: check missed a damaged payload"
            );
            let found = jobs_of(&found, &original.jids);
            let expected =
                |jobs: &Jobs| found.iter().all(|(jid, job)| jobs.get(jid).unwrap_or(&missing_job()) == job);
            if expected(&original.jobs) {
                outcomes.whole += 1;
            } else {
                assert!(!original.is_closed && is_torn(&checked), "{damage_text}: lost something silently");
                assert!(
                    original.jobs_before.iter().any(expected),
                    "{damage_text}: more than a torn tail is gone"
                );
                outcomes.cut += 1;
            }
        }
    }
}

fn is_torn(checked: &Result<geartrain_store::Report, OpenError>) -> bool {
    checked.as_ref().is_ok_and(|report| report.torn_tail.is_some())
}

fn names_file_and_offset(damage_text: &str, error: &str) {
    assert!(error.contains("file ") && error.contains(" byte "), "{damage_text}: {error}");
}

fn names_what_is_lost(salvaged: &Salvaged) -> bool {
    let damage = salvaged.damage.as_ref().map(ToString::to_string);
    let texts = salvaged.checkpoints.iter().chain(&salvaged.jobs).chain(&damage);
    texts.clone().count() > 0 && texts.into_iter().all(|text| text.contains("file "))
}

/// A directory as a store left it, and the replies its clients got.
struct Original {
    files: Files,
    is_closed: bool,
    jids: Vec<Jid>,
    /// What was acknowledged.
    jobs: Jobs,
    /// The jobs before the last batch, and before pops just before that: a pop is acknowledged before it is
    /// synced, so no later batch says that it is durable.
    jobs_before: Vec<Jobs>,
    /// Every version of each job that ever existed, or was sent.
    versions: BTreeMap<Jid, Vec<Option<(&'static str, Payload)>>>,
}

impl Original {
    fn build(number: u64) -> Original {
        let mut rng = Rng::with_seed(number ^ 0xda3a6e);
        let disk = SimDisk::new(number);
        let is_closed = number.is_multiple_of(2);
        let backend = StoreBackend::open_on(Arc::new(disk.clone()), options(), ManualClock::new()).unwrap();
        let mut world = Client { backend, rng: rng.fork(), jobs: Jobs::new(), running: Vec::new(), next: 0 };
        let (mut jobs_before, mut versions) = (Vec::new(), BTreeMap::<Jid, Vec<_>>::new());
        let mut was_pop = false;
        let has_enough = |disk: &SimDisk| {
            let count = |kind: &str| disk.names().iter().filter(|name| name.starts_with(kind)).count();
            count("checkpoint-") >= 2 && count("payloads-") >= 2 && count("log-") >= 2
        };
        let steps = rng.usize(150..250);
        for step in 0.. {
            if step >= steps && has_enough(&disk) {
                break;
            }
            assert!(step < 5_000, "there never are two checkpoints: {:?}", disk.names());
            if !was_pop {
                jobs_before.clear();
            }
            jobs_before.push(world.jobs.clone());
            was_pop = world.step();
            for (jid, job) in &world.jobs {
                let known = versions.entry(jid.clone()).or_insert_with(|| vec![None]);
                if !known.contains(&Some(job.clone())) {
                    known.push(Some(job.clone()));
                }
            }
        }
        let jobs = world.jobs.clone();
        let disk = if is_closed {
            drop(world);
            disk
        } else {
            let disk = disk.kill();
            drop(world);
            disk
        };
        let files = files_of(&disk);
        let jids = versions.keys().cloned().collect();
        Original { files, is_closed, jids, jobs, jobs_before, versions }
    }
}

fn files_of(disk: &SimDisk) -> Files {
    let read = |(name, bytes): (String, u64)| {
        let mut contents = vec![0; bytes as usize];
        disk.open(&name).unwrap().read_at(&mut contents, 0).unwrap();
        (name, contents)
    };
    disk.list().unwrap().into_iter().map(read).collect()
}

/// A store, and what its client knows.
struct Client {
    backend: StoreBackend,
    rng: Rng,
    jobs: Jobs,
    running: Vec<(Jid, Token)>,
    next: u64,
}

impl Client {
    /// One batch, whose acknowledgement changes what the client knows. Returns whether it is a pop.
    fn step(&mut self) -> bool {
        let step = self.rng.u8(..10);
        match step {
            0..5 => self.put(),
            5..7 => self.pop(),
            7 => self.end(),
            8 => self.cancel(),
            _ => self.put_again(),
        }
        (5..7).contains(&step)
    }

    fn payload(&mut self) -> Payload {
        let bytes = if self.rng.bool() { self.rng.usize(..50) } else { self.rng.usize(100..3_000) };
        let filler: String = std::iter::repeat_with(|| self.rng.alphanumeric()).take(bytes).collect();
        filler.into()
    }

    fn put(&mut self) {
        self.next += 1;
        let (jid, payload) = (Jid::new(format!("job-{}", self.next)).unwrap(), self.payload());
        let mut put = Put::new(mail(), jid.clone(), Klass::new("welcome").unwrap(), payload.clone());
        let mut state = "waiting";
        match self.rng.u8(..4) {
            0 => {
                put.delay = Seconds::new(1_000.0).unwrap();
                state = "scheduled";
            }
            1 => {
                let others = self.jobs.iter().filter(|(_, (state, _))| *state == "waiting");
                if let Some((other, _)) = others.last() {
                    put.depends = vec![other.clone()];
                    state = "depends";
                }
            }
            _ => {}
        }
        run(&self.backend, put).unwrap();
        self.jobs.insert(jid, (state, payload));
        self.settle_dependents();
    }

    fn put_again(&mut self) {
        let mut waiting: Vec<Jid> = self.in_state("waiting");
        if waiting.is_empty() {
            return self.put();
        }
        let jid = waiting.swap_remove(self.rng.usize(..waiting.len()));
        let payload = self.payload();
        let put = Put::new(mail(), jid.clone(), Klass::new("welcome").unwrap(), payload.clone());
        run(&self.backend, Put { existing: Existing::Replace, ..put }).unwrap();
        self.jobs.insert(jid, ("waiting", payload));
    }

    fn pop(&mut self) {
        let pop = Pop::new(mail(), WorkerName::new("w1").unwrap());
        let Reply::Pop(popped) = run(&self.backend, pop).unwrap() else { panic!("a pop is answered as one") };
        for job in popped.jobs {
            self.jobs.get_mut(&job.jid).unwrap().0 = "running";
            self.running.push((job.jid, job.lock.token));
        }
    }

    fn end(&mut self) {
        if self.running.is_empty() {
            return self.put();
        }
        let (jid, token) = self.running.swap_remove(self.rng.usize(..self.running.len()));
        let state = if self.rng.bool() {
            run(&self.backend, Complete::new(jid.clone(), Holder::Token(token))).unwrap();
            "complete"
        } else {
            let group = Group::new("smtp").unwrap();
            run(&self.backend, Fail::new(jid.clone(), Holder::Token(token), group, "it said 451")).unwrap();
            "failed"
        };
        self.jobs.get_mut(&jid).unwrap().0 = state;
        self.settle_dependents();
    }

    fn cancel(&mut self) {
        let mut scheduled = self.in_state("scheduled");
        if scheduled.is_empty() {
            return self.put();
        }
        let jid = scheduled.swap_remove(self.rng.usize(..scheduled.len()));
        run(&self.backend, Cancel::new(vec![jid.clone()])).unwrap();
        self.jobs.insert(jid, missing_job());
    }

    fn in_state(&self, state: &str) -> Vec<Jid> {
        self.jobs.iter().filter(|(_, (other, _))| *other == state).map(|(jid, _)| jid.clone()).collect()
    }

    /// Jobs that depended on others may be ready now: the store knows.
    fn settle_dependents(&mut self) {
        for jid in self.in_state("depends") {
            let job = get(&self.backend, &jid).expect("nothing is damaged yet");
            self.jobs.insert(jid, job.expect("it was not cancelled"));
        }
    }
}

/// Damages one file in one way, and describes it.
fn damage(files: &Files, rng: &mut Rng) -> (Files, String) {
    let mut files = files.clone();
    // Each kind of file equally often.
    let kind = ["checkpoint-", "log-", "payloads-", "manifest"][rng.usize(..4)];
    let names: Vec<&String> = files.keys().filter(|name| name.starts_with(kind)).collect();
    // The newest ones more often: they have the most to lose.
    let name = names[names.len() - 1 - rng.usize(..names.len()).min(rng.usize(..names.len()))].clone();
    let contents = files.get_mut(&name).unwrap();
    let used = contents.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
    let what = match rng.u8(..4) {
        0 | 1 => {
            // The last batch more often: no later one says that it was there.
            let byte = match last_batch(&name, contents) {
                Some(batch) if rng.bool() => batch + rng.usize(..200),
                _ => rng.usize(..used),
            };
            let bit = byte * 8 + rng.usize(..8);
            contents[bit / 8] ^= 1 << (bit % 8);
            format!("{name} has bit {} of byte {} flipped", bit % 8, bit / 8)
        }
        2 => {
            let bytes = if rng.bool() { rng.usize(..used) } else { rng.usize(..contents.len()) };
            contents.truncate(bytes);
            format!("{name} is cut to {bytes} bytes")
        }
        _ => {
            files.remove(&name);
            format!("{name} is removed")
        }
    };
    (files, what)
}

/// Where the last batch of a segment begins.
fn last_batch(name: &str, contents: &[u8]) -> Option<usize> {
    let number: u64 = name.strip_prefix("log-")?.parse().ok()?;
    let is_batch = |offset: &usize| {
        let header = &contents[*offset..];
        header[4..8] == *b"GTb1" && header[16..24] == number.to_le_bytes()
    };
    (4096..contents.len()).step_by(4096).rfind(is_batch)
}

/// Without the previous checkpoint and the log before the newest, as in a directory that an earlier version
/// wrote.
fn without_fallback(files: &Files) -> (Files, String) {
    let mut files = files.clone();
    let newest = files.keys().rfind(|name| name.starts_with("checkpoint-")).unwrap().clone();
    let segment = u64::from_str_radix(&newest["checkpoint-".len()..][..16], 16).unwrap();
    files.retain(|name, _| !name.starts_with("checkpoint-") || *name == newest);
    files.retain(|name, _| {
        !name.starts_with("log-") || name["log-".len()..].parse::<u64>().unwrap() >= segment
    });
    (files, newest)
}

#[test]
fn recovery_falls_back_from_a_damaged_checkpoint() {
    let directories = Directories::new();
    let original = Original::build(1);
    let newest = original.files.keys().rfind(|name| name.starts_with("checkpoint-")).unwrap().clone();
    let mut files = original.files.clone();
    files.get_mut(&newest).unwrap()[200] ^= 4;
    let data = directories.fill(&files);
    let report = check(&data).unwrap();
    let damage = &report.damaged_checkpoints;
    assert!(damage.len() == 1 && damage[0].contains(&newest) && damage[0].contains(" byte "), "{damage:?}");
    let backend = open(&data);
    assert_eq!(jobs_of(&read_all(&backend, &original.jids), &original.jids), original.jobs);
    assert!(!data.join(&newest).exists(), "what it needs may go from now on, so it must not be read again");
    // The store goes on from there, and has two checkpoints again later.
    let mut more = 0;
    while names(&data).iter().filter(|name| name.starts_with("checkpoint-")).count() < 2 {
        more += 1;
        let jid = Jid::new(format!("more-{more}")).unwrap();
        run(&backend, Put::new(mail(), jid, Klass::new("welcome").unwrap(), "x".repeat(500))).unwrap();
        assert!(more < 1_000, "there never are two checkpoints");
    }
    drop(backend);
    assert_eq!(check(&data).unwrap().damaged_checkpoints, [""; 0]);
    let found = read_all(&open(&data), &original.jids);
    assert_eq!(jobs_of(&found, &original.jids), original.jobs);
}

#[test]
fn a_damaged_payload_is_taken_from_the_log_if_it_is_there() {
    let disk = SimDisk::new(3);
    let options = StoreOptions { payload_memory: 0, ..options() };
    let backend = StoreBackend::open_on(Arc::new(disk.clone()), options, ManualClock::new()).unwrap();
    // Until the first checkpoint, which refers to payload files. The log is there from its beginning.
    let mut jobs = Jobs::new();
    while !disk.names().iter().any(|name| name.starts_with("checkpoint-")) {
        let (jid, payload) =
            (Jid::new(format!("job-{}", jobs.len())).unwrap(), Payload::from("x".repeat(900)));
        run(&backend, Put::new(mail(), jid.clone(), Klass::new("welcome").unwrap(), payload.clone()))
            .unwrap();
        jobs.insert(jid, ("waiting", payload));
        assert!(jobs.len() < 1_000, "there never is a checkpoint");
    }
    drop(backend);
    let mut files = files_of(&disk);
    for (_, contents) in files.iter_mut().filter(|(name, _)| name.starts_with("payloads-")) {
        contents[30] ^= 1;
    }
    let directories = Directories::new();
    let data = directories.fill(&files);
    names_file_and_offset("check", &check(&data).unwrap_err().to_string());
    let out = directories.fresh();
    let salvaged = salvage(&data, &out).unwrap();
    assert!(salvaged.is_whole(), "{salvaged:?}");
    let jids: Vec<Jid> = jobs.keys().cloned().collect();
    assert_eq!(jobs_of(&read_all(&open(&out), &jids), &jids), jobs);
}

#[test]
fn the_good_parts_of_a_checkpoint_are_restored_as_a_last_resort() {
    const JOBS: u64 = 4_000;
    let disk = SimDisk::new(5);
    // Payloads in memory, so that the checkpoint has them.
    let options = StoreOptions { payload_memory: u64::MAX, ..options() };
    let backend = StoreBackend::open_on(Arc::new(disk.clone()), options, ManualClock::new()).unwrap();
    let jid = |number: u64| Jid::new(format!("job-{number}")).unwrap();
    let payload = |number: u64| Payload::from(format!("{number} {}", "x".repeat(100)));
    for batch in 0..JOBS / 100 {
        let put = |number| Put::new(mail(), jid(number), Klass::new("welcome").unwrap(), payload(number));
        let puts = (batch * 100..(batch + 1) * 100).map(|number| put(number).into()).collect();
        block_on(backend.execute(puts)).unwrap();
    }
    // Not only puts behind the checkpoint: some of the jobs in it are cancelled, and some are popped.
    for number in 0..20 {
        run(&backend, Cancel::new(vec![jid(number * 150 + 7)])).unwrap();
        run(&backend, Pop::new(mail(), WorkerName::new("w1").unwrap())).unwrap();
    }
    drop(backend);
    let directories = Directories::new();
    let (files, newest) = without_fallback(&files_of(&disk));
    let whole = files[&newest].clone();
    // The length of the first part with jobs, from the head's.
    let at = |offset: usize| u64::from_le_bytes(whole[offset..offset + 8].try_into().unwrap()) as usize;
    let first = 24 + 12 + at(24);
    let second = first + 12 + at(first);
    assert!(second < whole.len() - 1_000, "a checkpoint of one part covers nothing");
    let expected = check(&directories.fill(&files)).unwrap().memory.jobs();
    // (byte, whether anything is lost): header, head, a part, its length, its checksum, the last byte of
    // jobs, the copy of the head.
    for (byte, is_lossy) in [
        (3, false),
        (30, false),
        (24, false),
        (first + 1_000, true),
        (first, true),
        (first + 4, true),
        (first + 9, true),
        (second + 5_000, true),
        (whole.len() - 30, false),
    ] {
        let mut files = files.clone();
        files.get_mut(&newest).unwrap()[byte] ^= 0x20;
        let data = directories.fill(&files);
        let in_copy_of_head = byte == whole.len() - 30;
        if !in_copy_of_head {
            let error = check(&data).unwrap_err().to_string();
            assert!(error.contains(&newest) && error.contains(" byte "), "byte {byte}: {error}");
            names_file_and_offset("open", &try_open(&data).unwrap_err().to_string());
        }
        let out = directories.fresh();
        let salvaged = salvage(&data, &out).unwrap_or_else(|error| panic!("byte {byte}: {error}"));
        assert_eq!(salvaged.is_whole(), !is_lossy, "byte {byte}: {salvaged:?}");
        let (saved, lost) = (salvaged.saved.memory.jobs(), salvaged.nameless_jobs);
        assert_eq!(saved + lost, expected, "byte {byte}: {salvaged:?}");
        assert_eq!(lost > 0, is_lossy, "byte {byte}: {salvaged:?}");
        assert!(lost < expected / 2, "byte {byte}: {lost} of {expected} are lost");
        assert!(in_copy_of_head || salvaged.checkpoints.iter().all(|text| text.contains(&newest)));
        // The copy works like any other queue, and has the jobs that were put.
        let backend = open(&out);
        let jids: Vec<Jid> = (0..JOBS).map(jid).collect();
        let found = read_all(&backend, &jids);
        let there = found.iter().enumerate().filter_map(|(number, job)| {
            let (_, found) = job.as_ref().unwrap().as_ref()?;
            assert_eq!(*found, payload(number as u64), "byte {byte}");
            Some(())
        });
        assert_eq!(there.count() as u64, saved, "byte {byte}");
        run(&backend, Put::new(mail(), jid(JOBS), Klass::new("welcome").unwrap(), "new")).unwrap();
        drop(backend);
        check(&out).unwrap();
    }
}

fn options() -> StoreOptions {
    StoreOptions {
        wal: WalOptions { segment_bytes: 64 << 10, spare_segments: 1 },
        checkpoint_bytes_min: 40_000,
        payload_memory: 4_000,
        spill_bytes_min: 64,
        payload_file_bytes: 8 << 10,
        ..StoreOptions::default()
    }
}

fn try_open(directory: &Path) -> Result<StoreBackend, OpenError> {
    StoreBackend::open(directory, options(), ManualClock::new())
}

fn open(directory: &Path) -> StoreBackend {
    try_open(directory).unwrap()
}

fn run(backend: &StoreBackend, command: impl Into<Command>) -> Answer {
    let call = Call::from(command);
    block_on(backend.execute(vec![call])).unwrap().remove(0)
}

/// A job's current state; `None` if its payload cannot be read.
fn get(backend: &StoreBackend, jid: &Jid) -> Option<Option<(&'static str, Payload)>> {
    let job = match run(backend, Get { jid: jid.clone() }) {
        Ok(Reply::Get(job)) => job,
        Ok(other) => panic!("a get is answered as one, not by {other:?}"),
        Err(refusal) => {
            names_file_and_offset("get", &refusal.to_string());
            return None;
        }
    };
    Some(job.map(|job| {
        let state = match job.state {
            JobState::Scheduled { .. } => "scheduled",
            JobState::Depends { .. } => "depends",
            JobState::Waiting => "waiting",
            JobState::Running { .. } => "running",
            JobState::Complete { .. } => "complete",
            JobState::Failed { .. } => "failed",
        };
        (state, job.payload)
    }))
}

fn read_all(backend: &StoreBackend, jids: &[Jid]) -> Vec<Option<Option<(&'static str, Payload)>>> {
    jids.iter().map(|jid| get(backend, jid)).collect()
}

/// The readable jobs; missing ones count as cancelled.
fn jobs_of(found: &[Option<Option<(&'static str, Payload)>>], jids: &[Jid]) -> Jobs {
    let readable = jids.iter().zip(found).filter_map(|(jid, job)| Some((jid.clone(), job.clone()?)));
    readable.map(|(jid, job)| (jid, job.unwrap_or_else(missing_job))).collect()
}

/// A job that was cancelled, or never put.
fn missing_job() -> (&'static str, Payload) {
    ("gone", Payload::from(""))
}

fn mail() -> QueueName {
    QueueName::new("mail").unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Directories of a test, of which only the newest are kept.
struct Directories {
    scratch: Scratch,
    filled: AtomicU64,
}

impl Directories {
    fn new() -> Directories {
        Directories { scratch: Scratch::new("damage"), filled: AtomicU64::new(0) }
    }

    /// A directory that does not exist. The previous one is removed.
    fn fresh(&self) -> PathBuf {
        let out = self.scratch.join("out");
        let _ = std::fs::remove_dir_all(&out);
        out
    }

    /// A directory with these files. The previous one is removed.
    fn fill(&self, files: &Files) -> PathBuf {
        let number = self.filled.fetch_add(1, Ordering::Relaxed);
        let data = self.scratch.join(&format!("data-{number}"));
        if let Some(previous) = number.checked_sub(1) {
            let _ = std::fs::remove_dir_all(self.scratch.join(&format!("data-{previous}")));
        }
        std::fs::create_dir(&data).unwrap();
        files.iter().for_each(|(name, bytes)| std::fs::write(data.join(name), bytes).unwrap());
        data
    }
}
