//! A checkpoint is written and made to count beside everything else. What that means for those who ask meanwhile, for whoever stops the store or copies it,
//! and when it fails.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use geartrain_core::*;
use geartrain_store::log::{Disk, DiskFile, Join, LogOptions, Work};
use geartrain_store::{Lockstep, StoreBackend, StoreOptions, check};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use pollster::block_on;

/// No segment is ever full, and none is made aside.
const LONG: LogOptions = LogOptions { segment_bytes: 16 << 20, spare_segments: 0 };
/// Longer than the room that is asked for at a time, so that all segments have this length and are used again.
const RECYCLED: LogOptions = LogOptions { segment_bytes: 5 << 20, spare_segments: 2 };

#[test]
fn nobody_waits_for_a_checkpoint_to_count_but_the_next() {
    let disk = HeldBack::new();
    let mut store = lockstep(&disk, LONG);
    let jobs = put_until(&mut store, 0, || disk.holds_back());
    for number in jobs..jobs + 10 {
        put(&mut store, number).unwrap();
        assert!(disk.has("checkpoint.new") && !disk.has("checkpoint-"));
    }
    put_until(&mut store, jobs + 10, || disk.has("checkpoint-"));
    // It had to be waited for, because the next has begun.
    assert!(disk.has("checkpoint.new"));
    assert_eq!(store.recoveries(), 0);
}

#[test]
fn whoever_stops_the_store_waits_for_a_checkpoint_to_count() {
    let disk = HeldBack::new();
    let backend = open(&disk);
    let jobs = put_until(&mut &backend, 0, || disk.holds_back());
    assert!(!disk.has("checkpoint-"));
    drop(backend);
    assert!(disk.has("checkpoint-") && !disk.has("checkpoint.new"));
    assert_eq!(length(&open(&disk)), jobs);
}

#[test]
fn a_checkpoint_that_fails_is_trouble_for_the_next_command() {
    let mut failures = 0;
    for operations in 0..12 {
        let disk = HeldBack::new();
        let mut store = lockstep(&disk, LONG);
        let jobs = put_until(&mut store, 0, || disk.holds_back());
        disk.disk.fail_after(operations);
        disk.let_go();
        disk.disk.heal();
        let failed = put(&mut store, jobs).is_err();
        failures += u64::from(failed);
        let next = put_until(&mut store, jobs + 1, || disk.has("checkpoint-"));
        assert_eq!(store.recoveries(), u64::from(failed), "failing after {operations}");
        drop(store);
        // It was told that it failed, and nothing of it was written.
        let kept = length(&open(&HeldBack::over(disk.disk.crash())));
        assert_eq!(kept, next - u64::from(failed), "failing after {operations}");
    }
    assert_eq!(failures, 4, "a write, a sync, a name, and the directory's sync");
}

#[test]
fn without_room_there_is_no_checkpoint_this_time_and_the_log_goes_on() {
    let disk = HeldBack::new();
    let mut store = lockstep(&disk, LONG);
    let jobs = put_until(&mut store, 0, || disk.holds_back());
    disk.disk.set_full(true);
    disk.let_go();
    disk.disk.heal();
    put(&mut store, jobs).unwrap();
    assert!(!disk.has("checkpoint"));
    let jobs = put_until(&mut store, jobs + 1, || disk.holds_back());
    disk.let_go();
    assert!(disk.has("checkpoint-"));
    assert_eq!(store.recoveries(), 0);
    drop(store);
    assert_eq!(length(&open(&HeldBack::over(disk.disk.crash()))), jobs);
}

const FIRST: &str = "log-00000000000000000001";

/// A store in which a checkpoint is being made to count that lets go of the first segment. The next is not due before 14 more have come and gone.
fn about_to_let_go(disk: &HeldBack) -> Lockstep {
    let options = StoreOptions { checkpoint_bytes_min: 8 << 20, ..options(RECYCLED) };
    let mut store = Lockstep::open_on(Arc::new(disk.clone()), options, ManualClock::new()).unwrap();
    (0..18).for_each(|number| come_and_go(&mut store, number));
    assert!(disk.has("checkpoint.new") && disk.has(FIRST));
    store
}

fn come_and_go(store: &mut Lockstep, number: u64) {
    store.ask(job(number, 500_000)).unwrap().unwrap();
    store.ask(Cancel { jids: vec![jid(number)] }.into()).unwrap().unwrap();
}

#[test]
fn what_is_being_let_go_of_is_waited_for_when_there_is_no_room_without_it() {
    let disk = HeldBack::new();
    let mut store = about_to_let_go(&disk);
    // Enough for what is left of the checkpoint, and not for a segment.
    disk.disk.set_bytes_max(disk.disk.bytes() + (1 << 20));
    (18..32).for_each(|number| come_and_go(&mut store, number));
    assert!(disk.has("checkpoint-") && !disk.has("checkpoint.new") && !disk.has(FIRST));
}

