//! A disk that loses what a power cut may lose, and fails when a test wants it to.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use geartrain_store::wal::{Disk, DiskFile, Join, Task};

const SECTOR: usize = 512;

/// Files in memory, behind a page cache as a system has one.
///
/// What is written is seen at once. A power cut ([`crash`](SimDisk::crash)) keeps any part of what was not synced: any sector, in any of
/// the versions it had, and any of the changes to the directory that do not hang on a lost one. What is decided by chance hangs on the
/// seed alone.
///
/// ```
/// use geartrain_store::wal::Disk;
/// use geartrain_testkit::disk::SimDisk;
/// let disk = SimDisk::new(7041);
/// disk.create("kept")?.write_at(b"lost", 0)?;
/// disk.sync_directory()?;
/// disk.create("gone")?;
/// let disk = disk.crash_and_lose_all();
/// assert_eq!(disk.list()?, [("kept".to_string(), 0)]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

struct State {
    rng: Rng,
    files: BTreeMap<u64, Contents>,
    next_file: u64,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    changes: Vec<Change>,
    /// How many writes, syncs and changes to the directory there were.
    operations: u64,
    power: bool,
    power_out_after: Option<u64>,
    fail_after: Option<u64>,
    bytes_max: u64,
    full: bool,
    aside: Vec<Arc<Mutex<Helper>>>,
}

/// Work that was put aside: a thread that moves only when it is told to, by so many operations. So what happens hangs on the seed alone, and yet what
/// others do may fall between any two of its operations.
struct Helper {
    turns: Sender<usize>,
    /// Something comes when it stands still again, and nothing when it is done.
    stops: Receiver<()>,
}

/// A helper's own end.
struct Turns {
    turns: Receiver<usize>,
    /// How many operations are left of this turn.
    left: usize,
    stops: Sender<()>,
}

thread_local! {
    static TURNS: RefCell<Option<Turns>> = const { RefCell::new(None) };
}

impl Helper {
    fn new(work: Task) -> Helper {
        let ((turns, my_turns), (my_stops, stops)) = (channel(), channel());
        std::thread::spawn(move || {
            let left = my_turns.recv().unwrap_or(usize::MAX);
            TURNS.set(Some(Turns { turns: my_turns, left, stops: my_stops }));
            work();
        });
        Helper { turns, stops }
    }

    /// Has it do so many operations. Says whether it is done.
    fn help(&self, operations: usize) -> bool {
        self.turns.send(operations).is_err() || self.stops.recv().is_err()
    }
}

/// If this is a helper's thread, waits for its turn, and says so.
fn await_turn() -> bool {
    TURNS.with_borrow_mut(|turns| {
        let Some(Turns { turns, left, stops }) = turns else { return false };
        if *left == 0 {
            let _ = stops.send(());
            // If nobody tells it to go on any more it goes on by itself.
            *left = turns.recv().unwrap_or(usize::MAX);
        }
        *left -= 1;
        true
    })
}

/// What a file holds.
#[derive(Clone, Default)]
struct Contents {
    seen: Vec<u8>,
    durable: Vec<u8>,
    /// What was written to a sector since the last sync, and by which operation.
    unsynced: BTreeMap<usize, Vec<(u64, Vec<u8>)>>,
}

/// A change to the directory that is not durable yet.
#[derive(Clone)]
enum Change {
    Create(String, u64),
    Rename(String, String, u64),
    Remove(String, u64),
}

/// What becomes of an operation.
#[derive(PartialEq)]
enum Fate {
    Succeeds,
    /// Fails, after some of it was done.
    Fails,
    /// The power goes; how much of it was done is decided by the crash.
    Cut,
}

