//! The audit log: who changed what, from where, and what came of it. One JSON object per line, appended to a
//! file by a thread of its own.

mod action;
mod reader;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use geartrain_core::{Command, Role, SystemClock};
use serde::{Deserialize, Serialize};

pub(crate) use self::action::{Action, action_name};
pub use self::reader::{AuditPage, read_audit};
use self::writer::Writer;

/// Which actions are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditScope {
    /// Decisions of operators and administrators, and logins.
    Administrative,
    /// Also puts, pops and the reports of workers.
    All,
}

/// An action, before it has its number.
#[derive(Debug, Clone)]
pub struct AuditEvent {
    /// The name of the access key, or else the one that the client gave itself.
    pub who: Option<String>,
    /// The role of the caller; none before it has logged in.
    pub role: Option<Role>,
    /// The address of the caller.
    pub from: String,
    /// What was done: `cancel`, `pause`, `login` …
    pub action: &'static str,
    /// What it was done to: a jid, a queue, a filter …
    pub target: Option<String>,
    /// How many jobs or other things were changed, if that is known.
    pub count: Option<u64>,
    /// `ok`, `refused`, the code of an error, or `unknown` if the caller went away before.
    pub outcome: &'static str,
}

impl AuditEvent {
    /// Of an unknown caller, and successful.
    pub fn new(action: &'static str, from: &str) -> AuditEvent {
        AuditEvent {
            who: None,
            role: None,
            from: from.to_owned(),
            action,
            target: None,
            count: None,
            outcome: "ok",
        }
    }
}

/// A line of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AuditRecord {
    /// Larger than that of any earlier record.
    pub id: u64,
    /// When, in seconds since the epoch.
    pub at: f64,
    /// The name of the access key, or else the one that the client gave itself.
    pub who: Option<String>,
    /// The role of the caller; none before it has logged in.
    #[schemars(with = "Option<String>")]
    pub role: Option<Role>,
    /// The address of the caller.
    pub from: String,
    /// What was done: `cancel`, `pause`, `login` …
    pub action: String,
    /// What it was done to: a jid, a queue, a filter …
    pub target: Option<String>,
    /// How many jobs or other things were changed, if that is known.
    pub count: Option<u64>,
    /// `ok`, `refused`, the code of an error, or `unknown` if the caller went away before.
    pub outcome: String,
}

/// The audit log of a server. Its clones write to the same file; the last one that is dropped waits until
/// everything is written.
#[derive(Clone)]
pub struct AuditLog {
    scope: AuditScope,
    file: Arc<Path>,
    writer: Arc<Writer>,
}

impl AuditLog {
    /// Opens the file for appending, or creates it. When it has reached `bytes_max`, it is renamed to `FILE.1`,
    /// in the place of an earlier one.
    pub fn open(file: PathBuf, scope: AuditScope, bytes_max: u64) -> std::io::Result<AuditLog> {
        let file: Arc<Path> = file.into();
        Ok(AuditLog { scope, writer: Arc::new(Writer::start(file.clone(), bytes_max)?), file })
    }

    /// Whether a command is recorded.
    pub fn records(&self, command: &Command) -> bool {
        match self.scope {
            AuditScope::Administrative => command.is_administrative(),
            AuditScope::All => command.access() > Role::Viewer,
        }
    }

    /// Appends a record. Never waits for the disk.
    pub fn record(&self, event: AuditEvent) {
        let AuditEvent { who, role, from, action, target, count, outcome } = event;
        let at = geartrain_core::Clock::now(&SystemClock).get();
        let (action, outcome) = (action.to_owned(), outcome.to_owned());
        self.writer.append(AuditRecord { id: 0, at, who, role, from, action, target, count, outcome });
    }

