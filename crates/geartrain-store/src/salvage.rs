//! Saves what can be saved from a damaged directory, into another one.
//!
//! A change rests on all that came before it. So what is saved is a checkpoint, and the batches after it up
//! to the first that cannot be read. If the newest checkpoint is damaged, the previous one does as well, as
//! long as the log between the two can be read. If not, the good pieces of the damaged one are restored, and
//! the log is applied to them except for changes to jobs that are lost.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use geartrain_core::engine::{Delta, Effects, Engine, Limits, Placeholders, RowId};
use geartrain_core::{Clock, Jid};

use crate::backup::{Target, copy_file};
use crate::checkpoint::{Checkpoints, Gate, GoodPieces, position_in};
use crate::embedded::{OpenError, Report, Store, check};
use crate::log::{self, Copied, Disk, LogError, Position, RealDisk, TornTail, chance, read_what_can_be_read};
use crate::options::StoreOptions;
use crate::payloads;
use geartrain_core::SystemClock;

/// How many jobs are in a piece of the checkpoint that is written.
const PIECE_JOBS: usize = 1_000;

/// What was saved, and what was not.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Salvaged {
    /// What is in the copy.
    pub saved: Report,
    /// How many batches of the log are in it, from the checkpoint on.
    pub batches: u64,
    /// What is wrong with checkpoints that are damaged.
    pub checkpoints: Vec<String>,
    /// Where the log is damaged; none if it is not.
    pub damage: Option<LogError>,
    /// What a crash left at the end of the log, which the copy does not have; none if there is nothing.
    pub torn_tail: Option<TornTail>,
    /// How many good batches lie behind the damage. They rest on what is lost, and are not in the copy.
    pub left_batches: u64,
    /// How many bytes these hold.
    pub left_bytes: u64,
    /// The jobs whose payloads cannot be read, each with why. They are not in the copy, and those that waited for them wait for them no longer.
    pub jobs: Vec<String>,
    /// How many bytes of a checkpoint were damaged and could not be replaced; `checkpoints` says where they
    /// are.
    pub lost_bytes: u64,
    /// How many jobs were in these, so that not even their names are known.
    pub nameless_jobs: u64,
    /// How many changes in the log were to such jobs, and were left out.
    pub left_changes: u64,
}

impl Salvaged {
    /// Whether the copy has everything, in spite of what is damaged.
    pub fn is_whole(&self) -> bool {
        self.damage.is_none() && self.jobs.is_empty() && self.lost_bytes == 0
    }
}

/// Writes what can be saved from a directory that nobody uses into another one, which must be empty or not there.
///
/// The original is only read. If nothing can be saved that is an error, and nothing is left behind.
pub fn salvage(directory: &Path, out: &Path) -> Result<Salvaged, OpenError> {
    let store = Store::to_be_read(directory, Limits::default())?;
    let target = Target::new(out)?;
    let mut salvaged = Salvaged::default();
    match choose(&store, &mut salvaged.checkpoints)? {
        Base::Checkpoint { name, bytes, position } => {
            copy_file(&*store.disk(), &target.disk, &name, bytes)?;
            copy_log(&store, &target, position, &mut salvaged, &mut decode)?;
        }
        Base::Log => {
            copy_log(&store, &target, log::BEGINNING, &mut salvaged, &mut decode)?;
            if salvaged.batches == 0 && salvaged.damage.is_some() {
                let why = "no checkpoint can be read, and the log cannot be read from its beginning";
                return Err(OpenError::NothingKept { why });
            }
        }
        Base::Pieces { pieces, position } => rebuild(&store, &target, &pieces, position, &mut salvaged)?,
    }
    let disk = store.disk();
    for (file, bytes) in payloads::files_on(&*disk)? {
        copy_what_can_be_read(&*disk, &target.disk, &payloads::name_of(file), bytes)?;
    }
    let copy = Arc::new(RealDisk::new(out)?);
    salvaged.jobs = Store::on(copy, StoreOptions::default(), Limits::default()).abandon_unreadable()?;
    salvaged.saved = check(out)?;
    target.keep()?;
    Ok(salvaged)
}

