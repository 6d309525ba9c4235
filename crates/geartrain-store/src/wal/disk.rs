//! The disk: what the log needs from a file system, and the real one.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::batch::BLOCK;

/// Work for a background task.
pub type Task = Box<dyn FnOnce() + Send>;

/// Waits until a background task is done.
pub type Join = Box<dyn FnOnce() + Send>;

/// One directory of files.
///
/// A change of the directory itself (a file is created, renamed, removed) may be undone by a power cut until
/// [`sync_directory`](Disk::sync_directory) has returned. A full disk is [`io::ErrorKind::StorageFull`] or
/// `QuotaExceeded`.
pub trait Disk: Send + Sync {
    /// The name and the length of every file.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;

    /// Creates an empty file. It is an error if the name is taken.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file; the new name must be free. Open files stay open.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the changes of the directory durable.
    fn sync_directory(&self) -> io::Result<()>;

    /// How many more bytes this process could write; `None` if that is unknown.
    fn free_bytes(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// Starts a background task, and returns a way to wait for it.
    fn spawn(&self, work: Task) -> Join;
}

/// A file of a [`Disk`]. Several threads may read it while one writes.
pub trait DiskFile: Send + Sync {
    /// Fills the buffer, or fails.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all bytes, or fails after some of them.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes the written bytes durable: one fdatasync.
    fn sync_data(&self) -> io::Result<()>;

    /// Drops a range of the file from the page cache, unless it is dirty: the next read then comes from the
    /// disk. After a failed sync the two may differ. May do nothing where the system has no such call.
    fn forget(&self, offset: u64, bytes: u64) -> io::Result<()>;
}

/// A directory of the real file system.
#[derive(Debug)]
pub struct RealDisk {
    path: PathBuf,
    directory: File,
    read_only: bool,
}

impl RealDisk {
    /// The disk of an existing directory.
    pub fn new(path: impl Into<PathBuf>) -> io::Result<RealDisk> {
        let path = path.into();
        let directory = File::open(&path).map_err(|error| naming(&path, error))?;
        Ok(RealDisk { path, directory, read_only: false })
    }

    /// The disk of an existing directory, whose files are opened for reading only.
    pub fn read_only(path: impl Into<PathBuf>) -> io::Result<RealDisk> {
        Ok(RealDisk { read_only: true, ..RealDisk::new(path)? })
    }
}

/// The same error with the file's path in its text.
pub(crate) fn naming(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(|error| naming(&self.path, error))? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                // Another program's file, removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if let (true, Ok(name)) = (metadata.is_file(), entry.file_name().into_string()) {
                files.push((name, metadata.len()));
            }
        }
        Ok(files)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path.join(name);
        // Other users must not read payloads.
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|error| naming(&path, error))?;
        // The umask may have removed even the owner's access, and the next process could not open the file.
        file.set_permissions(Permissions::from_mode(0o600)).map_err(|error| naming(&path, error))?;
        Ok(Arc::new(RealFile { file }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path.join(name);
        let file = OpenOptions::new().read(true).write(!self.read_only).open(&path);
        Ok(Arc::new(RealFile { file: file.map_err(|error| naming(&path, error))? }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.path.join(from), self.path.join(to));
        std::fs::rename(&from, to).map_err(|error| naming(&from, error))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path.join(name);
        std::fs::remove_file(&path).map_err(|error| naming(&path, error))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync_all().map_err(|error| naming(&self.path, error))
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        let file_system = rustix::fs::fstatvfs(&self.directory)?;
        Ok(Some(file_system.f_bavail.saturating_mul(file_system.f_frsize)))
    }

    fn spawn(&self, work: Task) -> Join {
        // Shared with the thread, because if the thread cannot be started its closure is dropped.
        let work = Arc::new(Mutex::new(Some(work)));
        let shared = work.clone();
        let run = |work: &Mutex<Option<Task>>| {
            let work = work.lock().take();
            work.into_iter().for_each(|work| work());
        };
        match std::thread::Builder::new().name("geartrain-background".into()).spawn(move || run(&shared)) {
            Ok(thread) => Box::new(move || {
                // If it panicked, its message was printed, and its result is missing, which the joining
                // thread notices.
                let _ = thread.join();
            }),
            Err(_) => {
                run(&work);
                Box::new(|| ())
            }
        }
    }
}

/// Bytes of background writes between two syncs: a commit should not wait behind many.
pub(crate) const SYNC_CHUNK_BYTES: usize = 1 << 20;

/// Writes parts one behind the other, and syncs each before the next.
pub(crate) fn write_synced<'a>(
    file: &dyn DiskFile,
    mut offset: u64,
    parts: impl Iterator<Item = &'a [u8]>,
) -> io::Result<()> {
    for part in parts {
        file.write_at(part, offset)?;
        file.sync_data()?;
        offset += part.len() as u64;
    }
    Ok(())
}

/// Fills a buffer from a file, with zeroes in the blocks that cannot be read.
pub(crate) fn read_or_zero(file: &dyn DiskFile, offset: u64, bytes: &mut [u8]) {
    if file.read_at(bytes, offset).is_err() {
        for (index, block) in bytes.chunks_mut(BLOCK).enumerate() {
            if file.read_at(block, offset + (index * BLOCK) as u64).is_err() {
                block.fill(0);
            }
        }
    }
}

struct RealFile {
    file: File,
}

impl DiskFile for RealFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn forget(&self, offset: u64, bytes: u64) -> io::Result<()> {
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
        if let Some(bytes) = std::num::NonZeroU64::new(bytes) {
            rustix::fs::fadvise(&self.file, offset, Some(bytes), rustix::fs::Advice::DontNeed)?;
        }
        #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
        let _ = (offset, bytes);
        Ok(())
    }
}
