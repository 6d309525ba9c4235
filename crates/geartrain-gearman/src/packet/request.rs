//! Requests: the packets that clients and workers send.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::arguments::{check_function, leading_number, terminated_or_all, without_one_nul};
use super::{CLIENT_ID_BYTES_MAX, Fault, Packet, REQUEST, Report, Submission, kind};
use crate::writer::{EncodeError, Writer};

/// A packet to a server.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use geartrain_gearman::packet::{Fault, Packet, Request};
///
/// let packet = Packet { kind: 1, data: Bytes::from_static(b"resize") };
/// assert_eq!(Request::decode(packet)?, Request::CanDo { function: "resize".into(), timeout: None });
/// let mut bytes = BytesMut::new();
/// Request::CanDo { function: "resize", timeout: None }.encode(&mut bytes).unwrap();
/// assert_eq!(&bytes[..], b"\0REQ\0\0\0\x01\0\0\0\x06resize");
///
/// let unknown = Request::decode(Packet { kind: 99, data: Bytes::new() }).unwrap_err();
/// assert_eq!((unknown.code(), unknown.to_string().as_str()), ("INVALID_COMMAND", "Command not expected"));
/// # Ok::<(), Fault>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<B = Bytes> {
    /// CAN_DO, and CAN_DO_TIMEOUT if there is a timeout.
    CanDo {
        /// The function that the worker offers.
        function: B,
        /// How long a job may take, in whole milliseconds and at least one second.
        timeout: Option<Duration>,
    },
    /// CANT_DO.
    CantDo {
        /// The function that the worker no longer offers.
        function: B,
    },
    /// RESET_ABILITIES: the worker offers no functions any more.
    ResetAbilities,
    /// PRE_SLEEP: the worker is idle and waits for a NOOP.
    PreSleep,
    /// GRAB_JOB, GRAB_JOB_UNIQ and GRAB_JOB_ALL.
    Grab(Grab),
    /// The six WORK_* packets.
    Report(Report<B>),
    /// SET_CLIENT_ID.
    SetClientId {
        /// A name for people. At most [127 bytes](CLIENT_ID_BYTES_MAX); the rest is cut off.
        id: B,
    },
    /// ALL_YOURS: a promise that changes nothing.
    AllYours,
    /// The ten SUBMIT_* packets.
    Submit(Submission<B>),
    /// GET_STATUS.
    GetStatus {
        /// The job's handle.
        handle: B,
    },
    /// GET_STATUS_UNIQUE.
    GetStatusUnique {
        /// The job's unique ID.
        unique: B,
    },
    /// OPTION_REQ.
    SetOption {
        /// The option as it was sent, because the reply repeats it; see [`is_exceptions_option`].
        option: B,
    },
    /// ECHO_REQ.
    Echo {
        /// The bytes to send back.
        data: B,
    },
}

/// How a worker asks for a job: which fields the assignment holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Grab {
    /// GRAB_JOB: handle, function and data.
    Plain,
    /// GRAB_JOB_UNIQ: the unique ID too.
    Unique,
    /// GRAB_JOB_ALL: the reducer too, if there is one.
    All,
}

/// Whether this is `exceptions`, the only option.
pub fn is_exceptions_option(option: &[u8]) -> bool {
    option.strip_suffix(b"\0").unwrap_or(option).eq_ignore_ascii_case(b"exceptions")
}

