//! Lines for administrators: what they may ask, and the exact form of the answers.
//!
//! An answer goes out in one piece: some clients stop to read when nothing comes for some milliseconds. So all of it is written into one buffer first.
//!
//! ```
//! use bytes::{Bytes, BytesMut};
//! use geartrain_gearman::text::{self, Command, Line};
//!
//! assert_eq!(Command::parse(&Bytes::from_static(b"STATUS"), false), Ok(Command::Status));
//! let mut answer = BytesMut::new();
//! Line::Status { function: b"resize", total: 3, running: 1, workers: 2 }.write(&mut answer);
//! text::write_end(&mut answer);
//! assert_eq!(&answer[..], b"resize\t3\t1\t2\n.\n");
//!
//! let refused = Command::parse(&Bytes::from_static(b"dance"), false).unwrap_err();
//! answer.clear();
//! refused.write(&mut answer);
//! assert_eq!(&answer[..], b"ERR UNKNOWN_COMMAND Unknown+server+commanddance\r\n");
//! ```

use std::fmt::{Display, Write};
use std::net::{IpAddr, SocketAddr};

use bytes::{Bytes, BytesMut};

use crate::packet;

/// The most words of a command that takes any.
const ARGUMENTS_MAX: usize = 5;

/// What an administrator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `status`: a list of [`Line::Status`].
    Status,
    /// `prioritystatus`: a list of [`Line::PriorityStatus`].
    PriorityStatus,
    /// `workers`: a list of [`Line::Connection`].
    Workers,
    /// `show jobs`: a list of [`Line::Job`].
    ShowJobs,
    /// `show unique jobs`: a list of [`Line::Unique`].
    ShowUniqueJobs,
    /// `jobs`: a list of [`Line::Attached`].
    Jobs,
    /// `clients`: a list of [`Line::Client`], each with its [`Line::ClientJob`]s.
    Clients,
    /// `cancel job HANDLE`.
    CancelJob {
        /// Which.
        handle: Bytes,
    },
    /// `create function NAME`.
    CreateFunction {
        /// Which.
        function: Bytes,
    },
    /// `drop function NAME`.
    DropFunction {
        /// Which.
        function: Bytes,
    },
    /// `maxqueue NAME [N | HIGH NORMAL LOW]`.
    MaxQueue {
        /// Of which function.
        function: Bytes,
        /// How many jobs there may be for one more to be taken.
        limits: QueueLimits,
    },
    /// `getpid`: answered with a [value](write_value).
    GetPid,
    /// `verbose`: answered with a [value](write_value).
    Verbose,
    /// `version`: answered with a [value](write_value).
    Version,
    /// `shutdown [graceful]`.
    Shutdown {
        /// Whether the jobs are to be done first.
        graceful: bool,
    },
}

/// For each priority, from how many jobs of a function on no other is taken. None is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QueueLimits {
    /// For high priority.
    pub high: Option<u64>,
    /// For normal priority.
    pub normal: Option<u64>,
    /// For low priority.
    pub low: Option<u64>,
}

/// An answer that begins with ERR. Some have a code, some a text, some both: clients look for exactly these.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ErrorReply {
    /// No such command: its first word.
    #[error("UNKNOWN_COMMAND Unknown+server+command{}", String::from_utf8_lossy(.0))]
    UnknownCommand(Bytes),
    /// Too few words, or too many, or not those that this command takes.
    #[error("INVALID_ARGUMENTS An+incomplete+set+of+arguments+was+sent+to+this+command+{0}")]
    InvalidArguments(&'static str),
    /// `show` something that cannot be shown.
    #[error("UNKNOWN_SHOW_ARGUMENTS")]
    UnknownShow,
    /// `cancel` something that is no job.
    #[error("UNKNOWN_ERROR")]
    UnknownCancel,
    /// `cancel job` of a job that is not there.
    #[error("UNKNOWN_JOB")]
    UnknownJob,
    /// `drop function` of a function that is not there.
    #[error("function not found")]
    FunctionNotFound,
    /// `drop function` of a function with workers or jobs.
    #[error("there are still connected workers or executing clients")]
    FunctionInUse,
}

