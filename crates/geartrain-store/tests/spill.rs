//! Spill: payloads that exceed the memory limit are on disk, and disk use stays proportional to them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use geartrain_core::SystemClock;
use geartrain_core::*;
use geartrain_store::wal::WalOptions;
use geartrain_store::{Lockstep, OpenError, StoreBackend, StoreOptions, SyncMode, check, salvage};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use pollster::block_on;

use crate::scratch::Scratch;

const BATCH: u64 = 100;
const PAYLOAD_BYTES: u64 = 8_000;
const MEMORY: u64 = 4 << 20;
/// One in this many jobs is due in a month.
const LATER: u64 = 100;

#[test]
fn memory_and_disk_stay_within_their_limits_and_shrink_again() {
    let scratch = Scratch::new("spill");
    let options = StoreOptions {
        // The sync mode does not change how much is on the disk.
        sync: SyncMode::Never,
        wal: WalOptions { segment_bytes: 1 << 20, spare_segments: 1 },
        checkpoint_bytes_min: 1 << 20,
        payload_memory: MEMORY,
        payload_file_bytes: 1 << 20,
        ..StoreOptions::default()
    };
    let backend = StoreBackend::open(&scratch.data(), options.clone(), Arc::new(SystemClock)).unwrap();
    run(&backend, SetConfig::new("jobs-history-count", "0"));
    // First many at once: ten times what fits.
    let many = 10 * MEMORY / PAYLOAD_BYTES / BATCH * BATCH;
    let mut most = 0;
    for first in (0..many).step_by(BATCH as usize) {
        put(&backend, first..first + BATCH, PAYLOAD_BYTES);
        most = most.max(backend.payload_bytes_in_memory());
    }
    // Payloads in flight are still in memory, and so are those put since.
    assert!(most <= MEMORY + 4 * BATCH * PAYLOAD_BYTES, "{most} bytes were in memory");
    until(&backend, || backend.payload_bytes_in_memory() <= MEMORY);
    let alive = many * PAYLOAD_BYTES;
    assert!(payload_files(&scratch.data()).1 >= alive - MEMORY, "they are nowhere");
    // Then they are completed, except for one in a hundred, and others are put; and so on.
    let (mut next, mut done, mut largest) = (many, 0, 0.0_f64);
    while done < 2 * many {
        for job in pop(&backend, BATCH as i64) {
            assert_eq!(job.payload, payload_of(&job.jid, PAYLOAD_BYTES), "{}", job.jid);
            run(&backend, Complete::new(job.jid, Holder::Token(job.lock.token)));
            done += 1;
        }
        put(&backend, next..next + BATCH, PAYLOAD_BYTES);
        next += BATCH;
        largest = largest.max(bytes_in(&scratch.data()) as f64 / alive as f64);
    }
    assert!(largest < 3.0, "the directory was {largest:.2} times as large as what was alive in it");
    // At last only those due in a month are left, spread over the files.
    loop {
        let jobs = pop(&backend, BATCH as i64);
        if jobs.is_empty() {
            break;
        }
        jobs.into_iter()
            .for_each(|job| drop(run(&backend, Complete::new(job.jid, Holder::Token(job.lock.token)))));
    }
    let left = next / LATER * PAYLOAD_BYTES;
    // At most two files beside them: one that is being written, and one that is half empty.
    let small = |bytes: u64| bytes <= 2 * left + (2 << 20);
    until(&backend, || small(payload_files(&scratch.data()).1));
    drop(backend);
    let report = check(&scratch.data()).unwrap();
    assert_eq!(report.memory.scheduled, next / LATER);
    let backend = StoreBackend::open(&scratch.data(), options, Arc::new(SystemClock)).unwrap();
    for number in (0..next).step_by(LATER as usize) {
        assert_eq!(get(&backend, number).unwrap().payload, payload_of(&jid(number), PAYLOAD_BYTES));
    }
}

#[test]
fn small_payloads_stay_in_memory() {
    let scratch = Scratch::new("spill");
    let backend =
        StoreBackend::open(&scratch.data(), spill_everything(1 << 20), Arc::new(SystemClock)).unwrap();
    put(&backend, 0..10, 255);
    put(&backend, 10..20, 256);
    until(&backend, || backend.payload_bytes_in_memory() == 2_550);
    assert!(payload_files(&scratch.data()).1 >= 2_560);
}

