//! Files that wait to become segments: written once already, so that a batch only has to overwrite.

use std::io;
use std::sync::Arc;

use super::aside::Aside;
use super::disk::{Disk, DiskFile, STRETCH, write_synced};
use super::is_full;
use super::segment::spare_name;

/// A file without a segment's number.
pub(super) struct Spare {
    pub(super) name: String,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) bytes: u64,
}

/// The spares, and the one being made.
pub(super) struct Spares {
    disk: Arc<dyn Disk>,
    /// How many are kept.
    wanted: usize,
    /// How long an ordinary one is.
    bytes: u64,
    next: u64,
    ready: Vec<Spare>,
    /// How many segments were given a name to become one, and are not yet taken in.
    coming: usize,
    /// One for a batch that is longer than a segment.
    large: Option<Spare>,
    making: Option<Aside<io::Result<Spare>>>,
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
        Ok(Spares { disk, wanted, bytes, next, ready, coming: 0, large: None, making: None, declined: false })
    }

    /// Bytes on disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        let making = if self.making.is_some() { self.bytes } else { 0 };
        self.ready.iter().chain(&self.large).map(|spare| spare.bytes).sum::<u64>() + making
    }

    /// Whether there is one of so many bytes at least, besides so many that are held back.
    fn has(&self, bytes: u64, held_back: usize) -> bool {
        if bytes > self.bytes {
            self.large.as_ref().is_some_and(|large| large.bytes >= bytes) && self.ready.len() >= held_back
        } else {
            self.ready.len() > held_back
        }
    }

    /// How many ordinary ones are held back for a full disk: one for commands that free room, and one to be
    /// given up for a checkpoint. Where hardly any are kept, fewer are.
    pub(super) fn held_back(&self) -> usize {
        self.wanted.min(3).saturating_sub(1)
    }

    /// Bytes of those that are still to be made to hold back enough.
    pub(super) fn missing_bytes(&self) -> u64 {
        self.held_back().saturating_sub(self.ready.len()) as u64 * self.bytes
    }

    /// Bytes of those that are only kept because they may be used again.
    pub(super) fn surplus_bytes(&self) -> u64 {
        self.ready.len().saturating_sub(self.held_back()) as u64 * self.bytes
    }

    /// Removes all but one: something else needs the room. One stays, because a reservation may have counted on
    /// it.
    pub(super) fn remove_all_but_one(&mut self) -> io::Result<()> {
        while let [_, .., last] = &self.ready[..] {
            self.disk.remove(&last.name)?;
            self.ready.pop();
        }
        Ok(())
    }

    /// Whether there is none of so many bytes, none is being made, and one is coming.
    pub(super) fn is_about_to_have(&self, bytes: u64) -> bool {
        bytes <= self.bytes && self.ready.is_empty() && self.making.is_none() && self.coming > 0
    }

    /// Makes sure that there is one of so many bytes at least.
    pub(super) fn ensure(&mut self, bytes: u64) -> io::Result<()> {
        self.ensure_besides(bytes, 0)
    }

    /// Makes sure that so many are held back, besides what has room already.
    pub(super) fn ensure_held_back(&mut self) -> io::Result<()> {
        match self.held_back() {
            0 => Ok(()),
            held_back => self.ensure_besides(self.bytes, held_back - 1),
        }
    }

    /// Makes sure that there is one of so many bytes at least, besides so many that are held back.
    pub(super) fn ensure_besides(&mut self, bytes: u64, held_back: usize) -> io::Result<()> {
        if bytes > self.bytes && self.large.as_ref().is_none_or(|large| large.bytes < bytes) {
            if let Some(large) = self.large.take() {
                self.disk.remove(&large.name)?;
            }
            let mut made = self.make(bytes);
            if matches!(&made, Err(error) if is_full(error)) && self.ready.len() > 1 {
                // They hold the room that is missing.
                self.remove_all_but_one()?;
                made = self.make(bytes);
            }
            self.large = Some(made?);
        }
        if !self.has(bytes, held_back) {
            self.wait();
        }
        while !self.has(bytes, held_back) {
            let made = self.make(self.bytes)?;
            self.ready.push(made);
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

    /// Has one made aside, if there are too few besides those that are coming.
    pub(super) fn top_up(&mut self) {
        if self.making.as_ref().is_some_and(Aside::is_done) {
            self.wait();
        }
        let enough = self.ready.len() + self.coming >= self.wanted.min(1) + self.held_back();
        if self.making.is_some() || self.declined || enough {
            return;
        }
        let (disk, name, bytes) = (self.disk.clone(), self.name(), self.bytes);
        // If it fails there is none, and whoever needs one tries again and hears why.
        self.making = Some(Aside::new(&*self.disk, move || make(&*disk, name, bytes)));
    }

    /// A name for a segment that nobody needs any more, if it is worth keeping.
    pub(super) fn name_for(&mut self, bytes: u64) -> Option<String> {
        let all = self.ready.len() + usize::from(self.making.is_some()) + self.coming;
        // On a disk that is nearly full no more than are needed next: the others hold room that a put may
        // be waiting for.
        let is_tight = |free: Option<u64>| free.is_some_and(|free| free < self.wanted as u64 * self.bytes);
        let is_tight = self.disk.free_bytes().is_ok_and(is_tight);
        let wanted = if is_tight { self.wanted.min(1) + self.held_back() } else { self.wanted };
        (bytes == self.bytes && all < wanted).then(|| {
            self.coming += 1;
            self.name()
        })
    }

    /// Takes in segments that have got their new names. The others that were given one will not come.
    pub(super) fn keep(&mut self, names: impl Iterator<Item = String>) -> io::Result<()> {
        self.coming = 0;
        for name in names {
            self.ready.push(Spare { file: self.disk.open(&name)?, name, bytes: self.bytes });
            self.declined = false;
        }
        Ok(())
    }

    /// Waits for the one being made.
    fn wait(&mut self) {
        let Some(making) = self.making.take() else { return };
        let spare = making.join().and_then(Result::ok);
        self.declined = spare.is_none();
        self.ready.extend(spare);
    }

    fn make(&mut self, bytes: u64) -> io::Result<Spare> {
        let name = self.name();
        make(&*self.disk, name, bytes)
    }

    fn name(&mut self) -> String {
        self.next += 1;
        spare_name(self.next - 1)
    }
}

/// Writes a file full of zeroes. A file that was only made long would be given its place on the disk at each commit.
fn make(disk: &dyn Disk, name: String, bytes: u64) -> io::Result<Spare> {
    // To find out by writing zeroes until there is no more room would keep everyone waiting, each time.
    if disk.free_bytes()?.is_some_and(|free| free < bytes) {
        return Err(io::ErrorKind::StorageFull.into());
    }
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
    let part = |offset: u64| &zeroes[..(bytes - offset).min(STRETCH as u64) as usize];
    write_synced(file, 0, (0..bytes).step_by(STRETCH).map(part))
}
