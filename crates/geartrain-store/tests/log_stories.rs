//! Whatever a log is asked to do, and wherever the power goes: what was synced is there, byte for byte and in order; of the rest there is
//! a beginning, in whole batches; nothing else is there; and the log goes on.
//!
//! `GEARTRAIN_SEED=7041` replays one story, `GEARTRAIN_STORIES=100` tells that many of each kind.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use fastrand::Rng;
use geartrain_store::log::{Log, LogError, LogOptions, Position};
use geartrain_testkit::disk::SimDisk;

const BLOCK: usize = 4096;
const STORIES: u64 = 3000;

/// Stories of which every operation is cut, which is some eighty times the work.
const STORIES_CUT_EVERYWHERE: u64 = 300;

/// A log, and what it should hold.
struct Story {
    rng: Rng,
    disk: SimDisk,
    options: LogOptions,
    log: Option<Log>,
    /// Every batch from `from` on that was appended, and how many of them are durable for certain.
    written: Vec<(Position, Vec<u8>)>,
    synced: usize,
    /// A batch that may have been written, because writing it failed.
    doubtful: Option<Vec<u8>>,
    from: Position,
    bytes_made: u8,
    told: Told,
}

/// What happened, to see that the stories touch everything.
#[derive(Debug, Default, Clone, Copy)]
struct Told {
    appended: u64,
    refused_full: u64,
    failed: u64,
    lost: u64,
    survived_unsynced: u64,
    opened: u64,
    released: u64,
    segments: u64,
}

impl Told {
    fn add(&mut self, other: Told) {
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

impl Story {
    fn new(seed: u64) -> Story {
        let mut rng = Rng::with_seed(seed);
        let blocks = if rng.bool() { rng.usize(2..6) } else { rng.usize(6..20) };
        let options = LogOptions { segment_bytes: (blocks * BLOCK) as u64, spare_segments: rng.usize(..4) };
        Story {
            disk: SimDisk::new(rng.u64(..)),
            rng,
            options,
            log: None,
            written: Vec::new(),
            synced: 0,
            doubtful: None,
            from: Position::default(),
            bytes_made: 0,
            told: Told::default(),
        }
    }

    /// Lives through so many steps. Ends early if the power goes.
    fn live(&mut self, steps: usize) {
        for _ in 0..steps {
            if self.log.is_none() && !self.open() {
                return;
            }
            match self.rng.u8(..100) {
                0..50 => self.append(),
                50..72 => self.sync(),
                72..78 => self.read(),
                78..86 => self.release(),
                86..88 => self.log = None,
                88..90 => self.close(),
                90..93 => self.disk_of_another_life(SimDisk::kill),
                93..96 => self.disk_of_another_life(SimDisk::crash),
                96..98 => {
                    let room = self.rng.u64(..2) * self.options.segment_bytes;
                    self.disk.set_bytes_max(self.disk.bytes() + room);
                }
                _ => self.disk.set_bytes_max(u64::MAX),
            }
            if self.log.as_ref().is_some_and(Log::is_broken) {
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
        self.bytes_made = self.bytes_made.wrapping_add(1);
        let mut body = vec![self.bytes_made; bytes];
        if let Some(first) = body.first_mut() {
            *first = self.rng.u8(..);
        }
        let reserve = self.rng.bool();
        let log = self.log.as_mut().expect("it is open");
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
                self.told.segments += u64::from(position.segment > end.segment);
                self.written.push((position, body));
                self.told.appended += 1;
            }
            Err(error) => {
                if !matches!(error, LogError::Full) {
                    self.doubtful = Some(body);
                }
                self.refused(error, end);
            }
        }
    }

    /// A full disk changed nothing. After anything else the log wants to be opened again.
    fn refused(&mut self, error: LogError, end: Position) {
        let log = self.log.as_ref().expect("it is open");
        match error {
            LogError::Full => {
                assert_eq!(log.end(), end);
                assert!(!log.is_broken());
                self.told.refused_full += 1;
            }
            LogError::Io(_) => {
                assert!(log.is_broken());
                self.told.failed += 1;
            }
            other => panic!("{other}"),
        }
    }

    fn sync(&mut self) {
        let log = self.log.as_mut().expect("it is open");
        let end = log.end();
        match log.sync() {
            Ok(()) => self.synced = self.written.len(),
            Err(error) => self.refused(error, end),
        }
    }

    /// A clean shutdown: what is missing from here on is damage.
    fn close(&mut self) {
        let log = self.log.as_mut().expect("it is open");
        let end = log.end();
        match log.close() {
            Ok(()) => {
                self.synced = self.written.len();
                self.log = None;
            }
            Err(error) => self.refused(error, end),
        }
    }

    fn read(&mut self) {
        let log = self.log.as_ref().expect("it is open");
        let Some((position, body)) = self.rng.choice(&self.written) else { return };
        let offset = self.rng.usize(..=body.len());
        let bytes = self.rng.usize(..=body.len() - offset);
        match log.read(*position, offset, bytes) {
            Ok(found) => assert_eq!(found, body[offset..offset + bytes]),
            Err(error) => assert!(matches!(error, LogError::Io(_)), "{error}"),
        }
    }

    /// Releases what lies before a batch that is durable, or before the end if all are.
    fn release(&mut self) {
        let log = self.log.as_mut().expect("it is open");
        let count = self.rng.usize(..=self.synced);
        let before = match self.written.get(count) {
            Some((position, _)) if count < self.synced => *position,
            None => log.end(),
            Some(_) => return,
        };
        // Whoever wants to release has written down where to begin from now on.
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
                // One for a long batch may be reserved and not be used yet: that is at most four segments and a block.
                let bound = bound + 5 * self.options.segment_bytes + BLOCK as u64;
                // The segment in use may have been made for a batch that is not kept any more.
                assert!(
                    log.disk_bytes() <= bound + 4 * self.options.segment_bytes,
                    "{} > {bound}",
                    log.disk_bytes()
                );
                assert!(log.used_bytes() <= log.disk_bytes());
                self.told.released += 1;
            }
            Err(error) => self.refused(error, end),
        }
    }