#[test]
fn a_damaged_payload_is_reported_with_its_position_and_the_rest_can_be_saved() {
    let scratch = Scratch::new("spill");
    let options = spill_everything(4 << 10);
    let backend = spilled(&scratch, &options, 20);
    drop(backend);
    let (file, bytes) = payload_file(&scratch, 0);
    flip(&file, bytes as usize / 2);
    let name = file.file_name().unwrap().to_str().unwrap().to_owned();

    let backend = StoreBackend::open(&scratch.data(), options, Arc::new(SystemClock)).unwrap();
    let answers: Vec<_> = (0..20).map(|number| get(&backend, number)).collect();
    let refused: Vec<&Refusal> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    let [Refusal::Unreadable { jid: damaged, why }] = &refused[..] else { panic!("{refused:?}") };
    assert!(why.starts_with(&format!("file {name} is damaged at byte ")), "{why}");
    // A read of many jobs is refused as well, and a pop gets the others.
    let many = GetMany { jids: (0..20).map(jid).collect() };
    let answer = block_on(backend.execute(vec![many.into()])).unwrap().remove(0);
    assert!(matches!(&answer, Err(Refusal::Unreadable { .. })), "{answer:?}");
    let popped = pop(&backend, 20);
    assert_eq!(popped.len(), 19);
    for job in popped {
        assert_eq!(job.payload, payload_of(&job.jid, 300));
        assert_ne!(job.jid, *damaged);
    }
    drop(backend);

    let error = check(&scratch.data()).unwrap_err();
    assert!(matches!(error, OpenError::Payload { .. }) && error.is_damage(), "{error:?}");
    assert!(error.to_string().contains(&name), "{error}");
    let before = std::fs::read(&file).unwrap();
    let out = scratch.path().join("out");
    let saved = salvage(&scratch.data(), &out).unwrap();
    assert!(!saved.is_whole());
    assert_eq!(saved.jobs, [format!("job {damaged}: {why}")]);
    assert_eq!(saved.saved.memory.jobs(), 19);
    assert_eq!(std::fs::read(&file).unwrap(), before, "the original was touched");
    let backend = StoreBackend::open(&out, spill_everything(4 << 10), Arc::new(SystemClock)).unwrap();
    for number in (0..20).filter(|number| jid(*number) != *damaged) {
        assert_eq!(get(&backend, number).unwrap().payload, payload_of(&jid(number), 300));
    }
}

#[test]
fn a_missing_payload_file_is_noticed_when_the_store_is_opened() {
    let scratch = Scratch::new("spill");
    drop(spilled(&scratch, &spill_everything(4 << 10), 20));
    let (file, _) = payload_file(&scratch, 0);
    std::fs::remove_file(&file).unwrap();
    let error =
        StoreBackend::open(&scratch.data(), spill_everything(4 << 10), Arc::new(SystemClock)).unwrap_err();
    assert!(
        error.is_damage() && error.to_string().contains(file.file_name().unwrap().to_str().unwrap()),
        "{error}"
    );
    let saved = salvage(&scratch.data(), &scratch.path().join("out")).unwrap();
    assert!((1..20).contains(&saved.saved.memory.jobs()), "{saved:?}");
    assert_eq!(saved.saved.memory.jobs() + saved.jobs.len() as u64, 20);
}

#[test]
fn files_that_no_checkpoint_refers_to_are_removed_at_opening() {
    let scratch = Scratch::new("spill");
    let options = StoreOptions { checkpoint_bytes_min: u64::MAX, ..spill_everything(4 << 10) };
    let backend = StoreBackend::open(&scratch.data(), options.clone(), Arc::new(SystemClock)).unwrap();
    put(&backend, 0..20, 300);
    until(&backend, || backend.payload_bytes_in_memory() == 0);
    drop(backend);
    let old = payload_files(&scratch.data()).0;
    assert!(!old.is_empty());
    let backend = StoreBackend::open(&scratch.data(), options, Arc::new(SystemClock)).unwrap();
    until(&backend, || backend.payload_bytes_in_memory() == 0);
    let new = payload_files(&scratch.data()).0;
    assert!(new.iter().all(|name| !old.contains(name)), "{old:?} and {new:?}");
    (0..20)
        .for_each(|number| assert_eq!(get(&backend, number).unwrap().payload, payload_of(&jid(number), 300)));
}