#[test]
fn if_that_fails_whoever_asks_for_room_is_told_and_what_was_kept_is_read_again() {
    let disk = HeldBack::new();
    let mut store = about_to_let_go(&disk);
    disk.disk.fail_after(0);
    disk.let_go();
    disk.disk.heal();
    // Longer than a segment, so that it asks for room before anything is written, and there is none.
    disk.disk.set_bytes_max(disk.disk.bytes());
    store.ask(job(18, 6_000_000)).unwrap_err();
    disk.disk.set_bytes_max(u64::MAX);
    come_and_go(&mut store, 19);
    assert_eq!(store.recoveries(), 1);
}

#[test]
fn a_checkpoint_does_not_count_while_somebody_copies() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("checkpoints-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&out);
    let disk = HeldBack::new();
    let backend = open(&disk);
    let jobs = put_until(&mut &backend, 0, || disk.holds_back());
    let (reached, go_on) = disk.stop_whoever_opens_a_segment();
    std::thread::scope(|scope| {
        // Goes with a panic, too, so that nobody waits for it then.
        let go_on = go_on;
        let copying = scope.spawn(|| block_on(backend.backup(&out)));
        reached.recv().unwrap();
        disk.let_go();
        // Nor is it tried again and again.
        (jobs..jobs + 5).for_each(|number| put(&mut &backend, number).unwrap());
        assert!(disk.has("checkpoint.new") && !disk.has("checkpoint-") && !disk.holds_back());
        go_on.send(()).unwrap();
        copying.join().unwrap().unwrap();
    });
    put(&mut &backend, jobs + 5).unwrap();
    disk.let_go();
    assert!(disk.has("checkpoint-"));
    assert_eq!(check(&out).unwrap().census.waiting, jobs + 5);
    std::fs::remove_dir_all(&out).unwrap();
}

/// Checkpoints that are so long that they are written in parts, and segments that are used again, while the log goes on; with a mishap at each operation in turn.
#[test]
fn what_is_done_aside_loses_nothing_whatever_the_disk_does() {
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
            if matches!(store.ask(job(number, PAYLOAD_BYTES)), Ok(Ok(_))) {
                kept.insert(number);
            }
            // Whether it is there or not if this fails, nobody knows.
            if number >= ALIVE && kept.remove(&(number - ALIVE)) {
                let _ = store.ask(Cancel { jids: vec![jid(number - ALIVE)] }.into());
            }
        }
        let files = disk.list().unwrap_or_default();
        let lengths = files.iter().filter(|(name, _)| name.starts_with("checkpoint-"));
        longest = longest.max(lengths.map(|(_, bytes)| *bytes).max().unwrap_or(0));
        recycled += u64::from(files.iter().any(|(name, _)| name.starts_with("spare-")));
        let disk = if seed % 3 == 2 { disk.kill() } else { disk.crash() };
        disk.heal();
        // Wherever it happened, the newest checkpoint can be done without.
        let checkpoints = files_named(&disk, "checkpoint-");
        if let Some((newest, bytes)) = checkpoints.last().filter(|_| seed % 2 == 0) {
            disk.flip(newest, seed * 7_919 % bytes);
            damaged += 1;
        }
        let mut store = open(&disk).unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
        for number in kept {
            match store.ask(Get { jid: jid(number) }.into()) {
                Ok(Ok(Reply::Get(Some(job)))) => assert_eq!(job.payload.bytes().len(), PAYLOAD_BYTES),
                other => panic!("seed {seed}: job {number} is lost: {other:?}"),
            }
        }
    }
    // Otherwise this would show nothing.
    assert!(longest > 2 << 20 && recycled > 50, "the longest had {longest} bytes, {recycled} had spares");
    assert!(damaged > 50, "{damaged} were damaged");
}

/// The files whose names begin like this, with their lengths, in the order of their names.
fn files_named(disk: &SimDisk, prefix: &str) -> Vec<(String, u64)> {
    let mut files = disk.list().unwrap();
    files.retain(|(name, _)| name.starts_with(prefix));
    files
}

/// Whoever answers.
trait Answers {
    fn ask(&mut self, call: Call) -> Result<Answer, String>;
}

