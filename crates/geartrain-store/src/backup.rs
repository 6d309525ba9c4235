//! Copies a directory while it is in use, into another that can be opened by itself.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use geartrain_core::SpillLocation;

use crate::checkpoint::Checkpoints;
use crate::embedded::{OpenError, Premises, make_private};
use crate::log::{self, Copied, Disk, RealDisk};
use crate::payloads;

/// What a backup consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackedUp {
    /// How many bytes the checkpoint has; 0 if there is none.
    pub checkpoint_bytes: u64,
    /// How many segments the log has.
    pub log_segments: u64,
    /// How long they are together.
    pub log_bytes: u64,
    /// How many files hold payloads that are not in memory.
    pub payload_files: u64,
    /// How long they are together.
    pub payload_file_bytes: u64,
}

/// Copies the newest checkpoint, and the log behind it as far as it is written.
pub(crate) fn backup(premises: &Premises, to: &Path) -> Result<BackedUp, OpenError> {
    let target = Target::new(to)?;
    // Until the copy is done no file goes away that it needs. New ones may come.
    let _hold = premises.gate.lock().unwrap_or_else(PoisonError::into_inner);
    let from = &premises.disk.0;
    let checkpoints = Checkpoints::new(from.clone(), premises.gate.clone());
    let (first, checkpoint_bytes) = match checkpoints.names()?.pop() {
        None => (log::BEGINNING, 0),
        Some((name, bytes)) => {
            // Read as a whole, so that a damaged one is noticed while the original is still there.
            let checkpoint = checkpoints.open(&name, bytes)?;
            let position = checkpoint.position;
            checkpoint.verify()?;
            copy_file(&**from, &target.disk, &name, bytes)?;
            (position, bytes)
        }
    };
    let copied = log::copy(&**from, &target.disk, first, &mut |_, _| Ok(()))?;
    let Copied { segments, bytes, damage, .. } = copied;
    if let Some(damage) = damage {
        return Err(damage.into());
    }
    // After the log: the files that its deltas name were complete before it was written. What is added to
    // other files meanwhile is in the log, and need not be in them.
    let mut payload_files = payloads::files_on(&**from)?;
    for (file, bytes) in std::mem::take(&mut payload_files) {
        match copy_file(&**from, &target.disk, &payloads::name_of(file), bytes) {
            // The file of a payload whose put was never executed.
            Err(error) if error.kind() == io::ErrorKind::NotFound && SpillLocation::is_own_file(file) => {
                continue;
            }
            copied => copied?,
        }
        payload_files.insert(file, bytes);
    }
    target.keep()?;
    Ok(BackedUp {
        checkpoint_bytes,
        log_segments: segments,
        log_bytes: bytes,
        payload_files: payload_files.len() as u64,
        payload_file_bytes: payload_files.values().sum(),
    })
}

/// Copies one file that does not change.
pub(crate) fn copy_file(from: &dyn Disk, to: &dyn Disk, name: &str, bytes: u64) -> io::Result<()> {
    const STRETCH: u64 = 1 << 20;
    let (from, to) = (from.open(name)?, to.create(name)?);
    let mut buffer = vec![0; STRETCH.min(bytes) as usize];
    let mut offset = 0;
    while offset < bytes {
        let stretch = &mut buffer[..STRETCH.min(bytes - offset) as usize];
        from.read_at(stretch, offset)?;
        to.write_at(stretch, offset)?;
        offset += stretch.len() as u64;
    }
    to.sync_data()
}

/// A directory that gets a copy, and is emptied again if that comes to nothing.
pub(crate) struct Target {
    path: PathBuf,
    pub(crate) disk: RealDisk,
    /// Whether it was not there before.
    made: bool,
    kept: bool,
}

impl Target {
    pub(crate) fn new(path: &Path) -> Result<Target, OpenError> {
        let made = match fs::read_dir(path) {
            Ok(mut entries) => match entries.next() {
                None => false,
                Some(_) => return Err(OpenError::NotEmpty { directory: path.to_owned() }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())).into());
            }
        };
        make_private(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Ok(Target { path: path.to_owned(), disk: RealDisk::new(path)?, made, kept: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory itself durable. From here on it stays.
    pub(crate) fn keep(mut self) -> io::Result<()> {
        self.disk.sync_directory()?;
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // Why there is no copy is told already. What cannot be removed stays, and has no beginning.
        if let Ok(files) = self.disk.list() {
            files.iter().for_each(|(name, _)| drop(self.disk.remove(name)));
        }
        if self.made {
            let _ = fs::remove_dir(&self.path);
        }
    }
}
