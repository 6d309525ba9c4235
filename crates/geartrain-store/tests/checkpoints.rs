//! Checkpoint install by a background task: what it means for concurrent commands, for shutdown and backup,
//! and for failures.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use geartrain_core::*;
use geartrain_store::wal::{Disk, DiskFile, Join, Task, WalOptions};
use geartrain_store::{Lockstep, StoreBackend, StoreOptions, check};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use pollster::block_on;

use crate::scratch::Scratch;

/// No segment is ever full, and no background task makes one.
const LONG: WalOptions = WalOptions { segment_bytes: 16 << 20, spare_segments: 0 };
/// Longer than one reservation, so that all segments have this length and are recycled.
const RECYCLED: WalOptions = WalOptions { segment_bytes: 5 << 20, spare_segments: 2 };

#[test]
fn only_the_next_checkpoint_waits_for_an_install() {
    let disk = HoldingDisk::new();
    let mut store = lockstep(&disk, LONG);
    let jobs = put_until(&mut store, 0, || disk.is_holding());
    for number in jobs..jobs + 10 {
        put(&mut store, number).unwrap();
        assert!(disk.has("checkpoint.new") && !disk.has("checkpoint-"));
    }
    put_until(&mut store, jobs + 10, || disk.has("checkpoint-"));
    // The first install was waited for, because the next checkpoint has begun.
    assert!(disk.has("checkpoint.new"));
    assert_eq!(store.recoveries(), 0);
}

#[test]
fn shutdown_waits_for_an_install() {
    let disk = HoldingDisk::new();
    let backend = open(&disk);
    let jobs = put_until(&mut &backend, 0, || disk.is_holding());
    assert!(!disk.has("checkpoint-"));
    drop(backend);
    assert!(disk.has("checkpoint-") && !disk.has("checkpoint.new"));
    assert_eq!(length(&open(&disk)), jobs);
}

#[test]
fn a_failed_install_fails_the_next_command() {
    let mut failures = 0;
    for operations in 0..12 {
        let disk = HoldingDisk::new();
        let mut store = lockstep(&disk, LONG);
        let jobs = put_until(&mut store, 0, || disk.is_holding());
        disk.disk.fail_after(operations);
        disk.run_held();
        disk.disk.heal();
        let failed = put(&mut store, jobs).is_err();
        failures += u64::from(failed);
        let next = put_until(&mut store, jobs + 1, || disk.has("checkpoint-"));
        assert_eq!(store.recoveries(), u64::from(failed), "failing after {operations}");
        drop(store);
        // The put got an error, and nothing of it was written.
        let kept = length(&open(&HoldingDisk::over(disk.disk.crash())));
        assert_eq!(kept, next - u64::from(failed), "failing after {operations}");
    }
    assert_eq!(failures, 4, "a write, a sync, a name, and the directory's sync");
}

#[test]
fn on_a_full_disk_the_checkpoint_is_abandoned_and_the_log_goes_on() {
    let disk = HoldingDisk::new();
    let mut store = lockstep(&disk, LONG);
    let jobs = put_until(&mut store, 0, || disk.is_holding());
    disk.disk.set_full(true);
    disk.run_held();
    disk.disk.heal();
    put(&mut store, jobs).unwrap();
    assert!(!disk.has("checkpoint"));
    let jobs = put_until(&mut store, jobs + 1, || disk.is_holding());
    disk.run_held();
    assert!(disk.has("checkpoint-"));
    assert_eq!(store.recoveries(), 0);
    drop(store);
    assert_eq!(length(&open(&HoldingDisk::over(disk.disk.crash()))), jobs);
}

const FIRST: &str = "log-00000000000000000001";

/// A store in which a checkpoint is being installed that releases the first segment. The next one is not due
/// before 14 more jobs were put and cancelled.
fn about_to_release(disk: &HoldingDisk) -> Lockstep {
    let options = StoreOptions { checkpoint_bytes_min: 8 << 20, ..options(RECYCLED) };
    let mut store = Lockstep::open_on(Arc::new(disk.clone()), options, ManualClock::new()).unwrap();
    (0..18).for_each(|number| put_and_cancel(&mut store, number));
    assert!(disk.has("checkpoint.new") && disk.has(FIRST));
    store
}

