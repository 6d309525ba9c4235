//! Backups of a store in use: what they pin, how they end, and that an incomplete copy never opens.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use geartrain_core::*;
use geartrain_store::wal::WalOptions;
use geartrain_store::{OpenError, StoreBackend, StoreOptions, check, check_copy};
use geartrain_testkit::disk::SimDisk;
use pollster::block_on;

use crate::scratch::Scratch;

/// More than the archive has ahead of its reader, so that a backup with such a payload waits for the reader.
const LARGE_BYTES: usize = 2 << 20;

#[test]
fn a_second_backup_is_refused_and_a_dropped_one_is_cancelled() {
    let scratch = Scratch::new("backup");
    let backend = open(&scratch.data());
    put(&backend, 0, LARGE_BYTES);
    let archive = begin(&backend, BackupTarget::Archive);
    let out = scratch.fresh();
    let refused = block_on(backend.backup(&out)).unwrap_err();
    assert!(matches!(refused, OpenError::BackupRunning), "{refused}");
    assert!(!out.exists() && !partial(&out).exists());
    drop(archive);
    // It ends at its next chunk.
    until(|| match block_on(backend.backup(&out)) {
        Err(OpenError::BackupRunning) => false,
        made => made.map(|summary| assert_eq!(summary.jobs, 1)).is_ok(),
    });
    assert_eq!(check_copy(&out).unwrap().memory.waiting, 1);
}

#[test]
fn a_dropped_backup_leaves_nothing_behind() {
    let scratch = Scratch::new("backup");
    let backend = open(&scratch.data());
    (0..20).for_each(|number| put(&backend, number, LARGE_BYTES));
    let out = scratch.fresh();
    let mut backup = begin(&backend, BackupTarget::Directory(out.clone()));
    let step = block_on(backup.next()).unwrap();
    assert!(
        matches!(step, BackupStep::Copied { bytes: 0, bytes_expected } if bytes_expected > 40 << 20),
        "{step:?}"
    );
    assert!(partial(&out).exists() && !out.exists());
    drop(backup);
    until(|| !partial(&out).exists());
    assert!(!out.exists());
}

#[test]
fn a_closed_queue_has_ended_its_backup() {
    let scratch = Scratch::new("backup");
    let out = scratch.fresh();
    let backend = open(&scratch.data());
    (0..20).for_each(|number| put(&backend, number, LARGE_BYTES));
    let mut backup = begin(&backend, BackupTarget::Directory(out.clone()));
    block_on(backup.next()).unwrap();
    assert!(partial(&out).exists());
    drop(backend);
    // Nothing is left of the copy, and the directory is not in use.
    assert!(!partial(&out).exists() && !out.exists());
    let backend = open(&scratch.data());
    // An archive whose client takes no chunk ends as well.
    let mut archive = begin(&backend, BackupTarget::Archive);
    chunk(&mut *archive).unwrap();
    drop(backend);
    open(&scratch.data());
    for ended in [&mut backup, &mut archive] {
        let failed = loop {
            match block_on(ended.next()) {
                Ok(BackupStep::Done(_)) => panic!("the backup was not cancelled"),
                Ok(_) => {}
                Err(error) => break error.to_string(),
            }
        };
        assert!(failed.ends_with("the backup was cancelled: the queue is closed"), "{failed}");
    }
}

#[test]
fn an_archive_unpacks_to_a_copy() {
    let scratch = Scratch::new("backup");
    let backend = open(&scratch.data());
    (0..50).for_each(|number| put(&backend, number, 300));
    put(&backend, 50, LARGE_BYTES);
    let (archive, summary) = read_archive(&backend);
    assert_eq!((summary.jobs, summary.payload_files, &summary.directory), (51, 1, &None));
    let out = scratch.fresh();
    tar::Archive::new(&archive[..]).unpack(&out).unwrap();
    assert_eq!(check_copy(&out).unwrap().memory.waiting, 51);
    let copy = open(&out);
    (0..51).for_each(|number| {
        assert_eq!(get(&copy, number).unwrap().payload, get(&backend, number).unwrap().payload)
    });
}

#[test]
fn an_archive_that_was_cut_off_is_refused_when_it_is_opened() {
    let scratch = Scratch::new("backup");
    let backend = open(&scratch.data());
    (0..50).for_each(|number| put(&backend, number, 300));
    put(&backend, 50, LARGE_BYTES);
    let (archive, _) = read_archive(&backend);
    let mut entries = tar::Archive::new(&archive[..]);
    let ends: Vec<u64> =
        entries.entries().unwrap().map(|entry| entry.unwrap().raw_header_position()).collect();
    assert!(ends.len() >= 3, "{ends:?}");
    // Without the last entries, even if the program that unpacks it does not notice.
    for end in &ends[1..] {
        let out = scratch.fresh();
        let mut cut = archive[..*end as usize].to_vec();
        cut.extend([0; 1024]);
        tar::Archive::new(&cut[..]).unpack(&out).unwrap();
        check_copy(&out).unwrap_err();
        StoreBackend::open(&out, options(), Arc::new(SystemClock)).unwrap_err();
    }
}

