//! The draft of 2005: fourteen packet types with a header of nine bytes, and one more for errors.
//!
//! ```
//! use bytes::BytesMut;
//! use geartrain_gearman::draft::{JobType, Magic, Request, Response};
//! use geartrain_gearman::{Incoming, Options, Parser};
//!
//! let job = Request::JobCreate { name: "resize", dupkey: "u7", flags: 0, kind: JobType::Handle, args: "x" };
//! let mut sent = BytesMut::new();
//! job.encode(Magic::default(), &mut sent)?;
//! assert_eq!(&sent[..], b"\0GRM\x04\0\0\0\x0dresize\0u7\0\0\x01x");
//! let Some(Incoming::Draft(packet)) = Parser::server(Options::default()).next(&mut sent)? else { panic!() };
//! assert!(matches!(Request::decode(packet)?, Request::JobCreate { kind: JobType::Handle, .. }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use bytes::{Buf, Bytes, BytesMut};

use crate::packet::{FUNCTION_BYTES_MAX, REQUEST, RESPONSE, terminated};
use crate::writer::{EncodeError, Writer};

pub(crate) const HEADER_BYTES: usize = 9;

const NOOP: u8 = 0x00;
const WORKER_CONNECT: u8 = 0x01;
const WORKER_DISCONNECT: u8 = 0x02;
const WORKER_SLEEP: u8 = 0x03;
const JOB_CREATE_REQ: u8 = 0x04;
const JOB_CREATE_RES: u8 = 0x05;
const JOB_ASSIGN_REQ: u8 = 0x06;
const JOB_ASSIGN_RES: u8 = 0x07;
const JOB_STATUS_ANNOUNCE: u8 = 0x08;
const JOB_STATUS_REQ: u8 = 0x09;
const JOB_STATUS_RES: u8 = 0x0a;
const JOB_COMPLETE_ANNOUNCE: u8 = 0x0b;
const JOB_COMPLETE_REQ: u8 = 0x0c;
pub(crate) const JOB_COMPLETE_RES: u8 = 0x0d;
pub(crate) const ERROR: u8 = 0x0e;

/// The magic of the draft's packets. The draft left its four bytes open; by default they are `\0GRM`.
///
/// ```
/// use geartrain_gearman::draft::Magic;
/// assert_eq!(Magic::default().bytes(), *b"\0GRM");
/// assert!(Magic::new([0x80, 1, 2, 3]).is_ok());
/// assert!(Magic::new(*b"\0REQ").is_err(), "the magic of the current protocol");
/// assert!(Magic::new(*b"GRM1").is_err(), "a line of text may begin with it");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Magic([u8; 4]);

/// Four bytes that do not distinguish the draft from the other protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the magic of the draft's packets begins with 00 or with 80 hex or more, and is neither \"\\0REQ\" nor \"\\0RES\""
)]
pub struct BadMagic;

impl Magic {
    /// Checks that neither lines nor the current protocol begin with these bytes.
    pub fn new(bytes: [u8; 4]) -> Result<Magic, BadMagic> {
        let text = (0x01..0x80).contains(&bytes[0]);
        if text || bytes == REQUEST || bytes == RESPONSE { Err(BadMagic) } else { Ok(Magic(bytes)) }
    }

    /// The four bytes.
    pub fn bytes(self) -> [u8; 4] {
        self.0
    }

    fn begin(self, kind: u8, out: &mut BytesMut) -> Writer<'_> {
        Writer::begin(out, &[&self.0, &[kind]])
    }
}

impl Default for Magic {
    fn default() -> Magic {
        Magic(*b"\0GRM")
    }
}

/// A packet that is framed but not decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The number of its type.
    pub kind: u8,
    /// What follows the header: a slice of the read buffer.
    pub data: Bytes,
}