/// A line of a list. Bytes that would end a field or the line are shown as `_`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line<'a> {
    /// Of `status`.
    Status {
        /// Its name.
        function: &'a [u8],
        /// Its jobs, with those that are running.
        total: u64,
        /// Those that are running.
        running: u64,
        /// The workers that can do it.
        workers: u64,
    },
    /// Of `prioritystatus`. Running jobs do not count.
    PriorityStatus {
        /// Its name.
        function: &'a [u8],
        /// Its jobs of high priority.
        high: u64,
        /// Its jobs of normal priority.
        normal: u64,
        /// Its jobs of low priority.
        low: u64,
        /// The workers that can do it.
        workers: u64,
    },
    /// Of `workers`.
    Connection {
        /// A number that no other open connection has.
        number: u64,
        /// Where it comes from.
        address: IpAddr,
        /// What it calls itself. Blanks would be taken for the end of it, and are shown as `_` too; nothing as `-`.
        id: &'a [u8],
        /// What it can do.
        functions: &'a [&'a [u8]],
    },
    /// Of `show jobs`.
    Job {
        /// Which.
        handle: &'a [u8],
        /// How often it came back.
        retries: u64,
        /// Whether nobody wants it any more.
        ignored: bool,
        /// Whether it is done in the background.
        queued: bool,
    },
    /// Of `show unique jobs`.
    Unique {
        /// Of a job.
        unique: &'a [u8],
    },
    /// Of `jobs`.
    Attached {
        /// What it does.
        function: &'a [u8],
        /// Its unique ID.
        unique: &'a [u8],
        /// Who does it.
        worker: Option<SocketAddr>,
        /// How many wait for its news.
        listeners: u64,
    },
    /// Of `clients`: a connection.
    Client {
        /// Where it comes from.
        address: SocketAddr,
    },
    /// Of `clients`: a job whose news the connection above waits for.
    ClientJob {
        /// What it does.
        function: &'a [u8],
        /// Its unique ID.
        unique: &'a [u8],
        /// Who does it.
        worker: Option<SocketAddr>,
    },
}

impl Command {
    /// Understands a line. Where nobody may stop the server by a word, `shutdown` is not known.
    pub fn parse(line: &Bytes, shutdown_allowed: bool) -> Result<Command, ErrorReply> {
        let first = first_word(line);
        let unknown = || ErrorReply::UnknownCommand(line.slice_ref(first));
        // With the first word, one more than any command takes: enough to know that there are too many.
        let words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let arguments: Vec<&[u8]> = words.skip(1).take(ARGUMENTS_MAX).collect();
        let name = |bytes: &[u8]| line.slice_ref(bytes);
        let is = |word: &[u8], expected: &str| word.eq_ignore_ascii_case(expected.as_bytes());
        let Some(&command) = COMMANDS.iter().find(|word| is(first, word)) else { return Err(unknown()) };
        let invalid = ErrorReply::InvalidArguments(command);
        Ok(match (command, &arguments[..]) {
            ("status", _) => Command::Status,
            ("prioritystatus", _) => Command::PriorityStatus,
            ("workers", _) => Command::Workers,
            ("jobs", _) => Command::Jobs,
            ("clients", _) => Command::Clients,
            ("getpid", _) => Command::GetPid,
            ("verbose", _) => Command::Verbose,
            ("version", _) => Command::Version,
            ("shutdown", _) if !shutdown_allowed => return Err(unknown()),
            ("show", []) | ("cancel", [] | [_]) => return Err(unknown()),
            (_, [_, _, _, _, _, ..]) => return Err(invalid),
            ("show", [jobs]) if is(jobs, "jobs") => Command::ShowJobs,
            ("show", [unique, jobs]) if is(unique, "unique") && is(jobs, "jobs") => Command::ShowUniqueJobs,
            ("show", _) => return Err(ErrorReply::UnknownShow),
            ("cancel", [job, handle]) if is(job, "job") => Command::CancelJob { handle: name(handle) },
            ("cancel", [_, _]) => return Err(ErrorReply::UnknownCancel),
            ("create", [word, function]) if is(word, "function") && can_be_function(function) => {
                Command::CreateFunction { function: name(function) }
            }
            ("drop", [word, function]) if is(word, "function") => {
                Command::DropFunction { function: name(function) }
            }
            ("maxqueue", [function, limits @ ..]) if can_be_function(function) => Command::MaxQueue {
                function: name(function),
                limits: QueueLimits::read(limits).ok_or(invalid)?,
            },
            ("shutdown", []) => Command::Shutdown { graceful: false },
            ("shutdown", [word]) if is(word, "graceful") => Command::Shutdown { graceful: true },
            _ => return Err(invalid),
        })
    }
}

/// The first word of a line. A blank at the beginning ends one that is empty, and there is no such command.
pub(crate) fn first_word(line: &[u8]) -> &[u8] {
    line.split(|byte| *byte == b' ').next().unwrap_or_default()
}

fn can_be_function(name: &[u8]) -> bool {
    packet::check_function(name).is_ok()
}