#[test]
fn a_backup_has_the_payloads_while_files_are_created_and_removed() {
    let scratch = Scratch::new("spill");
    let options = StoreOptions { checkpoint_bytes_min: 8 << 10, ..spill_everything(4 << 10) };
    let backend = spilled(&scratch, &options, 50);
    for round in 0..10_u64 {
        let out = scratch.path().join(format!("copy-{round}"));
        std::thread::scope(|scope| {
            let copy = scope.spawn(|| block_on(backend.backup(&out)).unwrap());
            // Meanwhile files are emptied and removed.
            for number in 50..100 {
                put(&backend, number..number + 1, 300);
                run(&backend, Cancel::new(vec![jid(number)]));
            }
            let copied = copy.join().unwrap();
            assert!(copied.payload_files > 0 && copied.payload_file_bytes > 0, "{copied:?}");
        });
        check(&out).unwrap();
        let copy = StoreBackend::open(&out, options.clone(), Arc::new(SystemClock)).unwrap();
        (0..50).for_each(|number| {
            assert_eq!(get(&copy, number).unwrap().payload, payload_of(&jid(number), 300))
        });
    }
}

#[test]
fn a_reply_has_its_payload_and_the_file_is_removed_when_no_checkpoint_needs_it() {
    let disk = SimDisk::new(1);
    // A file for each payload. The log has five blocks in the end: with an empty file a checkpoint is due,
    // and not before.
    let options = StoreOptions { checkpoint_bytes_min: 21_000, ..spill_everything(100) };
    let mut store = Lockstep::open_on(Arc::new(disk.clone()), options, ManualClock::new()).unwrap();
    let settle = |store: &mut Lockstep| {
        for _ in 0..20 {
            store.engine_step();
            store.writer_step(usize::MAX);
        }
    };
    let has = |kind: &str| disk.names().iter().filter(|name| name.starts_with(kind)).count();
    for (number, bytes) in [(0, 1_500), (1, 300)] {
        let (mail, klass) = (QueueName::new("mail").unwrap(), Klass::new("welcome").unwrap());
        store.send(vec![Put::new(mail, jid(number), klass, payload_of(&jid(number), bytes)).into()]);
        settle(&mut store);
    }
    assert_eq!((has("payloads-"), has("checkpoint-")), (2, 0));
    let sent = store.send(vec![Get { jid: jid(0) }.into(), Cancel::new(vec![jid(0)]).into()]);
    // The reply, and the whole checkpoint, are written in one step.
    store.engine_step();
    store.engine_step();
    store.writer_step(usize::MAX);
    assert_eq!(has("payloads-"), 2);
    let answers = sent.answers().unwrap().unwrap();
    let Ok(Reply::Get(Some(job))) = &answers[0] else { panic!("{answers:?}") };
    assert_eq!(job.payload, payload_of(&jid(0), 1_500));
    // With the next checkpoint, because the previous one does not refer to it either.
    for number in 0..20 {
        if has("checkpoint-") < 2 {
            store.send(vec![Log { jid: jid(1), message: number.to_string(), data: None }.into()]);
            settle(&mut store);
        }
    }
    assert_eq!((has("payloads-"), has("checkpoint-")), (1, 2));
}

#[test]
fn a_full_disk_leaves_payloads_in_memory_until_there_is_space() {
    let disk = SimDisk::new(1);
    let options = StoreOptions {
        wal: WalOptions { segment_bytes: 16 << 20, spare_segments: 1 },
        checkpoint_bytes_min: u64::MAX,
        ..spill_everything(1 << 20)
    };
    let backend = StoreBackend::open_on(Arc::new(disk.clone()), options, ManualClock::new()).unwrap();
    // The log has its segment already.
    put(&backend, 0..1, 300);
    until(&backend, || backend.payload_bytes_in_memory() == 0);
    disk.set_bytes_max(disk.bytes());
    put(&backend, 1..20, 300);
    for number in 0..20 {
        assert_eq!(get(&backend, number).unwrap().payload, payload_of(&jid(number), 300));
    }
    assert_eq!(backend.payload_bytes_in_memory(), 19 * 300);
    disk.heal();
    // Retried after a while, not all the time.
    get(&backend, 0).unwrap();
    assert_eq!(backend.payload_bytes_in_memory(), 19 * 300);
    (20..70).for_each(|number| put(&backend, number..number + 1, 100_000));
    until(&backend, || backend.payload_bytes_in_memory() == 0);
    (0..20)
        .for_each(|number| assert_eq!(get(&backend, number).unwrap().payload, payload_of(&jid(number), 300)));
}

/// Options of a store that spills every payload.
fn spill_everything(payload_file_bytes: u64) -> StoreOptions {
    let wal = WalOptions { segment_bytes: 64 << 10, spare_segments: 1 };
    StoreOptions { wal, payload_memory: 0, payload_file_bytes, ..StoreOptions::default() }
}

