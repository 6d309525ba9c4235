//! Responses: the packets that a server sends.

use bytes::{Bytes, BytesMut};

use super::arguments::{leading_u32, required, terminated_or_all};
use super::{Fault, Grab, Packet, RESPONSE, Report, kind};
use crate::writer::{EncodeError, Writer};

/// A packet from a server.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use geartrain_gearman::packet::{Fault, Packet, Response};
///
/// let mut bytes = BytesMut::new();
/// Response::JobCreated { handle: "H:lap:1" }.encode(&mut bytes).unwrap();
/// assert_eq!(&bytes[..], b"\0RES\0\0\0\x08\0\0\0\x07H:lap:1");
/// let packet = Packet { kind: 8, data: Bytes::from_static(b"H:lap:1") };
/// assert_eq!(Response::decode(packet)?, Response::JobCreated { handle: "H:lap:1".into() });
/// # Ok::<(), Fault>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response<B = Bytes> {
    /// NOOP: there may be a job.
    Noop,
    /// JOB_CREATED.
    JobCreated {
        /// The new job's handle.
        handle: B,
    },
    /// NO_JOB.
    NoJob,
    /// JOB_ASSIGN, JOB_ASSIGN_UNIQ and JOB_ASSIGN_ALL.
    Assign(Assignment<B>),
    /// The six WORK_* packets.
    Report(Report<B>),
    /// STATUS_RES.
    Status {
        /// The handle, as it was requested.
        handle: B,
        /// The job's status.
        status: JobStatus,
    },
    /// STATUS_RES_UNIQUE.
    StatusUnique {
        /// The unique ID, as it was requested.
        unique: B,
        /// The job's status.
        status: JobStatus,
        /// How many clients wait for it.
        clients: u32,
    },
    /// OPTION_RES.
    OptionSet {
        /// The option, as it was requested.
        option: B,
    },
    /// ECHO_RES.
    Echo {
        /// The bytes of the request.
        data: B,
    },
    /// ERROR. A server writes a [`Fault`] instead.
    Error {
        /// A code for programs.
        code: B,
        /// A text for people.
        text: B,
    },
}

/// A job assigned to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment<B = Bytes> {
    /// How the worker asked. Fields that it did not ask for are neither written nor read, and are empty.
    pub grab: Grab,
    /// The job's handle.
    pub handle: B,
    /// The job's function.
    pub function: B,
    /// Its unique ID.
    pub unique: B,
    /// The function that combines partial results; empty if there is none. Then a worker that [asked for
    /// all](Grab::All) is answered as if it had asked for the unique ID.
    pub reducer: B,
    /// The job's payload.
    pub data: B,
}

/// The status of a job. By default the job is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct JobStatus {
    /// Whether the server has the job.
    pub known: bool,
    /// Whether a worker holds it.
    pub running: bool,
    /// Units done.
    pub numerator: u32,
    /// Units in total.
    pub denominator: u32,
}

impl Response {
    /// Decodes a packet.
    pub fn decode(packet: Packet) -> Result<Response, Fault> {
        let Packet { kind, mut data } = packet;
        Ok(match kind {
            kind::NOOP => Response::Noop,
            kind::JOB_CREATED => Response::JobCreated { handle: data },
            kind::NO_JOB => Response::NoJob,
            kind::JOB_ASSIGN => Response::Assign(Assignment::take(Grab::Plain, data)?),
            kind::JOB_ASSIGN_UNIQ => Response::Assign(Assignment::take(Grab::Unique, data)?),
            kind::JOB_ASSIGN_ALL => Response::Assign(Assignment::take(Grab::All, data)?),
            kind::STATUS_RES => {
                let handle = required(&mut data, "handle")?;
                Response::Status { handle, status: JobStatus::take(&mut data)? }
            }
            kind::STATUS_RES_UNIQUE => {
                let unique = required(&mut data, "unique ID")?;
                let status = JobStatus::take(&mut data)?;
                Response::StatusUnique { unique, status, clients: leading_u32(&data) }
            }
            kind::OPTION_RES => Response::OptionSet { option: data },
            kind::ECHO_RES => Response::Echo { data },
            kind::ERROR => Response::Error { code: terminated_or_all(&mut data), text: data },
            other => Response::Report(Report::decode(other, data).ok_or(Fault::Type(other))?),
        })
    }
}

