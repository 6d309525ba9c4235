//! Record of submissions (`record=FILE`): a write-ahead journal of jobs, written before they are sent and
//! kept until they are known to be done.
//!
//! The file holds JSON lines, one per step of a job. Several processes may append to it; each locks the file
//! for its append. A torn line is the last one of a process that died, and the next process that appends
//! truncates it.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use geartrain_core::{Payload, QueueName, UniqueKey};

use super::error::ServerError;
use crate::function;
use crate::packet::{Mode, Priority, Submission};

/// The record file, shared by this and other processes.
#[derive(Debug, Clone)]
pub struct Record {
    file: PathBuf,
}

/// One line: a step of a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordLine {
    /// About to be sent.
    Put(Box<RecordedJob>),
    /// About to be sent to another server.
    Sent { id: String, server: String },
    /// Accepted by the server it was sent to.
    Taken { id: String, handle: String },
    /// Ended or cancelled.
    Done { id: String },
}

/// A job as it is recorded.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct RecordedJob {
    /// Its id in the record.
    pub(crate) id: String,
    pub(crate) function: QueueName,
    pub(crate) unique: UniqueKey,
    #[serde(default)]
    priority: RecordedPriority,
    pub(crate) payload: Payload,
    /// Not before this Unix second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reducer: Option<Payload>,
    /// Whether a client waited for it.
    #[serde(default)]
    awaited: bool,
    /// Where it was sent first.
    pub(crate) server: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum RecordedPriority {
    High,
    #[default]
    Normal,
    Low,
}

/// A job that is not known to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OpenJob {
    pub(crate) recorded: RecordedJob,
    /// Where it was sent last.
    pub(crate) server: String,
    /// Its handle there; `None` if the server did not answer.
    pub(crate) handle: Option<String>,
}

impl RecordedJob {
    /// Records a submission to this server.
    pub(crate) fn new(submission: &Submission, server: &str) -> Option<RecordedJob> {
        let (due, reducer) = match &submission.mode {
            Mode::Epoch(due) => (Some(*due), None),
            Mode::Reduce { reducer, .. } => (None, Some(Payload::from(reducer.clone()))),
            _ => (None, None),
        };
        Some(RecordedJob {
            id: uuid::Uuid::now_v7().simple().to_string(),
            function: function::queue(&submission.function).ok()?,
            unique: UniqueKey::new(&submission.unique).ok()?,
            priority: match submission.priority() {
                Priority::High => RecordedPriority::High,
                Priority::Normal => RecordedPriority::Normal,
                Priority::Low => RecordedPriority::Low,
            },
            payload: Payload::from(submission.data.clone()),
            due,
            reducer,
            awaited: !submission.is_background(),
            server: server.to_owned(),
        })
    }

    /// The submission for putting the job again, in the background: the client that waited is gone.
    pub(crate) fn submission(&self) -> Submission {
        let bytes = |payload: &Payload| Bytes::copy_from_slice(payload.bytes());
        let mode = match (&self.reducer, self.due) {
            (Some(reducer), _) => Mode::Reduce { reducer: bytes(reducer), background: true },
            (None, Some(due)) => Mode::Epoch(due),
            (None, None) => Mode::Background(match self.priority {
                RecordedPriority::High => Priority::High,
                RecordedPriority::Normal => Priority::Normal,
                RecordedPriority::Low => Priority::Low,
            }),
        };
        Submission {
            function: Bytes::copy_from_slice(&function::bytes(&self.function)),
            unique: Bytes::copy_from_slice(self.unique.as_bytes()),
            data: bytes(&self.payload),
            mode,
        }
    }
}

impl Record {
    /// The record in this file, which is created by the first write.
    pub fn new(file: impl Into<PathBuf>) -> Record {
        Record { file: file.into() }
    }

    fn error(&self, why: impl ToString) -> ServerError {
        ServerError::Record { file: self.file.display().to_string(), why: why.to_string() }
    }

    /// Appends lines. Jobs about to be sent are synced to disk first; other lines may be lost in a crash and
    /// are then found out again.
    pub(crate) async fn write(&self, lines: Vec<RecordLine>) -> Result<(), ServerError> {
        let record = self.clone();
        let sync = lines.iter().any(|line| matches!(line, RecordLine::Put(_) | RecordLine::Sent { .. }));
        let written = tokio::task::spawn_blocking(move || {
            let mut text = Vec::new();
            for line in &lines {
                serde_json::to_writer(&mut text, line)?;
                text.push(b'\n');
            }
            let mut file = record.lock_for_append()?;
            let is_new = file.metadata()?.len() == 0;
            file.write_all(&text)?;
            if sync {
                file.sync_data()?;
            }
            if sync && is_new {
                sync_directory(&record.file)?;
            }
            io::Result::Ok(())
        });
        written.await.map_err(|_| ServerError::ShutDown)?.map_err(|error| self.error(error))
    }

