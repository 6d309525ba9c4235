//! Operating on a data directory: check, backup while it is in use, and salvage when it is damaged.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use geartrain_core::SystemClock;
use geartrain_core::engine::MemoryReport;
use geartrain_core::*;
use geartrain_store::wal::{WalError, WalOptions};
use geartrain_store::{OpenError, Report, StoreBackend, StoreOptions, check, salvage};
use pollster::block_on;

use crate::scratch::Scratch;

const BLOCK: usize = 4096;
/// No checkpoint is ever due.
const NO_CHECKPOINT: u64 = u64::MAX;

#[test]
fn a_check_reports_the_contents_and_changes_nothing() {
    let scratch = Scratch::new("ops");
    let backend = open(&scratch.data(), 12_000);
    put(&backend, 0..200);
    wait_for_checkpoint(&backend, &scratch.data());
    pop_and_complete(&backend, 3);
    assert!(matches!(check(&scratch.data()), Err(OpenError::InUse)));
    drop(backend);
    let before = files(&scratch.data());
    let report = check(&scratch.data()).unwrap();
    // The names: a queue, a klass, a worker. The engine estimates their bytes.
    let name_bytes = report.memory.name_bytes;
    let expected = MemoryReport {
        waiting: 197,
        complete: 3,
        queues: 1,
        names: 3,
        name_bytes,
        ..MemoryReport::default()
    };
    assert_eq!(report.memory, expected);
    assert!(name_bytes > 0);
    assert_eq!(report.memory.jobs(), 200);
    assert!(report.checkpoint_bytes > 0 && report.log_segments > 0 && report.changes > 0, "{report:?}");
    assert_eq!(files(&scratch.data()), before);
}