    /// The process or the machine goes, and comes back.
    fn disk_of_another_life(&mut self, end: fn(&SimDisk) -> SimDisk) {
        self.disk = end(&self.disk);
        self.log = None;
    }

    /// Opens the log and compares what is in it. Says whether that was possible.
    fn open(&mut self) -> bool {
        let mut found: Vec<(Position, Vec<u8>)> = Vec::new();
        let opened =
            Log::open(Arc::new(self.disk.clone()), self.options, self.from, &mut |position, body| {
                found.push((position, body.to_vec()));
                Ok(())
            });
        let log = match opened {
            Ok(log) => log,
            Err(LogError::Full) => {
                self.disk.set_bytes_max(u64::MAX);
                self.told.refused_full += 1;
                return self.open();
            }
            Err(LogError::Io(error)) => {
                self.told.failed += 1;
                return error.to_string() != "the power is out" && self.open();
            }
            Err(error) => panic!("{error}; durable were {}", self.synced),
        };
        let known = found.len().min(self.written.len());
        assert!(known >= self.synced, "{known} batches are there and {} were synced", self.synced);
        for (index, (found, written)) in found.iter().zip(&self.written).enumerate() {
            assert_eq!(found.0, written.0, "place of batch {index}");
            assert!(found.1 == written.1, "batch {index} at {:?} is another one", found.0);
        }
        match &found[known..] {
            [] => (),
            [(_, body)] => assert!(Some(body) == self.doubtful.as_ref(), "a batch that nobody wrote"),
            more => panic!("{} batches that nobody wrote", more.len()),
        }
        self.told.lost += (self.written.len() - known) as u64;
        self.told.survived_unsynced += (known - self.synced) as u64;
        self.told.opened += 1;
        self.synced = found.len();
        self.written = found;
        self.doubtful = None;
        self.log = Some(log);
        true
    }

    /// After all of it the log works, and keeps what it is given.
    fn end_well(mut self) -> Told {
        self.disk_of_another_life(SimDisk::crash);
        self.disk.heal();
        for _ in 0..2 {
            assert!(self.open());
            for _ in 0..4 {
                self.append();
            }
            self.sync();
            assert_eq!(self.synced, self.written.len());
            self.disk_of_another_life(SimDisk::crash_and_lose_all);
        }
        assert!(self.open());
        self.told
    }
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not {text}")))
}

/// Tells stories, and says which one went wrong.
fn tell(stories: u64, story: impl Fn(u64) -> Told) -> Told {
    let seeds = match number_from("GEARTRAIN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number_from("GEARTRAIN_STORIES").unwrap_or(stories),
    };
    let mut told = Told::default();
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| story(seed))) {
            Ok(more) => told.add(more),
            Err(panic) => {
                eprintln!("GEARTRAIN_SEED={seed} goes wrong");
                resume_unwind(panic);
            }
        }
    }
    println!("{told:?}");
    told
}

#[test]
fn a_log_keeps_its_promises_whatever_happens() {
    let told = tell(STORIES, |seed| {
        let mut story = Story::new(seed);
        story.live(100);
        story.end_well()
    });
    if number_from("GEARTRAIN_SEED").is_none() {
        let Told { refused_full, lost, survived_unsynced, released, segments, .. } = told;
        assert!([refused_full, lost, survived_unsynced, released, segments].iter().all(|&count| count > 100));
    }
}

#[test]
fn a_log_keeps_its_promises_wherever_the_power_goes() {
    tell(STORIES_CUT_EVERYWHERE, |seed| at_every_operation(seed, SimDisk::cut_power_after));
}

#[test]
fn a_log_keeps_its_promises_whichever_operation_fails() {
    tell(STORIES_CUT_EVERYWHERE, |seed| at_every_operation(seed, SimDisk::fail_after));
}

/// Tells a story once for each of its operations, in which something happens then.
fn at_every_operation(seed: u64, happens: fn(&SimDisk, u64)) -> Told {
    let mut told = Told::default();
    let mut whole = Story::new(seed);
    whole.live(25);
    let operations = whole.disk.operations();
    told.add(whole.end_well());
    for operation in 0..operations {
        let mut story = Story::new(seed);
        happens(&story.disk, operation);
        let run = catch_unwind(AssertUnwindSafe(|| {
            story.live(25);
            story.end_well()
        }));
        told.add(run.unwrap_or_else(|panic| {
            eprintln!("at operation {operation}");
            resume_unwind(panic)
        }));
    }
    told
}