/// What a copy begins with.
enum Base {
    /// A checkpoint that can be read.
    Checkpoint { name: String, bytes: u64, position: Position },
    /// The log, from its beginning.
    Log,
    /// What is left of a checkpoint.
    Pieces { pieces: GoodPieces, position: Position },
}

/// Chooses what saves the most, and says what is wrong with the checkpoints that are damaged.
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
                wrong.push(format!("{place} makes no sense: {source}"));
            }
            Err(why) => wrong.push(why.to_string()),
        }
    }
    let from = match &readable {
        Some(Base::Checkpoint { position, .. }) => *position,
        _ => Position::default(),
    };
    let from_beginning = readable.is_none() && log::has_beginning(&*disk)?;
    if (readable.is_some() || from_beginning) && reach(&*disk, from)? >= newest {
        return Ok(readable.unwrap_or(Base::Log));
    }
    // Something is missing between that and the newest checkpoint, so what is left of that one is worth more.
    for (name, bytes) in names.iter().rev() {
        let Some(position) = position_in(name).filter(|position| *position > from) else { continue };
        let pieces = checkpoints.read_good_pieces(name, *bytes)?;
        let head = pieces.head.clone().map(|head| &pieces.image[head]);
        if head.is_some_and(|head| Engine::restore(Limits::default(), head).is_ok()) {
            let lost = pieces.lost.iter().map(|lost| {
                format!("the checkpoint (file {name}) is damaged from byte {} to {}", lost.start, lost.end)
            });
            wrong.extend(lost);
            return Ok(Base::Pieces { pieces, position });
        }
    }
    match readable {
        Some(base) => Ok(base),
        None if disk.list()?.iter().any(|(name, _)| name.starts_with("log-")) => Ok(Base::Log),
        None => Err(OpenError::NothingKept { why: "no checkpoint can be read, and there is no log" }),
    }
}

/// How many of the newest checkpoints are better not used: where they name a damaged payload file, the log behind an older one may have
/// the payload itself.
fn fewest_unreadable(store: &Store, checkpoints: usize) -> usize {
    let (mut best, mut fewest) = (0, store.unreadable_without(0).unwrap_or(0));
    for skipped in 1..=checkpoints {
        if fewest == 0 {
            break;
        }
        // Without any, the log must have been kept from its beginning; if it was not this is an error.
        match store.unreadable_without(skipped) {
            Ok(unreadable) if unreadable < fewest => (best, fewest) = (skipped, unreadable),
            _ => {}
        }
    }
    best
}

/// How far a log can be read from a position on.
fn reach(disk: &dyn Disk, from: Position) -> Result<Position, OpenError> {
    match log::survey(disk, from, &mut |_, _| Ok(())) {
        Ok(extent) => Ok(extent.end),
        Err(LogError::Damaged { segment, offset, .. }) => Ok(Position { segment, offset }),
        // It says where the log ends, not how far it can be read.
        Err(LogError::Manifest { .. }) => Ok(Position { segment: u64::MAX, offset: 0 }),
        Err(error) => Err(error.into()),
    }
}

/// Copies the log from a position on, as far as `take` can make something of its batches.
fn copy_log(
    store: &Store,
    target: &Target,
    first: Position,
    salvaged: &mut Salvaged,
    take: &mut dyn FnMut(&[u8]) -> Result<(), String>,
) -> Result<Position, OpenError> {
    let copied = log::copy(&*store.disk(), &target.disk, first, &mut |position, body| {
        take(body).map_err(|why| LogError::damaged(position.segment, position.offset, why))
    })?;
    let Copied { batches, damage, end, torn_tail, left_batches, left_bytes, .. } = copied;
    (salvaged.batches, salvaged.damage, salvaged.torn_tail) = (batches, damage, torn_tail);
    (salvaged.left_batches, salvaged.left_bytes) = (left_batches, left_bytes);
    Ok(end)
}