#[test]
fn a_checkpoint_begun_by_bulk_batches_is_finished_without_further_commands() {
    let scratch = Scratch::new("ops");
    let backend = open(&scratch.data(), 100_000);
    // Batches of this size are executed inline, and each takes the checkpoint one step further.
    (0..20).for_each(|batch| put(&backend, batch * 100..(batch + 1) * 100));
    let unfinished = |name: &String| name == "checkpoint.new";
    let deadline = Instant::now() + Duration::from_secs(60);
    while files(&scratch.data()).keys().any(unfinished) || !has_checkpoint(&scratch.data()) {
        assert!(Instant::now() < deadline, "{:?}", files(&scratch.data()).keys());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_check_of_a_missing_directory_creates_nothing() {
    let scratch = Scratch::new("ops");
    let error = check(&scratch.data()).unwrap_err();
    assert!(error.to_string().starts_with("there is no directory ") && !error.is_damage(), "{error}");
    assert!(!scratch.data().exists());
    std::fs::create_dir(scratch.data()).unwrap();
    assert_eq!(check(&scratch.data()).unwrap().memory, MemoryReport::default());
    assert_eq!(files(&scratch.data()), BTreeMap::new());
}

#[test]
fn every_damage_is_found_and_the_jobs_before_it_are_saved() {
    let scratch = Scratch::new("ops");
    let backend = open(&scratch.data(), NO_CHECKPOINT);
    // The first batch is the opening's, then each has a job: three to a segment.
    (0..20).for_each(|n| put(&backend, n..n + 1));
    drop(backend);
    let whole = files(&scratch.data());
    // (segment, byte, reported offset of the damage, jobs saved, good batches behind)
    for (segment, byte, at, jobs, left) in [
        // A batch in the middle of a segment that is followed by others.
        (2, 2 * BLOCK + 100, 2 * BLOCK, 3, 16),
        (2, 2 * BLOCK + 3, 2 * BLOCK, 3, 16),
        // In the last segment, where a later batch says that it was durable.
        (7, BLOCK + 70, BLOCK, 17, 2),
        // The very first batch.
        (1, BLOCK + 64, BLOCK, 0, 20),
    ] {
        restore(&scratch.data(), &whole);
        flip(&scratch.data().join(log_name(segment)), byte);
        let damaged = files(&scratch.data());
        let error =
            StoreBackend::open(&scratch.data(), options(NO_CHECKPOINT), Arc::new(SystemClock)).unwrap_err();
        assert_eq!(position_of(&error), (segment, at as u64), "{error}");
        let error = check(&scratch.data()).unwrap_err();
        assert_eq!(position_of(&error), (segment, at as u64), "{error}");
        assert!(error.is_damage());

        let out = scratch.fresh();
        let saved = salvage(&scratch.data(), &out);
        if jobs == 0 {
            assert!(matches!(saved, Err(OpenError::NothingKept { .. })), "{saved:?}");
            assert!(!out.exists());
            continue;
        }
        let saved = saved.unwrap();
        assert_eq!((saved.saved.memory.waiting, saved.left_batches), (jobs, left), "segment {segment}");
        assert!(!saved.is_whole() && saved.left_bytes > 0);
        assert_eq!(position_of(&OpenError::Wal(saved.damage.unwrap())), (segment, at as u64));
        assert_eq!(files(&scratch.data()), damaged, "the original was touched");
        // The copy works like any other queue.
        let backend = open(&out, NO_CHECKPOINT);
        put(&backend, 100..110);
        drop(backend);
        assert_eq!(check(&out).unwrap().memory.waiting, jobs + 10);
    }
}

#[test]
fn a_damaged_header_costs_nothing() {
    let scratch = Scratch::new("ops");
    let backend = open(&scratch.data(), NO_CHECKPOINT);
    (0..20).for_each(|n| put(&backend, n..n + 1));
    drop(backend);
    let whole = files(&scratch.data());
    for segment in [1, 3, 7] {
        restore(&scratch.data(), &whole);
        flip(&scratch.data().join(log_name(segment)), 20);
        assert_eq!(position_of(&check(&scratch.data()).unwrap_err()), (segment, 0));
        let saved = salvage(&scratch.data(), &scratch.fresh()).unwrap();
        assert_eq!((saved.saved.memory.waiting, saved.left_batches), (20, 0), "segment {segment}");
    }
}

#[test]
fn salvage_ends_at_a_missing_segment() {
    let scratch = Scratch::new("ops");
    let backend = open(&scratch.data(), NO_CHECKPOINT);
    (0..20).for_each(|n| put(&backend, n..n + 1));
    drop(backend);
    std::fs::remove_file(scratch.data().join(log_name(4))).unwrap();
    assert_eq!(position_of(&check(&scratch.data()).unwrap_err()), (4, 0));
    let saved = salvage(&scratch.data(), &scratch.fresh()).unwrap();
    assert_eq!((saved.saved.memory.waiting, saved.left_batches), (8, 9));
}

#[test]
fn a_checkpoint_is_saved_even_if_the_log_is_lost() {
    let scratch = Scratch::new("ops");
    let backend = open(&scratch.data(), 12_000);
    put(&backend, 0..200);
    wait_for_checkpoint(&backend, &scratch.data());
    // Not enough for another checkpoint.
    [200..205, 205..210].into_iter().for_each(|jobs| put(&backend, jobs));
    drop(backend);
    let whole = files(&scratch.data());
    let logs: Vec<&String> = whole.keys().filter(|name| name.starts_with("log-")).collect();
    let checkpoint = whole.keys().find(|name| name.starts_with("checkpoint-")).unwrap();
    // The log before the checkpoint's position is not needed, so nothing is lost with it.
    for byte in [20, BLOCK + 64] {
        restore(&scratch.data(), &whole);
        flip(&scratch.data().join(logs[0]), byte);
        let saved = salvage(&scratch.data(), &scratch.fresh()).unwrap();
        assert_eq!((saved.saved.memory.waiting, saved.is_whole()), (210, true), "byte {byte}");
    }
    // All of the log is gone.
    restore(&scratch.data(), &whole);
    logs.iter().for_each(|name| std::fs::remove_file(scratch.data().join(name)).unwrap());
    let out = scratch.fresh();
    assert_eq!(salvage(&scratch.data(), &out).unwrap().saved.memory.waiting, 200);
    put(&open(&out, NO_CHECKPOINT), 300..301);
    assert_eq!(check(&out).unwrap().memory.waiting, 201);
    // The checkpoint is damaged, and the log goes back far enough to do without.
    restore(&scratch.data(), &whole);
    flip(&scratch.data().join(checkpoint), 1_000);
    let report = check(&scratch.data()).unwrap();
    let names_it = |texts: &[String]| texts.len() == 1 && texts[0].contains(checkpoint.as_str());
    assert_eq!((report.memory.waiting, names_it(&report.damaged_checkpoints)), (210, true));
    let saved = salvage(&scratch.data(), &scratch.fresh()).unwrap();
    assert_eq!(
        (saved.saved.memory.waiting, saved.is_whole(), names_it(&saved.checkpoints)),
        (210, true, true)
    );
    // It does not go back far enough. All jobs of the checkpoint are in one part, so only those behind it are
    // left.
    std::fs::remove_file(scratch.data().join(log_name(1))).unwrap();
    let error = check(&scratch.data()).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains(checkpoint.as_str()), "{error}");
    let saved = salvage(&scratch.data(), &scratch.fresh()).unwrap();
    assert_eq!((saved.saved.memory.waiting, saved.nameless_jobs, saved.is_whole()), (10, 200, false));
    // The checkpoint is missing: then the rest of the log is not taken for everything.
    std::fs::remove_file(scratch.data().join(checkpoint)).unwrap();
    assert_eq!(position_of(&check(&scratch.data()).unwrap_err()), (1, 0));
}

#[test]
fn no_flipped_byte_makes_a_salvage_panic_or_invent_jobs() {
    let scratch = Scratch::new("ops");
    let backend = open(&scratch.data(), 12_000);
    put(&backend, 0..200);
    wait_for_checkpoint(&backend, &scratch.data());
    (200..206).for_each(|n| put(&backend, n..n + 1));
    drop(backend);
    let whole = files(&scratch.data());
    let seed = std::env::var("GEARTRAIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7041);
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 0..150 {
        restore(&scratch.data(), &whole);
        for _ in 0..rng.usize(1..4) {
            let (name, bytes) = whole.iter().nth(rng.usize(..whole.len())).unwrap();
            if !bytes.is_empty() {
                flip(&scratch.data().join(name), rng.usize(..bytes.len()));
            }
        }
        let out = scratch.fresh();
        match salvage(&scratch.data(), &out) {
            Ok(saved) => {
                let jobs = saved.saved.memory.waiting;
                assert!(jobs == 206 || jobs < 206 && !saved.is_whole(), "seed {seed}, round {round}")
            }
            Err(error) => {
                assert!(matches!(error, OpenError::NothingKept { .. }), "seed {seed}, round {round}: {error}")
            }
        }
        let _ = std::fs::remove_dir_all(out);
    }
}

#[test]
fn a_salvage_of_a_sound_directory_is_a_copy() {
    let scratch = Scratch::new("ops");
    put(&open(&scratch.data(), 12_000), 0..200);
    let saved = salvage(&scratch.data(), &scratch.fresh()).unwrap();
    assert!(saved.is_whole());
    let report = check(&scratch.data()).unwrap();
    // The previous checkpoint, and the log that only it needs, are not copied.
    let (log_segments, log_bytes) = (saved.saved.log_segments, saved.saved.log_bytes);
    assert!(log_segments <= report.log_segments && log_bytes <= report.log_bytes);
    assert_eq!(saved.saved, Report { log_segments, log_bytes, ..report });
}

#[test]
fn a_copy_goes_into_an_empty_directory_only() {
    let scratch = Scratch::new("ops");
    let backend = open(&scratch.data(), NO_CHECKPOINT);
    put(&backend, 0..1);
    let out = scratch.fresh();
    std::fs::create_dir(&out).unwrap();
    block_on(backend.backup(&out)).unwrap();
    assert!(matches!(block_on(backend.backup(&out)), Err(OpenError::NotEmpty { .. })));
    drop(backend);
    assert!(matches!(salvage(&scratch.data(), &out), Err(OpenError::NotEmpty { .. })));
    assert_eq!(check(&out).unwrap().memory.waiting, 1);
    let memory = StoreBackend::in_memory(Arc::new(SystemClock)).unwrap();
    assert!(matches!(block_on(memory.backup(&scratch.fresh())), Err(OpenError::NothingKept { .. })));
}

#[test]
fn a_backup_of_a_damaged_directory_fails_and_leaves_nothing_behind() {
    let scratch = Scratch::new("ops");
    let backend = open(&scratch.data(), NO_CHECKPOINT);
    (0..20).for_each(|n| put(&backend, n..n + 1));
    for (segment, byte) in [(2, 2 * BLOCK + 100), (7, BLOCK + 70)] {
        flip(&scratch.data().join(log_name(segment)), byte);
        let out = scratch.fresh();
        let error = block_on(backend.backup(&out)).unwrap_err();
        assert_eq!(position_of(&error), (segment, (byte / BLOCK * BLOCK) as u64), "{error}");
        assert!(!out.exists());
        flip(&scratch.data().join(log_name(segment)), byte);
    }
}

#[test]
fn a_backup_has_all_that_was_acknowledged_before_while_work_goes_on() {
    let scratch = Scratch::new("ops");
    // Small, so that checkpoints and released segments come all the time.
    let backend = open(&scratch.data(), 12_000);
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..).step_by(3) {
                put(&backend, n..n + 3);
                acknowledged.store(n + 3, Ordering::SeqCst);
                if stop.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        let _stop = StopOnDrop(&stop);
        for round in 1..=20 {
            while acknowledged.load(Ordering::SeqCst) < round * 50 {
                std::thread::yield_now();
            }
            let before = acknowledged.load(Ordering::SeqCst);
            let out = scratch.fresh();
            block_on(backend.backup(&out)).unwrap_or_else(|error| panic!("round {round}: {error}"));
            let after = acknowledged.load(Ordering::SeqCst) + 3;
            let found = check(&out).unwrap_or_else(|error| panic!("round {round}: {error}")).memory.waiting;
            assert!((before..=after).contains(&found), "round {round}: {found} of {before} to {after}");
            // The copy opens by itself, and has exactly these jobs.
            let copy = open(&out, 12_000);
            let jids = (0..before).map(jid).collect();
            let Reply::GetMany(jobs) = run(&copy, GetMany { jids }) else { panic!() };
            assert_eq!(jobs.len() as u64, before);
        }
    });
    drop(backend);
    check(&scratch.data()).unwrap();
}

