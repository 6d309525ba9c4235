//! Limits of the disk without a queue: the upper bound for every durable queue on it.

use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use geartrain::engine::{Effects, Engine, Limits};
use geartrain::{Command, Timestamp};
use geartrain_store::wal::{Position, RealDisk, Wal, WalOptions};

use super::COMMANDS_PER_LIFECYCLE;
use super::load::{self, Load};
use crate::failure::Failure;

/// The size of one write, for the flush rate.
const BLOCK_BYTES: usize = 4096;
/// The size of the file that is overwritten repeatedly.
const FILE_BYTES: u64 = 64 << 20;

/// A directory for the measurements without a queue, removed when dropped.
pub(super) struct Scratch {
    directory: PathBuf,
    /// Preallocated, so that a commit only overwrites.
    file: File,
    file_bytes: u64,
    log: Wal,
}

impl Scratch {
    pub(super) fn new(directory: &Path, quick: bool) -> Result<Scratch, Failure> {
        let directory = directory.join("geartrain-bench-limits");
        let failed = |error| cannot_write(&directory, error);
        let file_bytes = if quick { FILE_BYTES / 16 } else { FILE_BYTES };
        fs::create_dir(&directory).map_err(failed)?;
        let file = written_once(&directory.join("overwritten"), file_bytes).map_err(failed)?;
        let disk = RealDisk::new(&directory).map_err(failed)?;
        let log = Wal::open(Arc::new(disk), WalOptions::default(), Position::default(), &mut |_, _| Ok(()))
            .map_err(|error| cannot_write(&directory, error))?;
        Ok(Scratch { directory, file, file_bytes, log })
    }

    /// Durable block writes per second.
    pub(super) fn flushes(&self, window: Duration) -> Result<f64, Failure> {
        let failed = |error| cannot_write(&self.directory, error);
        let (block, mut offset) = ([b'x'; BLOCK_BYTES], 0);
        load::rate(window, u64::MAX, || {
            self.file.write_all_at(&block, offset % self.file_bytes).map_err(failed)?;
            self.file.sync_data().map_err(failed)?;
            offset += BLOCK_BYTES as u64;
            Ok(1)
        })
    }

    /// Lifecycles per second of the bare WAL: one batch and one flush for `in_flight` commands, three per
    /// lifecycle.
    pub(super) fn bare_log(
        &mut self,
        in_flight: u32,
        lifecycle_bytes: f64,
        window: Duration,
    ) -> Result<f64, Failure> {
        let lifecycles = f64::from(in_flight) / COMMANDS_PER_LIFECYCLE;
        let batch = vec![b'x'; (lifecycles * lifecycle_bytes).ceil() as usize];
        let Scratch { directory, log, .. } = self;
        let batches = load::rate(window, u64::MAX, || {
            let written = log.append(&batch).and_then(|_| log.sync()).and_then(|()| log.release(log.end()));
            written.map(|()| 1).map_err(|error| cannot_write(directory, error))
        })?;
        Ok(batches * lifecycles)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, removing the parent directory reports it.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn written_once(path: &Path, bytes: u64) -> io::Result<File> {
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    let zeroes = vec![0; 1 << 20];
    for offset in (0..bytes).step_by(zeroes.len()) {
        file.write_all_at(&zeroes, offset)?;
    }
    file.sync_all()?;
    Ok(file)
}

fn cannot_write(directory: &Path, error: impl Display) -> Failure {
    Failure::Unreachable(format!("cannot write in {}: {error}", directory.display()))
}

/// WAL bytes per lifecycle, after `before` jobs were completed.
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
