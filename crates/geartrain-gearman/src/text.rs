//! Admin commands in text lines, and the exact bytes of their replies.
//!
//! A reply is written into one buffer and sent in one piece: some clients stop reading after a pause of a few
//! milliseconds.
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

/// The most arguments that are examined.
const ARGUMENTS_MAX: usize = 5;

/// An admin command.
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
        /// The job to cancel.
        handle: Bytes,
    },
    /// `create function NAME`.
    CreateFunction {
        /// The function's name.
        function: Bytes,
    },
    /// `drop function NAME`.
    DropFunction {
        /// The function's name.
        function: Bytes,
    },
    /// `maxqueue NAME [N | HIGH NORMAL LOW]`.
    MaxQueue {
        /// The function's name.
        function: Bytes,
        /// The limits per priority.
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
        /// Whether to wait until all jobs have ended.
        graceful: bool,
    },
}

/// For each priority, how many jobs of a function may exist for another to be accepted. `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QueueLimits {
    /// For high priority.
    pub high: Option<u64>,
    /// For normal priority.
    pub normal: Option<u64>,
    /// For low priority.
    pub low: Option<u64>,
}

/// A reply that begins with ERR. Some have a code, some a text, some both: clients match exactly these.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ErrorReply {
    /// An unknown command: its first word.
    #[error("UNKNOWN_COMMAND Unknown+server+command{}", String::from_utf8_lossy(.0))]
    UnknownCommand(Bytes),
    /// Too few arguments, too many, or wrong ones.
    #[error("INVALID_ARGUMENTS An+incomplete+set+of+arguments+was+sent+to+this+command+{0}")]
    InvalidArguments(&'static str),
    /// An unknown argument of `show`.
    #[error("UNKNOWN_SHOW_ARGUMENTS")]
    UnknownShow,
    /// An unknown argument of `cancel`.
    #[error("UNKNOWN_ERROR")]
    UnknownCancel,
    /// `cancel job` of an unknown job.
    #[error("UNKNOWN_JOB")]
    UnknownJob,
    /// `drop function` of an unknown function.
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
        /// The function's name.
        function: &'a [u8],
        /// Unfinished jobs, including running ones.
        total: u64,
        /// Running jobs.
        running: u64,
        /// Workers that offer it.
        workers: u64,
    },
    /// Of `prioritystatus`. Running jobs do not count.
    PriorityStatus {
        /// The function's name.
        function: &'a [u8],
        /// Jobs of high priority.
        high: u64,
        /// Jobs of normal priority.
        normal: u64,
        /// Jobs of low priority.
        low: u64,
        /// Workers that offer it.
        workers: u64,
    },
    /// Of `workers`.
    Connection {
        /// A number that no other open connection has.
        number: u64,
        /// The peer's address.
        address: IpAddr,
        /// The client ID. Blanks would end it and are shown as `_` too; an empty one as `-`.
        id: &'a [u8],
        /// The functions that it offers.
        functions: &'a [&'a [u8]],
    },
    /// Of `show jobs`.
    Job {
        /// The job's handle.
        handle: &'a [u8],
        /// How often it was retried.
        retries: u64,
        /// Whether its clients are gone.
        ignored: bool,
        /// Whether it is a background job.
        queued: bool,
    },
    /// Of `show unique jobs`.
    Unique {
        /// The job's unique ID.
        unique: &'a [u8],
    },
    /// Of `jobs`.
    Attached {
        /// The job's function.
        function: &'a [u8],
        /// Its unique ID.
        unique: &'a [u8],
        /// The worker that runs it.
        worker: Option<SocketAddr>,
        /// How many clients wait for it.
        listeners: u64,
    },
    /// Of `clients`: a connection.
    Client {
        /// The client's address.
        address: SocketAddr,
    },
    /// Of `clients`: a job that the client above waits for.
    ClientJob {
        /// The job's function.
        function: &'a [u8],
        /// Its unique ID.
        unique: &'a [u8],
        /// The worker that runs it.
        worker: Option<SocketAddr>,
    },
}

impl Command {
    /// Parses a line. Without `shutdown_allowed`, `shutdown` is an unknown command.
    pub fn parse(line: &Bytes, shutdown_allowed: bool) -> Result<Command, ErrorReply> {
        let first = first_word(line);
        let unknown = || ErrorReply::UnknownCommand(line.slice_ref(first));
        // One more than any command takes: enough to see that there are too many.
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

/// The first word of a line. It is empty if the line begins with a blank, which is no command.
pub(crate) fn first_word(line: &[u8]) -> &[u8] {
    line.split(|byte| *byte == b' ').next().unwrap_or_default()
}

fn can_be_function(name: &[u8]) -> bool {
    packet::check_function(name).is_ok()
}

/// The first words of all commands.
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
    /// No limit, one for all priorities, or one for each. Anything that is not a number is refused: a typing
    /// error must not remove a limit.
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
    /// Appends the reply.
    pub fn write(&self, out: &mut BytesMut) {
        out.extend_from_slice(b"ERR ");
        match self {
            // The word is bytes, not text.
            ErrorReply::UnknownCommand(word) => {
                out.extend_from_slice(b"UNKNOWN_COMMAND Unknown+server+command");
                out.extend_from_slice(word);
            }
            other => display(out, other),
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends the reply to a command that returns nothing. Without a CR: a whole family of clients compares with
/// a bare `OK` line.
pub fn write_ok(out: &mut BytesMut) {
    out.extend_from_slice(b"OK\n");
}

/// Appends a reply of one value.
pub fn write_value(out: &mut BytesMut, value: impl Display) {
    out.extend_from_slice(b"OK ");
    display(out, value);
    out.extend_from_slice(b"\n");
}

/// Appends the end of a list.
pub fn write_end(out: &mut BytesMut) {
    out.extend_from_slice(b".\n");
}

impl Line<'_> {
    /// Appends the line.
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
                // An IPv4 address mapped into IPv6 is shown as IPv4.
                display(out, format_args!("{number} {} ", address.to_canonical()));
                let printable =
                    |byte: &u8| if byte.is_ascii_graphic() || *byte >= 0x80 { *byte } else { b'_' };
                out.extend(if id.is_empty() { b"-" } else { id }.iter().map(printable));
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
    let printable = |byte: &u8| if matches!(byte, b'\t' | b'\n' | b'\r') { b'_' } else { *byte };
    out.extend(bytes.iter().map(printable));
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