#[test]
fn the_log_is_recycled_while_payload_files_are_copied() {
    let scratch = Scratch::new("backup");
    let backend = open(&scratch.data());
    for number in 0..4 {
        put(&backend, number, LARGE_BYTES);
    }
    let mut backup = begin(&backend, BackupTarget::Archive);
    // Until it has copied the log, and waits for its reader in the first payload file.
    let mut archive = Vec::new();
    until(|| {
        archive.extend(chunk(&mut *backup).expect("the backup goes on"));
        entry_names(&archive).iter().any(|name| name.starts_with("payloads-"))
    });
    // The pinned files stay when their jobs are gone; later ones do not.
    let pinned = names(&scratch.data(), "payloads-");
    run(&backend, Cancel::new((0..4).map(jid).collect()));
    let checkpoints = names(&scratch.data(), "checkpoint-");
    let mut number = 100;
    until(|| {
        put(&backend, number, LARGE_BYTES);
        run(&backend, Cancel::new(vec![jid(number)]));
        number += 1;
        names(&scratch.data(), "checkpoint-").iter().filter(|name| !checkpoints.contains(*name)).count() == 2
            && names(&scratch.data(), "log-").iter().all(|name| !name.ends_with("00001"))
    });
    let left = names(&scratch.data(), "payloads-");
    assert!(pinned.iter().all(|name| left.contains(name)), "{pinned:?} {left:?}");
    while let Some(bytes) = chunk(&mut *backup) {
        archive.extend(bytes);
    }
    drop(backup);
    until(|| {
        put(&backend, number, 10);
        number += 1;
        names(&scratch.data(), "payloads-").iter().all(|name| !pinned.contains(name))
    });
    let out = scratch.fresh();
    tar::Archive::new(&archive[..]).unpack(&out).unwrap();
    assert_eq!(check_copy(&out).unwrap().memory.waiting, 4);
    drop(backend);
    check(&scratch.data()).unwrap();
}

#[test]
fn a_backup_ends_when_the_disk_of_the_queue_is_full() {
    // Through the log, and in a file of its own.
    for payload_bytes in [20_000, LARGE_BYTES] {
        let disk = SimDisk::new(1);
        let backend =
            StoreBackend::open_on(Arc::new(disk.clone()), options(), Arc::new(SystemClock)).unwrap();
        put(&backend, 0, LARGE_BYTES);
        let mut backup = begin(&backend, BackupTarget::Archive);
        let first = chunk(&mut *backup);
        assert!(first.is_some());
        disk.set_bytes_max(disk.bytes());
        let (mut number, mut refused) = (1, None);
        until(|| {
            number += 1;
            let put = Put::new(mail(), jid(number), klass(), vec![b'x'; payload_bytes]);
            refused = block_on(backend.execute(vec![put.into()])).err();
            refused.is_some()
        });
        let why = std::error::Error::source(&refused.unwrap()).unwrap().to_string();
        assert!(why.starts_with("the disk is full"), "{why}");
        let failed = loop {
            match block_on(backup.next()) {
                Ok(BackupStep::Done(_)) => panic!("the backup was not cancelled"),
                Ok(_) => {}
                Err(error) => break error.to_string(),
            }
        };
        assert!(failed.ends_with("the backup was cancelled: the disk of the queue is full"), "{failed}");
    }
}

#[test]
fn what_a_killed_backup_left_is_removed_by_the_next() {
    let scratch = Scratch::new("backup");
    let backend = open(&scratch.data());
    put(&backend, 0, 10);
    let out = scratch.fresh();
    fs::create_dir(partial(&out)).unwrap();
    fs::write(partial(&out).join("log-00000000000000000001"), "left over").unwrap();
    let summary = block_on(backend.backup(&out)).unwrap();
    assert_eq!(summary.directory.as_deref(), out.to_str());
    assert!(!partial(&out).exists());
    assert_eq!(check_copy(&out).unwrap().memory.waiting, 1);
    // Files of another kind are not touched, nor is a copy that another process writes.
    let out = scratch.fresh();
    fs::create_dir(partial(&out)).unwrap();
    fs::write(partial(&out).join("notes"), "not ours").unwrap();
    assert!(matches!(block_on(backend.backup(&out)), Err(OpenError::NotEmpty { .. })));
    assert_eq!(fs::read(partial(&out).join("notes")).unwrap(), b"not ours");
    let out = scratch.fresh();
    fs::create_dir(partial(&out)).unwrap();
    let other = File::open(partial(&out)).unwrap();
    other.lock().unwrap();
    assert!(matches!(block_on(backend.backup(&out)), Err(OpenError::NotEmpty { .. })));
    drop(other);
    block_on(backend.backup(&out)).unwrap();
}