fn put_and_cancel(store: &mut Lockstep, number: u64) {
    store.execute_one(job(number, 500_000)).unwrap().unwrap();
    store.execute_one(Cancel::new(vec![jid(number)]).into()).unwrap().unwrap();
}

#[test]
fn a_reservation_waits_for_an_install_if_there_is_no_other_space() {
    let disk = HoldingDisk::new();
    let mut store = about_to_release(&disk);
    // Enough for the rest of the checkpoint, but not for a segment.
    disk.disk.set_bytes_max(disk.disk.bytes() + (1 << 20));
    (18..32).for_each(|number| put_and_cancel(&mut store, number));
    assert!(disk.has("checkpoint-") && !disk.has("checkpoint.new") && !disk.has(FIRST));
}

#[test]
fn a_failed_install_fails_the_reservation_and_the_store_recovers() {
    let disk = HoldingDisk::new();
    let mut store = about_to_release(&disk);
    disk.disk.fail_after(0);
    disk.run_held();
    disk.disk.heal();
    // Longer than a segment, so that it needs a reservation before anything is written, and the disk is full.
    disk.disk.set_bytes_max(disk.disk.bytes());
    store.execute_one(job(18, 6_000_000)).unwrap_err();
    disk.disk.set_bytes_max(u64::MAX);
    put_and_cancel(&mut store, 19);
    assert_eq!(store.recoveries(), 1);
}

#[test]
fn an_install_is_postponed_during_a_backup() {
    let scratch = Scratch::new("checkpoints");
    let out = scratch.fresh();
    let disk = HoldingDisk::new();
    let backend = open(&disk);
    let jobs = put_until(&mut &backend, 0, || disk.is_holding());
    let (reached, go_on) = disk.stop_at_opening_a_segment();
    std::thread::scope(|scope| {
        // Dropped by a panic too, so that the backup does not wait forever.
        let go_on = go_on;
        let copying = scope.spawn(|| block_on(backend.backup(&out)));
        reached.recv().unwrap();
        disk.run_held();
        // The install is not retried for each of these.
        (jobs..jobs + 5).for_each(|number| put(&mut &backend, number).unwrap());
        assert!(disk.has("checkpoint.new") && !disk.has("checkpoint-") && !disk.is_holding());
        go_on.send(()).unwrap();
        copying.join().unwrap().unwrap();
    });
    put(&mut &backend, jobs + 5).unwrap();
    disk.run_held();
    assert!(disk.has("checkpoint-"));
    assert_eq!(check(&out).unwrap().memory.waiting, jobs + 5);
}