/// All first words there are.
const COMMANDS: [&str; 14] = [
    "status",
    "prioritystatus",
    "workers",
    "jobs",
    "clients",
    "getpid",
    "verbose",
    "version",
    "show",
    "cancel",
    "create",
    "drop",
    "maxqueue",
    "shutdown",
];

impl QueueLimits {
    /// None, one for all, or one for each. One that is no number is refused: a slip of the finger should not lift a limit.
    fn read(words: &[&[u8]]) -> Option<QueueLimits> {
        let number = |word: &[u8]| {
            let number: i64 = std::str::from_utf8(word).ok()?.parse().ok()?;
            Some(u64::try_from(number).ok().filter(|number| *number > 0))
        };
        match *words {
            [] => Some(QueueLimits::default()),
            [all] => number(all).map(|all| QueueLimits { high: all, normal: all, low: all }),
            [high, normal, low] => {
                Some(QueueLimits { high: number(high)?, normal: number(normal)?, low: number(low)? })
            }
            _ => None,
        }
    }
}

impl ErrorReply {
    /// Writes the answer.
    pub fn write(&self, out: &mut BytesMut) {
        out.extend_from_slice(b"ERR ");
        match self {
            // The word as it came: bytes, not text.
            ErrorReply::UnknownCommand(word) => {
                out.extend_from_slice(b"UNKNOWN_COMMAND Unknown+server+command");
                out.extend_from_slice(word);
            }
            other => display(out, other),
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Writes the answer to what was done and says no more. Not with a CR as well: a whole family of clients compares with the bare word.
pub fn write_ok(out: &mut BytesMut) {
    out.extend_from_slice(b"OK\n");
}

/// Writes the answer that is one value.
pub fn write_value(out: &mut BytesMut, value: impl Display) {
    out.extend_from_slice(b"OK ");
    display(out, value);
    out.extend_from_slice(b"\n");
}

/// Writes the end of a list.
pub fn write_end(out: &mut BytesMut) {
    out.extend_from_slice(b".\n");
}

impl Line<'_> {
    /// Writes the line.
    pub fn write(&self, out: &mut BytesMut) {
        match *self {
            Line::Status { function, total, running, workers } => {
                field(out, function);
                numbers(out, &[total, running, workers]);
            }
            Line::PriorityStatus { function, high, normal, low, workers } => {
                field(out, function);
                numbers(out, &[high, normal, low, workers]);
            }
            Line::Connection { number, address, id, functions } => {
                // An address that IPv4 is only dressed up as is shown undressed.
                display(out, format_args!("{number} {} ", address.to_canonical()));
                let shown = |byte: &u8| if byte.is_ascii_graphic() || *byte >= 0x80 { *byte } else { b'_' };
                out.extend(if id.is_empty() { b"-" } else { id }.iter().map(shown));
                out.extend_from_slice(b" :");
                for function in functions {
                    out.extend_from_slice(b" ");
                    field(out, function);
                }
            }
            Line::Job { handle, retries, ignored, queued } => {
                field(out, handle);
                numbers(out, &[retries, u64::from(ignored), u64::from(queued)]);
            }
            // A dot alone would end the list.
            Line::Unique { unique: b"." } => out.extend_from_slice(b"_"),
            Line::Unique { unique } => field(out, unique),
            Line::Attached { function, unique, worker, listeners } => {
                job(out, function, unique, worker);
                numbers(out, &[listeners]);
            }
            Line::Client { address } => display(out, canonical(address)),
            Line::ClientJob { function, unique, worker } => {
                out.extend_from_slice(b"\t");
                job(out, function, unique, worker);
            }
        }
        out.extend_from_slice(b"\n");
    }
}

fn field(out: &mut BytesMut, bytes: &[u8]) {
    let shown = |byte: &u8| if matches!(byte, b'\t' | b'\n' | b'\r') { b'_' } else { *byte };
    out.extend(bytes.iter().map(shown));
}

fn numbers(out: &mut BytesMut, numbers: &[u64]) {
    for number in numbers {
        display(out, format_args!("\t{number}"));
    }
}

fn job(out: &mut BytesMut, function: &[u8], unique: &[u8], worker: Option<SocketAddr>) {
    field(out, function);
    out.extend_from_slice(b"\t");
    field(out, unique);
    match worker {
        Some(address) => display(out, format_args!("\t{}", canonical(address))),
        None => out.extend_from_slice(b"\t-"),
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn display(out: &mut BytesMut, text: impl Display) {
    // Writing into memory cannot fail.
    let _ = write!(out, "{text}");
}
