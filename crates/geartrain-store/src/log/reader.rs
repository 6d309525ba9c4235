//! Reads batches again.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::batch::{Batch, HEADER};
use super::disk::{Disk, DiskFile};
use super::segment::segment_name;
use super::{LogError, Position};

/// How many files stay open. A process may often have a thousand, and others need some.
const OPEN_MAX: usize = 64;

/// Reads batches again, from any thread, while the log goes on.
#[derive(Clone)]
pub struct LogReader {
    disk: Arc<dyn Disk>,
    log: u64,
    open: Arc<Mutex<BTreeMap<u64, Arc<dyn DiskFile>>>>,
}

impl LogReader {
    pub(super) fn new(disk: Arc<dyn Disk>, log: u64) -> LogReader {
        LogReader { disk, log, open: Arc::default() }
    }

    /// Reads bytes of a batch's body by the batch's position, an offset inside its body and a length.
    ///
    /// The batch must lie there still: a released one is an error. The checksum is not looked at, because it is over the whole batch.
    pub fn read(&self, batch: Position, offset: usize, bytes: usize) -> Result<Vec<u8>, LogError> {
        let damaged = |why: &str| LogError::damaged(batch.segment, batch.offset, why);
        let file = match self.file(batch.segment) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(damaged("the segment is missing"));
            }
            file => file?,
        };
        let ends = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged("the segment ends before what was asked for"),
            _ => LogError::Io(error),
        };
        let mut body = vec![0; bytes];
        file.read_at(&mut body, batch.offset + (HEADER + offset) as u64).map_err(ends)?;
        // The header comes second: a segment is overwritten from its beginning, so if the header is still there, so was the body.
        let mut header = [0; HEADER];
        file.read_at(&mut header, batch.offset).map_err(ends)?;
        match Batch::header(&header) {
            Some((found, length))
                if (found.log, found.segment) == (self.log, batch.segment)
                    && offset.checked_add(bytes).is_some_and(|end| end as u64 <= length) =>
            {
                Ok(body)
            }
            _ => Err(damaged("no batch that holds what was asked for begins here")),
        }
    }

    fn file(&self, segment: u64) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = self.open().get(&segment) {
            return Ok(file.clone());
        }
        let file = self.disk.open(&segment_name(segment))?;
        self.keep(segment, file.clone());
        Ok(file)
    }

    /// Takes note of an open file.
    pub(super) fn keep(&self, segment: u64, file: Arc<dyn DiskFile>) {
        let mut open = self.open();
        if open.len() >= OPEN_MAX {
            // The oldest is the likeliest to go soon.
            open.pop_first();
        }
        open.insert(segment, file);
    }

    /// Lets go of a file that is no segment any more.
    pub(super) fn let_go(&self, segment: u64) {
        self.open().remove(&segment);
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<dyn DiskFile>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
