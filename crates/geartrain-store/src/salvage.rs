//! Saves what can be saved from a damaged directory, into another one.
//!
//! A change rests on all that came before it. So what is saved is a beginning: the newest checkpoint that can be read, and the batches after it up to
//! the first that cannot. What lies behind that is counted and left where it is.

use std::path::Path;
use std::sync::Arc;

use geartrain_core::engine::{Delta, Limits};

use crate::backup::{Target, copy_file};
use crate::embedded::{OpenError, Report, Store, check};
use crate::log::{self, Copied, Disk, LogError, Position, RealDisk};
use crate::options::StoreOptions;
use crate::payloads;

/// What was saved, and what was not.
#[derive(Debug)]
#[non_exhaustive]
pub struct Salvaged {
    /// What is in the copy.
    pub saved: Report,
    /// How many batches of the log are in it, from the checkpoint on.
    pub batches: u64,
    /// What is wrong with checkpoints that could not be used.
    pub checkpoints: Vec<String>,
    /// Where the log is damaged; none if it is not.
    pub damage: Option<LogError>,
    /// How many good batches lie behind the damage. They rest on what is lost, and are not in the copy.
    pub left_batches: u64,
    /// How many bytes these hold.
    pub left_bytes: u64,
    /// The jobs whose payloads cannot be read, each with why. They are not in the copy, and those that waited for them wait for them no longer.
    pub jobs: Vec<String>,
}

impl Salvaged {
    /// Whether anything was left out.
    pub fn is_whole(&self) -> bool {
        self.checkpoints.is_empty() && self.damage.is_none() && self.jobs.is_empty()
    }
}

/// Writes what can be saved from a directory that nobody uses into another one, which must be empty or not there.
///
/// The original is only read. If nothing can be saved that is an error, and nothing is left behind.
pub fn salvage(directory: &Path, out: &Path) -> Result<Salvaged, OpenError> {
    let store = Store::to_be_read(directory, Limits::default())?;
    let target = Target::new(out)?;
    let disk = store.disk();
    let (first, checkpoints) = newest_readable(&store, &target)?;
    let is_empty = |(name, _): &(String, u64)| !name.starts_with("log-");
    if first.is_none() && disk.list()?.iter().all(is_empty) {
        return Err(OpenError::NothingKept { why: "no checkpoint can be read, and there is no log" });
    }
    let copied = log::copy(&*disk, &target.disk, first.unwrap_or(log::BEGINNING), &mut |position, body| {
        let mut rest = body;
        while !rest.is_empty() {
            let decoded = Delta::decode(&mut rest);
            decoded.map_err(|why| LogError::damaged(position.segment, position.offset, why.to_string()))?;
        }
        Ok(())
    })?;
    let Copied { batches, damage, left_batches, left_bytes, .. } = copied;
    if first.is_none() && batches == 0 && damage.is_some() {
        let why = "no checkpoint can be read, and the log cannot be read from its beginning";
        return Err(OpenError::NothingKept { why });
    }
    for (file, bytes) in payloads::files_on(&*disk)? {
        copy_what_can_be_read(&*disk, &target.disk, &payloads::name_of(file), bytes)?;
    }
    let copy = Arc::new(RealDisk::new(out)?);
    let jobs = Store::on(copy, StoreOptions::default(), Limits::default()).abandon_unreadable()?;
    let saved = check(out)?;
    target.keep()?;
    Ok(Salvaged { saved, batches, checkpoints, damage, left_batches, left_bytes, jobs })
}

/// Copies a file, with zeroes where it cannot be read.
fn copy_what_can_be_read(from: &dyn Disk, to: &dyn Disk, name: &str, bytes: u64) -> std::io::Result<()> {
    const STRETCH: usize = 1 << 20;
    const BLOCK: usize = 4096;
    let (from, to) = (from.open(name)?, to.create(name)?);
    let mut buffer = vec![0; STRETCH];
    for offset in (0..bytes).step_by(STRETCH) {
        let stretch = &mut buffer[..(bytes - offset).min(STRETCH as u64) as usize];
        if from.read_at(stretch, offset).is_err() {
            for (number, block) in stretch.chunks_mut(BLOCK).enumerate() {
                if from.read_at(block, offset + (number * BLOCK) as u64).is_err() {
                    block.fill(0);
                }
            }
        }
        to.write_at(stretch, offset)?;
    }
    to.sync_data()
}

/// Copies the newest checkpoint that makes sense, and says where in the log it belongs and what is wrong with newer ones.
fn newest_readable(store: &Store, target: &Target) -> Result<(Option<Position>, Vec<String>), OpenError> {
    let checkpoints = store.checkpoints();
    let mut wrong = Vec::new();
    for (name, bytes) in checkpoints.names()?.into_iter().rev() {
        let opened = checkpoints.open(&name, bytes).map_err(OpenError::from);
        let restored = opened.and_then(|checkpoint| {
            let position = checkpoint.position;
            store.restore(checkpoint).map(|_| position)
        });
        let why = match restored {
            Ok(position) => {
                copy_file(&*store.disk(), &target.disk, &name, bytes)?;
                return Ok((Some(position), wrong));
            }
            Err(OpenError::Damaged { place, source }) => format!("{place} makes no sense: {source}"),
            Err(why) => why.to_string(),
        };
        wrong.push(why);
    }
    Ok((None, wrong))
}
