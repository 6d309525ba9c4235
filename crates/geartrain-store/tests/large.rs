//! Large payloads are in files of their own before they are committed, and these files are removed with their
//! jobs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use geartrain_core::SystemClock;
use geartrain_core::*;
use geartrain_store::wal::{Disk, WalOptions};
use geartrain_store::{Lockstep, OpenError, StoreBackend, StoreOptions, SyncMode, check, salvage};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use geartrain_testkit::scaled;
use pollster::block_on;

use crate::scratch::Scratch;

const LARGE: usize = 20_000;

/// Segments longer than one reservation, as by default.
const LONG: WalOptions = WalOptions { segment_bytes: 5 << 20, spare_segments: 3 };

fn options() -> StoreOptions {
    StoreOptions {
        wal: WalOptions { segment_bytes: 64 << 10, spare_segments: 3 },
        own_file_bytes_min: LARGE,
        ..StoreOptions::default()
    }
}

#[test]
fn a_large_payload_is_in_a_file_of_its_own_and_not_in_the_log() {
    for sync in [SyncMode::Always, SyncMode::Never] {
        let scratch = Scratch::new("large");
        let options = StoreOptions { sync, ..options() };
        let backend = StoreBackend::open(&scratch.data(), options.clone(), Arc::new(SystemClock)).unwrap();
        put(&backend, 0, LARGE);
        put(&backend, 1, LARGE - 1);
        assert_eq!(payload_files(&scratch.data()), [LARGE as u64 + 24]);
        assert_eq!(get(&backend, 0), payload_of(0, LARGE));
        drop(backend);
        assert_eq!(check(&scratch.data()).unwrap().payload_files, 1);
        let backend = StoreBackend::open(&scratch.data(), options, Arc::new(SystemClock)).unwrap();
        assert_eq!(get(&backend, 0), payload_of(0, LARGE));
        assert_eq!(get(&backend, 1), payload_of(1, LARGE - 1));
        let popped = pop(&backend);
        assert_eq!(popped.payload, payload_of(0, LARGE));
        // A new payload replaces the old one, and its file the old file.
        let heartbeat = Heartbeat {
            jid: jid(0),
            holder: Holder::Token(popped.lock.token),
            payload: Some(payload_of(9, LARGE + 1)),
        };
        run(&backend, heartbeat);
        until(&backend, || payload_files(&scratch.data()) == [LARGE as u64 + 25]);
        assert_eq!(get(&backend, 0), payload_of(9, LARGE + 1));
    }
}