/// A packet to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<B = Bytes> {
    /// noop: keeps the connection alive.
    Noop,
    /// worker_connect: the functions that a worker offers.
    WorkerConnect {
        /// Function names with NULs between them, for [`names`] to split. Not a list, which would take many
        /// times the memory.
        names: B,
    },
    /// worker_disconnect.
    WorkerDisconnect,
    /// worker_sleep: the worker is idle and waits for a noop.
    WorkerSleep,
    /// job_create_req.
    JobCreate {
        /// The function to run.
        name: B,
        /// Unique key of the job within its function; empty for none.
        dupkey: B,
        /// Unused.
        flags: u8,
        /// What happens with the result.
        kind: JobType,
        /// The job's payload.
        args: B,
    },
    /// job_assign_req: a worker asks for a job.
    JobAssign,
    /// job_status_announce: progress of the worker's job.
    AnnounceStatus(Progress),
    /// job_status_req: asks for a job's progress.
    JobStatus {
        /// The job's handle.
        handle: B,
    },
    /// job_complete_announce: the worker's job has ended.
    AnnounceComplete {
        /// 0 is success.
        result: u8,
        /// The job's output.
        data: B,
    },
    /// job_complete_req: asks for a job's result.
    JobComplete {
        /// The job's handle.
        handle: B,
    },
}

/// A packet from a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response<B = Bytes> {
    /// noop: there may be a job.
    Noop,
    /// job_create_res.
    JobCreate {
        /// The job's handle; empty if none was asked for.
        handle: B,
    },
    /// job_assign_res with a job.
    JobAssign {
        /// The function to run.
        name: B,
        /// The job's payload.
        args: B,
    },
    /// job_assign_res without one.
    NoJob,
    /// job_status_res.
    JobStatus(Progress),
    /// job_complete_res.
    JobComplete {
        /// 0 while the job has not ended; then the seconds that it took, at least 1.
        state: u32,
        /// 0 is success.
        result: u8,
        /// The job's output.
        data: B,
    },
    /// error. A server writes an [`Error`] instead.
    Error {
        /// The type of the packet that caused it.
        kind: u8,
        /// A [`Code`], for programs.
        code: u8,
        /// A text for people.
        text: B,
    },
}

/// What happens with a job's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobType {
    /// The client waits for it.
    Wait = 0,
    /// The client asks for it by handle.
    Handle = 1,
    /// It is discarded.
    ThrowAway = 2,
}

/// Progress of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Progress {
    /// Units done.
    pub numerator: u32,
    /// Units in total.
    pub denominator: u32,
    /// Estimated rest in seconds; 0 is unknown.
    pub seconds_left: u32,
}

/// An error packet. Its `Display` is the packet's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct Error {
    /// The type of the packet that caused it; 0 if its magic was wrong.
    pub kind: u8,
    /// What was wrong.
    pub code: Code,
}

/// Error codes of the draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// Another magic than that of the first packet. The connection ends.
    BadMagic = 0x01,
    /// A type that does not exist. The connection ends.
    UnknownType = 0x02,
    /// More data than allowed. The connection ends.
    TooLarge = 0x03,
    /// A type that only the other side sends.
    WrongDirection = 0x04,
    /// Data that does not fit the packet's type.
    BadPayload = 0x05,
    /// A report from a worker without a job.
    NoCurrentJob = 0x06,
    /// A worker that has a job asks for another.
    Busy = 0x07,
    /// A job type that does not exist.
    BadJobType = 0x08,
    /// An invalid function name.
    BadName = 0x09,
    /// The queue's limit is reached.
    QueueFull = 0x0a,
    /// The server is shutting down and accepts no more jobs.
    GoingDown = 0x0b,
}

/// The job names in a [`Request::WorkerConnect`].
///
/// ```
/// use geartrain_gearman::draft::names;
/// assert_eq!(names(b"resize\0\0thumbgen\0").collect::<Vec<_>>(), [&b"resize"[..], b"thumbgen"]);
/// ```
pub fn names(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    data.split(|byte| *byte == 0).filter(|name| !name.is_empty())
}