impl<B: AsRef<[u8]>> Response<B> {
    /// Appends the packet. On an error the buffer is left as it was.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), EncodeError> {
        match self {
            Response::Noop => begin(out, kind::NOOP).finish(),
            Response::JobCreated { handle } => {
                begin(out, kind::JOB_CREATED).finish_with_name("handle", handle)
            }
            Response::NoJob => begin(out, kind::NO_JOB).finish(),
            Response::Assign(assignment) => assignment.encode(out),
            Response::Report(report) => report.encode(RESPONSE, out),
            Response::Status { handle, status } => {
                let writer = begin(out, kind::STATUS_RES).argument("handle", handle)?;
                status.encode(writer).display(status.denominator).finish()
            }
            Response::StatusUnique { unique, status, clients } => {
                let writer = begin(out, kind::STATUS_RES_UNIQUE).argument("unique ID", unique)?;
                status.encode(writer).number(status.denominator).display(clients).finish()
            }
            Response::OptionSet { option } => begin(out, kind::OPTION_RES).finish_with(option),
            Response::Echo { data } => begin(out, kind::ECHO_RES).finish_with(data),
            Response::Error { code, text } => {
                begin(out, kind::ERROR).argument("code", code)?.finish_with(text)
            }
        }
    }
}

fn begin(out: &mut BytesMut, kind: u32) -> Writer<'_> {
    Writer::begin(out, &[&RESPONSE, &kind.to_be_bytes()])
}

impl Assignment {
    fn take(grab: Grab, mut data: Bytes) -> Result<Assignment, Fault> {
        let handle = required(&mut data, "handle")?;
        let function = required(&mut data, "function")?;
        let (mut unique, mut reducer) = (Bytes::new(), Bytes::new());
        if matches!(grab, Grab::Unique | Grab::All) {
            unique = required(&mut data, "unique ID")?;
        }
        if grab == Grab::All {
            reducer = required(&mut data, "reducer")?;
        }
        Ok(Assignment { grab, handle, function, unique, reducer, data })
    }
}

impl<B: AsRef<[u8]>> Assignment<B> {
    fn encode(&self, out: &mut BytesMut) -> Result<(), EncodeError> {
        let kind = match self.grab {
            Grab::Plain => kind::JOB_ASSIGN,
            Grab::All if !self.reducer.as_ref().is_empty() => kind::JOB_ASSIGN_ALL,
            Grab::Unique | Grab::All => kind::JOB_ASSIGN_UNIQ,
        };
        let writer = begin(out, kind);
        let mut writer = writer.argument("handle", &self.handle)?.argument("function", &self.function)?;
        if kind != kind::JOB_ASSIGN {
            writer = writer.argument("unique ID", &self.unique)?;
        }
        if kind == kind::JOB_ASSIGN_ALL {
            writer = writer.argument("reducer", &self.reducer)?;
        }
        writer.finish_with(&self.data)
    }
}

impl JobStatus {
    /// Takes the four numbers, the last of which may end the packet. Some servers leave numbers empty.
    fn take(data: &mut Bytes) -> Result<JobStatus, Fault> {
        let known = leading_u32(&required(data, "known")?) != 0;
        let running = leading_u32(&required(data, "running")?) != 0;
        let numerator = leading_u32(&required(data, "numerator")?);
        Ok(JobStatus { known, running, numerator, denominator: leading_u32(&terminated_or_all(data)) })
    }

    /// Writes all numbers but the last, which may end the packet.
    fn encode<'a>(&self, writer: Writer<'a>) -> Writer<'a> {
        let writer = writer.number(u8::from(self.known)).number(u8::from(self.running));
        writer.number(self.numerator)
    }
}