/// What a crash leaves of what was not synced.
enum Kept {
    Nothing,
    Everything,
    /// Each sector and each change with this chance.
    Some(f64),
    /// What was written before an operation, and of that one the sectors that come first in their 32 KiB.
    Until(u64, usize),
}

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> SimDisk {
        SimDisk::from_state(State {
            rng: Rng::with_seed(seed),
            files: BTreeMap::new(),
            next_file: 1,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            changes: Vec::new(),
            operations: 0,
            power: true,
            power_out_after: None,
            fail_after: None,
            bytes_max: u64::MAX,
            full: false,
            aside: Vec::new(),
        })
    }

    /// How many writes, syncs and changes to the directory there were.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// The power goes during the operation after so many more.
    pub fn cut_power_after(&self, operations: u64) {
        let mut state = self.state();
        state.power_out_after = Some(state.operations + operations);
    }

    /// The operation after so many more fails, half done. A sync that fails loses any of what it should have written, and whoever
    /// reads does not notice until it is forgotten: that is what Linux does.
    pub fn fail_after(&self, operations: u64) {
        let mut state = self.state();
        state.fail_after = Some(state.operations + operations);
    }

    /// Leaves no room for more than so many bytes in all files.
    pub fn set_bytes_max(&self, bytes: u64) {
        self.state().bytes_max = bytes;
    }

    /// Whether every write finds the disk full, overwrites too, as a disk that copies on write may.
    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// From now on there is room, and nothing fails.
    pub fn heal(&self) {
        let mut state = self.state();
        (state.power_out_after, state.fail_after) = (None, None);
        (state.bytes_max, state.full) = (u64::MAX, false);
    }

    /// The names of all files, even if the power is out.
    pub fn names(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    /// The length of all files.
    pub fn bytes(&self) -> u64 {
        self.state().bytes()
    }

    /// Flips a bit of what is durable.
    pub fn flip(&self, name: &str, offset: u64) {
        let mut state = self.state();
        let file = state.names[name];
        let contents = state.files.get_mut(&file).expect("a name has a file");
        for bytes in [&mut contents.seen, &mut contents.durable] {
            bytes[offset as usize] ^= 1;
        }
    }

    /// The power goes now, and comes back. The new disk has what was durable and some of the rest; this one never answers again.
    ///
    /// What was to go wrong later goes wrong on the new one.
    pub fn crash(&self) -> SimDisk {
        let kept = {
            let mut state = self.state();
            match state.rng.u8(..6) {
                0 => Kept::Nothing,
                1 => Kept::Everything,
                2 => Kept::Some(0.9),
                3 => Kept::Some(0.1),
                4 => Kept::Some(0.5),
                _ => {
                    let written = state.files.values().flat_map(|file| file.unsynced.values().flatten());
                    let operations: Vec<u64> = written.map(|(operation, _)| *operation).collect();
                    match state.rng.choice(operations) {
                        Some(operation) => Kept::Until(operation, state.rng.usize(..64)),
                        None => Kept::Everything,
                    }
                }
            }
        };
        self.crash_and_keep(kept)
    }

    /// Crashes, and keeps nothing that was not synced.
    pub fn crash_and_lose_all(&self) -> SimDisk {
        self.crash_and_keep(Kept::Nothing)
    }

    /// The process dies and the system lives on: nothing is lost, and nothing becomes durable. This disk never answers again.
    pub fn kill(&self) -> SimDisk {
        let mut state = self.state();
        let next = State {
            rng: state.rng.fork(),
            files: state.files.clone(),
            next_file: state.next_file,
            names: state.names.clone(),
            durable_names: state.durable_names.clone(),
            changes: state.changes.clone(),
            operations: state.operations,
            power: true,
            power_out_after: state.power_out_after.filter(|_| state.power),
            fail_after: state.fail_after,
            bytes_max: state.bytes_max,
            full: state.full,
            aside: Vec::new(),
        };
        state.power = false;
        SimDisk::from_state(next)
    }

    fn crash_and_keep(&self, kept: Kept) -> SimDisk {
        let next = self.kill();
        next.state().lose(&kept);
        next
    }

    fn from_state(state: State) -> SimDisk {
        SimDisk { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for one more operation. Some of the work that was put aside may happen just before.
    fn operate(&self) -> io::Result<(MutexGuard<'_, State>, Fate)> {
        if !await_turn() {
            let (helper, operations) = {
                let mut state = self.state();
                let State { rng, aside, .. } = &mut *state;
                let helper = if rng.u8(..4) == 0 { rng.choice(aside.iter()).cloned() } else { None };
                (helper, rng.usize(1..6))
            };
            helper.iter().for_each(|helper| self.help(helper, operations));
        }
        let mut state = self.state();
        if !state.power {
            return Err(power_is_out());
        }
        state.operations += 1;
        let operations = state.operations;
        let fate = if state.power_out_after.is_some_and(|after| operations > after) {
            state.power = false;
            Fate::Cut
        } else if state.fail_after.is_some_and(|after| operations > after) {
            state.fail_after = None;
            Fate::Fails
        } else {
            Fate::Succeeds
        };
        Ok((state, fate))
    }

    /// Has so many operations done of what was put aside.
    fn help(&self, helper: &Arc<Mutex<Helper>>, operations: usize) {
        let is_done = helper.lock().unwrap_or_else(PoisonError::into_inner).help(operations);
        if is_done {
            self.state().aside.retain(|other| !Arc::ptr_eq(other, helper));
        }
    }

    /// Changes the directory.
    fn change(&self, change: impl FnOnce(&mut State) -> io::Result<Change>) -> io::Result<u64> {
        let (mut state, fate) = self.operate()?;
        if fate == Fate::Fails {
            return Err(failed());
        }
        let change = change(&mut state)?;
        let (_, file) = change.touches();
        change.apply(&mut state.names);
        state.changes.push(change);
        if fate == Fate::Cut { Err(power_is_out()) } else { Ok(file) }
    }

    fn file(&self, file: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { disk: self.clone(), file })
    }
}

impl State {
    fn bytes(&self) -> u64 {
        self.names.values().map(|file| self.files[file].seen.len() as u64).sum()
    }

    fn named(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, name.to_string()))
    }

    /// Leaves what a crash leaves.
    fn lose(&mut self, kept: &Kept) {
        for contents in self.files.values_mut() {
            for (sector, versions) in std::mem::take(&mut contents.unsynced) {
                let version = match kept {
                    Kept::Nothing => None,
                    Kept::Everything => versions.last(),
                    Kept::Some(chance) if self.rng.f64() < *chance => {
                        // Mostly the last one. An earlier one if the system happened to write that and not again.
                        let newer = self.rng.usize(..versions.len()).max(self.rng.usize(..versions.len()));
                        versions.get(newer)
                    }
                    Kept::Some(_) => None,
                    Kept::Until(operation, sectors) => versions.iter().rfind(|(written_by, _)| {
                        written_by < operation || (written_by == operation && sector % 64 < *sectors)
                    }),
                };
                if let Some((_, bytes)) = version {
                    put(&mut contents.durable, sector * SECTOR, bytes);
                }
            }
            contents.seen = contents.durable.clone();
        }
        let mut lost_names = BTreeSet::new();
        let mut lost_files = BTreeSet::new();
        for change in std::mem::take(&mut self.changes) {
            let (names, file) = change.touches();
            let lost = match kept {
                Kept::Nothing => true,
                Kept::Everything | Kept::Until(..) => false,
                Kept::Some(chance) => self.rng.f64() >= *chance,
            };
            if lost || lost_files.contains(&file) || names.iter().any(|name| lost_names.contains(name)) {
                lost_names.extend(names);
                lost_files.insert(file);
            } else {
                change.apply(&mut self.durable_names);
            }
        }
        self.names = self.durable_names.clone();
        let linked: BTreeSet<u64> = self.names.values().copied().collect();
        self.files.retain(|file, _| linked.contains(file));
    }
}

