//! What the log asks of a disk, and the real one.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::batch::BLOCK;

/// Work that need not be done before the next batch.
pub type Work = Box<dyn FnOnce() + Send>;

/// Waits until work that was put aside is done.
pub type Join = Box<dyn FnOnce() + Send>;

/// One directory of files.
///
/// What is done to the directory itself (a file appears, gets another name, goes) may be undone by a power cut until
/// [`sync_directory`](Disk::sync_directory) has returned. A full disk is [`io::ErrorKind::StorageFull`] or `QuotaExceeded`.
pub trait Disk: Send + Sync {
    /// The name and the length of every file.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;

    /// A new, empty file. It is an error if the name is taken.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// A file that is there.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file another name, which must be free. Files that are open stay open.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Takes a file away.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes durable what was done to the directory.
    fn sync_directory(&self) -> io::Result<()>;

    /// How many more bytes this process could write; none if that is not known.
    fn free_bytes(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// Does work beside everything else, and hands back a way to wait for it.
    fn aside(&self, work: Work) -> Join;
}

/// A file of a [`Disk`]. Many may read it while one writes.
pub trait DiskFile: Send + Sync {
    /// Fills the buffer, or fails.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all bytes, or fails after some of them.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes durable what was written: one fdatasync.
    fn sync_data(&self) -> io::Result<()>;

    /// Drops what the system holds in memory of a part of the file, if it is not waiting to be written: the next read then asks the
    /// disk. After a failed sync the two may differ. A system without such a thing may do nothing.
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
    /// The disk of a directory that is there.
    pub fn new(path: impl Into<PathBuf>) -> io::Result<RealDisk> {
        let path = path.into();
        let directory = File::open(&path).map_err(|error| about(&path, error))?;
        Ok(RealDisk { path, directory, read_only: false })
    }

    /// The same, whose files are opened to be read and not to be written.
    pub fn read_only(path: impl Into<PathBuf>) -> io::Result<RealDisk> {
        Ok(RealDisk { read_only: true, ..RealDisk::new(path)? })
    }
}

/// An error that names the file, of the same kind.
fn about(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(|error| about(&self.path, error))? {
            let entry = entry?;
            let about = match entry.metadata() {
                Ok(about) => about,
                // Somebody else's, and gone meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if let (true, Ok(name)) = (about.is_file(), entry.file_name().into_string()) {
                files.push((name, about.len()));
            }
        }
        Ok(files)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path.join(name);
        // Payloads are nobody else's business.
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|error| about(&path, error))?;
        // The umask may have taken even the owner's access, and the next process could not open it.
        file.set_permissions(Permissions::from_mode(0o600)).map_err(|error| about(&path, error))?;
        Ok(Arc::new(RealFile { file }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path.join(name);
        let file = OpenOptions::new().read(true).write(!self.read_only).open(&path);
        Ok(Arc::new(RealFile { file: file.map_err(|error| about(&path, error))? }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.path.join(from), self.path.join(to));
        std::fs::rename(&from, to).map_err(|error| about(&from, error))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path.join(name);
        std::fs::remove_file(&path).map_err(|error| about(&path, error))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync_all().map_err(|error| about(&self.path, error))
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        let about = rustix::fs::fstatvfs(&self.directory)?;
        Ok(Some(about.f_bavail.saturating_mul(about.f_frsize)))
    }

    fn aside(&self, work: Work) -> Join {
        // Not only in the thread's hands, because if there cannot be one the work would be gone with it.
        let work = Arc::new(Mutex::new(Some(work)));
        let theirs = work.clone();
        let run = |work: &Mutex<Option<Work>>| {
            let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
            work.into_iter().for_each(|work| work());
        };
        match std::thread::Builder::new().name("geartrain-aside".into()).spawn(move || run(&theirs)) {
            Ok(thread) => Box::new(move || {
                // If it panicked it said so, and its work is missing, which whoever waits for it sees.
                let _ = thread.join();
            }),
            Err(_) => {
                run(&work);
                Box::new(|| ())
            }
        }
    }
}

/// How much that nobody waits for is written before it is synced: no commit should wait behind much.
pub(crate) const STRETCH: usize = 1 << 20;

/// Writes parts one behind the other, and makes each durable before the next.
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
pub(crate) fn read_what_can_be_read(file: &dyn DiskFile, offset: u64, bytes: &mut [u8]) {
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