    /// The jobs that are not known to be done, in the order in which they were put.
    pub(crate) async fn open_jobs(&self) -> Result<Vec<OpenJob>, ServerError> {
        let record = self.clone();
        let read = tokio::task::spawn_blocking(move || match File::open(&record.file) {
            Ok(file) => read_open_jobs(file),
            Err(error) => Err(error.to_string()),
        });
        read.await.map_err(|_| ServerError::ShutDown)?.map_err(|why| self.error(why))
    }

    /// Compacts the file: removes jobs that are done. Other processes wait meanwhile, and then append to the
    /// new file.
    pub(crate) async fn compact(&self) -> Result<(), ServerError> {
        let record = self.clone();
        let compacted = tokio::task::spawn_blocking(move || {
            let old = record.lock_for_append().map_err(|error| error.to_string())?;
            let open = read_open_jobs(File::open(&record.file).map_err(|error| error.to_string())?)?;
            let written = record.rewrite(&open).map_err(|error| error.to_string());
            drop(old);
            written
        });
        compacted.await.map_err(|_| ServerError::ShutDown)?.map_err(|why| self.error(why))
    }

    fn rewrite(&self, open: &[OpenJob]) -> io::Result<()> {
        let mut new_path = self.file.clone().into_os_string();
        new_path.push(".new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new_path)?;
        let mut text = Vec::new();
        for line in open.iter().flat_map(OpenJob::lines) {
            serde_json::to_writer(&mut text, &line)?;
            text.push(b'\n');
        }
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&new_path, &self.file)?;
        sync_directory(&self.file)
    }

    /// Opens the file for appending and locks it until it is dropped.
    fn lock_for_append(&self) -> io::Result<File> {
        loop {
            // Only the owner may read it: it holds payloads.
            let mut options = OpenOptions::new();
            let mut file = options.read(true).append(true).create(true).mode(0o600).open(&self.file)?;
            file.lock()?;
            // If it was compacted since it was opened, its name belongs to another file now.
            let (this, named) = (file.metadata()?, std::fs::metadata(&self.file));
            if named.is_ok_and(|named| (named.dev(), named.ino()) == (this.dev(), this.ino())) {
                truncate_torn_line(&mut file)?;
                return Ok(file);
            }
        }
    }
}

impl OpenJob {
    /// The lines that record the present state of the job.
    fn lines(&self) -> Vec<RecordLine> {
        let id = &self.recorded.id;
        let recorded = RecordedJob { server: self.server.clone(), ..self.recorded.clone() };
        let mut lines = vec![RecordLine::Put(Box::new(recorded))];
        lines.extend(self.handle.clone().map(|handle| RecordLine::Taken { id: id.clone(), handle }));
        lines
    }
}

/// Reads the record.
fn read_open_jobs(file: File) -> Result<Vec<OpenJob>, String> {
    let mut open: BTreeMap<u64, OpenJob> = BTreeMap::new();
    let mut by_id: HashMap<String, u64> = HashMap::new();
    let mut reader = BufReader::new(file);
    let mut text = Vec::new();
    for number in 1.. {
        text.clear();
        reader.read_until(b'\n', &mut text).map_err(|error| error.to_string())?;
        // An incomplete line is still being written, or its process died.
        if text.last() != Some(&b'\n') {
            break;
        }
        let line: RecordLine = serde_json::from_slice(&text)
            .map_err(|error| format!("line {number} makes no sense ({error}); remove it, or the file"))?;
        let id = match &line {
            RecordLine::Put(recorded) => &recorded.id,
            RecordLine::Sent { id, .. } | RecordLine::Taken { id, .. } | RecordLine::Done { id } => id,
        };
        match (line.clone(), by_id.get(id).and_then(|number| open.get_mut(number))) {
            (RecordLine::Put(recorded), None) => {
                by_id.insert(recorded.id.clone(), number);
                let server = recorded.server.clone();
                open.insert(number, OpenJob { recorded: *recorded, server, handle: None });
            }
            (RecordLine::Sent { server, .. }, Some(open)) => (open.server, open.handle) = (server, None),
            (RecordLine::Taken { handle, .. }, Some(open)) => open.handle = Some(handle),
            (RecordLine::Done { id }, Some(_)) => {
                if let Some(number) = by_id.remove(&id) {
                    open.remove(&number);
                }
            }
            // The job is done already: two processes found that out.
            _ => {}
        }
    }
    Ok(open.into_values().collect())
}

/// Truncates an incomplete last line.
fn truncate_torn_line(file: &mut File) -> io::Result<()> {
    const STEP: u64 = 4_096;
    let mut end = file.metadata()?.len();
    let mut bytes = Vec::new();
    while end > 0 {
        let begin = end.saturating_sub(STEP);
        file.seek(SeekFrom::Start(begin))?;
        bytes.clear();
        Read::by_ref(file).take(end - begin).read_to_end(&mut bytes)?;
        if let Some(number) = bytes.iter().rposition(|byte| *byte == b'\n') {
            end = begin + number as u64 + 1;
            break;
        }
        end = begin;
    }
    if end < file.metadata()?.len() { file.set_len(end) } else { Ok(()) }
}

