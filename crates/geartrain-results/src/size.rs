//! How large a log is, and who may read its files.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use geartrain_core::Timestamp;

/// How large a log is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LogSize {
    /// The bytes of all its files: the database, its write-ahead log, and what waits for the database.
    pub bytes: u64,
    /// The bytes in the database that rows which were removed have left, and new ones will use.
    pub free_bytes: u64,
    /// When the oldest attempt ended, or began if it is under way; none if there is none.
    pub oldest: Option<Timestamp>,
}

/// The suffixes of the files of a log.
const FILES: [&str; 6] = ["", "-wal", "-shm", "-spool", "-spool-wal", "-spool-shm"];

/// The bytes of all files of a log.
pub(crate) fn bytes_of(file: &Path) -> u64 {
    let bytes = |suffix: &&str| std::fs::metadata(beside(file, suffix)).map_or(0, |found| found.len());
    FILES.iter().map(bytes).sum()
}

/// A file beside another.
pub(crate) fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Only its owner may read and write it.
const PRIVATE: u32 = 0o600;

/// Makes an empty file that only its owner may read and write, whatever the umask; one that exists is left
/// alone. SQLite takes an empty file for a new database, and gives its `-wal` and `-shm` the same
/// permissions.
pub(crate) fn create_private(file: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(file) {
        Ok(made) => make_private(&made),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// A umask may have taken away what the owner needs.
fn make_private(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(PRIVATE))
}
