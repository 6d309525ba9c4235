//! Backup: copies a data directory while it is in use. The copy can be opened by itself.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use geartrain_core::SpillLocation;

use crate::checkpoint::Checkpoints;
use crate::data_dir::{DataDir, make_private};
use crate::recovery::OpenError;
use crate::spill::files;
use crate::wal::{self, CopiedWal, Disk, RealDisk};

/// The size of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackedUp {
    /// Bytes of the checkpoint; 0 if there is none.
    pub checkpoint_bytes: u64,
    /// Segments of the log.
    pub log_segments: u64,
    /// Their length together.
    pub log_bytes: u64,
    /// Files that hold spilled payloads.
    pub payload_files: u64,
    /// Their length together.
    pub payload_file_bytes: u64,
}

/// Copies the newest checkpoint, and the log behind it as far as it is written.
pub(crate) fn backup(data_dir: &DataDir, to: &Path) -> Result<BackedUp, OpenError> {
    let target = Target::new(to)?;
    // No file is removed until the copy is done. New ones may be created.
    let _no_removals = data_dir.backup_gate.lock();
    let from = &data_dir.disk;
    let checkpoints = Checkpoints::new(from.clone(), data_dir.backup_gate.clone());
    let (first, checkpoint_bytes) = match checkpoints.names()?.pop() {
        None => (wal::BEGINNING, 0),
        Some((name, bytes)) => {
            // Verified, so that a damaged one is noticed while the original is still there.
            let checkpoint = checkpoints.open(&name, bytes)?;
            let position = checkpoint.position;
            checkpoint.verify()?;
            copy_file(&**from, &target.disk, &name, bytes)?;
            (position, bytes)
        }
    };
    let copied = wal::copy(&**from, &target.disk, first, &mut |_, _| Ok(()))?;
    let CopiedWal { segments, bytes, damage, .. } = copied;
    if let Some(damage) = damage {
        return Err(damage.into());
    }
    // After the log: the files that its changes refer to were complete before it was written. Payloads added
    // to spill files meanwhile are in the log too, and need not be in the copy of the file.
    let mut payload_files = files::files_on(&**from)?;
    for (file, bytes) in std::mem::take(&mut payload_files) {
        match copy_file(&**from, &target.disk, &files::name_of(file), bytes) {
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

/// Copies a file that does not change meanwhile.
pub(crate) fn copy_file(from: &dyn Disk, to: &dyn Disk, name: &str, bytes: u64) -> io::Result<()> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let (from, to) = (from.open(name)?, to.create(name)?);
    let mut buffer = vec![0; CHUNK_BYTES.min(bytes) as usize];
    let mut offset = 0;
    while offset < bytes {
        let chunk = &mut buffer[..CHUNK_BYTES.min(bytes - offset) as usize];
        from.read_at(chunk, offset)?;
        to.write_at(chunk, offset)?;
        offset += chunk.len() as u64;
    }
    to.sync_data()
}

/// The target directory of a copy. Emptied again if the copy fails.
pub(crate) struct Target {
    path: PathBuf,
    pub(crate) disk: RealDisk,
    /// Whether the directory was created for the copy.
    made: bool,
    is_complete: bool,
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
        Ok(Target { path: path.to_owned(), disk: RealDisk::new(path)?, made, is_complete: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory itself durable. From here on it stays.
    pub(crate) fn keep(mut self) -> io::Result<()> {
        self.disk.sync_directory()?;
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        // The cause is reported already. A copy that cannot be removed has no first segment, so it is not
        // taken for complete.
        if let Ok(files) = self.disk.list() {
            files.iter().for_each(|(name, _)| drop(self.disk.remove(name)));
        }
        if self.made {
            let _ = fs::remove_dir(&self.path);
        }
    }
}