/// A store with jobs whose payloads of 300 bytes are in files that a checkpoint refers to.
fn spilled(scratch: &Scratch, options: &StoreOptions, jobs: u64) -> StoreBackend {
    let options = StoreOptions { checkpoint_bytes_min: 8 << 10, ..options.clone() };
    let backend = StoreBackend::open(&scratch.data(), options, Arc::new(SystemClock)).unwrap();
    put(&backend, 0..jobs, 300);
    until(&backend, || backend.payload_bytes_in_memory() == 0);
    // The next checkpoint may have been begun before that; the two after it have the locations, so that
    // falling back does not help.
    for _ in 0..3 {
        let old = names(&scratch.data());
        until(&backend, || {
            put(&backend, 1_000..1_010, 200);
            run(&backend, Cancel::new((1_000..1_010).map(jid).collect()));
            names(&scratch.data()).iter().any(|name| name.starts_with("checkpoint-") && !old.contains(name))
        });
    }
    // Nor is the log there from its beginning.
    until(&backend, || names(&scratch.data()).iter().all(|name| name != "log-00000000000000000001"));
    backend
}

/// Sends commands until a condition holds: the engine and the committer go on with each command, and by
/// themselves.
fn until(backend: &StoreBackend, condition: impl Fn() -> bool) {
    for n in 0.. {
        if condition() {
            return;
        }
        run(backend, Log { jid: jid(0), message: n.to_string(), data: None });
        assert!(n < 100_000, "that never comes");
    }
}

fn run(backend: &StoreBackend, command: impl Into<Command>) -> Reply {
    let call = Call::from(command);
    block_on(backend.execute(vec![call])).unwrap().remove(0).unwrap()
}

fn jid(number: u64) -> Jid {
    Jid::new(format!("{number:032x}")).unwrap()
}

/// The payload of a job: distinct for each.
fn payload_of(jid: &Jid, bytes: u64) -> Payload {
    let text = jid.to_string().repeat(1 + bytes as usize / 32);
    text[..bytes as usize].into()
}

fn put(backend: &StoreBackend, numbers: std::ops::Range<u64>, bytes: u64) {
    let (mail, klass) = (QueueName::new("mail").unwrap(), Klass::new("welcome").unwrap());
    let put = |number| {
        let put = Put::new(mail.clone(), jid(number), klass.clone(), payload_of(&jid(number), bytes));
        let later = bytes == PAYLOAD_BYTES && number.is_multiple_of(LATER);
        Put { delay: if later { Seconds::from(30 * 86_400) } else { Seconds::ZERO }, ..put }.into()
    };
    let answers = block_on(backend.execute(numbers.map(put).collect())).unwrap();
    assert!(answers.iter().all(Result::is_ok));
}

fn pop(backend: &StoreBackend, count: i64) -> Vec<Popped> {
    let pop = Pop::new(QueueName::new("mail").unwrap(), WorkerName::new("w1").unwrap());
    match run(backend, Pop { count: Count::new(count).unwrap(), ..pop }) {
        Reply::Pop(popped) => popped.jobs,
        other => panic!("{other:?}"),
    }
}

fn get(backend: &StoreBackend, number: u64) -> Result<Job, Refusal> {
    match block_on(backend.execute(vec![Get { jid: jid(number) }.into()])).unwrap().remove(0)? {
        Reply::Get(Some(job)) => Ok(*job),
        other => panic!("{other:?}"),
    }
}

fn flip(file: &Path, byte: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[byte] ^= 0x10;
    std::fs::write(file, bytes).unwrap();
}

fn files(directory: &Path) -> impl Iterator<Item = (String, u64)> {
    let files = std::fs::read_dir(directory).unwrap();
    // A file may be removed after it was listed.
    files.filter_map(|file| {
        let file = file.unwrap();
        Some((file.file_name().into_string().unwrap(), file.metadata().ok()?.len()))
    })
}

fn names(directory: &Path) -> Vec<String> {
    files(directory).map(|(name, _)| name).collect()
}

fn bytes_in(directory: &Path) -> u64 {
    files(directory).map(|(_, bytes)| bytes).sum()
}

/// The names of the payload files, in order, and their length together.
fn payload_files(directory: &Path) -> (Vec<String>, u64) {
    let mut found: Vec<(String, u64)> =
        files(directory).filter(|(name, _)| name.starts_with("payloads-")).collect();
    found.sort();
    (found.iter().map(|(name, _)| name.clone()).collect(), found.iter().map(|(_, bytes)| bytes).sum())
}

/// The path and length of a payload file.
fn payload_file(scratch: &Scratch, index: usize) -> (PathBuf, u64) {
    let path = scratch.data().join(&payload_files(&scratch.data()).0[index]);
    let bytes = std::fs::metadata(&path).unwrap().len();
    (path, bytes)
}
