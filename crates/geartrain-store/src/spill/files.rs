//! Spill files: payloads that are not in memory.
//!
//! A file is only appended to, by the process that created it, up to some length; then the next one begins.
//! Records are not synced when they are written: the log has the same bytes until a checkpoint that refers to
//! the records is installed. The bytes are described in `docs/formats/payloads.md`.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use geartrain_core::engine::{SpillDone, SpillTask};
use geartrain_core::{Payload, SpillLocation};

use crate::wal::{Disk, DiskFile, SYNC_CHUNK_BYTES, is_full, write_synced};

const MAGIC: &[u8; 8] = b"gearpay1";
const HEADER_BYTES: u64 = 16;
const HEAD_BYTES: usize = SpillLocation::HEAD_BYTES as usize;
/// Maximum length of a file, because an offset has 32 bits.
const FILE_BYTES_MAX: u64 = 1 << 31;

/// Bytes gathered before a write, and bytes written before a sync, so that the last sync has little left to
/// do.
const WRITE_BYTES: usize = 1 << 20;
const SYNC_BYTES: u64 = 4 << 20;
/// Files held open for reading, at most.
const OPEN_MAX: usize = 64;

/// Why a payload cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("file {} {} at byte {}: {why}", name_of(.location.file), if *.is_damaged { "is damaged" } else { "cannot be read" }, .location.offset)]
pub(crate) struct UnreadablePayload {
    pub(crate) location: SpillLocation,
    /// Whether another attempt would fail as well.
    pub(crate) is_damaged: bool,
    pub(crate) why: String,
}

pub(crate) fn name_of(file: u64) -> String {
    format!("payloads-{file:016x}")
}

pub(crate) fn number_of(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_prefix("payloads-")?, 16).ok()?;
    (name_of(number) == name).then_some(number)
}

/// The payload files of a disk: their numbers and lengths.
pub(crate) fn files_on(disk: &dyn Disk) -> io::Result<BTreeMap<u64, u64>> {
    Ok(disk.list()?.into_iter().filter_map(|(name, bytes)| Some((number_of(&name)?, bytes))).collect())
}

/// Bytes of records in a file of this length.
pub(crate) fn record_bytes(file_bytes: u64) -> u64 {
    file_bytes.saturating_sub(HEADER_BYTES)
}

/// Reads payloads.
pub(crate) struct PayloadReader {
    disk: Arc<dyn Disk>,
    open: BTreeMap<u64, Arc<dyn DiskFile>>,
    /// Whether large payloads are left to another thread.
    pub(crate) defers_large: bool,
    /// The files of deferred payloads. They stay readable through these handles when they are removed.
    deferred: BTreeMap<u64, Arc<dyn DiskFile>>,
}

impl PayloadReader {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> PayloadReader {
        PayloadReader { disk, open: BTreeMap::new(), defers_large: false, deferred: BTreeMap::new() }
    }

    /// A reader of the payloads deferred since the last call; `None` if there are none.
    pub(crate) fn take_deferred(&mut self) -> Option<PayloadReader> {
        if self.deferred.is_empty() {
            return None;
        }
        let open = std::mem::take(&mut self.deferred);
        Some(PayloadReader { open, ..PayloadReader::new(self.disk.clone()) })
    }

    /// The payload at a location, or the location itself if its read is deferred.
    pub(crate) fn read_or_defer(&mut self, location: SpillLocation) -> Result<Payload, UnreadablePayload> {
        if !self.defers_large || !SpillLocation::is_own_file(location.file) {
            return self.read(location);
        }
        let file = self.file(location.file).map_err(|error| unreadable(location, &error))?;
        self.deferred.insert(location.file, file);
        Ok(location.into())
    }

    pub(crate) fn read(&mut self, location: SpillLocation) -> Result<Payload, UnreadablePayload> {
        let unreadable = |error: io::Error| unreadable(location, &error);
        let mut record = vec![0; location.record_bytes() as usize];
        let file = self.file(location.file).map_err(unreadable)?;
        file.read_at(&mut record, u64::from(location.offset)).map_err(unreadable)?;
        let (head, payload) = record.split_at(HEAD_BYTES);
        if head != head_of(location, payload) {
            return Err(UnreadablePayload {
                location,
                is_damaged: true,
                why: "its checksum is wrong".into(),
            });
        }
        record.drain(..HEAD_BYTES);
        Ok(record.into())
    }