impl Request {
    /// Decodes a packet.
    pub fn decode(packet: Packet) -> Result<Request, Error> {
        let Packet { kind, mut data } = packet;
        let wrong = |code| Error { kind, code };
        let empty = |request| if data.is_empty() { Ok(request) } else { Err(wrong(Code::BadPayload)) };
        match kind {
            NOOP => Ok(Request::Noop),
            WORKER_CONNECT if names(&data).any(|name| name.len() > FUNCTION_BYTES_MAX) => {
                Err(wrong(Code::BadName))
            }
            WORKER_CONNECT => Ok(Request::WorkerConnect { names: data }),
            WORKER_DISCONNECT => empty(Request::WorkerDisconnect),
            WORKER_SLEEP => empty(Request::WorkerSleep),
            JOB_CREATE_REQ => Request::job_create(data).map_err(wrong),
            JOB_ASSIGN_REQ => empty(Request::JobAssign),
            JOB_STATUS_ANNOUNCE => {
                Progress::read(&data).map(Request::AnnounceStatus).ok_or(wrong(Code::BadPayload))
            }
            JOB_STATUS_REQ | JOB_COMPLETE_REQ | JOB_COMPLETE_ANNOUNCE if data.is_empty() => {
                Err(wrong(Code::BadPayload))
            }
            JOB_STATUS_REQ => Ok(Request::JobStatus { handle: data }),
            JOB_COMPLETE_REQ => Ok(Request::JobComplete { handle: data }),
            JOB_COMPLETE_ANNOUNCE => Ok(Request::AnnounceComplete { result: data.get_u8(), data }),
            JOB_CREATE_RES | JOB_ASSIGN_RES | JOB_STATUS_RES | JOB_COMPLETE_RES => {
                Err(wrong(Code::WrongDirection))
            }
            _ => Err(wrong(Code::UnknownType)),
        }
    }

    fn job_create(mut data: Bytes) -> Result<Request, Code> {
        let name = terminated(&mut data).ok_or(Code::BadPayload)?;
        let dupkey = terminated(&mut data).ok_or(Code::BadPayload)?;
        if data.len() < 2 {
            return Err(Code::BadPayload);
        }
        let (flags, kind) = (data.get_u8(), data.get_u8());
        if !(1..=FUNCTION_BYTES_MAX).contains(&name.len()) {
            return Err(Code::BadName);
        }
        let kind = match kind {
            0 => JobType::Wait,
            1 => JobType::Handle,
            2 => JobType::ThrowAway,
            _ => return Err(Code::BadJobType),
        };
        Ok(Request::JobCreate { name, dupkey, flags, kind, args: data })
    }
}

impl<B: AsRef<[u8]>> Request<B> {
    /// Appends the packet. On an error the buffer is left as it was.
    pub fn encode(&self, magic: Magic, out: &mut BytesMut) -> Result<(), EncodeError> {
        match self {
            Request::Noop => magic.begin(NOOP, out).finish(),
            Request::WorkerConnect { names } => magic.begin(WORKER_CONNECT, out).finish_with(names),
            Request::WorkerDisconnect => magic.begin(WORKER_DISCONNECT, out).finish(),
            Request::WorkerSleep => magic.begin(WORKER_SLEEP, out).finish(),
            Request::JobCreate { name, dupkey, flags, kind, args } => {
                let writer =
                    magic.begin(JOB_CREATE_REQ, out).argument("name", name)?.argument("dupkey", dupkey)?;
                writer.raw(&[*flags, *kind as u8]).finish_with(args)
            }
            Request::JobAssign => magic.begin(JOB_ASSIGN_REQ, out).finish(),
            Request::AnnounceStatus(progress) => {
                magic.begin(JOB_STATUS_ANNOUNCE, out).finish_with(progress.bytes())
            }
            Request::JobStatus { handle } => magic.begin(JOB_STATUS_REQ, out).finish_with(handle),
            Request::AnnounceComplete { result, data } => {
                magic.begin(JOB_COMPLETE_ANNOUNCE, out).raw(&[*result]).finish_with(data)
            }
            Request::JobComplete { handle } => magic.begin(JOB_COMPLETE_REQ, out).finish_with(handle),
        }
    }
}

