//! Spare segments: files whose blocks are allocated already, so that a batch only has to overwrite.

use std::io;
use std::sync::Arc;

use super::background::BackgroundTask;
use super::disk::{Disk, DiskFile, SYNC_CHUNK_BYTES, write_synced};
use super::is_full;
use super::segment::spare_name;

/// A file that has no segment number yet.
pub(super) struct SpareSegment {
    pub(super) name: String,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) bytes: u64,
}

/// The spare segments, and the one being made.
pub(super) struct SpareSegments {
    disk: Arc<dyn Disk>,
    /// How many are kept, at most.
    kept_max: usize,
    /// Length of an ordinary one.
    bytes: u64,
    next: u64,
    ready: Vec<SpareSegment>,
    /// Segments that were promised a spare's name, and are not released yet.
    expected: usize,
    /// One for a batch that is longer than a segment.
    large: Option<SpareSegment>,
    making: Option<BackgroundTask<io::Result<SpareSegment>>>,
    /// The last background attempt to make one failed; likely the disk is full.
    make_failed: bool,
}

impl SpareSegments {
    /// Takes the spares that were found, and removes those of another length and those too many.
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        kept_max: usize,
        bytes: u64,
        found: Vec<(u64, u64)>,
    ) -> io::Result<SpareSegments> {
        let next = found.iter().map(|(number, _)| number.saturating_add(1)).max().unwrap_or(1);
        let mut ready = Vec::new();
        for (number, length) in found {
            let name = spare_name(number);
            if length == bytes && ready.len() < kept_max {
                ready.push(SpareSegment { file: disk.open(&name)?, name, bytes });
            } else {
                disk.remove(&name)?;
            }
        }
        Ok(SpareSegments {
            disk,
            kept_max,
            bytes,
            next,
            ready,
            expected: 0,
            large: None,
            making: None,
            make_failed: false,
        })
    }

    /// Bytes on disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        let making = if self.making.is_some() { self.bytes } else { 0 };
        self.ready.iter().chain(&self.large).map(|spare| spare.bytes).sum::<u64>() + making
    }

    /// Whether there is one of at least this length, besides those held back.
    fn has(&self, bytes: u64, held_back: usize) -> bool {
        if bytes > self.bytes {
            self.large.as_ref().is_some_and(|large| large.bytes >= bytes) && self.ready.len() >= held_back
        } else {
            self.ready.len() > held_back
        }
    }

    /// How many ordinary ones are held back for a full disk: one for commands that free space, and one to be
    /// removed for a checkpoint. Where few are kept, fewer are held back.
    pub(super) fn held_back(&self) -> usize {
        self.kept_max.min(3).saturating_sub(1)
    }

    /// Bytes of the spares still to be made, to hold back enough.
    pub(super) fn missing_bytes(&self) -> u64 {
        self.held_back().saturating_sub(self.ready.len()) as u64 * self.bytes
    }

    /// Bytes of the spares kept only for reuse.
    pub(super) fn surplus_bytes(&self) -> u64 {
        self.ready.len().saturating_sub(self.held_back()) as u64 * self.bytes
    }

    /// Removes all but one to free their space. One stays, because a reservation may depend on it.
    pub(super) fn remove_all_but_one(&mut self) -> io::Result<()> {
        while let [_, .., last] = &self.ready[..] {
            self.disk.remove(&last.name)?;
            self.ready.pop();
        }
        Ok(())
    }

    /// Whether there is none of this length, none is being made, and one is expected.
    pub(super) fn is_about_to_have(&self, bytes: u64) -> bool {
        bytes <= self.bytes && self.ready.is_empty() && self.making.is_none() && self.expected > 0
    }

    /// Makes sure that there is one of at least this length.
    pub(super) fn ensure(&mut self, bytes: u64) -> io::Result<()> {
        self.ensure_besides(bytes, 0)
    }

    /// Makes sure that enough are held back.
    pub(super) fn ensure_held_back(&mut self) -> io::Result<()> {
        match self.held_back() {
            0 => Ok(()),
            held_back => self.ensure_besides(self.bytes, held_back - 1),
        }
    }

    /// Makes sure that there is one of at least this length, besides those held back.
    pub(super) fn ensure_besides(&mut self, bytes: u64, held_back: usize) -> io::Result<()> {
        if bytes > self.bytes && self.large.as_ref().is_none_or(|large| large.bytes < bytes) {
            if let Some(large) = self.large.take() {
                self.disk.remove(&large.name)?;
            }
            let mut made = self.make(bytes);
            if matches!(&made, Err(error) if is_full(error)) && self.ready.len() > 1 {
                // They use the space that is missing.
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

    /// Takes one of at least this length.
    pub(super) fn take(&mut self, bytes: u64) -> io::Result<SpareSegment> {
        self.ensure(bytes)?;
        self.make_failed = false;
        let spare = if bytes > self.bytes { self.large.take() } else { self.ready.pop() };
        Ok(spare.expect("`ensure` has just made one"))
    }

    /// Takes back one that was not used after all.
    pub(super) fn put_back(&mut self, spare: SpareSegment) {
        if spare.bytes > self.bytes {
            self.large = Some(spare);
        } else {
            self.ready.push(spare);
        }
    }

    /// Makes one by a background task, if there are too few besides the expected ones.
    pub(super) fn top_up(&mut self) {
        if self.making.as_ref().is_some_and(BackgroundTask::is_done) {
            self.wait();
        }
        let enough = self.ready.len() + self.expected >= self.kept_max.min(1) + self.held_back();
        if self.making.is_some() || self.make_failed || enough {
            return;
        }
        let (disk, name, bytes) = (self.disk.clone(), self.name(), self.bytes);
        // If it fails there is none, and the next `ensure` tries again and reports why.
        self.making = Some(BackgroundTask::new(&*self.disk, move || make(&*disk, name, bytes)));
    }

    /// A spare's name for a segment that is about to be released, if it is worth keeping.
    pub(super) fn claim_name(&mut self, bytes: u64) -> Option<String> {
        let all = self.ready.len() + usize::from(self.making.is_some()) + self.expected;
        // On a nearly full disk no more than are needed next: the others use space that a put may need.
        let is_tight = |free: Option<u64>| free.is_some_and(|free| free < self.kept_max as u64 * self.bytes);
        let is_tight = self.disk.free_bytes().is_ok_and(is_tight);
        let kept_max = if is_tight { self.kept_max.min(1) + self.held_back() } else { self.kept_max };
        (bytes == self.bytes && all < kept_max).then(|| {
            self.expected += 1;
            self.name()
        })
    }

    /// Adds released segments under their new names. Other promised names are void.
    pub(super) fn add_released(&mut self, names: impl Iterator<Item = String>) -> io::Result<()> {
        self.expected = 0;
        for name in names {
            self.ready.push(SpareSegment { file: self.disk.open(&name)?, name, bytes: self.bytes });
            self.make_failed = false;
        }
        Ok(())
    }

    /// Waits for the one being made.
    fn wait(&mut self) {
        let Some(making) = self.making.take() else { return };
        let spare = making.join().and_then(Result::ok);
        self.make_failed = spare.is_none();
        self.ready.extend(spare);
    }

    fn make(&mut self, bytes: u64) -> io::Result<SpareSegment> {
        let name = self.name();
        make(&*self.disk, name, bytes)
    }

    fn name(&mut self) -> String {
        self.next += 1;
        spare_name(self.next - 1)
    }
}

/// Writes a file full of zeroes. In a sparse file each commit would have to allocate blocks.
fn make(disk: &dyn Disk, name: String, bytes: u64) -> io::Result<SpareSegment> {
    // Checked first: finding out by writing zeroes until the disk is full would block callers, each time.
    if disk.free_bytes()?.is_some_and(|free| free < bytes) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let file = disk.create(&name)?;
    match fill(&*file, bytes) {
        Ok(()) => Ok(SpareSegment { name, file, bytes }),
        Err(error) => {
            // Half a spare is of no use, and may use the space that a caller needs. The first error is the
            // one to report.
            let _ = disk.remove(&name);
            Err(error)
        }
    }
}

fn fill(file: &dyn DiskFile, bytes: u64) -> io::Result<()> {
    let zeroes = vec![0; SYNC_CHUNK_BYTES.min(bytes as usize)];
    let part = |offset: u64| &zeroes[..(bytes - offset).min(SYNC_CHUNK_BYTES as u64) as usize];
    write_synced(file, 0, (0..bytes).step_by(SYNC_CHUNK_BYTES).map(part))
}