    fn file(&mut self, file: u64) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(open) = self.open.get(&file) {
            return Ok(open.clone());
        }
        let opened = self.disk.open(&name_of(file))?;
        // A single payload's file is not held open: its disk space would stay in use after it is removed.
        if SpillLocation::is_own_file(file) {
            return Ok(opened);
        }
        if self.open.len() >= OPEN_MAX {
            self.open.clear();
        }
        self.open.insert(file, opened.clone());
        Ok(opened)
    }
}

fn unreadable(location: SpillLocation, error: &io::Error) -> UnreadablePayload {
    let is_damaged = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof);
    UnreadablePayload { location, is_damaged, why: error.to_string() }
}

/// The header of a record: the payload's length, and a checksum over its location, length and bytes. So no
/// record passes for another.
fn head_of(location: SpillLocation, payload: &[u8]) -> [u8; HEAD_BYTES] {
    let length = location.bytes.to_le_bytes();
    let checksum = crc32c::crc32c(&location.file.to_le_bytes());
    let checksum = crc32c::crc32c_append(checksum, &location.offset.to_le_bytes());
    let checksum = crc32c::crc32c_append(checksum, &length);
    let checksum = crc32c::crc32c_append(checksum, payload);
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&length);
    head[4..].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// The result of spilling some payloads.
#[derive(Debug)]
pub(crate) struct SpillReport {
    pub(crate) moved: Vec<SpillDone>,
    /// The disk was full for some of them.
    pub(crate) is_full: bool,
}

/// Writes payloads, and reads them back.
pub(crate) struct PayloadFiles {
    disk: Arc<dyn Disk>,
    pub(crate) reader: PayloadReader,
    file_bytes: u64,
    /// The number of the next file. No number is used twice.
    next: u64,
    current: Option<OpenFile>,
    /// Whether a power cut could undo the creation of a file.
    unsynced_names: bool,
    /// Files that the next installed checkpoint does not refer to.
    empty: Vec<u64>,
    /// Files that the installed checkpoint does not refer to, but the previous one may. They are removed with
    /// it.
    leaving: Vec<u64>,
}

/// The file that is being written.
struct OpenFile {
    number: u64,
    file: Arc<dyn DiskFile>,
    written: u64,
    synced: u64,
    /// Bytes not written yet, with the tasks they belong to.
    buffer: Vec<u8>,
    tasks: Vec<(SpillTask, SpillLocation)>,
}

impl PayloadFiles {
    /// Creates files of up to `file_bytes`, numbered from `first` on.
    pub(crate) fn new(disk: Arc<dyn Disk>, first: u64, file_bytes: u64) -> PayloadFiles {
        PayloadFiles {
            reader: PayloadReader::new(disk.clone()),
            disk,
            file_bytes: file_bytes.min(FILE_BYTES_MAX),
            next: first,
            current: None,
            unsynced_names: false,
            empty: Vec::new(),
            leaving: Vec::new(),
        }
    }

    /// Writes payloads. On a full disk the remaining ones stay in memory; so does one that cannot be read.
    pub(crate) fn write(&mut self, tasks: Vec<SpillTask>) -> io::Result<SpillReport> {
        let mut written = SpillReport { moved: Vec::with_capacity(tasks.len()), is_full: false };
        for task in tasks {
            let payload = match task.payload.spill_location() {
                None => Ok(task.payload.clone()),
                Some(location) => self.reader.read(location),
            };
            let added = match payload {
                Ok(_) if written.is_full => Err(task),
                Ok(payload) => self.add(task, payload.bytes(), &mut written)?,
                Err(_) => Err(task),
            };
            if let Err(task) = added {
                written.moved.push(task.ended(None));
            }
        }
        self.flush(&mut written)?;
        Ok(written)
    }

    /// Adds a record, unless the disk is full.
    fn add(
        &mut self,
        task: SpillTask,
        payload: &[u8],
        written: &mut SpillReport,
    ) -> io::Result<Result<(), SpillTask>> {
        let record = HEAD_BYTES + payload.len();
        let is_over = |current: &OpenFile| {
            let end = current.end();
            end > HEADER_BYTES && end + record as u64 > self.file_bytes
        };
        if self.current.as_ref().is_some_and(is_over) {
            self.flush(written)?;
            // Synced now, because it is unknown when the next checkpoint is installed, and until then the
            // file would have to be held open.
            if let Some(mut finished) = self.current.take() {
                finished.sync()?;
            }
        }
        if self.current.is_none() && !self.begin(written)? {
            return Ok(Err(task));
        }
        let Some(current) = &mut self.current else { return Ok(Err(task)) };
        let location =
            SpillLocation { file: current.number, offset: current.end() as u32, bytes: payload.len() as u32 };
        current.buffer.extend_from_slice(&head_of(location, payload));
        current.buffer.extend_from_slice(payload);
        current.tasks.push((task, location));
        if current.buffer.len() >= WRITE_BYTES {
            self.flush(written)?;
        }
        Ok(Ok(()))
    }

