//! The record of what was put: written before it is sent, and kept until it is known to be done.
//!
//! A file of lines of JSON, one thing each that happened to a job. Several processes may write to one; each line is written under a lock. A line that a process did not finish was the last that it
//! wrote, and is cut off by the next one that writes.

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

/// The record of what this and other processes have put, in a file.
#[derive(Debug, Clone)]
pub struct Record {
    file: PathBuf,
}

/// One line: something that happened to a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordLine {
    /// It is about to be sent.
    Put(Box<RecordedJob>),
    /// It is about to be sent to another server.
    Sent { id: String, server: String },
    /// The server it was sent to has it.
    Taken { id: String, handle: String },
    /// It ended, or nobody wants it any more.
    Done { id: String },
}

/// A job as it is written down.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct RecordedJob {
    /// What it is called in the record.
    pub(crate) id: String,
    pub(crate) function: QueueName,
    pub(crate) unique: UniqueKey,
    #[serde(default)]
    priority: RecordedPriority,
    pub(crate) payload: Payload,
    /// Not before so many seconds after 1970 began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reducer: Option<Payload>,
    /// Whether somebody waited for it.
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
    /// What it is called there; not known if nothing came back.
    pub(crate) handle: Option<String>,
}

impl RecordedJob {
    /// A submission that goes to this server.
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

    /// The same job to be put again. Whoever waited for it has gone, so nobody does.
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
    /// The record in a file, which is made when something is first written down.
    pub fn new(file: impl Into<PathBuf>) -> Record {
        Record { file: file.into() }
    }

    fn error(&self, why: impl ToString) -> ServerError {
        ServerError::Record { file: self.file.display().to_string(), why: why.to_string() }
    }

    /// Writes lines at the end. What is about to be sent must be on the disk first; the rest may be lost, and is then found out again.
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

    /// Leaves out all that is done. Whoever writes meanwhile waits, and then writes to the new file.
    pub(crate) async fn compact(&self) -> Result<(), ServerError> {
        let record = self.clone();
        let shortened = tokio::task::spawn_blocking(move || {
            let old = record.lock_for_append().map_err(|error| error.to_string())?;
            let open = read_open_jobs(File::open(&record.file).map_err(|error| error.to_string())?)?;
            let written = record.rewrite(&open).map_err(|error| error.to_string());
            drop(old);
            written
        });
        shortened.await.map_err(|_| ServerError::ShutDown)?.map_err(|why| self.error(why))
    }

    fn rewrite(&self, open: &[OpenJob]) -> io::Result<()> {
        let mut beside = self.file.clone().into_os_string();
        beside.push(".new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        let mut text = Vec::new();
        for line in open.iter().flat_map(OpenJob::lines) {
            serde_json::to_writer(&mut text, &line)?;
            text.push(b'\n');
        }
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&beside, &self.file)?;
        sync_directory(&self.file)
    }

    /// The file, to write at its end; nobody else does until it is dropped.
    fn lock_for_append(&self) -> io::Result<File> {
        loop {
            // Payloads are nobody else's business.
            let mut options = OpenOptions::new();
            let mut file = options.read(true).append(true).create(true).mode(0o600).open(&self.file)?;
            file.lock()?;
            // It may have been shortened since it was opened, and then another one has its name.
            let (this, named) = (file.metadata()?, std::fs::metadata(&self.file));
            if named.is_ok_and(|named| (named.dev(), named.ino()) == (this.dev(), this.ino())) {
                truncate_torn_line(&mut file)?;
                return Ok(file);
            }
        }
    }
}

impl OpenJob {
    /// All that is known of it, once more.
    fn lines(&self) -> Vec<RecordLine> {
        let id = &self.recorded.id;
        let noted = RecordedJob { server: self.server.clone(), ..self.recorded.clone() };
        let mut lines = vec![RecordLine::Put(Box::new(noted))];
        lines.extend(self.handle.clone().map(|handle| RecordLine::Taken { id: id.clone(), handle }));
        lines
    }
}

/// Reads a record.
fn read_open_jobs(file: File) -> Result<Vec<OpenJob>, String> {
    let mut open: BTreeMap<u64, OpenJob> = BTreeMap::new();
    let mut places: HashMap<String, u64> = HashMap::new();
    let mut reader = BufReader::new(file);
    let mut text = Vec::new();
    for number in 1.. {
        text.clear();
        reader.read_until(b'\n', &mut text).map_err(|error| error.to_string())?;
        // Without an end, it is still being written, or whoever wrote it did not get further.
        if text.last() != Some(&b'\n') {
            break;
        }
        let line: RecordLine = serde_json::from_slice(&text)
            .map_err(|error| format!("line {number} makes no sense ({error}); remove it, or the file"))?;
        let id = match &line {
            RecordLine::Put(noted) => &noted.id,
            RecordLine::Sent { id, .. } | RecordLine::Taken { id, .. } | RecordLine::Done { id } => id,
        };
        match (line.clone(), places.get(id).and_then(|place| open.get_mut(place))) {
            (RecordLine::Put(noted), None) => {
                places.insert(noted.id.clone(), number);
                let server = noted.server.clone();
                open.insert(number, OpenJob { recorded: *noted, server, handle: None });
            }
            (RecordLine::Sent { server, .. }, Some(open)) => (open.server, open.handle) = (server, None),
            (RecordLine::Taken { handle, .. }, Some(open)) => open.handle = Some(handle),
            (RecordLine::Done { id }, Some(_)) => {
                if let Some(place) = places.remove(&id) {
                    open.remove(&place);
                }
            }
            // Of a job that is done already, because two processes found that out.
            _ => {}
        }
    }
    Ok(open.into_values().collect())
}

/// Cuts off what a process left that did not get to the end of its line.
fn truncate_torn_line(file: &mut File) -> io::Result<()> {
    const STEP: u64 = 4_096;
    let mut end = file.metadata()?.len();
    let mut bytes = Vec::new();
    while end > 0 {
        let begin = end.saturating_sub(STEP);
        file.seek(SeekFrom::Start(begin))?;
        bytes.clear();
        Read::by_ref(file).take(end - begin).read_to_end(&mut bytes)?;
        if let Some(place) = bytes.iter().rposition(|byte| *byte == b'\n') {
            end = begin + place as u64 + 1;
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

    /// However much of it was written when the process ended, nothing that may have been sent is forgotten, and the next line can be written behind it.
    #[tokio::test]
    async fn a_record_cut_off_anywhere_is_read_up_to_its_last_whole_line() {
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
    async fn a_shortened_record_says_the_same_of_what_is_not_done() {
        let scratch = geartrain_testkit::peers::Scratch::new("record");
        let record = Record::new(scratch.path().join("record"));
        let story = story();
        for lines in 1..=story.len() {
            std::fs::write(&record.file, text(&story[..lines])).unwrap();
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
    fn a_job_is_put_again_as_it_was() {
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
    fn a_line_that_makes_no_sense_is_named() {
        let mut bytes = text(&story()[..1]);
        bytes.extend_from_slice(b"{\"dance\":{}}\n");
        let why = read(&bytes).unwrap_err();
        assert!(why.starts_with("line 2 makes no sense ("), "{why}");
    }
}
