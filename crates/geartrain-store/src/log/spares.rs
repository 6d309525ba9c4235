//! Files that wait to become segments: written once already, so that a batch only has to overwrite.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::disk::{Disk, DiskFile, Join};
use super::segment::spare_name;

/// How much of a spare is written before it is synced, so that no commit waits behind a whole one.
const STRETCH: usize = 1 << 20;

/// A file without a segment's number.
pub(super) struct Spare {
    pub(super) name: String,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) bytes: u64,
}

type Slot = Arc<Mutex<Option<Spare>>>;

/// The spares, and the one being made.
pub(super) struct Spares {
    disk: Arc<dyn Disk>,
    wanted: usize,
    /// How long an ordinary one is.
    bytes: u64,
    next: u64,
    ready: Vec<Spare>,
    /// One for a batch that is longer than a segment.
    large: Option<Spare>,
    making: Option<(Join, Slot)>,
    /// The last one made aside did not succeed; likely there is no room.
    declined: bool,
}

impl Spares {
    /// Takes over the spares that were found, and removes those of another length and those too many.
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        wanted: usize,
        bytes: u64,
        found: Vec<(u64, u64)>,
    ) -> io::Result<Spares> {
        let next = found.iter().map(|(number, _)| number.saturating_add(1)).max().unwrap_or(1);
        let mut ready = Vec::new();
        for (number, length) in found {
            let name = spare_name(number);
            if length == bytes && ready.len() < wanted {
                ready.push(Spare { file: disk.open(&name)?, name, bytes });
            } else {
                disk.remove(&name)?;
            }
        }
        Ok(Spares { disk, wanted, bytes, next, ready, large: None, making: None, declined: false })
    }

    /// Bytes on disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        let making = if self.making.is_some() { self.bytes } else { 0 };
        self.ready.iter().chain(&self.large).map(|spare| spare.bytes).sum::<u64>() + making
    }

    /// Makes sure that there is one of so many bytes at least.
    pub(super) fn ensure(&mut self, bytes: u64) -> io::Result<()> {
        if bytes > self.bytes {
            if self.large.as_ref().is_none_or(|large| large.bytes < bytes) {
                if let Some(large) = self.large.take() {
                    self.disk.remove(&large.name)?;
                }
                let name = self.name();
                self.large = Some(make(&*self.disk, name, bytes)?);
            }
            return Ok(());
        }
        if self.ready.is_empty() {
            self.wait();
        }
        if self.ready.is_empty() {
            let name = self.name();
            self.ready.push(make(&*self.disk, name, self.bytes)?);
        }
        Ok(())
    }

    /// Takes one of so many bytes at least.
    pub(super) fn take(&mut self, bytes: u64) -> io::Result<Spare> {
        self.ensure(bytes)?;
        self.declined = false;
        let spare = if bytes > self.bytes { self.large.take() } else { self.ready.pop() };
        Ok(spare.expect("there was one a moment ago"))
    }

    /// Takes one back that was not used after all.
    pub(super) fn put_back(&mut self, spare: Spare) {
        if spare.bytes > self.bytes {
            self.large = Some(spare);
        } else {
            self.ready.push(spare);
        }
    }

    /// Has the next one made aside, if one is missing.
    pub(super) fn top_up(&mut self) {
        if self.making.as_ref().is_some_and(|(_, slot)| Arc::strong_count(slot) == 1) {
            self.wait();
        }
        if self.making.is_some() || self.declined || self.ready.len() >= self.wanted {
            return;
        }
        let (slot, disk, name, bytes) = (Slot::default(), self.disk.clone(), self.name(), self.bytes);
        let theirs = slot.clone();
        let join = self.disk.aside(Box::new(move || {
            // If it fails there is none, and whoever needs one tries again and hears why.
            let spare = make(&*disk, name, bytes).ok();
            *theirs.lock().unwrap_or_else(PoisonError::into_inner) = spare;
        }));
        self.making = Some((join, slot));
    }

    /// A name for a segment that nobody needs any more, if it is worth keeping.
    ///
    /// `coming` have got such a name already and are not yet taken in.
    pub(super) fn name_for(&mut self, bytes: u64, coming: usize) -> Option<String> {
        let coming = self.ready.len() + usize::from(self.making.is_some()) + coming;
        (bytes == self.bytes && coming < self.wanted).then(|| self.name())
    }

    /// Takes in segments that have got their new names.
    pub(super) fn keep(&mut self, names: Vec<String>) -> io::Result<()> {
        for name in names {
            self.ready.push(Spare { file: self.disk.open(&name)?, name, bytes: self.bytes });
            self.declined = false;
        }
        Ok(())
    }

    /// Waits for the one being made.
    fn wait(&mut self) {
        let Some((join, slot)) = self.making.take() else { return };
        join();
        let spare = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.declined = spare.is_none();
        self.ready.extend(spare);
    }

    fn name(&mut self) -> String {
        self.next += 1;
        spare_name(self.next - 1)
    }
}

impl Drop for Spares {
    /// Waits, because whoever opens the log next must not meet a file that is still being written.
    fn drop(&mut self) {
        self.wait();
    }
}

/// Writes a file full of zeroes. A file that was only made long would be given its place on the disk at each commit.
fn make(disk: &dyn Disk, name: String, bytes: u64) -> io::Result<Spare> {
    let file = disk.create(&name)?;
    match fill(&*file, bytes) {
        Ok(()) => Ok(Spare { name, file, bytes }),
        Err(error) => {
            // Half a spare is of no use, and may hold the room that somebody waits for. Its error is the one to tell.
            let _ = disk.remove(&name);
            Err(error)
        }
    }
}

fn fill(file: &dyn DiskFile, bytes: u64) -> io::Result<()> {
    let zeroes = vec![0; STRETCH.min(bytes as usize)];
    let mut offset = 0;
    while offset < bytes {
        let stretch = (bytes - offset).min(zeroes.len() as u64);
        file.write_at(&zeroes[..stretch as usize], offset)?;
        file.sync_data()?;
        offset += stretch;
    }
    Ok(())
}
