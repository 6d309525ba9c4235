//! Salvage: saves the readable jobs of a damaged data directory into another one.
//!
//! A change builds on all changes before it. So salvage saves a checkpoint, and the batches after it up to
//! the first that cannot be read. If the newest checkpoint is damaged, the previous one does as well, as long
//! as the log between the two can be read. If not, the good parts of the damaged one are restored, and the
//! log is applied to them except for changes to jobs that are lost.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use geartrain_core::engine::{Delta, Effects, Engine, Limits, Placeholders, RowId};
use geartrain_core::{Clock, Jid};

use crate::checkpoint::{Checkpoints, GoodParts, position_in};
use crate::copy_target::{CopyTarget, DirectoryTarget, FileReader};
use crate::fsck::{Report, check_copy};
use crate::options::StoreOptions;
use crate::recovery::{OpenError, Store};
use crate::spill::files;
use crate::wal::{
    self, CopiedWal, Disk, DiskFile, Position, RealDisk, TornTail, WalError, random_u64, read_or_zero,
};
use geartrain_core::SystemClock;

/// Jobs per part of the checkpoint that is written.
const PART_JOBS: usize = 1_000;

/// What was saved, and what was lost.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Salvaged {
    /// The contents of the copy.
    pub saved: Report,
    /// Batches of the log in the copy, from the checkpoint on.
    pub batches: u64,
    /// The errors of damaged checkpoints.
    pub checkpoints: Vec<String>,
    /// Where the log is damaged; `None` if it is not.
    pub damage: Option<WalError>,
    /// The torn tail of the log, which the copy does not have; `None` if there is none.
    pub torn_tail: Option<TornTail>,
    /// Good batches behind the damage. They build on lost changes, and are not in the copy.
    pub left_batches: u64,
    /// Bytes in these batches.
    pub left_bytes: u64,
    /// The jobs whose payloads cannot be read, each with the reason. They are not in the copy, and jobs that
    /// depended on them no longer do.
    pub jobs: Vec<String>,
    /// Bytes of a checkpoint that were damaged and could not be replaced; `checkpoints` says where they are.
    pub lost_bytes: u64,
    /// Jobs in these bytes: not even their jids are known.
    pub nameless_jobs: u64,
    /// Changes in the log to such jobs, which were skipped.
    pub left_changes: u64,
}

impl Salvaged {
    /// Whether the copy has everything, in spite of the damage.
    pub fn is_whole(&self) -> bool {
        self.damage.is_none() && self.jobs.is_empty() && self.lost_bytes == 0
    }
}

/// Saves the readable jobs of a directory that no process uses into another one, which must be empty or
/// missing.
///
/// The original is only read. If nothing can be saved that is an error, and nothing is left behind.
pub fn salvage(directory: &Path, out: &Path) -> Result<Salvaged, OpenError> {
    let store = Store::read_only(directory, Limits::default())?;
    let mut target = DirectoryTarget::new(out)?;
    let mut salvaged = Salvaged::default();
    match choose(&store, &mut salvaged.checkpoints)? {
        Base::Checkpoint { name, bytes, position } => {
            target.add(&name, bytes, &mut FileReader::new(&*store.disk(), &name)?)?;
            copy_wal(&store, &mut target, position, &mut salvaged, &mut decode)?;
        }
        Base::Wal => {
            copy_wal(&store, &mut target, wal::BEGINNING, &mut salvaged, &mut decode)?;
            if salvaged.batches == 0 && salvaged.damage.is_some() {
                let why = "no checkpoint can be read, and the log cannot be read from its beginning";
                return Err(OpenError::NothingKept { why });
            }
        }
        Base::Parts { parts, position } => rebuild(&store, &mut target, &parts, position, &mut salvaged)?,
    }
    let disk = store.disk();
    for (file, bytes) in files::files_on(&*disk)? {
        copy_or_zero(&*disk, &mut target, &files::name_of(file), bytes)?;
    }
    let copy = Arc::new(RealDisk::new(target.partial())?);
    salvaged.jobs = Store::on(copy, StoreOptions::default(), Limits::default()).abandon_unreadable()?;
    salvaged.saved = check_copy(target.partial())?;
    target.keep()?;
    Ok(salvaged)
}

/// What the copy starts from.
enum Base {
    /// A readable checkpoint.
    Checkpoint { name: String, bytes: u64, position: Position },
    /// The log, from its beginning.
    Wal,
    /// The good parts of a damaged checkpoint.
    Parts { parts: GoodParts, position: Position },
}