impl Answers for Lockstep {
    fn ask(&mut self, call: Call) -> Result<Answer, String> {
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

impl Answers for &StoreBackend {
    fn ask(&mut self, call: Call) -> Result<Answer, String> {
        let answers = block_on(self.execute(vec![call]));
        answers.map(|mut answers| answers.remove(0)).map_err(|error| error.to_string())
    }
}

fn options(log: LogOptions) -> StoreOptions {
    // All payloads go through the log, so that a few of them make it long.
    let own_file_bytes_min = usize::MAX;
    StoreOptions { log, checkpoint_bytes_min: 80 << 10, own_file_bytes_min, ..StoreOptions::default() }
}

fn lockstep(disk: &HeldBack, log: LogOptions) -> Lockstep {
    Lockstep::open_on(Arc::new(disk.clone()), options(log), ManualClock::new()).unwrap()
}

fn open(disk: &HeldBack) -> StoreBackend {
    StoreBackend::open_on(Arc::new(disk.clone()), options(LONG), ManualClock::new()).unwrap()
}

fn jid(number: u64) -> Jid {
    Jid::new(format!("j{number}")).unwrap()
}

fn job(number: u64, bytes: usize) -> Call {
    let queue = QueueName::new("mail").unwrap();
    Put::new(queue, jid(number), Klass::new("welcome").unwrap(), vec![b'x'; bytes]).into()
}

fn put(store: &mut impl Answers, number: u64) -> Result<(), String> {
    store.ask(job(number, 10)).map(|answer| assert_eq!(answer, Ok(Reply::Put(PutReply::Created))))
}

/// Puts jobs from a number on, and says which comes next.
fn put_until(store: &mut impl Answers, first: u64, mut is_enough: impl FnMut() -> bool) -> u64 {
    for number in first..first + 200 {
        put(store, number).unwrap();
        if is_enough() {
            return number + 1;
        }
    }
    panic!("it never comes to that");
}

fn length(mut backend: &StoreBackend) -> u64 {
    match backend.ask(Length { queue: QueueName::new("mail").unwrap() }.into()) {
        Ok(Ok(Reply::Length(length))) => length,
        other => panic!("{other:?}"),
    }
}

/// A disk that does nothing aside before it is told to, or somebody waits for it.
#[derive(Clone)]
struct HeldBack {
    disk: SimDisk,
    held: Arc<Mutex<Vec<Slot>>>,
    /// Whoever opens a segment says so there, and waits until it may go on.
    stop: Arc<Mutex<Option<Stop>>>,
}

type Slot = Arc<Mutex<Option<Work>>>;
type Stop = (Sender<()>, Receiver<()>);

fn run(slot: &Slot) {
    let work = slot.lock().unwrap().take();
    work.into_iter().for_each(|work| work());
}

impl HeldBack {
    fn new() -> HeldBack {
        HeldBack::over(SimDisk::new(1))
    }

    fn over(disk: SimDisk) -> HeldBack {
        HeldBack { disk, held: Arc::default(), stop: Arc::default() }
    }

    fn holds_back(&self) -> bool {
        self.held.lock().unwrap().iter().any(|slot| slot.lock().unwrap().is_some())
    }

    fn let_go(&self) {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        held.iter().for_each(run);
    }

    /// Whether there is a file whose name begins like this.
    fn has(&self, name: &str) -> bool {
        self.disk.names().iter().any(|other| other.starts_with(name))
    }

    fn stop_whoever_opens_a_segment(&self) -> (Receiver<()>, Sender<()>) {
        let ((reached, was_reached), (go_on, may_go_on)) = (channel(), channel());
        *self.stop.lock().unwrap() = Some((reached, may_go_on));
        (was_reached, go_on)
    }
}

impl Disk for HeldBack {
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

    fn aside(&self, work: Work) -> Join {
        let slot: Slot = Arc::new(Mutex::new(Some(work)));
        self.held.lock().unwrap().push(slot.clone());
        Box::new(move || run(&slot))
    }
}

/// A store in which a checkpoint is being made to count, that is held back, and the number of the next job.
fn held_back(disk: &HeldBack, checkpoint_bytes_min: u64) -> (Lockstep, u64) {
    let options = StoreOptions { checkpoint_bytes_min, ..options(LONG) };
    let mut store = Lockstep::open_on(Arc::new(disk.clone()), options, ManualClock::new()).unwrap();
    let mut number = 0;
    while !disk.holds_back() {
        come_and_go(&mut store, number);
        number += 1;
    }
    assert!(!disk.has("checkpoint-"));
    (store, number)
}

#[test]
fn a_log_that_grows_much_waits_for_it_and_whoever_only_reads_does_not() {
    let disk = HeldBack::new();
    let (mut store, number) = held_back(&disk, 6 << 20);
    store.ask(job(number, 5 << 20)).unwrap().unwrap();
    store.ask(Get { jid: jid(0) }.into()).unwrap().unwrap();
    assert!(!disk.has("checkpoint-"), "the read waited");
    store.ask(job(number + 1, 10)).unwrap().unwrap();
    assert!(disk.has("checkpoint-"), "the log grew on and on");
}

#[test]
fn a_batch_longer_than_a_segment_does_not_wait_for_it_as_long_as_there_is_room() {
    let disk = HeldBack::new();
    let (mut store, number) = held_back(&disk, 24 << 20);
    store.ask(job(number, 17 << 20)).unwrap().unwrap();
    assert!(!disk.has("checkpoint-"), "it waited");
}