#[test]
fn no_other_copy_is_taken_for_what_is_left_of_this_one() {
    let scratch = Scratch::new("backup");
    let backend = open(&scratch.data());
    put(&backend, 0, 10);
    let (earlier, out) = (scratch.fresh(), scratch.fresh());
    block_on(backend.backup(&earlier)).unwrap();
    let before = contents(&earlier);
    let refused = block_on(backend.backup(&partial(&out))).unwrap_err();
    assert!(matches!(refused, OpenError::PartialName { .. }), "{refused}");
    // A symbolic link leads to the files of another directory, or to nowhere.
    std::os::unix::fs::symlink(&earlier, partial(&out)).unwrap();
    let refused = block_on(backend.backup(&out)).unwrap_err().to_string();
    assert!(refused.contains("is a symbolic link"), "{refused}");
    assert_eq!(contents(&earlier), before);
    assert!(!out.exists());
    let dangling = scratch.fresh();
    std::os::unix::fs::symlink(scratch.fresh(), &dangling).unwrap();
    let refused = block_on(backend.backup(&dangling)).unwrap_err().to_string();
    assert!(refused.contains("is a symbolic link"), "{refused}");
    assert!(!partial(&dangling).exists());
    // A link to an empty directory is followed.
    let (empty, link) = (scratch.fresh(), scratch.fresh());
    fs::create_dir(&empty).unwrap();
    std::os::unix::fs::symlink(&empty, &link).unwrap();
    let summary = block_on(backend.backup(&link)).unwrap();
    assert_eq!(summary.directory.as_deref(), empty.to_str());
    assert_eq!(check_copy(&link).unwrap().memory.waiting, 1);
}

#[test]
fn a_copy_for_which_there_is_no_space_is_refused_before_it_begins() {
    let scratch = Scratch::new("backup");
    let backend = open(&scratch.data());
    put(&backend, 0, 10);
    // The file of a payload whose put was never executed, all of it a hole.
    let hole = File::create(scratch.data().join("payloads-8000000000000001")).unwrap();
    hole.set_len(8 << 40).unwrap();
    let out = scratch.fresh();
    let error = block_on(backend.backup(&out)).unwrap_err().to_string();
    assert!(error.contains(out.to_str().unwrap()) && error.contains(" are free"), "{error}");
    assert!(!out.exists() && !partial(&out).exists());
}

#[test]
fn a_copy_is_checked_without_a_lock_and_nothing_in_it_is_changed() {
    let scratch = Scratch::new("backup");
    let backend = open(&scratch.data());
    (0..50).for_each(|number| put(&backend, number, 300));
    let out = scratch.fresh();
    block_on(backend.backup(&out)).unwrap();
    let before = contents(&out);
    // A lock of another process is not in the way.
    let locked = File::open(&out).unwrap();
    locked.lock().unwrap();
    assert_eq!(check_copy(&out).unwrap().memory.waiting, 50);
    assert_eq!(contents(&out), before);
    let log = names(&out, "log-").remove(0);
    let mut bytes = before[&log].clone();
    bytes[2 * 4096 + 100] ^= 1;
    fs::write(out.join(&log), bytes).unwrap();
    let error = check_copy(&out).unwrap_err();
    assert!(
        error.is_damage() && error.to_string().contains(&format!("(file {log}) is damaged at byte ")),
        "{error}"
    );
    let empty = scratch.fresh();
    fs::create_dir(&empty).unwrap();
    assert!(matches!(check_copy(&empty), Err(OpenError::NoLog { .. })));
}