    /// Begins the next file. Returns whether there was space.
    fn begin(&mut self, written: &mut SpillReport) -> io::Result<bool> {
        let number = self.next;
        let file = match self.disk.create(&name_of(number)) {
            Err(error) if is_full(&error) => {
                written.is_full = true;
                return Ok(false);
            }
            created => created?,
        };
        self.next += 1;
        self.unsynced_names = true;
        let mut buffer = Vec::with_capacity(WRITE_BYTES);
        buffer.extend_from_slice(MAGIC);
        buffer.extend_from_slice(&number.to_le_bytes());
        self.current = Some(OpenFile { number, file, written: 0, synced: 0, buffer, tasks: Vec::new() });
        Ok(true)
    }

    /// Writes the buffer.
    fn flush(&mut self, written: &mut SpillReport) -> io::Result<()> {
        let Some(current) = &mut self.current else { return Ok(()) };
        if current.tasks.is_empty() {
            return Ok(());
        }
        let tasks = std::mem::take(&mut current.tasks);
        match current.file.write_at(&current.buffer, current.written) {
            Ok(()) => {
                current.written += current.buffer.len() as u64;
                current.buffer.clear();
                written.moved.extend(tasks.into_iter().map(|(task, location)| task.ended(Some(location))));
            }
            Err(error) if is_full(&error) => {
                // The next write overwrites the partial one.
                current.buffer.truncate(if current.written == 0 { HEADER_BYTES as usize } else { 0 });
                written.moved.extend(tasks.into_iter().map(|(task, _)| task.ended(None)));
                written.is_full = true;
            }
            Err(error) => return Err(error),
        }
        if current.written - current.synced >= SYNC_BYTES {
            current.sync()?;
        }
        Ok(())
    }

