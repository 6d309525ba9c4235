//! Where a copy of a data directory goes: file by file into another directory or an archive.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data_dir::{lock_directory, make_private};
use crate::recovery::OpenError;
use crate::wal::{self, Disk, DiskFile, RealDisk, SYNC_CHUNK_BYTES, naming};

/// Takes the files of a copy, one after the other.
pub(crate) trait CopyTarget {
    /// Adds a file of this many bytes.
    fn add(&mut self, name: &str, bytes: u64, contents: &mut dyn Read) -> io::Result<()>;

    /// Fails if there is no space for a copy of this many bytes.
    fn expect(&self, bytes: u64) -> io::Result<()> {
        let _ = bytes;
        Ok(())
    }
}

/// Reads a file of a disk front to back.
pub(crate) struct FileReader {
    file: Arc<dyn DiskFile>,
    offset: u64,
}

impl FileReader {
    pub(crate) fn new(disk: &dyn Disk, name: &str) -> io::Result<FileReader> {
        Ok(FileReader { file: disk.open(name)?, offset: 0 })
    }
}

impl Read for FileReader {
    /// Fills the buffer: the caller stops at the end of the file, whose length it knows.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(buffer, self.offset)?;
        self.offset += buffer.len() as u64;
        Ok(buffer.len())
    }
}

/// A directory that is written under a temporary name and renamed when it is complete, so that a directory
/// with the final name is never half a copy. Removed if the copy fails.
pub(crate) struct DirectoryTarget {
    path: PathBuf,
    partial: PathBuf,
    pub(crate) disk: RealDisk,
    /// Keeps another process from writing a copy to the same place; `None` where directories have no locks.
    lock: Option<File>,
    is_complete: bool,
}

/// What is appended to the name of a directory until the copy is complete.
const PARTIAL: &str = ".partial";

impl DirectoryTarget {
    /// Begins a copy to a directory that is empty or missing.
    pub(crate) fn new(path: &Path) -> Result<DirectoryTarget, OpenError> {
        let named = |error| naming(path, error);
        let path = match fs::read_dir(path) {
            Ok(mut entries) => match entries.next() {
                // It may be a symbolic link, which a rename would replace.
                None => fs::canonicalize(path).map_err(named)?,
                Some(_) => return Err(OpenError::NotEmpty { directory: path.to_owned() }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                refuse_link(path)?;
                std::path::absolute(path).map_err(named)?
            }
            Err(error) => return Err(named(error).into()),
        };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(OpenError::MountPoint { directory: path });
        };
        // Such a copy would be taken for what is left of a copy to the name without the ending, and removed.
        if name.as_encoded_bytes().ends_with(PARTIAL.as_bytes()) {
            return Err(OpenError::PartialName { directory: path });
        }
        // Another file system cannot be renamed to, and has its own disk space.
        if let (Ok(own), Ok(parents)) = (fs::metadata(&path), fs::metadata(parent))
            && own.dev() != parents.dev()
        {
            return Err(OpenError::MountPoint { directory: path });
        }
        let mut partial_name = OsString::from(name);
        partial_name.push(PARTIAL);
        let partial = parent.join(partial_name);
        refuse_link(&partial)?;
        make_private(&partial).map_err(|error| naming(&partial, error))?;
        let lock = match lock_directory(&partial) {
            Err(OpenError::InUse) => return Err(OpenError::NotEmpty { directory: partial }),
            locked => locked?,
        };
        let disk = RealDisk::new(&partial)?;
        remove_left_over(&partial, &disk)?;
        Ok(DirectoryTarget { path, partial, disk, lock, is_complete: false })
    }

    /// Where the copy is until it is complete.
    pub(crate) fn partial(&self) -> &Path {
        &self.partial
    }

    /// Makes the copy durable, and gives it its name. From here on it stays. Returns its path.
    pub(crate) fn keep(mut self) -> io::Result<PathBuf> {
        self.disk.sync_directory()?;
        fs::rename(&self.partial, &self.path).map_err(|error| naming(&self.path, error))?;
        self.is_complete = true;
        self.lock = None;
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(|error| naming(parent, error))?;
        Ok(self.path.clone())
    }
}

/// Fails for a symbolic link: files would be removed and written elsewhere.
fn refuse_link(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => {
            let why = "it is a symbolic link: remove it, or name another directory";
            Err(naming(path, io::Error::other(why)))
        }
        // Other errors show when the directory is created.
        _ => Ok(()),
    }
}

/// Removes what a killed process left of a copy to the same place. Other files are not touched.
fn remove_left_over(partial: &Path, disk: &RealDisk) -> Result<(), OpenError> {
    let kinds = ["log-", "spare-", "checkpoint", "payloads-", wal::MANIFEST];
    for entry in fs::read_dir(partial).map_err(|error| naming(partial, error))? {
        let name = entry?.file_name();
        if !kinds.iter().any(|kind| name.to_string_lossy().starts_with(kind)) {
            return Err(OpenError::NotEmpty { directory: partial.to_owned() });
        }
    }
    Ok(disk.list()?.iter().try_for_each(|(name, _)| disk.remove(name))?)
}

impl CopyTarget for DirectoryTarget {
    /// In chunks that are synced one by one, so that a commit waits for one of them at most.
    fn add(&mut self, name: &str, bytes: u64, contents: &mut dyn Read) -> io::Result<()> {
        let file = self.disk.create(name)?;
        let path = self.partial.join(name);
        let mut buffer = vec![0; SYNC_CHUNK_BYTES.min(usize::try_from(bytes).unwrap_or(SYNC_CHUNK_BYTES))];
        let mut offset = 0;
        while offset < bytes {
            let left = usize::try_from(bytes - offset).unwrap_or(usize::MAX).min(buffer.len());
            let chunk = &mut buffer[..left];
            contents.read_exact(chunk)?;
            let written = file.write_at(chunk, offset).and_then(|()| file.sync_data());
            written.map_err(|error| naming(&path, error))?;
            offset += left as u64;
        }
        file.sync_data().map_err(|error| naming(&path, error))
    }

    fn expect(&self, bytes: u64) -> io::Result<()> {
        match self.disk.free_bytes()? {
            Some(free) if free < bytes => {
                let why = format!("a copy needs {bytes} bytes, and {free} are free");
                Err(naming(&self.path, io::Error::new(io::ErrorKind::StorageFull, why)))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for DirectoryTarget {
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        // The cause is reported already. A copy that cannot be removed keeps its temporary name.
        if let Ok(files) = self.disk.list() {
            files.iter().for_each(|(name, _)| drop(self.disk.remove(name)));
        }
        let _ = fs::remove_dir(&self.partial);
    }
}