fn sync_directory(file: &Path) -> io::Result<()> {
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(id: &str) -> RecordedJob {
        RecordedJob {
            id: id.to_owned(),
            function: QueueName::new("resize").unwrap(),
            unique: UniqueKey::new(b"\xff key").unwrap(),
            priority: RecordedPriority::High,
            payload: Payload::from(b"cat\n\0\xff"),
            due: None,
            reducer: None,
            awaited: false,
            server: "a:4730".to_owned(),
        }
    }

    fn text(lines: &[RecordLine]) -> Vec<u8> {
        lines.iter().flat_map(|line| [serde_json::to_vec(line).unwrap(), b"\n".to_vec()].concat()).collect()
    }

    fn story() -> Vec<RecordLine> {
        let (one, two) = (|| "one".to_owned(), || "two".to_owned());
        vec![
            RecordLine::Put(Box::new(noted("one"))),
            RecordLine::Taken { id: one(), handle: "H:a:1".to_owned() },
            RecordLine::Put(Box::new(noted("two"))),
            RecordLine::Sent { id: one(), server: "b:4730".to_owned() },
            RecordLine::Taken { id: one(), handle: "H:b:1".to_owned() },
            RecordLine::Done { id: two() },
            RecordLine::Done { id: one() },
        ]
    }

    fn read(bytes: &[u8]) -> Result<Vec<OpenJob>, String> {
        let scratch = geartrain_testkit::peers::Scratch::new("record");
        let path = scratch.path().join("record");
        std::fs::write(&path, bytes).unwrap();
        read_open_jobs(File::open(&path).unwrap())
    }

    /// At whatever byte the process died, no job that may have been sent is forgotten, and the next line can
    /// be appended.
    #[tokio::test]
    async fn a_torn_record_is_read_up_to_its_last_complete_line() {
        let whole = text(&story());
        let mut expected = Vec::new();
        let mut lines = 0;
        for cut in 0..=whole.len() {
            if cut > 0 && whole[cut - 1] == b'\n' {
                lines += 1;
                expected = read(&text(&story()[..lines])).unwrap();
            }
            assert_eq!(read(&whole[..cut]).unwrap(), expected, "cut after {cut} bytes");

            let scratch = geartrain_testkit::peers::Scratch::new("record");
            let record = Record::new(scratch.path().join("record"));
            std::fs::write(&record.file, &whole[..cut]).unwrap();
            record.write(vec![RecordLine::Put(Box::new(noted("three")))]).await.unwrap();
            let mut then = expected.clone();
            then.push(OpenJob { recorded: noted("three"), server: "a:4730".to_owned(), handle: None });
            assert_eq!(record.open_jobs().await.unwrap(), then, "cut after {cut} bytes, and written to");
        }
        assert_eq!(expected, []);
    }

    #[tokio::test]
    async fn a_compacted_record_keeps_the_open_jobs() {
        let scratch = geartrain_testkit::peers::Scratch::new("record");
        let record = Record::new(scratch.path().join("record"));
        let history = story();
        for lines in 1..=history.len() {
            std::fs::write(&record.file, text(&history[..lines])).unwrap();
            let facts = |open: Vec<OpenJob>| -> Vec<_> {
                open.into_iter().map(|open| (open.recorded.submission(), open.server, open.handle)).collect()
            };
            let before = facts(record.open_jobs().await.unwrap());
            record.compact().await.unwrap();
            assert_eq!(facts(record.open_jobs().await.unwrap()), before, "after {lines} lines");
        }
        assert_eq!(std::fs::read(&record.file).unwrap(), b"");
    }

    #[test]
    fn a_recorded_job_becomes_the_same_submission_again() {
        let modes = [
            Mode::Background(Priority::Low),
            Mode::Epoch(77),
            Mode::Reduce { reducer: "sum".into(), background: true },
        ];
        for mode in modes {
            let submission = Submission {
                function: "\u{fc}".into(),
                unique: "k".into(),
                data: b"\0\xff"[..].into(),
                mode,
            };
            assert_eq!(RecordedJob::new(&submission, "a:1").unwrap().submission(), submission);
        }
        let awaited = Submission {
            function: "f".into(),
            unique: "k".into(),
            data: Bytes::new(),
            mode: Mode::Foreground(Priority::High),
        };
        let again = RecordedJob::new(&awaited, "a:1").unwrap().submission();
        assert_eq!(again.mode, Mode::Background(Priority::High));
    }

    #[test]
    fn an_invalid_line_is_reported_with_its_number() {
        let mut bytes = text(&story()[..1]);
        bytes.extend_from_slice(b"{\"dance\":{}}\n");
        let why = read(&bytes).unwrap_err();
        assert!(why.starts_with("line 2 makes no sense ("), "{why}");
    }
}