    /// Makes everything written durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if let Some(current) = &mut self.current
            && current.synced < current.written
        {
            current.sync()?;
        }
        if std::mem::take(&mut self.unsynced_names) {
            self.disk.sync_directory().map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// No job refers to these files any more; only checkpoints begun before may.
    pub(crate) fn mark_empty(&mut self, files: Vec<u64>) {
        self.empty.extend(files);
    }

    /// The files that only the previous checkpoint may refer to.
    pub(crate) fn leaving(&self) -> Vec<u64> {
        self.leaving.clone()
    }

    /// These leaving files were [removed](remove).
    pub(crate) fn forget_leaving(&mut self, removed: &[u64]) {
        self.leaving.retain(|file| !removed.contains(file));
        for file in removed {
            self.reader.open.remove(file);
        }
    }

    /// A checkpoint was installed: the files that were empty when it was begun are needed by the previous one
    /// at most.
    pub(crate) fn checkpoint_installed(&mut self) {
        self.leaving.append(&mut self.empty);
    }
}

/// Writes a payload to a file of its own, complete and synced. Its name is durable once the directory is
/// synced.
pub(crate) fn write_own_file(disk: &dyn Disk, file: u64, payload: &[u8]) -> io::Result<SpillLocation> {
    let location = SpillLocation { file, offset: HEADER_BYTES as u32, bytes: payload.len() as u32 };
    let to = disk.create(&name_of(file))?;
    let mut head = Vec::with_capacity(HEADER_BYTES as usize + HEAD_BYTES);
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(&file.to_le_bytes());
    head.extend_from_slice(&head_of(location, payload));
    to.write_at(&head, 0)?;
    // In short chunks, so that a commit waits for one of them at most.
    write_synced(&*to, head.len() as u64, payload.chunks(SYNC_CHUNK_BYTES))?;
    Ok(location)
}

/// Removes a file, unless it is gone already.
pub(crate) fn remove_if_there(disk: &dyn Disk, file: u64) -> io::Result<()> {
    match disk.remove(&name_of(file)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

pub(crate) fn remove(disk: &dyn Disk, files: &[u64]) -> io::Result<()> {
    files.iter().try_for_each(|file| disk.remove(&name_of(*file)))
}

impl OpenFile {
    fn end(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn sync(&mut self) -> io::Result<()> {
        sync(&*self.file)?;
        self.synced = self.written;
        Ok(())
    }
}

/// A failed sync is never taken for a full disk: it is unknown what part of the file is durable.
fn sync(file: &dyn DiskFile) -> io::Result<()> {
    file.sync_data().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use geartrain_core::engine::{Effects, Engine, Limits};
    use geartrain_core::{Command, Jid, Klass, Put, QueueName, Timestamp};

    use super::*;
    use crate::wal::RealDisk;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("geartrain-payloads-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        fn disk(&self) -> Arc<dyn Disk> {
            Arc::new(RealDisk::new(&self.0).unwrap())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// An engine that has jobs with these payloads.
    fn engine(payloads: &[&str]) -> Engine {
        let mut engine = Engine::new(Limits { spill_bytes_min: 1, ..Limits::default() });
        for (n, payload) in payloads.iter().enumerate() {
            let (queue, jid) = (QueueName::new("q").unwrap(), Jid::new(n.to_string()).unwrap());
            let put = Put::new(queue, jid, Klass::new("k").unwrap(), *payload);
            engine.execute(Timestamp::ZERO, Command::from(put), &mut Effects::default()).unwrap();
        }
        engine
    }

    /// Spills all payloads of an engine. Returns their locations, in the order of their jids.
    fn spill(engine: &mut Engine, files: &mut PayloadFiles) -> Vec<SpillLocation> {
        let written = files.write(engine.pick_spill_victims(0, u64::MAX)).unwrap();
        assert!(!written.is_full);
        written.moved.into_iter().for_each(|moved| engine.finish_spill(moved));
        let locations: BTreeMap<Jid, SpillLocation> = engine.spilled_payloads().collect();
        locations.into_values().collect()
    }

    #[test]
    fn payloads_come_back_and_files_stay_short() {
        let scratch = Scratch::new("back");
        let long = "x".repeat(500);
        let payloads = ["one", "two two", &long, "four", "5", "six"];
        let mut engine = engine(&payloads);
        let mut files = PayloadFiles::new(scratch.disk(), 7, 64);
        let places = spill(&mut engine, &mut files);
        assert_eq!(engine.payload_bytes(), 0);
        for (location, payload) in places.iter().zip(payloads) {
            assert_eq!(files.reader.read(*location).unwrap().text(), Some(payload));
        }
        // 16 bytes for the file and 8 for each record; a payload longer than a file gets one of its own.
        let lengths: Vec<(u64, u64)> = files_on(&*scratch.disk()).unwrap().into_iter().collect();
        assert_eq!(lengths, [(7, 16 + 8 + 3 + 8 + 7), (8, 16 + 8 + 500), (9, 16 + 8 + 4 + 8 + 1 + 8 + 3)]);
        // Payloads copied forward are the same.
        engine.found_payload_file(7, 1_000);
        engine.found_payload_file(8, 1_000_000);
        let tasks = engine.pick_payloads_of_sparse_files(u64::MAX).unwrap();
        let written = files.write(tasks).unwrap();
        written.moved.into_iter().for_each(|moved| engine.finish_spill(moved));
        assert_eq!(engine.take_empty_payload_files(), [7, 8]);
        for (jid, location) in engine.spilled_payloads() {
            let payload = payloads[jid.to_string().parse::<usize>().unwrap()];
            assert_eq!(files.reader.read(location).unwrap().text(), Some(payload));
        }
    }

    #[test]
    fn no_damage_passes_and_no_record_passes_for_another() {
        let scratch = Scratch::new("damage");
        let mut engine = engine(&["first", "other"]);
        let mut files = PayloadFiles::new(scratch.disk(), 1, 1_000);
        let [first, other] = spill(&mut engine, &mut files)[..] else { panic!("two were moved") };
        let path = scratch.0.join(name_of(1));
        let whole = std::fs::read(&path).unwrap();
        for byte in first.offset as usize..other.offset as usize {
            let mut damaged = whole.clone();
            damaged[byte] ^= 1;
            std::fs::write(&path, damaged).unwrap();
            let error = files.reader.read(first).unwrap_err();
            assert_eq!(
                error.to_string(),
                "file payloads-0000000000000001 is damaged at byte 16: its checksum is wrong"
            );
            assert_eq!(files.reader.read(other).unwrap().text(), Some("other"));
        }
        // One record in the place of the other.
        let mut exchanged = whole.clone();
        exchanged.copy_within(other.offset as usize.., first.offset as usize);
        std::fs::write(&path, exchanged).unwrap();
        assert!(files.reader.read(first).is_err());
        // The same file under another number.
        std::fs::write(scratch.0.join(name_of(2)), whole).unwrap();
        assert!(files.reader.read(SpillLocation { file: 2, ..first }).is_err());
        let missing = files.reader.read(SpillLocation { file: 3, ..first }).unwrap_err();
        assert!(missing.to_string().starts_with("file payloads-0000000000000003 is damaged at byte 16: "));
    }
}