/// Chooses the start that saves the most, and reports the errors of damaged checkpoints.
fn choose(store: &Store, wrong: &mut Vec<String>) -> Result<Base, OpenError> {
    let (checkpoints, disk) = (store.checkpoints(), store.disk());
    let names = checkpoints.names()?;
    let newest = names.last().and_then(|(name, _)| position_in(name)).unwrap_or_default();
    let mut readable = None;
    for (name, bytes) in names.iter().rev().skip(fewest_unreadable(store, names.len())) {
        let opened = checkpoints.open(name, *bytes).map_err(OpenError::from);
        let restored = opened.and_then(|checkpoint| {
            let position = checkpoint.position;
            store.restore(checkpoint).map(|_| position)
        });
        match restored {
            Ok(position) => {
                readable = Some(Base::Checkpoint { name: name.clone(), bytes: *bytes, position });
                break;
            }
            Err(OpenError::Damaged { place, source }) => {
                wrong.push(format!("{place} cannot be decoded: {source}"));
            }
            Err(why) => wrong.push(why.to_string()),
        }
    }
    let from = match &readable {
        Some(Base::Checkpoint { position, .. }) => *position,
        _ => Position::default(),
    };
    let from_beginning = readable.is_none() && wal::has_beginning(&*disk)?;
    if (readable.is_some() || from_beginning) && reach(&*disk, from)? >= newest {
        return Ok(readable.unwrap_or(Base::Wal));
    }
    // The log has a gap before the newest checkpoint, so the good parts of that checkpoint are worth more.
    for (name, bytes) in names.iter().rev() {
        let Some(position) = position_in(name).filter(|position| *position > from) else { continue };
        let parts = checkpoints.read_good_parts(name, *bytes)?;
        let head = parts.head.clone().map(|head| &parts.image[head]);
        if head.is_some_and(|head| Engine::restore(Limits::default(), head).is_ok()) {
            let lost = parts.lost.iter().map(|lost| {
                format!("the checkpoint (file {name}) is damaged from byte {} to {}", lost.start, lost.end)
            });
            wrong.extend(lost);
            return Ok(Base::Parts { parts, position });
        }
    }
    match readable {
        Some(base) => Ok(base),
        None if disk.list()?.iter().any(|(name, _)| name.starts_with("log-")) => Ok(Base::Wal),
        None => Err(OpenError::NothingKept { why: "no checkpoint can be read, and there is no log" }),
    }
}

/// How many of the newest checkpoints to skip: where they refer to a damaged payload file, the log behind an
/// older one may have the payload itself.
fn fewest_unreadable(store: &Store, checkpoints: usize) -> usize {
    let (mut best, mut fewest) = (0, store.unreadable_skipping(0).unwrap_or(0));
    for skipped in 1..=checkpoints {
        if fewest == 0 {
            break;
        }
        // Without a checkpoint, the log must be there from its beginning; otherwise this is an error.
        match store.unreadable_skipping(skipped) {
            Ok(unreadable) if unreadable < fewest => (best, fewest) = (skipped, unreadable),
            _ => {}
        }
    }
    best
}

/// How far a log can be read from a position on.
fn reach(disk: &dyn Disk, from: Position) -> Result<Position, OpenError> {
    match wal::survey(disk, from, &mut |_, _| Ok(())) {
        Ok(extent) => Ok(extent.end),
        Err(WalError::Damaged { segment, offset, .. }) => Ok(Position { segment, offset }),
        // The manifest tells where the log ends, not how far it can be read.
        Err(WalError::Manifest { .. }) => Ok(Position { segment: u64::MAX, offset: 0 }),
        Err(error) => Err(error.into()),
    }
}

/// Copies the log from a position on, as far as `take` accepts its batches.
fn copy_wal(
    store: &Store,
    target: &mut DirectoryTarget,
    first: Position,
    salvaged: &mut Salvaged,
    take: &mut dyn FnMut(&[u8]) -> Result<(), String>,
) -> Result<Position, OpenError> {
    let copied = wal::copy(&*store.disk(), target, first, &mut |position, body| {
        take(body).map_err(|why| WalError::damaged(position.segment, position.offset, why))
    })?;
    let CopiedWal { batches, damage, end, manifest, torn_tail, left_batches, left_bytes, .. } = copied;
    target.add(wal::MANIFEST, manifest.len() as u64, &mut &manifest[..])?;
    (salvaged.batches, salvaged.damage, salvaged.torn_tail) = (batches, damage, torn_tail);
    (salvaged.left_batches, salvaged.left_bytes) = (left_batches, left_bytes);
    Ok(end)
}