/// The engine cannot read the files: the store compares payloads after the command, and the caller names the
/// jobs that match in a second one. A requeue leaves the file where it is.
#[test]
fn filters_read_large_payloads_and_bulk_changes_keep_their_files() {
    let scratch = Scratch::new("large");
    let open = || StoreBackend::open(&scratch.data(), options(), Arc::new(SystemClock)).unwrap();
    let backend = open();
    for number in 0..4 {
        let text = format!(r#"{{"even":{},"filler":"{}"}}"#, number % 2 == 0, "x".repeat(LARGE));
        run(&backend, Put::new(queue(), jid(number), Klass::new("welcome").unwrap(), text));
    }
    assert_eq!(payload_files(&scratch.data()).len(), 4);
    let filter: Filter = "state=waiting args.even=true".parse().unwrap();
    let Reply::Select(page) = run(&backend, Select::new(filter.clone())) else { panic!("a page") };
    assert_eq!(page.jobs.iter().map(|job| job.jid.clone()).collect::<Vec<_>>(), [jid(0), jid(2)]);
    let requeue = BulkAct::Requeue { queue: Some(QueueName::new("other").unwrap()) };
    let act = Act::new(filter, requeue);
    let acted = |act: Act| match run(&backend, act) {
        Reply::Act(reply) => *reply,
        other => panic!("{other:?}"),
    };
    let reply = acted(act.clone());
    assert_eq!((reply.acted, reply.again.clone()), (0, vec![jid(0), jid(2)]));
    let popped = pop(&backend);
    assert_eq!(popped.jid, jid(0));
    // One of them is not selected any more.
    let reply = acted(Act { only: reply.again, ..act });
    assert_eq!((reply.acted, reply.again.len()), (1, 0));
    drop(backend);
    let backend = open();
    assert_eq!(payload_files(&scratch.data()).len(), 4);
    let Reply::Get(Some(moved)) = run(&backend, Get { jid: jid(2) }) else { panic!("it is there") };
    assert_eq!(moved.queue, Some(QueueName::new("other").unwrap()));
    assert!(moved.payload.text().unwrap().starts_with(r#"{"even":true,"#));
}

#[test]
fn the_file_is_removed_with_the_job_without_a_checkpoint() {
    let scratch = Scratch::new("large");
    let options = StoreOptions { checkpoint_bytes_min: u64::MAX, ..options() };
    let backend = StoreBackend::open(&scratch.data(), options.clone(), Arc::new(SystemClock)).unwrap();
    (0..10).for_each(|number| put(&backend, number, LARGE));
    assert_eq!(payload_files(&scratch.data()).len(), 10);
    run(&backend, Cancel::new((0..9).map(jid).collect()));
    until(&backend, || payload_files(&scratch.data()).len() == 1);
    drop(backend);
    let backend = StoreBackend::open(&scratch.data(), options, Arc::new(SystemClock)).unwrap();
    assert_eq!(get(&backend, 9), payload_of(9, LARGE));
}

#[test]
fn a_file_that_no_job_refers_to_is_removed_at_once_or_when_the_directory_is_opened() {
    let scratch = Scratch::new("large");
    let open = || StoreBackend::open(&scratch.data(), options(), Arc::new(SystemClock)).unwrap();
    let backend = open();
    put(&backend, 0, LARGE);
    // Refused: the job exists. Joined: so does the payload of the job that stays.
    let again = Put { existing: Existing::Require, ..put_of(7, LARGE) };
    let answers = block_on(backend.execute(vec![again.into()])).unwrap();
    assert!(matches!(answers[0], Err(Refusal::NoSuchJob { .. })));
    run(&backend, Put { existing: Existing::Keep, ..put_of(0, LARGE) });
    until(&backend, || payload_files(&scratch.data()).len() == 1);
    assert_eq!(get(&backend, 0), payload_of(0, LARGE));
    drop(backend);
    // As a process leaves it that was killed before it committed.
    let orphan = scratch.data().join(format!("payloads-{:016x}", 77_u64 << 32 | SpillLocation::OWN_FILE));
    std::fs::write(&orphan, "half").unwrap();
    let backend = open();
    assert!(!orphan.exists());
    assert_eq!(get(&backend, 0), payload_of(0, LARGE));
}

#[test]
fn a_missing_or_damaged_file_is_named_and_salvage_saves_the_other_jobs() {
    for damage in ["missing", "short", "flipped"] {
        let scratch = Scratch::new("large");
        let backend = StoreBackend::open(&scratch.data(), options(), Arc::new(SystemClock)).unwrap();
        put(&backend, 0, LARGE);
        put(&backend, 1, LARGE + 1);
        drop(backend);
        let (name, _) = files(&scratch.data()).find(|(_, bytes)| *bytes == LARGE as u64 + 24).unwrap();
        let path = scratch.data().join(&name);
        let mut bytes = std::fs::read(&path).unwrap();
        match damage {
            "missing" => std::fs::remove_file(&path).unwrap(),
            "short" => std::fs::write(&path, &bytes[..LARGE]).unwrap(),
            _ => {
                bytes[LARGE / 2] ^= 1;
                std::fs::write(&path, &bytes).unwrap();
            }
        }
        let found = check(&scratch.data()).unwrap_err();
        assert!(matches!(&found, OpenError::Payload { why } if why.contains(&name)), "{damage}: {found}");
        assert!(found.is_damage());
        let saved = salvage(&scratch.data(), &scratch.path().join("saved")).unwrap();
        assert_eq!(saved.jobs.len(), 1, "{damage}: {saved:?}");
        let saved =
            StoreBackend::open(&scratch.path().join("saved"), options(), Arc::new(SystemClock)).unwrap();
        assert_eq!(get(&saved, 1), payload_of(1, LARGE + 1));
    }
}

#[test]
fn a_backup_has_the_files_that_its_log_refers_to_during_puts_and_cancellations() {
    let scratch = Scratch::new("large");
    let backend = StoreBackend::open(&scratch.data(), options(), Arc::new(SystemClock)).unwrap();
    (0..5).for_each(|number| put(&backend, number, LARGE));
    for round in 0..scaled(3, 20) {
        let out = scratch.path().join(format!("copy-{round}"));
        std::thread::scope(|scope| {
            let copy = scope.spawn(|| block_on(backend.backup(&out)).unwrap());
            for number in 100..130 {
                put(&backend, number, LARGE);
                run(&backend, Cancel::new(vec![jid(number)]));
            }
            copy.join().unwrap();
        });
        check(&out).unwrap();
        let copy = StoreBackend::open(&out, options(), Arc::new(SystemClock)).unwrap();
        (0..5).for_each(|number| assert_eq!(get(&copy, number), payload_of(number, LARGE)));
    }
    // Files that could not be removed during the backup are removed now.
    until(&backend, || payload_files(&scratch.data()).len() == 5);
}

/// Put, cancelled and put again, with a power cut at each operation in turn: a job that exists has its
/// payload.
#[test]
fn no_power_cut_leaves_a_job_without_its_file() {
    let mut kept = [0, 0];
    for (seed, after) in (0..scaled(3, 30)).flat_map(|seed| (0..60).map(move |after| (seed, after))) {
        let disk = SimDisk::new(seed);
        let mut store = lockstep(&disk);
        disk.cut_power_after(after);
        let mut acknowledged = None;
        for step in 0..6 {
            let number = step / 2;
            let command: Command = match step % 2 {
                0 => put_of(number, LARGE).into(),
                _ => Cancel::new(vec![jid(number)]).into(),
            };
            let sent = store.send(vec![command.into()]);
            store.engine_step();
            store.writer_step(usize::MAX);
            match sent.answers() {
                Some(Ok(answers)) => {
                    answers[0].as_ref().unwrap();
                    acknowledged = Some((number, step % 2 == 0));
                }
                _ => break,
            }
        }
        let disk = disk.crash();
        disk.heal();
        let mut store = lockstep(&disk);
        let sent = store.send(vec![GetMany { jids: (0..3).map(jid).collect() }.into()]);
        store.engine_step();
        store.writer_step(usize::MAX);
        let Ok(Reply::GetMany(jobs)) = &sent.answers().unwrap().unwrap()[0] else { panic!("they are there") };
        for job in jobs {
            assert_eq!(job.payload.bytes().len(), LARGE, "seed {seed} after {after}");
        }
        if let Some((number, true)) = acknowledged {
            let is_there = jobs.iter().any(|job| job.jid == jid(number));
            // The next step cancels it, and may be durable without being acknowledged.
            kept[usize::from(is_there)] += 1;
        }
        // No orphan survives an opening.
        let own = disk.names().iter().filter(|name| name.starts_with("payloads-")).count();
        assert_eq!(own, jobs.len(), "seed {seed} after {after}");
    }
    assert!(kept[1] > 10, "{kept:?}");
}

/// The put's file is written, and then the log fails: the store recovers while another batch waits whose file
/// is written too.
#[test]
fn the_file_of_a_queued_batch_survives_a_recovery() {
    let disk = SimDisk::new(1);
    let mut store = lockstep(&disk);
    let first = store.send(vec![put_of(0, 100).into()]);
    store.engine_step();
    disk.fail_after(0);
    store.writer_step(usize::MAX);
    assert!(first.answers().unwrap().is_err());
    let second = store.send(vec![put_of(1, LARGE).into()]);
    store.engine_step();
    store.writer_step(usize::MAX);
    assert_eq!(store.recoveries(), 1);
    second.answers().unwrap().unwrap()[0].as_ref().unwrap();
    let sent = store.send(vec![Get { jid: jid(1) }.into()]);
    store.engine_step();
    store.writer_step(usize::MAX);
    let Ok(Reply::Get(Some(job))) = &sent.answers().unwrap().unwrap()[0] else { panic!("it is there") };
    assert_eq!(job.payload, payload_of(1, LARGE));
}

/// Puts until the disk is full, frees everything by single commands, and does so again.
#[test]
fn a_full_disk_is_emptied_by_pops_completions_and_cancellations_and_takes_jobs_again() {
    for payload_bytes in [8_000, LARGE] {
        let (disk, clock) = (SimDisk::new(7), ManualClock::new());
        let options = StoreOptions { wal: LONG, checkpoint_bytes_min: 1 << 20, ..options() };
        let open = |disk: &SimDisk| {
            StoreBackend::open_on(Arc::new(disk.clone()), options.clone(), clock.clone()).unwrap()
        };
        let backend = open(&disk);
        run(&backend, SetConfig::new("jobs-history-count", "0"));
        disk.set_bytes_max(40 << 20);
        let mut fitted = Vec::new();
        for round in 0..scaled(3, 10) {
            let mut jobs = Vec::new();
            let error = loop {
                let number = round * 100_000 + jobs.len() as u64;
                match block_on(backend.execute(vec![put_of(number, payload_bytes).into()])) {
                    Ok(answers) => answers[0].as_ref().map(|_| jobs.push(number)).unwrap(),
                    Err(error) => break error,
                }
            };
            let why = std::error::Error::source(&error).unwrap().to_string();
            assert!(why.starts_with("the disk is full: nothing was changed"), "{why}");
            assert!(jobs.len() * payload_bytes > 4 << 20, "{} of {payload_bytes} fitted", jobs.len());
            fitted.push(jobs.len());
            // A third of them is popped and completed, the others are cancelled.
            for number in &jobs {
                if number % 3 == 0 {
                    let popped = pop(&backend);
                    let holder = Holder::Token(popped.lock.token);
                    run(
                        &backend,
                        Heartbeat { jid: popped.jid.clone(), holder: holder.clone(), payload: None },
                    );
                    run(&backend, Complete::new(popped.jid, holder));
                }
            }
            let left = jobs_in(&backend, jobs.len());
            left.into_iter().for_each(|jid| drop(run(&backend, Cancel::new(vec![jid]))));
            assert_eq!(jobs_in(&backend, 1), []);
            // The disk is less full, so that there is space again.
            put(&backend, round * 100_000 + 99_999, 300);
            run(&backend, Cancel::new(vec![jid(round * 100_000 + 99_999)]));
        }
        drop(backend);
        let backend = open(&disk.crash());
        assert_eq!(jobs_in(&backend, 1), []);
        let (least, most) = (fitted.iter().min().unwrap(), fitted.iter().max().unwrap());
        assert!(most < &(2 * least), "space was lost: {fitted:?} of {payload_bytes} bytes fitted");
    }
}

/// Another program fills the disk.
#[test]
fn cancelling_jobs_frees_space_on_a_disk_that_another_program_filled() {
    let disk = SimDisk::new(9);
    let options = StoreOptions { wal: LONG, own_file_bytes_min: usize::MAX, ..options() };
    let backend = StoreBackend::open_on(Arc::new(disk.clone()), options, ManualClock::new()).unwrap();
    // Until there is more than one segment, and the spares to be held back exist.
    (0..400).for_each(|number| put(&backend, number, LARGE));
    disk.set_bytes_max(disk.bytes());
    let puts = (400..5_000).map(|number| block_on(backend.execute(vec![put_of(number, LARGE).into()])));
    let refused = puts.take_while(Result::is_ok).count();
    assert!(refused < 1_000, "it is never full");
    let popped = pop(&backend);
    run(&backend, Complete::new(popped.jid, Holder::Token(popped.lock.token)));
    run(&backend, Cancel::new(jobs_in(&backend, 5_000)));
    until(&backend, || block_on(backend.execute(vec![put_of(9_999, LARGE).into()])).is_ok());
    assert_eq!(jobs_in(&backend, 9), [jid(9_999)]);
}

#[test]
fn a_large_put_that_finds_the_disk_full_leaves_nothing_behind() {
    let disk = SimDisk::new(3);
    let backend = StoreBackend::open_on(Arc::new(disk.clone()), options(), ManualClock::new()).unwrap();
    put(&backend, 0, LARGE);
    disk.set_bytes_max(disk.bytes() + 10_000);
    let before = disk.list().unwrap();
    let error = block_on(backend.execute(vec![put_of(1, LARGE).into()])).unwrap_err();
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.starts_with("the disk is full: nothing was changed"), "{why}");
    assert_eq!(disk.list().unwrap(), before);
    assert_eq!(jobs_in(&backend, 9), [jid(0)]);
}

/// The buffer that a payload arrived in is freed: it may be much larger.
#[test]
fn a_payload_does_not_keep_its_receive_buffer() {
    struct Buffer(Vec<u8>, Arc<AtomicU64>);
    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Buffer {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let scratch = Scratch::new("large");
    let stores = [
        StoreBackend::in_memory(Arc::new(SystemClock)).unwrap(),
        StoreBackend::open(&scratch.data(), options(), Arc::new(SystemClock)).unwrap(),
    ];
    for backend in stores {
        for bytes in [100, 4_097, 10_000, LARGE] {
            let freed = Arc::new(AtomicU64::new(0));
            let buffer = Bytes::from_owner(Buffer(vec![b'x'; 2 * bytes], freed.clone()));
            let payload = Payload::from(buffer.slice(..bytes));
            drop(buffer);
            run(&backend, Put { payload, ..put_of(bytes as u64, 0) });
            assert_eq!(freed.load(Ordering::SeqCst), 1, "{bytes} bytes hold the buffer that they came in");
            assert_eq!(get(&backend, bytes as u64).bytes(), vec![b'x'; bytes]);
        }
    }
}

#[test]
fn under_a_memory_limit_payloads_are_spilled_earlier() {
    let scratch = Scratch::new("large");
    let options = StoreOptions { memory_limit: Some(4 << 20), own_file_bytes_min: usize::MAX, ..options() };
    let backend = StoreBackend::open(&scratch.data(), options, Arc::new(SystemClock)).unwrap();
    (0..200).for_each(|number| put(&backend, number, LARGE));
    until(&backend, || backend.payload_bytes_in_memory() <= 1 << 20);
    (0..200).for_each(|number| assert_eq!(get(&backend, number), payload_of(number, LARGE)));
}

fn lockstep(disk: &SimDisk) -> Lockstep {
    Lockstep::open_on(Arc::new(disk.clone()), options(), ManualClock::new()).unwrap()
}

/// Sends commands until a condition holds.
fn until(backend: &StoreBackend, condition: impl Fn() -> bool) {
    for _ in 0..1_000_000 {
        if condition() {
            return;
        }
        run(backend, Length { queue: queue() });
    }
    panic!("that never comes");
}

fn run(backend: &StoreBackend, command: impl Into<Command>) -> Reply {
    block_on(backend.execute(vec![Call::from(command)])).unwrap().remove(0).unwrap()
}

fn jid(number: u64) -> Jid {
    Jid::new(format!("job-{number}")).unwrap()
}

fn queue() -> QueueName {
    QueueName::new("mail").unwrap()
}

/// The payload of a job: distinct for each.
fn payload_of(number: u64, bytes: usize) -> Payload {
    let text = format!("{number:08}").repeat(1 + bytes / 8);
    text[..bytes].into()
}

fn put_of(number: u64, bytes: usize) -> Put {
    Put::new(queue(), jid(number), Klass::new("welcome").unwrap(), payload_of(number, bytes))
}

fn put(backend: &StoreBackend, number: u64, bytes: usize) {
    assert_eq!(run(backend, put_of(number, bytes)), Reply::Put(PutReply::Created));
}

fn pop(backend: &StoreBackend) -> Popped {
    match run(backend, Pop::new(queue(), WorkerName::new("w1").unwrap())) {
        Reply::Pop(mut popped) => popped.jobs.remove(0),
        other => panic!("{other:?}"),
    }
}

fn get(backend: &StoreBackend, number: u64) -> Payload {
    match run(backend, Get { jid: jid(number) }) {
        Reply::Get(Some(job)) => job.payload,
        other => panic!("{other:?}"),
    }
}

/// The waiting jobs, up to a count.
fn jobs_in(backend: &StoreBackend, count: usize) -> Vec<Jid> {
    match run(backend, Peek { queue: queue(), count: Count::new(count as i64).unwrap() }) {
        Reply::Peek(jobs) => jobs.into_iter().map(|job| job.jid).collect(),
        other => panic!("{other:?}"),
    }
}

fn files(directory: &Path) -> impl Iterator<Item = (String, u64)> {
    let files = std::fs::read_dir(directory).unwrap();
    // A file may be removed after it was listed.
    files.filter_map(|file| {
        let file = file.unwrap();
        Some((file.file_name().into_string().unwrap(), file.metadata().ok()?.len()))
    })
}

/// The lengths of the payload files.
fn payload_files(directory: &Path) -> Vec<u64> {
    files(directory).filter(|(name, _)| name.starts_with("payloads-")).map(|(_, bytes)| bytes).collect()
}