impl Request {
    /// Decodes a packet. Tolerates the known mistakes of existing clients.
    pub fn decode(packet: Packet) -> Result<Request, Fault> {
        let Packet { kind, mut data } = packet;
        Ok(match kind {
            kind::CAN_DO => Request::CanDo { function: function_argument(data)?, timeout: None },
            kind::CAN_DO_TIMEOUT => {
                let function = function_argument(terminated_or_all(&mut data))?;
                Request::CanDo { function, timeout: timeout(&data) }
            }
            kind::CANT_DO => Request::CantDo { function: function_argument(data)? },
            kind::RESET_ABILITIES => Request::ResetAbilities,
            kind::PRE_SLEEP => Request::PreSleep,
            kind::GRAB_JOB => Request::Grab(Grab::Plain),
            kind::GRAB_JOB_UNIQ => Request::Grab(Grab::Unique),
            kind::GRAB_JOB_ALL => Request::Grab(Grab::All),
            kind::SET_CLIENT_ID => {
                data.truncate(CLIENT_ID_BYTES_MAX);
                Request::SetClientId { id: data }
            }
            kind::ALL_YOURS => Request::AllYours,
            kind::GET_STATUS => Request::GetStatus { handle: echoed_name(data, "A handle holds no NUL")? },
            // One client sends the type of the response.
            kind::GET_STATUS_UNIQUE | kind::STATUS_RES_UNIQUE => {
                Request::GetStatusUnique { unique: echoed_name(data, "A unique ID holds no NUL")? }
            }
            kind::OPTION_REQ => Request::SetOption { option: data },
            kind::ECHO_REQ => Request::Echo { data },
            kind::WORK_STATUS
            | kind::WORK_COMPLETE
            | kind::WORK_FAIL
            | kind::WORK_EXCEPTION
            | kind::WORK_DATA
            | kind::WORK_WARNING => Request::Report(Report::decode(kind, data).ok_or(Fault::Type(kind))?),
            kind::SUBMIT_JOB
            | kind::SUBMIT_JOB_BG
            | kind::SUBMIT_JOB_HIGH
            | kind::SUBMIT_JOB_HIGH_BG
            | kind::SUBMIT_JOB_LOW
            | kind::SUBMIT_JOB_LOW_BG
            | kind::SUBMIT_JOB_SCHED
            | kind::SUBMIT_JOB_EPOCH
            | kind::SUBMIT_REDUCE_JOB
            | kind::SUBMIT_REDUCE_JOB_BACKGROUND => Request::Submit(Submission::decode(kind, data)?),
            other => return Err(Fault::Type(other)),
        })
    }
}

impl<B: AsRef<[u8]>> Request<B> {
    /// Appends the packet. On an error the buffer is left as it was.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), EncodeError> {
        match self {
            Request::CanDo { function, timeout: None } => {
                begin(out, kind::CAN_DO).finish_with_name("function", function)
            }
            Request::CanDo { function, timeout: Some(timeout) } => begin(out, kind::CAN_DO_TIMEOUT)
                .argument("function", function)?
                .display(timeout.as_millis())
                .finish(),
            Request::CantDo { function } => begin(out, kind::CANT_DO).finish_with_name("function", function),
            Request::ResetAbilities => begin(out, kind::RESET_ABILITIES).finish(),
            Request::PreSleep => begin(out, kind::PRE_SLEEP).finish(),
            Request::Grab(Grab::Plain) => begin(out, kind::GRAB_JOB).finish(),
            Request::Grab(Grab::Unique) => begin(out, kind::GRAB_JOB_UNIQ).finish(),
            Request::Grab(Grab::All) => begin(out, kind::GRAB_JOB_ALL).finish(),
            Request::Report(report) => report.encode(REQUEST, out),
            Request::SetClientId { id } => begin(out, kind::SET_CLIENT_ID).finish_with(id),
            Request::AllYours => begin(out, kind::ALL_YOURS).finish(),
            Request::Submit(submission) => submission.encode(out),
            Request::GetStatus { handle } => begin(out, kind::GET_STATUS).finish_with_name("handle", handle),
            Request::GetStatusUnique { unique } => {
                begin(out, kind::GET_STATUS_UNIQUE).finish_with_name("unique ID", unique)
            }
            Request::SetOption { option } => begin(out, kind::OPTION_REQ).finish_with(option),
            Request::Echo { data } => begin(out, kind::ECHO_REQ).finish_with(data),
        }
    }
}

fn begin(out: &mut BytesMut, kind: u32) -> Writer<'_> {
    Writer::begin(out, &[&REQUEST, &kind.to_be_bytes()])
}

fn function_argument(data: Bytes) -> Result<Bytes, Fault> {
    let name = without_one_nul(data);
    check_function(&name).map(|()| name)
}

/// A name that the reply repeats in front of other arguments.
fn echoed_name(data: Bytes, wrong: &'static str) -> Result<Bytes, Fault> {
    let name = without_one_nul(data);
    if name.contains(&0) { Err(Fault::Argument(wrong)) } else { Ok(name) }
}

/// Milliseconds, raised to one second. Anything that is not a number means no limit and is never refused: one
/// client sends four raw bytes here.
fn timeout(text: &[u8]) -> Option<Duration> {
    match leading_number(text).unwrap_or(u64::MAX) {
        0 => None,
        milliseconds => Some(Duration::from_millis(milliseconds.max(1000))),
    }
}
