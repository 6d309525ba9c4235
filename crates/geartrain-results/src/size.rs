//! The size of a result log, and the permissions of its files.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use geartrain_core::Timestamp;

/// The size of a result log.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LogSize {
    /// The bytes of all its files: the database, its WAL, and the spool.
    pub bytes: u64,
    /// Free bytes inside the database: left by removed rows, reused by new ones.
    pub free_bytes: u64,
    /// When the oldest attempt ended, or started if it is still running; none if there is no attempt.
    pub oldest: Option<Timestamp>,
}

/// The suffixes of the files of a log.
const FILES: [&str; 6] = ["", "-wal", "-shm", "-spool", "-spool-wal", "-spool-shm"];

pub(crate) fn bytes_of(file: &Path) -> u64 {
    let bytes = |suffix: &&str| std::fs::metadata(with_suffix(file, suffix)).map_or(0, |found| found.len());
    FILES.iter().map(bytes).sum()
}

/// The path of a file with a suffix added.
pub(crate) fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

const PRIVATE: u32 = 0o600;

/// Creates an empty file that only its owner may read and write, independent of the umask; an existing file
/// is left unchanged. SQLite takes an empty file for a new database, and gives its `-wal` and `-shm` the same
/// permissions.
pub(crate) fn create_private(file: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(file) {
        Ok(made) => make_private(&made),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// The umask may have removed permissions that the owner needs.
fn make_private(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(PRIVATE))
}