/// Small and spilled payloads, payloads in files of their own, checkpoints and recycled segments, while
/// copies are made one after the other: directories and archives in turn.
#[test]
fn copies_made_under_load_have_everything_acknowledged_before() {
    let scratch = Scratch::new("backup");
    let backend = open(&scratch.data());
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                put(&backend, number, size_of_payload(number));
                acknowledged.store(number + 1, Ordering::SeqCst);
                // Every other job is cancelled ten jobs later, so that payload files are released.
                if number >= 10 && number.is_multiple_of(2) {
                    run(&backend, Cancel::new(vec![jid(number - 10)]));
                }
                if stop.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        let _stop = StopOnDrop(&stop);
        for round in 1..=10 {
            while acknowledged.load(Ordering::SeqCst) < round * 40 {
                std::thread::yield_now();
            }
            let before = acknowledged.load(Ordering::SeqCst);
            let out = scratch.fresh();
            if round % 2 == 0 {
                block_on(backend.backup(&out)).unwrap_or_else(|error| panic!("round {round}: {error}"));
            } else {
                tar::Archive::new(&read_archive(&backend).0[..]).unpack(&out).unwrap();
            }
            check_copy(&out).unwrap_or_else(|error| panic!("round {round}: {error}"));
            let copy = open(&out);
            // Odd jobs are never cancelled.
            for number in (1..before).step_by(2) {
                let job = get(&copy, number).unwrap_or_else(|| panic!("round {round}: {number} of {before}"));
                assert_eq!(job.payload.bytes().len(), size_of_payload(number), "round {round}: {number}");
            }
            drop(copy);
            fs::remove_dir_all(out).unwrap();
        }
    });
    drop(backend);
    check(&scratch.data()).unwrap();
}

fn size_of_payload(number: u64) -> usize {
    if number % 20 == 7 { 600 << 10 } else { 10 + (number as usize * 37) % 3_000 }
}

/// Ends the other thread, also if this one panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Small, so that checkpoints, released segments and spilled payloads come all the time.
fn options() -> StoreOptions {
    let wal = WalOptions { segment_bytes: 64 << 10, spare_segments: 1 };
    let (checkpoint_bytes_min, payload_memory) = (100_000, 20_000);
    StoreOptions {
        wal,
        checkpoint_bytes_min,
        payload_memory,
        payload_file_bytes: 50_000,
        ..StoreOptions::default()
    }
}

fn open(directory: &Path) -> StoreBackend {
    StoreBackend::open(directory, options(), Arc::new(SystemClock)).unwrap()
}

fn mail() -> QueueName {
    QueueName::new("mail").unwrap()
}

fn klass() -> Klass {
    Klass::new("welcome").unwrap()
}

fn jid(number: u64) -> Jid {
    Jid::new(format!("j{number}")).unwrap()
}

fn run(backend: &StoreBackend, command: impl Into<Command>) -> Reply {
    let call = Call::from(command);
    block_on(backend.execute(vec![call])).unwrap().remove(0).unwrap()
}

fn put(backend: &StoreBackend, number: u64, bytes: usize) {
    run(backend, Put::new(mail(), jid(number), klass(), vec![b'a' + (number % 26) as u8; bytes]));
}

fn get(backend: &StoreBackend, number: u64) -> Option<Job> {
    match run(backend, Get { jid: jid(number) }) {
        Reply::Get(job) => job.map(|job| *job),
        other => panic!("{other:?}"),
    }
}

fn begin(backend: &StoreBackend, to: BackupTarget) -> Box<dyn Backup> {
    block_on(Backend::backup(backend, to)).unwrap()
}

/// The next chunk of an archive; `None` when it is complete.
fn chunk(backup: &mut dyn Backup) -> Option<Vec<u8>> {
    loop {
        match block_on(backup.next()).unwrap() {
            BackupStep::Chunk(chunk) => return Some(chunk),
            BackupStep::Done(_) => return None,
            _ => {}
        }
    }
}

fn read_archive(backend: &StoreBackend) -> (Vec<u8>, BackupSummary) {
    let (mut backup, mut archive) = (begin(backend, BackupTarget::Archive), Vec::new());
    loop {
        match block_on(backup.next()).unwrap() {
            BackupStep::Chunk(chunk) => archive.extend(chunk),
            BackupStep::Done(summary) => return (archive, summary),
            _ => {}
        }
    }
}

/// The names of the entries of the first part of an archive.
fn entry_names(archive: &[u8]) -> Vec<String> {
    let mut archive = tar::Archive::new(archive);
    let entries = archive.entries().unwrap().map_while(Result::ok);
    entries.map(|entry| entry.path().unwrap().display().to_string()).collect()
}

fn partial(directory: &Path) -> std::path::PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

fn names(directory: &Path, kind: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name.starts_with(kind));
    names.sort();
    names
}

fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    names(directory, "")
        .into_iter()
        .map(|name| (name.clone(), fs::read(directory.join(name)).unwrap()))
        .collect()
}

/// Repeats a step until it says that it is done.
fn until(mut is_done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_done() {
        assert!(Instant::now() < deadline, "it takes too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}