impl Change {
    fn touches(&self) -> (Vec<String>, u64) {
        match self {
            Change::Create(name, file) | Change::Remove(name, file) => (vec![name.clone()], *file),
            Change::Rename(from, to, file) => (vec![from.clone(), to.clone()], *file),
        }
    }

    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Change::Create(name, file) => drop(names.insert(name.clone(), *file)),
            Change::Rename(from, to, file) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
            Change::Remove(name, _) => drop(names.remove(name)),
        }
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let state = self.state();
        if !state.power {
            return Err(power_is_out());
        }
        let length = |file| state.files[file].seen.len() as u64;
        Ok(state.names.iter().map(|(name, file)| (name.clone(), length(file))).collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.change(|state| {
            if state.names.contains_key(name) {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, name.to_string()));
            }
            if state.bytes() >= state.bytes_max || state.full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let file = state.next_file;
            state.next_file += 1;
            state.files.insert(file, Contents::default());
            Ok(Change::Create(name.to_string(), file))
        })?;
        Ok(self.file(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.state();
        if !state.power {
            return Err(power_is_out());
        }
        Ok(self.file(state.named(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|state| {
            assert!(!state.names.contains_key(to), "{to} is taken");
            Ok(Change::Rename(from.to_string(), to.to_string(), state.named(from)?))
        })?;
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change(|state| Ok(Change::Remove(name.to_string(), state.named(name)?)))?;
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let (mut state, fate) = self.operate()?;
        match fate {
            Fate::Succeeds => {
                state.durable_names = state.names.clone();
                state.changes.clear();
                Ok(())
            }
            Fate::Fails => Err(failed()),
            Fate::Cut => Err(power_is_out()),
        }
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        let state = self.state();
        Ok(Some(if state.full { 0 } else { state.bytes_max.saturating_sub(state.bytes()) }))
    }

    /// Does the work at once, some of it before some of the operations that follow, or when it is waited for.
    fn spawn(&self, work: Task) -> Join {
        if self.state().rng.bool() {
            work();
            return Box::new(|| ());
        }
        let helper = Arc::new(Mutex::new(Helper::new(work)));
        let disk = self.clone();
        disk.state().aside.push(helper.clone());
        Box::new(move || disk.help(&helper, usize::MAX))
    }
}

struct SimFile {
    disk: SimDisk,
    file: u64,
}

impl DiskFile for SimFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.disk.state();
        if !state.power {
            return Err(power_is_out());
        }
        let seen = &state.files[&self.file].seen;
        match seen.get(offset as usize..offset as usize + bytes.len()) {
            Some(found) => {
                bytes.copy_from_slice(found);
                Ok(())
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (mut state, fate) = self.disk.operate()?;
        let state = &mut *state;
        let (operation, all) = (state.operations, state.bytes());
        let contents = state.files.get_mut(&self.file).expect("an open file is there");
        let grows = (offset + bytes.len() as u64).saturating_sub(contents.seen.len() as u64);
        let too_much = (all + grows).saturating_sub(state.bytes_max);
        let full = state.full || (grows > 0 && too_much > 0);
        let mut written = bytes.len();
        if fate == Fate::Fails || state.full {
            written = state.rng.usize(..=written.div_ceil(SECTOR)) * SECTOR;
            written = written.min(bytes.len());
        } else if full {
            written -= written.min(too_much as usize);
        }
        put(&mut contents.seen, offset as usize, &bytes[..written]);
        let (first, end) = (offset as usize / SECTOR, (offset as usize + written).div_ceil(SECTOR));
        for sector in (first..end).filter(|_| written > 0) {
            let start = sector * SECTOR;
            let version = contents.seen[start..contents.seen.len().min(start + SECTOR)].to_vec();
            contents.unsynced.entry(sector).or_default().push((operation, version));
        }
        match fate {
            Fate::Cut => Err(power_is_out()),
            Fate::Fails => Err(failed()),
            Fate::Succeeds if full => Err(io::ErrorKind::StorageFull.into()),
            Fate::Succeeds => Ok(()),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        let (mut state, fate) = self.disk.operate()?;
        let state = &mut *state;
        if fate == Fate::Cut {
            return Err(power_is_out());
        }
        let contents = state.files.get_mut(&self.file).expect("an open file is there");
        for (sector, versions) in std::mem::take(&mut contents.unsynced) {
            if fate == Fate::Succeeds || state.rng.bool() {
                let (_, bytes) = versions.last().expect("a sector is there because it was written");
                put(&mut contents.durable, sector * SECTOR, bytes);
            }
        }
        if fate == Fate::Succeeds { Ok(()) } else { Err(failed()) }
    }

    fn forget(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        if !state.power {
            return Err(power_is_out());
        }
        let contents = state.files.get_mut(&self.file).expect("an open file is there");
        let sectors = offset as usize / SECTOR..(offset + bytes) as usize / SECTOR;
        for sector in sectors.filter(|sector| !contents.unsynced.contains_key(sector)) {
            let start = sector * SECTOR;
            let end = (start + SECTOR).min(contents.seen.len());
            for place in start..end {
                contents.seen[place] = contents.durable.get(place).copied().unwrap_or(0);
            }
        }
        Ok(())
    }
}

/// Writes into a file that grows as needed.
fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    if file.len() < offset + bytes.len() {
        file.resize(offset + bytes.len(), 0);
    }
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn power_is_out() -> io::Error {
    io::Error::other("the power is out")
}

fn failed() -> io::Error {
    io::Error::other("the disk failed")
}