/// Checkpoints so long that they are written in parts, and recycled segments, while the log goes on; with a
/// fault at each operation in turn.
#[test]
fn background_tasks_lose_nothing_on_a_failing_disk() {
    const PAYLOAD_BYTES: usize = 400_000;
    const JOBS: u64 = 60;
    const ALIVE: u64 = 6;
    let (mut longest, mut recycled, mut damaged) = (0, 0, 0);
    for seed in 0..300 {
        let disk = SimDisk::new(seed);
        let options = StoreOptions { checkpoint_bytes_min: 4 << 20, ..options(RECYCLED) };
        let open =
            |disk: &SimDisk| Lockstep::open_on(Arc::new(disk.clone()), options.clone(), ManualClock::new());
        let mut store = open(&disk).unwrap();
        match seed % 3 {
            0 => disk.cut_power_after(seed),
            1 => disk.fail_after(seed),
            _ => {}
        }
        let mut kept = BTreeSet::new();
        let jobs = if seed % 3 == 2 { seed % JOBS } else { JOBS };
        for number in 0..jobs {
            if matches!(store.execute_one(job(number, PAYLOAD_BYTES)), Ok(Ok(_))) {
                kept.insert(number);
            }
            // If this fails, it is unknown whether the job is there.
            if number >= ALIVE && kept.remove(&(number - ALIVE)) {
                let _ = store.execute_one(Cancel::new(vec![jid(number - ALIVE)]).into());
            }
        }
        let files = disk.list().unwrap_or_default();
        let lengths = files.iter().filter(|(name, _)| name.starts_with("checkpoint-"));
        longest = longest.max(lengths.map(|(_, bytes)| *bytes).max().unwrap_or(0));
        recycled += u64::from(files.iter().any(|(name, _)| name.starts_with("spare-")));
        let disk = if seed % 3 == 2 { disk.kill() } else { disk.crash() };
        disk.heal();
        // Wherever the fault was, the newest checkpoint can be lost.
        let checkpoints = files_named(&disk, "checkpoint-");
        if let Some((newest, bytes)) = checkpoints.last().filter(|_| seed % 2 == 0) {
            disk.flip(newest, seed * 7_919 % bytes);
            damaged += 1;
        }
        let mut store = open(&disk).unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
        for number in kept {
            match store.execute_one(Get { jid: jid(number) }.into()) {
                Ok(Ok(Reply::Get(Some(job)))) => assert_eq!(job.payload.bytes().len(), PAYLOAD_BYTES),
                other => panic!("seed {seed}: job {number} is lost: {other:?}"),
            }
        }
    }
    // Otherwise this would cover nothing.
    assert!(longest > 2 << 20 && recycled > 50, "the longest had {longest} bytes, {recycled} had spares");
    assert!(damaged > 50, "{damaged} were damaged");
}

/// The files with this prefix and their lengths, in the order of their names.
fn files_named(disk: &SimDisk, prefix: &str) -> Vec<(String, u64)> {
    let mut files = disk.list().unwrap();
    files.retain(|(name, _)| name.starts_with(prefix));
    files
}

/// Executes one command.
trait Execute {
    fn execute_one(&mut self, call: Call) -> Result<Answer, String>;
}

impl Execute for Lockstep {
    fn execute_one(&mut self, call: Call) -> Result<Answer, String> {
        let sent = self.send(vec![call]);
        loop {
            self.engine_step();
            self.writer_step(usize::MAX);
            if let Some(answers) = sent.answers() {
                return answers.map(|mut answers| answers.remove(0)).map_err(|error| error.to_string());
            }
        }
    }
}

impl Execute for &StoreBackend {
    fn execute_one(&mut self, call: Call) -> Result<Answer, String> {
        let answers = block_on(self.execute(vec![call]));
        answers.map(|mut answers| answers.remove(0)).map_err(|error| error.to_string())
    }
}

fn options(wal: WalOptions) -> StoreOptions {
    // All payloads go through the log, so that a few of them make it long.
    let own_file_bytes_min = usize::MAX;
    StoreOptions { wal, checkpoint_bytes_min: 80 << 10, own_file_bytes_min, ..StoreOptions::default() }
}

fn lockstep(disk: &HoldingDisk, wal: WalOptions) -> Lockstep {
    Lockstep::open_on(Arc::new(disk.clone()), options(wal), ManualClock::new()).unwrap()
}

fn open(disk: &HoldingDisk) -> StoreBackend {
    StoreBackend::open_on(Arc::new(disk.clone()), options(LONG), ManualClock::new()).unwrap()
}

fn jid(number: u64) -> Jid {
    Jid::new(format!("j{number}")).unwrap()
}

fn job(number: u64, bytes: usize) -> Call {
    let queue = QueueName::new("mail").unwrap();
    Put::new(queue, jid(number), Klass::new("welcome").unwrap(), vec![b'x'; bytes]).into()
}

fn put(store: &mut impl Execute, number: u64) -> Result<(), String> {
    store.execute_one(job(number, 10)).map(|answer| assert_eq!(answer, Ok(Reply::Put(PutReply::Created))))
}

/// Puts jobs from a number on, and returns the next number.
fn put_until(store: &mut impl Execute, first: u64, mut is_enough: impl FnMut() -> bool) -> u64 {
    for number in first..first + 200 {
        put(store, number).unwrap();
        if is_enough() {
            return number + 1;
        }
    }
    panic!("it never comes to that");
}