/// Ends the other thread, also if this one panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn options(checkpoint_bytes_min: u64) -> StoreOptions {
    let wal = WalOptions { segment_bytes: 16 << 10, spare_segments: 1 };
    StoreOptions { wal, checkpoint_bytes_min, ..StoreOptions::default() }
}

fn open(directory: &Path, checkpoint_bytes_min: u64) -> StoreBackend {
    StoreBackend::open(directory, options(checkpoint_bytes_min), Arc::new(SystemClock)).unwrap()
}

fn run(backend: &StoreBackend, command: impl Into<Command>) -> Reply {
    let call = Call::from(command);
    block_on(backend.execute(vec![call])).unwrap().remove(0).unwrap()
}

fn jid(number: u64) -> Jid {
    Jid::new(format!("j{number}")).unwrap()
}

fn mail() -> QueueName {
    QueueName::new("mail").unwrap()
}

/// Puts jobs, in one batch.
fn put(backend: &StoreBackend, numbers: std::ops::Range<u64>) {
    let klass = Klass::new("welcome").unwrap();
    let put = |n| Put::new(mail(), jid(n), klass.clone(), format!("payload {n} {}", "x".repeat(50)));
    let answers = block_on(backend.execute(numbers.map(|n| put(n).into()).collect())).unwrap();
    assert!(answers.iter().all(Result::is_ok));
}

