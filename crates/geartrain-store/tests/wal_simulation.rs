//! Simulation of the log with power cuts and failing disks: every synced batch is there, byte for byte and in
//! order; of the others a prefix, in whole batches; nothing else is there; and the log goes on.
//!
//! `GEARTRAIN_SEED=7041` replays one history, `GEARTRAIN_TRACES=100` runs that many of each kind.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use fastrand::Rng;
use geartrain_store::wal::{Position, Wal, WalError, WalOptions};
use geartrain_testkit::disk::SimDisk;
use geartrain_testkit::{scaled, seeds};

const BLOCK: usize = 4096;
const HISTORIES: u64 = 3000;

/// A log, and what it should hold.
struct Simulation {
    rng: Rng,
    disk: SimDisk,
    options: WalOptions,
    log: Option<Wal>,
    /// Every batch appended from `from` on, and how many of them are certainly durable.
    written: Vec<(Position, Vec<u8>)>,
    synced: usize,
    /// A batch that may have been written, because its append failed.
    uncertain: Option<Vec<u8>>,
    from: Position,
    bodies_made: u8,
    counts: Counts,
}

/// Counts, to check that the histories cover everything.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    appended: u64,
    refused_full: u64,
    failed: u64,
    lost: u64,
    survived_unsynced: u64,
    opened: u64,
    released: u64,
    segments: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.appended += other.appended;
        self.refused_full += other.refused_full;
        self.failed += other.failed;
        self.lost += other.lost;
        self.survived_unsynced += other.survived_unsynced;
        self.opened += other.opened;
        self.released += other.released;
        self.segments += other.segments;
    }
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut rng = Rng::with_seed(seed);
        let blocks = if rng.bool() { rng.usize(2..6) } else { rng.usize(6..20) };
        let options = WalOptions { segment_bytes: (blocks * BLOCK) as u64, spare_segments: rng.usize(..4) };
        Simulation {
            disk: SimDisk::new(rng.u64(..)),
            rng,
            options,
            log: None,
            written: Vec::new(),
            synced: 0,
            uncertain: None,
            from: Position::default(),
            bodies_made: 0,
            counts: Counts::default(),
        }
    }

    /// Runs this many steps. Ends early if the power goes.
    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            if self.log.is_none() && !self.open() {
                return;
            }
            match self.rng.u8(..100) {
                0..56 => self.append(),
                56..78 => self.sync(),
                78..86 => self.release(),
                86..88 => self.log = None,
                88..90 => self.close(),
                90..93 => self.restart(SimDisk::kill),
                93..96 => self.restart(SimDisk::crash),
                96..98 => {
                    let space = self.rng.u64(..2) * self.options.segment_bytes;
                    self.disk.set_bytes_max(self.disk.bytes() + space);
                }
                _ => self.disk.set_bytes_max(u64::MAX),
            }
            if self.log.as_ref().is_some_and(Wal::is_broken) {
                self.log = None;
            }
        }
    }

    fn append(&mut self) {
        let segment = self.options.segment_bytes as usize;
        let bytes = match self.rng.u8(..20) {
            0..2 => 0,
            2..10 => self.rng.usize(..2 * BLOCK),
            10..13 => self.rng.usize(1..6) * BLOCK - 64,
            13..15 => self.rng.usize(1..6) * BLOCK - 63,
            15..19 => self.rng.usize(..segment),
            _ => self.rng.usize(..4 * segment),
        };
        self.bodies_made = self.bodies_made.wrapping_add(1);
        let mut body = vec![self.bodies_made; bytes];
        if let Some(first) = body.first_mut() {
            *first = self.rng.u8(..);
        }
        let reserve = self.rng.bool();
        let log = self.log.as_mut().expect("the log is open");
        let end = log.end();
        if reserve {
            match log.reserve(bytes) {
                Ok(()) => assert_eq!(log.end(), end),
                Err(error) => return self.refused(error, end),
            }
        }
        match log.append(&body) {
            Ok(position) => {
                assert!(position >= end && log.end() > position);
                self.counts.segments += u64::from(position.segment > end.segment);
                self.written.push((position, body));
                self.counts.appended += 1;
            }
            Err(error) => {
                if !matches!(error, WalError::Full) {
                    self.uncertain = Some(body);
                }
                self.refused(error, end);
            }
        }
    }

    /// A full disk changed nothing. After any other error the log must be opened again.
    fn refused(&mut self, error: WalError, end: Position) {
        let log = self.log.as_ref().expect("the log is open");
        match error {
            WalError::Full => {
                assert_eq!(log.end(), end);
                assert!(!log.is_broken());
                self.counts.refused_full += 1;
            }
            WalError::Io(_) => {
                assert!(log.is_broken());
                self.counts.failed += 1;
            }
            other => panic!("{other}"),
        }
    }

    fn sync(&mut self) {
        let log = self.log.as_mut().expect("the log is open");
        let end = log.end();
        match log.sync() {
            Ok(()) => self.synced = self.written.len(),
            Err(error) => self.refused(error, end),
        }
    }

    /// A clean shutdown: a batch that is missing from here on is damage.
    fn close(&mut self) {
        let log = self.log.as_mut().expect("the log is open");
        let end = log.end();
        match log.close() {
            Ok(()) => {
                self.synced = self.written.len();
                self.log = None;
            }
            Err(error) => self.refused(error, end),
        }
    }

    /// Releases the segments before a durable batch, or before the end if all batches are durable.
    fn release(&mut self) {
        let log = self.log.as_mut().expect("the log is open");
        let count = self.rng.usize(..=self.synced);
        let before = match self.written.get(count) {
            Some((position, _)) if count < self.synced => *position,
            None => log.end(),
            Some(_) => return,
        };
        // Recovery begins here from now on.
        self.from = before;
        self.written.drain(..count);
        self.synced -= count;
        let end = log.end();
        match log.release(before) {
            Ok(()) => {
                let kept = (end.segment - before.segment + 1) as usize;
                let longest = self.written.iter().map(|(_, body)| body.len()).max().unwrap_or(0);
                let each = self.options.segment_bytes + (longest + 4 * BLOCK) as u64;
                let bound = each * (kept + self.options.spare_segments + 1) as u64;
                // A segment for a long batch may be reserved and unused: that is at most four segments and a
                // block.
                let bound = bound + 5 * self.options.segment_bytes + BLOCK as u64;
                // The segment in use may have been made for a batch that is released already.
                assert!(
                    log.disk_bytes() <= bound + 4 * self.options.segment_bytes,
                    "{} > {bound}",
                    log.disk_bytes()
                );
                assert!(log.used_bytes() <= log.disk_bytes());
                self.counts.released += 1;
            }
            Err(error) => self.refused(error, end),
        }
    }

    /// The process or the machine stops, and starts again.
    fn restart(&mut self, end: fn(&SimDisk) -> SimDisk) {
        self.disk = end(&self.disk);
        self.log = None;
    }

    /// Opens the log and compares its batches. Returns whether it could be opened.
    fn open(&mut self) -> bool {
        let mut found: Vec<(Position, Vec<u8>)> = Vec::new();
        let opened =
            Wal::open(Arc::new(self.disk.clone()), self.options, self.from, &mut |position, body| {
                found.push((position, body.to_vec()));
                Ok(())
            });
        let log = match opened {
            Ok(log) => log,
            Err(WalError::Full) => {
                self.disk.set_bytes_max(u64::MAX);
                self.counts.refused_full += 1;
                return self.open();
            }
            Err(WalError::Io(error)) => {
                self.counts.failed += 1;
                return error.to_string() != "the power is out" && self.open();
            }
            Err(error) => panic!("{error}; durable were {}", self.synced),
        };
        let known = found.len().min(self.written.len());
        assert!(known >= self.synced, "{known} batches are there and {} were synced", self.synced);
        for (index, (found, written)) in found.iter().zip(&self.written).enumerate() {
            assert_eq!(found.0, written.0, "position of batch {index}");
            assert!(found.1 == written.1, "batch {index} at {:?} differs", found.0);
        }
        match &found[known..] {
            [] => (),
            [(_, body)] => assert!(Some(body) == self.uncertain.as_ref(), "a batch that was never written"),
            more => panic!("{} batches that were never written", more.len()),
        }
        self.counts.lost += (self.written.len() - known) as u64;
        self.counts.survived_unsynced += (known - self.synced) as u64;
        self.counts.opened += 1;
        self.synced = found.len();
        self.written = found;
        self.uncertain = None;
        self.log = Some(log);
        true
    }

    /// After all that, the log works and keeps new batches.
    fn finish(mut self) -> Counts {
        self.restart(SimDisk::crash);
        self.disk.heal();
        for _ in 0..2 {
            assert!(self.open());
            for _ in 0..4 {
                self.append();
            }
            self.sync();
            assert_eq!(self.synced, self.written.len());
            self.restart(SimDisk::crash_and_lose_all);
        }
        assert!(self.open());
        self.counts
    }
}

