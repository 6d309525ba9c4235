//! What the disk could do without a queue: nothing that keeps its promises is faster than this.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use geartrain::engine::{Effects, Engine, Limits};
use geartrain::{Command, Timestamp};

use super::COMMANDS_PER_LIFECYCLE;
use super::load::{self, Load};
use crate::failure::Failure;

/// How much the disk is asked to keep at least, in the measure of its flushes.
const BLOCK: usize = 4096;
/// How long the file is that is overwritten again and again.
const FILE_BYTES: u64 = 64 << 20;

/// A file that was written once, so that a commit only has to overwrite. It goes when it is dropped.
pub(super) struct Scratch {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Scratch {
    pub(super) fn new(directory: &Path, quick: bool) -> Result<Scratch, Failure> {
        let path = directory.join("geartrain-bench-limits");
        let failed = |error| Failure::Unreachable(format!("cannot write {}: {error}", path.display()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
        let bytes = if quick { FILE_BYTES / 16 } else { FILE_BYTES };
        let scratch = Scratch { path: path.clone(), file, bytes };
        let zeroes = vec![0; 1 << 20];
        for offset in (0..bytes).step_by(zeroes.len()) {
            scratch.file.write_all_at(&zeroes, offset).map_err(failed)?;
        }
        scratch.file.sync_all().map_err(failed)?;
        Ok(scratch)
    }

    /// How often the disk makes a block durable, per second.
    pub(super) fn flushes(&self, window: Duration) -> Result<f64, Failure> {
        self.overwrite(BLOCK, window)
    }

    /// How many lifecycles per second a log of the same bytes could keep, with one write and one flush for so many commands; three of them are
    /// a lifecycle.
    pub(super) fn bare_log(
        &self,
        in_flight: u32,
        lifecycle_bytes: f64,
        window: Duration,
    ) -> Result<f64, Failure> {
        let lifecycles = f64::from(in_flight) / COMMANDS_PER_LIFECYCLE;
        let bytes = ((lifecycles * lifecycle_bytes).ceil() as usize).clamp(1, self.bytes as usize);
        Ok(self.overwrite(bytes, window)? * lifecycles)
    }

    fn overwrite(&self, bytes: usize, window: Duration) -> Result<f64, Failure> {
        let failed = |error| Failure::Unreachable(format!("cannot write {}: {error}", self.path.display()));
        let (batch, mut offset) = (vec![b'x'; bytes], 0);
        load::rate(window, u64::MAX, || {
            if offset + bytes as u64 > self.bytes {
                offset = 0;
            }
            self.file.write_all_at(&batch, offset).map_err(failed)?;
            self.file.sync_data().map_err(failed)?;
            offset += bytes as u64;
            Ok(1)
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If it cannot be removed, whoever removes the directory says so.
        let _ = fs::remove_file(&self.path);
    }
}

/// How many bytes a lifecycle makes the engine write down, once so many jobs were completed before it.
pub(super) fn lifecycle_bytes(load: &Load, before: u32) -> Result<f64, Failure> {
    const COUNTED: u32 = 1_000;
    let mut load = load.clone();
    let (mut engine, mut effects) = (Engine::new(Limits::default()), Effects::in_bytes());
    for number in 0..before + COUNTED {
        if number == before {
            effects.take_written();
        }
        let mut execute = |command: Command| engine.execute(Timestamp::from(1_000), command, &mut effects);
        execute(load.next_put().into())?;
        if let Some(job) = load::popped(execute(load.next_pop().into())) {
            execute(load::completed(job).into())?;
        }
    }
    Ok(effects.take_written().bytes.len() as f64 / f64::from(COUNTED))
}