fn pop_and_complete(backend: &StoreBackend, count: i64) {
    let count = Count::new(count).unwrap();
    let pop = Pop { count, ..Pop::new(mail(), WorkerName::new("w1").unwrap()) };
    let Reply::Pop(popped) = run(backend, pop) else { panic!() };
    for job in popped.jobs {
        run(backend, Complete::new(job.jid, Holder::Token(job.lock.token)));
    }
}

fn wait_for_checkpoint(backend: &StoreBackend, directory: &Path) {
    while !has_checkpoint(directory) {
        run(backend, Get { jid: jid(0) });
    }
}

fn has_checkpoint(directory: &Path) -> bool {
    files(directory).keys().any(|name| name.starts_with("checkpoint-"))
}

/// The position that an error calls damaged.
fn position_of(error: &OpenError) -> (u64, u64) {
    match error {
        OpenError::Wal(WalError::Damaged { segment, offset, .. }) => (*segment, *offset),
        other => panic!("this error has no position: {other:?}"),
    }
}

fn log_name(segment: u64) -> String {
    format!("log-{segment:020}")
}

fn flip(file: &Path, byte: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[byte] ^= 0x10;
    std::fs::write(file, bytes).unwrap();
}

/// The files of a directory, and their contents.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let names =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // A file that is renamed meanwhile belongs to a running background task.
    names.filter_map(|name| Some((name.clone(), std::fs::read(directory.join(name)).ok()?))).collect()
}

/// Restores the contents of a directory.
fn restore(directory: &Path, to: &BTreeMap<String, Vec<u8>>) {
    std::fs::remove_dir_all(directory).unwrap();
    std::fs::create_dir(directory).unwrap();
    to.iter().for_each(|(name, bytes)| std::fs::write(directory.join(name), bytes).unwrap());
}