impl Response {
    /// Decodes a packet. An error is the server's fault.
    pub fn decode(packet: Packet) -> Result<Response, Error> {
        let Packet { kind, mut data } = packet;
        let wrong = |code| Error { kind, code };
        match kind {
            NOOP => Ok(Response::Noop),
            JOB_CREATE_RES => Ok(Response::JobCreate { handle: data }),
            JOB_ASSIGN_RES if data.is_empty() => Ok(Response::NoJob),
            JOB_ASSIGN_RES => {
                let name = terminated(&mut data).ok_or(wrong(Code::BadPayload))?;
                Ok(Response::JobAssign { name, args: data })
            }
            JOB_STATUS_RES => Progress::read(&data).map(Response::JobStatus).ok_or(wrong(Code::BadPayload)),
            JOB_COMPLETE_RES if data.len() < 5 => Err(wrong(Code::BadPayload)),
            JOB_COMPLETE_RES => {
                Ok(Response::JobComplete { state: data.get_u32(), result: data.get_u8(), data })
            }
            ERROR if data.len() < 2 => Err(wrong(Code::BadPayload)),
            ERROR => Ok(Response::Error { kind: data.get_u8(), code: data.get_u8(), text: data }),
            WORKER_CONNECT..=JOB_COMPLETE_RES => Err(wrong(Code::WrongDirection)),
            _ => Err(wrong(Code::UnknownType)),
        }
    }
}

impl<B: AsRef<[u8]>> Response<B> {
    /// Appends the packet. On an error the buffer is left as it was.
    pub fn encode(&self, magic: Magic, out: &mut BytesMut) -> Result<(), EncodeError> {
        match self {
            Response::Noop => magic.begin(NOOP, out).finish(),
            Response::JobCreate { handle } => magic.begin(JOB_CREATE_RES, out).finish_with(handle),
            Response::JobAssign { name, args } => {
                magic.begin(JOB_ASSIGN_RES, out).argument("name", name)?.finish_with(args)
            }
            Response::NoJob => magic.begin(JOB_ASSIGN_RES, out).finish(),
            Response::JobStatus(progress) => magic.begin(JOB_STATUS_RES, out).finish_with(progress.bytes()),
            Response::JobComplete { state, result, data } => {
                magic.begin(JOB_COMPLETE_RES, out).raw(&state.to_be_bytes()).raw(&[*result]).finish_with(data)
            }
            Response::Error { kind, code, text } => {
                magic.begin(ERROR, out).raw(&[*kind, *code]).finish_with(text)
            }
        }
    }
}

impl Error {
    /// Appends the error packet.
    pub fn encode(&self, magic: Magic, out: &mut BytesMut) {
        // Fails only for a text of 4 GiB.
        let _ = magic.begin(ERROR, out).raw(&[self.kind, self.code as u8]).finish_with(self.text());
    }

    fn text(&self) -> &'static str {
        match self.code {
            Code::BadMagic => "bad magic",
            Code::UnknownType => "unknown type",
            Code::TooLarge => "too large",
            Code::WrongDirection => "wrong direction",
            Code::BadPayload => match self.kind {
                JOB_CREATE_REQ => "bad payload: a job is name, NUL, dupkey, NUL, flags, type and args",
                JOB_STATUS_ANNOUNCE | JOB_STATUS_RES => "bad payload: a status has 12 bytes",
                JOB_STATUS_REQ | JOB_COMPLETE_REQ => "bad payload: the handle is empty",
                JOB_COMPLETE_ANNOUNCE => "bad payload: the result is missing",
                WORKER_DISCONNECT | WORKER_SLEEP | JOB_ASSIGN_REQ => "bad payload: it should be empty",
                _ => "bad payload",
            },
            Code::NoCurrentJob => "no current job",
            Code::Busy => "busy",
            Code::BadJobType => "bad job type",
            Code::BadName => "bad name",
            Code::QueueFull => "queue full",
            Code::GoingDown => "going down",
        }
    }
}

impl Progress {
    fn read(data: &[u8]) -> Option<Progress> {
        let mut data: &[u8] = <&[u8; 12]>::try_from(data).ok()?;
        let (numerator, denominator) = (data.get_u32(), data.get_u32());
        Some(Progress { numerator, denominator, seconds_left: data.get_u32() })
    }

    fn bytes(self) -> [u8; 12] {
        let numbers = [self.numerator, self.denominator, self.seconds_left];
        let mut bytes = [0; 12];
        for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }
}