/// Checks that a batch consists of changes.
fn decode(mut body: &[u8]) -> Result<(), String> {
    while !body.is_empty() {
        Delta::decode(&mut body).map_err(|why| why.to_string())?;
    }
    Ok(())
}

/// Restores the good parts of a checkpoint, applies the log to them, and writes the result as a checkpoint.
fn rebuild(
    store: &Store,
    target: &mut DirectoryTarget,
    parts: &GoodParts,
    position: Position,
    salvaged: &mut Salvaged,
) -> Result<(), OpenError> {
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    let end = copy_wal(store, target, position, salvaged, &mut |body| {
        decode(body)?;
        bodies.push(body.to_vec());
        Ok(())
    })?;
    // A change may depend on a lost job in a way that cannot be skipped. Then the parts are saved without the
    // log.
    let applied = catch_unwind(AssertUnwindSafe(|| apply(parts, &bodies)));
    let (engine, lost, left_changes) = match applied {
        Ok(Ok(applied)) if applied.0.check().is_ok() => applied,
        _ => {
            salvaged.left_batches += salvaged.batches;
            salvaged.left_bytes += bodies.iter().map(|body| body.len() as u64).sum::<u64>();
            salvaged.batches = 0;
            let why = "changes from here on rely on jobs that are lost";
            salvaged.damage.get_or_insert(WalError::damaged(position.segment, position.offset, why));
            apply(parts, &[])?
        }
    };
    salvaged.lost_bytes = parts.lost_bytes();
    (salvaged.nameless_jobs, salvaged.left_changes) = (lost, left_changes);
    write_checkpoint(Arc::new(RealDisk::new(target.partial())?), end, engine)
}

/// Applies changes to the restored parts. Returns the engine, the number of lost jobs, and the number of
/// skipped changes.
fn apply(parts: &GoodParts, bodies: &[Vec<u8>]) -> Result<(Engine, u64, u64), OpenError> {
    let damaged = |source| OpenError::Damaged { place: "the checkpoint".into(), source: Box::new(source) };
    let head = parts.head.clone().map_or(&[][..], |head| &parts.image[head]);
    let mut restoring = Engine::restore(Limits::default(), head).map_err(damaged)?;
    for part in &parts.jobs {
        // A part that cannot be decoded in spite of its checksum is lost too: its jobs are missing
        // afterwards.
        let _ = restoring.add(&parts.image[part.clone()]);
    }
    let marker = random_u64();
    let name = |row: RowId| {
        Jid::new(format!("lost-{marker:016x}-{row}")).expect("letters, digits and hyphens make a jid")
    };
    let (mut engine, mut placeholders): (Engine, Placeholders) =
        restoring.finish_with_placeholders(name).map_err(damaged)?;
    let mut left_changes = 0;
    for body in bodies {
        let mut rest = &body[..];
        while !rest.is_empty() {
            let delta = Delta::decode(&mut rest).map_err(damaged)?;
            left_changes += u64::from(!engine.apply_around(&delta, &mut placeholders));
        }
    }
    let (now, mut effects) = (SystemClock.now(), Effects::default());
    placeholders.values().for_each(|jid| engine.abandon(now, jid, &mut effects));
    Ok((engine, placeholders.len() as u64, left_changes))
}

/// Writes a checkpoint of an engine that stands for all of the log before a position.
fn write_checkpoint(disk: Arc<dyn Disk>, position: Position, mut engine: Engine) -> Result<(), OpenError> {
    let checkpoints = Checkpoints::new(disk, Arc::default());
    let mut committer = checkpoints.begin(position)?;
    let mut part = Vec::new();
    engine.begin_snapshot(&mut part);
    committer.write(&part)?;
    let mut is_last = false;
    while !is_last {
        part.clear();
        is_last = engine.continue_snapshot(PART_JOBS, &mut part);
        committer.write(&part)?;
    }
    Ok(checkpoints.install(committer, Position::default())?)
}

/// Copies a file, with zeroes where it cannot be read.
fn copy_or_zero(from: &dyn Disk, to: &mut DirectoryTarget, name: &str, bytes: u64) -> std::io::Result<()> {
    to.add(name, bytes, &mut ReadOrZero { file: from.open(name)?, offset: 0 })
}

struct ReadOrZero {
    file: Arc<dyn DiskFile>,
    offset: u64,
}

impl Read for ReadOrZero {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        read_or_zero(&*self.file, self.offset, buffer);
        self.offset += buffer.len() as u64;
        Ok(buffer.len())
    }
}