fn length(mut backend: &StoreBackend) -> u64 {
    match backend.execute_one(Length { queue: QueueName::new("mail").unwrap() }.into()) {
        Ok(Ok(Reply::Length(length))) => length,
        other => panic!("{other:?}"),
    }
}

/// A disk that runs a background task only when told to, or when it is joined.
#[derive(Clone)]
struct HoldingDisk {
    disk: SimDisk,
    held: Arc<Mutex<Vec<Slot>>>,
    /// A thread that opens a segment reports that here, and waits until it may go on.
    stop: Arc<Mutex<Option<Stop>>>,
}

type Slot = Arc<Mutex<Option<Task>>>;
type Stop = (Sender<()>, Receiver<()>);

fn run(slot: &Slot) {
    let work = slot.lock().unwrap().take();
    work.into_iter().for_each(|work| work());
}

impl HoldingDisk {
    fn new() -> HoldingDisk {
        HoldingDisk::over(SimDisk::new(1))
    }

    fn over(disk: SimDisk) -> HoldingDisk {
        HoldingDisk { disk, held: Arc::default(), stop: Arc::default() }
    }

    fn is_holding(&self) -> bool {
        self.held.lock().unwrap().iter().any(|slot| slot.lock().unwrap().is_some())
    }

    fn run_held(&self) {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        held.iter().for_each(run);
    }

    /// Whether a file with this prefix exists.
    fn has(&self, name: &str) -> bool {
        self.disk.names().iter().any(|other| other.starts_with(name))
    }

    fn stop_at_opening_a_segment(&self) -> (Receiver<()>, Sender<()>) {
        let ((reached, was_reached), (go_on, may_go_on)) = (channel(), channel());
        *self.stop.lock().unwrap() = Some((reached, may_go_on));
        (was_reached, go_on)
    }
}

impl Disk for HoldingDisk {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.disk.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        if name.starts_with("log-")
            && let Some((reached, may_go_on)) = self.stop.lock().unwrap().take()
        {
            reached.send(()).unwrap();
            may_go_on.recv().unwrap();
        }
        self.disk.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.disk.sync_directory()
    }

    fn spawn(&self, work: Task) -> Join {
        let slot: Slot = Arc::new(Mutex::new(Some(work)));
        self.held.lock().unwrap().push(slot.clone());
        Box::new(move || run(&slot))
    }
}

/// A store in which a checkpoint install is held back, and the number of the next job.
fn held_install(disk: &HoldingDisk, checkpoint_bytes_min: u64) -> (Lockstep, u64) {
    let options = StoreOptions { checkpoint_bytes_min, ..options(LONG) };
    let mut store = Lockstep::open_on(Arc::new(disk.clone()), options, ManualClock::new()).unwrap();
    let mut number = 0;
    while !disk.is_holding() {
        put_and_cancel(&mut store, number);
        number += 1;
    }
    assert!(!disk.has("checkpoint-"));
    (store, number)
}

#[test]
fn a_log_that_grows_too_much_waits_for_the_install_and_reads_do_not() {
    let disk = HoldingDisk::new();
    let (mut store, number) = held_install(&disk, 6 << 20);
    store.execute_one(job(number, 5 << 20)).unwrap().unwrap();
    store.execute_one(Get { jid: jid(0) }.into()).unwrap().unwrap();
    assert!(!disk.has("checkpoint-"), "the read waited");
    store.execute_one(job(number + 1, 10)).unwrap().unwrap();
    assert!(disk.has("checkpoint-"), "the log grew on and on");
}

#[test]
fn a_batch_longer_than_a_segment_does_not_wait_for_the_install_if_there_is_space() {
    let disk = HoldingDisk::new();
    let (mut store, number) = held_install(&disk, 24 << 20);
    store.execute_one(job(number, 17 << 20)).unwrap().unwrap();
    assert!(!disk.has("checkpoint-"), "it waited");
}
