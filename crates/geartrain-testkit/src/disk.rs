//! A simulated disk: a power cut loses unsynced sectors and directory changes, and tests inject faults.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use geartrain_store::wal::{Disk, DiskFile, Join, Task};

const SECTOR: usize = 512;

/// Files in memory behind a simulated page cache.
///
/// Writes are visible at once. A power cut ([`crash`](SimDisk::crash)) keeps any subset of what was not
/// synced: each sector in any version it had, and each directory change that does not depend on a lost one.
/// All random choices depend on the seed alone.
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

/// A background task: a thread that advances by a given number of operations. So a run depends on the seed
/// alone, and yet other operations may fall between any two of the task's.
struct Helper {
    turns: Sender<usize>,
    /// Receives a message when the task is suspended, and ends when the task is done.
    stops: Receiver<()>,
}

/// The task's side of the hand-over.
struct Turns {
    turns: Receiver<usize>,
    /// Operations left in this turn.
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

    /// Runs `operations` of it. Returns whether it is done.
    fn help(&self, operations: usize) -> bool {
        self.turns.send(operations).is_err() || self.stops.recv().is_err()
    }
}

/// On a background task's thread: waits for its turn, and returns true.
fn await_turn() -> bool {
    TURNS.with_borrow_mut(|turns| {
        let Some(Turns { turns, left, stops }) = turns else { return false };
        if *left == 0 {
            let _ = stops.send(());
            // A background task whose driver is gone runs on by itself.
            *left = turns.recv().unwrap_or(usize::MAX);
        }
        *left -= 1;
        true
    })
}

/// The content of a file.
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

/// The fate of an operation.
#[derive(PartialEq)]
enum Fate {
    Succeeds,
    /// Fails, after some of it was done.
    Fails,
    /// The power goes; how much of it was done is decided by the crash.
    Cut,
}

/// What a crash keeps of unsynced writes.
enum CrashKeeps {
    Nothing,
    Everything,
    /// Each sector and each directory change with this probability.
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

    /// Cuts the power during the operation after `operations` more.
    pub fn cut_power_after(&self, operations: u64) {
        let mut state = self.state();
        state.power_out_after = Some(state.operations + operations);
    }

    /// Fails the operation after `operations` more, half done. A failed sync loses any part of the unsynced
    /// writes, and reads still return them until the page cache drops them, as on Linux.
    pub fn fail_after(&self, operations: u64) {
        let mut state = self.state();
        state.fail_after = Some(state.operations + operations);
    }

    /// Limits the bytes of all files together.
    pub fn set_bytes_max(&self, bytes: u64) {
        self.state().bytes_max = bytes;
    }

    /// Makes every write fail with a full disk, overwrites too, as on a copy-on-write file system.
    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// Clears all injected faults.
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

    /// Cuts the power and restores it. The new disk has what was durable and some of the rest; all operations
    /// on this one fail. Pending faults move to the new one.
    pub fn crash(&self) -> SimDisk {
        let kept = {
            let mut state = self.state();
            match state.rng.u8(..6) {
                0 => CrashKeeps::Nothing,
                1 => CrashKeeps::Everything,
                2 => CrashKeeps::Some(0.9),
                3 => CrashKeeps::Some(0.1),
                4 => CrashKeeps::Some(0.5),
                _ => {
                    let written = state.files.values().flat_map(|file| file.unsynced.values().flatten());
                    let operations: Vec<u64> = written.map(|(operation, _)| *operation).collect();
                    match state.rng.choice(operations) {
                        Some(operation) => CrashKeeps::Until(operation, state.rng.usize(..64)),
                        None => CrashKeeps::Everything,
                    }
                }
            }
        };
        self.crash_and_keep(kept)
    }

    /// A crash that keeps nothing unsynced.
    pub fn crash_and_lose_all(&self) -> SimDisk {
        self.crash_and_keep(CrashKeeps::Nothing)
    }

    /// Kills the process but not the system: nothing is lost, and nothing becomes durable. All operations on
    /// this disk fail.
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

    fn crash_and_keep(&self, kept: CrashKeeps) -> SimDisk {
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

    /// The state, for one more operation. Background tasks may advance just before.
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

    /// Advances a background task by `operations`.
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

    /// Drops what a crash loses.
    fn lose(&mut self, kept: &CrashKeeps) {
        for contents in self.files.values_mut() {
            for (sector, versions) in std::mem::take(&mut contents.unsynced) {
                let version = match kept {
                    CrashKeeps::Nothing => None,
                    CrashKeeps::Everything => versions.last(),
                    CrashKeeps::Some(chance) if self.rng.f64() < *chance => {
                        // Mostly the last version; an earlier one if the system happened to write back that
                        // one only.
                        let newer = self.rng.usize(..versions.len()).max(self.rng.usize(..versions.len()));
                        versions.get(newer)
                    }
                    CrashKeeps::Some(_) => None,
                    CrashKeeps::Until(operation, sectors) => versions.iter().rfind(|(written_by, _)| {
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
                CrashKeeps::Nothing => true,
                CrashKeeps::Everything | CrashKeeps::Until(..) => false,
                CrashKeeps::Some(chance) => self.rng.f64() >= *chance,
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

    /// Starts a background task; it advances before later operations, or when it is joined.
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
