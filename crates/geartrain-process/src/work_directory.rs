//! Working directories: one per slot, emptied before and after each job.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The directories of a worker: `<base>/geartrain-workers/<worker>/slot-<i>` for the programs, and a private one
/// for sockets. Removed when dropped, as far as they are its own.
#[derive(Debug)]
pub struct WorkDirectories {
    /// Private: mode 0700, for sockets.
    private: PathBuf,
    /// `<base>/geartrain-workers/<worker>`.
    worker: PathBuf,
    /// Held so that no second worker of the same name empties the directories.
    _lock: File,
}

/// Why the working directories cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkDirectoryError {
    /// Another worker has them.
    #[error("another worker named {worker:?} uses {}: choose another name or directory", directory.display())]
    InUse {
        /// The name of the worker.
        worker: String,
        /// The directory.
        directory: PathBuf,
    },
    /// They cannot be created.
    #[error("cannot use the working directory {}: {source}", directory.display())]
    Io {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Socket paths must be shorter than 108 bytes. `/geartrain-<16 digits>/<slot>.<number>.sock` comes behind it.
const TEMPORARY_BYTES_MAX: usize = 50;

impl WorkDirectories {
    /// Creates the directories of a worker below `base`, or in a temporary directory.
    pub fn create(base: Option<&Path>, worker: &str) -> Result<WorkDirectories, WorkDirectoryError> {
        let at = |directory: &Path| {
            let directory = directory.to_owned();
            move |source| WorkDirectoryError::Io { directory, source }
        };
        let temporary = std::env::temp_dir();
        let temporary = match temporary.as_os_str().len() {
            0..=TEMPORARY_BYTES_MAX => temporary,
            _ => PathBuf::from("/tmp"),
        };
        let private = create_private(&temporary).map_err(at(&temporary))?;
        let base = match base {
            Some(base) => std::path::absolute(base).map_err(at(base))?,
            None => private.clone(),
        };
        let directory = base.join("geartrain-workers").join(directory_name(worker));
        let locked = fs::create_dir_all(&directory)
            .and_then(|()| fs::set_permissions(&directory, Permissions::from_mode(0o700)))
            .and_then(|()| File::create(directory.join("lock")));
        let lock = locked.map_err(|source| {
            let _ = fs::remove_dir_all(&private);
            at(&directory)(source)
        })?;
        if lock.try_lock().is_err() {
            let _ = fs::remove_dir_all(&private);
            return Err(WorkDirectoryError::InUse { worker: worker.to_owned(), directory });
        }
        Ok(WorkDirectories { private, worker: directory, _lock: lock })
    }

    /// The working directory of a slot.
    pub fn slot(&self, number: usize) -> SlotDirectory {
        SlotDirectory(self.worker.join(format!("slot-{number}")))
    }

    /// A private directory, outside of the working directories.
    pub fn private(&self) -> &Path {
        &self.private
    }
}

impl Drop for WorkDirectories {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.private);
        // Fails if another worker came meanwhile, or if a program left something in them, which may be wanted.
        let _ = fs::remove_file(self.worker.join("lock"));
        for entry in fs::read_dir(&self.worker).into_iter().flatten().flatten() {
            let _ = fs::remove_dir(entry.path());
        }
        let _ = fs::remove_dir(&self.worker);
        if let Some(workers) = self.worker.parent() {
            let _ = fs::remove_dir(workers);
        }
    }
}

/// A new directory that only this user can enter.
fn create_private(parent: &Path) -> io::Result<PathBuf> {
    loop {
        let directory = parent.join(format!("geartrain-{}", random_digits()));
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map(|()| directory),
        }
    }
}

/// Sixteen random hexadecimal digits.
fn random_digits() -> String {
    use std::hash::{BuildHasher, RandomState};
    // Keys of the system's random source; a name that exists already is refused anyway.
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

/// A worker's name as the name of a directory: other characters than letters, digits, `-`, `_` and inner dots are
/// written as `%` and two digits.
fn directory_name(worker: &str) -> String {
    let mut name = String::new();
    for (index, byte) in worker.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || (byte == b'.' && index > 0);
        if is_plain {
            name.push(byte.into());
        } else {
            name.push_str(&format!("%{byte:02x}"));
        }
    }
    // Names of files have at most 255 bytes.
    name.truncate(200);
    name
}