/// Whether a batch consists of changes.
fn decode(mut body: &[u8]) -> Result<(), String> {
    while !body.is_empty() {
        Delta::decode(&mut body).map_err(|why| why.to_string())?;
    }
    Ok(())
}

/// Restores the good pieces of a checkpoint, applies the log to them, and writes a checkpoint that stands for
/// all of that.
fn rebuild(
    store: &Store,
    target: &Target,
    pieces: &GoodPieces,
    position: Position,
    salvaged: &mut Salvaged,
) -> Result<(), OpenError> {
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    let end = copy_log(store, target, position, salvaged, &mut |body| {
        decode(body)?;
        bodies.push(body.to_vec());
        Ok(())
    })?;
    // A change may rely on a lost job in a way that cannot be skipped. Then the pieces are saved without the
    // log.
    let applied = catch_unwind(AssertUnwindSafe(|| apply(pieces, &bodies)));
    let (engine, lost, left_changes) = match applied {
        Ok(Ok(applied)) if applied.0.check().is_ok() => applied,
        _ => {
            salvaged.left_batches += salvaged.batches;
            salvaged.left_bytes += bodies.iter().map(|body| body.len() as u64).sum::<u64>();
            salvaged.batches = 0;
            let why = "changes from here on rely on jobs that are lost";
            salvaged.damage.get_or_insert(LogError::damaged(position.segment, position.offset, why));
            apply(pieces, &[])?
        }
    };
    salvaged.lost_bytes = pieces.lost_bytes();
    (salvaged.nameless_jobs, salvaged.left_changes) = (lost, left_changes);
    write_checkpoint(Arc::new(RealDisk::new(target.path())?), end, engine)
}

/// The engine that is left when changes are applied to some pieces, how many jobs are lost, and how many
/// changes were left out.
fn apply(pieces: &GoodPieces, bodies: &[Vec<u8>]) -> Result<(Engine, u64, u64), OpenError> {
    let damaged = |source| OpenError::Damaged { place: "the checkpoint".into(), source: Box::new(source) };
    let head = pieces.head.clone().map_or(&[][..], |head| &pieces.image[head]);
    let mut restoring = Engine::restore(Limits::default(), head).map_err(damaged)?;
    for piece in &pieces.jobs {
        // One that makes no sense in spite of its checksum is as good as lost: its jobs are missing
        // afterwards.
        let _ = restoring.add(&pieces.image[piece.clone()]);
    }
    let marker = chance();
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

/// Writes a checkpoint of an engine, which stands for all of the log before a position.
fn write_checkpoint(disk: Arc<dyn Disk>, position: Position, mut engine: Engine) -> Result<(), OpenError> {
    let checkpoints = Checkpoints::new(disk, Gate::default());
    let mut writer = checkpoints.begin(position)?;
    let mut piece = Vec::new();
    engine.begin_snapshot(&mut piece);
    writer.write(&piece)?;
    let mut is_last = false;
    while !is_last {
        piece.clear();
        is_last = engine.continue_snapshot(PIECE_JOBS, &mut piece);
        writer.write(&piece)?;
    }
    Ok(checkpoints.finish(writer, Position::default())?)
}

/// Copies a file, with zeroes where it cannot be read.
fn copy_what_can_be_read(from: &dyn Disk, to: &dyn Disk, name: &str, bytes: u64) -> std::io::Result<()> {
    const STRETCH: usize = 1 << 20;
    let (from, to) = (from.open(name)?, to.create(name)?);
    let mut buffer = vec![0; STRETCH];
    for offset in (0..bytes).step_by(STRETCH) {
        let stretch = &mut buffer[..(bytes - offset).min(STRETCH as u64) as usize];
        read_what_can_be_read(&*from, offset, stretch);
        to.write_at(stretch, offset)?;
    }
    to.sync_data()
}
