//! The data directory: its files, its lock, and who may read it.

use std::fs::{self, File, Permissions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use geartrain_core::{Measures, Timing};

use crate::backup::BackupGate;
use crate::recovery::OpenError;
use crate::spill::large::LargePayloads;
use crate::wal::Disk;

/// How long commits and syncs of the log took.
#[derive(Debug, Default)]
pub(crate) struct CommitTimings {
    pub(crate) commit: Timing,
    pub(crate) sync: Timing,
}

/// A data directory in use.
pub(crate) struct DataDir {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) backup_gate: Arc<BackupGate>,
    /// Bytes of payloads in memory.
    pub(crate) payload_bytes: Arc<AtomicU64>,
    pub(crate) large: Arc<LargePayloads>,
    /// How long commits, and syncs of the log, took.
    pub(crate) timings: Arc<CommitTimings>,
    /// Held as long as the directory is in use.
    _lock: Option<DirLock>,
}

impl DataDir {
    pub(crate) fn new(disk: Arc<dyn Disk>, own_file_bytes_min: usize, lock: Option<DirLock>) -> DataDir {
        let large = Arc::new(LargePayloads::new(disk.clone(), own_file_bytes_min));
        let (backup_gate, payload_bytes, timings) = (Arc::default(), Arc::default(), Arc::default());
        DataDir { disk, backup_gate, payload_bytes, large, timings, _lock: lock }
    }

    pub(crate) fn measure(&self) -> Measures {
        Measures {
            store_bytes: self.disk.list().ok().map(|files| files.iter().map(|(_, bytes)| bytes).sum()),
            commit: Some(self.timings.commit.read()),
            sync: Some(self.timings.sync.read()),
            round_trip: None,
        }
    }
}

/// The lock on a directory in use.
///
/// The lock on the directory itself holds whatever becomes of the files in it. The lock on the file `lock`
/// keeps out programs from before there was the other. Taking either needs read access to the directory,
/// which no other user has: its mode is 0700.
#[derive(Debug)]
pub(crate) struct DirLock {
    directory: Option<File>,
    file: Option<File>,
}

impl Drop for DirLock {
    /// Unlocks explicitly. A child process that was just forked shares the open files until it executes its
    /// program, and closing our descriptors alone would leave the directory locked until then.
    fn drop(&mut self) {
        for file in [&self.file, &self.directory].into_iter().flatten() {
            // Closing the file unlocks it as well.
            let _ = file.unlock();
        }
    }
}

impl DirLock {
    /// Locks a directory that is to be changed.
    pub(crate) fn exclusive(directory: &Path) -> Result<DirLock, OpenError> {
        let of_directory = lock_directory(directory)?;
        let path = lock_path(directory);
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        Ok(DirLock { directory: of_directory, file: Some(locked(file)?) })
    }

    /// Locks a directory without changing anything in it. If there is no lock file, no older program can be
    /// using it.
    pub(crate) fn read_only(directory: &Path) -> Result<DirLock, OpenError> {
        if !directory.is_dir() {
            let why = format!("there is no directory {}", directory.display());
            return Err(std::io::Error::new(std::io::ErrorKind::NotFound, why).into());
        }
        let of_directory = lock_directory(directory)?;
        let of_file = match File::open(lock_path(directory)) {
            Ok(file) => Some(locked(file)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        Ok(DirLock { directory: of_directory, file: of_file })
    }
}

fn lock_path(directory: &Path) -> PathBuf {
    directory.join("lock")
}

/// Locks the directory's own descriptor; `None` where the file system cannot (NFS locks only what is open for
/// writing). Then the lock file must do.
pub(crate) fn lock_directory(directory: &Path) -> Result<Option<File>, OpenError> {
    match locked(File::open(directory)?) {
        Ok(locked) => Ok(Some(locked)),
        Err(OpenError::Io(error)) => {
            let path = directory.display();
            tracing::warn!(%error, directory = %path, "only the file `lock` is locked, not the directory");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn locked(file: File) -> Result<File, OpenError> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Creates the directory if it is missing, and restricts it to its owner, whatever the umask; also a
/// directory that an earlier version created.
pub(crate) fn make_private(directory: &Path) -> std::io::Result<()> {
    let is_new = match fs::metadata(directory) {
        Ok(_) => false,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(error),
    };
    if is_new {
        if let Some(parent) = directory.parent() {
            fs::create_dir_all(parent)?;
        }
        match fs::DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    let mode = fs::metadata(directory)?.permissions().mode();
    // A directory that other users put files into, such as /tmp, is left as it is.
    const STICKY: u32 = 0o1000;
    if mode & 0o777 == 0o700 || mode & STICKY != 0 || !is_new && !is_ours(directory)? {
        return Ok(());
    }
    match fs::set_permissions(directory, Permissions::from_mode(0o700)) {
        // It belongs to another user who lets this one in, and who decides about it.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let path = directory.display();
            tracing::warn!(%error, directory = %path, "other users may read this directory: chmod 700 it");
            Ok(())
        }
        set => set,
    }
}

/// Whether a directory is empty or has been a data directory, and does not serve other purposes as well.
fn is_ours(directory: &Path) -> std::io::Result<bool> {
    let mut is_empty = true;
    for entry in fs::read_dir(directory)? {
        is_empty = false;
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("log-0") || name.starts_with("checkpoint-") {
            return Ok(true);
        }
    }
    Ok(is_empty)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lock_is_free_although_a_forked_child_still_shares_its_files() {
        let directory = std::env::temp_dir().join(format!("geartrain-dir-lock-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let lock = DirLock::exclusive(&directory).unwrap();
        // What a child inherits at a fork: further descriptors of the same open files.
        let shared = [&lock.directory, &lock.file].map(|file| file.as_ref().unwrap().try_clone().unwrap());
        assert!(matches!(DirLock::exclusive(&directory), Err(OpenError::InUse)));
        drop(lock);
        let again = DirLock::exclusive(&directory);
        fs::remove_dir_all(&directory).unwrap();
        again.unwrap();
        drop(shared);
    }
}