/// The working directory of a slot.
#[derive(Debug, Clone)]
pub struct SlotDirectory(PathBuf);

impl SlotDirectory {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes it an empty directory. Links in it, and a link in its place, are removed and not followed.
    pub fn empty(&self) -> io::Result<()> {
        let path = &self.0;
        match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                let is_empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
                if is_empty && metadata.permissions().mode() & 0o777 == 0o700 {
                    return Ok(());
                }
                self.remove()?;
            }
            Ok(_) => fs::remove_file(path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        DirBuilder::new().mode(0o700).recursive(true).create(path)
    }

    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        fs::read_dir(&self.0).is_ok_and(|mut entries| entries.next().is_none())
    }

    /// Removes what is in it, and keeps the directory itself: it is the current directory of a running program.
    pub(crate) fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => SlotDirectory(entry.path()).remove()?,
                false => fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    }

    /// The standard library opens each directory relative to its parent, without following links.
    fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                allow_removal(&self.0);
                fs::remove_dir_all(&self.0)
            }
            done => done,
        }
    }
}

/// Makes the directories below writable, which a program may have protected.
fn allow_removal(directory: &Path) {
    let _ = fs::set_permissions(directory, Permissions::from_mode(0o700));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        // Of the entry itself, not of what a link points to.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            allow_removal(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use geartrain_testkit::peers::Scratch;

    #[test]
    fn emptying_a_slot_follows_no_link() {
        let scratch = Scratch::new("slots");
        let outside = scratch.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "x").unwrap();
        let directories = WorkDirectories::create(Some(scratch.path()), "w1").unwrap();
        let slot = directories.slot(0);
        slot.empty().unwrap();
        std::os::unix::fs::symlink(&outside, slot.path().join("link")).unwrap();
        fs::create_dir_all(slot.path().join("deep/er")).unwrap();
        fs::write(slot.path().join("deep/er/file"), "x").unwrap();
        fs::set_permissions(slot.path().join("deep"), Permissions::from_mode(0o000)).unwrap();
        slot.empty().unwrap();
        assert_eq!(fs::read_dir(slot.path()).unwrap().count(), 0);
        // The program replaced its directory by a link.
        fs::remove_dir(slot.path()).unwrap();
        std::os::unix::fs::symlink(&outside, slot.path()).unwrap();
        slot.empty().unwrap();
        assert!(fs::symlink_metadata(slot.path()).unwrap().is_dir());
        assert!(outside.join("precious").exists());
    }

    #[test]
    fn two_workers_of_one_name_cannot_share_a_directory() {
        let scratch = Scratch::new("slots");
        let first = WorkDirectories::create(Some(scratch.path()), "w1").unwrap();
        let error = WorkDirectories::create(Some(scratch.path()), "w1").unwrap_err();
        assert!(matches!(error, WorkDirectoryError::InUse { .. }), "{error}");
        let _other = WorkDirectories::create(Some(scratch.path()), "w2").unwrap();
        drop(first);
        WorkDirectories::create(Some(scratch.path()), "w1").unwrap();
    }

    #[test]
    fn a_workers_name_cannot_leave_the_directory() {
        assert_eq!(directory_name("host-1.example"), "host-1.example");
        assert_eq!(directory_name("../up"), "%2e.%2fup");
        assert_eq!(directory_name("."), "%2e");
    }

    #[test]
    fn the_private_directory_is_for_this_user_only_and_goes_away() {
        let directories = WorkDirectories::create(None, "w1").unwrap();
        let private = directories.private().to_owned();
        assert_eq!(fs::metadata(&private).unwrap().permissions().mode() & 0o777, 0o700);
        directories.slot(3).empty().unwrap();
        drop(directories);
        assert!(!private.exists());
    }
}