    /// The newest records, newest first, from before the one with this id. Waits for the disk.
    pub fn read(&self, limit: usize, before: Option<u64>) -> std::io::Result<AuditPage> {
        self.writer.flush();
        read_audit(&self.file, limit, before, None)
    }
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditLog")
            .field("file", &self.file)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

/// The file before the last rotation.
fn rotated(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let directory =
                std::env::temp_dir().join(format!("geartrain-audit-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            Scratch(directory)
        }

        fn open(&self, bytes_max: u64) -> AuditLog {
            AuditLog::open(self.0.join("audit.log"), AuditScope::Administrative, bytes_max).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn numbered(number: u64) -> AuditEvent {
        AuditEvent { count: Some(number), ..AuditEvent::new("test", "here") }
    }

    #[test]
    fn everything_is_written_when_the_log_is_dropped_and_numbers_go_on() {
        let scratch = Scratch::new("drop");
        for round in 0..3_u64 {
            let log = scratch.open(1 << 20);
            (0..500).for_each(|number| log.record(numbered(500 * round + number)));
        }
        let page = read_audit(&scratch.0.join("audit.log"), 10_000, None, None).unwrap();
        let ids: Vec<u64> = page.items.iter().map(|record| record.id).collect();
        assert_eq!(ids, (1..=1_500).rev().collect::<Vec<_>>());
        assert_eq!(page.next, None);
    }

    #[test]
    fn pages_are_newest_first_and_join_without_gap() {
        let scratch = Scratch::new("pages");
        let log = scratch.open(1 << 20);
        (1..=25).for_each(|number| log.record(numbered(number)));
        let (mut before, mut all) = (None, Vec::new());
        loop {
            let page = log.read(10, before).unwrap();
            all.extend(page.items.iter().map(|record| record.count.unwrap()));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(all, (1..=25).rev().collect::<Vec<_>>());
    }

    #[test]
    fn the_size_is_bounded_by_a_rotation() {
        let scratch = Scratch::new("rotation");
        let log = scratch.open(4_000);
        for number in 1..=200 {
            log.record(numbered(number));
            log.writer.flush();
        }
        let [new, old] =
            ["audit.log", "audit.log.1"].map(|name| scratch.0.join(name).metadata().unwrap().len());
        assert!(new <= 4_200 && old <= 4_200, "{new} {old}");
        let page = log.read(1_000, None).unwrap();
        assert_eq!(page.items.first().unwrap().count, Some(200));
        assert!(page.items.windows(2).all(|pair| pair[0].id == pair[1].id + 1));
        assert!(page.items.len() > 30);
    }

    #[test]
    fn a_file_that_cannot_be_renamed_grows_and_one_that_is_gone_is_made_again() {
        let scratch = Scratch::new("stuck");
        let [file, old] = ["audit.log", "audit.log.1"].map(|name| scratch.0.join(name));
        let log = scratch.open(1_000);
        // No file can take the place of a directory.
        std::fs::create_dir(&old).unwrap();
        let record = |numbers: std::ops::RangeInclusive<u64>| {
            numbers.for_each(|number| {
                log.record(numbered(number));
                log.writer.flush();
            });
        };
        record(1..=50);
        assert!(file.metadata().unwrap().len() > 2_000);
        std::fs::remove_dir(&old).unwrap();
        record(51..=51);
        assert!(file.metadata().unwrap().len() < 1_000 && old.exists());
        // As if the new file could not be opened after the renaming.
        record(52..=56);
        std::fs::rename(&file, &old).unwrap();
        record(57..=70);
        assert_eq!(log.read(1, None).unwrap().items[0].count, Some(70));
        assert!(file.exists());
    }

    #[test]
    fn a_flush_ends_while_records_go_on() {
        let scratch = Scratch::new("flush");
        let log = scratch.open(1 << 30);
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    log.record(numbered(1));
                }
            });
            for number in 2..5 {
                log.record(numbered(number));
                log.writer.flush();
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn a_torn_line_is_skipped_and_the_next_record_begins_a_line() {
        let scratch = Scratch::new("torn");
        let log = scratch.open(1 << 20);
        log.record(numbered(1));
        drop(log);
        let file = scratch.0.join("audit.log");
        let mut bytes = std::fs::read(&file).unwrap();
        bytes.extend_from_slice(br#"{"id":2,"at"#);
        std::fs::write(&file, bytes).unwrap();
        let log = scratch.open(1 << 20);
        log.record(numbered(3));
        let counts: Vec<_> = log.read(10, None).unwrap().items.iter().map(|record| record.count).collect();
        assert_eq!(counts, [Some(3), Some(1)]);
    }
}