/// Histories with a fault at each of their operations in turn.
fn histories_cut_everywhere() -> u64 {
    scaled(100, 300)
}

/// Runs histories, and prints the seed of one that fails.
fn run_seeds(histories: u64, simulation: impl Fn(u64) -> Counts) -> Counts {
    let mut counts = Counts::default();
    for seed in seeds(histories) {
        match catch_unwind(AssertUnwindSafe(|| simulation(seed))) {
            Ok(more) => counts.add(more),
            Err(panic) => {
                eprintln!("GEARTRAIN_SEED={seed} fails");
                resume_unwind(panic);
            }
        }
    }
    println!("{counts:?}");
    counts
}

#[test]
fn synced_batches_survive_random_histories() {
    let counts = run_seeds(HISTORIES, |seed| {
        let mut simulation = Simulation::new(seed);
        simulation.run(100);
        simulation.finish()
    });
    if seeds(HISTORIES) == (0..HISTORIES) {
        let Counts { refused_full, lost, survived_unsynced, released, segments, .. } = counts;
        assert!([refused_full, lost, survived_unsynced, released, segments].iter().all(|&count| count > 100));
    }
}

#[test]
fn synced_batches_survive_a_power_cut_at_any_operation() {
    run_seeds(histories_cut_everywhere(), |seed| at_every_operation(seed, SimDisk::cut_power_after));
}

#[test]
fn synced_batches_survive_a_failure_of_any_operation() {
    run_seeds(histories_cut_everywhere(), |seed| at_every_operation(seed, SimDisk::fail_after));
}

/// Runs a history once for each of its operations, with a fault injected at that operation.
fn at_every_operation(seed: u64, inject: fn(&SimDisk, u64)) -> Counts {
    let mut counts = Counts::default();
    let mut whole = Simulation::new(seed);
    whole.run(25);
    let operations = whole.disk.operations();
    counts.add(whole.finish());
    for operation in 0..operations {
        let mut simulation = Simulation::new(seed);
        inject(&simulation.disk, operation);
        let run = catch_unwind(AssertUnwindSafe(|| {
            simulation.run(25);
            simulation.finish()
        }));
        counts.add(run.unwrap_or_else(|panic| {
            eprintln!("at operation {operation}");
            resume_unwind(panic)
        }));
    }
    counts
}
